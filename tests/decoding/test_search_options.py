"""Constraints, sampling, required phrases, n-best lists and coverage, against enumerating all translations."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.config.model_schema import ModelConfig
from nmtkit.decoding.constraints import (
    ended_words,
    forbidden_phrases,
    forced_prefixes,
    no_repeated_ngrams,
    progress,
    required_phrases,
)
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.request import Sampling
from nmtkit.decoding.sampling import sampled_continuations
from nmtkit.decoding.search import Hypothesis, SearchOptions, beam_search
from nmtkit.decoding.stepper import ModelStepper
from nmtkit.distributed.workers import widest_float
from nmtkit.errors import ModelError
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer
from nmtkit.tasks.task import Constraint
from tests.decoding.models import WithoutFloat64
from tests.decoding.test_search import (
    BOS,
    EOS,
    FORBIDDEN,
    VOCAB,
    WORDS,
    Table,
    all_translations,
    find,
    history_table,
    last_token_table,
    log_prob_of,
    never_stop_early,
)

PENALTY = ("wu", 0.6)
WIDE = 400
Ids = tuple[int, ...]


def holds(ids: Ids, phrase: Ids) -> bool:
    return any(ids[start : start + len(phrase)] == phrase for start in range(len(ids) - len(phrase) + 1))


def check_best(
    found: Sequence[Hypothesis], table: Table, sentence: int, max_length: int, allows: Callable[[Ids], bool]
) -> None:
    """The first hypothesis is the best of all translations that are allowed."""
    entries = all_translations(table, sentence, max_length, PENALTY)
    _, log_prob, ids = next(entry for entry in entries if allows(entry[2]))
    assert found[0].ids == ids
    assert found[0].log_prob == pytest.approx(log_prob, abs=1e-12)


# ---- constraints


def repeats(ids: Ids, size: int) -> bool:
    return max(Counter(itertools.pairwise(ids) if size == 2 else zip(ids)).values(), default=0) > 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("constraint", "allows"),
    [
        (no_repeated_ngrams(1), lambda sentence, ids: not repeats(ids, 1)),
        (no_repeated_ngrams(2), lambda sentence, ids: not repeats(ids, 2)),
        (forbidden_phrases([(4,), (5, 6)]), lambda sentence, ids: not holds(ids, (4,)) and not holds(ids, (5, 6))),
        (
            forbidden_phrases([(5, 6, 5), (4, 4)]),
            lambda sentence, ids: not holds(ids, (5, 6, 5)) and not holds(ids, (4, 4)),
        ),
        (forced_prefixes([(6, 4), (5,)]), lambda sentence, ids: ids[:1] == (5,) if sentence else ids[:2] == (6, 4)),
    ],
)
def test_under_a_rule_a_wide_beam_finds_the_best_of_what_is_allowed(
    constraint: Constraint, allows: Callable[[int, Ids], bool], seed: int
) -> None:
    table = history_table(seed)
    found = find(table, [4, 3], WIDE, SearchOptions(constraints=(constraint,)))
    for sentence, max_length in enumerate([4, 3]):
        check_best(found[sentence], table, sentence, max_length, partial(allows, sentence))


@pytest.mark.parametrize("constraints", [(), (forbidden_phrases([(4, 4, 4, 4, 4)]),)], ids=["alone", "constrained"])
@pytest.mark.parametrize("seed", range(4))
def test_under_a_minimum_length_a_wide_beam_finds_the_best_of_what_is_allowed(
    seed: int, constraints: tuple[Constraint, ...]
) -> None:
    table = history_table(seed)
    found = find(table, [4, 3], WIDE, SearchOptions(min_tokens=3, constraints=constraints))
    for sentence, max_length in enumerate([4, 3]):
        check_best(found[sentence], table, sentence, max_length, lambda ids: len(ids) >= 3)


def test_a_forced_prefix_may_repeat_itself_and_what_follows_may_not() -> None:
    constraints = (no_repeated_ngrams(1, [3, 0]), forced_prefixes([(4, 4, 4), ()]))
    found = find(history_table(3), [5, 5], WIDE, SearchOptions(constraints=constraints))
    assert found[0][0].ids[:3] == (4, 4, 4)
    for hypothesis in found[0]:
        assert not repeats(hypothesis.ids[2:], 1)
    assert not any(repeats(hypothesis.ids, 1) for hypothesis in found[1])


def test_a_hypothesis_that_may_not_go_on_ends() -> None:
    options = SearchOptions(min_tokens=9, constraints=(forbidden_phrases([(4,), (5,), (6,)]),))
    [found] = find(history_table(0), [5], 3, options)
    assert [hypothesis.ids for hypothesis in found] == [()]
    assert found[0].log_prob == pytest.approx(log_prob_of(history_table(0), 0, ()))


# ---- n-best


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_the_n_best_translations(seed: int) -> None:
    table = history_table(seed)
    [found] = find(table, [3], WIDE, SearchOptions(n_best=5))
    expected = all_translations(table, 0, 3, PENALTY)[:5]
    assert [hypothesis.ids for hypothesis in found[:5]] == [ids for _, _, ids in expected]
    assert [hypothesis.score for hypothesis in found[:5]] == pytest.approx([score for score, _, _ in expected])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n_best", [2, 4])
def test_the_best_does_not_depend_on_how_many_are_asked_for(seed: int, n_best: int) -> None:
    table = last_token_table(seed)
    one = find(table, [9, 5, 0], 4)
    several = find(table, [9, 5, 0], 4, SearchOptions(n_best=n_best))
    for first, more in zip(one, several, strict=True):
        assert (more[0].ids, more[0].score) == (first[0].ids, first[0].score)
    assert len(several[0]) >= n_best


@pytest.mark.parametrize("seed", range(8))
def test_stopping_early_changes_none_of_the_n_best(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = history_table(seed)
    early = find(table, [7, 4], 3, SearchOptions(n_best=2))
    never_stop_early(monkeypatch)
    late = find(table, [7, 4], 3, SearchOptions(n_best=2))
    for some, all_ in zip(early, late, strict=True):
        assert [hypothesis.ids for hypothesis in some[:2]] == [hypothesis.ids for hypothesis in all_[:2]]


@pytest.mark.parametrize("beam", [1, 3])
def test_token_log_probs_are_those_of_the_table_and_add_up(beam: int) -> None:
    table = history_table(2)
    for hypotheses in find(table, [6, 4], beam, SearchOptions(n_best=beam)):
        for hypothesis in hypotheses:
            assert sum(hypothesis.token_log_probs) == pytest.approx(hypothesis.log_prob, abs=1e-12)
    best = find(table, [6], beam)[0][0]
    expected = [float(table(0, best.ids[:place])[token]) for place, token in enumerate((*best.ids, EOS))]
    assert best.token_log_probs == pytest.approx(expected, abs=1e-12)


# ---- coverage


def coverage_of(sentence: int, ids: Ids) -> float:
    """sum over the source of log(min(attention, 1)), written down once more."""
    size = 4 - sentence % 2
    total = np.zeros(size)
    for place in range(len(ids) + 1):
        total += np.random.default_rng([7, sentence, *ids[:place]]).dirichlet(np.full(size, 0.4))
    return float(np.log(np.minimum(total, 1.0)).sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_with_coverage_a_wide_beam_equals_exhaustive_search(seed: int, beta: float) -> None:
    table = history_table(seed)
    options = SearchOptions(coverage=beta, source_lengths=[4, 3])
    found = find(table, [4, 3], WIDE, options)
    changed = 0
    for sentence, max_length in enumerate([4, 3]):
        everything = all_translations(table, sentence, max_length, PENALTY)
        score, ids = max((score + beta * coverage_of(sentence, ids), ids) for score, _, ids in everything)
        assert found[sentence][0].ids == ids
        assert found[sentence][0].score == pytest.approx(score, abs=1e-9)
        changed += ids != everything[0][2]
    if beta > 1:
        assert changed  # else the test could not fail


def test_the_models_attention_adds_up_over_the_source_and_spares_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = ModelConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=32, num_heads=2)
    model = Transformer(config, VOCAB, VOCAB).double().eval()
    source, lengths = torch.tensor([[4, 5, 6, 3], [6, 5, 3, 0]]), torch.tensor([4, 3])
    with torch.inference_mode():
        stepper = ModelStepper([StepDecoder(model), StepDecoder(model)], source, lengths, keep_attention=True)
        options = SearchOptions(keep_attention=True, source_lengths=lengths.tolist())
        found = beam_search(
            stepper, [4, 4], beam=3, penalty=length_penalty(*PENALTY), suppressed=FORBIDDEN,
            options=options,
        )  # fmt: skip
        # Once more by hand: the last layer's weights for the whole translation at once.
        attend = model.decoder[1].source_attention.attend
        for row, hypotheses in enumerate(found):
            ids, attention = hypotheses[0].ids, hypotheses[0].attention
            assert attention is not None
            one = source[row : row + 1, : lengths[row]]
            encoded = model.encode(one, lengths[row : row + 1])
            recorded = []
            monkeypatch.setattr(
                model.decoder[1].source_attention,
                "attend",
                lambda queries, keys, *rest: (recorded.append((queries, keys)), attend(queries, keys, *rest))[1],  # noqa: B023
            )
            model.decode(torch.tensor([[BOS, *ids]]), *encoded)
            [(queries, keys)] = recorded
            expected = torch.softmax(queries @ keys.transpose(2, 3) / math.sqrt(8), -1).mean(1)[0]
            torch.testing.assert_close(attention, expected)
            torch.testing.assert_close(attention.sum(1), torch.ones(len(ids) + 1, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(4))
def test_a_word_that_ends_is_not_continued(seed: int) -> None:
    table, prefix = history_table(seed), (5, 6)
    forced = forced_prefixes([prefix])
    [free] = find(table, [6], WIDE, SearchOptions(n_best=3, constraints=(forced,)))
    following = next(one.ids[2] for one in free if len(one.ids) > 2)
    continuing = torch.arange(VOCAB) == following
    [found] = find(table, [6], WIDE, SearchOptions(n_best=3, constraints=(forced, ended_words([2], continuing))))
    assert found[0].ids[:2] == prefix
    assert all(one.ids[2:3] != (following,) for one in found)
    [same] = find(table, [6], WIDE, SearchOptions(n_best=3, constraints=(forced, ended_words([0], continuing))))
    assert [one.ids for one in same] == [one.ids for one in free]


# ---- required phrases


def single(phrases: list[Ids]) -> list[tuple[Ids]]:
    """Phrases without alternatives."""
    return [(phrase,) for phrase in phrases]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("phrases", [[(6, 6)], [(4, 5), (5, 4)], [(6,), (5, 5, 5)], [(4, 4, 5), (4, 5, 4)]])
def test_required_phrases_are_held(phrases: list[Ids], beam: int, seed: int) -> None:
    options = SearchOptions(select=required_phrases([single(phrases), []], [9, 9]))
    constrained, free = find(history_table(seed), [9, 9], beam, options)
    assert all(holds(hypothesis.ids, phrase) for hypothesis in constrained for phrase in phrases)
    assert free[0].ids == find(history_table(seed), [9], beam, SearchOptions(), sentences=[1])[0][0].ids


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("phrases", [[(6, 6)], [(4,), (5,)]])
def test_with_required_phrases_a_wide_beam_finds_the_best_that_holds_them(phrases: list[Ids], seed: int) -> None:
    table = history_table(seed)
    [found] = find(table, [4], WIDE, SearchOptions(select=required_phrases([single(phrases)], [4])))
    check_best(found, table, 0, 4, lambda ids: all(holds(ids, phrase) for phrase in phrases))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alternatives", [[((6, 6), (5,))], [((4, 5), (6, 4, 4)), ((6,),)], [((6, 6, 6), (5, 5, 5))]])
def test_any_of_the_alternatives_of_a_phrase_is_enough(alternatives: list[tuple[Ids, ...]], seed: int) -> None:
    def allows(ids: Ids) -> bool:
        return all(any(holds(ids, phrase) for phrase in phrases) for phrases in alternatives)

    table = history_table(seed)
    [found] = find(table, [4], WIDE, SearchOptions(select=required_phrases([alternatives], [4])))
    check_best(found, table, 0, 4, allows)
    for beam in (1, 3):
        [narrow] = find(table, [9], beam, SearchOptions(select=required_phrases([alternatives], [9])))
        assert allows(narrow[0].ids)


def test_progress_through_the_longer_alternative_ends_in_the_tokens_of_the_shorter() -> None:
    alternatives = [((4, 5), (6, 7, 8, 9))]
    found = [progress((6, 7, 8, 9)[:count], alternatives) for count in range(5)]
    assert [(one.held, one.possible, one.begun) for one in found] == [
        (0, 2, 0),
        (0, 2, 1),
        (0, 2, 1),
        (0, 2, 1),
        (2, 0, 0),
    ]
    assert found[2].following == {4, 8}
    assert progress((6, 7), alternatives, 1).following == {4, 8}
    assert progress((5, 6, 7), alternatives, 1).following == {8}  # the shorter one would repeat its last token


def test_where_phrases_have_no_room_the_translation_still_ends() -> None:
    [found] = find(history_table(0), [2], 3, SearchOptions(select=required_phrases([[((4, 5, 6),)]], [2])))
    assert found
    assert all(len(hypothesis.ids) <= 2 for hypothesis in found)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("size", "phrases", "possible"),
    [
        (1, [(6, 6)], []),
        (1, [(6, 6), (4,)], [(4,)]),
        (1, [(5, 6)], [(5, 6)]),
        (2, [(6, 6, 6), (5, 4)], [(5, 4)]),
        (2, [(4, 5), (6,)], [(4, 5), (6,)]),
        (1, [(4, 5), (5, 6)], [(4, 5), (5, 6)]),  # they overlap
    ],
)
def test_a_phrase_that_cannot_be_generated_without_repeating_is_done_without(
    size: int, phrases: list[Ids], possible: list[Ids], seed: int
) -> None:
    table, select = history_table(seed), required_phrases([single(phrases)], [4], size)
    [found] = find(table, [4], WIDE, SearchOptions(constraints=(no_repeated_ngrams(size),), select=select))
    check_best(
        found, table, 0, 4, lambda ids: not repeats(ids, size) and all(holds(ids, phrase) for phrase in possible)
    )


@pytest.mark.parametrize(("size", "phrase"), [(1, (5, 6)), (2, (5, 6, 7))])
def test_a_sentence_that_loses_its_last_hypothesis_keeps_those_that_have_ended(size: int, phrase: Ids) -> None:
    """In a narrow beam one that has ended may hold more than all that are left still can."""
    dropped = 0

    def select(*arguments: Any) -> Any:
        nonlocal dropped
        best, origins, last = chooser(*arguments)
        dropped += bool((best == -math.inf).all())
        return best, origins, last

    for seed in range(60):
        chooser = required_phrases([[(phrase,)]], [12], size)
        options = SearchOptions(n_best=2, constraints=(no_repeated_ngrams(size),), select=select)
        [found] = find(history_table(seed, vocab=12, sharpness=1.5), [12], 2, options)
        assert found
        assert all(not repeats(one.ids, size) for one in found)
    assert dropped


@pytest.mark.parametrize("what", [math.nan, math.inf])
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(n_best=3),
        SearchOptions(n_best=3, select=required_phrases([[((5,),)]], [9])),
        SearchOptions(select=sampled_continuations([(1,)], Sampling()), sampled=True),
        SearchOptions(select=sampled_continuations([(1,)], Sampling(3.0, 3, 0.99)), sampled=True),
    ],
    ids=["beam", "phrases", "samples", "few samples"],
)
def test_a_model_that_gives_no_numbers_any_more_is_told_though_a_hypothesis_has_ended(
    options: SearchOptions, what: float
) -> None:
    table = history_table(1)

    def breaks(sentence: int, history: Ids) -> torch.Tensor:
        row = table(sentence, history)
        return torch.full_like(row, what) if len(history) >= 3 else row

    with pytest.raises(ModelError, match="probabilities are not finite"):
        find(breaks, [9], 3, options)


def test_one_hypothesis_without_numbers_is_told_with_required_phrases() -> None:
    table = history_table(0)

    def breaks(sentence: int, history: Ids) -> torch.Tensor:
        row = table(sentence, history)
        return torch.full_like(row, math.nan) if tuple(history[:1]) == (5,) else row

    with pytest.raises(ModelError, match="probabilities are not finite"):
        find(breaks, [9], 2, SearchOptions(n_best=2, select=required_phrases([[((5,),), ((6,),)]], [9])))


@pytest.mark.parametrize("seed", range(4))
def test_of_phrases_that_exclude_each_other_one_is_held(seed: int) -> None:
    table, phrases = history_table(seed), [(4, 5), (6, 5)]
    select = required_phrases([single(phrases)], [4], 1)
    [found] = find(table, [4], WIDE, SearchOptions(n_best=4, constraints=(no_repeated_ngrams(1),), select=select))
    check_best(found, table, 0, 4, lambda ids: not repeats(ids, 1) and any(holds(ids, phrase) for phrase in phrases))
    assert all(any(holds(one.ids, phrase) for phrase in phrases) for one in found)


def test_how_many_tokens_of_phrases_can_be_held_together() -> None:
    for phrases, size, most in (
        ([(4, 5), (6, 5)], 0, 4),
        ([(4, 5), (6, 5)], 1, 2),
        ([(4, 5), (6, 5)], 2, 4),
        ([(4, 5, 6), (7, 5, 6)], 2, 3),
        ([(4, 5, 6), (5, 6)], 1, 5),  # one within the other
        ([(4, 5), (5, 6), (8, 9)], 1, 6),
        ([(4, 5), (6, 5), (7, 5), (8,)], 1, 3),
        ([(number, 5) for number in range(6, 20)], 1, 2),  # too many to try every combination
    ):
        assert progress((), single(phrases), size).possible == most


@pytest.mark.parametrize("seed", range(4))
def test_a_phrase_may_go_on_from_a_prefix_that_repeats_itself(seed: int) -> None:
    constraints = (forced_prefixes([(6, 6)]), no_repeated_ngrams(1, [2]))
    select = required_phrases([[((6, 6, 5),)]], [5], 1)
    [found] = find(history_table(seed), [5], 4, SearchOptions(constraints=constraints, select=select))
    assert found[0].ids[:3] == (6, 6, 5)


# ---- sampling


def samples(
    table: Table, count: int, seed: int, sentences: Sequence[int] = (0,), **options: float
) -> list[list[Hypothesis]]:
    select = sampled_continuations([(seed, sentence) for sentence in sentences], Sampling(**options))  # type: ignore[arg-type]
    return find(table, [3] * len(sentences), count, SearchOptions(select=select, sampled=True), sentences=sentences)


def frequencies(hypotheses: Sequence[Hypothesis]) -> dict[Ids, float]:
    return {ids: count / len(hypotheses) for ids, count in Counter(one.ids for one in hypotheses).items()}


def test_samples_have_the_models_distribution() -> None:
    table = history_table(4, sharpness=1.0)
    [found] = samples(table, 20_000, 1)
    # Forbidden tokens have a share of the table's probability, which is given to the others at each step.
    expected = {}
    for _, _, ids in all_translations(table, 0, 3, PENALTY):
        probability = 1.0
        for place, token in enumerate((*ids, EOS)):
            allowed = [EOS, *WORDS] if place < 3 else [EOS]
            step = table(0, ids[:place])
            probability *= math.exp(float(step[token] - step[allowed].logsumexp(0)))
        expected[ids] = probability
    assert sum(expected.values()) == pytest.approx(1)
    seen = frequencies(found)
    for ids, probability in expected.items():
        spread = math.sqrt(probability * (1 - probability) / 20_000)
        assert seen.get(ids, 0.0) == pytest.approx(probability, abs=5 * spread + 1e-4)
    for hypothesis in found[:50]:
        assert hypothesis.log_prob == pytest.approx(log_prob_of(table, 0, hypothesis.ids))


def test_samples_come_as_drawn_and_one_for_each_asked_for() -> None:
    [found] = samples(history_table(4, sharpness=1.0), 64, 1)
    assert [hypothesis.slot for hypothesis in found] == list(range(64))
    scores = [hypothesis.score for hypothesis in found]
    assert scores != sorted(scores, reverse=True)


def test_samples_depend_on_the_seed_and_not_on_the_batch() -> None:
    table = history_table(4, sharpness=1.0)
    order = [2, 4, 0, 3, 1, 5]
    for count in (8, 1):  # of one sample per sentence, some end before others
        alone = [samples(table, count, 3, [sentence])[0] for sentence in range(6)]
        assert samples(table, count, 3, order) == [alone[sentence] for sentence in order]
        assert len({len(found[0].ids) for found in alone}) > 1
    assert samples(table, 8, 4, [0])[0] != samples(table, 8, 3, [0])[0]


def test_a_sample_needs_no_float64_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert widest_float(torch.device("mps")) == torch.float32
    assert widest_float(torch.device("cpu")) == torch.float64
    step = torch.randn(2, 3, VOCAB, generator=torch.Generator().manual_seed(1)).log_softmax(2)
    arguments = (np.zeros((2, 3, 1), np.int64), [0, 1], 3)
    sampling = Sampling(top_k=3, top_p=0.9)
    expected = sampled_continuations([(1,), (2,)], sampling)(torch.zeros(2, 3), step, *arguments)
    monkeypatch.setattr("nmtkit.decoding.sampling.widest_float", lambda device: torch.float32)
    log_probs, step = (tensor.as_subclass(WithoutFloat64) for tensor in (torch.zeros(2, 3), step))
    found = sampled_continuations([(1,), (2,)], sampling)(log_probs, step, *arguments)
    assert [tensor.tolist() for tensor in found] == [tensor.tolist() for tensor in expected]


def test_a_low_temperature_and_a_top_k_of_1_are_greedy() -> None:
    table = history_table(2)
    greedy = find(table, [3], 1)[0][0].ids
    assert {hypothesis.ids for hypothesis in samples(table, 40, 1, temperature=1e-4)[0]} == {greedy}
    assert {hypothesis.ids for hypothesis in samples(table, 40, 1, top_k=1)[0]} == {greedy}
    assert {hypothesis.ids for hypothesis in samples(table, 40, 1, top_p=1e-9)[0]} == {greedy}
    assert len({hypothesis.ids for hypothesis in samples(table, 40, 1)[0]}) > 3


def test_temperature_divides_log_probs() -> None:
    table = last_token_table(1)
    [found] = samples(table, 20_000, 5, temperature=2.0)
    scaled = (table(0, ())[[EOS, *WORDS]] / 2.0).softmax(0)
    seen = frequencies([Hypothesis(one.ids[:1], 0.0, 0.0) for one in found])
    expected = {(): scaled[0]} | {(word,): scaled[1 + place] for place, word in enumerate(WORDS)}
    for ids, probability in expected.items():
        assert seen.get(ids, 0.0) == pytest.approx(float(probability), abs=0.02)


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    table = last_token_table(1)
    first = table(0, ())
    order = sorted([EOS, *WORDS], key=lambda token: -float(first[token]))
    [found] = samples(table, 500, 1, top_k=2)
    assert {one.ids[:1] for one in found} == {() if token == EOS else (token,) for token in order[:2]}
    share = first[[EOS, *WORDS]].softmax(0).sort(descending=True).values
    [found] = samples(table, 500, 1, top_p=float(share[0] + share[1]) - 1e-6)
    assert {one.ids[:1] for one in found} == {() if token == EOS else (token,) for token in order[:2]}
    [found] = samples(table, 2000, 1, top_p=float(share[0] + share[1]) + 1e-6)
    assert {one.ids[:1] for one in found} == {() if token == EOS else (token,) for token in order[:3]}


def test_rules_hold_for_samples_too() -> None:
    select = sampled_continuations([(1, 0)], Sampling())
    options = SearchOptions(select=select, sampled=True, min_tokens=2, constraints=(no_repeated_ngrams(1),))
    [found] = find(history_table(1, sharpness=0.5), [3], 200, options)
    assert all(len(one.ids) >= 2 and not repeats(one.ids, 1) for one in found)
    assert len({one.ids for one in found}) > 3
