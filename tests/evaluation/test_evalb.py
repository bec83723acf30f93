"""EVALB against numbers worked out by hand from evalb.c, and against a slow second way."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.evaluation.evalb import Evalb, Totals, evaluate, right_branching_parses
from nmtkit.evaluation.metric_names import comparable_to
from nmtkit.evaluation.metrics import Scorer, score
from nmtkit.evaluation.significance import Method, paired_test

GOLD = "(TOP (S (NP-SBJ (NNP Ann)) (VP (VBD gave) (NP (DT a) (NN talk)) (PP-TMP (IN on) (NP (NNP May) (CD 1)))) (. .)))"
# Ann gave a talk on May 1: S 0-7, NP 0-1, VP 1-7, NP 2-4, PP 4-7, NP 5-7


def counts(gold: str, test: str) -> tuple[int, int, int, int, int]:
    """Gold, test and matched brackets, words and correct tags of one sentence that counts."""
    total = evaluate([gold], [test]).all
    assert (total.sentences, total.errors, total.skipped) == (1, 0, 0)
    return total.gold, total.test, total.matched, total.words, total.correct_tags


class TestHandMadeTrees:
    def test_the_same_tree_is_a_complete_match(self) -> None:
        total = evaluate([GOLD], [GOLD]).all
        assert (total.precision, total.recall, total.f1, total.complete_match, total.tagging_accuracy) == (100,) * 5
        assert (total.gold, total.words) == (6, 7)

    def test_a_phrase_attached_elsewhere_costs_the_brackets_that_move(self) -> None:
        test = "(S (NP (NNP Ann)) (VP (VBD gave) (NP (NP (DT a) (NN talk)) (PP (IN on) (NP (NNP May) (CD 1))))) (. .))"
        total = evaluate([GOLD], [test]).all  # one bracket more: NP 2-7
        assert (total.gold, total.test, total.matched) == (6, 7, 6)
        assert total.precision == pytest.approx(600 / 7)
        assert total.recall == 100
        assert total.f1 == pytest.approx(1200 / 13)
        assert total.complete_match == 0

    def test_sums_are_taken_over_sentences_before_they_are_divided(self) -> None:
        gold, test = ["(S (NP (NN a)) (VP (VB b)))", "(S (NN c))"], ["(S (NP (NN a)) (X (VB b)))", "(NP (NN c))"]
        total = evaluate(gold, test).all
        assert (total.gold, total.test, total.matched) == (4, 4, 2)
        assert (total.precision, total.recall, total.f1) == (50, 50, 50)

    def test_tags_count_by_themselves(self) -> None:
        assert counts("(S (NN a) (VB b) (. .))", "(S (NN a) (NN b) (. .))") == (1, 1, 1, 2, 1)

    def test_complete_match_is_of_the_sentences_that_count(self) -> None:
        gold = ["(S (NN a))", "(S (NN b))", "(S (NN c))"]
        total = evaluate(gold, ["(S (NN a))", "(X (NN b))", ""]).all
        assert (total.complete_match, total.skipped) == (50, 1)


class TestCollinsRules:
    @pytest.mark.parametrize(
        ("gold", "test", "expected"),
        [
            ("(TOP (S (NN a)))", "(S (NN a))", (1, 1, 1, 1, 1)),  # TOP is no bracket
            ("( (S (NN a)))", "( (S (NN a)))", (2, 2, 2, 1, 1)),  # without a label it is one
            # Function tags do not count.
            ("(S-1 (NP-SBJ=2 (NN a)) (X=1 (NN b)))", "(S (NP (NN a)) (X-TMP (NN b)))", (3, 3, 3, 2, 2)),
            ("(S (PRT (RP up)))", "(S (ADVP (RP up)))", (2, 2, 2, 1, 1)),
            ("(NP (NP (NP (NN a))))", "(NP (NP (NN a)))", (3, 2, 2, 1, 1)),  # as often as a label stands there
        ],
    )
    def test_brackets_are_counted_by_labels_and_spans(self, gold: str, test: str, expected: tuple[int, ...]) -> None:
        assert counts(gold, test) == expected

    @pytest.mark.parametrize("tag", [",", ":", "``", "''", "."])
    def test_punctuation_is_taken_out_so_where_it_is_attached_does_not_matter(self, tag: str) -> None:
        gold = f"(S (NP (NN a)) ({tag} ,) (VP (VB b)))"
        assert counts(gold, f"(S (NP (NN a) ({tag} ,)) (VP (VB b)))") == (3, 3, 3, 2, 2)

    @pytest.mark.parametrize("tag", ["-LRB-", "$", "#", "SYM"])
    def test_other_signs_are_words(self, tag: str) -> None:
        gold = f"(S (NP (NN a)) ({tag} x) (VP (VB b)))"
        assert counts(gold, f"(S (NP (NN a) ({tag} x)) (VP (VB b)))") == (3, 3, 2, 3, 3)

    def test_a_phrase_of_punctuation_or_traces_alone_is_no_bracket(self) -> None:
        gold = "(S (NP (NN a)) (PRN (: --)) (SBAR (-NONE- 0) (S (-NONE- *T*))))"
        assert counts(gold, "(S (NP (NN a)) (: --))")[:3] == (2, 2, 2)

    def test_punctuation_counts_in_the_length_of_a_sentence_and_traces_do_not(self) -> None:
        for signs, is_short in ((38, True), (39, False)):
            gold = f"(S {'(, ,) ' * signs}(NN a) (NN b) (-NONE- *))"
            found = evaluate([gold], [gold])
            assert (found.all.sentences, found.short.sentences) == (1, int(is_short))


class TestSentencesThatDoNotCount:
    def remark(self, gold: str, test: str) -> tuple[Totals, str]:
        found = evaluate(["(S (NN z))", gold], ["(S (NN z))", test])
        assert (found.all.sentences, found.all.gold, found.all.words, found.all.f1) == (2, 1, 1, 100)
        ((line, text),) = found.remarks
        assert line == 2
        return found.all, text

    @pytest.mark.parametrize(
        ("gold", "test", "told"),
        [
            ("(S (NN a) (NN b))", "(S (NN a))", "length unmatch (2|1)"),
            ("(S (NN a) (POS '))", "(S (NN a) ('' '))", "length unmatch (2|1)"),  # a tag of punctuation
            ("(S (NN a) (NN b))", "(S (NN a) (NN c))", "words unmatch (b|c)"),
        ],
    )
    def test_other_words_are_an_error(self, gold: str, test: str, told: str) -> None:
        total, text = self.remark(gold, test)
        assert (total.errors, total.skipped, text) == (1, 0, told)

    def test_another_sign_of_punctuation_is_none(self) -> None:
        assert evaluate(["(S (NN a) (. !))"], ["(S (NN a) (. ?))"]).all.f1 == 100

    @pytest.mark.parametrize("test", ["", "  ", "(())", "(S)", "(S (. .))", "(S (-NONE- *))"])
    def test_a_parse_without_words_is_skipped(self, test: str) -> None:
        total, text = self.remark("(S (NN a) (. .))", test)
        assert (total.errors, total.skipped, text) == (0, 1, "no parse")

    @pytest.mark.parametrize("test", ["(S (NN a)", "(S (NN a)))", "(S (NN a) a)", "a"])
    def test_a_parse_that_is_no_tree_is_an_error(self, test: str) -> None:
        total, text = self.remark("(S (NN a))", test)
        assert (total.errors, total.skipped) == (1, 0)
        assert text.startswith("the parses, line 2: ")

    def test_a_gold_line_that_is_no_tree_ends_it(self) -> None:
        with pytest.raises(DataError, match=r"^the gold trees, line 2: 'b' is a word without a tag"):
            evaluate(["(S (NN a))", "(S (NN a) b)"], ["(S (NN a))", "(S (NN b))"])

    def test_of_nothing_that_counts_every_score_is_zero(self) -> None:
        total = evaluate(["(S (NN a))"], [""]).all
        assert (total.precision, total.recall, total.f1, total.complete_match, total.tagging_accuracy) == (0,) * 5


def oracle(gold: str, test: str) -> tuple[int, int, int] | None:
    """Gold, test and matched brackets as evalb.c goes about it: list by list, the first that fits is taken off."""
    lists = []
    for line in (gold, test):
        found: list[list[object]] = []
        kept: list[str] = []
        rest = line
        open_: list[list[object]] = []
        while rest := rest.lstrip():
            if leaf := re.match(r"\((\S+) ([^\s()]+)\)", rest):
                if leaf[1] not in ("TOP", "-NONE-", ",", ":", "``", "''", "."):
                    kept.append(leaf[2])
                rest = rest[leaf.end() :]
            elif phrase := re.match(r"\(([^\s()]*)", rest):
                found.append([phrase[1], len(kept), -1])
                open_.append(found[-1])
                rest = rest[phrase.end() :]
            else:
                open_.pop()[2] = len(kept)
                rest = rest[1:]
        for bracket in found:
            bracket[0] = re.sub("[-=].*", "", str(bracket[0])).replace("PRT", "ADVP")
        lists.append((kept, [bracket for bracket in found if bracket[0] != "TOP" and bracket[1] != bracket[2]]))
    if lists[0][0] != lists[1][0] or not lists[1][0]:
        return None
    left = list(lists[1][1])
    matched = 0
    for bracket in lists[0][1]:
        if bracket in left:
            left.remove(bracket)
            matched += 1
    return len(lists[0][1]), len(lists[1][1]), matched


def random_tree(generator: random.Random, sentence: list[tuple[str, str]], depth: int = 0) -> str:
    if len(sentence) == 1 and (depth > 4 or (depth and generator.random() < 0.6)):
        return "({} {})".format(*sentence[0])
    middle = generator.randint(1, len(sentence))
    parts = [part for part in (sentence[:middle], sentence[middle:]) if part]
    label = generator.choice(["S", "NP", "NP-SBJ", "VP", "PRT", "ADVP", "ADVP-TMP", "TOP", "X=1", ""])
    return f"({label} {' '.join(random_tree(generator, part, depth + 1) for part in parts)})"


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_brackets_are_counted_as_the_slow_way_counts_them(seed: int) -> None:
    generator = random.Random(seed)
    words = [(generator.choice(["NN", "VB", ",", ".", "''", "-NONE-"]), generator.choice("ab,")) for _ in range(6)]
    others = [*words[:-1], (generator.choice(["NN", "."]), words[-1][1])]
    gold, test = random_tree(generator, words), random_tree(generator, others)
    total = evaluate([gold], [test]).all
    expected = oracle(gold, test)
    assert (total.errors + total.skipped == 1) == (expected is None)
    if expected is not None:
        assert (total.gold, total.test, total.matched) == expected


def test_the_baseline_branches_to_the_right_over_the_words_of_gold() -> None:
    assert right_branching_parses([GOLD, ""]) == [
        "(S (NNP Ann) (VP (VBD gave) (VP (DT a) (VP (NN talk) (VP (IN on) (VP (NNP May) (VP (CD 1) (VP (. .)))))))))",
        "",
    ]
    total = evaluate([GOLD], right_branching_parses([GOLD])).all
    assert (total.gold, total.test, total.matched) == (6, 7, 2)  # S 0-7, VP 1-7


@pytest.mark.parametrize("leaf", ["(-NONE- *)", "(SYM -)", "(: \u2013)", '(`` ")'])
def test_the_baseline_has_every_sentence_whatever_its_traces_and_tags(leaf: str) -> None:
    gold = ["(S (NP (NNP Ann)) (VP (VBD ran)) (. .))", f"(S (NP-SBJ {leaf}) (VP (VB Go) (ADVP (RB home))) (. .))"]
    found = evaluate(gold, right_branching_parses(gold))
    assert found.remarks == []
    assert [one.gold > 0 for one in found.sentences] == [True, True]


def test_scores_have_evalbs_names_and_say_what_they_compare() -> None:
    test = GOLD.replace("NP-SBJ", "VP")
    scores = score([test], [GOLD], target_language=None, text="plain", metrics=["evalb"])
    assert scores == score([test], [GOLD], target_language="ptb", text="trees")
    names = ["f1", "precision", "recall", "complete-match", "tagging-accuracy"]
    assert list(scores) == [
        *(f"evalb-{name}" for name in names),
        *(f"evalb-{name}-40" for name in names),
        "evalb-f1-right-branching",
    ]
    assert scores["evalb-f1"].score == pytest.approx(500 / 6)
    assert scores["evalb-f1"].details == "5 of 6 gold and 6 parsed brackets; 0 error and 0 skipped sentences"
    assert scores["evalb-recall-40"].signature == "evalb|params:COLLINS|length:<=40|sentences:1"
    assert all(comparable_to(name) for name in scores)


@pytest.fixture(scope="module")
def parsers() -> tuple[Scorer, dict[str, list[str]]]:
    """Gold trees, and parsers that have most of them wrong, some of them wrong, and the same ones."""
    generator = random.Random(1)
    tags = ["NN", "VB", "IN"]
    sentences = [[(generator.choice(tags), letter) for letter in "abcdefg"] for _ in range(60)]
    gold, other = ([f"(S {random_tree(generator, words)})" for words in sentences] for _ in range(2))
    some = [one if number % 4 else two for number, (one, two) in enumerate(zip(gold, other, strict=True))]
    systems = {"poor": other, "good": some, "same": list(some)}
    return Scorer([gold], target_language=None, text="trees"), systems


def f1_of(counts: np.ndarray) -> float:
    gold, test, matched = counts.sum(0)
    return float(200 * matched / (gold + test))


def test_an_interval_is_that_of_the_scores_of_resampled_sentences(
    parsers: tuple[Scorer, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    scorer, systems = parsers
    found = scorer.score(systems["good"], resamples=400)
    counts = np.array(
        [(one.gold, one.test, one.matched) for one in evaluate(*scorer.references, systems["good"]).sentences]
    )
    drawn = np.random.default_rng(7).choice(len(counts), size=(400, len(counts)), replace=True)
    scores = sorted(f1_of(counts[lines]) for lines in drawn)
    interval = found["evalb-f1"].interval
    assert interval is not None
    assert (interval.mean, interval.half_width) == pytest.approx((np.mean(scores), (scores[389] - scores[10]) / 2))
    assert (interval.resamples, interval.seed) == (400, "7")
    assert {name for name, one in found.items() if one.interval is not None} == set(Evalb.tested)
    assert {name: one.score for name, one in found.items()} == {
        name: one.score for name, one in scorer.score(systems["good"]).items()
    }


@pytest.mark.parametrize("method", ["bootstrap", "randomization"])
def test_parsers_are_tested_in_pairs(parsers: tuple[Scorer, dict[str, list[str]]], method: Method) -> None:
    scorer, systems = parsers
    scores = {name: scorer.score(lines) for name, lines in systems.items()}
    for metric in Evalb.tested:
        found = paired_test(scorer, systems, metric, method, trials=200)
        assert {name: one.score for name, one in found.items()} == {
            name: scores[name][metric].score for name in systems
        }
        assert found["good"].difference == scores["good"][metric].score - scores["poor"][metric].score > 0
        assert found["good"].is_significant
        assert found["good"].signature.startswith("evalb|params:COLLINS|length:all|sentences:60|")
        assert f"{'bs' if method == 'bootstrap' else 'ar'}:200" in found["good"].signature
    same = {name: systems[name] for name in ("good", "same")}
    assert not paired_test(scorer, same, "evalb-f1", method, trials=50)["same"].is_significant


def test_a_sentence_has_scores_by_itself_and_none_where_it_does_not_count() -> None:
    scorer = Scorer([[GOLD, "(S (NN a))", "(S (NN a))"]], target_language=None, text="trees")
    parses = [GOLD.replace("NP-SBJ", "VP"), "(S (NN b))", ""]
    assert scorer.sentence_scores(parses) == [
        {name: pytest.approx(500 / 6) for name in Evalb.tested},
        *(dict.fromkeys(Evalb.tested, 0.0) for _ in range(2)),
    ]
    assert scorer.sentence_quality(parses) == ("evalb-f1", [pytest.approx(500 / 6), 0, 0])


@pytest.mark.parametrize(
    ("count", "metrics", "told"),
    [
        (2, ["evalb"], "evalb compares with one reference per line; give a single reference"),
        (1, ["evalb", "chrf2"], "evalb cannot be combined with other metrics; give it as the only metric"),
        (1, ["evalb-f1"], "evalb-f1 is one of the scores of evalb: give --metric evalb"),
    ],
)
def test_evalb_is_asked_for_alone_with_one_gold_tree_a_line(count: int, metrics: list[str], told: str) -> None:
    with pytest.raises(DataError, match=told):
        Scorer([[GOLD]] * count, target_language="en", text="plain").score([GOLD], metrics)
