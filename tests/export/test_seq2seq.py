"""OPUS-MT, M2M-100 and NLLB from folders of transformers: the same logits, ids, translations, and the way back."""

import functools
import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_folders import changed_json, write_m2m100, write_marian
from torch import Tensor
from transformers import AutoTokenizer, M2M100Tokenizer, MarianMTModel, MarianTokenizer, PreTrainedModel

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.request import Segment, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.export import huggingface
from nmtkit.export.export import export
from nmtkit.export.importing import import_model
from nmtkit.export.seq2seq import SHARED
from nmtkit.json_toml import read_json, write_json
from nmtkit.model_folder import LoadedModel, load_model, load_tensors, read_description
from nmtkit.run import Run, find_model
from nmtkit.text.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.training.session import train
from tests.conftest import message_of, run_command
from tests.export.tiny_models import LINES, PAIRS, VALID, make_run

DIRECTIONS: dict[str, dict[str, str]] = {
    "marian": {},
    "tagged": {"target_language": "fra"},
    "m2m100": {"source_language": "en", "target_language": "de"},
    "nllb": {"source_language": "eng_Latn", "target_language": "deu_Latn"},
}
"""Kinds of folders, and a direction of each."""
GREEDY = {"beam": 1, "max_length_ratio": 0.0, "max_length_offset": 37}


def write(folder: Path, kind: str, **changes: Any) -> PreTrainedModel:
    if kind == "marian":
        return write_marian(folder, **changes)
    if kind == "tagged":
        return write_marian(folder, tags=("deu", "fra"), **changes)
    return write_m2m100(folder, nllb=kind == "nllb", **changes)


@pytest.fixture(scope="module")
def of_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], "Imported"]:
    """A folder of a kind with its import; tests only read it."""
    return functools.cache(lambda kind: Imported(tmp_path_factory.mktemp(kind), kind))


@pytest.fixture(params=DIRECTIONS)
def pair(request: pytest.FixtureRequest, of_kind: Callable[[str], "Imported"]) -> "Imported":
    return of_kind(request.param)


class Imported:
    """A model of transformers, and the model folder ``ours`` that is made from it."""

    def __init__(self, folder: Path, kind: str, **changes: Any) -> None:
        self.kind, self.folder, self.ours = kind, folder / "theirs", folder / "ours"
        self.theirs = write(self.folder, kind, **changes)
        import_model(self.folder, self.ours)
        self.loaded: LoadedModel = load_model(self.ours)
        self.tokenizer = self.loaded.tokenizer.in_direction(
            DIRECTIONS[kind].get("target_language"), DIRECTIONS[kind].get("source_language")
        )
        self.their_ids = self._their_ids()

    def _their_ids(self) -> list[int]:
        """Return their id of each entry of nmtkit; -1 for an entry that they have not."""
        names, config = self.tokenizer.pieces(range(self.tokenizer.vocab_size("target")), "target"), self.theirs.config
        if self.kind in ("marian", "tagged"):
            known = read_json(self.folder / "vocab.json")
            return [-1, known["<unk>"], config.decoder_start_token_id, 0, *(known[name] for name in names[4:])]
        return [1, 3, 0, 2, *range(4, config.vocab_size)]

    def to_theirs(self, ids: Tensor) -> Tensor:
        """Return their ids; padding becomes theirs."""
        table = torch.tensor(self.their_ids)
        table[PAD] = self.theirs.config.pad_token_id
        return table[ids]

    def translate(self, lines: list[str], **decoding: object) -> list[tuple[list[int], str]]:
        """Return ids and text of nmtkit's translations."""
        translator = Translator.load(self.ours)
        translator.decoding = translator.decoding.model_copy(update={**GREEDY, **decoding})
        found = translator.translations(lines, TranslationRequest(**DIRECTIONS[self.kind]))
        index = {piece: number for number, piece in enumerate(self.tokenizer.entries("target"))}
        return [([index[piece] for piece in best.pieces], best.text) for best, *_ in found]

    def generate(self, sources: list[list[int]]) -> list[list[int]]:
        """Return nmtkit's ids of translations by transformers, which excludes what nmtkit never generates."""
        start, ours = self.tokenizer.target_start, {theirs: ours for ours, theirs in enumerate(self.their_ids)}
        bad = [[self.their_ids[index]] for index in self.tokenizer.suppressed_ids if self.their_ids[index] >= 0]
        found = []
        for ids in sources:
            output = self.theirs.generate(
                self.to_theirs(torch.tensor([[*ids, EOS]])), num_beams=1, do_sample=False,
                max_length=39 + len(start), bad_words_ids=bad, forced_bos_token_id=start[0] if start else None,
                forced_eos_token_id=self.theirs.config.eos_token_id,
            )[0].tolist()  # fmt: skip
            output = [ours[index] for index in output[1 + len(start) :]]
            found.append(output[: output.index(EOS)] if EOS in output else output)
        return found


def logits_of(model: Imported) -> tuple[Tensor, Tensor]:
    """Return nmtkit's logits and those of transformers for the entries of both, for padded random ids."""
    generator = torch.Generator().manual_seed(3)
    size = len(model.their_ids)
    source = torch.randint(4, size, (3, 11), generator=generator)
    lengths = torch.tensor([11, 4, 8])
    source[torch.arange(11) >= lengths[:, None]] = PAD
    target = torch.randint(4, size, (3, 9), generator=generator)
    target[:, 0] = BOS
    their_target = model.to_theirs(target)
    their_target[:, 0] = model.theirs.config.decoder_start_token_id
    mask = (source != PAD).long()
    logits = model.theirs(model.to_theirs(source), attention_mask=mask, decoder_input_ids=their_target).logits
    common = [index for index, theirs in enumerate(model.their_ids) if theirs >= 0]
    theirs = logits[:, :, [model.their_ids[index] for index in common]]
    return model.loaded.model(source, lengths, target)[:, :, common], theirs


# ---- the same model


@torch.inference_mode()
@pytest.mark.parametrize("kind", DIRECTIONS)
def test_logits_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    ours, theirs = logits_of(Imported(tmp_path, kind, gain=1))
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize(("kind", "activation"), [("marian", "gelu_new"), ("m2m100", "silu")])
def test_activations_and_unscaled_embeddings_are_those_of_transformers(
    tmp_path: Path, kind: str, activation: str
) -> None:
    ours, theirs = logits_of(Imported(tmp_path, kind, activation_function=activation, scale_embedding=False, gain=1))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["marian", "m2m100"])
@pytest.mark.parametrize("key", ["scale_embedding", "dropout", "attention_dropout", "activation_dropout"])
def test_a_missing_setting_has_the_default_of_transformers(tmp_path: Path, kind: str, key: str) -> None:
    model = Imported(tmp_path, kind, gain=1)
    changed_json(model.folder / "config.json", **{key: None})
    model.theirs = type(model.theirs).from_pretrained(model.folder, dtype=torch.float32).eval()
    import_model(model.folder, tmp_path / "again")
    model.loaded = load_model(tmp_path / "again")
    own = {"scale_embedding": "embedding_scale", "activation_dropout": "ffn_dropout"}.get(key, key)
    assert getattr(model.loaded.model.config, own) == getattr(model.theirs.config, key)
    ours, theirs = logits_of(model)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_sizes_and_settings_are_those_of_the_folder(pair: Imported) -> None:
    config = pair.loaded.model.config
    sizes = (config.d_model, config.d_ff, config.encoder_layers, config.decoder_layers, config.num_heads)
    assert sizes == (32, 48, 2, 2, 4)
    if pair.kind in ("marian", "tagged"):
        assert (config.norm, config.activation, config.output_bias) == ("post", "silu", True)
    else:
        assert (config.norm, config.activation, config.output_bias) == ("pre", "relu", False)
        assert (config.positions, config.decoder_start) == ("fairseq", "eos")
    assert pair.loaded.lengths is not None and pair.loaded.lengths.longest_source == 127


@torch.inference_mode()
def test_entries_that_they_have_not_take_no_probability(pair: Imported) -> None:
    """So that the probabilities of all others are those of transformers, in float64 too."""
    logits = pair.loaded.model.double()(torch.tensor([[9, EOS]]), torch.tensor([2]), torch.tensor([[BOS]]))[0, 0]
    made_up = [index for index, theirs in enumerate(pair.their_ids) if theirs < 0]
    assert len(made_up) == (1 if pair.kind in ("marian", "tagged") else 0)
    others = torch.tensor([index for index in range(len(logits)) if index not in made_up])
    torch.testing.assert_close(logits.softmax(0)[others], logits[others].softmax(0), rtol=1e-15, atol=0)
    assert not made_up or float(logits.softmax(0)[made_up]) < 1e-30
    pair.loaded.model.float()


# ---- text


def test_ids_of_text_are_those_of_marians_tokenizer(of_kind: Callable[[str], Imported]) -> None:
    model = of_kind("marian")
    theirs = MarianTokenizer.from_pretrained(model.folder)
    known = ("</s>", "<unk>", "<pad>")  # special tokens there, text for nmtkit
    lines = [line for line in (*LINES, *huggingface.HOSTILE_LINES) if not any(sign in line for sign in known)]
    assert len(lines) > 30
    for side, switched in (("source", lambda line: theirs(line)), ("target", lambda line: theirs(text_target=line))):
        rows = model.tokenizer.encode([model.tokenizer.normalize(line, side) for line in lines], side)
        for line, ids in zip(lines, rows, strict=True):
            assert [model.their_ids[index] for index in [*ids, EOS]] == switched(line).input_ids, line
    source, target = (model.tokenizer.encode(["the old dog"], side)[0] for side in ("source", "target"))
    assert source != target  # two models of sentencepiece, one vocabulary
    assert model.tokenizer.shares_vocabulary


def test_ids_of_text_are_those_of_m2m100s_tokenizer(of_kind: Callable[[str], Imported]) -> None:
    model = of_kind("m2m100")
    theirs = M2M100Tokenizer.from_pretrained(model.folder, src_lang="en")
    known = ("</s>", "<unk>", "<pad>", "<s>")
    lines = [line for line in (*LINES, *huggingface.HOSTILE_LINES) if not any(sign in line for sign in known)]
    rows = model.tokenizer.encode([model.tokenizer.normalize(line) for line in lines], "source")
    for line, ids in zip(lines, rows, strict=True):
        if ids:  # nmtkit does not translate a line without text
            assert [model.their_ids[index] for index in [*ids, EOS]] == theirs(line).input_ids, line
    assert model.their_ids[model.tokenizer.target_start[0]] == theirs.get_lang_id("de")


def test_ids_of_nllb_are_those_of_sentencepiece_plus_1(of_kind: Callable[[str], Imported]) -> None:
    """As in fairseq, whose first entries are others; the languages follow in the order of their list."""
    import sentencepiece

    model = of_kind("nllb")
    subwords = sentencepiece.SentencePieceProcessor(model_file=str(model.folder / "sentencepiece.bpe.model"))
    for line in VALID:
        english, *ids = model.tokenizer.encode([line], "source")[0]
        assert [model.their_ids[index] - 1 for index in ids] == subwords.encode(line)
        assert model.their_ids[english] == len(subwords) + 2
    assert model.tokenizer.target_start == (len(subwords) + 1,)


@pytest.mark.parametrize("file", ["tokenizer.json", "special_tokens_map.json"])
def test_languages_of_nllb_are_in_any_of_the_files_of_its_tokenizer(tmp_path: Path, file: str) -> None:
    model = Imported(tmp_path, "nllb")
    names = read_json(model.folder / "special_tokens_map.json")["additional_special_tokens"]
    if file == "tokenizer.json":
        first = model.their_ids[model.tokenizer.target_start[0]]
        added = [{"id": first + number, "content": name, "special": True} for number, name in enumerate(names)]
        write_json(model.folder / file, {"added_tokens": [{"id": 0, "content": "<s>"}, *added]})
        (model.folder / "special_tokens_map.json").unlink()
    else:
        write_json(model.folder / file, {"additional_special_tokens": [{"content": name} for name in names]})
    import_model(model.folder, tmp_path / "again")
    assert load_model(tmp_path / "again").tokenizer.fingerprint() == model.tokenizer.fingerprint()


def test_a_piece_of_the_other_side_is_decoded_as_it_is(of_kind: Callable[[str], Imported]) -> None:
    tokenizer = of_kind("marian").tokenizer
    ids = tokenizer.encode(["the cat"], "source")[0]
    assert tokenizer.translation(ids) == "the cat"
    assert tokenizer.translation([*tokenizer.encode(["die Katze"], "target")[0], *ids]) == "die Katze the cat"
    assert tokenizer.translation([PAD, BOS, *ids, UNK, EOS]).startswith("the cat")


# ---- the same translations


def test_greedy_translations_are_those_of_transformers(pair: Imported) -> None:
    sources = pair.tokenizer.encode(VALID, "source")
    ours, theirs = pair.translate(VALID), pair.generate(sources)
    assert [ids for ids, _ in ours] == theirs
    assert len({tuple(ids) for ids in theirs}) > 5
    if pair.kind == "marian":
        tokenizer = MarianTokenizer.from_pretrained(pair.folder)
        texts = [tokenizer.decode([pair.their_ids[index] for index in ids]) for ids in theirs]
        assert [text for _, text in ours] == texts
    if pair.kind == "m2m100":
        m2m100 = M2M100Tokenizer.from_pretrained(pair.folder)
        texts = [m2m100.decode([pair.their_ids[index] for index in ids]) for ids in theirs]
        assert [text for _, text in ours] == texts


def test_log_probabilities_are_those_of_transformers_by_search_and_by_force(pair: Imported) -> None:
    decoder = ForcedDecoder.load(pair.ours, **DIRECTIONS[pair.kind])
    translator = Translator.load(pair.ours)
    translator.decoding = translator.decoding.model_copy(update=GREEDY)
    found = translator.translations(VALID[:5], TranslationRequest(**DIRECTIONS[pair.kind]))
    index = {piece: number for number, piece in enumerate(pair.tokenizer.entries("target"))}
    start = pair.tokenizer.target_start
    hypotheses = [[*start, *(index[piece] for piece in best.pieces)] for best, *_ in found]
    sources = pair.tokenizer.encode(VALID[:5], "source")
    forced = decoder.score_ids(sources, hypotheses, unscored=[len(start)] * 5)
    for source, ids, score, [best, *_] in zip(sources, hypotheses, forced, found, strict=True):
        read = pair.to_theirs(torch.tensor([[BOS, *ids]]))
        read[0, 0] = pair.theirs.config.decoder_start_token_id
        with torch.inference_mode():
            logits = pair.theirs(pair.to_theirs(torch.tensor([[*source, EOS]])), decoder_input_ids=read).logits[0]
        out = [pair.their_ids[token] for token in [*ids, EOS]]
        theirs = logits.log_softmax(-1)[range(len(out)), out][len(start) :]
        torch.testing.assert_close(torch.tensor(best.token_log_probs), theirs, atol=2e-5, rtol=0)
        torch.testing.assert_close(torch.tensor(score.log_probs).float(), theirs, atol=2e-5, rtol=0)
        assert best.log_prob == pytest.approx(sum(best.token_log_probs), abs=1e-4)


def test_scores_of_text_are_those_of_its_translation(of_kind: Callable[[str], Imported]) -> None:
    model = of_kind("m2m100")
    decoder = ForcedDecoder.load(model.ours, **DIRECTIONS["m2m100"])
    [score] = decoder.score([("the old dog", "die alte Katze")])
    ids = model.tokenizer.encode(["die alte Katze"], "target")[0]
    assert score.ids == (*ids, EOS)  # without the language, with which the decoder begins
    source = model.tokenizer.encode(["the old dog"], "source")
    [expected] = decoder.score_ids(source, [[*model.tokenizer.target_start, *ids]], unscored=[1])
    assert score == expected
    [other] = ForcedDecoder.load(model.ours, source_language="en", target_language="cs").score(
        [("the old dog", "die alte Katze")]
    )
    assert other.log_prob != score.log_prob


def test_constraints_and_samples_begin_after_the_language(of_kind: Callable[[str], Imported]) -> None:
    model = of_kind("m2m100")
    translator = Translator.load(model.ours)
    request = TranslationRequest(prefixes=["die"] * 3, required=[["rote"]] * 3, n_best=2, **DIRECTIONS["m2m100"])
    for best, *_ in translator.translations(VALID[:3], request):
        assert best.text.startswith("die") and "rote" in best.text
        assert len(best.token_log_probs) == len(best.pieces) + 1
        assert not best.is_unsatisfied
    limits = translator.decoding.model_copy(update={"min_length": 3, "max_length": 4})
    translator.decoding = limits
    assert {3, 4} >= {len(best.pieces) for best, *_ in translator.translations(VALID, TranslationRequest(
        **DIRECTIONS["m2m100"]))}  # fmt: skip


# ---- files of weights


def pickled(folder: Path, content: object, name: str = "pytorch_model.bin") -> None:
    torch.save(content, folder / name)
    (folder / "model.safetensors").unlink(missing_ok=True)


def sharded(folder: Path, kind: str) -> None:
    """Cut model.safetensors into two shards with an index."""
    from safetensors.torch import save_file

    tensors = load_tensors(folder / "model.safetensors")
    names = sorted(tensors)
    shard_of = {name: f"part-{number % 2}.{kind}" for number, name in enumerate(names)}
    for shard in set(shard_of.values()):
        own = {name: tensors[name] for name in names if shard_of[name] == shard}
        if kind == "bin":
            torch.save(own, folder / shard)
        else:
            save_file(own, folder / shard)
    stem = "pytorch_model.bin" if kind == "bin" else "model.safetensors"
    write_json(folder / f"{stem}.index.json", {"metadata": {}, "weight_map": shard_of})
    (folder / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, to be copied."""
    folder = tmp_path_factory.mktemp("original") / "marian"
    write_marian(folder)
    return folder


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "m2m100"
    write_m2m100(folder)
    return folder


def weights_of(folder: Path, output: Path) -> dict[str, Tensor]:
    import_model(folder, output)
    return load_model(output).model.state_dict()


@pytest.mark.parametrize("kind", ["shards", "pickle", "shards of pickles"])
def test_weights_in_other_files_are_the_same(tmp_path: Path, marian: Path, kind: str) -> None:
    folder = shutil.copytree(marian, tmp_path / "marian")
    expected = weights_of(folder, tmp_path / "first")
    if kind == "pickle":
        pickled(folder, load_tensors(folder / "model.safetensors"))
    else:
        sharded(folder, "bin" if kind == "shards of pickles" else "safetensors")
    found = weights_of(folder, tmp_path / "second")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_all_names_of_one_matrix_tables_of_positions_and_half_precision_are_read(tmp_path: Path, marian: Path) -> None:
    folder = shutil.copytree(marian, tmp_path / "marian")
    expected = weights_of(folder, tmp_path / "first")
    theirs = weights_under_all_names(folder)
    pickled(folder, {name: tensor.half() for name, tensor in theirs.items()})
    found = weights_of(folder, tmp_path / "second")
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], tensor.half().float())


def weights_under_all_names(folder: Path) -> dict[str, Tensor]:
    """Return weights as older versions of transformers saved them: a shared matrix by each name, and the positions."""
    model = MarianMTModel.from_pretrained(folder)
    found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert {"lm_head.weight", "model.shared.weight", "model.encoder.embed_positions.weight"} <= found.keys()
    return found


# ---- settings of the search


@pytest.mark.parametrize("kind", ["marian", "m2m100"])
def test_generation_settings_become_decoding_settings(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "theirs"
    write(folder, kind)
    stated = {"num_beams": 6, "length_penalty": 0.5, "max_length": 50, "min_length": 4, "no_repeat_ngram_size": 3}
    changed_json(folder / "generation_config.json", **stated)
    import_model(folder, tmp_path / "ours")
    decoding = Translator.load(tmp_path / "ours").decoding
    assert (decoding.beam, decoding.length_penalty, decoding.alpha, decoding.no_repeat_ngram) == (6, "length", 0.5, 3)
    forced = 1 if kind == "m2m100" else 0  # transformers counts the language, and the symbols at both ends
    assert (decoding.max_length, decoding.min_length) == (48 - forced, 3 - forced)
    (tmp_path / "back").mkdir()
    loaded = load_model(tmp_path / "ours")
    huggingface.write(tmp_path / "back", replace(loaded, tokenizer=loaded.tokenizer.in_direction("de", "en")))
    assert stated.items() <= read_json(tmp_path / "back" / "generation_config.json").items()
    changed_json(folder / "generation_config.json", max_new_tokens=20, length_penalty=None)
    import_model(folder, tmp_path / "ours")
    decoding = Translator.load(tmp_path / "ours").decoding
    assert (decoding.max_length, decoding.alpha) == (19 - forced, 1.0)


def test_older_folders_have_these_settings_in_config_json(tmp_path: Path, marian: Path) -> None:
    folder = shutil.copytree(marian, tmp_path / "marian")
    (folder / "generation_config.json").unlink()
    changed_json(folder / "config.json", num_beams=7, max_length=20)
    import_model(folder, tmp_path / "ours")
    assert read_description(tmp_path / "ours")["decoding"]["beam"] == 7
    assert read_description(tmp_path / "ours")["decoding"]["max_length"] == 18


def test_settings_without_a_counterpart_are_named(
    tmp_path: Path, marian: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(marian, tmp_path / "marian")
    ids = read_json(folder / "vocab.json")
    never = [[ids["<pad>"]], [ids["<unk>"]]]
    off = {"num_beam_groups": 1, "encoder_repetition_penalty": 1.0, "penalty_alpha": 0.0, "force_words_ids": None,
           "renormalize_logits": False}  # fmt: skip
    changed = {"do_sample": True, "repetition_penalty": 1.3, "min_new_tokens": 3, "encoder_no_repeat_ngram_size": 2,
               "exponential_decay_length_penalty": [9, 1.1], "renormalize_logits": True,
               "bad_words_ids": [*never, [9, 10]], "forced_bos_token_id": 9}  # fmt: skip
    for settings, named in (({**off, "bad_words_ids": never}, []), ({**off, **changed}, [", ".join(changed)])):
        caplog.clear()
        changed_json(folder / "generation_config.json", **settings)
        with caplog.at_level("WARNING", "nmtkit"):
            import_model(folder, tmp_path / "ours")
        messages = [record.getMessage().split(": ", 1)[1] for record in caplog.records]
        assert messages == [f"nmtkit has no counterpart of {names}; left out" for names in named]


# ---- languages


def test_the_tag_of_the_target_may_also_be_in_the_text(of_kind: Callable[[str], Imported]) -> None:
    translator = Translator.load(of_kind("tagged").ours)
    code, other = translator.tokenizer.target_languages[:2]
    expected = translator.translate(VALID, target_language=code)
    for tag in (f">>{code}<< ", f">>{code}<<"):
        assert translator.translate([tag + line for line in VALID], target_language=code) == expected
    assert translator.tokenizer.in_direction(code).encode([f">>{other}<<"], "source") != [[]]
    with pytest.raises(DataError, match=rf"with --to \(target_language\), not by >>{code}<< in the text$"):
        translator.translate([f">>{code}<< {VALID[0]}"])


def test_a_wrong_or_missing_language_gives_one_line_with_the_known_ones(tmp_path: Path, m2m100: Path) -> None:
    import_model(m2m100, tmp_path / "ours")
    translator = Translator.load(tmp_path / "ours")
    for languages, message in (
        ({}, r"several source languages; choose one of en, ha, is, .* with --from \(source_language\)"),
        ({"source_language": "en"}, r"several target languages; choose one of en, ha, .* with --to"),
        ({"source_language": "fr", "target_language": "de"}, r'not know the source language "fr"; choose one of en'),
        ({"source_language": "en", "target_language": "fr"}, r'not know the target language "fr"; choose one of en'),
    ):
        with pytest.raises(DataError, match=message):
            translator.translate(["the dog"], **languages)


def test_one_of_both_languages_can_be_a_default(tmp_path: Path, m2m100: Path) -> None:
    import_model(m2m100, tmp_path / "ours", target_language="ha")
    translator = Translator.load(tmp_path / "ours")
    assert translator.translate(["the dog"], source_language="en") == translator.translate(
        ["the dog"], source_language="en", target_language="ha"
    )


def test_of_hundreds_of_languages_those_like_the_wrong_one_are_listed(tmp_path: Path, m2m100: Path) -> None:
    folder = shutil.copytree(m2m100, tmp_path / "m2m100")
    changed_json(folder / "tokenizer_config.json", language_codes=None)  # the 100 of M2M-100
    size = len(read_json(folder / "vocab.json")) + 108
    changed_json(folder / "config.json", vocab_size=size)
    tensors = load_tensors(folder / "model.safetensors")
    [name] = [name for name in tensors if name.endswith("shared.weight") or "embed_tokens" in name or "lm_head" in name]
    pickled(folder, {**tensors, name: torch.randn(size, 32)})
    import_model(folder, tmp_path / "ours")
    translator = Translator.load(tmp_path / "ours")
    assert len(translator.tokenizer.target_languages) == 100
    with pytest.raises(DataError) as caught:
        translator.translate(["the dog"], source_language="en", target_language="deu")
    assert "choose one of de, " in str(caught.value) and "(100 codes" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_languages_are_those_of_the_folder_or_of_options(tmp_path: Path, marian: Path, m2m100: Path) -> None:
    folder = shutil.copytree(marian, tmp_path / "marian")
    changed_json(folder / "tokenizer_config.json", source_lang="ROMANCE", target_lang="deu")
    import_model(folder, tmp_path / "ours")
    assert load_model(tmp_path / "ours").tokenizer.languages == ("und", "deu")
    options = ("--source-language", "fr", "--target-language", "de", "--output", tmp_path / "ours")
    done = run_command("import", folder, *options)
    assert done.code == 0 and "replaced" not in done.err
    assert load_model(tmp_path / "ours").tokenizer.languages == ("fr", "de")
    done = run_command("import", m2m100, *options)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert 'does not know the source language "fr"; choose one of en' in done.err
    done = run_command("import", m2m100, "--source-language", "en", "--output", tmp_path / "ours")
    assert done.code == 0 and f"{tmp_path / 'ours'}: replaced another model that was in this folder" in done.err
    assert Translator.load(tmp_path / "ours").translate(["the dog"], target_language="de") == Translator.load(
        tmp_path / "ours"
    ).translate(["the dog"], source_language="en", target_language="de")


# ---- use as any other model


def test_commands_translate_and_score_with_an_imported_model(tmp_path: Path, m2m100: Path) -> None:
    done = run_command("import", m2m100, "--output", tmp_path / "ours")
    assert (done.code, done.out) == (0, f"{tmp_path / 'ours'}\n")
    stated = tomllib.loads(done.err.partition("a recipe that starts from it states:\n")[2])
    assert ModelConfig.model_validate(stated["model"]) == load_model(tmp_path / "ours").model.config
    search = DecodingConfig.model_validate({**stated["decoding"], "average_last": 1})
    assert search == load_model(tmp_path / "ours").decoding != DecodingConfig(average_last=1)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in VALID), encoding="utf-8")
    arguments = ("translate", tmp_path / "ours", "--input", tmp_path / "text", "--threads", "1")
    done = run_command(*arguments, "--from", "en", "--to", "de")
    expected = Translator.load(tmp_path / "ours").translate(VALID, source_language="en", target_language="de")
    assert done.out.split("\n")[:-1] == expected
    assert run_command(*arguments, "--from", "de", "--to", "en").out != done.out
    missing = run_command(*arguments, "--to", "de")
    assert missing.code == 1 and missing.err.count("\n") == 1 and "--from" in missing.err
    (tmp_path / "out").write_text(done.out, encoding="utf-8")
    scoring = ("score", "--model", tmp_path / "ours", "--source", tmp_path / "text", "--hypothesis", tmp_path / "out")
    scored = run_command(*scoring, "--from", "en", "--to", "de", "--threads", "1")
    assert scored.code == 0 and scored.out.count("\n") == len(VALID)
    assert run_command(*scoring, "--threads", "1").code == 1


def test_models_of_one_vocabulary_form_an_ensemble(tmp_path: Path) -> None:
    first = Imported(tmp_path / "first", "marian")
    second = Imported(tmp_path / "second", "marian", dropout=0.3)
    weights = second.loaded.model.state_dict()
    assert first.loaded.tokenizer.fingerprint() == second.loaded.tokenizer.fingerprint()
    alone = Translator.load([first.ours]).translate(VALID)
    assert Translator.load([first.ours, first.ours]).translate(VALID) == alone
    assert weights.keys() == first.loaded.model.state_dict().keys()
    other = Imported(tmp_path / "third", "tagged")
    with pytest.raises(ModelError, match="its vocabulary differs"):
        Translator.load([first.ours, other.ours])


@pytest.mark.parametrize("to", ["huggingface", "ctranslate2"])
def test_an_imported_model_is_exported_with_the_same_translations(pair: Imported, tmp_path: Path, to: str) -> None:
    sample = tmp_path / "sample"
    sample.write_text("".join(f"{line}\n" for line in VALID), encoding="utf-8")
    folder, manifest = export(pair.ours, to, output=tmp_path / "exported", sample_file=sample)
    greedy = manifest["parity"]["greedy"]
    assert (greedy["lines"], greedy["identical"]) == (len(VALID), 1.0)
    starts = pair.loaded.tokenizer.settings.get("target_starts", {})
    assert manifest["target_starts"].keys() == manifest["source_tags"].keys() == starts.keys()
    assert ("`target_starts` in manifest.json" in (folder / "README.md").read_text(encoding="utf-8")) == bool(starts)
    if to == "ctranslate2":
        return
    assert manifest["parity"]["beam"]["identical"] >= 0.5  # the searches differ, the models do not
    tags = pair.loaded.tokenizer.settings.get("target_tags", {})
    assert manifest["target_tags"].keys() == tags.keys()
    for code, tag in manifest["target_tags"].items():
        assert tag in read_json(folder / "vocab.json")
        line = f"- First token of the source for a translation to {code}: {tag}\n"
        assert line in (folder / "README.md").read_text(encoding="utf-8")
    if pair.kind == "nllb":  # the ids of its languages and of <mask> in transformers are those of the model
        theirs = AutoTokenizer.from_pretrained(folder)
        entries = pair.tokenizer.pieces(range(pair.tokenizer.vocab_size("source")), "source")
        assert [theirs.convert_tokens_to_ids(code) for code in starts] == [entries.index(code) for code in starts]
        assert theirs.convert_tokens_to_ids("<mask>") == max(map(entries.index, starts)) + 1
    import_model(folder, tmp_path / "back")
    back = load_model(tmp_path / "back")
    assert back.model.config == pair.loaded.model.config
    assert back.tokenizer.fingerprint() == pair.loaded.tokenizer.fingerprint()
    expected = pair.loaded.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in back.model.state_dict().items())


@pytest.mark.parametrize("to", ["huggingface", "ctranslate2"])
def test_an_entry_that_is_never_generated_is_not_generated_after_an_export(tmp_path: Path, to: str) -> None:
    theirs = write_m2m100(tmp_path / "theirs", nllb=True)
    rows, norm = theirs.model.shared.weight, theirs.model.decoder.layer_norm
    language = len(rows) - 3  # fra_Latn
    with torch.no_grad():
        rows[language] = 5 * norm.bias  # where the states of the decoder are on average
    assert theirs.generate(torch.tensor([[5, 6, 2]]), num_beams=1, max_length=5)[0, 1:-1].tolist() == [language] * 3
    theirs.save_pretrained(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours", target_language="deu_Latn")
    sample = tmp_path / "sample"
    sample.write_text("".join(f"{line}\n" for line in VALID), encoding="utf-8")
    _, manifest = export(tmp_path / "ours", to, output=tmp_path / "exported", sample_file=sample)
    assert manifest["parity"]["greedy"]["identical"] == 1.0


def test_without_protobuf_its_tokenizer_is_not_exported(
    of_kind: Callable[[str], Imported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "find_spec", lambda name: None if name == "google" else name)
    with pytest.raises(ModelError, match="needs protobuf for this tokenizer; run `pip install 'nmtkit"):
        export(of_kind("nllb").ours, "huggingface", output=tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_an_export_to_ctranslate2_is_an_engine_for_languages(tmp_path: Path) -> None:
    model = Imported(tmp_path, "m2m100")
    export(model.ours, "ctranslate2", output=model.ours / "export" / "ctranslate2")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in VALID), encoding="utf-8")
    arguments = ("translate", model.ours, "--input", tmp_path / "text", "--beam", "1", "--threads", "1")
    found = {
        engine: [
            run_command(*arguments, "--engine", engine, "--from", "en", "--to", target).out for target in ("de", "cs")
        ]
        for engine in ("torch", "ctranslate2")
    }
    assert found["torch"] == found["ctranslate2"]
    assert found["torch"][0] != found["torch"][1]


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "activation": "gelu", "embedding_scale": False}])
def test_nmtkits_own_exports_can_be_imported(tmp_path: Path, changes: dict[str, object]) -> None:
    run = make_run(tmp_path / "mine", encoder_layers=1, **changes)
    folder, _ = export(run, "huggingface")
    import_model(folder, tmp_path / "back")
    ours, back = load_model(run / "averaged"), load_model(tmp_path / "back")
    assert back.model.config == ours.model.config.model_copy(update={"attention_dropout": 0.0})
    assert all(torch.equal(t, back.model.state_dict()[name]) for name, t in ours.model.state_dict().items())
    assert back.tokenizer.encode(VALID, "source") == ours.tokenizer.encode(VALID, "source")
    assert Translator.load(tmp_path / "back").decoding.beam == 3


RECIPE = """
[data]
source_language = "{source}"
target_language = "{target}"
train = [{{ source = "train.en", target = "train.de" }}]
valid = [{{ source = "valid.en", target = "valid.de" }}]
test = [{{ source = "valid.en", target = "valid.de" }}]
subwords = "imported"
tokenizer = "ours"
[model]
{model}
[training]
init = "ours"
tokens_per_update = 200
max_steps = 2
schedule = "constant"
peak_learning_rate = 1e-6
warmup_steps = 0
validate_every_steps = 2
precision = "float32"
[decoding]
beam = 1
max_length = 8
"""


def write_texts(folder: Path) -> None:
    for name, pairs in (("train", PAIRS[:60]), ("valid", PAIRS[60:66])):
        for side, code in enumerate(("en", "de")):
            text = "".join(f"{each[side]}\n" for each in pairs)
            (folder / f"{name}.{code}").write_text(text, encoding="utf-8")


def changed_settings(config: ModelConfig) -> str:
    """The lines of [model] that differ from the defaults."""
    defaults = ModelConfig().model_dump()
    stated = {key: value for key, value in config.model_dump(mode="json").items() if value != defaults[key]}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in stated.items())


@pytest.mark.parametrize("kind", ["marian", "m2m100"])
def test_an_imported_model_is_trained_further(tmp_path: Path, kind: str) -> None:
    model = Imported(tmp_path, kind)
    write_texts(tmp_path)
    settings = changed_settings(model.loaded.model.config)
    recipe_file = tmp_path / "mine.toml"
    recipe_file.write_text(RECIPE.format(source="en", target="de", model=settings), encoding="utf-8")
    run, recipe = Run(tmp_path / "run"), load_recipe(str(recipe_file))
    prepare(recipe, run.folder)
    rows = [PairData(run.data / "train").ids(side, 0).tolist() for side in range(2)]
    tokenizer = run.tokenizer()
    [source] = tokenizer.encode([PAIRS[0][0]], "source")
    [target] = tokenizer.encode([PAIRS[0][1]], "target")
    assert rows == [source, [*tokenizer.target_start, *target]]
    if kind == "m2m100":
        assert tokenizer.pieces([source[0], *tokenizer.target_start], "source") == ["__en__", "__de__"]
    train(recipe, run.folder, Workers.start("cpu", "float32", 1))
    trained = load_model(find_model(run.folder))
    moved = {}
    for name, tensor in model.loaded.model.state_dict().items():
        moved[name] = float((trained.model.state_dict()[name] - tensor).abs().max())
    assert max(moved.values()) < 1e-5
    assert moved["embeddings.shared"] > 0
    assert kind == "m2m100" or moved["output_bias"] > 0
    assert len(Translator.load(run.folder).translate(VALID)) == len(VALID)  # without --from and --to
    recipe_file.write_text(RECIPE.format(source="en", target="fr", model=settings), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"target_language = 'fr', but the tokenizer of"):
        prepare(load_recipe(str(recipe_file)), tmp_path / "other")


@pytest.mark.parametrize("default", ["en", None])
def test_each_direction_is_validated_and_translated_with_its_source_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str | None
) -> None:
    write_m2m100(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours", default)
    write_texts(tmp_path)
    config = load_model(tmp_path / "ours").model.config
    recipe_text = RECIPE.format(source="en", target="de", model=changed_settings(config))
    for name in ("train", "valid"):
        back = f'source = "{name}.de", target = "{name}.en", source_language = "de", target_language = "en"'
        pair = f'{{ source = "{name}.en", target = "{name}.de" }}'
        recipe_text = recipe_text.replace(f"[{pair}]", f"[{pair}, {{ {back} }}]")
    (tmp_path / "mine.toml").write_text(recipe_text, encoding="utf-8")
    encoded = set()

    def search(self: Translator, segments: Sequence[Segment], *arguments: Any) -> Iterator[dict[int, Any]]:
        encoded.add((segments[0].ids[0], self.tokenizer.target_start))
        return original(self, segments, *arguments)

    original = Translator.search_segments
    monkeypatch.setattr(Translator, "search_segments", search)
    run, recipe = Run(tmp_path / "run"), load_recipe(str(tmp_path / "mine.toml"), ["training.validate_bleu=true"])
    prepare(recipe, run.folder)
    [en], [de] = (run.tokenizer().in_direction(code, "en").target_start for code in ("en", "de"))
    train(recipe, run.folder, Workers.start("cpu", "float32", 1))
    assert encoded == {(en, (de,)), (de, (en,))}
    encoded.clear()
    assert run_command("run", tmp_path / "mine.toml", "--run-dir", run.folder, "--device", "cpu").code == 0
    assert encoded == {(en, (de,)), (de, (en,))}
    assert run.recorded_translations()["valid.de-en"]["source_language"] == "de"  # else it is an old, wrong one
    run.translation("valid.de-en").unlink()
    with pytest.raises(DataError, match="--from de --to en --input"):
        run.read_translated("valid.de-en")
    assert run_command("report", run.folder, "--output", tmp_path / "report.html").code == 0
    assert "--to de --from en" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("subwords", ["imported", "gpt-bpe"])
def test_subwords_of_an_imported_model_cannot_be_learned(subwords: str) -> None:
    with pytest.raises(RecipeError, match=f'subwords = "{subwords}" cannot be learned; tokenizer must name an import'):
        load_recipe("quickstart", [f"data.subwords={subwords}"])


# ---- folders that cannot be imported


class Harmful:
    """An object that would write a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def assert_refused(folder: Path, message: str) -> None:
    message_of(lambda: import_model(folder, folder.parent / "ours"), ModelError, message)
    assert [path.name for path in folder.parent.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "t5"},
            r"config\.json: model_type is 't5'; these can be imported: openai-gpt, marian, pegasus, m2m_100",
        ),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'; only relu, gelu_new, silu, swish"),
        ({"d_model": "32"}, "d_model is '32' and not a positive number"),
        ({"max_position_embeddings": 1}, r"config\.json: not supported \(longest_source: "),
        ({"decoder_attention_heads": 2}, "encoder_attention_heads is 4 and decoder_attention_heads 2"),
        (
            {"encoder_attention_heads": 5, "decoder_attention_heads": 5},
            r"config\.json: not supported \(d_model = 32 is not a multiple of num_heads = 5",
        ),
        ({"normalize_before": True}, "normalize_before = true"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = false"),
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings = false"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id is 0, with which no model of this type starts"),
        ({"eos_token_id": 3}, "eos_token_id is 3, but </s> is 0 in the vocabulary"),
        ({"vocab_size": 99}, r"vocab\.json: 53 entries, but config\.json has vocab_size = 99"),
    ],
)
def test_settings_that_cannot_be_imported_give_one_line(
    tmp_path: Path, marian: Path, changes: dict[str, Any], message: str
) -> None:
    folder = shutil.copytree(marian, tmp_path / "theirs")
    changed_json(folder / "config.json", **changes)
    assert_refused(folder, message)


LAYER, POSITIONS = "model.encoder.layers.0.fc1.weight", "model.encoder.embed_positions.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({LAYER: None}, rf"pytorch_model\.bin: {LAYER} is missing, for a model of the sizes in config\.json"),
        (
            {LAYER: torch.ones(3, 32)},
            rf"{LAYER} is float32 of shape \[3, 32\], but config\.json needs .* numbers of shape \[48, 32\]",
        ),
        ({LAYER: torch.ones(48, 32, dtype=torch.int64)}, f"{LAYER} is int64 of shape"),
        ({"model.x": torch.ones(3)}, r"holds model\.x, which no such model has"),
        (dict.fromkeys(f"{name}.weight" for name in SHARED), "not one matrix for source, target and output"),
        (
            {"lm_head.weight": torch.ones(53, 32), "model.shared.weight": torch.zeros(53, 32)},
            "not one matrix for source, target and output",
        ),
        ({POSITIONS: torch.rand(128, 32)}, r"embed_positions\.weight does not hold sinusoids"),
        ({POSITIONS: torch.tensor(1.0)}, r"embed_positions\.weight is of shape \[\], and not a table 32 wide"),
        ({POSITIONS: torch.ones(10**11, 0)}, r"weight is of shape \[100000000000, 0\], and not a table 32 wide"),
    ],
)
def test_weights_that_cannot_be_imported_give_one_line(
    tmp_path: Path, marian: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    folder = shutil.copytree(marian, tmp_path / "theirs")
    tensors = {**load_tensors(folder / "model.safetensors"), **changes}
    pickled(folder, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    assert_refused(folder, message)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no model": (lambda f: (f / "config.json").unlink(), r"neither config\.json"),
    "of CTranslate2": (
        lambda f: ((f / "model.bin").touch(), changed_json(f / "config.json", model_type=None)),
        r"a model for CTranslate2, .* import the original model",
    ),
    "no vocabulary": (lambda f: (f / "vocab.json").unlink(), r"vocab\.json: no such file"),
    "no unknown entry": (
        lambda f: write_json(f / "vocab.json", {f"x{n}": n for n in range(53)}),
        r"vocab\.json: needs the entry <pad>",
    ),
    "empty vocabulary": (lambda f: write_json(f / "vocab.json", {}), r"vocab\.json: needs each of the ids from 0 on"),
    "an id twice": (lambda f: changed_json(f / "vocab.json", the=1), r"vocab\.json: needs each of the ids from 0 on"),
    "no subwords": (lambda f: (f / "target.spm").unlink(), r"target\.spm: no such file; the text cannot be split"),
    "no model of subwords": (lambda f: (f / "target.spm").write_bytes(b"x"), r"target\.spm: not a model of"),
    "empty subwords": (lambda f: (f / "source.spm").write_bytes(b""), r"source\.spm: not a model of sentencepiece"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"no weights in it"),
    "damaged weights": (lambda f: (f / "model.safetensors").write_bytes(b"12345678abc"), r"safetensors: damaged"),
    "a missing shard": (
        lambda f: (sharded(f, "safetensors"), (f / "part-1.safetensors").unlink()),
        r"model\.safetensors\.index\.json: 'part-1\.safetensors', one of its shards, is not in the folder",
    ),
    "a shard elsewhere": (
        lambda f: (sharded(f, "bin"), changed_json(f / "pytorch_model.bin.index.json", weight_map={"x": "../y.bin"})),
        r"'\.\./y\.bin', one of its shards",
    ),
    "a tensor that no shard has": (
        lambda f: (sharded(f, "bin"), changed_json(f / "pytorch_model.bin.index.json", weight_map={"x": "part-0.bin"})),
        r"x is not in part-0\.bin, the shard that it names",
    ),
    "a pickle of objects": (
        lambda f: pickled(f, {"x": Harmful(f.parent / "harm")}),
        r"pytorch_model\.bin: damaged, or a pickle of more than plain tensors",
    ),
    "a pickle of numbers": (lambda f: pickled(f, {"x": 1}), r"a pickle of more than plain tensors"),
    "a sparse tensor": (
        lambda f: pickled(f, {"x": torch.eye(3).to_sparse()}),
        r"a pickle of more than plain tensors",
    ),
    "a huge tensor of one number": (
        lambda f: pickled(f, {"x": torch.zeros(1).expand(10**6, 10**6)}),
        r"a pickle of more than plain tensors",
    ),
    "no pickle": (lambda f: (pickled(f, 1), (f / "pytorch_model.bin").write_bytes(b"abc")), r"damaged, or a pickle"),
    "a beam that cannot be": (
        lambda f: changed_json(f / "generation_config.json", num_beams=10**6),
        r"generation_config\.json: not supported \(beam: ",
    ),
    "text for a number": (
        lambda f: changed_json(f / "generation_config.json", max_length="long"),
        r"generation_config\.json: max_length is text",
    ),
}  # fmt: skip


FAULTS_OF_M2M100: dict[str, tuple[Callable[[Path], object], str]] = {
    "no languages": (
        lambda f: changed_json(f / "tokenizer_config.json", language_codes="other"),
        r"its languages are not listed; take the tokenizer files of the original model",
    ),
    "the language after the source": (
        lambda f: changed_json(f / "tokenizer_config.json", legacy_behaviour=True),
        r"the language of the source follows it",
    ),
    "another start": (
        lambda f: changed_json(f / "config.json", decoder_start_token_id=0),
        r"decoder_start_token_id is 0",
    ),
    "too few rows": (lambda f: changed_json(f / "config.json", vocab_size=80), r"entries, but config\.json has"),
    "no subwords": (lambda f: (f / "sentencepiece.bpe.model").unlink(), r"sentencepiece\.bpe\.model: no such file"),
}


@pytest.mark.parametrize(
    ("kind", "fault"), [*(("marian", fault) for fault in FAULTS), *(("m2m100", fault) for fault in FAULTS_OF_M2M100)]
)
def test_a_folder_that_cannot_be_imported_gives_one_line(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, fault: str
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(kind), tmp_path / "theirs"))
    damage, message = (FAULTS if kind == "marian" else FAULTS_OF_M2M100)[fault]
    damage(folder)
    assert_refused(folder, message)
