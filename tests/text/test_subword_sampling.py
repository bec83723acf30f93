"""Sampled segmentations have the distribution that the papers give them, and the same in every process."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.config.data_schema import DataConfig
from nmtkit.text import subword_sampling
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.subword_sampling import BpeDropout, SubwordSampler, UnigramSampling
from nmtkit.text.tokenizer import Tokenizer
from tests.forked import outputs_by_hash_seed

PIECES = ["\u2581", "a", "b", "c", "ab", "bc", "\u2581a", "abc", "\u2581ab"]
INDEX = {piece: number for number, piece in enumerate(PIECES)}
LOG_PROBS = [-3.0, -2.0, -2.5, -2.2, -1.5, -1.7, -1.9, -1.2, -1.1]
RANKS = [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0]


def segmentations(word: str) -> Iterator[list[str]]:
    """All ways to write a word with PIECES."""
    for cuts in itertools.product([False, True], repeat=len(word) - 1):
        places = [0, *(place for place, is_cut in enumerate(cuts, start=1) if is_cut), len(word)]
        pieces = [word[begin:end] for begin, end in itertools.pairwise(places)]
        if all(piece in INDEX for piece in pieces):
            yield pieces


def shares(draws: list[list[int]]) -> dict[str, float]:
    counts = Counter(" ".join(PIECES[index] for index in ids) for ids in draws)
    return {text: count / len(draws) for text, count in counts.items()}


def bpe_dropout_by_its_algorithm(word: str, dropout: float, rng: random.Random) -> list[int]:
    """Algorithm 1 of Provilkov et al., word by word as it stands there."""
    current = list(word)
    while True:
        merges = [place for place in range(len(current) - 1) if current[place] + current[place + 1] in INDEX]
        merges = [place for place in merges if rng.random() >= dropout]
        if not merges:
            return [INDEX[piece] for piece in current]
        place = max(merges, key=lambda k: (RANKS[INDEX[current[k] + current[k + 1]]], -k))
        current[place : place + 2] = [current[place] + current[place + 1]]


def test_unigram_segmentations_come_with_their_probability_to_the_power_of_alpha() -> None:
    word, alpha = "\u2581abcab", 0.4
    weights = {
        " ".join(pieces): math.exp(alpha * sum(LOG_PROBS[INDEX[piece]] for piece in pieces))
        for pieces in segmentations(word)
    }
    sampler, rng = UnigramSampling(INDEX, LOG_PROBS, alpha), random.Random(1)
    found = shares([sampler.sample(word, rng.random) for _ in range(20_000)])
    assert len(weights) == 14
    assert set(found) <= set(weights)
    for text, weight in weights.items():
        assert found.get(text, 0.0) == pytest.approx(weight / sum(weights.values()), abs=0.012)


def test_bpe_dropout_has_the_distribution_of_its_algorithm() -> None:
    word = "\u2581abcabc"
    sampler, rng = BpeDropout(INDEX, RANKS, 0.3), random.Random(1)
    found = shares([sampler.sample(word, rng.random) for _ in range(20_000)])
    other = random.Random(2)
    expected = shares([bpe_dropout_by_its_algorithm(word, 0.3, other) for _ in range(20_000)])
    assert len(expected) > 10
    for text in found.keys() | expected.keys():
        assert found.get(text, 0.0) == pytest.approx(expected.get(text, 0.0), abs=0.02)


def test_all_merges_left_out_are_characters() -> None:
    assert BpeDropout(INDEX, RANKS, 1.0).sample("\u2581abc", random.Random(1).random) == [0, 1, 2, 3]


def test_a_long_word_does_not_vanish() -> None:
    word = "abc" * 2000
    ids = UnigramSampling(INDEX, [score * 100 for score in LOG_PROBS], 1.0).sample(word, random.Random(1).random)
    assert "".join(PIECES[index] for index in ids) == word


def test_bpe_dropout_reads_a_very_long_word_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, read, word = BpeDropout(INDEX, RANKS, 0.3), [], "abc" * 301
    merges = sampler._plain_merges
    monkeypatch.setattr(sampler, "_plain_merges", lambda part: read.append(part) or merges(part))
    ids = sampler.sample(word, random.Random(1).random)
    assert "".join(PIECES[index] for index in ids) == word
    assert [len(part) for part in read] == [400, 400, 103] and "".join(read) == word


@pytest.mark.parametrize("kind", [BpeDropout, UnigramSampling])
def test_long_words_keep_their_text(kind: type[BpeDropout | UnigramSampling], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subword_sampling, "_MOST_PAIRS", 3)
    sampler, rng = kind(INDEX, RANKS, 0.5), random.Random(1)
    for word in ("abcab", "abc" * 20, "bcabc", "cab" * 20):
        ids = sampler.sample(word, rng.random)
        assert "".join(PIECES[index] for index in ids) == word
    if isinstance(sampler, BpeDropout):
        assert len(sampler._joined) > 3  # they are forgotten with the next word
        sampler.sample("ab", rng.random)
        assert len(sampler._joined) == 1


def test_what_is_no_text_stays_and_parts_words() -> None:
    pieces = [None, *PIECES, None]
    sampler = SubwordSampler("bpe", pieces, [0.0, *RANKS, 0.0], 0.0)
    assert sampler.sample([2, 3, 10, 4, 0, 1, 2], 1) == [5, 10, 4, 0, 7]
    assert sampler.sample([], 1) == []


WORDS = ["".join(random.Random(k).choices("abcdefgh", k=k % 7 + 1)) for k in range(60)]
TEXT = [" ".join(random.Random(k).choices(WORDS, k=9)) for k in range(200)]


def learned(subwords: str, text: list[str] = TEXT, **changes: str) -> Tokenizer:
    data = {"source_language": "en", "target_language": "de", "train": ["mine/train"], "vocab_size": 60}
    config = DataConfig.model_validate({**data, "subwords": subwords, **changes})
    return learn_tokenizer(config, lambda: zip(text, text[::-1], strict=True))


BPE = learned("bpe")


@settings(max_examples=100)
@given(line=st.text("abcdefgh \u2581é"))
def test_without_dropout_bpe_is_that_of_sentencepiece(line: str) -> None:
    (plain,) = BPE.encode([line], "source")
    assert BPE.sampler("source", 0.0).sample(plain, 1) == plain


@pytest.mark.parametrize("subwords", ["bpe", "unigram"])
def test_the_mark_between_fields_stays_whole(subwords: str) -> None:
    model = learned(subwords, [f"{FIELD_MARK} {one} {FIELD_MARK} {one}" for one in TEXT], task="summary")
    rows = model.encode([f"{FIELD_MARK} {line} {FIELD_MARK} abc" for line in TEXT[:50]], "source")
    sampler = model.sampler("source", 0.3)
    sampled = [sampler.sample(ids, k) for k, ids in enumerate(rows)]
    assert sum(one != two for one, two in zip(rows, sampled, strict=True)) > 20
    assert [model.decode(ids) for ids in sampled] == [model.decode(ids) for ids in rows]
    mark = rows[0][0]
    assert all(ids[0] == mark and ids.count(mark) == 2 for ids in sampled)


def test_every_process_draws_the_same() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests/text'); from test_subword_sampling import TEXT, learned\n"
        "for model in (learned('bpe'), learned('unigram')):\n"
        "    sampler = model.sampler('source', 0.2)\n"
        "    print([sampler.sample(ids, k) for k, ids in enumerate(model.encode(TEXT[:50], 'source'))])"
    )
    found = outputs_by_hash_seed(code)
    assert found[0] == found[1]
    for subwords, printed in zip(("bpe", "unigram"), found[0].decode().splitlines(), strict=True):
        model = learned(subwords)
        sampler = model.sampler("source", 0.2)
        plain = model.encode(TEXT[:50], "source")
        assert printed == str([sampler.sample(ids, k) for k, ids in enumerate(plain)])
        assert printed != str(plain)
