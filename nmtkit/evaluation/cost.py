"""What a run has cost: the exact count of its matrix products, and the estimate as the paper makes it."""

import re
import time
from pathlib import Path
from typing import Any

import torch

from nmtkit.errors import ModelError
from nmtkit.files import read_json
from nmtkit.model_folder import checkpoints, step_folders
from nmtkit.workers import ComputedPrecision

PAPER_SUSTAINED_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
"""Sustained single-precision FLOP/s of a GPU. Source: footnote 5 of the paper."""


_TYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def matmul_flops_per_second(device: torch.device, precision: ComputedPrecision) -> float:
    """The rate of plain matrix products on this device, now: the best of five of 1024 x 1024 (CUDA: 8192 x 8192).

    Of float16 on a CPU, which is very slow at it, 128 x 128.
    """
    size = 8192 if device.type == "cuda" else 128 if device.type == "cpu" and precision == "fp16" else 1024
    matrix = torch.ones(size, size, device=device, dtype=_TYPES[precision])
    best = float("inf")
    for _ in range(6):  # the first one warms up
        begun = time.perf_counter()
        product = matrix @ matrix
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def training_cost(run_dir: Path) -> dict[str, Any]:
    """What the training of a run has cost so far, as RUN/cost.json holds it.

    flops: of forward and backward of the matrix products, for the tokens seen, padding not counted.
    flops_attention, flops_padding: of these, those of the attention's products; and what padding added to flops.
    flops_paper_estimate: seconds x devices (added up over the sessions) x sustained FLOP/s of the device, which is the
    paper's figure for its GPUs and the measured rate of plain matrix products for others. Source: section 6.1.

    Raises:
        ModelError: the run has not been trained.
    """
    states = [folder / "state.json" for folder in step_folders(run_dir / "resume")]
    states += [folder / "provenance.json" for folder in checkpoints(run_dir)]
    if not states:
        raise ModelError(f"{run_dir}: not trained yet; run `nmtkit train` first")
    state = max((read_json(path) for path in states if path.is_file()), key=lambda state: state["step"])
    device = state["device"].upper()
    device_seconds = state.get("device_seconds", state["seconds"] * state["processes"])
    named = next((name for name in PAPER_SUSTAINED_FLOPS if re.search(rf"\b{name}(?!\d)", device)), None)
    sustained = PAPER_SUSTAINED_FLOPS[named] if named else state["matmul_flops_per_second"]
    source = "the paper, footnote 5" if named else "measured: plain matrix products on this device, in the last session"
    return {
        "updates": state["step"],
        "target_tokens": state["target_tokens"],
        "seconds": state["seconds"],
        "processes": state["processes"],
        "device": state["device"],
        "precision": state["precision"],
        "flops": state["flops"],
        "flops_attention": state.get("flops_attention"),
        "flops_padding": state.get("flops_padding"),
        "flops_per_second": state["flops"] / state["seconds"] if state["seconds"] else 0.0,
        "flops_paper_estimate": device_seconds * sustained,
        "sustained_flops_per_second": sustained,
        "sustained_source": source,
    }
