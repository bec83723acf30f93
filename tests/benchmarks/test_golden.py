"""The comparison of golden sums: what differs is shown with its place, and only what must be equal fails."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "golden.py"
BEFORE: dict[str, Any] = {
    "about": {"machine": "x86_64, avx2"},
    "must be equal": {"score": {"bleu": 12.5, "lines": [1, 2]}, "translate: exit": {"code": 0}, "weights": "sha256 ab"},
    "wording may change": {"translate: stderr": "done in N s\n", "score: stdout": "BLEU"},
}


def compare(folder: Path, after: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    for name, content in (("before", BEFORE), ("after", after)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    command = [sys.executable, str(SCRIPT), "compare", str(folder / "before.json"), str(folder / "after.json")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_two_files_with_the_same_values_do_not_differ(tmp_path: Path) -> None:
    compared = compare(tmp_path, BEFORE)
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout == ("must be equal: 0 differences in 3 values\nwording may change: 0 of 2 texts differ\n")


def test_every_difference_has_a_line_with_its_place(tmp_path: Path) -> None:
    equal = {"score": {"bleu": 12.25, "lines": [1, 3]}, "translate: exit": {"code": 1}, "new": 1}
    compared = compare(tmp_path, {**BEFORE, "must be equal": equal})
    assert compared.returncode == 1
    assert compared.stdout.split("\n")[:6] == [
        "new: only after",
        "score > bleu: 12.5 -> 12.25",
        "score > lines > 1: 2 -> 3",
        "translate: exit > code: 0 -> 1",
        "weights: only before",
        "must be equal: 5 differences in 3 values",
    ]


def test_a_number_of_another_type_differs(tmp_path: Path) -> None:
    equal = {**BEFORE["must be equal"], "score": {"bleu": 12.5, "lines": [True, 2]}}
    compared = compare(tmp_path, {**BEFORE, "must be equal": equal})
    assert compared.returncode == 1
    assert compared.stdout.startswith("score > lines > 0: 1 -> true\n")


def test_other_wording_is_listed_and_does_not_fail(tmp_path: Path) -> None:
    wording = {"translate: stderr": "finished in N s\n", "score: stdout": "BLEU"}
    compared = compare(tmp_path, {**BEFORE, "wording may change": wording})
    assert compared.returncode == 0
    assert compared.stdout.endswith("wording may change: 1 of 2 texts differ\n  translate: stderr\n")


def test_another_machine_is_named(tmp_path: Path) -> None:
    compared = compare(tmp_path, {**BEFORE, "about": {"machine": "aarch64"}})
    assert compared.returncode == 0
    assert compared.stdout.startswith('note: about > machine: "x86_64, avx2" -> "aarch64"')


@pytest.mark.slow
def test_recording_twice_gives_the_same(tmp_path: Path) -> None:
    for name in ("before", "after"):
        command = [sys.executable, str(SCRIPT), "write", str(tmp_path / f"{name}.json")]
        recorded = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "warning" not in recorded.stderr, "only wrong uses fail"
    before, after = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("before", "after"))
    assert before == after
    equal = before["must be equal"]
    assert not any(value["traceback"] for key, value in equal.items() if key.endswith(": exit"))
    assert equal["resumed has the weights of one"] is True
    assert equal["own-resumed has the weights of own"] is True
    assert "missing" not in equal.values()
