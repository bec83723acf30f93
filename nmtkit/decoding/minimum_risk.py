"""Minimum Bayes risk decoding: of several samples the one that is most like all of them.

Source: Eikema and Aziz 2020 (arXiv 2005.10283), section 5: the samples are candidates and pseudo-references at once.
"""

from collections import Counter
from collections.abc import Callable, Sequence

Utility = Callable[[str, str], float]
"""How good a hypothesis is by a reference; higher is better."""


def by_expected_utility(samples: Sequence[str], utility: Utility) -> list[int]:
    """The numbers of the samples, the one of highest mean utility first; of as good ones the one drawn first.

    A sample that was drawn several times counts as often as a reference, and is named once; each pair of different ones
    is compared once a direction.
    """
    counts = Counter(samples)
    expected = {
        hypothesis: sum(count * utility(hypothesis, reference) for reference, count in counts.items())
        for hypothesis in counts
    }
    return sorted(map(samples.index, counts), key=lambda number: -expected[samples[number]])
