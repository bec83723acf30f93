"""The built-in corpus of long documents for summaries: facts at known positions, among others that look alike.

    source = title, then 272 paragraphs of 14 words, with a tab before each       4,081 tokens if a tab is one
    target = "bora.age3 TAB bora.height1 TAB ..."                                 24 facts about the title

The title is the name of a person. Eight paragraphs state three facts each: the name and an attribute with its value.
All others state three such facts about one of three other people. Two of the eight paragraphs lie within the first 64
tokens, two more within 256, 1,024 and 4,096 each (ZONES); which facts they state is random. Three in four mention the
name once more, and 24 others mention it as often without a fact about it: so `tf-idf` finds most facts but not all at
once. No other paragraph has two words in a row of the target, for which name and attribute count as words: so
`cheating` finds all of them first. For a model, a fact is one token, which small models learn to look up in minutes.
This layout is the fifth: with the four before, small models learned no facts in short trials, which used training and
validation examples only.

Every value is as probable as every other, whatever else is known. So the best possible nll of a target is ln 4 for each
fact that is not among the tokens read, and 0 for everything else.

There are 6,000 examples for training, 100 for validation and 300 for testing. An example is a function of its split and
number, so texts are generated while they are read.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TypeVar

SPLITS = {"train": 6_000, "valid": 100, "test": 300}
"""The number of examples of each split."""
_SEEDS = {"train": 11, "valid": 12, "test": 13}
_ATTRIBUTES = (
    "age height weight room floor desk badge team car bike dog cat coat hat job pay rank club song book meal drink "
    "sport tree"
)
NAMES = ("anna", "bora", "carl", "dina")
ATTRIBUTES = tuple(_ATTRIBUTES.split())
"""In the order of the target."""
VALUES = tuple("1234")
FILLERS = ("then", "and", "so", "later", "often", "maybe", "here", "now")
"""One per value of three bits."""
ZONES = (range(4), range(5, 16), range(17, 68), range(69, 272))
"""Paragraphs that lie within the first 64, 256, 1,024 and 4,096 tokens and not within the number before."""
_PARAGRAPHS_PER_ZONE, _FACTS_PER_PARAGRAPH = 2, 3
_NUM_PARAGRAPHS, _PARAGRAPH_WORDS = 272, 14
_FURTHER_MENTION = 0.75
"""Probability that a paragraph with facts mentions the name a fourth time."""
_NUM_MENTIONING, _FOURTH_MENTION = 24, 0.3
"""Paragraphs that mention the name three times without a fact about it, and the probability that they do so again."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class FactsExample:
    """An example: the name in the title, the paragraphs, and the summary with tabs between the facts."""

    title: str
    paragraphs: tuple[str, ...]
    target: str

    @property
    def source(self) -> str:
        """Title and paragraphs with tabs between them."""
        return "\t".join((self.title, *self.paragraphs))


def generate(split: str) -> Iterator[FactsExample]:
    """Yield the examples of a split (a key of SPLITS): the same on every call, machine and Python version."""
    for number in range(SPLITS[split]):
        rng = _generator(split, number)
        facts, *others = _sample_facts(rng)
        yield FactsExample(_name_in(facts), tuple(_sample_paragraphs(rng, facts, others)), "\t".join(facts))


def source_lines(split: str) -> Iterator[bytes]:
    """Yield the sources of a split."""
    return (f"{example.source}\n".encode() for example in generate(split))


def target_lines(split: str) -> Iterator[bytes]:
    """Yield the targets of a split, without generating the paragraphs."""
    facts = (_sample_facts(_generator(split, number))[0] for number in range(SPLITS[split]))
    return ("{}\n".format("\t".join(of_title)).encode() for of_title in facts)


def fingerprint(split: str) -> str:
    """Return a checksum of a split: of its size and first examples only, as all of them take seconds."""
    digest = hashlib.sha256(f"{split} {SPLITS[split]}".encode())
    for example in islice(generate(split), 20):
        digest.update(f"{example.source}\n{example.target}\n".encode())
    return digest.hexdigest()


def _generator(split: str, number: int) -> Random:
    return Random(1_000_000 * _SEEDS[split] + number)


def _sample_facts(rng: Random) -> list[list[str]]:
    """Return the facts about each person, in the order of attributes; those about the title first."""
    names = _sample(rng, NAMES, len(NAMES))
    return [[f"{name}.{attribute}{_pick(rng, VALUES)}" for attribute in ATTRIBUTES] for name in names]


def _name_in(facts: list[str]) -> str:
    return facts[0].partition(".")[0]


def _sample_paragraphs(rng: Random, facts: list[str], others: list[list[str]]) -> Iterator[str]:
    name = _name_in(facts)
    positions = [position for zone in ZONES for position in _sample(rng, zone, _PARAGRAPHS_PER_ZONE)]
    shuffled = iter(_sample(rng, facts, len(facts)))
    facts_at = {position: list(islice(shuffled, _FACTS_PER_PARAGRAPH)) for position in positions}
    rest = [position for position in range(_NUM_PARAGRAPHS) if position not in facts_at]
    mentioning = set(_sample(rng, rest, _NUM_MENTIONING))
    num_words = _NUM_PARAGRAPHS * _PARAGRAPH_WORDS
    fillers = rng.getrandbits(8 * num_words).to_bytes(num_words, "big")
    for position in range(_NUM_PARAGRAPHS):
        first = position * _PARAGRAPH_WORDS
        words = [FILLERS[byte & 7] for byte in fillers[first : first + _PARAGRAPH_WORDS]]
        if position in facts_at:
            stated, mentions = facts_at[position], int(rng.random() < _FURTHER_MENTION)
        else:
            stated, mentions = _sample(rng, _pick(rng, others), _FACTS_PER_PARAGRAPH), 0
            if position in mentioning:
                mentions = 3 + (rng.random() < _FOURTH_MENTION)
        free = set(range(_PARAGRAPH_WORDS))
        for number, fact in enumerate(stated):
            start = 1 + 4 * number + int(rng.random() * 2)
            words[start] = fact
            free -= {start, start + 1}  # a name after a value would be two words in a row of some target
        for index in _sample(rng, sorted(free), mentions):
            words[index] = name
        yield " ".join(words)


def _pick(rng: Random, items: Sequence[Item]) -> Item:
    # Random.choice may give other items in another version of Python.
    return items[int(rng.random() * len(items))]


def _sample(rng: Random, items: Iterable[Item], count: int) -> list[Item]:
    """Return ``count`` different items in random order."""
    left = list(items)
    return [left.pop(int(rng.random() * len(left))) for _ in range(count)]
