"""The tasks by name."""

from collections.abc import Callable

from nmtkit.config.schema import LANGUAGE_MODEL, DataConfig, default_task
from nmtkit.errors import RecipeError
from nmtkit.tasks.language_model import LanguageModelTask
from nmtkit.tasks.parsing import ParsingTask
from nmtkit.tasks.task import Task
from nmtkit.tasks.translation import TranslationTask
from nmtkit.text.tokenizer import Tokenizer

TASKS: dict[str, Callable[[str], Task]] = {
    "translation": TranslationTask, "parsing": ParsingTask, LANGUAGE_MODEL: LanguageModelTask,
}  # fmt: skip
"""For each value of `data.task` a function from the kind of text (`data.text`) to the task."""


def task_of(owner: DataConfig | Tokenizer | str) -> Task:
    """Return the task of a recipe's data, of the models with a tokenizer, or of a name or a kind of text (`data.text`).

    Raises:
        RecipeError: there is no such task.
    """
    if isinstance(owner, str):
        name, text = owner if owner in TASKS else default_task(owner), owner
    else:
        name, text = owner.task_name, owner.text
    if name not in TASKS:
        raise RecipeError(f'data.task = "{name}": no such task; choose one of {", ".join(sorted(TASKS))}')
    return TASKS[name](text)
