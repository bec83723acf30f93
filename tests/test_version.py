"""The version, which in a checkout names the commit."""

import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest

from nmtkit.json_toml import read_json
from nmtkit.versions import nmtkit_version, release, versions
from tests.conftest import TinyProject

NUMBER = importlib.metadata.version("nmtkit")
version_of = nmtkit_version.__wrapped__  # without the cache


def git(folder: Path, *arguments: str) -> str:
    """Runs git as it would run for a user without settings."""
    named = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(folder), *named, *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that looks like nmtkit's own, with one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "pyproject.toml").write_text('[project]\nname = "nmtkit"\n')
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "One")
    return folder


def test_a_checkout_names_its_commit_and_that_files_were_changed(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "--short=7", "HEAD")
    assert version_of(checkout) == f"{NUMBER}+g{commit}"
    (checkout / "new").write_text("not in the repository")
    assert version_of(checkout) == f"{NUMBER}+g{commit}"
    (checkout / "pyproject.toml").write_text('[project]\nname = "nmtkit"\nversion = "2"\n')
    assert version_of(checkout) == f"{NUMBER}+g{commit}.dirty"


def test_a_tag_is_not_in_the_place_of_the_commit(checkout: Path) -> None:
    git(checkout, "tag", "v9")
    assert version_of(checkout) == f"{NUMBER}+g{git(checkout, 'rev-parse', '--short=7', 'HEAD')}"


def test_a_worktree_is_a_checkout(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "other"))
    assert version_of(tmp_path / "other") == version_of(checkout) != NUMBER


def test_a_package_inside_another_repository_has_no_commit(checkout: Path) -> None:
    packages = checkout / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    assert version_of(packages) == NUMBER
    (checkout / "pyproject.toml").write_text('[project]\nname = "another"\ndependencies = ["nmtkit"]\n')
    assert version_of(checkout) == NUMBER


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert version_of(checkout) == NUMBER
    (checkout / ".git" / "HEAD").write_text("damaged")
    assert version_of(checkout) == NUMBER


def test_a_package_that_is_not_installed_has_no_number(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert release() == "unknown"
    assert version_of(checkout).startswith("unknown+g")


def test_the_repository_of_a_hook_is_not_taken_for_it(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = version_of(checkout)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert version_of(checkout) == expected != NUMBER


def test_what_is_written_names_the_commit(tiny: TinyProject, run: Path) -> None:
    tiny.train(run, "training.max_steps=4")
    written = [read_json(path)["versions"]["nmtkit"] for path in run.glob("*/step-*/[ps]*.json")]
    assert written == [nmtkit_version(), nmtkit_version()]
    assert versions()["nmtkit"] == nmtkit_version()


def test_another_commit_can_verify_and_resume(tiny: TinyProject, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**versions(), "nmtkit": f"{NUMBER}+g0000000.dirty"}
    with monkeypatch.context() as patch:
        patch.setattr("nmtkit.training.state.versions", lambda: other)
        tiny.train(run, "training.max_steps=8")
    assert {read_json(path)["versions"]["nmtkit"] for path in run.glob("resume/*/state.json")} == {other["nmtkit"]}
    tiny.verify(run, "training.max_steps=8")
    assert tiny.train(run, "training.max_steps=12").signal is None


def test_the_citation_names_the_version_of_the_package() -> None:
    citation = Path(__file__).parents[1] / "CITATION.cff"
    assert f"\nversion: {NUMBER}\n" in citation.read_text(encoding="utf-8")
