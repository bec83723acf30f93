"""Trackers: TensorBoard and Weights & Biases are given every line of metrics.jsonl at its update.

Which ones is an option of the command, not a key of the recipe: the recipe says what decides the result.
"""

import json
from pathlib import Path
from typing import Any

from nmtkit.config.schema import Recipe
from nmtkit.distributed.workers import open_tracker

COLUMNS = ["source", "reference", "hypothesis"]
"""Of sample translations, as metrics.jsonl names them."""


class Tracker:
    """One tracker of one session of training, around one of Accelerate's trackers."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    @classmethod
    def open(cls, name: str, recipe: Recipe, run_dir: Path, first_step: int) -> "Tracker":
        """Starts a tracker and gives it the recipe.

        Args:
            name: tensorboard or wandb.
            first_step: the update that this session begins with; what was logged from there on is made again.

        Raises:
            NmtkitError: its package is missing, or it cannot start.
        """
        return cls(open_tracker(name, run_dir, hyperparameters(recipe), first_step))

    def log(self, line: dict[str, Any]) -> None:
        """Logs a line of metrics.jsonl: its numbers, and its sample translations as text."""
        numbers: dict[str, int | float | str]
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float) and key != "step"}
        samples = line.get("samples") or []
        if samples and self._backend.name == "tensorboard":
            for number, sample in enumerate(samples, start=1):  # indented, as a block that markdown leaves as it is
                numbers[f"samples/{number}"] = "\n".join(f"    {column:<11}{sample[column]}" for column in COLUMNS)
        elif samples and self._backend.name == "wandb":
            rows = [[sample[column] for column in COLUMNS] for sample in samples]
            self._backend.log_table("samples", columns=COLUMNS, data=rows, step=line["step"])
        self._backend.log(numbers, step=line["step"])

    def finish(self) -> None:
        """Ends the session."""
        self._backend.finish()


def hyperparameters(recipe: Recipe) -> dict[str, bool | int | float | str]:
    """The recipe as section/key with plain values; lists as JSON, what is not set left out."""
    flat: dict[str, bool | int | float | str] = {}
    for section, content in recipe.model_dump(mode="json", exclude_none=True).items():
        entries = content.items() if isinstance(content, dict) else [("", content)]
        for key, value in entries:
            name = f"{section}/{key}" if key else section
            flat[name] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return flat
