"""The one beam search.

At each step every live hypothesis of a sentence is continued by every token, and the ``beam`` best continuations by
log-probability are kept. Those that end in the end symbol are finished; the others live on. A finished hypothesis of n
tokens, the end symbol counted, has the score log P / penalty(n). A sentence is done when no live hypothesis can win any
more, even if all it still adds has probability 1 and it grows to the maximum length. At the maximum length only the end
symbol may follow, so every result is complete. With a beam of 1 this is greedy search.

Source: section 6.1 of the paper, and Wu et al. 2016 (arXiv 1609.08144), section 7, for the penalty.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.decoding.stepper import Stepper
from nmtkit.errors import ModelError

LengthPenalty = Callable[[int], float]


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
        score: log_prob / penalty(len(ids) + 1).
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float


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
) -> list[list[Hypothesis]]:
    """Translates a batch of sentences.

    Args:
        stepper: has one hypothesis a sentence to begin with.
        max_lengths: most tokens of each sentence's translation, the end symbol not counted.
        forbidden: tokens that no translation may hold.

    Returns:
        For each sentence its finished hypotheses, best score first; at least one.

    Raises:
        ModelError: no continuation has a finite probability.
    """
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    active = list(range(len(max_lengths)))  # sentences that still have a live hypothesis
    log_probs = torch.zeros(len(active), 1, device=device)  # [sentences, live]
    tokens = torch.full((len(active), 1, 1), bos, device=device)  # [sentences, live, length so far]
    length = 0  # tokens of the live hypotheses, BOS not counted
    while active:
        step = stepper.step(tokens[:, :, -1].flatten())  # [rows, vocab]
        step = step.unflatten(0, (len(active), -1)).clone()  # [sentences, live, vocab]
        step[:, :, list(forbidden)] = -torch.inf
        _force_end(step, [max_lengths[sentence] <= length for sentence in active], eos)
        best, origins, last = _continue(log_probs.to(step.dtype), step, beam)
        if not bool(best[:, 0].isfinite().all()):
            raise ModelError(
                "the model gives no finite probabilities: its weights are damaged or its training diverged"
            )
        length += 1

        grown = torch.gather(tokens, 1, origins[:, :, None].expand(-1, -1, tokens.size(2)))
        tokens = torch.cat([grown, last[:, :, None]], 2)  # [sentences, beam, length + 1]
        ends = last == eos
        _collect(finished, active, tokens, best, ends, penalty(length))
        log_probs = best.masked_fill(ends, -torch.inf)  # [sentences, beam]

        can_win = [
            _can_win(finished[sentence], bound, penalty(max_lengths[sentence] + 1))
            for sentence, bound in zip(active, log_probs.max(dim=1).values.tolist(), strict=True)
        ]
        kept = torch.tensor([row for row, live in enumerate(can_win) if live], dtype=torch.long, device=device)
        active = [sentence for sentence, live in zip(active, can_win, strict=True) if live]
        if not active:
            break
        if len(kept) < len(can_win):
            log_probs, tokens, origins = log_probs[kept], tokens[kept], origins[kept]
        stepper.select(origins + (kept * step.size(1))[:, None])
    return [sorted(hypotheses, key=lambda h: -h.score) for hypotheses in finished]


def _force_end(step: Float[Tensor, "sentences live vocab"], at_limit: list[bool], eos: int) -> None:
    """Leaves only the end symbol, with its own probability, to sentences at their maximum length."""
    rows = [row for row, is_at_limit in enumerate(at_limit) if is_at_limit]
    if rows:
        end = step[rows, :, eos].clone()
        step[rows] = -torch.inf
        step[rows, :, eos] = end


def _continue(
    log_probs: Float[Tensor, "sentences live"], step: Float[Tensor, "sentences live vocab"], beam: int
) -> tuple[Float[Tensor, "sentences beam"], Int[Tensor, "sentences beam"], Int[Tensor, "sentences beam"]]:
    """The best continuations: their log-probabilities, which hypothesis each continues, and its new token."""
    vocab = step.size(2)
    scores = (log_probs[:, :, None] + step).flatten(1)  # [sentences, live x vocab]
    best, index = scores.topk(min(beam, scores.size(1)), dim=1)
    return best, index // vocab, index % vocab


def _collect(
    finished: list[list[Hypothesis]],
    active: list[int],
    tokens: Int[Tensor, "sentences beam length"],
    log_probs: Float[Tensor, "sentences beam"],
    ends: Tensor,
    divisor: float,
) -> None:
    """Records the hypotheses that have just ended."""
    rows = (ends & log_probs.isfinite()).nonzero().tolist()
    if not rows:
        return
    ended = [(row, tokens[row, slot, 1:-1].tolist(), log_probs[row, slot].item()) for row, slot in rows]
    for row, ids, log_prob in ended:
        finished[active[row]].append(Hypothesis(tuple(ids), log_prob, log_prob / divisor))


def _can_win(finished: list[Hypothesis], best_live: float, largest_divisor: float) -> bool:
    """Whether a live hypothesis could still beat the best finished one.

    Log-probabilities only fall, so the best a live one can reach is its present one over the largest divisor.
    """
    if best_live == -torch.inf:
        return False
    return not finished or best_live / largest_divisor > max(hypothesis.score for hypothesis in finished)
