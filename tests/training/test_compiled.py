"""`training.compile`: the layers run compiled in training and only there, and compute the same."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nmtkit
from nmtkit.config.schema import TrainingConfig
from nmtkit.data.batch import make_batch, work_ahead
from nmtkit.data.shards import PairData
from nmtkit.errors import NmtkitError
from nmtkit.training import loop
from nmtkit.training.loop import train_updates
from nmtkit.training.loss import _CLOCK, MAX_VARIANTS, CompiledLoss, batch_loss
from tests.training.updates import ALONE, TINY, random_pairs, run, tiny_state

MODEL = {**TINY, "encoder_layers": 2, "dropout": 0.1}
TRAINING = {"tokens_per_update": 90, "tokens_per_pass": 40, "schedule": "constant", "peak_learning_rate": 0.003}


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_where_torch_cannot_compile_it_is_one_line(data: PairData) -> None:
    def fails(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        raise torch._dynamo.exc.TorchDynamoException("No working C++\n compiler found")

    model = tiny_state(TrainingConfig()).model
    message = r"^training.compile: torch cannot compile here \(No working C\+\+ compiler found\)"
    with pytest.raises(NmtkitError, match=message):
        CompiledLoss(fails, model)(model, make_batch(data, [0]), 0.1)


@pytest.fixture
def data(tmp_path: Path) -> PairData:
    return random_pairs(tmp_path / "train", range(1, 61))


def weights_after(data: PairData, updates: int, **changes: object) -> dict[str, torch.Tensor]:
    training = TrainingConfig.model_validate({**TRAINING, **changes})
    state = tiny_state(training, **MODEL)
    run(state, data, training, updates)
    return {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


@pytest.fixture
def compiled_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules called through what torch.compile returned, which here is the module's own call."""
    calls: list[str] = []

    def fake(call: Callable, **settings: object) -> Callable:
        assert settings == {"dynamic": True}

        def compiled(*arguments: Any) -> Any:
            calls.append(type(call.__self__).__name__)
            return call(*arguments)

        return compiled

    monkeypatch.setattr(torch, "compile", fake)
    return calls


def test_compile_is_heeded(data: PairData, compiled_calls: list[str]) -> None:
    weights_after(data, 1)
    assert compiled_calls == []
    weights_after(data, 1, compile=True)
    assert compiled_calls[:3] == ["SelfAttentionLayer", "SelfAttentionLayer", "DecoderLayer"]
    assert torch._dynamo.config.cache_size_limit == MAX_VARIANTS


def test_only_the_passes_of_training_run_compiled(data: PairData, compiled_calls: list[str]) -> None:
    training = TrainingConfig.model_validate({**TRAINING, "compile": True})
    state = tiny_state(training, **MODEL)
    names = list(state.model.state_dict())
    next(train_updates(state, data, ALONE))
    compiled_calls.clear()
    ids = torch.tensor([[5, 6, 2]])
    state.model(ids, torch.tensor([3]), ids)
    assert compiled_calls == []
    assert list(state.model.state_dict()) == names


def test_what_compiling_cost_is_logged_once(compiled_calls: list[str], logged: pytest.LogCaptureFixture) -> None:
    loss = CompiledLoss(batch_loss, tiny_state(TrainingConfig.model_validate(TRAINING), **MODEL).model)
    loss.report(1)
    _CLOCK.start()
    _CLOCK.end()
    logged.clear()
    with logged.at_level(logging.INFO, logger="nmtkit"):
        loss.report(2)
        loss.report(3)
    (message,) = logged.messages
    assert message.startswith("update 2: torch.compile compiled 1 functions")


def test_batches_made_ahead_train_the_same_weights(data: PairData, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = weights_after(data, 20)
    planned = loop._planned
    ahead: list[object] = []

    def with_thread(*arguments: Any) -> Any:
        ahead.append(arguments)
        return work_ahead(planned(*arguments), loop.UPDATES_AHEAD)

    monkeypatch.setattr(loop, "_planned", with_thread)
    found = weights_after(data, 20)
    assert len(ahead) > 1  # epochs
    assert all(torch.equal(found[name], expected[name]) for name in expected)


WORKER = """
import itertools, json, sys
from pathlib import Path

import torch

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import TrainingConfig
from nmtkit.data.shards import PairData
from nmtkit.training.loss import compile_cost
from nmtkit.training.loop import train_updates
from nmtkit.training.state import TrainingState
from nmtkit.distributed.workers import Workers

folder, model, settings = Path(sys.argv[1]), *map(json.loads, sys.argv[2:4])
results = []
for compiled in (False, True):
    training = TrainingConfig.model_validate({**settings, "compile": compiled})
    workers = Workers(0, 1, torch.device("cpu"), "float32")
    state = TrainingState(ModelConfig.model_validate(model), training, (20, 20), workers.device)
    updates = list(itertools.islice(train_updates(state, PairData(folder), workers), 25))
    results.append([[u.loss, u.gradient_norm] for u in updates])
print(json.dumps([*results, compile_cost()[0]]))
"""


@pytest.mark.slow
def test_compiled_training_equals_eager_training_but_for_rounding(data: PairData) -> None:
    model = {**MODEL, "dropout": 0.0}
    environment = {**os.environ, "PYTHONPATH": str(Path(nmtkit.__file__).parent.parent)}
    command = [sys.executable, "-c", WORKER, str(data.folder), json.dumps(model), json.dumps(TRAINING)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    eager, compiled, pieces = json.loads(done.stdout)
    assert np.array(compiled) == pytest.approx(np.array(eager), rel=1e-3)
    assert 0 < pieces < 40  # far fewer than the shapes of 25 updates
