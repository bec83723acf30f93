"""Linear layers for inference: weights laid out once for the fastest matrix product of the device.

On a CPU torch gives float32 products to MKL, which on the AMD processor measured reached two thirds of oneDNN's rate
for many rows and about half of it for few. oneDNN takes matrices that are laid out beforehand; torch's own compiler
uses the same two operators when it freezes a model. MKL's lower cost per
call counts more for the matrices of a small model; on an Intel processor, where MKL is no slower, also for larger ones
if there are few rows, unless they are so large that they come from memory each time, where oneDNN reads faster.
"""

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nmtkit.distributed.cpu import has_fast_mkl
from nmtkit.model.transformer import ACTIVATIONS, Transformer

M = TypeVar("M", bound=Transformer)
_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)

_PACKED_FROM = 2**17
"""Size of a float32 matrix from which oneDNN is faster."""
_FEW_ROWS = 16
"""Number of rows up to which MKL, where it is fast, is faster nevertheless for matrices of at most _MOST_ENTRIES."""
_MOST_ENTRIES = 2**19
"""See _FEW_ROWS."""
_NARROW, _MOST_ENTRIES_OF_NARROW = 256, 2**21
"""The same limit for inputs of at most this width."""
_NEVER = sys.maxsize
"""A number of rows that is never reached."""


class LinearMap(NamedTuple):
    """The weights of a linear layer."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"]


def joined_by_head(num_heads: int, *maps: nn.Linear | LinearMap) -> LinearMap:
    """Join linear layers with the same input into one whose output groups the results by head."""
    weights = torch.cat([one.weight.unflatten(0, (num_heads, -1)) for one in maps], 1)
    biases = torch.cat([one.bias.unflatten(0, (num_heads, -1)) for one in maps], 1)
    return LinearMap(weights.flatten(0, 1), biases.flatten())


def prepared_norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    """Return a layer norm for inference, which goes from [..., width] to the same shape."""
    shape, weight, bias = norm.normalized_shape, norm.weight.detach(), norm.bias.detach()
    return lambda x: torch.layer_norm(x, shape, weight, bias, norm.eps)


class PreparedLinear:
    """x W^T + b without gradients, with the weights of the time when it was made."""

    def __init__(
        self,
        weight: Float[Tensor, "out in"],
        bias: Float[Tensor, " out"] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Args:
        dtype: type in which the product is computed: the input is rounded to it, and the output converted back. By
            default the type of the weights.
        """
        dtype = dtype or weight.dtype
        self._dtype = dtype
        # A copy, as the packed and the transposed weights of a CPU are: a parameter that changes later has no effect.
        self._bias = None if bias is None else bias.detach().to(dtype, copy=True)
        matrix = weight.detach().to(dtype)
        self._packed_from = _packed_from(weight, dtype)
        if self._packed_from < _NEVER:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), None)
        if self._packed_from > 0:
            # For few rows MKL is faster than with matrix.t() itself.
            self._matrix = matrix.t().contiguous() if matrix.device.type == "cpu" else matrix.t()

    @classmethod
    def of(cls, linear: nn.Linear | LinearMap, dtype: torch.dtype | None) -> "PreparedLinear":
        """Copy a linear layer with a bias."""
        return cls(linear.weight, linear.bias, dtype)

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        if x.dtype != self._dtype:
            return self(x.to(self._dtype)).to(x.dtype)
        if self._takes_packed(x):
            return _linear(x, self._packed, self._bias, "none", [], "")
        if self._bias is None:
            return x @ self._matrix
        if x.dim() == 2:
            return torch.addmm(self._bias, x, self._matrix)
        return torch.addmm(self._bias, x.flatten(0, -2), self._matrix).unflatten(0, x.shape[:-1])

    def relu(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        """max(0, x W^T + b)."""
        if x.dtype == self._dtype and self._takes_packed(x):
            return _linear(x, self._packed, self._bias, "relu", [], "")
        return self(x).relu_()

    def activated(self, activation: str) -> Callable[[Tensor], Tensor]:
        """Return the function from x to an activation of x W^T + b."""
        return self.relu if activation == "relu" else lambda x: ACTIVATIONS[activation](self(x))

    def add(self, x: Float[Tensor, "*rows in"], residual: Float[Tensor, "*rows out"]) -> Float[Tensor, "*rows out"]:
        """residual + (x W^T + b)."""
        if x.dtype == self._dtype == residual.dtype and self._takes_packed(x):
            return _linear.binary(x, residual, self._packed, self._bias, "add")
        return self(x).add_(residual)

    def _takes_packed(self, x: Tensor) -> bool:
        return x.numel() >= self._packed_from * x.size(-1)


def _packed_from(weight: Tensor, dtype: torch.dtype) -> int:
    """Return the number of rows from which the matrix laid out for oneDNN gives the faster product."""
    if weight.device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return _NEVER
    if (dtype == torch.float32 and weight.numel() < _PACKED_FROM) or not _onednn_packs(dtype):
        return _NEVER
    most_entries = _MOST_ENTRIES_OF_NARROW if weight.size(1) <= _NARROW else _MOST_ENTRIES
    is_middling = dtype == torch.float32 and weight.numel() <= most_entries
    # At another precision than this torch gives plain products to oneDNN, which then lays out the matrix each time.
    plain_is_mkl = torch.get_float32_matmul_precision() == "highest" and has_fast_mkl()
    return _FEW_ROWS + 1 if is_middling and plain_is_mkl else 0


@functools.cache
def _onednn_packs(dtype: torch.dtype) -> bool:
    """Return whether this torch has oneDNN's operators and they compute the expected results."""
    # Small integers: their products and sums are exact, in bfloat16 and in any order, too.
    weight, x, bias = (
        torch.arange(12.0).view(3, 4).to(dtype),
        torch.ones(2, 4, dtype=dtype),
        -torch.ones(3, dtype=dtype),
    )
    expected = torch.addmm(bias, x, weight.t())
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        products = [_linear(x, packed, bias, name, [], "") for name in ("none", "relu")]
        products.append(_linear.binary(x, -expected, packed, bias, "add"))
    # These operators are internal to torch, so their names and arguments may change.
    except (AttributeError, RuntimeError, TypeError):
        return False
    return all(map(torch.equal, products, (expected, expected.relu(), torch.zeros_like(expected))))


def for_inference(model: M, dtype: torch.dtype | None = None) -> M:
    """Copy a Transformer for inference only; parameters that have the right type already are shared.

    On a CPU only the matrix products of linear layers are computed in another type (see `PreparedLinear`), as bfloat16
    makes nothing else faster; so the parameters stay. On other devices all are converted.
    """
    shared: dict[int, object] = {id(parameter): parameter for parameter in model.parameters()}
    copied = copy.deepcopy(model, shared).eval()
    table = model.output_embedding
    if dtype is None or dtype == table.dtype or table.device.type == "cpu":
        return copied
    # Without this copy, `to` would convert the parameters that are shared with the model, in place.
    return copy.deepcopy(copied).to(dtype)
