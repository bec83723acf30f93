"""The one training loop: a generator that yields one optimiser update at a time.

Its caller reports, validates, saves and stops. An update is a function of (weights, optimiser state, seed, epoch,
position): nothing depends on how often the run was interrupted.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nmtkit.config.schema import TrainingConfig
from nmtkit.console import listed, log
from nmtkit.data.batch import Batch, make_batch, work_ahead
from nmtkit.data.batching import Indices, plan_of_epoch, share_update
from nmtkit.data.shards import PairData
from nmtkit.distributed.workers import Workers, holding_model, is_out_of_memory
from nmtkit.errors import DataError, NmtkitError
from nmtkit.model.flops import TRAINING_FACTOR, forward_flops, padding_flops
from nmtkit.training.compiled import CompiledLoss, Loss
from nmtkit.training.epochs import TrainingPairs
from nmtkit.training.loss import batch_loss
from nmtkit.training.nonfinite import count_update, reason_to_skip
from nmtkit.training.optimizer import step_if
from nmtkit.training.r_drop import r_drop_loss
from nmtkit.training.schedule import learning_rate
from nmtkit.training.state import FLOPS, TrainingState

UPDATES_AHEAD = 2
"""Updates whose batches are made while a CUDA device computes."""


@dataclass(frozen=True)
class Update:
    """What one optimiser update did, over all processes.

    Attributes:
        step: its number, from 1.
        loss, nll: sums over its target tokens, in nats.
        real_tokens, padded_tokens: source and target tokens, without and with padding.
        flops: of the matrix products of forward and backward for the real tokens.
        flops_attention: of these, those of the products of queries with keys and of weights with values.
        flops_padding: what padding added to flops.
        flops_encoder, flops_decoder, flops_output: of flops, those of the layers of each and of the output embedding.
        ends_epoch: whether it was the last of its epoch.
        flags: sums over all processes of what ``local_flags`` returned.
        skipped: "" if it was made; "nonfinite" or "overflow" (`finite.reason_to_skip`) if the weights are as before.
        lines: where the pairs of a "nonfinite" one come from, counted through the corpora in turn.
    """

    step: int
    loss: float
    nll: float
    learning_rate: float
    gradient_norm: float
    target_tokens: int
    real_tokens: int
    padded_tokens: int
    flops: int
    flops_attention: int
    flops_padding: int
    seconds: float
    ends_epoch: bool
    flags: list[float]
    skipped: str = ""
    lines: list[int] = field(default_factory=list)
    flops_encoder: int = 0  # these after the others: saves of before they were counted do not have them
    flops_decoder: int = 0
    flops_output: int = 0


@dataclass(frozen=True)
class PlannedUpdate:
    """What is known of an update before anything is computed.

    Attributes:
        pairs: its sentence pairs, of all processes.
        shares: for each process the pairs of each of its passes.
        batches: the passes of this process.
    """

    pairs: Indices
    shares: list[list[Indices]]
    batches: list[Batch]


def train_updates(
    state: TrainingState,
    training_pairs: TrainingPairs,
    training: TrainingConfig,
    workers: Workers,
    local_flags: Callable[[], list[float]] = list,
) -> Iterator[Update]:
    """Makes one update after the other, without end, and yields what each did; ``state`` is up to date at each yield.

    Between two updates the caller may load a save into ``state``: the next update is the one that follows that save.

    Args:
        local_flags: numbers of this process that all processes shall know the sum of, such as a wish to stop.

    Raises:
        DataError: an epoch sees no pair, or none that fits into tokens_per_update; or the data are not those the
            run began with.
        NmtkitError: the device has too little memory for a pass.
    """
    loss_of = plain_loss(training)
    if training.compile:
        loss_of = CompiledLoss(loss_of, state.model)
    told: Indices = np.zeros(0, np.int64)  # pairs too long for an update, told of already
    while True:
        progress = state.progress
        data = training_pairs.of_epoch(progress.epoch)
        plan = plan_of_epoch(
            data, training.tokens_per_update, training.seed, progress.epoch, training.lengths_per_update
        )
        if len(too_long := np.setdiff1d(plan.too_long, told)):  # other epochs may have other subwords, or other pairs
            _report_too_long(data, too_long, training.tokens_per_update)
            told = np.union1d(told, too_long)
        plan.check(training.tokens_per_update)
        ends = np.cumsum([len(pairs) for pairs in plan.updates])
        first = int(np.searchsorted(ends, progress.pairs_done, side="right"))
        if progress.pairs_done and ends[first - 1] != progress.pairs_done:
            raise DataError(f"{data.folder}: not the data this run began with; put them back, or use another --run-dir")
        index = first
        while index < len(plan.updates) and state.progress is progress:
            limit = tokens_per_pass(state, training, workers)
            with closing(_planned(data, plan.updates[index:], limit, workers)) as planned:
                for ahead in planned:
                    ends_epoch = index == len(plan.updates) - 1
                    update = _update(state, data, ahead, training, workers, loss_of, local_flags, ends_epoch)
                    if isinstance(loss_of, CompiledLoss):
                        loss_of.tell(update.step)
                    progress.step = update.step
                    progress.pairs_done = 0 if ends_epoch else int(ends[index])
                    progress.epoch += ends_epoch
                    for key in ("target_tokens", *FLOPS):
                        setattr(progress, key, getattr(progress, key) + getattr(update, key))
                    count_update(progress, update.skipped, workers.precision)
                    index += 1
                    yield update
                    if state.progress is not progress or tokens_per_pass(state, training, workers) != limit:
                        break  # what was made ahead is of another place, or cut by the old limit


def plain_loss(training: TrainingConfig) -> Loss:
    """The loss that the recipe asks for, not compiled."""
    return partial(r_drop_loss, alpha=training.r_drop) if training.r_drop else batch_loss


def _planned(
    data: PairData, updates: Sequence[Indices], limit: int, workers: Workers
) -> Generator[PlannedUpdate, None, None]:
    """Deals updates to the processes and makes this one's batches; for CUDA devices ahead and in pinned memory.

    On a CPU a thread would take the cores from the training.
    """
    on_cuda = workers.device.type == "cuda"

    def make() -> Generator[PlannedUpdate, None, None]:
        if on_cuda and workers.device.index is not None:
            torch.cuda.set_device(workers.device)  # of this thread: else pinning would claim memory on the first device
        for pairs in updates:
            shares = share_update(pairs, data.source_lengths, data.target_lengths, limit, workers.num_processes)
            batches = [make_batch(data, passed) for passed in shares[workers.rank]]
            yield PlannedUpdate(pairs, shares, [batch.pinned() for batch in batches] if on_cuda else batches)

    return work_ahead(make(), UPDATES_AHEAD) if on_cuda else make()


def _report_too_long(data: PairData, pairs: Indices, limit: int) -> None:
    log.warning(
        "training skips pairs with more target tokens than tokens_per_update = %d (%s of the corpora)",
        limit, listed([int(data.lines[pair]) for pair in pairs]),
    )  # fmt: skip


def tokens_per_pass(state: TrainingState, training: TrainingConfig, workers: Workers) -> int:
    """The limit by which passes are cut: the run's, once it is settled, else the recipe's, else the device's."""
    return state.progress.tokens_per_pass or training.tokens_per_pass or workers.tokens_per_pass


def lower_limit(limit: int) -> int:
    """The limit that follows one that the memory of a device was too small for."""
    return max(1, limit * 3 // 4)


def pass_seed(seed: int, step: int, rank: int, number: int, rollbacks: int = 0, *, piece: int = 1) -> int:
    """The seed of all random numbers of one pass, or of a piece of it as `Piece` counts them; another one each time
    the run went back and makes it anew."""
    entropy = [seed, step, rank, number]
    if piece != 1:
        entropy += [rollbacks, piece]
    elif rollbacks:
        entropy += [rollbacks]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class Piece:
    """Pairs that a device takes at once: a pass, or what memory left of it.

    Attributes:
        number: of the pass, from 0.
        piece: 1 is the whole pass, 2 and 3 are its halves, 4 and 5 the halves of 2, and so on.
        pairs: their indices.
    """

    number: int
    piece: int
    pairs: Indices

    def halves(self) -> list["Piece"]:
        """The first half of the pairs, and the rest."""
        middle = len(self.pairs) // 2
        parts = (self.pairs[:middle], self.pairs[middle:])
        return [Piece(self.number, 2 * self.piece + index, part) for index, part in enumerate(parts)]


def run_pass(
    state: TrainingState, batch: Batch, target_tokens: int, training: TrainingConfig, workers: Workers, loss_of: Loss
) -> Tensor:
    """Forward and backward of one pass, whose gradients are added to those there.

    Args:
        target_tokens: of the whole update, which the loss is divided by, so that passes and processes add up to one
            large batch.

    Returns:
        Sums of loss and nll over the pass, in nats, on the device [2].
    """
    with workers.autocast():
        loss, nll = loss_of(state.model, batch.to(workers.device), training.label_smoothing)
    (loss / target_tokens * loss_scale(state, workers)).backward()
    return torch.stack([loss.detach(), nll.detach()])


def _add_up_gradients(
    state: TrainingState,
    data: PairData,
    planned: PlannedUpdate,
    training: TrainingConfig,
    workers: Workers,
    loss_of: Loss,
) -> tuple[list[Tensor], int]:
    """Makes this process' passes of an update; nothing in here waits for another process.

    When the device's memory is too small for a pass, the gradients are thrown away (a backward that broke off has left
    some of its own), that pass and all as large are halved, and all are made anew: the sums stay those of the update.

    Returns:
        What `run_pass` returned each time, and how often memory was too small.

    Raises:
        NmtkitError: it is too small for a single pair.
    """
    step, target_tokens = state.progress.step + 1, int(data.target_lengths[planned.pairs].sum())
    pieces = [Piece(number, 1, pairs) for number, pairs in enumerate(planned.shares[workers.rank])]
    rollbacks, num_failures = state.progress.rollbacks, 0
    while True:
        state.optimizer.zero_grad(set_to_none=True)
        sums: list[Tensor] = []
        failed = None
        for piece in pieces:
            batch = planned.batches[piece.number] if piece.piece == 1 else make_batch(data, piece.pairs)
            torch.manual_seed(pass_seed(training.seed, step, workers.rank, piece.number, rollbacks, piece=piece.piece))
            try:
                sums.append(run_pass(state, batch, target_tokens, training, workers, loss_of))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                failed = piece
                break
        if failed is None:
            return sums, num_failures
        if len(failed.pairs) == 1:
            raise too_large(data, int(failed.pairs[0]), workers)
        num_failures += 1
        workers.free_memory()
        pieces = _halved(data, pieces, padded_tokens(data, failed.pairs))


def _halved(data: PairData, pieces: list[Piece], size: int) -> list[Piece]:
    """The pieces, those of at least so many padded tokens in halves."""
    halved: list[Piece] = []
    for piece in pieces:
        is_too_large = len(piece.pairs) > 1 and padded_tokens(data, piece.pairs) >= size
        halved += piece.halves() if is_too_large else [piece]
    return halved


def too_large(data: PairData, pair: int, workers: Workers) -> NmtkitError:
    """What to say when a single pair does not fit into the memory of a device."""
    return NmtkitError(
        f"{workers.device}: out of memory for a single pair, line {int(data.lines[pair])} of the corpora with "
        f"{int(data.source_lengths[pair])} source and {int(data.target_lengths[pair])} target tokens; exclude it "
        "with cleaning.max_tokens, or take a smaller model or a larger device"
    )


def _update(
    state: TrainingState,
    data: PairData,
    planned: PlannedUpdate,
    training: TrainingConfig,
    workers: Workers,
    loss_of: Loss,
    local_flags: Callable[[], list[float]],
    ends_epoch: bool,
) -> Update:
    """One optimiser update from the given pairs; if loss or gradient are not finite, the weights stay as they are.

    The device is waited for once, at its end.
    """
    begun = time.monotonic()
    step = state.progress.step + 1
    source_lengths, target_lengths = data.source_lengths[planned.pairs], data.target_lengths[planned.pairs]
    target_tokens = int(target_lengths.sum())
    state.model.train()
    # Of each pass its loss and nll, on the device [2]
    of_passes, num_failures = _add_up_gradients(state, data, planned, training, workers, loss_of)
    trained = state.trained_parameters
    workers.sum_gradients(trained)
    rate = learning_rate(step, training, state.model.config.d_model)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    sums = torch.zeros(2, dtype=workers.widest_float, device=workers.device)  # of loss and nll
    for pair in of_passes:
        sums += pair
    own = torch.tensor([float(num_failures), *local_flags()], dtype=sums.dtype).to(workers.device, non_blocking=True)
    shared = workers.sum(torch.cat([sums, own]))

    limit = training.gradient_clip_norm or float("inf")
    if loss_scale(state, workers) != 1:
        _unscale(trained, loss_scale(state, workers))
    norm = torch.nn.utils.clip_grad_norm_(trained, limit)
    # Both are sums over all processes, so that these decide alike; the device decides, nobody waits for it.
    is_finite = torch.isfinite(norm) & torch.isfinite(shared[0])
    with holding_model():  # the first step makes the optimiser's state
        step_if(is_finite, state.optimizer)
    state.update_average(step, is_finite)

    numbers: list[float] = torch.cat([shared, norm.to(shared).reshape(1)]).tolist()
    loss_sum, gradient_norm = numbers[0], numbers[-1]
    skipped = reason_to_skip(loss_sum, gradient_norm, workers.precision)
    if numbers[2]:
        largest = max(pass_size(data, passed) for share in planned.shares for passed in share)
        _lower_limit(state, step, min(largest, tokens_per_pass(state, training, workers)))
    forward = forward_flops(state.model.config, state.model.output_embedding.size(0), source_lengths, target_lengths)
    passes = [passed for share in planned.shares for passed in share]
    padding = padding_flops(state.model.config, data.source_lengths, data.target_lengths, passes)
    factor = training_factor(training)
    return Update(
        step=step,
        loss=loss_sum,
        nll=numbers[1],
        learning_rate=rate,
        gradient_norm=gradient_norm,
        target_tokens=target_tokens,
        real_tokens=target_tokens + int(source_lengths.sum()),
        padded_tokens=sum(padded_tokens(data, passed) for passed in passes),
        flops=factor * forward.total,
        flops_attention=factor * forward.attention,
        flops_padding=factor * padding,
        flops_encoder=factor * forward.encoder,
        flops_decoder=factor * forward.decoder,
        flops_output=factor * forward.output,
        seconds=time.monotonic() - begun,
        ends_epoch=ends_epoch,
        flags=numbers[3:-1],
        skipped=skipped,
        lines=[int(line) for line in data.lines[np.sort(planned.pairs)]] if skipped == "nonfinite" else [],
    )


def training_factor(training: TrainingConfig) -> int:
    """How many times the operations of one forward pass an update takes: forward and backward, for R-Drop twice."""
    return TRAINING_FACTOR * (2 if training.r_drop else 1)


def loss_scale(state: TrainingState, workers: Workers) -> float:
    """What losses are multiplied by, so that the gradients of fp16 do not vanish; 1 in other precisions."""
    return state.progress.loss_scale if workers.precision == "fp16" else 1.0


def _unscale(parameters: list[Tensor], scale: float) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.div_(scale)


def _lower_limit(state: TrainingState, step: int, limit: int) -> None:
    """From the next update on every process cuts its passes smaller: they all know of it from the update's sums."""
    state.progress.tokens_per_pass = lower_limit(limit)
    log.warning(
        "update %d: out of memory with micro-batches of %s tokens; they were halved, and the update is unchanged; "
        "from now on they have at most %s tokens, which changes only the dropout masks",
        step, f"{limit:,}", f"{state.progress.tokens_per_pass:,}",
    )  # fmt: skip


def pass_size(data: PairData, pairs: Indices) -> int:
    """What `tokens_per_pass` limits: source or target tokens of the pairs as one batch, whichever are more."""
    return len(pairs) * int(max(data.source_lengths[pairs].max(), data.target_lengths[pairs].max()))


def padded_tokens(data: PairData, pairs: Indices) -> int:
    """Source and target tokens of the pairs as one batch, padding counted."""
    return len(pairs) * int(data.source_lengths[pairs].max() + data.target_lengths[pairs].max())
