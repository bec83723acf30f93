"""Environments in which models of decisions play, with gymnasium's `reset` and `step`.

    graph                the shortest path to a node of a random graph (Chen et al. 2021, appendix A.3)
    key-to-door          three rooms: a key, nothing, a door that only its owner opens (section 5.3)
    key-to-door-random   the same, with start, key and door at random places
    MODULE:FUNCTION      what the function returns, for example a function that calls gymnasium.make

The authors published neither the sizes of Key-to-Door nor its lengths. Ours were chosen, before any model was trained,
so that random actions succeed in about 3.1 % of episodes, as in their Table 6.
"""

import copy
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import numpy.typing as npt

from nmtkit.errors import DataError, in_one_line

Step = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, whether the episode ended, whether it was cut off, and facts: `is_success`, `shortest`."""


class Environment(Protocol):
    """Part of gymnasium.Env. Random actions also need `action_space`, with `n`, or `seed` and `sample`."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return the first observation and facts."""

    def step(self, action: Any, /) -> Step:
        """Take an action."""


@dataclass(frozen=True)
class Discrete:
    """The actions 0 to n - 1."""

    n: int


class GraphEnvironment:
    """A directed graph; an action names the next node, and without an edge to it one stays.

    Each of the ordered pairs of different nodes is an edge with probability 0.1. The goal is one of the nodes that can
    be reached within the length of an episode from at least two others; without such a node, another graph is chosen. A
    step costs 1 unless it reaches the goal, and an episode that misses it ends with a cost of 10 more. An episode
    ends at the goal, after 10 steps, or at a node without edges. It starts at any node with edges but the goal; to
    play, at those from which the goal can be reached.

    Attributes:
        edges: whether there is an edge from a node to another [nodes, nodes].
        distances: steps to the goal from each node; infinite where there is no path within an episode.
    """

    NODES: ClassVar = 20
    STEPS: ClassVar = 10

    def __init__(self, seed: int, *, starts_anywhere: bool = False) -> None:
        self.action_space = Discrete(self.NODES)
        # Another stream than that of the episodes, which has the same seed.
        random = np.random.default_rng([seed, self.NODES])
        while True:
            self.edges = random.random((self.NODES, self.NODES)) < 0.1
            np.fill_diagonal(self.edges, val=False)
            distances = [steps_to(self.edges, node, self.STEPS) for node in range(self.NODES)]
            # More than 2, as the goal itself is reached in 0 steps.
            goals = [node for node, steps in enumerate(distances) if np.isfinite(steps).sum() > 2]
            if goals:
                break
        self.goal = int(random.choice(goals))
        self.distances = distances[self.goal]
        possible = np.ones(self.NODES, bool) if starts_anywhere else np.isfinite(self.distances)
        possible &= self.edges.any(1)
        possible[self.goal] = False
        self.starts = np.flatnonzero(possible)
        self._random = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._start = self._node = int(self._random.choice(self.starts))
        self._steps = 0
        return self._node, {"action_mask": self.edges[self._node]}

    def step(self, action: Any, /) -> Step:
        self._steps += 1
        if self.edges[self._node, int(action)]:
            self._node = int(action)
        has_arrived = self._node == self.goal
        is_over = has_arrived or self._steps == self.STEPS or not self.edges[self._node].any()
        # 11: 1 for the step and 10 for the missed goal.
        reward = 0.0 if has_arrived else -11.0 if is_over else -1.0
        facts = {"action_mask": self.edges[self._node], "is_success": has_arrived,
                 "shortest": self.distances[self._start]}  # fmt: skip
        return self._node, reward, is_over, False, facts


def steps_to(edges: npt.NDArray[np.bool_], goal: int, most: int) -> npt.NDArray[np.float64]:
    """Return the fewest steps from each node to the goal along the edges; infinite where they are more than `most`."""
    distances = np.full(len(edges), np.inf)
    distances[goal] = 0
    for step in range(1, most + 1):
        distances[np.isinf(distances) & edges[:, distances == step - 1].any(1)] = step
    return distances


class KeyToDoor:
    """Three square rooms, each for a number of steps: one with a key, an empty one, one with a door.

    One is placed in the middle of each room, or with random places anywhere. An action moves up, down, left or right;
    a move into a wall stays. The key is taken by entering its cell, and is seen until then; that one has it is never
    seen. The only reward is 1, for entering the door's cell with the key, which ends the episode.

    With fixed places, the state is a number: of room, cell, and whether there is a thing to be seen. With random ones
    it is a vector of zeros and ones: room, row, column, and row and column of the thing, or none.
    """

    SIDE: ClassVar = 5
    PHASES: ClassVar = (16, 8, 17)
    RANDOM_SIDE: ClassVar = 7
    RANDOM_PHASES: ClassVar = (15, 8, 15)
    _MOVES: ClassVar = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, seed: int, *, has_random_places: bool = False) -> None:
        self.action_space = Discrete(len(self._MOVES))
        self._is_random = has_random_places
        self._side, phases = (self.RANDOM_SIDE, self.RANDOM_PHASES) if has_random_places else (self.SIDE, self.PHASES)
        self._ends = np.cumsum(phases).tolist()
        self._random = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        side = self._side
        if self._is_random:
            cells = [(int(cell) // side, int(cell) % side) for cell in self._random.integers(side**2, size=5)]
        else:
            cells = [(0, 0), (side - 1, 0), *[(side // 2, side // 2)] * 3]
        self._key, self._door, *self._begins = cells
        self._place = self._begins[0]
        self._has_key = self._place == self._key
        self._steps = self._room = 0
        return self._seen(), {}

    def step(self, action: Any, /) -> Step:
        row, column = (place + move for place, move in zip(self._place, self._MOVES[int(action)], strict=True))
        if 0 <= row < self._side and 0 <= column < self._side:
            self._place = row, column
        self._has_key |= self._room == 0 and self._place == self._key
        opens = self._has_key and self._room == 2 and self._place == self._door
        self._steps += 1
        is_over = self._steps == self._ends[2]
        if self._steps in self._ends[:2]:
            self._room += 1
            self._place = self._begins[self._room]
        return self._seen(), float(opens), opens or is_over, False, {"is_success": opens, "has_key": self._has_key}

    def _seen(self) -> Any:
        thing = {0: None if self._has_key else self._key, 1: None, 2: self._door}[self._room]
        if not self._is_random:
            cell = self._place[0] * self._side + self._place[1]
            return (self._room * self._side**2 + cell) * 2 + (thing is not None)
        # The last value of each of these: nothing to be seen.
        places = [self._room, *self._place, *(thing or (self._side, self._side))]
        widths = [3, self._side, self._side, self._side + 1, self._side + 1]
        return np.concatenate([np.eye(width, dtype=np.float32)[at] for at, width in zip(places, widths, strict=True)])


def make_environment(name: str, seed: int, *, for_data: bool = False) -> Environment:
    """Return an environment by its name or as MODULE:FUNCTION.

    Args:
        seed: of what is chosen at random once, such as a graph.
        for_data: episodes for training start anywhere.

    Raises:
        DataError: there is no such environment, or the function fails.
    """
    if name == "graph":
        return GraphEnvironment(seed, starts_anywhere=for_data)
    if name in ("key-to-door", "key-to-door-random"):
        return KeyToDoor(seed, has_random_places=name.endswith("random"))
    module, _, function = name.partition(":")
    if not function:
        raise DataError(
            f'environment "{name}": no such environment; choose graph, key-to-door or key-to-door-random, or name a '
            "function that returns one as MODULE:FUNCTION"
        )
    # The command `nmtkit`, unlike `python -m`, does not search the working folder, where the module may be.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), function)()
    except (Exception, SystemExit) as error:  # a script may call sys.exit when it is imported
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        where = f" in {here} and among the installed packages" if is_missing else ""
        raise DataError(f'environment "{name}": {_in_words(error)}{where}') from None
    # Not isinstance, which since Python 3.12 does not find methods of a wrapper that come through __getattr__.
    if not all(callable(getattr(made, name, None)) for name in ("reset", "step")):
        raise DataError(f'environment "{name}": the function returns no environment with reset and step')
    return cast(Environment, made)


def begin(environment: Environment, seed: int) -> tuple[Any, dict[str, Any]]:
    """Begin an episode; raise DataError if `reset` does not return an observation and facts."""
    found = _called("reset", environment.reset, seed=seed)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise DataError("the environment's reset must return (observation, info), as gymnasium's does")
    return found


def take(environment: Environment, action: Any) -> Step:
    """Take an action; raise DataError if `step` does not return five values with a finite reward."""
    found = _called("step", environment.step, action)
    if not (isinstance(found, tuple) and len(found) == 5 and isinstance(found[4], dict)):
        raise DataError(
            "the environment's step must return (observation, reward, terminated, truncated, info), as gymnasium's does"
        )
    observation, reward, terminated, truncated, facts = found
    try:
        number = float(reward)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not is_finite(number):
        raise DataError(f"the environment gave a reward of {repr(reward)[:40]}, {NOT_FINITE}")
    return observation, number, bool(terminated), bool(truncated), facts


NOT_FINITE = "not a finite number (at most 1e30)"


def is_finite(value: Any) -> bool:
    """Return whether a value is a number whose sums over an episode float32 can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e30


def _called(name: str, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
    """Return the result of a function of an environment, which may be anyone's code."""
    try:
        return function(*values, **named)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the environment's {name} failed: {_in_words(error)}") from None


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {in_one_line(error)}"


def random_action(environment: Environment, facts: dict[str, Any], random: np.random.Generator) -> Any:
    """Return a random action, of those that `action_mask` among the facts allows if it is there."""
    return _called("action_space", _sampled_action, environment, facts, random)


def _sampled_action(environment: Any, facts: dict[str, Any], random: np.random.Generator) -> Any:
    space = environment.action_space
    first = int(getattr(space, "start", 0))  # number of the first action of gymnasium's Discrete
    if "action_mask" in facts:
        allowed = np.flatnonzero(facts["action_mask"])
        if not len(allowed):
            raise DataError("the environment allows no action (action_mask), but the episode has not ended")
        return int(random.choice(allowed)) + first
    # MultiBinary has n, too, but its actions are vectors.
    if hasattr(space, "n") and not getattr(space, "shape", ()):
        return int(random.integers(space.n)) + first
    # Other spaces sample with random numbers of their own.
    space.seed(int(random.integers(2**31)))
    return space.sample()


def random_episodes(environment: Environment, count: int, seed: int, longest: int) -> Iterator[dict[str, list[Any]]]:
    """Yield episodes of random actions: states, actions and rewards.

    Raises:
        DataError: an episode does not end within `longest` steps.
    """
    random = np.random.default_rng(seed)
    for _ in range(count):
        state, facts = begin(environment, int(random.integers(2**31)))
        episode: dict[str, list[Any]] = {"states": [], "actions": [], "rewards": []}
        is_over = False
        while not is_over:
            if len(episode["states"]) == longest:
                raise DataError(
                    f"an episode has not ended after {longest} steps; raise [model] max_positions, or let the "
                    "environment end its episodes"
                )
            action = random_action(environment, facts, random)
            # Copied before the step, as an environment may change its state in place.
            seen = copy.deepcopy((plain(state), plain(action)))
            following, reward, terminated, truncated, facts = take(environment, action)
            for key, value in zip(episode, (*seen, plain(reward)), strict=True):
                episode[key].append(value)
            state, is_over = following, terminated or truncated
        yield episode


def plain(value: Any) -> Any:
    """Return a value with arrays and numbers of NumPy as lists and numbers of Python."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
