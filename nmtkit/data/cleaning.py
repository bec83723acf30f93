"""What can be wrong with a training pair, and what is done about it: the rules of [cleaning], as pure functions.

`prepare` asks `PairExaminer` for every pair which rules it breaks, and `repaired` for its text where a rule says "fix".
What only shows over many pairs (equal ones, sides of unequal length) is found in ``data/``; what only shows after
subwords are cut is decided by `rules_against_lengths`.
"""

import html
import html.entities
import re
import sys
from collections.abc import Collection

from nmtkit.config.schema import CleaningConfig, DataConfig
from nmtkit.text.normalization import normalize, without_moses
from nmtkit.text.scripts import Script

RULES = (
    "line_count",
    "invalid_utf8",
    "line_separator",
    "bom",
    "control_character",
    "one_sided_blank",
    "both_blank",
    "html_entity",
    "markup",
    "too_long",
    "length_ratio",
    "source_equals_target",
    "duplicate_pair",
    "duplicate_source",
    "wrong_script",
    "swapped_sides",
    "overlap_valid",
    "overlap_test",
)
"""Everything that is looked for, each a key of [cleaning] that says what is done about it."""

BLANK_RULES = frozenset({"one_sided_blank", "both_blank"})
"""What concerns pairs of which nothing can be compared."""

HELD_OUT_COPY = "held_out_copy"
"""Why a pair is left out that is no fault of it: a side equals that of a pair held out for validation."""

MEANINGS = {
    "line_count": "lines of one side without a counterpart",
    "invalid_utf8": "bytes that are not UTF-8",
    "line_separator": "U+2028, U+2029, U+0085, VT, FF or CR inside a line",
    "bom": "byte-order marks (U+FEFF)",
    "control_character": "control characters",
    "one_sided_blank": "one side is blank",
    "both_blank": "both sides are blank",
    "html_entity": "HTML entities, such as &amp;",
    "markup": "tags, such as <b>",
    "too_long": "longer than max_characters or max_tokens",
    "length_ratio": "one side much longer than the other",
    "source_equals_target": "both sides are the same",
    "duplicate_pair": "copies of a pair before",
    "duplicate_source": "the source of a pair before",
    "wrong_script": "not in the writing system of its language",
    "swapped_sides": "source and target are exchanged",
    "overlap_valid": "also in a validation set",
    "overlap_test": "also in a test set",
}
"""What a pair has that a rule concerns, in words."""

REPORTED_RATIO = 9.0
"""Without max_ratio, pairs are reported of which one side has more than that many times the characters of the other.
Source: clean-corpus-n.perl of Moses, whose default ratio it is."""

_LONGEST_EXPANSION = 18
"""Most characters that a step of data.normalize other than blanks makes of one (NFKC of U+FDFA)."""

_SURROGATE = re.compile("[\ud800-\udfff]")
"""What invalid bytes are read as (`surrogateescape`); valid UTF-8 never holds them."""
_SEPARATOR = re.compile("[\v\f\r\u0085\u2028\u2029]")
_CONTROL = re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_BOM = "\ufeff"
_ODD = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
"""All of the above at once."""
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_TAG = re.compile(
    r"</?(?P<name>[A-Za-z][A-Za-z0-9:_-]*)(?:\s[^<>]*)?/?>"  # <b>, </b>, <br/>, <a href="x">
    r"|<!--(?:(?!<!--).)*?-->|<!\[CDATA\[|\]\]>|<!(?:DOCTYPE|doctype)\b[^<>]*>|<\?[A-Za-z][^<>]*\?>"
)
_BREAKING_TAG = re.compile(r"(?i:br|p|div|li|ul|ol|td|th|tr|table|hr|h[1-6]|title|seg)")
"""Tags between which words do not run together: a blank takes their place."""


class PairExaminer:
    """Says which rules a pair of lines, as they were read, breaks.

    Made for every line of large corpora: what a pair rarely has is looked for only where something cheap hints at it.
    """

    def __init__(self, data: DataConfig, cleaning: CleaningConfig, max_ratio: float) -> None:
        """Args:
        max_ratio: most characters of the longer side for each of the shorter; infinite: the rule is left aside.
        """
        self._normalize = without_moses(data.normalize)
        self._max_tokens = cleaning.max_tokens
        self._max_characters = cleaning.max_characters
        # A line of so few characters is over neither limit; of n words it has at least 2 n - 1.
        expansion = 1 if set(self._normalize) <= {"blanks"} else _LONGEST_EXPANSION
        by_characters = cleaning.max_characters or sys.maxsize
        by_words = 2 * cleaning.max_tokens or sys.maxsize
        self._surely_short = min(by_characters, by_words) // expansion
        self._max_ratio = max_ratio
        self._scripts = Script(data.source_language), Script(data.target_language)
        self._may_be_swapped = not set(self._scripts[0].names) & set(self._scripts[1].names)

    def broken_rules(self, source: str, target: str) -> list[str]:
        """The rules that concern the pair, in the order of RULES."""
        rules: list[str] = []
        # Separators, controls, U+FEFF, surrogates and no-break spaces are what is not printable.
        if not (source.isprintable() and target.isprintable()):
            rules += _odd_characters(source, target)
        if not source or not target or source.isspace() or target.isspace():
            both = (not source or source.isspace()) and (not target or target.isspace())
            rules.append("both_blank" if both else "one_sided_blank")
        if ("&" in source or "&" in target) and (_has_entity(source) or _has_entity(target)):
            rules.append("html_entity")
        if ("<" in source or "<" in target) and (_TAG.search(source) or _TAG.search(target)):
            rules.append("markup")
        source_length, target_length = len(source), len(target)
        longer = source_length if source_length > target_length else target_length
        if longer > self._surely_short and (self._is_too_long(source) or self._is_too_long(target)):
            rules.append("too_long")
        if rules and BLANK_RULES.intersection(rules):
            return rules
        if source_length > self._max_ratio * target_length or target_length > self._max_ratio * source_length:
            rules.append("length_ratio")
        if source == target:
            rules.append("source_equals_target")
        source_script, target_script = self._scripts
        is_foreign = source_script.is_foreign(source), target_script.is_foreign(target)
        if is_foreign[0] or is_foreign[1]:
            swapped = self._may_be_swapped and target_script.is_own(source) and source_script.is_own(target)
            rules.append("swapped_sides" if swapped else "wrong_script")
        return rules

    def _is_too_long(self, line: str) -> bool:
        line = normalize(line, self._normalize)
        return has_too_many_characters(line, self._max_characters) or has_too_many_words(line, self._max_tokens)


def _odd_characters(source: str, target: str) -> list[str]:
    rules: list[str] = []
    if not (_ODD.search(source) or _ODD.search(target)):  # a no-break space, most likely
        return rules
    if _SURROGATE.search(source) or _SURROGATE.search(target):
        rules.append("invalid_utf8")
    if _SEPARATOR.search(source) or _SEPARATOR.search(target):
        rules.append("line_separator")
    if _BOM in source or _BOM in target:
        rules.append("bom")
    if _CONTROL.search(source) or _CONTROL.search(target):
        rules.append("control_character")
    return rules


def _has_entity(line: str) -> bool:
    return any(_is_entity(match[0]) for match in _ENTITY.finditer(line))


def _is_entity(text: str) -> bool:
    return text[1] == "#" or text[1:] in html.entities.html5


def has_too_many_characters(line: str, max_characters: int) -> bool:
    """Whether a normalised line is over a limit, of which 0 is none."""
    return 0 < max_characters < len(line)


def has_too_many_words(line: str, max_tokens: int) -> bool:
    """Whether a line is surely over a limit of tokens, of which 0 is none: it has more words, each a token or more."""
    return 0 < max_tokens <= line.count(" ") and len(line.split(" ")) - line.split(" ").count("") > max_tokens


def repaired(line: str, rules: Collection[str]) -> str:
    """A line after the rules named have acted with "fix"; what none of them concerns stays as it is.

    invalid_utf8: the invalid bytes are read as Windows-1252, which they nearly always are. bom, control_character:
    removed. line_separator: each becomes a blank. markup: tags are removed, those that separate words (<br>) become a
    blank. html_entity: the characters they stand for; a blank for line ends and the like.
    """
    if "invalid_utf8" in rules:
        line = _SURROGATE.sub(_as_windows_1252, line)
    if "bom" in rules:
        line = line.replace(_BOM, "")
    if "control_character" in rules:
        line = _CONTROL.sub("", line)
    if "line_separator" in rules:
        line = _SEPARATOR.sub(" ", line)
    if "markup" in rules:  # before entities: an escaped < is text
        line = _TAG.sub(_without_tag, line)
    if "html_entity" in rules:
        line = _ENTITY.sub(_unescaped, line)
    return line


def _as_windows_1252(match: re.Match[str]) -> str:
    return bytes([ord(match[0]) & 0xFF]).decode("cp1252", errors="replace")


def _without_tag(match: re.Match[str]) -> str:
    return " " if _BREAKING_TAG.fullmatch(match["name"] or "") else ""


def _unescaped(match: re.Match[str]) -> str:
    if not _is_entity(match[0]):
        return match[0]
    text = html.unescape(match[0])
    is_text = not (_SEPARATOR.search(text) or _CONTROL.search(text) or "\n" in text or _BOM in text)
    return text if is_text else " "


def rule_against_text(source: str, target: str, cleaning: CleaningConfig) -> str | None:
    """The rule by which a pair of normalised lines cannot be trained on, or None."""
    blanks = (not source.strip()) + (not target.strip())
    if blanks:
        return "both_blank" if blanks == 2 else "one_sided_blank"
    limit = cleaning.max_characters
    if has_too_many_characters(source, limit) or has_too_many_characters(target, limit):
        return "too_long"
    return None


def rules_against_lengths(source_tokens: int, target_tokens: int, cleaning: CleaningConfig) -> list[str]:
    """The rules that a pair of that many subword tokens, end symbols not counted, breaks."""
    longer, shorter = max(source_tokens, target_tokens), min(source_tokens, target_tokens)
    if shorter == 0:
        return ["both_blank" if longer == 0 else "one_sided_blank"]
    rules = []
    if cleaning.max_tokens and longer > cleaning.max_tokens:
        rules.append("too_long")
    if cleaning.max_ratio and longer > cleaning.max_ratio * shorter:
        rules.append("length_ratio")
    return rules
