"""The GPU benchmark, tried on a CPU with a tiny model: it measures, isolates failures, tells parts apart."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.benchmarks.conftest import ROOT, execute

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "benchmarks" / "train_gpu.py"


@pytest.fixture
def benchmark() -> ModuleType:
    import train_gpu

    return train_gpu


def run(output: Path, *arguments: str) -> dict:
    out = execute(SCRIPT, "--device", "cpu", "--output", output, *arguments)
    return {**json.loads(output.read_text()), "stdout": out}


TINY = ["--models", "tiny", "--updates", "6", "--warmup", "2", "--tokens-per-update", "600", "--tokens-per-pass", "250"]


def test_it_measures_a_tiny_model_on_a_cpu(tmp_path: Path) -> None:
    report = run(tmp_path / "out.json", *TINY, "--modes", "eager")
    (found,) = report["measurements"]
    assert "error" not in found
    assert (found["model"], found["mode"], found["updates"]) == ("tiny", "eager", 6)
    assert 500 < found["target_tokens_per_update"] <= 600
    assert 2 < found["passes_per_update"] < 6
    assert 0 < found["padding"] < 0.4
    tokens = found["target_tokens_per_update"] / found["seconds_per_update"]
    assert found["target_tokens_per_second"] == pytest.approx(tokens)
    assert found["mfu"] == pytest.approx(found["flops_per_second"] / report["products_per_second"])
    assert sum(found["parts"]["shares"].values()) == pytest.approx(1)
    assert {"matrix products", "attention", "optimiser"} <= set(found["parts"]["shares"])
    assert [goal["reached"] for goal in report["goals"]] == [None] * 3  # neither base nor big was measured
    assert len(report["commit"]) == 40
    assert report["options"]["tokens_per_pass"] == 250
    assert "goals" in report["stdout"]


def test_a_measurement_that_fails_is_told_and_the_others_go_on(benchmark: ModuleType) -> None:
    def fail() -> dict:
        raise MemoryError("no room\nat all")

    assert benchmark.attempt("big, eager", fail) == {"error": "big, eager: MemoryError: no room at all"}
    assert benchmark.attempt("base, eager", lambda: {"seconds": 1.0}) == {"seconds": 1.0}


def test_goals_are_judged_by_the_best_mode_and_the_better_rate(benchmark: ModuleType) -> None:
    measured = [
        {"model": "base", "mode": "eager", "flops_per_second": 30.0, "hours_for_run": 1.2},
        {"model": "base", "mode": "compiled", "flops_per_second": 45.0, "hours_for_run": 0.9},
        {"model": "big", "mode": "eager", "flops_per_second": 45.0, "hours_for_run": 9.0},
        {"model": "big", "mode": "compiled", "error": "out of memory"},
    ]
    report = {"products_before": {"8192^3": 90.0}, "products_after": {"8192^3": 100.0}, "measurements": measured}
    goals = benchmark.judge(report, "8192^3")
    assert [(goal["reached"], goal["met"]) for goal in goals] == [(0.45, True), (0.45, False), (0.9, True)]
    assert [benchmark.outcome(goal)[1] for goal in goals] == ["yes", "no", "yes"]
    assert benchmark.outcome({"goal": "", "reached": None, "met": False}) == ("", "open")


def test_lengths_are_those_of_wmt14(benchmark: ModuleType) -> None:
    drawn = benchmark.lengths(200_000, np.random.default_rng(0))
    assert drawn.min() in (1, 2, 3)
    assert drawn.max() == 256
    assert drawn.mean(0) == pytest.approx([28.5, 29.6], rel=0.01)
    assert np.corrcoef(np.log(drawn).T)[0, 1] == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(
    ("chain", "kernel", "part"),
    [
        ("Optimizer.step#Adam.step > aten::_fused_adam_", "multi_tensor_apply_kernel", "optimiser"),
        ("aten::linear > aten::addmm", "nvjet_tst_128x256", "matrix products"),
        ("autograd::engine > AddmmBackward0 > aten::mm", "sm90_xmma_gemm_bf16", "matrix products"),
        ("aten::scaled_dot_product_attention > aten::bmm", "gemm", "attention"),
        ("", "fmha_cutlassF_bf16_aligned", "attention"),
        ("_SmoothedLoss > aten::mm", "nvjet_tst", "vocabulary: products in the loss"),
        ("_SmoothedLoss > aten::exp_", "vectorized_elementwise_kernel", "vocabulary: softmax and loss"),
        ("aten::to > aten::_to_copy > aten::copy_", "unrolled_elementwise_kernel", "copies and casts"),
        ("aten::native_dropout", "fused_dropout_kernel_vec", "norms, dropout, elementwise"),
        (
            "Torch-Compiled Region > triton_per_fused",
            "triton_per_fused_native_layer_norm",
            "norms, dropout, elementwise",
        ),
        ("aten::_foreach_norm", "multi_tensor_apply_kernel", "gradient norm"),
    ],
)
def test_kernels_are_told_apart(benchmark: ModuleType, chain: str, kernel: str, part: str) -> None:
    from device_time import part_of

    assert part_of(chain, kernel) == part


@pytest.mark.slow
def test_it_measures_compiled_training(tmp_path: Path) -> None:
    report = run(tmp_path / "out.json", *TINY, "--modes", "eager,compiled")
    eager, compiled = report["measurements"]
    assert compiled["compiled_pieces"] > 0
    assert compiled["compile_seconds"] > 0
    assert eager["compiled_pieces"] == 0
    assert compiled["target_tokens_per_update"] == eager["target_tokens_per_update"]
