"""What a run tells while it goes: the progress display, log lines, and RUN/metrics.jsonl."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmtkit.config import TrainingConfig
from nmtkit.console import Advance, duration, log, progress
from nmtkit.files import append_json_line
from nmtkit.training.limits import share_done
from nmtkit.training.loop import Update
from nmtkit.training.meters import Meter, memory_bytes
from nmtkit.training.state import Progress
from nmtkit.training.validation import Validation
from nmtkit.workers import Workers


class Reporter:
    """Reports of one session of training.

    Attributes:
        meter: sums since the last report; saved with the run, so that an interrupted one reports as an uninterrupted.
    """

    def __init__(self, run_dir: Path, training: TrainingConfig, workers: Workers, meter: Meter) -> None:
        self._path = run_dir / "metrics.jsonl"
        self._training, self._workers = training, workers
        self.meter = meter
        self._advance: Advance = lambda done, note="": None

    @contextmanager
    def showing(self, place: Progress) -> Iterator[None]:
        """Shows progress while the block runs."""
        with progress("training", 1.0, start=share_done(self._training, place)) as self._advance:
            yield

    def add(self, update: Update) -> None:
        """Takes account of one update."""
        self.meter.add(
            loss=update.loss, nll=update.nll, gradient_norm=update.gradient_norm, target_tokens=update.target_tokens,
            real_tokens=update.real_tokens, padded_tokens=update.padded_tokens, seconds=update.seconds,
        )  # fmt: skip

    def show(self, update: Update, place: Progress) -> None:
        """Brings the progress display up to date."""
        rate = f"{update.target_tokens / update.seconds:,.0f} tokens/s"
        loss = update.loss / update.target_tokens
        self._advance(share_done(self._training, place), note=f"update {update.step}, loss {loss:.3f}, {rate}")

    def report(self, update: Update, place: Progress, validation: Validation | None) -> None:
        """Writes one line of metrics.jsonl over the updates since the last one."""
        meter, self.meter = self.meter, Meter()
        line: dict[str, Any] = {
            "step": update.step,
            "epoch": place.epoch,
            "loss": meter.loss / meter.target_tokens,
            "nll": meter.nll / meter.target_tokens,
            "learning_rate": update.learning_rate,
            "gradient_norm": meter.gradient_norm / meter.updates,
            "target_tokens": place.target_tokens,
            "target_tokens_per_second": meter.target_tokens / meter.seconds,
            "seconds": place.seconds,
            "padding": 1 - meter.real_tokens / meter.padded_tokens,
            "flops": place.flops,
            "memory_bytes": memory_bytes(self._workers.device),
        }
        if validation is not None:
            line |= {"valid_nll": validation.nll, "valid_perplexity": validation.perplexity}
            line |= {"valid_bleu": validation.bleu, "samples": validation.samples}
            bleu = "" if validation.bleu is None else f", BLEU {validation.bleu:.2f}"
            log.info(
                "update %d, epoch %d, %s: loss %.3f; valid nll %.4f, perplexity %.3f%s",
                update.step, place.epoch, duration(place.seconds), line["loss"], validation.nll,
                validation.perplexity, bleu,
            )  # fmt: skip
        if self._workers.is_main:
            append_json_line(self._path, line)
