"""What averaging, the beam and the length penalty are worth in a trained run: one table, in Markdown.

    python benchmarks/claims.py RUN --set valid --set test2016

For each text: the recipe's way (average of the last checkpoints, its beam and penalty), then one thing changed at a
time: the last checkpoint instead of the average, and the best by validation; greedy; beams 4 and 10; the penalties of
Wu et al. (alpha 0.6), n^1 and none. The score is the one that is comparable to published ones: tokenised lower-cased
BLEU of tokenised text, sacreBLEU of plain text. Beside it the ratio of lengths, as a penalty acts on that.
"""

import argparse
import re
from pathlib import Path
from typing import Any

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.cpu import set_threads
from nmtkit.distributed.workers import choose_device
from nmtkit.evaluation.metrics import score
from nmtkit.json_toml import read_json
from nmtkit.lines import read_lines
from nmtkit.run import Run


def best_checkpoint(run: Path) -> Path | None:
    """The checkpoint of the lowest validation nll among those kept; not all were validated."""
    found = {folder: read_json(folder / "provenance.json")["valid_nll"] for folder in Run(run).checkpoints()}
    validated = [folder for folder, nll in found.items() if nll is not None]
    return min(validated, key=lambda folder: float(found[folder]), default=None)


def variants(run: Path, decoding: DecodingConfig) -> list[tuple[str, Path, dict[str, Any]]]:
    """What to compare: its name, the model, and what differs from the recipe's decoding."""
    average, last, best = run / "averaged", Run(run).checkpoints()[-1], best_checkpoint(run)
    penalties = [("wu", 0.6), ("length", 1.0), ("none", 0.0)]
    return [
        (f"the recipe: average, beam {decoding.beam}, {decoding.length_penalty} {decoding.alpha}", average, {}),
        ("last checkpoint", last, {}),
        *([("best checkpoint by validation nll", best, {})] if best is not None else []),
        ("greedy", average, {"beam": 1}),
        *[(f"beam {beam}", average, {"beam": beam}) for beam in (4, 10) if beam != decoding.beam],
        *[
            (f"penalty {kind}" + (f" {alpha}" if alpha else ""), average, {"length_penalty": kind, "alpha": alpha})
            for kind, alpha in penalties
            if (kind, alpha) != (decoding.length_penalty, decoding.alpha)
        ],
        ("last checkpoint, greedy", last, {"beam": 1}),
    ]


def main() -> None:
    """Reads the command line, translates, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--set", dest="sets", action="append", default=[], help="valid, or the name of a test set")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    recipe = Run(arguments.run).recipe()
    metric = "bleu-tokenized-lc" if recipe.data.text == "tokenized" else "sacrebleu"
    texts = {}
    for name in arguments.sets or ["valid"]:
        folder = arguments.run / "data" / ("" if name == "valid" else "test")
        texts[name] = [read_lines(folder / f"{name}.{side}.txt") for side in ("source", "reference")]
    print("| what | " + " | ".join(f"{name}, {metric} | length ratio" for name in texts) + " |")
    print("|---" * (1 + 2 * len(texts)) + "|", flush=True)
    for name, model, changes in variants(arguments.run, recipe.decoding):
        translator = Translator.load([model], choose_device("auto"))
        translator.decoding = recipe.decoding.model_copy(update=changes)
        cells = [name]
        for source, reference in texts.values():
            found = score(
                translator.translate(source, split="never"), reference, target_language=recipe.data.target_language,
                text=recipe.data.text, metrics=[metric],
            )[metric]  # fmt: skip
            ratio = re.search(r"ratio = ([0-9.]+)", found.details)
            assert ratio is not None
            cells += [f"{found.score:.2f}", ratio[1]]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
