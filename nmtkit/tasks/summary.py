"""Summaries: the title or query and the paragraphs of documents in, a text about them out.

    source   "title TAB paragraph TAB paragraph"      as `nmtkit extract --with-title` writes it
    target   "sentence TAB sentence"                  or one text without tabs

A tab is a token of its own, so the model sees where title, paragraphs and sentences end.

Source: Liu et al. (2018), "Generating Wikipedia by Summarizing Long Sequences", section 4.2.1.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from nmtkit.corpora.corpus import Corpus
from nmtkit.errors import DataError
from nmtkit.tasks.task import Output, Task, converted
from nmtkit.text.normalization import FIELD_MARK

_FORM = "a source is a title, then paragraphs with a tab before each (without a title, begin the line with a tab)"


class SummaryTask(Task):
    """Summaries of documents."""

    unrelated_target = "summary"
    averaging_metric: Literal["bleu", "nll"] = "nll"
    metrics = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    splits_sources = False
    translates_sentences = False

    def __init__(self, text: str) -> None:
        self.description = f"{text}; title and paragraphs of the source are separated by tabs"

    def training_corpus(self, corpus: Corpus) -> Corpus:
        source = converted(corpus.source, self._checked_source)
        return replace(corpus, source=source, target=converted(corpus.target, self.model_target))

    def _checked_source(self, line: str, name: str, number: int) -> str:
        if self.source_doubt(line):
            raise DataError(f"{name}, line {number}: has no tab; {_FORM}")
        return self.model_source(line)

    def source_doubt(self, line: str) -> str | None:
        if not line.strip() or "\t" in line:
            return None
        return f"without a tab, all of a line is read as the title; {_FORM}"

    def check_pair(self, source: str, target: str, names: Sequence[str], number: int) -> None:
        self._checked_source(source, names[0], number)

    def model_source(self, line: str) -> str:
        return _with_marks(line) if line.strip() else ""

    def model_target(self, line: str, name: str, number: int = 1) -> str:
        return self.model_source(line)

    def target_part(self, text: str) -> str:
        return _with_marks(text)

    def words(self, line: str) -> list[str]:
        return [word for word in line.split() if word != FIELD_MARK]

    def output(self, source: str, generated: str) -> Output:
        return Output(re.sub(f" *{FIELD_MARK} *", "\t", generated).strip())


def _with_marks(text: str) -> str:
    """Return a text with a mark between blanks for each tab."""
    fields = (part.strip(" ") for part in text.replace("\t", f"\t{FIELD_MARK}\t").split("\t"))
    return " ".join(field for field in fields if field)
