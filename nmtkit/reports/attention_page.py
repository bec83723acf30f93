"""Pictures of attention, as Figures 3 to 5 of the paper show it: what each token looks at, in every layer and head.

    AttentionMap (tokens, weights) --to_words--> AttentionMap of words
        -> section, an interactive part of a page (attention.js); whole page by attention_page
        -> figure_file, SVG, PDF or PNG for papers, by matplotlib
        -> heat_map, a table for the terminal

Where the weights come from is no matter here; reports/attention_data.py takes them from a model.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nmtkit.console import log
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import write_bytes_atomically
from nmtkit.page import HUES, json_script, live_page, script, text

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
TITLES: dict[Kind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Decoder to source",
}
HOW_TO_READ = (
    "Left the token that attends, right what it attends to. A row of the decoder is the position at which its token is "
    "written."
)
PARTS = 10_000
"""Weights stand in a page as whole numbers of ten-thousandths."""
NUM_COLOURS = 8
_WEAKEST = 0.01
"""A weaker line of a figure cannot be seen."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side and the words that they make up.

    Attributes:
        pieces: as they are shown.
        words: as they are shown.
        word_of: of each piece the index of its word; never falling.
    """

    pieces: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]


@dataclass(frozen=True)
class AttentionMap:
    """One kind of attention of a model for one pair.

    Attributes:
        kind: encoder and decoder: to themselves; cross: of the decoder to the source.
        rows: the tokens that attend. Of the decoder: those that are written at a position.
        columns: the tokens that are attended to. Of the decoder's attention to itself: those it has written before.
        weights: [layers, heads, rows, columns]; rows sum to 1.
    """

    kind: Kind
    rows: Tokens
    columns: Tokens
    weights: npt.NDArray[np.float64]


def to_words(pieces: AttentionMap) -> AttentionMap:
    """The attention between words: what a word's pieces receive is added up, what they give is averaged.

    So the rows still sum to 1. Source: Clark et al., "What Does BERT Look At?", section 4.1.
    """
    weights = np.einsum(
        "wr,lhrc,vc->lhwv", _members(pieces.rows, average=True), pieces.weights, _members(pieces.columns, average=False)
    )
    return AttentionMap(pieces.kind, _words_alone(pieces.rows), _words_alone(pieces.columns), weights)


def of_word(entry: AttentionMap, word: str) -> AttentionMap:
    """Return the attention of one word alone, wherever it occurs: the weights of all other rows are 0.

    Raises:
        DataError: the word is not among those that attend.
    """
    names = [re.sub(r"^\W+(?=\w)|(?<=\w)\W+$", "", name) for name in entry.rows.words]
    is_it = [word in (names[index], entry.rows.words[index]) for index in entry.rows.word_of]
    if not any(is_it):
        raise DataError(f"--word {word}: not one of the words that attend, which are: {' '.join(entry.rows.words)}")
    return replace(entry, weights=entry.weights * np.array(is_it)[:, np.newaxis])


def _members(tokens: Tokens, *, average: bool) -> npt.NDArray[np.float64]:
    """Which pieces belong to each word [words, pieces]."""
    members = np.zeros((len(tokens.words), len(tokens.pieces)))
    members[list(tokens.word_of), range(len(tokens.pieces))] = 1.0
    return members / members.sum(axis=1, keepdims=True) if average else members


def _words_alone(tokens: Tokens) -> Tokens:
    return Tokens(tokens.words, tokens.words, tuple(range(len(tokens.words))))


def section(name: str, maps: Sequence[AttentionMap], *, words: bool = False) -> str:
    """An interactive picture as a part of a page that has SCRIPT and STYLE: choose attention, layer and heads.

    Args:
        name: an id, different from all others of the page.
        words: whether words are shown at first, and not pieces.
    """
    forms = {"pieces": list(maps), "words": [to_words(entry) for entry in maps]}
    first = {"kind": "cross", "form": "words" if words else "pieces"}
    data: dict[str, Any] = {"first": first} | {
        form: {entry.kind: _as_json(entry) for entry in entries} for form, entries in forms.items()
    }
    return (
        f'<div class="attention" data-attention="{name}"><noscript><p>This picture needs JavaScript.</p></noscript>'
        f"</div>{json_script(name, data)}"
    )


def _as_json(entry: AttentionMap) -> dict[str, Any]:
    whole = np.rint(entry.weights * PARTS).astype(np.int64)
    return {
        "title": TITLES[entry.kind],
        "rows": list(entry.rows.pieces),
        "columns": list(entry.columns.pieces),
        "weights": whole.tolist(),
    }


def attention_page(title: str, about: str, maps: Sequence[AttentionMap], *, words: bool = False) -> str:
    """A page of its own with an interactive picture.

    Args:
        about: what is shown, as HTML.
    """
    body = [f"<h1>{text(title)}</h1>", about, section("attention", maps, words=words)]
    return live_page(title, body, style=STYLE, scripts=[SCRIPT])


def strongest(entry: AttentionMap, layer: int, heads: Sequence[int]) -> list[tuple[str, str, float]]:
    """For each row its token, the column that it attends to most, and how much, on the mean of some heads."""
    mean = entry.weights[layer, list(heads)].mean(axis=0)  # [rows, columns]
    best = mean.argmax(axis=1)
    return [
        (row, entry.columns.pieces[column], float(mean[index, column]))
        for index, (row, column) in enumerate(zip(entry.rows.pieces, best, strict=True))
    ]


def figure_file(path: Path, entry: AttentionMap, layer: int, heads: Sequence[int]) -> None:
    """Draws one layer as the paper does: the tokens twice, lines between them, a colour for each head.

    Args:
        path: .svg, .pdf or .png; equal weights give equal bytes.

    Raises:
        NmtkitError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise NmtkitError("matplotlib is not installed; run `pip install 'nmtkit[report]'`, or name the output .html")
    import warnings

    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    num_columns = max(len(entry.rows.pieces), len(entry.columns.pieces))
    longest = max(len(token) for token in (*entry.rows.pieces, *entry.columns.pieces))
    margin = 0.1 + 0.085 * min(longest, 30)  # inches, for text that stands upright
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nmtkit", "text.parse_math": False}):
        figure = Figure(figsize=(max(2.5, 0.26 * num_columns), 1.8 + 2 * margin), dpi=200)
        FigureCanvasAgg(figure)
        height = 1.8 + 2 * margin
        axes = figure.add_axes((0.02, margin / height, 0.96, 1.8 / height))
        axes.set(xlim=(-0.7, num_columns - 0.3), ylim=(0, 1))
        axes.axis("off")
        for place, head in enumerate(heads):
            weights = entry.weights[layer, head]
            rows, columns = np.nonzero(weights >= _WEAKEST)
            axes.add_collection(
                LineCollection(
                    [((column, 1.0), (row, 0.0)) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)],
                    colors=[(*_COLOURS[head % NUM_COLOURS], weight) for weight in weights[rows, columns]],
                    linewidths=1.6,
                    zorder=place,
                )
            )
        for tokens, y, anchor in ((entry.columns, 1.03, "bottom"), (entry.rows, -0.03, "top")):
            for place, token in enumerate(tokens.pieces):
                axes.text(place, y, printable(token), rotation=90, ha="center", va=anchor, fontsize=9)
        with warnings.catch_warnings(record=True) as caught, write_bytes_atomically(path) as file:
            warnings.simplefilter("always")
            undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
            figure.savefig(file, format=path.suffix[1:], metadata=undated)
    if any("Glyph" in str(entry.message) for entry in caught):
        log.warning(
            "%s: matplotlib has no font for some characters; take .svg, which leaves the font to the reader", path
        )


def printable(token: str) -> str:
    """Without what a font cannot draw, XML cannot hold, or a terminal would obey."""
    return "".join(character if character.isprintable() else "\ufffd" for character in token)


_COLOURS = [tuple(int(hue[place : place + 2], 16) / 255 for place in (1, 3, 5)) for hue in HUES]
"""Of heads; the same in pages and figures, and to be seen on white and on black."""

STYLE = (
    "".join(f".head-{index} {{ --head: {hue}; }}" for index, hue in enumerate(HUES))
    + """
.attention .switch[class*=head-] input:checked + span { background: var(--head); border-color: var(--head);
  box-shadow: none; color: #fff; }
.attention .lines { display: grid; grid-template-columns: minmax(0, 1fr) minmax(4rem, 1.1fr) minmax(0, 1fr); }
.attention ol { list-style: none; margin: 0; padding: 0; }
.attention .rows { text-align: right; }
.attention .lines li { height: 1.75rem; }
.attention .lines button { font: inherit; color: inherit; border: 0; padding: 0 .4rem; height: 1.75rem; max-width: 100%;
  background: none; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; cursor: pointer;
  border-radius: .3rem; }
.attention .lines button[aria-pressed=true] { box-shadow: inset 0 0 0 2px var(--accent); }
.attention .lines svg { width: 100%; display: block; }
.attention .lines line { stroke: var(--head); stroke-width: 2.2; }
.attention .bars { display: inline-flex; height: .9rem; vertical-align: middle; }
.attention .bars i { display: inline-block; width: .35rem; background: var(--head); }
.attention .said { min-height: 3em; }
.attention table.matrix { width: auto; border-collapse: separate; border-spacing: 1px; font-size: .8rem; }
.attention table.matrix th, .attention table.matrix td { border: 0; vertical-align: middle; }
.attention table.matrix th[scope=col] { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left;
  white-space: nowrap; padding: .2rem .1rem; }
.attention table.matrix th[scope=row] { text-align: right; white-space: nowrap; position: sticky; left: 0;
  background: var(--ground); }
.attention table.matrix td { text-align: center; padding: .1rem .2rem; min-width: 1.8rem;
  font-variant-numeric: tabular-nums; }
"""
)
SCRIPT = script("nmtkit.reports", "attention.js")
