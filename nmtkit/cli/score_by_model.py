"""`nmtkit score --model`: the log-probability of each line as a translation of its source, or of a whole text."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.streams import (
    grouped,
    result_lines,
    warn_of_cut_lines,
    warn_of_invalid_lines,
    warn_of_other_direction,
    warn_of_whole_lines,
)
from nmtkit.corpora.corpus import local_format, local_lines
from nmtkit.data.context import preceding
from nmtkit.decoding.forced import BATCH_TOKENS, MAX_TOKENS, ForcedDecoder, ForcedScore
from nmtkit.decoding.running_text import ContinuationScorer, score_text, trained_length
from nmtkit.errors import DataError, ModelError
from nmtkit.json_toml import json_line
from nmtkit.lines import LineReader, any_text
from nmtkit.run import find_model, load_ensemble
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import Tokenizer

WINDOW_LINES = 2000


def score_by_model(
    models: list[Path],
    source: Path,
    hypothesis: Path,
    *,
    output: Path | None,
    as_json: bool,
    tokens: bool,
    max_tokens: int | None,
    batch_tokens: int | None,
    precision: Literal["float64", "float32"] | None,
    device: str,
    threads: int | None,
    to: str | None = None,
    from_: str | None = None,
) -> None:
    """Write the score of each pair of lines; a language model continues the source by the hypothesis.

    Raises:
        NmtkitError: the files have different numbers of lines, or a model cannot be read.
    """
    total = None  # unknown for pipes, which cannot be read twice
    if all(local_format(path)[0].is_file() for path in (source, hypothesis)):
        # This also checks the numbers of lines before a large model is loaded.
        total = sum(1 for _ in _pairs(local_lines(source, "replace"), local_lines(hypothesis, "replace")))
    chosen_device = options.start_device(device, threads)
    decoder: ForcedDecoder | ContinuationScorer
    task = task_of(Tokenizer.of_model(find_model(models[0])))
    if not task.has_source:
        if from_ is not None:
            raise ModelError(f"{models[0]}: a language model has no source language; leave out --from")
        decoder = ContinuationScorer(load_ensemble(models, chosen_device), precision)
        if to is not None:
            decoder.tokenizer.in_direction(to)
    else:
        decoder = ForcedDecoder.load(models, chosen_device, precision, to, from_)
    readers = [local_lines(source, "replace"), local_lines(hypothesis, "replace")]
    max_tokens, batch_tokens = max_tokens or MAX_TOKENS, batch_tokens or BATCH_TOKENS
    with result_lines(output) as write, console.progress("scoring", total) as advance:
        done = 0
        remarks, doubts = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        whole: list[int] = []
        documents = preceding(_pairs(*readers), decoder.tokenizer.context, lambda pair: not pair[0].strip())
        for window in grouped(documents, WINDOW_LINES):
            pairs, before = zip(*window, strict=True)
            if not done and isinstance(decoder, ForcedDecoder):
                remedy = "exchange --source and --hypothesis"
                warn_of_other_direction(decoder, pairs, models[0], remedy, batch_tokens, max_tokens)
            scores = decoder.score(pairs, before, batch_tokens=batch_tokens, max_tokens=max_tokens, first_line=done + 1)
            invalid = {number for reader in readers for number in reader.invalid_lines}
            lines = []
            for number, (pair, score) in enumerate(zip(pairs, scores, strict=True), start=done + 1):
                if decoder.tokenizer.context and not any_text(*pair):  # certain, and without tokens, as in translation
                    score = ForcedScore((), (), score.remarks)
                fields: dict[str, Any] = {
                    "line": number,
                    "log_prob": score.log_prob,
                    "length": len(score.ids),
                    "perplexity": score.perplexity,
                    "status": [*score.remarks, *(["invalid_utf8"] if number in invalid else [])] or ["ok"],
                }
                if tokens:
                    fields["tokens"] = decoder.tokenizer.pieces(score.ids, "target")
                    fields["token_log_probs"] = list(score.log_probs)
                lines.append(_line(fields, as_json=as_json))
                for remark in score.remarks:
                    remarks[remark].append(number)
                if doubt := task.source_doubt(pair[0]):
                    doubts[doubt].append(number)
                if isinstance(decoder, ForcedDecoder) and decoder.would_split(pair[0]):
                    whole.append(number)
            write(lines)
            done += len(window)
            advance(done, note=console.counted(done, "line"))
    for side in ("source", "hypothesis"):
        warn_of_cut_lines(side, remarks[f"cut_{side}"], max_tokens)
    warn_of_whole_lines(whole)
    for doubt, numbers in doubts.items():
        console.log.warning("%s: %s", doubt, console.listed(numbers))
    if unknown := remarks["unknown_tokens"]:
        remedy = "; words have to be divided as in the training text" if decoder.tokenizer.segment_mark else ""
        console.log.warning("<unk> in the hypothesis of %s%s", console.listed(unknown), remedy)
    for reader in readers:
        warn_of_invalid_lines(reader)


def score_running_text(
    models: Sequence[Path], text: Path, *, output: Path | None, as_json: bool, device: str, threads: int | None
) -> None:
    """Write the score of a whole text by a language model or an ensemble, as one line.

    Raises:
        NmtkitError: the text cannot be read or has fewer than two tokens, or the model is no language model.
    """
    loaded = load_ensemble(models, options.start_device(device, threads))
    task = task_of(loaded[0].tokenizer)
    if task.command == "translate":
        raise ModelError(f"{models[0]}: this model translates, so its scores need --source")
    task.require("generate")
    reader = local_lines(text, "replace")
    score = score_text(loaded, list(reader), trained_length(loaded), reader.name)
    score.warn_of_unknown(reader.name)
    found = {"unknown_tokens": score.unknown, "invalid_utf8": reader.invalid_lines}
    status = [name for name, is_there in found.items() if is_there] or ["ok"]
    fields = {
        "log_prob": -score.nll,
        "length": score.tokens,
        "perplexity": score.perplexity,
        "word_perplexity": score.word_perplexity,
        "bits_per_character": score.bits_per_character,
        "status": status,
    }
    with result_lines(output) as write:
        write([_line(fields, as_json=as_json)])
    warn_of_invalid_lines(reader)


def _pairs(sources: LineReader, hypotheses: LineReader) -> Iterator[tuple[str, str]]:
    """Yield pairs of lines of two files.

    Raises:
        DataError: the files have different numbers of lines.
    """
    unequal = False
    for source, hypothesis in zip_longest(sources, hypotheses):
        if source is None or hypothesis is None:
            unequal = True  # keep reading, to count the lines of the longer file
        else:
            yield source, hypothesis
    if unequal:
        raise DataError(
            f"{sources.name} has {console.counted(sources.num_lines, 'line')}, but {hypotheses.name} has "
            f"{hypotheses.num_lines}; line n of one must belong to line n of the other"
        )


def _line(fields: dict[str, Any], *, as_json: bool) -> str:
    """Return a score as a line of JSON, or its main fields with tabs between them; tokens may contain tabs, too."""
    if as_json:
        return json_line(fields)
    columns = [f"{fields['log_prob']:.6f}", str(fields["length"]), f"{fields['perplexity']:.6g}"]
    columns.append(",".join(fields["status"]))
    if "tokens" in fields:
        columns += [" ".join(f"{log_prob:.6f}" for log_prob in fields["token_log_probs"]), " ".join(fields["tokens"])]
    return "\t".join(columns)
