"""The pairs of each epoch: the prepared ones, or with subword sampling those drawn for it (data/subword_epochs.py)."""

import itertools
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from nmtkit.config.schema import Recipe
from nmtkit.console import log
from nmtkit.data.shards import PairData
from nmtkit.data.subword_epochs import Draw, is_drawn, start
from nmtkit.distributed.cpu import threads_each
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import remove_folder
from nmtkit.run import Run

_MOST_PROCESSES = 8
_SECONDS_BETWEEN_LOOKS = 1.0
"""How long an epoch is waited for until all processes hear how far it is: far less than an exchange may take."""
_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)


class NotDrawnError(NmtkitError):
    """The subwords of an epoch are not there: they could not be drawn, or the training was asked to stop before."""


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


def training_pairs(
    recipe: Recipe,
    run_dir: Path,
    manifest: dict[str, Any],
    workers: Workers,
    wants_to_stop: Callable[[], bool] = lambda: False,
) -> TrainingPairs:
    """The training pairs of a prepared run.

    Args:
        wants_to_stop: asked while an epoch is waited for; when any process wants to, all give it up.
    """
    prepared = PairData(Run(run_dir).data / "train")
    if not recipe.training.subword_sampling:
        return prepared
    return DrawnEpochs(prepared, recipe, run_dir, manifest["fingerprint"], workers, wants_to_stop)


class DrawnEpochs:
    """Pairs whose subwords are drawn anew for each epoch, by rank 0 and ahead, into RUN/drawn."""

    def __init__(
        self,
        prepared: PairData,
        recipe: Recipe,
        run_dir: Path,
        data_fingerprint: str,
        workers: Workers,
        wants_to_stop: Callable[[], bool],
    ) -> None:
        self.folder, self.lines = prepared.folder, prepared.lines
        self._pairs_per_epoch = prepared.pairs_per_epoch
        self._training, self._max_tokens = recipe.training, recipe.cleaning.max_tokens
        self._run_dir, self._data_fingerprint, self._workers = run_dir, data_fingerprint, workers
        self._wants_to_stop = wants_to_stop
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
            NotDrawnError: on every process.
        """
        if self._present is None or self._present[0] != epoch:
            self._wait_for(epoch)
            self._present = epoch, PairData(self._folder(epoch) / "pairs")
            if self._workers.is_main:
                needed = (self._folder(epoch).name, self._folder(epoch + 1).name)
                for folder in Run(self._run_dir).sampled.glob("epoch-*"):
                    if folder.name not in needed:
                        remove_folder(folder)
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
        if is_finished and self._workers.is_main and (Run(self._run_dir).sampled).is_dir():
            remove_folder(Run(self._run_dir).sampled)

    def _folder(self, epoch: int) -> Path:
        return Run(self._run_dir).sampled_epoch(epoch)

    def _draw(self, epoch: int) -> Draw:
        training = self._training
        return Draw(self._data_fingerprint, training.seed, epoch, training.subword_sampling, self._max_tokens)

    def _begin(self, epoch: int) -> None:
        """Starts a process that draws an epoch, unless it is there or being drawn."""
        if self._drawing is not None and self._drawing[0] != epoch:
            self.close()
        if self._drawing is None and not self._is_there(epoch):
            # On a CPU the training has the cores.
            is_cpu = self._workers.device.type == "cpu"
            processes = 1 if is_cpu else max(1, min(_MOST_PROCESSES, threads_each(1) - 1))
            draw = self._draw(epoch)
            self._drawing = epoch, start(Run(self._run_dir).data, self._folder(epoch), draw, processes)

    def _is_there(self, epoch: int) -> bool:
        """Whether an epoch is drawn and whole."""
        folder = self._folder(epoch)
        try:
            return is_drawn(folder, self._draw(epoch)) and len(PairData(folder / "pairs")) == len(self)
        except DataError:
            log.warning("%s is damaged; sampling its subwords again", folder)
            return False

    def _wait_for(self, epoch: int) -> None:
        """Returns when an epoch is drawn: rank 0 looks again and again, and all hear what it found.

        No exchange takes long, so drawing may, and a wish to stop is heard.
        """
        for look in itertools.count():
            is_there, fault = self._look(epoch) if self._workers.is_main else (False, "")
            found = self._workers.gather([(is_there, fault, self._wants_to_stop())])
            is_there, fault, _ = found[0]
            if is_there:
                return
            if any(asked for _, _, asked in found):
                raise NotDrawnError(f"stopped before the subwords of epoch {epoch} were sampled")
            if fault:
                raise NotDrawnError(f"the subwords of epoch {epoch} could not be sampled: {fault}")
            if look == 0:
                log.info("waiting for the subwords of epoch %d to be sampled", epoch)

    def _look(self, epoch: int) -> tuple[bool, str]:
        """Whether an epoch is there, after a moment if it is being drawn; and why it cannot be drawn, or ""."""
        self._begin(epoch)
        if self._drawing is None:
            return True, ""
        process = self._drawing[1]
        try:
            message = process.communicate(timeout=_SECONDS_BETWEEN_LOOKS)[1].decode("utf-8", errors="replace").strip()
        except subprocess.TimeoutExpired:
            return False, ""
        self._drawing = None
        if process.returncode in _STOPPED:  # with the training, which hears of it now; if it does not, begin again
            return False, ""
        if process.returncode:
            return False, message.split("\n")[-1] or f"its process ended with {process.returncode}"
        return True, ""

    def _tidy(self, epoch: int) -> None:
        """Removes what was drawn for other epochs."""
        for folder in (Run(self._run_dir).sampled).glob("epoch-*"):
            if folder.name not in (self._folder(epoch).name, self._folder(epoch + 1).name):
                remove_folder(folder)
