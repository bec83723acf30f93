"""The attention weights that are shown are those that the model computes with."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.attention_weights import AttentionWeights, attention_weights
from nmtkit.model.transformer import Transformer

SOURCE, TARGET_IN = torch.tensor([[5, 9, 4, 4, 3]]), torch.tensor([[2, 7, 8, 6]])
KINDS = {"encoder": ("encoder", "self_attention"), "decoder": ("decoder", "self_attention"),
         "cross": ("decoder", "source_attention")}  # fmt: skip


@pytest.fixture(params=["post", "pre"])
def model(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(3)
    config = ModelConfig(
        encoder_layers=3, decoder_layers=2, d_model=16, d_ff=32, num_heads=4, norm=request.param, dropout=0.3
    )
    model = Transformer(config, 20, 20).double().requires_grad_(False).eval()
    for table in model.embeddings.values():  # so that attention is far from even
        nn.init.normal_(table, std=1.0)
    return model


def found(model: Transformer) -> AttentionWeights:
    return attention_weights(model, SOURCE, TARGET_IN)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_times_values_are_what_the_sublayer_goes_on_with(model: Transformer, kind: str) -> None:
    part, name = KINDS[kind]
    attentions: list[MultiHeadAttention] = [getattr(layer, name) for layer in getattr(model, part)]
    values: list[Tensor] = []
    joined: list[Tensor] = []
    hooks: list[Any] = []
    for attention in attentions:
        hooks.append(attention.value.register_forward_hook(lambda module, given, made: values.append(made)))
        hooks.append(attention.output.register_forward_hook(lambda module, given, made: joined.append(given[0])))
    model.decode(TARGET_IN, *model.encode(SOURCE, torch.tensor([5])))  # a pass that nobody watches
    for hook in hooks:
        hook.remove()
    weights: Tensor = getattr(found(model), kind)
    assert len(values) == len(attentions) == weights.size(0)
    for layer, (value, used) in enumerate(zip(values, joined, strict=True)):
        of_heads = value.unflatten(-1, (4, -1)).transpose(1, 2)[0]  # [heads, key, d_v]
        torch.testing.assert_close((weights[layer] @ of_heads).transpose(0, 1).flatten(1), used[0])
    assert float(weights.std()) > 0.05


def test_weights_are_of_one_and_see_nothing_later(model: Transformer) -> None:
    weights = found(model)
    assert weights.encoder.shape == (3, 4, 5, 5)
    assert weights.decoder.shape == (2, 4, 4, 4)
    assert weights.cross.shape == (2, 4, 4, 5)
    for kind in KINDS:
        rows = getattr(weights, kind).sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))
    assert not weights.decoder.triu(1).any()


def test_looking_on_changes_nothing_and_ends(model: Transformer) -> None:
    before = model(SOURCE, torch.tensor([5]), TARGET_IN)
    first, second = found(model), found(model)
    assert torch.equal(model(SOURCE, torch.tensor([5]), TARGET_IN), before)
    assert all(torch.equal(getattr(first, kind), getattr(second, kind)) for kind in KINDS)
    with pytest.raises(IndexError):
        attention_weights(model, SOURCE + 100, TARGET_IN)
    assert all(module.watch is None for module in model.modules() if isinstance(module, MultiHeadAttention))


def test_weights_are_taken_where_torch_would_attend_by_itself(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = found(model)
    monkeypatch.setattr("nmtkit.model.attention.MOST_SCORES", 0)
    assert all(torch.equal(getattr(found(model), kind), getattr(expected, kind)) for kind in KINDS)
