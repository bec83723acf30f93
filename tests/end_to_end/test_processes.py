"""`train` and `run` in several processes: of their own, under torchrun and accelerate launch, one of them killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Union

import pytest

import nmtkit
from nmtkit.json_toml import read_json
from tests.conftest import TINY_MODEL, TinyProject, determined, metrics_without_time, num_reports, prepared_project
from tests.forked import Forked, free_port, is_running, wait_until

STEPS = 60
Started = Union[Forked, "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    return prepared_project(
        tmp_path_factory.mktemp("project"),
        f"{TINY_MODEL}dropout = 0.2\n[decoding]\naverage_last = 2\n"
        "[training]\nprecision = 'float32'\ntokens_per_update = 400\ntokens_per_pass = 120\nwarmup_steps = 10\n"
        f"max_steps = {STEPS}\nreport_every_steps = 1\ncheckpoint_every_steps = 10\nkeep_last = 5\n",
        train=300,
        test=10,
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(nmtkit.__file__).parent.parent), "OMP_NUM_THREADS": "1"}


def start(command: Sequence[str], log: Path) -> Forked:
    return Forked(*command, out=log, err=log)


def start_launcher(arguments: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Starts a module of Python that starts nmtkit's processes."""
    with log.open("ab") as file:
        return subprocess.Popen([sys.executable, "-m", *arguments], env=environment(), stdout=file, stderr=file)


def workers_of(process: Started) -> list[int]:
    """The processes that one has started, in the order of their ranks."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in found if b"nmtkit" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture(scope="module")
def uninterrupted(project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes to its end."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    run = project.copy(folder / "run")
    command = project.command(run, "--processes", "2")
    process = start(command, folder / "log")
    assert process.wait(300) == 0, (folder / "log").read_text()
    assert [line["step"] for line in metrics_without_time(run)] == list(range(1, STEPS + 1))
    return run


def test_a_killed_process_is_named_and_the_others_end(project: TinyProject, tmp_path: Path) -> None:
    run, log = project.copy(tmp_path / "run"), tmp_path / "log"
    command = project.command(run, "--processes", "2", "--set", "training.max_steps=1000000")
    with start(command, log) as process:
        wait_until(lambda: num_reports(run) > 10, process)
        os.kill(workers_of(process)[1], signal.SIGKILL)
        assert process.wait(300) == 128 + signal.SIGKILL
    errors = [line for line in log.read_text().splitlines() if line.startswith(("error", "Traceback"))]
    assert errors == [
        "error: process 1 of 2 was killed by SIGKILL, perhaps for want of memory; the same command goes on from the "
        "last save, if there was one"
    ]


def test_processes_whose_parent_is_killed_save_after_the_same_update_and_end(
    project: TinyProject, tmp_path: Path
) -> None:
    run, log = project.copy(tmp_path / "run"), tmp_path / "log"
    command = project.command(run, "--processes", "2", "--set", "training.max_steps=1000000")
    with start(command, log) as process:
        wait_until(lambda: num_reports(run) > 10, process)
        workers = workers_of(process)
        try:
            os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_running, workers)))
        finally:
            for pid in filter(is_running, workers):
                os.kill(pid, signal.SIGKILL)
    assert log.read_text().count("error: the process that started this one is gone; stopping as by SIGTERM") == 1
    assert "saved; to resume" in log.read_text()
    assert max(path.name for path in run.glob("resume/*")) == f"step-{num_reports(run):08d}"


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_after_a_process_was_killed_the_same_command_goes_on_to_the_same_parameters(
    project: TinyProject, uninterrupted: Path, tmp_path: Path, victim: int
) -> None:
    run, log = project.copy(tmp_path / "run"), tmp_path / "log"
    command = project.command(run, "--processes", "2")
    with start(command, log) as process:
        wait_until(lambda: num_reports(run) > 10, process)
        os.kill(workers_of(process)[victim], signal.SIGKILL)
        assert process.wait(60) == 128 + signal.SIGKILL
    with start(command, log) as process:
        assert process.wait(300) == 0, log.read_text()
    assert f"error: process {victim} of 2 was killed by SIGKILL" in log.read_text()
    assert "up to 120 tokens, kept from earlier in this run" in log.read_text()
    assert determined(run) == determined(uninterrupted)


@pytest.mark.slow
def test_a_process_that_hangs_is_named_and_all_end_within_a_minute(project: TinyProject, tmp_path: Path) -> None:
    run, log = project.copy(tmp_path / "run"), tmp_path / "log"
    command = project.command(run, "--processes", "2", "--set", "training.max_steps=1000000")
    with start(command, log) as process:
        wait_until(lambda: num_reports(run) > 10, process)
        os.kill(workers_of(process)[1], signal.SIGSTOP)
        assert process.wait(60) == 1
    assert "error: process 1 of 2 gave no sign of life and was ended" in log.read_text()


def test_run_leaves_the_training_to_several_processes_and_the_other_steps_to_one(
    project: TinyProject, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    command = ["run", *project.command(run, "--processes", "2")[1:]]
    with start([*command, "--set", "training.max_steps=1000000"], log) as process:
        wait_until(lambda: num_reports(run) > 5, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143, log.read_text()
    assert log.read_text().count("saved; to resume, run: nmtkit run ") == 1
    assert max(path.name for path in run.glob("resume/*")) == f"step-{num_reports(run):08d}"
    assert not (run / "averaged").exists()
    end = num_reports(run) // 10 * 10 + 20
    with start([*command, "--set", f"training.max_steps={end}"], log) as process:
        assert process.wait(300) == 0, log.read_text()
    for step in ("1/5 prepare", "2/5 train", "3/5 average", "4/5 translate", "5/5 score"):
        assert log.read_text().count(step) == (2 if step < "3" else 1)
    assert log.read_text().count("resuming training at update") == 1
    assert [line["step"] for line in metrics_without_time(run)] == list(range(1, end + 1))
    assert read_json(run / "checkpoints" / f"step-{end - 10:08d}" / "provenance.json")["processes"] == 2
    assert (run / "translations" / "test.txt").read_bytes().count(b"\n") == 10
    assert read_json(run / "scores.json")["test"]["sacrebleu"]
    assert read_json(run / "cost.json")["processes"] == 2


def test_more_processes_than_devices_are_one_clear_error(project: TinyProject, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        processes = torch.cuda.device_count() + 1
        device, words = "cuda", f"error: {processes} processes on a machine with {processes - 1} cuda device"
    else:
        processes, device, words = 2, "cuda", "error: --device cuda: torch finds no such device"
    arguments = project.command(project.prepared, "--processes", str(processes))
    arguments[arguments.index("cpu")] = device
    log = tmp_path / "log"
    with start(arguments, log) as process:
        assert process.wait(100) == 1
    assert log.read_text().startswith(words)
    assert log.read_text().count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_killed_under_torchrun_leads_to_a_resume_and_the_same_parameters(
    project: TinyProject, uninterrupted: Path, tmp_path: Path, victim: int
) -> None:
    run, log = project.copy(tmp_path / "run"), tmp_path / "log"
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [*torchrun, "--master-port", str(free_port()), "-m", "nmtkit", *project.command(run)]
    with start_launcher(command, log) as process:
        wait_until(lambda: num_reports(run) > 10, process)
        os.kill(workers_of(process)[victim], signal.SIGKILL)
        assert process.wait(300) == 0, log.read_text()
    assert "resuming training at update" in log.read_text()
    assert "Traceback" not in log.read_text()
    if victim == 1:
        assert "error: process 1 of 2 answers no more" in log.read_text()
    assert determined(run) == determined(uninterrupted)


@pytest.mark.slow
def test_two_hosts_on_loopback_make_the_same_run_though_a_process_of_one_is_killed(
    project: TinyProject, uninterrupted: Path, tmp_path: Path
) -> None:
    run = project.copy(tmp_path / "run")
    torchrun = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2"]
    meeting = ["--rdzv-id", "7", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    meeting += ["--local-addr", "127.0.0.1"]
    command = [*torchrun, *meeting, "-m", "nmtkit", *project.command(run)]
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    with start_launcher(command, logs[0]) as first, start_launcher(command, logs[1]) as second:
        wait_until(lambda: num_reports(run) > 10, first, second)
        os.kill(workers_of(second)[0], signal.SIGKILL)
        codes = [process.wait(300) for process in (first, second)]
    text = "".join(log.read_text() for log in logs)
    assert codes == [0, 0], text
    assert "resuming training at update" in text
    assert "Traceback" not in text
    assert determined(run) == determined(uninterrupted)


@pytest.mark.slow
def test_accelerate_launch_starts_the_same_run(project: TinyProject, uninterrupted: Path, tmp_path: Path) -> None:
    run, log = project.copy(tmp_path / "run"), tmp_path / "log"
    accelerate = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    accelerate += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]
    command = [*accelerate, "-m", "nmtkit", *project.command(run)]
    with start_launcher(command, log) as process:
        assert process.wait(300) == 0, log.read_text()
    assert "2 x cpu" in log.read_text()
    assert determined(run) == determined(uninterrupted)
