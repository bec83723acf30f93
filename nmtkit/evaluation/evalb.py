"""Scores of constituency parses as EVALB computes them with the rules of COLLINS.prm: the own metric of parsing.

    a line of gold, a line of test --brackets of both--> Totals of the sentence --sums--> precision, recall, F1, ...

Source: EVALB by Satoshi Sekine and Michael Collins, evalb.c and COLLINS.prm; docs/parsing.md states its rules.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from nmtkit.corpora.trees import DELETED_TAGS, EMPTY, Tree, Word, read_trees, right_branching, walk, write
from nmtkit.errors import DataError
from nmtkit.tasks.task import TaskMetric

EQUAL_LABELS = {"PRT": "ADVP"}
"""EQ_LABEL."""
CUTOFF_LENGTH = 40
"""CUTOFF_LEN: the sentences of at most that many words have scores of their own."""
NO_PARSE = "no parse"
"""The remark on skipped sentences."""
RIGHT_BRANCHING = "evalb-f1-right-branching"
_COMPARABLE = {
    "evalb-f1": "EVALB's F1 by COLLINS.prm on the same sentences; on section 23 of the WSJ, the paper's Table 4",
    "evalb-precision": "EVALB's labelled precision by COLLINS.prm on the same sentences",
    "evalb-recall": "EVALB's labelled recall by COLLINS.prm on the same sentences",
    "evalb-complete-match": "EVALB's complete match by COLLINS.prm on the same sentences",
    "evalb-tagging-accuracy": "EVALB's tagging accuracy; 0 for parses without tags (text = trees)",
}
COMPARABLE_TO = {
    **_COMPARABLE,
    **{f"{name}-{CUTOFF_LENGTH}": what for name, what in _COMPARABLE.items()},
    RIGHT_BRANCHING: "the F1 above: what a parser has that makes every phrase go to the sentence's end",
}


@dataclass(frozen=True)
class Totals:
    """Counts of a sentence or sums over many, and EVALB's scores of them, in percent.

    Attributes:
        sentences: all of them.
        errors: sentences whose words differ from those of gold, or that are no tree; they count nowhere else.
        skipped: parses without any word; they count nowhere else.
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
        return _percent(self.matched, self.test)

    @property
    def recall(self) -> float:
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @property
    def complete_match(self) -> float:
        return _percent(self.complete, self.sentences - self.errors - self.skipped)

    @property
    def tagging_accuracy(self) -> float:
        return _percent(self.correct_tags, self.words)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


class Evalb(TaskMetric):
    """EVALB as the own metric of a task."""

    name = "evalb"
    title = "EVALB's F1"
    tested = ("evalb-f1", "evalb-precision", "evalb-recall")
    comparable_to = COMPARABLE_TO

    def scores(self, gold: Sequence[str], parses: Sequence[str]) -> dict[str, tuple[float, str, str]]:
        """Score all sentences, the short ones, and right-branching trees as a baseline."""
        found = evaluate(gold, parses)
        scores = {}
        for totals, end, length in ((found.all, "", "all"), (found.short, f"-{CUTOFF_LENGTH}", f"<={CUTOFF_LENGTH}")):
            signature = _signature(totals.sentences, length)
            brackets = f"{totals.matched} of {totals.gold} gold and {totals.test} parsed brackets"
            faults = f"{totals.errors} error and {totals.skipped} skipped sentences"
            for name in _COMPARABLE:
                details = f"{brackets}; {faults}" if name == "evalb-f1" else ""
                scores[f"{name}{end}"] = (_value(name, totals), signature, details)
        baseline = evaluate(gold, right_branching_parses(gold)).all
        return {**scores, RIGHT_BRANCHING: (baseline.f1, _signature(len(gold)), "")}

    def counts(self, gold: Sequence[str], parses: Sequence[str]) -> list[list[int]]:
        """Return the gold, test and matched brackets of each sentence."""
        return [[one.gold, one.test, one.matched] for one in evaluate(gold, parses).sentences]

    def value(self, score: str, counts: Sequence[int | float]) -> float:
        gold, test, matched = map(round, counts)  # sums of resampled sentences are float32
        return _value(score, Totals(gold=gold, test=test, matched=matched))

    def signature(self, gold: Sequence[str]) -> str:
        return _signature(len(gold))

    def unscored(self, gold: Sequence[str], parses: Sequence[str], name: str) -> tuple[str, tuple[int, ...], str]:
        """Return the error and skipped sentences."""
        remarks = evaluate(gold, parses).remarks
        first = f" (the first: {remarks[0][1]})" if remarks else ""
        advice = "they count in no score; see that the words are those of gold"
        return f"EVALB's error or skipped sentences{first}", tuple(line for line, _ in remarks), advice


def _value(score: str, totals: Totals) -> float:
    return float(getattr(totals, score.removeprefix("evalb-").replace("-", "_")))


def _signature(sentences: int, length: str = "all") -> str:
    return f"evalb|params:COLLINS|length:{length}|sentences:{sentences}"


@dataclass(frozen=True)
class Evaluation:
    """The counts of a text."""

    sentences: list[Totals]
    all: Totals  # their sums
    short: Totals  # the sums of those of at most 40 words
    remarks: list[tuple[int, str]]  # line, from 1, and reason of each sentence that does not count


@dataclass(frozen=True)
class _Sentence:
    """A line in the form that EVALB counts."""

    length: int  # in words, punctuation counted
    words: list[Word]  # without those deleted
    brackets: Counter[tuple[str, tuple[int, int]]]  # how often each labelled span occurs


def evaluate(gold: Sequence[str], test: Sequence[str]) -> Evaluation:
    """Compare parses with gold trees, one in brackets on each line, line by line.

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
            remark = str(error).partition("; ")[0]  # without the advice
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
    """Return the reason why a sentence does not count, "" where it does."""
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
    brackets: Counter[tuple[str, tuple[int, int]]] = Counter()
    for tree in read_trees([line], name, number):
        begun: list[tuple[str, int]] = []
        for item in walk(tree):
            if isinstance(item, Tree):
                # Function tags do not count: they stand behind the first - or =; a label that begins so is empty.
                begun.append((_equal(item.label.split("-", 1)[0].split("=", 1)[0]), len(kept)))
            elif item is None:
                label, start = begun.pop()
                if start < len(kept) and label not in DELETED_TAGS:
                    brackets[label, (start, len(kept))] += 1
            else:
                length += item.tag != EMPTY
                if item.tag not in DELETED_TAGS:
                    kept.append(item)
    return _Sentence(length, kept, brackets)


def _equal(label: str) -> str:
    return EQUAL_LABELS.get(label, label)


def right_branching_parses(gold: Sequence[str]) -> list[str]:
    """Return the baseline: a right-branching tree over the words of each gold tree, with its tags.

    With other tags, EVALB would delete other words and leave the sentence out.
    """
    parses = []
    for number, line in enumerate(gold, start=1):
        items = [item for tree in read_trees([line], "the gold trees", number) for item in walk(tree)]
        sentence = [item for item in items if isinstance(item, Word) and item.tag != EMPTY]
        parses.append(write(right_branching(sentence)) if sentence else "")
    return parses
