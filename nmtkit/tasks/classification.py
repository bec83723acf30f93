"""Labels: a label for a text, for a pair of texts, or for the choice of one of several texts.

    task         source line                       target line
    label        text                              label
    pair-label   first TAB second                  label, such as that of an entailment
    similarity   first TAB second                  label; the order of the texts has no meaning
    choice       context TAB answer TAB answer     number of the right answer, from 1

Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", sections 3.2 and 3.3.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Literal

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.console import counted
from nmtkit.corpora.corpus import Corpus
from nmtkit.errors import DataError
from nmtkit.lines import refuse_binary, refuse_carriage_returns
from nmtkit.tasks.task import Task
from nmtkit.text.new_tokenizers import label_tokenizer
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import label_of

_USUAL, _LEAST_DEVIATION = 20.0, 0.1
ONE_LABEL = "all training examples have the label {!r}, so there is nothing to learn"


class LabelTask(Task):
    """Labels of one kind."""

    command = "classify"
    does, activity, noun, unit = "predicts labels", "labelling", "label", "labels"
    example, unrelated_target = "example", "label"
    own_metric, nll, nll_title = "labels", "nll of the label", "Negative log-likelihood, nats per label"
    averaging_metric: Literal["bleu", "nll"] = "nll"
    corrected_sides = ("source",)  # labels are names, and those of validation and test sets stay as they are
    splits_sources = False
    translates_sentences = False
    has_labels, predicts_text = True, False

    def __init__(self, name: str, label_type: str = "class") -> None:
        self.name, self._kind, self._has_numbers = name, LABEL_KINDS[name], label_type == "number"
        if self._has_numbers:
            self.own_metric, self.nll, self.nll_title = "numbers", "squared error", "Mean squared error"
        self.description = f"text, whose label is predicted (task {name})"

    def training_corpus(self, corpus: Corpus) -> Corpus:
        source, target = (
            replace(text, read=partial(self._checked_lines, corpus, side))
            for side, text in enumerate((corpus.source, corpus.target))
        )
        return replace(corpus, source=source, target=target)

    def _checked_lines(self, corpus: Corpus, side: int) -> Iterator[bytes]:
        """Yield the lines of one side of a corpus as the model reads them, after a check of both sides."""
        sides = (corpus.source, corpus.target)
        names = [each.name for each in sides]
        for number, lines in enumerate(zip_longest(*(each.read() for each in sides)), start=1):
            # The other side is longer: the reader of both reports that.
            if lines[side] is None:
                return
            if number == 1:  # before finding faults in what is no text
                for line, name in zip(lines, names, strict=True):
                    refuse_binary((line or b"").removesuffix(b"\n"), name)
                    refuse_carriage_returns(line or b"", name)
            texts = [
                # Bytes that are not UTF-8 go through unchanged: the reader of these lines names them.
                (line or b"").removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
                for line in lines
            ]
            # The byte-order mark is put back below, as the reader counts it; it is no part of the text.
            marks = ["\ufeff" if number == 1 and text.startswith("\ufeff") else "" for text in texts]
            texts = [text.removeprefix(mark) for text, mark in zip(texts, marks, strict=True)]
            if None not in lines:
                self.check_pair(texts[0], texts[1], names, number)
            text = self.model_target(texts[1], names[1]) if side else self.model_source(texts[0])
            end = b"\r\n" if lines[side].endswith(b"\r\n") else b"\n"
            yield (marks[side] + text).encode("utf-8", "surrogateescape") + end

    def model_source(self, line: str) -> str:
        fields = (field.strip(" ") for field in line.replace(FIELD_MARK, " ").split("\t"))
        return FIELD_MARK.join(fields) if line.strip() else ""

    def model_target(self, line: str, name: str, number: int = 1) -> str:
        # isdecimal, as isdigit is true for superscripts, too, which int() refuses, as it does thousands of digits.
        label = label_of(line)
        return str(int(label)) if self._kind.chooses and label.isdecimal() and len(label) < 10 else label

    def words(self, line: str) -> list[str]:
        return line.replace(FIELD_MARK, " ").split()

    def source_fault(self, line: str) -> str | None:
        count = line.count("\t") + 1
        fields = counted(count, "field")
        if not line.strip():
            return None
        if self._kind.num_texts == 1:
            return None if count == 1 else f"has {fields} with tabs between them, not one text"
        if self._kind.chooses:
            return None if count > 2 else f"has {fields}; a context and two answers or more need tabs between them"
        return None if count == 2 else f"has {fields}; two texts need one tab between them"

    def check_pair(self, source: str, target: str, names: Sequence[str], number: int) -> None:
        if fault := self.source_fault(source):
            raise DataError(f"{names[0]}, line {number}: {fault} (task {self.name})")
        label = self.model_target(target, names[1])
        where = f"{names[1]}, line {number}: the label {label!r}"
        if not label or not source.strip():
            return
        if self._has_numbers and not _is_number(label):
            raise DataError(f'{where} is no number; correct it, or set data.label_type = "class"')
        answers = source.count("\t")
        is_short_number = label.isascii() and label.isdigit() and len(label) < 10
        if self._kind.chooses and not (is_short_number and 1 <= int(label) <= answers):
            raise DataError(f"{where} is not the number of an answer, 1 to {answers}")

    def tokenizer(self, learned: Tokenizer, data: DataConfig, pairs: Iterable[tuple[str, str]]) -> Tokenizer:
        found = Counter(label_of(target) for _, target in pairs)
        # Numbers in the order of their values and not as text, with 10 after 9.
        labels = sorted(found, key=lambda label: (len(label), label) if label.isdigit() else (0, label))
        if len(labels) == 1 and not self._kind.chooses:
            raise DataError(ONE_LABEL.format(labels[0]))
        return label_tokenizer(learned, data, labels, _scale_of(found) if self._has_numbers else None)


def _scale_of(labels: Counter[str]) -> tuple[float, float] | None:
    """Return mean and deviation of numbers that a regression could hardly learn as they are, else None.

    It begins at 0 and takes steps of one size, so it would not reach numbers far from 0, nor tell those apart that are
    nearly the same.
    """
    total = labels.total()
    numbers = [(float(label), count / total) for label, count in labels.items()]
    mean = math.fsum(number * share for number, share in numbers)
    deviation = math.sqrt(math.fsum((number - mean) ** 2 * share for number, share in numbers))
    is_usual = max(abs(number) for number, _ in numbers) <= _USUAL and deviation >= _LEAST_DEVIATION
    return None if is_usual or not deviation else (mean, deviation)


def _is_number(text: str) -> bool:
    """Return whether a text is a number that float32 can hold."""
    try:
        # float() takes 1_000 for 1000, as Python's source code does.
        return "_" not in text and abs(float(text)) <= 3.4e38  # False for NaN, too
    except ValueError:
        return False
