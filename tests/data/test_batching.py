"""Plans of an epoch: every pair once, no update over its budget, and nothing but the seed and epoch decides."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.config.schema import TrainingConfig
from nmtkit.data.batching import EpochPlan, cut_by_padded_tokens, plan_of, shares_of
from nmtkit.data.shards import PairData, Part

Lengths = npt.NDArray[np.int64]

pair_lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=120)


class Pairs(PairData):
    """Pairs of which only the lengths are known."""

    def __init__(self, source: Lengths, target: Lengths, parts: list[Part] | None = None) -> None:
        self.source_lengths, self.target_lengths, self.is_joined = source, target, False
        self.parts = parts or [Part(len(target), 1.0)]


def pairs_of(lengths: list[tuple[int, int]]) -> Pairs:
    return Pairs(*np.array(lengths, dtype=np.int64).T)


def plan(data: PairData, budget: int, seed: int = 1, epoch: int = 0, **training: int) -> EpochPlan:
    return plan_of(data, TrainingConfig(tokens_per_update=budget, seed=seed, **training), epoch)


def many_pairs(count: int = 3000) -> Pairs:
    """Lengths as real corpora have them: mostly short, some long, both sides alike."""
    rng = np.random.default_rng(1)
    source = np.clip(rng.lognormal(3, 0.6, count), 1, 200).astype(np.int64)
    return Pairs(source, np.clip(source * rng.normal(1.05, 0.15, count), 1, 200).astype(np.int64))


def padding(updates: list[Lengths], lengths: Lengths) -> float:
    """The share of padding where each update is one matrix."""
    padded = sum(len(pairs) * int(lengths[pairs].max()) for pairs in updates)
    return float(1 - sum(int(lengths[pairs].sum()) for pairs in updates) / padded)


class TestPlan:
    @settings(deadline=None, max_examples=200)
    @given(
        lengths=pair_lengths,
        budget=st.integers(1, 200),
        count=st.integers(1, 12),
        seed=st.integers(0, 2**32),
        epoch=st.integers(0, 1000),
    )
    def test_every_pair_is_planned_once_within_the_budget_by_length_or_reported_as_too_long(
        self, lengths: list[tuple[int, int]], budget: int, count: int, seed: int, epoch: int
    ) -> None:
        data = pairs_of(lengths)
        found = plan(data, budget, seed, epoch, lengths_per_update=count)
        planned = [int(pair) for pairs in found.updates for pair in pairs]
        assert sorted([*planned, *found.too_long.tolist()]) == list(range(len(lengths)))
        assert found.too_long.tolist() == [pair for pair, (_, length) in enumerate(lengths) if length > budget]
        for pairs in found.updates:
            assert 0 < data.target_lengths[pairs].sum() <= budget
            assert np.all(np.diff(data.target_lengths[pairs]) >= 0)

    @settings(deadline=None, max_examples=50)
    @given(lengths=pair_lengths, sequences=st.integers(1, 20), seed=st.integers(0, 9))
    def test_an_update_can_be_a_number_of_pairs(
        self, lengths: list[tuple[int, int]], sequences: int, seed: int
    ) -> None:
        found = plan(pairs_of(lengths), 1, seed, sequences_per_update=sequences)
        sizes = sorted(len(pairs) for pairs in found.updates)
        assert sum(sizes) == len(lengths)
        assert all(size == sequences for size in sizes[1:])
        assert not len(found.too_long)

    @settings(deadline=None, max_examples=50)
    @given(lengths=pair_lengths, budget=st.integers(1, 200), seed=st.integers(0, 9), epoch=st.integers(0, 9))
    def test_the_same_seed_and_epoch_give_the_same_plan(
        self, lengths: list[tuple[int, int]], budget: int, seed: int, epoch: int
    ) -> None:
        np.random.seed(0)
        one = plan(pairs_of(lengths), budget, seed, epoch)
        np.random.seed(1)
        two = plan(pairs_of(lengths), budget, seed, epoch)
        assert [pairs.tolist() for pairs in one.updates] == [pairs.tolist() for pairs in two.updates]

    def test_another_seed_or_epoch_gives_other_updates_in_another_order(self) -> None:
        plans = [plan(many_pairs(), 500, seed, epoch).updates for seed, epoch in ((1, 0), (2, 0), (1, 1))]
        contents = [{frozenset(pairs.tolist()) for pairs in updates} for updates in plans]
        for other in (1, 2):
            assert len(contents[0] & contents[other]) < 0.5 * len(contents[0])
        # The first update of one plan has not the lengths of the first of another: the order differs too.
        target = many_pairs().target_lengths
        assert len({tuple(float(target[pairs].mean()) for pairs in updates[:5]) for updates in plans}) == 3

    def test_updates_come_in_random_order_of_length(self) -> None:
        data = many_pairs()
        means = [data.target_lengths[pairs].mean() for pairs in plan(data, 500).updates]
        rising = sum(one < other for one, other in pairwise(means)) / (len(means) - 1)
        assert 0.35 < rising < 0.65

    def test_pairs_of_similar_length_stand_together(self) -> None:
        data = many_pairs()
        updates = plan(data, 2000).updates
        mixed = np.array_split(np.random.default_rng(0).permutation(len(data.target_lengths)), len(updates))
        assert padding(mixed, data.target_lengths) > 0.5
        assert padding(updates, data.target_lengths) < 0.06
        assert padding(updates, data.source_lengths) < 0.6 * padding(mixed, data.source_lengths)

    def test_updates_are_filled_to_their_budget(self) -> None:
        data = many_pairs()
        assert len(plan(data, 2000).updates) <= 1.03 * data.target_lengths.sum() / 2000 + 1

    @pytest.mark.parametrize("count", [2, 8])
    def test_an_update_of_several_lengths_has_that_many_and_is_filled(self, count: int) -> None:
        data = many_pairs()
        target = data.target_lengths
        one, several = plan(data, 2000).updates, plan(data, 2000, lengths_per_update=count).updates
        assert len(several) <= 1.1 * len(one)
        # Apart from steps of a few tokens, lengths rise only from one group to the next.
        jumps = [int((np.diff(target[pairs]) > 3).sum()) for pairs in several[:-1]]
        assert max(jumps) <= count - 1 + 3  # the longest pairs are far apart even within a group
        assert np.mean(jumps) > 0.4 * (count - 1)
        spread = [np.std([target[pairs].mean() for pairs in updates]) for updates in (one, several)]
        assert spread[1] < spread[0] / 1.2

    def test_an_epoch_of_only_too_long_pairs_has_no_updates(self) -> None:
        found = plan(pairs_of([(1, 5), (1, 6)]), 4)
        assert (found.updates, found.too_long.tolist()) == ([], [0, 1])


def passes_of(lengths: list[tuple[int, int]], device: str = "cpu") -> list[list[int]]:
    """The micro-batches, without a limit, of an update of all these pairs in one process."""
    [share] = shares_of(pairs_of(lengths), np.arange(len(lengths)), 10**6, 1, device)
    return [passed.tolist() for passed in share]


class TestShares:
    @settings(deadline=None, max_examples=200)
    @given(lengths=pair_lengths, limit=st.integers(1, 200), num_processes=st.integers(1, 9))
    def test_shares_are_equal_to_one_pair_and_each_pass_fits_the_device_or_is_one_pair(
        self, lengths: list[tuple[int, int]], limit: int, num_processes: int
    ) -> None:
        data = pairs_of(lengths)
        update = np.random.default_rng(0).permutation(len(lengths))
        shares = shares_of(data, update, limit, num_processes, "cpu")
        sizes = [sum(len(passed) for passed in share) for share in shares]
        assert len(sizes) == num_processes
        assert max(sizes) - min(sizes) <= 1
        assert sorted(int(pair) for share in shares for passed in share for pair in passed) == sorted(update.tolist())
        for passed in (passed for share in shares for passed in share):
            padded = len(passed) * max(int(data.source_lengths[passed].max()), int(data.target_lengths[passed].max()))
            assert len(passed) == 1 or padded <= limit
            assert len(passed) > 0

    def test_shares_have_like_lengths(self) -> None:
        data = many_pairs()
        target, update = data.target_lengths, plan(data, 4000).updates[0]
        shares = shares_of(data, update, 10**6, 4, "cpu")
        tokens = [sum(int(target[passed].sum()) for passed in share) for share in shares]
        assert max(tokens) - min(tokens) <= 2 * int(target[update].max())

    @pytest.mark.parametrize(
        ("counts", "device", "expected"),
        [
            ({10: 100, 20: 50}, "cpu", [100, 50]),
            ({9: 100, 10: 100}, "cpu", [200]),  # a pass is not cut for a small share of padding
            ({10: 25, 20: 10}, "cpu", [35]),  # or for 250 tokens of it, but for 260
            ({10: 26, 20: 10}, "cpu", [26, 10]),
            ({10: 409, 20: 200}, "cuda", [609]),  # on a GPU, a pass is worth more padding
            ({10: 410, 20: 200}, "cuda", [410, 200]),
        ],
    )
    def test_pairs_of_unlike_lengths_share_no_pass_but_for_little_padding(
        self, counts: dict[int, int], device: str, expected: list[int]
    ) -> None:
        lengths = [(length, length) for length, count in counts.items() for _ in range(count)]
        assert [len(passed) for passed in passes_of(lengths, device)] == expected

    def test_an_update_that_fits_is_one_pass(self) -> None:
        [[passed]] = shares_of(pairs_of([(3, 5), (4, 4), (5, 3)]), np.array([2, 0, 1]), 15, 1, "cpu")
        assert passed.tolist() == [1, 2, 0]  # by the longer side

    def test_pairs_whose_longer_sides_are_alike_share_a_pass(self) -> None:
        # As in an update: sorted by the target, so that sources begin again where the target is a token longer.
        sources, targets = [10] * 100 + [20] * 60 + [10] * 60 + [20] * 100, [8] * 160 + [9] * 160
        passes = passes_of(list(zip(sources, targets, strict=True)))
        assert [({sources[pair] for pair in passed}, len(passed)) for passed in passes] == [({10}, 160), ({20}, 160)]

    def test_a_process_without_a_pair_has_no_passes(self) -> None:
        shares = shares_of(pairs_of([(3, 3), (3, 3)]), np.array([1, 0]), 100, 3, "cpu")
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
