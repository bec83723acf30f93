"""Bracketed trees: read, stripped of what parsers do not predict, written as sequences and restored from them.

    lines of a treebank --read_trees--> Tree --strip--> Tree --write--> (S (NP (NNP Ann)) (VP (VBD ran)) (. .))
                                                         |
                                                         +--linearise--> (S (NP XX )NP (VP XX )VP XX )S
                                                                  tagged: (S (NP NNP )NP (VP VBD )VP . )S
    words, sequence of a model --tree_over--> a Tree over exactly these words, whatever the sequence

No function recurses, as a model may generate hundreds of brackets in a row.

Source: the sequences are those of Vinyals et al. 2015 (arXiv 1412.7449), sections 2.2 and 3.1.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nmtkit.errors import DataError

UNTAGGED = "XX"
"""Stands for every word in a sequence, and is the tag of an untagged word."""

ROOT = "TOP"
"""The label of a phrase that only holds others; EVALB does not count it."""

_ROOTS = ("", ROOT, "ROOT", "S1")
EMPTY = "-NONE-"
"""The tag of what is not there; DELETE_LABEL_FOR_LENGTH of EVALB: not counted in the length of a sentence."""

TAG_OF_PUNCTUATION = {
    ",": ",", ".": ".", "?": ".", "!": ".", ":": ":", ";": ":", "--": ":", "-": ":", "...": ":",
    "``": "``", "`": "``", "''": "''",
}  # fmt: skip
"""Tags of the Penn Treebank that follow from the word; "'" is punctuation only after "`", else a possessive."""

DELETED_TAGS = {*TAG_OF_PUNCTUATION.values(), EMPTY, ROOT}
"""DELETE_LABEL of EVALB: words of such tags are no words, phrases of such labels no brackets."""

# re.ASCII: a no-break space is part of a word.
_COMMENT = re.compile(r"\s*(?:[#%;]|\*x\*)", re.ASCII)
_TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)
_SEQUENCE_TOKEN = re.compile(r"[()][^\s()]*|[^\s()]+", re.ASCII)
_FUNCTION = re.compile(r"(?<=.)[-=].*")  # not at the beginning, as in -NONE- and -LRB-


@dataclass(frozen=True, slots=True)
class Word:
    """A leaf: a word with its part of speech."""

    tag: str
    text: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A phrase."""

    label: str
    children: tuple["Tree | Word", ...]


def walk(tree: Tree) -> Iterator[Tree | Word | None]:
    """Yield the phrases where they begin and the words of a tree from left to right, and None where a phrase ends."""
    waiting: list[Tree | Word | None] = [tree]
    while waiting:
        item = waiting.pop()
        yield item
        if isinstance(item, Tree):
            waiting.append(None)
            waiting.extend(reversed(item.children))


class _Builder:
    """Builds trees from left to right; ``open`` holds the label and children of each open phrase."""

    def __init__(self) -> None:
        self.open: list[tuple[str, list[Tree | Word]]] = [(ROOT, [])]

    def begin(self, label: str) -> None:
        self.open.append((label, []))

    def add(self, child: Tree | Word) -> None:
        self.open[-1][1].append(child)

    def end(self) -> None:
        """Close the last phrase and drop it if it is empty."""
        label, children = self.open.pop()
        if children:
            self.add(Tree(label, tuple(children)))


def read_trees(lines: Iterable[str], name: str, first_line: int = 1) -> Iterator[Tree]:
    """Yield the trees of a text, each in a phrase TOP; trees may span lines and share them.

    Between trees, lines that begin with ``#``, ``%``, ``;`` or ``*x*`` are comments. A word is ``(TAG word)``.

    Args:
        name, first_line: of the text, for messages.

    Raises:
        DataError: brackets do not match, or a word is outside of a tree or without a tag.
    """
    builder = _Builder()
    label: str | None = None  # of the bracket just opened, which may begin a phrase or a word
    word: str | None = None
    for number, line in enumerate(lines, start=first_line):
        if len(builder.open) == 1 and label is None and _COMMENT.match(line):
            continue
        for token in _TOKEN.findall(line):
            fault = None
            if token == "(":
                if word is not None:
                    fault = f"{word!r} and a bracket are in one pair of brackets"
                if label is not None:
                    builder.begin(label)
                label = ""
            elif len(builder.open) == 1 and label is None:
                fault = f"{token!r} outside of a tree"
            elif token != ")":
                if label is None or word is not None:
                    fault = f"{token!r} is a word without a tag"
                elif label:
                    word = token
                else:
                    label = token
            elif label is None:
                builder.end()
            else:
                if word is not None:  # otherwise the phrase is empty
                    builder.add(Word(label, word))
                label = word = None
            if fault:
                raise DataError(f"{name}, line {number}: {fault}; correct the brackets")
            if token == ")" and len(builder.open) == 1:
                children = builder.open[0][1]
                yield Tree(ROOT, tuple(children))
                children.clear()
    if len(builder.open) > 1 or label is not None:
        raise DataError(
            f"{name}, line {number}: the last tree is not closed; correct the brackets, or fetch or make the text anew "
            "where it is cut short"
        )


def strip(tree: Tree) -> Tree | None:
    """Return a tree without what constituency parsers do not predict; None when no word is left.

    Removed are traces and other empty elements (``-NONE-``), function tags and indices of labels (``NP-SBJ-1`` and
    ``NP=2`` become NP), and brackets without a label or with TOP, ROOT or S1. A TOP holds several trees or a lone word.
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
        elif item.tag != EMPTY:
            builder.add(item)
    children = builder.open[0][1]
    if len(children) == 1 and isinstance(children[0], Tree):
        return children[0]
    return Tree(ROOT, tuple(children)) if children else None


def words(tree: Tree) -> list[str]:
    """Return the words of a tree."""
    return [item.text for item in walk(tree) if isinstance(item, Word)]


def write(tree: Tree) -> str:
    """Return a tree in brackets, on one line."""
    parts: list[str] = []
    for item in walk(tree):
        if isinstance(item, Tree):
            parts.append(f" ({item.label}")
        else:
            parts.append(")" if item is None else f" ({item.tag} {item.text})")
    return "".join(parts).lstrip(" ")


def linearise(tree: Tree, *, tagged: bool = False) -> str:
    """Return the sequence of a tree: labelled brackets at both ends of a phrase, XX or the tag for each word."""
    tokens: list[str] = []
    labels: list[str] = []
    for item in walk(tree):
        if isinstance(item, Tree):
            tokens.append(f"({item.label}")
            labels.append(item.label)
        elif item is None:
            tokens.append(f"){labels.pop()}")
        else:
            tokens.append(item.tag if tagged else UNTAGGED)
    return " ".join(tokens)


def tree_over(sentence: Sequence[str], generated: str) -> Tree:
    """Return the tree that a sequence describes over the words of a sentence; any text gives some tree.

    A sequence that `linearise` gives for as many words is taken as it is. In any other, a closing bracket ends the
    innermost phrase of its label and all that is in it, or else just the innermost phrase; the first phrase does not
    end before the last word; missing words are added to it at its end; surplus words and empty phrases are dropped.
    Where no phrase holds all, an S does.

    Args:
        sentence: the words, at least one.
        generated: the text of a model; what is not a bracket stands for a word and is its tag.
    """
    builder = _Builder()
    waiting = deque(_with_punctuation_tags(sentence))
    for token in _SEQUENCE_TOKEN.findall(generated):
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
            word = waiting.popleft()
            # Punctuation keeps its tag, and no other word gets one that EVALB deletes.
            is_tagged = word.tag == UNTAGGED and token not in DELETED_TAGS
            builder.add(Word(token, word.text) if is_tagged else word)
    while len(builder.open) > 2:
        builder.end()
    for word in waiting:
        builder.add(word)
    while len(builder.open) > 1:
        builder.end()
    children = builder.open[0][1]
    return children[0] if len(children) == 1 and isinstance(children[0], Tree) else Tree("S", tuple(children))


def _with_punctuation_tags(sentence: Sequence[str]) -> list[Word]:
    tagged: list[Word] = []
    is_quoted = False
    for word in sentence:
        tag = "''" if is_quoted and word == "'" else TAG_OF_PUNCTUATION.get(word, UNTAGGED)
        is_quoted = word == "`" or (is_quoted and word != "'")
        tagged.append(Word(tag, word))
    return tagged


def right_branching(sentence: Sequence[Word]) -> Tree:
    """Return the tree with a phrase from each word to the end, as English nearly has: an S, and VP in it.

    Args:
        sentence: the words, at least one.
    """
    *others, last = sentence
    tree = Tree("VP", (last,))
    for word in reversed(others):
        tree = Tree("VP", (word, tree))
    return Tree("S", tree.children)


def escape_brackets(line: str) -> str:
    """Replace round brackets by the -LRB- and -RRB- of the Penn Treebank, so that they are words."""
    return line.replace("(", "-LRB-").replace(")", "-RRB-")


def split_words(line: str) -> list[str]:
    """Return the words of a line of tokenised text, as a tree can hold them."""
    return re.findall(r"\S+", escape_brackets(line), re.ASCII)


def parsed(line: str, generated: str) -> tuple[str, bool]:
    """Return the bracketed tree over a line of words that a model's sequence describes ("" over no word).

    Returns:
        the tree, and whether the sequence had to be mended.
    """
    sentence = split_words(line)
    if not sentence:
        return "", False
    tree = tree_over(sentence, generated)
    # Any token is a word of the tree, whatever its text, so only brackets can need mending.
    structure = " ".join(token if token.startswith(("(", ")")) else UNTAGGED for token in generated.split(" "))
    return write(tree), linearise(tree) != structure
