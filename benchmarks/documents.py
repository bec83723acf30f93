"""Counts the correct lines of runs of the recipe `context-pronouns`: with "it", by its translation, and without it.

    nmtkit run context-pronouns
    nmtkit run context-pronouns --run-dir runs/without --set data.context=0
    python benchmarks/documents.py runs/context-pronouns runs/without

A line is correct if it equals the reference. Without the sentence before, one in three lines with "it" can be.
"""

import re
import sys
from pathlib import Path

from nmtkit.lines import read_lines
from nmtkit.run import Run

TEST = "pronouns-test"


def counts(run: Path) -> dict[str, tuple[int, int]]:
    """Return the numbers of correct lines and of lines, by the translation of "it", or for lines without it."""
    sources, references = Run(run).test_text(TEST).read()
    found: dict[str, tuple[int, int]] = {}
    for source, reference, line in zip(sources, references, read_lines(Run(run).translation(TEST)), strict=True):
        if not source:
            continue
        has_it = re.search(r"\bit\b", source, re.IGNORECASE)
        pronoun = re.search(r"\b(er|sie|es|ihn)\b", reference, re.IGNORECASE) if has_it else None
        for kind in (pronoun[0].lower(), "it") if pronoun else ("without it",):
            correct, total = found.get(kind, (0, 0))
            found[kind] = correct + (line == reference), total + 1
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for folder in map(Path, sys.argv[1:]):
        rows = sorted(counts(folder).items())
        parts = [f"{kind} {100 * correct / total:.1f} % of {total}" for kind, (correct, total) in rows]
        print(f"{folder}: {', '.join(parts)}")
