"""A text of a request: cut into lines to translate, and joined again from their translations."""

import html
import re
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from nmtkit.decoding.engine import Translation
from nmtkit.serving.http import RequestError
from nmtkit.serving.translation_queue import Line

_LINE_ENDS = re.compile("(\r\n|\r|\n)")
_TAG = r"""<!--.*?(?:-->|\Z)|<(?:script|style)\b.*?(?:</(?:script|style)\s*>|\Z)|<(?:"[^"]*"|'[^']*'|[^"'<>])*+>"""
_MARKUP = re.compile(rf"((?<!\s)\s*+(?:(?:{_TAG})\s*+)++|(?<!\s)\s++\Z|\A\s++)", re.DOTALL | re.IGNORECASE)
"""Tags with the blanks around them. Possessive, so that a text takes a scan for each of its tags at most."""
_MAX_FORCED_CHARACTERS = 1000
"""Of prefix and terms for a line, whose tokens the search adds to the maximum length of the translation."""
_NEAR = 32
"""Characters within which a subword follows the one before it."""


class Text:
    """A text with its options; ``lines``: what to translate, in html the texts between tags."""

    def __init__(self, text: str, prefix: str, glossary: Mapping[str, str], *, is_html: bool) -> None:
        """Cut a text; raise RequestError if the prefix has more lines, or a line is forced to have too much."""
        parts = (_MARKUP if is_html else _LINE_ENDS).split(text)
        self._between, self._is_html = [*parts[1::2], ""], is_html
        shown = [" ".join(html.unescape(part).split()) for part in parts[::2]] if is_html else parts[::2]
        begun = zip_longest(shown, _LINE_ENDS.split(prefix)[::2], fillvalue="")
        self.lines = [Line(line, beginning, required_phrases(line, glossary)) for line, beginning in begun]
        forced = max(len(line.prefix) + sum(map(len, line.required)) for line in self.lines)
        if len(self.lines) > len(shown) or forced > _MAX_FORCED_CHARACTERS:
            limit = f"{_MAX_FORCED_CHARACTERS:,} characters of prefix and terms for a line"
            raise RequestError(400, f"prefix: more lines than the text, or more than {limit}")

    def answer(self, translations: Sequence[Sequence[Translation]]) -> dict[str, Any]:
        """Return the fields of the answer from the translations of each line, best first."""
        joined = []
        for rank in range(max(map(len, translations))):  # the n-th best of a text joins the n-th best of its lines
            of_rank = [of_line[min(rank, len(of_line) - 1)].text for of_line in translations]
            shown = [html.escape(text, quote=False) for text in of_rank] if self._is_html else of_rank
            joined.append("".join(chain(*zip(shown, self._between, strict=True))))
        alignment, offsets = [], (0, 0)
        for line, (best, *_), end in zip(self.lines, translations, self._between, strict=True):
            sources = spans(line.text, best.source_pieces or (), offsets[0])
            targets = spans(best.text, best.pieces, offsets[1])
            pairs = [(sources[index], target) for index, target in zip(best.alignment or (), targets, strict=False)]
            alignment += [[*source, *target] for source, target in pairs if source and target]
            offsets = (offsets[0] + len(line.text) + len(end), offsets[1] + len(best.text) + len(end))
        return {"translatedText": joined[0], "alternatives": list(dict.fromkeys(joined))[1:], "alignment": alignment}


def required_phrases(line: str, glossary: Mapping[str, str]) -> tuple[str, ...]:
    """Return the required translations of the terms that occur as words of a line; of overlapping ones, the longest."""
    terms = "|".join(re.escape(term) for term in sorted(glossary, key=len, reverse=True))
    occurring = re.findall(rf"(?<!\w)(?:{terms})(?!\w)", line) if terms else []
    return tuple(dict.fromkeys(glossary[term] for term in occurring))


def spans(text: str, pieces: Sequence[str], offset: int = 0) -> list[tuple[int, int] | None]:
    """Return start and end of each subword in a text, plus ``offset``; None for one that is not there."""
    lowered, position, found = text.lower(), 0, list[tuple[int, int] | None]()  # a model may use lower case only
    for piece in pieces:
        shown = piece.replace("\u2581", "").lower()
        start = lowered.find(shown, position, position + len(shown) + _NEAR) if shown else -1
        position = position if start < 0 else start + len(shown)
        is_there = start >= 0 and len(lowered) == len(text)
        found.append((start + offset, position + offset) if is_there else None)
    return found
