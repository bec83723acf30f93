"""A model folder: all that translation needs.

    model.safetensors   weights, float32, each once
    model.json          sizes, vocabulary sizes, decoding defaults
    tokenizer/          the subword model
    provenance.json     where it comes from: settings, step, scores, versions, and the sha256 sums of the files above

Nothing is ever unpickled. torch is imported only where weights are read or written: an engine that does without it
finds its model here too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from nmtkit.config import DecodingConfig, ModelConfig, TrainingLengths, read_lengths
from nmtkit.console import log
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.files import (
    follow_umask,
    link_or_copy,
    read_json,
    sha256_of,
    sha256_of_files,
    sync_and_forget,
    versions,
    write_folder_atomically,
    write_json,
)
from nmtkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from nmtkit.model.transformer import Transformer

FORMAT = 1
MODEL_FILES = ("model.safetensors", "model.json", "provenance.json")
"""Those of a model folder, beside the folder tokenizer/."""
_PROVENANCE: dict[Any, Any] = {
    "files": {str: str, "model.safetensors": str, "model.json": str}, "kind?": str, "step?": int, "recipe?": dict,
    "data_fingerprint?": str, "init_sha256?": str, "best_metric?": str, "valid_nll?": float,
    "valid_bleu?": float, "average_of?": [{"checkpoint": str, "sha256": str}],
}  # fmt: skip


@dataclass(frozen=True)
class LoadedModel:
    """What a model folder holds; ``lengths`` is None where it was written before they were recorded."""

    model: "Transformer"
    tokenizer: Tokenizer
    decoding: DecodingConfig
    provenance: dict[str, Any]
    lengths: TrainingLengths | None = None


def write_tensors(path: Path, tensors: "dict[str, torch.Tensor]") -> None:
    """Writes a safetensors file, and reads it back from the disk to see that it holds the same bits.

    Raises:
        NmtkitError: it cannot be written, such as on a full disk, or reads back otherwise.
    """
    from safetensors.torch import save_file

    written = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(written, path)
    except SafetensorError as error:
        raise NmtkitError(f"{path}: cannot be written ({error}); make room and run the same command again") from None
    follow_umask(path)
    sync_and_forget(path)
    found = read_tensors(path)
    different = [name for name, tensor in written.items() if name not in found or not same_bits(found[name], tensor)]
    if different:
        raise NmtkitError(
            f"{path}: does not read back as it was written ({different[0]}); check the disk, and run the same "
            "command again"
        )


def same_bits(one: "torch.Tensor", other: "torch.Tensor") -> bool:
    """Whether two tensors are the same bit for bit; of a not-a-number too."""
    import torch

    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)))


def read_tensors(path: Path) -> "dict[str, torch.Tensor]":
    """Reads a safetensors file of floating-point numbers onto the CPU.

    Raises:
        ModelError: it is missing, damaged or holds others, which would be cut to fit.
    """
    from safetensors.torch import load_file

    if not path.is_file():
        raise ModelError(f"{path}: no such file; the model folder is incomplete")
    path.open("rb").close()  # safetensors calls a file missing that cannot be opened, such as with too many open
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"{path}: damaged ({error})") from None
    except (OSError, RuntimeError) as error:  # such as too many open files
        raise ModelError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from None
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
    """Writes a model folder, whole or not at all; what else lies in an older one of that name stays."""
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
        files = sha256_of_files(temporary)
        write_json(temporary / "provenance.json", {**provenance, "versions": versions(), "files": files})
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name not in (*MODEL_FILES, "tokenizer"):
                link_or_copy(entry, temporary / entry.name)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Reads provenance.json; raises ModelError where it is missing or damaged."""
    return read_json(folder / "provenance.json", _PROVENANCE, ModelError)


def check_sum(folder: Path, provenance: dict[str, Any]) -> None:
    """Raises ModelError when weights or description are not those that were written."""
    for name in ("model.safetensors", "model.json"):
        if provenance["files"][name] != sha256_of(folder / name):
            raise ModelError(f"{folder / name}: damaged (it does not match provenance.json)")


def damage(folder: Path) -> str | None:
    """What is wrong with the files of a model folder by the sums in its provenance.json; None if nothing is."""
    try:
        for name, expected in read_provenance(folder)["files"].items():
            if sha256_of(folder / name) != expected:
                return f"{folder / name}: damaged (it does not match provenance.json)"
    except (DataError, ModelError) as error:
        return str(error)
    return None


def is_model_folder(folder: Path) -> bool:
    """Whether a folder looks like a model folder."""
    return (folder / "model.json").is_file()


def read_description(folder: Path) -> dict[str, Any]:
    """What model.json says.

    Raises:
        ModelError: it is not there, damaged, or of another format.
    """
    if not is_model_folder(folder):
        raise ModelError(f"{folder}: not a model folder (no model.json in it)")
    return read_json(folder / "model.json", _DESCRIPTION, ModelError)


def _check_format(found: Any) -> None:
    if found != FORMAT:
        raise ValueError(f"not an nmtkit model of format {FORMAT}")


_DESCRIPTION = {
    "format": _check_format, "model": ModelConfig.model_validate, "decoding": DecodingConfig.model_validate,
    "vocab_sizes": {"source": int, "target": int}, "tokenizer_sha256": str,
    "training_lengths?": read_lengths,
}  # fmt: skip


def load_ensemble(
    models: str | Path | Sequence[str | Path], device: "torch.device | str | None" = None
) -> list[LoadedModel]:
    """Reads a model, or several that decode together: model folders, run folders or checkpoints.

    Args:
        device: as torch names it, or auto; by default the CPU.

    Raises:
        ModelError: one is not there or damaged, or their vocabularies differ; or none is named.
        NmtkitError: the device is not there.
    """
    import torch

    from nmtkit.workers import choose_device

    if isinstance(device, str):
        kind, _, number = device.partition(":")
        chosen = choose_device(kind)
        if number and not (kind == "cuda" and number.isdigit() and int(number) < torch.cuda.device_count()):
            raise NmtkitError(f"device {device}: this machine has no device of that number")
        device = torch.device(device) if number else chosen
    folders = [find_model(Path(path)) for path in ([models] if isinstance(models, str | Path) else models)]
    if not folders:
        raise ModelError("no model is given")
    loaded = [load_model(folder, device) for folder in folders]
    for folder, other in zip(folders, loaded, strict=True):
        if other.tokenizer.fingerprint() != loaded[0].tokenizer.fingerprint():
            raise ModelError(f"{folder}: its vocabulary differs from that of {folders[0]}; an ensemble shares one")
    return loaded


def load_model(folder: Path, device: "torch.device | None" = None) -> LoadedModel:
    """Reads a model folder.

    Raises:
        ModelError: it is not one, or is damaged.
    """
    from nmtkit.model.flops import count_parameters
    from nmtkit.model.transformer import Transformer
    from nmtkit.workers import holding_model

    description = read_description(folder)
    config = ModelConfig.model_validate(description["model"])
    sizes = description["vocab_sizes"]["source"], description["vocab_sizes"]["target"]
    weights = read_tensors(folder / "model.safetensors")
    # Before layers are built, which may take hours for sizes that are wrong.
    num_weights = sum(tensor.numel() for tensor in weights.values())
    if count_parameters(config, *sizes) > 2 * num_weights or (config.share_embeddings == "all" and len(set(sizes)) > 1):
        raise ModelError(f"{folder}: the weights do not belong to model.json (the sizes differ)")
    with holding_model():
        model = Transformer(config, *sizes)
    shapes, expected = ({name: tuple(t.shape) for name, t in of.items()} for of in (weights, model.state_dict()))
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            raise ModelError(f"{folder}: the weights do not belong to model.json (see {name})")
    model.load_state_dict(weights)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    if tokenizer.fingerprint() != description["tokenizer_sha256"]:
        raise ModelError(f"{folder}: the tokenizer is not the one the model was trained with")
    provenance = read_provenance(folder)
    check_sum(folder, provenance)
    model.requires_grad_(False).eval()
    decoding = DecodingConfig.model_validate(description["decoding"])
    lengths = read_lengths(description.get("training_lengths"))
    with holding_model():
        return LoadedModel(model.to(device), tokenizer, decoding, provenance, lengths)


def step_of(folder: Path) -> int:
    """The update of a folder named step-00012000."""
    return int(folder.name.removeprefix("step-"))


def step_folders(folder: Path) -> list[Path]:
    """The folders in ``folder`` named after an update, oldest first; another, such as a copy step-10-good, is not."""
    found = (path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.is_dir())
    return sorted(found, key=step_of)


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return [path for path in step_folders(run_dir / "checkpoints") if is_model_folder(path)]


def latest_state(run_dir: Path) -> Path | None:
    """The file that knows most of a run's training, of its last save or checkpoint; None where there is neither."""
    states = [folder / "state.json" for folder in step_folders(run_dir / "resume")]
    states += [folder / "provenance.json" for folder in checkpoints(run_dir)]
    return max((path for path in states if path.is_file()), key=lambda path: step_of(path.parent), default=None)


def whole_checkpoints(run_dir: Path, count: int | None = None) -> list[Path]:
    """The checkpoints of a run whose files are whole, oldest first; the newest ``count`` of them, where given.

    Damaged ones are reported and passed over.
    """
    return sorted(_whole(reversed(checkpoints(run_dir)), count), key=step_of)


def _whole(folders: Iterable[Path], count: int | None) -> list[Path]:
    """The first ``count`` folders whose files are whole."""
    found: list[Path] = []
    for folder in folders:
        if len(found) == count:
            break
        fault = damage(folder)
        if fault is None:
            found.append(folder)
        else:
            log.warning("%s; skipping this checkpoint; remove %s", fault, folder)
    return found


def best_checkpoints(run_dir: Path, count: int, *, check: bool = True) -> list[Path]:
    """The checkpoints of a run that have a validation score, best first by the run's best_metric; at most ``count``.

    Args:
        check: whether all files are compared with their sums; else only a broken provenance.json is noticed. What is
            damaged is reported and passed over.
    """
    scored = []
    for path in checkpoints(run_dir):
        try:
            provenance = read_provenance(path)
        except ModelError as error:
            log.warning("%s; skipping this checkpoint; remove %s", error, path)
            continue
        key, sign = ("valid_bleu", -1) if provenance.get("best_metric") == "bleu" else ("valid_nll", 1)
        if provenance.get(key) is not None:
            scored.append((sign * provenance[key], step_of(path), path))
    best = [path for _, _, path in sorted(scored)]
    return _whole(best, count) if check else best[:count]


def find_model(path: Path) -> Path:
    """The model folder that a MODEL argument means: itself, or a run's average, else its best or last whole checkpoint.

    Raises:
        ModelError: there is none.
    """
    if not path.is_dir():
        raise ModelError(f"{path}: no such folder; give a model folder, a run folder or a checkpoint")
    if is_model_folder(path):
        return path
    if is_model_folder(path / "averaged"):
        return path / "averaged"
    candidates = best_checkpoints(path, 1) or whole_checkpoints(path, 1)
    if candidates:
        return candidates[0]
    if checkpoints(path):
        raise ModelError(f"{path / 'checkpoints'}: every checkpoint is damaged; train the run again")
    if (path / "data").is_dir() or (path / "recipe.toml").is_file():
        raise ModelError(f"{path}: this run has no model yet; run `nmtkit train` first")
    raise ModelError(f"{path}: neither a model folder nor a run (no model.json, averaged/ or checkpoints/ in it)")
