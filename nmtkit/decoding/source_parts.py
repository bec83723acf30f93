"""Where a long source is cut and how long a translation may be: rules that every engine keeps, without torch."""

import re

from nmtkit.config import DecodingConfig
from nmtkit.text.tokenizer import Tokenizer

MAX_SOURCE_TOKENS = 1024


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
    ends_sentence = [re.search(r"[.!?\u3002\uff01\uff1f]\W?$", piece) is not None for piece in pieces]
    parts = []
    start = 0
    while len(ids) - start > longest:
        places = [place for place in range(start + 1, start + longest + 1) if starts_word[place]]
        after_sentence = [place for place in places if ends_sentence[place - 1]]
        stop = (after_sentence or places or [start + longest])[-1]
        parts.append(ids[start:stop])
        start = stop
    return [*parts, ids[start:]]


def longest_translation(decoding: DecodingConfig, source_tokens: int) -> int:
    """The most tokens of a translation by the settings, the end symbol not counted."""
    limit = int(source_tokens * decoding.max_length_ratio) + decoding.max_length_offset
    return limit if decoding.max_length is None else min(limit, decoding.max_length)
