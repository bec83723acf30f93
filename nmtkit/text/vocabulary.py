"""Vocabularies: the interface of all subword models, and those that are no more than a list of their entries.

The four special ids are the same in every vocabulary. Characters that Unicode promises never to assign stand for what
the text itself may contain.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal, Protocol, TypeVar, runtime_checkable

from nmtkit.config.data_schema import DataConfig
from nmtkit.errors import RecipeError

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")

BLANK_SIGN, STAND_IN = "\u2581", "\ufdd0"
"""sentencepiece writes a blank as U+2581, so a U+2581 in the text would be decoded as a blank; in its models the second
character stands for it."""
TAG_SIGN = "\ufdd1"
"""Beginning of the entry of a tag: sentencepiece removes control symbols from its training text, even inside words, and
the text may contain the name of the tag."""
ADDED = ("<start>", "<delimiter>", "<extract>")
"""Entries at the end of a vocabulary for tasks whose output is a label; no text is split into them."""
BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
"""The entry of a byte, with byte fallback."""
UNKNOWN_TEXT = " \u2047 "
"""Text that <unk> is decoded to."""

_LONGEST_KEPT = 40
"""Characters of the longest words in `keep_results`: sentences in scripts without blanks would take gigabytes."""

T = TypeVar("T")


@runtime_checkable
class Vocabulary(Protocol):
    """A subword model."""

    def __len__(self) -> int: ...
    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]: ...
    def decode(self, ids: list[int]) -> str: ...
    def piece(self, index: int) -> str: ...
    def id_of(self, piece: str) -> int: ...
    def to_bytes(self) -> bytes: ...


class ListedPieces:
    """A vocabulary with a list of its pieces: special pieces, tags, then the pieces of text."""

    def __init__(self, pieces: Sequence[str], tags: Sequence[str] = ()) -> None:
        self.pieces = list(pieces)
        self.num_special = len(SPECIAL_PIECES) + len(tags)
        # Text that equals a special piece is unknown.
        self.index = {piece: index for index, piece in enumerate(pieces) if index >= self.num_special}

    def __len__(self) -> int:
        return len(self.pieces)

    def piece(self, index: int) -> str:
        return self.pieces[index]

    def id_of(self, piece: str) -> int:
        return self.pieces.index(piece)  # `index` lacks special entries and tags

    def to_bytes(self) -> bytes:
        return "".join(f"{piece}\n" for piece in self.pieces).encode("utf-8")


class SegmentedPieces(ListedPieces):
    """Vocabulary of text that is already segmented: the pieces between blanks, most frequent first."""

    def __init__(self, pieces: Sequence[str], mark: str, tags: Sequence[str] = ()) -> None:
        super().__init__(pieces, tags)
        self._mark = mark

    @classmethod
    def learn(cls, lines: Iterable[str], data: DataConfig, tags: Sequence[str]) -> "SegmentedPieces":
        counts = Counter(piece for line in lines for piece in line.split(" ") if piece)
        entries = [*SPECIAL_PIECES, *(TAG_SIGN + tag for tag in tags)]
        if data.vocab_size <= len(entries):
            raise RecipeError(
                f"data.vocab_size = {data.vocab_size}: special symbols and tags need {len(entries)} entries; "
                "choose a larger size"
            )
        for special in entries:  # the text may contain them as words, but an entry must not occur twice
            counts.pop(special, None)
        ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
        return cls([*entries, *ranked[: data.vocab_size - len(entries)]], data.segment_mark, tags)

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return [[self.index.get(piece, UNK) for piece in line.split(" ") if piece] for line in lines]

    def decode(self, ids: list[int]) -> str:
        pieces = (self.pieces[index] for index in ids if index == UNK or index >= self.num_special)
        return join_segments(" ".join(pieces), self._mark)


class Labels(ListedPieces):
    """The labels of a task, each of them one entry."""

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return [[self.index.get(label, UNK)] if (label := label_of(line)) else [] for line in lines]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.pieces[index] for index in ids if index >= self.num_special)


class Extended:
    """A vocabulary with the entries ADDED at its end."""

    def __init__(self, base: Vocabulary) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base) + len(ADDED)

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return self.base.encode(lines, threads)

    def decode(self, ids: list[int]) -> str:
        return self.base.decode([index for index in ids if index < len(self.base)])

    def piece(self, index: int) -> str:
        return self.base.piece(index) if index < len(self.base) else ADDED[index - len(self.base)]

    def id_of(self, piece: str) -> int:
        return len(self.base) + ADDED.index(piece) if piece in ADDED else self.base.id_of(piece)

    def to_bytes(self) -> bytes:
        return self.base.to_bytes()


def keep_results(of_word: Callable[[str], T], num_words: int) -> Callable[[str], T]:
    """Return a function of words that keeps its results for the last ``num_words`` short ones."""
    kept = lru_cache(num_words)(of_word)
    return lambda word: kept(word) if len(word) <= _LONGEST_KEPT else of_word(word)


def label_of(line: str) -> str:
    """Return the label in a line: its text with single blanks and without byte-order marks."""
    return " ".join(line.replace("\ufeff", "").split())


def join_segments(line: str, mark: str) -> str:
    """Join pieces that end in ``mark`` with the next ones: "lo@@ w" becomes "low".

    BLANK_SIGN, sentencepiece's mark, stands where words begin instead.
    """
    if mark == BLANK_SIGN:
        return line.replace(" ", "").replace(BLANK_SIGN, " ").strip(" ")
    # The blank lets the last piece of the line lose its mark, too.
    return f"{line} ".replace(f"{mark} ", "").rstrip(" ") if mark else line
