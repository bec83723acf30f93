"""Subword sampling: the segmentation of an epoch, drawn before the epoch begins.

    RUN/data/train --text of the ids--> pieces drawn from (seed, epoch, pair) --> RUN/drawn/epoch-00000003/

What is drawn are shards like those of RUN/data/train, so lengths, batch plan and position of a run come from them as
ever. Drawing is a process of its own (`python -m nmtkit.data.subword_epochs`), which training starts an epoch ahead.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nmtkit.data.processes import in_order
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.distributed.interpreter import STOP_SIGNALS, same_imports
from nmtkit.errors import NmtkitError
from nmtkit.files import check_space, read_json, write_folder_atomically, write_json
from nmtkit.text.tokenizer import Tokenizer

_BLOCK_PAIRS = 2_000
"""Pairs drawn by a process at once; seeds of pairs are numbers drawn from (seed, epoch, first pair of the block)."""
_LARGEST_GROWTH = 3
"""Room asked for, in sizes of the data: BPE-dropout of 0.1 makes 1.2 to 1.3 times the tokens."""
Ids = list[int]


@dataclass(frozen=True)
class Draw:
    """What decides the segmentation of an epoch, given the prepared data.

    Attributes:
        data_fingerprint: of the prepared data.
        seed, epoch: of the run, and the number of the epoch from 0.
        strength: BPE-dropout's probability, or the alpha of unigram sampling.
        max_tokens: a pair of which a side gets more keeps its plain segmentation; 0: no limit.
    """

    data_fingerprint: str
    seed: int
    epoch: int
    strength: float
    max_tokens: int


def is_drawn(folder: Path, draw: Draw) -> bool:
    """Whether a folder holds just this."""
    return (folder / "draw.json").is_file() and read_json(folder / "draw.json") == asdict(draw)


def draw_epoch(data: Path, folder: Path, draw: Draw, processes: int, parent: int | None = None) -> None:
    """Draws an epoch into ``folder``; the result does not depend on the number of processes.

    Args:
        data: RUN/data.
        parent: the process that this one is started by and draws for.

    Raises:
        NmtkitError: the disk has no room for it, or the parent is gone.
    """
    prepared, tokenizer = PairData(data / "train"), Tokenizer.load(data / "tokenizer")
    used = sum(path.stat().st_size for path in (data / "train").iterdir())
    folder.parent.mkdir(parents=True, exist_ok=True)
    check_space(folder.parent, _LARGEST_GROWTH * used, "the subwords drawn for an epoch")
    blocks = list(_blocks(prepared))
    weights = [part.weight for part in prepared.parts]
    sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
    with write_folder_atomically(folder) as temporary:
        with ShardWriter(temporary / "pairs", sizes, weights) as writer:
            for block, pairs in zip(blocks, in_order(BlockDrawer, (data, draw), blocks, processes), strict=True):
                writer.add(pairs, prepared.lines[block.first : block.stop].tolist(), block.corpus)
                if parent is not None and os.getppid() != parent:
                    raise NmtkitError("the training process that needs these subwords has ended")
        write_json(temporary / "draw.json", asdict(draw))


class _Block(NamedTuple):
    """Pairs of one corpus that are drawn at once."""

    corpus: int
    first: int
    stop: int


def _blocks(prepared: PairData) -> Iterator[_Block]:
    begin = 0
    for corpus, part in enumerate(prepared.parts):
        for first in range(begin, begin + part.pairs, _BLOCK_PAIRS):
            yield _Block(corpus, first, min(first + _BLOCK_PAIRS, begin + part.pairs))
        begin += part.pairs


class BlockDrawer:
    """Draws blocks of pairs."""

    def __init__(self, data: Path, draw: Draw) -> None:
        tokenizer = Tokenizer.load(data / "tokenizer")
        self._samplers = tokenizer.sampler("source", draw.strength), tokenizer.sampler("target", draw.strength)
        self._prepared, self._draw = PairData(data / "train"), draw

    def __call__(self, block: _Block) -> list[tuple[Ids, Ids]]:
        """The pairs of a block: as drawn, or as they are where a side would be too long."""
        draw, pairs = self._draw, range(block.first, block.stop)
        random = np.random.default_rng([draw.seed, draw.epoch, block.first])
        seeds = random.integers(2**63, size=(len(pairs), 2)).tolist()
        found = []
        for pair, (source_seed, target_seed) in zip(pairs, seeds, strict=True):
            source, target = (self._prepared.ids(side, pair).tolist() for side in range(2))
            drawn = self._samplers[0].sample(source, source_seed), self._samplers[1].sample(target, target_seed)
            is_too_long = draw.max_tokens and max(map(len, drawn)) > draw.max_tokens
            found.append((source, target) if is_too_long else drawn)
        return found


def start(data: Path, folder: Path, draw: Draw, processes: int) -> "subprocess.Popen[bytes]":
    """Starts the drawing of an epoch in a process of its own, whose last line on stderr says why it failed."""
    environment = {**os.environ, **same_imports()}
    arguments = _command(data, folder, draw, processes)
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _command(data: Path, folder: Path, draw: Draw, processes: int) -> list[str]:
    values = {"data": str(data), "folder": str(folder), "draw": asdict(draw), "processes": processes}
    return [sys.executable, "-m", "nmtkit.data.subword_epochs", json.dumps({**values, "parent": os.getpid()})]


def _main() -> int:
    for number in set(STOP_SIGNALS) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)  # a terminal's signals are for the training, which ends this process
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and removes what is half-written
    if hasattr(os, "nice"):
        os.nice(10)
    values = json.loads(sys.argv[1])
    try:
        draw = Draw(**values["draw"])
        draw_epoch(Path(values["data"]), Path(values["folder"]), draw, values["processes"], values["parent"])
    except (NmtkitError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
