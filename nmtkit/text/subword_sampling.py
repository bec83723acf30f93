"""Random segmentations of a text, determined by a seed: BPE-dropout and unigram sampling.

    ids --pieces of a word joined--> its text --merges left out, or a path through the lattice--> ids

sentencepiece can sample too, but with a different seed in every process, so a resumed run would get different subwords.
Here all random numbers come from Python's generator, which is the same everywhere.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from random import Random

from nmtkit.text.vocabulary import keep_results

_WORD_BEGIN = "\u2581"
_CACHED_WORDS = 50_000
"""Maximum number of words whose merges or lattices are cached, 3 to 9 kB each."""
_MOST_CHARACTERS = 400
"""Maximum length of a word, as of text without blanks, that BPE-dropout samples as a whole; its time is quadratic."""
_MOST_PAIRS = 1_000_000
"""Number of pairs of pieces from which their scores are forgotten."""

Uniform = Callable[[], float]
"""Function that returns the next random number in [0, 1)."""


class SubwordSampler:
    """Sampler of segmentations with the pieces of one vocabulary."""

    def __init__(self, kind: str, pieces: Sequence[str | None], scores: Sequence[float], strength: float) -> None:
        """Args:
        kind: bpe or unigram.
        pieces: text of each id; None for special ids and bytes, which are kept.
        scores: score of each piece. bpe: pieces with higher scores are joined first. unigram: log-probabilities.
        strength: bpe: the probability that a merge is left out. unigram: the exponent of segmentation probabilities.
        """
        self._pieces = pieces
        index = {piece: number for number, piece in enumerate(pieces) if piece is not None}
        self._words = (BpeDropout if kind == "bpe" else UnigramSampling)(index, scores, strength)

    def sample(self, ids: Sequence[int], seed: int) -> list[int]:
        """Return a random segmentation of the text of ids, determined by the seed."""
        uniform = Random(seed).random
        sampled: list[int] = []
        word = ""
        for number in ids:
            piece = self._pieces[number]
            # No piece crosses the beginning of a word, so words can be sampled one by one, and cached.
            if word and (piece is None or piece[0] == _WORD_BEGIN):
                sampled += self._words.sample(word, uniform)
                word = ""
            if piece is None:
                sampled.append(number)
            else:
                word += piece
        return sampled + self._words.sample(word, uniform) if word else sampled


class BpeDropout:
    """BPE-dropout: repeatedly join the pair with the highest score among those that are not left out at random.

    Source: Provilkov et al. 2020 (arXiv 1910.13267), algorithm 1; of equal scores, the first pair is joined. Up to the
    first merge that is left out, the merges are those of plain BPE, which are cached; one random number decides how
    many these are.
    """

    def __init__(self, index: dict[str, int], scores: Sequence[float], strength: float) -> None:
        self._index, self._scores, self._dropout = index, scores, strength
        self._joined: dict[tuple[str, str], float | None] = {}
        self._plain_merges = keep_results(self._make_plain_merges, _CACHED_WORDS)

    def sample(self, word: str, uniform: Uniform) -> list[int]:
        """Return the ids of one segmentation of a word."""
        if len(word) > _MOST_CHARACTERS:
            parts = (word[start : start + _MOST_CHARACTERS] for start in range(0, len(word), _MOST_CHARACTERS))
            return [number for part in parts for number in self.sample(part, uniform)]
        if len(self._joined) > _MOST_PAIRS:
            self._joined.clear()
        states, positions, ids = self._plain_merges(word)
        # The first k merges are all kept with probability (1 - dropout)^k.
        stop, probability, step = uniform(), 1 - self._dropout, 0
        while step < len(positions) and stop < probability:
            probability *= 1 - self._dropout
            step += 1
        if step == len(positions):
            return ids
        # The best pair of this state is the first to be left out. From here on, pairs are left out one by one.
        symbols, left_out = list(states[step]), positions[step]
        while (position := self._best(symbols, left_out, uniform)) >= 0:
            symbols[position : position + 2] = [symbols[position] + symbols[position + 1]]
            left_out = -1
        return [self._index[symbol] for symbol in symbols]

    def _make_plain_merges(self, word: str) -> tuple[list[list[str]], list[int], list[int]]:
        """Return the symbols before each merge of plain BPE, the positions of the merges, and the final ids."""
        states: list[list[str]] = []
        positions: list[int] = []
        symbols = list(word)
        while (position := self._best(symbols, -1, lambda: 1.0)) >= 0:
            states.append(list(symbols))
            positions.append(position)
            symbols[position : position + 2] = [symbols[position] + symbols[position + 1]]
        return states, positions, [self._index[symbol] for symbol in symbols]

    def _best(self, symbols: list[str], left_out: int, uniform: Uniform) -> int:
        """Return the position of the pair to join next, other than ``left_out``; -1 if there is none."""
        joined, dropout = self._joined, self._dropout
        best, best_score = -1, -math.inf
        for position, pair in enumerate(pairwise(symbols)):
            if pair not in joined:
                number = self._index.get(pair[0] + pair[1])
                joined[pair] = None if number is None else self._scores[number]
            score = joined[pair]
            # A pair with a lower score than the best so far needs no random number, as it is not joined anyway.
            if score is not None and score > best_score and position != left_out and uniform() >= dropout:
                best, best_score = position, score
        return best


class UnigramSampling:
    """Unigram sampling: sample a path through the lattice of a word, by its probability to the power of ``strength``.

    Source: Kudo 2018 (arXiv 1804.10959), section 3.3, with all segmentations (l = infinity): forward filtering,
    backward sampling.
    """

    def __init__(self, index: dict[str, int], scores: Sequence[float], strength: float) -> None:
        self._index, self._scores, self._exponent = index, scores, strength
        self._longest = max(map(len, index), default=1)
        self._lattice = keep_results(self._make_lattice, _CACHED_WORDS)

    def sample(self, word: str, uniform: Uniform) -> list[int]:
        """Return the ids of one segmentation of a word."""
        lattice = self._lattice(word)
        ids: list[int] = []
        end = len(word)
        while end > 0:
            sums, arcs = lattice[end]
            # The product may be rounded up to the whole sum, behind which bisect_right finds no arc.
            end, number = arcs[min(bisect_right(sums, uniform() * sums[-1]), len(arcs) - 1)]
            ids.append(number)
        return ids[::-1]

    def _make_lattice(self, word: str) -> list[tuple[list[float], list[tuple[int, int]]]]:
        """Return the pieces that end at each position: their cumulative weights, and begin and id of each piece."""
        # Logarithms of the sums over all paths to a position, as the sums would underflow for long words.
        totals = [0.0]
        lattice: list[tuple[list[float], list[tuple[int, int]]]] = [([], [])]
        for end in range(1, len(word) + 1):
            arcs, weights = [], []
            for begin in range(max(0, end - self._longest), end):
                number = self._index.get(word[begin:end])
                if number is not None:
                    arcs.append((begin, number))
                    weights.append(totals[begin] + self._exponent * self._scores[number])
            largest = max(weights)  # subtracted, so that no exponential overflows
            sums = list(accumulate(math.exp(weight - largest) for weight in weights))
            totals.append(largest + math.log(sums[-1]))
            lattice.append((sums, arcs))
        return lattice
