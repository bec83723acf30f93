"""Paired tests of systems: could their difference be chance? On the text as each metric reads it.

    scorer, {system: hypotheses}, metric --> paired_test --> {system: PairedResult}, the first system being the baseline

Bootstrap and randomisation draw the same trials as sacreBLEU, but both are two-sided and count trials that tie;
McNemar's test is for the accuracy of labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nmtkit.errors import DataError
from nmtkit.evaluation.metrics import RESAMPLES, Scorer, check_seed, random_generator, resampled, resamples_for
from nmtkit.evaluation.scores import Interval
from nmtkit.text.vocabulary import label_of

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Method = Literal["bootstrap", "randomization", "mcnemar"]
TRIALS: dict[Method, int] = {"bootstrap": RESAMPLES, "randomization": 10000}
"""Default numbers of trials, as in sacreBLEU; McNemar's test has none."""
_TEST_TYPES = {"bootstrap": "bs", "randomization": "ar"}
_SHUFFLES_AT_ONCE = 32
"""Shuffles in memory together. numpy makes 32 random bits at a time, so they are those of sacreBLEU's single call."""
_ROUNDING = 1e-9
"""Differences of scores that differ by less are equal."""
SIGNIFICANT_BELOW = 0.05
"""The p-value below which a difference is marked, as in sacreBLEU's table."""


@dataclass(frozen=True)
class PairedResult:
    """One system by one metric, compared with the baseline.

    Attributes:
        score: score of the whole test set.
        difference: score minus the baseline's; 0 for the baseline itself.
        p_value: probability of a difference as large or larger by chance, if both systems were equally good: 1 for
            equal outputs; None for the baseline.
        interval: interval of the score; None with approximate randomisation, which gives none.
        signature: signature of metric and test, with the numbers of trials and the seed.
    """

    score: float
    difference: float
    p_value: float | None
    interval: Interval | None
    signature: str

    @property
    def is_significant(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANT_BELOW


def mcnemar(reference: Sequence[str], baseline: Sequence[str], system: Sequence[str]) -> tuple[int, int, float]:
    """Return the lines that only the baseline has right, those that only the other system has right, and p.

    p is that of McNemar's test in its exact form: the probability of so uneven a division of these n lines, or a more
    uneven one, if each side were as likely; min(1, 2 (C(n, 0) + ... + C(n, fewer)) / 2^n).

    Args:
        reference, baseline, system: labels, as many in each. To test several training seeds together, concatenate their
            lines. These depend on each other, so p is then too small for a statement about other test lines.

    Source: McNemar (1947), "Note on the sampling error of the difference between correlated proportions"; Dietterich
    (1998) recommends it for classifiers. Both approximate the binomial distribution by chi-square.
    """
    lines = [tuple(map(label_of, line)) for line in zip(reference, baseline, system, strict=True)]
    losses = sum(before == gold != after for gold, before, after in lines)
    wins = sum(after == gold != before for gold, before, after in lines)
    # C(n, k + 1) = C(n, k) (n - k) / (k + 1), which is always whole. math.comb would start anew for each k.
    combinations, total = 1, 0
    for count in range(min(losses, wins) + 1):
        total += combinations
        combinations = combinations * (losses + wins - count) // (count + 1)
    return losses, wins, min(1.0, 2 * total / 2 ** (losses + wins))


def testable(method: Method | None, metrics: Sequence[str]) -> list[str]:
    """Return the scores among these that a test can compare; raise DataError where there are none."""
    found = [metric for metric in metrics if method != "mcnemar" or metric == "accuracy"]
    if not found:
        raise DataError(f"McNemar's test compares the accuracy of labels, not {', '.join(metrics)}; use bootstrap")
    return found


def paired_test(
    scorer: Scorer, systems: Mapping[str, list[str]], metric: str, method: Method | None, *, trials: int | None = None
) -> dict[str, PairedResult]:
    """Compare systems with the first one, on the same lines.

    Args:
        systems: the lines of each of two systems or more by its name, as many as the references have.
        metric: one of those that `testable` returns for the method.
        method: paired bootstrap resampling (Koehn 2004) or paired approximate randomisation (Riezler and Maxwell 2005),
            with the trials of sacreBLEU; or `mcnemar`, for accuracy only. None: `mcnemar` for accuracy, else bootstrap.
        trials: resamples or shuffles; by default as in TRIALS. McNemar's test has none.

    Returns:
        one result per system, in order.

    Raises:
        DataError: the line counts differ.
    """
    seed = check_seed()
    for lines in systems.values():
        scorer.check_lines(lines)
    method = method or ("mcnemar" if metric == "accuracy" else "bootstrap")
    if method == "mcnemar":
        return _by_mcnemar(scorer, systems)
    number = trials or TRIALS[method]
    statistics = []
    for lines in systems.values():
        measure, of_system = scorer.statistics(metric, scorer.in_form_of(metric, lines))
        statistics.append(of_system)
    scores = [measure._aggregate_and_compute(of_system).score for of_system in statistics]
    signature = measure.get_signature()
    signature.update("seed", seed)
    signature.update(_TEST_TYPES[method], number)
    stated = scorer.signature(metric, signature) + ("|p:two-sided" if method == "bootstrap" else "")
    intervals: list[Interval | None] = [None] * len(scores)
    if method == "bootstrap":
        p_values, means = _bootstrap(measure, statistics, scores, number)
        if len(statistics[0]) > 1:  # of a single line, each resample is the same
            intervals = [Interval(mean, half_width, number, seed) for mean, half_width in means]
    else:
        p_values = _randomization(measure, statistics, scores, number)
    return {
        name: PairedResult(float(score), float(score) - float(scores[0]), p_value, interval, stated)
        for name, score, p_value, interval in zip(systems, scores, [None, *p_values], intervals, strict=True)
    }


def _bootstrap(
    metric: "Metric", statistics: Sequence[Any], scores: Sequence[float], resamples: int
) -> tuple[list[float], list[tuple[float, float]]]:
    """Return p of each system but the first, and for all the mean of the resamples with half the width of 95 %."""
    import numpy as np
    from sacrebleu.significance import estimate_ci

    found = [np.array([each.score for each in of_system]) for of_system in resampled(metric, statistics, resamples)]
    p_values = []
    for score, of_system in zip(scores[1:], found[1:], strict=True):
        # Minus their mean, the differences are as if both systems were equally good. sacreBLEU takes that of their
        # absolute values, which makes p about half as large: 12 to 15 % of equally good systems have p < 0.05.
        differences = of_system - found[0]
        as_large = np.abs(differences - differences.mean()) > abs(scores[0] - score) - _ROUNDING
        # Of a few lines, no resample may differ enough: by chance, all of n lines favour one system in 2^(1 - n) cases.
        p_values.append(max((int(as_large.sum()) + 1) / (resamples + 1), 2.0 ** (1 - len(statistics[0]))))
    return p_values, [(float(mean), float(half_width)) for mean, half_width in map(estimate_ci, found)]


def _randomization(metric: "Metric", statistics: Sequence[Any], scores: Sequence[float], shuffles: int) -> list[float]:
    """Return p of each system but the first."""
    import numpy as np

    # float64: sums of counts are exact up to 2^53.
    generator, tables = random_generator(), [np.array(of_system, dtype="float64") for of_system in statistics]
    as_large = [0] * len(tables)
    for done in range(0, shuffles, _SHUFFLES_AT_ONCE):
        num_rows = min(_SHUFFLES_AT_ONCE, shuffles - done)
        is_swapped = generator.integers(2, size=(num_rows, len(tables[0])), dtype=bool)
        # The same swaps for all systems, as sacreBLEU starts from the seed for each of them.
        for index, table in enumerate(tables[1:], start=1):
            # By a swap, one system gains the counts that the other loses.
            moved = is_swapped @ (tables[0] - table)
            for pair in zip(table.sum(0) + moved, tables[0].sum(0) - moved, strict=True):
                one, other = (metric._compute_score_from_stats(counts).score for counts in pair)
                as_large[index] += bool(abs(one - other) > abs(scores[0] - scores[index]) - _ROUNDING)
    # The outcome that was observed is one of the possible ones, so p is never 0.
    return [(count + 1) / (shuffles + 1) for count in as_large[1:]]


def _by_mcnemar(scorer: Scorer, systems: Mapping[str, list[str]]) -> dict[str, PairedResult]:
    first = next(iter(systems))
    found: dict[str, PairedResult] = {}
    for name, lines in systems.items():
        one = scorer.score(lines, ["labels"], resamples=resamples_for(len(lines)))["accuracy"]
        difference = one.score - found[first].score if found else 0.0
        p_value = mcnemar(scorer.references[0], systems[first], lines)[2] if found else None
        found[name] = PairedResult(one.score, difference, p_value, one.interval, f"{one.signature}|test:mcnemar-exact")
    return found


def as_json(result: PairedResult, baseline: str) -> dict[str, Any] | None:
    """Return the entry of ``scores.json`` for a comparison; None for the baseline itself."""
    if result.p_value is None:
        return None
    return {
        "baseline": baseline,
        "difference": result.difference,
        "p_value": result.p_value,
        "signature": result.signature,
    }
