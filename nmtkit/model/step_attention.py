"""Attention of a decoder layer to the source for one position at a time, in two arrangements.

`ByHead` keeps the keys and values of each head, as ``attention.py`` defines them. `Folded` is for one short sentence:
q K^T = x (W_q K^T) and w V W_o = w (V W_o), so with known keys and values two matrix products remain of four, and a
third of the calls, which dominate the time of a small model. It is the same sum in another order: of 1,000 lines no
translation changed, and no log-probability differed by more than 1.6e-5.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.packed_linear import LinearMap, PreparedLinear, joined_by_head

_MOST_SCORES = 0.75
"""Number of scores of all heads per position, in multiples of d_model, up to which a source is folded. Folding was
faster up to 1; from there on its two matrices are larger than what they replace."""


def scaled_queries(attention: MultiHeadAttention) -> LinearMap:
    """Return the projection to queries that are divided by sqrt(d_k) already."""
    scale = (attention.query.weight.size(0) // attention.num_heads) ** -0.5
    return LinearMap(attention.query.weight.detach() * scale, attention.query.bias.detach() * scale)


class SourceMaps:
    """The projections of a layer's attention to the source."""

    def __init__(self, attention: MultiHeadAttention, dtype: torch.dtype | None) -> None:
        self.num_heads = attention.num_heads
        heads, queries, output = attention.num_heads, scaled_queries(attention), attention.output
        self.queries = PreparedLinear.of(queries, dtype)
        self.output = PreparedLinear.of(output, dtype)
        # For folding, of each head: [heads, d_k, width + 1] with the bias, and [heads, d_v, width].
        self._to_queries = torch.cat([queries.weight, queries.bias[:, None]], 1).unflatten(0, (heads, -1))
        self._from_values = output.weight.detach().t().contiguous().unflatten(0, (heads, -1))
        self._share_of_bias = output.bias.detach() / heads
        stored = output.weight.dtype  # on a GPU, that of the products
        self._rounds = dtype not in (None, stored) or stored in (torch.bfloat16, torch.float16)
        self._keys_values = PreparedLinear.of(joined_by_head(self.num_heads, attention.key, attention.value), dtype)
        self._d_k = attention.key.weight.size(0) // self.num_heads

    def look_at(
        self,
        states: Float[Tensor, "sentences source width"],
        bias: Float[Tensor, "rows 1 source"] | None,
        *,
        fold: bool = True,
    ) -> "ByHead | Folded":
        """Return attention to these sources.

        Args:
            bias: 0 for tokens and -inf for padding, per sentence and head; None without padding.
            fold: fold a short source. It is never folded where products are rounded, since a translation would then
                depend on its batch.
        """
        sentences, source, width = states.shape
        joined = self._keys_values(states).unflatten(2, (self.num_heads, -1))
        keys, values = joined[..., : self._d_k], joined[..., self._d_k :]  # [sentences, source, heads, d_k or d_v]
        is_short = self.num_heads * source <= _MOST_SCORES * width
        if fold and is_short and sentences == 1 and not self._rounds:
            keys, values = keys[0].transpose(0, 1), values[0].transpose(0, 1)  # [heads, source, d_k or d_v]
            scores = torch.bmm(keys, self._to_queries).flatten(0, 1).t().contiguous()  # [width + 1, heads x source]
            # The weights of each head add up to 1, so the bias may stand in what they are multiplied by.
            found = torch.baddbmm(self._share_of_bias, values, self._from_values)  # [heads, source, width]
            # The last row of `scores` comes from the biases of the queries.
            return Folded(scores[:-1], scores[-1], found.flatten(0, 1), self.num_heads)
        return ByHead(self, keys.permute(0, 2, 3, 1).flatten(0, 1), values.permute(0, 2, 1, 3).flatten(0, 1), bias)


@dataclass(frozen=True)
class Folded:
    """Attention to one source by two products.

    Attributes:
        to_scores: the map to the scores of all heads [width, heads x source].
        bias: its bias [heads x source].
        found: contribution of a weight of 1 to the output, its bias included [heads x source, width].
        num_heads: number of heads.
    """

    to_scores: Tensor
    bias: Tensor
    found: Tensor
    num_heads: int

    def __call__(
        self, x: Float[Tensor, "rows width"], residual: Float[Tensor, "rows width"], keep: bool = False
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows source"] | None]:
        """Return ``residual`` plus attention to the source, and if ``keep`` the mean weights of the heads."""
        rows = x.size(0)
        scores = torch.addmm(self.bias, x, self.to_scores)
        weights = torch.softmax(scores.view(rows, self.num_heads, -1), -1)
        result = torch.addmm(residual, weights.view(rows, -1), self.found)
        return result, weights.mean(1) if keep else None

    def keep(self, heads: Tensor, bias: Tensor | None) -> "Folded":
        """Return this object: its one sentence is kept as long as there is any."""
        return self


@dataclass(frozen=True)
class ByHead:
    """Attention to the sources of a batch, head by head.

    Attributes:
        maps: projections of the layer.
        keys, values: [sentences x heads, d_k, source], [sentences x heads, source, d_v].
        bias: [sentences x heads, 1, source] or None.
    """

    maps: SourceMaps
    keys: Tensor
    values: Tensor
    bias: Tensor | None

    def __call__(
        self, x: Float[Tensor, "rows width"], residual: Float[Tensor, "rows width"], keep: bool = False
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows source"] | None]:
        """Return ``residual`` plus attention to the source, and if ``keep`` the mean weights of the heads."""
        # The hypotheses of a sentence are queries to its one set of keys and values.
        rows, heads = x.size(0), self.maps.num_heads
        sentences = len(self.keys) // heads
        queries = self.maps.queries(x).view(sentences, rows // sentences, heads, -1).transpose(1, 2)
        queries = queries.reshape(sentences * heads, rows // sentences, -1)
        scores = torch.bmm(queries, self.keys) if self.bias is None else torch.baddbmm(self.bias, queries, self.keys)
        weights = torch.softmax(scores, -1)  # [sentences x heads, hypotheses, source]
        attended = torch.bmm(weights, self.values)
        joined = attended.view(sentences, heads, rows // sentences, -1).transpose(1, 2).reshape(rows, -1)
        mean_weights = weights.unflatten(0, (sentences, heads)).mean(1).flatten(0, 1) if keep else None
        return self.maps.output.add(joined, residual), mean_weights

    def keep(self, heads: Int[Tensor, " kept"], bias: Float[Tensor, "kept 1 source"] | None) -> "ByHead":
        """Return attention to the sources of some sentences only.

        Args:
            heads: indices of all heads of these sentences.
            bias: their bias.
        """
        keys, values = self.keys.index_select(0, heads), self.values.index_select(0, heads)
        return ByHead(self.maps, keys, values, bias)
