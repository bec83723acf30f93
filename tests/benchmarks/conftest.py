"""What the tests of the benchmarks share: their modules, and their scripts in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules in benchmarks/ can be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def execute(*command: object) -> str:
    """The stdout of a Python program with this nmtkit, which has to succeed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])])}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
