"""R-Drop: two passes over a batch with different dropout, which shall agree."""

import torch
from jaxtyping import Float
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.model.transformer import Transformer


def r_drop_loss(
    model: Transformer, batch: Batch, label_smoothing: float, alpha: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of loss and nll over the target tokens of a batch, padding left out; in place of ``objective.batch_loss``.

    Of two passes that give the probabilities P1 and P2 the loss is the mean of their label-smoothed losses, plus
    alpha / 2 times the mean of KL(P1 || P2) and KL(P2 || P1). That is half of the paper's sum, so that it is as large
    as that of one pass; alpha weighs as much as it does there. The nll is the mean of both passes.

    Source: Liang et al. 2021 (arXiv 2106.14448), equations 2 to 4.
    """
    targets = batch.target_out.flatten()
    if batch.target_rows is not None:
        targets = targets.index_select(0, batch.target_rows)
    first, second = (_log_probs(model, batch) for _ in range(2))
    nll, uniform = targets.new_zeros((), dtype=first.dtype), targets.new_zeros((), dtype=first.dtype)
    for log_probs in (first, second):
        nll = nll - log_probs.gather(1, targets[:, None]).sum() / 2
        uniform = uniform - log_probs.mean(1).sum() / 2
    # KL(p || q) + KL(q || p) = sum of (p - q) (log p - log q)
    divergence = ((first.exp() - second.exp()) * (first - second)).sum()
    loss = (1 - label_smoothing) * nll + label_smoothing * uniform + alpha / 4 * divergence
    return loss, nll.detach()


def _log_probs(model: Transformer, batch: Batch) -> Float[Tensor, "tokens vocab"]:
    encoded = model.encode(batch.source, batch.source_lengths)
    states = model.decode(batch.target_in, *encoded).flatten(0, 1)  # [batch x target, width]
    if batch.target_rows is not None:
        states = states.index_select(0, batch.target_rows)
    logits = model.logits(states)
    return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
