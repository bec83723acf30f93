"""Figures of the episodes that a model of decisions played, from RUN/play.json.

After figures 5 and 6 of Chen et al. 2021 (arXiv 2106.01345).
"""

from collections.abc import Sequence
from html import escape
from typing import Any

PLAYED = {
    "episodes": int, "success_rate": float, "lengths": {str: int}, "shortest_lengths?": {str: int},
    "example": {"rewards": [float], "values": [[float]]},
}  # fmt: skip
"""Shape of RUN/play.json, as far as it is shown."""
_WIDTH, _HEIGHT, _ROW = 560, 140, 30


def figures_of(played: dict[str, Any]) -> list[str]:
    """Return the figures as HTML: lengths of the episodes, and the returns predicted during one of them."""
    series = {"played": played["lengths"]}
    if "shortest_lengths" in played:
        series["shortest"] = played["shortest_lengths"]
    figures = [_histogram("Steps to success, as shares of all episodes", series, played["episodes"])]
    example = played["example"]
    if any(len(row) > 1 for row in example["values"]):
        best = [row[-1] for row in example["values"]]
        figures.append(_curve("Probability of the highest return during an episode", best, example["rewards"]))
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


def _curve(title: str, values: Sequence[float], rewards: Sequence[float]) -> str:
    step = (_WIDTH - 80) / max(1, len(values) - 1)
    points = " ".join(f"{60 + step * index:.1f},{10 + (1 - value) * _HEIGHT:.1f}" for index, value in enumerate(values))
    drawn = [f'<polyline fill="none" stroke="currentColor" stroke-width="2" points="{points}"/>']
    for label, y in (("1", 14), ("0", 14 + _HEIGHT)):
        drawn.append(f'<text x="50" y="{y}" text-anchor="end">{label}</text>')
    for index, reward in enumerate(rewards):
        if reward == max(rewards) != min(rewards):
            drawn.append(f'<circle cx="{60 + step * min(index, len(values) - 1):.1f}" cy="{20 + _HEIGHT}" r="4"/>')
    drawn.append(f'<text x="60" y="{40 + _HEIGHT}">steps 1 to {len(values)}; dots: the highest reward</text>')
    return _figure(title, _HEIGHT + 50, drawn)


def _figure(title: str, height: int, drawn: Sequence[str]) -> str:
    svg = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    return f'<figure class="episodes"><figcaption>{escape(title)}</figcaption>{svg}</figure>'
