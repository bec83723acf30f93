"""The pairs of each epoch: the prepared ones, or with subword sampling those drawn for it (data/drawing.py)."""

import subprocess
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from nmtkit.config import Recipe
from nmtkit.console import log
from nmtkit.data.drawing import Draw, command, is_drawn
from nmtkit.data.shards import PairData
from nmtkit.errors import NmtkitError
from nmtkit.files import remove_folder
from nmtkit.workers import Workers, threads_each

_MOST_PROCESSES = 8


@runtime_checkable
class TrainingPairs(Protocol):
    """Pairs to train on.

    Attributes:
        folder, lines, pairs_per_epoch: see PairData.
    """

    folder: Path
    lines: npt.NDArray[np.int64]

    @property
    def pairs_per_epoch(self) -> int: ...

    def __len__(self) -> int: ...

    def of_epoch(self, epoch: int) -> PairData:
        """The pairs of an epoch, the same ones in the same order; their subwords may be others."""
        ...

    def close(self, *, is_finished: bool = False) -> None:
        """Ends what is being prepared; with ``is_finished`` nothing is kept for a resume."""
        ...


def training_pairs(recipe: Recipe, run_dir: Path, manifest: dict[str, Any], workers: Workers) -> TrainingPairs:
    """The training pairs of a prepared run."""
    prepared = PairData(run_dir / "data" / "train")
    if not recipe.training.subword_sampling:
        return prepared
    return DrawnEpochs(prepared, recipe, run_dir, manifest["fingerprint"], workers)


class DrawnEpochs:
    """Pairs whose subwords are drawn anew for each epoch, by rank 0 and ahead, into RUN/drawn."""

    def __init__(
        self, prepared: PairData, recipe: Recipe, run_dir: Path, data_fingerprint: str, workers: Workers
    ) -> None:
        self.folder, self.lines = prepared.folder, prepared.lines
        self._pairs_per_epoch = prepared.pairs_per_epoch
        self._training, self._max_tokens = recipe.training, recipe.cleaning.max_tokens
        self._run_dir, self._data_fingerprint, self._workers = run_dir, data_fingerprint, workers
        self._present: tuple[int, PairData] | None = None
        self._drawing: tuple[int, subprocess.Popen[bytes]] | None = None

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def pairs_per_epoch(self) -> int:
        """See PairData."""
        return self._pairs_per_epoch

    def of_epoch(self, epoch: int) -> PairData:
        """Draws an epoch, unless that has been done, and begins with the next; all processes come here together.

        Raises:
            NmtkitError: it could not be drawn.
        """
        if self._present is None or self._present[0] != epoch:
            fault: NmtkitError | None = None
            if self._workers.is_main:
                try:
                    self._wait_for(epoch)
                except NmtkitError as error:
                    fault = error
            self._workers.raise_together(fault)
            self._present = epoch, PairData(self._folder(epoch) / "pairs")
            if self._workers.is_main:
                self._tidy(epoch)
                if self._training.max_epochs is None or epoch + 1 < self._training.max_epochs:
                    self._begin(epoch + 1)
        return self._present[1]

    def close(self, *, is_finished: bool = False) -> None:
        """Ends the drawing that is going on; what is there stays for a resume, unless the training is finished."""
        if self._drawing is not None:
            process = self._drawing[1]
            process.terminate()
            process.communicate()
            self._drawing = None
        if is_finished and self._workers.is_main and (self._run_dir / "drawn").is_dir():
            remove_folder(self._run_dir / "drawn")

    def _folder(self, epoch: int) -> Path:
        return self._run_dir / "drawn" / f"epoch-{epoch:08d}"

    def _draw(self, epoch: int) -> Draw:
        training = self._training
        return Draw(self._data_fingerprint, training.seed, epoch, training.subword_sampling, self._max_tokens)

    def _begin(self, epoch: int) -> None:
        """Starts a process that draws an epoch, unless it is there or being drawn."""
        if self._drawing is not None and self._drawing[0] != epoch:
            self.close()
        if self._drawing is None and not is_drawn(self._folder(epoch), self._draw(epoch)):
            # On a CPU the training has the cores.
            is_cpu = self._workers.device.type == "cpu"
            processes = 1 if is_cpu else max(1, min(_MOST_PROCESSES, threads_each(1) - 1))
            arguments = command(self._run_dir / "data", self._folder(epoch), self._draw(epoch), processes)
            self._drawing = epoch, subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def _wait_for(self, epoch: int) -> None:
        self._begin(epoch)
        if self._drawing is None:
            return
        process = self._drawing[1]
        if process.poll() is None:
            log.info("waiting for the subwords of epoch %d to be drawn", epoch)
        message = process.communicate()[1].decode("utf-8", errors="replace").strip()
        self._drawing = None
        if process.returncode:
            reason = message.split("\n")[-1] or f"its process ended with {process.returncode}"
            raise NmtkitError(f"the subwords of epoch {epoch} could not be drawn: {reason}")

    def _tidy(self, epoch: int) -> None:
        """Removes what was drawn for other epochs."""
        for folder in (self._run_dir / "drawn").glob("epoch-*"):
            if folder.name not in (self._folder(epoch).name, self._folder(epoch + 1).name):
                remove_folder(folder)
