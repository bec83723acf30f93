"""Stages of `prepare`: folders written atomically, each with a fingerprint of all that decides its content.

A preparation that was killed continues after the last finished stage, and a changed setting repeats only the stages
that depend on it.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmtkit.console import log
from nmtkit.errors import DataError
from nmtkit.files import is_of_file_manager, sha256_of_files, write_folder_atomically
from nmtkit.json_toml import read_json, write_json

_FACTS = "stage.json"


def fingerprint_of(*decisive: Any) -> str:
    """Return the SHA-256 of the given values, as hexadecimal digits."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def finished_stage(
    folder: Path, fingerprint: str, make: Callable[[Path], tuple[dict[str, Any], dict[str, str]]]
) -> dict[str, Any]:
    """Return the facts stored with a stage; make it first if its folder is absent, damaged or of other settings.

    Args:
        make: function that fills a new folder, and returns the facts and the sha256 sums of large files in it.

    Raises:
        DataError: the folder is no stage, so it is the user's.
    """
    stored: dict[str, Any] = {}
    with contextlib.suppress(DataError):  # missing or damaged
        stored = read_json(folder / _FACTS, dict)
    is_whole = stored.pop("sum", None) == fingerprint_of(stored)
    # Other files, such as .DS_Store, are no damage.
    if is_whole and stored["fingerprint"] == fingerprint and stored["files"].items() <= sha256_of_files(folder).items():
        log.info("%s is up to date", folder)
        return dict(stored["facts"])
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    is_foreign = _FACTS not in names and not all(map(is_of_file_manager, names))
    if is_foreign or folder.is_file():
        raise DataError(f"{folder} would be replaced, but is no stage of nmtkit; move it, or take another --run-dir")
    try:
        with write_folder_atomically(folder) as temporary:
            facts, sums = make(temporary)
            stored = {"fingerprint": fingerprint, "files": sha256_of_files(temporary, sums), "facts": facts}
            stored = json.loads(json.dumps(stored))  # as it is read: keys that are numbers become text
            write_json(temporary / _FACTS, {**stored, "sum": fingerprint_of(stored)})
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: another stage is in it
            folder.parent.rmdir()
        raise
    return dict(stored["facts"])
