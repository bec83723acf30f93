import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.errors import ModelError
from nmtkit.json_toml import read_json, write_json
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import load_model, read_provenance, read_tensors, save_model
from nmtkit.run import Run, find_model
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.averaging import average, choose_checkpoints, is_up_to_date
from tests.conftest import message_of

CONFIG = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, num_heads=2)
# Of the checkpoints at steps 100, 200, ...: valid_nll and valid_bleu; None where there was no validation.
NLL = [3.0, 1.5, None, 1.2, 1.4, 1.3]
BLEU = [9.0, 22.0, None, 20.0, 21.0, 5.0]


def tokenizer_of(*words: str) -> Tokenizer:
    data = DataConfig(source_language="en", target_language="de", train=("mine/train",), subwords="none")
    return learn_tokenizer(data, lambda: [(" ".join(words), " ".join(words))])


TOKENIZER = tokenizer_of("a", "b", "c", "d")


def random_weights(seed: int, config: ModelConfig = CONFIG) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Transformer(config, 8, 8).state_dict()


def save_checkpoint(
    run_dir: Path,
    step: int,
    weights: dict[str, torch.Tensor] | None = None,
    *,
    config: ModelConfig = CONFIG,
    tokenizer: Tokenizer = TOKENIZER,
    average_last: int = 5,
    beam: int = 3,
    **provenance: object,
) -> Path:
    folder = run_dir / "checkpoints" / f"step-{step:08d}"
    decoding = DecodingConfig(beam=beam, average_last=average_last)
    facts = {"kind": "checkpoint", "step": step, **provenance}
    save_model(folder, weights or random_weights(step, config), config, tokenizer, decoding, facts)
    return folder


# ---- which checkpoints


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that goes by nll, and one that goes by bleu."""
    weights = random_weights(1)
    runs = {}
    for metric in ("nll", "bleu"):
        runs[metric] = tmp_path_factory.mktemp(metric)
        for index, (nll, bleu) in enumerate(zip(NLL, BLEU, strict=True), start=1):
            save_checkpoint(
                runs[metric], 100 * index, weights, average_last=4, best_metric=metric, valid_nll=nll, valid_bleu=bleu
            )
    return runs


@pytest.mark.parametrize(
    ("metric", "choice", "steps"),
    [
        ("nll", {"last": 1}, [600]),
        ("nll", {"last": 3}, [400, 500, 600]),
        ("nll", {"last": 6}, [100, 200, 300, 400, 500, 600]),
        ("nll", {}, [300, 400, 500, 600]),  # as average_last says
        ("nll", {"best": 1}, [400]),
        ("nll", {"best": 3}, [400, 500, 600]),
        ("nll", {"best": 5}, [100, 200, 400, 500, 600]),
        ("bleu", {"last": 2}, [500, 600]),
        ("bleu", {"best": 1}, [200]),
        ("bleu", {"best": 3}, [200, 400, 500]),
        ("bleu", {"best": 5}, [100, 200, 400, 500, 600]),
    ],
)
def test_the_last_or_the_best_checkpoints_are_chosen_oldest_first(
    runs: dict[str, Path], metric: str, choice: dict[str, int], steps: list[int]
) -> None:
    chosen = choose_checkpoints(runs[metric], **choice)
    assert chosen == [runs[metric] / "checkpoints" / f"step-{step:08d}" for step in steps]


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 7):
        save_checkpoint(tmp_path, step)
    assert [path.name for path in choose_checkpoints(tmp_path, last=2)] == ["step-99999999", "step-100000000"]


def test_without_a_number_fewer_checkpoints_than_average_last_will_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, average_last=5)
    assert len(choose_checkpoints(tmp_path)) == 2
    assert caplog.messages == ["average_last = 5, but only 2 checkpoints can be averaged"]


@pytest.mark.parametrize(
    ("choice", "hint"), [({"last": 7}, "only 6 exist.*keep_last"), ({"best": 6}, "only 5 are whole.*keep_best")]
)
def test_more_checkpoints_than_there_are_is_refused(runs: dict[str, Path], choice: dict[str, int], hint: str) -> None:
    with pytest.raises(ModelError, match=hint) as caught:
        choose_checkpoints(runs["nll"], **choice)
    assert str(caught.value).startswith(f"{runs['nll']}: ")


def test_the_best_checkpoints_need_validation_scores(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step)
    with pytest.raises(ModelError, match=r"no checkpoint has a validation score; give --last N"):
        choose_checkpoints(tmp_path, best=1)


def test_a_run_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there are no checkpoints here; run `nmtkit train` first"):
        choose_checkpoints(tmp_path)
    with pytest.raises(ModelError, match=r"missing: no such folder; give that of a trained run$"):
        choose_checkpoints(tmp_path / "missing")


# ---- the average


def test_an_average_is_the_mean_of_the_weights(tmp_path: Path) -> None:
    weights = [random_weights(seed) for seed in (1, 2, 3)]
    folders = [save_checkpoint(tmp_path, step, of_step) for step, of_step in enumerate(weights, start=1)]
    average(folders, tmp_path / "averaged")
    found = load_model(tmp_path / "averaged").model.state_dict()
    assert found.keys() == weights[0].keys()
    for name, tensor in found.items():
        expected = (weights[0][name].double() + weights[1][name].double() + weights[2][name].double()) / 3
        assert torch.equal(tensor, expected.float())
        assert tensor.dtype == torch.float32
    average(folders[:1], tmp_path / "one")
    one = read_tensors(tmp_path / "one" / "model.safetensors")
    assert all(torch.equal(value, weights[0][name]) for name, value in one.items())


def test_an_average_has_the_settings_and_marks_of_an_average(tmp_path: Path) -> None:
    facts = {"run": "mine", "epoch": 3, "flops": 12, "data_fingerprint": "abc", "recipe": {"data": {}}}
    older = save_checkpoint(tmp_path, 10, valid_nll=0.1, beam=7, average_last=2, **facts)
    folders = [older, save_checkpoint(tmp_path, 20, valid_nll=0.05, **facts)]
    average(folders, tmp_path / "averaged")
    provenance = read_provenance(tmp_path / "averaged")
    assert provenance["kind"] == "average"
    assert provenance["resumable"] is False
    assert [entry["checkpoint"] for entry in provenance["average_of"]] == ["step-00000010", "step-00000020"]
    sums = [read_provenance(folder)["files"]["model.safetensors"] for folder in folders]
    assert [entry["sha256"] for entry in provenance["average_of"]] == sums
    assert {key: provenance[key] for key in facts} == facts
    assert provenance["step"] == 20
    assert "valid_nll" not in provenance  # nothing has validated the average
    loaded = load_model(tmp_path / "averaged")
    assert loaded.model.config == CONFIG
    assert loaded.decoding == DecodingConfig(beam=3, average_last=5)
    assert loaded.tokenizer.fingerprint() == TOKENIZER.fingerprint()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"config": CONFIG.model_copy(update={"d_ff": 9})}, "model shape"),
        ({"config": CONFIG.model_copy(update={"norm": "pre"})}, "model shape"),
        ({"tokenizer": tokenizer_of("a", "b", "c", "x")}, "tokenizer"),
    ],
)
def test_checkpoints_that_do_not_belong_together_are_refused(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    folders = [save_checkpoint(tmp_path, 1), save_checkpoint(tmp_path, 2), save_checkpoint(tmp_path, 3, **changes)]
    message = message_of(lambda: average(folders, tmp_path / "averaged"), ModelError, f"a different {what}")
    assert message.startswith(f"{folders[2]}: ")
    assert not (tmp_path / "averaged").exists()


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path, 1), save_checkpoint(tmp_path, 2)]
    weights = folders[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="damaged") as caught:
        average(folders, tmp_path / "averaged")
    assert str(caught.value).startswith(f"{weights}: ")
    assert not (tmp_path / "averaged").exists()


def test_a_damaged_checkpoint_of_a_run_is_passed_over_for_the_one_before_it(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path, step, best_metric="nll", valid_nll=1.0 / step) for step in (1, 2, 3, 4)]
    (folders[2] / "model.safetensors").write_bytes(b"")
    (folders[3] / "model.json").write_bytes(b"")
    assert choose_checkpoints(tmp_path, last=2) == folders[:2]
    assert choose_checkpoints(tmp_path) == folders[:2]
    assert choose_checkpoints(tmp_path, at_most=1) == folders[1:2]
    assert choose_checkpoints(tmp_path, best=1) == folders[1:2]
    with pytest.raises(ModelError, match="only 2 exist"):
        choose_checkpoints(tmp_path, last=3)
    for folder in folders[:2]:
        (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="every checkpoint is damaged"):
        choose_checkpoints(tmp_path)


def test_a_checkpoint_that_is_kept_as_the_best_is_not_one_of_the_last(tmp_path: Path) -> None:
    for step in (110, 290, 300):
        save_checkpoint(tmp_path, step, previous=step - 10)
    assert [folder.name[-3:] for folder in choose_checkpoints(tmp_path, at_most=3)] == ["290", "300"]
    with pytest.raises(ModelError, match="the last 3 checkpoints are requested, but only 2 exist"):
        choose_checkpoints(tmp_path, last=3)
    with pytest.raises(ModelError, match="2 apart, but only 1 exist"):
        choose_checkpoints(tmp_path, last=2, spacing=2)
    # One that is damaged is skipped, and those before it are the last ones.
    save_checkpoint(tmp_path, 280, previous=270)
    (tmp_path / "checkpoints" / "step-00000290" / "model.safetensors").write_bytes(b"")
    assert [folder.name[-3:] for folder in choose_checkpoints(tmp_path, at_most=3)] == ["280", "300"]


def test_an_average_is_up_to_date_until_its_checkpoints_change(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path, step) for step in (1, 2, 3)]
    output = tmp_path / "averaged"
    assert not is_up_to_date(folders[:2], output)
    average(folders[:2], output)
    assert is_up_to_date(folders[:2], output)
    assert not is_up_to_date(folders[1:], output)
    assert not is_up_to_date(folders, output)
    save_checkpoint(tmp_path, 2, random_weights(77))
    assert not is_up_to_date(folders[:2], output)
    average(folders[:2], output)
    assert is_up_to_date(folders[:2], output)
    assert not is_up_to_date(folders[:1], folders[0])  # a checkpoint is no average


def test_an_average_that_is_older_than_the_training_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [save_checkpoint(tmp_path, step) for step in (1, 2, 3)]
    (tmp_path / "data").mkdir()
    average(folders[:2], tmp_path / "averaged")
    for folder in folders:  # its own time counts for nothing: a copy has another, and so has a folder with an export
        os.utime(folder, (2**33, 2**33))
    assert find_model(tmp_path) == tmp_path / "averaged"
    assert "older" not in caplog.text  # the third was left out on purpose
    save_checkpoint(tmp_path, 4)
    os.utime(tmp_path / "checkpoints" / "step-00000004", (1, 1))
    assert find_model(tmp_path) == find_model(tmp_path) == tmp_path / "averaged"
    (message,) = caplog.messages
    assert "its averaged model is older than step-00000004" in message and "nmtkit average " in message


def test_of_an_average_without_the_newest_checkpoint_of_its_time_times_tell(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path, step) for step in (1, 2, 3)]
    average(folders[:2], tmp_path / "averaged")
    path = tmp_path / "averaged" / "provenance.json"
    write_json(path, {key: value for key, value in read_json(path, dict).items() if key != "newest"})
    for seconds, newer in ((1, None), (2**33, "step-00000003")):
        os.utime(folders[-1], (seconds, seconds))
        assert Run(tmp_path).newer_checkpoint() == newer


@pytest.mark.parametrize("can_link", [True, False])
def test_what_else_lies_in_an_old_average_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    folders = [save_checkpoint(tmp_path, step) for step in (1, 2, 3)]
    output = tmp_path / "averaged"
    average(folders[:2], output)
    (output / "export" / "ctranslate2").mkdir(parents=True)
    (output / "export" / "ctranslate2" / "model.bin").write_bytes(b"weights")
    (output / "notes.txt").write_text("mine\n")
    (output / "link").symlink_to("notes.txt")
    if not can_link:

        def refuse(*_: object, **__: object) -> None:
            raise OSError

        monkeypatch.setattr(os, "link", refuse)
    average(folders, output)
    assert is_up_to_date(folders, output)
    assert (output / "export" / "ctranslate2" / "model.bin").read_bytes() == b"weights"
    assert (output / "notes.txt").read_text() == "mine\n"
    assert (output / "link").is_symlink()
    files = read_provenance(output)["files"]
    assert not any("export" in name or "notes" in name for name in files)
