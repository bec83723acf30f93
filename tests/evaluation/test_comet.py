"""COMET's own library is called as it documents itself; a stand-in of the same interface takes its place here."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from nmtkit.errors import DataError
from nmtkit.evaluation.comet import Comet
from nmtkit.evaluation.metric_names import comparable_to
from nmtkit.evaluation.metrics import score
from nmtkit.evaluation.scores import Score, scores_as_json

MODEL = "Unbabel/wmt22-comet-da"


class StandIn:
    """What `load_from_checkpoint` of unbabel-comet 2 returns, as far as it is used: a better line shares more words."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: list[dict[str, Any]] = []

    def predict(
        self, samples: list[dict[str, str]], batch_size: int = 16, gpus: int = 1, progress_bar: bool = True
    ) -> SimpleNamespace:
        self.asked.append({"samples": samples, "gpus": gpus})
        scores = [len({*one["mt"].split()} & {*one["ref"].split()}) / 10 for one in samples]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """The library as it is where it is installed; gives the models that were loaded."""
    loaded: list[StandIn] = []

    def download_model(model: str) -> str:
        if model != MODEL:
            raise KeyError(f"Model '{model}' not supported by COMET.")
        return "/cache/checkpoints/model.ckpt"

    def load_from_checkpoint(checkpoint_path: str) -> StandIn:
        loaded.append(StandIn(checkpoint_path))
        return loaded[-1]

    module = ModuleType("comet")
    module.download_model = download_model  # type: ignore[attr-defined]
    module.load_from_checkpoint = load_from_checkpoint  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comet", module)
    return loaded


def three(*lines: str) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    return ["the dog", "a cat"], list(lines), ["der Hund", "eine Katze"]


def test_scores_of_lines_and_system_are_those_of_the_library(library: list[StandIn]) -> None:
    comet = Comet(MODEL, torch.device("cpu"))
    of_system, of_lines = comet.score(*three("der Hund", "eine Kuh"))
    assert of_lines == [0.2, 0.1]
    assert of_system == Score((0.2 + 0.1) / 2, f"nrefs:1|model:{MODEL}|unbabel-comet:unknown")
    comet.score(*three("x", "y"))
    (model,) = library  # read once
    assert model.path == "/cache/checkpoints/model.ckpt"
    assert model.asked[0]["samples"] == [
        {"src": "the dog", "mt": "der Hund", "ref": "der Hund"},
        {"src": "a cat", "mt": "eine Kuh", "ref": "eine Katze"},
    ]
    assert [asked["gpus"] for asked in model.asked] == [0, 0]


def test_the_installed_version_stands_in_the_signature(library: list[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"unbabel-comet": "2.2.7"}[name])
    of_system, _ = Comet(MODEL, torch.device("cpu")).score(*three("a", "b"))
    assert of_system.signature == f"nrefs:1|model:{MODEL}|unbabel-comet:2.2.7"
    assert scores_as_json({"comet": of_system})["comet"] == {"score": 0.0, "signature": of_system.signature}


def test_a_gpu_is_used_where_there_is_one(library: list[StandIn]) -> None:
    Comet(MODEL, torch.device("cuda")).score(*three("a", "b"))
    assert library[0].asked[0]["gpus"] == 1


def test_a_checkpoint_on_disk_is_not_downloaded(library: list[StandIn], tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").touch()
    of_system, _ = Comet(str(tmp_path / "model.ckpt"), torch.device("cpu")).score(*three("a", "b"))
    assert library[0].path == str(tmp_path / "model.ckpt")
    assert of_system.signature.startswith("nrefs:1|model:model.ckpt|")


def test_an_unknown_model_is_told_in_one_line(library: list[StandIn]) -> None:
    with pytest.raises(DataError, match=r"the COMET model no/such cannot be read .*not supported by COMET"):
        Comet("no/such", torch.device("cpu"))
    assert library == []


def test_comet_is_asked_for_by_its_model_and_says_what_it_may_be_compared_with() -> None:
    with pytest.raises(DataError, match="COMET needs a model: give `nmtkit score` one, such as --comet"):
        score(["a"], ["a"], target_language=None, text="plain", metrics=["comet"])
    assert comparable_to("comet").startswith("other COMET scores of the same model")
