import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model import attention
from nmtkit.model.attention import MultiHeadAttention, attention_mask
from nmtkit.model.decoder_only import count_parameters
from nmtkit.model.dropout import Dropout
from nmtkit.model.transformer import Transformer, fairseq_positions, sinusoidal_positions
from nmtkit.text.vocabulary import BOS, EOS

TINY = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4, "dropout": 0.0}
VOCAB = 30
SOURCE_LENGTHS = torch.tensor([7, 3, 5])


def tiny_config(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate({**TINY, **changes})


def tiny_model(dtype: torch.dtype = torch.float64, seed: int = 1, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    config = tiny_config(**changes)
    target_vocab = VOCAB if config.share_embeddings == "all" else VOCAB + 7
    return Transformer(config, VOCAB, target_vocab).to(dtype)


def shake(module: nn.Module) -> None:
    """Moves every parameter, biases and norms too, away from its initial value."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)


def random_ids(*shape: int) -> Tensor:
    return torch.randint(4, VOCAB, shape)


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# ---- the same as torch's layers


TORCHS_NAMES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"coder\.(\d)", r"coder.layers.\1"),
    ("coder_norm", "coder.norm"),
    ("self_attention", "self_attn"),
    ("source_attention", "multihead_attn"),
    (r"(query|key|value)\.", "in_proj_"),
    (r"attn\.output", "attn.out_proj"),
    (r"feed_forward\.inner", "linear1"),
    (r"feed_forward\.outer", "linear2"),
    (r"residuals\.(\d)\.norm", lambda match: f"norm{int(match[1]) + 1}"),
]


def as_torchs(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model's layers under the names of torch's; those of queries, keys and values become one."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for ours, theirs in TORCHS_NAMES:
            name = re.sub(ours, theirs, name)
        found[name] = torch.cat([found[name], tensor]) if name in found else tensor
    return found


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("lengths", [SOURCE_LENGTHS, torch.tensor([7, 7, 7])], ids=["padded", "of one length"])
def test_the_whole_model_equals_torchs_stacks_forward_and_backward(norm: str, lengths: Tensor) -> None:
    model = tiny_model(norm=norm)
    shake(model)
    width, heads, inner = model.config.d_model, model.config.num_heads, model.config.d_ff
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre"}
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    layers: list[Any] = [kind(width, heads, inner, **sizes) for kind in kinds]
    norms = [nn.LayerNorm(width) if norm == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(layers[0], 2, norms[0], enable_nested_tensor=False)
    theirs = nn.ModuleDict({"encoder": encoder, "decoder": nn.TransformerDecoder(layers[1], 2, norms[1])}).double()
    weights = model.state_dict()
    table = weights.pop("embeddings.shared").clone().requires_grad_()
    theirs.load_state_dict(as_torchs(weights))

    source, target = random_ids(3, 7), random_ids(3, 6)
    found = model(source, lengths, target)

    def embed(ids: Tensor) -> Tensor:
        return table[ids] * math.sqrt(width) + papers_positions(ids.size(1), width)

    padding = torch.arange(7) >= lengths[:, None]
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    memory = encoder(embed(source), src_key_padding_mask=padding)
    states = theirs["decoder"](embed(target), memory, tgt_mask=causal, memory_key_padding_mask=padding)
    expected = states @ table.T
    assert_close(found, expected)
    weight = torch.randn_like(expected) / 10
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert table.grad is not None
    assert_close(gradients.pop("embeddings.shared"), table.grad)
    gradients = as_torchs(gradients)
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0
        assert_close(gradients[name], parameter.grad)


def test_attention_of_any_head_width_equals_equation_1() -> None:
    torch.manual_seed(4)
    attention = MultiHeadAttention(ModelConfig(d_model=10, num_heads=3, d_k=5, d_v=7)).double()
    shake(attention)
    x, y = torch.randn(2, 4, 10, dtype=torch.float64), torch.randn(2, 6, 10, dtype=torch.float64)
    lengths = torch.tensor([6, 4])
    mask = attention_mask(lengths, x.device)
    found = attention.attend(attention.queries(x), *attention.keys_values(y), mask)
    for sentence in range(2):
        known = y[sentence, : lengths[sentence]]
        heads = []
        for head in range(3):
            of_keys, of_values = slice(5 * head, 5 * head + 5), slice(7 * head, 7 * head + 7)
            query = x[sentence] @ attention.query.weight[of_keys].T + attention.query.bias[of_keys]
            key = known @ attention.key.weight[of_keys].T + attention.key.bias[of_keys]
            value = known @ attention.value.weight[of_values].T + attention.value.bias[of_values]
            heads.append(torch.softmax(query @ key.T / math.sqrt(5), dim=1) @ value)
        expected = torch.cat(heads, 1) @ attention.output.weight.T + attention.output.bias
        assert_close(found[sentence], expected)


# ---- positions and embeddings


def papers_positions(length: int, width: int) -> Tensor:
    """Section 3.5, number by number."""
    rows = []
    for position in range(length):
        angles = [position / 10000 ** (2 * i / width) for i in range(width // 2)]
        rows.append([function(angle) for angle in angles for function in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("width", [2, 16, 512])
def test_positions_are_the_papers_interleaved_and_begin_at_0(width: int) -> None:
    found = sinusoidal_positions(60, width)
    assert_close(found, papers_positions(60, width))
    assert found[0].tolist() == [0.0, 1.0] * (width // 2)


def first_input(layer: nn.Module, run: Callable[[], object]) -> Tensor:
    """What a layer is given when ``run`` is called."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    run()
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("share", ["all", "decoder", "none"])
def test_embeddings_are_scaled_by_the_root_of_d_model_on_input_only(share: str) -> None:
    model = tiny_model(share_embeddings=share)
    tables = {
        "all": ("shared", "shared", "shared"),
        "decoder": ("source", "target", "target"),
        "none": ("source", "target", "output"),
    }[share]
    assert set(model.embeddings) == set(tables)
    of_source, of_target, of_output = (model.embeddings[name] for name in tables)
    source, target = random_ids(2, 7), random_ids(2, 5)
    lengths = torch.tensor([7, 7])
    positions = papers_positions(7, 16)
    found = first_input(model.encoder[0], lambda: model(source, lengths, target))
    assert_close(found, of_source[source] * 4.0 + positions)
    found = first_input(model.decoder[0], lambda: model(source, lengths, target))
    assert_close(found, of_target[target] * 4.0 + positions[:5])
    states = torch.randn(3, 16, dtype=torch.float64)
    assert_close(model.logits(states), states @ of_output.T)


def test_learned_positions_are_added_from_a_table_of_each_side() -> None:
    model = tiny_model(positions="learned", max_positions=9)
    assert model.positions is not None
    source, target, lengths = random_ids(2, 7), random_ids(2, 9), torch.tensor([7, 7])
    for layer, ids, side in [(model.encoder[0], source, "source"), (model.decoder[0], target, "target")]:
        found = first_input(layer, lambda: model(source, lengths, target))
        expected = model.embeddings["shared"][ids] * 4.0 + model.positions[side][: ids.size(1)]
        assert_close(found, expected)


def test_positions_of_fairseq_are_sines_then_cosines_and_begin_at_2() -> None:
    rows = []
    for position in range(2, 42):
        angles = [position / 10000 ** (i / 7) for i in range(8)]
        rows.append([*map(math.sin, angles), *map(math.cos, angles)])
    assert_close(fairseq_positions(40, 16), torch.tensor(rows, dtype=torch.float64), 1e-5)
    model = tiny_model(positions="fairseq")
    source, target, lengths = random_ids(2, 7), random_ids(2, 5), torch.tensor([7, 7])
    found = first_input(model.decoder[0], lambda: model(source, lengths, target))
    assert_close(found, model.embeddings["shared"][target] * 4.0 + fairseq_positions(5, 16))


@pytest.mark.parametrize(("activation", "function"), [("relu", F.relu), ("silu", F.silu)])
def test_the_activation_is_that_of_the_setting(activation: str, function: Callable[[Tensor], Tensor]) -> None:
    layer = tiny_model(activation=activation).encoder[0].feed_forward
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    assert_close(layer(x), layer.outer(function(layer.inner(x))))


def test_a_decoder_that_starts_with_the_end_symbol_reads_its_embedding_at_the_begin_symbol() -> None:
    model, usual = tiny_model(decoder_start="eos"), tiny_model()
    source, lengths = random_ids(2, 7), torch.tensor([7, 7])
    target = torch.tensor([[BOS, 9, 7], [BOS, 5, 8]])
    other = target.masked_fill(target == BOS, EOS)
    assert torch.equal(model(source, lengths, target), usual(source, lengths, other))
    assert not torch.allclose(usual(source, lengths, target), usual(source, lengths, other))
    with_begin = source.clone()
    with_begin[0, 1] = BOS  # only the target is changed
    assert torch.equal(model(with_begin, lengths, other), usual(with_begin, lengths, other))


def test_an_output_bias_is_added_to_the_logits_and_begins_at_0() -> None:
    model = tiny_model(output_bias=True)
    assert model.output_bias is not None and not model.output_bias.any()
    assert count_parameters(model.config, VOCAB, VOCAB) == sum(each.numel() for each in model.parameters())
    with torch.no_grad():
        model.output_bias.normal_()
    states = torch.randn(3, 16, dtype=torch.float64)
    expected = states @ model.output_embedding.T + model.output_bias
    assert_close(model.logits(states), expected)
    first, second = model.output_product(states)
    assert_close(first @ second.T, expected)


def test_sinusoidal_positions_have_no_end() -> None:
    model = tiny_model(encoder_layers=1, decoder_layers=1)
    for length in (3, 1500, 40):
        source = random_ids(1, length)

        def encode(source: Tensor = source, length: int = length) -> object:
            return model.encode(source, torch.tensor([length]))

        found = first_input(model.encoder[0], encode)
        assert_close(found[0], model.embeddings["shared"][source[0]] * 4.0 + papers_positions(length, 16), 1e-11)


def test_translating_longer_text_between_two_updates_does_not_disturb_the_second() -> None:
    def update(model: Transformer) -> Tensor:
        model(source, SOURCE_LENGTHS, target).square().sum().backward()
        gradient = model.embeddings["shared"].grad
        assert gradient is not None
        return gradient

    source, target, longer = random_ids(3, 7), random_ids(3, 6), random_ids(1, 700)
    model, undisturbed = tiny_model(), tiny_model()
    with torch.inference_mode():
        model(longer, torch.tensor([700]), longer)
    assert torch.equal(update(model), update(undisturbed))
    with torch.inference_mode():
        model(longer.repeat(1, 2), torch.tensor([1400]), longer)
    assert torch.equal(update(model), update(undisturbed))


# ---- what a position sees


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_later_target_tokens_never_change_earlier_outputs(norm: str) -> None:
    model = tiny_model(norm=norm)
    source, target = random_ids(3, 7), random_ids(3, 8)
    before = model(source, SOURCE_LENGTHS, target)
    for position in range(7):
        changed = target.clone()
        changed[:, position + 1 :] = (changed[:, position + 1 :] - 4 + 11) % (VOCAB - 4) + 4
        assert (changed[:, position + 1 :] != target[:, position + 1 :]).all()
        after = model(source, SOURCE_LENGTHS, changed)
        assert torch.equal(after[:, : position + 1], before[:, : position + 1])
        assert not torch.allclose(after[:, position + 1], before[:, position + 1])
        changed = target.clone()
        changed[:, position + 1] = (changed[:, position + 1] - 4 + 3) % (VOCAB - 4) + 4
        after = model(source, SOURCE_LENGTHS, changed)
        assert torch.equal(after[:, : position + 1], before[:, : position + 1])


def test_outputs_see_every_source_token_but_no_padding() -> None:
    model = tiny_model()
    source, target = random_ids(3, 7), random_ids(3, 4)
    before = model(source, SOURCE_LENGTHS, target)
    for row, length in enumerate(SOURCE_LENGTHS.tolist()):
        for position in range(7):
            changed = source.clone()
            changed[row, position] = (changed[row, position] - 4 + 5) % (VOCAB - 4) + 4
            after = model(changed, SOURCE_LENGTHS, target)
            others = [other for other in range(3) if other != row]
            assert torch.equal(after[others], before[others])
            if position < length:
                assert not torch.allclose(after[row], before[row])
            else:
                assert torch.equal(after[row], before[row])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_padding_order_and_size_of_a_batch_change_logits_by_rounding_only(
    norm: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = tiny_model(dtype, norm=norm, d_k=5, d_v=3)
    lengths = torch.tensor([9, 2, 6, 1, 9, 4])
    targets = [3, 8, 1, 8, 5, 2]
    source, target = random_ids(6, 9), random_ids(6, 8)
    together = model(source, lengths, target)
    for row in range(6):
        alone = model(
            source[row : row + 1, : lengths[row]], lengths[row : row + 1], target[row : row + 1, : targets[row]]
        )
        assert_close(alone[0], together[row, : targets[row]], tolerance)
    order = torch.tensor([4, 2, 5, 0, 1, 3])
    assert_close(model(source[order], lengths[order], target[order]), together[order], tolerance)
    some = torch.tensor([5, 1, 2])  # padded to 6 now, not to 9
    assert_close(model(source[some, :6], lengths[some], target[some]), together[some], tolerance)


# ---- counts and initial values


@pytest.mark.parametrize(
    ("sizes", "parameters", "of_attention"),
    [({}, 63_082_496, 36_864), ({"d_model": 1024, "d_ff": 4096, "num_heads": 16}, 214_245_376, 73_728)],
    ids=["base", "big"],
)
def test_the_papers_models_have_their_parameters_and_biases_of_attention(
    sizes: dict[str, int], parameters: int, of_attention: int
) -> None:
    config = ModelConfig(**sizes)
    with torch.device("meta"):
        model = Transformer(config, 37_000, 37_000)
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert count_parameters(config, 37_000, 37_000) == parameters
    biases = [each for name, each in model.named_parameters() if re.search(r"attention\.\w+\.bias$", name)]
    assert sum(each.numel() for each in biases) == of_attention


@pytest.mark.parametrize("share", ["all", "decoder", "none"])
def test_embeddings_begin_normal_with_standard_deviation_1_by_root_of_d_model(share: str) -> None:
    torch.manual_seed(5)
    config = ModelConfig(
        encoder_layers=1, decoder_layers=1, d_model=64, d_ff=8, share_embeddings=share, positions="learned"
    )
    model = Transformer(config, 1000, 1000)
    assert model.positions is not None
    for table in [*model.embeddings.values(), *model.positions.values()]:
        assert table.mean().abs() < 0.003
        assert table.std().item() == pytest.approx(64**-0.5, rel=0.02)
        assert (table.abs() < 64**-0.5).float().mean().item() == pytest.approx(0.6827, abs=0.01)


def test_linear_maps_begin_xavier_uniform_and_biases_0() -> None:
    torch.manual_seed(6)
    model = Transformer(tiny_config(d_model=64, d_ff=90, d_k=11, d_v=13), VOCAB, VOCAB)
    shapes = set()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            fan_out, fan_in = module.weight.shape
            shapes.add((fan_in, fan_out))
            bound = math.sqrt(6 / (fan_in + fan_out))
            assert 0.95 * bound < module.weight.max() <= bound
            assert -bound <= module.weight.min() < -0.95 * bound
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
            assert not module.bias.any()
        elif isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and not module.bias.any()
    # queries and keys (one matrix each, not one for all three), values, their output, and the two of the feed-forward
    assert shapes == {(64, 44), (64, 52), (52, 64), (64, 90), (90, 64)}


# ---- dropout


DROPOUTS = ["dropout", "attention_dropout", "ffn_dropout"]


@pytest.mark.parametrize("setting", DROPOUTS)
def test_each_dropout_changes_training_and_not_evaluation(setting: str) -> None:
    source, target = random_ids(3, 7), random_ids(3, 6)
    plain = tiny_model()
    dropping = tiny_model(**{setting: 0.5})
    dropping.load_state_dict(plain.state_dict())
    expected = plain(source, SOURCE_LENGTHS, target)
    first, second = (dropping.train()(source, SOURCE_LENGTHS, target) for _ in range(2))
    assert not torch.allclose(first, expected, atol=1e-3)
    assert not torch.allclose(first, second, atol=1e-3)
    assert torch.equal(dropping.eval()(source, SOURCE_LENGTHS, target), expected)
    assert torch.equal(plain.eval()(source, SOURCE_LENGTHS, target), expected)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_drops_at_its_rate_and_keeps_the_expectation(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    x = torch.full((41, 50, 101), 2.0, dtype=dtype, requires_grad=True)
    dropout = Dropout(rate)
    y = dropout(x)
    assert y.shape == x.shape and y.dtype == dtype
    dropped = y == 0
    torch.testing.assert_close(y[~dropped], torch.full_like(y[~dropped], 2 / (1 - rate)), rtol=1e-4, atol=0)
    flat = dropped.flatten().double()
    error = 5 * math.sqrt(rate * (1 - rate) / flat.numel())  # five standard errors
    assert flat.mean().item() == pytest.approx(rate, abs=error)
    # Each element by itself, whatever its place: also beside those that come from the same random number.
    for distance in (1, 2, 3, 4, 50 * 101):
        assert (flat[distance:] * flat[:-distance]).mean().item() == pytest.approx(rate**2, abs=error)
    for place in range(4):
        assert flat[place::4].mean().item() == pytest.approx(rate, abs=2 * error)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach() / 2)
    assert torch.equal(dropout.eval()(x), x)


def test_dropout_follows_from_the_seed() -> None:
    x, dropout = torch.ones(3, 7), Dropout(0.5)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results += [dropout(x), dropout(x.T).T]
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    assert not any(torch.equal(a, b) for a, b in [(results[0], results[1]), (results[0], results[4])])


def test_dropout_stands_where_the_paper_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(encoder_layers=2, decoder_layers=3, dropout=0.1, attention_dropout=0.2, ffn_dropout=0.3)
    calls: list[tuple[float, int]] = []
    for module in model.modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(lambda module, _, output: calls.append((module.rate, output.size(-1))))
    attend = F.scaled_dot_product_attention
    of_attention: list[float] = []

    def recording(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, is_causal: bool) -> Tensor:
        of_attention.append(dropout)
        return attend(q, k, v, mask, dropout, is_causal)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recording)
    model.train()(random_ids(3, 7), SOURCE_LENGTHS, random_ids(3, 6))
    # Embedding + position of both sides; the outputs of 2 sub-layers an encoder layer and 3 a decoder layer.
    assert calls.count((0.1, 16)) == 2 + 2 * 2 + 3 * 3
    # The inner layer of each feed-forward.
    assert calls.count((0.3, 24)) == 2 + 3
    # The weights of each attention over their keys: 7 of the source, 6 of the target.
    assert calls.count((0.2, 7)) == 2 + 3 and calls.count((0.2, 6)) == 3
    assert len(calls) == 15 + 5 + 8
    # Where torch's own attention is used, it has the same rate.
    monkeypatch.setattr(attention, "MOST_SCORES", 0)
    model(random_ids(3, 7), SOURCE_LENGTHS, random_ids(3, 6))
    assert of_attention == [0.2] * (2 + 2 * 3)
    of_attention.clear()
    model.eval()(random_ids(3, 7), SOURCE_LENGTHS, random_ids(3, 6))
    assert of_attention == [0.0] * (2 + 2 * 3)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("widths", [{}, {"d_k": 3, "d_v": 5}])
def test_attention_by_products_equals_torchs_in_value_and_gradient(
    padded: bool, widths: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = SOURCE_LENGTHS if padded else torch.tensor([7, 7, 7])
    source, target = random_ids(3, 7), random_ids(3, 8)
    results = []
    for most_scores in (attention.MOST_SCORES, 0):
        monkeypatch.setattr(attention, "MOST_SCORES", most_scores)
        model = tiny_model(**widths)
        logits = model(source, lengths, target)
        gradients = torch.autograd.grad(logits.sin().sum(), list(model.parameters()))
        results.append([logits, *gradients])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_positions_are_as_many_as_asked_for_whatever_another_thread_keeps() -> None:
    class Raced(Transformer):
        """Another thread that needs fewer positions always comes right after."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value[:4] if name == "_sinusoids" and isinstance(value, Tensor) else value)

    rows = Raced(tiny_config(), VOCAB, VOCAB).position_rows("source", 2, 9)
    assert_close(rows, sinusoidal_positions(11, 16)[2:].to(rows), 1e-6)
