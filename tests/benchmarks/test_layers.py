"""The benchmark of the paper's Table 1: its layers compute what they should, and its figures are what they claim."""

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import layers

    monkeypatch.setattr(layers, "SECONDS_EACH", 0.0)
    return layers


def test_an_exponent_is_the_slope_of_the_larger_half(layers: ModuleType) -> None:
    assert layers.exponent([(x, 7 * x**1.5) for x in (1, 2, 4, 8)]) == pytest.approx(1.5)
    bent = [(1, 100), (2, 100), (4, 16), (8, 64), (16, 256)]
    assert layers.exponent(bent) == pytest.approx(2)


@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize(
    "kind", ["self-attention", "self-attention, restricted", "self-attention with projections", "convolutional"]
)
def test_operations_are_those_that_torch_counts(layers: ModuleType, kind: str, length: int) -> None:
    layer, x = layers.make_layer(kind, 128), torch.randn(1, length, 128, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        layers.one_pass(layer, x)
    assert counter.get_total_flops() == layers.operations(kind, length, 128)


def test_exponents_of_operations_are_the_papers(layers: ModuleType) -> None:
    sizes = dict.fromkeys([*((n, 512) for n in layers.LENGTHS), *((1024, d) for d in layers.WIDTHS)])
    points = [
        {"kind": kind, "n": n, "d": d, "flops": layers.operations(kind, n, d)}
        for kind in layers.PAPER
        for n, d in sizes
    ]
    for kind, (_, of_length, of_width) in layers.PAPER.items():
        if of_length is not None:
            assert layers.exponents(points, kind, "flops") == pytest.approx((of_length, of_width), abs=0.01)


def test_bare_attention_is_equation_1_on_what_comes_in(layers: ModuleType) -> None:
    x = torch.randn(1, 100, 128)
    heads = x.unflatten(-1, (2, 64)).transpose(1, 2)
    expected = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layers.make_layer("self-attention", 128)(x), expected, rtol=1e-4, atol=1e-5)


def test_memory_is_what_is_held_at_most(layers: ModuleType) -> None:
    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x])

    x = torch.randn(250_000, requires_grad=True)
    # Twice x, then its sum; backward a gradient of twice x (expanded, so no memory), of x twice and their sum.
    assert 2 * x.nbytes <= layers.bytes_of(Doubling(), x) <= 5 * x.nbytes


def test_a_layer_is_measured_and_told(layers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LENGTHS", (16, 32)), ("WIDTHS", (64, 128)), ("FIXED_LENGTH", 16), ("FIXED_WIDTH", 64)):
        monkeypatch.setattr(layers, name, value)
    points = [layers.measure(kind, n, d, CPU) for n, d in ((16, 64), (32, 64), (16, 128)) for kind in layers.PAPER]
    assert all(point["seconds"] > 0 and point["bytes"] > 0 for point in points)
    lines = layers.markdown(points)
    for kind, (complexity, _, _) in layers.PAPER.items():
        assert any(line.startswith(f"| {kind} | {complexity} |") for line in lines)
    picture = layers.picture(points)
    assert picture.startswith("<svg") and picture.count("<polyline") == 2 * len(layers.PAPER)


def test_windows_are_compared_in_turn(layers: ModuleType) -> None:
    results = layers.compare_window(256, 64, 16, 1, CPU)
    assert [result["kind"] for result in results] == ["window", "full", "full, scores kept"]
    assert all(len(result["rounds"]) == 1 for result in results)
    assert layers.attention.MOST_SCORES == 2**26
    assert layers.window_markdown(results)[2].startswith("| window | ")
