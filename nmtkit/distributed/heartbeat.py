"""Heartbeats of the processes of a training.

A thread of each process increments a count in the key-value store of the group once per second, and reads the counts of
the others. So a process that was killed or stopped, or lost its machine, is detected, while a slow one (such as rank 0
while it saves) keeps counting; one whose computation hangs is detected by the time limit of an exchange. A failing
process writes its error to the store for the others.
"""

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from nmtkit.console import log
from nmtkit.errors import NmtkitError

INTERVAL_SECONDS = 1.0
SILENCE_SECONDS = 40.0
"""Time without a new count after which a process is considered lost."""
FAREWELL_SECONDS = 10.0
"""Time for the other processes to detect a failed process or a lost store in an exchange of their own."""
STORE_TIMEOUT = timedelta(seconds=SILENCE_SECONDS)

_MEETING = "nmtkit/meeting"
_ORPHANED = "nmtkit/orphaned"
_ENDED, _FAILED, _LOST = "ended", "failed: ", "lost: "


class Heartbeat:
    """The heartbeat of this process, and the observer of the other processes.

    Args:
        store: store of the process group, through a separate connection; no other group may use the same keys.
        on_loss: called from the thread with a message when another process is lost; it must end this process.
        parent: id of the process that started all of these. When that is gone, rank 0, whose messages are shown, logs
            an error and gets SIGTERM, and then the others get it. 0: none is watched.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        num_processes: int,
        on_loss: Callable[[str], None],
        *,
        parent: int = 0,
        interval_seconds: float = INTERVAL_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        farewell_seconds: float = FAREWELL_SECONDS,
    ) -> None:
        self._store, self._rank, self._num_processes, self._on_loss = store, rank, num_processes, on_loss
        self._interval = interval_seconds
        self._silence = max(1, round(silence_seconds / interval_seconds))
        self._farewell = max(1, round(farewell_seconds / interval_seconds))
        self._others = [other for other in range(num_processes) if other != rank]
        self._parent = parent
        self._over = threading.Event()
        # Before the others read: `multi_get` waits for a key that does not exist yet.
        self._store.set(_key(rank), "0")
        # A daemon thread, so that a process that fails before `stop` can end.
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self, failure: str | None = None, *, is_of_others: bool = False) -> None:
        """End the heartbeat, and record that this process has ended.

        Args:
            failure: error that ended this process, if any.
            is_of_others: ``failure`` describes another process, like a result of `blame`.
        """
        self._over.set()
        # First the thread ends: its next count would overwrite the entry below.
        self._thread.join(self._interval + 1)
        prefix = _LOST if is_of_others else _FAILED
        try:
            self._store.set(_key(self._rank), _ENDED if failure is None else prefix + failure)
        except RuntimeError:
            return  # without the store there are no readers either

    def blame(self, reason: str = "") -> str:
        """Name the process to blame for an exchange that failed: one that is silent or has failed.

        Args:
            reason: what is stated if all processes answer, such as the message of a library.
        """
        try:
            before = self._read()
            # Every live process counts several times in four intervals; a failed one may store its error only now.
            for _ in range(4):
                time.sleep(self._interval)
                after = self._read()
                if fault := self._fault(after):
                    return fault
        except RuntimeError:
            return self._without_store()
        silent = [rank for rank in self._others if after[rank] == before[rank]]
        ended = [rank for rank in silent if after[rank] == _ENDED]
        if ended:
            return f"{self._name(ended)} ended before the others"
        if silent:
            return f"{self._name(silent)} answers no more: killed, or its machine or network is gone"
        return "the connection between the processes broke, though all of them answer" + (reason and f": {reason}")

    def _run(self) -> None:
        """Count, and watch the others. Time is measured in own beats, so a machine that slept reports no loss."""
        count = 0
        last: dict[int, str] = {}
        waited = dict.fromkeys(self._others, 0)
        while not self._over.wait(self._interval):
            count += 1
            try:
                # A process without parent gets another one, so the id changes.
                if self._parent and os.getppid() != self._parent:
                    if self._rank == 0:
                        log.error("the process that started this one is gone; stopping as by SIGTERM")
                        self._store.set(_ORPHANED, "")
                    # The others wait until rank 0 has stated the reason: their own messages are not shown.
                    if self._store.check([_ORPHANED]):
                        self._parent = 0
                        os.kill(os.getpid(), signal.SIGTERM)
                self._store.set(_key(self._rank), str(count))
                values = self._read()
            except RuntimeError:
                # Process 0, which has the store, sometimes ends first; this process may be about to end as well.
                if not self._over.wait(self._interval * self._farewell):
                    self._on_loss(self._without_store())
                return
            for rank, value in values.items():
                # A process that ended in order does not count any more, and is not lost.
                waited[rank] = waited[rank] + 1 if value == last.get(rank) and value != _ENDED else 0
            last = values
            # First a failed process has time to be detected by an exchange, which ends this process in order.
            past_farewell = [rank for rank in self._others if waited[rank] >= self._farewell]
            failed = [rank for rank in past_farewell if values[rank].startswith((_FAILED, _LOST))]
            silent = [rank for rank in self._others if waited[rank] >= self._silence]
            if failed:
                self._on_loss(self._fault(values) or "")
                return
            if silent:
                self._on_loss(
                    f"{self._name(silent)} gave no sign of life for {round(self._silence * self._interval)} seconds"
                )
                return

    def _read(self) -> dict[int, str]:
        values = self._store.multi_get([_key(rank) for rank in self._others])
        return {rank: bytes(value).decode("utf-8") for rank, value in zip(self._others, values, strict=True)}

    def _fault(self, values: dict[int, str]) -> str | None:
        """Return the error of the first failed process; processes that lost it repeat its error."""
        for rank, value in sorted(values.items()):
            if value.startswith(_FAILED):
                return f"{self._name([rank])} {value}"
        return next((value.removeprefix(_LOST) for value in values.values() if value.startswith(_LOST)), None)

    def _without_store(self) -> str:
        return f"{self._name([0])}, or what started it, answers no more: killed, or its machine or network is gone"

    def _name(self, ranks: Sequence[int]) -> str:
        numbers = ", ".join(str(rank) for rank in ranks)
        return f"process{'es' if len(ranks) > 1 else ''} {numbers} of {self._num_processes}"


def meet(store: Store, rank: int, num_processes: int, device: str, patience: timedelta) -> str:
    """Wait for all processes, and return a common name that no earlier group in the store had.

    Under torchrun the store outlives the processes, so a second attempt finds entries of the first, such as addresses
    that no process serves any more. So process 0 generates a name, and the others repeat their registration until
    process 0 confirms it under this name.

    Args:
        device: type of this process's device, which must be that of all.
        patience: how long process 0 waits for each of the others.

    Raises:
        NmtkitError: processes have devices of different types, or one is missing.
    """
    own = f"{secrets.token_hex(8)}-{device}"
    if rank == 0:
        store.set(_MEETING, own)
        guests = []
        for other in range(1, num_processes):
            deadline = time.monotonic() + patience.total_seconds()
            while not store.check([f"{own}/{other}"]):
                if time.monotonic() > deadline:
                    raise NmtkitError(f"process {other} of {num_processes} is missing; start it, too")
                time.sleep(0.02)  # torch's own waiting does not let Python handle signals
            guests.append(store.get(f"{own}/{other}").decode())
        store.set(f"{own}/guests", " ".join(guests))
        return _of_one_device(own, guests)
    while True:
        name = store.get(_MEETING).decode()
        store.set(f"{name}/{rank}", own)
        # The name may be that of an earlier attempt, until process 0 of this one has stored its own.
        while store.get(_MEETING).decode() == name:
            if store.check([f"{name}/guests"]) and own in (guests := store.get(f"{name}/guests").decode().split()):
                return _of_one_device(name, guests)
            time.sleep(0.02)


def _of_one_device(name: str, guests: Sequence[str]) -> str:
    """Return the name if it and those of the guests end in the same type of device."""
    devices = [each.rpartition("-")[2] for each in (name, *guests)]
    if len(set(devices)) > 1:
        found = ", ".join(f"process {rank}: {device}" for rank, device in enumerate(devices))
        raise NmtkitError(f"--device: the processes have different devices ({found}); choose --device cpu or cuda")
    return name


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"
