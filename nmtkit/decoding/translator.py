"""Text in, text out: a model's whole way from a line to its translation.

line -> normalised -> ids -> (cut where longer than the model takes) -> batches of like length -> beam search
     -> ids -> text, one line for each line, in the order of the input
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from nmtkit.config import DecodingConfig
from nmtkit.data.batch import pad
from nmtkit.data.batching import cut_by_padded_tokens
from nmtkit.decoding.search import beam_search, length_penalty
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.errors import ModelError
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import find_model, load_model
from nmtkit.text.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

MAX_SOURCE_TOKENS = 1024
BATCH_TOKENS = 2048


class Translator:
    """Translates lines with one model, or with several of the same vocabulary as an ensemble.

    Attributes:
        tokenizer: text to ids and back.
        decoding: how to search.
    """

    def __init__(self, models: Sequence[Transformer], tokenizer: Tokenizer, decoding: DecodingConfig) -> None:
        self._models = models
        self.tokenizer = tokenizer
        self.decoding = decoding
        self._device = models[0].output_embedding.device
        limits = [model.config.max_positions for model in models if model.config.positions == "learned"]
        self._max_tokens = min([limit - 1 for limit in limits], default=None)

    @classmethod
    def load(cls, paths: Sequence[Path], device: torch.device | None = None) -> "Translator":
        """Reads model folders, run folders or checkpoints.

        Raises:
            ModelError: one is not there or damaged, or their vocabularies differ.
        """
        folders = [find_model(path) for path in paths]
        loaded = [load_model(folder, device) for folder in folders]
        first = loaded[0]
        for folder, other in zip(folders, loaded, strict=True):
            if other.tokenizer.fingerprint() != first.tokenizer.fingerprint():
                raise ModelError(f"{folder}: its vocabulary is not that of {folders[0]}; an ensemble shares one")
        return cls([entry.model for entry in loaded], first.tokenizer, first.decoding)

    def translate(
        self,
        lines: Sequence[str],
        *,
        batch_sentences: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        max_source_tokens: int = MAX_SOURCE_TOKENS,
        before_batch: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """One translation for each line; an empty one for a line without text.

        Args:
            batch_sentences: sentences translated at once.
            batch_tokens: source tokens translated at once, padding counted, where ``batch_sentences`` is not given.
            max_source_tokens: longer sources are cut, and the translations of their parts joined with a blank.
            before_batch: called before each batch; what it raises ends the translation.
        """
        longest = min(max_source_tokens, self._max_tokens or max_source_tokens)
        normalized = [self.tokenizer.normalize(line) for line in lines]
        sources = self.tokenizer.encode(normalized, "source", torch.get_num_threads())
        parts: list[tuple[int, list[int]]] = []
        for number, ids in enumerate(sources):
            if lines[number].strip():
                parts.extend((number, part) for part in self._cut(ids, longest))
        order = sorted(range(len(parts)), key=lambda index: len(parts[index][1]), reverse=True)
        if batch_sentences is not None:
            runs = [(start, start + batch_sentences) for start in range(0, len(order), batch_sentences)]
        else:
            runs = cut_by_padded_tokens([len(parts[index][1]) + 1 for index in order], batch_tokens)
        texts = [""] * len(parts)
        for start, stop in runs:
            before_batch()
            batch = order[start:stop]
            found = self._search([parts[index][1] for index in batch])
            for index, translation in zip(batch, found, strict=True):
                # One line out for one line in, even where the pieces are bytes.
                texts[index] = self.tokenizer.decode(translation).replace("\n", " ")
        translations: list[list[str]] = [[] for _ in lines]
        for (number, _), text in zip(parts, texts, strict=True):
            translations[number].append(text)
        return [" ".join(part for part in of_line if part) for of_line in translations]

    @torch.inference_mode()
    def _search(self, sources: list[list[int]]) -> list[tuple[int, ...]]:
        """The ids of the best translation of each source."""
        lengths = torch.tensor([len(ids) + 1 for ids in sources])
        stepper = ModelStepper(self._models, pad(sources, end=EOS).to(self._device), lengths)
        max_lengths = [len(ids) + self.decoding.max_length_offset for ids in sources]
        if self._max_tokens is not None:
            max_lengths = [min(length, self._max_tokens) for length in max_lengths]
        results = beam_search(
            stepper,
            max_lengths,
            beam=self.decoding.beam,
            penalty=length_penalty(self.decoding.length_penalty, self.decoding.alpha),
            bos=BOS,
            eos=EOS,
            forbidden=(PAD, BOS, UNK),
            device=self._device,
        )
        return [hypotheses[0].ids for hypotheses in results]

    def _cut(self, ids: list[int], longest: int) -> list[list[int]]:
        """Cuts a source of more than ``longest`` tokens at sentence ends, else between words, else anywhere."""
        if len(ids) <= longest:
            return [ids] if ids else []
        pieces = self.tokenizer.pieces(ids, "source")
        starts_word = self.tokenizer.word_starts(ids, "source")
        ends_sentence = [re.search(r"[.!?\u3002\uff01\uff1f]\W?$", piece) is not None for piece in pieces]
        parts = []
        start = 0
        while len(ids) - start > longest:
            places = [place for place in range(start + 1, start + longest + 1) if starts_word[place]]
            after_sentence = [place for place in places if ends_sentence[place - 1]]
            stop = (after_sentence or places or [start + longest])[-1]
            parts.append(ids[start:stop])
            start = stop
        return [*parts, ids[start:]]
