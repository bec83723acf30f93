"""Pictures of attention, as in Figures 3 to 5 of the paper: what each token attends to, in every layer and head.

model, source, target --attention_maps--> AttentionMap of each kind --to_words--> AttentionMap of words
    -> section, an interactive part of a page (attention.js); whole page by attention_page
    -> figure_file, SVG, PDF or PNG for papers, by matplotlib
    -> strongest, for the terminal
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import category, east_asian_width

import numpy as np
import numpy.typing as npt

from nmtkit.console import counted, log
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.files import write_bytes_atomically
from nmtkit.page import HUES, asset, json_script, live_page, text
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, EOS, Side

if TYPE_CHECKING:
    from matplotlib.backends.backend_agg import RendererAgg

    from nmtkit.model_folder import LoadedModel

Kind = Literal["encoder", "decoder", "cross"]
TITLES: dict[Kind, str] = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Decoder to source",
}
HOW_TO_READ = (
    "Left the token that attends, right what it attends to. A row of the decoder is the position at which its token is "
    "written."
)
MAX_TOKENS = 128
"""Maximum length of a side: longer pictures are unreadable, and a page's data grows with the square."""
PARTS = 10_000
"""Weights stand in a page as whole numbers of ten-thousandths."""
_WEAKEST = 0.01
"""A weaker line of a figure cannot be seen."""
_DPI = 200
_FONT_SIZE = 9
_LONGEST = 60
"""Maximum length of a label of a figure in inches: matplotlib draws at most 65,536 pixels."""


@dataclass(frozen=True)
class TokenRow:
    """The tokens of one side and the words that they make up.

    Attributes:
        pieces, words: as they are shown.
        word_of: the index of the word of each piece; never falling.
    """

    pieces: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]


@dataclass(frozen=True)
class AttentionMap:
    """One kind of attention of a model for one pair.

    Attributes:
        kind: encoder and decoder: self-attention; cross: of the decoder to the source.
        rows: the tokens that attend. Of the decoder: those that are written at a position.
        columns: the tokens that are attended to. Of the decoder's self-attention: those it has written before.
        weights: [layers, heads, rows, columns]; rows sum to 1, in a decoder without encoder those of decoder and cross
            together.
    """

    kind: Kind
    rows: TokenRow
    columns: TokenRow
    weights: npt.NDArray[np.float64]


def attention_maps(
    loaded: "LoadedModel",
    source: str,
    target: str,
    target_language: str | None = None,
    source_language: str | None = None,
) -> list[AttentionMap]:
    """Return the attention of a model that reads the source and writes the target: encoder, decoder, cross.

    A row of the decoder stands for the position at which its token is written; the newest token that it has read there
    is the one before.

    Args:
        target_language, source_language: for a model with several, see `Tokenizer.in_direction`.

    Raises:
        DataError: a side is empty or too long, the target is not one of the model's task, or no language is chosen.
        ModelError: the model gives no finite numbers.
    """
    from nmtkit.data.batch import batch_of
    from nmtkit.model.attention_weights import attention_weights

    tokenizer = loaded.tokenizer.in_direction(target_language, source_language)
    task = task_of(tokenizer)
    if task.command != "translate":
        raise ModelError(f"this model {task.does}; attention is shown for models that translate")
    config = loaded.model.config
    # A decoder alone has source and target in one sequence.
    positions = config.max_positions // 2 if config.is_joined else config.max_positions
    limit = min(MAX_TOKENS, positions if config.positions == "learned" else MAX_TOKENS) - 1
    source_ids = _ids(tokenizer, task.model_source(source), "source", limit)
    target_ids = _ids(tokenizer, task.model_target(target, "the target"), "target", limit)
    target_ids = [*tokenizer.target_start, *target_ids]
    batch = batch_of([source_ids], [target_ids]).to(loaded.model.output_embedding.device)
    weights = attention_weights(loaded.model, batch.source, batch.target_in)
    if not bool(weights.cross.isfinite().all()):
        raise ModelError("the model's attention is not finite: its weights are damaged or its training diverged")
    read = _tokens(tokenizer, source_ids if config.is_joined else [*source_ids, EOS], "source")
    seen = _tokens(tokenizer, [BOS, *target_ids], "target")
    written = _tokens(tokenizer, [*target_ids, EOS], "target")
    return [
        AttentionMap("encoder", read, read, weights.encoder.cpu().double().numpy()),
        AttentionMap("decoder", written, seen, weights.decoder.cpu().double().numpy()),
        AttentionMap("cross", written, read, weights.cross.cpu().double().numpy()),
    ]


def _ids(tokenizer: Tokenizer, content: str, side: Side, limit: int) -> list[int]:
    ids = tokenizer.encode([tokenizer.normalize(content, side)], side, 1)[0]
    if not ids:
        raise DataError(f"the {side} is empty; attention needs text on both sides")
    if len(ids) > limit:
        raise DataError(
            f"the {side} has {counted(len(ids), 'token')}, and a picture of attention at most {limit}; "
            "give a shorter part"
        )
    return ids


def _tokens(tokenizer: Tokenizer, ids: list[int], side: Side) -> TokenRow:
    """Return pieces and words of ids that begin or end with a special symbol, which is a word of its own."""
    begins = [
        index
        for index, is_start in enumerate(tokenizer.word_starts(ids, side))
        if is_start or ids[index] in (BOS, EOS) or index == 0 or ids[index - 1] == BOS
    ]
    words = []
    for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        word = ids[begin:end]
        words.append(tokenizer.decode(word, side) or "".join(tokenizer.pieces(word, side)))
    word_of = np.cumsum([index in begins for index in range(len(ids))]) - 1
    return TokenRow(tuple(tokenizer.pieces(ids, side)), tuple(words), tuple(word_of.tolist()))


def to_words(pieces: AttentionMap) -> AttentionMap:
    """Return the attention between words: sums over the pieces attended to, means over those that attend.

    So the sums of rows stay as they are. Source: Clark et al., "What Does BERT Look At?", section 4.1.
    """

    def members(tokens: TokenRow) -> npt.NDArray[np.float64]:  # [words, pieces]
        return np.array([[float(word == index) for word in tokens.word_of] for index in range(len(tokens.words))])

    rows = members(pieces.rows)
    weights = np.einsum(
        "wr,lhrc,vc->lhwv", rows / rows.sum(axis=1, keepdims=True), pieces.weights, members(pieces.columns)
    )

    def words_alone(tokens: TokenRow) -> TokenRow:
        return TokenRow(tokens.words, tokens.words, tuple(range(len(tokens.words))))

    return AttentionMap(pieces.kind, words_alone(pieces.rows), words_alone(pieces.columns), weights)


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


def section(name: str, maps: Sequence[AttentionMap], *, words: bool = False) -> str:
    """Return an interactive picture, for a page that has SCRIPT and STYLE: choose attention, layer and heads.

    Args:
        name: an id, different from all others of the page.
        words: show words at first, not pieces.
    """
    data: dict[str, Any] = {"first": {"kind": "cross", "form": "words" if words else "pieces"}}
    for form, entries in (("pieces", maps), ("words", [to_words(entry) for entry in maps])):
        data[form] = {
            entry.kind: {
                "title": TITLES[entry.kind],
                "rows": list(entry.rows.pieces),
                "columns": list(entry.columns.pieces),
                "weights": np.rint(entry.weights * PARTS).astype(np.int64).tolist(),
            }
            for entry in entries
        }
    return (
        f'<div class="attention" data-attention="{name}"><noscript><p>This picture needs JavaScript.</p></noscript>'
        f"</div>{json_script(name, data)}"
    )


def attention_page(title: str, about: str, maps: Sequence[AttentionMap], *, words: bool = False) -> str:
    """Return a page of its own with an interactive picture.

    Args:
        about: a description, as HTML.
    """
    body = [f"<h1>{text(title)}</h1>", about, section("attention", maps, words=words)]
    return live_page(title, body, style=STYLE, scripts=[SCRIPT])


def strongest(entry: AttentionMap, layer: int, heads: Sequence[int]) -> list[tuple[str, str, float]]:
    """Return for each row its token, the column that it attends to most, and how much, on the mean of some heads."""
    mean = entry.weights[layer, list(heads)].mean(axis=0)  # [rows, columns]
    best = mean.argmax(axis=1)
    return [
        (row, entry.columns.pieces[column], float(mean[index, column]))
        for index, (row, column) in enumerate(zip(entry.rows.pieces, best, strict=True))
    ]


def figure_file(path: Path, entry: AttentionMap, layer: int, heads: Sequence[int]) -> None:
    """Draw one layer as the paper does: the tokens twice, lines between them, a colour for each head.

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
    with (
        # Text stays text in SVG, whose ids are the same each time; a $ in a token begins no formula.
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nmtkit", "text.parse_math": False}),
        warnings.catch_warnings(record=True) as caught,
    ):
        # By default, the same warning is given only once, and so not for a second figure.
        warnings.simplefilter("always")
        figure = Figure(figsize=(max(2.5, 0.26 * num_columns), 1), dpi=_DPI)
        # Not by pyplot, which keeps figures in global state and may need a display.
        renderer = FigureCanvasAgg(figure).get_renderer()
        top, bottom = (0.15 + _inches(renderer, tokens.pieces) for tokens in (entry.columns, entry.rows))
        height = 1.8 + top + bottom
        figure.set_figheight(height)
        axes = figure.add_axes((0.02, bottom / height, 0.96, 1.8 / height))
        axes.set(xlim=(-0.7, num_columns - 0.3), ylim=(0, 1))
        axes.axis("off")
        for order, head in enumerate(heads):
            weights = entry.weights[layer, head]
            rows, columns = np.nonzero(weights >= _WEAKEST)
            axes.add_collection(
                LineCollection(
                    [((column, 1.0), (row, 0.0)) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)],
                    # A sum of rounded weights may exceed 1 a little.
                    colors=[(HUES[head % len(HUES)], min(1.0, weight)) for weight in weights[rows, columns]],
                    linewidths=1.6,
                    zorder=order,
                )
            )
        for tokens, y, anchor in ((entry.columns, 1.03, "bottom"), (entry.rows, -0.03, "top")):
            for x, token in enumerate(tokens.pieces):
                axes.text(x, y, printable(token), rotation=90, ha="center", va=anchor, fontsize=_FONT_SIZE)
        with write_bytes_atomically(path) as file:
            # The files would hold the date, so that equal weights would give different bytes.
            undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
            figure.savefig(file, format=path.suffix[1:], metadata=undated)
    if path.suffix != ".svg" and any("Glyph" in str(warning.message) for warning in caught):
        log.warning(
            "%s: matplotlib has no font for some characters; take .svg or .html, or install a font that has them and "
            "name it as font.family in matplotlibrc", path,
        )  # fmt: skip


def _inches(renderer: "RendererAgg", tokens: Sequence[str]) -> float:
    """Return the length of the longest label of a figure, whatever font a reader has."""
    from matplotlib.font_manager import FontProperties

    labels = [printable(token) for token in tokens]
    # matplotlib may have no East Asian font; W is as wide as a character of one.
    labels += ["".join("W" if east_asian_width(each) in "FW" else each for each in label) for label in labels]
    font = FontProperties(size=_FONT_SIZE)
    longest = max(renderer.get_text_width_height_descent(label, font, ismath=False)[0] for label in labels)
    return min(_LONGEST, longest / _DPI)


def printable(token: str) -> str:
    """Return text without what a font cannot draw, XML cannot hold, or a terminal would obey; any blank is a space."""

    def shown(character: str) -> str:
        # Without joiners, letters of Persian and of Indic scripts would have other forms.
        if character.isprintable() or character in "\u200c\u200d":
            return character
        return " " if category(character) == "Zs" else "\ufffd"

    return "".join(map(shown, token))


_COLOUR_OF_HEADS = "".join(f".head-{index} {{ --head: {hue}; }}" for index, hue in enumerate(HUES))
STYLE = f"{_COLOUR_OF_HEADS}\n{asset('nmtkit.reports', 'attention.css')}"
SCRIPT = asset("nmtkit.reports", "attention.js")
