"""kill -9 at any moment, and full disks: the run goes on, to the very end it would have had."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from killing import Moment, kill_at

from nmtkit.files import TEMPORARY_MARK
from nmtkit.run import LOCK_NAME
from tests.conftest import TinyProject, contents, determined, run_command
from tests.forked import Forked


class Trainer:
    """Starts trainings of the tiny project in processes of their own."""

    def __init__(self, project: TinyProject, folder: Path) -> None:
        self._project, self._messages = project, folder / "messages"

    def __call__(self, run: Path, *overrides: str, moment: Moment = ("never", 0)) -> tuple[int, str]:
        """The exit code (negative: the signal) and what was said on stderr."""
        options = [option for override in overrides for option in ("--set", override)]
        arguments = self._project.command(run, *options)
        self._messages.unlink(missing_ok=True)
        before = partial(kill_at, moment)
        with Forked(*arguments, err=self._messages, before=before) as process:
            process.wait(300)
        assert process.returncode is not None
        return process.returncode, self._messages.read_text(encoding="utf-8") if self._messages.exists() else ""


@pytest.fixture(scope="module")
def trainer(tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = Trainer(tiny_project, tmp_path_factory.mktemp("trainer"))
    trainer(tiny_project.copy(tmp_path_factory.mktemp("warm") / "run"), "training.max_steps=1")  # starts the server
    return trainer


def random_moment(rng: random.Random) -> Moment:
    """A moment at the start of a session, in its updates, its validations or its saves."""
    return rng.choice(
        [
            ("seconds", rng.uniform(0.0, 0.8)),
            ("file operations", rng.randint(1, 150)),
            ("validation batches", rng.randint(0, 6)),
        ]
    )


def check_killed(trainer: Trainer, alone: Path, run: Path, moments: list[Moment], *settings: str) -> None:
    """A run killed at all these moments has the same end as one that was left alone."""
    for moment in moments:
        code, message = trainer(run, *settings, moment=moment)
        assert code in (-signal.SIGKILL, -signal.SIGALRM), f"{moment}: {message}"
    code, message = trainer(run, *settings)
    assert code == 0, message
    assert determined(run) == determined(alone)
    assert [path for path in run.rglob("*") if TEMPORARY_MARK in path.name or path.name == LOCK_NAME] == []


def test_a_run_killed_three_times_has_the_same_end(
    trainer: Trainer, tiny_project: TinyProject, uninterrupted: Path, tmp_path: Path
) -> None:
    moments: list[Moment] = [("seconds", 0.1), ("validation batches", 1), ("file operations", 25)]
    check_killed(trainer, uninterrupted, tiny_project.copy(tmp_path / "run"), moments)


@pytest.mark.slow
def test_a_run_killed_25_times_at_random_moments_has_the_same_end(
    trainer: Trainer, tiny_project: TinyProject, tmp_path: Path
) -> None:
    rng = random.Random(25)
    moments = [random_moment(rng) for _ in range(25)]
    steps = "training.max_steps=1200"
    alone = tiny_project.copy(tmp_path / "alone")
    assert trainer(alone, steps)[0] == 0
    check_killed(trainer, alone, tiny_project.copy(tmp_path / "run"), moments, steps)


@pytest.mark.slow
def test_a_run_killed_before_every_single_file_operation_of_a_save_has_the_same_end(
    trainer: Trainer, tiny_project: TinyProject, uninterrupted: Path, tmp_path: Path
) -> None:
    begun = tiny_project.copy(tmp_path / "begun")
    trainer(begun, "training.max_steps=10")
    for number in range(200):
        run = tmp_path / f"run-{number}"
        shutil.copytree(begun, run)
        code, message = trainer(run, moment=("file operations", number))
        if code == 0:
            break
        assert code == -signal.SIGKILL, message
        code, message = trainer(run)
        assert code == 0, message
        found, expected = determined(run), determined(uninterrupted)
        assert found == expected, f"killed before file operation {number}"
        shutil.rmtree(run)
    assert 40 < number < 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False, capture_output=True
    ).returncode:
        pytest.skip("no permission to mount")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)  # this process may still have its files open


class TestFullDisk:
    @pytest.mark.parametrize("left", [0, 30_000, 250_000])
    def test_a_full_disk_is_one_line_and_with_room_the_run_goes_on_to_the_same_end(
        self, tiny: TinyProject, uninterrupted: Path, small_disk: Path, left: int
    ) -> None:
        run = tiny.copy(small_disk / "run")
        command = tiny.command(run)
        tiny.train(run, "training.max_steps=6")
        before = contents(run)
        with (small_disk / "other").open("wb") as file:
            free = shutil.disk_usage(small_disk).free
            file.write(bytes(max(0, free - left)))
        code, _, message = run_command(*command)
        assert code == 1
        assert [line for line in message.split("\n") if line.startswith("error: ")] == message.split("\n")[-2:-1]
        assert "make room and run the same command again" in message
        after = contents(run)
        assert {name: after.get(name) for name in before} == before
        (small_disk / "other").unlink()
        assert run_command(*command).code == 0
        assert determined(run) == determined(uninterrupted)


def test_a_signal_at_the_start_ends_with_its_code_and_the_command_to_go_on(
    tiny_project: TinyProject, tmp_path: Path
) -> None:
    run = tiny_project.copy(tmp_path / "run")
    # On a busy machine, torch takes longer to import than a stop waits.
    program = "from nmtkit.cli import main\nmain._SECONDS_OF_AN_IMPORT = 120\nmain.main()"
    command = [sys.executable, "-c", program, "train", str(tiny_project.recipe), "--run-dir", str(run)]
    command += ["--set", "training.max_steps=1000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        maps = Path(f"/proc/{process.pid}/maps")
        while "libtorch" not in maps.read_text():  # it is importing torch
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
        try:
            _, message = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 143
    assert f"to resume, run: nmtkit train {tiny_project.recipe} --run-dir {run}" in message
    assert "Traceback" not in message
