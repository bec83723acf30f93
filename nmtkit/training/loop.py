"""The one training loop: a generator that yields one optimiser update at a time.

Its caller reports, validates, saves and stops. An update is a function of (weights, optimiser state, seed, epoch,
position): nothing depends on how often the run was interrupted.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from nmtkit.config import TrainingConfig
from nmtkit.console import log
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import Indices, plan_epoch, share_update
from nmtkit.data.shards import PairData
from nmtkit.errors import DataError, NmtkitError
from nmtkit.model.flops import TRAINING_FACTOR, forward_flops
from nmtkit.training.objective import batch_loss
from nmtkit.training.schedule import learning_rate
from nmtkit.training.state import TrainingState
from nmtkit.workers import Workers


@dataclass(frozen=True)
class Update:
    """What one optimiser update did, over all processes.

    Attributes:
        step: its number, from 1.
        loss, nll: sums over its target tokens, in nats.
        real_tokens, padded_tokens: source and target tokens, without and with padding.
        flops: of the matrix products of forward and backward for the real tokens.
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
    seconds: float
    ends_epoch: bool
    flags: list[float]


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
        for index in range(first, len(plan.updates)):
            ends_epoch = index == len(plan.updates) - 1
            try:
                update = _update(state, data, plan.updates[index], training, workers, local_flags, ends_epoch)
            except torch.OutOfMemoryError:
                tokens = training.tokens_per_pass or workers.tokens_per_pass
                raise NmtkitError(
                    f"{workers.device}: out of memory in passes of {tokens} tokens; lower training.tokens_per_pass"
                ) from None
            progress.step = update.step
            progress.pairs_done = 0 if ends_epoch else int(ends[index])
            progress.epoch += ends_epoch
            progress.target_tokens += update.target_tokens
            progress.flops += update.flops
            yield update


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
    pairs: Indices,
    training: TrainingConfig,
    workers: Workers,
    local_flags: Callable[[], list[float]],
    ends_epoch: bool,
) -> Update:
    """One optimiser update from the given pairs."""
    begun = time.monotonic()
    step = state.progress.step + 1
    source_lengths, target_lengths = data.source_lengths[pairs], data.target_lengths[pairs]
    target_tokens = int(target_lengths.sum())
    tokens_per_pass = training.tokens_per_pass or workers.tokens_per_pass
    shares = share_update(pairs, data.source_lengths, data.target_lengths, tokens_per_pass, workers.num_processes)
    state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    sums = torch.zeros(2, dtype=torch.float64)
    for number, passed in enumerate(shares[workers.rank]):
        torch.manual_seed(pass_seed(training.seed, step, workers.rank, number))
        batch = make_batch(data, passed).to(workers.device)
        with workers.autocast():
            loss, nll = batch_loss(state.model, batch, training.label_smoothing)
        # Divided by the tokens of the whole update, so that passes and processes add up to one large batch.
        (loss / target_tokens).backward()
        sums += torch.stack([loss.detach(), nll.detach()]).cpu()
    workers.sum_gradients(state.parameters)

    rate = learning_rate(step, training, state.model.config.d_model)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    limit = training.gradient_clip_norm or float("inf")
    gradient_norm = float(torch.nn.utils.clip_grad_norm_(state.parameters, limit))
    state.optimizer.step()

    shared = workers.sum(
        torch.cat([sums, torch.tensor(local_flags(), dtype=torch.float64)]).to(workers.device)
    ).tolist()
    forward = forward_flops(state.model.config, state.model.output_embedding.size(0), source_lengths, target_lengths)
    return Update(
        step=step,
        loss=shared[0],
        nll=shared[1],
        learning_rate=rate,
        gradient_norm=gradient_norm,
        target_tokens=target_tokens,
        real_tokens=target_tokens + int(source_lengths.sum()),
        padded_tokens=sum(_padded_tokens(data, passed) for share in shares for passed in share),
        flops=TRAINING_FACTOR * forward.total,
        seconds=time.monotonic() - begun,
        ends_epoch=ends_epoch,
        flags=shared[2:],
    )


def _padded_tokens(data: PairData, pairs: Indices) -> int:
    return len(pairs) * int(data.source_lengths[pairs].max() + data.target_lengths[pairs].max())
