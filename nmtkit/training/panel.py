"""The live display of a training: a pure drawing of what the reporter tells it, for any width and height."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nmtkit.console import amount, duration, visible
from nmtkit.training.totals import Recent, memory_bytes

_WIDE = 96
_NARROW = 52
_SAMPLE_LINES = 4
"""Lines of a sample: a blank one, source, reference, translation."""

Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Moment:
    """Where a training is after an update.

    Attributes:
        share: how much is done, from 0 to 1, by the limit that is nearest.
        limit: that limit, such as "max_steps = 3000".
        seconds: spent so far, over all sessions.
        seconds_left: until the limit, where that can be told.
        at: when that was, by the monotonic clock.
        skipped: updates left out so far.
    """

    step: int
    epoch: int
    learning_rate: float
    gradient_norm: float
    recent: Recent
    share: float
    limit: str
    seconds: float
    seconds_left: float | None
    at: float
    skipped: int = 0


@dataclass(frozen=True)
class Scores:
    """The last validation of a run, and the best scores so far with the update they were found at."""

    step: int | None = None
    nll: float = math.inf
    bleu: float | None = None
    samples: tuple[dict[str, str], ...] = ()
    best_nll: tuple[float, int] | None = None
    best_bleu: tuple[float, int] | None = None

    def after(self, line: dict[str, Any]) -> "Scores":
        """With a line of metrics.jsonl, if it tells of a validation."""
        if line.get("valid_nll") is None:
            return self
        step, nll, bleu = line["step"], line["valid_nll"], line.get("valid_bleu")
        best_nll, best_bleu = self.best_nll, self.best_bleu
        if best_nll is None or nll < best_nll[0]:
            best_nll = (nll, step)
        if bleu is not None and (best_bleu is None or bleu > best_bleu[0]):
            best_bleu = (bleu, step)
        return Scores(step, nll, bleu, tuple(line.get("samples") or ()), best_nll, best_bleu)


class TrainingPanel:
    """What a person sees on a terminal while a model trains.

    The reporter replaces ``moment``, ``scores`` and ``activity``; each is read once a drawing, by another thread.
    """

    def __init__(self, name: str, moment: Moment, scores: Scores, matmul_rate: float, device: torch.device) -> None:
        """``matmul_rate`` is that of plain matrix products, in FLOP/s, of all devices together."""
        self._name, self._matmul_rate, self._device = name, matmul_rate, device
        self.moment, self.scores, self.activity = moment, scores, ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        moment, scores = self.moment, self.scores
        width = max(16, options.max_width - 4)
        parts = [*_head(moment, self.activity, width), *self._blocks(moment, scores, width)]
        room = console.size.height - 3  # the border, and the line below it
        lines: list[RenderableType] = []
        for part, height in parts:
            if height > room:
                break
            lines.append(part)
            room -= height
        else:
            for sample in scores.samples[: room // _SAMPLE_LINES]:
                lines += ["", *_sample(sample)]
        yield Panel(Group(*lines), title=Text(visible(self._name)), title_align="left", border_style="dim")

    def _blocks(self, moment: Moment, scores: Scores, width: int) -> list[tuple[RenderableType, int]]:
        """The blocks of figures with the lines that each takes, beside each other as the width allows."""
        training, speed, validation = _training_rows(moment), self._speed_rows(moment), _validation_rows(scores)
        if width >= _WIDE:
            return [_beside([training, validation, speed])]
        if width >= _NARROW:
            return [_beside([training, speed]), _beside([validation])]
        return [_beside([training]), _beside([validation]), _beside([speed])]

    def _speed_rows(self, moment: Moment) -> Rows:
        memory = f"{memory_bytes(self._device) / 2**30:.2f} GiB"
        if not moment.recent.weighted[6]:
            return [
                ("speed", ""),
                *((name, "-") for name in ("tokens/s", "FLOP/s", "MFU", "padding")),
                ("memory", memory),
            ]
        recent = moment.recent
        return [
            ("speed", ""),
            ("tokens/s", f"{recent.target_tokens_per_second:,.0f}"),
            ("FLOP/s", amount(recent.flops_per_second)),
            ("MFU", f"{100 * recent.flops_per_second / self._matmul_rate:.1f} %"),
            ("padding", f"{100 * recent.padding:.1f} %"),
            ("memory", memory),
        ]


def _head(moment: Moment, activity: str, width: int) -> list[tuple[RenderableType, int]]:
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(ProgressBar(total=1.0, completed=moment.share), f"{100 * moment.share:.0f} %")
    since = max(0.0, time.monotonic() - moment.at)
    where = f"update {moment.step:,}, epoch {moment.epoch + 1}" + (f", {activity}" if activity else "")
    spent = duration(moment.seconds + since)
    left = "" if moment.seconds_left is None else f", {duration(max(0.0, moment.seconds_left - since))} left"
    when = f"{spent}{left} ({moment.limit})"
    if len(where) + len(when) + 2 > width:
        return [(bar, 1), (_line(where), 1), (_line(when), 1)]
    both = Table.grid(expand=True)
    both.add_column(no_wrap=True)
    both.add_column(justify="right", no_wrap=True)
    both.add_row(_line(where), _line(when))
    return [(bar, 1), (both, 1)]


def _training_rows(moment: Moment) -> Rows:
    figures = ["-"] * 5
    if moment.recent.weighted[6]:
        loss, nll = moment.recent.loss, moment.recent.nll
        figures = [f"{loss:.4f}", f"{nll:.4f}", perplexity(nll)]
        figures += [f"{moment.learning_rate:.3e}", f"{moment.gradient_norm:.3f}"]
    names = ["loss", "nll", "perplexity", "learning rate", "gradient norm"]
    rows = [("training", ""), *zip(names, figures, strict=True)]
    return [*rows, ("skipped", f"{moment.skipped}")] if moment.skipped else rows


def _validation_rows(scores: Scores) -> Rows:
    if scores.step is None or scores.best_nll is None:
        return [("validation", "last", "best"), *((name, "-", "-") for name in ("nll", "perplexity", "BLEU", "update"))]
    best_bleu = "-" if scores.best_bleu is None else f"{scores.best_bleu[0]:.2f}"
    return [
        ("validation", "last", "best"),
        ("nll", f"{scores.nll:.4f}", f"{scores.best_nll[0]:.4f}"),
        ("perplexity", perplexity(scores.nll), perplexity(scores.best_nll[0])),
        ("BLEU", "-" if scores.bleu is None else f"{scores.bleu:.2f}", best_bleu),
        ("update", f"{scores.step:,}", f"{scores.best_nll[1]:,}"),
    ]


def perplexity(nll: float) -> str:
    """exp(nll), short however large."""
    value = math.exp(min(nll, 700.0))
    return f"{value:,.3f}" if value < 1e5 else f"{value:.3g}"


def _beside(blocks: Sequence[Rows]) -> tuple[RenderableType, int]:
    """Blocks of rows side by side, each as wide as the others, below a blank line; and the lines they take."""
    table = Table.grid(expand=True, padding=(0, 3, 0, 0), pad_edge=False)
    for _ in blocks:
        table.add_column(ratio=1)
    table.add_row(*(_block(rows) for rows in blocks))
    return Group("", table), 1 + max(len(rows) for rows in blocks)


def _block(rows: Rows) -> RenderableType:
    block = Table.grid(expand=True, padding=(0, 1))
    for index in range(len(rows[0])):
        block.add_column(justify="right" if index else "left", no_wrap=True)
    for number, row in enumerate(rows):
        block.add_row(*(_line(cell, "bold" if number == 0 else "") for cell in row))
    return block


def _sample(sample: dict[str, str]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for name, key in (("source", "source"), ("reference", "reference"), ("translation", "hypothesis")):
        line = _line(f"{name:<13}", "dim")
        content = visible(sample.get(key, "").strip())
        line.append(content or "(empty)", "dim" if not content else "bold" if key == "hypothesis" else "not dim")
        lines.append(line)
    return lines


def _line(text: str, style: str = "") -> Text:
    """One line, cut to the width."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
