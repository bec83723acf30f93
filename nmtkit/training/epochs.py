"""The pairs of each epoch: the prepared ones, or with subword sampling those of RUN/drawn (data/subword_epochs.py)."""

import itertools
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from nmtkit.config.schema import Recipe
from nmtkit.console import counted, log
from nmtkit.data.shards import PairData, sha256_of_ids
from nmtkit.data.stages import fingerprint_of
from nmtkit.data.subword_epochs import Draw, is_drawn, start
from nmtkit.data.windows import WindowEpochs, training_data
from nmtkit.distributed.cpu import threads_each
from nmtkit.distributed.launch import wait_or_kill
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import remove_folder
from nmtkit.run import Run

_MOST_PROCESSES = 8
_POLL_SECONDS = 1.0
"""Time between two exchanges while an epoch is waited for: far less than an exchange may take."""
_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)


class NotSampledError(NmtkitError):
    """The subwords of an epoch are missing: sampling failed, or training was stopped while it waited for them."""


class SampledEpochs:
    """Like PairData, but with subwords sampled for each epoch, by a process that rank 0 starts one epoch ahead."""

    def __init__(
        self,
        prepared: PairData,
        recipe: Recipe,
        run: Run,
        data_fingerprint: str,
        workers: Workers,
        wants_to_stop: Callable[[], bool],
    ) -> None:
        self.folder, self.lines, self.pairs_per_epoch = prepared.folder, prepared.lines, prepared.pairs_per_epoch
        self.noun = prepared.noun
        self._training, self._limits = recipe.training, (recipe.cleaning.max_tokens, recipe.data.max_source_tokens)
        self._is_joined = recipe.model.is_joined
        self._run, self._data_fingerprint, self._workers = run, data_fingerprint, workers
        self._wants_to_stop = wants_to_stop
        self._present: tuple[int, PairData] | None = None
        self._sampler: tuple[int, subprocess.Popen[bytes]] | None = None  # with the epoch it prepares

    def __len__(self) -> int:
        return len(self.lines)

    def of_epoch(self, epoch: int) -> PairData:
        """Wait for an epoch, and start the next one; all processes call this together.

        Raises:
            NotSampledError: on every process.
        """
        if self._present is None or self._present[0] != epoch:
            self._wait_for(epoch)
            # Rank 0 has seen the folder; a process on a machine that does not share RUN has not.
            with self._workers.failing_together():
                if not self._run.sampled_epoch(epoch).is_dir():
                    raise NmtkitError(
                        f"{self._run.sampled_epoch(epoch)}: not found by process {self._workers.rank}; with "
                        "training.subword_sampling, RUN must be one folder that all machines share"
                    )
            self._present = epoch, PairData(self._run.sampled_epoch(epoch) / "pairs", is_joined=self._is_joined)
            if self._workers.is_main:
                # The next epoch may be complete already, where a run is resumed.
                kept = (self._run.sampled_epoch(epoch), self._run.sampled_epoch(epoch + 1))
                for folder in self._run.sampled.glob("epoch-*"):
                    if folder not in kept:
                        remove_folder(folder)
                if self._training.max_epochs is None or epoch + 1 < self._training.max_epochs:
                    self._begin(epoch + 1)
        return self._present[1]

    def close(self, *, is_finished: bool = False) -> None:
        """Stop sampling; what is complete stays for a resume, unless the training is finished."""
        if self._sampler is not None:
            process = self._sampler[1]
            process.terminate()
            wait_or_kill([process])  # a signal while it imports may be lost
            process.communicate()
            self._sampler = None
        if is_finished and self._workers.is_main and self._run.sampled.is_dir():
            for folder in self._run.sampled.glob("epoch-*"):
                remove_folder(folder)
            if not self._run.sampled.is_symlink():  # a link stays, for a longer training
                remove_folder(self._run.sampled)

    def _begin(self, epoch: int) -> None:
        """Start to sample an epoch, unless it is complete or being sampled."""
        if self._sampler is not None and self._sampler[0] != epoch:
            self.close()
        if self._sampler is not None:
            return
        folder, training = self._run.sampled_epoch(epoch), self._training
        wanted = Draw(self._data_fingerprint, training.seed, epoch, training.subword_sampling, *self._limits)
        try:
            if is_drawn(folder, wanted) and len(PairData(folder / "pairs")) == len(self):
                return
        except DataError:
            log.warning("%s is damaged; sampling its subwords again", folder)
        # On a CPU the training needs the cores.
        is_cpu = self._workers.device.type == "cpu"
        processes = 1 if is_cpu else max(1, min(_MOST_PROCESSES, threads_each(1) - 1))
        self._sampler = epoch, start(self._run.data, folder, wanted, processes)

    def _wait_for(self, epoch: int) -> None:
        """Wait for an epoch: rank 0 polls, and all processes learn the result.

        Each exchange is short however long sampling takes, and a request to stop is noticed.
        """
        for poll in itertools.count():
            is_complete, fault = self._poll(epoch) if self._workers.is_main else (False, "")
            found = self._workers.gather([(is_complete, fault, self._wants_to_stop())])
            is_complete, fault, _ = found[0]
            if is_complete:
                return
            if any(wants_to_stop for _, _, wants_to_stop in found):
                raise NotSampledError(f"stopped before the subwords of epoch {epoch} were sampled")
            if fault:
                raise NotSampledError(f"the subwords of epoch {epoch} could not be sampled: {fault}")
            if poll == 0:
                log.info("waiting for the subwords of epoch %d to be sampled", epoch)

    def _poll(self, epoch: int) -> tuple[bool, str]:
        """Return whether an epoch is complete, after a moment if not; and why it cannot be sampled, or ""."""
        self._begin(epoch)
        if self._sampler is None:
            return True, ""
        process = self._sampler[1]
        try:
            # Not wait(): a process with a full pipe for its messages would never end.
            message = process.communicate(timeout=_POLL_SECONDS)[1].decode("utf-8", errors="replace").strip()
        except subprocess.TimeoutExpired:
            return False, ""
        self._sampler = None
        if process.returncode in _STOPPED:  # by the signal that stops training too; else it is started again
            return False, ""
        if process.returncode:
            return False, message.split("\n")[-1] or f"its process ended with {process.returncode}"
        return True, ""


TrainingPairs = PairData | SampledEpochs | WindowEpochs


def training_pairs(
    recipe: Recipe,
    run: Run,
    manifest: dict[str, Any],
    workers: Workers,
    wants_to_stop: Callable[[], bool] = lambda: False,
) -> TrainingPairs:
    """Return the training pairs of a prepared run.

    Args:
        wants_to_stop: polled while an epoch is waited for; when it is true in any process, all stop waiting.
    """
    prepared = training_data(run.train_data, recipe, run.tokenizer())
    if isinstance(prepared, WindowEpochs) and prepared.short_texts and workers.rank == 0:
        log.warning(
            "%s of %s left out, as they have at most data.sequence_length = %d tokens: text %s; join short texts "
            "in one file",
            len(prepared.short_texts), counted(prepared.num_texts, "training text"), recipe.data.sequence_length,
            ", ".join(map(str, prepared.short_texts[:10])) + (", ..." if len(prepared.short_texts) > 10 else ""),
        )  # fmt: skip
    if not recipe.training.subword_sampling or isinstance(prepared, WindowEpochs):
        return prepared
    # With the ids, as the same text may give others where it was prepared again.
    prepared_as = fingerprint_of(manifest["fingerprint"], sha256_of_ids(manifest))
    return SampledEpochs(prepared, recipe, run, prepared_as, workers, wants_to_stop)
