"""Paired tests of systems: could their difference be chance? On the text as each metric reads it.

    scorer, {system: hypotheses}, metric --> paired_test --> {system: PairedResult}, the first system being the baseline

Bootstrap and randomisation are sacreBLEU's; McNemar's test is for the accuracy of labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nmtkit.errors import DataError
from nmtkit.evaluation.metrics import RESAMPLES, TASK_METRICS, Interval, Scorer, check_seed, resamples_for

Method = Literal["bootstrap", "randomization", "mcnemar"]
TRIALS: dict[Method, int] = {"bootstrap": RESAMPLES, "randomization": 10000}
"""Default numbers of trials, as in sacreBLEU; McNemar's test has none."""
_TEST_TYPES = {"bootstrap": "bs", "randomization": "ar"}
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
    lines = [tuple(map(str.strip, line)) for line in zip(reference, baseline, system, strict=True)]
    losses = sum(before == gold != after for gold, before, after in lines)
    wins = sum(after == gold != before for gold, before, after in lines)
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
        systems: the lines of each system by its name, as many as the references have.
        metric: a name from METRICS or ON_REQUEST, or a tested score of TASK_METRICS.
        method: paired bootstrap resampling (Koehn 2004) or paired approximate randomisation (Riezler and Maxwell 2005),
            both as sacreBLEU has them; or `mcnemar`, for accuracy only. None: `mcnemar` for accuracy, else bootstrap.
        trials: resamples or shuffles; by default as in TRIALS. McNemar's test has none.

    Returns:
        one result per system, in order.

    Raises:
        DataError: there is only one system, the line counts differ, the metric is unknown or impossible, or the test is
            not for it.
    """
    from sacrebleu.significance import PairedTest

    check_seed()
    if len(systems) < 2:
        raise DataError("a paired test compares two systems or more: give another --hypothesis")
    of_metric = next((name for name, own in TASK_METRICS.items() if metric in own.tested), metric)
    if metric not in scorer.tested([of_metric]):
        raise DataError(f"{metric} is not defined for this reference, see the metric {of_metric}")
    for lines in systems.values():
        scorer.check_lines(lines)
    testable(method, [metric])
    method = method or ("mcnemar" if metric == "accuracy" else "bootstrap")
    if method == "mcnemar":
        return _by_mcnemar(scorer, systems)
    number = trials or TRIALS[method]
    named: list[tuple[str, Sequence[str]]] = [
        (name, scorer.in_form_of(metric, lines)) for name, lines in systems.items()
    ]
    test = PairedTest(
        named, {metric: scorer.metric(metric)}, references=None, test_type=_TEST_TYPES[method], n_samples=number
    )
    signatures, by_metric = test()
    ((title, signature),) = signatures.items()
    seed = str(signature.info["seed"])
    stated = scorer.signature(metric, signature)
    results = [result for result in by_metric[title] if not isinstance(result, str)]  # names stand under "System"
    baseline = float(results[0].score)
    found = {}
    for name, result in zip(systems, results, strict=True):
        interval = None
        if result.mean is not None and result.ci is not None:
            interval = Interval(float(result.mean), float(result.ci), number, seed)
        p_value = None if result.p_value is None else float(result.p_value)
        score = float(result.score)
        # For outputs that are the same to the metric sacreBLEU gives the smallest p-value, as no trial differs at all.
        if p_value is not None and score == baseline and p_value < 1.5 / (number + 1):
            p_value = 1.0
        found[name] = PairedResult(score, score - baseline, p_value, interval, stated)
    return found


def _by_mcnemar(scorer: Scorer, systems: Mapping[str, list[str]]) -> dict[str, PairedResult]:
    """Compare the accuracy of labels with the first system's."""
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
