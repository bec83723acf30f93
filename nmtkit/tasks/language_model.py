"""Language models: text without a source, of which a model predicts each token from those before it.

A line of a text is stored as its tokens with NEWLINE after them, so the lines of a text one after the other are the
text. The source of a line is NEWLINE alone, and is never read.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from nmtkit.corpora.corpus import Corpus, TextSource
from nmtkit.tasks.task import Output, Task
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
        source = replace(corpus.source, read=partial(_marked, corpus.target, keeps_text=False))
        return replace(corpus, source=source, target=replace(corpus.target, read=partial(_marked, corpus.target)))

    def model_source(self, line: str) -> str:
        return NEWLINE

    def model_target(self, line: str, name: str, number: int = 1) -> str:
        return line.replace("\t", TAB) + NEWLINE

    def output(self, source: str, generated: str) -> Output:
        return Output(text_of(generated))


def text_of(generated: str) -> str:
    """Return generated text with its line ends and tabs."""
    return generated.replace(NEWLINE, "\n").replace(TAB, "\t")


def _marked(text: TextSource, *, keeps_text: bool = True) -> Iterator[bytes]:
    """Yield lines with NEWLINE before their ends, or only that."""
    mark, tab = NEWLINE.encode(), TAB.encode()
    for stored in text.read():
        # Tabs are marked before the normalisation, some steps of which would make them blanks.
        line = stored.removesuffix(b"\n").removesuffix(b"\r").replace(b"\t", tab) if keeps_text else b""
        yield line + mark + b"\n"
