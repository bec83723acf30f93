"""`prepare`: turn the corpora of a recipe into token ids on disk, in stages that are each written atomically.

    corpora -> pairs, examined, cleaned and spooled; held-out pairs  RUN/prepare/text      training_text.py, cleaning.py
            -> subwords learned from the other pairs                 RUN/prepare/subwords  subword_learning.py
            -> ids in shards; report.json and report.html            RUN/data              encoding.py, quality_*.py

The corpora are read once. Each of the next two steps reads the spooled text once (learning subwords twice if source and
target have separate vocabularies). A stage that was made from the same text with the same settings is not repeated
(stages.py).
"""

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import tomli_w

from nmtkit.config.corpus_entries import GeneratedCorpus, corpus_name, mixture_label
from nmtkit.config.data_schema import CleaningConfig, DataConfig
from nmtkit.config.recipe import data_changes
from nmtkit.config.schema import Recipe
from nmtkit.console import counted, listed, log, progress, transfers
from nmtkit.corpora.catalogue import catalogue
from nmtkit.corpora.corpus import Corpus, TextSource
from nmtkit.corpora.download import CorpusFile, Downloader
from nmtkit.corpora.entries import files_to_fetch, open_entry
from nmtkit.data.changes import changes_since
from nmtkit.data.cleaning import MEANINGS, RULES, SPOOLED, excerpt
from nmtkit.data.encoding import BlockEncoder, ShardStatistics, num_trained
from nmtkit.data.episodes import Episodes
from nmtkit.data.generated import Generation
from nmtkit.data.processes import in_order
from nmtkit.data.quality_page import data_report_page
from nmtkit.data.quality_report import Findings
from nmtkit.data.set_checks import ODD_SHARE, warn_of_odd_set
from nmtkit.data.shards import ShardWriter, read_manifest
from nmtkit.data.stages import fingerprint_of, finished_stage
from nmtkit.data.subword_learning import learn_subwords
from nmtkit.data.training_text import (
    HeldOut,
    Pair,
    TextBlock,
    TrainingText,
    TrainingTextReader,
    counts_of,
    explain_line_counts,
    open_sides,
)
from nmtkit.distributed.interpreter import collect_as_usual
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import remove_leftovers, scratch_folder, sha256_of_files, write_folder_atomically, write_text
from nmtkit.json_toml import read_json, read_toml, write_json
from nmtkit.lines import write_lines
from nmtkit.run import Run
from nmtkit.tasks.classification import ONE_LABEL
from nmtkit.tasks.known import task_of
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.scripts import BLEU_TOKENIZERS, bleu_tokenizer, known_languages, language_test
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import join_segments, label_of
from nmtkit.versions import versions

FORMAT = 1
TEXT_FORMAT = 4
"""Format of the stage of the cleaned text."""
_SUBWORD_KEYS = (
    "subwords",
    "vocab_size",
    "share_vocab",
    "byte_fallback",
    "subword_sample_pairs",
    "wordpiece_characters",
    "segment_mark",
    "tokenizer",
)
"""Keys of [data] that do not affect the cleaned text."""
_NO_VALIDATION = "data.valid: no validation pair has text on both sides; look at the corpus"


@dataclass(frozen=True)
class Preparation:
    """The result of `prepare`."""

    manifest: dict[str, Any]  # content of RUN/data/manifest.json
    is_new: bool  # False if nothing has changed and nothing was done


@dataclass(frozen=True)
class Check:
    """The result of `prepare --check`."""

    report: dict[str, Any]  # content of report.json
    refused: dict[str, int]  # the rules for which `prepare` would stop, with the number of pairs each concerns
    reasons: list[str]  # messages of other faults for which `prepare` would stop
    folder: Path | None  # folder of the report; None if prepared data with another report exist


class _Corpora(NamedTuple):
    """The corpora for training and validation, the test sets by name, and the generated corpora by index in train."""

    train: list[Corpus]
    valid: list[Corpus]
    tests: dict[str, Corpus]
    generated: dict[int, Generation]

    def unfinished(self) -> list[Generation]:
        """Return the generated corpora that are not finished."""
        return [generation for generation in self.generated.values() if generation.recorded() is None]


def prepare(
    recipe: Recipe,
    run_dir: Path,
    *,
    mirror: Path | None = None,
    workers: int | None = None,
    generate: Callable[[list[Generation]], None] | None = None,
) -> Preparation:
    """Write RUN/data and RUN/recipe.toml, unless they exist and nothing has changed.

    Args:
        mirror: folder laid out as <host>/<path> whose files are used instead of the network.
        workers: processes that examine and encode text; by default the number of cores. Other processes are started
            only for large texts; a script that calls this needs `if __name__ == "__main__":`.
        generate: function that makes unfinished generated corpora, `decoding.generation.generate_corpora`; it is called
            once if the recipe has any.

    Raises:
        NmtkitError: a corpus cannot be read or used, or the run has been trained with other data already.
    """
    collect_as_usual()  # the work that follows is long, even without torch
    task = task_of(recipe.data)  # an unknown task is an error before anything is downloaded
    run = Run(run_dir)
    for folder in (run_dir, run.stages):
        remove_leftovers(folder)
    if not task.has_text:
        episodes = Episodes(recipe)
        return _prepared(recipe, run, episodes.fingerprint, episodes.write)
    is_generated = any(isinstance(entry, GeneratedCorpus) for entry in recipe.data.train)
    has_begun = run.is_prepared() and run.is_trained() and run.recipe_file.is_file()
    if has_begun and (is_generated or recipe.data.tokenizer is not None):
        manifest = read_manifest(run.data)
        # The models of the recipe may be gone, or trained further: as in `train`, they are not needed any more.
        if not changes_since(run.recipe(recipe.name), recipe, manifest):
            if generate is not None and is_generated:
                generate([])  # other processes wait for the call
            run.remove_abandoned_lock()
            return Preparation(manifest, is_new=False)
    tokenizer = None if recipe.data.tokenizer is None else Tokenizer.of_model(recipe.data.tokenizer)
    if tokenizer is not None:
        tokenizer.check_recipe(recipe.data)
        tokenizer = tokenizer.for_recipe(recipe.data)
    corpora = _open_corpora(recipe.data, run, mirror)
    fingerprint, _ = _fingerprints(recipe, corpora, tokenizer)

    def make(folder: Path) -> dict[str, Any]:
        if generate is not None and corpora.generated:
            generate(corpora.unfinished())
        if unfinished := corpora.unfinished():
            raise DataError(f"{unfinished[0].name}: not generated yet; run `nmtkit prepare`")
        preparer = _Preparer(recipe, corpora, workers, may_stop=True)
        text = preparer.read_text(run.text_stage)
        learned = tokenizer or preparer.learn_subwords(run.subwords_stage, text)
        return preparer.write_data(folder, text, preparer.finish_tokenizer(learned, text))

    result = _prepared(recipe, run, fingerprint, make)
    if result.is_new:
        log.info("data report: %s", run.data_page)
    elif generate is not None and corpora.generated:
        generate([])  # other processes wait for the call
    return result


def _prepared(recipe: Recipe, run: Run, fingerprint: str, make: Callable[[Path], dict[str, Any]]) -> Preparation:
    """Write RUN/data unless it exists with this fingerprint; see `prepare`.

    Args:
        make: function that fills a folder, and returns entries of the manifest.
    """
    if run.is_prepared():
        manifest = read_manifest(run.data)
        if manifest["fingerprint"] == fingerprint:
            # Once a training has begun, its recipe is not for `prepare` to change.
            is_settled = run.is_trained() and run.recipe_file.is_file()
            if not is_settled and not run.has_recipe(recipe):
                with run.locked("prepare"):
                    run.store_recipe(recipe)
            if run.recipe_file.is_file():
                run.recipe_before.unlink(missing_ok=True)  # left by a kill
            run.remove_abandoned_lock()
            return Preparation(manifest, is_new=False)
        if run.is_trained():
            changes = changes_since(run.recipe(recipe.name), recipe, manifest) or ["the text of a corpus"]
            raise NmtkitError(
                f"{run.folder} has been trained with other data (changed: {', '.join(changes)}); take another "
                "--run-dir, or undo the change"
            )
        log.info("the recipe or its corpora have changed; preparing %s again", run.data)
    elif run.is_trained() and run.recipe_file.is_file() and (changes := data_changes(run.recipe(recipe.name), recipe)):
        raise NmtkitError(
            f"{run.folder} has been trained with other data, which {run.data} does not hold any more (changed: "
            f"{', '.join(changes)}); take another --run-dir, or undo the change"
        )
    _refuse_foreign(run)
    if run.recipe_file.is_file() and not run.is_prepared() and not run.is_trained():
        values, text = read_toml(run.recipe_file, NmtkitError)
        if "base" in values or tomli_w.dumps(values) != text:  # not as nmtkit writes it
            raise NmtkitError(
                f"{run.recipe_file}: the complete recipe of the run would replace this file; rename it, or take "
                "another --run-dir"
            )
    with run.locked("prepare"):
        begun, codes = time.monotonic(), recipe.data.target_languages
        with _keeping_recipe(run), write_folder_atomically(run.data) as temporary:
            manifest = {
                "format": FORMAT,
                "fingerprint": fingerprint,
                "settings": recipe.model_dump(mode="json", include={"data", "cleaning"}),
                **make(temporary),
                "bleu_tokenizer": bleu_tokenizer(codes[0]),
                **({"bleu_tokenizers": {code: bleu_tokenizer(code) for code in codes}} if len(codes) > 1 else {}),
                "versions": versions(),
                "files": sha256_of_files(temporary),
                "seconds": round(time.monotonic() - begun, 3),
            }
            write_json(temporary / "manifest.json", manifest)
            if run.recipe_file.is_file() and not run.has_recipe(recipe):
                # Else a kill before store_recipe would leave the recipe of the old data beside the new data.
                run.recipe_file.replace(run.recipe_before)
        run.store_recipe(recipe)
        run.recipe_before.unlink(missing_ok=True)
    return Preparation(manifest, is_new=True)


def _refuse_foreign(run: Run) -> None:
    """Raise NmtkitError if RUN/data, which will be replaced, is a folder of the user."""
    names = {path.name for path in run.data.iterdir()} if run.data.is_dir() else set()
    if names and not names & {"manifest.json", "tokenizer", "report.json"}:
        raise NmtkitError(
            f"{run.data}: holds files that are not nmtkit's, such as {min(names)}; take another --run-dir"
        )


@contextmanager
def _keeping_recipe(run: Run) -> Iterator[None]:
    """Put the recipe of the old data back if they are not replaced after all."""
    before = run.manifest.read_bytes() if run.is_prepared() else None
    try:
        yield
    except BaseException:
        if run.recipe_before.is_file() and run.is_prepared() and run.manifest.read_bytes() == before:
            run.recipe_before.replace(run.recipe_file)
        raise


def check(recipe: Recipe, run_dir: Path, *, mirror: Path | None = None, workers: int | None = None) -> Check:
    """Read the corpora of a recipe once and report their faults, regardless of the actions of the rules.

    The report is written to RUN/data, unless there are prepared data with another report. Raises NmtkitError for a
    corpus that cannot be read.
    """
    run, data = Run(run_dir), recipe.data
    _require_text(data, "--check")
    remove_leftovers(run_dir)
    corpora = _open_corpora(data, run, mirror)
    unfinished = corpora.unfinished()
    for number, generation in corpora.generated.items():
        if generation in unfinished:
            log.warning("%s: not generated yet, so the check leaves it out", generation.name)
            nothing = TextSource(generation.name, partial(iter, ()))
            corpora.train[number] = replace(corpora.train[number], source=nothing, target=nothing)
    _refuse_foreign(run)
    with run.locked("prepare"):
        is_prepared = run.is_prepared()
        with scratch_folder(run.check_folder) if is_prepared else write_folder_atomically(run.data) as temporary:
            preparer = _Preparer(recipe, corpora, workers, may_stop=False)
            report = preparer.check_text(temporary)
    findings = preparer.findings
    num_dropped = sum(findings.dropped.values())
    if not unfinished and findings.num_pairs == num_dropped:
        findings.stop(preparer.nothing_left())
    pairs = [corpus["pairs"] for corpus in report["corpora"] if corpus["role"] == "train"]
    available = sum(count for number, count in enumerate(pairs) if number not in data.ineligible)
    if not data.ineligible:  # else the pairs may be in the other corpora; all corpora together need a pair to train on
        available -= max(num_dropped, findings.counts["duplicate_pair"]) + 1
    if data.held_out and sum(data.held_out.values()) > available:
        findings.stop(_too_few(data, available))
    return Check(report, findings.refused(), findings.reasons, None if is_prepared else run.data)


def _too_few(data: DataConfig, available: int) -> str:
    """Return the message that there are too few pairs to hold out."""
    stated = " and ".join(f"data.{key} = {number}" for key, number in data.held_out.items())
    number = counted(max(0, available), f"different {task_of(data).example}")
    return (
        f"{stated}: at most {number} can be held out from the training corpora"
        f"{' (tagged and generated ones left out)' if data.ineligible else ''}; take fewer"
    )


def download(recipe: Recipe, *, mirror: Path | None = None) -> list[CorpusFile]:
    """Fetch and verify the files of a recipe's corpora, and nothing else; raise NmtkitError if that fails."""
    _require_text(recipe.data, "--download-only")
    with transfers() as report:
        return Downloader(mirror, progress=report).fetch_all(files_to_fetch(recipe.data))


def _require_text(data: DataConfig, option: str) -> None:
    if not task_of(data).has_text:
        raise DataError(f'task = "{data.task}" has no text; `nmtkit prepare` checks the episodes without {option}')


def stored_bleu_tokenizer(run_dir: Path, data: DataConfig) -> str:
    """Return the BLEU tokenizer that was chosen when a run was prepared, so that all its scores are comparable.

    Args:
        data: settings of one direction, where there are several (`DataConfig.in_direction`).
    """
    path = Run(run_dir).manifest
    stored = read_json(path, {"bleu_tokenizer?": str, "bleu_tokenizers?": {str: str}})
    tokenizer = stored.get("bleu_tokenizers", {}).get(data.target_language, stored.get("bleu_tokenizer"))
    tokenizer = tokenizer or bleu_tokenizer(data.target_language)
    if tokenizer not in BLEU_TOKENIZERS:
        raise DataError(f"{path}: bleu_tokenizer must be one of {', '.join(BLEU_TOKENIZERS)}, not {tokenizer!r}")
    return str(tokenizer)


def _open_corpora(data: DataConfig, run: Run, mirror: Path | None) -> _Corpora:
    """Open the corpora of a recipe; all names are checked before any download."""
    known = known_languages() | {code for entry in catalogue().values() for pair in entry.texts for code in pair}
    for key, codes in (("source_language", data.source_languages), ("target_language", data.target_languages)):
        for code in codes:
            # zh_CN and eng_Latn begin with the code of the language.
            if code.partition("_")[0] not in known:
                near = ", ".join(difflib.get_close_matches(code, sorted(known), n=5, cutoff=0.5))
                log.warning('data.%s = "%s" is not a known language code (near ones: %s)', key, code, near or "none")
    generated = {
        number: Generation(entry, data, run)
        for number, entry in enumerate(data.train)
        if isinstance(entry, GeneratedCorpus)
    }
    with transfers() as report:
        downloader = Downloader(mirror, progress=report)
        downloader.fetch_all(files_to_fetch(data))
        task = task_of(data)
        return _Corpora(
            [
                generated[number].corpus()
                if number in generated
                else task.training_corpus(open_entry(data, entry, downloader))
                for number, entry in enumerate(data.train)
            ],
            [open_entry(data, entry, downloader) for entry in data.corpora("valid")],
            {data.test_name(entry): open_entry(data, entry, downloader) for entry in data.corpora("test")},
            generated,
        )


def _fingerprints(recipe: Recipe, corpora: _Corpora, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return fingerprints of all that decides the content of RUN/data, and of all that decides the cleaned text."""
    data = recipe.data
    settings = recipe.model_dump(mode="json", include={"data", "cleaning"})
    # A rule with its default action is left out, so that data prepared before the rule existed stay valid.
    defaults = CleaningConfig().model_dump(mode="json")
    settings["cleaning"] = {
        key: value for key, value in settings["cleaning"].items() if key not in RULES or value != defaults[key]
    }
    # The same for keys of [data], while they have no effect.
    has_no_effect = {
        "wordpiece_characters": data.subwords != "wordpiece",
        "task": data.task is None,
        "sampling_temperature": data.sampling_temperature == 1,
        "sequence_length": not data.has_labels,
        "label_type": data.label_type == "class",
        "context": not data.context,
        "context_sides": not data.context,
        "max_source_tokens": data.max_source_tokens is None,
    }
    # CORPUS_PATHS are left out, as the fingerprints of the corpora cover the files there.
    unused = [key for key, holds in has_no_effect.items() if holds]
    for key in (*unused, *DataConfig.EPISODE_KEYS, *DataConfig.CORPUS_PATHS):
        settings["data"].pop(key)
    if data.has_directions:
        settings["data"]["directions"] = [data.direction(entry) for entry in data.train]
    for_text = {"data": dict(settings["data"]), "cleaning": settings["cleaning"]}
    if not data.has_directions and data.directions[0] != (data.source_language, data.target_language):
        for_text["data"]["direction"] = data.directions[0]
    for key in ("train", "valid", "test"):
        if key not in data.held_out:
            settings["data"][key] = [corpus_name(entry) + mixture_label(entry) for entry in data.corpora(key)]
            for_text["data"][key] = [corpus_name(entry) for entry in data.corpora(key)]
    settings["data"].pop("tokenizer")  # a path; its content counts
    if tokenizer is not None:
        settings["data"]["tokenizer"] = tokenizer.fingerprint()
    for key in (*_SUBWORD_KEYS, "sampling_temperature"):
        for_text["data"].pop(key, None)
    if data.held_out and data.ineligible:
        for_text["data"]["tagged"] = data.ineligible
    sums = [[corpus.name, corpus.fingerprint] for corpus in (*corpora.train, *corpora.valid, *corpora.tests.values())]
    # Versions count for the stage only: finished data stay valid when a package is updated.
    return fingerprint_of(FORMAT, settings, sums), fingerprint_of("text", TEXT_FORMAT, for_text, sums, versions())


class _Preparer:
    """One preparation or check.

    Attributes:
        findings: the faults of the text read so far.
    """

    def __init__(self, recipe: Recipe, corpora: _Corpora, workers: int | None, *, may_stop: bool) -> None:
        """Read the pairs of the validation and test sets, without cleaning them."""
        self._recipe, self._data, self._task, self._workers = recipe, recipe.data, task_of(recipe.data), workers
        if recipe.cleaning.wrong_language != "off":
            for code in (*recipe.data.source_languages, *recipe.data.target_languages):
                language_test(code)  # fails here if py3langid is not installed, or does not know a language
        self.findings = Findings(recipe.cleaning, may_stop=may_stop)
        self._train, self._generated = corpora.train, corpora.generated
        self.findings.line_numbers = {number: each.line_numbers for number, each in corpora.generated.items()}
        _, self._text_fingerprint = _fingerprints(recipe, corpora, None)
        sums = [(generation.recorded() or {}).get("sha256") for generation in corpora.generated.values()]
        if sums:  # another device may have translated the same text differently
            self._text_fingerprint = fingerprint_of(self._text_fingerprint, sums)
        self._sample: dict[str, int] | None = None
        """Sizes of the sample from which subwords were learned; None if a tokenizer was given."""
        self._described: list[dict[str, Any]] = []
        self._valid = list[Pair]()
        self._valid_places = list[str]()  # for messages
        self._valid_directions = list[tuple[str, str]]()  # of each pair
        entries = recipe.data.corpora("valid")
        for corpus, entry in zip(corpora.valid, entries, strict=True):
            direction = recipe.data.direction(entry)
            pairs = self._read_set(corpus, "valid", recipe.data.in_direction(direction))
            self._valid += pairs
            self._valid_directions += [direction] * len(pairs)
            self._valid_places += [f"{corpus.target.name}, line {number}" for number in range(1, len(pairs) + 1)]
        if corpora.valid and not any(source.strip() and target.strip() for source, target in self._valid):
            raise DataError(_NO_VALIDATION)
        self._tests = {
            name: self._read_set(corpus, "test", recipe.data.of_test(name)) for name, corpus in corpora.tests.items()
        }
        for name, corpus in corpora.tests.items():
            if not self._tests[name]:
                raise DataError(f"{corpus.source.name}: the test set is empty")
            if not self._task.has_source and not any(target for _, target in self._tests[name]):
                raise DataError(f"{corpus.source.name}: the test text has no characters to predict")

    def _read_set(self, corpus: Corpus, role: str, data: DataConfig) -> list[Pair]:
        source, target = open_sides(corpus, "strict")
        sources, targets = list(source), list(target)
        if len(sources) != len(targets):
            raise DataError(explain_line_counts(corpus, self._data, len(sources), len(targets))[1])
        self._describe(corpus, role, counts_of(source, target))
        pairs, task = list(zip(sources, targets, strict=True)), self._task
        for number, pair in enumerate(pairs, start=1):
            task.check_pair(*pair, [source.name, target.name], number)
            if task.has_labels and role == "test" and not all(side.strip() for side in pair):
                side, missing = (source, "text") if pair[1].strip() else (target, "label")
                raise DataError(f"{side.name}, line {number}: no {missing}, so the line cannot be scored; remove it")
        if task.has_labels:
            pairs = [(one, task.model_target(label, target.name)) for one, label in pairs]
        num_equal = sum(pair[0] == pair[1] for pair in pairs if pair[0].strip())
        self.findings.check_sides([source.name, target.name], num_equal, len(pairs))
        if data.task_name == "translation":
            warn_of_odd_set(target.name, pairs, data, self._recipe.cleaning)
            if role == "test" and (shared := len(set(pairs).intersection(self._valid))) > ODD_SHARE * len(pairs):
                log.warning(
                    "%s: %s also in the validation set, which chooses the checkpoint", target.name,
                    "1 pair is" if shared == 1 else f"{shared:,} pairs are",
                )  # fmt: skip
        return pairs

    def _describe(self, corpus: Corpus, role: str, counts: dict[str, Any], *, may_be_empty: bool = False) -> None:
        """Note the entry of a corpus that has been read, for the manifest."""
        names, removed = (corpus.source.name, corpus.target.name), counts["carriage_returns_removed"].values()
        # By name, as both sides may be columns of one file, about which one message is enough.
        for name, lines in {name: number for name, number in zip(names, removed, strict=True) if number}.items():
            log.info("%s: a carriage return was removed at the end of %s (CRLF text)", name, counted(lines, "line"))
        if role == "train" and not counts["pairs"] and not may_be_empty:
            log.warning("%s: the corpus is empty", corpus.name)
        files = [file.for_manifest() for file in corpus.files]
        entry = {"name": corpus.name, "role": role, **counts, "files": files, "sha256": corpus.fingerprint}
        self._described.append(entry)
        # Validation and test sets are read before the training corpora.
        self._described.sort(key=lambda corpus: ("train", "valid", "test").index(corpus["role"]))

    def read_text(self, folder: Path) -> TrainingText:
        """Return the cleaned training text, read now or by an earlier preparation."""

        def make(temporary: Path) -> tuple[dict[str, Any], dict[str, str]]:
            text, corpora, held_out = self._read_training_text(temporary, check_only=False)
            if not len(text):
                num_held_out = sum(map(len, held_out.values()))
                # - 1: a pair has to be left to train on.
                raise DataError(_too_few(self._data, num_held_out - 1) if num_held_out else self.nothing_left())
            facts = {"findings": self.findings.state(), "corpora": corpora, "held_out": held_out}
            return facts, text.save()

        facts = finished_stage(folder, self._text_fingerprint, make)
        self.findings.restore(facts["findings"])
        for number, (corpus, counts) in enumerate(zip(self._train, facts["corpora"], strict=True)):
            generation = self._generated.get(number)
            more = {} if generation is None else {"generated": generation.facts()}
            self._describe(corpus, "train", {**counts, **more})
        directions, names = self._data.held_out_directions, list(self._data.tests)
        for key, rows in facts["held_out"].items():
            pairs = [(source.replace(FIELD_MARK, "\t"), target) for source, target, *_ in rows]
            groups = [int(row[2]) for row in rows]
            if key == "valid":
                self._valid, self._valid_places = pairs, [row[-1] for row in rows]
                self._valid_directions = [directions[group] for group in groups]
                continue
            for group, name in enumerate(names):
                self._tests[name] = [pair for pair, own in zip(pairs, groups, strict=True) if own == group]
        return TrainingText.load(folder)

    def check_text(self, folder: Path) -> dict[str, Any]:
        """Examine the text without preparing it, and return the report, which is written to the folder."""
        with TemporaryDirectory(dir=folder) as spool:
            text, corpora, _ = self._read_training_text(Path(spool), check_only=True)
        for number, (corpus, counts) in enumerate(zip(self._train, corpora, strict=True)):
            self._describe(corpus, "train", counts, may_be_empty=number in self._generated)
        if self._data.head in ("classes", "number"):
            sides = [open_sides(corpus, "surrogateescape") for corpus in self._train]
            pairs = chain.from_iterable(zip(*of_corpus, strict=False) for of_corpus in sides)
            labels = sorted({label_of(label) for source, label in pairs if source.strip()} - {""})
            if self._data.head == "classes":
                self._check_valid_labels(labels)
            if len(labels) == 1:
                self.findings.stop(ONE_LABEL.format(labels[0]))
        self._warn_of_trained_tests()
        return self._write_report(folder, self.findings.report(self._described, text.words))

    def _read_training_text(
        self, folder: Path, *, check_only: bool
    ) -> tuple[TrainingText, list[dict[str, Any]], dict[str, list[HeldOut]]]:
        """See `TrainingTextReader.read`."""
        sets = [self._valid, [pair for pairs in self._tests.values() for pair in pairs]]
        if self._data.has_directions:  # a pair may also be in training in the opposite direction
            sets = [[*pairs, *((target, source) for source, target in pairs)] for pairs in sets]
        sets = [[self._as_trained(pair) for pair in pairs] for pairs in sets]
        reader = TrainingTextReader(
            self._recipe, folder, self.findings, sets, check_only=check_only, workers=self._workers
        )
        result = reader.read(self._train)
        for rule in ("overlap_valid", "overlap_test"):
            if self.findings.counts[rule] and self.findings.actions[rule] == "keep":
                log.warning(
                    '%d training pairs are %s, which inflates its scores; [cleaning] %s = "drop" removes them',
                    self.findings.counts[rule], MEANINGS[rule], rule,
                )  # fmt: skip
        return result

    def _as_trained(self, pair: Pair) -> Pair:
        """Return a pair of a validation or test set in the form of training text."""
        target = self._task.model_target(pair[1], "a target of a validation or test set")
        return self._task.model_source(pair[0]), target

    def learn_subwords(self, folder: Path, text: TrainingText) -> Tokenizer:
        """Return the tokenizer of the text, learned now or by an earlier preparation."""

        def make(temporary: Path) -> tuple[dict[str, Any], dict[str, str]]:
            tokenizer, sample = learn_subwords(text, self._data)
            tokenizer.save(temporary / "tokenizer")
            return {"sample": sample}, {}

        settings = self._data.model_dump(mode="json")
        decisive = [settings[key] for key in _SUBWORD_KEYS]
        fingerprint = fingerprint_of("subwords", self._text_fingerprint, decisive, self._data.source_prefixes)
        self._sample = finished_stage(folder, fingerprint, make)["sample"]
        return Tokenizer.load(folder / "tokenizer")

    def finish_tokenizer(self, learned: Tokenizer, text: TrainingText) -> Tokenizer:
        """Return the tokenizer of the task; raise DataError for a validation label that is not in the training text."""

        def of_training() -> Iterator[Pair]:  # not read for tasks that do not need it
            for block in text.blocks():
                yield from ((source, target) for _, source, target in block.pairs())

        valid = [(source, target) for source, target in self._valid if source.strip() and target]
        is_open = self._data.head in ("number", "choice")  # validation labels need not be those of the training
        pairs = chain(of_training(), valid if is_open else ())
        tokenizer = self._task.tokenizer(learned, self._data, pairs)
        self._check_valid_labels(tokenizer.labels)
        labels = set(tokenizer.labels)
        for name, pairs_of_test in self._tests.items():
            unseen = [number for number, (_, label) in enumerate(pairs_of_test, start=1) if label not in labels]
            if labels and not is_open and unseen:
                log.warning(
                    "test set %s: labels that no training example has, such as %r, in %s; no model can predict them",
                    name, excerpt(pairs_of_test[unseen[0] - 1][1]), listed(unseen),
                )  # fmt: skip
        return tokenizer

    def _check_valid_labels(self, labels: Sequence[str]) -> None:
        """Stop at the first validation label that is not in ``labels``; do nothing if ``labels`` is empty."""
        known = set(labels)
        for place, (source, target) in zip(self._valid_places, self._valid, strict=True):
            if known and source.strip() and target and target not in known:
                label, remedy = excerpt(target), "correct it (see that the columns are right), or leave the line out"
                if "valid" in self._data.held_out:
                    remedy = f"data.valid = {self._data.valid} held it out; add examples of this label, or {remedy}"
                self.findings.stop(
                    f"{place}: the label {label!r} does not occur in the training data, whose labels are "
                    f"{excerpt(', '.join(labels))}; {remedy}"
                )
                return

    def write_data(self, folder: Path, text: TrainingText, tokenizer: Tokenizer) -> dict[str, Any]:
        """Fill RUN/data, and return the entries of the manifest that describe it."""
        tokenizer.save(folder / "tokenizer")
        statistics, counts = {}, dict[str, int]()
        context = self._data.context
        if context and not self.findings.counts["both_blank"]:
            log.warning("data.context: no blank line in the training text, so each corpus is read as one document")
        blocks = text.blocks(context)
        counts["train"], statistics["train"] = self._write_shards(folder, "train", tokenizer, blocks, len(text))
        if not counts["train"]:
            raise DataError(self.nothing_left("max_tokens and max_ratio"))
        if self._valid:
            _write_text(self._data, folder / "valid", self._valid)
            counts["valid"], statistics["valid"] = self._write_shards(
                folder, "valid", tokenizer, self._valid_blocks(), len(self._valid)
            )
        if self._data.valid and not counts.get("valid"):
            raise DataError(_NO_VALIDATION)
        self._warn_of_trained_tests()
        for name, pairs in self._tests.items():
            _write_text(self._data, folder / "test" / name, pairs)
            counts[f"test/{name}"] = len(pairs)
        subwords = {name: part.as_json() for name, part in statistics.items() if counts[name]}
        round_trip = statistics["train"].round_trip()
        report = self.findings.report(self._described, text.words, counts["train"], subwords, round_trip)
        self._write_report(folder, report)
        lengths = statistics["train"].training_lengths(self._data.max_source_tokens)
        return {
            "corpora": self._described,
            "cleaning": self.findings.left_out(),
            "rules": {rule: findings["count"] for rule, findings in report["rules"].items()},
            "pairs": counts,
            **({"valid_directions": self._valid_runs} if self._data.has_directions else {}),
            "train_tokens": {side: part["tokens"] for side, part in subwords["train"].items()},
            "training_lengths": lengths.model_dump(),
            "subword_sample": self._sample,
            "tokenizer_sha256": tokenizer.fingerprint(),
            **({"base_tokenizer_sha256": tokenizer.base_fingerprint} if "base_sha256" in tokenizer.settings else {}),
            "vocab_sizes": tokenizer.settings["vocab_sizes"],
        }

    def _warn_of_trained_tests(self) -> None:
        """Warn of test pairs in the training data of the run whose model or subwords this one takes."""
        data, path = self._data, self._recipe.training.init or self._data.tokenizer
        if path is None or not (run := Run(path)).is_prepared() or not task_of(data).has_source or data.has_labels:
            return
        for name, pairs in self._tests.items():
            try:
                count = num_trained([*map(self._as_trained, pairs)], data.tests.get(name, data.directions[0]), run)
            except NmtkitError:  # it has other languages, or is damaged, which training would find
                continue
            if count:
                log.warning(
                    "%s of the test set %s: also in the training data of %s; scores of a model that starts from it are "
                    "inflated", counted(count, "pair"), name, path,
                )  # fmt: skip

    @property
    def _valid_runs(self) -> list[tuple[tuple[str, str], int]]:
        """The direction and the number of consecutive validation pairs of one direction, or of one running text."""
        if not self._task.has_source:
            texts = [corpus["pairs"] for corpus in self._described if corpus["role"] == "valid"]
            return [(self._data.directions[0], count) for count in texts]
        return [(direction, len(list(pairs))) for direction, pairs in groupby(self._valid_directions)]

    def _valid_blocks(self) -> Iterator[TextBlock]:
        """Yield the validation pairs, a block for each of `_valid_runs`."""
        begin = 0
        for number, (_, count) in enumerate(self._valid_runs):
            pairs = [self._as_trained(pair) for pair in self._valid[begin : begin + count]]
            source, target = ("".join(f"{pair[side]}\n" for pair in pairs).encode() for side in range(2))
            yield TextBlock(number, begin + 1, begin, bytes([SPOOLED]) * count, source, target)
            begin += count

    def _write_shards(
        self, folder: Path, name: str, tokenizer: Tokenizer, blocks: Iterator[TextBlock], total: int
    ) -> tuple[int, ShardStatistics]:
        """Write a folder of shards; validation pairs are left out only if a side has no tokens."""
        statistics = ShardStatistics(tokenizer)
        sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
        cleaning, num_sampled, temperature = None, 0, 1.0
        is_running_text = not self._task.has_source
        directions = [direction for direction, _ in self._valid_runs]
        weights, prefixes = [1.0] * len(directions), [""] * len(directions)
        if name == "train":
            cleaning, num_sampled, temperature = self._recipe.cleaning, total, self._data.sampling_temperature
            directions = [self._data.direction(entry) for entry in self._data.train]
            weights = [1.0 if isinstance(entry, str) else entry.weight for entry in self._data.train]
            prefixes = ["" if isinstance(entry, str) else entry.source_prefix for entry in self._data.train]
        longest = self._data.max_source_tokens
        limits = longest, self._recipe.cleaning.max_tokens
        encoder = (folder / "tokenizer", cleaning, prefixes, num_sampled, directions, *limits)
        with (
            ShardWriter(folder / name, sizes, weights, temperature, is_running_text=is_running_text) as writer,
            progress(f"encoding {name}", total) as advance,
        ):
            done = 0
            for block in in_order(BlockEncoder, encoder, blocks, self._workers):
                self.findings.add_block(block.findings)
                writer.add_rows(block.ids, block.lengths, block.lines, block.corpus)
                statistics.add(block)
                done += block.num_read
                advance(done)
        if temperature != 1:
            rates = zip(self._train, writer.weights, strict=True)
            noun = self._task.example
            seen = ", ".join(f"{corpus.name} {weight:.3g} times" for corpus, weight in rates)
            log.info("sampling_temperature = %g: an epoch contains each %s of %s", temperature, noun, seen)
        if cut := statistics.counts["cut_sources"]:
            sources = f"{cut:,} of {counted(writer.num_pairs, 'source')}"
            limit = (
                "data.sequence_length"
                if self._data.has_labels
                else f"the first {longest} tokens (data.max_source_tokens)"
            )
            log.info("%s: %s cut to %s", name, sources, limit)
        return writer.num_pairs, statistics

    def nothing_left(self, cause: str = "the corpora") -> str:
        """Return the message that cleaning leaves no pair."""
        dropped = ", ".join(f"{rule}: {count}" for rule, count in self.findings.dropped.items())
        noun, dropped = self._task.example, dropped or "the corpora are empty"
        return f"no training {noun} is left after cleaning ({dropped}); look at {cause}"

    def _write_report(self, folder: Path, report: dict[str, Any]) -> dict[str, Any]:
        if not self._task.has_source:
            del report["words"]["source"]
            report["examples"] = {rule: example[1:] for rule, example in report["examples"].items()}
        write_json(folder / "report.json", report)
        write_text(folder / "report.html", data_report_page(report, self._recipe.name, self._task.example))
        return report


def _write_text(data: DataConfig, path: Path, pairs: list[Pair]) -> None:
    """Write the sources, and the references in the form of translations: with pieces joined to words."""
    write_lines(path.with_name(f"{path.name}.source.txt"), [source for source, _ in pairs])
    references = [target for _, target in pairs]
    if data.subwords == "none":
        references = [join_segments(line, data.segment_mark) for line in references]
    write_lines(path.with_name(f"{path.name}.reference.txt"), references)
