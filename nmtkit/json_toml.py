"""JSON and TOML files: atomic writing, and reading that checks their structure.

Whatever is wrong with a file is one line that names it.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from nmtkit.errors import DataError, NmtkitError, in_one_line
from nmtkit.files import content_of, naming, write_text


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, shape: Any = object, error: type[NmtkitError] = DataError) -> Any:
    """Read a JSON file that nmtkit has written.

    Args:
        shape: required structure; other keys are ignored. A type, or several joined by ``|``, where int is a count
            below 2^63 and float a finite number below 1e30; ``[shape]``, a list; ``{str: shape}``, an object;
            ``{"key": shape, "key?": shape}``, an object with these keys, the second of which may be missing or
            null; or a function that raises ValueError.
        error: class of the exception.

    Raises:
        DataError: the file is missing, is not JSON, or does not have this structure.
    """
    try:
        return _fitting(_from_json(content_of(path), str(path)), shape, str(path))
    except DataError as fault:
        raise error(str(fault)) from None


def read_toml(path: Path, error: type[NmtkitError] = DataError) -> tuple[dict[str, Any], str]:
    """Return the content and the text of a TOML file; raise ``error`` if it is missing or not TOML."""
    content = content_of(path)
    try:
        text = content.decode("utf-8-sig")  # editors on Windows may begin a file with a byte-order mark
        return tomllib.loads(text), text
    except UnicodeDecodeError:
        raise error(f"{path}: not UTF-8 text") from None
    except (ValueError, RecursionError) as fault:
        raise error(f"{path}: not valid TOML: {in_short(fault)}") from None


def _from_json(content: bytes, location: str) -> Any:
    try:
        # Decoded here, as json.loads would take bytes in UTF-16 and UTF-32, too.
        value: Any = json.loads(content.decode("utf-8"))
        if b"\\u" in content:  # an escape may be half of a surrogate pair, which cannot be written as UTF-8
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: not valid JSON ({in_short(error)}); the file is damaged") from None
    return value


def _fitting(value: Any, shape: Any, location: str) -> Any:
    for misfit in _misfits(value, shape, ""):
        raise DataError(f"{location}: {misfit}; the file is damaged or was written by another version of nmtkit")
    return value


def any_number(value: Any) -> None:
    """Shape of a measured value: null or any number, including NaN and infinity."""
    # Whole numbers of hundreds of digits are no floats.
    if value is not None and (type(value) not in (int, float) or (type(value) is int and value.bit_length() > 1000)):
        raise ValueError("not a number")


def measured(value: Any) -> None:
    """Shape of a required measurement: any number, not-a-number and infinity included."""
    if value is None:
        raise ValueError("not a number")
    any_number(value)


def positive(value: Any) -> None:
    """Shape of a count of at least 1."""
    if type(value) is not int or not 0 < value < 2**63:
        raise ValueError("not a count of at least 1")


def in_short(error: Exception) -> str:
    """Return what is wrong with JSON or TOML by the exception that its parser has raised."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error).partition("; use sys.")[0]  # without Python's advice about very long numbers


_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


def _misfits(value: Any, shape: Any, location: str) -> Iterator[str]:
    """Yield a description of each part of a value that does not have its shape; see `read_json`."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, part in shape.items():
            name = key.removesuffix("?") if key is not str else ""
            if key is str:
                for each, entry in value.items():
                    yield from _misfits(entry, part, f"{location}.{each}")
            elif name not in value and name == key:
                yield f"{location}.{key} is missing".removeprefix(".")
            elif name == key or value.get(name) is not None:
                yield from _misfits(value[name], part, f"{location}.{name}")
    elif isinstance(shape, list) and isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _misfits(entry, shape[0], f"{location}[{index}]")
    elif callable(shape) and not isinstance(shape, type):
        try:
            shape(value)
        except ValueError as error:
            from pydantic import ValidationError  # late, as its import takes time

            told = in_one_line(error)
            if isinstance(error, ValidationError):  # of pydantic, with several lines on each fault
                fault = error.errors(include_url=False)[0]
                location, told = ".".join([location, *map(str, fault["loc"])]), fault["msg"]
            yield f"{location.removeprefix('.')}: {told}"
    elif not _is_of_type(value, get_args(shape) or (shape,)):
        kind = _KINDS.get(type(value)) or f"the number {str(value)[:20]}"
        yield f"{location.removeprefix('.') or 'its content'} is {kind}, which it cannot be"


def _is_of_type(value: Any, kinds: tuple[Any, ...]) -> bool:
    # Types are compared exactly, as True is an instance of int.
    if type(value) is int and int in kinds:
        return 0 <= value < 2**63
    if type(value) in (int, float) and float in kinds:
        return abs(value) < 1e30
    return object in kinds or type(value) in kinds


def json_line(value: Any) -> str:
    """Return a value as one line of JSON, without a line end."""
    return json.dumps(value, ensure_ascii=False)


def append_json_line(path: Path, value: Any) -> None:
    """Append one JSON line; the file is closed, so the line survives a kill of this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(f"{json_line(value)}\n")


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Write one JSON line per value, atomically; a file with the same content is not written again."""
    content = "".join(f"{json_line(value)}\n" for value in values)
    if not path.is_file() or path.read_bytes() != content.encode("utf-8"):
        write_text(path, content)


def read_json_lines(path: Path, shape: Any = dict) -> list[dict[str, Any]]:
    """Return the JSON objects in the lines of a file; [] if there is no file.

    An incomplete last line of a killed process is ignored.

    Args:
        shape: shape of each line, an object; see read_json.

    Raises:
        DataError: another line is not such an object.
    """
    if not path.exists():
        return []
    lines = content_of(path).split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            value = _from_json(line, f"{path}, line {number}")
        except DataError:
            # Only text after the last line end can be incomplete; no other line was cut by a kill.
            if number == len(lines):
                break
            raise
        values.append(_fitting(value, shape, f"{path}, line {number}"))
    return values
