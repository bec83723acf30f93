"""Where time goes on the device, by torch.profiler; on a CPU the operators' own time."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

MATRIX_PRODUCTS = ("aten::mm", "aten::addmm")
MATRIX_KERNELS = ("gemm", "nvjet", "cutlass", "xmma", "mkldnn")


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_time(work: Callable[[], int], device: torch.device, part_of: Callable[[str, str], str]) -> dict[str, Any]:
    """Device seconds of a token by part of the work.

    Args:
        work: what is profiled; returns its tokens.
        part_of: the part that a kernel belongs to, by the operators around it and by its name.
    """
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_cuda else [])
    with profile(activities=activities) as profiler:
        tokens = work()
        synchronize(device)
    events = profiler.events()
    assert events is not None
    by_part: dict[str, float] = defaultdict(float)
    by_kernel: dict[str, float] = defaultdict(float)
    for chain, kernel, microseconds in pieces_of_work(events, on_cuda):
        by_part[part_of(chain, kernel)] += microseconds
        by_kernel[kernel] += microseconds
    if on_cuda:
        # What is not tied to an operator of the host is known by the kernel's name alone.
        for kernel, microseconds in device_work(events).items():
            rest = microseconds - by_kernel[kernel]
            if rest > 0.01 * microseconds:
                by_part[part_of("", kernel)] += rest
                by_kernel[kernel] += rest
    total = sum(by_part.values()) or 1.0
    longest = sorted(by_kernel.items(), key=lambda item: -item[1])[:25]
    return {
        "device_seconds_per_token": total / 1e6 / tokens,
        "shares": {part: time / total for part, time in sorted(by_part.items(), key=lambda item: -item[1])},
        "longest": [{"name": name[:160], "share": time / total} for name, time in longest],
    }


def pieces_of_work(events: list[FunctionEvent], on_cuda: bool) -> Iterator[tuple[str, str, float]]:
    """The operators that each piece of work stands in, innermost last, its name, and its microseconds."""
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue
        chain, parent = [event.name], event.cpu_parent
        while parent is not None:
            chain.append(parent.name)
            parent = parent.cpu_parent
        joined = " > ".join(reversed(chain))
        if on_cuda:
            for kernel in event.kernels:
                yield joined, kernel.name, kernel.duration
        else:
            yield joined, event.name, event.self_cpu_time_total


def device_work(events: list[FunctionEvent]) -> dict[str, float]:
    """Microseconds of all that ran on the device, by name."""
    work: dict[str, float] = defaultdict(float)
    for event in events:
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            work[event.name] += event.time_range.elapsed_us()
    return work


def part_of(chain: str, kernel: str) -> str:
    """The part of training that a kernel belongs to, by the operators around it and by its name."""
    where, name = chain.lower(), kernel.lower()
    innermost = where.rsplit(" > ", 1)[-1]
    both = f"{where} > {name}"

    def has(text: str, *marks: str) -> bool:
        return any(mark in text for mark in marks)

    is_product = has(innermost, *MATRIX_PRODUCTS) or has(name, *MATRIX_KERNELS)
    if has(both, "optimizer.step", "adam"):
        return "optimiser"
    if has(both, "_foreach_norm", "_foreach_mul", "lpnorm", "linalg_vector_norm"):
        return "gradient norm"
    if has(both, "smoothedloss", "log_softmax", "nll_loss"):
        return "vocabulary: products in the loss" if is_product else "vocabulary: softmax and loss"
    # Batched products and a softmax outside the loss are attention by plain products, as on a CPU.
    if has(both, "scaled_dot_product", "efficient_attention", "flash", "fmha", "sdpa", "aten::bmm", "softmax"):
        return "attention"
    if is_product:
        return "matrix products"
    if has(both, "embedding"):
        return "embeddings"
    if has(name, "memcpy", "memset") or has(innermost, "aten::to", "aten::_to_copy", "aten::copy_"):
        return "copies and casts"
    return "norms, dropout, elementwise"
