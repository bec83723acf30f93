"""Write docs/recipe-keys.toml from the modules of nmtkit/config; `--check` only compares it."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nmtkit.config.schema import SECTIONS

PAGE = Path(__file__).with_name("recipe-keys.toml")
HEAD = """\
# Every key of a recipe, with its default. Commented-out keys have no fixed default. docs/recipes.md explains recipes.
# Written by docs/make_recipe_tables.py from the modules of nmtkit/config.
"""


def comment(text: str) -> str:
    """The text as lines of a comment."""
    text = " ".join(text.split())
    return textwrap.fill(text, 120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def as_toml(value: Any) -> str:
    """A default as TOML."""
    if isinstance(value, tuple):
        return "[" + ", ".join(as_toml(entry) for entry in value) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


def keys_of(name: str, section: type[BaseModel]) -> str:
    """A section with all its keys."""
    parts = [f"\n[{name}]\n{comment(section.__doc__ or '')}\n"]
    for key, field in section.model_fields.items():
        parts.append(comment(field.description or ""))
        has_none = field.is_required() or field.default is None
        parts.append(f"# {key} =\n" if has_none else f"{key} = {as_toml(field.default)}\n")
    return "\n".join(parts)


def page() -> str:
    """The whole file."""
    return HEAD + "".join(keys_of(name, section) for name, section in SECTIONS.items())


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
