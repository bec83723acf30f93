"""Multi-head scaled dot-product attention."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.dropout import Dropout

MOST_SCORES = 2**26
"""Scores of queries and keys that are held at once on a CPU: 256 MiB of float32."""
_QUERIES_AT_ONCE = 1024
"""Queries of a long sequence for which compressed attention is computed at once; memory then grows linearly."""


class MultiHeadAttention(nn.Module):
    """Attention of several heads with separate projections; one more projection joins them.

    Source: "Attention Is All You Need", section 3.2.2. As there, queries, keys and values have separate matrices.

    Attributes:
        watch: called with the weights of every call (see attention_weights.py); None: no observer.
        compression: number of positions whose keys and values become one; None: they are not compressed.
        compress_keys, compress_values: that convolution, whose stride is its kernel size, as a linear layer over the
            positions of a group.
    """

    def __init__(self, config: ModelConfig, kind: str = "full") -> None:
        """Args:
        kind: one that `ModelConfig.self_attention` names.
        """
        super().__init__()
        # cuDNN's attention, the first choice on an H100, takes some 30 ms to plan each new shape of a batch, and hardly
        # two batches have the same. (Measured by others, not here.)
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.num_heads = config.num_heads
        self.watch: Callable[[Tensor], None] | None = None
        self._kind, self._config = kind, config
        self.compression = config.compression if kind == "compressed" else None
        self.dropout = Dropout(config.attention_dropout)
        keys, values = config.num_heads * config.key_width, config.num_heads * config.value_width
        self.query = nn.Linear(config.d_model, keys)
        self.key = nn.Linear(config.d_model, keys)
        self.value = nn.Linear(config.d_model, values)
        self.output = nn.Linear(values, config.d_model)
        if self.compression is not None:
            self.compress_keys = nn.Linear(self.compression * keys, keys)
            self.compress_values = nn.Linear(self.compression * values, values)

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
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch query width"]:
        """Return the joined and projected results of the heads; arguments as for `heads`."""
        heads = self.heads(queries, keys, values, mask, causal, prefix)
        return self.output(heads.transpose(1, 2).flatten(2))

    def heads(
        self,
        queries: Float[Tensor, "batch heads query d_k"],
        keys: Float[Tensor, "batch heads key d_k"],
        values: Float[Tensor, "batch heads key d_v"],
        mask: Bool[Tensor, "batch 1 1 key"] | None = None,
        causal: bool = False,
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch heads query d_v"]:
        """Return softmax(Q K^T / sqrt(d_k)) V of each head, with a window over the neighbours only.

        Args:
            mask: True where a key may be attended to; None: everywhere.
            causal: a position sees only itself and earlier ones; not together with a mask.
            prefix: with ``causal``: lengths of the beginnings whose positions all see each other nevertheless.

        Source: equation 1.
        """
        if self.compression is not None:
            return self._attend_to_memory(queries, *self.memory(keys, values), mask, causal)
        length = queries.size(2)
        if self._kind != "full":
            # Positions of a prefix see later ones, too, so then the window keeps its later half.
            window = AttentionWindow.of_kind(self._kind, self._config, causal=causal and prefix is None)
        elif prefix is not None:  # every position is near
            window = AttentionWindow(length, length)
        else:
            return self._attend(queries, keys, values, mask, causal)
        # `watch` gets the weights of whole sequences; those of a block would be weights of its own keys only.
        if window.num_blocks(length) and self.watch is None:
            return window.join(self._attend(*window.cut(queries, keys, values, mask, causal, prefix)), length)
        return self._attend(queries, keys, values, window.mask(mask, length, queries.device, causal, prefix))

    def memory(
        self, keys: Float[Tensor, "batch heads key d_k"], values: Float[Tensor, "batch heads key d_v"]
    ) -> tuple[Float[Tensor, "batch heads memory d_k"], Float[Tensor, "batch heads memory d_v"]]:
        """Return the keys and values of the first position and of each complete group of ``compression`` positions.

        The paper projects first and convolves then, which is done here; that the first position is part of the memory,
        so that no query sees nothing, is from the authors' code (tensor2tensor, multihead_self_attention_reduced).

        Source: Liu et al. 2018 (arXiv 1801.10198), section 4.2.4.
        """
        return self._compress(keys, self.compress_keys), self._compress(values, self.compress_values)

    def _compress(
        self, x: Float[Tensor, "batch heads key head_width"], linear: nn.Linear
    ) -> Float[Tensor, "batch heads memory head_width"]:
        assert self.compression is not None
        groups = x.size(2) // self.compression
        joined = x.transpose(1, 2)[:, : groups * self.compression].reshape(x.size(0), groups, linear.in_features)
        return torch.cat([x[:, :, :1], self._split(linear(joined)).to(x.dtype)], 2)

    def by_token(
        self, weights: Float[Tensor, "batch heads query memory"], length: int
    ) -> Float[Tensor, "batch heads query key"]:
        """Return weights as those of ``length`` tokens; the weight of a compressed group is shared by its tokens."""
        if self.compression is None:
            return weights
        shared = weights[..., 1:].repeat_interleave(self.compression, -1) / self.compression
        # Positions after the last complete group are in no memory.
        shared = F.pad(shared, (0, length - shared.size(-1)))
        shared[..., :1] += weights[..., :1]  # the first position is in the memory by itself, too
        return shared

    def _attend_to_memory(
        self,
        queries: Float[Tensor, "batch heads query d_k"],
        keys: Float[Tensor, "batch heads memory d_k"],
        values: Float[Tensor, "batch heads memory d_v"],
        mask: Bool[Tensor, "batch 1 1 query"] | None,
        causal: bool,
    ) -> Float[Tensor, "batch heads query d_v"]:
        """Attend to compressed positions: to groups without padding, and if causal to those before the query."""
        assert self.compression is not None
        length, memory, device = queries.size(2), keys.size(2), queries.device
        if not causal:
            if mask is not None:  # the last position of a group is real only if all are
                mask = F.pad(mask[..., self.compression - 1 :: self.compression], (1, 0), value=True)[..., :memory]
            return self._attend(queries, keys, values, mask)
        begins = self.compression * torch.arange(memory, device=device)  # first query that sees each
        seen = begins <= torch.arange(length, device=device)[:, None]  # [query, memory]
        is_long = queries.shape[:3].numel() * memory > MOST_SCORES
        if not is_long or self.watch is not None or device.type != "cpu":
            return self._attend(queries, keys, values, seen[None, None])
        rate = self.dropout.rate if self.training else 0.0
        chunks = []
        for start in range(0, length, _QUERIES_AT_ONCE):
            stop = min(start + _QUERIES_AT_ONCE, length)
            # None of these queries sees what comes after `last` in the memory, so it is left out.
            last = (stop - 1) // self.compression + 1
            chunks.append(
                F.scaled_dot_product_attention(
                    queries[:, :, start:stop], keys[:, :, :last], values[:, :, :last], seen[start:stop, :last], rate
                )
            )
        return torch.cat(chunks, 2)

    def _attend(
        self,
        queries: Float[Tensor, "batch heads query d_k"],
        keys: Float[Tensor, "batch heads key d_k"],
        values: Float[Tensor, "batch heads key d_v"],
        mask: Bool[Tensor, "#batch 1 #query key"] | None,
        causal: bool = False,
    ) -> Float[Tensor, "batch heads query d_v"]:
        """Return softmax(Q K^T / sqrt(d_k)) V of each head without windows, on a CPU by plain matrix products.

        These are several times faster there for sentences than torch's fused attention, which is used elsewhere and
        where the scores would take too much memory.
        """
        num_scores = queries.shape[:3].numel() * keys.size(2)
        if self.watch is None and (queries.device.type != "cpu" or num_scores > MOST_SCORES):
            # This function, unlike a module, does not know whether the model is in training.
            rate = self.dropout.rate if self.training else 0.0
            return F.scaled_dot_product_attention(queries, keys, values, mask, rate, is_causal=causal)
        # One name for scores and weights, so that only one of these large tensors is held at a time.
        weights = torch.matmul(queries * keys.size(3) ** -0.5, keys.transpose(2, 3))  # [batch, heads, query, key]
        if causal:
            assert mask is None
            mask = torch.ones(weights.shape[2:], dtype=torch.bool, device=weights.device).tril_()
        if mask is not None:
            weights += mask_bias(mask, weights.dtype)
        weights = torch.softmax(weights, dim=-1)
        if self.watch is not None:
            self.watch(weights)
        weights = self.dropout(weights)
        return torch.matmul(weights.to(values.dtype), values)


def mask_bias(mask: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """Return the summand of scores that masks them: 0 where a key may be attended to, else minus infinity.

    An addition takes a quarter of the time of `masked_fill`, which torch does not vectorize, and its gradient no time.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def attention_mask(lengths: Tensor, device: torch.device) -> Bool[Tensor, "batch 1 1 source"] | None:
    """Return True for the tokens of each sentence and False for padding, given the lengths [batch] on the CPU.

    The mask is None if there is no padding.
    """
    longest = int(lengths.max())
    if bool((lengths == longest).all()):  # torch's flash attention takes no mask, so none is made without need
        return None
    tokens = lengths.to(device, non_blocking=True)[:, None]  # from pinned memory, without a wait for the device
    return (torch.arange(longest, device=device) < tokens)[:, None, None, :]
