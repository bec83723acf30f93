"""Draws the learning curve of a run as an SVG: python docs/make_curve.py RUN/metrics.jsonl curve.svg."""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 56, 56, 28, 44


def polyline(points: list[tuple[float, float]], x_end: float, y_end: float, colour: str) -> str:
    """A line through points given in data units, both axes beginning at 0."""
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    drawn = [
        f"{LEFT + x / x_end * inner_width:.1f},{HEIGHT - BOTTOM - min(y, y_end) / y_end * inner_height:.1f}"
        for x, y in points
    ]
    return f'<polyline points="{" ".join(drawn)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def text(x: float, y: float, content: str, anchor: str = "middle", colour: str = "#444") -> str:
    """A label."""
    style = f'font-family="sans-serif" font-size="12" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{content}</text>'


def main(metrics: Path, output: Path) -> None:
    """Validation nll (left axis) and BLEU (right axis) over minutes of training."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").split("\n") if line]
    validations = [line for line in lines if "valid_nll" in line]
    minutes = [line["seconds"] / 60 for line in validations]
    x_end = max(minutes) * 1.02
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for share in range(6):
        x = LEFT + share / 5 * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - share / 5 * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{x_end * share / 5:.0f}"))
        parts.append(text(LEFT - 8, y + 4, f"{10 * share / 5:.0f}", "end", "#1f6fb4"))
        parts.append(text(WIDTH - RIGHT + 8, y + 4, f"{50 * share / 5:.0f}", "start", "#c0392b"))
    nll = [(minute, line["valid_nll"]) for minute, line in zip(minutes, validations, strict=True)]
    bleu = [(minute, line["valid_bleu"]) for minute, line in zip(minutes, validations, strict=True)]
    parts += [polyline(nll, x_end, 10, "#1f6fb4"), polyline(bleu, x_end, 50, "#c0392b")]
    parts.append(text(WIDTH / 2, HEIGHT - 8, "minutes of training"))
    parts.append(text(LEFT, 16, "validation nll (nats a token)", "start", "#1f6fb4"))
    parts.append(text(WIDTH - RIGHT, 16, "validation BLEU", "end", "#c0392b"))
    output.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
