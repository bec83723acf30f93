"""A folder `data` of the user in the folder of a run."""

from pathlib import Path

import pytest

from tests.conftest import run_command


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_a_folder_of_the_user_named_data_is_not_replaced(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.en").write_text("a\n")
    outcome = run_command("prepare", "quickstart", "--run-dir", tmp_path, *options)
    assert (outcome.code, (tmp_path / "data" / "train.en").read_text()) == (1, "a\n")
    assert "holds files that are not nmtkit's, such as train.en; take another --run-dir" in outcome.err
