"""`nmtkit train --processes N`: N processes of the same command on this machine."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

from nmtkit.console import LAUNCHED
from nmtkit.distributed.cpu import threads_each
from nmtkit.distributed.interpreter import STOP_SIGNALS, same_imports, stop_signals
from nmtkit.distributed.workers import GOING_ON, PEER_LOST

_SECONDS_FOR_ERRORS = 2.0
_SECONDS_TO_STOP = 60.0
"""Time for the other processes to end once one has ended after a signal."""
_NO_FAILURE = (None, 0, *(128 + number for number in STOP_SIGNALS))
"""Exit codes of processes that run, are done, or ended in order after a signal that was passed on."""
_ABORTED = -signal.SIGABRT
"""Exit code of a process that NCCL ended because it had lost another one, or that failed in a library."""
_LOST = (PEER_LOST, _ABORTED)


def launch(num_processes: int, arguments: Sequence[str]) -> int:
    """Run `nmtkit ARGUMENTS` in several processes on this machine and return their exit code.

    Signals are passed on to all processes. If a process fails, the others are ended, and only the error of the process
    to blame is shown. So an error that all processes have appears once, and a process that was killed is named.
    """
    with ExitStack() as stack:
        # Files and not pipes: they are read at the end only, and a full pipe would stop its process.
        messages = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, num_processes)]
        children: list[subprocess.Popen[bytes]] = []
        received: list[int] = []

        def pass_on(number: int, _frame: object) -> None:
            received.append(number)
            for child in children:
                if child.poll() is None:
                    child.send_signal(number)

        previous: dict[int, Any] = {number: signal.signal(number, pass_on) for number in stop_signals()}
        try:
            for child in _start_processes(num_processes, arguments, messages):
                children.append(child)
            if received:
                pass_on(received[-1], None)  # it arrived before all processes were started
            failed, hangs = _wait_for_end(children)
        except OSError:  # no more processes can be started; those already started would wait for the others
            for child in children:
                child.kill()
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        codes = [child.returncode for child in children]
        by_signal = (*_NO_FAILURE, *(-number for number in STOP_SIGNALS))
        stopped = any(code and code in by_signal for code in codes)
        if received and not hangs and all(code in by_signal or (stopped and code in _LOST) for code in codes):
            # Some may be done, or have lost those that ended before them; the steps after training must not run.
            if codes[0] in _LOST:  # and has logged nothing
                sys.stderr.write(f"error: stopped by a signal{GOING_ON}\n")
            return next((code for code in codes if code and code in _NO_FAILURE), 128 + received[-1])
        code = codes[failed or 0]
        if failed:
            messages[failed - 1].seek(0)
            sys.stderr.write(messages[failed - 1].read().decode("utf-8", errors="replace"))
        if failed is not None and not (received and -code in received) and (hangs or code < 0 or code == PEER_LOST):
            end = "gave no sign of life and was ended" if hangs else how_it_ended(code)
            sys.stderr.write(f"error: process {failed} of {num_processes} {end}{GOING_ON}\n")
    if hangs or code == PEER_LOST:
        return 1
    return code if code >= 0 else 128 - code  # as a shell reports the end by a signal


def how_it_ended(code: int) -> str:
    """Describe the exit code of a process."""
    if code >= 0:
        return "lost touch with the others"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}{', perhaps for want of memory' if -code == signal.SIGKILL else ''}"


def _start_processes(
    num_processes: int, arguments: Sequence[str], messages: Sequence[IO[bytes]]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the processes one by one; all but the first write their messages into files."""
    with socket.socket() as probe:
        # The system chooses a free port; nothing reserves it until process 0 listens on it.
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(num_processes):
        environment = {
            # Before the inherited variables, so that a number set by the user counts.
            "OMP_NUM_THREADS": str(threads_each(num_processes)),
            **os.environ,
            **same_imports(),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # of a torchrun around this command
            LAUNCHED: str(os.getpid()),
        }
        command = [sys.executable, "-m", "nmtkit", *arguments]
        output = messages[rank - 1] if rank else None
        # In a new session, so that Ctrl-C reaches a process only once, through `launch`.
        yield subprocess.Popen(command, env=environment, stderr=output, start_new_session=True)


def _wait_for_end(children: list[subprocess.Popen[bytes]]) -> tuple[int | None, bool]:
    """Wait for all processes, and end the others when one fails, or a while after one was stopped by a signal.

    Returns:
        The process to blame, if one failed, and whether it hung.
    """
    stopped_at: float | None = None
    while any(child.poll() is None for child in children):
        codes = [child.poll() for child in children]
        if any(code not in _NO_FAILURE for code in codes):
            # Before the pause: the first process that was killed is to blame, however the others end after it.
            killed = next((rank for rank, code in enumerate(codes) if (code or 0) < 0 and code != _ABORTED), None)
            time.sleep(_SECONDS_FOR_ERRORS)  # time for the first process to report an error that all have
            codes = [child.poll() for child in children]
            for child in children:
                if child.poll() is None:
                    child.terminate()
            blamed = (killed, False) if killed is not None else _to_blame(codes)
            wait_or_kill(children, 5 if blamed[1] else 30)
            return blamed
        if any(codes):
            stopped_at = stopped_at or time.monotonic()
            if time.monotonic() - stopped_at >= _SECONDS_TO_STOP:
                # In torch's calls that wait for the others, Python does not handle the signals that stop a process.
                for child in children:
                    if child.poll() is None:
                        child.send_signal(signal.SIGABRT)
        time.sleep(0.1)
    return _to_blame([child.poll() for child in children])


def _to_blame(codes: list[int | None]) -> tuple[int | None, bool]:
    """Return the process that probably failed first, judged by the exit codes, and whether it hung.

    In this order: a process that failed by itself, one that still runs although others lost it, one that lost others.
    """
    failed_alone = [rank for rank, code in enumerate(codes) if code not in (*_NO_FAILURE, PEER_LOST)]
    if failed_alone:
        # An abort is probably a consequence: NCCL aborts processes that lost another one.
        return min(failed_alone, key=lambda rank: codes[rank] == _ABORTED), False
    if None in codes:
        return codes.index(None), True
    failed = [rank for rank, code in enumerate(codes) if code == PEER_LOST]
    stopped = [rank for rank, code in enumerate(codes) if code]
    return next(iter([*failed, *stopped]), None), False


def wait_or_kill(children: list[subprocess.Popen[bytes]], seconds: float = 30) -> None:
    """Wait for processes that have got a signal to end, and kill those still running after ``seconds`` in all."""
    deadline = time.monotonic() + seconds
    for child in children:
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
