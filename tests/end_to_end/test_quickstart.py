"""The quickstart as people run it, whole; test_pipeline.py is its short form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmtkit.files import read_json
from nmtkit.text.synthetic import PHENOMENA


@pytest.mark.slow
def test_the_quickstart_reaches_90_bleu_and_shows_what_to_do_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nmtkit", "run", "quickstart"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), check=False)
    assert ended.returncode == 0, ended.stderr
    scores = read_json(tmp_path / "runs" / "quickstart" / "scores.json")
    assert list(scores) == ["synthetic"]
    assert scores["synthetic"]["sacrebleu"]["score"] >= 90
    for phenomenon in PHENOMENA.values():
        assert phenomenon in ended.stdout
    for part in ("Some translations of synthetic", "Training cost", "Next:", "nmtkit translate runs/quickstart"):
        assert part in ended.stdout
    assert " left, update " in ended.stderr, "progress is shown with the time left"
