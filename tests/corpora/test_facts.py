"""The built-in corpus of long documents with facts at known positions."""

import hashlib
import math
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from pathlib import Path

import pytest

from nmtkit.corpora.corpus import open_corpus
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.facts import ATTRIBUTES, FILLERS, NAMES, SPLITS, VALUES, FactsExample, fingerprint, generate
from nmtkit.errors import DataError
from nmtkit.text.extraction import Example, Method, rank

AttainableNll = Callable[[Iterable[tuple[str, str]], int], float]
TOKENS = 24
"""12 facts, 11 tabs, and the end symbol."""


@pytest.fixture(scope="module")
def examples() -> list[FactsExample]:
    return list(islice(generate("test"), 30))


@pytest.fixture
def attainable_nll(monkeypatch: pytest.MonkeyPatch) -> AttainableNll:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import long_facts

    return long_facts.attainable_nll


def in_order_of(examples: list[FactsExample], method: Method) -> list[tuple[str, str]]:
    ranked = (rank(Example("", one.title, one.paragraphs, one.target, {}), method) for one in examples)
    return [("\t".join((one.title, *order)), one.target) for one, order in zip(examples, ranked, strict=True)]


def test_the_text_is_the_same_everywhere(examples: list[FactsExample]) -> None:
    text = "".join(f"{one.source}\n{one.target}\n" for one in examples)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "19455d62d6fd2808ee7012bc4f8ad516355f599f788104fd15b1aa8a8f77e1b1"
    )


def test_sources_have_4096_tokens_of_known_words(examples: list[FactsExample]) -> None:
    facts = {f"{name}.{attribute}{value}" for name in NAMES for attribute in ATTRIBUTES for value in VALUES}
    words = {*NAMES, *FILLERS, *facts}
    assert len(words) == 2 + 8 + 2 * 12 * 4
    for one in examples:
        assert len(one.source.replace("\t", " \t ").split(" ")) == 4096
        assert set(one.source.split()) <= words


def test_three_more_facts_are_stated_in_each_zone(examples: list[FactsExample]) -> None:
    for one in examples:
        tokens = one.source.replace("\t", " \t ").split(" ")
        facts = set(one.target.split("\t"))
        assert [len(facts.intersection(tokens[:length])) for length in (1, 64, 256, 1024, 4096)] == [0, 3, 6, 9, 12]


def test_facts_about_the_title_are_as_frequent_everywhere(examples: list[FactsExample]) -> None:
    for one in examples:
        is_about = [one.title in text for text in one.paragraphs]
        assert [sum(is_about[first:end]) for first, end in ((0, 9), (9, 36), (37, 146), (147, 585))] == [5, 14, 55, 219]
        assert not is_about[36]
        assert not is_about[146]
    counts = [text.count(f"{one.title}.") for one in examples for text in one.paragraphs if one.title in text]
    assert set(counts) == {1, 2, 3}
    assert all(abs(counts.count(count) / len(counts) - 1 / 3) < 0.02 for count in (1, 2, 3))


def test_paragraphs_about_the_title_have_its_name_three_times_and_all_others_share_no_bigram(
    examples: list[FactsExample],
) -> None:
    for one in examples:
        bigrams = set(pairwise(one.target.replace(".", " ").split()))
        for text in one.paragraphs:
            words = text.replace(".", " ").split()
            assert words.count(one.title) == (3 if one.title in words else 0)
            assert bool(bigrams & set(pairwise(words))) == (one.title in words)


def test_values_are_evenly_distributed() -> None:
    values = [fact[-1] for one in generate("valid") for fact in one.target.split("\t")]
    assert set(values) == set(VALUES)
    assert max(values.count(value) for value in VALUES) < 1.5 * len(values) / len(VALUES)


def test_the_attainable_nll_is_that_of_the_facts_not_seen(
    examples: list[FactsExample], attainable_nll: AttainableNll
) -> None:
    pairs = in_order_of(examples, "identity")
    for length, unseen in ((1, 12), (64, 9), (256, 6), (1024, 3), (4096, 0)):
        assert attainable_nll(pairs, length) == pytest.approx(unseen * math.log(4) / TOKENS)
    pair = [("anna\tso anna.age1 so\twell", "anna.age1")]
    assert [attainable_nll(pair, length) > 0 for length in (3, 4, 9)] == [True, False, False]


def test_extractors_are_in_the_order_of_the_papers_table_3(
    examples: list[FactsExample], attainable_nll: AttainableNll
) -> None:
    for length in (64, 256):
        identity, tf_idf, cheating = (
            attainable_nll(in_order_of(examples, method), length) for method in ("identity", "tf-idf", "cheating")
        )
        assert cheating < tf_idf < identity


def test_it_is_opened_as_a_corpus_in_english_only() -> None:
    corpus = open_corpus("builtin/facts-valid", "en", "en", Downloader(None))
    expected = list(generate("valid"))
    assert [line.decode() for line in corpus.source.read()] == [f"{one.source}\n" for one in expected]
    assert [line.decode() for line in corpus.target.read()] == [f"{one.target}\n" for one in expected]
    assert len(expected) == SPLITS["valid"]
    assert corpus.fingerprint == fingerprint("valid") != fingerprint("test")
    with pytest.raises(DataError, match='"builtin/facts-valid" has no en-de'):
        open_corpus("builtin/facts-valid", "en", "de", Downloader(None))
