"""Write the tables of docs/recipes.md from nmtkit/config/schema.py; `--check` only compares them."""

import re
import sys
from pathlib import Path

from pydantic.fields import FieldInfo

from nmtkit.config.schema import SECTIONS

PAGE = Path(__file__).with_name("recipes.md")
TABLES = re.compile(r"(<!-- tables -->\n).*(<!-- end of tables -->)", flags=re.DOTALL)


def assignment(key: str, field: FieldInfo) -> str:
    """A key with its default as TOML, or alone if it has none."""
    if field.is_required() or field.default is None:
        return key
    if isinstance(field.default, bool):
        return f"{key} = {str(field.default).lower()}"
    if isinstance(field.default, tuple):
        entries = (f'"{entry}"' if isinstance(entry, str) else str(entry) for entry in field.default)
        return f"{key} = [{', '.join(entries)}]"
    return f'{key} = "{field.default}"' if isinstance(field.default, str) else f"{key} = {field.default}"


def tables() -> str:
    """The tables of all sections, as Markdown."""
    parts = []
    for name, section in SECTIONS.items():
        parts.append(f"### [{name}]\n\n{' '.join((section.__doc__ or '').split())}\n\n| key | meaning |\n|---|---|")
        for key, field in section.model_fields.items():
            meaning = " ".join((field.description or "").split()).replace("|", "\\|")
            required = " Must be stated." if field.is_required() else ""
            parts.append(f"| `{assignment(key, field)}` | {meaning}{required} |")
        parts.append("")
    return "\n".join(parts) + "\n"


def updated(page: str) -> str:
    """The page with fresh tables."""
    return TABLES.sub(lambda match: match[1] + tables() + match[2], page)


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(old != updated(old))
    PAGE.write_text(updated(old), encoding="utf-8")
