"""The scores of a run say what its text was made to before the model saw it."""

import math
from pathlib import Path

import pytest

from nmtkit import pipeline
from nmtkit.cli import run
from nmtkit.config.data_schema import AVERAGE
from nmtkit.config.recipe import load_recipe, to_toml
from nmtkit.decoding.running_text import TextScore
from nmtkit.evaluation.metric_names import comparable_to
from nmtkit.evaluation.scores import Score, mean_scores
from nmtkit.json_toml import read_json, write_json
from nmtkit.lines import write_lines
from nmtkit.training.validation import Validation

LINES = ["Das ist ein Haus.", "Ein Mann, der steht, lacht."]


@pytest.fixture(autouse=True)
def costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "training_cost", lambda run: {})


def write_run(folder: Path, settings: list[str]) -> None:
    """Writes a run of quickstart with a test set that is translated."""
    for name in ("data/test", "translations"):
        (folder / name).mkdir(parents=True)
    (folder / "recipe.toml").write_text(to_toml(load_recipe("quickstart", settings)), encoding="utf-8")
    write_json(folder / "data" / "manifest.json", {})
    for name in ("data/test/mine.source.txt", "data/test/mine.reference.txt"):
        write_lines(folder / name, LINES)
    write_lines(folder / "translations" / "mine.txt", [line.lower() for line in LINES])


@pytest.mark.parametrize(
    ("normalize", "said"),
    [
        ('["blanks"]', ""),
        ("[]", ""),
        ('["blanks", "moses-punctuation", "moses-tokenize", "lowercase"]',
         "|model-text:moses-punctuation+moses-tokenize+lowercase"),
    ],
)  # fmt: skip
def test_a_signature_ends_in_what_was_done_to_the_text_of_the_model(tmp_path: Path, normalize: str, said: str) -> None:
    write_run(tmp_path, [f"data.normalize={normalize}"])
    scores = pipeline.score_run(tmp_path)["mine"]
    for score in scores.values():
        assert score.signature.endswith(said)
        assert ("model-text" in score.signature) == bool(said)
    written = read_json(tmp_path / "scores.json")["mine"]
    assert {name: score.signature for name, score in scores.items()} == {
        name: entry["signature"] for name, entry in written.items()
    }
    assert scores["bleu-tokenized"].score < scores["bleu-tokenized-lc"].score == pytest.approx(100.0)


@pytest.mark.parametrize(("normalize", "end"), [("[]", "|context:512"), ('["lowercase"]', "|model-text:lowercase")])
def test_so_does_that_of_a_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, normalize: str, end: str
) -> None:
    settings = ["data.task=language-model", "model.architecture=decoder", "training.validate_bleu=false"]
    write_run(tmp_path, [*settings, f"data.normalize={normalize}"])
    for name, value in {"find_model": None, "load_model": None, "score_text": TextScore(9.0, 4, 3, 9, 0)}.items():
        monkeypatch.setattr(pipeline, name, lambda *arguments, value=value: value)
    scores = pipeline.score_run(tmp_path, device="cpu")["mine"]
    assert all(score.signature.endswith(end) for score in scores.values())


def test_a_perplexity_of_a_model_that_has_diverged_is_a_number() -> None:
    score = TextScore(4000.0, 5, 1, 5, 0)
    assert math.isfinite(score.perplexity) and math.isfinite(score.word_perplexity)
    assert math.isfinite(Validation(800.0, None, []).metrics["valid_perplexity"])
    for nll in (math.inf, math.nan):
        assert Validation(nll, None, []).metrics["valid_perplexity"] is None


def test_run_prints_the_signature_of_each_test_set(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {test: {"sacrebleu": Score(20.0, f"tok:{tok}")} for test, tok in (("a", "13a"), ("b", "zh"), ("c", "13a"))}
    run._print_main_scores({**scores, AVERAGE: mean_scores(list(scores.values()))}, is_made_up=False)
    printed = capsys.readouterr().out.splitlines()
    stated = [line for line in printed if line.startswith("Signature")]
    assert stated == ["Signature of sacrebleu: tok:13a", "Signature of sacrebleu: tok:zh"]
    assert not any("compound-split" in line for line in printed)
    german = {"sacrebleu": Score(20.0, "x"), "bleu-compound-split": Score(21.0, "y")}
    run._print_main_scores({"a": german}, is_made_up=False)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Comparable to: {comparable_to('sacrebleu')}" in printed
    assert (
        f"a: bleu-compound-split 21.00; on newstest2014 comparable to {comparable_to('bleu-compound-split')}" in printed
    )
