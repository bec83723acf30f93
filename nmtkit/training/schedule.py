"""The learning rate as a function of the update, counted from 1."""

import math

from nmtkit.config.schema import TrainingConfig


def learning_rate(step: int, training: TrainingConfig, d_model: int) -> float:
    """The learning rate of update ``step``, the first being 1.

    noam: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5). Source: equation 3.
    The others rise linearly to peak_learning_rate at warmup_steps; then inverse-sqrt falls with step^-0.5, cosine falls
    to 0 at max_steps, constant stays.
    """
    warmup = training.warmup_steps
    if training.schedule == "noam":
        return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = training.peak_learning_rate
    if step < warmup:
        return peak * step / warmup
    if training.schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    if training.schedule == "cosine":
        assert training.max_steps is not None
        done = (step - warmup) / max(1, training.max_steps - warmup)
        return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return peak
