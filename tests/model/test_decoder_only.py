"""A decoder alone: what it reads, that no position sees the future, and that its search computes the same."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.config.model_schema import ModelConfig
from nmtkit.data.batch import Batch, batch_of
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.search import beam_search
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.model import attention, attention_window
from nmtkit.model.attention_weights import attention_weights
from nmtkit.model.decoder_only import DecoderOnly, build_model, count_parameters
from nmtkit.model.flops import forward_flops
from nmtkit.model.joined_step_decoder import JoinedStepDecoder
from nmtkit.model.transformer import sinusoidal_positions
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.training.loss import batch_loss

VOCAB = 31
LENGTHS = [*range(1, 11), 15, 16, 17, 23, 24, 25, 26, 50]
"""Around the ends of blocks of 8 and of groups of 3; a target of the last one has two blocks."""
LONG_LENGTHS = [*range(1, 11), 255, 256, 257, 511, 512, 513, 767, 768, 769, 770]
"""Around the ends of blocks of 256, which is the published size, and of groups of 3."""
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "source seen whole": {"source_attention": "full"},
    "local": {"self_attention": ["local"]},
    "local with the block before": {"self_attention": ["local"], "local_previous_block": True},
    "compressed": {"self_attention": ["compressed"]},
    "T-DMCA": {"self_attention": ["local", "compressed"], "decoder_layers": 5},
    "window": {"self_attention": ["window"], "attention_window": 7},
    "local, source seen whole": {"self_attention": ["local"], "source_attention": "full"},
    "window, source seen whole": {"self_attention": ["window"], "attention_window": 7, "source_attention": "full"},
    "restarted positions": {"target_positions": "restarted", "source_attention": "full"},
    "restarted positions, local": {"target_positions": "restarted", "self_attention": ["local"]},
}
SMALL_BLOCKS = {
    "blocks of 1": {"self_attention": ["local"], "local_block": 1},
    "blocks of 5": {"self_attention": ["local", "compressed"], "local_block": 5},
    "groups of 1": {"self_attention": ["compressed"], "compression": 1},
    "groups of 4": {"self_attention": ["compressed"], "compression": 4},
    "pre-norm": {"self_attention": ["local", "compressed"], "local_block": 4, "norm": "pre"},
    "as GPT": {"activation": "gelu", "embedding_scale": False, "initialization": "normal", "positions": "learned"},
    "own output": {"share_embeddings": "none"},
}


def model_of(dtype: torch.dtype = torch.float64, scale: float = 1.3, **changes: Any) -> DecoderOnly:
    torch.manual_seed(3)
    sizes = {"decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2, "dropout": 0.0}
    config = ModelConfig.model_validate({**sizes, "architecture": "decoder", **changes})
    model = build_model(config, VOCAB, VOCAB)
    assert isinstance(model, DecoderOnly)
    for parameter in model.parameters():
        parameter.data *= scale  # so that outputs depend on far positions
    return model.to(dtype).requires_grad_(False).eval()


def model_and_lengths(kind: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[DecoderOnly, list[int]]:
    """A model of a kind and the lengths to try: long ones, or with blocks of 8 short ones."""
    monkeypatch.setattr(attention_window, "FEWEST_QUERIES", 8)
    if kind == "T-DMCA":
        return model_of(**settings, **KINDS[kind]), LONG_LENGTHS
    return model_of(**settings, **KINDS[kind], local_block=8), LENGTHS


def random_ids(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCAB, (length,), generator=generator).tolist()


def logits_of(model: DecoderOnly, batch: Batch) -> Tensor:
    return model(batch.source, batch.source_lengths, batch.target_in)


def joined_logits(model: DecoderOnly, batch: Batch) -> Tensor:
    joined = model.joined(batch.target_in, *model.encode(batch.source, batch.source_lengths))
    return model.logits(joined.states)


def test_source_separator_and_target_are_one_sequence() -> None:
    model = model_of()
    batch = batch_of([[5, 6, 7], [8], []], [[9, 10], [11, 12, 13], [14]])
    joined = model.joined(batch.target_in, *model.encode(batch.source, batch.source_lengths))
    rows = [[5, 6, 7, BOS, 9, 10], [8, BOS, 11, 12, 13], [BOS, 14]]
    assert [ids[: len(row)] for ids, row in zip(joined.ids.tolist(), rows, strict=True)] == rows
    for index, row in enumerate(rows):  # a sentence by itself has the same states at the same positions
        x = model.embed_at(torch.tensor([row]), torch.arange(len(row))[None], torch.tensor([row.index(BOS)]), len(row))
        for layer in model.decoder:
            x = layer(x, None, True)
        torch.testing.assert_close(joined.states[index, : len(row)], x[0])
        target = row.index(BOS)
        torch.testing.assert_close(joined.target_states[index, : len(row) - target], x[0, target:])


def test_restarted_positions_of_the_target_begin_at_0_and_its_embeddings_have_a_vector_of_their_own() -> None:
    model = model_of(target_positions="restarted", decoder_layers=1)
    assert model.sides is not None
    assert sum(values.numel() for values in model.parameters()) == 2 * 16 + sum(
        values.numel() for values in model_of(decoder_layers=1).parameters()
    )
    ids, lengths = torch.tensor([[5, 6, 7, BOS, 9, 10], [8, BOS, 11, 12, 13, 0]]), torch.tensor([3, 1])
    places = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]])
    sides = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]])
    expected = (model.embeddings["shared"][ids] + model.sides[sides]) * 4 + sinusoidal_positions(5, 16)[places]
    torch.testing.assert_close(model.embed_at(ids, torch.arange(6)[None], lengths, 6), expected)


@pytest.mark.parametrize("source_attention", ["causal", "full"])
def test_pairs_that_fit_alone_fit_together(source_attention: str) -> None:
    """The longest source and the longest target of a batch, of different pairs, may exceed the learned positions."""
    model = model_of(positions="learned", max_positions=20, source_attention=source_attention)
    pairs = [(random_ids(15, 1), random_ids(5, 2)), (random_ids(2, 3), random_ids(17, 4))]
    batch = batch_of([source for source, _ in pairs], [target for _, target in pairs])
    together = model.joined(batch.target_in, *model.encode(batch.source, batch.source_lengths))
    for index, (source, target) in enumerate(pairs):
        alone = batch_of([source], [target])
        expected = model.joined(alone.target_in, *model.encode(alone.source, alone.source_lengths)).target_states[0]
        torch.testing.assert_close(together.target_states[index, : len(expected)], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_no_output_before_a_token_depends_on_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = model_and_lengths(kind, monkeypatch)
    for length in lengths:
        ids = random_ids(length, seed=length)
        source = length // 3
        before = joined_logits(model, batch_of([ids[:source]], [ids[source:]]))[0]
        places = {0, 1, 2, source, length // 2, length - 2, length - 1} & set(range(length))
        for place in places:
            changed = list(ids)
            changed[place] = 4 + (changed[place] - 3) % (VOCAB - 4)
            after = joined_logits(model, batch_of([changed[:source]], [changed[source:]]))[0]
            same = place + (place >= source)  # the separator stands between
            if KINDS[kind].get("source_attention") == "full" and place < source:
                same = 0
            torch.testing.assert_close(after[:same], before[:same], rtol=0, atol=1e-12)
            assert not torch.allclose(after[same:], before[same:], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [*((kind, torch.float64, 1e-10) for kind in KINDS), *((kind, torch.float32, 1e-5) for kind in ("full", "T-DMCA"))],
    ids=str,
)
def test_one_position_at_a_time_gives_the_log_probabilities_of_whole_sequences(
    kind: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = 1.3 if dtype == torch.float64 else 1.0
    model, all_lengths = model_and_lengths(kind, monkeypatch, dtype=dtype, scale=scale)
    *together, alone = [length for length in all_lengths if length > 10]
    for lengths in (*([length] for length in range(1, 11)), together, [alone]):
        sources, targets = [], []
        for length in lengths:
            ids = random_ids(length, seed=length)
            source = 2 * length // 3 if length > 10 else length // 2
            sources.append(ids[:source])
            targets.append(ids[source:])
        assert_same_by_steps(model, batch_of(sources, targets), tolerance)


@pytest.mark.parametrize("kind", SMALL_BLOCKS)
def test_sentences_of_unlike_lengths_are_decoded_together(kind: str) -> None:
    model = model_of(**SMALL_BLOCKS[kind])
    for lengths in ((0, 3, 7), (5, 5, 5), (1, 2, 9), (0, 0, 0), (13, 4, 6)):
        sources = [random_ids(length, seed=length) for length in lengths]
        assert_same_by_steps(model, batch_of(sources, [random_ids(n, seed=n) for n in (11, 14, 9)]), 1e-10)


def assert_same_by_steps(model: DecoderOnly, batch: Batch, tolerance: float) -> None:
    expected = torch.log_softmax(logits_of(model, batch), 2)
    decoder = JoinedStepDecoder(model)
    kinds = {model.config.attention_kind(number) for number in range(len(model.decoder))}
    state = decoder.start(batch.source, batch.source_lengths)
    rows = torch.arange(len(batch.source))[:, None]
    for step in range(batch.target_in.size(1)):
        found = torch.log_softmax(decoder.step(batch.target_in[:, step], state, keep_attention=True), 1)
        for row, length in enumerate(batch.target_lengths.tolist()):
            if step < length:
                torch.testing.assert_close(found[row], expected[row, step], rtol=0, atol=tolerance)
        assert (state.attention is not None) == model.config.sees_source == bool(kinds & {"full", "compressed"})
        if state.attention is not None:
            torch.testing.assert_close(state.attention.sum(1), torch.ones(len(rows), dtype=expected.dtype))
        state.select(rows)


@pytest.mark.parametrize("kind", ["full", "T-DMCA", "source seen whole"])
def test_a_beam_of_one_is_greedy_and_wider_beams_keep_their_hypotheses_apart(kind: str) -> None:
    model = model_of(**{**KINDS[kind], "local_block": 4})
    sources = [random_ids(length, seed=length) for length in (6, 1, 9)]
    batch = batch_of(sources, [[], [], []])

    def search(beam: int) -> list[list[Any]]:
        stepper = ModelStepper([JoinedStepDecoder(model)], batch.source, batch.source_lengths)
        return beam_search(stepper, [12, 12, 12], beam=beam, penalty=length_penalty("none", 0.0))

    for source, [best, *_] in zip(sources, search(1), strict=True):
        ids: list[int] = []
        while len(ids) < 12:
            next_id = int(logits_of(model, batch_of([source], [ids]))[0, -1].argmax())
            if next_id == EOS:
                break
            ids.append(next_id)
        assert list(best.ids) == ids
    for source, hypotheses in zip(sources, search(4), strict=True):
        for hypothesis in hypotheses:
            whole = torch.log_softmax(logits_of(model, batch_of([source], [list(hypothesis.ids)]))[0], 1)
            ids = [*hypothesis.ids, EOS]
            expected = whole[torch.arange(len(ids)), torch.tensor(ids)].sum()
            assert hypothesis.log_prob == pytest.approx(float(expected), abs=1e-6)


def test_the_loss_of_the_source_is_that_of_predicting_its_tokens_and_the_separator() -> None:
    model = model_of()
    batch = batch_of([[5, 6, 7], [8], []], [[9, 10], [11, 12, 13], [14]])
    log_probs = torch.log_softmax(joined_logits(model, batch), 2)
    target_loss, target_nll = batch_loss(model, batch, 0.0)
    loss, nll = batch_loss(model, batch, 0.0, source_loss=0.25)
    of_source = -sum(
        log_probs[row, place, token]
        for row, tokens in enumerate(([6, 7, BOS], [BOS], []))
        for place, token in enumerate(tokens)
    )
    torch.testing.assert_close(loss, target_loss + 0.25 * of_source)
    assert nll == target_nll
    targets = [[9, 10, EOS], [11, 12, 13, EOS], [14, EOS]]
    expected = -sum(
        log_probs[row, start + place, token]
        for row, (start, tokens) in enumerate(zip((3, 1, 0), targets, strict=True))
        for place, token in enumerate(tokens)
    )
    torch.testing.assert_close(target_nll, expected)
    without = batch_of([[], []], [[9, 10], [11]])
    assert batch_loss(model, without, 0.0, source_loss=1.0)[0] == batch_loss(model, without, 0.0)[0]


@pytest.mark.parametrize("kind", [*KINDS, *SMALL_BLOCKS])
@pytest.mark.parametrize("lengths", [(20, 12), (300, 230)])
def test_parameters_and_operations_are_those_of_the_model(kind: str, lengths: tuple[int, int]) -> None:
    model = model_of(**{**KINDS, **SMALL_BLOCKS}[kind])
    assert count_parameters(model.config, VOCAB, VOCAB) == sum(tensor.numel() for tensor in model.parameters())
    batch = batch_of([random_ids(lengths[0], 1)] * 2, [random_ids(lengths[1], 2)] * 2)
    with FlopCounterMode(display=False) as counter:
        logits_of(model, batch)
    expected = forward_flops(model.config, VOCAB, batch.source_lengths.numpy(), batch.target_lengths.numpy())
    assert expected.flops == counter.get_total_flops()
    assert expected.flops_encoder == 0
    with FlopCounterMode(display=False) as counter:
        batch_loss(model, batch, 0.1, source_loss=1.0)
    lengths_of = batch.source_lengths.numpy(), batch.target_lengths.numpy()
    assert forward_flops(model.config, VOCAB, *lengths_of, source_outputs=True).flops == counter.get_total_flops()


def test_long_sequences_are_compressed_in_chunks_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(self_attention=["compressed"])
    batch = batch_of([random_ids(200, 1)], [random_ids(100, 2)])
    expected = logits_of(model, batch)
    monkeypatch.setattr(attention, "MOST_SCORES", 0)
    monkeypatch.setattr(attention, "_QUERIES_AT_ONCE", 64)
    torch.testing.assert_close(logits_of(model, batch), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_that_of_the_parts_of_the_sequence(kind: str) -> None:
    model = model_of(**{**KINDS[kind], "local_block": 4})
    batch = batch_of([random_ids(6, 1)], [random_ids(4, 2)])
    weights = attention_weights(model, batch.source, batch.target_in)
    layers = model.config.decoder_layers
    assert weights.encoder.shape == (layers, 2, 6, 6)
    assert weights.cross.shape == (layers, 2, 5, 6)
    assert weights.decoder.shape == (layers, 2, 5, 5)
    torch.testing.assert_close(weights.cross.sum(3) + weights.decoder.sum(3), torch.ones(layers, 2, 5).double())


@pytest.mark.parametrize("kind", ["local", "compressed", "window"])
def test_encoders_attend_in_the_same_ways_whatever_the_batch(kind: str) -> None:
    torch.manual_seed(3)
    values = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2, "dropout": 0.0}
    values |= {"self_attention": [kind], "local_block": 4, "attention_window": 5}
    config = ModelConfig.model_validate(values)
    model = build_model(config, VOCAB, VOCAB).double().eval()
    together = batch_of([random_ids(length, length) for length in (17, 8, 3)], [[4, 5]] * 3)
    found = model(together.source, together.source_lengths, together.target_in)
    for row, length in enumerate((17, 8, 3)):
        alone = batch_of([random_ids(length, length)], [[4, 5]])
        expected = model(alone.source, alone.source_lengths, alone.target_in)
        torch.testing.assert_close(found[row], expected[0], rtol=0, atol=1e-12)
    assert count_parameters(config, VOCAB, VOCAB) == sum(tensor.numel() for tensor in model.parameters())
    weights = attention_weights(model, alone.source, alone.target_in)
    torch.testing.assert_close(weights.encoder.sum(3), torch.ones(2, 2, 4).double())
