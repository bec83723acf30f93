"""Language models: text without a source, of which a model predicts each token from those before it.

A line of a text is stored as its tokens with NEWLINE after them, so the lines of a text one after the other are the
text. The source of a line is NEWLINE alone, and is never read.
"""

from dataclasses import replace

from nmtkit.corpora.corpus import Corpus
from nmtkit.tasks.task import Output, Task, converted
from nmtkit.text.normalization import NEWLINE, TAB


class LanguageModelTask(Task):
    """Continuation of text."""

    command = "generate"
    does = "continues text"
    unit, example = "tokens", "line"
    averaging_metric = "nll"
    has_source = False

    def __init__(self, text: str) -> None:
        self.description = f"{text}, which the model continues"

    def training_corpus(self, corpus: Corpus) -> Corpus:
        source = replace(corpus.source, read=converted(corpus.target, lambda *_: NEWLINE).read)
        return replace(corpus, source=source, target=converted(corpus.target, self.model_target))

    def model_source(self, line: str) -> str:
        return NEWLINE

    def model_target(self, line: str, name: str, number: int = 1) -> str:
        return line.replace("\t", TAB) + NEWLINE

    def output(self, source: str, generated: str) -> Output:
        return Output(text_of(generated))


def text_of(generated: str) -> str:
    """Return generated text with its line ends and tabs."""
    return generated.replace(NEWLINE, "\n").replace(TAB, "\t")
