"""`nmtkit generate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nmtkit import console
from nmtkit.cli.lines import result_lines
from nmtkit.cli.options import (
    DeviceOption,
    QuietOption,
    SeedOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    check_files,
    check_sampling,
    sampling_of,
    search_options,
)


@search_options("beam", "no_repeat_ngram", beam="sampling")
def command(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, run folder or checkpoint.")],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="Beginning of the text.  [default: none]")] = "",
    prompt_file: Annotated[Path | None, typer.Option(help="File with the beginning of the text.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the text.  [default: stdout]")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens to generate.")] = 200,
    number: Annotated[int, typer.Option(min=1, help="Number of texts, with a blank line between them.")] = 1,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    search: dict[str, Any],
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Continue a text with a language model: sample it, or with --beam search for the most probable continuation.

    The prompt is part of the output. The same seed gives the same text.

    Example: nmtkit generate runs/shakespeare --prompt "ROMEO:" --max-tokens 300
    """
    from nmtkit.decoding.running_text import Generator, trained_length
    from nmtkit.distributed.cpu import set_threads
    from nmtkit.distributed.workers import choose_device
    from nmtkit.files import read_lines
    from nmtkit.model_folder import load_model
    from nmtkit.run import find_model

    if prompt and prompt_file is not None:
        raise typer.BadParameter("give --prompt or --prompt-file, not both")
    beam = search.get("beam")
    sampling_options = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p, "--seed": seed}
    check_sampling(sampling_options, None if beam is None else "has no effect with --beam")
    if beam is not None and number > beam:
        raise typer.BadParameter(f"{number} texts need a beam that large, not {beam}", param_hint="--number")
    check_files([("--output", output)], [("--prompt-file", prompt_file)])
    console.set_up(quiet=quiet)
    set_threads(threads)
    text = "\n".join(read_lines(prompt_file)) if prompt_file is not None else prompt
    loaded = load_model(find_model(model), choose_device(device))
    generator = Generator(loaded, trained_length(loaded), loaded.decoding.model_copy(update=search))
    sampling = sampling_of(temperature, top_k, top_p, seed) if beam is None else None
    with result_lines(output) as write:
        for index, continuation in enumerate(generator.continuations(text, max_tokens, sampling, number)):
            write([*([""] if index else []), text + continuation])
