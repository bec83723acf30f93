"""A task is one object: the one that the documentation defines is prepared, trained, decoded and scored like others."""

import re
from pathlib import Path

import pytest

from nmtkit.config.data_schema import TASK_NAMES
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.config.recipe import load_recipe
from nmtkit.data.shards import PairData
from nmtkit.decoding.translator import Translator
from nmtkit.errors import RecipeError
from nmtkit.json_toml import read_json
from nmtkit.run import Run
from nmtkit.tasks.known import TASKS, task_of
from nmtkit.tasks.task import Task
from tests.conftest import finished_run

ROOT = Path(__file__).parent.parent.parent
WORDS = ("ant", "bee", "cow", "dog", "eel", "fox", "gnu", "hen")
RECIPE = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 60\n'
    'train = [{ source = "train.en", target = "train.de" }]\nvalid = [{ source = "valid.en", target = "valid.de" }]\n'
    'test = [{ source = "test.en", target = "test.de" }]\n'
    "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\nnum_heads = 2\n"
    "[training]\ntokens_per_update = 600\nwarmup_steps = 20\nmax_steps = 60\nvalidate_every_steps = 60\n"
    'checkpoint_every_steps = 60\nprecision = "float32"\nschedule = "constant"\npeak_learning_rate = 0.005\n'
    "[decoding]\nbeam = 2\naverage_last = 1\nmax_length = 12\n"
)


def write_lines(folder: Path, targets: dict[str, list[tuple[str, str]]]) -> None:
    for name, pairs in targets.items():
        for side, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "mine.toml").write_text(RECIPE, encoding="utf-8")


def sentence(number: int) -> str:
    """Return a text in which each word follows from the one before."""
    return " ".join(WORDS[(number + place) % len(WORDS)] for place in range(3 + number % 4))


def test_an_unknown_task_is_one_line(tmp_path: Path) -> None:
    write_lines(tmp_path, {"train": [("a", "b")], "valid": [("a", "b")], "test": [("a", "b")]})
    known = "choice, label, language-model, pair-label, parsing, similarity, summary, trajectories, translation"
    for base in ("", 'base = "trec"\n'):  # a recipe for labels has settings that do not fit other tasks
        (tmp_path / "mine.toml").write_text(base + RECIPE.replace("[model]", 'task = "dance"\n[model]', 1))
        with pytest.raises(RecipeError, match=f'"dance": no such task; choose one of {known}$'):
            load_recipe(str(tmp_path / "mine.toml"))
    data = load_recipe("quickstart").data.model_copy(update={"task": "dance"})
    with pytest.raises(RecipeError, match=f'"dance": no such task; choose one of {known}$'):
        task_of(data)
    assert sorted([*TASKS, *LABEL_KINDS]) == sorted(TASK_NAMES)


def test_the_task_of_the_documentation_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(example.split("\n")) <= 30
    names: dict[str, type[Task]] = {}
    exec(example, names)
    monkeypatch.setitem(TASKS, "shouting", names["Shouting"])
    monkeypatch.setattr("nmtkit.config.data_schema.TASK_NAMES", (*TASK_NAMES, "shouting"))
    texts = [(sentence(number), " ".join(reversed(sentence(number).upper().split()))) for number in range(200)]
    write_lines(tmp_path, {"train": texts[:180], "valid": texts[180:190], "test": texts[190:]})
    path = tmp_path / "mine.toml"
    run = Run(finished_run(path, tmp_path / "run", 'data.task="shouting"'))
    tokenizer, data = run.tokenizer(), PairData(run.data / "train")
    assert tokenizer.decode([int(index) for index in data.ids(1, 0)], "target").islower()
    assert read_json(run.scores)["test"]["sacrebleu"]["score"] >= 0
    (translation,) = Translator.load([run.folder], "cpu").translate([texts[0][0]])
    assert translation == translation.upper() != ""
