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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.decoding.stepper import Stepper
from nmtkit.errors import ModelError

LengthPenalty = Callable[[int], float]

Rule = Callable[[Tensor, Tensor, Sequence[int]], None]
"""Forbids continuations: sets log-probabilities [sentences, live, vocab] to -inf in place, given the tokens so far, BOS
first [sentences, live, length], and the numbers of the sentences."""

Chosen = tuple[Tensor, Tensor, Tensor]
"""What to go on with, each [sentences, kept]: log-probabilities, which live one each continues, and its new token."""

Chooser = Callable[[Tensor, Tensor, Tensor, Sequence[int], int], Chosen]
"""From log-probabilities of the live hypotheses [sentences, live] and of their continuations [sentences, live, vocab],
tokens so far, sentences and beam to what is kept."""


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


_BLOCK = 64
"""Entries of the vocabulary whose maximum is taken together."""


def best_continuations(
    log_probs: Float[Tensor, "sentences live"],
    step: Float[Tensor, "sentences live vocab"],
    tokens: Int[Tensor, "sentences live length"],
    sentences: Sequence[int],
    beam: int,
) -> Chosen:
    """The ``beam`` continuations of highest probability; which of exactly equal ones, is torch's choice.

    The best of all are in the blocks of the vocabulary with the best maxima, and maxima are much cheaper than a top-k.
    """
    vocab = step.size(2)
    blocks, rest = divmod(vocab, _BLOCK)
    if blocks <= beam:
        scores = (log_probs[:, :, None] + step).flatten(1)  # [sentences, live x vocab]
        best, index = scores.topk(min(beam, scores.size(1)), dim=1)
        return best, index // vocab, index % vocab
    maxima = step[:, :, : blocks * _BLOCK].unflatten(2, (blocks, _BLOCK)).amax(3)  # [sentences, live, blocks]
    if rest:
        maxima = torch.cat([maxima, step[:, :, blocks * _BLOCK :].amax(2, keepdim=True)], 2)
        blocks += 1
    chosen = (log_probs[:, :, None] + maxima).flatten(1).topk(beam, dim=1).indices  # [sentences, beam]
    origins, firsts = chosen // blocks, chosen % blocks * _BLOCK
    ids = firsts[:, :, None] + torch.arange(_BLOCK, device=step.device)  # [sentences, beam, block]
    places = (origins[:, :, None] * vocab + ids).clamp_(max=step[0].numel() - 1)
    values = step.flatten(1).gather(1, places.flatten(1)).view_as(places) + log_probs.gather(1, origins)[:, :, None]
    if rest:
        values = values.masked_fill_(ids >= vocab, -torch.inf)
    best, index = values.flatten(1).topk(beam, dim=1)
    place = places.flatten(1).gather(1, index)
    return best, place // vocab, place % vocab


@dataclass(frozen=True)
class SearchOptions:
    """What is asked of a search beyond beam and length penalty.

    Attributes:
        n_best: goes on until no live hypothesis can come among that many best.
        rules: which continuations are forbidden.
        choose: which of the others are kept.
        sampled: goes on until every hypothesis has ended, and returns them in the order of their slots.
        coverage: beta of Wu et al. 2016, equation 14: added to a score is beta times the sum, over the source's tokens,
            of log(min(attention it got in all, 1)).
        keep_attention: whether hypotheses carry their attention.
        source_lengths: tokens of each source, its end symbol counted; where attention is seen.
    """

    n_best: int = 1
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
    """The live hypotheses of all sentences that are not done.

    Attributes:
        log_probs: -inf for a slot without a live hypothesis [sentences, live].
        tokens: BOS first [sentences, live, length + 1].
        trace: log-probability after each token [sentences, live, length].
        attention: of each token to the source, where it is kept [sentences, live, length, source].
    """

    log_probs: Tensor
    tokens: Tensor
    trace: Tensor
    attention: Tensor | None = None

    def grow(self, log_probs: Tensor, rows: Int[Tensor, "sentences kept"], last: Tensor) -> None:
        """Goes on with the chosen continuations, ``rows`` being the hypotheses that they continue."""
        self.log_probs = log_probs
        self.tokens = torch.cat([_from(self.tokens, rows), last[:, :, None]], 2)
        self.trace = torch.cat([_from(self.trace, rows), log_probs[:, :, None]], 2)
        if self.attention is not None:
            self.attention = _from(self.attention, rows)

    def see(self, attention: Tensor) -> None:
        """Adds where the last step looked [sentences, live, source]."""
        new = attention[:, :, None]
        self.attention = new if self.attention is None else torch.cat([self.attention, new], 2)

    def keep(self, kept: Tensor) -> None:
        """Drops all other sentences."""
        self.log_probs, self.tokens, self.trace = self.log_probs[kept], self.tokens[kept], self.trace[kept]
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
        ModelError: no continuation has a finite probability.
    """
    options = options or SearchOptions()
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    active = list(range(len(max_lengths)))  # sentences that still have a live hypothesis
    live = _Live(
        torch.zeros(len(active), 1, device=device),
        torch.full((len(active), 1, 1), bos, device=device),
        torch.zeros(len(active), 1, 0, device=device),
    )
    unusable = torch.tensor(forbidden, dtype=torch.long, device=device)
    length = 0  # tokens of the live hypotheses, BOS not counted
    while active:
        step = stepper.step(live.tokens[:, :, -1].flatten())  # [rows, vocab]
        step = step.unflatten(0, (len(active), -1))  # [sentences, live, vocab]
        if options.sees_attention:
            live.see(stepper.attention().unflatten(0, (len(active), -1)))
        end = step[:, :, eos].clone()
        step.index_fill_(2, unusable, -torch.inf)
        for rule in options.rules:
            rule(step, live.tokens, active)
        _force_end(step, end, [max_lengths[sentence] <= length for sentence in active], eos, bool(options.rules))
        best, origins, last = options.choose(live.log_probs.to(step.dtype), step, live.tokens, active, beam)
        length += 1
        rows = origins + torch.arange(0, len(active) * step.size(1), step.size(1), device=device)[:, None]
        live.grow(best, rows, last)
        going_on = best.masked_fill(last == eos, -torch.inf)  # [sentences, kept]
        chances, bounds = torch.stack([best.amax(1), going_on.amax(1)]).tolist()
        if not all(math.isfinite(chance) for chance in chances):
            raise ModelError(
                "the model gives no finite probabilities: its weights are damaged or its training diverged"
            )
        _collect(finished, active, live, last == eos, penalty(length), options)
        live.log_probs = going_on
        can_win = [
            _can_win(finished[sentence], bound, penalty(max_lengths[sentence] + 1), options)
            for sentence, bound in zip(active, bounds, strict=True)
        ]
        active = [sentence for sentence, goes_on in zip(active, can_win, strict=True) if goes_on]
        if not active:
            break
        if not all(can_win):
            kept = torch.tensor([row for row, goes_on in enumerate(can_win) if goes_on], device=device)
            live.keep(kept)
            rows = rows[kept]
        stepper.select(rows)
    order = (lambda hypothesis: hypothesis.slot) if options.sampled else (lambda hypothesis: -hypothesis.score)
    return [sorted(hypotheses, key=order) for hypotheses in finished]


def _force_end(
    step: Float[Tensor, "sentences live vocab"],
    end: Float[Tensor, "sentences live"],
    at_limit: list[bool],
    eos: int,
    has_rules: bool,
) -> None:
    """Leaves only the end symbol, with its own probability, at the maximum length and where rules allow nothing."""
    if any(at_limit):
        rows = torch.tensor(at_limit, device=step.device)
        step[rows] = -torch.inf
        step[rows, :, eos] = end[rows]
    if has_rules:
        stuck = step.amax(2) == -torch.inf
        step[:, :, eos] = torch.where(stuck, end, step[:, :, eos])


def _collect(
    finished: list[list[Hypothesis]],
    active: list[int],
    live: _Live,
    ends: Tensor,
    divisor: float,
    options: SearchOptions,
) -> None:
    """Records the hypotheses that have just ended."""
    for row, slot in (ends & live.log_probs.isfinite()).nonzero().tolist():
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


def _from(values: Tensor, rows: Int[Tensor, "sentences kept"]) -> Tensor:
    """The rows [sentences, kept, ...] of the hypotheses that are continued, from [sentences, live, ...]."""
    return values.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)
