"""`train`: drives the loop of updates; validates, reports, saves and stops.

_Session.run            begin or resume, settle micro-batches, predict
  _make_updates         one update after the other (loop.py)
    _after              counters, clocks, rolling back
      _finish           validation, report, checkpoint and resume state, where they are due
  _end                  validation and checkpoint of the last update, where they were not due
"""

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nmtkit.config.schema import Recipe, TrainingConfig
from nmtkit.console import counted, duration, log
from nmtkit.data.shards import sha256_of_ids
from nmtkit.distributed.interpreter import SECONDS_OF_ONE_REQUEST, STOP_SIGNALS, stop_signals
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError
from nmtkit.evaluation.cost import matmul_flops_per_second, read_metrics
from nmtkit.evaluation.devices import processor_name
from nmtkit.files import check_space, existing, free_bytes, remove_leftovers
from nmtkit.json_toml import write_json
from nmtkit.model_folder import damage, save_model, step_of
from nmtkit.run import Run
from nmtkit.training.energy import ENERGY, EnergyMeter
from nmtkit.training.epochs import NotSampledError, training_pairs
from nmtkit.training.loop import Meter, Update, train_updates
from nmtkit.training.micro_batches import first_update_rate, settle_tokens_per_pass
from nmtkit.training.nonfinite import has_failed, record_nonfinite, roll_back
from nmtkit.training.optimizer import learning_rate
from nmtkit.training.precision import settle_precision
from nmtkit.training.prediction import Hardware, predict
from nmtkit.training.reporting import Reporter, memory_bytes
from nmtkit.training.resume import (
    add_end_score,
    check_same_state,
    end_checkpoints,
    forget_ends,
    forget_later,
    holding_run,
    initial_sha256,
    lengths_seen,
    remove_old_checkpoints,
    resume,
    search_changes,
    start_from_model,
)
from nmtkit.training.state import Progress, TrainingState, execution_facts
from nmtkit.training.validation import Validation, Validator


@dataclass(frozen=True)
class TrainingResult:
    """The end of a session: the updates made so far, why it ended, and the number of the signal that stopped it."""

    step: int
    reason: str
    signal: int | None = None


def train(recipe: Recipe, run_dir: Path, workers: Workers, trackers: Sequence[str] = ()) -> TrainingResult:
    """Train a prepared run, from where it is to one of the recipe's limits.

    Args:
        trackers: tensorboard, wandb: where each line of metrics.jsonl is logged too.

    Raises:
        NmtkitError: it is not prepared, it began with other settings, or another process is training it.
    """
    run = Run(run_dir)
    # Before the lock, as RUN/data may be among them, which is restored.
    leftovers = remove_leftovers(run_dir) if workers.is_main else []
    with holding_run(recipe, run, workers) as manifest:
        if workers.is_main:
            for folder in (run.checkpoints_folder, run.resume_folder, run.sampled):
                # A link may lead to a folder in which other processes write.
                leftovers += remove_leftovers(folder, is_ours=not folder.is_symlink())
            for leftover in leftovers:
                log.info("removed %s, which an interrupted run left incomplete", leftover)
        workers.wait()
        return _Session(recipe, run, workers, manifest, trackers).run()


class StopRequest:
    """A request to stop this process of the run or another, by the signal ``number``; granted after the update."""

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def reason(self) -> str:
        return f"stopped by {signal.Signals(self.number or signal.SIGTERM).name}"

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Treat a signal as a request while the block runs; a second one to this process has its usual effect."""
        requested_at: float | None = None

        def request(number: int, frame: Any) -> None:
            nonlocal requested_at
            if requested_at is None:
                requested_at = time.monotonic()
                if self.number is None:  # else another process was requested to stop first
                    self.number = number
            elif time.monotonic() - requested_at >= SECONDS_OF_ONE_REQUEST:
                for each, handler in previous.items():
                    signal.signal(each, handler)
                signal.raise_signal(number)

        previous: dict[int, Any] = {number: signal.signal(number, request) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class _Session:
    """One session of training: from the last resume state, or from the beginning, to a limit or a signal."""

    def __init__(
        self, recipe: Recipe, run: Run, workers: Workers, manifest: dict[str, Any], trackers: Sequence[str]
    ) -> None:
        self._run, self._stop = run, StopRequest()
        self._tokenizer = run.tokenizer()
        self._data = training_pairs(recipe, run, manifest, workers, lambda: self._stop.number is not None)
        sizes = (self._tokenizer.vocab_size("source"), self._tokenizer.vocab_size("target"))
        self._state = TrainingState(recipe.model, recipe.training, sizes, workers.device)
        saved = resume(self._state, run, recipe, manifest, workers)
        init_sha256 = saved["init_sha256"] if saved else initial_sha256(recipe)
        # Before the precision is settled, which depends on the state: else exchanges of processes would differ.
        check_same_state(self._state.progress.step, saved, init_sha256, workers)
        recipe, workers = settle_precision(recipe, self._state, saved, workers)
        self._recipe, self._workers, self._state.training = recipe, workers, recipe.training
        matmul_rate = matmul_flops_per_second(workers.device, workers.precision)
        if saved is None:
            with workers.failing_together():
                start_from_model(self._state, recipe, self._tokenizer)
                # Each process has read the model itself, a while after all agreed on its sum.
                if initial_sha256(recipe) != init_sha256:
                    raise NmtkitError(f"{recipe.training.init}: changed while the training started; start it again")
        self._lengths = lengths_seen(recipe, manifest, saved)
        before = saved or {"unfinished": None, "validated": False, "checkpointed": False, "meter": {}}
        self._search_changes = search_changes(saved, recipe) if saved else []
        self._origin = {  # of checkpoints and resume states
            "run": recipe.name,
            **execution_facts(workers),
            "processor": processor_name() if workers.device.type == "cpu" else None,
            "matmul_flops_per_second": matmul_rate,
            "data_fingerprint": manifest["fingerprint"],
            "ids_sha256": sha256_of_ids(manifest),
            "init_sha256": init_sha256,
            "recipe": recipe.model_dump(mode="json"),
        }
        self._unfinished = Update(**before["unfinished"]) if before["unfinished"] else None
        # Whether they were made at the resume state: their clocks start after it.
        self._has_validated, self._has_saved = before["validated"], before["checkpointed"]
        meter, pairs_per_epoch = Meter(**before["meter"]), self._data.pairs_per_epoch
        self._reporter = Reporter(run, recipe, workers, meter, matmul_rate, pairs_per_epoch, trackers)
        has_valid = run.valid_data.is_dir()
        self._validator = Validator(recipe, run, self._tokenizer, workers, self._lengths) if has_valid else None

    def run(self) -> TrainingResult:
        """Train until a limit or a signal."""
        progress, training = self._state.progress, self._recipe.training
        # After an interrupted validation, its score decides whether training ends.
        limit = progress.reason_to_stop(training) if self._unfinished is None else None
        if limit is not None and all(self._end_so_far()[:2]):
            log.info("nothing to do: training already ended at update %d (%s)", progress.step, limit)
            if self._workers.is_main:
                stored = self._run.recipe(self._recipe.name)
                kept = {key: getattr(training, key) for key in ("keep_last", "keep_best")}
                changes = {"training": stored.training.model_copy(update=kept), "decoding": self._recipe.decoding}
                self._run.store_recipe(stored.model_copy(update=changes))
            self._data.close(is_finished=True)  # a signal at the very end has kept it from being closed so
            return TrainingResult(progress.step, limit)
        with closing(self._data):
            # A repeated validation may be better than all before, but makes no room under a limit.
            lasting = training.model_copy(update={"patience_epochs": None, "patience_validations": None})
            if limit is None and progress.reason_to_stop(lasting) is None:
                self._settle()
            if training.validate_bleu and self._search_changes and progress.best_cost is not None:
                text = "from now on, validation BLEU is that of another search (changed: %s)"
                log.warning(text, ", ".join(self._search_changes))
            if self._workers.is_main:
                self._run.store_recipe(self._recipe)
            # From here on time and energy count: what was tried before is no part of the training.
            self._begun, self._energy = time.monotonic(), EnergyMeter(self._workers.device)
            self._seconds_before = progress.seconds
            self._energy_before = [getattr(progress, key) for key in ENERGY]
            with self._stop.listening(), self._reporter.showing(progress):
                reason = self._make_updates() if limit is None else self._end(limit)
                self._workers.wait()  # still listening, as the signal may reach this process later than others
            if self._stop.number is None:
                self._data.close(is_finished=True)
        progress = self._state.progress
        log.info("training ended at update %d: %s", progress.step, reason)
        self._reporter.summarize(progress)
        return TrainingResult(progress.step, reason, self._stop.number)

    def _settle(self) -> None:
        """Settle the size of micro-batches, and before the first update predict the training."""
        recipe, training, workers, progress = self._recipe, self._recipe.training, self._workers, self._state.progress
        on_cuda = workers.device.type == "cuda"
        where = f"starting from the weights of {training.init}" if training.init else "starting from random weights"
        if progress.step:
            where = f"resuming training at update {progress.step + 1}"
        num_parameters = sum(each.numel() for each in self._state.model.parameters())
        trained = sum(each.numel() for each in self._state.trained_parameters)
        log.info(
            "%s: %s parameters%s, %s, %d x %s (%s)",
            where, f"{num_parameters:,}",
            f" ({trained:,} of them trained)" if training.freeze else "", counted(len(self._data), self._data.noun),
            workers.num_processes, workers.device,
            ", ".join(filter(None, (workers.precision, self._origin["device" if on_cuda else "processor"]))),
        )  # fmt: skip
        self._check_space(None)
        log.info("testing whether the largest micro-batches fit into memory, before update %d", progress.step + 1)
        settle_tokens_per_pass(self._state, self._data, workers)
        if progress.step:
            return
        tried_bytes, reached = memory_bytes(workers.device), None
        if workers.device.type == "cpu" and not training.compile:  # else assumed
            reached = first_update_rate(self._state, self._data, workers)
        if not workers.is_main:
            return
        rate = self._origin["matmul_flops_per_second"]
        hardware = Hardware.here(workers.device, workers.precision, workers.num_processes, rate=rate, reached=reached)
        origin = "the first epoch's subwords" if training.subword_sampling else "the prepared data"
        data, sizes, limit = self._data.of_epoch(0), self._state.vocab_sizes, progress.tokens_per_pass
        expected = predict(recipe, data, sizes, hardware, limit, tried_bytes, origin)
        write_json(self._run.prediction, expected)
        by_time = expected["limit"].startswith("max_minutes")  # whose number of updates is a guess
        if expected["updates"] < training.warmup_steps and not by_time:
            log.warning(
                "the training has %s, but its learning rate rises until update %d (training.warmup_steps); take fewer "
                "warmup_steps, fewer tokens_per_update or a higher limit",
                counted(expected["updates"], "update"), training.warmup_steps,
            )  # fmt: skip
        choices = training.patience_epochs, training.patience_validations, training.keep_best > 1
        kinds = ("steps", "epochs", "minutes")
        every = [[getattr(training, f"{event}_every_{kind}") for event in ("validate", "checkpoint")] for kind in kinds]
        are_joined = training.checkpoint_every_steps == 1 or any(a and b and _is_multiple(a, b) for a, b in every)
        if self._validator is not None and any(choices) and not are_joined:
            log.warning(
                "not every validation comes with a checkpoint, so the best model may not be kept; let validate_every_* "
                "be a multiple of checkpoint_every_*, in the same unit"
            )
        log.info(
            "expected: %.2g FLOPs in %s (%s); %s at %.0f %% of the device's rate, %s",
            expected["flops"], counted(expected["updates"], "update"), expected["limit"], duration(expected["seconds"]),
            100 * expected["mfu"], "an assumed share" if reached is None else "a share measured in a short trial",
        )  # fmt: skip

    def _make_updates(self) -> str:
        """Make updates until a limit or a signal, and return which."""
        if self._unfinished is not None:
            reason = self._finish(self._unfinished, is_stopping=False)
            if reason is not None:
                return reason
        try:
            updates = train_updates(self._state, self._data, self._workers, self._flags)
            for update in updates:
                reason = self._after(update)
                if reason is not None:
                    return reason
        except NotSampledError:
            # Between two epochs, so the state is complete.
            if self._workers.is_main and free_bytes(self._run.resume_folder) >= self._state.num_bytes():
                self._save_state(is_regular=self._has_saved)
            elif self._workers.is_main:
                log.warning("%s: no room to save this stop; the last updates are repeated", self._run.resume_folder)
            if not self._note_stop_request(self._all_flags()):
                raise
            return self._stop.reason
        raise AssertionError("updates have no end")

    def _flags(self) -> list[float]:
        """Return what is summed over the processes: the request to stop, its signal, the time of rank 0, the energy."""
        elapsed = self._seconds_before + time.monotonic() - self._begun if self._workers.is_main else 0.0
        return [float(self._stop.number is not None), float(self._stop.number or 0), elapsed, *self._energy.read()]

    def _after(self, update: Update) -> str | None:
        """Count an update and do what is due after it; return why training ends here, if it does."""
        progress = self._state.progress
        if update.skipped == "nonfinite" and self._workers.is_main:
            norm = update.gradient_norm
            record_nonfinite(self._run, progress, loss=update.loss, gradient_norm=norm, lines=update.lines)
        if has_failed(progress):
            self._roll_back()
            return None
        self._count_time(update.flags)
        # By the clock of the update that follows, so that the time they take does not count.
        if self._has_validated:
            progress.last_validation_seconds = progress.seconds
        if self._has_saved:
            progress.last_checkpoint_seconds = progress.seconds
        self._has_validated = self._has_saved = False
        self._reporter.add(update)
        return self._finish(update, is_stopping=self._note_stop_request(update.flags))

    def _count_time(self, flags: list[float]) -> None:
        """Set time and energy of the training so far, by the sums of all flags."""
        progress, (now, *energy) = self._state.progress, flags[2:]
        progress.device_seconds += (now - progress.seconds) * self._workers.num_processes
        progress.seconds = now
        for key, before, measured in zip(ENERGY, self._energy_before, energy, strict=True):
            setattr(progress, key, before + measured)

    def _note_stop_request(self, flags: list[float]) -> bool:
        """Return whether any process was requested to stop, by the sums of all flags; then all processes know."""
        requests, number = flags[:2]
        if requests and self._stop.number is None:
            # All stop by the same signal: SIGTERM where processes received different ones.
            self._stop.number = int(number / requests) if number / requests in STOP_SIGNALS else signal.SIGTERM
        return bool(requests)

    def _all_flags(self) -> list[float]:
        """Return the sums of the flags of all processes, which call this together."""
        sums: list[float] = self._workers.sum(torch.tensor(self._flags(), dtype=torch.float64)).tolist()
        return sums

    def _finish(self, update: Update, *, is_stopping: bool) -> str | None:
        """Validate, report and save as is due after an update; return why training ends here, if it does.

        A validation interrupted by a stop is repeated first on resume (`unfinished`), and so is the end (`_end`).
        """
        training, progress = self._recipe.training, self._state.progress
        validation_is_due = self._validator is not None and _is_due("validate", training, update, progress)
        checkpoint_is_due = _is_due("checkpoint", training, update, progress)
        if training.validate_every_minutes and training.checkpoint_every_minutes:
            # Their clocks begin after the work before, so else both would hardly ever fall on one update.
            is_multiple = _is_multiple(training.validate_every_minutes, training.checkpoint_every_minutes)
            checkpoint_is_due |= validation_is_due and is_multiple
        if checkpoint_is_due:
            self._check_space(update)
        validation = None
        if self._validator is not None and validation_is_due:
            validation = self._validate(self._validator)
            if validation is None:
                if self._workers.is_main:
                    self._save_state(unfinished=update)
                return self._stop.reason
            progress.note_validation(validation.cost(training.best_metric))
        limit = progress.reason_to_stop(training)
        if validation is not None or update.step % training.report_every_steps == 0:
            self._reporter.report(progress, update.learning_rate, validation)
        self._reporter.show(update, progress)
        self._has_validated, self._has_saved = validation is not None, checkpoint_is_due
        if self._workers.is_main and (checkpoint_is_due or is_stopping or limit is not None):
            if checkpoint_is_due:
                self._save_checkpoint(validation)
            self._save_state(is_regular=checkpoint_is_due)
            if checkpoint_is_due:  # only now, so that a kill never leaves a run without a checkpoint
                remove_old_checkpoints(self._run, training)
            forget_ends(self._run, progress.step)
            self._reporter.read_scores()
        if is_stopping:
            return self._stop.reason
        return None if limit is None else self._end(limit)

    def _validate(self, validator: Validator) -> Validation | None:
        """Return None when a process was requested to stop meanwhile."""
        with self._reporter.doing("validating"), self._state.averaged() as model:
            validation = validator(model, lambda: self._stop.number is not None)
        # The time of a validation counts at once, as no update may follow.
        flags = self._all_flags()
        self._count_time(flags)
        if validation is None:
            self._note_stop_request(flags)
        return validation

    def _end_so_far(self) -> tuple[bool, bool, Validation | None]:
        """Return (has report, has checkpoint, validation) of the last update."""
        step = self._state.progress.step
        lines = [line for line in read_metrics(self._run.folder) if line["step"] == step]
        validation = Validation.of_line(lines[-1]) if lines else None
        has_report = bool(lines) and (validation is not None or self._validator is None)
        has_checkpoint = damage(self._run.checkpoint(step)) is None
        return self._workers.gather([(has_report, has_checkpoint, validation)])[0]  # as seen by rank 0, which writes

    def _end(self, limit: str) -> str:
        """Validate the last update and write its checkpoint, where neither was due; return why training ends here.

        The resume state was saved before and does not include it, so that with a raised limit training continues as if
        it had not ended.
        """
        has_report, has_checkpoint, validation = self._end_so_far()
        if not has_checkpoint:
            self._check_space(None, with_state=False)
        if not has_report and self._validator is not None and validation is None:
            validation = self._validate(self._validator)
            if validation is None:
                return self._stop.reason
        progress = self._state.progress
        if self._workers.is_main and not has_checkpoint:
            self._save_checkpoint(validation, is_end=not self._has_saved)  # beside those that a longer training keeps
            forget_ends(self._run, progress.step)
        elif self._workers.is_main and validation is not None:
            add_end_score(self._run.checkpoint(progress.step), validation)
        # Last, as the report and the checkpoint together say that nothing is left to do.
        if not has_report:
            rate = learning_rate(progress.step, self._recipe.training, self._recipe.model.d_model)
            self._reporter.report(progress, rate, validation, is_end=True)
        return limit

    def _roll_back(self) -> None:
        """Return to the last good resume state; what was written since is removed, except RUN/nonfinite.jsonl."""
        with self._workers.failing_together():
            # Every process reads the resume state; one that cannot must not leave the others waiting.
            saved = roll_back(self._state, self._run)
        step = self._state.progress.step
        check_same_state(step, saved, None, self._workers)
        if self._workers.is_main:
            forget_later(self._run, step, step)
        self._reporter.roll_back(Meter(**saved["meter"]))
        self._has_validated, self._has_saved = saved["validated"], saved["checkpointed"]

    def _facts(self) -> dict[str, Any]:
        """Return the entries that checkpoints and resume states share."""
        progress, keys = self._state.progress, ("step", "epoch", "seconds", "device_seconds", *ENERGY)
        return {**self._origin, **{key: getattr(progress, key) for key in keys}, **progress.counters()}

    def _save_state(self, unfinished: Update | None = None, *, is_regular: bool = False) -> None:
        extra = {
            "meter": asdict(self._reporter.meter),  # so that an interrupted run has the same reports
            "unfinished": asdict(unfinished) if unfinished else None,
            "regular": is_regular,  # because a checkpoint was due, not because of a stop
            "validated": self._has_validated,
            "checkpointed": self._has_saved,
            "training_lengths": self._lengths and self._lengths.model_dump(),
        }
        self._state.save(self._run, {**self._facts(), **extra})

    def _save_checkpoint(self, validation: Validation | None, *, is_end: bool = False) -> None:
        recipe, step = self._recipe, self._state.progress.step
        ends = end_checkpoints(self._run)  # removed soon, by `forget_ends`
        kept = [folder for folder in self._run.checkpoints() if ends.get(folder) is not True]
        before = [step_of(folder) for folder in kept if step_of(folder) < step]
        provenance = {
            "kind": "checkpoint",
            **self._facts(),
            "previous": max(before, default=0),
            "best_metric": recipe.training.best_metric,
            **Validation.scores(validation),
            "end": is_end,
        }
        folder, weights = self._run.checkpoint(step), self._state.result
        save_model(folder, weights, recipe.model, self._tokenizer, recipe.decoding, provenance, self._lengths)

    def _check_space(self, update: Update | None, *, with_state: bool = True) -> None:
        """Raise NmtkitError on every process when a checkpoint and a resume state do not fit on their disks.

        Args:
            update: the one after which they are due; it is saved if at least that fits.
        """
        with self._workers.failing_together():
            if not self._workers.is_main:
                return
            state_bytes = self._state.num_bytes()
            tokenizer_bytes = sum(path.stat().st_size for path in self._run.tokenizer_folder.iterdir())
            # 100,000 for model.json and provenance.json.
            checkpoint_bytes = self._state.weight_bytes + tokenizer_bytes + 100_000
            needs = {self._run.checkpoints_folder: checkpoint_bytes, self._run.resume_folder: with_state * state_bytes}
            disks = dict[int, tuple[Path, int]]()
            for folder, num_bytes in needs.items():
                # These folders may be links to other disks, and need not exist yet.
                place = existing(folder)
                disk = place.stat().st_dev
                first, others = disks.get(disk, (place, 0))
                disks[disk] = (first, others + num_bytes)
            try:
                for place, num_bytes in disks.values():
                    check_space(place, num_bytes, "saving")
            except NmtkitError:
                if update is not None and free_bytes(self._run.resume_folder) >= state_bytes:
                    self._save_state(unfinished=update)
                raise


def _is_multiple(interval: float, of: float) -> bool:
    """Return whether one interval is a multiple of another, such as 0.6 minutes of 0.2."""
    return math.isclose(interval / of, max(1, round(interval / of)), rel_tol=1e-9)


def _is_due(what: str, training: TrainingConfig, update: Update, progress: Progress) -> bool:
    """Return whether a validation ("validate") or a checkpoint is due after an update."""
    steps = getattr(training, f"{what}_every_steps")
    epochs = getattr(training, f"{what}_every_epochs")
    if steps is not None:
        return bool(update.step % steps == 0)
    if epochs is not None:
        return bool(update.ends_epoch and progress.epoch % epochs == 0)
    last = progress.last_validation_seconds if what == "validate" else progress.last_checkpoint_seconds
    return bool(progress.seconds - last >= getattr(training, f"{what}_every_minutes") * 60)
