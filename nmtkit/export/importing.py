"""`nmtkit import`: from a folder of another library to a model folder.

config.json: model_type "openai-gpt", or params_shapes.json    --openai_gpt.py-->   a language model
             model_type "marian", "pegasus", "m2m_100"         --seq2seq.py-->      a translation model
"""

from contextlib import suppress
from pathlib import Path

import tomli_w

from nmtkit.console import counted, log
from nmtkit.errors import DataError, ModelError
from nmtkit.export import openai_gpt, seq2seq
from nmtkit.files import as_text
from nmtkit.json_toml import read_json
from nmtkit.model_folder import is_model_folder, read_provenance, save_model


def import_model(
    folder: Path, output: Path, source_language: str | None = None, target_language: str | None = None
) -> None:
    """Write a folder of transformers or OpenAI as a model folder.

    Args:
        source_language, target_language: language codes; by default those that the folder states.

    Raises:
        ModelError: the folder is no model of these libraries, is damaged, or its files contradict each other.
        DataError: ``output`` holds something else than an imported model.
    """
    if output.exists() and not is_model_folder(output) and (not output.is_dir() or any(output.iterdir())):
        raise DataError(f"{output}: exists and is not a model folder; give another folder with --output")
    is_other = False
    if is_model_folder(output):
        with suppress(ModelError):  # a damaged one
            provenance = read_provenance(output)
            if provenance.get("kind") != "import":
                raise DataError(f"{output}: holds a model that was not imported; give another folder with --output")
            is_other = Path(provenance.get("imported_from") or "").resolve() != folder.resolve()
    if not folder.is_dir():
        fault = "is a file, and no folder" if folder.exists() else "no such folder"
        raise ModelError(f"{folder}: {fault}; give the folder of a model on this machine, as nothing is downloaded")
    path = folder / "config.json"
    try:
        if (folder / "params_shapes.json").is_file():
            imported = openai_gpt.read(folder, None, target_language)
        elif (folder / "model.bin").is_file():
            raise ModelError(f"{folder}: a model for CTranslate2, with fused weights; import the original model")
        elif not path.is_file():
            raise ModelError(f"{folder}: neither config.json (transformers) nor params_shapes.json (OpenAI) is in it")
        else:
            stated = read_json(path, dict)
            kind = str(stated.get("model_type"))
            if kind == "openai-gpt":
                imported = openai_gpt.read(folder, stated, target_language)
            elif kind in seq2seq.KINDS:
                imported = seq2seq.read(folder, stated, source_language, target_language)
            else:
                known = ", ".join(["openai-gpt", *seq2seq.KINDS])
                raise ModelError(f"{path}: model_type is {kind!r}; these can be imported: {known}")
    except DataError as error:
        raise ModelError(str(error)) from None
    if source_language is not None and imported.config.is_joined:
        raise ModelError(f"{folder}: a language model has no source language; leave out --source-language")
    provenance = {"kind": "import", "imported_from": as_text(folder)}
    save_model(
        output, imported.weights, imported.config, imported.tokenizer, imported.decoding, provenance, imported.lengths
    )
    if is_other:
        log.warning("%s: replaced another model that was in this folder", output)
    config, size = imported.config, sum(tensor.numel() for tensor in imported.weights.values())
    layers = config.decoder_layers if config.is_joined else config.encoder_layers + config.decoder_layers
    log.info(
        "imported a %s model of %s, %s, with a vocabulary of %s",
        "language" if config.is_joined else "translation",
        counted(layers, "layer"),
        counted(size, "parameter"),
        f"{imported.tokenizer.vocab_size('target'):,}",
    )
    # Without average_last: an imported model has no checkpoints.
    stated = {
        name: section.model_dump(mode="json", exclude_defaults=True, exclude_none=True, exclude={"average_last"})
        for name, section in (("model", config), ("decoding", imported.decoding))
    }
    stated = {name: values for name, values in stated.items() if values}
    log.info("a recipe that starts from it states:\n%s", tomli_w.dumps(stated).rstrip())
