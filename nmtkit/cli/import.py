"""`nmtkit import`."""
# ruff: noqa: N999  (main.py imports a command by its name)

import re
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from nmtkit import console


def command(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Local folder of another library's model.")],
    output: Annotated[Path, Option(metavar="DIR", help="Model folder to write.")],
    source_language: Annotated[
        str | None, Option(metavar="CODE", help="Language of the source.  [default: as FOLDER states]")
    ] = None,
    target_language: Annotated[
        str | None, Option(metavar="CODE", help="Language of the target.  [default: as FOLDER states; en for GPT]")
    ] = None,
) -> None:
    """Import a model of another library: OPUS-MT (Marian), M2M-100, NLLB, or the first GPT.

    FOLDER is a local model folder in the format of Hugging Face transformers, with config.json, the weights and the
    files of the vocabulary; docs/import.md lists them. The transformers library is not needed. For GPT, FOLDER can also
    hold the files that OpenAI released.

    The result is a model folder like that of a trained model: translate with it, score or export it, train it further.

    \b
    Examples:
      nmtkit import opus-mt-en-de --output models/en-de
      nmtkit translate models/en-de --input text.en
      nmtkit import nllb-200-distilled-600M --output models/nllb
      nmtkit translate models/nllb --from eng_Latn --to fra_Latn --input text.en
    """

    from nmtkit.config.section import LANGUAGE_CODE, VALUE_RULES
    from nmtkit.export.importing import import_model

    for option, code in (("--source-language", source_language), ("--target-language", target_language)):
        if code is not None and not re.fullmatch(LANGUAGE_CODE, code):
            raise BadParameter(VALUE_RULES[LANGUAGE_CODE], param_hint=option)
    import_model(folder, output, source_language, target_language)
    console.say(str(output))
