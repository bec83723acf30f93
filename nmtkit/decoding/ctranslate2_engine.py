"""The engine of CTranslate2, on what `nmtkit export --format ctranslate2` wrote, without torch.

Model, tokens, limits of length and the tokens that are never produced are nmtkit's, and greedy search is the same. Beam
search is CTranslate2's own: it keeps ``beam`` live hypotheses besides the finished ones, stops at ``beam`` finished,
and gives the probability of the tokens that are never produced to the others. So its translations may differ from those
of decoding/search.py (docs/export.md).
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nmtkit.config.schema import DecodingConfig
from nmtkit.data.processes import default_workers
from nmtkit.decoding.engine import Batching, Engine, Segment, Translation, TranslationRequest
from nmtkit.decoding.engine_choice import Export
from nmtkit.decoding.lengths import length_penalty, longest_translation
from nmtkit.errors import DataError, ModelError
from nmtkit.files import sha256_of
from nmtkit.text.tokenizer import EOS, UNK, Tokenizer

if TYPE_CHECKING:
    import ctranslate2

_NO_PENALTY = 1e-9
"""An exponent with which CTranslate2 divides by just 1 in float32. A plain 0 would also make it stop at the first step
whose best continuation ends."""


def check_installed() -> None:
    """Raise ModelError where CTranslate2 is not installed."""
    if find_spec("ctranslate2") is None:
        raise ModelError("CTranslate2 is not installed; run `pip install 'nmtkit[ctranslate2]'`")


class CTranslate2Translator(Engine):
    """Translates lines with an export: the best translation of each, without constraints."""

    def __init__(
        self, export: Export, translator: "ctranslate2.Translator", tokenizer: Tokenizer, decoding: DecodingConfig
    ) -> None:
        super().__init__(tokenizer, decoding, export.lengths, export.manifest["max_positions"] - 1)
        self.precision = export.quantization
        self.device = translator.device
        self.weights_sha256 = (export.manifest["files"]["model.bin"],)
        self.model_sha256 = (str(export.manifest["model_sha256"]),)
        self._translator = translator
        self._manifest = export.manifest
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
        """Read an export.

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
        for name, expected in export.manifest["files"].items():
            try:
                actual = sha256_of(export.folder / name)
            except DataError as error:
                raise ModelError(str(error)) from None
            if actual != expected:
                raise ModelError(f"{export.folder / name}: damaged (it does not match its checksum in manifest.json)")
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

    @property
    def num_threads(self) -> int:
        return int(self._translator.num_translators)

    def description(self) -> dict[str, Any]:
        return {"engine": "ctranslate2", **super().description()}

    def check_search(self, request: TranslationRequest) -> None:
        plain = TranslationRequest(max_source_tokens=request.max_source_tokens, first_line=request.first_line)
        if request != plain:
            raise DataError("CTranslate2 gives one translation per line, without constraints; use the torch engine")

    def search_segments(
        self, segments: Sequence[Segment], request: TranslationRequest, batching: Batching
    ) -> Iterator[dict[int, list[Translation]]]:
        found = self.search([segment.ids for segment in segments], batching)  # in batches of its own
        yield {
            index: [self._translation(segment, ids, self._limit(len(segment.ids)))]
            for index, (segment, ids) in enumerate(zip(segments, found, strict=True))
        }

    def search(self, sources: Sequence[list[int]], batching: Batching) -> list[list[int]]:
        """Return the ids of the best translation of each source, without begin and end symbols.

        CTranslate2 has one maximum length per call, nmtkit one per source. A batch is searched up to the maximum of its
        longest source; the few searches that went on beyond their own are made again, among sources of the same
        maximum. So the other sources of a batch make no difference.

        Raises:
            ModelError: CTranslate2 fails, such as for want of memory, or has too few positions.
        """
        limits = [self._limit(len(ids)) for ids in sources]
        searched = [index for index in range(len(sources)) if limits[index] > 0]  # CTranslate2 takes no limit of 0
        # No thread is left idle.
        share = sum(len(sources[index]) for index in searched) // self._translator.num_translators + 1
        batches = batching.batches(sources, searched, min(batching.tokens, share))
        found: dict[int, list[int]] = {index: [] for index in range(len(sources)) if limits[index] == 0}
        found.update(self._search_batches(sources, limits, batches))
        beyond: dict[int, list[int]] = {}
        for index in (index for batch in batches for index in batch if index not in found):
            beyond.setdefault(limits[index], []).append(index)
        found.update(self._search_batches(sources, limits, list(beyond.values())))
        return [found[index] for index in range(len(sources))]

    def _search_batches(
        self, sources: Sequence[list[int]], limits: list[int], batches: list[list[int]]
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield the index of a source and its translation, for each whose search kept to its own maximum length."""
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
        """Return the options that make CTranslate2 search as nmtkit does, as far as it can."""
        decoding, suppressed = self.decoding, self.tokenizer.suppressed_ids
        options: dict[str, Any] = {
            "beam_size": decoding.beam,
            "max_input_length": 0,
            "max_decoding_length": limit,
            "min_decoding_length": min(decoding.min_length, limit),
            "no_repeat_ngram_size": decoding.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": [[self._target_pieces[index]] for index in suppressed if index != UNK],
        }
        if decoding.beam > 1:
            by_length = decoding.length_penalty == "length" and decoding.alpha > 0
            # The end symbol counts in the length. All finished hypotheses show how far the search went.
            options |= {"num_hypotheses": decoding.beam, "return_end_token": True, "return_scores": True}
            options["length_penalty"] = decoding.alpha if by_length else _NO_PENALTY
        return options

    def _best(self, result: "ctranslate2.TranslationResult") -> list[str]:
        """Return the best finished hypothesis; Wu's penalty, which CTranslate2 does not have, is applied here."""
        hypotheses: list[list[str]] = result.hypotheses
        if self.decoding.length_penalty != "wu":
            return hypotheses[0]
        penalty = length_penalty("wu", self.decoding.alpha)
        scores = [log_prob / penalty(len(pieces)) for pieces, log_prob in zip(hypotheses, result.scores, strict=True)]
        return hypotheses[scores.index(max(scores))]

    def _ids(self, pieces: list[str]) -> list[int]:
        ids = [self._target_ids[piece] for piece in pieces]
        return ids[:-1] if ids and ids[-1] == EOS else ids

    def _limit(self, source_tokens: int) -> int:
        """Return the maximum length of a translation in tokens, the end symbol not counted."""
        limit, positions = longest_translation(self.decoding, source_tokens), self._manifest["max_positions"]
        if self._manifest["has_learned_positions"]:
            return int(min(limit, positions - 1))
        if limit > positions:
            raise ModelError(
                f"a translation of {limit} tokens needs as many positions, but the export has {positions}; "
                "lower --max-length, or choose --engine torch"
            )
        return limit
