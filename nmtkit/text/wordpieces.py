"""Word-pieces: learn a vocabulary by likelihood, and split words by longest match.

    words (with a blank before each) --split at changes of kind--> counted units --WordPieceTrainer--> pieces
    line -> units -> longest matching piece, from left to right -> ids -> the same line

The blank before each word is a character like the others, so that joined pieces are the text without any escapes.

Source: Wu et al. 2016 (arXiv 1609.08144), section 4.1, with the learning of Schuster & Nakajima 2012, section 5.2:
starting from characters, join the pair that raises the likelihood of the training text most; a special symbol marks
only the beginnings of words; all but the most frequent characters (about 500 for Western languages) are unknown.
Google's implementations (tensor2tensor, BERT) also split by longest match.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt

from nmtkit.config.data_schema import DataConfig
from nmtkit.errors import RecipeError
from nmtkit.text.vocabulary import (
    BLANK_SIGN,
    BYTE_PIECE,
    SPECIAL_PIECES,
    STAND_IN,
    TAG_SIGN,
    UNK,
    UNKNOWN_TEXT,
    ListedPieces,
    keep_results,
)

Array = npt.NDArray[np.int64]
Counts = npt.NDArray[np.float64]
"""Whole numbers as floats, exact up to 2^53, for logarithms."""

JOINED_AT_ONCE = 0.8
"""Pairs with at least this share of the best gain are joined in the same pass over the text if they cannot overlap.
Schuster & Nakajima do the same; it saves most of the passes."""
_CACHED_WORDS = 500_000
"""Maximum number of words whose ids are cached."""
_END = -1
"""Separator of units in the array of all symbols."""


@cache
def _kind(character: str) -> str:
    category = unicodedata.category(character)[0]
    return "letter" if category in "LM" else "number" if category == "N" else "other"


def units_of(word: str) -> list[str]:
    """Return the units of a word, which pieces do not cross: letters with their marks, digits, and all else.

    The blank before the word belongs to its first unit: "it's" gives [" it", "'", "s"].
    """
    first, *others = ["".join(unit) for _, unit in groupby(word, _kind)] or [""]
    return [f" {first}", *others]


def count_units(lines: Iterable[str]) -> Counter[str]:
    """Return the count of each unit in a text."""
    words = Counter(chain.from_iterable(line.split(" ") for line in lines))
    words.pop("", None)
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for unit in units_of(word):
            counts[unit] += count
    return counts


class WordPieceTrainer:
    """Trainer that joins pieces of counted units to longer ones; equal counts give equal pieces in equal order."""

    def __init__(self, counts: Counter[str], num_characters: int) -> None:
        """Args:
        counts: count of each unit.
        num_characters: number of the most frequent characters that become pieces, besides the blank.
        """
        characters: Counter[str] = Counter()
        for unit, count in counts.items():
            for character in unit:
                characters[character] += count
        del characters[" "], characters["\n"]  # the vocabulary is stored as one piece per line
        ranked = sorted(characters, key=lambda character: (-characters[character], character))
        self.pieces: list[str] = [" ", *ranked[:num_characters]]
        self.num_basic = len(self.pieces)
        self._index = {piece: index for index, piece in enumerate(self.pieces)}
        # All units in one array of piece numbers, with _END between units and for other characters, and their counts.
        symbols: list[int] = []
        weights: list[int] = []
        for unit in sorted(counts):  # so that the order of the lines changes nothing
            symbols.extend(self._index.get(character, _END) for character in unit)
            symbols.append(_END)
            weights.extend([counts[unit]] * (len(unit) + 1))
        self._symbols, self._weights = np.array(symbols, np.int64), np.array(weights, np.float64)
        self._finished: Counts = np.zeros(len(self.pieces))  # counts of units that have become one piece

    def grow(self, size: int) -> None:
        """Join pieces until there are ``size`` pieces, or no pair is left."""
        while len(self.pieces) < size and (best := self._best_pairs()):
            joined: dict[int, int] = {}
            before = len(self.pieces)
            for left, right in best:
                if len(self.pieces) == size:
                    break
                piece = self.pieces[left] + self.pieces[right]
                if piece not in self._index:  # another pair may have formed it before
                    self._index[piece] = len(self.pieces)
                    self.pieces.append(piece)
                joined[left * before + right] = self._index[piece]
            self._join(joined, before)

    def _best_pairs(self) -> list[tuple[int, int]]:
        """Return the pair with the highest likelihood gain, and pairs with nearly its gain that cannot overlap."""
        symbols, weights = self._symbols, self._weights
        is_pair = (symbols[:-1] != _END) & (symbols[1:] != _END)
        is_pair &= ~_second_of_doubles(symbols)
        size = len(self.pieces)
        codes = symbols[:-1][is_pair] * size + symbols[1:][is_pair]
        if not len(codes):
            return []
        pairs, inverse = np.unique(codes, return_inverse=True)
        joint = _sums(inverse, weights[:-1][is_pair], len(pairs))
        is_piece = symbols != _END
        single = _sums(symbols[is_piece], weights[is_piece], size)
        single[: len(self._finished)] += self._finished
        left, right = pairs // size, pairs % size
        # Rounded, so that the last bits of equal gains do not decide which is first, but the text of the pieces.
        gains = np.round(likelihood_gain(joint, single[left], single[right], left == right, single.sum()), 6)
        # 0.8 of a negative gain is larger than the gain itself. If the best gain is negative, only pairs with exactly
        # this gain are joined.
        least = gains.max() * (JOINED_AT_ONCE if gains.max() > 0 else 1)
        good = np.flatnonzero(gains >= least)
        ranked = sorted(good.tolist(), key=lambda k: (-gains[k], self.pieces[left[k]], self.pieces[right[k]]))
        chosen: list[tuple[int, int]] = []
        lefts: set[int] = set()
        rights: set[int] = set()
        for pair in ((int(left[k]), int(right[k])) for k in ranked):
            if pair[0] not in rights and pair[1] not in lefts:
                chosen.append(pair)
                lefts.add(pair[0])
                rights.add(pair[1])
        return chosen

    def _join(self, joined: dict[int, int], size: int) -> None:
        """Replace pairs by pieces; ``joined`` maps left piece x ``size`` + right piece to the joined piece."""
        symbols, weights = self._symbols, self._weights
        codes = np.array(sorted(joined), np.int64)
        results = np.array([joined[code] for code in codes.tolist()], np.int64)
        here = np.where((symbols[:-1] != _END) & (symbols[1:] != _END), symbols[:-1] * size + symbols[1:], -1)
        # searchsorted gives len(codes) for a code above all others.
        nearest = np.minimum(np.searchsorted(codes, here), len(codes) - 1)
        is_joined = (codes[nearest] == here) & ~_second_of_doubles(symbols)
        symbols[:-1][is_joined] = results[nearest[is_joined]]
        stays = np.ones(len(symbols), np.bool_)
        stays[1:][is_joined] = False
        symbols, weights = symbols[stays], weights[stays]
        # A unit that is one piece cannot change any more, so only its count is kept.
        before = np.concatenate([[_END], symbols[:-1]])
        is_alone = (symbols != _END) & (before == _END) & (np.concatenate([symbols[1:], [_END]]) == _END)
        finished = _sums(symbols[is_alone], weights[is_alone], len(self.pieces))
        finished[: len(self._finished)] += self._finished
        stays = ~is_alone
        stays[:-1] &= ~((symbols[:-1] == _END) & (symbols[1:] == _END))
        self._finished, self._symbols, self._weights = finished, symbols[stays], weights[stays]


def _sums(numbers: Array, weights: Counts, size: int) -> Counts:
    """Return the sum of the weights of each number below ``size``."""
    # The sums are float64 already, but the type stubs of numpy declare integers.
    return np.bincount(numbers, weights, minlength=size).astype(np.float64)


def _second_of_doubles(symbols: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of pairs of equal pieces that overlap the pair before: of "aaa" only the first "aa" is joined."""
    is_double = symbols[:-1] == symbols[1:]
    if not is_double.any():
        return is_double
    positions = np.arange(len(is_double))
    begins = np.where(is_double & ~np.concatenate([[False], is_double[:-1]]), positions, -1)
    from_begin = positions - np.maximum.accumulate(begins)
    return is_double & (from_begin % 2 == 1)


def likelihood_gain(
    joint: Counts, left: Counts, right: Counts, is_double: npt.NDArray[np.bool_], total: float
) -> Counts:
    """Return the gain in log-likelihood of the text, in nats, of joining pairs, under a unigram model of its pieces.

    The log-likelihood is the sum of c log(c / N) over pieces of count c. Joining the n occurrences of a pair subtracts
    n from the counts of its parts and from N, and adds a piece of count n.

    Args:
        joint: n of each pair.
        left, right: counts of its parts.
        is_double: both parts are the same piece.
        total: N.
    """

    def change(count: Counts, less: Counts) -> Counts:
        """Return (c - n) log(c - n) - c log(c), without cancellation."""
        rest = count - less
        # 0 log 0 is 0, its limit.
        return np.where(rest > 0, rest * np.log1p(-less / count), 0.0) - less * np.log(count)

    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(is_double, change(left, 2 * joint), change(left, joint) + change(right, joint))
        return np.asarray(parts + joint * np.log(joint) - change(np.full_like(joint, total), joint))


class WordPieces(ListedPieces):
    """A vocabulary of word-pieces: bytes if there is a fallback, characters, then longer pieces in order of learning.

    Attributes:
        pieces: the entries, the special ones first.
    """

    def __init__(self, pieces: Sequence[str], tags: Sequence[str] = ()) -> None:
        super().__init__(pieces, tags)
        self._bytes = {
            int(match[1], 16): index
            for index, piece in enumerate(pieces[self.num_special : self.num_special + 256], start=self.num_special)
            if (match := BYTE_PIECE.fullmatch(piece))
        }
        first = self.num_special + len(self._bytes)
        self.index = {piece: index for index, piece in enumerate(pieces) if index >= first}
        self._longest = max((len(piece) for piece in self.index), default=1)
        self._ids_of_word = keep_results(self._cut_word, _CACHED_WORDS)

    @classmethod
    def learn(cls, lines: Iterable[str], data: DataConfig, tags: Sequence[str] = ()) -> "WordPieces":
        """Learn a vocabulary of exactly `data.vocab_size` entries, the same for any order of the lines.

        Raises:
            RecipeError: the text has too few pieces for the size, or the size is too small for its characters.
        """
        size = data.vocab_size
        first = [*SPECIAL_PIECES, *(TAG_SIGN + tag for tag in tags)]
        first += [f"<0x{byte:02X}>" for byte in range(256 if data.byte_fallback else 0)]
        trainer = WordPieceTrainer(count_units(lines), data.wordpiece_characters)
        smallest = len(first) + trainer.num_basic
        if size < smallest:
            raise RecipeError(
                f"data.vocab_size = {size}: too few to hold the {smallest} special entries and different characters of "
                "the text; choose a larger size, or a smaller wordpiece_characters"
            )
        trainer.grow(size - len(first))
        possible = len(first) + len(trainer.pieces)
        if possible < size:
            raise RecipeError(
                f"data.vocab_size = {size}: the training text has too few different pieces for that many; at most "
                f"{possible} are possible"
            )
        return cls([*first, *trainer.pieces], tags)

    def encode(self, lines: list[str], threads: int | None = None) -> list[list[int]]:
        """Return the ids of lines; characters without a piece become bytes or the unknown id."""
        return [list(chain.from_iterable(map(self._ids_of_word, line.split(" ")))) if line else [] for line in lines]

    def _cut_word(self, word: str) -> list[int]:
        return [index for unit in units_of(word) for index in self._cut(unit)]

    def _cut(self, unit: str) -> list[int]:
        """Split a unit by longest match, from left to right."""
        ids: list[int] = []
        start = 0
        while start < len(unit):
            for stop in range(min(len(unit), start + self._longest), start, -1):
                index = self.index.get(unit[start:stop])
                if index is not None:
                    ids.append(index)
                    break
            else:
                stop = start + 1
                character = unit[start].encode("utf-8", errors="replace")  # half a surrogate pair has no bytes
                ids += [self._bytes[byte] for byte in character] if self._bytes else [UNK]
            start = stop
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids; of the special ids only the unknown one has a text."""
        parts: list[bytes] = []
        for index in ids:
            if index < self.num_special:
                parts.append(UNKNOWN_TEXT.encode() if index == UNK else b"")
            elif self._bytes and index < self.num_special + 256:
                parts.append(bytes([index - self.num_special]))
            else:
                parts.append(self.pieces[index].encode("utf-8"))
        return b"".join(parts).decode("utf-8", errors="replace").removeprefix(" ")

    def piece(self, index: int) -> str:
        """Return a piece with U+2581 for a blank, as sentencepiece does."""
        return self.pieces[index].replace(BLANK_SIGN, STAND_IN).replace(" ", BLANK_SIGN)
