"""RUN/translations: the translations of a run's test sets, and in manifest.json what each was made with.

`run` and `translate` write them; `score`, `compare` and `report` read them, and `score` compares the record with the
recipe.
"""

import shlex
from pathlib import Path
from typing import Any

from nmtkit.console import counted
from nmtkit.errors import DataError
from nmtkit.files import read_json, read_lines, sha256_of, write_json


def recorded(run_dir: Path) -> dict[str, Any]:
    """For each test set that was translated what its translation was made with; {} where nothing is recorded.

    Raises:
        DataError: the record is damaged.
    """
    manifest = run_dir / "translations" / "manifest.json"
    return read_json(manifest, {str: dict}) if manifest.is_file() else {}


def read_translated(run_dir: Path, name: str) -> tuple[list[str], list[str], list[str]]:
    """Sources, references and translations of a test set, line by line.

    Raises:
        DataError: it is not translated, or not as a whole.
    """
    output = translation_of(run_dir, name)
    source, reference = (run_dir / "data" / "test" / f"{name}.{side}.txt" for side in ("source", "reference"))
    if not output.is_file():
        command = shlex.join(["nmtkit", "translate", str(run_dir), "--input", str(source), "--output", str(output)])
        raise DataError(f"{output}: missing; make it with `{command}`")
    for path in (source, reference):
        if not path.is_file():
            raise DataError(f"{path}: no such file; prepare the run again")
    sources, references, hypotheses = read_lines(source), read_lines(reference), read_lines(output)
    if not len(hypotheses) == len(sources) == len(references):
        raise DataError(
            f"{output} has {counted(len(hypotheses), 'line')}, but the test set {name} has "
            f"{counted(len(sources), 'source')} and {counted(len(references), 'reference')}; translate it again"
        )
    return sources, references, hypotheses


def is_as_recorded(run_dir: Path, name: str, made_from: dict[str, Any]) -> bool:
    """Whether the translation of a test set is there, is what was written, and was made with just this."""
    output = translation_of(run_dir, name)
    known = recorded(run_dir).get(name)
    return known is not None and output.is_file() and known == {**made_from, "sha256": sha256_of(output)}


def record(run_dir: Path, name: str, made_from: dict[str, Any]) -> None:
    """Notes what the translation of a test set, which is written already, was made with."""
    entry = {**made_from, "sha256": sha256_of(translation_of(run_dir, name))}
    write_json(run_dir / "translations" / "manifest.json", {**recorded(run_dir), name: entry})


def translation_of(run_dir: Path, name: str) -> Path:
    """Where the translation of a test set lies."""
    return run_dir / "translations" / f"{name}.txt"


def set_translated_as(output: Path) -> tuple[Path, str] | None:
    """The run and its test set that a file is the translation of; None of any other file."""
    output = output.absolute()
    run_dir = output.parent.parent
    source = run_dir / "data" / "test" / f"{output.stem}.source.txt"
    is_one = output.parent.name == "translations" and output.suffix == ".txt" and source.is_file()
    return (run_dir, output.stem) if is_one else None
