"""Stages of `prepare`: each is a folder that is whole or not there, with a fingerprint of all that decides its content.

A run that was killed goes on after the last whole stage, and a changed setting redoes only the stages it concerns.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmtkit.console import log
from nmtkit.errors import DataError
from nmtkit.files import read_json, sha256_of_files, write_folder_atomically, write_json

_FACTS = "stage.json"


def fingerprint_of(*decisive: Any) -> str:
    """A sum over what decides a content."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def finished_stage(folder: Path, fingerprint: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Makes sure that the folder of a stage is what its fingerprint says, and gives the facts noted with it.

    Args:
        make: fills a new folder and gives its facts; called only where there is none of that fingerprint, undamaged.
    """
    facts = _facts(folder, fingerprint)
    if facts is None:
        try:
            with write_folder_atomically(folder) as temporary:
                made = make(temporary)
                noted = {"fingerprint": fingerprint, "files": sha256_of_files(temporary), "facts": made}
                write_json(temporary / _FACTS, noted)
        except BaseException:
            with contextlib.suppress(OSError):  # unless another stage is in it
                folder.parent.rmdir()
            raise
        # Read back, so that a preparation that goes on from here and one that was not stopped see the same.
        facts = read_json(folder / _FACTS)["facts"]
    else:
        log.info("%s is up to date", folder)
    found: dict[str, Any] = facts
    return found


def _facts(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """The facts of a whole folder of that fingerprint."""
    try:
        noted = read_json(folder / _FACTS, dict) if (folder / _FACTS).is_file() else {}
    except DataError:
        return None
    if noted.get("fingerprint") != fingerprint:
        return None
    files = sha256_of_files(folder)
    del files[_FACTS]
    return noted.get("facts") if files == noted.get("files") else None
