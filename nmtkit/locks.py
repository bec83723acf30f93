"""One command at a time writes into a run folder, or a translation to its output: a lock is held for so long.

The lock is one of the operating system's (flock): a killed process holds it no longer, whatever file it leaves behind.
"""

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmtkit.console import log
from nmtkit.errors import NmtkitError


@contextmanager
def locked(path: Path, what: Path, command: str, option: str) -> Iterator[None]:
    """Hold a lock while the block runs.

    Args:
        path: the file that is locked; it is made and removed.
        what: what is to be written by one process at a time.
        command: who holds it, for the message to others.
        option: with which others can take something else than ``what``.

    Raises:
        NmtkitError: another process holds it.
    """
    descriptor = _lock(path, what, option)
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds just the same, without a name
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"nmtkit {command}, process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: see _lock
        os.close(descriptor)


def _lock(path: Path, what: Path, option: str) -> int:
    """An open and locked file under ``path``."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode("utf-8", errors="replace") or "another process"
            os.close(descriptor)
            raise NmtkitError(f"{what}: in use by {holder}; wait until it has ended, or use another {option}") from None
        except OSError as error:
            log.warning(
                "%s cannot be locked (%s); make sure that no other process writes %s", path, error.strerror, what
            )
            return descriptor
        # Whoever held the lock has removed the file on its way out: then this one is locked in vain.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)
