"""A run with other subwords starts from a model: rows of known entries are kept, new ones are means."""

import base64
import io
import json
import logging
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from torch import Tensor

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.data.prepare import prepare
from nmtkit.distributed.workers import Workers
from nmtkit.errors import ModelError, NmtkitError, RecipeError
from nmtkit.evaluation.cost import read_metrics
from nmtkit.model.decoder_only import build_model
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import read_tensors, save_model
from nmtkit.run import Run
from nmtkit.text.new_tokenizers import gpt_tokenizer, label_tokenizer, learn_tokenizer
from nmtkit.text.sentencepieces import ImportedPieces, SentencePiece
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS, SPECIAL_PIECES, SegmentedPieces, Side
from nmtkit.text.wordpieces import WordPieces
from nmtkit.training.mapped_vocabulary import MappedVocabulary, identities_of, split_pieces
from nmtkit.training.resume import verify_resume
from nmtkit.training.session import train
from nmtkit.training.transfer import initial_weights
from tests.conftest import TinyProject, contents, determined, message_of, run_with_streams, train_run, write_corpus
from tests.training.updates import Weights

TAG = "\ufdd1"
SIZES = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2}


def tokenizer_of(kind: str, **vocabularies: Any) -> Tokenizer:
    settings = {
        "subwords": kind, "normalize": [], "text": "plain", "source_language": "en", "target_language": "de",
        "segment_mark": "@@", "special_ids": {"pad": 0, "unk": 1, "bos": 2, "eos": 3},
    }  # fmt: skip
    return Tokenizer({**settings, "vocab_sizes": {side: len(v) for side, v in vocabularies.items()}}, vocabularies)


def wordpieces(*pieces: str, tags: Sequence[str] = (), **special: Any) -> Tokenizer:
    vocabulary = WordPieces([*SPECIAL_PIECES, *(TAG + tag for tag in tags), *pieces], tags)
    plain = tokenizer_of("wordpiece", joint=vocabulary)
    return Tokenizer({**plain.settings, **special}, {"joint": vocabulary})


def segments(*pieces: str) -> Tokenizer:
    return tokenizer_of("none", joint=SegmentedPieces([*SPECIAL_PIECES, *pieces], "@@", ()))


def data_of(kind: str, size: int, **data: Any) -> DataConfig:
    stated = {"source_language": "en", "target_language": "de", "subwords": kind, "vocab_size": size}
    if data.get("task"):
        stated.pop("source_language")
    return DataConfig.model_validate({**stated, "train": [{"source": "a", "target": "b"}], **data})


def learned(kind: str, size: int, lines: Sequence[str], **data: Any) -> Tokenizer:
    return learn_tokenizer(data_of(kind, size, **data), lambda: iter([(line, line) for line in lines]))


_SYLLABLES = ["hund", "kat", "ze", "der", "te", "und", "ri", "ka", "ert", "zen", "un", "hu"]
LINES = [
    " ".join("".join(random.Random(100 * line + word).choices(_SYLLABLES, k=1 + word % 3)) for word in range(9))
    for line in range(60)
]


def imported(lines: Sequence[str]) -> Tokenizer:
    """An imported model, with the normalisation of sentencepiece and an entry that is no piece."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=45, model_type="unigram", minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(index) for index in range(3, len(processor))]
    return tokenizer_of("imported", joint=ImportedPieces([*SPECIAL_PIECES, TAG + "__fr__", *pieces], model.getvalue()))


OLD = wordpieces(" ", "a", "b", "c", " a", "ab", " ab", " abab")
WIDTH = 8


def rows(given: Tokenizer, wanted: Tokenizer, side: Side = "target") -> tuple[Tensor, Tensor]:
    """A random table of a model, and the one for another vocabulary."""
    torch.manual_seed(1)
    table = torch.randn(given.vocab_size(side), WIDTH)
    return table, MappedVocabulary(Path("model"), given, wanted).rows(table, side, side)


class TestRows:
    def test_known_entries_keep_their_rows_and_new_ones_begin_at_the_mean_of_their_pieces(self) -> None:
        new = wordpieces("c", " ", "a", "b", "x", " abc", "abc", " xy", " ax", " ab")
        table, found = rows(OLD, new)
        index = {piece: number for number, piece in enumerate(OLD.entries("target"))}
        expected = [
            *(table[number] for number in range(4)),
            *(table[index[piece]] for piece in ("c", "\u2581", "a", "b")),
            table[4:].mean(0),  # x: no entry of the model
            (table[index["\u2581ab"]] + table[index["c"]]) / 2,
            (table[index["ab"]] + table[index["c"]]) / 2,  # inside a word
            table[4:].mean(0),  # the blank alone says nothing about " xy"
            table[index["\u2581a"]],  # of " ax", the known part
            table[index["\u2581ab"]],
        ]
        torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-7)
        assert torch.equal(found[[0, 1, 2, 3, 4, 5, 6, 7, 13]], table[[0, 1, 2, 3, 7, 4, 5, 6, 10]])

    def test_an_output_bias_is_mapped_as_the_rows_are(self) -> None:
        new = wordpieces(" ", "a", "b", "c", "x", " abc")
        table, found = rows(OLD, new)
        bias = MappedVocabulary(Path("model"), OLD, new).rows(table[:, 0], "target", "target")
        torch.testing.assert_close(bias, found[:, 0])

    def test_tags_are_known_by_name_and_languages_by_code(self) -> None:
        tags = ("<bt>", "<2de>", "<2fr>")
        codes = {"de": f"{TAG}<2de>", "fr": f"{TAG}<2fr>"}
        old = wordpieces(" ", "a", "b", tags=tags, source_prefixes=["<bt>"], target_tags=codes)
        other = {"fr": f"{TAG}>>fra<<", "it": f"{TAG}>>ita<<"}
        new = wordpieces(
            "a", " ", "b", tags=("<new>", "<bt>", ">>fra<<", ">>ita<<"), source_prefixes=["<new>", "<bt>"],
            target_tags=other,
        )  # fmt: skip
        table, found = rows(old, new)
        of_text = table[7:].mean(0)
        expected = [of_text, table[4], table[6], (table[5] + table[6]) / 2]  # a new language: the mean of the others
        torch.testing.assert_close(found[4:8], torch.stack(expected))
        _, found = rows(wordpieces(" ", "a", "b"), new)
        torch.testing.assert_close(found[6], found[7])  # without any, that of all pieces
        torch.testing.assert_close(found[7], found[8:].mean(0))

    def test_byte_pieces_are_known_by_name_and_take_the_place_of_unknown_characters(self) -> None:
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        old, new = wordpieces(*bytes_, " ", "a"), wordpieces(*bytes_, " ", "ä", "a")
        table, found = rows(old, new)
        assert torch.equal(found[:260], table[:260]) and torch.equal(found[[260, 262]], table[[260, 261]])
        torch.testing.assert_close(found[261], (table[4 + 0xC3] + table[4 + 0xA4]) / 2)
        _, found = rows(wordpieces(" ", "a"), new)
        torch.testing.assert_close(found[4:260], found[[260, 262]].mean(0).expand(256, WIDTH))

    def test_a_new_piece_of_an_imported_model_is_split_as_by_the_side_that_knows_it_best(self) -> None:
        of_source, of_target = ["abab ab abab"] * 9, ["cdcd cd cdcd"] * 9
        one, two = (SentencePiece.learn(lines, data_of("bpe", 11), ()) for lines in (of_source, of_target))
        entries = [*SPECIAL_PIECES]
        for vocabulary in (one, two):
            entries += [vocabulary.piece(index) for index in range(4, len(vocabulary))]
        entries = list(dict.fromkeys(entries))
        sides = {side: ImportedPieces(entries, v.to_bytes()) for side, v in (("source", one), ("target", two))}
        old = tokenizer_of("imported", **sides)
        new = wordpieces(" ", "a", "b", "c", "d", " ababab", " cdcdcd")
        table, found = rows(old, new)
        cases: tuple[tuple[int, Side, str], ...] = ((9, "source", "ababab"), (10, "target", "cdcdcd"))
        for number, side, text in cases:
            ids = old.encode([text], side)[0]
            assert 1 < len(ids) < 4 and 1 not in ids
            torch.testing.assert_close(found[number], table[ids].mean(0))

    @pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
    def test_rows_of_every_kind_are_those_of_the_text_as_the_model_reads_it(self, kind: str) -> None:
        old, new = learned(kind, 40, LINES), learned("bpe", 60, [*LINES, *["hunderte katzenhunde"] * 50])
        table, found = rows(old, new)
        names = {name: number for number, name in enumerate(old.entries("target"))}
        num_new = 0
        for row, name in zip(found[4:], new.entries("target")[4:], strict=True):
            if name in names:
                assert torch.equal(row, table[names[name]])
            elif name.startswith("\u2581"):
                num_new += 1
                text = f" {name[1:]}" if kind == "characters" else name[1:]
                torch.testing.assert_close(row, table[old.encode([text], "target")[0]].mean(0))
        assert num_new > 5

    def test_the_counts_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "nmtkit"):
            rows(OLD, wordpieces(" ", "a", "x", " abc", "abc"))
        message = "6 of 9 entries of the vocabulary are kept, 2 begin at the mean of known ones, 1 at the mean of all"
        assert message in caplog.text


class TestIdentities:
    def test_pieces_that_mark_the_beginning_of_a_word(self) -> None:
        expected = [("begins", "ab"), ("inside", "ab"), ("begins", ""), ("inside", "\u2581")]
        own = wordpieces(" ab", "ab", " ", "\u2581")
        assert identities_of(own, "source") == [*(("special", name) for name in SPECIAL_PIECES), *expected]
        for kind in ("bpe", "unigram"):
            model = learned(kind, 45, [*LINES, "\u2581\u2581"])
            found = dict(zip(model.entries("target"), identities_of(model, "target"), strict=True))
            assert found["\u2581hund"] == ("begins", "hund") and found["d"] == ("inside", "d")
            assert ("inside", "\u2581") in found.values()

    def test_pieces_that_mark_the_end_of_a_word(self) -> None:
        gpt = gpt_tokenizer(["a", "b</w>", "ab</w>"], [("a", "b</w>")], "en")
        assert identities_of(gpt, "target")[-3:] == [("open", "a"), ("ends", "b"), ("ends", "ab")]
        assert identities_of(segments("ab@@", "ab"), "target")[4:] == [("open", "ab"), ("ends", "ab")]

    def test_languages_of_an_imported_model(self) -> None:
        own = imported(LINES)
        assert identities_of(own, "target")[4] == ("tag", f"{TAG}__fr__")
        for key in ("source_tags", "target_tags", "target_starts"):
            known = Tokenizer({**own.settings, key: {"fr": f"{TAG}__fr__"}}, own._vocabularies)
            assert identities_of(known, "target")[4] == ("language", "fr")
            assert identities_of(known, "target")[5:] == identities_of(own, "target")[5:]
        assert ("begins", "hund") in identities_of(own, "target")

    def test_entries_of_a_task_whose_output_is_a_label(self) -> None:
        values = {"task": "label", "source_language": "en", "train": [{"source": "a", "target": "b"}]}
        own = label_tokenizer(OLD, DataConfig.model_validate(values), ["yes", "no"])
        assert identities_of(own, "source")[-3:] == [("tag", "<start>"), ("tag", "<delimiter>"), ("tag", "<extract>")]
        assert identities_of(own, "source")[:-3] == identities_of(OLD, "source")


GPT = gpt_tokenizer(["a", "b</w>", "b", "ab</w>", "c</w>"], [("a", "b</w>")], "en")
OF_TEXT = {"task": "language-model", "train": [{"text": "a"}], "normalize": []}


@pytest.mark.parametrize(
    "make",
    [
        lambda: learned("bpe", 40, LINES),
        lambda: learned("unigram", 40, LINES),
        lambda: learned("bpe", 300, LINES, byte_fallback=True),
        lambda: learned("wordpiece", 40, LINES),
        lambda: learned("wordpiece", 300, LINES, byte_fallback=True),
        lambda: imported(LINES),
    ],
)
def test_text_is_split_as_where_it_stands_in_a_word(make: Callable[[], Tokenizer]) -> None:
    own = make()
    begin, inside, unknown, mixed = split_pieces(
        own, [("begins", "hundert"), ("inside", "hundert"), ("inside", "\u0416"), ("inside", "\u0416und")], "target"
    )
    assert begin == own.encode(["hundert"], "target")[0]
    assert "".join(own.pieces(begin, "target")) == "\u2581hundert"
    assert "".join(own.pieces(inside, "target")) == "hundert"
    assert all(piece in ("<unk>", "<0xD0>", "<0x96>") for piece in own.pieces(unknown, "target"))
    known = [piece for piece in own.pieces(mixed, "target") if piece[0] != "<"]
    assert "".join(known) == "und"
    assert split_pieces(own, [("open", "hundert"), ("ends", "hundert")], "target") == [begin, begin]


def test_text_is_split_by_other_kinds() -> None:
    rows = split_pieces(GPT, [("begins", "Ab"), ("inside", "abc")], "target")
    assert [GPT.pieces(ids, "target") for ids in rows] == [["ab</w>"], ["a", "b", "c</w>"]]
    own = segments("ab", "ab@@")
    assert split_pieces(own, [("begins", "ab"), ("inside", "ab"), ("begins", "ab@@")], "target") == [[4], [], [5]]
    running = learned("bpe", 40, LINES, target_language="de", **OF_TEXT)  # no blank is added before a text
    ids = split_pieces(running, [("begins", "hund"), ("inside", "hund")], "target")
    assert ["".join(running.pieces(each, "target")) for each in ids] == ["\u2581hund", "hund"]


# ---- whole models


def weights_of(seed: int, model: dict[str, Any], sizes: tuple[int, int]) -> Weights:
    torch.manual_seed(seed)
    return {
        name: torch.randn_like(each) for name, each in build_model(ModelConfig(**model), *sizes).state_dict().items()
    }


def sizes_of(tokenizer: Tokenizer) -> tuple[int, int]:
    return tokenizer.vocab_size("source"), tokenizer.vocab_size("target")


def recipe_of(tiny_project: TinyProject, folder: Path, model: dict[str, Any]) -> Recipe:
    recipe = load_recipe(str(tiny_project.recipe), [f"training.init={folder}", "training.init_vocab=mapped"])
    return recipe.model_copy(update={"model": ModelConfig(**model)})


def started(
    tiny_project: TinyProject, folder: Path, given: Tokenizer, wanted: Tokenizer, model: dict[str, Any],
    wanted_model: dict[str, Any] | None = None,
) -> tuple[Weights, Weights]:  # fmt: skip
    """The weights of a model, and those with which a run with another tokenizer starts."""
    stored = weights_of(1, model, sizes_of(given))
    save_model(folder, stored, ModelConfig(**model), given, DecodingConfig(), {})
    wanted_model = wanted_model or model
    recipe = recipe_of(tiny_project, folder, wanted_model)
    return stored, initial_weights(folder, recipe, wanted, weights_of(2, wanted_model, sizes_of(wanted)))


def log_probs(weights: Weights, model: dict[str, Any], tokenizer: Tokenizer, source: str, target: str) -> Tensor:
    """The log-probabilities of the tokens of a translation."""
    built: Transformer = build_model(ModelConfig(**model), *sizes_of(tokenizer)).eval()
    built.load_state_dict(weights)
    ids = torch.tensor([[*tokenizer.encode([source], "source")[0], EOS]])
    out = [*tokenizer.encode([target], "target")[0], EOS]
    with torch.inference_mode():
        logits = built(ids, torch.tensor([ids.size(1)]), torch.tensor([[2, *out[:-1]]]))
    return logits[0].log_softmax(-1)[torch.arange(len(out)), torch.tensor(out)]


def permuted(tokenizer: Tokenizer) -> Tokenizer:
    """The same pieces with other ids."""
    content = json.loads(tokenizer.vocabulary("target").to_bytes())
    entries = content["entries"]
    shuffled = [*entries[:4], *entries[:3:-1]]
    model = base64.b64decode(content["model"])
    return tokenizer_of("imported", joint=ImportedPieces(shuffled, model))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"share_embeddings": "none"},
        {"share_embeddings": "decoder", "output_bias": True},
        {"architecture": "decoder"},
        {"architecture": "decoder", "share_embeddings": "none", "output_bias": True},
    ],
)
def test_a_permuted_vocabulary_gives_identical_log_probabilities(
    tiny_project: TinyProject, tmp_path: Path, change: dict[str, Any]
) -> None:
    old, model = imported(LINES), {**SIZES, **change}
    new = permuted(old)
    stored, found = started(tiny_project, tmp_path / "model", old, new, model)
    source, target = "hund und katze", "hundert katzen"
    assert old.encode([target], "target") != new.encode([target], "target")
    expected = log_probs(stored, model, old, source, target)
    torch.testing.assert_close(log_probs(found, model, new, source, target), expected, rtol=1e-5, atol=1e-5)
    tables = [name for name in stored if name.startswith(("embeddings.", "output_bias"))]
    assert all(not torch.equal(found[name], stored[name]) for name in tables)
    assert all(torch.equal(found[name], stored[name]) for name in stored if name not in tables)


@pytest.mark.parametrize("share", ["decoder", "none"])
def test_separate_vocabularies_become_a_joint_one_and_the_reverse(
    tiny_project: TinyProject, tmp_path: Path, share: str
) -> None:
    joint = wordpieces(" ", "a", "b", "c", " ab", " bc")
    source = WordPieces([*SPECIAL_PIECES, "a", " ", " ab", " aab"], ())
    target = WordPieces([*SPECIAL_PIECES, "c", "b", " ", " bc", " bbc"], ())
    separate = tokenizer_of("wordpiece", source=source, target=target)
    model = {**SIZES, "share_embeddings": share, "output_bias": True}
    stored, found = started(tiny_project, tmp_path / "one", separate, joint, model)
    table = stored["embeddings.source"]
    expected = [*table[:4], table[5], table[4], *[table[4:].mean(0)] * 2, table[6], table[4:].mean(0)]
    torch.testing.assert_close(found["embeddings.source"], torch.stack(expected))
    for name in {"embeddings.target", "embeddings.output", "output_bias"} & stored.keys():
        table = stored[name]
        of_all = table[4:].mean(0)
        expected = [*table[:4], table[6], of_all, table[5], table[4], (table[6] + table[5]) / 2, table[7]]
        torch.testing.assert_close(found[name], torch.stack(expected))
    stored, found = started(tiny_project, tmp_path / "two", joint, separate, model)
    table = stored["embeddings.source"]
    expected = [*table[:4], table[5], table[4], table[8], (table[4] + table[5] * 2 + table[6]) / 4]
    torch.testing.assert_close(found["embeddings.source"], torch.stack(expected))
    assert torch.equal(found["embeddings.target"][7], stored["embeddings.target"][9])


def test_a_decoder_starts_from_a_language_model_with_subwords_of_its_own(
    tiny_project: TinyProject, tmp_path: Path
) -> None:
    decoder, new = {**SIZES, "architecture": "decoder"}, wordpieces(" ", "b", "a", "c", " abc")
    for share in ("all", "none"):
        wanted = {**SIZES, "share_embeddings": share}
        stored, found = started(tiny_project, tmp_path / share, OLD, new, decoder, wanted)
        table = stored["embeddings.shared"]
        expected = torch.stack([*table[:4], table[4], table[6], table[5], table[7], (table[10] + table[7]) / 2])
        names = ["embeddings.shared"] if share == "all" else ["embeddings.target", "embeddings.output"]
        for name in names:
            torch.testing.assert_close(found[name], expected)


def test_the_head_for_the_same_labels_is_kept(tiny_project: TinyProject, tmp_path: Path) -> None:
    values = {"task": "label", "source_language": "en", "train": [{"source": "a", "target": "b"}]}
    data = DataConfig.model_validate(values)
    model = {**SIZES, "architecture": "decoder", "head": "classes"}
    given, new = label_tokenizer(learned("bpe", 40, LINES), data, ["no", "yes"]), learned("bpe", 50, LINES)
    stored, found = started(tiny_project, tmp_path / "same", given, label_tokenizer(new, data, ["no", "yes"]), model)
    assert torch.equal(found["head.weight"], stored["head.weight"])
    assert torch.equal(found["embeddings.shared"][-3:], stored["embeddings.shared"][-3:])  # <start> and others
    stored, found = started(tiny_project, tmp_path / "other", given, label_tokenizer(new, data, ["bad", "good"]), model)
    assert not torch.equal(found["head.weight"], stored["head.weight"])


class TestRefused:
    def test_a_vocabulary_without_a_known_piece(self, tiny_project: TinyProject, tmp_path: Path) -> None:
        message = r"training\.init_vocab: .*/model knows no piece of the vocabulary of this run; its text is of another"
        new = wordpieces("\u0436", "\u0434", "\u0436\u0434")
        message_of(lambda: started(tiny_project, tmp_path / "model", OLD, new, SIZES), NmtkitError, message)

    def test_a_model_with_rows_for_other_entries_or_another_tokenizer(
        self, tiny_project: TinyProject, tmp_path: Path
    ) -> None:
        weights = weights_of(1, SIZES, (9, 9))
        folder = tmp_path / "model"
        save_model(folder, weights, ModelConfig(**SIZES), OLD, DecodingConfig(), {})
        recipe = recipe_of(tiny_project, folder, SIZES)
        with pytest.raises(ModelError, match=r"model\.safetensors: damaged \(embeddings of 9 entries, and 12 in the"):
            initial_weights(folder, recipe, wordpieces(" ", "a"), weights)
        shutil.rmtree(folder / "tokenizer")
        wordpieces(" ", "a").save(folder / "tokenizer")
        with pytest.raises(ModelError, match="model: the tokenizer is not the one the model was trained with"):
            initial_weights(folder, recipe, OLD, weights)

    def test_a_model_of_episodes(self, tiny_project: TinyProject, tmp_path: Path) -> None:
        model = {**SIZES, "architecture": "decoder", "head": "discrete-action", "positions": "learned"}
        save_model(tmp_path / "model", {}, ModelConfig(**model), OLD, DecodingConfig(), {})
        recipe = recipe_of(tiny_project, tmp_path / "model", model)
        with pytest.raises(NmtkitError, match='init_vocab = "mapped": a model of episodes has no subwords; leave'):
            initial_weights(tmp_path / "model", recipe, OLD, {})

    def test_a_recipe_without_a_model(self, tiny_project: TinyProject) -> None:
        with pytest.raises(RecipeError, match="init_vocab needs init, the model whose embeddings are copied"):
            load_recipe(str(tiny_project.recipe), ["training.init_vocab=mapped"])
        with pytest.raises(RecipeError, match=r"training\.init_vocab = 'other'"):
            load_recipe(str(tiny_project.recipe), ["training.init=model", "training.init_vocab=other"])


# ---- fine-tuning, by files


RECIPE = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = [{ source = "train.en", target = "train.de" }]\n'
    'valid = [{ source = "valid.en", target = "valid.de" }]\nsubwords = "bpe"\nvocab_size = 60\n'
    "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 16\nd_ff = 32\nnum_heads = 2\n"
    '[training]\nschedule = "constant"\npeak_learning_rate = 0.01\nwarmup_steps = 3\ntokens_per_update = 400\n'
    'max_steps = 60\nprecision = "float32"\nvalidate_bleu = false\nvalidate_every_steps = 20\n'
    "checkpoint_every_steps = 20\nkeep_last = 2\n[decoding]\naverage_last = 1\n"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A general model, and the recipe and text of a domain with longer words."""
    folder = tmp_path_factory.mktemp("project")
    write_corpus(folder, train=300, valid=20)
    (folder / "general.toml").write_text(RECIPE)
    (folder / "domain").mkdir()
    write_corpus(folder / "domain", train=120, valid=40)
    for path in (folder / "domain").iterdir():
        path.write_text(path.read_text().replace("ab fg", "abfg").replace("AB FG", "ABFG").replace("cde ", "cde, "))
    limits = {"max_steps = 60": "max_steps = 6", "_steps = 20": "_steps = 2", "= 0.01": "= 0.003"}
    text = RECIPE.replace("vocab_size = 60", "vocab_size = 80")
    for old, new in limits.items():
        text = text.replace(old, new)
    (folder / "domain" / "domain.toml").write_text(text)
    train_run(load_recipe(str(folder / "general.toml")), folder / "general")
    return folder


def domain(project: Path, *overrides: str) -> Recipe:
    stated = [f"training.init={project / 'general'}", "training.init_vocab=mapped", *overrides]
    return load_recipe(str(project / "domain" / "domain.toml"), stated)


def test_fine_tuning_on_a_domain_starts_at_a_lower_loss_than_from_nothing(project: Path, tmp_path: Path) -> None:
    costs = {}
    for name, recipe in {
        "mapped": domain(project, "training.max_steps=2"),
        "nothing": load_recipe(str(project / "domain" / "domain.toml"), ["training.max_steps=2"]),
    }.items():
        train_run(recipe, tmp_path / name)
        costs[name] = read_metrics(tmp_path / name)[-1]["valid_nll"]
    assert costs["mapped"] < costs["nothing"] - 0.3


def test_another_vocabulary_is_refused_without_the_key_which_the_advice_names(project: Path, tmp_path: Path) -> None:
    recipe = domain(project, "training.init_vocab=same")
    prepare(recipe, tmp_path / "run", workers=1)
    before = contents(tmp_path / "run")
    advice = r'set data\.tokenizer = ".*/general" and prepare the run again, or keep the new subwords with training\.'
    with pytest.raises(NmtkitError, match=f'different tokenizers; {advice}init_vocab = "mapped"'):
        train(recipe, tmp_path / "run", Workers.start("cpu", "float32", 1))
    assert contents(tmp_path / "run") == before


def test_such_a_run_resumes_exactly_and_does_not_need_the_model_again(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "general", tmp_path / "general")
    recipe = domain(project, f"training.init={tmp_path / 'general'}")
    train_run(recipe, tmp_path / "whole")
    assert verify_resume(recipe, tmp_path / "whole", Workers.start("cpu", "float32", 1)) == (5, 6)
    train_run(domain(project, f"training.init={tmp_path / 'general'}", "training.max_steps=3"), tmp_path / "parts")
    shutil.rmtree(tmp_path / "general")
    train_run(recipe, tmp_path / "parts")
    whole, parts = determined(tmp_path / "whole"), determined(tmp_path / "parts")
    name = "resume/step-00000006/weights.safetensors"
    assert whole[name] == parts[name]
    train_run(recipe, tmp_path / "parts")  # nothing to do
    assert run_with_streams("average", tmp_path / "parts", "--last", 1).code == 0
    sizes = Run(tmp_path / "parts").tokenizer().vocab_size("target")
    assert len(read_tensors(tmp_path / "parts" / "averaged" / "model.safetensors")["embeddings.shared"]) == sizes == 80
    with pytest.raises(NmtkitError, match=r"changed: training\.init_vocab = 'same' \(was 'mapped'\)"):
        train_run(domain(project, "training.init_vocab=same"), tmp_path / "whole")


def test_a_language_is_added_by_the_commands_of_the_guide(project: Path, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        for code in ("en", "de"):
            shutil.copy(project / f"{name}.{code}", tmp_path)
        text = (project / f"{name}.en").read_text()
        lines = [" ".join(line.split(" ")[::-1]).replace("a", "o") for line in text.splitlines()]
        (tmp_path / f"{name}.fr").write_text("".join(f"{line}\n" for line in lines))
    text = RECIPE.replace("max_steps = 60", "max_steps = 2").replace("_steps = 20", "_steps = 2")
    for key in ("train", "valid"):
        one = f'{{ source = "{key}.en", target = "{key}.de" }}'
        assert one in text
        both = [
            f'{{ source = "{key}.en", target = "{key}.{code}", target_language = "{code}" }}' for code in ("de", "fr")
        ]
        text = text.replace(one, ", ".join(both))
    (tmp_path / "many.toml").write_text(text.replace('target_language = "de"\n', "", 1))
    stated = ("--set", f"training.init={project / 'general'}", "--set", "training.init_vocab=mapped", "--device", "cpu")
    result = run_with_streams("run", tmp_path / "many.toml", "--run-dir", tmp_path / "many", *stated)
    assert result.code == 0, result.err
    assert "entries of the vocabulary are kept" in result.err
    result = run_with_streams("translate", tmp_path / "many", "--to", "fr", "--device", "cpu", stdin=b"ab cde\n")
    assert result.code == 0 and len(result.lines) == 1, result.err
