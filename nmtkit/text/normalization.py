"""What is done to every line before subwords are cut (`data.normalize`), and what of it is undone after decoding.

line --steps in their order--> text that subwords are cut from
text of a translation --restore--> line: words that `moses-tokenize` parted are joined again, nothing else is undone
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmtkit.text import moses

MOSES_STEPS = ("moses-punctuation", "moses-tokenize")
"""Steps with rules for each language; they take 50 times as long as the others."""

_STEPS: dict[str, Callable[[str, str], str]] = {
    "nfc": lambda line, language: unicodedata.normalize("NFC", line),
    "nfkc": lambda line, language: unicodedata.normalize("NFKC", line),
    "blanks": lambda line, language: _one_blank(line),
    "lowercase": lambda line, language: line.lower(),
    "moses-punctuation": moses.normalize_punctuation,
    "moses-tokenize": lambda line, language: moses.tokenize([line], language)[0],
}


def _one_blank(line: str) -> str:
    if "  " in line or "\t" in line:  # rare, and much cheaper to find out than to replace
        line = re.sub(r"[ \t]+", " ", line)
    return line.strip(" ")


def normalize(line: str, steps: Sequence[str], language: str = "") -> str:
    """Applies the named steps in order.

    Args:
        language: whose rules the steps of Moses follow.
    """
    for step in steps:
        line = _STEPS[step](line, language)
    return line


def without_moses(steps: Sequence[str]) -> tuple[str, ...]:
    """The steps that are cheap and the same for every language: what pairs are compared and measured by."""
    return tuple(step for step in steps if step not in MOSES_STEPS)


@dataclass(frozen=True)
class Normalization:
    """The normalisation of one side.

    Attributes:
        steps: of `data.normalize`.
        language: of the side.
    """

    steps: tuple[str, ...]
    language: str

    def __call__(self, line: str) -> str:
        """A line as subwords are cut from it."""
        return normalize(line, self.steps, self.language)

    def restore(self, text: str) -> str:
        """A translation as people write it: Moses' tokenisation undone, if it was done."""
        return moses.detokenize([text], self.language, unescape=False)[0] if "moses-tokenize" in self.steps else text

    def expected(self, line: str) -> str:
        """What a line comes back as where everything that is undone is undone exactly."""
        return normalize(line, [step for step in self.steps if step != "moses-tokenize"], self.language)
