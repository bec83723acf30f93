"""What is the same for nmtkit and its peers: the sizes, and how a rate is taken."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """A model and how it is measured.

    Attributes:
        warm_up: seconds after the first update that are left out.
        measured: seconds that are measured after them, by default.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    peak_learning_rate: float
    warm_up: float
    measured: float


SIZES = {
    "tiny": Size(4, 128, 256, 4, 0.003, 20.0, 60.0),
    "base": Size(6, 512, 2048, 8, 0.0007, 10.0, 90.0),
}
WARM_UP_UPDATES = 100
"""Updates until the peak learning rate."""
INTERVAL_SECONDS = 10.0
"""A rate of training is the median over intervals of at least so many seconds."""
BATCH_TOKENS = 4096
"""Tokens in a batch of a peer, padding counted: the longer side's length x sentences."""
MAX_TOKENS = 100
"""Longer pairs are left out of training, and no translation becomes longer."""
FORCED_LENGTH = 15
"""Pieces of each translation where weights are random (the references have 14.3 on average)."""
TEST = "test_2016_flickr"


@dataclass(frozen=True)
class Rate:
    """Target tokens per second of one run: the median over its intervals, the least and the most."""

    median: float
    least: float
    most: float


def rate_of(updates: Sequence[tuple[float, int]], warm_up: float) -> Rate:
    """The rate of a run from the time of each update and the target tokens until then, without the warm-up.

    Raises:
        ValueError: the run is shorter than the warm-up and one interval.
    """
    later = [update for update in updates if update[0] - updates[0][0] >= warm_up]
    rates = []
    for seconds, tokens in later:
        if seconds - later[0][0] >= INTERVAL_SECONDS:
            rates.append((tokens - later[0][1]) / (seconds - later[0][0]))
            later[0] = (seconds, tokens)
    if not rates:
        raise ValueError(f"no interval of {INTERVAL_SECONDS:.0f} s in {len(updates)} updates; use more --seconds")
    return Rate(statistics.median(rates), min(rates), max(rates))


def measure_translation(translate: Callable[[Path, Path], None], lines: list[str]) -> dict[str, float]:
    """Seconds for one line from the shell, and sentences per second without start-up.

    Args:
        translate: runs the whole command on a file, and writes another.
    """

    def seconds_for(chosen: list[str]) -> float:
        with tempfile.TemporaryDirectory() as name:
            source, output = Path(name) / "in", Path(name) / "out"
            source.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")
            begun = time.perf_counter()
            translate(source, output)
            elapsed = time.perf_counter() - begun
            assert output.read_bytes().count(b"\n") == len(chosen)
            return elapsed

    one = min(seconds_for(lines[:1]) for _ in range(2))
    return {"startup": one, "rate": (len(lines) - 1) / (seconds_for(lines) - one)}
