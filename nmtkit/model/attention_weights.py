"""Attention weights of a model for one sentence pair, recorded during a forward pass."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.transformer import Transformer


@dataclass(frozen=True)
class AttentionWeights:
    """Attention weights of every layer and head.

    Attributes:
        encoder: of the encoder to itself.
        decoder: of the decoder to itself; 0 for later positions.
        cross: of the decoder to the encoder's states.
    """

    encoder: Float[Tensor, "encoder_layers heads source source"]
    decoder: Float[Tensor, "decoder_layers heads target target"]
    cross: Float[Tensor, "decoder_layers heads target source"]


@torch.no_grad()
def attention_weights(
    model: Transformer, source: Int[Tensor, "1 source"], target_in: Int[Tensor, "1 target"]
) -> AttentionWeights:
    """Return the weights of a forward pass over a pair, with a model in evaluation mode, as `load_model` leaves it.

    Args:
        source: source ids with the end symbol.
        target_in: begin symbol and target ids.
    """
    assert not model.training, "dropout would change the weights"
    kinds: dict[str, list[MultiHeadAttention]] = {
        "encoder": _of_each(model.encoder, "self_attention"),
        "decoder": _of_each(model.decoder, "self_attention"),
        "cross": _of_each(model.decoder, "source_attention"),
    }
    seen: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
    for kind, attentions in kinds.items():
        for attention in attentions:
            attention.watch = seen[kind].append
    try:
        lengths = torch.tensor([source.size(1)])
        model.decode(target_in, *model.encode(source, lengths))
    finally:
        for attentions in kinds.values():
            for attention in attentions:
                attention.watch = None
    return AttentionWeights(*(torch.cat(seen[kind]) for kind in ("encoder", "decoder", "cross")))


def _of_each(layers: nn.ModuleList, name: str) -> list[MultiHeadAttention]:
    return [getattr(layer, name) for layer in layers]
