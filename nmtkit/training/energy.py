"""Energy of a training: GPUs by NVML, processors and memory by RAPL. What cannot be read is never estimated.

    NVML    energy of one GPU in millijoules; Volta and later; needs nvidia-ml-py
    RAPL    energy of each processor package and of memory, in microjoules, of all that runs on the machine; Linux,
            where this user may read /sys/class/powercap/intel-rapl:*/energy_uj (AMD's is there too). A counter begins
            again at 0 after about 262 kJ: more than one such turn between two readings would be lost.

Source: NVML's nvmlDeviceGetTotalEnergyConsumption; Documentation/power/powercap/powercap.rst of Linux.
"""

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from nmtkit.console import log

POWERCAP = Path("/sys/class/powercap")
SECONDS_BETWEEN_READINGS = 1.0
ENERGY = ("gpu_joules", "gpu_seconds", "host_joules", "host_seconds")
"""Counters of `Progress`: energy, and how long it was measured, summed over the GPUs and over the machines."""

Counter = Callable[[], float]
"""Joules since a fixed moment; raises OSError or ValueError when they cannot be read."""


class _Reading:
    """A counter from its start to its last reading; where there is none, nothing is counted."""

    def __init__(self, what: str, counter: Counter | None) -> None:
        self._what, self._begun, self._counter = what, time.monotonic(), counter  # None when it cannot be read
        self.joules = self.seconds = 0.0
        try:
            self._first = counter() if counter is not None else 0.0
        except (OSError, ValueError):
            self._counter = None

    def update(self, now: float) -> None:
        if self._counter is None:
            return
        try:
            self.joules, self.seconds = self._counter() - self._first, now - self._begun
        except (OSError, ValueError) as error:
            log.warning("the energy of %s can no longer be read (%s); it is not counted from now on", self._what, error)
            self._counter = None


class EnergyMeter:
    """Energy that this process measures in one session: of its GPU; the first process on a machine also of the host."""

    def __init__(self, device: torch.device) -> None:
        # RAPL counts the whole machine: with every process, it would be counted several times.
        is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
        host = rapl_counter(POWERCAP) if is_first_here else None
        self._readings = [_Reading("the GPU", nvml_counter(device)), _Reading("the processors", host)]
        self._last = -SECONDS_BETWEEN_READINGS

    def read(self) -> list[float]:
        """Return the values of `ENERGY` since the start, read at most once per second."""
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_READINGS:
            for reading in self._readings:
                reading.update(now)
            self._last = now
        return [value for reading in self._readings for value in (reading.joules, reading.seconds)]


def nvml_counter(device: torch.device) -> Counter | None:
    """Return the counter of a CUDA device; None where there is none, or no nvidia-ml-py."""
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
        # By UUID, since NVML numbers the devices without regard to CUDA_VISIBLE_DEVICES.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None
    return joules


def rapl_counter(powercap: Path) -> Counter | None:
    """Return the counter of all processor packages of this machine and their memory; None where it cannot be read."""
    files: dict[Path, int] = {}  # with the value at which each begins again at 0
    for folder in powercap.glob("intel-rapl:*"):
        try:
            name = (folder / "name").read_text(encoding="ascii").strip()
            # Cores and graphics are parts of their package; psys contains the packages.
            if name.startswith("package") or name == "dram":
                (folder / "energy_uj").read_text(encoding="ascii")
                files[folder / "energy_uj"] = int((folder / "max_energy_range_uj").read_text(encoding="ascii"))
        except (OSError, ValueError):  # as a rule only root may read it
            continue
    last, turns = dict.fromkeys(files, 0), dict.fromkeys(files, 0)

    def joules() -> float:
        for file in files:
            now = int(file.read_text(encoding="ascii"))
            # A counter that has become smaller has begun again at 0.
            turns[file] += now < last[file]
            last[file] = now
        return sum(last[file] + turns[file] * files[file] for file in files) / 1e6

    return joules if files else None
