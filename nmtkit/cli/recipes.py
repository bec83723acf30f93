"""`nmtkit recipes`."""

import shutil
import sys
from typing import Annotated

from typer import Argument

from nmtkit.config.recipe import builtin_recipes
from nmtkit.console import fill
from nmtkit.errors import RecipeError


def command(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Print this recipe, to copy it into a file.")] = None,
) -> None:
    """List the built-in recipes, or print one of them.

    \b
    Examples:
      nmtkit recipes
      nmtkit recipes multi30k-en-de > mine.toml
    """
    recipes = builtin_recipes()
    if name is not None:
        if name not in recipes:
            raise RecipeError(f"no built-in recipe {name!r}; there are {', '.join(recipes)}")
        sys.stdout.write(recipes[name].read_text(encoding="utf-8"))
        return
    width = shutil.get_terminal_size((160, 24)).columns
    for recipe, path in recipes.items():
        # A built-in recipe begins with a comment: a description, then lines "Needs: ..." and "Reaches: ...".
        text = path.read_text(encoding="utf-8")
        lines = [line.removeprefix("#").strip() for line in text.split("\n") if line.startswith("#")]
        stated = {key: value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
        needs, reaches = stated.get("Needs", ""), stated.get("Reaches", "")
        print(fill(f"{recipe}\n  {lines[0]}\n  needs:   {needs}\n  reaches: {reaches}\n", width))
