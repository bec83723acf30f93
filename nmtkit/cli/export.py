"""`nmtkit export`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from typer import BadParameter, Option

from nmtkit import console
from nmtkit.cli import options


def command(
    model: options.Model,
    format_: Annotated[Literal["ctranslate2", "huggingface"], Option(help="Library to convert to.")],
    quantization: Annotated[
        str,
        Option(
            metavar="TYPE",
            help="Number format of the weights, for ctranslate2: float32, int8, int8_float32, int8_float16, "
            "int8_bfloat16, int16, float16 (or fp16), bfloat16 (or bf16).",
        ),
    ] = "float32",
    output: Annotated[
        Path | None, Option(metavar="DIR", help="Folder for the export.  [default: MODEL/export/FORMAT[-TYPE]]")
    ] = None,
    sample: Annotated[
        Path | None,
        Option(help="Text for the check, of which 100 lines are translated.  [default: the run's validation text]"),
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Convert a model for CTranslate2 or Hugging Face transformers.

    The export is written only if nmtkit and the other library give the same greedy translations of 100 lines in
    float32. Language models are converted only for huggingface, if they have the form of GPT or GPT-2; their logits are
    compared.

    \b
    Examples:
      nmtkit export runs/quickstart --format ctranslate2 --quantization int8
      nmtkit export runs/quickstart --format huggingface
    """
    if format_ == "huggingface" and quantization != "float32":
        raise BadParameter("only --format ctranslate2 has this option", param_hint="--quantization")

    from nmtkit.distributed.cpu import set_threads
    from nmtkit.export.ctranslate2 import QUANTIZATIONS, SHORT_NAMES
    from nmtkit.export.export import export

    quantization = SHORT_NAMES.get(quantization, quantization)
    if quantization not in QUANTIZATIONS:
        raise BadParameter(f"{quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
    set_threads(threads)
    folder, _ = export(model, format_, quantization=quantization, output=output, sample_file=sample)
    if format_ == "ctranslate2":
        console.log.info("to translate with this export: nmtkit translate %s", shlex.quote(str(folder)))
    console.say(str(folder))
