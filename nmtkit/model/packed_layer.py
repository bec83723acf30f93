"""Layers for inference, with packed linear layers; the encoder of `Transformer.encode` is a stack of them.

Weights and sums are those of ``transformer.py``; queries, keys and values come from one product.
"""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nmtkit.model.attention import attention_mask
from nmtkit.model.packed_linear import PreparedLinear, joined_by_head, prepared_norm
from nmtkit.model.step_attention import SourceMaps, scaled_queries
from nmtkit.model.transformer import DecoderLayer, Residual, SelfAttentionLayer, Transformer


class PreparedLayer:
    """The linear layers and norms of one layer.

    Attributes:
        inner: first linear layer of the feed-forward sub-layer, with the activation.
        source: attention to the source; None in a layer of self-attention only. With it, the queries of self-attention
            are divided by sqrt(d_k) already.
    """

    def __init__(self, layer: SelfAttentionLayer | DecoderLayer, dtype: torch.dtype | None) -> None:
        """Copy a layer; see `PreparedLinear` for ``dtype``."""
        self.attention = attention = layer.self_attention
        self.source = SourceMaps(layer.source_attention, dtype) if isinstance(layer, DecoderLayer) else None
        # `StepDecoder` multiplies queries and keys without a scale; `MultiHeadAttention.heads` has its own.
        query = attention.query if self.source is None else scaled_queries(attention)
        # Grouped by head, so that a view separates the heads and a split their queries, keys and values.
        joined = joined_by_head(attention.num_heads, query, attention.key, attention.value)
        self.queries_keys_values = PreparedLinear.of(joined, dtype)
        self.output = PreparedLinear.of(attention.output, dtype)
        self.inner = PreparedLinear.of(layer.feed_forward.inner, dtype).activated(layer.feed_forward.activation)
        self.outer = PreparedLinear.of(layer.feed_forward.outer, dtype)
        residuals = [cast(Residual, residual) for residual in layer.residuals]
        self.norms = [prepared_norm(residual.norm) for residual in residuals]
        self.is_pre = residuals[0].pre

    def __call__(
        self, x: Float[Tensor, "batch length width"], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Float[Tensor, "batch length width"]:
        """Return the output of a layer of self-attention only.

        ``attend`` goes from queries, keys and values [batch, heads, length, d_k or d_v] to the results of the heads.
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
    return [PreparedLayer(cast(SelfAttentionLayer | DecoderLayer, layer), dtype) for layer in layers]


def encode_with(
    layers: Iterable[PreparedLayer],
    model: Transformer,
    source: Int[Tensor, "batch source"],
    source_lengths: Int[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch source width"], Bool[Tensor, "batch 1 1 source"] | None]:
    """Return the result of `Transformer.encode`, with prepared layers instead of the model's."""
    x, mask = model.embed(source, "source"), attention_mask(source_lengths, source.device)
    for layer in layers:
        heads = layer.attention.heads
        x = layer(x, lambda queries, keys, values, heads=heads: heads(queries, keys, values, mask))  # type: ignore[misc]
    return model.encoder_norm(x), mask
