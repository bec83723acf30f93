"""`nmtkit generate`, and what other commands do with a language model."""

import json
from pathlib import Path

import pytest

from nmtkit.json_toml import read_json
from tests.cli.outcomes import printed, refusal
from tests.conftest import run_command

RECIPE = (
    '[data]\ntask = "language-model"\ntarget_language = "en"\ntrain = [{ text = "text.txt" }]\n'
    'valid = [{ text = "text.txt" }]\ntest = [{ text = "text.txt", name = "test" }]\nsubwords = "characters"\n'
    'sequence_length = 12\n[model]\narchitecture = "decoder"\ndecoder_layers = 1\nd_model = 16\nd_ff = 16\n'
    "num_heads = 2\n[training]\nsequences_per_update = 8\nmax_steps = 10\nvalidate_bleu = false\n"
    "[decoding]\naverage_last = 1\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nmtkit.config.recipe import load_recipe
    from nmtkit.pipeline import run

    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("abc def\nghi\n" * 40, encoding="utf-8")
    (folder / "mine.toml").write_text(RECIPE, encoding="utf-8")
    recipe = load_recipe(str(folder / "mine.toml"))
    assert run(recipe, folder / "run", mirror=None, device="cpu", threads=1).exit_code == 0
    return folder / "run"


def test_a_prompt_is_continued_and_the_seed_decides(model: Path, tmp_path: Path) -> None:
    options = ["--max-tokens", 30, "--quiet", "--threads", 1]
    first = run_command("generate", model, "--prompt", "abc", *options)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("abc")
    assert len(first.out) == len("abc") + 30 + 1
    assert run_command("generate", model, "--prompt", "abc", *options).out == first.out
    assert run_command("generate", model, "--prompt", "abc", "--seed", 2, *options).out != first.out
    (tmp_path / "prompt.txt").write_text("abc\nde", encoding="utf-8")
    from_file = ["--prompt-file", tmp_path / "prompt.txt", "--output", tmp_path / "out.txt", "--number", 2]
    assert run_command("generate", model, *from_file, *options).code == 0
    texts = (tmp_path / "out.txt").read_text(encoding="utf-8")
    assert texts.startswith("abc\nde")
    assert "\n\nabc\nde" in texts
    assert run_command("generate", model, *options).code == 0


def test_forbidden_phrases_do_not_appear(model: Path) -> None:
    options = ["--prompt", "abc", "--max-tokens", 60, "--quiet", "--threads", 1]
    assert "e" in run_command("generate", model, *options).out
    found = run_command("generate", model, *options, "--forbid", "e", "--forbid", "gh")
    assert (found.code, found.err) == (0, "")
    assert "e" not in found.out and "gh" not in found.out
    assert refusal("generate", model, *options, "--forbid", "") == "the forbidden phrase '' is empty; leave it out"


def test_a_beam_searches_within_one_sequence(model: Path) -> None:
    found = printed("generate", model, "--prompt", "ab", "--beam", 3, "--max-tokens", 10, "--quiet")
    assert len(found) == 2 + 10 + 1
    too_long = refusal("generate", model, "--prompt", "abc", "--beam", 3, "--max-tokens", 10, "--quiet")
    assert too_long.startswith("prompt and continuation have 13 tokens, and the model was trained with 12;")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "MODEL", "--input", "text.txt"], "use `nmtkit generate`"),
        (["attention", "MODEL", "--source", "abc", "--target", "abc"], "models that translate"),
        (
            ["export", "MODEL", "--format", "ctranslate2"],
            'conversion for CTranslate2 does not support architecture = "decoder"',
        ),
    ],
)
def test_commands_for_models_with_a_source_refuse_a_language_model(
    model: Path, arguments: list[str], message: str
) -> None:
    given = [
        word.replace("MODEL", str(model)) if word != "text.txt" else str(model.parent / word) for word in arguments
    ]
    assert message in refusal(*given, "--quiet")


def test_a_text_is_scored_without_a_source(model: Path, tmp_path: Path) -> None:
    scored = read_json(model / "scores.json")["test"]
    whole = printed("score", "--model", model, "--hypothesis", model.parent / "text.txt", "--quiet")
    log_prob, tokens, perplexity, status = whole.rstrip("\n").split("\t")
    assert (tokens, status) == (str(12 * 40 - 1), "ok")
    assert float(perplexity) == pytest.approx(scored["perplexity"]["score"], rel=1e-5)
    assert float(log_prob) == pytest.approx(-scored["nll"]["score"] * int(tokens), rel=1e-5)
    (tmp_path / "odd.txt").write_bytes(b"abc \xff\nxyz")
    odd = run_command("score", "--model", model, "--hypothesis", tmp_path / "odd.txt", "--format", "jsonl")
    assert json.loads(odd.out)["status"] == ["unknown_tokens", "invalid_utf8"]
    assert "odd.txt: 2 of 8 tokens are <unk>, whatever their characters" in odd.err
    (tmp_path / "empty.txt").write_text("")
    for options, code, message in (
        (["--hypothesis", tmp_path / "empty.txt"], 1, "empty.txt: fewer than two tokens"),
        (["--hypothesis", tmp_path / "odd.txt", "--tokens"], 2, "without --source, --model scores a whole text"),
    ):
        assert message in refusal("score", "--model", model, *options, code=code)


def test_scores_report_cost_and_inspection_of_a_run(model: Path) -> None:
    scored = printed("score", model, "--quiet")
    assert "bits-per-character" in scored
    assert printed("score", model, "--quiet", "--device", "cpu", "--threads", 1) == scored
    for command in (["report", model, "--quiet"], ["cost", model, "--quiet"], ["inspect", model, "--line", 2]):
        outcome = run_command(*command)
        assert (outcome.code, outcome.err) == (0, "")
        assert "Table 2" not in outcome.out
    lines = outcome.out.splitlines()[3:]
    assert [line.split()[0] for line in lines] == ["line", "text", "decoded", "pieces", "ids"]
    assert lines[2].endswith("\\n")
    assert lines[3].endswith(" \\n")
    assert "A model of `en` text" in (model / "card.md").read_text()
    assert "missing; make it" not in (model / "report.html").read_text()


def test_the_cost_before_preparing_is_that_of_the_sequences(model: Path) -> None:
    options = ["--run-dir", model.parent / "unprepared", "--device-type", "cpu", "--rate", 1, "--json", model / "x"]
    assert run_command("cost", model.parent / "mine.toml", *options).code == 0
    cost = read_json(model / "x")
    assert cost["target_tokens"] == 10 * 8 * 12
    assert "data.sequence_length" in cost["lengths"]


def test_an_ablation_of_a_language_model_has_perplexities(model: Path) -> None:
    (model.parent / "rows.toml").write_text(
        'title = "Width"\n[[rows]]\nname = "base"\n[[rows]]\nname = "narrow"\nmodel = { d_ff = 8 }\n'
    )
    options = ["--rows-file", model.parent / "rows.toml", "--sweep-dir", model.parent / "sweep", "--quiet"]
    here = ["ablate", model.parent / "mine.toml", *options, "--device", "cpu", "--threads", 1]
    for name in ("base", "narrow"):
        assert run_command(*here, "--only", f"{name}-seed1").code == 0  # in this process
    outcome = run_command(*here)
    assert (outcome.code, outcome.err) == (0, "")
    assert "narrow" in outcome.out
    rows = read_json(model.parent / "sweep" / "ablations.json")["rows"]
    assert [row["perplexity"] is not None and row["bleu"] is None for row in rows] == [True, True]
    assert [row["encoder_layers"] for row in rows] == [0, 0]
