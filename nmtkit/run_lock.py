"""One command at a time writes into a run folder: RUN/.lock is held for as long as that takes.

The lock is one of the operating system's (flock): a killed process holds it no longer, whatever file it leaves behind.
"""

import contextlib
import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmtkit.console import log
from nmtkit.errors import NmtkitError

LOCK_NAME = ".lock"
_WRITTEN_INTO = ("checkpoints", "resume", "metrics.jsonl", "recipe.toml")


@contextmanager
def locked_run(run_dir: Path, command: str) -> Iterator[None]:
    """Holds the lock of a run folder while the block runs; the folder is made where there is none.

    Args:
        command: who holds it, for the message to others: "train" or "prepare".

    Raises:
        NmtkitError: another process holds it, or the folder cannot be written.
    """
    path = run_dir / LOCK_NAME
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise _unwritable(run_dir, os.strerror(error.errno)) from None
    try:
        _check_writable(run_dir)
        with contextlib.suppress(OSError):  # on a full disk the lock holds just the same, without a name
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"nmtkit {command}, process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: see _lock
        os.close(descriptor)


def _lock(path: Path) -> int:
    """An open and locked file under ``path``."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode("utf-8", errors="replace") or "another process"
            os.close(descriptor)
            raise NmtkitError(
                f"{path.parent}: in use by {holder}; wait until it has ended, or take another --run-dir"
            ) from None
        except OSError as error:
            log.warning("%s cannot be locked (%s): see to it that nothing else uses this run", path, error.strerror)
            return descriptor
        # Whoever held the lock has removed the file on its way out: then this one is locked in vain.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


def _check_writable(run_dir: Path) -> None:
    for name in _WRITTEN_INTO:
        if (run_dir / name).exists() and not os.access(run_dir / name, os.W_OK):
            raise _unwritable(run_dir / name, "permission denied")


def _unwritable(path: Path, reason: str) -> NmtkitError:
    return NmtkitError(
        f"{path}: cannot be written ({reason[0].lower()}{reason[1:]}); correct that, or take another --run-dir"
    )
