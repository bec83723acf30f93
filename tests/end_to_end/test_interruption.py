"""However often a run is interrupted, it is the same run, bit for bit; and what was saved is never lost."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.config.recipe import load_recipe
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError
from nmtkit.files import TEMPORARY_MARK
from nmtkit.json_toml import read_json, read_json_lines
from nmtkit.model_folder import step_of
from nmtkit.run import Run
from nmtkit.training import reporting
from nmtkit.training.session import train
from tests.conftest import TinyProject, contents, determined, metrics_without_time, num_reports, prepared_project
from tests.forked import Forked, run_forked, wait_until

STEPS = 40


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    return prepared_project(
        tmp_path_factory.mktemp("project"),
        "[model]\nencoder_layers = 2\ndecoder_layers = 2\nd_model = 64\nd_ff = 256\nnum_heads = 4\n"
        "dropout = 0.2\nattention_dropout = 0.1\nffn_dropout = 0.1\n"
        "[training]\nprecision = 'float32'\n"
        "tokens_per_update = 1500\ntokens_per_pass = 600\nwarmup_steps = 10\ngradient_clip_norm = 1.0\n"
        f"max_steps = {STEPS}\nreport_every_steps = 1\nvalidate_every_steps = 4\nvalidate_bleu = false\n"
        "checkpoint_every_steps = 5\nkeep_last = 100\n",
        train=500,
        valid=20,
    )


@pytest.fixture(scope="module")
def uninterrupted(project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = project.copy(tmp_path_factory.mktemp("uninterrupted") / "run")
    assert project.train(run).step == STEPS
    return run


@pytest.fixture(scope="module")
def stopped(project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended at update 7: checkpoint 5, saves 5 and 7."""
    run = project.copy(tmp_path_factory.mktemp("stopped") / "run")
    assert project.train(run, "training.max_steps=7").step == 7
    return run


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def determined_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run without those that depend on time and machine, and without what only its end has added."""
    added = ("end", "valid_nll", "valid_perplexity", "valid_bleu", "samples")
    lines = [line for line in metrics_without_time(run) if line.get("end") != "line"]
    return [{key: line[key] for key in line if key not in added or "end" not in line} for line in lines]


def interrupt(command: list[str], number: signal.Signals, is_time: Callable[[], bool], folder: Path) -> tuple[int, str]:
    """Starts a command, sends a signal when it is time, and returns exit code and stderr."""
    out, err = folder / "out", folder / "err"
    err.unlink(missing_ok=True)
    with Forked(*command, out=out, err=err) as process:
        wait_until(is_time, process)
        process.send_signal(number)
        code = process.wait()
    assert out.read_bytes() == b""
    return code, err.read_text(encoding="utf-8")


@dataclass
class Interrupted:
    """A run that was stopped by SIGTERM, by SIGINT, killed, and each time taken up again."""

    run: Path
    codes: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    saved_at: list[tuple[int, int]] = field(default_factory=list)

    def note(self, code: int, message: str) -> None:
        self.codes.append(code)
        self.messages.append(message)
        last = Run(self.run).resume_states()[-1]
        # A signal in a validation stops the run before the report of its update.
        is_unfinished = read_json(last / "state.json")["unfinished"] is not None
        self.saved_at.append((num_reports(self.run) + is_unfinished, step_of(last)))


@pytest.fixture(scope="module")
def interrupted(project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    result = Interrupted(project.copy(tmp_path_factory.mktemp("interrupted") / "run"))
    run, command, note = result.run, project.command(result.run), result.note
    note(*interrupt(command, signal.SIGTERM, lambda: num_reports(run) >= 2, run.parent))
    done = num_reports(run)
    note(*interrupt(command, signal.SIGINT, lambda: num_reports(run) >= done + 2, run.parent))
    due = num_reports(run) // 5 * 5 + 5
    note(*interrupt(command, signal.SIGKILL, lambda: num_reports(run) > due, run.parent))
    for _ in range(2):
        ended = run_forked(*command)
        note(ended.returncode, ended.stderr)
    return result


class TestSignals:
    def test_exit_codes_and_messages_tell_what_stopped_the_run_and_what_was_saved(
        self, interrupted: Interrupted
    ) -> None:
        assert interrupted.codes == [143, 130, -signal.SIGKILL, 0, 0]
        for reports, saved in interrupted.saved_at[:2]:
            assert reports == saved > 0
        for message in interrupted.messages[:2]:
            assert f"to resume, run: nmtkit train {interrupted.run.parent}"[:40] in message
        assert "resuming training at update" in interrupted.messages[1]
        reports, saved = interrupted.saved_at[2]  # a killed run loses only what was not saved
        assert reports - 5 <= saved <= reports
        assert f"resuming training at update {saved + 1}" in interrupted.messages[3]
        assert "nothing to do" in interrupted.messages[4]

    def test_weights_optimizer_counters_and_reports_are_the_same_bit_for_bit_with_dropout_on(
        self, interrupted: Interrupted, uninterrupted: Path
    ) -> None:
        expected = determined(uninterrupted)
        assert [line["step"] for line in expected["metrics"]] == list(range(1, STEPS + 1))
        assert sum("valid_nll" in line for line in expected["metrics"]) == STEPS // 4
        assert expected["metrics"][-1]["epoch"] > 1
        weights = [expected[f"checkpoints/step-{step:08d}/model.safetensors"] for step in range(5, STEPS + 1, 5)]
        assert len(set(weights)) == len(weights)
        assert f"resume/step-{STEPS:08d}/optimizer.safetensors" in expected
        assert determined(interrupted.run) == expected
        assert [path for path in interrupted.run.rglob("*") if TEMPORARY_MARK in path.name] == []


class TestGoingOn:
    def test_harmless_keys_may_change(self, project: TinyProject, run: Path) -> None:
        changes = ["training.keep_best=3", "training.keep_last=50", "training.patience_epochs=9", "decoding.beam=2"]
        changes += ["training.validate_every_epochs=1", "training.checkpoint_every_minutes=5", "training.max_epochs=90"]
        assert project.train(run, *changes, "training.max_steps=8").step == 8

    @pytest.mark.parametrize("change", ["training.seed=2", "model.dropout=0.0"])
    def test_another_changed_key_is_refused_by_its_name(
        self, project: TinyProject, run: Path, stopped: Path, change: str
    ) -> None:
        with pytest.raises(NmtkitError) as caught:
            project.train(run, change, "training.max_steps=8")
        assert f"{change.replace('=', ' = ')} (was " in str(caught.value)
        assert contents(run) == contents(stopped)


class TestDamage:
    @pytest.mark.parametrize("half", [b'{"step": 8, "lo', '{"step": 8, "samples": "ß'.encode()[:-1]])
    def test_a_half_line_of_metrics_is_forgotten(
        self, project: TinyProject, run: Path, uninterrupted: Path, half: bytes
    ) -> None:
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(half)
        project.train(run, "training.max_steps=8")
        assert determined_metrics(run) == determined_metrics(uninterrupted)[:8]

    def test_leftovers_of_a_killed_run_are_removed(self, project: TinyProject, run: Path) -> None:
        for place in ("checkpoints", "resume"):
            leftover = run / place / f".step-00000010{TEMPORARY_MARK}999999999"
            leftover.mkdir()
            (leftover / "model.safetensors").write_bytes(b"half")
        (run / f".recipe.toml{TEMPORARY_MARK}999999999").write_text("half")
        project.train(run, "training.max_steps=8")
        assert [path for path in run.rglob("*") if TEMPORARY_MARK in path.name] == []


class TestFullDisk:
    # Sizes: a line of metrics 400 bytes, a recipe 2 kB, the weights 0.9 MB, the state of the optimizer 1.9 MB.
    @pytest.mark.parametrize("limit", [100, 500_000, 1_400_000])
    def test_a_full_disk_costs_one_line_and_nothing_that_was_saved(
        self, project: TinyProject, run: Path, uninterrupted: Path, limit: int
    ) -> None:
        before = contents(run)
        command = project.command(run, "--quiet", "--set", "training.max_steps=10")
        ended = run_forked(*command, file_limit=limit)
        assert ended.returncode == 1
        assert ended.stdout == ""
        assert ended.stderr.count("\n") == 1
        assert ended.stderr.startswith("error: ")
        assert "run the same command again" in ended.stderr
        assert str(run) in ended.stderr
        after = contents(run)
        assert after.pop("metrics.jsonl").startswith(before.pop("metrics.jsonl"))
        assert {name: after.get(name) for name in before if name != "recipe.toml"} == {
            name: content for name, content in before.items() if name != "recipe.toml"
        }
        assert [name for name in after if TEMPORARY_MARK in name] == []

        assert project.train(run, "training.max_steps=10").step == 10
        weights = "checkpoints/step-00000010/model.safetensors"
        assert (run / weights).read_bytes() == (uninterrupted / weights).read_bytes()
        assert determined_metrics(run) == determined_metrics(uninterrupted)[:10]


WITHOUT_DROPOUT = ("model.dropout=0.0", "model.attention_dropout=0.0", "model.ffn_dropout=0.0")


@pytest.fixture(scope="module")
def alone(project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without dropout by one process."""
    run = project.copy(tmp_path_factory.mktemp("alone") / "run")
    project.train(run, *WITHOUT_DROPOUT, "training.max_steps=17")
    return run


@pytest.fixture(scope="module")
def shared(project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, of which two processes made updates 4 to 13."""
    run = project.copy(tmp_path_factory.mktemp("shared") / "run")
    project.train(run, *WITHOUT_DROPOUT, "training.max_steps=3")
    overrides = [option for setting in (*WITHOUT_DROPOUT, "training.max_steps=13") for option in ("--set", setting)]
    ended = run_forked(*project.command(run, *overrides, "--processes", "2"))
    assert ended.returncode == 0, ended.stderr
    project.train(run, *WITHOUT_DROPOUT, "training.max_steps=17")
    return run


class TestSeveralProcesses:
    def test_two_processes_make_the_same_updates_as_one(self, shared: Path, alone: Path) -> None:
        exact = ("step", "epoch", "target_tokens", "flops", "learning_rate")
        one, two = (determined_metrics(run) for run in (alone, shared))
        assert [[line[key] for key in exact] for line in two] == [[line[key] for key in exact] for line in one]
        assert len(two) == 17
        for key in ("loss", "nll", "gradient_norm"):
            assert [line[key] for line in two] == pytest.approx([line[key] for line in one], rel=2e-4)
        folders = [shared / "checkpoints" / f"step-{step:08d}" for step in (5, 10, 15)]
        assert [read_json(folder / "provenance.json")["processes"] for folder in folders] == [2, 2, 1]

    def test_a_mistake_is_told_once(self, project: TinyProject, tmp_path: Path) -> None:
        command = project.command(tmp_path / "unprepared", "--processes", "2", "--quiet")
        ended = run_forked(*command)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "nmtkit prepare" in ended.stderr
        assert ended.stderr.count("\n") == 1

    def test_a_full_disk_ends_all_processes_with_one_line(self, project: TinyProject, run: Path) -> None:
        saved = contents(run / "resume")
        command = project.command(run, "--processes", "2", "--quiet", "--set", "training.max_steps=10")
        ended = run_forked(*command, file_limit=500_000)
        assert ended.returncode == 1
        assert [line for line in ended.stderr.split("\n") if line.startswith("error: ")] != []
        assert "Traceback" not in ended.stderr
        assert ended.stderr.count("\n") == 1
        assert contents(run / "resume") == saved


def test_a_tracker_goes_on_where_the_training_does(
    project: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Fake:
        name = "tensorboard"

        def log(self, values: dict[str, Any], step: int | None = None) -> None:
            told.append((step, values["loss"]))

        def finish(self) -> None:
            told.append("finished")

    def open_tracker(name: str, run_dir: Path, hyperparameters: dict[str, Any], first_step: int) -> Fake:
        told.append((name, run_dir, first_step))
        return Fake()

    monkeypatch.setattr(reporting, "open_tracker", open_tracker)
    recipe = load_recipe(str(project.recipe), ["training.max_steps=9"])
    train(recipe, run, Workers(0, 1, torch.device("cpu"), "float32"), ["tensorboard"])
    lines = read_json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 10))
    # The line of the last update comes once more, with the validation of the end.
    expected = [(line["step"], line["loss"]) for line in [*lines[7:], lines[-1]]]
    assert told == [("tensorboard", run, 8), *expected, "finished"]
