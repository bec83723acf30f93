"""The decoder for one position of many hypotheses at a time: what `Transformer.decode` computes, arranged for speed.

The same weights and the same sums as in ``transformer.py``, which stays the definition: a test compares the two for
every setting. What differs is the arrangement: queries, keys and values come from one product, whose queries are
scaled already; keys and values of all layers lie in two buffers, so that hypotheses are reordered by two copies a step;
keys and values of the source are kept once a sentence; and on a CPU the output matrix is kept transposed.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.transformer import DecoderLayer, Residual, Transformer
from nmtkit.workers import product

_FIRST_CAPACITY = 16


@dataclass(frozen=True)
class _Map:
    """A linear map, its matrix transposed [in, out]."""

    matrix: Tensor
    bias: Tensor

    def __call__(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        return torch.addmm(self.bias, x, self.matrix)


@dataclass(frozen=True)
class _Norm:
    """A layer norm."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True)
class _Layer:
    """The maps of one decoder layer."""

    queries_keys_values: _Map
    self_output: _Map
    source_queries: _Map
    source_output: _Map
    inner: _Map
    outer: _Map
    norms: tuple[_Norm, ...]

    @classmethod
    def of(cls, layer: DecoderLayer) -> "_Layer":
        attention, source = layer.self_attention, layer.source_attention
        norms = [cast(Residual, residual).norm for residual in layer.residuals]
        return cls(
            _joined(_scaled_queries(attention), attention.key, attention.value),
            _joined(attention.output),
            _joined(_scaled_queries(source)),
            _joined(source.output),
            _joined(layer.feed_forward.inner),
            _joined(layer.feed_forward.outer),
            tuple(_Norm(norm.weight.detach(), norm.bias.detach(), norm.eps) for norm in norms),
        )


@dataclass(frozen=True)
class _Linear:
    weight: Tensor
    bias: Tensor


def _scaled_queries(attention: MultiHeadAttention) -> _Linear:
    """The map to queries that are divided by sqrt(d_k) already."""
    d_k = attention.query.weight.size(0) // attention.num_heads
    return _Linear(attention.query.weight * d_k**-0.5, attention.query.bias * d_k**-0.5)


def _joined(*maps: torch.nn.Linear | _Linear) -> _Map:
    """Several linear maps of the same input as one."""
    matrix = torch.cat([one.weight.detach() for one in maps]).t()
    return _Map(matrix, torch.cat([one.bias.detach() for one in maps]))


class StepDecoder:
    """A model's decoder, prepared to decode one position at a time; weights changed later are not seen."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._num_heads = model.config.num_heads
        self._is_pre_norm = model.config.norm == "pre"
        self.layers = [_Layer.of(cast(DecoderLayer, layer)) for layer in model.decoder]
        output = model.output_embedding.detach().t()
        # A product with few rows is several times faster by rows of the other matrix that lie side by side.
        self._output = output.contiguous() if output.device.type == "cpu" else output

    def start(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"]) -> "StepState":
        """Encodes the sources; one hypothesis each.

        Args:
            source: ids with the end symbol, padded.
            source_lengths: their tokens, on the CPU.
        """
        states, mask = self._model.encode(source, source_lengths)
        keys, values = [], []
        for layer in self._model.decoder:
            of_layer = cast(DecoderLayer, layer).source_attention.keys_values(states)
            keys.append(of_layer[0].flatten(0, 1).transpose(1, 2).contiguous())  # [batch x heads, d_k, source]
            values.append(of_layer[1].flatten(0, 1).contiguous())  # [batch x heads, source, d_v]
        bias = None
        if mask is not None:
            bias = torch.zeros(mask.shape, dtype=states.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
            bias = bias.expand(-1, self._num_heads, -1, -1).flatten(0, 1)  # [batch x heads, 1, source]
        return StepState(keys, values, bias, self._num_heads, states.size(0), self._model.config.value_width)

    def step(
        self, last_ids: Int[Tensor, " rows"], state: "StepState", *, keep_attention: bool = False
    ) -> Float[Tensor, "rows vocab"]:
        """Logits of the token after ``last_ids``.

        Args:
            keep_attention: whether the state keeps where the last layer looked in the source.
        """
        x = self._embed(last_ids, state.length)
        for number, layer in enumerate(self.layers):
            is_last = number == len(self.layers) - 1
            if self._is_pre_norm:
                x = x + self._attend_to_self(layer.norms[0](x), layer, number, state)
                x = x + self._attend_to_source(layer.norms[1](x), layer, number, state, keep_attention and is_last)
                x = x + layer.outer(layer.inner(layer.norms[2](x)).relu_())
            else:
                x = layer.norms[0](x + self._attend_to_self(x, layer, number, state))
                x = layer.norms[1](x + self._attend_to_source(x, layer, number, state, keep_attention and is_last))
                x = layer.norms[2](x + layer.outer(layer.inner(x).relu_()))
        state.length += 1
        return product(self._model.decoder_norm(x), self._output)

    def _embed(self, ids: Int[Tensor, " rows"], position: int) -> Float[Tensor, "rows width"]:
        embeddings = self._model.embeddings
        table = embeddings["shared" if "shared" in embeddings else "target"]
        row = self._model.position_rows("target", position, 1)
        return torch.add(row.to(table.dtype), F.embedding(ids, table), alpha=math.sqrt(self._model.config.d_model))

    def _attend_to_self(
        self, x: Float[Tensor, "rows width"], layer: _Layer, number: int, state: "StepState"
    ) -> Float[Tensor, "rows width"]:
        rows, heads = x.size(0), self._num_heads
        joined = layer.queries_keys_values(x)
        keys, values = state.append(number, joined)  # each [length, rows x heads, width of a head]
        queries = joined[:, : joined.size(1) - state.key_and_value_width].reshape(rows * heads, 1, -1)
        weights = torch.softmax(torch.bmm(queries, keys.permute(1, 2, 0)), -1)  # [rows x heads, 1, length]
        return layer.self_output(torch.bmm(weights, values.transpose(0, 1)).view(rows, -1))

    def _attend_to_source(
        self, x: Float[Tensor, "rows width"], layer: _Layer, number: int, state: "StepState", keep_attention: bool
    ) -> Float[Tensor, "rows width"]:
        # A sentence's hypotheses stand side by side as queries on its one set of keys and values.
        rows, heads, sentences = x.size(0), self._num_heads, state.num_sentences
        queries = layer.source_queries(x).view(sentences, rows // sentences, heads, -1).transpose(1, 2)
        queries = queries.reshape(sentences * heads, rows // sentences, -1)
        keys = state.source_keys[number]
        scores = torch.bmm(queries, keys) if state.bias is None else torch.baddbmm(state.bias, queries, keys)
        weights = torch.softmax(scores, -1)  # [sentences x heads, hypotheses, source]
        if keep_attention:
            state.attention = weights.unflatten(0, (sentences, heads)).mean(1).flatten(0, 1)
        attended = torch.bmm(weights, state.source_values[number])
        joined = attended.view(sentences, heads, rows // sentences, -1).transpose(1, 2).reshape(rows, -1)
        return layer.source_output(joined)


class StepState:
    """What is remembered of the hypotheses of some sentences.

    Attributes:
        source_keys, source_values: of each layer [sentences x heads, d_k, source], [sentences x heads, source, d_v].
        bias: 0 for the tokens of a source, -inf for padding [sentences x heads, 1, source]; None without padding.
        length: positions decoded so far.
        attention: where the last layer looked in the last step, if asked for: the mean of its heads [rows, source].
    """

    def __init__(
        self, source_keys: list[Tensor], source_values: list[Tensor], bias: Tensor | None, num_heads: int,
        num_sentences: int, d_v: int,
    ) -> None:  # fmt: skip
        self.source_keys = source_keys
        self.source_values = source_values
        self.bias = bias
        self.num_sentences = num_sentences
        self.length = 0
        self.attention: Tensor | None = None
        self._num_heads = num_heads
        self._widths = (num_heads * source_keys[0].size(1), num_heads * d_v)
        shape = (_FIRST_CAPACITY, len(source_keys), num_sentences)
        # Of earlier positions: [capacity, layers, rows, heads x width of a head], keys and values.
        self._buffers = [source_keys[0].new_empty(*shape, width) for width in self._widths]
        self._spare = self._buffers

    @property
    def key_and_value_width(self) -> int:
        """Entries of a row's keys and values in all heads."""
        return sum(self._widths)

    def append(self, layer: int, joined: Float[Tensor, "rows joined"]) -> tuple[Tensor, Tensor]:
        """Adds the keys and values at the end of each row, and returns those of all positions of that layer."""
        keys, values = self._buffers
        key_width, value_width = self._widths
        keys[self.length, layer] = joined[:, -key_width - value_width : -value_width]
        values[self.length, layer] = joined[:, -value_width:]
        rows_and_heads = joined.size(0) * self._num_heads
        end = self.length + 1
        return keys[:end, layer].view(end, rows_and_heads, -1), values[:end, layer].view(end, rows_and_heads, -1)

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        """Keeps, drops or repeats hypotheses: row i of the result is what row ``rows.flatten()[i]`` was.

        Each line of ``rows`` holds rows of one and the same sentence; the lines are in the order of the sentences, and
        sentences without a line are dropped.
        """
        per_sentence = self._buffers[0].size(2) // self.num_sentences
        flat = rows.flatten()
        capacity = self._buffers[0].size(0)
        if self.length == capacity:
            capacity *= 2
        selected = []
        for buffer, spare in zip(self._buffers, self._spare, strict=True):
            shape = (capacity, buffer.size(1), len(flat), buffer.size(3))
            new = spare if spare.shape == shape and spare is not buffer else buffer.new_empty(shape)
            torch.index_select(buffer[: self.length], 2, flat, out=new[: self.length])
            selected.append(new)
        self._buffers, self._spare = selected, self._buffers
        if len(rows) < self.num_sentences:
            heads = torch.arange(self._num_heads, device=rows.device)
            kept = ((rows[:, :1] // per_sentence) * self._num_heads + heads).flatten()
            self.source_keys = [keys.index_select(0, kept) for keys in self.source_keys]
            self.source_values = [values.index_select(0, kept) for values in self.source_values]
            if self.bias is not None:
                self.bias = self.bias.index_select(0, kept)
            self.num_sentences = len(rows)
