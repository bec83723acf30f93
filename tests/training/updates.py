"""Random pairs of tokens to train on, a tiny model and updates of it, and workers of two processes."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import TrainingConfig
from nmtkit.data import batching
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.distributed.workers import Workers
from nmtkit.run import Run
from nmtkit.training.loop import Update, train_updates
from nmtkit.training.state import TrainingState, whole_states
from tests.forked import free_port, run_programs

VOCAB = 20
ALONE = Workers(0, 1, torch.device("cpu"), "float32")
TINY = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "dropout": 0.0}
Weights = dict[str, Tensor]


def random_pairs(folder: Path, lines: Iterable[int], seed: int = 1) -> PairData:
    """Write a pair of 1 to 12 random tokens per side for each of the corpus lines."""
    lines, rng = list(lines), np.random.default_rng(seed)
    lengths = rng.integers(1, 13, size=(len(lines), 2))
    pairs = [tuple(rng.integers(4, VOCAB, size=length).tolist() for length in pair) for pair in lengths]
    with ShardWriter(folder, (VOCAB, VOCAB)) as writer:
        writer.add(pairs, lines)
    return PairData(folder)


def tiny_state(training: TrainingConfig, dtype: torch.dtype = torch.float32, **model: object) -> TrainingState:
    config = ModelConfig.model_validate({**TINY, **model})
    return TrainingState(config, training, (VOCAB, VOCAB), ALONE.device, dtype)


def config(**changes: object) -> TrainingConfig:
    values = {"tokens_per_update": 60, "tokens_per_pass": 40, "schedule": "constant", "peak_learning_rate": 0.003}
    return TrainingConfig.model_validate({**values, "warmup_steps": 3, **changes})


def plan_of(data: PairData, training: TrainingConfig, epoch: int = 0) -> batching.EpochPlan:
    return batching.plan_of(data, training, epoch)


def run(
    state: TrainingState, data: PairData, training: TrainingConfig, updates: int, workers: Workers = ALONE
) -> list[Update]:
    state.training = training
    return list(itertools.islice(train_updates(state, data, workers), updates))


def equal(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def check_resume(
    new_state: Callable[[], TrainingState], data: PairData, folder: Path, workers: Workers = ALONE
) -> TrainingState:
    """Six updates at once, and three, saved, and three more by another state, are the same bit for bit."""
    whole = new_state()
    run(whole, data, whole.training, 6, workers)
    first = new_state()
    run(first, data, first.training, 3, workers)
    second = new_state()
    first.save(Run(folder), {})
    second.load(*whole_states(Run(folder), 1)[0])
    run(second, data, second.training, 3, workers)
    assert second.progress == whole.progress
    for name, tensors in whole.tensors().items():
        assert equal(tensors, second.tensors()[name])
    return second


def largest_difference(left: Weights, right: Weights) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in right)


def run_two_processes(script: str, folder: Path, *arguments: str) -> None:
    """Run a Python program as both ranks of one group."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    run_programs(script, list(arguments), [folder / f"{rank}.log" for rank in range(2)], environments)
