"""Where sentences begin, in the scripts that mark it."""

import itertools

import pytest

from nmtkit.text.moses import nonbreaking_prefixes
from nmtkit.text.sentences import sentence_starts


def sentences_of(text: str) -> list[str]:
    return [text[start:stop] for start, stop in itertools.pairwise([0, *sentence_starts(text), len(text)])]


@pytest.mark.parametrize(
    "sentences",
    [
        ["A dog. ", "A cat! ", "Who? ", "Well\u2026 ", "So"],
        ['He said "no." ', "Then (yes.) ", "She"],
        ["hi. ", "how are you? ", "well, at 3 p.m. as in the u.s.e."],
        ["\u00ab Ja ! \u00bb ", "Il part. \u00bb"],
        ["Mr. J. R. Brown of the U.S. Army, i.e. Dr. No. 5, left. ", "He came."],
        ['"Why?" asked the man. ', "He knew ... nothing. ", "5 men came."],
        ["Hi...  ", "Who?"],
        ["\u6211\u6765\u3002", "\u4ed6\u53bb\uff01", "\u4f60"],
        ["\u6211\u6765\u3002\u300d", "\u300c\u4ed6\u53bb\u300d"],
        ["\u0928\u092e\u0938\u094d\u0924\u0947\u0964 ", "\u0906\u092a"],
        ["\u0645\u0631\u062d\u0628\u0627\u061f ", "\u0646\u0639\u0645"],
        ["\u4fa1\u683c\u306f\uff13\uff0e\uff11\uff14\u5186\u3067\u3059\u3002"],
        ["\u3053\u308c\u306f\u672c\u3067\u3059\uff0e", "\u3042\u308c\u306f"],
        ["\ub124. ", "\uc54c\uaca0\uc2b5\ub2c8\ub2e4."],
        ["\u10d4\u10e1 NATO-\u10d0. ", "\u10d8\u10e1 \u10db\u10dd\u10d5\u10d8\u10d3\u10d0."],
        ["a dog . ", "a cat ."],
        ["only one."],
        ["3.14 and a.b. "],
        ["..."],
        [" . "],
        [""],
    ],
)
def test_sentences_end_at_their_marks(sentences: list[str]) -> None:
    text = "".join(sentences)
    assert sentences_of(text) == sentences


def test_abbreviations_are_those_of_the_language() -> None:
    for language, text, count in (
        ("de", "Am 3. Oktober kam Dr. Meier bzw. Frau Meier. Ja.", 1),
        ("en", "In May 3. October came.", 1),
        ("fr", "MM. Dupont et al. Mme. Oui.", 1),
        ("en_GB", "Dr. Brown came.", 0),
        ("xx", "Dr. Brown came.", 0),
        ("deu_Latn", "Am 3. Oktober kam Dr. Meier bzw. Frau Meier. Ja.", 1),
        ("el", "\u03a4\u03b9; \u039d\u03b1\u03b9\u037e \u038c\u03c7\u03b9.", 2),  # question marks
        ("en", "Who; No.", 0),
    ):
        assert len(sentence_starts(text, language)) == count, (language, text)


@pytest.mark.parametrize(("code", "others"), [("de", ["deu_Latn", "ger"]), ("cs", ["ces", "cze"]), ("lv", ["lvs"])])
def test_codes_of_three_letters_have_the_abbreviations_of_the_language(code: str, others: list[str]) -> None:
    assert all(nonbreaking_prefixes(other) == nonbreaking_prefixes(code) for other in others)
    assert nonbreaking_prefixes(code) != nonbreaking_prefixes("eng_Latn") == nonbreaking_prefixes("en")


@pytest.mark.parametrize("text", ["." * 10**6, '."' * 10**6, "\u3002(" * 10**6, "." + " " * 10**6, ")" * 10**6])
def test_a_line_of_marks_takes_no_longer_than_another(text: str) -> None:
    assert sentence_starts(text) == []  # would take hours if the time grew with the square of the length
