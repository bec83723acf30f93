"""Show one pair of prepared data: its origin, text, subwords and ids.

The corpora are read only if they are on this machine; nothing is downloaded.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nmtkit.config.corpus_entries import GeneratedCorpus, LocalPair
from nmtkit.corpora.corpus import Corpus
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.entries import open_entry, public_files
from nmtkit.data.cleaning import BlockExaminer, RawBlock
from nmtkit.data.encoding import BlockEncoder
from nmtkit.data.generated import Generation
from nmtkit.data.shards import PairData, read_manifest
from nmtkit.data.training_text import TextBlock
from nmtkit.errors import DataError, ModelError
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.text.vocabulary import SIDES

SetName = Literal["train", "valid"]


@dataclass(frozen=True)
class InspectedSide:
    """One side of a pair; decoded text, pieces and ids are None if cleaning left the pair out."""

    text: str | None  # line of the corpus; None if the corpus is not on this machine
    decoded: str | None
    pieces: list[str] | None
    ids: list[int] | None


@dataclass(frozen=True)
class InspectedPair:
    """A pair of training or validation data."""

    corpus: str
    line: int  # from 1 in that corpus; of a generated one, in the text that was translated
    line_of_all: int  # from 1 through all corpora of the training or validation data, as in RUN/nonfinite.jsonl
    pair: int | None  # index in the shards; None if it was left out
    source: InspectedSide | None  # None for tasks without a source
    target: InspectedSide
    rule: str | None = None  # rule by which it was left out, or "": for other pairs' sake; None: not examined


def inspect_pair(
    run_dir: Path, line: int, *, part: SetName = "train", corpus: str | None = None, mirror: Path | None = None
) -> InspectedPair:
    """Return the pair with a line number.

    Args:
        line: number from 1 through all corpora; with ``corpus`` through that corpus, or in the text of a generated one.
        corpus: name of a corpus, as in RUN/data/manifest.json.
        mirror: folder of corpora besides the cache.

    Raises:
        DataError: the run has not been prepared, or has no such corpus or line.
    """
    run = Run(run_dir)
    tokenizer = run.tokenizer()
    if not task_of(tokenizer).has_text:
        raise DataError(f"{run_dir}: its data are episodes and no text; read their files, or {run.data}/train/*.npy")
    if part == "valid" and not run.valid_data.is_dir():
        raise DataError(f"{run_dir}: the run has no validation data (data.valid)")
    data = PairData(run.train_data if part == "train" else run.valid_data)
    described = [entry for entry in read_manifest(run.data)["corpora"] if entry["role"] == part]
    if not described:  # held-out validation pairs belong to no validation corpus
        described = [{"name": f"{part} (held out of train)", "pairs": len(data)}]
    names = [entry["name"] for entry in described]
    if corpus is not None and corpus not in names:
        raise DataError(f"{run_dir}: there is no corpus {corpus!r} in this run; it has {', '.join(names)}")
    named = None if corpus is None else names.index(corpus)
    texts, generation = (None, None) if named is None else _opened(run, part, described, named, mirror)
    is_generated = named is not None and "generated" in described[named]
    if is_generated and generation is None:
        raise DataError(
            f"{corpus}: its translations, or the model that made them, are not there any more or have changed, so that "
            "its lines are unknown; leave out --corpus to count the pairs of all corpora"
        )
    if generation is not None:
        given, numbers = line, enumerate(generation.line_numbers(), start=1)
        line = next((pair for pair, number in numbers if number == given), 0)
        if not line:
            raise DataError(f"{generation.entry.generate}: line {given} has made no pair; see {generation.path}")
    last, index = 0, None
    for number, entry in enumerate(described):
        if corpus in (None, entry["name"]):
            if 1 <= line - last <= entry["pairs"]:
                index = number
                break
            last += entry["pairs"]
    if index is None:
        raise DataError(f"{run_dir}: there is no line {line}; {corpus or 'the data'} has lines 1 to {last:,}")
    within = line - last
    line_of_all = sum(entry["pairs"] for entry in described[:index]) + within
    matches = np.flatnonzero(data.lines == line_of_all)
    pair = int(matches[0]) if len(matches) else None
    if index != named:
        texts, generation = _opened(run, part, described, index, mirror)
    both: Sequence[Iterable[str]] = ()
    if texts is not None:
        both = texts.source.open(errors="replace"), texts.target.open(errors="replace")
    elif part in run.recipe().data.held_out:
        both = run.valid_text.read()
    found = next(islice(zip(*both, strict=False), within - 1, None), None)
    sides: list[InspectedSide] = []
    for number, (side, text) in enumerate(zip(SIDES, found or (None, None), strict=True)):
        if pair is None:
            sides.append(InspectedSide(text, None, None, None))
        else:
            ids = [int(token) for token in data.ids(number, pair)]
            sides.append(InspectedSide(text, tokenizer.decode(ids, side), tokenizer.pieces(ids, side), ids))
    rule = _rule(run, index, within, texts) if part == "train" and pair is None and texts is not None else None
    if generation is not None:
        within = next(islice(generation.line_numbers(), within - 1, None))
    source = sides[0] if task_of(tokenizer).has_source else None
    return InspectedPair(names[index], within, line_of_all, pair, source, sides[1], rule)


def _rule(run: Run, index: int, line: int, corpus: Corpus) -> str | None:
    """Return the rule by which a pair of a corpus is left out, or "" if the pair alone does not decide that.

    None for tasks whose pairs are no source and target text.
    """
    recipe = run.recipe()
    data, cleaning = recipe.data, recipe.cleaning
    if not task_of(data).has_source or data.has_labels:
        return None
    corpus = task_of(data).training_corpus(corpus)
    raw = zip(*(text.open().raw_lines() for text in (corpus.source, corpus.target)), strict=False)
    lines = next(([source], [target]) for source, target in islice(raw, line - 1, None))
    direction = data.direction(data.train[index])
    examiner = BlockExaminer(data.in_direction(direction), cleaning, frozenset(), frozenset(), False)
    examined = examiner(RawBlock(line, line - 1, ("source", "target"), *lines))
    encoder = BlockEncoder(run.tokenizer_folder, recipe)
    encoded = encoder(TextBlock(index, line, 0, bytes(examined.states), *examined.texts))
    return next(iter([*examined.dropped, *encoded.findings.dropped]), "")


def _opened(
    run: Run, part: SetName, described: list[dict[str, Any]], index: int, mirror: Path | None
) -> tuple[Corpus | None, Generation | None]:
    """Return a corpus, and its translations if it is generated; None if it is not on this machine or has changed."""
    data, downloader, generation = run.recipe().data, Downloader(mirror), None
    with suppress(DataError, ModelError):
        for entry in data.corpora(part)[index : index + 1]:  # none for pairs that are held out of train
            if isinstance(entry, GeneratedCorpus):
                generation = Generation(entry, data, run)
                corpus = generation.corpus() if generation.recorded() else None
            else:
                files = () if isinstance(entry, LocalPair) else public_files(data, entry)
                corpus = open_entry(data, entry, downloader) if all(map(downloader.find, files)) else None
            if corpus is not None and corpus.fingerprint == described[index].get("sha256", ""):
                return corpus, generation
    return None, None
