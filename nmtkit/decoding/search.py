"""Beam search. Greedy search is a beam of 1, and sampling uses the same search with another candidate selection.

At each step every live hypothesis of a sentence is continued by every token, and the ``beam`` best continuations by
log-probability are kept. Those that end in the end symbol are finished; the others stay live. A finished hypothesis of
n tokens, with the end symbol, has the score log P / penalty(n). A sentence is done when no live hypothesis can win any
more, even if all further tokens had probability 1 up to the maximum length. At the maximum length only the end symbol
may follow, so every result is complete.

This is finished = "within". With "beside", finished hypotheses do not take the places of live ones: of the
2 x ``beam`` best continuations, those that end are finished if they are among the first ``beam``, else dropped, and
the first ``beam`` that do not end stay live. A sentence is done when ``beam`` hypotheses are finished. At the maximum
length, all of the first ``beam`` are finished, without an end symbol. The probability of suppressed tokens is
distributed over the others. This is the search of CTranslate2 (src/decoding.cc, BeamSearch::search); fairseq's differs
at the maximum length and in suppressed tokens.

Constraints (``constraints.py``) exclude continuations. The candidate selection decides which of the others to keep: the
best (below), those that make progress with required phrases (``constraints.py``), or sampled ones (``sampling.py``).

Source: section 6.1 of the paper, and Wu et al. 2016 (arXiv 1609.08144), section 7, for the penalties.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.decoding.lengths import LengthPenalty
from nmtkit.decoding.stepper import Stepper
from nmtkit.errors import ModelError
from nmtkit.tasks.task import Constraint
from nmtkit.text.vocabulary import BOS, EOS

Candidates = tuple[Tensor, Tensor, Tensor]
"""The continuations kept, each [sentences, kept]: log-probability, slot of the live hypothesis, new token."""

CandidateSelection = Callable[[Tensor, Tensor, NDArray[np.int64], Sequence[int], int], Candidates]
"""Function that selects the continuations to keep. Arguments: the log-probabilities of the live hypotheses [sentences,
live] and of their next tokens [sentences, live, vocab], the tokens so far with BOS [sentences, live, length], the
indices of the sentences, and the beam."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation.

    Attributes:
        ids: tokens, without begin and end symbol.
        log_prob: natural logarithm of the probability, with that of the end symbol if it was generated.
        score: log_prob / penalty(n), plus the coverage penalty; n counts the end symbol if it was generated.
        token_log_probs: log-probability of each token, and of the end symbol.
        slot: index among the live hypotheses when it ended; for samples the number of the sample.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...] = field(default=(), compare=False)
    attention: Float[Tensor, "tokens source"] | None = field(default=None, compare=False, repr=False)
    slot: int = field(default=0, compare=False, repr=False)


@functools.cache
def _column_size(vocab: int) -> int:
    """Return the entries per column of the table in `best_continuations`: if possible, a divisor of ``vocab``."""
    # The maxima of the columns are computed in parallel, fastest if the vector width divides the number of columns.
    divisors = [size for size in range(16, 65) if vocab % size == 0]
    return max(divisors, key=lambda size: (math.gcd(vocab // size, 16), -abs(size - 40)), default=40)


def best_continuations(
    log_probs: Float[Tensor, "sentences live"],
    step: Float[Tensor, "sentences live vocab"],
    tokens: Int[np.ndarray, "sentences live length"],
    sentences: Sequence[int],
    beam: int,
) -> Candidates:
    """Select the ``beam`` continuations of highest probability; torch decides between exactly equal ones.

    The vocabulary is viewed as a table. The best entries are in the columns with the best maxima, and computing maxima
    is much cheaper than a top-k of all entries.
    """
    num_sentences, live, vocab = step.shape
    size = _column_size(vocab)
    if vocab <= size * beam:
        best, index = (log_probs[:, :, None] + step).flatten(1).topk(min(beam, live * vocab), dim=1)
        return best, index // vocab, index % vocab
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
    best, index = values.view(num_sentences, -1).topk(beam, dim=1)
    which = index // size
    token = index.remainder_(size).mul_(columns).add_(column.gather(1, which))
    # If too few continuations are possible, impossible ones are selected too, perhaps from the padding of the table.
    return best, origin.gather(1, which), token if vocab % size == 0 else token.clamp_(max=vocab - 1)


def _offsets(num_sentences: int, rows: int, device: torch.device | None) -> Int[Tensor, "sentences 1"]:
    """Return the first row of each sentence; a sentence has ``rows`` rows."""
    return torch.arange(0, num_sentences * rows, rows, device=device)[:, None]


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search beyond beam and length penalty.

    Attributes:
        n_best: continue until no live hypothesis can become one of the ``n_best`` best.
        min_tokens: minimum number of tokens before the end symbol, unless only that may follow.
        sampled: continue until every hypothesis has ended, and return them in the order of their slots.
        beside: keep finished hypotheses beside the beam.
        coverage: beta of Wu et al. 2016, equation 14: beta times the sum, over the tokens of the source, of
            log(min(total attention to the token, 1)) is added to a score.
        source_lengths: number of tokens that the model reads of each source, with any end symbol; needed for attention.
        first: token that the model reads first, per sentence; by default the begin symbol.
        before_step: called before each step; an exception from it ends the search.
    """

    n_best: int = 1
    min_tokens: int = 0
    constraints: tuple[Constraint, ...] = ()
    select: CandidateSelection = best_continuations
    sampled: bool = False
    beside: bool = False
    coverage: float = 0.0
    keep_attention: bool = False
    source_lengths: Sequence[int] = ()
    first: Sequence[int] = ()
    before_step: Callable[[], None] = lambda: None

    @property
    def needs_attention(self) -> bool:
        """True if the search reads the attention of the stepper."""
        return self.keep_attention or self.coverage > 0


@dataclass
class _SearchState:
    """Live hypotheses of all sentences that are not done; all but the attention is in CPU memory.

    Attributes:
        tokens: BOS and the tokens so far [sentences, live, length + 1].
        trace: log-probability of the hypothesis after each token [sentences, live, length].
        rows: row of each token's step in ``attention``, if needed [sentences, live, length].
        attention: attention of each step to the source, if needed, each [rows, source]; never copied, as copies of all
            tokens in every step would take cubic time.
    """

    tokens: NDArray[np.int64]
    trace: NDArray[np.floating]
    rows: NDArray[np.intp]
    attention: list[Tensor] = field(default_factory=list)

    def extend(self, log_probs: NDArray[np.floating], slots: NDArray[np.intp], last: NDArray[np.int64]) -> None:
        """Continue the hypotheses in these slots by the tokens ``last``."""
        rows = slots + np.arange(len(slots))[:, None] * self.tokens.shape[1]
        self.choose((np.arange(len(slots))[:, None], slots))
        if self.attention:
            self.rows = np.concatenate([self.rows, rows[:, :, None]], 2)
        self.tokens = np.concatenate([self.tokens, last[:, :, None]], 2)
        self.trace = np.concatenate([self.trace, log_probs[:, :, None]], 2)

    def choose(self, index: Any) -> None:
        """Keep, drop or repeat hypotheses; ``index``: rows of sentences, or rows and slots [sentences, live]."""
        self.tokens, self.trace, self.rows = self.tokens[index], self.trace[index], self.rows[index]


def beam_search(
    stepper: Stepper,
    max_lengths: Sequence[int],
    *,
    beam: int,
    penalty: LengthPenalty,
    suppressed: Sequence[int] = (),
    device: torch.device | None = None,
    options: SearchOptions = SearchOptions(),
) -> list[list[Hypothesis]]:
    """Translate a batch of sentences.

    Args:
        stepper: model, before its first step.
        max_lengths: maximum length of each translation in tokens, without the end symbol.
        beam: number of live hypotheses per sentence; for sampling, number of samples.
        suppressed: tokens that are never generated.

    Returns:
        The finished hypotheses of each sentence, at least one, best score first (samples: in the order of their slots).

    Raises:
        ModelError: a probability is NaN, or no continuation of a sentence without a translation is possible.
    """
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    active = list(range(len(max_lengths)))  # sentences that still have a live hypothesis
    none = np.zeros((len(active), 1, 0), np.float32)
    state = _SearchState(np.full((len(active), 1, 1), BOS), none, none.astype(np.intp))
    log_probs = torch.zeros(len(active), 1, device=device)  # -inf for a slot without a live hypothesis
    last = torch.tensor(options.first or [BOS] * len(active), device=device)[:, None]
    suppressed_ids = torch.tensor(suppressed, dtype=torch.long, device=device)
    suppressed_at_first = torch.tensor([EOS, *suppressed], dtype=torch.long, device=device)
    length = 0  # tokens of the live hypotheses, without BOS
    while active:
        options.before_step()
        step = stepper.step(last.flatten()).unflatten(0, (len(active), -1))  # [sentences, live, vocab]
        if options.needs_attention:
            state.attention.append(stepper.attention())
        at_limit = [row for row, sentence in enumerate(active) if max_lengths[sentence] <= length]
        suppressed_now = suppressed_at_first if length < options.min_tokens else suppressed_ids
        # Kept, as a constraint or the minimum length may forbid the end symbol where only that may follow.
        end = step[:, :, EOS].clone() if at_limit or options.constraints else None
        if options.beside:
            step = step.index_fill_(2, suppressed_now, -torch.inf).log_softmax(2)
            if end is not None and length >= options.min_tokens:
                end = step[:, :, EOS].clone()  # relative to the tokens that are possible, as those of other tokens
        _narrow(step, end, state.tokens, active, suppressed_now, at_limit, options.constraints)
        width = 2 * beam if options.beside else beam
        log_probs, origins, last = options.select(log_probs.to(step.dtype), step, state.tokens, active, width)
        length += 1
        rows = origins if len(active) == 1 else origins + _offsets(len(active), step.size(1), device)
        # The bookkeeping of a step is on the CPU: each array is copied from the device once.
        values, new_tokens = log_probs.numpy(force=True), last.numpy(force=True)  # [sentences, kept]
        state.extend(values, origins.numpy(force=True), new_tokens)
        has_ended, live_values = new_tokens == EOS, values
        if options.beside:
            has_ended |= np.array([[max_lengths[sentence] <= length] for sentence in active])
        if has_ended.any():
            live_values = np.where(has_ended, -np.inf, values)
            log_probs = torch.as_tensor(live_values, device=device)
            # Those that end below the first `beam` are dropped: neither finished nor live.
            has_ended[:, beam:] = False
            _collect(finished, active, state, has_ended & np.isfinite(values), penalty(length), options)
        if options.beside:
            # Stable, so that equal ones keep the order of the selection on every machine.
            slots = np.argsort(-live_values, axis=1, kind="stable")[:, :beam]
            live_values = np.take_along_axis(live_values, slots, 1)
            state.choose((np.arange(len(slots))[:, None], slots))
            rows, last, log_probs = (
                each.gather(1, torch.as_tensor(slots, device=device)) for each in (rows, last, log_probs)
            )
        for sentence, highest in zip(active, values.max(1).tolist(), strict=True):
            # A selection may drop all live hypotheses of a sentence that has a translation already.
            if not math.isfinite(highest) and not (finished[sentence] and highest == -math.inf):
                raise ModelError(
                    "the model's probabilities are not finite: its weights are damaged or its training diverged"
                )
        kept = [
            row
            for row, (sentence, bound) in enumerate(zip(active, live_values.max(1).tolist(), strict=True))
            if _can_win(finished[sentence], bound, penalty(max_lengths[sentence] + 1), beam, options)
        ]
        if len(kept) < len(active):
            active = [active[row] for row in kept]
            state.choose(kept)
            rows, last, log_probs = rows[kept], last[kept], log_probs[kept]
        if active:
            stepper.select(rows)
    order = (lambda hypothesis: hypothesis.slot) if options.sampled else (lambda hypothesis: -hypothesis.score)
    return [sorted(hypotheses, key=order) for hypotheses in finished]


def _narrow(
    step: Float[Tensor, "sentences live vocab"],
    end: Float[Tensor, "sentences live"] | None,
    tokens: Int[np.ndarray, "sentences live length"],
    active: Sequence[int],
    suppressed_ids: Int[Tensor, " suppressed"],
    at_limit: list[int],
    constraints: Sequence[Constraint],
) -> None:
    """Set the log-probabilities of impossible continuations to -inf.

    Only the end symbol may follow at the maximum length (in the rows ``at_limit``), or if constraints exclude all else;
    it then has the log-probability ``end``.
    """
    step.index_fill_(2, suppressed_ids, -torch.inf)
    if constraints:
        so_far = torch.as_tensor(tokens, device=step.device)
        for constraint in constraints:
            constraint(step, so_far, active)
    if end is None:
        return
    if at_limit:
        full = torch.tensor(at_limit, device=step.device)
        step.index_fill_(0, full, -torch.inf)
        step[:, :, EOS].index_copy_(0, full, end[full])
    if constraints:
        stuck = step.amax(2) == -torch.inf
        step[:, :, EOS] = torch.where(stuck, end, step[:, :, EOS])


def _collect(
    finished: list[list[Hypothesis]],
    active: list[int],
    state: _SearchState,
    has_ended: NDArray[np.bool_],
    divisor: float,
    options: SearchOptions,
) -> None:
    """Add the hypotheses that have just ended [sentences, live] to ``finished``."""
    for row, slot in np.argwhere(has_ended).tolist():
        ids, trace = state.tokens[row, slot, 1:].tolist(), state.trace[row, slot].tolist()
        score = trace[-1] / divisor
        attention = None
        if state.attention:
            steps = zip(state.attention, state.rows[row, slot].tolist(), strict=True)
            attention = torch.stack([weights[origin] for weights, origin in steps])
            attention = attention[:, : options.source_lengths[active[row]]]
        if ids[-1] == EOS:
            ids.pop()
        else:  # at the maximum length, beside the beam: no end symbol is needed, so it has probability 1
            trace.append(trace[-1])
            attention = None if attention is None else F.pad(attention, (0, 0, 0, 1))
        if attention is not None and options.coverage:
            # An attention that underflows to 0 would give an infinite penalty.
            covered = attention.sum(0).clamp(torch.finfo(attention.dtype).tiny, 1.0)
            score += options.coverage * float(covered.log().sum())
        log_probs = tuple(after - before for before, after in zip([0.0, *trace], trace, strict=False))
        kept = attention if options.keep_attention else None
        finished[active[row]].append(Hypothesis(tuple(ids), trace[-1], score, log_probs, kept, slot))


def _can_win(
    finished: list[Hypothesis], best_live: float, largest_divisor: float, beam: int, options: SearchOptions
) -> bool:
    """Return whether a sentence is to be continued: a live hypothesis could still become one of the n best.

    For samples: if one is live. With finished hypotheses beside the beam: if fewer than ``beam`` are finished.
    """
    if best_live == -torch.inf:
        return False
    if options.beside:
        return len(finished) < beam
    if options.sampled or len(finished) < options.n_best:
        return True
    # A log-probability never rises, so the present one over the largest divisor is an upper bound of the score, which a
    # coverage penalty can only lower.
    scores = sorted((hypothesis.score for hypothesis in finished), reverse=True)
    return best_live / largest_divisor > scores[options.n_best - 1]
