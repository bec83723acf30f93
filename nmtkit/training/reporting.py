"""Reports of a training: the live panel or log lines, RUN/metrics.jsonl, trackers, and the summary at the end."""

import json
import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from nmtkit import console
from nmtkit.config.schema import Recipe
from nmtkit.console import amount, counted, duration, is_live, is_telling, live, log
from nmtkit.distributed.workers import Workers, open_tracker
from nmtkit.evaluation.cost import read_metrics
from nmtkit.json_toml import append_json_line, write_json_lines
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.training.loop import Meter, Update
from nmtkit.training.panel import Moment, Scores, TrainingPanel, perplexity
from nmtkit.training.state import Progress
from nmtkit.training.validation import Validation

_HALF_LIFE_SECONDS = 5.0
"""Time after which an update counts half in the figures of panel and log lines."""
COLUMNS = ["source", "reference", "hypothesis"]
"""Keys of a sample translation in metrics.jsonl."""


def log_line(tracker: Any, line: dict[str, Any]) -> None:
    """Log a line of metrics.jsonl by one of Accelerate's trackers: its numbers, and its sample translations as text."""
    values: dict[str, int | float | str]
    numbers = dict(line)
    for name, scores in line.get("valid_directions", {}).items():
        numbers |= {f"valid_{key}/{name}": value for key, value in scores.items()}
    values = {key: value for key, value in numbers.items() if isinstance(value, int | float) and key != "step"}
    samples = line.get("samples") or []
    if samples and tracker.name == "tensorboard":
        for number, sample in enumerate(samples, start=1):
            # A block that markdown leaves as it is.
            values[f"samples/{number}"] = "\n".join(f"    {column:<11}{sample[column]}" for column in COLUMNS)
    elif samples and tracker.name == "wandb":
        rows = [[sample[column] for column in COLUMNS] for sample in samples]
        tracker.log_table("samples", columns=COLUMNS, data=rows, step=line["step"])
    tracker.log(values, step=line["step"])


def hyperparameters(recipe: Recipe) -> dict[str, bool | int | float | str]:
    """Return the recipe as section/key with plain values: lists as JSON, without what is not set."""
    flat: dict[str, bool | int | float | str] = {}
    for section, content in recipe.model_dump(mode="json", exclude_none=True).items():
        entries = content.items() if isinstance(content, dict) else [("", content)]
        for key, value in entries:
            name = f"{section}/{key}" if key else section
            flat[name] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return flat


class Reporter:
    """Reports of one session of training.

    Attributes:
        meter: sums since the last report; saved with the run, so that an interrupted run has the same reports.
    """

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        workers: Workers,
        meter: Meter,
        matmul_rate: float,
        pairs_per_epoch: int,
        trackers: Sequence[str] = (),
    ) -> None:
        """Args:
        matmul_rate: FLOP/s of plain matrix products on one device; MFU is a share of it.
        trackers: names of those that log every line of metrics.jsonl, too.
        """
        self._run, self._recipe, self._workers, self._task = run, recipe, workers, task_of(recipe.data)
        self._matmul_rate, self._pairs_per_epoch = matmul_rate * workers.num_processes, pairs_per_epoch
        self._tracker_names, self._trackers = trackers if workers.is_main else (), list[Any]()
        self.meter, self._recent = meter, Meter()
        self._panel = TrainingPanel(run.folder.resolve().name, self._matmul_rate, self._task)

    @contextmanager
    def showing(self, progress: Progress) -> Iterator[None]:
        """Show progress while the block runs: in a live panel on a terminal, a line every ten seconds elsewhere.

        Raises:
            NmtkitError: a tracker cannot start.
        """
        settings, first_step = hyperparameters(self._recipe), progress.step + 1
        self._trackers = [open_tracker(name, self._run.folder, settings, first_step) for name in self._tracker_names]
        # The time left follows from this session alone: an earlier one may have used another device.
        self._start = progress.shares_done(self._recipe.training, self._pairs_per_epoch)
        self._start_seconds = progress.seconds
        self._last_line = time.monotonic()
        self.read_scores()
        self._panel.moment = self._moment(None, progress)
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.finish)
            if is_live():
                stack.enter_context(live(self._panel))
            yield

    def roll_back(self, meter: Meter) -> None:
        """Forget the updates that are repeated, which metrics.jsonl does not contain any more."""
        self.meter, self._recent = meter, Meter()
        self.read_scores()

    def read_scores(self) -> None:
        """Read the last and the best scores from metrics.jsonl."""
        scores = Scores()
        for line in read_metrics(self._run.folder) if self._workers.is_main else ():
            scores = scores.after(line)
        self._panel.scores = scores

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """Show an activity, such as "validating", in the panel while the block runs."""
        self._panel.activity = activity
        try:
            yield
        finally:
            self._panel.activity = ""

    def add(self, update: Update) -> None:
        """Add one update; a skipped one has no numbers to sum."""
        if not update.skipped:
            self.meter.add(update)
            self._recent.add(update, _HALF_LIFE_SECONDS)

    def show(self, update: Update, progress: Progress) -> None:
        """Update the panel, or log a line where one is due."""
        if is_live():
            self._panel.moment = self._moment(update, progress)
        elif update.skipped or not self._recent.updates:  # none, where a resume begins with a validation
            return
        elif is_telling() and time.monotonic() - self._last_line >= console.SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            moment, recent = self._moment(update, progress), self._recent
            left = "" if moment.seconds_left is None else f", {duration(moment.seconds_left)} left"
            log.info(
                "training: %.0f %%%s, update %d, loss %.3f, %s %.3f, %s %s/s, MFU %.1f %%",
                100 * moment.share, left, update.step, recent.mean_loss, self._task.nll, recent.mean_nll,
                f"{recent.target_tokens_per_second:,.0f}", self._task.unit,
                100 * recent.flops_per_second / self._matmul_rate,
            )  # fmt: skip

    def _moment(self, update: Update | None, progress: Progress) -> Moment:
        shares = progress.shares_done(self._recipe.training, self._pairs_per_epoch)
        limit = max(shares, key=lambda name: shares[name])
        share, gained = shares[limit], shares[limit] - self._start[limit]
        spent = progress.seconds - self._start_seconds
        return Moment(
            progress=replace(progress),
            update=update,
            recent=replace(self._recent),
            share=share,
            limit=limit,
            seconds_left=(1 - share) * spent / gained if gained > 0 else None,
            at=time.monotonic(),
            memory_bytes=memory_bytes(self._workers.device),
        )

    def report(
        self, progress: Progress, learning_rate: float, validation: Validation | None, *, is_end: bool = False
    ) -> None:
        """Write a line of metrics.jsonl over the updates since the last one, also to the trackers.

        Args:
            learning_rate: that of the last update.
            is_end: mark what the end of training adds, so that `forget_ends` can remove it: the whole line, or the
                validation in a line that was due without it.
        """
        line = self._line(progress, learning_rate)
        lines = read_metrics(self._run.folder) if is_end else []
        if is_end:
            # A report was due at the last update, but no validation: it is added to that line.
            is_there = bool(lines) and lines[-1]["step"] == progress.step
            line |= {**lines.pop(), "end": "validation"} if is_there else {"end": "line"}
        if validation is not None:
            line |= validation.metrics
            bleu = "" if validation.bleu is None else f", BLEU {validation.bleu:.2f}"
            if validation.directions:
                kind = "nll" if validation.bleu is None else "bleu"
                values = ((name, own[kind]) for name, own in validation.directions.items())
                shown = (f"{name} {math.nan if value is None else value:.2f}" for name, value in values)
                bleu += f" ({kind} {', '.join(shown)})"
            log.info(
                "update %d, epoch %d, %s: loss %.3f; validation %s%s",
                progress.step, progress.epoch, duration(progress.seconds),
                math.nan if line["loss"] is None else line["loss"],
                self._shown(validation.nll), bleu,
            )  # fmt: skip
            self._panel.scores = self._panel.scores.after(line)
        if self._workers.is_main and is_end:
            write_json_lines(self._run.metrics, [*lines, line])
        elif self._workers.is_main:
            append_json_line(self._run.metrics, line)
        for tracker in self._trackers:
            log_line(tracker, line)

    def _line(self, progress: Progress, learning_rate: float) -> dict[str, Any]:
        """Return a line of metrics.jsonl without a validation, and begin a new sum."""
        meter, self.meter = self.meter, Meter()
        is_empty = not meter.updates  # as when every update was skipped
        line: dict[str, Any] = {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": None if is_empty else meter.mean_loss,
            "nll": None if is_empty else meter.mean_nll,
            "learning_rate": learning_rate,
            "gradient_norm": None if is_empty else meter.gradient_norm / meter.updates,
            "target_tokens": progress.target_tokens,
            "target_tokens_per_second": None if is_empty else meter.target_tokens_per_second,
            "seconds": progress.seconds,
            "padding": None if is_empty else meter.padding,
            **progress.counters(),
            "flops_per_second": None if is_empty else meter.flops_per_second,
            "mfu": None if is_empty else meter.flops_per_second / self._matmul_rate,
            "memory_bytes": memory_bytes(self._workers.device),
            "skipped_updates": progress.skipped_updates,
        }
        if progress.gpu_seconds:
            line["gpu_joules"] = progress.gpu_joules
        if progress.host_seconds:
            line["host_joules"] = progress.host_joules
        if self._workers.precision == "fp16":
            line |= {"loss_scale": progress.loss_scale, "overflows": progress.overflows}
        return line

    def _shown(self, nll: float) -> str:
        of_text = f", perplexity {perplexity(nll)}" if self._task.predicts_text else ""
        return f"{self._task.nll} {nll:.4f}{of_text}"

    def summarize(self, progress: Progress) -> None:
        """Log figures of the whole training."""
        seconds = max(progress.seconds, 1e-9)
        rate = progress.flops / seconds
        log.info(
            "%s, %s, %s: %s %s, %s per second, %.3g FLOPs, %sFLOP/s, MFU %.1f %% "
            "(validation and saving included, except the last save of each session)",
            counted(progress.step, "update"), counted(progress.epoch, "whole epoch"), duration(progress.seconds),
            f"{progress.target_tokens:,}", self._task.unit, f"{progress.target_tokens / seconds:,.0f}", progress.flops,
            amount(rate), 100 * rate / self._matmul_rate,
        )  # fmt: skip
        scores = self._panel.scores
        if scores.best_nll is not None:
            nll, step = scores.best_nll
            bleu = "" if scores.best_bleu is None else "; BLEU {:.2f} (update {})".format(*scores.best_bleu)
            log.info("best validation: %s (update %d)%s", self._shown(nll), step, bleu)
        kept = self._run.checkpoints()
        if kept:
            log.info("%s in %s; the last is %s", counted(len(kept), "checkpoint"), kept[-1].parent, kept[-1].name)


def memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this process: on the device for CUDA, else resident in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux KiB.
    return peak if sys.platform == "darwin" else peak * 1024
