"""`prepare`: from the corpora a recipe names to token ids on disk.

    corpora -> pairs, examined, cleaned and spooled as text     first pass over the text (training_text.py)
            -> validation pairs held out, if a number was asked (held_out.py)
            -> subwords learned from what is left               second pass
            -> ids in shards                                    third pass
            -> what was found, as report.json and report.html   (report.py, report_page.py)

All of it happens in a temporary folder that becomes RUN/data in one step.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
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
from nmtkit.data.findings import Findings
from nmtkit.data.held_out import hold_out
from nmtkit.data.repeats import key_of
from nmtkit.data.report import WordCounts, make_report, shard_statistics
from nmtkit.data.report_page import report_page
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.data.training_text import TrainingText, TrainingTextReader, explain_line_counts, open_sides
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import (
    LineReader,
    read_json,
    read_lines,
    remove_leftovers,
    scratch_folder,
    sha256_of,
    sha256_of_files,
    versions,
    write_atomically,
    write_folder_atomically,
    write_json,
    write_lines,
)
from nmtkit.run_lock import locked_run
from nmtkit.text.cleaning import BLANK_RULES, HELD_OUT_COPY, MEANINGS, RULES, has_too_many_words, rules_against_lengths
from nmtkit.text.corpora import Corpus, local_corpus, local_file, open_corpus, remote_files
from nmtkit.text.download import CorpusFile, Downloader, RemoteFile
from nmtkit.text.tokenizer import Tokenizer, check_subwords, join_segments, normalize
from nmtkit.text.treebank import SILVER, is_own_treebank, linearised, linearised_line, stored_trees, treebank_corpus

Pair = tuple[str, str]

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


@dataclass(frozen=True)
class Check:
    """What `prepare --check` found.

    Attributes:
        report: what report.json says.
        refused: the rules for which `prepare` would stop, with the number of pairs each concerns.
        folder: where the report was left; None where prepared data with a report of their own lie already.
    """

    report: dict[str, Any]
    refused: dict[str, int]
    folder: Path | None


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
    train, valid, tests = _fetch_corpora(data, mirror)
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
    log.info("what was found in the text, with pictures: %s", folder / "report.html")
    return Preparation(manifest, is_new=True)


def check(recipe: Recipe, run_dir: Path, *, mirror: Path | None = None) -> Check:
    """Reads the corpora of a recipe once and says what is wrong with them, whatever the rules would do about it.

    The report is left in RUN/data, unless there are prepared data, whose report stays.

    Raises:
        NmtkitError: a corpus cannot be had or read.
    """
    remove_leftovers(run_dir)
    train, valid, tests = _fetch_corpora(recipe.data, mirror)
    findings = Findings(recipe.cleaning, may_stop=False)
    folder = run_dir / "data"
    with locked_run(run_dir, "prepare"), ExitStack() as stack:
        is_prepared = (folder / "manifest.json").is_file()
        written = scratch_folder(run_dir / "check") if is_prepared else write_folder_atomically(folder)
        temporary = stack.enter_context(written)
        report = _Preparer(recipe, temporary, findings, None, None).check(train, valid, tests)
    return Check(report, findings.refused(), None if is_prepared else folder)


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
        findings = Findings(recipe.cleaning, may_stop=True)
        manifest = _Preparer(recipe, temporary, findings, workers, tokenizer).run(*corpora)
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


def _fetch_corpora(data: DataConfig, mirror: Path | None) -> tuple[list[Corpus], list[Corpus], dict[str, Corpus]]:
    with transfers() as report:
        return _open_corpora(data, Downloader(mirror, progress=report))


def _open_corpora(data: DataConfig, downloader: Downloader) -> tuple[list[Corpus], list[Corpus], dict[str, Corpus]]:
    """The corpora for training and validation, and the test sets by name; all names are checked before any download."""
    valid = () if isinstance(data.valid, int) else data.valid
    downloader.fetch_all(_remote_files(data))
    train = [open_entry(data, entry, downloader) for entry in data.train]
    if data.has_trees:
        train = [linearised(corpus, tagged=data.text == "tagged-trees") for corpus in train]
    tests = {corpus_name(entry): open_entry(data, entry, downloader) for entry in data.test}
    return train, [open_entry(data, entry, downloader) for entry in valid], tests


def open_entry(data: DataConfig, entry: str | LocalPair, downloader: Downloader) -> Corpus:
    """A corpus that a recipe names, in the recipe's direction.

    Raises:
        DataError: it cannot be had or opened.
    """
    languages = (data.source_language, data.target_language)
    if isinstance(entry, str) and is_own_treebank(entry):
        return treebank_corpus(entry, data.treebank, data.silver_trees)
    if isinstance(entry, LocalPair) and data.has_trees:
        if entry.source != entry.target:
            raise DataError(
                f"{entry.source}, {entry.target}: words and trees come from one file: name it for both sides"
            )
        return stored_trees(corpus_name(entry), [entry.source])
    if isinstance(entry, LocalPair):
        columns = (entry.source_column, entry.target_column)
        return local_corpus(entry.source, entry.target, entry.name, languages=languages, columns=columns)
    return open_corpus(entry, *languages, downloader)


def _remote_files(data: DataConfig) -> list[RemoteFile]:
    """What the corpora of a recipe are read from, each once; DataError for a name or a direction there is not."""
    valid = () if isinstance(data.valid, int) else data.valid
    names = [entry for entry in (*data.train, *valid, *data.test) if isinstance(entry, str)]
    public = [name for name in names if not is_own_treebank(name)]
    files = [file for name in public for file in remote_files(name, data.source_language, data.target_language)]
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
    # A rule at its default says nothing, so that data prepared before there was such a rule stay valid.
    defaults = CleaningConfig().model_dump(mode="json")
    settings["cleaning"] = {
        key: value for key, value in settings["cleaning"].items() if key not in RULES or value != defaults[key]
    }
    for key in ("tokenizer", "treebank", "silver_trees"):
        settings["data"].pop(key)
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
            if isinstance(entry, str) and is_own_treebank(entry):
                if _is_other_treebank(data, entry, files):
                    changes.append(f"data.{key}: {entry} holds another text than when the run was prepared")
            elif isinstance(entry, LocalPair):
                for place, before in ((entry.source, files[0]), (entry.target, files[-1])):
                    path, _ = local_file(place)
                    if path.is_file() and sha256_of(path) != before["sha256"]:
                        changes.append(f"data.{key}: {path} holds another text than when the run was prepared")
    given = data.tokenizer if data.tokenizer is not None and data.tokenizer.exists() else None
    if given is not None and Tokenizer.of_model(given).fingerprint() != manifest["tokenizer_sha256"]:
        changes.append(f"data.tokenizer: {given} has another one than the run was prepared with")
    return changes


def _is_other_treebank(data: DataConfig, name: str, files: list[dict[str, Any]]) -> bool:
    """Whether the user's treebank, if it is there, has other files than these."""
    places = data.silver_trees if name == SILVER else (data.treebank,)
    if not all(place is not None and place.exists() for place in places):
        return False
    found = treebank_corpus(name, data.treebank, data.silver_trees).files
    return [file.sha256 for file in found] != [file["sha256"] for file in files]


def damaged_files(run_dir: Path, manifest: dict[str, Any]) -> list[str]:
    """The files of RUN/data that are not as `prepare` wrote them, or are missing."""
    folder = run_dir / "data"
    expected = manifest["files"].items()
    return [name for name, total in expected if not (folder / name).is_file() or sha256_of(folder / name) != total]


class _Preparer:
    """One preparation in a temporary folder; its methods run in the order in which they stand."""

    def __init__(
        self, recipe: Recipe, folder: Path, findings: Findings, workers: int | None, tokenizer: Tokenizer | None
    ) -> None:
        self._recipe = recipe
        self._name = recipe.name
        self._data: DataConfig = recipe.data
        self._cleaning: CleaningConfig = recipe.cleaning
        self._folder = folder
        self._workers = workers
        self._tokenizer = tokenizer
        self._findings = findings
        self._described: list[dict[str, Any]] = []

    def run(self, train: list[Corpus], valid: list[Corpus], tests: dict[str, Corpus]) -> dict[str, Any]:
        """Fills the folder and returns what the manifest says of it."""
        valid_pairs, test_pairs = self._read_sets(valid, tests)
        text = self._read_training_text(train, valid_pairs, test_pairs, check_only=False)
        if isinstance(self._data.valid, int):
            valid_pairs, copies = hold_out(text, self._data.valid, self._data.normalize)
            self._findings.dropped[HELD_OUT_COPY] += copies
        if not len(text):
            raise DataError(f"no training pair is left after cleaning ({self._dropped_summary()}); look at the corpora")
        tokenizer = self._tokenizer or self._learn_subwords(text)
        tokenizer.save(self._folder / "tokenizer")
        words = self._write_shards("train", tokenizer, text.pairs(), len(text), self._cleaning)
        train_data = PairData(self._folder / "train")
        if not len(train_data):
            raise DataError(f"no training pair is left after cleaning ({self._dropped_summary()}); look at max_tokens")
        text.remove()
        counts: dict[str, Any] = {"train": len(train_data)}
        subwords = {"train": shard_statistics(train_data, tokenizer, words)}
        if valid_pairs:
            self._write_text(self._folder, "valid", valid_pairs)
            numbered = ((number, *self._as_trained(pair)) for number, pair in enumerate(valid_pairs, start=1))
            words = self._write_shards("valid", tokenizer, numbered, len(valid_pairs), None)
            valid_data = PairData(self._folder / "valid")
            counts["valid"] = len(valid_data)
            if len(valid_data):
                subwords["valid"] = shard_statistics(valid_data, tokenizer, words)
        if self._data.valid and not counts.get("valid"):
            raise DataError("data.valid: no validation pair has text on both sides; look at the corpus")
        for name, pairs in test_pairs.items():
            self._write_text(self._folder / "test", name, pairs)
            counts[f"test/{name}"] = len(pairs)
        report = make_report(self._findings, text, self._described, len(train_data), subwords)
        self._write_report(report)
        return {
            "corpora": self._described,
            "cleaning": self._findings.left_out(),
            "rules": {rule: found["count"] for rule, found in report["rules"].items()},
            "pairs": counts,
            "train_tokens": {side: part["tokens"] for side, part in subwords["train"].items()},
            "tokenizer_sha256": tokenizer.fingerprint(),
            "vocab_sizes": tokenizer.settings["vocab_sizes"],
        }

    def check(self, train: list[Corpus], valid: list[Corpus], tests: dict[str, Corpus]) -> dict[str, Any]:
        """Only reads and examines the text; leaves the report in the folder and returns it."""
        text = self._read_training_text(train, *self._read_sets(valid, tests), check_only=True)
        text.remove()
        report = make_report(self._findings, text, self._described, None, None)
        self._write_report(report)
        return report

    def _dropped_summary(self) -> str:
        dropped = self._findings.dropped
        return ", ".join(f"{rule}: {count}" for rule, count in dropped.items()) or "the corpora are empty"

    def _write_report(self, report: dict[str, Any]) -> None:
        write_json(self._folder / "report.json", report)
        with write_atomically(self._folder / "report.html") as file:
            file.write(report_page(report, self._name))

    def _read_sets(self, valid: list[Corpus], tests: dict[str, Corpus]) -> tuple[list[Pair], dict[str, list[Pair]]]:
        """The validation pairs, and the pairs of each test set: all as they are."""
        valid_pairs = [pair for corpus in valid for pair in self._read_set(corpus, "valid")]
        test_pairs = {name: self._read_set(corpus, "test") for name, corpus in tests.items()}
        for name, corpus in tests.items():
            if not test_pairs[name]:
                raise DataError(f"{corpus.source.name}: the test set is empty")
        return valid_pairs, test_pairs

    def _read_set(self, corpus: Corpus, role: str) -> list[Pair]:
        source, target = open_sides(corpus, "strict")
        sources, targets = list(source), list(target)
        if len(sources) != len(targets):
            raise DataError(explain_line_counts(corpus, len(sources), len(targets))[1])
        self._describe(corpus, role, source, target)
        return list(zip(sources, targets, strict=True))

    def _as_trained(self, pair: Pair) -> Pair:
        """A pair of a validation or test set as training text would have it."""
        if not self._data.has_trees:
            return pair
        tagged = self._data.text == "tagged-trees"
        return pair[0], linearised_line(pair[1], "a tree of a validation or test set", tagged=tagged)

    def _read_training_text(
        self, train: list[Corpus], valid_pairs: list[Pair], test_pairs: dict[str, list[Pair]], *, check_only: bool
    ) -> TrainingText:
        held_apart = {
            "valid": {key_of(self._as_trained(pair)) for pair in valid_pairs},
            "test": {key_of(self._as_trained(pair)) for pairs in test_pairs.values() for pair in pairs},
        }
        reader = TrainingTextReader(self._recipe, self._folder, self._findings, held_apart, check_only=check_only)
        text = reader.read(train, lambda corpus, *sides: self._describe(corpus, "train", *sides))
        self._described.sort(key=lambda corpus: ("train", "valid", "test").index(corpus["role"]))
        for rule in ("overlap_valid", "overlap_test"):
            if self._findings.count(rule) and self._findings.actions[rule] == "keep":
                log.warning(
                    '%d training pairs are %s, whose scores they flatter; [cleaning] %s = "drop" leaves them out',
                    self._findings.count(rule),
                    MEANINGS[rule],
                    rule,
                )
        return text

    def _describe(self, corpus: Corpus, role: str, source: LineReader, target: LineReader) -> None:
        """Notes for the manifest what a corpus is, once it has been read."""
        self._described.append(
            {
                "name": corpus.name,
                "role": role,
                "pairs": min(source.num_lines, target.num_lines),
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

    def _learn_subwords(self, text: TrainingText) -> Tokenizer:
        step = -(-len(text) // self._data.subword_sample_pairs)

        def sample() -> Iterable[Pair]:
            for _, source, target in islice(text.pairs(), 0, None, step):
                yield normalize(source, self._data.normalize), normalize(target, self._data.normalize)

        log.info(
            "learning subwords (%s, %d entries) from %d pairs",
            self._data.subwords,
            self._data.vocab_size,
            -(-len(text) // step),
        )
        return Tokenizer.learn(self._data, sample)

    def _write_shards(
        self,
        name: str,
        tokenizer: Tokenizer,
        numbered_pairs: Iterator[tuple[int, str, str]],
        total: int,
        cleaning: CleaningConfig | None,
    ) -> WordCounts:
        """Writes a folder of shards; without ``cleaning`` only pairs with a side without tokens are left out."""
        counts = WordCounts()
        sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
        with ShardWriter(self._folder / name, sizes) as writer, progress(f"encoding {name}", total) as advance:
            done = 0
            while chunk := list(islice(numbered_pairs, _CHUNK_PAIRS)):
                texts = (
                    [tokenizer.normalize(source) for _, source, _ in chunk],
                    [tokenizer.normalize(target) for _, _, target in chunk],
                )
                sources = tokenizer.encode(texts[0], "source", self._workers)
                targets = tokenizer.encode(texts[1], "target", self._workers)
                kept, lines = [], []
                for (number, _, _), one, other, source, target in zip(chunk, *texts, sources, targets, strict=True):
                    rules = rules_against_lengths(len(source), len(target), cleaning or _KEEP_ALL)
                    if rules and self._is_left_out(rules, number, (one, other), cleaning):
                        continue
                    kept.append((source, target))
                    lines.append(number)
                    counts.add(one, other)
                writer.add(kept, lines)
                done += len(chunk)
                advance(done)
        return counts

    def _is_left_out(self, rules: list[str], number: int, texts: Pair, cleaning: CleaningConfig | None) -> bool:
        """Counts a training pair that breaks rules of its number of tokens, and says whether that leaves it out."""
        if cleaning is None:
            return True
        was_counted = any(has_too_many_words(text, cleaning.max_tokens) for text in texts)
        for rule in rules:
            if rule not in BLANK_RULES and not (rule == "too_long" and was_counted):
                self._findings.add(rule, number)
        dropping = next((rule for rule in rules if self._findings.actions[rule] == "drop"), None)
        if dropping is not None:
            self._findings.dropped[dropping] += 1
        return dropping is not None

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
