"""Examples with labels, for tasks whose output is a label (tasks/classification.py).

    source.ids   <start> text <extract>, possibly several such sequences one after the other
    target.ids   the label

A batch has a row for each sequence (`batch.LabelBatch`).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.data.batch import LabelBatch, label_batch
from nmtkit.data.shards import Indices, Lengths, PairData
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SPECIAL_PIECES


class LabelData(PairData):
    """A folder of shards with labels.

    Attributes:
        source_lengths: tokens of all sequences of each example with padding, int64; target_lengths: 1 for each.
    """

    noun, unit = "example", ""
    rows: Lengths

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        super().__init__(folder, is_joined=True)
        ends = np.flatnonzero(self._ids[0] == tokenizer.extract_id)
        self._sizes, self._first = np.diff(ends, prepend=-1), np.searchsorted(ends, self._offsets[0])  # of sequences
        self.rows = np.diff(self._first)
        if len(ends):
            self.source_lengths = np.maximum.reduceat(self._sizes, self._first[:-1]) * self.rows
        self.target_lengths = np.ones_like(self.source_lengths)
        self.extract_id = tokenizer.extract_id
        self._values = None
        if tokenizer.label_type == "number":
            middle, unit = tokenizer.number_scale
            self._values = ((np.array([*map(float, tokenizer.labels)]) - middle) / unit).astype(np.float32)
        elif LABEL_KINDS[tokenizer.task_name].chooses:
            self._values = np.array([int(label) - 1 for label in tokenizer.labels], np.int64)

    def own_batch(self, chosen: Indices) -> LabelBatch:
        # A vocabulary of labels begins with the special pieces, too.
        labels: npt.NDArray = self.joined_ids(1, chosen)[0].astype(np.int64) - len(SPECIAL_PIECES)
        if self._values is not None:
            labels = self._values[labels]
        return label_batch(*self.joined_ids(0, chosen), self.extract_id, labels)

    def sequence_lengths(self, examples: Indices) -> tuple[Lengths, Lengths]:
        rows = self.rows[examples]
        before = np.cumsum(rows) - rows  # in the result, of each example
        sizes = self._sizes[np.repeat(self._first[examples] - before, rows) + np.arange(rows.sum())]
        return sizes, np.ones_like(sizes)
