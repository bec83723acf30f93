"""A small corpus, its tokenizer, and models with random weights, for the tests of decoding."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.decoder_only import build_model
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import save_model
from nmtkit.text.tokenizer import Tokenizer

TEXT = [
    ("The dog sees a cat.", "Der Hund sieht eine Katze."),
    ("A cat sees the dog!", "Eine Katze sieht den Hund!"),
    ("Who sees the small house?", "Wer sieht das kleine Haus?"),
    ("The small dog runs home.", "Der kleine Hund rennt heim."),
]
TINY = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}


def data_config(**changes: object) -> DataConfig:
    values = {"source_language": "en", "target_language": "de", "train": ["mine/train"], "vocab_size": 70}
    return DataConfig.model_validate({**values, **changes})


def model_for(
    tokenizer: Tokenizer, dtype: torch.dtype = torch.float64, seed: int = 1, **changes: object
) -> Transformer:
    """Random weights, larger than initial ones so that translations depend on their source."""
    torch.manual_seed(seed)
    config = ModelConfig.model_validate({**TINY, **changes})
    model = build_model(config, tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
    for parameter in model.parameters():
        parameter.data *= 2.0
    return model.to(dtype).requires_grad_(False).eval()


def save(folder: Path, tokenizer: Tokenizer, seed: int = 1, **decoding: object) -> Transformer:
    """Save a model with random weights in float32, and return it."""
    model = model_for(tokenizer, torch.float32, seed)
    settings = DecodingConfig.model_validate(decoding)
    save_model(folder, model.state_dict(), model.config, tokenizer, settings, {"kind": "checkpoint"})
    return model


class WithoutFloat64(torch.Tensor):
    """A tensor as on a device that has no float64, such as MPS."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        if function is torch.Tensor.cpu:
            return result.as_subclass(torch.Tensor)
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError("the device has no float64")
        return result
