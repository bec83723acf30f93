"""The energy of training, where the machine tells: a GPU by NVML, the processors of a machine by RAPL.

Both are counters that go on by themselves; they are read about once a second, which takes microseconds. What cannot be
read is not measured, and nothing is ever assumed in its place.

    NVML    energy of one GPU since its driver was loaded, in millijoules; Volta and later; needs nvidia-ml-py
    RAPL    energy of each processor package and of memory, in microjoules; Linux, where this user may read
            /sys/class/powercap/intel-rapl:*/energy_uj (AMD has it there too). It is of all that runs on the machine.
            It begins again at 0 when it is full, as a rule after 262 kJ: a quarter of an hour at 300 W; more than one
            turn between two readings, as in a validation of half an hour, would be lost.

Source: NVML's nvmlDeviceGetTotalEnergyConsumption; Documentation/power/powercap/powercap.rst of Linux.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch

from nmtkit.console import log

POWERCAP = Path("/sys/class/powercap")
SECONDS_BETWEEN_READINGS = 1.0

Counter = Callable[[], float]
"""Joules since any one moment, always the same one; raises OSError or ValueError when they cannot be read."""


@dataclass(frozen=True)
class Energy:
    """Energy measured, and how long that was.

    Attributes:
        gpu_joules, gpu_seconds: added up over the GPUs.
        host_joules, host_seconds: of processors and memory, added up over the machines.
    """

    gpu_joules: float = 0.0
    gpu_seconds: float = 0.0
    host_joules: float = 0.0
    host_seconds: float = 0.0

    def __add__(self, other: "Energy") -> "Energy":
        return Energy(
            self.gpu_joules + other.gpu_joules,
            self.gpu_seconds + other.gpu_seconds,
            self.host_joules + other.host_joules,
            self.host_seconds + other.host_seconds,
        )


@dataclass
class _Reading:
    """One counter from its start to its last reading."""

    what: str
    counter: Counter
    begun: float
    first: float
    joules: float = 0.0
    seconds: float = 0.0
    has_failed: bool = False

    def update(self, now: float) -> None:
        if self.has_failed:
            return
        try:
            self.joules = self.counter() - self.first
        except (OSError, ValueError) as error:
            log.warning("the energy of %s can no longer be read (%s); it is not counted from now on", self.what, error)
            self.has_failed = True
            return
        self.seconds = now - self.begun


@dataclass
class EnergyMeter:
    """What one process measures in one session of training: its GPU, and as the first on its machine the processors."""

    gpu: _Reading | None = None
    host: _Reading | None = None
    _last: float = field(default=-SECONDS_BETWEEN_READINGS)

    @classmethod
    def start(cls, device: torch.device) -> "EnergyMeter":
        """Begins to measure what this process can."""
        is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
        meter = cls(_begin("the GPU", nvml_counter(device)))
        if is_first_here:
            meter.host = _begin("the processors", rapl_counter(POWERCAP))
        return meter

    def read(self) -> Energy:
        """The energy since the start; at most so often as it is worth, else that of the last reading."""
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_READINGS:
            self._last = now
            for reading in (self.gpu, self.host):
                if reading is not None:
                    reading.update(now)
        gpu, host = self.gpu, self.host
        return Energy(
            gpu.joules if gpu else 0.0,
            gpu.seconds if gpu else 0.0,
            host.joules if host else 0.0,
            host.seconds if host else 0.0,
        )


def _begin(what: str, counter: Counter | None) -> _Reading | None:
    if counter is None:
        return None
    try:
        return _Reading(what, counter, time.monotonic(), counter())
    except (OSError, ValueError):
        return None


def nvml_counter(device: torch.device) -> Counter | None:
    """The counter of a CUDA device; None where there is none, or no nvidia-ml-py."""
    if device.type != "cuda" or find_spec("pynvml") is None:
        return None
    import pynvml

    def joules() -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from None

    try:
        pynvml.nvmlInit()
        # By its identity, as NVML numbers the devices without regard to CUDA_VISIBLE_DEVICES.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None
    return joules


def rapl_counter(powercap: Path) -> Counter | None:
    """The counter of all processor packages of this machine and their memory; None where they cannot be read."""
    try:
        zones = [_Zone(folder) for folder in _rapl_folders(powercap)]
    except (OSError, ValueError):
        return None
    if not zones:
        return None
    return lambda: sum(zone.joules() for zone in zones)


def _rapl_folders(powercap: Path) -> list[Path]:
    """The zones that add up: packages (intel-rapl:0) and the memory beside them (intel-rapl:0:1, dram). Cores and
    graphics are parts of their package; psys is the whole, with the packages in it."""
    chosen = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text(encoding="ascii").strip()
            (folder / "energy_uj").read_text(encoding="ascii")
        except OSError:  # not for this user's eyes
            continue
        if name.startswith("package") or name == "dram":
            chosen.append(folder)
    return chosen


class _Zone:
    """One counter of RAPL, without the jumps where it begins again at 0."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text(encoding="ascii"))
        self._last, self._turns = 0, 0

    def joules(self) -> float:
        now = int(self._file.read_text(encoding="ascii"))
        if now < self._last:
            self._turns += 1
        self._last = now
        return (now + self._turns * self._range) / 1e6
