"""What holds between parts of the training: saves shared by all, memory in validation, clocks over a stop."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.config.recipe import load_recipe
from nmtkit.data.batch import Batch
from nmtkit.distributed.workers import Workers, is_out_of_memory
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import remove_folder
from nmtkit.json_toml import read_json
from nmtkit.run import Run
from nmtkit.training import validation
from nmtkit.training.loss import batch_loss
from nmtkit.training.session import train
from nmtkit.training.state import TrainingState
from nmtkit.training.validation import Validator
from tests.conftest import TinyProject


@pytest.mark.parametrize("other", [(0, None), (14, {"weights.safetensors": "other"})])
def test_processes_that_found_different_saves_do_not_train_together(
    tiny: TinyProject, uninterrupted: Path, tmp_path: Path, other: tuple[int, Any]
) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))

    class Elsewhere(Workers):
        def gather(self, values: list[Any]) -> list[Any]:
            is_place = values and isinstance(values[0], tuple)
            return [*values, other] if is_place else values

    workers = Elsewhere(0, 1, torch.device("cpu"), "float32")
    with pytest.raises(NmtkitError, match="different resume states; RUN must be one folder that all"):
        train(load_recipe(str(tiny.recipe)), run, workers)


def test_processes_that_found_different_data_do_not_train_together(tiny: TinyProject, tmp_path: Path) -> None:
    class Elsewhere(Workers):
        def gather(self, values: list[Any]) -> list[Any]:
            return [*values, "other"] if isinstance(values[0], str) else values

    run, workers = tiny.copy(tmp_path / "run"), Elsewhere(0, 1, torch.device("cpu"), "float32")
    with pytest.raises(DataError, match=r"run/data: the processes found different data; copy this folder to all"):
        train(load_recipe(str(tiny.recipe)), run, workers)


def test_a_validation_that_does_not_fit_into_memory_goes_on_in_halves(
    tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, recipe = tiny.copy(tmp_path / "run"), load_recipe(str(tiny.recipe), ["training.validate_bleu=false"])
    tokenizer, workers = Run(run).tokenizer(), tiny.workers()
    model = TrainingState(*_model_of(tiny, run), workers.device, torch.float64).model
    expected = Validator(recipe, Run(run), tokenizer, workers, None)(model)
    tried: list[int] = []

    def limited(model: Any, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        tried.append(len(batch.source))
        if len(batch.source) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch_loss(model, batch, label_smoothing)

    monkeypatch.setattr(validation, "batch_loss", limited)
    found = Validator(recipe, Run(run), tokenizer, workers, None)(model)
    assert expected is not None and found is not None
    assert found.nll == pytest.approx(expected.nll, rel=1e-12)
    assert max(tried) > 1 and tried.count(1) > 1


def test_samples_are_lines_with_text() -> None:
    lines = ["", "one", " ", "two"]
    validator = Validator.__new__(Validator)
    validator._sources, validator._references = lines, lines
    validator._directions = [(("en", "de"), [0, 1, 2, 3])]
    samples = validator._samples(dict(enumerate(lines)))
    assert [sample["source"] for sample in samples] == ["one", "two"]


@pytest.mark.parametrize(("kind", "step"), [("checkpoint", 4), ("validation", 5)])
def test_the_clock_of_what_was_done_at_a_save_starts_after_a_resume_too(
    tiny: TinyProject, run: Path, kind: str, step: int
) -> None:
    tiny.train(run, f"training.max_steps={step}")
    before = read_json(run / f"resume/step-{step:08d}/state.json")
    assert before["checkpointed"] == (kind == "checkpoint") and before["validated"] == (kind == "validation")
    assert before["progress"][f"last_{kind}_seconds"] < before["progress"]["seconds"]
    tiny.train(run, f"training.max_steps={step + 1}", "training.keep_last=5", "training.validate_every_steps=100")
    after = read_json(run / f"resume/step-{step + 1:08d}/state.json")
    assert after["progress"][f"last_{kind}_seconds"] == after["progress"]["seconds"]


def test_a_limit_lowered_between_two_saves_is_told_by_verify_resume(tiny: TinyProject, run: Path) -> None:
    tiny.train(run, "training.max_steps=8")
    first, last = sorted((run / "resume").iterdir())
    state = TrainingState(*_model_of(tiny, run), torch.device("cpu"))
    saved = read_json(last / "state.json")
    state.load(last, saved)
    extra = {key: value for key, value in saved.items() if key not in ("progress", "versions", "files")}
    remove_folder(last)
    state.progress = replace(state.progress, tokens_per_pass=state.progress.tokens_per_pass // 2)
    state.save(Run(run), extra)
    assert first.is_dir()
    with pytest.raises(NmtkitError, match="memory ran out and micro-batches were halved, which cannot be repeated"):
        tiny.verify(run, "training.max_steps=8")


def _model_of(tiny: TinyProject, run: Path) -> tuple[Any, Any, tuple[int, int]]:
    recipe, tokenizer = load_recipe(str(tiny.recipe)), Run(run).tokenizer()
    return recipe.model, recipe.training, (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
    ],
)
def test_every_kind_of_lack_of_memory_is_recognised(error: RuntimeError) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
