"""Translations that hold required phrases.

The beam's slots are dealt in turn to hypotheses that have got equally far with the phrases, and every live hypothesis
may begin or go on with any phrase it lacks, however unlikely. No hypothesis ends before it holds them all, or as many
of them as any hypothesis can hold, where `no_repeated_ngrams` forbids to say some.

Source: dynamic beam allocation, Post and Vilar 2018 (arXiv 1804.06609), with its slots dealt in turn.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.decoding.search import Chooser, Chosen, best_continuations

_MOST_COMBINED = 10
"""Phrases of which every combination is tried."""

Ids = tuple[int, ...]
Continuation = tuple[float, int, int]
"""Its log-probability, which live hypothesis it continues, and its new token."""


@dataclass(frozen=True)
class PhraseProgress:
    """How far a hypothesis has got with its phrases.

    Attributes:
        held: tokens of those that were said.
        sayable: tokens of those that were not, and still can be together.
        begun: tokens so far of the one that is being said and furthest.
        following: the tokens by which it would get further.
    """

    held: int
    sayable: int
    begun: int
    following: frozenset[int]


def with_required(
    phrases: Sequence[Sequence[Ids]], max_lengths: Sequence[int], eos: int, no_repeat_ngram: int = 0
) -> Chooser:
    """Keeps continuations by how far they have got with their sentence's phrases, and among those by probability.

    Args:
        phrases: the token sequences that each sentence's translation has to hold.
        max_lengths: most tokens of each translation; one that leaves no room for the phrases goes before them.
        no_repeat_ngram: the size of `no_repeated_ngrams` where that rule holds.
    """
    ended: dict[int, int] = {}  # of each sentence, the most tokens of phrases that an ended hypothesis holds

    def choose(
        log_probs: Float[Tensor, "sentences live"],
        step: Float[Tensor, "sentences live vocab"],
        tokens: Int[np.ndarray, "sentences live length"],
        sentences: Sequence[int],
        beam: int,
    ) -> Chosen:
        kept: list[list[Continuation]] = []
        for row, sentence in enumerate(sentences):
            of_row = slice(row, row + 1)
            if phrases[sentence]:
                said = [tuple(so_far[1:]) for so_far in tokens[row].tolist()]  # without BOS
                room = max_lengths[sentence] - len(said[0]) - 1
                far = functools.partial(progress, phrases=phrases[sentence], no_repeat_ngram=no_repeat_ngram)
                of_slots = [far(so_far) for so_far in said]
                scores = log_probs[row, :, None] + step[row]
                in_reach = _bar_early_ends(scores, log_probs[row], of_slots, ended.get(sentence, 0), eos)
                chosen = _of_sentence(scores, of_slots, said, far, in_reach, room, beam)
                kept.append(chosen)
                ends = (of_slots[slot].held for _, slot, token in chosen if token == eos)
                ended[sentence] = max(ended.get(sentence, 0), *ends, 0)
            else:
                best = best_continuations(log_probs[of_row], step[of_row], tokens[of_row], (sentence,), beam)
                kept.append(list(zip(*(part[0].tolist() for part in best), strict=True)))
        width = max(1, *(len(one) for one in kept))
        # A slot for which there is nothing holds a hypothesis of probability 0.
        filled = [one + [(-math.inf, 0, eos)] * (width - len(one)) for one in kept]
        values, origins, last = ([[entry[part] for entry in one] for one in filled] for part in range(3))
        return (
            torch.tensor(values, dtype=log_probs.dtype, device=step.device),
            torch.tensor(origins, device=step.device),
            torch.tensor(last, device=step.device),
        )

    return choose


def holds(tokens: Ids, phrase: Ids) -> bool:
    """Whether the phrase stands in a row of tokens."""
    return any(tokens[start : start + len(phrase)] == phrase for start in range(len(tokens) - len(phrase) + 1))


def progress(tokens: Ids, phrases: Sequence[Ids], no_repeat_ngram: int = 0) -> PhraseProgress:
    """How far a hypothesis has got. A phrase counts whole once it was said."""
    said = set(_ngrams(tokens, no_repeat_ngram))
    held, furthest = 0, 0
    sayable, following = [], set()
    for phrase in phrases:
        if holds(tokens, phrase):
            held += len(phrase)
            continue
        sizes = range(min(len(phrase) - 1, len(tokens)), -1, -1)
        begun = next(size for size in sizes if tokens[len(tokens) - size :] == phrase[:size])
        if not _can_be_said(phrase, begun, said, no_repeat_ngram):
            continue
        sayable.append(phrase)
        furthest = max(furthest, begun)
        following.add(phrase[begun])
    return PhraseProgress(held, _most_together(tuple(sayable), no_repeat_ngram), furthest, frozenset(following))


def _ngrams(tokens: Ids, size: int) -> list[Ids]:
    return [tokens[start : start + size] for start in range(len(tokens) - size + 1)] if size else []


def _can_be_said(phrase: Ids, begun: int, said: set[Ids], size: int) -> bool:
    """Whether the phrase can still be said, now or later, without repeating any ``size`` tokens in a row.

    Args:
        begun: how many of its tokens were said last.
        said: all such rows of the hypothesis so far.
    """
    to_come = _ngrams(phrase, size)[max(begun - size + 1, 0) :]  # the others are part of what was begun
    return len(set(to_come)) == len(to_come) and said.isdisjoint(to_come)


@functools.lru_cache(maxsize=1024)
def _most_together(phrases: tuple[Ids, ...], size: int) -> int:
    """The most tokens of phrases that one translation can hold without repeating any ``size`` tokens in a row.

    Each is weighed against each: of more than are worth trying in every combination, the first that agree count.
    """
    if not size or len(phrases) < 2:
        return sum(map(len, phrases))
    numbers = range(len(phrases))
    pairs = itertools.combinations(numbers, 2)
    agree = {(one, other) for one, other in pairs if _agree(phrases[one], phrases[other], size)}
    if len(phrases) <= _MOST_COMBINED:
        sets = itertools.chain.from_iterable(itertools.combinations(numbers, count) for count in numbers)
        possible = [one for one in [*sets, tuple(numbers)] if agree.issuperset(itertools.combinations(one, 2))]
        return max(sum(len(phrases[number]) for number in one) for one in possible)
    chosen: list[int] = []
    for number in numbers:
        if all((other, number) in agree for other in chosen):
            chosen.append(number)
    return sum(len(phrases[number]) for number in chosen)


def _agree(one: Ids, other: Ids, size: int) -> bool:
    """Whether two phrases can be said without a repetition: far apart, overlapping, or one within the other."""
    joined = [one] if holds(one, other) else [other] if holds(other, one) else []
    for first, second in ((one, other), (other, one)):
        overlaps = range(1, min(len(first), len(second)))
        joined += [first + second[shared:] for shared in overlaps if first[-shared:] == second[:shared]]
    if set(_ngrams(one, size)).isdisjoint(_ngrams(other, size)):
        return True
    return any(len(set(ngrams)) == len(ngrams) for ngrams in (_ngrams(text, size) for text in joined))


def _bar_early_ends(
    scores: Float[Tensor, "live vocab"],
    log_probs: Float[Tensor, " live"],
    of_slots: list[PhraseProgress],
    ended: int,
    eos: int,
) -> int:
    """Drops hypotheses that can no more hold as much of the phrases as another one, and lets the others not end before
    they do; returns how much that is.

    Args:
        ended: what a hypothesis holds that has ended.
    """
    alive = (log_probs > -math.inf).tolist()
    reaches = (one.held + one.sayable for one, is_alive in zip(of_slots, alive, strict=True) if is_alive)
    in_reach = max(ended, *reaches, 0)
    for slot, one in enumerate(of_slots):
        if one.held + one.sayable < in_reach:
            scores[slot] = -math.inf
        elif one.held < in_reach:
            end = scores[slot, eos].clone()
            scores[slot, eos] = -math.inf
            if scores[slot].amax() == -math.inf:  # at the maximum length nothing else may follow
                scores[slot, eos] = end
    return in_reach


def _of_sentence(
    scores: Float[Tensor, "live vocab"],
    of_slots: list[PhraseProgress],
    said: list[Ids],
    far: Callable[[Ids], PhraseProgress],
    wanted: int,
    room: int,
    beam: int,
) -> list[Continuation]:
    """The continuations that one sentence goes on with; ``room`` tokens fit behind each.

    Args:
        far: how far a hypothesis has got.
        wanted: how many tokens of its phrases can be held.
    """
    places = {(slot, token) for slot, one in enumerate(of_slots) for token in one.following}
    places |= set(enumerate(scores.argmax(1).tolist()))
    best = scores.flatten().topk(min(beam, scores.numel())).indices.tolist()
    places |= {divmod(place, scores.size(1)) for place in best}

    banks: dict[int, list[Continuation]] = {}
    for slot, token in places:
        value = float(scores[slot, token])
        if value != -math.inf:  # the search is to see what is not a number
            after = far((*said[slot], token))
            banks.setdefault(after.held + after.begun, []).append((value, slot, token))
    with_room = {held: bank for held, bank in banks.items() if wanted - held <= room}
    banks = with_room or banks
    in_turn = [sorted(banks[held], reverse=True) for held in sorted(banks, reverse=True)]
    dealt = [one for turn in itertools.zip_longest(*in_turn) for one in turn if one is not None]
    return dealt[:beam]
