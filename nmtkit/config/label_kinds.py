"""Kinds of tasks whose output is a label: the sequences that the model reads of an example, and its head."""

from collections.abc import Callable
from dataclasses import dataclass

Texts = list[list[int]]
"""Ids of each text of an example or a sequence."""


@dataclass(frozen=True)
class LabelKind:
    """A task whose output is a label and no text.

    Attributes:
        num_texts: texts in each sequence.
        sequences: function from the texts of an example, at least one, to those of its sequences.
        head: `ModelConfig.head`.
        is_unordered: True if the order of two texts has no meaning.
        chooses: True if the label is the number of one of the sequences, from 1.
    """

    num_texts: int
    sequences: Callable[[Texts], list[Texts]] = lambda texts: [texts]
    head: str = "classes"
    is_unordered: bool = False
    chooses: bool = False


LABEL_KINDS = {
    "label": LabelKind(1),
    "pair-label": LabelKind(2),
    "similarity": LabelKind(2, lambda texts: [texts, texts[::-1]], is_unordered=True),
    "choice": LabelKind(2, lambda texts: [[texts[0], answer] for answer in texts[1:]], "choice", chooses=True),
}
"""The kinds by the value of `data.task`."""
