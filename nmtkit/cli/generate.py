"""`nmtkit generate`."""

from pathlib import Path
from typing import Annotated, Any

from typer import BadParameter, Option

from nmtkit.cli import options
from nmtkit.cli.streams import result_lines


@options.search_options("beam", "no_repeat_ngram", beam="sampling")
def command(
    *,
    models: options.Models,
    prompt: Annotated[str, Option(metavar="TEXT", help="Beginning of the text.  [default: none]")] = "",
    prompt_file: Annotated[
        Path | None, Option(help="File with the beginning of the text; its last line end is left out.")
    ] = None,
    output: Annotated[Path | None, Option(help="File for the text.  [default: stdout]")] = None,
    max_tokens: Annotated[int, Option(min=1, help="Number of tokens to generate.")] = 200,
    number: Annotated[int, Option(min=1, help="Number of texts, with a blank line between them.")] = 1,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    search: dict[str, Any],
    forbid: options.Forbid = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Continue a text with a language model: by sampling, or with --beam by search for the most probable continuation.

    The prompt is part of the output. The same seed gives the same text.

    Example: nmtkit generate runs/shakespeare --prompt "ROMEO:" --max-tokens 300
    """
    from nmtkit.decoding.running_text import Generator, trained_length
    from nmtkit.lines import read_lines
    from nmtkit.run import load_ensemble
    from nmtkit.tasks.known import task_of

    if prompt and prompt_file is not None:
        raise BadParameter("give --prompt or --prompt-file, not both")
    beam = search.get("beam")
    refusal = None if beam is None else "has no effect with --beam"
    sampling = options.sampling_of(temperature, top_k, top_p, seed, refusal)
    if beam is not None and number > beam:
        raise BadParameter(f"{number} texts need a beam of at least {number}, not {beam}", param_hint="--number")
    options.check_files([("--output", output)], [("--prompt-file", prompt_file)])
    text = "\n".join(read_lines(prompt_file)) if prompt_file is not None else prompt
    loaded = load_ensemble(models, options.start_device(device, threads))
    task_of(loaded[0].tokenizer).require("generate")
    decoding = loaded[0].decoding.model_copy(update=search)
    generator = Generator(loaded, trained_length(loaded), decoding, forbid or ())
    with result_lines(output) as write:
        for index, continuation in enumerate(generator.continuations(text, max_tokens, sampling, number)):
            write([*([""] if index else []), text + continuation])
