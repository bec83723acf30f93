"""The linter finds what makes a score mean something else, and leaves good translations alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.console import listed
from nmtkit.evaluation.checks import TextFault, text_faults
from nmtkit.text.leftovers import KINDS, leftovers

SOURCES = [
    "The old man walks his dog in the park.",
    "A woman is riding a blue bike, and the child is watching her.",
    "Two dogs are playing in the snow.",
    "The man said that he would be in the house.",
    "The child and the dog are in the park.",
    "Nokia",
] * 4
REFERENCES = [
    "Der alte Mann führt seinen Hund im Park aus.",
    "Eine Frau fährt auf einem blauen Rad, und das Kind sieht ihr zu.",
    "Zwei Hunde spielen im Schnee.",
    "Der Mann sagte, dass er im Haus sein würde.",
    "Das Kind und der Hund sind im Park.",
    "Nokia",
] * 4


def found(hypotheses: list[str], **changes: Any) -> dict[str, TextFault]:
    given: dict[str, Any] = {"sources": SOURCES, "target_language": "de", "text": "plain", **changes}
    references = given.pop("references", [REFERENCES])
    return {fault.what.partition(" such as ")[0]: fault for fault in text_faults(hypotheses, references, **given)}


COPIED, FOREIGN, SPLIT = "the source instead of a translation", "not de", "punctuation split off as a tokeniser does"


def changed(number: int, text: str) -> list[str]:
    """Good translations, one line of which is another."""
    lines = [line.replace("Hund", "Vierbeiner").replace("alte", "betagte") for line in REFERENCES]
    lines[number - 1] = text
    return lines


def test_good_translations_are_left_alone() -> None:
    assert found(changed(1, REFERENCES[0])) == {}
    assert found(changed(1, REFERENCES[0]), sources=None, target_language=None) == {}
    assert found(REFERENCES) == {}  # "Nokia" is source and reference


@pytest.mark.parametrize(
    ("text", "what", "told"),
    [
        ("", "no translation", "no translation in line 3"),
        (" \u3000", "no translation", "no translation in line 3"),
        ("Zwei Hun@@ de spielen im Schnee.", "subword marks", "subword marks such as @@ in line 3; join"),
        ("▁Zwei ▁Hun de ▁spielen.", "subword marks", "subword marks such as ▁"),
        ("Zwei &quot;Hunde&quot; spielen.", "entities", "entities such as &quot; in line 3"),
        ("Zwei <unk> spielen.", "unknown words", "unknown words such as <unk>"),
        ('<seg id="3">Zwei Hunde spielen.</seg>', "markup", 'markup such as <seg id="3"> in line 3; '),
        (SOURCES[2], COPIED, "the source instead of a translation in line 3"),
        ("The dogs are in a park and the child is watching.", FOREIGN, "not de in line 3"),
        ("Две собаки играют в снегу.", FOREIGN, "not de in line 3"),
    ],
)
def test_a_slip_in_one_line_is_told_with_its_line(text: str, what: str, told: str) -> None:
    result = found(changed(3, text))
    assert list(result) == [what]
    assert result[what].lines == (3,)
    assert str(result[what]).startswith(told)
    assert result[what].advice


def test_what_the_references_have_too_is_no_slip() -> None:
    for text in ("", "Zwei &quot;Hunde&quot; spielen.", SOURCES[2], "Две собаки играют в снегу."):
        with_it = [*REFERENCES[:2], text, *REFERENCES[3:]]
        assert found(changed(3, text), references=[with_it]) == {}
        assert found(changed(3, text), references=[with_it, with_it]) == {}


def test_one_of_several_references_excuses_a_copy() -> None:
    copy = changed(3, SOURCES[2])
    assert list(found(copy, references=[REFERENCES, REFERENCES])) == [COPIED]
    assert found(copy, references=[REFERENCES, [*REFERENCES[:2], SOURCES[2], *REFERENCES[3:]]]) == {}


def test_another_language_of_the_same_script_needs_the_source() -> None:
    swapped = SOURCES[1:] + SOURCES[:1]  # English, but no copies
    assert len(found(swapped)[FOREIGN].lines) > 16
    assert found(swapped, sources=None) == {}
    russian = ["Собака видит дом."] * len(REFERENCES)
    assert len(found(russian, sources=None)[FOREIGN].lines) == len(REFERENCES)
    assert found(russian, sources=None, target_language=None) == {}
    assert list(found(russian, sources=None, target_language="de-AT")) == ["not de-AT"]


def test_a_language_of_two_scripts_may_say_which() -> None:
    cyrillic, latin = ["Пас види кућу."] * 4, ["Pas vidi kuću."] * 4
    for language, is_told in (("sr", False), ("sr_Latn", True), ("sr-latn", True), ("sr_Cyrl", False)):
        told = text_faults(cyrillic, [latin], sources=None, target_language=language, text="plain")
        assert bool(told) == is_told


def test_the_wrong_side_of_a_test_set_as_reference_is_told() -> None:
    result = found(changed(1, "Der Mann."), references=[SOURCES])
    assert str(result["the reference is the source"]).startswith("the reference is the source in 24 lines: 1, 2, ")
    assert "the reference is the source" not in found(changed(1, "Der Mann."))


TOKENS = [line.replace(".", " .").replace(",", " ,") for line in REFERENCES]


def test_tokenised_text_that_is_said_to_be_plain_is_told_with_what_to_do() -> None:
    assert found(TOKENS)[SPLIT].advice == "detokenise it; the reference is plain"
    assert found(TOKENS, references=[TOKENS])[SPLIT].advice.startswith("give --text tokenized, or for a run")
    assert found(TOKENS, references=[TOKENS], text="tokenized") == {}
    assert list(found(REFERENCES, references=[TOKENS], text="tokenized")) == ["punctuation not split off"]
    [neither] = found(REFERENCES, references=[REFERENCES], text="tokenized").values()
    assert neither.advice.endswith("text plain")
    for text, lines, what in (("plain", TOKENS, SPLIT), ("tokenized", REFERENCES, "punctuation not split off")):
        good = REFERENCES if text == "plain" else TOKENS
        for references in ([lines], [good, lines]):  # the text to score is right
            assert f"a reference with {what}" in found(good, references=references, text=text)
    one_line = [TOKENS[0], *REFERENCES[1:]]
    assert found(one_line) == {}  # a line may hold such a thing; a text that is tokenised has it everywhere


def test_several_findings_are_told_together() -> None:
    lines = changed(3, "Hun@@ de &amp; ▁")
    lines[4] = ""
    assert list(found(lines)) == ["no translation", "subword marks", "entities"]


def test_lines_are_listed_up_to_ten() -> None:
    assert listed([4]) == "line 4"
    assert listed([4, 9]) == "2 lines: 4, 9"
    assert listed(range(1, 1201)) == "1,200 lines: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ..."


def test_leftovers_have_their_kinds() -> None:
    text = "Hun@@ de @@x ▁a &quot; &#39; &x; <unk> ⁇ <seg id=1> a < b > c e@@"
    assert leftovers(text) == {
        "@@": "subword marks", "▁": "subword marks", "&quot;": "entities", "&#39;": "entities",
        "<unk>": "unknown words", "⁇": "unknown words", "<seg id=1>": "markup",
    }  # fmt: skip
    assert set(leftovers(text).values()) == set(KINDS)
    assert leftovers("me@@home.org, 3 < 4, R&D; a@@b") == {}


TEXT = st.lists(st.text(max_size=20).map(lambda line: line.replace("\n", "")), min_size=3, max_size=3)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(TEXT, TEXT, TEXT, st.sampled_from(["plain", "tokenized"]), st.sampled_from([None, "de", "zh", "xx"]))
def test_any_text_is_looked_at_without_a_fall(
    hypotheses: list[str], references: list[str], sources: list[str], text: str, language: str | None
) -> None:
    for finding in text_faults(hypotheses, [references], sources=sources, target_language=language, text=text):
        assert finding.lines
        assert set(finding.lines) <= {1, 2, 3}
        assert "\n" not in finding.what.split(" such as ")[0]


def test_parses_that_evalb_does_not_count_are_told_with_their_lines() -> None:
    gold = ["(S (NN a))", "(S (NN b))", "(S (NN c))", "(S (NN d))"]
    parses = ["(S (NN a))", "(S (NN x))", "", "no tree"]
    stated: dict[str, Any] = {"sources": None, "target_language": None}
    (finding,) = text_faults(parses, [gold], **stated, text="plain", metrics=["evalb"])
    assert [finding] == text_faults(parses, [gold], **stated, text="trees")
    assert finding.lines == (2, 3, 4)
    assert "(the first: words unmatch (b|x)) in 3 lines: 2, 3, 4; they count in no score" in str(finding)
    assert text_faults(gold, [gold], **stated, text="trees") == []


def test_faults_of_the_reference_are_told_if_it_has_many() -> None:
    escaped = [f"{line} &quot;ja&quot;" for line in REFERENCES]
    fault = found(REFERENCES, references=[escaped])["a reference with entities"]
    assert fault.what == "a reference with entities such as &quot;"
    assert found(REFERENCES, references=[[escaped[0], *REFERENCES[1:]]]) == {}
    assert found(escaped, references=[escaped]) == {}
    blank = [*REFERENCES[:4], "", *REFERENCES[5:]]
    assert found(REFERENCES, references=[blank])["no reference"].lines == (5,)
    [beside] = found(REFERENCES, references=[blank, REFERENCES]).values()
    advice = "BLEU and TER count it; copy another reference of the line into it"
    assert str(beside) == f"an empty reference beside others in line 5; {advice}"
    assert found(REFERENCES, references=[blank, REFERENCES], metrics=["rouge1", "rougeL"]) == {}
    alone = found(REFERENCES, references=[blank, blank], metrics=["rouge1"])
    assert alone["no reference"].lines == (5,)
    assert found(REFERENCES, references=[[*blank[:4], "x", *blank[5:]], REFERENCES]) == {}
