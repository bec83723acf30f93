"""The loss: label-smoothed cross entropy, summed over target tokens; beside it the plain negative log-likelihood."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.model.transformer import Transformer

_LOGITS_AT_ONCE = {"cpu": 2**22, "other": 2**28}
"""Most logits that are held at a time, by device: on a CPU those that stay in its caches."""


def logits_at_once(device_type: str) -> int:
    """Most logits that are held at a time on such a device."""
    return _LOGITS_AT_ONCE["cpu" if device_type == "cpu" else "other"]


class _SmoothedLoss(torch.autograd.Function):
    """The two sums from the decoder's states, a part of the tokens at a time.

    The gradient of the first is worked out on the way, so that neither logits nor probabilities of a whole batch are
    kept: on a CPU this saves a third of the time of a small model, on a GPU gigabytes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "tokens width"],
        table: Float[Tensor, "vocab width"],
        targets: Int[Tensor, " tokens"],
        label_smoothing: float,
        needs_gradient: bool,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        device, vocab = states.device, table.size(0)
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        else:
            dtype = table.dtype
        x, matrix = states.to(dtype), table.to(dtype)
        states_gradient, table_gradient = torch.empty_like(x), torch.zeros_like(table)
        sums = torch.zeros(2, dtype=torch.promote_types(table.dtype, torch.float32), device=device)
        rows = min(len(x), max(1, logits_at_once(device.type) // vocab))
        # The same memory for every part: on a CPU, fresh memory costs as much time as what is computed into it.
        products = torch.empty(rows, vocab, dtype=dtype, device=device)
        exact = products if dtype == sums.dtype else torch.empty_like(products, dtype=sums.dtype)
        table_part = torch.empty_like(matrix)
        for part in range(0, len(x), rows):
            here = slice(part, min(part + rows, len(x)))
            with torch.autocast(device.type, enabled=False):
                product = torch.mm(x[here], matrix.t(), out=products[: here.stop - part])
                logits = exact[: here.stop - part].copy_(product)  # [tokens, vocab]
                truth = logits.gather(1, targets[here, None])  # [tokens, 1]
                mean = logits.mean(1, keepdim=True)
                largest = logits.amax(1, keepdim=True)
                probs = logits.sub_(largest).exp_()
                total = probs.sum(1, keepdim=True)
                log_total = total.log() + largest
                sums += torch.cat([log_total - mean, log_total - truth], 1).sum(0)
                if needs_gradient:
                    # d loss / d logits = softmax(logits) - (1 - e) * truth - e / vocab
                    exact_gradient = probs.div_(total).sub_(label_smoothing / vocab)
                    wanted = exact_gradient.new_full(truth.shape, label_smoothing - 1)
                    exact_gradient.scatter_add_(1, targets[here, None], wanted)
                    gradient = product.copy_(exact_gradient)
                    torch.mm(gradient, matrix, out=states_gradient[here])
                    table_gradient += torch.mm(gradient.t(), x[here], out=table_part)
        uniform, nll = sums.unbind()
        ctx.save_for_backward(states_gradient.to(states.dtype), table_gradient)
        ctx.mark_non_differentiable(nll)
        return (1 - label_smoothing) * nll + label_smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None, None, None]:
        states_gradient, table_gradient = ctx.saved_tensors
        return states_gradient * gradients[0], table_gradient * gradients[0], None, None, None


def smoothed_loss(
    states: Float[Tensor, "tokens width"],
    table: Float[Tensor, "vocab width"],
    targets: Int[Tensor, " tokens"],
    label_smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of the loss and of the negative log-likelihood (nats) over all tokens; only the loss has a gradient.

    The loss is the cross entropy with the mixture (1 - e) * truth + e * uniform over the vocabulary, torch's form, of
    the logits ``states @ table.T``.

    Source: section 5.4; Szegedy et al. 2016 (arXiv 1512.00567), section 7.
    """
    needs_gradient = torch.is_grad_enabled() and (states.requires_grad or table.requires_grad)
    loss, nll = _SmoothedLoss.apply(states, table, targets, label_smoothing, needs_gradient)
    return loss, nll


def batch_loss(model: Transformer, batch: Batch, label_smoothing: float) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of loss and negative log-likelihood over the target tokens of a batch, padding left out."""
    encoded = model.encode(batch.source, batch.source_lengths)
    states = model.decode(batch.target_in, *encoded).flatten(0, 1)  # [batch x target, width]
    targets = batch.target_out.flatten()
    if batch.target_rows is not None:
        states, targets = states.index_select(0, batch.target_rows), targets.index_select(0, batch.target_rows)
    return smoothed_loss(states, model.output_embedding, targets, label_smoothing)
