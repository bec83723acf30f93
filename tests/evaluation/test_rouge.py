"""ROUGE equals rouge-score 0.1.2: stored scores of made-up examples, and the package itself where it is installed."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from nmtkit.errors import DataError
from nmtkit.evaluation.checks import text_faults
from nmtkit.evaluation.metric_names import METRICS, comparable_to, left_out
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.rouge import ROUGE_METRICS, Rouge
from nmtkit.evaluation.significance import paired_test
from nmtkit.text.porter import stem

GOLDEN = json.loads((Path(__file__).parent / "rouge.json").read_text(encoding="utf-8"))
"""Scores by rouge-score 0.1.2, with each tab as a line end, and stems by nltk 3.10."""
EXAMPLES = GOLDEN["examples"]
NAMES = list(ROUGE_METRICS)


def best(rouge: Rouge, metric: str, references: list[str], hypothesis: str) -> float:
    return max(rouge.f1(metric, reference, hypothesis) for reference in references)


@pytest.mark.parametrize("metric", NAMES)
@pytest.mark.parametrize("form", ["unstemmed", "stemmed"])
def test_scores_are_those_of_rouge_score(form: str, metric: str) -> None:
    rouge = Rouge(stemmer=form == "stemmed")
    found = [best(rouge, metric, one["references"], one["hypothesis"]) for one in EXAMPLES]
    assert found == pytest.approx([one[form][metric] for one in EXAMPLES], abs=1e-12)
    assert len(set(found)) > 5


def test_stems_are_those_of_nltk() -> None:
    assert {word: stem(word) for word in GOLDEN["stems"]} == GOLDEN["stems"]


def test_words_of_three_characters_are_not_stemmed() -> None:
    assert stem("ties") == "tie"
    assert Rouge(stemmer=True).f1("rouge1", "gas", "gases") == 0
    assert Rouge(stemmer=True).f1("rouge1", "cats", "cat") == 1


def lcs_table(reference: list[str], hypothesis: list[str]) -> int:
    """The length of the LCS by the textbook's table."""
    above = [0] * (len(hypothesis) + 1)
    for one in reference:
        row = [0]
        for index, other in enumerate(hypothesis):
            row.append(above[index] + 1 if one == other else max(above[index + 1], row[index]))
        above = row
    return above[-1]


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_common_subsequence_is_that_of_the_table(seed: int) -> None:
    chance = random.Random(seed)
    texts = [[f"w{chance.randrange(30)}" for _ in range(chance.randrange(1, 200))] for _ in range(2)]
    length = lcs_table(*texts)
    expected = 2 * length / (len(texts[0]) + len(texts[1]))
    for metric in ("rougeL", "rougeLsum"):
        assert Rouge().f1(metric, *map(" ".join, texts)) == pytest.approx(expected, abs=1e-12)


def test_texts_of_10000_words_are_scored() -> None:
    words = [f"w{number}" for number in range(10_000)]
    text, reversed_text, every_second = " ".join(words), " ".join(words[::-1]), " ".join(words[::2])
    assert Rouge().f1("rougeL", text, reversed_text) == pytest.approx(1e-4)
    assert Rouge().f1("rougeL", text, every_second) == pytest.approx(2 / 3)
    assert Rouge().f1("rougeLsum", text, every_second) == pytest.approx(2 / 3)


def test_sentences_may_be_separated_by_any_text() -> None:
    one, other = "a b.<q>c d.", "c d.<q>a b."
    with_tabs = Rouge().f1("rougeLsum", one.replace("<q>", "\t"), other.replace("<q>", "\t"))
    assert Rouge(separator="<q>").f1("rougeLsum", one, other) == with_tabs == 1
    assert Rouge().f1("rougeLsum", one, other) < 1
    assert Rouge(separator="<q>").f1("rouge1", one, "a b c d") == 1, "a separator is no word"


def random_text(chance: random.Random) -> str:
    words = ["running", "runs", "flies", "fly", "cat", "cats", "the", "of", "Été", "42"]
    return "".join(chance.choice(words) + chance.choice(" \t.") for _ in range(chance.randrange(30)))


@pytest.mark.parametrize("stemmer", [False, True])
def test_random_texts_have_the_scores_of_rouge_score_where_it_is_installed(stemmer: bool) -> None:
    rouge_score: Any = pytest.importorskip("rouge_score.rouge_scorer")
    scorer = rouge_score.RougeScorer(NAMES, use_stemmer=stemmer)
    chance = random.Random(1)
    for _ in range(300):
        references = [random_text(chance) for _ in range(chance.randrange(1, 4))]
        hypothesis = random_text(chance)
        expected = scorer.score_multi([one.replace("\t", "\n") for one in references], hypothesis.replace("\t", "\n"))
        for metric in NAMES:
            found = best(Rouge(stemmer), metric, references, hypothesis)
            assert found == pytest.approx(expected[metric].fmeasure, abs=1e-12)


TWO_REFERENCES = [one for one in EXAMPLES if len(one["references"]) == 2]
SYSTEM = [one["hypothesis"] for one in TWO_REFERENCES]


def scorer_of(**options: Any) -> Scorer:
    references = [[one["references"][number] for one in TWO_REFERENCES] for number in range(2)]
    return Scorer(references, target_language=None, text="plain", **options)


def test_the_score_of_a_text_is_the_mean_of_the_best_references_in_percent() -> None:
    scorer = scorer_of(rouge=Rouge(stemmer=True))
    scores, lines = scorer.score(SYSTEM, [*NAMES, "chrf2"]), scorer.sentence_scores(SYSTEM, NAMES)
    assert list(scores) == [*NAMES, "chrf2"]
    for metric in NAMES:
        expected = [100 * one["stemmed"][metric] for one in TWO_REFERENCES]
        assert [line[metric] for line in lines] == pytest.approx(expected, abs=1e-12)
        assert scores[metric].score == pytest.approx(sum(expected) / len(expected), abs=1e-12)


def test_the_signature_states_the_settings() -> None:
    found = scorer_of(rouge=Rouge(stemmer=True, separator="<q>")).score(SYSTEM, ["rouge2", "rougeLsum"])
    assert re.fullmatch(r"rouge:2\|stem:yes\|split:<q>\|nrefs:2\|version:nmtkit-[\d.]+", found["rouge2"].signature)
    assert found["rougeLsum"].signature.startswith("rouge:L.sum|stem:yes|split:<q>|")
    assert scorer_of().score(SYSTEM, ["rougeL"])["rougeL"].signature.startswith("rouge:L|stem:no|split:tab|")
    assert all("ROUGE" in comparable_to(metric) for metric in NAMES)


def test_intervals_and_paired_tests_resample_the_examples() -> None:
    references = [f"the number {number} is a word" for number in range(40)]
    good = references[:30] + ["nothing"] * 10
    poor = references[:20] + ["nothing"] * 20
    scorer = Scorer([references], target_language="en", text="plain")
    score = scorer.score(good, ["rouge1"], resamples=200)["rouge1"]
    assert score.score == 75
    assert score.interval is not None
    assert 70 < score.interval.mean < 80
    assert 8 < score.interval.half_width < 20  # 1.96 standard errors of 30 in 40 are 13.4
    for method in ("bootstrap", "randomization"):
        found = paired_test(scorer, {"good": good, "poor": poor}, "rouge1", method, trials=200)["poor"]  # type: ignore[arg-type]
        assert (found.score, found.difference) == (50, -25)
        assert found.is_significant
        assert found.signature.startswith("rouge:1|stem:no|split:tab|nrefs:1|")


def test_rouge_is_computed_only_by_name_and_of_any_text_in_latin_letters() -> None:
    assert not set(NAMES) & set(METRICS)
    assert not set(NAMES) & set(scorer_of().score(SYSTEM))
    tokenized = Scorer([["it 's a word"]], target_language=None, text="tokenized")
    assert tokenized.score(["it's a word"], ["rouge1"])["rouge1"].score == 100
    for language, is_left_out in (
        ("de", False),
        ("xx", False),
        ("sr_Latn", False),
        ("sr", True),
        ("ru", True),
        ("ja", True),
    ):
        assert (set(NAMES) <= set(left_out(target_language=language, text="plain"))) == is_left_out
    with pytest.raises(DataError, match="rougeL cannot be computed: it reads ASCII letters and digits only"):
        Scorer([["слово"]], target_language="ru", text="plain").score(["слово"], ["rougeL"])
    with pytest.raises(DataError, match="did you mean 'rougeL'"):
        scorer_of().score(SYSTEM, ["rouge-l"])


def test_tabs_between_sentences_and_punctuation_are_no_fault_of_summaries() -> None:
    lines = ["The mayor spoke.\tNobody listened."] * 5
    split = [line.replace(".", " .") for line in lines]
    for hypotheses, names, count in ((lines, None, 0), (split, NAMES, 0), (split, [*NAMES, "ter"], 1)):
        faults = text_faults(hypotheses, [lines], sources=None, target_language="en", text="plain", metrics=names)
        assert [fault.what for fault in faults] == ["punctuation split off as a tokeniser does"] * count
