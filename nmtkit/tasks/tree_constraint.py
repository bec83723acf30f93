"""The constraint that a search generates only sequences of complete trees over the words of the source."""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.tasks.task import Constraint

_FORBIDDEN, _CONTINUES, _OPENS, _CLOSES, _WORD, _END = range(6)
"""Roles of vocabulary entries in the sequence of a tree; from _OPENS on, an entry begins a word of the sequence."""


class TreePieces:
    """The roles of the entries of a vocabulary in the sequences of trees (see corpora/trees.py).

    Attributes:
        kinds: role of each entry [vocab].
        closers: closing bracket with the label of each opening bracket; -1 if it takes several entries, and for all
            other entries [vocab].
        is_bare: True for a bracket whose label has not begun [vocab].
    """

    def __init__(self, pieces: Sequence[str], eos: int, device: torch.device | None = None) -> None:
        """Args:
        pieces: names of all entries; an entry that begins a word begins with U+2581. Entries with ids below ``eos``
            are special and never generated.
        """
        index = {piece: number for number, piece in enumerate(pieces)}
        kinds = [_FORBIDDEN] * eos + [_END] + [_kind(piece) for piece in pieces[eos + 1 :]]
        closers = [
            index.get(f"\u2581){piece[2:]}", -1) if kind == _OPENS and len(piece) > 2 else -1
            for piece, kind in zip(pieces, kinds, strict=True)
        ]
        self.kinds = torch.tensor(kinds, device=device)
        self.closers = torch.tensor(closers, device=device)
        self.is_bare = torch.tensor([piece in ("\u2581(", "\u2581)") for piece in pieces], device=device)

    @property
    def can_open(self) -> bool:
        """True if an entry opens a phrase, without which there is no tree."""
        return bool((self.kinds == _OPENS).any())


def _kind(piece: str) -> int:
    word = piece.removeprefix("\u2581")
    if not word or re.search(r"[()\u2581]|^<0x..>$", word[word != piece :]):
        return _FORBIDDEN  # brackets and blanks may only begin a word; a byte could be one of them
    if word == piece:
        return _CONTINUES
    return {"(": _OPENS, ")": _CLOSES}.get(word[0], _WORD)


def whole_trees(pieces: TreePieces, num_words: Sequence[int]) -> Constraint:
    """Return the constraint that a hypothesis is the sequence of one tree over exactly the words of its sentence.

    A hypothesis ends when all phrases are closed and all words are generated. The first phrase closes after the last
    word, no phrase closes without a word, and a closing bracket has the label of the innermost open phrase (any label
    if that label takes several pieces).

    Args:
        num_words: number of words of each sentence, at least one.
    """

    def constrain(
        step: Float[Tensor, "sentences live vocab"],
        tokens: Int[Tensor, "sentences live length"],
        sentences: Sequence[int],
    ) -> None:
        kinds = pieces.kinds
        generated = tokens[:, :, 1:]
        if not generated.size(2):
            step.masked_fill_(kinds != _OPENS, -torch.inf)
            return
        position = torch.arange(generated.size(2), device=step.device)
        kind = kinds[generated]  # [sentences, live, length]
        opens = kind == _OPENS
        depths = (opens.int() - (kind == _CLOSES).int()).cumsum(2)
        depth = depths[:, :, -1]

        def closer_of(level: Int[Tensor, "sentences live"]) -> Int[Tensor, "sentences live"]:
            """Return the closing bracket of the last phrase begun at a level; -1 if its label takes several pieces."""
            began = torch.where(opens & (depths == level[:, :, None]), position, 0).amax(2, keepdim=True)
            is_continued = kind.roll(-1, 2).gather(2, began) == _CONTINUES
            return torch.where(is_continued, -1, pieces.closers[generated.gather(2, began)]).squeeze(2)

        words = torch.tensor([num_words[sentence] for sentence in sentences], device=step.device)
        is_short = words[:, None] > (kind == _WORD).sum(2)
        last_word = torch.where(kind >= _OPENS, position, 0).amax(2, keepdim=True)
        last_kind = kind.gather(2, last_word).squeeze(2)
        is_labelled = ~pieces.is_bare[generated[:, :, -1]]
        may_continue = is_labelled & is_short & (depth > 0)
        # While words are left, the outermost phrase stays open.
        closes = is_labelled & (depth > torch.where(is_short, 1, 0)) & (last_kind != _OPENS)
        closer = closer_of(depth)
        # In the order of the roles. A label of several entries goes on after a closing bracket, too, whose phrase
        # was one level deeper.
        by_kind = [
            torch.zeros_like(may_continue),
            (last_kind != _CLOSES) | (closer_of(depth + 1) < 0),
            may_continue,
            closes & (closer < 0),
            may_continue,
            is_labelled & ~is_short & (depth == 0),
        ]
        allowed = torch.stack(by_kind, 2)[:, :, kinds]  # [sentences, live, vocab]
        row, slot = (closes & (closer >= 0)).nonzero(as_tuple=True)
        allowed[row, slot, closer[row, slot]] = True
        step.masked_fill_(~allowed, -torch.inf)

    return constrain
