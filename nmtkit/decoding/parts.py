"""Finished and begun parts of the translation of a file, so that processes share the work and it can be resumed.

    .OUTPUT.lock                             held by the first process, against other commands with the same output
    OUTPUT.parts/manifest.json               models, text, options and window size; if they differ, start over
    OUTPUT.parts/00000000-MADE_OF.output     the output for the first window of lines, written atomically
    OUTPUT.parts/00000000-MADE_OF.status     the lines of this window for --status
    OUTPUT.parts/00000001-MADE_OF.begun      the sentences that are translated of an unfinished window, a JSON line each

MADE_OF is a checksum of the manifest, so that windows of different translations never mix, even on a file system
without locks. Each window has a file, as several processes write at the same time, and a resumed translation may have
another number of processes.
"""

import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.console import log
from nmtkit.decoding.request import Translation
from nmtkit.errors import DataError
from nmtkit.files import TEMPORARY_MARK, remove_folder, remove_leftovers, write_atomically
from nmtkit.json_toml import append_json_line, read_json, write_json
from nmtkit.lines import LineReader
from nmtkit.locks import locked

POLL_SECONDS = 0.2
"""Interval in seconds of checks for finished windows of other processes."""
_MANIFEST = "manifest.json"
_KIND = "parts of a translation by nmtkit"


@dataclass(frozen=True)
class Written:
    """Output and status lines of a window, without line ends."""

    output: list[str]
    status: list[str]


class Begun(dict[tuple[int, int], list[Translation]]):
    """The translations found so far in a window by search and segment, which are appended to a file."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the file, if there is one; without a path, nothing is saved."""
        super().__init__()
        content = path.read_bytes() if path is not None and path.is_file() else b""
        *rows, rest = content.split(b"\n")
        if path is not None and rest:  # a kill has cut this row short
            os.truncate(path, len(content) - len(rest))
        for row in rows:
            with suppress(ValueError, TypeError, AttributeError):  # a fault of the disk
                search, segment, found = json.loads(row)
                found = [{key: tuple(v) if isinstance(v, list) else v for key, v in one.items()} for one in found]
                self[search, segment] = [Translation(**fields) for fields in found]
        self._path, self._num_saved, self._last = path, len(self), time.monotonic()

    def save(self, *, interval: float = 0.0) -> None:
        """Append the new translations, unless the last ones were saved less than ``interval`` seconds before."""
        if self._path is not None and time.monotonic() - self._last >= interval:
            for key, found in itertools.islice(self.items(), self._num_saved, None):
                append_json_line(self._path, [*key, [vars(one) for one in found]])
                self._num_saved += 1
            self._last = time.monotonic()


class Parts:
    """The folder of finished windows.

    Attributes:
        window_lines: lines per window; on resumption those of the existing windows.
    """

    def __init__(self, output: Path, made_of: dict[str, Any], window_lines: int) -> None:
        """Name the folder without reading or writing; ``made_of``: all that decides the output, as JSON values."""
        self.folder = output.parent / f"{output.name}.parts"
        self.window_lines = window_lines
        self._output = output
        self._made_of = made_of

    def locked(self, command: str) -> AbstractContextManager[None]:
        """Lock the output for the processes of a command, which others name in messages, for a `with` block.

        Raises:
            NmtkitError: another translation is writing the output.
            DataError: the folder of the output cannot be created.
        """
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise DataError(f"{self._output.parent}: Not a directory; take another --output") from None
        return locked(self._output.with_name(f".{self._output.name}.lock"), self._output, command, "--output")

    def begin(self) -> int:
        """Prepare the folder, in the first process before all others, and return the number of finished windows.

        Windows of another translation are removed. Anything else in the folder is kept and raises DataError.
        """
        self._check_own_folder()
        requested = self.window_lines
        if self.folder.exists() and not self._resume():
            if any(TEMPORARY_MARK not in entry.name for entry in self.folder.iterdir()):
                made_of = (self._manifest() or {}).get("made_of")
                old = made_of if isinstance(made_of, dict) else self._made_of
                keys = ", ".join(key for key, value in self._made_of.items() if old.get(key) != value)
                differs = f" ({keys})" if keys else ""
                log.info("%s belongs to another text, model or option%s; starting over", self.folder, differs)
            remove_folder(self.folder)
        # The size of earlier windows is kept for the sake of finished or begun ones only.
        if not any(self.folder.glob(f"*-{self._mark}.*")):
            self.window_lines = requested
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder, is_ours=True)
        manifest = {"kind": _KIND, "made_of": self._made_of, "window_lines": self.window_lines}
        try:
            write_json(self.folder / _MANIFEST, manifest)
        except OSError:  # such as a full disk
            with suppress(OSError):  # where it holds finished parts
                self.folder.rmdir()
            raise
        return sum(1 for _ in self.folder.glob(f"*-{self._mark}.output"))

    def check(self) -> None:
        """Raise DataError if the folder that the first process has prepared is for a different translation."""
        if not self._resume():
            raise DataError(
                f"{self.folder}: the processes found different models, text or devices; do not change them while "
                "they are in use, and run the same command again"
            )

    def disown(self) -> None:
        """Make the next translation start over; other processes may still write windows."""
        (self.folder / _MANIFEST).unlink(missing_ok=True)

    def num_begun(self) -> int:
        """Return the number of translated sentences of unfinished windows."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob(f"*-{self._mark}.begun"))

    def begun(self, number: int) -> Begun:
        """Return what has been translated of an unfinished window."""
        return Begun(self._file(number, "begun"))

    def _check_own_folder(self) -> None:
        """Raise DataError if the path is anything else than a folder of windows, as it would be removed."""
        other = None
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            other = "it is not a folder"
        elif self.folder.exists():
            own = re.compile(rf"\d{{8}}-[0-9a-f]{{12}}\.(output|status|begun)|{re.escape(_MANIFEST)}|\.DS_Store")
            names = [entry.name for entry in self.folder.iterdir()]
            other = next((f"{x} in it" for x in names if not own.fullmatch(x) and TEMPORARY_MARK not in x), None)
            if other is None and _MANIFEST in names and self._manifest() is None:
                other = f"{_MANIFEST} in it"
        if other is not None:
            raise DataError(
                f"{self.folder}: needed for finished parts, but used for something else ({other}); rename it, or "
                "take another --output"
            )

    def _manifest(self) -> dict[str, Any] | None:
        try:
            manifest = read_json(self.folder / _MANIFEST)
        except DataError:
            return None
        return manifest if isinstance(manifest, dict) and manifest.get("kind") == _KIND else None

    def _resume(self) -> bool:
        """Return whether the finished windows belong to this translation; if so, adopt their window size."""
        manifest = self._manifest() or {}
        window_lines = manifest.get("window_lines")
        if manifest.get("made_of") != self._made_of or not isinstance(window_lines, int) or window_lines < 1:
            return False
        self.window_lines = window_lines
        return True

    @property
    def _mark(self) -> str:
        made_of = json.dumps(self._made_of, sort_keys=True)
        # The size of windows decides which lines a number stands for.
        return hashlib.sha256(f"[{made_of}, {self.window_lines}]".encode()).hexdigest()[:12]

    def _file(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:08d}-{self._mark}.{kind}"

    def has(self, number: int) -> bool:
        """Return whether a window is finished."""
        return self._file(number, "output").is_file()

    def wait_for(self, count: int) -> None:
        """Wait for the windows of all processes; the heartbeat ends this process if another one has died."""
        for number in range(count):
            while not self.has(number):
                time.sleep(POLL_SECONDS)

    def write(self, number: int, written: Written) -> None:
        """Write a window; the output comes last, as it marks the window as finished."""
        for kind, lines in (("status", written.status), ("output", written.output)):
            with write_atomically(self._file(number, kind), is_new=True) as file:
                file.writelines(f"{line}\n" for line in lines)
        # Last: a kill before it leaves a file that is not read again, as the window is finished.
        self._file(number, "begun").unlink(missing_ok=True)

    def statuses(self, count: int) -> Iterator[str]:
        """Yield the status lines of all windows."""
        for number in range(count):
            yield from LineReader(self._file(number, "status"))

    def join(self, count: int, outputs: Sequence[tuple[str, Path]], record: Callable[[], None] = lambda: None) -> None:
        """Join all windows of each kind ("output", "status") in ``outputs`` to its file, and remove the folder.

        Args:
            record: see `translate_file`.
        """
        with ExitStack() as files:  # all are written before one appears
            for kind, path in outputs:
                file = files.enter_context(write_atomically(path))
                for number in range(count):
                    file.write(self._file(number, kind).read_bytes().decode("utf-8"))
                file.flush()
        try:
            record()
        # After any other error the folder stays, and the same command joins the windows again.
        except DataError:  # the output cannot be used
            remove_folder(self.folder)
            raise
        remove_folder(self.folder)
