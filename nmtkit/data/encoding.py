"""The last pass of `prepare`: cut training pairs into subwords, in several processes.

    text -> normalised -> ids -> pairs with too many tokens or too different lengths left out
         -> sentences of the document before (context.py) -> rows of ids

The result of `BlockEncoder` depends on its block of pairs only; `ShardStatistics` adds up the counts of all blocks.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmtkit.config.decoding_schema import TrainingLengths
from nmtkit.config.schema import Recipe
from nmtkit.console import log
from nmtkit.data.cleaning import BLANK_RULES, SPOOLED, TOO_LONG, BlockFindings, rules_against_lengths
from nmtkit.data.context import contexts
from nmtkit.data.quality_report import without_zeros
from nmtkit.data.shards import Indices, Lengths, PairData, id_type
from nmtkit.data.training_text import TextBlock
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.sentences import sentence_starts
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SIDES, UNK, join_segments

ROUND_TRIP_LINES = 10_000
"""Number of target lines, evenly spaced in the training text, for which decoding their subwords is tested."""
FREQUENT = 10
"""Minimum number of occurrences of a vocabulary entry that the report calls frequent; rarer ones are hardly learned."""
_PAIRS_AT_ONCE = 100_000
MAX_TOKENS_SHOWN = 256
"""Last bin of the histogram of tokens per sentence, for this length and all longer ones."""


@dataclass(frozen=True)
class EncodedBlock:
    """Pairs as ids."""

    ids: list[npt.NDArray]  # of all sentences in one row, for each side
    lengths: list[Lengths]  # tokens of each row, for each side, [pairs]
    longest_source: int  # tokens of the longest source without context
    lines: Indices  # the number of each pair, [pairs]
    corpus: int  # index of the corpus of the pairs
    num_read: int  # pairs before any is left out
    counts: Counter[str]  # see `ShardStatistics`
    findings: BlockFindings  # the rules that pairs break by their numbers of tokens


class BlockEncoder:
    """Function from blocks of pairs to their subword ids."""

    def __init__(
        self,
        tokenizer: Path,
        recipe: Recipe,
        num_pairs: int = 0,
        directions: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        """Args:
        tokenizer: folder of the tokenizer.
        num_pairs: number of pairs in all blocks; 0: decode no target lines as a test.
        directions: source and target language of other corpora than those of training, from which only pairs with a
            side without tokens are left out; None: the corpora of data.train.
        """
        data = recipe.data
        self._cleaning = recipe.cleaning if directions is None else None
        self._prefixes = [""] * len(directions or ())
        if directions is None:
            directions = [data.direction(entry) for entry in data.train]
            self._prefixes = ["" if isinstance(entry, str) else entry.source_prefix for entry in data.train]
        self._tokenizer = loaded = Tokenizer.load(tokenizer)
        self._tokenizers = [loaded.in_direction(target, source) for source, target in directions]
        self._num_pairs = num_pairs
        self._max_source_tokens, self._max_tokens = data.max_source_tokens, recipe.cleaning.max_tokens
        self._types = [id_type(self._tokenizer.vocab_size(side)) for side in SIDES]
        self._context_sides = self._tokenizer.context_sides
        self._separators = [self._tokenizer.separator_id(side) for side in self._context_sides]

    def __call__(self, block: TextBlock) -> EncodedBlock:
        self._tokenizer = self._tokenizers[block.corpus]
        pairs = list(block.pairs())
        texts, encoded, sources = self._encode(block.corpus, pairs)
        lengths = [np.fromiter(map(len, rows), np.int64, len(pairs)) for rows in encoded]
        counts = self._round_trip([target for _, _, target in pairs], encoded[1], block.num_before)
        findings = BlockFindings()
        kept = self._check_lengths(block, pairs, lengths, findings)
        # Before pairs are left out for their lengths, as these are context of others.
        before = self._contexts(block, pairs, encoded) if self._context_sides else []
        if not kept.all():
            texts = [list(compress(side, kept)) for side in texts]
            encoded = [list(compress(rows, kept)) for rows in encoded]
            lengths = [side[kept] for side in lengths]
            sources = list(compress(sources, kept))
        longest_source, language = int(lengths[0].max(initial=0)), self._tokenizer.languages[0]
        counts["cut_sources"] = sum(is_cut for is_cut, _ in sources)
        counts["multi_sentence_sources"] = sum(bool(sentence_starts(text, language)) for text in texts[0])
        if self._tokenizer.labels:
            texts[0] = [" ".join(field.strip(" ") for field in text.split(FIELD_MARK)) for text in texts[0]]
        counts["source subwords"], counts["target subwords"] = sum(size for _, size in sources), int(lengths[1].sum())
        for name, text_lines, tokens in zip(SIDES, texts, lengths, strict=True):
            counts[f"{name} tokens"] = int(tokens.sum())
            counts[f"{name} words"] = sum(text.count(" ") for text in text_lines) + len(text_lines)
            counts[f"{name} characters"] = sum(map(len, text_lines))
        for index, rows in enumerate(before):
            encoded[index] = [[*row, *ids] for row, ids in zip(compress(rows, kept), encoded[index], strict=True)]
            lengths[index] = np.fromiter(map(len, encoded[index]), np.int64, len(encoded[index]))
        ids = [
            np.fromiter(chain.from_iterable(rows), kind, int(side.sum()))
            for rows, kind, side in zip(encoded, self._types, lengths, strict=True)
        ]
        numbers = np.fromiter((number for number, _, _ in pairs), np.int64, len(pairs))[kept]
        return EncodedBlock(ids, lengths, longest_source, numbers, block.corpus, len(pairs), counts, findings)

    def _encode(
        self, corpus: int, lines: Sequence[tuple[int, str, str]]
    ) -> tuple[list[list[str]], list[list[list[int]]], list[tuple[bool, int]]]:
        """Return the normalised text of numbered pairs and their ids, for each side, and for each source whether it was
        cut and its number of subwords before."""
        texts = [
            [self._tokenizer.normalize(source, "source") for _, source, _ in lines],
            [self._tokenizer.normalize(target, "target") for _, _, target in lines],
        ]
        if self._tokenizer.labels:
            sequences = self._tokenizer.sequences(texts[0], threads=1)
            targets = self._tokenizer.encode(texts[1], "target", threads=1)
            return texts, [[ids for ids, *_ in sequences], targets], [(is_cut, size) for _, is_cut, size in sequences]
        prefix = self._prefixes[corpus]
        sources = [f"{prefix} {text}" if text else "" for text in texts[0]] if prefix else texts[0]
        sides = zip((sources, texts[1]), SIDES, strict=True)
        # A single thread each, as several processes do this at the same time.
        encoded = [self._tokenizer.encode(side_lines, side, threads=1) for side_lines, side in sides]
        if start := self._tokenizer.target_start:
            encoded[1] = [[*start, *ids] if ids else [] for ids in encoded[1]]
        sizes, longest = [len(ids) for ids in encoded[0]], self._max_source_tokens
        encoded[0] = [ids[:longest] for ids in encoded[0]] if longest is not None else encoded[0]
        return texts, encoded, [(longest is not None and size > longest, size) for size in sizes]

    def _contexts(
        self, block: TextBlock, pairs: list[tuple[int, str, str]], encoded: list[list[list[int]]]
    ) -> list[list[list[int]]]:
        """Return the ids that go before each pair, for each side with context.

        Copies, and pairs with too many tokens or too different lengths, are context of others. Where a pair was left
        out for its text, the context ends as at a blank line.
        """
        rows = {number: ids for (number, _, _), *ids in zip(pairs, *encoded, strict=True)}
        others = [line for line in (*block.before, *block.lines()) if line[0] not in rows]
        _, other_ids, _ = self._encode(block.corpus, others)
        rows |= {number: ids for (number, _, _), *ids in zip(others, *other_ids, strict=True)}
        size, sides = self._tokenizer.context, len(self._separators)
        documents = (rows[number][:sides] if all(rows[number]) else [[]] * sides for number in sorted(rows))
        found = contexts(documents, size, self._separators, [self._max_tokens or None] * sides)
        by_number = dict(zip(sorted(rows), found, strict=True))
        return [[by_number[number][side] for number, _, _ in pairs] for side in range(sides)]

    def _check_lengths(
        self,
        block: TextBlock,
        pairs: list[tuple[int, str, str]],
        lengths: list[Lengths],
        findings: BlockFindings,
    ) -> npt.NDArray[np.bool_]:
        """Note the pairs that break a rule about lengths, and return which pairs are kept."""
        cleaning = self._cleaning
        if cleaning is None:
            return np.minimum(*lengths) > 0
        broken = rules_against_lengths(lengths[0], lengths[1], cleaning)
        kept = np.ones(len(pairs), bool)
        for index in np.flatnonzero(np.any(list(broken.values()), axis=0)).tolist():
            number, source, target = pairs[index]
            rules = [rule for rule, breaks in broken.items() if breaks[index]]
            was_counted = block.states[number - block.first] & TOO_LONG
            for rule in rules:
                if rule not in BLANK_RULES and not (rule == "too_long" and was_counted):
                    findings.add(rule, number, source, target)
            # A side of which the subword model leaves nothing cannot be trained on, whatever the action.
            dropping = next((rule for rule in rules if rule in BLANK_RULES or cleaning.action(rule) == "drop"), None)
            if dropping is not None:
                kept[index] = False
                findings.dropped[dropping] += 1
        return kept

    def _round_trip(self, lines: list[str], rows: list[list[int]], num_before: int) -> Counter[str]:
        """Decode sampled target lines; count those sampled, changed, and changed with an unknown token.

        Args:
            lines: target lines of the text.
            rows: ids of each line.
            num_before: number of lines in earlier blocks.
        """
        counts = Counter[str]()
        sampled = min(self._num_pairs, ROUND_TRIP_LINES)
        normalization, settings = self._tokenizer.normalizations["target"], self._tokenizer.settings
        for position, (line, ids) in enumerate(zip(lines, rows, strict=True), start=num_before):
            # True at `sampled` evenly spaced positions, whatever the blocks are.
            if sampled and position * sampled % self._num_pairs < sampled:
                expected = normalization.expected(line)
                if settings["subwords"] == "none":
                    expected = join_segments(expected, settings["segment_mark"])
                is_changed = self._tokenizer.translation(ids) != expected
                counts.update(lines=1, changed=int(is_changed), unknown=int(is_changed and UNK in ids))
        return counts


def num_trained(pairs: Sequence[tuple[str, str]], direction: tuple[str, str], run: Run) -> int:
    """Return how many pairs without unknown words are in the training data of a run, found by their ids.

    Tags and the sentences before do not count: the same pair may have others in training.

    Raises:
        NmtkitError: the run cannot be read, or does not know the languages.
    """
    tokenizer = run.tokenizer()
    encoder = BlockEncoder(run.tokenizer_folder, run.recipe(), directions=[direction])
    source, target = ("".join(f"{pair[side]}\n" for pair in pairs).encode() for side in range(2))
    block = encoder(TextBlock(0, 1, 0, bytes([SPOOLED]) * len(pairs), source, target))
    own = _own_text(list(zip(block.ids, block.lengths, strict=True)), tokenizer)
    # Ids do not tell unknown words apart.
    kinds = [ids.dtype for ids in block.ids]
    known = [pair for pair in own if not any(UNK in np.frombuffer(*side) for side in zip(pair, kinds, strict=True))]
    data, wanted, trained = PairData(run.train_data), set(known), set[tuple[bytes, bytes]]()
    for begin in range(0, len(data), _PAIRS_AT_ONCE):
        indices = np.arange(begin, min(begin + _PAIRS_AT_ONCE, len(data)))
        stored = [data.joined_ids(side, indices) for side in range(2)]
        trained |= wanted.intersection(_own_text(stored, tokenizer))
    return sum(pair in trained for pair in known)


def _own_text(sides: Sequence[tuple[npt.NDArray, Lengths]], tokenizer: Tokenizer) -> list[tuple[bytes, bytes]]:
    """Return the ids of both sides of each pair as bytes, without tags and without the sentences before.

    Args:
        sides: ids in one row and the lengths of the sentences, of which none is empty.
    """
    texts = []
    for side, (ids, lengths) in zip(SIDES, sides, strict=True):
        is_own = np.isin(ids, [*tokenizer.tag_ids], invert=True) if side == "source" else np.ones(len(ids), bool)
        starts = np.cumsum(lengths) - lengths
        if side in tokenizer.context_sides and len(ids):
            positions = np.arange(len(ids))
            last = np.maximum.reduceat(np.where(ids == tokenizer.separator_id(side), positions, -1), starts)
            is_own &= positions > np.repeat(last, lengths)
        ends = np.cumsum(is_own)[starts + lengths - 1] * ids.itemsize
        text = ids[is_own].tobytes()
        texts.append([text[begin:end] for begin, end in pairwise([0, *ends.tolist()])])
    return list(zip(*texts, strict=True))


class ShardStatistics:
    """Statistics of a set of shards for the report, counted while they are written.

    Attributes:
        counts: "SIDE tokens" (without context), "multi_sentence_sources", "cut_sources"; "SIDE words",
            "SIDE characters" and "SIDE subwords" of the whole text, and of each field of a label's sequences once;
            "lines" of the target that were decoded as a test, those of them that "changed", and those of these with an
            "unknown" token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._seen = [np.zeros(tokenizer.vocab_size(side), np.int64) for side in SIDES]
        self._lengths = [np.zeros(MAX_TOKENS_SHOWN + 1, np.int64) for _ in SIDES]
        self.counts = Counter[str]()
        self._pairs = self._longest_source = self._longest_sequence = 0
        self._has_context = bool(tokenizer.context)
        self._has_moses = "moses-tokenize" in tokenizer.normalizations["target"].steps
        self._text_sides = SIDES[:1] if tokenizer.labels else SIDES if task_of(tokenizer).has_source else SIDES[1:]

    def add(self, block: EncodedBlock) -> None:
        """Count the pairs of a block that are kept."""
        for side in range(2):
            self._seen[side] += np.bincount(block.ids[side], minlength=len(self._seen[side]))
            shown = np.minimum(block.lengths[side], MAX_TOKENS_SHOWN)
            self._lengths[side] += np.bincount(shown, minlength=MAX_TOKENS_SHOWN + 1)
        self.counts.update(block.counts)
        self._pairs += len(block.lines)
        self._longest_source = max(self._longest_source, block.longest_source)
        self._longest_sequence = max(self._longest_sequence, int(block.lengths[0].max(initial=0)))

    def training_lengths(self, max_source_tokens: int | None = None) -> TrainingLengths:
        """Return the lengths that a model folder records; at least one pair is needed."""
        return TrainingLengths(
            longest_source=self._longest_source,
            longest_sequence=self._longest_sequence if self._has_context else None,
            target_ratio=self.counts["target tokens"] / self.counts["source tokens"],
            multi_sentence_share=self.counts["multi_sentence_sources"] / self._pairs,
            max_source_tokens=max_source_tokens,
        )

    def round_trip(self) -> dict[str, int]:
        """Return the numbers of sampled target lines, of those that decoding changed, and of these with unknowns."""
        found = {name: self.counts[name] for name in ("lines", "changed", "unknown")}
        lines, changed, unknown = found.values()
        is_of_moses = self._has_moses and 2 * (changed - unknown) > lines
        if changed:
            log.log(
                logging.WARNING if is_of_moses else logging.INFO,
                "%.2f %% of %s sampled target lines change when cut into subwords and joined again (%s because a "
                "character has no entry in the vocabulary)%s",
                100 * changed / lines, f"{lines:,}", f"{unknown:,}",
                ", and so will translations; leave moses-tokenize out of data.normalize" if is_of_moses else "",
            )  # fmt: skip
        return found

    def as_json(self) -> dict[str, Any]:
        """Return sizes, tokens per word, use of the vocabulary, and a histogram of lengths per side with text."""
        sides: dict[str, Any] = {}
        for side in self._text_sides:
            index = SIDES.index(side)
            seen = self._seen[index]
            words, characters, subwords = (
                self.counts[f"{side} {unit}"] for unit in ("words", "characters", "subwords")
            )
            tokens = int(seen.sum())
            # Without <unk>, which stands for what the vocabulary does not cover.
            ranked = np.sort(np.delete(seen, UNK))[::-1]
            sides[side] = {
                "tokens": tokens,
                "words": words,
                "tokens_per_word": round(subwords / max(1, words), 4),
                "characters_per_token": round(characters / max(1, subwords), 4),
                "unknown": int(seen[UNK]),
                "vocabulary": len(seen),
                "entries_used": int((ranked > 0).sum()),
                "entries_frequent": int((ranked >= FREQUENT).sum()),
                "most_frequent_half": int(np.searchsorted(np.cumsum(ranked), ranked.sum() / 2)) + 1,
                "lengths": without_zeros(self._lengths[index].tolist()),
            }
        if cut := self.counts["cut_sources"]:
            sides["source"]["cut"] = cut
        return sides
