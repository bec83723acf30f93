"""Scores of labels and of numbers: the own metrics of tasks whose output is one label, or one number, per line.

    labels     accuracy, F1 of two classes, macro-F1, Matthews' correlation     all x 100
    numbers    Pearson's and Spearman's correlation                             all x 100

They equal scikit-learn's accuracy_score, f1_score and matthews_corrcoef (see `LabelMetric` on labels that the reference
lacks), and SciPy's pearsonr and spearmanr.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from nmtkit.errors import DataError
from nmtkit.tasks.task import TaskMetric
from nmtkit.text.vocabulary import label_of

MOST_CLASSES = 1000
"""More are refused: the counts of each line are three numbers per class."""
_CONSTANT = 1e-6
"""Variances below this share of the mean square are rounding errors of resampled sums, which are float32."""


class LabelMetric(TaskMetric):
    """Labels, compared as text with single blanks, as training reads them.

    The classes are the labels of the reference. Other labels are wrong; for `matthews` they are one class more. A class
    that neither side has, as in a resample of the lines, does not count in `macro-f1`; a quotient 0 / 0 is 0.

    Source: Matthews (1975); for more than two classes Gorodkin (2004), "Comparing two K-category assignments".
    """

    name = "labels"
    title = "accuracy"
    tested = ("accuracy", "f1", "macro-f1", "matthews")
    comparable_to = {  # noqa: RUF012
        "accuracy": "accuracy x 100 on the same lines",
        "f1": "F1 x 100 of the same positive class on the same lines; not the mean over both classes",
        "macro-f1": "the unweighted mean of the F1 x 100 of all classes, on the same lines",
        "matthews": "Matthews' correlation x 100 on the same lines; -100 to 100, 0 is chance",
    }

    def tested_on(self, reference: Sequence[str]) -> tuple[str, ...]:
        """Return the scores without `f1` unless there are two classes."""
        has_two = len(_classes(reference)) == 2
        return tuple(name for name in self.tested if name != "f1" or has_two)

    def counts(self, reference: Sequence[str], hypotheses: Sequence[str]) -> list[list[int]]:
        """Return for each line and class: is it the reference's, is it the hypothesis's (and any other), is it both?"""
        classes = {label: index for index, label in enumerate(_classes(reference))}
        of_lines = []
        for gold, label in zip(reference, hypotheses, strict=True):
            right, chosen = classes[label_of(gold)], classes.get(label_of(label), len(classes))
            counts = [0] * (3 * len(classes) + 1)
            counts[right] = counts[len(classes) + chosen] = 1
            counts[2 * len(classes) + 1 + right] = int(right == chosen)
            of_lines.append(counts)
        return of_lines

    def value(self, score: str, counts: Sequence[int | float]) -> float:
        num_classes = len(counts) // 3
        gold, chosen = counts[:num_classes], counts[num_classes : 2 * num_classes + 1]
        right, lines = counts[2 * num_classes + 1 :], sum(gold)
        # Below, zip leaves out the last number of `chosen`: labels that the reference lacks match no class.
        if score == "accuracy":
            return 100 * sum(right) / lines
        if score == "matthews":
            covariance = sum(right) * lines - sum(a * b for a, b in zip(gold, chosen, strict=False))
            variances = [lines**2 - sum(count**2 for count in side) for side in (gold, chosen)]
            return 100 * covariance / math.sqrt(math.prod(variances)) if all(variances) else 0.0
        totals = [a + b for a, b in zip(gold, chosen, strict=False)]
        if score == "f1":
            # The positive class is the last in sorted order: 1 of 0 and 1, as scikit-learn's pos_label.
            return 200 * right[-1] / totals[-1] if totals[-1] else 0.0
        of_classes = [200 * count / total for count, total in zip(right, totals, strict=True) if total]
        return sum(of_classes) / len(of_classes)

    def line_scores(self, reference: Sequence[str], hypotheses: Sequence[str]) -> list[dict[str, float]]:
        """Return the accuracy of each line: 0 or 100."""
        pairs = zip(reference, hypotheses, strict=True)
        return [{"accuracy": 100.0 * (label_of(gold) == label_of(label))} for gold, label in pairs]

    def signature(self, reference: Sequence[str]) -> str:
        classes = _classes(reference)
        positive = f"|positive:{classes[-1]}" if len(classes) == 2 else ""
        return f"labels|classes:{len(classes)}{positive}|lines:{len(reference)}"

    def unscored(
        self, reference: Sequence[str], hypotheses: Sequence[str], name: str
    ) -> tuple[str, tuple[int, ...], str]:
        """Return the lines with a label that the reference lacks."""
        classes = set(_classes(reference))
        other = {number: label for number, label in enumerate(hypotheses, 1) if label_of(label) not in classes}
        what = f"labels that the reference lacks, such as {next(iter(other.values()), '')[:40]!r},"
        return what, tuple(other), "they count as wrong; see that both files name the classes alike"


class NumberMetric(TaskMetric):
    """Numbers, one per line, compared by correlation; it is 0 where either side is constant.

    Resampling takes lines' ranks (the mean rank of equal numbers) from the whole text, not again from each resample.
    Pearson's correlation is that of standard scores, which float32 sums can hold whatever the scale of the numbers.
    """

    name = "numbers"
    title = "absolute error"
    tested = ("pearson", "spearman")
    comparable_to = {  # noqa: RUF012
        "pearson": "Pearson's correlation x 100 on the same lines; -100 to 100",
        "spearman": "Spearman's rank correlation x 100 on the same lines; -100 to 100",
    }

    def counts(self, reference: Sequence[str], hypotheses: Sequence[str]) -> list[list[float]]:
        """Return for each line 1, and x, y, xx, yy and xy of its standard scores and then of its ranks."""
        sides = _numbers(reference, "the reference"), _numbers(hypotheses, "the hypotheses")
        values = [_standard_scores(side) for side in sides] + [_standard_scores(_ranks(side)) for side in sides]
        return [
            [1.0, x, y, x * x, y * y, x * y, rank, other, rank * rank, other * other, rank * other]
            for x, y, rank, other in zip(*values, strict=True)
        ]

    def value(self, score: str, counts: Sequence[int | float]) -> float:
        lines, (x, y, xx, yy, xy) = counts[0], counts[1:6] if score == "pearson" else counts[6:]
        variances = [lines * squares - total**2 for squares, total in ((xx, x), (yy, y))]
        if variances[0] <= _CONSTANT * lines * xx or variances[1] <= _CONSTANT * lines * yy:
            return 0.0
        # By rounding, a perfect correlation may exceed 100.
        return min(100.0, max(-100.0, 100 * (lines * xy - x * y) / math.sqrt(math.prod(variances))))

    def line_scores(self, reference: Sequence[str], hypotheses: Sequence[str]) -> list[dict[str, float]]:
        """Return the negated absolute error of each line, as higher is better: a line has no correlation."""
        sides = _numbers(reference, "the reference"), _numbers(hypotheses, "the hypotheses")
        return [{"neg-absolute-error": -abs(one - other)} for one, other in zip(*sides, strict=True)]

    def signature(self, reference: Sequence[str]) -> str:
        return f"numbers|ties:mean-rank|constant:0|lines:{len(reference)}"

    def unscored(
        self, reference: Sequence[str], hypotheses: Sequence[str], name: str
    ) -> tuple[str, tuple[int, ...], str]:
        _numbers(hypotheses, name)
        return "", (), ""


def _classes(reference: Sequence[str]) -> list[str]:
    """Return the labels of the reference in sorted order; raise DataError where one is missing, or at too many."""
    labels = [*map(label_of, reference)]
    if "" in labels:
        raise DataError(f"the reference, line {labels.index('') + 1}: no label; write one label per line")
    classes = sorted(set(labels))
    if len(classes) > MOST_CLASSES:
        raise DataError(f"the reference has {len(classes):,} labels, over {MOST_CLASSES:,}; see that each line is one")
    return classes


def _numbers(lines: Sequence[str], name: str) -> list[float]:
    """Return the number of each line; raise DataError where it has none."""
    numbers = []
    for position, line in enumerate(lines, start=1):
        try:
            numbers.append(math.nan if "_" in line else float(line))  # float() takes 1_000 for 1000
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise DataError(f"{name}, line {position}: {line[:40]!r} is no number; write one finite number per line")
    return numbers


def _standard_scores(numbers: Sequence[float]) -> list[float]:
    """Return how many standard deviations each number is above the mean; zeros where all are equal."""
    largest = max(map(abs, numbers)) or 1.0
    scaled = [number / largest for number in numbers]  # so that no square overflows
    # Not by the deviation: the mean of equal numbers may differ from them by rounding.
    if min(scaled) == max(scaled):
        return [0.0] * len(scaled)
    mean = math.fsum(scaled) / len(scaled)
    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in scaled) / len(scaled))
    return [(number - mean) / deviation for number in scaled]


def _ranks(numbers: Sequence[float]) -> list[float]:
    """Return the rank of each number, from 1; equal numbers have the mean of theirs."""
    ordered = sorted(numbers)
    return [(bisect_left(ordered, number) + bisect_right(ordered, number) + 1) / 2 for number in numbers]
