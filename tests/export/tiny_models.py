"""Runs whose model has random weights, large enough that translations depend on their source."""

import random
from pathlib import Path

import torch

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import save_model
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS

WORDS = {"the": "die", "a": "eine", "cat": "Katze", "dog": "Hündin", "sees": "sieht", "not": "nicht", "and": "und"}
WORDS |= {"old": "alte", "new": "neue", "always": "immer", "house": "Häuser", "likes": "mag", "red": "rote"}


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(list(WORDS), k=rng.randint(2, 9))) for _ in range(count)]


PAIRS = [(line, " ".join(WORDS[word] for word in line.split())) for line in sentences(300, seed=1)]
VALID = sentences(20, seed=2)
LINES = [
    *sentences(20, seed=3),
    "",
    "   \t",
    "a",
    "naïve 😀 \u2581 <s> </s> <unk> x\u2028y",
    "  The   dog \t sees  ",
    " ".join(sentences(6, seed=4)),
]
TINY = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2}
VARIANTS: dict[str, dict[str, object]] = {
    "the paper's": {},
    "pre-norm, learned positions, nothing shared": {
        "norm": "pre", "positions": "learned", "max_positions": 24, "share_embeddings": "none", "share_vocab": False,
    },
    "one narrow head": {"d_k": 5, "d_v": 3, "num_heads": 1},
    "narrow keys": {"d_k": 3, "d_v": 5, "share_embeddings": "decoder"},
    "narrow values, unlike stacks": {"d_k": 5, "d_v": 3, "encoder_layers": 1, "num_heads": 3},
    "segmented text": {"subwords": "none"},
    "unigram with bytes": {"subwords": "unigram", "byte_fallback": True, "vocab_size": 300},
    "word-pieces of Moses' tokens": {"subwords": "wordpiece", "normalize": ("lowercase", "moses-tokenize")},
}  # fmt: skip
DATA_KEYS = (
    "train", "text", "share_vocab", "subwords", "byte_fallback", "vocab_size", "normalize", "context",
    "source_language", "target_language", "task",
)  # fmt: skip


def tokenizer_of(**changes: object) -> Tokenizer:
    data = {"source_language": "en", "target_language": "de", "train": ["mine/train"], "vocab_size": 70}
    return learn_tokenizer(DataConfig.model_validate({**data, **changes}), lambda: PAIRS)


def let_end(model: Transformer, logit: float) -> None:
    """Adds that much to the logit of the end symbol, so that translations come to an end."""
    norm = model.decoder_norm if model.config.norm == "pre" else model.decoder[-1].residuals[-1].norm
    norm.bias.data.fill_(1.0)
    table = model.output_embedding.data
    table -= table.mean(1, keepdim=True)
    table[EOS] += logit / model.config.d_model


def make_run(
    run: Path,
    *,
    seed: int = 1,
    end_logit: float = 8.0,
    decoding: dict[str, object] | None = None,
    lengths: TrainingLengths | None = None,
    **changes: object,
) -> Path:
    """Writes a run of an averaged model and a validation text; ``changes`` are of [model] and of the subwords."""
    tokenizer = tokenizer_of(**{key: changes.pop(key) for key in DATA_KEYS if key in changes})
    config = ModelConfig.model_validate({**TINY, **changes})
    torch.manual_seed(seed)
    model = Transformer(config, tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
    for parameter in model.parameters():
        parameter.data *= 2.0
    let_end(model, end_logit)
    settings = DecodingConfig.model_validate({"beam": 3, "max_length_offset": 5, **(decoding or {})})
    save_model(run / "averaged", model.state_dict(), config, tokenizer, settings, {"step": 7}, lengths)
    (run / "data").mkdir()
    (run / "data" / "valid.source.txt").write_text("".join(f"{line}\n\n" for line in VALID), encoding="utf-8")
    return run
