"""The benchmark of the server, tried with a tiny model: it measures, and finds the translations of `translate`."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.conftest import ROOT, execute
from tests.export.tiny_models import make_run, sentences
from tests.serving.conftest import LENGTHS

pytestmark = pytest.mark.slow


def test_it_measures_the_server_beside_translate_and_compares_each_line(tmp_path: Path) -> None:
    model = make_run(tmp_path / "run", lengths=LENGTHS)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in sentences(30, seed=7)), encoding="utf-8")
    command = [ROOT / "benchmarks" / "serving.py", "--model", model, "--text", tmp_path / "text"]
    out = execute(*command, "--clients", 1, 4, "--rounds", 1, "--threads", 1, "--json", tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["lines"], list(report["clients"])) == (30, ["1", "4"])
    for clients, of in report["clients"].items():
        assert of["different"] == 0
        assert of["ratio"] == pytest.approx(of["rate"] / report["translate"])
        assert 0 < of["p50"] <= of["p95"]
        assert f"| {clients} | {of['rate']:.1f} | {of['ratio']:.2f} |" in out
