"""`nmtkit import`."""
# ruff: noqa: N999  (main.py imports a command by its name)

import re
from pathlib import Path
from typing import Annotated

import typer

from nmtkit import console
from nmtkit.cli.options import QuietOption


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with weights and vocabulary files.", show_default=False)
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Model folder to write.", show_default=False)],
    language: Annotated[
        str, typer.Option("--language", metavar="CODE", help="Language code of the model's text.")
    ] = "en",
    quiet: QuietOption = False,
) -> None:
    """Import the first GPT (Radford et al. 2018) as a model folder.

    FOLDER holds a model of transformers' OpenAIGPT classes (config.json, model.safetensors, and vocab.json with
    merges.txt or tokenizer.json), or the files that OpenAI released (params_shapes.json, params_0.npy to params_9.npy,
    encoder_bpe_40000.json, vocab_40000.bpe). transformers is not needed.

    The result is a language model: `generate` continues text with it, `score --model` scores text, and
    `export --format huggingface` converts it back. A classification head in FOLDER is left out.

    \b
    Examples:
      nmtkit import openai-gpt models/gpt
      nmtkit generate models/gpt --prompt "The door opened, and" --max-tokens 50
    """
    console.set_up(quiet=quiet)

    from nmtkit.config.schema import LANGUAGE_CODE, VALUE_RULES
    from nmtkit.export.openai_gpt import import_model

    if not re.fullmatch(LANGUAGE_CODE, language):
        raise typer.BadParameter(VALUE_RULES[LANGUAGE_CODE], param_hint="--language")
    import_model(folder, output, language)
    console.say(str(output))
