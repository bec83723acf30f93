"""Record what nmtkit computes and writes, before a large change, and compare it with the same afterwards.

    python benchmarks/golden.py write BEFORE.json [--work FOLDER] [--mirror DIR]
    python benchmarks/golden.py compare BEFORE.json AFTER.json

`write` uses nmtkit through its command line only, the one installed beside the Python that runs this script: data of
several recipes, small trainings, translations, scores and every other command, with about 40 wrong uses. All on a CPU
with one thread per process; training and translation in float32, `score --model` and `rerank` in float64. `--work`
keeps the files (without it they are deleted), so that two runs can be compared file by file. Without a mirror, the data
of corpora that must be downloaded are recorded as "not measured".

Every key belongs to one of two classes. "must be equal": files, weights, metrics, translations, scores, exit codes, and
the files and line numbers that an error message names; JSON and TOML are compared by value. "wording may change":
stdout and stderr, web pages and Markdown. `compare` exits with 1 if something in the first class differs, and lists
the keys of the second class that do.

Expected between two commits, hence left out: versions of packages, times, rates, memory, energy, absolute paths and the
name of the processor (`VOLATILE`). Weights depend on the processor and on the version of torch: record both files on
the same machine, with the same packages.
"""

import argparse
import gzip
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CPU = "--threads 1 --device cpu --quiet"
VOLATILE = re.compile(
    r"(.*_)?(seconds|joules|per_second|versions|path|processor|memory_(bytes|source|parts))"
    r"|flops_paper_estimate|mfu(_of_peak|_source)?|cpu_capability|rate(_source)?|sustained_source|memory_bytes_estimated|nmtkit"
)
"""Names of JSON fields that depend on time, machine or version."""
UNITS = r"(?:h|min|m|ms|s|seconds?|minutes?|hours?|%|[kMGT]i?B|[\w]+/s|FLOPs|x)"
PACKAGES = ("torch", "sentencepiece", "sacrebleu", "sacremoses", "accelerate", "ctranslate2", "transformers")
WHOLE = 20_000
"""Longest JSON value, in characters, that is recorded whole; of a longer one, the sum."""

SMALL = """base = "quickstart"
model = {{ encoder_layers = {layers}, decoder_layers = {layers}, d_model = {width}, d_ff = {hidden}, num_heads = 2 }}
[training]
precision = "float32"
schedule = "inverse-sqrt"
peak_learning_rate = 0.004
warmup_steps = {warmup}
max_steps = {steps}
tokens_per_update = {tokens}
validate_every_steps = {every}
checkpoint_every_steps = {every}
report_every_steps = {every}
keep_last = 3
[decoding]
average_last = 2
"""
OWN = """[data]
source_language = "en"
target_language = "el"
train = [
    { source = "own.tsv", target = "own.tsv", source_column = 2, target_column = 3, name = "columns" },
    { source = "heavy.en.gz", target = "heavy.el", weight = 2 },
    { source = "back.en", target = "back.el", weight = 0.5, source_prefix = "<bt>" },
]
valid = [{ source = "valid.en", target = "valid.el" }]
test = [{ source = "test.en", target = "test.el", name = "mine" }]
vocab_size = 420
byte_fallback = true
[cleaning]
invalid_utf8 = "fix"
max_characters = 400
max_tokens = 120
max_ratio = 4
source_equals_target = "keep"
[model]
encoder_layers = 1
decoder_layers = 1
d_model = 32
d_ff = 64
num_heads = 2
norm = "pre"
positions = "learned"
dropout = 0.2
attention_dropout = 0.1
ffn_dropout = 0.1
[training]
precision = "float32"
warmup_steps = 10
tokens_per_update = 600
tokens_per_pass = 250
lengths_per_update = 2
gradient_clip_norm = 1.0
weight_decay = 0.01
r_drop = 1.0
ema_decay = 0.99
subword_sampling = 0.1
best_metric = "bleu"
max_steps = 50
validate_every_steps = 10
checkpoint_every_steps = 10
report_every_steps = 5
keep_last = 2
keep_best = 2
[decoding]
beam = 2
max_length_offset = 5
average_last = 2
"""
TREES = """model = { encoder_layers = 1, decoder_layers = 1, d_model = 16, d_ff = 32, num_heads = 2 }
[data]
source_language = "en"
target_language = "ptb"
text = "trees"
vocab_size = 70
train = [{ source = "train.mrg", target = "train.mrg" }]
valid = [{ source = "valid.mrg", target = "valid.mrg" }]
test = [{ source = "test.mrg", target = "test.mrg" }]
[training]
precision = "float32"
tokens_per_update = 500
warmup_steps = 5
max_steps = 20
validate_bleu = false
validate_every_steps = 10
checkpoint_every_steps = 10
[decoding]
beam = 2
max_length_offset = 30
average_last = 2
whole_trees = true
"""
ROWS = """title = "Two rows"
[base]
model = { d_ff = 64 }
[[rows]]
name = "base"
group = "base"
[[rows]]
name = "wide"
group = "wide"
model = { d_ff = 128 }
"""
FIXED = ("line_separator", "bom", "control_character", "html_entity", "markup", "swapped_sides")
DROPPED = (
    "line_separator", "bom", "control_character", "html_entity", "markup", "length_ratio", "source_equals_target",
    "duplicate_pair", "duplicate_source", "wrong_script", "swapped_sides", "overlap_valid", "overlap_test",
    "invalid_utf8", "line_count",
)  # fmt: skip
UNSHARED = "data.byte_fallback=false training.subword_sampling=0 data.share_vocab=false model.share_embeddings=none"
DATA_VARIANTS = {
    "fix": " ".join(f"cleaning.{rule}=fix" for rule in FIXED),
    "drop": " ".join(f"cleaning.{rule}=drop" for rule in DROPPED)
    + """ data.subwords=unigram 'data.normalize=["nfkc","blanks","lowercase"]' data.valid=30""",
    "wordpiece": "data.subwords=wordpiece data.vocab_size=300 "
    + f"""'data.normalize=["nfc","blanks","moses-punctuation","moses-tokenize"]' {UNSHARED}""",
    "segmented": f"data.subwords=none data.text=tokenized {UNSHARED}",
}
"""Overrides of OWN."""

HOSTILE_PAIRS = (
    "\t", " \t  ", "only a source\t", "\tαβγ", "a\u2028b\tα\u2029β", "a\rb\tα\vβ", "a\ufeffb\tαβ", "a\x07b\x1b[2J\tαβ",
    "Q &amp; A &lt;b&gt;\tα &amp; β", "<b>bold</b><br>x\t<b>α</b> β", "word " * 300 + "\t" + "λέξη " * 300,
    "a\t" + "α β γ δ ε ζ η θ ι κ λ μ " * 4, "same\tsame", "same\tsame", "same\tάλλο κείμενο", "αβγ δεζ ηθι\tαβγ δεζ",
    "κλμ νξο πρσ\tabc def ghi", "caf\udce9 \udc80\tαβ", "e\u0301\u0301 ﬁ ½\tέ", "a <unk> </s>\tα <s>",
    "👩\u200d👧 🏴\tα👍🏽", "in\x85line\tα", "\u00a0blank\u3000\tα\u00a0β", "Mr. O'Neil's \"x-ray\"...\tα «β»",
)  # fmt: skip
"""Pairs for the rules of [cleaning]; surrogates stand for bytes that are not UTF-8."""
HOSTILE_LINES = (
    "", " ", "\t", "\u00a0\u3000", "The dog\u2028sleeps.", "The dog\u2029sleeps.\x85", "The dog sleeps.\r",
    "a\x0b\x0cb", "The\x00 dog\x07 \x1b[2J", "e" + "\u0301" * 50, "👩\u200d👩\u200d👧\u200d👦 🏴\U000e0067 👍🏽",
    "مرحبا بالعالم", "שלום עולם", "你好，世界。今天天气很好。", "The\tdog\tsleeps.", "\ufeffThe dog.",
    "ab \u202ecde\u202c \u200f", "&amp; <b>dog</b> ||| 1", "</s> <s> <pad> <unk> ⁇ ▁dog @@", "a" * 2000,
    "The dog sleeps. " * 125, "(" * 200, "1e308 -0 ٣ Ⅷ ½", "ﬁ Å \u212b", "\ue000\uf8ff\U0010ffff",
    "the the the the", "DOG!!!???", '{"source": [}', "The dog sleeps", "x" * 120 + " y" * 120,
)  # fmt: skip


@dataclass
class Golden:
    """The values that were recorded, and how commands are run and files are recorded.

    Attributes:
        folder: working folder of every command. All paths given to nmtkit are relative to it.
    """

    folder: Path
    mirror: str | None
    equal: dict[str, Any] = field(default_factory=dict)
    wording: dict[str, Any] = field(default_factory=dict)

    def run(self, command: str, *outputs: str, stdin: bytes = b"", is_result: bool = False) -> str:
        """Run a command, record its exit code, stdout, stderr and output files, and return its stdout.

        Args:
            command: the arguments of nmtkit, quoted as in a shell; with the precision, the key of what is recorded.
            outputs: files and folders that the command writes.
            is_result: stdout holds data, such as translations, and must be equal.
        """
        program = Path(sys.executable).with_name("nmtkit")
        nmtkit = [str(program)] if program.exists() else [sys.executable, "-m", "nmtkit"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NMTKIT_")}
        environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "TERM": "dumb"}
        environment |= {"NMTKIT_CACHE": str(self.folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*nmtkit, *shlex.split(command)], input=stdin, capture_output=True, cwd=self.folder, env=environment
        )
        out, err = (stream.decode("utf-8", "surrogateescape") for stream in (done.stdout, done.stderr))
        arguments = " ".join(command.replace(CPU, "").split())
        key = self.plain(f"[{precision(command)}] nmtkit {arguments}", is_result=True)
        while f"{key}: exit" in self.equal:
            key += ", again"
        outcome: dict[str, Any] = {"code": done.returncode, "traceback": "Traceback" in err}
        if done.returncode:
            places = re.findall(r"[\w.-]+\.(?:toml|tsv|jsonl?|en|el|de)\b|lines? [\d,]+", err)
            outcome["places"] = sorted({*places})  # file names and line numbers
        self._record(self.equal, f"{key}: exit", outcome)
        self._record(self.equal if is_result else self.wording, f"{key}: stdout", self.plain(out, is_result))
        self._record(self.wording, f"{key}: stderr", self.plain(err))
        for output in outputs:
            self.files(f"{key}: {output}", output)
        return out

    def plain(self, text: str, is_result: bool = False) -> str:
        """Replace paths by names and, unless the text is a result, versions, times and rates by letters."""
        text = text.replace(str(self.folder), "FOLDER")
        if self.mirror:
            text = text.replace(self.mirror, "MIRROR")
        if is_result:
            return text
        text = re.sub(r"\d+\.\d+\.\d+\+\w[\w.]*", "VERSION", text)
        text = re.sub(r"\b(\d+[dhm])+(?=\d+[hms]\b)", "", text)  # 1m05s, as 5s
        text = re.sub(r"(estimate|\n *(?:seconds per update|seconds|MFU|memory, bytes))[-\d.e+, |`]+", r"\1 N", text)
        text = re.sub(rf"\d[\d.,]*(e[+-]?\d+)?(?=(?: |&nbsp;)?{UNITS}(?!\w))", "N", text)
        text = re.sub(r"N((?: |&nbsp;)?)[kMGTP](i?B|FLOPs?/s)\b", r"N\1\2", text)
        return re.sub(r"[─━█▏]+", "─", re.sub(r" +", " ", text))

    def _record(self, section: dict[str, Any], key: str, value: Any) -> None:
        if key in section:
            raise ValueError(f"{key} is recorded twice")
        text = json.dumps(value, sort_keys=True)
        section[key] = value if len(text) <= WHOLE else "sha256 " + hashlib.sha256(text.encode()).hexdigest()

    def files(self, key: str, name: str) -> None:
        """Record a file, or every file below a folder but the caches in RUN/prepare."""
        place = self.folder / name
        paths = sorted(
            path for path in place.rglob("*") if path.is_file() and path.relative_to(place).parts[0] != "prepare"
        )
        if place.is_dir():
            self._record(self.equal, f"{key}: files", [str(path.relative_to(place)) for path in paths])
        for path in paths if place.is_dir() else [place]:
            inside = "" if path == place else f"/{path.relative_to(place)}"
            self._file(key + inside, path)

    def _file(self, key: str, path: Path) -> None:
        """Record JSON and TOML by value, without what is volatile, and other files by their sum."""
        if not path.is_file():
            self._record(self.equal, key, "missing")
            return
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = self.plain(content.decode("utf-8", "replace"), is_result=True)
        if path.suffix == ".json":
            content = stable(json.loads(text))
            if path.name == "state.json":
                del content["sha256"]  # of the file itself, with its times
            self._record(self.equal, key, content)
        elif path.suffix == ".jsonl":
            self._record(self.equal, key, [stable(json.loads(line)) for line in text.split("\n") if line])
        elif path.suffix == ".toml":
            self._record(self.equal, key, stable(tomllib.loads(text)))
        elif path.suffix in (".html", ".md", ".svg"):
            words = self.plain(text)
            if path.suffix == ".html":  # most numbers are times, rates and those of JSON files
                words = re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "N", words)
            self._record(self.wording, key, words)
            found = re.findall(r'<script type="application/json" id="attention[^>]*>(.*?)</script>', text, re.DOTALL)
            if found:
                self._record(self.equal, f"{key}: weights", [list(numbers(json.loads(part))) for part in found])
        else:
            self._record(self.equal, key, "sha256 " + hashlib.sha256(content).hexdigest())

    def write(self, name: str, text: str) -> None:
        """Write a file; surrogates become bytes that are not UTF-8."""
        content = text.encode("utf-8", "surrogateescape")
        (self.folder / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text file, with their ends."""
        return [line.decode("utf-8") for line in (self.folder / name).read_bytes().splitlines(keepends=True)]

    def copy(self, source: str, target: str) -> None:
        shutil.copytree(self.folder / source, self.folder / target)


def precision(command: str) -> str:
    """Return the precision in which a command computes here."""
    if command.startswith(("rerank", "score --model")):
        return "float32" if "--precision float32" in command else "float64"
    uses_model = ("run", "train", "average", "translate", "ablate", "attention", "export")
    return "float32" if command.startswith(uses_model) and "--help" not in command else "exact"


def stable(value: Any) -> Any:
    """Return a JSON value without volatile fields and without the sums of pages."""
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if not VOLATILE.fullmatch(key)}
        return {key: stable(part) for key, part in kept.items() if not key.endswith((".html", ".md"))}
    return [stable(part) for part in value] if isinstance(value, list) else value


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)
    elif isinstance(value, (int, float)):
        yield value


def write_corpora(golden: Golden) -> None:
    """Write the recipes, and the texts that they and the commands read, by rule."""
    generator = random.Random(20)
    syllables = ["".join(pair) for pair in itertools.product("bdgklmnprst", "aeiou")]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 3))) for _ in range(150)]
    greek = str.maketrans("abdegiklmnoprstu", "αβδεγικλμνοπρστυ")

    def pairs(count: int) -> list[str]:
        sources = [" ".join(generator.choices(words, k=generator.randint(2, 12))) for _ in range(count)]
        return [f"{source.capitalize()}.\t{' '.join(reversed(source.split())).translate(greek)}." for source in sources]

    corpora = {"own": pairs(800), "heavy": pairs(300), "back": pairs(300), "valid": pairs(40), "test": pairs(30)}
    corpora["back"] += [*HOSTILE_PAIRS, *corpora["valid"][:3], *corpora["test"][:2], *corpora["own"][:4]]
    golden.write("own.tsv", "".join(f"{number}\t{pair}\n" for number, pair in enumerate(corpora["own"])))
    for name in ("heavy", "back", "valid", "test"):
        for side, suffix in enumerate(("en.gz" if name == "heavy" else "en", "el")):
            golden.write(f"{name}.{suffix}", "".join(pair.split("\t")[side] + "\n" for pair in corpora[name]))
    golden.write("own.toml", OWN)
    train = re.compile(r"train = \[.*?\n\]", re.DOTALL)
    golden.write("short.toml", train.sub('train = [{ source = "back.en", target = "test.el" }]', OWN))
    golden.write("empty.toml", train.sub('train = [{ source = "empty.en", target = "empty.en" }]', OWN))
    golden.write("typo.toml", OWN.replace("r_drop", "r_dorp"))
    golden.write("empty.en", "")
    golden.write("small.toml", SMALL.format(layers=1, width=32, hidden=64, warmup=10, steps=50, tokens=600, every=10))
    golden.write(
        "model.toml", SMALL.format(layers=2, width=64, hidden=256, warmup=50, steps=240, tokens=1800, every=40)
    )
    golden.write("rows.toml", ROWS)

    def noun_phrase() -> str:
        return f"(NP-X (DT the) {generator.choice(['', '(JJ old) '])}(NN {generator.choice(['dog', 'cat', 'house'])}))"

    def tree() -> str:
        verb = generator.choice(["sees", "likes"])
        trace = generator.choice(["", " (NP (-NONE- *))"])
        return f"( (S {noun_phrase()} (VP (VBZ {verb}){trace}\n {noun_phrase()}) (. .)) )\n"

    for name, count in (("train", 200), ("valid", 10), ("test", 12)):
        golden.write(f"{name}.mrg", "".join(tree() for _ in range(count)))
    golden.write("trees.toml", TREES)
    golden.write("parse.en", "the dog sees the old cat .\n( the ) dog(s\n\n \nthe\u2028dog\n)NP (S\n" + "the dog " * 30)


def record_data(golden: Golden) -> None:
    """Record RUN/data of the built-in recipes and of OWN under several settings of [data] and [cleaning]."""
    for recipe in ("multi30k-en-de-tiny", "treebank-parsing"):
        if golden.mirror:
            mirror = shlex.quote(golden.mirror)
            command = f"prepare {recipe} --run-dir data-{recipe} --mirror {mirror} --workers 2 --quiet"
            golden.run(command, f"data-{recipe}/data")
        else:
            golden.equal[f"data of {recipe}"] = "not measured: give --mirror or set NMTKIT_MIRROR"
    for name, overrides in DATA_VARIANTS.items():
        settings = " ".join(f"--set {shlex.quote(override)}" for override in shlex.split(overrides))
        golden.run(f"prepare own.toml --run-dir data-{name} --workers 1 {settings}", f"data-{name}/data")
        golden.run(f"inspect data-{name} --line 810 --json", is_result=True)
    golden.run("inspect data-fix --line 1 --corpus back.en --json", is_result=True)
    golden.run("inspect data-fix --line 3 --valid")
    golden.run("prepare own.toml --run-dir data-check --check")
    golden.run("prepare own.toml --run-dir own")


def record_training(golden: Golden) -> None:
    """Record weights and metrics of short trainings, each from data that have been prepared."""

    def train(recipe: str, run: str, options: str = "") -> None:
        outputs = [f"{run}/{name}" for name in ("checkpoints", "resume", "metrics.jsonl", "recipe.toml")]
        golden.run(f"train {recipe} --run-dir {run} {options} {CPU}", *outputs)

    for run in ("one", "two", "resumed", "tuned"):
        golden.copy("quickstart", run)
    golden.copy("own", "own-resumed")
    twenty = "--set training.max_steps=20"
    train("small.toml", "one")
    train("small.toml", "two", "--processes 2")
    train("small.toml", "tuned", f"""--init one {twenty} --set 'training.freeze=["encoder"]'""")
    train("own.toml", "own")
    train("own.toml", "own", "--verify-resume")
    train("own.toml", "own")
    for recipe, whole, resumed in (("small.toml", "one", "resumed"), ("own.toml", "own", "own-resumed")):
        train(recipe, resumed, twenty)
        train(recipe, resumed)
        golden.equal[f"{resumed} has the weights of {whole}"] = all(
            path.read_bytes() == (golden.folder / resumed / path.relative_to(golden.folder / whole)).read_bytes()
            for path in (golden.folder / whole).glob("*/step-*/*.safetensors")
        )
    sweep = f"--rows-file rows.toml --sweep-dir sweep --set training.validate_bleu=false {twenty}"
    pages = [f"sweep/ablations.{name}" for name in ("json", "md", "html")]
    golden.run(f"ablate small.toml {sweep} {CPU}", *pages)


def record_parsing(golden: Golden) -> None:
    """Record data, 20 updates, parses and scores of a model of trees."""
    golden.run(f"run trees.toml --run-dir parsing {CPU}")
    golden.run("report parsing --quiet", "parsing")
    for name, options in (("free", "--no-whole-trees --n-best 2 --json"), ("whole", "--whole-trees --json")):
        outputs = f"{name}.jsonl", f"{name}-status.jsonl"
        files = f"--input parse.en --output {outputs[0]} --status {outputs[1]}"
        golden.run(f"translate parsing {files} {options} {CPU}", *outputs)
    scored = "--hypothesis parsing/translations/test.txt --reference parsing/data/test/test.reference.txt"
    outputs = "evalb.json", "evalb.jsonl"
    golden.run(f"score {scored} --metric evalb --json evalb.json --sentences evalb.jsonl", *outputs)


SEARCHES = {
    "greedy": "--beam 1",
    "beam": "--beam 4",
    "best": "--beam 4 --n-best 3 --json --alignment",
    "best-text": "--n-best 3",
    "samples": "--sample --seed 3 --n-best 2 --top-k 20 --temperature 0.8 --json",
    "nucleus": "--sample --seed 7 --top-p 0.9",
    "risk": "--mbr 4 --n-best 2 --json",
    "penalties": "--beam 3 --length-penalty length --alpha 1.2 --coverage-penalty 0.2 --min-length 4 "
    "--no-repeat-ngram 3 --json",
    "constraints": "--beam 4 --forbid nicht --forbid die --require require.txt --json",
    "prefix": "--prefix prefixes.txt --max-length 20",
    "parts": "--beam 2 --max-source-tokens 9 --batch-tokens 150 --json",
    "single": "--beam 4 --batch-size 1",
    "processes": "--beam 4 --processes 2",
}


def record_translation(golden: Golden) -> None:
    """Train a small model with `run`, and record its translations of ordinary and hostile lines."""
    golden.copy("quickstart", "model")
    golden.run(f"run model.toml --run-dir model {CPU}", "model")
    sources = golden.lines("model/data/test/synthetic.source.txt")
    golden.write("lines.en", "".join([*sources[: 300 - len(HOSTILE_LINES)], *(f"{line}\n" for line in HOSTILE_LINES)]))
    golden.write("require.txt", "Haus\talte\n\n\n" * 100)
    golden.write("prefixes.txt", "Der alte\n\n\n" * 100)
    golden.write("bytes.en", "The dog \udcff\udcfe sleeps.\n\udce9\nThe cat sleeps.")
    for name, options in SEARCHES.items():
        outputs = f"{name}.jsonl" if "--json" in options else f"{name}.txt", f"{name}-status.jsonl"
        files = f"--input lines.en --output {outputs[0]} --status {outputs[1]}"
        golden.run(f"translate model {options} {files} --engine torch {CPU}", *outputs)
    text = (golden.folder / "lines.en").read_bytes()
    golden.run(f"translate model --beam 2 {CPU}", stdin=text, is_result=True)
    golden.run(f"translate model --json --n-best 2 {CPU}", stdin=text, is_result=True)
    golden.run(f"translate model --input bytes.en --status bytes.jsonl {CPU}", "bytes.jsonl", is_result=True)
    ensemble = "model model/checkpoints/step-00000240"
    golden.run(f"translate {ensemble} --input lines.en --output both.txt.gz {CPU}", "both.txt.gz")


def record_scores(golden: Golden) -> None:
    """Record what the other commands compute from the run of `record_translation` and its translations."""
    texts = {"head.en": "lines.en", "a.de": "greedy.txt", "b.de": "beam.txt"}
    for name, source in {**texts, "ref.de": "model/data/test/synthetic.reference.txt"}.items():
        golden.write(name, "".join(golden.lines(source)[:250]))
    golden.run("score model", "model/scores.json")
    paired = "--paired bootstrap --paired randomization --trials 200 --confidence 100 --source head.en"
    outputs = "--json scores.json --sentences sentences.jsonl"
    files = "--hypothesis a.de --hypothesis b.de --reference ref.de --target-language de"
    golden.run(f"score {files} {paired} {outputs}", "scores.json", "sentences.jsonl")
    files = "--hypothesis a.de --reference ref.de --reference b.de --target-language de"
    golden.run(f"score {files} --metric chrf2 --metric ter --json two.json", "two.json")
    for options in ("", "--format jsonl --tokens", "--precision float32 --max-tokens 5"):
        golden.run(f"score --model model --source head.en --hypothesis ref.de {options} {CPU}", is_result=True)
    inputs = "--input best.jsonl", "--input best.jsonl --list --original-weight 0.5"
    for options in (*inputs, "--input best-text.txt --source lines.en --alpha 1"):
        golden.run(f"rerank --model model/checkpoints/step-00000240 {options} {CPU}", is_result=True)
    for name, options in (("last", "--last 3"), ("best", "--best 2"), ("spaced", "--last 2 --spacing 2")):
        golden.run(f"average model {options} --output average-{name} --quiet", f"average-{name}")
    golden.run(f"average model --search --metric nll {CPU}", "model/averaging.json")
    golden.copy("model", "other")
    golden.write(
        "other/translations/synthetic.txt", "".join(reversed(golden.lines("model/translations/synthetic.txt")))
    )
    golden.run("compare model other --trials 100 --json compare.json", "compare.json")
    golden.run("cost model --json cost-run.json", "cost-run.json")
    golden.run("cost wmt14-en-de-big --devices 8 --device-type h200 --json cost.json", "cost.json")
    prediction = json.loads((golden.folder / "cost.json").read_text(encoding="utf-8"))
    golden.equal["predicted cost"] = [prediction[name] for name in ("seconds", "memory_bytes")]  # nothing was measured
    golden.run("cost model --rate 10 --mfu 0.2")
    golden.run("cost --list-devices")
    attention = "attention model --source 'The old house is empty.'"
    golden.run(f"{attention} --layer 1 --head 2 --words {CPU}")
    golden.run(f"{attention} --output attention.html {CPU}", "attention.html")
    golden.run(f"{attention} --output given.html --target 'Das alte Haus ist leer.' {CPU}", "given.html")
    golden.run("report model", "model/report.html", "model/card.md")
    scores = json.loads((golden.folder / "model/scores.json").read_text(encoding="utf-8"))["synthetic"]
    pages = [(golden.folder / f"model/{name}").read_text(encoding="utf-8") for name in ("report.html", "card.md")]
    shown = {metric: [f"{found['score']:.2f}" in page for page in pages] for metric, found in scores.items()}
    golden.equal["scores that report.html and card.md show"] = shown
    golden.run("report model other --output two.html --no-attention", "two.html")
    golden.run(f"run model.toml --run-dir model {CPU}")
    for name, library in (("ctranslate2", "ctranslate2"), ("huggingface", "transformers")):
        if importlib.util.find_spec(library):
            golden.run(f"export model --format {name} --output {name} --threads 1", name)
        else:
            golden.equal[f"export, {name}"] = f"not measured: {library} is not installed"
    if importlib.util.find_spec("ctranslate2"):
        golden.run(f"translate ctranslate2 --beam 1 --input lines.en --output export.txt {CPU}", "export.txt")


COMMANDS = (
    "run", "prepare", "train", "average", "translate", "score", "report", "compare", "cost", "attention", "rerank",
    "export", "ablate", "recipes", "corpora", "inspect",
)  # fmt: skip
WRONG_USES = (
    "prepare missing.toml", "prepare typo.toml", "prepare own.toml --set training.seed=x", "prepare short.toml",
    "prepare empty.toml", 'prepare own.toml --run-dir strict --set cleaning.invalid_utf8="error"',
    "prepare own.toml --set seed=1", "train small.toml --run-dir unprepared", "train small.toml --processes 0",
    "train model.toml --run-dir model --set model.d_model=32", "train model.toml --run-dir model --init missing",
    "run no-such-recipe", "average missing", "average model --last 1000", "average model --last 2 --best 2",
    "translate missing", "translate model/data", "translate damaged", "translate model --input missing.en",
    "translate model --input lines.en --beam 0", "translate model --input bytes.en --strict --output strict.txt",
    "translate model --input lines.en --require empty.en", "translate model --input lines.en --alignment",
    "translate model --input lines.en --output lines.en", "translate model --processes 2",
    "translate model --input lines.en --no-such-option", "score", "score missing", "score --metric nonsense model",
    "score --hypothesis a.de --reference test.el", "score --hypothesis empty.en --reference empty.en",
    "score --hypothesis bytes.en --reference bytes.en", "score --model model --source head.en --hypothesis test.el",
    "compare model", "compare model parsing", "cost", "cost wmt14-en-de-base --device-type nonsense",
    "attention model --source dog --layer 9", "rerank --model model --input lines.en", "report missing",
    "export model --format onnx", "export model --format ctranslate2 --quantization int3", "recipes nonsense",
    "ablate small.toml --rows-file rows.toml --rows nonsense", "corpora nonsense", "inspect model --line 1000000",
    "no-such-command", "",
)  # fmt: skip


def record_listings(golden: Golden) -> None:
    """Record help pages and lists."""
    for command in ("", *COMMANDS):
        golden.run(f"{command} --help")
    golden.run("--version")
    for name in re.findall(r"^(\S+)$", golden.run("recipes"), re.MULTILINE):
        golden.equal[f"values of the recipe {name}"] = tomllib.loads(golden.run(f"recipes {name}"))
    golden.run("corpora")
    golden.run("corpora --json", is_result=True)
    golden.run("corpora --languages en-de")
    golden.run("corpora multi30k/train")


def record_wrong_uses(golden: Golden) -> None:
    """Record how wrong uses end, with the runs that the other functions made."""
    golden.copy("model/averaged", "damaged")
    with (golden.folder / "damaged/model.safetensors").open("r+b") as file:
        file.truncate(5000)
    for use in WRONG_USES:
        golden.run(use)


def write(output: Path, folder: Path, mirror: str | None) -> None:
    """Record everything and write it as JSON."""
    begun = time.monotonic()
    golden = Golden(folder, mirror)
    write_corpora(golden)
    golden.run("prepare quickstart --run-dir quickstart --quiet", "quickstart/data")
    golden.run("prepare own.toml --run-dir own --workers 2", "own/data")

    def record(*parts: Callable[[Golden], None]) -> None:
        for part in parts:
            part(golden)
            print(f"{part.__name__}: done after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(2) as pool:  # two chains of commands that do not depend on each other
        chains = [
            pool.submit(record, record_translation, record_scores),
            pool.submit(record, record_data, record_training, record_parsing, record_listings),
        ]
        for chain in chains:
            chain.result()
    record(record_wrong_uses)
    for key, value in golden.equal.items():
        command = key.partition("nmtkit ")[2].removesuffix(": exit")
        if key.endswith(": exit") and bool(value["code"]) != (command in WRONG_USES):
            print(f"warning: {command} ended with exit code {value['code']}", file=sys.stderr)
    packages = {each.metadata["Name"].lower(): each.version for each in importlib.metadata.distributions()}
    packages = {name: packages[name] for name in PACKAGES if name in packages}
    about = {
        "machine": f"{platform.machine()} {processor()}",
        "python": platform.python_version(),
        "packages": packages,
    }
    content = {"about": about, "must be equal": golden.equal, "wording may change": golden.wording}
    output.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    seconds = time.monotonic() - begun
    print(f"{output}: {len(golden.equal)} + {len(golden.wording)} values in {seconds:.0f} s")


def processor() -> str:
    """Return the vector instructions that decide which kernels torch takes."""
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.exists() else platform.processor()
    return (
        " ".join(name for name in ("avx2", "avx512f", "amx_bf16", "amx_tile") if name in text) or platform.processor()
    )


def differences(before: Any, after: Any, key: str) -> Iterator[str]:
    """Yield a line for each value that differs, with its place."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            place = f"{key} > {name}" if key else name
            if name not in before or name not in after:
                yield f"{place}: only {'after' if name in after else 'before'}"
            else:
                yield from differences(before[name], after[name], place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{key} > {index}")
    elif type(before) is not type(after) or before != after:
        old, new = (json.dumps(value, ensure_ascii=False) for value in (before, after))
        same = next((index for index, (one, two) in enumerate(zip(old, new, strict=False)) if one != two), 20)
        start = max(same - 20, 0)  # the first difference, with some text before it
        yield f"{key}: {old[start : start + 80]} -> {new[start : start + 80]}"


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print the differences, and return 1 if something differs that must be equal."""
    for line in differences(before["about"], after["about"], "about"):
        print(f"note: {line}: weights and what follows from them may differ for this reason")
    lines = list(differences(before["must be equal"], after["must be equal"], ""))
    print(*lines, f"must be equal: {len(lines)} differences in {len(before['must be equal'])} values", sep="\n")
    old, new = before["wording may change"], after["wording may change"]
    changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    print(f"wording may change: {len(changed)} of {len(old)} texts differ", *changed, sep="\n  ")
    return int(bool(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="run nmtkit and record what it computes and writes")
    writing.add_argument("output", type=Path)
    writing.add_argument("--work", type=Path, help="new folder for the files; a temporary one by default")
    writing.add_argument("--mirror", default=os.environ.get("NMTKIT_MIRROR"), help="as in `nmtkit prepare`")
    comparing = commands.add_parser("compare", help="print the differences of two files")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(*(json.loads(path.read_text(encoding="utf-8")) for path in (options.before, options.after)))
    mirror = str(Path(options.mirror).resolve()) if options.mirror else None
    if options.work:
        options.work.mkdir(parents=True)
        write(options.output, options.work.resolve(), mirror)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write(options.output, Path(folder).resolve(), mirror)
    return 0


if __name__ == "__main__":
    sys.exit(main())
