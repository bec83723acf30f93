"""Multi-head scaled dot-product attention."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

Heads = Float[Tensor, "batch heads length head_width"]


class MultiHeadAttention(nn.Module):
    """Attention of several heads, each with projections of its own, joined by one more projection.

    Source: "Attention Is All You Need", section 3.2.2. As there, queries, keys and values have separate matrices.
    """

    def __init__(self, d_model: int, num_heads: int, d_k: int, d_v: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, num_heads * d_k)
        self.key = nn.Linear(d_model, num_heads * d_k)
        self.value = nn.Linear(d_model, num_heads * d_v)
        self.output = nn.Linear(num_heads * d_v, d_model)

    def _split(self, x: Float[Tensor, "batch length joined"]) -> Float[Tensor, "batch heads length head_width"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def queries(self, x: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch heads query d_k"]:
        """The queries of each head."""
        return self._split(self.query(x))

    def keys_values(
        self, x: Float[Tensor, "batch key width"]
    ) -> tuple[Float[Tensor, "batch heads key d_k"], Float[Tensor, "batch heads key d_v"]]:
        """The keys and values of each head."""
        return self._split(self.key(x)), self._split(self.value(x))

    def attend(
        self,
        queries: Float[Tensor, "batch heads query d_k"],
        keys: Float[Tensor, "batch heads key d_k"],
        values: Float[Tensor, "batch heads key d_v"],
        mask: Bool[Tensor, "batch 1 1 key"] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "batch query width"]:
        """softmax(Q K^T / sqrt(d_k)) V of each head, joined and projected.

        Args:
            mask: True where a key may be attended to; None: everywhere.
            causal: whether a position sees only itself and those before it; not together with a mask.

        Source: equation 1.
        """
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(queries, keys, values, mask, dropout, is_causal=causal)
        joined = heads.transpose(1, 2).flatten(2)  # [batch, query, heads x d_v]
        projected: Tensor = self.output(joined)
        return projected


def attention_mask(lengths: Tensor, device: torch.device) -> Bool[Tensor, "batch 1 1 source"] | None:
    """True for the tokens of each sentence, False for padding; None when there is no padding.

    Args:
        lengths: tokens of each sentence, on the CPU [batch].
    """
    longest = int(lengths.max())
    if bool((lengths == longest).all()):
        return None
    return (torch.arange(longest) < lengths[:, None]).to(device)[:, None, None, :]
