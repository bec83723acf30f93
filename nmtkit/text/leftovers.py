"""Leftovers of preprocessing in a text that should be plain: subword marks, entities, unknown words, markup, blanks."""

import re
from collections.abc import Sequence

_KINDS = {
    "subword marks": r"@@(?= |$)|\u2581",
    "entities": r"&(?:amp|lt|gt|quot|apos|nbsp|#\d+|#x[0-9a-fA-F]+);",
    "unknown words": r"<unk>|\u2047",
    "markup": r"</?[A-Za-z][^<>]*>",
}
KINDS = tuple(_KINDS)
SPACED_PUNCTUATION = re.compile(r"(?:^| )[.,](?= |$)")
"""Full stop or comma as a word of its own. Others, such as "!", stand after a blank in plain French."""
TOKENIZED_SHARE = 0.1
"""Share of the lines above which a text is taken to be tokenised (or, where it should be, not to be)."""
_LEFTOVER = re.compile("|".join(f"({pattern})" for pattern in _KINDS.values()))


def leftovers(text: str) -> dict[str, str]:
    """Return the leftovers in a text, each with its kind (one of KINDS)."""
    return {match[0]: KINDS[(match.lastindex or 0) - 1] for match in _LEFTOVER.finditer(text)}


def is_tokenized(lines: Sequence[str]) -> bool:
    """Return whether punctuation is split off, as tokenisers do, in more lines than can be by chance."""
    return sum(SPACED_PUNCTUATION.search(line) is not None for line in lines) > TOKENIZED_SHARE * len(lines)
