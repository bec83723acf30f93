"""Hostile cases by rule: every field of every file, every option's extremes, every oddity of text, odd surroundings."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from damage import FILE_DAMAGES, VALUES, fields
from harness import Case

TRAIN = ["train", "tiny.toml", "--run-dir", "run", "--device", "cpu", "--threads", "1"]
OUT = ["--output", "out.txt"]
COMMANDS: dict[str, list[str]] = {
    "prepare again": ["prepare", "tiny.toml", "--run-dir", "run"],
    "prepare": ["prepare", "tiny.toml", "--run-dir", "new"],
    "prepare with init": ["prepare", "tiny.toml", "--run-dir", "new", "--set", "data.tokenizer=run"],
    "check": ["prepare", "tiny.toml", "--run-dir", "new", "--check"],
    "train on": [*TRAIN, "--set", "training.max_steps=15"],
    "train again": TRAIN,
    "verify": [*TRAIN, "--verify-resume"],
    "average": ["average", "run", "--last", "1"],
    "average search": ["average", "run", "--search", "--threads", "1"],
    "translate": ["translate", "run", "--input", "test.en", "--threads", "1", *OUT],
    "translate with export": ["translate", "run/export/ctranslate2", "--input", "test.en", "--threads", "1", *OUT],
    "export": ["export", "run", "--format", "ctranslate2", "--output", "exported", "--threads", "1"],
    "score run": ["score", "run", "--confidence", "2"],
    "score files": ["score", "--hypothesis", "hypothesis.de", "--reference", "test.de", "--target-language", "de"],
    "score by model": ["score", "--model", "run", "--source", "test.en", "--hypothesis", "test.de", *OUT],
    "cost run": ["cost", "run"],
    "cost recipe": ["cost", "tiny.toml"],
    "compare": ["compare", "run", "other"],
    "rerank": ["rerank", "--model", "run", "--input", "lists.jsonl", "--threads", "1", *OUT],
    "rerank text": ["rerank", "--model", "run", "--input", "lists.txt", "--source", "test.en", "--threads", "1", *OUT],
    "extract": ["extract", "--input", "examples.jsonl", "--length", "8", *OUT],
    "extract sentences": ["extract", "--input", "examples.jsonl", "--method", "sumbasic", "--format", "jsonl", *OUT],
    "generate": ["generate", "text-run", "--prompt", "ab", "--max-tokens", "5", "--threads", "1", *OUT],
    "classify": ["classify", "label-run", "--input", "test.en", "--threads", "1", *OUT],
    "play": ["play", "play-run", "--episodes", "5", "--threads", "1"],
    "prepare episodes": ["prepare", "episodes.toml", "--run-dir", "new-episodes"],
    "import": ["import", "gpt", "--output", "imported"],
    "import Marian": ["import", "marian", "--output", "imported"],
    "report": ["report", "run", "--output", "report.html"],
    "attention": ["attention", "run", "--source", "ab cde", "--threads", "1"],
    "run": ["run", "tiny.toml", "--run-dir", "run", "--device", "cpu", "--threads", "1"],
    "ablate": ["ablate", "tiny.toml", "--rows-file", "rows.toml", "--sweep-dir", "sweep", "--only", "base-seed1",
               "--device", "cpu", "--threads", "1"],
    "recipes": ["recipes"],
    "corpora": ["corpora"],
    "inspect": ["inspect", "run", "--line", "3"],
}  # fmt: skip
"""A command of each kind that does well in the undamaged project."""
SERVE = ["serve", "label-run", "--port", "0", "--device", "cpu", "--threads", "1"]
"""A server of a model that it refuses, as another one would not end by itself."""
SLOW = (
    "prepare",
    "check",
    "train on",
    "train again",
    "verify",
    "average search",
    "export",
    "cost recipe",
    "run",
    "ablate",
)
"""These are tried with a fourth of the fields where quicker commands read the same file."""
READ_AS_THEY_COME = (
    "translate", "translate with export", "score files", "score by model", "rerank", "rerank text", "extract",
    "extract sentences", "classify",
)  # fmt: skip
"""Commands that take user's text from pipes too."""

TEXTS: dict[str, str] = {
    "empty": "", "one side shorter": "ab cde\n", "invalid UTF-8": "ab \udcff\udcfe\ncde\n" * 5,
    "separators": "ab\u2028cde\u2029fg\u0085hij\x0bkl\x0cmno\n" * 10, "CRLF": "ab cde\r\n" * 10,
    "NUL": "ab\0cde\n" * 10, "byte-order mark": "\ufeffab\n" + "\ufeffcde\ufeff\n" * 9, "lone CR": "ab\rcde\r" * 10,
    "escapes": "\x1b[2J\x1b]0;title\x07ab \x9b31m\n" * 10, "bidi": "ab \u202ecde\u202c \u2067fg\u2069 \u200f\n" * 10,
    "long line": "ab cde " * 15_000 + "\n" + "ab\n" * 9, "one long word": "a" * 100_000 + "\n" + "ab\n" * 9,
    "blanks": " \t\u00a0\u3000\n" * 10, "right-to-left": "שלום עולם مرحبا\n" * 10,
    "emoji": "👩\u200d👩\u200d👧\u200d👦 🏴\U000e0067\U000e0062 👍🏽\n" * 10,
    "combining": "e" + "\u0301" * 500 + "\n" + "ab\n" * 9,
    "tag-like": "</s> <s> <pad> <unk> <2de> ⁇ ▁ab @@ ￭\n" * 10, "entities": "&amp;lt;b&gt; &#0; &#x1b; &nbsp\n" * 10,
    "no last line end": "ab cde\n" * 9 + "fg", "many lines": "ab\n" * 3000, "numbers": "1e308 -0 ٣ Ⅷ ½\n" * 10,
    "half surrogates": "ab \udced\udca0\udc80\n" * 10, "private use": "\ue000\uf8ff\U0010ffff\ufffe\n" * 10,
    "opening brackets": "(" * 5000 + "\n" + "ab\n" * 9, "seg": "<seg " * 2000 + "\n", "bars": "||| ||| |||\n" * 10,
    "JSON": '{"source": [}\n' * 10, "deep JSON": "[" * 100_000 + "\n",
}  # fmt: skip
"""Contents of a text file; with surrogates for bytes that are not UTF-8."""

OPTION_VALUES = {
    "minus one": "-1", "zero": "0", "one": "1", "2**31": str(2**31), "2**63": str(2**63), "2**70": str(2**70),
    "nan": "nan", "inf": "inf", "1e308": "1e308", "empty": "", "100,000 characters": "x" * 100_000, "folder": "run",
    "missing": "no/such/file", "null": "/dev/null", "full": "/dev/full", "zeros": "/dev/zero", "fifo": "fifo",
    "escapes": "a\x1b[2J\u202eb", "file": "test.en", "not UTF-8": "a\udcffb", "name of 250 bytes": "n" * 250,
    "a list": "1,2,,", "an override": "training.max_steps=1" + "0" * 30,
}  # fmt: skip
_WRITTEN = ("--output", "--status", "--json", "--sentences", "--targets")
_READ_AS_IT_COMES = {
    *(("translate", option) for option in ("--input", "--prefix", "--require", "--glossary")),
    *(("score", option) for option in ("--hypothesis", "--source", "--reference")),
    ("rerank", "--input"), ("rerank", "--source"), ("export", "--sample"), ("extract", "--input"),
    ("generate", "--prompt-file"), ("classify", "--input"), ("serve", "--api-key"),
}  # fmt: skip
_OPTIONS_OF = {
    "prepare": "prepare", "train": "train again", "average": "average", "translate": "translate", "export": "export",
    "score": "score files", "cost": "cost recipe", "compare": "compare", "rerank": "rerank", "report": "report",
    "generate": "generate", "classify": "classify", "import": "import", "play": "play",
    "extract": "extract", "attention": "attention", "run": "run", "ablate": "ablate", "recipes": "recipes",
    "corpora": "corpora", "inspect": "inspect",
}  # fmt: skip


def file_cases(base: Path, opened: Mapping[str, list[str]]) -> Iterator[Case]:
    """Damages to every file that a command opens, and to every field of those that have fields.

    Args:
        opened: by file the names of the commands that open it.
    """
    for file, names in sorted(opened.items()):
        if file.startswith("other/") or "step-00000008" in file:
            continue  # they are of the same kind as those of the first run and of the later checkpoint
        for damage in FILE_DAMAGES:
            for name in names:
                if damage == "fifo" and "/" not in file and name in READ_AS_THEY_COME:
                    continue  # a pipe is waited for there, as `nmtkit score --hypothesis <(command)` needs it
                yield Case(f"file: {file}: {damage}: {name}", COMMANDS[name], [[damage, file]])
        yield from _field_cases(base / file, file, names)


def _field_cases(path: Path, file: str, names: list[str]) -> Iterator[Case]:
    """Every field with every value; the commands that read the file take turns."""
    text = path.read_text(encoding="utf-8") if path.suffix in (".json", ".jsonl", ".toml") else ""
    if path.suffix == ".jsonl":
        lines = [number for number, line in enumerate(text.split("\n")) if line]
        contents = [(line, json.loads(text.split("\n")[line])) for line in sorted({lines[0], lines[-1]})]
    elif text:
        contents = [(None, tomllib.loads(text) if path.suffix == ".toml" else json.loads(text))]
    else:
        return
    quick = [name for name in names if name not in SLOW] or names
    turn = 0
    for line, content in contents:
        for keys in [*([] if path.suffix == ".toml" else [[]]), *fields(content)]:
            if "recipe" in keys[:-1] and path.name != "state.json":
                continue  # a copy of the recipe, of which one is enough
            for value in [*VALUES, *(["missing"] if keys else [])]:
                turn += 1
                name = (quick if turn % 4 else names)[turn // 4 % len(quick if turn % 4 else names)]
                steps = [["field", file, keys, value, line]]
                if path.name in ("model.json", "tokenizer.json") and "run/averaged" in file and turn % 2:
                    steps.append(["reseal", "run/averaged"])
                place = ".".join(map(str, keys)) + (f", line {line + 1}" if line is not None else "")
                yield Case(f"field: {file}: {place}: {value}: {name}", COMMANDS[name], steps)


def option_cases(options: Mapping[str, list[tuple[str, bool]]]) -> Iterator[Case]:
    """Every option of every command with every extreme.

    Args:
        options: by command its options, "" for an argument, and whether each is a flag.
    """
    for command, params in options.items():
        arguments = SERVE if command == "serve" else COMMANDS[_OPTIONS_OF[command]]
        for option, is_flag in params:
            if is_flag:
                yield Case(f"option: {command} {option}", [*arguments, option])
                continue
            for label, value in OPTION_VALUES.items():
                if label == "fifo" and (option in _WRITTEN or (command, option) in _READ_AS_IT_COMES):
                    continue  # a pipe is waited for, as in any program that writes to one or reads from it
                if (command, option, label) == ("serve", "", "folder"):
                    continue  # a model, which is served until the server is stopped
                damage = [["fifo", "fifo"]] if label == "fifo" else []
                if option:
                    given = [*_without(arguments, option), f"{option}={value}"]
                else:
                    given = [command, value, *arguments[2:]]
                yield Case(f"option: {command} {option or 'ARGUMENT'}: {label}", given, damage)


def _without(arguments: list[str], option: str) -> list[str]:
    """The arguments without an option that is to be given another value."""
    if option not in arguments:
        return arguments
    place = arguments.index(option)
    return arguments[:place] + arguments[place + 2 :]


_TEXT_FILES = {
    "train.en": ("prepare", "check"), "train.de": ("prepare",), "valid.en": ("prepare",), "valid.de": ("prepare",),
    "test.en": ("prepare", "translate", "translate with export", "score by model", "rerank text"),
    "test.de": ("score files", "score by model"), "hypothesis.de": ("score files",),
    "examples.jsonl": ("extract",),
    "lists.jsonl": ("rerank",), "lists.txt": ("rerank text",), "run/translations/test.txt": ("score run", "report"),
    "run/data/test/test.source.txt": ("report", "run"), "run/data/valid.source.txt": ("export", "verify"),
    "tiny.toml": ("prepare",), "rows.toml": ("ablate",), "episodes.jsonl": ("prepare episodes",),
}  # fmt: skip


def text_cases() -> Iterator[Case]:
    """Every oddity of text through every command that reads text, as a file, from stdin and as an argument."""
    for label, text in TEXTS.items():
        for file, names in _TEXT_FILES.items():
            for name in names:
                yield Case(f"text: {label}: {file}: {name}", COMMANDS[name], [["write", file, text]])
        both = [["write", "train.en", text], ["write", "train.de", text]]
        for name in ("prepare", "check"):
            yield Case(f"text: {label}: both sides: {name}", COMMANDS[name], both)
        yield Case(f"text: {label}: stdin: translate", ["translate", "run", "--threads", "1"],
                   [["write", "in", text]], {"stdin": "in"})  # fmt: skip
        if len(text) < 60_000 and "\0" not in text:
            for option in ("--forbid", "--prefix", "--require", "--glossary", "--keep"):
                yield Case(f"text: {label}: translate {option}", [*COMMANDS["translate"], f"{option}={text}"])
            for option in ("--source", "--target"):
                given = [*_without(COMMANDS["attention"], option), f"{option}={text}"]
                yield Case(f"text: {label}: attention {option}", given)


def surrounding_cases() -> Iterator[Case]:
    """Odd environments and streams around every command."""
    environments: dict[str, dict[str, str | None]] = {
        "no HOME": {"HOME": None, "XDG_CACHE_HOME": None, "NMTKIT_CACHE": None}, "no TMPDIR": {"TMPDIR": "no/such"},
        "no PATH": {"PATH": None}, "odd HOME": {"HOME": "\x1b[2J"}, "COLUMNS 0": {"COLUMNS": "0"},
        "COLUMNS x": {"COLUMNS": "x"}, "odd LANG": {"LANG": "xx_XX.KOI8-R", "LC_ALL": "xx"}, "RANK=x": {"RANK": "x"},
        "WORLD_SIZE=x": {"WORLD_SIZE": "x"}, "OMP_NUM_THREADS=x": {"OMP_NUM_THREADS": "x"},
        "SACREBLEU_SEED=x": {"SACREBLEU_SEED": "x"}, "TERM=dumb": {"TERM": "dumb"}, "NO_COLOR": {"NO_COLOR": "1"},
    }  # fmt: skip
    streams = [{name: "closed"} for name in ("stdin", "stdout", "stderr")]
    streams += [{"stdout": "/dev/full"}, {"stderr": "/dev/full"}, {"stdout": "closed", "stderr": "closed"}]
    for name, arguments in COMMANDS.items():
        for label, environment in environments.items():
            yield Case(f"around: {label}: {name}", arguments, environment=environment)
        for change in streams:
            label = ", ".join(f"{stream} {what}" for stream, what in change.items())
            yield Case(f"around: {label}: {name}", arguments, streams=change)


def made_first() -> list[Case]:
    """What makes the project: a run, a second one, averages, an export."""
    export = [*COMMANDS["export"][:4], "--threads", "1"]
    return [
        Case("run", COMMANDS["run"], in_place=True),
        Case("search", COMMANDS["average search"], in_place=True),
        Case("export", export, in_place=True),
        Case("text", ["run", "text.toml", "--run-dir", "text-run", "--threads", "1"], in_place=True),
        Case("labels", ["run", "label.toml", "--run-dir", "label-run", "--threads", "1"], in_place=True),
        Case("play", ["run", "play.toml", "--run-dir", "play-run", "--threads", "1"], in_place=True),
        Case("second run", ["cost", "run"], [["copy", "run", "other"]], in_place=True),
    ]


def undamaged() -> list[Case]:
    """Every command in the project as it is, which shows what each of them reads."""
    return [Case(name, arguments, traced=True) for name, arguments in COMMANDS.items()]


def options_of_commands() -> dict[str, list[tuple[str, bool]]]:
    """The options of every command; an argument is called ""."""
    from nmtkit.cli.main import COMMANDS, load_command

    found = {}
    for name in COMMANDS:
        params = [
            (param.opts[0] if param.opts[0].startswith("-") else "", param) for param in load_command(name).params
        ]
        found[name] = [(option, bool(getattr(param, "is_flag", False))) for option, param in params]
    return found
