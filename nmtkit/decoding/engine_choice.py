"""The choice of the engine: torch, or CTranslate2 with an export of the model.

    translate --engine E --> choose_export --> an Export: decoding/ctranslate2_engine.py
                                           --> None:      decoding/translator.py

This module imports neither torch nor CTranslate2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nmtkit.config.schema import DecodingConfig, TrainingLengths, read_lengths
from nmtkit.console import log
from nmtkit.decoding.lengths import longest_translation, source_limit
from nmtkit.errors import DataError, ModelError
from nmtkit.files import positive, read_json
from nmtkit.model_folder import is_model_folder, read_description, read_provenance
from nmtkit.run import find_model
from nmtkit.text.tokenizer import Tokenizer

FORMAT = 1
"""Format of an export's manifest.json, which export/export.py writes."""
_SHAPE = {
    "quantization": str, "decoding": dict, "max_positions": positive, "has_learned_positions": bool,
    "model_sha256": str, "tokenizer_sha256": str, "files": {str: str, "model.bin": str},
    "training_lengths?": read_lengths,
}  # fmt: skip
"""Entries of that manifest that an engine needs."""


@dataclass(frozen=True)
class Export:
    """A folder that `nmtkit export --format ctranslate2` wrote.

    Attributes:
        manifest: the content of its manifest.json.
        model: model folder beside which the export was found; its decoding settings apply, as they can change without
            the weights. None if the export itself was given as MODEL.
    """

    folder: Path
    manifest: dict[str, Any]
    model: Path | None = None

    @classmethod
    def read(cls, folder: Path) -> "Export":
        """Read a folder; raise ModelError if it is no such export."""
        manifest = read_json(folder / "manifest.json", dict, ModelError)
        if manifest.get("format") != FORMAT or manifest.get("to") != "ctranslate2":
            raise ModelError(f"{folder}: not an export for CTranslate2 of format {FORMAT} (see its manifest.json)")
        return cls(folder, read_json(folder / "manifest.json", _SHAPE, ModelError))

    @property
    def quantization(self) -> str:
        """Number format of the weights."""
        return str(self.manifest["quantization"])

    @property
    def lengths(self) -> TrainingLengths | None:
        """Lengths of the model's training pairs, if known."""
        return read_lengths(self._description()[1].get("training_lengths"))

    def decoding(self, overrides: dict[str, object]) -> DecodingConfig:
        """Return the decoding settings of the model, with the given values replaced."""
        path, description = self._description()
        try:
            return DecodingConfig.model_validate({**description["decoding"], **overrides})
        except ValidationError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"{path}: its decoding settings are not valid ({reason})") from None

    def _description(self) -> tuple[Path, dict[str, Any]]:
        """Return the file that describes the model, and its content."""
        if self.model is None:
            return self.folder / "manifest.json", self.manifest
        return self.model / "model.json", read_description(self.model)

    def is_made_from(self, model_folder: Path) -> bool:
        """Return whether weights and tokenizer are those of a model folder, by the checksums that both record."""
        tokenizer = read_description(model_folder)["tokenizer_sha256"]
        try:
            weights = read_provenance(model_folder)["files"]["model.safetensors"]
        except (DataError, ModelError):
            return False
        return (weights, tokenizer) == (self.manifest["model_sha256"], self.manifest["tokenizer_sha256"])


def is_export(folder: Path) -> bool:
    """Return whether a folder looks like an export for CTranslate2."""
    return (folder / "manifest.json").is_file() and (folder / "model.bin").is_file()


def exports_of(path: Path) -> list[Export]:
    """Return the exports that are made from exactly the model of a MODEL argument, float32 first.

    They are searched in ``export/ctranslate2*`` of the argument, of the model folder and of its run.
    """
    path = path.resolve()  # the parent of "." would be "."
    model = find_model(path)
    exports = []
    for parent in dict.fromkeys((path, model, model.parent, model.parent.parent)):
        for folder in filter(is_export, sorted(parent.glob("export/ctranslate2*"))):
            try:
                export = Export.read(folder)
            except ModelError as error:
                log.warning("%s; this export is not used", error)
                continue
            if export.is_made_from(model):
                exports.append(replace(export, model=model))
    return sorted(exports, key=lambda export: export.quantization != "float32")


def choose_export(
    models: Sequence[Path],
    engine: str,
    overrides: dict[str, object],
    unsupported: Sequence[str] = (),
    *,
    max_source_tokens: int | None = None,
    device: str = "auto",
) -> Export | None:
    """Return the export with which CTranslate2 translates; None if torch does.

    Args:
        models: the MODEL arguments; only CTranslate2 can use an export among them.
        engine: auto, torch or ctranslate2. auto chooses CTranslate2 only if translations are the same: for its own
            search (`DecodingConfig.is_that_of_ctranslate2`) with a float32 export that is made from exactly this model
            and has enough positions.
        overrides: values of [decoding] that were given as options.
        unsupported: given options that only the torch engine supports.
        device: auto, cpu, cuda or mps.

    Raises:
        ModelError: CTranslate2 does not support the request, or torch was requested for an export.
    """
    named = [path for path in models if is_export(path) and not is_model_folder(path)]
    if engine == "torch" or (engine == "auto" and not named):
        if named:
            raise ModelError(f"{named[0]}: a CTranslate2 export; name the model itself, or use --engine ctranslate2")
        if engine == "torch" or len(models) != 1 or not (exports := exports_of(models[0])):
            return None
        first, decoding = exports[0], exports[0].decoding(overrides)
        is_same = (
            find_spec("ctranslate2") is not None
            and not unsupported
            and device != "mps"
            and decoding.is_that_of_ctranslate2
            # After a given beginning, it may drop a hypothesis that ends at once.
            and (decoding.beam == 1 or not Tokenizer.load(first.folder / "tokenizer").settings.get("target_starts"))
            and first.quantization == "float32"
            and _has_positions(first, decoding, source_limit(max_source_tokens, first.lengths))
        )
        if is_same:
            log.info("engine: ctranslate2, %s: in float32, it gives nmtkit's translations", first.folder)
        return first if is_same else None
    if len(models) > 1:
        raise ModelError("CTranslate2 takes one model, not an ensemble; choose --engine torch and name models")
    if unsupported:
        raise ModelError(f"CTranslate2 has no {unsupported[0]}; choose --engine torch and name the model itself")
    exports = [Export.read(named[0])] if named else exports_of(models[0])
    if not exports:
        raise ModelError(
            f"{models[0]}: there is no CTranslate2 export made from exactly this model; "
            f"run `nmtkit export {models[0]} --format ctranslate2`"
        )
    chosen, decoding = exports[0], exports[0].decoding(overrides)
    if decoding.beam > 1 and decoding.coverage_penalty:
        raise ModelError("CTranslate2 has a different coverage penalty; choose --coverage-penalty 0 or --engine torch")
    if decoding.well_formed:
        option = f"--no-{decoding.WELL_FORMED.replace('_', '-')}"
        raise ModelError(
            f"CTranslate2 cannot restrict its search to well-formed outputs; use {option} or --engine torch"
        )
    manifest = chosen.folder / "manifest.json"
    note = "" if decoding.is_that_of_ctranslate2 else f"; its beam search differs from nmtkit's, see {manifest}"
    log.info("engine: ctranslate2, %s, %s%s", chosen.folder, chosen.quantization, note)
    return chosen


def _has_positions(export: Export, decoding: DecodingConfig, max_source_tokens: int) -> bool:
    """Return whether an export has enough positions; learned positions limit its model in the same way."""
    longest = max(max_source_tokens + 1, longest_translation(decoding, max_source_tokens))
    return bool(export.manifest["has_learned_positions"] or longest <= export.manifest["max_positions"])
