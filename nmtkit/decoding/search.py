"""The one search: beam search, of which greedy search is the beam of 1, and sampling, which only chooses otherwise.

At each step every live hypothesis of a sentence is continued by every token, and the ``beam`` best continuations by
log-probability are kept. Those that end in the end symbol are finished; the others live on. A finished hypothesis of n
tokens, the end symbol counted, has the score log P / penalty(n). A sentence is done when no live hypothesis can win any
more, even if all it still adds has probability 1 and it grows to the maximum length. At the maximum length only the end
symbol may follow, so every result is complete.

What may follow is narrowed by rules (``rules.py``); what is kept is decided by a chooser: the best continuations
(here), drawn ones (``sampling.py``), or those that make room for required phrases (``required.py``). docs/decoding.md
has it all in one place.

Source: section 6.1 of the paper, and Wu et al. 2016 (arXiv 1609.08144), section 7, for the penalties.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.decoding.stepper import Stepper
from nmtkit.errors import ModelError

_Rows = TypeVar("_Rows", Tensor, NDArray)

LengthPenalty = Callable[[int], float]

Rule = Callable[[Tensor, Tensor, Sequence[int]], None]
"""Forbids continuations: sets log-probabilities [sentences, live, vocab] to -inf in place, given the tokens so far, BOS
first [sentences, live, length], and the numbers of the sentences."""

Chosen = tuple[Tensor, Tensor, Tensor]
"""What to go on with, each [sentences, kept]: log-probabilities, which live one each continues, and its new token."""

Chooser = Callable[[Tensor, Tensor, NDArray[np.int64], Sequence[int], int], Chosen]
"""From log-probabilities of the live hypotheses [sentences, live] and of their continuations [sentences, live, vocab],
tokens so far (as for rules, but where Python can look at them), sentences and beam to what is kept."""


def length_penalty(kind: Literal["wu", "length", "none"], alpha: float) -> LengthPenalty:
    """What the log-probability of n tokens is divided by; it must not fall as n grows.

    wu: ((5 + n) / 6)^alpha (Wu et al. 2016, equation 14). length: n^alpha. none: 1.
    """
    if kind == "wu":
        return lambda n: float(((5 + n) / 6) ** alpha)
    if kind == "length":
        return lambda n: float(n**alpha)
    return lambda n: 1.0


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation.

    Attributes:
        ids: its tokens, without begin and end symbols.
        log_prob: natural logarithm of its probability, the end symbol counted.
        score: log_prob / penalty(len(ids) + 1), and the coverage penalty where one is asked for.
        token_log_probs: of each token, the end symbol last; they add up to log_prob.
        attention: where each token looked in the source, if asked for [tokens and end symbol, source].
        slot: its place among the live hypotheses when it ended; the number of a sample.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...] = field(default=(), compare=False)
    attention: Float[Tensor, "tokens source"] | None = field(default=None, compare=False, repr=False)
    slot: int = field(default=0, compare=False, repr=False)


@functools.cache
def _stack(vocab: int) -> int:
    """Entries of the vocabulary whose maximum is taken together: a divisor of its size where there is one.

    They are as far apart as there are such maxima, so that these are computed side by side, and fastest where their
    number is one that a processor's vectors divide.
    """
    divisors = [size for size in range(16, 65) if vocab % size == 0]
    return max(divisors, key=lambda size: (math.gcd(vocab // size, 16), -abs(size - 40)), default=40)


def best_continuations(
    log_probs: Float[Tensor, "sentences live"],
    step: Float[Tensor, "sentences live vocab"],
    tokens: Int[np.ndarray, "sentences live length"],
    sentences: Sequence[int],
    beam: int,
) -> Chosen:
    """The ``beam`` continuations of highest probability; which of exactly equal ones, is torch's choice.

    With the vocabulary as a table, the best of all are in the columns with the best maxima, and maxima are much cheaper
    than a top-k.
    """
    num_sentences, live, vocab = step.shape
    size = _stack(vocab)
    if vocab <= size * beam:
        best, place = (log_probs[:, :, None] + step).flatten(1).topk(min(beam, live * vocab), dim=1)
        return best, place // vocab, place % vocab
    if vocab % size:
        step = F.pad(step, (0, -vocab % size), value=-torch.inf)
    table = step.reshape(num_sentences * live, size, -1)
    columns = table.size(2)
    maxima = table.amax(1).view(num_sentences, live, columns).add_(log_probs.unsqueeze(2))
    chosen = maxima.view(num_sentences, -1).topk(beam, dim=1).indices  # [sentences, beam]: live x columns
    origin = chosen // columns
    column = chosen.remainder_(columns)
    rows = origin if num_sentences == 1 else origin + _offsets(num_sentences, live, step.device)
    values = table[rows, :, column].add_(log_probs.gather(1, origin).unsqueeze(2))  # [sentences, beam, size]
    best, place = values.view(num_sentences, -1).topk(beam, dim=1)
    which = place // size
    token = place.remainder_(size).mul_(columns).add_(column.gather(1, which))
    # Where too few are possible, impossible ones come along, and of these some may lie behind the last entry.
    return best, origin.gather(1, which), token if vocab % size == 0 else token.clamp_(max=vocab - 1)


def _offsets(num_sentences: int, rows: int, device: torch.device | None) -> Int[Tensor, "sentences 1"]:
    """Where each sentence's rows begin among those of all, each having ``rows``."""
    return torch.arange(0, num_sentences * rows, rows, device=device)[:, None]


@dataclass(frozen=True)
class SearchOptions:
    """What is asked of a search beyond beam and length penalty.

    Attributes:
        n_best: goes on until no live hypothesis can come among that many best.
        min_tokens: no end before that many tokens, where anything else may follow.
        rules: which continuations are forbidden.
        choose: which of the others are kept.
        sampled: goes on until every hypothesis has ended, and returns them in the order of their slots.
        coverage: beta of Wu et al. 2016, equation 14: added to a score is beta times the sum, over the source's tokens,
            of log(min(attention it got in all, 1)).
        keep_attention: whether hypotheses carry their attention.
        source_lengths: tokens of each source, its end symbol counted; where attention is seen.
    """

    n_best: int = 1
    min_tokens: int = 0
    rules: tuple[Rule, ...] = ()
    choose: Chooser = best_continuations
    sampled: bool = False
    coverage: float = 0.0
    keep_attention: bool = False
    source_lengths: Sequence[int] = ()

    @property
    def sees_attention(self) -> bool:
        """Whether the search asks the stepper where it looked."""
        return self.keep_attention or self.coverage > 0


@dataclass
class _Live:
    """The live hypotheses of all sentences that are not done; except for attention kept where Python can look at it.

    Attributes:
        tokens: BOS first [sentences, live, length + 1].
        trace: log-probability after each token [sentences, live, length].
        attention: of each token to the source, where it is kept [sentences, live, length, source].
    """

    tokens: NDArray[np.int64]
    trace: NDArray[np.floating]
    attention: Tensor | None = None

    def grow(
        self, log_probs: NDArray[np.floating], rows: Int[Tensor, "sentences kept"], last: NDArray[np.int64]
    ) -> None:
        """Goes on with the chosen continuations, ``rows`` being the hypotheses that they continue."""
        origins = rows.numpy(force=True)
        self.tokens = np.concatenate([_flat(self.tokens)[origins], last[:, :, None]], 2)
        self.trace = np.concatenate([_flat(self.trace)[origins], log_probs[:, :, None]], 2)
        if self.attention is not None:
            self.attention = _flat(self.attention)[rows]

    def see(self, attention: Tensor) -> None:
        """Adds where the last step looked [sentences, live, source]."""
        new = attention[:, :, None]
        self.attention = new if self.attention is None else torch.cat([self.attention, new], 2)

    def keep(self, kept: list[int]) -> None:
        """Drops all other sentences."""
        self.tokens, self.trace = self.tokens[kept], self.trace[kept]
        if self.attention is not None:
            self.attention = self.attention[kept]


def beam_search(
    stepper: Stepper,
    max_lengths: Sequence[int],
    *,
    beam: int,
    penalty: LengthPenalty,
    bos: int,
    eos: int,
    forbidden: Sequence[int] = (),
    device: torch.device | None = None,
    options: SearchOptions | None = None,
) -> list[list[Hypothesis]]:
    """Translates a batch of sentences.

    Args:
        stepper: has one hypothesis a sentence to begin with.
        max_lengths: most tokens of each sentence's translation, the end symbol not counted.
        beam: hypotheses kept; samples drawn, where the options say so.
        forbidden: tokens that no translation may hold.

    Returns:
        For each sentence its finished hypotheses, best score first (samples: as drawn); at least one.

    Raises:
        ModelError: of a sentence without a finished translation no continuation has a finite probability, or one of any
            sentence is not a number.
    """
    options = options or SearchOptions()
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    active = list(range(len(max_lengths)))  # sentences that still have a live hypothesis
    live = _Live(np.full((len(active), 1, 1), bos), np.zeros((len(active), 1, 0), np.float32))
    log_probs = torch.zeros(len(active), 1, device=device)  # -inf for a slot without a live hypothesis
    last = torch.full((len(active), 1), bos, device=device)
    unusable = torch.tensor(forbidden, dtype=torch.long, device=device)
    unusable_at_first = torch.tensor([eos, *forbidden], dtype=torch.long, device=device)
    length = 0  # tokens of the live hypotheses, BOS not counted
    while active:
        step = stepper.step(last.flatten()).unflatten(0, (len(active), -1))  # [sentences, live, vocab]
        if options.sees_attention:
            live.see(stepper.attention().unflatten(0, (len(active), -1)))
        at_limit = [row for row, sentence in enumerate(active) if max_lengths[sentence] <= length]
        barred = unusable_at_first if length < options.min_tokens else unusable
        _narrow(step, live.tokens, active, barred, at_limit, eos, options.rules)
        best, origins, last = options.choose(log_probs.to(step.dtype), step, live.tokens, active, beam)
        length += 1
        rows = origins if len(active) == 1 else origins + _offsets(len(active), step.size(1), device)
        chances, tokens_said = best.numpy(force=True), last.numpy(force=True)
        live.grow(chances, rows, tokens_said)
        has_ended = tokens_said == eos
        going_on, log_probs = chances, best  # [sentences, kept]
        if has_ended.any():
            going_on = np.where(has_ended, -np.inf, chances)
            log_probs = torch.as_tensor(going_on, device=device)
            _collect(finished, active, live, has_ended & np.isfinite(chances), penalty(length), options)
        for sentence, most in zip(active, chances.max(1).tolist(), strict=True):
            # Of a sentence that has a translation a chooser may drop all others.
            if not math.isfinite(most) and not (finished[sentence] and most == -math.inf):
                raise ModelError(
                    "the model's probabilities are not finite: its weights are damaged or its training diverged"
                )
        bounds = going_on.max(1)
        kept = [
            row
            for row, (sentence, bound) in enumerate(zip(active, bounds.tolist(), strict=True))
            if _can_win(finished[sentence], bound, penalty(max_lengths[sentence] + 1), options)
        ]
        if len(kept) < len(active):
            active = [active[row] for row in kept]
            live.keep(kept)
            rows, last, log_probs = rows[kept], last[kept], log_probs[kept]
        if active:
            stepper.select(rows)
    order = (lambda hypothesis: hypothesis.slot) if options.sampled else (lambda hypothesis: -hypothesis.score)
    return [sorted(hypotheses, key=order) for hypotheses in finished]


def _narrow(
    step: Float[Tensor, "sentences live vocab"],
    tokens: Int[np.ndarray, "sentences live length"],
    active: Sequence[int],
    barred: Int[Tensor, " forbidden"],
    at_limit: list[int],
    eos: int,
    rules: Sequence[Rule],
) -> None:
    """Leaves what may follow: at the limit, and where rules allow nothing, only the end symbol with its probability.

    Args:
        barred: what may not follow, whatever the rules say.
        at_limit: rows of sentences that have reached their maximum length.
    """
    end = step[:, :, eos].clone() if at_limit or rules else None
    step.index_fill_(2, barred, -torch.inf)
    if rules:
        so_far = torch.as_tensor(tokens, device=step.device)
        for rule in rules:
            rule(step, so_far, active)
    if end is None:
        return
    if at_limit:
        full = torch.tensor(at_limit, device=step.device)
        step.index_fill_(0, full, -torch.inf)
        step[:, :, eos].index_copy_(0, full, end[full])
    if rules:
        stuck = step.amax(2) == -torch.inf
        step[:, :, eos] = torch.where(stuck, end, step[:, :, eos])


def _collect(
    finished: list[list[Hypothesis]],
    active: list[int],
    live: _Live,
    has_ended: NDArray[np.bool_],
    divisor: float,
    options: SearchOptions,
) -> None:
    """Records the hypotheses that have just ended [sentences, live]."""
    for row, slot in np.argwhere(has_ended).tolist():
        ids, trace = live.tokens[row, slot, 1:-1].tolist(), live.trace[row, slot].tolist()
        score = trace[-1] / divisor
        attention = None
        if live.attention is not None:
            attention = live.attention[row, slot, :, : options.source_lengths[active[row]]]
            if options.coverage:
                # No token of the source counts as wholly overlooked: what underflows to 0 would cost infinitely much.
                covered = attention.sum(0).clamp(torch.finfo(attention.dtype).tiny, 1.0)
                score += options.coverage * float(covered.log().sum())
        steps = tuple(after - before for before, after in zip([0.0, *trace], trace, strict=False))
        kept = attention if options.keep_attention else None
        finished[active[row]].append(Hypothesis(tuple(ids), trace[-1], score, steps, kept, slot))


def _can_win(finished: list[Hypothesis], best_live: float, largest_divisor: float, options: SearchOptions) -> bool:
    """Whether a live hypothesis could still come among the best that are asked for; of samples: whether one is live.

    Log-probabilities only fall, so the best a live one can reach is its present one over the largest divisor. A
    coverage penalty can only lower it.
    """
    if best_live == -torch.inf:
        return False
    if options.sampled or len(finished) < options.n_best:
        return True
    return (
        best_live / largest_divisor
        > sorted((hypothesis.score for hypothesis in finished), reverse=True)[options.n_best - 1]
    )


def _flat(values: _Rows) -> _Rows:
    """[sentences x live, ...] from [sentences, live, ...]."""
    return values.reshape((values.shape[0] * values.shape[1], *values.shape[2:]))
