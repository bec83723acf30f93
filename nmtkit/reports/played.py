"""Lengths of the episodes that a model of decisions played, from RUN/play.json.

After figure 6 of Chen et al. 2021 (arXiv 2106.01345).
"""

from typing import Any

from nmtkit.json_toml import positive
from nmtkit.page import bars


def _by_length(value: Any) -> None:
    """Shape of numbers of episodes by their length."""
    if not isinstance(value, dict) or not all(type(count) is int and 0 <= count < 2**63 for count in value.values()):
        raise ValueError("not counts of episodes")
    for length in value:
        float(length)  # raises ValueError for other text


PLAYED = {
    "episodes": positive, "success_rate": float, "lengths": _by_length, "shortest_lengths?": _by_length,
    "best_return_probabilities": {str: [float]},
}  # fmt: skip
"""Shape of RUN/play.json, as far as it is shown."""


def lengths_of(played: dict[str, Any]) -> str:
    """Return the lengths of successful episodes as a chart of HTML."""
    series = {"played": played["lengths"]}
    if shortest := played.get("shortest_lengths"):
        series["shortest"] = shortest
    lengths = sorted({length for counts in series.values() for length in counts}, key=float)
    counts = {
        name: {
            **{length: of_series.get(length, 0) for length in lengths},
            "never": played["episodes"] - sum(of_series.values()),
        }
        for name, of_series in series.items()
    }
    return bars("Steps to success, as shares of all episodes", counts)
