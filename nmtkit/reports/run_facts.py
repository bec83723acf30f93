"""The content of a run's files, for its report and its card. What a run does not have yet is None, never a guess."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import Recipe
from nmtkit.console import amount, duration, with_decimals
from nmtkit.data.shards import read_manifest, read_report
from nmtkit.errors import DataError, NmtkitError
from nmtkit.evaluation.cost import read_cost, read_latest_state, read_metrics, training_cost
from nmtkit.evaluation.cost_tables import scientific
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.scores import OF_FOUR_DECIMALS, read_scores
from nmtkit.files import as_text
from nmtkit.json_toml import read_json
from nmtkit.lines import any_text, read_lines
from nmtkit.model_folder import is_model_folder, read_description, read_provenance
from nmtkit.reports.played import PLAYED
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.tasks.task import Task
from nmtkit.text.scripts import words_and_signs
from nmtkit.training.averaging import read_averaging

FORMS: dict[str, Callable[[Any], str]] = {
    # as the recipe would state it, without quotes around a word
    "text": lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
    "count": lambda value: f"{value:,}",
    "amount": amount,
    "two": lambda value: with_decimals(value, 2),
    "four": lambda value: with_decimals(value, 4),
    "short": lambda value: f"{value:.3g}",
    "percent": lambda value: f"{100 * value:.1f} %",
    "duration": duration,
    "flops": scientific,
    "bytes": lambda value: f"{amount(value)}B",
    "checksum": lambda value: str(value)[:12],
}
"""The forms in which values are shown; two and four: decimals."""


def form_of_score(metric: str) -> str:
    """Return the form of a score."""
    return "four" if metric in OF_FOUR_DECIMALS else "two"


@dataclass(frozen=True)
class RunFacts:
    """The content of a run's files.

    Attributes:
        name: different from those of the other runs of a report.
        folder: the run folder.
        recipe: the content of recipe.toml.
        files: the content of each other file that exists, by its path in the run.
        metrics: the lines of metrics.jsonl.
        model: the model folder that translates for the run, as its path in the run; or None.
        state: the file of `Run.latest_state`, as its path in the run; or None.
    """

    name: str
    folder: Path
    recipe: Recipe
    files: dict[str, Any]
    metrics: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None
    state: str | None = None

    def get(self, file: str | None, *keys: str | int, default: Any = None) -> Any:
        """Return a value of a file, or the default where file, key or value is missing."""
        value: Any = self.files.get(file or "")
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return default
        return default if value is None else value

    def shown(self, form: str, file: str | None, *keys: str | int) -> str | None:
        """Return a value of a file in one of FORMS, or None where it is missing."""
        value = self.get(file, *keys)
        try:
            return None if value is None else FORMS[form](value)
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{self.folder}, {file}: {'.'.join(map(str, keys))} has no value of its kind") from None

    def command(self, name: str) -> str:
        """Return the command that does a step of this run: prepare, train, score, cost."""
        folder, recipe = (
            shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))
            for path in (self.folder, Run(self.folder).recipe_file)
        )
        if name in ("prepare", "train"):
            return f"nmtkit {name} {recipe} --run-dir {folder}"
        return f"nmtkit {name} {folder}"

    @property
    def validations(self) -> dict[int, dict[str, Any]]:
        """The lines of metrics.jsonl that a validation wrote, by their numbers from 1."""
        return {number: line for number, line in enumerate(self.metrics, 1) if line.get("valid_nll") is not None}

    @property
    def unstated(self) -> str | None:
        """The noun of what `score` needs and the recipe does not name: a test set, or an environment to play in."""
        if self.task.has_text:
            return None if self.recipe.data.test else "test set"
        return None if self.recipe.data.environment else "environment"

    @property
    def task(self) -> Task:
        """The task of the run."""
        return task_of(self.recipe.data)


def read_run(folder: Path, others: Sequence[Path] = ()) -> RunFacts:
    """Read what a run holds, be it finished or in the middle of its training.

    Args:
        others: the runs of the same report; where folders have the same name, runs are named by their paths.

    Raises:
        DataError: it is no run, or a file is damaged.
    """
    run = Run(folder)
    recipe = run.recipe()
    name = as_text(folder.resolve().name)
    if sum(as_text(other.resolve().name) == name for other in others) > 1:
        name = as_text(folder)
    files: dict[str, dict[str, Any]] = {}
    # the average, else the best checkpoint, else the last
    averaged = [run.averaged] if is_model_folder(run.averaged) else []
    models = averaged or run.best_checkpoints(1, check=False) or run.checkpoints()[-1:]
    model = models[0].relative_to(folder).as_posix() if models else None
    latest = run.latest_state()
    state = latest.relative_to(folder).as_posix() if latest else None
    if model:
        files[f"{model}/model.json"] = read_description(folder / model)
        files[f"{model}/provenance.json"] = read_provenance(folder / model)
    readers: dict[Path | None, Callable[[Path], dict[str, Any]]] = {
        run.manifest: lambda path: read_manifest(path.parent),
        run.data_report: lambda path: read_report(path.parent),
        run.scores: read_scores,
        run.cost: read_cost,
        run.averaging: read_averaging,
        run.play: lambda path: read_json(path, PLAYED),
        latest: read_latest_state,
    }
    for path, read in readers.items():
        if path is not None and path.is_file():
            files[path.relative_to(folder).as_posix()] = read(path)
    if latest is not None and "cost.json" in files and files["cost.json"]["updates"] < files[str(state)]["step"]:
        files["cost.json"] = training_cost(folder)  # the training has gone on since
    run.warn_of_older_scores()
    return RunFacts(name, folder, recipe, files, read_metrics(folder), model, state)


@dataclass(frozen=True)
class RankedTranslation:
    """A line of a test set with its translation and the score that ranks it.

    Attributes:
        line: number in the files of the test set, from 1.
        metric: see `Scorer.sentence_quality`.
        quality: score of this sentence alone, by that metric.
    """

    line: int
    source: str
    reference: str
    hypothesis: str
    metric: str
    quality: float


def translated(run: RunFacts, name: str) -> list[RankedTranslation] | str:
    """Return the lines of a test set that have text, with their translations, worst first; or why there are none."""
    if not run.task.has_source:
        return "a language model has no translations; its scores are above"
    try:
        sources, references, hypotheses = Run(run.folder).read_translated(name)
    except NmtkitError as error:
        return str(error)
    # chrF ignores blanks, so tokenised text need not be detokenised, which takes a language
    text = "plain" if run.recipe.data.text == "tokenized" else run.recipe.data.text
    own = run.task.own_metric
    scorer = Scorer([references], target_language=None, text=text)
    metric, qualities = scorer.sentence_quality(hypotheses, [own] if own else None)
    lines = zip(sources, references, hypotheses, qualities, strict=True)
    found = [
        RankedTranslation(number, source, reference, hypothesis, metric, quality)
        for number, (source, reference, hypothesis, quality) in enumerate(lines, start=1)
        if any_text(source, reference)
    ]
    return sorted(found, key=lambda sentence: (sentence.quality, sentence.line))


def example_pair(run: RunFacts) -> tuple[str, str, str | None, str | None] | None:
    """Return a source with the run's own translation of it, for a picture of attention: from the last validation, else
    the first one of a test set that is neither short nor long, else without a model the reference; and the languages of
    the translation and of the source, where they are known and models with several need them."""
    if run.task.command != "translate":
        return None
    files, data = Run(run.folder), run.recipe.data
    only = data.target_languages[0] if len(data.target_languages) == 1 else None
    for line in reversed(run.validations.values()):
        for sample in line.get("samples") or []:
            source, hypothesis = sample["source"], sample["hypothesis"]
            if source.strip() and hypothesis.strip():
                return source, hypothesis, sample.get("target_language", only), sample.get("source_language")
    texts = [(files.test_text(name), files.translation(name), data.tests.get(name)) for name in files.test_sets()]
    target_is_text = run.task.own_metric is None
    # Of several directions, the sentences of the first are at the beginning.
    of_valid, count = (run.get("data/manifest.json", "valid_directions", 0, index) for index in (0, 1))
    for text, output, direction in [*texts, (files.valid_text, files.valid_text.reference, of_valid)]:
        target = output if output.is_file() else text.reference
        if text.source.is_file() and target.is_file():
            # Not strict, as one sentence is enough; `score` checks that the numbers of lines are equal.
            pairs = zip(read_lines(text.source), read_lines(target), strict=False)
            for pair in islice(pairs, count if direction is of_valid else None):
                if all(5 <= len(words_and_signs(side)) <= 25 for side in (pair if target_is_text else pair[:1])):
                    from_, to = direction if direction and data.has_directions else (None, only)
                    return *pair, to, from_ if data.has_source_tags else None
    return None


def num_parameters(run: RunFacts) -> int | None:
    """Return the number of parameters of the run's model, counted from its sizes."""
    if run.model is None:
        return None
    from nmtkit.model.decoder_only import count_parameters

    description = run.files[f"{run.model}/model.json"]
    sizes = description["vocab_sizes"]
    return count_parameters(ModelConfig.model_validate(description["model"]), sizes["source"], sizes["target"])
