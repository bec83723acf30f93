"""The scripts that tell what came of a run, on a small run: every number they print is one of the run's."""

import re
from pathlib import Path

import pytest

from nmtkit.json_toml import read_json
from nmtkit.lines import read_lines
from tests.benchmarks.conftest import ROOT, execute
from tests.conftest import TINY_MODEL, write_project

pytestmark = pytest.mark.slow

SETTINGS = (
    f"{TINY_MODEL}[training]\ntokens_per_update = 200\nwarmup_steps = 5\nmax_steps = 9\nvalidate_every_steps = 3\n"
    "checkpoint_every_steps = 3\nkeep_last = 2\n[decoding]\nmax_length_offset = 3\naverage_last = 2\n"
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    recipe = write_project(folder, SETTINGS, train=60, valid=8, test=9)
    execute("-m", "nmtkit", "run", recipe, "--run-dir", folder / "run", "--threads", "1", "--quiet")
    return folder / "run"


def test_the_page_of_a_run_holds_its_scores_costs_and_translations(run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    execute(
        ROOT / "docs" / "make_results.py", run_dir, folder, "--title", "A small run",
        "--command", "nmtkit run small", "--note", "machine: a small one",
    )  # fmt: skip
    page = (folder / "README.md").read_text()
    assert page.startswith("# A small run\n\n```\nnmtkit run small\n```\n")
    assert "| machine | a small one |" in page
    scores = read_json(run_dir / "scores.json")
    assert (folder / "scores.json").read_bytes() == (run_dir / "scores.json").read_bytes()
    assert (folder / "cost.json").read_bytes() == (run_dir / "cost.json").read_bytes()
    for entry in scores["test"].values():
        assert f"| {entry['score']:.2f} |" in page
        assert entry["signature"].replace("|", "\\|") in page
    assert "9 updates" in page
    shown = [int(line) for line in re.findall(r"^(\d+), chrF2", page, flags=re.MULTILINE)]
    assert [(line - 1) // 3 for line in shown] == [0, 1, 2, 0, 1, 2]
    sources = read_lines(run_dir / "data" / "test" / "test.source.txt")
    assert all(f"source:      {sources[line - 1]}" in page for line in shown)
    assert (folder / "curve.svg").read_text().count("<polyline") == 2


def test_the_claims_are_told_for_each_text_and_change_one_thing_at_a_time(run_dir: Path) -> None:
    printed = execute(ROOT / "benchmarks" / "claims.py", run_dir, "--set", "valid", "--set", "test", "--threads", "1")
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in printed.splitlines()]
    assert rows[0] == ["what", "valid, sacrebleu", "length ratio", "test, sacrebleu", "length ratio"]
    names = [row[0] for row in rows[2:]]
    assert names[:4] == [
        "the recipe: average, beam 4, wu 0.6", "last checkpoint", "best checkpoint by validation nll", "greedy",
    ]  # fmt: skip
    assert {"beam 10", "penalty length 1.0", "penalty none"} <= set(names)
    scores = read_json(run_dir / "scores.json")
    assert float(rows[2][3]) == pytest.approx(scores["test"]["sacrebleu"]["score"], abs=0.005)
