"""Constituency parsing: from a tokenised sentence to the tree of its phrases, which the model generates as a sequence.

Source: Vinyals et al. 2015 (arXiv 1412.7449), sections 2.2 and 3.1, as in section 6.3 of the paper.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from nmtkit.corpora.corpus import Corpus
from nmtkit.corpora.trees import escape_brackets, linearise, parsed, read_trees, split_words, strip
from nmtkit.errors import ModelError
from nmtkit.tasks.task import Constraint, Output, Task, converted

if TYPE_CHECKING:
    import torch


class ParsingTask(Task):
    """Parsing. The target of a line is a tree in brackets; the model generates its linearised form."""

    description = "words, separated before, to trees as sequences of brackets; docs/parsing.md of nmtkit"
    averaging_metric: Literal["bleu", "nll"] = "nll"
    own_metric = "evalb"
    corrected_sides = ()  # a word that vanishes or becomes two would no longer fit the tree
    translates_sentences = False

    def __init__(self, text: str) -> None:
        self._is_tagged = text == "tagged-trees"  # the sequence includes the part-of-speech tags

    def training_corpus(self, corpus: Corpus) -> Corpus:
        return replace(corpus, target=converted(corpus.target, self.model_target))

    def model_source(self, line: str) -> str:
        return escape_brackets(line)

    def model_target(self, line: str, name: str, number: int = 1) -> str:
        trees = (strip(tree) for tree in read_trees([line], name, number))
        return " ".join(linearise(tree, tagged=self._is_tagged) for tree in trees if tree is not None)

    def words(self, line: str) -> list[str]:
        return split_words(line)  # a no-break space is a word, too

    def output(self, source: str, generated: str) -> Output:
        return Output(*parsed(source, generated))

    def well_formed(
        self, entries: Sequence[str], eos: int, device: "torch.device | None"
    ) -> Callable[[Sequence[int]], Constraint]:
        from nmtkit.tasks.tree_constraint import TreePieces, whole_trees  # imports torch, which is slow

        pieces = TreePieces(entries, eos, device)
        if not pieces.can_open:
            raise ModelError(
                "whole_trees cannot be used with this model: no entry of its vocabulary begins with a bracket, as "
                'with subwords = "characters"'
            )
        return lambda num_words: whole_trees(pieces, num_words)
