"""Scores and continuations of text by models without a source (task "language-model").

text -> tokens -> sequences of data.sequence_length, each token predicted once -> TextScore
prompt -> tokens -> sampled or searched continuation, in parts where it is longer than the model's sequences -> text
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.console import counted, log
from nmtkit.data.batch import batch_of_texts, pad
from nmtkit.data.batching import cut_by_padded_tokens
from nmtkit.decoding.constraints import forbidden_phrases, no_repeated_ngrams
from nmtkit.decoding.engine import SURROGATE
from nmtkit.decoding.forced import ForcedScore, scoring_type, token_log_probs
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.request import Sampling
from nmtkit.decoding.sampling import sampled_continuations
from nmtkit.decoding.search import CandidateSelection, SearchOptions, beam_search, best_continuations
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.scores import perplexity_of
from nmtkit.model.decoder_only import DecoderOnly
from nmtkit.model.joined_step_decoder import JoinedStepDecoder
from nmtkit.model_folder import LoadedModel
from nmtkit.tasks.known import task_of
from nmtkit.tasks.language_model import text_of
from nmtkit.tasks.task import Constraint
from nmtkit.text.normalization import NEWLINE, TAB
from nmtkit.text.vocabulary import EOS, UNK

_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class TextScore:
    """Scores of a text by a model.

    Attributes:
        nll: sum over the predicted tokens, in nats; the first token of the text is not predicted.
        words, characters: numbers in the text; line ends count as characters.
        unknown: <unk> among the tokens; several unknown characters in a row may be one.
    """

    nll: float
    tokens: int
    words: int
    characters: int
    unknown: int

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return perplexity_of(self.nll / self.tokens)

    @property
    def word_perplexity(self) -> float:
        """Perplexity per word, which is comparable between models with different vocabularies."""
        return perplexity_of(self.nll / max(1, self.words))

    @property
    def bits_per_character(self) -> float:
        return self.nll / math.log(2) / self.characters

    def warn_of_unknown(self, name: str) -> None:
        """Log a warning if the text ``name`` has unknown tokens, whose probability is that of <unk>."""
        if self.unknown:
            log.warning(
                "%s: %s of %s tokens are <unk>, whatever their characters; compare its word perplexity and bits per "
                "character with no other model's",
                name, f"{self.unknown:,}", f"{self.tokens + 1:,}",
            )  # fmt: skip


def score_text(loaded: Sequence[LoadedModel], lines: Sequence[str], length: int, name: str = "the text") -> TextScore:
    """Return the score of a text by a model or an ensemble; each token of the text but the first is predicted once.

    Args:
        length: tokens of the sequences that the text is cut into; the last token that a sequence predicts is the first
            of the next one.
        name: name of the text in messages.

    Raises:
        DataError: the text has fewer than two tokens.
        ModelError: a probability is not a number.
    """
    ids = token_ids(loaded[0], lines)
    if len(ids) < 2:
        raise DataError(f"{name}: fewer than two tokens, so there is nothing to predict; give a longer text")
    starts = np.arange(0, len(ids) - 1, length)
    sizes = np.minimum(starts + length, len(ids) - 1) + 1 - starts
    models, total = [each.model for each in loaded], 0.0
    for first, stop in cut_by_padded_tokens(sizes, _BATCH_TOKENS):
        chosen = [ids[start : start + size] for start, size in zip(starts[first:stop], sizes[first:stop], strict=True)]
        batch = batch_of_texts(np.concatenate(chosen), sizes[first:stop])
        log_probs = token_log_probs(models, batch.to(models[0].output_embedding.device))
        # In float64, as a float32 sum over a long text loses digits; on the CPU, as mps has no float64.
        total -= float(log_probs.cpu().double().sum())
    characters = sum(len(line) + 1 for line in lines)
    return TextScore(total, len(ids) - 1, sum(len(line.split()) for line in lines), characters, int((ids == UNK).sum()))


class ContinuationScorer:
    """Scorer of given continuations, with the part of the interface of `ForcedDecoder` that scores lines.

    Attributes:
        tokenizer: tokenizer of the model.
    """

    def __init__(self, loaded: Sequence[LoadedModel], precision: str | None = None) -> None:
        """Take over language models, whose weights get the precision to score in; see `ForcedDecoder.load`.

        Raises:
            ModelError: these are other models.
            NmtkitError: float64 on a device without it.
        """
        self.tokenizer = loaded[0].tokenizer
        task_of(self.tokenizer).require("generate")
        self._device = loaded[0].model.output_embedding.device
        dtype = scoring_type(precision, self._device)
        self._models, self._length = [each.model.to(dtype) for each in loaded], trained_length(loaded)
        self._newline = self.tokenizer.encode([NEWLINE], "target")[0]

    @torch.inference_mode()
    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        before: object = (),
        *,
        batch_tokens: int = _BATCH_TOKENS,
        max_tokens: int = 1024,
        first_line: int = 1,
    ) -> list[ForcedScore]:
        """Return the score of each hypothesis as the continuation of a source, with a blank between them.

        A source begins after a line end, also an empty one. The end of a hypothesis is not scored, but that of an empty
        one is. Sources are cut at their beginnings and hypotheses at their ends where both are longer than a training
        sequence.

        Args:
            max_tokens: maximum length of both together, at most that of a training sequence.
        """
        length = min(self._length, max_tokens)
        lines = [[line.strip().replace("\t", TAB) for line in pair] for pair in pairs]
        texts = [[self.tokenizer.normalize(line, "target").strip() for line in pair] for pair in lines]
        sources = self.tokenizer.encode([source for source, _ in texts], "target")
        joined = [f"{source} {text}" if source and text else source + text for source, text in texts]
        rows, found, remarks = [], [], []
        for source, both in zip(sources, self.tokenizer.encode(joined, "target"), strict=True):
            hypothesis = both[len(source) :]  # no subword goes over the blank between them
            scored = (hypothesis or self._newline)[:length]
            context = [*self._newline, *source]
            # At least one token, as a sequence begins with one that is not predicted.
            kept = context[-max(1, length + 1 - len(scored)) :]
            rows.append(np.array([*kept, *scored], np.int64))
            found.append(scored)
            is_cut = {
                "empty_hypothesis": not hypothesis,
                "cut_source": len(kept) < len(source),
                "cut_hypothesis": len(hypothesis) > length,
                "unknown_tokens": UNK in scored,
            }
            remarks.append(tuple(name for name, applies in is_cut.items() if applies))
        scores: list[tuple[float, ...]] = [()] * len(rows)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        for start, stop in cut_by_padded_tokens([len(rows[row]) for row in order], batch_tokens):
            chosen = order[start:stop]
            sizes = np.array([len(rows[row]) for row in chosen], np.int64)
            batch = batch_of_texts(np.concatenate([rows[row] for row in chosen]), sizes)
            log_probs = token_log_probs(self._models, batch.to(self._device)).tolist()
            for row, end in zip(chosen, np.cumsum(sizes - 1).tolist(), strict=True):
                scores[row] = tuple(log_probs[end - len(found[row]) : end])
        by_row = zip(found, scores, remarks, strict=True)
        return [ForcedScore(tuple(ids), log_probs, remark) for ids, log_probs, remark in by_row]


def trained_length(loaded: Sequence[LoadedModel]) -> int:
    """Return the length in tokens of the sequences that models of running text were trained with, the least of all."""
    lengths = [each.lengths for each in loaded]
    if None in lengths:
        raise ModelError("model.json does not record the length of the training sequences")
    return min(each.longest_source for each in lengths if each is not None)


def token_ids(loaded: LoadedModel, lines: Sequence[str], *, ends: bool = True, after_blank: bool = False) -> np.ndarray:
    """Return the tokens of a text; without ``ends``, its last line has no line end.

    Args:
        after_blank: with a blank before it, unless it begins with one.
    """
    tokenizer = loaded.tokenizer
    task = task_of(tokenizer)
    task.require("generate")
    marked = [task.model_target(line, "the text") for line in lines]
    if not ends and marked:
        marked[-1] = marked[-1].removesuffix(NEWLINE)
    marked = [tokenizer.normalize(line, "target") for line in marked]
    if after_blank and not marked[0].startswith(" "):
        marked[0] = f" {marked[0]}"
    rows = tokenizer.encode(marked, "target")
    return np.concatenate([np.asarray(row, np.int64) for row in rows]) if rows else np.zeros(0, np.int64)


def _prompt_ids(loaded: LoadedModel, text: str, kind: str) -> list[int]:
    """Return the tokens of a text that another one follows; ``kind`` names it in messages."""
    if bad := SURROGATE.search(text):
        raise DataError(f"the {kind} is not valid UTF-8: {bad.group()!r} in it")
    return token_ids(loaded, text.split("\n"), ends=False).tolist()


def _constraint_after(earlier: Sequence[int], constraint: Constraint) -> Constraint:
    """Return a constraint that also sees the tokens before those of the search."""

    def constrain(step: torch.Tensor, tokens: torch.Tensor, sentences: Sequence[int]) -> None:
        before = tokens.new_tensor(earlier).expand(*tokens.shape[:2], -1)
        constraint(step, torch.cat([tokens[:, :, :1], before, tokens[:, :, 1:]], 2), sentences)

    return constrain


class Generator:
    """Continues text with a model, or with an ensemble of models of the same vocabulary.

    Attributes:
        decoding: settings of the search; sampling uses only those that forbid tokens.
    """

    def __init__(
        self, loaded: Sequence[LoadedModel], length: int, decoding: DecodingConfig, forbidden: Sequence[str] = ()
    ) -> None:
        """Store the models; ``length``, the tokens of their training sequences, is also the most that is read at once.

        Args:
            forbidden: phrases that no continuation may contain, each in its usual subwords, at the beginning of a line
                or after a blank.

        Raises:
            ModelError: these are other models.
            DataError: a phrase is empty or has characters outside the vocabulary.
        """
        # The tokenizer of the first model is that of all.
        self._loaded, self._length = loaded[0], length
        task_of(self._loaded.tokenizer).require("generate")
        tokenizer = self._loaded.tokenizer
        self._forbidden = [tuple(_prompt_ids(self._loaded, phrase, "forbidden phrase")) for phrase in forbidden]
        for phrase, ids in zip(forbidden, list(self._forbidden), strict=True):
            if not ids or UNK in ids:
                unknown = " ".join(tokenizer.unknown_in(phrase))
                fault = f"has characters that are not in the model's vocabulary ({unknown})"
                raise DataError(f"the forbidden phrase {phrase!r} {fault if ids else 'is empty; leave it out'}")
            # Within a line, its first subword may be another one, with the blank before it.
            after_blank = token_ids(self._loaded, phrase.split("\n"), ends=False, after_blank=True).tolist()
            if UNK not in after_blank:
                self._forbidden.append(tuple(after_blank))
        self.decoding = decoding
        self._decoders = []
        for each in loaded:
            # What the search takes for a source, the prompt, is the beginning of a target in training.
            model = copy.copy(each.model)
            assert isinstance(model, DecoderOnly)
            model.config = model.config.model_copy(update={"source_attention": "causal"})
            self._decoders.append(JoinedStepDecoder(model))

    @torch.inference_mode()
    def continuations(self, prompt: str, max_tokens: int, sampling: Sampling | None, count: int = 1) -> Iterator[str]:
        """Yield continuations of a prompt, each of ``max_tokens`` tokens, or up to the end symbol where it ends lines.

        Args:
            sampling: None to search for the ``count`` most probable ones instead.

        Raises:
            DataError: prompt and continuation are longer than the model's sequences, which only sampling allows, or the
                prompt contains half of a surrogate pair.
        """
        ids = _prompt_ids(self._loaded, prompt, "prompt")
        if UNK in ids:
            unknown = " ".join(self._loaded.tokenizer.unknown_in(prompt))
            log.warning("the model reads <unk> for characters of the prompt that its vocabulary lacks: %s", unknown)
        if not ids:  # a text begins after a line end
            ids = self._loaded.tokenizer.encode([NEWLINE], "target")[0]
        if sampling is None:
            if len(ids) + max_tokens > self._length:
                raise DataError(
                    f"prompt and continuation have {len(ids) + max_tokens:,} tokens, and the model was trained with "
                    f"{self._length:,}; take a smaller --max-tokens, or sample"
                )
            for found in self._search(ids, [], max_tokens, best_continuations)[:count]:
                self._warn_of_end(found, max_tokens)
                yield self._text_after(ids, found)
            return
        for number in range(count):
            written: list[int] = []
            while len(written) < max_tokens:
                context = [*ids, *written]
                if len(context) >= self._length:  # the model goes on from the second half
                    context = context[-max(1, self._length // 2) :]
                room = max(1, min(max_tokens - len(written), self._length - len(context)))
                # The length so far is in the seed, as otherwise each part would begin with the same random numbers.
                select = sampled_continuations([(sampling.seed, number, len(written))], sampling)
                added = self._search(context, written, room, select)[0]
                written += added
                if len(added) < room:
                    break
            self._warn_of_end(written, max_tokens)
            yield self._text_after(ids, written)

    def _text_after(self, prompt: list[int], generated: list[int]) -> str:
        """Return the text of generated tokens, with the blank that follows the prompt where one does."""
        decode = self._loaded.tokenizer.decode
        return text_of(decode([*prompt, *generated]).removeprefix(decode(prompt)))

    def _search(
        self, context: list[int], written: list[int], num_tokens: int, select: CandidateSelection
    ) -> list[list[int]]:
        """Return continuations of ``num_tokens`` tokens, best first; only one if it is sampled.

        They are shorter only where every further token is forbidden, or the end symbol ends a line.

        Args:
            written: what was generated before, the end of the context.
        """
        device = self._loaded.model.output_embedding.device
        # The last token of the context is the first that the search gives to the model.
        source, lengths = pad([context[:-1]], end=EOS).to(device), torch.tensor([len(context)])
        is_sampled = select is not best_continuations
        constraints = []
        if self._forbidden:
            constraints.append(_constraint_after(context, forbidden_phrases(self._forbidden)))
        if self.decoding.no_repeat_ngram:
            # N-grams of earlier parts may not be repeated either; those of the prompt may.
            constraints.append(_constraint_after(written, no_repeated_ngrams(self.decoding.no_repeat_ngram)))
        options = SearchOptions(
            n_best=1 if is_sampled else self.decoding.beam,
            min_tokens=0 if self._loaded.tokenizer.ends_lines else num_tokens,  # a running text has no end
            constraints=tuple(constraints),
            select=select,
            sampled=is_sampled,
            first=(context[-1],),
        )
        [hypotheses] = beam_search(
            ModelStepper(self._decoders, source, lengths),
            [num_tokens],
            beam=1 if is_sampled else self.decoding.beam,
            penalty=length_penalty("none", 0.0),
            suppressed=self._loaded.tokenizer.suppressed_ids,
            device=device,
            options=options,
        )
        if not is_sampled:
            # At the maximum length, the end symbol is no part of the text.
            hypotheses.sort(key=lambda found: -math.fsum(found.token_log_probs[:num_tokens]))
        return [list(hypothesis.ids) for hypothesis in hypotheses]

    def _warn_of_end(self, generated: list[int], num_tokens: int) -> None:
        if len(generated) < num_tokens and not self._loaded.tokenizer.ends_lines:
            log.warning(
                "the text ends after %s: --no-repeat-ngram or --forbid rules out every further token",
                counted(len(generated), "token"),
            )
