import itertools
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmtkit.config.schema import TrainingConfig
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import shares_of
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, NmtkitError
from nmtkit.model.flops import forward_flops, padding_flops
from nmtkit.training import loop
from nmtkit.training.loop import train_updates
from nmtkit.training.loss import batch_loss
from nmtkit.training.optimizer import learning_rate
from nmtkit.training.state import TrainingState
from tests.conftest import message_of
from tests.training.updates import ALONE, VOCAB, Weights, largest_difference, plan_of, random_pairs, run, tiny_state

NUM_PAIRS = 40
TRAINING = {"tokens_per_update": 60, "schedule": "constant", "peak_learning_rate": 0.003, "warmup_steps": 5}
new_state = partial(tiny_state, dtype=torch.float64)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PairData:
    return random_pairs(tmp_path_factory.mktemp("data") / "train", range(1, NUM_PAIRS + 1))


def training_config(**changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate({**TRAINING, **changes})


def first_gradients(data: PairData, training: TrainingConfig) -> Weights:
    state = new_state(training)
    run(state, data, training, 1)
    named = state.model.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named}


def distance(left: Weights, right: Weights) -> float:
    """Of two gradients, relative to the length of the second."""
    assert left.keys() == right.keys()
    squares = [((left[name].double() - right[name].double()) ** 2).sum() for name in right]
    length = sum((tensor.double() ** 2).sum() for tensor in right.values())
    return float((sum(squares) / length) ** 0.5)


def reference_gradients(state: TrainingState, data: PairData, pairs: np.ndarray, label_smoothing: float) -> Weights:
    """Of the mean loss of a target token, pair after pair, by torch's own loss."""
    total = torch.zeros(2, dtype=torch.float64)
    tokens = int(data.target_lengths[pairs].sum())
    for pair in pairs:
        batch = make_batch(data, [int(pair)])
        logits = state.model(batch.source, batch.source_lengths, batch.target_in)[0]
        target = batch.target_out[0]
        total = total + F.cross_entropy(logits, target, label_smoothing=label_smoothing, reduction="sum") / tokens
    total[0].backward()
    gradients = {name: p.grad.clone() for name, p in state.model.named_parameters() if p.grad is not None}
    state.model.zero_grad()
    return gradients


# ---- passes and processes add up


@pytest.mark.parametrize(("seed", "tokens_per_pass"), [(1, 30), (2, 30), (3, 30), (1, 1)])
def test_the_gradient_of_accumulated_small_passes_equals_that_of_one_large_pass(
    data: PairData, seed: int, tokens_per_pass: int
) -> None:
    large = training_config(seed=seed, tokens_per_update=10**6, tokens_per_pass=10**6)
    small = training_config(seed=seed, tokens_per_update=10**6, tokens_per_pass=tokens_per_pass)
    pairs = plan_of(data, small).updates[0]
    passes = shares_of(data, pairs, tokens_per_pass, 1, "cpu")[0]
    assert len(passes) > 5
    sizes = {len(passed) for passed in passes}
    assert sizes == {1} if tokens_per_pass == 1 else len(sizes) > 1
    expected = first_gradients(data, large)
    assert distance(first_gradients(data, small), expected) < 1e-12
    assert distance(first_gradients(data, training_config(seed=seed + 9, tokens_per_update=10**6)), expected) > 0.01


# ---- one update


@pytest.mark.parametrize("clip", [0.0, 1.2])  # 1.2: two of four gradients are longer
@pytest.mark.parametrize("adam", [{}, {"adam_betas": [0.8, 0.9], "adam_epsilon": 0.01}])
def test_updates_equal_those_of_torchs_plain_adam(data: PairData, clip: float, adam: dict[str, Any]) -> None:
    training = training_config(gradient_clip_norm=clip, **adam)
    state, reference = new_state(training), new_state(training)
    betas = tuple(adam.get("adam_betas", (0.9, 0.98)))
    epsilon = adam.get("adam_epsilon", 1e-9)
    parameters = list(reference.model.parameters())
    optimizer = torch.optim.Adam(parameters, betas=betas, eps=epsilon, foreach=False, fused=False)
    for step, pairs in enumerate(plan_of(data, training).updates[:4], start=1):
        (update,) = run(state, data, training, 1)
        gradients = reference_gradients(reference, data, pairs, 0.1)
        norm = float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())
        assert update.gradient_norm == pytest.approx(norm, rel=1e-10)  # as it was before clipping
        for name, parameter in reference.model.named_parameters():
            parameter.grad = gradients[name] * (min(1.0, clip / (norm + 1e-6)) if clip else 1.0)
        optimizer.param_groups[0]["lr"] = 0.003 * min(1.0, step / 5)
        optimizer.step()
        optimizer.zero_grad()
        assert largest_difference(state.model.state_dict(), reference.model.state_dict()) < 1e-10


def test_the_learning_rate_used_is_the_schedules(data: PairData) -> None:
    training = training_config(schedule="noam", peak_learning_rate=0.0, warmup_steps=3)
    state = new_state(training)
    for step, update in enumerate(itertools.islice(train_updates(state, data, ALONE), 6), start=1):
        used = [group["lr"] for group in state.optimizer.param_groups]
        assert [update.learning_rate] == used == [learning_rate(step, training, 8)]


def test_the_counts_of_an_update_are_those_of_the_plan(data: PairData) -> None:
    training = training_config(tokens_per_pass=40)
    state = new_state(training)
    updates = run(state, data, training, len(plan_of(data, training).updates))
    assert sum(update.target_tokens for update in updates) == data.target_lengths.sum()
    for step, (update, pairs) in enumerate(zip(updates, plan_of(data, training).updates, strict=True), start=1):
        sources, targets = data.source_lengths[pairs], data.target_lengths[pairs]
        assert update.step == step
        assert update.target_tokens == targets.sum() <= 60
        assert update.real_tokens == sources.sum() + targets.sum()
        flops = forward_flops(state.model.config, VOCAB, sources, targets)
        assert (update.flops, update.flops_attention) == (3 * flops.flops, 3 * flops.flops_attention)
        padded, passes = 0, shares_of(data, pairs, 40, 1, "cpu")[0]
        expected = padding_flops(state.model.config, [data.sequence_lengths(passed) for passed in passes])
        assert update.flops_padding == 3 * expected
        for passed in passes:
            batch = make_batch(data, passed)
            assert max(batch.source.numel(), batch.target_in.numel()) <= 40
            padded += batch.source.numel() + batch.target_in.numel()
        assert update.padded_tokens == padded >= update.real_tokens
        assert update.seconds > 0
    assert state.progress.target_tokens == data.target_lengths.sum()
    assert state.progress.flops == sum(update.flops for update in updates)
    assert state.progress.flops_attention == sum(update.flops_attention for update in updates)
    assert state.progress.flops_padding == sum(update.flops_padding for update in updates) > 0


def test_the_sums_of_an_update_are_losses_before_it(data: PairData) -> None:
    training = training_config(tokens_per_pass=30, label_smoothing=0.3)
    state, reference = new_state(training), new_state(training)
    (update,) = run(state, data, training, 1)
    loss = nll = 0.0
    with torch.no_grad():
        for pair in plan_of(data, training).updates[0]:
            batch = make_batch(data, [int(pair)])
            logits = reference.model(batch.source, batch.source_lengths, batch.target_in)[0]
            loss += float(F.cross_entropy(logits, batch.target_out[0], label_smoothing=0.3, reduction="sum"))
            nll += float(F.cross_entropy(logits, batch.target_out[0], reduction="sum"))
    assert (update.loss, update.nll) == pytest.approx((loss, nll), rel=1e-12)


# ---- where a run is


def seen_pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills up with the pairs that are trained on, in turn."""
    pairs: list[int] = []

    def recording(data: PairData, indices: Any) -> Any:
        pairs.extend(int(index) for index in indices)
        return make_batch(data, indices)

    monkeypatch.setattr(loop, "make_batch", recording)
    return pairs


def test_every_epoch_is_its_plan_and_the_position_advances_with_it(
    data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = training_config()
    state = new_state(training)
    pairs = seen_pairs(monkeypatch)
    updates = train_updates(state, data, ALONE)
    step = 0
    orders = []
    for epoch in range(3):
        plan = plan_of(data, training, epoch).updates
        assert len(plan) > 4
        done = 0
        for index, expected in enumerate(plan):
            pairs.clear()
            update = next(updates)
            step += 1
            done += len(expected)
            is_last = index == len(plan) - 1
            assert sorted(pairs) == sorted(expected.tolist())
            assert update.ends_epoch == is_last
            assert (state.progress.step, state.progress.epoch) == (step, epoch + is_last)
            assert state.progress.pairs_done == (0 if is_last else done)
        assert done == NUM_PAIRS
        orders.append([expected.tolist() for expected in plan])
    assert orders[0] != orders[1] != orders[2]


class WithoutPeers(Workers):
    """One of several processes, of which the others are not there."""

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        return None


def test_every_pass_of_every_process_and_update_has_dropout_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Twelve times the same pair, a pass each, and weights that stay: only dropout tells the passes apart.
    with ShardWriter(tmp_path / "train", (VOCAB, VOCAB)) as writer:
        writer.add([([4, 5, 6, 7], [8, 9, 10])] * 12, range(12))
    data = PairData(tmp_path / "train")
    losses: list[float] = []

    def recording(*arguments: Any) -> tuple[Tensor, Tensor]:
        loss, nll = batch_loss(*arguments)
        losses.append(loss.item())
        return loss, nll

    monkeypatch.setattr(loop, "batch_loss", recording)

    def losses_of(seed: int) -> list[float]:
        losses.clear()
        for rank in (0, 1):
            state = new_state(training_config(), dropout=0.3)
            state.training = training_config(
                tokens_per_update=24, tokens_per_pass=1, peak_learning_rate=1e-30, seed=seed
            )
            workers = WithoutPeers(rank, 2, torch.device("cpu"), "float32")
            assert len(list(itertools.islice(train_updates(state, data, workers), 2))) == 2
        return losses.copy()

    first = losses_of(1)
    assert len(first) == len(set(first)) == 2 * 2 * 3
    assert losses_of(1) == first
    assert not set(losses_of(2)) & set(first)


def test_pairs_longer_than_an_update_are_left_out_and_named_once(
    data: PairData, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    training = training_config(tokens_per_update=8)
    too_long = [pair for pair in range(NUM_PAIRS) if data.target_lengths[pair] > 8]
    assert 10 < len(too_long) < NUM_PAIRS
    pairs = seen_pairs(monkeypatch)
    plan = plan_of(data, training).updates
    with logged.at_level(logging.WARNING):
        updates = run(new_state(training), data, training, len(plan) + len(plan_of(data, training, 1).updates))
    assert sorted(pairs) == sorted(2 * [pair for pair in range(NUM_PAIRS) if pair not in too_long])
    assert max(update.target_tokens for update in updates) <= 8
    assert len(logged.messages) == 1
    lines = ", ".join(str(pair + 1) for pair in too_long[:10])
    assert logged.messages[0].startswith("training skips pairs with more target tokens than tokens_per_update = 8")
    assert f"({len(too_long)} lines: {lines}, ..., through all corpora)" in logged.messages[0]


def test_a_pair_that_only_a_later_epoch_makes_too_long_is_named_there(
    data: PairData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    with ShardWriter(tmp_path / "other", (VOCAB, VOCAB)) as writer:
        writer.add([([4], [5] * (30 if pair == 7 else 1)) for pair in range(NUM_PAIRS)], range(1, NUM_PAIRS + 1))
    other = PairData(tmp_path / "other")
    monkeypatch.setattr(PairData, "of_epoch", lambda self, epoch: other if epoch else data)
    training = training_config(tokens_per_update=20)
    with logged.at_level(logging.WARNING):
        run(new_state(training), data, training, len(plan_of(data, training).updates) + 1)
    assert len(logged.messages) == 1
    assert "(line 8, through all corpora)" in logged.messages[0]


def test_data_of_which_no_pair_fits_are_refused(data: PairData) -> None:
    training = training_config(tokens_per_update=1)
    with pytest.raises(DataError, match="tokens_per_update = 1; raise it"):
        run(new_state(training), data, training, 1)


def one_fits(folder: Path) -> PairData:
    """Two pairs, of which every second epoch, the first among them, has the one that fits into an update of 4."""
    for long in (0, 1):
        with ShardWriter(folder / str(long), (VOCAB, VOCAB), [0.5]) as writer:
            writer.add([([4], [5] * (9 if pair == long else 1)) for pair in (0, 1)], [1, 2])
        data = PairData(folder / str(long))
        if plan_of(data, training_config(tokens_per_update=4)).updates:
            return data
    raise AssertionError("no epoch has a pair that fits")


def test_an_epoch_whose_own_pairs_are_all_too_long_has_the_pairs_that_fit(tmp_path: Path) -> None:
    data, training = one_fits(tmp_path), training_config(tokens_per_update=4)
    assert [len(plan_of(data, training, epoch).updates) for epoch in range(3)] == [1, 1, 1]
    state = new_state(training)
    assert len(run(state, data, training, 3)) == 3
    assert state.progress.epoch == 3


def test_a_loss_that_no_trained_parameter_changes_is_told_in_one_line(data: PairData) -> None:
    state = new_state(training_config())
    state.model.requires_grad_(False)
    told = message_of(lambda: run(state, data, training_config(), 1), NmtkitError)
    assert told.startswith("training.freeze: the loss depends on none of the parameters that are left")


@pytest.mark.parametrize("pairs_done", [1, 2, NUM_PAIRS - 1, NUM_PAIRS + 5])
def test_a_position_inside_an_update_is_refused(data: PairData, pairs_done: int) -> None:
    training = training_config()
    state = new_state(training)
    ends = np.cumsum([len(pairs) for pairs in plan_of(data, training).updates]).tolist()
    assert pairs_done not in ends
    state.progress.pairs_done = pairs_done
    with pytest.raises(DataError, match="not the data this run began with"):
        run(state, data, training, 1)
