"""The loss: label-smoothed cross entropy, summed over target tokens; beside it the plain negative log-likelihood."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.model.transformer import Transformer


def smoothed_loss(
    logits: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"], label_smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of the loss and of the negative log-likelihood (nats) over all tokens.

    The loss is the cross entropy with the mixture (1 - e) * truth + e * uniform over the vocabulary, torch's form.

    Source: section 5.4; Szegedy et al. 2016 (arXiv 1512.00567), section 7.
    """
    normalizer = torch.logsumexp(logits, dim=-1)  # [tokens]
    truth = logits.gather(1, targets[:, None]).squeeze(1)  # [tokens]
    nll = (normalizer - truth).sum()
    if label_smoothing == 0:
        return nll, nll
    uniform = (normalizer - logits.mean(dim=-1)).sum()
    return (1 - label_smoothing) * nll + label_smoothing * uniform, nll


def batch_loss(model: Transformer, batch: Batch, label_smoothing: float) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of loss and negative log-likelihood over the target tokens of a batch, padding left out."""
    cache = model.start_decoding(*model.encode(batch.source, batch.source_lengths))
    states = model.decode(batch.target_in, cache).flatten(0, 1)  # [batch x target, width]
    targets = batch.target_out.flatten()
    width = batch.target_in.size(1)
    if int(batch.target_lengths.min()) < width:
        real = (torch.arange(width) < batch.target_lengths[:, None]).flatten().nonzero().squeeze(1).to(states.device)
        states, targets = states.index_select(0, real), targets.index_select(0, real)
    logits = model.logits(states)  # [tokens, vocab]
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return smoothed_loss(logits, targets, label_smoothing)
