"""What the CTranslate2 engine costs over CTranslate2 itself: the same lines, in one process, A B B A.

    nmtkit export runs/x --format ctranslate2 --quantization int8
    python benchmarks/translate_ctranslate2.py runs/x/export/ctranslate2-int8 --input text.en

Both take lines and give lines, with the export's tokenizer. nmtkit: `CTranslate2Translator.translate`, as
`nmtkit translate --engine ctranslate2` uses it. Direct: all lines to one `translate_batch` with the same beam, the
maximum length of the longest line for all, and CTranslate2's own batches of --batch sentences sorted by length; on
--threads cores both as translators of one thread each and as one translator of all threads, of which the faster counts.
Loading is left out. Run it on an idle machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import ctranslate2

from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator, Export
from nmtkit.decoding.lengths import longest_translation
from nmtkit.decoding.request import Batching
from nmtkit.lines import read_lines

System = Callable[[list[str]], list[str]]


def direct(engine: CTranslate2Translator, folder: Path, inter: int, intra: int, batch: int) -> System:
    """CTranslate2 as one calls it by hand, with the tokenizer and the beam of nmtkit's engine."""
    tokenizer, decoding = engine.tokenizer, engine.decoding
    translator = ctranslate2.Translator(str(folder), "cpu", inter_threads=inter, intra_threads=intra)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size("target")), "target")
    ids = {piece: index for index, piece in enumerate(pieces)}

    def translate(lines: list[str]) -> list[str]:
        sources = tokenizer.encode([tokenizer.normalize(line) for line in lines], "source", inter * intra)
        results = translator.translate_batch(
            [tokenizer.pieces(source, "source") for source in sources],
            beam_size=decoding.beam,
            length_penalty=decoding.alpha,
            max_decoding_length=longest_translation(decoding, max(map(len, sources))),
            max_batch_size=batch,
        )
        return [tokenizer.decode([ids[piece] for piece in result.hypotheses[0]]) for result in results]

    return translate


def main() -> None:
    """Reads the command line, measures in turn, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, help="a folder that `nmtkit export --format ctranslate2` wrote")
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="source text")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64, help="sentences at once")
    parser.add_argument("--beam", type=int, help="by default the model's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    lines = read_lines(arguments.input)[: arguments.lines]
    overrides: dict[str, object] = {} if arguments.beam is None else {"beam": arguments.beam}
    engine = CTranslate2Translator.load(Export.read(arguments.export), overrides, "cpu", arguments.threads)
    systems: dict[str, System] = {
        "nmtkit": lambda texts: engine.translate(texts, batching=Batching(arguments.batch)),
        "direct, one thread each": direct(engine, arguments.export, arguments.threads, 1, arguments.batch),
        "direct, all threads": direct(engine, arguments.export, 1, arguments.threads, arguments.batch),
    }
    rates: dict[str, list[float]] = {name: [] for name in systems}
    same: dict[str, float] = {}
    for turn in range(arguments.rounds + 1):
        names = list(systems) if turn % 2 == 0 else list(systems)[::-1]
        for name in names:
            begun = time.perf_counter()
            translations = systems[name](lines)
            seconds = time.perf_counter() - begun
            if turn == 0:  # warms up
                ours = translations if name == "nmtkit" else ours
                same[name] = sum(map(str.__eq__, translations, ours)) / len(lines)
            else:
                rates[name].append(len(lines) / seconds)
    best = max((name for name in systems if name != "nmtkit"), key=lambda name: statistics.median(rates[name]))
    ratios = [ours / theirs for ours, theirs in zip(rates["nmtkit"], rates[best], strict=True)]
    print(
        f"| {arguments.export.name}, beam {engine.decoding.beam}, batch {arguments.batch} | sentences/s | same lines |"
    )
    print("|---|---|---|")
    for name, of_rounds in rates.items():
        print(f"| {name} | {' '.join(f'{rate:.0f}' for rate in of_rounds)} | {same[name]:.1%} |")
    print(f"\nnmtkit to {best}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
