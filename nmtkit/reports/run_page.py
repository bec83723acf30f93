"""The report of one or more runs as one HTML page, written by `nmtkit report`.

RunFacts (report.py) -> sections, as HTML -> the page, with the curves (curves.py) and attention (attention_plot.py)

Each section names the files of the run that it shows; text of corpora and users stays text.
"""

import contextlib
import json
import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from nmtkit.console import log
from nmtkit.data.cleaning import MEANINGS
from nmtkit.errors import DataError, NmtkitError
from nmtkit.evaluation.cost_tables import cost_tables
from nmtkit.evaluation.metrics import METRICS, TASK_METRICS, comparable_to, single_scores
from nmtkit.page import HUES, json_script, live_page, plain, script, switches, table, text
from nmtkit.reports import attention_page as attention_plot
from nmtkit.reports.curves import CURVES, OVER, averages, figures, is_number, reports_shown, spacing_of_reports
from nmtkit.reports.curves import STYLE as CURVE_STYLE
from nmtkit.reports.run_facts import (
    RunFacts,
    TranslatedLine,
    differs,
    example_pair,
    form_of_score,
    num_parameters,
    own_metric,
    prepare_command,
    setting_rows,
    train_command,
    translated,
)
from nmtkit.run import Run

NUM_SENTENCES = 5
"""Of the best, and of the worst."""
NOTHING = '<span class="missing">–</span>'

_STYLE = """
.run { display: inline-flex; align-items: baseline; }
.run::before { flex: none; content: ""; display: inline-block; width: .8em; height: .8em; border-radius: 50%;
  margin-right: .35em; background: var(--run); }
.missing, .todo { color: var(--faint); }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.curves figure { margin: 0; min-width: 0; } .curves h3 { font-size: 1rem; margin: 0; }
.sentence { border-left: 3px solid var(--line); padding: .1rem 0 .1rem .8rem; margin: .75rem 0; }
.sentence dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem .8rem; margin: 0; }
.sentence dt { color: var(--faint); } .sentence dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 30rem) { .sentence dl { grid-template-columns: minmax(0, 1fr); }
  .sentence dd { margin-bottom: .3rem; } }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
"""


def report_page(runs: Sequence[RunFacts], *, with_attention: bool = True) -> str:
    """The whole page.

    Args:
        with_attention: whether models are loaded and their attention shown.
    """
    drawn, averaged = figures(runs), averages(runs)
    names = ", ".join(run.name for run in runs)
    body = [
        f"<h1>{'Report' if len(runs) == 1 else 'Runs compared'}: {', '.join(_name(runs, run) for run in runs)}</h1>",
        _headline(runs),
        *_scores(runs),
        *_samples(runs),
        *_best_and_worst(runs),
        *_curves(runs, drawn["figures"]),
        *_averaging(runs, averaged),
        *(_attention(runs) if with_attention else []),
        *_data(runs),
        *_cost(runs),
        *_settings(runs),
        *_origin(runs),
        json_script("curves", {**drawn, "averages": averaged, "colours": len(HUES)}),
    ]  # fmt: skip
    colours = "".join(f".run-{index} {{ --run: {colour}; }}" for index, colour in enumerate(HUES))
    style = _STYLE + colours + CURVE_STYLE + attention_plot.STYLE
    scripts = [script("nmtkit.reports", "report.js"), *([attention_plot.SCRIPT] if with_attention else [])]
    return live_page(f"nmtkit: {names}", body, style=style, scripts=scripts)


def _name(runs: Sequence[RunFacts], run: RunFacts) -> str:
    return f'<span class="run run-{runs.index(run) % len(HUES)}">{text(run.name)}</span>'


def _heading(title: str, *files: str) -> str:
    """Return the heading of a section and the files of each run that it is made from."""
    names = ", ".join(f"<code>{file}</code>" for file in files)
    return f"<h2>{title}</h2><small>From {names}</small>"


def _text(content: str | None) -> str:
    """Text, or a sign that it is empty or missing."""
    if content is None:
        return NOTHING
    return text(content) if content.strip() else '<span class="missing">(empty)</span>'


def _todo(missing: str, command: str) -> str:
    return f'<span class="todo">{escape(missing)}: <code>{text(command)}</code></span>'


def _command(name: str, run: RunFacts) -> str:
    return f"nmtkit {name} {shlex.quote(str(run.folder))}"


def _headline(runs: Sequence[RunFacts]) -> str:
    """For each run the few numbers that everybody asks for first."""
    parts = []
    for run in runs:
        cells: list[tuple[str, str | None]] = []
        main_metrics = (*METRICS, *single_scores(list(TASK_METRICS)))
        for name, metrics in run.files.get("scores.json", {}).items():
            metric = next((metric for metric in main_metrics if metric in metrics), None)
            if metric is not None:
                cells.append((f"{metric}, {name}", run.shown("two", "scores.json", name, metric, "score")))
        # A run may be saved before its first report.
        place = ("metrics.jsonl", -1) if run.metrics else (run.state,)
        cells += [
            ("updates", run.shown("count", *place, "step")),
            ("target tokens", run.shown("amount", *place, "target_tokens")),
            ("training time", run.shown("duration", *place, "seconds")),
            ("FLOPs", run.shown("flops", *place, "flops")),
        ]
        finite = [number for number in run.validations if is_number(run.metrics[number - 1]["valid_nll"])]
        if finite:
            best = min(finite, key=lambda number: run.metrics[number - 1]["valid_nll"])
            cells.append(("best validation nll", run.shown("four", "metrics.jsonl", best - 1, "valid_nll")))
        found = "".join(f"<div><b>{_text(value)}</b>{text(label)}</div>" for label, value in cells if value is not None)
        if len(runs) > 1:
            parts.append(f"<h3>{_name(runs, run)}</h3>")
        parts.append(f'<div class="numbers">{found}</div>' if found else f"<p>{_not_trained(run)}</p>")
    return "\n".join(parts)


def _not_trained(run: RunFacts) -> str:
    every = run.get("recipe.toml", "training", "report_every_steps", default="few")
    return _todo(f"no update is reported yet (one report every {every} updates)", train_command(run))


def _scores(runs: Sequence[RunFacts]) -> list[str]:
    """One table a test set: a row for each metric, a column for each run; signatures below."""
    parts = [_heading("Scores", "scores.json")]
    for run in runs:
        if "scores.json" not in run.files:
            parts.append(f"<p>{_name(runs, run)}: {_todo('not scored yet', _command('score', run))}</p>")
    scored = [run for run in runs if "scores.json" in run.files]
    for name in dict.fromkeys(name for run in scored for name in run.files["scores.json"]):
        metrics = dict.fromkeys(metric for run in scored for metric in run.files["scores.json"].get(name, {}))
        rows = [[text(metric), *(_score(run, name, metric) for run in scored)] for metric in metrics]
        parts += [
            f"<h3>{text(name)}</h3>",
            table(["metric", *(run.name for run in scored)], rows),
            *_meaning(scored, name),
        ]
        rows = [[text(metric), _signatures(scored, name, metric)] for metric in metrics]
        parts.append(
            "<details><summary>Signatures, and which scores each one can be compared with</summary>"
            f"{table(['metric', 'signature'], rows)}</details>"
        )
        if any(len(_given_signatures(scored, name, metric)) > 1 for metric in metrics):
            parts.append("<p><b>Signatures of these runs differ: not all of their scores are comparable.</b></p>")
    return parts


def _score(run: RunFacts, name: str, metric: str) -> str:
    form = form_of_score(metric)
    half = run.shown(form, "scores.json", name, metric, "interval", "half_width")
    interval = "" if half is None else f" ± {text(half)}"
    return f"<b>{_text(run.shown(form, 'scores.json', name, metric, 'score'))}</b>{interval}"


def _meaning(runs: Sequence[RunFacts], name: str) -> list[str]:
    """The meaning of the intervals of a test set, where it has some."""
    entries = [entry for run in runs for entry in run.files["scores.json"].get(name, {}).values()]
    given = {entry["interval"]["resamples"] for entry in entries if entry.get("interval")}
    resamples = " or ".join(f"{number:,}" for number in sorted(given))
    return [f"<p>± is half of the 95 % interval, by {resamples} bootstrap resamples of the lines.</p>"] if given else []


def _signatures(runs: Sequence[RunFacts], name: str, metric: str) -> str:
    lines = [f"<code>{_text(signature)}</code>" for signature in _given_signatures(runs, name, metric)]
    for run in runs:
        details = run.shown("text", "scores.json", name, metric, "details")
        if details is not None:
            lines.append(f"<small>{_name(runs, run)}: {_text(details)}</small>")
    with contextlib.suppress(DataError):  # of a name that another version gave
        lines.append(f"<small>{escape(comparable_to(metric))}</small>")
    return "<br>".join(lines)


def _given_signatures(runs: Sequence[RunFacts], name: str, metric: str) -> list[str]:
    """The different signatures under which the runs have a score."""
    signatures = (run.shown("text", "scores.json", name, metric, "signature") for run in runs)
    return list(dict.fromkeys(signature for signature in signatures if signature is not None))


def _curves(runs: Sequence[RunFacts], pictures: dict[str, Any]) -> list[str]:
    parts = [_heading("Curves", "metrics.jsonl")]
    if not pictures:
        return [*parts, f"<p>{' '.join(_not_trained(run) for run in runs)}</p>"]
    controls = [
        switches("radio", "over", "Over", [(name, title) for name, (title, _, _) in OVER.items()], ["updates"]),
        switches("checkbox", "log", "Scale", [("log", "logarithmic")], []),
    ]
    if len(runs) > 1:
        choices = [(str(number), run.name) for number, run in enumerate(runs)]
        controls.append(switches("checkbox", "runs", "Runs", choices, [value for value, _ in choices]))
    parts.append(f'<div class="controls">{"".join(controls)}</div><div class="curves">')
    for name in pictures:
        title = CURVES[name].title
        parts.append(
            f'<figure><h3>{title}</h3><div class="curve" id="curve-{name}" role="img" '
            f'aria-label="{title}; the table below has the numbers"></div></figure>'
        )
    parts.append("</div>")
    parts += [_metrics_table(runs, run) for run in runs if run.metrics]
    return parts


def _metrics_table(runs: Sequence[RunFacts], run: RunFacts) -> str:
    """The numbers of the curves, a line per report."""
    columns = {
        "step": ("update", "count"),
        "epoch": ("epoch", "count"),
        "seconds": ("time", "duration"),
        "target_tokens": ("target tokens", "count"),
        "loss": ("loss", "four"),
        "nll": ("nll", "four"),
        "valid_nll": ("validation nll", "four"),
        "valid_bleu": ("BLEU", "two"),
        "learning_rate": ("learning rate", "six"),
        "gradient_norm": ("gradient norm", "six"),
        "target_tokens_per_second": ("tokens/s", "six"),
        "memory_bytes": ("memory", "bytes"),
        "padding": ("padding", "percent"),
        "mfu": ("MFU", "percent"),
    }
    rows = [
        [run.shown(form, "metrics.jsonl", number - 1, key) or NOTHING for key, (_, form) in columns.items()]
        for number in reports_shown(run)
    ]
    every = spacing_of_reports(run)
    left_out = "" if every == 1 else f", one report in {every} and all validations, as in the curves"
    summary = f"The same in numbers: {_name(runs, run)}{left_out}"
    return (
        f"<details><summary>{summary}</summary>"
        f"{table([title for title, _ in columns.values()], rows, numbers_from=0)}</details>"
    )


AVERAGING_COLUMNS = {
    "n": ("checkpoints", "count"),
    "metric": ("metric", "text"),
    "score": ("score", "two"),
    "nll": ("nll", "four"),
    "first_step": ("from update", "count"),
    "last_step": ("to update", "count"),
}
"""Of what averaging.json says of each average that was tried."""


def _averaging(runs: Sequence[RunFacts], figures: dict[str, Any]) -> list[str]:
    """What was tried when the checkpoints to average were searched (`average --search`)."""
    searched = [run for run in runs if run.get("averaging.json", "tried")]
    if not searched:
        return []
    parts = [
        _heading("Averages of checkpoints", "averaging.json"),
        "<p>Scores on the validation set by number of checkpoints, counted back from the last one.</p>",
        *(
            f'<figure><h3>{text(metric)}</h3><div class="curve" id="{plain(f"curve-averages-{metric}")}" role="img" '
            'aria-label="Score of each average; the table below has the numbers"></div></figure>'
            for metric in figures
        ),
    ]
    for run in searched:
        tried, best = run.get("averaging.json", "tried"), run.get("averaging.json", "best")
        rows = []
        for index, one in enumerate(tried):
            cells = (
                run.shown(form, "averaging.json", "tried", index, key) for key, (_, form) in AVERAGING_COLUMNS.items()
            )
            rows.append([*map(_text, cells), "best" if one == best else ""])
        columns = [*(title for title, _ in AVERAGING_COLUMNS.values()), ""]
        parts.append(f"<details><summary>As numbers: {_name(runs, run)}</summary>{table(columns, rows)}</details>")
    return parts


def _settings(runs: Sequence[RunFacts]) -> list[str]:
    parts = [_heading("Settings", "recipe.toml")]
    rows = setting_rows(runs)

    def drawn(chosen: list[tuple[str, str, list[Any]]]) -> str:
        cells = [
            [
                f"<code>{text(f'{section}.{key}')}</code>",
                *(_text(run.shown("text", "recipe.toml", section, key)) for run in runs),
            ]
            for section, key, _ in chosen
        ]
        return table(["setting", *(run.name for run in runs)], cells)

    if len(runs) > 1:
        different = [row for row in rows if differs(row[2])]
        parts.append("<h3>Settings that differ</h3>" if different else "<p>The runs have the same settings.</p>")
        parts += [drawn(different)] if different else []
    parts.append(f"<details><summary>All {len(rows)} settings</summary>{drawn(rows)}</details>")
    return parts


def _data(runs: Sequence[RunFacts]) -> list[str]:
    """Pairs, tokens, and what was left out and why."""
    manifest = "data/manifest.json"
    parts = [_heading("Data", manifest, "data/report.json")]
    prepared = [run for run in runs if manifest in run.files]
    for run in runs:
        if run not in prepared:
            parts.append(f"<p>{_name(runs, run)}: {_todo('not prepared yet', prepare_command(run))}</p>")
    if not prepared:
        return parts

    def row(label: str, form: str, *keys: str, file: str = manifest) -> list[str]:
        return [label, *(_text(run.shown(form, file, *keys)) for run in prepared)]

    sets = dict.fromkeys(name for run in prepared for name in run.files[manifest]["pairs"])
    sizes = dict.fromkeys(side for run in prepared for side in run.files[manifest]["vocab_sizes"])
    rows = [
        row("training pairs read", "count", "pairs", "read", file="data/report.json"),
        *(row(f"pairs kept: {text(name)}", "count", "pairs", name) for name in sets),
        *(row(f"training tokens, {side}", "count", "train_tokens", side) for side in ("source", "target")),
        *(row(f"vocabulary, {text(side)}", "count", "vocab_sizes", side) for side in sizes),
    ]
    rows = [cells for cells in rows if any(cell != NOTHING for cell in cells[1:])]
    parts.append(table(["", *(run.name for run in prepared)], rows, numbers_from=1))
    rules = {rule for run in prepared for rule, count in run.files[manifest]["cleaning"].items() if count}
    rules |= {rule for run in prepared for rule, count in run.files[manifest].get("rules", {}).items() if count}
    parts.append("<h3>Findings of the cleaning rules</h3>")
    if rules:
        order = [*MEANINGS, *sorted(rules - set(MEANINGS))]
        rows = [
            [f"<code>{text(rule)}</code>", escape(MEANINGS.get(rule, "")), *(_rule(run, rule) for run in prepared)]
            for rule in order
            if rule in rules
        ]
        parts.append(table(["rule", "pairs with", *(run.name for run in prepared)], rows, numbers_from=2))
        parts.append(
            "<p>Pairs that match each rule, and how many were removed. Rules that found nothing are not shown.</p>"
        )
    else:
        parts.append("<p>No rule found anything; no pair was left out.</p>")
    for run in prepared:
        parts.append(_corpora(runs, run))
    return parts


def _rule(run: RunFacts, rule: str) -> str:
    found = run.shown("count", "data/manifest.json", "rules", rule)
    left_out = run.shown("count", "data/manifest.json", "cleaning", rule)
    counts = ((found, "found"), (left_out, "left out"))
    return ", ".join(f"{count} {done}" for count, done in counts if count is not None) or NOTHING


def _corpora(runs: Sequence[RunFacts], run: RunFacts) -> str:
    rows = []
    for index, corpus in enumerate(run.files["data/manifest.json"]["corpora"]):
        keys = ("data/manifest.json", "corpora", index)
        forms = {"name": "text", "role": "text", "pairs": "count", "sha256": "sum"}
        urls = [text(file["url"]) for file in corpus["files"] if file.get("url")]
        cells = [_text(run.shown(form, *keys, key)) for key, form in forms.items()]
        rows.append([*cells, "<br>".join(urls) or NOTHING])
    return (
        f"<details><summary>Corpora: {_name(runs, run)}</summary>"
        f"{table(['corpus', 'used for', 'pairs', 'sha256', 'from'], rows)}</details>"
    )


def _cost(runs: Sequence[RunFacts]) -> list[str]:
    parts = [_heading("Cost", "cost.json")]
    counted = [run for run in runs if "cost.json" in run.files]
    for run in runs:
        if run not in counted:
            parts.append(f"<p>{_name(runs, run)}: {_todo('not computed yet', _command('score', run))}</p>")
    if not counted:
        return parts
    tables = [cost_tables(run.files["cost.json"], run.files.get("scores.json", {})) for run in counted]
    values = [dict(made[0].rows) for made in tables]
    main = [label for label in dict.fromkeys(label for of_run in values for label in of_run) if _is_main(label, values)]
    rows = [[text(label.strip()), *(text(of_run.get(label, "–")) for of_run in values)] for label in main]
    parameters = [num_parameters(run) for run in counted]
    rows.insert(0, ["parameters", *(NOTHING if number is None else f"{number:,}" for number in parameters)])
    parts.append(table(["", *(run.name for run in counted)], rows))
    for run, of_run in zip(counted, tables, strict=True):
        for made in of_run:
            notes = "".join(f"<p>{text(note)}</p>" for note in made.notes)
            title = f"{_name(runs, run)}: {text(made.title)}" if len(runs) > 1 else text(made.title)
            cells = [[text(cell) for cell in row] for row in made.rows]
            parts.append(f"<details><summary>{title}</summary>{table(made.columns, cells)}{notes}</details>")
        content = "\n".join(map(plain, json.dumps(run.files["cost.json"], indent=2).split("\n")))
        parts.append(f"<details><summary>{_name(runs, run)}: cost.json</summary><pre>{content}</pre></details>")
    return parts


def _is_main(label: str, values: Sequence[dict[str, str]]) -> bool:
    """Return whether a row of the training cost belongs to the summary: no part of another but padding, and known."""
    known = any(of_run.get(label, "not measured") != "not measured" for of_run in values)
    return known and (not label.startswith(" ") or "padding" in label)


def _samples(runs: Sequence[RunFacts]) -> list[str]:
    """The same few sentences as each validation translated them."""
    parts = [_heading("Samples", "metrics.jsonl")]
    for run in runs:
        numbers = [number for number in run.validations if run.metrics[number - 1].get("samples")]
        if len(runs) > 1:
            parts.append(f"<h3>{_name(runs, run)}</h3>")
        if not numbers:
            reason = "No validation of this run translated sentences (training.validate_bleu)."
            if not run.validations:
                reason = "This run has had no validation (data.valid, training.validate_every_steps and the like)."
            parts.append(f"<p>{reason}</p>")
            continue
        name = f"validation-{runs.index(run)}"
        labels = [(str(number), f"{run.metrics[number - 1]['step']:,}") for number in numbers]
        parts.append('<div class="samples">')
        choices = switches("radio", name, "At update", [*labels, ("all", "all")], [labels[-1][0]])
        parts.append(f'<div class="controls">{choices}</div>')
        for number in numbers:
            step = run.shown("count", "metrics.jsonl", number - 1, "step")
            bleu = run.shown("two", "metrics.jsonl", number - 1, "valid_bleu")
            hidden = "" if number == numbers[-1] else " hidden"
            parts.append(f'<div data-validation="{number}"{hidden}><p>Update {_text(step)}, BLEU {_text(bleu)}</p>')
            for sample in run.metrics[number - 1]["samples"]:
                names = {"source": "source", "reference": "reference", "translation": "hypothesis"}
                parts.append(_sentence({name: _text(sample.get(key)) for name, key in names.items()}))
            parts.append("</div>")
        parts.append("</div>")
    return parts


def _sentence(fields: dict[str, str]) -> str:
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{content}</dd>" for name, content in fields.items())
    return f'<div class="sentence"><dl>{inner}</dl></div>'


def _best_and_worst(runs: Sequence[RunFacts]) -> list[str]:
    parts = [_heading("Best and worst translations of the test sets", "translations/", "data/test/")]
    own = {own_metric(run) for run in runs}
    by = " and ".join(sorted("chrF2" if name is None else TASK_METRICS[name].title for name in own))
    parts.append(f"<p>Sentences are ranked by {by}.</p>")
    before = len(parts)
    for run in runs:
        for name in Run(run.folder).test_sets():
            found = translated(run, name)
            parts.append(f"<h3>{_name(runs, run)}: {text(name)}</h3>")
            if isinstance(found, str):
                parts.append(f'<p class="todo">{text(found)}</p>')
                continue
            best = sorted(found, key=lambda sentence: (-sentence.quality, sentence.line))[:NUM_SENTENCES]
            parts += _sentences("Worst", found[:NUM_SENTENCES], is_open=True)
            parts += _sentences("Best", best, is_open=False)
    return parts if len(parts) > before else [parts[0], "<p>There is no test set.</p>"]


def _sentences(title: str, sentences: Sequence[TranslatedLine], *, is_open: bool) -> list[str]:
    parts = [f"<details{' open' if is_open else ''}><summary>{title} translations</summary>"]
    for sentence in sentences:
        parts.append(
            _sentence(
                {
                    f"line {sentence.line:,}": f"{sentence.metric} {sentence.quality:.1f}",
                    "source": _text(sentence.source),
                    "reference": _text(sentence.reference),
                    "translation": _text(sentence.hypothesis),
                }
            )
        )
    return [*parts, "</details>"]


def _attention(runs: Sequence[RunFacts]) -> list[str]:
    from nmtkit.model_folder import load_model
    from nmtkit.reports.attention_data import attention_maps

    parts = ["<h2>Attention</h2>"]
    for number, run in enumerate(runs):
        pair = example_pair(run)
        if len(runs) > 1:
            parts.append(f"<h3>{_name(runs, run)}</h3>")
        if run.model is None or pair is None:
            reason = "there is no model yet" if run.model is None else "there is no sentence to show"
            parts.append(f'<p class="todo">{reason}</p>')
            continue
        try:
            maps = attention_maps(load_model(run.folder / run.model), *pair)
        except NmtkitError as error:
            log.warning("%s: no attention in the report: %s", run.name, error)
            parts.append(f'<p class="todo">{text(str(error))}</p>')
            continue
        command = (
            f"nmtkit attention {shlex.quote(str(run.folder))} --source {shlex.quote(pair[0])} --output attention.html"
        )
        parts.append(
            f"<p>{text(pair[0])} → {text(pair[1])}</p><p>Model: <code>{text(run.model)}</code>. "
            f"{attention_plot.HOW_TO_READ}</p>"
        )
        parts.append(attention_plot.section(f"attention-{number}", maps, words=True))
        parts.append(f"<p>For another sentence: <code>{text(command)}</code></p>")
    return parts


def _origin(runs: Sequence[RunFacts]) -> list[str]:
    """The seed, versions and device, and the file with the rest."""
    states = dict.fromkeys(run.state for run in runs if run.state)
    parts = [_heading("Reproduction", "recipe.toml", "data/manifest.json", *states)]
    packages = dict.fromkeys(package for run in runs for package in run.get(run.state, "versions", default={}))
    keys = (
        ("seed", "text", "recipe.toml", "training", "seed"),
        ("fingerprint of settings and corpora", "sum", "data/manifest.json", "fingerprint"),
        ("sha256 of the tokenizer", "sum", "data/manifest.json", "tokenizer_sha256"),
    )
    rows = [[label, *(_text(run.shown(*place)) for run in runs)] for label, *place in keys]
    rows += [
        [text(name), *(_text(run.shown("text", run.state, "versions", name)) for run in runs)] for name in packages
    ]
    for label, key in (
        ("device", "device"),
        ("threads per process", "threads"),
        ("kind of processor", "cpu_capability"),
    ):
        rows.append([label, *(_text(run.shown("text", run.state, key)) for run in runs)])
    parts.append(table(["", *(run.name for run in runs)], rows))
    cards = ", ".join(f"<code>{text(str(run.folder / 'card.md'))}</code>" for run in runs)
    parts.append(f"<p>Recipe, checksums, versions and signatures in full: {cards}.</p>")
    return parts
