"""A block of training pairs, cut into subwords: what each process of the last pass of `prepare` does.

    text -> normalised -> ids -> pairs of too many tokens or too uneven ones left out -> rows of ids

A pure function of the block, as in examination.py.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmtkit.config.schema import CleaningConfig
from nmtkit.data.cleaning import BLANK_RULES, rules_against_lengths
from nmtkit.data.examination import TOO_LONG
from nmtkit.data.shards import id_type
from nmtkit.data.training_text import TextBlock
from nmtkit.text.sentences import sentence_starts
from nmtkit.text.tokenizer import Side, Tokenizer

SIDES: tuple[Side, Side] = ("source", "target")
_KEEP_ALL = CleaningConfig(max_tokens=0, max_characters=0)


@dataclass(frozen=True)
class EncodedBlock:
    """Pairs as ids.

    Attributes:
        ids: of all sentences in one row, for each side.
        lengths: tokens of each sentence, for each side, [pairs].
        lines: the number of each pair, [pairs].
        corpus: of the pairs, from 0.
        words, characters: of the text they were made from, for each side.
        multi_sentence_sources: source lines with more than one sentence.
        num_read: pairs looked at.
        broken: the rules that pairs break by their tokens, with the numbers of the pairs, in order.
        dropped: pairs left out, by the rule that did it.
    """

    ids: tuple[npt.NDArray, npt.NDArray]
    lengths: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    lines: npt.NDArray[np.int64]
    corpus: int
    words: tuple[int, int]
    characters: tuple[int, int]
    multi_sentence_sources: int
    num_read: int
    broken: list[tuple[str, int]]
    dropped: Counter[str]


class BlockEncoder:
    """Cuts blocks of pairs into subwords."""

    def __init__(self, tokenizer: Path, cleaning: CleaningConfig | None, prefixes: Sequence[str]) -> None:
        """Args:
        tokenizer: its folder.
        cleaning: without it only pairs with a side without tokens are left out.
        prefixes: what is put before the source of each corpus.
        """
        self._tokenizer = Tokenizer.load(tokenizer)
        self._is_cleaning = cleaning is not None
        self._cleaning = cleaning or _KEEP_ALL
        self._prefixes = prefixes
        self._types = [id_type(self._tokenizer.vocab_size(side)) for side in SIDES]

    def __call__(self, block: TextBlock) -> EncodedBlock:
        """Encodes a block."""
        pairs = list(block.pairs())
        texts = [
            [self._tokenizer.normalize(source, "source") for _, source, _ in pairs],
            [self._tokenizer.normalize(target, "target") for _, _, target in pairs],
        ]
        prefix = self._prefixes[block.corpus]
        given = ([f"{prefix} {text}" if text else "" for text in texts[0]] if prefix else texts[0]), texts[1]
        encoded = [self._tokenizer.encode(lines, side, threads=1) for lines, side in zip(given, SIDES, strict=True)]
        lengths = [np.fromiter(map(len, rows), np.int64, len(pairs)) for rows in encoded]
        kept = np.ones(len(pairs), bool)
        broken: list[tuple[str, int]] = []
        dropped: Counter[str] = Counter()
        for place in self._suspects(*lengths):
            rules = rules_against_lengths(int(lengths[0][place]), int(lengths[1][place]), self._cleaning)
            kept[place] = not self._is_left_out(rules, pairs[place][0], block, broken, dropped)
        if not kept.all():
            texts = [list(compress(side, kept)) for side in texts]
            encoded = [list(compress(rows, kept)) for rows in encoded]
            lengths = [side[kept] for side in lengths]
        ids = [
            np.fromiter(chain.from_iterable(rows), kind, int(side.sum()))
            for rows, kind, side in zip(encoded, self._types, lengths, strict=True)
        ]
        words = [sum(text.count(" ") for text in side) + len(side) for side in texts]
        characters = [sum(map(len, side)) for side in texts]
        several = sum(bool(sentence_starts(text)) for text in texts[0])
        return EncodedBlock(
            ids=(ids[0], ids[1]),
            lengths=(lengths[0], lengths[1]),
            lines=np.fromiter((number for number, _, _ in pairs), np.int64, len(pairs))[kept],
            corpus=block.corpus,
            words=(words[0], words[1]),
            characters=(characters[0], characters[1]),
            multi_sentence_sources=several,
            num_read=len(pairs),
            broken=broken,
            dropped=dropped,
        )

    def _suspects(self, source: npt.NDArray[np.int64], target: npt.NDArray[np.int64]) -> list[int]:
        """The places of the pairs that break a rule of lengths."""
        longer, shorter = np.maximum(source, target), np.minimum(source, target)
        suspect = shorter == 0
        if self._cleaning.max_tokens:
            suspect |= longer > self._cleaning.max_tokens
        if self._cleaning.max_ratio:
            suspect |= longer > self._cleaning.max_ratio * shorter
        places: list[int] = np.flatnonzero(suspect).tolist()
        return places

    def _is_left_out(
        self, rules: list[str], number: int, block: TextBlock, broken: list[tuple[str, int]], dropped: Counter[str]
    ) -> bool:
        """Notes a pair that breaks rules of its number of tokens, and says whether that leaves it out."""
        if not self._is_cleaning:
            return True
        was_counted = block.states[number - block.first] & TOO_LONG
        for rule in rules:
            if rule not in BLANK_RULES and not (rule == "too_long" and was_counted):
                broken.append((rule, number))
        dropping = next((rule for rule in rules if self._cleaning.action(rule) == "drop"), None)
        if dropping is not None:
            dropped[dropping] += 1
        return dropping is not None
