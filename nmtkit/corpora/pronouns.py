"""A built-in English-German corpus of documents, in which only the sentence before decides the translation of "it".

A document has one to three couples of sentences, each about one thing; blank lines separate documents:

    The lamp is very old today.        Die Lampe ist heute sehr alt.
    Anna wants to sell it.             Anna will sie verkaufen.

German has er, sie, es (object: ihn, sie, es) by the gender of the thing in the sentence before. Both sentences of a
couple are sampled independently of each other, by the grammar and words of ``synthetic.py``, and "it" stands for no
person. The three genders, and "it" as subject and as object, are exactly equally frequent in each split.

The best attainable share of correct sentences with "it" is 100 % with the sentence before, and 33.3 % in expectation
without it, whatever else of the sentence is read (with 600 sentences, the standard deviation of a guess is 1.9 points).
All other sentences have exactly one translation, with and without context.

There are 15,000 couples for training, 150 for validation and 600 for testing. No sentence of one split occurs in
another.
"""

import zlib
from collections.abc import Sequence
from random import Random

from nmtkit.corpora import synthetic_lexicon as lexicon
from nmtkit.corpora.synthetic import Clause, Phrase, Sentence, english_sentence, german_sentence, pick, with_time
from nmtkit.corpora.synthetic_lexicon import ACCUSATIVE, DATIVE, NOMINATIVE, PERFECT, PRESENT, Noun

SPLITS = ("pronouns-train", "pronouns-valid", "pronouns-test")
PRONOUNS = {
    ("m", NOMINATIVE): "er", ("f", NOMINATIVE): "sie", ("n", NOMINATIVE): "es",
    ("m", ACCUSATIVE): "ihn", ("f", ACCUSATIVE): "sie", ("n", ACCUSATIVE): "es",
}  # fmt: skip
"""Translations of "it" by gender of the thing and case of the pronoun."""

_COUPLES = dict(zip(SPLITS, (15_000, 150, 600), strict=True))
_SEEDS = dict(zip(SPLITS, (11, 12, 13), strict=True))
_MOST_COUPLES = 3  # of a document
_GOODS = [noun for group in lexicon.GROUPS["goods"] for noun in lexicon.NOUNS[group]]
_THINGS = {gender: [noun for noun in _GOODS if noun.gender == gender] for gender in "mfn"}
_VERBS = {verb.english[0]: verb for verb in lexicon.VERBS}
_ACTIONS = ("buy", "sell", "find", "look", "need")
_TENSES = (PRESENT, PRESENT, PERFECT, "can", "must", "want", "should", "will")
_STATE_TENSES = (PRESENT, PRESENT, PERFECT, "must", "should", "will")
_DETERMINERS = ("the", "the", "the", "this", "my", "his", "her", "our")


def generate(split: str) -> list[tuple[str, str]]:
    """Return the pairs of a split (one of SPLITS), with blank pairs between documents: the same on every call."""
    rng, count = Random(_SEEDS[split]), _COUPLES[split]
    # Sampled without replacement, so that the frequencies are equal exactly and not only on average.
    kinds = [kind for kind in PRONOUNS for _ in range(count // len(PRONOUNS))]
    pairs: list[tuple[str, str]] = []
    rest = 0
    while kinds:
        if not rest:
            pairs += [("", "")] if pairs else []
            rest = 1 + int(rng.random() * _MOST_COUPLES)
        rest -= 1
        gender, case = kinds.pop(int(rng.random() * len(kinds)))
        # The role of the thing tells nothing about that of "it", as they are sampled independently.
        pairs.append(_sample_pair(rng, split, gender, pick(rng, (NOMINATIVE, ACCUSATIVE)), is_pronoun=False))
        pairs.append(_sample_pair(rng, split, gender, case, is_pronoun=True))
    return pairs


def _sample_pair(rng: Random, split: str, gender: str, case: str, *, is_pronoun: bool) -> tuple[str, str]:
    """Sample a sentence of a split about a thing of the given gender, which is its subject or its object."""
    while True:
        if is_pronoun:
            thing = Phrase("it", PRONOUNS[gender, case], is_pronoun=True)
        else:
            thing = _sample_singular(rng, case, _THINGS[gender])
        clause = (_sample_state if case == NOMINATIVE else _sample_action)(rng, thing)
        sentence = Sentence(with_time(rng, clause, can_front=True) if rng.random() < 0.7 else clause)
        source = english_sentence(sentence)
        # By a checksum, so that a sentence is in one split only; hash() of a text differs between processes.
        share = zlib.crc32(source.encode()) % 20
        if split == SPLITS[1 if share == 0 else 2 if share <= 2 else 0]:
            return source, german_sentence(sentence)


def _sample_singular(rng: Random, case: str, nouns: Sequence[Noun]) -> Phrase:
    """Sample a determiner and a noun in the singular."""
    noun, determiner = pick(rng, nouns), lexicon.DETERMINERS[pick(rng, _DETERMINERS)]
    english = f"{determiner.english[0]} {noun.english[0]}"
    return Phrase(english, f"{determiner.forms[noun.gender, case]} {noun.german[False, case]}")


def _sample_person(rng: Random, case: str) -> Phrase:
    if rng.random() < 0.3:
        name = pick(rng, lexicon.NAMES)
        return Phrase(name, name)
    return _sample_singular(rng, case, lexicon.NOUNS["person"])


def _sample_state(rng: Random, thing: Phrase) -> Clause:
    """Sample a clause with the thing as its subject: how it is, or whose it is."""
    tense = pick(rng, _STATE_TENSES)
    if rng.random() < 0.5:
        return Clause(thing, _VERBS["belong"], tense, False, (_sample_person(rng, DATIVE),))
    adjective, (english, german) = pick(rng, lexicon.ADJECTIVES["thing"]), pick(rng, lexicon.DEGREES)
    quality = Phrase(english + adjective.english, german + adjective.german)
    return Clause(thing, lexicon.TO_BE, tense, False, adverbial=quality)


def _sample_action(rng: Random, thing: Phrase) -> Clause:
    """Sample a clause with the thing as its object."""
    verb = _VERBS[pick(rng, _ACTIONS)]
    return Clause(_sample_person(rng, NOMINATIVE), verb, pick(rng, _TENSES), False, (thing,))
