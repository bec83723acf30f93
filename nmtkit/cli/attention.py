"""`nmtkit attention`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.errors import DataError
from nmtkit.files import write_text
from nmtkit.page import text

if TYPE_CHECKING:
    from nmtkit.reports.attention_maps import AttentionMap

FORMATS = (".html", ".svg", ".pdf", ".png")


def command(
    model: options.Model,
    source: Annotated[str, Option(metavar="TEXT", help="Source sentence.")],
    target: Annotated[
        str | None, Option(metavar="TEXT", help="Target sentence.  [default: the model's own translation]")
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            help="File for the result: an interactive page (.html), or a figure of one layer (.svg, .pdf, .png).  "
            "[default: a heat map in the terminal]"
        ),
    ] = None,
    kind: Annotated[
        Literal["encoder", "decoder", "cross"] | None,
        Option(help="Self-attention (encoder, decoder), or decoder to source (cross).  [default: cross]"),
    ] = None,
    layer: Annotated[
        int | None, Option(min=1, help="Layer to show, from 1.  [default: the last; an .html page shows all]")
    ] = None,
    head: Annotated[
        list[int] | None, Option(min=1, help="Head to show, from 1. May be repeated.  [default: all]")
    ] = None,
    word: Annotated[
        str | None,
        Option(
            metavar="WORD",
            help="Show only the attention of this word, as Figures 3 and 4 of the paper do. On a page, click a word.",
        ),
    ] = None,
    words: Annotated[bool, Option(help="Join subwords into words.")] = False,
    from_: options.From = None,
    to: options.To = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Show the attention weights of a model for one sentence, as a web page, a figure or in the terminal.

    \b
    Examples:
      nmtkit attention runs/quickstart --source "The old house is empty." --words
      nmtkit attention runs/quickstart --source "The old house is empty." \\
          --output attention.html
    """
    from nmtkit.decoding.request import TranslationRequest
    from nmtkit.decoding.translator import Translator
    from nmtkit.model_folder import load_model
    from nmtkit.reports.attention_maps import (
        HOW_TO_READ,
        attention_maps,
        attention_page,
        figure_file,
        of_word,
        to_words,
    )
    from nmtkit.run import find_model

    if output is not None and output.suffix not in FORMATS:
        raise BadParameter(f"{output.name!r} must end in one of {', '.join(FORMATS)}", param_hint="--output")
    options.check_files([("--output", output)], [])
    if "\n" in source or "\n" in (target or ""):
        raise BadParameter("a sentence has a line break; give one line", param_hint="--source, --target")
    if output is not None and output.suffix == ".html" and (kind or layer or head or word):
        raise BadParameter("a page (.html) shows everything; leave out --kind, --layer, --head and --word")
    loaded = load_model(find_model(model), options.start_device(device, threads))
    loaded = replace(loaded, tokenizer=loaded.tokenizer.in_direction(to, from_, is_requested=True))
    if target is None:
        origin = "The target is the model's own translation."
        translator = Translator([loaded.model], loaded.tokenizer, loaded.decoding)
        [[best]] = translator.translations([source], TranslationRequest(split="never"))
        if source.strip() and not best.text.strip():
            raise DataError("the model's translation of this sentence is empty; give a target with --target")
        target = loaded.tokenizer.as_divided(best.text, best.pieces)
    else:
        origin = "The target was given."
    maps = attention_maps(loaded, source, target)
    if output is not None and output.suffix == ".html":
        about = f"<p>{text(source)} → {text(target)}</p>"
        about += f"<p>Model: <code>{text(str(model))}</code>. {origin} {HOW_TO_READ}</p>"
        write_text(output, attention_page(f"Attention: {source}", about, maps, words=words))
        return
    chosen = next(entry for entry in maps if entry.kind == (kind or "cross"))
    num_layers, num_heads = chosen.weights.shape[:2]
    index = (layer or num_layers) - 1
    heads = sorted({number - 1 for number in head or range(1, num_heads + 1)})
    if index >= num_layers:
        raise BadParameter(f"the model has {console.counted(num_layers, 'layer')} of this kind", param_hint="--layer")
    if heads[-1] >= num_heads:
        raise BadParameter(f"the model has {console.counted(num_heads, 'head')}", param_hint="--head")
    if words:
        chosen = to_words(chosen)
    if word is not None:
        chosen = of_word(chosen, word)
    if output is not None:
        figure_file(output, chosen, index, heads)
    else:
        _print_heat_map(chosen, index, heads, with_zeros=word is None)


def _print_heat_map(entry: "AttentionMap", layer: int, heads: list[int], *, with_zeros: bool) -> None:
    """Print the mean weights of a layer. Columns have numbers as headings, as words would be too wide.

    Args:
        with_zeros: also print the rows without any weight, which those of other words are with --word.
    """
    from nmtkit.reports.attention_maps import TITLES, printable, strongest

    mean = entry.weights[layer, heads].mean(axis=0)
    rows = [
        (printable(row), shares, f"{printable(column)} {100 * weight:.0f} %" if weight else "attends elsewhere")
        for shares, (row, column, weight) in zip(mean.tolist(), strongest(entry, layer, heads), strict=True)
        if with_zeros or weight
    ]
    numbers = [str(number) for number in range(1, len(entry.columns.pieces) + 1)]
    named = "  ".join(
        f"{number} {printable(column)}" for number, column in zip(numbers, entry.columns.pieces, strict=True)
    )
    shown_heads = ", ".join(str(head + 1) for head in heads)
    title = f"{TITLES[entry.kind]}, layer {layer + 1}, mean of heads {shown_heads}, in percent"
    console.print_heat_map(title, numbers, rows, notes=[f"columns: {named}"])
