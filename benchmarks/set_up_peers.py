"""Set up the toolkits that train.py and translate.py compare nmtkit with: the text, and an environment for each.

    python benchmarks/set_up_peers.py --work DIR
    python benchmarks/set_up_peers.py --work DIR opennmt transformers

DIR/text gets Multi30k (task 1, raw, English-German) as 8,000 joint BPE pieces of sentencepiece: train.bpe.en and so on,
one line per sentence, with blanks between pieces, and `vocabulary`. DIR/environments gets a virtual environment for
each peer, with the versions of docs/benchmarks.md (about 1 GB each); --constraints fixes those of the packages that
they require, torch among them. What is there already stays.
"""

import argparse
import sys
from pathlib import Path

import sentencepiece

sys.path.insert(0, str(Path(__file__).parent))
from peers.environments import PEERS, ROOT, set_up
from peers.rules import TEST

from nmtkit.corpora.corpus import open_corpus
from nmtkit.corpora.download import Downloader
from nmtkit.files import write_folder_atomically
from nmtkit.lines import write_lines

LANGUAGES = ("en", "de")
PARTS = {"train": "multi30k/train", "val": "multi30k/val", TEST: "multi30k/test2016"}
VOCABULARY_SIZE = 8000
SPECIAL_PIECES = 4


def write_text(folder: Path, mirror: Path | None) -> None:
    """Writes the text, plain and in pieces."""
    downloader = Downloader(mirror)
    for part, name in PARTS.items():
        corpus = open_corpus(name, *LANGUAGES, downloader)
        for language, side in zip(LANGUAGES, (corpus.source, corpus.target), strict=True):
            write_lines(folder / f"{part}.{language}", side.open())
    sentencepiece.SentencePieceTrainer.train(
        input=[str(folder / f"train.{language}") for language in LANGUAGES],
        model_prefix=str(folder / "pieces"), model_type="bpe", vocab_size=VOCABULARY_SIZE, character_coverage=1.0,
        unk_id=0, bos_id=1, eos_id=2, pad_id=3, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "pieces.model"))
    write_lines(folder / "vocabulary", map(processor.id_to_piece, range(SPECIAL_PIECES, VOCABULARY_SIZE)))
    for part in PARTS:
        for language in LANGUAGES:
            lines = (folder / f"{part}.{language}").read_text(encoding="utf-8").split("\n")[:-1]
            pieces = processor.encode(lines, out_type=str)
            write_lines(folder / f"{part}.bpe.{language}", (" ".join(line) for line in pieces))
            print(f"{part}.bpe.{language}: {len(lines):,} lines, {sum(map(len, pieces)):,} pieces", flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"by default all: {', '.join(PEERS)}")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for all that the peers need")
    parser.add_argument("--mirror", type=Path, metavar="DIR", help="take the text from a folder <host>/<path>")
    parser.add_argument("--python", default=sys.executable, help="makes the environments (measured with Python 3.11)")
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt", metavar="FILE", help="for pip")
    arguments = parser.parse_args()
    if unknown := set(arguments.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    text = arguments.work / "text"
    if not text.exists():
        with write_folder_atomically(text) as folder:
            write_text(folder, arguments.mirror)
    for peer in arguments.peers or PEERS:
        set_up(peer, arguments.work, arguments.python, arguments.constraints)
        print(f"{peer}: set up", flush=True)


if __name__ == "__main__":
    main()
