from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.config import ModelConfig
from nmtkit.model import attention
from nmtkit.model.activations import saved_bytes
from nmtkit.model.transformer import Transformer

CHANGES = [
    {},
    {"norm": "pre"},
    {"encoder_layers": 1, "decoder_layers": 3, "num_heads": 2},
]
PAIRS, SOURCE, TARGET = 4, 21, 34


def kept_by_torch(model: Transformer, precision: str) -> int:
    """Bytes of all tensors that a forward pass saves for the backward pass, parameters and their copies left out."""
    source, target = torch.randint(4, 31, (PAIRS, SOURCE)), torch.randint(4, 31, (PAIRS, TARGET))
    lengths = torch.full((PAIRS,), SOURCE)
    storages: dict[int, Tensor] = {}
    parameters = {tuple(parameter.shape) for parameter in model.parameters()}
    parameters |= {tuple(reversed(shape)) for shape in parameters}

    def keep(tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) not in parameters and tensor.dtype != torch.int64:
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    autocast = nullcontext() if precision == "float32" else torch.autocast("cpu", dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        model.decode(target, *model.encode(source, lengths))
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def expected(config: ModelConfig, precision: str, *, on_cpu: bool) -> int:
    element_bytes = 4 if precision == "float32" else 2
    return saved_bytes(config, np.full(PAIRS, SOURCE), np.full(PAIRS, TARGET), element_bytes, on_cpu=on_cpu)


def model_of(changes: dict[str, object]) -> Transformer:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "d_ff": 160, "num_heads": 4, "dropout": 0.0}
    return Transformer(ModelConfig.model_validate({**sizes, **changes}), 31, 31).train()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("changes", [*CHANGES, {"d_k": 12, "d_v": 12}])
def test_the_memory_of_a_pass_with_fused_attention_is_what_torch_saves(
    changes: dict[str, object], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "MOST_SCORES", -1)  # as on a GPU
    model = model_of(changes)
    assert expected(model.config, precision, on_cpu=False) == pytest.approx(kept_by_torch(model, precision), rel=0.01)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        *CHANGES,
        {"d_k": 12, "d_v": 20, "share_embeddings": "none"},
        {"dropout": 0.1},
        {"dropout": 0.1, "ffn_dropout": 0.1, "attention_dropout": 0.1},
    ],
)
def test_the_memory_of_a_pass_on_a_cpu_is_what_torch_saves(changes: dict[str, object], precision: str) -> None:
    model = model_of(changes)
    assert expected(model.config, precision, on_cpu=True) == pytest.approx(kept_by_torch(model, precision), rel=0.01)


def test_masks_of_dropout_take_a_byte_for_each_number_on_a_gpu() -> None:
    plain, dropped = model_of({}).config, model_of({"dropout": 0.1}).config
    masks = 64 * (PAIRS * SOURCE * (2 * 2 + 1) + PAIRS * TARGET * (2 * 3 + 1))
    assert expected(dropped, "bf16", on_cpu=False) - expected(plain, "bf16", on_cpu=False) == masks
