"""Extraction: the examples that are read, and the order of their paragraphs by each method."""

import json
import math
import random
import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.lines import LineReader
from nmtkit.text import extraction
from nmtkit.text.extraction import Example, Method, cut, rank, read_examples

METHODS: tuple[Method, ...] = get_args(Method)


def example(*paragraphs: str, query: str = "a query", target: str = "a target") -> Example:
    return Example("test", query, paragraphs, target, {})


def read(tmp_path: Path, *lines: Any) -> list[Example]:
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return list(read_examples(LineReader(path)))


def test_examples_have_paragraphs_or_documents_of_paragraphs(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {"title": "One", "paragraphs": ["a b", " ", "c"], "id": 7},
        {"query": "Two?", "documents": ["a\n\nb\r", "c d"], "target": "e"},
        {"paragraphs": ["x"]},
    )
    assert [one.paragraphs for one in found] == [("a b", "c"), ("a", "b\r", "c d"), ("x",)]
    assert [(one.query, one.target) for one in found] == [("One", ""), ("Two?", "e"), ("", "")]
    assert found[0].fields["id"] == 7
    assert found[1].name.endswith("examples.jsonl, line 2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ([], "not a JSON object"),
        ({"title": "a"}, 'no list of strings "paragraphs" or "documents"'),
        ({"paragraphs": "a"}, 'no list of strings "paragraphs" or "documents"'),
        ({"documents": [["a"]]}, 'no list of strings "paragraphs" or "documents"'),
        ({"paragraphs": ["a", None]}, 'no list of strings "paragraphs" or "documents"'),
        ({"paragraphs": []}, '"paragraphs" has no text'),
        ({"documents": [" \n", ""]}, '"documents" has no text'),
        ({"paragraphs": ["a"], "documents": ["b"]}, 'has both "paragraphs" and "documents"'),
        ({"paragraphs": ["a"], "title": "b", "query": "c"}, 'has both "title" and "query"'),
        ({"paragraphs": ["a"], "title": 1}, '"title" is not a string'),
        ({"paragraphs": ["a"], "target": ["b"]}, '"target" is not a string'),
        ('{"paragraphs": ["\\ud800"]}', "half a pair of surrogates"),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"examples.jsonl, line 2: .*{message}"):
        read(tmp_path, {"paragraphs": ["a"]}, line)


def test_identity_keeps_the_order() -> None:
    assert list(rank(example("b", "a", "a", "-"), "identity")) == ["b", "a", "a", "-"]


def test_tf_idf_counts_the_rare_words_of_the_query_more() -> None:
    paragraphs = ("the bridge", "The mayor the mayor", "a mayor, a BRIDGE, an old bridge", "the end", "old")
    # bridge and mayor are in two of five paragraphs each, the in three, and closed in none
    weight = math.log(5 / 2)
    scores = [weight + math.log(5 / 3), 2 * weight + 2 * math.log(5 / 3), 3 * weight, math.log(5 / 3), 0]
    order = sorted(range(5), key=lambda index: -scores[index])
    found = list(rank(example(*paragraphs, query="The mayor closed the bridge: bridge!"), "tf-idf"))
    assert found == [paragraphs[index] for index in order]
    assert order == [1, 2, 0, 3, 4]


def page_rank(paragraphs: list[list[str]]) -> list[float]:
    """TextRank by its formula, without arrays."""
    sets = [set(words) for words in paragraphs]
    count = len(sets)

    def similarity(one: int, other: int) -> float:
        sizes = math.log(max(1, len(sets[one]))) + math.log(max(1, len(sets[other])))
        return len(sets[one] & sets[other]) / sizes if one != other and sizes else 0.0

    totals = [sum(similarity(one, other) for other in range(count)) or 1.0 for one in range(count)]
    ranks = [1 / count] * count
    for _ in range(200):
        ranks = [
            (1 - extraction.DAMPING) / count
            + extraction.DAMPING * sum(ranks[other] * similarity(other, one) / totals[other] for other in range(count))
            for one in range(count)
        ]
    return ranks


@pytest.mark.parametrize("seed", range(5))
def test_textrank_is_page_rank_over_shared_words(seed: int) -> None:
    chance = random.Random(seed)
    texts = [[chance.choice("abcdefghijkl") for _ in range(chance.randrange(1, 9))] for _ in range(12)]
    paragraphs = [f"{' '.join(words)} {'.' * index}" for index, words in enumerate(texts)]  # no two are equal
    ranks = dict(zip(paragraphs, page_rank(texts), strict=True))
    found = [ranks[paragraph] for paragraph in rank(example(*paragraphs), "textrank")]
    assert len(found) == 12
    assert all(one >= other - 1e-8 for one, other in pairwise(found))


def test_textrank_keeps_the_order_of_equal_paragraphs() -> None:
    paragraphs = [f"{text} {'!' * number}" for number, text in enumerate(["a b c", "d", "a b c", "-", "d", "a b c"])]
    assert list(rank(example(*paragraphs), "textrank")) == [paragraphs[index] for index in (0, 2, 5, 1, 3, 4)]


def test_sumbasic_takes_sentences_and_says_nothing_twice() -> None:
    text = example("The dog barks. The dog runs.", "A cat sleeps. The dog barks.")
    # the and dog are the most probable words, barks is next; a second sentence with all of them is worth less
    found = [sentence.strip() for sentence in rank(text, "sumbasic")]
    assert found[0] == "The dog barks."
    assert sorted(found) == ["A cat sleeps.", "The dog barks.", "The dog barks.", "The dog runs."]
    assert found[1] == "The dog runs."


@given(st.lists(st.lists(st.sampled_from("abcdeA"), min_size=1, max_size=5), min_size=1, max_size=12))
def test_sumbasic_is_its_definition(sentences: list[list[str]]) -> None:
    words = [[word.lower() for word in sentence] for sentence in sentences]
    counts = Counter(word for sentence in words for word in sentence)
    probabilities = {word: count / counts.total() for word, count in counts.items()}
    left, expected = list(range(len(words))), []
    while left:
        top = max((word for word in counts if any(word in words[index] for index in left)), key=probabilities.get)
        best = max(
            (index for index in left if top in words[index]),
            key=lambda index: sum(probabilities[word] for word in words[index]) / len(words[index]),
        )
        left.remove(best)
        expected.append(" ".join(sentences[best]))
        for word in set(words[best]):
            probabilities[word] **= 2
    assert list(rank(example(*map(" ".join, sentences)), "sumbasic")) == expected


def test_words_have_their_combining_marks_and_unspaced_text_its_letters() -> None:
    assert next(rank(example("दाल चावल", "दिल", query="दिल"), "tf-idf")) == "दिल"
    decomposed = unicodedata.normalize("NFD", "Café Löwe")
    assert next(rank(example("a cafe", decomposed, query="café"), "tf-idf")) == decomposed
    assert next(rank(example("我们走", "他们来北京", query="北京"), "tf-idf")) == "他们来北京"
    assert extraction._words("Don't_stop the-2nd co\u00adop!") == ["don", "t", "stop", "the", "2nd", "coop"]


def test_blank_lines_are_no_examples(tmp_path: Path) -> None:
    line = {"title": "a", "paragraphs": ["b"]}
    assert [each.name.rpartition(", ")[2] for each in read(tmp_path, line, "", " ", line, "")] == ["line 1", "line 4"]
    for lines in ((), ("", " ")):
        with pytest.raises(DataError, match=r"examples\.jsonl: is empty"):
            read(tmp_path, *lines)


def test_cheating_counts_the_bigrams_of_the_target() -> None:
    paragraphs = ("the old man", "the old bridge the old bridge", "it closed on Monday", "bridge old the")
    found = list(rank(example(*paragraphs, target="The old bridge closed on Monday."), "cheating"))
    assert found == [paragraphs[index] for index in (1, 2, 0, 3)]


def test_a_method_without_what_it_compares_with_is_an_error() -> None:
    with pytest.raises(DataError, match='test: has no "title" or "query", or an empty one; the method tf-idf needs it'):
        list(rank(example("a", query=" "), "tf-idf"))
    with pytest.raises(DataError, match='test: has no "target", or an empty one, which the method cheating needs'):
        list(rank(example("a", target=""), "cheating"))
    assert list(rank(example("a", query="", target=""), "textrank")) == ["a"]


def test_short_paragraphs_are_left_out_where_there_are_longer_ones() -> None:
    assert list(rank(example("a", "a b", "c d e"), "identity", min_words=2)) == ["a b", "c d e"]
    assert list(rank(example("a", "a b", "c d e"), "identity", min_words=4)) == ["a", "a b", "c d e"]


@pytest.mark.parametrize("method", METHODS)
def test_odd_text_is_ranked(method: Method) -> None:
    odd = (
        "\u2028",
        "...",
        "\0",
        "子犬が走る。猫が寝る。",
        "e\u0301" * 50,
        "a",
        "a",
        "👩\u200d👩\u200d👧 x",
        "x" * 10_000,
        "½ Ⅷ ٣",
    )
    found = list(rank(example(*odd, query="!?", target="."), method))
    assert sorted(found) == sorted(odd) or method == "sumbasic"
    assert found
    assert all("\u2028" not in paragraph for paragraph in cut(found, None))


@pytest.mark.parametrize(
    ("length", "expected"),
    [(None, ["a b c", "d e"]), (1, ["a"]), (3, ["a b c"]), (4, ["a b c", "d"]), (9, ["a b c", "d e"])],
)
def test_paragraphs_are_cut_to_a_number_of_words(length: int | None, expected: list[str]) -> None:
    assert list(cut(["a  b\tc", " \n", "d\u2028e "], length)) == expected
