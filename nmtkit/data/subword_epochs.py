"""Subword sampling: the segmentation of an epoch, sampled before the epoch begins.

    RUN/data/train --text of the ids--> pieces sampled from (seed, epoch, pair) --> RUN/drawn/epoch-00000003/

The result is a folder of shards like RUN/data/train, and training takes lengths, plan and data position from it.
Sampling runs in a separate process (`python -m nmtkit.data.subword_epochs`), which training starts one epoch ahead.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nmtkit.data.processes import in_order
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.distributed.interpreter import STOP_SIGNALS, same_imports
from nmtkit.errors import NmtkitError
from nmtkit.files import check_space, write_folder_atomically
from nmtkit.json_toml import read_json, write_json
from nmtkit.text.tokenizer import Tokenizer

_BLOCK_PAIRS = 2_000
"""Pairs per task of a process; the seeds of pairs are random numbers of (seed, epoch, first pair of the block)."""
_LARGEST_GROWTH = 3
"""Free disk space required, in sizes of the data: BPE-dropout of 0.1 makes 1.2 to 1.3 times the tokens."""


@dataclass(frozen=True)
class Draw:
    """All that decides the segmentation of an epoch."""

    data_fingerprint: str  # of the prepared data
    seed: int
    epoch: int  # from 0
    strength: float  # probability of BPE-dropout, or alpha of unigram sampling
    max_tokens: int  # a pair with a longer side keeps its unsampled segmentation; 0: no limit
    max_source_tokens: int | None = None  # sources are cut to this number of tokens; None: they are not cut


class _Block(NamedTuple):
    """Consecutive pairs of one corpus."""

    corpus: int
    first: int
    stop: int


def is_drawn(folder: Path, draw: Draw) -> bool:
    """Return whether a folder holds the result of exactly this sampling."""
    path = folder / "draw.json"
    return path.is_file() and read_json(path, dict) == asdict(draw)


def draw_epoch(data: Path, folder: Path, draw: Draw, processes: int, parent: int | None = None) -> None:
    """Sample an epoch into ``folder``; the result does not depend on the number of processes.

    Args:
        data: RUN/data.
        parent: id of the training process that this process works for.

    Raises:
        NmtkitError: the disk is too full, or the parent has ended.
    """
    prepared, tokenizer = PairData(data / "train"), Tokenizer.load(data / "tokenizer")
    used = sum(path.stat().st_size for path in (data / "train").iterdir())
    folder.parent.mkdir(parents=True, exist_ok=True)
    check_space(folder.parent, _LARGEST_GROWTH * used, "the subwords drawn for an epoch")
    blocks: list[_Block] = []
    end = 0
    for corpus, part in enumerate(prepared.parts):
        begin, end = end, end + part.pairs
        blocks += [_Block(corpus, first, min(first + _BLOCK_PAIRS, end)) for first in range(begin, end, _BLOCK_PAIRS)]
    weights = [part.weight for part in prepared.parts]
    sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
    with write_folder_atomically(folder) as temporary:
        with ShardWriter(temporary / "pairs", sizes, weights) as writer:
            for block, pairs in zip(blocks, in_order(BlockSampler, (data, draw), blocks, processes), strict=True):
                writer.add(pairs, prepared.lines[block.first : block.stop].tolist(), block.corpus)
                # A training that is killed cannot end this process, which then gets another parent.
                if parent is not None and os.getppid() != parent:
                    raise NmtkitError("the training process that needs these subwords has ended")
        write_json(temporary / "draw.json", asdict(draw))


class BlockSampler:
    """Function from blocks of pairs to sampled subword ids."""

    def __init__(self, data: Path, draw: Draw) -> None:
        tokenizer = Tokenizer.load(data / "tokenizer")
        self._samplers = tokenizer.sampler("source", draw.strength), tokenizer.sampler("target", draw.strength)
        self._prepared, self._draw = PairData(data / "train"), draw

    def __call__(self, block: _Block) -> list[tuple[list[int], list[int]]]:
        """Return the sampled ids of each pair, or its unsampled ids if a side would be too long."""
        draw, pairs = self._draw, range(block.first, block.stop)
        random = np.random.default_rng([draw.seed, draw.epoch, block.first])
        seeds = random.integers(2**63, size=(len(pairs), 2)).tolist()
        result = []
        for pair, (source_seed, target_seed) in zip(pairs, seeds, strict=True):
            source, target = (self._prepared.ids(side, pair).tolist() for side in range(2))
            sampled_source = self._samplers[0].sample(source, source_seed)[: draw.max_source_tokens]
            sampled = sampled_source, self._samplers[1].sample(target, target_seed)
            is_too_long = draw.max_tokens and max(map(len, sampled)) > draw.max_tokens
            result.append((source, target) if is_too_long else sampled)
        return result


def start(data: Path, folder: Path, draw: Draw, processes: int) -> "subprocess.Popen[bytes]":
    """Start sampling an epoch in a separate process; after a failure, the last line of its stderr is the reason."""
    environment = {**os.environ, **same_imports()}
    arguments = _command(data, folder, draw, processes)
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _command(data: Path, folder: Path, draw: Draw, processes: int) -> list[str]:
    values = {"data": str(data), "folder": str(folder), "draw": asdict(draw), "processes": processes}
    return [sys.executable, "-m", "nmtkit.data.subword_epochs", json.dumps({**values, "parent": os.getpid()})]


def _main() -> int:
    for number in set(STOP_SIGNALS) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)  # a terminal's signals are for the training, which ends this process
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes what is half-written
    if hasattr(os, "nice"):
        # The training comes first where both need a core.
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
