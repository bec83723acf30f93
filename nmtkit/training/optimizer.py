"""The optimiser of a run."""

import torch

from nmtkit.config import TrainingConfig
from nmtkit.model.transformer import Transformer


def new_optimizer(model: Transformer, training: TrainingConfig) -> torch.optim.Adam:
    """Adam over all parameters of a model; the learning rate is set anew at each update. Source: section 5.3."""
    device = next(model.parameters()).device
    return torch.optim.Adam(
        model.parameters(),
        lr=0.0,
        betas=training.adam_betas,
        eps=training.adam_epsilon,
        fused=device.type in ("cpu", "cuda"),
    )
