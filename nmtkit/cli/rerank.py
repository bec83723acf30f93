"""`nmtkit rerank`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.streams import (
    grouped,
    input_lines,
    result_lines,
    warn_of_cut_lines,
    warn_of_invalid_lines,
    warn_of_other_direction,
    warn_of_whole_lines,
)
from nmtkit.corpora.corpus import local_lines
from nmtkit.errors import DataError, ModelError

WINDOW_HYPOTHESES = 4000


@options.search_options("length_penalty", "alpha")
def command(
    *,
    models: Annotated[
        list[Path] | None,
        Option(
            "--model", metavar="MODEL", help="Model or run folder; several form an ensemble unless each has a --weight."
        ),
    ] = None,
    weights: Annotated[
        list[float] | None,
        Option(
            "--weight",
            help="Weight of the model's score. With several models, give one --weight per --model: each model "
            "then scores separately and the weighted scores are added.  [default: 1]",
        ),
    ] = None,
    reverse_models: Annotated[
        list[Path] | None,
        Option(
            "--reverse-model",
            metavar="MODEL",
            help="Model of the other direction: it scores the source, given each hypothesis. Several form an ensemble.",
        ),
    ] = None,
    reverse_weight: Annotated[
        float | None, Option(help="Weight of the score of --reverse-model.  [default: 1]")
    ] = None,
    original_weight: Annotated[float, Option(help="Weight of the score that the list already contains.")] = 0.0,
    input_: Annotated[
        Path | None, Option(help="N-best lists: JSON lines, or NUMBER ||| TEXT ||| ...  [default: stdin]")
    ] = None,
    source: Annotated[Path | None, Option(help="Source text, for lists with |||, which do not contain it.")] = None,
    count_from: Annotated[
        int | None,
        Option(metavar="0|1", min=0, max=1, help="First line number in the lists: 0 or 1.  [default: detected]"),
    ] = None,
    output: options.Result = None,
    whole_list: Annotated[
        bool, Option("--list", help="Write the complete lists in their new order instead of only the best hypotheses.")
    ] = False,
    search: dict[str, Any],
    from_: options.From = None,
    to: options.To = None,
    max_tokens: options.MaxTokens = None,
    batch_tokens: options.BatchTokens = None,
    precision: options.ScoringPrecision = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Choose the best hypothesis from each n-best list with one or more models.

    Write one line for each source line, in order.

    Example: nmtkit rerank --model runs/b --input lists.jsonl --output best.de
    """
    from nmtkit.data.context import preceding
    from nmtkit.decoding.forced import BATCH_TOKENS, MAX_TOKENS, ForcedDecoder
    from nmtkit.decoding.lengths import length_penalty
    from nmtkit.decoding.rerank import Candidate, Feature, as_lines, read_lists, rerank

    models, reverse_models = models or [], reverse_models or []
    if not models and not reverse_models:
        raise BadParameter("give a --model, a --reverse-model, or both")
    if weights and not models:
        raise BadParameter("--weight is that of --model; with --reverse-model alone, give --reverse-weight")
    if reverse_weight is not None and not reverse_models:
        raise BadParameter("--reverse-weight is that of --reverse-model, which is not given")
    weights = weights or [1.0]
    if models and len(weights) not in (1, len(models)):
        raise BadParameter(
            f"--model is given {len(models)} times, but --weight {len(weights)} times; give one --weight per --model"
        )
    options.check_files([("--output", output)], [("--input", input_), ("--source", source)])
    reader = input_lines(input_, "n-best lists", "replace")
    sources = None if source is None else local_lines(source, "replace")
    lists = read_lists(reader, None if sources is None else list(sources), count_from)
    max_tokens, batch_tokens = max_tokens or MAX_TOKENS, batch_tokens or BATCH_TOKENS
    torch_device = options.start_device(device, threads)
    features, decoders, context = [], [], 0
    # The models of a group form an ensemble.
    groups = [[model] for model in models] if len(weights) == len(models) else [models]
    weighted = [(group, weight, False) for group, weight in zip(groups, weights, strict=True) if group]
    if reverse_models:
        weighted.append((reverse_models, 1.0 if reverse_weight is None else reverse_weight, True))
    for group, weight, is_reversed in weighted:
        try:
            languages = (from_, to) if is_reversed else (to, from_)
            decoder = ForcedDecoder.load(group, torch_device, precision, *languages)
        except DataError as error:
            if not is_reversed:
                raise
            raise DataError(f"{group[0]}: {error}; for a --reverse-model, --from and --to are exchanged") from None
        decoders.append((decoder, group[0], is_reversed))
        decoding = decoder.decoding.model_copy(update=search)
        score = partial(decoder.score, batch_tokens=batch_tokens, max_tokens=max_tokens)
        if "target" in decoder.tokenizer.context_sides:
            raise ModelError(
                f"{group[0]}: reranking does not know the translations of the sentences before, which a model with "
                'data.context_sides = "both" reads; take a model with context_sides = "source"'
            )
        if is_reversed and decoder.tokenizer.context:
            raise ModelError(
                f"{group[0]}: a --reverse-model must not be trained with context; its sources are hypotheses"
            )
        context = max(context, decoder.tokenizer.context)
        penalty = length_penalty(decoding.length_penalty, decoding.alpha)
        tokenizer = decoder.tokenizer
        features.append(Feature(score, weight, penalty, len(tokenizer.target_start), tokenizer.as_divided, is_reversed))
    with result_lines(output) as write, console.progress("reranking", None) as advance:
        done = 0
        cut: list[int] = []
        whole: list[int] = []
        missing: list[int] = []
        best: list[tuple[str, Candidate]] = []
        documents = (
            replace(entry, before=tuple(earlier.source for earlier in before))
            for entry, before in preceding(lists, context, lambda entry: not entry.source.strip())
        )
        for window in grouped(documents, WINDOW_HYPOTHESES, lambda entry: max(1, len(entry.candidates))):
            rankings = rerank(window, features, original_weight=original_weight)
            if len(best) < 50:
                best += [(entry.source, own[0].candidate) for entry, own in zip(window, rankings, strict=True) if own]
            for entry, ranking in zip(window, rankings, strict=True):
                done += 1
                write(as_lines(entry, ranking) if whole_list else [ranking[0].candidate.text if ranking else ""])
                if any(ranked.is_cut for ranked in ranking):
                    cut.append(done)
                if not ranking and entry.source.strip():
                    missing.append(done)
                elif any(decoder.would_split(entry.source) for decoder, _, is_reversed in decoders if not is_reversed):
                    whole.append(done)
            advance(done, note=f"{done:,} lists")
    for decoder, model, is_reversed in decoders:
        read = [(source, decoder.tokenizer.as_divided(each.text, each.tokens)) for source, each in best]
        pairs, option = ([pair[::-1] for pair in read], "--model") if is_reversed else (read, "--reverse-model")
        warn_of_other_direction(decoder, pairs, model, f"name the model with {option}", batch_tokens, max_tokens)
    warn_of_cut_lines("source or the hypothesis", cut, max_tokens)
    warn_of_whole_lines(whole)
    if missing:
        console.log.warning("%s: no list for %s", reader.name, console.listed(missing))
    for used in (reader, sources):
        if used is not None:
            warn_of_invalid_lines(used)
