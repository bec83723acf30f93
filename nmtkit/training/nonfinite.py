"""Numbers that are not finite: skipped updates, the loss scale of fp16, and rolling back a failed training.

Whether an update is skipped is decided on the device (`optimizer.step_if`). What is here runs afterwards, on numbers
that are read after every update anyway and that are the same in every process.

    an update    loss and gradient finite                          made
                 fp16: loss finite, gradient not                   skipped as "overflow"; the loss scale is halved
                 else                                              skipped as "nonfinite"
    failed       MAX_NONFINITE_IN_A_ROW skipped as "nonfinite", or the loss scale below MIN_LOSS_SCALE
                 once: back to the last good resume state, with other dropout; a second time: training ends
"""

import math
from typing import Any

from nmtkit.console import log
from nmtkit.errors import NmtkitError
from nmtkit.json_toml import append_json_line, read_json_lines, write_json_lines
from nmtkit.run import Run
from nmtkit.training.state import Progress, TrainingState, whole_states

MAX_NONFINITE_IN_A_ROW = 5
MIN_LOSS_SCALE = 1.0
"""Smallest loss scale of fp16: below it, gradients overflow that float16 holds without scaling."""
MAX_LOSS_SCALE = 2.0**24
SCALE_GROWTH_UPDATES = 2000
"""Updates without overflow after which the loss scale is doubled, as by torch's GradScaler.

Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2.
"""


def reason_to_skip(loss: float, gradient_norm: float, precision: str) -> str:
    """Return why an update was skipped: "nonfinite" or "overflow"; "" if it was made."""
    if math.isfinite(loss) and math.isfinite(gradient_norm):
        return ""
    return "overflow" if precision == "fp16" and math.isfinite(loss) else "nonfinite"


def count_skipped(progress: Progress, skipped: str, precision: str) -> None:
    """Count an update that was made or skipped, and set the loss scale of the next one."""
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
    return progress.nonfinite_in_a_row >= MAX_NONFINITE_IN_A_ROW or progress.loss_scale < MIN_LOSS_SCALE


def record_nonfinite(run: Run, progress: Progress, *, loss: float, gradient_norm: float, lines: list[int]) -> None:
    """Append the update just skipped to RUN/nonfinite.jsonl, and warn.

    Args:
        lines: line numbers of its sentence pairs, from 1 through all corpora.
    """
    what = "gradient" if math.isfinite(loss) else "loss"
    log.warning(
        "update %d: the %s is not finite; the update is skipped; %s lists its lines", progress.step, what, run.nonfinite
    )
    # JSON has no infinity.
    numbers = {"loss": loss, "gradient_norm": gradient_norm}
    entry = {
        "step": progress.step,
        "epoch": progress.epoch,
        "rollbacks": progress.rollbacks,
        **{key: value if math.isfinite(value) else str(value) for key, value in numbers.items()},
        "lines": lines,
    }
    append_json_line(run.nonfinite, entry)


def forget_later_nonfinite(run: Run, progress: Progress) -> None:
    """Remove the entries of updates that are repeated, but not those from before the run was rolled back."""
    if not run.nonfinite.is_file():
        return
    entries = read_json_lines(run.nonfinite, {"rollbacks": int, "step": int})
    # Updates after the resume state that were rolled back have fewer rollbacks, so they stay.
    here = (progress.rollbacks, progress.step)
    kept = [entry for entry in entries if (entry["rollbacks"], entry["step"]) <= here]
    if kept:
        write_json_lines(run.nonfinite, kept)
    else:
        run.nonfinite.unlink()


def roll_back(state: TrainingState, run: Run) -> dict[str, Any]:
    """Restore the last good resume state of a failed run, from which it repeats the updates with other dropout.

    Returns:
        Its state.json.

    Raises:
        NmtkitError: there is no such state, or none since the last rollback.
    """
    failed = state.progress
    if failed.loss_scale < MIN_LOSS_SCALE:
        reason = f"the loss scale of fp16 fell below {MIN_LOSS_SCALE:g}"
    else:
        reason = f"{failed.nonfinite_in_a_row} updates in a row had numbers that are not finite"
    found = whole_states(run, 1, only_good=True)
    # Each rollback needs a state saved since the last one, so a failure that always comes back ends the training.
    if not found or found[0][1]["progress"]["rollbacks"] < failed.rollbacks:
        seen = f" (their lines: {run.nonfinite})" if run.nonfinite.is_file() else ""
        before = " again after a rollback" if failed.rollbacks else ", and there is no resume state to go back to"
        advice = "lower training.peak_learning_rate, or set training.gradient_clip_norm"
        if state.training.precision == "fp16":
            advice += ", or take training.precision = bf16 or float32"
        if run.checkpoints():
            advice += "; training.init can name the last checkpoint of this run"
        raise NmtkitError(
            f"update {failed.step}: {reason}{seen}{before}; training ends. In another --run-dir, {advice}"
        )
    folder, saved = found[0]
    state.load(folder, saved)
    state.progress.rollbacks = failed.rollbacks + 1
    # Counts of what has happened in the whole run, in updates that are repeated, too.
    state.progress.skipped_updates, state.progress.overflows = failed.skipped_updates, failed.overflows
    state.progress.tokens_per_pass = failed.tokens_per_pass  # a limit that memory has lowered stays
    log.warning("update %d: %s; rolling back to update %d with new dropout", failed.step, reason, state.progress.step)
    return saved
