import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from nmtkit.console import LAUNCHED, own_rank
from nmtkit.distributed import cpu, workers
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError
from tests.forked import run_programs
from tests.training.updates import free_port

PRODUCTS = """
import sys

import torch

from nmtkit.distributed.workers import Workers

Workers.start("cpu", "bf16", 1, for_training=sys.argv[1] == "training")
matrix = torch.ones(64, 64, dtype=torch.bfloat16)
for rows in [*range(40, 190), 40, 189]:
    torch.ones(rows, 64, dtype=torch.bfloat16) @ matrix
"""
"""150 products of different sizes, and again the first and the last of them."""


@pytest.fixture
def before() -> Iterator[str]:
    """The precision of float32 products, which is set again after the test."""
    precision = torch.get_float32_matmul_precision()
    yield precision
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("is_intel", [True, False])
def test_intel_keeps_torchs_library_for_products(is_intel: bool, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_fast_mkl", lambda: is_intel)
    monkeypatch.setattr(cpu, "_onednn_is_exact", lambda: True)
    cpu.choose_products()
    assert torch.get_float32_matmul_precision() == (before if is_intel else "medium")


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("is_intel", [True, False])
def test_float32_products_stay_exact_whatever_computes_them(is_intel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_fast_mkl", lambda: is_intel)
    cpu.choose_products()
    torch.manual_seed(1)
    for rows, inner, columns in [(300, 128, 70), (2048, 512, 512), (64, 2048, 33)]:
        left, right = torch.randn(rows, inner), torch.randn(inner, columns)
        expected = left.double() @ right.double()
        error = (left @ right - expected).abs().max() / expected.abs().max()
        assert error.item() < 3e-6  # a bfloat16 product is a thousand times as far off


@pytest.mark.parametrize(
    ("seconds", "computed", "is_disturbed"),
    [(2.0, 1.9, False), (2.0, 1.5, True), (0.5, 0.25, False), (20.0, 17.0, False)],
)
def test_a_measurement_is_called_disturbed_if_its_thread_often_had_no_core(
    seconds: float, computed: float, is_disturbed: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(cpu.time, "monotonic", iter([5.0, 5.0 + seconds]).__next__)
    monkeypatch.setattr(cpu.time, "thread_time", iter([3.0, 3.0 + computed]).__next__)
    with cpu.noticing_other_load():
        pass
    assert ("busy with other work during the trial" in caplog.text) == is_disturbed


def test_inexact_products_are_not_chosen(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    addmm = torch.addmm

    def rounding(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return addmm(bias, left.bfloat16().float(), right.bfloat16().float())

    monkeypatch.setattr(cpu, "has_fast_mkl", lambda: False)
    monkeypatch.setattr(torch, "addmm", rounding)
    cpu.choose_products()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.usefixtures("before", "restored_process")
def test_decoding_leaves_products_to_whom_torch_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_onednn_is_exact", lambda: True)
    monkeypatch.setattr(cpu, "has_fast_mkl", lambda: False)
    found = []
    for for_decoding in (False, True):  # as `run` does, which trains first
        workers.Workers.start("cpu", "float32", 1, for_decoding=for_decoding)
        found.append(torch.get_float32_matmul_precision())
    assert found == ["medium", "highest"]


@pytest.mark.parametrize(
    ("purpose", "asked", "first_again"),
    [
        ("training", {}, "cache_miss"),
        ("training", {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1000"}, "cache_hit"),
        ("training", {"DNNL_PRIMITIVE_CACHE_CAPACITY": "1000"}, "cache_hit"),
        ("translation", {}, "cache_hit"),
    ],
)
def test_training_keeps_the_code_of_few_products_unless_the_user_asks_for_more(
    purpose: str, asked: dict[str, str], first_again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if "PRIMITIVE_CACHE" in name]:
        monkeypatch.delenv(name)
    run_programs(PRODUCTS, [purpose], [tmp_path / "log"], [{"ONEDNN_VERBOSE": "2", **asked}])
    told = (tmp_path / "log").read_text().splitlines()
    made = [line.split("create:")[1].split(",")[0] for line in told if "create:" in line]
    if len(made) < 150:
        pytest.skip("this torch gives such products to another library than oneDNN")
    assert made[-2:] == [first_again, "cache_hit"]


def test_a_gpu_that_torch_has_no_code_for_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*sizes: int, **options: object) -> torch.Tensor:
        raise getattr(torch, "AcceleratorError", RuntimeError)(  # since torch 2.8
            "CUDA error: no kernel image is available for execution on the device\nCUDA kernel"
        )

    monkeypatch.setattr(torch, "zeros", no_kernel)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla P100")
    with pytest.raises(
        NmtkitError, match=r"^torch cannot use Tesla P100 \(CUDA error: no kernel .*or give --device cpu$"
    ):
        workers.check_cuda(torch.device("cuda"))


def test_a_command_collects_garbage_as_usual_once_its_imports_are_over() -> None:
    program = (
        "import gc\n"
        "usual = gc.get_threshold()\n"
        "from nmtkit.distributed.interpreter import collect_as_usual, collect_rarely\n"
        "collect_as_usual()\n"
        "assert gc.get_freeze_count() == 0\n"
        "collect_rarely()\n"
        "assert gc.get_threshold() != usual\n"
        "from nmtkit.distributed.workers import Workers\n"
        "assert gc.get_count()[0] > 50_000\n"
        "Workers.start('cpu')\n"
        "assert gc.get_threshold() == usual\n"
        "assert gc.get_freeze_count() > 50_000\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def set_group(monkeypatch: pytest.MonkeyPatch, rank: int, processes: int) -> int:
    """Set the environment of a process group, and return its port."""
    port = free_port()
    for name, value in (("RANK", rank), ("WORLD_SIZE", processes), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, str(value))
    return port


def test_processes_on_a_cpu_exchange_by_gloo_also_where_torch_has_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(**options: object) -> None:
        raise KeyboardInterrupt(options["backend"])

    monkeypatch.setattr("accelerate.PartialState", stop)
    set_group(monkeypatch, rank=0, processes=1)
    with pytest.raises(KeyboardInterrupt, match="gloo"):
        workers._join(torch.device("cpu"))


def test_a_launched_process_waits_without_limit_for_the_first_one_unless_the_launcher_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise LookupError("the store")

    monkeypatch.setattr(workers, "TCPStore", stop)
    port = set_group(monkeypatch, rank=1, processes=2)
    monkeypatch.setenv(LAUNCHED, str(os.getpid()))  # none is its own parent
    with pytest.raises(NmtkitError, match=r"^the process that started this one is gone$"):
        workers._join(torch.device("cpu"))
    monkeypatch.setenv(LAUNCHED, str(os.getppid()))
    with socket.socket() as first:
        first.bind(("127.0.0.1", port))
        threading.Timer(0.3, first.listen).start()
        begun = time.monotonic()
        with pytest.raises(LookupError, match="the store"):
            workers._join(torch.device("cpu"))
        assert time.monotonic() - begun >= 0.3
    monkeypatch.delenv(LAUNCHED)
    monkeypatch.setattr(workers, "_STARTING_TIMEOUT", timedelta(seconds=0.2))
    with pytest.raises(NmtkitError, match=rf"^process 0 does not listen on 127.0.0.1:{port} \(.*\); start it, too$"):
        workers._join(torch.device("cpu"))


def test_the_first_process_names_the_one_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    set_group(monkeypatch, rank=0, processes=2)
    monkeypatch.setattr(workers, "_STARTING_TIMEOUT", timedelta(seconds=0.3))
    with pytest.raises(NmtkitError, match=r"^process 1 of 2 is missing; start it, too$"):
        workers._join(torch.device("cpu"))


def test_work_of_one_process_joins_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(cpu, "available_cores", lambda: 2)
    assert own_rank() == 1
    with Workers.start("cpu", "float32", is_alone=True) as alone:
        assert (alone.rank, alone.num_processes) == (0, 1)
        assert torch.get_num_threads() == 2
    monkeypatch.delenv("WORLD_SIZE")
    assert own_rank() == 0
