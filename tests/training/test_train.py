"""A training that is stopped anywhere is the same training; what it saves is whole, and one process is at it."""

import errno
import fcntl
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from nmtkit import files, model_folder
from nmtkit.config.recipe import load_recipe
from nmtkit.data.prepare import prepare
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.files import TEMPORARY_MARK, sha256_of, sha256_of_files
from nmtkit.json_toml import read_json, read_json_lines, write_json
from nmtkit.model_folder import read_tensors
from nmtkit.run import LOCK_NAME, Run
from nmtkit.training import loop, session, state, validation
from nmtkit.training.session import TrainingResult
from tests.conftest import TinyProject, contents, determined, is_mapped, keep_used_files, metrics_without_time

STEPS = 14


@pytest.fixture
def trained(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of the run that was not interrupted: checkpoints 8 and 12 and the best one, saves 12 and 14."""
    shutil.copytree(uninterrupted, tmp_path / "trained")
    return tmp_path / "trained"


def flipped(path: Path) -> bytes:
    """The bytes of a file with those in its middle changed."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    return bytes(content)


def call_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, number: int, action: Callable[[], object]) -> None:
    """Does something right before the ``number``-th call of a function, counted from 1."""
    function, calls = getattr(place, name), 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            action()
        return function(*arguments, **options)

    monkeypatch.setattr(place, name, counted)


def ask(number: int = signal.SIGTERM) -> None:
    signal.raise_signal(number)  # heard before it returns; os.kill may be heard late, two of them as one


def stop_at(tiny: TinyProject, run: Path, place: Any, name: str, number: int, *settings: str) -> TrainingResult:
    """Trains a run that is asked to stop right before the ``number``-th call of a function."""
    with pytest.MonkeyPatch.context() as patch:
        call_at(patch, place, name, number, ask)
        return tiny.train(run, *settings)


def die() -> None:
    raise RuntimeError("as if killed")


def die_at(tiny: TinyProject, run: Path, place: Any, name: str, number: int, *settings: str) -> None:
    """Trains a run that dies right before the ``number``-th call of a function."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="as if killed"):
        call_at(patch, place, name, number, die)
        tiny.train(run, *settings)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as a terminal has it; a shell starts what runs in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestStops:
    def test_a_run_stopped_after_every_single_update_is_the_same_run(self, tiny: TinyProject, tmp_path: Path) -> None:
        run, other = tiny.copy(tmp_path / "run"), tiny.copy(tmp_path / "other")
        # Updates with a validation alone (4, 8), a checkpoint and a report (6), all three (12), a report alone (3, 9).
        rhythm = ("training.validate_every_steps=4", "training.checkpoint_every_steps=6", "training.keep_last=3")
        tiny.train(other, *rhythm)
        for step in range(1, STEPS + 1):
            result = stop_at(tiny, run, loop, "learning_rate", 1, *rhythm)
            assert (result.step, result.signal) == (step, signal.SIGTERM)
        assert tiny.train(run, *rhythm).signal is None
        # Every stop makes a save; the last one of the rhythm is kept besides.
        shutil.rmtree(run / "resume/step-00000013")
        assert determined(run) == determined(other)
        assert len(determined(run)) >= 6

    @pytest.mark.parametrize("batch", [1, 3])
    def test_a_stop_during_a_validation_gives_it_up_at_the_next_batch_and_makes_it_anew_on_resume(
        self, tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch, batch: int
    ) -> None:
        calls = 0
        forward = validation.batch_loss

        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == batch:
                ask(signal.SIGINT)
            return forward(*arguments)

        monkeypatch.setattr(validation, "batch_loss", counted)
        result = tiny.train(run)
        assert (result.step, result.signal, calls) == (5, signal.SIGINT, batch)
        assert result.reason == "stopped by SIGINT"
        assert [line["step"] for line in metrics_without_time(run)] == [3]
        assert read_json(run / "resume/step-00000005/state.json")["unfinished"]["step"] == 5
        assert tiny.train(run).step == STEPS
        assert determined(run) == determined(uninterrupted)

    def test_a_last_validation_that_was_stopped_is_made_without_data_for_another_update(
        self, tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert stop_at(tiny, run, validation, "batch_loss", 1, "training.max_steps=5").signal == signal.SIGTERM
        monkeypatch.setattr(session._Session, "_settle", lambda self: pytest.fail("for no update"))
        assert tiny.train(run, "training.max_steps=5").step == 5
        assert "valid_nll" in metrics_without_time(run)[-1]

    def test_a_stop_during_the_translations_of_a_validation_gives_them_up(
        self, tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = ("training.validate_bleu=true", "decoding.max_length_offset=2", "training.max_steps=6")
        runs = [tiny.copy(tmp_path / name) for name in ("one", "two")]
        tiny.train(runs[0], *settings)
        with monkeypatch.context() as patch:
            call_at(patch, validation.Translator, "_search", 1, ask)
            call_at(patch, validation.Scorer, "score", 1, lambda: pytest.fail("was not given up"))
            assert tiny.train(runs[1], *settings).step == 5
        tiny.train(runs[1], *settings)
        lines = metrics_without_time(runs[0])
        assert metrics_without_time(runs[1]) == lines
        assert [line["step"] for line in lines if "valid_bleu" in line] == [5, 6]

    def test_another_search_for_the_validations_of_a_longer_training_is_named(
        self, tiny: TinyProject, run: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = ("training.validate_bleu=true", "decoding.max_length_offset=2")
        tiny.train(run, *settings, "training.max_steps=6")
        tiny.train(run, *settings, "training.max_steps=6", "decoding.beam=3")  # nothing to do
        tiny.train(run, *settings, "training.max_steps=8", "decoding.average_last=1")
        assert "another search" not in caplog.text
        tiny.train(run, *settings, "training.max_steps=10", "decoding.beam=3")
        message = "from now on, validation BLEU is that of another search (changed: decoding.beam = 3 (was 2))"
        assert caplog.messages[-1] == message
        caplog.clear()
        tiny.train(run, *settings, "training.max_steps=12", "decoding.beam=3")
        assert "another search" not in caplog.text

    def test_a_terminal_that_is_closed_saves_and_under_nohup_it_does_not_stop(
        self, tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            call_at(patch, loop, "learning_rate", 3, lambda: ask(signal.SIGHUP))
            assert tiny.train(run) == TrainingResult(3, "stopped by SIGHUP", signal.SIGHUP)
        assert [path.name for path in Run(run).resume_states()] == ["step-00000003"]
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with monkeypatch.context() as patch:
                call_at(patch, loop, "learning_rate", 3, lambda: ask(signal.SIGHUP))
                assert tiny.train(run).signal is None
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_kill_after_an_unfinished_update_was_finished_reports_it_once(
        self, tiny: TinyProject, uninterrupted: Path, run: Path
    ) -> None:
        stop_at(tiny, run, validation, "batch_loss", 1)
        die_at(tiny, run, loop, "_update", 2)
        assert [line["step"] for line in metrics_without_time(run)] == [3, 5, 6]
        tiny.train(run)
        assert determined(run) == determined(uninterrupted)

    def test_a_signal_while_saving_lets_the_save_be_whole(self, tiny: TinyProject, run: Path) -> None:
        # Asked in the save of update 4, heard in the validation of update 5.
        assert stop_at(tiny, run, state, "write_tensors", 2).step == 5
        assert [path.name for path in Run(run).resume_states()] == ["step-00000004", "step-00000005"]
        assert [folder.name for folder, _ in state.whole_states(Run(run), 2)] == ["step-00000005", "step-00000004"]

    @pytest.mark.usefixtures("interruptible")
    def test_a_second_signal_ends_at_once_without_harm(
        self, tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:

        def ask_twice() -> None:
            ask(signal.SIGINT)
            ask(signal.SIGINT)  # within a second: a launcher and a terminal sent the same wish
            monkeypatch.setattr(session, "SECONDS_OF_ONE_REQUEST", 0.0)
            ask(signal.SIGINT)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            call_at(patch, state, "write_tensors", 4, ask_twice)  # in the second save
            tiny.train(run)
        assert [path.name for path in Run(run).resume_states()] == ["step-00000004"]
        assert [path for path in run.rglob("*") if TEMPORARY_MARK in path.name] == []
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        tiny.train(run)
        assert determined(run) == determined(uninterrupted)

    @pytest.mark.usefixtures("interruptible")
    def test_the_first_signal_after_another_process_told_of_its_own_is_no_second_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session, "SECONDS_OF_ONE_REQUEST", 0.0)
        stop = session.StopRequest()
        with stop.listening():
            stop.number = signal.SIGTERM  # as another process said
            ask(signal.SIGINT)
            assert stop.number == signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                ask(signal.SIGINT)


class TestVerifyResume:
    def test_the_updates_between_the_last_two_saves_repeat_bit_for_bit_and_nothing_is_written(
        self, tiny: TinyProject, trained: Path
    ) -> None:
        before = contents(trained)
        assert tiny.verify(trained) == (13, 14)
        assert contents(trained) == before

    def test_validations_are_repeated_where_they_were_made(self, tiny: TinyProject, run: Path) -> None:
        # The validation of update 5 is made by the next session.
        assert stop_at(tiny, run, validation, "batch_loss", 1).step == 5
        assert tiny.verify(run) == (5, 5)
        tiny.train(run, "training.max_steps=7")
        # Saves 5, without its validation, and 7, of whose counters it is part; the rhythm has changed since.
        assert tiny.verify(run, "training.validate_every_steps=1") == (6, 7)

    def test_the_first_tensor_that_differs_is_named_and_by_how_much(self, tiny: TinyProject, trained: Path) -> None:
        folder = trained / "resume/step-00000014"
        tensors = read_tensors(folder / "optimizer.safetensors")
        name = next(name for name in tensors if name.startswith("exp_avg_sq."))
        tensors[name].view(-1)[3] += 0.25
        model_folder.write_tensors(folder / "optimizer.safetensors", tensors)
        sign(folder)
        with pytest.raises(NmtkitError, match=rf"updates 13 to 14 .*optimizer: {name} differs by up to 0\.25$"):
            tiny.verify(trained)

    def test_a_counter_that_differs_is_named(self, tiny: TinyProject, trained: Path) -> None:
        sign(trained / "resume/step-00000014", lambda saved: saved["progress"].update(validations_since_best=7))
        with pytest.raises(NmtkitError, match=r"validations_since_best is \d, was 7"):
            tiny.verify(trained)

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [("processes", 2, "processes = 1 (was 2)"), ("threads", 3, "threads = 1 (was 3)"), ("torch", "0.1", "torch")],
    )
    def test_bits_are_not_compared_under_other_conditions(
        self, tiny: TinyProject, trained: Path, key: str, value: object, message: str
    ) -> None:
        def change(saved: dict[str, Any]) -> None:
            (saved["versions"] if key == "torch" else saved)[key] = value

        sign(trained / "resume/step-00000014", change)
        with pytest.raises(NmtkitError, match="bits cannot be compared") as caught:
            tiny.verify(trained)
        assert message in str(caught.value)

    def test_without_a_save_there_is_nothing_to_compare(self, tiny: TinyProject, run: Path) -> None:
        with pytest.raises(NmtkitError, match="no resume state to compare with yet"):
            tiny.verify(run)

    def test_other_settings_are_refused(self, tiny: TinyProject, trained: Path) -> None:
        with pytest.raises(NmtkitError, match=r"training.seed = 2 \(was 1\)"):
            tiny.verify(trained, "training.seed=2")


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a state.json, whose sum stays."""
    saved = read_json(path)
    change(saved)
    path.write_text(json.dumps(saved))


def sign(folder: Path, change: Callable[[dict[str, Any]], object] = lambda saved: None) -> None:
    """Changes a save's state.json, and writes the sums of what lies there into it."""
    saved = read_json(folder / "state.json")
    change(saved)
    sums = sha256_of_files(folder)
    sums.pop("state.json")
    saved["files"] = sums
    (folder / "state.json").write_text(json.dumps({**saved, "sha256": state.sum_of_state(saved)}), encoding="utf-8")


class TestSaves:
    def test_a_file_that_reads_back_otherwise_costs_no_earlier_save(
        self, tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_file, write = safetensors.torch.save_file, 0

        def flip_a_bit(tensors: dict[str, torch.Tensor], path: Path) -> None:
            nonlocal write
            save_file(tensors, path)
            write -= 1
            if write == 0:
                content = bytearray(path.read_bytes())
                content[-1] ^= 1
                path.write_bytes(content)

        monkeypatch.setattr(safetensors.torch, "save_file", flip_a_bit)
        # Checkpoint 4, weights and optimiser of save 4, checkpoint 8; then from save 4 on, the weights of save 8.
        for number, name, saves in (
            (1, "checkpoints/step-00000004/model", []),
            (2, "resume/step-00000004/weights", []),
            (3, "resume/step-00000004/optimizer", []),
            (4, "checkpoints/step-00000008/model", ["step-00000004"]),
            (2, "resume/step-00000008/weights", ["step-00000004"]),
        ):
            write = number
            with pytest.raises(NmtkitError, match=f"{name}.* does not read back as it was written"):
                tiny.train(run)
            assert [path.name for path in Run(run).resume_states()] == saves
        tiny.train(run)
        assert determined(run) == determined(uninterrupted)

    @pytest.mark.parametrize(
        ("name", "damage"),
        [
            ("state.json", lambda path: path.write_bytes(b"")),
            ("weights.safetensors", lambda path: path.write_bytes(flipped(path))),
            ("optimizer.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-100])),
            ("optimizer.safetensors", lambda path: path.unlink()),
            ("state.json", lambda path: rewrite(path, lambda saved: saved["progress"].update(step=12))),
            ("state.json", lambda path: rewrite(path, lambda saved: saved.pop("meter"))),
            ("state.json", lambda path: rewrite(path, lambda saved: saved.update(sha256=None))),
            ("state.json", lambda path: rewrite(path, lambda saved: saved.pop("files"))),
        ],
    )
    def test_a_damaged_save_is_passed_over_with_a_warning(
        self, trained: Path, logged: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], object]
    ) -> None:
        damage(trained / "resume/step-00000014" / name)
        assert [folder.name for folder, _ in state.whole_states(Run(trained), 2)] == ["step-00000012"]
        [warning] = [each for each in logged.messages if each.endswith("; using the previous resume state")]
        # Of a file that differs from its checksum, only the folder is named.
        assert f"step-00000014/{name}" in warning or "step-00000014: damaged (its files do not match" in warning

    @pytest.mark.parametrize("name", ["state.json", "weights.safetensors"])
    def test_a_training_and_its_verification_go_by_the_save_before_a_damaged_one(
        self, tiny: TinyProject, uninterrupted: Path, trained: Path, name: str
    ) -> None:
        path = trained / "resume/step-00000014" / name
        path.write_bytes(flipped(path))
        assert tiny.verify(trained) == (1, 12)
        assert tiny.train(trained).step == STEPS
        assert determined(trained) == determined(uninterrupted)

    def test_other_files_in_a_save_are_no_damage(
        self, tiny: TinyProject, trained: Path, logged: pytest.LogCaptureFixture
    ) -> None:
        logged.set_level("WARNING")
        for name in (".DS_Store", "._weights.safetensors"):
            (trained / "resume/step-00000014" / name).write_bytes(b"x")
        assert tiny.train(trained, "training.max_steps=15").step == STEPS + 1
        assert logged.messages == []
        assert [path.name for path in Run(trained).resume_states()][-2:] == ["step-00000014", "step-00000015"]

    def test_every_flipped_bit_of_a_state_is_noticed(self, trained: Path) -> None:
        path = trained / "resume/step-00000014/state.json"
        content, before = path.read_bytes(), read_json(path)
        for position in range(0, len(content), 7):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            try:
                found = state.read_state(path.parent)  # the bit was one of blanks, or of the name of the sum
                assert all(found[key] == before[key] for key in before if key != "sha256")
            except ModelError as error:
                assert "state.json" in str(error)

    def test_a_damaged_save_does_not_stay_among_the_two_that_are_kept(self, tiny: TinyProject, trained: Path) -> None:
        (trained / "resume/step-00000014/weights.safetensors").write_bytes(b"")
        tiny.train(trained, "training.max_steps=13")
        assert [path.name for path in Run(trained).resume_states()] == ["step-00000012", "step-00000013"]

    def test_a_checkpoint_without_provenance_does_not_stop_the_training(
        self, tiny: TinyProject, trained: Path, logged: pytest.LogCaptureFixture
    ) -> None:
        (trained / "checkpoints/step-00000012/provenance.json").write_bytes(b"")
        assert tiny.train(trained, "training.max_steps=16").step == 16
        assert any("step-00000012" in warning and "skipping this checkpoint" in warning for warning in logged.messages)

    @pytest.mark.parametrize(("place", "name"), [(state.TrainingState, "save"), (session, "remove_old_checkpoints")])
    def test_a_kill_around_a_save_leaves_the_earlier_checkpoint_which_the_next_start_removes(
        self, tiny: TinyProject, run: Path, place: Any, name: str
    ) -> None:
        keep = ("training.keep_last=1", "training.keep_best=0", "decoding.average_last=1")
        die_at(tiny, run, place, name, 2, *keep, "training.max_steps=8")
        assert [path.name for path in Run(run).checkpoints()] == ["step-00000004", "step-00000008"]
        assert tiny.train(run, *keep, "training.max_steps=8").step == 8
        assert [path.name for path in Run(run).checkpoints()] == ["step-00000008"]

    def test_on_nfs_a_resumed_training_holds_no_file_of_the_save_it_began_with(
        self, tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiny.train(run, "training.max_steps=4")
        keep_used_files(monkeypatch, is_mapped)
        assert tiny.train(run).step == STEPS
        assert list(run.rglob(".nfs*")) == []
        assert determined(run) == determined(uninterrupted)

    @pytest.mark.parametrize("model", ["checkpoints", "averaged"])
    def test_without_a_save_no_finished_model_is_removed(self, tiny: TinyProject, trained: Path, model: str) -> None:
        shutil.rmtree(trained / "resume")
        if model == "averaged":
            (trained / "checkpoints").rename(trained / "averaged")
        before = contents(trained)
        told = r"no resume state, but (\d checkpoints|an average); to train from scratch, "
        with pytest.raises(NmtkitError, match=rf"{told}remove {trained / model}, or"):
            tiny.train(trained)
        assert contents(trained) == before

    @pytest.mark.parametrize("limit", ["max_steps=4", "max_epochs=1", "max_minutes=0.0000001"])
    def test_nor_is_the_only_checkpoint_of_a_finished_training(self, tiny: TinyProject, run: Path, limit: str) -> None:
        every = {"max_steps=4": 4, "max_epochs=1": 7, "max_minutes=0.0000001": 1}[limit]
        tiny.train(run, f"training.{limit}", f"training.checkpoint_every_steps={every}")
        [checkpoint] = Run(run).checkpoints()
        assert read_json(checkpoint / "provenance.json")["end"] == "validation"  # was due, but without a validation
        shutil.rmtree(run / "resume")
        before = contents(run)
        with pytest.raises(NmtkitError, match="no resume state, but 1 checkpoint; to train from scratch, remove"):
            tiny.train(run, f"training.checkpoint_every_steps={every}")
        assert contents(run) == before

    def test_nor_is_a_checkpoint_that_had_others_before_it(self, tiny: TinyProject, run: Path) -> None:
        tiny.train(
            run, "training.max_steps=8", "training.keep_last=1", "training.keep_best=0", "decoding.average_last=1"
        )
        [checkpoint] = Run(run).checkpoints()
        shutil.rmtree(run / "resume")
        path = checkpoint / "provenance.json"
        provenance = read_json(path)
        write_json(path, {**provenance, "step": 3})  # no limit is reached
        with pytest.raises(NmtkitError, match="no resume state, but 1 checkpoint"):
            tiny.train(run, "training.max_steps=8")


class TestSpace:
    def limit(self, monkeypatch: pytest.MonkeyPatch, *answers: int) -> None:
        """Lets the disk have so many bytes free, asked again and again; the last answer holds from then on."""
        left = list(answers)
        for place in ("nmtkit.files.free_bytes", "nmtkit.training.session.free_bytes"):
            monkeypatch.setattr(place, lambda folder: left.pop(0) if len(left) > 1 else left[0])

    def test_a_disk_too_full_for_a_checkpoint_is_told_before_any_training(
        self, tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.limit(monkeypatch, 50_000)
        with pytest.raises(NmtkitError, match=r"saving needs 0\.\d MB, but only 0\.1 MB are free there; make room"):
            tiny.train(run)
        assert contents(run) == contents(tiny.prepared)

    @pytest.mark.parametrize(("free", "is_enough"), [({"run": 10**9, "shm": 50_000}, False), ({"run": 250_000}, True)])
    def test_of_linked_folders_the_disk_they_are_on_counts(
        self, tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch, free: dict[str, int], is_enough: bool
    ) -> None:
        (run / "resume").symlink_to("/dev/shm")
        if run.stat().st_dev == (run / "resume").stat().st_dev:
            pytest.skip("no other file system")
        monkeypatch.setattr("nmtkit.files.free_bytes", lambda folder: free.get(folder.resolve().name, 10**9))
        call_at(monkeypatch, session, "settle_tokens_per_pass", 1, lambda: 1 / 0)
        told = "division by zero" if is_enough else rf"^{run / 'resume'}: saving needs 0\.\d MB, but only 0\.1 MB"
        with pytest.raises((ZeroDivisionError, NmtkitError), match=told):
            tiny.train(run)

    @pytest.mark.parametrize("free", [(10**9, 250_000), (10**9, 10**9, 1000)])  # room for a save only; for nothing
    def test_without_room_no_save_is_lost_and_the_run_goes_on_to_the_same_end(
        self, tiny: TinyProject, uninterrupted: Path, run: Path, monkeypatch: pytest.MonkeyPatch, free: tuple[int, ...]
    ) -> None:
        with monkeypatch.context() as patch:
            self.limit(patch, *free)
            with pytest.raises(NmtkitError, match="make room and run the same command again"):
                tiny.train(run)
        assert [path.name for path in Run(run).resume_states()] == ["step-00000004"]
        assert (run / "checkpoints").exists() == (len(free) == 3)
        assert tiny.train(run).step == STEPS
        assert determined(run) == determined(uninterrupted)


class TestData:
    @pytest.mark.parametrize(
        ("name", "damage"),
        [
            ("train/target.ids.bin", "changed"), ("tokenizer/joint.model", "removed"),
            ("valid.reference.txt", "changed"),
        ],
    )  # fmt: skip
    def test_a_changed_file_of_the_data_is_refused_by_name(
        self, tiny: TinyProject, trained: Path, name: str, damage: str
    ) -> None:
        path = trained / "data" / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink() if damage == "removed" else path.write_bytes(content)
        with pytest.raises(NmtkitError) as caught:
            tiny.train(trained, "training.max_steps=16")
        assert f"{trained / 'data'}: files changed or missing since `prepare` wrote them: {name};" in str(caught.value)

    def test_a_changed_corpus_is_refused_by_name(self, tiny: TinyProject, tmp_path: Path) -> None:
        moved = tmp_path / "moved"
        shutil.copytree(tiny.recipe.parent, moved)
        project = TinyProject(moved / tiny.recipe.name, moved / "run")
        project.train(moved / "run", "training.max_steps=1")
        with (moved / "train.de").open("a") as file:
            file.write("KL\n")
        with pytest.raises(NmtkitError, match=r"data.train: .*train\.de holds another text than when the run was"):
            project.train(moved / "run", "training.max_steps=2")

    @pytest.mark.parametrize(
        ("file", "prepared", "other"),
        [("t.tsv", 'target = "t.tsv"', 'target = "t.tsv", target_column = 3'),
         ("t.zip", 'target = "t.zip:a.de"', 'target = "t.zip:b.de"')],
    )  # fmt: skip
    def test_other_columns_or_members_of_a_corpus_are_refused_by_name(
        self, tiny: TinyProject, tmp_path: Path, file: str, prepared: str, other: str
    ) -> None:
        sides = [(tiny.recipe.parent / f"train.{code}").read_text() for code in ("en", "de")]
        rows = zip(*(side.split() for side in sides), strict=True)
        (tmp_path / "t.tsv").write_text("".join(f"{en}\t{de}\t{de.lower()}\n" for en, de in rows))
        (tmp_path / "t.en").write_text(sides[0])
        with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
            archive.writestr("a.de", sides[1])
            archive.writestr("b.de", sides[1].lower())
        source = "t.tsv" if file == "t.tsv" else "t.en"
        recipe, base = tmp_path / "tiny.toml", f'base = "{tiny.recipe}"\n[data]\n'
        recipe.write_text(f'{base}train = [{{ source = "{source}", {prepared}, name = "mine" }}]\n')
        prepare(load_recipe(str(recipe)), tmp_path / "run", workers=1)
        recipe.write_text(f'{base}train = [{{ source = "{source}", {other}, name = "mine" }}]\n')
        with pytest.raises(NmtkitError, match=r"data.train: mine \(other columns or members\) holds another text than"):
            TinyProject(recipe, tmp_path / "run").train(tmp_path / "run", "training.max_steps=1")

    def test_a_kill_before_the_recipe_is_stored_lets_no_other_recipe_train_on_the_data(
        self, tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            call_at(patch, Run, "store_recipe", 1, lambda: 1 / 0)
            prepare(load_recipe(str(tiny.recipe), ["cleaning.max_tokens=30"]), run, workers=1)
        told = r"changed: cleaning\.max_tokens = \d+ \(was 30\)\); run `nmtkit prepare` again"
        with pytest.raises(NmtkitError, match=told):
            tiny.train(run, "training.max_steps=1")
        assert prepare(load_recipe(str(tiny.recipe)), run, workers=1).is_new
        assert tiny.train(run, "training.max_steps=1").step == 1

    def test_a_preparation_that_fails_leaves_the_old_data_their_recipe(
        self, tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:

        def without_stages() -> dict[str, bytes]:
            return {name: content for name, content in contents(run).items() if not name.startswith("prepare/")}

        before = without_stages()
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            call_at(patch, files, "_replace_folder", 1, lambda: 1 / 0)
            prepare(load_recipe(str(tiny.recipe), ["cleaning.max_tokens=30"]), run, workers=1)
        assert without_stages() == before

    def test_data_settings_edited_in_the_recipe_of_the_run_are_refused(self, tiny: TinyProject, run: Path) -> None:
        path = Run(run).recipe_file
        path.write_text(re.sub(r"(?m)^max_tokens = \d+$", "max_tokens = 8", path.read_text()))
        with pytest.raises(NmtkitError, match=r"changed: cleaning\.max_tokens = 8 \(was \d+\)"):
            TinyProject(path, run).train(run, "training.max_steps=1")

    def test_a_validation_set_in_place_of_held_out_pairs_is_refused(self, tiny: TinyProject, tmp_path: Path) -> None:
        prepare(load_recipe(str(tiny.recipe), ["data.valid=5"]), tmp_path / "run", workers=1)
        with pytest.raises(NmtkitError, match=r"changed: data\.valid = \['valid'\] \(was 5\)"):
            tiny.train(tmp_path / "run", "training.max_steps=1")

    def test_data_whose_settings_cannot_be_read_are_prepared_again_once_removed(
        self, tiny: TinyProject, run: Path
    ) -> None:
        manifest = read_json(Run(run).manifest, dict)
        manifest["settings"]["data"]["unknown"] = 1
        write_json(Run(run).manifest, manifest)
        for command in (lambda: tiny.train(run), lambda: prepare(load_recipe(str(tiny.recipe)), run, workers=1)):
            with pytest.raises(NmtkitError, match="remove RUN/data, and run `nmtkit prepare` again"):
                command()
        shutil.rmtree(Run(run).data)
        assert prepare(load_recipe(str(tiny.recipe)), run, workers=1).is_new

    def test_a_data_setting_without_effect_may_change(self, tiny: TinyProject, run: Path) -> None:
        change = "data.wordpiece_characters=77"
        assert not prepare(load_recipe(str(tiny.recipe), [change]), run, workers=1).is_new
        assert tiny.train(run, "training.max_steps=1", change).step == 1

    def test_a_trained_run_without_its_data_is_prepared_with_its_own_recipe_only(
        self, tiny: TinyProject, trained: Path
    ) -> None:
        shutil.rmtree(trained / "data")
        with pytest.raises(NmtkitError, match=r"does not hold any more \(changed: cleaning\.max_tokens = 30"):
            prepare(load_recipe(str(tiny.recipe), ["cleaning.max_tokens=30"]), trained, workers=1)
        assert prepare(load_recipe(str(tiny.recipe)), trained, workers=1).is_new
        assert tiny.train(trained, "training.max_steps=16").step == 16

    def test_other_ids_of_the_same_text_are_not_trained_on(self, tiny: TinyProject, trained: Path) -> None:
        path = Run(trained).data / "tokenizer" / "tokenizer.json"
        path.write_text(path.read_text().replace('"text"', ' "text"'))  # stands for another version's subwords
        manifest = read_json(Run(trained).manifest, dict)
        manifest["files"]["tokenizer/tokenizer.json"] = sha256_of(path)
        write_json(Run(trained).manifest, manifest)
        with pytest.raises(NmtkitError, match="the data are not those that this run began with; put its old"):
            tiny.train(trained, "training.max_steps=16")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda saved: saved["progress"].update(news=1), "unexpected keyword argument 'news'"),
            (lambda saved: saved.update(recipe={"data": {}}), "4 validation errors for Recipe"),
            (lambda saved: saved.pop("ids_sha256"), "ids_sha256"),
        ],
    )
    def test_a_state_of_another_version_is_neither_passed_over_nor_removed(
        self, tiny: TinyProject, trained: Path, change: Callable[[dict[str, Any]], object], message: str
    ) -> None:
        sign(Run(trained).resume_states()[-1], change)
        before = contents(trained)
        with pytest.raises(NmtkitError, match=r"saved by another version of nmtkit \(.*" + message):
            tiny.train(trained, "training.max_steps=16")
        assert contents(trained) == before


@pytest.mark.parametrize("interval", [(2, 1), (1.2, 0.4)])
def test_a_validation_in_minutes_comes_with_a_checkpoint_where_its_interval_is_a_multiple(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch, interval: tuple[float, float]
) -> None:
    clock = itertools.count(step=11.0 * interval[0])
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    events = zip(("validate", "checkpoint"), interval, strict=True)
    minutes = [f"training.{event}_every_minutes={value}" for event, value in events]
    tiny.train(run, *minutes, "training.keep_last=20")
    validated = [line["step"] for line in metrics_without_time(run) if "valid_nll" in line]
    scores = {
        folder.name: read_json(folder / "provenance.json", dict)["valid_nll"] for folder in Run(run).checkpoints()
    }
    assert len(validated) > 2 and len(scores) > len(validated)
    assert all(scores[f"step-{step:08}"] is not None for step in validated)


def test_the_time_in_which_batches_are_made_counts(
    tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, now = loop.make_batch, 0.0

    def slowly(*arguments: Any) -> Any:
        nonlocal now
        now += 0.2
        return call(*arguments)

    monkeypatch.setattr(loop, "make_batch", slowly)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now))
    tiny.train(run, "training.max_steps=2", "training.report_every_steps=1")
    for line in read_json_lines(run / "metrics.jsonl", dict):
        tokens = line["target_tokens"] / line["step"]  # about equal in all updates
        assert line["target_tokens_per_second"] < 1.5 * tokens / 0.2


class TestOneProcessARun:
    def test_a_second_training_refuses_and_names_the_first(self, tiny: TinyProject, trained: Path) -> None:
        before = contents(trained)
        with Run(trained).locked("train"):
            with pytest.raises(NmtkitError) as caught:
                tiny.train(trained, "training.max_steps=16")
            with pytest.raises(NmtkitError, match="in use by nmtkit train"):
                tiny.verify(trained)
        assert str(caught.value) == (
            f"{trained}: in use by nmtkit train, process {os.getpid()} on {platform.node()}; wait until it has ended, "
            "or use another --run-dir"
        )
        assert contents(trained) == before

    def test_preparing_a_run_in_training_is_refused(self, tiny: TinyProject, run: Path) -> None:
        recipe = load_recipe(str(tiny.recipe), ["data.vocab_size=91"])
        with Run(run).locked("train"), pytest.raises(NmtkitError, match="in use by nmtkit train"):
            prepare(recipe, run, workers=1)
        assert contents(run) == contents(tiny.prepared)

    def test_a_training_holds_the_lock_until_its_end(
        self, tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused = []

        def try_to_lock() -> None:
            with pytest.raises(NmtkitError, match="in use"), Run(run).locked("prepare"):
                refused.append("not refused")
            refused.append("refused")

        call_at(monkeypatch, loop, "learning_rate", 2, try_to_lock)
        tiny.train(run, "training.max_steps=2")
        assert refused == ["refused"]
        assert not (run / LOCK_NAME).exists()

    def test_the_lock_of_a_killed_process_does_not_block(self, tmp_path: Path) -> None:
        program = (
            "import sys, time\nfrom pathlib import Path\nfrom nmtkit.run import Run\n"
            "with Run(Path(sys.argv[1])).locked('train'):\n    print('locked', flush=True)\n    time.sleep(600)\n"
        )
        run = tmp_path / "run"
        with subprocess.Popen([sys.executable, "-c", program, str(run)], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(NmtkitError, match=f"process {holder.pid} on "), Run(run).locked("train"):
                pytest.fail("two processes hold one lock")
            holder.kill()
        assert (run / LOCK_NAME).exists()
        with Run(run).locked("train"):
            assert f"process {os.getpid()} " in (run / LOCK_NAME).read_text()
        assert not (run / LOCK_NAME).exists()

    def test_a_lock_file_that_goes_in_the_very_moment_is_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock, path = fcntl.flock, tmp_path / "run" / LOCK_NAME
        calls: list[int] = []

        def locked_too_late(descriptor: int, operation: int) -> None:
            lock(descriptor, operation)
            calls.append(operation)
            if len(calls) == 1:
                path.unlink()  # by the one that held it, on its way out

        monkeypatch.setattr(fcntl, "flock", locked_too_late)
        with Run(tmp_path / "run").locked("train"):
            assert path.exists()
        assert len(calls) == 2

    def test_a_file_system_without_locks_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
    ) -> None:
        def no_locks(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", no_locks)
        with Run(tmp_path / "run").locked("train"):
            assert any("cannot be locked (No locks available)" in warning for warning in logged.messages)

    def test_a_read_only_run_is_one_line_before_any_training(
        self, tiny: TinyProject, trained: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        call_at(monkeypatch, loop, "learning_rate", 1, lambda: pytest.fail("trained"))
        before = contents(trained)
        mounted = subprocess.run(["mount", "--bind", trained, trained], check=False, capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("no permission to mount")
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", trained], check=True, capture_output=True)
            with pytest.raises(NmtkitError, match=r": cannot be written \(read-only file system\); ") as caught:
                tiny.train(trained, "training.max_steps=16")
        finally:
            subprocess.run(["umount", trained], check=True)
        assert str(caught.value).startswith(f"{trained}: ")
        assert contents(trained) == before

    @pytest.mark.parametrize("name", ["checkpoints", "resume", "metrics.jsonl"])
    def test_a_part_that_may_not_be_written_is_named_before_any_training(
        self, tiny: TinyProject, trained: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        call_at(monkeypatch, loop, "learning_rate", 1, lambda: pytest.fail("trained"))
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: path != trained / name and access(path, mode))
        with pytest.raises(NmtkitError, match="cannot be written") as caught:
            tiny.train(trained, "training.max_steps=16")
        assert str(caught.value).startswith(f"{trained / name}: ")

    @pytest.mark.parametrize(("command", "option"), [("ablate", "--sweep-dir"), ("train", "--run-dir")])
    def test_what_may_not_be_written_is_told_with_the_option_of_the_command(
        self, run: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(NmtkitError, match=f"fix this, or use another {option}$"), Run(run).locked(command):
            pytest.fail("locked")


def test_every_save_damaged_is_an_error_that_says_what_to_do(tiny: TinyProject, trained: Path) -> None:
    for folder in Run(trained).resume_states():
        (folder / "state.json").write_bytes(b"")
    before = contents(trained)
    folders = rf"{trained / 'resume'} and {trained / 'checkpoints'}"
    with pytest.raises(ModelError, match=f"every resume state is damaged; to train from scratch, remove {folders}"):
        tiny.train(trained)
    assert contents(trained) == before
