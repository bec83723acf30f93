"""`nmtkit score`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmtkit.cli.options import DeviceOption, QuietOption, ScoringPrecisionOption, ThreadsOption

if TYPE_CHECKING:
    from nmtkit.decoding.forced import ForcedDecoder, ForcedScore
    from nmtkit.evaluation.scoring import Score
    from nmtkit.files import LineReader

WINDOW_LINES = 2000


def command(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run with translations.", show_default=False)
    ] = None,
    hypothesis: Annotated[
        Path | None, typer.Option("--hypothesis", metavar="FILE", help="Translations, one a line, plain or .gz.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE", help="Reference translations.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="FILE", help="The source; only its number of lines matters, but to --model."),
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option("--target-language", metavar="de", help="Needed for scores that tokenise as Moses does."),
    ] = None,
    text: Annotated[
        str, typer.Option("--text", metavar="plain|tokenized", help="Whether the text is split into words already.")
    ] = "plain",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="M", help="Only this metric; may be repeated. evalb: of trees, one a line."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Writes the scores there, keyed by the hypothesis file."),
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Model or run folder: how likely it finds each line of --hypothesis as a translation of --source. "
            "Several form an ensemble.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Of --model: its scores, plain or .gz.  [default: stdout]"),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="tsv|jsonl",
            help="Of --model: log-probability, tokens, perplexity and status divided by tabs, or lines of JSON.  "
            "[default: tsv]",
        ),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Of --model: also the log-probability of each token, and the tokens.")
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            metavar="N",
            min=1,
            help="Of --model: of longer lines the first N tokens count.  [default: 1024]",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens",
            metavar="N",
            min=1,
            help="Of --model: source or target tokens scored at once.  [default: 2048]",
        ),
    ] = None,
    precision: ScoringPrecisionOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Translations to scores, each with its name and signature; for a run also what its training cost; by a model the
    log-probability of each line.

    Examples: nmtkit score runs/quickstart;
    nmtkit score --hypothesis out.de --reference test.de --target-language de;
    nmtkit score --model runs/quickstart --source test.en --hypothesis out.de | cut -f1
    """
    from nmtkit import console

    console.set_up(quiet=quiet)
    if models:
        if run or reference or target_language or metric or json_file or text != "plain":
            raise typer.BadParameter(
                "--model takes --source and --hypothesis, no RUN, no --reference and nothing of the metrics"
            )
        if source is None or hypothesis is None:
            raise typer.BadParameter("--model needs --source and --hypothesis")
        if form not in (None, "tsv", "jsonl"):
            raise typer.BadParameter(f"{form!r} is not one of tsv, jsonl", param_hint="--format")
        decoder = _load_decoder(models, source, hypothesis, precision, device, threads)
        _score_by_model(decoder, source, hypothesis, output, form == "jsonl", tokens, max_tokens, batch_tokens)
        return
    if output or form or tokens or max_tokens or batch_tokens or precision or threads or device != "auto":
        raise typer.BadParameter("--output, --tokens, --device and the like go with --model")
    if (run is None) == (hypothesis is None and reference is None):
        raise typer.BadParameter("give a RUN, or --hypothesis and --reference")
    if run is not None:
        if source or target_language or metric or json_file or text != "plain":
            raise typer.BadParameter("a RUN says all itself; --source, --text and the others go with --hypothesis")
        _score_run(run)
        return
    if hypothesis is None or reference is None:
        raise typer.BadParameter("--hypothesis and --reference belong together")
    if text not in ("plain", "tokenized"):
        raise typer.BadParameter(f"{text!r} is not one of plain, tokenized", param_hint="--text")
    _score_files(hypothesis, reference, source, target_language, text, metric or None, json_file)


def _score_files(
    hypothesis: Path,
    reference: Path,
    source: Path | None,
    target_language: str | None,
    text: str,
    metrics: list[str] | None,
    json_file: Path | None,
) -> None:
    from nmtkit.errors import DataError
    from nmtkit.evaluation.scoring import left_out, score, scores_as_json
    from nmtkit.files import read_lines, write_json

    lines = {path: read_lines(path) for path in (hypothesis, reference, source) if path is not None}
    for path in lines:
        if len(lines[path]) != len(lines[hypothesis]):
            raise DataError(
                f"{hypothesis} has {len(lines[hypothesis])} lines, but {path} has {len(lines[path])}; "
                "line n of one must belong to line n of the other"
            )
    if not lines[hypothesis]:
        raise DataError(f"{hypothesis} and {reference} are empty: there is nothing to score")
    kind = "tokenized" if text == "tokenized" else "plain"
    scores = score(lines[hypothesis], lines[reference], target_language=target_language, text=kind, metrics=metrics)  # type: ignore[arg-type]
    missing = left_out(target_language=target_language, text=kind) if metrics is None else {}  # type: ignore[arg-type]
    print_scores({str(hypothesis): scores}, missing)
    if json_file is not None:
        write_json(json_file, {str(hypothesis): scores_as_json(scores)})


def _load_decoder(
    models: list[Path], source: Path, hypothesis: Path, precision: str | None, device: str, threads: int | None
) -> "ForcedDecoder":
    from nmtkit.decoding.forced import ForcedDecoder
    from nmtkit.workers import choose_device, set_threads

    _count(source, hypothesis)  # before a large model is read for nothing
    set_threads(threads)
    return ForcedDecoder.load(models, choose_device(device), precision)


def _score_by_model(
    decoder: "ForcedDecoder",
    source: Path,
    hypothesis: Path,
    output: Path | None,
    as_json: bool,
    tokens: bool,
    max_tokens: int | None,
    batch_tokens: int | None,
) -> None:
    from nmtkit import console
    from nmtkit.cli.lines import result_lines, warn_of_cut_lines, warn_of_invalid_lines, windows
    from nmtkit.decoding.forced import BATCH_TOKENS, MAX_TOKENS
    from nmtkit.files import LineReader

    readers = [LineReader(path, errors="replace") for path in (source, hypothesis)]
    most = max_tokens or MAX_TOKENS
    with result_lines(output) as write, console.progress("scoring", _count(source, hypothesis)) as advance:
        done = 0
        cut: list[int] = []
        for window in windows(_pairs(*readers), WINDOW_LINES):
            scores = decoder.score(window, batch_tokens=batch_tokens or BATCH_TOKENS, max_tokens=most)
            numbered = list(enumerate(scores, start=done + 1))
            invalid = {number for reader in readers for number in reader.invalid_lines}
            pieces = [decoder.tokenizer.pieces(score.ids, "target") if tokens else None for score in scores]
            write(
                _model_line(number, score, of_line, as_json=as_json, invalid_utf8=number in invalid)
                for (number, score), of_line in zip(numbered, pieces, strict=True)
            )
            cut.extend(number for number, score in numbered if score.is_cut)
            done += len(window)
            advance(done, note=f"{done:,} lines")
    warn_of_cut_lines(cut, most)
    for reader in readers:
        warn_of_invalid_lines(reader)


def _count(source: Path, hypothesis: Path) -> int | None:
    """How many lines both have; None where one is a pipe, which could not be read again.

    Raises:
        DataError: one has more lines than the other.
    """
    from nmtkit.files import LineReader

    if not (source.is_file() and hypothesis.is_file()):
        return None
    return sum(1 for _ in _pairs(*(LineReader(path, errors="replace") for path in (source, hypothesis))))


def _pairs(sources: "LineReader", hypotheses: "LineReader") -> Iterator[tuple[str, str]]:
    """The lines of two files in step.

    Raises:
        DataError: one has more lines than the other.
    """
    from itertools import zip_longest

    from nmtkit.errors import DataError

    unequal = False
    for source, hypothesis in zip_longest(sources, hypotheses):
        if source is None or hypothesis is None:
            unequal = True  # and the longer one is counted to its end
        else:
            yield source, hypothesis
    if unequal:
        raise DataError(
            f"{sources.name} has {sources.num_lines} lines, but {hypotheses.name} has {hypotheses.num_lines}; line n "
            "of one must belong to line n of the other"
        )


def _model_line(
    number: int, score: "ForcedScore", pieces: list[str] | None, *, as_json: bool, invalid_utf8: bool
) -> str:
    """A score as a line, with its tokens where their pieces are given; these may hold tabs, so they come last."""
    from nmtkit.files import json_line

    status = [*score.remarks, *(["invalid_utf8"] if invalid_utf8 else [])] or ["ok"]
    if as_json:
        fields: dict[str, object] = {
            "line": number,
            "log_prob": score.log_prob,
            "length": len(score.ids),
            "perplexity": score.perplexity,
            "status": status,
        }
        if pieces is not None:
            fields |= {"tokens": pieces, "token_log_probs": list(score.log_probs)}
        return json_line(fields).removesuffix("\n")
    columns = [f"{score.log_prob:.6f}", str(len(score.ids)), f"{score.perplexity:.6g}", ",".join(status)]
    if pieces is not None:
        columns += [" ".join(f"{log_prob:.6f}" for log_prob in score.log_probs), " ".join(pieces)]
    return "\t".join(columns)


def _score_run(run: Path) -> None:
    from nmtkit.files import read_json
    from nmtkit.pipeline import score_run

    print_scores(score_run(run), {})
    print_cost(read_json(run / "cost.json"))


def print_scores(scores: dict[str, dict[str, "Score"]], missing: dict[str, str]) -> None:
    """Prints a table of scores; below it each one's signature, what it may be compared to, and what was left out."""
    from nmtkit import console
    from nmtkit.evaluation.scoring import comparable_to

    rows = [
        [name, metric, f"{entry.score:.2f}", entry.details]
        for name, entries in scores.items()
        for metric, entry in entries.items()
    ]
    signatures = {metric: entry.signature for entries in scores.values() for metric, entry in entries.items()}
    notes = ["Signature of each metric, and what it may be compared to:"]
    notes += [f"  {metric}  {signature}\n      {comparable_to(metric)}" for metric, signature in signatures.items()]
    notes += [f"  {metric}  left out: {reason}" for metric, reason in missing.items()]
    console.print_table("Scores", ["test", "metric", "score", "details"], rows, notes=notes)


def print_cost(cost: dict) -> None:
    """Prints what a training has cost."""
    from nmtkit import console

    rows = [
        ["updates", f"{cost['updates']:,}"],
        ["target tokens seen", f"{cost['target_tokens']:,}"],
        [
            "time",
            f"{console.duration(cost['seconds'])} on {cost['processes']} x {cost['device']} ({cost['precision']})",
        ],
        ["FLOPs, counted", f"{cost['flops']:.3g} ({cost['flops_per_second'] / 1e9:.1f} GFLOP/s)"],
        [
            "FLOPs, the paper's way",
            f"{cost['flops_paper_estimate']:.3g} (time x devices x {cost['sustained_flops_per_second'] / 1e9:.1f} "
            f"GFLOP/s, {cost['sustained_source']})",
        ],
    ]
    console.print_table("Training cost", ["what", "value"], rows)
