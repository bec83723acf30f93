"""The one training loop: a generator that yields one optimizer update at a time.

    train_updates    plans each epoch, shares each update among the processes, and cuts the shares into micro-batches
    _update          gradients of the micro-batches, summed over all processes, and one step of the optimizer

The caller reports, validates, saves and stops. An update is a function of (weights, optimizer state, seed, epoch,
position): nothing depends on how often the run was interrupted.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import TrainingConfig
from nmtkit.console import listed, log
from nmtkit.data.batch import Batch, make_batch, work_ahead
from nmtkit.data.batching import plan_of, row_lengths, shares_of
from nmtkit.data.shards import Indices, PairData
from nmtkit.distributed.workers import Workers, holding_model, is_out_of_memory, widest_float
from nmtkit.errors import DataError, NmtkitError
from nmtkit.model.flops import TRAINING_FACTOR, Counters, forward_flops, padding_flops
from nmtkit.training.epochs import TrainingPairs
from nmtkit.training.loss import CompiledLoss, Loss, batch_loss, own_loss, r_drop_loss
from nmtkit.training.nonfinite import count_skipped, reason_to_skip
from nmtkit.training.optimizer import learning_rate, step_if
from nmtkit.training.state import TrainingState

UPDATES_AHEAD = 2
"""Updates whose batches are made while a CUDA device computes."""


@dataclass(kw_only=True)
class Update(Counters):
    """One optimizer update, over all processes; with its counters.

    Attributes:
        step: its number, from 1.
        loss, nll: sums over its target tokens, in nats.
        real_tokens, padded_tokens: source and target tokens, without and with padding.
        flags: sums over all processes of what ``local_flags`` returned.
        skipped: "" if the update was made, else the reason (`nonfinite.reason_to_skip`).
        lines: if the reason is "nonfinite", line numbers of the pairs, counted from 1 through all corpora.
    """

    step: int
    loss: float
    nll: float
    learning_rate: float
    gradient_norm: float
    real_tokens: int
    padded_tokens: int
    seconds: float
    ends_epoch: bool
    flags: list[float]
    skipped: str = ""
    lines: list[int] = field(default_factory=list)


@dataclass
class Meter:
    """Sums over updates, and their means; see `Update`."""

    updates: int | float = 0
    loss: float = 0.0
    nll: float = 0.0
    gradient_norm: float = 0.0
    target_tokens: int | float = 0
    real_tokens: int | float = 0
    padded_tokens: int | float = 0
    flops: int | float = 0
    seconds: float = 0.0

    def add(self, update: Update, half_life_seconds: float | None = None) -> None:
        """Add an update; with a half-life, an update that many seconds ago counts half."""
        kept = 1 if half_life_seconds is None else 0.5 ** (update.seconds / half_life_seconds)
        self.updates = kept * self.updates + 1
        for each in fields(Meter)[1:]:
            setattr(self, each.name, kept * getattr(self, each.name) + getattr(update, each.name))

    @property
    def mean_loss(self) -> float:
        """Mean loss per target token, in nats."""
        return self.loss / self.target_tokens

    @property
    def mean_nll(self) -> float:
        return self.nll / self.target_tokens

    @property
    def padding(self) -> float:
        """Share of padding among all source and target positions."""
        return (self.padded_tokens - self.real_tokens) / self.padded_tokens

    @property
    def target_tokens_per_second(self) -> float:
        return self.target_tokens / self.seconds

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.seconds


@dataclass(frozen=True)
class PlannedUpdate:
    """The pairs of an update, the micro-batches of each process (``shares``), and the batches of this process."""

    pairs: Indices
    shares: list[list[Indices]]
    batches: list[Batch]


def train_updates(
    state: TrainingState,
    training_pairs: TrainingPairs,
    workers: Workers,
    local_flags: Callable[[], list[float]] = list,
) -> Iterator[Update]:
    """Make updates without end, and yield each; ``state`` is up to date at each yield.

    Between two updates the caller may load a resume state into ``state``: training then continues from there.

    Args:
        local_flags: numbers of this process whose sum over all processes is needed, such as a request to stop.

    Raises:
        DataError: an epoch has no pair, or none that fits into tokens_per_update; or the data are not those the
            run began with.
        NmtkitError: the device has too little memory for a single pair.
    """
    training, loss_of = state.training, training_loss(state)
    if training.compile:
        loss_of = CompiledLoss(loss_of, state.model)
    reported: Indices = np.zeros(0, np.int64)  # pairs too long for an update
    while True:
        progress = state.progress
        data = training_pairs.of_epoch(progress.epoch)
        plan = plan_of(data, training, progress.epoch)
        # Epochs may differ in subwords or pairs, and so in pairs that are too long.
        if len(too_long := np.setdiff1d(plan.too_long, reported)):
            log.warning(
                "training skips %ss with more target tokens than tokens_per_update = %d (%s, through all corpora)",
                data.noun, training.tokens_per_update, listed([int(data.lines[pair]) for pair in too_long]),
            )  # fmt: skip
            reported = np.union1d(reported, too_long)
        plan.check(training.tokens_per_update)
        ends = np.cumsum([len(pairs) for pairs in plan.updates])
        index = int(np.searchsorted(ends, progress.pairs_done, side="right"))
        # A resume state is saved between two updates, so with the same data it never lies within one.
        if progress.pairs_done and ends[index - 1] != progress.pairs_done:
            raise DataError(f"{data.folder}: not the data this run began with; put them back, or use another --run-dir")
        # `TrainingState.load` replaces the progress: then the position is another one.
        while index < len(plan.updates) and state.progress is progress:
            limit = tokens_per_pass(state, workers)
            # Closing ends the thread that makes batches ahead.
            with closing(_planned(data, plan.updates[index:], limit, workers)) as planned:
                begun = time.monotonic()  # before the batches are made, or waited for
                for ahead in planned:
                    update = _update(state, data, ahead, workers, loss_of, local_flags, begun)
                    update.ends_epoch = index == len(plan.updates) - 1
                    if isinstance(loss_of, CompiledLoss):
                        loss_of.report(update.step)
                    progress.step = update.step
                    progress.pairs_done = 0 if update.ends_epoch else int(ends[index])
                    progress.epoch += update.ends_epoch
                    progress += update  # its counters
                    count_skipped(progress, update.skipped, workers.precision)
                    index += 1
                    yield update
                    begun = time.monotonic()
                    if state.progress is not progress or tokens_per_pass(state, workers) != limit:
                        break  # the batches made ahead are of another position, or cut by the old limit


def training_loss(state: TrainingState) -> Loss:
    """Return the loss of a recipe, not compiled."""
    training, model = state.training, state.model.config
    if (own := own_loss(model, training.source_loss)) is not None:
        return own
    if training.r_drop:
        return partial(r_drop_loss, alpha=training.r_drop)
    return partial(batch_loss, source_loss=training.source_loss) if model.is_joined else batch_loss


def _planned(
    data: PairData, updates: Sequence[Indices], limit: int, workers: Workers
) -> Generator[PlannedUpdate, None, None]:
    """Share updates among the processes and make the batches of this one.

    For a CUDA device, a thread makes them ahead, in pinned memory. On a CPU, a thread would take cores from training.
    """
    on_cuda = workers.device.type == "cuda"

    def make() -> Generator[PlannedUpdate, None, None]:
        if on_cuda and workers.device.index is not None:
            torch.cuda.set_device(workers.device)  # for this thread: else pinning would take memory of the first device
        for pairs in updates:
            shares = shares_of(data, pairs, limit, workers.num_processes, workers.device.type)
            batches = [make_batch(data, chosen) for chosen in shares[workers.rank]]
            yield PlannedUpdate(pairs, shares, [batch.pinned() for batch in batches] if on_cuda else batches)

    return work_ahead(make(), UPDATES_AHEAD) if on_cuda else make()


def tokens_per_pass(state: TrainingState, workers: Workers) -> int:
    """Return the size limit of micro-batches: that of the run if fixed, else of the recipe, else of the device."""
    return state.progress.tokens_per_pass or state.training.tokens_per_pass or workers.tokens_per_pass


def lower_limit(limit: int) -> int:
    """Return the limit to try next if ``limit`` was too large for the memory of a device."""
    return max(1, limit * 3 // 4)


def micro_batch_seed(seed: int, step: int, rank: int, number: int, rollbacks: int = 0, *, half: int = 1) -> int:
    """Return the seed of all random numbers of a micro-batch, or of one of its halves, numbered as in `MicroBatch`.

    It changes with each rollback, so that a repeated update has other dropout.
    """
    entropy = [seed, step, rank, number]
    if half != 1:
        entropy += [rollbacks, half]
    elif rollbacks:
        entropy += [rollbacks]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class MicroBatch:
    """Pairs that a device processes at once: micro-batch ``number`` of the process, from 0, or a half of it.

    ``half`` is 1 for the whole micro-batch, 2 and 3 for its halves, 4 and 5 for the halves of 2, and so on.
    """

    number: int
    half: int
    pairs: Indices

    def halves(self) -> list["MicroBatch"]:
        middle = len(self.pairs) // 2
        halves = (self.pairs[:middle], self.pairs[middle:])
        return [MicroBatch(self.number, 2 * self.half + index, pairs) for index, pairs in enumerate(halves)]


def run_micro_batch(
    state: TrainingState, batch: Batch, target_tokens: int, workers: Workers, loss_of: Loss | None = None
) -> Tensor:
    """Run forward and backward, and return a tensor [2] on the device: the sums of loss and nll, in nats.

    The loss is divided by the target tokens of the whole update, so that micro-batches and processes add up to one
    large batch.
    """
    loss_of = loss_of or training_loss(state)
    with workers.autocast():
        loss, nll = loss_of(state.model, batch.to(workers.device), state.training.label_smoothing)
    if not loss.requires_grad:
        raise NmtkitError("training.freeze: the loss depends on none of the parameters that are left; freeze fewer")
    (loss / target_tokens * loss_scale(state, workers)).backward()
    return torch.stack([loss.detach(), nll.detach()])


def _add_up_gradients(
    state: TrainingState, data: PairData, planned: PlannedUpdate, workers: Workers, loss_of: Loss
) -> tuple[list[Tensor], int]:
    """Run this process' micro-batches of an update; nothing in here waits for another process.

    If the device's memory is too small for a micro-batch, the gradients are discarded (an interrupted backward pass
    leaves incomplete ones), that micro-batch and all others at least as large are halved, and all are run again. The
    sums over the update stay the same.

    Returns:
        The results of `run_micro_batch`, and how often memory was too small.

    Raises:
        NmtkitError: memory is too small for a single pair.
    """
    step, target_tokens = state.progress.step + 1, int(data.target_lengths[planned.pairs].sum())
    micro_batches = [MicroBatch(number, 1, pairs) for number, pairs in enumerate(planned.shares[workers.rank])]
    rollbacks, num_failures = state.progress.rollbacks, 0
    while True:
        state.optimizer.zero_grad(set_to_none=True)
        sums: list[Tensor] = []
        failed = None
        for each in micro_batches:
            batch = planned.batches[each.number] if each.half == 1 else make_batch(data, each.pairs)
            seed = micro_batch_seed(state.training.seed, step, workers.rank, each.number, rollbacks, half=each.half)
            # Not torch.manual_seed, which formats a traceback for each kind of device that is not in use: 0.3 ms.
            torch.default_generator.manual_seed(seed)
            if workers.device.type != "cpu":
                torch.get_device_module(workers.device).manual_seed(seed)
            try:
                sums.append(run_micro_batch(state, batch, target_tokens, workers, loss_of))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                # Handled after the except block: within it, the traceback keeps the tensors of the failed pass alive.
                failed = each
                break
        if failed is None:
            return sums, num_failures
        if len(failed.pairs) == 1:
            raise too_large(data, int(failed.pairs[0]), workers)
        num_failures += 1
        torch.cuda.empty_cache()  # which does nothing on other devices
        size = padded_tokens(data, failed.pairs)
        halved: list[MicroBatch] = []
        for each in micro_batches:
            is_too_large = len(each.pairs) > 1 and padded_tokens(data, each.pairs) >= size
            halved += each.halves() if is_too_large else [each]
        micro_batches = halved


def too_large(data: PairData, pair: int, workers: Workers) -> NmtkitError:
    """Return the error for a single pair that does not fit into the memory of a device."""
    return NmtkitError(
        f"{workers.device}: out of memory for a single {data.noun} (line {int(data.lines[pair])} of the corpora, "
        f"{int(data.source_lengths[pair])} source and {int(data.target_lengths[pair])} target tokens); exclude it "
        "with cleaning.max_tokens, or take a smaller model or a larger device"
    )


def _update(
    state: TrainingState,
    data: PairData,
    planned: PlannedUpdate,
    workers: Workers,
    loss_of: Loss,
    local_flags: Callable[[], list[float]],
    begun: float,
) -> Update:
    """Make one optimizer update, timed from ``begun`` on, and wait for the device only once, at the end."""
    step = state.progress.step + 1
    if not state.model.training:  # else a walk through all modules
        state.model.train()
    micro_batch_sums, num_failures = _add_up_gradients(state, data, planned, workers, loss_of)
    workers.sum_gradients(state.trained_parameters)
    rate = learning_rate(step, state.training, state.model.config.d_model)
    # In float64 where the device has it: in float32, sums over a whole update lose digits.
    sums = torch.zeros(2, dtype=widest_float(workers.device), device=workers.device)  # of loss and nll
    for each in micro_batch_sums:
        sums += each
    # Flags travel with the sums, so that an update has one exchange beside that of the gradients.
    own = torch.tensor([float(num_failures), *local_flags()], dtype=sums.dtype).to(workers.device, non_blocking=True)
    shared = workers.sum(torch.cat([sums, own]))
    norm = step_optimizer(state, shared[0], rate, workers)

    # Counted while a GPU computes.
    micro_batches = [pairs for share in planned.shares for pairs in share]
    config, factor = state.model.config, training_factor(state.training)
    counters = update_work(config, state.training, state.vocab_sizes, data.sequence_lengths(planned.pairs))
    counters.target_tokens = int(data.target_lengths[planned.pairs].sum())
    counters.flops_padding = factor * padding_flops(config, [data.sequence_lengths(pairs) for pairs in micro_batches])
    num_real, num_padded = real_tokens(data, planned.pairs), sum(padded_tokens(data, pairs) for pairs in micro_batches)

    loss, nll, failures, *flags, gradient_norm = torch.cat([shared, norm.to(shared).reshape(1)]).tolist()
    skipped = reason_to_skip(loss, gradient_norm, workers.precision)
    if failures:
        limit = min(max(micro_batch_size(data, p) for p in micro_batches), tokens_per_pass(state, workers))
        state.progress.tokens_per_pass = lower_limit(limit)  # equal in all processes, as the sums are shared
        log.warning(
            "update %d: out of memory with micro-batches of %s tokens; they were halved, and from now on have "
            "at most %s tokens; only the dropout masks change",
            step, f"{limit:,}", f"{state.progress.tokens_per_pass:,}",
        )  # fmt: skip
    return Update(
        step=step,
        loss=loss,
        nll=nll,
        learning_rate=rate,
        gradient_norm=gradient_norm,
        real_tokens=num_real,
        padded_tokens=num_padded,
        **counters.counters(),
        seconds=time.monotonic() - begun,
        ends_epoch=False,
        flags=flags,
        skipped=skipped,
        lines=[int(line) for line in data.lines[np.sort(planned.pairs)]] if skipped == "nonfinite" else [],
    )


def step_optimizer(state: TrainingState, loss: Tensor, rate: float, workers: Workers) -> Tensor:
    """Clip the gradients and update weights and moving average; if loss or gradient are not finite, nothing changes.

    Loss and gradients are sums over all processes, so all processes decide alike. The decision is made on the device,
    without waiting for it.

    Returns:
        The norm of the gradient before clipping, on the device.
    """
    trained, scale = state.trained_parameters, loss_scale(state, workers)
    # Before the norm: clipping and its limit are for gradients that are not scaled.
    if scale != 1:
        for parameter in trained:
            if parameter.grad is not None:
                parameter.grad.div_(scale)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    # With the limit infinity, the gradients stay as they are.
    norm = torch.nn.utils.clip_grad_norm_(trained, state.training.gradient_clip_norm or float("inf"))
    is_finite = torch.isfinite(norm) & torch.isfinite(loss)
    with holding_model():  # the first step allocates the optimizer's state
        step_if(is_finite, state.optimizer)
    state.update_average(state.progress.step + 1, is_finite)
    return norm


def loss_scale(state: TrainingState, workers: Workers) -> float:
    """Return the factor of losses that keeps gradients of fp16 from vanishing; 1 in other precisions."""
    return state.progress.loss_scale if workers.precision == "fp16" else 1.0


def update_work(
    config: ModelConfig, training: TrainingConfig, vocab_sizes: tuple[int, int], lengths: tuple[Indices, Indices]
) -> Counters:
    """Return the counters of the forward and backward passes over sequences with these lengths of source and target."""
    return forward_flops(
        config, vocab_sizes[config.head == "none"], *lengths, training_factor(training),
        source_outputs=training.source_loss > 0, head_size=config.linear_columns(*vocab_sizes),
    )  # fmt: skip


def training_factor(training: TrainingConfig) -> int:
    """Return the operations of an update, with the backward pass, relative to a forward pass; R-Drop doubles them."""
    return TRAINING_FACTOR * (2 if training.r_drop else 1)


def micro_batch_size(data: PairData, pairs: Indices) -> int:
    """Return the size that `tokens_per_pass` limits: the number of positions with padding, see `row_lengths`."""
    return int(row_lengths(*data.padded_lengths(pairs), is_joined=data.is_joined).sum())


def real_tokens(data: PairData, pairs: Indices) -> int:
    """Return the number of source and target tokens of the pairs, with end symbols.

    The source of a decoder-only model has none.
    """
    source, target = data.sequence_lengths(pairs)
    return int(source.sum() + target.sum()) - len(source) * data.is_joined


def padded_tokens(data: PairData, pairs: Indices) -> int:
    """Return the source and target tokens of the pairs as one batch, with padding."""
    source, target = data.padded_lengths(pairs)
    return int(source.sum() + target.sum()) - len(source) * data.is_joined
