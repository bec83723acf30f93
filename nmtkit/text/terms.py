"""Terms of a glossary, and spans such as URLs, which a translation should contain if its source does."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, cast

from nmtkit.errors import DataError
from nmtkit.lines import LineReader
from nmtkit.text.scripts import UNSPACED, letters, normalized_words

Kind = Literal["tags", "urls", "emails", "numbers"]


class Term(NamedTuple):
    """The translation of a term of a glossary; ``location``, which names the term, begins messages about it."""

    text: str
    location: str


class Glossary:
    """Terms with one or several translations each.

    Terms match whole words. At each word of a text, the longest term that begins there is taken; of equally long ones,
    that with the same capitals. A term without capitals also matches words with capitals.

    Attributes:
        pairs: terms of the source, each with a translation.
        terms: the translations, in the same order.
    """

    def __init__(
        self, pairs: Iterable[tuple[str, str]] | Mapping[str, str], name: str = "glossary", numbers: Sequence[int] = ()
    ) -> None:
        """Store the pairs of a term and its translation; several pairs of a term are alternatives.

        Args:
            name: name of the glossary in messages.
            numbers: line number of each pair in its file, for messages.

        Raises:
            DataError: a term or a translation is empty, or a pair occurs twice.
        """
        self.pairs = tuple(pairs.items() if isinstance(pairs, Mapping) else pairs)
        self.terms: list[Term] = []
        self._exact: dict[tuple[str, ...], list[Term]] = {}
        self._any_case: dict[tuple[str, ...], list[Term]] = {}
        self._capitals: dict[tuple[str, ...], dict[tuple[str, ...], list[Term]]] = {}
        sizes: dict[str, set[int]] = {}
        seen: dict[tuple[tuple[str, ...], str], int] = {}
        for number, (source, target) in zip(numbers or range(1, len(self.pairs) + 1), self.pairs, strict=True):
            line = f", line {number}" if numbers else ""
            location, target = f"{name}{line}, term {source.strip()!r}: ", target.strip()
            words = tuple(normalized_words(source))
            if not words or not target:
                empty = f"{location}the translation" if words else f"{name}{line}: the term"
                raise DataError(f"{empty} is empty; add it, or remove {'the line' if line else 'both'}")
            if first := seen.get((words, target)):
                other = f"in line {first}, too" if line else "twice"
                raise DataError(f"{location}it has this translation {other}; remove one")
            seen[words, target] = number
            self.terms.append(Term(target, location))
            terms = self._exact.setdefault(words, [])
            terms.append(self.terms[-1])
            capitals = tuple(map(str.upper, words))
            if source == source.lower():
                # The same list, to which further translations are added.
                self._any_case[words] = self._capitals.setdefault(capitals, {})[words] = terms
            # By the first word: the time to search a text does not grow with the number of terms.
            for word in (words[0], capitals[0]):
                sizes.setdefault(word.lower(), set()).add(len(words))
        self._sizes = {word: sorted(found, reverse=True) for word, found in sizes.items()}

    @classmethod
    def read(cls, path: Path) -> "Glossary":
        """Read lines of a term, a tab and its translation. Blank lines, and lines that begin with "#", are left out.

        Raises:
            DataError: the file cannot be read, is not valid UTF-8, or has a line of another form.
        """
        pairs, numbers = [], []
        for number, line in enumerate(LineReader(path), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.split("\t")
            if len(fields) != 2:
                raise DataError(
                    f"{path}, line {number}: has {len(fields) - 1} tabs; write a term, one tab and its translation "
                    "(each further translation on a line of its own)"
                )
            pairs.append((fields[0], fields[1]))
            numbers.append(number)
        return cls(pairs, str(path), numbers)

    def found_in(self, text: str) -> list[list[Term]]:
        """Return the alternative translations of each term in a text, in order of their first occurrence."""
        # By identity, as different terms may have equal translations.
        return list({id(terms): terms for _, _, terms in self._matches(normalized_words(text))}.values())

    def joined(self, sentences: Sequence[str]) -> list[str]:
        """Return the sentences of a text, with those as one that a term goes across."""
        matches = self._matches(normalized_words("".join(sentences)))
        inside = {index for start, stop, _ in matches for index in range(start + 1, stop)}
        result, end = [""], 0
        for sentence in sentences:
            result[-1] += sentence
            end += len(normalized_words(sentence))
            if end not in inside:
                result.append("")
        return result[:-1]

    def _in_capitals(self, words: tuple[str, ...]) -> list[Term] | None:
        """Return the term of which some words have capitals only: STRASSE is straße, but Strasse is not."""
        for term, terms in self._capitals.get(tuple(map(str.upper, words)), {}).items():
            if all(word.isupper() or word.lower() == own for word, own in zip(words, term, strict=True)):
                return terms
        return None

    def _matches(self, words: Sequence[str]) -> Iterator[tuple[int, int, list[Term]]]:
        """Yield begin, end and translations of each term in a text."""
        lower = [word.lower() for word in words]
        start = 0
        while start < len(words):
            for size in self._sizes.get(lower[start], ()):
                stop = start + size
                found = tuple(words[start:stop])
                terms = self._exact.get(found) or self._any_case.get(tuple(lower[start:stop]))
                if terms := terms or self._in_capitals(found):
                    yield start, stop, terms
                    start = stop
                    break
            else:
                start += 1


@cache
def _spans(kinds: tuple[Kind, ...]) -> re.Pattern[str]:
    """Return a pattern of the spans of some kinds."""
    unspaced = letters(UNSPACED).pattern
    hangul = letters(("Hangul",)).pattern
    in_url = rf"(?:(?!{unspaced})[^\s<>\"\u201c-\u201f\u00ab\u00bb\u3000-\u303f\uff00-\uff65])"
    # Words without blanks may stand right before or after an address.
    name, host, end = (rf"(?:(?!{unspaced}){characters})" for characters in (r"[\w.+-]", r"[\w-]", r"\w"))
    # Lookbehinds, bounds and possessive quantifiers keep the search linear in the length of any text.
    patterns: dict[Kind, str] = {
        "tags": r"</?[A-Za-z][^<>]*>",
        # The punctuation after a URL is not part of it.
        "urls": rf"(?i:(?:\b|(?<={unspaced}))(?:[a-z][a-z0-9+.-]{{1,20}}://|www\.)){in_url}*"
        rf"(?![.,;:!?'\u2019)\]}}*_]){in_url}",
        "emails": rf"(?:(?<![\w.+-])|(?<={unspaced})){name}+@{end}{host}*(?:\.{host}*{end})+",
        # Not within a word: the number of "1990s" or "A4" may change in another language. Korean words such as counters
        # may follow without a blank. The wide comma of Chinese lists is part of a number only after a wide digit.
        "numbers": rf"(?:(?<![^\W_])|(?<={unspaced}))"
        rf"\d++(?:(?:[.,:/'\u2019\uff0e\u066b\u066c-]|(?<=[\uff10-\uff19])\uff0c)\d++)*+"
        rf"(?:(?![^\W_])|(?={unspaced}|{hangul}))",
    }
    return re.compile("|".join(f"(?P<{kind}>{patterns[kind]})" for kind in patterns if kind in kinds) or r"(?!)")


def kept_spans(text: str, kinds: Sequence[Kind]) -> list[tuple[int, int, Kind]]:
    """Return begin, end and kind of the spans in a text that a translation should keep unchanged."""
    return [(*match.span(), cast(Kind, match.lastgroup)) for match in _spans(tuple(kinds)).finditer(text)]
