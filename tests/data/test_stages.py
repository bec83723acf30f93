"""However often a preparation is stopped, and by however many processes it is made, the bytes are the same; what a
changed setting does not concern is not made again."""

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killing import Killer

from nmtkit.config.recipe import load_recipe
from nmtkit.data import subword_learning, training_text
from nmtkit.data.prepare import prepare
from nmtkit.data.preparer import Preparer
from nmtkit.data.processes import PRELOADED
from nmtkit.data.training_text import TrainingText, TrainingTextReader
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import TEMPORARY_MARK
from nmtkit.json_toml import read_json, write_json
from nmtkit.run import LOCK_NAME, Run
from tests import conftest

WORDS = ["tree", "house", "sees", "old", "new", "dog", "green", "never", "always", "and"]
SETTINGS = ["data.valid=7", "cleaning.duplicate_pair=drop", "cleaning.html_entity=fix", "cleaning.max_tokens=40"]
BLOCK_PAIRS = 20


class Project:
    """A recipe with two corpora that every rule of the settings concerns, and its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipe = folder / "mine.toml"
        for name, count in (("one", 130), ("two", 75)):
            pairs = [self._pair(number) for number in range(count)]
            pairs[30] = pairs[3]
            pairs[41] = ("", "x")
            pairs[42] = ("much &amp; more", "viel &amp; mehr")
            pairs[43] = ("long " * 50, "lang " * 50)
            for side, language in enumerate(("en", "de")):
                (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
        self.recipe.write_text(
            '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 70\n'
            'train = [{ source = "one.en", target = "one.de" }, { source = "two.en", target = "two.de", weight = 2 }]\n'
        )

    @staticmethod
    def _pair(number: int) -> tuple[str, str]:
        words = [WORDS[number // 10**place % 10] for place in range(4)]
        return " ".join(words), " ".join(reversed(words)).upper()

    def prepare(self, run: str, *overrides: str, workers: int = 1) -> Path:
        """Prepares in this process."""
        prepare(load_recipe(str(self.recipe), [*SETTINGS, *overrides]), self.folder / run, workers=workers)
        return self.folder / run

    def prepare_apart(self, run: str, *, operations: float = float("inf"), file_limit: int = 0) -> tuple[int, str]:
        """Prepares in a process of its own, killed instead of a file operation or with files of limited size."""
        messages = self.folder / "messages"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, "nmtkit.cli.main", "nmtkit.data.prepare", "pydantic"])
        arguments = (str(self.recipe), self.folder / run, messages, operations, file_limit)
        process = context.Process(target=_prepare, args=arguments)
        process.start()
        process.join(120)
        assert process.exitcode is not None
        return process.exitcode, messages.read_text()


def _prepare(recipe: str, run: Path, messages: Path, operations: float, file_limit: int) -> None:
    with messages.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    Killer(operations).count_file_operations()
    training_text.BLOCK_PAIRS = BLOCK_PAIRS
    from nmtkit.cli.main import main

    settings = [argument for setting in SETTINGS for argument in ("--set", setting)]
    sys.argv = ["nmtkit", "prepare", recipe, "--run-dir", str(run), "--workers", "1", "--quiet", *settings]
    main()


def contents(run: Path) -> dict[str, bytes]:
    """All files of a run; of the manifest what neither path nor time decides."""
    manifest = read_json(run / "data" / "manifest.json")
    return {**conftest.contents(run), "data/manifest.json": repr({**manifest, "seconds": 0}).encode()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_text, "BLOCK_PAIRS", BLOCK_PAIRS)
        project = Project(tmp_path_factory.mktemp("stages"))
        project.prepare("alone")
        yield project


@pytest.fixture(scope="module")
def alone(project: Project) -> dict[str, bytes]:
    """A run that nothing disturbed, made by one process."""
    return contents(project.folder / "alone")


def test_every_rule_of_the_settings_has_acted(project: Project, alone: dict[str, bytes]) -> None:
    manifest = read_json(project.folder / "alone" / "data" / "manifest.json")
    left_out = {rule for rule, count in manifest["cleaning"].items() if count}
    assert left_out == {"one_sided_blank", "too_long", "duplicate_pair"}
    assert manifest["rules"]["html_entity"] == 2


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_processes_makes_the_same_bytes(project: Project, alone: dict[str, bytes], workers: int) -> None:
    assert contents(project.prepare(f"by-{workers}", workers=workers)) == alone


@pytest.mark.parametrize("block", [1, 10_000])
def test_the_size_of_blocks_changes_nothing_that_is_trained_on(
    project: Project, alone: dict[str, bytes], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_text, "BLOCK_PAIRS", block)
    found = contents(project.prepare(f"in-blocks-of-{block}"))
    assert {name: found[name] for name in alone if name.startswith("data/")} == {
        name: content for name, content in alone.items() if name.startswith("data/")
    }


@pytest.mark.parametrize("operations", [2, 14, 26, 40, 60])
def test_a_killed_preparation_goes_on_to_the_same_bytes(
    project: Project, alone: dict[str, bytes], operations: int
) -> None:
    run = f"killed-{operations}"
    code, message = project.prepare_apart(run, operations=operations)
    assert code == -signal.SIGKILL, message
    assert contents(project.prepare(run)) == alone


def test_the_lock_of_a_killed_process_goes_with_the_next_command_and_a_held_one_stays(
    project: Project, alone: dict[str, bytes]
) -> None:
    run = project.prepare("abandoned")
    (run / LOCK_NAME).write_text("nmtkit prepare, process 1 on somewhere", encoding="utf-8")
    assert contents(project.prepare("abandoned")) == alone
    with Run(run).locked("train"):
        project.prepare("abandoned")
        assert (run / LOCK_NAME).read_text(encoding="utf-8").startswith("nmtkit train, process")
    assert not (run / LOCK_NAME).exists()


def test_what_another_machine_prepares_stays_when_the_lock_is_refused(project: Project) -> None:
    run = project.folder / "shared"
    being_written = [run / name for name in ("prepare/.text", ".data")]
    being_written = [path.with_name(f"{path.name}{TEMPORARY_MARK}other-host-12") for path in being_written]
    for folder in being_written:
        folder.mkdir(parents=True)
        (folder / "source.txt").write_text("being written")
        os.utime(folder, (0, 0))  # it gets no new files for long
    with Run(run).locked("prepare"), pytest.raises(NmtkitError, match="in use by nmtkit prepare"):
        project.prepare("shared")
    assert all((folder / "source.txt").exists() for folder in being_written)


@pytest.mark.slow
def test_a_preparation_killed_before_every_single_file_operation_goes_on_to_the_same_bytes(
    project: Project, alone: dict[str, bytes]
) -> None:
    for operations in range(300):
        code, message = project.prepare_apart(f"{operations}", operations=operations)
        if code == 0:
            break
        assert code == -signal.SIGKILL, message
        assert contents(project.prepare(f"{operations}")) == alone, f"killed before file operation {operations}"
    assert 60 < operations < 300


@pytest.mark.parametrize("limit", [500, 3000, 5500])
def test_a_full_disk_is_one_line_and_with_room_it_goes_on_to_the_same_bytes(
    project: Project, alone: dict[str, bytes], limit: int
) -> None:
    run = f"full-{limit}"
    code, message = project.prepare_apart(run, file_limit=limit)
    assert code == 1
    assert [line for line in message.split("\n") if line] == [message.strip()]
    assert message.startswith(f"error: {project.folder / run}/")
    leftovers = [path for path in (project.folder / run).rglob("*") if TEMPORARY_MARK in path.name]
    assert leftovers == []
    assert contents(project.prepare(run)) == alone


class TestWhatIsMadeAgain:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The stages that are made, as they are."""
        made: list[str] = []

        def noting(stage: str, function: Any) -> Any:
            def noted(*arguments: Any, **options: Any) -> Any:
                made.append(stage)
                return function(*arguments, **options)

            return noted

        monkeypatch.setattr(TrainingTextReader, "read", noting("text", TrainingTextReader.read))
        monkeypatch.setattr(subword_learning, "learn_tokenizer", noting("subwords", subword_learning.learn_tokenizer))
        shards = Preparer._write_shards
        monkeypatch.setattr(Preparer, "_write_shards", noting("shards", shards))
        return made

    @pytest.mark.parametrize(
        ("override", "again"),
        [
            ("data.vocab_size=71", ["subwords", "shards"]),
            ("data.share_vocab=false", ["subwords", "shards"]),
            ("cleaning.max_tokens=30", ["text", "subwords", "shards"]),
            ("data.normalize=[]", ["text", "subwords", "shards"]),
            ("data.valid=8", ["text", "subwords", "shards"]),
            ("training.seed=5", []),
        ],
    )
    def test_a_changed_setting_redoes_the_stages_it_concerns(
        self, project: Project, made: list[str], override: str, again: list[str]
    ) -> None:
        run = override.partition("=")[0]
        settings = [override, 'model.share_embeddings="none"']
        project.prepare(run)
        assert list(dict.fromkeys(made)) == ["text", "subwords", "shards"]
        made.clear()
        project.prepare(run, *settings)
        assert list(dict.fromkeys(made)) == again
        assert contents(project.folder / run) == contents(project.prepare(f"{run}-afresh", *settings))

    def test_another_language_of_all_corpora_redoes_every_stage(self, project: Project, made: list[str]) -> None:
        for code in ("cs", "ru"):
            entry = f'{{source="{project.folder}/one.en",target="{project.folder}/one.de",source_language="{code}"}}'
            run = Run(project.prepare("in-another-language", f"data.train=[{entry}]"))
            assert list(dict.fromkeys(made)) == ["text", "subwords", "shards"]
            assert run.tokenizer().languages == (code, "de")
            made.clear()

    def test_another_weight_redoes_only_the_shards(
        self, project: Project, made: list[str], alone: dict[str, bytes]
    ) -> None:
        project.prepare("weighed")
        made.clear()
        text = project.recipe.read_text()
        project.recipe.write_text(text.replace("weight = 2", "weight = 3"))
        project.prepare("weighed")
        project.recipe.write_text(text)
        assert list(dict.fromkeys(made)) == ["shards"]
        found = contents(project.folder / "weighed")
        different = {name for name, content in alone.items() if found[name] != content}
        assert different == {"data/manifest.json", "data/train/shards.json", "recipe.toml"}

    @pytest.mark.parametrize(
        "damage",
        [
            "changed", "missing", "no JSON", "no table", "no facts", "no files", "empty facts", "empty findings",
            "changed without sums",
        ],
    )  # fmt: skip
    def test_a_damaged_stage_is_made_again(
        self, project: Project, made: list[str], alone: dict[str, bytes], damage: str
    ) -> None:
        run = project.prepare(f"damaged {damage}")
        made.clear()
        stage = run / "prepare" / "text"
        stored = read_json(stage / "stage.json")
        if damage.startswith("changed"):
            content = (stage / "source.txt").read_bytes()
            (stage / "source.txt").write_bytes(content.replace(b"tree", b"free", 1))
            write_json(stage / "stage.json", {**stored, "files": {}} if damage == "changed without sums" else stored)
        elif damage == "missing":
            (stage / "target.txt").unlink()
        elif damage == "no facts":
            write_json(stage / "stage.json", {"fingerprint": stored["fingerprint"]})
        elif damage == "no files":
            write_json(stage / "stage.json", {**stored, "files": []})
        elif damage.startswith("empty"):
            facts = {} if damage == "empty facts" else {**stored["facts"], "findings": None}
            write_json(stage / "stage.json", {**stored, "facts": facts})
        else:
            (stage / "stage.json").write_text("{" if damage == "no JSON" else "[]")
        (run / "data" / "manifest.json").unlink()
        assert contents(project.prepare(run.name)) == alone
        assert list(dict.fromkeys(made)) == ["text", "shards"]

    @pytest.mark.parametrize("is_folder", [True, False])
    def test_files_of_the_user_in_place_of_a_stage_are_not_replaced(self, project: Project, is_folder: bool) -> None:
        text = project.folder / f"with-own-{is_folder}" / "prepare" / "text"
        own = text / "mine.txt" if is_folder else text
        own.parent.mkdir(parents=True)
        own.write_text("mine")
        with pytest.raises(DataError, match="text would be replaced, but is no stage of nmtkit; move it"):
            project.prepare(text.parent.parent.name)
        assert own.read_text() == "mine"

    def test_a_file_beside_those_of_a_stage_is_no_damage(self, project: Project, made: list[str]) -> None:
        run = Run(project.prepare("with-another-file"))
        made.clear()
        (run.folder / "prepare" / "text" / ".DS_Store").write_bytes(b"of a file manager")
        (run.data / "manifest.json").unlink()
        project.prepare("with-another-file")
        assert list(dict.fromkeys(made)) == ["shards"]


def test_corpora_are_read_once_and_the_spooled_text_twice(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    open_sides, blocks = training_text.open_sides, TrainingText.blocks

    def opened(corpus: Any, errors: Any) -> Any:
        read.append(Path(corpus.name).name)
        return open_sides(corpus, errors)

    def spooled(text: TrainingText, context: int = 0) -> Any:
        read.append("text")
        return blocks(text, context)

    monkeypatch.setattr(training_text, "open_sides", opened)
    monkeypatch.setattr(TrainingText, "blocks", spooled)
    project.prepare("counted")
    assert read == ["one.en", "two.en", "text", "text"]


@pytest.mark.parametrize("workers", [1, 2])
def test_of_several_faults_the_first_is_told(project: Project, workers: int, tmp_path: Path) -> None:
    for name, text in (("faulty.en", b"some text\n"), ("faulty.de", b"ein Text\n")):
        lines = [text] * 400
        lines[33] = b"\xff\n"
        lines[150] = b"\xfe\n"
        (tmp_path / name).write_bytes(b"".join(lines))
    faulty = f'data.train=[{{source="{tmp_path}/faulty.en",target="{tmp_path}/faulty.de"}}]'
    with pytest.raises(DataError, match=r"faulty\.en, line 34: invalid UTF-8"):
        project.prepare(f"faulty-{workers}", faulty, workers=workers)
    with pytest.raises(DataError, match=r"faulty\.en, line 2: copies of a pair before"):
        overrides = [faulty, "cleaning.invalid_utf8=drop", "cleaning.duplicate_pair=error"]
        project.prepare(f"faulty-{workers}", *overrides, workers=workers)
