"""The encoder for inference: `Transformer.encode` with packed linear layers.

Weights and sums are those of ``transformer.py``; queries, keys and values come from one product.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.packed_linear import PreparedLinear, PreparedNorm, joined_by_head
from nmtkit.model.transformer import EncoderLayer, Residual, Transformer


@dataclass(frozen=True)
class _Layer:
    """The linear layers and norms of one encoder layer."""

    attention: MultiHeadAttention
    queries_keys_values: PreparedLinear
    output: PreparedLinear
    inner: PreparedLinear
    outer: PreparedLinear
    norms: tuple[PreparedNorm, ...]

    @classmethod
    def of(cls, layer: EncoderLayer, dtype: torch.dtype | None) -> "_Layer":
        attention = layer.self_attention
        joined = joined_by_head(attention.num_heads, attention.query, attention.key, attention.value)
        return cls(
            attention,
            PreparedLinear.of(joined, dtype),
            PreparedLinear.of(attention.output, dtype),
            PreparedLinear.of(layer.feed_forward.inner, dtype),
            PreparedLinear.of(layer.feed_forward.outer, dtype),
            tuple(PreparedNorm.of(cast(Residual, residual).norm) for residual in layer.residuals),
        )


class PreparedEncoder:
    """A model's encoder for inference. Later changes of the weights have no defined effect."""

    def __init__(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        """Args:
        model: a model for inference only (`for_inference`).
        dtype: see `PreparedLinear`.
        """
        self._model = model
        self._is_pre_norm = model.config.norm == "pre"
        self._widths = [model.config.key_width, model.config.key_width, model.config.value_width]
        self._layers = [_Layer.of(cast(EncoderLayer, layer), dtype) for layer in model.encoder]

    def __call__(
        self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch source width"], Bool[Tensor, "batch 1 1 source"] | None]:
        """Return the result of `Transformer.encode`."""
        x, mask = self._model.begin_encoding(source, source_lengths)
        for layer in self._layers:
            if self._is_pre_norm:
                x = self._attend(layer.norms[0](x), x, layer, mask)
                x = layer.outer.add(layer.inner.relu(layer.norms[1](x)), x)
            else:
                x = layer.norms[0](self._attend(x, x, layer, mask))
                x = layer.norms[1](layer.outer.add(layer.inner.relu(x), x))
        return self._model.encoder_norm(x), mask

    def _attend(
        self,
        x: Float[Tensor, "batch source width"],
        residual: Float[Tensor, "batch source width"],
        layer: _Layer,
        mask: Bool[Tensor, "batch 1 1 source"] | None,
    ) -> Float[Tensor, "batch source width"]:
        """Return ``residual`` plus self-attention."""
        joined = layer.queries_keys_values(x).unflatten(2, (layer.attention.num_heads, -1)).transpose(1, 2)
        queries, keys, values = joined.split(self._widths, 3)
        heads = layer.attention.heads(queries, keys, values, mask)
        return layer.output.add(heads.transpose(1, 2).flatten(2), residual)
