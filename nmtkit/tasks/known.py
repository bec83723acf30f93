"""The tasks by the value of `data.text`."""

from nmtkit.tasks.parsing import Parsing
from nmtkit.tasks.task import Task
from nmtkit.tasks.translation import Translation

TASKS: dict[str, Task] = {
    "plain": Translation(is_tokenized=False),
    "tokenized": Translation(is_tokenized=True),
    "trees": Parsing(is_tagged=False),
    "tagged-trees": Parsing(is_tagged=True),
}


def task_of(text: str) -> Task:
    """Return the task of a recipe or tokenizer with this value of `data.text`."""
    return TASKS[text]
