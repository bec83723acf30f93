"""The package as people install it: a wheel, used outside the repository."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from nmtkit.config.recipe import builtin_recipes

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def printed(site: Path, code: str, *arguments: str) -> str:
    """What a program prints with the unpacked wheel, in another folder and without the repository on the path."""
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=site.parent, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_built_in_recipes_are_found_from_an_installed_wheel(installed: Path) -> None:
    place = printed(installed, "import nmtkit; print(nmtkit.__file__)")
    assert place.startswith(str(installed)), "the test must not see the repository"
    command = "import nmtkit.cli.main as m; m.main()"
    listed = printed(installed, command, "recipes")
    for name in builtin_recipes():
        assert f"{name}\n" in listed
    recipe = printed(installed, command, "recipes", "quickstart")
    assert tomllib.loads(recipe)["data"]["train"] == ["builtin/train"]


def test_the_wheel_holds_the_catalogue_and_the_licence(installed: Path) -> None:
    assert (installed / "nmtkit" / "corpora" / "corpora.toml").is_file()
    assert (installed / "nmtkit" / "py.typed").is_file()  # so that a user's type checker sees the types
    assert list(installed.glob("nmtkit-*.dist-info/licenses/LICENSE"))


def test_the_wheel_holds_the_page_of_the_server(installed: Path) -> None:
    code = "from nmtkit.serving.pages import translation_page as page; print(page({}).body.decode())"
    shown = printed(installed, code)
    for name in ("page.html", "page.css", "page.js"):
        assert (REPOSITORY / "nmtkit" / "serving" / name).read_text(encoding="utf-8") in shown


def test_the_tested_versions_are_within_the_stated_ranges() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    stated = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    lines = (REPOSITORY / "constraints.txt").read_text().split("\n")
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    assert pins["torch"] == "2.13.0"
    for requirement in map(Requirement, stated):
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement.name
