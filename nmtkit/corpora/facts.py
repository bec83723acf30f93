"""The built-in corpus of long documents for summaries: facts at known positions, among others that look alike.

    source = title, then 585 paragraphs of 6 words, with a tab before each        4,096 tokens if a tab is one
    target = "bora.age3 TAB bora.height1 TAB ..."                                 12 facts about the title

The title is the name of a person. Half of the paragraphs are about that person and state one to three facts: the name
and an attribute with its value. All others state three such facts about another person. Three facts occur from the
first paragraphs on, three more after 64 tokens, after 256 and after 1,024 (ZONES); as in documents of several authors,
later paragraphs repeat facts of earlier ones. Each paragraph about the title has its name three times, within facts or
alone: so `tf-idf` finds these paragraphs, but not those with the most facts. Paragraphs about another person have no
two words in a row of the target, for which name and attribute count as words: so `cheating` finds the others, roughly
those with the most facts first. For a model, a fact is one token.

This layout is the sixth: with the five before, small models did not learn to look up facts in short trials, which used
training and validation examples only. The trials of this one used texts with other seeds (docs/results/summaries).

Every value is as probable as every other, whatever else is known. So the best possible nll of a target is ln 4 for each
fact that is not among the tokens read, and 0 for everything else.

There are 6,000 examples for training, 100 for validation and 300 for testing. An example is a function of its split and
number, so texts are generated while they are read.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TypeVar

SPLITS = {"train": 6_000, "valid": 100, "test": 300}
"""The number of examples of each split."""
_SEEDS = {"train": 11, "valid": 12, "test": 13}
NAMES = ("anna", "bora")
ATTRIBUTES = ("age", "height", "weight", "room", "desk", "team", "car", "dog", "coat", "job", "club", "song")
"""In the order of the target."""
VALUES = tuple("1234")
FILLERS = ("then", "and", "so", "later", "often", "maybe", "here", "now")
"""One per value of three bits."""
ZONES = (range(9), range(9, 36), range(37, 146), range(147, 585))
"""Paragraphs that lie within the first 64, 256, 1,024 and 4,096 tokens and not within the number before. Those that
stand across a limit are about the other person."""
_NUM_PARAGRAPHS, _PARAGRAPH_WORDS = 585, 6
_NAMES_PER_PARAGRAPH = 3
"""Mentions of a name in a paragraph, in a fact or alone."""

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
        facts, others = _sample_facts(rng)
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
    # No two examples have the same seed, as each split has fewer than a million.
    return Random(1_000_000 * _SEEDS[split] + number)


def _sample_facts(rng: Random) -> list[list[str]]:
    """Return the facts about each person, in the order of attributes; those about the title first."""
    names = _sample(rng, NAMES, len(NAMES))
    return [[f"{name}.{attribute}{_sample(rng, VALUES, 1)[0]}" for attribute in ATTRIBUTES] for name in names]


def _name_in(facts: list[str]) -> str:
    return facts[0].partition(".")[0]


def _sample_paragraphs(rng: Random, facts: list[str], others: list[str]) -> Iterator[str]:
    stated_at = _sample_stated(rng, facts)
    num_words = _NUM_PARAGRAPHS * _PARAGRAPH_WORDS
    # One call for all 3,510 words, as examples are generated anew whenever they are read.
    fillers = rng.getrandbits(8 * num_words).to_bytes(num_words, "big")
    for position in range(_NUM_PARAGRAPHS):
        first = position * _PARAGRAPH_WORDS
        words = [FILLERS[byte & 7] for byte in fillers[first : first + _PARAGRAPH_WORDS]]
        stated = stated_at.get(position) or _sample(rng, others, _NAMES_PER_PARAGRAPH)
        for index, word in zip(_sample(rng, range(_PARAGRAPH_WORDS), len(stated)), stated, strict=True):
            words[index] = word
        yield " ".join(words)


def _sample_stated(rng: Random, facts: list[str]) -> dict[int, list[str]]:
    """Return the facts in each paragraph about the title, by its position; the name alone stands for missing ones."""
    stated_at: dict[int, list[str]] = {}
    order, name = _sample(rng, facts, len(facts)), _name_in(facts)
    num_new = len(facts) // len(ZONES)
    for number, zone in enumerate(ZONES):
        earlier, new = order[: number * num_new], order[number * num_new : (number + 1) * num_new]
        for index, position in enumerate(_sample(rng, zone, (len(zone) + 1) // 2)):
            stated = new[index : index + 1]
            further = [fact for fact in earlier + new if fact not in stated]
            num_facts = 1 + int(rng.random() * _NAMES_PER_PARAGRAPH)
            stated += _sample(rng, further, num_facts - len(stated))
            stated_at[position] = stated + [name] * (_NAMES_PER_PARAGRAPH - len(stated))
    return stated_at


def _sample(rng: Random, items: Iterable[Item], count: int) -> list[Item]:
    """Return ``count`` different items in random order."""
    # Random.sample may give other items in another version of Python.
    left = list(items)
    return [left.pop(int(rng.random() * len(left))) for _ in range(count)]
