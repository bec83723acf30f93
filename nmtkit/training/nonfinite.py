"""Numbers that stay finite: which updates are skipped, the loss scale of fp16, and when training has failed.

Whether an update is skipped is decided on the device (`optimizer.step_if`); what is here runs afterwards, on the
numbers that are read of every update anyway, and comes to the same on every process.

    an update    loss and gradient finite                          made
                 fp16: loss finite, gradient not                   skipped as "overflow"; the loss scale is halved
                 else                                              skipped as "nonfinite"
    failed       MAX_NONFINITE_IN_A_ROW skipped as "nonfinite", or the loss scale below MIN_LOSS_SCALE
                 once: back to the last save before it began, with other dropout; a second time: training ends
"""

import math
from pathlib import Path
from typing import Any

from nmtkit.console import log
from nmtkit.errors import NmtkitError
from nmtkit.files import append_json_line, read_json_lines, write_json_lines
from nmtkit.run import Run
from nmtkit.training.state import Progress, TrainingState, good_save

MAX_NONFINITE_IN_A_ROW = 5
"""Updates skipped one after the other with which training has failed."""

MIN_LOSS_SCALE = 1.0
"""Smallest loss scale of fp16: below it gradients overflow that float16 can hold without scaling."""

SCALE_GROWTH_UPDATES = 2000
"""Updates without overflow after which the loss scale is doubled, as torch's GradScaler does.

Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2.
"""

MAX_LOSS_SCALE = 2.0**24


def reason_to_skip(loss: float, gradient_norm: float, precision: str) -> str:
    """Why an update was skipped: "nonfinite" or "overflow"; "" if it was made."""
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        return ""
    return "overflow" if precision == "fp16" and math.isfinite(loss) else "nonfinite"


def count_update(progress: Progress, skipped: str, precision: str) -> None:
    """Takes account of an update that was made or skipped, and sets the loss scale of the next one."""
    progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if skipped else 0
    if skipped == "nonfinite":
        progress.skipped_updates += 1
        progress.nonfinite_in_a_row += 1
    elif not skipped:
        progress.nonfinite_in_a_row = 0
    if precision != "fp16":
        return
    if skipped == "overflow":
        progress.overflows += 1
        progress.loss_scale /= 2
        progress.updates_since_scaling = 0
    elif not skipped:
        progress.updates_since_scaling += 1
        if progress.updates_since_scaling == SCALE_GROWTH_UPDATES:
            progress.loss_scale = min(2 * progress.loss_scale, MAX_LOSS_SCALE)
            progress.updates_since_scaling = 0


def has_failed(progress: Progress) -> bool:
    """Whether going on makes no sense."""
    return progress.nonfinite_in_a_row >= MAX_NONFINITE_IN_A_ROW or progress.loss_scale < MIN_LOSS_SCALE


def note_nonfinite(run_dir: Path, progress: Progress, *, loss: float, gradient_norm: float, lines: list[int]) -> None:
    """Appends the update just skipped to RUN/nonfinite.jsonl, and warns.

    Args:
        lines: of the corpora in turn from 1, that its sentence pairs come from.
    """
    what = "gradient" if math.isfinite(loss) else "loss"
    path = Run(run_dir).nonfinite
    log.warning("update %d: the %s is not finite; the update is skipped; %s lists its lines", progress.step, what, path)
    entry = {
        "step": progress.step,
        "epoch": progress.epoch,
        "rollbacks": progress.rollbacks,
        "loss": _number(loss),
        "gradient_norm": _number(gradient_norm),
        "lines": lines,
    }
    append_json_line(path, entry)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no infinity


def forget_later_nonfinite(run_dir: Path, progress: Progress) -> None:
    """Removes the entries of updates that are made again, but not those from before the run went back."""
    path = Run(run_dir).nonfinite
    if not path.is_file():
        return
    here = (progress.rollbacks, progress.step)
    kept = [
        entry
        for entry in read_json_lines(path, {"rollbacks": int, "step": int})
        if (entry["rollbacks"], entry["step"]) <= here
    ]
    if kept:
        write_json_lines(path, kept)
    else:
        path.unlink()


def go_back(state: TrainingState, run_dir: Path) -> dict[str, Any]:
    """Brings a failed run back to its last good save, from where it makes the same updates with other dropout.

    Returns:
        The save's state.json.

    Raises:
        NmtkitError: it has gone back before, or there is no save.
    """
    failed = state.progress
    found = good_save(run_dir) if not failed.rollbacks else None
    if found is None:
        raise NmtkitError(_explanation(failed, run_dir))
    saved = state.load(*found)
    place = state.progress
    place.rollbacks = failed.rollbacks + 1
    place.skipped_updates, place.overflows = failed.skipped_updates, failed.overflows
    place.tokens_per_pass = failed.tokens_per_pass  # what memory has proved too small for stays known
    log.warning(
        "update %d: %s; rolling back, once, to update %d with new dropout", failed.step, _what(failed), place.step
    )
    return saved


def _what(progress: Progress) -> str:
    if progress.loss_scale < MIN_LOSS_SCALE:
        return f"the loss scale of fp16 fell below {MIN_LOSS_SCALE:g}"
    return f"{progress.nonfinite_in_a_row} updates in a row had numbers that are not finite"


def _explanation(progress: Progress, run_dir: Path) -> str:
    before = " again after going back once" if progress.rollbacks else ", and there is no save to go back to"
    lines = Run(run_dir).nonfinite
    seen = f" (their lines: {lines})" if lines.is_file() else ""
    return (
        f"update {progress.step}: {_what(progress)}{seen}{before}; training ends. In another --run-dir, lower "
        "training.peak_learning_rate, set training.gradient_clip_norm, or take training.precision = bf16 or float32 "
        "in place of fp16"
    )
