"""The loss: label-smoothed cross entropy summed over target tokens, beside the plain negative log-likelihood (nll).

batch_loss      one forward pass over a batch
label_loss      the same for examples with labels
action_loss     the same for episodes
r_drop_loss     two of them with different dropout, whose predictions are drawn together
CompiledLoss    either of them with the model's layers compiled by torch.compile
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.console import duration, log
from nmtkit.data.batch import Batch, LabelBatch
from nmtkit.data.episodes import EpisodeBatch
from nmtkit.distributed.workers import is_out_of_memory
from nmtkit.errors import NmtkitError, in_one_line
from nmtkit.model.decoder_only import DecoderOnly
from nmtkit.model.trajectory import DecisionTransformer
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import SPECIAL_PIECES

Sums = tuple[Float[Tensor, ""], Float[Tensor, ""]]
"""The sums of loss and nll."""
Loss = Callable[[Transformer, Batch, float], Sums]
"""The sums over a batch, from the model, the batch and the label smoothing."""

_LOGITS_AT_ONCE = {"cpu": 2**22, "other": 2**28}
"""Most logits that are held at a time, by device: on a CPU as many as stay in its caches."""
MAX_VARIANTS = 64
"""Compiled variants of one function that torch keeps before it goes on without compiling."""


class ChunkedLogits:
    """The logits ``states @ table.T`` in chunks of tokens, and backward from their gradients.

    A loss that computes its gradients in the forward pass keeps neither logits nor probabilities of a whole batch: on a
    CPU this saves a third of the time of a small model, on a GPU gigabytes. All chunks use the same memory: on a CPU,
    fresh memory costs as much time as what is computed into it.

    Attributes:
        dtype: type of the logits, at least float32.
        states_gradient: gradient of the states, for the chunks passed to `backward` so far [tokens, width].
        table_gradient: gradient of the table, summed over them [vocab, width].
    """

    def __init__(
        self, states: Float[Tensor, "tokens width"], table: Float[Tensor, "vocab width"], share: int = 1
    ) -> None:
        """Args:
        share: how many such objects share the limit of logits held at a time.
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
        self.dtype = torch.promote_types(table.dtype, torch.float32)
        # A softmax in bf16 or fp16 would lose digits, so the logits are copied to float32.
        self._exact = self._products if dtype == self.dtype else torch.empty_like(self._products, dtype=self.dtype)
        self._chunk_of_table = torch.empty_like(self._matrix)

    def chunks(self) -> Iterator[slice]:
        """Yield the slices of the tokens."""
        for begin in range(0, len(self._states), self._rows):
            yield slice(begin, min(begin + self._rows, len(self._states)))

    def buffer(self) -> Float[Tensor, "rows vocab"]:
        """Return uninitialized memory of the size of the largest chunk's logits."""
        return torch.empty_like(self._exact)

    def logits(self, chunk: slice) -> Float[Tensor, "chunk vocab"]:
        """Return the logits of a chunk, which the caller may overwrite; valid until the next call of a method."""
        rows = chunk.stop - chunk.start
        with torch.autocast(self._states.device.type, enabled=False):
            products = torch.mm(self._states[chunk], self._matrix.t(), out=self._products[:rows])
        # copy_ would copy a tensor onto itself.
        return products if self._exact is self._products else self._exact[:rows].copy_(products)

    def backward(self, chunk: slice, gradient: Float[Tensor, "chunk vocab"]) -> None:
        """Add the gradient of a chunk's logits to the gradients of states and table."""
        is_exact = self._exact is self._products
        rounded = gradient if is_exact else self._products[: chunk.stop - chunk.start].copy_(gradient)
        with torch.autocast(self._states.device.type, enabled=False):
            torch.mm(rounded, self._matrix, out=self.states_gradient[chunk])
            self.table_gradient += torch.mm(rounded.t(), self._states[chunk], out=self._chunk_of_table)


class _SmoothedLoss(torch.autograd.Function):
    """Both sums from the decoder's states; the gradient of the loss is computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "tokens width"],
        table: Float[Tensor, "vocab width"],
        targets: Int[Tensor, " tokens"],
        label_smoothing: float,
        needs_gradient: bool,
        weights: Float[Tensor, " tokens"] | None,
    ) -> Sums:
        output = ChunkedLogits(states, table)
        sums = torch.zeros(2, dtype=output.dtype, device=states.device)
        for chunk in output.chunks():
            logits, truths = output.logits(chunk), targets[chunk, None]
            # Before the logits are overwritten in place below.
            truth = logits.gather(1, truths)  # [tokens, 1]
            mean = logits.mean(1, keepdim=True)
            # Shifted by the largest logit, exp cannot overflow.
            largest = logits.amax(1, keepdim=True)
            probs = logits.sub_(largest).exp_()
            total = probs.sum(1, keepdim=True)
            log_total = total.log() + largest
            # Cross entropy with the uniform distribution over the vocabulary, and with the truth.
            of_tokens = torch.cat([log_total - mean, log_total - truth], 1)  # [tokens, 2]
            sums += of_tokens.sum(0) if weights is None else (of_tokens * weights[chunk, None]).sum(0)
            if needs_gradient:
                # d loss / d logits = softmax(logits) - (1 - e) * truth - e / vocab
                gradient = probs.div_(total).sub_(label_smoothing / len(table))
                gradient.scatter_add_(1, truths, gradient.new_full(truth.shape, label_smoothing - 1))
                output.backward(chunk, gradient if weights is None else gradient.mul_(weights[chunk, None]))
        uniform, nll = sums.unbind()
        ctx.save_for_backward(output.states_gradient.to(states.dtype), output.table_gradient)
        ctx.mark_non_differentiable(nll)
        return (1 - label_smoothing) * nll + label_smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None, None, None, None]:
        states_gradient, table_gradient = ctx.saved_tensors
        return states_gradient * gradients[0], table_gradient * gradients[0], None, None, None, None


def smoothed_loss(
    states: Float[Tensor, "tokens width"],
    table: Float[Tensor, "vocab width"],
    targets: Int[Tensor, " tokens"],
    label_smoothing: float,
    weights: Float[Tensor, " tokens"] | None = None,
) -> Sums:
    """Return the sums of loss and nll (nats) over all tokens, or weighted sums; only the loss has a gradient.

    The loss is the cross entropy of the logits ``states @ table.T`` with the mixture (1 - e) * truth + e * uniform over
    the vocabulary, as in torch.

    Source: section 5.4; Szegedy et al. 2016 (arXiv 1512.00567), section 7.
    """
    needs_gradient = torch.is_grad_enabled() and (states.requires_grad or table.requires_grad)
    loss, nll = _SmoothedLoss.apply(states, table, targets, label_smoothing, needs_gradient, weights)
    return loss, nll


def target_states(model: Transformer, batch: Batch) -> tuple[Float[Tensor, "tokens width"], Int[Tensor, " tokens"]]:
    """Return the decoder's states at a batch's target tokens, and these tokens, without padding."""
    states = model.decode(batch.target_in, *model.encode(batch.source, batch.source_lengths))
    return batch.without_padding(states), batch.without_padding(batch.target_out)


def batch_loss(model: Transformer, batch: Batch, label_smoothing: float, source_loss: float = 0.0) -> Sums:
    """Return the sums of loss and nll over the target tokens of a batch, without padding.

    Args:
        source_loss: weight with which a model without encoder adds the loss of predicting the source and the separator.
    """
    if not source_loss or not isinstance(model, DecoderOnly):
        states, targets = target_states(model, batch)
        return smoothed_loss(*model.output_product(states), targets, label_smoothing)
    joined = model.joined(batch.target_in, *model.encode(batch.source, batch.source_lengths))
    states, targets = batch.without_padding(joined.target_states), batch.without_padding(batch.target_out)
    loss, nll = smoothed_loss(*model.output_product(states), targets, label_smoothing)
    width = joined.ids.size(1)
    # On the CPU, where the lengths are: on a GPU, nonzero would wait for the device.
    is_source = torch.arange(width) < batch.source_lengths[:, None] - 1
    rows = is_source.flatten().nonzero()[:, 0].to(joined.ids.device, non_blocking=True)
    if not len(rows):  # no pair has a source
        return loss, nll
    states, targets = joined.states.flatten(0, 1).index_select(0, rows), joined.ids.flatten().index_select(0, rows + 1)
    return loss + source_loss * smoothed_loss(*model.output_product(states), targets, label_smoothing)[0], nll


def label_loss(model: Transformer, batch: Batch, label_smoothing: float, source_loss: float = 0.0) -> Sums:
    """Return the sums of the loss and of the head's nll (for numbers: squared error) over the examples of a batch.

    The loss of an example is that of its label, plus ``source_loss`` times the mean loss of predicting each token of
    its sequences from those before it.

    Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", equation 5.
    """
    assert isinstance(model, DecoderOnly)
    assert isinstance(batch, LabelBatch)
    states = model.decode(batch.target_in, *model.encode(batch.source, batch.source_lengths))
    output = model.label_output(states, batch.last, batch.example, len(batch.labels))
    logits = output.to(torch.promote_types(output.dtype, torch.float32))
    if model.config.head == "number":
        loss = nll = F.mse_loss(logits[:, 0], batch.labels.to(logits.dtype), reduction="sum")
    else:
        loss = nll = F.cross_entropy(logits, batch.labels, reduction="sum")
        if label_smoothing and model.config.head == "classes":  # examples of choice differ in their answers
            loss = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=label_smoothing)
    if source_loss:
        states, targets = batch.without_padding(states), batch.without_padding(batch.target_out)
        assert batch.target_rows is not None
        num_rows = torch.zeros_like(batch.labels, dtype=torch.int64)
        num_rows.scatter_add_(0, batch.example, torch.ones_like(batch.example))  # bincount would wait for a GPU
        tokens = (batch.last * num_rows[batch.example]).to(logits.dtype)
        weights = (1 / tokens)[batch.target_rows // batch.target_in.size(1)]  # means over tokens and over rows
        loss = loss + source_loss * smoothed_loss(*model.output_product(states), targets, label_smoothing, weights)[0]
    return loss, nll.detach()


def action_loss(model: Transformer, batch: Batch, label_smoothing: float) -> Sums:
    """Return the sums of the loss and of the nll of the actions (for vectors: mean squared error) over all steps.

    If the model predicts returns, the loss is that of both.
    """
    assert isinstance(model, DecisionTransformer)
    assert isinstance(batch, EpisodeBatch)
    outputs, returns = model.predict(*batch.inputs, batch.timesteps)
    output, actions = batch.without_padding(outputs), batch.without_padding(batch.target_out)
    output = output.to(torch.promote_types(output.dtype, torch.float32))
    if model.config.head == "vector-action":
        loss = nll = F.mse_loss(output, actions.to(output.dtype), reduction="none").mean(1).sum()
    else:
        actions = actions - len(SPECIAL_PIECES)  # the head has no outputs for special entries
        nll = F.cross_entropy(output, actions, reduction="sum")
        loss = F.cross_entropy(output, actions, reduction="sum", label_smoothing=label_smoothing)
    if returns is not None:
        logits = batch.without_padding(returns).to(output.dtype)
        loss = loss + F.cross_entropy(logits, batch.without_padding(batch.values), reduction="sum")
    return loss, nll.detach()


def own_loss(model: ModelConfig, source_loss: float = 0.0) -> Loss | None:
    """Return the loss of a model with a head; None for models without."""
    if model.has_actions:
        return action_loss
    return None if model.head == "none" else partial(label_loss, source_loss=source_loss)


class _RDropLoss(torch.autograd.Function):
    """Both sums from the decoder's states of two passes; the gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Float[Tensor, "tokens width"],
        second: Float[Tensor, "tokens width"],
        table: Float[Tensor, "vocab width"],
        targets: Int[Tensor, " tokens"],
        label_smoothing: float,
        alpha: float,
    ) -> Sums:
        outputs = [ChunkedLogits(states, table, share=2) for states in (first, second)]
        buffers = [outputs[0].buffer() for _ in range(3)]
        # The terms of the loss: label smoothing, truth, and both divergences.
        sums = torch.zeros(3, dtype=outputs[0].dtype, device=first.device)
        for chunk in outputs[0].chunks():
            truths = targets[chunk, None]
            p, q, difference = (buffer[: len(truths)] for buffer in buffers)
            log_p, log_q = (
                _log_softmax(output.logits(chunk), probs) for output, probs in zip(outputs, (p, q), strict=True)
            )
            for log_probs in (log_p, log_q):
                sums[0] -= log_probs.mean(1).sum() / 2
                sums[1] -= log_probs.gather(1, truths).sum() / 2
            ratio = log_p.sub_(log_q)
            torch.sub(p, q, out=difference)
            # Both need the ratio, so the one that overwrites it comes last.
            for output, probs, sign, out in ((outputs[1], q, -1, log_q), (outputs[0], p, 1, ratio)):
                # With KL = sum of p log(p / q), d (KL(p || q) + KL(q || p)) / d logits of p
                # = p (log(p / q) - KL) + p - q, and of q the same with p and q exchanged.
                weighted = torch.mul(probs, ratio, out=out).mul_(sign)
                divergence = weighted.sum(1, keepdim=True)
                sums[2] += divergence.sum()
                gradient = weighted.addcmul_(probs, divergence, value=-1).add_(difference, alpha=sign).mul_(alpha / 4)
                gradient.add_(probs, alpha=0.5).sub_(label_smoothing / len(table) / 2)
                gradient.scatter_add_(1, truths, gradient.new_full(truths.shape, (label_smoothing - 1) / 2))
                output.backward(chunk, gradient)
        uniform, nll, divergence = sums.unbind()
        states_gradients = (output.states_gradient.to(first.dtype) for output in outputs)
        ctx.save_for_backward(*states_gradients, outputs[0].table_gradient.add_(outputs[1].table_gradient))
        ctx.mark_non_differentiable(nll)
        return (1 - label_smoothing) * nll + label_smoothing * uniform + alpha / 4 * divergence, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        return *(gradient * gradients[0] for gradient in ctx.saved_tensors), None, None, None


def _log_softmax(
    logits: Float[Tensor, "chunk vocab"], probs: Float[Tensor, "chunk vocab"]
) -> Float[Tensor, "chunk vocab"]:
    """Replace the logits by their log softmax, and write the softmax itself into ``probs``."""
    logits.sub_(logits.amax(1, keepdim=True))
    total = torch.exp(logits, out=probs).sum(1, keepdim=True)
    probs.div_(total)
    return logits.sub_(total.log())


def r_drop_loss(model: Transformer, batch: Batch, label_smoothing: float, alpha: float) -> Sums:
    """Return the sums of loss and nll over the target tokens of a batch, without padding, from two forward passes.

    With P1 and P2 the probabilities of the two passes, which differ in dropout, the loss is the mean of their
    label-smoothed losses plus alpha / 2 times the mean of KL(P1 || P2) and KL(P2 || P1): half of the paper's sum, so
    that it is as large as the loss of one pass and alpha has the paper's weight. The nll is the mean of both passes.

    Source: Liang et al. 2021 (arXiv 2106.14448), equations 2 to 4.
    """
    (first, targets), (second, _) = target_states(model, batch), target_states(model, batch)
    (first, table), (second, _) = model.output_product(first), model.output_product(second)
    loss, nll = _RDropLoss.apply(first, second, table, targets, label_smoothing, alpha)
    return loss, nll


class CompiledLoss:
    """A loss whose encoder and decoder layers run compiled; outside of it, as in validation, the model is unchanged.

    Layers of a kind share their code. Batch sizes and lengths are symbols in it, so it is compiled again only for
    differences in kind: with and without padding, one sentence or several.
    """

    def __init__(self, loss: Loss, model: Transformer) -> None:
        torch._dynamo.config.cache_size_limit = MAX_VARIANTS  # recompile_limit since torch 2.7, with this alias
        self._loss = loss
        self._layers = [*model.encoder, *model.decoder]
        self._calls = []
        for layer in self._layers:
            try:
                layer.compile(dynamic=True)
            except RuntimeError as error:  # this Python is too new for this torch
                raise NmtkitError(f"training.compile: {error}") from None
            self._calls.append(layer._compiled_call_impl)
            layer._compiled_call_impl = None
        self._reported, _ = compile_cost()

    def __call__(self, model: Transformer, batch: Batch, label_smoothing: float) -> Sums:
        # Where `nn.Module.__call__` looks for the compiled function.
        for layer, call in zip(self._layers, self._calls, strict=True):
            layer._compiled_call_impl = call
        try:
            return self._loss(model, batch, label_smoothing)
        except torch._dynamo.exc.TorchDynamoException as error:
            if is_out_of_memory(error):
                raise
            reason = in_one_line(error)
            raise NmtkitError(
                f"training.compile: torch cannot compile here ({reason}); install a C++ compiler, or leave it out"
            ) from None
        finally:
            for layer in self._layers:
                layer._compiled_call_impl = None

    def report(self, step: int) -> None:
        """Log what was compiled since the last call, if anything was."""
        compiled, seconds = compile_cost()
        if compiled > self._reported:
            log.info(
                "update %d: torch.compile compiled %d functions for new tensor shapes; %d so far, in %s",
                step, compiled - self._reported, compiled, duration(seconds),
            )  # fmt: skip
            self._reported = compiled


def compile_cost() -> tuple[int, float]:
    """Return how many functions torch has compiled in this process, and in how many seconds, since the first call."""
    from torch._dynamo.callback import callback_handler, on_compile_end, on_compile_start

    if _CLOCK.start not in callback_handler.start_callbacks:  # torch forgets them when its compiler is reset
        on_compile_start(_CLOCK.start)
        on_compile_end(_CLOCK.end)
    return _CLOCK.compiled, _CLOCK.seconds


class _Clock:
    """Counts the functions that torch compiles in this process, and the time it takes."""

    def __init__(self) -> None:
        self.compiled = 0
        self.seconds = 0.0
        self._begun = 0.0

    def start(self, *_: object) -> None:  # newer versions of torch pass arguments
        self._begun = time.monotonic()

    def end(self, *_: object) -> None:
        self.compiled += 1
        self.seconds += time.monotonic() - self._begun


_CLOCK = _Clock()
