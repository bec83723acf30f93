"""The rules that leave training pairs out, as tables."""

import pytest

from nmtkit.config import CleaningConfig
from nmtkit.text.cleaning import RULES, rule_against_lengths, rule_against_text

NO_LIMITS = CleaningConfig(max_tokens=0, max_characters=0, max_ratio=0)


@pytest.mark.parametrize(
    ("source", "target", "settings", "rule"),
    [
        ("a", "b", {}, None),
        ("", "", {}, "both_blank"),
        (" \t", "\u3000", {}, "both_blank"),
        ("\u2028", "\u00a0\u0085", {}, "both_blank"),
        ("", "b", {}, "one_sided_blank"),
        ("a", " ", {}, "one_sided_blank"),
        ("", "b" * 9, {"max_characters": 5}, "one_sided_blank"),
        ("a" * 5, "b", {"max_characters": 5}, None),
        ("a" * 6, "b", {"max_characters": 5}, "too_long"),
        ("a", "b" * 6, {"max_characters": 5}, "too_long"),
        ("🙂" * 5, "ß" * 5, {"max_characters": 5}, None),
        ("a" * 100_000, "b", {"max_characters": 0}, None),
        ("a" * 5001, "b", {}, "too_long"),
        ("a" * 5000, "b" * 5000, {}, None),
        ("a", "b" * 5000, {"max_ratio": 2}, None),
        ("a b c", "b", {"max_tokens": 1}, None),
    ],
)
def test_blank_and_very_long_text_is_left_out(
    source: str, target: str, settings: dict[str, float], rule: str | None
) -> None:
    assert rule_against_text(source, target, CleaningConfig.model_validate(settings)) == rule


@pytest.mark.parametrize(
    ("source_tokens", "target_tokens", "settings", "rule"),
    [
        (1, 1, {}, None),
        (0, 0, {}, "both_blank"),
        (0, 3, {}, "one_sided_blank"),
        (3, 0, {}, "one_sided_blank"),
        (256, 256, {}, None),
        (257, 1, {}, "too_long"),
        (1, 257, {}, "too_long"),
        (10_000, 10_000, {"max_tokens": 0}, None),
        (7, 3, {"max_tokens": 6}, "too_long"),
        (6, 3, {"max_ratio": 2}, None),
        (3, 6, {"max_ratio": 2}, None),
        (7, 3, {"max_ratio": 2}, "length_ratio"),
        (3, 7, {"max_ratio": 2}, "length_ratio"),
        (3, 2, {"max_ratio": 1.5}, None),
        (4, 2, {"max_ratio": 1.5}, "length_ratio"),
        (200, 1, {"max_ratio": 0}, None),
        (300, 1, {"max_ratio": 2}, "too_long"),
    ],
)
def test_too_many_tokens_and_uneven_pairs_are_left_out(
    source_tokens: int, target_tokens: int, settings: dict[str, float], rule: str | None
) -> None:
    assert rule_against_lengths(source_tokens, target_tokens, CleaningConfig.model_validate(settings)) == rule


def test_without_limits_only_blank_sides_are_left_out() -> None:
    assert rule_against_text("a" * 1_000_000, "b", NO_LIMITS) is None
    assert rule_against_lengths(1_000_000, 1, NO_LIMITS) is None
    assert rule_against_text("a", "", NO_LIMITS) == "one_sided_blank"
    assert rule_against_lengths(1, 0, NO_LIMITS) == "one_sided_blank"


def test_every_rule_is_counted_in_the_manifest_under_its_name() -> None:
    tight = CleaningConfig(max_tokens=5, max_characters=5, max_ratio=2)
    texts = [("", ""), ("a", ""), ("a" * 6, "b")]
    lengths = [(0, 0), (1, 0), (6, 1), (5, 1)]
    met = {rule_against_text(*pair, tight) for pair in texts} | {rule_against_lengths(*pair, tight) for pair in lengths}
    assert {*met, "held_out_copy"} == set(RULES)
