"""Locks, so that only one command at a time writes to a run folder or to the output of a translation.

They are locks of the operating system (flock), so a killed process releases its lock even if the file remains.
filelock can neither name the holder of a lock nor detect that the lock file was removed.
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
def locked(path: Path, target: Path, command: str, option: str, *, waits: bool = False) -> Iterator[None]:
    """Hold a lock for the duration of a `with` block.

    Args:
        path: lock file, which is created and removed.
        target: file or folder that the lock protects, for messages.
        command: name of the locking command, for messages of other processes.
        option: option by which another target can be chosen, for messages.
        waits: wait while another process holds the lock.

    Raises:
        NmtkitError: another process holds the lock, unless ``waits``.
    """
    descriptor = _lock(path, target, option, waits=waits)
    try:
        with contextlib.suppress(OSError):  # on a full disk, the lock works without a name in it
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"nmtkit {command}, process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while the lock is held; see _lock
        os.close(descriptor)


def _lock(path: Path, target: Path, option: str, *, waits: bool) -> int:
    """Return the descriptor of the locked file ``path``."""
    while True:
        # Without O_TRUNC, as the file may hold the name of another process that has the lock.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode("utf-8", errors="replace") or "another process"
            os.close(descriptor)
            raise NmtkitError(
                f"{target}: in use by {holder}; wait until it has ended, or use another {option}"
            ) from None
        # A file system without locks: refusing would leave no way to work there.
        except OSError as error:
            log.warning(
                "%s cannot be locked (%s); make sure that no other process writes %s", path, error.strerror, target
            )
            return descriptor
        # The previous holder may have removed the file meanwhile; then this lock is on a deleted file: try again.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)
