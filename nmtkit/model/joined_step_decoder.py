"""One position of many hypotheses at a time for a model without encoder: `DecoderOnly.decode`, arranged for search.

Weights and sums are those of ``decoder_only.py``, which stays the definition. The source is computed once per sentence;
its keys and values are shared by the hypotheses of the sentence, and each hypothesis keeps those of its own tokens:

    full         all positions
    window       the positions that the next token sees
    local        at most the present block (and the one before, where that is seen)
    compressed   one per group of positions, and the positions of the group that is not complete
"""

import sys
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nmtkit.model.attention import MultiHeadAttention, mask_bias
from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.decoder_only import DecoderOnly
from nmtkit.model.packed_layer import prepared_layers
from nmtkit.model.packed_linear import PreparedLinear, for_inference

_FIRST_CAPACITY = 16


class Seen(NamedTuple):
    """Keys and values that queries may see.

    Attributes:
        keys, values: [rows, heads, key, d_k or d_v]; a row is a sentence or a hypothesis.
        bias: summand of the scores: 0 where they may be seen, else -inf [rows, key].
    """

    keys: Tensor
    values: Tensor
    bias: Tensor

    def at(self, index: Int[Tensor, "rows key"]) -> list[Tensor]:
        """Return the keys and the values at these positions."""
        return [
            tensor.gather(2, index[:, None, :, None].expand(-1, tensor.size(1), -1, tensor.size(3)))
            for tensor in (self.keys, self.values)
        ]


Own = tuple[Tensor, Tensor, Tensor | None]
"""Own keys and values of hypotheses [rows, heads, key, d_k or d_v] and their bias; None: all may be seen."""


class _Cache:
    """Keys and values of one layer: those of all positions, unless a subclass keeps fewer.

    Attributes:
        source: those of the sources, shared by the hypotheses of a sentence.

    In the methods ``position`` is that of the new token in its sequence, source counted [sentences].
    """

    def __init__(self, source: Seen) -> None:
        self.source = source
        self._own: list[Tensor] = []  # keys, values and the like of each hypothesis, which `select` reorders

    def source_seen(self, position: Int[Tensor, " sentences"]) -> Seen:
        """Return what of the source the new token sees."""
        return self.source

    def add(
        self,
        keys: Float[Tensor, "rows heads d_k"],
        values: Float[Tensor, "rows heads d_v"],
        position: Int[Tensor, " sentences"],
        step: int,
    ) -> Own:
        """Add the new token of each hypothesis, number ``step`` of its own ones; return those that it sees."""
        own_keys, own_values = self._store(keys, values, step)
        return own_keys, own_values, None

    def _store(self, keys: Tensor, values: Tensor, step: int, num_slots: int = sys.maxsize) -> list[Tensor]:
        """Put a token into slot ``step`` modulo ``num_slots``; return keys and values of all slots in use."""
        if not self._own:
            capacity = min(_FIRST_CAPACITY, num_slots)
            self._own = [new.new_empty(len(new), new.size(1), capacity, new.size(2)) for new in (keys, values)]
        elif step == self._own[0].size(2) < num_slots:
            # Doubled, so that the cost of copies per token does not grow with the length.
            room = min(step, num_slots - step)
            self._own = [torch.cat([tensor, torch.empty_like(tensor[:, :, :room])], 2) for tensor in self._own]
        for tensor, new in zip(self._own, (keys, values), strict=True):
            tensor[:, :, step % num_slots] = new
        return [tensor[:, :, : step + 1] for tensor in self._own]

    def on_source(self, weights: Float[Tensor, "rows key"], width: int) -> Float[Tensor, "rows source"]:
        """Return weights of `source_seen` as weights of the tokens of the source."""
        return F.pad(weights, (0, width - weights.size(1)))

    def select(self, rows: Int[Tensor, " kept"], sentences: Int[Tensor, " left"] | None) -> None:
        """Reorder hypotheses, and keep only these sentences (None: all)."""
        self._own = [tensor.index_select(0, rows) for tensor in self._own]
        if sentences is not None:
            self.source = Seen(*(tensor.index_select(0, sentences) for tensor in self.source))


class _NearCache(_Cache):
    """Keys and values of a neighbourhood: of the end of the source, and of the latest own tokens.

    Own token n is in slot n modulo the number of slots.
    """

    def __init__(self, source: Seen, lengths: Int[Tensor, " sentences"], window: AttentionWindow) -> None:
        self._window = window
        self._num_slots = window.before + (window.local_block or 1)
        first = self._first_seen(lengths)
        width = int((lengths - first).max())
        self._positions = first[:, None] + torch.arange(width, device=lengths.device)  # [sentences, key]
        # Positions after the end of a source get a valid index here and are masked below.
        keys, values = source.at(self._positions.clamp(max=max(0, source.keys.size(2) - 1)))
        super().__init__(Seen(keys, values, mask_bias(self._positions < lengths[:, None], keys.dtype)))

    def _first_seen(self, position: Int[Tensor, " sentences"]) -> Int[Tensor, " sentences"]:
        block = self._window.local_block
        begin = position if block is None else position // block * block
        return (begin - self._window.before).clamp(min=0)

    def source_seen(self, position: Tensor) -> Seen:
        bias = mask_bias(self._positions >= self._first_seen(position)[:, None], self.source.keys.dtype)
        return self.source._replace(bias=self.source.bias + bias)

    def add(self, keys: Tensor, values: Tensor, position: Tensor, step: int) -> Own:
        own_keys, own_values = self._store(keys, values, step, self._num_slots)
        slots = torch.arange(min(step + 1, self._num_slots), device=keys.device)
        age = (step - slots) % self._num_slots  # how many tokens ago that of a slot came
        is_near = position[:, None] - age >= self._first_seen(position)[:, None]  # [sentences, slot]
        bias = mask_bias(is_near, keys.dtype).repeat_interleave(len(keys) // len(position), 0)
        return own_keys, own_values, bias

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        super().select(rows, sentences)
        if sentences is not None:
            self._positions = self._positions.index_select(0, sentences)


class _CompressedCache(_Cache):
    """Compressed keys and values, and the plain ones of the incomplete group; see `MultiHeadAttention.memory`."""

    def __init__(self, source: Seen, lengths: Int[Tensor, " sentences"], attention: MultiHeadAttention) -> None:
        assert attention.compression is not None
        self._attention, self._size = attention, attention.compression
        memory = source.keys, source.values
        pending = [tensor.new_zeros(*tensor.shape[:2], self._size, tensor.size(3)) for tensor in memory]
        if width := source.keys.size(2):
            # The group that the first own token belongs to; a slot after the end of the source is written before use.
            slots = lengths[:, None] // self._size * self._size + torch.arange(self._size, device=lengths.device)
            pending = source.at(slots.clamp(max=width - 1))
            memory = attention.memory(*memory)
        begins = self._size * torch.arange(memory[0].size(2), device=lengths.device)
        # Own tokens see complete groups only, and a first position only where there is a source.
        seen = (begins <= lengths[:, None]) & (lengths[:, None] > 0)
        super().__init__(Seen(*memory, mask_bias(seen, memory[0].dtype)))
        # Zeros: unused slots are multiplied by weights of 0, and uninitialised memory could hold infinity or NaN.
        self._own = pending + [
            tensor.new_zeros(*tensor.shape[:2], _FIRST_CAPACITY, tensor.size(3)) for tensor in pending
        ]
        self._num_groups = torch.zeros_like(lengths)  # of own memory, per sentence

    def add(self, keys: Tensor, values: Tensor, position: Tensor, step: int) -> Own:
        beam = len(keys) // len(position)
        slot = (position % self._size).repeat_interleave(beam)[:, None, None, None]
        for tensor, new in zip(self._own[:2], (keys, values), strict=True):
            tensor.scatter_(2, slot.expand(-1, tensor.size(1), 1, tensor.size(3)), new[:, :, None])
        if step == 0:  # the first position of a sequence is in its memory as it is
            self._append([keys, values], position == 0)
        own_keys, own_values = self._own[2:]
        mask = torch.arange(own_keys.size(2), device=keys.device) < self._num_groups[:, None]
        is_complete = position % self._size == self._size - 1
        if bool(is_complete.any()):  # a group that is complete is seen from the next position on
            linears = (self._attention.compress_keys, self._attention.compress_values)
            pairs = zip(linears, self._own[:2], strict=True)
            groups = [linear(pending.transpose(1, 2).flatten(1)) for linear, pending in pairs]
            self._append([group.unflatten(1, (self._attention.num_heads, -1)) for group in groups], is_complete)
        return own_keys, own_values, mask_bias(mask, own_keys.dtype).repeat_interleave(beam, 0)

    def _append(self, groups: list[Tensor], chosen: Bool[Tensor, " sentences"]) -> None:
        """Append to the memory of all hypotheses of the chosen sentences."""
        beam = len(groups[0]) // len(chosen)
        if int(self._num_groups.max()) == self._own[2].size(2):
            self._own[2:] = [torch.cat([tensor, torch.zeros_like(tensor)], 2) for tensor in self._own[2:]]
        rows = chosen.repeat_interleave(beam).nonzero()[:, 0]
        slots = self._num_groups.repeat_interleave(beam)[rows]
        for tensor, new in zip(self._own[2:], groups, strict=True):
            tensor[rows, :, slots] = new[rows].to(tensor.dtype)
        self._num_groups = self._num_groups + chosen

    def on_source(self, weights: Tensor, width: int) -> Tensor:
        if not weights.size(1):  # no sentence has a source
            return weights.new_zeros(len(weights), width)
        return self._attention.by_token(weights[:, None, None], width)[:, 0, 0]

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        super().select(rows, sentences)
        if sentences is not None:
            self._num_groups = self._num_groups.index_select(0, sentences)


class JoinedStepDecoder:
    """A model without encoder for one position at a time, with the interface of `StepDecoder`.

    The attention that is kept is that of the last layer that sees the whole source, if there is one.
    """

    def __init__(self, model: DecoderOnly, dtype: torch.dtype | None = None) -> None:
        self._model = model = for_inference(model, dtype)
        self.layers = prepared_layers(model.decoder, dtype)
        self._output = PreparedLinear(model.output_embedding, model.output_bias, dtype)
        kinds = [model.config.attention_kind(number) for number in range(len(self.layers))]
        sees_all = [number for number, kind in enumerate(kinds) if kind in ("full", "compressed")]
        self._reported = sees_all[-1] if sees_all else None

    def start(self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"]) -> "JoinedState":
        """Compute the sources, with one hypothesis each; their end symbols, which are counted, are not read."""
        width = int(source_lengths.max()) - 1
        lengths = (source_lengths - 1).to(source.device)
        position = torch.arange(width, device=source.device)
        x = self._model.embed_at(source[:, :width], position[None], lengths, width)
        caches: list[_Cache] = []
        for number, layer in enumerate(self.layers):
            x = layer(x, partial(self._attend_in_source, number, caches, position < lengths[:, None], lengths))
        return JoinedState(caches, lengths, width + 1)

    def _attend_in_source(
        self,
        number: int,
        caches: list[_Cache],
        mask: Bool[Tensor, "sentences key"],
        lengths: Int[Tensor, " sentences"],
        queries: Float[Tensor, "sentences heads key d_k"],
        keys: Float[Tensor, "sentences heads key d_k"],
        values: Float[Tensor, "sentences heads key d_v"],
    ) -> Float[Tensor, "sentences heads key d_v"]:
        """Keep the keys and values of the sources in a layer, and return the results of its heads."""
        config, attention = self._model.config, self.layers[number].attention
        seen = Seen(keys, values, mask_bias(mask, keys.dtype))
        kind = config.attention_kind(number)
        if kind == "full":
            caches.append(_Cache(seen))
        elif kind == "compressed":
            caches.append(_CompressedCache(seen, lengths, attention))
        else:
            caches.append(_NearCache(seen, lengths, AttentionWindow.of_kind(kind, config, causal=True)))
        prefix = lengths if config.source_attention == "full" else None
        return attention.heads(queries, keys, values, None, True, prefix) if keys.size(2) else values

    def step(
        self, last_ids: Int[Tensor, " rows"], state: "JoinedState", *, keep_attention: bool = False
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the token after ``last_ids``; keep attention to the source in the state if requested."""
        state.num_hypotheses = len(last_ids)
        position = state.lengths + state.length  # [sentences]
        # Sources differ in length, so new tokens of the same step are at different positions.
        lengths = state.lengths.repeat_interleave(len(last_ids) // len(position))
        of_rows = (lengths + state.length)[:, None]
        x = self._model.embed_at(last_ids[:, None], of_rows, lengths, state.source_width + state.length)
        for number, (layer, cache) in enumerate(zip(self.layers, state.caches, strict=True)):
            keep = keep_attention and number == self._reported
            x = layer(x, partial(state.attend, cache, position, keep))
        state.length += 1
        return self._output(self._model.decoder_norm(x)[:, 0])


class JoinedState:
    """Keys and values of the hypotheses of some sentences.

    Attributes:
        caches: of each layer.
        lengths: tokens of each source [sentences].
        length: number of own tokens of each hypothesis so far.
        source_width: tokens of the longest source at the start, end symbol counted.
        num_hypotheses: number of rows of the last step.
        attention: attention of the last step to the source, if requested [rows, source].
    """

    def __init__(self, caches: list[_Cache], lengths: Int[Tensor, " sentences"], source_width: int) -> None:
        self.caches, self.lengths, self.source_width = caches, lengths, source_width
        self.length = 0
        self.num_hypotheses = len(lengths)
        self.attention: Tensor | None = None

    def attend(
        self,
        cache: _Cache,
        position: Int[Tensor, " sentences"],
        keep: bool,
        queries: Float[Tensor, "rows heads 1 d_k"],
        keys: Float[Tensor, "rows heads 1 d_k"],
        values: Float[Tensor, "rows heads 1 d_v"],
    ) -> Float[Tensor, "rows heads 1 d_v"]:
        """Return the results of a layer's heads for the next position of each hypothesis."""
        own_keys, own_values, own_bias = cache.add(keys[:, :, 0], values[:, :, 0], position, self.length)
        source = cache.source_seen(position)
        rows, heads, _, d_k = queries.shape
        sentences, width = source.keys.size(0), source.keys.size(2)
        shape = (sentences, rows // sentences, heads)
        queries = queries[:, :, 0] * d_k**-0.5
        # The hypotheses of a sentence are queries to its one set of keys and values.
        by_sentence = queries.view(*shape, d_k).transpose(1, 2)
        to_source = torch.matmul(by_sentence, source.keys.transpose(2, 3))  # [sentences, heads, beam, key]
        to_source += source.bias[:, None, None]
        to_own = torch.matmul(queries[:, :, None], own_keys.transpose(2, 3))[:, :, 0]  # [rows, heads, key]
        if own_bias is not None:
            to_own += own_bias[:, None]
        # One softmax over both parts. Their keys stay apart, as joining them would copy the source's per hypothesis.
        scores = torch.cat([to_source.transpose(1, 2).reshape(rows, heads, width), to_own], 2)
        on_source, on_own = torch.softmax(scores, 2).split([width, to_own.size(2)], 2)
        of_source = torch.matmul(on_source.view(*shape, width).transpose(1, 2), source.values)
        of_own = torch.matmul(on_own[:, :, None], own_values)
        if keep:
            weights = cache.on_source(on_source.mean(1), self.source_width)  # [rows, source]
            total = weights.sum(1, keepdim=True)
            lengths = self.lengths.repeat_interleave(rows // sentences)[:, None]
            is_source = torch.arange(self.source_width, device=weights.device) <= lengths
            # Where nothing is seen, as of a source without tokens, all alike; the end symbol is one of them.
            self.attention = torch.where(total > 0, weights / total, is_source / (lengths + 1))
        return of_source.transpose(1, 2).reshape(of_own.shape) + of_own

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        """Keep, drop or repeat hypotheses, as `StepState.select`."""
        sentences = None
        if len(rows) < len(self.lengths):
            sentences = rows[:, 0] // (self.num_hypotheses // len(self.lengths))
            self.lengths = self.lengths.index_select(0, sentences)
        for cache in self.caches:
            cache.select(rows.flatten(), sentences)
