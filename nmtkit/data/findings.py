"""What the doctor found in the training text: how many pairs each rule concerns, the first of them, what was left out.

Filled while text is read and subwords are cut; becomes RUN/data/report.json.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nmtkit.config import CleaningConfig
from nmtkit.errors import DataError
from nmtkit.text.cleaning import HELD_OUT_COPY, MEANINGS, RULES

LINES_NAMED = 20
"""Lines of each rule that the report names."""


def shown_name(corpus: str) -> str:
    """How the report calls a corpus: the same text gives the same report, compressed or not."""
    return corpus.removesuffix(".gz")


class Findings:
    """Counts of all rules over one preparation.

    Attributes:
        num_pairs: training pairs read so far, which also is the number of the last line.
        dropped: pairs left out of training, by the rule that did it.
        reasons: why the preparation would stop besides rules; nothing that may stop gets to a second one.
    """

    def __init__(self, cleaning: CleaningConfig, *, may_stop: bool) -> None:
        """Args:
        may_stop: whether a rule with the action "error" ends the preparation; else it is only counted.
        """
        self.actions = {rule: cleaning.action(rule) for rule in RULES}
        self.num_pairs = 0
        self.dropped: Counter[str] = Counter()
        self.reasons: list[str] = []
        self._may_stop = may_stop
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
        }

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.num_pairs = state["num_pairs"]
        self.dropped, self._counts = Counter(state["dropped"]), Counter(state["counts"])
        self._lines = {rule: list(lines) for rule, lines in state["lines"].items()}
        self._corpora = [(name, before) for name, before in state["corpora"]]

    def begin_corpus(self, name: str) -> None:
        """Says that the next line is the first one of a corpus."""
        self._corpora.append((name, self.num_pairs))

    def add(self, rule: str, line: int) -> None:
        """Counts a line, by its number through all corpora in turn.

        Raises:
            DataError: the rule's action is "error".
        """
        self.add_all(rule, 1, (line,))

    def add_all(self, rule: str, count: int, lines: Sequence[int]) -> None:
        """Counts many at once, of which ``lines`` names at least the first."""
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
        """`rules` and `places` of report.json."""
        rules = {
            rule: {"count": self._counts[rule], "lines": self._lines[rule], "action": self.actions[rule]}
            for rule in RULES
        }
        places = {rule: [list(self.place(line)) for line in self._lines[rule]] for rule in RULES if self._lines[rule]}
        return {"rules": rules, "places": places}
