"""The built-in corpus: correct German, the same everywhere, an unseen test set, enough of every phenomenon."""

import hashlib
import os
import random
import re
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

HAND_CHECKED = """
Peter arrives with this customer when she does not call up the tired neighbours.
Peter kommt mit diesem Kunden an, wenn sie die müden Nachbarn nicht anruft.
While Julia picks him up in a kitchen, Thomas dances.
Während ihn Julia in einer Küche abholt, tanzt Thomas.
Anna is not in room one hundred and twenty now.
Anna ist jetzt nicht in Zimmer einhundertzwanzig.
The queen hopes that these sisters bring along the letter for the small child.
Die Königin hofft, dass diese Schwestern den Brief für das kleine Kind mitbringen.
When a child shops, Anna sleeps.
Wenn ein Kind einkauft, schläft Anna.
Because the mouse sleeps alone, they will eat eggs.
Weil die Maus allein schläft, werden sie Eier essen.
This friendly girl will not say that the men help them.
Dieses freundliche Mädchen wird nicht sagen, dass ihnen die Männer helfen.
Paul does not love the big school although they wash coats.
Paul liebt die große Schule nicht, obwohl sie Mäntel waschen.
Julia helps nine hundred and ninety-six doctors while the young student throws away the pear.
Julia hilft neunhundertsechsundneunzig Ärzten, während der junge Student die Birne wegwirft.
They shop with the dog because I will be too big.
Sie kaufen mit dem Hund ein, weil ich zu groß sein werde.
A sister has said that the mice have looked for every table.
Eine Schwester hat gesagt, dass die Mäuse jeden Tisch gesucht haben.
In the evening the tired child sees the cities.
Am Abend sieht das müde Kind die Städte.
Because the big friend has followed the dogs today, the boy has bought a cake.
Weil der große Freund heute den Hunden gefolgt ist, hat der Junge einen Kuchen gekauft.
My strong thief has not washed a sick cat.
Mein starker Dieb hat keine kranke Katze gewaschen.
Queens hope that the jacket belongs to nine hundred and eighteen doctors on Monday.
Königinnen hoffen, dass die Jacke am Montag neunhundertachtzehn Ärzten gehört.
Soon a famous man will listen to a prince in our garden.
Bald wird ein berühmter Mann einem Prinzen in unserem Garten zuhören.
While the teachers throw away the red books, I invite him.
Während die Lehrer die roten Bücher wegwerfen, lade ich ihn ein.
The man knows whether he gives the tired girl two hundred and nine flowers every day.
Der Mann weiß, ob er jeden Tag dem müden Mädchen zweihundertneun Blumen gibt.
They do not thank a neighbour.
Sie danken keinem Nachbarn.
While her customers bring along these shirts, an old teacher needs the egg.
Während ihre Kunden diese Hemden mitbringen, braucht ein alter Lehrer das Ei.
A pear costs eight hundred and ninety-one euros while he reads page twelve.
Eine Birne kostet achthunderteinundneunzig Euro, während er Seite zwölf liest.
Our bag is under our bed.
Unsere Tasche ist unter unserem Bett.
"""  # each pair on two lines

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


@pytest.fixture(scope="module")
def all_pairs(corpus: Corpus) -> list[SyntheticPair]:
    return [pair for split in SPLITS for pair in corpus[split]]


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


@pytest.mark.parametrize("side", ["source", "target"])
def test_at_most_four_fifths_of_the_test_four_grams_are_known(corpus: Corpus, side: str) -> None:
    known = {gram for pair in corpus["train"] for gram in four_grams(getattr(pair, side))}
    grams = [gram for pair in corpus["synthetic"] for gram in four_grams(getattr(pair, side))]
    assert sum(gram in known for gram in grams) / len(grams) <= 0.8


def four_grams(text: str) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + 4]) for i in range(len(words) - 3)]


def test_an_english_sentence_has_one_german_translation(generated: dict[str, list[list[str]]]) -> None:
    targets: dict[str, str] = {}
    for split in (*SPLITS, "more"):
        for source, target, *_ in generated[split]:
            assert targets.setdefault(source, target) == target


def test_sentences_are_of_moderate_length(all_pairs: list[SyntheticPair]) -> None:
    for side in ("source", "target"):
        lengths = [len(getattr(pair, side).split()) for pair in all_pairs]
        assert min(lengths) >= 4
        assert max(lengths) <= 16
        assert 8.5 <= sum(lengths) / len(lengths) <= 10.5


def test_no_word_of_the_lexicon_is_rare(corpus: Corpus) -> None:
    counts = Counter(word for pair in corpus["train"] for word in re.findall(r"[\w-]+", pair.source.lower()))
    words = [noun.english for nouns in lexicon.NOUNS.values() for noun in nouns]
    words += [(adjective.english,) for adjectives in lexicon.ADJECTIVES.values() for adjective in adjectives]
    words += [(*verb.english, verb.english_participle) for verb in (*lexicon.VERBS, *lexicon.COMPLEMENT_VERBS)]
    words += [(name.lower(),) for name in lexicon.NAMES]
    words += [(word,) for word, _, _ in lexicon.PRONOUNS[1:]]
    words += [(english,) for english, _ in lexicon.CONJUNCTIONS]
    assert min(sum(counts[form] for form in set(forms)) for forms in words) >= 300


# ---- the phenomena


def test_every_phenomenon_is_in_fifty_test_sentences(corpus: Corpus) -> None:
    counts = Counter(name for pair in corpus["synthetic"] for name in pair.phenomena)
    assert counts.keys() == PHENOMENA.keys()
    assert min(counts.values()) >= 50
    assert counts["number word"] >= 200
    assert counts["subordinate clause"] >= 200


def test_phenomena_are_as_frequent_in_training_as_in_the_test(corpus: Corpus) -> None:
    shares = {}
    for split in ("train", "synthetic"):
        counts = Counter(name for pair in corpus[split] for name in pair.phenomena)
        shares[split] = {name: counts[name] / len(corpus[split]) for name in PHENOMENA}
    for name in PHENOMENA:
        assert shares["train"][name] == pytest.approx(shares["synthetic"][name], abs=0.06)
    assert shares["train"]["number word"] >= 0.2
    assert shares["train"]["subordinate clause"] >= 0.2


def test_labels_agree_with_the_words(all_pairs: list[SyntheticPair]) -> None:
    """Labels come from the structure of a sentence; here they are found in its words."""
    numbers = {german_number(number) for number in range(1, 1000)}
    irregular = {noun.english[1] for nouns in lexicon.NOUNS.values() for noun in nouns if noun.irregular}
    modals = {form for modal in lexicon.MODALS.values() for form in (*modal.german, *modal.german_negated)}
    participles = {verb.participle for verb in (*lexicon.VERBS, *lexicon.COMPLEMENT_VERBS, lexicon.TO_BE)}
    # "verkauft" and "besucht" are participles and forms of the present, so only a participle with an auxiliary counts
    auxiliaries = {*lexicon.HABEN, *lexicon.SEIN}
    for pair in all_pairs:
        source = re.findall(r"[\w-]+", pair.source.lower())
        target = re.findall(r"\w+", pair.target.lower())
        assert ("number word" in pair.phenomena) == bool(numbers.intersection(target)), pair
        assert ("irregular plural" in pair.phenomena) == bool(irregular.intersection(source)), pair
        assert ("modal verb" in pair.phenomena) == bool(modals.intersection(target)), pair
        is_negated = any(word == "nicht" or word.startswith("kein") for word in target)
        assert ("negation" in pair.phenomena) == is_negated, pair
        assert ("subordinate clause" in pair.phenomena) == ("," in pair.target), pair
        if "perfect tense" in pair.phenomena:
            assert participles.intersection(target), pair
            assert auxiliaries.intersection(target), pair


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
        (6, "six", "sechs"),
        (7, "seven", "sieben"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred and one", "einhunderteins"),
        (111, "one hundred and eleven", "einhundertelf"),
        (216, "two hundred and sixteen", "zweihundertsechzehn"),
        (342, "three hundred and forty-two", "dreihundertzweiundvierzig"),
        (700, "seven hundred", "siebenhundert"),
        (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"),
    ],
)
def test_number_words_match_known_examples(number: int, english: str, german: str) -> None:
    assert (english_number(number), german_number(number)) == (english, german)


def test_german_number_words_mean_their_number() -> None:
    assert [value_of(german_number(number)) for number in range(1, 1000)] == list(range(1, 1000))
    assert len({english_number(number) for number in range(1, 1000)}) == 999


def test_counted_things_never_number_one(all_pairs: list[SyntheticPair]) -> None:
    """Before a noun, German would inflect it: hunderteine Tasse, einen Euro."""
    for pair in all_pairs:
        for word in re.findall(r"\w*eins\b", pair.target):
            assert re.search(rf"(Seite|Zahl|Zimmer) {word}\b", pair.target), pair


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


def test_sentences_are_written_as_usual(all_pairs: list[SyntheticPair]) -> None:
    for pair in all_pairs:
        for text in (pair.source, pair.target):
            assert re.fullmatch(r"[A-ZÄÖÜ][\wäöüß-]*(,? [\wäöüß-]+)*\.", text), text
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", pair.source), pair
        assert not re.search(r"\b[Ii]n dem\b", pair.target), pair


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


def finite_verbs() -> tuple[set[str], set[str]]:
    """The finite forms that begin a main clause, and those that end a subordinate one."""
    verbs = (*lexicon.VERBS, *lexicon.COMPLEMENT_VERBS, lexicon.TO_COST, lexicon.TO_BE)
    shared = {*lexicon.HABEN, *lexicon.SEIN}
    shared |= {form for modal in lexicon.MODALS.values() for form in (*modal.german, *modal.german_negated)}
    main = shared | {form for verb in verbs for form in verb.german}
    return main, shared | {verb.prefix + form for verb in verbs for form in verb.german}


def test_subordinate_clauses_end_in_the_verb(all_pairs: list[SyntheticPair]) -> None:
    main_forms, last_forms = finite_verbs()
    conjunctions = {german for _, german in lexicon.CONJUNCTIONS}
    conjunctions |= {german for options in lexicon.COMPLEMENTS.values() for _, german in options}
    num_checked = 0
    for pair in all_pairs:
        if "subordinate clause" not in pair.phenomena:
            continue
        first, second = pair.target.removesuffix(".").split(", ")
        if first.split()[0].lower() in conjunctions:
            assert first.split()[-1] in last_forms, pair
            assert second.split()[0] in main_forms, pair
        else:
            assert second.split()[0] in conjunctions, pair
            assert second.split()[-1] in last_forms, pair
        num_checked += 1
    assert num_checked > 10_000


def test_separable_prefixes_end_main_clauses(all_pairs: list[SyntheticPair]) -> None:
    prefixed = {form: verb.prefix for verb in lexicon.VERBS if verb.prefix for form in verb.german}
    unambiguous = {
        form for form in prefixed if not any(form in verb.german for verb in lexicon.VERBS if not verb.prefix)
    }
    num_checked = 0
    for pair in all_pairs:
        if "," in pair.target:
            continue
        words = pair.target.removesuffix(".").split()
        found = unambiguous.intersection(words)
        if found:
            assert words[-1] in {verb.prefix for verb in lexicon.VERBS if found & set(verb.german)}, pair
            num_checked += 1
    assert num_checked > 1_000


def test_hand_checked_pairs_are_in_the_corpus(all_pairs: list[SyntheticPair]) -> None:
    lines = HAND_CHECKED.split("\n")[1:-1]
    targets = {pair.source: pair.target for pair in all_pairs}
    assert len(lines) >= 40
    for source, target in zip(lines[::2], lines[1::2], strict=True):
        assert targets[source] == target
