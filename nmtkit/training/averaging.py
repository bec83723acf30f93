"""`average`: the mean of several checkpoints' weights as a model folder, and `average --search`: of how many.

    choose_checkpoints  the last ones or the best          ->  average  ->  RUN/averaged
    search              averages of the last N, validated  ->  RUN/averaging.json, a row for each

A search writes every result at once, and continues after an interruption.

Source: section 6.1: the base model is the average of the last 5 checkpoints, the big one of the last 20.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch

from nmtkit.config.decoding_schema import DecodingConfig, read_lengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.console import counted, log
from nmtkit.data.shards import read_manifest
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError
from nmtkit.files import remove_pipe
from nmtkit.json_toml import measured, read_json, write_json
from nmtkit.model.decoder_only import build_model
from nmtkit.model_folder import (
    check_sum,
    is_model_folder,
    read_description,
    read_provenance,
    read_tensors,
    save_model,
    step_folders,
    step_of,
)
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.validation import Validator

Criterion = Literal["bleu", "nll"]
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
"""Numbers of checkpoints that a search tries, beside all of them."""
_FACTS = (
    "run", "step", "epoch", "target_tokens", "flops", "seconds", "device", "precision", "data_fingerprint",
    "init_sha256", "recipe",
)  # fmt: skip


def choose_checkpoints(
    run_dir: Path,
    *,
    last: int | None = None,
    best: int | None = None,
    at_most: int | None = None,
    spacing: int = 1,
) -> list[Path]:
    """Return the checkpoints to average, oldest first: the last ones, or the best by the run's best_metric.

    The last ones have no gap, as there is before one that is only kept because it is among the best. Without a number:
    the last ``at_most``, or as many as the run's average_last, or fewer if there are fewer. Damaged checkpoints are
    reported, and those before them (or next in rank) take their place.

    Args:
        spacing: with ``last``: every ``spacing``-th checkpoint, counted back from the last one.

    Raises:
        ModelError: the run does not have that many.
    """
    run = Run(run_dir)
    available = run.checkpoints()
    if not available:
        if not run.folder.is_dir():
            raise ModelError(f"{run_dir}: no such folder; give that of a trained run")
        raise ModelError(f"{run_dir}: there are no checkpoints here; run `nmtkit train` first")
    if best is not None:
        chosen = run.best_checkpoints(best)
        if not chosen and not run.best_checkpoints(1, check=False):
            raise ModelError(f"{run_dir}: no checkpoint has a validation score; give --last N instead")
        if len(chosen) < best:
            raise ModelError(
                f"{run_dir}: the best {best} checkpoints were requested, but only {len(chosen)} are whole and have a "
                "validation score; take fewer, or raise training.keep_best"
            )
        return sorted(chosen, key=step_of)
    number = last or at_most or _average_last(available)
    # Counted back from the newest, which is always among them.
    chosen = run.whole_checkpoints((number - 1) * spacing + 1, in_succession=True)[::-spacing][:number][::-1]
    if not chosen:
        raise ModelError(f"{run.checkpoints_folder}: every checkpoint is damaged; train the run again")
    if last is not None and len(chosen) < last:
        raise ModelError(
            f"{run_dir}: the last {last} checkpoints are requested{f', {spacing} apart' if spacing > 1 else ''}, but "
            f"only {len(chosen)} exist in succession; take fewer, or raise training.keep_last"
        )
    if len(chosen) < number:
        log.warning("average_last = %d, but only %s can be averaged", number, counted(len(chosen), "checkpoint"))
    return chosen


def _average_last(folders: list[Path]) -> int:
    """Return average_last of the newest checkpoint whose model.json is readable."""
    for folder in reversed(folders[1:]):
        with suppress(ModelError):  # choose_checkpoints reports it
            return int(read_description(folder)["decoding"]["average_last"])
    return int(read_description(folders[0])["decoding"]["average_last"])


def average(folders: list[Path], output: Path, decoding: DecodingConfig | None = None, options: str = "") -> None:
    """Average checkpoints in float64 and write the float32 result as a model folder marked as an average.

    Other files in an older average, such as its exports, stay.

    Args:
        decoding: decoding defaults of the new model; by default those of the last checkpoint.
        options: options of `nmtkit average` that chose the checkpoints; `run` keeps such an average.

    Raises:
        ModelError: they differ in model or tokenizer, or are damaged; or ``output`` exists and is no average.
    """
    if output.exists() and not is_average(output):
        raise ModelError(f"{output}: already exists and is not an averaged model; name a new folder")
    description = check_alike(folders)
    provenances = [read_provenance(folder) for folder in folders]
    for folder, provenance in zip(folders, provenances, strict=True):
        check_sum(folder, provenance)
    facts = {
        "kind": "average",
        "resumable": False,
        "newest": [*folders, *step_folders(folders[-1].parent)][-1].name,  # the last one of that time
        "average_of": [{"checkpoint": name, "sha256": weights} for name, weights in _sources(folders).items()],
        **({"options": options} if options else {}),
        **{key: provenances[-1][key] for key in _FACTS if key in provenances[-1]},
    }
    save_model(
        output,
        mean_weights(folders),
        ModelConfig.model_validate(description["model"]),
        Tokenizer.load(folders[-1] / "tokenizer"),
        decoding or DecodingConfig.model_validate(description["decoding"]),
        facts,
        read_lengths(description.get("training_lengths")),
    )


def check_alike(folders: list[Path]) -> dict[str, Any]:
    """Return model.json of the last checkpoint; raise ModelError if they differ in model or tokenizer."""
    last = first = read_description(folders[0])
    for folder in folders[1:]:
        last = read_description(folder)
        for key, what in (
            ("model", "a different model shape"),
            ("vocab_sizes", "a different vocabulary"),
            ("tokenizer_sha256", "a different tokenizer"),
        ):
            if last[key] != first[key]:
                raise ModelError(f"{folder}: has {what} from {folders[0]}; they cannot be averaged")
    return last


def mean_weights(folders: list[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of the weights of checkpoints, computed in float64, as float32."""
    sums: dict[str, torch.Tensor] = {}
    for folder in folders:
        for name, tensor in read_tensors(folder / "model.safetensors").items():
            # In float64, so that the mean is rounded to float32 once and not with every checkpoint.
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
    return {name: (total / len(folders)).float() for name, total in sums.items()}


def is_up_to_date(folders: list[Path], output: Path, decoding: DecodingConfig | None = None) -> bool:
    """Return whether ``output`` is the average of just these checkpoints, with these decoding settings if given."""
    if not is_average(output):
        return False
    if decoding is not None and read_description(output)["decoding"] != decoding.model_dump(mode="json"):
        return False
    made_of = {entry["checkpoint"]: entry["sha256"] for entry in read_provenance(output).get("average_of") or []}
    return made_of == _sources(folders)


def is_average(folder: Path) -> bool:
    """Return whether a folder is an averaged model."""
    provenance = folder / "provenance.json"
    return is_model_folder(folder) and provenance.is_file() and read_provenance(folder).get("kind") == "average"


def _sources(folders: list[Path]) -> dict[str, str]:
    """Return the recorded sums of the checkpoints' weights, which `choose_checkpoints` and `average` have checked."""
    return {folder.name: read_provenance(folder)["files"]["model.safetensors"] for folder in folders}


# ---- average --search


@dataclass(frozen=True)
class Tried:
    """The average of the last n checkpoints and its score on the validation set.

    Attributes:
        metric: ``sacrebleu`` (of plain text), ``bleu-tokenized`` or ``nll``, by which ``score`` is.
        first_step, last_step: the updates of the oldest and the newest checkpoint.
    """

    n: int
    metric: str
    score: float
    nll: float
    first_step: int
    last_step: int

    @property
    def cost(self) -> tuple[float, int]:
        """Smaller is better: any number than none, and of equal scores the smaller average."""
        cost = self.score if self.metric == "nll" else -self.score
        return (cost if math.isfinite(cost) else math.inf, self.n)


@dataclass(frozen=True)
class Search:
    """The averages tried so far, and the number of those to try in all."""

    tried: list[Tried]
    total: int

    @property
    def best(self) -> Tried:
        return min(self.tried, key=lambda tried: tried.cost)


def candidates(num_checkpoints: int) -> list[int]:
    """Return the numbers of checkpoints to try: those of COUNTS, and all."""
    return [*(count for count in COUNTS if count < num_checkpoints), num_checkpoints]


_TRIED: dict[str, Any] = {
    field.name: measured if field.type is float else field.type  # a validation that diverged has infinity or NaN
    for field in fields(Tried)
}


def read_averaging(path: Path) -> dict[str, Any]:
    """Read averaging.json; raise DataError if it is missing or damaged."""
    content: dict[str, Any] = read_json(path, {"tried": [_TRIED], "best": _TRIED, "made_from": dict})
    if not content["tried"] or any(row.keys() != _TRIED.keys() for row in content["tried"]):
        raise DataError(f'{path}: the rows of "tried" must have exactly the keys {", ".join(_TRIED)}; remove the file')
    return content


def search(run_dir: Path, criterion: Criterion | None, workers: Workers) -> Iterator[Search]:
    """Validate the averages of a run one after the other, and write RUN/averaging.json after each.

    Args:
        criterion: ``bleu`` translates the validation set for each average, as `train` does; ``nll`` does not. None: nll
            of trees, else BLEU.

    Yields:
        all that was tried so far, once at the beginning and after each average.

    Raises:
        ModelError: the run has fewer than two whole checkpoints, or they differ in model or tokenizer.
        DataError: it has no validation set, or BLEU is requested where there are no translations.
    """
    run = Run(run_dir)
    folders = run.whole_checkpoints(in_succession=True)
    if len(folders) < 2:
        raise ModelError(
            f"{run_dir}: {counted(len(folders), 'whole checkpoint')}, so there is nothing to "
            "choose from; train with a larger training.keep_last first"
        )
    recipe = run.recipe()
    of_task = task_of(recipe.data).averaging_metric
    if criterion == "bleu" and of_task != "bleu":
        raise DataError(
            f'{run_dir}: BLEU does not fit task = "{recipe.data.task_name}"; search with --metric {of_task}'
        )
    criterion = criterion or of_task
    description = check_alike(folders)
    if not run.valid_data.is_dir():
        raise DataError(f"{run_dir}: there is no validation set to compare averages on; train with data.valid")
    if run.tokenizer().fingerprint() != description["tokenizer_sha256"]:
        raise DataError(f"{run.data} has other subwords than {folders[-1]}; put the old {run.data} back")
    made_from = {  # everything that decides the results
        "checkpoints": _sources(folders),
        "data_fingerprint": read_manifest(run.data)["fingerprint"],
        "criterion": criterion,
        "decoding": recipe.decoding.model_dump(mode="json"),
    }
    tried: list[Tried] = []
    if run.averaging.is_file():
        content = read_averaging(run.averaging)
        tried = [Tried(**row) for row in content["tried"]] if content["made_from"] == made_from else []
    wanted = candidates(len(folders))
    yield Search(tried, len(wanted))
    training = recipe.training.model_copy(update={"validate_bleu": criterion == "bleu"})
    lengths = read_lengths(description.get("training_lengths"))
    validator = Validator(recipe.model_copy(update={"training": training}), run, run.tokenizer(), workers, lengths)
    sizes = description["vocab_sizes"]
    model = build_model(ModelConfig.model_validate(description["model"]), sizes["source"], sizes["target"])
    model.to(workers.device)
    metric = "nll" if criterion == "nll" else "sacrebleu" if recipe.data.text == "plain" else "bleu-tokenized"
    for count in wanted:
        if count in {known.n for known in tried}:
            continue
        chosen = folders[-count:]
        model.load_state_dict(mean_weights(chosen))
        found = validator(model)
        assert found is not None  # it is never requested to stop
        score = found.nll if criterion == "nll" else math.nan if found.bleu is None else found.bleu
        tried = [*tried, Tried(count, metric, score, found.nll, step_of(chosen[0]), step_of(chosen[-1]))]
        so_far = Search(tried, len(wanted))
        rows = [asdict(row) for row in tried]
        # Written after each average, so that an interrupted search repeats at most one.
        remove_pipe(run.averaging)
        write_json(run.averaging, {"best": asdict(so_far.best), "tried": rows, "made_from": made_from})
        yield so_far
