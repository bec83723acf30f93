"""Paired tests of systems, as in sacreBLEU: could their difference be chance? On the text as each metric reads it.

scorer, {system: hypotheses}, metric --> paired_test --> {system: PairedResult}, the first system being the baseline
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nmtkit.errors import DataError
from nmtkit.evaluation.metrics import RESAMPLES, TASK_METRICS, Interval, Scorer, check_seed, single_scores

Method = Literal["bootstrap", "randomization"]
TRIALS: dict[Method, int] = {"bootstrap": RESAMPLES, "randomization": 10000}
"""Default numbers of trials, as in sacreBLEU."""
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


def paired_test(
    scorer: Scorer, systems: Mapping[str, list[str]], metric: str, method: Method, *, trials: int | None = None
) -> dict[str, PairedResult]:
    """Compare systems with the first one, on the same lines.

    Args:
        systems: the lines of each system by its name, as many as the references have.
        metric: a name from METRICS or ON_REQUEST, or a tested score of TASK_METRICS.
        method: paired bootstrap resampling (Koehn 2004) or paired approximate randomisation (Riezler and Maxwell 2005),
            both as sacreBLEU has them.
        trials: resamples or shuffles; by default as in TRIALS.

    Returns:
        one result per system, in order.

    Raises:
        DataError: there is only one system, the line counts differ, or the metric is unknown or impossible.
    """
    from sacrebleu.significance import PairedTest

    check_seed()
    if len(systems) < 2:
        raise DataError("a paired test compares two systems or more: give another --hypothesis")
    if metric not in single_scores(list(TASK_METRICS)):
        scorer.possible([metric])
    for lines in systems.values():
        scorer.check_lines(lines)
    number = trials or TRIALS[method]
    named: list[tuple[str, Sequence[str]]] = [
        (name, scorer.in_form_of(metric, lines)) for name, lines in systems.items()
    ]
    test = PairedTest(
        named, {metric: scorer.metric(metric)}, references=None, test_type=_TEST_TYPES[method], n_samples=number
    )
    signatures, by_metric = test()
    ((of_metric, signature),) = signatures.items()
    seed = str(signature.info["seed"])
    stated = scorer.signature(metric, signature)
    results = [result for result in by_metric[of_metric] if not isinstance(result, str)]  # names stand under "System"
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
