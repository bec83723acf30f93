"""Going on with a run: from its latest whole save, after a check that data and settings are those it began with."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from nmtkit.config.recipe import changes_that_matter, differences
from nmtkit.config.schema import Recipe
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, NmtkitError
from nmtkit.evaluation.cost import read_metrics
from nmtkit.files import read_json, remove_folder, write_json_lines
from nmtkit.model_folder import read_provenance, step_of
from nmtkit.run import Run
from nmtkit.training.initialization import check_initial_weights, initial_sha256
from nmtkit.training.nonfinite import forget_later_nonfinite
from nmtkit.training.state import Progress, TrainingState, remove_old_saves, saves, whole_saves


def resume(
    state: TrainingState, run_dir: Path, recipe: Recipe, fingerprint: str, workers: Workers
) -> dict[str, Any] | None:
    """Brings ``state`` to the latest whole save of a run and forgets what was written after it.

    Args:
        fingerprint: of the run's data.

    Returns:
        The save's state.json; None where there is no save, and training begins.

    Raises:
        NmtkitError: the run was trained with other settings.
        DataError: the data are not those the run began with.
    """
    found = whole_saves(run_dir, 1)
    if not found:
        _refuse_foreign_checkpoints(run_dir, recipe, fingerprint)
        workers.wait()
        if workers.is_main:
            (Run(run_dir).metrics).unlink(missing_ok=True)
            (Run(run_dir).nonfinite).unlink(missing_ok=True)
            _forget_later(Run(run_dir).checkpoints(), 0)
        return None
    folder, saved = found[0]
    check_settings(saved, run_dir, recipe, fingerprint)
    state.load(folder, saved)
    workers.wait()
    if workers.is_main:
        step = state.progress.step
        done = step - 1 if saved.get("unfinished") else step
        _forget_later_metrics(run_dir, done)
        _forget_later(Run(run_dir).checkpoints(), done)
        forget_ends(run_dir, step)
        _forget_later(saves(run_dir), step)  # damaged ones: their updates are made again
        forget_later_nonfinite(run_dir, state.progress)
        remove_old_saves(run_dir)  # a kill may have come before that
    return saved


def check_settings(saved: dict[str, Any], run_dir: Path, recipe: Recipe, fingerprint: str) -> None:
    """Raises NmtkitError unless a save was made with the same data and with settings that come to the same."""
    stored = Recipe.model_validate(saved["recipe"])
    changes = [f"model.{change}" for change in differences(stored.model, recipe.model)]
    changes += [f"training.{change}" for change in changes_that_matter(stored.training, recipe.training)]
    if changes:
        raise NmtkitError(
            f"{run_dir} was trained with other settings (changed: {', '.join(changes)}); "
            "take another --run-dir, or undo the change"
        )
    check_initial_weights(recipe, saved, run_dir)
    if saved["data_fingerprint"] != fingerprint:
        raise DataError(f"{run_dir}: the data are not those that this run began with; take another --run-dir")


def forget_after_going_back(run_dir: Path, place: Progress) -> None:
    """Removes what was written after the save that a failed run went back to."""
    _forget_later_metrics(run_dir, place.step)
    _forget_later(Run(run_dir).checkpoints(), place.step)
    _forget_later(saves(run_dir), place.step)


def forget_ends(run_dir: Path, step: int) -> None:
    """Removes what an end of training before update ``step`` added, so that the run is as if it had not ended there."""
    kept = []
    for line in read_metrics(run_dir):
        end = line.pop("end", None) if line["step"] < step else None
        if end == "validation":
            line = {key: value for key, value in line.items() if not key.startswith("valid_") and key != "samples"}
        if end != "line":
            kept.append(line)
    write_json_lines(Run(run_dir).metrics, kept)
    for folder in end_checkpoints(run_dir):
        if step_of(folder) < step:
            remove_folder(folder)


def end_checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints that were written only because training ended there."""
    found = []
    for folder in Run(run_dir).checkpoints():
        with suppress(NmtkitError):  # a damaged one is reported where it is used
            found += [folder] * bool(read_provenance(folder).get("end"))
    return found


def check_same_place(step: int, saved: dict[str, Any] | None, start: str | None, workers: Workers) -> None:
    """Raises NmtkitError on every process unless all are at the same save, or at the same beginning.

    Args:
        start: sha256 of the weights that the run begins with, where those are of another model.
    """
    here = (step, saved["files"] if saved is not None else start)
    if any(place != here for place in workers.gather([here])):
        raise NmtkitError(
            "the processes found different saved states to resume from; RUN must be one folder that all machines share"
        )


def _refuse_foreign_checkpoints(run_dir: Path, recipe: Recipe, fingerprint: str) -> None:
    """Checkpoints without a save are left by a kill before the first save, or by a training with other settings."""
    for folder in Run(run_dir).checkpoints():
        before = read_json(folder / "provenance.json", {"recipe": Recipe.model_validate, "data_fingerprint": str})
        stored = Recipe.model_validate(before["recipe"])
        changes = differences(stored.model, recipe.model)
        changes += changes_that_matter(stored.training, recipe.training)
        is_same_init = before.get("init_sha256") == initial_sha256(recipe)
        if changes or before["data_fingerprint"] != fingerprint or not is_same_init:
            raise NmtkitError(
                f"{folder} belongs to a training with other settings, and there is no saved state to resume; remove "
                f"{folder.parent} or take another --run-dir"
            )


def _forget_later_metrics(run_dir: Path, step: int) -> None:
    """Removes the reports of updates that were made but not saved: they are made again."""
    path = Run(run_dir).metrics
    write_json_lines(path, [line for line in read_metrics(run_dir) if line["step"] <= step])


def _forget_later(folders: list[Path], step: int) -> None:
    """Removes the checkpoints or saves of updates that are made again."""
    for folder in folders:
        if step_of(folder) > step:
            remove_folder(folder)
