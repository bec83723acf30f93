"""The first GPT from and to the layouts of transformers and OpenAI."""

import json
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    OpenAIGPTConfig,
    OpenAIGPTDoubleHeadsModel,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel,
    OpenAIGPTModel,
    OpenAIGPTTokenizer,
)

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.data.prepare import prepare
from nmtkit.decoding.request import Sampling
from nmtkit.decoding.running_text import Generator, score_text, trained_length
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError
from nmtkit.export import huggingface
from nmtkit.export.export import export
from nmtkit.export.importing import import_model
from nmtkit.export.openai_gpt import their_rows
from nmtkit.json_toml import read_json, write_json
from nmtkit.model.decoder_only import build_model, count_parameters
from nmtkit.model_folder import LoadedModel, load_model, load_tensors, save_model
from nmtkit.run import Run, find_model
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS
from nmtkit.training.session import train
from tests.conftest import message_of, run_command
from tests.export.foreign_folders import changed_json

TINY = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 24}
PIECES = ["<unk>", *"abcdelno!", *(f"{letter}</w>" for letter in "abcdelno!"), "\n</w>", "an", "no", "no</w>", "al"]
MERGES = [("a", "n"), ("n", "o"), ("n", "o</w>"), ("a", "l")]


def write_vocabulary(folder: Path) -> None:
    write_json(folder / "vocab.json", {piece: index for index, piece in enumerate(PIECES)})
    merges = "".join(f"{left} {right}\n" for left, right in MERGES)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")


def write_theirs(folder: Path, kind: type = OpenAIGPTLMHeadModel, **changes: object) -> torch.nn.Module:
    """Write a model of transformers with random weights."""
    torch.manual_seed(1)
    config = OpenAIGPTConfig(**{**TINY, "vocab_size": len(PIECES), "initializer_range": 0.2, **changes})
    model = kind(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases, and gains of norms, of which none is 0 or 1
            parameter.data += 0.1 * torch.randn_like(parameter)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_vocabulary(folder)
    return model


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[torch.nn.Module]:
    yield write_theirs(tmp_path / "theirs")


def imported(folder: Path, output: Path) -> LoadedModel:
    import_model(folder, output, target_language="en")
    return load_model(output)


def logits_of(loaded: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the entries of transformers for its ids."""
    rows = torch.tensor(their_rows(loaded.tokenizer))
    batch = len(ids)
    return loaded.model(torch.full((batch, 1), EOS), torch.ones(batch, dtype=torch.long), rows[ids])[:, :, rows]


def ids_of(batch: int, length: int, vocab_size: int = len(PIECES)) -> torch.Tensor:
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("afn", ["gelu", "relu"])
def test_logits_are_those_of_transformers(tmp_path: Path, afn: str) -> None:
    model = write_theirs(tmp_path / "theirs", afn=afn)
    loaded = imported(tmp_path / "theirs", tmp_path / "ours")
    ids = ids_of(3, TINY["n_positions"])
    theirs = model(ids).logits
    assert theirs.std() > 1
    torch.testing.assert_close(logits_of(loaded, ids), theirs, atol=1e-5, rtol=0)
    config = loaded.model.config
    assert (config.decoder_layers, config.num_heads, config.max_positions) == (2, 4, 24)
    assert count_parameters(config, *[len(PIECES) + 3] * 2) == sum(p.numel() for p in model.parameters()) + 3 * 64


def test_special_entries_are_as_probable_as_an_unknown_token(tmp_path: Path, theirs: torch.nn.Module) -> None:
    table = imported(tmp_path / "theirs", tmp_path / "ours").model.output_embedding
    for row in table[:4]:
        assert torch.equal(row, theirs.transformer.tokens_embed.weight[0])


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        (OpenAIGPTModel, ""),
        (OpenAIGPTDoubleHeadsModel, "multiple_choice_head.summary.bias, multiple_choice_head.summary.weight"),
        (OpenAIGPTForSequenceClassification, "score.weight"),
    ],
)
def test_other_classes_give_their_language_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type, left_out: str
) -> None:
    model = write_theirs(tmp_path / "theirs", kind)
    with caplog.at_level("WARNING", "nmtkit"):
        loaded = imported(tmp_path / "theirs", tmp_path / "ours")
    assert [record.getMessage().endswith(f": {left_out}") for record in caplog.records] == ([True] if left_out else [])
    body = model if kind is OpenAIGPTModel else model.transformer
    expected = body(ids_of(2, 9)).last_hidden_state @ body.tokens_embed.weight.T
    torch.testing.assert_close(logits_of(loaded, ids_of(2, 9)), expected, atol=1e-5, rtol=0)


def test_masks_of_older_files_and_half_precision_are_read(tmp_path: Path, theirs: torch.nn.Module) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "theirs" / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor.half() for name, tensor in load_tensors(path).items()}
    tensors |= {"h.0.attn.bias": torch.ones(1, 1, 24, 24), "position_ids": torch.arange(24)}
    save_file(tensors, path)
    loaded = imported(tmp_path / "theirs", tmp_path / "ours")
    ids = ids_of(2, 9)
    torch.testing.assert_close(logits_of(loaded, ids), theirs.half().float()(ids).logits, atol=1e-5, rtol=0)


def test_a_folder_that_has_only_tokenizer_json_is_read(tmp_path: Path, theirs: torch.nn.Module) -> None:
    folder = tmp_path / "theirs"
    first = imported(folder, tmp_path / "first").tokenizer
    OpenAIGPTTokenizer(vocab=read_json(folder / "vocab.json"), merges=MERGES).save_pretrained(str(folder))
    (folder / "vocab.json").unlink()
    (folder / "merges.txt").unlink()
    assert imported(folder, tmp_path / "second").tokenizer.fingerprint() == first.fingerprint()


def test_a_folder_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    write_released(folder, 1, 64, 20, len(PIECES))
    write_released_vocabulary(folder)
    assert imported(folder, tmp_path / "ours").provenance["imported_from"].startswith(f"{tmp_path}/caf")


def test_text_is_continued_and_scored(tmp_path: Path, theirs: torch.nn.Module) -> None:
    done = run_command("import", tmp_path / "theirs", "--output", tmp_path / "ours", "--target-language", "de")
    assert (done.code, done.out) == (0, f"{tmp_path / 'ours'}\n")
    loaded = load_model(tmp_path / "ours")
    assert loaded.tokenizer.settings["target_language"] == "de"
    generator = Generator([loaded], trained_length([loaded]), loaded.decoding)
    [text] = generator.continuations("Anno\nno", 40, Sampling(seed=1))
    assert text[0] in " \n" and "<" not in text.replace("\u2047", "")
    score = score_text([loaded], ["anno al", "no"], trained_length([loaded]))
    assert (score.tokens, score.words, score.unknown) == (6, 3, 0)
    rows = their_rows(loaded.tokenizer)
    expected = ("an", "no</w>", "a", "l</w>", "\n</w>", "no</w>")  # no merge joins "a" to the end of a word
    assert loaded.tokenizer.encode(["Anno al\ufdd2no"], "target")[0] == [rows[PIECES.index(one)] for one in expected]


def write_released(folder: Path, layers: int, width: int, positions: int, vocab_size: int) -> list[np.ndarray]:
    """Write made-up weights in OpenAI's layout and return them."""
    shapes: list[list[int]] = [[positions, width], [vocab_size, width]]
    for _ in range(layers):
        shapes += [[1, width, 3 * width], [3 * width], [1, width, width], [width], [width], [width]]
        shapes += [[1, width, 4 * width], [4 * width], [1, 4 * width, width], [width], [width], [width]]
    random = np.random.default_rng(1)
    flat = random.standard_normal(sum(int(np.prod(shape)) for shape in shapes), dtype=np.float32)
    flat *= 0.1
    folder.mkdir()
    (folder / "params_shapes.json").write_text(json.dumps(shapes), encoding="utf-8")
    for number, part in enumerate(np.array_split(flat, 10)):
        np.save(folder / f"params_{number}.npy", part)
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def as_theirs(arrays: list[np.ndarray], heads: int) -> OpenAIGPTLMHeadModel:
    """Return a model of transformers with weights in OpenAI's order, that of its authors' `block`."""
    positions, embeddings, *layers = (torch.from_numpy(array) for array in arrays)
    config = OpenAIGPTConfig(
        vocab_size=len(embeddings), n_positions=len(positions), n_embd=embeddings.size(1), n_layer=len(layers) // 12,
        n_head=heads,
    )  # fmt: skip
    model = OpenAIGPTLMHeadModel(config).eval()
    body = model.transformer
    body.positions_embed.weight.data, body.tokens_embed.weight.data = positions, embeddings
    model.tie_weights()
    for block, own in zip(body.h, zip(*[iter(layers)] * 12, strict=True), strict=True):
        modules = (block.attn.c_attn, block.attn.c_proj, block.ln_1, block.mlp.c_fc, block.mlp.c_proj, block.ln_2)
        for module, weight, bias in zip(modules, own[::2], own[1::2], strict=True):
            module.weight.data, module.bias.data = weight.squeeze(0), bias
    return model


def write_released_vocabulary(folder: Path) -> None:
    write_vocabulary(folder)
    (folder / "vocab.json").rename(folder / "encoder_bpe_40000.json")
    (folder / "merges.txt").rename(folder / "vocab_40000.bpe")


def test_the_released_layout_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    arrays = write_released(tmp_path / "released", 3, 128, 20, len(PIECES))
    write_released_vocabulary(tmp_path / "released")
    loaded = imported(tmp_path / "released", tmp_path / "ours")
    ids = ids_of(2, 20)
    torch.testing.assert_close(logits_of(loaded, ids), as_theirs(arrays, 2)(ids).logits, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_arrays_of_the_released_shapes_are_read(tmp_path: Path) -> None:
    arrays = write_released(tmp_path / "released", 12, 768, 512, 40478)
    assert sum(array.size for array in arrays) == 116_534_784
    pieces = ["<unk>", *(f"{number}</w>" for number in range(40477))]
    write_json(tmp_path / "released" / "encoder_bpe_40000.json", {piece: index for index, piece in enumerate(pieces)})
    (tmp_path / "released" / "vocab_40000.bpe").write_text("#version: 0.2\n", encoding="utf-8")
    loaded = imported(tmp_path / "released", tmp_path / "ours")
    assert loaded.model.config.num_heads == 12
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) == 116_534_784 + 3 * 768
    ids = ids_of(1, 64, 40478)
    # Random weights of this size give logits around 30.
    torch.testing.assert_close(logits_of(loaded, ids), as_theirs(arrays, 12)(ids).logits, atol=1e-4, rtol=1e-5)


def test_the_recipe_has_the_published_number_of_parameters() -> None:
    recipe = load_recipe("gpt-books")
    assert count_parameters(recipe.model, *[recipe.data.vocab_size] * 2) == 116_534_784
    assert (recipe.training.weight_decay, recipe.training.warmup_steps, recipe.training.max_epochs) == (0.01, 2000, 100)


@pytest.fixture
def exported(tmp_path: Path, theirs: torch.nn.Module) -> tuple[Path, Path]:
    import_model(tmp_path / "theirs", tmp_path / "ours", target_language="en")
    sample = tmp_path / "sample.txt"
    sample.write_text("Anno al!\n\nno <unk> \u2028 Ä\n" * 20, encoding="utf-8")
    return tmp_path / "ours", export(tmp_path / "ours", "huggingface", sample_file=sample)[0]


def test_an_export_is_what_was_imported(tmp_path: Path, exported: tuple[Path, Path], theirs: torch.nn.Module) -> None:
    ours, folder = exported
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "OpenAIGPTLMHeadModel" and type(tokenizer).__name__ == "OpenAIGPTTokenizer"
    before, after = theirs.state_dict(), model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert read_json(folder / "vocab.json") == read_json(tmp_path / "theirs" / "vocab.json")
    assert (folder / "merges.txt").read_bytes() == (tmp_path / "theirs" / "merges.txt").read_bytes()
    assert tokenizer("Anno al!").input_ids == [PIECES.index(piece) for piece in ("an", "no</w>", "a", "l</w>", "!</w>")]
    parity = read_json(folder / "manifest.json")["parity"]
    assert parity["tokens"] == 4 * 24 and parity["largest_difference_of_logits"] < 1e-10
    again = imported(folder, tmp_path / "again")
    first = load_model(ours)
    assert again.tokenizer.fingerprint() == first.tokenizer.fingerprint()
    weights = again.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in first.model.state_dict().items())


def language_model(folder: Path, **changes: object) -> LoadedModel:
    """Write a language model of characters with random weights."""
    data = DataConfig.model_validate(
        {"task": "language-model", "target_language": "en", "train": ["x"], "subwords": "characters"}
    )
    tokenizer = learn_tokenizer(data, lambda: [("", "to be or not\ufdd2")])
    config = ModelConfig.model_validate(
        {
            "architecture": "decoder", "decoder_layers": 2, "d_model": 16, "d_ff": 64, "num_heads": 2,
            "positions": "learned", "max_positions": 12, "activation": "gelu", "embedding_scale": False, **changes,
        }
    )  # fmt: skip
    size = tokenizer.vocab_size("target")
    torch.manual_seed(5)
    weights = build_model(config, size, size).state_dict()
    lengths = TrainingLengths(longest_source=12, target_ratio=1.0, multi_sentence_share=0.0)
    save_model(folder, weights, config, tokenizer, DecodingConfig(), {"step": 1}, lengths)
    return load_model(folder)


def test_a_model_trained_here_is_exported_and_imported_with_its_own_tokenizer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = language_model(tmp_path / "mine")
    folder, _ = export(tmp_path / "mine", "huggingface")
    assert any("no tokenizer for subwords = characters" in record.getMessage() for record in caplog.records)
    size = loaded.tokenizer.vocab_size("target")
    ids = ids_of(2, 12, size)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(logits_of(loaded, ids), model(ids).logits, atol=1e-5, rtol=0)
    again = imported(folder, tmp_path / "again")
    assert again.tokenizer.fingerprint() == loaded.tokenizer.fingerprint()
    assert torch.equal(logits_of(again, ids), logits_of(loaded, ids))
    assert "give it ids of nmtkit's" in (folder / "README.md").read_text(encoding="utf-8")
    export(tmp_path / "mine", "huggingface")  # replaces the first


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_a_pre_norm_model_is_exported_as_gpt_2(tmp_path: Path, activation: str) -> None:
    loaded = language_model(tmp_path / "mine", norm="pre", activation=activation, d_ff=40)
    folder, _ = export(tmp_path / "mine", "huggingface")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in loaded.model.parameters())
    ids = ids_of(2, 12, loaded.tokenizer.vocab_size("target"))
    torch.testing.assert_close(logits_of(loaded, ids), model(ids).logits, atol=1e-5, rtol=0)
    assert Tokenizer.load(folder / "tokenizer").fingerprint() == loaded.tokenizer.fingerprint()
    with pytest.raises(ModelError, match="model_type is 'gpt2'; these can be imported"):
        import_model(folder, tmp_path / "again", target_language="en")


def test_gpt_2_with_the_subwords_of_gpt_has_its_tokenizer(tmp_path: Path, theirs: torch.nn.Module) -> None:
    first = imported(tmp_path / "theirs", tmp_path / "ours")
    config = first.model.config.model_copy(update={"norm": "pre"})
    size = first.tokenizer.vocab_size("target")
    weights = build_model(config, size, size).state_dict()
    save_model(tmp_path / "mine", weights, config, first.tokenizer, DecodingConfig(), {"step": 1}, first.lengths)
    folder, manifest = export(tmp_path / "mine", "huggingface")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "GPT2LMHeadModel" and model.config.vocab_size == len(PIECES)
    assert tokenizer("Anno al!").input_ids == [PIECES.index(piece) for piece in ("an", "no</w>", "a", "l</w>", "!</w>")]
    ids = ids_of(2, 9)
    torch.testing.assert_close(logits_of(load_model(tmp_path / "mine"), ids), model(ids).logits, atol=1e-5, rtol=0)
    assert manifest["parity"]["largest_difference_of_logits"] < 1e-10


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"positions": "sinusoidal"}, 'positions = "sinusoidal"'),
        ({"embedding_scale": True}, "embedding_scale = true"),
        ({"output_bias": True}, "output_bias = true"),
        ({"share_embeddings": "none"}, 'share_embeddings = "none"'),
        ({"self_attention": ["full", "local"]}, "self_attention = local"),
        ({"attention_window": 4}, "self_attention = window"),
        ({"d_k": 3}, "d_k = 3"),
        ({"d_ff": 32}, "d_ff = 32 where 4 x d_model = 64"),
    ],
)
def test_other_language_models_are_refused(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    language_model(tmp_path / "mine", **changes)
    with pytest.raises(ModelError, match="only the form of GPT and GPT-2 can be converted, without") as caught:
        export(tmp_path / "mine", "huggingface")
    assert named in str(caught.value)
    assert not (tmp_path / "mine" / "export").exists()


def test_other_weights_or_another_tokenizer_are_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: torch.nn.Module
) -> None:
    import_model(tmp_path / "theirs", tmp_path / "ours", target_language="en")
    real = huggingface.their_weights_of_gpt

    def changed(added: float, *arguments: object) -> dict[str, torch.Tensor]:
        weights = real(*arguments)  # type: ignore[arg-type]
        weights["h.0.mlp.c_fc.bias"] = weights["h.0.mlp.c_fc.bias"] + added
        return weights

    for added, difference in ((1e-3, r"[\d.e-]+"), (math.nan, "nan")):
        with monkeypatch.context() as patch:
            patch.setattr(huggingface, "their_weights_of_gpt", partial(changed, added))
            found = rf"not exported: logits for text of built-in corpus .* differ by {difference} in transformers"
            with pytest.raises(ModelError, match=found):
                export(tmp_path / "ours", "huggingface")
    # A control character of Unicode 14, which the tables of transformers' tokenizers do not have yet.
    monkeypatch.setattr(huggingface, "HOSTILE_LINES", ("a\u0890b",))
    with pytest.raises(ModelError, match=r"the tokenizer of transformers cuts the line 'a.*b' differently"):
        export(tmp_path / "ours", "huggingface")
    assert not list((tmp_path / "ours" / "export").iterdir())


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    """Replace or remove tensors, whose names have __ for a full stop."""
    from safetensors.torch import save_file

    new = {name.replace("__", "."): tensor for name, tensor in changes.items()}
    tensors = {**load_tensors(path), **new}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


FAULTS_OF_TRANSFORMERS = {
    "damaged config": (lambda f: (f / "config.json").write_text("{"), r"config.json: not valid JSON"),
    "no layers": (lambda f: changed_json(f / "config.json", n_layer=0), r"n_layer is 0 and not a positive number"),
    "heads": (
        lambda f: changed_json(f / "config.json", n_head=5),
        r"no sizes of a GPT .*not a multiple of num_heads = 5",
    ),
    "dropout": (
        lambda f: changed_json(f / "config.json", resid_pdrop=2),
        r"config.json: no sizes of a GPT \(dropout: ",
    ),
    "activation": (lambda f: changed_json(f / "config.json", afn="silu"), r"afn is 'silu'; only gelu and relu"),
    "norms": (lambda f: changed_json(f / "config.json", layer_norm_epsilon=1e-6), r"layer_norm_epsilon is 1e-06; only"),
    "a tensor less": (
        lambda f: rewrite(f / "model.safetensors", transformer__h__1__ln_2__bias=None),
        r"h.1.ln_2.bias is missing, for a model of the sizes in config.json",
    ),
    "a tensor more": (
        lambda f: rewrite(f / "model.safetensors", transformer__h__2__ln_2__bias=torch.ones(64)),
        r"holds h.2.ln_2.bias, which no GPT has",
    ),
    "other sizes": (
        lambda f: changed_json(f / "config.json", n_positions=25),
        r"positions_embed.weight is float32 of shape \[24, 64\], but config.json needs .* shape \[25, 64\]",
    ),
    "untied": (
        lambda f: rewrite(f / "model.safetensors", lm_head__weight=torch.ones(len(PIECES), 64)),
        r"lm_head.weight is not equal to tokens_embed.weight",
    ),
    "no vocabulary": (lambda f: (f / "vocab.json").unlink(), r"no vocabulary; it needs vocab.json"),
    "no merges": (lambda f: (f / "merges.txt").unlink(), r"merges.txt: no such file"),
    "binary merges": (lambda f: (f / "merges.txt").write_bytes(b"\xff"), r"merges.txt: not UTF-8 text"),
    "a merge of one": (lambda f: append(f / "merges.txt", "an\n"), r"merges.txt, line 6: 'an' is not two pieces"),
    "a merge to nothing": (lambda f: append(f / "merges.txt", "b o\n"), r"line 6: 'b o' is not two pieces .* vocab"),
    "vocabulary too large": (
        lambda f: changed_json(f / "vocab.json", more=len(PIECES)),
        r"vocab.json: 25 entries, but the embeddings have 24 rows; entries that were added",
    ),
    "an id twice": (lambda f: changed_json(f / "vocab.json", an=1), r"each of the ids from 0 on once"),
    "no unknown": (
        lambda f: write_json(f / "vocab.json", {piece or "x": i for i, piece in enumerate(["", *PIECES[1:]])}),
        r"needs an entry <unk>",
    ),
    "vocabulary of lists": (lambda f: (f / "vocab.json").write_text("[]"), r"vocab.json: its content is a list"),
    "another tokenizer": (
        lambda f: (
            (f / "vocab.json").unlink(),
            write_json(f / "tokenizer.json", {"model": {"vocab": {"a": 0}, "merges": []}}),
        ),
        r"tokenizer.json: not the byte-pair encoding of a GPT",
    ),
}


@pytest.mark.parametrize("fault", FAULTS_OF_TRANSFORMERS)
def test_a_folder_that_cannot_be_imported_gives_one_line(tmp_path: Path, theirs: torch.nn.Module, fault: str) -> None:
    damage, message = FAULTS_OF_TRANSFORMERS[fault]
    damage(tmp_path / "theirs")
    new = tmp_path / "ours"
    message_of(lambda: import_model(tmp_path / "theirs", new, target_language="en"), ModelError, message)
    assert not (tmp_path / "ours").exists()


def test_languages_that_an_import_cannot_take_are_refused(tmp_path: Path, theirs: torch.nn.Module) -> None:
    with pytest.raises(ModelError, match="no source language; leave out --source-language"):
        import_model(tmp_path / "theirs", tmp_path / "new", source_language="de")
    language_model(tmp_path / "mine")
    folder, _ = export(tmp_path / "mine", "huggingface")
    with pytest.raises(ModelError, match="its language is 'en', which --target-language cannot change"):
        import_model(folder, tmp_path / "new", target_language="de")
    assert not (tmp_path / "new").exists()
    import_model(folder, tmp_path / "new", target_language="en")
    import_model(tmp_path / "theirs", tmp_path / "german", target_language="de")
    assert load_model(tmp_path / "german").tokenizer.target_languages == ("de",)


def set_shape(folder: Path, number: int, shape: list[int]) -> None:
    shapes = json.loads((folder / "params_shapes.json").read_text())
    shapes[number] = shape
    write_json(folder / "params_shapes.json", shapes)


class _Object:
    """Something that NumPy can only pickle."""


FAULTS_OF_RELEASED = {
    "no array": (lambda f: (f / "params_3.npy").unlink(), r"params_3.npy: no such file; the weights are"),
    "pickled": (
        lambda f: np.save(f / "params_3.npy", np.array([_Object()], dtype=object), allow_pickle=True),
        r"params_3.npy: damaged, or not an array of numbers \(Object arrays cannot be loaded",
    ),
    "empty file": (lambda f: (f / "params_3.npy").write_bytes(b""), r"params_3.npy: damaged"),
    "header of other types": (
        lambda f: (f / "params_3.npy").write_bytes(
            (f / "params_3.npy").read_bytes().replace(b"'descr': '<f4'", b"'descr': ('f4',)")
        ),
        r"params_3.npy: damaged",
    ),
    "cut": (lambda f: (f / "params_3.npy").write_bytes((f / "params_3.npy").read_bytes()[:500]), r"params_3.npy: dama"),
    "not flat": (lambda f: np.save(f / "params_3.npy", np.ones((2, 3))), r"params_3.npy: not a flat array"),
    "integers": (lambda f: np.save(f / "params_3.npy", np.ones(9, np.int64)), r"params_3.npy: not a flat array"),
    "an archive": (
        lambda f: (np.savez(f / "x.npz", np.ones(2)), (f / "x.npz").replace(f / "params_3.npy")),
        r"params_3.npy: damaged",
    ),
    "too few": (
        lambda f: np.save(f / "params_3.npy", np.ones(9)),
        r"hold [\d,]+ numbers, and params_shapes.json needs",
    ),
    "shapes cut": (lambda f: (f / "params_shapes.json").write_text("[[1, 2], [3, 4]]"), r"not the shapes of a GPT"),
    "shapes of text": (lambda f: (f / "params_shapes.json").write_text('{"a": 1}'), r"its content is an object"),
    "another layer": (
        lambda f: set_shape(f, 2, [1, 64, 191]),
        r"tensor 3 is \[64, 191\], and that of h.0.attn.c_attn.weight in a GPT of this width is \[64, 192\]",
    ),
    "another width": (lambda f: set_shape(f, 0, [20, 65]), r"width of the embeddings is 65, .* multiple of 64"),
}


@pytest.mark.parametrize("fault", FAULTS_OF_RELEASED)
def test_released_files_that_contradict_each_other_give_one_line(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "released"
    write_released(folder, 1, 64, 20, len(PIECES))
    write_released_vocabulary(folder)
    damage, message = FAULTS_OF_RELEASED[fault]
    damage(folder)
    message_of(lambda: import_model(folder, tmp_path / "ours", target_language="en"), ModelError, message)
    assert not (tmp_path / "ours").exists()


def test_only_an_imported_model_is_replaced(tmp_path: Path, theirs: torch.nn.Module) -> None:
    folder = tmp_path / "theirs"
    with pytest.raises(DataError, match="exists and is not a model folder"):
        import_model(folder, folder, target_language="en")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="exists and is not a model folder"):
        import_model(folder, tmp_path / "file", target_language="en")
    (tmp_path / "ours").mkdir()
    import_model(folder, tmp_path / "ours", target_language="en")
    import_model(folder, tmp_path / "ours", target_language="en")
    provenance = tmp_path / "ours" / "provenance.json"
    changed_json(provenance, kind="checkpoint")
    with pytest.raises(DataError, match="holds a model that was not imported; give another folder"):
        import_model(folder, tmp_path / "ours", target_language="en")
    changed_json(provenance, kind="import")
    done = run_command("import", folder, "--output", tmp_path / "other", "--target-language", "English!")
    assert done.code == 2 and "must be a language code" in " ".join(done.err.split())
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match=r"theirs: no such folder"):
        import_model(folder, tmp_path / "ours", target_language="en")
    folder.mkdir()
    with pytest.raises(ModelError, match=r"theirs: neither config\.json"):
        import_model(folder, tmp_path / "ours", target_language="en")


RECIPE = (
    '[data]\nsource_language = "{source}"\ntarget_language = "{target}"\ntask = "{task}"\ntrain = [{{ {train} }}]\n'
    'subwords = "gpt-bpe"\nnormalize = []\nsequence_length = 8\ntokenizer = "ours"\n'
    '[model]\narchitecture = "decoder"\ndecoder_layers = 2\nd_model = 64\nd_ff = 256\nnum_heads = 4\n'
    'positions = "learned"\nmax_positions = 24\nactivation = "gelu"\nembedding_scale = false\n'
    '[training]\ninit = "ours"\nvalidate_bleu = false\nsequences_per_update = 4\nmax_steps = 1\nschedule = "constant"\n'
    'peak_learning_rate = 1e-6\nwarmup_steps = 0\nprecision = "float32"\n'
)
TEXT = {"source": "und", "target": "fr", "task": "language-model", "train": 'text = "text.txt"'}
LABELS = {"source": "fr", "target": "zxx", "task": "label", "train": 'source = "text.txt", target = "labels.txt"'}


@pytest.mark.parametrize("task", [TEXT, LABELS], ids=["language model", "labels"])
def test_an_imported_model_is_fine_tuned(tmp_path: Path, theirs: torch.nn.Module, task: dict[str, str]) -> None:
    import_model(tmp_path / "theirs", tmp_path / "ours", target_language="fr")
    (tmp_path / "text.txt").write_text("Anno al!\n" * 40, encoding="utf-8")
    (tmp_path / "labels.txt").write_text("good\nbad\n" * 20, encoding="utf-8")
    recipe = RECIPE.format(**task)
    (tmp_path / "mine.toml").write_text(recipe, encoding="utf-8")
    run, recipe = Run(tmp_path / "run"), load_recipe(str(tmp_path / "mine.toml"))
    prepare(recipe, run.folder)
    tokenizer = Tokenizer.of_model(run.folder)
    expected = ["an", "no</w>", "a", "l</w>", "!</w>"]
    assert tokenizer.pieces(tokenizer.encode(["Anno al!"], "source")[0], "source")[-6:][:5] == expected
    train(recipe, run.folder, Workers.start("cpu", "float32", 1))
    trained = load_model(find_model(run.folder)).model.state_dict()
    for name, tensor in load_model(tmp_path / "ours").model.state_dict().items():
        assert 0 < (trained[name][: len(tensor)] - tensor).abs().max() < 1e-5


def test_a_head_for_choices_gives_the_mc_logits_of_transformers(tmp_path: Path) -> None:
    theirs = write_theirs(tmp_path / "theirs", OpenAIGPTDoubleHeadsModel)
    loaded = imported(tmp_path / "theirs", tmp_path / "ours")
    config, size = loaded.model.config.model_copy(update={"head": "choice"}), loaded.tokenizer.vocab_size("target")
    ours = build_model(config, size, 5).eval()
    head = theirs.multiple_choice_head.summary.state_dict()
    ours.load_state_dict(loaded.model.state_dict() | {f"head.{name}": tensor for name, tensor in head.items()})
    ids, last = ids_of(6, 9), torch.tensor([8, 3, 5, 0, 7, 2])
    expected = theirs(ids.view(2, 3, 9), mc_token_ids=last.view(2, 3)).mc_logits
    rows, sources = torch.tensor(their_rows(loaded.tokenizer)), torch.full((6, 1), EOS)
    states = ours.joined(rows[ids], sources, torch.zeros(6, dtype=torch.long)).states  # type: ignore[operator]
    found = ours.label_output(states, last, torch.tensor([0, 0, 0, 1, 1, 1]), 2)  # type: ignore[operator]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
