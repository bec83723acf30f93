"""What transformers makes of an exported model: the same logits and ids, or no export."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tiny_models import LINES, VALID, make_run, tokenizer_of

from nmtkit.config.decoding_schema import TrainingLengths
from nmtkit.decoding.translator import Translator
from nmtkit.errors import ModelError
from nmtkit.export import ctranslate2, huggingface
from nmtkit.export.export import export
from nmtkit.json_toml import read_json
from nmtkit.model_folder import load_model
from nmtkit.text.vocabulary import EOS, PAD
from tests.conftest import message_of


@pytest.fixture(scope="module", params=["post", "pre"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run") / "mine", encoder_layers=1, norm=request.param)


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    return export(run, "huggingface")[0]


def test_the_logits_are_the_same(run: Path, exported: Path) -> None:
    marian, tokenizer = huggingface.load(exported)
    ours = load_model(run / "averaged").model
    source, target = (
        torch.tensor([[7, 9, 12, 30, 8, EOS], [41, 8, EOS, 0, 0, 0]]),
        torch.tensor([[2, 9, 11], [2, 30, 8]]),
    )
    theirs = marian(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target).logits
    torch.testing.assert_close(theirs, ours(source, torch.tensor([6, 3]), target), atol=1e-4, rtol=1e-4)
    is_pre = load_model(run / "averaged").model.config.norm == "pre"
    assert type(marian).__name__ == ("PegasusForConditionalGeneration" if is_pre else "MarianMTModel")
    assert type(tokenizer).__name__ == "MarianTokenizer"


def test_the_sums_the_sample_and_the_search_are_in_the_manifest(run: Path, exported: Path) -> None:
    assert exported == run / "export" / "huggingface"
    manifest = read_json(exported / "manifest.json")
    assert manifest["parity"]["greedy"]["lines"] == len(VALID)
    assert manifest["parity"]["beam"]["beam"] == 3
    assert set(manifest["files"]) >= {"model.safetensors", "source.spm", "target.spm", "vocab.json", "README.md"}
    assert "this penalty, ((5 + n) / 6)^alpha" in (exported / "README.md").read_text(encoding="utf-8")


def test_translating_from_text_to_text_is_the_same(run: Path, exported: Path) -> None:
    marian, tokenizer = huggingface.load(exported)
    translator = Translator.load([run])
    translator.decoding = translator.decoding.model_copy(update={"beam": 1})
    for line in VALID:
        batch = tokenizer([line], return_tensors="pt")
        output = marian.generate(**batch, num_beams=1, max_length=batch.input_ids.size(1) + 5 + 1)
        assert tokenizer.batch_decode(output, skip_special_tokens=True) == [
            text.strip() for text in translator.translate([line])
        ]


def test_its_tokenizer_gives_the_same_ids_but_where_the_readme_says_so(run: Path, exported: Path) -> None:
    _, theirs = huggingface.load(exported)
    ours = load_model(run / "averaged").tokenizer

    def is_same(line: str) -> bool:
        line = ours.normalize(line)
        return list(theirs(line).input_ids) == [*ours.encode([line], "source")[0], EOS]

    known = ("</s>", "<unk>", "<pad>", "\u2581")
    others = [line for line in (*LINES, *VALID, *huggingface.HOSTILE_LINES) if not any(sign in line for sign in known)]
    assert [line for line in others if not is_same(line)] == []
    told = (exported / "README.md").read_text(encoding="utf-8")
    for line, sign in [("a </s> b", "</s>"), ("a <unk> b", "<unk>"), (">>de<< a", ">>xx<<"), ("a\u2581b", "U+2581")]:
        assert not is_same(line)
        assert sign in told


def test_another_tokenizer_is_refused(run: Path, exported: Path) -> None:
    _, theirs = huggingface.load(exported)
    loaded = load_model(run / "averaged")
    huggingface.check_tokenizer(theirs, loaded, VALID)
    with pytest.raises(ModelError, match=r"cuts the line 'a </s> b' differently, first at token"):
        huggingface.check_tokenizer(theirs, loaded, ["a </s> b"])


def test_weights_in_another_order_are_refused_and_nothing_is_left(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permuted = huggingface.their_weights
    order = torch.arange(16).flip(0)
    monkeypatch.setattr(
        huggingface,
        "their_weights",
        lambda weights, config: {
            name: tensor[:, order]
            if name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight"))
            else tensor
            for name, tensor in permuted(weights, config).items()
        },
    )
    with pytest.raises(ModelError, match=r"not exported: transformers translates line \d+ of"):
        export(run, "huggingface", output=tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"norm": "pre", "positions": "learned", "max_positions": 40}, 'positions = "learned"'),
        ({"share_embeddings": "decoder"}, 'share_embeddings = "decoder"'),
        ({"d_k": 3}, "d_k = 3 where d_model / num_heads = 8"),
        ({"d_v": 9}, "d_v = 9 where d_model / num_heads = 8"),
        ({"subwords": "none"}, 'subwords = "none"'),
        ({"subwords": "wordpiece"}, 'subwords = "wordpiece"'),
        ({"decoder_start": "eos"}, 'decoder_start = "eos"'),
        (
            {"positions": "fairseq", "output_bias": True},
            'positions = "fairseq" without the subwords and languages of an imported model, norm = "post", '
            'decoder_start = "bos", output_bias = true',
        ),
    ],
)
def test_what_transformers_cannot_hold_is_refused_by_name_in_one_line(
    tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    run = make_run(tmp_path / "mine", **changes)
    told = message_of(lambda: export(run, "huggingface"), ModelError)
    assert told == f"no transformers model class supports {named}; choose --format ctranslate2"
    assert not (run / "export").exists()


@pytest.mark.parametrize(
    ("norm", "decoding"),
    [
        ("post", {"beam": 1}),
        ("pre", {"beam": 1, "length_penalty": "none"}),
        ("post", {"beam": 2, "length_penalty": "none"}),
    ],
)
def test_every_search_of_a_recipe_is_exported(tmp_path: Path, norm: str, decoding: dict[str, object]) -> None:
    run = make_run(tmp_path / "mine", encoder_layers=1, norm=norm, decoding=decoding)
    folder, manifest = export(run, "huggingface")
    assert manifest["parity"]["greedy"]["lines"] == len(VALID)
    stated = read_json(folder / "generation_config.json")
    assert stated["num_beams"] == decoding["beam"]
    assert stated.get("length_penalty") == (0.0 if decoding["beam"] == 2 else None)


def test_limits_of_a_recipe_are_exported_named_and_off_in_the_check(tmp_path: Path) -> None:
    limits = {"max_length": 12, "min_length": 7, "no_repeat_ngram": 1}
    run = make_run(tmp_path / "mine", encoder_layers=1, norm="pre", decoding={"beam": 1, **limits})
    folder, manifest = export(run, "huggingface")
    assert manifest["parity"]["greedy"]["lines"] == len(VALID)
    stated = read_json(folder / "generation_config.json")
    assert [stated[key] for key in ("max_length", "min_length", "no_repeat_ngram_size")] == [14, 8, 1]
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "x the source's tokens + 5, max_length 12, min_length 7, no_repeat_ngram 1\n" in readme
    model, tokenizer = huggingface.load(folder)
    [ids] = model.generate(**tokenizer(VALID[:1], return_tensors="pt")).tolist()
    assert 8 <= len(ids) <= 14 and len(set(ids)) == len(ids)


def test_long_sources_and_translations_have_positions(run: Path, tmp_path: Path) -> None:
    lengths = TrainingLengths(longest_source=3000, target_ratio=1.0, multi_sentence_share=1.0, max_source_tokens=3000)
    loaded = dataclasses.replace(load_model(run / "averaged"), lengths=lengths)
    huggingface.write(tmp_path, loaded)
    assert read_json(tmp_path / "config.json")["max_position_embeddings"] >= 3001
    assert read_json(tmp_path / "tokenizer_config.json")["model_max_length"] == 3001
    assert ctranslate2.num_positions(loaded) >= 3001
    long = loaded.decoding.model_copy(update={"max_length": 4000, "max_length_ratio": 1.0})
    huggingface.write(tmp_path, dataclasses.replace(loaded, decoding=long))
    assert read_json(tmp_path / "config.json")["max_position_embeddings"] >= 4002
    assert read_json(tmp_path / "generation_config.json")["max_length"] == 4002


def test_byte_pieces_and_unigram_subwords_are_held_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", subwords="unigram", byte_fallback=True, vocab_size=300, encoder_layers=1)
    folder, manifest = export(run, "huggingface")
    assert manifest["parity"]["greedy"]["lines"] == len(VALID)
    tokenizer = tokenizer_of(subwords="unigram", byte_fallback=True, vocab_size=300)
    _, theirs = huggingface.load(folder)
    assert list(theirs("naïve 😀").input_ids) == [*tokenizer.encode(["naïve 😀"], "source")[0], EOS]
