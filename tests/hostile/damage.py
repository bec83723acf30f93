"""What can be done to a file of a project, in steps that a case lists by name."""

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

DIGITS, DEEP, NAN = "@digits@", "@deep@", "@nan@"
VALUES: dict[str, Any] = {
    "null": None, "text": "x", "empty text": "", "list": [], "list of numbers": [1, 2], "object": {},
    "nested object": {"a": {"b": [{}]}}, "true": True, "minus one": -1, "zero": 0, "a half": 0.5, "1e308": 1e308,
    "2**70": 2**70, "million": 1_000_000, "NaN": NAN, "5,000 digits": DIGITS, "depth 100,000": DEEP, "NUL": "a\0b",
    "escapes": "a\x1b[2J\u202eb", "half a surrogate": "@surrogate@", "path": "../../../etc/passwd",
}  # fmt: skip
"""What a field is replaced by."""
LITERALS = {DIGITS: "7" * 5000, DEEP: "[" * 100_000 + "]" * 100_000, NAN: "NaN", "@surrogate@": '"\\ud800"'}
FILE_DAMAGES = ("empty", "cut", "cut by one", "flip first", "flip middle", "flip last", "missing", "folder", "loop",
                "fifo", "garbage", "doubled", "zeros")  # fmt: skip


def apply(folder: Path, step: list[Any]) -> None:
    """Takes one step in a project."""
    kind, path, *rest = step
    _STEPS[kind](folder / path, *rest)


def fields(value: Any) -> Iterator[list[str | int]]:
    """The ways to the fields of a JSON value; of a list only to the first entry, of many alike only to two."""
    if isinstance(value, dict):
        counts = [key for key in value if key.isdigit()]
        for key, part in value.items():
            if key not in counts[2:]:
                yield [key]
                yield from ([key, *way] for way in fields(part))
    elif isinstance(value, list) and value:
        yield [0]
        yield from ([0, *way] for way in fields(value[0]))


def way_of(content: Any, keys: list[str | int]) -> Any:
    for key in keys:
        content = content[key]
    return content


def _replaced(content: Any, keys: list[str | int], value: str) -> Any:
    if not keys:
        return VALUES[value]
    holder = way_of(content, keys[:-1])
    if value == "missing":
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = VALUES[value]
    return content


def _with_literals(text: str) -> str:
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text


def _field(path: Path, keys: list[str | int], value: str, line: int | None = None) -> None:
    if path.suffix == ".toml":
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if value == "null":
            value = "missing"
        path.write_text(_with_literals(tomli_w.dumps(_replaced(content, keys, value))).replace("NaN", "nan"))
        return
    lines = path.read_text(encoding="utf-8").split("\n") if line is not None else [path.read_text(encoding="utf-8")]
    index = line or 0
    lines[index] = _with_literals(json.dumps(_replaced(json.loads(lines[index]), keys, value)))
    path.write_text("\n".join(lines), encoding="utf-8")


def _reseal(folder: Path) -> None:
    """Makes the sums of a model folder those of its files, as one who changes a model on purpose does."""
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    for name in provenance["files"]:
        if (folder / name).is_file():
            provenance["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: _put(path, change(path.read_bytes()))


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _flipped(content: bytes, place: float) -> bytes:
    if not content:
        return b"\x01"
    index = min(int(place * len(content)), len(content) - 1)
    return content[:index] + bytes([content[index] ^ 4]) + content[index + 1 :]


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _instead(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def step(path: Path) -> None:
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)

    return step


_STEPS: dict[str, Callable[..., None]] = {
    "field": _field,
    "reseal": _reseal,
    "write": lambda path, content: _put(path, content.encode("utf-8", "surrogateescape")),
    "copy": lambda path, name: shutil.copytree(path, path.with_name(name)),
    "rename": lambda path, name: path.rename(path.with_name(name)),
    "empty": _bytes(lambda content: b""),
    "cut": _bytes(lambda content: content[: len(content) // 2]),
    "cut by one": _bytes(lambda content: content[:-1]),
    "flip first": _bytes(lambda content: _flipped(content, 0)),
    "flip middle": _bytes(lambda content: _flipped(content, 0.5)),
    "flip last": _bytes(lambda content: _flipped(content, 1)),
    "doubled": _bytes(lambda content: content + content),
    "zeros": _bytes(lambda content: bytes(len(content))),
    "garbage": _bytes(lambda content: b"\xff\xfe\x00\x1b[2J" * 100),
    "missing": remove,
    "folder": _instead(Path.mkdir),
    "loop": _instead(lambda path: path.symlink_to(path.name)),
    "fifo": _instead(lambda path: os.mkfifo(path)),
}
