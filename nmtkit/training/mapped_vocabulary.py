"""The rows of embeddings for another vocabulary (`training.init_vocab = "mapped"`)."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nmtkit.console import log
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import (
    BLANK_SIGN,
    BYTE_PIECE,
    SIDES,
    SPECIAL_PIECES,
    STAND_IN,
    TAG_SIGN,
    UNK,
    Extended,
    Side,
)

Identity = tuple[str, str]
"""Role and text of an entry, the same in every tokenizer; see `identities_of`."""
_ROLES_OF_TEXT = ("begins", "inside", "ends", "open")
_BEFORE = "\ufdd5"
"""A character that Unicode never assigns, in no vocabulary: text after it is split as in the middle of a word."""


class MappedVocabulary:
    """The rows of a run's embeddings, made of those of a model with another tokenizer.

    entry of both vocabularies      its row
    new piece of text               mean of the rows of the pieces into which the model's tokenizer splits it
    new language                    mean of the rows of the model's languages, if it has any
    every other new entry           mean of the rows of all pieces of text

    Source: Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression" (mean of the pieces); Hewitt
    2021, "Initializing New Word Embeddings for Pretrained Language Models" (mean of all).
    """

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
        identities = identities_of(self._given, given_side)
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
        # An entry without origins gets zeros here, and the mean of all below.
        result = F.embedding_bag(ids, table.reshape(len(table), -1), offsets, mode="mean")
        of_text = torch.tensor([role in _ROLES_OF_TEXT for role, _ in identities])
        result[torch.tensor([not origin for origin in origins])] = table.reshape(len(table), -1)[of_text].mean(0)
        return result.reshape(len(origins), *table.shape[1:])

    def _find_origins(self, identities: list[Identity], given_side: Side, side: Side) -> list[list[int]]:
        """Return for each entry of the run the ids of the model whose mean row it gets; none: that of all pieces."""
        wanted, ids = identities_of(self._wanted, side), {each: index for index, each in enumerate(identities)}
        languages = [index for index, (role, _) in enumerate(identities) if role == "language"]
        new = [each for each in wanted if each not in ids and each[0] in _ROLES_OF_TEXT]
        # Where an id means the same on both sides, an imported model may still split their text differently.
        sides = SIDES if self._given.shares_vocabulary else (given_side,)
        rows = zip(*(split_pieces(self._given, new, each) for each in sides), strict=True)
        splits = dict(zip(new, rows, strict=True))
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
        if not any(origin and role in _ROLES_OF_TEXT for origin, (role, _) in zip(origins, wanted, strict=True)):
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


def identities_of(tokenizer: Tokenizer, side: Side) -> list[Identity]:
    """Return the role of each entry of a vocabulary, and its text without marks of word boundaries.

    special         <pad>, <unk>, <s>, </s>
    language        code of a language, whatever the name of its tag
    tag             other entries that no text is split into
    byte            <0x41>
    begins, inside  text that begins a word or does not, where pieces mark the beginning of a word
    ends, open      text that ends a word or does not, where pieces mark its end
    """
    settings, vocabulary = tokenizer.settings, tokenizer.vocabulary(side)
    codes = {
        entry: code
        for key in ("source_tags", "target_tags", "target_starts")
        for code, entry in settings.get(key, {}).items()
    }
    added = range(len(vocabulary.base), len(vocabulary)) if isinstance(vocabulary, Extended) else ()
    mark, at_end = "</w>", ("ends", "open") if settings["subwords"] == "gpt-bpe" else None
    if tokenizer.has_end_marks:
        mark, at_end = tokenizer.segment_mark, ("open", "ends")
    found: list[Identity] = []
    for index, entry in enumerate(tokenizer.entries(side)):
        # In pieces of sentencepiece, its sign stands for a blank, and STAND_IN for that sign in a text.
        text = entry.replace(BLANK_SIGN, " ").replace(STAND_IN, BLANK_SIGN)
        if index < len(SPECIAL_PIECES):
            found.append(("special", entry))
        elif entry in codes:
            found.append(("language", codes[entry]))
        elif entry.startswith(TAG_SIGN) or index in added:
            found.append(("tag", entry))
        elif BYTE_PIECE.fullmatch(entry):
            found.append(("byte", entry))
        elif at_end is None:
            found.append(("begins" if text.startswith(" ") else "inside", text.removeprefix(" ")))
        elif mark and entry.endswith(mark):
            found.append((at_end[0], entry.removesuffix(mark)))
        else:
            found.append((at_end[1], entry))
    return found


def split_pieces(tokenizer: Tokenizer, pieces: Sequence[Identity], side: Side) -> list[list[int]]:
    """Return the ids into which a tokenizer splits the text of pieces, which may be those of another one.

    Text that is known not to begin a word is split as in the middle of a word, other text as at its beginning.
    """
    lines = [f"{_BEFORE}{'' if role == 'inside' else ' '}{text}" for role, text in pieces]
    # _BEFORE becomes <unk> or bytes. These ids are the first ones of each row, and are cut off.
    before, *rows = tokenizer.vocabulary(side).encode([_BEFORE, *lines], None)
    return [row[len(before) :] for row in rows]
