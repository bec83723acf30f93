"""Where a long source is cut and how long a translation may be: rules that every engine keeps, without torch."""

import re

from nmtkit.config import DecodingConfig
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.trees import split_words

MAX_SOURCE_TOKENS = 1024
_WIDE = "\u3002\uff01\uff1f"
"""Marks at the end of a sentence in scripts without blanks."""
_OPENING = "\u201c\u2018\u300c\u300e\u300a\uff08("
"""Quotes and brackets that open."""


def has_text(tokenizer: Tokenizer, line: str) -> bool:
    """Whether there is anything to translate in a line; to a parser a no-break space is a word."""
    return bool(split_words(line) if tokenizer.makes_trees else line.strip())


def cut_source(tokenizer: Tokenizer, ids: list[int], longest: int) -> list[list[int]]:
    """Cuts a source of more than ``longest`` tokens at sentence ends, else between words, else anywhere.

    Returns:
        The parts in order, each with the source's tag if it has one; [] for a source without tokens.
    """
    if len(ids) <= longest:
        return [ids] if ids else []
    if ids[0] in tokenizer.tag_ids and longest > 1:
        return [[ids[0], *part] for part in cut_source(tokenizer, ids[1:], longest - 1)]
    pieces = tokenizer.pieces(ids, "source")
    starts_word = tokenizer.word_starts(ids, "source")
    parts = []
    start = 0
    while len(ids) - start > longest:
        places = range(start + 1, start + longest + 1)
        sentences = [place for place in places if _begins_sentence(pieces, place, at_word=starts_word[place])]
        words = [place for place in places if starts_word[place]]
        stop = (sentences or words or [start + longest])[-1]
        parts.append(ids[start:stop])
        start = stop
    return [*parts, ids[start:]]


def _begins_sentence(pieces: list[str], place: int, *, at_word: bool) -> bool:
    """Whether a sentence has ended before a piece: by a mark and a blank, or by a wide mark (without blanks)."""
    if at_word:
        return re.search(rf"[.!?{_WIDE}]\W?$", pieces[place - 1]) is not None
    # Closing quotes and brackets belong to the sentence before, opening ones to the next, unless one piece holds both.
    before, after = "".join(pieces[max(0, place - 3) : place]), "".join(pieces[place : place + 3])
    has_ended = re.search(rf"[{_WIDE}][^\w\u2581{_OPENING}]*$", before) or re.search(
        rf"[{_WIDE}]\W$", pieces[place - 1]
    )
    return has_ended is not None and re.match(rf"[{_OPENING}]*\w", after) is not None


def longest_translation(decoding: DecodingConfig, source_tokens: int) -> int:
    """The most tokens of a translation by the settings, the end symbol not counted."""
    limit = int(source_tokens * decoding.max_length_ratio) + decoding.max_length_offset
    return limit if decoding.max_length is None else min(limit, decoding.max_length)
