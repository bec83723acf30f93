"""Several processes make the same updates as one, in memory enough or not; and they notice when one of them is gone."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from nmtkit.config.schema import TrainingConfig
from nmtkit.data.shards import PairData
from nmtkit.distributed import workers as workers_module
from nmtkit.distributed.heartbeat import Heartbeat, meet
from nmtkit.distributed.workers import Workers, check_processes
from nmtkit.errors import NmtkitError, PeerLostError
from nmtkit.training.loop import Update
from nmtkit.training.state import TrainingState
from tests.conftest import message_of
from tests.forked import free_port
from tests.training.updates import (
    TINY,
    largest_difference,
    plan_of,
    random_pairs,
    run,
    run_two_processes,
    tiny_state,
)

NUM_PAIRS = 41
TRAINING = {
    "tokens_per_update": 90, "tokens_per_pass": 30, "schedule": "constant", "peak_learning_rate": 0.003,
    "warmup_steps": 5, "gradient_clip_norm": 0.5, "adam_epsilon": 1e-6,
}  # fmt: skip
UPDATES = 50

WORKER = """
import itertools, json, sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import TrainingConfig
from nmtkit.data.batch import make_batch
from nmtkit.data.shards import PairData
from nmtkit.training import loop
from nmtkit.training.loop import train_updates
from nmtkit.training.micro_batches import settle_tokens_per_pass
from nmtkit.training.loss import batch_loss
from nmtkit.training.state import TrainingState, read_state
from nmtkit.distributed.workers import Workers, check_processes
from nmtkit.run import Run

folder, output, model, values, updates = Path(sys.argv[1]), Path(sys.argv[2]), *map(json.loads, sys.argv[3:6])
data, training = PairData(folder), TrainingConfig.model_validate(values)
results = {}

def new_state(**changes):
    config = ModelConfig.model_validate({**model, **changes})
    return TrainingState(config, training, (20, 20), workers.device, torch.float64)

def run(name, state, count):
    flags = lambda: [1.0 + workers.rank, 10.0]
    made = list(itertools.islice(train_updates(state, data, workers, flags), count))
    results[name] = {"steps": [update.step for update in made], "losses": [update.loss for update in made]}
    results[name]["norms"] = [[update.nll, update.gradient_norm] for update in made]
    results[name]["counts"] = [[u.target_tokens, u.real_tokens, u.flops, u.flags] for u in made]
    results[name]["tokens_per_pass"] = state.progress.tokens_per_pass
    save_file(state.model.state_dict(), output / f"{name}-{workers.rank}.safetensors")

def small_memory(model, batch, label_smoothing):
    if workers.rank == 1 and len(batch.source) > 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return batch_loss(model, batch, label_smoothing)

with Workers.start("cpu", "float32", threads=1) as workers:
    run("plain", new_state(), updates)

    loop.batch_loss = small_memory
    run("small", new_state(), 6)
    state = new_state()
    settle_tokens_per_pass(state, data, workers)
    results["settled"] = state.progress.tokens_per_pass
    loop.batch_loss = batch_loss

    # Two processes, then one (the first, for itself), then two; the pairs of every update are written down.
    pairs = results["pairs"] = []
    def noting(data, indices):
        pairs[-1].extend(int(index) for index in indices)
        return make_batch(data, indices)
    loop.make_batch = noting
    def note(state, count, workers):
        made = train_updates(state, data, workers)
        for _ in range(count):
            pairs.append([])
            next(made)
    def resume(state, step):
        folder = Run(output).resume_state(step)
        state.load(folder, read_state(folder))
    note(new_state(dropout=0.2), 9, workers)
    state = new_state(dropout=0.2)
    note(state, 3, workers)
    if workers.is_main:
        state.save(Run(output), {})
        alone = Workers(0, 1, workers.device, "float32")
        state = new_state(dropout=0.2)
        resume(state, 3)
        note(state, 3, alone)
        state.save(Run(output), {})
    workers.wait()
    state = new_state(dropout=0.2)
    resume(state, 6)
    note(state, 3, workers)

    parameters = [torch.arange(6.0, dtype=torch.float64).view(2, 3), torch.ones(4, dtype=torch.float64)]
    parameters.append(torch.ones(3, dtype=torch.float64))  # the loss does not depend on it
    for repetition in range(2):
        parameters[0].grad = torch.full((2, 3), 1.0 + workers.rank + repetition, dtype=torch.float64)
        parameters[1].grad = None if workers.rank else torch.arange(4.0, dtype=torch.float64)
        workers.sum_gradients(parameters)
    results["sums"] = [parameter.grad.tolist() for parameter in parameters[:2]] + [parameters[2].grad]
    results["gathered"] = workers.gather([workers.rank, "x"])
    (output / f"results-{workers.rank}.json").write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "train"
    random_pairs(folder, range(1, NUM_PAIRS + 1))
    return folder


@pytest.fixture(scope="module")
def two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left."""
    output = tmp_path_factory.mktemp("two")
    run_two_processes(WORKER, output, str(folder), str(output), json.dumps(TINY), json.dumps(TRAINING), str(UPDATES))
    return output


def results_of(two: Path) -> list[dict[str, Any]]:
    return [json.loads((two / f"results-{rank}.json").read_text()) for rank in range(2)]


def alone(folder: Path, updates: int) -> tuple[TrainingState, list[Update]]:
    """What one process makes of the same updates."""
    training = TrainingConfig.model_validate(TRAINING)
    state = tiny_state(training, torch.float64)
    return state, run(state, PairData(folder), training, updates)


@pytest.fixture(scope="module")
def one(folder: Path) -> tuple[TrainingState, list[Update]]:
    return alone(folder, UPDATES)


def test_50_updates_of_two_processes_equal_those_of_one(
    folder: Path, two: Path, one: tuple[TrainingState, list[Update]]
) -> None:
    expected = dict(one[0].model.state_dict())
    both = [load_file(two / f"plain-{rank}.safetensors") for rank in range(2)]
    assert largest_difference(both[0], both[1]) == 0
    assert largest_difference(both[0], expected) < 1e-9
    assert largest_difference(expected, dict(alone(folder, 0)[0].model.state_dict())) > 0.01
    for result in results_of(two):
        assert result["plain"]["steps"] == list(range(1, UPDATES + 1))
        assert result["plain"]["tokens_per_pass"] == 0


def test_two_processes_report_the_numbers_of_one(
    folder: Path, two: Path, one: tuple[TrainingState, list[Update]]
) -> None:
    training, updates = TrainingConfig.model_validate(TRAINING), one[1]
    plan = plan_of(PairData(folder), training)
    assert any(len(pairs) % 2 for pairs in plan.updates)  # so the shares are not all equal
    for result in results_of(two):
        assert result["plain"]["losses"] == pytest.approx([update.loss for update in updates], rel=1e-9)
        norms = np.array([[update.nll, update.gradient_norm] for update in updates])
        assert np.array(result["plain"]["norms"]) == pytest.approx(norms, rel=1e-6)
        counts = [[update.target_tokens, update.real_tokens, update.flops, [3.0, 20.0]] for update in updates]
        assert result["plain"]["counts"] == counts


def test_an_update_in_which_one_of_two_processes_runs_out_of_memory_stays_the_same(folder: Path, two: Path) -> None:
    both = [load_file(two / f"small-{rank}.safetensors") for rank in range(2)]
    assert largest_difference(both[0], both[1]) == 0
    assert largest_difference(both[0], dict(alone(folder, 6)[0].model.state_dict())) < 1e-12
    first, second = results_of(two)
    assert first["small"] == second["small"]
    assert first["small"]["steps"] == [1, 2, 3, 4, 5, 6]
    assert first["small"]["losses"] == pytest.approx(first["plain"]["losses"][:6], rel=1e-12)
    assert 0 < first["small"]["tokens_per_pass"] < 20


def test_a_limit_that_does_not_fit_one_process_is_lowered_on_all(two: Path) -> None:
    first, second = results_of(two)
    assert first["settled"] == second["settled"] < 20


def test_a_run_of_two_processes_then_one_then_two_sees_the_same_pairs_in_the_same_updates(
    folder: Path, two: Path
) -> None:
    data, training = PairData(folder), TrainingConfig.model_validate(TRAINING)
    planned = [sorted(pairs.tolist()) for epoch in range(3) for pairs in plan_of(data, training, epoch).updates]
    first, second = (result["pairs"] for result in results_of(two))
    assert (len(first), len(second)) == (18, 15)
    uninterrupted = [sorted(mine + theirs) for mine, theirs in zip(first[:9], second[:9], strict=True)]
    interrupted = [sorted(mine + theirs) for mine, theirs in zip(first[9:12], second[9:12], strict=True)]
    interrupted += [sorted(mine) for mine in first[12:15]]
    interrupted += [sorted(mine + theirs) for mine, theirs in zip(first[15:], second[12:], strict=True)]
    assert uninterrupted == interrupted == planned[:9]


def test_gradients_are_summed_and_missing_ones_count_as_zeros(two: Path) -> None:
    for result in results_of(two):
        assert result["sums"] == [[[5.0] * 3] * 2, [0.0, 1.0, 2.0, 3.0], None]
        assert result["gathered"] == [0, "x", 1, "x"]


# ---- who is still there


@pytest.fixture
def stores() -> list[Store]:
    """Connections to one store."""
    address = f"tcp://127.0.0.1:{free_port()}"
    found = []
    for rank in range(4):
        place = f"{address}?rank={min(rank, 1)}&world_size=-1"
        store, _, _ = next(rendezvous(place, timeout=timedelta(seconds=20)))
        found.append(store)
    return found


def beat(
    stores: list[Store], rank: int, said: list[str], number: int = 3, parent: int = 0, **changes: float
) -> Heartbeat:
    seconds = {"interval_seconds": 0.05, "silence_seconds": 0.5, "farewell_seconds": 0.25, **changes}
    return Heartbeat(PrefixStore("test", stores[rank]), rank, number, said.append, parent=parent, **seconds)


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_that_gives_no_sign_of_life_is_named(stores: list[Store]) -> None:
    said: list[str] = []
    hearts = [beat(stores, 0, said, silence_seconds=1.0), beat(stores, 1, [], silence_seconds=60.0)]
    PrefixStore("test", stores[2]).set("heartbeat/2", "7")  # killed after its seventh second
    wait_for(lambda: said)
    assert said == ["process 2 of 3 gave no sign of life for 1 seconds"]
    told = "process 2 of 3 answers no more: killed, or its machine or network is gone"
    wait_for(lambda: hearts[0].blame() == told)  # the other one may have had no time for a beat
    for heart in hearts:
        heart.stop()


def test_slow_processes_and_those_that_ended_are_not_given_up(stores: list[Store]) -> None:
    said: list[str] = []
    hearts = [beat(stores, rank, said, silence_seconds=2.0) for rank in range(3)]
    hearts[2].stop()
    time.sleep(3)
    assert said == []
    assert hearts[0].blame() == "process 2 of 3 ended before the others"
    hearts[1].stop()
    hearts[0].stop()


def test_what_a_process_failed_of_is_told_by_the_others(stores: list[Store]) -> None:
    said: list[str] = []
    hearts = [beat(stores, rank, said, silence_seconds=60.0) for rank in range(3)]
    hearts[1].stop("the disk is full")
    assert hearts[0].blame() == "process 1 of 3 failed: the disk is full"
    hearts[0].stop("process 1 of 3 failed: the disk is full", is_of_others=True)
    assert hearts[2].blame() == "process 1 of 3 failed: the disk is full"
    wait_for(lambda: said)
    assert said == ["process 1 of 3 failed: the disk is full"]
    hearts[2].stop()


def test_process_0_tells_that_its_parent_is_gone_before_any_process_stops(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: stopped.append(arguments))
    PrefixStore("test", stores[1]).set("heartbeat/0", "1")
    hearts = [beat(stores, 1, [], number=2, parent=os.getpid(), silence_seconds=60.0)]  # none is its own parent
    time.sleep(0.5)
    assert (stopped, caplog.messages) == ([], [])
    hearts.append(beat(stores, 0, [], number=2, parent=os.getpid(), silence_seconds=60.0))
    wait_for(lambda: len(stopped) == 2)
    for heart in hearts:
        heart.stop()
    assert stopped == [(os.getpid(), signal.SIGTERM)] * 2
    assert caplog.messages == ["the process that started this one is gone; stopping as by SIGTERM"]


def call_at_once(function: Callable[[int], object], ranks: Iterable[int]) -> None:
    """Calls a function of each rank in a thread, one a moment after the other."""
    threads = [threading.Thread(target=function, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_all_who_meet_go_by_the_same_new_name_whatever_an_earlier_attempt_left(stores: list[Store]) -> None:
    names: dict[int, list[str]] = {rank: [] for rank in range(3)}
    for attempt in range(3):
        call_at_once(
            lambda rank: names[rank].append(meet(stores[rank], rank, 3, "cpu", timedelta(seconds=20))),
            ((2, 1, 0), (0, 2, 1), (1, 0, 2))[attempt],
        )
    assert names[0] == names[1] == names[2]
    assert len(set(names[0])) == 3


def test_processes_with_different_devices_do_not_meet(stores: list[Store]) -> None:
    faults: dict[int, str] = {}

    def join(rank: int) -> None:
        faults[rank] = message_of(
            lambda: meet(stores[rank], rank, 3, "cpu" if rank == 1 else "cuda", timedelta(seconds=20)), NmtkitError
        )

    call_at_once(join, range(3))
    assert set(faults.values()) == {
        "--device: the processes have different devices (process 0: cuda, process 1: cpu, process 2: cuda); choose "
        "--device cpu or cuda"
    }
    assert len(faults) == 3


class Blaming(Heartbeat):
    def __init__(self) -> None:
        self.told: list[tuple[str | None, bool]] = []

    def blame(self, reason: str = "") -> str:
        return f"process 1 of 2 answers no more: {reason}"

    def stop(self, failure: str | None = None, *, is_of_others: bool = False) -> None:
        self.told.append((failure, is_of_others))


def test_a_broken_exchange_names_the_process_to_blame_and_a_bug_stays_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = Blaming()
    workers = Workers(0, 2, torch.device("cpu"), "float32", heartbeat)
    errors = [RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:7"), None]

    def failing(_tensor: Tensor) -> None:
        raise errors[0] or RuntimeError("sizes do not match")

    monkeypatch.setattr(torch.distributed, "all_reduce", failing)
    with (
        pytest.raises(
            PeerLostError,
            match=r"^process 1 of 2 answers no more: \[gloo.* by peer \[127.0.0.1\]:7; the same command goes on from ",
        ),
        workers,
    ):
        workers.sum(torch.ones(2))
    assert heartbeat.told == [(f"process 1 of 2 answers no more: {errors[0]}", True)]
    errors[0] = None
    with pytest.raises(RuntimeError, match="sizes do not match"):
        workers.sum_gradients([torch.ones(2)])
    with pytest.raises(NmtkitError), workers:
        raise NmtkitError("a line\nof two")
    assert heartbeat.told[1:] == [("a line of two", False)]


@pytest.mark.parametrize(("kind", "available"), [("cuda", 2), ("mps", 1)])
def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch, kind: str, available: int) -> None:
    monkeypatch.setattr(workers_module, "choose_device", lambda _: torch.device(kind))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_processes(available, "auto")
    with pytest.raises(NmtkitError, match=rf"^{available + 1} processes on a machine with {available} {kind} device"):
        check_processes(available + 1, "auto")
    monkeypatch.setattr(workers_module, "choose_device", lambda _: torch.device("cpu"))
    check_processes(available + 1, "auto")  # any number may share a CPU
