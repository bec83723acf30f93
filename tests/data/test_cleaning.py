"""The rules about training pairs: what each concerns, as tables, and what "fix" makes of a line."""

import sys
import time
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.data_schema import DataConfig
from nmtkit.data.cleaning import (
    HELD_OUT_COPY,
    MEANINGS,
    REPORTED_RATIO,
    RULES,
    PairExaminer,
    excerpt,
    repaired,
    rule_against_text,
    rules_against_lengths,
)
from nmtkit.text.normalization import FIELD_MARK, NEWLINE, TAB, normalize

NO_LIMITS = CleaningConfig(max_tokens=0, max_characters=0, max_ratio=0)
ODD = "\u2028\u2029\u0085\v\f\r\ufeff\0\x07\x1c\x7f\x80\x9f\udc80\udcff&amp;&#10;&#x2028;&nbsp;<b></b><br/> \t\u00a0é"
hostile_lines = st.text(st.one_of(st.sampled_from(ODD), st.characters(codec="utf-8", exclude_characters="\n")))


def broken(source: str, target: str, languages: str = "en-de", ratio: float = 0, **cleaning: object) -> list[str]:
    source_language, target_language = languages.split("-")
    data = DataConfig(source_language=source_language, target_language=target_language, train=("builtin/train",))
    return PairExaminer(data, CleaningConfig.model_validate(cleaning), float(ratio or "inf")).broken_rules(
        source, target
    )


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("plain text", []),
        ("no\u00a0break\u202fspaces, a\ttab, 🙂, é, \u0645\u06cc\u200c\u062e\u0648, \u0915\u094d\u200d", []),
        *(
            (f"a{character}b", ["invisible_character"])
            for character in "\u00ad\u200b\u200e\u200f\u202a\u202e\u2060\u2069"
        ),
        ("e\u0301", ["not_nfc"]),
        ("\u212bngstr\u00f6m", ["not_nfc"]),
        *((f"a{character}b", ["line_separator"]) for character in "\u2028\u2029\u0085\v\f\r"),
        ("\ufeffa", ["bom"]),
        ("a \ufeff b", ["bom"]),
        *((f"a{character}b", ["control_character"]) for character in "\0\x01\x08\x0e\x1c\x1e\x1f\x7f\x80\x84\x86\x9f"),
        ("M\udcfcller", ["invalid_utf8"]),
        ("AT&amp;T", ["html_entity"]),
        ("&#39;&#x27;&#X27;", ["html_entity"]),
        ("&hellip; and &Auml;", ["html_entity"]),
        ("AT&T; R&D &amp &unheard; &#; &#x;", []),
        ("<b>bold</b>", ["markup"]),
        ("a<br>b", ["markup"]),
        ("a<br/>b", ["markup"]),
        ('<a href="x">', ["markup"]),
        ("<!-- note -->", ["markup"]),
        ("<?xml version='1.0'?>", ["markup"]),
        ("1 < 2 > 0, a<5 and c>d, <john@example.org>, <-->, <3", []),
        ("\ufeff<b>&lt;\u2028\x07\udc80", ["invalid_utf8", "line_separator", "bom", "control_character",
                                          "html_entity", "markup"]),
    ],
)  # fmt: skip
def test_what_is_odd_in_a_line_is_found_on_either_side(line: str, rules: list[str]) -> None:
    assert broken(line, "etwas") == rules
    assert broken("something", line) == rules


@pytest.mark.parametrize(
    ("source", "target", "rules"),
    [
        ("", "", ["both_blank"]),
        (" \t", "\u3000", ["both_blank"]),
        ("\u2028", "\u00a0\u0085", ["line_separator", "both_blank"]),
        ("", "b", ["one_sided_blank"]),
        ("a", " ", ["one_sided_blank"]),
        ("", "Привет", ["one_sided_blank"]),
        ("same", "same", ["source_equals_target"]),
        ("same", "same ", []),
    ],
)
def test_blank_and_equal_sides_are_found(source: str, target: str, rules: list[str]) -> None:
    assert broken(source, target) == rules


@pytest.mark.parametrize(
    ("source", "target", "limits", "is_too_long"),
    [
        ("a" * 5000, "b", {}, False),
        ("a" * 5001, "b", {}, True),
        ("a", "b" * 5001, {}, True),
        ("a" * 5001, "b", {"max_characters": 0}, False),
        ("a " * 255 + "a", "b", {}, False),
        ("a " * 256 + "a", "b", {}, True),
        ("a  " * 255 + "a  ", "b", {}, False),
        ("a " * 256 + "a", "b", {"max_tokens": 0}, False),
        ("a b c", "b", {"max_tokens": 2}, True),
    ],
)
def test_a_line_is_too_long_by_its_characters_or_by_more_words_than_tokens(
    source: str, target: str, limits: dict[str, int], is_too_long: bool
) -> None:
    assert ("too_long" in broken(source, target, **limits)) == is_too_long


def test_no_limit_is_missed_where_normalising_makes_a_line_longer() -> None:
    data = DataConfig(source_language="ar", target_language="de", train=("builtin/train",), normalize=("nfkc",))
    examiner = PairExaminer(data, CleaningConfig(max_characters=5000, max_tokens=0), float("inf"))
    assert examiner.broken_rules("\ufdfa" * 277, "b") == []
    assert examiner.broken_rules("\ufdfa" * 278, "b") == ["too_long"]


@pytest.mark.parametrize(
    ("source", "target", "ratio", "is_uneven"),
    [("a", "b" * 9, 9, False), ("a", "b" * 10, 9, True), ("a" * 10, "b", 9, True), ("a", "b" * 100, 0, False)],
)
def test_a_pair_is_uneven_by_its_characters(source: str, target: str, ratio: float, is_uneven: bool) -> None:
    assert ("length_ratio" in broken(source, target, ratio=ratio)) == is_uneven
    assert REPORTED_RATIO == 9


@pytest.mark.parametrize(
    ("source", "target", "languages", "rules"),
    [
        ("Привет, мир", "Hallo", "en-de", ["wrong_script"]),
        ("Hello", "你好 世界", "en-de", ["wrong_script"]),
        ("Hello", "Привет", "en-ru", []),
        ("Привет", "Hello", "en-ru", ["swapped_sides"]),
        ("Hello", "Hello there", "en-ru", ["wrong_script"]),
        ("Привет", "Пока", "en-ru", ["wrong_script"]),
        ("NATO", "НАТО и NATO", "en-ru", []),
        ("1, 2", "3", "en-ru", []),
        ("100 %", "wrong", "en-el", ["wrong_script"]),
        ("犬が走る", "the dog runs", "ja-en", []),
        ("the dog runs", "犬が走る", "ja-en", ["swapped_sides"]),
        ("Dobro", "good", "sr_Cyrl-en", ["wrong_script"]),
        ("Dobro", "good", "sr-en", []),
        ("Добро", "good", "sr-en", []),
        ("Привет", "Hallo", "xx-de", []),
    ],
)
def test_a_side_in_another_writing_system_is_found(source: str, target: str, languages: str, rules: list[str]) -> None:
    assert broken(source, target, languages) == rules


@pytest.mark.parametrize(
    ("line", "rule", "expected"),
    [
        ("M\udcfcller \udc80\udc81", "invalid_utf8", "Müller €\ufffd"),
        ("a\u2028b\rc", "line_separator", "a b c"),
        ("\ufeffa\ufeffb", "bom", "ab"),
        ("soft\u00adhyphen, \u200fא\u200b", "invisible_character", "softhyphen, א"),
        ("e\u0301 \u1112\u1161\u11ab", "not_nfc", "é 한"),
        ("soft&shy;hyphen &#10;x", "html_entity", "soft\u00adhyphen  x"),
        ("a\x07b\x9fc\td\u0085", "control_character", "abc\td\u0085"),
        ("AT&amp;T &lt;3 &#8364; &amp;lt; &foo; &amp", "html_entity", "AT&T <3 € &lt; &foo; &amp"),
        ("a&#10;b&#13;c&#x2028;d&NewLine;e", "html_entity", "a b c d e"),
        ("foo&#65279;bar&#xFEFF;", "html_entity", "foobar"),
        ("<b>bold</b>ly<br/>new <i>x</i>&lt;b&gt;", "markup", "boldly new x&lt;b&gt;"),
        ("1 < 2 > 0", "markup", "1 < 2 > 0"),
    ],
)
def test_fix_corrects_what_its_rule_concerns(line: str, rule: str, expected: str) -> None:
    assert repaired(line, [rule]) == expected


def test_an_excerpt_shows_marks_as_what_they_stand_for() -> None:
    assert excerpt(f"one{TAB}two{FIELD_MARK}three\u200b{NEWLINE}") == r"one\ttwo\tthree\u200b"


@settings(deadline=None)
@given(hostile_lines)
def test_a_line_that_no_rule_concerns_is_never_changed(line: str) -> None:
    rules = broken(line, line)
    if not set(rules) - {"both_blank", "source_equals_target", "wrong_script"}:
        assert repaired(line, RULES) == line
    assert repaired(line, []) == line


@settings(deadline=None)
@given(hostile_lines)
def test_fix_leaves_one_line_of_valid_text_that_its_rules_no_longer_concern(line: str) -> None:
    of_characters = {"invalid_utf8", "bom", "control_character", "line_separator", "invisible_character", "not_nfc"}
    assert set(broken(repaired(line, of_characters), "x")) & of_characters == set()
    everything = repaired(line, RULES)
    everything.encode("utf-8")
    assert "\n" not in everything
    assert set(everything) & set("\u2028\u2029\u0085\v\f\r\ufeff\0\x07\x7f") == set()


@settings(deadline=None)
@given(hostile_lines, hostile_lines)
def test_the_same_is_found_whichever_side_is_the_source(source: str, target: str) -> None:
    assert broken(source, target, ratio=9) == broken(target, source, ratio=9)


@pytest.mark.parametrize("piece", ["<!-- ", "<a ", "</", "<?xml ", "<!DOCTYPE ", "&amp", "&#", "<![CDATA["])
def test_a_long_line_of_unfinished_markup_takes_no_long_time(piece: str) -> None:
    begun = time.process_time()
    broken(piece * 20_000, "x")
    repaired(piece * 20_000, RULES)
    assert time.process_time() - begun < 2


def test_normalising_makes_no_character_blank_that_was_not() -> None:
    """Blank sides are found before text is normalised."""
    changed = [
        code
        for code in range(sys.maxunicode + 1)
        if not 0xD800 <= code <= 0xDFFF
        and chr(code).isspace() != (not unicodedata.normalize("NFKC", chr(code)).strip())
    ]
    assert changed == []
    assert normalize("\u3000", ("nfkc", "blanks")) == ""


@pytest.mark.parametrize(
    ("source", "target", "limits", "rule"),
    [
        ("a", "b", {}, None),
        ("", "", {}, "both_blank"),
        ("", "b" * 9, {"max_characters": 5}, "one_sided_blank"),
        ("a" * 5, "b", {"max_characters": 5}, None),
        ("a" * 6, "b", {"max_characters": 5}, "too_long"),
        ("🙂" * 5, "ß" * 5, {"max_characters": 5}, None),
        ("a" * 100_000, "b", {"max_characters": 0}, None),
        ("a b c", "b", {"max_tokens": 1}, None),
    ],
)
def test_text_that_cannot_be_trained_on_is_told(
    source: str, target: str, limits: dict[str, float], rule: str | None
) -> None:
    assert rule_against_text(source, target, CleaningConfig.model_validate(limits)) == rule


def rules_of_lengths(source_tokens: int, target_tokens: int, cleaning: CleaningConfig) -> list[str]:
    """The rules that a pair breaks, among others that do not."""
    others = [5] * 3
    broken = rules_against_lengths(np.array([*others, source_tokens]), np.array([*others, target_tokens]), cleaning)
    assert not any(breaks[:3].any() for breaks in broken.values())
    return [rule for rule, breaks in broken.items() if breaks[3]]


@pytest.mark.parametrize(
    ("source_tokens", "target_tokens", "limits", "rules"),
    [
        (1, 1, {}, []),
        (0, 0, {}, ["both_blank"]),
        (0, 3, {}, ["one_sided_blank"]),
        (3, 0, {}, ["one_sided_blank"]),
        (256, 256, {}, []),
        (257, 1, {}, ["too_long"]),
        (1, 257, {}, ["too_long"]),
        (10_000, 10_000, {"max_tokens": 0}, []),
        (6, 3, {"max_ratio": 2}, []),
        (7, 3, {"max_ratio": 2}, ["length_ratio"]),
        (3, 7, {"max_ratio": 2}, ["length_ratio"]),
        (3, 2, {"max_ratio": 1.5}, []),
        (200, 1, {"max_ratio": 0}, []),
        (300, 1, {"max_ratio": 2}, ["too_long", "length_ratio"]),
    ],
)
def test_too_many_tokens_and_uneven_pairs_are_told(
    source_tokens: int, target_tokens: int, limits: dict[str, float], rules: list[str]
) -> None:
    assert rules_of_lengths(source_tokens, target_tokens, CleaningConfig.model_validate(limits)) == rules


def test_without_limits_only_blank_sides_cannot_be_trained_on() -> None:
    assert rule_against_text("a" * 1_000_000, "b", NO_LIMITS) is None
    assert rules_of_lengths(1_000_000, 1, NO_LIMITS) == []
    assert rule_against_text("a", "", NO_LIMITS) == "one_sided_blank"
    assert rules_of_lengths(1, 0, NO_LIMITS) == ["one_sided_blank"]


def test_every_rule_is_a_key_of_the_recipe_and_has_a_meaning() -> None:
    limits = {"max_tokens", "max_characters", "max_ratio"}
    assert set(RULES) == set(MEANINGS) == set(CleaningConfig.model_fields) - limits
    assert HELD_OUT_COPY not in RULES
