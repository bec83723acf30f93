"""A model folder: everything that translation needs.

    model.safetensors   weights, float32, each once
    model.json          sizes, vocabulary sizes, decoding defaults
    tokenizer/          the subword model
    provenance.json     origin: settings, step, scores, versions, and the sha256 sums of the files above

Nothing is ever unpickled. torch is imported only to read or write weights, as the CTranslate2 engine runs without it.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths, read_lengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.errors import DataError, ModelError, NmtkitError, in_one_line
from nmtkit.files import (
    follow_umask,
    link_or_copy,
    sha256_of,
    sha256_of_files,
    sync_and_forget,
    write_folder_atomically,
)
from nmtkit.json_toml import read_json, write_json
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SPECIAL_PIECES
from nmtkit.versions import versions

if TYPE_CHECKING:
    import torch

    from nmtkit.model.transformer import Transformer

FORMAT = 1
MODEL_FILES = ("model.safetensors", "model.json", "provenance.json")
"""Files of a model folder, besides the folder tokenizer/."""
_PROVENANCE: dict[Any, Any] = {
    "files": {str: str, "model.safetensors": str, "model.json": str}, "kind?": str, "step?": int, "recipe?": dict,
    "data_fingerprint?": str, "init_sha256?": str, "best_metric?": str, "valid_nll?": float,
    "valid_bleu?": float, "average_of?": [{"checkpoint": str, "sha256": str}], "newest?": str,
}  # fmt: skip


@dataclass(frozen=True)
class LoadedModel:
    """The contents of a model folder."""

    model: "Transformer"
    tokenizer: Tokenizer
    decoding: DecodingConfig
    provenance: dict[str, Any]
    lengths: TrainingLengths | None = None


def write_tensors(path: Path, tensors: "dict[str, torch.Tensor]") -> None:
    """Write a safetensors file, and read it back from disk to check that it holds the same bits.

    Raises:
        NmtkitError: the file cannot be written, for example on a full disk, or reads back differently.
    """
    from safetensors.torch import save_file

    written = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(written, path)
    except SafetensorError as error:
        raise NmtkitError(f"{path}: cannot be written ({error}); make room and run the same command again") from None
    follow_umask(path)
    sync_and_forget(path)
    stored = read_tensors(path)
    different = [name for name, tensor in written.items() if name not in stored or not same_bits(stored[name], tensor)]
    if different:
        raise NmtkitError(
            f"{path}: does not read back as it was written ({different[0]}); check the disk, and run the same "
            "command again"
        )


def same_bits(first: "torch.Tensor", second: "torch.Tensor") -> bool:
    """Return whether two tensors are identical bit for bit, including NaN."""
    import torch

    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    # As bytes, since NaN differs from itself and -0.0 equals 0.0. A tensor without dimensions has no view of bytes.
    return torch.equal(
        *(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second))
    )


def load_tensors(path: Path) -> "dict[str, torch.Tensor]":
    """Read a safetensors file onto the CPU; raise ModelError if it is missing or damaged."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise ModelError(f"{path}: no such file; the model folder is incomplete")
    path.open("rb").close()  # safetensors reports any file that it cannot open as missing
    try:
        str(path).encode()
    except UnicodeEncodeError:  # safetensors takes no such path
        raise ModelError(f"{path}: cannot be read, as this path is not valid UTF-8; rename it") from None
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
        return tensors
    except (SafetensorError, ValueError) as error:
        fault = f"damaged ({error})"
    except (OSError, RuntimeError) as error:  # such as too many open files
        fault = f"cannot be read ({in_one_line(error)})"
    # The exception of a stop signal may get lost in the library, which then reports an error. The handler of signals in
    # cli/main.py raises it again within this time.
    time.sleep(0.2)
    raise ModelError(f"{path}: {fault}")


def read_tensors(path: Path) -> "dict[str, torch.Tensor]":
    """Read a safetensors file of floating-point numbers onto the CPU.

    Raises:
        ModelError: the file is missing, damaged, or has tensors of other types.
    """
    tensors = load_tensors(path)
    if other := next((name for name, tensor in tensors.items() if not tensor.is_floating_point()), None):
        raise ModelError(f"{path}: {other} is of type {tensors[other].dtype} and not floating-point numbers")
    return tensors


def save_model(
    folder: Path,
    weights: "dict[str, torch.Tensor]",
    config: ModelConfig,
    tokenizer: Tokenizer,
    decoding: DecodingConfig,
    provenance: dict[str, Any],
    lengths: TrainingLengths | None = None,
) -> None:
    """Write a model folder atomically; other files in an older folder of that name are kept."""
    with write_folder_atomically(folder) as temporary:
        write_tensors(temporary / "model.safetensors", weights)
        description = {
            "format": FORMAT,
            "model": config.model_dump(mode="json"),
            "vocab_sizes": {"source": tokenizer.vocab_size("source"), "target": tokenizer.vocab_size("target")},
            "tokenizer_sha256": tokenizer.fingerprint(),
            "decoding": decoding.model_dump(mode="json"),
            "training_lengths": lengths and lengths.model_dump(),
        }
        write_json(temporary / "model.json", description)
        tokenizer.save(temporary / "tokenizer")
        # Before provenance.json is written, which cannot hold its own checksum.
        files = sha256_of_files(temporary)
        write_json(temporary / "provenance.json", {**provenance, "versions": versions(), "files": files})
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name not in (*MODEL_FILES, "tokenizer"):
                link_or_copy(entry, temporary / entry.name)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read provenance.json; raise ModelError if it is missing or damaged."""
    return read_json(folder / "provenance.json", _PROVENANCE, ModelError)


def check_sum(folder: Path, provenance: dict[str, Any], names: Iterable[str] = MODEL_FILES[:2]) -> None:
    """Raise ModelError if files, by default weights and description, do not match their checksums."""
    for name in names:
        if provenance["files"][name] != sha256_of(folder / name):
            raise ModelError(f"{folder / name}: damaged (it does not match provenance.json)")


def damage(folder: Path) -> str | None:
    """Compare the files of a model folder with the checksums in its provenance.json; return the fault or None."""
    try:
        provenance = read_provenance(folder)
        check_sum(folder, provenance, provenance["files"])
    except (DataError, ModelError) as error:
        return str(error)
    return None


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder looks like a model folder."""
    return (folder / "model.json").is_file()


def read_description(folder: Path) -> dict[str, Any]:
    """Read model.json.

    Raises:
        ModelError: the file is missing, damaged, or of another format.
    """
    _check_model_folder(folder)
    return read_json(folder / "model.json", _DESCRIPTION, ModelError)


def _check_model_folder(folder: Path) -> None:
    if not is_model_folder(folder):
        raise ModelError(f"{folder}: not a model folder (no model.json in it)")


def _check_format(value: Any) -> None:
    if value != FORMAT:
        raise ValueError(f"not an nmtkit model of format {FORMAT}")


def _check_vocab_size(value: Any) -> None:
    if type(value) is not int or not len(SPECIAL_PIECES) <= value < 2**63:
        raise ValueError("not the size of a vocabulary")


_DESCRIPTION = {
    "format": _check_format, "model": ModelConfig.model_validate, "decoding": DecodingConfig.model_validate,
    "vocab_sizes": {"source": _check_vocab_size, "target": _check_vocab_size}, "tokenizer_sha256": str,
    "training_lengths?": read_lengths,
}  # fmt: skip


def load_model(folder: Path, device: "torch.device | None" = None) -> LoadedModel:
    """Read a model folder.

    Raises:
        ModelError: the folder is not a model folder, or is damaged.
    """
    import torch

    from nmtkit.distributed.workers import holding_model
    from nmtkit.model.decoder_only import build_model, shapes_of

    _check_model_folder(folder)
    # Before all else, so that the sums are those of the folder whose weights follow, and not of one that replaces it.
    provenance = read_provenance(folder)
    description = read_description(folder)
    config = ModelConfig.model_validate(description["model"])
    sizes = description["vocab_sizes"]["source"], description["vocab_sizes"]["target"]
    weights = read_tensors(folder / "model.safetensors")
    try:
        expected = shapes_of(config, *sizes)  # before layers are built, which may take hours for wrong sizes
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None
    for name in sorted(weights.keys() | expected.keys()):
        if name not in weights or weights[name].shape != expected.get(name):
            raise ModelError(f"{folder}: the weights do not belong to model.json (see {name})")
    # The initial values, which the weights replace, are no reason to change the caller's random numbers.
    with holding_model(), torch.random.fork_rng(devices=[]):
        model = build_model(config, *sizes).float()  # whatever the default dtype is
    model.load_state_dict(weights)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    if tokenizer.fingerprint() != description["tokenizer_sha256"]:
        raise ModelError(f"{folder}: the tokenizer is not the one the model was trained with")
    if sizes != (tokenizer.vocab_size("source"), tokenizer.vocab_size("target")):
        raise ModelError(f"{folder}: the tokenizer does not have as many entries as model.json states")
    if read_provenance(folder) != provenance:
        raise ModelError(f"{folder}: was replaced while it was read; run the command again")
    check_sum(folder, provenance)
    model.requires_grad_(False).eval()
    decoding = DecodingConfig.model_validate(description["decoding"])
    lengths = read_lengths(description.get("training_lengths"))
    with holding_model():
        return LoadedModel(model.to(device), tokenizer, decoding, provenance, lengths)


def step_of(folder: Path) -> int:
    """Return the update number of a folder: 12000 for step-00012000."""
    return int(folder.name.removeprefix("step-"))


def step_folders(folder: Path) -> list[Path]:
    """Return the subfolders named after an update, oldest first, without copies such as step-10-good."""
    steps = (path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.is_dir())
    return sorted(steps, key=step_of)


def validation_cost(provenance: dict[str, Any]) -> float | None:
    """Return the best_metric of a checkpoint as a cost, where lower is better; None if it was not validated."""
    if provenance.get("best_metric") == "bleu":
        bleu = provenance.get("valid_bleu")
        return None if bleu is None else -bleu
    return provenance.get("valid_nll")
