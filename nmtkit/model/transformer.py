"""The Transformer of "Attention Is All You Need": encoder and decoder, for whole sentences.

Training and forced decoding call it directly; a search, which generates one token at a time, uses ``step_decoder.py``.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.attention import MultiHeadAttention, attention_mask
from nmtkit.model.dropout import Dropout
from nmtkit.text.vocabulary import BOS, EOS


def sinusoidal_positions(length: int, d_model: int) -> Float[Tensor, "length width"]:
    """Return PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same), positions from 0; float64.

    Source: section 3.5.
    """
    # In float32, angles above 512 radians would be rounded to multiples of 6e-5.
    positions = torch.arange(length, dtype=torch.float64)[:, None]
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = torch.sin(positions * frequencies)
    table[:, 1::2] = torch.cos(positions * frequencies)
    return table


def fairseq_positions(length: int, d_model: int) -> Float[Tensor, "length width"]:
    """Return sin(p f_i) in the first half of the width and cos(p f_i) in the second, for p = 2, 3, ..; float64.

    f_i = 10000^(-i/(d_model/2 - 1)). Angles are float32, as in fairseq and transformers.

    Source: fairseq's sinusoidal_positional_embedding.py, which follows tensor2tensor. Positions begin after the id of
    the padding, which is 1.
    """
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000.0) / (half - 1)))
    angles = torch.arange(2, length + 2).float()[:, None] * frequencies
    return torch.cat([torch.sin(angles), torch.cos(angles)], 1).double()


def position_table(config: ModelConfig, length: int) -> Float[Tensor, "length width"]:
    """Return the encodings of the first positions of a model without learned ones; float64."""
    of_kind = fairseq_positions if config.positions == "fairseq" else sinusoidal_positions
    return of_kind(length, config.d_model)


class Residual(nn.Module):
    """The connection around a sub-layer: post-norm LayerNorm(x + Dropout(Sublayer(x))), as in section 3.1 and 5.4, or
    pre-norm x + Dropout(Sublayer(LayerNorm(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(
        self, x: Float[Tensor, "batch length width"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length width"]:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": partial(F.gelu, approximate="tanh"), "silu": F.silu,
}  # fmt: skip
"""Functions by the value of `ModelConfig.activation`."""


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, at each position alike, or with another activation. Source: equation 2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.ffn_dropout)
        self.activation = config.activation

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        return self.outer(self.dropout(ACTIVATIONS[self.activation](self.inner(x))))


class SelfAttentionLayer(nn.Module):
    """Self-attention and feed-forward: a layer of an encoder, or with causal attention of a decoder without encoder."""

    def __init__(self, config: ModelConfig, number: int = 0) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, config.attention_kind(number))
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "batch source width"],
        mask: Bool[Tensor, "batch 1 1 source"] | None = None,
        causal: bool = False,
        prefix: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch source width"]:
        attention = self.self_attention
        x = self.residuals[0](
            x, lambda x: attention.attend(attention.queries(x), *attention.keys_values(x), mask, causal, prefix)
        )
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, and feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, "full" if config.attention_window is None else "window")
        self.source_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "batch target width"],
        source: Float[Tensor, "batch source width"],
        source_mask: Bool[Tensor, "batch 1 1 source"] | None,
    ) -> Float[Tensor, "batch target width"]:
        attention = self.source_attention
        x = self.residuals[0](x, self._attend_to_self)
        x = self.residuals[1](
            x, lambda x: attention.attend(attention.queries(x), *attention.keys_values(source), source_mask)
        )
        return self.residuals[2](x, self.feed_forward)

    def _attend_to_self(self, x: Float[Tensor, "batch target width"]) -> Float[Tensor, "batch target width"]:
        keys, values = self.self_attention.keys_values(x)  # before the queries: the order of sums of gradients
        return self.self_attention.attend(self.self_attention.queries(x), keys, values, causal=True)


class Transformer(nn.Module):
    """Encoder and decoder with their embeddings.

    Attributes:
        config: the sizes.
        embeddings: "shared"; or "source" and "target"; or those and "output", as `share_embeddings` states.
    """

    _sinusoids: Tensor

    def __init__(self, config: ModelConfig, source_vocab: int, target_vocab: int) -> None:
        super().__init__()
        assert config.share_embeddings != "all" or source_vocab == target_vocab or config.head != "none"
        self.config = config
        sizes = config.embedding_sizes(source_vocab, target_vocab)
        self.embeddings = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(size, config.d_model)) for name, size in sizes.items()}
        )
        self.output_bias: nn.Parameter | None = None
        if config.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(self.output_embedding.size(0)))
        self.positions: nn.ParameterDict | None = None
        if config.positions == "learned":
            sides = ("target",) if config.is_joined else ("source", "target")
            self.positions = nn.ParameterDict(
                {side: nn.Parameter(torch.empty(config.max_positions, config.d_model)) for side in sides}
            )
        # Not persistent, as a checkpoint needs no values that can be computed.
        self.register_buffer("_sinusoids", torch.empty(0, config.d_model), persistent=False)
        self.dropout = Dropout(config.dropout)
        is_pre = config.norm == "pre"
        self.sides: nn.Parameter | None = None  # vectors that tell source from target in one sequence
        if config.target_positions == "restarted":
            self.sides = nn.Parameter(torch.empty(2, config.d_model))
        if config.is_joined:
            self.encoder = nn.ModuleList()
            self.decoder = nn.ModuleList(SelfAttentionLayer(config, number) for number in range(config.decoder_layers))
        else:
            self.encoder = nn.ModuleList(SelfAttentionLayer(config, number) for number in range(config.encoder_layers))
            self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
            # The sum that a pre-norm layer returns is not normalised; that of a post-norm layer is.
            self.encoder_norm = nn.LayerNorm(config.d_model) if is_pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model) if is_pre else nn.Identity()
        if config.head != "none":
            self.head = nn.Linear(config.d_model, config.head_size(target_vocab))
        self.initialize()

    def initialize(self) -> None:
        """Set the weights of linear layers and the embeddings as `initialization` states, and biases 0."""
        if next(self.parameters()).is_meta:  # no values; torch would import many modules to draw none
            return
        is_normal = self.config.initialization == "normal"
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if is_normal:
                    nn.init.normal_(module.weight, std=0.02)
                else:
                    nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        tables = [module.weight for module in self.modules() if isinstance(module, nn.Embedding)]
        tables += [*self.embeddings.values(), *(self.positions or {}).values()]
        if self.sides is not None:
            tables.append(self.sides)
        for table in tables:
            # Xavier: times `embedding_factor` = sqrt(d_model), the entries have a standard deviation of 1.
            nn.init.normal_(table, std=0.02 if is_normal else self.config.d_model**-0.5)

    @property
    def embedding_factor(self) -> float:
        """Factor of embeddings before positions are added. Source: section 3.4."""
        return math.sqrt(self.config.d_model) if self.config.embedding_scale else 1.0

    @property
    def output_embedding(self) -> Float[Tensor, "vocab width"]:
        """Matrix that turns decoder states into logits."""
        return next(self.embeddings[name] for name in ("output", "target", "shared") if name in self.embeddings)

    def output_product(
        self, states: Float[Tensor, "tokens width"]
    ) -> tuple[Float[Tensor, "tokens columns"], Float[Tensor, "vocab columns"]]:
        """Return two matrices x and y with x y^T = logits: a bias is another column of y, with 1 in x."""
        if self.output_bias is None:
            return states, self.output_embedding
        table = torch.cat([self.output_embedding, self.output_bias[:, None]], 1)
        return torch.cat([states, states.new_ones(len(states), 1)], 1), table

    def read_ids(self, ids: Int[Tensor, "*batch"], side: str) -> Int[Tensor, "*batch"]:
        """Return the ids whose embeddings are read; they differ at the beginning of the target (`decoder_start`)."""
        if side == "target" and self.config.decoder_start == "eos":
            return ids.masked_fill(ids == BOS, EOS)
        return ids

    def embed(self, ids: Int[Tensor, "batch length"], side: str) -> Float[Tensor, "batch length width"]:
        table = self.embeddings["shared" if "shared" in self.embeddings else side]
        x = F.embedding(self.read_ids(ids, side), table) * self.embedding_factor
        return self.dropout(x + self.position_rows(side, 0, ids.size(1)).to(x.dtype))

    def position_rows(self, side: str, first: int, length: int) -> Float[Tensor, "length width"]:
        """Return the encodings of consecutive positions from ``first`` on."""
        end = first + length
        if self.positions is not None:
            assert end <= self.config.max_positions, "the caller cuts sentences to max_positions"
            return self.positions[side][first:end]
        table = self._sinusoids  # read once: another thread may replace it by a larger or smaller one
        if table.size(0) < end:
            # At least doubled, as a search needs one more position per step.
            longer = position_table(self.config, max(end, 512, 2 * table.size(0)))
            table = self._sinusoids = longer.to(self.output_embedding)
        return table[first:end]

    def encode(
        self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch source width"], Bool[Tensor, "batch 1 1 source"] | None]:
        """Return the encoder's states, and a mask that is True for tokens (None: no padding)."""
        x, mask = self.embed(source, "source"), attention_mask(source_lengths, source.device)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def decode(
        self,
        target_in: Int[Tensor, "batch target"],
        source: Float[Tensor, "batch source width"],
        source_mask: Bool[Tensor, "batch 1 1 source"] | None,
    ) -> Float[Tensor, "batch target width"]:
        """Return the decoder's states at all positions of whole targets, each seeing only the positions up to itself.

        Args:
            target_in: begin symbol and target tokens.
            source, source_mask: results of `encode`.
        """
        x = self.embed(target_in, "target")
        for layer in self.decoder:
            x = layer(x, source, source_mask)
        return self.decoder_norm(x)

    def logits(self, states: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocab"]:
        """Return the scores of all vocabulary entries before the softmax."""
        return F.linear(states, self.output_embedding, self.output_bias)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        """Return the logits for every target position, each seeing only the positions up to itself."""
        return self.logits(self.decode(target_in, *self.encode(source, source_lengths)))
