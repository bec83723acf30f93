"""Decisions from episodes to play: the model, its data, training and outcome."""

import json
import math
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import pairs_of_epoch
from nmtkit.data.episodes import EpisodeBatch, EpisodeData, Facts, episode_batch
from nmtkit.data.prepare import prepare
from nmtkit.decoding import play as playing
from nmtkit.decoding.play import (
    Played,
    PlayRequest,
    best_return_probabilities,
    outcome_of,
    play,
    play_at_random,
    wilson,
)
from nmtkit.errors import DataError, NmtkitError, RecipeError
from nmtkit.json_toml import read_json, write_json
from nmtkit.model.decoder_only import build_model, count_parameters
from nmtkit.model.flops import forward_flops
from nmtkit.model.trajectory import DecisionTransformer, tokens_of_step
from nmtkit.model_folder import LoadedModel, load_model, save_model
from nmtkit.reports.run_facts import read_run
from nmtkit.reports.run_page import report_page
from nmtkit.run import Run, find_model
from nmtkit.tasks.environments import Discrete
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.loss import action_loss
from tests.conftest import finished_run, prepared, run_command, train_run
from tests.decoding.models import WithoutFloat64

pytestmark = pytest.mark.usefixtures("restored_process")

REPEAT = "tests.tasks.test_trajectories:Repeat"
RECIPE = (
    f'[data]\ntask = "trajectories"\nenvironment = "{REPEAT}"\nepisodes = 500\nvalid = 5\n'
    'sequence_length = 4\n[model]\narchitecture = "decoder"\ndecoder_layers = 1\nd_model = 16\nd_ff = 32\n'
    'num_heads = 2\nnorm = "pre"\npositions = "learned"\nmax_positions = 6\ndropout = 0.0\n'
    '[training]\nsequences_per_update = 16\nschedule = "constant"\npeak_learning_rate = 0.02\nwarmup_steps = 5\n'
    "label_smoothing = 0.0\nmax_steps = 150\nvalidate_bleu = false\nvalidate_every_steps = 50\n"
    "checkpoint_every_steps = 50\nkeep_last = 1\n[decoding]\naverage_last = 1\n"
)
CONFIG: dict[str, Any] = {
    "architecture": "decoder", "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2, "norm": "pre",
    "positions": "learned", "max_positions": 12, "dropout": 0.0, "head": "discrete-action",
}  # fmt: skip


class Repeat:
    """Four steps; an action that names the state earns 1."""

    def __init__(self) -> None:
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        self._random = np.random.default_rng(seed)
        self._state, self._steps = int(self._random.integers(3)), 0
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._state)
        self._state, self._steps = int(self._random.integers(3)), self._steps + 1
        return self._state, reward, self._steps == 4, False, {}


class Long(Repeat):
    """An episode without an end."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        state, reward, *_ = super().step(action)
        return state, reward, False, False, {}


class Hand(Repeat):
    """States are tuples, as those of gymnasium's Blackjack."""

    def reset(self, *, seed: int | None = None) -> Any:
        state, facts = super().reset(seed=seed)
        return (state, 1), facts

    def step(self, action: int) -> Any:
        state, *others = super().step(action)
        return (state, 0), *others


class First(Repeat):
    """The first action decides whether the last step earns 1."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        is_good = action == self._state if self._steps == 0 else self._is_good
        state, _, is_over, *others = super().step(action)
        self._is_good = is_good
        return state, float(is_over and is_good), is_over, *others


class Steering:
    """Vectors: the action should be the negative of the state."""

    class Space:
        def seed(self, seed: int) -> None:
            self._random = np.random.default_rng(seed)

        def sample(self) -> Any:
            return self._random.uniform(-2, 2, 2).astype(np.float32)

    def __init__(self) -> None:
        self.action_space = self.Space()

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._random = np.random.default_rng(seed)
        self._state, self._steps = self._random.uniform(-2, 2, 2), 0
        return self._state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (2,)
        reward = -float(np.abs(self._state + action).mean())
        self._state, self._steps = self._random.uniform(-2, 2, 2), self._steps + 1
        return self._state, reward, self._steps == 3, False, {}


class Bare:
    """Repeat with nothing but what a model needs to play."""

    def __init__(self) -> None:
        environment = Repeat()
        self.reset, self.step = environment.reset, environment.step


def write_project(folder: Path, *changes: tuple[str, str], **episodes: list[dict[str, Any]]) -> str:
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    for name, rows in episodes.items():
        lines = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return str(folder / "mine.toml")


def from_files(valid: bool = False) -> tuple[tuple[str, str], ...]:
    other = 'valid = [{ text = "valid.jsonl" }]' if valid else "episodes = 1"
    return (
        ('environment = "tests.tasks.test_trajectories:Repeat"', 'train = [{ text = "train.jsonl" }]'),
        ("episodes = 500\nvalid = 5", other),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("episodes")
    return finished_run(write_project(folder), folder / "run")


def data_of(recipe: Recipe, run: Run) -> EpisodeData:
    return EpisodeData(run.data / "train", recipe, run.tokenizer())


def batch_of(data: EpisodeData, episodes: int) -> EpisodeBatch:
    batch = make_batch(data, np.arange(episodes))
    assert isinstance(batch, EpisodeBatch)
    return batch


def mean_total(found: Iterable[Played]) -> float:
    return float(np.mean([each.total for each in found]))


def model_trained(path: str, *overrides: str) -> tuple[LoadedModel, Run]:
    """The last checkpoint of a training, and its run beside the recipe."""
    run = Run(Path(path).with_name("run"))
    train_run(path, run.folder, *overrides)
    return load_model(run.checkpoints()[-1]), run


def with_facts(run: Run, **changes: Any) -> Tokenizer:
    tokenizer = run.tokenizer()
    tokenizer.settings["facts"] |= changes
    return tokenizer


def random_batch(vector: bool = False, values: int = 0, sizes: tuple[int, ...] = (5, 3, 1)) -> EpisodeBatch:
    random, rows, steps = np.random.default_rng(1), len(sizes), max(sizes)
    facts = Facts(None, 0, 12, "episode", None, 2.0, 1.0, 0.0, [0.0, 1.0, 2.0][:values], [], [], 1.0)
    if vector:
        parts = [random.standard_normal((rows, steps, width)).astype(np.float32) for width in (3, 2)]
        parts[1] = np.tanh(parts[1])
    else:
        parts = [random.integers(4, 4 + count, (rows, steps)) for count in (5, 3)]
    returns, timesteps = random.integers(0, 3, (rows, steps)).astype(float), np.tile(np.arange(steps), (rows, 1))
    return episode_batch(facts, *parts, returns, timesteps, np.array(sizes))


def model_of(vector: bool = False, **changes: Any) -> DecisionTransformer:
    torch.manual_seed(1)
    own = {"head": "vector-action", "vector_states": True} if vector else {}
    model = build_model(ModelConfig(**{**CONFIG, **own, **changes}), 7 if vector else 9, 6 if vector else 7)
    assert isinstance(model, DecisionTransformer)
    return model.eval()


KINDS: list[dict[str, Any]] = [
    {}, {"vector": True}, {"returns": False}, {"return_values": 3}, {"vector": True, "return_values": 3},
    {"returns": False, "return_values": 3},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_operations_are_counted_exactly(kind: dict[str, Any]) -> None:
    model = model_of(**kind)
    sizes = (7, 6) if kind.get("vector") else (9, 7)
    assert sum(weight.numel() for weight in model.parameters()) == count_parameters(model.config, *sizes)
    batch = random_batch(bool(kind.get("vector")), kind.get("return_values", 0), sizes=(4, 4))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        action_loss(model, batch, 0.0)
    steps = np.array([4, 4])
    lengths = (len(tokens_of_step(model.config)) - 1) * steps + 1, steps
    counted = forward_flops(
        model.config, 7, *lengths, source_outputs=True, head_size=model.config.linear_columns(*sizes)
    )
    assert counter.get_total_flops() == counted.flops


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_sees_only_what_was_before_its_action(kind: dict[str, Any]) -> None:
    model, batch = model_of(**kind), random_batch(bool(kind.get("vector")), kind.get("return_values", 0), sizes=(5, 5))
    parts = [*batch.inputs, batch.timesteps]
    before, values = model.predict(*parts)
    for step in range(5):
        for index, reach in ((0, 0 if model.config.returns else 5), (1, 0), (2, 1)):
            changed = [part.clone() for part in parts]
            part = changed[index]
            if part.is_floating_point():
                part[:, step] += 1
            else:
                part[:, step] = (part[:, step] + 1) % 3 if index == 0 else 4 + (part[:, step] - 3) % 3
            after, values_after = model.predict(*changed)
            # An action is not seen at its own step; return and state are.
            first = step + reach
            assert torch.equal(before[:, :first], after[:, :first])
            if first < 5:
                assert not torch.allclose(before[:, first], after[:, first])
            if values is not None and values_after is not None:
                # A return is predicted before it is read.
                unseen = first + (index == 0)
                assert torch.equal(values[:, :unseen], values_after[:, :unseen])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_each_row_alone(kind: dict[str, Any]) -> None:
    vector, values = bool(kind.get("vector")), kind.get("return_values", 0)
    model, sizes = model_of(**kind).double(), (5, 3, 1)
    batch = random_batch(vector, values, sizes)
    tensors = {name: part for name, part in vars(batch).items() if isinstance(part, torch.Tensor)}
    floats = {name: part.double() for name, part in tensors.items() if part.is_floating_point()}
    batch = replace(batch, **floats)
    together = [found.detach() for found in action_loss(model, batch, 0.1)]
    alone = torch.zeros(2, dtype=torch.float64)
    for row, size in enumerate(sizes):
        cut = {
            name: part[row : row + 1] if part.dim() == 1 else part[row : row + 1, :size]
            for name, part in {**tensors, **floats}.items()
            if name != "target_rows"
        }
        alone += torch.stack(action_loss(model, replace(batch, **cut, target_rows=None), 0.1)).detach()
    assert torch.stack(together).tolist() == pytest.approx(alone.tolist(), abs=1e-6)
    assert len(alone.unique()) == (1 if vector and not values else 2)  # of an action that is a vector both are the same


def test_predictions_equal_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.DecisionTransformerConfig(
        state_dim=3, act_dim=2, hidden_size=16, max_ep_len=12, n_layer=2, n_head=2, n_inner=24,
        activation_function="relu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(2)
    theirs = transformers.DecisionTransformerModel(config).eval()
    weights = dict(theirs.state_dict())
    for weight in weights.values():  # biases and norms, which begin at 0 and 1, too
        if weight.is_floating_point():
            weight.add_(0.1 * torch.randn(weight.shape))
    weights["encoder.wpe.weight"][0] = 0  # a constant that their class adds to every position
    ours = model_of(vector=True)
    mapped = {"positions.target": weights["embed_timestep.weight"]}
    pairs = {"embed_return": "inputs.returns", "embed_state": "inputs.states", "embed_action": "inputs.actions",
             "embed_ln": "input_norm", "encoder.ln_f": "decoder_norm", "predict_action.0": "head"}  # fmt: skip
    for layer in range(2):
        names = {"ln_1": "residuals.0.norm", "ln_2": "residuals.1.norm", "attn.c_proj": "self_attention.output",
                 "mlp.c_fc": "feed_forward.inner", "mlp.c_proj": "feed_forward.outer"}  # fmt: skip
        pairs |= {f"encoder.h.{layer}.{their}": f"decoder.{layer}.{our}" for their, our in names.items()}
        for kind in ("weight", "bias"):
            joined = weights[f"encoder.h.{layer}.attn.c_attn.{kind}"].t().chunk(3)
            for part, our in zip(joined, ("query", "key", "value"), strict=True):
                mapped[f"decoder.{layer}.self_attention.{our}.{kind}"] = part
    for their, our in pairs.items():
        for kind in ("weight", "bias"):
            tensor = weights[f"{their}.{kind}"]
            mapped[f"{our}.{kind}"] = tensor.t() if "c_" in their and kind == "weight" else tensor
    ours.load_state_dict(mapped)
    batch = random_batch(vector=True, sizes=(6, 6))
    with torch.no_grad():
        found, _ = ours.predict(*batch.inputs, batch.timesteps)
        expected = theirs(
            states=batch.source, actions=batch.target_in, rewards=None, returns_to_go=batch.returns[:, :, None],
            timesteps=batch.timesteps, attention_mask=torch.ones(2, 6, dtype=torch.long),
        ).action_preds  # fmt: skip
    assert found.abs().max() > 0.05
    assert (found - expected).abs().max() < 1e-5


def test_sequences_begin_at_every_step_where_episodes_are_longer(tmp_path: Path) -> None:
    rows = [{"states": [0, 1, 2], "actions": [0, 1, 0], "rewards": [1, 0, 2.5]},
            {"states": [2], "actions": [1], "rewards": [-1]}]  # fmt: skip
    for window, lengths in ((2, [2, 2, 1, 1]), (3, [3, 1])):
        changes = (*from_files(), ("sequence_length = 4", f"sequence_length = {window}"))
        path = write_project(tmp_path, *changes, train=rows)
        recipe, run = prepared(path, tmp_path / f"run{window}", "data.min_return=-0.5")
        assert not prepare(recipe, run.folder).is_new
        data = data_of(recipe, run)
        assert data.target_lengths.tolist() == lengths
        assert (data.source_lengths - 1 + data.target_lengths).tolist() == [3 * length for length in lengths]
        batch = batch_of(data, len(lengths))
        assert batch.num_targets == sum(lengths)
        facts = Facts.of(run.tokenizer())
        assert (facts.scale, facts.best, facts.worst) == (3.5, 3.5, -1.0)
        assert (batch.returns[0] * 3.5).tolist() == pytest.approx([3.5, 2.5, 2.5][: lengths[0]])
        assert float(batch.returns[-1, 0]) == pytest.approx(-0.5 / 3.5)  # not below min_return
        if window == 2:
            relative = batch_of(EpisodeData(run.data / "train", recipe, with_facts(run, timesteps="window")), 4)
            assert relative.timesteps.tolist() == [[0, 1], [0, 1], [0, 0], [0, 0]]
            assert batch.timesteps.tolist()[:2] == [[0, 1], [1, 2]]
            assert data.lines.tolist() == [1, 1, 1, 2]


def test_the_best_episodes_are_those_above_the_worst(tmp_path: Path) -> None:
    rows = [{"states": [0], "actions": [number % 2], "rewards": [int(number > 6)]} for number in range(10)]
    recipe = load_recipe(write_project(tmp_path, *from_files(), train=rows), ["data.best_episodes=0.5"])
    assert prepare(recipe, tmp_path / "run").manifest["pairs"] == {"train": 3}


def test_data_with_other_values_of_returns_than_the_recipe_are_refused(tmp_path: Path) -> None:
    rows = [{"states": [0], "actions": [0], "rewards": [number]} for number in range(3)]
    path = write_project(tmp_path, *from_files(), train=rows)
    for before, after in ((0, 2), (3, 0), (3, 2)):
        of_data, of_training = (f"model.return_values={number}" for number in (before, after))
        _, run = prepared(path, tmp_path / "run", "data.sequence_length=1", of_data)
        with pytest.raises(DataError, match=r"prepared with another model\.return_values .* prepare the run again"):
            data_of(load_recipe(path, ["data.sequence_length=1", of_training]), run)


def test_cost_does_not_take_episodes_that_were_cut_to_another_length(tmp_path: Path) -> None:
    rows = [{"states": [0] * 3, "actions": [0] * 3, "rewards": [1] * 3}]
    path = write_project(tmp_path, *from_files(), train=rows)
    _, run = prepared(path, tmp_path / "run")
    options = ["--run-dir", run.folder, "--device-type", "cpu", "--rate", "1"]
    assert run_command("cost", path, *options).code == 0
    changed = run_command("cost", path, *options, "--set", "data.sequence_length=2")
    assert (changed.code, "the lengths of its episodes are not known" in changed.err) == (1, True)


def test_the_best_return_is_that_of_the_training_episodes(tmp_path: Path) -> None:
    rows = [{"states": [0], "actions": [0], "rewards": [number]} for number in range(5)]
    best = []
    for seed in range(4):
        path = write_project(tmp_path, *from_files(), train=rows)
        recipe, run = prepared(path, tmp_path / "run", "data.valid=2", f"data.episodes_seed={seed}")
        facts = Facts.of(run.tokenizer())
        returns = (batch_of(data_of(recipe, run), 3).returns[:, 0] * facts.scale).round().tolist()
        assert (facts.best, facts.worst) == (max(returns), min(returns))
        best.append(facts.best)
    assert min(best) < 4  # held out with one of the seeds


def test_validation_may_have_actions_that_only_worse_episodes_have(tmp_path: Path) -> None:
    rows = [{"states": [0], "actions": [number % 2], "rewards": [number % 2]} for number in range(20)]
    path = write_project(tmp_path, *from_files(), train=rows)
    for valid, actions in ([], ["1"]), (["data.valid=5"], ["0", "1"]):
        _, run = prepared(path, tmp_path / "run", "data.best_episodes=0.5", *valid)
        assert run.tokenizer().entries("target")[4:] == actions


def test_it_learns_to_earn_what_it_is_asked_for(trained: Path) -> None:
    loaded = load_model(find_model(trained))
    request = PlayRequest(episodes=80, environment=REPEAT, is_greedy=True)
    best, worst = (
        mean_total(play(loaded, PlayRequest(episodes=80, environment=REPEAT, target=target))) for target in (4.0, 0.0)
    )
    walks = mean_total(play_at_random(Facts.of(loaded.tokenizer), request))
    assert worst < 0.6 < walks < 1.7 < 2.5 < best
    scores = json.loads((trained / "scores.json").read_text(encoding="utf-8"))["episodes"]
    assert scores["mean-return"]["score"] > 2.5
    assert {"success-rate", "mean-return"} == set(scores)
    signature = "environment:tests.tasks.test_trajectories:Repeat|episodes:1000|target:best=4|actions:sampled|seed:1|"
    assert scores["success-rate"]["signature"].startswith(signature)
    assert scores["success-rate"]["signature"].endswith("|success:return>=4")
    assert "success" not in scores["mean-return"]["signature"]
    page = report_page([read_run(trained)])
    assert "Steps to success" in page
    assert "never" in page


def test_play_does_not_depend_on_how_many_play_at_a_time(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, found, request = load_model(find_model(trained)), [], PlayRequest(episodes=7, environment=REPEAT)
    for at_once in (7, 2, 250):
        monkeypatch.setattr(playing, "AT_ONCE", at_once)
        found.append([(each.states, each.actions, each.rewards) for each in play(loaded, request)])
    assert found[0] == found[1] == found[2]
    other = play(loaded, replace(request, seed=2))
    assert [each.states for each in other] != [states for states, _, _ in found[0]]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00\x04\x00{'\\n", b"\x93NUMPY\x01\x00\x04\x00 {[}"])
def test_damaged_arrays_of_prepared_episodes_are_named(trained: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "states.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"states\.npy: missing or damaged .*; prepare the run again"):
        EpisodeData(tmp_path, load_recipe(str(Run(trained).recipe_file)), Run(trained).tokenizer())


def test_vectors_are_normalised_and_played(tmp_path: Path) -> None:
    changes = (("Repeat", "Steering"), ("valid = 5", 'states = "vector"\nactions = "vector"'))
    loaded, run = model_trained(write_project(tmp_path, *changes), "training.max_steps=40", "data.episodes=200")
    states = np.load(run.data / "train" / "states.npy")
    assert np.abs(states.mean(0)).max() < 1e-5
    assert states.std(0).tolist() == pytest.approx([1, 1], abs=1e-4)
    facts = Facts.of(run.tokenizer())
    assert 1.9 < facts.action_scale <= 2
    assert np.abs(np.load(run.data / "train" / "actions.npy")).max() <= 1
    request = PlayRequest(episodes=40, environment=run.recipe().data.environment)
    assert mean_total(play(loaded, request)) > mean_total(play_at_random(facts, request)) + 0.3


def test_predicted_returns_are_sampled_with_a_prior(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    settings = ["model.return_values=5", "data.sequence_length=1", "data.timesteps=window", "training.max_steps=400"]
    loaded, _ = model_trained(write_project(tmp_path), *settings, "training.peak_learning_rate=0.01")
    totals = {}
    for prior in (0.0, 10.0):
        found = play(loaded, PlayRequest(episodes=60, environment=REPEAT, prior=prior))
        totals[prior] = mean_total(found)
        assert all(np.allclose(np.sum(each.values, 1), 1) and len(each.values) == 4 for each in found)
    # Without a prior the returns are those of random actions, 4 / 3 on average.
    assert totals[0.0] < 1.6 < totals[10.0]
    predict = DecisionTransformer.predict  # and on a device without float64
    on_device = lambda *inputs: [values.as_subclass(WithoutFloat64) for values in predict(*inputs)]  # noqa: E731
    monkeypatch.setattr(DecisionTransformer, "predict", on_device)
    again = play(loaded, PlayRequest(episodes=60, environment=REPEAT, prior=10.0))
    assert [each.total for each in again] == [each.total for each in found]
    for target in (4.0, 7.5):
        play(loaded, PlayRequest(episodes=1, environment=REPEAT, target=target))
    assert logged.text.count("return-to-go") == 1
    assert "7.5 is no return-to-go of the training episodes; the model aims at the nearest one, 4\n" in logged.text


@pytest.mark.parametrize(
    ("prior", "weights"),
    [
        (0.0, [0.2, 0.3, 0.4, 0.0999, 0]),
        (1.0, [0, 0.3 * 0.25, 0.4 * 0.5, 0.0999 * 0.75, 0]),
        (20.0, [0, 0.3 * 0.25**20, 0.4 * 0.5**20, 0.0999 * 0.75**20, 0]),
        (8000.0, [0, 0, 0, 1, 0]),
    ],
)
def test_a_prior_whose_powers_vanish_leaves_improbable_returns_out(
    monkeypatch: pytest.MonkeyPatch, prior: float, weights: list[float]
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(playing._Player, "_sampled", lambda self, given, _: found.append(given) or [0])
    player: Any = playing._Player.__new__(playing._Player)
    player._request, player._is_predicted = PlayRequest(prior=prior), True
    player._facts = Facts(None, 0, 12, "episode", None, 2.0, 1.0, 0.0, [0.0, 1.0, 2.0, 3.0, 4.0], [], [], 1.0)
    values = torch.tensor([[[0.2, 0.3, 0.4, 0.0999, 0.0001]]]).log()
    player._config = SimpleNamespace(head="discrete-action", vector_states=False, max_positions=12)
    player._window, player._action_names = 1, ["a"]
    player._model = SimpleNamespace(output_embedding=torch.zeros(1), predict=lambda *_: (torch.zeros(1, 1, 1), values))
    player._choose([Played(states=[4])], [[1.0]], [np.random.default_rng(1)])
    assert found[0][0] / found[0][0].sum() == pytest.approx(np.array(weights) / sum(weights), rel=1e-5)


def test_facts_of_other_environments_do_not_stop_play() -> None:
    episode = Played(rewards=[1.0])
    episode.judge({"is_success": np.array([True, False]), "shortest": "none"}, 1.0)
    assert (episode.is_success, episode.shortest, episode.is_shortest) == (False, None, None)
    episode.judge({"shortest": np.int64(1)}, 1.0)
    assert (episode.is_success, episode.shortest, episode.is_shortest) == (True, 1.0, True)


def test_a_tuple_of_numbers_is_a_vector(tmp_path: Path) -> None:
    path = write_project(tmp_path, ("Repeat", "Hand"))
    _, run = prepared(path, tmp_path / "run", "data.states=vector", "data.episodes=20")
    assert np.load(run.data / "train" / "states.npy").shape[1] == 2


def test_intervals() -> None:
    assert wilson(10, 100) == pytest.approx([0.05523, 0.17437], abs=1e-5)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10) == pytest.approx([0.72247, 1.0], abs=1e-5)
    episodes = [Played(rewards=[0.0, 1.0], is_success=True, is_shortest=True, shortest=2.0),
                Played(rewards=[0.0, 0.0, 1.0], is_success=True, is_shortest=False, shortest=2.0),
                Played(rewards=[0.0], shortest=1.0), Played(rewards=[0.0], shortest=1.0)]  # fmt: skip
    found = outcome_of(episodes)
    assert (found["success_rate"], found["shortest_rate"], found["mean_length"]) == (0.5, 0.25, 2.5)
    assert found["lengths"] == {"2": 1, "3": 1}
    assert found["shortest_lengths"] == {"1": 2, "2": 2}
    assert found["mean_return_interval"] == pytest.approx(
        [0.5 - 1.959964 * math.sqrt(1 / 3) / 2, 0.5 + 1.959964 * math.sqrt(1 / 3) / 2]
    )
    assert outcome_of(episodes[:1])["mean_return_interval"] is None


def test_the_command_plays_several_models_and_random_actions(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    for target in ("1e39", "nan", "-inf", "much"):
        outcome = run_command("play", trained, "--environment", REPEAT, "--target-return", target)
        assert outcome.code == 2 and "give best, predicted or a number (at most 1e30)" in " ".join(outcome.err.split())
    refused = run_command("play", trained, "--environment", REPEAT, "--target-return", "-1e30")
    assert refused.code == 1 and "--target-return -1e+30: too far from the returns in training" in refused.err
    refused = run_command("play", trained, "--environment", REPEAT, "--prior", 3)
    assert refused.code == 1 and "aims at no predicted return; leave out --prior" in refused.err
    options = ["--environment", REPEAT, "--episodes", 20, "--random", "--json", output, "--quiet"]
    outcome = run_command("play", trained, *options)
    assert outcome.code == 0 and "success rate" in outcome.out and "random actions" in outcome.out, outcome.err
    found = json.loads(output.read_text(encoding="utf-8"))
    assert [entry["episodes"] for entry in found["models"].values()] == [20, 20]
    assert [len(entry["rewards"]) for entry in found["models"].values()] == [20, 20]
    assert found["success_rate"] == found["models"][str(trained)]["success_rate"]
    loaded, other = load_model(find_model(trained)), tmp_path / "other"
    tokenizer = with_facts(Run(trained), environment_seed=7)
    save_model(other, loaded.model.state_dict(), loaded.model.config, tokenizer, loaded.decoding, {}, loaded.lengths)
    outcome = run_command("play", trained, other, *options)
    assert outcome.code == 0, outcome.err
    models = {str(trained), str(other)}
    names = {*models, *(f"random actions where {name} played" for name in models)}
    assert json.loads(output.read_text(encoding="utf-8"))["models"].keys() == names
    assert "what is a success" not in outcome.out + outcome.err
    warned = run_command("play", trained, other, "--environment", REPEAT, "--episodes", "5")
    places = f"{trained} in {REPEAT} of seed 1, {other} in {REPEAT} of seed 7"
    assert f"play in different environments, so do not compare their figures: {places}\n" in warned.err
    assert "different environments" not in run_command("play", trained, "--environment", REPEAT, "--episodes", "5").err
    harder = with_facts(Run(trained), best=5.0)
    save_model(other, loaded.model.state_dict(), loaded.model.config, harder, loaded.decoding, {}, loaded.lengths)
    warned = run_command("play", trained, other, "--environment", REPEAT, "--episodes", "5")
    assert f"training episodes ({trained}: 4, {other}: 5): compare the mean returns" in warned.err
    assert "learned in" not in warned.err, "no other environment is stated"
    elsewhere = with_facts(Run(trained), environment="graph")
    save_model(other, loaded.model.state_dict(), loaded.model.config, elsewhere, loaded.decoding, {}, loaded.lengths)
    warned = run_command("play", other, "--environment", REPEAT, "--episodes", "5")
    assert f"{other}: learned in graph, and plays in {REPEAT}\n" in warned.err
    single = run_command("play", trained, "--environment", REPEAT, "--episodes", 1)
    assert single.code == 0 and "±" not in single.out
    predicted = tmp_path / "cost.json"
    assert run_command("cost", trained, "--device-type", "h200", "--json", predicted, "--quiet").code == 0
    expected_cost, trained_cost = read_json(predicted), read_json(trained / "cost.json")
    keys = ("updates", "target_tokens", "unit", "flops")
    assert [expected_cost[key] for key in keys] == [trained_cost[key] for key in keys]
    refused = run_command("score", trained, "--confidence", 9)
    assert refused.code == 1 and "plays episodes; leave out --confidence and --comet" in refused.err
    for command, expected in (("report", "report.html"), ("score", "scores.json")):
        outcome = run_command(command, trained, "--quiet")
        assert outcome.code == 0 and (trained / expected).is_file(), outcome.err
    assert "A model of decisions" in (trained / "card.md").read_text(encoding="utf-8")


GOOD = {"states": [0, 1], "actions": [0, 1], "rewards": [0, 1]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, {**GOOD, "rewards": [1]}], r"line 2: states, actions and rewards must be lists .* not 2, 2 and 1"),
        ([{"states": [], "actions": [], "rewards": []}], "line 1: .*of at least 1"),
        ([GOOD, "nonsense\n"], "line 2: not an object of JSON"),
        ([GOOD, " \n"], "line 2: is empty; remove it"),
        ([GOOD, {"states": [1]}], "line 2: an episode needs the lists"),
        ([{**GOOD, "rewards": [0, float("nan")]}], "line 1: reward 2 is nan, not a finite number"),
        ([{**GOOD, "rewards": [0, "x"]}], "reward 2 is 'x'"),
        ([{**GOOD, "states": [0, [1, 2]]}], r"line 1: states has \[1, 2\], not a whole number or a name; .*vector"),
        ([{**GOOD, "actions": [0, 0.5]}], "line 1: actions has 0.5"),
        (
            [GOOD, {key: value * 9 for key, value in GOOD.items()}],
            r"train\.jsonl, line 2: 18 steps, but model\.max_positions = 6; raise it, or",
        ),
        ([], "data.train: there is no episode in .*train.jsonl"),
    ],
)
def test_episodes_that_cannot_be_used(tmp_path: Path, rows: list[Any], message: str) -> None:
    recipe = load_recipe(write_project(tmp_path, *from_files(), train=rows))
    with pytest.raises(DataError, match=message):
        prepare(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()


def test_the_environment_of_episodes_in_files_is_made_before_the_training(tmp_path: Path) -> None:
    recipe = write_project(tmp_path, *from_files(), train=[GOOD])
    with pytest.raises(DataError, match="ModuleNotFoundError"):
        prepare(load_recipe(recipe, ["data.environment=no_such_module:make"]), tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()


def test_an_action_that_training_lacks_and_a_state_that_it_lacks(tmp_path: Path) -> None:
    valid = [GOOD, {**GOOD, "states": [0, 99]}]
    recipe = load_recipe(write_project(tmp_path, *from_files(valid=True), train=[GOOD], valid=valid))
    assert prepare(recipe, tmp_path / "run").manifest["pairs"] == {"train": 1, "valid": 2}
    recipe = load_recipe(
        write_project(tmp_path, *from_files(valid=True), train=[GOOD], valid=[GOOD, {**GOOD, "actions": [0, 7]}])
    )
    with pytest.raises(DataError, match=r"valid\.jsonl, line 2: actions has 7, which no training episode has; correct"):
        prepare(recipe, tmp_path / "other")
    every = [{**GOOD, "actions": [number, number]} for number in range(3)]
    recipe = load_recipe(write_project(tmp_path, *from_files(), train=every), ["data.valid=1"])
    with pytest.raises(DataError, match=r"train\.jsonl, line \d: actions has .*; data\.valid = 1 held the epi"):
        prepare(recipe, tmp_path / "third")


def test_vectors_of_another_width(tmp_path: Path) -> None:
    rows = [{"states": [[0, 1], [1]], "actions": [0, 1], "rewards": [0, 1]}]
    recipe = load_recipe(write_project(tmp_path, *from_files(), train=rows), ["data.states=vector"])
    with pytest.raises(DataError, match="line 1: states has a vector of 1 numbers, and others have 2"):
        prepare(recipe, tmp_path / "run")


def test_episodes_with_nothing_to_learn_are_warned_of(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    usual = [GOOD, {**GOOD, "rewards": [1, 1]}]
    for name, rows, overrides in (
        ("usual", usual, ["data.min_return=1.5"]),
        ("one", [{**GOOD, "actions": [1, 1]}], []),
        ("low", usual, ["data.min_return=2"]),
    ):
        (tmp_path / name).mkdir()
        path = write_project(tmp_path / name, *from_files(), train=rows)
        prepare(load_recipe(path, overrides), tmp_path / name / "run")
    one, low = [message for message in logged.messages if "nothing to learn" in message or "min_return" in message]
    assert one == "all training episodes have the same action, 1, so there is nothing to learn"
    assert low.startswith("data.min_return = 2 is not below the largest return, 2, so the model cannot tell")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.environment=chess"], "no such environment; choose graph"),
        (["data.valid=500"], "there are only 500 episodes"),
        (["model.return_values=2"], "5 different returns-to-go, more than"),
        (["model.max_positions=3"], "has not ended after 3 steps"),
    ],
)
def test_settings_that_do_not_fit_the_episodes(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(load_recipe(write_project(tmp_path), overrides), tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['data.test=["builtin/synthetic"]'], "leave test out"),
        (['data.train=["builtin/synthetic"]'], "a corpus of episodes is"),
        (['data.train=[{ text = "a.jsonl", source_column = 2 }]'], "a corpus of episodes is"),
        (["model.positions=sinusoidal"], "positions = .learned"),
        (["model.architecture=encoder-decoder"], "architecture"),
        (["model.head=classes"], "contradicts"),
        (["data.subwords=bpe"], "subwords is for text"),
        (["data.tokenizer=model"], "tokenizer is for text"),
        (["data.max_source_tokens=9"], "max_source_tokens is for text"),
        (["cleaning.duplicate_pair=drop"], "cleaning. is for text"),
        (["training.validate_bleu=true"], "validate_bleu"),
        (["training.source_loss=0.5"], "source_loss: not for"),
    ],
)
def test_settings_that_contradict_the_task(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(write_project(tmp_path), overrides)


def test_settings_of_decisions_are_refused_for_text() -> None:
    for override in ("data.environment=graph", "data.min_return=0", "model.returns=false", "model.return_values=2"):
        with pytest.raises(RecipeError, match=r"for .*trajectories"):
            load_recipe("multi30k-en-de-tiny", [override])


def test_other_episodes_do_not_inherit_the_environment(tmp_path: Path) -> None:
    own = 'base = "key-to-door"\n[data]\ntrain = [{ text = "train.jsonl" }]\n'
    for data, environment in (("", None), ('environment = "graph"', "graph")):
        (tmp_path / "mine.toml").write_text(own + data, encoding="utf-8")
        assert load_recipe(str(tmp_path / "mine.toml")).data.environment == environment
    both = 'data.train=["environment", { text = "train.jsonl" }]'
    assert load_recipe("key-to-door", [both]).data.environment == "key-to-door"


def test_sequences_name_the_episodes_of_the_corpora(tmp_path: Path) -> None:
    rows = [{"states": [number], "actions": [0], "rewards": [number]} for number in range(6)]
    changes = (
        (from_files()[0][0], 'train = [{ text = "train.jsonl" }, { text = "more.jsonl" }]'), ("= 500\nvalid = 5", "= 1")
    )  # fmt: skip
    for override, kept in (("data.valid=2", 10), ("data.best_episodes=0.5", 6)):
        recipe, run = prepared(write_project(tmp_path, *changes, train=rows, more=rows), tmp_path / override, override)
        data, tokenizer = data_of(recipe, run), run.tokenizer()
        assert len(data) == kept
        states = [int(tokenizer.entries("source")[row]) for row in np.load(run.data / "train" / "states.npy")]
        assert [(int(line) - 1) % 6 for line in data.lines] == states
        assert len(set(data.lines.tolist())) == kept


def test_a_temperature_makes_every_return_as_frequent(tmp_path: Path) -> None:
    rows = [{"states": [n, n], "actions": [0, 1], "rewards": [0, int(n in (2, 5))]} for n in range(8)]
    path = write_project(tmp_path, *from_files(), train=rows)
    data = data_of(*prepared(path, tmp_path / "run", "data.sampling_temperature=1000"))
    assert data.lines.tolist() == [1, 2, 4, 5, 7, 8, 3, 6]
    assert data.pairs_per_epoch == 8
    counts = np.bincount(
        np.concatenate([data.lines[pairs_of_epoch(data.parts, 1, epoch)] for epoch in range(30)]), minlength=9
    )[1:]
    assert counts.sum() == pytest.approx(240, abs=1)
    assert set(counts[[2, 5]]) <= {59, 60, 61}
    assert set(counts[[0, 1, 3, 4, 6, 7]]) <= {19, 20, 21}
    assert batch_of(data, 8).returns.tolist() == 6 * [[0, 0]] + 2 * [[1, 1]]


def test_a_validation_corpus_without_episodes(tmp_path: Path) -> None:
    recipe = load_recipe(write_project(tmp_path, *from_files(valid=True), train=[GOOD], valid=[]))
    with pytest.raises(DataError, match=r"data\.valid: there is no episode in .*valid\.jsonl"):
        prepare(recipe, tmp_path / "run")


def test_positions_are_enough_for_training_and_play(trained: Path) -> None:
    run = Run(trained)
    fewer = load_recipe(str(run.recipe_file), ["model.max_positions=3"])
    with pytest.raises(DataError, match=r"train: episode \d+: 4 steps, but model\.max_positions = 3; raise it"):
        data_of(fewer, run)
    loaded, long = load_model(find_model(trained)), "tests.tasks.test_trajectories:Long"
    for timesteps in ("window", "episode"):  # more steps than positions, in sight and in all
        tokenizer = with_facts(run, timesteps=timesteps, window=50)
        found = play(replace(loaded, tokenizer=tokenizer), PlayRequest(episodes=1, environment=long, max_steps=20))
        assert len(found[0].rewards) == 20


def test_a_critic_predicts_returns_without_reading_them(tmp_path: Path) -> None:
    settings = ["model.return_values=2", "model.returns=false", "training.max_steps=150", "data.episodes=2000"]
    loaded, run = model_trained(write_project(tmp_path, ("Repeat", "First")), *settings)
    played = play(loaded, PlayRequest(episodes=80, environment=run.recipe().data.environment, target=0.0))
    means = best_return_probabilities(played)
    # The first action decides, so the prediction changes after it.
    assert means["success"][0] == pytest.approx(1 / 3, abs=0.15)
    assert means["no success"][0] == pytest.approx(1 / 3, abs=0.15)
    assert means["success"][1] > means["success"][0] + 0.15
    assert means["no success"][1] < means["no success"][0] - 0.05
    write_json(run.play, {**outcome_of(played), "best_return_probabilities": means})
    page = report_page([read_run(run.folder)], with_attention=False)
    assert "Mean predicted probability of the highest return" in page
    curves = json.loads(page.partition('id="curves">')[2].partition("</script>")[0])
    assert [(line["label"], line["y"]) for line in curves["returns"]["0"]] == list(means.items())


def test_a_run_without_an_environment_names_commands_that_work(tmp_path: Path) -> None:
    short = ("max_steps = 150\n", "max_steps = 50\n")
    recipe, folder = write_project(tmp_path, *from_files(), short, train=[GOOD] * 4), tmp_path / "run"
    outcome = run_command("run", recipe, "--run-dir", folder, "--device", "cpu", "--threads", 1)
    assert outcome.code == 0, outcome.err
    commands = [line.split()[1] for line in outcome.out.partition("What to do next:")[2].splitlines() if line]
    assert commands == ["play", "report", "cost"]
    assert f"nmtkit play {folder} --environment" in outcome.out
    told = f"names no environment, so there is nothing to score; play in one with `nmtkit play {folder}"
    assert told in run_command("score", folder).err
    bare = ["--environment", "tests.tasks.test_trajectories:Bare", "--episodes", "3"]
    assert run_command("play", folder, *bare).code == 0
    assert "action_space" in run_command("play", folder, *bare, "--random").err


def test_what_cannot_be_played(trained: Path, tmp_path: Path) -> None:
    loaded = load_model(find_model(trained))
    with pytest.raises(DataError, match="needs a model that predicts returns"):
        play(loaded, PlayRequest(target="predicted"))
    with pytest.raises(DataError, match=f"names the code '{REPEAT}' .*if you trust it, give --environment {REPEAT}$"):
        play(loaded, PlayRequest(episodes=1))
    with pytest.raises(DataError, match=r"the environment: a state has .*, not a whole number or a name"):
        play(loaded, PlayRequest(environment="tests.tasks.test_trajectories:Steering"))
    recipe, text = write_project(tmp_path), tmp_path / "x.txt"
    text.write_text("a\n", encoding="utf-8")
    for command in (
        ("translate", trained, "--input", text),
        ("classify", trained, "--input", text),
        ("generate", trained),
        ("score", "--model", trained, "--source", text, "--hypothesis", text),
        ("score", "--model", trained, "--hypothesis", text),
        ("cost", recipe, "--run-dir", tmp_path / "new"),
        ("attention", trained, "--source", "a", "--target", "a"),
        ("inspect", trained, "--line", 1),
        ("prepare", recipe, "--check"),
    ):
        outcome = run_command(*command)
        assert outcome.code == 1 and re.fullmatch("error: .*\n", outcome.err), (command, outcome)
        if command[0] in ("translate", "classify", "generate"):
            assert "use `nmtkit play`" in outcome.err


def test_runs_are_compared_by_their_stored_scores(trained: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    scores = json.loads((copy / "scores.json").read_text())
    scores["episodes"]["success-rate"]["score"] += 1
    (copy / "scores.json").write_text(json.dumps(scores))
    outcome = run_command("compare", trained, copy)
    assert outcome.code == 0 and "+1.00" in outcome.out and "no test, as" in outcome.out, outcome.err
    (copy / "scores.json").unlink()
    assert "None that all runs have" in run_command("compare", trained, copy).out
    recipe = Run(copy).recipe_file
    stated = re.sub(r"(?ms)^train = \[.*?^\]\n", "", recipe.read_text())
    recipe.write_text(re.sub("(?m)^environment = .*$", 'train = [{ text = "some.jsonl" }]', stated))
    refused = run_command("compare", trained, copy)
    assert refused.code == 1 and f"the recipe of {copy.name} names no environment" in refused.err


def test_long_episodes_are_cut(trained: Path) -> None:
    loaded = load_model(find_model(trained))
    long = "tests.tasks.test_trajectories:Long"
    with pytest.raises(DataError, match="has not ended after 60 steps"):
        play(loaded, PlayRequest(episodes=2, environment=long))
    with pytest.raises(DataError, match="has not ended after 60 steps"):
        play_at_random(Facts.of(loaded.tokenizer), PlayRequest(episodes=2, environment=long), 6)
    request, facts = PlayRequest(episodes=30, environment=long, max_steps=9), Facts.of(loaded.tokenizer)
    for found in (play(loaded, request), play_at_random(facts, request, 6)):
        assert {len(each.rewards) for each in found} == {9}
        # Without the environment's word for it, success is the best return of the training episodes.
        assert {each.is_success == (each.total >= facts.best) for each in found} == {True}
        assert any(each.is_success for each in found)


def test_a_model_of_other_episodes_is_no_start(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(NmtkitError, match="have other returns, states or actions; take the same episodes"):
        train_run(write_project(tmp_path), tmp_path / "run", "data.sequence_length=3", f"training.init={trained}")
