"""The report of one or more runs as one HTML page, written by `nmtkit report`.

RunFacts --> tables of HTML cells --report.html.jinja--> the page, with curves (curves.py) and attention

The template lays out the sections; here is what it shows. Text of corpora and users becomes HTML by `text` alone.
"""

import contextlib
import json
import shlex
import tomllib
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Undefined
from markupsafe import Markup

from nmtkit.config.recipe import to_toml
from nmtkit.config.schema import SECTIONS
from nmtkit.console import log
from nmtkit.data.cleaning import MEANINGS
from nmtkit.errors import DataError, NmtkitError
from nmtkit.evaluation.cost_tables import cost_tables
from nmtkit.evaluation.metric_names import METRICS, ON_REQUEST, TASK_METRICS, comparable_to
from nmtkit.files import sha256_of
from nmtkit.page import BARS_STYLE, HUES, asset, json_script, live_page, plain, switches, table, text
from nmtkit.reports import attention_maps
from nmtkit.reports.curves import averages, figures, is_number, predicted_returns, reports_shown, spacing_of_reports
from nmtkit.reports.played import lengths_of
from nmtkit.reports.run_facts import FORMS, RunFacts, example_pair, form_of_score, num_parameters, translated
from nmtkit.run import Run
from nmtkit.text.scripts import is_unspaced_text

NUM_SENTENCES = 5
"""Best sentences of each test set, and worst ones, which are none where they equal the reference."""
NOTHING = '<span class="missing">–</span>'


def report_page(runs: Sequence[RunFacts], *, with_attention: bool = True) -> str:
    """Return the whole page.

    Args:
        with_attention: load the models and show their attention.
    """
    drawn, averaged, returns = figures(runs), averages(runs), predicted_returns(runs)
    names = [run.name for run in runs]
    ranked = [_ranked(run, name) for run in runs for name in Run(run.folder).test_sets()]
    own_metrics = {run.task.own_metric for run in runs}
    body = _TEMPLATE.render(
        runs=runs,
        names=names,
        with_attention=with_attention,
        with_text=[run for run in runs if run.task.command == "translate"],
        outputs=" and ".join(sorted({f"{run.task.noun}s" for run in runs})),
        test_sets=_test_sets(runs),
        played=[run for run in runs if "play.json" in run.files],
        ranked=ranked,
        ranked_by=" and ".join(sorted("chrF2" if own is None else TASK_METRICS[own].title for own in own_metrics)),
        figures=drawn["figures"],
        curve_switches=Markup(_curve_switches(names, drawn["over"])),
        averages=averaged,
        returns=returns,
        data=_data([run for run in runs if "data/manifest.json" in run.files]),
        cost=_cost([run for run in runs if "cost.json" in run.files]),
        settings=_settings(runs),
        states=list(dict.fromkeys(run.state for run in runs if run.state)),
        reproduction=_reproduction(runs),
        cards=[str(Run(run.folder).card) for run in runs],
    )
    data = json_script("curves", {**drawn, "averages": averaged, "returns": returns, "colours": len(HUES)})
    colours = "".join(f".run-{index} {{ --run: {colour}; }}" for index, colour in enumerate(HUES))
    style = asset("nmtkit.reports", "report.css") + BARS_STYLE + colours + attention_maps.STYLE
    scripts = [asset("nmtkit.reports", "report.js"), *([attention_maps.SCRIPT] if with_attention else [])]
    return live_page(f"nmtkit: {', '.join(names)}", [body, data], style=style, scripts=scripts)


def _cell(value: Any, form: str = "text") -> str:
    """Return a value in one of FORMS as HTML, or a sign that it is missing or empty."""
    if value is None or isinstance(value, Undefined):
        return NOTHING
    content = FORMS[form](value)
    return text(content) if content.strip() else '<span class="missing">(empty)</span>'


def _name(runs: Sequence[RunFacts], run: RunFacts) -> str:
    return f'<span class="run run-{runs.index(run) % len(HUES)}">{text(run.name)}</span>'


def _code(content: str) -> str:
    return f"<code>{text(content)}</code>"


def _headline(run: RunFacts) -> list[tuple[str, str]]:
    """Return label and value of the most important numbers."""
    cells = []
    known = [*METRICS, *(score for own in TASK_METRICS.values() for score in own.tested), *ON_REQUEST, "success-rate"]
    for name, metrics in run.files.get("scores.json", {}).items():
        metric = next((metric for metric in known if metric in metrics), None)
        if metric is not None:
            cells.append((f"{metric}, {name}", FORMS["two"](metrics[metric]["score"])))
    # A run may be saved before its first report.
    last = run.metrics[-1] if run.metrics else run.get(run.state, default={})
    for label, key, form in (
        ("updates", "step", "count"),
        (run.task.unit, "target_tokens", "amount"),
        ("training time", "seconds", "duration"),
        ("FLOPs", "flops", "flops"),
    ):
        if last.get(key) is not None:
            cells.append((label, FORMS[form](last[key])))
    if finite := [line["valid_nll"] for line in run.validations.values() if is_number(line["valid_nll"])]:
        cells.append((f"best validation {run.task.nll}", FORMS["four"](min(finite))))
    return cells


def _test_sets(runs: Sequence[RunFacts]) -> list[dict[str, Any]]:
    """Return the scores of each test set: a row per metric, a column per run; and the signatures."""
    found = []
    scored = [run for run in runs if "scores.json" in run.files]
    for name in dict.fromkeys(name for run in scored for name in run.files["scores.json"]):
        of_runs = [run.files["scores.json"].get(name, {}) for run in scored]
        scores, signatures, signatures_differ = [], [], False
        for metric in dict.fromkeys(metric for metrics in of_runs for metric in metrics):
            form, cells, details = form_of_score(metric), [], []
            for run, entry in zip(scored, [metrics.get(metric, {}) for metrics in of_runs], strict=True):
                half = (entry.get("interval") or {}).get("half_width")
                interval = "" if half is None else f" ± {text(FORMS[form](half))}"
                cells.append(f"<b>{_cell(entry.get('score'), form)}</b>{interval}")
                if "details" in entry:
                    details.append(f"<small>{_name(runs, run)}: {_cell(entry['details'])}</small>")
            scores.append([text(metric), *cells])
            stated = dict.fromkeys(metrics[metric].get("signature") for metrics in of_runs if metric in metrics)
            given = [signature for signature in stated if signature is not None]
            lines = [f"<code>{_cell(signature)}</code>" for signature in given] + details
            with contextlib.suppress(DataError):  # a metric of another version
                lines.append(f"<small>{escape(comparable_to(metric))}</small>")
            signatures.append([text(metric), "<br>".join(lines)])
            signatures_differ |= len(given) > 1
        intervals = [entry["interval"] for metrics in of_runs for entry in metrics.values() if entry.get("interval")]
        resamples = sorted({interval["resamples"] for interval in intervals})
        files = [Run(run.folder).test_text(name) for run, metrics in zip(scored, of_runs, strict=True) if metrics]
        files = [pair for pair in files if pair.source.is_file() and pair.reference.is_file()]
        texts = {(sha256_of(pair.source), sha256_of(pair.reference)) for pair in files}
        found.append({
            "name": name,
            "runs": [run.name for run in scored],
            "scores": scores,
            "signatures": signatures,
            "signatures_differ": signatures_differ,
            "texts_differ": len(texts) > 1,
            "resamples": " or ".join(f"{number:,}" for number in resamples),
        })  # fmt: skip
    return found


def _validations_with_samples(run: RunFacts) -> dict[int, dict[str, Any]]:
    return {number: line for number, line in run.validations.items() if line.get("samples")}


def _validation_switches(run: RunFacts, index: int) -> str:
    labels = [(str(number), f"{line['step']:,}") for number, line in _validations_with_samples(run).items()]
    return switches("radio", f"validation-{index}", "At update", [*labels, ("all", "all")], [labels[-1][0]])


def _curve_switches(names: Sequence[str], over: dict[str, str]) -> str:
    controls = switches("radio", "over", "Over", list(over.items()), ["updates"])
    controls += switches("checkbox", "log", "Scale", [("log", "logarithmic")], [])
    if len(names) > 1:
        choices = [(str(number), name) for number, name in enumerate(names)]
        controls += switches("checkbox", "runs", "Runs", choices, [value for value, _ in choices])
    return controls


def _ranked(run: RunFacts, name: str) -> dict[str, Any]:
    found = translated(run, name)
    if isinstance(found, str):
        return {"run": run, "name": name, "missing": found, "sentences": {}}
    best = sorted(found, key=lambda sentence: (-sentence.quality, sentence.line))
    worst = [sentence for sentence in found[:NUM_SENTENCES] if sentence.hypothesis != sentence.reference]
    sentences = {"Worst": worst, "Best": best[:NUM_SENTENCES]}
    return {"run": run, "name": name, "missing": "", "sentences": sentences}


def _metrics_table(run: RunFacts) -> str:
    columns = {
        "step": ("update", "count"),
        "epoch": ("epoch", "count"),
        "seconds": ("time", "duration"),
        "target_tokens": (run.task.unit, "count"),
        "loss": ("loss", "four"),
        "nll": (run.task.nll, "four"),
        "valid_nll": (f"validation {run.task.nll}", "four"),
        "valid_bleu": ("BLEU", "two"),
        "learning_rate": ("learning rate", "short"),
        "gradient_norm": ("gradient norm", "short"),
        "target_tokens_per_second": (f"{run.task.unit}/s", "short"),
        "memory_bytes": ("memory", "bytes"),
        "padding": ("padding", "percent"),
        "mfu": ("MFU", "percent"),
    }
    lines = reports_shown(run)
    if all(line.get("valid_bleu") is None for line in lines):
        del columns["valid_bleu"]
    # Plain numbers need no isolation from their neighbours, which would make a long table twice as large.
    rows = [
        [NOTHING if line.get(key) is None else FORMS[form](line[key]) for key, (_, form) in columns.items()]
        for line in lines
    ]
    return table([title for title, _ in columns.values()], rows, numbers_from=0)


def _averages_table(run: RunFacts) -> str:
    """Return what was tried when the checkpoints to average were searched (`average --search`)."""
    columns = {
        "n": ("checkpoints", "count"),
        "metric": ("metric", "text"),
        "score": ("score", "two"),
        "nll": ("nll", "four"),
        "first_step": ("from update", "count"),
        "last_step": ("to update", "count"),
    }
    tried, best = run.files["averaging.json"]["tried"], run.files["averaging.json"]["best"]
    rows = [
        [*(_cell(one.get(key), form) for key, (_, form) in columns.items()), "best" if one == best else ""]
        for one in tried
    ]
    return table([*(title for title, _ in columns.values()), ""], rows)


def _attention(run: RunFacts, index: int) -> dict[str, Any]:
    from nmtkit.decoding.request import TranslationRequest
    from nmtkit.decoding.translator import Translator
    from nmtkit.model_folder import load_model

    pair = example_pair(run)
    if run.model is None or pair is None:
        return {"missing": "there is no model yet" if run.model is None else "there is no sentence to show"}
    try:
        loaded = load_model(run.folder / run.model)
        if len(loaded.tokenizer.target_languages) == 1:
            pair = (*pair[:2], None, pair[3])
        target = pair[1]
        if loaded.tokenizer.segment_mark:  # the pieces cannot be told from the words that they are joined to
            translator = Translator([loaded.model], loaded.tokenizer.in_direction(*pair[2:]), loaded.decoding)
            [[best]] = translator.translations([pair[0]], TranslationRequest(split="never"))
            if best.text.strip():
                pair, target = (pair[0], best.text, *pair[2:]), loaded.tokenizer.as_divided(best.text, best.pieces)
        maps = attention_maps.attention_maps(loaded, pair[0], target, *pair[2:])
    except NmtkitError as error:
        log.warning("%s: no attention in the report: %s", run.name, error)
        return {"missing": str(error)}
    has_words = not any(map(is_unspaced_text, pair[:2]))  # else a sentence or clause would be one word
    codes = "".join(f" --{option} {code}" for option, code in zip(("to", "from"), pair[2:], strict=True) if code)
    return {
        "source": pair[0],
        "target": pair[1],
        "picture": Markup(attention_maps.section(f"attention-{index}", maps, words=has_words)),
        "command": f"{run.command('attention')} --source {shlex.quote(pair[0])}{codes} --output attention.html",
    }


def _data(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """Return pairs, tokens, and what was left out by which rule."""
    manifests = [run.files["data/manifest.json"] for run in runs]

    def row(label: str, *keys: str, file: str = "data/manifest.json") -> list[str]:
        return [label, *(_cell(run.get(file, *keys), "count") for run in runs)]

    nouns = " or ".join(dict.fromkeys(f"{run.task.example}s" for run in runs))
    sizes = [row(f"training {nouns} read", "pairs", "read", file="data/report.json")]
    sets = dict.fromkeys(name for manifest in manifests for name in manifest["pairs"])
    sizes += [row(f"{nouns} kept: {text(name)}", "pairs", name) for name in sets]
    sizes += [row(f"training tokens, {side}", "train_tokens", side) for side in ("source", "target")]
    sides = dict.fromkeys(side for manifest in manifests for side in manifest.get("vocab_sizes") or ())
    sizes += [row(f"vocabulary, {text(side)}", "vocab_sizes", side) for side in sides]
    counts = [{key: manifest.get(key, {}) for key in ("rules", "cleaning")} for manifest in manifests]
    matched = {rule for of_run in counts for found in of_run.values() for rule, count in found.items() if count}
    rules = []
    for rule in [rule for rule in MEANINGS if rule in matched] + sorted(matched - set(MEANINGS)):
        cells = []
        for of_run in counts:
            found = [(of_run["rules"].get(rule), "found"), (of_run["cleaning"].get(rule), "left out")]
            cells.append(", ".join(f"{count:,} {done}" for count, done in found if count is not None) or NOTHING)
        rules.append([_code(rule), escape(MEANINGS.get(rule, "")), *cells])
    known = [cells for cells in sizes if any(cell != NOTHING for cell in cells[1:])]
    return {"runs": [run.name for run in runs], "nouns": nouns, "sizes": known, "rules": rules}


def _corpora(run: RunFacts) -> list[list[str]]:
    rows = []
    for corpus in run.files["data/manifest.json"]["corpora"]:
        forms = {"name": "text", "role": "text", "pairs": "count", "sha256": "checksum"}
        urls = [text(file["url"]) for file in corpus["files"] if file.get("url")]
        rows.append([*(_cell(corpus[key], form) for key, form in forms.items()), "<br>".join(urls) or NOTHING])
    return rows


def _cost(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """Return a summary of the cost of all runs, and the tables of each."""
    tables = [cost_tables(run.files["cost.json"], run.files.get("scores.json", {})) for run in runs]
    values = [dict(made[0].rows) for made in tables]
    numbers = [num_parameters(run) for run in runs]
    summary = [["parameters", *(NOTHING if number is None else f"{number:,}" for number in numbers)]]
    for label in dict.fromkeys(label for of_run in values for label in of_run):
        is_known = any(of_run.get(label, "not measured") != "not measured" for of_run in values)
        if is_known and (not label.startswith(" ") or "padding" in label):  # no part of another number but padding
            summary.append([text(label.strip()), *(text(of_run.get(label, "–")) for of_run in values)])
    return {"runs": [run.name for run in runs], "summary": summary, "tables": list(zip(runs, tables, strict=True))}


def _settings(runs: Sequence[RunFacts]) -> dict[str, list[list[str]]]:
    """Return rows of all settings in the order of the recipes, and of those that differ."""
    recipes = [tomllib.loads(to_toml(run.recipe)) for run in runs]
    found: dict[str, list[list[str]]] = {"all": [], "different": []}
    for section in SECTIONS:
        for key in dict.fromkeys(key for recipe in recipes for key in recipe.get(section, {})):
            values = [recipe.get(section, {}).get(key) for recipe in recipes]
            row = [_code(f"{section}.{key}"), *map(_cell, values)]
            found["all"].append(row)
            # As JSON, since True == 1 == 1.0 in Python.
            if any(json.dumps(value, sort_keys=True) != json.dumps(values[0], sort_keys=True) for value in values):
                found["different"].append(row)
    return found


def _reproduction(runs: Sequence[RunFacts]) -> list[list[str]]:
    rows = [["seed", *(_cell(run.recipe.training.seed) for run in runs)]]
    for label, key in (
        ("fingerprint of settings and corpora", "fingerprint"),
        ("sha256 of the tokenizer", "tokenizer_sha256"),
    ):
        rows.append([label, *(_cell(run.get("data/manifest.json", key), "checksum") for run in runs)])
    packages = dict.fromkeys(package for run in runs for package in run.get(run.state, "versions", default={}))
    for name in packages:
        rows.append([text(name), *(_cell(run.get(run.state, "versions", name)) for run in runs)])
    for label, key in (
        ("device", "device"),
        ("threads per process", "threads"),
        ("kind of processor", "cpu_capability"),
    ):
        rows.append([label, *(_cell(run.get(run.state, key)) for run in runs)])
    return rows


def _template() -> Any:
    """Load the template with the functions that it calls; what they return is HTML already."""

    def html(function: Callable[..., str]) -> Callable[..., Markup]:
        return lambda *args, **options: Markup(function(*args, **options))

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"text": html(text), "plain": html(plain), "cell": html(_cell), "as_json": html(_as_json)}
    environment.globals |= {
        "name": html(_name),
        "table": html(table),
        "text_table": html(_text_table),
        "validation_switches": html(_validation_switches),
        "metrics_table": html(_metrics_table),
        "averages_table": html(_averages_table),
        "headline": _headline,
        "validations_with_samples": _validations_with_samples,
        "spacing_of_reports": spacing_of_reports,
        "attention": _attention,
        "corpora": _corpora,
        "lengths_of": html(lengths_of),
        "how_to_read": attention_maps.HOW_TO_READ,
    }
    return environment.get_template("report.html.jinja")


def _text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(columns, [[text(cell) for cell in row] for row in rows])


def _as_json(value: Any) -> str:
    return "\n".join(map(plain, json.dumps(value, indent=2).split("\n")))


_TEMPLATE = _template()
