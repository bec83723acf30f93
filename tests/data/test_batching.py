"""Plans of an epoch: every pair once, no update over its budget, and nothing but the seed and epoch decides."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.data.batching import cut_by_padded_tokens, padding_worth_of, plan_epoch, share_update

Lengths = npt.NDArray[np.int64]

pair_lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=120)


def sides(lengths: list[tuple[int, int]]) -> tuple[Lengths, Lengths]:
    table = np.array(lengths, dtype=np.int64)
    return table[:, 0], table[:, 1]


def many_pairs(count: int = 3000) -> tuple[Lengths, Lengths]:
    """Lengths as real corpora have them: mostly short, some long, both sides alike."""
    rng = np.random.default_rng(1)
    source = np.clip(rng.lognormal(3, 0.6, count), 1, 200).astype(np.int64)
    target = np.clip(source * rng.normal(1.05, 0.15, count), 1, 200).astype(np.int64)
    return source, target


def padding(updates: list[Lengths], lengths: Lengths) -> float:
    """The share of padding where each update is one matrix."""
    padded = sum(len(pairs) * int(lengths[pairs].max()) for pairs in updates)
    return float(1 - sum(int(lengths[pairs].sum()) for pairs in updates) / padded)


class TestPlan:
    @settings(deadline=None, max_examples=100)
    @given(lengths=pair_lengths, budget=st.integers(1, 200), seed=st.integers(0, 2**32), epoch=st.integers(0, 1000))
    def test_every_pair_is_in_exactly_one_update_or_reported_as_too_long(
        self, lengths: list[tuple[int, int]], budget: int, seed: int, epoch: int
    ) -> None:
        source, target = sides(lengths)
        plan = plan_epoch(source, target, budget, seed, epoch)
        planned = [int(pair) for pairs in plan.updates for pair in pairs]
        assert sorted([*planned, *plan.too_long.tolist()]) == list(range(len(lengths)))
        assert plan.too_long.tolist() == [pair for pair, (_, length) in enumerate(lengths) if length > budget]

    @settings(deadline=None, max_examples=100)
    @given(lengths=pair_lengths, budget=st.integers(1, 200), seed=st.integers(0, 9))
    def test_no_update_is_empty_or_over_its_budget(
        self, lengths: list[tuple[int, int]], budget: int, seed: int
    ) -> None:
        source, target = sides(lengths)
        for pairs in plan_epoch(source, target, budget, seed, 0).updates:
            assert 0 < target[pairs].sum() <= budget

    @settings(deadline=None, max_examples=50)
    @given(lengths=pair_lengths, sequences=st.integers(1, 20), seed=st.integers(0, 9))
    def test_an_update_can_be_a_number_of_pairs(
        self, lengths: list[tuple[int, int]], sequences: int, seed: int
    ) -> None:
        plan = plan_epoch(*sides(lengths), 1, seed, 0, sequences=sequences)
        sizes = sorted(len(pairs) for pairs in plan.updates)
        assert sum(sizes) == len(lengths)
        assert all(size == sequences for size in sizes[1:])
        assert not len(plan.too_long)

    @settings(deadline=None, max_examples=50)
    @given(lengths=pair_lengths, budget=st.integers(1, 200), seed=st.integers(0, 9), epoch=st.integers(0, 9))
    def test_the_same_seed_and_epoch_give_the_same_plan(
        self, lengths: list[tuple[int, int]], budget: int, seed: int, epoch: int
    ) -> None:
        source, target = sides(lengths)
        np.random.seed(0)
        one = plan_epoch(source, target, budget, seed, epoch)
        np.random.seed(1)
        two = plan_epoch(source.copy(), target.copy(), budget, seed, epoch)
        assert [pairs.tolist() for pairs in one.updates] == [pairs.tolist() for pairs in two.updates]

    def test_another_seed_or_epoch_gives_other_updates_in_another_order(self) -> None:
        plans = [plan_epoch(*many_pairs(), 500, seed, epoch).updates for seed, epoch in ((1, 0), (2, 0), (1, 1))]
        contents = [{frozenset(pairs.tolist()) for pairs in updates} for updates in plans]
        for other in (1, 2):
            assert len(contents[0] & contents[other]) < 0.5 * len(contents[0])
        # The first update of one plan has not the lengths of the first of another: the order differs too.
        target = many_pairs()[1]
        assert len({tuple(float(target[pairs].mean()) for pairs in updates[:5]) for updates in plans}) == 3

    def test_updates_come_in_random_order_of_length(self) -> None:
        source, target = many_pairs()
        means = [target[pairs].mean() for pairs in plan_epoch(source, target, 500, 1, 0).updates]
        rising = sum(one < other for one, other in pairwise(means)) / (len(means) - 1)
        assert 0.35 < rising < 0.65

    def test_pairs_of_similar_length_stand_together(self) -> None:
        source, target = many_pairs()
        updates = plan_epoch(source, target, 2000, 1, 0).updates
        mixed = np.array_split(np.random.default_rng(0).permutation(len(target)), len(updates))
        assert padding(mixed, target) > 0.5
        assert padding(updates, target) < 0.06
        assert padding(updates, source) < 0.6 * padding(mixed, source)

    def test_updates_are_filled_to_their_budget(self) -> None:
        source, target = many_pairs()
        updates = plan_epoch(source, target, 2000, 1, 0).updates
        assert len(updates) <= 1.03 * target.sum() / 2000 + 1

    @settings(deadline=None, max_examples=100)
    @given(lengths=pair_lengths, budget=st.integers(1, 200), count=st.integers(1, 12), seed=st.integers(0, 9))
    def test_with_several_lengths_an_update_every_pair_is_planned_once_within_the_budget_by_length(
        self, lengths: list[tuple[int, int]], budget: int, count: int, seed: int
    ) -> None:
        source, target = sides(lengths)
        plan = plan_epoch(source, target, budget, seed, 0, count)
        planned = [int(pair) for pairs in plan.updates for pair in pairs]
        assert sorted([*planned, *plan.too_long.tolist()]) == list(range(len(lengths)))
        assert plan.too_long.tolist() == [pair for pair, (_, length) in enumerate(lengths) if length > budget]
        for pairs in plan.updates:
            assert 0 < target[pairs].sum() <= budget
            assert np.all(np.diff(target[pairs]) >= 0)

    @pytest.mark.parametrize("count", [2, 8])
    def test_an_update_of_several_lengths_has_that_many_and_is_filled(self, count: int) -> None:
        source, target = many_pairs()
        one = plan_epoch(source, target, 2000, 1, 0).updates
        several = plan_epoch(source, target, 2000, 1, 0, count).updates
        assert len(several) <= 1.1 * len(one)
        # Apart from steps of a few tokens, lengths rise only from one group to the next.
        jumps = [int((np.diff(target[pairs]) > 3).sum()) for pairs in several[:-1]]
        assert max(jumps) <= count - 1 + 3  # the longest pairs are far apart even within a group
        assert np.mean(jumps) > 0.4 * (count - 1)
        spread = [np.std([target[pairs].mean() for pairs in updates]) for updates in (one, several)]
        assert spread[1] < spread[0] / 1.2

    def test_an_epoch_of_only_too_long_pairs_has_no_updates(self) -> None:
        plan = plan_epoch(np.array([1, 1]), np.array([5, 6]), 4, 1, 0)
        assert (plan.updates, plan.too_long.tolist()) == ([], [0, 1])


class TestShares:
    @settings(deadline=None, max_examples=100)
    @given(lengths=pair_lengths, tokens_per_pass=st.integers(1, 200), num_processes=st.integers(1, 9))
    def test_shares_are_equal_to_one_pair_and_make_up_the_update(
        self, lengths: list[tuple[int, int]], tokens_per_pass: int, num_processes: int
    ) -> None:
        source, target = sides(lengths)
        update = np.random.default_rng(0).permutation(len(lengths))
        shares = share_update(update, source, target, tokens_per_pass, num_processes)
        sizes = [sum(len(passed) for passed in share) for share in shares]
        assert len(sizes) == num_processes
        assert max(sizes) - min(sizes) <= 1
        assert sorted(int(pair) for share in shares for passed in share for pair in passed) == sorted(update.tolist())

    @settings(deadline=None, max_examples=100)
    @given(lengths=pair_lengths, tokens_per_pass=st.integers(1, 200), num_processes=st.integers(1, 5))
    def test_a_pass_fits_the_device_or_is_one_pair(
        self, lengths: list[tuple[int, int]], tokens_per_pass: int, num_processes: int
    ) -> None:
        source, target = sides(lengths)
        for share in share_update(np.arange(len(lengths)), source, target, tokens_per_pass, num_processes):
            for passed in share:
                padded = len(passed) * max(int(source[passed].max()), int(target[passed].max()))
                assert len(passed) == 1 or padded <= tokens_per_pass
                assert len(passed) > 0

    def test_shares_have_like_lengths(self) -> None:
        source, target = many_pairs()
        update = plan_epoch(source, target, 4000, 1, 0).updates[0]
        tokens = [
            sum(int(target[passed].sum()) for passed in share)
            for share in share_update(update, source, target, 10**6, 4)
        ]
        assert max(tokens) - min(tokens) <= 2 * int(target[update].max())

    def test_pairs_of_unlike_lengths_do_not_share_a_pass(self) -> None:
        lengths = np.array([10] * 100 + [20] * 50)
        [passes] = share_update(np.arange(150), lengths, lengths, 10**6, 1)
        assert [len(passed) for passed in passes] == [100, 50]

    def test_but_a_pass_is_not_cut_for_little_padding(self) -> None:
        lengths = np.array([10] * 20 + [20] * 10)
        [passes] = share_update(np.arange(30), lengths, lengths, 10**6, 1)
        assert [len(passed) for passed in passes] == [30]
        lengths = np.array([9] * 100 + [10] * 100)
        [passes] = share_update(np.arange(200), lengths, lengths, 10**6, 1)
        assert [len(passed) for passed in passes] == [200]

    def test_on_a_gpu_a_pass_is_worth_more_padding(self) -> None:
        assert (padding_worth_of("cpu"), padding_worth_of("cuda")) == (256, 4096)
        lengths, worth = np.array([10] * 100 + [20] * 50), padding_worth_of("cuda")
        [passes] = share_update(np.arange(150), lengths, lengths, 10**6, 1, padding_worth=worth)
        assert [len(passed) for passed in passes] == [150]
        lengths = np.array([10] * 1000 + [20] * 500)
        [passes] = share_update(np.arange(1500), lengths, lengths, 10**6, 1, padding_worth=worth)
        assert [len(passed) for passed in passes] == [1000, 500]

    def test_an_update_that_fits_is_one_pass(self) -> None:
        source, target = np.array([3, 4, 5]), np.array([5, 4, 3])
        shares = share_update(np.array([2, 0, 1]), source, target, 15, 1)
        assert [[passed.tolist() for passed in share] for share in shares] == [[[1, 2, 0]]]  # by the longer side

    def test_pairs_whose_longer_sides_are_alike_share_a_pass(self) -> None:
        # As in an update: sorted by the target, so that sources begin again where the target is a token longer.
        source, target = np.array([10] * 100 + [20] * 60 + [10] * 60 + [20] * 100), np.array([8] * 160 + [9] * 160)
        [passes] = share_update(np.arange(320), source, target, 10**6, 1)
        assert [(set(source[passed]), len(passed)) for passed in passes] == [({10}, 160), ({20}, 160)]

    def test_a_process_without_a_pair_has_no_passes(self) -> None:
        shares = share_update(np.array([1, 0]), np.array([3, 3]), np.array([3, 3]), 100, 3)
        assert [len(share) for share in shares] == [1, 1, 0]


class TestRuns:
    @settings(deadline=None, max_examples=200)
    @given(lengths=st.lists(st.integers(0, 50), max_size=60), max_tokens=st.integers(1, 200))
    def test_runs_follow_each_other_and_are_as_long_as_they_may(self, lengths: list[int], max_tokens: int) -> None:
        runs = cut_by_padded_tokens(lengths, max_tokens)
        assert [index for start, stop in runs for index in range(start, stop)] == list(range(len(lengths)))
        for start, stop in runs:
            assert stop - start == 1 or (stop - start) * max(lengths[start:stop]) <= max_tokens
            if stop < len(lengths):
                assert (stop + 1 - start) * max(lengths[start : stop + 1]) > max_tokens

    @pytest.mark.parametrize(
        ("lengths", "max_tokens", "runs"),
        [
            ([], 10, []),
            ([5], 1, [(0, 1)]),
            ([5, 5, 5], 10, [(0, 2), (2, 3)]),
            ([1, 1, 9, 1], 10, [(0, 2), (2, 3), (3, 4)]),
            ([2, 3, 3, 3], 9, [(0, 3), (3, 4)]),
        ],
    )
    def test_padding_counts(self, lengths: list[int], max_tokens: int, runs: list[tuple[int, int]]) -> None:
        assert cut_by_padded_tokens(lengths, max_tokens) == runs
        assert cut_by_padded_tokens(np.array(lengths, dtype=np.int64), max_tokens) == runs
