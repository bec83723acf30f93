"""Normalisation of every line before it is split into subwords (`data.normalize`), and its reversal after decoding.

    line --steps in order--> text to split into subwords
    text of a translation --restore--> line

`restore` undoes the tokenisation of `moses-tokenize`, and nothing else.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmtkit.text import moses

NEWLINE, TAB, FIELD_MARK = "\ufdd2", "\ufdd3", "\ufdd4"
"""Stand for the line ends and tabs of a text without a source, and, as a word of its own, the tab between two fields of
a line (`DataConfig.has_fields`): characters that Unicode promises never to assign."""
INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069]")
"""Soft hyphens, zero-width spaces, word joiners and direction marks; not the joiners of Persian and Indic scripts."""
_NO_BREAK_SPACE = re.compile("[\u00a0\u2007\u202f]")
MOSES_STEPS = ("moses-punctuation", "moses-tokenize")
"""Steps with separate rules for each language; they take 50 times as long as the others."""


def _single_blanks(line: str) -> str:
    if "  " in line or "\t" in line:  # rare, and much cheaper to detect than to replace
        line = re.sub(r"[ \t]+", " ", line)
    return line.strip(" ")


_STEPS: dict[str, Callable[[str, str], str]] = {
    "nfc": lambda line, language: unicodedata.normalize("NFC", line),
    "nfkc": lambda line, language: unicodedata.normalize("NFKC", line),
    "invisible": lambda line, language: INVISIBLE.sub("", _NO_BREAK_SPACE.sub(" ", line)),
    "blanks": lambda line, language: _single_blanks(line),
    "lowercase": lambda line, language: line.lower(),
    "moses-punctuation": moses.normalize_punctuation,
    "moses-tokenize": lambda line, language: moses.tokenize([line], language)[0],
}


def normalize(line: str, steps: Sequence[str], language: str = "") -> str:
    """Apply the named steps in order; ``language`` selects the rules of Moses."""
    for step in steps:
        line = _STEPS[step](line, language)
    return line


def without_moses(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the other, fast steps, after which pairs are compared and measured."""
    return tuple(step for step in steps if step not in MOSES_STEPS)


@dataclass(frozen=True)
class Normalization:
    """The normalisation of one side: the steps of `data.normalize` in its language.

    NEWLINE at the end of a line is kept apart from its text.

    Attributes:
        is_tab_blank: TAB is a blank.
    """

    steps: tuple[str, ...]
    language: str
    is_tab_blank: bool = False

    def __call__(self, line: str) -> str:
        """Return the text of a line to split into subwords."""
        return self._convert(line, lambda text: normalize(text, self.steps, self.language))

    def _convert(self, line: str, conversion: Callable[[str], str]) -> str:
        text = line.removesuffix(NEWLINE)
        return conversion(text.replace(TAB, " ") if self.is_tab_blank else text) + line[len(text) :]

    def restore(self, text: str) -> str:
        """Return a translation with the tokenisation of Moses undone, if it was applied."""
        if "moses-tokenize" not in self.steps:
            return text
        # Not unescaped: `moses.tokenize` does not escape, so an entity was in the text.
        return self._convert(text, lambda text: moses.detokenize([text], self.language, unescape=False)[0])

    def expected(self, line: str) -> str:
        """Return the text that `restore` would give for a line if detokenisation were exact."""
        steps = [step for step in self.steps if step != "moses-tokenize"]
        return self._convert(line, lambda text: normalize(text, steps, self.language))
