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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(command, env=environment, cwd=tmp_path / "here", capture_output=True, text=True)
    assert (done.stdout.split("\n")[-2], done.stderr) == ("0", "")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_process_that_ends_in_order_after_a_signal_is_no_failure(number: int) -> None:
    assert launcher._to_blame([0, 128 + number, PEER_LOST]) == (2, False)
    ended = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({128 + number})"])
    saving = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    assert launcher._wait_for_end([ended, saving]) == (0, False)
    assert (ended.returncode, saving.returncode) == (128 + number, 0)  # it was not ended by SIGTERM


def test_a_stop_that_comes_too_late_for_the_processes_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ends_well(children: list[object]) -> tuple[None, bool]:
        os.kill(os.getpid(), signal.SIGTERM)
        return None, False

    class Ended:
        returncode = 0

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(launcher, "_start_processes", lambda *arguments: [Ended(), Ended()])
    monkeypatch.setattr(launcher, "_wait_for_end", ends_well)
    assert launcher.launch(2, []) == 128 + signal.SIGTERM
