"""Translations that hold required phrases.

The beam's slots are dealt in turn to hypotheses that have got equally far with the phrases, and every live hypothesis
may begin or go on with any phrase it lacks, however unlikely. No hypothesis ends before it holds them all.

Source: dynamic beam allocation, Post and Vilar 2018 (arXiv 1804.06609), with its slots dealt in turn.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.decoding.search import Chooser, Chosen, best_continuations

Ids = tuple[int, ...]
Continuation = tuple[float, int, int]
"""Its log-probability, which live hypothesis it continues, and its new token."""


def with_required(phrases: Sequence[Sequence[Ids]], max_lengths: Sequence[int], eos: int) -> Chooser:
    """Keeps continuations by how far they have got with their sentence's phrases, and among those by probability.

    Args:
        phrases: the token sequences that each sentence's translation has to hold.
        max_lengths: most tokens of each translation; one that leaves no room for the phrases goes before them.
    """

    def choose(
        log_probs: Float[Tensor, "sentences live"],
        step: Float[Tensor, "sentences live vocab"],
        tokens: Int[Tensor, "sentences live length"],
        sentences: Sequence[int],
        beam: int,
    ) -> Chosen:
        kept: list[list[Continuation]] = []
        for row, sentence in enumerate(sentences):
            of_row = slice(row, row + 1)
            if phrases[sentence]:
                said = [tuple(so_far[1:]) for so_far in tokens[row].tolist()]  # without BOS
                room = max_lengths[sentence] - len(said[0]) - 1
                kept.append(_of_sentence(log_probs[row], step[row], said, phrases[sentence], room, beam, eos))
            else:
                best = best_continuations(log_probs[of_row], step[of_row], tokens[of_row], (sentence,), beam)
                kept.append(list(zip(*(part[0].tolist() for part in best), strict=True)))
        width = max(len(one) for one in kept)
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


def progress(tokens: Ids, phrases: Sequence[Ids]) -> tuple[int, list[int]]:
    """How many tokens of the phrases a hypothesis holds, and the tokens by which it would get further.

    A phrase counts whole once it was said; of those that are being said, the tokens so far of the one that is furthest.
    """
    held, furthest, following = 0, 0, []
    for phrase in phrases:
        if holds(tokens, phrase):
            held += len(phrase)
            continue
        sizes = range(min(len(phrase) - 1, len(tokens)), -1, -1)
        begun = next(size for size in sizes if tokens[len(tokens) - size :] == phrase[:size])
        furthest = max(furthest, begun)
        following.append(phrase[begun])
    return held + furthest, following


def _of_sentence(
    log_probs: Float[Tensor, " live"],
    step: Float[Tensor, "live vocab"],
    said: list[Ids],
    phrases: Sequence[Ids],
    room: int,
    beam: int,
    eos: int,
) -> list[Continuation]:
    """The continuations that one sentence goes on with; ``room`` tokens fit behind each."""
    scores = log_probs[:, None] + step  # [live, vocab]
    places: set[tuple[int, int]] = set()
    for slot, following in enumerate(progress(so_far, phrases)[1] for so_far in said):
        if following:
            places |= {(slot, token) for token in following}
            end = scores[slot, eos].clone()
            scores[slot, eos] = -math.inf
            if scores[slot].amax() == -math.inf:  # at the maximum length nothing else may follow
                scores[slot, eos] = end
    places |= set(enumerate(scores.argmax(1).tolist()))
    best = scores.flatten().topk(min(beam, scores.numel())).indices.tolist()
    places |= {divmod(place, step.size(1)) for place in best}

    wanted = sum(len(phrase) for phrase in phrases)
    banks: dict[int, list[Continuation]] = {}
    for slot, token in places:
        value = float(scores[slot, token])
        if value > -math.inf:
            banks.setdefault(progress((*said[slot], token), phrases)[0], []).append((value, slot, token))
    with_room = {held: bank for held, bank in banks.items() if wanted - held <= room}
    banks = with_room or banks
    in_turn = [sorted(banks[held], reverse=True) for held in sorted(banks, reverse=True)]
    dealt = [one for turn in itertools.zip_longest(*in_turn) for one in turn if one is not None]
    return dealt[:beam]
