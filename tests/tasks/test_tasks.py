"""A task is one object: one that is defined here alone is prepared, trained, decoded and scored like translation."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from nmtkit.config.data_schema import TASK_NAMES
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.corpus import Corpus
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers
from nmtkit.errors import RecipeError
from nmtkit.pipeline import run as run_pipeline
from nmtkit.run import Run
from nmtkit.tasks.known import TASKS, task_of
from nmtkit.tasks.task import Task, converted
from nmtkit.training.session import train

ROOT = Path(__file__).parent.parent.parent
WORDS = ("ant", "bee", "cow", "dog", "eel", "fox", "gnu", "hen")
RECIPE = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 60\n'
    'train = [{ source = "train.en", target = "train.de" }]\nvalid = [{ source = "valid.en", target = "valid.de" }]\n'
    'test = [{ source = "test.en", target = "test.de" }]\n'
    "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\nnum_heads = 2\n"
    "[training]\ntokens_per_update = 600\nwarmup_steps = 20\nmax_steps = 120\nvalidate_every_steps = 60\n"
    'checkpoint_every_steps = 60\nprecision = "float32"\nschedule = "constant"\npeak_learning_rate = 0.005\n'
    "[decoding]\nbeam = 2\naverage_last = 1\nmax_length = 12\n"
)


class Continuation(Task):
    """Text without a source: the model learns to continue from nothing."""

    def __init__(self, text: str) -> None:
        self.text = text

    def training_corpus(self, corpus: Corpus) -> Corpus:
        return replace(corpus, source=converted(corpus.source, lambda line, *_: self.model_source(line)))

    def model_source(self, line: str) -> str:
        return "."

    def words(self, line: str) -> list[str]:
        return ["."]


def write_lines(folder: Path, targets: dict[str, list[tuple[str, str]]]) -> None:
    for name, pairs in targets.items():
        for side, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "mine.toml").write_text(RECIPE, encoding="utf-8")


def sentence(number: int) -> str:
    """Return a text in which each word follows from the one before."""
    return " ".join(WORDS[(number + place) % len(WORDS)] for place in range(3 + number % 4))


def test_a_task_without_a_source_is_trained_decoded_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "continuation", Continuation)
    monkeypatch.setattr("nmtkit.config.data_schema.TASK_NAMES", (*TASK_NAMES, "continuation"))
    texts = [(f"unused {number}", sentence(number)) for number in range(400)]
    write_lines(tmp_path, {"train": texts[:360], "valid": texts[360:380], "test": texts[380:]})
    recipe = load_recipe(str(tmp_path / "mine.toml"), ['data.task="continuation"', "cleaning.duplicate_source=keep"])
    result = run_pipeline(recipe, tmp_path / "run", mirror=None, device="cpu", threads=1)
    run = Run(tmp_path / "run")
    data = PairData(run.data / "train")
    assert {tuple(data.ids(0, pair)) for pair in range(5)} == {tuple(data.ids(0, 0))}
    assert result.scores["test"]["sacrebleu"].score >= 0
    translator = Translator.load([run.averaged], "cpu")
    generated = translator.translate(["", "anything"])
    assert generated[0] == generated[1] != ""
    words = generated[0].split()
    assert all(WORDS[(WORDS.index(one) + 1) % len(WORDS)] == two for one, two in pairwise(words))


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
    recipe = load_recipe(str(tmp_path / "mine.toml"), ['data.task="shouting"', "training.max_steps=60"])
    prepare(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    tokenizer, data = run.tokenizer(), PairData(run.data / "train")
    assert tokenizer.decode([int(index) for index in data.ids(1, 0)], "target").islower()
    train(recipe, run.folder, Workers.start("cpu", "float32", 1))
    (translation,) = Translator.load([run.folder], "cpu").translate([texts[0][0]])
    assert translation == translation.upper() != ""
