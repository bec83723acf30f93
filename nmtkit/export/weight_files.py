"""Weights of a folder of transformers: safetensors, or a pickle of plain tensors, each in one file or in shards.

The only code that reads a pickle; torch does it with ``weights_only=True``, which builds tensors and nothing else.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.errors import ModelError
from nmtkit.json_toml import read_json
from nmtkit.model_folder import load_tensors
from nmtkit.text.tokenizer import Tokenizer

_S = TypeVar("_S", ModelConfig, DecodingConfig, TrainingLengths)


class ImportedModel(NamedTuple):
    """What a model folder is made of, from a model of another library; weights have nmtkit's names."""

    weights: dict[str, Tensor]
    config: ModelConfig
    tokenizer: Tokenizer
    decoding: DecodingConfig
    lengths: TrainingLengths


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Return the file of a folder that names the weights, and the weights.

    Raises:
        ModelError: there are none, a shard is missing, or a file is damaged or holds something else than tensors.
    """
    # safetensors first: a pickle is read only if there is nothing else.
    for name, read in (("model.safetensors", load_tensors), ("pytorch_model.bin", _read_pickle)):
        path, index = folder / name, folder / f"{name}.index.json"
        if path.is_file():
            return path, read(path)
        if index.is_file():
            shard_of = read_json(index, {"weight_map": {str: str}}, ModelError)["weight_map"]
            tensors: dict[str, Tensor] = {}
            for shard in sorted(set(shard_of.values())):
                # A name with a folder in it could lead to any file.
                if Path(shard).name != shard or not (folder / shard).is_file():
                    raise ModelError(f"{index}: {shard!r}, one of its shards, is not in the folder")
                tensors |= read(folder / shard)
            if missing := sorted(shard_of.keys() - tensors.keys()):
                raise ModelError(f"{index}: {missing[0]} is not in {shard_of[missing[0]]}, the shard that it names")
            return index, tensors
    raise ModelError(f"{folder}: no weights in it (model.safetensors or pytorch_model.bin, or their shards)")


def pop_tensor(file: Path, tensors: dict[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """Remove a tensor from those of a file, and return it in float32.

    Raises:
        ModelError: it is missing, or does not hold floating-point numbers in the shape that config.json states.
    """
    tensor = tensors.pop(name, None)
    if tensor is None:
        raise ModelError(f"{file}: {name} is missing, for a model of the sizes in config.json")
    if list(tensor.shape) != list(shape) or not tensor.is_floating_point():
        found = f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
        raise ModelError(
            f"{file}: {name} is {found}, but config.json needs floating-point numbers of shape {list(shape)}"
        )
    return tensor.float()


def positive_count(path: Path, stated: dict[str, Any], key: str) -> int:
    """Return a count that config.json has to state."""
    if type(value := stated.get(key)) is not int or value < 1:  # isinstance would accept true
        raise ModelError(f"{path}: {key} is {value!r} and not a positive number")
    return value


def checked(section: type[_S], values: dict[str, Any], path: Path, fault: str = "not supported") -> _S:
    """Return settings from the values of a file; raise ModelError if nmtkit does not support them."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = "".join(f"{part}: " for part in first["loc"])
        raise ModelError(f"{path}: {fault} ({name}{first['msg'].removeprefix('Value error, ')})") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by torch.save; raise ModelError if it holds anything else."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # bytes of unknown origin: the unpickler may raise anything
        found = None
    is_plain = isinstance(found, dict) and all(
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        # Strides of 0 make a huge tensor of a few stored numbers.
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
        for name, tensor in found.items()
    )
    if not is_plain:
        raise ModelError(
            f"{path}: damaged, or a pickle of more than plain tensors, which is not read; save the model again with "
            "transformers, which writes model.safetensors"
        )
    return dict(found)
