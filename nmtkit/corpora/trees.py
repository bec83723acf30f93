"""Bracketed trees: read, stripped of what parsers do not predict, written as sequences, made of sequences again.

    lines of a treebank --read_trees--> Tree --strip--> Tree --write--> (S (NP (NNP Ann)) (VP (VBD ran)) (. .))
                                                         |
                                                         +--linearise--> (S (NP XX )NP (VP XX )VP XX )S
                                                                  tagged: (S (NP NNP )NP (VP VBD )VP . )S
    words, what a model said --tree_over--> a Tree over exactly these words, whatever was said

Pure functions. None recurses: a model may say hundreds of brackets in a row.

Source: the form of the sequences is that of Vinyals et al. 2015 (arXiv 1412.7449), section 2.2 and 3.1.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nmtkit.errors import DataError

UNTAGGED = "XX"
"""Stands for every word in a sequence, and is the tag of a word that no tagger has seen."""

ROOT = "TOP"
"""The label of a tree that is only there to hold others; EVALB does not count it."""

_ROOTS = ("", ROOT, "ROOT", "S1")
_EMPTY = "-NONE-"

TAG_OF_PUNCTUATION = {
    ",": ",", ".": ".", "?": ".", "!": ".", ":": ":", ";": ":", "--": ":", "-": ":", "...": ":",
    "``": "``", "`": "``", "''": "''",
}  # fmt: skip
"""The Penn Treebank's tags of punctuation that follow from the word; "'" is one only after "`", else a possessive."""

_TAGS_OF_NO_WORD = {*TAG_OF_PUNCTUATION.values(), _EMPTY, ROOT}
"""EVALB deletes what has such a tag."""

_COMMENT = re.compile(r"\s*(?:[#%;]|\*x\*)", re.ASCII)
_TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)
_SAID = re.compile(r"[()][^\s()]*|[^\s()]+", re.ASCII)
_FUNCTION = re.compile(r"(?<=.)[-=].*")


@dataclass(frozen=True, slots=True)
class Word:
    """A leaf: a word with its part of speech."""

    tag: str
    text: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A phrase: its label and what it consists of."""

    label: str
    children: tuple["Tree | Word", ...]


def walk(tree: Tree) -> Iterator[Tree | Word | None]:
    """What stands in a tree from left to right: a phrase where it begins, words, None where the last phrase ends."""
    waiting: list[Tree | Word | None] = [tree]
    while waiting:
        item = waiting.pop()
        yield item
        if isinstance(item, Tree):
            waiting.append(None)
            waiting.extend(reversed(item.children))


class _Builder:
    """Phrases that are begun and not ended."""

    def __init__(self) -> None:
        self.open: list[tuple[str, list[Tree | Word]]] = [(ROOT, [])]

    def begin(self, label: str) -> None:
        self.open.append((label, []))

    def add(self, child: Tree | Word) -> None:
        self.open[-1][1].append(child)

    def end(self) -> None:
        """Ends the last phrase; one without any word is gone."""
        label, children = self.open.pop()
        if children:
            self.add(Tree(label, tuple(children)))


def read_trees(lines: Iterable[str], name: str, first_line: int = 1) -> Iterator[Tree]:
    """The trees of a text, each in a phrase TOP; one may go over many lines, and many may stand in one.

    Between trees, lines that begin with ``#``, ``%``, ``;`` or ``*x*`` are comments. A word is ``(TAG word)``.

    Args:
        name, first_line: of the text, for messages.

    Raises:
        DataError: brackets do not match, or something stands outside of a tree or without a tag.
    """
    builder = _Builder()
    label: str | None = None  # of a bracket just opened
    word: str | None = None
    for number, line in enumerate(lines, start=first_line):
        if len(builder.open) == 1 and label is None and _COMMENT.match(line):
            continue
        for token in _TOKEN.findall(line):
            if token == "(":
                if word is not None:
                    raise _fault(name, number, word, "and a bracket are in one pair of brackets")
                if label is not None:
                    builder.begin(label)
                label = ""
            elif token != ")":
                if label is None or word is not None:
                    outside = len(builder.open) == 1 and label is None
                    raise _fault(name, number, token, "outside of a tree" if outside else "is a word without a tag")
                if label:
                    word = token
                else:
                    label = token
            elif word is not None:
                assert label is not None
                builder.add(Word(label, word))
                label = word = None
            elif label is not None:  # a phrase of nothing
                label = None
            elif len(builder.open) == 1:
                raise _fault(name, number, token, "outside of a tree")
            else:
                builder.end()
            if token == ")" and len(builder.open) == 1:
                children = builder.open[0][1]
                yield Tree(ROOT, tuple(children))
                children.clear()
    if len(builder.open) > 1 or label is not None:
        raise DataError(
            f"{name}, line {number}: the last tree is not closed; correct the brackets, or fetch or make the text anew "
            "where it is cut short"
        )


def _fault(name: str, number: int, token: str, what: str) -> DataError:
    return DataError(f"{name}, line {number}: {token!r} {what}; correct the brackets")


def strip(tree: Tree) -> Tree | None:
    """A tree without what constituency parsers do not predict; None when no word is left.

    Traces and other empty elements (``-NONE-``) go, and the phrases that hold nothing else; function tags and indices
    of labels (``NP-SBJ-1`` and ``NP=2`` become NP); and brackets without a label, or with TOP, ROOT or S1. Where
    several trees are left, or a lone word, a TOP holds them.
    """
    builder = _Builder()
    for item in walk(tree):
        if isinstance(item, Tree):
            builder.begin(_FUNCTION.sub("", item.label))
        elif item is None:
            if builder.open[-1][0] in _ROOTS:
                children = builder.open.pop()[1]
                builder.open[-1][1].extend(children)
            else:
                builder.end()
        elif item.tag != _EMPTY:
            builder.add(item)
    children = builder.open[0][1]
    if len(children) == 1 and isinstance(children[0], Tree):
        return children[0]
    return Tree(ROOT, tuple(children)) if children else None


def words(tree: Tree) -> list[str]:
    """The words of a tree."""
    return [item.text for item in walk(tree) if isinstance(item, Word)]


def write(tree: Tree) -> str:
    """A tree in brackets, on one line."""
    parts: list[str] = []
    for item in walk(tree):
        if isinstance(item, Tree):
            parts.append(f" ({item.label}")
        else:
            parts.append(")" if item is None else f" ({item.tag} {item.text})")
    return "".join(parts).lstrip(" ")


def linearise(tree: Tree, *, tagged: bool = False) -> str:
    """The sequence that stands for a tree: brackets with their labels at both ends, and for each word XX or its tag."""
    tokens: list[str] = []
    labels: list[str] = []
    for item in walk(tree):
        if isinstance(item, Tree):
            tokens.append(f"({item.label}")
            labels.append(item.label)
        else:
            leaf = item.tag if item is not None and tagged else UNTAGGED
            tokens.append(leaf if item is not None else f"){labels.pop()}")
    return " ".join(tokens)


def tree_over(sentence: Sequence[str], said: str) -> Tree:
    """The tree over the words of a sentence that a sequence describes; of any text at all it makes some tree.

    A sequence that `linearise` gives for as many words is taken as it is. In any other: a closing bracket ends the
    innermost phrase of its label, with all that is in it, else just the innermost; the first phrase does not end before
    the last word; words that the sequence does not mention go there, at its end; those that it has too many are passed
    over, and so are phrases that come to hold no word. Where nothing holds all, an S does.

    Args:
        sentence: the words, at least one.
        said: what a model said; whatever is no bracket stands for a word and is its tag, but of punctuation, which has
            the tag that follows from it.
    """
    builder = _Builder()
    waiting = deque(_tagged(sentence))
    for token in _SAID.findall(said):
        if token.startswith("("):
            if len(token) > 1:
                builder.begin(token[1:])
        elif token.startswith(")"):
            depth = len(builder.open) - 1
            same = (level for level in range(depth, 0, -1) if builder.open[level][0] == token[1:])
            target = max(next(same, depth), 2 if waiting else 1)
            while len(builder.open) > target:
                builder.end()
        elif waiting:
            word = waiting.popleft()  # it keeps its own tag where it is punctuation or EVALB deletes the generated one
            is_tagged = word.tag == UNTAGGED and token not in _TAGS_OF_NO_WORD
            builder.add(Word(token, word.text) if is_tagged else word)
    while len(builder.open) > 2:
        builder.end()
    for word in waiting:
        builder.add(word)
    while len(builder.open) > 1:
        builder.end()
    children = builder.open[0][1]
    return children[0] if len(children) == 1 and isinstance(children[0], Tree) else Tree("S", tuple(children))


def _tagged(sentence: Sequence[str]) -> list[Word]:
    """The words of a sentence, with the tags of those that are surely punctuation."""
    tagged: list[Word] = []
    is_quoted = False
    for word in sentence:
        tag = "''" if is_quoted and word == "'" else TAG_OF_PUNCTUATION.get(word, UNTAGGED)
        is_quoted = word == "`" or (is_quoted and word != "'")
        tagged.append(Word(tag, word))
    return tagged


def right_branching(sentence: Sequence[str]) -> Tree:
    """The tree that has a phrase from each word to the end, as English nearly has: an S, and VP in it.

    Args:
        sentence: the words, at least one.
    """
    *others, last = _tagged(sentence)
    tree = Tree("VP", (last,))
    for word in reversed(others):
        tree = Tree("VP", (word, tree))
    return Tree("S", tree.children)


def escape_brackets(line: str) -> str:
    """Round brackets as the Penn Treebank writes them, -LRB- and -RRB-, so that they are words and no brackets."""
    return line.replace("(", "-LRB-").replace(")", "-RRB-")


def split_words(line: str) -> list[str]:
    """The words of a line of tokenised text, as a tree can hold them."""
    return re.findall(r"\S+", escape_brackets(line), re.ASCII)


def parsed(line: str, said: str) -> tuple[str, bool]:
    """The tree, in brackets, over a line of words that a model's sequence describes; "" over no word.

    Returns:
        the tree, and whether the sequence had to be mended.
    """
    sentence = split_words(line)
    if not sentence:
        return "", False
    tree = tree_over(sentence, said)
    structure = " ".join(token if token.startswith(("(", ")")) else UNTAGGED for token in said.split(" "))
    return write(tree), linearise(tree) != structure
