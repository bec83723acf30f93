"""RUN/translations/manifest.json: what each translation of a run was made with, for whoever scores it.

`run` and `translate` write it, and `score` compares it with the recipe.
"""

from pathlib import Path
from typing import Any

from nmtkit.files import read_json, sha256_of, write_json


def recorded(run_dir: Path) -> dict[str, Any]:
    """For each test set that was translated what its translation was made with; {} where nothing is recorded."""
    manifest = run_dir / "translations" / "manifest.json"
    return dict(read_json(manifest)) if manifest.is_file() else {}


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
