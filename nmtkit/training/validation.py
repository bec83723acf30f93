"""Validation: nll and perplexity of the reference, and BLEU of translations made as by `translate`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from nmtkit.config.decoding_schema import TrainingLengths
from nmtkit.config.schema import Recipe
from nmtkit.console import counted, log
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import cut_by_padded_tokens, row_lengths
from nmtkit.data.prepare import stored_bleu_tokenizer
from nmtkit.data.shards import read_manifest
from nmtkit.data.windows import validation_data
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers, is_out_of_memory
from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.scores import perplexity_of
from nmtkit.lines import any_text
from nmtkit.model.transformer import Transformer
from nmtkit.run import Run, chosen_languages
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.loss import batch_loss, own_loss

NUM_SAMPLES = 3


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        nll: mean per target token, in nats, without label smoothing; not finite (null in files) after a divergence.
        bleu: sacreBLEU for plain text, tokenised BLEU for tokenised; None if not enabled, or after a divergence.
            The mean over the directions, where there are several.
        samples: the same few source lines each time, with reference and translation.
        directions: nll and BLEU of each direction, where there are several.
    """

    nll: float
    bleu: float | None
    samples: list[dict[str, str]]
    directions: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @classmethod
    def of_line(cls, line: dict[str, Any]) -> "Validation | None":
        """Return the validation in a line of metrics.jsonl, if there is one."""
        if "valid_nll" not in line:
            return None
        nll = math.nan if line["valid_nll"] is None else line["valid_nll"]
        return cls(nll, line["valid_bleu"], line["samples"], line.get("valid_directions", {}))

    @property
    def metrics(self) -> dict[str, Any]:
        """The entries of a line of metrics.jsonl."""
        nll, perplexity = (self.nll, perplexity_of(self.nll)) if math.isfinite(self.nll) else (None, None)
        directions = {"valid_directions": self.directions} if self.directions else {}
        return {
            "valid_nll": nll, "valid_perplexity": perplexity, "valid_bleu": self.bleu, "samples": self.samples,
            **directions,
        }  # fmt: skip

    @staticmethod
    def scores(validation: "Validation | None") -> dict[str, float | None]:
        """Return the scores that a checkpoint keeps, None without a validation."""
        nll, bleu = (None, None) if validation is None else (validation.metrics["valid_nll"], validation.bleu)
        return {"valid_nll": nll, "valid_bleu": bleu}

    def cost(self, metric: str) -> float:
        """Return the number by which validations are compared: the smaller is the better."""
        return -self.bleu if metric == "bleu" and self.bleu is not None else self.nll


def _directions(runs: Sequence[Any], pairs: Sequence[int]) -> tuple[list[int], list[tuple[tuple[str, str], list[int]]]]:
    """Return the index of the direction of each pair of the shards, and each direction with its lines.

    Args:
        runs: direction and number of consecutive lines of one direction, in order.
        pairs: number of pairs of the shards for each of these.
    """
    found: dict[tuple[str, str], list[int]] = {}
    of_pair: list[int] = []
    begin = 0
    for ((source, target), count), num_pairs in zip(runs, pairs, strict=True):
        found.setdefault((source, target), []).extend(range(begin, begin + count))
        of_pair += [list(found).index((source, target))] * num_pairs
        begin += count
    return of_pair, list(found.items())


class _StoppedError(Exception):
    """A process was requested to stop."""


class Validator:
    """Scores models on the validation data of a run."""

    def __init__(
        self, recipe: Recipe, run: Run, tokenizer: Tokenizer, workers: Workers, trained_lengths: TrainingLengths | None
    ) -> None:
        """Read the validation data; ``trained_lengths``, those of the model, limit the sources that it translates."""
        self._recipe, self._tokenizer, self._workers = recipe, tokenizer, workers
        self._trained_lengths = trained_lengths
        self._data = validation_data(run.valid_data, recipe, tokenizer)
        self._loss = own_loss(recipe.model) or batch_loss
        lengths = row_lengths(self._data.source_lengths, self._data.target_lengths, is_joined=self._data.is_joined)
        rows = [int(length) for length in lengths]
        # By length, so that batches have little padding.
        order = sorted(range(len(rows)), key=lambda pair: rows[pair])
        noun = f"validation {self._data.noun}"
        if recipe.model.positions == "learned" and recipe.model.head == "none":  # other data were cut
            fitting = [pair for pair in order if rows[pair] <= recipe.model.max_positions]
            if len(fitting) < len(order):
                num_skipped = len(order) - len(fitting)
                log.warning("%s skipped (more tokens than max_positions)", counted(num_skipped, noun))
            order = fitting
        if not order:
            raise DataError(f"{run.valid_data}: no usable {noun}; prepare the run with others")
        tokens_per_pass = recipe.training.tokens_per_pass or workers.tokens_per_pass
        self._sources, self._references = run.valid_text.read() if recipe.training.validate_bleu else ([], [])
        if len(self._sources) != len(self._references):
            raise DataError(
                f"{run.valid_text.reference} has {counted(len(self._references), 'line')}, but {run.valid_text.source} "
                f"has {len(self._sources)}; remove {run.data} and run `nmtkit prepare` again"
            )
        of_pair, self._directions = [0] * len(rows), [(recipe.data.directions[0], list(range(len(self._sources))))]
        if runs := read_manifest(run.data).get("valid_directions"):
            of_pair, self._directions = _directions(runs, [part.pairs for part in self._data.parts])
        self._batches: list[tuple[int, list[int]]] = []  # each with the index of its direction
        for number in range(len(self._directions)):
            pairs = [pair for pair in order if of_pair[pair] == number]
            sequences = None if self._data.rows is None else self._data.rows[pairs]
            slices = cut_by_padded_tokens([rows[pair] for pair in pairs], tokens_per_pass, rows=sequences)
            self._batches += [(number, pairs[start:stop]) for start, stop in slices]
        if recipe.training.validate_bleu:
            self._metric = "sacrebleu" if recipe.data.text == "plain" else "bleu-tokenized"
            self._scorers = [self._scorer(run, *of_direction) for of_direction in self._directions]

    def __call__(self, model: Transformer, wants_to_stop: Callable[[], bool] = lambda: False) -> Validation | None:
        """Validate a model in float32; every process takes part and gets the same result.

        Args:
            wants_to_stop: called before each batch; when it is true in any process, all return None.
        """
        was_training = model.training
        model.eval()
        vote = partial(self._vote, wants_to_stop)
        try:
            sums = self._nll(model, vote)
            total, tokens = sums.sum(0).tolist()
            nll, bleus = float(total / tokens), list[float | None]([None] * len(self._directions))
            if self._recipe.training.validate_bleu:
                bleus, hypotheses = self._translate(model, vote)
        except _StoppedError:
            return None
        finally:
            model.train(was_training)
        known = [bleu for bleu in bleus if bleu is not None]
        bleu = sum(known) / len(known) if len(known) == len(bleus) else None
        directions: dict[str, dict[str, float | None]] = {}
        for (direction, _), (part, count), score in zip(self._directions, sums.tolist(), bleus, strict=True):
            own = part / count if count and math.isfinite(part) else None
            directions["-".join(direction)] = {"nll": own, "bleu": score}
        several = len(directions) > 1
        return Validation(nll, bleu, self._samples(hypotheses) if known else [], directions if several else {})

    def _scorer(self, run: Run, direction: tuple[str, str], lines: list[int]) -> Scorer:
        """Return the scorer of a direction; it fails here, before the training, if its tokenizer is not installed."""
        data = self._recipe.data.in_direction(direction)
        references, words = [self._references[line] for line in lines], stored_bleu_tokenizer(run.folder, data)
        scorer = Scorer([references], target_language=data.target_language, text=data.text, tokenizer=words)
        scorer.metric(self._metric)
        return scorer

    def _samples(self, hypotheses: dict[int, str]) -> list[dict[str, str]]:
        """Return the first lines of each direction that have text."""
        several, rounds = len(self._directions) > 1, range(NUM_SAMPLES)
        texts = {
            direction: [line for line in own if any_text(self._sources[line], self._references[line])]
            for direction, own in self._directions
        }
        lines = [(own[at], direction) for at in rounds for direction, own in texts.items() if at < len(own)]
        return [
            {"source": self._sources[line], "reference": self._references[line], "hypothesis": hypotheses[line]}
            | ({"target_language": target} if several else {})
            | ({"source_language": source} if several and self._recipe.data.has_source_tags else {})
            for line, (source, target) in lines[:NUM_SAMPLES]
        ]

    @torch.inference_mode()
    def _nll(self, model: Transformer, vote: Callable[..., Any]) -> torch.Tensor:
        """Return the sums of nll and target tokens [directions, 2]."""
        # On the CPU, where every machine has float64: sums hardly depend on the batches.
        sums = torch.zeros(len(self._directions), 2, dtype=torch.float64)
        for direction, pairs in self._batches[self._workers.rank :: self._workers.num_processes]:
            vote()
            sums[direction] += self._nll_of(model, pairs)
        while vote(is_busy=False):
            continue
        return self._workers.sum(sums)

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
        torch.cuda.empty_cache()
        middle = len(pairs) // 2
        return self._nll_of(model, pairs[:middle]) + self._nll_of(model, pairs[middle:])

    def _translate(self, model: Transformer, vote: Callable[..., Any]) -> tuple[list[float | None], dict[int, str]]:
        """Return BLEU of each direction, and the translation of each line."""
        translator = Translator([model], self._tokenizer, self._recipe.decoding, lengths=self._trained_lengths)
        scores, hypotheses = list[float | None](), dict[int, str]()
        for (direction, lines), scorer in zip(self._directions, self._scorers, strict=True):
            found = self._translate_lines(translator, [self._sources[line] for line in lines], direction, vote)
            scores.append(None if found is None else scorer.score(found, [self._metric])[self._metric].score)
            hypotheses.update(zip(lines, found or [""] * len(lines), strict=True))
        return scores, hypotheses

    def _translate_lines(
        self, translator: Translator, sources: list[str], direction: tuple[str, str], vote: Callable[..., Any]
    ) -> list[str] | None:
        """Return the translations of lines, a share of them by each process; None after a divergence."""
        rank, processes = self._workers.rank, self._workers.num_processes
        mine, diverged = list[str](), False
        # Consecutive lines, as a line may be translated with those before it.
        start, stop = (len(sources) * number // processes for number in (rank, rank + 1))
        source, target = chosen_languages(self._recipe.data, direction, self._tokenizer)
        request = TranslationRequest(
            before=sources[:start], source_language=source, target_language=target, split="never"
        )
        try:
            found = translator.translations(sources[start:stop], request, before_batch=vote)
            mine = [best.text for best, *_ in found]
        except ModelError as error:  # updates decide about rolling back, so a validation does not end the training
            log.warning("this validation computes no BLEU: %s", error)
            diverged = True
        while vote(is_busy=False):
            continue
        return None if any(self._workers.gather([diverged])) else self._workers.gather(mine)

    def _vote(self, wants_to_stop: Callable[[], bool], *, is_busy: bool = True) -> bool:
        """Return whether any process is busy; raise _StoppedError on every process if one wants to stop.

        Every process votes before each of its batches, and those that are done go on voting until all are: so all stop
        at the same batch, however many batches each has.
        """
        wish, busy = self._workers.sum(torch.tensor([float(wants_to_stop()), float(is_busy)])).tolist()
        if wish:
            raise _StoppedError
        return bool(busy)
