"""Speed and memory of `nmtkit prepare`, in turn with sentencepiece encoding the same lines once to ids.

    python benchmarks/prepare.py --mirror DIR --pairs 1125000 2250000 --rounds 1 --json out.json

The text: OpenNMT's sample and four newstest sets from the mirror, each pair as often as needed, with every sixth word
changed for another one of the same text, so that no two pairs are the same. The recipe: plain text, default cleaning,
32,000 joint pieces that were learned before from a sample (`data.tokenizer`), so learning is not measured; with --learn
it is. sentencepiece encodes with the same model, `encode(list, num_threads=N)`, from lists that are in memory already.

Besides the time by the clock, that of all processes and threads on their cores is given: on a busy machine only that
can be compared. Memory is the highest sum of the proportional set sizes (PSS) of all processes, looked at ten times a
second. Run it on an idle machine; compare only what ran in one call.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from nmtkit.corpora.corpus import open_corpus
from nmtkit.corpora.download import Downloader

CORPORA = ["opennmt/train", *(f"newstest/newstest{year}" for year in (2009, 2012, 2013, 2014))]
CHANGED = 6
LINES_AT_ONCE = 200_000
ROOT = Path(__file__).parent.parent
ENCODE = f"""
import sys, time
from itertools import islice
import sentencepiece
model, threads, *files = sys.argv[1:]
processor = sentencepiece.SentencePieceProcessor(model_file=model)
seconds = core_seconds = 0.0
for name in files:
    with open(name, encoding="utf-8", newline="\\n") as file:
        while lines := [line[:-1] for line in islice(file, {LINES_AT_ONCE})]:
            begun, core_begun = time.perf_counter(), time.process_time()
            processor.encode(lines, num_threads=int(threads))
            seconds += time.perf_counter() - begun
            core_seconds += time.process_time() - core_begun
print(seconds, core_seconds)
"""


def write_text(folder: Path, mirror: Path, num_pairs: int) -> None:
    """Writes text.en and text.de."""
    downloader = Downloader(mirror)
    pairs = []
    for name in CORPORA:
        corpus = open_corpus(name, "en", "de", downloader)
        pairs += [
            (one.split(" "), other.split(" "))
            for one, other in zip(corpus.source.open(), corpus.target.open(), strict=True)
        ]
    words = [[word for pair in pairs for word in pair[side]] for side in range(2)]
    rng = random.Random(1)
    with (
        (folder / "text.en").open("w", encoding="utf-8", newline="\n") as source,
        (folder / "text.de").open("w", encoding="utf-8", newline="\n") as target,
    ):
        for number in range(num_pairs):
            for side, file in enumerate((source, target)):
                line = list(pairs[number % len(pairs)][side])
                for _ in range(max(1, len(line) // CHANGED)):
                    line[int(rng.random() * len(line))] = words[side][int(rng.random() * len(words[side]))]
                file.write(" ".join(line) + "\n")


def write_recipe(folder: Path, *settings: str) -> Path:
    """A recipe for the text, plain, with the default cleaning."""
    path = folder / "measured.toml"
    lines = ['source_language = "en"', 'target_language = "de"', "vocab_size = 32000", *settings]
    path.write_text("[data]\n" + "\n".join([*lines, 'train = [{ source = "text.en", target = "text.de" }]\n']), "utf-8")
    return path


@dataclass(frozen=True)
class Measured:
    """What something took: by the clock, on all cores together, and at most of memory."""

    seconds: float
    core_seconds: float
    megabytes: float = float("nan")


def prepare(recipe: Path, run: Path, workers: int, folder: Path) -> Measured:
    """`nmtkit prepare`, all its processes together."""
    shutil.rmtree(run, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "nmtkit", "prepare", str(recipe), "--run-dir", str(run), "--quiet"]
    begun, highest = time.perf_counter(), 0.0
    core_seconds: dict[int, float] = {}
    with subprocess.Popen(
        [*command, "--workers", str(workers)], stdout=subprocess.DEVNULL, env=environment, cwd=folder
    ) as process:
        while process.poll() is None:
            family = _family(process.pid)
            highest = max(highest, sum(_megabytes(number) for number in family))
            core_seconds.update({number: _core_seconds(number) for number in family if _core_seconds(number)})
            time.sleep(0.1)
    if process.returncode:
        sys.exit("nmtkit prepare failed")
    return Measured(time.perf_counter() - begun, sum(core_seconds.values()), highest)


def _family(process: int) -> list[int]:
    """A process with all that it has started."""
    found = [process]
    for number in found:
        try:
            found += [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]
        except OSError:  # it has ended
            continue
    return found


def _megabytes(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("Pss:")), 0.0)


def _core_seconds(process: int) -> float:
    try:
        user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    except (OSError, ValueError):
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def encode(model: Path, threads: int, folder: Path) -> Measured:
    """sentencepiece on the same lines."""
    command = [sys.executable, "-c", ENCODE, str(model), str(threads), "text.en", "text.de"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
    return Measured(*map(float, output.split()))


def main() -> None:
    """Reads the command line, measures in turn, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, required=True, help="folder that the text is made from")
    parser.add_argument("--pairs", type=int, nargs="+", default=[2_250_000, 4_500_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sample", type=int, default=100_000, help="pairs that subwords are learned from beforehand")
    parser.add_argument("--learn", action="store_true", help="learn subwords too, by the defaults")
    parser.add_argument("--no-peer", action="store_true", help="only nmtkit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder, arguments.mirror, arguments.sample)
        prepare(write_recipe(folder), folder / "given", arguments.workers, folder)
        model = folder / "given" / "data" / "tokenizer" / "joint.model"
        print("| pairs | nmtkit, s | sentencepiece, s | ratio | on cores, s | | ratio | nmtkit, MB |", flush=True)
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for num_pairs in arguments.pairs:
            write_text(folder, arguments.mirror, num_pairs)
            recipe = write_recipe(folder, *([] if arguments.learn else [f'tokenizer = "{folder / "given"}"']))
            for _ in range(arguments.rounds):
                skipped = Measured(float("nan"), float("nan"))
                peer = skipped if arguments.no_peer else encode(model, arguments.workers, folder)
                own = prepare(recipe, folder / "run", arguments.workers, folder)
                results.append({"pairs": num_pairs, "nmtkit": asdict(own), "sentencepiece": asdict(peer)})
                cells = [f"{num_pairs:,}"]
                for one, other in ((own.seconds, peer.seconds), (own.core_seconds, peer.core_seconds)):
                    cells += [f"{one:.1f}", f"{other:.1f}", f"{one / other:.2f}"]
                print(f"| {' | '.join(cells)} | {own.megabytes:,.0f} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
