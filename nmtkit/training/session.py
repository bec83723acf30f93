"""`train`: drives the loop of updates; reports, validates, saves and stops."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from nmtkit.config.recipe import differences
from nmtkit.config.schema import Recipe
from nmtkit.console import counted, duration, log
from nmtkit.data.prepare import changed_text, damaged_files
from nmtkit.data.shards import read_manifest
from nmtkit.distributed.interpreter import STOP_SIGNALS
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, NmtkitError
from nmtkit.evaluation.cost import matmul_flops_per_second, read_metrics
from nmtkit.evaluation.devices import processor_name
from nmtkit.files import (
    check_space,
    free_bytes,
    remove_folder,
    remove_leftovers,
    write_json,
)
from nmtkit.model.flops import count_parameters
from nmtkit.model_folder import damage, save_model
from nmtkit.run import Run
from nmtkit.training.energy import Energy, EnergyMeter
from nmtkit.training.epochs import NotDrawnError, training_pairs
from nmtkit.training.initialization import initial_sha256, lengths_seen, start_from_model
from nmtkit.training.limits import is_due, reason_to_stop
from nmtkit.training.loop import Update, train_updates
from nmtkit.training.micro_batches import first_update_rate, settle_tokens_per_pass
from nmtkit.training.nonfinite import go_back, has_failed, note_nonfinite
from nmtkit.training.precision import settle_precision
from nmtkit.training.prediction import Hardware, PairLengths, predict
from nmtkit.training.reporting import Reporter
from nmtkit.training.resume import check_same_place, end_checkpoints, forget_after_going_back, forget_ends, resume
from nmtkit.training.schedule import learning_rate
from nmtkit.training.state import FLOPS, Progress, TrainingState, execution_facts
from nmtkit.training.stop_request import StopRequest
from nmtkit.training.totals import Meter, memory_bytes
from nmtkit.training.tracking import Tracker
from nmtkit.training.validation import Validation, Validator


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


def train(recipe: Recipe, run_dir: Path, workers: Workers, trackers: Sequence[str] = ()) -> TrainingResult:
    """Trains a prepared run from where it is to one of the recipe's limits.

    Args:
        trackers: tensorboard, wandb: what is given every line of metrics.jsonl besides.

    Raises:
        NmtkitError: it was not prepared, it began with other settings, or another process is at it.
    """
    if workers.is_main:
        leftovers = remove_leftovers(run_dir)
    with holding_run(recipe, run_dir, workers) as manifest:
        if workers.is_main:
            for folder in (Run(run_dir).checkpoints_folder, Run(run_dir).resume_folder, Run(run_dir).sampled):
                leftovers += remove_leftovers(folder, is_ours=True)
            for leftover in leftovers:
                log.info("removed %s, which an interrupted run left incomplete", leftover)
        workers.wait()
        session = _Session(recipe, run_dir, workers, manifest, trackers)
        return session.run()


@contextmanager
def holding_run(recipe: Recipe, run_dir: Path, workers: Workers) -> Iterator[dict[str, Any]]:
    """Holds the run's lock while the block runs, after a check of its data; gives the manifest of the data.

    Raises:
        NmtkitError: on every process, when the data are not those of the recipe or another process is at the run.
    """
    with ExitStack() as stack:
        fault: NmtkitError | None = None
        if workers.is_main:
            try:
                if not (Run(run_dir).manifest).is_file():
                    raise DataError(
                        f"{run_dir / 'data'}: no data is prepared here; run `nmtkit prepare` with this recipe first"
                    )
                stack.enter_context(Run(run_dir).locked("train"))
                _check_data(recipe, run_dir)
            except NmtkitError as error:
                fault = error
        workers.raise_together(fault)
        yield read_manifest(Run(run_dir).data)


def _check_data(recipe: Recipe, run_dir: Path) -> None:
    """Raises NmtkitError unless RUN/data is whole and was prepared with this recipe from the same text."""
    manifest = read_manifest(Run(run_dir).data)
    stored = Run(run_dir).recipe(recipe.name)
    changes = [f"data.{change}" for change in differences(stored.data, recipe.data)]
    changes += [f"cleaning.{change}" for change in differences(stored.cleaning, recipe.cleaning)]
    if not changes:
        changes = changed_text(recipe.data, manifest)
    if changes:
        advice = (
            "undo the change, or take another --run-dir" if Run(run_dir).is_trained() else "run `nmtkit prepare` again"
        )
        raise NmtkitError(f"{run_dir} was prepared with a different recipe (changed: {', '.join(changes)}); {advice}")
    damaged = damaged_files(run_dir, manifest)
    if damaged:
        raise DataError(
            f"{run_dir / 'data'}: files changed or missing since `prepare` wrote them: {', '.join(damaged)}; put them "
            "back, or prepare the data in another --run-dir"
        )


class _Session:
    """One session of training: from the last save, or from the beginning, to a limit or a signal."""

    def __init__(
        self, recipe: Recipe, run_dir: Path, workers: Workers, manifest: dict[str, Any], trackers: Sequence[str]
    ) -> None:
        self._recipe, self._training = recipe, recipe.training
        self._run_dir, self._workers, self._manifest = run_dir, workers, manifest
        self._tokenizer = Run(run_dir).tokenizer()
        self._vocab_sizes = (self._tokenizer.vocab_size("source"), self._tokenizer.vocab_size("target"))
        self._stop = StopRequest()
        self._data = training_pairs(recipe, run_dir, manifest, workers, lambda: self._stop.number is not None)
        self._state = TrainingState.new(recipe.model, recipe.training, self._vocab_sizes, workers.device)
        self._num_parameters = count_parameters(recipe.model, *self._vocab_sizes)
        saved = resume(self._state, run_dir, recipe, manifest["fingerprint"], workers)
        recipe, workers = settle_precision(recipe, self._state, saved, workers)
        self._recipe, self._training, self._workers = recipe, recipe.training, workers
        self._processor = processor_name() if workers.device.type == "cpu" else None
        self._matmul_rate = matmul_flops_per_second(workers.device, workers.precision)
        if saved is None:
            start_from_model(self._state, recipe, self._tokenizer)
        self._init_sha256 = saved.get("init_sha256") if saved is not None else initial_sha256(recipe)
        self._lengths = lengths_seen(recipe, manifest)
        check_same_place(self._progress.step, saved, self._init_sha256, workers)
        meter = Meter(**saved["meter"]) if saved is not None else Meter()
        unfinished = saved.get("unfinished") if saved is not None else None
        self._unfinished = Update(**unfinished) if unfinished else None
        pairs = self._data.pairs_per_epoch
        self._reporter = Reporter(run_dir, recipe.training, workers, meter, self._matmul_rate, pairs)
        self._tracker_names = trackers
        has_valid = (Run(run_dir).data / "valid").is_dir()
        self._validator = Validator(recipe, run_dir, self._tokenizer, workers) if has_valid else None
        self._has_validated, self._has_saved = _done_at(saved)
        self._seconds_before = self._progress.seconds
        place = self._progress
        self._energy_before = Energy(place.gpu_joules, place.gpu_seconds, place.host_joules, place.host_seconds)

    def _start_clocks(self) -> None:
        """From here on time and energy count."""
        self._begun = time.monotonic()
        self._energy = EnergyMeter(self._workers.device)

    @property
    def _progress(self) -> Progress:
        return self._state.progress

    def _open_trackers(self) -> list[Tracker]:
        names, first = self._tracker_names if self._workers.is_main else (), self._progress.step + 1
        return [Tracker.open(name, self._recipe, self._run_dir, first) for name in names]

    def run(self) -> TrainingResult:
        """Trains until a limit or a signal."""
        limit = reason_to_stop(self._progress, self._training) if self._unfinished is None else None
        if limit is not None and all(self._end_so_far()[:2]):
            log.info("nothing to do: training already ended at update %d (%s)", self._progress.step, limit)
            if self._workers.is_main:
                stored = Run(self._run_dir).recipe(self._recipe.name)
                Run(self._run_dir).store_recipe(stored.model_copy(update={"decoding": self._recipe.decoding}))
            return TrainingResult(self._progress.step, limit)
        if limit is None:
            self._announce()
            self._check_space(None)
        with closing(self._data):
            reason = self._train(limit)
            self._workers.wait()
            if self._stop.number is None:
                self._data.close(is_finished=True)
        log.info("training ended at update %d: %s", self._progress.step, reason)
        self._reporter.summarize(self._progress)
        return TrainingResult(self._progress.step, reason, self._stop.number)

    def _train(self, limit: str | None) -> str:
        """Makes updates until a limit or a signal, and returns which.

        Args:
            limit: the one that was reached before this session: no update is made, only what its end lacks.
        """
        if limit is None:
            self._try_passes()
        if self._workers.is_main:
            Run(self._run_dir).store_recipe(self._recipe)
        self._start_clocks()  # what was tried is no part of the training
        with self._stop.listening(), self._reporter.showing(self._progress, self._open_trackers()):
            if limit is not None:
                return self._end(limit)
            reason = self._finish(self._unfinished, asked=False) if self._unfinished is not None else None
            return reason or self._make_updates()

    def _try_passes(self) -> None:
        """Settles how much the device takes at once, and before the first update predicts what training takes."""
        log.info("testing whether the largest micro-batches fit into memory, before update %d", self._progress.step + 1)
        settle_tokens_per_pass(self._state, self._data, self._training, self._workers)
        if not self._progress.step:
            workers, reached = self._workers, None  # not measured on a GPU, nor of code that is still to be compiled
            if workers.device.type == "cpu" and not self._training.compile:
                reached = first_update_rate(self._state, self._data, self._training, workers)
            if workers.is_main:
                self._predict(reached)

    def _make_updates(self) -> str:
        """Makes updates until a limit or a signal, and says which."""
        try:
            for update in train_updates(self._state, self._data, self._training, self._workers, self._flags):
                reason = self._after(update)
                if reason is not None:
                    return reason
        except NotDrawnError:
            # Between two epochs: what was done so far is whole.
            if self._workers.is_main and free_bytes(self._run_dir) >= self._state.num_bytes():
                self._save(is_regular=self._has_saved)
            if not self._hear_all():
                raise
            return f"stopped by {self._stop.name}"
        raise AssertionError("updates have no end")

    def _predict(self, reached: float | None) -> None:
        """Writes down what the training is expected to take, before its first update.

        Args:
            reached: FLOP/s of one device in passes, where that was measured.
        """
        workers = self._workers
        hardware = Hardware.here(
            workers.device, workers.precision, workers.num_processes, rate=self._matmul_rate, reached=reached,
        )  # fmt: skip
        data = self._data.of_epoch(0)  # which is there: passes were tried on it
        origin = "the first epoch's subwords" if self._training.subword_sampling else "the prepared data"
        lengths = PairLengths.of_data(data.folder, origin)
        per_pass, tried_bytes = self._progress.tokens_per_pass, memory_bytes(workers.device)
        expected = predict(self._recipe, lengths, self._vocab_sizes, hardware, per_pass, tried_bytes)
        write_json(Run(self._run_dir).prediction, expected)
        log.info(
            "expected: %.2g FLOPs in %s (%s); %s at %.0f %% of the device's rate, %s",
            expected["flops"], counted(expected["updates"], "update"), expected["limit"], duration(expected["seconds"]),
            100 * expected["mfu"], "an assumed share" if reached is None else "a share measured in a short trial",
        )  # fmt: skip

    def _announce(self) -> None:
        init = self._training.init
        where = f"starting from the weights of {init}" if init is not None else "starting from random weights"
        if self._progress.step:
            where = f"resuming training at update {self._progress.step + 1}"
        log.info(
            "%s: %s parameters, %s, %d x %s (%s)",
            where, f"{self._num_parameters:,}", counted(len(self._data), "pair"), self._workers.num_processes,
            self._workers.device, ", ".join(filter(None, (self._workers.precision, self._processor))),
        )  # fmt: skip

    def _flags(self) -> list[float]:
        """Whether this process was asked to stop, by which signal; the time of rank 0, which holds for all; and the
        energy this process has measured in this session."""
        elapsed = self._seconds_before + time.monotonic() - self._begun if self._workers.is_main else 0.0
        asked = [float(self._stop.number is not None), float(self._stop.number or 0)]
        return [*asked, elapsed, *astuple(self._energy.read())]

    def _after(self, update: Update) -> str | None:
        """Takes account of an update and does what is due after it; says why training ends here, if it does."""
        place = self._progress
        if update.skipped == "nonfinite" and self._workers.is_main:
            norm = update.gradient_norm
            note_nonfinite(self._run_dir, place, loss=update.loss, gradient_norm=norm, lines=update.lines)
        if has_failed(place):
            self._go_back()
            return None
        now = update.flags[2]
        place.device_seconds += (now - place.seconds) * self._workers.num_processes
        place.seconds = now
        energy = self._energy_before + Energy(*update.flags[3:])
        place.gpu_joules, place.gpu_seconds = energy.gpu_joules, energy.gpu_seconds
        place.host_joules, place.host_seconds = energy.host_joules, energy.host_seconds
        # By the clock of the update that follows, so that the time they take does not count.
        if self._has_validated:
            place.last_validation_seconds = now
        if self._has_saved:
            place.last_checkpoint_seconds = now
        self._has_validated = self._has_saved = False
        self._reporter.add(update)
        return self._finish(update, asked=self._hear(update.flags))

    def _hear(self, flags: list[float]) -> bool:
        """Whether any process was asked to stop, by the sums of all processes' flags; from then on all know it."""
        asked, number = flags[:2]
        if asked and self._stop.number is None:
            # All stop by the same one: SIGTERM where processes were sent different ones.
            self._stop.number = int(number / asked) if number / asked in STOP_SIGNALS else signal.SIGTERM
        return bool(asked)

    def _hear_all(self) -> bool:
        """Whether any process was asked to stop by now; all ask together."""
        return self._hear(self._workers.sum(torch.tensor(self._flags(), dtype=torch.float64)).tolist())

    def _finish(self, update: Update, *, asked: bool) -> str | None:
        """Validates, reports and saves as is due after an update; returns why training ends here, if it does.

        A validation that a stop leaves undone is made first on resume (`unfinished`), and so is the end (`_end`).
        """
        training, place = self._training, self._progress
        checkpoint_is_due = is_due("checkpoint", training, update, place)
        if checkpoint_is_due:
            self._check_space(update)
        validation = None
        if self._validator is not None and is_due("validate", training, update, place):
            validation = self._validate(self._validator)
            if validation is None:
                return self._put_off(update)
            self._state.note_validation(validation.cost(training.best_metric))
        limit = reason_to_stop(place, training)
        if validation is not None or update.step % training.report_every_steps == 0:
            self._reporter.report(place, update.learning_rate, validation)
        self._reporter.show(update, place)
        self._has_validated, self._has_saved = validation is not None, checkpoint_is_due
        if self._workers.is_main and (checkpoint_is_due or asked or limit is not None):
            if checkpoint_is_due:
                self._save_checkpoint(validation)
                self._remove_old_checkpoints()
            self._save(is_regular=checkpoint_is_due)
            forget_ends(self._run_dir, place.step)  # now there is more than what they had
            self._reporter.read_scores()
        if asked:
            return f"stopped by {self._stop.name}"
        return None if limit is None else self._end(limit)

    def _end_so_far(self) -> tuple[bool, bool, Validation | None]:
        """The report of the last update, with its validation where there is validation data; its whole checkpoint (both
        whether they are there); and that validation."""
        step = self._progress.step
        lines = [line for line in read_metrics(self._run_dir) if line["step"] == step]
        validation = Validation.of_line(lines[-1]) if lines else None
        has_report = bool(lines) and (validation is not None or self._validator is None)
        has_checkpoint = damage(Run(self._run_dir).checkpoint(step)) is None
        return self._workers.gather([(has_report, has_checkpoint, validation)])[0]  # as rank 0 sees it, which writes

    def _end(self, limit: str) -> str:
        """Validates the last update and writes its checkpoint, where neither was due; returns why training ends here.

        The save comes before and knows nothing of it, so that a raised limit can go on as if there had been no end.
        """
        has_report, has_checkpoint, validation = self._end_so_far()
        if not has_checkpoint:
            self._check_space(None, with_save=False)
        if not has_report:
            if self._validator is not None and validation is None:
                validation = self._validate(self._validator)
                if validation is None:
                    return f"stopped by {self._stop.name}"
            rate = learning_rate(self._progress.step, self._training, self._recipe.model.d_model)
            self._reporter.report(self._progress, rate, validation, is_end=True)
        if not has_checkpoint and self._workers.is_main:
            self._save_checkpoint(validation, is_end=not self._has_saved)  # beside those that a longer training keeps
        return limit

    def _go_back(self) -> None:
        """Back to the last good save; what was written since is forgotten, but for RUN/nonfinite.jsonl."""
        fault: NmtkitError | None = None
        saved: dict[str, Any] = {}
        try:
            saved = go_back(self._state, self._run_dir)
        except NmtkitError as error:
            fault = error
        self._workers.raise_together(fault)
        check_same_place(self._progress.step, saved, None, self._workers)
        if self._workers.is_main:
            forget_after_going_back(self._run_dir, self._progress)
        self._reporter.went_back(Meter(**saved["meter"]))
        self._has_validated, self._has_saved = _done_at(saved)

    def _put_off(self, update: Update) -> str:
        """Saves right after an update, with what is due after it still to be done, and says why training ends here."""
        if self._workers.is_main:
            self._save(unfinished=update)
        return f"stopped by {self._stop.name}"

    def _save(self, unfinished: Update | None = None, *, is_regular: bool = False) -> None:
        # The meter too, so that the reports of an interrupted run are those of an uninterrupted one.
        extra: dict[str, Any] = {
            "meter": asdict(self._reporter.meter),
            "unfinished": asdict(unfinished) if unfinished else None,
        }
        extra["regular"] = is_regular  # made by the recipe's rhythm, not by a stop
        extra["validated"], extra["checkpointed"] = self._has_validated, self._has_saved
        self._state.save(self._run_dir, {**self._facts(), **extra})

    def _check_space(self, update: Update | None, *, with_save: bool = True) -> None:
        """Raises NmtkitError on every process when a checkpoint and a save do not fit on the disk any more.

        Args:
            update: the one after which they are due; it is saved if at least that fits.
        """
        fault: NmtkitError | None = None
        if self._workers.is_main:
            save = self._state.num_bytes()
            tokenizer = sum(path.stat().st_size for path in (Run(self._run_dir).data / "tokenizer").iterdir())
            checkpoint = sum(parameter.nbytes for parameter in self._state.parameters) + tokenizer + 100_000
            try:
                check_space(self._run_dir, with_save * save + checkpoint, "saving")
            except NmtkitError as error:
                fault = error
                if update is not None and free_bytes(self._run_dir) >= save:
                    self._save(unfinished=update)
        self._workers.raise_together(fault)

    def _validate(self, validator: Validator) -> Validation | None:
        """None when a process was asked to stop meanwhile."""
        with self._reporter.doing("validating"), self._state.averaged() as model:
            validation = validator(model, lambda: self._stop.number is not None)
        if validation is None:
            self._hear_all()
        return validation

    def _facts(self) -> dict[str, Any]:
        """What checkpoints and saves say of where they come from."""
        spent = ("seconds", "device_seconds", "gpu_joules", "gpu_seconds", "host_joules", "host_seconds")
        return {
            "run": self._recipe.name,
            **{key: getattr(self._progress, key) for key in ("step", "epoch", "target_tokens", *FLOPS, *spent)},
            **execution_facts(self._workers),
            "processor": self._processor,
            "matmul_flops_per_second": self._matmul_rate,
            "data_fingerprint": self._manifest["fingerprint"],
            "init_sha256": self._init_sha256,
            "recipe": self._recipe.model_dump(mode="json"),
        }

    def _save_checkpoint(self, validation: Validation | None, *, is_end: bool = False) -> None:
        folder = Run(self._run_dir).checkpoint(self._progress.step)
        provenance = {
            "kind": "checkpoint",
            **self._facts(),
            "best_metric": self._training.best_metric,
            "valid_nll": validation.metrics["valid_nll"] if validation is not None else None,
            "valid_bleu": validation.bleu if validation is not None else None,
            "end": is_end,
        }
        recipe = self._recipe
        save_model(
            folder, self._state.result, recipe.model, self._tokenizer, recipe.decoding, provenance, self._lengths
        )

    def _remove_old_checkpoints(self) -> None:
        """Keeps the last and the best; those of an end that was passed are not counted, and go after the save."""
        ends, count = end_checkpoints(self._run_dir), self._training.keep_best
        found = [folder for folder in Run(self._run_dir).checkpoints() if folder not in ends]
        best = Run(self._run_dir).best_checkpoints(count + len(ends), check=False)
        best = [folder for folder in best if folder not in ends]
        for old in set(found) - {*found[-self._training.keep_last :], *best[:count]}:
            remove_folder(old)


def _done_at(saved: dict[str, Any] | None) -> tuple[bool, bool]:
    """Whether a validation and a checkpoint were made at a save: their clocks start with the update that follows."""
    return (bool(saved.get("validated")), bool(saved.get("checkpointed"))) if saved is not None else (False, False)
