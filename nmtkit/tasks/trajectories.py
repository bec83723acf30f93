"""Decisions: episodes of states, actions and rewards, whose actions a model predicts.

The episodes are read and stored by `data/episodes.py`, and played by `decoding/play.py` in environments such as those
of `environments.py`. Source: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling".
"""

from nmtkit.tasks.task import Task


class TrajectoryTask(Task):
    """Actions in sequences of returns, states and actions."""

    command = "play"
    does, activity, noun, unit = "plays episodes", "playing", "episode", "actions"
    nll, nll_title = "nll of the action", "Loss, nats (vectors: mean squared error) per action"
    averaging_metric = "nll"
    has_text = predicts_text = False

    def __init__(self, text: str) -> None:
        self.description = "episodes of states, actions and rewards"
