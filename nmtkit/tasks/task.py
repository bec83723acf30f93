"""Everything that differs between kinds of work: what a model reads and writes, and how its output is judged.

    lines of a corpus --Task.training_corpus, model_source, model_target--> what the tokenizer cuts and the model learns
    ids of the model  --tokenizer--> text --Task.output--> what `translate` writes and the metrics score

No other module asks which kind of work a model does. docs/architecture.md shows how a task is added.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from nmtkit.corpora.corpus import Corpus

if TYPE_CHECKING:  # an exported model is used without torch, which takes seconds to import
    import torch

Constraint = Callable[["torch.Tensor", "torch.Tensor", Sequence[int]], None]
"""Sets the log-probabilities of forbidden continuations to -inf, in place.

Arguments: log-probabilities of the next token of each hypothesis [sentences, live, vocab]; its tokens so far, BOS first
[sentences, live, length]; the index of the sentence of each row.
"""


@dataclass(frozen=True)
class Output:
    """What a model's text stands for.

    Attributes:
        text: as `translate` writes it.
        is_mended: the model's text was not well-formed and had to be changed; None for tasks where any text is.
    """

    text: str
    is_mended: bool | None = None


@runtime_checkable
class TaskMetric(Protocol):
    """A metric of outputs that are no running text; it may have several scores, such as precision and recall.

    Attributes:
        name: as `--metric` and `Task.own_metric` have it.
        title: the score that ranks sentences, in words.
        tested: the scores with confidence intervals and paired tests; the first one ranks sentences.
        comparable_to: for every score the scores that it can be compared with.
    """

    name: str
    title: str
    tested: tuple[str, ...]
    comparable_to: Mapping[str, str]

    def scores(self, reference: Sequence[str], hypotheses: Sequence[str], /) -> dict[str, tuple[float, str, str]]:
        """Return all scores of a text: score, signature, and details or ""."""

    def counts(self, reference: Sequence[str], hypotheses: Sequence[str], /) -> list[list[int]]:
        """Return for each line the counts from whose sums the tested scores follow."""

    def value(self, score: str, counts: Sequence[int], /) -> float:
        """Return one of the tested scores from the counts of a line or their sums over many."""

    def signature(self, num_lines: int, /) -> str:
        """Return the signature of the tested scores."""

    def unscored(self, reference: Sequence[str], hypotheses: Sequence[str], /) -> tuple[str, tuple[int, ...], str]:
        """Return what is wrong with the lines that count in no score, these lines, from 1, and what to do."""


class Task:
    """A kind of work. The methods of this class are those of text in and text out.

    Attributes:
        description: the text that a model reads and writes, for the README of an export.
        averaging_metric: the metric by which `average --search` chooses: bleu, or nll where BLEU means nothing.
        own_metric: the name of the only metric that scores the output, a TaskMetric of `evaluation/metrics.py`; None:
            the output is text, and the metrics of text score it.
        has_source: False: a model continues text, and learns from texts cut into sequences (`data/windows.py`).
    """

    description = "plain"
    averaging_metric: Literal["bleu", "nll"] = "bleu"
    own_metric: str | None = None
    has_source = True

    def training_corpus(self, corpus: Corpus) -> Corpus:
        """Return the corpus with its lines as `model_source` and `model_target` have them."""
        return corpus

    def model_source(self, line: str) -> str:
        """Return a source line as the model reads it."""
        return line

    def model_target(self, line: str, name: str, number: int = 1) -> str:
        """Return a target line as the model writes it.

        Args:
            name, number: of the text and of the line, for messages.

        Raises:
            DataError: the line is no target of this task.
        """
        return line

    def words(self, line: str) -> list[str]:
        """Return the words of a source line; none: there is nothing to translate."""
        return line.split()

    def output(self, source: str, generated: str) -> Output:
        """Return what the text that a model generated for a source line stands for."""
        return Output(generated)

    def well_formed(
        self, entries: Sequence[str], eos: int, device: "torch.device | None"
    ) -> Callable[[Sequence[int]], Constraint] | None:
        """Return the constraint that only well-formed outputs fulfil; None: any output is well-formed.

        Args:
            entries: the vocabulary in the order of ids; a word begins with U+2581.
            eos: id of the end symbol; smaller ids are special and never generated.

        Returns:
            A function from the number of source words of each sentence to the constraint.
        """
        return None
