import torch

from nmtkit import workers


def test_float32_products_stay_exact_whatever_computes_them() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        workers.choose_products()
        torch.manual_seed(1)
        for rows, inner, columns in [(300, 128, 70), (2048, 512, 512), (64, 2048, 33)]:
            left, right = torch.randn(rows, inner), torch.randn(inner, columns)
            expected = left.double() @ right.double()
            error = (left @ right - expected).abs().max() / expected.abs().max()
            assert error.item() < 3e-6  # a bfloat16 product is a thousand times as far off
    finally:
        torch.set_float32_matmul_precision(before)


def test_inexact_products_are_not_chosen(monkeypatch) -> None:
    before = torch.get_float32_matmul_precision()
    addmm = torch.addmm

    def rounding(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return addmm(bias, left.bfloat16().float(), right.bfloat16().float())

    monkeypatch.setattr(torch, "addmm", rounding)
    try:
        workers.choose_products()
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(before)
