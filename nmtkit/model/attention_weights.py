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

    Without an encoder these are the parts of the one self-attention: of the source (then without end symbol) to itself,
    of the target to itself, and of the target to the source.

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
    kinds: dict[str, list[MultiHeadAttention]] = {"decoder": _of_each(model.decoder, "self_attention")}
    if not model.config.is_joined:
        kinds["encoder"] = _of_each(model.encoder, "self_attention")
        kinds["cross"] = _of_each(model.decoder, "source_attention")
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
    found = {
        kind: torch.cat([a.by_token(w, w.size(2)) for a, w in zip(attentions, seen[kind], strict=True)])
        for kind, attentions in kinds.items()
    }
    if model.config.is_joined:
        both, end = found["decoder"], source.size(1) - 1
        return AttentionWeights(both[:, :, :end, :end], both[:, :, end:, end:], both[:, :, end:, :end])
    return AttentionWeights(**found)


def _of_each(layers: nn.ModuleList, name: str) -> list[MultiHeadAttention]:
    return [getattr(layer, name) for layer in layers]
