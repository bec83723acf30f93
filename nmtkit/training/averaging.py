"""`average`: the mean of several checkpoints' weights, as a model folder of its own.

Source: section 6.1: the base model is the average of the last 5 checkpoints, the big one of the last 20.
"""

from pathlib import Path
from typing import Any

import torch

from nmtkit.config.schema import DecodingConfig, ModelConfig, read_lengths
from nmtkit.errors import ModelError
from nmtkit.files import sha256_of
from nmtkit.model_folder import (
    check_sum,
    is_model_folder,
    read_description,
    read_provenance,
    read_tensors,
    save_model,
    step_of,
)
from nmtkit.run import Run
from nmtkit.text.tokenizer import Tokenizer


def choose_checkpoints(
    run_dir: Path,
    *,
    last: int | None = None,
    best: int | None = None,
    at_most: int | None = None,
    spacing: int = 1,
) -> list[Path]:
    """The checkpoints to average, oldest first: the last ones, or the best by the run's best_metric.

    With no number: as many of the last, if there are, as the run's average_last says, or ``at_most``. Damaged ones are
    reported and passed over: those before them (or next in rank) take their place.

    Args:
        spacing: with ``last``: every so-manieth checkpoint, counted back from the last one.

    Raises:
        ModelError: the run does not have that many.
    """
    available = Run(run_dir).checkpoints()
    if not available:
        raise ModelError(f"{run_dir}: there are no checkpoints here; run `nmtkit train` first")
    if best is not None:
        chosen = Run(run_dir).best_checkpoints(best)
        if len(chosen) < best:
            raise ModelError(
                f"{run_dir}: the best {best} checkpoints were requested, but only {len(chosen)} are whole and have a "
                "validation score; take fewer, or raise training.keep_best"
            )
        return sorted(chosen, key=step_of)
    number = last or at_most or _average_last(available)
    chosen = Run(run_dir).whole_checkpoints((number - 1) * spacing + 1)[::-spacing][:number][::-1]
    if not chosen:
        raise ModelError(f"{run_dir / 'checkpoints'}: every checkpoint is damaged; train the run again")
    if last is not None and len(chosen) < last:
        raise ModelError(
            f"{run_dir}: the last {last} checkpoints are requested{f', {spacing} apart' if spacing > 1 else ''}, but "
            f"only {len(chosen)} exist; take fewer, or raise training.keep_last"
        )
    return chosen


def _average_last(folders: list[Path]) -> int:
    """What the newest checkpoint whose model.json can be read says."""
    for folder in reversed(folders[1:]):
        try:
            return int(read_description(folder)["decoding"]["average_last"])
        except ModelError:
            continue  # choose_checkpoints reports it
    return int(read_description(folders[0])["decoding"]["average_last"])


def average(folders: list[Path], output: Path, decoding: DecodingConfig | None = None) -> None:
    """Averages checkpoints in float64 and writes the float32 result as a model folder marked as an average.

    What else lies in an older average, such as its exports, stays.

    Args:
        decoding: what the new model folder says of decoding; by default what the checkpoints say.

    Raises:
        ModelError: they are not of the same model or tokenizer, or damaged; or ``output`` is something else already.
    """
    if output.exists() and not _is_average(output):
        raise ModelError(f"{output}: already exists and is not an averaged model; name a new folder")
    first = check_alike(folders)
    for folder in folders:
        check_sum(folder, read_provenance(folder))
    weights = mean_weights(folders)
    save_model(
        output,
        weights,
        ModelConfig.model_validate(first["model"]),
        Tokenizer.load(folders[-1] / "tokenizer"),
        decoding or DecodingConfig.model_validate(first["decoding"]),
        _provenance(folders),
        read_lengths(first.get("training_lengths")),
    )


def check_alike(folders: list[Path]) -> dict[str, Any]:
    """Returns what model.json of the first one says.

    Raises:
        ModelError: they are not of the same model or tokenizer.
    """
    first = read_description(folders[0])
    for folder in folders[1:]:
        other = read_description(folder)
        for key, what in (
            ("model", "a different model shape"),
            ("vocab_sizes", "a different vocabulary"),
            ("tokenizer_sha256", "a different tokenizer"),
        ):
            if other[key] != first[key]:
                raise ModelError(f"{folder}: has {what} from {folders[0]}; they cannot be averaged")
    return first


def mean_weights(folders: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights of some checkpoints, taken in float64, as float32."""
    sums: dict[str, torch.Tensor] = {}
    for folder in folders:
        for name, tensor in read_tensors(folder / "model.safetensors").items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
    return {name: (total / len(folders)).float() for name, total in sums.items()}


def is_up_to_date(folders: list[Path], output: Path, decoding: DecodingConfig | None = None) -> bool:
    """Whether ``output`` is the average of just these checkpoints; with these decoding settings, where given."""
    if not _is_average(output):
        return False
    if decoding is not None and read_description(output)["decoding"] != decoding.model_dump(mode="json"):
        return False
    return bool(read_provenance(output).get("average_of") == _sources(folders))


def _is_average(folder: Path) -> bool:
    provenance = folder / "provenance.json"
    return is_model_folder(folder) and provenance.is_file() and read_provenance(folder).get("kind") == "average"


def _sources(folders: list[Path]) -> list[dict[str, Any]]:
    return [{"checkpoint": folder.name, "sha256": sha256_of(folder / "model.safetensors")} for folder in folders]


def _provenance(folders: list[Path]) -> dict[str, Any]:
    last = read_provenance(folders[-1])
    kept = (
        "run", "step", "epoch", "target_tokens", "flops", "seconds", "device", "precision", "data_fingerprint",
        "init_sha256", "recipe",
    )  # fmt: skip
    return {
        "kind": "average",
        "resumable": False,
        "average_of": _sources(folders),
        **{key: last[key] for key in kept if key in last},
    }
