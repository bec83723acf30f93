"""Tells what came of a run: python docs/make_results.py RUN docs/results/NAME --title TEXT [--command ...] ...

Writes into the folder README.md (what was run, cost, scores with signatures, learning curve, translations good and
bad), curve.svg, and the run's scores.json and cost.json as they are. The good and bad translations are those of highest
and lowest chrF2 in each third of a test set, so that nobody picks them.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from nmtkit.evaluation.metric_names import comparable_to
from nmtkit.evaluation.metrics import score
from nmtkit.json_toml import read_json
from nmtkit.lines import read_lines
from nmtkit.run import Run

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 56, 56, 28, 44
BLUE, RED = "#1f6fb4", "#c0392b"
NUM_EXAMPLES = 3


def polyline(points: list[tuple[float, float]], x_end: float, y_end: float, colour: str) -> str:
    """A line through points given in data units, both axes beginning at 0."""
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    drawn = [
        f"{LEFT + x / x_end * inner_width:.1f},{HEIGHT - BOTTOM - min(y, y_end) / y_end * inner_height:.1f}"
        for x, y in points
    ]
    return f'<polyline points="{" ".join(drawn)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def text(x: float, y: float, content: str, anchor: str = "middle", colour: str = "#444") -> str:
    """A label."""
    style = f'font-family="sans-serif" font-size="12" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{content}</text>'


def curve(validations: list[dict[str, Any]]) -> str:
    """Validation nll (left axis), and BLEU where it was taken (right axis), over minutes of training, as SVG."""
    x_end = max(line["seconds"] for line in validations) / 60 * 1.02
    nll = [(line["seconds"] / 60, line["valid_nll"]) for line in validations]
    bleu = [(line["seconds"] / 60, line["valid_bleu"]) for line in validations if line.get("valid_bleu") is not None]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for share in range(6):
        x = LEFT + share / 5 * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - share / 5 * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{x_end * share / 5:.0f}"))
        parts.append(text(LEFT - 8, y + 4, f"{10 * share / 5:.0f}", "end", BLUE))
        if bleu:
            parts.append(text(WIDTH - RIGHT + 8, y + 4, f"{60 * share / 5:.0f}", "start", RED))
    parts.append(polyline(nll, x_end, 10, BLUE))
    parts.append(text(LEFT, 16, "validation nll (nats a token)", "start", BLUE))
    if bleu:
        parts.append(polyline(bleu, x_end, 60, RED))
        parts.append(text(WIDTH - RIGHT, 16, "validation BLEU (greedy, tokenised)", "end", RED))
    parts.append(text(WIDTH / 2, HEIGHT - 8, "minutes of training"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]


def cost_rows(cost: dict[str, Any], provenance: dict[str, Any], validations: list[dict[str, Any]]) -> list[list[str]]:
    """What the training took."""
    padding = cost["flops_padding"] / cost["flops"]
    spent = "time" if cost["processes"] == 1 else f"{cost['device_seconds']:,.0f} seconds of one process or another"
    sustained = f"{spent} x {cost['sustained_flops_per_second'] / 1e9:.0f} GFLOP/s, {cost['sustained_source']}"
    done = f"{cost['updates']:,} updates, {provenance['epoch']} epochs, {cost['target_tokens']:,} target tokens"
    return [
        ["training", done],
        ["time", f"{cost['seconds'] / 60:.1f} minutes, validation and saving included"],
        ["speed", f"{cost['target_tokens'] / cost['seconds']:,.0f} target tokens a second over that time"],
        ["processes, precision", f"{cost['processes']} x {provenance['threads']} thread(s), {cost['precision']}"],
        ["FLOPs, counted", f"{cost['flops']:.3g}; padding added {100 * padding:.1f} % to them"],
        ["FLOPs, the paper's way", f"{cost['flops_paper_estimate']:.3g} ({sustained})"],
        ["best validation nll", f"{min(line['valid_nll'] for line in validations):.4f}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())],
    ]


def examples(run_dir: Path, name: str, language: str, kind: Any) -> list[str]:
    """The best and the worst translations, by chrF2, of each third of the lines."""
    data = run_dir / "data" / "test"
    sources, references = read_lines(data / f"{name}.source.txt"), read_lines(data / f"{name}.reference.txt")
    hypotheses = read_lines(run_dir / "translations" / f"{name}.txt")

    def quality(line: int) -> float:
        scores = score([hypotheses[line]], [references[line]], target_language=language, text=kind, metrics=["chrf2"])
        return scores["chrf2"].score

    size = len(sources) // NUM_EXAMPLES
    groups = [range(start * size, (start + 1) * size) for start in range(NUM_EXAMPLES)]
    parts = []
    for title, choose in (("best", max), ("worst", min)):
        parts += [f"The {title} of each third of {name}, by chrF2 of the sentence:", "", "```"]
        for group in groups:
            line = choose(group, key=quality)
            parts += [
                f"{line + 1}, chrF2 {quality(line):.1f}",
                f"  source:      {sources[line]}",
                f"  translation: {hypotheses[line]}",
                f"  reference:   {references[line]}",
            ]
        parts += ["```", ""]
    return parts


def main() -> None:
    """Reads the command line and writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", action="append", default=[], help="a line of what was run")
    parser.add_argument("--note", action="append", default=[], help="a row `what: text` of the table")
    arguments = parser.parse_args()
    run: Path = arguments.run
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    recipe = Run(run).recipe()
    scores, cost = read_json(run / "scores.json"), read_json(run / "cost.json")
    provenance = read_json(Run(run).checkpoints()[-1] / "provenance.json")
    metrics = [json.loads(line) for line in read_lines(run / "metrics.jsonl") if line]
    validations = [line for line in metrics if line.get("valid_nll") is not None]
    (output / "curve.svg").write_text(curve(validations), encoding="utf-8")
    for name in ("scores.json", "cost.json"):
        shutil.copyfile(run / name, output / name)
    page = [f"# {arguments.title}", "", "```", *arguments.command, "```", ""]
    notes = [note.split(": ", 1) for note in arguments.note]
    page += table(["what", "value"], [*notes, *cost_rows(cost, provenance, validations)])
    for name in Run(run).test_sets():
        rows = []
        for metric, entry in scores[name].items():
            of_metric = [f"`{metric}`", f"{entry['score']:.2f}", entry.get("details", ""), f"`{entry['signature']}`"]
            rows.append([*of_metric, comparable_to(metric)])
        page += [f"## {name}", "", *table(["metric", "score", "details", "signature", "comparable to"], rows)]
    has_bleu = any(line.get("valid_bleu") is not None for line in validations)
    drawn = "validation nll and BLEU" if has_bleu else "validation nll"
    page += ["## Learning curve", "", f"![{drawn} over the minutes of training](curve.svg)", ""]
    shown = validations[:: max(1, len(validations) // 10)]
    if shown[-1] is not validations[-1]:
        shown.append(validations[-1])
    page += table(
        ["epoch", "update", "minutes", "valid nll", "perplexity", "valid BLEU (greedy, tokenised)"],
        [
            [
                str(line["epoch"]), str(line["step"]), f"{line['seconds'] / 60:.0f}", f"{line['valid_nll']:.3f}",
                f"{line['valid_perplexity']:.2f}",
                "not taken" if line.get("valid_bleu") is None else f"{line['valid_bleu']:.2f}",
            ]
            for line in shown
        ],
    )  # fmt: skip
    page += ["## Translations", ""]
    for name in Run(run).test_sets():
        page += examples(run, name, recipe.data.target_language, recipe.data.text)
    (output / "README.md").write_text("\n".join(page).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
