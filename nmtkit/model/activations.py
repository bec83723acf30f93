"""How much memory a forward pass keeps for the backward pass: what `training/prediction.py` expects a pass to take.

Counted by what each operation of `transformer.py` saves; a test compares it with what torch saves. Attention is that of
`scaled_dot_product_attention` without a matrix of weights, but on a CPU, where `attention.py` holds one.
"""

import numpy as np

from nmtkit.config import ModelConfig
from nmtkit.model.flops import Lengths

FLOAT32 = 4


def saved_bytes(
    config: ModelConfig, source_lengths: Lengths, target_lengths: Lengths, element_bytes: int, *, on_cpu: bool
) -> int:
    """Bytes kept by a forward pass of encoder and decoder; logits and loss are not in it.

    Args:
        source_lengths, target_lengths: what each pair of the pass is padded to [pairs].
        element_bytes: of the matrix products: 4 of float32, 2 of the others, whose sums and norms stay float32.
    """
    source, target = int(source_lengths.sum()), int(target_lengths.sum())
    width, keys, values = config.d_model, config.num_heads * config.key_width, config.num_heads * config.value_width
    is_mixed = element_bytes < FLOAT32
    norm = FLOAT32 * (width + 2)  # of each position its input, mean and deviation
    inner = element_bytes * config.d_ff
    attention = element_bytes * (2 * keys + 2 * values) + FLOAT32 * config.num_heads  # q, k, v, result; sum of weights

    # What maps read: of float32 one tensor, however many read it; else a copy for each of q, k and v.
    read_by_three = element_bytes * width * (3 if is_mixed else 1)
    read_by_one = element_bytes * width
    encoder_layer = read_by_three + attention + norm + read_by_one + inner + norm
    decoder_layer = encoder_layer + read_by_one + element_bytes * (keys + values) + FLOAT32 * config.num_heads + norm
    from_source = element_bytes * (keys + values) + (2 * read_by_one if is_mixed else 0)
    states = 0 if is_mixed else read_by_one  # of the encoder, which all decoder layers read
    ends = norm if config.norm == "pre" else 0

    total = source * (config.encoder_layers * encoder_layer + config.decoder_layers * from_source + states + ends)
    total += target * (config.decoder_layers * decoder_layer + ends)
    if on_cpu:
        total += _attention_weights(config, source_lengths, target_lengths) * element_bytes
        total -= FLOAT32 * config.num_heads * (config.encoder_layers * source + 2 * config.decoder_layers * target)
    return total + _dropout_masks(config, source, target, element_bytes if on_cpu else 1, on_cpu=on_cpu)


def _attention_weights(config: ModelConfig, source_lengths: Lengths, target_lengths: Lengths) -> int:
    """Numbers in the matrices of attention weights; with dropout they are there a second time, and its mask."""
    encoder = config.encoder_layers * int(np.square(source_lengths).sum())
    decoder = config.decoder_layers * int((np.square(target_lengths) + source_lengths * target_lengths).sum())
    return config.num_heads * (encoder + decoder) * (3 if config.attention_dropout else 1)


def _dropout_masks(config: ModelConfig, source: int, target: int, mask_bytes: int, *, on_cpu: bool) -> int:
    """Bytes of the masks: on GPUs one for each number, on a CPU as many as the number has."""
    total = 0
    if config.dropout:
        layers = 2 * config.encoder_layers * source + 3 * config.decoder_layers * target
        total += config.d_model * (mask_bytes * layers + (FLOAT32 if on_cpu else 1) * (source + target))
    if config.ffn_dropout:
        numbers = config.d_ff * (config.encoder_layers * source + config.decoder_layers * target)
        total += numbers * 2 * mask_bytes if on_cpu else numbers * mask_bytes
    return total
