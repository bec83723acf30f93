"""Terms of a glossary in a text, and spans that a translation should keep."""

import time
from pathlib import Path

import pytest

from nmtkit.errors import DataError
from nmtkit.text.terms import Glossary, Kind, kept_spans
from tests.conftest import message_of

TERMS = [
    ("ice cream", "Eis"),
    ("ice", "Glatteis"),
    ("US", "USA"),
    ("apple", "Apfel"),
    ("Apple", "Apple"),
    ("dog", "Hund"),
    ("dog", "K\u00f6ter"),
    ("\u82f9\u679c", "apple"),
    ("C++", "C++"),
    ("caf\u00e9", "Kaffeehaus"),
    ("\u0939\u093f", "Silbe"),
    ("\u0645\u06cc", "Wein"),
    ("\u0643", "dein"),
    ("\u05e9", "der"),
    ("\u0dc1\u0dca", "Zeichen"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ice  cream and ice", [["Eis"], ["Glatteis"]]),  # the longest term first
        ("let us go to the US", [["USA"]]),
        ("Apple APPLE apple Apple", [["Apple"], ["Apfel"]]),  # exact capitals first, each term once
        ("Dogs, hotdogs, doghouse", []),
        ("my DOG-house", [["Hund", "K\u00f6ter"]]),
        ("\u6211\u5403\u82f9\u679c\u4e86", [["apple"]]),  # no blanks between words
        ("in C++, not C+", [["C++"]]),
        ("the cafe\u0301 of", [["Kaffeehaus"]]),  # composed or not
        ("\u0939\u093f\u0928\u094d\u0926\u0940", []),  # vowel signs belong to a word
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", []),  # so do joiners,
        ("\u0dc1\u0dca\u200d\u0dbb\u0dd3", []),
        ("\u0643\u0650\u062a\u064e\u0627\u0628 \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", []),  # points
        ("ap\u00adple, dog\u00adhouse", [["Apfel"]]),  # and soft hyphens
        ("\u0645\u06cc", [["Wein"]]),
        ("", []),
    ],
)
def test_terms_match_whole_words(text: str, expected: list[list[str]]) -> None:
    for terms in (TERMS, iter(TERMS)):
        assert [[term.text for term in found] for found in Glossary(terms).found_in(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ma\u00dfe", "size"),
        ("masse", "mass"),
        ("Stra\u00dfe", "road"),
        ("STRASSE", "road"),
        ("Strasse", None),
        ("Gro\u00dfe STRASSE", "Main Road"),
        ("Grosse STRASSE", "road"),
    ],
)
def test_letters_without_capitals_match_their_capitals_only(text: str, expected: str | None) -> None:
    glossary = Glossary(
        {"ma\u00dfe": "size", "masse": "mass", "stra\u00dfe": "road", "gro\u00dfe stra\u00dfe": "Main Road"}
    )
    assert [term.text for terms in glossary.found_in(f"Die {text}.") for term in terms] == [expected] * bool(expected)


def test_a_glossary_file_has_comments_blank_lines_and_either_line_end(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufeff# source\ttarget\r\n\r\ndog\tHund\r\n  \nthe\u2028cat \t die Katze \n".encode())
    glossary = Glossary.read(path)
    assert glossary.pairs == (("dog", "Hund"), ("the\u2028cat ", " die Katze "))
    assert glossary.terms == [
        ("Hund", f"{path}, line 3, term 'dog': "),
        ("die Katze", f"{path}, line 5, term 'the\\u2028cat': "),
    ]
    path.write_bytes(b"")
    assert Glossary.read(path).found_in("dog") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dog\tHund\ncat Katze\n", "line 2: has 0 tabs; write a term, one tab and its translation"),
        (b"dog\tHund\tnoun\n", "line 1: has 2 tabs"),
        (b"dog\tHund\n\t Katze\n", "line 2: the term is empty"),
        (b"# one\ndog\t \n", "line 2, term 'dog': the translation is empty"),
        (b"dog\tHund\n\ndog\tHund\n", "line 3, term 'dog': it has this translation in line 1, too; remove one"),
        (b"dog\tHund\nc\xff\tKatze\n", "line 2"),
    ],
)
def test_a_wrong_line_of_a_glossary_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes(content)
    told = message_of(lambda: Glossary.read(path))
    assert told.startswith(f"{path}") and message in told


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("dog", " ")], "glossary, term 'dog': the translation is empty; add it, or remove both"),
        ([("a", "b"), (" ", "c")], "glossary: the term is empty; add it, or remove both"),
        ([("a", "b"), ("a ", "b")], "glossary, term 'a': it has this translation twice; remove one"),
    ],
)
def test_a_wrong_pair_that_is_no_line_of_a_file_is_named_by_its_term(
    pairs: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(DataError) as error:
        Glossary(pairs)
    assert str(error.value) == message


TEXT = (
    'See <b id="1">x</b> at http://a.b/c?d=1#e, (https://en.wikipedia.org/wiki/Foo) or www.x.org. Mail '
    "a.b+c@d-e.co.uk! 3.5 or 1,000 in the 1990s, A4, 2010-2012, 5kg $5 20% "
    "\u6211\u67095\u4e2a http://x.y/z\u3002\u7136 x@y.de."
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tags", ['<b id="1">', "</b>"]),
        ("urls", ["http://a.b/c?d=1#e", "https://en.wikipedia.org/wiki/Foo", "www.x.org", "http://x.y/z"]),
        ("emails", ["a.b+c@d-e.co.uk", "x@y.de"]),
        ("numbers", ["1", "1", "3.5", "1,000", "2010-2012", "5", "20", "5"]),
    ],
)
def test_spans_of_each_kind_are_found(kind: Kind, expected: list[str]) -> None:
    found = kept_spans(TEXT, (kind,))
    assert [TEXT[start:stop] for start, stop, _ in found] == expected
    assert {kind_found for *_, kind_found in found} == {kind}


def test_a_number_in_a_url_or_tag_is_part_of_it() -> None:
    found = kept_spans(TEXT, ("numbers", "urls", "tags"))
    assert [TEXT[start:stop] for start, stop, kind in found if kind == "numbers"] == [
        "3.5",
        "1,000",
        "2010-2012",
        "5",
        "20",
        "5",
    ]
    assert kept_spans(TEXT, ()) == []


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("emails", "\u8bf7\u53d1\u90ae\u4ef6\u5230a@b.co\u8c22\u8c22", ["a@b.co"]),
        ("emails", "\u00fc@b\u00fc.de", ["\u00fc@b\u00fc.de"]),
        ("urls", "\u8bf7\u8bbf\u95eehttps://example.com/abc\u83b7\u53d6", ["https://example.com/abc"]),
        ("urls", "\u89c1www.example.com", ["www.example.com"]),
        ("numbers", "2023\ub144\uc5d0 15\uba85\uc774", ["2023", "15"]),
        (
            "numbers",
            "\uff13\uff0e\uff11\uff14\u5186\uff11\uff0c\uff10\u5186",
            ["\uff13\uff0e\uff11\uff14", "\uff11\uff0c\uff10"],
        ),
        ("numbers", "\u7b2c1\uff0c2\u7ae0", ["1", "2"]),  # a list
        ("numbers", "\u0661\u0662\u066b\u0665 \u0661\u066c\u0660", ["\u0661\u0662\u066b\u0665", "\u0661\u066c\u0660"]),
    ],
)
def test_spans_end_at_words_of_scripts_without_blanks(kind: Kind, text: str, expected: list[str]) -> None:
    assert [text[start:stop] for start, stop, _ in kept_spans(text, (kind,))] == expected


@pytest.mark.parametrize(
    "text",
    ["a.", "1.", "<a", "a@", "http://", "a-b://", "www.", "@", "1,a", "\u6211a", "\u6211www.", "a@a.-", "\uff11\uff0c"],
)
def test_spans_are_searched_in_linear_time(text: str) -> None:
    begun = time.process_time()
    kept_spans(text * 100_000, ("tags", "urls", "emails", "numbers"))
    assert time.process_time() - begun < 20
