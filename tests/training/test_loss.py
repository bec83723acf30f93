import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.data.batch import Batch, batch_of
from nmtkit.model.transformer import Transformer
from nmtkit.training import loss as objective
from nmtkit.training.loss import _RDropLoss, batch_loss, smoothed_loss

SMOOTHINGS = [0.0, 0.1, 0.3, 0.9]
AS_THEY_ARE = torch.eye(11, dtype=torch.float64)
"""An output matrix under which the decoder's states are the logits."""
PAIRS = [([4, 5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9, 4]), ([9, 9, 8], [4, 4, 4])]


def tokens_and_logits() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(0, 11, (9,)), 3 * torch.randn(9, 11, dtype=torch.float64)


def tiny_model(dtype: torch.dtype = torch.float64, **changes: object) -> Transformer:
    torch.manual_seed(2)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "dropout": 0.0}
    model = Transformer(ModelConfig.model_validate({**sizes, **changes}), 12, 12).to(dtype)
    if model.output_bias is not None:
        torch.nn.init.normal_(model.output_bias)
    return model


def batch(pairs: list[tuple[list[int], list[int]]] = PAIRS) -> Batch:
    return batch_of([source for source, _ in pairs], [target for _, target in pairs])


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
def test_the_loss_equals_torchs_cross_entropy_in_value_and_gradient(label_smoothing: float) -> None:
    targets, values = tokens_and_logits()
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    loss, _ = smoothed_loss(ours, AS_THEY_ARE, targets, label_smoothing)
    expected = F.cross_entropy(theirs, targets, label_smoothing=label_smoothing, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=1e-13)
    # Not the gradient of the loss itself but of something that follows from it, as in the training loop.
    (loss / 7).backward()
    (expected / 7).backward()
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
def test_nll_is_unsmoothed_and_has_no_gradient(label_smoothing: float) -> None:
    targets, values = tokens_and_logits()
    loss, nll = smoothed_loss(values.requires_grad_(), AS_THEY_ARE, targets, label_smoothing)
    expected = F.cross_entropy(values.detach(), targets, reduction="sum")
    torch.testing.assert_close(nll, expected, rtol=1e-13, atol=0)
    assert loss.requires_grad and not nll.requires_grad
    assert (loss.item() == pytest.approx(nll.item(), rel=1e-12)) == (label_smoothing == 0)


@pytest.mark.parametrize("at_once", [1, 25, 1000])
def test_the_loss_is_the_same_however_many_logits_are_held_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    targets, _ = tokens_and_logits()
    values = [torch.randn(9, 4, dtype=torch.float64), torch.randn(11, 4, dtype=torch.float64)]
    states, table = (value.clone().requires_grad_() for value in values)
    monkeypatch.setitem(objective._LOGITS_AT_ONCE, "cpu", at_once)
    loss, nll = smoothed_loss(states, table, targets, 0.1)
    (3 * loss).backward()
    other_states, other_table = (value.clone().requires_grad_() for value in values)
    expected = F.cross_entropy(other_states @ other_table.T, targets, label_smoothing=0.1, reduction="sum")
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    assert nll.item() == pytest.approx(F.cross_entropy(values[0] @ values[1].T, targets, reduction="sum").item())
    for mine, theirs in [(states, other_states), (table, other_table)]:
        assert mine.grad is not None and theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("at_once", [1, 44, 10**6])
@pytest.mark.parametrize("alpha", [None, 5.0])
def test_gradients_of_rounded_products_are_near_the_exact_ones(
    alpha: float | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(objective._LOGITS_AT_ONCE, "cpu", at_once)
    torch.manual_seed(3)
    targets, _ = tokens_and_logits()
    values = [torch.randn(9, 4), torch.randn(9, 4), torch.randn(11, 4)]
    first, second, table = (value.clone().requires_grad_() for value in values)
    with torch.autocast("cpu", torch.bfloat16):
        if alpha is None:
            loss, _ = smoothed_loss(first, table, targets, 0.1)
        else:
            loss, _ = _RDropLoss.apply(first, second, table, targets, 0.1, alpha)
    (3 * loss).backward()
    exact = [value.double().requires_grad_() for value in values]
    logits = [states @ exact[2].T for states in exact[:2]]
    expected = F.cross_entropy(logits[0], targets, label_smoothing=0.1, reduction="sum")
    if alpha is not None:
        expected = (expected + F.cross_entropy(logits[1], targets, label_smoothing=0.1, reduction="sum")) / 2
        log_p, log_q = (one.log_softmax(1) for one in logits)
        expected = expected + alpha / 4 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()
    (3 * expected).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=0.01, atol=0)
    for mine, theirs in zip((first, second, table), exact, strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None and theirs.grad is not None:
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=0.02, atol=0.02 * theirs.grad.abs().max())


def test_without_a_gradient_the_loss_is_the_same() -> None:
    targets, values = tokens_and_logits()
    expected = smoothed_loss(values.requires_grad_(), AS_THEY_ARE, targets, 0.1)
    with torch.inference_mode():
        found = smoothed_loss(values, AS_THEY_ARE, targets, 0.1)
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert not found[0].requires_grad


def test_very_unlikely_tokens_have_a_finite_loss_and_gradient() -> None:
    logits = torch.tensor([[0.0, 2000.0, -2000.0], [500.0, 500.0, 500.0]], requires_grad=True)
    loss, nll = smoothed_loss(logits, torch.eye(3), torch.tensor([2, 0]), 0.1)
    loss.backward()
    assert nll.item() == pytest.approx(4000 + 1.0986, rel=1e-5)
    assert loss.item() == pytest.approx(0.9 * 4000 + 0.1 * 6000 / 3 + 1.0986, rel=1e-5)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0], torch.tensor([-0.1 / 3, 1 - 0.1 / 3, -0.9 - 0.1 / 3]))


@pytest.mark.parametrize("changes", [{}, {"output_bias": True, "share_embeddings": "none"}], ids=str)
@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
def test_batch_loss_equals_a_straightforward_computation_with_its_gradients(
    label_smoothing: float, changes: dict[str, object]
) -> None:
    model, reference = tiny_model(**changes), tiny_model(**changes)
    loss, nll = batch_loss(model, batch(), label_smoothing)
    loss.backward()
    expected, expected_nll = torch.zeros(2, dtype=torch.float64)
    for source, target in PAIRS:  # one at a time, so without padding
        ids, target_in = torch.tensor([[*source, 3]]), torch.tensor([[2, *target]])
        log_probs = torch.log_softmax(reference(ids, torch.tensor([len(source) + 1]), target_in)[0], 1)
        for position, token in enumerate([*target, 3]):
            uniform = log_probs[position].mean()
            expected = expected - (1 - label_smoothing) * log_probs[position, token] - label_smoothing * uniform
            expected_nll = expected_nll - log_probs[position, token]
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(nll, expected_nll.detach(), rtol=1e-12, atol=0)
    for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_padding_does_not_count() -> None:
    model = tiny_model()
    plain = batch()
    expected = batch_loss(model, plain, 0.1)
    filled = batch()
    for ids, lengths in [
        (filled.source, plain.source_lengths),
        (filled.target_in, plain.target_lengths),
        (filled.target_out, plain.target_lengths),
    ]:
        padding = torch.arange(ids.size(1)) >= lengths[:, None]
        assert padding.any() and not ids[padding].any()
        ids[padding] = 7
    found = batch_loss(model, filled, 0.1)
    assert torch.equal(torch.stack(found), torch.stack(expected))
    # Neither does how much of it there is.
    alone = [batch_loss(model, batch([pair]), 0.1) for pair in PAIRS]
    torch.testing.assert_close(sum(loss for loss, _ in alone), expected[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(sum(nll for _, nll in alone), expected[1], rtol=1e-12, atol=0)


def test_half_precision_logits_are_summed_in_float32() -> None:
    model = tiny_model(torch.float32)
    expected = batch_loss(model, batch(), 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = batch_loss(model, batch(), 0.1)
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        assert mine.item() != other.item()
        assert mine.item() == pytest.approx(other.item(), rel=0.02)
