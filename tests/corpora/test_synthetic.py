"""The built-in corpus: correct German, the same everywhere, an unseen test set, enough of every phenomenon."""

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from nmtkit.corpora import synthetic_lexicon as lexicon
from nmtkit.corpora.synthetic import (
    PHENOMENA,
    SPLITS,
    Clause,
    Phrase,
    Sentence,
    SyntheticPair,
    english_sentence,
    german_sentence,
    sample_sentence,
)
from nmtkit.corpora.synthetic_lexicon import CASES, MANY, PERFECT, PRESENT, english_number, german_number

Corpus = dict[str, list[SyntheticPair]]

SHA256 = {
    "train": "b3b5f5a391712cd4488d4a932ad8a68ee8398d3bff57267cb1b01f445ca6f673",
    "valid": "9d9db180074a34041a0454206481bb660ff0549e243b0e7ca10a7839c53e6c6f",
    "synthetic": "492f10f943c7bb1be3cb9da857b3f50f143d9cd9d83cb68978a176f4ea7cfcaf",
}
"""Of all pairs with their phenomena: whatever was found to hold of them still does."""

# Generates the corpus in a process of its own, where no types are checked on every call (that takes ten times
# as long) and strings have other hashes; one line a pair. "more" are pairs without regard to splits.
GENERATE = """
import random
from nmtkit.corpora.synthetic import SPLITS, sample_sentence, english_sentence, generate, german_sentence

pairs = {split: generate(split) for split in SPLITS}
print("repeated", pairs["valid"] == generate("valid"), sep="\\t")
for split in SPLITS:
    for pair in pairs[split]:
        print(split, pair.source, pair.target, ",".join(sorted(pair.phenomena)), sep="\\t")
rng = random.Random(4)
for _ in range(30_000):
    sentence = sample_sentence(rng)
    print("more", english_sentence(sentence), german_sentence(sentence), sep="\\t")
"""


@pytest.fixture(scope="module")
def generated() -> dict[str, list[list[str]]]:
    """The columns of what GENERATE prints, by the first one."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run([sys.executable, "-c", GENERATE], capture_output=True, check=True, env=environment)
    columns: dict[str, list[list[str]]] = {}
    for line in result.stdout.decode().splitlines():
        name, *rest = line.split("\t")
        columns.setdefault(name, []).append(rest)
    return columns


@pytest.fixture(scope="module")
def corpus(generated: dict[str, list[list[str]]]) -> Corpus:
    return {
        split: [
            SyntheticPair(source, target, frozenset(filter(None, names.split(","))))
            for source, target, names in generated[split]
        ]
        for split in SPLITS
    }


# ---- the splits


@pytest.mark.parametrize("split", SPLITS)
def test_same_pairs_on_every_machine(corpus: Corpus, split: str) -> None:
    lines = [f"{pair.source}\t{pair.target}\t{sorted(pair.phenomena)}\n" for pair in corpus[split]]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == SHA256[split]


def test_same_pairs_on_every_call(generated: dict[str, list[list[str]]]) -> None:
    assert generated["repeated"] == [["True"]]


def test_same_sentences_in_every_process(generated: dict[str, list[list[str]]]) -> None:
    rng = random.Random(4)
    sentences = [sample_sentence(rng) for _ in range(500)]
    assert [[english_sentence(one), german_sentence(one)] for one in sentences] == generated["more"][:500]


def test_splits_have_their_sizes_and_no_sentence_twice(corpus: Corpus) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == {"train": 60_000, "valid": 500, "synthetic": 1_000}
    for pairs in corpus.values():
        assert len({pair.source for pair in pairs}) == len({pair.target for pair in pairs}) == len(pairs)


def test_test_sentences_are_unseen(corpus: Corpus) -> None:
    for side in ("source", "target"):
        train, valid, test = ({getattr(pair, side) for pair in corpus[split]} for split in SPLITS)
        assert not test & train
        assert not test & valid
        assert not valid & train


def test_an_english_sentence_has_one_german_translation(generated: dict[str, list[list[str]]]) -> None:
    targets: dict[str, str] = {}
    for split in (*SPLITS, "more"):
        for source, target, *_ in generated[split]:
            assert targets.setdefault(source, target) == target


# ---- the phenomena


def test_every_phenomenon_is_in_fifty_test_sentences(corpus: Corpus) -> None:
    counts = Counter(name for pair in corpus["synthetic"] for name in pair.phenomena)
    assert counts.keys() == PHENOMENA.keys()
    assert min(counts.values()) >= 50
    assert counts["number word"] >= 200
    assert counts["subordinate clause"] >= 200


# ---- numbers

UNITS = "ein zwei drei vier fünf sechs sieben acht neun"
TEENS = "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"


def value_of(german: str) -> int:
    """The number that a German number word means."""
    hundreds, _, rest = german.rpartition("hundert")
    ones, _, tens = rest.rpartition("und")
    values = {word: number for number, word in enumerate(UNITS.split(), 1)} | {"": 0, "eins": 1}
    values |= {word: number for number, word in enumerate(TEENS.split(), 10)}
    values |= {word: 10 * number for number, word in enumerate(TENS.split(), 2)}
    return 100 * values[hundreds] + values[ones] + values[tens]


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred and one", "einhunderteins"),
        (111, "one hundred and eleven", "einhundertelf"),
        (216, "two hundred and sixteen", "zweihundertsechzehn"),
        (342, "three hundred and forty-two", "dreihundertzweiundvierzig"),
        (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"),
    ],
)
def test_number_words_match_known_examples(number: int, english: str, german: str) -> None:
    assert (english_number(number), german_number(number)) == (english, german)


def test_german_number_words_mean_their_number() -> None:
    assert [value_of(german_number(number)) for number in range(1, 1000)] == list(range(1, 1000))
    assert len({english_number(number) for number in range(1, 1000)}) == 999


# ---- nouns, articles and adjectives


@pytest.mark.parametrize(
    ("noun", "determiner", "forms"),
    [
        ("man", "the", "der alte Mann, den alten Mann, dem alten Mann"),
        ("woman", "the", "die alte Frau, die alte Frau, der alten Frau"),
        ("child", "the", "das alte Kind, das alte Kind, dem alten Kind"),
        ("man", "a", "ein alter Mann, einen alten Mann, einem alten Mann"),
        ("woman", "a", "eine alte Frau, eine alte Frau, einer alten Frau"),
        ("child", "a", "ein altes Kind, ein altes Kind, einem alten Kind"),
        ("boy", "this", "dieser alte Junge, diesen alten Jungen, diesem alten Jungen"),
        ("child", "every", "jedes alte Kind, jedes alte Kind, jedem alten Kind"),
        ("neighbour", "our", "unser alter Nachbar, unseren alten Nachbarn, unserem alten Nachbarn"),
        ("woman", "her", "ihre alte Frau, ihre alte Frau, ihrer alten Frau"),
        ("child", "no", "kein altes Kind, kein altes Kind, keinem alten Kind"),
        ("children", "the", "die alten Kinder, die alten Kinder, den alten Kindern"),
        ("mice", "this", "diese alten Mäuse, diese alten Mäuse, diesen alten Mäusen"),
        ("women", "my", "meine alten Frauen, meine alten Frauen, meinen alten Frauen"),
        ("men", "not a", "keine alten Männer, keine alten Männer, keinen alten Männern"),
        ("men", "bare", "alte Männer, alte Männer, alten Männern"),
        ("cars", "bare", "alte Autos, alte Autos, alten Autos"),
        ("girls", "two", "zwei alte Mädchen, zwei alte Mädchen, zwei alten Mädchen"),
    ],
)
def test_noun_phrases_are_declined(noun: str, determiner: str, forms: str) -> None:
    entry = next(entry for nouns in lexicon.NOUNS.values() for entry in nouns if noun in entry.english)
    is_plural = noun == entry.english[1]
    word = lexicon.number_determiner(2) if determiner == "two" else lexicon.DETERMINERS[determiner]
    phrases = []
    for case in CASES:
        key = ("p" if is_plural else entry.gender, case)
        phrases.append(f"{word.forms[key]} alt{word.adjective_endings[key]} {entry.german[is_plural, case]}".strip())
    assert ", ".join(phrases) == forms


def test_irregular_plurals_are_known() -> None:
    irregular = {noun.english[1] for nouns in lexicon.NOUNS.values() for noun in nouns if noun.irregular}
    assert irregular == {"men", "women", "children", "thieves", "mice", "geese", "wolves", "knives", "shelves"}


def test_german_nouns_are_capitalised() -> None:
    for nouns in lexicon.NOUNS.values():
        assert all(form[0].isupper() for noun in nouns for form in noun.german.values())


# ---- clauses

VERBS = {f"{verb.english[0]} {verb.particle}".strip(): verb for verb in lexicon.VERBS}
HE, WE = Phrase("he", "er", is_pronoun=True), Phrase("we", "wir", MANY, is_pronoun=True)
THE_MAN = Phrase("the man", "der Mann")
HIM, HER = Phrase("him", "ihn", is_pronoun=True), Phrase("her", "sie", is_pronoun=True)
THE_OLD_DOCTOR = Phrase("the old doctor", "den alten Arzt")
NOT_A_BOOK = Phrase("a book", "kein Buch", is_negated=True)
EARLY, TODAY = Phrase("early", "früh"), Phrase("today", "heute")


@pytest.mark.parametrize(
    ("clause", "source", "target", "subordinate"),
    [
        (
            Clause(HE, VERBS["get up"], PRESENT, False, (), EARLY),
            "He gets up early.",
            "Er steht früh auf.",
            "er früh aufsteht",
        ),
        (
            Clause(HE, VERBS["get up"], PERFECT, False, (), EARLY),
            "He has got up early.",
            "Er ist früh aufgestanden.",
            "er früh aufgestanden ist",
        ),
        (
            Clause(WE, VERBS["get up"], "want", True),
            "We do not want to get up.",
            "Wir wollen nicht aufstehen.",
            "wir nicht aufstehen wollen",
        ),
        (
            Clause(HE, VERBS["call up"], PRESENT, False, (THE_OLD_DOCTOR,), None, TODAY),
            "He calls up the old doctor today.",
            "Er ruft heute den alten Arzt an.",
            "er heute den alten Arzt anruft",
        ),
        (
            Clause(HE, VERBS["call up"], "will", False, (HIM,), None, TODAY),
            "He will call him up today.",
            "Er wird ihn heute anrufen.",
            "er ihn heute anrufen wird",
        ),
        (
            Clause(THE_MAN, VERBS["pick up"], PRESENT, False, (HIM,), None, TODAY),
            "The man picks him up today.",
            "Der Mann holt ihn heute ab.",
            "ihn der Mann heute abholt",
        ),
        (
            Clause(THE_MAN, VERBS["visit"], PERFECT, False, (HER,)),
            "The man has visited her.",
            "Der Mann hat sie besucht.",
            "der Mann sie besucht hat",
        ),
        (
            Clause(HE, VERBS["look for"], PRESENT, True, (HIM,)),
            "He does not look for him.",
            "Er sucht ihn nicht.",
            "er ihn nicht sucht",
        ),
        (
            Clause(HE, VERBS["read"], "must", True, (NOT_A_BOOK,)),
            "He must not read a book.",
            "Er darf kein Buch lesen.",
            "er kein Buch lesen darf",
        ),
        (
            Clause(THE_MAN, lexicon.TO_BE, PERFECT, True, (), Phrase("tired", "müde")),
            "The man has not been tired.",
            "Der Mann ist nicht müde gewesen.",
            "der Mann nicht müde gewesen ist",
        ),
    ],
)
def test_clauses_have_german_word_order(clause: Clause, source: str, target: str, subordinate: str) -> None:
    assert (english_sentence(Sentence(clause)), german_sentence(Sentence(clause))) == (source, target)
    main = Clause(Phrase("Anna", "Anna"), VERBS["wait"], PRESENT, False)
    last = Sentence(main, ("because", "weil"), clause)
    first = Sentence(main, ("because", "weil"), clause, True)
    reason = source[0].lower() + source[1:-1]
    assert (english_sentence(last), german_sentence(last)) == (
        f"Anna waits because {reason}.",
        f"Anna wartet, weil {subordinate}.",
    )
    assert (english_sentence(first), german_sentence(first)) == (
        f"Because {reason}, Anna waits.",
        f"Weil {subordinate}, wartet Anna.",
    )


def test_a_fronted_time_comes_before_the_verb() -> None:
    sentence = Sentence(Clause(HE, VERBS["call up"], PRESENT, False, (THE_OLD_DOCTOR,), None, TODAY, True))
    assert english_sentence(sentence) == "Today he calls up the old doctor."
    assert german_sentence(sentence) == "Heute ruft er den alten Arzt an."
    sentence = Sentence(Clause(THE_MAN, VERBS["call up"], PRESENT, False, (HIM,), None, TODAY, True))
    assert english_sentence(sentence) == "Today the man calls him up."
    assert german_sentence(sentence) == "Heute ruft ihn der Mann an."
