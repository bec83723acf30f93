"""The base of the sections of a recipe, and rules for their values."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, field_validator

from nmtkit.files import as_text

LANGUAGE_CODE = r"^[a-z]{2,3}(_[A-Za-z]+)?$"
ONE_WORD = r"^\S*$"
FILE_NAME = r"^[^/\\.\x00-\x1f][^/\\\x00-\x1f]*$"
VALUE_RULES = {
    LANGUAGE_CODE: 'must be a language code, such as "en" or "zh_Hans"',
    ONE_WORD: "must be one word without blanks",
    FILE_NAME: "must be a name without slashes and control characters that does not begin with a full stop",
}
"""Patterns of values, and the message for a value that does not match."""
MANY = 1_000_000_000
"""Upper bound of numbers that need no smaller one: above any real use, and safe to compute with."""


class Section(BaseModel):
    """A section of a recipe, read-only; unknown keys and infinite numbers are errors."""

    # TOML has inf and nan, with which no setting could be used.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_and_nul(cls, value: Any, info: Any) -> Any:
        """Refuse true and false as numbers, which pydantic would read as 1 and 0, and in text NUL characters and names
        of files that are not UTF-8, as no recipe could be written with them."""
        kind = cls.model_fields[str(info.field_name)].annotation
        is_number = not {int, float}.isdisjoint((kind, *get_args(kind)))
        given = value if isinstance(value, (list, tuple)) else [value]
        if is_number and any(isinstance(entry, bool) for entry in given):
            raise ValueError("must be a number, not true or false")
        texts = [entry for entry in given if isinstance(entry, str)]
        if any("\0" in text for text in texts):
            raise ValueError("holds a NUL character")
        if any(as_text(text) != text for text in texts):
            raise ValueError("is not valid UTF-8; choose another name")
        return value


def default_of(section: type[Section], key: str) -> Any:
    """Return the default of a key."""
    return section.model_fields[key].default
