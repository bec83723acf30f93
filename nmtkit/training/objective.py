"""The loss: label-smoothed cross entropy, summed over target tokens; beside it the plain negative log-likelihood."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.model.transformer import Transformer


class _SmoothedLoss(torch.autograd.Function):
    """The two sums, with the gradient of the first worked out on the way: the matrix of all probabilities is passed
    over few times, which on a CPU is a third of the time of a small model."""

    @staticmethod
    def forward(
        ctx: Any, logits: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"], label_smoothing: float
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        log_probs = torch.log_softmax(logits, dim=-1)
        nll = -log_probs.gather(1, targets[:, None]).sum()
        uniform = -log_probs.sum() / logits.size(1) if label_smoothing else nll
        # d loss / d logits = softmax(logits) - (1 - e) * truth - e / vocab
        gradient = log_probs.exp_().sub_(label_smoothing / logits.size(1))
        gradient.scatter_add_(1, targets[:, None], gradient.new_full((len(targets), 1), label_smoothing - 1))
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(nll)
        return (1 - label_smoothing) * nll + label_smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None


def smoothed_loss(
    logits: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"], label_smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of the loss and of the negative log-likelihood (nats) over all tokens; only the loss has a gradient.

    The loss is the cross entropy with the mixture (1 - e) * truth + e * uniform over the vocabulary, torch's form.

    Source: section 5.4; Szegedy et al. 2016 (arXiv 1512.00567), section 7.
    """
    loss, nll = _SmoothedLoss.apply(logits, targets, label_smoothing)
    return loss, nll


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
