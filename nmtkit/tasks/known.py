"""The tasks by name."""

from collections.abc import Callable

from nmtkit.config.schema import DataConfig
from nmtkit.errors import RecipeError
from nmtkit.tasks.parsing import ParsingTask
from nmtkit.tasks.task import Task
from nmtkit.tasks.translation import TranslationTask
from nmtkit.text.tokenizer import Tokenizer

TASKS: dict[str, Callable[[str], Task]] = {"translation": TranslationTask, "parsing": ParsingTask}
"""For each value of `data.task` a function from the kind of text (`data.text`) to the task."""


def task_of(owner: DataConfig | Tokenizer) -> Task:
    """Return the task of a recipe's data or of the models with a tokenizer.

    Raises:
        RecipeError: there is no such task.
    """
    if owner.task_name not in TASKS:
        raise RecipeError(f'data.task = "{owner.task_name}": no such task; choose one of {", ".join(sorted(TASKS))}')
    return TASKS[owner.task_name](owner.text)
