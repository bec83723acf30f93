"""Which engine `translate` takes, and that the one without torch does without it."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import VALID, make_run

from nmtkit.decoding import engine_choice
from nmtkit.decoding.engine_choice import Export, choose_export, exports_of
from nmtkit.errors import ModelError
from nmtkit.export.export import export
from nmtkit.files import read_json, write_json

GREEDY: dict[str, object] = {"beam": 1}


@pytest.fixture(scope="module")
def exported_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an export in float32 and one in int8."""
    run = make_run(tmp_path_factory.mktemp("run") / "mine")
    for quantization in ("float32", "int8"):
        export(run, "ctranslate2", quantization=quantization)
    return run


@pytest.fixture
def log_text(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("nmtkit"), "propagate", True)
    caplog.set_level(logging.INFO, logger="nmtkit")
    return caplog


class TestAuto:
    @pytest.mark.parametrize("name", ["", "averaged"])
    def test_it_takes_the_export_of_exactly_this_model_for_greedy_search(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture, name: str
    ) -> None:
        chosen = choose_export([exported_run / name], "auto", GREEDY)
        assert chosen is not None
        assert chosen.folder == exported_run / "export" / "ctranslate2"
        assert f"engine: ctranslate2, {chosen.folder}" in log_text.text

    def test_it_leaves_beam_search_to_torch_and_says_why(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        assert choose_export([exported_run], "auto", {}) is None
        assert "engine: torch" in log_text.text
        assert "search with a beam of 3 may find other translations" in log_text.text

    def test_it_leaves_what_only_torch_has_to_torch(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        assert choose_export([exported_run], "auto", GREEDY, ["--n-best"]) is None
        assert choose_export([exported_run, exported_run], "auto", GREEDY) is None
        assert "CTranslate2 has no --n-best" in log_text.text

    def test_quantised_weights_and_a_missing_package_mean_torch(
        self, exported_run: Path, tmp_path: Path, log_text: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(engine_choice, "find_spec", lambda name: None)
            assert choose_export([exported_run], "auto", GREEDY) is None
            assert "CTranslate2 is not installed" in log_text.text
        run = tmp_path / "run"
        shutil.copytree(exported_run, run)
        shutil.rmtree(run / "export" / "ctranslate2")
        assert choose_export([run], "auto", GREEDY) is None
        assert "its int8 weights translate otherwise" in log_text.text

    def test_an_export_of_another_model_is_none_of_this_one(self, exported_run: Path, tmp_path: Path) -> None:
        other = make_run(tmp_path / "other", seed=2)
        shutil.copytree(exported_run / "export", other / "export")
        assert exports_of(other) == []
        assert choose_export([other], "auto", GREEDY) is None
        with pytest.raises(
            ModelError, match=r"no export for CTranslate2 that is made from exactly this model; run `nmt"
        ):
            choose_export([other], "ctranslate2", {})

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
        with pytest.raises(ModelError, match=r"manifest\.json: damaged"):
            choose_export([run / "export" / "ctranslate2"], "auto", {})


class TestAskedFor:
    def test_ctranslate2_takes_float32_first_and_says_that_its_beam_search_is_another(
        self, exported_run: Path, log_text: pytest.LogCaptureFixture
    ) -> None:
        chosen = choose_export([exported_run], "ctranslate2", {})
        assert chosen is not None
        assert chosen.quantization == "float32"
        assert "its beam search is not nmtkit's" in log_text.text

    def test_an_export_can_be_named_itself(self, exported_run: Path) -> None:
        folder = exported_run / "export" / "ctranslate2-int8"
        for engine in ("auto", "ctranslate2"):
            chosen = choose_export([folder], engine, {})
            assert chosen == Export.read(folder)
        with pytest.raises(ModelError, match="an export for CTranslate2; name the model itself"):
            choose_export([folder], "torch", {})

    def test_ensembles_and_what_only_torch_has_are_refused(self, exported_run: Path) -> None:
        with pytest.raises(ModelError, match="one model, not an ensemble"):
            choose_export([exported_run, exported_run], "ctranslate2", {})
        with pytest.raises(ModelError, match="CTranslate2 has no --n-best"):
            choose_export([exported_run], "ctranslate2", {}, ["--n-best"])

    def test_a_coverage_penalty_is_refused_where_it_matters(self, exported_run: Path) -> None:
        with pytest.raises(ModelError, match="another coverage penalty"):
            choose_export([exported_run], "ctranslate2", {"coverage_penalty": 0.2})
        assert choose_export([exported_run], "ctranslate2", {"coverage_penalty": 0.2, "beam": 1}) is not None

    def test_torch_is_torch(self, exported_run: Path) -> None:
        assert choose_export([exported_run], "torch", GREEDY) is None


def test_an_export_alone_translates_without_torch(exported_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported_run / "export" / "ctranslate2", tmp_path / "moved")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator\n"
        "from nmtkit.decoding.engine_choice import choose_export\n"
        "export = choose_export([Path(sys.argv[1])], 'auto', {'beam': 1})\n"
        "translator = CTranslate2Translator.load(export, {'beam': 1}, 'cpu', 1)\n"
        "print(*translator.translate(sys.argv[2:]), sep='\\n')\n"
        "loaded = {'torch', 'transformers', 'sacrebleu'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    result = subprocess.run([sys.executable, "-c", program, folder, *VALID], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split("\n")) == len(VALID) + 1
    assert result.stdout.strip()
