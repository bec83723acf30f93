"""A text of a request: cut into lines to translate, and joined again from their translations."""

import html
import re
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

from nmtkit.decoding.request import Translation
from nmtkit.serving.http import RequestError

_LINE_ENDS = re.compile("(\r?\n)")
_TAG = (
    r"<!--.*?(?:-->|\Z)|<(?:script|style)\b.*?(?:</(?:script|style)\s*>|\Z)"
    r"""|<(?=[a-z/!?])(?:"[^"]*"|'[^']*'|[^"'<>])*+>"""
)
_MARKUP = re.compile(rf"((?<!\s)\s*+(?:(?:{_TAG})\s*+)++|(?<!\s)\s++\Z|\A\s++)", re.DOTALL | re.IGNORECASE)
"""Tags with the blanks around them. Possessive, so that a text takes a scan for each of its tags at most."""
_NEAR = 32
"""Characters within which a subword follows the one before it."""


class RequestText:
    """A text; ``lines``: what to translate, in html the text between tags, each with a beginning of its translation."""

    def __init__(self, text: str, prefix: str, *, is_html: bool) -> None:
        """Cut a text; raise RequestError if the prefix has more lines."""
        parts = (_MARKUP if is_html else _LINE_ENDS).split(text)
        shown = [" ".join(html.unescape(part).split()) for part in parts[::2]] if is_html else parts[::2]
        self._parts, self._between, self._is_html = parts[::2], [*parts[1::2], ""], is_html
        self.lines = [*zip_longest(shown, _LINE_ENDS.split(prefix)[::2], fillvalue="")]
        if len(self.lines) > len(shown):
            raise RequestError(400, "prefix: it has more lines than the text")

    def answer(self, translations: Sequence[Sequence[Translation]], mark: str = "") -> dict[str, Any]:
        """Return the fields of the answer from the translations of each line, best first; ``mark`` as in `spans`."""
        joined = []
        for rank in range(max(map(len, translations))):  # the n-th best of a text joins the n-th best of its lines
            of_rank = [of_line[min(rank, len(of_line) - 1)].text for of_line in translations]
            # Between tags, quotes need no escape; blanks that are not translated, such as &nbsp;, stay as they are.
            escaped = zip([html.escape(text, quote=False) for text in of_rank], self._parts, self.lines, strict=True)
            shown = [text if line[0] else part for text, part, line in escaped] if self._is_html else of_rank
            joined.append("".join(chain(*zip(shown, self._between, strict=True))))
        alignment, offsets = [], (0, 0)
        for (line, _), (best, *_), end in zip(self.lines, translations, self._between, strict=True):
            read = zip_longest(best.source_pieces or (), best.source_is_context)
            sources = spans(line, ["" if is_context else piece for piece, is_context in read], offsets[0])
            targets = spans(best.text, best.pieces, offsets[1], mark)
            pairs = [(sources[index], target) for index, target in zip(best.alignment or (), targets, strict=False)]
            alignment += [[*source, *target] for source, target in pairs if source and target]
            offsets = (offsets[0] + len(line) + len(end), offsets[1] + len(best.text) + len(end))
        return {"translatedText": joined[0], "alternatives": list(dict.fromkeys(joined))[1:], "alignment": alignment}


def spans(text: str, pieces: Sequence[str], offset: int = 0, mark: str = "") -> list[tuple[int, int] | None]:
    """Return start and end of each subword in a text, plus ``offset``; None for one that is not there.

    Args:
        mark: end of subwords that a translation joins with the next one, without it.
    """
    lowered, position, found = text.lower(), 0, list[tuple[int, int] | None]()  # a model may use lower case only
    for piece in pieces:
        shown = piece.replace("\u2581", "").removesuffix(mark).lower()
        start = lowered.find(shown, position, position + len(shown) + _NEAR) if shown else -1
        position = position if start < 0 else start + len(shown)
        is_there = start >= 0 and len(lowered) == len(text)
        found.append((start + offset, position + offset) if is_there else None)
    return found
