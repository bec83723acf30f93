"""The tasks by the value of `data.text`."""

from nmtkit.tasks.parsing import ParsingTask
from nmtkit.tasks.task import Task
from nmtkit.tasks.translation import TranslationTask

TASKS: dict[str, Task] = {
    "plain": TranslationTask(is_tokenized=False),
    "tokenized": TranslationTask(is_tokenized=True),
    "trees": ParsingTask(is_tagged=False),
    "tagged-trees": ParsingTask(is_tagged=True),
}


def task_of(text: str) -> Task:
    """Return the task of a recipe or tokenizer with this value of `data.text`."""
    return TASKS[text]
