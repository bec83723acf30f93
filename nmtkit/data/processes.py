"""Work on blocks of text in several processes, with the results in order: the same for any number of them.

    tasks --> process 0 --\\
          --> process 1 ---> results, in the order of the tasks
          --> ...      --/

A process gets its next task when its last result has been taken, so nothing is ever held but a few blocks, and no two
sides of a pipe wait for each other. Processes end by themselves when the one that started them is gone, killed or not.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar, cast

from nmtkit.console import log
from nmtkit.distributed.interpreter import STOP_SIGNALS, same_imports
from nmtkit.errors import NmtkitError

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_WORTH_PROCESSES = 4
"""With fewer all is done in this process: starting others takes a second."""
PRELOADED = ["nmtkit.data.encoding", "nmtkit.data.examination", "sentencepiece"]
"""What is imported once, for all processes that are started."""
_RESULTS_HELD_PER_PROCESS = 4
"""Blocks that one slow block may keep waiting."""
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Where a container states the microseconds of processor that it has in each period of so many."""


def default_workers() -> int:
    """As many as there are cores this process may use, by its affinity and its container's share of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share, period = _CPU_MAX.read_text(encoding="ascii").split() if _CPU_MAX.is_file() else ("max", "")
    return cores if share == "max" else min(cores, max(1, int(share) // int(period)))


def in_order(
    make: Callable[..., Callable[[Task], Result]],
    arguments: tuple[Any, ...],
    tasks: Iterable[Task],
    num_workers: int | None,
) -> Iterator[Result]:
    """The result of each task, in order.

    Args:
        make: gives the function that does a task; it is called once in each process, with ``arguments``.
        num_workers: how many processes; 1: this one and no other, as where the system has none to give. By default as
            many as there are cores.

    Raises:
        Exception: what a task, or the making of one, raised, when its turn has come.
        NmtkitError: a process has ended before its time.
    """
    failures: list[Exception] = []
    remaining = _until_failure(tasks, failures)
    first = list(islice(remaining, TASKS_WORTH_PROCESSES))
    num_processes = (num_workers or default_workers()) if len(first) == TASKS_WORTH_PROCESSES else 1
    processes = _started(make, arguments, num_processes) if num_processes > 1 else None
    if processes is None:
        work = make(*arguments)
        for task in chain(first, remaining):
            yield work(task)
    else:
        with processes:
            yield from processes.in_order(chain(first, remaining))
    if failures:
        raise failures[0]


def _started(make: Callable[..., Any], arguments: tuple[Any, ...], num_processes: int) -> "_Processes | None":
    """Processes at work; None, with a warning, where the system cannot start them."""
    try:
        return _Processes(make, arguments, num_processes)
    except (OSError, EOFError) as error:
        log.warning(
            "%d processes cannot be started (%s), so a single process does the work, more slowly; check that the "
            "temporary folder (TMPDIR) exists and has a short path",
            num_processes, error,
        )  # fmt: skip
        return None


def _until_failure(tasks: Iterable[Task], failures: list[Exception]) -> Iterator[Task]:
    """The tasks until making one fails, which is told when those before it are done: so the first fault is told."""
    try:
        yield from tasks
    except Exception as error:
        failures.append(error)


class _Processes:
    """Processes that each do one task at a time."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...], num_processes: int) -> None:
        # Not forked from here, where threads may run and libraries may have been started.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._stack = ExitStack()
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        try:
            with _environment(same_imports()):  # the fork server's, which comes to life with the first process
                for _ in range(num_processes):
                    ours, theirs = context.Pipe()
                    self._connections.append(self._stack.enter_context(ours))
                    with theirs:  # closed here, so that the end of the process is the end of the pipe
                        process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
                        process.start()
                    self._processes.append(process)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "_Processes":
        return self

    def in_order(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """The result of each task, in order."""
        idle, busy = list(self._connections), dict[Connection, int]()
        results = dict[int, Any]()
        num_sent = num_yielded = 0
        is_last = object()
        task = next(tasks, is_last)
        while task is not is_last or busy:
            held = num_sent - num_yielded
            if task is not is_last and idle and held < _RESULTS_HELD_PER_PROCESS * len(self._connections):
                connection = idle.pop()
                self._exchange(connection, task)
                busy[connection], num_sent = num_sent, num_sent + 1
                task = next(tasks, is_last)  # is made while the others work
                continue
            for ready in cast(list[Connection], wait(list(busy))):
                results[busy.pop(ready)] = self._exchange(ready)
                idle.append(ready)
            while num_yielded in results:
                result = results.pop(num_yielded)
                if isinstance(result, Exception):
                    raise result
                num_yielded += 1
                yield result

    def _exchange(self, connection: Connection, *task: Any) -> Any:
        """Sends a task, or receives a result."""
        try:
            return connection.send(task[0]) if task else connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            number = self._connections.index(connection)
            self._processes[number].join(timeout=5)
            code = self._processes[number].exitcode
            why = "what it said stands above; a script of your own needs `if __name__ == '__main__':` around its calls"
            if code is not None and code < 0:
                why = "it was killed, often for want of memory; run the same command again, with fewer --workers"
            raise NmtkitError(
                f"worker process {number + 1} of {len(self._processes)} has ended (exit code {code}): {why}"
            ) from None

    def __exit__(self, *exception: object) -> None:
        self._stack.close()  # which ends them
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():  # at work on a block that nobody wants any more
                process.kill()
                process.join()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """The environment with other values of some variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection, make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    """In a process of its own: does one task after the other until the pipe is closed."""
    for number in set(STOP_SIGNALS) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)  # a terminal's signals are for the process that started this one
    work = None
    while True:
        try:
            task = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            work = work or make(*arguments)
            result = work(task)
        except Exception as error:
            if not isinstance(error, NmtkitError):  # a bug, whose traceback would stay here
                error.add_note(traceback.format_exc())
            result = error
        try:
            connection.send(result)
        except (BrokenPipeError, ConnectionResetError):
            return
