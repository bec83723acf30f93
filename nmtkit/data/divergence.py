"""Judge by the lengths of lines whether two texts are aligned, and find the line from which they are not.

If the sides of a corpus have different numbers of lines, the user then has to look at one line instead of millions.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_SMOOTHING = 4.0
"""Characters added to both lengths, as the ratio of the lengths of very short lines means little."""
_LARGEST_COST = 1.5
"""Limit of the cost of a pair, so that a few very uneven pairs do not decide."""
_MAX_SHIFT = 20
_WINDOW_LINES = 400
_NEAR_LINES = 200
_CLOSE_LINES = 5
_PAIRS_COMPARED = 100_000
# Translations have 0.84 or more in each 1,000 pairs of Multi30k and of four newstests, and with one side shifted by a
# line at most 0.26. Texts sorted by length are not informative: their standard deviation is below 0.11, of others above
# 0.28.
_LEAST_CORRELATION = 0.3
_LEAST_DEVIATION = 0.2
_FEWEST_PAIRS = 100


def are_unrelated(source_lengths: Sequence[int], target_lengths: Sequence[int]) -> bool:
    """Return whether the lengths of the sides say nothing about each other, so that they are hardly translations.

    Args:
        source_lengths, target_lengths: characters of each line, [pairs]. Pairs with an empty side do not count; fewer
            than 100 others are not judged.
    """
    lengths = np.array([source_lengths, target_lengths], np.float64)
    lengths = lengths[:, lengths.all(axis=0)]
    if lengths.shape[1] < _FEWEST_PAIRS:
        return False
    logarithms = np.log(lengths + _SMOOTHING)
    varied = logarithms.std(axis=1).min() >= _LEAST_DEVIATION
    return bool(varied and np.corrcoef(logarithms)[0, 1] < _LEAST_CORRELATION)


def likely_first_divergent_line(source_lengths: npt.NDArray, target_lengths: npt.NDArray) -> int:
    """Return the line, from 1, from which two texts with different numbers of lines are probably no longer aligned.

    Translations have about the same length ratio throughout; unrelated sentences do not. The search has two steps:
    find where the cost of the pairs rises to that of unrelated lines; near there, find the line from which the pairs
    fit best if one side is shifted by some lines.

    Args:
        source_lengths, target_lengths: characters of each line, [lines of that side].

    Returns:
        The line; one more than the lines of the shorter side if all pairs up to its end look right.
    """
    common = min(len(source_lengths), len(target_lengths))
    if common == 0:
        return 1
    # Logarithms, whose differences are ratios of lengths; float32 takes half the memory and is exact enough.
    source, target = (
        np.log(np.asarray(lengths, np.float32) + np.float32(_SMOOTHING)) for lengths in (source_lengths, target_lengths)
    )
    # The median, as the mean would be moved by the pairs that are no longer aligned.
    centre = float(np.median(source[:common] - target[:common]))
    cost = _costs(source[:common], target[:common], centre)
    # Shifting one side by half of the text gives unrelated pairs whose lengths have the same distribution.
    moved = np.roll(source[:common], common // 2 + 1)[:_PAIRS_COMPARED]
    unrelated = float(_costs(moved, target[: len(moved)], centre).mean())
    # If the texts diverge at the very beginning, their ends still belong together.
    at_the_end = _best_level(_costs(source[-common:], target[-common:], centre))
    threshold = (min(_best_level(cost), at_the_end, unrelated) + unrelated) / 2
    # Up to this line the costs are mostly below the threshold, and after it mostly above.
    # In float64: a float32 sum over millions of lines would lose the costs of single ones.
    sums = np.concatenate([[0.0], np.cumsum(cost, dtype=np.float64)])
    begin = int(np.argmax(threshold * np.arange(common + 1) - sums))
    if begin == common or (sums[-1] - sums[begin]) / (common - begin) <= threshold:
        return common + 1
    line = _best_shift(source, target, centre, begin, common)
    # Of two divergences close to each other, the second may fit best; then the lines before it are unrelated.
    while line - begin > _CLOSE_LINES and float(cost[begin:line].mean()) > threshold:
        earlier = _best_shift(source, target, centre, begin, line)
        if earlier >= line:
            break
        line = earlier
    return line + 1


def _costs(source: npt.NDArray, target: npt.NDArray, centre: float) -> npt.NDArray[np.float32]:
    return np.minimum(np.abs(source - target - np.float32(centre)), np.float32(_LARGEST_COST))


def _best_level(cost: npt.NDArray) -> float:
    """Return the lowest mean cost among up to twenty equal segments of the text."""
    edges = np.linspace(0, len(cost), min(20, len(cost)) + 1).astype(int)
    return float((np.add.reduceat(cost, edges[:-1], dtype=np.float64) / np.diff(edges)).min())


def _best_shift(source: npt.NDArray, target: npt.NDArray, centre: float, begin: int, limit: int) -> int:
    """Return the line (from 0) near ``begin``, up to ``limit``, from which shifting one side gives the lowest cost.

    It is ``begin`` if no shift is better than none.
    """
    first, last = max(0, begin - _NEAR_LINES), min(limit, begin + _NEAR_LINES)
    end = min(limit, last + _WINDOW_LINES)
    unshifted = np.concatenate([[0.0], np.cumsum(_costs(source[first:end], target[first:end], centre))])
    best_cost, best = float(unshifted[-1]), begin
    for shift in [*range(-_MAX_SHIFT, 0), *range(1, _MAX_SHIFT + 1)]:
        ahead_source, ahead_target = source[first + max(shift, 0) :], target[first + max(-shift, 0) :]
        length = min(len(ahead_source), len(ahead_target), end - first)
        if length <= 0:
            continue
        costs = _costs(ahead_source[:length], ahead_target[:length], centre)
        # Lines whose counterpart lies beyond the end of the shifted side cost half of the maximum.
        costs = np.concatenate([costs, np.full(end - first - length, _LARGEST_COST / 2, np.float32)])
        shifted = np.concatenate([np.cumsum(costs[::-1])[::-1], [0.0]])
        candidates = (unshifted + shifted)[: last - first + 1]
        index = int(np.argmin(candidates))
        if candidates[index] < best_cost:
            best_cost, best = float(candidates[index]), first + index
    return best
