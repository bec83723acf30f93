"""Rank, device, sums over all processes, and trackers; the only module that uses Accelerate.

`nmtkit train --processes N` starts N processes of the same command (distributed/launch.py); `accelerate launch` and
`torchrun` can start them too. Each process calls `Workers.start`, and all run the same code.
"""

import logging
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from nmtkit.console import LAUNCHED, counted, environment_number, is_launched, log
from nmtkit.distributed.cpu import choose_products, keep_freed_memory, limit_primitive_cache, set_products, set_threads
from nmtkit.distributed.heartbeat import STORE_TIMEOUT, Heartbeat, meet
from nmtkit.distributed.interpreter import collect_as_usual
from nmtkit.errors import NmtkitError, PeerLostError, in_one_line
from nmtkit.files import write_text

PEER_LOST = 75
"""Exit code of a process of `launch` that ended because another process was lost; `launch` reports the loss."""
GOING_ON = "; the same command goes on from the last save, if there was one"
"""End of the message about a lost process."""
_STARTING_TIMEOUT = timedelta(minutes=30)
"""Time limit for the processes to meet, and for an exchange; the heartbeat detects a lost process sooner."""
Precision = Literal["auto", "float32", "bf16", "fp16"]
ComputedPrecision = Literal["float32", "bf16", "fp16"]


def choose_device(device: str) -> torch.device:
    """Return the torch device for auto, cpu, cuda or mps; auto is cuda if there is one, else cpu.

    Raises:
        NmtkitError: the device is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        # Never mps, where torch has computed wrong results silently: pytorch issues 83015, 139550, 163597 and 189690.
        device = "cuda" if available["cuda"] else "cpu"
    elif device == "mps":
        log.warning("--device mps is untested, and several versions of torch compute wrong results on it")
    if device not in available:
        raise NmtkitError(f"--device {device}: choose auto, cpu, cuda or mps")
    if not available[device]:
        raise NmtkitError(f"--device {device}: torch finds no such device on this machine; choose auto or cpu")
    return torch.device(device)


def check_cuda(device: torch.device) -> None:
    """Raise NmtkitError if a CUDA device cannot compute, such as one for which this build of torch has no code."""
    name = torch.cuda.get_device_name(device)
    try:
        # item() waits for the kernel, whose error is only then reported.
        torch.zeros(1, device=device).add_(1).item()
    except RuntimeError as error:
        raise NmtkitError(
            f"torch cannot use {name} ({_in_short(error)}); free the GPU, install a "
            "build of torch for it, or give --device cpu"
        ) from None


def widest_float(device: torch.device) -> torch.dtype:
    """Return the type of sums on a device: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_processes(processes: int, device: str) -> None:
    """Raise NmtkitError if this machine has fewer devices than processes."""
    chosen = choose_device(device)
    available = {"cuda": torch.cuda.device_count() if chosen.type == "cuda" else 0, "mps": 1}.get(chosen.type)
    if available is not None and processes > available:
        devices = counted(available, f"{chosen.type} device")
        raise NmtkitError(
            f"{counted(processes, 'process')} on a machine with {devices}: each process needs its own; "
            f"start at most {available}"
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error means too little memory on any device; only CUDA has a separate exception for this."""
    # cuBLAS and cuDNN allocate memory of their own, and report a lack of it as a status only.
    words = (
        "out of memory", "DefaultCPUAllocator: can't allocate memory", "std::bad_alloc",
        "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED",
    )  # fmt: skip
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


@contextmanager
def holding_model() -> Iterator[None]:
    """Raise NmtkitError if memory runs out while a model or the state of its optimiser is allocated."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        raise NmtkitError(
            "out of memory: the model itself does not fit, whatever the batch size; take a smaller model, or a device "
            "with more free memory"
        ) from None


@dataclass(frozen=True)
class Workers:
    """This process and the others of its group (ranks). As a context manager, it leaves the group at the end.

    Attributes:
        rank: number of this process, from 0.
        num_processes: number of processes.
        device: device of this process.
        precision: precision of matrix multiplications; parameters and accumulators stay float32.
        heartbeat: observer of the other processes; None for one process.
        is_settled: the precision is not open any more, even if the recipe has `auto`.
    """

    rank: int
    num_processes: int
    device: torch.device
    precision: ComputedPrecision
    heartbeat: Heartbeat | None = field(default=None, repr=False, compare=False)
    is_settled: bool = False
    _flat: dict[tuple[torch.dtype, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def start(
        cls,
        device: str = "auto",
        precision: Precision = "auto",
        threads: int | None = None,
        *,
        for_training: bool = False,
        for_decoding: bool = False,
        is_alone: bool = False,
    ) -> "Workers":
        """Join the process group that the environment describes, if any.

        Args:
            is_alone: join no group, for work of a single process. Clusters set these variables for every command.
            for_training: see `limit_primitive_cache`.
            for_decoding: keep torch's default library for float32 products (see `choose_products`): decoding packs the
                matrices for which oneDNN is faster, and MKL is faster for the others.

        Raises:
            NmtkitError: the device is not available, or other processes do not join.
        """
        collect_as_usual()
        chosen = choose_device(device)
        rank, num_processes, heartbeat = 0, 1, None
        processes_here = 1 if is_alone else environment_number("LOCAL_WORLD_SIZE", 1)
        if not is_alone and environment_number("WORLD_SIZE", 1) > 1:
            check_processes(processes_here, device)
            rank, num_processes, chosen, heartbeat = _join(chosen)
        if chosen.type == "cuda":
            try:
                check_cuda(chosen)
            except NmtkitError as error:
                if heartbeat is not None:
                    heartbeat.stop(str(error))  # for the other processes
                raise
        keep_freed_memory()
        if chosen.type == "cpu" and for_training:
            limit_primitive_cache()
        if chosen.type == "cpu" and not for_decoding:
            choose_products()
        else:
            # Not left as it is: this process may have trained on the CPU before. A GPU would compute in TF32.
            set_products("highest")
        set_threads(threads, processes_here)
        return cls(rank, num_processes, chosen, resolve_precision(precision, chosen), heartbeat)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    @property
    def is_main(self) -> bool:
        """True for the process that writes files and messages."""
        return self.rank == 0

    @property
    def tokens_per_pass(self) -> int:
        """Padded tokens per micro-batch that fill this device."""
        return tokens_per_pass_of(self.device.type)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which matrix products run in the precision of this process."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16 if self.precision == "bf16" else torch.float16)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, the same on each."""
        if self.num_processes == 1:
            return tensor
        # A copy, as all_reduce works in place; on the device, as NCCL exchanges only tensors of its GPU.
        total = tensor.detach().to(self.device, copy=True)
        with self._exchanging():
            torch.distributed.all_reduce(total)
        return total.to(tensor.device)

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its sum over all processes, in one exchange.

        A missing gradient counts as zeros; one that every process lacks stays missing, as the optimizer passes over
        such a parameter and weight decay does not shrink it. The gradients become views of one flat tensor, which is
        kept for the next update.
        """
        if self.num_processes == 1:
            return
        sizes = [parameter.numel() for parameter in parameters]
        dtype, size = parameters[0].dtype, sum(sizes) + len(sizes)
        flat = self._flat.get((dtype, size))
        if flat is None:
            flat = self._flat[dtype, size] = torch.empty(size, dtype=dtype, device=parameters[0].device)
        *parts, present = flat.split([*sizes, len(sizes)])
        parts = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
        has_gradient = [parameter.grad is not None for parameter in parameters]
        present.copy_(torch.tensor(has_gradient), non_blocking=True)
        for part, parameter in zip(parts, parameters, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad)
            parameter.grad = None
        with self._exchanging():
            torch.distributed.all_reduce(flat)
        if not all(has_gradient):  # else there is no need to wait for the device
            has_gradient = present.bool().tolist()
        for part, parameter, is_present in zip(parts, parameters, has_gradient, strict=True):
            parameter.grad = part if is_present else None

    def gather(self, values: list[Any]) -> list[Any]:
        """Return the lists of all processes, joined in the order of ranks, the same on each."""
        if self.num_processes == 1:
            return values
        from accelerate.utils import gather_object

        with self._exchanging():
            gathered: list[Any] = gather_object(values)
        return gathered

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Raise NmtkitError on every process if the block raises it on one of them."""
        fault: NmtkitError | None = None
        try:
            yield
        except NmtkitError as error:
            fault = error
        messages = [each for each in self.gather([str(fault) if fault else None]) if each is not None]
        if messages:
            raise fault or NmtkitError(messages[0])

    def wait(self) -> None:
        """Wait for all processes."""
        # No barrier: torch gives it a tensor on the GPU of the local rank, even for processes that use the CPU.
        self.sum(torch.zeros(()))

    def close(self, error: BaseException | None = None) -> None:
        """Leave the process group; an error that ends this process is stored for the others."""
        if self.heartbeat is not None:
            blamed = str(error).removesuffix(GOING_ON) if isinstance(error, PeerLostError) else None
            failure = None if error is None else blamed or _in_short(error)
            self.heartbeat.stop(failure, is_of_others=blamed is not None)
        # After an error, other processes may be gone or waiting, so the group cannot be left in order.
        if self.num_processes > 1 and error is None:
            from accelerate import PartialState

            PartialState().destroy_process_group()

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Turn a broken connection into an error that names the process to blame."""
        try:
            yield
        except RuntimeError as error:
            if self.heartbeat is None or not _is_broken_connection(error):
                raise
            raise PeerLostError(self.heartbeat.blame(_in_short(error)) + GOING_ON) from None


def tokens_per_pass_of(device_type: str) -> int:
    """Return the padded tokens per micro-batch that fill a device of this type."""
    return 4096 if device_type == "cpu" else 16384


def _wait_for_port(host: str, port: int) -> None:
    """Wait until process 0 listens: that of `launch` may be downloading for hours, so only others have a time limit.

    torch's own waiting does not let Python handle signals.

    Raises:
        NmtkitError: the process that started this one is gone, or process 0 did not listen in time.
    """
    deadline = math.inf if is_launched() else time.monotonic() + _STARTING_TIMEOUT.total_seconds()
    while True:
        try:
            socket.create_connection((host, port), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise NmtkitError(f"process 0 does not listen on {host}:{port} ({error}); start it, too") from None
            if is_launched() and os.getppid() != environment_number(LAUNCHED):
                raise NmtkitError("the process that started this one is gone") from None
            time.sleep(0.1)


def _store(rank: int, num_processes: int, port: int, timeout: timedelta) -> Store:
    """Connect to the store of the processes, which process 0 serves, or the agent of torchrun."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        return store
    host = os.environ.get("MASTER_ADDR")
    if host is None:
        raise ValueError("MASTER_ADDR is missing")
    if rank:
        _wait_for_port(host, port)
    # As `rendezvous` does, but process 0 does not wait here for the others, as torch then handles no signals.
    return TCPStore(host, port, num_processes, rank == 0, timeout, wait_for_workers=False, multi_tenant=True)


def _join(device: torch.device) -> tuple[int, int, torch.device, Heartbeat]:
    """Meet the other processes; return rank, number of processes, device and heartbeat of this process."""
    from accelerate import PartialState
    from accelerate.utils import check_cuda_p2p_ib_support

    rank, num_processes = environment_number("RANK"), environment_number("WORLD_SIZE")
    environment_number("LOCAL_RANK", None if device.type == "cuda" else 0)  # Accelerate chooses the GPU by it
    port = environment_number("MASTER_PORT")
    if rank >= num_processes:
        raise NmtkitError(f"RANK = {rank}, but WORLD_SIZE = {num_processes}: ranks go from 0 to {num_processes - 1}")
    if port > 65535:
        raise NmtkitError(f"MASTER_PORT = {port}: ports go from 1 to 65535")
    try:
        store = _store(rank, num_processes, port, _STARTING_TIMEOUT)
        name = meet(store, rank, num_processes, device.type, _STARTING_TIMEOUT)
        if device.type == "cuda" and not check_cuda_p2p_ib_support():  # as `accelerate launch` does
            os.environ.setdefault("NCCL_P2P_DISABLE", "1")
            os.environ.setdefault("NCCL_IB_DISABLE", "1")
        group: dict[str, Any] = {"store": PrefixStore(f"{name}/group", store), "timeout": _STARTING_TIMEOUT}
        if device.type == "cpu":  # Accelerate prefers MPI, which ignores the store: without mpirun, each is alone
            group["backend"] = "gloo"
        state = PartialState(cpu=device.type == "cpu", rank=rank, world_size=num_processes, **group)
        # For the heartbeat: a connection serves one call at a time, and the main thread may wait in one.
        own_store = _store(rank, num_processes, port, STORE_TIMEOUT)
    except (RuntimeError, ValueError) as error:  # ValueError: MASTER_ADDR is missing
        if isinstance(error, RuntimeError) and not _is_broken_connection(error):
            raise
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise NmtkitError(f"cannot meet the other processes through {place}: {_in_short(error)}") from None

    def end(message: str) -> None:  # from a thread, while the main thread waits in an exchange that never ends
        if not is_launched():
            log.error("process %d: %s", rank, message + GOING_ON)
        os._exit(PEER_LOST if is_launched() else 1)

    store, parent = PrefixStore(name, own_store), environment_number(LAUNCHED, 0)
    return rank, num_processes, state.device, Heartbeat(store, rank, num_processes, end, parent=parent)


def _in_short(error: BaseException) -> str:
    """Return an error in one line, for messages of the other processes."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "stopped by a signal"
    return in_one_line(error)


def _is_broken_connection(error: RuntimeError) -> bool:
    """Return whether an exchange failed because of another process; gloo reports this only in the message text."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return re.search(r"connection|socket|timed out|broken pipe|by peer", str(error), re.IGNORECASE) is not None


def resolve_precision(precision: Precision, device: torch.device) -> ComputedPrecision:
    """Return the precision for "auto" without a trial: bf16 on CUDA devices of capability 8 and up, else float32.

    On a CPU, `training.precision` tries whether bf16 is faster.
    """
    if precision != "auto":
        return precision
    # 8 is Ampere, the first generation with bf16 matrix units.
    modern = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    return "bf16" if modern else "float32"


def check_trackers(names: Sequence[str]) -> None:
    """Raise NmtkitError if the package of a tracker is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise NmtkitError(f"--tracker {name}: {name} is not installed; run `pip install 'nmtkit[{name}]'`")


def open_tracker(
    name: str, run_dir: Path, hyperparameters: dict[str, bool | int | float | str], first_step: int
) -> Any:
    """Start one of Accelerate's trackers: TensorBoard in RUN/tensorboard, Weights & Biases in RUN/wandb.

    Args:
        name: tensorboard or wandb.
        first_step: first update of this session.

    Raises:
        NmtkitError: the package is missing, or the tracker cannot start.
    """
    check_trackers([name])
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    if name == "tensorboard":
        # Updates that an interrupted session logged after its last resume state are repeated, so hide the old ones.
        tracker = TensorBoardTracker("tensorboard", run_dir, purge_step=first_step)
        tracker.start()
        if not any((run_dir / "tensorboard").glob("*/hparams.yml")):
            tracker.store_init_configuration(hyperparameters)
        return tracker
    import wandb

    known = run_dir / "wandb" / "run-id"
    # With the id of its first session, a resumed run continues the same curves.
    identity = known.read_text(encoding="utf-8").strip() if first_step > 1 and known.is_file() else ""
    options = {"id": identity, "resume": "allow"} if identity else {}
    settings = wandb.Settings(console="off", silent=not log.isEnabledFor(logging.INFO))
    (run_dir / "wandb").mkdir(parents=True, exist_ok=True)
    tracker = WandBTracker("nmtkit", name=run_dir.resolve().name, dir=str(run_dir), settings=settings, **options)
    try:
        tracker.start()
    except wandb.errors.Error as error:
        raise NmtkitError(f"--tracker wandb: {str(error).rstrip('.')}; or set WANDB_MODE=offline") from None
    write_text(known, f"{tracker.run.id}\n")
    tracker.store_init_configuration(hyperparameters)
    return tracker
