"""The tasks by name, and those that need little code."""

from collections.abc import Callable
from typing import get_args

from nmtkit.config.data_schema import LANGUAGE_MODEL, SUMMARY, TRAJECTORIES, DataConfig, Text, default_task
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.errors import RecipeError
from nmtkit.tasks.classification import LabelTask
from nmtkit.tasks.language_model import LanguageModelTask
from nmtkit.tasks.parsing import ParsingTask
from nmtkit.tasks.summary import SummaryTask
from nmtkit.tasks.task import Task
from nmtkit.text.tokenizer import Tokenizer


class TranslationTask(Task):
    """Translation of plain text, or of text that is already split into words."""

    def __init__(self, text: str) -> None:
        if text == "tokenized":
            self.description = "tokenized: words and punctuation are separated before"

    def source_doubt(self, line: str) -> str | None:
        if "\t" not in line.strip():
            return None
        return "tabs are read as blanks, so all columns of a table are one text; cut out the one that is meant"


class TrajectoryTask(Task):
    """Decisions: actions in sequences of returns, states and actions.

    The episodes are read by `data/episodes.py`, and played by `decoding/play.py` in environments such as those of
    `environments.py`. Source: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling".
    """

    command = "play"
    does, activity, noun, unit = "plays episodes", "playing", "episode", "actions"
    example = "episode"
    nll, nll_title = "nll of the action", "Loss, nats (vectors: mean squared error) per action"
    averaging_metric = "nll"
    has_text = predicts_text = False

    def __init__(self, text: str) -> None:
        self.description = "episodes of states, actions and rewards"


TASKS: dict[str, Callable[[str], Task]] = {
    "translation": TranslationTask, "parsing": ParsingTask, LANGUAGE_MODEL: LanguageModelTask,
    SUMMARY: SummaryTask, TRAJECTORIES: TrajectoryTask,
}  # fmt: skip
"""Constructors of the tasks by the value of `data.task`; their argument is the kind of text (`data.text`)."""


def task_of(owner: DataConfig | Tokenizer | str) -> Task:
    """Return the task of a recipe's data, of a tokenizer, or of a name or kind of text (`data.text`).

    Raises:
        RecipeError: the task, or the kind of text, is unknown.
    """
    if isinstance(owner, str):
        if owner not in (*get_args(Text), *TASKS, *LABEL_KINDS):
            raise RecipeError(f'"{owner}" is no task, and no kind of text: {", ".join(get_args(Text))}')
        name, text = owner if owner in (*TASKS, *LABEL_KINDS) else default_task(owner), owner
    else:
        name, text = owner.task_name, owner.text
    if name in LABEL_KINDS:
        return LabelTask(name, "class" if isinstance(owner, str) else owner.label_type)
    if name not in TASKS:
        choices = ", ".join(sorted([*TASKS, *LABEL_KINDS]))
        raise RecipeError(f'data.task = "{name}": no such task; choose one of {choices}')
    return TASKS[name](text)
