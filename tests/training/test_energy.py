"""Energy by counters of the machine, with folders and libraries that stand in for them."""

import itertools
import logging
import sys
import types
from pathlib import Path

import pytest
import torch

from nmtkit.evaluation.cost import training_cost
from nmtkit.json_toml import read_json_lines
from nmtkit.training import energy
from nmtkit.training.energy import EnergyMeter, nvml_counter, rapl_counter
from tests.conftest import TinyProject

CPU = torch.device("cpu")


class Powercap:
    """A folder in the form of /sys/class/powercap."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def zone(self, place: str, name: str, microjoules: int, full: int = 262_143_328_850) -> None:
        zone = self.folder / place
        zone.mkdir(exist_ok=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text(f"{microjoules}\n")
        (zone / "max_energy_range_uj").write_text(f"{full}\n")


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Powercap:
    """The counters of this machine: none, until a test adds them."""
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "powercap")
    return Powercap(tmp_path / "powercap")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, to be set by the test."""
    now = [100.0]
    monkeypatch.setattr(energy.time, "monotonic", lambda: now[0])
    return now


def test_packages_and_memory_add_up_and_their_parts_are_not_counted_twice(powercap: Powercap) -> None:
    powercap.zone("intel-rapl:0", "package-0", 5_000_000)
    powercap.zone("intel-rapl:0:0", "core", 3_000_000)
    powercap.zone("intel-rapl:0:1", "dram", 500_000)
    powercap.zone("intel-rapl:1", "package-1", 4_000_000)
    powercap.zone("intel-rapl:2", "psys", 20_000_000)
    powercap.zone("intel-rapl-mmio:0", "package-0", 5_000_000)
    counter = rapl_counter(powercap.folder)
    assert counter is not None
    assert counter() == 9.5


def test_a_counter_that_begins_again_at_0_goes_on(powercap: Powercap) -> None:
    powercap.zone("intel-rapl:0", "package-0", 900_000, full=1_000_000)
    counter = rapl_counter(powercap.folder)
    assert counter is not None
    found = [counter()]
    for microjoules in (950_000, 50_000, 60_000, 10_000):
        powercap.zone("intel-rapl:0", "package-0", microjoules, full=1_000_000)
        found.append(counter())
    assert found == pytest.approx([0.9, 0.95, 1.05, 1.06, 2.01])


@pytest.mark.parametrize("broken", ["missing", "unreadable", "no number", "no range"])
def test_a_machine_that_tells_nothing_is_not_measured(powercap: Powercap, broken: str) -> None:
    if broken != "missing":
        powercap.zone("intel-rapl:0", "package-0", 1)
    file = powercap.folder / "intel-rapl:0" / "energy_uj"
    if broken == "unreadable":
        file.unlink()
        file.mkdir()  # as with a file that is for root alone, reading it fails, also where the test is root
    if broken == "no number":
        file.write_text("?\n")
    if broken == "no range":
        (powercap.folder / "intel-rapl:0" / "max_energy_range_uj").unlink()
    assert EnergyMeter(CPU).read() == [0.0, 0.0, 0.0, 0.0]


def test_a_meter_counts_from_its_start_and_reads_once_a_second(powercap: Powercap, clock: list[float]) -> None:
    powercap.zone("intel-rapl:0", "package-0", 7_000_000)
    meter = EnergyMeter(CPU)
    powercap.zone("intel-rapl:0", "package-0", 9_000_000)
    clock[0] += 2
    assert meter.read() == [0.0, 0.0, 2.0, 2.0]
    powercap.zone("intel-rapl:0", "package-0", 12_000_000)
    clock[0] += 0.5
    assert meter.read() == [0.0, 0.0, 2.0, 2.0]
    clock[0] += 0.5
    assert meter.read() == [0.0, 0.0, 5.0, 3.0]


def test_only_the_first_process_of_a_machine_counts_its_processors(
    powercap: Powercap, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    powercap.zone("intel-rapl:0", "package-0", 7_000_000)
    meters = []
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        meters.append(EnergyMeter(CPU))
    clock[0] += 2
    assert [meter.read()[3] for meter in meters] == [2.0, 0.0]


def test_a_counter_that_fails_on_the_way_is_told_and_keeps_what_it_had(
    powercap: Powercap, clock: list[float], logged: pytest.LogCaptureFixture
) -> None:
    powercap.zone("intel-rapl:0", "package-0", 7_000_000)
    meter = EnergyMeter(CPU)
    powercap.zone("intel-rapl:0", "package-0", 9_000_000)
    clock[0] += 2
    before = meter.read()
    (powercap.folder / "intel-rapl:0" / "energy_uj").unlink()
    with logged.at_level(logging.WARNING):
        for _ in range(3):
            clock[0] += 2
            assert meter.read() == before == [0.0, 0.0, 2.0, 2.0]
    assert [message.split(" (")[0] for message in logged.messages] == [
        "the energy of the processors can no longer be read"
    ]


def fake_nvml(millijoules: list[int], fails: bool = False) -> types.ModuleType:
    """A stand-in for nvidia-ml-py."""
    module = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def handle(uuid: str) -> str:
        if fails:
            raise NVMLError("Not Found")
        return f"handle of {uuid}"

    def consumption(of: str) -> int:
        assert of == "handle of GPU-11-22"
        if not millijoules:
            raise NVMLError("GPU is lost")
        return millijoules.pop(0)

    module.NVMLError = NVMLError  # type: ignore[attr-defined]
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByUUID = handle  # type: ignore[attr-defined]
    module.nvmlDeviceGetTotalEnergyConsumption = consumption  # type: ignore[attr-defined]
    return module


@pytest.fixture
def one_gpu(powercap: Powercap, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    properties = types.SimpleNamespace(uuid="11-22")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(energy, "find_spec", lambda name: object())
    return torch.device("cuda", 0)


def test_a_gpu_is_found_by_its_identity_and_counted_in_joules(
    one_gpu: torch.device, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([5_000, 6_500]))
    meter = EnergyMeter(one_gpu)
    clock[0] += 3
    assert meter.read() == [1.5, 3.0, 0.0, 0.0]


def test_a_gpu_that_nvml_does_not_know_or_does_not_count_is_not_measured(
    one_gpu: torch.device, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([1], fails=True))
    assert nvml_counter(one_gpu) is None
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([]))  # as of before Volta
    meter = EnergyMeter(one_gpu)
    clock[0] += 3
    assert meter.read() == [0.0, 0.0, 0.0, 0.0]


def test_the_library_itself_says_of_an_unknown_gpu_that_it_is_not_measured(
    one_gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", pytest.importorskip("pynvml"))
    assert nvml_counter(one_gpu) is None


def test_without_the_library_a_gpu_is_not_measured(one_gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "find_spec", lambda name: None)
    assert nvml_counter(one_gpu) is None
    assert nvml_counter(CPU) is None


def test_training_keeps_account_of_energy_over_sessions(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = itertools.count(1000, 10)
    monkeypatch.setattr(energy, "SECONDS_BETWEEN_READINGS", 0.0)
    monkeypatch.setattr(energy, "rapl_counter", lambda powercap: lambda: float(next(reads)))
    tiny.train(run, "training.max_steps=5")
    first = training_cost(run)
    assert first["host_joules"] >= 50
    assert 0 < first["host_seconds"] <= first["seconds"]
    assert first["gpu_joules"] is None
    tiny.train(run, "training.max_steps=9")
    second = training_cost(run)
    assert second["host_joules"] >= first["host_joules"] + 40
    assert second["host_seconds"] > first["host_seconds"]
    told = [line["host_joules"] for line in read_json_lines(run / "metrics.jsonl")]
    assert told == sorted(told)
    assert told[-1] == second["host_joules"] - 10  # the validation of the end comes after this line
