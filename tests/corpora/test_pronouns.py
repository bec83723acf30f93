"""The built-in corpus of documents: the same everywhere, balanced, and its pronouns follow from the sentence before."""

import hashlib
import re
from collections import Counter

import pytest

from nmtkit.corpora import synthetic_lexicon as lexicon
from nmtkit.corpora.corpus import open_corpus
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.pronouns import PRONOUNS, SPLITS, generate

Pairs = dict[str, list[tuple[str, str]]]
SHA256 = {
    "pronouns-train": "e2e79461247cf5cc6073d1a2aeaeba1b8e9c06549ec3a522305ee6d718e7a167",
    "pronouns-valid": "98ab231d6d90d3b73bbe3049f9ce7381d29bacc080b69f9b5abf03da4db74774",
    "pronouns-test": "0e1139be3ab1ec0de00278b3c7f3394499740573d03f3699107114ae1af9c76a",
}


@pytest.fixture(scope="module")
def corpus() -> Pairs:
    return {split: generate(split) for split in SPLITS}


def has_it(source: str) -> bool:
    return re.search(r"\bit\b", source, re.IGNORECASE) is not None


def test_it_is_the_same_everywhere(corpus: Pairs) -> None:
    texts = {split: "".join(f"{source}\t{target}\n" for source, target in pairs) for split, pairs in corpus.items()}
    assert {split: hashlib.sha256(text.encode()).hexdigest() for split, text in texts.items()} == SHA256


def test_every_it_follows_a_sentence_about_one_thing_of_its_gender(corpus: Pairs) -> None:
    genders = {noun.english[0]: noun.gender for group in lexicon.GROUPS["goods"] for noun in lexicon.NOUNS[group]}
    pronouns = {gender: {form for (of, _), form in PRONOUNS.items() if of == gender} for gender in "mfn"}
    for pairs in corpus.values():
        for (before, _), (source, target) in zip([("", ""), *pairs], pairs, strict=False):
            if not has_it(source):
                assert bool(source) is bool(target)
                continue
            [thing] = [word for word in re.findall(r"\w+", before) if word in genders]
            assert not has_it(before)
            assert not genders.keys() & set(re.findall(r"\w+", source))
            [pronoun] = re.findall(r"\b(er|sie|es|ihn)\b", target, re.IGNORECASE)
            assert pronoun.lower() in pronouns[genders[thing]]


def test_a_guess_is_right_in_exactly_one_of_three(corpus: Pairs) -> None:
    for split, pairs in corpus.items():
        lines = [target for source, target in pairs if has_it(source)]
        counts = Counter(re.findall(r"\b(er|sie|es|ihn)\b", line, re.IGNORECASE)[0].lower() for line in lines)
        count = {"pronouns-train": 15_000, "pronouns-valid": 150, "pronouns-test": 600}[split]
        assert counts == {"er": count / 6, "ihn": count / 6, "sie": count / 3, "es": count / 3}


def test_without_context_everything_else_has_one_translation(corpus: Pairs) -> None:
    targets: dict[str, set[str]] = {}
    for source, target in (pair for pairs in corpus.values() for pair in pairs):
        targets.setdefault(source, set()).add(target)
    assert all(len(found) == 1 for source, found in targets.items() if not has_it(source))
    assert max(len(found) for found in targets.values()) == 3


def test_splits_share_no_sentence(corpus: Pairs) -> None:
    sources = [{source for source, _ in pairs if source} for pairs in corpus.values()]
    assert not sources[0] & sources[1]
    assert not sources[0] & sources[2]
    assert not sources[1] & sources[2]


def test_it_opens_by_its_name_in_both_directions() -> None:
    downloader = Downloader(None)
    forth, back = (open_corpus("builtin/pronouns-valid", *pair, downloader) for pair in (("en", "de"), ("de", "en")))
    assert list(forth.source.open()) == list(back.target.open()) == [source for source, _ in generate(SPLITS[1])]
