"""A process that computes on a CPU: its threads, memory allocator and library for matrix products, and other load."""

import ctypes
import functools
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from nmtkit.console import log
from nmtkit.distributed.limits import available_cores

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3), from malloc.h."""
_PRIMITIVE_CACHE = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
"""Environment variables, new and old, for the number of matrix product sizes whose generated code oneDNN keeps."""

_LOST_SHARE, _LOST_SECONDS = 0.2, 0.3
"""Time without a core, of the whole and in seconds, from which a measurement is called disturbed."""


def threads_each(processes: int) -> int:
    """Return the cores that this process may use, divided by the number of processes."""
    return max(1, available_cores() // max(1, processes))


def set_threads(threads: int | None, processes: int = 1) -> None:
    """Set the CPU threads of this process; None: its share of the machine's cores."""
    torch.set_num_threads(threads or threads_each(processes))


@contextmanager
def noticing_other_load() -> Iterator[None]:
    """Warn if this thread, which measures a rate in the block, often had no core to compute on."""
    # Of this thread only: it spins while it waits for the others of an operation, but those sleep between operations.
    begun, computed = time.monotonic(), time.thread_time()
    yield
    seconds = time.monotonic() - begun
    # Measured on two cores: 0 to 8 % of the time without a core alone, 51 to 83 % beside other work.
    if seconds - (time.thread_time() - computed) > max(_LOST_SECONDS, _LOST_SHARE * seconds):
        log.warning(
            "the processor was busy with other work during the trial, so the predicted time may be many times too "
            "long; leave cores to that work with fewer --threads"
        )


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones instead of returning it page by page.

    Measured on 2 cores: 1.4 times the tokens per second in training on a CPU, 1.1 times the sentences per second in
    translation. Other C libraries are not changed.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    # Only glibc has this function; other C libraries may have no mallopt at all.
    if hasattr(library, "gnu_get_libc_version"):
        # Large blocks come from the heap, not from mappings of their own, and the heap hardly ever shrinks.
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def limit_primitive_cache() -> None:
    """Let oneDNN keep the code of 128 matrix product sizes instead of 1,024, unless the user has set a number.

    oneDNN generates code for every new size, and in training hardly any size recurs after its update. The kept code
    fragments the memory of tensors. Call it before the first product, but not for translation, where sizes recur.
    Measured on a small model in bf16, on one core with AMX: 1.02 to 1.1 times the tokens per second, and after
    thousands of updates 1.9 GB instead of 3.9.
    """
    if not any(name in os.environ for name in _PRIMITIVE_CACHE):
        os.environ[_PRIMITIVE_CACHE[0]] = "128"


@functools.cache
def has_fast_mkl() -> bool:
    """Return whether torch has MKL and this is an Intel processor."""
    if not torch.backends.mkl.is_available():
        return False
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def choose_products() -> None:
    """Let oneDNN compute float32 matrix products where that is faster and just as exact.

    By default torch uses MKL, which reached less than half of oneDNN's speed on the AMD processor measured, but 1.1
    times its speed on Intel. torch has no setting for this, but if bfloat16 arithmetic is allowed for float32 products,
    it uses oneDNN, which still computes in float32 unless the processor has matrix units (AMX) for bfloat16.
    """
    if not has_fast_mkl() and _onednn_is_exact():
        set_products("medium")


def set_products(precision: str) -> None:
    """Set torch's precision of float32 products, without the advice of torch 2.9 about another interface."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.set_float32_matmul_precision(precision)


def _onednn_is_exact() -> bool:
    """Return whether oneDNN computes in float32 if bfloat16 is allowed, by a product that bfloat16 would round."""
    before = torch.get_float32_matmul_precision()
    set_products("medium")
    exact = 1 + 2.0**-12  # bfloat16 has 8 bits
    matrix = torch.full((256, 256), exact)
    # The products of a linear layer: forward, the gradient of its weight, and forward with a bias.
    products = (matrix @ matrix.t(), matrix.t() @ matrix, torch.addmm(torch.zeros(256), matrix, matrix.t()))
    set_products(before)
    # Rounded to bfloat16, the factors would be 1 and the products wrong by 5e-4; float32 is within 1e-6.
    expected = torch.tensor(256 * exact**2)
    return all(torch.allclose(product, expected, rtol=1e-6, atol=0.0) for product in products)


def has_bf16_instructions() -> bool:
    """Return whether bf16 is worth a trial on this CPU; some processors that pass emulate it slowly."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
