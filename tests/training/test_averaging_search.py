"""`average --search`: every average that is tried is the one that `average` makes, and its score that of validation."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from nmtkit.config.recipe import load_recipe, stored_recipe
from nmtkit.data.prepare import prepare
from nmtkit.errors import DataError, ModelError
from nmtkit.json_toml import read_json
from nmtkit.model_folder import load_model, step_of
from nmtkit.run import Run
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training import averaging
from nmtkit.training.averaging import COUNTS, Search, Tried, average, candidates, choose_checkpoints, search
from nmtkit.training.session import train
from nmtkit.training.validation import Validator
from tests.conftest import TinyProject, run_command
from tests.tasks.test_trajectories import RECIPE as DECISIONS


@pytest.fixture(scope="module")
def trained(tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at the updates 2, 4, 6, 8 and 10; tests only read it, or copy it."""
    run = tiny_project.copy(tmp_path_factory.mktemp("search") / "run")
    steps = ["checkpoint_every_steps=2", "max_steps=10", "keep_last=9", "validate_every_steps=100"]
    tiny_project.train(run, *(f"training.{step}" for step in steps))
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def all_of(run: Path, project: TinyProject, criterion: Any = "nll") -> list[Search]:
    return list(search(run, criterion, project.workers()))


@pytest.mark.parametrize("metric", ["nll", "sacrebleu"])
def test_a_score_that_is_no_number_is_never_the_best(metric: str) -> None:
    tried = [Tried(n, metric, score, score, 1, 2) for n, score in ((1, math.nan), (2, 1.0), (3, math.inf))]
    assert Search(tried[:2], 3).best.n == 2
    assert Search(tried[:1], 3).best.n == 1
    if metric == "nll":
        assert Search(tried, 3).best.n == 2


def test_candidates_are_what_the_checkpoints_allow() -> None:
    assert candidates(1) == [1]
    assert candidates(3) == [1, 2, 3]
    assert candidates(7) == [1, 2, 3, 4, 5, 6, 7]  # all of them, which is none of COUNTS
    assert candidates(20) == list(COUNTS)
    assert candidates(30) == [*COUNTS, 30]


def test_each_score_is_that_of_validating_the_average_that_average_makes(
    run: Path, tiny: TinyProject, tmp_path: Path
) -> None:
    *_, found = all_of(run, tiny)
    assert [one.n for one in found.tried] == candidates(5)
    recipe = stored_recipe(run / "recipe.toml", "tiny")
    validator = Validator(recipe, Run(run), Run(run).tokenizer(), tiny.workers(), None)
    for one in found.tried:
        chosen = choose_checkpoints(run, last=one.n)
        assert (step_of(chosen[0]), step_of(chosen[-1])) == (one.first_step, one.last_step)
        average(chosen, tmp_path / "averaged")
        validation = validator(load_model(tmp_path / "averaged").model)
        assert validation is not None
        assert (one.metric, one.score, one.nll) == ("nll", validation.nll, validation.nll)
    assert len({one.score for one in found.tried}) == len(found.tried)
    assert found.best.score == min(one.score for one in found.tried)


def test_by_bleu_the_validation_set_is_translated(run: Path, tiny: TinyProject, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averaging, "candidates", lambda number: [1, 2])
        *_, found = all_of(run, tiny, "bleu")
    assert [one.metric for one in found.tried] == ["sacrebleu"] * 2
    recipe = stored_recipe(run / "recipe.toml", "tiny")
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"validate_bleu": True})})
    average(choose_checkpoints(run, last=2), tmp_path / "averaged")
    loaded = load_model(tmp_path / "averaged")
    validation = Validator(recipe, Run(run), loaded.tokenizer, tiny.workers(), loaded.lengths)(loaded.model)
    assert validation is not None
    assert (found.tried[1].score, found.tried[1].nll) == (validation.bleu, validation.nll)


def test_the_file_has_a_row_for_each_average_and_what_it_was_made_from(run: Path, tiny: TinyProject) -> None:
    *_, found = all_of(run, tiny)
    content = read_json(run / "averaging.json")
    assert list(content) == ["best", "tried", "made_from"]
    keys = ["n", "metric", "score", "nll", "first_step", "last_step"]
    assert [list(row) for row in content["tried"]] == [keys] * len(found.tried)
    assert [Tried(**row) for row in content["tried"]] == found.tried
    assert Tried(**content["best"]) == found.best
    assert list(content["made_from"]["checkpoints"]) == [f"step-{step:08d}" for step in (2, 4, 6, 8, 10)]


@pytest.mark.parametrize("side", ["source", "reference"])
def test_a_validation_text_of_which_one_side_is_cut_is_an_error(run: Path, tiny: TinyProject, side: str) -> None:
    path = getattr(Run(run).valid_text, side)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=r"remove .* and run `nmtkit prepare` again") as error:
        all_of(run, tiny, "bleu")
    for text in (Run(run).valid_text.source, Run(run).valid_text.reference):
        assert str(text) in str(error.value)


def test_a_stopped_search_goes_on_and_one_of_other_checkpoints_begins_anew(
    run: Path, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = search(run, "nll", tiny.workers())
    for _ in range(3):  # the beginning and two averages
        next(going)
    going.close()
    assert len(read_json(run / "averaging.json")["tried"]) == 2
    averaged = []
    mean = averaging.mean_weights
    monkeypatch.setattr(averaging, "mean_weights", lambda folders: averaged.append(folders) or mean(folders))
    first, *_, last = all_of(run, tiny)
    assert (len(first.tried), len(last.tried)) == (2, len(candidates(5)))
    assert len(averaged) == len(candidates(5)) - 2
    whole = read_json(run / "averaging.json")
    (run / "averaging.json").unlink()
    all_of(run, tiny)
    assert read_json(run / "averaging.json") == whole
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    first, *_, last = all_of(run, tiny)
    assert (len(first.tried), len(last.tried)) == (0, len(candidates(4)))


def test_averages_are_not_validated_on_other_subwords(
    trained: Path, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "fingerprint", lambda self: "another version's")
    with pytest.raises(DataError, match=r"data has other subwords than .*step-00000010; put the old"):
        all_of(trained, tiny)


def test_of_equal_scores_the_smaller_average_is_the_best() -> None:
    rows = [Tried(n, "sacrebleu", 20.0, 2.0, 1, 9) for n in (5, 3, 2)]
    assert Search(rows, 3).best == rows[2]
    higher = Tried(20, "sacrebleu", 20.5, 3.0, 1, 9)
    assert Search([*rows, higher], 4).best == higher
    lower = Tried(20, "nll", 1.5, 1.5, 1, 9)
    assert Search([Tried(1, "nll", 2.0, 2.0, 9, 9), lower], 2).best == lower


def test_one_checkpoint_leaves_nothing_to_search(run: Path, tiny: TinyProject) -> None:
    for step in (2, 4, 6, 8):
        shutil.rmtree(run / "checkpoints" / f"step-{step:08d}")
    with pytest.raises(ModelError, match=r"1 whole checkpoint, so there is nothing to choose from; .*keep_last"):
        all_of(run, tiny)
    assert not (run / "averaging.json").exists()


def test_spaced_checkpoints_are_counted_back_from_the_last(trained: Path) -> None:
    def steps(last: int, spacing: int) -> list[int]:
        return [step_of(folder) for folder in choose_checkpoints(trained, last=last, spacing=spacing)]

    assert steps(2, 1) == [8, 10]
    assert steps(3, 2) == [2, 6, 10]
    assert steps(2, 4) == [2, 10]
    with pytest.raises(ModelError, match="the last 3 checkpoints are requested, 3 apart, but only 2 exist"):
        steps(3, 3)


def test_the_command_prints_the_table_and_the_command_that_makes_the_best(run: Path, tiny: TinyProject) -> None:
    arguments = ["--metric", "nll", "--device", "cpu", "--threads", 1, "--quiet"]
    outcome = run_command("average", run, "--search", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    best = read_json(run / "averaging.json")["best"]
    (row,) = (line.split() for line in outcome.out.split("\n") if line.endswith("best"))
    assert row[0] == str(best["n"])
    assert f"{best['score']:.4f}" in row
    assert not (run / "averaged").exists()
    made = next(line for line in outcome.out.split("\n") if "nmtkit average" in line).split("nmtkit average ")[1]
    assert run_command("average", *made.split(), "--quiet").out == f"{run / 'averaged'}\n"
    sources = read_json(run / "averaged" / "provenance.json")["average_of"]
    assert len(sources) == best["n"]
    assert sources[0]["checkpoint"] == f"step-{best['first_step']:08d}"


def test_a_signal_names_the_command_that_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(averaging, "search", stop)
    outcome = run_command("average", run, "--search", "--device", "cpu")
    assert outcome.code == 130
    assert f"stopped; to resume, run: nmtkit average {run} --search" in outcome.err


def test_an_average_takes_the_decoding_settings_of_the_runs_recipe(run: Path) -> None:
    recipe = Run(run).recipe()
    decoding = recipe.decoding.model_copy(update={"beam": 7, "average_last": 3})
    Run(run).store_recipe(recipe.model_copy(update={"decoding": decoding}))
    assert run_command("average", run, "--quiet").code == 0
    assert len(read_json(run / "averaged" / "provenance.json")["average_of"]) == 3
    assert load_model(run / "averaged").decoding == decoding
    assert run_command("average", run, "--last", "2", "--quiet").code == 0
    assert len(read_json(run / "averaged" / "provenance.json")["average_of"]) == 2


def test_the_runs_own_average_is_validated_however_its_path_is_given(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    outcome = run_command("average", "run", "--last", 2, "--output", run / "averaged", "--device", "cpu")
    assert outcome.code == 0
    assert "of the average: " in outcome.err


def test_averages_of_decisions_are_compared_by_nll_where_there_is_a_validation_set(
    tiny: TinyProject, tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(DECISIONS)
    training = [f"training.{each}" for each in ("max_steps=4", "checkpoint_every_steps=2", "keep_last=2")]
    recipe = load_recipe(str(tmp_path / "recipe.toml"), ["data.episodes=20", *training])
    run = tmp_path / "run"
    prepare(recipe, run)
    train(recipe, run, tiny.workers())
    *_, found = all_of(run, tiny, None)
    assert [(one.n, one.metric) for one in found.tried] == [(1, "nll"), (2, "nll")]
    shutil.rmtree(run / "data" / "valid")
    with pytest.raises(DataError, match="there is no validation set to compare averages on"):
        all_of(run, tiny, None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--spacing 2", "--last"),
        ("--search --last 2", "--search"),
        ("--metric nll", "--metric needs --search"),
        ("--search --metric chrf", "'bleu', 'nll'"),
    ],
)
def test_options_that_do_not_belong_together_are_wrong_usage(arguments: str, told: str) -> None:
    outcome = run_command("average", "runs/x", *arguments.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert told in " ".join(outcome.err.split())
