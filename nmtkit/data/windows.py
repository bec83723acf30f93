"""Sequences of a fixed length from running text, for models without a source.

    lines of the shards   | to be, or | not to be | that is | the question |     one text per corpus
    epoch 0                    [ sequence 0  ][ sequence 1  ][ sequence 2 ]       from a random offset
    epoch 1                 [ sequence 0  ][ sequence 1  ][ sequence 2 ]

A sequence of L tokens is stored with the one after it: the model reads the first L and predicts the last L.
"""

from pathlib import Path

import numpy as np

from nmtkit.config.schema import Recipe
from nmtkit.data.batch import Batch, batch_of_texts
from nmtkit.data.episodes import EpisodeData
from nmtkit.data.label_data import LabelData
from nmtkit.data.shards import Indices, PairData, Part
from nmtkit.errors import DataError
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import Tokenizer

_OFFSET_STREAM = 2**33
"""Separates the random numbers of offsets from those of batches."""


class WindowData(PairData):
    """The sequences of an epoch as pairs without a source.

    Attributes:
        source_lengths, target_lengths: tokens of each sequence, int64; the source is an end symbol that is not read.
        lines: the line that each sequence begins in.
        parts: the number of sequences of each text, and its weight.
    """

    noun, unit = "sequence", "tokens"

    def __init__(self, texts: PairData, length: int, offsets: list[int] | None = None) -> None:
        """Args:
        texts: shards whose targets are the lines of the texts.
        offsets: first token of each text; None: its first, with the rest of each text as a shorter sequence.
        """
        self._texts, self.folder, self.is_joined = texts, texts.folder, True
        ends = np.cumsum(texts.target_lengths - 1)  # of lines, in tokens
        starts: list[Indices] = []
        stops: list[Indices] = []
        self.parts: list[Part] = []
        line = begin = 0
        for number, part in enumerate(texts.parts):
            line += part.pairs
            end = int(ends[line - 1]) if line else 0
            offset, shortest = (0, 1) if offsets is None else (offsets[number], length)
            first = np.arange(begin + offset, end - shortest, length)
            # end - 1: the last token has no token after it to predict.
            last = np.minimum(first + length, end - 1)
            starts.append(first)
            stops.append(last + 1)
            # An offset may leave one sequence fewer than the text has from its first token.
            cycle = 0 if offsets is None else max(0, end - begin - 1) // length
            self.parts.append(Part(len(first), part.weight, cycle))
            begin = end
        self._starts, self._stops = np.concatenate(starts), np.concatenate(stops)
        self.target_lengths = self._stops - self._starts - 1
        self.source_lengths = np.ones_like(self.target_lengths)
        self.lines = np.asarray(texts.lines)[np.searchsorted(ends, self._starts, side="right")]

    def own_batch(self, chosen: Indices) -> Batch:
        starts, lengths = self._starts[chosen], self._stops[chosen] - self._starts[chosen]
        ends = np.cumsum(lengths)
        rows = self._texts.target_tokens[np.arange(ends[-1]) - np.repeat(ends - lengths - starts, lengths)]
        return batch_of_texts(rows, lengths)


def training_data(folder: Path, recipe: Recipe, tokenizer: Tokenizer) -> "PairData | WindowEpochs":
    """Open the prepared training data of a recipe, as they are without subword sampling."""
    data = _own_data(folder, recipe, tokenizer)
    has_source = task_of(recipe.data).has_source
    return data if has_source else WindowEpochs(data, recipe.data.sequence_length, recipe.training.seed)


def validation_data(folder: Path, recipe: Recipe, tokenizer: Tokenizer) -> PairData:
    """Open the prepared validation data of a recipe."""
    data = _own_data(folder, recipe, tokenizer)
    return data if task_of(recipe.data).has_source else WindowData(data, recipe.data.sequence_length)


def _own_data(folder: Path, recipe: Recipe, tokenizer: Tokenizer) -> PairData:
    task = task_of(recipe.data)
    if not task.has_text:
        return EpisodeData(folder, recipe, tokenizer)
    return LabelData(folder, tokenizer) if task.has_labels else PairData(folder, is_joined=recipe.model.is_joined)


class WindowEpochs:
    """The sequences of each epoch, from another random offset; a function of seed and epoch alone.

    Attributes:
        num_texts: number of texts.
        short_texts: numbers (from 1) of the texts that have no whole sequence, and are left out.
    """

    noun = WindowData.noun

    def __init__(self, texts: PairData, length: int, seed: int) -> None:
        """Raise DataError where no text has more than ``length`` tokens."""
        self._texts, self._length, self._seed = texts, length, seed
        self._present: tuple[int, WindowData] | None = None
        self.folder, self.lines = texts.folder, texts.lines
        ends = np.concatenate([[0], np.cumsum(texts.target_lengths - 1)])  # of lines, in tokens
        self._sizes: list[int] = np.diff(ends[np.cumsum([part.pairs for part in texts.parts])], prepend=0).tolist()
        self.num_texts = len(self._sizes)
        if max(self._sizes) <= length:
            raise DataError(
                f"no training text has more than data.sequence_length = {length} tokens; the longest has "
                f"{max(self._sizes)}"
            )
        self.pairs_per_epoch = self.of_epoch(0).pairs_per_epoch
        self.short_texts = [number for number, size in enumerate(self._sizes, start=1) if size <= length]

    def __len__(self) -> int:
        return len(self.of_epoch(0))

    def of_epoch(self, epoch: int) -> WindowData:
        """Return the sequences of an epoch."""
        if self._present is None or self._present[0] != epoch:
            random = np.random.default_rng([self._seed, _OFFSET_STREAM, epoch])
            # At most as many tokens as leave room for one sequence.
            limits = [max(1, min(self._length, size - self._length)) for size in self._sizes]
            self._present = epoch, WindowData(self._texts, self._length, random.integers(limits).tolist())
        return self._present[1]

    def close(self, *, is_finished: bool = False) -> None:
        """Do nothing, as no other epoch is being made."""
