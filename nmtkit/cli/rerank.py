"""`nmtkit rerank`."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmtkit.cli.options import (
    BatchTokensOption,
    DeviceOption,
    MaxTokensOption,
    QuietOption,
    ScoringPrecisionOption,
    ThreadsOption,
    check_decoding,
    check_files,
)

if TYPE_CHECKING:
    from nmtkit.decoding.rerank import Feature

WINDOW_HYPOTHESES = 4000


def command(
    models: Annotated[
        list[Path],
        typer.Option(
            "--model", metavar="MODEL", help="Model or run folder; several form an ensemble unless --weight is given."
        ),
    ],
    weights: Annotated[
        list[float] | None,
        typer.Option(
            "--weight",
            metavar="X",
            help="Weight of the model's score. With several models, give one --weight per --model: each model "
            "then scores separately and the weighted scores are added.  [default: 1]",
        ),
    ] = None,
    original_weight: Annotated[
        float,
        typer.Option("--original-weight", metavar="X", help="Weight of the score that the list already contains."),
    ] = 0.0,
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE", help="N-best lists: JSON lines, or NUMBER ||| TEXT ||| ...  [default: stdin]"
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="FILE", help="Source text, for lists with |||, which do not contain it."),
    ] = None,
    count_from: Annotated[
        int | None,
        typer.Option(
            "--count-from",
            metavar="0|1",
            min=0,
            max=1,
            help="First line number in the lists: 0 or 1.  [default: detected]",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="File for the result, plain or .gz.  [default: stdout]"),
    ] = None,
    whole_list: Annotated[
        bool,
        typer.Option("--list", help="Write the complete lists in their new order instead of only the best hypotheses."),
    ] = False,
    length_penalty: Annotated[
        str | None,
        typer.Option(
            "--length-penalty",
            metavar="wu|length|none",
            help="Length penalty, as in `translate`.  [default: the recipe's]",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", metavar="X", min=0, help="Exponent of the length penalty.  [default: the recipe's]"),
    ] = None,
    max_tokens: MaxTokensOption = None,
    batch_tokens: BatchTokensOption = None,
    precision: ScoringPrecisionOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Choose the best hypothesis from each n-best list with one or more models.

    Write one line for each source line, in order.

    Example: nmtkit rerank --model runs/b --input lists.jsonl --output best.de
    """
    from nmtkit import console
    from nmtkit.cli.lines import result_lines, warn_of_cut_lines, warn_of_invalid_lines, windows
    from nmtkit.decoding.forced import MAX_TOKENS
    from nmtkit.decoding.rerank import as_lines, read_lists, rerank
    from nmtkit.errors import DataError
    from nmtkit.files import LineReader

    weights = weights or [1.0]
    if len(weights) not in (1, len(models)):
        raise typer.BadParameter(
            f"--model is given {len(models)} times, but --weight {len(weights)} times; give one --weight per --model"
        )
    check_files([("--output", output)], [("--input", input_), ("--source", source)])
    stated = {"length_penalty": length_penalty, "alpha": alpha}
    check_decoding({key: value for key, value in stated.items() if value is not None})
    console.set_up(quiet=quiet)
    if input_ is None and sys.stdin is None:
        raise DataError("stdin is closed; pipe n-best lists into it, or give a file with --input")
    reader = (
        LineReader(input_, errors="replace")
        if input_ is not None
        else LineReader(sys.stdin.buffer, name="stdin", errors="replace")
    )
    sources_reader = None if source is None else LineReader(source, errors="replace")
    sources = None if sources_reader is None else list(sources_reader)
    lists = read_lists(reader, sources, count_from)
    groups = [[model] for model in models] if len(weights) == len(models) else [models]
    most = max_tokens or MAX_TOKENS
    features = _load_features(groups, weights, length_penalty, alpha, most, batch_tokens, precision, device, threads)
    with result_lines(output) as write, console.progress("reranking", None) as advance:
        done = 0
        cut: list[int] = []
        for window in windows(lists, WINDOW_HYPOTHESES, lambda entry: max(1, len(entry.candidates))):
            rankings = rerank(window, features, original_weight=original_weight)
            for entry, ranking in zip(window, rankings, strict=True):
                done += 1
                write(as_lines(entry, ranking) if whole_list else [ranking[0].candidate.text if ranking else ""])
                if any(ranked.is_cut for ranked in ranking):
                    cut.append(done)
            advance(done, note=f"{done:,} lists")
    warn_of_cut_lines(cut, most)
    for used in (reader, sources_reader):
        if used is not None:
            warn_of_invalid_lines(used)


def _load_features(
    groups: Sequence[list[Path]],
    weights: Sequence[float],
    length_penalty: str | None,
    alpha: float | None,
    max_tokens: int,
    batch_tokens: int | None,
    precision: str | None,
    device: str,
    threads: int | None,
) -> list["Feature"]:
    """Reads the models; those of a group are an ensemble."""
    from nmtkit.decoding.forced import BATCH_TOKENS, ForcedDecoder
    from nmtkit.decoding.lengths import length_penalty as penalty_of
    from nmtkit.decoding.rerank import Feature
    from nmtkit.distributed.cpu import set_threads
    from nmtkit.distributed.workers import choose_device

    set_threads(threads)
    features = []
    for group, weight in zip(groups, weights, strict=True):
        decoder = ForcedDecoder.load(group, choose_device(device), precision)
        penalty = penalty_of(
            length_penalty or decoder.decoding.length_penalty,  # type: ignore[arg-type]
            decoder.decoding.alpha if alpha is None else alpha,
        )
        score = partial(decoder.score, batch_tokens=batch_tokens or BATCH_TOKENS, max_tokens=max_tokens)
        features.append(Feature(score, weight, penalty))
    return features
