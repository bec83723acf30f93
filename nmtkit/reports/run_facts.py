"""What the files of a run hold, for the report and the card of the run.

    RUN --read_run--> RunFacts: its files --get, shown--> a value of a file, in the form in which it is shown

What a run does not have yet is None, never a guess.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmtkit.config.schema import TREES
from nmtkit.console import amount, duration
from nmtkit.data.shards import read_manifest, read_report
from nmtkit.errors import DataError
from nmtkit.evaluation.cost import read_cost, read_metrics, read_state
from nmtkit.evaluation.cost_tables import scientific
from nmtkit.evaluation.metrics import Scorer, TextKind, read_scores
from nmtkit.files import as_text, read_lines, read_toml
from nmtkit.model_folder import is_model_folder, read_description, read_provenance
from nmtkit.run import Run
from nmtkit.training.averaging import read_averaging

FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "data/manifest.json": lambda path: read_manifest(path.parent),
    "data/report.json": lambda path: read_report(path.parent),
    "scores.json": read_scores,
    "cost.json": read_cost,
    "averaging.json": read_averaging,
}
"""Of a run, besides recipe.toml, metrics.jsonl and what a model folder has, and how each is read."""


def _text(value: Any) -> str:
    """A value as the recipe would state it, without quotes around a word."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FORMS: dict[str, Callable[[Any], str]] = {
    "text": _text,
    "count": lambda value: f"{value:,}",
    "amount": amount,
    "two": lambda value: f"{value:.2f}",
    "four": lambda value: f"{value:.4f}",
    "six": lambda value: f"{value:.3g}",
    "percent": lambda value: f"{100 * value:.1f} %",
    "duration": duration,
    "flops": scientific,
    "bytes": lambda value: f"{amount(value)}B",
    "sum": lambda value: str(value)[:12],
}
"""How a value is shown. `sum` is the beginning of a checksum."""


def form_of_score(metric: str) -> str:
    """How a score is shown: most go to 100, COMET's to about 1."""
    return "four" if metric == "comet" else "two"


@dataclass(frozen=True)
class RunFacts:
    """A run as its files have it.

    Attributes:
        name: different from those of the other runs of a report.
        folder: where it lies.
        files: the content of each file that there is, by its path in the run.
        metrics: the lines of metrics.jsonl.
        model: the model folder that translates for the run, or None: its path in the run.
        state: the file that knows most of the training, a save's or a checkpoint's, by its path; or None.
    """

    name: str
    folder: Path
    files: dict[str, Any]
    metrics: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None
    state: str | None = None

    def get(self, file: str | None, *keys: str | int, default: Any = None) -> Any:
        """Return a value of a file, or the default where file, key or value is missing."""
        value: Any = self.metrics if file == "metrics.jsonl" else self.files.get(file or "")
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return default
        return default if value is None else value

    def shown(self, form: str, file: str | None, *keys: str | int) -> str | None:
        """Return a value of a file in one of FORMS, or None where it is missing."""
        value = self.get(file, *keys)
        return None if value is None else FORMS[form](value)

    @property
    def validations(self) -> list[int]:
        """The lines of metrics.jsonl, from 1, that a validation wrote."""
        return [number for number, line in enumerate(self.metrics, start=1) if line.get("valid_nll") is not None]


def read_run(folder: Path, others: Sequence[Path] = ()) -> RunFacts:
    """Reads what a run holds, be it finished or in the middle of its training.

    Args:
        others: the runs of the same report; where folders have the same name, runs are named by their paths.

    Raises:
        DataError: it is no run, or a file is damaged.
    """
    if not Run(folder).recipe_file.is_file():
        raise DataError(f"{folder}: not a run (no recipe.toml in it); give the folder that `nmtkit run` wrote")
    name = as_text(folder.resolve().name)
    if sum(as_text(other.resolve().name) == name for other in others) > 1:
        name = as_text(folder)
    files = {"recipe.toml": read_toml(Run(folder).recipe_file)[0]}
    model, latest = _model(folder), Run(folder).latest_state()
    state = latest.relative_to(folder).as_posix() if latest else None
    if model:
        files[f"{model}/model.json"] = read_description(folder / model)
        files[f"{model}/provenance.json"] = read_provenance(folder / model)
    for path, read in {**FILES, **({state: read_state} if state else {})}.items():
        if (folder / path).is_file():
            files[path] = read(folder / path)
    return RunFacts(name, folder, files, read_metrics(folder), model, state)


def _model(folder: Path) -> str | None:
    """The average, else the best checkpoint, else the last."""
    if is_model_folder(Run(folder).averaged):
        return "averaged"
    candidates = Run(folder).best_checkpoints(1, check=False) or Run(folder).checkpoints()[-1:]
    return candidates[0].relative_to(folder).as_posix() if candidates else None


def prepare_command(run: RunFacts) -> str:
    """What prepares the run."""
    return f"nmtkit prepare {_quoted(run.folder / 'recipe.toml')} --run-dir {_quoted(run.folder)}"


def train_command(run: RunFacts) -> str:
    """What trains the run, or goes on with it."""
    return f"nmtkit train {_quoted(run.folder / 'recipe.toml')} --run-dir {_quoted(run.folder)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def setting_rows(runs: Sequence[RunFacts]) -> list[tuple[str, str, list[Any]]]:
    """Section, key and the value in each run, None where it has none, in the order of the recipes."""
    recipes = [run.files["recipe.toml"] for run in runs]
    sections = dict.fromkeys(name for recipe in recipes for name, values in recipe.items() if isinstance(values, dict))
    return [
        (section, key, [run.get("recipe.toml", section, key) for run in runs])
        for section in sections
        for key in dict.fromkeys(key for recipe in recipes for key in recipe.get(section, {}))
    ]


def differs(values: Sequence[Any]) -> bool:
    """Return whether runs have different values."""
    return len({json.dumps(value, sort_keys=True) for value in values}) > 1


@dataclass(frozen=True)
class Sentence:
    """A line of a test set with its translation.

    Attributes:
        line: in the files of the test set, from 1.
        metric: see `Scorer.sentence_quality`.
        quality: of this sentence alone, by that metric.
    """

    line: int
    source: str
    reference: str
    hypothesis: str
    metric: str
    quality: float


def translated(run: RunFacts, name: str) -> list[Sentence] | str:
    """The lines of a test set with their translations, worst first; or why there are none."""
    try:
        sources, references, hypotheses = Run(run.folder).read_translated(name)
    except DataError as error:
        return str(error)
    text: TextKind = "trees" if makes_trees(run) else "plain"  # chrF heeds no blanks, so tokenised text stays as it is
    metric, qualities = Scorer([references], target_language=None, text=text).sentence_quality(hypotheses)
    lines = zip(sources, references, hypotheses, qualities, strict=True)
    found = [
        Sentence(number, source, reference, hypothesis, metric, quality)
        for number, (source, reference, hypothesis, quality) in enumerate(lines, start=1)
    ]
    return sorted(found, key=lambda sentence: (sentence.quality, sentence.line))


def makes_trees(run: RunFacts) -> bool:
    """Whether it is a parser's."""
    return run.get("recipe.toml", "data", "text") in TREES


def example_pair(run: RunFacts) -> tuple[str, str] | None:
    """A source with the run's own translation of it, for a picture of attention: of the last validation, else the first
    one of a test set that is neither short nor long, else of no model but the reference."""
    for number in reversed(run.validations):
        for sample in run.metrics[number - 1].get("samples") or []:
            if sample["source"].strip() and sample["hypothesis"].strip():
                return sample["source"], sample["hypothesis"]
    files = Run(run.folder)
    texts = [(files.test_text(name), files.translation(name)) for name in files.test_sets()]
    for text, output in [*texts, (files.valid_text, files.valid_text.reference)]:
        target = output if output.is_file() else text.reference
        if text.source.is_file() and target.is_file():
            for pair in zip(read_lines(text.source), read_lines(target), strict=False):
                if all(5 <= len(side.split()) <= 20 for side in (pair[:1] if makes_trees(run) else pair)):
                    return pair
    return None


def num_parameters(run: RunFacts) -> int | None:
    """Weights of the run's model, counted from its sizes."""
    if run.model is None:
        return None
    from nmtkit.config.schema import ModelConfig
    from nmtkit.model.flops import count_parameters

    description = read_description(run.folder / run.model)
    sizes = description["vocab_sizes"]
    return count_parameters(ModelConfig.model_validate(description["model"]), sizes["source"], sizes["target"])
