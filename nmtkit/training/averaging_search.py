"""`average --search`: how many of the last checkpoints make the average that is best on the validation set.

    checkpoints --candidates--> N --mean of the weights, Validator--> RUN/averaging.json, a row for each

Every result is written at once, and a search that was stopped goes on where it was.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from nmtkit.config.schema import ModelConfig, Recipe
from nmtkit.console import counted
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError
from nmtkit.files import any_number, read_json, sha256_of, write_json
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import read_description, read_provenance, step_of
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.training.averaging import check_alike, mean_weights
from nmtkit.training.validation import Validator

Criterion = Literal["bleu", "nll"]
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)


@dataclass(frozen=True)
class Tried:
    """One average and how good it is on the validation set.

    Attributes:
        n: how many checkpoints, the last ones.
        metric: ``sacrebleu`` (of plain text), ``bleu-tokenized`` or ``nll``.
        score: by that metric.
        nll: of a target token, in nats.
        first_step, last_step: the updates of the oldest and the newest checkpoint.
    """

    n: int
    metric: str
    score: float
    nll: float
    first_step: int
    last_step: int

    @property
    def cost(self) -> tuple[float, int]:
        """Smaller is better, and anything than a score that is no number; of equal scores the smaller average is."""
        cost = self.score if self.metric == "nll" else -self.score
        return (cost if math.isfinite(cost) else math.inf, self.n)


@dataclass(frozen=True)
class Search:
    """What was tried so far, and how much there is to try in all."""

    tried: list[Tried]
    total: int

    @property
    def best(self) -> Tried:
        """The average to take."""
        return min(self.tried, key=lambda one: one.cost)


def candidates(num_checkpoints: int) -> list[int]:
    """The numbers of checkpoints to try where there are so many: those of COUNTS, and all of them."""
    return [*(count for count in COUNTS if count < num_checkpoints), num_checkpoints]


_TRIED = {
    "n": int, "metric": str, "score": any_number, "nll": any_number, "first_step": int,
    "last_step": int,
}  # fmt: skip


def read_averaging(path: Path) -> dict[str, Any]:
    """Reads averaging.json: the averages that were tried.

    Raises:
        DataError: it is missing or something else.
    """
    content: dict[str, Any] = read_json(path, {"tried": [_TRIED], "best": _TRIED, "made_from": dict})
    if not content["tried"] or any(row.keys() != _TRIED.keys() for row in content["tried"]):
        raise DataError(f'{path}: the rows of "tried" must have exactly the keys {", ".join(_TRIED)}; remove the file')
    return content


def search(run_dir: Path, criterion: Criterion | None, workers: Workers) -> Iterator[Search]:
    """Tries the averages of a run one after the other, and writes RUN/averaging.json after each.

    Args:
        criterion: ``bleu`` translates the validation set for each average, as `train` does; ``nll`` does not. None: nll
            of trees, else BLEU.

    Yields:
        all that was tried so far, once at the beginning and after each average.

    Raises:
        ModelError: the run has fewer than two whole checkpoints, or they do not belong together.
        DataError: it has no validation set, or BLEU is asked of trees.
    """
    folders = Run(run_dir).whole_checkpoints()
    if len(folders) < 2:
        raise ModelError(
            f"{run_dir}: {counted(len(folders), 'whole checkpoint')}, so there is nothing to "
            "choose from; train with a larger training.keep_last first"
        )
    recipe = Run(run_dir).recipe()
    of_task = task_of(recipe.data).averaging_metric
    if criterion == "bleu" and of_task != "bleu":
        raise DataError(f'{run_dir}: BLEU cannot score text = "{recipe.data.text}"; search with --metric {of_task}')
    criterion = criterion or of_task
    check_alike(folders)
    made_from = _made_from(run_dir, folders, criterion, recipe)
    wanted = candidates(len(folders))
    tried = _known(run_dir, made_from)
    yield Search(tried, len(wanted))
    validator = _validator(recipe, run_dir, criterion, workers)
    description = read_description(folders[-1])
    sizes = description["vocab_sizes"]
    model = Transformer(ModelConfig.model_validate(description["model"]), sizes["source"], sizes["target"])
    model.to(workers.device)
    metric = "nll" if criterion == "nll" else "sacrebleu" if recipe.data.text == "plain" else "bleu-tokenized"
    done = {one.n for one in tried}
    for count in wanted:
        if count in done:
            continue
        chosen = folders[-count:]
        model.load_state_dict(mean_weights(chosen))
        found = validator(model)
        assert found is not None  # nobody asks it to stop
        score = found.nll if criterion == "nll" else math.nan if found.bleu is None else found.bleu
        tried = [*tried, Tried(count, metric, score, found.nll, step_of(chosen[0]), step_of(chosen[-1]))]
        so_far = Search(tried, len(wanted))
        rows = [asdict(one) for one in tried]
        write_json(Run(run_dir).averaging, {"best": asdict(so_far.best), "tried": rows, "made_from": made_from})
        yield so_far


def _made_from(run_dir: Path, folders: list[Path], criterion: Criterion, recipe: Recipe) -> dict[str, Any]:
    """All that decides the results."""
    valid = Run(run_dir).data / "valid"
    return {
        "checkpoints": {folder.name: read_provenance(folder)["files"]["model.safetensors"] for folder in folders},
        "valid": {side: sha256_of(Path(f"{valid}.{side}.txt")) for side in ("source", "reference")},
        "criterion": criterion,
        "decoding": recipe.decoding.model_dump(mode="json"),
    }


def _known(run_dir: Path, made_from: dict[str, Any]) -> list[Tried]:
    """What an earlier search has found already; nothing where anything is another now."""
    path = Run(run_dir).averaging
    if not path.is_file():
        return []
    content = read_averaging(path)
    return [Tried(**row) for row in content["tried"]] if content["made_from"] == made_from else []


def _validator(recipe: Recipe, run_dir: Path, criterion: Criterion, workers: Workers) -> Validator:
    training = recipe.training.model_copy(update={"validate_bleu": criterion == "bleu"})
    asked = recipe.model_copy(update={"training": training})
    return Validator(asked, run_dir, Run(run_dir).tokenizer(), workers)
