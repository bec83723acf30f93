"""Loading the engine that a command translates with: CTranslate2 with an export of the model, or torch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmtkit.console import log
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.engine_choice import choose_export
from nmtkit.errors import ModelError

if TYPE_CHECKING:  # imports torch, which the CTranslate2 engine does not need
    from nmtkit.distributed.workers import Workers


def load_engine(
    models: Sequence[Path],
    engine: Literal["auto", "torch", "ctranslate2"],
    search: dict[str, object],
    unsupported: Sequence[str],
    start: "Callable[[], Workers]",
    *,
    precision: Literal["float32", "bf16", "fp16"] = "float32",
    max_source_tokens: int | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Engine:
    """Load an engine.

    Args:
        search: values of [decoding] that replace those of the model.
        start: function that starts the process group; it is called for torch only.
        engine, unsupported, max_source_tokens, device: see `choose_export`.
        precision: of the torch engine.
        threads: CPU threads of CTranslate2, by default all cores.

    Raises:
        ModelError: a model cannot be used, or the engine does not support the request.
    """
    export = choose_export(models, engine, search, unsupported, max_source_tokens=max_source_tokens, device=device)
    if export is not None:
        from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator

        try:
            return CTranslate2Translator.load(export, search, device, threads)
        except ModelError as error:
            if engine != "auto" or export.model is None:
                raise
            log.warning("using the torch engine, because the export cannot be used: %s", error)
    workers = start()
    from nmtkit.decoding.translator import Translator

    translator = Translator.load(models, workers.device, precision)
    translator.decoding = translator.decoding.model_copy(update=search)
    return translator
