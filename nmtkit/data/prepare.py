"""`prepare`: from the corpora a recipe names to token ids on disk, in stages that each are whole or not there.

    corpora -> pairs, examined, cleaned and spooled as text     RUN/prepare/text     (training_text.py, examination.py)
            -> validation pairs held out, if a number was asked                      (held_out.py)
            -> subwords learned from what is left               RUN/prepare/subwords
            -> ids in shards                                    RUN/data             (encoding.py, shards.py)
            -> what was found, as report.json and report.html                        (report.py, report_page.py)

A stage that is there, made from the same text by the same settings, is not made again (stages.py).
"""

import difflib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from nmtkit.config.recipe import differences
from nmtkit.config.schema import CleaningConfig, DataConfig, LocalPair, NamedCorpus, Recipe, corpus_name, in_mixture
from nmtkit.console import counted, log, progress, transfers
from nmtkit.corpora.catalogue import catalogue
from nmtkit.corpora.corpus import Corpus, local_file
from nmtkit.corpora.download import CorpusFile, Downloader
from nmtkit.corpora.entries import files_to_fetch, is_changed, open_entry, public_name
from nmtkit.data.cleaning import BLANK_RULES, HELD_OUT_COPY, MEANINGS, RULES
from nmtkit.data.encoding import BlockEncoder
from nmtkit.data.examination import SPOOLED
from nmtkit.data.findings import Findings
from nmtkit.data.held_out import hold_out
from nmtkit.data.processes import in_order
from nmtkit.data.quality_page import report_page
from nmtkit.data.quality_report import ShardStatistics, make_report
from nmtkit.data.repeats import key_of
from nmtkit.data.shards import ShardWriter, read_manifest
from nmtkit.data.stages import fingerprint_of, finished_stage
from nmtkit.data.subword_learning import learn_subwords, lines_that_come_back
from nmtkit.data.training_text import TextBlock, TrainingText, TrainingTextReader, explain_line_counts, open_sides
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import (
    LineReader,
    read_json,
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
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.text.normalization import without_moses
from nmtkit.text.scripts import BLEU_TOKENIZERS, bleu_tokenizer, known_languages
from nmtkit.text.tokenizer import Tokenizer, join_segments

Pair = tuple[str, str]

FORMAT = 1
_TEXT_LEAVES_ASIDE = (
    "subwords",
    "vocab_size",
    "share_vocab",
    "byte_fallback",
    "subword_sample_pairs",
    "wordpiece_characters",
    "segment_mark",
    "tokenizer",
)
"""Keys of [data] that the cleaned text does not depend on."""
_NO_VALIDATION = "data.valid: no validation pair has text on both sides; look at the corpus"


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
        reasons: why `prepare` would stop whatever the rules say.
        folder: where the report was left; None where prepared data with a report of their own lie already.
    """

    report: dict[str, Any]
    refused: dict[str, int]
    reasons: list[str]
    folder: Path | None


def prepare(recipe: Recipe, run_dir: Path, *, mirror: Path | None = None, workers: int | None = None) -> Preparation:
    """Writes RUN/data and RUN/recipe.toml, unless they are there already and nothing has changed.

    Args:
        mirror: folder laid out as <host>/<path> whose files are used instead of the network.
        workers: processes that examine text and cut it into subwords; by default as many as there are cores. More than
            one are started only for much text; a script that may get there needs `if __name__ == "__main__":`.

    Raises:
        NmtkitError: a corpus cannot be had or used, or the run has been trained with other data already.
    """
    task_of(recipe.data)  # an unknown one is an error before anything is downloaded
    for folder in (run_dir, Run(run_dir).stages):
        remove_leftovers(folder)
    data = recipe.data
    tokenizer = None if data.tokenizer is None else Tokenizer.of_model(data.tokenizer)
    if tokenizer is not None:
        tokenizer.check_recipe(data)
    train, valid, tests = _fetch_corpora(data, mirror)
    fingerprint = _fingerprint(recipe, [*train, *valid, *tests.values()], tokenizer)

    folder = Run(run_dir).data
    if (folder / "manifest.json").is_file():
        manifest = read_manifest(folder)
        if manifest.get("fingerprint") == fingerprint:
            if not Run(run_dir).is_trained() and not Run(run_dir).has_recipe(recipe):
                with Run(run_dir).locked("prepare"):
                    Run(run_dir).store_recipe(recipe)
            Run(run_dir).remove_abandoned_lock("prepare")
            return Preparation(manifest, is_new=False)
        _refuse_after_training(recipe, run_dir)
        log.info("the recipe or its corpora have changed; preparing %s again", folder)
    with Run(run_dir).locked("prepare"):
        manifest = _write_data(recipe, run_dir, workers, fingerprint, tokenizer, (train, valid, tests))
        Run(run_dir).store_recipe(recipe)
    log.info("data report: %s", folder / "report.html")
    return Preparation(manifest, is_new=True)


def check(recipe: Recipe, run_dir: Path, *, mirror: Path | None = None, workers: int | None = None) -> Check:
    """Reads the corpora of a recipe once and says what is wrong with them, whatever the rules would do about it.

    The report is left in RUN/data, unless there are prepared data, whose report stays.

    Raises:
        NmtkitError: a corpus cannot be had or read.
    """
    remove_leftovers(run_dir)
    train, valid, tests = _fetch_corpora(recipe.data, mirror)
    findings = Findings(recipe.cleaning, may_stop=False)
    folder = Run(run_dir).data
    with Run(run_dir).locked("prepare"), ExitStack() as stack:
        is_prepared = (folder / "manifest.json").is_file()
        written = scratch_folder(Run(run_dir).check_folder) if is_prepared else write_folder_atomically(folder)
        temporary = stack.enter_context(written)
        report = _Preparer(recipe, findings, workers).check(train, valid, tests, temporary)
    _check_numbers(recipe.data, report, findings)
    return Check(report, findings.refused(), findings.reasons, None if is_prepared else folder)


def _check_numbers(data: DataConfig, report: dict[str, Any], findings: Findings) -> None:
    """Notes that there are no pairs, or fewer than are to be held out for validation, before any is cleaned away."""
    if findings.num_pairs == sum(findings.count(rule) for rule in BLANK_RULES):
        findings.stop("no training pair has text on both sides")
    pairs = [corpus["pairs"] for corpus in report["corpora"] if corpus["role"] == "train"]
    tagged = _tagged(data)
    there = sum(count for number, count in enumerate(pairs) if number not in tagged)
    if isinstance(data.valid, int) and data.valid > there:
        findings.stop(
            f"data.valid = {data.valid}: the training corpora hold only {counted(there, 'pair')}"
            f"{' without a tag' if tagged else ''}; take fewer"
        )


def _write_data(
    recipe: Recipe,
    run_dir: Path,
    workers: int | None,
    fingerprint: str,
    tokenizer: Tokenizer | None,
    corpora: tuple[list[Corpus], list[Corpus], dict[str, Corpus]],
) -> dict[str, Any]:
    """Writes RUN/data, by way of the stages before it, and returns its manifest."""
    begun = time.monotonic()
    preparer = _Preparer(recipe, Findings(recipe.cleaning, may_stop=True), workers)
    text = preparer.read_text(Run(run_dir).stages / "text", *corpora)
    tokenizer = tokenizer or preparer.learn_subwords(Run(run_dir).stages / "subwords", text)
    with write_folder_atomically(Run(run_dir).data) as temporary:
        manifest = preparer.write(temporary, text, tokenizer)
        manifest = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "settings": recipe.model_dump(mode="json", include={"data", "cleaning"}),
            **manifest,
            "bleu_tokenizer": bleu_tokenizer(recipe.data.target_language),
            "versions": versions(),
            "files": sha256_of_files(temporary),
            "seconds": round(time.monotonic() - begun, 3),
        }
        write_json(temporary / "manifest.json", manifest)
    return manifest


def stored_bleu_tokenizer(run_dir: Path, data: DataConfig) -> str:
    """Return the tokenizer of BLEU that was chosen when a run was prepared, so that all scores of the run compare."""
    path = Run(run_dir).manifest
    tokenizer = read_json(path, {"bleu_tokenizer?": str}).get("bleu_tokenizer") or bleu_tokenizer(data.target_language)
    if tokenizer not in BLEU_TOKENIZERS:
        raise DataError(f"{path}: bleu_tokenizer must be one of {', '.join(BLEU_TOKENIZERS)}, not {tokenizer!r}")
    return str(tokenizer)


def _warn_of_languages(data: DataConfig) -> None:
    """Warns of a language code that no table here has, and names near ones."""
    known = known_languages() | {code for entry in catalogue().values() for pair in entry.texts for code in pair}
    for key in ("source_language", "target_language"):
        code = getattr(data, key)
        if code.partition("_")[0] not in known:
            near = ", ".join(difflib.get_close_matches(code, sorted(known), n=5, cutoff=0.5))
            log.warning('data.%s = "%s" is not a known language code (near ones: %s)', key, code, near or "none")


def _fetch_corpora(data: DataConfig, mirror: Path | None) -> tuple[list[Corpus], list[Corpus], dict[str, Corpus]]:
    """The corpora for training and validation, and the test sets by name; all names are checked before any download."""
    _warn_of_languages(data)
    with transfers() as report:
        return _open_corpora(data, Downloader(mirror, progress=report))


def _open_corpora(data: DataConfig, downloader: Downloader) -> tuple[list[Corpus], list[Corpus], dict[str, Corpus]]:
    """The corpora for training and validation, and the test sets by name; all names are checked before any download."""
    valid = () if isinstance(data.valid, int) else data.valid
    downloader.fetch_all(files_to_fetch(data))
    train = [open_entry(data, entry, downloader) for entry in data.train]
    train = [task_of(data).training_corpus(corpus) for corpus in train]
    tests = {corpus_name(entry): open_entry(data, entry, downloader) for entry in data.test}
    return train, [open_entry(data, entry, downloader) for entry in valid], tests


def download(recipe: Recipe, *, mirror: Path | None = None) -> list[CorpusFile]:
    """Fetches and verifies what the corpora of a recipe are read from, and nothing else.

    Raises:
        NmtkitError: there is no such corpus, or a file cannot be had.
    """
    with transfers() as report:
        return Downloader(mirror, progress=report).fetch_all(files_to_fetch(recipe.data))


def _fingerprint(recipe: Recipe, corpora: list[Corpus], tokenizer: Tokenizer | None) -> str:
    """A sum over all that decides the content of RUN/data: settings and the bytes of the corpora, not their place."""
    settings = _decisive_settings(recipe)
    for key, entries in _corpora_of(recipe.data).items():
        settings["data"][key] = [corpus_name(entry) + in_mixture(entry) for entry in entries]
    settings["data"].pop("tokenizer")
    if tokenizer is not None:
        settings["data"]["tokenizer"] = tokenizer.fingerprint()
    return fingerprint_of(FORMAT, settings, [[corpus.name, corpus.fingerprint] for corpus in corpora])


def _text_fingerprint(recipe: Recipe, corpora: list[Corpus]) -> str:
    """A sum over all that decides the cleaned text."""
    settings = _decisive_settings(recipe)
    for key, entries in _corpora_of(recipe.data).items():
        settings["data"][key] = [corpus_name(entry) for entry in entries]
    for key in _TEXT_LEAVES_ASIDE:
        settings["data"].pop(key, None)
    if isinstance(recipe.data.valid, int) and (tagged := _tagged(recipe.data)):
        settings["data"]["tagged"] = tagged
    content = [[corpus.name, corpus.fingerprint] for corpus in corpora]
    return fingerprint_of("text", FORMAT, settings, content, versions())


def _decisive_settings(recipe: Recipe) -> dict[str, Any]:
    settings = recipe.model_dump(mode="json", include={"data", "cleaning"})
    # A rule at its default says nothing, so that data prepared before there was such a rule stay valid.
    defaults = CleaningConfig().model_dump(mode="json")
    settings["cleaning"] = {
        key: value for key, value in settings["cleaning"].items() if key not in RULES or value != defaults[key]
    }
    if recipe.data.subwords != "wordpiece":
        settings["data"].pop("wordpiece_characters")
    if recipe.data.task is None:
        settings["data"].pop("task")
    for key in DataConfig.PLACES:  # their content is in the fingerprints of the corpora
        settings["data"].pop(key)
    return settings


def _tagged(data: DataConfig) -> list[int]:
    """The numbers of the training corpora with a tag."""
    return [number for number, entry in enumerate(data.train) if not isinstance(entry, str) and entry.source_prefix]


def _corpora_of(data: DataConfig) -> dict[str, tuple[str | NamedCorpus | LocalPair, ...]]:
    """The corpora of each key that names some; validation pairs held out of train have none."""
    valid = {} if isinstance(data.valid, int) else {"valid": data.valid}
    return {"train": data.train, **valid, "test": data.test}


def _refuse_after_training(recipe: Recipe, run_dir: Path) -> None:
    if not Run(run_dir).is_trained():
        return
    old = Run(run_dir).recipe(recipe.name)
    changes = [f"data.{change}" for change in differences(old.data, recipe.data)]
    changes += [f"cleaning.{change}" for change in differences(old.cleaning, recipe.cleaning)]
    raise NmtkitError(
        f"{run_dir} has been trained with other data (changed: {', '.join(changes) or 'the text of a corpus'}); "
        "take another --run-dir, or undo the change"
    )


def changed_text(data: DataConfig, manifest: dict[str, Any]) -> list[str]:
    """The local files of a recipe that hold another text than when the data were prepared, wherever they lie now."""
    changes = []
    for key in ("train", "valid", "test"):
        entries = getattr(data, key)
        prepared = [corpus["files"] for corpus in manifest["corpora"] if corpus["role"] == key]
        pairs = list(zip_longest(entries, prepared)) if isinstance(entries, tuple) else []
        if any(
            entry is None or files is None or (isinstance(entry, LocalPair) and not files) for entry, files in pairs
        ):
            raise DataError("data/manifest.json and the stored recipe list different corpora; prepare the run again")
        for entry, files in pairs:
            if not isinstance(entry, LocalPair):
                if is_changed(data, public_name(entry), files):
                    changes.append(
                        f"data.{key}: {public_name(entry)} holds another text than when the run was prepared"
                    )
            else:
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
    folder = Run(run_dir).data
    expected = manifest["files"].items()
    return [name for name, total in expected if not (folder / name).is_file() or sha256_of(folder / name) != total]


class _Preparer:
    """One preparation; its methods run in the order in which they stand, or only the last one."""

    def __init__(self, recipe: Recipe, findings: Findings, workers: int | None) -> None:
        self._recipe = recipe
        self._data: DataConfig = recipe.data
        self._workers = workers
        self._findings = findings
        self._described: list[dict[str, Any]] = []
        self._valid: list[Pair] = []
        self._tests: dict[str, list[Pair]] = {}
        self._text_fingerprint = ""
        self._sample: dict[str, Any] | None = None
        """What subwords were learned from; None where they were given."""

    def read_text(
        self, folder: Path, train: list[Corpus], valid: list[Corpus], tests: dict[str, Corpus]
    ) -> TrainingText:
        """The cleaned training text, read now or by an earlier preparation; all sets are read."""
        self._read_sets(valid, tests)
        self._text_fingerprint = _text_fingerprint(self._recipe, [*train, *valid, *tests.values()])
        facts = finished_stage(
            folder, self._text_fingerprint, lambda temporary: self._write_text_stage(temporary, train)
        )
        self._findings.go_on_from(facts["findings"])
        self._describe_training_corpora(train, facts["corpora"])
        if facts["held_out"] is not None:
            self._valid = [(source, target) for source, target in facts["held_out"]]
        return TrainingText.load(folder)

    def _write_text_stage(self, folder: Path, train: list[Corpus]) -> dict[str, Any]:
        """Reads, examines and cleans the text, and holds validation pairs out where that is asked."""
        text, corpora = self._read_training_text(train, folder, check_only=False)
        held_out = None
        if isinstance(self._data.valid, int):
            steps = without_moses(self._data.normalize)
            held_out, copies = hold_out(text, self._data.valid, steps, _tagged(self._data))
            self._findings.dropped[HELD_OUT_COPY] += copies
        if not len(text):
            raise DataError(f"no training pair is left after cleaning ({self._dropped_summary()}); look at the corpora")
        text.save()
        return {"findings": self._findings.state(), "corpora": corpora, "held_out": held_out}

    def learn_subwords(self, folder: Path, text: TrainingText) -> Tokenizer:
        """The subwords of the text, learned now or by an earlier preparation."""

        def make(temporary: Path) -> dict[str, Any]:
            tokenizer, sample = learn_subwords(text, self._data)
            tokenizer.save(temporary / "tokenizer")
            return {"sample": sample}

        settings = self._recipe.model_dump(mode="json", include={"data"})["data"]
        decisive = [settings[key] for key in _TEXT_LEAVES_ASIDE]
        facts = finished_stage(
            folder, fingerprint_of("subwords", self._text_fingerprint, decisive, self._data.source_prefixes), make
        )
        self._sample = facts["sample"]
        return Tokenizer.load(folder / "tokenizer")

    def write(self, folder: Path, text: TrainingText, tokenizer: Tokenizer) -> dict[str, Any]:
        """Fills RUN/data and returns what the manifest says of it."""
        tokenizer.save(folder / "tokenizer")
        statistics, counts, subwords = {}, dict[str, int](), dict[str, Any]()
        counts["train"], statistics["train"] = self._write_shards(folder, "train", tokenizer, text.blocks(), len(text))
        if not counts["train"]:
            raise DataError(f"no training pair is left after cleaning ({self._dropped_summary()}); look at max_tokens")
        if self._valid:
            _write_text(self._data, folder, "valid", self._valid)
            trained = [self._as_trained(pair) for pair in self._valid]
            sides = ("".join(f"{pair[side]}\n" for pair in trained).encode() for side in range(2))
            blocks = iter([TextBlock(0, 1, bytes([SPOOLED]) * len(trained), *sides)])
            counts["valid"], statistics["valid"] = self._write_shards(
                folder, "valid", tokenizer, blocks, len(self._valid)
            )
        if self._data.valid and not counts.get("valid"):
            raise DataError(_NO_VALIDATION)
        for name, pairs in self._tests.items():
            _write_text(self._data, folder / "test", name, pairs)
            counts[f"test/{name}"] = len(pairs)
        subwords = {name: part.as_json() for name, part in statistics.items() if counts[name]}
        self._findings.note_examples(text.pairs())  # of rules about tokens
        report = make_report(
            self._findings, text, self._described, counts["train"], subwords, lines_that_come_back(text, tokenizer)
        )
        self._write_report(folder, report)
        return {
            "corpora": self._described,
            "cleaning": self._findings.left_out(),
            "rules": {rule: found["count"] for rule, found in report["rules"].items()},
            "pairs": counts,
            "train_tokens": {side: part["tokens"] for side, part in subwords["train"].items()},
            "training_lengths": statistics["train"].training_lengths().model_dump(),
            "subword_sample": self._sample,
            "tokenizer_sha256": tokenizer.fingerprint(),
            "vocab_sizes": tokenizer.settings["vocab_sizes"],
        }

    def check(self, train: list[Corpus], valid: list[Corpus], tests: dict[str, Corpus], folder: Path) -> dict[str, Any]:
        """Only reads and examines the text; leaves the report in the folder and returns it."""
        self._read_sets(valid, tests)
        text, corpora = self._read_training_text(train, folder, check_only=True)
        self._describe_training_corpora(train, corpora)
        text.remove()
        report = make_report(self._findings, text, self._described, None, None, None)
        self._write_report(folder, report)
        return report

    def _dropped_summary(self) -> str:
        dropped = self._findings.dropped
        return ", ".join(f"{rule}: {count}" for rule, count in dropped.items()) or "the corpora are empty"

    def _write_report(self, folder: Path, report: dict[str, Any]) -> None:
        write_json(folder / "report.json", report)
        with write_atomically(folder / "report.html") as file:
            file.write(report_page(report, self._recipe.name))

    def _read_sets(self, valid: list[Corpus], tests: dict[str, Corpus]) -> None:
        """Reads the validation pairs, and the pairs of each test set: all as they are."""
        self._valid = [pair for corpus in valid for pair in self._read_set(corpus, "valid")]
        if valid and not any(source.strip() and target.strip() for source, target in self._valid):
            raise DataError(_NO_VALIDATION)
        self._tests = {name: self._read_set(corpus, "test") for name, corpus in tests.items()}
        for name, corpus in tests.items():
            if not self._tests[name]:
                raise DataError(f"{corpus.source.name}: the test set is empty")

    def _read_set(self, corpus: Corpus, role: str) -> list[Pair]:
        source, target = open_sides(corpus, "strict")
        sources, targets = list(source), list(target)
        if len(sources) != len(targets):
            raise DataError(explain_line_counts(corpus, len(sources), len(targets))[1])
        self._described.append(_description(corpus, role, _counted(source, target)))
        pairs = list(zip(sources, targets, strict=True))
        num_equal = sum(one == other for one, other in pairs if one.strip())
        self._findings.check_sides([source.name, target.name], num_equal, len(pairs))
        return pairs

    def _as_trained(self, pair: Pair) -> Pair:
        """Return a pair of a validation or test set as training text would have it."""
        task = task_of(self._data)
        return task.model_source(pair[0]), task.model_target(pair[1], "a target of a validation or test set")

    def _read_training_text(
        self, train: list[Corpus], folder: Path, *, check_only: bool
    ) -> tuple[TrainingText, list[dict[str, Any]]]:
        """The training text, spooled in the folder, and what was counted in each corpus."""
        held_apart = (
            frozenset(key_of(*self._as_trained(pair)) for pair in self._valid),
            frozenset(key_of(*self._as_trained(pair)) for pairs in self._tests.values() for pair in pairs),
        )
        counted: list[dict[str, Any]] = []
        reader = TrainingTextReader(
            self._recipe, folder, self._findings, held_apart, check_only=check_only, workers=self._workers
        )
        text = reader.read(train, lambda corpus, *sides: counted.append(_counted(*sides)))
        for rule in ("overlap_valid", "overlap_test"):
            if self._findings.count(rule) and self._findings.actions[rule] == "keep":
                log.warning(
                    '%d training pairs are %s, which inflates its scores; [cleaning] %s = "drop" removes them',
                    self._findings.count(rule),
                    MEANINGS[rule],
                    rule,
                )
        return text, counted

    def _describe_training_corpora(self, train: list[Corpus], counted: list[dict[str, Any]]) -> None:
        self._described += [
            _description(corpus, "train", counts) for corpus, counts in zip(train, counted, strict=True)
        ]
        self._described.sort(key=lambda corpus: ("train", "valid", "test").index(corpus["role"]))

    def _write_shards(
        self, folder: Path, name: str, tokenizer: Tokenizer, blocks: Iterator[TextBlock], total: int
    ) -> tuple[int, ShardStatistics]:
        """Writes a folder of shards; of validation sets only pairs with a side without tokens are left out."""
        statistics = ShardStatistics(tokenizer)
        sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
        is_train = name == "train"
        mixture = [
            (1.0, "") if isinstance(entry, str) else (entry.weight, entry.source_prefix) for entry in self._data.train
        ]
        weights, prefixes = zip(*(mixture if is_train else [(1.0, "")]), strict=True)
        encoder = (folder / "tokenizer", self._recipe.cleaning if is_train else None, prefixes)
        with (
            ShardWriter(folder / name, sizes, weights) as writer,
            progress(f"encoding {name}", total) as advance,
        ):
            done = 0
            for block in in_order(BlockEncoder, encoder, blocks, self._workers):
                for rule, number in block.broken:
                    self._findings.add(rule, 1, (number,))
                self._findings.dropped.update(block.dropped)
                writer.add_rows(block.ids, block.lengths, block.lines, block.corpus)
                statistics.add(block)
                done += block.num_read
                advance(done)
        return writer.num_pairs, statistics


def _write_text(data: DataConfig, folder: Path, name: str, pairs: list[Pair]) -> None:
    """Writes what is translated and what that is compared with: the text as it came, pieces joined to words."""
    write_lines(folder / f"{name}.source.txt", [source for source, _ in pairs])
    references = [target for _, target in pairs]
    if data.subwords == "none":
        references = [join_segments(line, data.segment_mark) for line in references]
    write_lines(folder / f"{name}.reference.txt", references)


def _counted(source: LineReader, target: LineReader) -> dict[str, Any]:
    """What readers met in a corpus, for the manifest."""
    return {
        "pairs": min(source.num_lines, target.num_lines),
        "byte_order_mark_removed": {"source": source.has_byte_order_mark, "target": target.has_byte_order_mark},
        "carriage_returns_removed": {"source": source.carriage_returns, "target": target.carriage_returns},
    }


def _description(corpus: Corpus, role: str, counts: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of a corpus, once it has been read."""
    removed = sum(counts["carriage_returns_removed"].values())
    if removed:
        log.info(
            "%s: a carriage return was removed at the end of %s (CRLF text)", corpus.name, counted(removed, "line")
        )
    if role == "train" and not counts["pairs"]:
        log.warning("%s: the corpus is empty", corpus.name)
    return {
        "name": corpus.name,
        "role": role,
        **counts,
        "files": [
            {"path": str(file.path), "url": file.url, "bytes": file.num_bytes, "sha256": file.sha256}
            for file in corpus.files
        ],
        "sha256": corpus.fingerprint,
    }
