"""Forced decoding: the probability of a given translation under a model.

    line pair -> normalised -> ids -> (cut if longer than the limit) -> batches of similar length
              -> one forward pass over whole targets -> log-probability of each token -> one score per pair, in order

Every pair is scored: an empty side is the end symbol alone, and only the first tokens of a side that is too long count.
The remarks of a score name both cases. If the model was trained with context, the pairs before, of the same document,
go before source and hypothesis as in training; scores are those of the tokens of the hypothesis alone.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.data.batch import Batch, batch_of
from nmtkit.data.batching import cut_by_padded_tokens, padding_worth_of, row_lengths
from nmtkit.data.context import context_of
from nmtkit.decoding.lengths import source_limit, splits_sentences
from nmtkit.decoding.stepper import promoted
from nmtkit.distributed.workers import widest_float
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.evaluation.scores import perplexity_of
from nmtkit.lines import any_text, without_line_end
from nmtkit.model.transformer import Transformer
from nmtkit.run import load_ensemble
from nmtkit.tasks.known import task_of
from nmtkit.text.sentences import sentence_starts
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS, UNK

MAX_TOKENS = 1024
BATCH_TOKENS = 2048
_LOGITS_AT_ONCE = 2**24
"""Maximum number of logits in memory: 64 MiB of float32. All logits of a batch can take gigabytes."""


@dataclass(frozen=True)
class ForcedScore:
    """The probability of a hypothesis, given its source.

    Attributes:
        ids: tokens that were scored, with the end symbol unless the hypothesis was cut.
        log_probs: natural logarithm of the probability of each token, given the source and the tokens before it.
        remarks: any of "empty_source", "empty_hypothesis", "cut_source", "cut_hypothesis", "unknown_tokens" (of the
            hypothesis).
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    remarks: tuple[str, ...] = ()

    @property
    def log_prob(self) -> float:
        """Natural logarithm of the probability of all tokens."""
        return math.fsum(self.log_probs)

    @property
    def is_cut(self) -> bool:
        """True if only the first tokens of the source or the hypothesis were used."""
        return any(remark.startswith("cut_") for remark in self.remarks)

    @property
    def perplexity(self) -> float:
        """exp(-log_prob / tokens), 1 without tokens."""
        return perplexity_of(-self.log_prob / max(1, len(self.ids)))


class ForcedDecoder:
    """Scorer of given translations with a model, or with an ensemble of models of the same vocabulary.

    Attributes:
        tokenizer: tokenizer of both sides.
        decoding: settings of the first model; its length penalty applies to scores.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: DecodingConfig,
        lengths: TrainingLengths | None = None,
    ) -> None:
        if not task_of(tokenizer).has_source:
            raise ModelError(
                "this is a language model, which has no source; name a model that translates, or score a whole text "
                "with `nmtkit score --model MODEL --hypothesis FILE`"
            )
        task_of(tokenizer).require("translate")
        if any(model.training for model in models):
            raise ModelError("a model in training mode applies dropout; call its method eval() first")
        self._models = models
        self._lengths = lengths
        self.tokenizer = tokenizer
        self.decoding = decoding
        self._device = models[0].output_embedding.device
        limits = [model.config.max_positions for model in models if model.config.positions == "learned"]
        self._most = min([limit - 1 for limit in limits], default=sys.maxsize)  # the end or begin symbol is added
        self._is_joined = any(model.config.is_joined for model in models)
        # Where source and target share the positions, a source has at most half of them, as in translation.
        self._max_tokens = self._most // 2 if self._is_joined else self._most

    @classmethod
    def load(
        cls,
        models: str | Path | Sequence[str | Path],
        device: torch.device | str | None = None,
        precision: str | None = None,
        target_language: str | None = None,
        source_language: str | None = None,
    ) -> "ForcedDecoder":
        """Load a model, or an ensemble of models: model folders, run folders or checkpoints.

        Args:
            precision: float64 or float32. The default on a CPU is float64: it takes 1.5 times as long, and scores do
                not depend on the batch (in float32 they vary by about 1e-5). Elsewhere it is float32.
            target_language, source_language: for models with several, see `Tokenizer.in_direction`.

        Raises:
            ModelError: a model does not exist or is damaged, or the vocabularies differ.
            DataError: the model does not know a language, or knows several and none is given.
            NmtkitError: float64 on a device without it.
        """
        device = torch.device("cpu" if device is None else device)
        dtype = scoring_type(precision, device)
        loaded = load_ensemble(models, device)
        first = loaded[0]
        tokenizer = first.tokenizer.in_direction(target_language, source_language, is_requested=True)
        return cls([entry.model.to(dtype) for entry in loaded], tokenizer, first.decoding, first.lengths)

    def would_split(self, source: str) -> bool:
        """Return whether `translate` would split a source into sentences; here it is scored as a whole."""
        text, language = self.tokenizer.split_tag(source)[1], self.tokenizer.languages[0]
        is_split = task_of(self.tokenizer).translates_sentences and splits_sentences("auto", self._lengths)
        return is_split and bool(sentence_starts(text, language))

    def prefers_exchanged(
        self, pairs: Iterable[tuple[str, str]], *, batch_tokens: int = BATCH_TOKENS, max_tokens: int = MAX_TOKENS
    ) -> bool:
        """Return whether most pairs are far more probable with source and hypothesis exchanged.

        With a trained model of the other direction they are, by several nats per token. The first tokens of the first
        50 pairs with text on both sides count; fewer than 10 pairs are too few to judge. Arguments: as of `score`.
        """
        known = list(itertools.islice((pair for pair in pairs if all(map(any_text, pair))), 50))
        if len(known) < 10 or not task_of(self.tokenizer).translates_sentences:
            return False
        most = min(64, max_tokens)  # enough, and fast for long lines
        sides = (known, [pair[::-1] for pair in known])
        scores = [self.score(side, batch_tokens=batch_tokens, max_tokens=most) for side in sides]
        worse = sum(own.perplexity > math.e * other.perplexity for own, other in zip(*scores, strict=True))
        return worse > 0.75 * len(known)

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        before: Iterable[Sequence[tuple[str, str]]] | None = None,
        *,
        batch_tokens: int = BATCH_TOKENS,
        max_tokens: int = MAX_TOKENS,
        first_line: int | None = None,
    ) -> list[ForcedScore]:
        """Return one score per pair of a source line and a hypothesis line; arguments as in `score_ids`.

        A line end after a line is no part of it.

        Args:
            before: for models with context, the pairs before each pair in its document (see `preceding`).
            first_line: number of the first hypothesis in its text, for messages; None: messages quote the hypothesis.

        Raises:
            DataError: a hypothesis is not a valid target of the model's task.
        """
        task, tokenizer = task_of(self.tokenizer), self.tokenizer
        sources, hypotheses = [], []
        for index, pair in enumerate(pairs):
            source, hypothesis = map(without_line_end, pair)
            name, number = (repr(hypothesis[:40]), 1) if first_line is None else ("the hypotheses", first_line + index)
            sources.append(tokenizer.normalize(task.model_source(source), "source"))
            hypotheses.append(tokenizer.normalize(task.model_target(hypothesis, name, number), "target"))
        threads = torch.get_num_threads()
        ids = [tokenizer.encode(sources, "source", threads), tokenizer.encode(hypotheses, "target", threads)]
        found = self._contexts(ids, before, max_tokens) if before and tokenizer.context else []
        for side, contexts in enumerate(found):
            ids[side] = [[*context, *own] for context, own in zip(contexts, ids[side], strict=True)]
        unscored = [len(context) for context in found[1]] if len(found) > 1 else None
        if start := tokenizer.target_start:
            ids[1], unscored = [[*start, *own] for own in ids[1]], [len(start)] * len(ids[1])
        return self.score_ids(*ids, batch_tokens=batch_tokens, max_tokens=max_tokens, unscored=unscored)

    def _contexts(
        self, ids: list[list[list[int]]], before: Iterable[Sequence[tuple[str, str]]], max_tokens: int
    ) -> list[list[list[int]]]:
        """Return the ids that go before each pair, for each side with context."""
        tokenizer, sides = self.tokenizer, self.tokenizer.context_sides
        separators = [tokenizer.separator_id(side) for side in sides]
        limit = min(max_tokens, self._max_tokens)
        longest = [min(limit, (self._lengths and self._lengths.longest_sequence) or limit), limit][: len(sides)]
        found: list[list[list[int]]] = [[] for _ in sides]
        for pairs, *row in zip(before, *ids[: len(sides)], strict=True):
            known = pairs[-tokenizer.context :] if row[0] else ()
            texts = list(zip(*known, strict=True)) or [()] * len(sides)
            encoded = [
                tokenizer.encode([tokenizer.normalize(without_line_end(line), side) for line in lines], side, 1)
                for lines, side in zip(texts, sides, strict=False)
            ]
            sentences = list(zip(*encoded, strict=True))
            for rows, context in zip(found, context_of(sentences, row, separators, longest), strict=True):
                rows.append(context)
        return found

    def score_ids(
        self,
        sources: Sequence[Sequence[int]],
        hypotheses: Sequence[Sequence[int]],
        *,
        batch_tokens: int = BATCH_TOKENS,
        max_tokens: int = MAX_TOKENS,
        unscored: Sequence[int] | None = None,
    ) -> list[ForcedScore]:
        """Return one score per pair of ids without begin and end symbols.

        Args:
            batch_tokens: maximum source or hypothesis tokens per batch, with padding.
            max_tokens: maximum length, without the tokens with which the decoder has to begin; only the first tokens of
                a longer source or hypothesis are used. Of documents, as many as the model reads in translation.
            unscored: number of tokens at the beginning of each hypothesis that are its context; None: 0.

        Raises:
            ModelError: a probability is not a number.
        """
        most_read = max_tokens  # tokens of a source
        if not task_of(self.tokenizer).splits_sources:
            most_read = source_limit(None, self._lengths)
        elif self._lengths is not None and self._lengths.max_source_tokens:
            most_read = min(max_tokens, self._lengths.max_source_tokens)
        most_read = min(most_read, self._max_tokens)
        sides = [*zip(sources, hypotheses, strict=True)]
        start = len(self.tokenizer.target_start)
        most_scored = [
            min(max_tokens + start, self._most - self._is_joined * min(len(source), most_read)) for source, _ in sides
        ]
        pairs = [(source[:most_read], own[:most]) for (source, own), most in zip(sides, most_scored, strict=True)]
        order = sorted(range(len(pairs)), key=lambda index: [len(ids) for ids in reversed(pairs[index])], reverse=True)
        # The shape is given for the case of no pairs.
        counts = np.array([[len(ids) + 1 for ids in pairs[index]] for index in order], np.int64).reshape(-1, 2)
        longest = row_lengths(counts[:, 0], counts[:, 1], is_joined=self._is_joined)  # positions of each pair
        log_probs: dict[int, list[float]] = {}
        padding_worth = padding_worth_of(self._device.type)
        for start, stop in cut_by_padded_tokens(longest, batch_tokens, padding_worth=padding_worth):
            indices = order[start:stop]
            batch = batch_of([pairs[index][0] for index in indices], [pairs[index][1] for index in indices])
            values = token_log_probs(self._models, batch.to(self._device)).cpu()
            by_pair = values.split(batch.target_lengths.tolist())
            log_probs.update((index, pair.tolist()) for index, pair in zip(indices, by_pair, strict=True))
        scores = []
        for index, (source, hypothesis) in enumerate(sides):
            remarks = []
            begin, most_own = unscored[index] if unscored else 0, most_scored[index]
            own = (("source", source, most_read), ("hypothesis", hypothesis[begin:], most_own - begin))
            for name, tokens, most in own:
                if not tokens:
                    remarks.append(f"empty_{name}")
                elif len(tokens) > most:
                    remarks.append(f"cut_{name}")
            # A hypothesis that was cut has no end symbol.
            ids = tuple(hypothesis[:most_own]) if len(hypothesis) > most_own else (*hypothesis, EOS)
            if UNK in ids[begin:]:
                remarks.append("unknown_tokens")
            scores.append(ForcedScore(ids[begin:], tuple(log_probs[index][begin : len(ids)]), tuple(remarks)))
        return scores


def scoring_type(precision: str | None, device: torch.device) -> torch.dtype:
    """Return the type to compute scores in, by default float64 on a CPU and float32 elsewhere.

    Raises:
        NmtkitError: float64 on a device without it, or another precision.
    """
    types = {"float64": torch.float64, "float32": torch.float32}
    if precision is not None and precision not in types:
        raise NmtkitError(f"precision {precision!r}: scores are computed in float64 or float32")
    if precision == "float64" and widest_float(device) != torch.float64:
        raise NmtkitError(f"precision float64 is not available on {device.type}; choose float32, or --device cpu")
    if precision is None:
        precision = "float64" if device.type == "cpu" else "float32"
    return types[precision]


@torch.inference_mode()
def token_log_probs(models: Sequence[Transformer], batch: Batch) -> Float[Tensor, " tokens"]:
    """Return the log-probability of each target token with end symbols, sentence by sentence without padding.

    The probabilities of several models are averaged, as in decoding.

    Raises:
        ModelError: a probability is not a number.
    """
    of_models = torch.stack([_log_probs(model, batch) for model in models])  # [models, tokens]
    log_probs = of_models[0] if len(models) == 1 else torch.logsumexp(of_models, dim=0) - math.log(len(models))
    if not log_probs.isfinite().all():
        raise ModelError("the model's probabilities are not finite: its weights are damaged or its training diverged")
    return log_probs


def _log_probs(model: Transformer, batch: Batch) -> Float[Tensor, " tokens"]:
    encoded = model.encode(batch.source, batch.source_lengths)
    states = batch.without_padding(model.decode(batch.target_in, *encoded))  # [tokens, width]
    targets = batch.without_padding(batch.target_out)
    rows = max(1, _LOGITS_AT_ONCE // model.output_embedding.size(0))
    chunks = []
    for some_states, some_targets in zip(states.split(rows), targets.split(rows), strict=True):
        log_probs = torch.log_softmax(promoted(model.logits(some_states)), dim=-1)  # [tokens, vocab]
        chunks.append(log_probs.gather(1, some_targets[:, None])[:, 0])  # [tokens]
    return torch.cat(chunks)
