"""Everything a run needs to continue exactly where it was, and how that is saved.

    RUN/resume/step-00012000/
        weights.safetensors     the model
        optimizer.safetensors   Adam's moments and counts
        average.safetensors     with ema_decay: the moving average of the weights
        state.json              position, counters, best score so far, the sha256 sums of the files above, and its own

The latest two resume states are kept, and the latest good one (`is_good`). Random numbers are not saved: those of an
update follow from (seed, update, rank, micro-batch) and from how often the run was rolled back. Whatever else an update
depends on belongs into `TrainingState.tensors` or `Progress`: both are saved, restored, and compared by
`--verify-resume`.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import TrainingConfig
from nmtkit.console import log
from nmtkit.distributed.workers import Workers, holding_model
from nmtkit.errors import DataError, ModelError, NmtkitError, in_one_line
from nmtkit.files import remove_folder, sha256_of, sha256_of_files, write_folder_atomically
from nmtkit.json_toml import read_json, write_json
from nmtkit.model.decoder_only import build_model
from nmtkit.model.flops import Counters
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import read_tensors, write_tensors
from nmtkit.run import Run
from nmtkit.training.optimizer import freeze, new_optimizer
from nmtkit.versions import versions

KEPT_STATES = 2
MEASURED = ("seconds", "joules")
"""Endings of those fields of `Progress` that no repetition of a run can reproduce."""


@dataclass
class Progress(Counters):
    """Where a run is; with the counters of all its updates.

    Attributes:
        step, epoch: updates made and epochs completed; pairs_done: pairs of the present epoch trained on.
        seconds: time spent training, validating and saving; device_seconds: the same, summed over the processes.
        gpu_joules, gpu_seconds, host_joules, host_seconds: see `energy.ENERGY`.
        best_cost, best_epoch: cost of the best validation so far, smaller being better, and its epoch, from 1.
        last_validation_seconds, last_checkpoint_seconds: values of `seconds`, for intervals in minutes.
        skipped_updates, nonfinite_in_a_row: updates skipped as "nonfinite", in all and in succession.
        overflows: updates skipped as "overflow"; skipped_in_a_row: of both kinds, in succession.
        rollbacks: how often the run was rolled back to a resume state; the random numbers depend on it.
        loss_scale: of fp16, for the next update; updates_since_scaling: updates without overflow since it changed.
        tokens_per_pass: limit of micro-batches, on which dropout depends; 0 before it was settled.
    """

    step: int = 0
    epoch: int = 0
    pairs_done: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    gpu_joules: float = 0.0
    gpu_seconds: float = 0.0
    host_joules: float = 0.0
    host_seconds: float = 0.0
    best_cost: float | None = None
    best_epoch: int = 0
    validations_since_best: int = 0
    last_validation_seconds: float = 0.0
    last_checkpoint_seconds: float = 0.0
    skipped_updates: int = 0
    nonfinite_in_a_row: int = 0
    overflows: int = 0
    skipped_in_a_row: int = 0
    rollbacks: int = 0
    loss_scale: float = 2.0**16  # as in torch.amp.GradScaler
    updates_since_scaling: int = 0
    tokens_per_pass: int = 0

    def note_validation(self, cost: float) -> None:
        """Update the best score and the patience."""
        if math.isfinite(cost) and (self.best_cost is None or cost < self.best_cost):
            # Within an epoch, patience counts from the end of that epoch.
            self.best_cost, self.best_epoch = cost, self.epoch + (self.pairs_done > 0)
            self.validations_since_best = 0
        else:
            self.validations_since_best += 1

    def reason_to_stop(self, training: TrainingConfig) -> str | None:
        """Return the limit of the recipe that is reached, in words; None if none is."""
        if training.max_steps is not None and self.step >= training.max_steps:
            return f"max_steps = {training.max_steps}"
        if training.max_epochs is not None and self.epoch >= training.max_epochs:
            return f"max_epochs = {training.max_epochs}"
        if training.max_minutes is not None and self.seconds >= training.max_minutes * 60:
            return f"max_minutes = {training.max_minutes:g}"
        if self.best_cost is None:
            return None
        if training.patience_validations is not None and self.validations_since_best >= training.patience_validations:
            return f"no better {training.best_metric} for patience_validations = {training.patience_validations}"
        waited = self.epoch - self.best_epoch if self.validations_since_best else 0
        if training.patience_epochs is not None and waited >= training.patience_epochs:
            return f"no better {training.best_metric} for patience_epochs = {training.patience_epochs}"
        return None

    def shares_done(self, training: TrainingConfig, pairs_per_epoch: int) -> dict[str, float]:
        """Return how much of each limit of the recipe is reached, from 0 to 1, by its words ("max_steps = 9")."""
        limits = [
            ("max_steps", training.max_steps, self.step),
            ("max_epochs", training.max_epochs, self.epoch + self.pairs_done / max(1, pairs_per_epoch)),
            ("max_minutes", training.max_minutes, self.seconds / 60),
        ]
        return {
            f"{name} = {limit if isinstance(limit, int) else f'{limit:g}'}": min(1.0, done / limit)
            for name, limit, done in limits
            if limit is not None
        }


class TrainingState:
    """A model in training and its settings; with ``ema_decay`` also the moving average of its weights, in float32."""

    def __init__(
        self,
        config: ModelConfig,
        training: TrainingConfig,
        vocab_sizes: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Make a model with initial weights that depend on the seed alone, not on device or process.

        Raises:
            NmtkitError: training.freeze names no part of the model, or all of it.
        """
        self.training, self.progress, self.average = training, Progress(), dict[str, Tensor]()
        self.vocab_sizes = vocab_sizes
        torch.manual_seed(training.seed)
        with holding_model():
            # Built on the CPU, whose random numbers are the same with any device.
            self.model: Transformer = build_model(config, *vocab_sizes).to(device=device, dtype=dtype)
        freeze(self.model, training.freeze)
        # Those that are not frozen, always in the same order.
        self.trained_parameters = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = new_optimizer(self.model, training)
        self.start_from(self.model.state_dict())

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """Replace the initial weights, and begin the moving average with them."""
        self.model.load_state_dict(weights)
        if self.training.ema_decay:
            self.average = {name: weight.float().clone() for name, weight in self.model.state_dict().items()}

    @torch.no_grad()
    def update_average(self, step: int, is_made: Tensor) -> None:
        """Add the weights after an update to the moving average if ``is_made``, a truth value on the device.

        The decay grows with the updates, min(decay, (1 + n) / (10 + n)), so that the initial weights fade early.

        Source: tf.train.ExponentialMovingAverage, num_updates; the same rule is in Marian's exponential smoothing.
        """
        if not self.training.ema_decay:
            return
        # A weight of 0 leaves the average as it is, without waiting for the truth value.
        weight = is_made.float() * (1 - min(self.training.ema_decay, (1 + step) / (10 + step)))
        for name, parameter in self.model.named_parameters():
            self.average[name].lerp_(parameter.float(), weight)

    @contextmanager
    def averaged(self) -> Iterator[Transformer]:
        """Give the model the averaged weights, where the run keeps an average, while the block runs."""
        if not self.average:
            yield self.model
            return
        # Copies, as load_state_dict overwrites the tensors of the model.
        trained = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        try:
            yield self.model
        finally:
            self.model.load_state_dict(trained)

    @property
    def result(self) -> dict[str, Tensor]:
        """The weights of a checkpoint: the moving average where the run keeps one."""
        return self.average or self.model.state_dict()

    @property
    def weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.model.parameters())

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return every tensor that the next updates depend on, by file and name: those saved, restored and compared."""
        moments = {
            f"{key}.{name}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        groups = {"weights": self.model.state_dict(), "optimizer": moments}
        return {**groups, "average": self.average} if self.average else groups

    def num_bytes(self) -> int:
        """Return about how many bytes a resume state takes on disk, also before the first update."""
        now = sum(tensor.nbytes for group in self.tensors().values() for tensor in group.values())
        # Weights and both moments, which do not exist before the first update; the rest is for JSON.
        return max(now, (4 if self.average else 3) * self.weight_bytes) + 100_000

    def save(self, run: Run, extra: dict[str, Any]) -> Path:
        """Write RUN/resume/step-... with ``extra`` in state.json, and then remove states that are not needed any more.

        Raises:
            NmtkitError: it cannot be written, or does not read back as it was written.
        """
        folder = run.resume_state(self.progress.step)
        with write_folder_atomically(folder) as temporary:
            for name, tensors in self.tensors().items():
                write_tensors(temporary / f"{name}.safetensors", tensors)
            files = sha256_of_files(temporary)
            state = {"progress": asdict(self.progress), **extra, "versions": versions(), "files": files}
            write_json(temporary / "state.json", {**state, "sha256": sum_of_state(state)})
        remove_old_states(run)
        return folder

    def load(self, folder: Path, saved: dict[str, Any]) -> None:
        """Restore a resume state, whose state.json is ``saved``; raise ModelError if it is not one of this model."""
        try:
            tensors = {Path(name).stem: read_tensors(folder / name) for name in saved["files"]}
            self.model.load_state_dict(tensors["weights"])
            moments = tensors["optimizer"]
            for name, parameter in self.model.named_parameters():
                self.optimizer.state.pop(parameter, None)
                if parameter.requires_grad and f"step.{name}" in moments:  # else the loss does not depend on it
                    self.optimizer.state[parameter] = {
                        key: moments[f"{key}.{name}"].to(parameter.device, copy=True)  # not the mapped file
                        for key in ("step", "exp_avg", "exp_avg_sq")
                    }
            for name, average in self.average.items():
                average.copy_(tensors["average"][name])
        except (RuntimeError, KeyError) as error:
            raise ModelError(
                f"{folder}: the resume state does not belong to this model ({in_one_line(error)})"
            ) from None
        self.progress = Progress(**saved["progress"])


def execution_facts(workers: Workers) -> dict[str, Any]:
    """Return what decides, besides recipe and data, which bits a training gives."""
    return {
        "processes": workers.num_processes,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(workers.device) if workers.device.type == "cuda" else workers.device.type,
        "precision": workers.precision,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def sum_of_state(state: dict[str, Any]) -> str:
    """Return the sha256 sum of the content of state.json, without this sum itself and whatever its layout."""
    content = {key: value for key, value in state.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_json(folder: Path) -> dict[str, Any]:
    shape = {"sha256": str, "progress": dict, "files": dict}
    saved: dict[str, Any] = read_json(folder / "state.json", shape, ModelError)
    if saved["sha256"] != sum_of_state(saved):
        raise ModelError(f"{folder / 'state.json'}: damaged (its contents do not match its own checksum)")
    try:
        Progress(**saved["progress"])
    except TypeError as error:  # keys are missing, or unknown
        # No ModelError: an undamaged state is not passed over.
        raise NmtkitError(
            f"{folder}: saved by another version of nmtkit ({error}); go on with that version, or take another "
            "--run-dir"
        ) from None
    return saved


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state.json of a resume state after a check of its files; raise ModelError if one is damaged."""
    saved = _read_json(folder)
    try:
        files = {name: sha256_of(folder / name) for name in saved["files"]}
    except DataError as error:
        raise ModelError(str(error)) from None
    if saved["files"] != files:
        raise ModelError(f"{folder}: damaged (its files do not match the checksums in state.json)")
    return saved


def whole_states(run: Run, count: int, *, only_good: bool = False) -> list[tuple[Path, dict[str, Any]]]:
    """Return the newest ``count`` undamaged resume states and their state.json, newest first.

    Damaged ones are reported and passed over.

    Raises:
        ModelError: there are resume states, but all are damaged.
    """
    found: list[tuple[Path, dict[str, Any]]] = []
    available = run.resume_states()
    for folder in reversed(available):
        if len(found) < count and (not only_good or is_good(folder)):
            try:
                found.append((folder, read_state(folder)))
            except ModelError as error:
                log.warning("%s; using the previous resume state", error)
    if available and not found and not only_good:
        models = " and ".join(map(str, (run.resume_folder, *run.model_folders())))
        raise ModelError(
            f"{run.resume_folder}: every resume state is damaged; to train from scratch, remove {models}, or take "
            "another --run-dir"
        )
    return found


def is_good(folder: Path) -> bool:
    """Return whether a failing run may be rolled back to a state: no skipped update came just before it.

    A state saved only because of a stop does not count: a run that was not stopped would not have it.
    """
    try:
        saved = _read_json(folder)
    except ModelError:
        return False
    return bool(saved.get("regular", True)) and not saved["progress"]["skipped_in_a_row"]


def remove_old_states(run: Run) -> None:
    """Remove all resume states but the latest ones and the latest good one."""
    available = run.resume_states()
    good = next((folder for folder in reversed(available) if is_good(folder)), None)
    for old in available[:-KEPT_STATES]:
        if old != good:
            remove_folder(old)
