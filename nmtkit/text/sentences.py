"""Beginnings of sentences in a line, found by punctuation, capitals and the abbreviations of its language."""

import re
from functools import cache

from nmtkit.text import moses
from nmtkit.text.scripts import scripts_of

_WIDE = "\u3002\uff01\uff1f\uff0e\uff61"
"""Sentence ends of scripts without blanks; the other marks end a sentence only before a blank."""
_MARKS = f".!?\u2026\u203c\u203d\u2047\u2048\u2049\u061f\u06d4\u0964\u0965\u0589\u1362\u104b\u17d4{_WIDE}"
_OPENING = "\u201c\u2018\u300c\u300e\u300a\uff08("
"""Opening quotes and brackets; closing ones belong to the sentence before."""
_BETWEEN = re.compile(
    # Possessive, and only from the first of several marks, so that a line of nothing but marks takes linear time. The
    # pattern begins with a mark, not with the lookbehind, so that `re` finds candidates fast. In French, and in text
    # that is split into words, a blank stands before a closing quote or bracket, too.
    rf"([{_MARKS}](?<![{_MARKS}].)[{_MARKS}]*+)"
    rf"(?:[^\w\s{_MARKS}]*+\s++(?:[\u00bb\u201d)\]]++\s++)?+(?=\S)"
    rf"|(?<=[{_WIDE}])[^\w\s{_MARKS}{_OPENING}]*+(?=[{_OPENING}]*+\w))"
)
_FIRST = re.compile(rf"[^\w\s{_MARKS}]*+\s*+(\w?)")
_UP_TO_LAST_WORD = re.compile(r".*\w", re.DOTALL)
_WORD_BEFORE = re.compile(r"[\w.-]*\Z")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
_LONGEST_ABBREVIATION = 20


def sentence_starts(text: str, language: str = "en") -> list[int]:
    """Return the offsets of the second and later sentences of a line.

    A mark ends no sentence if no word follows, or if a small letter follows in a line with capitals. A period ends none
    after an initial, an acronym such as "U.S." or an abbreviation of the language such as "Dr.", among them ordinal
    numbers in German.
    """
    if scripts_of(language) == ("Greek",):  # its question mark is a semicolon
        text = text.replace(";", "?").replace("\u037e", "?")
    found = []
    up_to_last_word = _UP_TO_LAST_WORD.match(text)
    is_cased = text != text.lower()
    for match in _BETWEEN.finditer(text, 0, up_to_last_word.end() if up_to_last_word else 0):
        first = _FIRST.match(text, match.end())
        assert first is not None  # an empty text matches, too
        # Georgian letters count as small ones, but its sentences begin with no others.
        if is_cased and first[1].islower() and not "\u10d0" <= first[1] <= "\u10ff":
            continue
        # The point of a number in wide digits.
        if match[1] == "\uff0e" and text[match.start() - 1 : match.start()].isdecimal() and first[1].isdecimal():
            continue
        if match[1] == ".":
            # Within a bounded distance, so that a line without blanks takes linear time.
            before = _WORD_BEFORE.search(text, max(0, match.start() - _LONGEST_ABBREVIATION), match.start())
            if before and before[0] and _is_abbreviated(before[0], first[1], language, is_cased=is_cased):
                continue
        found.append(match.end())
    return found


def _is_abbreviated(word: str, first: str, language: str, *, is_cased: bool) -> bool:
    """Return whether a word before a period is an abbreviation; ``first``: first letter or digit of the next word."""
    # A Korean syllable may be a whole sentence.
    is_initial = len(word) == 1 and word.isalpha() and not "\uac00" <= word <= "\ud7a3"
    if (is_initial or _ACRONYM.fullmatch(word)) and (word.isupper() or not is_cased):
        return True
    always, before_number = _abbreviations(language, is_cased)
    return word in always or (word in before_number and first.isdigit())


@cache
def _abbreviations(language: str, is_cased: bool) -> tuple[frozenset[str], frozenset[str]]:
    lists = moses.nonbreaking_prefixes(language)
    return lists if is_cased else (frozenset(map(str.lower, lists[0])), frozenset(map(str.lower, lists[1])))
