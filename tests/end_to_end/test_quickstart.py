"""The quickstart as people run it, whole; test_pipeline.py is its short form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmtkit.corpora.synthetic import PHENOMENA
from nmtkit.json_toml import read_json


@pytest.mark.slow
def test_the_quickstart_reaches_90_bleu_and_shows_what_to_do_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nmtkit", "run", "quickstart"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), check=False)
    assert ended.returncode == 0, ended.stderr
    scores = read_json(tmp_path / "runs" / "quickstart" / "scores.json")
    assert list(scores) == ["synthetic"]
    assert scores["synthetic"]["sacrebleu"]["score"] >= 90
    for part in (
        "4 of the 1,000 sentences of the test set synthetic",
        "Test scores",
        "nmtkit translate runs/quickstart",
    ):
        assert part in ended.stdout
    scored = subprocess.run(
        [*command[:3], "score", "runs/quickstart"], capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "COLUMNS": "200"},  # names of phenomena are longer than 80 columns have room for
    )  # fmt: skip
    for phenomenon in PHENOMENA.values():
        assert phenomenon in scored.stdout
    assert " left, update " in ended.stderr, "progress is shown with the time left"
