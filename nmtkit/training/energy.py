"""The energy of training, where the machine measures it: of GPUs by NVML, of processors and memory by RAPL.

    NVML    energy of one GPU in millijoules; Volta and later; needs nvidia-ml-py
    RAPL    energy of each processor package and its memory in microjoules, of everything that runs on the machine;
            Linux, where this user may read /sys/class/powercap/intel-rapl:*/energy_uj (AMD has it there too). It
            restarts at 0, as a rule after 262 kJ: a quarter of an hour at 300 W. More than one restart between two
            readings, as in a validation of half an hour, would be lost.

What cannot be read is not measured, and nothing is assumed in its place.

Source: NVML's nvmlDeviceGetTotalEnergyConsumption; Documentation/power/powercap/powercap.rst of Linux.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from nmtkit.console import log

POWERCAP = Path("/sys/class/powercap")
SECONDS_BETWEEN_READINGS = 1.0


@dataclass(frozen=True)
class Energy:
    """Energy measured, and for how long.

    Attributes:
        gpu_joules, gpu_seconds: summed over the GPUs.
        host_joules, host_seconds: of processors and memory, summed over the machines.
    """

    gpu_joules: float = 0.0
    gpu_seconds: float = 0.0
    host_joules: float = 0.0
    host_seconds: float = 0.0

    def __add__(self, other: "Energy") -> "Energy":
        return Energy(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))


class Counters:
    """Energy counters that are read together, and what they have counted since this was made."""

    def __init__(self, name: str, read: Callable[[], list[float]], ranges: list[float]) -> None:
        """Take the first reading.

        Args:
            read: returns the joules of each counter; raises OSError or ValueError.
            ranges: the joules after which each counter restarts at 0.
        """
        self._name, self._read, self._ranges = name, read, ranges
        self._begun, self._last = time.monotonic(), read()
        self._has_failed = False
        self.joules = self.seconds = 0.0

    def update(self) -> None:
        """Read the counters again; after a failure warn once and keep what was counted."""
        if self._has_failed:
            return
        try:
            now = self._read()
        except (OSError, ValueError) as error:
            log.warning("the energy of %s can no longer be read (%s); it is not counted from now on", self._name, error)
            self._has_failed = True
            return
        # The modulus bridges a restart at 0.
        self.joules += sum((new - old) % full for new, old, full in zip(now, self._last, self._ranges, strict=True))
        self._last, self.seconds = now, time.monotonic() - self._begun


class EnergyMeter:
    """The energy of this process's GPU and, in the first process of a machine, of its processors and memory."""

    def __init__(self, device: torch.device) -> None:
        """Start measuring."""
        self.gpu = gpu_counters(device)
        self.host = host_counters() if os.environ.get("LOCAL_RANK", "0") == "0" else None
        self._last = -math.inf

    def read(self) -> Energy:
        """Return the energy since the start, at most SECONDS_BETWEEN_READINGS old."""
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_READINGS:
            self._last = now
            for counters in filter(None, (self.gpu, self.host)):
                counters.update()
        gpu, host = ((each.joules, each.seconds) if each else (0.0, 0.0) for each in (self.gpu, self.host))
        return Energy(*gpu, *host)


def gpu_counters(device: torch.device) -> Counters | None:
    """Return the counter of a CUDA device; None where there is none, or no nvidia-ml-py."""
    if device.type != "cuda" or find_spec("pynvml") is None:
        return None
    import pynvml

    def read() -> list[float]:
        try:
            return [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000]
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from None

    try:
        pynvml.nvmlInit()
        # By UUID, as NVML numbers the devices without regard to CUDA_VISIBLE_DEVICES.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return Counters("the GPU", read, [2**64 / 1000])  # an unsigned 64-bit count of millijoules
    except (pynvml.NVMLError, OSError):
        return None


def host_counters() -> Counters | None:
    """Return the counters of this machine's processor packages and memory; None where they cannot be read."""
    try:
        names = {folder: (folder / "name").read_text(encoding="ascii") for folder in POWERCAP.glob("intel-rapl:*")}
        # Cores and graphics are parts of their package; psys contains the packages.
        zones = [folder for folder, name in names.items() if name.startswith("package") or name.strip() == "dram"]

        def read(file: str = "energy_uj") -> list[float]:
            return [int((zone / file).read_text(encoding="ascii")) / 1e6 for zone in zones]

        return Counters("the processors", read, read("max_energy_range_uj")) if zones else None
    except (OSError, ValueError):
        return None
