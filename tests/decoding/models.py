"""A small corpus, its tokenizer, and models with random weights, for the tests of decoding."""

import torch

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.schema import ModelConfig
from nmtkit.model.transformer import Transformer
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
    model = Transformer(config, tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
    for parameter in model.parameters():
        parameter.data *= 2.0
    return model.to(dtype).requires_grad_(False).eval()
