"""Multi-head scaled dot-product attention."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.dropout import Dropout

MOST_SCORES = 2**26
"""Scores of queries and keys that are held at once on a CPU: 256 MiB of float32."""


class MultiHeadAttention(nn.Module):
    """Attention of several heads with separate projections; one more projection joins them.

    Source: "Attention Is All You Need", section 3.2.2. As there, queries, keys and values have separate matrices.

    Attributes:
        watch: called with the weights of every call (see attention_weights.py); None: no observer.
        window: number of positions that self-attention sees around a position; None: all.
    """

    def __init__(
        self, d_model: int, num_heads: int, d_k: int, d_v: int, dropout: float, window: int | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.watch: Callable[[Tensor], None] | None = None
        self.window = window
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(d_model, num_heads * d_k)
        self.key = nn.Linear(d_model, num_heads * d_k)
        self.value = nn.Linear(d_model, num_heads * d_v)
        self.output = nn.Linear(num_heads * d_v, d_model)

    def _split(self, x: Float[Tensor, "batch length joined"]) -> Float[Tensor, "batch heads length head_width"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def queries(self, x: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch heads query d_k"]:
        """Return the queries of each head."""
        return self._split(self.query(x))

    def keys_values(
        self, x: Float[Tensor, "batch key width"]
    ) -> tuple[Float[Tensor, "batch heads key d_k"], Float[Tensor, "batch heads key d_v"]]:
        """Return the keys and values of each head."""
        return self._split(self.key(x)), self._split(self.value(x))

    def attend(
        self,
        queries: Float[Tensor, "batch heads query d_k"],
        keys: Float[Tensor, "batch heads key d_k"],
        values: Float[Tensor, "batch heads key d_v"],
        mask: Bool[Tensor, "batch 1 1 key"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "batch query width"]:
        """Return the joined and projected results of the heads; arguments as for `heads`."""
        heads = self.heads(queries, keys, values, mask, causal)
        projected: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return projected

    def heads(
        self,
        queries: Float[Tensor, "batch heads query d_k"],
        keys: Float[Tensor, "batch heads key d_k"],
        values: Float[Tensor, "batch heads key d_v"],
        mask: Bool[Tensor, "batch 1 1 key"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "batch heads query d_v"]:
        """Return softmax(Q K^T / sqrt(d_k)) V of each head, with a window over the neighbours only.

        Args:
            mask: True where a key may be attended to; None: everywhere.
            causal: a position sees only itself and earlier ones; not together with a mask.

        Source: equation 1.
        """
        if self.window is None:
            return self._attend(queries, keys, values, mask, causal)
        window, length = AttentionWindow.of(self.window, causal=causal), queries.size(2)
        if window.num_blocks(length) and self.watch is None:
            return window.join(self._attend(*window.cut(queries, keys, values, mask)), length)
        return self._attend(queries, keys, values, window.mask(mask, length, queries.device))

    def _attend(
        self,
        queries: Float[Tensor, "batch heads query d_k"],
        keys: Float[Tensor, "batch heads key d_k"],
        values: Float[Tensor, "batch heads key d_v"],
        mask: Bool[Tensor, "#batch 1 #query key"] | None,
        causal: bool = False,
    ) -> Float[Tensor, "batch heads query d_v"]:
        """Compute `heads` without windows, on a CPU by plain matrix products.

        These are several times faster there for sentences than torch's fused attention, which is used elsewhere and
        where the scores would take too much memory.
        """
        num_scores = queries.shape[:3].numel() * keys.size(2)
        if self.watch is not None or (queries.device.type == "cpu" and num_scores <= MOST_SCORES):
            weights = _weights(queries, keys, mask, causal)
            if self.watch is not None:
                self.watch(weights)
            weights = self.dropout(weights)
            return torch.matmul(weights.to(values.dtype), values)
        rate = self.dropout.rate if self.training else 0.0
        return F.scaled_dot_product_attention(queries, keys, values, mask, rate, is_causal=causal)


def _weights(
    queries: Float[Tensor, "batch heads query d_k"],
    keys: Float[Tensor, "batch heads key d_k"],
    mask: Bool[Tensor, "#batch 1 #query key"] | None,
    causal: bool,
) -> Float[Tensor, "batch heads query key"]:
    """Return softmax(Q K^T / sqrt(d_k)) of each head."""
    scores = torch.matmul(queries * keys.size(3) ** -0.5, keys.transpose(2, 3))  # [batch, heads, query, key]
    if causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores = scores.masked_fill(later, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1)


def attention_mask(lengths: Tensor, device: torch.device) -> Bool[Tensor, "batch 1 1 source"] | None:
    """Return True for the tokens of each sentence and False for padding; None if there is no padding.

    Args:
        lengths: tokens of each sentence, on the CPU [batch].
    """
    longest = int(lengths.max())
    if bool((lengths == longest).all()):
        return None
    tokens = lengths.to(device, non_blocking=True)[:, None]  # from pinned memory, without a wait for the device
    return (torch.arange(longest, device=device) < tokens)[:, None, None, :]
