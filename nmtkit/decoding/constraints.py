"""What a translation may not say: rules of the search, each a function that forbids continuations.

A rule sets log-probabilities to -inf and never raises one, so the rules of a search may stand in any order. Where they
leave a hypothesis no continuation at all, the search ends it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.decoding.search import Rule

Ids = tuple[int, ...]


def no_repeated_ngrams(size: int, given: Sequence[int] = ()) -> Rule:
    """No ``size`` tokens in a row that the translation has had already.

    Args:
        given: how many tokens each sentence's translation begins with by force; these may repeat what they like.

    Source: Paulus et al. 2017 (arXiv 1705.04304), section 2.5.
    """

    def rule(
        step: Float[Tensor, "sentences live vocab"],
        tokens: Int[Tensor, "sentences live length"],
        sentences: Sequence[int],
    ) -> None:
        said = tokens[:, :, 1:]
        if said.size(2) < size:
            return
        ngrams = said.unfold(2, size, 1)  # [sentences, live, places, size]
        last = said[:, :, said.size(2) - size + 1 :]  # what the next token would complete
        repeats = (ngrams[..., :-1] == last[:, :, None]).all(3)  # [sentences, live, places]
        if any(given):
            is_free = [said.size(2) >= given[sentence] for sentence in sentences]
            repeats &= torch.tensor(is_free, device=step.device)[:, None, None]
        row, slot, place = repeats.nonzero(as_tuple=True)
        step[row, slot, ngrams[row, slot, place, -1]] = -torch.inf

    return rule


def forbidden_phrases(phrases: Sequence[Ids]) -> Rule:
    """None of these token sequences."""
    by_length: dict[int, list[Ids]] = {}
    for phrase in phrases:
        by_length.setdefault(len(phrase), []).append(phrase)

    def rule(
        step: Float[Tensor, "sentences live vocab"],
        tokens: Int[Tensor, "sentences live length"],
        sentences: Sequence[int],
    ) -> None:
        for length, of_length in by_length.items():
            if tokens.size(2) < length:  # BOS and what comes before the last token
                continue
            begins = torch.tensor([phrase[:-1] for phrase in of_length], dtype=tokens.dtype, device=tokens.device)
            last = tokens[:, :, tokens.size(2) - length + 1 :]  # [sentences, live, length - 1]
            row, slot, which = (last[:, :, None] == begins).all(3).nonzero(as_tuple=True)
            ends = torch.tensor([phrase[-1] for phrase in of_length], device=tokens.device)
            step[row, slot, ends[which]] = -torch.inf

    return rule


def forced_prefixes(prefixes: Sequence[Ids]) -> Rule:
    """Each sentence's translation begins with its prefix; with an empty one it is free."""

    def rule(
        step: Float[Tensor, "sentences live vocab"],
        tokens: Int[Tensor, "sentences live length"],
        sentences: Sequence[int],
    ) -> None:
        place = tokens.size(2) - 1
        for row, sentence in enumerate(sentences):
            if place < len(prefixes[sentence]):
                token = prefixes[sentence][place]
                kept = step[row, :, token].clone()
                step[row] = -torch.inf
                step[row, :, token] = kept

    return rule
