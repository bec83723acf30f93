"""nmtkit commands in processes of their own, forked from one that has imported everything: torch alone takes seconds.

What they have of their own is as after a start: streams, arguments, environment, working folder, signal handlers.
"""

import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.preloaded"])
Output = Path | Connection


def _settle(stdin: Output, out: Output, err: Output, environment: dict[str, str]) -> None:
    """In the new process: give it streams and an environment of its own."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the server may be one of nmtkit.data, with SIGINT blocked
    for number, output in enumerate((stdin, out, err)):
        if isinstance(output, Path):
            descriptor = os.open(output, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(descriptor, number)
            os.close(descriptor)
        else:
            os.dup2(output.fileno(), number)
            output.close()
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)


def _execute(program: str, arguments: list[str], out: Path, environment: dict[str, str]) -> None:
    """In the new process: a Python program."""
    _settle(Path(os.devnull), out, out, environment)
    sys.argv = ["program", *arguments]
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


def run_programs(program: str, arguments: list[str], logs: list[Path], environments: list[dict[str, str]]) -> None:
    """Runs a Python program several times at once, each with its log and what its environment has besides."""
    processes = []
    for log, changes in zip(logs, environments, strict=True):
        values = (program, arguments, log, {**os.environ, **changes})
        processes.append(CONTEXT.Process(target=_execute, args=values))
        processes[-1].start()
    try:
        for process in processes:
            process.join(240)
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert codes == [0] * len(codes), "\n".join(log.read_text(encoding="utf-8") for log in logs)


def _run(
    arguments: list[str],
    stdin: Output,
    out: Output,
    err: Output,
    environment: dict[str, str],
    file_limit: int | None,
    before: Callable[[], None] | None,
) -> None:
    """In the new process: an nmtkit command."""
    _settle(stdin, out, err, environment)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    if before is not None:
        before()
    from nmtkit.cli.main import main

    sys.argv = ["nmtkit", *arguments]
    main()


def set_window_lines(count: int) -> None:
    """For the argument ``before``: files are translated in windows of so many lines."""
    from nmtkit.decoding import file_translation

    file_translation.WINDOW_LINES = count


def translate_after(gate: Path) -> None:
    """For the argument ``before``: nothing is translated before a path exists."""
    from nmtkit.decoding.translator import Translator

    translations = Translator.translations

    def translations_at_the_gate(*arguments: Any, **options: Any) -> Any:
        while not gate.exists():
            time.sleep(0.01)
        return translations(*arguments, **options)

    Translator.translations = translations_at_the_gate  # type: ignore[method-assign]


class Forked:
    """A started nmtkit command, used as `subprocess.Popen` is.

    Attributes:
        pid: number of the process.
        returncode: exit code, negative for a signal; None while it runs.
    """

    def __init__(
        self,
        *arguments: object,
        stdin: Output = Path(os.devnull),
        out: Output = Path(os.devnull),
        err: Output = Path(os.devnull),
        file_limit: int | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Args:
        stdin: file that is read, or end of a pipe.
        out, err: file to which stdout or stderr is added, or end of a pipe.
        file_limit: largest file that the process may write, in bytes.
        before: called in the process before the command.
        """
        values = ([*map(str, arguments)], stdin, out, err, dict(os.environ), file_limit, before)
        self._process = CONTEXT.Process(target=_run, args=values)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("nmtkit", timeout)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


@contextmanager
def piped(*arguments: object) -> Iterator[tuple[Forked, BinaryIO, BinaryIO, BinaryIO]]:
    """A started nmtkit command, and the other ends of its stdin, stdout and stderr."""
    (stdin, to_stdin), (of_out, out), (of_err, err) = (CONTEXT.Pipe(duplex=False) for _ in range(3))
    with Forked(*arguments, stdin=stdin, out=out, err=err) as process, ExitStack() as stack:
        files: list[Any] = []
        for ours, mode, theirs in ((to_stdin, "wb", stdin), (of_out, "rb", out), (of_err, "rb", err)):
            files.append(stack.enter_context(os.fdopen(os.dup(ours.fileno()), mode, buffering=0)))
            ours.close()
            theirs.close()
        yield process, *files


def run_forked(*arguments: object, file_limit: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs an nmtkit command to its end, as `subprocess.run` with the outputs as text."""
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
    with Forked(*arguments, out=pipes[0][1], err=pipes[1][1], file_limit=file_limit) as process:
        for _, writer in pipes:
            writer.close()
        with ThreadPoolExecutor(2) as readers:
            texts = list(readers.map(_read, (reader for reader, _ in pipes)))
        code = process.wait()
    return subprocess.CompletedProcess(["nmtkit", *map(str, arguments)], code, *texts)


def _read(reader: Connection) -> str:
    """What comes out of a pipe until its other end is closed."""
    with reader, open(reader.fileno(), encoding="utf-8", closefd=False) as file:
        return file.read()


def wait_until(is_so: Callable[[], bool], *processes: "Forked | subprocess.Popen[bytes]") -> None:
    """Waits, at most five minutes, while the processes go on."""
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), "ended too early"
        time.sleep(0.005)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outputs_by_hash_seed(program: str) -> list[bytes]:
    """What a Python program prints in two processes, not forked, that hash strings differently."""
    command = [sys.executable, "-c", program]
    environments = ({**os.environ, "PYTHONHASHSEED": seed} for seed in "12")
    return [subprocess.run(command, env=env, capture_output=True, check=True).stdout for env in environments]
