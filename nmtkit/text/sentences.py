"""Beginnings of sentences in a line, found by punctuation only: an abbreviation such as "Dr." also ends a sentence."""

import re

_WIDE = "\u3002\uff01\uff1f\uff0e\uff61"
"""Sentence ends of scripts without blanks; the other marks end a sentence only before a blank."""
_MARKS = f".!?\u2026\u203c\u203d\u2047\u2048\u2049\u061f\u06d4\u0964\u0965\u0589\u1362\u104b\u17d4{_WIDE}"
_OPENING = "\u201c\u2018\u300c\u300e\u300a\uff08("
"""Opening quotes and brackets; closing ones belong to the sentence before."""
_BETWEEN = re.compile(
    # Possessive, and only from the first of several marks, so that a line of nothing but marks takes linear time.
    rf"(?<![{_MARKS}])[{_MARKS}]++"
    rf"(?:[^\w\s{_MARKS}]*+\s++(?=\S)|(?<=[{_WIDE}])[^\w\s{_MARKS}{_OPENING}]*+(?=[{_OPENING}]*+\w))"
)


def sentence_starts(text: str) -> list[int]:
    """Return the offsets of the second and later sentences of a line."""
    return [match.end() for match in _BETWEEN.finditer(text)]
