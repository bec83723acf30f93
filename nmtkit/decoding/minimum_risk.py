"""Minimum Bayes risk decoding: of several samples the one that is most like all of them.

Source: Eikema and Aziz 2020 (arXiv 2005.10283), section 5: the samples are candidates and pseudo-references at once.
"""

from collections.abc import Callable, Sequence

Utility = Callable[[str, str], float]
"""How good a hypothesis is by a reference; higher is better."""


def by_expected_utility(samples: Sequence[str], utility: Utility) -> list[int]:
    """The numbers of the samples, the one of highest mean utility first; of equal ones the one drawn first.

    A sample that was drawn several times counts as often as a reference; each pair of different ones is compared once a
    direction.
    """
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample] = counts.get(sample, 0) + 1
    expected = {
        hypothesis: sum(count * utility(hypothesis, reference) for reference, count in counts.items())
        for hypothesis in counts
    }
    return sorted(range(len(samples)), key=lambda number: -expected[samples[number]])
