"""All that a run needs to go on exactly where it was, and how that is saved.

    RUN/resume/step-00012000/
        weights.safetensors     the model
        optimizer.safetensors   Adam's moments and counts
        state.json              position, counters, scores so far, and the sha256 sums of the two above

The latest two saves are kept; a damaged one is recognised by its sums and the one before it used. Random numbers are
not saved: those of an update follow from (seed, update, rank, pass). What else an update depends on belongs into
`TrainingState.tensors` or `Progress`: both are saved, restored, and compared by `--verify-resume`.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.config import ModelConfig, TrainingConfig
from nmtkit.console import log
from nmtkit.errors import DataError, ModelError
from nmtkit.files import read_json, remove_folder, sha256_of_files, versions, write_folder_atomically, write_json
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import read_tensors, step_folders, write_tensors
from nmtkit.training.optimizer import new_optimizer
from nmtkit.workers import Workers

KEPT_SAVES = 2


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: updates made.
        epoch: epochs completed.
        pairs_done: sentence pairs of the present epoch that are behind.
        target_tokens, flops, flops_attention, flops_padding: seen and computed so far.
        seconds: time spent training, validating and saving, over all sessions.
        device_seconds: the same, added up over the processes.
        best_cost: the best validation so far by best_metric, smaller being better; at the epoch best_epoch.
        validations_since_best: validations that did not improve on it.
        last_validation_seconds, last_checkpoint_seconds: of `seconds`, for those that go by minutes.
    """

    step: int = 0
    epoch: int = 0
    pairs_done: int = 0
    target_tokens: int = 0
    flops: int = 0
    flops_attention: int = 0
    flops_padding: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    best_cost: float | None = None
    best_epoch: int = 0
    validations_since_best: int = 0
    last_validation_seconds: float = 0.0
    last_checkpoint_seconds: float = 0.0


@dataclass
class TrainingState:
    """A model in training."""

    model: Transformer
    optimizer: torch.optim.Adam
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def new(
        cls,
        config: ModelConfig,
        training: TrainingConfig,
        vocab_sizes: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> "TrainingState":
        """A model with the initial weights that the seed decides, the same on every device and process."""
        torch.manual_seed(training.seed)
        model = Transformer(config, *vocab_sizes).to(device=device, dtype=dtype)
        return cls(model, new_optimizer(model, training))

    def note_validation(self, cost: float) -> None:
        """Takes account of a validation, by which patience and best scores go."""
        place = self.progress
        if place.best_cost is None or cost < place.best_cost:
            place.best_cost, place.best_epoch = cost, place.epoch
            place.validations_since_best = 0
        else:
            place.validations_since_best += 1

    @property
    def parameters(self) -> list[Tensor]:
        """The model's parameters, always in the same order."""
        return list(self.model.parameters())

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Every tensor that the next updates depend on, by file and name: what is saved, restored and compared."""
        return {"weights": self.model.state_dict(), "optimizer": self._optimizer_tensors()}

    def num_bytes(self) -> int:
        """What a save takes on disk, near enough; before the first update as much as after it."""
        now = sum(tensor.nbytes for group in self.tensors().values() for tensor in group.values())
        return max(now, 3 * sum(parameter.nbytes for parameter in self.parameters)) + 100_000

    def save(self, run_dir: Path, extra: dict[str, Any]) -> Path:
        """Writes RUN/resume/step-..., reads it back, and only then removes all but the latest saves.

        Args:
            extra: more for state.json, such as the fingerprint of the data.

        Raises:
            NmtkitError: it cannot be written, or reads back otherwise.
        """
        folder = run_dir / "resume" / f"step-{self.progress.step:08d}"
        with write_folder_atomically(folder) as temporary:
            for name, tensors in self.tensors().items():
                write_tensors(temporary / f"{name}.safetensors", tensors)
            files = sha256_of_files(temporary)
            state = {"progress": asdict(self.progress), **extra, "versions": versions(), "files": files}
            write_json(temporary / "state.json", state)
            read_save(temporary)
        remove_old_saves(run_dir)
        return folder

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

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
                self.optimizer.state[parameter] = {
                    key: moments[f"{key}.{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
                }
        except (RuntimeError, KeyError) as error:
            raise ModelError(
                f"{folder}: does not belong to this model ({' '.join(str(error).split())[:200]})"
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
    return step_folders(run_dir / "resume")


def remove_old_saves(run_dir: Path) -> None:
    """Removes all but the latest saves."""
    for old in saves(run_dir)[:-KEPT_SAVES]:
        remove_folder(old)


def read_save(folder: Path) -> dict[str, Any]:
    """The state.json of a save whose files are whole.

    Raises:
        ModelError: they are not.
    """
    try:
        saved: dict[str, Any] = read_json(folder / "state.json")
        files = sha256_of_files(folder)
    except DataError as error:
        raise ModelError(str(error)) from None
    files.pop("state.json")
    if not isinstance(saved, dict) or saved.get("files") != files:
        raise ModelError(f"{folder}: damaged, its files do not have the sums written down in state.json")
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
            log.warning("%s; using the save before it", error)
    if available and not found:
        raise ModelError(f"{run_dir / 'resume'}: no save is whole; remove the folder to train from the beginning")
    return found
