"""What a run tells while it goes: the live panel or log lines, RUN/metrics.jsonl and the trackers; and its summary."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nmtkit.config.schema import TrainingConfig
from nmtkit.console import SECONDS_BETWEEN_LINES, amount, counted, duration, is_live, is_telling, live, log
from nmtkit.distributed.workers import Workers
from nmtkit.evaluation.cost import read_metrics
from nmtkit.files import append_json_line, write_json_lines
from nmtkit.run import Run
from nmtkit.training.limits import shares_done
from nmtkit.training.loop import Update
from nmtkit.training.panel import Moment, Scores, TrainingPanel, perplexity
from nmtkit.training.state import FLOPS, Progress
from nmtkit.training.totals import Meter, Recent, memory_bytes
from nmtkit.training.tracking import Tracker
from nmtkit.training.validation import Validation


class Reporter:
    """Reports of one session of training.

    Attributes:
        meter: sums since the last report; saved with the run, so that an interrupted one reports as an uninterrupted.
    """

    def __init__(
        self,
        run_dir: Path,
        training: TrainingConfig,
        workers: Workers,
        meter: Meter,
        matmul_rate: float,
        pairs_per_epoch: int,
    ) -> None:
        self._run_dir, self._path = run_dir, Run(run_dir).metrics
        self._training, self._workers = training, workers
        # Of plain matrix products on all devices, measured at the start; MFU is a share of it.
        self._pairs_per_epoch, self._matmul_rate = pairs_per_epoch, matmul_rate * workers.num_processes
        self._trackers: Sequence[Tracker] = ()
        self.meter = meter
        self._recent, self._scores = Recent(), Scores()
        self._start: dict[str, float] = {}
        self._start_seconds = 0.0
        self._panel: TrainingPanel | None = None
        self._last_line = time.monotonic()

    @contextmanager
    def showing(self, place: Progress, trackers: Sequence[Tracker] = ()) -> Iterator[None]:
        """Tells of progress while the block runs: in a live panel on a terminal, a line every ten seconds elsewhere."""
        self._trackers = trackers
        self._start, self._start_seconds = shares_done(self._training, place, self._pairs_per_epoch), place.seconds
        self._last_line = time.monotonic()
        self.read_scores()
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.finish)
            if is_live():
                moment = self._moment(None, place)
                self._panel = TrainingPanel(
                    self._run_dir.resolve().name, moment, self._scores, self._matmul_rate, self._workers.device
                )
                stack.enter_context(live(self._panel))
            yield

    def went_back(self, meter: Meter) -> None:
        """Forgets the updates that the run went back over, which metrics.jsonl does not have any more."""
        self.meter, self._recent = meter, Recent()
        self.read_scores()

    def read_scores(self) -> None:
        """Takes the last and the best scores from metrics.jsonl."""
        self._scores = Scores()
        for line in read_metrics(self._run_dir) if self._workers.is_main else ():
            self._scores = self._scores.after(line)
        if self._panel is not None:
            self._panel.scores = self._scores

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """Says in the panel what is done meanwhile, such as "validating"."""
        if self._panel is not None:
            self._panel.activity = activity
        try:
            yield
        finally:
            if self._panel is not None:
                self._panel.activity = ""

    def add(self, update: Update) -> None:
        """Takes account of one update; one that was skipped has no numbers to sum."""
        if not update.skipped:
            self.meter.add(update)
            self._recent = self._recent.after(update)

    def show(self, update: Update, place: Progress) -> None:
        """Brings the panel up to date, or writes a line where that is due."""
        if self._panel is not None:
            self._panel.moment = self._moment(update, place)
        elif update.skipped:
            return
        elif is_telling() and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            moment, recent = self._moment(update, place), self._recent
            left = "" if moment.seconds_left is None else f", {duration(moment.seconds_left)} left"
            log.info(
                "training: %.0f %%%s, update %d, loss %.3f, nll %.3f, %s tokens/s, MFU %.1f %%",
                100 * moment.share, left, update.step, recent.loss, recent.nll,
                f"{recent.target_tokens_per_second:,.0f}", 100 * recent.flops_per_second / self._matmul_rate,
            )  # fmt: skip

    def _moment(self, update: Update | None, place: Progress) -> Moment:
        shares = shares_done(self._training, place, self._pairs_per_epoch)
        limit = max(shares, key=lambda name: shares[name])
        share, gained = shares[limit], shares[limit] - self._start[limit]
        spent = place.seconds - self._start_seconds
        return Moment(
            step=place.step,
            epoch=place.epoch,
            learning_rate=update.learning_rate if update is not None else 0.0,
            gradient_norm=update.gradient_norm if update is not None else 0.0,
            recent=self._recent,
            share=share,
            limit=limit,
            seconds=place.seconds,
            seconds_left=(1 - share) * spent / gained if gained > 0 else None,
            at=time.monotonic(),
            skipped=place.skipped_updates + place.overflows,
        )

    def report(self, place: Progress, rate: float, validation: Validation | None, *, is_end: bool = False) -> None:
        """Writes one line of metrics.jsonl over the updates since the last one, and gives it to the trackers.

        Args:
            rate: the learning rate of the last update.
            is_end: mark what the end of training adds, so that `forget_ends` can remove it: the whole line, or the
                validation in a line that was due without it.
        """
        line = self._line(place, rate)
        lines = read_metrics(self._path.parent) if is_end else []
        if is_end:
            is_there = bool(lines) and lines[-1]["step"] == place.step
            line |= {**lines.pop(), "end": "validation"} if is_there else {"end": "line"}
        if validation is not None:
            line |= validation.metrics
            bleu = "" if validation.bleu is None else f", BLEU {validation.bleu:.2f}"
            log.info(
                "update %d, epoch %d, %s: loss %.3f; validation nll %.4f, perplexity %.3f%s",
                place.step, place.epoch, duration(place.seconds), line["loss"] or math.nan, validation.nll,
                validation.perplexity, bleu,
            )  # fmt: skip
            self._scores = self._scores.after(line)
            if self._panel is not None:
                self._panel.scores = self._scores
        if self._workers.is_main and is_end:
            write_json_lines(self._path, [*lines, line])
        elif self._workers.is_main:
            append_json_line(self._path, line)
        for tracker in self._trackers:
            tracker.log(line)

    def _line(self, place: Progress, learning_rate: float) -> dict[str, Any]:
        """One line of metrics.jsonl without a validation, and begins to sum anew."""
        meter, self.meter = self.meter, Meter()
        rate = _mean(meter.flops, meter.seconds)
        line: dict[str, Any] = {
            "step": place.step,
            "epoch": place.epoch,
            "loss": _mean(meter.loss, meter.target_tokens),
            "nll": _mean(meter.nll, meter.target_tokens),
            "learning_rate": learning_rate,
            "gradient_norm": _mean(meter.gradient_norm, meter.updates),
            "target_tokens": place.target_tokens,
            "target_tokens_per_second": _mean(meter.target_tokens, meter.seconds),
            "seconds": place.seconds,
            "padding": _mean(meter.padded_tokens - meter.real_tokens, meter.padded_tokens),
            **{key: getattr(place, key) for key in FLOPS},
            "flops_per_second": rate,
            "mfu": None if rate is None else rate / self._matmul_rate,
            "memory_bytes": memory_bytes(self._workers.device),
            "skipped_updates": place.skipped_updates,
        }
        if place.gpu_seconds:
            line["gpu_joules"] = place.gpu_joules
        if place.host_seconds:
            line["host_joules"] = place.host_joules
        if self._workers.precision == "fp16":
            line |= {"loss_scale": place.loss_scale, "overflows": place.overflows}
        return line

    def summarize(self, place: Progress) -> None:
        """Tells in a few lines what the whole training came to."""
        seconds = max(place.seconds, 1e-9)
        rate = place.flops / seconds
        log.info(
            "%s, %s, %s: %s target tokens, %s tokens/s, %.3g FLOPs, %sFLOP/s, MFU %.1f %% "
            "(validation and saving included)",
            counted(place.step, "update"), counted(place.epoch, "whole epoch"), duration(place.seconds),
            f"{place.target_tokens:,}", f"{place.target_tokens / seconds:,.0f}", place.flops, amount(rate),
            100 * rate / self._matmul_rate,
        )  # fmt: skip
        scores = self._scores
        if scores.best_nll is not None:
            nll, step = scores.best_nll
            bleu = "" if scores.best_bleu is None else "; BLEU {:.2f} (update {})".format(*scores.best_bleu)
            log.info("best validation: nll %.4f, perplexity %s (update %d)%s", nll, perplexity(nll), step, bleu)
        kept = Run(self._run_dir).checkpoints()
        if kept:
            log.info("%s in %s; the last is %s", counted(len(kept), "checkpoint"), kept[-1].parent, kept[-1].name)


def _mean(total: float | int, count: float | int) -> float | None:
    """None of nothing, as when every update was skipped."""
    return total / count if count else None
