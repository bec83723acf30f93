"""What is told before a training comes true where it follows from the plan; the rest says what it assumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.data.shards import PairData
from nmtkit.errors import NmtkitError
from nmtkit.evaluation.cost import training_cost
from nmtkit.evaluation.cost_tables import prediction_fared, prediction_table, table_two
from nmtkit.evaluation.devices import processor_name
from nmtkit.json_toml import read_json
from nmtkit.model.flops import TRAINING_FACTOR, forward_flops
from nmtkit.training.prediction import ASSUMED_MFU, REACHED, AssumedPairs, Hardware, predict
from tests.conftest import TinyProject

ROOT = Path(__file__).parent.parent.parent
COUNTED = ("target_tokens", "flops", "flops_encoder", "flops_decoder", "flops_output", "flops_attention")


def cpu(devices: int = 1, **changes: Any) -> Hardware:
    return Hardware.stated("cpu", "float32", devices, changes.pop("rate", 1e9), **changes)


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.max_steps=5"],
        [],  # two whole epochs
        ["training.max_steps=14", "training.r_drop=1.0"],
        ["training.max_steps=100", "training.max_epochs=1"],
        ["training.max_steps=7", "model.architecture=decoder", "training.source_loss=1.0"],
    ],
)
def test_predicted_operations_and_tokens_are_those_that_training_counts(
    tiny: TinyProject, uninterrupted: Path, tmp_path: Path, overrides: list[str]
) -> None:
    run = uninterrupted
    if overrides:
        run = tiny.copy(tmp_path / "run")
        tiny.train(run, *overrides)
    predicted, cost = read_json(run / "prediction.json"), training_cost(run)
    assert predicted["updates"] == cost["updates"] > 0
    assert {key: predicted[key] for key in COUNTED} == {key: cost[key] for key in COUNTED}
    assert predicted["flops_padding"] == pytest.approx(cost["flops_padding"], rel=0.1)
    assert predicted["lengths"] == "the prepared data"
    assert (predicted["rate"], predicted["mfu_source"]) == (1e9, REACHED)
    assert predicted["seconds"] == pytest.approx(predicted["flops"] / (1e9 * predicted["mfu"]))
    assert cost["prediction"] == predicted


def test_the_time_follows_from_what_the_first_passes_reached() -> None:
    cpu = torch.device("cpu")
    hardware = Hardware.here(cpu, "float32", 2, rate=50e9, reached=4e9)
    assert (hardware.mfu, hardware.mfu_source) == (0.08, REACHED)
    stated = Hardware.here(cpu, "float32", 2, rate=50e9, reached=4e9, mfu=0.5)
    assert (stated.mfu, stated.mfu_source) == (0.5, "stated with --mfu")
    assumed = Hardware.here(cpu, "float32", 2, rate=50e9)
    assert (assumed.mfu, assumed.mfu_source) == ASSUMED_MFU["cpu"]


def test_a_prediction_is_made_once_before_the_first_update(tiny: TinyProject, run: Path) -> None:
    tiny.train(run, "training.max_steps=3")
    before = (run / "prediction.json").read_bytes()
    tiny.train(run, "training.max_steps=6")
    assert (run / "prediction.json").read_bytes() == before
    table = prediction_fared(training_cost(run))
    assert ["updates", "3", "6", "2.000"] in table.rows


def test_the_outcome_stands_beside_the_prediction_with_their_ratio(uninterrupted: Path) -> None:
    cost = training_cost(uninterrupted)
    rows = {row[0]: row[1:] for row in prediction_fared({**cost, "unit": None}).rows}
    assert rows["target tokens"][2] == rows["FLOPs"][2] == "1.000"
    assert float(rows["seconds"][2]) == pytest.approx(cost["seconds"] / cost["prediction"]["seconds"], abs=0.001)
    assert float(rows["MFU"][1]) == pytest.approx(cost["flops"] / cost["seconds"] / 1e9, rel=1e-3)
    assert rows["memory, bytes"][1] != ""
    short = {**cost, "updates": 4}
    assert "ended before max_steps = 14" in prediction_fared(short).notes[-1]


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("wmt14-en-de-base")


@pytest.fixture(scope="module")
def lengths() -> AssumedPairs:
    return AssumedPairs.of_text(256)


@pytest.fixture(scope="module")
def few(lengths: AssumedPairs) -> AssumedPairs:
    """A part of the assumed lengths, which is faster to plan with."""
    return AssumedPairs(lengths.source_lengths[:15_000], lengths.target_lengths[:15_000], lengths.origin)


def test_time_goes_down_with_devices_rate_and_share(recipe: Recipe, few: AssumedPairs) -> None:
    def seconds(**changes: Any) -> float:
        return float(predict(recipe, few, (37000, 37000), cpu(**changes))["seconds"])

    one = seconds(mfu=0.2)
    assert seconds(mfu=0.4) == pytest.approx(one / 2)
    assert seconds(mfu=0.2, devices=8) == pytest.approx(one / 8)
    assert seconds(mfu=0.2, rate=5e9) == pytest.approx(one / 5)


def test_limits_by_minutes_and_by_epochs_decide_the_updates(few: AssumedPairs) -> None:
    by_minutes = load_recipe("wmt14-en-de-base", ["training.max_minutes=10"])
    predicted = predict(by_minutes, few, (37000, 37000), Hardware.named("h200", "auto", 1))
    assert predicted["limit"] == "max_minutes = 10"
    assert predicted["seconds"] == pytest.approx(600, rel=0.001)
    by_epochs = load_recipe("multi30k-en-de", ["training.max_epochs=10"])
    by_epochs = by_epochs.model_copy(update={"training": by_epochs.training.model_copy(update={"max_steps": None})})
    with pytest.raises(NmtkitError, match=r"max_epochs = 10 gives no number .* run `nmtkit prepare` first"):
        predict(by_epochs, few, (10000, 10000), cpu())
    known = PairData.__new__(PairData)  # as if the same pairs were prepared
    vars(known).update(vars(few), is_joined=False)
    predicted = predict(by_epochs, known, (10000, 10000), cpu())
    assert (predicted["limit"], predicted["epochs"]) == ("max_epochs = 10", 10.0)
    assert predicted["target_tokens"] == 10 * int(known.target_lengths.sum())


def test_a_gpu_of_the_table_has_its_rate_memory_and_precision(recipe: Recipe, few: AssumedPairs) -> None:
    predicted = predict(recipe, few, (37000, 37000), Hardware.named("H200", "auto", 8))
    assert (predicted["precision"], predicted["rate"], predicted["device_memory_bytes"]) == ("bf16", 989.5e12, 141e9)
    assert (predicted["devices"], predicted["mfu"]) == (8, 0.30)
    assert Hardware.named("v100", "auto", 1).precision == "float32"
    assert Hardware.named("v100", "fp16", 1, mfu=0.5).mfu == 0.5
    with pytest.raises(NmtkitError, match=r"v100: the table has no rate for bf16 \(only float32, fp16\)"):
        Hardware.named("v100", "bf16", 1)


def test_memory_without_a_trial_is_what_the_weights_need_and_is_called_so(few: AssumedPairs) -> None:
    big = load_recipe("wmt14-en-de-big")
    predicted = predict(big, few, (37000, 37000), Hardware.named("h200", "auto", 1))
    weights = 4 * 214_245_376
    assert predicted["memory_bytes"] == 4 * weights
    row = next(row for row in prediction_table(predicted).rows if row[0] == "memory per device")
    assert row[1] == "3.43 GB of 141 GB (at least; the memory of forward and backward is measured when training begins)"
    several = predict(big, few, (37000, 37000), Hardware.named("h200", "auto", 2))
    assert several["memory_bytes"] == 5 * weights  # with the exchange of gradients
    table = prediction_table(predict(big, few, (37000, 37000), replace(Hardware.named("t4", "fp16", 1), memory=2e9)))
    assert any("does not fit" in row[1] for row in table.rows if row[0] == "memory per device")


def test_memory_that_passes_took_is_reported_with_what_the_optimizer_adds(few: AssumedPairs) -> None:
    big = load_recipe("wmt14-en-de-big")
    predicted = predict(big, few, (37000, 37000), cpu(devices=2), tried_bytes=5 * 10**9)
    assert predicted["memory_bytes"] == 5 * 10**9 + 3 * 4 * 214_245_376  # moments, and the exchange of gradients
    assert predicted["memory_source"].startswith("measured")


def test_training_measures_the_memory_of_its_heaviest_passes(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr("nmtkit.training.micro_batches.run_micro_batch", lambda *arguments: tried.append(1))
    monkeypatch.setattr("nmtkit.training.session.memory_bytes", lambda device: 10**9 * bool(tried))
    tiny.train(run, "training.max_steps=1")
    predicted = read_json(run / "prediction.json")
    assert predicted["memory_bytes"] == 10**9 + 2 * 4 * predicted["parameters"]
    assert predicted["memory_source"].startswith("measured")
    assert prediction_fared(training_cost(run)).rows[-1][:2] == ["memory, bytes", f"{predicted['memory_bytes']:.4g}"]


def flops_per_target_token(name: str, lengths: AssumedPairs) -> float:
    forward = forward_flops(load_recipe(name).model, 37_000, lengths.source_lengths, lengths.target_lengths).flops
    return TRAINING_FACTOR * forward / int(lengths.target_lengths.sum())


def test_the_assumed_shares_are_what_published_runs_and_our_own_have_reached(lengths: AssumedPairs) -> None:
    big = flops_per_target_token("wmt14-en-de-big", lengths)
    by_nvidia = 235_000 * big / (8 * 125e12)
    by_paper = []
    for size, updates, seconds in (("base", 100_000, 0.4), ("big", 300_000, 1.0)):
        recipe, p100s = load_recipe(f"wmt14-en-de-{size}"), Hardware.named("p100", "float32", 8)
        flops = predict(recipe, lengths, (37000, 37000), p100s)["flops"]
        by_paper.append(flops / (updates * seconds * 8 * 10.6e12))
    assert by_nvidia == pytest.approx(ASSUMED_MFU["gpu"][0], abs=0.005)
    assert by_paper == pytest.approx([0.28, 0.37], abs=0.006)
    assert all(f"{share:.2f}" in ASSUMED_MFU["gpu"][1] for share in (by_nvidia, *by_paper))
    ours = read_json(ROOT / "docs" / "results" / "multi30k-en-de-tiny" / "cost.json")
    reached = ours["flops_per_second"] / ours["processes"] / ours["sustained_flops_per_second"]
    assert reached == pytest.approx(ASSUMED_MFU["cpu"][0], abs=0.005)


def test_frozen_parts_need_no_memory_for_gradients_and_moments(few: AssumedPairs) -> None:
    hardware = Hardware.named("h200", "auto", 1)
    whole, frozen = (
        predict(load_recipe("wmt14-en-de-big", overrides), few, (37000, 37000), hardware)["memory_bytes"]
        for overrides in ([], ['training.freeze=["embeddings"]'])
    )
    assert whole - frozen == 4 * 3 * 37000 * 1024


def test_the_papers_estimate_of_a_prediction_goes_by_the_papers_rates(few: AssumedPairs) -> None:
    base = load_recipe("wmt14-en-de-base")
    predicted = predict(base, few, (37000, 37000), Hardware.named("p100", "float32", 8))
    assert predicted["flops_paper_estimate"] == pytest.approx(8 * 9.5e12 * predicted["seconds"])
    [table] = table_two({**predicted, "run": "base"}, {}, "this prediction")
    assert table.title == "The paper's Table 2, and this prediction"
    assert [row[0] for row in table.rows[-2:]] == ["base, the paper's estimate", "base, counted"]
    at_a_rate = predict(base, few, (37000, 37000), Hardware.stated("p100", "float32", 8, 10e12))
    assert at_a_rate["flops_paper_estimate"] == pytest.approx(8 * 9.5e12 * at_a_rate["seconds"])
    assert at_a_rate["device_memory_bytes"] == 16e9
    assert all(row[3] and not any(row[column] for column in (1, 2, 4)) for row in table.rows[-2:])


def test_assumed_lengths_have_the_means_they_state(lengths: AssumedPairs) -> None:
    assert "29.5 and 30.6" in lengths.origin
    assert (lengths.source_lengths.mean(), lengths.target_lengths.mean()) == pytest.approx((29.5, 30.6), abs=0.15)
    assert int(max(lengths.source_lengths.max(), lengths.target_lengths.max())) <= 256
    again = AssumedPairs.of_text(256)
    assert np.array_equal(again.source_lengths, lengths.source_lengths)


def test_this_machines_rate_is_measured_where_the_table_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.training.prediction.matmul_flops_per_second", lambda device, precision: 5e10)
    here = Hardware.here(torch.device("cpu"), "float32", 2)
    assert (here.rate, here.kind, here.devices, here.memory) == (5e10, "cpu", 2, None)
    assert (here.sustained, here.processor) == (5e10, processor_name())
    assert "measured" in here.rate_source


def test_a_gpu_of_this_machine_is_looked_up_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * 10**9, 80 * 10**9))
    here = Hardware.here(torch.device("cuda", 0), "bf16", 1, rate=1e12)
    assert (here.rate, here.memory, here.processor) == (989.5e12, 80e9, None)
    assert "H100 data sheet" in here.rate_source
