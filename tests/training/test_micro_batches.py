"""Passes are settled and tried before the first update, and halved when memory is too small."""

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.console import counted
from nmtkit.data.batch import Batch
from nmtkit.data.batching import shares_of
from nmtkit.data.shards import PairData
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError
from nmtkit.model.flops import TRAINING_FACTOR, forward_flops
from nmtkit.run import Run
from nmtkit.training import loop
from nmtkit.training import micro_batches as memory
from nmtkit.training.loop import MicroBatch, micro_batch_seed, padded_tokens
from nmtkit.training.loss import batch_loss
from nmtkit.training.micro_batches import first_update_rate, fit_limit, heaviest_micro_batches, settle_tokens_per_pass
from nmtkit.training.state import TrainingState, read_state
from tests.training.updates import ALONE, VOCAB, config, plan_of, random_pairs, run, tiny_state

NUM_PAIRS = 60
training_config = partial(config, tokens_per_update=150, tokens_per_pass=60, warmup_steps=5, gradient_clip_norm=0.5)
new_state = partial(tiny_state, dtype=torch.float64)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PairData:
    """Pairs from the even lines of a corpus."""
    return random_pairs(tmp_path_factory.mktemp("data") / "train", range(2, 2 * NUM_PAIRS + 1, 2), seed=3)


@contextmanager
def leaving_no_trace(state: TrainingState) -> Iterator[None]:
    """Check that what is done changes neither weights, gradients, the optimiser nor random numbers."""
    before, random = [parameter.detach().clone() for parameter in state.model.parameters()], torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(state.model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in state.model.parameters())
    assert not state.optimizer.state


def size_of(batch: Batch) -> int:
    return batch.source.numel() + batch.target_in.numel()


def limit_memory(monkeypatch: pytest.MonkeyPatch, tokens: int, when: str = "forward") -> list[int]:
    """Lets passes of more padded tokens run out of memory, and lists the sizes of all that are tried."""
    tried: list[int] = []

    def limited(model: Any, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        tried.append(size_of(batch))
        loss, nll = batch_loss(model, batch, label_smoothing)
        if size_of(batch) > tokens:
            if when == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory")

            def fail(_gradient: Tensor) -> None:
                handle.remove()
                assert any(parameter.grad is not None for parameter in model.parameters())
                raise torch.OutOfMemoryError("CUDA out of memory")

            # The embeddings' gradient comes last: those of all layers are there already.
            handle = model.output_embedding.register_hook(fail)
        return loss, nll

    monkeypatch.setattr(loop, "batch_loss", limited)
    return tried


# ---- an update whose passes do not fit


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("tokens", [100, 40])
def test_an_update_that_ran_out_of_memory_equals_one_that_did_not(
    data: PairData, monkeypatch: pytest.MonkeyPatch, when: str, tokens: int
) -> None:
    training = training_config(adam_epsilon=1e-6)  # else Adam makes steps of the rounding of gradients that are zero
    whole, halved = new_state(training), new_state(training)
    expected = run(whole, data, training, 6)
    tried = limit_memory(monkeypatch, tokens, when)
    found = run(halved, data, training, 6)
    assert any(size > tokens for size in tried)
    for update, other in zip(found, expected, strict=True):
        assert (update.loss, update.nll) == pytest.approx((other.loss, other.nll), rel=1e-12)
        assert update.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-12)
        assert (update.target_tokens, update.real_tokens) == (other.target_tokens, other.real_tokens)
    for mine, theirs in zip(halved.model.parameters(), whole.model.parameters(), strict=True):
        assert (mine - theirs).abs().max() < 1e-12


def test_after_running_out_of_memory_passes_are_cut_smaller_and_a_save_knows(
    data: PairData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    training = training_config()
    tried = limit_memory(monkeypatch, 80)
    state = new_state(training, dtype=torch.float32, dropout=0.2)
    with logged.at_level(logging.WARNING):
        run(state, data, training, 6)
    limit = state.progress.tokens_per_pass
    assert limit in (45, 33, 24)
    assert logged.messages[0].startswith("update 1: out of memory with micro-batches of 60 tokens; they were halved")
    assert len(logged.messages) == {45: 1, 33: 2, 24: 3}[limit]
    folder = state.save(Run(tmp_path), {})
    run(state, data, training, 3)
    tried.clear()
    resumed = new_state(training, dtype=torch.float32, dropout=0.2)
    resumed.load(folder, read_state(folder))
    assert resumed.progress.tokens_per_pass == limit
    run(resumed, data, training, 3)
    assert all(torch.equal(a, b) for a, b in zip(state.model.parameters(), resumed.model.parameters(), strict=True))


def test_a_pair_that_alone_is_too_large_is_named_by_its_line(data: PairData, monkeypatch: pytest.MonkeyPatch) -> None:
    training = training_config()
    longest = max(range(NUM_PAIRS), key=lambda pair: data.source_lengths[pair] + data.target_lengths[pair])
    size = int(data.source_lengths[longest] + data.target_lengths[longest])
    limit_memory(monkeypatch, size - 1)
    with pytest.raises(NmtkitError, match=rf"out of memory for a single pair \(line {2 * longest + 2} of the corpora"):
        run(new_state(training), data, training, len(plan_of(data, training).updates))


def test_running_out_of_a_cpus_memory_is_recognised_and_a_bug_stays_a_bug(
    data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = training_config()
    failures = [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    ]

    def failing(*arguments: Any) -> tuple[Tensor, Tensor]:
        if failures:
            raise failures.pop()
        return batch_loss(*arguments)

    monkeypatch.setattr(loop, "batch_loss", failing)
    state = new_state(training)
    run(state, data, training, 1)
    assert state.progress.tokens_per_pass == 45
    failures.append(RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(state, data, training, 1)


def test_every_piece_of_a_pass_has_dropout_of_its_own() -> None:
    whole = MicroBatch(3, 1, np.arange(9))
    first, second = whole.halves()
    pieces = [whole, first, second, *first.halves(), *second.halves()]
    assert [piece.half for piece in pieces] == [1, 2, 3, 4, 5, 6, 7]
    assert [len(piece.pairs) for piece in pieces] == [9, 4, 5, 2, 2, 2, 3]
    seeds = [micro_batch_seed(1, 2, 0, piece.number, half=piece.half) for piece in pieces]
    assert len(set(seeds)) == 7
    assert seeds[0] == micro_batch_seed(1, 2, 0, 3)
    assert not set(seeds) & {micro_batch_seed(1, 2, 0, number) for number in range(3)}


# ---- before the first update


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize("tokens_per_pass", [20, 60, 10**6])
def test_the_heaviest_passes_are_those_of_the_whole_plan(data: PairData, processes: int, tokens_per_pass: int) -> None:
    plan = plan_of(data, training_config())
    everything = [
        passed
        for pairs in plan.updates
        for share in shares_of(data, pairs, tokens_per_pass, processes, "cpu")
        for passed in share
    ]

    def attention(pairs: np.ndarray) -> int:
        source, target = int(data.source_lengths[pairs].max()), int(data.target_lengths[pairs].max())
        return len(pairs) * (source**2 + target**2 + source * target)

    found = heaviest_micro_batches(plan, data, tokens_per_pass, Workers(0, processes, torch.device("cpu"), "float32"))
    assert max(padded_tokens(data, pairs) for pairs in found) == max(padded_tokens(data, p) for p in everything)
    assert max(attention(pairs) for pairs in found) == max(attention(pairs) for pairs in everything)
    assert len(found) <= 2


def test_trying_the_heaviest_passes_leaves_no_trace(data: PairData, monkeypatch: pytest.MonkeyPatch) -> None:
    training = training_config()
    plain, tried = (new_state(training, dtype=torch.float32, dropout=0.3) for _ in range(2))
    sizes = limit_memory(monkeypatch, 10**6)
    with leaving_no_trace(tried):
        settle_tokens_per_pass(tried, data, ALONE)
    assert sizes == [padded_tokens(data, p) for p in heaviest_micro_batches(plan_of(data, training), data, 60, ALONE)]
    expected = [update.loss for update in run(plain, data, training, 6)]
    assert [update.loss for update in run(tried, data, training, 6)] == expected
    assert all(torch.equal(a, b) for a, b in zip(tried.model.parameters(), plain.model.parameters(), strict=True))


# ---- how fast the micro-batches of the first update are


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
def test_the_rate_is_that_of_the_first_update_and_leaves_no_trace(
    data: PairData, monkeypatch: pytest.MonkeyPatch, r_drop: float
) -> None:
    training = training_config(r_drop=r_drop)
    plain, timed = new_state(training, dropout=0.3), new_state(training, dropout=0.3)
    timed.progress.tokens_per_pass = 60
    clock = itertools.count(0.0, 0.25)  # each micro-batch, and the step, takes a quarter of a second
    monkeypatch.setattr(memory.time, "perf_counter", lambda: next(clock))
    with leaving_no_trace(timed):
        rate = first_update_rate(timed, data, ALONE)
    pairs = plan_of(data, training).updates[0]
    passes = shares_of(data, pairs, 60, 1, "cpu")[0]
    assert 2 < len(passes) < memory.TRIED_SECONDS / 0.25
    forward = forward_flops(timed.model.config, VOCAB, data.source_lengths[pairs], data.target_lengths[pairs])
    assert rate == (2 if r_drop else 1) * TRAINING_FACTOR * forward.flops / (0.25 * (len(passes) + 1))
    expected = [update.loss for update in run(plain, data, training, 3)]
    timed.progress.tokens_per_pass = 0
    assert [update.loss for update in run(timed, data, training, 3)] == expected


def test_slow_micro_batches_are_not_all_measured(data: PairData, monkeypatch: pytest.MonkeyPatch) -> None:
    state = new_state(training_config())
    state.progress.tokens_per_pass = 60
    tried = limit_memory(monkeypatch, 10**6)
    clock = itertools.count(0.0, memory.TRIED_SECONDS + 1)
    monkeypatch.setattr(memory.time, "perf_counter", lambda: next(clock))
    assert first_update_rate(state, data, ALONE) is not None
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("stored", "stated", "expected", "words"),
    [
        (48, 60, 48, "48 tokens, kept from earlier in this run"),
        (0, 60, 60, "60 tokens, set in the recipe"),
        (0, 0, ALONE.tokens_per_pass, "tokens, default for the device"),
    ],
)
def test_the_limit_is_the_runs_else_the_recipes_else_the_devices(
    data: PairData, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture,
    stored: int, stated: int, expected: int, words: str,
) -> None:  # fmt: skip
    training = training_config(tokens_per_pass=stated)
    state = new_state(training)
    state.progress.tokens_per_pass = stored
    with logged.at_level(logging.INFO):
        settle_tokens_per_pass(state, data, ALONE)
    assert state.progress.tokens_per_pass == expected
    assert words in logged.messages[0]
    limits: list[int] = []

    def note(data: PairData, pairs: np.ndarray, limit: int, *others: Any) -> Any:
        limits.append(limit)
        return shares_of(data, pairs, limit, *others)

    monkeypatch.setattr(loop, "shares_of", note)
    run(state, data, training, 1)
    assert limits == [expected]


def test_a_limit_that_does_not_fit_is_lowered_before_the_first_update(
    data: PairData, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    training = training_config()
    state = new_state(training)
    limit_memory(monkeypatch, 90)
    with logged.at_level(logging.INFO):
        settle_tokens_per_pass(state, data, ALONE)
        run(state, data, training, len(plan_of(data, training).updates))
    assert state.progress.tokens_per_pass == 45
    assert logged.messages[0] == "out of memory with micro-batches of 60 tokens; trying 45"
    assert not any("update 1:" in message for message in logged.messages)


def test_a_pair_too_large_is_named_before_the_first_update(data: PairData, monkeypatch: pytest.MonkeyPatch) -> None:
    training = training_config()
    limit_memory(monkeypatch, 1)
    with pytest.raises(NmtkitError, match=r"out of memory for a single pair \(line \d+ of the corpora"):
        settle_tokens_per_pass(new_state(training), data, ALONE)


# ---- fitted to memory


def straight(foot: int, slope: float, memory: float = float("inf")) -> Callable[[int], tuple[int, int] | None]:
    def measure(limit: int) -> tuple[int, int] | None:
        size = limit - limit % 10
        used = int(foot + slope * size)
        return (size, used) if used <= memory else None

    return measure


@pytest.mark.parametrize("available", [60_000, 200_000, 1_000_000])
def test_the_limit_fitted_to_memory_fills_what_is_available(available: int) -> None:
    limit = fit_limit(straight(10_000, 3.0), available, needed=10**7)
    assert limit % 256 == 0
    assert 10_000 + 3 * limit <= available < 10_000 + 3 * (limit + 2 * 256)


def test_the_limit_fitted_to_memory_is_no_more_than_an_update_needs() -> None:
    assert fit_limit(straight(10_000, 3.0), 10**9, needed=30_000) == 30_000
    assert fit_limit(straight(10_000, 3.0), 10**9, needed=700) == 700


def test_the_limit_is_one_that_was_tried_when_memory_is_too_small_for_more() -> None:
    assert fit_limit(straight(0, 1.0, memory=3000), 3000, needed=10**6) == 2040
    assert fit_limit(straight(0, 1.0, memory=1000), 1000, needed=10**6) == 1536
    assert fit_limit(straight(0, 1.0), 100, needed=10**6) == 256


def test_the_memory_of_a_device_decides_the_limit_of_all_processes(
    data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = training_config(tokens_per_update=10**6, tokens_per_pass=0)
    state = new_state(training)
    weights = sum(parameter.nbytes for parameter in state.model.parameters())
    used = {"now": 0, "peak": 0}
    monkeypatch.setattr(memory, "PROBED_TOKENS", (100, 300))
    monkeypatch.setattr(memory, "ROUNDED_TO", 10)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: used.update(peak=0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: used["peak"])
    total = 100_000
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (80_000 + 3 * weights, total))

    def counting(model: Any, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        tokens = max(batch.source.numel(), batch.target_in.numel())
        used["peak"] = max(used["peak"], 1000 + 100 * tokens)
        return batch_loss(model, batch, label_smoothing)

    monkeypatch.setattr(loop, "batch_loss", counting)

    class OfTwo(Workers):
        def gather(self, values: list[Any]) -> list[Any]:
            return [*values, 10**9]

    workers = OfTwo(0, 2, torch.device("cpu"), "float32")
    plan = plan_of(data, training)
    # 80,000 are left besides Adam's moments and the exchange, 10,000 stay free, 69,000 hold 690 tokens.
    largest = max(data.source_lengths.max(), data.target_lengths.max()) * NUM_PAIRS // 2
    found = memory._fit_to_memory(state, data, plan, workers)
    assert found == min(690, largest)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (36_000 + 3 * weights, total))
    assert memory._fit_to_memory(state, data, plan, workers) == 250
    smaller = OfTwo(0, 2, torch.device("cpu"), "float32")
    monkeypatch.setattr(smaller.__class__, "gather", lambda _self, values: [*values, 77])
    assert memory._fit_to_memory(state, data, plan, smaller) == 77


# ---- what the log says


def test_the_log_says_what_an_update_is_and_what_was_left_out(data: PairData, logged: pytest.LogCaptureFixture) -> None:
    training = training_config(tokens_per_update=12, tokens_per_pass=30, max_steps=9)
    state = new_state(training)
    with logged.at_level(logging.INFO):
        settle_tokens_per_pass(state, data, ALONE)
    plan = plan_of(data, training)
    passes = [passed for pairs in plan.updates for passed in shares_of(data, pairs, 30, 1, "cpu")[0]]
    kept = np.concatenate(plan.updates)
    real = int(data.source_lengths[kept].sum() + data.target_lengths[kept].sum())
    padding = 100 * (1 - real / sum(padded_tokens(data, passed) for passed in passes))
    assert padding > 0
    tokens, average = data.target_lengths[kept].sum() / len(plan.updates), round(len(kept) / len(plan.updates))
    assert logged.messages[0] == (
        f"updates average {tokens:.0f} target tokens (at most 12) and {counted(average, 'pair')}, "
        f"in {len(passes) / len(plan.updates):.1f} micro-batches on one device (up to 30 tokens, set in the recipe); "
        f"{padding:.1f} % of all tokens are padding; {len(plan.updates)} updates per epoch"
    )
    assert len(logged.messages) == 1  # pairs that are too long are reported with the first update
    count = len(plan.updates)
    for steps, more in (
        (500 * count, {}),
        (501 * count, {"patience_epochs": 9}),
        (501 * count, {"max_minutes": 1.0}),
        (501 * count, {}),
    ):
        logged.clear()
        settle_tokens_per_pass(new_state(training_config(tokens_per_update=12, max_steps=steps, **more)), data, ALONE)
    assert f"max_steps = {501 * count} is 501 epochs, and a model may know the training data by heart" in logged.text
    assert logged.text.count("by heart") == 1


def test_a_model_that_does_not_fit_is_told_apart_from_batches_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(
        NmtkitError, match="the model itself does not fit, whatever the batch size; take a smaller model"
    ):
        new_state(training_config())
