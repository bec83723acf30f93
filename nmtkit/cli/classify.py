"""`nmtkit classify`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nmtkit.cli import options


def command(
    *,
    models: Annotated[
        list[Path], Argument(metavar="MODEL...", help="Model or run folders; probabilities of several are averaged.")
    ],
    input_: options.Input = None,
    output: Annotated[
        Path | None, Option(help="File for the labels, plain or .gz, .xz, .bz2, .zst.  [default: stdout]")
    ] = None,
    json_: Annotated[
        bool, Option(help="Write a JSON object per line: label and probabilities, or the predicted number.")
    ] = False,
    strict: options.Strict = False,
    batch_tokens: Annotated[int | None, Option(min=1, help="Maximum tokens per batch.  [default: 2048]")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Label text: one label for each line of input, in order; an empty line has an empty label.

    A line has the form that the model was trained on: a text; two texts with a tab between them; or a context and two
    or more answers with tabs between them, where the label is the number of the best answer, from 1.

    Example: echo "What is the capital of Yugoslavia ?" | nmtkit classify runs/trec
    """
    from nmtkit.cli.translate import translate_stream, translate_to_file
    from nmtkit.decoding.classifier import Classifier
    from nmtkit.decoding.file_translation import TranslationJob
    from nmtkit.decoding.request import Batching, TranslationRequest
    from nmtkit.distributed.workers import Workers
    from nmtkit.files import is_stream

    options.check_files([("--output", output)], [("--input", input_)])
    with Workers.start(device, "float32", threads, for_decoding=True, is_alone=True) as workers:
        classifier = Classifier.load(models, workers.device)
        batching = Batching(tokens=batch_tokens)
        job = TranslationJob(classifier, TranslationRequest(split="never"), batching, "json" if json_ else "text")
        if input_ is not None and output is not None and input_.is_file() and not is_stream(output):
            translate_to_file(job, input_, output, None, strict=strict, workers=None)
        else:
            translate_stream(job, input_, output, None, strict=strict)
