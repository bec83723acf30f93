"""Where two texts that should be each other's translation, line by line, likely stop being so.

For corpora whose sides have unequally many lines: a person then looks at one line instead of at millions.
"""

import numpy as np
import numpy.typing as npt

_SMOOTHING = 4.0
"""Characters added to both lengths, so that the ratio of very short lines says little."""
_LARGEST_COST = 1.5
_MAX_SHIFT = 20
_WINDOW_LINES = 400
_NEAR_LINES = 200
_CLOSE_LINES = 5
_PAIRS_COMPARED = 100_000


def likely_first_divergent_line(source_lengths: npt.NDArray, target_lengths: npt.NDArray) -> int:
    """The line, from 1, from which on two texts of unequally many lines likely belong together no longer.

    Translations have about the same length ratio throughout; sentences that have nothing to do with each other do not.
    In two steps: where the costs of the pairs as they stand begin to be those of unrelated lines, and near there the
    place where it is best to go on with one side some lines ahead.

    Args:
        source_lengths, target_lengths: characters of each line, [lines of that side].

    Returns:
        one more than the lines of the shorter side where nothing before its end looks wrong.
    """
    common = min(len(source_lengths), len(target_lengths))
    if common == 0:
        return 1
    source, target = _logs(source_lengths), _logs(target_lengths)
    centre = float(np.median(source[:common] - target[:common]))
    cost = _costs(source[:common], target[:common], centre)
    # Unrelated lines are had by moving one side: only their distribution of lengths then is the same.
    moved = np.roll(source[:common], common // 2 + 1)[:_PAIRS_COMPARED]
    unrelated = float(_costs(moved, target[: len(moved)], centre).mean())
    # If the texts part at the very beginning, their ends still belong together.
    at_the_end = _best_level(_costs(source[-common:], target[-common:], centre))
    related = min(_best_level(cost), at_the_end, unrelated)
    threshold = (related + unrelated) / 2
    begin = _change(cost, threshold)
    if begin is None:
        return common + 1
    place = _best_shift(source, target, centre, begin, common)
    # Of two places close to each other the second may fit best; then what lies before it does not belong together.
    while place - begin > _CLOSE_LINES and float(cost[begin:place].mean()) > threshold:
        earlier = _best_shift(source, target, centre, begin, place)
        if earlier >= place:
            break
        place = earlier
    return place + 1


def _logs(lengths: npt.NDArray) -> npt.NDArray[np.float32]:
    return np.log(np.asarray(lengths, np.float32) + np.float32(_SMOOTHING))


def _costs(source: npt.NDArray, target: npt.NDArray, centre: float) -> npt.NDArray[np.float32]:
    return np.minimum(np.abs(source - target - np.float32(centre)), np.float32(_LARGEST_COST))


def _change(cost: npt.NDArray, threshold: float) -> int | None:
    """How many pairs come before the place from which on costs are mostly over a threshold; None: there is no such."""
    common = len(cost)
    sums = np.concatenate([[0.0], np.cumsum(cost, dtype=np.float64)])
    begin = int(np.argmax(threshold * np.arange(common + 1) - sums))
    if begin == common or (sums[-1] - sums[begin]) / (common - begin) <= threshold:
        return None
    return begin


def _best_level(cost: npt.NDArray) -> float:
    """The lowest mean cost of a stretch of the text, one of up to twenty."""
    edges = np.linspace(0, len(cost), min(20, len(cost)) + 1).astype(int)
    return float((np.add.reduceat(cost, edges[:-1], dtype=np.float64) / np.diff(edges)).min())


def _best_shift(source: npt.NDArray, target: npt.NDArray, centre: float, begin: int, limit: int) -> int:
    """The place near ``begin`` from which on one side some lines ahead fits best, up to line ``limit``; ``begin`` where
    none fits better than the lines as they stand."""
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
        # What has no counterpart when one side is ahead costs as much as an unrelated pair may.
        costs = np.concatenate([costs, np.full(end - first - length, _LARGEST_COST / 2, np.float32)])
        shifted = np.concatenate([np.cumsum(costs[::-1])[::-1], [0.0]])
        candidates = (unshifted + shifted)[: last - first + 1]
        place = int(np.argmin(candidates))
        if candidates[place] < best_cost:
            best_cost, best = float(candidates[place]), first + place
    return best
