"""Runs side by side: the settings that differ, scores with their significance, cost, and which sentences changed most.

    RUN/recipe.toml, RUN/translations/, RUN/data/test/, RUN/resume/ of each run -> compare_runs -> comparison_tables

The first run is the baseline. Runs are comparable on test sets that are the same to the letter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmtkit.config.recipe import settings_of
from nmtkit.config.schema import Recipe
from nmtkit.console import amount, duration
from nmtkit.data.prepare import stored_bleu_tokenizer
from nmtkit.data.shards import read_manifest
from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.cost import read_cost, training_cost
from nmtkit.evaluation.cost_tables import Table, energy, percent, scientific
from nmtkit.evaluation.metrics import BRACKET_SCORES, Scorer, single_scores
from nmtkit.evaluation.significance import Method, PairedResult, paired_test
from nmtkit.files import as_text
from nmtkit.run import Run

DEFAULT_METRICS = ("sacrebleu", "chrf2", "bleu-tokenized", *BRACKET_SCORES)


@dataclass(frozen=True)
class Change:
    """A sentence whose translation is better or worse than the baseline's.

    Attributes:
        line: its number in the test set, from 1.
        metric: see `Scorer.sentence_quality`.
        before, after: by that metric, of the baseline's translation and of the run's.
    """

    line: int
    source: str
    reference: str
    baseline: str
    translation: str
    metric: str
    before: float
    after: float


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, by the names of the runs; the first one is the baseline.

    Attributes:
        runs: their names.
        settings: what differs, by `section.key`: a value for each run.
        scores: by test set, metric and run.
        costs: as RUN/cost.json has them; None of a run whose training is not here.
        changes: by test set and run, those that changed most first.
        left_out: test sets that not all runs have translations of.
    """

    runs: list[str]
    settings: dict[str, list[Any]]
    scores: dict[str, dict[str, dict[str, PairedResult]]]
    costs: list[dict[str, Any] | None]
    changes: dict[str, dict[str, list[Change]]]
    left_out: list[str]

    def as_json(self) -> dict[str, Any]:
        """In plain values, as `--json` writes it."""
        return asdict(self)


def compare_runs(
    run_dirs: Sequence[Path],
    *,
    metrics: Sequence[str] | None = None,
    method: Method = "bootstrap",
    trials: int | None = None,
    num_sentences: int = 5,
) -> Comparison:
    """Compares runs with the first of them.

    Args:
        metrics: by default those of DEFAULT_METRICS that are possible on the text.
        method, trials: of the paired test, see `significance.py`.
        num_sentences: how many that changed most are kept of each run and test set.

    Raises:
        DataError: one is no run with translations, their test sets differ, or a metric is unknown.
    """
    names = run_names(run_dirs)
    recipes = [_recipe(run) for run in run_dirs]
    tests, left_out = _common_tests(run_dirs, names)
    _check_same_text(recipes, names)
    scores: dict[str, dict[str, dict[str, PairedResult]]] = {}
    changes: dict[str, dict[str, list[Change]]] = {}
    tokenizer = stored_bleu_tokenizer(run_dirs[0], recipes[0].data)
    for test in tests:
        sources, references = _same_test_set(run_dirs, names, test)
        systems = {name: Run(run).read_translated(test)[2] for name, run in zip(names, run_dirs, strict=True)}
        data = recipes[0].data
        scorer = Scorer([references], target_language=data.target_language, text=data.text, tokenizer=tokenizer)
        possible = single_scores(scorer.possible(metrics or None))
        chosen = possible if metrics else [metric for metric in DEFAULT_METRICS if metric in possible]
        scores[test] = {metric: paired_test(scorer, systems, metric, method, trials=trials) for metric in chosen}
        if num_sentences:
            changes[test] = _changes(scorer, systems, sources, references, num_sentences)
    settings = _differing_settings(run_dirs, recipes)
    return Comparison(names, settings, scores, [_cost(run) for run in run_dirs], changes, left_out)


def run_names(run_dirs: Sequence[Path]) -> list[str]:
    """What the runs are called: their folders' names, or their paths where those do not tell them apart.

    Raises:
        DataError: one is given twice, or there is only one.
    """
    if len({run.resolve() for run in run_dirs}) < len(run_dirs):
        raise DataError("the same run is given twice; name different runs")
    if len(run_dirs) < 2:
        raise DataError("a comparison takes two runs or more")
    names = [as_text(run.resolve().name) for run in run_dirs]
    return names if len(set(names)) == len(names) else [as_text(run) for run in run_dirs]


def _recipe(run: Path) -> Recipe:
    if not Run(run).recipe_file.is_file():
        raise DataError(f"{run}: not a run (no recipe.toml in it)")
    return Run(run).recipe(run.resolve().name)


def _common_tests(run_dirs: Sequence[Path], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The test sets that all runs have translated, and those that only some have."""
    translated = [{test for test in Run(run).test_sets() if Run(run).translation(test).is_file()} for run in run_dirs]
    for run, found in zip(run_dirs, translated, strict=True):
        if not found:
            raise DataError(f"{run}: no translations of test sets in it; run `nmtkit run` or `nmtkit translate` first")
    common = sorted(set.intersection(*translated))
    if not common:
        told = "; ".join(f"{name} has {', '.join(sorted(has))}" for name, has in zip(names, translated, strict=True))
        raise DataError(f"the runs have no test set in common: {told}")
    return common, sorted(set.union(*translated) - set(common))


def _same_test_set(run_dirs: Sequence[Path], names: Sequence[str], test: str) -> tuple[list[str], list[str]]:
    """Sources and references of a test set, which are the same in all runs."""
    found = [Run(run).test_text(test).read() for run in run_dirs]
    for name, other in zip(names[1:], found[1:], strict=True):
        for what, one, two in zip(("source", "reference"), found[0], other, strict=True):
            if one != two:
                place = f"line {_first_difference(one, two)}" if len(one) == len(two) else "their number of lines"
                raise DataError(
                    f"{names[0]} and {name} cannot be compared: the {what} of {test} differs ({place}); prepare both "
                    "from the same test set"
                )
    return found[0]


def _first_difference(one: Sequence[str], two: Sequence[str]) -> int:
    return next(number for number, lines in enumerate(zip(one, two, strict=True), start=1) if lines[0] != lines[1])


def _check_same_text(recipes: Sequence[Recipe], names: Sequence[str]) -> None:
    first = recipes[0].data
    for name, recipe in zip(names[1:], recipes[1:], strict=True):
        same_text = recipe.data.text == first.text or (recipe.data.has_trees and first.has_trees)
        if not same_text or recipe.data.target_language != first.target_language:
            raise DataError(
                f"{names[0]} and {name} cannot be compared: data.text or data.target_language differ, so that scores "
                "are computed differently"
            )


def _changes(
    scorer: Scorer,
    systems: Mapping[str, list[str]],
    sources: Sequence[str],
    references: Sequence[str],
    num_sentences: int,
) -> dict[str, list[Change]]:
    """Of each run but the first the sentences that changed most, in either direction."""
    quality: dict[str, list[float]] = {}
    for name, lines in systems.items():
        metric, quality[name] = scorer.sentence_quality(lines)
    baseline, *others = systems
    found = {}
    for name in others:
        all_changes = [
            Change(
                index + 1, sources[index], references[index], systems[baseline][index], systems[name][index],
                metric, quality[baseline][index], quality[name][index],
            )
            for index in range(len(references))
            if quality[baseline][index] != quality[name][index]
        ]  # fmt: skip
        all_changes.sort(key=lambda change: (-abs(change.after - change.before), change.line))
        found[name] = all_changes[:num_sentences]
    return found


def _differing_settings(run_dirs: Sequence[Path], recipes: Sequence[Recipe]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs, and whether the training text is."""
    values = [settings_of(recipe) for recipe in recipes]
    for run, of_run in zip(run_dirs, values, strict=True):
        manifest = read_manifest(Run(run).data)
        of_run["data (fingerprint of settings and text)"] = str(manifest["fingerprint"])[:12]
    return {
        key: [of_run[key] for of_run in values]
        for key in values[0]
        if any(of_run[key] != values[0][key] for of_run in values)
    }


def _cost(run: Path) -> dict[str, Any] | None:
    try:
        return training_cost(run)
    except ModelError:
        stored = Run(run).cost
        return read_cost(stored) if stored.is_file() else None


def comparison_tables(comparison: Comparison) -> list[Table]:
    """A comparison as tables: settings, scores, cost, and for each test set and run the sentences."""
    rows = [[key, *(_setting(value) for value in values)] for key, values in comparison.settings.items()]
    notes = [] if rows else ["None: same recipe, same training text."]
    settings = Table("Settings that differ", ["setting", *comparison.runs], rows, notes)
    tables = [settings, _scores_table(comparison), _costs_table(comparison)]
    for test, of_runs in comparison.changes.items():
        tables += [_changes_table(comparison.runs[0], test, name, changes) for name, changes in of_runs.items()]
    return tables


def _setting(value: Any) -> str:
    return "-" if value is None else ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)


def _scores_table(comparison: Comparison) -> Table:
    rows, signatures = [], {}
    for test, metrics in comparison.scores.items():
        for metric, results in metrics.items():
            for name, result in results.items():
                interval = "" if result.interval is None else f"± {result.interval.half_width:.2f}"
                rows.append([test, metric, name, f"{result.score:.2f}", interval, *_against_baseline(result)])
                signatures[metric] = result.signature
    notes = [f"Differences are from {comparison.runs[0]}; * marks those with p < 0.05."]
    notes += [f"  {metric}  {signature}" for metric, signature in signatures.items()]
    if comparison.left_out:
        notes.append(f"Not translated by all runs, and left out: {', '.join(comparison.left_out)}.")
    return Table("Scores", ["test", "metric", "run", "score", "95 %", "difference", "p"], rows, notes)


def _against_baseline(result: PairedResult) -> list[str]:
    if result.p_value is None:
        return ["", ""]
    return [f"{result.difference:+.2f}", f"{result.p_value:.4f}{'*' if result.is_significant else ''}"]


def _costs_table(comparison: Comparison) -> Table:
    def share(cost: Mapping[str, Any], key: str) -> str:
        return "" if cost.get(key) is None else f"{100 * cost[key]:.1f} %"

    lines = {
        "updates": lambda cost: f"{cost['updates']:,}",
        "target tokens": lambda cost: f"{cost['target_tokens']:,}",
        "time": lambda cost: duration(cost["seconds"]),
        "devices": lambda cost: f"{cost['processes']} x {cost['device']} ({cost['precision']})",
        "FLOPs, counted": lambda cost: scientific(cost["flops"]),
        "padding, besides": lambda cost: percent(cost["flops_padding"], cost["flops"]),
        "FLOPs, the paper's estimate": lambda cost: scientific(cost["flops_paper_estimate"]),
        "MFU, of measured products": lambda cost: share(cost, "mfu"),
        "MFU, of the data sheet": lambda cost: share(cost, "mfu_of_peak"),
        "energy, GPUs": lambda cost: energy(cost, "gpu"),
        "energy, processors and memory": lambda cost: energy(cost, "host"),
        "most memory": lambda cost: f"{amount(cost['memory_bytes'])}B" if cost.get("memory_bytes") else "",
    }
    rows = [
        [what, *("not known" if cost is None else tell(cost) for cost in comparison.costs)]
        for what, tell in lines.items()
    ]
    return Table("Training cost", ["what", *comparison.runs], rows, [])


def _changes_table(baseline: str, test: str, name: str, changes: Sequence[Change]) -> Table:
    rows = []
    for change in changes:
        rows += [
            [f"line {change.line}", f"{change.metric} {change.before:.1f} -> {change.after:.1f}"],
            ["source", change.source],
            ["reference", change.reference],
            [baseline, change.baseline],
            [name, change.translation],
            ["", ""],
        ]
    notes = [] if changes else ["None: all sentences score the same."]
    return Table(f"Sentences of {test} that changed most from {baseline} to {name}", ["", ""], rows[:-1], notes)
