"""What `prepare` tells of the data: RUN/data/report.json.

Made from what was found while reading (findings.py) and from what went into the shards; report_page.py draws it.
"""

from typing import Any

import numpy as np

from nmtkit.config.schema import TrainingLengths
from nmtkit.data.encoding import SIDES, EncodedBlock
from nmtkit.data.findings import Findings, shown_name
from nmtkit.data.training_text import TrainingText
from nmtkit.text.tokenizer import UNK, Tokenizer

FREQUENT = 10
"""An entry of the vocabulary seen that often can be learned; rarer ones hardly."""
MAX_TOKENS_SHOWN = 256
"""Longer sentences share the last place of the histogram."""


class ShardStatistics:
    """What is told of shards, counted while they are written."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._seen = [np.zeros(tokenizer.vocab_size(side), np.int64) for side in SIDES]
        self._lengths = [np.zeros(MAX_TOKENS_SHOWN + 1, np.int64) for _ in SIDES]
        self._words, self._characters = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._pairs = self._longest_source = self._multi_sentence_sources = 0

    def add(self, block: EncodedBlock) -> None:
        """Counts pairs that are kept."""
        for side in range(2):
            self._seen[side] += np.bincount(block.ids[side], minlength=len(self._seen[side]))
            shown = np.minimum(block.lengths[side], MAX_TOKENS_SHOWN)
            self._lengths[side] += np.bincount(shown, minlength=MAX_TOKENS_SHOWN + 1)
        self._words += block.words
        self._characters += block.characters
        self._pairs += len(block.lines)
        self._longest_source = max(self._longest_source, int(block.lengths[0].max(initial=0)))
        self._multi_sentence_sources += block.multi_sentence_sources

    def training_lengths(self) -> TrainingLengths:
        """What the model folder is to record of the lengths; there has to be a pair."""
        source, target = (int(seen.sum()) for seen in self._seen)
        return TrainingLengths(
            longest_source=self._longest_source,
            target_ratio=target / source,
            multi_sentence_share=self._multi_sentence_sources / self._pairs,
        )

    def as_json(self) -> dict[str, Any]:
        """For each side: tokens, tokens a word, how well the vocabulary covers the text, and how long sentences are."""
        found: dict[str, Any] = {}
        for index, side in enumerate(SIDES):
            seen, words, characters = self._seen[index], int(self._words[index]), int(self._characters[index])
            tokens = int(seen.sum())
            ranked = np.sort(np.delete(seen, UNK))[::-1]
            found[side] = {
                "tokens": tokens,
                "words": words,
                "tokens_per_word": round(tokens / max(1, words), 4),
                "characters_per_token": round(characters / max(1, tokens), 4),
                "unknown": int(seen[UNK]),
                "vocabulary": len(seen),
                "entries_used": int((ranked > 0).sum()),
                "entries_frequent": int((ranked >= FREQUENT).sum()),
                "most_frequent_half": int(np.searchsorted(np.cumsum(ranked), tokens / 2)) + 1,
                "lengths": _without_zeros(self._lengths[index].tolist()),
            }
        return found


def make_report(
    findings: Findings,
    text: TrainingText,
    described: list[dict[str, Any]],
    num_kept: int | None,
    subwords: dict[str, Any] | None,
    round_trip: dict[str, Any] | None,
) -> dict[str, Any]:
    """The content of report.json, which holds no path and no time.

    Args:
        described: the corpora, as the manifest has them.
        num_kept: pairs to train on; None when the text was only checked.
        subwords: `ShardStatistics` of ``train`` and ``valid``; None when none were cut.
        round_trip: how many sampled target lines come back; None when none were cut.
    """
    return {
        **findings.as_json(),
        "pairs": {"read": findings.num_pairs, "kept": num_kept},
        "left_out": {rule: count for rule, count in findings.left_out().items() if count},
        "corpora": [
            {"name": shown_name(corpus["name"]), "role": corpus["role"], "pairs": corpus["pairs"]}
            for corpus in described
        ],
        "words": {side: _without_zeros(counts) for side, counts in text.words.items()},
        "subwords": subwords,
        "round_trip": round_trip,
    }


def binned(sides: dict[str, dict[str, int]], last: int, num_bins: int = 16) -> dict[str, dict[str, int]]:
    """Histograms of single lengths in the same few equal steps for all sides: counts by label, in order.

    The steps end where 99.5 % of all are; what is longer stands under the last label.

    Args:
        sides: how many have that length, for each side.
        last: the length that stands for all longer ones as well.
    """
    both = np.zeros(last + 1, np.int64)
    for counts in sides.values():
        for length, count in counts.items():
            both[int(length)] += count
    if not both.any():
        return {}
    end = int(np.searchsorted(np.cumsum(both), 0.995 * both.sum()))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * num_bins > end)
    num_steps = end // step + 1
    labels = [str(k) if step == 1 else f"{k * step}-{k * step + step - 1}" for k in range(num_steps)]
    found = {}
    for side, counts in sides.items():
        bins = [0] * (num_steps + 1)
        for length, count in counts.items():
            bins[min(int(length) // step, num_steps)] += count
        found[side] = dict(zip([*labels, f"{num_steps * step} or more"], bins, strict=True))
    if not any(bins[f"{num_steps * step} or more"] for bins in found.values()):
        found = {side: dict(list(bins.items())[:-1]) for side, bins in found.items()}
    return found


def _without_zeros(histogram: list[int]) -> dict[str, int]:
    return {str(length): count for length, count in enumerate(histogram) if count}
