"""The rows of a sweep: read them from TOML, choose some, and turn them into recipes.

    recipe ------------------+
    rows file -> Sweep ------+-> plan -> one PlannedRun for each row and seed
    --rows, --seeds, --scale +

``table3.toml`` shows the format of a rows file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nmtkit.config.recipe import changed_recipe
from nmtkit.config.schema import Recipe
from nmtkit.console import log
from nmtkit.errors import RecipeError
from nmtkit.json_toml import read_toml

TABLE3 = Path(__file__).with_name("table3.toml")
DERIVED = "d_model / num_heads"
"""Value of d_k or d_v in a row that stands for this quotient."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedNumbers(_Table):
    """Published results of a row; parameters in millions."""

    perplexity: float | None = None
    bleu: float | None = None
    parameters: float | None = None


class Changes(_Table):
    """Values of recipe keys, in the sections that do not affect the prepared data."""

    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    decoding: dict[str, Any] = {}


class Row(Changes):
    """A variation on the base model."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")
    group: str = ""
    paper: PublishedNumbers = PublishedNumbers()


class Finding(_Table):
    """A claim that row ``better`` has a better metric than row ``other``, or, with ``within``, about the same."""

    text: str
    metric: Literal["bleu", "perplexity"]
    better: str
    other: str
    within: float | None = None


class Sweep(_Table):
    """A file of rows."""

    title: str
    base: Changes | None = None
    rows: tuple[Row, ...] = Field(min_length=1)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class PlannedRun:
    """A row with a seed; its recipe has the name of the run."""

    row: Row
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        """Name of the folder of the run."""
        return self.recipe.name


def read_sweep(path: Path) -> Sweep:
    """Read a file of rows; raise RecipeError if it cannot be read or is invalid."""
    try:
        sweep = Sweep.model_validate(read_toml(path, RecipeError)[0])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Rows and findings are counted from 1.
        key = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
        fault = first["msg"]
        if first["type"] == "extra_forbidden":
            tables = dict[str, type[_Table]](rows=Row, findings=Finding, base=Changes, paper=PublishedNumbers)
            table = next((tables[part] for part in reversed(key.split(".")[:-1]) if part in tables), Sweep)
            fault = f"unknown key; there are {', '.join(table.model_fields)}"
        if first["type"] == "string_pattern_mismatch":  # of a row name, which becomes part of a folder name
            fault = 'letters, figures, ".", "+", "-" and "_" only, and a letter or figure first'
        raise RecipeError(f"{path}: {key}: {fault}; docs/ablation.md shows the format") from None
    names = [row.name for row in sweep.rows]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"{path}: two rows are named {name!r}")
    for name in (name for finding in sweep.findings for name in (finding.better, finding.other)):
        if name not in names:
            raise RecipeError(f"{path}: a finding names the row {name!r}, which does not exist")
    return sweep


def choose_rows(sweep: Sweep, names: Sequence[str]) -> list[Row]:
    """Return the rows with the given names or groups, in the order of the file; all rows if none is given.

    Raises:
        RecipeError: a name is unknown.
    """
    known = {name for row in sweep.rows for name in (row.name, row.group)} - {""}
    for name in names:
        if name not in known:
            raise RecipeError(
                f"--rows: there is no row or group {name!r}; the rows and groups are {', '.join(sorted(known))}"
            )
    return [row for row in sweep.rows if not names or row.name in names or row.group in names]


def plan(recipe: Recipe, sweep: Sweep, rows: Sequence[Row], *, seeds: int, scale: bool) -> list[PlannedRun]:
    """Return the runs of a sweep: all rows with the first seed, then all rows with the second, and so on.

    Args:
        seeds: number of seeds, beginning with the seed of the recipe.
        scale: multiply the sizes of the recipe by the ratios between the row and the base of the sweep.

    Raises:
        RecipeError: a row does not fit the recipe.
    """
    if not recipe.data.valid:
        raise RecipeError(f"{recipe.name}: rows are compared on the validation set; state [data] valid")
    if recipe.data.has_trees:
        raise RecipeError(f"{recipe.name}: rows are compared by BLEU, which cannot be computed for trees")
    if recipe.data.head != "none":
        raise RecipeError(f"{recipe.name}: rows are compared by BLEU and perplexity, which the task does not have")
    for row in rows:
        if "seed" in row.training:
            raise RecipeError(f"row {row.name}: rows cannot set training.seed; use --seeds")
    if scale and sweep.base is None:
        raise RecipeError("--scale: this file of rows has no [base], so its values are taken as they are")
    for section, values in sweep.base or ():
        for key, value in values.items():
            if key not in type(getattr(recipe, section)).model_fields:
                raise RecipeError(f"[base] of the rows: unknown key {section}.{key}; correct or remove it")
            if (ours := _size(recipe, section, key)) != value and not scale:
                raise RecipeError(
                    f"{recipe.name}: the rows are made for {section}.{key} = {value}, but the recipe has {ours}; use "
                    "--scale to keep the ratios of each row"
                )
    planned = []
    for number in range(seeds):
        for row in rows:
            changes = _changes(row, sweep.base if scale else None, recipe)
            seed = recipe.training.seed + number
            changes["training"]["seed"] = seed
            varied = changed_recipe(recipe, changes, origin=f"row {row.name}")
            planned.append(PlannedRun(row, seed, varied.model_copy(update={"name": f"{row.name}-seed{seed}"})))
    seen: dict[str, str] = {}
    for run in planned[: len(rows)]:  # with a small base, rounding can make rows equal
        content = run.recipe.model_dump_json(exclude={"name"})
        if content in seen:
            log.warning("the rows %s and %s are the same with this recipe", seen[content], run.row.name)
        seen.setdefault(content, run.row.name)
    return planned


def _changes(row: Row, base: Changes | None, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return the values of a recipe that a row changes, scaled if there is a base."""
    changes = {section: dict(getattr(row, section)) for section in ("model", "training", "decoding")}
    for section, values in changes.items():
        base_values = getattr(base, section) if base is not None else {}
        for key in values.keys() & base_values.keys():
            ours = _size(recipe, section, key)
            if ours is None:  # such as max_steps if the recipe has max_epochs
                del values[key]
            # Not isinstance, as True and False are instances of int.
            elif all(type(value) is int for value in (values[key], base_values[key], ours)):
                # Sizes are scaled, but not rates, names or switches.
                if base_values[key] == 0:
                    raise RecipeError(f"row {row.name}: {section}.{key} cannot be scaled, because [base] has 0")
                values[key] = max(1, round(Fraction(values[key] * ours, base_values[key])))
    model = changes["model"]
    width, heads = (model.get(key, getattr(recipe.model, key)) for key in ("d_model", "num_heads"))
    for key in ("d_k", "d_v"):
        if model.get(key) == DERIVED:
            if not all(type(size) is int and size > 0 for size in (width, heads)) or width % heads:
                raise RecipeError(f"row {row.name}: d_model = {width!r} is not a multiple of num_heads = {heads!r}")
            model[key] = width // heads
    return changes


def _size(recipe: Recipe, section: str, key: str) -> Any:
    """Return a value of a recipe; for d_k and d_v, the width in effect."""
    widths = {"d_k": recipe.model.key_width, "d_v": recipe.model.value_width}
    return widths[key] if key in widths else getattr(getattr(recipe, section), key)
