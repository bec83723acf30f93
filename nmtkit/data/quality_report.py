"""Findings of `prepare` in the training text: the content of RUN/data/report.json.

`Findings` is filled while text is read and subwords are cut; quality_page.py draws the report.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.console import log
from nmtkit.data.cleaning import EXAMPLES_WITHIN, HELD_OUT_COPY, MEANINGS, RULES, BlockFindings
from nmtkit.errors import DataError

LINES_NAMED = 20
"""Maximum number of lines listed per rule in the report."""
_STATE = ("num_pairs", "dropped", "counts", "lines", "corpora", "examples", "uneven")
"""The attributes of `Findings` that are stored with the cleaned text."""
JUDGED_PAIRS = 100
"""Number of pairs from which a corpus is refused if most of its sides are equal; a smaller one may hold only names."""


def shown_name(corpus: str) -> str:
    """Return the name of a corpus in the report: without .gz, so that compression does not change the report."""
    return corpus.removesuffix(".gz")


class Findings:
    """Numbers of pairs that break each rule, the first of these pairs, and the pairs left out, of one preparation.

    Attributes:
        actions: action of each rule, as the recipe states it.
        num_pairs: training pairs read so far, which also is the number of the last line.
        counts, dropped: pairs that break each rule, and pairs left out of training for it.
        lines: numbers of the first pairs that break each rule.
        corpora: name of each corpus, and the number of pairs before it.
        reasons: messages of faults other than rules that would stop the preparation; a check collects several.
        line_numbers: of generated corpora, by index: function that returns the number of the line of each pair.
        uneven: name of each corpus with sides of different lengths, and its probable first line without counterpart.
        examples: line, and excerpts of source and target, of the first pair that breaks a rule.
    """

    def __init__(self, cleaning: CleaningConfig, *, may_stop: bool) -> None:
        """Args:
        may_stop: a rule with the action "error" ends the preparation; else it is only counted.
        """
        self.actions = {rule: cleaning.action(rule) for rule in RULES}
        self.num_pairs = 0
        self.dropped: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.examples: dict[str, tuple[int, str, str]] = {}
        self._may_stop = may_stop
        self._allows_equal_sides = "source_equals_target" in cleaning.model_fields_set
        self._exchanges_sides = cleaning.swapped_sides == "fix"
        self.counts: Counter[str] = Counter()
        self.lines: dict[str, list[int]] = {rule: [] for rule in RULES}
        self.corpora: list[tuple[str, int]] = []
        self.line_numbers: dict[int, Callable[[], Iterable[int]]] = {}
        self.uneven: list[tuple[str, int]] = []

    def state(self) -> dict[str, Any]:
        """Return all findings so far as JSON values, for `restore` in another process."""
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the findings that `state` returned."""
        for name in _STATE:
            value = state[name]
            setattr(self, name, Counter(value) if name in ("dropped", "counts") else value)

    def begin_corpus(self, name: str) -> None:
        """Note that the next line is the first one of a corpus."""
        self.corpora.append((name, self.num_pairs))

    def add(self, rule: str, count: int, lines: Sequence[int]) -> None:
        """Count pairs that break a rule; ``lines`` has the first of their numbers, if any (through all corpora).

        Raises:
            DataError: the rule's action is "error".
        """
        if not count:
            return
        self.counts[rule] += count
        named = self.lines[rule]
        if lines and (len(named) < LINES_NAMED or min(lines) < named[-1]):
            self.lines[rule] = heapq.nsmallest(LINES_NAMED, {*named, *map(int, lines)})
        if self._may_stop and self.actions[rule] == "error":
            name, line = self.place(self.lines[rule][0])
            raise DataError(
                f"{name}, line {line}: {MEANINGS[rule]}; correct it, or set [cleaning] {rule} to another action "
                "(`nmtkit prepare --check` lists all faults)"
            )

    def add_block(self, findings: BlockFindings) -> None:
        """Add the findings in a block of pairs, see `add`."""
        for rule, number in findings.broken:
            self.add(rule, 1, (number,))
        for rule, example in findings.examples.items():
            self.add_example(rule, *example)
        self.dropped.update(findings.dropped)

    def add_example(self, rule: str, line: int, source: str, target: str) -> None:
        """Note excerpts of a pair that breaks a rule, unless an earlier pair is known."""
        if line <= EXAMPLES_WITHIN and (rule not in self.examples or line < self.examples[rule][0]):
            self.examples[rule] = line, source, target

    def sort_examples(self) -> None:
        """Sort the examples by line, then by rule."""
        self.examples = dict(sorted(self.examples.items(), key=lambda item: (item[1][0], RULES.index(item[0]))))

    def check_sides(self, names: Sequence[str], broken: Counter[str], num_pairs: int) -> None:
        """Stop if most pairs of a corpus have equal sides, unless the recipe states source_equals_target.

        Warn if most are in the wrong language or order.

        Args:
            broken: how many of its pairs break each rule.
        """
        rules = ["wrong_script", "wrong_language", *([] if self._exchanges_sides else ["swapped_sides"])]
        for rule in rules:
            if num_pairs >= JUDGED_PAIRS and 2 * broken[rule] > num_pairs:
                log.warning(
                    "%s: %s in %s of %s pairs; correct files, columns or languages in the recipe (a second writing "
                    "system of a language is stated as in uz_Cyrl)",
                    ", ".join(names), MEANINGS[rule], f"{broken[rule]:,}", f"{num_pairs:,}",
                )  # fmt: skip
        num_equal = broken["source_equals_target"]
        if num_pairs >= JUDGED_PAIRS and 2 * num_equal > num_pairs and not self._allows_equal_sides:
            self.stop(
                f"{', '.join(names)}: both sides are the same text in {num_equal:,} of {num_pairs:,} pairs; correct "
                'files or columns in the recipe, or state [cleaning] source_equals_target = "keep" if that is meant'
            )

    def stop(self, reason: str) -> None:
        """End the preparation with a DataError, or note why it would end."""
        if self._may_stop:
            raise DataError(reason)
        self.reasons.append(reason)

    def place(self, line: int) -> tuple[str, int]:
        """Return the corpus, and the line in it, of a line counted through all corpora."""
        return self.places([line])[line]

    def places(self, lines: Iterable[int]) -> dict[int, tuple[str, int]]:
        """Return the places of lines, see `place`; a line of a generated corpus is that of the text."""
        found, of_pairs = dict[int, tuple[str, int]](), defaultdict[int, set[int]](set)
        for line in lines:
            index = max((n for n, (_, before) in enumerate(self.corpora) if before < line), default=0)
            name, before = self.corpora[index]
            found[line] = name, line - before
            # Collected, as the lines of a generated corpus are found by reading all of it.
            if index in self.line_numbers:
                of_pairs[index].add(line - before)
        for index, pairs in of_pairs.items():
            name, before = self.corpora[index]
            numbers = enumerate(self.line_numbers[index](), start=1)
            found |= {before + pair: (name, number) for pair, number in numbers if pair in pairs}
        return found

    def left_out(self) -> dict[str, int]:
        """Return the number of pairs left out of training, by rule."""
        return {rule: self.dropped[rule] for rule in (*RULES, HELD_OUT_COPY)}

    def refused(self) -> dict[str, int]:
        """Return the rules with the action "error" that some pair breaks, with their counts."""
        return {rule: self.counts[rule] for rule in RULES if self.actions[rule] == "error" and self.counts[rule]}

    def report(
        self,
        corpora: list[dict[str, Any]],
        words: dict[str, list[int]],
        num_kept: int | None = None,
        subwords: dict[str, Any] | None = None,
        round_trip: dict[str, int] | None = None,
    ) -> dict[str, Any]:
        """Return the content of report.json; it holds no path and no time, so equal text gives equal reports.

        Args:
            corpora: as the manifest describes them.
            words: for each side, the numbers of lines with 0, 1, ... words.
            num_kept: pairs to train on; None when the text was only checked.
            subwords: statistics of the shards ``train`` and ``valid``; None when the text was only checked.
            round_trip: counts of `ShardStatistics.round_trip`; None when the text was only checked.
        """
        places = self.places({line for lines in self.lines.values() for line in lines})
        return {
            "rules": {
                rule: {"count": self.counts[rule], "lines": self.lines[rule], "action": self.actions[rule]}
                for rule in RULES
            },
            "places": {rule: [list(places[line]) for line in lines] for rule, lines in self.lines.items() if lines}
            | ({"line_count": list(map(list, self.uneven[:LINES_NAMED]))} if self.uneven else {}),
            "examples": {rule: list(example[1:]) for rule, example in self.examples.items()},
            "pairs": {"read": self.num_pairs, "kept": num_kept},
            "left_out": {rule: count for rule, count in self.left_out().items() if count and num_kept is not None},
            "corpora": [
                {"name": shown_name(corpus["name"]), "role": corpus["role"], "pairs": corpus["pairs"]}
                | ({"generated": corpus["generated"]["counts"]} if "generated" in corpus else {})
                for corpus in corpora
            ],
            "words": {side: without_zeros(counts) for side, counts in words.items()},
            "subwords": subwords,
            "round_trip": round_trip,
        }


def without_zeros(histogram: list[int]) -> dict[str, int]:
    """Return the counts of a histogram that are not zero, by length."""
    return {str(length): count for length, count in enumerate(histogram) if count}
