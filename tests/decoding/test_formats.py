import json

import pytest

from nmtkit.decoding.formats import format_output, line_status
from nmtkit.decoding.request import Translation


def translation(text: str, **changes: object) -> Translation:
    values = {"log_prob": -3.0, "score": -1.5, "pieces": ("▁a", "b"), "token_log_probs": (-1.0, -1.5, -0.5)}
    return Translation(text, **{**values, **changes})  # type: ignore[arg-type]


def test_text_is_the_best_translation() -> None:
    assert format_output("text", 7, "x", [translation("a b"), translation("c")]) == ["a b"]


def test_an_n_best_list_has_a_line_for_each_translation() -> None:
    assert format_output("n-best", 7, "x", [translation("a b"), translation("c", score=-2.25)]) == [
        "7 ||| a b ||| log_prob=-3.000000 ||| -1.500000",
        "7 ||| c ||| log_prob=-3.000000 ||| -2.250000",
    ]


def test_json_has_everything_in_one_line() -> None:
    [line] = format_output("json", 7, "x\u2028y", [translation("a\u2028b", alignment=(1, 0))])
    assert "\n" not in line
    assert json.loads(line) == {
        "line": 7,
        "source": "x\u2028y",
        "hypotheses": [
            {
                "text": "a\u2028b", "score": -1.5, "log_prob": -3.0, "tokens": ["▁a", "b"],
                "token_log_probs": [-1.0, -1.5, -0.5], "alignment": [[0, 1], [1, 0]],
            }
        ],
    }  # fmt: skip
    assert "alignment" not in json.loads(format_output("json", 1, "x", [translation("a")])[0])["hypotheses"][0]


@pytest.mark.parametrize(
    ("source", "found", "expected"),
    [
        ("the dog", translation("der Hund"), ["ok"]),
        ("", translation(""), ["empty"]),
        ("the dog", translation("  "), ["empty", "short"]),
        ("the dog", translation("der Hund", parts=2), ["split"]),
        ("\u72d7", translation("der Hund", is_unknown=True), ["unknown"]),
        ("the dog", translation("der Hund", hit_limit=True, parts=3), ["split", "length_limit"]),
        ("the dog", translation("der Hund", hit_limit=True, is_unsatisfied=True), ["length_limit", "unmet"]),
        ("the  dog", translation("the dog"), ["copied_source"]),
        ("the dog", translation("der der Hund"), ["ok"]),
        ("the dog", translation("der der der Hund"), ["repeats"]),
        ("no no no", translation("nein nein nein"), ["ok"]),
        ("the dog", translation("in das Haus in das Haus in das Haus"), ["repeats"]),
        ("the dog", translation("in das Haus in das Haus"), ["ok"]),
        ("the dog", translation("a b c d e a b c d e a b c d e"), ["ok"]),
        ("the dog", translation("der &quot;Hund&quot;"), ["leftover"]),
        ("the &quot;dog&quot;", translation("der &quot;Hund&quot;"), ["ok"]),
        ("the dog", translation("der Hu@@ nd"), ["leftover"]),
        ("the dog", translation("\u2581der\u2581Hund"), ["leftover"]),
        ("the dog", translation("der <b>Hund</b>"), ["leftover"]),
        ("a b", translation("(S (S (S (XX a) (XX b))))", is_mended=False), ["ok"]),
        ("a b", translation("(S (XX a) (XX b))", is_mended=True), ["mended"]),
        ("a@@b", translation("1 < 2 und 3 > 2, a@@b & c"), ["ok"]),
    ],
)
def test_what_is_odd_is_named(source: str, found: Translation, expected: list[str]) -> None:
    assert line_status(source, found, invalid_utf8=False) == expected


def test_replaced_bytes_are_named() -> None:
    assert line_status("a", translation("b"), invalid_utf8=True) == ["invalid_utf8"]
