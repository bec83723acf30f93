"""Atomic writing of files and folders; their leftovers, links, checksums and space.

Files and folders are written under a temporary name, synced and renamed, so a file that exists is complete.
"""

import ctypes
import errno
import glob
import hashlib
import io
import math
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from nmtkit.compression import compressed
from nmtkit.console import log
from nmtkit.errors import DataError, NmtkitError

TEMPORARY_MARK = ".nmtkit-tmp-"
_REPLACED, _REMOVED = "-old", "-gone"
"""Suffixes of temporary names, for a folder that is being replaced or removed."""
ABANDONED_SECONDS = 600.0
"""Age from which a temporary file of another host counts as abandoned where its path is written again."""
# File systems take names of 255 bytes; the mark, a host name of up to 64 and a process number are added.
_LONGEST_NAME_BYTES = 128
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors about what this user may not write."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Parameters of renameat2(2), from fcntl.h and linux/fs.h."""


def sync_and_forget(path: Path) -> None:
    """Write a file to disk and, if possible, drop it from the page cache, so that it is read back from disk."""
    with path.open("rb") as file:
        # POSIX_FADV_DONTNEED drops only pages that are on disk already, so sync first.
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sync(path: Path) -> None:
    """Make the content of a file, or the renames inside a folder, durable, as far as the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Network file systems and those shared with a virtual machine may refuse it for folders.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP)):
            raise
    finally:
        os.close(descriptor)


def _temporary(path: Path, kind: str = "") -> Path:
    """Return the temporary name of this process for ``path``."""
    return path.with_name(f".{_short_name(path)}{TEMPORARY_MARK}{platform.node()}-{os.getpid()}{kind}")


def _short_name(path: Path) -> str:
    """Return the name of a file, or a hash of it if a temporary name could be too long for the file system."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= _LONGEST_NAME_BYTES else hashlib.sha256(name).hexdigest()[:32]


def _cleared_temporary(path: Path, *, is_new: bool = False) -> Path:
    """Return the temporary name for ``path``, after removing or restoring leftovers of killed processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise DataError(f"{path.parent}: is no folder, so {path.name} cannot be in it; choose another one") from None
    # Names of corpora and test sets may hold [ and *, which are patterns unless they are escaped.
    pattern = glob.escape(f".{_short_name(path)}{TEMPORARY_MARK}") + "*"
    for entry in () if is_new else path.parent.glob(pattern):
        if not _is_in_use(entry):
            _clear(entry, path)
    return _temporary(path)


def _is_in_use(entry: Path, abandoned_seconds: float = ABANDONED_SECONDS) -> bool:
    """Return whether a process may still write ``entry``: it runs on this host, or the entry of another host is new."""
    owner = re.fullmatch(rf"(?:(.+)-)?(\d+)({_REPLACED}|{_REMOVED})?", entry.name.rpartition(TEMPORARY_MARK)[2])
    if owner is None:
        return False
    if owner[1] in (None, platform.node()):
        return _is_running(int(owner[2]))
    return entry.exists() and time.time() - entry.stat().st_mtime < abandoned_seconds


def _is_running(process: int) -> bool:
    try:
        # Signal 0 is not sent: the call only checks that the process exists.
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: the number in the name is too large
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _clear(entry: Path, original: Path | None = None) -> bool:
    """Remove a leftover, or restore a folder whose replacement was interrupted; return whether it was removed."""
    original = original or entry.with_name(entry.name.rpartition(TEMPORARY_MARK)[0].removeprefix("."))
    if entry.name.endswith(_REPLACED) and not original.exists():
        entry.rename(original)
        return False
    # Of a link to a folder, only the link is removed.
    if entry.is_dir() and not entry.is_symlink():
        return _remove_all(entry)
    entry.unlink(missing_ok=True)
    return True


def _remove_all(folder: Path) -> bool:
    """Remove a folder of a temporary name, and return whether it is gone.

    NFS and FUSE keep files that are in use, under hidden names; the next start removes them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if any(path.is_file() for path in folder.rglob("[!.]*")):
        shutil.rmtree(folder)  # raises the reason
    return not folder.exists()


def _abandon(folder: Path, path: Path) -> None:
    """Give the folder that is or was at ``path`` a temporary name, and remove it."""
    abandoned = _temporary(path, _REMOVED)
    shutil.rmtree(abandoned, ignore_errors=True)
    # Renamed first: if this process is killed meanwhile, no incomplete folder has the old name.
    if _renamed(folder, abandoned):
        _remove_all(abandoned)


def _renamed(folder: Path, new: Path) -> bool:
    """Rename a folder; one in the image of a container, which cannot be renamed (overlayfs), is removed instead."""
    try:
        folder.rename(new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.rmtree(folder)
        return False
    return True


def expanded(path: str) -> Path:
    """Return a path in which ~ and ~USER are home folders; before an unknown user, ~ is part of a name."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):  # ValueError: a NUL in the name
        return Path(path)


def is_stream(path: Path) -> bool:
    """Return whether a path is an open file or something that cannot be replaced, such as a pipe or a device."""
    return _descriptor(path) is not None or (path.exists() and not path.is_file() and not path.is_dir())


def _descriptor(path: Path) -> int | None:
    """Return the descriptor for a name of an open file such as /dev/stdout or /dev/fd/63; None for other names."""
    match = re.fullmatch(r"/dev/std(?:(out)|err)|/(?:dev|proc/self)/fd/(\d+)", str(path))
    if match is None or not path.exists():
        return None
    return int(match[2]) if match[2] else 1 if match[1] else 2


@contextmanager
def write_bytes_atomically(path: Path, *, is_new: bool = False) -> Iterator[BinaryIO]:
    """Open a binary file that appears under ``path``, complete and synced, when the block ends without an error.

    A stream, such as /dev/stdout or a pipe, is written directly; of a link, the target is replaced.

    Args:
        is_new: do not look for leftovers of this file, which takes long in a folder of many files.

    Raises:
        DataError: ``path`` is a folder or a mount point.
    """
    if is_stream(path):
        # A duplicate of the descriptor, as the end of the block must not close stdout itself.
        number = _descriptor(path)
        with io.BufferedWriter(_NamedFile(path if number is None else os.dup(number), path)) as file:
            yield file
        return
    path = path.resolve()
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a file")
    temporary = _cleared_temporary(path, is_new=is_new)
    try:
        with naming(path):
            binary = _NamedFile(temporary, path)
            if path.is_file():  # a private file stays private
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        with io.BufferedWriter(binary) as file:
            yield file
            with naming(path):
                file.flush()
                # Before the rename: after a power cut, the name must not stand for an empty file.
                os.fsync(file.fileno())
        with naming(path):
            try:
                temporary.replace(path)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                raise DataError(f"{path}: is a mount point, which cannot be replaced; name another file") from None
    except BrokenPipeError as error:
        # As it is, it would end the command without an error: the reader of its only output may have seen enough.
        reader = f"the reader of {error.filename}" if error.filename else "a reader of the output"
        raise DataError(f"{path}: not written, because {reader} ended before all was written") from None
    finally:
        temporary.unlink(missing_ok=True)
    # The rename itself is on disk only when its folder is.
    sync(path.parent)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Set the file name of I/O errors, which is a temporary one, or none for a full or damaged disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # else a file name would replace the message
            error.filename = str(path)
        raise


class _NamedFile(io.FileIO):
    """A temporary file whose I/O errors name the final path."""

    def __init__(self, file: Path | int, path: Path) -> None:
        super().__init__(file, "wb")
        self._path = path

    def write(self, data: Any, /) -> int:
        with naming(self._path):
            return super().write(data)


def follow_umask(path: Path) -> None:
    """Give a file the mode of other new files, as some libraries make files readable by the owner only."""
    # POSIX reads the mask only by setting it. Files that other threads create meanwhile are private, not open to all.
    mask = os.umask(0o077)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file, or a folder with its contents, to a second path; copy if links are impossible."""
    if source.is_dir() and not source.is_symlink():
        target.mkdir()
        for entry in source.iterdir():
            link_or_copy(entry, target / entry.name)
        return
    try:
        os.link(source, target, follow_symlinks=False)
    # Two file systems, or one without hard links.
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


@contextmanager
def write_atomically(path: Path, *, is_new: bool = False) -> Iterator[TextIO]:
    """Open a UTF-8 text file as in `write_bytes_atomically`, with ``\\n`` line ends, compressed by its suffix."""
    with write_bytes_atomically(path, is_new=is_new) as file, compressed(file, path.name) as binary:
        text = io.TextIOWrapper(cast(BinaryIO, binary), encoding="utf-8", newline="\n", write_through=False)
        try:
            yield text
            text.flush()
        finally:
            # Without this, the wrapper would close the stream below it, which its own block closes.
            text.detach()


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file as `write_atomically` does."""
    with write_atomically(path) as file:
        file.write(text)


@contextmanager
def write_folder_atomically(path: Path) -> Iterator[Path]:
    """Make a folder that appears under ``path``, complete and synced, when the block ends without an error.

    An existing folder is replaced only once the new one is complete.

    Raises:
        DataError: the path is not valid UTF-8, or is a mount point, the current folder or around it.
    """
    path = path.resolve()
    if path.is_mount():
        raise DataError(f"{path}: is a mount point, which cannot be replaced; name a folder inside of it")
    try:
        str(path).encode()  # safetensors and CTranslate2 open no other paths
    except UnicodeEncodeError:
        raise DataError(f"{path}: not valid UTF-8; choose another name for this folder") from None
    with suppress(FileNotFoundError):  # the current folder may be gone
        if path.exists() and Path.cwd().is_relative_to(path):
            raise DataError(f"{path}: the current folder would be replaced; leave it first, or name another folder")
    with scratch_folder(path) as temporary:
        try:
            yield temporary
            for file in temporary.rglob("*"):  # a link may lead nowhere, and a pipe would block
                if not file.is_symlink() and (file.is_file() or file.is_dir()):
                    sync(file)
            sync(temporary)
            if path.exists():
                _replace_folder(path, temporary)
            else:
                temporary.rename(path)
            sync(path.parent)
        # Messages name the final path, as the temporary folder is removed.
        except OSError as error:
            error.filename = str(error.filename or path).replace(str(temporary), str(path))
            raise
        except NmtkitError as error:
            error.args = (str(error).replace(str(temporary), str(path)),)
            raise


@contextmanager
def optional_write(path: Path) -> Iterator[None]:
    """Warn, instead of raising an error, if a file may not be written, such as one in somebody else's folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in NOT_ALLOWED:
            raise
        log.warning("%s is not written: %s", path, error.strerror)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Make a temporary folder beside ``path`` that is removed when the block ends."""
    temporary = _cleared_temporary(path)
    # Left by a killed process that had the number of this one, so it counted as in use.
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(path: Path, new: Path) -> None:
    """Replace ``path`` by ``new``, in one step if the system supports it, else in two.

    After a kill between the two steps, the next start restores the old folder from its temporary name; only a folder in
    the image of a container, which cannot be renamed, is lost.
    """
    if not exchange(path, new):
        old = _temporary(path, _REPLACED)
        shutil.rmtree(old, ignore_errors=True)
        is_kept = _renamed(path, old)
        new.rename(path)
        if is_kept:
            _abandon(old, path)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two paths in one step (renameat2 of Linux); return False if the system does not support it."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    # ENOSYS: the kernel is too old. EINVAL: the file system does not know the flag (renameat2(2)).
    # EXDEV: see _renamed.
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), str(first))


def remove_leftovers(folder: Path, *, is_ours: bool = False) -> list[Path]:
    """Remove temporary files and folders of killed processes from ``folder``, and return those removed.

    Args:
        is_ours: remove all, as no other process can be writing there (see Run.locked); else keep those that a running
            process may be writing, and all of other hosts.
    """
    if not folder.is_dir():
        return []
    leftovers = [entry for entry in sorted(folder.iterdir()) if TEMPORARY_MARK in entry.name]
    return [entry for entry in leftovers if (is_ours or not _is_in_use(entry, math.inf)) and _clear(entry)]


def remove_folder(path: Path) -> None:
    """Remove a folder; after a kill, only a temporary name is left, which the next start removes.

    Of a link to a folder, only the link is removed.
    """
    if path.is_symlink():
        path.unlink()
        return
    _cleared_temporary(path)
    _abandon(path, path)


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the file system of ``folder``, which need not exist yet."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def check_space(folder: Path, num_bytes: int, purpose: str) -> None:
    """Raise NmtkitError unless the file system of ``folder`` has at least ``num_bytes`` free."""
    free = free_bytes(folder)
    if free < num_bytes:
        raise NmtkitError(
            f"{folder}: {purpose} needs {num_bytes / 1e6:,.1f} MB, but only {free / 1e6:,.1f} MB are free there; "
            "make room and run the same command again"
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal."""
    check_regular(path)
    with open_plain(path) as file, naming(path):
        return hashlib.file_digest(cast(io.BufferedReader, file), "sha256").hexdigest()


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading its stored bytes, compressed or not; raise DataError as `open_binary` does."""
    try:
        file = path.open("rb")
        # Of the open file, as another one could take the name between a check and the opening.
        status = os.fstat(file.fileno())
        if stat.S_ISCHR(status.st_mode) and not file.isatty() and status.st_rdev != Path(os.devnull).stat().st_rdev:
            file.close()
            raise DataError(f"{path}: a device such as /dev/zero, which never ends; name a file")
        return file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, not a file") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read (permission denied)") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def sha256_of_files(folder: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the SHA-256 of all files below ``folder`` by relative path.

    Args:
        known: SHA-256 of files that need not be read.
    """
    files = {entry.relative_to(folder).as_posix(): entry for entry in sorted(folder.rglob("*")) if entry.is_file()}
    return {name: (known or {}).get(name) or sha256_of(file) for name, file in files.items()}


def is_of_file_manager(name: str) -> bool:
    """Return whether a file of this name is made by a file manager, or hidden."""
    return name.startswith(".") or name in ("Thumbs.db", "desktop.ini", "@eaDir")


def as_text(name: str | Path) -> str:
    """Return the name of a file as text that can be written as UTF-8; invalid bytes are escaped."""
    return str(name).encode("utf-8", "backslashreplace").decode("utf-8")


def check_regular(path: Path) -> None:
    """Raise DataError for a path that is no file: a pipe would block, a device would never end."""
    if not path.is_file() and not path.is_dir() and path.exists():
        raise DataError(f"{path}: not a regular file")


def remove_pipe(path: Path) -> None:
    """Remove what is in the way of a file of a run and no file: writing to a pipe would wait for a reader."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.unlink()


def content_of(path: Path) -> bytes:
    """Return the bytes of a regular file; raise DataError where it is none."""
    check_regular(path)
    with open_plain(path) as file, naming(path):
        return file.read()
