"""Ways to run the steps of a search: as nmtkit runs them, through torch.compile, and recorded as CUDA graphs.

The computation is that of nmtkit's `StepDecoder`. What a mode changes is how it gets to the device:

- compiled: what lies between the accesses to the caches through torch.compile, for shapes of any size.
- recorded: the steps of one batch are written down, one recording for each position, and played back for every later
  batch of its shape. Hypotheses are reordered in the recording too. A recording holds addresses, so ids, the order of
  hypotheses and all that comes from the encoder are copied to fixed places; sources are filled up to a multiple of
  WIDTH_STEP with positions that have no weight. The encoder and the search itself run as ever.

A recording holds for sentences that go on to the same length: a batch that sentences leave has another shape at each
step. On a CPU, where there are no graphs, the operators are written down and run again on the same places.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtkit.decoding.stepper import ModelStepper, Stepper
from nmtkit.model.step_attention import ByHead
from nmtkit.model.step_decoder import StepDecoder, StepState
from nmtkit.model.transformer import Transformer
from nmtkit.training.loss import MAX_VARIANTS

WIDTH_STEP = 32

Work = Callable[[], None]
Recorder = Callable[[Work], Work]
"""From work to what does the same work again, on the same places in memory."""


class CompiledDecoder(StepDecoder):
    """A StepDecoder of a post-norm model whose layers run compiled, but for the caches.

    A whole step does not compile well: torch (2.13) makes a copy of all caches for each write to one, and compiles anew
    for each length. So of each layer, what follows on the write is compiled, once for all layers. The first two steps
    are plain: torch would compile anew for one position, and for one hypothesis a sentence.
    """

    def __init__(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        super().__init__(model, dtype)
        assert model.config.norm == "post"
        torch._dynamo.config.cache_size_limit = MAX_VARIANTS
        torch._dynamo.config.specialize_int = True  # only sizes that come with a batch are to be symbols
        for weight in _tensors_in(self.layers):
            torch._dynamo.mark_static(weight)
        # Without its patterns: that of torch 2.13 for attention once took keys in an order that it does not expect, and
        # compiling ended with an error about shapes.
        self._rest_of_layer = torch.compile(rest_of_layer, dynamic=True, options={"pattern_matcher": False})

    def start(self, source: Tensor, source_lengths: Tensor, *, fold: bool = False) -> StepState:
        return super().start(source, source_lengths, fold=fold)

    def step(self, last_ids: Tensor, state: StepState, *, keep_attention: bool = False) -> Tensor:
        if state.length < 2 or keep_attention:
            return super().step(last_ids, state, keep_attention=keep_attention)
        x = self._embed(last_ids, state.length)
        for number, (layer, (place, keys, values)) in enumerate(zip(self.layers, state.open_position(), strict=True)):
            joined = layer.queries_keys_values(x).view(x.size(0) * self._num_heads, -1)
            place.copy_(joined[:, self._d_k :])
            attention = _by_head(state)[number]
            source = (attention.keys, attention.values, attention.bias)
            queries = joined[:, None, : self._d_k]
            x = self._rest_of_layer(layer, self._num_heads, x, queries, keys, values, *source)
        state.length += 1
        return self._output(self._model.decoder_norm(x))


def _by_head(state: StepState) -> list[ByHead]:
    """Of each layer the keys and values of the sources, which a state that was not folded has."""
    return [cast(ByHead, source) for source in state.sources]


def rest_of_layer(
    layer: Any, heads: int, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor,
    source_keys: Tensor, source_values: Tensor, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """A post-norm decoder layer from its self-attention on, as in `StepDecoder`."""
    attended = torch.bmm(torch.softmax(torch.bmm(queries, keys), -1), values).view(x.size(0), -1)
    x = layer.norms[0](x + layer.output(attended))
    sentences = source_keys.size(0) // heads
    queries = layer.source.queries(x).view(sentences, -1, heads, source_keys.size(1)).transpose(1, 2)
    queries = queries.reshape(source_keys.size(0), -1, source_keys.size(1))
    scores = torch.bmm(queries, source_keys) if bias is None else torch.baddbmm(bias, queries, source_keys)
    attended = torch.bmm(torch.softmax(scores, -1), source_values)
    attended = attended.view(sentences, heads, -1, source_values.size(2)).transpose(1, 2).reshape(x.size(0), -1)
    x = layer.norms[1](x + layer.source.output(attended))
    return layer.norms[2](x + layer.outer(torch.relu(layer.inner(x))))


def _tensors_in(held: object) -> Iterator[Tensor]:
    """All tensors in an object, its lists and what they hold."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, (list, tuple)):
        for one in held:
            yield from _tensors_in(one)
    elif isinstance(held, dict):
        yield from _tensors_in(list(held.values()))
    elif hasattr(held, "__dict__"):
        yield from _tensors_in(vars(held))


def plain_stepper(decoder: StepDecoder, source: Tensor, lengths: Tensor) -> Stepper:
    """What nmtkit's translator gives to the search."""
    return ModelStepper([decoder], source, lengths)


class Recordings:
    """Recorded decoding of one model, for each shape of batch that came.

    The first batch of a shape runs as it is, which loads and compiles what is needed; the second is recorded.
    """

    def __init__(self, decoder: StepDecoder, vocabulary: int, beam: int, record: Recorder) -> None:
        self._decoder = decoder
        self._sizes = (vocabulary, beam)
        self._record = record
        self._of_shape: dict[tuple[int, int], RecordedStepper | None] = {}
        self._latest: RecordedStepper | None = None

    def stepper(self, source: Tensor, lengths: Tensor) -> Stepper:
        """A stepper for a batch; only the latest one may be used."""
        if self._latest is not None:
            self._latest.finish_recording()
        started = self._decoder.start(source, lengths, fold=False)
        width = -(-_by_head(started)[0].keys.size(2) // WIDTH_STEP) * WIDTH_STEP
        shape = (started.num_sentences, width)
        if shape not in self._of_shape:
            self._of_shape[shape] = None
            self._latest = RecordedStepper(self._decoder, started, width, self._sizes, lambda work: work)
            return self._latest
        recorded = self._of_shape[shape]
        if recorded is None:
            recorded = RecordedStepper(self._decoder, started, width, self._sizes, self._record)
            self._of_shape[shape] = recorded
        else:
            recorded.begin(started)
        self._latest = recorded
        return recorded


class RecordedStepper:
    """A Stepper that records the steps of its first batch and plays them back for later ones of the same shape."""

    def __init__(
        self, decoder: StepDecoder, started: StepState, width: int, sizes: tuple[int, int], record: Recorder
    ) -> None:
        """Takes over the state of a batch that has just been started.

        Args:
            width: positions that sources are filled up to.
            sizes: entries of the vocabulary, and the beam.
        """
        vocabulary, beam = sizes
        sources = _by_head(started)
        sentences, device = started.num_sentences, sources[0].keys.device
        self._decoder = decoder
        self._record = record
        self._ids = torch.zeros(sentences * beam, dtype=torch.long, device=device)
        self._rows = torch.zeros(sentences, beam, dtype=torch.long, device=device)
        self._log_probs = torch.zeros(sentences * beam, vocabulary, device=device)
        missing = width - sources[0].keys.size(2)
        self._keys = [F.pad(source.keys, (0, missing)) for source in sources]
        self._values = [F.pad(source.values, (0, 0, 0, missing)) for source in sources]
        self._bias = self._keys[0].new_zeros(self._keys[0].size(0), 1, width)
        self._set_bias(started)
        self._state: StepState | None = started  # its lengths and buffers are those of the recording, not of playing
        started.sources = [
            replace(source, keys=keys, values=values, bias=self._bias)
            for source, keys, values in zip(sources, self._keys, self._values, strict=True)
        ]
        # The first step writes to caches that were made before any recording. Nothing else may get their memory.
        self._begun_with = copy.copy(started)
        self._recorded: list[Work] = []
        self._next = 0

    def begin(self, started: StepState) -> None:
        """Goes on to another batch of the same shape."""
        for keys, values, source in zip(self._keys, self._values, _by_head(started), strict=True):
            width = source.keys.size(2)
            keys[:, :, :width].copy_(source.keys)
            values[:, :width].copy_(source.values)
        self._set_bias(started)
        self._next = 0

    def _set_bias(self, started: StepState) -> None:
        source = _by_head(started)[0]
        width = source.keys.size(2)
        self._bias[:, :, width:] = -torch.inf
        self._bias[:, :, :width] = 0.0 if source.bias is None else source.bias

    def finish_recording(self) -> None:
        """Gives back the caches that were made in the recording, for those of other shapes: they have one pool of
        memory, and each batch writes to its caches before it reads them."""
        self._state = None

    def step(self, last_ids: Tensor) -> Tensor:
        """See `Stepper`; what is returned is overwritten by the next step."""
        rows = len(last_ids)
        self._ids[:rows] = last_ids
        if self._next == len(self._recorded):
            if self._state is None:
                raise ValueError(f"this batch goes on beyond the {self._next} recorded steps")
            self._recorded.append(self._record(partial(self._work, self._state, self._next == 0, rows)))
        self._recorded[self._next]()
        self._next += 1
        return self._log_probs[:rows]

    def _work(self, state: StepState, is_first: bool, rows: int) -> None:
        if not is_first:
            state.select(self._rows)
        logits = self._decoder.step(self._ids[:rows], state)
        torch.log_softmax(logits.float(), -1, out=self._log_probs[:rows])

    def attention(self) -> Tensor:
        """Not recorded."""
        raise NotImplementedError("recorded decoding keeps no attention")

    def select(self, rows: Tensor) -> None:
        """See `Stepper`; done with the next step."""
        if rows.shape != self._rows.shape:
            raise ValueError("recorded decoding needs all sentences of a batch to the end: give them one length")
        self._rows.copy_(rows)


class GraphRecorder:
    """Records work as CUDA graphs, all in one pool of memory; they must be played one after the other."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        # Not by the context manager torch.cuda.graph: it empties torch's cache of memory, and in some versions collects
        # garbage, for every graph.
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay


def record_operators(work: Work) -> Work:
    """Does the work and writes down its operators, to be run again; as a graph does, they write where they wrote."""
    with _Log() as log:
        work()
    return log.play


class _Log(TorchDispatchMode):
    """The operators of some work, with the tensors that they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Sequence[Any], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        self._calls.append((operator, args, kwargs or {}, result))
        return result

    def play(self) -> None:
        """Runs them again."""
        for operator, args, kwargs, result in self._calls:
            again = operator(*args, **kwargs)
            for before, now in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(before, Tensor) and before.data_ptr() != now.data_ptr():
                    before.copy_(now)
