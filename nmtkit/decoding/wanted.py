"""Terms and spans of a source that its translation should contain, as text and as tokens of the target."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nmtkit.text.scripts import words_and_signs
from nmtkit.text.terms import Kind, kept_spans
from nmtkit.text.tokenizer import UNK, Tokenizer

Ids = tuple[int, ...]

_NEIGHBOURS = 10
"""Characters of its word on each side of a span that may change its tokens."""


@dataclass(frozen=True)
class Wanted:
    """A term or a span.

    Attributes:
        texts: translations of a term, any of which is enough; or the span.
        phrases: their tokens; () if a span cannot be generated.
    """

    texts: tuple[str, ...]
    phrases: tuple[Ids, ...]
    is_span: bool = False


def contains(tokens: Sequence[Any], phrase: Sequence[Any]) -> bool:
    """Return whether a sequence contains another one of the same type."""
    return any(tokens[start : start + len(phrase)] == phrase for start in range(len(tokens) - len(phrase) + 1))


def spans_in(source: str, kinds: Sequence[Kind], tokenizer: Tokenizer, forbidden: Sequence[Ids] = ()) -> list[Wanted]:
    """Return the spans in a source, each once; no phrase contains a forbidden one.

    Their phrases are the tokens of a span by itself, and those that hold it within its word, as in "(2012)", where no
    blank precedes the number.
    """
    found: dict[str, set[Ids]] = {}
    for start, stop in kept_spans(source, kinds):
        before = source[max(0, start - _NEIGHBOURS) : start].rpartition(" ")[2]
        word = before + source[start:stop] + source[stop : stop + _NEIGHBOURS].partition(" ")[0]
        texts = [tokenizer.normalize(text, "target") for text in (source[start:stop], word)]
        alone, in_word = (tuple(ids) for ids in tokenizer.encode(texts, "target"))
        ends = [len(tokenizer.decode(in_word[:end])) for end in range(len(in_word) + 1)]
        holding: Ids = ()
        if before and ends[-1] == len(word):
            first = bisect.bisect(ends, len(before)) - 1
            holding = in_word[first : bisect.bisect_left(ends, len(before) + stop - start)]
        found.setdefault(source[start:stop], set()).update(
            ids
            for ids in (alone, holding)
            if ids and UNK not in ids and not any(contains(ids, phrase) for phrase in forbidden)
        )
    return [Wanted((span,), tuple(sorted(phrases)), is_span=True) for span, phrases in found.items()]


def missing_in(
    text: str, pieces: Sequence[str], wanted: Sequence[Wanted], kinds: Sequence[Kind], tokenizer: Tokenizer
) -> tuple[str, ...]:
    """Return the terms, as their alternatives joined by " | ", and spans that a translation does not contain.

    A term is there if its words or its tokens are, so the last word may continue; a span only as a span of these kinds.
    """
    words, spans = words_and_signs(text), {text[start:stop] for start, stop in kept_spans(text, kinds)}
    missing = []
    for entry in wanted:
        is_there = spans.issuperset(entry.texts)
        if not entry.is_span:
            in_pieces = (tokenizer.pieces(phrase, "target") for phrase in entry.phrases)
            is_there = any(contains(words, words_and_signs(term)) for term in entry.texts)
            is_there = is_there or any(contains(list(pieces), phrase) for phrase in in_pieces)
        if not is_there:
            missing.append(" | ".join(entry.texts))
    return tuple(missing)
