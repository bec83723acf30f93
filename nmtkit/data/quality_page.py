"""The data report as one HTML page without scripts or external files: RUN/data/report.html."""

from html import escape
from typing import Any

import numpy as np

from nmtkit.console import counted
from nmtkit.data.cleaning import HELD_OUT_COPY, MAX_WORDS_SHOWN, MEANINGS
from nmtkit.data.encoding import FREQUENT, MAX_TOKENS_SHOWN
from nmtkit.page import BARS_STYLE, bars, page, table, text

_LINES = 5
"""Maximum number of lines listed per rule; report.json has more."""
_BINS = 16


def data_report_page(report: dict[str, Any], name: str, noun: str) -> str:
    """Return the page for the content of report.json.

    Args:
        name: of the recipe.
        noun: `Task.example` of its task.
    """
    pairs, left_out, subwords = report["pairs"], report["left_out"], report["subwords"]
    numbers = [(f"training {noun}s read", f"{pairs['read']:,}")]
    notes = []
    if left_out.get(HELD_OUT_COPY):
        notes.append(f"{left_out[HELD_OUT_COPY]:,} were left out as copies of a side of a held-out {noun}.")
    for corpus in report["corpora"]:
        if counts := corpus.get("generated"):
            outcomes = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in counts.items())
            notes.append(f"{text(corpus['name'])} was generated: {outcomes}.")
    if pairs["kept"] is None:
        notes.append(f"The text was only checked: no {noun} was removed, and no subwords were learned.")
    else:
        share = 100 * pairs["kept"] / max(1, pairs["read"])
        numbers += [
            (f"to train on ({share:.1f} %)", f"{pairs['kept']:,}"),
            ("left out", f"{sum(left_out.values()):,}"),
        ]
    if subwords is not None:
        numbers += [
            (f"tokens per word, {side}", f"{part['tokens_per_word']:.2f}") for side, part in subwords["train"].items()
        ]
        if cut := subwords["train"].get("source", {}).get("cut"):
            numbers.append(("sources cut", f"{cut:,}"))
    cells = "".join(f"<div><b>{escape(value)}</b>{escape(label)}</div>" for label, value in numbers)
    rules = [
        [*row[:4], escape(row[4]), escape(row[5]), "<br>".join(text(side) for side in row[6:])]
        for row in rule_rows(report)
    ]
    columns = ["rule", f"{noun}s", "action", "left out", "meaning", "first lines", f"first {noun}"]
    parts = [
        f"<h1>Data report: {escape(name)}</h1>",
        f'<div class="numbers">{cells}</div>{"".join(f"<p>{note}</p>" for note in notes)}',
        "<h2>Findings in the training text</h2>",
        f"<p>{noun.capitalize()}s that match each rule, before any rule acts; one {noun} may match several rules.</p>",
        (table(columns, rules) if rules else "") + f"<p>{silent_rules(report)}</p>",
        "<h2>Corpora</h2>",
        table(
            ["corpus", "used for", f"{noun}s"],
            [[text(corpus["name"]), corpus["role"], f"{corpus['pairs']:,}"] for corpus in report["corpora"]],
            numbers_from=2,
        ),
        "<h2>Lengths</h2>",
        bars("Words per line, in the training text as it was read", binned(report["words"], MAX_WORDS_SHOWN)),
    ]
    if subwords is not None:
        lengths = binned({side: part["lengths"] for side, part in subwords["train"].items()}, MAX_TOKENS_SHOWN)
        parts += [
            bars(f"Subword tokens per sentence, in the {noun}s to train on", lengths),
            "<h2>Vocabulary</h2>",
            table(["", *coverage_columns(subwords)], coverage_rows(subwords), numbers_from=1),
        ]
    return page(f"Data report: {name}", parts, style=BARS_STYLE)


def rule_rows(report: dict[str, Any]) -> list[list[str]]:
    """Return a row for each rule that some pair breaks.

    Its cells are rule, pairs, action, pairs left out, meaning, first lines, and both sides of the first pair if known.
    """
    several = sum(corpus["role"] == "train" for corpus in report["corpora"]) > 1
    rows = []
    for rule, findings in report["rules"].items():
        left_out = report["left_out"].get(rule, 0)
        if findings["count"] or left_out:
            places = report["places"].get(rule, [])[:_LINES]
            named = [f"{name}: {line}" if several else str(line) for name, line in places]
            lines = ", ".join(named) + (", ..." if findings["count"] > _LINES else "")
            example = report.get("examples", {}).get(rule, [])
            # A check does not count what is left out, as it does not cut subwords.
            dropped = "" if report["pairs"]["kept"] is None else f"{left_out:,}"
            rows.append([rule, f"{findings['count']:,}", findings["action"], dropped, MEANINGS[rule], lines, *example])
    return rows


def silent_rules(report: dict[str, Any]) -> str:
    """Return a sentence with the number of rules that no pair breaks."""
    num_checked = sum(findings["action"] != "off" for findings in report["rules"].values())
    return f"{counted(num_checked - len(rule_rows(report)), 'other rule')}: nothing found."


def coverage_columns(subwords: dict[str, Any]) -> list[str]:
    """Return the columns of `coverage_rows`: set and side."""
    return [f"{name}, {side}" for name, sides in subwords.items() for side in sides]


def coverage_rows(subwords: dict[str, Any]) -> list[list[str]]:
    """Return the figures on how well the vocabulary covers the text, one row each."""
    parts = [part for sides in subwords.values() for part in sides.values()]

    def share(count: int, total: int) -> str:
        return f"{100 * count / max(1, total):.2f} %"

    return [
        ["tokens", *(f"{part['tokens']:,}" for part in parts)],
        ["words", *(f"{part['words']:,}" for part in parts)],
        ["tokens per word", *(f"{part['tokens_per_word']:.2f}" for part in parts)],
        ["characters per token", *(f"{part['characters_per_token']:.2f}" for part in parts)],
        ["unknown tokens", *(share(part["unknown"], part["tokens"]) for part in parts)],
        ["vocabulary entries", *(f"{part['vocabulary']:,}" for part in parts)],
        ["vocabulary entries used", *(share(part["entries_used"], part["vocabulary"]) for part in parts)],
        [f"used {FREQUENT} times or more", *(share(part["entries_frequent"], part["vocabulary"]) for part in parts)],
        ["entries that make up half the text", *(f"{part['most_frequent_half']:,}" for part in parts)],
    ]


def binned(sides: dict[str, dict[str, int]], last: int) -> dict[str, dict[str, int]]:
    """Return histograms of lengths with the same steps, at most 17, for all sides: counts by label, in order.

    The steps end after 99.5 % of all; longer ones are counted under the last label.

    Args:
        sides: for each side, counts by length.
        last: the length that stands for all longer ones as well.
    """
    counts = np.zeros((len(sides), last + 1), np.int64)
    for row, histogram in zip(counts, sides.values(), strict=True):
        row[[int(length) for length in histogram]] = list(histogram.values())
    both = counts.sum(axis=0)
    if not both.any():
        return {}
    end = int(np.searchsorted(np.cumsum(both), 0.995 * both.sum()))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * _BINS > end)
    num_steps = min(end // step + 1, last // step)
    labels = [str(k) if step == 1 else f"{k * step}-{k * step + step - 1}" for k in range(num_steps)]
    labels.append(f"{num_steps * step} or more")
    bins = np.add.reduceat(counts, np.arange(num_steps + 1) * step, axis=1)
    shown = len(labels) if bins[:, -1].any() else num_steps
    return {
        side: dict(zip(labels[:shown], row[:shown].tolist(), strict=True))
        for side, row in zip(sides, bins, strict=True)
    }
