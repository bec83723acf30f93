"""R-Drop: two passes over a batch with different dropout, which shall agree."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.model.transformer import Transformer
from nmtkit.training.loss import LogitsInParts, target_states


class _RDropLoss(torch.autograd.Function):
    """The two sums from the decoder's states of both passes, the gradient of the first worked out on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Float[Tensor, "tokens width"],
        second: Float[Tensor, "tokens width"],
        table: Float[Tensor, "vocab width"],
        targets: Int[Tensor, " tokens"],
        label_smoothing: float,
        alpha: float,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        outputs = [LogitsInParts(states, table, share=2) for states in (first, second)]
        rooms = [outputs[0].room() for _ in range(3)]
        # Of label smoothing, of the truth, and of both divergences: the sums that the loss is made of.
        sums = torch.zeros(3, dtype=outputs[0].dtype, device=first.device)
        for part in outputs[0].parts():
            truths = targets[part, None]
            p, q, difference = (room[: len(truths)] for room in rooms)
            log_p, log_q = (
                _log_softmax(output.logits(part), probs) for output, probs in zip(outputs, (p, q), strict=True)
            )
            for log_probs in (log_p, log_q):
                sums[0] -= log_probs.mean(1).sum() / 2
                sums[1] -= log_probs.gather(1, truths).sum() / 2
            ratio = log_p.sub_(log_q)
            torch.sub(p, q, out=difference)
            # The ratio is needed by both; what is worked out in its place comes last.
            for output, probs, sign, place in ((outputs[1], q, -1, log_q), (outputs[0], p, 1, ratio)):
                # With KL = sum of p log(p / q), d (KL(p || q) + KL(q || p)) / d logits of p
                # = p (log(p / q) - KL) + p - q, and of q the same with p and q exchanged.
                weighted = torch.mul(probs, ratio, out=place).mul_(sign)
                divergence = weighted.sum(1, keepdim=True)
                sums[2] += divergence.sum()
                gradient = weighted.addcmul_(probs, divergence, value=-1).add_(difference, alpha=sign).mul_(alpha / 4)
                gradient.add_(probs, alpha=0.5).sub_(label_smoothing / len(table) / 2)
                gradient.scatter_add_(1, truths, gradient.new_full(truths.shape, (label_smoothing - 1) / 2))
                output.give_back(part, gradient)
        uniform, nll, divergence = sums.unbind()
        states_gradients = (output.states_gradient.to(first.dtype) for output in outputs)
        ctx.save_for_backward(*states_gradients, outputs[0].table_gradient.add_(outputs[1].table_gradient))
        ctx.mark_non_differentiable(nll)
        return (1 - label_smoothing) * nll + label_smoothing * uniform + alpha / 4 * divergence, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        return *(gradient * gradients[0] for gradient in ctx.saved_tensors), None, None, None


def _log_softmax(logits: Float[Tensor, "part vocab"], room: Float[Tensor, "part vocab"]) -> Float[Tensor, "part vocab"]:
    """log softmax in place of the logits, and the softmax itself in ``room``."""
    logits.sub_(logits.amax(1, keepdim=True))
    total = torch.exp(logits, out=room).sum(1, keepdim=True)
    room.div_(total)
    return logits.sub_(total.log())


def r_drop_loss(
    model: Transformer, batch: Batch, label_smoothing: float, alpha: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums of loss and nll over the target tokens of a batch, padding left out; in place of ``objective.batch_loss``.

    Of two passes that give the probabilities P1 and P2 the loss is the mean of their label-smoothed losses, plus
    alpha / 2 times the mean of KL(P1 || P2) and KL(P2 || P1). That is half of the paper's sum, so that it is as large
    as that of one pass; alpha weighs as much as it does there. The nll is the mean of both passes.

    Source: Liang et al. 2021 (arXiv 2106.14448), equations 2 to 4.
    """
    (first, targets), (second, _) = target_states(model, batch), target_states(model, batch)
    loss, nll = _RDropLoss.apply(first, second, model.output_embedding, targets, label_smoothing, alpha)
    return loss, nll
