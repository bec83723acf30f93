"""Whether both engines translate alike with `decoding.finished = "beside"`: each line that differs, with both scores.

    nmtkit export runs/x --format ctranslate2
    python benchmarks/same_search.py runs/x --input text.en --beam 4 --alpha 1.0 --json out.json

A score is log P / n^alpha by forced decoding, where n counts the end symbol. It is computed for both translations of a
line that differs. Rounding (float32) can change the order of hypotheses of almost equal score. At the maximum length
the search needs no end symbol, so there these scores are not those of the search.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator, exports_of
from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.lines import read_lines


def compare(model: Path, lines: list[str], settings: dict[str, object], threads: int) -> dict[str, Any]:
    """The lines that the engines translate differently."""
    export = next(each for each in exports_of(model) if each.quantization == "float32")
    by_ctranslate2 = CTranslate2Translator.load(export, settings, "cpu", threads)
    by_torch = Translator.load([model], device="cpu")
    by_torch.decoding = by_ctranslate2.decoding
    whole = TranslationRequest(split="never")
    found = [[best.text for best, *_ in engine.translations(lines, whole)] for engine in (by_torch, by_ctranslate2)]
    differing = [number for number, pair in enumerate(zip(*found, strict=True)) if len(set(pair)) > 1]
    forced, alpha = ForcedDecoder.load([model], torch.device("cpu")), by_torch.decoding.alpha
    pairs = [(lines[number], texts[number]) for number in differing for texts in found]
    scores = [one.log_prob / len(one.log_probs) ** alpha for one in forced.score(pairs)] if pairs else []
    listed = [
        {"line": number + 1, "torch": scores[2 * index], "ctranslate2": scores[2 * index + 1]}
        for index, number in enumerate(differing)
    ]
    return {"model": str(model), "lines": len(lines), "different": listed}


def main() -> None:
    """Reads the command line, compares, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL", help="with exports in float32")
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="lines to translate")
    parser.add_argument("--lines", type=int, default=10_000, help="how many of them")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = read_lines(arguments.input)[: arguments.lines]
    settings: dict[str, object] = {"beam": arguments.beam, "alpha": arguments.alpha}
    settings |= {"length_penalty": "length", "finished": "beside"}
    results = [compare(model, lines, settings, arguments.threads) for model in arguments.models]
    print("| model | lines | different | largest difference of scores | lines that differ |\n|---|---|---|---|---|")
    for result in results:
        gaps = [abs(one["torch"] - one["ctranslate2"]) for one in result["different"]]
        numbers = ", ".join(str(one["line"]) for one in result["different"])
        cells = (result["model"], len(lines), len(gaps), f"{max(gaps, default=0.0):.1e}", numbers)
        print(f"| {' | '.join(map(str, cells))} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
