"""Terms and spans of a source that its translation should contain, as text and as tokens of the target."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from nmtkit.text.scripts import words_and_signs
from nmtkit.text.terms import Kind, kept_spans
from nmtkit.text.tokenizer import Tokenizer

Ids = tuple[int, ...]

_SIMILAR = 0.5
"""Share of equal characters (difflib) from which a span is taken for a wrong copy of one in the source. Other spans of
the same kind, such as a number for a number word, stay as they are."""
_SIGNS = re.compile(r"[^\w\s]*")


@dataclass(frozen=True)
class Wanted:
    """A term or a span.

    Attributes:
        texts: translations of a term, any of which is enough; or the span.
        phrases: their tokens; () if the vocabulary cannot write a span.
        kind: of the span; None for a term.
    """

    texts: tuple[str, ...]
    phrases: tuple[Ids, ...]
    kind: Kind | None = None


def contains(tokens: Sequence[Any], phrase: Sequence[Any]) -> bool:
    """Return whether a sequence contains another one of the same type."""
    return any(tokens[start : start + len(phrase)] == phrase for start in range(len(tokens) - len(phrase) + 1))


def missing_in(
    text: str, pieces: Sequence[str], wanted: Sequence[Wanted], kinds: Sequence[Kind], tokenizer: Tokenizer
) -> tuple[Wanted, ...]:
    """Return the terms and spans that a translation does not contain; ``kinds``: all kinds of spans that are kept.

    A term is there if its words or its tokens are, so the last word may continue; a span only as a span.
    """
    if not wanted:
        return ()
    words, spans = words_and_signs(text), {text[start:stop] for start, stop, _ in kept_spans(text, kinds)}
    missing = []
    for entry in wanted:
        is_there = entry.texts[0] in spans
        if entry.kind is None:
            in_pieces = (tokenizer.pieces(phrase, "target") for phrase in entry.phrases)
            is_there = any(contains(words, words_and_signs(term)) for term in entry.texts)
            is_there = is_there or any(contains(list(pieces), phrase) for phrase in in_pieces)
        if not is_there:
            missing.append(entry)
    return tuple(missing)


def mended(
    text: str, wanted: Sequence[Wanted], missing: Sequence[Wanted], kinds: Sequence[Kind]
) -> tuple[str, list[Wanted]]:
    """Return a translation up to its last span that is a wrong copy, with the right ones, and what is still missing.

    The signs directly after that span are included, as a token may hold the end of a span and a bracket.
    """
    beginning, end, left = "", 0, list(missing)
    own = {entry.texts[0] for entry in wanted}
    for start, stop, kind in kept_spans(text, kinds):
        span = text[start:stop]
        likeness = {entry: SequenceMatcher(None, entry.texts[0], span).ratio() for entry in left if entry.kind == kind}
        right = max(likeness, key=likeness.__getitem__, default=None)
        # A span that the source has is right where it stands, however similar it is to a missing one.
        if right is not None and span not in own and likeness[right] >= _SIMILAR:
            beginning, end = f"{beginning}{text[end:start]}{right.texts[0]}", stop
            left.remove(right)
    signs = _SIGNS.match(text, end)
    return beginning + (signs[0] if signs and end else ""), left
