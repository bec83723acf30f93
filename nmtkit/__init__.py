"""Train Transformer translation models from parallel text, translate with them and score the translations.

From Python:

    from nmtkit import Translator

    translator = Translator.load("runs/quickstart")
    translator.translate(["The dog sleeps."])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmtkit.decoding.classifier import Classifier as Classifier
    from nmtkit.decoding.translator import Translator as Translator

__all__ = ["Classifier", "Translator"]


def __getattr__(name: str) -> Any:
    """Import Translator or Classifier on first use, so that importing the package alone is fast."""
    if name == "Classifier":
        from nmtkit.decoding.classifier import Classifier

        return Classifier
    if name == "Translator":
        from nmtkit.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
