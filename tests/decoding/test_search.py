import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.decoding import search
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.search import Hypothesis, SearchOptions, beam_search, best_continuations
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.errors import NmtkitError
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer

BOS, EOS = 2, 3
VOCAB = 7
FORBIDDEN = (0, 1, 2)
WORDS = (4, 5, 6)
PENALTIES = [("wu", 0.6), ("wu", 2.0), ("length", 1.0), ("length", 0.3), ("none", 0.6)]

# The next token's log-probabilities [vocab], given the number of the sentence and the tokens so far, BOS not counted.
Table = Callable[[int, tuple[int, ...]], Tensor]


@cache
def history_table(seed: int, *, vocab: int = VOCAB, sharpness: float = 2.0) -> Table:
    """Random numbers that depend on the whole history."""

    @cache
    def log_probs(sentence: int, history: tuple[int, ...]) -> Tensor:
        numbers = np.random.default_rng([seed, sentence, *history]).normal(scale=sharpness, size=vocab)
        return torch.log_softmax(torch.from_numpy(numbers), 0)

    return log_probs


@cache
def last_token_table(seed: int) -> Table:
    """Random numbers that depend on the last token only."""
    rows = torch.log_softmax(torch.from_numpy(np.random.default_rng(seed).normal(scale=2.0, size=(VOCAB, VOCAB))), 1)
    return lambda sentence, history: rows[history[-1] if history else BOS]


class TableStepper:
    """Looks the next token's distribution up."""

    def __init__(self, table: Table, sentences: Sequence[int]) -> None:
        self._table = table
        self._rows: list[tuple[int, tuple[int, ...]]] = [(sentence, ()) for sentence in sentences]
        self._is_first = True
        self.num_steps = 0

    def step(self, last_ids: Tensor) -> Tensor:
        if self._is_first:
            assert last_ids.tolist() == [BOS] * len(self._rows)
        else:
            self._rows = [(row[0], (*row[1], last)) for row, last in zip(self._rows, last_ids.tolist(), strict=True)]
        self._is_first = False
        self.num_steps += 1
        return torch.stack([self._table(sentence, history) for sentence, history in self._rows])

    def attention(self) -> Tensor:
        """Depends on the sentence and the tokens so far; the source has four tokens, of odd sentences only three."""
        rows = []
        for sentence, history in self._rows:
            weights = np.random.default_rng([7, sentence, *history]).dirichlet(np.full(4 - sentence % 2, 0.4))
            rows.append(torch.from_numpy(np.pad(weights, (0, sentence % 2))))
        return torch.stack(rows)

    def select(self, rows: Tensor) -> None:
        for line in rows.tolist():
            assert len({self._rows[row][0] for row in line}) == 1
        self._rows = [self._rows[row] for row in rows.flatten().tolist()]


def find(
    table: Table,
    max_lengths: Sequence[int],
    beam: int,
    options: SearchOptions | None = None,
    *,
    penalty: tuple[str, float] = ("wu", 0.6),
    sentences: Sequence[int] | None = None,
    forbidden: Sequence[int] = FORBIDDEN,
) -> list[list[Hypothesis]]:
    stepper = TableStepper(table, range(len(max_lengths)) if sentences is None else sentences)
    return beam_search(
        stepper, max_lengths, beam=beam, penalty=length_penalty(*penalty), suppressed=forbidden,
        options=options or SearchOptions(),
    )  # fmt: skip


def log_prob_of(table: Table, sentence: int, ids: tuple[int, ...]) -> float:
    """Of a whole translation, its end included."""
    return sum(float(table(sentence, ids[:place])[token]) for place, token in enumerate((*ids, EOS)))


def divisor(penalty: tuple[str, float], tokens: int) -> float:
    """Written down once more: of a translation of that many tokens, the end symbol counted."""
    kind, alpha = penalty
    return {"wu": ((5 + tokens) / 6) ** alpha, "length": tokens**alpha, "none": 1.0}[kind]


@cache
def all_translations(
    table: Table, sentence: int, max_length: int, penalty: tuple[str, float]
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Every translation there is, best score first: score, log-probability, ids."""
    found = []
    for length in range(max_length + 1):
        for ids in itertools.product(WORDS, repeat=length):
            log_prob = log_prob_of(table, sentence, ids)
            found.append((log_prob / divisor(penalty, length + 1), log_prob, ids))
    return sorted(found, reverse=True)


def never_stop_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every live hypothesis go on until its maximum length."""
    monkeypatch.setattr(search, "_can_win", lambda finished, best_live, *others: best_live > -math.inf)


def search_beside(
    table: Table, sentence: int, max_length: int, beam: int, penalty: tuple[str, float]
) -> list[tuple[float, tuple[int, ...]]]:
    """Score and ids of the hypotheses that finish beside the beam, in plain Python."""

    def allowed(ids: tuple[int, ...]) -> Tensor:
        log_probs = table(sentence, ids).clone()
        log_probs[list(FORBIDDEN)] = -torch.inf
        return log_probs.log_softmax(0)

    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished = []
    for length in range(1, max_length + 1):
        candidates = [
            (log_prob + float(allowed(ids)[token]), (*ids, token)) for log_prob, ids in live for token in (EOS, *WORDS)
        ]
        candidates = sorted(candidates, reverse=True)[: 2 * beam]
        for log_prob, ids in candidates[:beam]:
            if ids[-1] == EOS or length == max_length:
                finished.append((log_prob / divisor(penalty, length), tuple(each for each in ids if each != EOS)))
        if len(finished) >= beam:
            break
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
    return sorted(finished, reverse=True)


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_finished_hypotheses_beside_the_beam_equal_a_plain_search(beam: int, penalty: tuple[str, float]) -> None:
    max_lengths = [6, 1, 9, 3, 2, 6, 7]
    options = SearchOptions(beside=True, keep_attention=True, source_lengths=[4, 3] * 4)
    for seed in range(4):
        table = history_table(seed, sharpness=1.0)
        found = find(table, max_lengths, beam, options, penalty=penalty)
        for sentence, max_length in enumerate(max_lengths):
            expected = search_beside(table, sentence, max_length, beam, penalty)
            assert [hypothesis.ids for hypothesis in found[sentence]] == [ids for _, ids in expected]
            assert [hypothesis.score for hypothesis in found[sentence]] == pytest.approx(
                [score for score, _ in expected]
            )
            for hypothesis in found[sentence]:
                assert len(hypothesis.token_log_probs) == len(hypothesis.ids) + 1
                assert sum(hypothesis.token_log_probs) == pytest.approx(hypothesis.log_prob)
                assert hypothesis.attention is not None
                assert hypothesis.attention.shape == (len(hypothesis.ids) + 1, 4 - sentence % 2)
                histories = [hypothesis.ids[:length] for length in range(max_length)][: len(hypothesis.ids) + 1]
                for row, history in zip(hypothesis.attention, histories, strict=False):
                    weights = np.random.default_rng([7, sentence, *history]).dirichlet(np.full(4 - sentence % 2, 0.4))
                    assert row.numpy() == pytest.approx(weights)
        if beam > 1:
            assert found != find(table, max_lengths, beam, penalty=penalty)
            assert any(each.token_log_probs[-1] == 0 for hypotheses in found for each in hypotheses)


@pytest.mark.parametrize("beside", [False, True])
def test_a_search_ends_where_only_the_end_may_follow_even_below_the_minimum_length(beside: bool) -> None:
    """At a maximum length of 0, and where a constraint excludes all that the minimum length leaves."""

    def nothing_after_two(step: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        if tokens.size(2) > 2:
            step[:] = -torch.inf

    options = SearchOptions(min_tokens=5, beside=beside, constraints=(nothing_after_two,))
    [[empty, *_], [short, *_]] = find(history_table(1), [0, 9], 2, options)
    assert (len(empty.ids), len(short.ids)) == (0, 2)


# ---- greedy and exhaustive search


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make_table", [history_table, last_token_table])
def test_beam_1_equals_greedy(make_table: Callable[[int], Table], seed: int) -> None:
    table = make_table(seed)
    max_lengths = [6, 3, 9]
    found = find(table, max_lengths, beam=1)
    for sentence, max_length in enumerate(max_lengths):
        ids: list[int] = []
        log_prob = 0.0
        while True:
            step = table(sentence, tuple(ids))
            allowed = (EOS, *WORDS) if len(ids) < max_length else (EOS,)
            token = max(allowed, key=lambda token: float(step[token]))
            log_prob += float(step[token])
            if token == EOS:
                break
            ids.append(token)
        assert [hypothesis.ids for hypothesis in found[sentence]] == [tuple(ids)]
        assert found[sentence][0].log_prob == pytest.approx(log_prob, abs=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("make_table", [history_table, last_token_table])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_wide_beam_equals_exhaustive_search(
    make_table: Callable[[int], Table], seed: int, penalty: tuple[str, float]
) -> None:
    table = make_table(seed)
    max_lengths = [4, 0, 3]
    found = find(table, max_lengths, beam=130, penalty=penalty)
    for sentence, max_length in enumerate(max_lengths):
        score, log_prob, ids = all_translations(table, sentence, max_length, penalty)[0]
        best = found[sentence][0]
        assert best.ids == ids
        assert best.log_prob == pytest.approx(log_prob, abs=1e-12)
        assert best.score == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 2.0])
def test_length_penalties_equal_their_formulas(alpha: float) -> None:
    for n in (1, 2, 7, 100):
        assert length_penalty("wu", alpha)(n) == pytest.approx(((5 + n) / 6) ** alpha, rel=1e-12)
        assert length_penalty("length", alpha)(n) == pytest.approx(n**alpha, rel=1e-12)
        assert length_penalty("none", alpha)(n) == 1.0
    assert length_penalty("wu", 1.0)(1) == 1.0
    assert length_penalty("wu", 0.6)(7) == pytest.approx(2**0.6)


def test_of_equal_scores_the_hypothesis_that_finished_first_is_the_better_one() -> None:
    # 4 and the end, 1/4 x 1/2; 5, 5 and the end, 1/4 x 1/2 x 1: powers of 2, so that both are exactly -log 8.
    certain, impossible = 0.0, -math.inf
    half, quarter = math.log(0.5), math.log(0.25)

    def table(sentence: int, history: tuple[int, ...]) -> Tensor:
        following = {
            (): {4: quarter, 5: quarter, 6: half},
            (4,): {EOS: half, 4: half},
            (5,): {5: half, 6: half},
            (5, 5): {EOS: certain},
        }.get(history, {EOS: impossible, 4: certain})
        return torch.tensor([following.get(token, impossible) for token in range(VOCAB)], dtype=torch.float64)

    best, second = find(table, [2], beam=12, penalty=("none", 0.0))[0][:2]
    assert best.score == second.score == pytest.approx(-math.log(8))
    assert (best.ids, second.ids) == ((4,), (5, 5))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_wide_beam_that_never_stops_finds_every_translation(
    monkeypatch: pytest.MonkeyPatch, penalty: tuple[str, float]
) -> None:
    never_stop_early(monkeypatch)
    table = history_table(3)
    found = find(table, [3], beam=50, penalty=penalty)[0]
    expected = all_translations(table, 0, 3, penalty)
    assert len(found) == len(expected) == 1 + 3 + 9 + 27
    assert {hypothesis.ids for hypothesis in found} == {ids for _, _, ids in expected}
    for hypothesis, (score, log_prob, _) in zip(found, expected, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=1e-12)
        assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-12)


@pytest.mark.parametrize("vocab", [331, 32003])
def test_where_one_continuation_is_possible_the_others_kept_are_impossible_ones_of_the_vocabulary(vocab: int) -> None:
    step = torch.full((2, 3, vocab), -torch.inf)
    step[:, 1, -1] = 0.0
    best, origins, last = best_continuations(torch.zeros(2, 3), step, np.zeros((2, 3, 1), np.int64), (0, 1), 4)
    assert best[:, 0].tolist() == [0.0, 0.0]
    assert best[:, 1:].eq(-torch.inf).all()
    assert (origins[:, 0].tolist(), last[:, 0].tolist()) == ([1, 1], [vocab - 1, vocab - 1])
    assert origins.max() < 3
    assert last.max() < vocab


def test_a_beam_of_2_keeps_the_two_best_continuations() -> None:
    # Worked out by hand. After BOS: 4 (0.5), 5 (0.4), 6 (0.1). The best end of all lies behind 5, one as good as
    # certain behind 6, which a beam of 2 has lost.
    numbers = {(): [0.5, 0.4, 0.1, 0.0], (4,): [0.6, 0.2, 0.1, 0.1], (5,): [0.05, 0.05, 0.0, 0.9], (6,): [0, 0, 0, 1.0]}

    def table(sentence: int, history: tuple[int, ...]) -> Tensor:
        four, five, six, end = numbers.get(history, [0.0, 0.0, 0.0, 1.0])
        return torch.tensor([0.0, 0.0, 0.0, end, four, five, six], dtype=torch.float64).log()

    found = find(table, [5], beam=2, penalty=("none", 0.0))[0]
    assert [hypothesis.ids for hypothesis in found] == [(5,)]  # 4 4 is worth 0.3 and cannot win any more
    assert found[0].log_prob == pytest.approx(math.log(0.4 * 0.9))
    greedy = find(table, [5], beam=1, penalty=("none", 0.0))[0]
    assert [hypothesis.ids for hypothesis in greedy] == [(4, 4)]
    assert greedy[0].log_prob == pytest.approx(math.log(0.5 * 0.6))


# ---- where search ends


@pytest.mark.parametrize("penalty", [*PENALTIES, ("length", 0.0), ("wu", 5.0)])
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_stopping_early_changes_no_translation(
    monkeypatch: pytest.MonkeyPatch, beam: int, penalty: tuple[str, float]
) -> None:
    max_lengths = [7, 2, 5, 7, 0, 6, 7, 7]
    for table in (history_table(6), history_table(7, sharpness=0.7), last_token_table(8)):
        early = find(table, max_lengths, beam, penalty=penalty)
        with monkeypatch.context() as patch:
            never_stop_early(patch)
            late = find(table, max_lengths, beam, penalty=penalty)
        assert [hypotheses[0] for hypotheses in early] == [hypotheses[0] for hypotheses in late]


def test_search_stops_when_no_live_hypothesis_can_win(monkeypatch: pytest.MonkeyPatch) -> None:
    table = history_table(6)

    def steps() -> int:
        stepper = TableStepper(table, [0])
        penalty = length_penalty("none", 0.0)
        beam_search(stepper, [8], beam=3, penalty=penalty, suppressed=FORBIDDEN)
        return stepper.num_steps

    early = steps()
    never_stop_early(monkeypatch)
    assert early < steps() == 9


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_forbidden_tokens_never_appear(beam: int) -> None:
    base = history_table(10)

    def table(sentence: int, history: tuple[int, ...]) -> Tensor:
        log_probs = base(sentence, history).clone()
        log_probs[[0, 1, 2, 5]] += 10.0
        return torch.log_softmax(log_probs, 0)

    def tokens(forbidden: Sequence[int]) -> set[int]:
        found = find(table, [5, 4, 6], beam, forbidden=forbidden)
        return {token for hypotheses in found for hypothesis in hypotheses for token in hypothesis.ids}

    assert tokens([0, 1, 2, 5]) <= {4, 6}
    assert 5 in tokens([0, 1, 2])
    assert tokens([]) & {0, 1, 2}


@pytest.mark.parametrize("beam", [1, 3, 20])
def test_sentences_of_a_batch_do_not_influence_each_other(beam: int) -> None:
    table = history_table(12)
    max_lengths = [6, 0, 9, 3, 1, 6]
    together = find(table, max_lengths, beam)
    alone = [
        find(table, [max_length], beam, sentences=[sentence])[0] for sentence, max_length in enumerate(max_lengths)
    ]
    assert together == alone
    order = [3, 5, 0, 2, 4, 1]
    mixed = find(table, [max_lengths[sentence] for sentence in order], beam, sentences=order)
    assert mixed == [alone[sentence] for sentence in order]
    assert find(table, [], beam) == []


@pytest.mark.parametrize(
    ("beam", "first_bad_length", "value"),
    [(1, 0, math.nan), (4, 0, math.nan), (1, 2, math.nan), (1, 0, -math.inf), (4, 0, -math.inf)],
)
def test_a_model_without_usable_numbers_ends_in_an_error_and_not_in_an_endless_search(
    beam: int, first_bad_length: int, value: float
) -> None:
    base = history_table(1)

    def table(sentence: int, history: tuple[int, ...]) -> Tensor:
        assert len(history) < 20, "far beyond the maximum length"
        log_probs = base(sentence, history).clone()
        log_probs[EOS] = -100.0
        return torch.full((VOCAB,), value).double() if len(history) >= first_bad_length else log_probs

    with pytest.raises(NmtkitError, match="finite"):
        find(table, [3], beam)


# ---- models behind the search


SOURCE = torch.tensor([[4, 5, 6, 7, 8, 9, 3], [9, 5, 3, 0, 0, 0, 0], [6, 6, 7, 4, 3, 0, 0]])
SOURCE_LENGTHS = torch.tensor([7, 3, 5])
MODEL_VOCAB = 12


def model_of(seed: int, dtype: torch.dtype, **changes: object) -> Transformer:
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2}
    torch.manual_seed(seed)
    model = Transformer(ModelConfig.model_validate({**sizes, **changes}), MODEL_VOCAB, MODEL_VOCAB)
    return model.to(dtype).requires_grad_(False).eval()


def search_with(models: Sequence[Transformer], beam: int = 4) -> list[list[Hypothesis]]:
    stepper = ModelStepper([StepDecoder(model) for model in models], SOURCE, SOURCE_LENGTHS)
    penalty = length_penalty("wu", 0.6)
    return beam_search(stepper, [6, 6, 3], beam=beam, penalty=penalty, suppressed=FORBIDDEN)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_an_ensemble_averages_the_probabilities_of_its_models(dtype: torch.dtype, tolerance: float) -> None:
    models = [model_of(1, dtype), model_of(2, dtype, norm="pre", decoder_layers=1), model_of(3, dtype, d_model=4)]
    stepper = ModelStepper([StepDecoder(model) for model in models], SOURCE, SOURCE_LENGTHS)
    histories = torch.full((3, 1), BOS)
    for tokens in ([4, 5, 6], [7, 7, 8], [9, 4, 10]):
        found = stepper.step(histories[:, -1])
        # Whole targets: the mean of the distributions.
        probs = [torch.softmax(model(SOURCE, SOURCE_LENGTHS, histories)[:, -1], 1) for model in models]
        assert (probs[0] - probs[1]).abs().max() > 0.01
        expected = torch.stack(probs).mean(0).log()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        stepper.select(torch.tensor([[0], [1], [2]]))
        histories = torch.cat([histories, torch.tensor(tokens)[:, None]], 1)


@pytest.mark.parametrize("beam", [1, 4])
def test_searching_with_a_model_equals_searching_its_table(beam: int) -> None:
    model = model_of(4, torch.float64)

    def table(sentence: int, history: tuple[int, ...]) -> Tensor:
        source = SOURCE[sentence : sentence + 1, : SOURCE_LENGTHS[sentence]]
        target = torch.tensor([[BOS, *history]])
        return torch.log_softmax(model(source, SOURCE_LENGTHS[sentence : sentence + 1], target)[0, -1], 0)

    found = search_with([model], beam)
    expected = find(table, [6, 6, 3], beam)
    for mine, other in zip(found, expected, strict=True):
        assert [hypothesis.ids for hypothesis in mine] == [hypothesis.ids for hypothesis in other]
        assert [h.log_prob for h in mine] == pytest.approx([h.log_prob for h in other], abs=1e-12)


# ---- the best continuations


@pytest.mark.parametrize("vocab", [5, 63, 64, 300, 640, 1003, 1009])
@pytest.mark.parametrize(("live", "beam"), [(1, 1), (1, 4), (4, 4), (3, 9), (4, 40)])
def test_the_best_continuations_are_the_best_of_all(vocab: int, live: int, beam: int) -> None:
    torch.manual_seed(vocab * 100 + beam)
    step = torch.log_softmax(torch.randn(3, live, vocab, dtype=torch.float64) * 3, -1)
    step[:, :, :3] = -torch.inf
    log_probs = torch.randn(3, live, dtype=torch.float64)
    log_probs[0, live - 1] = -torch.inf if live > 1 else 0.0
    scores = (log_probs[:, :, None] + step).flatten(1)
    expected = scores.topk(min(beam, live * vocab), dim=1).values
    best, origins, last = best_continuations(log_probs, step, np.zeros((3, live, 1), np.int64), [0, 1, 2], beam)
    torch.testing.assert_close(best, expected, rtol=0, atol=0)
    finite = best.isfinite()
    found = torch.stack([log_probs[row, origins[row]] + step[row, origins[row], last[row]] for row in range(3)])
    torch.testing.assert_close(found[finite], best[finite], rtol=0, atol=0)
    for row in range(3):
        pairs = list(zip(origins[row][finite[row]].tolist(), last[row][finite[row]].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
    assert int(last.max()) < vocab
    assert int(origins.max()) < live
