"""Trains a small model on SciTLDR-A (title and abstract in, a sentence out), and scores it as extraction.py does.

    python benchmarks/scitldr.py --work DIR --mirror DIR [--set SECTION.KEY=VALUE]

1,992 pairs teach a model little; the scores are reported beside those of extraction and nothing is claimed from them.
The same command continues an interrupted training.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from extraction import SCITLDR, one_line, scitldr_examples, scores_by_best_reference

from nmtkit.corpora.download import Downloader
from nmtkit.corpora.http_transfer import RemoteFile
from nmtkit.evaluation.rouge import ROUGE_METRICS
from nmtkit.lines import read_lines, write_lines
from nmtkit.run import Run
from nmtkit.text.extraction import Example

FILES = {
    "train": RemoteFile(
        SCITLDR.url.replace("test.jsonl", "train.jsonl"),
        num_bytes=3_155_015,
        sha256="b222771d387be585cfdf5ae957b36757138415a352e0a3e3b23f73f87c3b1119",
    ),
    "valid": RemoteFile(
        SCITLDR.url.replace("test.jsonl", "dev.jsonl"),
        num_bytes=1_124_865,
        sha256="3191fa98ccc09521332b7a1cd63b1930be4e8df125a235ccd31e40329709525e",
    ),
    "test": SCITLDR,
}
RECIPE = """
[data]
task = "summary"
target_language = "en"
train = [{ source = "train.source", target = "train.target" }]
valid = [{ source = "valid.source", target = "valid.target" }]
test = [{ source = "test.source", target = "test.target", name = "test" }]
normalize = ["blanks", "lowercase"]
vocab_size = 4000
max_source_tokens = 400

[model]
encoder_layers = 3
decoder_layers = 3
d_model = 128
d_ff = 512
num_heads = 4
norm = "pre"
dropout = 0.3

[training]
sequences_per_update = 64
schedule = "cosine"
peak_learning_rate = 2e-3
warmup_steps = 100
max_steps = 600
validate_bleu = false
validate_every_steps = 100
checkpoint_every_steps = 100
keep_last = 1

[decoding]
beam = 4
length_penalty = "wu"
alpha = 0.6
max_length_ratio = 0.0
max_length_offset = 80
no_repeat_ngram = 3
average_last = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the text and the run")
    parser.add_argument("--mirror", type=Path, help="folder laid out as <host>/<path>")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    work, downloader = arguments.work, Downloader(arguments.mirror)
    sets: dict[str, list[Example]] = {}
    for split, file in FILES.items():
        sets[split] = list(scitldr_examples(downloader.fetch(file).path))
        sources = ["\t".join((one_line(one.query), *one.paragraphs)) for one in sets[split]]
        write_lines(work / f"{split}.source", sources)
        write_lines(work / f"{split}.target", [one.target.split("\t")[0] for one in sets[split]])
    write_lines(work / "scitldr.toml", RECIPE.strip().split("\n"))
    command = [str(Path(sys.executable).with_name("nmtkit")), "run", str(work / "scitldr.toml")]
    stated = [part for setting in arguments.set for part in ("--set", setting)]
    subprocess.run([*command, "--run-dir", str(work / "run"), *stated], check=True)
    outputs = read_lines(Run(work / "run").translation("test"))
    scores = [
        scores_by_best_reference(line, one.target.split("\t")) for line, one in zip(outputs, sets["test"], strict=True)
    ]
    means = {metric: sum(one[metric] for one in scores) / len(scores) for metric in ROUGE_METRICS}
    print(f"SciTLDR-A test: {', '.join(f'{metric} {value:.2f}' for metric, value in means.items())}")


if __name__ == "__main__":
    main()
