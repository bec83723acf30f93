"""Leftovers of preprocessing in a text that should be plain: subword marks, entities, unknown words, markup."""

import re

_KINDS = {
    "subword marks": r"@@(?= |$)|\u2581",
    "entities": r"&(?:amp|lt|gt|quot|apos|nbsp|#\d+|#x[0-9a-fA-F]+);",
    "unknown words": r"<unk>|\u2047",
    "markup": r"</?[A-Za-z][^<>]*>",
}
KINDS = tuple(_KINDS)
_LEFTOVER = re.compile("|".join(f"({pattern})" for pattern in _KINDS.values()))


def leftovers(text: str) -> dict[str, str]:
    """Return the leftovers in a text, each with its kind (one of KINDS)."""
    return {match[0]: KINDS[(match.lastindex or 0) - 1] for match in _LEFTOVER.finditer(text)}
