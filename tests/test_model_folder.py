import importlib.metadata
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nmtkit import model_folder
from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.files import exchange, sha256_of
from nmtkit.json_toml import write_json
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import load_model, read_tensors, save_model, write_tensors
from nmtkit.run import Run, find_model
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from tests.conftest import message_of
from tests.export.foreign_folders import changed_json

LENGTHS = {"longest_source": 12, "target_ratio": 1.0, "multi_sentence_share": 0.0}
TINY = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2}


def tokenizer_of(*words: str, share_vocab: bool = True) -> Tokenizer:
    data = DataConfig(
        source_language="en", target_language="de", train=("mine/train",), subwords="none", share_vocab=share_vocab
    )
    return learn_tokenizer(data, lambda: [(" ".join(words[:3]), " ".join(words))])


TOKENIZER = tokenizer_of("a", "b", "c", "d")


def model_of(tokenizer: Tokenizer = TOKENIZER, **changes: object) -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig.model_validate({**TINY, **changes})
    return Transformer(config, tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))


def save(folder: Path, model: Transformer | None = None, tokenizer: Tokenizer = TOKENIZER, **facts: object) -> Path:
    model = model or model_of(tokenizer)
    save_model(folder, model.state_dict(), model.config, tokenizer, DecodingConfig(beam=7), facts)
    return folder


# ---- saving and loading


def test_whole_numbers_as_weights_are_refused_and_not_cut(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    weights = read_tensors(folder / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name].to(torch.int32)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"model\.safetensors: {name} is of type torch.int32 and not floating-point"):
        load_model(folder)


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    weights = read_tensors(folder / "model.safetensors")
    name = "encoder.0.feed_forward.inner.bias"
    without = {key: tensor for key, tensor in weights.items() if key != name}
    for changed, odd in (
        ({**weights, name: weights[name][:3]}, name),
        (without, name),
        ({**weights, "more": weights[name].clone()}, "more"),
    ):
        write_tensors(folder / "model.safetensors", changed)
        with pytest.raises(ModelError, match=rf"the weights do not belong to model\.json \(see {odd}\)"):
            load_model(folder)


def test_weights_are_float32_whatever_the_default_of_torch_is(tmp_path: Path) -> None:
    model = model_of()
    folder = save(tmp_path / "model", model)
    torch.set_default_dtype(torch.bfloat16)
    try:
        loaded = load_model(folder).model.state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_too_many_open_files_are_not_a_missing_file(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 2, limits[1]))
    taken = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files") as caught:
            read_tensors(folder / "model.safetensors")
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.filename == str(folder / "model.safetensors")


def test_a_fault_of_the_system_is_not_blamed_on_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "model")

    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Transformer, "load_state_dict", fail)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        load_model(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "share_embeddings": "none", "positions": "learned", "max_positions": 9},
        {"d_k": 3, "d_v": 5, "share_embeddings": "decoder"},
    ],
)
def test_a_loaded_model_has_the_same_logits(tmp_path: Path, changes: dict[str, object]) -> None:
    tokenizer = tokenizer_of("a", "b", "c", "d", "e", share_vocab="share_embeddings" not in changes)
    model = model_of(tokenizer, **changes).eval()
    loaded = load_model(save(tmp_path / "model", model, tokenizer))
    source, target = torch.tensor([[4, 5, 6, 3], [5, 3, 0, 0]]), torch.tensor([[2, 4, 5], [2, 6, 4]])
    lengths = torch.tensor([4, 2])
    assert torch.equal(loaded.model(source, lengths, target), model(source, lengths, target))
    assert loaded.model.config == model.config


def test_loading_leaves_the_random_numbers_of_the_program_alone(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    before = torch.get_rng_state()
    load_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_model_is_ready_to_translate(tmp_path: Path) -> None:
    loaded = load_model(save(tmp_path / "model", run="mine", step=12), torch.device("cpu"))
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.tokenizer.fingerprint() == TOKENIZER.fingerprint()
    assert loaded.tokenizer.encode(["a c d"], "source") == TOKENIZER.encode(["a c d"], "source")
    assert loaded.decoding == DecodingConfig(beam=7)
    assert (loaded.provenance["run"], loaded.provenance["step"]) == ("mine", 12)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
def test_a_path_that_is_not_utf8_is_not_called_damage(tmp_path: Path) -> None:
    folder = tmp_path / "mod\udcff"
    shutil.copytree(save(tmp_path / "model"), folder)
    with pytest.raises(ModelError, match="cannot be read, as this path is not valid UTF-8; rename it"):
        load_model(folder)


def test_a_model_folder_can_be_copied(tmp_path: Path) -> None:
    shutil.copytree(save(tmp_path / "here"), tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    loaded = load_model(tmp_path / "there")
    assert torch.equal(loaded.model.output_embedding, model_of().output_embedding)


def test_the_manifest_has_the_sums_of_all_other_files_and_the_versions(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    provenance = json.loads((folder / "provenance.json").read_text())
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(files) == {
        "model.safetensors", "model.json", "tokenizer/tokenizer.json", "tokenizer/joint.vocab", "provenance.json"
    }  # fmt: skip
    assert provenance["files"] == {name: sha256_of(path) for name, path in files.items() if name != "provenance.json"}
    assert provenance["versions"]["torch"] == importlib.metadata.version("torch")


def test_each_weight_is_stored_once(tmp_path: Path) -> None:
    model = model_of()
    size = (save(tmp_path / "model", model) / "model.safetensors").stat().st_size
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert weights <= size < weights + 100 * (len(model.state_dict()) + 1)


# ---- damaged folders


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(keep * len(content))])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def edit_description(**changes: object) -> Callable[[Path], None]:
    return lambda folder: changed_json(folder / "model.json", **changes)


def overwrite(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def foreign_tokenizer(folder: Path) -> None:
    shutil.rmtree(folder / "tokenizer")
    tokenizer_of("a", "b", "c", "x").save(folder / "tokenizer")


def foreign_weights(folder: Path) -> None:
    other = save(folder.parent / "other", model_of(d_ff=20))
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")


def fewer_entries(folder: Path) -> None:
    model = Transformer(ModelConfig.model_validate(TINY), 6, 6)
    save_model(folder, model.state_dict(), model.config, TOKENIZER, DecodingConfig(), {})
    edit_description(vocab_sizes={"source": 6, "target": 6})(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut("model.safetensors", 0.9), "damaged"),
        (cut("model.safetensors", 0.001), "damaged"),
        (cut("model.safetensors", 0.0), "damaged"),
        (remove("model.safetensors"), "no such file"),
        (foreign_weights, "do not belong"),
        (remove("model.json"), "not a model folder"),
        (cut("model.json", 0.5), "damaged"),
        (edit_description(format=99), "format 1"),
        (edit_description(model={"d_model": 0}), "damaged"),
        (edit_description(decoding={"beams": 4}), "damaged"),
        (edit_description(vocab_sizes={}), "damaged"),
        (edit_description(vocab_sizes={"source": 3, "target": 8}), "source: not the size of a vocabulary"),
        (fewer_entries, "the tokenizer does not have as many entries as model.json states"),
        (remove("tokenizer/tokenizer.json"), "there is no tokenizer"),
        (remove("tokenizer/joint.vocab"), "no such file"),
        (cut("tokenizer/joint.vocab", 0.5), "damaged"),
        (overwrite("tokenizer/joint.vocab", b"\xff\xfe\n"), "damaged"),
        (cut("tokenizer/tokenizer.json", 0.5), "damaged"),
        (overwrite("tokenizer/tokenizer.json", b"{}"), "damaged"),
        (foreign_tokenizer, "tokenizer is not the one"),
        (remove("provenance.json"), "no such file"),
        (cut("provenance.json", 0.5), "damaged"),
        (overwrite("provenance.json", b"[]"), "damaged"),
        (overwrite("provenance.json", b'{"files": []}'), "damaged"),
        (overwrite("provenance.json", b"{}"), "damaged"),
        (overwrite("model.json", b'{"format": 1}'), "damaged"),
        (edit_description(tokenizer_sha256=0), "tokenizer_sha256 is the number 0"),
        (edit_description(vocab_sizes=[9, 9]), "damaged"),
        (edit_description(model={**TINY, "num_heads": 4}), r"model\.json: damaged \(it does not match"),
        (edit_description(decoding={"beam": 3}), r"model\.json: damaged \(it does not match"),
        (edit_description(tokenizer_sha256=None), "tokenizer_sha256 is missing"),
        (edit_description(training_lengths={**LENGTHS, "longest_source": "many"}), "training_lengths"),
    ],
)
def test_a_damaged_model_folder_is_refused_in_one_line_that_names_it(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = save(tmp_path / "model")
    damage(folder)
    assert message_of(lambda: load_model(folder), ModelError, message).startswith(str(folder))


def test_a_folder_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = save(tmp_path / "model"), save(tmp_path / "other", step=2)

    def read_and_replace(path: Path) -> dict[str, torch.Tensor]:
        weights = read_tensors(path)
        exchange(folder, other)
        return weights

    monkeypatch.setattr(model_folder, "read_tensors", read_and_replace)
    told = message_of(lambda: load_model(folder), ModelError)
    assert told == f"{folder}: was replaced while it was read; run the command again"


# ---- finding the model that an argument means


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_a_run_means_its_average_else_its_best_else_its_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (9, 10, 11):
        save(run / "checkpoints" / f"step-{step:08d}", best_metric="nll", valid_nll=None)
    assert find_model(run) == run / "checkpoints" / "step-00000011"
    save(run / "checkpoints" / "step-00000008", best_metric="nll", valid_nll=2.5)
    assert find_model(run) == run / "checkpoints" / "step-00000008"
    save(run / "checkpoints" / "step-00000007", best_metric="nll", valid_nll=2.4)
    assert find_model(run) == run / "checkpoints" / "step-00000007"
    save(run / "averaged")
    assert find_model(run) == run / "averaged"
    # Whatever is stated itself is taken as it is.
    for folder in (run / "averaged", run / "checkpoints" / "step-00000010"):
        assert find_model(folder) == folder


def test_best_means_what_the_runs_best_metric_says(tmp_path: Path) -> None:
    for step, nll, bleu in [(1, 2.0, 30.0), (2, 1.0, 10.0), (3, 1.5, 20.0), (4, None, None)]:
        for metric in ("nll", "bleu"):
            folder = tmp_path / metric / "checkpoints" / f"step-{step:08d}"
            save(folder, best_metric=metric, valid_nll=nll, valid_bleu=bleu)
    steps = ["step-00000001", "step-00000002", "step-00000003"]
    assert names(Run(tmp_path / "nll").best_checkpoints(9)) == [steps[1], steps[2], steps[0]]
    assert names(Run(tmp_path / "bleu").best_checkpoints(9)) == [steps[0], steps[2], steps[1]]
    assert find_model(tmp_path / "bleu").name == steps[0]
    assert names(Run(tmp_path / "nll").best_checkpoints(1)) == [steps[1]]


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "tokenizer/joint.vocab", "provenance.json"])
def test_a_damaged_checkpoint_of_a_run_is_reported_and_the_next_best_one_taken(
    tmp_path: Path, name: str, logged: pytest.LogCaptureFixture
) -> None:
    for step, nll in [(1, 2.0), (2, 1.0), (3, 1.5)]:
        save(tmp_path / "checkpoints" / f"step-{step:08d}", best_metric="nll", valid_nll=nll)
    best = tmp_path / "checkpoints" / "step-00000002"
    content = bytearray((best / name).read_bytes())
    content[len(content) // 2] ^= 0x80
    (best / name).write_bytes(content)
    assert find_model(tmp_path).name == "step-00000003"
    assert names(Run(tmp_path).best_checkpoints(9)) == ["step-00000003", "step-00000001"]
    assert names(Run(tmp_path).whole_checkpoints()) == ["step-00000001", "step-00000003"]
    assert names(Run(tmp_path).whole_checkpoints(1)) == ["step-00000003"]
    warnings = [record.getMessage() for record in logged.records]
    assert any(warning.startswith(str(best / name)) and f"remove {best}" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("previous", "damaged", "whole"),
    [
        ({4: 2, 10: 8, 12: 10}, 10, [12]),
        ({8: 6, 10: 8, 12: 10}, 10, [8, 12]),
        ({8: 6, 10: 8, 12: 10}, 12, [8, 10]),
        ({4: 2, 10: 8, 12: 10}, 12, [10]),
    ],
)
def test_behind_a_damaged_checkpoint_the_succession_goes_on_only_at_the_usual_distance(
    tmp_path: Path, previous: dict[int, int], damaged: int, whole: list[int]
) -> None:
    for step, before in previous.items():
        save(tmp_path / "checkpoints" / f"step-{step:08d}", previous=before)
    (tmp_path / "checkpoints" / f"step-{damaged:08d}" / "provenance.json").write_bytes(b"{")
    assert names(Run(tmp_path).whole_checkpoints(in_succession=True)) == [f"step-{step:08d}" for step in whole]


@pytest.mark.parametrize("content", [b"[]", b'{"files": []}', b'{"files": {}}'])
def test_a_checkpoint_whose_provenance_holds_no_sums_is_passed_over(tmp_path: Path, content: bytes) -> None:
    for step in (1, 2):
        save(tmp_path / "checkpoints" / f"step-{step:08d}")
    (tmp_path / "checkpoints" / "step-00000002" / "provenance.json").write_bytes(content)
    assert find_model(tmp_path).name == "step-00000001"


def test_a_run_of_damaged_checkpoints_has_no_model(tmp_path: Path) -> None:
    (save(tmp_path / "checkpoints" / "step-00000001") / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="every checkpoint is damaged"):
        find_model(tmp_path)


def test_tensors_that_read_back_otherwise_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"weight": torch.tensor([1.0, float("nan"), -0.0])}
    write_tensors(tmp_path / "whole.safetensors", tensors)
    read = model_folder.read_tensors
    monkeypatch.setattr(model_folder, "read_tensors", lambda path: {name: abs(t) for name, t in read(path).items()})
    with pytest.raises(NmtkitError, match=r"does not read back as it was written \(weight\)"):
        write_tensors(tmp_path / "other.safetensors", tensors)


def test_half_written_and_foreign_folders_are_no_checkpoints(tmp_path: Path) -> None:
    kept = save(tmp_path / "checkpoints" / "step-00000005")
    save(tmp_path / "checkpoints" / ".step-00000006.nmtkit-tmp-1")
    (tmp_path / "checkpoints" / "step-00000007").mkdir()
    save(tmp_path / "checkpoints" / "mine")
    assert Run(tmp_path).checkpoints() == [kept]
    assert find_model(tmp_path) == kept


def as_export(folder: Path, to: str) -> None:
    folder.mkdir()
    write_json(folder / "manifest.json", {"to": to, "model": "runs/x"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "no such folder"),
        (lambda folder: folder.write_text("a model?"), "is a file, and no folder"),
        (lambda folder: folder.mkdir(), "neither a model folder nor a run"),
        (lambda folder: (folder / "checkpoints").mkdir(parents=True), "neither a model folder nor a run"),
        (partial(as_export, to="ctranslate2"), r"export of runs/x, which `nmtkit translate` .* CTranslate2Translator"),
        (partial(as_export, to="huggingface"), "an export of runs/x, which transformers reads; here, give the model"),
        (partial(as_export, to="elsewhere"), "neither a model folder nor a run"),
        (lambda folder: (folder / "data").mkdir(parents=True), "no model yet; run `nmtkit train` first"),
    ],
)
def test_a_wrong_folder_is_refused_by_name(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / "given")
    told = message_of(lambda: find_model(tmp_path / "given"), ModelError, message)
    assert told.startswith(f"{tmp_path / 'given'}: ")
