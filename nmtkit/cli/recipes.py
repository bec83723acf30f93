"""`nmtkit recipes`."""

from typing import Annotated

import typer


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Print this recipe, to copy it into a file.", show_default=False),
    ] = None,
) -> None:
    """List the built-in recipes, or print one of them.

    \b
    Examples:
      nmtkit recipes
      nmtkit recipes multi30k-en-de > mine.toml
    """
    import shutil
    import sys

    from nmtkit.config.recipe import builtin_recipes
    from nmtkit.console import fill
    from nmtkit.errors import RecipeError

    recipes = builtin_recipes()
    if name is None:
        for recipe, path in recipes.items():
            what, needs, reaches = _header(path.read_text(encoding="utf-8"))
            width = shutil.get_terminal_size((160, 24)).columns
            print(fill(f"{recipe}\n  {what}\n  needs:   {needs}\n  reaches: {reaches}\n", width))
        return
    if name not in recipes:
        raise RecipeError(f"no built-in recipe {name!r}; there are {', '.join(recipes)}")
    sys.stdout.write(recipes[name].read_text(encoding="utf-8"))


def _header(text: str) -> list[str]:
    """The description and the "Needs:" and "Reaches:" lines of the comment that a built-in recipe begins with."""
    lines = [line.removeprefix("#").strip() for line in text.split("\n") if line.startswith("#")]
    stated = {
        line.split(":", 1)[0]: line.split(":", 1)[1].strip()
        for line in lines
        if line.startswith(("Needs:", "Reaches:"))
    }
    return [lines[0], stated.get("Needs", ""), stated.get("Reaches", "")]
