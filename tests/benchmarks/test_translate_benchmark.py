"""The decoding benchmark, tried on a made-up corpus: it measures, runs peers in turn and tells ratios."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import write_corpus

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])])}
    command = [sys.executable, ROOT / "benchmarks" / "translate.py", "--threads", "1", *arguments]
    return subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False, timeout=500
    )


def test_it_runs_all_systems_in_turn_and_tells_their_ratios(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{"train.bpe": 30, "val.bpe": 3, "test_2016_flickr.bpe": 6})
    peer = "echo RESULT fast tiny forced15_b3_sent_per_s 0.5; echo RESULT fast tiny forced15_b3_startup_1line_s 7.5"
    done = run(
        "--data", tmp_path, "--batch", "3", "--lines", "6", "--rounds", "1", "--json", tmp_path / "out.json",
        "--peer", f"fast={peer}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["metric"], report["lines"], list(report["systems"])) == ("forced15_b3", 6, ["fast", "nmtkit"])
    assert report["systems"]["fast"] == {"rounds": [0.5], "startup_seconds": 7.5, "ratio": 1.0}
    [rate] = report["systems"]["nmtkit"]["rounds"]
    assert report["systems"]["nmtkit"]["ratio"] == rate / 0.5
    assert report["systems"]["nmtkit"]["startup_seconds"] > 0.1
    assert "| fast | 0.5 | 7.5 | 1.00 |" in done.stdout


def test_a_peer_without_a_result_ends_it_with_what_the_peer_said(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{"train.bpe": 30, "val.bpe": 3, "test_2016_flickr.bpe": 2})
    done = run("--data", tmp_path, "--lines", "2", "--rounds", "1", "--peer", "slow=echo it broke")
    assert done.returncode == 1
    assert "no forced15_b64_sent_per_s" in done.stderr
    assert "it broke" in done.stderr
