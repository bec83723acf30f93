"""`nmtkit extract`."""

import json
import re
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from typer import BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.streams import input_lines, result_lines
from nmtkit.errors import DataError
from nmtkit.text.extraction import Method, cut, rank, read_examples


def command(
    input_: Annotated[
        Path | None, Option(help="Examples as JSON lines, plain or compressed.  [default: stdin]")
    ] = None,
    output: options.Result = None,
    method: Annotated[
        Method,
        Option(
            help="Order of the paragraphs. identity: as they stand. tf-idf: by the words of the title or query. "
            "textrank: by the words shared with others. sumbasic: sentences of frequent words. cheating: by the "
            "bigrams of the target, an upper bound."
        ),
    ] = "tf-idf",
    length: Annotated[int | None, Option(min=1, help="Words to keep per example.  [default: all]")] = None,
    target_length: Annotated[bool, Option(help="Keep as many words as the target of the example has.")] = False,
    paragraphs: Annotated[
        int | None, Option(min=1, help="Paragraphs (sumbasic: sentences) to keep per example.  [default: all]")
    ] = None,
    min_words: Annotated[
        int, Option(min=0, help="Leave out paragraphs of fewer than N words, unless an example has only such.")
    ] = 0,
    form: Annotated[
        Literal["text", "jsonl"],
        Option(
            "--format",
            help="text: a line per example, with tabs between paragraphs. jsonl: examples with the chosen paragraphs.",
        ),
    ] = "text",
    with_title: Annotated[
        bool, Option(help="Begin each line with the title or query and a tab, for training; with --format text.")
    ] = False,
    targets: Annotated[Path | None, Option(help="File for the targets, one per line, to train on.")] = None,
) -> None:
    """Extract the most relevant paragraphs of long inputs, to summarise them or as a baseline.

    An example is a line of JSON with "title" or "query", "paragraphs" or "documents" (lists of strings), and "target".

    \b
    Examples:
      nmtkit extract --input articles.jsonl --length 500 --format jsonl --output short.jsonl
      nmtkit extract --input test.jsonl --method textrank --target-length --output extracted.txt
      nmtkit extract --input train.jsonl --with-title --output train.source --targets train.target
    """
    options.check_files([("--output", output), ("--targets", targets)], [("--input", input_)])
    if with_title and form == "jsonl":
        raise BadParameter("--with-title is for --format text; JSON lines keep the title")
    if length and target_length:
        raise BadParameter("--length and --target-length cannot be combined")
    reader = input_lines(input_, "examples", "strict")
    with ExitStack() as stack:
        write = stack.enter_context(result_lines(output))
        write_target = stack.enter_context(result_lines(targets)) if targets is not None else None
        advance = stack.enter_context(console.progress("extracting", None))
        for done, example in enumerate(read_examples(reader), start=1):
            most = length
            if target_length:
                most = len(example.target.split())
                if not most:
                    raise DataError(f'{example.name}: has no "target", or an empty one, which --target-length needs')
            found = list(islice(cut(rank(example, method, min_words), most), paragraphs))
            if write_target is not None:
                if not example.target.strip():
                    raise DataError(f'{example.name}: has no "target", or an empty one, which --targets needs')
                write_target(["\t".join(cut(re.split("[\t\n]", example.target), None))])
            if form == "text":
                write(["\t".join([" ".join(example.query.split()), *found] if with_title else found)])
            else:
                kept = {key: value for key, value in example.fields.items() if key != "documents"}
                try:
                    line = json.dumps({**kept, "paragraphs": found}, ensure_ascii=False, allow_nan=False)
                except ValueError:  # Python reads NaN and 1e999, which no JSON can hold afterwards
                    fault = f"{example.name}: has NaN or a number above 1.8e308; remove it, or take --format text"
                    raise DataError(fault) from None
                write([line])
            advance(done, note=f"{done:,} examples")
