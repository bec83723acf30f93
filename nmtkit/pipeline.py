"""The five steps of `nmtkit run`.

    prepare -> RUN/data -> train -> RUN/checkpoints -> average -> RUN/averaged -> translate -> RUN/translations
            -> score -> RUN/scores.json, RUN/cost.json

With CTranslate2 installed and a search that is its own, an export to RUN/export/ctranslate2 follows, for `translate`.
Steps that are up to date are skipped.
"""

import math
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from nmtkit.config.data_schema import AVERAGE
from nmtkit.config.schema import Recipe
from nmtkit.console import counted, log
from nmtkit.data.generated import Generation
from nmtkit.data.prepare import prepare, stored_bleu_tokenizer
from nmtkit.decoding.classifier import Classifier
from nmtkit.decoding.ctranslate2_engine import exports_of
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.file_translation import TranslationJob, translate_file
from nmtkit.decoding.generation import generate_corpora
from nmtkit.decoding.play import PlayRequest, best_return_probabilities, outcome_of, play, signature_of
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.running_text import score_text
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.cpu import limit_primitive_cache
from nmtkit.distributed.workers import Workers, check_trackers, choose_device
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.evaluation.checks import text_faults
from nmtkit.evaluation.comet import Comet
from nmtkit.evaluation.cost import training_cost
from nmtkit.evaluation.metric_names import default_metrics
from nmtkit.evaluation.metrics import Scorer, plain_text, resamples_for, score
from nmtkit.evaluation.provenance import doubts
from nmtkit.evaluation.scores import Score, mean_scores, model_text, scores_as_json
from nmtkit.export.export import export as export_model
from nmtkit.files import optional_write, remove_pipe, sha256_of
from nmtkit.json_toml import write_json
from nmtkit.lines import read_lines
from nmtkit.model.decoder_only import build_model
from nmtkit.model_folder import load_model, read_provenance
from nmtkit.run import Run, chosen_languages, find_model
from nmtkit.tasks.known import task_of
from nmtkit.text.scripts import is_unspaced
from nmtkit.training.averaging import average, choose_checkpoints, is_average, is_up_to_date
from nmtkit.training.optimizer import freeze
from nmtkit.training.session import train
from nmtkit.training.transfer import check_initial_model
from nmtkit.training.validation import Validator
from nmtkit.versions import release

EPISODES = 1000
"""Episodes that `run` plays."""
_MUCH_WORSE = 0.02
"""Share by which the nll of an average may exceed that of a single checkpoint: its translations may be better."""
_WINDOW_LINES = 500
"""Lines per window of a test set; an interrupted translation keeps its finished windows."""


@dataclass(frozen=True)
class RunResult:
    """The outcome of `run`.

    Attributes:
        exit_code: not 0 if training was stopped by a signal, or failed in launched processes.
        scores: scores of each test set; empty if training was stopped.
    """

    exit_code: int
    scores: dict[str, dict[str, Score]] = field(default_factory=dict)


def run(
    recipe: Recipe,
    run_dir: Path,
    *,
    mirror: Path | None,
    device: str,
    threads: int | None,
    trackers: Sequence[str] = (),
    launched: Callable[[], int] | None = None,
) -> RunResult:
    """Prepare, train, average, translate and score; skip steps that are up to date.

    Args:
        trackers: names of trackers of the training.
        launched: function that trains in separate processes and returns their exit code; None: train in this process.

    Raises:
        NmtkitError: a step cannot be done.
    """
    # Now, as the packages of trackers are used only after the data have been prepared.
    check_trackers(trackers)
    run, task = Run(run_dir), task_of(recipe.data)
    steps = "clean the corpora, learn subwords and encode the text" if task.has_text else "read or play the episodes"
    log.info("1/5 prepare: %s", steps)
    # Faults that training would meet only after the data have been prepared.
    choose_device(device)
    if check_initial_model(recipe, run) is None and recipe.training.init and not run.is_trained():
        find_model(recipe.training.init)  # raises, as it is missing
    if recipe.training.freeze:
        with torch.device("meta"):  # names without memory, whatever the vocabulary
            freeze(build_model(recipe.model, 100, 100), recipe.training.freeze)

    def generate(unfinished: list[Generation]) -> None:
        if unfinished:
            limit_primitive_cache()  # for the training, and it has to be done before any product
            generate_corpora(unfinished, recipe, device=device, threads=threads)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # for the processes of the training

    prepared = prepare(recipe, run_dir, mirror=mirror, generate=generate)
    if not prepared.is_new:
        log.info("%s is up to date", run.data)
    if left_out := {rule: count for rule, count in prepared.manifest.get("cleaning", {}).items() if count}:
        rules = ", ".join(f"{rule} {count:,}" for rule, count in left_out.items())
        log.info("left out of training: %s; see report.html in %s", rules, run.data)
    log.info("2/5 train: try memory and speed, then train; Ctrl-C saves, and the same command continues")
    if launched is None:
        workers = Workers.start(device, recipe.training.precision, threads, for_training=True)
        stopped_by = train(recipe, run_dir, workers, trackers).signal
        # The exit code by which shells report a process that a signal ended.
        exit_code = 0 if stopped_by is None else 128 + stopped_by
    else:
        exit_code = launched()
    if exit_code:
        return RunResult(exit_code)
    # Settings of this process for the next steps, which replace those of training.
    workers = Workers.start(device, recipe.training.precision, threads, for_decoding=True)
    requested, options = recipe.decoding.average_last, ""
    chosen: list[Path] = []
    if is_average(run.averaged) and run.newer_checkpoint() is None:
        chosen = [run.checkpoints_folder / name for name in run.averaged_checkpoints()]
        if all(folder.is_dir() for folder in chosen):
            options = read_provenance(run.averaged).get("options", "")
    if options:
        log.info("3/5 average: keep that of `nmtkit average %s`; without an option, it makes the recipe's", options)
    else:
        log.info("3/5 average: make the model from the last %s", counted(requested, "checkpoint"))
        chosen = choose_checkpoints(run_dir, at_most=requested)
    if is_up_to_date(chosen, run.averaged, recipe.decoding):
        log.info("%s is up to date", run.averaged)
    else:
        average(chosen, run.averaged, recipe.decoding, options)
        log.info("averaged %s", ", ".join(folder.name for folder in chosen))
        compare_with_best(recipe, run, workers)
    if not (recipe.data.test if task.has_text else recipe.data.environment):
        what = "test set" if task.has_text else "environment"
        log.info("4/5 %s, 5/5 score: skipped, as the recipe names no %s", task.command, what)
        write_json(run.cost, training_cost(run_dir))
        _export(recipe, run_dir)
        return RunResult(0)
    if not task.has_text:
        log.info("4/5 play: %d episodes in the environment %s", EPISODES, recipe.data.environment)
        log.info("5/5 score: count successes, and add up the cost")
        return RunResult(0, score_episodes(recipe, run_dir, device=device))
    if not task.has_source:
        log.info("4/5 translate: skipped, as a language model has no source")
        log.info("5/5 score: predict the test texts, and add up the cost")
        return RunResult(0, score_run(run_dir, device=device))
    search = "" if task.has_labels else f" with beam {recipe.decoding.beam}"
    log.info("4/5 %s: %s%s", task.command, counted(len(run.test_sets()), "test set"), search)
    translate_test_sets(recipe, run_dir, choose_device(device))
    log.info("5/5 score: compare the %ss with the references, and add up the cost", task.noun)
    scores = score_run(run_dir)
    _export(recipe, run_dir)
    return RunResult(0, scores)


def compare_with_best(recipe: Recipe, run: Run, workers: Workers) -> None:
    """Validate the average, and warn if a single checkpoint has a lower nll, as after too many updates."""
    if not run.valid_data.is_dir() or not (best := run.best_checkpoints(1)):
        return
    loaded = load_model(run.averaged, workers.device)
    training = recipe.training.model_copy(update={"validate_bleu": False})
    validator = Validator(
        recipe.model_copy(update={"training": training}), run, loaded.tokenizer, workers, loaded.lengths
    )
    found = validator(loaded.model)
    assert found is not None  # it is never requested to stop
    of_best = read_provenance(best[0]).get("valid_nll")
    single = math.inf if of_best is None else of_best
    what = task_of(recipe.data).nll
    log.info("validation %s of the average: %.4f; of %s: %.4f", what, found.nll, best[0].name, single)
    if not found.nll <= single * (1 + _MUCH_WORSE):
        log.warning(
            "the average is worse than %s alone, as its checkpoints still improved much, or training went on for too "
            "long; `nmtkit average %s --best 1` makes the model from the best checkpoint",
            best[0].name, shlex.quote(str(run.folder)),
        )  # fmt: skip


def _export(recipe: Recipe, run_dir: Path) -> None:
    """Export the model where `translate` takes CTranslate2, as it searches in the same way; warn if that fails."""
    is_of_use = task_of(recipe.data).command == "translate" and recipe.decoding.is_that_of_ctranslate2
    if not is_of_use or find_spec("ctranslate2") is None:
        return
    try:
        settings = recipe.decoding.model_dump(mode="json")
        exports = (export.manifest for export in exports_of(run_dir) if export.quantization == "float32")
        if not any(manifest["decoding"] == settings for manifest in exports):
            log.info("exported to %s, with which `translate` is faster", export_model(run_dir, "ctranslate2")[0])
    except (NmtkitError, OSError, ImportError) as error:  # the run itself is complete
        log.warning("no export for CTranslate2, so `translate` takes torch: %s", error)


def translate_test_sets(recipe: Recipe, run_dir: Path, device: torch.device) -> None:
    """Translate the test sets to RUN/translations, unless they were translated with this model and these settings."""
    run, model = Run(run_dir), find_model(run_dir)
    model_sha256 = sha256_of(model / "model.safetensors")
    translator: Engine | None = None
    for name in run.test_sets():
        source, output = run.test_text(name).source, run.translation(name)
        direction = recipe.data.tests.get(name, recipe.data.directions[0])
        made_from = {
            "model_sha256": model_sha256,
            "source_sha256": sha256_of(source),
            "decoding": recipe.decoding.model_dump(mode="json"),
            **({"target_language": direction[1]} if recipe.data.target_tags else {}),
            **({"source_language": direction[0]} if recipe.data.has_source_tags else {}),
        }
        if run.is_translated(name, made_from):
            log.info("%s is up to date", output)
            continue
        if translator is None:
            translator = (Classifier if task_of(recipe.data).has_labels else Translator).load([model], device)
            if translator.model_sha256 != (model_sha256,):
                raise ModelError(f"{model}: has changed since this command began; run it again")
            translator.decoding = recipe.decoding
        remove_pipe(output)
        source_language, target_language = chosen_languages(recipe.data, direction, translator.tokenizer)
        # As in validation, and as others translate test sets: a line is one source, whatever is in it.
        request = TranslationRequest(source_language=source_language, target_language=target_language, split="never")
        job = TranslationJob(translator, request, place=f"{name}: ")
        title = f"{translator.task.activity} {name}"
        record = partial(run.record_translation, name, made_from)
        translate_file(job, source, output, strict=True, window_lines=_WINDOW_LINES, title=title, record=record)


def score_run(
    run_dir: Path,
    *,
    resamples: int | None = None,
    load_comet: Callable[[], Comet] | None = None,
    device: str = "auto",
) -> dict[str, dict[str, Score]]:
    """Score the translations of a run, log warnings about them, and write RUN/scores.json and RUN/cost.json.

    Args:
        resamples: bootstrap resamples for the confidence intervals; 0: no intervals; None: see `resamples_for`.
        load_comet: loads the COMET scorer, if COMET is requested.
        device: computes the scores of a language model.

    Raises:
        DataError: the run is not prepared, or a translation is missing.
    """
    run = Run(run_dir)
    recipe = run.recipe()
    run.check_prepared()
    task = task_of(recipe.data)
    if not (task.has_text and task.has_source) and (resamples is not None or load_comet is not None):
        raise DataError(f"{run_dir}: its model {task.does}; leave out --confidence and --comet")
    if not task.has_text:
        if recipe.data.environment is None:
            raise DataError(
                f"{run_dir}: the recipe names no environment, so there is nothing to score; play in one with "
                f"`nmtkit play {shlex.quote(str(run_dir))} --environment MODULE:FUNCTION`"
            )
        return score_episodes(recipe, run_dir, device=device)
    names = run.test_sets()
    if not names:
        raise DataError(
            f"{run_dir}: the recipe names no test set, so there is nothing to score; score files of your own with "
            "--hypothesis and --reference"
        )
    if not task.has_source:
        return _score_running_texts(run, recipe, names, device)
    texts = {name: run.read_translated(name) for name in names}
    comet = load_comet() if load_comet is not None else None  # gigabytes, so after all that may be wrong
    for name, (sources, references, hypotheses) in texts.items():
        data = recipe.data.of_test(name)
        is_translated = data.source_language != data.target_language
        for doubt in doubts(run_dir, name, recipe):
            log.warning("%s", doubt)
        for fault in text_faults(
            hypotheses,
            [references],
            sources=sources if is_translated else None,  # a language is recognised by words that the other lacks
            target_language=data.target_language,
            text=data.text,
            metrics=default_metrics(data),
            name=str(run.translation(name)),
        ):
            log.warning("%s: %s", run.translation(name), fault)
    scores, suffix = {}, model_text(recipe.data)
    for name, (sources, references, hypotheses) in texts.items():
        data, num_resamples = recipe.data.of_test(name), resamples_for(len(hypotheses), resamples)
        tokenizer = stored_bleu_tokenizer(run_dir, data)
        scorer = Scorer([references], target_language=data.target_language, text=data.text, tokenizer=tokenizer)
        entries = scorer.score(hypotheses, default_metrics(data), resamples=num_resamples)
        scores[name] = {key: replace(entry, signature=entry.signature + suffix) for key, entry in entries.items()}
        if comet is not None:
            plain = [plain_text(sources, data.text, data.source_language)]
            plain += [plain_text(lines, data.text, data.target_language) for lines in (hypotheses, references)]
            scores[name]["comet"], _ = comet.score(*plain)
    if len(set(recipe.data.tests.values())) > 1:
        scores[AVERAGE] = mean_scores(list(scores.values()))
    _store(run, scores)
    return scores


def _score_running_texts(run: Run, recipe: Recipe, names: Sequence[str], device: str) -> dict[str, dict[str, Score]]:
    """Score how well the run's model predicts its test texts; write RUN/scores.json and RUN/cost.json."""
    loaded = [load_model(find_model(run.folder), choose_device(device))]
    scores = {}
    for name in names:
        found = score_text(loaded, run.test_text(name).read()[1], recipe.data.sequence_length, name)
        signature = f"tokens:{found.tokens}|subwords:{recipe.data.subwords}|context:{recipe.data.sequence_length}"
        signature += (f"|unknown:{found.unknown}" if found.unknown else "") + model_text(recipe.data)
        found.warn_of_unknown(name)
        values = {
            "nll": found.nll / found.tokens,
            "perplexity": found.perplexity,
            "word-perplexity": found.word_perplexity,
            "bits-per-character": found.bits_per_character,
        }
        if is_unspaced(recipe.data.target_language):  # a "word" would be a line
            del values["word-perplexity"]
        details = f"{found.words} words, {found.characters} characters, {found.unknown} unknown tokens"
        scores[name] = {metric: Score(value, signature, details) for metric, value in values.items()}
    _store(run, scores)
    return scores


def score_episodes(recipe: Recipe, run_dir: Path, *, device: str = "auto") -> dict[str, dict[str, Score]]:
    """Play episodes with the model of a run; write RUN/play.json, RUN/scores.json and RUN/cost.json.

    Raises:
        DataError: the environment does not fit the training.
        ModelError: there is no model.
    """
    run = Run(run_dir)
    request = PlayRequest(episodes=EPISODES, environment=recipe.data.environment)
    loaded = load_model(find_model(run_dir), choose_device(device))
    played = play(loaded, request)
    found = outcome_of(played)
    with optional_write(run.play):
        write_json(run.play, {**found, "best_return_probabilities": best_return_probabilities(played)})
    signature = f"{signature_of(loaded, request)}|version:nmtkit-{release()}"
    bar = "" if played[0].bar is None else f"|success:return>={played[0].bar:g}"
    scores = {"success-rate": _share(found, "success_rate", signature + bar)}
    if "shortest_rate" in found:
        scores["shortest-rate"] = _share(found, "shortest_rate", signature)
    scores["mean-return"] = Score(found["mean_return"], signature)
    _store(run, {"episodes": scores})
    return {"episodes": scores}


def _store(run: Run, scores: dict[str, dict[str, Score]]) -> None:
    """Write RUN/scores.json and RUN/cost.json, unless this user may only read the run."""
    with optional_write(run.scores):
        write_json(run.scores, {name: scores_as_json(entry) for name, entry in scores.items()})
    # Without checkpoints and resume states, as in a published run, cost.json stays as it is.
    with optional_write(run.cost), suppress(ModelError):
        write_json(run.cost, training_cost(run.folder))


def _share(found: dict[str, Any], key: str, signature: str) -> Score:
    """Return a rate x 100 with its interval."""
    low, high = found[f"{key}_interval"]
    return Score(100 * found[key], signature, f"95 % interval: {100 * low:.1f} to {100 * high:.1f}")


def phenomenon_scores(run_dir: Path) -> list[tuple[str, int, Score]]:
    """Return description, number of sentences and sacreBLEU score of each phenomenon of the built-in test set."""
    from nmtkit.corpora.synthetic import PHENOMENA, generate

    run = Run(run_dir)
    recipe = run.recipe()
    pairs = generate("synthetic")
    hypotheses = read_lines(run.translation("synthetic"))
    _, references = run.test_text("synthetic").read()
    rows = []
    for phenomenon, description in PHENOMENA.items():
        chosen = [index for index, pair in enumerate(pairs) if phenomenon in pair.phenomena]
        scores = score(
            [hypotheses[index] for index in chosen],
            [references[index] for index in chosen],
            target_language=recipe.data.target_language,
            text="plain",
            metrics=["sacrebleu"],
        )
        rows.append((description, len(chosen), scores["sacrebleu"]))
    return rows
