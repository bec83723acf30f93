"""RUN/card.md: everything needed to repeat a run, for people; from its files alone."""

import re

from nmtkit.config.schema import languages_of
from nmtkit.console import counted
from nmtkit.evaluation.cost_tables import training_table
from nmtkit.files import read_lines
from nmtkit.reports.run_facts import RunFacts, form_of_score, num_parameters
from nmtkit.run import Run


def card(run: RunFacts) -> str:
    """Return the card, as Markdown; for what the run does not have yet it names the command that makes it."""
    version = run.get(run.state, "versions", "nmtkit") or run.get("data/manifest.json", "versions", "nmtkit")
    data = run.files["recipe.toml"].get("data", {})
    languages = [", ".join(map(_code, side)) for side in languages_of(data)]
    size = f", {num:,} parameters" if (num := num_parameters(run)) else ""
    kind = f"A model of {languages[1]} text"
    if not run.task.has_text:
        kind = "A model of decisions"
    elif run.task.has_labels:
        kind = f"A model that labels texts in {languages[0]}"
    elif run.task.has_source and languages[0] != languages[1]:
        kind = f"A translation model from {' to '.join(languages)}"
    parts = [
        f"# {_plain(run.name)}",
        "",
        f"{kind}{size}" + (f", made by nmtkit {_code(version)}." if version else "."),
        "",
        "## To repeat it",
        "",
        "Save the recipe below as `recipe.toml`; relative paths in it are relative to its folder.",
        "",
        "```",
        "nmtkit run recipe.toml" + (f"      # by nmtkit {version}" if version else ""),
        "```",
        "",
        *_fenced(read_lines(Run(run.folder).recipe_file), "toml"),
        "",
        *_data(run),
        *_training(run),
        *_model(run),
        *_scores(run),
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _data(run: RunFacts) -> list[str]:
    if "data/manifest.json" not in run.files:
        return ["## Data", "", f"Not prepared yet: {_code(run.command('prepare'))}.", ""]
    manifest = run.files["data/manifest.json"]
    rows = [
        [_code(corpus["name"]), corpus["role"], f"{corpus['pairs']:,}", _code(corpus["sha256"])]
        for corpus in manifest["corpora"]
    ]
    parts = ["## Data", "", *_table(["corpus", "used for", "pairs", "sha256 of the text"], rows)]
    files = [file for corpus in manifest["corpora"] for file in corpus["files"]]
    if files:
        rows = [[_code(file.get("url") or file["path"]), f"{file['bytes']:,}", _code(file["sha256"])] for file in files]
        parts += _table(["file", "bytes", "sha256"], rows)
    left_out = ", ".join(f"{count:,} by `{rule}`" for rule, count in manifest["cleaning"].items() if count)
    tokens = ", ".join(f"{count:,} {side}" for side, count in manifest["train_tokens"].items())
    return [
        *parts,
        f"- pairs kept: {', '.join(f'{count:,} {_code(name)}' for name, count in manifest['pairs'].items())}",
        f"- left out: {left_out or 'none'}",
        f"- training tokens: {tokens}",
        f"- fingerprint of settings and corpora: `{manifest['fingerprint']}`",
        f"- sha256 of the tokenizer: `{manifest['tokenizer_sha256']}`",
        "",
    ]


def _training(run: RunFacts) -> list[str]:
    if run.state is None:
        return ["## Training", "", f"Not trained yet: {_code(run.command('train'))}.", ""]
    values = [
        ("seed", run.shown("text", "recipe.toml", "training", "seed")),
        ("epochs", run.shown("count", run.state, "epoch")),
        ("threads of a process", run.shown("count", run.state, "threads")),
        ("kind of processor", run.shown("text", run.state, "cpu_capability")),
    ]
    rows = [[label, _code(value)] for label, value in values if value is not None]
    if "cost.json" in run.files:
        rows += [[label.strip(), _code(value)] for label, value in training_table(run.files["cost.json"]).rows]
    parts = ["## Training", "", *_table(["", "value"], rows)]
    if "cost.json" not in run.files:
        parts += [f"Its cost is not added up yet: {_code(run.command('score'))}.", ""]
    versions = run.get(run.state, "versions", default={})
    return [
        *parts,
        "Versions: " + ", ".join(f"{_plain(name)} `{number}`" for name, number in versions.items()) + ".",
        "",
    ]


def _model(run: RunFacts) -> list[str]:
    if run.model is None:
        return []
    provenance = run.files.get(f"{run.model}/provenance.json", {})
    rows = [[_code(f"{run.model}/{name}"), _code(sha)] for name, sha in provenance.get("files", {}).items()]
    parts = ["## Model", "", *_table(["file", "sha256"], rows)]
    if averaged := provenance.get("average_of"):
        parts += [f"The mean of {counted(len(averaged), 'checkpoint')}:", ""]
        rows = [[_code(one["checkpoint"]), _code(one["sha256"])] for one in averaged]
        parts += _table(["checkpoint", "sha256"], rows)
    return parts


def _scores(run: RunFacts) -> list[str]:
    parts = ["## Scores", ""]
    if "scores.json" not in run.files:
        return [*parts, f"Not scored yet: {_code(run.command('score'))}.", ""]
    for name, metrics in run.files["scores.json"].items():
        rows = []
        for metric in metrics:
            form = form_of_score(metric)
            score = run.shown(form, "scores.json", name, metric, "score")
            half = run.shown(form, "scores.json", name, metric, "interval", "half_width")
            signature = run.get("scores.json", name, metric, "signature", default="")
            shown = (score or "") + (f" ± {half}" if half is not None else "")
            rows.append([_code(metric), shown, _code(signature)])
        parts += [f"### {_plain(name)}", "", *_table(["metric", "score", "signature"], rows)]
    return parts


def _visible(content: object) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in str(content))


def _plain(content: str) -> str:
    """Return text in which Markdown finds no markup."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&])", r"\\\1", _visible(content))


def _code(content: object) -> str:
    """Return any text as code, on one line and in a cell of a table."""
    shown = _visible(content)
    fence = "`" * (_longest_fence([shown]) + 1)
    blank = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{blank}{shown}{blank}{fence}".replace("|", "\\|")


def _fenced(lines: list[str], language: str) -> list[str]:
    fence = "`" * max(3, _longest_fence(lines) + 1)
    return [f"{fence}{language}", *lines, fence]


def _longest_fence(lines: list[str]) -> int:
    return max((len(run) for line in lines for run in re.findall("`+", line)), default=0)


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]
