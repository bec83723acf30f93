import io
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.decoding.forced import ForcedScore
from nmtkit.decoding.formats import format_output
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.request import Translation
from nmtkit.decoding.rerank import Feature, NBestList, Ranked, as_lines, read_lists, rerank
from nmtkit.errors import DataError
from nmtkit.lines import LineReader
from tests.conftest import message_of

Table = dict[str, tuple[float, int]]
"""Stands in for a model: the log-probability of a hypothesis, and its tokens."""


def feature(table: Table, weight: float = 1.0, alpha: float = 0.0, remarks: tuple[str, ...] = ()) -> Feature:
    def score(pairs: list[tuple[str, str]], before: object = None) -> list[ForcedScore]:
        entries = [table[hypothesis] for _, hypothesis in pairs]
        return [ForcedScore((9,) * count, (log_prob / count,) * count, remarks) for log_prob, count in entries]

    return Feature(score, weight, length_penalty("length", alpha))


def read(text: str, sources: list[str] | None = None, count_from: int | None = None) -> list[NBestList]:
    return list(read_lists(LineReader(io.BytesIO(text.encode()), name="lists"), sources, count_from))


def texts(ranking: list[Ranked]) -> list[str]:
    return [ranked.candidate.text for ranked in ranking]


def as_json(*lists: dict[str, object]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in lists)


DIVIDED = "0 ||| a b ||| F0= 1 F1= 2 3 ||| -1.5\n0 ||| c ||| F0= 2 ||| -2\n2 ||| d\n2 ||| e ||| -4e-1\n"
JSON = as_json(
    {
        "line": 1,
        "source": "x",
        "hypotheses": [{"text": "a b", "score": -1.5, "log_prob": -9}, {"text": "c", "score": -2}],
    },
    {"line": 2, "source": "y", "hypotheses": []},
    {"line": 3, "source": "z", "hypotheses": [{"text": "d"}, {"text": "e", "score": -0.4}]},
)


@pytest.mark.parametrize("form", ["divided", "json"])
def test_both_forms_give_a_list_for_each_source_line(form: str) -> None:
    lists = read(DIVIDED, ["x", "y", "z"]) if form == "divided" else read(JSON)
    assert [entry.source for entry in lists] == ["x", "y", "z"]
    found = [[(candidate.text, candidate.score) for candidate in entry.candidates] for entry in lists]
    assert found == [[("a b", -1.5), ("c", -2.0)], [], [("d", None), ("e", -0.4)]]


def test_a_translation_in_a_list_of_nmtkit_may_hold_the_mark_between_fields() -> None:
    line = "1 ||| x ||| y ||| log_prob=-1.5 original=-2 ||| -0.5 ||| more\n"
    [[candidate]] = [entry.candidates for entry in read(line, ["source"], 1)]
    assert (candidate.text, candidate.score) == ("x ||| y", -0.5)
    assert candidate.fields == {"features": "log_prob=-1.5 original=-2", "further": ["more"]}


@given(st.lists(st.sampled_from(["a", "b", " ", "|||", " ||| ", "|", "log_prob=1"]), max_size=8).map("".join))
def test_a_translation_in_a_list_of_nmtkit_may_be_any_text(text: str) -> None:
    [line] = format_output("n-best", 1, "source", [Translation(text, log_prob=-1.5, score=-0.5)])
    [[candidate]] = [entry.candidates for entry in read(f"{line}\n", ["source"], 1)]
    assert (candidate.text, candidate.score) == (text.strip(" "), -0.5)


@pytest.mark.parametrize("rest", ["", " ||| -1.5", " ||| f= 1 ||| -1.5", " ||| f= 1 ||| -1.5 ||| more"])
def test_a_mark_without_blanks_divides_nothing(rest: str) -> None:
    [[candidate]] = [entry.candidates for entry in read(f"0 ||| a|||b ||||{rest}\n", ["source"], 0)]
    assert (candidate.text, candidate.score) == ("a|||b ||||", -1.5 if rest else None)


def test_source_lines_after_the_last_list_have_empty_ones() -> None:
    lists = read("0 ||| a\n", ["x", "y", "z"])
    assert [(entry.source, len(entry.candidates)) for entry in lists] == [("x", 1), ("y", 0), ("z", 0)]
    assert [entry.source for entry in read("", ["x"])] == ["x"]
    assert read("") == []


def test_lists_count_from_0_or_from_1_and_are_never_paired_by_a_guess() -> None:
    ours = "1 ||| a ||| log_prob=-1.500000 ||| -1.5\n2 ||| b ||| log_prob=-2.500000 ||| -2.5\n"
    others = ours.replace("log_prob=", "F0= ")

    def paired(*arguments: Any) -> list[tuple[str, list[str]]]:
        return [(entry.source, [candidate.text for candidate in entry.candidates]) for entry in read(*arguments)]

    assert paired(ours, ["x", "y"]) == paired(others, ["x", "y"], 1) == [("x", ["a"]), ("y", ["b"])]
    assert paired(others, ["x", "y", "z"], 0) == [("x", []), ("y", ["a"]), ("z", ["b"])]
    assert paired(ours, ["x", "y", "z"], 0) == [("x", []), ("y", ["a"]), ("z", ["b"])]
    for unclear in (others, ours.split("\n")[1]):
        with pytest.raises(
            DataError, match=r"^lists: begins with line \d; give the first source line's number, --count-from 0 or 1"
        ):
            read(unclear, ["x", "y", "z"])
    with pytest.raises(DataError, match=r"^lists, line 1: found source line 0 where 1 or later was expected"):
        read("0 ||| a\n", ["x"], 1)
    assert as_lines(*both(read(ours, ["x", "y"])[1]))[0].startswith("2 ||| b ||| log_prob=-2.500000 original= -2.5 ")


def both(entry: NBestList) -> tuple[NBestList, list[Ranked]]:
    """A list and its order by a model to which all is alike."""
    alike = {candidate.text: (-1.0, 1) for candidate in entry.candidates}
    return entry, rerank([entry], [feature(alike)])[0]


TABLE = {"a b": (-6.0, 3), "c": (-3.0, 1), "d": (-5.0, 5), "e": (-4.0, 2)}


def test_the_best_by_the_model_comes_first() -> None:
    asked: list[tuple[str, str]] = []
    by_table = feature(TABLE).score

    def recording(pairs: list[tuple[str, str]], before: object = None) -> list[ForcedScore]:
        asked.extend(pairs)
        return by_table(pairs)

    rankings = rerank(iter(read(JSON)), [Feature(recording, 1.0, length_penalty("none", 0.0))])
    assert [texts(ranking) for ranking in rankings] == [["c", "a b"], [], ["e", "d"]]
    assert [[ranked.score for ranked in ranking] for ranking in rankings] == [[-3.0, -6.0], [], [-4.0, -5.0]]
    assert asked == [("x", "a b"), ("x", "c"), ("z", "d"), ("z", "e")]


def test_the_length_penalty_divides_by_the_number_of_tokens() -> None:
    rankings = rerank(read(JSON), [feature(TABLE, alpha=1.0)])
    assert [texts(ranking) for ranking in rankings] == [["a b", "c"], [], ["d", "e"]]
    assert [ranked.score for ranked in rankings[0]] == pytest.approx([-2.0, -3.0])
    # As in the search, a language token at the beginning of every target counts.
    tagged = rerank(read(JSON), [replace(feature(TABLE, alpha=1.0), num_begin=1)])
    assert [ranked.score for ranked in tagged[0]] == pytest.approx([-1.5, -1.5])


def test_weighted_scores_of_models_and_the_list_are_added() -> None:
    other = {"a b": (-1.0, 1), "c": (-8.0, 2)}
    lists = read(JSON)[:1]
    features = [feature(TABLE, 0.5), feature(other, 2.0, alpha=1.0)]
    (ranking,) = rerank(lists, features, original_weight=10.0)
    assert texts(ranking) == ["a b", "c"]
    assert [ranked.score for ranked in ranking] == pytest.approx([-3 - 2 - 15, -1.5 - 8 - 20])
    assert [ranked.model_scores for ranked in ranking] == [(-6.0, -1.0), (-3.0, -4.0)]
    (ranking,) = rerank(lists, features[:1], original_weight=-10.0)
    assert texts(ranking) == ["c", "a b"]


def test_equal_scores_stay_in_the_order_of_the_list() -> None:
    (ranking,) = rerank(read(JSON)[:1], [feature(TABLE, 0.0)])
    assert texts(ranking) == ["a b", "c"]


def test_a_missing_score_matters_only_where_it_has_a_weight() -> None:
    lists = read(JSON)
    assert texts(rerank(lists, [feature(TABLE)])[2]) == ["e", "d"]
    with pytest.raises(DataError, match=r"^lists, line 3: a hypothesis has no numeric score"):
        rerank(lists, [feature(TABLE)], original_weight=1.0)


def test_a_cut_hypothesis_is_marked() -> None:
    lists = read(JSON)[:1]
    for remarks, is_cut in [
        (("cut_source",), True),
        (("empty_hypothesis", "cut_source"), True),
        (("empty_source",), False),
    ]:
        (ranking,) = rerank(lists, [feature(TABLE), feature(TABLE, remarks=remarks)])
        assert [ranked.is_cut for ranked in ranking] == [is_cut, is_cut]


def test_a_list_is_written_in_the_form_it_came_in() -> None:
    lists = read(JSON)
    written = [as_lines(*both) for both in zip(lists, rerank(lists, [feature(TABLE)]), strict=True)]
    first = {"text": "c", "score": -3.0, "original_score": -2, "model_scores": [-3.0]}
    second = {"text": "a b", "score": -6.0, "log_prob": -9, "original_score": -1.5, "model_scores": [-6.0]}
    assert json.loads(written[0][0]) == {"line": 1, "source": "x", "hypotheses": [first, second]}
    assert json.loads(written[1][0]) == {"line": 2, "source": "y", "hypotheses": []}
    assert [len(lines) for lines in written] == [1, 1, 1]

    lists = read(DIVIDED.replace("-2\n", "-2 ||| 0-0 1-1\n"), ["x", "y", "z"])
    written = [as_lines(*both) for both in zip(lists, rerank(lists, [feature(TABLE)]), strict=True)]
    assert written == [
        [
            "0 ||| c ||| F0= 2 original= -2 model1= -3.000000 ||| -3.000000 ||| 0-0 1-1",
            "0 ||| a b ||| F0= 1 F1= 2 3 original= -1.5 model1= -6.000000 ||| -6.000000",
        ],
        [],
        ["2 ||| e ||| original= -0.4 model1= -4.000000 ||| -4.000000", "2 ||| d ||| model1= -5.000000 ||| -5.000000"],
    ]
    # And can be read again.
    again = read("".join(f"{line}\n" for lines in written for line in lines), ["x", "y", "z"])
    assert [[candidate.score for candidate in entry.candidates] for entry in again] == [[-3, -6], [], [-4, -5]]
    first, *_ = as_lines(again[0], rerank(again, [feature(TABLE), feature(TABLE)])[0])
    assert first.startswith("0 ||| c ||| F0= 2 original= -3 model1= -3.000000 model2= -3.000000 ||| ")
    other = read("0 ||| c ||| original= model1= -1 -2 F0= 3 ||| -1\n", ["x"])
    (line,) = as_lines(other[0], rerank(other, [feature(TABLE)])[0])
    assert line.startswith("0 ||| c ||| original= model1= -1 -2 F0= 3 original= -1 model1= -3.000000 ||| ")


def test_a_text_of_json_is_one_line_of_whole_characters() -> None:
    text = '{"source": "x\\ny", "hypotheses": [{"text": "a\\nb\\ud800", "score": 1, "note": "\\udfff"}]}\n'
    (entry,) = read(text)
    assert (entry.source, entry.candidates[0].text) == ("x y", "a b\ufffd")
    (line,) = as_lines(entry, rerank([entry], [feature({"a b\ufffd": (-1.0, 1)})])[0])
    assert "\n" not in line
    assert json.loads(line.encode("utf-8"))["hypotheses"][0]["note"] == "\ufffd"


@pytest.mark.parametrize(
    ("text", "sources", "told"),
    [
        ("0 ||| a\n", None, "lists: is not JSON, so it contains no source lines; give their file with --source"),
        (JSON, ["x"], "lists: its JSON lines contain the source lines"),
        ("0 ||| a\nnonsense\n", ["x"], "lists, line 2: not of the form"),
        ("0 ||| a\n\n", ["x"], "lists, line 2: not of the form"),
        ("x ||| a\n", ["x"], "lists, line 1: not of the form"),
        ("0 ||| a ||| f ||| high\n", ["x"], "lists, line 1: its score, 'high', is not a number"),
        ("0 ||| a\n1 ||| b\n0 ||| c\n", ["x", "y"], "lists, line 3: found source line 0 where 2 or later was expected"),
        ("0 ||| a\n1 ||| b\n", ["x"], "lists, line 2: source line 1 does not exist (there are 1, from 0)"),
        (JSON + "{\n", None, "lists, line 4: not valid JSON"),
        (JSON + "\n", None, "lists, line 4: not valid JSON"),
        (JSON + "{" * 100_000 + "\n", None, "lists, line 4: not valid JSON"),
        (JSON + "[" * 100_000 + "\n", None, "lists, line 4: not valid JSON"),
        (JSON + "[]\n", None, 'lists, line 4: not a JSON object with a string "source"'),
        ('{"hypotheses": []}\n', None, 'lists, line 1: not a JSON object with a string "source"'),
        ('{"source": "x"}\n', None, 'lists, line 1: "hypotheses" is not a list'),
        ('{"source": "x", "hypotheses": ["a"]}\n', None, 'not an object with a string "text"'),
        ('{"source": "x", "hypotheses": [{"text": "a", "score": "-1"}]}\n', None, '"score" of a hypothesis is no'),
        ('{"source": "x", "hypotheses": [{"text": "a", "score": true}]}\n', None, '"score" of a hypothesis is no'),
    ],
)
def test_a_line_of_another_form_is_told(text: str, sources: list[str] | None, told: str) -> None:
    assert told in message_of(lambda: read(text, sources))


def test_json_lists_have_no_first_number() -> None:
    message_of(lambda: read(JSON, count_from=1), match="remove --count-from")
