"""The built-in corpus of long documents with facts at known positions."""

import hashlib
import math
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from pathlib import Path

import pytest

from nmtkit.corpora.corpus import open_corpus
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.facts import (
    ATTRIBUTES,
    FILLERS,
    NAMES,
    SPLITS,
    VALUES,
    FactsExample,
    fingerprint,
    generate,
)
from nmtkit.errors import DataError
from nmtkit.text.extraction import Example, Method, rank

AttainableNll = Callable[[Iterable[tuple[str, str]], int], float]
TOKENS = 48
"""24 facts, 23 tabs, and the end symbol."""


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
        hashlib.sha256(text.encode()).hexdigest() == "4b78d9262f38f37f18f20b169dcf7e9b6fbc006b2aa1aa2be04b4f5b3cc7d36f"
    )


def test_sources_have_4081_tokens_of_known_words(examples: list[FactsExample]) -> None:
    facts = {f"{name}.{attribute}{value}" for name in NAMES for attribute in ATTRIBUTES for value in VALUES}
    words = {*NAMES, *FILLERS, *facts}
    assert len(words) == 4 + 8 + 4 * 24 * 4
    for one in examples:
        assert len(one.source.replace("\t", " \t ").split(" ")) == 4081
        assert set(one.source.split()) <= words


def test_six_facts_lie_in_each_zone(examples: list[FactsExample]) -> None:
    for one in examples:
        tokens = one.source.replace("\t", " \t ").split(" ")
        facts = set(one.target.split("\t"))
        ends = [index + 1 for index, word in enumerate(tokens) if word in facts]
        assert [sum(end <= length for end in ends) for length in (64, 256, 1024, 4096)] == [6, 12, 18, 24]


def test_no_other_paragraph_has_two_words_in_a_row_of_the_target(examples: list[FactsExample]) -> None:
    for one in examples:
        facts, bigrams = one.target.split("\t"), set(pairwise(one.target.replace(".", " ").split()))
        sharing = [text for text in one.paragraphs if bigrams & set(pairwise(text.replace(".", " ").split()))]
        assert len(sharing) == 8
        assert all(any(fact in text for fact in facts) for text in sharing)


def test_values_are_evenly_distributed() -> None:
    values = [fact[-1] for one in generate("valid") for fact in one.target.split("\t")]
    assert set(values) == set(VALUES)
    assert max(values.count(value) for value in VALUES) < 1.5 * len(values) / len(VALUES)


def test_the_attainable_nll_is_that_of_the_facts_not_seen(
    examples: list[FactsExample], attainable_nll: AttainableNll
) -> None:
    pairs = in_order_of(examples, "identity")
    for length, unseen in ((1, 24), (64, 18), (256, 12), (1024, 6), (4096, 0)):
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
    assert [line.decode() for line in corpus.source.raw_lines] == [f"{one.source}\n" for one in expected]
    assert [line.decode() for line in corpus.target.raw_lines] == [f"{one.target}\n" for one in expected]
    assert len(expected) == SPLITS["valid"]
    assert corpus.fingerprint == fingerprint("valid") != fingerprint("test")
    with pytest.raises(DataError, match='"builtin/facts-valid" has no en-de'):
        open_corpus("builtin/facts-valid", "en", "de", Downloader(None))
