"""Which engine `translate` takes."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from tiny_models import make_run

from nmtkit.decoding import ctranslate2_engine, engine_choice
from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator, Export, exports_of
from nmtkit.decoding.engine_choice import choose_export, load_engine
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, ModelError
from nmtkit.export.export import export
from nmtkit.json_toml import read_json, write_json

GREEDY: dict[str, object] = {"beam": 1}


@pytest.fixture(scope="module")
def exported_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an export in float32 and one in int8."""
    run = make_run(tmp_path_factory.mktemp("run") / "mine")
    for quantization in ("float32", "int8"):
        export(run, "ctranslate2", quantization=quantization)
    return run


@pytest.fixture
def log_text(logged: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    logged.set_level(logging.INFO, logger="nmtkit")
    return logged


class TestAuto:
    @pytest.mark.parametrize("name", ["", "averaged"])
    def test_it_takes_the_export_of_exactly_this_model_for_greedy_search(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture, name: str
    ) -> None:
        chosen = choose_export([exported_run / name], "auto", GREEDY)
        assert chosen is not None
        assert chosen.folder == exported_run / "export" / "ctranslate2"
        assert f"engine: ctranslate2, {chosen.folder}" in log_text.text

    def test_it_takes_beam_search_with_finished_hypotheses_beside_the_beam_if_it_is_the_same(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        beside: dict[str, object] = {"finished": "beside", "length_penalty": "length", "alpha": 0.7}
        for same in ({}, {"length_penalty": "none"}, {"length_penalty": "wu", "alpha": 0.0}):
            assert choose_export([exported_run], "auto", {**beside, **same}) is not None
        assert log_text.text.count("it gives nmtkit's translations") == 3
        for other in ({"length_penalty": "wu"}, {"min_length": 2}, {"no_repeat_ngram": 3}, {"coverage_penalty": 0.1}):
            assert choose_export([exported_run], "auto", {**beside, **other}) is None
        assert log_text.text.count("\n") == 3
        with monkeypatch.context() as patch:  # as in an imported model of M2M-100
            read = lambda *arguments: {**read_json(*arguments), "target_starts": {"de": "__de__"}}  # noqa: E731
            patch.setattr(ctranslate2_engine, "read_json", read)
            assert choose_export([exported_run], "auto", beside) is None
            assert choose_export([exported_run], "auto", {**beside, "beam": 1}) is not None
        assert choose_export([exported_run], "ctranslate2", beside) is not None
        assert "differs" not in log_text.text

    def test_it_leaves_beam_search_to_torch_without_a_word(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        assert choose_export([exported_run], "auto", {}) is None
        assert log_text.text == ""  # it would stand at every `translate` once there is an export

    def test_it_leaves_what_only_torch_has_to_torch(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        assert choose_export([exported_run], "auto", GREEDY, ["--n-best"]) is None
        assert choose_export([exported_run, exported_run], "auto", GREEDY) is None
        assert choose_export([exported_run], "auto", {**GREEDY, "whole_trees": True}) is None
        assert choose_export([exported_run], "auto", {"beam": 3, "coverage_penalty": 0.2}) is None
        assert log_text.text == ""

    def test_quantised_weights_and_a_missing_package_mean_torch(
        self, exported_run: Path, tmp_path: Path, log_text: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(engine_choice, "find_spec", lambda name: None)
            assert choose_export([exported_run], "auto", GREEDY) is None
        run = tmp_path / "run"
        shutil.copytree(exported_run, run)
        shutil.rmtree(run / "export" / "ctranslate2")
        assert choose_export([run], "auto", GREEDY) is None
        assert log_text.text == ""

    def test_an_export_of_another_model_is_none_of_this_one(
        self, exported_run: Path, tmp_path: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        other = make_run(tmp_path / "other", seed=2)
        shutil.copytree(exported_run / "export", other / "export")
        named = other / "export" / "ctranslate2"
        assert choose_export([other], "auto", GREEDY) is None
        present = other / "averaged"
        assert f"{named}: not used, as it is not known to be made from {present} as it is now; export" in log_text.text
        with pytest.raises(ModelError, match=r"there is no CTranslate2 export made from exactly this model; run `nmt"):
            choose_export([other], "ctranslate2", {})
        assert choose_export([named], "auto", {}) is not None
        assert f"{named}: made from no model that is in {other} now; export it again" in log_text.text
        log_text.clear()
        assert choose_export([exported_run / "export" / "ctranslate2"], "auto", {}) is not None
        assert "made from no model" not in log_text.text

    @pytest.mark.parametrize("engine", ["auto", "ctranslate2"])
    def test_the_search_is_as_the_model_says_and_not_as_it_said_when_it_was_exported(
        self, exported_run: Path, tmp_path: Path, engine: str
    ) -> None:
        run = tmp_path / "run"
        shutil.copytree(exported_run, run)
        description = read_json(run / "averaged" / "model.json")
        description["decoding"]["min_length"] = 4
        write_json(run / "averaged" / "model.json", description)
        chosen = choose_export([run], engine, GREEDY)
        assert chosen is not None
        assert chosen.decoding(GREEDY).min_length == 4
        # A copy of the export is all there is; it says itself how to search.
        named = choose_export([run / "export" / "ctranslate2"], engine, GREEDY)
        assert named is not None
        assert named.decoding(GREEDY).min_length == 0
        del description["decoding"]
        write_json(run / "averaged" / "model.json", description)
        with pytest.raises(ModelError, match=r"model\.json: decoding is missing"):
            choose_export([run], engine, GREEDY)

    @pytest.mark.parametrize(
        ("overrides", "max_source_tokens"),
        [({"max_length_offset": 3000}, 1024), ({"max_length_ratio": 3.0}, 1024), ({"max_length": 9}, 2048)],
    )
    def test_what_needs_more_positions_than_the_export_has_is_left_to_torch(
        self, exported_run: Path, overrides: dict[str, object], max_source_tokens: int
    ) -> None:
        asked = {**GREEDY, **overrides}
        assert choose_export([exported_run], "auto", asked, max_source_tokens=max_source_tokens) is None
        within = {**asked, "max_length": 9}
        assert choose_export([exported_run], "auto", within, max_source_tokens=min(max_source_tokens, 2047)) is not None

    def test_learned_positions_are_no_reason_for_torch_which_has_no_more(self, exported_run: Path) -> None:
        found = Export.read(exported_run / "export" / "ctranslate2")
        learned = replace(found, manifest={**found.manifest, "max_positions": 24, "has_learned_positions": True})
        assert engine_choice._has_positions(learned, learned.decoding(GREEDY), 1024)

    def test_a_device_that_ctranslate2_does_not_have_means_torch(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        assert choose_export([exported_run], "auto", GREEDY, device="mps") is None
        assert log_text.text == ""

    def test_the_folder_one_is_in_can_be_named(self, exported_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(exported_run / "averaged")
        assert [export.quantization for export in exports_of(Path())] == ["float32", "int8"]

    def test_a_damaged_manifest_is_passed_over(
        self, exported_run: Path, tmp_path: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        run = tmp_path / "run"
        shutil.copytree(exported_run, run)
        manifest = read_json(run / "export" / "ctranslate2" / "manifest.json")
        del manifest["files"]
        write_json(run / "export" / "ctranslate2" / "manifest.json", manifest)
        assert [export.quantization for export in exports_of(run)] == ["int8"]
        assert "files is missing" in log_text.text
        with pytest.raises(ModelError, match=r"manifest\.json: files is missing"):
            choose_export([run / "export" / "ctranslate2"], "auto", {})

    @pytest.mark.parametrize("search", [GREEDY, {"finished": "beside", "length_penalty": "none"}])
    def test_a_damaged_tokenizer_of_an_export_means_torch(
        self, exported_run: Path, tmp_path: Path, log_text: pytest.LogCaptureFixture, search: dict[str, object]
    ) -> None:
        run = Path(shutil.copytree(exported_run, tmp_path / "run"))
        for path in (run / "export" / "ctranslate2" / "tokenizer").iterdir():
            path.write_bytes(b"{")
        assert isinstance(load_engine([run], "auto", search, [], device="cpu", threads=1), Translator)
        assert "using the torch engine, because the export cannot be used" in log_text.text

    def test_a_damaged_model_beside_a_named_export_is_only_told(
        self, exported_run: Path, tmp_path: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        run = Path(shutil.copytree(exported_run, tmp_path / "run"))
        (run / "averaged" / "model.json").write_text("{")
        assert choose_export([run / "export" / "ctranslate2"], "auto", {}) is not None
        assert "made from no model that is in" in log_text.text

    @pytest.mark.parametrize("engine", ["auto", "ctranslate2"])
    def test_the_export_of_a_damaged_model_does_not_hide_the_damage(
        self, exported_run: Path, tmp_path: Path, engine: Literal["auto", "ctranslate2"]
    ) -> None:
        run = tmp_path / "run"
        shutil.copytree(exported_run, run)
        weights = run / "averaged" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        with pytest.raises(ModelError, match=r"model\.safetensors: damaged \(it does not match provenance\.json"):
            load_engine([run], engine, GREEDY, [], device="cpu", threads=1)


class TestAskedFor:
    def test_ctranslate2_takes_float32_first_and_says_that_its_beam_search_is_another(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        chosen = choose_export([exported_run], "ctranslate2", {})
        assert chosen is not None
        assert chosen.quantization == "float32"
        assert "its beam search differs from nmtkit's" in log_text.text

    def test_an_export_can_be_named_itself(self, exported_run: Path) -> None:
        folder = exported_run / "export" / "ctranslate2-int8"
        for engine in ("auto", "ctranslate2"):
            chosen = choose_export([folder], engine, {})
            assert chosen == Export.read(folder)
        with pytest.raises(ModelError, match="a CTranslate2 export; name the model itself"):
            choose_export([folder], "torch", {})

    def test_ensembles_and_what_only_torch_has_are_refused(self, exported_run: Path) -> None:
        with pytest.raises(ModelError, match="one model, not an ensemble"):
            choose_export([exported_run, exported_run], "ctranslate2", {})
        with pytest.raises(ModelError, match="CTranslate2 has no --n-best"):
            choose_export([exported_run], "ctranslate2", {}, ["--n-best"])
        with pytest.raises(ModelError, match=r"has --no-whole-trees or --engine torch$"):
            choose_export([exported_run], "ctranslate2", {"whole_trees": True})
        with pytest.raises(ModelError, match=r"has --no-whole-trees, or name the model itself$"):
            choose_export([exported_run / "export" / "ctranslate2"], "auto", {"whole_trees": True})

    def test_a_coverage_penalty_is_refused_where_it_matters(self, exported_run: Path) -> None:
        with pytest.raises(ModelError, match="a different coverage penalty"):
            choose_export([exported_run], "ctranslate2", {"coverage_penalty": 0.2})
        export = choose_export([exported_run], "ctranslate2", {"coverage_penalty": 0.2, "beam": 1})
        assert export is not None
        translator = CTranslate2Translator.load(export, {"coverage_penalty": 0.2, "beam": 1}, "cpu", 1)
        assert len(translator.translate(["the dog"])) == 1
        translator.decoding = translator.decoding.model_copy(update={"beam": 2})  # as a request to the server does
        with pytest.raises(DataError, match="use beam 1 or the torch engine"):
            translator.translate(["the dog"])

    def test_torch_is_torch(self, exported_run: Path) -> None:
        assert choose_export([exported_run], "torch", GREEDY) is None
