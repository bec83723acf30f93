"""Prepared maps compute what linear maps compute, however they are laid out."""

from typing import Any

import pytest
import torch

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model import packed_linear as prepared
from nmtkit.model.packed_layer import encode_with, prepared_layers
from nmtkit.model.packed_linear import PreparedLinear
from nmtkit.model.transformer import Transformer

SIZES = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 12, "d_ff": 20, "num_heads": 2}


def map_of(out: int, inner: int, *, bias: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
    torch.manual_seed(1)
    return torch.randn(out, inner), torch.randn(out) if bias else None


@pytest.fixture(params=["Intel", "other processors", "without oneDNN"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "has_fast_mkl", lambda: request.param == "Intel")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    if request.param == "without oneDNN":
        monkeypatch.setattr(prepared, "_onednn_packs", lambda dtype: False)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("sizes", [(512, 512), (700, 301), (3, 5)])  # large ones are packed, small ones are not
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(0,), (1,), (4,), (16,), (17,), (130,), (2, 7), (3, 7)])
def test_it_is_the_linear_map(sizes: tuple[int, int], bias: bool, rows: tuple[int, ...]) -> None:
    weight, offsets = map_of(*sizes, bias=bias)
    x = torch.randn(*rows, sizes[1])
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if offsets is None else offsets.double())
    product = PreparedLinear(weight, offsets)(x)
    assert product.dtype == torch.float32
    torch.testing.assert_close(product.double(), exact, rtol=1e-5, atol=1e-4)
    residual = torch.randn(*rows, sizes[0])
    made = PreparedLinear(weight, offsets)
    torch.testing.assert_close(made.relu(x), product.relu(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(made.add(x, residual), product + residual, rtol=1e-6, atol=1e-5)


def test_large_float32_matrices_are_packed_where_that_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(prepared, "_onednn_packs", lambda dtype: bool(asked.append(dtype)))
    for sizes, dtype in (((512, 512), None), ((3, 5), None), ((512, 512), torch.float64), ((3, 5), torch.bfloat16)):
        PreparedLinear(*map_of(*sizes), dtype)
    assert asked == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    ("is_intel", "precision", "sizes", "dtype", "packed"),
    [
        (True, "highest", (512, 512), torch.float32, [17, 40]),
        (True, "highest", (8000, 256), torch.float32, [17, 40]),
        (True, "highest", (9000, 256), torch.float32, [1, 16, 17, 40]),
        (True, "highest", (2048, 512), torch.float32, [1, 16, 17, 40]),
        (True, "highest", (512, 512), torch.bfloat16, [1, 16, 17, 40]),
        (True, "highest", (300, 300), torch.float32, []),
        (True, "medium", (512, 512), torch.float32, [1, 16, 17, 40]),  # then plain products are not MKL's
        (False, "highest", (512, 512), torch.float32, [1, 16, 17, 40]),
        (False, "highest", (300, 300), torch.float32, []),
    ],
)
def test_mkl_gets_few_rows_of_middling_matrices_on_intel(
    is_intel: bool, precision: str, sizes: tuple[int, int], dtype: torch.dtype, packed: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(prepared, "has_fast_mkl", lambda: is_intel)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    monkeypatch.setattr(prepared, "_onednn_packs", lambda dtype: True)
    # With AVX2 only, oneDNN lays out no matrix of bfloat16.
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda weight, rows: weight)
    made, given = PreparedLinear(*map_of(*sizes), dtype), []
    monkeypatch.setattr(prepared, "_linear", lambda x, *rest: [given.append(len(x)), x.new_zeros(len(x), sizes[0])][1])
    for rows in (1, 16, 17, 40):
        made(torch.randn(rows, sizes[1], dtype=dtype))
    assert given == packed


@pytest.mark.usefixtures("library")
def test_a_product_in_bfloat16_rounds_what_comes_in_and_goes_out_in_float32() -> None:
    weight, bias = map_of(64, 48)
    x = torch.randn(9, 48)
    product = PreparedLinear(weight, bias, torch.bfloat16)(x)
    assert product.dtype == torch.float32
    assert bias is not None
    rounded = x.bfloat16().double() @ weight.bfloat16().double().t() + bias.bfloat16().double()
    torch.testing.assert_close(product.double(), rounded, rtol=2**-7, atol=2**-7)
    assert (product.double() - (x.double() @ weight.double().t() + bias.double())).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(512, 512), (3, 5)])
def test_it_keeps_the_weights_of_its_making(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    weight, bias = map_of(*sizes)
    made = PreparedLinear(weight, bias, dtype)
    x = torch.randn(2, sizes[1])
    before = made(x)
    weight.zero_()
    bias.zero_()
    torch.testing.assert_close(made(x), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"d_model": 512, "d_ff": 600, "num_heads": 4},
        {"d_k": 3, "d_v": 5},
        {"attention_window": 2},
        {"positions": "learned", "max_positions": 300, "dropout": 0.4, "attention_dropout": 0.4, "ffn_dropout": 0.4},
        {"share_embeddings": "none"},
    ],
    ids=str,
)
@pytest.mark.parametrize("given", [(6, 4, 1), (5, 5), (261, 7)])
def test_a_prepared_encoder_gives_the_same_states(changes: dict[str, Any], given: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    model = Transformer(ModelConfig.model_validate({**SIZES, **changes}), 23, 23).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    source, lengths = torch.randint(4, 23, (len(given), max(given))), torch.tensor(given)
    expected, expected_mask = model.encode(source, lengths)
    states, mask = encode_with(prepared_layers(model.encoder, None), model, source, lengths)
    torch.testing.assert_close(mask, expected_mask)
    for row, length in enumerate(given):
        torch.testing.assert_close(states[row, :length], expected[row, :length], rtol=1e-4, atol=1e-5)
