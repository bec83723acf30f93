"""Scores of constituency parses as EVALB computes them with the rules of COLLINS.prm.

    a line of gold, a line of test --brackets of both--> Totals of the sentence --sums--> precision, recall, F1, ...

Source: EVALB by Satoshi Sekine and Michael Collins, evalb.c and COLLINS.prm; docs/parsing.md tells its rules.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from nmtkit.corpora.trees import Tree, Word, read_trees, right_branching, walk, words, write
from nmtkit.errors import DataError

DELETED_LABELS = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})
"""DELETE_LABEL: words of such tags are no words, phrases of such labels no brackets."""
NO_LENGTH = "-NONE-"
"""DELETE_LABEL_FOR_LENGTH: does not count in the length of a sentence, as punctuation does."""
EQUAL_LABELS = {"PRT": "ADVP"}
"""EQ_LABEL."""
CUTOFF_LENGTH = 40
"""CUTOFF_LEN: the sentences of at most that many words have scores of their own."""
NO_PARSE = "no parse"
"""What is remarked of skipped sentences."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Totals:
    """Counts of a sentence or sums over many, and EVALB's scores of them, in percent.

    Attributes:
        sentences: all of them.
        errors: whose words are not those of gold, or that are no tree: they count nowhere else.
        skipped: parses without any word: they count nowhere else.
        gold, test, matched: labelled brackets.
        complete: sentences all of whose brackets match.
        words, correct_tags: of the sentences that count, without deleted ones.
    """

    sentences: int = 0
    errors: int = 0
    skipped: int = 0
    gold: int = 0
    test: int = 0
    matched: int = 0
    complete: int = 0
    words: int = 0
    correct_tags: int = 0

    @property
    def precision(self) -> float:
        """Matched brackets of those in the parses."""
        return _percent(self.matched, self.test)

    @property
    def recall(self) -> float:
        """Matched brackets of those in gold."""
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 where both are."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @property
    def complete_match(self) -> float:
        """Sentences all of whose brackets match, of those that count."""
        return _percent(self.complete, self.sentences - self.errors - self.skipped)

    @property
    def tagging_accuracy(self) -> float:
        """Words with the tag that gold has."""
        return _percent(self.correct_tags, self.words)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


@dataclass(frozen=True)
class Evaluation:
    """What there is to say of a text.

    Attributes:
        sentences: each by itself.
        all: their sums.
        short: the sums of those of at most 40 words.
        remarks: for each sentence that does not count its line, from 1, and why.
    """

    sentences: list[Totals]
    all: Totals
    short: Totals
    remarks: list[tuple[int, str]]


@dataclass(frozen=True)
class _Sentence:
    """What EVALB sees of a line.

    Attributes:
        length: words, punctuation counted.
        words: without those deleted.
        brackets: how often each labelled span stands there.
    """

    length: int
    words: list[Word]
    brackets: Counter[tuple[str, Span]]


def evaluate(gold: Sequence[str], test: Sequence[str]) -> Evaluation:
    """Compares parses with gold trees, one in brackets on each line, line by line.

    Raises:
        DataError: a line of gold is no tree. (A line of test that is none is an error sentence.)
    """
    sentences, short, remarks = [], [], []
    for number, (gold_line, test_line) in enumerate(zip(gold, test, strict=True), start=1):
        one = _read(gold_line, "the gold trees", number)
        try:
            other = _read(test_line, "the parses", number)
            remark = _remark(one, other)
        except DataError as error:
            remark = str(error).partition("; ")[0]
        if remark:
            remarks.append((number, remark))
            counts = Totals(sentences=1, skipped=1) if remark == NO_PARSE else Totals(sentences=1, errors=1)
        else:
            counts = _counts(one, other)
        sentences.append(counts)
        if one.length <= CUTOFF_LENGTH:
            short.append(counts)
    return Evaluation(sentences, _sum(sentences), _sum(short), remarks)


def _sum(sentences: Iterable[Totals]) -> Totals:
    return Totals(*map(sum, zip(*map(astuple, sentences), strict=True)))


def _remark(gold: _Sentence, test: _Sentence) -> str:
    """Why a sentence does not count, "" where it does."""
    if not test.words:
        return NO_PARSE
    if len(gold.words) != len(test.words):
        return f"length unmatch ({len(gold.words)}|{len(test.words)})"
    differing = ((one.text, other.text) for one, other in zip(gold.words, test.words, strict=True))
    return next((f"words unmatch ({one}|{other})" for one, other in differing if one != other), "")


def _counts(gold: _Sentence, test: _Sentence) -> Totals:
    matched = (gold.brackets & test.brackets).total()
    pairs = zip(gold.words, test.words, strict=True)
    return Totals(
        sentences=1,
        gold=gold.brackets.total(),
        test=test.brackets.total(),
        matched=matched,
        complete=int(matched == gold.brackets.total() == test.brackets.total()),
        words=len(gold.words),
        correct_tags=sum(_equal(one.tag) == _equal(other.tag) for one, other in pairs),
    )


def _read(line: str, name: str, number: int) -> _Sentence:
    length = 0
    kept: list[Word] = []
    brackets: Counter[tuple[str, Span]] = Counter()
    for tree in read_trees([line], name, number):
        begun: list[tuple[str, int]] = []
        for item in walk(tree):
            if isinstance(item, Tree):
                # Without the function tags: a label ends before its first - or =.
                begun.append((_equal(item.label.split("-", 1)[0].split("=", 1)[0]), len(kept)))
            elif item is None:
                label, start = begun.pop()
                if start < len(kept) and label not in DELETED_LABELS:
                    brackets[label, (start, len(kept))] += 1
            else:
                length += item.tag != NO_LENGTH
                if item.tag not in DELETED_LABELS:
                    kept.append(item)
    return _Sentence(length, kept, brackets)


def _equal(label: str) -> str:
    return EQUAL_LABELS.get(label, label)


def right_branching_parses(gold: Sequence[str]) -> list[str]:
    """The baseline: a right-branching tree over the words of each gold tree."""
    trees = (read_trees([line], "the gold trees", number) for number, line in enumerate(gold, start=1))
    sentences = ([word for tree in of_line for word in words(tree)] for of_line in trees)
    return [write(right_branching(sentence)) if sentence else "" for sentence in sentences]
