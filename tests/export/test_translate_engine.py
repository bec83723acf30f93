"""`nmtkit translate --engine`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import VALID, make_run

from nmtkit.export.export import export
from tests.conftest import run_with_streams


@pytest.fixture(scope="module")
def exported_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run") / "mine")
    export(run, "ctranslate2")
    return run


def translate(*arguments: object, then: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `translate`; with a program ``then``, in a new process, which runs it afterwards."""
    command = ["translate", *map(str, arguments), "--threads", "1"]
    text = "".join(f"{line}\n" for line in VALID)
    if not then:
        done = run_with_streams(*command, stdin=text.encode())
        return subprocess.CompletedProcess(command, done.code, done.out.decode(), done.err)
    program = f"import sys\nfrom nmtkit.cli.main import main\nmain()\n{then}"
    return subprocess.run([sys.executable, "-c", program, *command], input=text, capture_output=True, text=True)


def test_greedy_translations_of_both_engines_are_the_same_and_ctranslate2_needs_no_torch(
    exported_run: Path, tmp_path: Path
) -> None:
    without = "assert not {'torch', 'transformers', 'sacrebleu'} & set(sys.modules)"
    moved = shutil.copytree(exported_run / "export" / "ctranslate2", tmp_path / "moved")
    fast = translate(exported_run, "--beam", 1, then=without)
    asked = translate(exported_run, "--beam", 1, "--engine", "ctranslate2", then=without)
    alone = translate(moved, "--beam", 1, then=without)
    slow = translate(exported_run, "--beam", 1, "--engine", "torch")
    assert [each.returncode for each in (fast, asked, alone, slow)] == [0] * 4, fast.stderr + asked.stderr
    assert "engine: ctranslate2" in fast.stderr
    assert "engine:" not in slow.stderr
    assert slow.stdout.strip()
    assert fast.stdout == slow.stdout == asked.stdout == alone.stdout


def test_beam_search_stays_with_torch_unless_asked_for(exported_run: Path) -> None:
    left, torch_alone = translate(exported_run), translate(exported_run, "--engine", "torch")
    assert left.stdout == torch_alone.stdout
    assert "engine" not in left.stderr
    asked = translate(exported_run, "--engine", "ctranslate2", then="assert 'torch' not in sys.modules")
    assert asked.returncode == 0, asked.stderr
    assert len(asked.stdout.split("\n")) == len(VALID) + 1


def test_an_unknown_engine_is_wrong_usage(exported_run: Path) -> None:
    result = translate(exported_run, "--engine", "onnx")
    assert result.returncode == 2
    assert "'onnx' is not one of 'auto', 'torch', 'ctranslate2'" in result.stderr


def test_from_file_to_file_it_is_the_same_too(exported_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in VALID), encoding="utf-8")
    outputs = []
    for engine in ("torch", "ctranslate2"):
        files = ["--input", tmp_path / "in", "--output", tmp_path / engine]
        result = translate(exported_run, "--beam", 1, "--engine", engine, *files)
        assert result.returncode == 0, result.stderr
        outputs.append((tmp_path / engine).read_text(encoding="utf-8"))
    assert outputs[0] == outputs[1]
    assert len(outputs[0].split("\n")) == len(VALID) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ctranslate2", "in", "torch"]


def test_auto_does_without_an_export_that_cannot_be_used(exported_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(exported_run, tmp_path / "run")
    (run / "export" / "ctranslate2" / "model.bin").write_bytes(b"damaged")
    result = translate(run, "--beam", 1)
    assert result.returncode == 0, result.stderr
    assert "using the torch engine" in result.stderr
    assert "model.bin: damaged" in result.stderr
    assert len(result.stdout.split("\n")) == len(VALID) + 1
    assert translate(run, "--beam", 1, "--engine", "ctranslate2").returncode == 1


def test_what_only_torch_has_is_refused_in_one_line(exported_run: Path) -> None:
    result = translate(exported_run, "--json", "--engine", "ctranslate2")
    assert (result.returncode, result.stdout) == (1, "")
    message = "error: CTranslate2 has no --json; choose --engine torch and name the model itself\n"
    assert result.stderr == message
