"""The options that several commands share, each with one name and one text."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

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
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Overrides a value of the recipe; may be repeated."),
]
MirrorOption = Annotated[
    Path | None,
    typer.Option(
        "--mirror",
        metavar="DIR",
        envvar="NMTKIT_MIRROR",
        help="Folder laid out as <host>/<path>, whose files are used instead of the network.",
    ),
]


def _check_device(device: str) -> str:
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise typer.BadParameter(f"{device!r} is not one of auto, cpu, cuda, mps")
    return device


DeviceOption = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda|mps", callback=_check_device, help="Where to compute.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, help="CPU threads; OMP_NUM_THREADS is not read.  [default: all cores]"
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
        help="What a model scores in.  [default: float64 on a CPU, else float32]",
    ),
]


MaxTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", metavar="N", min=1, help="Of longer lines the first N count.  [default: 1024]"),
]
BatchTokensOption = Annotated[
    int | None,
    typer.Option("--batch-tokens", metavar="N", min=1, help="Source or target tokens scored at once.  [default: 2048]"),
]


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
                raise DataError(f"{path}: is a folder; name a file with {name}")
            continue
        if (name, path) in written and _is_of_a_model(path.resolve()):
            raise typer.BadParameter(f"{path} is a file of a model; name another one", param_hint=name)
        other = seen.setdefault(path.resolve(), name)
        if other != name and (name, path) in written:
            raise typer.BadParameter(f"{path} is the file of {other}, too; name another one", param_hint=name)


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

    from nmtkit.config import DecodingConfig

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
        help="Gives the numbers of metrics.jsonl to TensorBoard (into RUN/tensorboard) or Weights & Biases too; may be "
        "repeated. Needs nmtkit[tensorboard] or nmtkit[wandb].",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Only warnings and errors on stderr.")]


def run_folder(recipe_name: str, run_dir: Path | None) -> Path:
    """The folder of a run: as given, else runs/<recipe name>."""
    return run_dir if run_dir is not None else Path("runs") / recipe_name
