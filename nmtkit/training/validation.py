"""Validation: nll and perplexity of the reference, and BLEU of translations made as by `translate`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from nmtkit.config.schema import Recipe
from nmtkit.console import counted, log
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import cut_by_padded_tokens, row_lengths
from nmtkit.data.prepare import stored_bleu_tokenizer
from nmtkit.data.windows import validation_data
from nmtkit.decoding.engine import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers, is_out_of_memory
from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.metrics import Scorer
from nmtkit.model.transformer import Transformer
from nmtkit.run import Run
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.loss import batch_loss, own_loss

NUM_SAMPLES = 3


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        nll: mean per target token, in nats, without label smoothing; not finite (null in files) after a divergence.
        bleu: sacreBLEU for plain text, tokenised BLEU for tokenised; None if not enabled, or after a divergence.
        samples: the same few source lines each time, with reference and translation.
    """

    nll: float
    bleu: float | None
    samples: list[dict[str, str]]

    @classmethod
    def of_line(cls, line: dict[str, Any]) -> "Validation | None":
        """Return the validation in a line of metrics.jsonl, if there is one."""
        if "valid_nll" not in line:
            return None
        return cls(math.nan if line["valid_nll"] is None else line["valid_nll"], line["valid_bleu"], line["samples"])

    @property
    def metrics(self) -> dict[str, Any]:
        """The entries of a line of metrics.jsonl."""
        nll, perplexity = (self.nll, self.perplexity) if math.isfinite(self.nll) else (None, None)
        return {"valid_nll": nll, "valid_perplexity": perplexity, "valid_bleu": self.bleu, "samples": self.samples}

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 700.0))

    def cost(self, metric: str) -> float:
        """Return the number by which validations are compared: the smaller is the better."""
        return -self.bleu if metric == "bleu" and self.bleu is not None else self.nll


class _StoppedError(Exception):
    """A process was requested to stop."""


class Validator:
    """Scores models on the validation data of a run."""

    def __init__(self, recipe: Recipe, run: Run, tokenizer: Tokenizer, workers: Workers) -> None:
        self._recipe, self._tokenizer, self._workers = recipe, tokenizer, workers
        self._data = validation_data(run.data / "valid", recipe, tokenizer)
        self._loss = own_loss(recipe.model) or batch_loss
        lengths = row_lengths(self._data.source_lengths, self._data.target_lengths, is_joined=self._data.is_joined)
        rows = [int(length) for length in lengths]
        order = sorted(range(len(rows)), key=lambda pair: rows[pair])
        if recipe.model.positions == "learned" and recipe.model.head == "none":  # other data were cut
            fitting = [pair for pair in order if rows[pair] <= recipe.model.max_positions]
            if len(fitting) < len(order):
                num_skipped = len(order) - len(fitting)
                log.warning("%s skipped (more tokens than max_positions)", counted(num_skipped, "validation pair"))
            order = fitting
        if not order:
            raise DataError(f"{run.data / 'valid'}: no usable validation pair; prepare the run with others")
        tokens_per_pass = recipe.training.tokens_per_pass or workers.tokens_per_pass
        slices = cut_by_padded_tokens([rows[pair] for pair in order], tokens_per_pass)
        self._batches = [order[start:stop] for start, stop in slices]
        if recipe.training.validate_bleu:
            self._sources, self._references = run.valid_text.read()
            data, words = recipe.data, stored_bleu_tokenizer(run.folder, recipe.data)
            self._metric = "sacrebleu" if data.text == "plain" else "bleu-tokenized"
            self._scorer = Scorer(
                [self._references], target_language=data.target_language, text=data.text, tokenizer=words
            )
            self._scorer.metric(self._metric)  # fails here, before the training, if its tokenizer is not installed

    def __call__(self, model: Transformer, wants_to_stop: Callable[[], bool] = lambda: False) -> Validation | None:
        """Validate a model in float32; every process takes part and gets the same result.

        Args:
            wants_to_stop: called before each batch; when it is true in any process, all return None.
        """
        was_training = model.training
        model.eval()
        vote = partial(self._vote, wants_to_stop)
        try:
            nll = self._nll(model, vote)
            if not self._recipe.training.validate_bleu:
                return Validation(nll, None, [])
            bleu, hypotheses = self._translate(model, vote)
        except _StoppedError:
            return None
        finally:
            model.train(was_training)
        samples = [
            {"source": self._sources[line], "reference": self._references[line], "hypothesis": hypotheses[line]}
            for line in range(min(NUM_SAMPLES, len(hypotheses)))
        ]
        return Validation(nll, bleu, samples)

    @torch.inference_mode()
    def _nll(self, model: Transformer, vote: Callable[..., Any]) -> float:
        sums = torch.zeros(2, dtype=torch.float64)
        for pairs in self._batches[self._workers.rank :: self._workers.num_processes]:
            vote()
            sums += self._nll_of(model, pairs)
        while vote(is_busy=False):
            continue
        total, tokens = self._workers.sum(sums).tolist()
        return float(total / tokens)

    def _nll_of(self, model: Transformer, pairs: list[int]) -> torch.Tensor:
        """Return the sums of nll and target tokens [2]; in halves where memory is too small for all pairs at once."""
        try:
            batch = make_batch(self._data, pairs).to(self._workers.device)
            nll = float(self._loss(model, batch, 0.0)[1])
        except RuntimeError as error:
            if not is_out_of_memory(error) or len(pairs) == 1:
                raise
        else:
            return torch.tensor([nll, float(batch.num_targets)], dtype=torch.float64)
        self._workers.free_memory()
        middle = len(pairs) // 2
        return self._nll_of(model, pairs[:middle]) + self._nll_of(model, pairs[middle:])

    def _translate(self, model: Transformer, vote: Callable[..., Any]) -> tuple[float | None, list[str]]:
        rank, processes = self._workers.rank, self._workers.num_processes
        translator = Translator([model], self._tokenizer, self._recipe.decoding)
        mine, diverged = list[str](), False
        start, stop = (len(self._sources) * number // processes for number in (rank, rank + 1))
        request = TranslationRequest(before=self._sources[:start])
        try:
            found = translator.translations(self._sources[start:stop], request, before_batch=vote)
            mine = [best.text for best, *_ in found]
        except ModelError as error:  # updates decide about rolling back, so a validation does not end the training
            log.warning("this validation computes no BLEU: %s", error)
            diverged = True
        while vote(is_busy=False):
            continue
        if any(self._workers.gather([diverged])):
            return None, []
        hypotheses = self._workers.gather(mine)
        return self._scorer.score(hypotheses, [self._metric])[self._metric].score, hypotheses

    def _vote(self, wants_to_stop: Callable[[], bool], *, is_busy: bool = True) -> bool:
        """Return whether any process is busy; raise _StoppedError on every process if one wants to stop.

        Every process votes before each of its batches, and those that are done go on voting until all are: so all stop
        at the same batch, however many batches each has.
        """
        wish, busy = self._workers.sum(torch.tensor([float(wants_to_stop()), float(is_busy)])).tolist()
        if wish:
            raise _StoppedError
        return bool(busy)
