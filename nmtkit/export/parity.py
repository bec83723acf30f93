"""The check of an export: translate a sample of lines with nmtkit and with the other library, and compare.

    sample --> nmtkit            --> ids |  greedy search: all must be identical, except near ties
           --> the other library --> ids |  beam search and quantised weights: the similarity is reported

All searches run without constraints and without a coverage penalty.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.console import log
from nmtkit.corpora import synthetic
from nmtkit.data.batch import pad
from nmtkit.decoding.lengths import MAX_SOURCE_TOKENS
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.metrics import score
from nmtkit.files import as_text
from nmtkit.lines import read_lines
from nmtkit.model_folder import LoadedModel
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.text.vocabulary import BOS, EOS

SAMPLE_LINES = 100
NEAR_TIE = 1e-4
"""Maximum difference of two log-probabilities that rounding alone may rank differently."""

Ids = list[int]


@dataclass(frozen=True)
class ParitySample:
    """Lines that both libraries translate.

    Attributes:
        origin: file or corpus of the lines.
        numbers: line numbers there, from 1.
        lines: text; each line has at least one token, and no more than the model translates at once.
        sources: ids of each line.
    """

    origin: str
    numbers: list[int]
    lines: list[str]
    sources: list[Ids]


def take_sample(loaded: LoadedModel, folders: Sequence[Path], file: Path | None) -> ParitySample:
    """Return up to SAMPLE_LINES lines of a file, else of the validation source of a run, else of the built-in corpus.

    Args:
        folders: candidates for the run folder.

    Raises:
        DataError: the file cannot be read or has no line with text.
    """
    origin, lines = sample_lines([Run(folder).valid_text.source for folder in folders], file)
    longest = MAX_SOURCE_TOKENS
    if loaded.model.config.positions == "learned":
        longest = min(longest, loaded.model.config.max_positions - 1)  # the end symbol has a position, too
    # Ten times as many as needed, since those without tokens or with too many are left out.
    texts = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()][: 10 * SAMPLE_LINES]
    task, tokenizer = task_of(loaded.tokenizer), loaded.tokenizer
    encoded = tokenizer.encode([tokenizer.normalize(task.model_source(line)) for _, line in texts], "source")
    fitting = ((*text, ids) for text, ids in zip(texts, encoded, strict=True) if 0 < len(ids) <= longest)
    kept = list(itertools.islice(fitting, SAMPLE_LINES))
    if not kept:
        raise DataError(f"{origin}: there is no text to check the export on; give another file with --sample")
    numbers, kept_lines, sources = (list(column) for column in zip(*kept, strict=True))
    return ParitySample(origin, numbers, kept_lines, sources)


def sample_lines(candidates: Sequence[Path], file: Path | None) -> tuple[str, list[str]]:
    """Return the origin and the lines of a file, else of the first candidate there is, else of the built-in corpus."""
    files = [file] if file is not None else [path for path in candidates if path.is_file()]
    if files:
        return as_text(files[0]), read_lines(files[0])
    origin = "built-in corpus (made-up English)"
    log.warning("no validation text found: the export is checked on %s; give other text with --sample FILE", origin)
    return origin, [pair.source for pair in synthetic.generate("valid")]


def search(loaded: LoadedModel, sample: ParitySample, decoding: DecodingConfig) -> list[Ids]:
    """Return the ids of translations by nmtkit."""
    translator = Translator([loaded.model], loaded.tokenizer, decoding)
    # A translation holds pieces; each entry of a vocabulary has another name, so they determine the ids.
    index = {piece: number for number, piece in enumerate(loaded.tokenizer.entries("target"))}
    # The other library does not split lines into sentences.
    translations = translator.translations(sample.lines, TranslationRequest(split="never"))
    return [[index[piece] for piece in best.pieces] for best, *_ in translations]


def check_greedy(
    loaded: LoadedModel, sample: ParitySample, ours: list[Ids], theirs: list[Ids], to: str
) -> dict[str, Any]:
    """Refuse an export whose greedy translations differ; list near ties.

    Raises:
        ModelError: the first differing tokens of a line are no near tie; the message shows the first such line.
    """
    ties = []
    for number, line, source, our, their in zip(
        sample.numbers, sample.lines, sample.sources, ours, theirs, strict=True
    ):
        if our == their:
            continue
        # + 1, as one translation may be the beginning of the other; then the end symbol is the difference.
        index = next(i for i in range(len(our) + 1) if our[i : i + 1] != their[i : i + 1])
        choices = [(ids + [EOS])[index] for ids in (our, their)]
        with torch.inference_mode():
            prefix = torch.tensor([[BOS, *loaded.tokenizer.target_start, *our[:index]]])
            logits = loaded.model(pad([source], end=EOS), torch.tensor([len(source) + 1]), prefix)
            # In float64, so that the softmax adds no rounding of its own to the gap.
            log_probs = torch.log_softmax(logits[0, -1].double(), dim=-1)
        gap = float(log_probs[choices[0]] - log_probs[choices[1]])
        if not abs(gap) <= NEAR_TIE:  # not with >, so that NaN is refused as well
            pieces = loaded.tokenizer.pieces(choices, "target")
            raise ModelError(
                f"not exported: {to} translates line {number} of {sample.origin} differently; {line!r} becomes "
                f"{loaded.tokenizer.decode(our)!r} in nmtkit and {loaded.tokenizer.decode(their)!r} in {to}, first at "
                f"token {index + 1}, {pieces[0]!r} against {pieces[1]!r}, {gap:.6f} apart in log-probability"
            )
        ties.append({"line": number, "token": index + 1, "gap": gap})
    return {"lines": len(ours), "identical": _share_identical(ours, theirs), "near_ties": ties}


def compare(loaded: LoadedModel, ours: list[Ids], theirs: list[Ids]) -> dict[str, float]:
    """Return the share of lines that are identical, and BLEU with nmtkit's translations as reference."""
    hypotheses, references = ([loaded.tokenizer.translation(ids) for ids in side] for side in (theirs, ours))
    language = loaded.tokenizer.languages[1]
    scores = score(hypotheses, references, target_language=language, text="plain", metrics=["sacrebleu"])
    return {"identical": _share_identical(ours, theirs), "bleu": scores["sacrebleu"].score}


def _share_identical(ours: list[Ids], theirs: list[Ids]) -> float:
    return sum(our == their for our, their in zip(ours, theirs, strict=True)) / len(ours)
