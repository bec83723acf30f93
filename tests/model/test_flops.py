from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.config.model_schema import ModelConfig
from nmtkit.data.batch import make_batch
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.model.decoder_only import count_parameters
from nmtkit.model.flops import TRAINING_FACTOR, forward_flops, padding_flops
from nmtkit.model.transformer import Transformer
from nmtkit.training.loss import batch_loss

CONFIGS = [
    {},
    {"norm": "pre", "share_embeddings": "none"},
    {"d_k": 3, "d_v": 7, "share_embeddings": "decoder"},
    {"encoder_layers": 1, "decoder_layers": 3, "num_heads": 3, "d_k": 6, "d_v": 5, "positions": "learned"},
    {"encoder_layers": 3, "decoder_layers": 1, "d_model": 30, "d_ff": 7, "num_heads": 1},
    {"attention_window": 3},
]
WINDOWS = [{"attention_window": size} for size in (1, 5, 64, 100)]


def counted(run: Callable[[], object], kind: str = "all") -> int:
    """Operations as torch counts them; of kind "attention", those of batched products, which nothing else has."""
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        run()
    if kind == "attention":
        return int(counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0))
    return int(counter.get_total_flops())


def model_of(changes: dict[str, object]) -> tuple[Transformer, int]:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4}
    config = ModelConfig.model_validate({**sizes, **changes})
    target_vocab = 31 if config.share_embeddings == "all" else 43
    model = Transformer(config, 31, target_vocab)
    assert count_parameters(config, 31, target_vocab) == sum(each.numel() for each in model.parameters())
    return model, target_vocab


@pytest.mark.parametrize(
    ("changes", "longest"),
    [*((changes, (9, 6)) for changes in CONFIGS), *((changes, (330, 210)) for changes in WINDOWS)],
)
def test_counted_operations_are_torchs_forward_and_backward(
    changes: dict[str, object], longest: tuple[int, int]
) -> None:
    model, target_vocab = model_of(changes)
    source, target = (torch.randint(4, 31, (3, length)) for length in longest)
    lengths = torch.full((3,), longest[0])
    expected = forward_flops(model.config, target_vocab, *(np.full(3, length) for length in longest))
    states, mask = model.encode(source, lengths)
    decoded = model.decode(target, states, mask)
    assert counted(lambda: model.encode(source, lengths)) == expected.flops_encoder
    assert counted(lambda: model.decode(target, states, mask)) == expected.flops_decoder
    assert counted(lambda: model.logits(decoded)) == expected.flops_output
    assert expected.flops == expected.flops_encoder + expected.flops_decoder + expected.flops_output
    assert 0 < expected.flops_attention < expected.flops_encoder + expected.flops_decoder
    for kind, flops in (("all", expected.flops), ("attention", expected.flops_attention)):
        assert counted(lambda: model(source, lengths, target), kind) == flops
        assert counted(lambda: model(source, lengths, target).sum().backward(), kind) == TRAINING_FACTOR * flops


def test_operations_of_pairs_of_different_lengths_add_up() -> None:
    model, target_vocab = model_of({})
    pairs = [(9, 6), (1, 4), (5, 5), (2, 1)]
    one_by_one = 0
    for source_length, target_length in pairs:
        source, target = torch.randint(4, 31, (1, source_length)), torch.randint(4, 31, (1, target_length))
        lengths = torch.tensor([source_length])
        one_by_one += counted(lambda source=source, lengths=lengths, target=target: model(source, lengths, target))
    sources, targets = (np.array(side) for side in zip(*pairs, strict=True))
    assert forward_flops(model.config, target_vocab, sources, targets).flops == one_by_one


@pytest.mark.parametrize("changes", CONFIGS)
def test_real_operations_and_those_of_padding_are_all_that_a_pass_computes(
    changes: dict[str, object], tmp_path: Path
) -> None:
    model, target_vocab = model_of(changes)
    random = np.random.default_rng(3)
    lengths = random.integers(1, 13, size=(11, 2))
    pairs = [tuple(random.integers(4, 31, size=length).tolist() for length in pair) for pair in lengths]
    with ShardWriter(tmp_path / "train", (31, target_vocab)) as writer:
        writer.add(pairs, range(1, 12))
    data = PairData(tmp_path / "train")
    passes = [np.array([4, 0, 9]), np.array([2]), np.array([1, 3, 5, 6, 7, 8, 10])]

    padding = padding_flops(model.config, [data.sequence_lengths(passed) for passed in passes])
    real = forward_flops(model.config, target_vocab, data.source_lengths, data.target_lengths).flops
    assert padding > 0
    batches = [make_batch(data, passed) for passed in passes]
    with torch.no_grad():
        forward = sum(counted(lambda batch=batch: batch_loss(model, batch, 0.1)) for batch in batches)
    assert forward == real + padding
    both = sum(counted(lambda batch=batch: batch_loss(model, batch, 0.1)[0].backward()) for batch in batches)
    assert both == TRAINING_FACTOR * (real + padding)


def test_passes_of_equal_lengths_have_no_padding() -> None:
    short, long = np.array([3, 3]), np.array([5, 5])
    config = model_of({})[0].config
    assert padding_flops(config, [(short, short), (long, long)]) == 0
    assert padding_flops(config, []) == 0
    both = np.concatenate([short, long])
    assert padding_flops(config, [(both, both)]) > 0
