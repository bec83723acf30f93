"""The runs of a sweep: train and measure one in this process, or several in separate processes.

    SWEEP/prepared/data                 corpora and subwords
    SWEEP/precision.json                precision of all runs with `precision = "auto"`, by device
    SWEEP/<row>-seed<k>/                a run folder; its data are hard links to the prepared data
    SWEEP/<row>-seed<k>/ablation.json   result of the run, once it is finished
    SWEEP/<row>-seed<k>/ablation.log    messages of its process

The data are prepared once for all runs.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import changes_that_matter, data_changes, differences, to_toml
from nmtkit.config.schema import Recipe, TrainingConfig
from nmtkit.console import log
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import read_manifest
from nmtkit.decoding.generation import generate_corpora
from nmtkit.distributed.cpu import has_bf16_instructions, threads_each
from nmtkit.distributed.interpreter import same_imports
from nmtkit.distributed.launch import how_it_ended, wait_or_kill
from nmtkit.distributed.workers import Workers, choose_device
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.evaluation.cost import training_cost
from nmtkit.experiments.rows import PlannedRun
from nmtkit.files import link_or_copy, write_folder_atomically, write_text
from nmtkit.json_toml import measured, read_json, write_json
from nmtkit.locks import locked
from nmtkit.model_folder import load_model, step_of
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.training.precision import settle_precision
from nmtkit.training.resume import initial_sha256
from nmtkit.training.session import train
from nmtkit.training.state import TrainingState
from nmtkit.training.validation import Validator

_SECONDS_TO_SAVE = 120.0
"""Time for the runs to save and end when the sweep is stopped."""


def refuse_another_sweep(recipe: Recipe, runs: Sequence[PlannedRun], folder: Path) -> None:
    """Raise NmtkitError if runs in the folder were trained with other data, or a finished run with other settings.

    Decoding settings, and training settings that do not affect past updates, may differ: then a finished run is
    measured again or continued. Nothing is written.
    """
    prepared = Run(folder / "prepared")
    if prepared.recipe_file.is_file() and any(Run(path).is_trained() for path in folder.glob("*-seed*")):
        _refuse_changes(folder, data_changes(prepared.recipe(recipe.name), recipe))
    for run in runs:
        # Without a readable result the run is not finished, and `train` compares its settings.
        with suppress(DataError, KeyError, TypeError, ValidationError):
            before = read_json(Run(folder / run.name).row_result)["settings"]
            model = ModelConfig.model_validate(before["model"])  # adds keys that an older version lacks
            training, now = TrainingConfig.model_validate(before["training"]), run.recipe.training
            changes = [f"model.{change}" for change in differences(model, run.recipe.model)]
            matter = {change.partition(" = ")[0] for change in changes_that_matter(training, now)}
            for key in ("max_steps", "max_epochs", "max_minutes"):
                was, limit = getattr(training, key), getattr(now, key)
                if limit is not None and (was is None or limit < was):
                    matter.add(key)  # a finished run may already exceed a lowered limit
            differing = differences(training, now)
            changes += [f"training.{change}" for change in differing if change.partition(" = ")[0] in matter]
            _refuse_changes(folder / run.name, changes)


def _refuse_changes(folder: Path, changes: Sequence[str]) -> None:
    if changes:
        raise NmtkitError(
            f"{folder} was made with other settings; changed: {', '.join(changes)}. Take another --sweep-dir, or undo "
            "the change"
        )


def prepare_sweep(recipe: Recipe, folder: Path, mirror: Path | None, device: str, threads: int | None) -> str:
    """Prepare the data of all runs, unless they are up to date, and return their fingerprint.

    Raises:
        NmtkitError: a text cannot be used, or the device is not available.
    """
    choose_device(device)  # before the work that does not need it
    generate = functools.partial(generate_corpora, recipe=recipe, device=device, threads=threads)
    return str(prepare(recipe, folder / "prepared", mirror=mirror, generate=generate).manifest["fingerprint"])


def finished_result(run: PlannedRun, folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """Return the result of a run with these settings, data and initial weights; None if it is not finished."""
    with suppress(DataError, KeyError, TypeError):
        written = read_json(Run(folder / run.name).row_result, {"result": RESULT})
        is_same = written["settings"] == _settings(run) and written["data_fingerprint"] == fingerprint
        # None: the recipe has no `init`, or its model was removed after the run.
        known = (None, written["result"].get("init_sha256"))
        if is_same and initial_sha256(run.recipe, missing_ok=True) in known:
            return dict(written["result"])
    return None


def run_here(run: PlannedRun, folder: Path, fingerprint: str, device: str, threads: int | None) -> dict[str, Any] | int:
    """Train and measure a run in this process, or resume it; return its result, or the signal that stopped it.

    Raises:
        NmtkitError: the run cannot be trained or measured.
    """
    run_dir = folder / run.name
    with Run(run_dir).locked("ablate"):  # another process may be training on these data
        _link_data(run.recipe, Run(folder / "prepared").data, run_dir, fingerprint)
    with Workers.start(device, run.recipe.training.precision, threads, for_training=True, is_alone=True) as workers:
        workers = _in_one_precision(run, folder, workers)
        training = train(run.recipe, run_dir, workers)
        if training.signal is not None:
            return training.signal
        result = _measure(run.recipe, run_dir, training.step, workers)
    written = {"settings": _settings(run), "data_fingerprint": fingerprint, "result": result}
    write_json(Run(run_dir).row_result, written)
    return result


def _in_one_precision(run: PlannedRun, folder: Path, workers: Workers) -> Workers:
    """Return workers with the precision of the sweep in place of `auto`: that of its first run on such a device.

    A run that goes on keeps its own.
    """
    path, own = folder / "precision.json", Run(folder / run.name)
    if run.recipe.training.precision != "auto" or own.resume_states():
        return workers
    # A CPU without bf16 has no choice; its float32 must not decide for one that has bf16.
    kind = "CPU without bf16" if workers.device.type == "cpu" and not has_bf16_instructions() else workers.device.type
    # Further runs wait, and so do not disturb the trial.
    with locked(folder / ".precision.lock", path, "ablate", "--sweep-dir", waits=True):
        by_device = read_json(path, {str: str}) if path.is_file() else {}
        precision = by_device.get(kind)
        if precision is None:
            tokenizer = own.tokenizer()
            sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
            state = TrainingState(run.recipe.model, run.recipe.training, sizes, workers.device)
            precision = settle_precision(run.recipe, state, None, workers)[1].precision
        else:
            log.info("precision: %s, as in the first run of the sweep", precision)
        write_json(path, {**by_device, kind: precision})
    return replace(workers, precision=precision, is_settled=True)


def _settings(run: PlannedRun) -> dict[str, Any]:
    return run.recipe.model_dump(mode="json", include={"model", "training", "decoding"})


def _link_data(recipe: Recipe, prepared: Path, run_dir: Path, fingerprint: str) -> None:
    """Link the prepared data into a run folder, or copy them if the file system has no hard links."""
    # Links are safe, as these files are never changed in place: `prepare` replaces them.
    data = Run(run_dir).data
    is_linked = Run(run_dir).is_prepared() and read_manifest(data)["fingerprint"] == fingerprint
    if Run(run_dir).is_trained():
        if not is_linked:
            raise NmtkitError(f"{run_dir} was trained with other data; use another --sweep-dir, or remove it")
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    # The recipe first: data without one could not be used by the other commands after a kill.
    write_text(Run(run_dir).recipe_file, to_toml(recipe))
    if not is_linked:
        with write_folder_atomically(data) as temporary:
            for path in prepared.iterdir():
                link_or_copy(path, temporary / path.name)


RESULT = {
    "updates": int, "parameters": float,
    "perplexity?": measured, **dict.fromkeys(("flops", "seconds"), float), "bleu?": float,
}  # fmt: skip
"""Entries of a result that the tables of a sweep need."""


def _measure(recipe: Recipe, run_dir: Path, updates: int, workers: Workers) -> dict[str, Any]:
    """Compute perplexity and BLEU of one checkpoint on the validation set; the paper's Table 3 has no averaging.

    It is the last checkpoint, or the best validated one if the recipe has a patience.
    """
    has_patience = recipe.training.patience_epochs or recipe.training.patience_validations
    best = Run(run_dir).best_checkpoints(1) if has_patience else []
    checkpoints = best or Run(run_dir).whole_checkpoints(1)
    if not checkpoints:
        raise ModelError(
            f"{Run(run_dir).checkpoints_folder}: there is no complete checkpoint to evaluate; remove the run and train "
            "it again"
        )
    loaded = load_model(checkpoints[0], workers.device)
    training = recipe.training.model_copy(update={"validate_bleu": task_of(recipe.data).has_source})
    recipe = recipe.model_copy(update={"training": training})
    validator = Validator(recipe, Run(run_dir), loaded.tokenizer, workers, loaded.lengths)
    validation = validator(loaded.model)
    # None would mean a request to stop.
    assert validation is not None
    cost = training_cost(run_dir)
    return {
        "updates": updates,
        "checkpoint": step_of(checkpoints[0]),
        "checkpoint_is": "best" if best else "last",
        **{key: validation.metrics[f"valid_{key}"] for key in ("nll", "perplexity")},
        "bleu": validation.bleu,
        "bleu_metric": "sacrebleu" if recipe.data.text == "plain" else "bleu-tokenized",
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "init_sha256": loaded.provenance.get("init_sha256"),
        **{key: cost[key] for key in ("flops", "seconds", "device", "precision", "processes")},
    }


def run_in_processes(
    runs: Sequence[PlannedRun], folder: Path, arguments: Sequence[str], *, jobs: int, device: str, threads: int | None
) -> Generator[tuple[PlannedRun, str | None], None, None]:
    """Do several runs at a time, each in a separate process; yield each run when it ends, with its error or None.

    If the generator is closed early, for example by a signal, SIGTERM makes the runs save and end.

    Args:
        arguments: arguments of `nmtkit ablate`, to which ``--only RUN`` is added.
        jobs: number of runs at a time; they are spread over the CUDA devices.
        threads: CPU threads of each run; by default the runs share the cores equally.
    """
    waiting, children = list(runs), dict[int, tuple[PlannedRun, subprocess.Popen[bytes], int]]()
    devices = _cuda_devices(device)
    try:
        while waiting or children:
            # Slots are numbered and not runs, so that a new run takes the device of one that has ended.
            free = [slot for slot in range(jobs) if slot not in children]
            for slot in free[: len(waiting)]:
                run = waiting.pop(0)
                children[slot] = run, *_start(run, slot, folder, arguments, devices, threads or threads_each(jobs))
            ended = [slot for slot, (_, process, _) in children.items() if process.poll() is not None]
            for slot in ended:
                run, process, begin = children.pop(slot)
                yield run, _error_of(process.returncode, Run(folder / run.name).row_log, begin)
            if not ended:
                time.sleep(0.1)
    finally:
        processes = [process for _, process, _ in children.values()]
        for process in processes:
            process.terminate()
        wait_or_kill(processes, _SECONDS_TO_SAVE)


def default_jobs(device: str) -> int:
    """Return the number of runs at a time: one per CUDA device, or one without CUDA."""
    return max(1, torch.cuda.device_count()) if choose_device(device).type == "cuda" else 1


def _cuda_devices(device: str) -> list[str]:
    """Return the CUDA devices to spread runs over, as named in CUDA_VISIBLE_DEVICES."""
    if choose_device(device).type != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def _start(
    run: PlannedRun, slot: int, folder: Path, arguments: Sequence[str], devices: Sequence[str], threads: int
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a run; return its process, and where its messages begin in the log, which keeps those of earlier ones."""
    # Before the inherited variables, so that a number set by the user counts.
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **same_imports()}
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    command = [sys.executable, "-m", "nmtkit", "ablate", "--only", run.name, "--threads", str(threads), *arguments]
    (folder / run.name).mkdir(parents=True, exist_ok=True)
    log_path = Run(folder / run.name).row_log
    log.info("%s: started; its log is %s", run.name, log_path)
    # In a new session, so that Ctrl-C reaches the run only once, through the sweep.
    with log_path.open("ab") as log_file:
        begin = log_file.tell()
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file, start_new_session=True
        )
    return process, begin


def _error_of(code: int, log_path: Path, begin: int) -> str | None:
    """Return the error of a failed run in one line, from its log from ``begin`` on; None if it succeeded."""
    if code == 0:
        return None
    if code < 0:
        return how_it_ended(code)
    text = log_path.read_bytes()[begin:].decode("utf-8", "replace")
    lines = [line for line in text.split("\n") if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"ended with exit code {code}"])[-1].strip()
