"""`nmtkit export` on the command line."""

from pathlib import Path

import pytest
import tiny_models
from tiny_models import make_run

from nmtkit.config.decoding_schema import TrainingLengths
from nmtkit.export import huggingface
from nmtkit.export.export import export
from nmtkit.json_toml import read_json
from nmtkit.model_folder import load_model
from tests.conftest import run_command
from tests.forked import run_forked

pytestmark = pytest.mark.usefixtures("restored_process")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run") / "mine", norm="pre", positions="learned", max_positions=40)


def test_it_prints_the_new_folder_and_tells_the_rest_on_stderr(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    result = run_forked(
        "export", run, "--format", "ctranslate2", "--quantization", "int8", "--output", folder, "--threads", 1
    )
    assert (result.returncode, result.stdout) == (0, f"{folder}\n"), result.stderr
    assert "greedy translations of 20 lines" in result.stderr
    assert "beam_int8" in result.stderr
    steps = ["translating 20 lines of", "converting to float32", "converting to int8", f"nmtkit translate {folder}"]
    assert [step for step in steps if step not in result.stderr] == []
    assert (folder / "model.bin").is_file()


def test_the_readme_says_what_summaries_and_segmented_text_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_models, "PAIRS", [(f"{line} \ufdd4 {line}", line) for line, _ in tiny_models.PAIRS])
    lengths = TrainingLengths(longest_source=9, target_ratio=1, multi_sentence_share=0, max_source_tokens=6)
    summaries = make_run(tmp_path / "one", lengths=lengths, task="summary", source_language="en", target_language="en")
    folder, _ = export(summaries, "huggingface")
    told = (folder / "README.md").read_text(encoding="utf-8")
    assert "before: each tab becomes a word of its own, U+FDD4; then blanks" in told
    assert "after: U+FDD4 becomes a tab, without the blanks around it\n" in told
    assert "- Only the first 6 tokens of a source are read\n" in told
    theirs, lines = huggingface.load(folder)[1], list[str]()
    huggingface.check_tokenizer(
        lambda line: lines.append(line) or theirs(line), load_model(summaries / "averaged"), ["a\tb"]
    )
    assert lines[0] == "a \ufdd4 b"
    folder, _ = export(make_run(tmp_path / "two", subwords="none"), "ctranslate2")
    assert "after: a piece that ends in @@ is joined with the next one" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("format_", "changes", "told"),
    [
        (
            "ctranslate2",
            {"attention_window": 4},
            "nmtkit's conversion for CTranslate2 does not support attention_window = 4",
        ),
        ("huggingface", {"attention_window": 4}, "no transformers model class supports attention_window = 4"),
        (
            "ctranslate2",
            {"num_heads": 1, "d_k": 17},
            "nmtkit's conversion for CTranslate2 does not support d_k or d_v above d_model with num_heads = 1",
        ),
    ],
)
def test_a_model_that_a_format_does_not_have_is_refused_in_one_line(
    tmp_path: Path, format_: str, changes: dict[str, object], told: str
) -> None:
    run = make_run(tmp_path / "mine", **changes)
    told = f"error: {told}; use `nmtkit translate`\n"
    assert run_command("export", run, "--format", format_, "--quiet") == (1, "", told)
    assert not (run / "export").exists()


def test_a_quantization_may_be_called_as_translate_calls_it(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    outcome = run_command(
        "export", run, "--format", "ctranslate2", "--quantization", "bf16", "--output", folder, "--threads", 1
    )
    assert outcome.code == 0, outcome.err
    assert read_json(folder / "manifest.json")["quantization"] == "bfloat16"


def test_the_current_folder_is_not_replaced_by_an_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run_command("export", run, "--format", "ctranslate2", "--output", ".", "--quiet")
    told = "the current folder would be replaced; leave it first, or name another folder"
    assert outcome == (1, "", f"error: {tmp_path}: {told}\n")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "onnx"],
        ["--format", "ctranslate2", "--quantization", "int4"],
        ["--format", "huggingface", "--quantization", "int8"],
        [],
    ],
)
def test_wrong_usage_is_exit_code_2(run: Path, arguments: list[str]) -> None:
    outcome = run_command("export", run, *arguments)
    assert outcome.code == 2
    assert "Usage" in outcome.err
    assert not (run / "export").exists()
