"""Texts in plain files, tar and zip archives as streams. Nothing is ever unpacked to disk.

So a member called ``../x`` or ``/x`` leads nowhere, links are not members, and a member that expands without end is
stopped while it is read (``compression.py``).
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
from nmtkit.files import open_plain
from nmtkit.lines import open_binary

ARCHIVE_NAME = re.compile(r"\.(tar|tgz|txz|tar\.(gz|xz|bz2|zst)|zip)$", re.IGNORECASE)
# Names of members may contain brackets, so only a range of two digits is a pattern.
_NO_RANGE = re.compile(r"\[(?!\d-\d\])")
_NUM_LISTED = 5
_TAR_BYTES = 1 << 18


def is_archive(name: str) -> bool:
    """Return True for the name of a tar, possibly compressed, or a zip."""
    return ARCHIVE_NAME.search(name) is not None


def text_streams(
    path: Path, member: str | None, remedy: str = "name a member", *, is_pattern: bool = True
) -> Generator[io.BufferedIOBase, None, None]:
    """Yield the decompressed bytes of a file or of members of an archive; each stream is valid until the next one.

    Args:
        member: path in the archive; ``*`` stands for any characters and selects all members that match, ``[0-7]``
            stands for one digit. None: the file is no archive.
        remedy: ends the message that there is no such member.
        is_pattern: False: ``member`` is a name, as a user gives it.

    Raises:
        DataError: the archive cannot be read, has no such member, or it is a link.
    """
    if member is None:
        with open_binary(path) as stream:
            yield stream
        return
    if is_pattern:
        wanted = re.compile(fnmatch.translate(_NO_RANGE.sub("[[]", member).replace("?", "[?]")))
    else:
        wanted = re.compile(re.escape(posixpath.normpath(member)))
    opened = _zip_members(path, wanted) if path.name.lower().endswith(".zip") else _tar_members(path, wanted)
    is_found = False
    others: list[str] = []
    # Closes the archive at once if the reader of a stream stops early.
    with closing(opened):
        for name, content in opened:
            if content is None:
                others.append(name)
                continue
            is_found = True
            with decompressed(content, name, path.stat().st_size) as stream:
                yield stream
            if "*" not in member or not is_pattern:
                return
    if not is_found:
        more = f" and {len(others) - _NUM_LISTED} more" if len(others) > _NUM_LISTED else ""
        raise DataError(
            f"{path}: the archive has no member {member} (it has {', '.join(others[:_NUM_LISTED]) or 'none'}{more}); "
            f"{remedy}"
        )


_Members = Generator[tuple[str, io.BufferedIOBase | None], None, None]
"""Names of members, with a stream for those that are wanted."""


def _tar_members(path: Path, wanted: re.Pattern[str]) -> _Members:
    # "r|" only reads forward, as a compressed stream cannot seek.
    with open_binary(path) as file, tarfile.open(fileobj=file, mode="r|", bufsize=_TAR_BYTES) as archive:
        for entry in archive:
            # Archives of a whole folder (tar -c .) have names such as ./train.en.
            name = posixpath.normpath(entry.name)
            if not wanted.fullmatch(name):
                yield entry.name, None
            elif entry.isfile():
                yield name, cast(io.BufferedIOBase, archive.extractfile(entry))
            elif not entry.isdir():  # a pattern with * may match folders, too
                raise _not_a_file(path, name)


def _zip_members(path: Path, wanted: re.Pattern[str]) -> _Members:
    with open_plain(path) as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = posixpath.normpath(entry.filename)
            if entry.filename.endswith("/"):  # is_dir() fails for an empty name
                continue
            if not wanted.fullmatch(name):
                yield entry.filename, None
            # The upper half of the attributes is the mode of Unix; bit 0 of the flags means encrypted (APPNOTE 4.4.4).
            elif stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1:
                raise _not_a_file(path, name)
            else:
                check_expansion(f"{path}:{name}", entry.compress_size, entry.file_size)  # zipfile reads no more
                with archive.open(entry) as stream:
                    yield name, io.BufferedReader(cast(io.RawIOBase, stream))  # ZipExtFile.readline is slow


def _not_a_file(path: Path, name: str) -> DataError:
    return DataError(f"{path}: its member {name} is a link, encrypted or no file at all; take an archive with the text")
