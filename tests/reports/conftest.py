"""A finished run whose test and validation texts try to be markup, and a browser."""

import json
import shutil
from pathlib import Path

import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.pipeline import run
from tests.conftest import TinyProject

HOSTILE = [
    "</script><script>document.title = 'taken'</script> ab",
    "<img src=x onerror=\"document.title='taken'\"> cde &amp; fg",
    "ab \u2028 cde \u202e desrever \u2066 hij",
    "<!-- ab --> ]]> 'kl' \"mno\" `pq` {{rst}} ${uv} \\u003c",
    "שלום ab مرحبا cde",
]
"""Source lines of the test set and the validation text."""


@pytest.fixture(scope="session")
def hostile_recipe(tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of a tiny run on such text."""
    folder = tmp_path_factory.mktemp("hostile")
    for side in ("en", "de"):
        train = (tiny_project.recipe.parent / f"train.{side}").read_text(encoding="utf-8").splitlines()
        (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in train[:40] + HOSTILE), encoding="utf-8")
        for name in ("valid", "hostile"):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in HOSTILE), encoding="utf-8")
    settings = (
        '[data]\nvocab_size = 150\ntrain = [{ source = "train.en", target = "train.de" }]\n'
        'valid = [{ source = "valid.en", target = "valid.de" }]\n'
        'test = [{ source = "hostile.en", target = "hostile.de", name = "hostile" }]\n'
        "[training]\nprecision = 'float32'\nmax_steps = 8\nvalidate_bleu = true\nvalidate_every_steps = 4\n"
    )
    recipe = folder / "mine.toml"
    recipe.write_text(f"base = {json.dumps(str(tiny_project.recipe))}\n{settings}", encoding="utf-8")
    return recipe


def finish(recipe: Path, folder: Path, *overrides: str) -> Path:
    """All five steps of a run."""
    run(load_recipe(str(recipe), overrides), folder, mirror=None, device="cpu", threads=1)
    return folder


@pytest.fixture(scope="session")
def finished(hostile_recipe: Path) -> Path:
    """Read only."""
    return finish(hostile_recipe, hostile_recipe.parent / "run")


@pytest.fixture(scope="session")
def finished_otherwise(hostile_recipe: Path) -> Path:
    """Another run, with another seed and size; read only."""
    return finish(hostile_recipe, hostile_recipe.parent / "<b>other", "training.seed=2", "model.d_ff=48")


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
