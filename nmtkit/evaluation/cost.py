"""The cost of a run: the exact count of its matrix products, the estimate as the paper makes it, use of the device.

RUN/resume/*/state.json, RUN/checkpoints/*/provenance.json, RUN/metrics.jsonl, RUN/prediction.json
    -> training_cost -> RUN/cost.json -> cost_tables.py
"""

import time
from pathlib import Path
from typing import Any

import torch

from nmtkit.config.corpus_entries import corpus_name, languages_of, one_language, stated_text
from nmtkit.distributed.workers import ComputedPrecision
from nmtkit.errors import ModelError
from nmtkit.evaluation.devices import device_of
from nmtkit.files import as_text
from nmtkit.json_toml import any_number, positive, read_json, read_json_lines
from nmtkit.model.flops import TRAINING_FACTOR, Counters
from nmtkit.run import Run
from nmtkit.tasks.known import task_of

_TYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PARTS = tuple(name for name in Counters().counters() if name.startswith("flops_"))
_MEASURED: dict[str, Any] = {
    "target_tokens": int, "processes": int, "device": str, "precision": str,
    **dict.fromkeys(("seconds", "device_seconds", "flops", *_PARTS), float),
    **dict.fromkeys(("gpu_joules?", "gpu_seconds?", "host_joules?", "host_seconds?"), float),
}  # fmt: skip
_OF_STATE = {
    **_MEASURED, "step": int, "epoch?": int, "matmul_flops_per_second": float, "versions?": {str: str},
    "processor?": str | None,
    "recipe": {"data": {"source_language": str, "target_language": str, "task?": str | None, "test?": int | list}},
}  # fmt: skip
_OF_PREDICTION = {
    "updates": positive, **dict.fromkeys(("target_tokens", "flops", "flops_padding", "seconds", "rate"), float),
    "limit": str, "unit?": str, "mfu_source": str, "mfu": float | None, "memory_bytes": float | None,
}  # fmt: skip
_OF_COST = {
    **_MEASURED, "updates": int, "prediction?": _OF_PREDICTION, "memory_bytes": float | None,
    "mfu?": float, "mfu_of_peak?": float,
    **dict.fromkeys(("sustained_source", "peak_source?", "source_language?", "target_language?", "unit?"), str),
    **dict.fromkeys(("flops_per_second", "flops_paper_estimate", "sustained_flops_per_second"), float),
    **dict.fromkeys(("flops_forward", "flops_backward", "matmul_flops_per_second"), float),
    "peak_flops_per_second?": float, "newstest2014?": str | None,
}  # fmt: skip
_OF_METRICS = {
    "step": int, "samples?": [{"source": str, "reference": str, "hypothesis": str}],
    **dict.fromkeys(("epoch?", "target_tokens?", "seconds?", "flops?", "memory_bytes?"), float),
    **dict.fromkeys(("valid_nll?", "valid_bleu?", "nll?", "loss?", "learning_rate?", "gradient_norm?"), any_number),
    **dict.fromkeys(("target_tokens_per_second?", "padding?", "mfu?"), any_number),
}  # fmt: skip
_SLOW_PRODUCT_SECONDS = 0.1
"""A product that takes longer is not repeated, and no larger one is measured."""
_NEWSTEST2014 = ("wmt14/newstest2014", "sacrebleu:wmt14/full")
"""The paper's test set, all 3,003 pairs of it, in the catalogue and as sacreBLEU has it."""


def matmul_flops_per_second(device: torch.device, precision: ComputedPrecision) -> float:
    """Return the highest rate of plain matrix products on this device, now: 1024 x 1024 at most (CUDA: 8192 x 8192)."""
    # All three products of a linear layer count, those of its result and of its two gradients, and on other devices
    # than CUDA smaller matrices too: where a processor has no instructions for a precision, one layout of a large
    # matrix was twenty times as slow as another layout of a small one, so neither alone measures what training can
    # reach. Random numbers: a GPU needs less power for constant ones, and runs faster than it ever will in training.
    generator = torch.Generator(device).manual_seed(1)
    best = 0.0
    for size in (8192,) if device.type == "cuda" else (128, 256, 512, 1024):
        left, right = torch.randn(2, size, size, device=device, generator=generator).to(_TYPES[precision])
        slowest = 0.0
        for factors in ((left, right.t()), (left, right), (left.t(), right)):
            seconds = _best_seconds(*factors)
            best, slowest = max(best, 2 * size**3 / seconds), max(slowest, seconds)
        if slowest > _SLOW_PRODUCT_SECONDS:
            break
    return best


def _best_seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    best = float("inf")
    for _ in range(6):  # the first one warms up
        begun = time.perf_counter()
        (left @ right)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begun)
        if best > _SLOW_PRODUCT_SECONDS:
            break
    return best


def training_cost(run_dir: Path) -> dict[str, Any]:
    """Return the content of RUN/cost.json: the cost of the training so far; docs/file-formats.md explains its fields.

    Raises:
        ModelError: the run has not been trained.
        DataError: one of its files is damaged.
    """
    run = Run(run_dir)
    path = run.latest_state()
    if path is None:
        raise ModelError(f"{run_dir}: not trained yet; run `nmtkit train` first")
    state = read_latest_state(path)
    data = state["recipe"]["data"]
    sources, targets = languages_of(data)
    tests = data.get("test") or []
    # `test = N` is a number: that many pairs of the training text.
    named = [(test, stated_text(test, "corpus") or test) for test in (tests if isinstance(tests, list) else [])]
    flops, device_seconds, precision = state["flops"], state["device_seconds"], state["precision"]
    kind = device_of(state["device"])
    peak = kind.rates.get(precision) if kind is not None else None
    matmul = state["matmul_flops_per_second"]
    sustained, source = matmul, "measured: plain matrix products on this device, in the last session"
    # The rates of the paper come first, so that the estimate can be compared with its Table 2.
    if kind is not None and kind.paper_sustained:
        sustained, source = kind.paper_sustained, "the paper, footnote 5"
    elif kind is not None and peak:
        sustained, source = peak, f"dense peak in {precision}: {kind.source}"
    memory = [line["memory_bytes"] for line in read_metrics(run_dir) if line.get("memory_bytes")]
    return {
        "run": as_text(run_dir.resolve().name),
        "source_language": one_language(sources),
        "target_language": one_language(targets),
        "newstest2014": next(
            (stated_text(test, "name") or corpus_name(name) for test, name in named if name in _NEWSTEST2014), None
        ),
        "state_file": path.relative_to(run_dir).as_posix(),
        "updates": state["step"],
        "target_tokens": state["target_tokens"],
        "unit": task_of(data.get("task") or "plain").unit,
        "seconds": state["seconds"],
        "device_seconds": device_seconds,
        "processes": state["processes"],
        "device": state["device"],
        "processor": state.get("processor"),
        "precision": precision,
        "flops": flops,
        "flops_forward": flops // TRAINING_FACTOR,
        "flops_backward": flops - flops // TRAINING_FACTOR,
        **{part: state[part] for part in _PARTS},
        "flops_per_second": flops / state["seconds"] if state["seconds"] else 0.0,
        "matmul_flops_per_second": matmul,
        "mfu": _ratio(flops, device_seconds * matmul),
        "peak_flops_per_second": peak,
        "peak_source": kind.source if kind is not None and peak else None,
        "mfu_of_peak": _ratio(flops, device_seconds * peak) if peak else None,
        "flops_paper_estimate": device_seconds * sustained,
        "sustained_flops_per_second": sustained,
        "sustained_source": source,
        # 0 where nothing was measured
        **{key: state.get(key) or None for key in ("gpu_joules", "gpu_seconds", "host_joules", "host_seconds")},
        "memory_bytes": max(memory, default=None),
        "prediction": read_json(run.prediction, _OF_PREDICTION) if run.prediction.is_file() else None,
    }


def read_latest_state(path: Path) -> dict[str, Any]:
    """Read the file of `Run.latest_state`; raise DataError where it is damaged."""
    return read_json(path, _OF_STATE)


def read_cost(path: Path) -> dict[str, Any]:
    """Read RUN/cost.json; raise DataError where it is damaged."""
    return read_json(path, _OF_COST)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Read the lines of RUN/metrics.jsonl; raise DataError where one is damaged."""
    return read_json_lines(Run(run_dir).metrics, _OF_METRICS)


def _ratio(part: float | int, whole: float) -> float | None:
    return part / whole if whole else None
