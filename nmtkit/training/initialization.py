"""`training.init`: starting from the weights of another model, to fine-tune it."""

from pathlib import Path
from typing import Any

from nmtkit.config.schema import ModelConfig, Recipe, TrainingLengths, read_lengths
from nmtkit.errors import NmtkitError
from nmtkit.files import sha256_of
from nmtkit.model_folder import check_sum, read_description, read_provenance, read_tensors
from nmtkit.run import find_model
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.state import TrainingState


def start_from_model(state: TrainingState, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Gives a new state the weights of the model that training.init names, if it names one.

    Raises:
        ModelError: there is no such model, or it is damaged.
        NmtkitError: its sizes or its tokenizer are not those of the run.
    """
    path = recipe.training.init
    if path is None:
        return
    folder = find_model(path)
    description = read_description(folder)
    difference = _first_difference(ModelConfig.model_validate(description["model"]), recipe.model)
    if difference is not None:
        raise NmtkitError(
            f"training.init: {folder} has a different shape ({difference}); use the same [model], or take its recipe "
            "as base"
        )
    if description["tokenizer_sha256"] != tokenizer.fingerprint():
        raise NmtkitError(
            f"training.init: {folder} and the data of this run have different tokenizers; set data.tokenizer = "
            f'"{path}" and prepare the run again'
        )
    check_sum(folder, read_provenance(folder))
    state.start_from(read_tensors(folder / "model.safetensors"))


def lengths_seen(recipe: Recipe, manifest: dict[str, Any]) -> TrainingLengths | None:
    """The lengths of a run's training pairs; the longest source may be one of the model that training.init names."""
    own, path = read_lengths(manifest.get("training_lengths")), recipe.training.init
    before = read_description(find_model(path)).get("training_lengths") if path is not None and path.exists() else None
    if own is None or before is None:
        return own
    longest = max(own.longest_source, before["longest_source"])
    return own.model_copy(update={"longest_source": longest})


def _first_difference(model: ModelConfig, wanted: ModelConfig) -> str | None:
    """In words the first key in which two models are not of the same shape; dropout may differ."""
    one, other = _shape(model), _shape(wanted)
    for key in one:
        if one[key] != other[key]:
            return f"model.{key} = {one[key]} and not {other[key]}"
    return None


def _shape(config: ModelConfig) -> dict[str, Any]:
    shape = {key: value for key, value in config.model_dump().items() if not key.endswith("dropout")}
    shape |= {"d_k": config.key_width, "d_v": config.value_width}
    if config.positions != "learned":
        shape.pop("max_positions")
    return shape


def initial_sha256(recipe: Recipe) -> str | None:
    """The sum of the weights that training.init names; None if it names none.

    Raises:
        ModelError: there is no such model.
    """
    path = recipe.training.init
    return sha256_of(find_model(path) / "model.safetensors") if path is not None else None


def check_initial_weights(recipe: Recipe, saved: dict[str, Any], run_dir: Path) -> None:
    """Raises NmtkitError when a run is to go on with another training.init than it began with.

    A model that is not there any more is no matter: the run has left it behind.
    """
    path = recipe.training.init
    if path is None or (str(path) == saved["recipe"]["training"].get("init") and not path.exists()):
        return
    if initial_sha256(recipe) != saved.get("init_sha256"):
        raise NmtkitError(
            f"{run_dir} began with other weights than training.init = {path} has now; name the same checkpoint it "
            "began with, or take another --run-dir"
        )
