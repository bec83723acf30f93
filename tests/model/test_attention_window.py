"""Restricted self-attention is full attention under a mask, at a cost that grows with the length and not its square."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model import attention, attention_window
from nmtkit.model.attention import MultiHeadAttention, attention_mask
from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.transformer import Transformer

WIDTH, HEADS = 12, 2


def attention_of(window: int | None) -> MultiHeadAttention:
    torch.manual_seed(1)
    config = ModelConfig(d_model=WIDTH, num_heads=HEADS, d_k=5, d_v=3, attention_window=window)
    return MultiHeadAttention(config, config.attention_kind(0)).double()


def model_of(window: int | None, **changes: Any) -> Transformer:
    torch.manual_seed(2)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4, "dropout": 0.0}
    return Transformer(ModelConfig.model_validate({**sizes, "attention_window": window, **changes}), 31, 31).double()


def neighbours(position: int, length: int, size: int, causal: bool) -> set[int]:
    """The definition, in plain numbers."""
    last = position if causal else position + (size - 1) // 2
    return {other for other in range(position - size // 2, last + 1) if 0 <= other < length}


def masked_full_attention(ours: MultiHeadAttention, x: Tensor, lengths: list[int], size: int, causal: bool) -> Tensor:
    """torch's attention over all positions, under a mask made from the definition."""
    mask = torch.zeros(len(lengths), x.size(1), x.size(1), dtype=torch.bool)
    for row, length in enumerate(lengths):
        for position in range(x.size(1)):
            seen = {other for other in neighbours(position, x.size(1), size, causal) if causal or other < length}
            mask[row, position, list(seen | {position})] = True
    queries, (keys, values) = ours.queries(x), ours.keys_values(x)
    heads = F.scaled_dot_product_attention(queries, keys, values, mask[:, None])
    return ours.output(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("fewest_queries", "most_scores"), [(1, 2**26), (4, 0)])  # by plain products, and by torch's
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 100])
@pytest.mark.parametrize("lengths", [[23, 23], [23, 4, 17], [40], [1, 1], [64, 1]])
def test_it_equals_masked_full_attention_forward_and_backward(
    lengths: list[int], size: int, causal: bool, fewest_queries: int, most_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_window, "FEWEST_QUERIES", fewest_queries)
    monkeypatch.setattr(attention, "MOST_SCORES", most_scores)
    ours = attention_of(size)
    x = torch.randn(len(lengths), max(lengths), WIDTH, dtype=torch.float64)
    real = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])[..., None].double()
    upstream = torch.randn_like(x) * real  # nothing of the loss comes from padding
    mask = None if causal else attention_mask(torch.tensor(lengths), x.device)
    results = []
    for attend in (
        lambda x: ours.attend(ours.queries(x), *ours.keys_values(x), mask, causal),
        lambda x: masked_full_attention(ours, x, lengths, size, causal),
    ):
        ours.zero_grad()
        leaf = x.clone().requires_grad_()
        found = attend(leaf)
        (found * upstream).sum().backward()
        assert leaf.grad is not None
        gradients = [parameter.grad.clone() for parameter in ours.parameters() if parameter.grad is not None]
        assert len(gradients) == 8
        results.append([found * real, leaf.grad, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_who_looks_on_is_given_the_weights_of_the_whole_sequence() -> None:
    ours, x, seen = attention_of(9), torch.randn(1, 500, WIDTH, dtype=torch.float64), list[Tensor]()
    unwatched = ours.attend(ours.queries(x), *ours.keys_values(x))
    ours.watch = seen.append
    watched = ours.attend(ours.queries(x), *ours.keys_values(x))
    torch.testing.assert_close(watched, unwatched, rtol=1e-11, atol=1e-11)
    assert [weights.shape for weights in seen] == [(1, HEADS, 500, 500)]


@pytest.mark.parametrize("length", [30, 300])
def test_a_window_over_the_whole_sequence_is_no_window(length: int) -> None:
    source, lengths = torch.randint(4, 31, (2, length)), torch.tensor([length, length - 7])
    target = torch.randint(4, 31, (2, length))
    with torch.no_grad():
        expected = model_of(None)(source, lengths, target)
        torch.testing.assert_close(model_of(2 * length)(source, lengths, target), expected, rtol=1e-11, atol=1e-11)
        assert (model_of(5)(source, lengths, target) - expected).abs().max() > 1e-3


def test_source_attention_sees_the_whole_source() -> None:
    model = model_of(3, encoder_layers=1, decoder_layers=1)
    source, lengths, target = torch.randint(4, 31, (1, 20)), torch.tensor([20]), torch.randint(4, 31, (1, 20))
    changed = source.clone()
    changed[0, 19] = (source[0, 19] - 4 + 1) % 27 + 4
    with torch.no_grad():
        states, other = model.encode(source, lengths)[0], model.encode(changed, lengths)[0]
        assert torch.equal(states[:, :18], other[:, :18])
        assert (states[:, 18] - other[:, 18]).abs().max() > 1e-6
        difference = (model(source, lengths, target) - model(changed, lengths, target)).abs().amax(2)
    assert difference.min() > 1e-9


def test_padding_changes_nothing_and_leaves_no_gradient_undefined() -> None:
    model = model_of(6)
    source, target = torch.randint(4, 31, (2, 150)), torch.randint(4, 31, (2, 140))
    lengths = torch.tensor([150, 3])
    alone = model(source[1:, :3], lengths[1:], target[1:])
    together = model(source, lengths, target)
    torch.testing.assert_close(together[1:], alone, rtol=1e-11, atol=1e-11)
    together.sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)


def largest_kept(window: int | None, length: int) -> int:
    """Entries of the largest tensor that a training pass keeps for its backward pass."""
    ours, kept = attention_of(window), [0]
    x = torch.randn(1, length, WIDTH, dtype=torch.float64)

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        ours.attend(ours.queries(x), *ours.keys_values(x))
    return max(kept)


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    assert largest_kept(None, 1024) == HEADS * 1024 * 1024
    assert largest_kept(64, 1024) == HEADS * 1024 * (64 + 63)
    assert largest_kept(64, 2048) == 2 * largest_kept(64, 1024)


@pytest.mark.parametrize("size", [1, 8, 64, 200])
def test_scores_are_at_most_those_of_the_square_and_linear_in_the_length(size: int) -> None:
    window = AttentionWindow.of(size, causal=False)
    scores = [window.num_scores(length) for length in range(1, 3000)]
    assert all(found <= length**2 for length, found in enumerate(scores, start=1))
    assert scores == sorted(scores)
    assert window.num_scores(8 * 6400) == 8 * window.num_scores(6400)
