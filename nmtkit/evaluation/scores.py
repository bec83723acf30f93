"""Scores of texts, their confidence intervals, and their form in files and tables."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.config.data_schema import DataConfig
from nmtkit.console import with_decimals
from nmtkit.json_toml import measured, read_json


@dataclass(frozen=True)
class Interval:
    """The 95 % confidence interval of a score: mean +- half_width.

    Attributes:
        mean: mean score of the resampled test sets.
        half_width: half the distance between the scores that leave 2.5 % of them below and above.
        resamples: number of test sets sampled from the lines.
        seed: seed of the random numbers, as sacreBLEU states it (SACREBLEU_SEED).
    """

    mean: float
    half_width: float
    resamples: int
    seed: str


OF_FOUR_DECIMALS = ("comet", "nll", "bits-per-character", "mean-return")
"""Scores that are often about 1 or below, and not up to 100."""


@dataclass(frozen=True)
class Score:
    """One score and what it takes to reproduce it.

    Attributes:
        score: 0 to 100, higher is better. Correlations begin at -100; for TER, nll and perplexities lower is better,
            without an upper bound; COMET and returns have scales of their own.
        signature: sacreBLEU's, and ``|text:...`` where the text was processed before.
        details: n-gram precisions, brevity penalty and lengths in tokens of BLEU; "" of most other metrics.
        interval: None where it was not computed.
    """

    score: float
    signature: str
    details: str = ""
    interval: Interval | None = None


def perplexity_of(nll: float) -> float:
    """Return exp of nats per token, at most exp(709), as larger numbers are no float."""
    return math.exp(min(nll, 709.0))


def shown_score(metric: str, value: float) -> str:
    """Return a score as tables show it."""
    return with_decimals(value, 4 if metric in OF_FOUR_DECIMALS else 2)


def model_text(data: DataConfig) -> str:
    """Return the end of the signature of a run's scores: what was done to the model's text, if more than blanks."""
    steps = "+".join(step for step in data.normalize if step != "blanks")
    return f"|model-text:{steps}" if steps else ""


def mean_scores(scores: Sequence[dict[str, Score]]) -> dict[str, Score]:
    """Return the mean of each score that all of several test sets have."""
    means = {}
    for name in (name for name in scores[0] if all(name in of_test for of_test in scores)):
        entries = [of_test[name] for of_test in scores]
        signatures = dict.fromkeys(entry.signature for entry in entries)
        mean = sum(entry.score for entry in entries) / len(entries)
        means[name] = Score(mean, f"mean:{len(entries)}|{' / '.join(signatures)}")
    return means


def scores_as_json(scores: dict[str, Score]) -> dict[str, dict[str, Any]]:
    """Return the form of ``scores.json`` for one test set: ``{metric: {"score", "signature"[, ...]}}``."""
    stated = {name: dataclasses.asdict(one) for name, one in scores.items()}
    return {name: {key: value for key, value in one.items() if value not in ("", None)} for name, one in stated.items()}


def read_scores(path: Path) -> dict[str, dict[str, Any]]:
    """Read ``scores.json``; raise DataError where it is damaged."""
    interval = {"mean": float, "half_width": float, "resamples": int}
    score = {"score": measured, "signature?": str, "details?": str, "interval?": interval}
    return read_json(path, {str: {str: score}})
