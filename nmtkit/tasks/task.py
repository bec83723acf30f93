"""All differences between kinds of work: input and output of the model, and the metrics of its output.

    lines of a corpus --Task.training_corpus, model_source, model_target--> text for the tokenizer and the model
    ids of the model  --tokenizer--> text --Task.output--> output of `translate`, which the metrics score

No other module depends on the kind of work. docs/architecture.md shows how to add a task.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from nmtkit.config.data_schema import DataConfig
from nmtkit.corpora.corpus import Corpus, TextSource
from nmtkit.errors import ModelError
from nmtkit.lines import refuse_binary, refuse_carriage_returns
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import Side
from nmtkit.versions import release

if TYPE_CHECKING:  # exports are used without torch, which takes seconds to import
    import torch

Constraint = Callable[["torch.Tensor", "torch.Tensor", Sequence[int]], None]
"""Function that sets the log-probabilities of forbidden continuations to -inf, in place.

Arguments: log-probabilities of the next token of each hypothesis [sentences, live, vocab]; tokens so far, with BOS
[sentences, live, length]; the index of the sentence of each row.
"""


def converted(text: TextSource, convert: Callable[[str, str, int], str]) -> TextSource:
    """Return a text with each line converted by a function of the line, the name of the text and the line's number."""

    def lines() -> Iterator[bytes]:
        for number, stored in enumerate(text.read(), start=1):
            line = stored.removesuffix(b"\n")
            if number == 1:  # before a task finds faults in what is no text
                refuse_binary(line, text.name)
                refuse_carriage_returns(stored, text.name)
            # Line ends and bytes that are not UTF-8 stay as they are: the reader of the text counts or names them.
            end = b"\r\n" if line.endswith(b"\r") else b"\n"
            content = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
            mark = "\ufeff" if number == 1 and content.startswith("\ufeff") else ""  # no part of the text
            new = mark + convert(content.removeprefix(mark), text.name, number)
            yield new.encode("utf-8", "surrogateescape") + end

    return replace(text, read=lines)


@dataclass(frozen=True)
class Output:
    """Output of `translate` for a text that the model generated.

    Attributes:
        text: the output.
        is_mended: the generated text was not well-formed and was repaired; None for tasks where any text is
            well-formed.
    """

    text: str
    is_mended: bool | None = None


@runtime_checkable
class TaskMetric(Protocol):
    """A metric of outputs other than text; it may have several scores, such as precision and recall.

    Attributes:
        name: name for `--metric` and `Task.own_metric`.
        title: description of the score that ranks lines, the first of `line_scores`.
        tested: scores with confidence intervals and paired tests.
        comparable_to: for each score, the published scores that it can be compared with.
    """

    name: str
    title: str
    tested: tuple[str, ...]
    comparable_to: Mapping[str, str]

    def scores(self, reference: Sequence[str], hypotheses: Sequence[str], /) -> dict[str, tuple[float, str, str]]:
        """Return all scores of a text: score, signature, and details or ""; by default the tested ones."""
        sums = [math.fsum(column) for column in zip(*self.counts(reference, hypotheses), strict=True)]
        signature = f"{self.signature(reference)}|version:nmtkit-{release()}"
        return {name: (self.value(name, sums), signature, "") for name in self.tested_on(reference)}

    def counts(self, reference: Sequence[str], hypotheses: Sequence[str], /) -> Sequence[Sequence[int | float]]:
        """Return the counts of each line; the tested scores are functions of their sums."""

    def value(self, score: str, counts: Sequence[int | float], /) -> float:
        """Return one of the tested scores from sums of counts over lines; those of resampled lines are float32."""

    def tested_on(self, reference: Sequence[str], /) -> tuple[str, ...]:
        """Return the tested scores that are defined for a reference."""
        return self.tested

    def line_scores(self, reference: Sequence[str], hypotheses: Sequence[str], /) -> list[dict[str, float]]:
        """Return the scores of each line by itself; higher is better."""
        counts = self.counts(reference, hypotheses)
        return [{name: self.value(name, of_line) for name in self.tested} for of_line in counts]

    def signature(self, reference: Sequence[str], /) -> str:
        """Return the signature of the tested scores."""

    def unscored(
        self, reference: Sequence[str], hypotheses: Sequence[str], name: str, /
    ) -> tuple[str, tuple[int, ...], str]:
        """Return the fault of the lines that no score includes or that must be wrong, their numbers from 1, the remedy.

        Raises:
            DataError: a line cannot be scored; `name` is that of the hypotheses in the message.
        """


class Task:
    """A kind of work. The methods of this base class are for tasks from text to text.

    Attributes:
        description: description of source and target, for the README of an export.
        command: command that uses a model; does: what a model does, for messages; activity: the same for progress bars;
            noun: its output; example: what the data are counted in.
        unrelated_target: noun of a target whose length says nothing about the length of its source; None: they are
            related, as those of translations are.
        unit: what the loss is a mean over, for messages and pages.
        nll: name of the loss without smoothing and additional terms; nll_title: the same with its unit.
        averaging_metric: metric by which `average --search` chooses: bleu, or nll if BLEU has no meaning.
        metrics: text metrics that are computed by default, where the script of the target allows it; None: all.
        own_metric: name of the only metric of the output, a TaskMetric of `evaluation/metric_names.py`; None: the
            output is text, which the text metrics score.
        corrected_sides: sides whose text `[cleaning]` may correct; invalid UTF-8 is corrected on all.
        splits_sources: a source that is longer than any in training is translated in segments; False: only its first
            tokens are read.
        translates_sentences: each sentence of a line can be translated by itself, and its terms and numbers have their
            place in the translation.
        has_source: False: the model continues text, and learns from texts cut into sequences (`data/windows.py`).
        has_labels: the output is a label, which a head of the model predicts (`data/label_data.py`).
        predicts_text: False: the output is no text, so validation has no perplexity and no BLEU.
        has_text: False: the data are episodes (`data/episodes.py`), and the model plays (`decoding/play.py`).
    """

    description = "plain"
    command: Literal["translate", "generate", "classify", "play"] = "translate"
    does, activity, noun, unit = "translates", "translating", "translation", "target tokens"
    example = "pair"
    unrelated_target: str | None = None
    nll, nll_title = "nll", "Negative log-likelihood, nats per token"
    averaging_metric: Literal["bleu", "nll"] = "bleu"
    metrics: tuple[str, ...] | None = None
    own_metric: str | None = None
    has_source = True
    has_labels = False
    has_text = predicts_text = True
    corrected_sides: tuple[Side, ...] = ("source", "target")
    splits_sources = True
    translates_sentences = True

    def require(self, *commands: str) -> None:
        """Raise ModelError unless one of these commands is for models of this task."""
        if self.command not in commands:
            raise ModelError(f"this model {self.does}; use `nmtkit {self.command}`")

    def training_corpus(self, corpus: Corpus) -> Corpus:
        """Return the corpus with all lines converted by `model_source` and `model_target`."""
        return corpus

    def model_source(self, line: str) -> str:
        """Return the text that the model reads for a source line."""
        return line

    def model_target(self, line: str, name: str, number: int = 1) -> str:
        """Return the text that the model generates for a target line.

        Args:
            name: name of the text, for messages.
            number: number of the line, for messages.

        Raises:
            DataError: the line is not a valid target of this task.
        """
        return line

    def target_part(self, text: str) -> str:
        """Return the text that the model generates for a part of a target, such as a prefix."""
        return text

    def source_fault(self, line: str) -> str | None:
        """Return why a source line is not valid for the task, as in "has 1 field; ..."; None if it is valid."""
        return None

    def source_doubt(self, line: str) -> str | None:
        """Return how a source line is read that may be meant otherwise, for a warning; None if there is no doubt."""
        return None

    def check_pair(self, source: str, target: str, names: Sequence[str], number: int) -> None:
        """Check a pair of a validation or test set before anything is prepared.

        Args:
            names: names of the texts of both sides, for messages.
            number: number of the line, for messages.

        Raises:
            DataError: the pair is not valid.
        """

    def tokenizer(self, learned: Tokenizer, data: DataConfig, pairs: Iterable[tuple[str, str]]) -> Tokenizer:
        """Return the tokenizer of a run.

        Args:
            learned: tokenizer with the subwords that were learned, or those of data.tokenizer.
            pairs: source and target lines of the training text, without normalisation.

        Raises:
            DataError: nothing can be learned from the targets.
        """
        return learned

    def words(self, line: str) -> list[str]:
        """Return the words of a source line; without words there is nothing to translate."""
        return line.split()

    def output(self, source: str, generated: str) -> Output:
        """Return the output for the text that a model generated for a source line."""
        return Output(generated)

    def well_formed(
        self, entries: Sequence[str], eos: int, device: "torch.device | None"
    ) -> Callable[[Sequence[int]], Constraint] | None:
        """Return the constraint that only well-formed outputs satisfy; None: any output is well-formed.

        Args:
            entries: the vocabulary in the order of ids; entries that begin a word begin with U+2581.
            eos: id of the end symbol; smaller ids are special and never generated.

        Returns:
            A function from the number of source words of each sentence to the constraint.
        """
        return None
