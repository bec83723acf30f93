"""Subword sampling in training: every epoch has its own subwords, and an interrupted run is the same run."""

import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.data import subword_epochs as drawing
from nmtkit.data.shards import PairData
from nmtkit.data.subword_epochs import Draw
from nmtkit.distributed.launch import wait_or_kill
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError, RecipeError
from nmtkit.files import TEMPORARY_MARK
from nmtkit.json_toml import read_json, read_json_lines
from nmtkit.run import Run
from nmtkit.training import epochs as drawn_epochs
from nmtkit.training.epochs import TrainingPairs, training_pairs
from tests.conftest import TinyProject, determined, is_mapped, keep_used_files

SAMPLING = "training.subword_sampling=0.2"
STEPS = 14


def source_ids(data: PairData) -> list[int]:
    """All source ids of shards in one row."""
    return data.joined_ids(0, np.arange(len(data)))[0].tolist()


@pytest.fixture(scope="module")
def uninterrupted(tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tiny_project.copy(tmp_path_factory.mktemp("sampled") / "run")
    assert tiny_project.train(run, SAMPLING).step == STEPS
    return run


@pytest.fixture(autouse=True)
def drawn_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs are drawn in this process, where no test says otherwise: a start of another one takes half a second."""

    command = drawing._command

    def start(data: Path, folder: Path, draw: Draw, processes: int) -> Any:
        if drawing._command is not command:
            return drawing.start(data, folder, draw, processes)
        drawing.draw_epoch(data, folder, draw, processes)
        return Mock(returncode=0, communicate=Mock(return_value=(b"", b"")))

    monkeypatch.setattr(drawn_epochs, "start", start)


def test_an_interrupted_run_is_the_uninterrupted_one(
    tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # by another process
    for steps in (4, 9):  # in the first epoch and in the second, after which what was drawn is lost
        stop_at(monkeypatch, steps - int(read_steps(run)))
        assert tiny.train(run, SAMPLING).signal == signal.SIGTERM
        monkeypatch.undo()
        assert (run / "drawn").is_dir()
    drawn_epochs.remove_folder(run / "drawn")
    assert tiny.train(run, SAMPLING).step == STEPS
    assert determined(run) == determined(uninterrupted)


def test_epochs_left_by_a_signal_at_the_end_are_removed_by_the_next_start(
    tiny: TinyProject, uninterrupted: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    (run / "drawn" / "epoch-00000001").mkdir(parents=True)
    assert tiny.train(run, SAMPLING).step == STEPS
    assert not (run / "drawn").exists()


def test_drawn_may_be_a_link_to_another_disk(tiny: TinyProject, tmp_path: Path, run: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "other").touch()
    (run / "drawn").symlink_to(tmp_path / "disk")
    assert tiny.train(run, SAMPLING, "training.max_steps=1").step == 1
    assert [path.name for path in (run / "drawn").iterdir()] == ["other"]


def test_in_a_linked_folder_what_other_processes_write_stays(tiny: TinyProject, tmp_path: Path, run: Path) -> None:
    others = []
    for name in ("drawn", "resume", "checkpoints"):
        (tmp_path / name).mkdir()
        (run / name).symlink_to(tmp_path / name)
        others.append(tmp_path / name / f".out.de{TEMPORARY_MARK}{platform.node()}-{os.getppid()}")
        others[-1].touch()
    tiny.train(run, SAMPLING, "training.max_steps=1")
    assert [other for other in others if not other.exists()] == []


def test_on_nfs_an_epoch_that_is_still_mapped_does_not_end_the_training(
    tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_used_files(monkeypatch, is_mapped)
    assert tiny.train(run, SAMPLING).step == STEPS
    assert determined(run) == determined(uninterrupted)


def draws_otherwise(monkeypatch: pytest.MonkeyPatch, epoch: int, program: str, times: int = 1) -> None:
    """Has an epoch drawn by another program, that many times."""
    command, left = drawing._command, [program] * times

    def other(data: Path, folder: Path, draw: Draw, processes: int) -> list[str]:
        if draw.epoch == epoch and left:
            return [sys.executable, "-c", left.pop()]
        return command(data, folder, draw, processes)

    monkeypatch.setattr(drawing, "_command", other)


def test_a_stop_is_heard_while_an_epoch_is_waited_for(
    tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, asked = Workers.gather, list[int]()

    def asked_meanwhile(workers: Workers, values: list[Any]) -> list[Any]:
        if isinstance(values[0], tuple) and not values[0][0] and read_json_lines(run / "metrics.jsonl") and not asked:
            asked.append(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        return gather(workers, values)

    monkeypatch.setattr(drawn_epochs, "_POLL_SECONDS", 0.1)
    with monkeypatch.context() as patch:
        draws_otherwise(patch, 1, "import time; time.sleep(600)")
        patch.setattr(Workers, "gather", asked_meanwhile)
        result = tiny.train(run, SAMPLING)
    assert (result.reason, result.signal) == ("stopped by SIGTERM", signal.SIGTERM)
    assert read_steps(run) == result.step < STEPS
    assert not list((run / "drawn").glob(".*"))
    assert tiny.train(run, SAMPLING).step == STEPS
    assert determined(run) == determined(uninterrupted)


def test_what_was_done_is_saved_when_an_epoch_cannot_be_drawn(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws_otherwise(monkeypatch, 1, "import sys; sys.exit('RUN: no space')")
    with pytest.raises(NmtkitError, match=r"the subwords of epoch 1 could not be sampled: RUN: no space"):
        tiny.train(run, SAMPLING, "training.checkpoint_every_steps=100")
    assert read_json(run / "resume" / f"step-{read_steps(run):08d}" / "state.json")["progress"]["epoch"] == 1


def test_a_drawing_that_somebody_ended_is_begun_again(
    tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws_otherwise(monkeypatch, 0, "import os; os.kill(os.getpid(), 15)", times=2)
    assert len(epochs(tiny, tiny.copy(tmp_path / "run")).of_epoch(0)) == 200


def test_a_damaged_epoch_is_drawn_anew(tiny: TinyProject, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = source_ids(epochs(tiny, run).of_epoch(0))
    damaged = run / "drawn" / "epoch-00000000"
    (damaged / "pairs" / "source.ids.bin").write_bytes(b"cut")
    assert source_ids(epochs(tiny, run).of_epoch(0)) == before
    assert f"{damaged} is damaged; sampling its subwords again" in caplog.text


def test_other_processes_wait_in_short_exchanges_for_the_first(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs(tiny, run).of_epoch(0)
    answers = [(False, "", False), (False, "", False), (True, "", False), None]  # of the first process
    monkeypatch.setattr(Workers, "gather", lambda workers, own: [answers.pop(0), *own])
    second = dataclasses.replace(tiny.workers(), rank=1, num_processes=2)
    assert len(epochs(tiny, run, second).of_epoch(0)) == 200
    assert not answers
    answers += [(False, "", False), (False, "no space", False)]
    with pytest.raises(NmtkitError, match="epoch 1 could not be sampled: no space"):
        epochs(tiny, run, second).of_epoch(1)


def test_processes_that_do_not_share_the_folder_are_refused(
    tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(True, "", False), None]
    monkeypatch.setattr(Workers, "gather", lambda workers, own: [answers.pop(0), *own])
    second = dataclasses.replace(tiny.workers(), rank=1, num_processes=2)
    with pytest.raises(NmtkitError, match=r"epoch-00000000: not found by process 1; .* RUN must be one folder that"):
        epochs(tiny, tiny.copy(tmp_path / "run"), second).of_epoch(0)


def epochs(project: TinyProject, run: Path, workers: Workers | None = None) -> TrainingPairs:
    recipe = load_recipe(str(project.recipe), [SAMPLING, "training.max_epochs=1"])
    return training_pairs(recipe, Run(run), read_json(run / "data" / "manifest.json"), workers or project.workers())


def test_other_ids_of_the_same_text_are_sampled_anew(tiny: TinyProject, run: Path) -> None:
    epochs(tiny, run).of_epoch(0)
    manifest = read_json(run / "data" / "manifest.json")
    same = epochs(tiny, run)
    same._begin(0)
    assert same._sampler is None  # complete, so nothing is started
    manifest["files"]["tokenizer/tokenizer.json"] = "another version's"
    (run / "data" / "manifest.json").write_text(json.dumps(manifest))
    again = epochs(tiny, run)
    again._begin(0)
    assert again._sampler is not None
    again.close()


def test_a_sampler_that_lost_its_signal_is_killed(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        monkeypatch.setattr(drawn_epochs, "start", lambda *about: process)
        monkeypatch.setattr(drawn_epochs, "wait_or_kill", partial(wait_or_kill, seconds=0.1))
        pairs = epochs(tiny, run)
        pairs._begin(1)
        pairs.close()
        assert process.poll() == -signal.SIGKILL


def test_the_prediction_goes_by_the_subwords_of_the_first_epoch(tiny: TinyProject, run: Path) -> None:
    step = tiny.train(run, SAMPLING, "training.max_epochs=1").step
    expected = read_json(run / "prediction.json")
    progress = read_json(run / "resume" / f"step-{step:08d}" / "state.json")["progress"]
    assert (expected["updates"], expected["flops"]) == (step, progress["flops"])
    assert expected["lengths"] == "the first epoch's subwords"


def read_steps(run: Path) -> int:
    return max((read_json(path)["progress"]["step"] for path in run.glob("resume/step-*/state.json")), default=0)


def stop_at(monkeypatch: pytest.MonkeyPatch, updates: int) -> None:
    """Asks the training to stop after so many updates."""
    function, calls = Workers.sum_gradients, 0

    def counted(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        function(*arguments)  # type: ignore[arg-type]
        if calls == updates:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Workers, "sum_gradients", counted)


def test_a_resume_can_be_verified(tiny: TinyProject, uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    assert tiny.verify(run, SAMPLING) == (13, 14)
    assert not (run / "drawn").exists()


def test_training_sees_more_and_other_tokens_than_without(tiny: TinyProject, run: Path) -> None:
    plain, sampled = PairData(run / "data" / "train"), epochs(tiny, run).of_epoch(0)
    assert sampled.target_lengths.sum() > 1.05 * plain.target_lengths.sum()
    assert set(source_ids(sampled)) - set(source_ids(plain))


def test_validation_is_of_plain_subwords(tiny: TinyProject, tmp_path: Path) -> None:
    runs = [tiny.copy(tmp_path / name) for name in ("plain", "sampled")]
    still = ("training.max_steps=1", "training.schedule=constant", "training.peak_learning_rate=1e-30")
    still += ("training.validate_every_steps=1",)
    tiny.train(runs[0], *still)
    tiny.train(runs[1], *still, SAMPLING)
    plain, sampled = ([line["valid_nll"] for line in read_json_lines(run / "metrics.jsonl")] for run in runs)
    assert plain == sampled


def test_every_epoch_is_drawn_anew_the_next_one_ahead_and_the_last_ones_go(tiny: TinyProject, run: Path) -> None:
    recipe = load_recipe(str(tiny.recipe), [SAMPLING, "training.max_epochs=3"])
    pairs = training_pairs(recipe, Run(run), read_json(run / "data" / "manifest.json"), tiny.workers())
    seen = []
    for epoch in range(3):
        data = pairs.of_epoch(epoch)
        assert data is pairs.of_epoch(epoch)
        assert data.lines.tolist() == pairs.lines.tolist()
        seen.append(source_ids(data))
        there = {path.name for path in (run / "drawn").iterdir() if path.name.startswith("epoch")}
        assert f"epoch-{epoch:08d}" in there
        assert there <= {f"epoch-{epoch:08d}", f"epoch-{epoch + 1:08d}"}
    assert len({str(ids) for ids in seen}) == 3
    assert source_ids(pairs.of_epoch(1)) == seen[1]  # as after going back to a save
    pairs.close(is_finished=True)
    assert not (run / "drawn").exists()


def test_nothing_is_drawn_where_it_is_not_asked_for(tiny: TinyProject) -> None:
    manifest = read_json(tiny.prepared / "data" / "manifest.json")
    pairs = training_pairs(load_recipe(str(tiny.recipe)), Run(tiny.prepared), manifest, tiny.workers())
    assert isinstance(pairs, PairData)
    assert pairs.of_epoch(3) is pairs


def test_what_was_drawn_is_gone_when_training_has_ended(uninterrupted: Path) -> None:
    assert not (uninterrupted / "drawn").exists()


def test_a_drawing_that_is_killed_is_told_and_ends_the_training(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws_otherwise(monkeypatch, 0, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(NmtkitError, match="the subwords of epoch 0 could not be sampled: its process ended with -9"):
        tiny.train(run, SAMPLING)


def test_another_strength_is_another_training(tiny: TinyProject, uninterrupted: Path) -> None:
    with pytest.raises(NmtkitError, match=r"changed: training\.subword_sampling = 0\.0 \(was 0\.2\)"):
        tiny.train(uninterrupted)


@pytest.mark.parametrize("subwords", ["wordpiece", "none"])
def test_sampling_is_refused_for_subwords_that_have_none(tiny: TinyProject, subwords: str) -> None:
    with pytest.raises(
        RecipeError, match=rf'subword_sampling is for \[data\] subwords = "bpe" or "unigram", not "{subwords}'
    ):
        load_recipe(str(tiny.recipe), [SAMPLING, f"data.subwords={subwords}"])
