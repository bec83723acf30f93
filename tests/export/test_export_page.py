"""The Python of docs/export.md does what it says."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_run

from nmtkit.decoding.translator import Translator
from nmtkit.export.export import export

PAGE = Path(__file__).parent.parent.parent / "docs" / "export.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/mine and its exports; its weights are such that both lines' translations come to an end."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "runs").mkdir()
    decoding: dict[str, object] = {"max_length_offset": 50}
    run = make_run(folder / "runs" / "mine", seed=29, end_logit=7.0, encoder_layers=1, decoding=decoding)
    (run / "data" / "valid.source.txt").write_text("the cat\na dog\n")
    for to in ("ctranslate2", "huggingface"):
        export(run, to)
    return folder


def test_there_are_three_snippets() -> None:
    assert len(SNIPPETS) == 3


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_translates_as_nmtkit_does(snippet: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    translator = Translator.load([Path("runs/mine")])
    translator.decoding = translator.decoding.model_copy(update={"beam": 1})
    expected = translator.translate(["the old dog sees a cat", "a cat   likes the new house "])
    names: dict[str, Any] = {}
    exec(compile(snippet, str(PAGE), "exec"), names)
    assert names["translations"] == expected
    assert all(0 < len(line) < 200 for line in expected), "the end has to be the model's, not the limit's"
