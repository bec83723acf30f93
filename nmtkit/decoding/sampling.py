"""Translations drawn from the model's distribution instead of searched for.

Each sentence has random numbers of its own, so what is drawn for it does not depend on its company in a batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.decoding.search import Chooser, Chosen


def drawn(seeds: Sequence[tuple[int, ...]], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Chooser:
    """Continues each hypothesis with a token drawn from the model's distribution.

    Args:
        seeds: of each sentence.
        temperature: log-probabilities are divided by it: below 1 the likely becomes likelier.
        top_k: only that many likeliest tokens are drawn from; 0: all.
        top_p: only the fewest likeliest tokens that have at least that probability together are drawn from (nucleus
            sampling, Holtzman et al. 2020, arXiv 1904.09751); 1: all. It counts after temperature and top_k.
    """
    generators = [np.random.default_rng(seed) for seed in seeds]

    def choose(
        log_probs: Float[Tensor, "sentences live"],
        step: Float[Tensor, "sentences live vocab"],
        tokens: Int[np.ndarray, "sentences live length"],
        sentences: Sequence[int],
        beam: int,
    ) -> Chosen:
        origins = torch.arange(beam, device=step.device).expand(len(sentences), beam)
        if log_probs.size(1) == 1:  # the first step: all samples begin with nothing
            origins = torch.zeros_like(origins)
        rows = torch.arange(len(sentences), device=step.device)[:, None]
        likely = _kept(step / temperature, top_k, top_p)  # [sentences, live, vocab]
        cumulative = likely.double().softmax(2).cumsum(2)[rows, origins]  # [sentences, beam, vocab]
        uniform = torch.from_numpy(np.stack([generators[sentence].random(beam) for sentence in sentences]))
        # Below the whole sum, so that the token found is one of positive probability.
        whole = cumulative[:, :, -1]
        wanted = torch.minimum(uniform.to(step.device) * whole, torch.nextafter(whole, torch.zeros_like(whole)))
        last = torch.searchsorted(cumulative, wanted[:, :, None], right=True).squeeze(2)
        last.clamp_(max=step.size(2) - 1)  # of what is not a number none is found; the search tells so
        return log_probs[rows, origins] + step[rows, origins, last], origins, last

    return choose


def _kept(step: Float[Tensor, "*rows vocab"], top_k: int, top_p: float) -> Float[Tensor, "*rows vocab"]:
    """-inf for all but the tokens to draw from."""
    if 0 < top_k < step.size(-1):
        values, ids = step.topk(top_k, dim=-1)
        step = torch.full_like(step, -torch.inf).scatter(-1, ids, values)
    if top_p < 1.0:
        values, ids = step.sort(dim=-1, descending=True, stable=True)
        probs = values.softmax(-1)
        before = probs.cumsum(-1) - probs  # of all likelier tokens; the likeliest is always kept
        values = values.masked_fill(before >= top_p, -torch.inf)
        values[..., 0] = step.amax(-1)
        step = torch.full_like(step, -torch.inf).scatter(-1, ids, values)
    return step
