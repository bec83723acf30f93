"""What the doctor found in the training text: how many pairs each rule concerns, the first of them, what was left out.

Filled while text is read and subwords are cut; becomes RUN/data/report.json.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from nmtkit.config.schema import CleaningConfig
from nmtkit.data.cleaning import HELD_OUT_COPY, MEANINGS, RULES
from nmtkit.errors import DataError

LINES_NAMED = 20
"""Lines of each rule that the report names."""
EXAMPLES_WITHIN = 1_000_000
"""Lines that are read once more for the text of pairs; a rule that concerns none of them has no example."""
JUDGED_PAIRS = 100
"""A corpus of fewer pairs may have equal sides throughout: names, numbers, a test of something."""
_SHOWN = 60


def shown_name(corpus: str) -> str:
    """How the report calls a corpus: the same text gives the same report, compressed or not."""
    return corpus.removesuffix(".gz")


class Findings:
    """Counts of all rules over one preparation.

    Attributes:
        num_pairs: training pairs read so far, which also is the number of the last line.
        dropped: pairs left out of training, by the rule that did it.
        reasons: why the preparation would stop besides rules; nothing that may stop gets to a second one.
        examples: line, source and target of the first pair that a rule concerns, cut short and escaped.
    """

    def __init__(self, cleaning: CleaningConfig, *, may_stop: bool) -> None:
        """Args:
        may_stop: whether a rule with the action "error" ends the preparation; else it is only counted.
        """
        self.actions = {rule: cleaning.action(rule) for rule in RULES}
        self.num_pairs = 0
        self.dropped: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.examples: dict[str, tuple[int, str, str]] = {}
        self._may_stop = may_stop
        self._allows_equal_sides = "source_equals_target" in cleaning.model_fields_set
        self._counts: Counter[str] = Counter()
        self._lines: dict[str, list[int]] = {rule: [] for rule in RULES}
        self._corpora: list[tuple[str, int]] = []

    def state(self) -> dict[str, Any]:
        """All that was found so far, to go on from in another process."""
        return {
            "num_pairs": self.num_pairs,
            "dropped": dict(self.dropped),
            "counts": dict(self._counts),
            "lines": self._lines,
            "corpora": self._corpora,
            "examples": self.examples,
        }

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.num_pairs = state["num_pairs"]
        self.dropped, self._counts = Counter(state["dropped"]), Counter(state["counts"])
        self._lines = {rule: list(lines) for rule, lines in state["lines"].items()}
        self._corpora = [(name, before) for name, before in state["corpora"]]
        self.examples = {rule: tuple(found) for rule, found in state.get("examples", {}).items()}

    def begin_corpus(self, name: str) -> None:
        """Says that the next line is the first one of a corpus."""
        self._corpora.append((name, self.num_pairs))

    def add(self, rule: str, count: int, lines: Sequence[int]) -> None:
        """Counts pairs, of which ``lines`` names at least the first, by their numbers through all corpora in turn.

        Raises:
            DataError: the rule's action is "error".
        """
        if not count:
            return
        self._counts[rule] += count
        named = self._lines[rule]
        if len(named) < LINES_NAMED or min(lines) < named[-1]:
            self._lines[rule] = heapq.nsmallest(LINES_NAMED, {*named, *map(int, lines)})
        if self._may_stop and self.actions[rule] == "error":
            name, line = self.place(self._lines[rule][0])
            raise DataError(
                f"{name}, line {line}: {MEANINGS[rule]}; correct it, or set [cleaning] {rule} to another action "
                "(`nmtkit prepare --check` lists all faults)"
            )

    def note_examples(self, pairs: Iterable[tuple[int, str, str]]) -> None:
        """Notes the text of the first pair of each rule, unless it is noted, from pairs with their lines, in order."""
        wanted = {
            rule: lines[0]
            for rule, lines in self._lines.items()
            if lines and self.examples.get(rule, (0,))[0] != lines[0]
        }
        last = min(max(wanted.values(), default=0), EXAMPLES_WITHIN)
        for line, *sides in pairs:
            if line > last:
                return
            if line in wanted.values():
                source, target = (_visible(side[:_SHOWN]) + "..." * (len(side) > _SHOWN) for side in sides)
                self.examples |= {rule: (line, source, target) for rule, first in wanted.items() if first == line}

    def check_sides(self, names: Sequence[str], num_equal: int, num_pairs: int) -> None:
        """Stops where most pairs of a corpus have equal sides and the recipe does not state that this is meant."""
        if num_pairs >= JUDGED_PAIRS and 2 * num_equal > num_pairs and not self._allows_equal_sides:
            self.stop(
                f"{', '.join(names)}: both sides are the same text in {num_equal:,} of {num_pairs:,} pairs; correct "
                'files or columns in the recipe, or state [cleaning] source_equals_target = "keep" if that is meant'
            )

    def stop(self, reason: str) -> None:
        """Ends the preparation with a DataError, or notes why it would end."""
        if self._may_stop:
            raise DataError(reason)
        self.reasons.append(reason)

    def place(self, line: int) -> tuple[str, int]:
        """Corpus and line in it of a line counted through all corpora."""
        name, before = next(entry for entry in reversed(self._corpora) if entry[1] < line or entry is self._corpora[0])
        return name, line - before

    def count(self, rule: str) -> int:
        """The pairs a rule concerns."""
        return self._counts[rule]

    def left_out(self) -> dict[str, int]:
        """Pairs left out of training, by every reason there is."""
        return {rule: self.dropped[rule] for rule in (*RULES, HELD_OUT_COPY)}

    def refused(self) -> dict[str, int]:
        """The rules whose action is "error" that concern a pair, with their counts."""
        return {rule: self._counts[rule] for rule in RULES if self.actions[rule] == "error" and self._counts[rule]}

    def as_json(self) -> dict[str, Any]:
        """`rules`, `places` and `examples` of report.json."""
        rules = {
            rule: {"count": self._counts[rule], "lines": self._lines[rule], "action": self.actions[rule]}
            for rule in RULES
        }
        places = {rule: [list(self.place(line)) for line in self._lines[rule]] for rule in RULES if self._lines[rule]}
        examples = {rule: list(found[1:]) for rule, found in self.examples.items()}
        return {"rules": rules, "places": places, "examples": examples}


def _visible(text: str) -> str:
    """Text in which what cannot be seen, or would act on a terminal, is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
