"""Numbers that stay finite: what is skipped, counted and written down, going back, and the loss scale of fp16."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.config.recipe import load_recipe
from nmtkit.data.shards import PairData
from nmtkit.distributed.workers import ComputedPrecision, Workers
from nmtkit.errors import NmtkitError
from nmtkit.json_toml import read_json, read_json_lines
from nmtkit.run import Run
from nmtkit.training import loop, session
from nmtkit.training import nonfinite as finite
from nmtkit.training.loop import micro_batch_seed, train_updates
from nmtkit.training.loss import batch_loss
from nmtkit.training.nonfinite import (
    MAX_LOSS_SCALE,
    MAX_NONFINITE_IN_A_ROW,
    SCALE_GROWTH_UPDATES,
    count_skipped,
    has_failed,
)
from nmtkit.training.session import TrainingResult
from nmtkit.training.state import Progress, TrainingState, whole_states
from tests.conftest import TinyProject, message_of
from tests.training import updates
from tests.training.updates import ALONE, check_resume, config, equal, random_pairs, run, tiny_state

HALF = Workers(0, 1, torch.device("cpu"), "fp16")
new_state = partial(tiny_state, dropout=0.2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PairData:
    return random_pairs(tmp_path_factory.mktemp("data") / "train", range(101, 141))


@pytest.fixture
def warnings(logged: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    logged.set_level(logging.WARNING)
    return logged


def copy_of(tensors: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{file}.{name}": tensor.clone() for file, group in tensors.items() for name, tensor in group.items()}


class Poison:
    """Makes the loss of chosen updates, or its gradient alone, infinite."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state: TrainingState | None = None
        self.steps: set[tuple[int, int]] = set()  # (rollbacks, update)
        self.what = "loss"
        monkeypatch.setattr(loop, "batch_loss", self)
        monkeypatch.setattr(session, "TrainingState", self.watch)

    def watch(self, *arguments: Any) -> TrainingState:
        self.state = TrainingState(*arguments)
        return self.state

    def __call__(self, model: Any, *others: Any) -> tuple[Tensor, Tensor]:
        loss, nll = batch_loss(model, *others)
        assert self.state is not None
        place = self.state.progress
        if (place.rollbacks, place.step + 1) in self.steps:
            if self.what == "loss":
                return loss * float("nan"), nll
            loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss, nll


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    return Poison(monkeypatch)


# ---- one update


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "gradient_clip_norm": 0.5}])
def test_a_nonfinite_update_changes_nothing_but_the_position(
    data: PairData, poison: Poison, what: str, options: dict[str, object]
) -> None:
    training = config(ema_decay=0.9, **options)
    poison.state = state = new_state(training)
    poison.what, poison.steps = what, {(0, 3)}
    updates = train_updates(state, data, ALONE)
    next(updates), next(updates)
    before, pairs_done = copy_of(state.tensors()), state.progress.pairs_done
    update = next(updates)
    assert update.skipped == "nonfinite"
    assert equal(copy_of(state.tensors()), before)
    assert state.progress.step == update.step == 3
    assert (update.ends_epoch or state.progress.pairs_done > pairs_done) and update.learning_rate > 0
    assert (state.progress.skipped_updates, state.progress.nonfinite_in_a_row) == (1, 1)
    assert update.lines == sorted(update.lines) and set(update.lines) <= set(range(101, 141))
    after = next(updates)
    assert (after.skipped, after.lines, after.step) == ("", [], 4)
    assert not equal(copy_of(state.tensors()), before)
    assert (state.progress.skipped_updates, state.progress.nonfinite_in_a_row) == (1, 0)


def test_a_nonfinite_weight_is_seen_and_the_very_first_update_can_be_skipped(data: PairData, tmp_path: Path) -> None:
    training = config()
    state = new_state(training)
    with torch.no_grad():
        state.model.embeddings["shared"][5] = float("inf")
    before = copy_of({"weights": state.model.state_dict()})
    (update,) = run(state, data, training, 1)
    assert update.skipped == "nonfinite"
    assert equal(copy_of({"weights": state.model.state_dict()}), before)
    assert {float(value["step"]) for value in state.optimizer.state.values()} == {0.0}
    other = new_state(training)
    state.save(Run(tmp_path), {})
    other.load(*whole_states(Run(tmp_path), 1)[0])
    assert other.progress == state.progress


def test_random_numbers_are_others_after_going_back_and_as_ever_before() -> None:
    expected = int(np.random.SeedSequence([1, 2, 3, 4]).generate_state(1, np.uint64)[0])
    assert micro_batch_seed(1, 2, 3, 4) == micro_batch_seed(1, 2, 3, 4, 0) == expected
    assert len({micro_batch_seed(1, 2, 3, 4, rollbacks) for rollbacks in range(3)}) == 3


# ---- fp16


def test_the_loss_scale_falls_at_overflows_and_rises_after_many_updates() -> None:
    place = Progress(nonfinite_in_a_row=2)
    count_skipped(place, "overflow", "fp16")
    assert (place.loss_scale, place.overflows, place.skipped_updates, place.nonfinite_in_a_row) == (2.0**15, 1, 0, 2)
    for _ in range(SCALE_GROWTH_UPDATES - 1):
        count_skipped(place, "", "fp16")
    assert place.loss_scale == 2.0**15
    count_skipped(place, "", "fp16")
    assert (place.loss_scale, place.updates_since_scaling) == (2.0**16, 0)
    for _ in range(SCALE_GROWTH_UPDATES * 20):
        count_skipped(place, "", "fp16")
    assert place.loss_scale == MAX_LOSS_SCALE
    for _ in range(24):
        assert not has_failed(place)
        count_skipped(place, "overflow", "fp16")
    assert not has_failed(place)
    count_skipped(place, "overflow", "fp16")
    assert has_failed(place)


def test_float32_has_no_loss_scale() -> None:
    place = Progress()
    for _ in range(SCALE_GROWTH_UPDATES + 1):
        count_skipped(place, "", "float32")
    assert (place.loss_scale, place.updates_since_scaling, place.overflows) == (2.0**16, 0, 0)


@pytest.mark.parametrize(("precision", "of_loss", "of_norm"), [("fp16", 5e-3, 3e-2), ("bf16", 0.02, 0.1)])
def test_half_precision_comes_to_nearly_the_same(
    data: PairData, precision: ComputedPrecision, of_loss: float, of_norm: float
) -> None:
    training = config()
    half, full = new_state(training, dropout=0.0), new_state(training, dropout=0.0)
    found, expected = run(half, data, training, 8, replace(ALONE, precision=precision)), run(full, data, training, 8)
    assert [update.skipped for update in found] == [""] * 8
    for one, other in zip(found, expected, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=of_loss)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=of_norm)  # unscaled again
        assert one.loss != other.loss
    assert all(parameter.dtype == torch.float32 for parameter in half.model.parameters())


def test_gradients_are_scaled_inside_and_overflow_is_skipped(data: PairData, poison: Poison) -> None:
    training = config()
    poison.state = state = new_state(training)
    state.progress.loss_scale = 2.0**60  # more than float16 can hold
    before = copy_of({"weights": state.model.state_dict()})
    (update,) = run(state, data, training, 1, HALF)
    assert (update.skipped, update.lines) == ("overflow", [])
    assert np.isfinite(update.loss)
    assert equal(copy_of({"weights": state.model.state_dict()}), before)
    assert (state.progress.loss_scale, state.progress.overflows) == (2.0**59, 1)


def test_a_run_in_fp16_goes_on_bit_for_bit(data: PairData, tmp_path: Path, poison: Poison) -> None:
    poison.steps, poison.what = {(0, 2), (0, 5)}, "gradient"

    def poisoned() -> TrainingState:
        poison.state = new_state(config())
        return poison.state

    assert check_resume(poisoned, data, tmp_path, HALF).progress.overflows == 2


# ---- a whole run


SETTINGS = ("training.report_every_steps=1", "training.validate_every_steps=100", "training.keep_last=20")
SETTINGS += ("training.checkpoint_every_steps=3",)


def train(tiny: TinyProject, run: Path, *overrides: str) -> TrainingResult:
    """Begins or goes on with a run of the tiny project, of which the loss can be poisoned."""
    recipe = load_recipe(str(tiny.recipe), [*SETTINGS, *overrides])
    workers = Workers.start("cpu", recipe.training.precision, 1)
    return session.train(recipe, run if run.exists() else tiny.copy(run), workers)


def contents(run: Path) -> dict[str, bytes]:
    """What is determined by recipe and data alone."""
    files = [*run.glob("checkpoints/*/model.safetensors"), *run.glob("resume/*/*.safetensors")]
    return {str(path.relative_to(run)): path.read_bytes() for path in [*files, *run.glob("nonfinite.jsonl")]}


def metrics(run: Path) -> list[tuple[Any, ...]]:
    keys = ("step", "loss", "gradient_norm", "skipped_updates", "target_tokens")
    return [tuple(line[key] for key in keys) for line in read_json_lines(run / "metrics.jsonl")]


STREAK = range(5, 5 + MAX_NONFINITE_IN_A_ROW)


def test_a_skipped_update_is_counted_reported_and_its_lines_written_down(
    tiny: TinyProject, tmp_path: Path, poison: Poison, warnings: pytest.LogCaptureFixture
) -> None:
    poison.steps = {(0, 2), (0, 4)}
    run_dir = tmp_path / "run"
    assert train(tiny, run_dir).step == 14
    lines = read_json_lines(run_dir / "metrics.jsonl")
    assert [line["skipped_updates"] for line in lines] == [0, 1, 1, *[2] * 11]
    assert [line["loss"] is None for line in lines] == [line["step"] in (2, 4) for line in lines]
    entries = read_json_lines(run_dir / "nonfinite.jsonl")
    assert [(entry["step"], entry["loss"], entry["gradient_norm"]) for entry in entries] == [
        (2, "nan", "nan"), (4, "nan", "nan"),
    ]  # fmt: skip
    assert not set(entries[0]["lines"]) & set(entries[1]["lines"]) or entries[1]["epoch"] > entries[0]["epoch"]
    assert all(1 <= line <= 200 for entry in entries for line in entry["lines"])
    told = [message for message in warnings.messages if "not finite" in message]
    assert len(told) == 2
    assert "update 2: the loss is not finite; the update is skipped" in told[0]
    assert str(run_dir / "nonfinite.jsonl") in told[0]


def test_after_several_in_a_row_the_run_goes_back_once_with_other_dropout(
    tiny: TinyProject, tmp_path: Path, poison: Poison, warnings: pytest.LogCaptureFixture
) -> None:
    poison.steps = {(0, step) for step in STREAK}
    run_dir, untouched = tmp_path / "run", tmp_path / "untouched"
    assert train(tiny, run_dir).step == 14
    assert any("rolling back to update 3" in message for message in warnings.messages)
    place = read_json(run_dir / "resume" / "step-00000014" / "state.json")["progress"]
    assert (place["rollbacks"], place["skipped_updates"], place["nonfinite_in_a_row"]) == (1, len(STREAK), 0)
    entries = read_json_lines(run_dir / "nonfinite.jsonl")
    assert [(entry["rollbacks"], entry["step"]) for entry in entries] == [(0, step) for step in STREAK]
    assert [line[0] for line in metrics(run_dir)] == list(range(1, 15))
    assert all(line[1] is not None for line in metrics(run_dir))

    poison.steps = set()
    train(tiny, untouched)
    same = [one[:2] == other[:2] for one, other in zip(metrics(run_dir), metrics(untouched), strict=True)]
    assert same == [True] * 3 + [False] * 11  # the same updates anew, but with other dropout
    assert [line[-1] for line in metrics(run_dir)] == [line[-1] for line in metrics(untouched)]


def test_a_run_that_goes_back_is_the_same_when_it_is_interrupted(
    tiny: TinyProject, tmp_path: Path, poison: Poison
) -> None:
    poison.steps, last = {(0, step) for step in STREAK} | {(1, 12)}, "resume/step-00000014"

    def determined(run: Path, *stops: int) -> list[Any]:
        for stop in (*stops, 14):
            train(tiny, run, f"training.max_steps={stop}")
        progress = read_json(run / last / "state.json")["progress"]
        counters = {key: value for key, value in progress.items() if "seconds" not in key}
        files = {name: content for name, content in contents(run).items() if name[:6] != "resume" or last in name}
        return [metrics(run), files, counters]

    whole = determined(tmp_path / "whole")
    for stops in ((4, 7, 10), (3, 6, 8, 11, 13)):
        assert determined(tmp_path / "-".join(map(str, stops)), *stops) == whole, stops


def test_the_good_save_stays_however_often_a_failing_run_is_stopped(
    tiny: TinyProject, tmp_path: Path, poison: Poison
) -> None:
    poison.steps = {(0, step) for step in STREAK}
    run_dir = tmp_path / "run"
    for stop in (5, 6, 7, 8):
        train(tiny, run_dir, f"training.max_steps={stop}", "training.checkpoint_every_steps=1")
    kept = sorted(path.name for path in (run_dir / "resume").iterdir())
    assert kept == ["step-00000004", "step-00000007", "step-00000008"]
    assert train(tiny, run_dir, "training.checkpoint_every_steps=1").step == 14
    assert sorted(path.name for path in (run_dir / "resume").iterdir()) == ["step-00000013", "step-00000014"]


@pytest.mark.parametrize("metric", ["nll", "bleu"])
def test_a_diverged_model_is_validated_without_a_score_and_the_run_goes_back(
    tiny: TinyProject, tmp_path: Path, poison: Poison, warnings: pytest.LogCaptureFixture, metric: str
) -> None:
    def diverged(model: Any, *others: Any) -> tuple[Tensor, Tensor]:
        assert poison.state is not None
        place = poison.state.progress
        if (place.rollbacks, place.step + 1) == (0, 5):
            with torch.no_grad():
                model.embeddings["shared"].fill_(float("inf"))
        return batch_loss(model, *others)

    settings = ["training.validate_bleu=true", "training.validate_every_steps=2", f"training.best_metric={metric}"]
    run_dir, other = tmp_path / "run", tmp_path / "other"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "batch_loss", diverged)
        assert train(tiny, run_dir, *settings).step == 14
        assert any("rolling back to update 3" in message for message in warnings.messages)
        assert any(
            "this validation computes no BLEU: the model's probabilities are not finite" in each
            for each in warnings.messages
        )
        assert all(line["valid_nll"] > 0 for line in read_json_lines(run_dir / "metrics.jsonl") if "valid_nll" in line)
        result = train(tiny, other, *settings, "training.max_steps=7")  # and such an end is none of a run
    assert result.step == 7
    lines = read_json_lines(other / "metrics.jsonl")
    assert [(line["step"], line["valid_nll"] is None) for line in lines if "valid_nll" in line] == [
        (2, False), (4, False), (6, True), (7, True),
    ]  # fmt: skip
    text = (other / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert read_json(other / "checkpoints/step-00000007/provenance.json")["valid_nll"] is None
    place = read_json(other / "resume/step-00000007/state.json")["progress"]
    assert (place["validations_since_best"] > 0, place["nonfinite_in_a_row"]) == (True, 3)


def test_a_second_failure_ends_training_with_one_line_that_explains(
    tiny: TinyProject, tmp_path: Path, poison: Poison
) -> None:
    poison.steps = {(rollbacks, step) for rollbacks in (0, 1) for step in STREAK}
    message = message_of(lambda: train(tiny, tmp_path / "run"), NmtkitError)
    assert f"update {STREAK[-1]}: {len(STREAK)} updates in a row had numbers that are not finite" in message
    assert str(tmp_path / "run" / "nonfinite.jsonl") in message
    for advice in ("again after a rollback", "peak_learning_rate", "gradient_clip_norm", "training.init can name"):
        assert advice in message
    entries = read_json_lines(tmp_path / "run" / "nonfinite.jsonl")
    assert [entry["rollbacks"] for entry in entries] == [0] * len(STREAK) + [1] * len(STREAK)


def test_a_run_goes_back_again_if_it_has_saved_a_good_state_since(
    tiny: TinyProject, tmp_path: Path, poison: Poison
) -> None:
    poison.steps = {(0, step) for step in STREAK} | {(1, step + 2) for step in STREAK}
    assert train(tiny, tmp_path / "run").step == 14
    place = read_json(tmp_path / "run" / "resume" / "step-00000014" / "state.json")["progress"]
    assert (place["rollbacks"], place["nonfinite_in_a_row"]) == (2, 0)


def test_a_failure_before_the_first_save_ends_training(tiny: TinyProject, tmp_path: Path, poison: Poison) -> None:
    poison.steps = {(0, step) for step in range(1, 6)}
    told = r"there is no resume state to go back to; .* or set training\.gradient_clip_norm$"
    with pytest.raises(NmtkitError, match=told):
        train(tiny, tmp_path / "run", "training.checkpoint_every_steps=100")


def test_fp16_reports_its_scale_and_a_scale_below_1_goes_back_and_then_ends(
    tiny: TinyProject, tmp_path: Path, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison.what, poison.steps = "gradient", {(0, 2)}
    run_dir = tmp_path / "run"
    train(tiny, run_dir, "training.precision=fp16", "training.max_steps=4")
    lines = read_json_lines(run_dir / "metrics.jsonl")
    assert [(line["loss_scale"], line["overflows"], line["skipped_updates"]) for line in lines] == [
        (2.0**16, 0, 0), *[(2.0**15, 1, 0)] * 3,
    ]  # fmt: skip
    assert not (run_dir / "nonfinite.jsonl").exists()
    poison.steps = {(rollbacks, step) for rollbacks in (0, 1) for step in range(5, 9)}
    monkeypatch.setattr(finite, "MIN_LOSS_SCALE", 2.0**14)  # of 1 it takes 16 overflows, slow on a CPU
    with pytest.raises(NmtkitError, match=r"of fp16 fell below 16384 again after a rollback.* = bf16 or float32"):
        train(tiny, run_dir, "training.precision=fp16")


RUN_WORKER = """
import sys
from pathlib import Path
from nmtkit.config.recipe import load_recipe
from nmtkit.training import loop, session
from nmtkit.training import session as train
from nmtkit.training.loss import batch_loss
from nmtkit.training.state import TrainingState
from nmtkit.distributed.workers import Workers

workers = Workers.start("cpu", "fp16", threads=1)
states = []
def watched(*arguments):
    states.append(TrainingState(*arguments))
    return states[-1]
train.TrainingState = watched
def poisoned(*arguments):
    loss, nll = batch_loss(*arguments)
    place = states[-1].progress
    if workers.rank == 1 and place.rollbacks == 0 and 5 <= place.step + 1 < 10:
        return loss * float("nan"), nll
    if workers.rank == 0 and place.step + 1 == 11:
        loss.register_hook(lambda gradient: gradient * float("inf"))
    return loss, nll
loop.batch_loss = poisoned
settings = ["training.max_steps=12", "training.precision=fp16", *sys.argv[3:]]
recipe = load_recipe(sys.argv[1], settings)
result = train.train(recipe, Path(sys.argv[2]), workers)
place = states[-1].progress
sums = [float(parameter.double().sum()) for parameter in states[-1].model.parameters()]
told = repr((result.step, place.rollbacks, place.skipped_updates, place.overflows, place.loss_scale, sums))
(Path(sys.argv[2]) / f"{workers.rank}.txt").write_text(told)
workers.close()
"""


def test_two_processes_skip_updates_alike_and_go_back_together(tiny: TinyProject, tmp_path: Path) -> None:
    run_dir = tiny.copy(tmp_path / "run")
    recipe = load_recipe(str(tiny.recipe))
    updates.run_two_processes(RUN_WORKER, tmp_path, str(tiny.recipe), str(run_dir), *SETTINGS)
    told = (run_dir / "0.txt").read_text()
    assert told == (run_dir / "1.txt").read_text()
    assert told.startswith("(12, 1, 5, 1, 32768.0, [")
    assert [line["step"] for line in read_json_lines(run_dir / "metrics.jsonl")] == list(range(1, 13))
    pairs = PairData(run_dir / "data" / "train")
    planned = [update for epoch in range(5) for update in updates.plan_of(pairs, recipe.training, epoch).updates]
    first = read_json_lines(run_dir / "nonfinite.jsonl")[0]
    assert first["lines"] == sorted(pairs.lines[planned[first["step"] - 1]].tolist())  # of both processes
