"""ROUGE of a summary, equal to the package rouge-score: F1 of n-grams, or of longest common subsequences (LCS).

    reference, hypothesis --words--> n-grams, or LCS of all words, or LCS of each pair of sentences --> F1, 0 to 1

Source: Lin (2004), "ROUGE: A Package for Automatic Evaluation of Summaries"; rouge-score 0.1.2.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nmtkit.text import porter

ROUGE_METRICS = {"rouge1": "1", "rouge2": "2", "rougeL": "L", "rougeLsum": "L.sum"}
"""The metrics and their names in signatures."""
_LONGEST_UNSTEMMED = 3


@dataclass(frozen=True)
class Rouge:
    """The settings of ROUGE.

    Attributes:
        stemmer: strip the suffixes of words by Porter's rules, as published figures mostly do.
        separator: the text between the sentences of a line; only rougeLsum compares sentences.
    """

    stemmer: bool = False
    separator: str = "\t"

    def f1(self, metric: str, reference: str, hypothesis: str) -> float:
        """Return the score of a hypothesis by one of ROUGE_METRICS, 0 to 1."""
        sentences = [self._sentences(reference), self._sentences(hypothesis)]
        words = [[word for sentence in text for word in sentence] for text in sentences]
        if metric == "rougeLsum":
            return _f1(_union_of_sentences(*sentences), *map(len, words))
        if metric == "rougeL":
            return _f1(len(_lcs(*words)), *map(len, words))
        order = int(metric[-1])
        # The n-grams of a text: it is zipped with itself, shifted by 1 to n - 1; the shortest copy ends them.
        one, other = (Counter(zip(*(text[n:] for n in range(order)), strict=False)) for text in words)
        return _f1((one & other).total(), one.total(), other.total())

    def counts(
        self, metric: str, references: Sequence[Sequence[str]], hypotheses: Sequence[str]
    ) -> list[tuple[float, int]]:
        """Return for each line the best score by any reference, and 1; from the sums of both follows the mean."""
        examples = zip(hypotheses, *references, strict=True)
        return [(max(self.f1(metric, one, line) for one in of_line), 1) for line, *of_line in examples]

    def signature(self, metric: str) -> str:
        """Return the settings as a signature states them."""
        split = "tab" if self.separator == "\t" else self.separator
        return f"rouge:{ROUGE_METRICS[metric]}|stem:{'yes' if self.stemmer else 'no'}|split:{split}"

    def _sentences(self, text: str) -> list[list[str]]:
        """Return the words of each sentence: ASCII letters and digits in lower case."""
        # As rouge-score and ROUGE-1.5.5 split text: all other characters, accented letters too, separate words.
        sentences = [re.findall("[a-z0-9]+", sentence.lower()) for sentence in text.split(self.separator)]
        if self.stemmer:
            return [[porter.stem(w) if len(w) > _LONGEST_UNSTEMMED else w for w in words] for words in sentences]
        return sentences


def _f1(matches: int, in_reference: int, in_hypothesis: int) -> float:
    if not matches:
        return 0.0
    # in rouge-score's order of operations
    precision, recall = matches / in_hypothesis, matches / in_reference
    return 2 * precision * recall / (precision + recall)


def _lcs(reference: Sequence[str], hypothesis: Sequence[str]) -> set[int]:
    """Return the positions in the reference of an LCS: of several, the one that rouge-score takes.

    The table of LCS lengths is held in bits, so that texts of 10,000 words take milliseconds: bit i of column j is 0
    where the LCS of i + 1 words of the reference and j + 1 of the hypothesis is longer than that of i and j + 1.

    Source: Hyyrö (2004), "Bit-parallel LCS-length computation revisited".
    """
    positions: dict[str, int] = defaultdict(int)
    for index, word in enumerate(reference):
        positions[word] |= 1 << index
    every = column = (1 << len(reference)) - 1
    columns = []
    for word in hypothesis:
        matches = column & positions.get(word, 0)
        # Hyyrö: V = (V + (V & M)) | (V & ~M). Python's integers do not wrap, so the carry of the sum is cut off.
        column = ((column + matches) | (column - matches)) & every
        columns.append(column)
    found = set()
    i, j = len(reference), len(hypothesis)
    while i and j:
        if reference[i - 1] == hypothesis[j - 1]:
            i, j = i - 1, j - 1
            found.add(i)
        # The LCS is as long without word i. If it is as long without word j, too, rouge-score goes on without i.
        elif columns[j - 1] >> (i - 1) & 1:
            i -= 1
        else:
            j -= 1
    return found


def _union_of_sentences(reference: list[list[str]], hypothesis: list[list[str]]) -> int:
    """Return how many words of the reference's sentences are in an LCS with any sentence of the hypothesis.

    A word counts at most as often as it occurs in either text, as in ROUGE-1.5.5.
    """
    left = Counter(w for words in reference for w in words) & Counter(w for words in hypothesis for w in words)
    matches = 0
    for words in reference:
        for index in sorted(set().union(*(_lcs(words, other) for other in hypothesis))):
            if left[words[index]] > 0:
                left[words[index]] -= 1
                matches += 1
    return matches
