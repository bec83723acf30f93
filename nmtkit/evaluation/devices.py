"""GPUs and the peak rates of their matrix products, from devices.toml with the source of each; processors."""

import difflib
import platform
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nmtkit.errors import NmtkitError

PRECISIONS = ("float32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class DeviceKind:
    """A GPU as its vendor describes it.

    Attributes:
        name: what `--device-type` takes.
        pattern: regular expression that matches the driver's name of such a device.
        rates: dense FLOP/s of one device, by precision.
        memory_bytes: memory of one device.
        paper_sustained: FLOP/s that the paper takes as sustained; None for devices that it does not name.
        source: source of these numbers.
    """

    name: str
    pattern: str
    rates: dict[str, float]
    memory_bytes: float
    paper_sustained: float | None
    source: str


@cache
def known_devices() -> tuple[DeviceKind, ...]:
    rows = tomllib.loads((Path(__file__).parent / "devices.toml").read_text(encoding="utf-8"))["device"]
    return tuple(
        DeviceKind(
            name=row["name"],
            pattern=row["pattern"],
            rates={precision: row[precision] * 1e12 for precision in PRECISIONS if precision in row},
            memory_bytes=row["memory_gb"] * 1e9,
            paper_sustained=row["paper_sustained"] * 1e12 if "paper_sustained" in row else None,
            source=row["source"],
        )
        for row in rows
    )


def device_of(driver_name: str) -> DeviceKind | None:
    """Return the device of a driver's name such as "NVIDIA H100 80GB HBM3"; None for an unknown one or a part of one
    (MIG, or a virtual GPU such as "NVIDIA A100-40C")."""
    if re.search(r"\bMIG\b|-\d+[ABCQ](ME)?$", driver_name):
        return None
    return next((kind for kind in known_devices() if re.search(kind.pattern, driver_name, re.IGNORECASE)), None)


def device_named(name: str) -> DeviceKind:
    """Return the device of that name, in capitals or not; raise NmtkitError where there is none."""
    names = [kind.name for kind in known_devices()]
    if name.lower() not in names:
        nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise NmtkitError(
            f"--device-type {name}: not in the table{hint} (`nmtkit cost --list-devices` shows it); state the rate of "
            "such a device with --rate"
        )
    return known_devices()[names.index(name.lower())]


@cache
def processor_name() -> str | None:
    """Return the model of this machine's processor, such as "AMD EPYC 9B45"; None where the system has no name."""
    # On Linux, platform.processor() is empty or only the architecture.
    listing = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: *(.+)", listing.read_text("utf-8"), re.MULTILINE) if listing.is_file() else None
    return " ".join((found[1] if found else platform.processor()).split()) or None
