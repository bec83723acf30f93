"""Conversion for CTranslate2: names of weights, position table and vocabulary.

Encoder-decoder models with full attention can be converted. Two differences need care:

- The position table of CTranslate2 is different (sines, then cosines; from position 1), so nmtkit's table is exported.
- CTranslate2 projects queries, keys and values of self-attention at once and splits the result into equal parts. If d_k
  and d_v differ, the narrower heads are padded with zeros, which does not change any product. A single head is padded,
  too, as CTranslate2 takes its width to be d_model.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nmtkit.config.model_schema import ModelConfig
from nmtkit.decoding.lengths import longest_exported_source, longest_translation
from nmtkit.errors import ModelError
from nmtkit.model.transformer import position_table
from nmtkit.model_folder import LoadedModel
from nmtkit.tasks.known import task_of
from nmtkit.text.vocabulary import BOS, EOS, SPECIAL_PIECES, UNK, Side

QUANTIZATIONS = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
"""Number formats of weights; CTranslate2 converts formats that a machine does not support when it loads the model."""
SHORT_NAMES = {"bf16": "bfloat16", "fp16": "float16"}
"""Names of two of these formats in `translate --precision`."""
MIN_POSITIONS = 2048
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "silu": "SWISH"}
"""Names in CTranslate2 of the values of `ModelConfig.activation`."""

Array = npt.NDArray[np.float32]


def check(loaded: LoadedModel) -> None:
    """Raise ModelError where CTranslate2 does not support something in the model."""
    config = loaded.model.config
    missing = unsupported(config)
    if config.num_heads == 1 and max(config.key_width, config.value_width) > config.d_model:
        missing = missing or "d_k or d_v above d_model with num_heads = 1"
    if missing:
        command = task_of(loaded.tokenizer).command
        raise ModelError(f"nmtkit's conversion for CTranslate2 does not support {missing}; use `nmtkit {command}`")


def unsupported(config: ModelConfig) -> str:
    """Return the settings of a model that no format of `export` supports; "" if there are none."""
    found = []
    if config.head != "none":
        found.append(f'head = "{config.head}"')
    elif config.is_joined:
        found.append('architecture = "decoder"')
    if config.attention_window is not None:
        found.append(f"attention_window = {config.attention_window}")
    if kinds := sorted(set(config.self_attention) - {"full", "window"}):
        found.append(f"self_attention = {', '.join(kinds)}")
    return ", ".join(found)


def num_positions(loaded: LoadedModel) -> int:
    """Return the number of positions of the export: the learned ones, or as many as nmtkit needs by default."""
    if loaded.model.config.positions == "learned":
        return loaded.model.config.max_positions
    longest_source = longest_exported_source(loaded.lengths)
    return max(MIN_POSITIONS, longest_source + 1, longest_translation(loaded.decoding, longest_source))


def write(folder: Path, loaded: LoadedModel, quantization: str) -> None:
    """Write model.bin, config.json and the vocabulary into ``folder``."""
    from ctranslate2 import specs

    config = loaded.model.config
    weights = {name: tensor.detach().float().cpu().numpy() for name, tensor in loaded.model.state_dict().items()}
    is_pre = config.norm == "pre"
    options = {"pre_norm": is_pre, "activation": specs.Activation[_ACTIVATIONS[config.activation]]}
    encoder = specs.TransformerEncoderSpec(config.encoder_layers, config.num_heads, **options)
    decoder = specs.TransformerDecoderSpec(config.decoder_layers, config.num_heads, **options)
    encoder.scale_embeddings = decoder.scale_embeddings = config.embedding_scale
    spec = specs.TransformerSpec(encoder, decoder)

    # Which of these matrices a model has depends on share_embeddings.
    shared = weights.get("embeddings.shared")
    encoder.embeddings[0].weight = weights.get("embeddings.source", shared)
    decoder.embeddings.weight = target = weights.get("embeddings.target", shared)
    decoder.projection.weight = weights.get("embeddings.output", target)
    if config.output_bias:
        decoder.projection.bias = weights["output_bias"]
    for side, name, stack in (("source", "encoder", encoder), ("target", "decoder", decoder)):
        table = weights.get(f"positions.{side}")
        if table is None:
            positions = num_positions(loaded)
            table = position_table(config, positions).to(torch.float32).numpy()
        stack.position_encodings.encodings = table
        if is_pre:
            _set_norm(stack.layer_norm, weights, f"{name}_norm")
        for number, layer in enumerate(stack.layer):
            _set_layer(layer, weights, f"{name}.{number}", config)

    spec.register_source_vocabulary(_vocabulary(loaded, "source"))
    spec.register_target_vocabulary(_vocabulary(loaded, "target"))
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (
        SPECIAL_PIECES[index] for index in (UNK, BOS, EOS)
    )
    spec.config.decoder_start_token = SPECIAL_PIECES[EOS if config.decoder_start == "eos" else BOS]
    # CTranslate2 appends the end symbol, with which nmtkit's sources end.
    spec.config.add_source_eos = True
    # It is the same in all layers.
    spec.config.layer_norm_epsilon = next(
        module.eps for module in loaded.model.modules() if isinstance(module, torch.nn.LayerNorm)
    )
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _vocabulary(loaded: LoadedModel, side: Side) -> list[str]:
    """Return the pieces in the order of ids; they must be distinct, as CTranslate2 identifies tokens by pieces."""
    pieces = loaded.tokenizer.entries(side)
    if len(set(pieces)) < len(pieces):
        twice = next(piece for piece in pieces if pieces.count(piece) > 1)
        raise ModelError(f"the {side} vocabulary holds the piece {twice!r} twice, which CTranslate2 cannot tell apart")
    return pieces


def _set_layer(layer: Any, weights: dict[str, Array], name: str, config: ModelConfig) -> None:
    attention = [("self_attention", layer.self_attention)]
    if hasattr(layer, "attention"):  # only decoder layers attend to the source
        attention.append(("source_attention", layer.attention))
    for number, (kind, spec) in enumerate(attention):
        _set_attention(spec, weights, f"{name}.{kind}", config)
        _set_norm(spec.layer_norm, weights, f"{name}.residuals.{number}.norm")
    for part, linear in (("inner", layer.ffn.linear_0), ("outer", layer.ffn.linear_1)):
        linear.weight, linear.bias = _linear(weights, f"{name}.feed_forward.{part}")
    _set_norm(layer.ffn.layer_norm, weights, f"{name}.residuals.{len(attention)}.norm")


def _set_attention(spec: Any, weights: dict[str, Array], name: str, config: ModelConfig) -> None:
    """Set the weights of an attention; CTranslate2 joins keys and values, and in self-attention queries too."""
    width = max(config.key_width, config.value_width)
    if config.num_heads == 1:
        width = max(width, config.d_model)
    padded = [
        tuple(_pad_heads(rows, config.num_heads, width) for rows in _linear(weights, f"{name}.{kind}"))
        for kind in ("query", "key", "value")
    ]
    *inner, outer = spec.linear
    groups = [padded] if len(inner) == 1 else [padded[:1], padded[1:]]
    for linear, group in zip(inner, groups, strict=True):
        linear.weight, linear.bias = (np.concatenate(arrays) for arrays in zip(*group, strict=True))
    weight, outer.bias = _linear(weights, f"{name}.output")
    outer.weight = np.ascontiguousarray(_pad_heads(weight.T, config.num_heads, width).T)
    # By default, CTranslate2 would scale by the padded width.
    spec.queries_scale = float(config.key_width**-0.5)


def _pad_heads(rows: Array, num_heads: int, width: int) -> Array:
    """Pad the rows of each head with zeros to ``width``."""
    heads = rows.reshape(num_heads, -1, *rows.shape[1:])
    missing = [(0, 0), (0, width - heads.shape[1])] + [(0, 0)] * (rows.ndim - 1)
    return np.pad(heads, missing).reshape(num_heads * width, *rows.shape[1:])


def _linear(weights: dict[str, Array], name: str) -> tuple[Array, Array]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _set_norm(spec: Any, weights: dict[str, Array], name: str) -> None:
    spec.gamma, spec.beta = _linear(weights, name)
