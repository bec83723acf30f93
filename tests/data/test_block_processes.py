"""Work in several processes: results in order, the first fault told, and nobody left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nmtkit.data.processes import TASKS_WORTH_PROCESSES, in_order
from nmtkit.errors import DataError, NmtkitError
from tests.conftest import message_of
from tests.forked import is_running


def squares(offset: int) -> Callable[[int], tuple[int, int]]:
    """Slow for every third number, so that results come out of order."""

    def square(number: int) -> tuple[int, int]:
        if number % 3 == 0:
            time.sleep(0.01)
        if number == -1:
            raise DataError("minus one")
        if number == -2:
            os._exit(7)
        if number == -9:
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number + offset, os.getpid()

    return square


def test_results_come_in_order_from_several_processes() -> None:
    results = list(in_order(squares, (5,), range(40), 3))
    assert [result for result, _ in results] == [number * number + 5 for number in range(40)]
    assert len({process for _, process in results} - {os.getpid()}) == 3


@pytest.mark.parametrize(("count", "workers"), [(40, 1), (TASKS_WORTH_PROCESSES - 1, 3), (0, 3)])
def test_one_worker_or_little_work_starts_no_process(count: int, workers: int) -> None:
    results = list(in_order(squares, (5,), range(count), workers))
    assert results == [(number * number + 5, os.getpid()) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_task_raises_is_told_in_its_turn(workers: int) -> None:
    found = []
    with pytest.raises(DataError, match="minus one"):
        for result, _ in in_order(squares, (0,), [1, 2, 3, 6, 4, -1, 5, -1], workers):
            found.append(result)
    assert found == [1, 4, 9, 36, 16]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_making_a_task_raises_is_told_after_all_before_it(workers: int) -> None:
    def tasks() -> Iterator[int]:
        yield from range(7)
        raise DataError("no seventh")

    found = []
    with pytest.raises(DataError, match="no seventh"):
        for result, _ in in_order(squares, (0,), tasks(), workers):
            found.append(result)
    assert found == [number * number for number in range(7)]


@pytest.mark.parametrize(
    ("fatal", "told"), [(-2, r"exit code 7\): its own messages are above"), (-9, r"exit code -9\): it was killed")]
)
def test_a_process_that_is_gone_is_told_in_one_line(fatal: int, told: str) -> None:
    told = r"worker process \d of 2 has ended \(" + told
    message_of(lambda: list(in_order(squares, (0,), [1, 2, 3, 4, fatal, 5, 6, 7], 2)), NmtkitError, told)


def script(folder: Path, call: str) -> tuple[list[str | Path], dict[str, str]]:
    """A program that calls `in_order` under its guard, as a user's does, and the environment to run it in."""
    (folder / "program.py").write_text(
        "import itertools, os, time\n"
        "from nmtkit.data.processes import in_order\n"
        "def make():\n"
        "    return lambda number: (time.sleep(0.01), os.getpid())[1]\n"
        f'if __name__ == "__main__":\n{call}'
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return [sys.executable, folder / "program.py"], environment


FOUND = "    print(len(set(in_order(make, (), range(12), 2)) - {os.getpid()}))\n"


def test_a_file_of_the_users_is_not_imported_in_the_place_of_a_module(tmp_path: Path) -> None:
    command, environment = script(tmp_path, FOUND)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "random.py").write_text("raise SystemExit('the file of the user ran')\n")
    done = subprocess.run(command, env=environment, cwd=tmp_path / "here", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_where_no_process_can_be_started_one_does_all(tmp_path: Path) -> None:
    command, environment = script(tmp_path, FOUND)
    long = tmp_path / ("x" * 100)
    long.mkdir()
    done = subprocess.run(command, env={**environment, "TMPDIR": str(long)}, capture_output=True, text=True)
    assert done.stdout == "0\n"
    assert re.fullmatch(
        r"2 processes cannot be started \(.*too long.*\), so a single process does the work.*\(TMPDIR\).*\n",
        done.stderr,
    )


def test_processes_leave_the_signals_of_a_terminal_to_the_first_from_their_start(tmp_path: Path) -> None:
    call = (
        "    def blocked(process):\n"
        "        lines = open(f'/proc/{process}/status').read().split('\\n')\n"
        "        return next(int(line.split()[1], 16) for line in lines if line.startswith('SigBlk'))\n"
        "    found = {process: blocked(process) for process in in_order(make, (), range(12), 2)}\n"
        "    from multiprocessing.forkserver import _forkserver\n"
        "    print(*map(blocked, [os.getpid(), _forkserver._forkserver_pid]), *found.values())\n"
    )
    command, environment = script(tmp_path, call)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    of_terminals = (1 << signal.SIGINT - 1) | (1 << signal.SIGHUP - 1)
    assert (done.stdout.split(), done.stderr) == (["0", *[str(of_terminals)] * 3], "")


def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    endless = "    for process in in_order(make, (), itertools.count(), 2):\n        print(process, flush=True)\n"
    command, environment = script(tmp_path, endless)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(30)}
        parent.send_signal(signal.SIGKILL)
    assert len(workers - {parent.pid}) == 2
    deadline = time.monotonic() + 60
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
