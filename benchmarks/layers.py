"""Table 1 of the paper, measured: time, memory and operations of its four kinds of layer, and attention windows.

    python benchmarks/layers.py --json layers.json --markdown table.md --svg docs/layers.svg
    python benchmarks/layers.py --window --markdown window.md

Each layer maps a sequence of n vectors of width d to another one, forward and backward, one sequence, float32:
self-attention (heads of 64, without the projections, which the paper's O(n^2 d) leaves out; and with them, as a
Transformer has it), the same restricted to a neighbourhood of r, `nn.LSTM` and `nn.Conv1d`. Lengths and widths are
varied one at a time, and the exponent is the slope of the logarithms over the larger half of the points, where what
grows fastest counts. Attention is computed as equation 1 stands, with all scores kept. Memory is what torch's allocator
holds at most beyond what it held before. `--window` compares, in turn, attention with a window and without: as nmtkit
computes it (on a CPU above 2^26 scores by torch's fused attention, which keeps none), and with all scores kept.
"""

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model import attention
from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.flops import TRAINING_FACTOR

HEAD_WIDTH = 64
KERNEL = 3
NEIGHBOURHOOD = 64
LENGTHS = (256, 512, 1024, 2048, 4096)
WIDTHS = (128, 256, 512, 1024)
FIXED_LENGTH, FIXED_WIDTH = 1024, 512
ALL_SCORES = 2**62
"""For attention.MOST_SCORES: plain products at any length."""
SECONDS_EACH = 0.6
"""For which a layer is measured over and over; at least three times."""

PAPER = {
    "self-attention": ("O(n² d)", 2, 1),
    "self-attention, restricted": ("O(r n d)", 1, 1),
    "recurrent": ("O(n d²)", 1, 2),
    "convolutional": ("O(k n d²)", 1, 2),
    "self-attention with projections": ("O(n² d + n d²)", None, None),
}
"""Complexity in words and its exponents of n and d. Source: Table 1."""

Layer = Callable[[Tensor], Tensor]


def _attention(width: int, heads: int, window: int | None = None) -> MultiHeadAttention:
    config = ModelConfig(d_model=width, num_heads=heads, attention_window=window)
    return MultiHeadAttention(config, config.attention_kind(0))


class _Bare(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V alone: queries, keys and values are what comes in."""

    def __init__(self, width: int, window: int | None) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD_WIDTH)
        self.attention = _attention(width, self.heads, window)
        self.attention.query = self.attention.key = self.attention.value = nn.Linear(1, 1)  # not used
        self.attention.output = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.attention.attend(heads, heads, heads)


class _Projected(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        heads = max(1, width // HEAD_WIDTH)
        self.attention = _attention(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention.attend(self.attention.queries(x), *self.attention.keys_values(x))


class _Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.lstm(x)[0]
        return result


class _Convolutional(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return result


def make_layer(kind: str, width: int) -> nn.Module:
    """A layer of one of the kinds of PAPER."""
    if kind == "recurrent":
        return _Recurrent(width)
    if kind == "convolutional":
        return _Convolutional(width)
    if kind == "self-attention with projections":
        return _Projected(width)
    return _Bare(width, NEIGHBOURHOOD if kind == "self-attention, restricted" else None)


def operations(kind: str, length: int, width: int) -> int:
    """Of the matrix products, forward and backward."""
    scores = length * length
    if kind == "self-attention, restricted":
        scores = AttentionWindow.of(NEIGHBOURHOOD, causal=False).num_scores(length)
    forward = {
        "recurrent": 2 * length * 4 * width * 2 * width,  # four gates, from input and state
        "convolutional": 2 * KERNEL * length * width * width,
        "self-attention with projections": 2 * 4 * length * width * width + 2 * 2 * scores * width,
    }.get(kind, 2 * 2 * scores * width)
    return TRAINING_FACTOR * forward


def one_pass(layer: nn.Module, x: Tensor) -> None:
    """Forward and backward; the gradients are dropped."""
    layer(x).sum().backward()
    layer.zero_grad(set_to_none=True)
    x.grad = None


def seconds_of(layer: nn.Module, x: Tensor) -> float:
    """The median time of a pass; on one CPU thread its own time, in which other work on the machine does not count."""
    clock = time.process_time if x.device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    one_pass(layer, x)
    times: list[float] = []
    while len(times) < 3 or sum(times) < SECONDS_EACH:
        _wait(x.device)
        start = clock()
        one_pass(layer, x)
        _wait(x.device)
        times.append(clock() - start)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def bytes_of(layer: nn.Module, x: Tensor) -> int:
    """The most that the allocator holds during a pass, beyond what it held before."""
    one_pass(layer, x)
    if x.device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        one_pass(layer, x)
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        one_pass(layer, x)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    return max(itertools.accumulate(event["args"]["Bytes"] for event in memory))


def measure(kind: str, length: int, width: int, device: torch.device) -> dict[str, Any]:
    """One point of the table."""
    torch.manual_seed(1)
    layer = make_layer(kind, width).to(device)
    x = torch.randn(1, length, width, device=device, requires_grad=True)
    return {
        "kind": kind,
        "n": length,
        "d": width,
        "seconds": seconds_of(layer, x),
        "bytes": bytes_of(layer, x),
        "flops": operations(kind, length, width),
    }


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the logarithms over the larger half of the points, at least two: y grows as x to the power of it."""
    chosen = sorted(points)[-max(2, math.ceil(len(points) / 2)) :]
    x, y = zip(*chosen, strict=True)
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def exponents(points: Sequence[dict[str, Any]], kind: str, what: str) -> tuple[float, float]:
    """Those of n and of d."""
    of_kind = [point for point in points if point["kind"] == kind]
    by_length = [(point["n"], point[what]) for point in of_kind if point["d"] == FIXED_WIDTH]
    by_width = [(point["d"], point[what]) for point in of_kind if point["n"] == FIXED_LENGTH]
    return exponent(by_length), exponent(by_width)


def markdown(points: Sequence[dict[str, Any]]) -> list[str]:
    """The tables of the measurements."""
    lines = [
        "| layer | the paper | FLOPs: n, d | time: n, d | memory: n, d |",
        "|---|---|---|---|---|",
    ]
    for kind, (complexity, _, _) in PAPER.items():
        fitted = [exponents(points, kind, what) for what in ("flops", "seconds", "bytes")]
        lines.append(f"| {kind} | {complexity} | {' | '.join(f'{n:.2f}, {d:.2f}' for n, d in fitted)} |")
    for name, fixed, axis, values in (("n", "d", "n", LENGTHS), ("d", "n", "d", WIDTHS)):
        at = FIXED_WIDTH if fixed == "d" else FIXED_LENGTH
        lines += ["", f"Milliseconds (MB) at {fixed} = {at:,}:", ""]
        lines += [
            f"| layer | {' | '.join(f'{name} = {value:,}' for value in values)} |",
            "|---|" + "---|" * len(values),
        ]
        for kind in PAPER:
            of_kind = {point[axis]: point for point in points if point["kind"] == kind and point[fixed] == at}
            cells = [f"{of_kind[v]['seconds'] * 1e3:,.1f} ({of_kind[v]['bytes'] / 1e6:,.1f})" for v in values]
            lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


# ---- the picture

PANEL, HEIGHT, LEFT, TOP, BOTTOM = 380, 330, 56, 34, 48
COLOURS = dict(zip(PAPER, ("#c0392b", "#1f6fb4", "#2e8b57", "#b8860b", "#e59866"), strict=True))


def picture(points: Sequence[dict[str, Any]]) -> str:
    """Milliseconds over n, and over d, both axes logarithmic, as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * PANEL}" height="{HEIGHT + 18 * 3}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    y_ends = [0.9 * min(point["seconds"] for point in points) * 1e3, 1.1 * max(p["seconds"] for p in points) * 1e3]
    for panel, (axis, fixed, at) in enumerate((("n", "d", FIXED_WIDTH), ("d", "n", FIXED_LENGTH))):
        chosen = [point for point in points if point[fixed] == at]
        parts += _panel(chosen, axis, f"milliseconds a pass, {fixed} = {at:,}", panel * PANEL, y_ends)
    for number, (kind, colour) in enumerate(COLOURS.items()):
        x, y = 20 + number % 2 * PANEL, HEIGHT + 10 + number // 2 * 18
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="{y}" fill="#444">{kind}: {PAPER[kind][0]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(points: Sequence[dict[str, Any]], axis: str, title: str, left: float, y_ends: Sequence[float]) -> list[str]:
    values = sorted({point[axis] for point in points})
    x_of = _scale(values[0], values[-1], left + LEFT, left + PANEL - 16)
    y_of = _scale(y_ends[0], y_ends[1], HEIGHT - BOTTOM, TOP)
    parts = [f'<text x="{left + LEFT}" y="18" fill="#222">{title}</text>']
    for value in values:
        parts.append(f'<text x="{x_of(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:,}</text>')
    middle = left + (LEFT + PANEL - 16) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 36}" text-anchor="middle">{axis}</text>')
    for power in range(math.ceil(math.log10(y_ends[0])), math.floor(math.log10(y_ends[1])) + 1):
        y = y_of(10.0**power)
        parts.append(f'<line x1="{left + LEFT}" x2="{left + PANEL - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    for kind, colour in COLOURS.items():
        line = sorted((point[axis], point["seconds"] * 1e3) for point in points if point["kind"] == kind)
        drawn = [(f"{x_of(x):.1f}", f"{y_of(y):.1f}") for x, y in line]
        joined = " ".join(",".join(place) for place in drawn)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in drawn]
    return parts


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From data to the picture, logarithmic."""
    return lambda value: start + (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) * (end - start)


# ---- attention windows against none


def compare_window(length: int, width: int, window: int, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """Time and memory of attention with its projections, in turn: with a window, without, with all scores kept."""
    heads = width // HEAD_WIDTH
    most_scores = attention.MOST_SCORES
    kinds = {"window": (window, most_scores), "full": (None, most_scores), "full, scores kept": (None, ALL_SCORES)}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    memory = {}
    for number in range(rounds):
        for name, (size, most) in kinds.items():
            torch.manual_seed(1)
            layer = _Projected(width)
            layer.attention = _attention(width, heads, size)
            layer.to(device)
            x = torch.randn(1, length, width, device=device, requires_grad=True)
            attention.MOST_SCORES = most
            found[name].append(seconds_of(layer, x))
            if number == 0:
                memory[name] = bytes_of(layer, x)
            attention.MOST_SCORES = most_scores
    return [{"kind": name, "rounds": times, "bytes": memory[name]} for name, times in found.items()]


def window_markdown(results: Sequence[dict[str, Any]]) -> list[str]:
    """A table of times and memory, and how many times those of the window they are."""
    lines = ["| attention | seconds, in turn | to the window | MB | to the window |", "|---|---|---|---|---|"]
    first = results[0]
    for result in results:
        times = " ".join(f"{seconds:.3f}" for seconds in result["rounds"])
        ratio = statistics.median(result["rounds"]) / statistics.median(first["rounds"])
        size = result["bytes"] / first["bytes"]
        lines.append(f"| {result['kind']} | {times} | {ratio:.1f} | {result['bytes'] / 1e6:,.1f} | {size:.1f} |")
    return lines


def main() -> None:
    """Reads the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", action="store_true", help="compare attention with a window and without")
    parser.add_argument("--length", type=int, default=4096, help="with --window")
    parser.add_argument("--width", type=int, default=512, help="with --window")
    parser.add_argument("--size", type=int, default=NEIGHBOURHOOD, help="of the neighbourhood, with --window")
    parser.add_argument("--rounds", type=int, default=3, help="with --window")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if arguments.window:
        results = compare_window(arguments.length, arguments.width, arguments.size, arguments.rounds, device)
        lines = window_markdown(results)
    else:
        attention.MOST_SCORES = ALL_SCORES  # one way to compute it at all lengths: equation 1
        sizes = dict.fromkeys([*((n, FIXED_WIDTH) for n in LENGTHS), *((FIXED_LENGTH, d) for d in WIDTHS)])
        results = [measure(kind, n, d, device) for n, d in sizes for kind in PAPER]
        lines = markdown(results)
        if arguments.svg:
            arguments.svg.write_text(picture(results), encoding="utf-8")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
