"""Exact counts of the floating-point operations of the model's matrix products.

A product of an (a x b) with a (b x c) matrix is 2abc operations. Attention counts the whole square of positions, or
the blocks of an attention window, as it is computed; softmax, normalisation and other element-wise work is left out, as
is usual.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.attention_window import AttentionWindow

Lengths = npt.NDArray[np.int64]
C = TypeVar("C", bound="Counters")

TRAINING_FACTOR = 3
"""Forward and backward: each product of the forward pass has two of the same size in the backward pass."""


@dataclass
class Counters:
    """Counters of an update, of a training so far, or of a predicted one; files use their names as keys.

    Attributes:
        target_tokens: target tokens trained on, without padding.
        flops: operations of the matrix products of forward and backward for real tokens.
        flops_attention: of these, the products of queries with keys and of weights with values.
        flops_padding: what padding adds to flops.
        flops_encoder, flops_decoder, flops_output: parts of flops: the layers of each, and the output embedding.
    """

    target_tokens: int = 0
    flops: int = 0
    flops_attention: int = 0
    flops_padding: int = 0
    flops_encoder: int = 0
    flops_decoder: int = 0
    flops_output: int = 0

    def __iadd__(self: C, other: "Counters") -> C:
        for name, value in other.counters().items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def counters(self) -> dict[str, int]:
        """Return the counters by name, without what subclasses add."""
        return {field.name: getattr(self, field.name) for field in fields(Counters)}


def forward_flops(
    config: ModelConfig,
    target_vocab: int,
    source_lengths: Lengths,
    target_lengths: Lengths,
    factor: int = 1,
    *,
    source_outputs: bool = False,
    head_size: int = 0,
) -> Counters:
    """Return the counters of one forward pass over sentence pairs of those lengths, without padding.

    Args:
        source_lengths, target_lengths: tokens of each pair, end symbols counted [pairs].
        factor: by which the operations are multiplied, such as TRAINING_FACTOR.
        source_outputs: a model without encoder predicts the tokens of the source, too.
        head_size: outputs of the head, for a model that predicts labels or actions and no target tokens.
    """
    width, keys, values = config.d_model, config.num_heads * config.key_width, config.num_heads * config.value_width
    source, target = int(source_lengths.sum()), int(target_lengths.sum())

    projections = 2 * width * (keys + values)  # of queries and output, or of keys and values, for one position
    scores = keys + values  # of Q K^T and of the weights times V, for one pair of positions
    feed_forward = 2 * width * config.d_ff

    # The stack of self-attention and feed-forward: the decoder without an encoder, or the encoder.
    num_layers, lengths, causal = config.encoder_layers, source_lengths, False
    if config.is_joined:
        # The end symbol of a source is not read.
        lengths, causal = source_lengths - 1 + target_lengths, config.source_attention == "causal"
        num_layers = config.decoder_layers
    kinds = [config.attention_kind(number) for number in range(num_layers)]
    attention = sum(2 * scores * _num_scores(config, kind, lengths, causal=causal) for kind in kinds)
    groups = int((lengths // config.compression).sum())  # an incomplete group is not compressed
    compression = kinds.count("compressed") * 2 * groups * config.compression * (keys**2 + values**2)
    layers = attention + compression + num_layers * 2 * int(lengths.sum()) * (projections + feed_forward)

    outputs = 0 if config.head != "none" else target
    if config.is_joined:
        encoder, encoder_attention, decoder, decoder_attention = 0, 0, layers, attention
        if not config.has_actions:  # of which nothing else is predicted
            outputs += (source - len(source_lengths)) * source_outputs
    else:
        encoder, encoder_attention = layers, attention
        kind = "full" if config.attention_window is None else "window"
        target_target = _num_scores(config, kind, target_lengths, causal=True)
        target_source = int((target_lengths * source_lengths).sum())
        decoder_attention = config.decoder_layers * 2 * (target_target + target_source) * scores
        # Attention to the source projects targets to queries and outputs, and sources to keys and values.
        decoder = decoder_attention + config.decoder_layers * (
            2 * target * (projections + feed_forward) + (target + source) * projections
        )
    output = 2 * width * (outputs * target_vocab + (target * head_size if config.head != "none" else 0))
    return Counters(
        target_tokens=target,
        flops=factor * (encoder + decoder + output),
        flops_attention=factor * (encoder_attention + decoder_attention),
        flops_encoder=factor * encoder,
        flops_decoder=factor * decoder,
        flops_output=factor * output,
    )


def _num_scores(config: ModelConfig, kind: str, lengths: Lengths, *, causal: bool) -> int:
    """Count the products of a query with a key in self-attention over sequences of these lengths."""
    if kind == "full":
        return int((lengths * lengths).sum())
    if kind == "compressed":
        # The memory has the first position and each complete group, see `MultiHeadAttention.memory`.
        return int((lengths * (1 + lengths // config.compression)).sum())
    window = AttentionWindow.of_kind(kind, config, causal=causal)
    # `num_scores` is called once per different length, of which there are few.
    different, counts = np.unique(lengths, return_counts=True)
    return sum(window.num_scores(int(length)) * int(count) for length, count in zip(different, counts, strict=True))


def padding_flops(config: ModelConfig, passes: Sequence[tuple[Lengths, Lengths]]) -> int:
    """Count the operations that padding adds to the forward passes of an update.

    These are operations of the layers, since the output product leaves padded positions out.

    Args:
        passes: tokens of source and target of the sequences of each forward pass, end symbols counted; all are padded
            to its longest ones.
    """
    if not passes:
        return 0
    padded = [(np.full_like(source, source.max()), np.full_like(target, target.max())) for source, target in passes]
    flops = []
    for lengths in padded, passes:
        sources, targets = zip(*lengths, strict=True)
        # With a vocabulary of 0, there is no output product.
        flops.append(forward_flops(config, 0, np.concatenate(sources), np.concatenate(targets)).flops)
    return flops[0] - flops[1]
