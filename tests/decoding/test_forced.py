import inspect
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.data.batch import pad
from nmtkit.decoding import forced
from nmtkit.decoding.forced import ForcedDecoder, ForcedScore
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.search import beam_search
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, UNK
from tests.decoding.models import TEXT, data_config, model_for, save

PAIRS = [
    *TEXT,
    ("The dog", ""),
    ("", "Der Hund"),
    ("", ""),
    ("A cat. " * 12, "Katze"),
    ("cat", "Eine Katze sieht den Hund und das Haus. " * 5),
    ("The\u2028dog\x0b\x0c\x85", "Der\u2028Hund\x1c"),
    ("中文 \ufffd", "¿qué?"),
]


def decoder_of(tokenizer: Tokenizer, *models: Transformer) -> ForcedDecoder:
    return ForcedDecoder(list(models) or [model_for(tokenizer)], tokenizer, DecodingConfig())


def test_a_model_in_training_mode_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match=r"applies dropout; call its method eval\(\) first"):
        decoder_of(tokenizer, model_for(tokenizer).train())


def by_a_plain_loop(models: list[Transformer], source: list[int], hypothesis: list[int]) -> list[float]:
    """The log-probability of each token, by asking for the next token's distribution again and again."""
    found = []
    for index, token in enumerate([*hypothesis, EOS]):
        prefix = torch.tensor([[BOS, *hypothesis[:index]]])
        ids = torch.tensor([[*source, EOS]])
        distributions = [torch.softmax(model(ids, torch.tensor([ids.size(1)]), prefix)[0, -1], 0) for model in models]
        found.append(math.log(sum(float(distribution[token]) for distribution in distributions) / len(models)))
    return found


def ids_of(tokenizer: Tokenizer, pair: tuple[str, str]) -> tuple[list[int], list[int]]:
    source, hypothesis = map(tokenizer.normalize, pair)
    return tokenizer.encode([source], "source")[0], tokenizer.encode([hypothesis], "target")[0]


# ---- the numbers


@pytest.mark.parametrize(
    ("num_models", "options"),
    [
        (1, {}), (3, {}), (1, {"norm": "pre"}), (1, {"share_embeddings": "none"}), (1, {"positions": "learned"}),
        (1, {"attention_window": 2}),
    ],
)  # fmt: skip
def test_scores_are_those_of_a_plain_loop_over_the_model(
    tokenizer: Tokenizer, num_models: int, options: dict[str, Any]
) -> None:
    models = [model_for(tokenizer, seed=1 + number, **options) for number in range(num_models)]
    scores = decoder_of(tokenizer, *models).score(PAIRS)
    assert len(scores) == len(PAIRS)
    for pair, score in zip(PAIRS, scores, strict=True):
        source, hypothesis = ids_of(tokenizer, pair)
        assert score.ids == (*hypothesis, EOS)
        expected = by_a_plain_loop(models, source, hypothesis)
        assert score.log_probs == pytest.approx(expected, abs=1e-10)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-9)
        assert score.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-9)


@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["one model", "ensemble"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_forced_hypothesis_has_the_log_probability_that_beam_search_reports(
    tokenizer: Tokenizer, dtype: torch.dtype, seeds: list[int]
) -> None:
    models = [model_for(tokenizer, dtype, seed) for seed in seeds]
    sources = tokenizer.encode([source for source, _ in PAIRS if source], "source")
    lengths = torch.tensor([len(ids) + 1 for ids in sources])
    found = beam_search(
        ModelStepper([StepDecoder(model) for model in models], pad(sources, end=EOS), lengths),
        [len(ids) + 3 for ids in sources],
        beam=4,
        penalty=length_penalty("wu", 0.6),
        suppressed=(PAD, BOS, UNK),
    )
    pairs = [(source, entry) for source, entries in zip(sources, found, strict=True) for entry in entries]
    assert len(pairs) > len(sources)
    scores = decoder_of(tokenizer, *models).score_ids(
        [source for source, _ in pairs], [hypothesis.ids for _, hypothesis in pairs]
    )
    for (_, hypothesis), score in zip(pairs, scores, strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert score.log_prob / length_penalty("wu", 0.6)(len(score.ids)) == pytest.approx(hypothesis.score, abs=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_batch_size_order_and_padding_change_no_score(
    tokenizer: Tokenizer, dtype: torch.dtype, tolerance: float
) -> None:
    decoder = decoder_of(tokenizer, model_for(tokenizer, dtype))
    alone = [decoder.score([pair])[0] for pair in PAIRS]
    assert len({round(score.log_prob, 3) for score in alone}) == len(PAIRS)

    def check(pairs: list[tuple[str, str]], expected: list[ForcedScore], **options: int) -> None:
        for score, other in zip(decoder.score(pairs, **options), expected, strict=True):
            assert score.ids == other.ids
            assert score.remarks == other.remarks
            assert score.log_probs == pytest.approx(other.log_probs, rel=tolerance, abs=tolerance)
            assert score.log_prob == pytest.approx(other.log_prob, rel=tolerance, abs=tolerance)

    for batch_tokens in (1, 40, 300, 100_000):
        check(PAIRS, alone, batch_tokens=batch_tokens)
    for seed in range(3):
        order = random.Random(seed).sample(range(len(PAIRS)), len(PAIRS))
        check([PAIRS[index] for index in order], [alone[index] for index in order], batch_tokens=200)
    check(PAIRS * 3, alone * 3)


def test_the_logits_are_taken_in_parts_without_a_difference(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of(tokenizer)
    whole = decoder.score(PAIRS)
    sizes = []
    logits = Transformer.logits

    def recording(self: Transformer, states: torch.Tensor) -> torch.Tensor:
        sizes.append(len(states))
        return logits(self, states)

    monkeypatch.setattr(Transformer, "logits", recording)
    monkeypatch.setattr(forced, "_LOGITS_AT_ONCE", 3 * tokenizer.vocab_size("target") + 1)
    for score, other in zip(decoder.score(PAIRS), whole, strict=True):
        assert score.log_probs == pytest.approx(other.log_probs, abs=1e-11)
    assert max(sizes) == 3


def test_batches_are_as_large_as_asked(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []
    log_probs = forced.token_log_probs

    def recording(models: list[Transformer], batch: forced.Batch) -> torch.Tensor:
        shapes.append((len(batch.source), max(batch.source.size(1), batch.target_in.size(1))))
        return log_probs(models, batch)

    monkeypatch.setattr(forced, "token_log_probs", recording)
    decoder_of(tokenizer).score(TEXT * 5, batch_tokens=60)
    assert sum(rows for rows, _ in shapes) == 20
    assert max(rows for rows, _ in shapes) > 1
    assert max(rows * length for rows, length in shapes) <= 60


def test_a_damaged_model_is_told_instead_of_scores(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer)
    model.output_embedding[5] = float("nan")
    with pytest.raises(ModelError, match="probabilities are not finite"):
        decoder_of(tokenizer, model).score(TEXT)


def test_a_hopeless_hypothesis_has_a_perplexity_that_is_a_number() -> None:
    assert math.isfinite(ForcedScore((3,), (-1e6,)).perplexity)
    assert ForcedScore((3, 4), (-math.log(4), -math.log(16))).perplexity == pytest.approx(8)


# ---- lines


def test_lines_are_normalised_as_the_tokenizer_was_trained() -> None:
    tokenizer = learn_tokenizer(data_config(normalize=["blanks", "lowercase"], vocab_size=60), lambda: TEXT)
    decoder = decoder_of(tokenizer)
    assert decoder.score([("  THE \t dog ", "DER  Hund")]) == decoder.score([("the dog", "der hund")])
    assert decoder.score([("the dog", "der hund")]) != decoder.score([("the cat", "der hund")])


def test_an_empty_side_is_the_end_symbol_alone_and_said(tokenizer: Tokenizer) -> None:
    decoder = decoder_of(tokenizer)
    scores = decoder.score([("The dog", ""), ("", "Der Hund"), ("", ""), ("The dog", "Der Hund")])
    assert [score.remarks for score in scores] == [
        ("empty_hypothesis",), ("empty_source",), ("empty_source", "empty_hypothesis"), (),
    ]  # fmt: skip
    assert scores[0].ids == scores[2].ids == (EOS,)
    assert len({score.log_prob for score in scores}) == 4
    assert decoder.score([]) == []


def test_pairs_are_any_iterable_and_the_line_end_after_a_line_is_no_part_of_it(tokenizer: Tokenizer) -> None:
    decoder = decoder_of(tokenizer)
    expected = decoder.score(TEXT)
    assert decoder.score((f"{source}\n", f"{hypothesis}\r\n") for source, hypothesis in TEXT) == expected
    sources, hypotheses = zip(*(ids_of(tokenizer, pair) for pair in TEXT), strict=True)
    assert inspect.unwrap(ForcedDecoder.score_ids)(decoder, iter(sources), iter(hypotheses)) == expected


def test_of_a_line_that_is_too_long_the_first_tokens_count(tokenizer: Tokenizer) -> None:
    decoder = decoder_of(tokenizer)
    source, hypothesis = ids_of(tokenizer, TEXT[0])
    for limit in (5, min(len(source), len(hypothesis)) - 1):
        (score,) = decoder.score([TEXT[0]], max_tokens=limit)
        assert score.remarks == ("cut_source", "cut_hypothesis")
        assert score.ids == tuple(hypothesis[:limit])
        # The last token is that of the text: it does not end there.
        expected = by_a_plain_loop(decoder._models, source[:limit], hypothesis[: limit + 1])[:limit]
        assert score.log_probs == pytest.approx(expected, abs=1e-10)
    (whole,) = decoder.score([TEXT[0]], max_tokens=max(len(source), len(hypothesis)))
    assert whole.remarks == ()
    assert whole.ids == (*hypothesis, EOS)


def test_the_language_that_a_decoder_begins_with_does_not_count(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "target_start", (5,))
    decoder, [pair] = decoder_of(tokenizer), TEXT[:1]
    ids = tokenizer.encode([pair[1]], "target")[0]
    for limit in (len(ids), len(ids) - 1, 1):
        [score] = decoder.score([pair], max_tokens=limit)
        is_cut = limit < len(ids)
        assert score.ids == (tuple(ids[:limit]) if is_cut else (*ids, EOS))
        assert score.remarks[-1:] == (("cut_hypothesis",) if is_cut else ())
        assert math.isfinite(score.perplexity)


def test_learned_positions_are_a_limit(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer, positions="learned", max_positions=8)
    pair = ("The dog", "Eine Katze sieht den Hund!")
    (score,) = decoder_of(tokenizer, model).score([pair])
    assert score.remarks[-1] == "cut_hypothesis"
    assert len(score.ids) == 7
    other = model_for(tokenizer, positions="learned", max_positions=7)
    assert len(decoder_of(tokenizer, model, other).score([pair])[0].ids) == 6


def test_a_hypothesis_has_all_positions_that_its_source_leaves(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer, architecture="decoder", positions="learned", max_positions=21)
    decoder = decoder_of(tokenizer, model)
    source, hypothesis = list(range(4, 10)), list(range(20, 60))
    pairs = [
        (source, hypothesis), (source[:1], hypothesis), (source, hypothesis[:14]), (source * 9, hypothesis),
        (source, []),
    ]  # fmt: skip
    scores = decoder.score_ids([source for source, _ in pairs], [own for _, own in pairs])
    # A source has at most half of the positions, as in translation.
    assert [len(score.ids) for score in scores] == [14, 19, 15, 10, 1]
    assert [score.remarks for score in scores] == [
        ("cut_hypothesis",), ("cut_hypothesis",), (), ("cut_source", "cut_hypothesis"), ("empty_hypothesis",)
    ]  # fmt: skip
    for (read, own), score in zip(pairs, scores, strict=True):
        expected = by_a_plain_loop([model], read[:10], own[: len(score.ids)])
        assert score.log_probs == pytest.approx(expected[: len(score.ids)], abs=1e-10)


def test_tokens_that_the_model_does_not_know_are_told(tokenizer: Tokenizer) -> None:
    scores = decoder_of(tokenizer).score([("The dog", "Der Hund"), ("The 中", "Der Hund"), ("The dog", "Der 中")])
    assert [score.remarks for score in scores] == [(), (), ("unknown_tokens",)]


def test_a_line_of_100000_characters_has_a_score_and_changes_no_other(tokenizer: Tokenizer) -> None:
    long = ("The small dog sees the small house. " * 3000)[:100_000]
    decoder = decoder_of(tokenizer, model_for(tokenizer, torch.float32, d_model=8, d_ff=8))
    pairs = [TEXT[0], (long, "Der Hund"), ("The dog", long), TEXT[1]]
    scores = decoder.score(pairs, max_tokens=200)
    assert [score.remarks for score in scores] == [(), ("cut_source",), ("cut_hypothesis",), ()]
    assert len(scores[2].ids) == 200
    for index in (0, 3):
        assert scores[index].log_prob == pytest.approx(decoder.score([pairs[index]])[0].log_prob, abs=1e-5)
    assert len(long) == 100_000


# ---- models


def test_models_are_read_from_their_folders(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folders = [tmp_path / str(seed) for seed in (1, 2)]
    settings = {"alpha": 0.5, "length_penalty": "length"}
    models = [save(folder, tokenizer, seed, **settings) for seed, folder in enumerate(folders, start=1)]
    loaded = ForcedDecoder.load(folders)
    exact = decoder_of(tokenizer, *(model.double() for model in models)).score(TEXT)
    assert loaded.score(TEXT) == exact  # so what else is in a batch makes no difference of 1e-5
    rounded = ForcedDecoder.load(folders, precision="float32").score(TEXT)
    assert rounded != exact
    assert [score.log_prob for score in rounded] == pytest.approx([score.log_prob for score in exact], abs=1e-3)
    assert loaded.score(TEXT) != ForcedDecoder.load(folders[:1]).score(TEXT)
    assert (loaded.decoding.alpha, loaded.decoding.length_penalty) == (0.5, "length")


def test_a_precision_that_a_device_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NmtkitError, match="float64 is not available on mps; choose float32"):
        ForcedDecoder.load(tmp_path / "none", "mps", "float64")
    with pytest.raises(NmtkitError, match="precision 'bf16': scores are computed in float64 or float32"):
        ForcedDecoder.load(tmp_path / "none", "cpu", "bf16")


def test_pairs_seem_exchanged_if_most_are_far_more_probable_so(tokenizer: Tokenizer) -> None:
    decoder = decoder_of(tokenizer, model_for(tokenizer, seed=1))
    scored: list[int] = []

    def of_english(pairs: Any, **_: int) -> list[ForcedScore]:
        pairs = list(pairs)
        scored.append(len(pairs))
        return [ForcedScore((5, 5), (-0.5,) * 2 if source.startswith("en") else (-1.6,) * 2) for source, _ in pairs]

    decoder.score = of_english  # type: ignore[method-assign]
    given, other = [("en", "de")], [("de", "en")]
    assert not decoder.prefers_exchanged(given * 60) and not decoder.prefers_exchanged(other * 9)
    assert decoder.prefers_exchanged(other * 10 + [("", "en"), ("de", " ")])
    assert decoder.prefers_exchanged(other * 8 + given * 2) and not decoder.prefers_exchanged(other * 7 + given * 3)
    assert max(scored) == 50
