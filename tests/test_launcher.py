import os
import subprocess
import sys
from pathlib import Path


def test_processes_import_what_the_command_does_and_no_file_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("from nmtkit.launcher import launch\nprint(launch(2, ['--version']))\n")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tempfile.py").write_text("raise SystemExit('the file of the user ran')\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(command, env=environment, cwd=tmp_path / "here", capture_output=True, text=True)
    assert (done.stdout.split("\n")[-2], done.stderr) == ("0", "")
