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
from nmtkit.files import sha256_of_files, write_folder_atomically
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
    """
    stored: dict[str, Any] = {}
    with contextlib.suppress(DataError):  # missing or damaged
        stored = read_json(folder / _FACTS, dict)
    is_of_settings, files = stored.get("fingerprint") == fingerprint and "facts" in stored, stored.get("files")
    # Other files, such as .DS_Store, are no damage.
    if is_of_settings and isinstance(files, dict) and files.items() <= sha256_of_files(folder).items():
        log.info("%s is up to date", folder)
        return dict(stored["facts"])
    try:
        with write_folder_atomically(folder) as temporary:
            facts, sums = make(temporary)
            stored = {"fingerprint": fingerprint, "files": sha256_of_files(temporary, sums), "facts": facts}
            write_json(temporary / _FACTS, stored)
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: another stage is in it
            folder.parent.rmdir()
        raise
    # Read back, so that a preparation that was interrupted here and one that was not continue from equal values.
    return dict(read_json(folder / _FACTS)["facts"])
