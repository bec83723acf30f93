"""The torch engine: beam search and sampling."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.recipe import changed_decoding
from nmtkit.console import log
from nmtkit.data.batch import pad
from nmtkit.decoding.constraints import (
    ended_words,
    exact_count,
    forbidden_phrases,
    forced_prefixes,
    no_repeated_ngrams,
    required_phrases,
)
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.lengths import length_penalty, longest_translation
from nmtkit.decoding.request import Batching, Segment, Translation, TranslationRequest
from nmtkit.decoding.sampling import sampled_continuations
from nmtkit.decoding.search import CandidateSelection, Hypothesis, SearchOptions, beam_search, best_continuations
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.decoding.wanted import Ids, contains
from nmtkit.distributed.workers import is_out_of_memory
from nmtkit.errors import DataError, NmtkitError
from nmtkit.model.decoder_only import DecoderOnly
from nmtkit.model.joined_step_decoder import JoinedStepDecoder
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer
from nmtkit.run import load_ensemble
from nmtkit.tasks.known import task_of
from nmtkit.tasks.task import Constraint
from nmtkit.text.scripts import is_unspaced_text
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS

Precision = Literal["float32", "bf16", "fp16"]
_DTYPES: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_SMALL = 256
"""d_model below which matrix products for one sentence are hardly faster with two threads than with one."""


class Translator(Engine):
    """Translator of lines with a model, or with an ensemble of models of the same vocabulary.

    The weights are prepared once: if the weights of a model change, create a new translator.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: DecodingConfig,
        precision: Precision = "float32",
        lengths: TrainingLengths | None = None,
    ) -> None:
        """Create a translator from models in memory; arguments as in `load`."""
        if precision not in _DTYPES:
            raise NmtkitError(f"precision {precision}: choose {', '.join(_DTYPES)}")
        task_of(tokenizer).require("translate")
        self._device = models[0].output_embedding.device
        if precision == "fp16" and self._device.type == "cpu":
            raise NmtkitError("precision fp16 is for GPUs; choose bf16 or float32 on a CPU")
        limits = [model.config.max_positions for model in models if model.config.positions == "learned"]
        # The begin or end symbol takes one position.
        most = min([limit - 1 for limit in limits], default=None)
        self._is_joined = any(model.config.is_joined for model in models)
        # Where source and target share the positions, a source has at most half of them.
        super().__init__(tokenizer, decoding, lengths, most // 2 if most is not None and self._is_joined else most)
        self._most_positions = most
        self._memory = {"too large": math.inf}  # source tokens x hypotheses; copies of the translator share it
        self._decoders = [
            JoinedStepDecoder(model, _DTYPES[precision])
            if isinstance(model, DecoderOnly)
            else StepDecoder(model, _DTYPES[precision])
            for model in models
        ]
        self.has_alignments = all(model.config.sees_source for model in models)
        self._reads_no_end = all(isinstance(decoder, JoinedStepDecoder) for decoder in self._decoders)
        self.precision = precision
        self.device = self._device.type
        self._generates_context = "target" in tokenizer.context_sides
        self._separators = [tokenizer.separator_id(side) for side in tokenizer.context_sides]
        self.is_small = all(model.config.d_model < _SMALL for model in models)

    @classmethod
    def load(
        cls,
        models: str | Path | Sequence[str | Path],
        device: torch.device | str | None = None,
        precision: Precision = "float32",
        decoding: dict[str, Any] | None = None,
    ) -> "Translator":
        """Load a model, or an ensemble of models: model folders, run folders or checkpoints.

        Args:
            precision: float32; or bf16 or fp16, which are faster and change some translations. On a CPU, bf16 applies
                to matrix products only; on a GPU, bf16 and fp16 apply to all but the softmax over the vocabulary.
            decoding: values of [decoding] that replace those of the model, such as {"beam": 1}.

        Raises:
            ModelError: a model does not exist or is damaged, or the vocabularies differ.
            RecipeError: a setting of the search is unknown or wrong.
            NmtkitError: fp16 on a CPU.
        """
        loaded = load_ensemble(models, device)
        first = loaded[0]
        search = changed_decoding(first.decoding, decoding or {})
        translator = cls([entry.model for entry in loaded], first.tokenizer, search, precision, first.lengths)
        sums = tuple(entry.provenance["files"]["model.safetensors"] for entry in loaded)
        translator.weights_sha256 = translator.model_sha256 = sums
        return translator

    @property
    def num_threads(self) -> int:
        return torch.get_num_threads()

    @property
    def batch_tokens(self) -> int:
        return super().batch_tokens if self.device == "cpu" else 16_384  # not measured

    def check_search(self, request: TranslationRequest) -> None:
        beam = self.decoding.beam
        if request.sampling is None and request.n_best > beam:
            raise DataError(f"{request.n_best} translations per line need a beam that large, not {beam}")
        if self.decoding.well_formed and self._well_formed is None:
            raise DataError(f"{self.decoding.WELL_FORMED}: any output of this model is well-formed; remove the setting")
        if (request.attention or self.decoding.coverage_penalty) and not self.has_alignments:
            refused = "ask for no alignment" if request.attention else "set coverage_penalty = 0"
            raise DataError(f"no layer of this decoder sees the whole source (self_attention): {refused}")
        if request.sampling is not None and (any(request.required) or request.glossary or request.keep):
            raise DataError("sampling does not support required phrases, terms and spans; use beam search instead")

    @cached_property
    def _well_formed(self) -> Callable[[Sequence[int]], Constraint] | None:
        entries = [
            f"\u2581{entry}" if self.tokenizer.has_end_marks else entry for entry in self.tokenizer.entries("target")
        ]
        return self.task.well_formed(entries, EOS, self._device)

    @cached_property
    def _continuing(self) -> torch.Tensor:
        """Which tokens continue a word with a letter or digit [vocab]."""
        entries = ("" if self.tokenizer.has_end_marks else entry[:1] for entry in self.tokenizer.entries("target"))
        # Entries that begin a word begin with U+2581, which is no letter.
        flags = [first.isalnum() and not is_unspaced_text(first) for first in entries]
        return torch.tensor(flags, device=self._device)

    def search_segments(
        self, segments: Sequence[Segment], request: TranslationRequest, batching: Batching
    ) -> Iterator[dict[int, list[Translation]]]:
        forbidden = self.target_ids(request.forbidden, "forbidden phrase")
        sources = [segment.ids for segment in segments]
        # With finished hypotheses beside the beam, sentences with required phrases have another search than the others.
        apart = [bool(segment.phrases) and self.decoding.finished == "beside" for segment in segments]
        groups = [[index for index, is_apart in enumerate(apart) if is_apart == wanted] for wanted in (False, True)]
        # The default is for a beam of up to 8; memory grows with the number of hypotheses.
        tokens = batching.tokens or max(1, self.batch_tokens * 8 // max(8, self._width(request)))
        for batch in (batch for group in groups for batch in batching.batches(sources, group, tokens)):
            results = self._search_in_memory([segments[index] for index in batch], forbidden, request)
            yield {
                index: [self._finish(segments[index], hypothesis) for hypothesis in hypotheses[: request.n_best]]
                for index, hypotheses in zip(batch, results, strict=True)
            }

    def _width(self, request: TranslationRequest) -> int:
        return request.n_best if request.sampling is not None else self.decoding.beam

    def _search_in_memory(
        self, segments: Sequence[Segment], forbidden: Sequence[Ids], request: TranslationRequest
    ) -> list[list[Hypothesis]]:
        """Search a batch; if the memory of the device does not suffice, or did not for a smaller one, its halves."""
        size = len(segments) * (max(len(segment.ids) for segment in segments) + 1)
        needed = size * self._width(request)
        if len(segments) == 1 or needed < self._memory["too large"]:
            try:
                return self._search(segments, forbidden, request)
            except RuntimeError as error:
                if len(segments) == 1 or not is_out_of_memory(error):
                    raise
            log.info("a batch of %s source tokens does not fit into memory; batches are halved", f"{size:,}")
            self._memory["too large"] = needed
            if self.device == "cuda":  # after the block, as the error holds the tensors of the search
                torch.cuda.empty_cache()
        half = (len(segments) + 1) // 2
        found = [self._search_in_memory(part, forbidden, request) for part in (segments[:half], segments[half:])]
        return [hypotheses for part in found for hypotheses in part]

    @torch.inference_mode()
    def _search(
        self, segments: Sequence[Segment], forbidden: Sequence[Ids], request: TranslationRequest
    ) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of each segment of a batch."""
        lengths = [len(segment.ids) + 1 for segment in segments]
        max_lengths = [self._max_length(segment) for segment in segments]
        sampling, no_repeat_ngram = request.sampling, self.decoding.no_repeat_ngram
        select: CandidateSelection = best_continuations
        if sampling is not None:
            # The line's number in the whole text, so that samples do not depend on where windows begin.
            seeds = [(sampling.seed, request.first_line + segment.line, segment.number) for segment in segments]
            select = sampled_continuations(seeds, sampling)
        elif any(segment.phrases for segment in segments):
            select = required_phrases([segment.phrases for segment in segments], max_lengths, no_repeat_ngram)
        start = self.tokenizer.target_start
        prefixes = [(*start, *segment.prefix) for segment in segments]
        constraints = []
        if no_repeat_ngram:
            constraints.append(no_repeated_ngrams(no_repeat_ngram, [len(prefix) for prefix in prefixes]))
        if forbidden:
            constraints.append(forbidden_phrases(forbidden))
        if any(prefixes):
            constraints.append(forced_prefixes(prefixes, len(start)))
        if any(segment.ends_word for segment in segments):
            ends = [len(prefix) * segment.ends_word for prefix, segment in zip(prefixes, segments, strict=True)]
            constraints.append(ended_words(ends, self._continuing))
        if self.decoding.well_formed and self._well_formed is not None:
            constraints.append(self._well_formed([segment.words for segment in segments]))
        if self._generates_context:
            counts = [segment.ids.count(self._separators[0]) for segment in segments]
            constraints.append(exact_count(self._separators[1], counts))
        options = SearchOptions(
            n_best=request.n_best,
            min_tokens=self.decoding.min_length + len(start),
            constraints=tuple(constraints),
            select=select,
            sampled=sampling is not None,
            beside=self.decoding.finished == "beside" and select is best_continuations,
            coverage=self.decoding.coverage_penalty,
            keep_attention=request.attention,
            source_lengths=[length - self._reads_no_end for length in lengths],
            before_step=self.before_step,
        )
        source = pad([segment.ids for segment in segments], end=EOS).to(self._device)
        return beam_search(
            ModelStepper(self._decoders, source, torch.tensor(lengths), keep_attention=options.needs_attention),
            max_lengths,
            beam=self.decoding.beam if sampling is None else request.n_best,
            penalty=length_penalty(self.decoding.length_penalty, self.decoding.alpha),
            suppressed=self.tokenizer.suppressed_ids,
            device=self._device,
            options=options,
        )

    def _max_length(self, segment: Segment) -> int:
        """Return the maximum length in tokens: by the settings, but at least that of prefix and required phrases."""
        if self._generates_context:
            sentences = segment.ids.count(self._separators[0]) + 1
            limit = longest_translation(self.decoding, len(segment.ids), sentences)
        else:
            limit = longest_translation(self.decoding, len(segment.ids) - segment.context)
        limit = max(limit, len(segment.prefix) + sum(max(map(len, phrase)) for phrase in segment.phrases))
        limit += len(self.tokenizer.target_start)
        if self._most_positions is None:
            return limit
        return min(limit, self._most_positions - len(segment.ids) * self._is_joined)

    def _finish(self, segment: Segment, hypothesis: Hypothesis) -> Translation:
        ids, begin = hypothesis.ids, len(self.tokenizer.target_start)
        log_prob, score = hypothesis.log_prob, hypothesis.score
        if self._generates_context and segment.context:
            # The line's own translation is what follows the last separator; nothing if the search did not get there.
            is_complete = ids[begin:].count(self._separators[1]) == segment.ids.count(self._separators[0])
            begin = len(ids) - (ids[::-1].index(self._separators[1]) if is_complete else 0)
            log_prob = math.fsum(hypothesis.token_log_probs[begin:])
            score = log_prob / length_penalty(self.decoding.length_penalty, self.decoding.alpha)(len(ids) - begin + 1)
        ids = ids[begin:]
        details: dict[str, Any] = {}
        if hypothesis.attention is not None:
            details["alignment"] = tuple(hypothesis.attention[begin:-1, : len(segment.ids)].argmax(1).tolist())
            details["source_pieces"] = tuple(self.tokenizer.pieces(segment.ids, "source"))
            details["source_is_context"] = tuple(index < segment.context for index in range(len(segment.ids)))
        begins = ids[: len(segment.prefix)] == segment.prefix
        return self._translation(
            segment,
            ids,
            self._max_length(segment) - begin,
            log_prob=log_prob,
            score=score,
            token_log_probs=hypothesis.token_log_probs[begin:],
            is_unsatisfied=not (begins and all(contains(ids, phrase) for phrase in segment.required)),
            **details,
        )
