"""The decoder for one position of many hypotheses at a time: what `Transformer.decode` computes, arranged for speed.

The same weights and the same sums as in ``transformer.py``, which stays the definition: a test compares the two for
every setting. What differs is the arrangement: queries, keys and values come from one product, whose queries are
scaled already; keys and values of all layers lie in one buffer, so that hypotheses are reordered by one copy a step;
keys and values of the source are kept once a sentence; and the maps are laid out for fast products (prepared.py).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.prepared import PreparedLinear, for_inference, with_prepared_encoder
from nmtkit.model.transformer import DecoderLayer, Residual, Transformer

_FIRST_CAPACITY = 16


@dataclass(frozen=True)
class _Norm:
    """A layer norm."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True)
class _Layer:
    """The maps of one decoder layer."""

    queries_keys_values: PreparedLinear
    self_output: PreparedLinear
    source_keys_values: PreparedLinear
    source_queries: PreparedLinear
    source_output: PreparedLinear
    inner: PreparedLinear
    outer: PreparedLinear
    norms: tuple[_Norm, ...]

    @classmethod
    def of(cls, layer: DecoderLayer, dtype: torch.dtype | None) -> "_Layer":
        attention, source = layer.self_attention, layer.source_attention
        norms = [cast(Residual, residual).norm for residual in layer.residuals]
        return cls(
            _by_head(dtype, attention.num_heads, _scaled_queries(attention), attention.key, attention.value),
            _map(dtype, attention.output),
            _by_head(dtype, source.num_heads, source.key, source.value),
            _map(dtype, _scaled_queries(source)),
            _map(dtype, source.output),
            _map(dtype, layer.feed_forward.inner),
            _map(dtype, layer.feed_forward.outer),
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


def _map(dtype: torch.dtype | None, linear: torch.nn.Linear | _Linear) -> PreparedLinear:
    return PreparedLinear(linear.weight, linear.bias, dtype)


def _by_head(dtype: torch.dtype | None, num_heads: int, *maps: torch.nn.Linear | _Linear) -> PreparedLinear:
    """Several linear maps of the same input as one, whose result has what belongs to a head side by side."""
    weights = torch.cat([one.weight.unflatten(0, (num_heads, -1)) for one in maps], 1)
    biases = torch.cat([one.bias.unflatten(0, (num_heads, -1)) for one in maps], 1)
    return PreparedLinear(weights.flatten(0, 1), biases.flatten(), dtype)


class StepDecoder:
    """A model's decoder, prepared to decode one position at a time; weights changed later are not seen."""

    def __init__(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        """Takes a model.

        Args:
            dtype: of the matrix products, and on other devices than a CPU of all else too; by default the model's.
        """
        model = for_inference(model, dtype)
        self._model = with_prepared_encoder(model, dtype)
        self._num_heads, self._d_k = model.config.num_heads, model.config.key_width
        self._is_pre_norm = model.config.norm == "pre"
        self.layers = [_Layer.of(cast(DecoderLayer, layer), dtype) for layer in model.decoder]
        self._output = PreparedLinear(model.output_embedding, dtype=dtype)

    def start(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"]) -> "StepState":
        """Encodes the sources; one hypothesis each.

        Args:
            source: ids with the end symbol, padded.
            source_lengths: their tokens, on the CPU.
        """
        states, mask = self._model.encode(source, source_lengths)
        keys, values = [], []
        for layer in self.layers:
            joined = layer.source_keys_values(states).unflatten(2, (self._num_heads, -1))
            keys.append(joined[..., : self._d_k].permute(0, 2, 3, 1).flatten(0, 1))
            values.append(joined[..., self._d_k :].permute(0, 2, 1, 3).flatten(0, 1))
        bias = None
        if mask is not None:
            bias = torch.zeros(mask.shape, dtype=states.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
            bias = bias.expand(-1, self._num_heads, -1, -1).flatten(0, 1)  # [batch x heads, 1, source]
        window = self._model.config.attention_window
        before = AttentionWindow.of(window, causal=True).before if window is not None else None
        return StepState(keys, values, bias, self._num_heads, states.size(0), before)

    def step(
        self, last_ids: Int[Tensor, " rows"], state: "StepState", *, keep_attention: bool = False
    ) -> Float[Tensor, "rows vocab"]:
        """Logits of the token after ``last_ids``.

        Args:
            keep_attention: whether the state keeps where the last layer looked in the source.
        """
        x = self._embed(last_ids, state.length)
        positions = state.open_position()
        for number, (layer, position) in enumerate(zip(self.layers, positions, strict=True)):
            keep = keep_attention and number == len(self.layers) - 1
            if self._is_pre_norm:
                x = self._attend_to_self(layer.norms[0](x), x, layer, position)
                x = self._attend_to_source(layer.norms[1](x), x, layer, number, state, keep)
                x = layer.outer.add(layer.inner.relu(layer.norms[2](x)), x)
            else:
                x = layer.norms[0](self._attend_to_self(x, x, layer, position))
                x = layer.norms[1](self._attend_to_source(x, x, layer, number, state, keep))
                x = layer.norms[2](layer.outer.add(layer.inner.relu(x), x))
        state.length += 1
        return self._output(self._model.decoder_norm(x))

    def _embed(self, ids: Int[Tensor, " rows"], position: int) -> Float[Tensor, "rows width"]:
        embeddings = self._model.embeddings
        table = embeddings["shared" if "shared" in embeddings else "target"]
        row = self._model.position_rows("target", position, 1)
        return torch.add(row.to(table.dtype), F.embedding(ids, table), alpha=math.sqrt(self._model.config.d_model))

    def _attend_to_self(
        self, x: Float[Tensor, "rows width"], residual: Tensor, layer: _Layer, position: "_Position"
    ) -> Float[Tensor, "rows width"]:
        """``residual`` and what comes of attention to earlier positions."""
        joined = layer.queries_keys_values(x).view(x.size(0) * self._num_heads, -1)  # of each head what is its own
        position.place.copy_(joined[:, self._d_k :])
        scores = torch.bmm(joined[:, None, : self._d_k], position.keys)  # [rows x heads, 1, length]
        attended = torch.bmm(torch.softmax(scores, -1), position.values)
        return layer.self_output.add(attended.view(x.size(0), -1), residual)

    def _attend_to_source(
        self,
        x: Float[Tensor, "rows width"],
        residual: Tensor,
        layer: _Layer,
        number: int,
        state: "StepState",
        keep_attention: bool,
    ) -> Float[Tensor, "rows width"]:
        """``residual`` and what comes of attention to the source."""
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
        return layer.source_output.add(joined, residual)


class _Position(NamedTuple):
    """Of one layer the place for the next position's keys and values, and those of all positions up to it.

    Attributes:
        place: [rows x heads, d_k + d_v].
        keys: [rows x heads, d_k, length], ``place`` counted; with an attention window only those it sees.
        values: [rows x heads, length, d_v], likewise.
    """

    place: Tensor
    keys: Tensor
    values: Tensor


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
        num_sentences: int, before: int | None = None,
    ) -> None:  # fmt: skip
        self.source_keys = source_keys
        self.source_values = source_values
        self.bias = bias
        self.num_sentences = num_sentences
        self.length = 0
        self.attention: Tensor | None = None
        self._num_heads = num_heads
        self._before = before
        of_a_head = source_keys[0].size(1) + source_values[0].size(2)
        shape = (_FIRST_CAPACITY, len(source_keys), num_sentences, num_heads * of_a_head)
        # Keys and values of earlier positions: [capacity, layers, rows, heads x (d_k + d_v)].
        self._buffer = self._spare = source_keys[0].new_empty(shape)

    @property
    def _first(self) -> int:
        """The first position that the next one sees, of those before it; by an attention window not all."""
        return 0 if self._before is None else max(0, self.length - self._before)

    def open_position(self) -> list["_Position"]:
        """For each layer room for the next position."""
        seen = self._buffer[self._first : self.length + 1]
        by_head = seen.view(seen.size(0), seen.size(1), seen.size(2) * self._num_heads, -1)
        d_k = self.source_keys[0].size(1)
        places = by_head[-1].unbind(0)
        keys = by_head[..., :d_k].permute(1, 2, 3, 0).unbind(0)
        values = by_head[..., d_k:].permute(1, 2, 0, 3).unbind(0)
        return [_Position(*views) for views in zip(places, keys, values, strict=True)]

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        """Keeps, drops or repeats hypotheses: row i of the result is what row ``rows.flatten()[i]`` was.

        Each line of ``rows`` holds rows of one and the same sentence; the lines are in the order of the sentences, and
        sentences without a line are dropped.
        """
        capacity, layers, old_rows, width = self._buffer.shape
        shape = (capacity if self.length < capacity else 2 * capacity, layers, rows.numel(), width)
        is_free = self._spare.shape == shape and self._spare is not self._buffer
        selected = self._spare if is_free else self._buffer.new_empty(shape)
        seen = slice(self._first, self.length)
        torch.index_select(self._buffer[seen], 2, rows.flatten(), out=selected[seen])
        self._buffer, self._spare = selected, self._buffer
        if len(rows) < self.num_sentences:
            heads = torch.arange(self._num_heads, device=rows.device)
            kept = ((rows[:, :1] // (old_rows // self.num_sentences)) * self._num_heads + heads).flatten()
            self.source_keys = [keys.index_select(0, kept) for keys in self.source_keys]
            self.source_values = [values.index_select(0, kept) for values in self.source_values]
            if self.bias is not None:
                self.bias = self.bias.index_select(0, kept)
            self.num_sentences = len(rows)
