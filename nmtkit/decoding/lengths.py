"""Lengths, the same for every engine: cuts of long sources, the maximum length of translations, and length penalties.

This module does not import torch.
"""

import bisect
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Literal

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.text.sentences import sentence_starts
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SPECIAL_PIECES, UNK

MAX_SOURCE_TOKENS = 1024
"""Maximum length of a source if model.json does not record the longest source of the training data."""
_USUAL_SHARE = 0.1
"""Minimum share of training sources with several sentences for a model to translate such sources whole."""
_SHORT_SHARE = 1 / 3
"""Share of the expected tokens below which a translation has probably lost text."""

_SHOWN = {SPECIAL_PIECES[UNK]: "\ufffd"}
"""Unknown pieces as they appear in text: no letters."""

LengthPenalty = Callable[[int], float]
Split = Literal["auto", "always", "never"]
"""Lines of which every sentence is translated by itself: those of models that hardly saw such lines, all, or none."""


def length_penalty(kind: Literal["wu", "length", "none"], alpha: float) -> LengthPenalty:
    """Return the divisor of the log-probability of n tokens with the end symbol; it never decreases as n grows.

    wu: ((5 + n) / 6)^alpha (Wu et al. 2016, arXiv 1609.08144, equation 14). length: n^alpha. none: 1.
    """
    if kind == "wu":
        return lambda n: float(((5 + n) / 6) ** alpha)
    if kind == "length":
        return lambda n: float(n**alpha)
    return lambda n: 1.0


def longest_translation(decoding: DecodingConfig, source_tokens: int, sentences: int = 1) -> int:
    """Return the maximum length of a translation in tokens, without the end symbol.

    Args:
        sentences: number of translations in it, with separators between, of `decoding.max_length` on average.
    """
    limit = int(source_tokens * decoding.max_length_ratio) + decoding.max_length_offset
    return limit if decoding.max_length is None else min(limit, (decoding.max_length + 1) * sentences - 1)


def source_limit(stated: int | None, lengths: TrainingLengths | None) -> int:
    """Return the maximum length of a source that is translated whole: as stated, else that of the training data."""
    if lengths is None:
        return stated or MAX_SOURCE_TOKENS
    return stated or lengths.max_source_tokens or lengths.longest_source


def longest_exported_source(lengths: TrainingLengths | None) -> int:
    """Return the number of source tokens for which an export has positions."""
    return max(MAX_SOURCE_TOKENS, source_limit(None, lengths))


def splits_sentences(split: Split, lengths: TrainingLengths | None) -> bool:
    """Return whether every sentence of a line is translated by itself, however short the line is.

    auto: yes if fewer than 10 % of the training sources had several sentences, or if their share is unknown, because a
    sentence by itself is never left out.
    """
    is_usual = lengths is not None and lengths.multi_sentence_share >= _USUAL_SHARE
    return split == "always" or (split == "auto" and not is_usual)


def is_short(source_tokens: int, target_tokens: int, lengths: TrainingLengths | None) -> bool:
    """Return whether a translation has far fewer tokens than the length ratio of the training pairs predicts."""
    return lengths is not None and target_tokens < _SHORT_SHARE * lengths.target_ratio * source_tokens


def cut_source(
    tokenizer: Tokenizer, ids: list[int], longest: int, lengths: TrainingLengths | None = None
) -> list[list[int]]:
    """Cut a source of more than ``longest`` tokens at sentence ends, else between words, else anywhere.

    A segment has one sentence. If the training data had lines of several sentences, or this is not known, it has as
    many sentences as fit.

    Returns:
        The segments in order, each with the source's tags, which count up to ``longest`` - 1; [] for a source without
        tokens.
    """
    if len(ids) <= longest:
        return [ids] if ids else []
    # Every segment needs the tag, which is one of its tokens.
    if ids[0] in tokenizer.tag_ids and len(ids) > 1:
        return [[ids[0], *segment] for segment in cut_source(tokenizer, ids[1:], max(1, longest - 1), lengths)]
    starts_word = tokenizer.word_starts(ids, "source")
    sentences = _sentence_starts(tokenizer.pieces(ids, "source"), starts_word, tokenizer.languages[0])
    is_filled = lengths is None or lengths.multi_sentence_share >= _USUAL_SHARE
    segments = []
    for start, stop in pairwise([0, len(ids)] if is_filled else [0, *sentences, len(ids)]):
        while stop - start > longest:
            last = bisect.bisect(sentences, start + longest) - 1
            end = sentences[last] if last >= 0 else 0
            if end <= start:  # no sentence ends within the limit
                reach = range(start + longest, start, -1)
                end = next((index for index in reach if starts_word[index]), start + longest)
            segments.append(ids[start:end])
            start = end
        segments.append(ids[start:stop])
    return segments


def _sentence_starts(pieces: list[str], starts_word: list[bool], language: str) -> list[int]:
    """Return the indices of the pieces that begin the second and all later sentences."""
    texts = [
        " " * is_start + piece.removeprefix("\u2581" * is_start).replace("\u2581", " ")
        for piece, is_start in zip((_SHOWN.get(piece, piece) for piece in pieces), starts_word, strict=True)
    ]
    # Offset of the first non-blank character of each piece.
    begins = [end - len(text.lstrip(" ")) for text, end in zip(texts, accumulate(map(len, texts)), strict=True)]
    indices = (bisect.bisect_left(begins, start) for start in sentence_starts("".join(texts), language))
    return sorted({index for index in indices if index < len(pieces)})
