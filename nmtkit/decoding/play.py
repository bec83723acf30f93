"""Models of decisions playing in an environment: episode by episode, one action after the other.

    play            episodes of a model, many at a time
    play_at_random  episodes of random actions
    outcome_of      success rate, returns, lengths, with 95 % intervals

Random numbers of an episode depend on its number and the seed, not on how many are played at a time.
"""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nmtkit.config.model_schema import ModelConfig
from nmtkit.console import log, progress
from nmtkit.data.episodes import Facts, episode_batch, name_of, normalized_states, vector_of
from nmtkit.errors import DataError, ModelError
from nmtkit.model.trajectory import DecisionTransformer
from nmtkit.model_folder import LoadedModel
from nmtkit.tasks.environments import Environment, begin, make_environment, plain, random_action, take
from nmtkit.text.vocabulary import SPECIAL_PIECES, UNK

AT_ONCE = 250
"""Episodes played at a time."""
_Z = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""
_FARTHEST_TARGET = 1e12
"""Largest return to aim at, relative to those in training; float32 cannot hold the squares of much larger ones."""


@dataclass(frozen=True)
class PlayRequest:
    """Settings of play.

    Attributes:
        episodes: number of episodes.
        target: return-to-go at the beginning; "best": the highest of the training episodes; "predicted": the model's
            own prediction at each step; None: predicted if the model predicts returns, else best.
        prior: with "predicted": exponent of a prior that favours high returns. The probability of each return is
            multiplied by its rank among the different ones, from 0 for the lowest, to this power; 0: no prior.
        min_probability: with "predicted", returns that are less probable are taken to be out of reach: a model gives
            each impossible return a small probability, which the prior would multiply by up to 10^10. None is left out
            where only the lowest would remain. 0: as published.
        is_greedy: take the most probable action (and return) instead of sampling it.
        environment: name or MODULE:FUNCTION; None: that of the training, which may not be MODULE:FUNCTION.
        seed: of the episodes and of sampling.
        max_steps: steps after which an episode is cut off, and judged by what was reached; None: an episode that does
            not end within 10 times the positions of the model is an error. Later steps than the last position have that
            position, as published.
    """

    episodes: int = 100
    target: float | str | None = None
    prior: float = 10.0
    min_probability: float = 0.002
    is_greedy: bool = False
    environment: str | None = None
    seed: int = 1
    max_steps: int | None = None


@dataclass
class Played:
    """An episode that was played.

    Attributes:
        total: sum of its rewards.
        is_success, shortest: facts of the environment after its last step; is_shortest: both agree, see `judge`.
        bar: return that is a success; None if the environment says what is one.
        values: probability of each different return-to-go before each step, if the model predicts them.
    """

    states: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    is_success: bool = False
    is_shortest: bool | None = None
    shortest: float | None = None
    bar: float | None = None
    values: list[list[float]] = field(default_factory=list)

    @property
    def total(self) -> float:
        return math.fsum(self.rewards)

    def judge(self, known: dict[str, Any], best: float) -> None:
        """Note the facts of the environment after the last step; without `is_success`, the best return is a success."""
        # The best return is a sum, too, so equal returns may differ by rounding.
        is_best = self.total >= best - 1e-9 * max(1.0, abs(best))
        self.is_success = bool(np.all(known.get("is_success", is_best)))
        self.bar = None if "is_success" in known else best
        if isinstance(known.get("shortest"), Real):
            self.shortest = float(known["shortest"])
            self.is_shortest = self.is_success and len(self.rewards) == self.shortest


def outcome_of(episodes: Sequence[Played]) -> dict[str, Any]:
    """Return success rate and mean return with intervals, shares of shortest paths, and the count of each length.

    The interval of a rate is Wilson's, that of the mean return 1.96 standard errors; both 95 %. A single episode gives
    no interval of the mean.
    """
    number = len(episodes)
    returns = np.array([episode.total for episode in episodes])
    lengths = [len(episode.rewards) for episode in episodes if episode.is_success]
    mean, half = float(returns.mean()), _Z * float(returns.std(ddof=1)) / math.sqrt(number) if number > 1 else None
    found: dict[str, Any] = {
        "episodes": number,
        "success_rate": len(lengths) / number,
        "success_rate_interval": wilson(len(lengths), number),
        "mean_return": mean,
        "mean_return_interval": None if half is None else [mean - half, mean + half],
        "mean_length": float(np.mean(lengths)) if lengths else None,
        "mean_length_half_width": _Z * float(np.std(lengths, ddof=1)) / math.sqrt(len(lengths))
        if len(lengths) > 1
        else None,
        "lengths": {str(length): lengths.count(length) for length in sorted(set(lengths))},
    }
    if any(episode.shortest is not None for episode in episodes):
        num_shortest = sum(bool(episode.is_shortest) for episode in episodes)
        possible = [episode.shortest for episode in episodes if episode.shortest is not None]
        found["shortest_rate"] = num_shortest / number
        found["shortest_rate_interval"] = wilson(num_shortest, number)
        found["shortest_lengths"] = {f"{length:g}": possible.count(length) for length in sorted(set(possible))}
    return found


def best_return_probabilities(episodes: Sequence[Played]) -> dict[str, list[float]]:
    """Return the mean probability of the highest return before each step, of episodes with and without success.

    Source: figure 5, on the left. Each mean has as many steps as the median of its episodes.
    """
    found = {}
    for name, is_success in (("success", True), ("no success", False)):
        rows = [each.values for each in episodes if each.is_success == is_success]
        rows = [values for values in rows if values and len(values[0]) > 1]
        steps = int(np.median([len(values) for values in rows])) if rows else 0
        means = [[values[step][-1] for values in rows if len(values) > step] for step in range(steps)]
        found[name] = [float(np.mean(probabilities)) for probabilities in means]
    return {name: means for name, means in found.items() if means}


def target_of(config: ModelConfig, request: PlayRequest) -> float | str:
    """Return the return to aim at: a number, "best", "predicted", or "none" for a model that reads no returns."""
    if not config.returns:
        return "none"
    default = "predicted" if config.return_values else "best"
    return default if request.target is None else request.target


def signature_of(loaded: LoadedModel, request: PlayRequest) -> str:
    """Return all that decides the scores of a model besides its weights, in the form of sacreBLEU's signatures."""
    facts, target = Facts.of(loaded.tokenizer), target_of(loaded.model.config, request)
    environment = request.environment or facts.environment
    if environment == "graph":
        environment = f"{environment}-{facts.environment_seed}"
    if target == "predicted":
        target = f"predicted|prior:{request.prior:g}|min-probability:{request.min_probability:g}"
    elif target == "best":
        target = f"best={facts.best:g}"
    actions = "greedy" if request.is_greedy else "sampled"
    return (
        f"environment:{environment}|episodes:{request.episodes}|target:{target}|actions:{actions}|seed:{request.seed}"
    )


def wilson(successes: int, number: int) -> list[float]:
    """Return Wilson's 95 % interval of a rate. Source: Wilson (1927), JASA 22, 209-212."""
    rate, square = successes / number, _Z**2
    centre = (rate + square / (2 * number)) / (1 + square / number)
    half = _Z * math.sqrt(rate * (1 - rate) / number + square / (4 * number**2)) / (1 + square / number)
    # Rounding can lead slightly out of [0, 1].
    return [max(0.0, centre - half), min(1.0, centre + half)]


def play(loaded: LoadedModel, request: PlayRequest) -> list[Played]:
    """Play episodes with a model.

    Raises:
        ModelError: the model plays no episodes.
        DataError: the request does not fit the model, or the environment does not fit its training.
    """
    player = _Player(loaded, request)
    found: list[Played] = []
    with progress("playing", request.episodes) as advance:
        for first in range(0, request.episodes, AT_ONCE):
            found += player.play(range(first, min(first + AT_ONCE, request.episodes)))
            advance(len(found))
    if player.num_unknown:
        log.warning(
            "%d of %d states occur in no training episode, so the model does not know them",
            player.num_unknown, player.num_states,
        )  # fmt: skip
    return found


def is_cut(step: int, request: PlayRequest, positions: int) -> bool:
    """Return whether episodes are cut off before this step, from 0.

    Raises:
        DataError: they have not ended after 10 times the positions of a model, and the request sets no limit.
    """
    if request.max_steps is not None:
        return step >= request.max_steps
    if step >= 10 * positions:
        raise DataError(f"an episode has not ended after {step} steps; end episodes with `nmtkit play --max-steps N`")
    return False


class _Player:
    """A model that plays."""

    def __init__(self, loaded: LoadedModel, request: PlayRequest) -> None:
        self._facts = Facts.of(loaded.tokenizer)
        if not isinstance(loaded.model, DecisionTransformer):
            raise ModelError("this model was trained with text and not with episodes; it cannot play")
        self._model, self._request, self._config = loaded.model, request, loaded.model.config
        # In training no sequence was longer than the positions.
        self._window = min(self._facts.window, self._config.max_positions)
        names = {side: loaded.tokenizer.entries(side)[len(SPECIAL_PIECES) :] for side in ("source", "target")}
        self._state_ids = {name: number for number, name in enumerate(names["source"], start=len(SPECIAL_PIECES))}
        self._width, self._action_names = len(names["source"]), names["target"]
        target = target_of(self._config, request)
        if request.target == "predicted" and not (self._config.return_values and self._config.returns):
            raise DataError("--target-return predicted needs a model that predicts returns ([model] return_values)")
        self._is_predicted = target == "predicted"
        self._target = self._facts.best if isinstance(target, str) else target
        if self._facts.values and not isinstance(target, str):
            nearest = min(self._facts.values, key=lambda value: abs(value - target))
            if f"{nearest:g}" != f"{target:g}":
                text = "%g is no return-to-go of the training episodes; the model aims at the nearest one, %g"
                log.warning(text, target, nearest)
        elif not isinstance(target, str) and abs(target) > _FARTHEST_TARGET * self._facts.scale:
            raise DataError(f"--target-return {target:g}: too far from the returns in training")
        self.num_states = self.num_unknown = 0

    def play(self, numbers: Sequence[int]) -> list[Played]:
        """Play the episodes with these numbers at the same time."""
        request, facts = self._request, self._facts
        randoms = [np.random.default_rng([request.seed, number]) for number in numbers]
        makers = [environment_of(facts, request) for _ in numbers]
        if len({id(environment) for environment in makers}) < len(makers):
            raise DataError("the environment's function must return a new environment at each call")
        observed = []
        for environment, random in zip(makers, randoms, strict=True):
            state, _ = begin(environment, int(random.integers(2**31)))
            observed.append(plain(state))
        played = [Played() for _ in numbers]
        to_go = [[self._clipped(self._target)] for _ in numbers]
        live = list(range(len(numbers)))
        while live and not is_cut(len(played[live[0]].rewards), request, self._config.max_positions):
            for index in live:
                played[index].states.append(self._encoded(observed[index]))
            actions = self._choose([played[i] for i in live], [to_go[i] for i in live], [randoms[i] for i in live])
            going = []
            for index, action in zip(live, actions, strict=True):
                episode = played[index]
                state, reward, terminated, truncated, known = take(makers[index], self._outward(action))
                observed[index] = plain(state)
                episode.actions.append(action)
                episode.rewards.append(reward)
                to_go[index].append(self._clipped(to_go[index][-1] - reward))
                episode.judge(known, facts.best)
                if not (terminated or truncated):
                    going.append(index)
            live = going
        return played

    def _clipped(self, to_go: float) -> float:
        return to_go if self._facts.min_return is None else max(to_go, self._facts.min_return)

    def _encoded(self, state: Any) -> Any:
        """Return the id or the vector of a state; raise DataError if the model knows no states of this form."""
        if self._config.vector_states:
            return np.asarray(vector_of(state, "the environment: a state", self._width), np.float32)
        index = self._state_ids.get(name_of(state, "the environment: a state"), UNK)
        self.num_states, self.num_unknown = self.num_states + 1, self.num_unknown + (index == UNK)
        return index

    def _outward(self, action: Any) -> Any:
        """Return an action as the environment takes it."""
        if self._config.head == "vector-action":
            return np.asarray(action, np.float32) * self._facts.action_scale
        return json.loads(self._action_names[action - len(SPECIAL_PIECES)])

    @torch.inference_mode()
    def _choose(
        self, episodes: Sequence[Played], to_go: Sequence[list[float]], randoms: Sequence[np.random.Generator]
    ) -> list[Any]:
        """Return the next action of each episode; a predicted return-to-go replaces the last one."""
        stop = len(episodes[0].states)
        first = max(0, stop - self._window)
        steps = slice(first, stop)
        is_vector = self._config.head == "vector-action"
        blank = [0.0] * len(self._action_names) if is_vector else UNK
        is_vector_state = self._config.vector_states
        states = np.array([each.states[steps] for each in episodes], np.float32 if is_vector_state else np.int64)
        actions = np.array([[*each.actions, blank][steps] for each in episodes], np.float32 if is_vector else np.int64)
        positions = np.arange(first, stop)
        if self._facts.timesteps == "episode":  # later ones have the last position, as published
            positions = positions.clip(max=self._config.max_positions - 1)
        timesteps = np.tile(positions, (len(episodes), 1))
        sizes = np.full(len(episodes), stop - first)

        def predict() -> tuple[torch.Tensor, torch.Tensor | None]:
            returns = np.array([values[steps] for values in to_go])
            batch = episode_batch(
                self._facts, normalized_states(self._facts, states), actions, returns, timesteps, sizes
            ).to(self._model.output_embedding.device)
            return self._model.predict(*batch.inputs, batch.timesteps)

        output, values = predict()
        if values is not None:
            # On the CPU, as mps has no float64.
            probabilities = values[:, -1].cpu().double().softmax(-1)[:, : len(self._facts.values)].numpy()
            for episode, row in zip(episodes, probabilities, strict=True):
                episode.values.append(row.tolist())
            if self._is_predicted:
                # From 0 to 1, so that no power is too large; only proportions count.
                ranks = np.arange(len(self._facts.values)) / max(1, len(self._facts.values) - 1)
                prior = self._request.prior
                within = (probabilities >= self._request.min_probability) & (probabilities > 0)
                # Where all but the lowest, whose rank is 0, are less probable, none is left out.
                within |= ~(within & ((ranks > 0) | (prior == 0))).any(1, keepdims=True)
                # Relative to the highest, as all other powers may vanish.
                highest = np.where(within, ranks, 0.0).max(1, keepdims=True)
                relative = np.divide(ranks, highest, out=np.zeros_like(probabilities), where=within & (highest > 0))
                weighted = np.where(within, probabilities * relative**prior, 0.0)
                chosen = self._sampled(weighted, randoms)
                for history, index in zip(to_go, chosen, strict=True):
                    history[-1] = self._facts.values[index]
                output, _ = predict()
        if not output.isfinite().all():
            raise ModelError("the model's output is not finite: its weights are damaged or its training diverged")
        if is_vector:
            return output[:, -1].cpu().tolist()
        found = self._sampled(output[:, -1].cpu().double().softmax(-1).numpy(), randoms)
        return [index + len(SPECIAL_PIECES) for index in found]

    def _sampled(self, weights: npt.NDArray, randoms: Sequence[np.random.Generator]) -> list[int]:
        """Return an index for each row of weights, in proportion to them, or the index of the greatest."""
        if self._request.is_greedy:
            return weights.argmax(1).tolist()
        sums = weights.cumsum(1)
        # By rounding, probabilities hardly add up to exactly 1.
        drawn = np.array([random.random() for random in randoms]) * sums[:, -1]
        return [
            # right: an index of weight 0 is not taken, even if the random number is 0.
            int(np.searchsorted(row, at, side="right").clip(max=len(row) - 1))
            for row, at in zip(sums, drawn, strict=True)
        ]


def environment_of(facts: Facts, request: PlayRequest) -> Environment:
    """Return a new environment of a request, by default that of the training unless its name is code to run."""
    name = request.environment or facts.environment
    if name is None:
        raise DataError("the model was trained with episodes from files; name an environment with --environment")
    # The file of a model from elsewhere must not choose the code that runs.
    if not request.environment and ":" in name:
        trusted = f"--environment {shlex.quote(name)}"
        raise DataError(f"the model names the code {name!r} as its environment; if you trust it, give {trusted}")
    return make_environment(name, facts.environment_seed)


def play_at_random(facts: Facts, request: PlayRequest, positions: int = 1000) -> list[Played]:
    """Play episodes of random actions; ``positions``: of the model beside which they are played, see `is_cut`."""
    found = []
    for number in range(request.episodes):
        random = np.random.default_rng([request.seed, number])
        environment, episode, is_over = environment_of(facts, request), Played(), False
        _, known = begin(environment, int(random.integers(2**31)))
        while not is_over and not is_cut(len(episode.rewards), request, positions):
            _, reward, terminated, truncated, known = take(environment, random_action(environment, known, random))
            episode.rewards.append(reward)
            is_over = terminated or truncated
        episode.judge(known, facts.best)
        found.append(episode)
    return found
