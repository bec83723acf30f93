"""The built-in English-German corpus: made by a small bilingual grammar, so that a first try needs no download.

It is a stand-in for real parallel text, small enough to be learnt in two minutes on two CPU cores, yet with phenomena
that make a translation into German more than a word list: case and gender in articles and adjectives, weak nouns, verbs
at the end of subordinate clauses, inversion, separable verbs, modal verbs and the perfect tense around their objects,
negation with nicht or kein, number words from 1 to 999.

How a pair is made: a clause is drawn as one abstract structure (`Clause`: subject, verb, tense, negation, objects,
adverbial, time) and put into words once for each language. A sentence is one clause or two:

    sentence   = clause | clause conjunction clause | conjunction clause, clause | say, know, ... that or whether clause
    English    = [time] subject verb-group [pronoun] [particle] objects [adverbial] [time]
    German     = subject finite-verb [pronoun] middle end
               | [time] finite-verb inner middle end         after a time or a subordinate clause
               | conjunction inner middle end finite-verb    a subordinate clause
    inner      = subject [pronoun] | pronoun noun-subject
    middle     = [time] objects [nicht] [adverbial]          dative before accusative
    end        = separable prefix | participle | infinitive

The English decides the German: each English sentence has exactly one German one, and nothing in it has to be guessed.
What is left out for that reason: "you", "it", past tenses, words with several translations.

There are 60,000 pairs to train on, 500 to validate and 1,000 to test. The splits cannot overlap: a checksum of the
German sentence decides which split a pair may belong to. In each split, no sentence occurs twice on either side. The
words are in ``synthetic_lexicon.py``.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from nmtkit.corpora import synthetic_lexicon as lexicon
from nmtkit.corpora.synthetic_lexicon import DATIVE, FIRST, MANY, NOMINATIVE, PERFECT, PLURAL, PRESENT, THIRD

SPLITS = ("train", "valid", "synthetic")  # the test set's name is "synthetic"
PHENOMENA = {
    "adjective ending": "an adjective before a noun, its ending set by gender, number, case and determiner",
    "case-marked article": "an article or another determiner in the accusative or dative",
    "dative plural": "a plural noun in the dative, where German adds -n",
    "dative verb": "a verb whose only object is in the dative (help: helfen + dative)",
    "inversion": "the finite verb before the subject, after a fronted time or clause",
    "irregular plural": "a plural that English does not make with -s (children, mice)",
    "modal verb": "a modal or future verb, the infinitive at the end of the clause",
    "negation": "nicht in its place, or kein",
    "number word": "a number from 1 to 999, one compound in German",
    "object pronoun": "a pronoun as object, close to the finite verb or the conjunction",
    "perfect tense": "haben or sein, the participle at the end of the clause",
    "prepositional phrase": "a preposition with the case it asks for",
    "separable verb": "a verb whose prefix stands at the end of a main clause (get up: steht ... auf)",
    "subordinate clause": "a clause that begins with a conjunction and ends in the finite verb",
    "weak noun": "a noun that takes -n or -en outside the nominative singular (der Junge, den Jungen)",
}

_SIZES = {"train": 60_000, "valid": 500, "synthetic": 1_000}
_SEEDS = {"train": 1, "valid": 2, "synthetic": 3}
_SHARES = 20  # one share of all sentences for valid, two for synthetic, the rest for train
_MIN_WORDS, _MAX_WORDS = 4, 16

Item = TypeVar("Item")


@dataclass(frozen=True)
class SyntheticPair:
    """An English sentence, its German translation and the names of the phenomena in it (keys of PHENOMENA)."""

    source: str
    target: str
    phenomena: frozenset[str]


class Phrase(NamedTuple):
    """A subject, object or adverbial in both languages, in the case of its place."""

    english: str
    german: str
    agreement: int = THIRD
    phenomena: tuple[str, ...] = ()
    noun: str = ""
    is_pronoun: bool = False
    is_negated: bool = False  # it holds the negation of the clause: kein Buch


class Clause(NamedTuple):
    """What a clause says, without the order of words. ``tense`` is present, perfect or the name of a modal verb."""

    subject: Phrase
    verb: lexicon.Verb
    tense: str
    negated: bool
    objects: tuple[Phrase, ...] = ()
    adverbial: Phrase | None = None
    time: Phrase | None = None
    time_is_fronted: bool = False


class Sentence(NamedTuple):
    """A clause, or a main and a subordinate clause with a conjunction (English, German) between or before them."""

    main: Clause
    conjunction: tuple[str, str] = ("", "")
    subordinate: Clause | None = None
    subordinate_is_first: bool = False


def generate(split: str) -> list[SyntheticPair]:
    """The pairs of a split (one of SPLITS): the same on every call, machine and Python version."""
    rng = random.Random(_SEEDS[split])
    pairs: dict[str, SyntheticPair] = {}
    while len(pairs) < _SIZES[split]:
        sentence = draw_sentence(rng)
        source, target = english_sentence(sentence), german_sentence(sentence)
        has_good_length = all(_MIN_WORDS <= text.count(" ") + 1 <= _MAX_WORDS for text in (source, target))
        if has_good_length and split_of(target) == split and target not in pairs:
            pairs[target] = SyntheticPair(source, target, frozenset(sentence_phenomena(sentence)))
    return list(pairs.values())


def split_of(target: str) -> str:
    """The only split that the sentence may occur in. Equal sources have equal targets, so this separates both sides."""
    share = zlib.crc32(target.encode()) % _SHARES
    return "valid" if share == 0 else "synthetic" if share <= 2 else "train"


# ---- clauses and sentences in words


def english_sentence(sentence: Sentence) -> str:
    """The sentence in English."""
    words = english_clause(sentence.main)
    if sentence.subordinate:
        subordinate = f"{sentence.conjunction[0]} {english_clause(sentence.subordinate)}"
        words = f"{subordinate}, {words}" if sentence.subordinate_is_first else f"{words} {subordinate}"
    return words[0].upper() + words[1:] + "."


def german_sentence(sentence: Sentence) -> str:
    """The sentence in German."""
    words = german_clause(sentence.main, "first" if sentence.subordinate_is_first else "second")
    if sentence.subordinate:
        subordinate = f"{sentence.conjunction[1]} {german_clause(sentence.subordinate, 'last')}"
        words = f"{subordinate}, {words}" if sentence.subordinate_is_first else f"{words}, {subordinate}"
    return words[0].upper() + words[1:] + "."


def english_clause(clause: Clause) -> str:
    """The clause in English, without capital and full stop."""
    verb, agreement, particle = clause.verb, clause.subject.agreement, clause.verb.particle
    negated = clause.negated
    if clause.tense == PERFECT:
        finite = ("has" if agreement == THIRD else "have") + (" not" if negated else "")
        group = f"{finite} {verb.english_participle}"
    elif clause.tense != PRESENT:
        modal = lexicon.MODALS[clause.tense]
        base = "be" if verb is lexicon.TO_BE else verb.english[FIRST]
        group = f"{(modal.english_negated if negated else modal.english)[agreement]} {base}"
    elif negated and verb is not lexicon.TO_BE:
        group = f"{'does' if agreement == THIRD else 'do'} not {verb.english[FIRST]}"
    else:
        group = verb.english[agreement] + (" not" if negated else "")
    objects = [phrase.english for phrase in clause.objects]
    if verb.particle_moves and clause.objects and clause.objects[0].is_pronoun:
        words = [clause.subject.english, group, *objects, particle]
    else:
        words = [clause.subject.english, group, particle, *objects]
    if clause.adverbial:
        words.append(clause.adverbial.english)
    if clause.time:
        words.insert(0 if clause.time_is_fronted else len(words), clause.time.english)
    return " ".join(filter(None, words))


def german_clause(clause: Clause, order: str) -> str:
    """The clause in German, without capital, conjunction and punctuation.

    Args:
        order: where the finite verb is: ``second`` (main clause), ``first`` (main clause after a subordinate one) or
            ``last`` (subordinate clause).
    """
    verb, agreement = clause.verb, clause.subject.agreement
    if clause.tense == PERFECT:
        finite, end = verb.auxiliary[agreement], verb.participle
    elif clause.tense == PRESENT:
        finite, end = verb.german[agreement], verb.prefix
    else:
        modal = lexicon.MODALS[clause.tense]
        finite = (modal.german_negated if clause.negated else modal.german)[agreement]
        end = verb.infinitive
    subject = clause.subject.german
    pronouns = [phrase.german for phrase in clause.objects if phrase.is_pronoun]
    # weil er ihn anruft, weil ihn der Mann anruft, but weil der Mann sie anruft: sie would be taken for the subject
    is_subject_first = clause.subject.is_pronoun or "sie" in pronouns
    inner = [subject, *pronouns] if is_subject_first else [*pronouns, subject]
    middle = []
    if clause.time and not clause.time_is_fronted:
        middle.append(clause.time.german)
    middle += [phrase.german for phrase in clause.objects if not phrase.is_pronoun]
    if clause.negated and not any(phrase.is_negated for phrase in clause.objects):
        middle.append("nicht")
    if clause.adverbial:
        middle.append(clause.adverbial.german)
    if order == "last":
        last = end + finite if clause.tense == PRESENT else f"{end} {finite}"
        words = [*inner, *middle, last]
    elif order == "first":
        words = [finite, *inner, *middle, end]
    elif clause.time and clause.time_is_fronted:
        words = [clause.time.german, finite, *inner, *middle, end]
    else:
        words = [subject, finite, *pronouns, *middle, end]
    return " ".join(filter(None, words))


def sentence_phenomena(sentence: Sentence) -> set[str]:
    """Which of PHENOMENA are in the sentence."""
    found = clause_phenomena(sentence.main)
    if sentence.subordinate:
        found |= clause_phenomena(sentence.subordinate) | {"subordinate clause"}
    if sentence.main.time_is_fronted or sentence.subordinate_is_first:
        found.add("inversion")
    return found


def clause_phenomena(clause: Clause) -> set[str]:
    """Which of PHENOMENA are in the clause, whatever sentence it stands in."""
    found = set(clause.subject.phenomena)
    for phrase in (*clause.objects, clause.adverbial):
        if phrase:
            found.update(phrase.phenomena)
    if clause.tense != PRESENT:
        found.add("perfect tense" if clause.tense == PERFECT else "modal verb")
    if clause.verb.prefix:
        found.add("separable verb")
    if len(clause.verb.objects) == 1 and clause.verb.objects[0][0] == DATIVE:
        found.add("dative verb")
    if clause.negated:
        found.add("negation")
    return found


# ---- drawing phrases


def weighted(table: str) -> tuple[str, ...]:
    """``"the 2, a 1"``: the, the, a."""
    entries = (entry.rsplit(maxsplit=1) for entry in table.split(","))
    return tuple(name.strip() for name, times in entries for _ in range(int(times)))


# determiners by place, "number" being a number word, "bare" none at all, "not a" what becomes kein in a negated clause
_POSSESSIVES = "my 1, his 1, her 1, our 1"
_SUBJECTS = weighted(f"the 16, a 3, this 2, every 1, no 1, bare 1, number 3, {_POSSESSIVES}")
_DEFINITE_SUBJECTS = weighted(f"the 12, this 2, {_POSSESSIVES}")
_OBJECTS = weighted(f"the 14, a 9, this 2, every 1, number 7, {_POSSESSIVES}")
_LAST_OBJECTS = (*_OBJECTS, *weighted("bare 3"))  # an adverbial would go before a bare noun: draußen Bücher lesen
_OBJECTS_IF_NEGATED = weighted(f"the 6, this 1, not a 6, {_POSSESSIVES}")
_RECEIVERS = weighted(f"the 8, this 1, {_POSSESSIVES}")
_AFTER_PREPOSITIONS = weighted(f"the 14, a 4, this 1, {_POSSESSIVES}")

_STATES = weighted("quality 3, place 2, age 1, price 2")
_SENTENCES = weighted("simple 9, clause last 4, clause first 3, object clause 4")
_MODALS = tuple(lexicon.MODALS)


def pick(rng: random.Random, items: Sequence[Item]) -> Item:
    """One of the items. Only ``random()`` is used: its numbers are the same in every version of Python."""
    return items[int(rng.random() * len(items))]


def draw_number(rng: random.Random, countable: bool) -> int:
    """A number from 1 to 999, small ones more often.

    Args:
        countable: whether things are counted. Then none ends in one, which German would inflect (ein Buch, eine Tasse).
    """
    while True:
        number = 1 + int(rng.random() * (99 if rng.random() < 0.35 else 999))
        if not countable or number % 100 != 1:
            return number


def draw_noun_phrase(
    rng: random.Random, case: str, group: str, determiners: Sequence[str], adjective_rate: float
) -> Phrase:
    """A determiner, perhaps an adjective, and a noun of the group, in that case."""
    noun, name = pick(rng, lexicon.NOUNS[group]), pick(rng, determiners)
    if name == "number":
        determiner = lexicon.number_determiner(draw_number(rng, countable=True))
    else:
        determiner = lexicon.DETERMINERS[name]
    singular, plural = determiner.english
    is_plural = singular is None or (plural is not None and rng.random() < 0.3)
    article, key = plural if is_plural else singular, (PLURAL if is_plural else noun.gender, case)
    english, german = noun.english[is_plural], noun.german[is_plural, case]
    phenomena = noun_phenomena(noun, name, is_plural, case)
    if rng.random() < adjective_rate:
        adjective = pick(rng, lexicon.ADJECTIVES[group])
        english = f"{adjective.english} {english}"
        german = f"{adjective.stem}{determiner.adjective_endings[key]} {german}"
        phenomena.append("adjective ending")
    if article:
        english = f"{'an' if article == 'a' and english[0] in 'aeiou' else article} {english}"
    if determiner.forms[key]:
        german = f"{determiner.forms[key]} {german}"
    agreement = MANY if is_plural else THIRD
    return Phrase(english, german, agreement, tuple(phenomena), noun.english[0], is_negated=name == "not a")


def noun_phenomena(noun: lexicon.Noun, determiner: str, is_plural: bool, case: str) -> list[str]:
    """What a noun and its determiner show."""
    found = []
    if determiner == "number":
        found.append("number word")
    elif determiner == "no":
        found.append("negation")
    if case != NOMINATIVE and determiner not in ("number", "bare"):
        found.append("case-marked article")
    if is_plural and noun.irregular:
        found.append("irregular plural")
    if is_plural and case == DATIVE:
        found.append("dative plural")
    if noun.weak and not is_plural and case != NOMINATIVE:
        found.append("weak noun")
    return found


def draw_subject(rng: random.Random, groups: Sequence[str], definite: bool, adjective_rate: float) -> Phrase:
    """A subject of one of the groups, mostly a person; for persons also a pronoun or name.

    Args:
        definite: whether to avoid no, every and the like, whose meaning under a negation or "must" is unclear.
    """
    group = "person" if "person" in groups and rng.random() < 0.7 else pick(rng, groups)
    kind = rng.random() if group == "person" else 1.0
    if kind < 0.3:
        return Phrase(*pick(rng, lexicon.PRONOUNS), is_pronoun=True)
    if kind < 0.5:
        name = pick(rng, lexicon.NAMES)
        return Phrase(name, name, noun=name)
    return draw_noun_phrase(rng, NOMINATIVE, group, _DEFINITE_SUBJECTS if definite else _SUBJECTS, adjective_rate)


def draw_object(
    rng: random.Random, case: str, groups: Sequence[str], determiners: Sequence[str], adjective_rate: float
) -> Phrase:
    """An object of one of the groups; for persons also a pronoun or name."""
    group = pick(rng, groups)
    if group in lexicon.NUMBERED:
        return draw_numbered(rng, group)
    kind = rng.random() if group == "person" else 1.0
    if kind < 0.3:
        english, german = pick(rng, lexicon.OBJECT_PRONOUNS[case])
        return Phrase(english, german, phenomena=("object pronoun",), is_pronoun=True)
    if kind < 0.4:
        name = pick(rng, lexicon.NAMES)
        return Phrase(name, name, noun=name)
    return draw_noun_phrase(rng, case, group, determiners, adjective_rate)


def draw_numbered(rng: random.Random, what: str) -> Phrase:
    """A page, a room, an age, ...: what is known by its number."""
    number = 2 + int(rng.random() * 98) if what == "age" else draw_number(rng, countable=what == "price")
    english, german = lexicon.NUMBERED[what]
    return Phrase(
        english.format(lexicon.english_number(number)),
        german.format(lexicon.german_number(number)),
        phenomena=("number word", "prepositional phrase") if what == "room" else ("number word",),
    )


def draw_adverbial(rng: random.Random, kind: str, adjective_rate: float) -> Phrase:
    """An adverbial of one of the kinds that verbs name."""
    if kind == "place":
        kind = pick(rng, ("inside", "inside", "inside", "near", "near", "room", "room", "whereabouts"))
    if kind == "room":
        return draw_numbered(rng, kind)
    if kind in lexicon.ADVERBS:
        return Phrase(*pick(rng, lexicon.ADVERBS[kind]))
    english, german, case, groups = pick(rng, lexicon.PREPOSITIONS[kind])
    phrase = draw_noun_phrase(rng, case, pick(rng, groups), _AFTER_PREPOSITIONS, adjective_rate)
    words = f"{german} {phrase.german}"
    if words.startswith("in dem "):
        words = words.replace("in dem ", "im ", 1)
    return Phrase(f"{english} {phrase.english}", words, phenomena=(*phrase.phenomena, "prepositional phrase"))


def with_time(rng: random.Random, clause: Clause, can_front: bool) -> Clause:
    """The clause with an adverbial of time that goes with the tense, half of the times in the first place."""
    time = Phrase(*pick(rng, lexicon.TIMES.get(clause.tense, lexicon.TIMES["modal"])))
    if can_front and rng.random() < 0.5:
        return clause._replace(time=time, time_is_fronted=True)
    if clause.negated and clause.objects:
        return clause  # the best place for the time would depend on the object
    if clause.adverbial and clause.adverbial.german == "früh":
        return clause  # heute früh is this morning
    return clause._replace(time=time)


# ---- drawing clauses and sentences


def draw_action(rng: random.Random, detail: float, can_front: bool, always_present: bool) -> Clause:
    """A clause about what somebody does.

    Args:
        detail: how probable adjectives, times and adverbials are.
        can_front: whether a time may take the first place.
        always_present: whether the tense is the present, because the conjunction asks for it.
    """
    verb, chance, negated = pick(rng, lexicon.VERBS), rng.random(), rng.random() < 0.12
    tense = PRESENT
    if not always_present and "person" in verb.subjects:
        tense = PERFECT if chance < 0.22 else pick(rng, _MODALS) if chance < 0.5 else PRESENT
    subject = draw_subject(rng, verb.subjects, negated or tense == "must", detail)
    has_adverbial = bool(verb.adverbials) and rng.random() < (detail if verb.objects else 2 * detail)
    if negated and verb.objects:
        has_adverbial = False  # it would take the negation: nicht in der Stadt
    objects: list[Phrase] = []
    for case, groups in verb.objects:
        determiners = _OBJECTS_IF_NEGATED if negated else _OBJECTS if has_adverbial else _LAST_OBJECTS
        if len(objects) < len(verb.objects) - 1:
            determiners = _RECEIVERS
        phrase = draw_object(rng, case, groups, determiners, detail)
        while phrase.noun and phrase.noun == subject.noun:
            phrase = draw_object(rng, case, groups, determiners, detail)
        objects.append(phrase)
    adverbial = draw_adverbial(rng, pick(rng, verb.adverbials), detail) if has_adverbial else None
    clause = Clause(subject, verb, tense, negated, tuple(objects), adverbial)
    return with_time(rng, clause, can_front) if rng.random() < detail else clause


def draw_state(rng: random.Random, detail: float, can_front: bool, always_present: bool) -> Clause:
    """A clause about how something is (tired, in the garden, forty-two years old) or what it costs (see above)."""
    kind, chance, negated = pick(rng, _STATES), rng.random(), rng.random() < 0.12
    tense = PRESENT
    if not always_present and chance < 0.25:
        tense = PERFECT if chance < 0.1 and kind in ("quality", "place") else "will"
    is_thing = kind == "price" or (kind != "age" and rng.random() < 0.4)
    things = lexicon.GROUPS["portable" if kind == "place" else "goods"]
    groups = things if is_thing else ("person", "animal")
    subject = draw_subject(rng, groups, negated, 0.0 if kind == "quality" else detail)
    if kind == "quality":
        adjective = pick(rng, lexicon.ADJECTIVES["thing" if is_thing else "animal"])
        english, german = pick(rng, lexicon.DEGREES)
        complement = Phrase(english + adjective.english, german + adjective.german)
    elif kind == "place":
        complement = draw_adverbial(rng, pick(rng, ("surface", "inside")) if is_thing else "place", detail)
    else:
        complement = draw_numbered(rng, kind)
    verb = lexicon.TO_COST if kind == "price" else lexicon.TO_BE
    clause = Clause(subject, verb, tense, negated, adverbial=complement)
    return with_time(rng, clause, can_front) if kind in ("place", "price") and rng.random() < detail else clause


def draw_clause(rng: random.Random, detail: float, can_front: bool = False, always_present: bool = False) -> Clause:
    """Either of the two (see `draw_action`)."""
    draw = draw_action if rng.random() < 0.72 else draw_state
    return draw(rng, detail, can_front, always_present)


def draw_reporting(rng: random.Random) -> Clause:
    """A clause that wants another one as its object: Anna asks."""
    verb = pick(rng, lexicon.COMPLEMENT_VERBS)
    name = verb.english[FIRST]
    tense, negated = PRESENT, name != "hope" and rng.random() < 0.15  # "I do not hope that" is no English
    if name in ("say", "ask") and rng.random() < 0.4:
        tense = pick(rng, (PERFECT, *_MODALS))
    return Clause(draw_subject(rng, ("person",), negated or tense == "must", 0.2), verb, tense, negated)


def draw_sentence(rng: random.Random) -> Sentence:
    """A sentence of one or two clauses; it may be longer or shorter than those of the corpus."""
    kind = pick(rng, _SENTENCES)
    if kind == "simple":
        return Sentence(draw_clause(rng, detail=0.5, can_front=True))
    if kind == "object clause":
        main = draw_reporting(rng)
        conjunction = pick(rng, lexicon.COMPLEMENTS[main.verb.english[FIRST]])
        return Sentence(main, conjunction, draw_clause(rng, detail=0.3))
    is_first = kind == "clause first"
    conjunction = pick(rng, lexicon.CONJUNCTIONS)
    always_present = conjunction[0] in lexicon.PRESENT_ONLY
    main = draw_clause(rng, 0.25, can_front=not is_first, always_present=always_present)
    return Sentence(main, conjunction, draw_clause(rng, 0.2, always_present=always_present), is_first)
