"""The decoding benchmark, tried on a made-up corpus: it runs peers in turn and prints ratios."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.benchmarks.conftest import ROOT, execute
from tests.conftest import write_corpus

pytestmark = pytest.mark.slow


def test_it_runs_all_systems_in_turn_and_prints_their_ratios(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    text = tmp_path / "text"
    text.mkdir()
    write_corpus(text, **{"train.bpe": 30, "val.bpe": 3, "test_2016_flickr.bpe": 6})
    environment = tmp_path / "environments" / "ctranslate2"
    (environment / "bin").mkdir(parents=True)
    (environment / "installed.txt").touch()
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    out = execute(
        ROOT / "benchmarks" / "translate.py", "--threads", "1", "--work", tmp_path, "--batch", "3", "--lines", "6",
        "--rounds", "1", "--json", tmp_path / "out.json", "--peers", "ctranslate2",
    )  # fmt: skip
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["metric"], report["lines"], list(report["systems"])) == ("forced15_b3", 6, ["ctranslate2", "nmtkit"])
    peer, ours = report["systems"]["ctranslate2"], report["systems"]["nmtkit"]
    assert peer["ratio"] == 1.0
    assert ours["ratio"] == ours["rounds"][0] / peer["rounds"][0]
    assert min(peer["startup_seconds"], ours["startup_seconds"]) > 0.1
    assert f"| ctranslate2 | {peer['rounds'][0]:.1f} | {peer['startup_seconds']:.1f} | 1.00 |" in out
