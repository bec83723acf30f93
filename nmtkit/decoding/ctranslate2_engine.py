"""Translating with CTranslate2, from what `nmtkit export --format ctranslate2` wrote, without torch.

    line -> normalised -> ids -> (cut) -> batches of like length -> CTranslate2 -> ids -> text

Model, tokens, limits of length and the tokens that are never produced are nmtkit's, and greedy search is the same. Beam
search is CTranslate2's own: it keeps ``beam`` live hypotheses besides the finished ones, stops at ``beam`` finished,
and gives the probability of the tokens that are never produced to the others. So its translations may differ from those
of decoding/search.py (docs/export.md).
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nmtkit.config.schema import DecodingConfig
from nmtkit.data.batching import cut_by_padded_tokens
from nmtkit.data.processes import default_workers
from nmtkit.decoding.engine_choice import Export
from nmtkit.decoding.source_parts import cut_source, longest_translation, source_limit
from nmtkit.errors import DataError, ModelError
from nmtkit.files import sha256_of
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import EOS, UNK, Tokenizer

if TYPE_CHECKING:
    import ctranslate2

BATCH_TOKENS = 2048
_NO_PENALTY = 1e-9
"""An exponent with which CTranslate2 divides by just 1 in float32. A plain 0 would also make it stop at the first step
whose best continuation ends."""


def check_installed() -> None:
    """Raises ModelError where CTranslate2 is not installed."""
    if find_spec("ctranslate2") is None:
        raise ModelError("CTranslate2 is not installed; run `pip install 'nmtkit[ctranslate2]'`")


class CTranslate2Translator:
    """Translates lines with an export; in use like Translator.

    Attributes:
        tokenizer: text to ids and back.
        decoding: how to search.
        precision: the type of its weights, such as float32 or int8.
        device: cpu or cuda.
        lengths: those of the model's training pairs, where they are known.
    """

    def __init__(
        self, export: Export, translator: "ctranslate2.Translator", tokenizer: Tokenizer, decoding: DecodingConfig
    ) -> None:
        self.tokenizer = tokenizer
        self.decoding = decoding
        self.precision = export.quantization
        self.device: str = translator.device
        self._translator = translator
        self._max_positions = export.max_positions
        self.lengths = export.lengths
        self._has_learned_positions = export.has_learned_positions
        self._source_pieces = tokenizer.entries("source")
        self._target_pieces = tokenizer.entries("target")
        self._target_ids = {piece: index for index, piece in enumerate(self._target_pieces)}

    @classmethod
    def load(
        cls,
        export: Export,
        overrides: dict[str, object] | None = None,
        device: str = "auto",
        threads: int | None = None,
    ) -> "CTranslate2Translator":
        """Reads an export.

        Args:
            overrides: values of [decoding] that replace the export's.
            device: auto, cpu or cuda.
            threads: CPU threads, by default all cores; each translates batches of its own.

        Raises:
            ModelError: it is damaged, or CTranslate2 cannot use it or the device.
        """
        check_installed()
        import ctranslate2

        if device == "mps":
            raise ModelError("--device mps: CTranslate2 cannot use it; choose cpu, or --engine torch")
        _check_sums(export)
        tokenizer = Tokenizer.load(export.folder / "tokenizer")
        try:
            on_gpu = device == "cuda" or (device == "auto" and ctranslate2.get_cuda_device_count() > 0)
            translator = ctranslate2.Translator(
                str(export.folder),
                "cuda" if on_gpu else "cpu",
                # Batches side by side, each on one thread: none waits for another, and results are those of one thread.
                inter_threads=1 if on_gpu else threads or default_workers(),
                intra_threads=1,
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{export.folder}: CTranslate2 cannot use it ({' '.join(str(error).split())})") from None
        return cls(export, translator, tokenizer, export.decoding(overrides or {}))

    def translate(
        self,
        lines: Sequence[str],
        *,
        batch_sentences: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        max_source_tokens: int | None = None,
    ) -> list[str]:
        """One translation for each line; an empty one for a line without text.

        Args:
            batch_sentences: sentences translated at once.
            batch_tokens: source tokens translated at once, padding counted, where ``batch_sentences`` is not given.
            max_source_tokens: longer sources are cut, and the translations of their parts joined with a blank; by
                default the longest source seen in training.
        """
        if isinstance(lines, str):
            raise TypeError("lines are a list of strings, not one string, each character of which would be a line")
        task = task_of(self.tokenizer)
        lines = [task.model_source(line) for line in lines]
        longest = min(source_limit(max_source_tokens, self.lengths), self._max_positions - 1)
        normalized = [self.tokenizer.normalize(line, "source") for line in lines]
        sources = self.tokenizer.encode(normalized, "source", self._translator.num_translators)
        parts: list[tuple[int, list[int]]] = []
        for number, ids in enumerate(sources):
            if task.words(lines[number]):
                parts.extend((number, part) for part in cut_source(self.tokenizer, ids, longest, self.lengths))
        found = self.search([ids for _, ids in parts], batch_sentences=batch_sentences, batch_tokens=batch_tokens)
        translations: list[list[str]] = [[] for _ in lines]
        for (number, _), translation in zip(parts, found, strict=True):
            translations[number].append(self.tokenizer.translation(translation))
        joined = [" ".join(part for part in of_line if part) for of_line in translations]
        return [task.output(line, text).text for line, text in zip(lines, joined, strict=True)]

    def search(
        self, sources: Sequence[list[int]], *, batch_sentences: int | None = None, batch_tokens: int = BATCH_TOKENS
    ) -> list[list[int]]:
        """The ids of the best translation of each source, without begin and end symbols.

        CTranslate2 has one limit of length a call, nmtkit one a source. A batch is searched up to the limit of its
        longest source; the few searches that went on beyond their own are made again, among sources of the same limit.
        So what a source is translated with makes no difference.

        Raises:
            ModelError: CTranslate2 fails, such as for want of memory, or has too few positions.
        """
        limits = [self._limit(len(ids)) for ids in sources]
        asked = [index for index in range(len(sources)) if limits[index] > 0]  # CTranslate2 takes no limit of 0
        order = sorted(asked, key=lambda index: len(sources[index]), reverse=True)
        if batch_sentences is not None:
            runs = [(start, start + batch_sentences) for start in range(0, len(order), batch_sentences)]
        else:
            share = (
                sum(len(sources[index]) for index in order) // self._translator.num_translators + 1
            )  # so that no thread is left idle
            runs = cut_by_padded_tokens([len(sources[index]) + 1 for index in order], min(batch_tokens, share))
        found: dict[int, list[int]] = {index: [] for index in range(len(sources)) if limits[index] == 0}
        found.update(self._search_batches(sources, limits, [order[start:stop] for start, stop in runs]))
        beyond: dict[int, list[int]] = {}
        for index in order:
            if index not in found:
                beyond.setdefault(limits[index], []).append(index)
        found.update(self._search_batches(sources, limits, list(beyond.values())))
        return [found[index] for index in range(len(sources))]

    def _search_batches(
        self, sources: Sequence[list[int]], limits: list[int], batches: list[list[int]]
    ) -> Iterator[tuple[int, list[int]]]:
        """The number of a source and its translation, for each whose search kept to its own limit."""
        longest_of = [max(limits[index] for index in batch) for batch in batches]
        calls = [
            self._translator.translate_batch(
                [[self._source_pieces[token] for token in sources[index]] for index in batch],
                asynchronous=True,
                **self._options(longest),
            )
            for batch, longest in zip(batches, longest_of, strict=True)
        ]
        for batch, longest, results in zip(batches, longest_of, calls, strict=True):
            for index, waiting in zip(batch, results, strict=True):
                try:
                    result = waiting.result()
                except RuntimeError as error:
                    reason = " ".join(str(error).split())
                    raise ModelError(f"CTranslate2 failed ({reason}); try a smaller --batch-tokens") from None
                limit = limits[index]
                if self.decoding.beam == 1:
                    # Greedy search does not look ahead: with its own limit it would have stopped just there.
                    yield index, self._ids(result.hypotheses[0][:limit])
                # It stops once `beam` hypotheses are finished, so one of the `beam` best was finished by its last step.
                elif limit == longest or max(map(len, result.hypotheses)) < limit:
                    yield index, self._ids(self._best(result))

    def _options(self, limit: int) -> dict[str, Any]:
        """What is asked of CTranslate2; what differs from its defaults is nmtkit's way to search."""
        decoding = self.decoding
        options: dict[str, Any] = {
            "beam_size": decoding.beam,
            "max_input_length": 0,
            "max_decoding_length": limit,
            "min_decoding_length": min(decoding.min_length, limit),
            "no_repeat_ngram_size": decoding.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": [[self._target_pieces[k]] for k in self.tokenizer.suppressed_ids if k != UNK],
        }
        if decoding.beam > 1:
            by_length = decoding.length_penalty == "length" and decoding.alpha > 0
            # The end symbol counts in the length. All finished hypotheses tell how far the search went.
            options |= {"num_hypotheses": decoding.beam, "return_end_token": True, "return_scores": True}
            options["length_penalty"] = decoding.alpha if by_length else _NO_PENALTY
        return options

    def _best(self, result: "ctranslate2.TranslationResult") -> list[str]:
        """The best finished hypothesis; by Wu's penalty, which CTranslate2 does not have, ranked here."""
        hypotheses: list[list[str]] = result.hypotheses
        if self.decoding.length_penalty != "wu":
            return hypotheses[0]
        scores = [
            log_prob / wu_penalty(len(pieces), self.decoding.alpha)
            for pieces, log_prob in zip(hypotheses, result.scores, strict=True)
        ]
        return hypotheses[scores.index(max(scores))]

    def _ids(self, pieces: list[str]) -> list[int]:
        ids = [self._target_ids[piece] for piece in pieces]
        return ids[:-1] if ids and ids[-1] == EOS else ids

    def _limit(self, source_tokens: int) -> int:
        """The most tokens of a translation, the end symbol not counted."""
        limit = longest_translation(self.decoding, source_tokens)
        if self._has_learned_positions:
            return min(limit, self._max_positions - 1)
        if limit > self._max_positions:
            raise ModelError(
                f"a translation of {limit} tokens needs as many positions, but the export has {self._max_positions}; "
                "lower --max-length, or choose --engine torch"
            )
        return limit


def wu_penalty(length: int, alpha: float) -> float:
    """((5 + n) / 6)^alpha, n counting the end symbol. Source: Wu et al. 2016 (arXiv 1609.08144), equation 14."""
    return float(((5 + length) / 6) ** alpha)


def _check_sums(export: Export) -> None:
    for name, expected in export.manifest["files"].items():
        try:
            found = sha256_of(export.folder / name)
        except DataError as error:
            raise ModelError(str(error)) from None
        if found != expected:
            raise ModelError(f"{export.folder / name}: damaged (it does not match its checksum in manifest.json)")
