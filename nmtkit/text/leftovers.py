"""What preprocessing leaves in a text that should be plain: subword marks, entities, unknown words, markup."""

import re

_KINDS = {
    "subword marks": r"@@(?= |$)|\u2581",
    "entities": r"&(?:amp|lt|gt|quot|apos|nbsp|#\d+|#x[0-9a-fA-F]+);",
    "unknown words": r"<unk>|\u2047",
    "markup": r"</?[A-Za-z][^<>]*>",
}
KINDS = tuple(_KINDS)
_GROUPS = {kind.replace(" ", "_"): kind for kind in _KINDS}
_LEFTOVER = re.compile("|".join(f"(?P<{group}>{_KINDS[kind]})" for group, kind in _GROUPS.items()))


def leftovers(text: str) -> dict[str, str]:
    """What stands in a text that no plain text holds, each with its kind, one of KINDS."""
    return {match[0]: _GROUPS[match.lastgroup or ""] for match in _LEFTOVER.finditer(text)}
