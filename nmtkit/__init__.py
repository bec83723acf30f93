"""Parallel text to a trained translation system, as "Attention Is All You Need" describes it.

From Python:

    from nmtkit import Translator

    translator = Translator.load("runs/quickstart")
    translator.translate(["The dog sleeps."])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmtkit.decoding.translator import Translator as Translator

__all__ = ["Translator"]


def __getattr__(name: str) -> Any:
    """Translator, imported when it is asked for: importing the package alone costs nothing."""
    if name == "Translator":
        from nmtkit.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
