"""The one training loop: a generator that yields one optimiser update at a time.

Its caller reports, validates, saves and stops. An update is a function of (weights, optimiser state, seed, epoch,
position): nothing depends on how often the run was interrupted.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmtkit.config import TrainingConfig
from nmtkit.console import log
from nmtkit.data.ahead import work_ahead
from nmtkit.data.batch import Batch, make_batch
from nmtkit.data.batching import Indices, plan_epoch, share_update
from nmtkit.data.shards import PairData
from nmtkit.errors import DataError, NmtkitError
from nmtkit.model.flops import TRAINING_FACTOR, forward_flops, padding_flops
from nmtkit.training.compiled import CompiledLoss, Loss
from nmtkit.training.objective import batch_loss
from nmtkit.training.schedule import learning_rate
from nmtkit.training.state import TrainingState
from nmtkit.workers import Workers

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
        ends_epoch: whether it was the last of its epoch.
        flags: sums over all processes of what ``local_flags`` returned.
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
    data: PairData,
    training: TrainingConfig,
    workers: Workers,
    local_flags: Callable[[], list[float]] = list,
) -> Iterator[Update]:
    """Makes one update after the other, without end, and yields what each did; ``state`` is up to date at each yield.

    Args:
        local_flags: numbers of this process that all processes shall know the sum of, such as a wish to stop.

    Raises:
        DataError: no pair fits into tokens_per_update, or the data are not those the run began with.
        NmtkitError: the device has too little memory for a pass.
    """
    progress = state.progress
    loss_of = CompiledLoss(batch_loss, state.model) if training.compile else batch_loss
    while True:
        plan = plan_epoch(
            data.source_lengths, data.target_lengths, training.tokens_per_update, training.seed, progress.epoch
        )
        if progress.epoch == 0 and len(plan.too_long):
            _report_too_long(data, plan.too_long, training.tokens_per_update)
        if not plan.updates:
            raise DataError(f"no training pair fits into tokens_per_update = {training.tokens_per_update}; raise it")
        ends = np.cumsum([len(pairs) for pairs in plan.updates])
        first = int(np.searchsorted(ends, progress.pairs_done, side="right"))
        if progress.pairs_done and ends[first - 1] != progress.pairs_done:
            raise DataError(f"{data.folder}: not the data this run began with; the saved position is inside an update")
        planned = _planned(data, plan.updates[first:], training.tokens_per_pass or workers.tokens_per_pass, workers)
        with closing(planned):
            for index, ahead in enumerate(planned, start=first):
                ends_epoch = index == len(plan.updates) - 1
                try:
                    update = _update(state, data, ahead, training, workers, loss_of, local_flags, ends_epoch)
                except torch.OutOfMemoryError:
                    tokens = training.tokens_per_pass or workers.tokens_per_pass
                    raise NmtkitError(
                        f"{workers.device}: out of memory in passes of {tokens} tokens; lower training.tokens_per_pass"
                    ) from None
                if isinstance(loss_of, CompiledLoss):
                    loss_of.tell(update.step)
                progress.step = update.step
                progress.pairs_done = 0 if ends_epoch else int(ends[index])
                progress.epoch += ends_epoch
                progress.target_tokens += update.target_tokens
                progress.flops += update.flops
                progress.flops_attention += update.flops_attention
                progress.flops_padding += update.flops_padding
                yield update


def _planned(
    data: PairData, updates: Sequence[Indices], tokens_per_pass: int, workers: Workers
) -> Generator[PlannedUpdate, None, None]:
    """Deals updates to the processes and makes this one's batches; for CUDA devices ahead and in pinned memory.

    On a CPU a thread would take the cores from the training.
    """
    on_cuda = workers.device.type == "cuda"

    def make() -> Generator[PlannedUpdate, None, None]:
        if on_cuda and workers.device.index is not None:
            torch.cuda.set_device(workers.device)  # of this thread: else pinning would claim memory on the first device
        for pairs in updates:
            shares = share_update(
                pairs, data.source_lengths, data.target_lengths, tokens_per_pass, workers.num_processes
            )
            batches = [make_batch(data, passed) for passed in shares[workers.rank]]
            yield PlannedUpdate(pairs, shares, [batch.pinned() for batch in batches] if on_cuda else batches)

    return work_ahead(make(), UPDATES_AHEAD) if on_cuda else make()


def _report_too_long(data: PairData, pairs: Indices, limit: int) -> None:
    lines = ", ".join(str(int(data.lines[pair])) for pair in pairs[:10])
    log.warning(
        "%d pairs have more target tokens than tokens_per_update = %d and are left out (lines %s%s of the corpora)",
        len(pairs), limit, lines, ", ..." if len(pairs) > 10 else "",
    )  # fmt: skip


def pass_seed(seed: int, step: int, rank: int, number: int) -> int:
    """The seed of all random numbers of one pass."""
    return int(np.random.SeedSequence([seed, step, rank, number]).generate_state(1, np.uint64)[0])


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
    """One optimiser update from the given pairs. The device is waited for once, at its end."""
    begun = time.monotonic()
    step = state.progress.step + 1
    source_lengths, target_lengths = data.source_lengths[planned.pairs], data.target_lengths[planned.pairs]
    target_tokens = int(target_lengths.sum())
    state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    numbers: list[Tensor] = []  # of each pass its loss and nll, at the end the gradient norm; on the device [2]
    for number, batch in enumerate(planned.batches):
        torch.manual_seed(pass_seed(training.seed, step, workers.rank, number))
        with workers.autocast():
            loss, nll = loss_of(state.model, batch.to(workers.device), training.label_smoothing)
        # Divided by the tokens of the whole update, so that passes and processes add up to one large batch.
        (loss / target_tokens).backward()
        numbers.append(torch.stack([loss.detach(), nll.detach()]))
    workers.sum_gradients(state.parameters)

    rate = learning_rate(step, training, state.model.config.d_model)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    limit = training.gradient_clip_norm or float("inf")
    numbers.append(torch.nn.utils.clip_grad_norm_(state.parameters, limit).expand(2))
    state.optimizer.step()

    *of_passes, norms = torch.stack(numbers).cpu()
    sums = torch.zeros(2, dtype=torch.float64)
    for pair in of_passes:
        sums += pair
    shared = workers.sum(
        torch.cat([sums, torch.tensor(local_flags(), dtype=torch.float64)]).to(workers.device)
    ).tolist()
    forward = forward_flops(state.model.config, state.model.output_embedding.size(0), source_lengths, target_lengths)
    passes = [passed for share in planned.shares for passed in share]
    padding = padding_flops(state.model.config, data.source_lengths, data.target_lengths, passes)
    return Update(
        step=step,
        loss=shared[0],
        nll=shared[1],
        learning_rate=rate,
        gradient_norm=float(norms[0]),
        target_tokens=target_tokens,
        real_tokens=target_tokens + int(source_lengths.sum()),
        padded_tokens=sum(_padded_tokens(data, passed) for passed in passes),
        flops=TRAINING_FACTOR * forward.total,
        flops_attention=TRAINING_FACTOR * forward.attention,
        flops_padding=TRAINING_FACTOR * padding,
        seconds=time.monotonic() - begun,
        ends_epoch=ends_epoch,
        flags=shared[2:],
    )


def _padded_tokens(data: PairData, pairs: Indices) -> int:
    return len(pairs) * int(data.source_lengths[pairs].max() + data.target_lengths[pairs].max())
