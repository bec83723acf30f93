import itertools

import pytest
import sacrebleu

from nmtkit.decoding.sampling import by_expected_utility
from nmtkit.evaluation.metrics import sentence_utility


def overlap(hypothesis: str, reference: str) -> float:
    return len(set(hypothesis) & set(reference)) / max(len(set(reference)), 1)


def test_the_sample_most_like_the_others_comes_first() -> None:
    assert by_expected_utility(["xyz", "abc", "abd", "abe"], overlap)[-1] == 0
    assert by_expected_utility(["q", "ab", "abc", "abcd"], overlap)[0] in (2, 3)


def test_what_was_drawn_often_counts_often() -> None:
    assert by_expected_utility(["ab", "cd", "cd"], overlap) == [1, 0]
    assert by_expected_utility(["ab", "cd", "cd", "ab", "ab"], overlap)[0] == 0


def test_an_empty_sample_that_was_drawn_most_wins() -> None:
    for metric in ("chrf2", "sacrebleu"):
        samples = ["the dog", *[""] * 9]
        assert by_expected_utility(samples, sentence_utility(metric)) == [1, 0]


def test_of_equals_the_first_comes_first() -> None:
    assert by_expected_utility(["a", "b", "c"], overlap) == [0, 1, 2]
    assert by_expected_utility([""], overlap) == [0]


@pytest.mark.parametrize("metric", ["chrf2", "sacrebleu"])
def test_utilities_are_sacrebleus_sentence_scores(metric: str) -> None:
    utility = sentence_utility(metric)
    assert utility("the dog sleeps here", "the dog sleeps here") == pytest.approx(100)
    assert 0 < utility("the dog sleeps", "the dog slept") < 100
    assert utility("a", "b c d") == pytest.approx(0, abs=1)
    scorer = sacrebleu.CHRF() if metric == "chrf2" else sacrebleu.BLEU(effective_order=True)
    texts = ["the dog sleeps", "the dog slept .", "ein Hund", "", "a", "x" * 300, "Straße  \t é"]
    for hypothesis, reference in itertools.permutations(texts, 2):
        assert utility(hypothesis, reference) == scorer.sentence_score(hypothesis, [reference]).score
