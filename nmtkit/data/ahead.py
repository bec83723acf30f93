"""Work done ahead: a thread that takes the next items of an iterator while the present one is being used."""

import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import TypeVar

T = TypeVar("T")

_SECONDS_BETWEEN_LOOKS = 0.1


def work_ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """The same items in the same order, each made up to ``depth`` items ahead by one thread.

    An exception of ``items`` is raised where its item would have come. The thread ends with this iterator, however that
    ends: used up, closed, or left by an exception or a signal's handler.
    """
    # A value in a tuple, the error that ended the items, or None at their end.
    queue: Queue[tuple[T] | BaseException | None] = Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[T] | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                queue.put(entry, timeout=_SECONDS_BETWEEN_LOOKS)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            for value in items:
                if not put((value,)):
                    return
        except BaseException as error:  # raised in the thread that takes the items
            put(error)
        else:
            put(None)

    thread = threading.Thread(target=work, name="nmtkit-ahead", daemon=True)
    thread.start()
    try:
        while True:
            entry = queue.get()
            if entry is None:
                return
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]
    finally:
        stopped.set()
        with suppress(Empty):  # so that the thread does not wait for room in the queue
            while True:
                queue.get_nowait()
        thread.join()
