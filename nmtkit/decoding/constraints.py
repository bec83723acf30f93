"""Constraints of the search: forbidden tokens and phrases, forced prefixes, and required phrases.

A constraint sets log-probabilities to -inf, and several can be applied in any order, but for the certain tokens of
`forced_prefixes`, which get the probability 1: those come last. If no continuation is left to a hypothesis, the search
ends it.

Required phrases use a candidate selection instead. Hypotheses are grouped by the number of phrase tokens that they
contain, and the slots of the beam are dealt to the groups in turn. Every live hypothesis may begin or continue any
missing phrase, however unlikely. No hypothesis ends before it contains all phrases, or as many of them as possible if
`no_repeated_ngrams` forbids some. A phrase may have alternatives, such as the forms of a word; the number of its tokens
is then that of the shortest one.

Source: dynamic beam allocation, Post and Vilar 2018 (arXiv 1804.06609), but with slots dealt in turn.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.decoding.search import Candidates, CandidateSelection, best_continuations
from nmtkit.decoding.wanted import Ids, contains
from nmtkit.tasks.task import Constraint
from nmtkit.text.vocabulary import EOS

_MAX_COMBINED = 10
"""Maximum number of phrases of which every combination is tried."""


def no_repeated_ngrams(size: int, exempt: Sequence[int] = ()) -> Constraint:
    """Forbid the repetition of any ``size`` successive tokens of the translation.

    Args:
        exempt: number of tokens at the beginning of each sentence's translation that may repeat: its forced prefix.

    Source: Paulus et al. 2017 (arXiv 1705.04304), section 2.5.
    """

    def constrain(step: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        generated = tokens[:, :, 1:]
        if generated.size(2) < size:
            return
        ngrams = generated.unfold(2, size, 1)  # [sentences, live, positions, size]
        last = generated[:, :, generated.size(2) - size + 1 :]  # n-gram so far, which the next token completes
        repeats = (ngrams[..., :-1] == last[:, :, None]).all(3)  # [sentences, live, positions]
        if any(exempt):
            is_free = [generated.size(2) >= exempt[sentence] for sentence in sentences]
            repeats &= torch.tensor(is_free, device=step.device)[:, None, None]
        row, slot, position = repeats.nonzero(as_tuple=True)
        step[row, slot, ngrams[row, slot, position, -1]] = -torch.inf

    return constrain


def forbidden_phrases(phrases: Sequence[Ids]) -> Constraint:
    """Forbid the given token sequences."""
    by_length: dict[int, list[Ids]] = {}
    for phrase in phrases:
        by_length.setdefault(len(phrase), []).append(phrase)

    def constrain(step: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        for length, group in by_length.items():
            if tokens.size(2) < length:  # BOS and the tokens before the last one of the phrase
                continue
            begins = torch.tensor([phrase[:-1] for phrase in group], dtype=tokens.dtype, device=tokens.device)
            last = tokens[:, :, tokens.size(2) - length + 1 :]  # [sentences, live, length - 1]
            row, slot, which = (last[:, :, None] == begins).all(3).nonzero(as_tuple=True)
            ends = torch.tensor([phrase[-1] for phrase in group], device=tokens.device)
            step[row, slot, ends[which]] = -torch.inf

    return constrain


def forced_prefixes(prefixes: Sequence[Ids], certain: int = 0) -> Constraint:
    """Force the translation of each sentence to begin with its prefix, which may be empty.

    The first ``certain`` tokens of each prefix have the probability 1, also if suppressed.
    """

    def constrain(step: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        position = tokens.size(2) - 1
        forced = [
            (row, prefixes[each][position]) for row, each in enumerate(sentences) if position < len(prefixes[each])
        ]
        if forced:
            rows, ids = torch.tensor(forced, device=step.device).unbind(1)
            kept = torch.zeros_like(step[rows, :, ids]) if position < certain else step[rows, :, ids]
            step.index_fill_(0, rows, -torch.inf)
            step[rows, :, ids] = kept

    return constrain


def ended_words(lengths: Sequence[int], continuing: Tensor) -> Constraint:
    """Forbid tokens that continue a word (``continuing`` [vocab]) after the first ``lengths`` tokens; 0: none."""

    def constrain(step: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        position = tokens.size(2) - 1
        for row, sentence in enumerate(sentences):
            if position == lengths[sentence] and position > 0:
                step[row].masked_fill_(continuing, -torch.inf)

    return constrain


def exact_count(token: int, counts: Sequence[int]) -> Constraint:
    """Force the translation of each sentence to contain a token exactly so many times."""

    def constrain(step: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        wanted = torch.tensor([counts[sentence] for sentence in sentences], device=step.device)[:, None]
        is_complete = (tokens == token).sum(2) >= wanted  # [sentences, live]
        step[:, :, token].masked_fill_(is_complete, -torch.inf)
        step[:, :, EOS].masked_fill_(~is_complete, -torch.inf)

    return constrain


# ---- required phrases

Alternatives = Sequence[Ids]
"""Token sequences of a required phrase, any of which is enough."""

_Continuation = tuple[float, int, int]
"""Log-probability, slot of the live hypothesis, new token."""


@dataclass(frozen=True)
class PhraseProgress:
    """Progress of a hypothesis through its required phrases.

    Attributes:
        held: number of tokens of the phrases that it contains.
        possible: number of tokens of the missing phrases that it can still contain together.
        begun: number of tokens of the unfinished phrase at its end; if there are several, the highest number.
        following: tokens that continue an unfinished phrase or begin a missing one.
    """

    held: int
    possible: int
    begun: int
    following: frozenset[int]


def required_phrases(
    phrases: Sequence[Sequence[Alternatives]], max_lengths: Sequence[int], no_repeat_ngram: int = 0
) -> CandidateSelection:
    """Select continuations by their progress through the phrases of their sentence, and then by probability.

    A continuation that cannot fit the missing phrases into the maximum length is selected only if there is no other.
    ``no_repeat_ngram`` is the size of `no_repeated_ngrams`, 0 without that constraint.
    """
    ended: dict[int, int] = {}  # for each sentence, the maximum number of phrase tokens in a finished hypothesis

    def select(log_probs: Tensor, step: Tensor, tokens: NDArray, sentences: Sequence[int], beam: int) -> Candidates:
        kept: list[list[_Continuation]] = []
        for row, sentence in enumerate(sentences):
            if not phrases[sentence]:
                only = slice(row, row + 1)
                best = best_continuations(log_probs[only], step[only], tokens[only], (sentence,), beam)
                kept.append(list(zip(*(values[0].tolist() for values in best), strict=True)))
                continue
            generated = [tuple(so_far[1:]) for so_far in tokens[row].tolist()]  # without BOS
            progress_of = functools.partial(progress, phrases=phrases[sentence], no_repeat_ngram=no_repeat_ngram)
            slots = [progress_of(so_far) for so_far in generated]
            scores = log_probs[row, :, None] + step[row]
            reachable = _suppress_early_ends(scores, log_probs[row], slots, ended.get(sentence, 0))
            room = max_lengths[sentence] - len(generated[0]) - 1
            chosen = _select_for_sentence(scores, slots, generated, progress_of, reachable, room, beam)
            kept.append(chosen)
            ends = (slots[slot].held for _, slot, token in chosen if token == EOS)
            ended[sentence] = max(ended.get(sentence, 0), *ends, 0)
        width = max(1, *(len(chosen) for chosen in kept))
        # An empty slot is filled with a hypothesis of probability 0.
        filled = [chosen + [(-math.inf, 0, EOS)] * (width - len(chosen)) for chosen in kept]
        values, origins, last = ([[entry[field] for entry in chosen] for chosen in filled] for field in range(3))
        return (
            torch.tensor(values, dtype=log_probs.dtype, device=step.device),
            torch.tensor(origins, device=step.device),
            torch.tensor(last, device=step.device),
        )

    return select


def progress(tokens: Ids, phrases: Sequence[Alternatives], no_repeat_ngram: int = 0) -> PhraseProgress:
    """Return the progress of a hypothesis. A phrase counts as held once it has been generated completely."""
    generated = set(_ngrams(tokens, no_repeat_ngram))
    lengths = {len(phrase) for alternatives in phrases for phrase in alternatives}
    within = {ngram for length in lengths for ngram in _ngrams(tokens, length)}
    held, furthest = 0, 0
    possible, counts, following = [], [], set()
    for alternatives in phrases:
        count = min(map(len, alternatives))
        if not within.isdisjoint(alternatives):
            # The count is that of the shortest alternative, so none of them ranks higher by its length.
            held += count
            continue
        still_possible = []
        for phrase in alternatives:
            sizes = range(min(len(phrase) - 1, len(tokens)), -1, -1)
            begun = next(size for size in sizes if tokens[len(tokens) - size :] == phrase[:size])
            # N-grams that the rest of the phrase would add; a repetition among them makes the phrase impossible.
            to_come = _ngrams(phrase, no_repeat_ngram)[max(begun - no_repeat_ngram + 1, 0) :]
            if len(set(to_come)) == len(to_come) and generated.isdisjoint(to_come):
                still_possible.append(phrase)
                furthest = max(furthest, min(begun, count - 1))
                following.add(phrase[begun])
        if still_possible:
            possible.append(min(still_possible, key=len))
            counts.append(count)
    most = _max_tokens_together(tuple(possible), tuple(counts), no_repeat_ngram)
    return PhraseProgress(held, most, furthest, frozenset(following))


def _ngrams(tokens: Ids, size: int) -> list[Ids]:
    return [tokens[start : start + size] for start in range(len(tokens) - size + 1)] if size else []


# Hypotheses of a sentence mostly lack the same phrases.
@functools.lru_cache(maxsize=1024)
def _max_tokens_together(phrases: tuple[Ids, ...], counts: tuple[int, ...], size: int) -> int:
    """Return the maximum sum of the ``counts`` of phrases in a translation that repeats no n-gram of ``size``."""
    if not size or len(phrases) < 2:
        return sum(counts)
    numbers = range(len(phrases))
    pairs = itertools.combinations(numbers, 2)
    compatible = {(first, second) for first, second in pairs if _are_compatible(phrases[first], phrases[second], size)}
    if len(phrases) <= _MAX_COMBINED:
        # An approximation: a set of phrases counts as possible if all its pairs are.
        sets = itertools.chain.from_iterable(itertools.combinations(numbers, count + 1) for count in numbers)
        possible = [chosen for chosen in sets if compatible.issuperset(itertools.combinations(chosen, 2))]
        return max(sum(counts[number] for number in chosen) for chosen in possible)
    greedy: list[int] = []
    for number in numbers:
        if all((earlier, number) in compatible for earlier in greedy):
            greedy.append(number)
    return sum(counts[number] for number in greedy)


def _are_compatible(first: Ids, second: Ids, size: int) -> bool:
    """Return whether a translation can contain two phrases (separate, overlapping or nested) without a repetition."""
    if set(_ngrams(first, size)).isdisjoint(_ngrams(second, size)):
        return True
    joined = [first] if contains(first, second) else [second] if contains(second, first) else []
    for left, right in ((first, second), (second, first)):
        overlaps = range(1, min(len(left), len(right)))
        joined += [left + right[shared:] for shared in overlaps if left[-shared:] == right[:shared]]
    return any(len(set(ngrams)) == len(ngrams) for ngrams in (_ngrams(text, size) for text in joined))


def _suppress_early_ends(
    scores: Float[Tensor, "live vocab"], log_probs: Float[Tensor, " live"], slots: list[PhraseProgress], ended: int
) -> int:
    """Drop hypotheses that can no longer contain the most phrase tokens, and suppress early ends of the others.

    Return the maximum number of phrase tokens that a live or finished hypothesis can contain; ``ended``: the maximum in
    a finished one.
    """
    alive = (log_probs > -math.inf).tolist()
    reach = [slot.held + slot.possible for slot in slots]
    reachable = max(ended, *(tokens for tokens, is_alive in zip(reach, alive, strict=True) if is_alive), 0)
    ends: dict[int, Tensor] = {}
    for slot, (tokens, state) in enumerate(zip(reach, slots, strict=True)):
        if tokens < reachable:
            scores[slot] = -math.inf
        elif state.held < reachable:
            ends[slot] = scores[slot, EOS].clone()
            scores[slot, EOS] = -math.inf
    # Of all slots: a well-formed output (`whole_trees`) that can only end is dropped where others can go on.
    if ends and scores.amax() == -math.inf:  # at the maximum length only the end symbol may follow
        for slot, end in ends.items():
            scores[slot, EOS] = end
    return reachable


def _select_for_sentence(
    scores: Float[Tensor, "live vocab"],
    slots: list[PhraseProgress],
    generated: list[Ids],
    progress_of: Callable[[Ids], PhraseProgress],
    reachable: int,
    room: int,
    beam: int,
) -> list[_Continuation]:
    """Select the continuations of one sentence; ``room`` is the number of tokens that fit after the new one."""
    if scores.isnan().any():  # as the only continuation, so that the search reports it
        return [(math.nan, *divmod(int(scores.isnan().int().argmax()), scores.size(1)))]
    # As in Post and Vilar: what continues or begins phrases, the best of each hypothesis, and the best of all.
    candidates = {(slot, token) for slot, state in enumerate(slots) for token in state.following}
    candidates |= set(enumerate(scores.argmax(1).tolist()))
    best = scores.flatten().topk(min(beam, scores.numel())).indices.tolist()
    candidates |= {divmod(index, scores.size(1)) for index in best}

    banks: dict[int, list[_Continuation]] = {}  # by number of phrase tokens, held or begun
    in_order = sorted(candidates)
    places = torch.tensor(in_order, device=scores.device).unbind(1)
    for (slot, token), value in zip(in_order, scores[places].tolist(), strict=True):
        if value != -math.inf:
            after = progress_of((*generated[slot], token))
            banks.setdefault(after.held + after.begun, []).append((value, slot, token))
    banks = {held: bank for held, bank in banks.items() if reachable - held <= room} or banks
    in_turn = [sorted(banks[held], reverse=True) for held in sorted(banks, reverse=True)]
    dealt = [entry for turn in itertools.zip_longest(*in_turn) for entry in turn if entry is not None]
    return dealt[:beam]
