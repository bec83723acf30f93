"""Translation: a line of text in, a line of text out."""

from nmtkit.tasks.task import Task


class TranslationTask(Task):
    """Translation of plain text, or of text that is already split into words."""

    def __init__(self, text: str) -> None:
        if text == "tokenized":
            self.description = "tokenized: words and punctuation are separated before"
