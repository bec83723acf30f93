"""Begin and resume of a training session, and `train --verify-resume`.

holding_run          the run's lock, after a check of its data
start_from_model     a new run with training.init: the weights of another model
resume               a run that goes on: its latest undamaged resume state, after a check of its settings
verify_resume        repeats the updates between the last two resume states and compares the result bit for bit
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nmtkit.config.decoding_schema import TrainingLengths, read_lengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import changes_that_matter, differences
from nmtkit.config.schema import Recipe, TrainingConfig
from nmtkit.console import counted
from nmtkit.data.changes import changes_since, damaged_files
from nmtkit.data.shards import read_manifest, sha256_of_ids
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.evaluation.cost import read_metrics
from nmtkit.files import remove_folder, sha256_of
from nmtkit.json_toml import read_json, write_json, write_json_lines
from nmtkit.model_folder import read_description, read_provenance, read_tensors, same_bits, step_of
from nmtkit.run import Run, find_model
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.epochs import training_pairs
from nmtkit.training.loop import train_updates
from nmtkit.training.nonfinite import forget_later_nonfinite
from nmtkit.training.precision import with_precision
from nmtkit.training.state import MEASURED, Progress, TrainingState, execution_facts, remove_old_states, whole_states
from nmtkit.training.transfer import initial_weights
from nmtkit.training.validation import Validation, Validator
from nmtkit.versions import versions


@contextmanager
def holding_run(recipe: Recipe, run: Run, workers: Workers) -> Iterator[dict[str, Any]]:
    """Hold the run's lock while the block runs, after a check of its data; return the manifest of the data.

    Raises:
        NmtkitError: on every process, when the data are not those of the recipe or differ between processes, or
            another process holds the lock.
    """
    with ExitStack() as stack:
        with workers.failing_together():
            if workers.is_main:
                if not run.is_prepared():
                    message = "no data is prepared here; run `nmtkit prepare` with this recipe first"
                    raise DataError(f"{run.data}: {message}")
                # The lock comes before the check: else `prepare` could replace the data after it.
                stack.enter_context(run.locked("train"))
                _check_data(recipe, run)
        with workers.failing_together():
            manifest = read_manifest(run.data)
        # A machine that does not share RUN has a copy of its own, which may be older.
        if len(set(workers.gather([manifest["fingerprint"] + sha256_of_ids(manifest)]))) > 1:
            raise DataError(f"{run.data}: the processes found different data; copy this folder to all machines again")
        yield manifest


def _check_data(recipe: Recipe, run: Run) -> None:
    """Raise NmtkitError unless RUN/data is undamaged and was prepared with this recipe from the same text."""
    manifest = read_manifest(run.data)
    if changes := changes_since(recipe, manifest):
        advice = "undo the change, or take another --run-dir" if run.is_trained() else "run `nmtkit prepare` again"
        raise NmtkitError(
            f"{run.folder} was prepared with a different recipe (changed: {', '.join(changes)}); {advice}"
        )
    damaged = damaged_files(run.data, manifest)
    if damaged:
        raise DataError(
            f"{run.data}: files changed or missing since `prepare` wrote them: {', '.join(damaged)}; put them "
            "back, or prepare the data in another --run-dir"
        )


# ---- training.init


def start_from_model(state: TrainingState, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Give a new state the weights of the model that training.init names, if it names one.

    Raises:
        ModelError, NmtkitError: see `initial_weights`.
    """
    if recipe.training.init is not None:
        state.start_from(initial_weights(find_model(recipe.training.init), recipe, tokenizer, state.model.state_dict()))


def lengths_seen(
    recipe: Recipe, manifest: dict[str, Any], saved: dict[str, Any] | None = None
) -> TrainingLengths | None:
    """Return the lengths of a run's training pairs; the longest source may be one of the model of training.init.

    Without a source, it is the length of the training sequences.

    Args:
        saved: state.json of a resume state, which has them, as the model may have been removed meanwhile.
    """
    if saved is not None and "training_lengths" in saved:
        return read_lengths(saved["training_lengths"])
    own, path = read_lengths(manifest.get("training_lengths")), recipe.training.init
    if own is not None and not task_of(recipe.data).has_source:
        return own.model_copy(update={"longest_source": recipe.data.sequence_length})
    folder = before = None
    with suppress(*((DataError, ModelError) if saved else ())):
        folder = find_model(path) if path is not None else None
    if folder is not None:
        description = read_description(folder)
        has_source = task_of(Tokenizer.load(folder / "tokenizer")).has_source
        if has_source and ModelConfig.model_validate(description["model"]).is_joined == recipe.model.is_joined:
            before = description.get("training_lengths")
    if own is None or before is None:
        return own
    longest = {key: max(value, before.get(key) or 0) for key, value in own.model_dump().items() if "longest" in key}
    return own.model_copy(update=longest)


def initial_sha256(recipe: Recipe, *, missing_ok: bool = False) -> str | None:
    """Return the sum of the weights that training.init names; None if it names none.

    Args:
        missing_ok: return None also if there is no such model.

    Raises:
        DataError, ModelError: there is no such model.
        FileNotFoundError: it has no weights.
    """
    path = recipe.training.init
    try:
        if path is None:
            return None
        weights = find_model(path) / "model.safetensors"
        modified = weights.stat().st_mtime_ns
    except (DataError, ModelError, FileNotFoundError):
        if missing_ok:
            return None
        raise
    return _sum_of(weights, modified)


@lru_cache
def _sum_of(weights: Path, modified: int) -> str:
    """Return a checksum, computed once for all rows of a sweep."""
    return sha256_of(weights)


# ---- a run that goes on


def resume(
    state: TrainingState, run: Run, recipe: Recipe, manifest: dict[str, Any], workers: Workers
) -> dict[str, Any] | None:
    """Load the latest undamaged resume state of a run, and remove what was written after it.

    Args:
        manifest: that of the run's data.

    Returns:
        Its state.json; None where there is none, and training begins.

    Raises:
        NmtkitError: the run was trained with other settings, or has models but no resume state.
        DataError: the data are not those the run began with.
    """
    found = whole_states(run, 1)
    if not found:
        _refuse_checkpoints(run, recipe, manifest["fingerprint"])
        # All have looked before rank 0 removes a checkpoint that decides whether training begins.
        workers.wait()
        if workers.is_main:
            run.metrics.unlink(missing_ok=True)
            run.nonfinite.unlink(missing_ok=True)
            for folder in run.checkpoints():
                remove_folder(folder)
        return None
    folder, saved = found[0]
    check_settings(saved, run, recipe, manifest)
    state.load(folder, saved)
    # All have read the state before rank 0 removes anything.
    workers.wait()
    if workers.is_main:
        step = state.progress.step
        forget_later(run, step, step - 1 if saved["unfinished"] else step)
        forget_ends(run, step)
        forget_later_nonfinite(run, state.progress)
        remove_old_states(run)  # a kill may have come before that
        # A kill may have come before this, too; the killed session would have kept its own numbers of checkpoints.
        if saved["checkpointed"]:
            remove_old_checkpoints(run, Recipe.model_validate(saved["recipe"]).training)
    return saved


def check_settings(saved: dict[str, Any], run: Run, recipe: Recipe, manifest: dict[str, Any]) -> None:
    """Raise NmtkitError unless a resume state was made with the same data and equivalent settings."""
    needed = ("recipe", "init_sha256", "data_fingerprint", "ids_sha256", "meter", "unfinished")
    fault = ", ".join(key for key in (*needed, "validated", "checkpointed") if key not in saved)
    try:
        stored = recipe if fault else Recipe.model_validate(saved["recipe"])
    except ValidationError as error:
        fault = str(error).partition("\n")[0]
    if fault:
        raise NmtkitError(
            f"{run.resume_folder}: saved by another version of nmtkit ({fault}); go on with that version, or take "
            "another --run-dir"
        )
    changes = [f"model.{change}" for change in differences(stored.model, recipe.model)]
    changes += [f"training.{change}" for change in changes_that_matter(stored.training, recipe.training)]
    if changes:
        raise NmtkitError(
            f"{run.folder} was trained with other settings (changed: {', '.join(changes)}); "
            "undo the change, or take another --run-dir (with training.init, it starts from this run)"
        )
    path = recipe.training.init
    # A model that has been removed does not matter: the run has its own weights by now.
    is_known = str(path) == saved["recipe"]["training"].get("init")
    if initial_sha256(recipe, missing_ok=is_known) not in (None, saved["init_sha256"]):
        raise NmtkitError(
            f"{run.folder} began with other weights than training.init = {path} has now; name the same checkpoint it "
            "began with, or take another --run-dir"
        )
    # The same text may give other ids where it was prepared again: by another version, or translated on another device.
    if saved["data_fingerprint"] != manifest["fingerprint"] or saved["ids_sha256"] != sha256_of_ids(manifest):
        raise DataError(
            f"{run.folder}: the data are not those that this run began with; put its old {run.data} back, or take "
            "another --run-dir"
        )


def search_changes(saved: dict[str, Any], recipe: Recipe) -> list[str]:
    """Return the keys of [decoding] whose change since a resume state makes validation BLEU that of another search."""
    changes = differences(Recipe.model_validate(saved["recipe"]).decoding, recipe.decoding)
    return [f"decoding.{change}" for change in changes if not change.startswith("average_last ")]


def _refuse_checkpoints(run: Run, recipe: Recipe, fingerprint: str) -> None:
    """Raise NmtkitError for models; only the first checkpoint of an unfinished training with these settings may stay.

    That is what a kill before the first resume state leaves.
    """
    checkpoints, models = run.checkpoints(), " and ".join(map(str, run.model_folders()))
    is_refused = len(checkpoints) > 1 or bool(end_checkpoints(run)) or run.averaged.exists()
    for folder in checkpoints:
        shape = {"recipe": Recipe.model_validate, "data_fingerprint": str, "step": int, "epoch": int, "seconds": float}
        before = read_json(folder / "provenance.json", shape)
        stored = Recipe.model_validate(before["recipe"])
        reached = Progress(step=before["step"], epoch=before["epoch"], seconds=before["seconds"])
        # Of a training without an earlier checkpoint, `previous` is 0.
        is_refused |= bool(before.get("previous") or reached.reason_to_stop(stored.training))
        changes = differences(stored.model, recipe.model)
        changes += changes_that_matter(stored.training, recipe.training)
        is_same_init = before.get("init_sha256") == initial_sha256(recipe)
        # Nothing of another training is removed, even if it is a single checkpoint.
        if changes or before["data_fingerprint"] != fingerprint or not is_same_init:
            raise NmtkitError(
                f"{folder} belongs to a training with other settings, and there is no resume state; remove "
                f"{models} or take another --run-dir"
            )
    if is_refused:
        found = [counted(len(checkpoints), "checkpoint")] * bool(checkpoints) + ["an average"] * run.averaged.exists()
        raise NmtkitError(
            f"{run.folder}: there is no resume state, but {' and '.join(found)}; to train from scratch, "
            f"remove {models}, or take another --run-dir"
        )


def check_same_state(step: int, saved: dict[str, Any] | None, start: str | None, workers: Workers) -> None:
    """Raise NmtkitError on every process unless all are at the same resume state, or at the same beginning.

    Args:
        start: sha256 of the weights that the run begins with, where those are of another model.
    """
    here = (step, saved["files"] if saved is not None else start)
    if any(other != here for other in workers.gather([here])):
        raise NmtkitError("the processes found different resume states; RUN must be one folder that all machines share")


def forget_later(run: Run, step: int, done: int) -> None:
    """Remove what belongs to updates that are repeated: reports, checkpoints and (damaged) resume states.

    Args:
        step: the last update that is kept; done: the last one that is also validated and reported.
    """
    write_json_lines(run.metrics, [line for line in read_metrics(run.folder) if line["step"] <= done])
    later = [folder for folder in run.checkpoints() if step_of(folder) > done]
    later += [folder for folder in run.resume_states() if step_of(folder) > step]
    for folder in later:
        remove_folder(folder)


def forget_ends(run: Run, step: int) -> None:
    """Remove reports, checkpoints and scores that exist only because training had ended before update ``step``.

    A checkpoint stays as long as it is the only one.
    """
    kept = []
    for line in read_metrics(run.folder):
        end = line.pop("end", None) if line["step"] < step else None
        if end == "validation":
            line = {key: value for key, value in line.items() if not key.startswith("valid_") and key != "samples"}
        if end != "line":
            kept.append(line)
    write_json_lines(run.metrics, kept)
    for folder, end in end_checkpoints(run).items():
        if step_of(folder) >= step:
            continue
        if end == "validation":
            unscored = {**read_provenance(folder), **Validation.scores(None), "end": False}
            write_json(folder / "provenance.json", unscored)
        elif run.checkpoints() != [folder]:
            remove_folder(folder)


def add_end_score(folder: Path, validation: Validation) -> None:
    """Add the validation at the end of training to a checkpoint that was due, but without a validation."""
    provenance = read_provenance(folder)
    if provenance["valid_nll"] is None and not provenance["end"]:
        scored = {**provenance, **Validation.scores(validation), "end": "validation"}
        write_json(folder / "provenance.json", scored)


def end_checkpoints(run: Run) -> dict[Path, Any]:
    """Return the checkpoints that were written (True) or scored ("validation") only because training ended there."""
    found = {}
    for folder in run.checkpoints():
        with suppress(NmtkitError):  # a damaged one is reported where it is used
            if end := read_provenance(folder).get("end"):
                found[folder] = end
    return found


def remove_old_checkpoints(run: Run, training: TrainingConfig) -> None:
    """Keep the last and the best; those of an earlier end do not count, and are removed by `forget_ends`."""
    ends = end_checkpoints(run)
    found = [folder for folder in run.checkpoints() if ends.get(folder) is not True]
    best = run.best_checkpoints(training.keep_best + len(ends), check=False)
    best = [folder for folder in best if folder not in ends]
    for old in set(found) - {*found[-training.keep_last :], *best[: training.keep_best]}:
        remove_folder(old)


# ---- --verify-resume


def verify_resume(recipe: Recipe, run_dir: Path, workers: Workers) -> tuple[int, int]:
    """Repeat in memory the updates from the last resume state but one (or the beginning) to the last one.

    Nothing is added to the run. Validations are repeated where the run made them.

    Returns:
        The first and the last update that were repeated; all tensors and counters are the same bit for bit.

    Raises:
        NmtkitError: something differs, or there is nothing to compare.
    """
    run = Run(run_dir)
    with holding_run(recipe, run, workers) as manifest:
        found = whole_states(run, 2)
        if not found:
            raise NmtkitError(f"{run_dir}: there is no resume state to compare with yet; run `nmtkit train` first")
        last, saved = found[0]
        check_settings(saved, run, recipe, manifest)
        recipe, workers = with_precision(recipe, saved, workers)
        _check_comparable(saved, last, workers)
        tokenizer = run.tokenizer()
        sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
        state = TrainingState(recipe.model, recipe.training, sizes, workers.device)
        expected = Progress(**saved["progress"])
        first = 1
        if len(found) == 2:
            state.load(*found[1])
            first = state.progress.step + 1 - bool(found[1][1]["unfinished"])
        else:
            start_from_model(state, recipe, tokenizer)
            state.progress.tokens_per_pass = expected.tokens_per_pass
        for attribute, event in (
            ("rollbacks", "the run was rolled back because of non-finite numbers"),
            ("tokens_per_pass", "memory ran out and micro-batches were halved"),
        ):
            if getattr(state.progress, attribute) != getattr(expected, attribute):
                raise NmtkitError(
                    f"{last}: between this resume state and the previous one {event}, which cannot be repeated; verify "
                    "after the next resume state"
                )
        # The validations whose results are part of the last state; the one at the end of training is of no state.
        until = expected.step - bool(saved["unfinished"])
        lines = [line for line in read_metrics(run_dir) if "valid_nll" in line and "end" not in line]
        validated = {line["step"] for line in lines if first <= line["step"] <= until}
        first = state.progress.step + 1
        lengths = lengths_seen(recipe, manifest, saved)
        validator = Validator(recipe, run, tokenizer, workers, lengths) if validated else None
        _repeat(state, recipe, run, manifest, workers, validator, expected.step, validated)
    differences = _differences(state, last, expected)
    if differences:
        raise NmtkitError(
            f"{last}: repeating updates {first} to {expected.step} gives a different result: {differences[0]}"
            + (f" (and {len(differences) - 1} more differ)" if len(differences) > 1 else "")
            + ("; on CUDA some kernels add numbers in no fixed order" if workers.device.type == "cuda" else "")
        )
    return first, expected.step


def _check_comparable(saved: dict[str, Any], folder: Path, workers: Workers) -> None:
    now = execution_facts(workers)
    if workers.device.type != "cpu":
        # Threads decide the order of sums on a CPU only.
        now.pop("threads")
    changes = [f"{key} = {now[key]} (was {saved[key]})" for key in now if saved[key] != now[key]]
    # Another commit of nmtkit is no reason to refuse: the comparison shows if it computes something else.
    then, now = ({**found, "nmtkit": found["nmtkit"].split("+")[0]} for found in (saved["versions"], versions()))
    changes += [f"{key} {now[key]} (was {then.get(key)})" for key in ("nmtkit", "torch") if then.get(key) != now[key]]
    if changes:
        raise NmtkitError(f"{folder}: made under other conditions, so bits cannot be compared: {', '.join(changes)}")


def _repeat(
    state: TrainingState,
    recipe: Recipe,
    run: Run,
    manifest: dict[str, Any],
    workers: Workers,
    validator: Validator | None,
    last_step: int,
    validated: set[int],
) -> None:
    """Make the updates up to ``last_step``, with the validations after those in ``validated``."""

    def validate() -> None:
        if validator is not None and state.progress.step in validated:
            with state.averaged() as model:
                validation = validator(model)
            assert validation is not None
            state.progress.note_validation(validation.cost(recipe.training.best_metric))

    was_sampled = run.sampled.is_dir()
    data = training_pairs(recipe, run, manifest, workers)
    try:
        validate()  # where the first state was saved by a stop during a validation
        for update in train_updates(state, data, workers):
            validate()
            if update.step >= last_step:
                return
    finally:
        data.close(is_finished=not was_sampled)


def _differences(state: TrainingState, folder: Path, expected: Progress) -> list[str]:
    """Return the differences from a resume state, in words."""
    found = []
    for file, tensors in state.tensors().items():
        stored = read_tensors(folder / f"{file}.safetensors")
        for name, tensor in tensors.items():
            if name not in stored or stored[name].shape != tensor.shape:
                found.append(f"{file}: {name} is not there in this shape")
            elif not same_bits(tensor, stored[name]):
                by = (tensor.detach().cpu().double() - stored[name].double()).abs().max()
                found.append(f"{file}: {name} differs by up to {float(by):.3g}")
    counters = asdict(state.progress)
    for key, value in asdict(expected).items():
        if not key.endswith(MEASURED) and counters[key] != value:
            found.append(f"{key} is {counters[key]}, was {value}")
    return found
