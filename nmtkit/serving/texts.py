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
_MARKUP = re.compile(rf"((?:(?:{_TAG})\s*+)++)", re.DOTALL | re.IGNORECASE)
"""Tags. Possessive, so that a text takes a scan for each of its tags at most."""
_BLANKS = re.compile(
    r"((?:\s|&nbsp;?|&(?:ensp|emsp|thinsp|#32|#160|#8194|#8195|#8201|#8239|#x20|#xa0|#x200[239]|#x202f);)++)",
    re.IGNORECASE,
)
_TAGS = re.compile(_TAG, re.DOTALL | re.IGNORECASE)
_PRE = re.compile(r"<(/?)pre(?=[\s/>])", re.IGNORECASE)
_NEAR = 32
"""Characters within which a subword follows the one before it."""


class RequestText:
    """A text; ``lines``: what to translate, in html the text between tags, each with a beginning of its translation."""

    def __init__(self, text: str, prefix: str, *, is_html: bool) -> None:
        """Cut a text; raise RequestError if the prefix has more lines."""
        parts = _cut_html(text) if is_html else _LINE_ENDS.split(text)
        shown, self._between, self._is_html = parts[::2], ["", *parts[1::2], ""], is_html
        if is_html:
            for index, part in enumerate(shown):  # the blanks around a text stay as they are
                pieces = _BLANKS.split(part)
                begin = "".join(pieces[:2]) if not pieces[0] else ""
                end = "".join(pieces[-2:]) if not pieces[-1] and len(begin) < len(part) else ""
                shown[index] = " ".join(html.unescape(part[len(begin) : len(part) - len(end)]).split())
                self._between[index] += begin if shown[index] else part
                self._between[index + 1] = (end if shown[index] else "") + self._between[index + 1]
        self.lines = [*zip_longest(shown, _LINE_ENDS.split(prefix)[::2], fillvalue="")]
        if len(self.lines) > len(shown):
            raise RequestError(400, "prefix: it has more lines than the text")

    def answer(self, translations: Sequence[Sequence[Translation]], mark: str = "") -> dict[str, Any]:
        """Return the fields of the answer from the translations of each line, best first; ``mark`` as in `spans`."""
        joined = []
        for rank in range(max(map(len, translations))):  # the n-th best of a text joins the n-th best of its lines
            of_rank = [of_line[min(rank, len(of_line) - 1)].text for of_line in translations]
            # Between tags, quotes need no escape.
            shown = [html.escape(text, quote=False) for text in of_rank] if self._is_html else of_rank
            joined.append("".join(chain(self._between[:1], *zip(shown, self._between[1:], strict=True))))
        alignment, offsets = [], (0, 0)
        for (line, _), (best, *_), end in zip(self.lines, translations, self._between[1:], strict=True):
            read = zip_longest(best.source_pieces or (), best.source_is_context)
            sources = spans(line, ["" if is_context else piece for piece, is_context in read], offsets[0])
            targets = spans(best.text, best.pieces, offsets[1], mark)
            pairs = [(sources[index], target) for index, target in zip(best.alignment or (), targets, strict=False)]
            alignment += [[*source, *target] for source, target in pairs if source and target]
            offsets = (offsets[0] + len(line) + len(end), offsets[1] + len(best.text) + len(end))
        return {"translatedText": joined[0], "alternatives": list(dict.fromkeys(joined))[1:], "alignment": alignment}


def _cut_html(text: str) -> list[str]:
    """Return texts and what is between them, in turn: tags, and within <pre> line ends."""
    cut, is_pre = list[str](), False
    for index, part in enumerate(_MARKUP.split(text)):
        cut += _LINE_ENDS.split(part) if is_pre and index % 2 == 0 else [part]
        for tag in map(_PRE.match, _TAGS.findall(part)) if index % 2 else ():
            is_pre = is_pre if tag is None else not tag[1]
    return cut


def spans(text: str, pieces: Sequence[str], offset: int = 0, mark: str = "") -> list[tuple[int, int] | None]:
    """Return start and end of each subword in a text, plus ``offset``; None for one that is not there.

    Args:
        mark: see `Tokenizer.segment_mark`.
    """
    lowered, position, found = text.lower(), 0, list[tuple[int, int] | None]()  # a model may use lower case only
    for piece in pieces:
        shown = piece.replace("\u2581", "").removesuffix(mark).lower()
        start = lowered.find(shown, position, position + len(shown) + _NEAR) if shown else -1
        position = position if start < 0 else start + len(shown)
        is_there = start >= 0 and len(lowered) == len(text)
        found.append((start + offset, position + offset) if is_there else None)
    return found
