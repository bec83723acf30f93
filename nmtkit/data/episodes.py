"""Episodes of states, actions and rewards on disk, for tasks without text (TrajectoryTask of tasks/known.py).

    lines of JSON, or random actions in an environment -> checked episodes -> RUN/data/train, RUN/data/valid:

    states.npy    entries of the vocabulary of states, or normalised vectors      [steps] or [steps, width]
    actions.npy   the same of actions
    returns.npy   return-to-go: sum of the rewards from the step on               [steps]
    ends.npy      end of each episode among the steps                             [episodes]
    lines.npy     number of each episode, from 1 through all corpora              [episodes]

What a model needs to know of the data besides both vocabularies is in the tokenizer's `facts` (`Facts`).
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.config.corpus_entries import LocalPair, corpus_name
from nmtkit.config.schema import Recipe
from nmtkit.console import counted, log, progress
from nmtkit.corpora.corpus import StoredText, stored_text
from nmtkit.data.batch import Batch, rows_of
from nmtkit.data.shards import Indices, Lengths, PairData, Part, tempered
from nmtkit.data.stages import fingerprint_of
from nmtkit.errors import DataError, ModelError
from nmtkit.lines import LineReader
from nmtkit.model.trajectory import tokens_of_step
from nmtkit.tasks.environments import NOT_FINITE, is_finite, make_environment, random_episodes
from nmtkit.text.new_tokenizers import symbol_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SPECIAL_PIECES, UNK

FORMAT = 1
_KEYS = ("states", "actions", "rewards")
_FILES = ("states", "actions", "returns", "ends", "lines")


@dataclass(frozen=True)
class Facts:
    """What a model of decisions needs to know of its training episodes.

    Attributes:
        environment, environment_seed: `data.environment` and its seed, in which it plays by default.
        window: steps that the model sees, `data.sequence_length`.
        timesteps: `data.timesteps`.
        min_return: `data.min_return`.
        scale: of returns-to-go at the model's input; the largest absolute one.
        best, worst: highest and lowest return of a whole episode.
        values: the different returns-to-go, in ascending order, if the model predicts them.
        mean, deviation: of each number of states that are vectors.
        action_scale: largest absolute number of actions that are vectors; the model predicts shares of it.
    """

    environment: str | None
    environment_seed: int
    window: int
    timesteps: str
    min_return: float | None
    scale: float
    best: float
    worst: float
    values: list[float]
    mean: list[float]
    deviation: list[float]
    action_scale: float

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Facts":
        """Return those stored with a model; raise ModelError if it is one of text."""
        try:
            return cls(**tokenizer.settings["facts"])
        except (KeyError, TypeError):
            raise ModelError("this model was trained with text and not with episodes; it cannot play") from None


@dataclass(frozen=True)
class EpisodeBatch(Batch):
    """Rows of successive steps. ``source`` are states, ``target_in`` and ``target_out`` the actions at them.

    States and actions that are vectors have a third dimension. Padding follows the steps.

    Attributes:
        returns: returns-to-go, scaled.
        values: indices of the returns-to-go among the different ones; 0 if they are not predicted.
        timesteps: number of each step in its episode, from 0.
        has_values: returns-to-go are predicted.
    """

    source: Int[Tensor, "batch steps"] | Float[Tensor, "batch steps state"]
    target_in: Int[Tensor, "batch steps"] | Float[Tensor, "batch steps action"]
    target_out: Int[Tensor, "batch steps"] | Float[Tensor, "batch steps action"]
    returns: Float[Tensor, "batch steps"]
    values: Int[Tensor, "batch steps"]
    timesteps: Int[Tensor, "batch steps"]
    has_values: bool

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, states and actions as the model reads them: returns that it predicts by their indices."""
        return self.values if self.has_values else self.returns, self.source, self.target_in


class EpisodeData(PairData):
    """Prepared episodes as sequences of at most `window` steps.

    Where all episodes are that short, each is a sequence. Otherwise one begins at every step, so that episodes occur
    in proportion to their lengths, as published. With `data.sampling_temperature`, the sequences of episodes of equal
    return are a part: which actions lead to a return does not depend on how often episodes with it are seen.

    Attributes:
        source_lengths, target_lengths: of each sequence, so that both joined are its tokens, and targets its steps.
        lines: number of the episode of each sequence, from 1 through all corpora.
    """

    noun, unit = "sequence", "actions"

    def __init__(self, folder: Path, recipe: Recipe, tokenizer: Tokenizer) -> None:
        self.folder, self.is_joined, self._facts = folder, True, Facts.of(tokenizer)
        num_values, most = len(self._facts.values), recipe.model.return_values
        if bool(num_values) != bool(most) or num_values > most:
            raise DataError(
                f"{folder}: prepared with another model.return_values ({num_values or 'no'} values of returns-to-go, "
                f"and now {most or 'none'}); prepare the run again"
            )
        states, actions, returns, ends, numbers = (_load(folder / f"{name}.npy") for name in _FILES)
        self._states, self._actions, self._returns = states, actions, returns
        fits = len(ends) > 0 and len(ends) == len(numbers)
        if not fits or not ends[-1] == len(states) == len(actions) == len(returns):
            raise DataError(f"{folder}: damaged (its files do not belong together); prepare the run again")
        begins, lengths = np.concatenate([[0], ends[:-1]]), np.diff(ends, prepend=0)
        _check_length(f"{folder}: episode {numbers[lengths.argmax()]}", int(lengths.max()), recipe)
        self._timesteps = np.arange(ends[-1]) - np.repeat(begins, lengths)
        window = self._facts.window
        if lengths.max() <= window:
            self._starts, self._stops, self.lines = begins, ends, numbers
        else:
            self._starts = np.arange(ends[-1])
            self._stops = np.minimum(self._starts + window, np.repeat(ends, lengths))
            self.lines = np.repeat(numbers, lengths)
        self.parts = [Part(len(self._starts), 1.0)]
        if (temperature := recipe.data.sampling_temperature) > 1:
            of_sequence = np.searchsorted(ends, self._starts, side="right")
            # Rounded, as sums of the same rewards in another order differ in their last bits.
            totals = returns[begins[of_sequence]].round(9)
            order = np.argsort(totals, kind="stable")
            self._starts, self._stops, self.lines = self._starts[order], self._stops[order], self.lines[order]
            counts = np.unique(totals, return_counts=True)[1].tolist()
            weights = tempered([1.0] * len(counts), counts, temperature)
            self.parts = [Part(count, weight) for count, weight in zip(counts, weights, strict=True)]
        self.target_lengths = self._stops - self._starts
        self.source_lengths = (len(tokens_of_step(recipe.model)) - 1) * self.target_lengths + 1

    def own_batch(self, chosen: Indices) -> EpisodeBatch:
        starts, sizes = self._starts[chosen], self.target_lengths[chosen]
        real = np.arange(int(sizes.max(initial=1))) < sizes[:, None]
        # Padding repeats the first step, as there may be no further steps in the data.
        rows = np.where(real, starts[:, None] + np.arange(real.shape[1]), starts[:, None])
        states, actions, returns = self._states[rows], self._actions[rows], self._returns[rows]
        return episode_batch(self._facts, states, actions, returns, self._timesteps[rows], sizes)


def episode_batch(
    facts: Facts,
    states: npt.NDArray,
    actions: npt.NDArray,
    returns: npt.NDArray,
    timesteps: npt.NDArray,
    sizes: Lengths,
) -> EpisodeBatch:
    """Return the batch of rows of steps [batch, steps].

    Args:
        timesteps: of each step in its episode, from 0.
        sizes: steps of each row; the others are padding.
    """
    if facts.timesteps == "window":
        timesteps = timesteps - timesteps[:, :1]
    real = np.arange(returns.shape[1]) < sizes[:, None]
    middles = (np.array(facts.values[1:]) + facts.values[:-1]) / 2
    values = np.searchsorted(middles, returns)  # the nearest
    inputs, outputs = (torch.from_numpy(np.ascontiguousarray(part)) for part in (states, actions))
    return EpisodeBatch(
        source=inputs,
        source_lengths=torch.from_numpy(sizes),
        target_in=outputs,
        target_out=outputs,
        target_lengths=torch.from_numpy(sizes),
        target_rows=rows_of(real),
        returns=torch.from_numpy((returns / facts.scale).astype(np.float32)),
        values=torch.from_numpy(values),
        timesteps=torch.from_numpy(timesteps.astype(np.int64)),
        has_values=bool(facts.values),
    )


def _check_length(place: str, steps: int, recipe: Recipe) -> None:
    if steps > recipe.model.max_positions:
        raise DataError(
            f"{place}: {steps} steps, but model.max_positions = {recipe.model.max_positions}; raise it, or leave the "
            "episode out"
        )


def _load(path: Path) -> npt.NDArray:
    try:
        # Memory-mapped, so that all processes share the memory.
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy may raise anything for a damaged header
        raise DataError(f"{path}: missing or damaged ({error}); prepare the run again") from None


@dataclass(frozen=True)
class Episode:
    """An episode with its place, for messages, and its number, from 1 through all corpora."""

    place: str
    number: int
    states: list[Any]
    actions: list[Any]
    rewards: list[float]

    @property
    def total(self) -> float:
        # fsum is exact; sum() rounds differently since Python 3.12.
        return math.fsum(self.rewards)


def read_episodes(text: StoredText, before: int = 0) -> Iterator[Episode]:
    """Yield the episodes in lines of JSON with lists of equal length: states, actions and rewards.

    Args:
        before: number of episodes in earlier corpora.

    Raises:
        DataError: a line is no such object; it names file and line.
    """
    for number, line in enumerate(LineReader(text, name=text.name), start=1):
        place = f"{text.name}, line {number}"
        if not line.strip():
            raise DataError(f"{place}: is empty; remove it, as each line is an episode")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{place}: not an object of JSON; write one episode per line") from None
        if not isinstance(found, dict) or not all(isinstance(found.get(key), list) for key in _KEYS):
            raise DataError(f"{place}: an episode needs the lists states, actions and rewards")
        lengths = [len(found[key]) for key in _KEYS]
        if len(set(lengths)) > 1 or not lengths[0]:
            raise DataError(
                f"{place}: states, actions and rewards must be lists of the same length of at least 1, not "
                f"{lengths[0]}, {lengths[1]} and {lengths[2]}"
            )
        for step, reward in enumerate(found["rewards"], start=1):
            if not is_finite(reward):
                raise DataError(f"{place}: reward {step} is {repr(reward)[:60]}, {NOT_FINITE}")
        rewards = [float(reward) for reward in found["rewards"]]
        yield Episode(place, before + number, found["states"], found["actions"], rewards)


class Episodes:
    """The episodes of a recipe.

    Attributes:
        fingerprint: of all that decides the content of RUN/data.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Open the files of the recipe, and make its environment once; raise DataError if one cannot be used."""
        self._recipe, self._data = recipe, recipe.data
        if self._data.environment is not None:  # which is needed after the training, too
            make_environment(self._data.environment, self._data.environment_seed)
        self._texts: dict[str, list[tuple[str, StoredText | None]]] = {}
        for role, entries in (("train", self._data.train), ("valid", self._data.corpora("valid"))):
            self._texts[role] = [
                (corpus_name(entry), stored_text(entry.source, "plain", "") if isinstance(entry, LocalPair) else None)
                for entry in entries
            ]
        settings = self._data.model_dump(mode="json", exclude={"train", "valid"})
        sums = [(role, name, text and text.identity) for role, texts in self._texts.items() for name, text in texts]
        valid_number = self._data.held_out.get("valid")
        self.fingerprint = fingerprint_of(FORMAT, settings, sums, valid_number, recipe.model.return_values)

    def write(self, folder: Path) -> dict[str, Any]:
        """Read all episodes, fill RUN/data, and return the entries of its manifest.

        Raise DataError for an episode that cannot be used.
        """
        self._corpora: list[dict[str, Any]] = []
        episodes = {role: self._read(role) for role in self._texts}
        for role, texts in self._texts.items():
            if texts and not episodes[role]:
                files = ", ".join(text.name if text else name for name, text in texts)
                raise DataError(f"data.{role}: there is no episode in {files}")
        train, valid = episodes["train"], episodes["valid"]
        if isinstance(self._data.valid, int):
            if self._data.valid >= len(train):
                noun = "is only 1 episode" if len(train) == 1 else f"are only {len(train):,} episodes"
                raise DataError(f"data.valid = {self._data.valid}: there {noun}")
            # The 1 makes other random numbers than those of the actions, which have the same seed.
            order = np.random.default_rng([self._data.episodes_seed, 1]).permutation(len(train))
            valid = [train[index] for index in sorted(order[: self._data.valid])]
            train = [train[index] for index in sorted(order[self._data.valid :])]
        before, returns = train, [episode.total for episode in train]
        worst = min(returns)
        if self._data.best_episodes < 1:
            ranked = sorted(train, key=lambda episode: -episode.total)
            kept = ranked[: max(1, round(self._data.best_episodes * len(ranked)))]
            train = [episode for episode in kept if episode.total > worst]
            if not train:
                raise DataError("data.best_episodes: all episodes have the same return, so none is among the best")
            log.info("data.best_episodes: learning from %s", counted(len(train), "episode"))
        longest = max((*train, *valid), key=lambda episode: len(episode.rewards))
        _check_length(longest.place, len(longest.rewards), self._recipe)
        to_go = [self._returns(episode) for episode in train]
        every = np.concatenate(to_go)
        values = np.unique(every.round(9)).tolist() if self._recipe.model.return_values else []
        if len(values) > self._recipe.model.return_values:
            raise DataError(
                f"the training episodes have {len(values)} different returns-to-go, more than [model] return_values = "
                f"{self._recipe.model.return_values}"
            )
        states, mean, deviation = _Column(train, "states", self._data.states), [], []
        actions = _Column(train, "actions", self._data.actions)
        if not actions.is_vector and any(UNK in actions.encode(episode) for episode in valid):
            actions = _Column(before, "actions", self._data.actions)  # those that best_episodes left out as well
        if states.is_vector:
            numbers = np.concatenate([states.encode(episode) for episode in train])
            # In float64, as float32 sums over millions of steps are inexact; + 1e-6 as in the code of the Decision
            # Transformer, for numbers that never change.
            mean = numbers.mean(0, dtype=np.float64).tolist()
            deviation = (numbers.std(0, dtype=np.float64) + 1e-6).tolist()
        if not actions.is_vector and len(actions.names) == 1:
            log.warning(
                "all training episodes have the same action, %s, so there is nothing to learn", actions.names[0]
            )
        if self._data.min_return is not None and self._data.min_return >= max(returns):
            log.warning(
                "data.min_return = %g is not below the largest return, %g, so the model cannot tell good episodes from "
                "bad ones", self._data.min_return, max(returns),
            )  # fmt: skip
        largest = 1.0
        if actions.is_vector:
            largest = max(float(np.abs(actions.encode(episode)).max()) for episode in train) or 1.0
        facts = Facts(
            self._data.environment, self._data.environment_seed, self._data.sequence_length, self._data.timesteps,
            self._data.min_return,
            # Returns are divided by it, and all may be 0.
            float(np.abs(every).max()) or 1.0, max(returns), worst, values, mean, deviation, largest,
        )  # fmt: skip
        tokenizer = symbol_tokenizer(self._data, states.names, actions.names, asdict(facts))
        tokenizer.save(folder / "tokenizer")
        pairs, remedy = {}, "correct it, or leave the episode out"
        if isinstance(self._data.valid, int):
            remedy = f"data.valid = {self._data.valid} held the episode out; change that number, or {remedy}"
        for role, chosen in (("train", train), ("valid", valid)):
            if not chosen:
                continue
            pairs[role] = len(chosen)
            encoded = [(states.encode(episode), actions.encode(episode, remedy)) for episode in chosen]
            inputs = np.concatenate([of_states for of_states, _ in encoded])
            outputs = np.concatenate([of_actions for _, of_actions in encoded])
            arrays = {
                "states": normalized_states(facts, inputs),
                "actions": (outputs / largest).astype(np.float32) if actions.is_vector else outputs,
                "returns": np.concatenate([self._returns(episode) for episode in chosen]),
                "ends": np.cumsum([len(episode.rewards) for episode in chosen]),
                "lines": np.array([episode.number for episode in chosen]),
            }
            (folder / role).mkdir()
            for name, array in arrays.items():
                np.save(folder / role / f"{name}.npy", array)
        return {
            "corpora": self._corpora,
            "cleaning": {},
            "pairs": pairs,
            "tokenizer_sha256": tokenizer.fingerprint(),
            "vocab_sizes": tokenizer.settings["vocab_sizes"],
            "train_tokens": {"states": len(every), "actions": len(every)},
        }

    def _read(self, role: str) -> list[Episode]:
        found: list[Episode] = []
        for name, text in self._texts[role]:
            before, files = len(found), []
            if text is None:
                found += self._played(before)
            else:
                found += read_episodes(text, before)
                files = [text.file.for_manifest()]
            total = text.file.sha256 if text else self.fingerprint
            entry = {"name": name, "role": role, "pairs": len(found) - before, "files": files, "sha256": total}
            self._corpora.append(entry)
        return found

    def _played(self, before: int) -> Iterator[Episode]:
        """Yield the episodes of random actions, of which others are before."""
        data = self._data
        assert data.environment is not None
        environment = make_environment(data.environment, data.environment_seed, for_data=True)
        episodes = random_episodes(environment, data.episodes, data.episodes_seed, self._recipe.model.max_positions)
        with progress("playing at random", data.episodes) as advance:
            for number, episode in enumerate(episodes, start=1):
                yield Episode(f"{data.environment}, episode {number}", before + number, **episode)
                advance(number)

    def _returns(self, episode: Episode) -> npt.NDArray[np.float64]:
        """Return the returns-to-go of an episode [steps]."""
        to_go = np.cumsum(episode.rewards[::-1])[::-1]
        return to_go if self._data.min_return is None else np.maximum(to_go, self._data.min_return)


def normalized_states(facts: Facts, states: npt.NDArray) -> npt.NDArray:
    """Return states that are vectors with mean 0 and variance 1 over the training steps; others unchanged."""
    return ((states - facts.mean) / facts.deviation).astype(np.float32) if facts.mean else states


class _Column:
    """The states or the actions of all episodes.

    Attributes:
        names: of the entries in the vocabulary; of vectors the numbers of their elements.
    """

    def __init__(self, episodes: Sequence[Episode], key: str, kind: str) -> None:
        self.key, self.is_vector = key, kind == "vector"
        if self.is_vector:
            first = vector_of(getattr(episodes[0], key)[0], f"{episodes[0].place}: {key}")
            self.names = [str(number) for number in range(len(first))]
        else:
            names = {name_of(value, f"{each.place}: {key}") for each in episodes for value in getattr(each, key)}
            self.names = sorted(names, key=lambda name: (len(name), name))  # by length first: 2 before 10
            self._ids = {name: number for number, name in enumerate(self.names, start=len(SPECIAL_PIECES))}

    def encode(self, episode: Episode, remedy: str = "") -> npt.NDArray:
        """Return the ids or vectors of an episode.

        Args:
            remedy: what to do about a value that is not in the vocabulary, for the message of DataError; empty: it is
                no error and becomes the unknown entry.
        """
        values, place = getattr(episode, self.key), f"{episode.place}: {self.key}"
        if self.is_vector:
            rows = [vector_of(value, place, len(self.names)) for value in values]
            return np.array(rows, np.float32)
        ids = [self._ids.get(name_of(value, place), UNK) for value in values]
        if remedy and UNK in ids:
            unknown = json.dumps(values[ids.index(UNK)])
            raise DataError(f"{place} has {unknown}, which no training episode has; {remedy}")
        return np.array(ids, np.int64)


def name_of(value: Any, place: str) -> str:
    """Return the vocabulary entry of a discrete state or action: a number without fraction, or a text."""
    # bool first, as it is a kind of int in Python.
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise DataError(
            f'{place} has {repr(value)[:60]}, not a whole number or a name; for lists of numbers state "vector" '
            "in [data] states or actions"
        )
    return json.dumps(value)


def vector_of(value: Any, place: str, width: int | None = None) -> list[float]:
    """Return a vector of a state or an action; raise DataError if it has another form or width."""
    numbers = value if isinstance(value, (list, tuple)) else [value]
    if not numbers or not all(is_finite(number) for number in numbers):
        raise DataError(f"{place} has {repr(value)[:60]}, not a list of finite numbers (at most 1e30)")
    if width is not None and len(numbers) != width:
        raise DataError(f"{place} has a vector of {len(numbers)} numbers, and others have {width}")
    return [float(number) for number in numbers]
