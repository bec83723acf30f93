"""Locks, so that only one process at a time writes to a run folder, to an output or to a download.

They are locks of the operating system (flock), so a killed process releases its lock even if the file remains.
filelock can neither name the holder of a lock nor detect that the lock file was removed.
"""

import contextlib
import errno
import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nmtkit.console import log
from nmtkit.errors import NmtkitError

_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that have no locks, such as some network file systems."""


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

    def refuse(file: BinaryIO) -> None:
        if not waits:
            holder = file.read(1000).decode("utf-8", errors="replace") or "another process"
            raise NmtkitError(f"{target}: in use by {holder}; wait until it has ended, or use another {option}")

    try:
        file = open_locked(path, refuse, f"make sure that no other process writes {target}")
    except OSError as error:
        error.filename = str(target)  # for the message
        raise
    with file:
        try:
            with contextlib.suppress(OSError):  # on a full disk, the lock works without a name in it
                file.truncate(0)
                file.write(f"nmtkit {command}, process {os.getpid()} on {platform.node()}".encode())
            yield
        finally:
            path.unlink(missing_ok=True)  # while the lock is held; see open_locked


def open_locked(path: Path, when_held: Callable[[BinaryIO], None], advice: str) -> BinaryIO:
    """Open a file without a buffer, creating it if need be, and lock it until it is closed.

    Args:
        when_held: called with the file while another process holds the lock; it returns to wait, or raises an error.
        advice: for the warning on a file system without locks, as refusing would leave no way to work there.
    """
    while True:
        # Without O_TRUNC, as the file may hold something of the process that has the lock.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                when_held(file)
                fcntl.flock(file, fcntl.LOCK_EX)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _WITHOUT_LOCKS:
                log.warning("%s cannot be locked (%s); %s", path, error.strerror, advice)
                return file
            file.close()
            raise
        # The previous holder may have renamed or removed the file meanwhile; then this lock is useless: try again.
        if is_at(file, path):
            return file
        file.close()


def is_at(file: BinaryIO, path: Path) -> bool:
    """Return True if an open file is still the one at ``path``."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
