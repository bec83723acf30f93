"""Figures of the episodes that a model of decisions played, from RUN/play.json.

After figures 5 and 6 of Chen et al. 2021 (arXiv 2106.01345).
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from nmtkit.json_toml import positive


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
_WIDTH, _HEIGHT, _ROW = 560, 140, 30


def figures_of(played: dict[str, Any]) -> list[str]:
    """Return the figures as HTML: lengths of the episodes, and returns predicted during them."""
    series = {"played": played["lengths"]}
    if "shortest_lengths" in played:
        series["shortest"] = played["shortest_lengths"]
    figures = [_histogram("Steps to success, as shares of all episodes", series, played["episodes"])]
    if curves := {name: values for name, values in played["best_return_probabilities"].items() if values}:
        figures.append(_curves("Mean predicted probability of the highest return", curves))
    return figures


def _histogram(title: str, series: dict[str, dict[str, int]], total: int) -> str:
    lengths = sorted({length for counts in series.values() for length in counts}, key=float)
    drawn = []
    for row, length in enumerate([*lengths, "never"]):
        drawn.append(f'<text x="60" y="{row * _ROW + 20}" text-anchor="end">{escape(length)}</text>')
        for index, (name, counts) in enumerate(series.items()):
            count = counts.get(length, 0) if length != "never" else total - sum(counts.values())
            share, y = count / total, row * _ROW + 3 + index * 13
            drawn.append(f'<rect class="{name}" x="70" y="{y}" width="{share * (_WIDTH - 140):.1f}" height="11"/>')
            drawn.append(f'<text x="{76 + share * (_WIDTH - 140):.1f}" y="{y + 10}">{100 * share:.1f} %</text>')
    keys = ", ".join(f"{name}: bar {index}" for index, name in enumerate(series, start=1))
    return _figure(f"{title}; {keys}" if len(series) > 1 else title, (len(lengths) + 1) * _ROW, drawn)


def _curves(title: str, series: dict[str, Sequence[float]]) -> str:
    most = max(map(len, series.values()))
    step = (_WIDTH - 160) / max(1, most - 1)
    drawn = []
    for name, values in series.items():
        ends = [(60 + step * index, 10 + (1 - value) * _HEIGHT) for index, value in enumerate(values)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
        drawn.append(f'<polyline fill="none" stroke="currentColor" stroke-width="2" points="{points}"/>')
        drawn.append(f'<text x="{ends[-1][0] + 6:.1f}" y="{ends[-1][1] + 4:.1f}">{escape(name)}</text>')
    for label, y in (("1", 14), ("0", 14 + _HEIGHT)):
        drawn.append(f'<text x="50" y="{y}" text-anchor="end">{label}</text>')
    drawn.append(f'<text x="60" y="{40 + _HEIGHT}">steps 1 to {most}</text>')
    return _figure(title, _HEIGHT + 50, drawn)


def _figure(title: str, height: int, drawn: Sequence[str]) -> str:
    svg = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    return f'<figure class="episodes"><figcaption>{escape(title)}</figcaption>{svg}</figure>'
