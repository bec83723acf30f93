"""`nmtkit inspect`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nmtkit.cli import options
from nmtkit.console import say

_SHOWN = 2000
"""Maximum number of characters that are shown of a line."""


def command(
    run_dir: Annotated[Path, Argument(metavar="RUN", help="Folder of a prepared run.")],
    line: Annotated[
        int, Option(min=1, help="Line number, counted from 1 across all training corpora, as in RUN/nonfinite.jsonl.")
    ],
    corpus: Annotated[
        str | None,
        Option(metavar="NAME", help="Count lines of this corpus only; if generated, those of the text to translate."),
    ] = None,
    valid: Annotated[bool, Option(help="Show a pair of the validation data.")] = False,
    mirror: options.Mirror = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, in which `pair` counts from 0.")] = False,
) -> None:
    """Show one training pair as text, subwords and ids, with its corpus and line number.

    Example: nmtkit inspect runs/multi30k-en-de-tiny --line 5
    """
    from nmtkit.data.cleaning import MEANINGS
    from nmtkit.data.inspection import inspect_pair
    from nmtkit.text.normalization import FIELD_MARK, NEWLINE, TAB

    pair = inspect_pair(run_dir, line, part="valid" if valid else "train", corpus=corpus, mirror=mirror)
    if as_json:
        # On a terminal, escapes keep control characters and text direction marks of the corpus from taking effect.
        needs_ascii = sys.stdout.isatty() or str(sys.stdout.encoding).lower() not in ("utf-8", "utf8")
        print(json.dumps(dataclasses.asdict(pair), indent=2, ensure_ascii=needs_ascii))
        return
    say(f"{pair.corpus}, line {pair.line:,} (line {pair.line_of_all:,} of all)")
    if pair.pair is None:
        others = "because of other pairs: a copy, held out, or in a validation or test set"
        reason = f"{pair.rule}: {MEANINGS[pair.rule]}" if pair.rule else others
        print("left out of the prepared data" + (f" ({reason})" if pair.rule is not None else ""))
    else:
        print(f"pair {pair.pair + 1:,} of the prepared data")
    signs = str.maketrans({NEWLINE: "\\n", TAB: "\\t", FIELD_MARK: "\\t"})  # how text writes these entries
    sides = {"source": pair.source, "target": pair.target} if pair.source is not None else {"line": pair.target}
    for name, side in sides.items():
        print(f"\n{name}")
        text = "(the corpus is not on this machine, or has changed)" if side.text is None else side.text
        say(f"  text    {_cut(text)}")
        if side.pieces is not None and side.ids is not None:
            say(f"  decoded {_cut((side.decoded or '').translate(signs))}")
            say(f"  pieces  {_cut(' '.join(side.pieces).translate(signs))}")
            print(f"  ids     {_cut(' '.join(map(str, side.ids)))}")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters; --json shows all)"
