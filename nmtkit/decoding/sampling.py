"""Sampling of translations from the model's distribution, and the choice among samples by minimum Bayes risk."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.decoding.request import Sampling
from nmtkit.decoding.search import Candidates, CandidateSelection
from nmtkit.distributed.workers import widest_float


def sampled_continuations(seeds: Sequence[tuple[int, ...]], sampling: Sampling) -> CandidateSelection:
    """Select, for each hypothesis, a next token sampled from the model's distribution.

    Args:
        seeds: random seed of each sentence; separate random numbers make samples independent of the batch.
        sampling: parameters; its own seed is not used.
    """
    generators = [np.random.default_rng(seed) for seed in seeds]

    def select(log_probs: Tensor, step: Tensor, tokens: NDArray, sentences: Sequence[int], beam: int) -> Candidates:
        origins = torch.arange(beam, device=step.device).expand(len(sentences), beam)
        if log_probs.size(1) == 1:  # the first step: all samples continue the empty hypothesis
            origins = torch.zeros_like(origins)
        rows = torch.arange(len(sentences), device=step.device)[:, None]
        scaled = step if sampling.temperature == 1 else step / sampling.temperature
        likely = _truncated(scaled, sampling.top_k, sampling.top_p)  # [sentences, live, vocab]
        dtype = widest_float(step.device)
        # In float32, cumulative sums near 1 have steps of 6e-8, so tokens of less probability could not be sampled.
        cumulative = likely.softmax(2).cumsum(2, dtype=dtype)
        if cumulative.size(1) != beam:
            cumulative = cumulative[rows, origins]  # [sentences, beam, vocab]
        uniform = torch.from_numpy(np.stack([generators[sentence].random(beam) for sentence in sentences])).to(dtype)
        # A threshold strictly below the sum, so that the token at which it is exceeded has a positive probability.
        total = cumulative[:, :, -1]
        threshold = torch.minimum(uniform.to(step.device) * total, torch.nextafter(total, torch.zeros_like(total)))
        last = torch.searchsorted(cumulative, threshold[:, :, None], right=True).squeeze(2)
        last.clamp_(max=step.size(2) - 1)  # NaN is never exceeded; the search reports it
        return log_probs[rows, origins] + step[rows, origins, last], origins, last

    return select


def _truncated(step: Float[Tensor, "*rows vocab"], top_k: int, top_p: float) -> Float[Tensor, "*rows vocab"]:
    """Return the log-probabilities, with -inf for the tokens not to sample."""
    if 0 < top_k < step.size(-1):
        values, ids = step.topk(top_k, dim=-1)
        step = torch.full_like(step, -torch.inf).scatter(-1, ids, values)
    if top_p < 1.0:
        values, ids = step.sort(dim=-1, descending=True, stable=True)
        probs = values.softmax(-1)
        more_probable = probs.cumsum(-1) - probs  # total probability of all more probable tokens
        values = values.masked_fill(more_probable >= top_p, -torch.inf)
        values[..., 0] = step.amax(-1)  # always keep the most probable token
        step = torch.full_like(step, -torch.inf).scatter(-1, ids, values)
    return step


def by_expected_utility(samples: Sequence[str], utility: Callable[[str, str], float]) -> list[int]:
    """Return the indices of the distinct samples, highest mean utility first; ties in the order of sampling.

    ``utility`` is the quality of a hypothesis, given a reference; higher is better. A reference that occurs several
    times among the samples counts as many times. Each ordered pair is compared once.

    Source: Eikema and Aziz 2020 (arXiv 2005.10283), section 5: samples are both candidates and pseudo-references.
    """
    counts = Counter(samples)
    expected = {
        hypothesis: math.fsum(count * utility(hypothesis, reference) for reference, count in counts.items())
        for hypothesis in counts
    }
    return sorted(map(samples.index, counts), key=lambda number: -expected[samples[number]])
