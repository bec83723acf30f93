"""Where the sides of a corpus part is found from the lengths of their lines."""

import numpy as np
import numpy.typing as npt
import pytest

from nmtkit.data.divergence import are_unrelated, likely_first_divergent_line


def lengths(count: int, seed: int = 1) -> tuple[npt.NDArray, npt.NDArray]:
    """Lengths of made-up translations: of widely different lengths, the target about a tenth longer."""
    rng = np.random.default_rng(seed)
    source = np.maximum(2, rng.lognormal(4, 0.6, count))
    return source.astype(int), (source * 1.1 * rng.lognormal(0, 0.15, count)).astype(int)


@pytest.mark.parametrize("place", [0, 7, 500, 1400, 1960])
@pytest.mark.parametrize("lost", ["source", "target"])
def test_a_lost_line_is_found_within_a_few_lines(place: int, lost: str) -> None:
    source, target = lengths(2000)
    if lost == "source":
        source = np.delete(source, place)
    else:
        target = np.delete(target, place)
    assert abs(likely_first_divergent_line(source, target) - (place + 1)) <= 6


@pytest.mark.parametrize("place", [3, 900])
def test_lines_that_came_in_are_found_within_a_few_lines(place: int) -> None:
    source, target = lengths(2000)
    target = np.insert(target, place, [80, 15, 40])
    assert abs(likely_first_divergent_line(source, target) - (place + 1)) <= 6


def test_of_several_places_one_near_the_first_is_named() -> None:
    source, target = lengths(3000)
    found = likely_first_divergent_line(source, np.delete(target, [1000, 2000, 2500]))
    assert abs(found - 1001) <= 6


def test_a_text_that_was_cut_short_parts_where_it_ends() -> None:
    source, target = lengths(2000)
    assert likely_first_divergent_line(source, target[:1500]) == 1501
    assert likely_first_divergent_line(source[:3], target) <= 4


def test_an_empty_side_parts_at_the_first_line() -> None:
    source, target = lengths(5)
    assert likely_first_divergent_line(source, target[:0]) == 1


def test_lengths_of_translations_are_related_and_those_of_shifted_lines_are_not() -> None:
    generator = np.random.default_rng(1)
    source = generator.integers(10, 120, 1000)
    target = np.maximum(1, source + generator.integers(-8, 9, 1000))
    assert not are_unrelated(source.tolist(), target.tolist())
    assert are_unrelated(source[1:].tolist(), target[:-1].tolist())
    assert not are_unrelated(source[1:100].tolist(), target[:99].tolist())  # too few to say
    blank = np.where(np.arange(1000) % 3 == 0, 0, source), np.where(np.arange(1000) % 5 == 0, 0, target)
    assert not are_unrelated(*(side.tolist() for side in blank))
    assert are_unrelated(blank[0][1:].tolist(), blank[1][:-1].tolist())
    sorted_by_length = np.sort(generator.integers(40, 44, 1000)), generator.integers(20, 90, 1000)
    assert not are_unrelated(*(lengths.tolist() for lengths in sorted_by_length))
