"""Imports only point down, and each library stays behind its doors: read off the syntax trees of the package."""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jaxtyping
import pytest
import torch

from nmtkit.cli.main import COMMANDS
from nmtkit.training.loss import smoothed_loss

PACKAGE = Path(__file__).parent.parent / "nmtkit"

LEVELS = [
    [["nmtkit.__main__"]],
    [["nmtkit.cli"]],
    [["nmtkit.experiments"]],
    [["nmtkit.pipeline"]],
    [["nmtkit.reports"]],
    [["nmtkit.training"], ["nmtkit.export"], ["nmtkit.serving"]],
    [["nmtkit.decoding"]],
    [["nmtkit.evaluation"]],
    [["nmtkit.data"]],
    [["nmtkit.tasks"]],
    [["nmtkit.run", "nmtkit.model_folder"]],
    [["nmtkit.corpora"], ["nmtkit.model"]],
    [["nmtkit.text"]],
    [
        [
            "nmtkit.config",
            "nmtkit.distributed",
            "nmtkit.console",
            "nmtkit.files",
            "nmtkit.lines",
            "nmtkit.json_toml",
            "nmtkit.compression",
            "nmtkit.locks",
            "nmtkit.versions",
            "nmtkit.page",
        ]
    ],
    [["nmtkit.errors"]],
]
"""From the top: groups of one level do not import each other; within a group the order is free but has no circle."""

DOORS = {
    "accelerate": ["nmtkit.distributed.workers"],
    "sentencepiece": ["nmtkit.text.sentencepieces"],
    "tokenizers": [],
    "sacremoses": ["nmtkit.text.moses"],
    "py3langid": ["nmtkit.text.scripts"],
    "sacrebleu": ["nmtkit.evaluation.metrics", "nmtkit.evaluation.significance", "nmtkit.corpora.sacrebleu_sets"],
    "comet": ["nmtkit.evaluation.comet"],
    "zstandard": ["nmtkit.compression"],
    "pynvml": ["nmtkit.training.energy"],
    "ctranslate2": ["nmtkit.export.ctranslate2", "nmtkit.decoding.ctranslate2_engine"],
    "transformers": ["nmtkit.export.huggingface"],
    "jinja2": ["nmtkit.reports.run_page"],
    "matplotlib": ["nmtkit.reports.attention_maps"],
    "h11": ["nmtkit.serving.http"],
    "prometheus_client": ["nmtkit.serving"],
    "typer": ["nmtkit.cli"],
    "importlib.import_module": ["nmtkit.cli.main", "nmtkit.tasks.environments"],
    "torch.load": ["nmtkit.export.weight_files"],
    **{name: [] for name in ("click", "torch.save", "torch.jit", "torch.hub", "torch.serialization")},
    **{name: [] for name in ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")},
}
"""Modules and functions, and the only modules (or folders) that may use them."""


@dataclass(frozen=True)
class Use:
    """One name of another module, imported or used through its dots, on a line."""

    module: str
    line: int
    name: str


def modules() -> dict[str, Path]:
    """The modules of the package by their dotted names."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_within(name: str, places: list[str]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def uses(module: str, tree: ast.Module) -> Iterator[Use]:
    """Everything a module takes from elsewhere, in functions and under TYPE_CHECKING too."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Use(module, node.lineno, alias.name)
                local = alias.asname or alias.name.split(".")[0]
                aliases[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom):
            package = module.rsplit(".", node.level)[0] if node.level else ""
            origin = ".".join(filter(None, (package, node.module)))
            for alias in node.names:
                yield Use(module, node.lineno, f"{origin}.{alias.name}")
                aliases[alias.asname or alias.name] = f"{origin}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)):
            first, *rest = dotted.split(".")
            if first in aliases:
                yield Use(module, node.lineno, ".".join([aliases[first], *rest]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "__import__":
            yield Use(module, node.lineno, "importlib.import_module")


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return None


@cache
def all_uses() -> list[Use]:
    return [use for name, path in modules().items() for use in uses(name, _tree(path))]


def imported_module(use: Use, known: set[str]) -> str | None:
    """Which module of the package a use means: the longest known name at its beginning."""
    parts = use.name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in known), None)


def place_of(module: str) -> tuple[int, int] | None:
    """Level and group of a module; the package itself stands above all."""
    if module == "nmtkit":
        return -1, 0
    for level, groups in enumerate(LEVELS):
        for number, group in enumerate(groups):
            if is_within(module, group):
                return level, number
    return None


def faults_of_direction(found: list[Use], known: set[str]) -> set[str]:
    """The imports that do not point down."""
    faults = set()
    for use in found:
        target = imported_module(use, known)
        if target in (None, use.module, "nmtkit"):
            continue
        here, there = place_of(use.module), place_of(target)
        if here is None or there is None or here[0] > there[0] or (here[0] == there[0] and here[1] != there[1]):
            faults.add(f"{use.module}, line {use.line}: {target}")
    return faults


def faults_of_doors(found: list[Use]) -> set[str]:
    """The uses of a library outside its doors."""
    return {
        f"{use.module}, line {use.line}: {library}"
        for use in found
        for library, doors in DOORS.items()
        if is_within(use.name, [library]) and not is_within(use.module, doors)
    }


def circles(edges: dict[str, set[str]]) -> set[str]:
    """The modules that lead back to themselves."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(edges.get(start, ()))
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(edges.get(name, ()))
        return seen

    return {name for name in edges if name in reachable(name)}


def test_every_folder_and_module_of_the_package_is_on_one_level() -> None:
    named = [name for groups in LEVELS for group in groups for name in group]
    assert sorted(named) == sorted({".".join(name.split(".")[:2]) for name in modules()} - {"nmtkit"})


def test_imports_only_point_down() -> None:
    assert sorted(faults_of_direction(all_uses(), set(modules()))) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = set(modules())
    edges: dict[str, set[str]] = {name: set() for name in known}
    for use in all_uses():
        target = imported_module(use, known)
        if target not in (None, use.module, "nmtkit"):
            edges[use.module].add(target)
    assert sorted(circles(edges)) == []


def test_libraries_stay_behind_their_doors() -> None:
    assert sorted(faults_of_doors(all_uses())) == []


def test_shapes_are_checked_wherever_they_are_stated() -> None:
    options = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    [checked] = [each for each in options["ini_options"]["addopts"] if each.startswith("--jaxtyping-packages=")]
    names = checked.partition("=")[2].split(",")[:-1]
    stating = sorted({use.module for use in all_uses() if is_within(use.name, ["jaxtyping"])})
    assert len(stating) > 15
    assert [module for module in stating if not is_within(module, names)] == []
    with pytest.raises(jaxtyping.TypeCheckError):
        smoothed_loss(torch.zeros(2, 3), torch.zeros(5, 4), torch.zeros(2, dtype=torch.long), 0.1)


def test_a_pickle_is_read_as_plain_tensors_only() -> None:
    calls = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        for path in modules().values()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and _dotted(node.func) == "torch.load"
    ]
    assert calls and all(keywords.get("weights_only") == "True" for keywords in calls)


@pytest.mark.parametrize("library", [library for library, doors in DOORS.items() if doors])
def test_the_doors_of_a_library_are_used(library: str) -> None:
    users = [use.module for use in all_uses() if is_within(use.name, [library])]
    assert [door for door in DOORS[library] if not any(is_within(user, [door]) for user in users)] == []


def test_package_folders_import_nothing_but_what_the_package_offers() -> None:
    imported = {
        (name, use.name)
        for name, path in modules().items()
        if path.name == "__init__.py"
        for use in uses(name, _tree(path))
        if use.name.split(".")[0] != "typing"
    }
    assert {target for name, target in imported if name == "nmtkit"} == {
        "nmtkit.decoding.classifier.Classifier",
        "nmtkit.decoding.translator.Translator",
    }
    assert {name for name, _ in imported} == {"nmtkit"}


def test_libraries_are_imported_late() -> None:
    late = {
        "nmtkit": ("torch", "numpy", "pydantic", "typer"),
        "nmtkit.text.moses": ("sacremoses",),
        "nmtkit.evaluation.metrics": ("sacrebleu", "sacremoses"),
    }
    code = (
        f"import sys\nfor module, late in {late}.items():\n"
        "    __import__(module)\n    print(module, *sorted(set(late) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [*late, ""]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("nmtkit.errors", "import nmtkit.files"),
        ("nmtkit.corpora.readers", "from nmtkit.model import flops"),
        ("nmtkit.text.moses", "from nmtkit.model.flops import TRAINING_FACTOR"),
        ("nmtkit.model_folder", "def f():\n    from nmtkit.data import batch"),
        ("nmtkit.data.batch", "if TYPE_CHECKING:\n    from nmtkit.evaluation.metrics import Score"),
        ("nmtkit.decoding.search", "from nmtkit.training.loop import train_updates"),
        ("nmtkit.model.flops", "from ..training import loop"),
        ("nmtkit.evaluation.metrics", "from ..decoding.search import search"),
        ("nmtkit.pipeline", "import nmtkit.cli.main as main"),
        ("nmtkit.unplaced", "from nmtkit.errors import DataError"),
    ],
)
def test_an_import_that_points_up_or_aside_is_found(module: str, source: str) -> None:
    known = {*modules(), "nmtkit.unplaced"}
    assert len(faults_of_direction(list(uses(module, ast.parse(source))), known)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("nmtkit.cli.main", "from nmtkit import pipeline"),
        ("nmtkit.corpora.corpus", "from nmtkit.corpora.download import Downloader"),
        ("nmtkit.corpora.corpus", "from . import download"),
        ("nmtkit.decoding.translator", "from nmtkit.data.batch import pad"),
        ("nmtkit.evaluation.cost", "from nmtkit.evaluation import metrics"),
        ("nmtkit.config", "from nmtkit.files import open_plain"),
    ],
)
def test_an_import_that_points_down_or_stays_in_its_folder_is_none_of_these(module: str, source: str) -> None:
    found = list(uses(module, ast.parse(source)))
    assert faults_of_direction(found, set(modules())) == set()
    assert [imported_module(use, set(modules())) for use in found] != [None]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("nmtkit.training.loop", "import accelerate"),
        ("nmtkit.training.loop", "from accelerate.utils import reduce"),
        ("nmtkit.data.prepare", "def f():\n    import sentencepiece as sp"),
        ("nmtkit.config", "if TYPE_CHECKING:\n    import typer"),
        ("nmtkit.model_folder", "import torch\ntorch.load('x')"),
        ("nmtkit.model_folder", "import torch as t\ndef f():\n    return t.save"),
        ("nmtkit.model_folder", "from torch import load as read"),
        ("nmtkit.model_folder", "from torch import serialization"),
        ("nmtkit.text.moses", "import sacrebleu.metrics"),
        ("nmtkit.files", "import pickle"),
        ("nmtkit.files", "from importlib import import_module"),
        ("nmtkit.files", "__import__('pickle')"),
    ],
)
def test_a_library_outside_its_door_is_found(module: str, source: str) -> None:
    assert faults_of_doors(list(uses(module, ast.parse(source)))) != set()


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}
    assert circles({"a": {"b"}, "b": set()}) == set()


RUN_PATHS = re.compile(
    r"""/ f?"(data|checkpoints|resume|averaged|translations|drawn|generated|prepare|recipe\.toml"""
    r"""|(metrics|nonfinite)\.jsonl|(scores|cost|prediction|averaging|ablation)\.json|card\.md)[/"]"""
    r"""|\.(data|stages) / """
)


def paths_of_runs(source: str) -> list[str]:
    """Return the expressions in a module that build a path inside a run folder."""
    return [match.group() for match in RUN_PATHS.finditer(source)]


def test_only_run_builds_a_path_inside_a_run_folder() -> None:
    """A tokenizer is found in a run without the room above it; recipes name a run's recipe in an error message."""
    allowed = {"nmtkit.run", "nmtkit.text.tokenizer", "nmtkit.config.recipe"}
    found = {name: paths_of_runs(path.read_text(encoding="utf-8")) for name, path in modules().items()}
    assert found["nmtkit.run"]
    assert {name: paths for name, paths in found.items() if paths and name not in allowed} == {}


def test_a_path_inside_a_run_folder_is_found() -> None:
    assert paths_of_runs('run_dir / "data" / "x"') and paths_of_runs('self._folder / "scores.json"')
    assert paths_of_runs('run.data / "train"')
    assert not paths_of_runs('folder / "database"')


TREE_ROOMS = ["nmtkit.tasks", "nmtkit.experiments", "nmtkit.evaluation.evalb"]
"""Rooms that know about parse trees. In corpora, cli and config they are formats, options and values."""
NAMES_OF_TREES = ["nmtkit.corpora", "nmtkit.cli", "nmtkit.config"]


def names_trees(source: str) -> list[str]:
    """Return the lines of a module's code, comments and docstrings left out, that name parse trees or brackets."""
    lines = []
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    previous = tokenize.NEWLINE
    for token in tokens:
        is_docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.NL)
        is_name = re.search(r"(?i)(?<!rm)(?<!copy)trees?\b|(?<!rm)(?<!copy)trees?_|bracket|treebank", token.string)
        if is_name and token.type != tokenize.COMMENT and not is_docstring:
            lines.append(token.line.strip())
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.DEDENT):
            previous = token.type
    return lines


def test_only_tasks_experiments_and_a_metric_name_parse_trees() -> None:
    found = {
        name: names_trees(path.read_text(encoding="utf-8"))
        for name, path in modules().items()
        if not is_within(name, [*TREE_ROOMS, *NAMES_OF_TREES])
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_name_of_parse_trees_is_found() -> None:
    assert names_trees("if data.has_trees:\n    pass\n") and names_trees('x = "brackets"\n')
    assert not names_trees('"""Trees."""\nshutil.rmtree(x)  # a tree\nstreet = 1\n')


def test_no_two_public_classes_and_no_two_modules_share_a_name() -> None:
    classes = [
        node.name
        for path in modules().values()
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    in_rooms = [name.rpartition(".")[2] for name, path in modules().items() if path.name != "__init__.py"]
    others = [name for name in in_rooms if name not in COMMANDS]  # a command is named after what it does
    for names in (classes, others):
        assert sorted({name for name in names if names.count(name) > 1}) == []
