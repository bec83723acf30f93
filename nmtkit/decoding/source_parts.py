"""Where a long source is cut and how long a translation may be: rules that every engine keeps, without torch."""

import re

from nmtkit.config import DecodingConfig
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.trees import split_words

MAX_SOURCE_TOKENS = 1024


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
    begins_sentence = (
        [False]
        + [
            (starts and re.search(r"[.!?\u3002\uff01\uff1f]\W?$", before) is not None)
            # Scripts without blanks: after a wide mark and all that belongs to it.
            or re.search(r"[\u3002\uff01\uff1f]\W?\n\w", f"{before}\n{piece}") is not None
            for before, piece, starts in zip(pieces, pieces[1:], starts_word[1:], strict=False)
        ]
    )
    parts = []
    start = 0
    while len(ids) - start > longest:
        places = range(start + 1, start + longest + 1)
        sentences = [place for place in places if begins_sentence[place]]
        words = [place for place in places if starts_word[place]]
        stop = (sentences or words or [start + longest])[-1]
        parts.append(ids[start:stop])
        start = stop
    return [*parts, ids[start:]]


def longest_translation(decoding: DecodingConfig, source_tokens: int) -> int:
    """The most tokens of a translation by the settings, the end symbol not counted."""
    limit = int(source_tokens * decoding.max_length_ratio) + decoding.max_length_offset
    return limit if decoding.max_length is None else min(limit, decoding.max_length)
