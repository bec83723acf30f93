"""`prepare`: from the corpora a recipe names to token ids on disk.

    corpora -> lines (cut at \\n, both sides equally many)
            -> pairs that cleaning keeps, spooled as text       first pass over the text
            -> validation pairs held out, if a number was asked
            -> subwords learned from what is left               second pass
            -> ids in shards                                    third pass

All of it happens in a temporary folder that becomes RUN/data in one step.
"""

import hashlib
import heapq
import json
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from nmtkit.config import (
    CleaningConfig,
    DataConfig,
    LocalPair,
    Recipe,
    corpus_name,
    differences,
    stored_recipe,
    to_toml,
)
from nmtkit.console import log, progress, transfers
from nmtkit.data.shards import ShardWriter
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import (
    read_json,
    read_lines,
    remove_leftovers,
    sha256_of,
    sha256_of_files,
    versions,
    write_atomically,
    write_folder_atomically,
    write_json,
    write_lines,
)
from nmtkit.run_lock import locked_run
from nmtkit.text.cleaning import RULES, rule_against_lengths, rule_against_text
from nmtkit.text.corpora import Corpus, local_corpus, local_file, open_corpus, remote_files
from nmtkit.text.download import CorpusFile, Downloader, RemoteFile
from nmtkit.text.tokenizer import Tokenizer, check_subwords, join_segments, normalize

FORMAT = 1
_CHUNK_PAIRS = 10_000
"""Pairs encoded at once: enough to keep sentencepiece's threads busy, little enough not to matter in memory."""


@dataclass(frozen=True)
class Preparation:
    """What `prepare` did.

    Attributes:
        manifest: what RUN/data/manifest.json says.
        is_new: False when nothing had changed and nothing was done.
    """

    manifest: dict[str, Any]
    is_new: bool


@dataclass
class _Spool:
    """Training pairs that cleaning kept, as plain text on disk, and what is known of them."""

    source: Path
    target: Path
    lines: "array[int]" = field(default_factory=lambda: array("q"))
    held_out: set[int] = field(default_factory=set)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The spooled pairs, raw."""
        with (
            self.source.open(newline="\n", encoding="utf-8") as source,
            self.target.open(newline="\n", encoding="utf-8") as target,
        ):
            for one, other in zip(source, target, strict=True):
                yield one[:-1], other[:-1]


def prepare(recipe: Recipe, run_dir: Path, *, mirror: Path | None = None, workers: int | None = None) -> Preparation:
    """Writes RUN/data and RUN/recipe.toml, unless they are there already and nothing has changed.

    Args:
        mirror: folder laid out as <host>/<path> whose files are used instead of the network.
        workers: threads that cut text into subwords; by default as many as there are cores.

    Raises:
        NmtkitError: a corpus cannot be had or used, or the run has been trained with other data already.
    """
    check_subwords(recipe.data)
    remove_leftovers(run_dir)
    data = recipe.data
    tokenizer = _given_tokenizer(data)
    with transfers() as report:
        train, valid, tests = _open_corpora(data, Downloader(mirror, progress=report))
    fingerprint = _fingerprint(recipe, [*train, *valid, *tests.values()], tokenizer)

    folder = run_dir / "data"
    if (folder / "manifest.json").is_file():
        manifest = read_json(folder / "manifest.json")
        if manifest.get("fingerprint") == fingerprint:
            if not _is_trained(run_dir) and _differs_from_stored(recipe, run_dir):
                with locked_run(run_dir, "prepare"):
                    _store_recipe(recipe, run_dir)
            return Preparation(manifest, is_new=False)
        _refuse_after_training(recipe, run_dir)
        log.info("the recipe or its corpora have changed: preparing %s anew", folder)
    with locked_run(run_dir, "prepare"):
        manifest = _write_data(recipe, folder, workers, fingerprint, tokenizer, (train, valid, tests))
        _store_recipe(recipe, run_dir)
    return Preparation(manifest, is_new=True)


def _write_data(
    recipe: Recipe,
    folder: Path,
    workers: int | None,
    fingerprint: str,
    tokenizer: Tokenizer | None,
    corpora: tuple[list[Corpus], list[Corpus], dict[str, Corpus]],
) -> dict[str, Any]:
    """Writes RUN/data and returns its manifest."""
    begun = time.monotonic()
    with write_folder_atomically(folder) as temporary:
        manifest = _Preparer(recipe, temporary, workers, tokenizer).run(*corpora)
        manifest = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "settings": recipe.model_dump(mode="json", include={"data", "cleaning"}),
            **manifest,
            "versions": versions(),
            "files": sha256_of_files(temporary),
            "seconds": round(time.monotonic() - begun, 3),
        }
        write_json(temporary / "manifest.json", manifest)
    return manifest


def _differs_from_stored(recipe: Recipe, run_dir: Path) -> bool:
    path = run_dir / "recipe.toml"
    return not path.is_file() or path.read_text(encoding="utf-8") != to_toml(recipe)


def _store_recipe(recipe: Recipe, run_dir: Path) -> None:
    """Writes RUN/recipe.toml unless it says the same already."""
    if _differs_from_stored(recipe, run_dir):
        with write_atomically(run_dir / "recipe.toml") as file:
            file.write(to_toml(recipe))


def _is_trained(run_dir: Path) -> bool:
    return any((run_dir / name).is_dir() for name in ("checkpoints", "resume"))


def _open_corpora(data: DataConfig, downloader: Downloader) -> tuple[list[Corpus], list[Corpus], dict[str, Corpus]]:
    """The corpora for training and validation, and the test sets by name; all names are checked before any download."""
    valid = () if isinstance(data.valid, int) else data.valid
    downloader.fetch_all(_remote_files(data))
    train = [open_entry(data, entry, downloader) for entry in data.train]
    tests = {corpus_name(entry): open_entry(data, entry, downloader) for entry in data.test}
    return train, [open_entry(data, entry, downloader) for entry in valid], tests


def open_entry(data: DataConfig, entry: str | LocalPair, downloader: Downloader) -> Corpus:
    """A corpus that a recipe names, in the recipe's direction.

    Raises:
        DataError: it cannot be had or opened.
    """
    languages = (data.source_language, data.target_language)
    if isinstance(entry, LocalPair):
        columns = (entry.source_column, entry.target_column)
        return local_corpus(entry.source, entry.target, entry.name, languages=languages, columns=columns)
    return open_corpus(entry, *languages, downloader)


def _remote_files(data: DataConfig) -> list[RemoteFile]:
    """What the corpora of a recipe are read from, each once; DataError for a name or a direction there is not."""
    valid = () if isinstance(data.valid, int) else data.valid
    names = [entry for entry in (*data.train, *valid, *data.test) if isinstance(entry, str)]
    files = [file for name in names for file in remote_files(name, data.source_language, data.target_language)]
    return list(dict.fromkeys(files))


def download(recipe: Recipe, *, mirror: Path | None = None) -> list[CorpusFile]:
    """Fetches and verifies what the corpora of a recipe are read from, and nothing else.

    Raises:
        NmtkitError: there is no such corpus, or a file cannot be had.
    """
    with transfers() as report:
        return Downloader(mirror, progress=report).fetch_all(_remote_files(recipe.data))


def _given_tokenizer(data: DataConfig) -> Tokenizer | None:
    """The tokenizer of the model that data.tokenizer names, if it names one."""
    if data.tokenizer is None:
        return None
    tokenizer = Tokenizer.of_model(data.tokenizer)
    tokenizer.check_recipe(data)
    return tokenizer


def _fingerprint(recipe: Recipe, corpora: list[Corpus], tokenizer: Tokenizer | None) -> str:
    """A sum over all that decides the content of RUN/data: settings and the bytes of the corpora, not their place."""
    settings = recipe.model_dump(mode="json", include={"data", "cleaning"})
    for key in ("train", "valid", "test"):
        if not isinstance(settings["data"][key], int):
            settings["data"][key] = [corpus_name(entry) for entry in getattr(recipe.data, key)]
    settings["data"].pop("tokenizer")
    if tokenizer is not None:
        settings["data"]["tokenizer"] = tokenizer.fingerprint()
    content = [[corpus.name, corpus.fingerprint] for corpus in corpora]
    text = json.dumps([FORMAT, settings, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_after_training(recipe: Recipe, run_dir: Path) -> None:
    if not _is_trained(run_dir):
        return
    old = stored_recipe(run_dir / "recipe.toml", recipe.name)
    changes = [f"data.{change}" for change in differences(old.data, recipe.data)]
    changes += [f"cleaning.{change}" for change in differences(old.cleaning, recipe.cleaning)]
    raise NmtkitError(
        f"{run_dir} has been trained with other data; changed: {', '.join(changes) or 'the text of a corpus'}. "
        "Take another --run-dir, or undo the change"
    )


def changed_text(data: DataConfig, manifest: dict[str, Any]) -> list[str]:
    """The local files of a recipe that hold another text than when the data were prepared, wherever they lie now."""
    changes = []
    for key in ("train", "valid", "test"):
        entries = getattr(data, key)
        prepared = [corpus["files"] for corpus in manifest["corpora"] if corpus["role"] == key]
        for entry, files in zip(entries, prepared, strict=True) if isinstance(entries, tuple) else ():
            if isinstance(entry, LocalPair):
                for place, before in ((entry.source, files[0]), (entry.target, files[-1])):
                    path, _ = local_file(place)
                    if path.is_file() and sha256_of(path) != before["sha256"]:
                        changes.append(f"data.{key}: {path} holds another text than when the run was prepared")
    given = data.tokenizer if data.tokenizer is not None and data.tokenizer.exists() else None
    if given is not None and Tokenizer.of_model(given).fingerprint() != manifest["tokenizer_sha256"]:
        changes.append(f"data.tokenizer: {given} has another one than the run was prepared with")
    return changes


def damaged_files(run_dir: Path, manifest: dict[str, Any]) -> list[str]:
    """The files of RUN/data that are not as `prepare` wrote them, or are missing."""
    folder = run_dir / "data"
    expected = manifest["files"].items()
    return [name for name, total in expected if not (folder / name).is_file() or sha256_of(folder / name) != total]


class _Preparer:
    """One preparation in a temporary folder; its methods run in the order in which they stand."""

    def __init__(self, recipe: Recipe, folder: Path, workers: int | None, tokenizer: Tokenizer | None) -> None:
        self._data: DataConfig = recipe.data
        self._cleaning: CleaningConfig = recipe.cleaning
        self._folder = folder
        self._workers = workers
        self._tokenizer = tokenizer
        self._dropped: Counter[str] = Counter()
        self._described: list[dict[str, Any]] = []

    def run(self, train: list[Corpus], valid: list[Corpus], tests: dict[str, Corpus]) -> dict[str, Any]:
        """Fills the folder and returns what the manifest says of it."""
        spool = self._read_training_text(train)
        valid_pairs = self._hold_out(spool) if isinstance(self._data.valid, int) else self._read_all(valid, "valid")
        if not len(spool.lines) > len(spool.held_out):
            raise DataError(f"no training pair is left after cleaning ({self._dropped_summary()}); look at the corpora")
        tokenizer = self._tokenizer or self._learn_subwords(spool)
        tokenizer.save(self._folder / "tokenizer")
        train_pairs, train_tokens = self._write_shards(
            "train", tokenizer, self._pairs_to_train_on(spool), len(spool.lines), self._cleaning
        )
        if not train_pairs:
            raise DataError(f"no training pair is left after cleaning ({self._dropped_summary()}); look at max_tokens")
        spool.source.unlink()
        spool.target.unlink()
        counts: dict[str, Any] = {"train": train_pairs}
        if valid_pairs:
            self._write_text(self._folder, "valid", valid_pairs)
            numbered = ((number, *pair) for number, pair in enumerate(valid_pairs, start=1))
            counts["valid"], _ = self._write_shards("valid", tokenizer, numbered, len(valid_pairs), None)
        if self._data.valid and not counts.get("valid"):
            raise DataError("data.valid: no validation pair has text on both sides; look at the corpus")
        for name, corpus in tests.items():
            pairs = self._read_all([corpus], "test")
            if not pairs:
                raise DataError(f"{corpus.source.name}: the test set is empty")
            self._write_text(self._folder / "test", name, pairs)
            counts[f"test/{name}"] = len(pairs)
        return {
            "corpora": self._described,
            "cleaning": {rule: self._dropped[rule] for rule in RULES},
            "pairs": counts,
            "train_tokens": train_tokens,
            "tokenizer_sha256": tokenizer.fingerprint(),
            "vocab_sizes": tokenizer.settings["vocab_sizes"],
        }

    def _dropped_summary(self) -> str:
        return ", ".join(f"{rule}: {count}" for rule, count in self._dropped.items()) or "the corpora are empty"

    def _read_training_text(self, corpora: list[Corpus]) -> _Spool:
        spool = _Spool(self._folder / "spool.source", self._folder / "spool.target")
        number = 0
        with ExitStack() as stack:
            source_file, target_file = (
                stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                for path in (spool.source, spool.target)
            )
            advance = stack.enter_context(progress("reading", None))
            for source, target in chain.from_iterable(self._read_pairs(corpus, "train") for corpus in corpora):
                number += 1
                rule = rule_against_text(
                    normalize(source, self._data.normalize), normalize(target, self._data.normalize), self._cleaning
                )
                if rule is not None:
                    self._dropped[rule] += 1
                    continue
                source_file.write(f"{source}\n")
                target_file.write(f"{target}\n")
                spool.lines.append(number)
                if number % 100_000 == 0:
                    advance(number, "pairs")
        return spool

    def _read_pairs(self, corpus: Corpus, role: str) -> Iterator[tuple[str, str]]:
        """The pairs of a corpus, which must have equally many lines on both sides; describes it in the manifest."""
        source, target = corpus.source.open(), corpus.target.open()
        missing = object()
        one_ended = None
        for one, other in zip_longest(source, target, fillvalue=missing):
            if one is missing or other is missing:
                one_ended = True
            elif not one_ended:
                yield str(one), str(other)
        if one_ended:
            raise DataError(
                f"{corpus.source.name} has {source.num_lines} lines but {corpus.target.name} has {target.num_lines}; "
                "they must be each other's translation line by line"
            )
        self._described.append(
            {
                "name": corpus.name,
                "role": role,
                "pairs": source.num_lines,
                "byte_order_mark_removed": {
                    "source": source.has_byte_order_mark,
                    "target": target.has_byte_order_mark,
                },
                "carriage_returns_removed": {"source": source.carriage_returns, "target": target.carriage_returns},
                "files": [_describe(entry) for entry in corpus.files],
                "sha256": corpus.fingerprint,
            }
        )
        removed = source.carriage_returns + target.carriage_returns
        if removed:
            log.info("%s: a carriage return was removed at the end of %d lines (CRLF text)", corpus.name, removed)
        if role == "train" and not source.num_lines:
            log.warning("%s: the corpus is empty", corpus.name)

    def _read_all(self, corpora: list[Corpus], role: str) -> list[tuple[str, str]]:
        return [pair for corpus in corpora for pair in self._read_pairs(corpus, role)]

    def _hold_out(self, spool: _Spool) -> list[tuple[str, str]]:
        """Takes the asked number of distinct pairs out of training, and every pair that shares a side with one.

        The pairs are those with the smallest hash, so the choice depends neither on order nor on what else is there.
        """
        wanted = self._data.valid
        assert isinstance(wanted, int)
        first_of: dict[bytes, int] = {}
        largest: list[tuple[int, bytes]] = []  # a heap of the smallest hashes, negated
        for index, pair in enumerate(self._normalized(spool)):
            key = hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest()
            if key in first_of:
                continue
            entry = (-int.from_bytes(key, "big"), key)
            if len(largest) < wanted:
                heapq.heappush(largest, entry)
            elif entry > largest[0]:
                del first_of[heapq.heapreplace(largest, entry)[1]]
            else:
                continue
            first_of[key] = index
        if len(largest) < wanted:
            raise DataError(
                f"data.valid = {wanted}: the training corpora hold only {len(largest)} different pairs after cleaning"
            )
        chosen = set(first_of.values())
        held_out = [pair for index, pair in enumerate(spool.pairs()) if index in chosen]
        sides = [{normalize(pair[side], self._data.normalize) for pair in held_out} for side in range(2)]
        for index, (source, target) in enumerate(self._normalized(spool)):
            if source in sides[0] or target in sides[1]:
                spool.held_out.add(index)
        self._dropped["held_out_copy"] += len(spool.held_out) - len(chosen)
        return held_out

    def _normalized(self, spool: _Spool) -> Iterator[tuple[str, str]]:
        for source, target in spool.pairs():
            yield normalize(source, self._data.normalize), normalize(target, self._data.normalize)

    def _pairs_to_train_on(self, spool: _Spool) -> Iterator[tuple[int, str, str]]:
        for index, (source, target) in enumerate(spool.pairs()):
            if index not in spool.held_out:
                yield spool.lines[index], source, target

    def _learn_subwords(self, spool: _Spool) -> Tokenizer:
        available = len(spool.lines) - len(spool.held_out)
        step = -(-available // self._data.subword_sample_pairs)

        def sample() -> Iterable[tuple[str, str]]:
            for _, source, target in islice(self._pairs_to_train_on(spool), 0, None, step):
                yield normalize(source, self._data.normalize), normalize(target, self._data.normalize)

        log.info(
            "learning subwords (%s, %d entries) from %d pairs",
            self._data.subwords,
            self._data.vocab_size,
            -(-available // step),
        )
        return Tokenizer.learn(self._data, sample)

    def _write_shards(
        self,
        name: str,
        tokenizer: Tokenizer,
        numbered_pairs: Iterator[tuple[int, str, str]],
        total: int,
        cleaning: CleaningConfig | None,
    ) -> tuple[int, dict[str, int]]:
        """Writes a folder of shards; without ``cleaning`` only pairs with a side without tokens are left out."""
        tokens = {"source": 0, "target": 0}
        sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
        with ShardWriter(self._folder / name, sizes) as writer, progress(f"encoding {name}", total) as advance:
            done = 0
            while chunk := list(islice(numbered_pairs, _CHUNK_PAIRS)):
                sources = tokenizer.encode([tokenizer.normalize(entry[1]) for entry in chunk], "source", self._workers)
                targets = tokenizer.encode([tokenizer.normalize(entry[2]) for entry in chunk], "target", self._workers)
                kept, lines = [], []
                for (number, _, _), source, target in zip(chunk, sources, targets, strict=True):
                    rule = rule_against_lengths(len(source), len(target), cleaning or _KEEP_ALL)
                    if rule is None:
                        kept.append((source, target))
                        lines.append(number)
                    elif cleaning is not None:
                        self._dropped[rule] += 1
                writer.add(kept, lines)
                tokens["source"] += sum(len(source) for source, _ in kept)
                tokens["target"] += sum(len(target) for _, target in kept)
                done += len(chunk)
                advance(done)
        return writer.num_pairs, tokens

    def _write_text(self, folder: Path, name: str, pairs: list[tuple[str, str]]) -> None:
        """Writes what is translated and what that is compared with: the text as it came, pieces joined to words."""
        write_lines(folder / f"{name}.source.txt", [source for source, _ in pairs])
        references = [target for _, target in pairs]
        if self._data.subwords == "none":
            references = [join_segments(line, self._data.segment_mark) for line in references]
        write_lines(folder / f"{name}.reference.txt", references)


def _describe(file: CorpusFile) -> dict[str, Any]:
    return {"path": str(file.path), "url": file.url, "bytes": file.num_bytes, "sha256": file.sha256}


_KEEP_ALL = CleaningConfig(max_tokens=0, max_characters=0)


def read_text_pair(prefix: Path) -> tuple[list[str], list[str]]:
    """The lines of PREFIX.source.txt and PREFIX.reference.txt."""
    return read_lines(Path(f"{prefix}.source.txt")), read_lines(Path(f"{prefix}.reference.txt"))


def load_tokenizer(run_dir: Path) -> Tokenizer:
    """The tokenizer of prepared data.

    Raises:
        DataError: the run has not been prepared.
    """
    if not (run_dir / "data" / "manifest.json").is_file():
        raise DataError(f"{run_dir / 'data'}: no prepared data here; run `nmtkit prepare` first")
    return Tokenizer.load(run_dir / "data" / "tokenizer")


def test_sets(run_dir: Path) -> list[str]:
    """The names of the test sets of prepared data."""
    return sorted(path.name.removesuffix(".source.txt") for path in (run_dir / "data" / "test").glob("*.source.txt"))
