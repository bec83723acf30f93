"""Text in, text out: a model's whole way from a line to its translation.

line -> normalised -> ids -> (cut where longer than the model takes) -> batches of like length -> search
     -> ids -> text, one line for each line, in the order of the input
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from nmtkit.config.schema import DecodingConfig, TrainingLengths
from nmtkit.console import counted
from nmtkit.data.batch import pad
from nmtkit.data.batching import cut_by_padded_tokens
from nmtkit.decoding.constraints import (
    forbidden_phrases,
    forced_prefixes,
    no_repeated_ngrams,
)
from nmtkit.decoding.required_phrases import holds, with_required
from nmtkit.decoding.sampling import drawn
from nmtkit.decoding.search import (
    Chooser,
    Hypothesis,
    Rule,
    SearchOptions,
    beam_search,
    best_continuations,
    length_penalty,
)
from nmtkit.decoding.source_parts import cut_source, is_short, longest_translation, source_limit
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.errors import DataError, NmtkitError
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer
from nmtkit.run import load_ensemble
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import BOS, EOS, UNK, Tokenizer

BATCH_TOKENS = 2048

Precision = Literal["float32", "bf16", "fp16"]
_DTYPES: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """How to draw translations instead of searching for the best.

    Attributes:
        temperature, top_k, top_p: see `drawn` in sampling.py.
        seed: with the number of a line it decides what is drawn for that line.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that mean nothing."""
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is a positive number, not {self.temperature}")
        if self.top_k < 0 or self.seed < 0:
            raise ValueError(f"top_k and seed are at least 0, not {self.top_k} and {self.seed}")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p is a share, from 0 to 1, not {self.top_p}")


@dataclass(frozen=True)
class Batching:
    """How many sentences are translated at once; it changes no translation.

    Attributes:
        sentences: of a batch.
        tokens: source tokens of a batch, padding counted, where ``sentences`` is not given.
    """

    sentences: int | None = None
    tokens: int = BATCH_TOKENS

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that mean nothing."""
        if (self.tokens if self.sentences is None else self.sentences) < 1:
            raise ValueError("a batch has at least one sentence, and at least one token")


@dataclass(frozen=True)
class TranslationRequest:
    """What is asked of translations beyond the decoding settings.

    Attributes:
        n_best: translations of each line.
        sampling: draws that many instead of searching for the best.
        prefixes: how the translation of each line begins; none, or one for each line.
        required: phrases that the translation of each line holds; none, or a list for each line.
        forbidden: phrases that no translation holds.
        attention: whether translations carry alignments.
        max_source_tokens: longer sources are cut, and the translations of their parts joined with a blank; by default
            the longest source seen in training.
        first_line: the number of the first line, from 1, in messages and for the seeds of samples.
    """

    n_best: int = 1
    sampling: Sampling | None = None
    prefixes: Sequence[str] = ()
    required: Sequence[Sequence[str]] = ()
    forbidden: Sequence[str] = ()
    attention: bool = False
    max_source_tokens: int | None = None
    first_line: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that mean nothing, and TypeError for one string where there may be several."""
        if min(self.n_best, self.first_line, 1 if self.max_source_tokens is None else self.max_source_tokens) < 1:
            raise ValueError("n_best, max_source_tokens and first_line are at least 1")
        if any(isinstance(texts, str) for texts in (self.prefixes, self.required, self.forbidden, *self.required)):
            raise TypeError(
                "prefixes and forbidden are lists of strings, and required is a list of lists of them; each character "
                "of one string would be a phrase"
            )


@dataclass(frozen=True)
class Translation:
    """One translation of a line. Of a line that was cut, numbers are sums over its parts.

    Attributes:
        log_prob: natural logarithm of its probability, end symbols counted.
        score: what the search went by: log_prob over the length penalty, and the coverage penalty.
        pieces: its tokens; of a line that was cut those of all parts, an end symbol after each part but the last.
        token_log_probs: of each piece, and of the last end symbol.
        alignment: where asked for: for each piece the number, from 0, of the source piece it attended to most, the
            source's end symbol left aside.
        hit_limit: whether it, or a part of it, was ended by the maximum length.
        parts: into how many the source was cut.
        is_short: whether it, or a part of it, has so few tokens for its source that text was probably lost.
        is_unmet: whether it does not begin as asked for, or lacks a required phrase.
        is_mended: of a tree, whether what the model said was not one over the words; None of text.
        source_pieces: what the numbers of ``alignment`` count: the source's tokens, of a line that was cut those of all
            parts.
    """

    text: str
    log_prob: float
    score: float
    pieces: tuple[str, ...]
    token_log_probs: tuple[float, ...]
    alignment: tuple[int, ...] | None = None
    hit_limit: bool = False
    parts: int = 1
    is_short: bool = False
    is_unmet: bool = False
    is_mended: bool | None = None
    source_pieces: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Part:
    """A source that is translated at once: a line, or a part of one, of so many words."""

    line: int
    ids: list[int]
    words: int
    number: int = 0
    prefix: Ids = ()
    required: tuple[Ids, ...] = ()


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair, as invalid UTF-8 is read by some: no character."""

_SMALL = 256
"""Widths below this give so small products for one sentence that two threads are but little faster than one."""


class Translator:
    """Translates lines with one model, or with several of the same vocabulary as an ensemble.

    It takes the models as they are; of weights changed later only some are seen, so then make another one.

    Attributes:
        tokenizer: text to ids and back.
        decoding: how to search.
        precision: of the matrix products.
        device: the kind of device it computes on: cpu, cuda or mps.
        lengths: those of the first model's training pairs, where they are known.
        weights_sha256: the sums of the files that the models were read from, in their order.
        is_small: whether products for one sentence at a time are too small to be shared among many threads.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: DecodingConfig,
        precision: Precision = "float32",
        lengths: TrainingLengths | None = None,
    ) -> None:
        """Takes models; arguments as of `load`."""
        if precision not in _DTYPES:
            raise NmtkitError(f"precision {precision}: choose {', '.join(_DTYPES)}")
        dtype = _DTYPES[precision]
        if precision == "fp16" and models[0].output_embedding.device.type == "cpu":
            raise NmtkitError("precision fp16 is for GPUs; choose bf16 or float32 on a CPU")
        self._decoders = [StepDecoder(model, dtype) for model in models]
        self.weights_sha256: tuple[str, ...] = ()
        self.precision = precision
        self.tokenizer = tokenizer
        self.task = task_of(tokenizer)
        self.decoding = decoding
        self.lengths = lengths
        self.is_small = all(model.config.d_model < _SMALL for model in models)
        self._device = models[0].output_embedding.device
        self.device = self._device.type
        limits = [model.config.max_positions for model in models if model.config.positions == "learned"]
        self._max_tokens = min([limit - 1 for limit in limits], default=None)

    @classmethod
    def load(
        cls,
        models: str | Path | Sequence[str | Path],
        device: torch.device | str | None = None,
        precision: Precision = "float32",
    ) -> "Translator":
        """Reads a model, or several as an ensemble: model folders, run folders or checkpoints.

        Args:
            precision: float32; or bf16 or fp16, which are faster and translate some lines otherwise. On a CPU (bf16
                only) they hold for matrix products and all else stays float32, on GPUs for all but the softmax over the
                vocabulary.

        Raises:
            ModelError: one is not there or damaged, or their vocabularies differ.
            NmtkitError: fp16 on a CPU.
        """
        loaded = load_ensemble(models, device)
        first = loaded[0]
        translator = cls([entry.model for entry in loaded], first.tokenizer, first.decoding, precision, first.lengths)
        translator.weights_sha256 = tuple(entry.provenance["files"]["model.safetensors"] for entry in loaded)
        return translator

    def translate(
        self,
        lines: Sequence[str],
        *,
        max_source_tokens: int | None = None,
        batching: Batching = Batching(),
        before_batch: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """One translation for each line; an empty one for a line without text.

        Args:
            max_source_tokens: see TranslationRequest.
            before_batch: called before each batch; what it raises ends the translation.
        """
        asked = TranslationRequest(max_source_tokens=max_source_tokens)
        found = self.translations(lines, asked, batching=batching, before_batch=before_batch)
        return [of_line[0].text for of_line in found]

    def translations(
        self,
        lines: Sequence[str],
        asked: TranslationRequest,
        *,
        batching: Batching = Batching(),
        before_batch: Callable[[], None] = lambda: None,
        advance: Callable[[float], None] = lambda share: None,
    ) -> list[list[Translation]]:
        """For each line its translations, best first (samples: as drawn): as many as are asked for, or as there are.

        A line without text has one translation, the empty one.

        Args:
            before_batch: called before each batch; what it raises ends the translation.
            advance: told after each batch which share of the source tokens is done.

        Raises:
            DataError: what is asked for is not possible (see `check`), or is not one prefix or list of phrases for
                each line; or a line is no text (it holds half a surrogate pair).
            TypeError: ``lines`` is one string.
        """
        if isinstance(lines, str):
            raise TypeError("lines are a list of strings, not one string, each character of which would be a line")
        for number, line in enumerate(lines, asked.first_line):
            if bad := _SURROGATE.search(line):
                raise DataError(f"line {number} is not valid UTF-8: {bad.group()!r} in it")
        self._check_search(asked)
        lines = [self.task.model_source(line) for line in lines]
        parts = self._parts(lines, asked)
        forbidden = self._target_ids(asked.forbidden, "forbidden phrase")
        order = sorted(range(len(parts)), key=lambda index: len(parts[index].ids), reverse=True)
        if batching.sentences is not None:
            runs = [(start, start + batching.sentences) for start in range(0, len(order), batching.sentences)]
        else:
            runs = cut_by_padded_tokens([len(parts[index].ids) + 1 for index in order], batching.tokens)
        found: list[list[Translation]] = [[] for _ in parts]
        total, done = sum(len(part.ids) for part in parts), 0
        for start, stop in runs:
            before_batch()
            batch = [parts[index] for index in order[start:stop]]
            for index, hypotheses in zip(order[start:stop], self._search(batch, forbidden, asked), strict=True):
                found[index] = [self._translation(one, parts[index]) for one in hypotheses[: asked.n_best]]
            done += sum(len(part.ids) for part in batch)
            advance(done / total)
        of_lines: list[list[tuple[int, list[Translation]]]] = [[] for _ in lines]
        for part, translations in zip(parts, found, strict=True):
            of_lines[part.line].append((len(part.ids), translations))
        joined = [
            _joined(of_parts) if of_parts else [_without_text(asked, line)] for line, of_parts in enumerate(of_lines)
        ]
        return [
            [dataclasses.replace(one, **vars(self.task.output(line, one.text))) for one in of_line]
            for line, of_line in zip(lines, joined, strict=True)
        ]

    def check(self, asked: TranslationRequest, prefix_file: str = "", required_file: str = "") -> None:
        """Looks before anything is translated whether what is asked for is possible.

        Args:
            prefix_file, required_file: where prefixes and phrases come from, for messages.

        Raises:
            DataError: more translations than the beam; samples with required phrases; a prefix or phrase that the
                vocabulary cannot express, that holds a forbidden one, or that is longer than translations can be.
        """
        self._check_search(asked)
        self._target_ids(asked.forbidden, "forbidden phrase")
        self._wishes(asked, max(len(asked.prefixes), len(asked.required)), prefix_file, required_file)

    def _check_search(self, asked: TranslationRequest) -> None:
        if asked.sampling is None and asked.n_best > self.decoding.beam:
            raise DataError(f"{asked.n_best} translations per line need a beam that large, not {self.decoding.beam}")
        if self.decoding.well_formed and self._well_formed is None:
            raise DataError(f"{self.decoding.WELL_FORMED}: any output of this model is well-formed; remove the setting")
        if asked.sampling is not None and any(asked.required):
            raise DataError("sampling does not support required phrases; use beam search instead")

    def _wishes(
        self, asked: TranslationRequest, num_lines: int, prefix_file: str = "", required_file: str = ""
    ) -> list[tuple[Ids, tuple[Ids, ...]]]:
        """The prefix and the required phrases of each line."""
        for what, given in (("prefixes", asked.prefixes), ("lists of required phrases", asked.required)):
            if given and len(given) != num_lines:
                raise DataError(f"{len(given)} {what} for {counted(num_lines, 'line')}; give one for each line")
        forbidden = self._target_ids(asked.forbidden, "forbidden phrase")
        wishes = []
        for index in range(num_lines):
            line = f"line {asked.first_line + index}: "
            in_file = [f"{file}, {line}" if file else line for file in (prefix_file, required_file)]
            prefixes = self._target_ids(asked.prefixes[index : index + 1], "prefix", in_file[0], forbidden)
            phrases = asked.required[index] if asked.required else ()
            required = self._target_ids(phrases, "required phrase", in_file[1], forbidden)
            tokens = sum(len(ids) for ids in (*prefixes, *required))
            if self._max_tokens is not None and tokens > self._max_tokens:
                raise DataError(
                    f"{in_file[0] if prefix_file else in_file[1]}prefix and required phrases have "
                    f"{counted(tokens, 'token')}, and the model has positions "
                    f"for {self._max_tokens}"
                )
            wishes.append((prefixes[0] if prefixes else (), tuple(required)))
        return wishes

    def _parts(self, lines: Sequence[str], asked: TranslationRequest) -> list[_Part]:
        longest = source_limit(asked.max_source_tokens, self.lengths)
        longest = min(longest, self._max_tokens or longest)
        normalized = [self.tokenizer.normalize(line, "source") for line in lines]
        sources = self.tokenizer.encode(normalized, "source", torch.get_num_threads())
        wishes = self._wishes(asked, len(lines))
        parts = []
        for number, ids in enumerate(sources):
            words = self.task.words(lines[number])
            if not words:
                continue
            for place, part in enumerate(cut := cut_source(self.tokenizer, ids, longest, self.lengths)):
                # What is said of a line holds for its first part.
                prefix, required = wishes[number] if place == 0 else ((), ())
                whole = len(cut) == 1
                num_words = len(words) if whole else sum(self.tokenizer.word_starts(part, "source"))
                parts.append(_Part(number, part, num_words, place, prefix, required))
        return parts

    def _rules(self, parts: Sequence[_Part], forbidden: Sequence[Ids]) -> tuple[Rule, ...]:
        prefixes = [part.prefix for part in parts]
        rules = []
        if self.decoding.no_repeat_ngram:
            rules.append(no_repeated_ngrams(self.decoding.no_repeat_ngram, [len(prefix) for prefix in prefixes]))
        if forbidden:
            rules.append(forbidden_phrases(forbidden))
        if any(prefixes):
            rules.append(forced_prefixes(prefixes))
        if self.decoding.well_formed and self._well_formed is not None:
            rules.append(self._well_formed([part.words for part in parts]))
        return tuple(rules)

    @cached_property
    def _well_formed(self) -> Callable[[Sequence[int]], Rule] | None:
        is_in_words = self.tokenizer.settings["subwords"] == "none"
        entries = [f"\u2581{entry}" if is_in_words else entry for entry in self.tokenizer.entries("target")]
        return self.task.well_formed(entries, EOS, self._device)

    def _target_ids(self, texts: Sequence[str], what: str, where: str = "", forbidden: Sequence[Ids] = ()) -> list[Ids]:
        """The ids of pieces of translations.

        Raises:
            DataError: one is no text, or holds what the vocabulary cannot express or what is forbidden; or it is no
                prefix, and empty.
        """
        if not texts:
            return []
        if bad := next((text for text in texts if _SURROGATE.search(text)), None):
            raise DataError(f"{where}the {what} {bad!r} is not valid UTF-8")
        normalized = [self.tokenizer.normalize(text, "target") for text in texts]
        found = [tuple(ids) for ids in self.tokenizer.encode(normalized, "target")]
        for text, ids in zip(texts, found, strict=True):
            if UNK in ids:
                raise DataError(f"{where}the {what} {text!r} has characters that are not in the model's vocabulary")
            if not ids and what != "prefix":
                raise DataError(f"{where}a {what} is empty; leave it out")
            if any(holds(ids, phrase) for phrase in forbidden):
                raise DataError(f"{where}the {what} {text!r} contains a forbidden phrase; remove one of the two")
        return found

    @torch.inference_mode()
    def _search(
        self, parts: Sequence[_Part], forbidden: Sequence[Ids], asked: TranslationRequest
    ) -> list[list[Hypothesis]]:
        """The finished hypotheses of each source."""
        lengths = [len(part.ids) + 1 for part in parts]
        max_lengths = [self._max_length(part) for part in parts]
        choose: Chooser = best_continuations
        if asked.sampling is not None:
            sampling = asked.sampling
            seeds = [(sampling.seed, asked.first_line + part.line, part.number) for part in parts]
            choose = drawn(seeds, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
        elif any(part.required for part in parts):
            choose = with_required([part.required for part in parts], max_lengths, EOS, self.decoding.no_repeat_ngram)
        options = SearchOptions(
            n_best=asked.n_best,
            min_tokens=self.decoding.min_length,
            rules=self._rules(parts, forbidden),
            choose=choose,
            sampled=asked.sampling is not None,
            coverage=self.decoding.coverage_penalty,
            keep_attention=asked.attention,
            source_lengths=lengths,
        )
        source = pad([part.ids for part in parts], end=EOS).to(self._device)
        return beam_search(
            ModelStepper(self._decoders, source, torch.tensor(lengths), keep_attention=options.sees_attention),
            max_lengths,
            beam=self.decoding.beam if asked.sampling is None else asked.n_best,
            penalty=length_penalty(self.decoding.length_penalty, self.decoding.alpha),
            bos=BOS,
            eos=EOS,
            forbidden=self.tokenizer.suppressed_ids,
            device=self._device,
            options=options,
        )

    def _max_length(self, part: _Part) -> int:
        """Most tokens of its translation: the settings', and always room for what it has to hold."""
        limit = longest_translation(self.decoding, len(part.ids))
        limit = max(limit, len(part.prefix) + sum(len(phrase) for phrase in part.required))
        return limit if self._max_tokens is None else min(limit, self._max_tokens)

    def _translation(self, hypothesis: Hypothesis, part: _Part) -> Translation:
        attention = hypothesis.attention
        return Translation(
            text=self.tokenizer.translation(hypothesis.ids),
            log_prob=hypothesis.log_prob,
            score=hypothesis.score,
            pieces=tuple(self.tokenizer.pieces(hypothesis.ids, "target")),
            token_log_probs=hypothesis.token_log_probs,
            alignment=None if attention is None else tuple(attention[:-1, :-1].argmax(1).tolist()),
            source_pieces=None if attention is None else tuple(self.tokenizer.pieces(part.ids, "source")),
            hit_limit=len(hypothesis.ids) >= self._max_length(part),
            is_short=is_short(len(part.ids), len(hypothesis.ids), self.lengths),
            is_unmet=hypothesis.ids[: len(part.prefix)] != part.prefix
            or not all(holds(hypothesis.ids, phrase) for phrase in part.required),
        )


def _without_text(asked: TranslationRequest, line: int) -> Translation:
    """The translation of a line without text, whose number counts from 0; unmet is all that is asked of it."""
    is_wished = bool(asked.prefixes and asked.prefixes[line].strip()) or bool(asked.required and asked.required[line])
    nothing = () if asked.attention else None
    return Translation("", 0.0, 0.0, (), (), alignment=nothing, source_pieces=nothing, is_unmet=is_wished)


def _joined(of_parts: Sequence[tuple[int, list[Translation]]]) -> list[Translation]:
    """Translations of a line from those of its parts: the best with the best, the second with the second.

    Args:
        of_parts: of each part how many source pieces it has, and its translations.
    """
    lengths = [length for length, _ in of_parts]
    return [_chain(parts, lengths) for parts in zip(*(translations for _, translations in of_parts), strict=False)]


def _chain(parts: Sequence[Translation], lengths: Sequence[int]) -> Translation:
    """One translation of a line from one of each of its parts."""
    if len(parts) == 1:
        return parts[0]
    pieces: list[str] = []
    alignment: list[int] = []
    for part, before, length in zip(parts, itertools.accumulate(lengths, initial=0), lengths, strict=False):
        pieces += [*part.pieces, "</s>"]
        alignment += [*(before + place for place in part.alignment or ()), before + length - 1]
    return Translation(
        text=" ".join(part.text for part in parts if part.text),
        log_prob=sum(part.log_prob for part in parts),
        score=sum(part.score for part in parts),
        pieces=tuple(pieces[:-1]),
        token_log_probs=tuple(value for part in parts for value in part.token_log_probs),
        alignment=None if parts[0].alignment is None else tuple(alignment[:-1]),
        source_pieces=None
        if parts[0].source_pieces is None
        else tuple(piece for part in parts for piece in part.source_pieces or ()),
        hit_limit=any(part.hit_limit for part in parts),
        parts=len(parts),
        is_short=any(part.is_short for part in parts),
        is_unmet=any(part.is_unmet for part in parts),
    )
