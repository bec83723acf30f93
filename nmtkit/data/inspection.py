"""One pair of prepared data, looked at: where it comes from, its text, its pieces, its ids.

Reads RUN/data, and the corpora themselves where they lie on this machine; nothing is downloaded.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nmtkit.config.schema import DataConfig, LocalPair, NamedCorpus
from nmtkit.corpora.corpus import Corpus
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.entries import open_entry, public_files, public_name
from nmtkit.data.shards import PairData, read_manifest
from nmtkit.errors import DataError
from nmtkit.run import Run
from nmtkit.text.tokenizer import Side, Tokenizer

Part = Literal["train", "valid"]
SIDES: tuple[Side, Side] = ("source", "target")


@dataclass(frozen=True)
class InspectedSide:
    """One side of a pair.

    Attributes:
        text: as it came, None where the corpus is not on this machine.
        decoded: what its ids say; with pieces and ids None where cleaning left the pair out.
    """

    text: str | None
    decoded: str | None
    pieces: list[str] | None
    ids: list[int] | None


@dataclass(frozen=True)
class InspectedPair:
    """A pair of training or validation data.

    Attributes:
        corpus, line: where it comes from; the line from 1 in that corpus.
        line_of_all: the line from 1 through all corpora of that part in turn, as RUN/nonfinite.jsonl names it.
        pair: its number in the shards, from 0; None where it was left out.
    """

    corpus: str
    line: int
    line_of_all: int
    pair: int | None
    source: InspectedSide
    target: InspectedSide


def inspect_pair(
    run_dir: Path, line: int, *, part: Part = "train", corpus: str | None = None, mirror: Path | None = None
) -> InspectedPair:
    """The pair of a line.

    Args:
        line: from 1, through all corpora in turn; with ``corpus`` in that one.
        corpus: its name, as RUN/data/manifest.json has it.
        mirror: where corpora may lie, besides the cache.

    Raises:
        DataError: the run has not been prepared, or has no such corpus or line.
    """
    tokenizer = Run(run_dir).tokenizer()
    data = PairData(Run(run_dir).data / part)
    described = [entry for entry in read_manifest(Run(run_dir).data)["corpora"] if entry["role"] == part]
    if not described:  # validation pairs held out of training have no corpus of their own
        described = [{"name": f"{part} (held out of train)", "pairs": len(data)}]
    index, within = _locate(described, line, corpus, run_dir)
    line_of_all = sum(entry["pairs"] for entry in described[:index]) + within
    found = np.flatnonzero(data.lines == line_of_all)
    pair = int(found[0]) if len(found) else None
    texts = _texts(run_dir, part, index, within, described[index].get("sha256", ""), mirror)
    source, target = (_inspect_side(side, number, pair, data, tokenizer, texts) for number, side in enumerate(SIDES))
    return InspectedPair(described[index]["name"], within, line_of_all, pair, source, target)


def _locate(described: list[dict[str, Any]], line: int, corpus: str | None, run_dir: Path) -> tuple[int, int]:
    """The corpus of a line by its place, and the line in it."""
    names = [entry["name"] for entry in described]
    if corpus is not None and corpus not in names:
        raise DataError(f"{run_dir}: there is no corpus {corpus!r} in this run; it has {', '.join(names)}")
    last = 0
    for index, entry in enumerate(described):
        if corpus in (None, entry["name"]):
            if 1 <= line - last <= entry["pairs"]:
                return index, line - last
            last += entry["pairs"]
    raise DataError(f"{run_dir}: there is no line {line}; {corpus or 'the data'} has lines 1 to {last:,}")


def _inspect_side(
    side: Side, number: int, pair: int | None, data: PairData, tokenizer: Tokenizer, texts: tuple[str, str] | None
) -> InspectedSide:
    text = texts[number] if texts is not None else None
    if pair is None:
        return InspectedSide(text, None, None, None)
    ids = [int(index) for index in data.ids(number, pair)]
    return InspectedSide(text, tokenizer.decode(ids, side), tokenizer.pieces(ids, side), ids)


def _texts(
    run_dir: Path, part: Part, index: int, line: int, sha256: str, mirror: Path | None
) -> tuple[str, str] | None:
    """Both sides of a line as the corpus has them, None where it is not on this machine as it was."""
    data = Run(run_dir).recipe().data
    entries = data.train if part == "train" else data.valid
    if isinstance(entries, int):
        return None
    corpus = _open_if_there(data, entries[index], Downloader(mirror))
    if corpus is None or corpus.fingerprint != sha256:
        return None
    pairs = zip(corpus.source.open(errors="replace"), corpus.target.open(errors="replace"), strict=False)
    return next(islice(pairs, line - 1, None), None)


def _open_if_there(data: DataConfig, entry: str | NamedCorpus | LocalPair, downloader: Downloader) -> Corpus | None:
    try:
        files = () if isinstance(entry, LocalPair) else public_files(data, public_name(entry))
        if not all(downloader.find(file) for file in files):
            return None
        return open_entry(data, entry, downloader)
    except DataError:
        return None
