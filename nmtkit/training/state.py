"""All that a run needs to go on exactly where it was, and how that is saved.

    RUN/resume/step-00012000/
        weights.safetensors     the model
        optimizer.safetensors   Adam's moments and counts
        state.json              position, counters, scores so far, and the sha256 sums of the two above

The latest two saves are kept; a damaged one is recognised by its sums and the one before it used. Random numbers are
not saved: those of an update follow from (seed, update, rank, pass).
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

KEPT_SAVES = 2


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: updates made.
        epoch: epochs completed.
        pairs_done: sentence pairs of the present epoch that are behind.
        target_tokens, flops: seen and computed so far.
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

    @property
    def parameters(self) -> list[Tensor]:
        """The model's parameters, always in the same order."""
        return list(self.model.parameters())

    def save(self, run_dir: Path, extra: dict[str, Any]) -> Path:
        """Writes RUN/resume/step-... and removes all but the latest saves.

        Args:
            extra: more for state.json, such as the fingerprint of the data.
        """
        folder = run_dir / "resume" / f"step-{self.progress.step:08d}"
        with write_folder_atomically(folder) as temporary:
            write_tensors(temporary / "weights.safetensors", self.model.state_dict())
            write_tensors(temporary / "optimizer.safetensors", self._optimizer_tensors())
            files = sha256_of_files(temporary)
            write_json(
                temporary / "state.json",
                {"progress": asdict(self.progress), **extra, "versions": versions(), "files": files},
            )
        for old in saves(run_dir)[:-KEPT_SAVES]:
            remove_folder(old)
        return folder

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def load(self, folder: Path) -> dict[str, Any]:
        """Takes over a save, and returns all of its state.json.

        Raises:
            ModelError: it is damaged.
        """
        saved = read_save(folder)
        try:
            self.model.load_state_dict(read_tensors(folder / "weights.safetensors"))
            tensors = read_tensors(folder / "optimizer.safetensors")
        except RuntimeError as error:
            raise ModelError(
                f"{folder}: does not belong to this model ({' '.join(str(error).split())[:200]})"
            ) from None
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                key: tensors[f"{key}.{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
            }
        self.progress = Progress(**saved["progress"])
        return saved


def saves(run_dir: Path) -> list[Path]:
    """The saves of a run, oldest first."""
    return step_folders(run_dir / "resume")


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
    if saved.get("files") != files:
        raise ModelError(f"{folder}: damaged, its files do not have the sums written down in state.json")
    return saved


def latest_save(run_dir: Path) -> Path | None:
    """The newest save that is whole; damaged ones are reported and passed over.

    Raises:
        ModelError: there are saves, but none is whole.
    """
    damaged = None
    for folder in reversed(saves(run_dir)):
        try:
            read_save(folder)
        except ModelError as error:
            log.warning("%s; using the save before it", error)
            damaged = folder
            continue
        return folder
    if damaged is not None:
        raise ModelError(f"{run_dir / 'resume'}: no save is whole; remove the folder to train from the beginning")
    return None
