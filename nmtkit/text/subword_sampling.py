"""Other segmentations of a text, drawn from a seed: BPE-dropout and unigram sampling.

    ids --pieces of a word joined--> its text --drawn: merges left out, or a path through the lattice--> ids

sentencepiece can sample too, but its generator is salted anew in every process, so that a seed would not give the same
subwords after a resume. These draw from Python's generator, whose numbers are the same everywhere.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

_WORD_BEGIN = "\u2581"
_CACHED_WORDS = 50_000
"""Words that are known: what BPE makes of them, or their lattices; 3 to 5 kB each."""

Draw = Callable[[], float]
"""Gives the next random number, from 0 to below 1."""


class SubwordSampler:
    """Draws segmentations with the pieces of one vocabulary."""

    def __init__(self, kind: str, pieces: Sequence[str | None], scores: Sequence[float], strength: float) -> None:
        """Args:
        kind: bpe or unigram.
        pieces: the text of each id; None for those that stay as they are: special ones and bytes.
        scores: of bpe the higher the earlier a piece is joined, of unigram log-probabilities.
        strength: the probability that a merge is left out; or the exponent of a segmentation's probability.
        """
        self._pieces = pieces
        index = {piece: number for number, piece in enumerate(pieces) if piece is not None}
        kind_of_words = BpeDropout if kind == "bpe" else UnigramSampling
        self._words: BpeDropout | UnigramSampling = kind_of_words(index, scores, strength)

    def sample(self, ids: Sequence[int], seed: int) -> list[int]:
        """Another segmentation of the text that ids say, from the seed alone."""
        draw = random.Random(seed).random
        drawn: list[int] = []
        word = ""
        for number in ids:
            piece = self._pieces[number]
            if word and (piece is None or piece[0] == _WORD_BEGIN):
                drawn += self._words.draw(word, draw)
                word = ""
            if piece is None:
                drawn.append(number)
            else:
                word += piece
        return drawn + self._words.draw(word, draw) if word else drawn


class BpeDropout:
    """Joins the characters of a word, each time the pair with the highest score of those that are not left out.

    Source: Provilkov et al. 2020 (arXiv 1910.13267), algorithm 1; of equal scores the first pair. As long as the best
    pair of all is not left out, the way is that of plain BPE, which is known: how long that lasts is drawn at once.
    """

    def __init__(self, index: dict[str, int], scores: Sequence[float], strength: float) -> None:
        self._index, self._scores, self._dropout = index, scores, strength
        self._joined: dict[tuple[str, str], float | None] = {}
        self._ways: dict[str, tuple[list[list[str]], list[int], list[int]]] = {}

    def draw(self, word: str, draw: Draw) -> list[int]:
        """Return the ids of one segmentation of a word."""
        way = self._ways.get(word)
        if way is None:
            if len(self._ways) >= _CACHED_WORDS:
                self._ways.clear()
            way = self._ways[word] = self._plain_way(word)
        states, places, ids = way
        stop, stays, step = draw(), 1 - self._dropout, 0
        while step < len(places) and stop < stays:
            stays *= 1 - self._dropout
            step += 1
        if step == len(places):
            return ids
        symbols, left_out = list(states[step]), places[step]
        while len(symbols) > 1:
            place = self._best(symbols, left_out, draw)
            if place < 0:
                break
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
            left_out = -1
        return [self._index[symbol] for symbol in symbols]

    def _plain_way(self, word: str) -> tuple[list[list[str]], list[int], list[int]]:
        """What a word is before each merge of plain BPE, the place of that merge, and the ids that it comes to."""
        states: list[list[str]] = []
        places: list[int] = []
        symbols = list(word)
        while (place := self._best(symbols, -1, lambda: 1.0)) >= 0:
            states.append(list(symbols))
            places.append(place)
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        return states, places, [self._index[symbol] for symbol in symbols]

    def _best(self, symbols: list[str], left_out: int, draw: Draw) -> int:
        """The place of the pair that is joined next; -1 where there is none.

        Args:
            left_out: a place that is known to be left out.
        """
        joined, dropout = self._joined, self._dropout
        best, best_score = -1, -math.inf
        for place, pair in enumerate(pairwise(symbols)):
            score = joined[pair] if pair in joined else self._look_up(pair)
            # Whether one is left out that would not be taken decides nothing.
            if score is not None and score > best_score and place != left_out and draw() >= dropout:
                best, best_score = place, score
        return best

    def _look_up(self, pair: tuple[str, str]) -> float | None:
        """The score of what a pair is joined to; None where that is no piece."""
        number = self._index.get(pair[0] + pair[1])
        score = self._joined[pair] = None if number is None else self._scores[number]
        return score


class UnigramSampling:
    """Draws a path through the lattice of a word's pieces, each with its probability to the power of ``strength``.

    Source: Kudo 2018 (arXiv 1804.10959), section 3.3, with all segmentations (l = infinite): forward filtering,
    backward sampling.
    """

    def __init__(self, index: dict[str, int], scores: Sequence[float], strength: float) -> None:
        self._index, self._scores, self._exponent = index, scores, strength
        self._longest = max(map(len, index), default=1)
        self._lattices: dict[str, list[tuple[list[float], list[tuple[int, int]]]]] = {}

    def draw(self, word: str, draw: Draw) -> list[int]:
        """Return the ids of one segmentation of a word."""
        lattice = self._lattices.get(word)
        if lattice is None:
            if len(self._lattices) >= _CACHED_WORDS:
                self._lattices.clear()
            lattice = self._lattices[word] = self._lattice(word)
        ids: list[int] = []
        end = len(word)
        while end > 0:
            sums, arcs = lattice[end]
            end, number = arcs[min(bisect_right(sums, draw() * sums[-1]), len(arcs) - 1)]
            ids.append(number)
        return ids[::-1]

    def _lattice(self, word: str) -> list[tuple[list[float], list[tuple[int, int]]]]:
        """For each place of a word the pieces that end there: running sums of their weights, begins and ids."""
        # The logarithm of the sum over all ways to a place; kept as such, as sums of long words would vanish.
        ways = [0.0]
        lattice: list[tuple[list[float], list[tuple[int, int]]]] = [([], [])]
        for end in range(1, len(word) + 1):
            arcs, weights = [], []
            for begin in range(max(0, end - self._longest), end):
                number = self._index.get(word[begin:end])
                if number is not None:
                    arcs.append((begin, number))
                    weights.append(ways[begin] + self._exponent * self._scores[number])
            largest = max(weights)
            sums = list(accumulate(math.exp(weight - largest) for weight in weights))
            ways.append(largest + math.log(sums[-1]))
            lattice.append((sums, arcs))
        return lattice
