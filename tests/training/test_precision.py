"""`precision = "auto"` is settled once, by a trial where a CPU has bf16 instructions, and kept by the run."""

import itertools
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe, stored_recipe
from nmtkit.config.schema import Recipe, TrainingConfig
from nmtkit.distributed.workers import ComputedPrecision, Workers
from nmtkit.errors import NmtkitError
from nmtkit.json_toml import read_json
from nmtkit.run import Run
from nmtkit.training import precision
from nmtkit.training.precision import settle_precision, trial_rates
from nmtkit.training.resume import verify_resume
from nmtkit.training.session import train
from nmtkit.training.state import TrainingState
from tests.conftest import TinyProject
from tests.training.updates import ALONE, TINY

FASTER, SLOWER = {"float32": 1e9, "bf16": 2e9}, {"float32": 2e9, "bf16": 1e9}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What trials find from now on, and how many were made; on a CPU with bf16 instructions."""
    outcome: dict[str, Any] = {"rates": FASTER, "trials": 0, "has_instructions": True}

    def trial(*_: object) -> dict[str, float]:
        outcome["trials"] += 1
        return dict(outcome["rates"])

    monkeypatch.setattr(precision, "trial_rates", trial)
    monkeypatch.setattr(precision, "has_bf16_instructions", lambda: outcome["has_instructions"])
    return outcome


def recipe_of(tiny: TinyProject, *overrides: str) -> Recipe:
    return load_recipe(str(tiny.recipe), overrides)


def train_with(tiny: TinyProject, run: Path, stated: str, steps: int) -> None:
    recipe = recipe_of(tiny, f"training.precision={stated}", f"training.max_steps={steps}")
    train(recipe, run, Workers.start("cpu", recipe.training.precision, 1))


def test_what_a_trial_finds_is_stored_and_kept_on_resume(tiny: TinyProject, run: Path, found: dict[str, Any]) -> None:
    train_with(tiny, run, "auto", 4)
    assert found["trials"] == 1
    assert stored_recipe(run / "recipe.toml", "run").training.precision == "bf16"
    found["rates"] = SLOWER
    train_with(tiny, run, "auto", 8)
    assert found["trials"] == 1
    states = [read_json(folder / "state.json") for folder in Run(run).resume_states()]
    assert [state["step"] for state in states] == [4, 8]
    assert {(state["precision"], state["recipe"]["training"]["precision"]) for state in states} == {("bf16", "bf16")}
    recipe = recipe_of(tiny, "training.precision=auto", "training.max_steps=8")
    assert verify_resume(recipe, run, Workers.start("cpu", "auto", 1)) == (5, 8)
    with pytest.raises(NmtkitError, match=r"changed: training\.precision = 'float32' \(was 'bf16'\)"):
        train_with(tiny, run, "float32", 8)


@pytest.mark.parametrize(
    ("rates", "has_instructions", "workers", "saved", "trials", "chosen"),
    [
        (FASTER, True, ALONE, None, 1, "bf16"),
        (SLOWER, True, ALONE, None, 1, "float32"),
        ({"float32": 1e9, "bf16": 1.19e9}, True, ALONE, None, 1, "float32"),  # not clearly
        ({"float32": 1e9, "bf16": 1.21e9}, True, ALONE, None, 1, "bf16"),
        (FASTER, False, ALONE, None, 0, "float32"),
        (FASTER, True, replace(ALONE, device=torch.device("cuda", 0), precision="bf16"), None, 0, "bf16"),
        # A run of before, which stored auto, goes on in what it computed in.
        (FASTER, True, ALONE, {"precision": "float32", "recipe": {"training": {"precision": "auto"}}}, 0, "float32"),
    ],
)
def test_bf16_is_taken_only_where_a_trial_shows_it_clearly_faster(
    tiny: TinyProject, found: dict[str, Any], rates: dict[str, float], has_instructions: bool, workers: Workers,
    saved: dict[str, Any] | None, trials: int, chosen: str,
) -> None:  # fmt: skip
    found.update(rates=rates, has_instructions=has_instructions)
    recipe, workers = settle_precision(recipe_of(tiny, "training.precision=auto"), state_of(), saved, workers)
    assert (recipe.training.precision, workers.precision, found["trials"]) == (chosen, chosen, trials)


def test_all_processes_take_what_the_first_one_found(
    tiny: TinyProject, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "gather", lambda self, values: ["float32", *values] if values == ["bf16"] else values)
    second = replace(ALONE, rank=1, num_processes=2)
    recipe, workers = settle_precision(recipe_of(tiny, "training.precision=auto"), state_of(), None, second)
    assert (recipe.training.precision, workers.precision, workers.rank) == ("float32", "float32", 1)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "float32"), ("cuda", "bf16")])
def test_all_processes_take_float32_where_another_one_has_no_bf16(
    tiny: TinyProject, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, device: str, precision: ComputedPrecision
) -> None:
    monkeypatch.setattr(Workers, "gather", lambda self, values: [*values, (False, "float32")])
    first = Workers(0, 2, torch.device(device), precision)
    recipe, workers = settle_precision(recipe_of(tiny, "training.precision=auto"), state_of(), None, first)
    assert (recipe.training.precision, workers.precision, found["trials"]) == ("float32", "float32", 0)


@pytest.mark.parametrize("rates", [FASTER, SLOWER])
def test_a_stated_bf16_that_is_slower_is_kept_with_a_warning(
    tiny: TinyProject, found: dict[str, Any], rates: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    found["rates"] = rates
    workers = replace(ALONE, precision="bf16")
    with caplog.at_level(logging.WARNING, "nmtkit"):
        recipe, after = settle_precision(
            recipe_of(tiny, "training.precision=bf16"), state_of({"precision": "bf16"}), None, workers
        )
    assert (recipe.training.precision, after) == ("bf16", workers)
    is_told = "2 GFLOP/s in float32 and 1 GFLOP/s in bf16" in caplog.text
    assert is_told == (rates is SLOWER)
    assert ("slower than float32 on this processor" in caplog.text) == is_told


def test_a_run_in_bf16_goes_on_with_a_warning_where_the_processor_has_none(
    tiny: TinyProject, found: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    found.update(rates=SLOWER, has_instructions=False)
    stated = recipe_of(tiny, "training.precision=auto")
    with caplog.at_level(logging.WARNING, "nmtkit"):
        recipe, _ = settle_precision(stated, state_of({"precision": "auto"}), {"precision": "bf16"}, ALONE)
    assert (recipe.training.precision, found["trials"]) == ("bf16", 1)
    assert "training.precision = bf16 is slower than float32 on this processor" in caplog.text
    settle_precision(stated, state_of({"precision": "auto"}), {"precision": "float32"}, ALONE)
    assert found["trials"] == 1


def state_of(changes: dict[str, Any] | None = None, **model: object) -> TrainingState:
    small = {**TINY, "d_model": 16, "d_ff": 32, "dropout": 0.1, "share_embeddings": "none"}
    training = TrainingConfig.model_validate({"ema_decay": 0.9, **(changes or {})})
    config = ModelConfig.model_validate({**small, **model})
    return TrainingState(config, training, (30, 20), ALONE.device)


@pytest.mark.parametrize("changes", [{}, {"r_drop": 1.0}])
@pytest.mark.parametrize(
    "model",
    [
        {"share_embeddings": "decoder"},
        {"positions": "learned", "max_positions": 8},
        {"positions": "learned", "max_positions": 8, "architecture": "decoder"},
    ],
)
def test_a_trial_measures_both_precisions_and_leaves_no_trace(model: dict[str, Any], changes: dict[str, Any]) -> None:
    state = state_of(changes, **model)
    state.model.eval()
    before = {name: weight.clone() for name, weight in state.model.state_dict().items()}
    numbers = torch.random.get_rng_state()
    rates = trial_rates(state, ALONE, ("float32", "bf16"))
    assert list(rates) == ["float32", "bf16"]
    assert all(rate > 0 for rate in rates.values())
    assert torch.equal(torch.random.get_rng_state(), numbers)
    assert all(torch.equal(weight, before[name]) for name, weight in state.model.state_dict().items())
    assert all(parameter.grad is None for parameter in state.model.parameters())
    assert not state.model.training
    assert not state.optimizer.state


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        ({}, {}),
        ({"r_drop": 1.0}, {}),
        ({"source_loss": 0.0}, {"architecture": "decoder"}),
        ({"source_loss": 0.0}, {"architecture": "decoder", "head": "classes"}),
    ],
)
def test_a_rate_is_that_of_the_largest_passes_by_the_operations_that_torch_counts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], model: dict[str, str]
) -> None:
    counted = []

    def run_pass(*arguments: Any) -> None:
        with FlopCounterMode(display=False) as counter:
            run_micro_batch(*arguments)
        counted.append(counter.get_total_flops())

    run_micro_batch, clock = precision.run_micro_batch, itertools.count(0.0, 0.01)
    monkeypatch.setattr(precision, "run_micro_batch", run_pass)
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(clock))
    state = state_of(changes, **model)
    assert trial_rates(state, ALONE, ["float32"]) == {"float32": pytest.approx(max(counted) / 0.01)}


def test_the_limit_of_learned_positions_is_none_of_others() -> None:
    state = state_of(max_positions=1, architecture="decoder", head="classes")
    assert trial_rates(state, ALONE, ["float32"])["float32"] > 0


def test_no_size_recurs_in_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(
        precision,
        "run_micro_batch",
        lambda state, batch, *_: sizes.append((batch.source.numel(), batch.target_in.numel())),
    )
    trial_rates(state_of(), ALONE, ("bf16",))
    assert len(sizes) == 9
    assert len({size for each in sizes for size in each}) == 18


def test_a_slow_trial_ends_after_two_rounds_of_short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(precision, "run_micro_batch", lambda *arguments: tried.append(arguments[3].precision))
    trial_rates(state_of(), ALONE, ("float32", "bf16"))
    assert tried == ["float32", "bf16"] * 2


def test_a_hopelessly_slow_bf16_is_not_tried_in_longer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tried = [0.0], []

    def run_pass(*arguments: Any) -> None:
        tried.append(arguments[2])
        now[0] += 0.4 if arguments[3].precision == "bf16" else 0.1

    monkeypatch.setattr(precision.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(precision, "run_micro_batch", run_pass)
    rates = trial_rates(state_of(), ALONE, ("float32", "bf16"))
    assert len(tried) == 4
    assert max(tried) < 4 * 32
    assert rates["float32"] == pytest.approx(4 * rates["bf16"])


@pytest.mark.parametrize(("compiled", "is_measured"), [("false", True), ("true", False)])
def test_what_a_training_expects_is_measured_unless_it_is_compiled(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch, compiled: str, is_measured: bool
) -> None:
    """A compiled one is stopped before its first update: only what it expects is looked at."""
    monkeypatch.setattr("nmtkit.training.session._Session._make_updates", lambda self: "stopped here")
    tiny.train(run, f"training.compile={compiled}")
    predicted = read_json(run / "prediction.json")
    assert predicted["mfu_source"].startswith("measured" if is_measured else "assumed")
