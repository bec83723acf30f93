"""Extractive summaries: the paragraphs of an example ranked by their worth for a summary, and cut to a number of words.

    JSON lines --read_examples--> Example --rank--> its paragraphs, the best first --cut--> the first words of these

Source: Liu et al. (2018), "Generating Wikipedia by Summarizing Long Sequences", section 4.1.
"""

import heapq
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from nmtkit.errors import DataError
from nmtkit.json_toml import in_short, json_line
from nmtkit.lines import LineReader
from nmtkit.text.scripts import normalized_words
from nmtkit.text.sentences import sentence_starts

Method = Literal["identity", "tf-idf", "textrank", "sumbasic", "cheating"]
DAMPING = 0.85
"""The damping factor of TextRank, as in PageRank."""
_ITERATIONS = 100
"""Iterations of PageRank: 0.85^100 is 1e-7, so the ranks hardly move by then."""


@dataclass(frozen=True)
class Example:
    """The input of a summary.

    Attributes:
        name: file and line, for messages.
        query: the title of the summary or the question that it answers; "" if there is none.
        paragraphs: those with text, in their order.
        target: the summary itself; "" if there is none.
        fields: the JSON object that the example was read from.
    """

    name: str
    query: str
    paragraphs: tuple[str, ...]
    target: str
    fields: dict[str, Any]


def read_examples(lines: LineReader) -> Iterator[Example]:
    """Yield the examples of a file of JSON lines; docs/summaries.md describes the format.

    Raises:
        DataError: a line is no example, or the file has none.
    """
    num_examples = 0
    for line in lines:
        name = f"{lines.name}, line {lines.num_lines}"
        if not line.strip():
            continue
        num_examples += 1
        try:
            fields = json.loads(line)
            if "\\u" in line:  # an escape may be half of a surrogate pair, which cannot be written as UTF-8
                json_line(fields).encode("utf-8")
        except UnicodeEncodeError:
            raise DataError(f"{name}: has half a pair of surrogates; write the whole character") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}: not valid JSON ({in_short(error)}); each line holds one example") from None
        if not isinstance(fields, dict):
            raise DataError(f"{name}: not a JSON object; each line holds one example")
        for one, other in (("title", "query"), ("paragraphs", "documents")):
            if one in fields and other in fields:
                raise DataError(f'{name}: has both "{one}" and "{other}"; remove one of them')
        for key in ("title", "query", "target"):
            if not isinstance(fields.get(key, ""), str):
                raise DataError(f'{name}: "{key}" is not a string')
        kind = "documents" if "documents" in fields else "paragraphs"
        texts = fields.get(kind)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f'{name}: has no list of strings "paragraphs" or "documents"')
        if kind == "documents":
            texts = [paragraph for document in texts for paragraph in document.split("\n")]
        paragraphs = tuple(text for text in texts if text.strip())
        if not paragraphs:
            raise DataError(f'{name}: "{kind}" has no text; remove the example, or add its text')
        query = fields.get("title") or fields.get("query") or ""
        yield Example(name, query, paragraphs, fields.get("target", ""), fields)
    if num_examples == 0:
        raise DataError(f"{lines.name}: is empty; give a file with an example on each line")


def rank(example: Example, method: Method, min_words: int = 0) -> Iterator[str]:
    """Yield the paragraphs of an example, the best first; of ``sumbasic`` their sentences.

    Args:
        method: ``identity`` keeps the order. ``tf-idf`` compares with the query. ``textrank`` prefers paragraphs that
            share words with many others, ``sumbasic`` sentences of frequent words not used before. ``cheating`` takes
            those with most bigrams of the target, as an upper bound.
        min_words: shorter paragraphs are left out, unless all are shorter.

    Raises:
        DataError: the example lacks the query or target that the method needs.
    """
    if method == "tf-idf" and not example.query.strip():
        raise DataError(
            f'{example.name}: has no "title" or "query", or an empty one; the method tf-idf needs it, identity and '
            "textrank do not"
        )
    if method == "cheating" and not example.target.strip():
        raise DataError(f'{example.name}: has no "target", or an empty one, which the method cheating needs')
    long = [paragraph for paragraph in example.paragraphs if len(paragraph.split()) >= min_words]
    paragraphs = long or example.paragraphs
    if method == "sumbasic":
        yield from _sumbasic(paragraphs)
        return
    words = [_words(paragraph) for paragraph in paragraphs]
    match method:
        case "tf-idf":
            scores = _tf_idf(_words(example.query), words)
        case "textrank":
            scores = _textrank([set(of_paragraph) for of_paragraph in words])
        case "cheating":
            bigrams = set(pairwise(_words(example.target)))
            scores = [float(len(bigrams & set(pairwise(of_paragraph)))) for of_paragraph in words]
        case _:  # identity
            scores = [0.0] * len(words)
    for index in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):  # equal ones stay in their order
        yield paragraphs[index]


def cut(paragraphs: Iterable[str], length: int | None) -> Iterator[str]:
    """Yield paragraphs with single blanks, up to a number of words in all; None: all of them."""
    for paragraph in paragraphs:
        words = paragraph.split()[:length]
        if words:
            yield " ".join(words)
        if length is not None:
            length -= len(words)
            if length <= 0:
                return


def _words(text: str) -> list[str]:
    """Return the runs of letters and digits in lower case; of a writing system without blanks, each letter."""
    words = normalized_words(text.replace("_", " ").lower())
    return [word for word in words if any(map(str.isalnum, word))]


def _tf_idf(query: list[str], paragraphs: list[list[str]]) -> list[float]:
    """Return for each paragraph the sum over the words of the query of tf * log(paragraphs / paragraphs with it)."""
    counts = [Counter(words) for words in paragraphs]
    weights = {}
    for word in dict.fromkeys(query):
        having = sum(word in of_paragraph for of_paragraph in counts)
        weights[word] = math.log(len(counts) / max(1, having))  # 0 paragraphs have a word that is in the query only
    # fsum rounds only once, so the order of the words in the query changes no score.
    return [math.fsum(of_paragraph[word] * weight for word, weight in weights.items()) for of_paragraph in counts]


def _textrank(paragraphs: Sequence[set[str]]) -> list[float]:
    """Return the PageRank of the paragraphs in the graph of their similarities; it needs memory for all pairs of them.

    The similarity of two is the number of words in both, divided by the sum of the logarithms of their numbers of
    different words.

    Source: Mihalcea and Tarau (2004), "TextRank: Bringing Order into Texts".
    """
    import numpy as np

    count = len(paragraphs)
    having = defaultdict(list)
    for index, words in enumerate(paragraphs):
        for word in words:
            having[word].append(index)
    similarity = np.zeros((count, count))
    for indices in having.values():
        similarity[np.ix_(indices, indices)] += 1
    np.fill_diagonal(similarity, 0)  # a paragraph has no edge to itself
    logarithms = np.log([max(1, len(words)) for words in paragraphs])
    for row, logarithm in zip(similarity, logarithms, strict=True):
        sums = logarithms + logarithm
        row[sums == 0] = 0  # paragraphs of one word each
        np.divide(row, sums, out=row, where=sums > 0)
        if (total := row.sum()) > 0:
            row /= total
    ranks = np.full(count, 1 / count)
    for _ in range(_ITERATIONS):
        ranks = (1 - DAMPING) / count + DAMPING * (ranks @ similarity)
    return [float(rank) for rank in ranks.round(12)]  # equal paragraphs differ by rounding


def _sumbasic(paragraphs: Sequence[str]) -> Iterator[str]:
    """Yield the sentence of the highest mean word probability among those with the most probable word, repeatedly.

    The probabilities of its words are squared then, so that further sentences are about something else.

    Source: Nenkova and Vanderwende (2005), "The Impact of Frequency on Summarization".
    """
    sentences = []
    for paragraph in paragraphs:
        bounds = [0, *sentence_starts(paragraph), len(paragraph)]
        sentences += [paragraph[start:end] for start, end in pairwise(bounds)]
    words = [_words(sentence) for sentence in sentences]
    counts = Counter(word for of_sentence in words for word in of_sentence)
    total = counts.total()
    probabilities = {word: count / total for word, count in counts.items()}
    left = {index for index, of_sentence in enumerate(words) if of_sentence}

    def mean_probability(index: int) -> float | None:
        if index not in left:
            return None
        return sum(probabilities[word] for word in words[index]) / len(words[index])

    having: dict[str, list[tuple[float, int]]] = {word: [] for word in counts}  # heaps, see `_highest`
    for index, of_sentence in enumerate(words):
        for word in dict.fromkeys(of_sentence):
            having[word].append((-math.inf, index))
    different = list(counts)
    most_probable = [(-math.inf, index) for index in range(len(different))]
    while (of_words := _highest(most_probable, lambda index: probabilities[different[index]])) is not None:
        best = _highest(having[different[of_words]], mean_probability)
        if best is None:
            heapq.heappop(most_probable)
            continue
        yield sentences[best]
        left.remove(best)
        for word in dict.fromkeys(words[best]):
            probabilities[word] **= 2
    # Sentences without words have no mean probability.
    yield from (sentence for sentence, found in zip(sentences, words, strict=True) if not found)


def _highest(heap: list[tuple[float, int]], value: Callable[[int], float | None]) -> int | None:
    """Return the index of the highest value, the lowest of equal ones; None if none is left.

    Args:
        heap: entries (-value, index). Values may have fallen since, so that those in the heap are upper bounds.
        value: the value of an index now; None for one to leave out.
    """
    while heap:
        index = heap[0][1]
        if (now := value(index)) is None:
            heapq.heappop(heap)
        elif heap[0][0] == -now:
            return index
        else:
            heapq.heapreplace(heap, (-now, index))
    return None
