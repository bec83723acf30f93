"""The command line: help, exit codes, one line for a mistake, and nothing but results on stdout."""

import gc
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nmtkit.cli.main import COMMANDS, app, load_command
from nmtkit.cli.run import _print_next_commands
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.recipe import builtin_recipes, load_recipe
from nmtkit.console import LAUNCHED
from nmtkit.distributed.interpreter import wait_briefly
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError
from nmtkit.json_toml import read_json, write_json
from nmtkit.training.state import sum_of_state
from nmtkit.versions import nmtkit_version
from tests.cli.outcomes import refusal
from tests.conftest import Outcome, run_command

HEAVY = ["torch", "sentencepiece", "sacrebleu", "sacremoses", "pydantic", "accelerate", "numpy", "safetensors", "rich"]


@dataclass
class Project:
    folder: Path
    recipe: Path
    run: Path


def write_project(folder: Path) -> Project:
    """A small corpus with a test set, and its recipe."""
    rng = random.Random(1)
    for name, count in (("train", 120), ("news", 3)):
        lines = [" ".join(rng.choices(["ab", "cd", "ef", "gh", "ij"], k=6)) for _ in range(count)]
        for side in ("en", "de"):
            (folder / f"{name}.{side}").write_text("".join(f"{line} {side}\n" for line in lines), encoding="utf-8")
    recipe = folder / "mine.toml"
    recipe.write_text(
        '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 30\n'
        'train = [{ source = "train.en", target = "train.de" }]\ntest = [{ source = "news.en", target = "news.de" }]\n'
        "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 8\nd_ff = 8\nnum_heads = 2\n",
        encoding="utf-8",
    )
    return Project(folder, recipe, folder / "run")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run that is prepared but not trained; tests only read it."""
    from nmtkit.data.prepare import prepare

    project = write_project(tmp_path_factory.mktemp("prepared"))
    prepare(load_recipe(str(project.recipe)), project.run, workers=1)
    return project


def test_verify_resume_prints_one_line_and_fails_where_a_bit_differs(project: Project) -> None:
    command = ["train", project.recipe, "--run-dir", project.run, "--device", "cpu", "--threads", 1, "--quiet", "--set"]
    assert run_command("prepare", project.recipe, "--run-dir", project.run, "--quiet").code == 0
    for steps in (2, 3):
        assert run_command(*command, f"training.max_steps={steps}").code == 0
    verify = [*command, "training.max_steps=3", "--verify-resume"]
    assert run_command(*verify) == Outcome(0, "identical: updates 3 to 3\n", "")
    path = project.run / "resume" / "step-00000003" / "state.json"
    state = read_json(path)
    state["progress"]["epoch"] += 10
    write_json(path, {**state, "sha256": sum_of_state(state)})
    assert "repeating updates 3 to 3 gives a different result: epoch is " in refusal(*verify)


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_explains_itself_with_an_example(self, command: str) -> None:
        outcome = run_command(command, "--help")
        assert (outcome.code, outcome.err) == (0, "")
        assert not re.search(r"^Usage.*[{<]|<list|<=x", outcome.out, flags=re.MULTILINE)
        assert f"nmtkit {command} " in outcome.out.split("Example", 1)[1].split("\n\n")[0].replace("\n", " ")

    def test_help_lists_every_command(self) -> None:
        outcome = run_command("--help")
        assert outcome.code == 0
        assert [command for command in COMMANDS if f"\n  {command} " not in outcome.out] == []

    def test_the_version_is_that_of_the_package(self) -> None:
        assert run_command("--version") == Outcome(0, f"nmtkit {nmtkit_version()}\n", "")

    @pytest.mark.usefixtures("restored_process")
    def test_garbage_is_hardly_collected_until_a_command_has_its_modules(self, project: Project) -> None:
        usual = gc.get_threshold()
        assert run_command("--version", restores=False).code == 0
        assert gc.get_threshold()[0] > 100 * usual[0]
        assert run_command("prepare", project.recipe, "--run-dir", project.run, restores=False).code == 0
        assert gc.get_threshold() == usual

    @pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP library there")
    def test_waiting_threads_soon_leave_the_core_to_others(self) -> None:
        arguments = ["attention", "no-model", "--source", "ab"]  # told once torch has been imported
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
        }
        done = subprocess.run(
            [sys.executable, "-m", "nmtkit", *arguments],
            env={**inherited, "OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr) == ["25000"]

    @pytest.mark.parametrize("mine", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE"}])
    def test_how_threads_wait_may_be_decided_by_the_user(
        self, monkeypatch: pytest.MonkeyPatch, mine: dict[str, str]
    ) -> None:
        monkeypatch.setattr(os, "environ", mine.copy())
        wait_briefly()
        assert os.environ == mine

    def test_help_loads_no_command_no_heavy_library_and_starts_no_process(self) -> None:
        # Git would tell the commit of the version; Typer itself may take pydantic to read the arguments of a command.
        program = (
            "import subprocess, sys\n"
            "def refuse(*a, **b): raise AssertionError\n"
            "subprocess.Popen.__init__ = refuse\n"
            "from nmtkit.cli.main import main\n"
            f"for arguments in [[], *([command] for command in {COMMANDS})]:\n"
            "    sys.argv = ['nmtkit', *arguments, '--help']\n"
            "    try:\n        main()\n    except SystemExit as stop:\n        assert not stop.code\n"
            f"    heavy = set({HEAVY}) - ({{'pydantic'}} if arguments else set())\n"
            "    if not arguments:\n"
            "        print(*sorted(name for name in sys.modules if 'nmtkit.cli.' in name), file=sys.stderr)\n"
            "    print('loaded:', *sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        modules, *loaded = done.stderr.split("\n")
        assert (done.returncode, modules) == (0, "nmtkit.cli.main nmtkit.cli.options"), done.stderr
        assert loaded == ["loaded:"] * (len(COMMANDS) + 1) + [""]
        assert "--version" in done.stdout


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("nmtkit tra", ["train", "translate"]),
        ("nmtkit translate --length-pen", ["--length-penalty"]),
        ("nmtkit translate --length-penalty ", ["wu", "length", "none"]),
    ],
)
def test_a_shell_completes_commands_options_and_choices(
    words: str, completions: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("_NMTKIT_COMPLETE", "complete_bash"), ("COMP_WORDS", words), ("COMP_CWORD", words.count(" "))):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit) as stop:
        app(prog_name="nmtkit")
    assert (stop.value.code, capsys.readouterr().out.split()) == (0, completions)


def test_options_of_the_search_have_types_bounds_and_texts_of_the_recipe() -> None:
    options = {param.name: param for param in load_command("rerank").params}
    field = DecodingConfig.model_fields["alpha"]
    assert (options["alpha"].min, options["alpha"].max, options["alpha"].metavar) == (0, 20, "X")
    assert options["alpha"].help == f"{field.description}  [default: the model's]"
    options = {param.name: param for param in load_command("translate").params}
    assert options["max_length_ratio"].help == "See --max-length-offset; 1 in the paper.  [default: the model's]"
    assert options["length_penalty"].metavar == "wu|length|none"


MISTAKES = {
    "unknown recipe": ("prepare quikstart", ["quikstart", "did you mean quickstart?"]),
    "missing recipe file": ("run {empty}/no.toml --quiet", ["{empty}/no.toml: no such recipe file"]),
    "missing run folder": ("cost {empty}/none", ["{empty}/none: no such file or folder; `nmtkit recipes` lists"]),
    "recipe in a folder": ("cost recipes/quickstart", ["no such file or folder; did you mean quickstart?"]),
    "import of a missing folder": ("import {empty}/none --output {empty}/new", ["{empty}/none: no such folder"]),
    "import of a file": ("import {recipe} --output {empty}/new", ["{recipe}: is a file, and no folder"]),
    "broken recipe": ("prepare {broken}", ["{broken}", "line 2"]),
    "unknown key for prepare": ("prepare {recipe} --set training.sead=1", ["training.sead", "did you mean seed?"]),
    "unknown corpus": ('prepare {recipe} --set data.test=["multi30k/tst"]', ["multi30k/tst", "multi30k/test"]),
    "train before prepare": ("train {recipe} --run-dir {empty}", ["{empty}/data", "nmtkit prepare"]),
    "train with other data": ("train {recipe} --run-dir {run} --set data.vocab_size=31", ["data.vocab_size = 31"]),
    "no model folder": ("translate {empty}/none --quiet", ["{empty}/none: no such folder"]),
    "wrong model folder": ("translate {empty}", ["{empty}", "model.json"]),
    "translate before train": ("translate {run}", ["{run}", "nmtkit train"]),
    "average without checkpoints": ("average {run}", ["{run}: there are no checkpoints here", "nmtkit train"]),
    "score without translations": (
        "score {run}",
        ["{run}/translations/news.txt", "nmtkit translate {run} --input {run}/data/test/news.source.txt"],
    ),
    "score before prepare": ("score {empty}", ["{empty}", "nmtkit prepare"]),
    "invalid UTF-8": ("score --hypothesis {three} --reference {latin}", ["{latin}, line 2: invalid UTF-8"]),
    "unknown metric": ("score --hypothesis {two} --reference {also} --metric blue", ["blue", "sacrebleu"]),
    "missing mirror": ("prepare multi30k-en-de --mirror {empty}/no", ["{empty}/no", "--mirror"]),
    "unknown built-in recipe": ("recipes nonsense", ["nonsense", "quickstart"]),
}


class TestMistakes:
    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_a_mistake_exits_with_1_and_one_line_that_says_what_and_where(
        self, prepared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        places = {name: tmp_path / name for name in ("empty", "broken", "two", "also", "three", "latin")}
        places["empty"].mkdir()
        places["broken"].write_text("[data]\ntrain =\n")
        places["two"].write_text("a\nb\n")
        places["also"].write_text("a\nb\n")
        places["three"].write_text("a\nb\nc\n")
        places["latin"].write_bytes(b"a\nM\xfcller\nc\n")
        names = {**{name: str(path) for name, path in places.items()}, "recipe": prepared.recipe, "run": prepared.run}
        arguments, parts = MISTAKES[mistake]
        told = refusal(*(argument.format(**names) for argument in arguments.split(" ")))
        assert [part for part in parts if part.format(**names) not in told] == []


class TestRecipes:
    def test_all_built_in_recipes_are_listed_with_what_they_need_and_reach(self) -> None:
        outcome = run_command("recipes")
        assert (outcome.code, outcome.err) == (0, "")
        text = " ".join(outcome.out.split())
        assert [name for name in builtin_recipes() if name not in text] == []
        for path in builtin_recipes().values():
            needs = next(line for line in path.read_text(encoding="utf-8").split("\n") if line.startswith("# Needs: "))
            assert needs.removeprefix("# Needs: ").split()[0] in text

    @pytest.mark.parametrize("name", builtin_recipes())
    def test_a_printed_recipe_is_the_same_recipe_in_another_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.chdir(tmp_path)  # the paths of a built-in recipe are relative to the current folder
        outcome = run_command("recipes", name)
        assert (outcome.code, outcome.err) == (0, "")
        path = tmp_path / f"{name}.toml"
        path.write_text(outcome.out, encoding="utf-8")
        assert load_recipe(str(path)) == load_recipe(name)


class TestPrepare:
    def test_the_default_folder_of_a_run_has_the_name_of_its_recipe(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(project.folder)
        assert run_command("prepare", "mine.toml", "--quiet").code == 0
        assert (project.folder / "runs" / "mine" / "data" / "manifest.json").is_file()

    @pytest.mark.parametrize("command", ["prepare", "train", "run", "cost"])
    def test_the_recipe_of_a_run_begins_no_new_run_by_itself(self, prepared: Project, command: str) -> None:
        told = f"to continue that run, add --run-dir {prepared.run}; to start a new one, add another"
        assert told in refusal(command, prepared.run / "recipe.toml")

    def test_findings_dropped_pairs_and_vocabulary_are_printed(self, project: Project) -> None:
        for side, line in (("en", "a <b>bold</b> line\n\n"), ("de", "eine fette Zeile\n\n")):
            with (project.folder / f"train.{side}").open("a") as file:
                file.write(line)
        outcome = run_command("prepare", project.recipe, "--run-dir", project.run)
        assert outcome.code == 0
        assert re.search(r"markup +1 +keep +0 .*\n(.*\n)*markup, lines 121\n    \S.*\n    \S", outcome.out)
        assert all(title in outcome.out for title in ("Found in 122 training pairs", "tokens per word"))
        assert re.search(r"Prepared pairs\n(.*\n)*.*left out of train +1 +both_blank", outcome.out)
        assert "Words per line" in (project.run / "data" / "report.html").read_text(encoding="utf-8")
        assert str(project.run / "data" / "report.html") in outcome.err
        again = run_command("prepare", project.recipe, "--run-dir", project.run)
        assert again.out == outcome.out and "nothing was done" in again.err
        assert run_command("prepare", project.recipe, "--run-dir", project.run, "--quiet") == (0, outcome.out, "")

    def test_check_only_reports_and_fails_where_prepare_would_stop(self, project: Project) -> None:
        outcome = run_command("prepare", project.recipe, "--run-dir", project.run, "--check", "--quiet")
        assert (outcome.code, outcome.err) == (0, "")
        with (project.folder / "train.de").open("ab") as file:
            file.write(b"M\xfcller\nnoch eine\n")
        with (project.folder / "train.en").open("ab") as file:
            file.write(b"he is here\n")
        outcome = run_command("prepare", project.recipe, "--run-dir", project.run, "--check", "--quiet")
        assert outcome.code == 1
        assert re.search(r"invalid_utf8 +1 +error", outcome.out)
        assert re.search(r"line_count +1 +error", outcome.out)
        assert "error: `nmtkit prepare` would stop here (line_count: 1, invalid_utf8: 1); " in outcome.err
        names = sorted(path.name for path in (project.run / "data").iterdir())
        assert names == ["report.html", "report.json"]

    def test_the_options_reach_the_preparation(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def note(recipe: Any, run_dir: Path, **options: Any) -> None:
            asked.update(options, seed=recipe.training.seed, run_dir=run_dir)
            raise NmtkitError("noted")

        monkeypatch.setattr("nmtkit.data.prepare.prepare", note)
        options = ["--workers", "3", "--mirror", "somewhere", "--set", "training.seed=8", "--set", "training.seed=9"]
        assert run_command("prepare", project.recipe, "--run-dir", "there", *options).err == "error: noted\n"
        assert callable(asked.pop("generate"))
        assert asked == {"workers": 3, "mirror": Path("somewhere"), "seed": 9, "run_dir": Path("there")}

    def test_the_environment_may_name_the_mirror(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NMTKIT_MIRROR", str(tmp_path / "missing"))
        told = refusal("prepare", "multi30k-en-de", "--run-dir", tmp_path / "run")
        assert str(tmp_path / "missing") in told


class TestTrain:
    def test_the_options_reach_the_training(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Any] = []

        def note(*arguments: Any, for_training: bool = False) -> None:
            asked.extend([*arguments, for_training])
            raise NmtkitError("noted")

        monkeypatch.setattr(Workers, "start", note)
        options = ["--device", "cpu", "--threads", "3", "--set", "training.precision=bf16"]
        assert run_command("train", project.recipe, *options).err == "error: noted\n"
        assert asked == ["cpu", "bf16", 3, True]

    @pytest.mark.parametrize("name", ["😀", "a\x7fb", 'a"\\b', "true"])
    def test_a_model_of_any_name_reaches_the_training(
        self, project: Project, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        found = []
        monkeypatch.setattr("nmtkit.cli.train.train_or_stop", lambda recipe, *_, **__: found.append(recipe))
        assert run_command("train", project.recipe, "--init", project.folder / name).code == 0
        assert [recipe.training.init for recipe in found] == [project.folder / name]

    def test_a_recipe_of_any_name_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / os.fsdecode(b"a\xff.toml")
        path.write_text('base = "quickstart"\n')
        assert load_recipe(str(path)).name == "a\\udcff"

    @pytest.mark.parametrize(
        ("command", "named"),
        [(["train", "--init", "a\udcff"], "training.init = "),
         (["prepare", "--set", "data.tokenizer=a\udcff"], "data.tokenizer = "),
         (["prepare", "--set", 'data.test=[{source="a\udcff", target="b"}]'], "data.test, entry 1 (a\\udcff): ")],
    )  # fmt: skip
    def test_a_name_that_is_not_utf8_is_told(self, project: Project, command: list[str], named: str) -> None:
        told = refusal(command[0], project.recipe, *command[1:])
        assert f"--set: {named}" in told and "is not valid UTF-8; choose another name" in told

    @pytest.mark.parametrize("command", ["train", "run"])
    def test_trackers_reach_the_training(
        self, prepared: Project, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        def note(name: str, run_dir: Path, hyperparameters: dict[str, Any], first_step: int) -> None:
            assert hyperparameters["training/max_steps"] == 9
            raise NmtkitError(f"noted {name} {run_dir == prepared.run} {first_step}")

        monkeypatch.setattr("nmtkit.training.reporting.open_tracker", note)
        monkeypatch.setattr("nmtkit.distributed.workers.find_spec", lambda name: name)
        options = ["--set", "training.max_steps=9", "--set", "training.precision=float32", "--tracker", "wandb"]
        options += ["--device", "cpu", "--threads", "1"]
        outcome = run_command(command, prepared.recipe, "--run-dir", prepared.run, *options)
        assert outcome.err.endswith("error: noted wandb True 1\n")

    @pytest.mark.parametrize(
        "arguments", [["train", "--processes", "2"], ["train"], ["run", "--processes", "2"], ["run"]]
    )
    def test_a_missing_tracker_is_told_before_anything_is_done(
        self, prepared: Project, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
    ) -> None:
        monkeypatch.setattr("nmtkit.distributed.launch.launch", lambda *_: pytest.fail("started"))
        monkeypatch.setattr("nmtkit.distributed.workers.find_spec", lambda name: None)
        options = ["--tracker", "tensorboard", "--device", "cpu"]
        told = "--tracker tensorboard: tensorboard is not installed; run `pip install 'nmtkit[tensorboard]'`"
        assert refusal(*arguments, prepared.recipe, "--run-dir", prepared.run, *options) == told

    @pytest.mark.parametrize("command", ["train", "run"])
    def test_several_processes_are_started_with_the_same_arguments(
        self, prepared: Project, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        asked: list[Any] = []

        def note(num_processes: int, arguments: list[str]) -> int:
            asked.extend([num_processes, arguments])
            return 7

        monkeypatch.setattr("nmtkit.distributed.launch.launch", note)
        arguments = [command, str(prepared.recipe), "--run-dir", str(prepared.run), "--processes", "4", "--quiet"]
        arguments += ["--device", "cpu"]
        assert run_command(*arguments).code == 7
        assert asked == [4, arguments]

    @pytest.mark.parametrize("command", ["train", "run", "prepare"])
    def test_a_warning_about_the_recipe_appears_once_with_several_processes(
        self, project: Project, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        generated = ', { generate = "mono.de", model = "m", as = "source" }' if command == "prepare" else ""
        pairs = f'{{ source = "{project.folder}/train.en", target = "{project.folder}/train.de" }}'
        override = f"data.train=[{pairs}{generated}]"

        def launch(num_processes: int, arguments: list[str]) -> int:
            monkeypatch.setenv(LAUNCHED, str(os.getpid()))
            for _ in range(num_processes):
                load_recipe(str(project.recipe), [override])
            return 7

        monkeypatch.setattr("nmtkit.distributed.launch.launch", launch)
        arguments = (project.recipe, "--run-dir", project.run, "--processes", "2", "--device", "cpu", "--quiet")
        told = "warning: --set data.train leaves out the recipe's test; set that, too\n"
        assert run_command(command, *arguments, "--set", override) == (7, "", told)

    def test_run_under_a_launcher_says_what_to_take_instead(
        self, prepared: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr("nmtkit.cli.main._leave", sys.exit)  # of several processes it ends this one at once
        told = "`run` starts its own processes with --processes N; under a launcher, use `prepare` and then `train`"
        assert refusal("run", prepared.recipe, "--run-dir", prepared.run) == told

    @pytest.mark.parametrize("command", ["train", "run"])
    def test_a_mistake_in_the_recipe_starts_no_processes(
        self, project: Project, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setattr("nmtkit.distributed.launch.launch", lambda *_: pytest.fail("started"))
        assert "training.sead" in refusal(command, project.recipe, "--processes", "4", "--set", "training.sead=1")


class TestScore:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[str]:
        (tmp_path / "out.de").write_text("Das ist ein kleines Haus.\nDer Hund schläft heute.\n", encoding="utf-8")
        (tmp_path / "test.de").write_text("Das ist ein kleines Haus.\nDer Hund schläft.\n", encoding="utf-8")
        return ["--hypothesis", str(tmp_path / "out.de"), "--reference", str(tmp_path / "test.de")]

    def test_without_a_language_the_table_says_which_scores_are_left_out(
        self, tmp_path: Path, files: list[str]
    ) -> None:
        outcome = run_command("score", *files, "--json", tmp_path / "scores.json")
        content = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
        assert "bleu-tokenized" not in content[files[1]]
        assert re.search(r"bleu-tokenized\W+left out", outcome.out)

    def test_tokenized_text_is_scored_as_it_is(self, tmp_path: Path, files: list[str]) -> None:
        scores = []
        for text in ("plain", "tokenized"):
            options = ["--text", text, "--target-language", "de", "--json", tmp_path / "s.json"]
            run_command("score", *files, "--metric", "bleu-tokenized", *options)
            scores.append(json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))[files[1]]["bleu-tokenized"])
        assert scores[0]["score"] != scores[1]["score"]
        assert "tok:none" in scores[1]["signature"]


def test_run_recommends_to_score_only_where_there_are_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.run.find_model", lambda folder: folder)
    found = []
    for has_scores in (False, True):
        if has_scores:
            write_json(tmp_path / "scores.json", {})
        _print_next_commands(tmp_path, "nmtkit translate")
        found.append("nmtkit score" in capsys.readouterr().out)
    assert found == [False, True]
