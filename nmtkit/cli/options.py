"""The options that several commands share, each with one name and one text."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, get_args

import typer
from typer.models import OptionInfo

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="A TOML file, or a built-in recipe (see `nmtkit recipes`).", show_default=False
    ),
]
RunDirOption = Annotated[
    Path | None, typer.Option("--run-dir", metavar="DIR", help="Folder of the run.  [default: runs/<recipe name>]")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting of the recipe. May be repeated."),
]
MirrorOption = Annotated[
    Path | None,
    typer.Option(
        "--mirror",
        metavar="DIR",
        envvar="NMTKIT_MIRROR",
        help="Folder laid out as <host>/<path>; files found there are not downloaded.",
    ),
]


def _check_device(device: str) -> str:
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise typer.BadParameter(f"{device!r} is not one of auto, cpu, cuda, mps")
    return device


DeviceOption = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda|mps", callback=_check_device, help="Device to compute on.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, help="CPU threads; OMP_NUM_THREADS has no effect.  [default: all cores]"
    ),
]


def _check_precision(precision: str | None) -> str | None:
    if precision not in (None, "float64", "float32"):
        raise typer.BadParameter(f"{precision!r} is not one of float64, float32")
    return precision


ScoringPrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="float64|float32",
        callback=_check_precision,
        help="Precision of scoring with a model.  [default: float64 on a CPU, else float32]",
    ),
]


MaxTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", metavar="N", min=1, help="Score only the first N tokens of a line.  [default: 1024]"),
]
BatchTokensOption = Annotated[
    int | None,
    typer.Option("--batch-tokens", metavar="N", min=1, help="Source or target tokens per batch.  [default: 2048]"),
]


_MOST_PER_CORE = 32
_MOST = {
    **dict.fromkeys(("threads", "processes", "workers", "jobs"), _MOST_PER_CORE * (os.cpu_count() or 1)),
    "devices": 4096, "seeds": 1000, "mbr": 10_000, "n_best": 10_000, "trials": 10**5, "confidence": 10**5,
    "line": 10**12, "seed": 2**63 - 1,
}  # fmt: skip
"""Upper bounds of numbers by the names of their parameters, where it is not a million: thousands of threads or
processes fill the system's table of processes."""


def bound_numbers(command: Callable[..., None]) -> None:
    """Gives every number that a command takes an upper bound that no honest use meets, where it states none."""
    for name, annotation in command.__annotations__.items():
        kind, *details = get_args(annotation) or [None]
        for option in details:
            if isinstance(option, OptionInfo) and re.search(r"\b(int|float)\b", str(kind)) and option.max is None:
                option.max = _MOST.get(name, 10**6)
                option.min = -option.max if option.min is None else option.min


def check_files(written: Iterable[tuple[str, Path | None]], read: Iterable[tuple[str, Path | None]]) -> None:
    """Raises BadParameter where a file that is written is one of the others or of a model, and DataError for a folder.

    Args:
        written, read: each with the option that it was given with.
    """
    from nmtkit.errors import DataError
    from nmtkit.files import is_stream

    written = list(written)
    seen: dict[Path, str] = {}
    for name, path in [*read, *written]:
        if path is None or is_stream(path):
            continue  # such as /dev/null
        if path.is_dir():
            if (name, path) in written:
                raise DataError(f"{path}: is a folder; give a file with {name}")
            continue
        if (name, path) in written and _is_of_a_model(path.resolve()):
            raise typer.BadParameter(f"{path} belongs to a model; give another file", param_hint=name)
        other = seen.setdefault(path.resolve(), name)
        if other != name and (name, path) in written:
            raise typer.BadParameter(f"{path} is also the file of {other}; give another file", param_hint=name)


def _is_of_a_model(path: Path) -> bool:
    """Whether a file is one of those of a model folder or an export."""
    if not path.is_file():
        return False
    from nmtkit.model_folder import MODEL_FILES  # what most outputs, which are new, need not wait for

    is_export = any((path.parent / name).is_file() for name in ("model.bin", "model.safetensors"))
    if is_export and (path.parent / "manifest.json").is_file():
        return True
    is_of_tokenizer = path.parent.name == "tokenizer"
    folder = path.parent.parent if is_of_tokenizer else path.parent
    return (folder / "model.json").is_file() and (is_of_tokenizer or path.name in MODEL_FILES)


def check_decoding(stated: dict[str, object]) -> None:
    """Raises BadParameter for an option of the search whose value [decoding] of a recipe would not take."""
    from pydantic import ValidationError

    from nmtkit.config.schema import DecodingConfig

    try:
        DecodingConfig.model_validate(stated)
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--{str(first['loc'][0]).replace('_', '-')}"
        reason = f": {first['msg'].lower()}"
        if first["type"] == "literal_error":
            reason = f" is not one of {first['ctx']['expected'].replace(' or ', ', ').replace(chr(39), '')}"
        raise typer.BadParameter(f"{first['input']!r}{reason}", param_hint=option) from None


def _check_trackers(trackers: list[str] | None) -> list[str]:
    for tracker in trackers or []:
        if tracker not in ("tensorboard", "wandb"):
            raise typer.BadParameter(f"{tracker!r} is not one of tensorboard, wandb")
    return list(dict.fromkeys(trackers or []))


TrackerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker",
        metavar="tensorboard|wandb",
        callback=_check_trackers,
        help="Send the numbers of metrics.jsonl to TensorBoard (into RUN/tensorboard) or Weights & Biases "
        "as well. May be repeated.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print only warnings and errors to stderr.")]


def run_folder(recipe_name: str, run_dir: Path | None) -> Path:
    """The folder of a run: as given, else runs/<recipe name>."""
    return run_dir if run_dir is not None else Path("runs") / recipe_name
