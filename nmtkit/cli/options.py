"""Options that several commands share, and checks of options."""

import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, StrEnum
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from typer import Argument, BadParameter, Option
from typer.models import OptionInfo, ParameterInfo

from nmtkit import console
from nmtkit.errors import DataError

if TYPE_CHECKING:
    import torch

    from nmtkit.decoding.request import Sampling

Recipe = Annotated[str, Argument(metavar="RECIPE", help="A TOML file, or a built-in recipe (see `nmtkit recipes`).")]
Model = Annotated[Path, Argument(metavar="MODEL", help="Model folder, run folder or checkpoint.")]
Models = Annotated[list[Path], Argument(metavar="MODEL...", help="Model or run folders; several form an ensemble.")]
RunDir = Annotated[Path | None, Option(metavar="DIR", help="Folder of the run.  [default: runs/<recipe name>]")]
Set = Annotated[
    list[str] | None,
    Option(
        metavar="SECTION.KEY=VALUE",
        help="Override one setting of the recipe; data.train drops its valid, test and environment. May be repeated.",
    ),
]
Mirror = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        envvar="NMTKIT_MIRROR",
        help="Folder with local copies of downloads, laid out as <host>/<path of the URL>.",
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], Option(help="Device to compute on; auto: cuda or cpu.")]
Threads = Annotated[
    int | None,
    Option(min=1, help="CPU threads per process; OMP_NUM_THREADS has no effect.  [default: cores / processes]"),
]
ScoringPrecision = Annotated[
    Literal["float64", "float32"] | None,
    Option(help="Precision of scoring with a model.  [default: float64 on a CPU, else float32]"),
]
MaxTokens = Annotated[
    int | None,
    Option(
        min=1,
        help="Cut source and hypothesis to N tokens each (language models: to N together; summaries: only the "
        "hypothesis).  [default: 1024]",
    ),
]
BatchTokens = Annotated[int | None, Option(min=1, help="Source or target tokens per batch.  [default: 2048]")]
Trials = Annotated[int | None, Option(min=1, help="Trials of --paired.  [default: 1000; randomization: 10000]")]
Temperature = Annotated[float | None, Option(min=1e-6, max=1e6, help="Sampling temperature.  [default: 1]")]
TopK = Annotated[int | None, Option(min=0, help="Sample from the N most probable tokens; 0: from all.  [default: 0]")]
TopP = Annotated[float | None, Option(min=0, max=1, help="Nucleus sampling with probability X; 1: all.  [default: 1]")]
Seed = Annotated[int | None, Option(min=0, help="Sampling seed.  [default: 1]")]
Forbid = Annotated[list[str] | None, Option(metavar="PHRASE", help="Phrase that must not appear. May be repeated.")]
Input = Annotated[
    Path | None,
    Option(help="Text: plain, compressed, .sgm or ARCHIVE:MEMBER.  [default: stdin; a prompt on a terminal]"),
]
From = Annotated[str | None, Option(metavar="CODE", help="Source language, for a model that has to know it.")]
To = Annotated[str | None, Option(metavar="CODE", help="Target language, such as fr, for a model with several.")]
Result = Annotated[Path | None, Option(help="File for the result, plain or .gz, .xz, .bz2, .zst.  [default: stdout]")]
Strict = Annotated[bool, Option(help="Stop at invalid UTF-8 instead of replacing it.")]


# An enum, as Typer refuses a list of Literal.
_Tracker = StrEnum("_Tracker", ["TENSORBOARD", "WANDB"])
Tracker = Annotated[
    list[_Tracker] | None,
    Option(
        # Once each, as every tracker logs all metrics.
        callback=lambda trackers: list(dict.fromkeys(trackers or [])),
        help="Send the numbers of metrics.jsonl to TensorBoard (into RUN/tensorboard) or Weights & Biases as well. "
        "May be repeated.",
    ),
]

MANY = 10**6
_MAX_PER_CORE = 32
_UPPER_BOUNDS = {
    **dict.fromkeys(("threads", "processes", "workers", "jobs"), _MAX_PER_CORE * (os.cpu_count() or 1)),
    "devices": 4096, "seeds": 1000, "mbr": 10_000, "n_best": 10_000, "trials": 10**5, "confidence": 10**5,
    "line": 10**12, "seed": 2**63 - 1,
}  # fmt: skip
"""Upper bounds of options other than `MANY`, by parameter name: thousands of threads or processes would fill the
process table of the system."""

_METAVARS = {int: "N", float: "X", Path: "FILE"}


def complete_options(command: Callable[..., None]) -> None:
    """Complete the options of a command: add the name by parameter, a metavar by type (N, X, FILE, or the choices), and
    an upper bound to numbers, above any real use."""
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *details = get_args(parameter.annotation) or [None]
        types = _types_in(kind)
        choices = [value for type_ in types if get_origin(type_) is Literal for value in get_args(type_)]
        enums = [type_ for type_ in types if inspect.isclass(type_) and issubclass(type_, Enum)]
        choices += [member.value for enum in enums for member in enum]
        metavar = "|".join(choices) or next((_METAVARS[type_] for type_ in types if type_ in _METAVARS), None)
        for option in details:
            if isinstance(option, ParameterInfo):
                option.readable = False  # whoever reads the file reports what is wrong with it, with exit code 1
            if isinstance(option, OptionInfo):
                # Typer keeps a stated name as the default, and gives a flag without a name its opposite --no-NAME.
                if option.default is ... and kind != bool | None:
                    option.default = f"--{name.strip('_').replace('_', '-')}"
                option.metavar = option.metavar or metavar
                if {int, float} & set(types) and option.max is None:
                    option.max = _UPPER_BOUNDS.get(name, MANY)
                    option.min = -option.max if option.min is None else option.min


def _types_in(annotation: Any) -> list[Any]:
    """Return the types in a union or list, or the type itself."""
    if get_origin(annotation) in (Union, UnionType, list):
        return [type_ for part in get_args(annotation) for type_ in _types_in(part)]
    return [annotation]


def quiet_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --quiet to a command, and set up its messages before it runs."""
    signature = inspect.signature(command)

    @functools.wraps(command)
    def with_quiet(*, quiet: bool, **values: Any) -> None:
        # Only processes of a launcher have a rank; a variable RANK may be there for other reasons.
        console.set_up(quiet=quiet, rank=console.own_rank() if "processes" in values else 0)
        command(**values)

    option = Annotated[bool, Option(help="Print only warnings and errors to stderr.")]
    parameter = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
    # Typer reads the options of a command from its signature.
    with_quiet.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), parameter]
    )
    return with_quiet


def search_options(*names: str, **defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``search`` of a command by options for fields of [decoding], with the types, bounds and
    docstrings of the fields. The command receives the given options as the dict ``search``.

    Args:
        defaults: what --help says of an option's default, if that is not the model's setting.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_search(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            if given.get("length_penalty") == "none" and given.get("alpha"):
                raise BadParameter("has no effect with --length-penalty none; leave out one", param_hint="--alpha")
            command(**values, search={name: value for name, value in given.items() if value is not None})

        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            parameters += (
                [_search_option(name, defaults) for name in names] if parameter.name == "search" else [parameter]
            )
        # Typer reads the options of a command from its signature.
        with_search.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_search

    return decorate


def _search_option(name: str, defaults: Mapping[str, str]) -> inspect.Parameter:
    from nmtkit.config.decoding_schema import DecodingConfig

    field = DecodingConfig.model_fields[name]
    lowest, highest = (
        next((getattr(rule, bound) for rule in field.metadata if hasattr(rule, bound)), None) for bound in ("ge", "le")
    )
    explanation = " ".join((field.description or "").split())
    for key in (key for key in DecodingConfig.model_fields if "_" in key):
        explanation = explanation.replace(key, f"--{key.replace('_', '-')}")
    default = "the model's"
    option = Option(min=lowest, max=highest, help=f"{explanation}  [default: {defaults.get(name, default)}]")
    annotation: Any = field.annotation
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation | None, option]
    )


def check_files(written: Sequence[tuple[str, Path | None]], read: Sequence[tuple[str, Path | None]]) -> None:
    """Refuse to overwrite an input, another output or a file of a model or run.

    Args:
        written, read: options and their files.

    Raises:
        BadParameter: a file is -; or an output is also another file of the command or of stdin, belongs to a model or
            run, or has the name of an archive or of XML.
        DataError: an output is a folder.
    """
    from nmtkit.compression import without_suffix
    from nmtkit.corpora.archives import is_archive
    from nmtkit.corpora.corpus import local_file
    from nmtkit.corpora.readers import format_of
    from nmtkit.files import is_stream

    seen: dict[Path, str] = {}
    for name, path in [*read, *written]:
        if path is None or is_stream(path):
            continue  # such as /dev/null
        is_written = (name, path) in written
        if str(path) == "-" and not path.is_file():
            stream = "stdout" if is_written else "stdin"
            raise BadParameter(f"- is no file name here; for {stream} give /dev/{stream}", param_hint=name)
        if path.is_dir():
            if is_written:
                raise DataError(f"{path}: is a folder; give a file with {name}")
            continue
        # Resolved, as two names can lead to the same file; on some file systems, capitals make no difference.
        resolved = local_file(path)[0].resolve()
        similar = (each for each in seen if str(each).casefold() == str(resolved).casefold() and each.exists())
        same = next((each for each in similar if resolved.exists() and each.samefile(resolved)), resolved)
        other = seen.setdefault(same, name)
        if other != name and is_written:
            raise BadParameter(f"{path} is also the file of {other}; give another file", param_hint=name)
        with suppress(OSError):  # stdin is closed
            if is_written and resolved.is_file() and os.path.samestat(os.fstat(0), resolved.stat()):
                raise BadParameter(f"{path} is also the file that stdin reads; give another file", param_hint=name)
        if is_written and _belongs_to_model(resolved):
            raise BadParameter(f"{path} belongs to a model or run; give another file", param_hint=name)
        if is_written and (is_archive(path.name) or format_of(without_suffix(path.name)) in ("sgm", "tmx")):
            # Every command that reads it would take it for what its name says.
            message = f"{path.name!r} is the name of an archive or of XML; give another ending"
            raise BadParameter(message, param_hint=name)


def sampling_of(
    temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None, refusal: str | None
) -> "Sampling | None":
    """Return the parameters of sampling; options that are not given have their defaults.

    Args:
        refusal: reason why sampling options have no effect; None if they have one. With a reason, return None.

    Raises:
        BadParameter: an option has no effect.
    """
    if refusal is not None:
        for name, value in {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p, "--seed": seed}.items():
            if value is not None:
                raise BadParameter(refusal, param_hint=name)
        return None
    from nmtkit.decoding.request import Sampling

    return Sampling(temperature or 1.0, top_k or 0, 1.0 if top_p is None else top_p, 1 if seed is None else seed)


def _belongs_to_model(path: Path) -> bool:
    """Return True if a file is part of a model folder, of an export, or of what a training run needs."""
    if not path.is_file():
        return False
    # Slow to import, and rarely needed, as most outputs are new files.
    from nmtkit.model_folder import MODEL_FILES
    from nmtkit.run import Run

    for run in map(Run, path.parents):
        own = (
            run.data, run.recipe_file, run.metrics, run.nonfinite, run.prediction, run.scores, run.averaging, run.cost,
            run.play, run.resume_folder, run.generated_folder, run.translations_record, run.row_result, run.row_log,
        )  # fmt: skip
        if run.is_prepared() and any(path.is_relative_to(each) for each in own):
            return True
    is_export = any((path.parent / name).is_file() for name in ("model.bin", "model.safetensors"))
    if is_export and (path.parent / "manifest.json").is_file():
        return True
    in_tokenizer = path.parent.name == "tokenizer"
    folder = path.parent.parent if in_tokenizer else path.parent
    return (folder / "model.json").is_file() and (in_tokenizer or path.name in MODEL_FILES)


def start_device(device: str, threads: int | None) -> "torch.device":
    """Set the CPU threads of this process and return the torch device of --device."""
    from nmtkit.distributed.cpu import set_threads
    from nmtkit.distributed.interpreter import collect_as_usual
    from nmtkit.distributed.workers import choose_device

    set_threads(threads)
    chosen = choose_device(device)
    collect_as_usual()
    return chosen


def launch_processes(processes: int, device: str) -> NoReturn:
    """Run this command again in several processes, and exit with their exit code."""
    from nmtkit.distributed.launch import launch
    from nmtkit.distributed.workers import check_processes

    check_processes(processes, device)
    sys.exit(launch(processes, sys.argv[1:]))


def resume_advice() -> str:
    """Return advice on how to resume this command."""
    return f"to resume, run: nmtkit {shlex.join(sys.argv[1:])}"


@contextmanager
def resumable(message: str) -> Iterator[None]:
    """Log a message and how to resume this command if a signal ends a `with` block."""
    try:
        yield
    except SystemExit:
        console.log.info("%s; %s", message, resume_advice())
        raise


def run_folder(recipe_name: str, run_dir: Path | None, recipe: str) -> Path:
    """Return the folder of a run: as given, else runs/<recipe name>.

    Args:
        recipe: the argument RECIPE.

    Raises:
        DataError: no folder is given, and the recipe is that of another run.
    """
    if run_dir is not None:
        return run_dir
    if recipe_name == "recipe":  # as in a run folder
        from nmtkit.config.recipe import find_recipe
        from nmtkit.run import Run

        folder = find_recipe(recipe).parent
        if Run(folder).is_prepared():
            raise DataError(
                f"{recipe}: this is the recipe of a run; to continue that run, add --run-dir "
                f"{shlex.quote(str(folder))}; to start a new one, add another --run-dir"
            )
    return Path("runs") / recipe_name
