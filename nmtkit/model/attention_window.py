"""Restricted self-attention: the neighbours of a position, and the blocks of queries that it is computed in.

With a window, position i sees the r positions from i - floor(r / 2) to i + floor((r - 1) / 2), itself included; with
local attention it sees its block of the sequence; in a decoder those after i are masked. A long sequence is cut into
blocks of queries, each with the keys that any of them sees, so work and memory grow with length x r; a short one is
computed whole, with a mask.

    queries  [ block 0 | block 1 | block 2 ]
    keys     [-- of block 0 --]
                   [-- of block 1 --]
                             [-- of block 2 --]
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig

FEWEST_QUERIES = 64
"""Minimum number of queries per block, so that a small neighbourhood does not lead to many tiny products."""


@dataclass(frozen=True)
class AttentionWindow:
    """The neighbourhood of a position.

    Attributes:
        before, after: number of visible neighbours on either side; of a block, where positions see that.
        local_block: positions per block of local attention, whose positions see the same others; None: a window.

    Source: "Attention Is All You Need", section 4: "a neighborhood of size r in the input sequence centered around the
    respective output position"; for blocks Liu et al. 2018 (arXiv 1801.10198), section 4.2.4.
    """

    before: int
    after: int
    local_block: int | None = None

    @classmethod
    def of(cls, size: int, *, causal: bool) -> "AttentionWindow":
        """Return the neighbourhood of ``size`` positions, in a decoder without the later ones."""
        return cls(size // 2, 0 if causal else (size - 1) // 2)

    @classmethod
    def of_kind(cls, kind: str, config: ModelConfig, *, causal: bool) -> "AttentionWindow":
        """Return the neighbourhood of a kind that `ModelConfig.self_attention` names: "window" or "local"."""
        if kind == "local":
            return cls(config.local_block if config.local_previous_block else 0, 0, config.local_block)
        assert config.attention_window is not None
        return cls.of(config.attention_window, causal=causal)

    @property
    def block(self) -> int:
        """Number of queries in a block."""
        return self.local_block or max(FEWEST_QUERIES, self.before + 1 + self.after)

    def _sees(
        self,
        query: Int[Tensor, "#blocks query 1"],
        key: Int[Tensor, "#blocks 1 key"],
        causal: bool,
        prefix: Int[Tensor, " batch"] | None,
    ) -> Bool[Tensor, "#batch blocks query key"]:
        """Return whether queries may see keys, given the positions of both; other arguments as for `mask`."""
        if self.local_block is None:
            away = key - query
            near = (-self.before <= away) & (away <= self.after)
        else:
            first = query // self.local_block * self.local_block
            near = (first - self.before <= key) & (key < first + self.local_block)
        if not causal:
            return near[None]
        allowed = (key <= query)[None]
        if prefix is not None:
            length = prefix[:, None, None, None]
            allowed = allowed | ((query < length) & (key < length))
        return near & allowed

    @property
    def keys_of_block(self) -> int:
        """Number of keys that the queries of a block see together."""
        return self.before + self.block + self.after

    def num_blocks(self, length: int) -> int:
        """Return the number of blocks of a sequence; 0: it is computed whole, which takes fewer products."""
        blocks = -(-length // self.block)
        return blocks if blocks * self.block * self.keys_of_block < length * length else 0

    def num_scores(self, length: int) -> int:
        """Return the number of products of a query with a key that are computed for a sequence."""
        blocks = self.num_blocks(length)
        return blocks * self.block * self.keys_of_block if blocks else length * length

    def mask(
        self,
        mask: Bool[Tensor, "batch 1 1 key"] | None,
        length: int,
        device: torch.device,
        causal: bool = False,
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> Bool[Tensor, "#batch 1 key key"]:
        """Return the mask of a whole sequence.

        Args:
            mask: True where a key is no padding. A position of padding still sees itself: softmax over nothing is not a
                number, and results at padding are unused.
            causal: a position sees only itself and earlier ones.
            prefix: with ``causal``: lengths of the beginnings whose positions all see each other nevertheless.
        """
        key = torch.arange(length, device=device)[None, None]  # [blocks, 1, key]
        query = key.transpose(1, 2)
        seen = self._sees(query, key, causal, prefix)
        return seen if mask is None else (seen & mask) | (key == query)

    def cut(
        self,
        queries: Float[Tensor, "batch heads length d_k"],
        keys: Float[Tensor, "batch heads length d_k"],
        values: Float[Tensor, "batch heads length d_v"],
        mask: Bool[Tensor, "batch 1 1 length"] | None,
        causal: bool = False,
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> tuple[
        Float[Tensor, "blocks heads query d_k"],
        Float[Tensor, "blocks heads key d_k"],
        Float[Tensor, "blocks heads key d_v"],
        Bool[Tensor, "blocks 1 query key"],
    ]:
        """Return queries, keys, values and mask of all blocks; the last block of a sequence is padded."""
        batch, length, device = queries.size(0), queries.size(2), queries.device
        blocks = self.num_blocks(length)
        surplus = blocks * self.block - length

        def around(x: Tensor) -> Tensor:
            """Return the visible keys or values of each block [blocks, heads, key, width]."""
            padded = F.pad(x, (0, 0, self.before, self.after + surplus))
            # The blocks overlap: `unfold` makes views, and only `flatten` copies.
            seen = padded.unfold(2, self.keys_of_block, self.block)  # [batch, heads, blocks, width, key]
            return seen.permute(0, 2, 1, 4, 3).flatten(0, 1)

        own = F.pad(queries, (0, 0, 0, surplus)).unflatten(2, (blocks, self.block))
        own = own.transpose(1, 2).flatten(0, 1)  # [blocks, heads, query, d_k]
        real = torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask[:, 0, 0]
        real = F.pad(real, (self.before, self.after + surplus)).unfold(1, self.keys_of_block, self.block)
        first = self.block * torch.arange(blocks, device=device)[:, None, None]
        key = first - self.before + torch.arange(self.keys_of_block, device=device)  # [blocks, 1, key]
        query = first + torch.arange(self.block, device=device)[:, None]  # [blocks, query, 1]
        near = self._sees(query, key, causal, prefix)
        # As in `mask`, a query of padding sees itself, since softmax over nothing is not a number.
        seen = (near & real[:, :, None]) | (key == query)  # [batch, blocks, query, key]
        return own, around(keys), around(values), seen.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]

    def join(
        self, blocks: Float[Tensor, "blocks heads query d_v"], length: int
    ) -> Float[Tensor, "batch heads length d_v"]:
        """Join the results of the blocks into sequences."""
        sequences = blocks.unflatten(0, (-1, self.num_blocks(length))).transpose(1, 2).flatten(2, 3)
        return sequences[:, :, :length]
