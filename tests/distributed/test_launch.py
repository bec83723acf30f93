import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nmtkit.distributed import launch as launcher
from nmtkit.distributed.workers import PEER_LOST


def test_processes_import_what_the_command_does_and_no_file_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from nmtkit.distributed.launch import launch\nprint(launch(2, ['--version']))\n"
    )
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tempfile.py").write_text("raise SystemExit('the file of the user ran')\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(command, env=environment, cwd=tmp_path / "here", capture_output=True, text=True)
    assert (done.stdout.split("\n")[-2], done.stderr) == ("0", "")


def test_processes_meet_at_their_own_store_also_below_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(subprocess, "Popen", lambda command, *, env, **_: given.append(env))
    assert list(launcher._start_processes(2, [], [sys.stderr.buffer])) == [None, None]
    assert [environment["TORCHELASTIC_USE_AGENT_STORE"] for environment in given] == ["False", "False"]


def test_a_process_that_ends_in_order_after_a_signal_is_no_failure() -> None:
    codes = [128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]
    assert [launcher._to_blame([0, code, PEER_LOST]) for code in codes] == [(2, False)] * 3
    assert launcher._to_blame([-signal.SIGABRT, PEER_LOST, 1]) == (2, False)  # NCCL aborts those that lost another
    assert launcher._to_blame([0, -signal.SIGABRT, PEER_LOST]) == (1, False)
    programs = [*(f"raise SystemExit({code})" for code in codes), "import time; time.sleep(1)"]
    processes = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    assert launcher._wait_for_end(processes) == (0, False)
    assert [process.returncode for process in processes] == [*codes, 0]  # the last was not ended by SIGTERM


def test_a_process_that_notices_no_signal_is_ended_a_while_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_SECONDS_TO_STOP", 0.2)
    programs = ["raise SystemExit(143)", "import time; time.sleep(20)"]
    processes = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    assert launcher._wait_for_end(processes) == (1, False)
    assert [process.returncode for process in processes] == [143, -signal.SIGABRT]


@pytest.mark.parametrize(
    ("codes", "expected", "told"),
    [
        ([0, 0], 143, ""),  # the stop came too late for them
        ([143, PEER_LOST], 143, ""),  # process 1 had begun to listen, and lost process 0, which had not
        ([-signal.SIGTERM, PEER_LOST], 143, ""),
        ([130, -signal.SIGABRT], 130, ""),
        ([PEER_LOST, 143], 143, "error: stopped by a signal; the same command goes on from the last save"),
        ([130, 130], 130, ""),  # it came after another one
        ([143, -signal.SIGKILL], 137, "error: process 1 of 2 was killed by SIGKILL"),
        ([1, PEER_LOST], 1, ""),
        ([0, PEER_LOST], 1, "error: process 1 of 2 lost touch with the others"),
    ],
)
def test_the_exit_code_after_a_signal_tells_of_it_unless_a_process_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], codes: list[int], expected: int, told: str
) -> None:
    wait_for_end = launcher._wait_for_end

    def signalled(children: list["subprocess.Popen[bytes]"]) -> tuple[int | None, bool]:
        os.kill(os.getpid(), signal.SIGTERM)
        return wait_for_end(children)

    class Ended:
        def __init__(self, code: int) -> None:
            self.returncode = code

        def poll(self) -> int:
            return self.returncode

        def wait(self, seconds: float) -> int:
            return self.returncode

    monkeypatch.setattr(launcher, "_SECONDS_FOR_ERRORS", 0.0)
    monkeypatch.setattr(launcher, "_start_processes", lambda *arguments: map(Ended, codes))
    monkeypatch.setattr(launcher, "_wait_for_end", signalled)
    assert launcher.launch(2, []) == expected
    err = capfd.readouterr().err
    assert err.startswith(told) if told else err == ""
