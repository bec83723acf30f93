"""Layers of self-attention for inference, with packed linear layers; the encoder of `Transformer.encode` is a stack.

Weights and sums are those of ``transformer.py``; queries, keys and values come from one product.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.packed_linear import PreparedLinear, PreparedNorm, joined_by_head
from nmtkit.model.transformer import Residual, SelfAttentionLayer, Transformer


@dataclass(frozen=True)
class PreparedLayer:
    """The linear layers and norms of one layer.

    Attributes:
        inner: first linear layer of the feed-forward sub-layer, with the activation.
    """

    attention: MultiHeadAttention
    queries_keys_values: PreparedLinear
    output: PreparedLinear
    inner: Callable[[Tensor], Tensor]
    outer: PreparedLinear
    norms: tuple[PreparedNorm, ...]
    is_pre: bool

    @classmethod
    def of(cls, layer: SelfAttentionLayer, dtype: torch.dtype | None) -> "PreparedLayer":
        """Copy a layer; see `PreparedLinear` for ``dtype``."""
        attention = layer.self_attention
        joined = joined_by_head(attention.num_heads, attention.query, attention.key, attention.value)
        inner = PreparedLinear.of(layer.feed_forward.inner, dtype)
        residuals = [cast(Residual, residual) for residual in layer.residuals]
        return cls(
            attention,
            PreparedLinear.of(joined, dtype),
            PreparedLinear.of(attention.output, dtype),
            inner.activated(layer.feed_forward.activation),
            PreparedLinear.of(layer.feed_forward.outer, dtype),
            tuple(PreparedNorm.of(residual.norm) for residual in residuals),
            residuals[0].pre,
        )

    def __call__(
        self, x: Float[Tensor, "batch length width"], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Float[Tensor, "batch length width"]:
        """Return the output of the layer.

        Args:
            attend: from queries, keys and values [batch, heads, length, d_k or d_v] to the results of the heads.
        """
        normed = self.norms[0](x) if self.is_pre else x
        joined = self.queries_keys_values(normed).unflatten(2, (self.attention.num_heads, -1)).transpose(1, 2)
        d_k = self.attention.key.weight.size(0) // self.attention.num_heads
        heads = attend(*joined.split([d_k, d_k, joined.size(3) - 2 * d_k], 3))
        x = self.output.add(heads.transpose(1, 2).flatten(2), x)
        if self.is_pre:
            return self.outer.add(self.inner(self.norms[1](x)), x)
        x = self.norms[0](x)
        return self.norms[1](self.outer.add(self.inner(x), x))


def prepared_layers(layers: Iterable[nn.Module], dtype: torch.dtype | None) -> list[PreparedLayer]:
    """Copy the layers of a stack. Later changes of the weights have no defined effect."""
    return [PreparedLayer.of(cast(SelfAttentionLayer, layer), dtype) for layer in layers]


class PreparedEncoder:
    """A model's encoder for inference. Later changes of the weights have no defined effect."""

    def __init__(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        """Args:
        model: a model for inference only (`for_inference`).
        dtype: see `PreparedLinear`.
        """
        self._model = model
        self._layers = prepared_layers(model.encoder, dtype)

    def __call__(
        self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch source width"], Bool[Tensor, "batch 1 1 source"] | None]:
        """Return the result of `Transformer.encode`."""
        x, mask = self._model.begin_encoding(source, source_lengths)
        for layer in self._layers:
            heads = layer.attention.heads
            x = layer(x, lambda queries, keys, values, heads=heads: heads(queries, keys, values, mask))  # type: ignore[misc]
        return self._model.encoder_norm(x), mask
