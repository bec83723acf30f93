"""The decoder for one position of many hypotheses at a time: `Transformer.decode`, arranged for speed.

Weights and sums are those of ``transformer.py``, which stays the definition: a test compares the two for every setting.
Queries, keys and values come from one product; keys and values of all layers lie in one buffer, so hypotheses are
reordered by one copy per step; attention to the source is prepared once per sentence (step_attention.py); linear layers
are packed (packed_linear.py).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.model.attention import mask_bias
from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.packed_layer import PreparedLayer, encode_with, prepared_layers
from nmtkit.model.packed_linear import PreparedLinear, for_inference
from nmtkit.model.step_attention import ByHead, Folded
from nmtkit.model.transformer import Transformer

_FIRST_CAPACITY = 16


class StepDecoder:
    """A model's decoder for one position at a time. Later changes of the weights have no defined effect."""

    def __init__(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        """Args:
        dtype: type of the matrix products, and on devices other than a CPU of everything else; by default the model's.
        """
        self._model = model = for_inference(model, dtype)
        self._encoder = prepared_layers(model.encoder, dtype)
        self._num_heads, self._d_k = model.config.num_heads, model.config.key_width
        self.layers = prepared_layers(model.decoder, dtype)
        self._output = PreparedLinear(model.output_embedding, model.output_bias, dtype)

    def start(
        self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"], *, fold: bool = True
    ) -> "StepState":
        """Encode the sources, with one hypothesis each.

        Args:
            source: ids with the end symbol, padded.
            source_lengths: their tokens, on the CPU.
            fold: fold attention to one short source (see step_attention.py).
        """
        states, mask = encode_with(self._encoder, self._model, source, source_lengths)
        bias = None
        if mask is not None:
            # As a summand it costs no call of its own, unlike a mask: `baddbmm` adds it to the product.
            bias = mask_bias(mask, states.dtype).expand(-1, self._num_heads, -1, -1)
            bias = bias.flatten(0, 1)  # [batch x heads, 1, source]
        window = self._model.config.attention_window
        before = AttentionWindow.of(window, causal=True).before if window is not None else None
        sources = [layer.source.look_at(states, bias, fold=fold) for layer in self.layers if layer.source]
        d_v = self._model.config.value_width
        # Positions are the first dimension, so that those in use are one slice of the buffer.
        empty = states.new_empty(_FIRST_CAPACITY, len(sources), len(states), self._num_heads * (self._d_k + d_v))
        return StepState(sources, bias, empty, self._num_heads, self._d_k, before)

    def step(
        self, last_ids: Int[Tensor, " rows"], state: "StepState", *, keep_attention: bool = False
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the token after ``last_ids``.

        ``keep_attention``: keep the weights of the last layer's attention to the source in the state.
        """
        x = self._embed(last_ids, state.length)
        positions = state.open_position()
        for number, (layer, position) in enumerate(zip(self.layers, positions, strict=True)):
            keep = keep_attention and number == len(self.layers) - 1
            if layer.is_pre:
                x = self._attend_to_self(layer.norms[0](x), x, layer, position)
                x, weights = state.sources[number](layer.norms[1](x), x, keep)
                x = layer.outer.add(layer.inner(layer.norms[2](x)), x)
            else:
                x = layer.norms[0](self._attend_to_self(x, x, layer, position))
                x, weights = state.sources[number](x, x, keep)
                x = layer.norms[1](x)
                x = layer.norms[2](layer.outer.add(layer.inner(x), x))
            if keep:
                state.attention = weights
        state.length += 1
        return self._output(self._model.decoder_norm(x))

    def _embed(self, ids: Int[Tensor, " rows"], position: int) -> Float[Tensor, "rows width"]:
        embeddings = self._model.embeddings
        table = embeddings["shared" if "shared" in embeddings else "target"]
        row = self._model.position_rows("target", position, 1)
        read = table.index_select(0, self._model.read_ids(ids, "target"))
        # `alpha` saves a call; calls dominate the time of a small model (step_attention.py).
        return torch.add(row.to(table.dtype), read, alpha=self._model.embedding_factor)

    def _attend_to_self(
        self, x: Float[Tensor, "rows width"], residual: Tensor, layer: PreparedLayer, views: tuple[Tensor, ...]
    ) -> Float[Tensor, "rows width"]:
        """Return ``residual`` plus attention to earlier positions."""
        joined = layer.queries_keys_values(x).view(x.size(0) * self._num_heads, -1)  # grouped by head
        queries, keys_values = joined.tensor_split((self._d_k,), 1)
        place, seen_keys, seen_values = views  # see `StepState.open_position`
        place.copy_(keys_values)
        scores = torch.bmm(queries.unsqueeze(1), seen_keys)  # [rows x heads, 1, length]
        attended = torch.bmm(torch.softmax(scores, -1), seen_values)
        return layer.output.add(attended.view(x.size(0), -1), residual)


class StepState:
    """Keys, values and sources of the hypotheses of some sentences.

    Attributes:
        sources: attention to the sources, per layer.
        num_sentences: number of sentences left.
        length: number of positions decoded so far.
        attention: mean weights of the last layer's heads in the last step, if requested [rows, source].
    """

    def __init__(
        self,
        sources: list[ByHead | Folded],
        bias: Float[Tensor, "heads 1 source"] | None,
        empty: Float[Tensor, "capacity layers sentences joined"],
        num_heads: int,
        d_k: int,
        before: int | None = None,
    ) -> None:
        """Args:
        bias: 0 for tokens of the sources, -inf for padding; None without padding.
        empty: room for the keys and values of the first positions, grouped by head.
        before: number of earlier positions that are visible; None: all.
        """
        self.sources = sources
        self._bias = bias
        self.num_sentences = empty.size(2)
        self.length = 0
        self.attention: Tensor | None = None
        self._num_heads = num_heads
        self._d_k = d_k
        self._before = before
        # Keys and values of earlier positions: [capacity, layers, rows, heads x (d_k + d_v)].
        self._buffer = self._spare = empty

    @property
    def _first(self) -> int:
        """First position that the next one sees; 0 without an attention window."""
        return 0 if self._before is None else max(0, self.length - self._before)

    def open_position(self) -> list[tuple[Tensor, ...]]:
        """Return for each layer the slot for the next position's keys and values, and all those that it sees.

        They are views: the slot [rows x heads, d_k + d_v], then keys [rows x heads, d_k, length] and values [rows x
        heads, length, d_v], with the slot at their end.
        """
        seen = self._buffer[self._first : self.length + 1]
        by_head = seen.view(seen.size(0), seen.size(1), seen.size(2) * self._num_heads, -1)
        slots = by_head[-1].unbind(0)
        keys = by_head[..., : self._d_k].permute(1, 2, 3, 0).unbind(0)
        values = by_head[..., self._d_k :].permute(1, 2, 0, 3).unbind(0)
        return list(zip(slots, keys, values, strict=True))

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        """Keep, drop or repeat hypotheses: row i of the result is row ``rows.flatten()[i]`` of before.

        Each line of ``rows`` holds rows of a single sentence; the lines are in the order of the sentences, and
        sentences without a line are dropped.
        """
        capacity, layers, old_rows, width = self._buffer.shape
        shape = (capacity if self.length < capacity else 2 * capacity, layers, rows.numel(), width)
        # Two buffers take turns, as a selection cannot be written over what it reads; at first they are one.
        is_free = self._spare.shape == shape and self._spare is not self._buffer
        selected = self._spare if is_free else self._buffer.new_empty(shape)
        # Positions that no later one sees are not copied.
        seen = slice(self._first, self.length)
        torch.index_select(self._buffer[seen], 2, rows.flatten(), out=selected[seen])
        self._buffer, self._spare = selected, self._buffer
        if len(rows) < self.num_sentences:
            kept = rows[:, :1] // (old_rows // self.num_sentences)
            heads = (kept * self._num_heads + torch.arange(self._num_heads, device=rows.device)).flatten()
            self._bias = None if self._bias is None else self._bias.index_select(0, heads)
            self.sources = [source.keep(heads, self._bias) for source in self.sources]
            self.num_sentences = len(rows)
