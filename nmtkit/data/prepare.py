"""`prepare`: turn the corpora of a recipe into token ids on disk, in stages that are each written atomically.

    corpora -> pairs, examined, cleaned and spooled; held-out pairs  RUN/prepare/text      training_text.py, cleaning.py
            -> subwords learned from the other pairs                 RUN/prepare/subwords  subword_learning.py
            -> ids in shards; report.json and report.html            RUN/data              encoding.py, quality_*.py

The corpora are read once. Each of the next two steps reads the spooled text once (learning subwords twice if source and
target have separate vocabularies). A stage that was made from the same text with the same settings is not repeated
(stages.py). The steps are those of `Preparer` (preparer.py).
"""

import difflib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from nmtkit.config.corpus_entries import MANY_LANGUAGES, GeneratedCorpus
from nmtkit.config.data_schema import LANGUAGE_MODEL, DataConfig
from nmtkit.config.recipe import data_changes
from nmtkit.config.schema import Recipe
from nmtkit.console import log, transfers
from nmtkit.corpora.catalogue import catalogue
from nmtkit.corpora.corpus import TextSource
from nmtkit.corpora.download import CorpusFile, Downloader
from nmtkit.corpora.entries import files_to_fetch, open_entry
from nmtkit.data.changes import changed_keys, changes_since
from nmtkit.data.episodes import Episodes
from nmtkit.data.generated import Generation
from nmtkit.data.preparer import FORMAT, Corpora, Preparer, fingerprints, too_few
from nmtkit.data.shards import read_manifest
from nmtkit.distributed.interpreter import collect_as_usual
from nmtkit.errors import DataError, ModelError, NmtkitError, RecipeError
from nmtkit.files import is_of_file_manager, remove_leftovers, scratch_folder, sha256_of_files, write_folder_atomically
from nmtkit.json_toml import read_json, read_toml, write_json
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.text.scripts import BLEU_TOKENIZERS, bleu_tokenizer, known_languages
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BYTE_PIECE, SIDES
from nmtkit.versions import versions

_OWN_NAMES = {
    "manifest.json", "report.json", "report.html", "tokenizer", "train", "valid", "test", "valid.source.txt",
    "valid.reference.txt",
}  # fmt: skip
"""Files and folders of RUN/data."""
_LANGUAGES = {"cn": "zh", "cz": "cs", "dk": "da", "gr": "el", "il": "he", "jp": "ja", "ua": "uk", "vn": "vi"}
"""Languages by codes of countries that are taken for theirs and are no language codes."""


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
        if not changes_since(recipe, manifest):
            if generate is not None and is_generated:
                generate([])  # other processes wait for the call
            run.remove_abandoned_lock()
            return Preparation(manifest, is_new=False)
    tokenizer = None if recipe.data.tokenizer is None else Tokenizer.of_model(recipe.data.tokenizer)
    if tokenizer is not None:
        check_given_tokenizer(tokenizer, recipe.data)
        tokenizer = tokenizer.for_recipe(recipe.data)
    corpora = _open_corpora(recipe.data, run, mirror)
    fingerprint, _ = fingerprints(recipe, corpora, tokenizer)

    def make(folder: Path) -> dict[str, Any]:
        if generate is not None and corpora.generated:
            generate(corpora.unfinished())
        if unfinished := corpora.unfinished():
            raise DataError(f"{unfinished[0].name}: not generated yet; run `nmtkit prepare`")
        preparer = Preparer(recipe, corpora, workers, may_stop=True)
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
    settings = recipe.model_dump(mode="json", include={"data", "cleaning"})
    if run.is_prepared():
        manifest = read_manifest(run.data)
        if manifest["fingerprint"] == fingerprint:
            # Once a training has begun, its recipe is not for `prepare` to change.
            is_settled = run.is_trained() and run.recipe_file.is_file()
            has_changed = not is_settled and changed_keys(recipe, manifest) != []  # keys without effect on the data
            if has_changed or not (is_settled or run.has_recipe(recipe)):
                with run.locked("prepare"):
                    if has_changed:
                        manifest = {**manifest, "settings": settings}
                        write_json(run.manifest, manifest)
                    run.store_recipe(recipe)
            run.remove_abandoned_lock()
            return Preparation(manifest, is_new=False)
        if run.is_trained():
            changes = changes_since(recipe, manifest) or ["the text of a corpus"]
            raise NmtkitError(
                f"{run.folder} has been trained with other data (changed: {', '.join(changes)}); undo "
                "the change, or take another --run-dir (with training.init, it starts from this run)"
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
        with write_folder_atomically(run.data) as temporary:
            manifest = {
                "format": FORMAT,
                "fingerprint": fingerprint,
                "settings": settings,
                **make(temporary),
                "bleu_tokenizer": bleu_tokenizer(codes[0]),
                **({"bleu_tokenizers": {code: bleu_tokenizer(code) for code in codes}} if len(codes) > 1 else {}),
                "versions": versions(),
                "files": sha256_of_files(temporary),
                "seconds": round(time.monotonic() - begun, 3),
            }
            write_json(temporary / "manifest.json", manifest)
        run.store_recipe(recipe)
    return Preparation(manifest, is_new=True)


def _refuse_foreign(run: Run) -> None:
    """Raise NmtkitError if RUN/data, which will be replaced, is the user's own or holds files of the user."""
    if not run.data.is_dir():
        if run.data.exists():
            raise NmtkitError(f"{run.data} is no folder; move it, or take another --run-dir")
        return
    foreign = {path.name for path in run.data.iterdir()}
    if foreign & {"manifest.json", "tokenizer", "report.json"}:
        foreign = {name for name in foreign - _OWN_NAMES if not is_of_file_manager(name)}
    if foreign:
        raise NmtkitError(
            f"{run.data}: holds files that are not nmtkit's, such as {min(foreign)}; move them, or take another "
            "--run-dir"
        )


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
    if not run.is_prepared():  # else nothing is replaced
        _refuse_foreign(run)
    with run.locked("prepare"):
        is_prepared = run.is_prepared()
        with scratch_folder(run.check_folder) if is_prepared else write_folder_atomically(run.data) as temporary:
            preparer = Preparer(recipe, corpora, workers, may_stop=False)
            report = preparer.check_text(temporary)
    findings = preparer.findings
    if data.tokenizer is not None:
        try:
            Tokenizer.of_model(data.tokenizer)
        except ModelError as error:
            findings.stop(str(error))
    num_dropped = sum(findings.dropped.values())
    if not unfinished and findings.num_pairs == num_dropped:
        findings.stop(preparer.nothing_left())
    pairs = [corpus["pairs"] for corpus in report["corpora"] if corpus["role"] == "train"]
    available = sum(count for number, count in enumerate(pairs) if number not in data.ineligible)
    if not data.ineligible:  # else the pairs may be in the other corpora; all corpora together need a pair to train on
        available -= max(num_dropped, findings.counts["duplicate_pair"]) + 1
    if data.held_out and sum(data.held_out.values()) > available:
        findings.stop(too_few(data, available))
    return Check(report, findings.refused(), findings.reasons, None if is_prepared else run.data)


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


def _open_corpora(data: DataConfig, run: Run, mirror: Path | None) -> Corpora:
    """Open the corpora of a recipe; all names are checked before any download."""
    known = known_languages() | {code for entry in catalogue().values() for pair in entry.texts for code in pair}
    for key, codes in (("source_language", data.source_languages), ("target_language", data.target_languages)):
        for code in codes:
            # zh_CN and eng_Latn begin with the code of the language.
            if code.partition("_")[0] not in known:
                near = difflib.get_close_matches(code, sorted(known), n=5, cutoff=0.5)
                near[:0] = [_LANGUAGES[code]] if code in _LANGUAGES else []
                log.warning(
                    'data.%s = "%s" is not a language code that is known here (near ones: %s); if it is right, go on',
                    key, code, ", ".join(near) or "none",
                )  # fmt: skip
    generated = {
        number: Generation(entry, data, run)
        for number, entry in enumerate(data.train)
        if isinstance(entry, GeneratedCorpus)
    }
    with transfers() as report:
        downloader = Downloader(mirror, progress=report)
        downloader.fetch_all(files_to_fetch(data))
        task = task_of(data)
        return Corpora(
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


def check_given_tokenizer(tokenizer: Tokenizer, data: DataConfig) -> None:
    """Raise RecipeError if a recipe contradicts the settings of its `data.tokenizer`."""
    known = {
        "source_language": (data.source_languages, tokenizer.source_languages),
        "target_language": (data.target_languages, tokenizer.target_languages),
    }
    own = {
        **tokenizer.settings,
        "task": tokenizer.task_name,
        "share_vocab": tokenizer.shares_vocabulary,
        "context": tokenizer.context,
        "byte_fallback": any(map(BYTE_PIECE.fullmatch, tokenizer.entries("source"))),
        **{key: ", ".join(codes) for key, (_, codes) in known.items()},
    }
    keys = ["task", "text", "source_language", "target_language", "normalize", "subwords", "share_vocab", "context"]
    if data.has_labels:  # the subwords of any model of the language
        keys = ["text", "normalize", "subwords"]
        if data.source_language not in (own["source_language"], own["target_language"]):
            keys.append("source_language")
    if data.task_name == LANGUAGE_MODEL and tokenizer.task_name == "translation":
        keys = [key for key in keys if key not in ("task", "source_language")]  # see Tokenizer.for_recipe
    if data.context:
        keys.append("context_sides")
    if data.byte_fallback:
        keys.append("byte_fallback")
    if data.subwords == "none":
        keys.append("segment_mark")
    for key in keys:
        # ISO 639-2: undetermined or several, as in models that were imported without a language, or with many.
        if own[key] in ("und", MANY_LANGUAGES):
            continue
        value = data.task_name if key == "task" else getattr(data, key)
        value = list(value) if key == "normalize" else value
        if key in known:
            value = next((code for code in known[key][0] if code not in known[key][1]), own[key])
        if own[key] != value:
            raise RecipeError(
                f"data.{key} = {value!r}, but the tokenizer of {data.tokenizer} has {own[key]!r}; state the same, "
                "or take the recipe of its run as base"
            )
    size, usual = max(map(tokenizer.vocab_size, SIDES)), DataConfig.model_fields["vocab_size"].default
    if data.vocab_size not in (size, usual) and own["subwords"] in ("bpe", "unigram", "wordpiece"):
        text = "data.vocab_size = %d has no effect: the tokenizer of %s has %d entries"
        log.info(text, data.vocab_size, data.tokenizer, size)
    known_tags = tokenizer.settings.get("source_prefixes", ())
    for tag in data.source_prefixes:
        if tag not in known_tags:
            raise RecipeError(
                f"source_prefix = {tag!r}: the tokenizer of {data.tokenizer} has no such tag; it has "
                f"{', '.join(known_tags) or 'none'}"
            )
