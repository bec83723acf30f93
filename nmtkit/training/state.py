"""All that a run needs to go on exactly where it was, and how that is saved.

    RUN/resume/step-00012000/
        weights.safetensors     the model
        optimizer.safetensors   Adam's moments and counts
        average.safetensors     with ema_decay: the moving average of the weights
        state.json              position, counters, scores so far, the sha256 sums of those above, and its own

The latest two saves are kept, and the latest good one (`is_good`); a damaged one is recognised by its sums and the one
before it used. Random numbers are not saved: those of an update follow from (seed, update, rank, pass), and from how
often the run went back. What else an update depends on belongs into
`TrainingState.tensors` or `Progress`: both are saved, restored, and compared by `--verify-resume`.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.config.schema import ModelConfig, TrainingConfig
from nmtkit.console import log
from nmtkit.distributed.workers import Workers, holding_model
from nmtkit.errors import DataError, ModelError
from nmtkit.files import read_json, remove_folder, sha256_of_files, versions, write_folder_atomically, write_json
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import read_tensors, step_folders, write_tensors
from nmtkit.run import Run
from nmtkit.training.optimizer import freeze, new_optimizer

KEPT_SAVES = 2

FLOPS = ("flops", "flops_attention", "flops_padding", "flops_encoder", "flops_decoder", "flops_output")
"""Counters of operations: of an update in `Update`, summed in `Progress`, reported and saved."""

MEASURED = ("seconds", "joules")
"""How counters of `Progress` end that no repetition of a run can have again."""


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: updates made.
        epoch: epochs completed.
        pairs_done: sentence pairs of the present epoch that are behind.
        target_tokens, flops, flops_attention, flops_padding, flops_encoder, flops_decoder, flops_output: seen and
            computed so far.
        seconds: time spent training, validating and saving, over all sessions.
        device_seconds: the same, added up over the processes.
        gpu_joules, host_joules: energy of the GPUs and of the machines' processors in that time, as far as measured.
        gpu_seconds, host_seconds: how long that was measured, added up over the GPUs and over the machines.
        best_cost: the best validation so far by best_metric, smaller being better; at the epoch best_epoch.
        validations_since_best: validations that did not improve on it.
        last_validation_seconds, last_checkpoint_seconds: of `seconds`, for those that go by minutes.
        skipped_updates, nonfinite_in_a_row: updates skipped as "nonfinite", over the run and one after the other.
        overflows: updates of fp16 skipped as "overflow".
        skipped_in_a_row: of both kinds, since the last update that was made.
        rollbacks: how often the run went back to a save; the random numbers depend on it.
        loss_scale: of fp16, for the next update; updates_since_scaling: updates without overflow since it changed.
        tokens_per_pass: the limit that passes are cut by, which decides dropout; 0 before it was settled.
    """

    step: int = 0
    epoch: int = 0
    pairs_done: int = 0
    target_tokens: int = 0
    flops: int = 0
    flops_attention: int = 0
    flops_padding: int = 0
    flops_encoder: int = 0
    flops_decoder: int = 0
    flops_output: int = 0
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
    loss_scale: float = 2.0**16
    updates_since_scaling: int = 0
    tokens_per_pass: int = 0


@dataclass
class TrainingState:
    """A model in training.

    Attributes:
        ema_decay: of the moving average of the weights; 0 where there is none.
        average: that average in float32, by the names of the weights.
    """

    model: Transformer
    optimizer: torch.optim.Optimizer
    progress: Progress = field(default_factory=Progress)
    ema_decay: float = 0.0
    average: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def new(
        cls,
        config: ModelConfig,
        training: TrainingConfig,
        vocab_sizes: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> "TrainingState":
        """A model with the initial weights that the seed decides, the same on every device and process.

        Raises:
            NmtkitError: training.freeze names no part of the model, or all of it.
        """
        torch.manual_seed(training.seed)
        with holding_model():
            model = Transformer(config, *vocab_sizes).to(device=device, dtype=dtype)
        freeze(model, training.freeze)
        state = cls(model, new_optimizer(model, training), ema_decay=training.ema_decay)
        state._begin_average()
        return state

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """Replaces the initial weights by those of another model of the same sizes."""
        self.model.load_state_dict(weights)
        self._begin_average()

    def _begin_average(self) -> None:
        if self.ema_decay:
            self.average = {name: weight.float().clone() for name, weight in self.model.state_dict().items()}

    @torch.no_grad()
    def update_average(self, step: int, is_made: Tensor) -> None:
        """Takes the weights after an update into the moving average, unless the update was skipped.

        It rises with the updates, min(decay, (1 + n) / (10 + n)), so that the initial weights are soon forgotten.

        Args:
            is_made: a truth value on the device, which is not waited for.

        Source: tf.train.ExponentialMovingAverage, num_updates; the same rule is in Marian's exponential smoothing.
        """
        if not self.ema_decay:
            return
        weight = is_made.float() * (1 - min(self.ema_decay, (1 + step) / (10 + step)))
        for name, parameter in self.model.named_parameters():
            self.average[name].lerp_(parameter.float(), weight)

    @contextmanager
    def averaged(self) -> Iterator[Transformer]:
        """The model with the averaged weights while the block runs, where the run keeps an average; else as it is."""
        if not self.average:
            yield self.model
            return
        trained = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        try:
            yield self.model
        finally:
            self.model.load_state_dict(trained)

    @property
    def result(self) -> dict[str, Tensor]:
        """The weights that a checkpoint holds: the moving average where the run keeps one."""
        return self.average or self.model.state_dict()

    def note_validation(self, cost: float) -> None:
        """Takes account of a validation, by which patience and best scores go."""
        place = self.progress
        if math.isfinite(cost) and (place.best_cost is None or cost < place.best_cost):
            place.best_cost, place.best_epoch = cost, place.epoch
            place.validations_since_best = 0
        else:
            place.validations_since_best += 1

    @property
    def parameters(self) -> list[Tensor]:
        """The model's parameters, always in the same order."""
        return list(self.model.parameters())

    @property
    def trained_parameters(self) -> list[Tensor]:
        """Those that are not frozen."""
        return [parameter for parameter in self.parameters if parameter.requires_grad]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Every tensor that the next updates depend on, by file and name: what is saved, restored and compared."""
        moments = {
            f"{key}.{name}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        groups = {"weights": self.model.state_dict(), "optimizer": moments}
        return {**groups, "average": self.average} if self.average else groups

    def num_bytes(self) -> int:
        """What a save takes on disk, near enough; before the first update as much as after it."""
        now = sum(tensor.nbytes for group in self.tensors().values() for tensor in group.values())
        return max(now, (4 if self.average else 3) * sum(parameter.nbytes for parameter in self.parameters)) + 100_000

    def save(self, run_dir: Path, extra: dict[str, Any]) -> Path:
        """Writes RUN/resume/step-..., reads it back, and only then removes all but the latest and the good one.

        Args:
            extra: more for state.json, such as the fingerprint of the data.

        Raises:
            NmtkitError: it cannot be written, or reads back otherwise.
        """
        folder = Run(run_dir).resume_state(self.progress.step)
        with write_folder_atomically(folder) as temporary:
            for name, tensors in self.tensors().items():
                write_tensors(temporary / f"{name}.safetensors", tensors)
            files = sha256_of_files(temporary)
            state = {"progress": asdict(self.progress), **extra, "versions": versions(), "files": files}
            write_json(temporary / "state.json", {**state, "sha256": sum_of_state(state)})
            read_save(temporary)
        remove_old_saves(run_dir)
        return folder

    def load(self, folder: Path, saved: dict[str, Any] | None = None) -> dict[str, Any]:
        """Takes over a save, and returns all of its state.json.

        Args:
            saved: that state.json, where the files have been checked already.

        Raises:
            ModelError: it is damaged.
        """
        saved = saved or read_save(folder)
        try:
            tensors = {path.stem: read_tensors(path) for path in sorted(folder.glob("*.safetensors"))}
            self.model.load_state_dict(tensors["weights"])
            moments = tensors["optimizer"]
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    self.optimizer.state[parameter] = {
                        key: moments[f"{key}.{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
                    }
            for name, average in self.average.items():
                average.copy_(tensors["average"][name])
        except (RuntimeError, KeyError) as error:
            raise ModelError(
                f"{folder}: the saved state does not belong to this model ({' '.join(str(error).split())[:200]})"
            ) from None
        self.progress = Progress(**saved["progress"])
        return saved


def execution_facts(workers: Workers) -> dict[str, Any]:
    """What decides, besides recipe and data, which bits come out: a save states it."""
    name = torch.cuda.get_device_name(workers.device) if workers.device.type == "cuda" else workers.device.type
    return {
        "processes": workers.num_processes,
        "threads": torch.get_num_threads(),
        "device": name,
        "precision": workers.precision,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def saves(run_dir: Path) -> list[Path]:
    """The saves of a run, oldest first."""
    return step_folders(Run(run_dir).resume_folder)


def remove_old_saves(run_dir: Path) -> None:
    """Removes all but the latest saves and the latest good one."""
    available = saves(run_dir)
    good = next((folder for folder in reversed(available) if is_good(folder)), None)
    for old in available[:-KEPT_SAVES]:
        if old != good:
            remove_folder(old)


def is_good(folder: Path) -> bool:
    """Whether a failing run may go back to a save: no skipped update came just before it.

    One that only a stop has made does not count: the run that was not stopped would go back to another.
    """
    try:
        saved = _read_state(folder)
    except ModelError:
        return False
    return bool(saved.get("regular", True)) and not saved["progress"]["skipped_in_a_row"]


def good_save(run_dir: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest good save that is whole, with its state.json; damaged ones are reported and passed over."""
    for folder in reversed(saves(run_dir)):
        if is_good(folder):
            try:
                return folder, read_save(folder)
            except ModelError as error:
                log.warning("%s; using the previous saved state", error)
    return None


def sum_of_state(state: dict[str, Any]) -> str:
    """The sha256 sum of what state.json holds, but for this sum itself, however it is laid out."""
    content = {key: value for key, value in state.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_state(folder: Path) -> dict[str, Any]:
    """Reads state.json; raises ModelError where it is not as it was written."""
    shape = {"sha256": str, "progress": dict, "files": dict}
    saved: dict[str, Any] = read_json(folder / "state.json", shape, ModelError)
    if saved["sha256"] != sum_of_state(saved):
        raise ModelError(f"{folder / 'state.json'}: damaged (its contents do not match its own checksum)")
    return saved


def read_save(folder: Path) -> dict[str, Any]:
    """The state.json of a save whose files are whole.

    Raises:
        ModelError: they are not.
    """
    saved = _read_state(folder)
    try:
        files = sha256_of_files(folder)
    except DataError as error:
        raise ModelError(str(error)) from None
    files.pop("state.json")
    if saved["files"] != files:
        raise ModelError(f"{folder}: damaged (its files do not match the checksums in state.json)")
    return saved


def whole_saves(run_dir: Path, count: int) -> list[tuple[Path, dict[str, Any]]]:
    """The newest saves that are whole with their state.json, newest first, at most ``count``; damaged ones are
    reported and passed over.

    Raises:
        ModelError: there are saves, but none is whole.
    """
    found: list[tuple[Path, dict[str, Any]]] = []
    available = saves(run_dir)
    for folder in reversed(available):
        if len(found) == count:
            break
        try:
            found.append((folder, read_save(folder)))
        except ModelError as error:
            log.warning("%s; using the previous saved state", error)
    if available and not found:
        raise ModelError(f"{run_dir / 'resume'}: every saved state is damaged; remove the folder to train from scratch")
    return found
