"""Where a long source is cut and how long a translation may be: rules that every engine keeps, without torch."""

import bisect
from itertools import accumulate, pairwise

from nmtkit.config.schema import DecodingConfig, TrainingLengths
from nmtkit.text.sentences import sentence_starts
from nmtkit.text.tokenizer import Tokenizer

MAX_SOURCE_TOKENS = 1024
"""The limit where model.json does not record the longest source of the training."""
_USUAL_SHARE = 0.1
"""From this share of training sources of several sentences on, a model can be expected to translate them whole."""
_SHORT_SHARE = 1 / 3
"""A translation of less than this share of the expected tokens has probably lost text."""


def source_limit(stated: int | None, lengths: TrainingLengths | None) -> int:
    """The most tokens of a source that is translated whole: as stated, else the longest seen in training."""
    return stated or (MAX_SOURCE_TOKENS if lengths is None else lengths.longest_source)


def is_short(source_tokens: int, target_tokens: int, lengths: TrainingLengths | None) -> bool:
    """Whether a translation has far fewer tokens than the length ratio of the training pairs predicts."""
    return lengths is not None and target_tokens < _SHORT_SHARE * lengths.target_ratio * source_tokens


def cut_source(
    tokenizer: Tokenizer, ids: list[int], longest: int, lengths: TrainingLengths | None = None
) -> list[list[int]]:
    """Cuts a source of more than ``longest`` tokens at sentence ends, else between words, else anywhere.

    A part holds one sentence; where training had lines of several sentences, or where that is not known, as many as
    there is room for.

    Returns:
        The parts in order, each with the source's tag if it has one; [] for a source without tokens.
    """
    if len(ids) <= longest:
        return [ids] if ids else []
    if ids[0] in tokenizer.tag_ids and longest > 1:
        return [[ids[0], *part] for part in cut_source(tokenizer, ids[1:], longest - 1, lengths)]
    starts_word = tokenizer.word_starts(ids, "source")
    sentences = _sentence_places(tokenizer.pieces(ids, "source"), starts_word)
    is_filled = lengths is None or lengths.multi_sentence_share >= _USUAL_SHARE
    parts = []
    for start, stop in pairwise([0, len(ids)] if is_filled else [0, *sentences, len(ids)]):
        while stop - start > longest:
            last = bisect.bisect(sentences, start + longest) - 1
            end = sentences[last] if last >= 0 else 0
            if end <= start:  # no sentence ends in reach
                reach = range(start + longest, start, -1)
                end = next((place for place in reach if starts_word[place]), start + longest)
            parts.append(ids[start:end])
            start = end
        parts.append(ids[start:stop])
    return parts


def _sentence_places(pieces: list[str], starts_word: list[bool]) -> list[int]:
    """The places of the pieces with which the second sentence begins, the third and so on."""
    texts = [
        " " * is_start + piece.removeprefix("\u2581" * is_start).replace("\u2581", " ")
        for piece, is_start in zip(pieces, starts_word, strict=True)
    ]
    # The place of the first character of each piece that is no blank.
    begins = [end - len(text.lstrip(" ")) for text, end in zip(texts, accumulate(map(len, texts)), strict=True)]
    places = (bisect.bisect_left(begins, start) for start in sentence_starts("".join(texts)))
    return sorted({place for place in places if place < len(pieces)})


def longest_translation(decoding: DecodingConfig, source_tokens: int) -> int:
    """The most tokens of a translation by the settings, the end symbol not counted."""
    limit = int(source_tokens * decoding.max_length_ratio) + decoding.max_length_offset
    return limit if decoding.max_length is None else min(limit, decoding.max_length)
