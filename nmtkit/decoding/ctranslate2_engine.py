"""The CTranslate2 engine, which translates with the output of `nmtkit export --format ctranslate2`, without torch.

Model, tokens, length limits, suppressed tokens and greedy search are the same as in the torch engine. Beam search is
that of finished = "beside" in decoding/search.py, whatever the setting is (docs/export.md).
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths, read_lengths
from nmtkit.config.recipe import changed_decoding
from nmtkit.console import log
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.lengths import length_penalty, longest_translation
from nmtkit.decoding.request import Batching, Segment, Translation, TranslationRequest
from nmtkit.distributed.interpreter import collect_as_usual
from nmtkit.distributed.limits import available_cores
from nmtkit.errors import DataError, ModelError, in_one_line
from nmtkit.files import sha256_of
from nmtkit.json_toml import positive, read_json
from nmtkit.model_folder import read_description, read_provenance
from nmtkit.run import find_model
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS, UNK

if TYPE_CHECKING:
    import ctranslate2

_NO_PENALTY = 1e-9
"""Exponent so small that CTranslate2 divides by exactly 1 in float32. With 0 it would also stop at the first step whose
best continuation ends."""
FORMAT = 1
"""Format of an export's manifest.json, which export/export.py writes."""
_SHAPE = {
    "quantization": str, "decoding": dict, "max_positions": positive, "has_learned_positions": bool,
    "model_sha256": str, "tokenizer_sha256": str, "files": {str: str, "model.bin": str},
    "training_lengths?": read_lengths,
}  # fmt: skip
"""Entries of that manifest that an engine needs."""


@dataclass(frozen=True)
class Export:
    """A folder that `nmtkit export --format ctranslate2` wrote.

    Attributes:
        manifest: the content of its manifest.json.
        model: model folder beside which the export was found; its decoding settings apply, as they can change without
            the weights. None if the export itself was given as MODEL.
    """

    folder: Path
    manifest: dict[str, Any]
    model: Path | None = None

    @classmethod
    def read(cls, folder: Path) -> "Export":
        """Read a folder; raise ModelError if it is no such export."""
        manifest = read_json(folder / "manifest.json", dict, ModelError)
        if manifest.get("format") != FORMAT or manifest.get("to") != "ctranslate2":
            raise ModelError(f"{folder}: not an export for CTranslate2 of format {FORMAT} (see its manifest.json)")
        return cls(folder, read_json(folder / "manifest.json", _SHAPE, ModelError))

    @property
    def quantization(self) -> str:
        """Number format of the weights."""
        return str(self.manifest["quantization"])

    @property
    def lengths(self) -> TrainingLengths | None:
        """Lengths of the model's training pairs, if known."""
        return read_lengths(self._description()[1].get("training_lengths"))

    def decoding(self, overrides: dict[str, object]) -> DecodingConfig:
        """Return the decoding settings of the model, with the given values replaced."""
        path, description = self._description()
        try:
            stored = DecodingConfig.model_validate(description["decoding"])
        except ValidationError as error:
            reason = in_one_line(error)
            raise ModelError(f"{path}: its decoding settings are not valid ({reason})") from None
        return changed_decoding(stored, overrides)

    def _description(self) -> tuple[Path, dict[str, Any]]:
        """Return the file that describes the model, and its content."""
        if self.model is None:
            return self.folder / "manifest.json", self.manifest
        return self.model / "model.json", read_description(self.model)

    def is_made_from(self, model_folder: Path) -> bool:
        """Return whether weights and tokenizer are those of a model folder, by the checksums that both record."""
        tokenizer = read_description(model_folder)["tokenizer_sha256"]
        try:
            weights = read_provenance(model_folder)["files"]["model.safetensors"]
        except (DataError, ModelError):
            return False
        return (weights, tokenizer) == (self.manifest["model_sha256"], self.manifest["tokenizer_sha256"])


def is_export(folder: Path) -> bool:
    """Return whether a folder looks like an export for CTranslate2."""
    return (folder / "manifest.json").is_file() and (folder / "model.bin").is_file()


def exports_of(path: Path) -> list[Export]:
    """Return the exports that are made from exactly the model of a MODEL argument, float32 first.

    They are searched in ``export/ctranslate2*`` of the argument, of the model folder and of its run.
    """
    path = path.resolve()  # the parent of "." would be "."
    model = find_model(path)
    exports = []
    for parent in dict.fromkeys((path, model, model.parent, model.parent.parent)):
        for folder in filter(is_export, sorted(parent.glob("export/ctranslate2*"))):
            try:
                export = Export.read(folder)
            except ModelError as error:
                log.warning("%s; this export is not used", error)
                continue
            if export.is_made_from(model):
                exports.append(replace(export, model=model))
            elif parent == path:  # that of a run is not meant where one of its checkpoints is named
                log.info(
                    "%s: not used, as it is not known to be made from %s as it is now; export again", folder, model
                )
    return sorted(exports, key=lambda export: export.quantization != "float32")


def check_installed() -> None:
    """Raise ModelError if CTranslate2 is not installed."""
    if find_spec("ctranslate2") is None:
        raise ModelError("CTranslate2 is not installed; run `pip install 'nmtkit[ctranslate2]'`")


class CTranslate2Translator(Engine):
    """Translator of lines with an export: one translation per line, without constraints."""

    has_alignments = False

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
        """Load an export.

        Args:
            overrides: values of [decoding] that replace those of the export.
            device: auto, cpu or cuda.
            threads: number of CPU threads, by default all cores; each thread translates separate batches.

        Raises:
            ModelError: the export is damaged, or CTranslate2 cannot use it or the device.
            RecipeError: a setting of the search is unknown or wrong.
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
                # One thread per batch: no thread waits, and the number of threads does not change results.
                inter_threads=1 if on_gpu else threads or available_cores(),
                intra_threads=1,
            )
            if on_gpu:  # it looks for cuBLAS at the first product
                translator.translate_batch([[tokenizer.entries("source")[EOS]]], beam_size=1, max_decoding_length=1)
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{export.folder}: CTranslate2 cannot use it ({in_one_line(error)})") from None
        # While an export is being written, it has no manifest.json yet.
        if is_export(export.folder) and Export.read(export.folder).manifest != export.manifest:
            raise ModelError(f"{export.folder}: was replaced while it was read; run the command again")
        collect_as_usual()
        return cls(export, translator, tokenizer, export.decoding(overrides or {}))

    @property
    def num_threads(self) -> int:
        return int(self._translator.num_translators)

    def description(self) -> dict[str, Any]:
        return {"engine": "ctranslate2", **super().description()}

    def check_search(self, request: TranslationRequest) -> None:
        has_constraints = request.prefixes or request.required or request.forbidden or request.glossary or request.keep
        if has_constraints or request.n_best > 1 or request.sampling is not None or request.attention:
            raise DataError("CTranslate2 gives one translation per line, without constraints; use the torch engine")
        if self.decoding.beam > 1 and self.decoding.coverage_penalty:
            raise DataError("CTranslate2 has a different coverage penalty; use beam 1 or the torch engine")

    def search_segments(
        self, segments: Sequence[Segment], request: TranslationRequest, batching: Batching
    ) -> Iterator[dict[int, list[Translation]]]:
        for translations in self.search_batches([segment.ids for segment in segments], batching):
            yield {
                index: [self._translation(segments[index], ids, self._limit(len(segments[index].ids)))]
                for index, ids in translations.items()
            }

    def search(self, sources: Sequence[list[int]], batching: Batching) -> list[list[int]]:
        """Return the ids of the best translation of each source; see `search_batches`."""
        found = {index: ids for batch in self.search_batches(sources, batching) for index, ids in batch.items()}
        return [found[index] for index in range(len(sources))]

    def search_batches(self, sources: Sequence[list[int]], batching: Batching) -> Iterator[dict[int, list[int]]]:
        """Yield for each batch the ids of the best translation of its sources, without begin and end symbols.

        CTranslate2 has one maximum length per call, nmtkit one per source. A batch is searched up to the highest
        maximum of its sources; the few searches that exceed their own maximum are repeated, in batches of equal
        maximum. So a translation does not depend on the other sources of its batch.

        Raises:
            ModelError: CTranslate2 fails, for example for lack of memory, or has too few positions.
        """
        limits = [self._limit(len(ids)) for ids in sources]
        searched = [index for index in range(len(sources)) if limits[index] > 0]  # CTranslate2 refuses a limit of 0
        # Batches are small enough that every thread gets one.
        share = sum(len(sources[index]) for index in searched) // self._translator.num_translators + 1
        batches = batching.batches(sources, searched, min(batching.tokens or self.batch_tokens, share))
        yield {index: [] for index in range(len(sources)) if limits[index] == 0}
        repeated: dict[int, list[int]] = {}
        for batch, found in zip(batches, self._search(sources, limits, batches), strict=True):
            for index in batch:
                if index not in found:
                    repeated.setdefault(limits[index], []).append(index)
            yield found
        yield from self._search(sources, limits, list(repeated.values()))

    def _search(
        self, sources: Sequence[list[int]], limits: list[int], batches: list[list[int]]
    ) -> Iterator[dict[int, list[int]]]:
        """Yield for each batch the translations of the sources whose search did not exceed their own maximum length."""
        start = self.tokenizer.target_start

        def begin(batch: list[int]) -> tuple[list[int], int, list[Any]]:
            longest = max(limits[index] for index in batch)
            results = self._translator.translate_batch(
                [[self._source_pieces[token] for token in sources[index]] for index in batch],
                target_prefix=[[self._target_pieces[token] for token in start]] * len(batch) if start else None,
                asynchronous=True,
                **self._options(longest),
            )
            return batch, longest, results

        # Few at a time, as a process that is stopped has to wait for those that have begun.
        ahead, calls = 2 * self._translator.num_translators, map(begin, batches)
        waiting = deque(itertools.islice(calls, ahead))
        while waiting:
            batch, longest, results = waiting.popleft()
            found: dict[int, list[int]] = {}
            for index, pending in zip(batch, results, strict=True):
                try:
                    result = pending.result()
                except RuntimeError as error:
                    reason = in_one_line(error)
                    is_full = any(sign in str(error) for sign in ("out of memory", "ALLOC_FAILED"))
                    remedy = "a smaller --batch-tokens" if is_full else "the model itself, with --engine torch"
                    raise ModelError(f"CTranslate2 failed ({reason}); try {remedy}") from None
                limit, hypotheses = limits[index], [pieces[len(start) :] for pieces in result.hypotheses]
                if self.decoding.beam == 1:
                    # Greedy search does not look ahead: with its own limit it gives the same first tokens.
                    found[index] = self._ids(hypotheses[0][:limit])
                # The search ends in a step that finishes one of the hypotheses, so the longest shows its last step.
                elif limit == longest or max(map(len, hypotheses)) < limit:
                    found[index] = self._ids(self._best(hypotheses, result.scores))
            # Before `found` is given away, so that no thread waits for what is done with it.
            waiting.extend(itertools.islice(calls, 1))
            yield found

    def _options(self, limit: int) -> dict[str, Any]:
        """Return the options with which the search of CTranslate2 is as similar to nmtkit's as possible."""
        decoding, suppressed = self.decoding, self.tokenizer.suppressed_ids
        options: dict[str, Any] = {
            "beam_size": decoding.beam,
            "max_input_length": 0,  # by default it cuts sources at 1,024 tokens
            # Its lengths include the given beginning of the target, those of nmtkit do not.
            "max_decoding_length": limit + len(self.tokenizer.target_start),
            "min_decoding_length": min(decoding.min_length, limit) + len(self.tokenizer.target_start),
            "no_repeat_ngram_size": decoding.no_repeat_ngram,
            "disable_unk": True,
            "suppress_sequences": [[self._target_pieces[index]] for index in suppressed if index != UNK],
        }
        if decoding.beam > 1:
            by_length = decoding.length_penalty == "length" and decoding.alpha > 0
            # nmtkit counts the end symbol in the length. The longest hypothesis shows the last step of all.
            options |= {"num_hypotheses": decoding.beam, "return_end_token": True, "return_scores": True}
            options["length_penalty"] = decoding.alpha if by_length else _NO_PENALTY
        return options

    def _best(self, hypotheses: list[list[str]], log_probs: list[float]) -> list[str]:
        """Return the best finished hypothesis; CTranslate2 lacks the "wu" length penalty, which is applied here."""
        if self.decoding.length_penalty != "wu":
            return hypotheses[0]
        penalty = length_penalty("wu", self.decoding.alpha)
        scores = [log_prob / penalty(len(pieces)) for pieces, log_prob in zip(hypotheses, log_probs, strict=True)]
        return hypotheses[scores.index(max(scores))]

    def _ids(self, pieces: list[str]) -> list[int]:
        ids = [self._target_ids[piece] for piece in pieces]
        return ids[:-1] if ids and ids[-1] == EOS else ids

    def _limit(self, source_tokens: int) -> int:
        """Return the maximum length of a translation in tokens, without the end symbol."""
        limit, positions = longest_translation(self.decoding, source_tokens), self._manifest["max_positions"]
        if self._manifest["has_learned_positions"]:
            return int(min(limit, positions - 1))
        if limit > positions:
            raise ModelError(
                f"a translation of {limit} tokens needs as many positions, but the export has {positions}; "
                "lower --max-length, or choose --engine torch"
            )
        return limit
