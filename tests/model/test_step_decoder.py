"""Decoding one position at a time gives what the whole decoder gives, for every setting of the model."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.attention import MultiHeadAttention
from nmtkit.model.attention_window import AttentionWindow
from nmtkit.model.step_attention import ByHead, Folded, SourceMaps
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import BOS

VOCAB = 23
SETTINGS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "max_positions": 64},
    {"share_embeddings": "decoder"},
    {"share_embeddings": "none", "norm": "pre", "positions": "learned", "max_positions": 64},
    {"d_k": 5, "d_v": 7},
    {"num_heads": 1, "d_v": 3},
    {"decoder_layers": 1},
    {"attention_window": 1},
    {"attention_window": 7, "norm": "pre"},
    {"attention_window": 24},
    {"attention_window": 200},
    {"dropout": 0.5, "attention_dropout": 0.3, "ffn_dropout": 0.3},
    {"activation": "gelu"},
    {"activation": "silu", "output_bias": True},
    {"positions": "fairseq", "decoder_start": "eos", "norm": "pre"},
]


def model_of(dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
    torch.manual_seed(3)
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 12, "d_ff": 20, "num_heads": 2}
    model = Transformer(ModelConfig.model_validate({**sizes, **changes}), VOCAB, VOCAB).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


def sources(*lengths: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    ids = torch.randint(4, VOCAB, (len(lengths), max(lengths)))
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    return ids, torch.tensor(lengths)


def assert_same_by_steps(model: Transformer, lengths: tuple[int, ...], positions: int) -> None:
    source, source_lengths = sources(*lengths)
    target = torch.randint(4, VOCAB, (len(lengths), positions), generator=torch.Generator().manual_seed(1))
    target[:, 0] = BOS
    decoder = StepDecoder(model)
    state = decoder.start(source, source_lengths)
    expected = model(source, source_lengths, target)
    for position in range(positions):
        logits = decoder.step(target[:, position], state)
        torch.testing.assert_close(logits, expected[:, position], rtol=1e-9, atol=1e-9)
        state.select(torch.arange(len(lengths))[:, None])


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
@pytest.mark.parametrize("lengths", [(5, 5), (7, 3, 1), (4,), (30,)])
def test_step_by_step_equals_all_at_once(changes: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert_same_by_steps(model_of(**changes), lengths, 40)  # beyond the first capacity of the buffers, twice


@pytest.mark.parametrize("window", [5, 64])
def test_step_by_step_equals_all_at_once_where_windowed_attention_goes_by_blocks(window: int) -> None:
    positions = 261
    assert AttentionWindow.of(window, causal=True).num_blocks(positions) > 1
    assert_same_by_steps(model_of(attention_window=window), (positions, 131, 1), positions)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"attention_window": 6}], ids=str)
@pytest.mark.parametrize("lengths", [(6, 4, 5), (5, 5, 5)])
def test_hypotheses_are_kept_dropped_and_repeated(lengths: tuple[int, ...], changes: dict[str, Any], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    model = model_of(**changes)
    source, source_lengths = sources(*lengths)
    decoder = StepDecoder(model)
    state = decoder.start(source, source_lengths)
    sentences = [0, 1, 2]
    rows = [(sentence, [2]) for sentence in sentences]  # of each hypothesis its sentence and tokens
    for step in range(12):
        logits = decoder.step(torch.tensor([tokens[-1] for _, tokens in rows]), state)
        for row, (sentence, tokens) in enumerate(rows):
            alone = slice(sentence, sentence + 1)
            length = int(source_lengths[sentence])
            expected = model(source[alone, :length], source_lengths[alone], torch.tensor([tokens]))[0, -1]
            torch.testing.assert_close(logits[row], expected, rtol=1e-9, atol=1e-9)
        per_sentence = len(rows) // len(sentences)
        if step in (4, 8):
            sentences = sentences[:-1] if step == 4 else sentences[1:]
        places = [
            index
            for index, sentence in enumerate(dict.fromkeys(sentence for sentence, _ in rows))
            if sentence in sentences
        ]
        beam = int(torch.randint(1, 5, (), generator=random))
        chosen = torch.stack(
            [place * per_sentence + torch.randint(per_sentence, (beam,), generator=random) for place in places]
        )
        rows = [
            (rows[row][0], [*rows[row][1], int(torch.randint(4, VOCAB, (), generator=random))])
            for row in chosen.flatten().tolist()
        ]
        state.select(chosen)


def test_attention_is_that_of_the_last_layer_and_spares_padding() -> None:
    model = model_of()
    source, source_lengths = sources(6, 3)
    decoder = StepDecoder(model)
    state = decoder.start(source, source_lengths)
    decoder.step(torch.tensor([2, 2]), state)
    assert state.attention is None
    decoder.step(torch.tensor([5, 6]), state, keep_attention=True)
    assert state.attention is not None
    torch.testing.assert_close(state.attention.sum(1), torch.ones(2, dtype=torch.float64))
    assert float(state.attention[1, 3:].abs().max()) == 0.0


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_attention_to_one_short_source_is_folded_and_means_the_same(changes: dict[str, Any]) -> None:
    model = model_of(**changes)
    decoder = StepDecoder(model)
    source, source_lengths = sources(4)
    states = [decoder.start(source, source_lengths, fold=fold) for fold in (True, False)]
    kinds = [{type(one) for one in state.sources} for state in states]
    assert kinds == [{Folded}, {ByHead}]
    ids = torch.tensor([2])
    for rows in ([[0, 0, 0]], [[2, 0, 1]], [[1, 1]], [[0]]):
        folded, by_head = (decoder.step(ids, state, keep_attention=True) for state in states)
        torch.testing.assert_close(folded, by_head, rtol=1e-9, atol=1e-9)
        looked = [state.attention for state in states]
        assert looked[0] is not None and looked[0].shape == (len(ids), 4)
        torch.testing.assert_close(looked[0], looked[1], rtol=1e-9, atol=1e-9)
        for state in states:
            state.select(torch.tensor(rows))
        ids = torch.randint(4, VOCAB, (len(rows[0]),), generator=torch.Generator().manual_seed(len(rows[0])))


@pytest.mark.parametrize(
    ("lengths", "dtype", "is_folded"),
    [
        ((4,), None, True),
        ((4,), torch.float64, True),
        ((5,), None, False),
        ((3, 3), None, False),
        ((4,), torch.bfloat16, False),
    ],
)
def test_what_is_folded(lengths: tuple[int, ...], dtype: torch.dtype | None, is_folded: bool) -> None:
    """Up to 0.75 d_model scores of a position: here 9, of two heads."""
    state = StepDecoder(model_of(), dtype).start(*sources(*lengths))
    assert {isinstance(one, Folded) for one in state.sources} == {is_folded}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_with_weights_in_16_bits_as_on_a_gpu_nothing_is_folded(dtype: torch.dtype | None) -> None:
    attention = MultiHeadAttention(ModelConfig(d_model=12, num_heads=2))
    for stored, is_folded in ((torch.float32, dtype is None), (torch.bfloat16, False)):
        looked = SourceMaps(attention.to(stored), dtype).look_at(torch.zeros(1, 4, 12, dtype=stored), None)
        assert isinstance(looked, Folded) == is_folded


@pytest.mark.parametrize("is_training", [False, True])
def test_dropout_is_off_whatever_mode_the_model_is_in_or_goes_to(is_training: bool) -> None:
    model = model_of(dropout=0.5, attention_dropout=0.5, ffn_dropout=0.5)
    source, source_lengths = sources(4)
    expected = StepDecoder(model).step(torch.tensor([2]), StepDecoder(model).start(source, source_lengths))
    model.train(is_training)
    decoder = StepDecoder(model)
    model.train()
    found = decoder.step(torch.tensor([2]), decoder.start(source, source_lengths))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert model.training
    assert model.output_embedding is decoder._model.output_embedding, "parameters are not copied"


def test_attention_that_somebody_looks_at_in_the_model_is_not_that_of_the_decoder() -> None:
    model = model_of()
    decoder = StepDecoder(model)
    seen: list[Tensor] = []
    model.encoder[0].self_attention.watch = seen.append  # type: ignore[union-attr,assignment]
    decoder.start(*sources(4))
    assert not seen
