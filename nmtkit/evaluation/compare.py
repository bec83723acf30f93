"""Runs side by side: the settings that differ, scores with their significance, cost, and which sentences changed most.

The first run is the baseline. Runs are comparable on test sets that are the same to the letter. Language models and
models of decisions have no outputs to test: their scores are those of RUN/scores.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from nmtkit.config.recipe import settings_of
from nmtkit.console import amount, duration, log
from nmtkit.data.prepare import stored_bleu_tokenizer
from nmtkit.data.shards import read_manifest
from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.cost import read_cost, training_cost
from nmtkit.evaluation.cost_tables import TARGET_TOKENS, Table, energy, percent, scientific
from nmtkit.evaluation.metric_names import METRICS, TASK_METRICS, default_metrics, require_known
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.provenance import doubts
from nmtkit.evaluation.scores import model_text, read_scores, shown_score
from nmtkit.evaluation.significance import Method, PairedResult, paired_test, testable
from nmtkit.files import as_text
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.tasks.task import Task

DEFAULT_METRICS = ("sacrebleu", "chrf2", "bleu-tokenized")
"""The metrics of text that are compared by default; a metric of the task's own always is."""


@dataclass(frozen=True)
class Change:
    """A sentence whose translation is better or worse than the baseline's.

    Attributes:
        line: its number in the test set, from 1.
        metric: see `Scorer.sentence_quality`.
        before, after: score of the baseline's translation and of the run's, by that metric.
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
        costs: the content of each run's cost.json; None for a run whose training is not here.
        changes: by test set and run, those that changed most first.
        left_out: test sets that not all runs have translations or scores of.
    """

    runs: list[str]
    settings: dict[str, list[Any]]
    scores: dict[str, dict[str, dict[str, PairedResult]]]
    costs: list[dict[str, Any] | None]
    changes: dict[str, dict[str, list[Change]]]
    left_out: list[str]


def compare_runs(
    run_dirs: Sequence[Path],
    *,
    metrics: Sequence[str] | None = None,
    method: Method | None = None,
    trials: int | None = None,
    num_sentences: int | None = None,
) -> Comparison:
    """Compare runs with the first of them.

    Args:
        metrics: by default those of DEFAULT_METRICS that are possible, or the task's own.
        method, trials: see `paired_test`; scores that the method cannot test are left out.
        num_sentences: the number of changed sentences to keep per run and test set; by default 5.

    Raises:
        DataError: their tasks or test sets differ, outputs are missing, or a metric is unknown or not testable.
    """
    names = run_names(run_dirs)
    runs = {name: Run(run_dir) for name, run_dir in zip(names, run_dirs, strict=True)}
    recipes = {name: run.recipe() for name, run in runs.items()}
    data = next(iter(recipes.values())).data
    task = task_of(data)
    is_one_kind = len({task_of(recipe.data).command for recipe in recipes.values()}) == 1
    tests, left_out = _common_tests(runs) if is_one_kind else ([], [])
    compared = tests if task.has_text else []  # decisions have neither languages nor texts that could differ
    for name, recipe in recipes.items():
        own, other = ((each.command, each.own_metric) for each in (task, task_of(recipe.data)))
        # A metric of the task's own is the same for all forms of its text, such as trees with and without tags.
        same_metrics = own == other and (task.own_metric is not None or recipe.data.text == data.text)
        if not same_metrics or any(
            data.of_test(test).target_language != recipe.data.of_test(test).target_language for test in compared
        ):
            raise DataError(
                f"{names[0]} and {name} cannot be compared: data.task, data.text or data.target_language differ, so "
                "that scores are computed differently"
            )
    scores: dict[str, dict[str, dict[str, PairedResult]]] = {}
    changes: dict[str, dict[str, list[Change]]] = {}
    if not _has_outputs(task):
        if metrics or method or trials or num_sentences is not None:
            raise DataError(
                f"a model that {task.does} has no outputs of test sets; leave out --metric, --paired, --trials and "
                "--sentences"
            )
        played = {(recipe.data.environment, recipe.data.environment_seed) for recipe in recipes.values()}
        if len(played) > 1:
            unplayed = [name for name, recipe in recipes.items() if recipe.data.environment is None]
            reason = f"the recipe of {unplayed[0]} names no environment" if unplayed else "their environments differ"
            raise DataError(f"{', '.join(names)} cannot be compared: {reason}")
        for test in compared:
            _same_test_set(runs, test)
        scores, tests = _stored_scores(runs, tests), []
    for metric in metrics or ():
        require_known(metric)
        if metric != task.own_metric and (task.own_metric is not None or metric in TASK_METRICS):
            advice = f"give --metric {task.own_metric}" if task.own_metric else "leave out --metric"
            raise DataError(f"{metric} is no metric of these runs; {advice}")
    for test in tests:
        of_test = data.of_test(test)
        # That of the baseline for all runs: scores by different tokenizers cannot be compared.
        tokenizer = stored_bleu_tokenizer(run_dirs[0], of_test)
        sources, references = _same_test_set(runs, test)
        systems = {name: run.read_translated(test)[2] for name, run in runs.items()}
        scorer = Scorer([references], target_language=of_test.target_language, text=data.text, tokenizer=tokenizer)
        wanted = metrics or default_metrics(of_test)
        chosen = scorer.tested(wanted)
        if not metrics:  # scores of a task's own metric are not in METRICS
            chosen = [name for name in chosen if name in DEFAULT_METRICS or name not in METRICS]
        chosen = testable(method, chosen)
        scores[test] = {
            metric: {
                name: replace(result, signature=result.signature + model_text(recipes[name].data))
                for name, result in paired_test(scorer, systems, metric, method, trials=trials).items()
            }
            for metric in chosen
        }
        if num_sentences != 0:
            changes[test] = _changes(scorer, wanted, systems, sources, references, num_sentences or 5)
    values = [settings_of(recipe) for recipe in recipes.values()]
    for run, of_run in zip(runs.values(), values, strict=True):
        fingerprint = read_manifest(run.data)["fingerprint"]
        of_run["data (fingerprint of settings and text)"] = str(fingerprint)[:12]
    settings = {key: [of_run[key] for of_run in values] for key in values[0]}
    settings = {key: of_runs for key, of_runs in settings.items() if any(value != of_runs[0] for value in of_runs)}
    found = Comparison(names, settings, scores, [_cost(run) for run in runs.values()], changes, left_out)
    for test, name in product(tests, names):
        for doubt in doubts(runs[name].folder, test, recipes[name]):
            log.warning("%s", doubt)
    return found


def run_names(run_dirs: Sequence[Path]) -> list[str]:
    """Return the names of the runs' folders, or their paths where names are equal.

    Raises:
        DataError: one is given twice.
    """
    if len({run.resolve() for run in run_dirs}) < len(run_dirs):
        raise DataError("the same run is given twice; name different runs")
    names = [as_text(run.resolve().name) for run in run_dirs]
    return names if len(set(names)) == len(names) else [as_text(run) for run in run_dirs]


def _has_outputs(task: Task) -> bool:
    return task.command in ("translate", "classify")


def _common_tests(runs: Mapping[str, Run]) -> tuple[list[str], list[str]]:
    """Return the test sets that all runs have translated or scored, and those that only some have."""
    translated: dict[str, set[str]] = {}
    for name, run in runs.items():
        task = task_of(run.recipe().data)
        if not _has_outputs(task):
            # Without scores, settings and cost can still be compared.
            translated[name] = set(read_scores(run.scores)) if run.scores.is_file() else set()
            continue
        translated[name] = {test for test in run.test_sets() if run.translation(test).is_file()}
        if run.test_sets() and not translated[name]:
            run.read_translated(run.test_sets()[0])  # raises DataError, which says how to make it
    common = sorted(set.intersection(*translated.values()))
    if not common and all(translated.values()):
        found = "; ".join(f"{name} has {', '.join(sorted(tests))}" for name, tests in translated.items())
        raise DataError(f"the runs have no test set in common: {found}")
    return common, sorted(set.union(*translated.values()) - set(common))


def _same_test_set(runs: Mapping[str, Run], test: str) -> tuple[list[str], list[str]]:
    """Return sources and references of a test set; raise DataError unless they are the same in all runs."""
    (first, expected), *others = ((name, run.test_text(test).read()) for name, run in runs.items())
    for name, found in others:
        for what, one, two in zip(("source", "reference"), expected, found, strict=True):
            if one != two:
                differing = [number for number, (a, b) in enumerate(zip(one, two, strict=False), start=1) if a != b]
                place = f"line {differing[0]}" if len(one) == len(two) else "their number of lines"
                raise DataError(
                    f"{first} and {name} cannot be compared: the {what} of {test} differs ({place}); prepare both "
                    "from the same test set"
                )
    return expected


def _stored_scores(runs: Mapping[str, Run], tests: Sequence[str]) -> dict[str, dict[str, dict[str, PairedResult]]]:
    """Return the scores of scores.json that all runs have, by test set, metric and run.

    Where the vocabularies differ, scores per token are left out, and all of a text with characters unknown to a model.
    """
    for run in runs.values():
        run.warn_of_older_scores()
    if len({model_text(run.recipe().data) for run in runs.values()}) > 1:
        log.warning("the runs change their text differently (data.normalize), so their scores are of different texts")
    found: dict[str, dict[str, dict[str, PairedResult]]] = {}
    per_token = ("nll", "perplexity") if len({run.tokenizer().fingerprint() for run in runs.values()}) > 1 else ()
    for test in tests:
        stored = {name: read_scores(run.scores)[test] for name, run in runs.items()}
        first, *others = stored.values()
        found[test] = {}
        unknown = [name for name, scores in stored.items() if "|unknown:" in str(scores)]
        if unknown and per_token:
            reason = "has <unk> for characters of it, and the vocabularies differ"
            log.warning("the scores of %s cannot be compared: %s %s", test, unknown[0], reason)
            continue
        for metric in (metric for metric in first if all(metric in one for one in others) and metric not in per_token):
            baseline = first[metric]["score"]
            found[test][metric] = {
                name: PairedResult(one["score"], one["score"] - baseline, None, None, one.get("signature", ""))
                for name, one in ((name, scores[metric]) for name, scores in stored.items())
            }
    return found


def _changes(
    scorer: Scorer,
    metrics: Sequence[str] | None,
    systems: Mapping[str, list[str]],
    sources: Sequence[str],
    references: Sequence[str],
    num_sentences: int,
) -> dict[str, list[Change]]:
    """Return for each run but the first the sentences that changed most, in either direction."""
    lines, *others = systems.values()
    metric, before = scorer.sentence_quality(lines, metrics)
    found = {}
    for name, translations in zip(list(systems)[1:], others, strict=True):
        _, after = scorer.sentence_quality(translations, metrics)
        columns = zip(sources, references, lines, translations, before, after, strict=True)
        changes = [
            Change(number, source, reference, baseline_line, translation, metric, was, now)
            for number, (source, reference, baseline_line, translation, was, now) in enumerate(columns, start=1)
            if was != now
        ]
        found[name] = sorted(changes, key=lambda change: (-abs(change.after - change.before), change.line))
    return {name: changes[:num_sentences] for name, changes in found.items()}


def _cost(run: Run) -> dict[str, Any] | None:
    try:
        return training_cost(run.folder)
    except ModelError:  # no training states, as in a published run that has only cost.json
        return read_cost(run.cost) if run.cost.is_file() else None


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return a comparison as tables: settings, scores, cost, and for each test set and run the sentences."""
    rows = [[key, *map(_setting, values)] for key, values in comparison.settings.items()]
    notes = [] if rows else ["None: same recipe, same training text."]
    tables = [Table("Settings that differ", ["setting", *comparison.runs], rows, notes)]
    tables += [_scores_table(comparison), _costs_table(comparison)]
    baseline = comparison.runs[0]
    for test, of_runs in comparison.changes.items():
        for name, changes in of_runs.items():
            rows = []
            for change in changes:
                rows += [
                    [f"line {change.line}", f"{change.metric} {change.before:.4g} -> {change.after:.4g}"],
                    ["source", change.source],
                    ["reference", change.reference],
                    [baseline, change.baseline],
                    [name, change.translation],
                    ["", ""],
                ]
            notes = [] if changes else ["None: all sentences score the same."]
            title = f"Sentences of {test} that changed most from {baseline} to {name}"
            tables.append(Table(title, ["", ""], rows[:-1], notes))  # without the blank row behind the last sentence
    return tables


def _setting(value: Any) -> str:
    return "-" if value is None else ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)


def _scores_table(comparison: Comparison) -> Table:
    rows, signatures, is_tested = [], [], False
    for test, metrics in comparison.scores.items():
        for metric, results in metrics.items():
            for name, result in results.items():
                interval = "" if result.interval is None else f"± {result.interval.half_width:.2f}"
                sign = "-" if result.difference < 0 else "+"
                against = ["" if name == comparison.runs[0] else sign + shown_score(metric, abs(result.difference)), ""]
                if result.p_value is not None:
                    is_tested = True
                    against[1] = f"{result.p_value:.4f}{'*' if result.is_significant else ''}"
                rows.append([test, metric, name, shown_score(metric, result.score), interval, *against])
                signatures.append((metric, result.signature))
    about = "* marks those with p < 0.05" if is_tested else "no test, as the scores are those of scores.json"
    notes = [f"Differences are from {comparison.runs[0]}; {about}."]
    if not rows:
        notes = ["None that all runs have; `nmtkit run` and `nmtkit score RUN` make them."]
    notes += [f"  {metric}  {signature}" for metric, signature in dict.fromkeys(signatures)]
    if comparison.left_out:
        notes.append(f"Not in all runs, and left out: {', '.join(comparison.left_out)}.")
    return Table("Scores", ["test", "metric", "run", "score", "95 %", "difference", "p"], rows, notes)


def _costs_table(comparison: Comparison) -> Table:
    def share(cost: Mapping[str, Any], key: str) -> str:
        return "" if cost.get(key) is None else f"{100 * cost[key]:.1f} %"

    units = [cost["unit"] for cost in comparison.costs if cost and cost.get("unit")]
    lines = {
        "updates": lambda cost: f"{cost['updates']:,}",
        units[0] if units else TARGET_TOKENS: lambda cost: f"{cost['target_tokens']:,}",
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
        [what, *("not known" if cost is None else show(cost) for cost in comparison.costs)]
        for what, show in lines.items()
    ]
    return Table("Training cost", ["what", *comparison.runs], rows, [])
