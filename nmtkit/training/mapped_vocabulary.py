"""Rows of embeddings for another vocabulary (`training.init_vocab = "mapped"`).

    entry of both vocabularies      its row
    new piece of text               mean of the rows of the pieces into which the model's tokenizer splits it
    new language                    mean of the rows of the model's languages, if it has any
    every other new entry           mean of the rows of all pieces of text

Source: Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression" (mean of the pieces); Hewitt 2021,
"Initializing New Word Embeddings for Pretrained Language Models" (mean of all).
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nmtkit.console import log
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.text.tokenizer import ROLES_OF_TEXT, Identity, Tokenizer
from nmtkit.text.vocabulary import SIDES, UNK, Side


class MappedVocabulary:
    """The rows of a run's embeddings, made of those of a model with another tokenizer."""

    def __init__(self, folder: Path, given: Tokenizer, wanted: Tokenizer) -> None:
        """Args:
        folder: model folder, for messages.
        given, wanted: tokenizers of the model and of the run.
        """
        self._folder, self._given, self._wanted = folder, given, wanted
        self._origins: dict[tuple[Side, Side], list[list[int]]] = {}

    def rows(self, table: Tensor, given_side: Side, side: Side) -> Tensor:
        """Return the rows of a matrix of embeddings or of an output bias.

        Args:
            table: that of the model, [entries, width] or [entries].
            given_side, side: sides whose vocabularies the rows of the model's table and of the result belong to.

        Raises:
            ModelError: the table does not have one row for each entry.
            NmtkitError: the model knows no piece of the run's vocabulary.
        """
        identities = self._given.identities(given_side)
        if len(table) != len(identities):
            raise ModelError(
                f"{self._folder / 'model.safetensors'}: damaged (embeddings of {len(table):,} entries, and "
                f"{len(identities):,} in the tokenizer)"
            )
        if (given_side, side) not in self._origins:
            self._origins[given_side, side] = self._find_origins(identities, given_side, side)
        origins = self._origins[given_side, side]
        ids = torch.tensor([index for origin in origins for index in origin])
        offsets = torch.tensor([0, *(len(origin) for origin in origins[:-1])]).cumsum(0)
        result = F.embedding_bag(ids, table.reshape(len(table), -1), offsets, mode="mean")
        of_text = torch.tensor([role in ROLES_OF_TEXT for role, _ in identities])
        result[torch.tensor([not origin for origin in origins])] = table.reshape(len(table), -1)[of_text].mean(0)
        return result.reshape(len(origins), *table.shape[1:])

    def _find_origins(self, identities: list[Identity], given_side: Side, side: Side) -> list[list[int]]:
        """Return for each entry of the run the ids of the model whose mean row it gets; none: that of all pieces."""
        wanted, ids = self._wanted.identities(side), {each: index for index, each in enumerate(identities)}
        languages = [index for index, (role, _) in enumerate(identities) if role == "language"]
        new = [each for each in wanted if each not in ids and each[0] in ROLES_OF_TEXT]
        # Where an id means the same on both sides, an imported model may still split their text differently.
        sides = SIDES if self._given.shares_vocabulary else (given_side,)
        splits = dict(zip(new, zip(*(self._given.split(new, each) for each in sides), strict=True), strict=True))
        origins, num_kept = [], 0
        for each in wanted:
            # The piece of a blank alone, before an unknown character, carries no information about the character.
            found = [
                split
                for split in splits.get(each, ())
                if any(identities[index][1].strip() for index in split if index != UNK)
            ]
            if each in ids:
                origins.append([ids[each]])
                num_kept += 1
            elif found:
                best = min(found, key=lambda split: (split.count(UNK), len(split)))
                origins.append([index for index in best if index != UNK])
            else:
                origins.append(languages if each[0] == "language" else [])
        num_unknown = sum(not origin for origin in origins)
        which = "vocabulary" if self._wanted.shares_vocabulary else f"{side} vocabulary"
        if not any(origin and role in ROLES_OF_TEXT for origin, (role, _) in zip(origins, wanted, strict=True)):
            raise NmtkitError(
                f"training.init_vocab: {self._folder} knows no piece of the {which} of this run; its text is of "
                "another kind, so start without training.init"
            )
        log.info(
            "training.init_vocab: %s of %s entries of the %s are kept, %s begin at the mean of known ones, %s at the "
            "mean of all pieces",
            f"{num_kept:,}", f"{len(origins):,}", which, f"{len(origins) - num_kept - num_unknown:,}",
            f"{num_unknown:,}",
        )  # fmt: skip
        return origins
