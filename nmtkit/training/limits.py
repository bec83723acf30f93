"""When training validates, saves and ends: pure functions of where a run is."""

from nmtkit.config.schema import TrainingConfig
from nmtkit.training.loop import Update
from nmtkit.training.state import Progress


def reason_to_stop(progress: Progress, training: TrainingConfig) -> str | None:
    """Which limit of the recipe is reached, if one is."""
    if training.max_steps is not None and progress.step >= training.max_steps:
        return f"max_steps = {training.max_steps}"
    if training.max_epochs is not None and progress.epoch >= training.max_epochs:
        return f"max_epochs = {training.max_epochs}"
    if training.max_minutes is not None and progress.seconds >= training.max_minutes * 60:
        return f"max_minutes = {training.max_minutes:g}"
    if progress.best_cost is None:
        return None
    if training.patience_validations is not None and progress.validations_since_best >= training.patience_validations:
        return f"no better {training.best_metric} for patience_validations = {training.patience_validations}"
    waited = progress.epoch - progress.best_epoch if progress.validations_since_best else 0
    if training.patience_epochs is not None and waited >= training.patience_epochs:
        return f"no better {training.best_metric} for patience_epochs = {training.patience_epochs}"
    return None


def is_due(what: str, training: TrainingConfig, update: Update, progress: Progress) -> bool:
    """Whether a validation ("validate") or a checkpoint is due after an update."""
    steps = getattr(training, f"{what}_every_steps")
    epochs = getattr(training, f"{what}_every_epochs")
    minutes = getattr(training, f"{what}_every_minutes")
    if steps is not None:
        return update.step % steps == 0
    if epochs is not None:
        return update.ends_epoch and progress.epoch % epochs == 0
    last = progress.last_validation_seconds if what == "validate" else progress.last_checkpoint_seconds
    return progress.seconds - last >= minutes * 60


def shares_done(training: TrainingConfig, progress: Progress, pairs_per_epoch: int) -> dict[str, float]:
    """How much of the way to each limit of the recipe is behind, from 0 to 1, by its words, such as "max_steps = 9"."""
    epochs = progress.epoch + progress.pairs_done / max(1, pairs_per_epoch)
    limits = [
        ("max_steps", training.max_steps, progress.step),
        ("max_epochs", training.max_epochs, epochs),
        ("max_minutes", training.max_minutes, progress.seconds / 60),
    ]
    return {f"{name} = {limit:g}": min(1.0, done / limit) for name, limit, done in limits if limit is not None}
