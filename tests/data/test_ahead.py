"""Work done ahead by a thread: the same items in the same order, and the thread ends with the iterator."""

import threading
import time
from collections.abc import Iterator

import pytest

from nmtkit.data.batch import work_ahead


def threads() -> int:
    return sum(thread.name.startswith("nmtkit-ahead") for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_items_come_in_order_and_the_thread_ends(depth: int) -> None:
    assert list(work_ahead(iter(range(100)), depth)) == list(range(100))
    assert threads() == 0


def test_items_are_made_ahead_but_not_without_end() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    ahead = work_ahead(items(), 2)
    assert next(ahead) == 0
    until = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]  # one taken, two waiting, one in the thread's hand
    ahead.close()
    assert threads() == 0


def test_an_exception_is_raised_where_its_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    ahead = work_ahead(items(), 3)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="broken"):
        next(ahead)
    assert threads() == 0


def test_the_thread_ends_when_its_user_fails() -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in work_ahead(iter(range(1000)), 2):
            raise KeyboardInterrupt
    until = time.monotonic() + 5
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == 0
