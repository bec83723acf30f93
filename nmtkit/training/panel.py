"""The live display of a training: a pure function of the present moment and scores, for any width and height."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nmtkit.console import amount, duration, visible
from nmtkit.evaluation.scores import perplexity_of
from nmtkit.tasks.task import Task
from nmtkit.training.loop import Meter, Update
from nmtkit.training.state import Progress

_WIDE = 96
_NARROW = 52
_SAMPLE_LINES = 4
"""Lines of a sample: a blank one, source, reference, translation."""

Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Moment:
    """Where a training is after an update.

    Attributes:
        progress: a copy, since another thread reads it.
        update: the latest one of this session.
        recent: sums over the latest updates, also a copy.
        share: how much is done, from 0 to 1, of the nearest limit, such as "max_steps = 3000".
        seconds_left: until the limit, where it can be estimated.
        at: the time of this moment, by the monotonic clock.
        memory_bytes: peak memory.
    """

    progress: Progress
    update: Update | None
    recent: Meter
    share: float
    limit: str
    seconds_left: float | None
    at: float
    memory_bytes: int


@dataclass(frozen=True)
class Scores:
    """The last validation of a run, and the best scores so far with their updates."""

    step: int | None = None
    nll: float = math.inf
    bleu: float | None = None
    samples: tuple[dict[str, str], ...] = ()
    best_nll: tuple[float, int] | None = None
    best_bleu: tuple[float, int] | None = None

    def after(self, line: dict[str, Any]) -> "Scores":
        """Return the scores with those of a line of metrics.jsonl, if it has a validation."""
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
    """The display on a terminal while a model trains.

    The reporter replaces ``moment``, ``scores`` and ``activity``; another thread reads each once per rendering.
    """

    moment: Moment

    def __init__(self, name: str, matmul_rate: float, task: Task) -> None:
        """Args:
        matmul_rate: FLOP/s of plain matrix products of all devices together.
        """
        self._name, self._matmul_rate, self._task = name, matmul_rate, task
        self.scores, self.activity = Scores(), ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        moment, scores = self.moment, self.scores
        width = max(16, options.max_width - 4)
        training, validation = _training_rows(moment), _validation_rows(scores)
        if not self._task.predicts_text:
            training, validation = (_without_text(rows, self._task.nll) for rows in (training, validation))
        speed = _speed_rows(moment, self._matmul_rate, self._task.unit)
        if width >= _WIDE:
            blocks = [[training, validation, speed]]
        elif width >= _NARROW:
            blocks = [[training, speed], [validation]]
        else:
            blocks = [[training], [validation], [speed]]
        parts = [*_head(moment, self.activity, width), *map(_beside, blocks)]
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


def _head(moment: Moment, activity: str, width: int) -> list[tuple[RenderableType, int]]:
    """Return the progress bar and what stands below it, each with its number of lines."""
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(ProgressBar(total=1.0, completed=moment.share), f"{100 * moment.share:.0f} %")
    since = max(0.0, time.monotonic() - moment.at)
    progress = moment.progress
    where = f"update {progress.step:,}, epoch {progress.epoch + 1}" + (f", {activity}" if activity else "")
    spent = duration(progress.seconds + since)
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
    if moment.update is not None and moment.recent.seconds:
        loss, nll = moment.recent.mean_loss, moment.recent.mean_nll
        figures = [f"{loss:.4f}", f"{nll:.4f}", perplexity(nll)]
        figures += [f"{moment.update.learning_rate:.3e}", f"{moment.update.gradient_norm:.3f}"]
    names = ["loss", "nll", "perplexity", "learning rate", "gradient norm"]
    rows = [("training", ""), *zip(names, figures, strict=True)]
    skipped = moment.progress.skipped_updates + moment.progress.overflows
    return [*rows, ("skipped", f"{skipped}")] if skipped else rows


def _speed_rows(moment: Moment, matmul_rate: float, unit: str) -> Rows:
    figures = ["-"] * 4
    if moment.recent.seconds:
        tokens, flops = moment.recent.target_tokens_per_second, moment.recent.flops_per_second
        figures = [f"{tokens:,.0f}", amount(flops), f"{100 * flops / matmul_rate:.1f} %"]
        figures.append(f"{100 * moment.recent.padding:.1f} %")
    names = [f"{unit}/s", "FLOP/s", "MFU", "padding"]
    memory = f"{moment.memory_bytes / 2**30:.2f} GiB"
    return [("speed", ""), *zip(names, figures, strict=True), ("memory", memory)]


def _validation_rows(scores: Scores) -> Rows:
    figures = [("-", "-")] * 4
    if scores.step is not None and scores.best_nll is not None:
        nll, best_nll = scores.nll, scores.best_nll[0]
        bleu = "-" if scores.bleu is None else f"{scores.bleu:.2f}"
        best_bleu = "-" if scores.best_bleu is None else f"{scores.best_bleu[0]:.2f}"
        figures = [(f"{nll:.4f}", f"{best_nll:.4f}"), (perplexity(nll), perplexity(best_nll))]
        figures += [(bleu, best_bleu), (f"{scores.step:,}", f"{scores.best_nll[1]:,}")]
    names = ["nll", "perplexity", "BLEU", "update"]
    return [("validation", "last", "best"), *((name, *pair) for name, pair in zip(names, figures, strict=True))]


def _without_text(rows: Rows, nll: str) -> Rows:
    """Return rows without figures of text, and with the name of the nll."""
    kept = [row for row in rows if row[0] not in ("perplexity", "BLEU")]
    return [(nll if name == "nll" else name, *figures) for name, *figures in kept]


def perplexity(nll: float) -> str:
    """Return exp(nll), in few characters however large."""
    value = perplexity_of(nll)
    return f"{value:,.3f}" if value < 1e5 else f"{value:.3g}"


def _beside(blocks: Sequence[Rows]) -> tuple[RenderableType, int]:
    """Return blocks of rows side by side, of equal width, below a blank line; and their number of lines."""
    table = Table.grid(expand=True, padding=(0, 3, 0, 0), pad_edge=False)
    rendered = []
    for rows in blocks:
        table.add_column(ratio=1)
        block = Table.grid(expand=True, padding=(0, 1))
        for index in range(len(rows[0])):
            block.add_column(justify="right" if index else "left", no_wrap=True)
        for number, row in enumerate(rows):
            block.add_row(*(_line(cell, "bold" if number == 0 else "") for cell in row))
        rendered.append(block)
    table.add_row(*rendered)
    return Group("", table), 1 + max(len(rows) for rows in blocks)


def _sample(sample: dict[str, str]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for name, key in (("source", "source"), ("reference", "reference"), ("translation", "hypothesis")):
        line = _line(f"{name:<13}", "dim")
        content = visible(sample.get(key, "").strip())
        line.append(content or "(empty)", "dim" if not content else "bold" if key == "hypothesis" else "not dim")
        lines.append(line)
    return lines


def _line(text: str, style: str = "") -> Text:
    """Return one line, cut to the width."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
