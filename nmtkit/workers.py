"""The only door to Accelerate: who this process is, on which device, sums over all processes, and trackers.

`nmtkit train --processes N` starts N processes of the same command (`launch`); under `accelerate launch` or `torchrun`
they are started for us. Either way each one calls `Workers.start` and from then on all do the same.
"""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

import torch
from torch import Tensor

from nmtkit.console import log
from nmtkit.errors import NmtkitError

_SECONDS_TO_SPEAK = 2.0
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3), from malloc.h."""

Precision = Literal["auto", "float32", "bf16", "fp16"]
ComputedPrecision = Literal["float32", "bf16", "fp16"]


def choose_device(device: str) -> torch.device:
    """The torch device for auto, cpu, cuda or mps.

    Raises:
        NmtkitError: it is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        device = next(name for name, there in available.items() if there)
    if device not in available:
        raise NmtkitError(f"--device {device}: choose auto, cpu, cuda or mps")
    if not available[device]:
        raise NmtkitError(f"--device {device}: this machine has none that torch can use; choose auto or cpu")
    return torch.device(device)


def set_threads(threads: int | None, processes: int = 1) -> None:
    """Sets the CPU threads of this process; by default the machine's cores shared among the processes on it."""
    torch.set_num_threads(threads or threads_each(processes))


def threads_each(processes: int) -> int:
    """The cores that this process may use, shared among so many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def keep_freed_memory() -> None:
    """Lets glibc keep the memory of freed tensors for the next ones instead of giving it back page by page.

    Measured on 2 cores: 1.4 times the tokens a second in training on a CPU. Other C libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def choose_products() -> None:
    """Lets oneDNN compute float32 matrix products on a CPU where that is faster and just as exact.

    torch gives them to MKL, which on AMD processors reaches less than half the rate. There is no switch for it, but
    where bfloat16 arithmetic is allowed for float32 products torch asks oneDNN, and that uses float32 all the same
    unless the processor has matrix units (AMX) for bfloat16. A product that would show rounding decides.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    exact = 1 + 2.0**-12  # bfloat16 has 8 bits
    matrix = torch.full((256, 256), exact)
    products = (matrix @ matrix.t(), matrix.t() @ matrix, torch.addmm(torch.zeros(256), matrix, matrix.t()))
    expected = 256 * exact**2
    if not all(torch.allclose(product, torch.tensor(expected), rtol=1e-6, atol=0.0) for product in products):
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Workers:
    """This process among its peers.

    Attributes:
        rank: this process' number, from 0.
        num_processes: how many there are.
        device: where this process computes.
        precision: of the matrix products.
    """

    rank: int
    num_processes: int
    device: torch.device
    precision: ComputedPrecision

    @classmethod
    def start(cls, device: str = "auto", precision: Precision = "auto", threads: int | None = None) -> "Workers":
        """Joins the process group that the environment describes, if any.

        Raises:
            NmtkitError: the device is not there.
        """
        chosen = choose_device(device)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState

            state = PartialState(cpu=chosen.type == "cpu")
            rank, num_processes, chosen = state.process_index, state.num_processes, state.device
        else:
            rank, num_processes = 0, 1
        keep_freed_memory()
        if chosen.type == "cpu":
            choose_products()
        set_threads(threads, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return cls(rank, num_processes, chosen, resolve_precision(precision, chosen))

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    @property
    def tokens_per_pass(self) -> int:
        """Padded tokens that suit this device, many enough to fill it."""
        return 4096 if self.device.type == "cpu" else 16384

    def autocast(self) -> AbstractContextManager[Any]:
        """Where matrix products run in this process' precision."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16 if self.precision == "bf16" else torch.float16)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes, the same on each."""
        if self.num_processes == 1:
            return tensor
        from accelerate.utils import reduce

        total: Tensor = reduce(tensor.to(self.device), reduction="sum")
        return total.to(tensor.device)

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replaces every gradient by its sum over all processes, in one exchange; a missing one counts as zeros."""
        if self.num_processes == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = self.sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        start = 0
        for parameter in parameters:
            part = total[start : start + parameter.numel()]
            parameter.grad = part.view_as(parameter).clone()
            start += parameter.numel()

    def gather(self, values: list[Any]) -> list[Any]:
        """The lists of all processes, joined in the order of the ranks, the same on each."""
        if self.num_processes == 1:
            return values
        from accelerate.utils import gather_object

        gathered: list[Any] = gather_object(values)
        return gathered

    def wait(self) -> None:
        """Returns when all processes have come here."""
        if self.num_processes > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()

    def close(self) -> None:
        """Leaves the process group."""
        if self.num_processes > 1:
            from accelerate import PartialState

            PartialState().destroy_process_group()


def resolve_precision(precision: Precision, device: torch.device) -> ComputedPrecision:
    """auto: bf16 on CUDA devices of capability 8 and up, float32 elsewhere."""
    if precision != "auto":
        return precision
    modern = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    return "bf16" if modern else "float32"


def check_trackers(names: Sequence[str]) -> None:
    """Raises NmtkitError when the package of a tracker is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise NmtkitError(f"--tracker {name}: its package is not installed; pip install 'nmtkit[{name}]'")


def open_tracker(
    name: str, run_dir: Path, hyperparameters: dict[str, bool | int | float | str], first_step: int
) -> Any:
    """One of Accelerate's trackers, started: TensorBoard into RUN/tensorboard, Weights & Biases into RUN/wandb.

    Args:
        name: tensorboard or wandb.
        first_step: the update that training begins with in this session.

    Raises:
        NmtkitError: its package is missing, or it cannot start.
    """
    check_trackers([name])
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    if name == "tensorboard":
        # What an interrupted session logged after its last save is made again, and hidden.
        tracker = TensorBoardTracker("tensorboard", run_dir, purge_step=first_step)
        tracker.start()
        if not any((run_dir / "tensorboard").glob("*/hparams.yml")):
            tracker.store_init_configuration(hyperparameters)
        return tracker
    import wandb

    known = run_dir / "wandb" / "run-id"
    is_known = first_step > 1 and known.is_file()
    options = {"id": known.read_text(encoding="utf-8").strip(), "resume": "allow"} if is_known else {}
    settings = wandb.Settings(console="off", silent=not log.isEnabledFor(logging.INFO))
    (run_dir / "wandb").mkdir(parents=True, exist_ok=True)
    tracker = WandBTracker("nmtkit", name=run_dir.resolve().name, dir=str(run_dir), settings=settings, **options)
    try:
        tracker.start()
    except wandb.errors.Error as error:
        raise NmtkitError(f"--tracker wandb: {str(error).rstrip('.')}; or set WANDB_MODE=offline") from None
    known.write_text(tracker.run.id + "\n", encoding="utf-8")
    tracker.store_init_configuration(hyperparameters)
    return tracker


def launch(num_processes: int, arguments: Sequence[str]) -> int:
    """Runs `nmtkit ARGUMENTS` as that many processes on this machine and returns their exit code.

    Signals are passed on to all. When one process fails the others are ended, and the first one that failed is heard:
    a mistake that all make is told once.
    """
    with ExitStack() as stack:
        messages = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, num_processes)]
        children = _start_processes(num_processes, arguments, messages)

        def pass_on(number: int, _frame: object) -> None:
            for child in children:
                if child.poll() is None:
                    child.send_signal(number)

        previous: dict[int, Any] = {
            number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            failed = _wait_for_end(children)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if failed:
            messages[failed - 1].seek(0)
            sys.stderr.write(messages[failed - 1].read().decode("utf-8", errors="replace"))
    code = children[failed or 0].returncode
    return code if code >= 0 else 128 - code


def _start_processes(
    num_processes: int, arguments: Sequence[str], messages: Sequence[IO[bytes]]
) -> list[subprocess.Popen[bytes]]:
    """Starts the processes; all but the first write their messages into files."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(num_processes):
        environment = {
            "OMP_NUM_THREADS": str(threads_each(num_processes)),
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, "-m", "nmtkit", *arguments]
        output = messages[rank - 1] if rank else None
        children.append(subprocess.Popen(command, env=environment, stderr=output, start_new_session=True))
    return children


def _wait_for_end(children: list[subprocess.Popen[bytes]]) -> int | None:
    """Waits for all; ends the others when one fails, and returns which one that was."""
    while any(child.poll() is None for child in children):
        failed = [rank for rank, child in enumerate(children) if child.returncode not in (None, 0, 130, 143)]
        if failed:
            time.sleep(_SECONDS_TO_SPEAK)  # the first process shall tell of a mistake that all make
            for child in children:
                if child.poll() is None:
                    child.terminate()
            _wait_or_kill(children)
            return 0 if children[0].returncode not in (0, 143, -signal.SIGTERM) else failed[0]
        time.sleep(0.1)
    return next((rank for rank, child in enumerate(children) if child.returncode), None)


def _wait_or_kill(children: list[subprocess.Popen[bytes]], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
