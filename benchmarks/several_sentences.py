"""Lines of several sentences: how well they are split, and how many of their sentences are translated.

    python benchmarks/several_sentences.py ends --mirror DIR
    python benchmarks/several_sentences.py translations --run runs/quickstart

`ends` joins two to six consecutive lines of newstest2009 and 2012 to 2014 that end in a sentence mark to paragraphs.
Joints are sentence ends; most splits within a line are right, too, as some lines hold two sentences. It splits by
nmtkit and, where they are installed, by sentencex, pysbd and sentence-splitter.

`translations` joins two or three short sentences of the built-in test set, no more tokens together than the longest
source in training, and translates these lines with each value of `--split`.
"""

import argparse
import importlib.util
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from nmtkit.corpora.synthetic import SyntheticPair, generate
from nmtkit.decoding.lengths import Split
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.lines import read_lines
from nmtkit.text.sentences import sentence_starts

FOLDER = "raw.githubusercontent.com/Helsinki-NLP/OPUS-MT-testsets/master/testsets"
FILES = {
    "en": ("eng-deu", "eng", (2009, 2012, 2013, 2014)),
    "de": ("eng-deu", "deu", (2009, 2012, 2013, 2014)),
    "fr": ("eng-fra", "fra", (2012, 2013, 2014)),
}
LINES, LONGEST = 150, 14
SPLITS: tuple[Split, ...] = ("never", "auto")

Splitter = Callable[[str], Iterable[int]]
"""From a text to the offsets of its second and later sentences."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ends").add_argument("--mirror", type=Path, required=True)
    commands.add_parser("translations").add_argument("--run", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "ends":
        measure_ends(arguments.mirror)
    else:
        measure_translations(arguments.run)


def measure_ends(mirror: Path) -> None:
    print("| language | lines | splitter | joints found | splits within lines |\n|---|---|---|---|---|")
    for language, (pair, suffix, years) in FILES.items():
        files = [mirror / FOLDER / pair / f"newstest{year}.{suffix}" for year in years]
        lines = [line.strip() for file in files for line in read_lines(file)]
        lines = [
            line for line in lines if line.endswith((".", "!", "?")) or (line[:1].isupper() and line[-1] in '"”»“')
        ]
        rng, rest, paragraphs = Random(1), iter(lines), list[list[str]]()
        while paragraph := list(itertools.islice(rest, rng.randint(2, 6))):
            paragraphs.append(paragraph)
        for name, split in splitters(language).items():
            found = joints = within = 0
            for paragraph in paragraphs:
                ends = set(itertools.accumulate(len(line) + 1 for line in paragraph[:-1]))
                starts = set(split(" ".join(paragraph)))
                found, joints, within = found + len(ends & starts), joints + len(ends), within + len(starts - ends)
            print(f"| {language} | {len(lines)} | {name} | {100 * found / joints:.1f} % | {within} |", flush=True)


def splitters(language: str) -> dict[str, Splitter]:
    """Return the splitters that are installed."""
    found: dict[str, Splitter] = {"nmtkit": lambda text: sentence_starts(text, language)}
    if importlib.util.find_spec("sentencex"):
        import sentencex

        found["sentencex"] = lambda text: offsets(text, sentencex.segment(language, text))
    if importlib.util.find_spec("pysbd"):
        import pysbd

        segmenter = pysbd.Segmenter(language=language, clean=False)
        found["pysbd"] = lambda text: offsets(text, segmenter.segment(text))
    if importlib.util.find_spec("sentence_splitter"):
        import sentence_splitter

        moses = sentence_splitter.SentenceSplitter(language=language)
        found["sentence-splitter"] = lambda text: offsets(text, moses.split(text))
    return found


def offsets(text: str, sentences: Iterable[str]) -> list[int]:
    """Return where the second and later sentences begin in a text, however a splitter treats the blanks between."""
    starts, position = list[int](), 0
    for sentence in filter(None, map(str.strip, sentences)):
        begin = text.find(sentence, position)
        if begin >= 0:
            starts.append(begin)
            position = begin + len(sentence)
    return [start for start in starts if start > 0]


def measure_translations(run: Path) -> None:
    translator = Translator.load(run, "cpu")
    longest = translator.lengths.longest_source if translator.lengths else 0
    lines: list[list[SyntheticPair]] = [[]]
    used = 0
    for pair in generate("synthetic"):
        [ids] = translator.tokenizer.encode([pair.source], "source")
        if len(ids) <= LONGEST:
            if len(lines[-1]) == 3 or used + len(ids) > longest:
                lines.append([])
                used = 0
            lines[-1].append(pair)
            used += len(ids)
    lines = [line for line in lines if len(line) > 1][:LINES]
    total = sum(map(len, lines))
    print(
        f"| `--split` | sentences in {len(lines)} lines | in the output | equal to the reference |\n|---|---|---|---|"
    )
    for split in SPLITS:
        found = translator.translations([" ".join(pair.source for pair in line) for line in lines],
                                        TranslationRequest(split=split))  # fmt: skip
        texts = [best.text for best, *_ in found]
        written = sum(1 + len(sentence_starts(text, "de")) for text in texts)
        equal = sum(pair.target in text for line, text in zip(lines, texts, strict=True) for pair in line)
        print(f"| `{split}` | {total} | {written} | {equal} |", flush=True)


if __name__ == "__main__":
    main()
