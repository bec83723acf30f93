"""The engine of models whose output is a label: no search, but one forward pass over each line."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.data.batch import batch_of_sequences
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.request import Batching, Segment, Translation, TranslationRequest
from nmtkit.errors import DataError, ModelError
from nmtkit.model.decoder_only import DecoderOnly
from nmtkit.model.transformer import Transformer
from nmtkit.run import load_ensemble
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import Tokenizer


class Classifier(Engine):
    """Labels of lines by a model, or by the mean of the probabilities (or numbers) of several."""

    precision = "float32"

    def __init__(
        self,
        models: Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: DecodingConfig,
        lengths: TrainingLengths | None = None,
    ) -> None:
        """Create a classifier from models in memory with the same labels; arguments as in `Translator`."""
        task_of(tokenizer).require("classify")
        if any(model.training for model in models):
            raise ModelError("a model in training mode applies dropout; call its method eval() first")
        super().__init__(tokenizer, decoding, lengths, None)
        self._models = [model for model in models if isinstance(model, DecoderOnly)]
        self.device = models[0].output_embedding.device.type

    @classmethod
    def load(cls, models: str | Path | Sequence[str | Path], device: torch.device | str | None = None) -> "Classifier":
        """Load a model or several: model folders, run folders or checkpoints.

        Raises:
            ModelError: a model does not exist, is damaged or predicts no labels, or the vocabularies differ.
        """
        loaded = load_ensemble(models, device)
        classifier = cls([entry.model for entry in loaded], loaded[0].tokenizer, loaded[0].decoding, loaded[0].lengths)
        sums = tuple(entry.provenance["files"]["model.safetensors"] for entry in loaded)
        classifier.weights_sha256 = classifier.model_sha256 = sums
        return classifier

    def classify(self, lines: Iterable[str]) -> list[Translation]:
        """Return the label of each line as `text`, with `probabilities`; "" for a line without text."""
        return [label for label, *_ in self.translations(lines, TranslationRequest())]

    @property
    def num_threads(self) -> int:
        return torch.get_num_threads()

    def check_search(self, request: TranslationRequest) -> None:
        has_phrases = any(request.prefixes) or any(request.required) or request.forbidden
        if request.n_best > 1 or request.sampling is not None or has_phrases or request.attention:
            raise DataError("a label is not searched for: no n-best lists, samples, prefixes, phrases or alignments")

    def _segments(self, lines: Sequence[str], request: TranslationRequest) -> list[Segment]:
        normalized = [self.tokenizer.normalize(line) for line in lines]
        found = enumerate(self.tokenizer.sequences(normalized, self.num_threads))
        return [Segment(number, ids, 0, is_cut=is_cut) for number, (ids, is_cut, _) in found if ids]

    @torch.inference_mode()
    def search_segments(
        self, segments: Sequence[Segment], request: TranslationRequest, batching: Batching
    ) -> Iterator[dict[int, list[Translation]]]:
        sources = [segment.ids for segment in segments]
        device, extract = self._models[0].output_embedding.device, self.tokenizer.extract_id
        for chosen in batching.batches(sources, range(len(segments)), batching.tokens or self.batch_tokens):
            batch = batch_of_sequences([sources[index] for index in chosen], extract).to(device)
            outputs = []
            for model in self._models:
                states = model.decode(batch.target_in, *model.encode(batch.source, batch.source_lengths))
                # On the CPU, as mps has no float64.
                output = model.label_output(states, batch.last, batch.example, len(chosen)).cpu().double()
                outputs.append(output if model.config.head == "number" else output.softmax(1))
            mean = torch.stack(outputs).mean(0)
            if not mean.isfinite().all():
                raise ModelError("the model's output is not finite: its weights are damaged or its training diverged")
            yield {
                index: [self._label(segments[index], values)]
                for index, values in zip(chosen, mean.tolist(), strict=True)
            }

    def _label(self, segment: Segment, values: list[float]) -> Translation:
        """Return the label of a segment from its probabilities, or from its number."""
        if self.tokenizer.label_type == "number":
            middle, unit = self.tokenizer.number_scale
            digits = 6 + max(0, round(math.log10(max(abs(middle) / unit, 1e-9))))
            return Translation(f"{middle + unit * values[0]:.{digits}g}", is_cut=segment.is_cut, probabilities={})
        names = self.tokenizer.labels
        if LABEL_KINDS[self.tokenizer.task_name].chooses:
            # Other questions of the batch may have more answers; theirs have probability 0 here.
            values = values[: segment.ids.count(self.tokenizer.extract_id)]
            names = tuple(str(number) for number in range(1, len(values) + 1))
        best = max(range(len(values)), key=lambda index: values[index])
        probabilities = dict(zip(names, values, strict=True))
        return Translation(names[best], score=values[best], is_cut=segment.is_cut, probabilities=probabilities)
