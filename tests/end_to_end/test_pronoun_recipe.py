"""The recipe context-pronouns: "it" is translated right with the sentence before it, and at chance without."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import documents

    return documents


@pytest.mark.slow
def test_a_pronoun_needs_the_sentence_before(documents: ModuleType, tmp_path: Path) -> None:
    shares = {}
    for context in (0, 1):
        run = tmp_path / str(context)
        command = [sys.executable, "-m", "nmtkit", "run", "context-pronouns", "--run-dir", str(run)]
        settings = [f"data.context={context}", "training.validate_bleu=false"]
        for setting in settings:
            command += ["--set", setting]
        subprocess.run([*command, "--quiet"], check=True)
        shares[context] = {kind: correct / total for kind, (correct, total) in documents.counts(run).items()}
    assert shares[1]["it"] >= 0.95
    assert 0.25 <= shares[0]["it"] <= 0.42  # four standard deviations of a guess around 1/3
    assert min(share["without it"] for share in shares.values()) >= 0.95
