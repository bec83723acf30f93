"""`train --verify-resume`: repeats the updates between the last two saves and compares the result bit for bit."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmtkit.config.schema import Recipe
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError
from nmtkit.evaluation.cost import read_metrics
from nmtkit.files import versions
from nmtkit.model_folder import read_tensors, same_bits, step_of
from nmtkit.run import Run
from nmtkit.training.epochs import TrainingPairs, training_pairs
from nmtkit.training.initialization import start_from_model
from nmtkit.training.loop import train_updates
from nmtkit.training.precision import with_precision
from nmtkit.training.resume import check_settings
from nmtkit.training.session import holding_run
from nmtkit.training.state import MEASURED, TrainingState, execution_facts, whole_saves
from nmtkit.training.validation import Validator


def verify_resume(recipe: Recipe, run_dir: Path, workers: Workers) -> tuple[int, int]:
    """Repeats in memory what a run did from the save before the last one (or its beginning) up to the last one.

    Nothing stays in the run that was not there. Validations are made after the updates where the run made them.

    Returns:
        The first and the last update that were repeated; all tensors and counters are the same bit for bit.

    Raises:
        NmtkitError: something differs, or there is nothing that could be compared.
    """
    with holding_run(recipe, run_dir, workers) as manifest:
        found = whole_saves(run_dir, 2)
        if not found:
            raise NmtkitError(f"{run_dir}: there is no saved state to compare with yet; run `nmtkit train` first")
        last, saved = found[0]
        check_settings(saved, run_dir, recipe, manifest["fingerprint"])
        recipe, workers = with_precision(recipe, saved, workers)
        _check_comparable(saved, last, workers)
        tokenizer = Run(run_dir).tokenizer()
        sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
        state = TrainingState.new(recipe.model, recipe.training, sizes, workers.device)
        if len(found) == 2:
            before = state.load(*found[1])
        else:
            before = {}
            start_from_model(state, recipe, tokenizer)
            state.progress.tokens_per_pass = saved["progress"]["tokens_per_pass"]
        if state.progress.rollbacks != saved["progress"]["rollbacks"]:
            raise NmtkitError(
                f"{last}: between this saved state and the previous one the run was rolled back because of non-finite "
                "numbers, which cannot be repeated; verify after the next saved state"
            )
        if len(found) == 2 and state.progress.tokens_per_pass != saved["progress"]["tokens_per_pass"]:
            raise NmtkitError(
                f"{last}: between this saved state and the previous one memory ran out and micro-batches were halved, "
                "which cannot be repeated; verify after the next saved state"
            )
        first = state.progress.step + 1
        # The updates after the first state whose validation the last one takes account of; the end changes no counter.
        after = first - 1 - bool(before.get("unfinished"))
        until = saved["progress"]["step"] - bool(saved.get("unfinished"))
        lines = [line for line in read_metrics(run_dir) if "valid_nll" in line and "end" not in line]
        validated = {line["step"] for line in lines if after < line["step"] <= until}
        validator = Validator(recipe, run_dir, tokenizer, workers) if validated else None
        was_drawn = (Run(run_dir).sampled).is_dir()
        data = training_pairs(recipe, run_dir, manifest, workers)
        try:
            _repeat(state, recipe, data, workers, step_of(last), validator, validated)
        finally:
            data.close(is_finished=not was_drawn)
    differences = _differences(state, last, saved)
    if differences:
        raise NmtkitError(
            f"{last}: repeating updates {first} to {step_of(last)} gives a different result: {differences[0]}"
            + (f" (and {len(differences) - 1} more differ)" if len(differences) > 1 else "")
            + ("; on CUDA some kernels add numbers in no fixed order" if workers.device.type == "cuda" else "")
        )
    return first, step_of(last)


def _check_comparable(saved: dict[str, Any], folder: Path, workers: Workers) -> None:
    now = execution_facts(workers)
    if workers.device.type != "cpu":
        now.pop("threads")
    changes = [f"{key} = {now[key]} (was {saved[key]})" for key in now if key in saved and saved[key] != now[key]]
    # Another commit of nmtkit is no reason to refuse: the comparison shows if it computes something else.
    then, now = ({**found, "nmtkit": found["nmtkit"].split("+")[0]} for found in (saved["versions"], versions()))
    changes += [f"{key} {now[key]} (was {then.get(key)})" for key in ("nmtkit", "torch") if then.get(key) != now[key]]
    if changes:
        raise NmtkitError(f"{folder}: made under other conditions, so bits cannot be compared: {', '.join(changes)}")


def _repeat(
    state: TrainingState,
    recipe: Recipe,
    data: TrainingPairs,
    workers: Workers,
    last_step: int,
    validator: Validator | None,
    validated: set[int],
) -> None:
    def validate() -> None:
        if validator is not None and state.progress.step in validated:
            with state.averaged() as model:
                validation = validator(model)
            assert validation is not None
            state.note_validation(validation.cost(recipe.training.best_metric))

    validate()  # where the save before the last one was made by a stop during a validation
    for update in train_updates(state, data, recipe.training, workers):
        validate()
        if update.step >= last_step:
            return


def _differences(state: TrainingState, folder: Path, saved: dict[str, Any]) -> list[str]:
    """What differs from a save, in words."""
    found = []
    for file, tensors in state.tensors().items():
        expected = read_tensors(folder / f"{file}.safetensors")
        for name, tensor in tensors.items():
            if name not in expected or expected[name].shape != tensor.shape:
                found.append(f"{file}: {name} is not there in this shape")
            elif not same_bits(tensor, expected[name]):
                by = (tensor.detach().cpu().double() - expected[name].double()).abs().max()
                found.append(f"{file}: {name} differs by up to {float(by):.3g}")
    counters = asdict(state.progress)
    for key, value in saved["progress"].items():
        if not key.endswith(MEASURED) and counters.get(key) != value:
            found.append(f"{key} is {counters.get(key)}, was {value}")
    return found
