"""What CTranslate2 makes of an exported model: the same greedy translations, or no export."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import tiny_models
import torch
from tiny_models import LINES, VALID, VARIANTS, let_end, make_run

from nmtkit.config.decoding_schema import TrainingLengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.corpora import synthetic
from nmtkit.corpora.trees import read_trees, split_words, words
from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator, Export
from nmtkit.decoding.engine_choice import load_engine
from nmtkit.decoding.request import Batching, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.export import ctranslate2 as conversion
from nmtkit.export import parity
from nmtkit.export.export import export
from nmtkit.files import exchange
from nmtkit.json_toml import read_json
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import load_model
from nmtkit.text import moses
from nmtkit.text.vocabulary import UNK
from tests.conftest import contents, message_of


def engine(folder: Path, **decoding: object) -> CTranslate2Translator:
    return CTranslate2Translator.load(Export.read(folder), decoding, "cpu", threads=2)


def greedy_by_torch(model: Path, lines: list[str]) -> list[str]:
    translator = Translator.load([model])
    translator.decoding = translator.decoding.model_copy(update={"beam": 1})
    return translator.translate(lines)


def let_end_with_unknown(model: Transformer, logit: float) -> None:
    """Gives <unk> much of the probability, which CTranslate2 distributes over the tokens that are not suppressed."""
    let_end(model, logit)
    model.output_embedding.data[UNK] += 6 / model.config.d_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("model") / "mine")


@pytest.fixture(scope="module")
def exported(model: Path) -> Path:
    return export(model, "ctranslate2")[0]


@pytest.fixture(scope="module")
def unsure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that gives <unk> much of the probability, and its export."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "let_end", let_end_with_unknown)
        model = make_run(tmp_path_factory.mktemp("unsure") / "mine")
    return model, export(model, "ctranslate2")[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_translations_of_every_kind_of_model_are_the_same(tmp_path: Path, variant: str) -> None:
    model = make_run(tmp_path / "mine", **VARIANTS[variant])
    folder, manifest = export(model, "ctranslate2")
    assert folder == model / "export" / "ctranslate2"
    assert manifest["parity"]["greedy"]["lines"] == len(VALID)
    found, expected = engine(folder, beam=1).translate(LINES), greedy_by_torch(model, LINES)
    assert len(set(expected)) > 5, "translations have to depend on their source"
    ties = len(manifest["parity"]["greedy"]["near_ties"])
    assert sum(one != other for one, other in zip(found, expected, strict=True)) <= ties
    empty = TranslationRequest(prefixes=[], required=[], forbidden=[], keep=[])  # lists, which are no tuples
    assert [best.text for [best] in engine(folder, beam=1).translations(LINES, empty)] == found


def test_a_tag_is_said_by_neither_engine_however_likely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_end = tiny_models.let_end

    def let_tag(model: Transformer, logit: float) -> None:
        let_end(model, logit)
        model.output_embedding.data[4] += 30 / model.config.d_model

    monkeypatch.setattr(tiny_models, "let_end", let_tag)
    corpus = {"source": "a.en", "target": "a.de", "source_prefix": "<bt>"}
    model = make_run(tmp_path / "mine", train=[corpus])
    found = engine(export(model, "ctranslate2")[0], beam=1).translate(VALID)
    assert load_model(model / "averaged").tokenizer.tag_ids == {4}
    assert len(set(found)) > 5
    assert found == greedy_by_torch(model, VALID)


def test_moses_tokens_are_joined_by_both_engines_and_the_readme_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_models, "PAIRS", [(f"({a}),", f"({b}), ({b}).") for a, b in tiny_models.PAIRS])
    model = make_run(tmp_path / "mine", normalize=("moses-tokenize",))
    lines = [f"({line})," for line in VALID]
    translator, folder = Translator.load([model]), export(model, "ctranslate2")[0]
    asked = TranslationRequest(required=[["Katze , ( Hündin ) ."]] * len(lines))
    for (best, *_), line in zip(translator.translations(lines, asked), lines, strict=True):
        tokens = "".join(best.pieces).replace("\u2581", " ").strip(" ")
        assert "Katze , ( Hündin ) ." in tokens, line
        assert best.text == moses.detokenize([tokens], "de")[0]
        assert "Katze, (Hündin)" in best.text
    (ids,) = translator.tokenizer.encode(["Katze , ( Hündin ) ."], "target")
    monkeypatch.setattr(
        CTranslate2Translator,
        "search_batches",
        lambda self, sources, _: iter([dict.fromkeys(range(len(sources)), ids)]),
    )
    assert engine(folder).translate(lines) == ["Katze, (Hündin)."] * len(lines)
    told = (folder / "README.md").read_text(encoding="utf-8")
    assert "before: moses-tokenize\n- To be done to each translation after: Moses' detokenizer for de" in told


def test_a_parser_gives_the_same_trees_over_the_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_models, "PAIRS", [(f"-LRB- {source} -RRB-", tree) for source, tree in tiny_models.PAIRS])
    model = make_run(tmp_path / "mine", text="trees", vocab_size=90)
    lines = [*LINES, "a ( b )", "the cat ( the dog ) sees", "the old house ( a red cat )"]
    (tmp_path / "sample").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = engine(export(model, "ctranslate2", sample_file=tmp_path / "sample")[0], beam=1).translate(lines)
    assert found == greedy_by_torch(model, lines)
    trees = [list(read_trees([line], "a parse")) for line in found]
    assert [[word for tree in of_line for word in words(tree)] for of_line in trees] == [*map(split_words, lines)]


def test_the_vocabulary_is_in_the_order_of_the_ids(model: Path, exported: Path) -> None:
    tokenizer = load_model(model / "averaged").tokenizer
    pieces = tokenizer.pieces(range(tokenizer.vocab_size("target")), "target")
    assert json.loads((exported / "shared_vocabulary.json").read_text(encoding="utf-8")) == pieces


def test_the_manifest_says_what_was_exported_and_how_it_was_checked(model: Path, exported: Path) -> None:
    manifest = read_json(exported / "manifest.json")
    assert manifest["model_sha256"] == read_json(model / "averaged" / "provenance.json")["files"]["model.safetensors"]
    assert manifest["decoding"]["beam"] == 3
    assert set(manifest["files"]) >= {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer/joint.model"}
    assert manifest["parity"]["sample"] == str(model / "data" / "valid.source.txt")
    assert manifest["parity"]["beam"]["beam"] == 3
    assert 0 <= manifest["parity"]["beam"]["identical"] <= 1
    assert "ctranslate2" in manifest["versions"]
    assert "blanks" in (exported / "README.md").read_text(encoding="utf-8")


def other_positions(config: ModelConfig, length: int) -> torch.Tensor:
    """CTranslate2's own table: sines before cosines, from position 1, another divisor."""
    half = config.d_model // 2
    angles = torch.arange(1, length + 1)[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / (half - 1))
    return torch.cat([angles.sin(), angles.cos()], 1)


def test_a_model_that_translates_otherwise_is_refused_and_an_older_export_stays(
    model: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(exported, tmp_path / "older")
    before = contents(tmp_path)
    monkeypatch.setattr(conversion, "position_table", other_positions)
    told = r"not exported: ctranslate2 translates line [0-9]+ of .* first at token"
    for name in ("new", "older"):
        message_of(lambda name=name: export(model, "ctranslate2", output=tmp_path / name), ModelError, told)
    assert [path.name for path in tmp_path.iterdir()] == ["older"]
    assert contents(tmp_path) == before


def test_a_near_tie_is_listed_and_a_clear_difference_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(model / "averaged")
    sample = parity.take_sample(loaded, [model], None)
    greedy = loaded.decoding.model_copy(update={"beam": 1})
    ours = parity.search(loaded, sample, greedy)
    theirs = [list(ids) for ids in ours]
    place = next(index for index, ids in enumerate(ours) if len(ids) > 2)
    theirs[place][1] = 9 if ours[place][1] != 9 else 10
    line = 2 * place + 1  # every second line of the file is blank
    assert parity.check_greedy(loaded, sample, ours, ours, "x") == {"lines": 20, "identical": 1.0, "near_ties": []}
    with pytest.raises(ModelError, match=rf"x translates line {line} of .* first at token 2, '.*' against '.*'"):
        parity.check_greedy(loaded, sample, ours, theirs, "x")
    monkeypatch.setattr(parity, "NEAR_TIE", 1e9)
    report = parity.check_greedy(loaded, sample, ours, theirs, "x")
    assert report["identical"] == 19 / 20
    assert [(tie["line"], tie["token"]) for tie in report["near_ties"]] == [(line, 2)]
    assert report["near_ties"][0]["gap"] > 1e-4
    # What ends sooner differs, too.
    with monkeypatch.context() as patch:
        patch.setattr(parity, "NEAR_TIE", -1.0)
        with pytest.raises(ModelError, match=r"first at token 3, '.*' against '</s>'"):
            parity.check_greedy(loaded, sample, ours, [*ours[:place], ours[place][:2], *ours[place + 1 :]], "x")


def test_quantised_weights_are_smaller_and_their_differences_are_reported(model: Path, exported: Path) -> None:
    folder, manifest = export(model, "ctranslate2", quantization="int8")
    assert folder == model / "export" / "ctranslate2-int8"
    assert (folder / "model.bin").stat().st_size < (exported / "model.bin").stat().st_size
    assert set(manifest["parity"]) == {"sample", "greedy", "beam", "greedy_int8", "beam_int8"}
    assert manifest["parity"]["greedy_int8"]["bleu"] > 0
    assert any(engine(folder, beam=1).translate(LINES))


class TestSample:
    def test_it_is_the_validation_text_of_the_run_of_a_model(self, model: Path, tmp_path: Path) -> None:
        _, manifest = export(model / "averaged", "ctranslate2", output=tmp_path / "new")
        assert manifest["parity"]["sample"] == str(model / "data" / "valid.source.txt")

    def test_without_a_run_it_is_the_built_in_corpus_and_this_is_said(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
    ) -> None:
        pairs = [synthetic.SyntheticPair(line, line, frozenset()) for line in VALID[:9]]
        monkeypatch.setattr(synthetic, "generate", lambda split: pairs)
        shutil.copytree(model / "averaged", tmp_path / "copied" / "far" / "away")
        folder, manifest = export(tmp_path / "copied" / "far" / "away", "ctranslate2")
        assert folder == tmp_path / "copied" / "far" / "away" / "export" / "ctranslate2"
        assert manifest["parity"]["sample"] == "built-in corpus (made-up English)"
        assert manifest["parity"]["greedy"]["lines"] == 9
        assert "--sample FILE" in logged.text

    def test_a_file_comes_first_and_has_to_hold_text(self, model: Path, tmp_path: Path) -> None:
        file = tmp_path / "mine.en"
        file.write_text("The dog sees a cat.\n", encoding="utf-8")
        _, manifest = export(model, "ctranslate2", output=tmp_path / "new", sample_file=file)
        assert (manifest["parity"]["sample"], manifest["parity"]["greedy"]["lines"]) == (str(file), 1)
        file.write_text("\n \n", encoding="utf-8")
        with pytest.raises(DataError, match="there is no text to check"):
            export(model, "ctranslate2", output=tmp_path / "new", sample_file=file)


def test_a_sample_may_have_a_name_that_is_not_utf_8(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "caf\udce9"
    file.write_text("The dog sees a cat.\n", encoding="utf-8")
    _, manifest = export(model, "ctranslate2", output=tmp_path / "new", sample_file=file)
    assert read_json(tmp_path / "new" / "manifest.json")["parity"]["sample"] == manifest["parity"]["sample"]


def test_a_folder_that_holds_something_else_is_not_replaced(model: Path, exported: Path, tmp_path: Path) -> None:
    older = shutil.copytree(exported, tmp_path / "older")
    for folder in (tmp_path / "mine", older):
        (folder / "notes").mkdir(parents=True)
        (folder / "notes" / "mine.txt").write_text("kept")
        with pytest.raises(DataError, match=r"contains more than an export \(notes/mine\.txt\)"):
            export(model, "ctranslate2", output=folder)
        assert (folder / "notes" / "mine.txt").read_text() == "kept"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".DS_Store").touch()  # as by macOS
    export(model, "ctranslate2", output=tmp_path / "new")
    assert (tmp_path / "new" / "model.bin").is_file()


class TestEngine:
    def test_what_a_sentence_is_translated_with_makes_no_difference(self, exported: Path) -> None:
        translator = engine(exported, beam=3, length_penalty="wu", max_length_offset=1)
        alone = [translator.translate([line])[0] for line in LINES]
        assert translator.translate(LINES) == alone
        assert translator.translate(LINES, batching=Batching(7)) == alone
        assert translator.translate(LINES[::-1], batching=Batching(tokens=40))[::-1] == alone

    @pytest.mark.parametrize(
        "decoding",
        [
            {"min_length": 3},
            {"no_repeat_ngram": 2},
            {"min_length": 30, "max_length": 7},
            {"max_length_ratio": 0.5, "max_length_offset": 3},
            {"max_length_ratio": 0.1, "max_length_offset": 0},
            {"max_length_ratio": 0.0, "max_length_offset": 0},
        ],
    )
    def test_what_greedy_search_is_asked_for_besides_is_done_alike(
        self, exported: Path, model: Path, decoding: dict[str, object]
    ) -> None:
        by_torch, translator = Translator.load([model]), engine(exported, beam=1, **decoding)
        plain = engine(exported, beam=1).translate(LINES)
        by_torch.decoding = translator.decoding
        found = translator.translate(LINES)
        assert found == by_torch.translate(LINES)
        assert found != plain

    def test_few_batches_are_begun_before_they_are_needed(
        self, exported: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        translator, begun = engine(exported), []
        found = CTranslate2Translator._options
        monkeypatch.setattr(
            CTranslate2Translator, "_options", lambda self, limit: begun.append(limit) or found(self, limit)
        )
        batches = translator.search_batches([[5, 6]] * 40, Batching(sentences=1))
        next(batches)  # without a limit of 0, nothing
        next(batches)
        assert len(begun) == 2 * translator._translator.num_translators + 1 < 40
        assert sum(map(len, batches)) == 39

    def test_lines_may_end_in_line_ends_and_a_wrong_setting_is_named(self, exported: Path) -> None:
        translator = engine(exported, beam=1)
        assert translator.translate(f"{line}\n" for line in LINES) == translator.translate(LINES)
        with pytest.raises(RecipeError, match=r"^given settings: decoding\.beam = 0: must be at least 1$"):
            engine(exported, beam=0)

    @pytest.mark.parametrize(
        ("penalty", "offset"),
        [
            (("length", 1.0), 0), (("length", 0.3), 5), (("none", 0.6), 30),
            (("wu", 0.0), 0), (("length", 1.0), 30), (("wu", 0.0), 5),
        ],
    )  # fmt: skip
    def test_beam_search_with_finished_hypotheses_beside_the_beam_is_the_same(
        self, unsure: tuple[Path, Path], penalty: tuple[str, float], offset: int
    ) -> None:
        (model, folder), (kind, alpha) = unsure, penalty
        by_torch, settings = Translator.load([model]), {"length_penalty": kind, "alpha": alpha}
        by_ctranslate2 = engine(folder, beam=4, finished="beside", max_length_offset=offset, **settings)
        lines = [*LINES, *tiny_models.sentences(60, seed=9)]
        by_torch.decoding = by_ctranslate2.decoding
        found = by_ctranslate2.translate(lines)
        assert found == by_torch.translate(lines)
        by_torch.decoding = by_torch.decoding.model_copy(update={"finished": "within"})
        assert found != by_torch.translate(lines)

    def test_a_longer_source_is_cut_as_the_other_engine_cuts_it(self, exported: Path, model: Path) -> None:
        by_torch, translator = Translator.load([model]), engine(exported, beam=1)
        by_torch.decoding = translator.decoding
        assert translator.translate(LINES, max_source_tokens=9) == by_torch.translate(LINES, max_source_tokens=9)

    def test_it_keeps_the_limit_that_the_model_records(self, exported: Path, model: Path) -> None:
        lengths = TrainingLengths(longest_source=9, target_ratio=1.0, multi_sentence_share=0.0)
        lines = ["the cat sees a dog. the old house. and the new dog likes not the old cat. a", "the cat. a dog"]
        by_torch, translator = Translator.load([model]), engine(exported, beam=1)
        by_torch.decoding = translator.decoding
        whole = translator.translate(lines)
        by_torch.lengths = translator.lengths = lengths
        assert translator.translate(lines) == by_torch.translate(lines)
        assert translator.translate(lines)[0] != whole[0]
        assert translator.translate(lines)[1] == whole[1]

    def test_a_length_penalty_changes_what_is_chosen(self, exported: Path) -> None:
        def total_length(**decoding: object) -> int:
            translator = engine(exported, beam=4, max_length_offset=30, **decoding)
            return sum(map(len, translator.search(translator.tokenizer.encode(VALID, "source"), Batching())))

        free = total_length(length_penalty="none")
        assert total_length(length_penalty="wu", alpha=0.0) == free
        assert total_length(length_penalty="length", alpha=0.0) == free
        assert total_length(length_penalty="wu", alpha=3.0) > free
        assert total_length(length_penalty="length", alpha=3.0) > free

    def test_a_damaged_export_is_refused_in_one_line_that_names_the_file(self, model: Path, tmp_path: Path) -> None:
        folder, _ = export(model, "ctranslate2", output=tmp_path / "new")
        content = bytearray((folder / "model.bin").read_bytes())
        content[-1] ^= 1
        (folder / "model.bin").write_bytes(content)
        with pytest.raises(ModelError, match=r"model\.bin: damaged \(it does not match its checksum in manifest\.json"):
            engine(folder)

    def test_an_export_that_is_replaced_while_it_is_read_is_refused(
        self, exported: Path, unsure: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, other = shutil.copytree(exported, tmp_path / "old"), shutil.copytree(unsure[1], tmp_path / "new")
        translator, found = ctranslate2.Translator, Export.read(folder)

        def replace_and_load(*arguments: Any, **options: Any) -> ctranslate2.Translator:
            exchange(folder, other)
            return translator(*arguments, **options)

        monkeypatch.setattr(ctranslate2, "Translator", replace_and_load)
        told = message_of(lambda: CTranslate2Translator.load(found, device="cpu", threads=2), ModelError)
        assert told == f"{folder}: was replaced while it was read; run the command again"

    def test_a_failure_while_it_translates_is_told_in_one_line(
        self, exported: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Failing:
            num_translators = 1

            def translate_batch(self, sources: list[list[str]], **options: object) -> list["Failing"]:
                return [self for _ in sources]

            def result(self) -> None:
                raise RuntimeError("CUDA failed with error\nout of memory")

        translator = engine(exported, beam=1)
        monkeypatch.setattr(translator, "_translator", Failing())
        with pytest.raises(ModelError, match=r"^CTranslate2 failed \(CUDA failed with error out of memory\); try"):
            translator.search([[5, 6]], Batching())

    def test_a_gpu_without_cublas_is_noticed_when_the_export_is_loaded(
        self, model: Path, exported: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        class WithoutLibrary:
            def __init__(self, folder: str, device: str, **options: object) -> None:
                assert device == "cuda"

            def translate_batch(self, sources: list[list[str]], **options: object) -> None:
                raise RuntimeError("Library libcublas.so.12 is not found or cannot be loaded")

        monkeypatch.setattr("ctranslate2.Translator", WithoutLibrary)
        monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 1)
        with pytest.raises(ModelError, match=r"cannot use it \(Library libcublas\.so\.12 is not found"):
            CTranslate2Translator.load(Export.read(exported), {}, "auto")
        workers = Workers(0, 1, torch.device("cpu"), "float32")
        with caplog.at_level(logging.WARNING, logger="nmtkit"):
            loaded = load_engine([model], "auto", {"beam": 1}, [], workers)
        assert isinstance(loaded, Translator)
        assert "using the torch engine" in caplog.text

    def test_more_positions_than_the_export_has_are_refused(self, exported: Path) -> None:
        with pytest.raises(ModelError, match="the export has 2048; lower --max-length"):
            engine(exported, max_length_offset=3000).translate(["a"])

    def test_a_device_it_cannot_use_is_refused(self, exported: Path) -> None:
        with pytest.raises(ModelError, match="--device mps"):
            CTranslate2Translator.load(Export.read(exported), device="mps")
