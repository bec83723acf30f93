"""The loss: label-smoothed cross entropy, summed over target tokens; beside it the plain negative log-likelihood."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.model.transformer import Transformer

_LOGITS_AT_ONCE = {"cpu": 2**22, "other": 2**28}
"""Most logits that are held at a time, by device: on a CPU those that stay in its caches."""


class LogitsInParts:
    """Logits of some of the tokens at a time, and the way back from their gradients.

    A loss that works out its gradients on the way keeps neither logits nor probabilities of a whole batch: on a CPU
    this saves a third of the time of a small model, on a GPU gigabytes. The memory of the parts is the same for all: on
    a CPU, fresh memory costs as much time as what is computed into it.

    Attributes:
        states_gradient: of the parts given back so far [tokens, width].
        table_gradient: their sum [vocab, width].
    """

    def __init__(
        self, states: Float[Tensor, "tokens width"], table: Float[Tensor, "vocab width"], share: int = 1
    ) -> None:
        """Of the logits ``states @ table.T``.

        Args:
            share: of how many that are held together this is one.
        """
        device, vocab = states.device, table.size(0)
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        else:
            dtype = table.dtype
        self._states, self._matrix = states.to(dtype), table.to(dtype)
        self.states_gradient, self.table_gradient = torch.empty_like(self._states), torch.zeros_like(table)
        at_once = _LOGITS_AT_ONCE["cpu" if device.type == "cpu" else "other"]
        self._rows = max(1, min(len(states), at_once // (vocab * share)))
        self._products = torch.empty(self._rows, vocab, dtype=dtype, device=device)
        exact = torch.promote_types(table.dtype, torch.float32)
        self._exact = self._products if exact == dtype else torch.empty_like(self._products, dtype=exact)
        self._part_of_table = torch.empty_like(self._matrix)

    @property
    def dtype(self) -> torch.dtype:
        """Of the logits: at least float32."""
        return self._exact.dtype

    def parts(self) -> Iterator[slice]:
        """The tokens, part by part."""
        for begin in range(0, len(self._states), self._rows):
            yield slice(begin, min(begin + self._rows, len(self._states)))

    def room(self) -> Float[Tensor, "rows vocab"]:
        """Memory for as many numbers as a part has logits at most."""
        return torch.empty_like(self._exact)

    def logits(self, part: slice) -> Float[Tensor, "part vocab"]:
        """Those of a part, until it is given back or the next one asked for; the caller may overwrite them."""
        rows = part.stop - part.start
        with torch.autocast(self._states.device.type, enabled=False):
            return self._exact[:rows].copy_(torch.mm(self._states[part], self._matrix.t(), out=self._products[:rows]))

    def give_back(self, part: slice, gradient: Float[Tensor, "part vocab"]) -> None:
        """Adds what the gradient of a part's logits is to states and table."""
        rounded = self._products[: part.stop - part.start].copy_(gradient)
        with torch.autocast(self._states.device.type, enabled=False):
            torch.mm(rounded, self._matrix, out=self.states_gradient[part])
            self.table_gradient += torch.mm(rounded.t(), self._states[part], out=self._part_of_table)


class _SmoothedLoss(torch.autograd.Function):
    """The two sums from the decoder's states, the gradient of the first worked out on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "tokens width"],
        table: Float[Tensor, "vocab width"],
        targets: Int[Tensor, " tokens"],
        label_smoothing: float,
        needs_gradient: bool,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        output = LogitsInParts(states, table)
        sums = torch.zeros(2, dtype=output.dtype, device=states.device)
        for part in output.parts():
            logits, truths = output.logits(part), targets[part, None]
            truth = logits.gather(1, truths)  # [tokens, 1]
            mean = logits.mean(1, keepdim=True)
            largest = logits.amax(1, keepdim=True)
            probs = logits.sub_(largest).exp_()
            total = probs.sum(1, keepdim=True)
            log_total = total.log() + largest
            sums += torch.cat([log_total - mean, log_total - truth], 1).sum(0)
            if needs_gradient:
                # d loss / d logits = softmax(logits) - (1 - e) * truth - e / vocab
                gradient = probs.div_(total).sub_(label_smoothing / len(table))
                gradient.scatter_add_(1, truths, gradient.new_full(truth.shape, label_smoothing - 1))
                output.give_back(part, gradient)
        uniform, nll = sums.unbind()
        ctx.save_for_backward(output.states_gradient.to(states.dtype), output.table_gradient)
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


def target_states(model: Transformer, batch: Batch) -> tuple[Float[Tensor, "tokens width"], Int[Tensor, " tokens"]]:
    """The decoder's states of a batch's target tokens and these tokens, padding left out."""
    encoded = model.encode(batch.source, batch.source_lengths)
    states = model.decode(batch.target_in, *encoded).flatten(0, 1)  # [batch x target, width]
    targets = batch.target_out.flatten()
    if batch.target_rows is not None:
        return states.index_select(0, batch.target_rows), targets.index_select(0, batch.target_rows)
    return states, targets


def batch_loss(model: Transformer, batch: Batch, label_smoothing: float) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of loss and negative log-likelihood over the target tokens of a batch, padding left out."""
    states, targets = target_states(model, batch)
    return smoothed_loss(states, model.output_embedding, targets, label_smoothing)
