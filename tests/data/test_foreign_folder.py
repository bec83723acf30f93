"""Files of the user in the folder of a run."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import TinyProject, contents, run_command


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_a_folder_of_the_user_named_data_is_not_replaced(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.en").write_text("a\n")
    outcome = run_command("prepare", "quickstart", "--run-dir", tmp_path, *options)
    assert (outcome.code, (tmp_path / "data" / "train.en").read_text()) == (1, "a\n")
    assert "holds files that are not nmtkit's, such as train.en; move them, or take another" in outcome.err


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_a_file_of_the_user_named_data_is_not_replaced(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "data").write_text("a\n")
    outcome = run_command("prepare", "quickstart", "--run-dir", tmp_path, *options)
    assert (outcome.code, (tmp_path / "data").read_text()) == (1, "a\n")
    assert "data is no folder; move it, or take another --run-dir" in outcome.err


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_corpora_of_the_user_beside_a_tokenizer_are_not_replaced(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "data" / "tokenizer").mkdir(parents=True)
    for name in ("train.en", ".DS_Store"):
        (tmp_path / "data" / name).write_text("a\n")
    before = contents(tmp_path / "data")
    outcome = run_command("prepare", "quickstart", "--run-dir", tmp_path, *options)
    assert (outcome.code, contents(tmp_path / "data")) == (1, before)
    assert "holds files that are not nmtkit's, such as train.en; move them, or take another" in outcome.err


def test_a_check_of_prepared_data_replaces_nothing_and_so_refuses_nothing(tiny: TinyProject, run: Path) -> None:
    (run / "data" / "notes.txt").write_text("mine\n")
    assert run_command("prepare", tiny.recipe, "--run-dir", run, "--check").code == 0
    assert (run / "data" / "notes.txt").read_text() == "mine\n"
    changed = run_command("prepare", tiny.recipe, "--run-dir", run, "--set", "data.vocab_size=89")
    assert (changed.code, (run / "data" / "notes.txt").exists()) == (1, True)


def test_data_may_be_a_link_to_a_folder_that_does_not_exist_yet(tiny: TinyProject, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data").symlink_to(tmp_path / "elsewhere")
    assert run_command("prepare", tiny.recipe, "--run-dir", tmp_path / "run").code == 0
    assert (tmp_path / "elsewhere" / "manifest.json").is_file()


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db"])
def test_prepared_data_with_a_file_of_a_file_manager_are_replaced(tiny: TinyProject, run: Path, name: str) -> None:
    (run / "data" / name).write_bytes(b"of a file manager")
    assert run_command("prepare", tiny.recipe, "--run-dir", run, "--set", "data.vocab_size=89").code == 0


def test_a_recipe_of_the_user_named_recipe_toml_is_not_replaced(tiny: TinyProject, tmp_path: Path) -> None:
    mine = f'# mine\nbase = "{tiny.recipe}"\n'
    (tmp_path / "recipe.toml").write_text(mine)
    outcome = run_command("prepare", tmp_path / "recipe.toml", "--run-dir", tmp_path)
    assert (outcome.code, (tmp_path / "recipe.toml").read_text()) == (1, mine)
    assert "would replace this file; rename it, or take another --run-dir" in outcome.err
    assert run_command("prepare", tmp_path / "recipe.toml", "--run-dir", tmp_path / "run").code == 0
    # Of a run whose data were deleted, the recipe is nmtkit's.
    stored = tmp_path / "run" / "recipe.toml"
    shutil.rmtree(tmp_path / "run" / "data")
    assert run_command("prepare", stored, "--run-dir", tmp_path / "run", "--set", "training.seed=5").code == 0
    assert "seed = 5" in stored.read_text()
