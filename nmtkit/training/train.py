"""`train`: drives the loop of updates; reports, validates, saves and stops."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nmtkit.config import Recipe, differences, stored_recipe, to_toml
from nmtkit.console import log
from nmtkit.data.preparation import changed_text, load_tokenizer
from nmtkit.data.shards import PairData
from nmtkit.errors import DataError, NmtkitError
from nmtkit.evaluation.cost import matmul_flops_per_second
from nmtkit.files import read_json, remove_folder, remove_leftovers, write_atomically
from nmtkit.model.flops import count_parameters
from nmtkit.model_folder import best_checkpoints, checkpoints, save_model
from nmtkit.training.limits import is_due, reason_to_stop
from nmtkit.training.loop import Update, train_updates
from nmtkit.training.meters import Meter
from nmtkit.training.reporting import Reporter
from nmtkit.training.resume import forget_later_checkpoints, resume
from nmtkit.training.state import Progress, TrainingState
from nmtkit.training.validation import Validation, Validator
from nmtkit.workers import Workers


@dataclass(frozen=True)
class TrainingResult:
    """How a session of training ended.

    Attributes:
        step: updates made in all.
        reason: why it ended.
        signal: the number of the signal that stopped it; None when the recipe ended it.
    """

    step: int
    reason: str
    signal: int | None = None


def train(recipe: Recipe, run_dir: Path, workers: Workers) -> TrainingResult:
    """Trains a prepared run from where it is to one of the recipe's limits.

    Raises:
        NmtkitError: it was not prepared, or it began with other settings.
    """
    manifest = _check_data(recipe, run_dir)
    if workers.is_main:
        for folder in (run_dir, run_dir / "checkpoints", run_dir / "resume"):
            for leftover in remove_leftovers(folder):
                log.info("removed %s, left half-written by an earlier run", leftover)
    workers.wait()
    session = _Session(recipe, run_dir, workers, manifest)
    return session.run()


def _check_data(recipe: Recipe, run_dir: Path) -> dict[str, Any]:
    if not (run_dir / "data" / "manifest.json").is_file():
        raise DataError(f"{run_dir / 'data'}: no prepared data here; run `nmtkit prepare` with this recipe first")
    manifest: dict[str, Any] = read_json(run_dir / "data" / "manifest.json")
    stored = stored_recipe(run_dir / "recipe.toml", recipe.name)
    changes = [f"data.{change}" for change in differences(stored.data, recipe.data)]
    changes += [f"cleaning.{change}" for change in differences(stored.cleaning, recipe.cleaning)]
    if not changes:
        changes = changed_text(stored.data, recipe.data, manifest)
    if changes:
        raise NmtkitError(
            f"{run_dir} was prepared with another recipe; changed: {', '.join(changes)}. Run prepare again"
        )
    return manifest


class _Session:
    """One session of training: from the last save, or from the beginning, to a limit or a signal."""

    def __init__(self, recipe: Recipe, run_dir: Path, workers: Workers, manifest: dict[str, Any]) -> None:
        self._recipe, self._training = recipe, recipe.training
        self._run_dir, self._workers, self._manifest = run_dir, workers, manifest
        self._tokenizer = load_tokenizer(run_dir)
        vocab_sizes = (self._tokenizer.vocab_size("source"), self._tokenizer.vocab_size("target"))
        self._data = PairData(run_dir / "data" / "train")
        self._state = TrainingState.new(recipe.model, recipe.training, vocab_sizes, workers.device)
        self._num_parameters = count_parameters(recipe.model, *vocab_sizes)
        self._matmul_rate = matmul_flops_per_second(workers.device, workers.precision)
        saved = resume(self._state, run_dir, recipe, manifest["fingerprint"], workers)
        if workers.is_main:
            forget_later_checkpoints(run_dir, self._progress.step)
        meter = Meter(**saved["meter"]) if saved is not None else Meter()
        self._reporter = Reporter(run_dir, recipe.training, workers, meter)
        has_valid = (run_dir / "data" / "valid").is_dir()
        self._validator = Validator(recipe, run_dir, self._tokenizer, workers) if has_valid else None
        self._signal: int | None = None
        self._has_validated = self._has_saved = False
        self._begun = time.monotonic()
        self._seconds_before = self._progress.seconds

    @property
    def _progress(self) -> Progress:
        return self._state.progress

    def run(self) -> TrainingResult:
        """Trains until a limit or a signal."""
        reason = reason_to_stop(self._progress, self._training)
        if reason is not None:
            log.info("nothing to do: training ended at update %d already (%s)", self._progress.step, reason)
            if self._workers.is_main and not checkpoints(self._run_dir):
                self._save_checkpoint(None)  # it was stopped by a signal in its last update
            return TrainingResult(self._progress.step, reason)
        self._announce()
        if self._workers.is_main:
            with write_atomically(self._run_dir / "recipe.toml") as file:
                file.write(to_toml(self._recipe))
        with self._catching_signals(), self._reporter.showing(self._progress):
            for update in train_updates(self._state, self._data, self._training, self._workers, self._flags):
                reason = self._after(update)
                if reason is not None:
                    break
        assert reason is not None
        self._workers.wait()
        return TrainingResult(self._progress.step, reason, self._signal)

    def _announce(self) -> None:
        where = (
            f"going on at update {self._progress.step + 1}" if self._progress.step else "training from the beginning"
        )
        log.info(
            "%s: %s parameters, %s pairs, up to %s target tokens an update on %d x %s (%s), passes of %s tokens",
            where, f"{self._num_parameters:,}", f"{len(self._data):,}", f"{self._training.tokens_per_update:,}",
            self._workers.num_processes, self._workers.device, self._workers.precision,
            f"{self._training.tokens_per_pass or self._workers.tokens_per_pass:,}",
        )  # fmt: skip

    def _flags(self) -> list[float]:
        """Whether this process was asked to stop, by which signal, and the time of rank 0, which holds for all."""
        elapsed = self._seconds_before + time.monotonic() - self._begun if self._workers.is_main else 0.0
        return [float(self._signal is not None), float(self._signal or 0), elapsed]

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask for a stop after the update in progress; a second one stops at once."""

        def ask(number: int, _frame: object) -> None:
            signal.signal(number, previous[number])
            self._signal = number

        previous: dict[int, Any] = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _after(self, update: Update) -> str | None:
        """Reports, validates and saves as is due after an update; says why training ends here, if it does."""
        training, place = self._training, self._progress
        if not math.isfinite(update.loss):
            raise NmtkitError(
                f"update {update.step}: the loss is not finite, the training has diverged; lower "
                f"training.peak_learning_rate in another --run-dir. The last save is in {self._run_dir / 'resume'}"
            )
        asked, number, now = update.flags
        place.device_seconds += (now - place.seconds) * self._workers.num_processes
        place.seconds = now
        # By the clock of the update that follows, so that the time they take does not count.
        if self._has_validated:
            place.last_validation_seconds = now
        if self._has_saved:
            place.last_checkpoint_seconds = now
        self._has_validated = self._has_saved = False
        if asked and self._signal is None:
            self._signal = round(number / asked)
        self._reporter.add(update)

        validation = None
        if self._validator is not None and is_due("validate", training, update, place):
            validation = self._validate(self._validator)
        checkpoint_is_due = is_due("checkpoint", training, update, place)
        reason = reason_to_stop(place, training)
        if reason is None and asked:
            reason = f"stopped by {signal.Signals(self._signal or signal.SIGTERM).name}"
        is_last = reason is not None
        report_is_due = update.step % training.report_every_steps == 0 or (is_last and not asked)
        if validation is not None or report_is_due:
            self._reporter.report(update, place, validation)
        self._reporter.show(update, place)
        self._has_validated, self._has_saved = validation is not None, checkpoint_is_due
        if self._workers.is_main:
            ends_without_any = is_last and not asked and not checkpoints(self._run_dir)
            if checkpoint_is_due or ends_without_any:
                self._save_checkpoint(validation)
            if checkpoint_is_due or is_last:
                # The meter too, so that the reports of an interrupted run are those of an uninterrupted one.
                self._state.save(self._run_dir, {**self._facts(), "meter": asdict(self._reporter.meter)})
        return reason

    def _validate(self, validator: Validator) -> Validation:
        place = self._progress
        validation = validator(self._state.model)
        cost = validation.cost(self._training.best_metric)
        epoch = place.epoch
        if place.best_cost is None or cost < place.best_cost:
            place.best_cost, place.best_epoch = cost, epoch
            place.validations_since_best = 0
        else:
            place.validations_since_best += 1
        return validation

    def _facts(self) -> dict[str, Any]:
        """What checkpoints and saves say of where they come from."""
        place, workers = self._progress, self._workers
        name = torch.cuda.get_device_name(workers.device) if workers.device.type == "cuda" else workers.device.type
        return {
            "run": self._recipe.name,
            "step": place.step,
            "epoch": place.epoch,
            "target_tokens": place.target_tokens,
            "flops": place.flops,
            "seconds": place.seconds,
            "device_seconds": place.device_seconds,
            "processes": workers.num_processes,
            "device": name,
            "precision": workers.precision,
            "matmul_flops_per_second": self._matmul_rate,
            "data_fingerprint": self._manifest["fingerprint"],
            "recipe": self._recipe.model_dump(mode="json"),
        }

    def _save_checkpoint(self, validation: Validation | None) -> None:
        folder = self._run_dir / "checkpoints" / f"step-{self._progress.step:08d}"
        provenance = {
            "kind": "checkpoint",
            **self._facts(),
            "best_metric": self._training.best_metric,
            "valid_nll": validation.nll if validation is not None else None,
            "valid_bleu": validation.bleu if validation is not None else None,
        }
        weights = self._state.model.state_dict()
        save_model(folder, weights, self._recipe.model, self._tokenizer, self._recipe.decoding, provenance)
        kept = set(checkpoints(self._run_dir)[-self._training.keep_last :])
        kept.update(best_checkpoints(self._run_dir, self._training.keep_best))
        for old in set(checkpoints(self._run_dir)) - kept:
            remove_folder(old)
