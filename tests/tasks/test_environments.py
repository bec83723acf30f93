"""The environments of the task "trajectories": rules, and the rate at which random actions succeed."""

import math
from pathlib import Path

import numpy as np
import pytest

from nmtkit.errors import DataError
from nmtkit.tasks.environments import (
    Discrete,
    Environment,
    GraphEnvironment,
    KeyToDoor,
    begin,
    make_environment,
    random_episodes,
    steps_to,
    take,
)


def chance_of(side: int, steps: int) -> np.ndarray:
    """The probability that random moves from one cell enter another within the steps [start, target]."""
    rows, columns = np.divmod(np.arange(side**2), side)
    moves = np.zeros((side**2, side**2))
    for up, left in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        to = np.clip(rows + up, 0, side - 1) * side + np.clip(columns + left, 0, side - 1)
        moves[np.arange(side**2), to] += 0.25
    chance = np.zeros_like(moves)
    for _ in range(steps):
        chance = moves @ np.where(np.eye(side**2, dtype=bool), 1, chance)
    return chance


@pytest.mark.parametrize("has_random_places", [False, True])
def test_random_actions_open_the_door_as_often_as_published(has_random_places: bool) -> None:
    environment, count = KeyToDoor(1, has_random_places=has_random_places), 500
    if has_random_places:
        first, _, last = KeyToDoor.RANDOM_PHASES
        side = KeyToDoor.RANDOM_SIDE
        key = np.where(np.eye(side**2, dtype=bool), 1, chance_of(side, first))  # one may begin on it
        exact = key.mean() * chance_of(side, last).mean()
    else:
        first, _, last = KeyToDoor.PHASES
        side = KeyToDoor.SIDE
        exact = chance_of(side, first)[side**2 // 2, 0] * chance_of(side, last)[side**2 // 2, side * (side - 1)]
    assert 0.028 < exact < 0.034  # published: 3.1 %
    rewards = [sum(episode["rewards"]) for episode in random_episodes(environment, count, 7, 100)]
    assert set(rewards) == {0.0, 1.0}
    assert abs(np.mean(rewards) - exact) < 3 * math.sqrt(exact * (1 - exact) / count)


def test_the_key_is_seen_until_it_is_taken_and_needed_for_the_door() -> None:
    environment = KeyToDoor(1)
    up, down, left = 0, 1, 2
    for takes_key in (True, False):
        begin(environment, 1)
        opened = []
        for room, steps in enumerate(KeyToDoor.PHASES):
            moves = [up, up, left, left] if room == 0 and takes_key else [down, down, left, left] if room == 2 else []
            for step in range(steps):
                state, reward, is_over, _, facts = take(environment, moves[step] if step < len(moves) else up)
                assert facts["has_key"] == (takes_key and (room > 0 or step >= 3))
                opened.append(reward)
                if is_over:
                    break
            if room == 0:
                # Past the first room, nothing shows whether one has the key.
                assert state == 25 * 2 + 12 * 2
        assert sum(opened) == takes_key
        assert len(opened) == (16 + 8 + 4 if takes_key else 41)


def test_random_places_are_seen() -> None:
    environment = KeyToDoor(3, has_random_places=True)
    side = KeyToDoor.RANDOM_SIDE
    states = [begin(environment, seed)[0] for seed in range(20)]
    assert {state.shape for state in states} == {(3 + 2 * side + 2 * (side + 1),)}
    assert len({state.tobytes() for state in states}) > 15
    assert all(state[:3].tolist() == [1, 0, 0] for state in states)


def test_the_graph_has_a_goal_that_can_be_reached_and_steps_cost_one() -> None:
    for seed in range(20):
        environment = GraphEnvironment(seed)
        assert len(environment.starts) >= 2
        assert np.isfinite(environment.distances[environment.starts]).all()
        assert environment.goal not in environment.starts
    for episode in random_episodes(GraphEnvironment(1, starts_anywhere=True), 200, 1, 10):
        length = len(episode["states"])
        assert sum(episode["rewards"]) in (1 - length, -length - 10)
        assert GraphEnvironment(1).edges[episode["states"], episode["actions"]].all()


def test_without_an_edge_one_stays() -> None:
    environment = GraphEnvironment(1)
    state, _ = begin(environment, 1)
    missing = int(np.flatnonzero(~environment.edges[state])[0])
    assert take(environment, missing)[0] == state


def test_fewest_steps_are_those_of_the_powers_of_the_edges() -> None:
    edges = np.random.default_rng(1).random((12, 12)) < 0.15
    reached, distances = np.eye(12, dtype=bool), steps_to(edges, 3, 4)
    for step in range(5):
        new = reached[:, 3] & (distances == step)
        assert (reached[:, 3] <= (distances <= step)).all()
        assert new.sum() == (distances == step).sum()
        reached = (reached.astype(int) @ edges.astype(int)) > 0


def test_the_same_seed_gives_the_same_episodes() -> None:
    episodes = [list(random_episodes(KeyToDoor(1), 3, seed, 50)) for seed in (1, 1, 2)]
    assert episodes[0] == episodes[1] != episodes[2]


class Odd:
    """An environment with faults."""

    def __init__(
        self, *, reset: object = (0, {}), step: object = (0, 0.0, False, False, {}), space: object = Discrete(2)
    ) -> None:
        self._reset, self._step, self.action_space = reset, step, space

    def reset(self, *, seed: int | None = None) -> object:
        if isinstance(self._reset, Exception):
            raise self._reset
        return self._reset

    def step(self, action: object) -> object:
        return self._step


class InPlace:
    """An environment that changes its states in place."""

    def __init__(self) -> None:
        self.state, self.action_space = np.zeros(1, np.int64), Discrete(2)

    def reset(self, *, seed: int | None = None) -> object:
        self.state[:] = 0
        return self.state, {}

    def step(self, action: object) -> object:
        self.state += 1
        return self.state, 0.0, int(self.state[0]) == 4, False, {}


def test_states_that_an_environment_changes_in_place_are_those_before_each_step() -> None:
    for _ in range(2):
        [episode] = random_episodes(InPlace(), 1, 1, 5)
        assert episode["states"] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Odd(), "has not ended after 5 steps"),
        (Odd(reset=0), r"reset must return \(observation, info\)"),
        (Odd(step=(0, 0.0, False, {})), "step must return"),
        (Odd(step=(0, float("nan"), False, False, {})), "a reward of nan"),
        (Odd(step=(0, None, False, False, {})), "a reward of None"),
        (Odd(step=(0, 10**400, False, False, {})), "a reward of 1000"),
        (Odd(reset=(0, None)), "reset must return"),
        (Odd(reset=(0, {"action_mask": [0, 0]})), "allows no action"),
        (Odd(step=(0, 1e300, False, False, {})), "a reward of 1e[+]300"),
        (Odd(reset=ValueError("too\nbad")), "the environment's reset failed: ValueError: too bad"),
        (Odd(space=None), "action_space failed: AttributeError"),
        (Odd(space=Discrete(0)), "action_space failed: ValueError"),
    ],
)
def test_faults_of_an_environment_are_named(environment: Environment, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(random_episodes(environment, 1, 1, 5))


def fail() -> None:
    raise ValueError("too\nbad")


class Wrapper:
    """An environment around another one."""

    def __getattr__(self, name: str) -> object:
        return getattr(KeyToDoor(1), name)


def test_a_wrapper_that_passes_calls_on_is_an_environment() -> None:
    assert begin(make_environment("tests.tasks.test_environments:Wrapper", 1), 7) == begin(KeyToDoor(1), 7)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chess", "no such environment; choose graph"),
        ("no_such_module:make", f"ModuleNotFoundError: .* in {Path.cwd()} and among the installed packages$"),
        ("no_such_package.module:make", "among the installed packages$"),
        ("math:nothing", "AttributeError"),
        ("builtins:dict", "returns no environment"),
        ("tests.tasks.test_environments:fail", "ValueError: too bad$"),
        ("sys:exit", "SystemExit"),
    ],
)
def test_environments_that_cannot_be_made(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_environment(name, 1)
