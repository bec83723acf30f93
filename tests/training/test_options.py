"""What people expect of a trainer: each option does what it says, and fails here when it is ignored."""

import itertools
import logging
import math
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nmtkit.cli.main import app
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.data.batch import make_batch
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.errors import ModelError, NmtkitError, RecipeError
from nmtkit.files import sha256_of
from nmtkit.json_toml import read_json, write_json
from nmtkit.model.flops import forward_flops
from nmtkit.model_folder import read_tensors, write_tensors
from nmtkit.run import Run
from nmtkit.training import loss as objective
from nmtkit.training import session as train_module
from nmtkit.training.loop import train_updates
from nmtkit.training.loss import r_drop_loss
from nmtkit.training.session import TrainingResult
from nmtkit.training.state import Progress
from nmtkit.training.transfer import check_initial_model
from nmtkit.training.validation import Validation
from tests.conftest import run_command, train_run, write_corpus
from tests.training.updates import ALONE, VOCAB, Weights, check_resume, config, equal, random_pairs, run, tiny_state

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1, "ffn_dropout": 0.1}
new_state = partial(tiny_state, encoder_layers=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PairData:
    return random_pairs(tmp_path_factory.mktemp("data") / "train", range(1, 41))


def copy_of(weights: Weights) -> Weights:
    return {name: weight.detach().clone() for name, weight in weights.items()}


# ---- weight decay


def test_weight_decay_is_decoupled_and_spares_biases_and_norms(data: PairData) -> None:
    state, plain = (new_state(config(weight_decay=decay), torch.float64) for decay in (0.1, 0.0))
    before = copy_of(state.model.state_dict())
    run(state, data, config(weight_decay=0.1), 1)
    run(plain, data, config(), 1)
    rate = 0.003 / 3
    for name, expected in plain.model.state_dict().items():
        is_decayed = before[name].dim() > 1
        assert is_decayed == (name.startswith("embeddings") or ("weight" in name and "norm" not in name))
        if is_decayed:
            expected = expected - rate * 0.1 * before[name]
        assert torch.allclose(state.model.state_dict()[name], expected, rtol=0, atol=1e-12)
    assert not equal(dict(state.model.state_dict()), dict(plain.model.state_dict()))


# ---- moving average


def test_the_average_follows_the_weights_with_a_decay_that_rises(data: PairData) -> None:
    training = config(ema_decay=0.25)
    state, plain = new_state(training), new_state(config())
    expected = {name: weight.double() for name, weight in copy_of(state.model.state_dict()).items()}
    for step, _ in enumerate(itertools.islice(train_updates(state, data, ALONE), 6), start=1):
        decay = min(0.25, (1 + step) / (10 + step))
        for name, weight in state.model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * weight.double()
        for name, average in state.average.items():
            assert average.dtype == torch.float32
            assert torch.allclose(average.double(), expected[name], rtol=0, atol=1e-6)
    assert not equal(state.average, dict(state.model.state_dict()))
    run(plain, data, config(), 6)  # and the weights are those without an average
    assert equal(dict(state.model.state_dict()), dict(plain.model.state_dict()))
    assert plain.average == {}


# ---- R-Drop


@pytest.mark.parametrize(("logits_at_once", "output_bias"), [(1, False), (130, False), (10**6, False), (10**6, True)])
def test_r_drop_is_the_papers_loss_with_its_gradient(
    logits_at_once: int, output_bias: bool, data: PairData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(objective._LOGITS_AT_ONCE, "cpu", logits_at_once)
    training = config(r_drop=5.0)
    model = new_state(training, torch.float64, dropout=0.3, output_bias=output_bias).model
    if model.output_bias is not None:
        torch.nn.init.normal_(model.output_bias)
    batch = make_batch(data, [0, 1, 2])
    torch.manual_seed(1)
    loss, nll = r_drop_loss(model, batch, 0.1, 5.0)
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    torch.manual_seed(1)
    passes = [model(batch.source, batch.source_lengths, batch.target_in) for _ in range(2)]
    expected, expected_nll = torch.zeros((), dtype=torch.float64), 0.0
    for row, length in enumerate(batch.target_lengths.tolist()):
        logits = [passed[row, :length] for passed in passes]
        target = batch.target_out[row, :length]
        for one, other in (logits, logits[::-1]):
            smoothed = torch.nn.functional.cross_entropy(one, target, label_smoothing=0.1, reduction="sum")
            log_p, log_q = one.log_softmax(-1), other.log_softmax(-1)
            divergence = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="sum")
            expected = expected + (smoothed + 5.0 / 2 * divergence) / 2
            expected_nll += torch.nn.functional.cross_entropy(one, target, reduction="sum").item() / 2
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert float(nll) == pytest.approx(expected_nll, rel=1e-12)
    assert not torch.equal(passes[0], passes[1])
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-9, atol=1e-12)


def test_r_drop_is_part_of_an_updates_loss_and_of_its_cost(data: PairData) -> None:
    results = {}
    for alpha in (0.0, 1.0, 5.0):
        training = config(r_drop=alpha, tokens_per_pass=1000)
        (results[alpha],) = run(new_state(training, **DROPOUT), data, training, 1)
    assert results[1.0].nll == results[5.0].nll != results[0.0].nll
    assert results[5.0].loss > results[1.0].loss
    assert results[5.0].flops == results[1.0].flops == 2 * results[0.0].flops
    sizes = new_state(config()).model.config
    assert results[0.0].flops < 3 * forward_flops(sizes, VOCAB, data.source_lengths, data.target_lengths).flops


def test_a_run_with_r_drop_goes_on_bit_for_bit(data: PairData, tmp_path: Path) -> None:
    check_resume(lambda: new_state(config(r_drop=5.0), **DROPOUT), data, tmp_path)


# ---- frozen parts


@pytest.mark.parametrize(
    ("freeze", "are_frozen"),
    [
        (["encoder"], lambda name: name.startswith("encoder.")),
        (["encoder.1", "embeddings"], lambda name: name.startswith(("encoder.1.", "embeddings."))),
        (["decoder.0.feed_forward"], lambda name: name.startswith("decoder.0.feed_forward.")),
    ],
)
def test_frozen_parts_stay_and_the_others_change(
    data: PairData, tmp_path: Path, freeze: list[str], are_frozen: Callable[[str], bool]
) -> None:
    training = config(freeze=freeze, weight_decay=0.1, ema_decay=0.5)
    state = new_state(training, **DROPOUT)
    before = copy_of(state.model.state_dict())
    run(state, data, training, 3)
    for name, parameter in state.model.named_parameters():
        assert torch.equal(parameter, before[name]) == are_frozen(name)
        assert torch.equal(state.average[name], before[name]) == are_frozen(name)
        assert (parameter.grad is None) == are_frozen(name)
    assert any(are_frozen(name) for name in before)
    check_resume(lambda: new_state(training, **DROPOUT), data, tmp_path)


@pytest.mark.parametrize("prefix", ["encode", "encoder.2", "decoder.0.", "", "output"])
def test_an_unknown_part_is_refused_with_those_that_exist(prefix: str) -> None:
    with pytest.raises(NmtkitError) as caught:
        new_state(config(freeze=["embeddings", prefix]))
    message = str(caught.value)
    assert f"has no part {prefix!r}" in message
    assert "embeddings, embeddings.shared, encoder, encoder.0, encoder.1, decoder, decoder.0" in message


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(NmtkitError, match="leaves no parameters to train"):
        new_state(config(freeze=["embeddings", "encoder", "decoder"]))


def test_a_state_that_lacks_a_part_of_the_moments_is_refused(data: PairData, tmp_path: Path) -> None:
    state = new_state(config())
    run(state, data, config(), 1)
    folder = state.save(Run(tmp_path), {})
    moments = read_tensors(folder / "optimizer.safetensors")
    del moments["exp_avg.embeddings.shared"]
    write_tensors(folder / "optimizer.safetensors", moments)
    with pytest.raises(ModelError, match=r"does not belong to this model \('exp_avg.embeddings.shared'\)"):
        new_state(config()).load(folder, read_json(folder / "state.json"))


# ---- patience


@pytest.mark.parametrize(
    ("options", "since_best", "epoch", "expected"),
    [
        ({"patience_validations": 3}, 3, 9, "no better nll for patience_validations = 3"),
        ({"patience_validations": 3}, 2, 9, None),
        ({"patience_epochs": 4}, 1, 6, "no better nll for patience_epochs = 4"),
        ({"patience_epochs": 4}, 1, 5, None),
        ({"patience_epochs": 4}, 0, 9, None),
        ({"patience_validations": 1, "best_metric": "bleu"}, 1, 2, "no better bleu for patience_validations = 1"),
        ({}, 99, 99, None),
    ],
)
def test_training_ends_when_patience_does(
    options: dict[str, object], since_best: int, epoch: int, expected: str | None
) -> None:
    place = Progress(step=5, epoch=epoch, best_cost=1.0, best_epoch=2, validations_since_best=since_best)
    assert place.reason_to_stop(config(max_steps=1000, **options)) == expected


@pytest.mark.parametrize(("epoch", "pairs_done", "last"), [(1, 0, 2), (1, 1, 3), (1, 900, 3), (2, 0, 3)])
def test_patience_in_epochs_counts_from_the_end_of_the_epoch_of_the_best_score(
    epoch: int, pairs_done: int, last: int
) -> None:
    place = Progress(epoch=epoch, pairs_done=pairs_done)
    place.note_validation(2.0)
    place.pairs_done, reasons = 0, []
    for place.epoch in (2, 3):
        place.note_validation(2.0)
        reasons.append(place.reason_to_stop(config(max_steps=1000, patience_epochs=1)))
    assert [reason is not None for reason in reasons] == [last == 2, True]


def test_a_validation_that_is_not_a_number_is_never_the_best() -> None:
    place = Progress()
    for cost in (math.nan, 4.0, math.nan):
        place.note_validation(cost)
    assert (place.best_cost, place.validations_since_best) == (4.0, 1)


# ---- whole runs

RECIPE = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 60\n'
    'train = [{ source = "train.en", target = "train.de" }]\nvalid = [{ source = "valid.en", target = "valid.de" }]\n'
    "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 16\nd_ff = 32\nnum_heads = 2\n"
    "[training]\nprecision = 'float32'\n"
    "tokens_per_update = 400\nwarmup_steps = 10\nmax_steps = 8\nreport_every_steps = 1\n"
    "validate_every_steps = 1\nvalidate_bleu = false\ncheckpoint_every_steps = 1\nkeep_last = 1\nkeep_best = 0\n"
    "[decoding]\naverage_last = 1\n"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text and the recipe base.toml."""
    folder = tmp_path_factory.mktemp("project")
    write_corpus(folder, train=120, valid=4, new=80)
    (folder / "base.toml").write_text(RECIPE)
    return folder


def test_the_log_has_the_trained_parameters_and_warns_of_too_few_updates(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmtkit")
    settings = ("training.freeze=['encoder', 'embeddings']", "training.max_steps=2", "training.warmup_steps=3")
    train_run(project / "base.toml", tmp_path / "run", *settings)
    weights = read_tensors(tmp_path / "run" / "checkpoints" / "step-00000002" / "model.safetensors")
    trained = sum(each.numel() for name, each in weights.items() if name.startswith("decoder"))
    assert f"parameters ({trained:,} of them trained), " in caplog.text
    assert "the training has 2 updates, but its learning rate rises until update 3 (training.warmup" in caplog.text
    caplog.clear()
    train_run(project / "base.toml", tmp_path / "other", "training.max_steps=3", "training.warmup_steps=3")
    train_run(project / "base.toml", tmp_path / "timed", "training.max_minutes=1e-9", "training.warmup_steps=3")
    assert "of them trained" not in caplog.text and "warmup" not in caplog.text


def test_validations_without_checkpoints_are_warned_of_where_the_best_model_counts(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = ("training.validate_every_steps=2", "training.checkpoint_every_epochs=1", "training.max_steps=1")
    for name, patience, is_told in (("a", (), False), ("b", ("training.patience_validations=2",), True)):
        caplog.clear()
        train_run(project / "base.toml", tmp_path / name, *every, "training.warmup_steps=1", "data.valid=4", *patience)
        assert ("not every validation comes with a checkpoint" in caplog.text) == is_told
    caplog.clear()
    for name, interval in (("c", "validate_every_steps=2"), ("d", "validate_every_epochs=1")):
        every = (f"training.{interval}", "training.checkpoint_every_steps=1", "training.max_steps=1")
        train_run(project / "base.toml", tmp_path / name, *every, "training.warmup_steps=1", "data.valid=4", *patience)
        assert "comes with a checkpoint" not in caplog.text


def checkpoint_steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run_dir / "checkpoints").iterdir())


NLL = [5.0, 4.0, 4.5, 3.0, 3.5, 3.6, 3.7, 3.8]
BLEU = [1.0, 9.0, 2.0, 3.0, 8.0, 4.0, 5.0, 6.0]


@pytest.fixture
def scripted_validations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update is validated with the next of NLL and BLEU."""
    scores = iter(zip(NLL, BLEU, strict=True))
    monkeypatch.setattr(train_module.Validator, "__call__", lambda *_: Validation(*next(scores), []))


@pytest.mark.usefixtures("scripted_validations")
@pytest.mark.parametrize(
    ("options", "last_step", "kept"),
    [
        ((), 8, [8]),
        (("keep_last=3",), 8, [6, 7, 8]),
        (("keep_best=3",), 8, [4, 5, 6, 8]),
        (("keep_last=2", "keep_best=2", "best_metric=bleu", "validate_bleu=true"), 8, [2, 5, 7, 8]),
        (("patience_validations=2",), 6, [6]),
        (("patience_validations=1",), 3, [3]),
        (("patience_validations=4", "best_metric=bleu", "validate_bleu=true"), 6, [6]),
    ],
)
def test_patience_and_kept_checkpoints_go_by_the_best_metric(
    project: Path, tmp_path: Path, options: tuple[str, ...], last_step: int, kept: list[int]
) -> None:
    result = train_run(project / "base.toml", tmp_path / "run", *(f"training.{option}" for option in options))
    assert result.step == last_step
    assert checkpoint_steps(tmp_path / "run") == kept


def test_validation_and_checkpoints_use_the_average_and_the_save_holds_both(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[Weights] = []

    def validate(_: object, model: Any, *others: object) -> Validation:
        validated.append(copy_of(model.state_dict()))
        return Validation(1.0, None, [])

    monkeypatch.setattr(train_module.Validator, "__call__", validate)
    train_run(project / "base.toml", tmp_path / "run", "training.ema_decay=0.9", "training.max_steps=3")
    checkpoint = read_tensors(tmp_path / "run" / "checkpoints" / "step-00000003" / "model.safetensors")
    save = tmp_path / "run" / "resume" / "step-00000003"
    assert equal(checkpoint, validated[-1])
    assert equal(checkpoint, read_tensors(save / "average.safetensors"))
    assert not equal(checkpoint, read_tensors(save / "weights.safetensors"))


# ---- fine-tuning


@pytest.fixture(scope="module")
def trained(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of base.toml: the model to fine-tune."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train_run(project / "base.toml", run_dir)
    return run_dir


@pytest.fixture
def tuned(project: Path, trained: Path) -> Path:
    """The recipe of the documentation: another text, the model's recipe, subwords and weights."""
    path = project / "tuned.toml"
    path.write_text(
        f'base = "{trained / "recipe.toml"}"\n'
        f'[data]\ntrain = [{{ source = "new.en", target = "new.de" }}]\ntokenizer = "{trained}"\n'
        f'[training]\ninit = "{trained}"\nmax_steps = 2\n'
    )
    return path


def test_fine_tuning_starts_from_the_models_weights_with_a_new_optimizer(
    tuned: Path, trained: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    rate = ("training.peak_learning_rate=1e-12", "training.schedule=constant")
    train_run(tuned, run_dir, *rate, "model.dropout=0.3")  # which may be another than the model's
    model = trained / "checkpoints" / "step-00000008" / "model.safetensors"
    weights, found = read_tensors(model), read_tensors(run_dir / "resume" / "step-00000002" / "weights.safetensors")
    assert weights.keys() == found.keys()
    assert all(torch.allclose(weights[name], found[name], rtol=0, atol=1e-6) for name in weights)
    moments = read_tensors(run_dir / "resume" / "step-00000002" / "optimizer.safetensors")
    assert {float(moment) for name, moment in moments.items() if name.startswith("step.")} == {2.0}
    for part in ("resume/step-00000002/state.json", "checkpoints/step-00000002/provenance.json"):
        assert read_json(run_dir / part)["init_sha256"] == sha256_of(model)


def test_prepare_takes_the_subwords_of_the_model(tuned: Path, trained: Path, tmp_path: Path) -> None:
    one = prepare(load_recipe(str(tuned)), tmp_path / "one", workers=1)
    assert one.manifest["tokenizer_sha256"] == read_json(trained / "data" / "manifest.json")["tokenizer_sha256"]
    assert prepare(load_recipe(str(tuned)), tmp_path / "one", workers=1).is_new is False
    checkpoint = f"data.tokenizer={trained / 'checkpoints' / 'step-00000008'}"  # the same subwords from elsewhere
    assert prepare(load_recipe(str(tuned), [checkpoint]), tmp_path / "one", workers=1).is_new is False


def test_subwords_that_the_recipe_describes_otherwise_are_refused(tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.normalize = \['nfc'\], but the tokenizer of .* has \['blanks'\]"):
        prepare(load_recipe(str(tuned), ['data.normalize=["nfc"]']), tmp_path / "run")


def test_a_folder_without_a_tokenizer_is_refused(tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no tokenizer in it"):
        prepare(load_recipe(str(tuned), [f"data.tokenizer={tmp_path}"]), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["data.vocab_size=59"], r'has other subwords \("bpe", 60 entries\) than .* \("bpe", 59 entries\); set data'),
        (["data.subwords=unigram"], r'has other subwords \("bpe", 60 entries\) than .* \("unigram", 60 entries\)'),
        (["data.vocab_size=59", "training.init_vocab=mapped"], None),
        ([], None),
    ],
)
def test_subwords_that_cannot_be_those_of_the_model_are_refused_before_the_preparation(
    project: Path, trained: Path, tmp_path: Path, changes: list[str], told: str | None
) -> None:
    recipe = load_recipe(str(project / "base.toml"), [*changes, f"training.init={trained}"])
    with pytest.raises(NmtkitError, match=told) if told else nullcontext():
        check_initial_model(recipe, Run(tmp_path / "run"))


def test_subwords_of_other_text_cause_a_warning(
    project: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entry = f'[{{ source = "{project}/train.de", target = "{project}/train.en" }}]'
    for changes, count in ((["data.train=" + entry], 1), (["data.train=" + entry, f"data.tokenizer={trained}"], 0)):
        recipe = load_recipe(str(project / "base.toml"), [*changes, f"training.init={trained}"])
        caplog.clear()
        assert check_initial_model(recipe, Run(tmp_path / "run")) is not None
        assert sum("learns subwords of its own text" in message for message in caplog.messages) == count


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("model.num_heads=4", "num_heads = 2, d_k = 8, d_v = 8$"),
        ("model.share_embeddings=none", 'share_embeddings = "all"$'),
    ],
)
def test_a_model_of_another_shape_is_refused_with_what_to_state(
    tuned: Path, tmp_path: Path, change: str, difference: str
) -> None:
    with pytest.raises(NmtkitError, match=difference):
        train_run(tuned, tmp_path / "run", change)
    early = run_command("prepare", tuned, "--run-dir", tmp_path / "new", "--set", change)
    assert early.code == 1 and re.search(difference, early.err.strip())
    assert not (tmp_path / "new").exists()


def test_going_on_with_another_init_is_refused(project: Path, tuned: Path, trained: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train_run(tuned, run_dir, "training.max_steps=1")
    other = tmp_path / "run" / "checkpoints" / "step-00000001"
    with pytest.raises(NmtkitError, match="began with other weights than training"):
        train_run(tuned, run_dir, f"training.init={other}")
    without = project / "without.toml"
    without.write_text(
        "".join(line for line in tuned.read_text().splitlines(keepends=True) if not line.startswith("init"))
    )
    with pytest.raises(NmtkitError, match=r"training\.init = None"):
        train_run(without, run_dir)
    elsewhere = trained / "checkpoints" / "step-00000008"  # the same weights by another name
    assert train_run(tuned, run_dir, f"training.init={elsewhere}").step == 2


@pytest.mark.parametrize("left", [None, [], ["model.json", "provenance.json"]])
def test_a_run_goes_on_with_all_it_knew_when_the_model_it_began_with_is_gone(
    tuned: Path, trained: Path, tmp_path: Path, left: list[str] | None
) -> None:
    init = Path(shutil.copytree(trained / "checkpoints" / "step-00000008", tmp_path / "model"))
    description, provenance = read_json(init / "model.json"), read_json(init / "provenance.json")
    description["training_lengths"]["longest_source"] = 99
    write_json(init / "model.json", description)
    provenance["files"]["model.json"] = sha256_of(init / "model.json")
    write_json(init / "provenance.json", provenance)
    train_run(tuned, tmp_path / "run", f"training.init={init}", "training.max_steps=1")
    kept = {name: (init / name).read_bytes() for name in left or ()}
    shutil.rmtree(init)
    if left is not None:
        init.mkdir()
    for name, content in kept.items():
        (init / name).write_bytes(content)
    assert train_run(tuned, tmp_path / "run", f"training.init={init}").step == 2
    lengths = read_json(tmp_path / "run" / "checkpoints" / "step-00000002" / "model.json")["training_lengths"]
    assert lengths["longest_source"] == 99


def test_paths_of_models_are_relative_to_the_recipe(project: Path) -> None:
    path = project / "relative.toml"
    path.write_text('base = "base.toml"\n[data]\ntokenizer = "m"\n[training]\ninit = "runs/m"\n')
    recipe = load_recipe(str(path))
    assert (recipe.data.tokenizer, recipe.training.init) == (project / "m", project / "runs" / "m")
    assert load_recipe(str(path), ["training.init=x"]).training.init == Path.cwd() / "x"


def test_the_command_line_has_a_short_form(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path | None] = []

    def noted(recipe: Recipe, *_: object) -> TrainingResult:
        seen.append(recipe.training.init)
        return TrainingResult(1, "for a test")

    monkeypatch.setattr(train_module, "train", noted)
    monkeypatch.setattr("nmtkit.console.set_up", lambda **_: None)  # which would log to what CliRunner closes
    place = ["--run-dir", str(tmp_path), "--device", "cpu"]
    for init in (["--init", 'my "model"'], ["--set", "training.init=my/model"], []):
        assert CliRunner().invoke(app, ["train", str(project / "base.toml"), *place, *init]).exit_code == 0
    assert seen == [Path.cwd() / 'my "model"', Path.cwd() / "my/model", None]
