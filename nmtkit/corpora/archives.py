"""Members of tar and zip archives as streams: an archive is read where it lies, and nothing of it is ever written.

So a member called ``../x`` or ``/x`` leads nowhere, a link is no member, and what a member unfolds to is read piece by
piece (``compression.py`` stops one that has no end).
"""

import fnmatch
import io
import posixpath
import re
import stat
import tarfile
import zipfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import cast

from nmtkit.compression import check_expansion, decompressed
from nmtkit.errors import DataError
from nmtkit.files import open_binary, open_plain

ARCHIVE_NAME = re.compile(r"\.(tar|tgz|txz|tar\.(gz|xz|bz2|zst)|zip)$", re.IGNORECASE)
_NO_RANGE = re.compile(r"\[(?!\d-\d\])")
_SHOWN = 5
_TAR_BYTES = 1 << 18


def is_archive(name: str) -> bool:
    """Whether the file of that name is a tar, possibly compressed, or a zip."""
    return ARCHIVE_NAME.search(name) is not None


def member_streams(path: Path, pattern: str) -> Generator[io.BufferedIOBase, None, None]:
    """The bytes of a member, decompressed if its name says so; of every one that fits, in turn, where ``*`` is in it.

    Each stream is good until the next one is asked for.

    Args:
        pattern: the member's path in the archive; ``*`` stands for any characters, ``[0-7]`` for one of these digits.

    Raises:
        DataError: the archive cannot be read, has no such member, or it is a link.
    """
    literal = _NO_RANGE.sub("[[]", pattern).replace("?", "[?]")
    wanted = re.compile(fnmatch.translate(literal))
    several = "*" in pattern
    opened = _zip_members(path, wanted) if path.name.lower().endswith(".zip") else _tar_members(path, wanted)
    found = False
    seen: list[str] = []
    with closing(opened):
        for name, stream in opened:
            if stream is None:
                seen.append(name)
                continue
            found = True
            with decompressed(stream, name) as unfolded:
                yield unfolded
            if not several:
                return
    if not found:
        listed = ", ".join(seen[:_SHOWN]) + (f" and {len(seen) - _SHOWN} more" if len(seen) > _SHOWN else "")
        raise DataError(
            f"{path}: the archive has no member {pattern} (it has {listed or 'none'}); it is damaged or another "
            "edition: delete it and fetch it again"
        )


_Members = Generator[tuple[str, io.BufferedIOBase | None], None, None]
"""Names of members, with a stream of those that are wanted."""


def _tar_members(path: Path, wanted: re.Pattern[str]) -> _Members:
    with open_binary(path) as file, tarfile.open(fileobj=file, mode="r|", bufsize=_TAR_BYTES) as archive:
        for entry in archive:
            name = posixpath.normpath(entry.name)
            if not wanted.fullmatch(name):
                yield entry.name, None
            elif entry.isfile():
                yield name, cast(io.BufferedIOBase, archive.extractfile(entry))
            elif not entry.isdir():
                raise _no_file(path, name)


def _zip_members(path: Path, wanted: re.Pattern[str]) -> _Members:
    with open_plain(path) as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = posixpath.normpath(entry.filename)
            if entry.filename.endswith("/"):  # is_dir() fails at an empty name
                continue
            if not wanted.fullmatch(name):
                yield entry.filename, None
            elif stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1:
                raise _no_file(path, name)
            else:
                check_expansion(f"{path}:{name}", entry.compress_size, entry.file_size)  # more it never gives
                with archive.open(entry) as stream:  # whose own lines are slow
                    yield name, io.BufferedReader(cast(io.RawIOBase, stream))


def _no_file(path: Path, name: str) -> DataError:
    return DataError(f"{path}: its member {name} is a link, encrypted or no file at all; take an archive with the text")
