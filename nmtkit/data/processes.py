"""Work on blocks of text in several processes; the results come in order, the same for any number of processes.

A process gets its next task when its last result has been received, so only a few blocks are held at a time, and the
two ends of a pipe never wait for each other. Processes end when the process that started them ends or is killed. That
is why concurrent.futures is not used: its workers outlive a killed parent, and before Python 3.12 it may hang when a
worker is killed while a task is being sent to it.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from nmtkit.console import log
from nmtkit.distributed.interpreter import STOP_SIGNALS, same_imports
from nmtkit.distributed.limits import available_cores
from nmtkit.errors import NmtkitError

T = TypeVar("T")
R = TypeVar("R")

TASKS_WORTH_PROCESSES = 4
"""Minimum number of tasks for which processes are started, as starting them takes a second."""
PRELOADED = ["nmtkit.data.encoding", "sentencepiece"]
"""Modules imported once, by the server from which all processes are forked."""
_OF_TERMINALS = set(STOP_SIGNALS) - {signal.SIGTERM}
"""Signals that a terminal sends to all processes, and that are for the one that started the others."""
_MOST_PROCESSES = 64
"""Most processes by default, each of which takes three of often 1,024 file descriptors."""
_RESULTS_HELD_PER_PROCESS = 4
"""Number of results per process that may wait for an earlier, slow task."""


def in_order(
    make: Callable[..., Callable[[T], R]],
    arguments: tuple[Any, ...],
    tasks: Iterable[T],
    num_workers: int | None,
) -> Iterator[R]:
    """Yield the result of each task, in order.

    Args:
        make: returns the function that does a task; called once in each process, with ``arguments``.
        num_workers: number of processes; 1: this process does the work, also if the system cannot start others. By
            default the number of available cores, at most 64.

    Raises:
        Exception: the exception of a task, or of the iterator of tasks, after the results of all tasks before it.
        NmtkitError: a process has died.
    """
    failures: list[Exception] = []

    def until_failure() -> Iterator[T]:
        try:
            yield from tasks
        except Exception as error:  # raised once the tasks before it are done, so that the first fault is reported
            failures.append(error)

    remaining = until_failure()
    first = list(islice(remaining, TASKS_WORTH_PROCESSES))
    num_workers = num_workers or min(_MOST_PROCESSES, available_cores())
    num_processes = num_workers if len(first) == TASKS_WORTH_PROCESSES else 1
    with ExitStack() as stack:
        processes = None
        if num_processes > 1:
            try:
                processes = stack.enter_context(_started(make, arguments, num_processes))
            except (OSError, EOFError) as error:
                log.warning(
                    "%d processes cannot be started (%s), so a single process does the work, more slowly; check that "
                    "the temporary folder (TMPDIR) exists and has a short path",
                    num_processes, error,
                )  # fmt: skip
        if processes is not None:
            yield from _results(processes, chain(first, remaining))
        else:
            yield from map(make(*arguments), chain(first, remaining))
    if failures:
        raise failures[0]


@contextmanager
def _started(
    make: Callable[..., Any], arguments: tuple[Any, ...], num_processes: int
) -> Iterator[dict[Connection, Any]]:
    """Start processes that each do one task at a time, yield them by their pipes, and end them at last."""
    # Not forked from this process, where threads may run and libraries may hold locks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes: dict[Connection, Any] = {}
    try:
        with ExitStack() as pipes:  # closes them, at which the processes end
            # The fork server, which starts with the first process, inherits both.
            with _environment(same_imports()), _blocked(_OF_TERMINALS):
                for _ in range(num_processes):
                    ours, theirs = context.Pipe()
                    pipes.enter_context(ours)
                    with theirs:  # closed here, so that the end of the process is the end of the pipe
                        process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
                        process.start()
                    processes[ours] = process
            yield processes
    finally:
        for process in processes.values():
            process.join(timeout=5)
            if process.is_alive():  # busy with a block whose result is not needed any more
                process.kill()
                process.join()


def _results(processes: dict[Connection, Any], tasks: Iterator[Any]) -> Iterator[Any]:
    idle, busy = list(processes), dict[Connection, int]()
    results = dict[int, Any]()
    num_sent = num_yielded = 0
    end = object()
    task = next(tasks, end)
    while task is not end or busy:
        held = num_sent - num_yielded
        if task is not end and idle and held < _RESULTS_HELD_PER_PROCESS * len(processes):
            connection = idle.pop()
            with _report_dead_process(processes, connection):
                connection.send(task)
            busy[connection], num_sent = num_sent, num_sent + 1
            task = next(tasks, end)  # read the next task while the processes work
            continue
        for ready in cast(list[Connection], wait(list(busy))):
            with _report_dead_process(processes, ready):
                results[busy.pop(ready)] = ready.recv()
            idle.append(ready)
        while num_yielded in results:
            result = results.pop(num_yielded)
            if isinstance(result, Exception):
                raise result
            num_yielded += 1
            yield result


@contextmanager
def _report_dead_process(processes: dict[Connection, Any], connection: Connection) -> Iterator[None]:
    """Turn the error of a broken pipe into a NmtkitError about the process that has died."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        process = processes[connection]
        process.join(timeout=5)
        code = process.exitcode
        why = "its own messages are above; a script of your own needs `if __name__ == '__main__':` around its calls"
        if code is not None and code < 0:
            why = "it was killed, often for lack of memory; run the same command again, with fewer --workers"
        number = list(processes).index(connection) + 1
        raise NmtkitError(f"worker process {number} of {len(processes)} has ended (exit code {code}): {why}") from None


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Block signals for the duration of a `with` block, in this thread and in all processes that it starts."""
    resource_tracker.ensure_running()  # at its start it would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update({name: before[name] for name in variables if name in before})


def _serve(connection: Connection, make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    """Do tasks in a worker process until the pipe is closed."""
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    work = None
    while True:
        try:
            task = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            # Inside, so that an error of `make` is reported as one of the first task.
            work = work or make(*arguments)
            result = work(task)
        except Exception as error:
            if not isinstance(error, NmtkitError):  # a bug, whose traceback is lost on the way to the other process
                error.add_note(traceback.format_exc())
            result = error
        try:
            connection.send(result)
        except (BrokenPipeError, ConnectionResetError):
            return
