"""The engine that a command translates with: CTranslate2 with an export of the model, or torch.

    translate --engine E --> choose_export --> an Export: decoding/ctranslate2_engine.py
                                           --> None:      decoding/translator.py

Neither torch nor CTranslate2 is imported before it is needed.
"""

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.console import log
from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator, Export, exports_of, is_export
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.lengths import longest_translation, source_limit
from nmtkit.errors import DataError, ModelError
from nmtkit.model_folder import MODEL_FILES, check_sum, is_model_folder, read_provenance, step_of
from nmtkit.run import Run, find_model

if TYPE_CHECKING:  # imports torch, which the CTranslate2 engine does not need
    from nmtkit.distributed.workers import Workers


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
            and (decoding.beam == 1 or not first.manifest.get("target_starts", True))
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
            f"run `nmtkit export {shlex.quote(str(models[0]))} --format ctranslate2`"
        )
    chosen, decoding = exports[0], exports[0].decoding(overrides)
    folder = chosen.folder.resolve().parent
    if named and folder.name == "export":
        run = Run(folder.parent)
        near = [model for model in (run.folder, run.averaged, *run.checkpoints()) if is_model_folder(model)]
        if near and not any(_is_made_from(chosen, model) for model in near):
            log.warning("%s: made from no model that is in %s now; export it again", chosen.folder, run.folder)
    or_torch = ", or name the model itself" if named else " or --engine torch"
    if decoding.beam > 1 and decoding.coverage_penalty:
        raise ModelError(f"CTranslate2 has a different coverage penalty; choose --coverage-penalty 0{or_torch}")
    if decoding.well_formed:
        option = f"--no-{decoding.WELL_FORMED.replace('_', '-')}"
        raise ModelError(
            f"CTranslate2 cannot restrict its search to well-formed outputs; `nmtkit translate` has {option}{or_torch}"
        )
    manifest = chosen.folder / "manifest.json"
    note = "" if decoding.is_that_of_ctranslate2 else f"; its beam search differs from nmtkit's, see {manifest}"
    log.info("engine: ctranslate2, %s, %s%s", chosen.folder, chosen.quantization, note)
    return chosen


def _is_made_from(export: Export, neighbour: Path) -> bool:
    """Return whether an export is made from a model near it, whose damage is none of the export's."""
    try:
        return export.is_made_from(neighbour)
    except (DataError, ModelError):
        return False


def _has_positions(export: Export, decoding: DecodingConfig, max_source_tokens: int) -> bool:
    """Return whether an export has enough positions; learned positions limit its model in the same way."""
    longest = max(max_source_tokens + 1, longest_translation(decoding, max_source_tokens))
    return bool(export.manifest["has_learned_positions"] or longest <= export.manifest["max_positions"])


def _chosen(path: Path) -> Path:
    """Return a MODEL argument; of a run without an average its checkpoint, which is logged."""
    run = Run(path)
    if is_model_folder(path) or is_model_folder(run.averaged) or not run.checkpoints():
        return path
    folder = find_model(path)
    log.info("%s has no averaged model: translating with its checkpoint of update %d", path, step_of(folder))
    return folder


def load_engine(
    models: Sequence[Path],
    engine: Literal["auto", "torch", "ctranslate2"],
    search: dict[str, object],
    unsupported: Sequence[str],
    workers: "Workers | None" = None,
    *,
    precision: Literal["float32", "bf16", "fp16"] = "float32",
    max_source_tokens: int | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Engine:
    """Load an engine.

    Args:
        search: values of [decoding] that replace those of the model.
        workers: process group; None: torch computes in this process alone.
        engine, unsupported, max_source_tokens, device: see `choose_export`.
        precision: of the torch engine.
        threads: CPU threads, by default all cores.

    Raises:
        ModelError: a model cannot be used, or the engine does not support the request.
    """
    models = [_chosen(path) for path in models]
    export = choose_export(models, engine, search, unsupported, max_source_tokens=max_source_tokens, device=device)
    if export is not None:
        # Else the export would hide the damage of its model; a model may also be kept without weights.
        if export.model is not None and (export.model / MODEL_FILES[0]).is_file():
            check_sum(export.model, read_provenance(export.model))
        try:
            return CTranslate2Translator.load(export, search, device, threads)
        except ModelError as error:
            if engine != "auto" or export.model is None:
                raise
            log.warning("using the torch engine, because the export cannot be used: %s", error)
    from nmtkit.decoding.translator import Translator
    from nmtkit.distributed.workers import Workers

    workers = workers or Workers.start(device, "float32", threads, for_decoding=True, is_alone=True)
    return Translator.load(models, workers.device, precision, search)
