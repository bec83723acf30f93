import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.corpora.trees import (
    Tree,
    Word,
    linearise,
    parsed,
    read_trees,
    right_branching,
    split_words,
    strip,
    tree_over,
    walk,
    words,
    write,
)
from tests.conftest import message_of

LABELS = st.sampled_from(["S", "NP", "VP", "PP", "ADVP|PRT", "X"])
LEAVES = st.builds(Word, st.just("XX"), st.sampled_from(["a", "b", "Ann", "XX", "-LRB-", "#", "ü"]))
TREES = st.builds(
    lambda label, children: Tree(label, tuple(children)),
    LABELS,
    st.lists(
        st.recursive(
            LEAVES,
            lambda inner: st.builds(lambda label, x: Tree(label, tuple(x)), LABELS, st.lists(inner, min_size=1)),
            max_leaves=12,
        ),
        min_size=1,
        max_size=5,
    ),
)
SAID = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(["(S", "(NP", "(", ")", "()", ")NP", ")S", ")VP", "XX", "X(S", "((", "))NP", "-LRB-"])
    ).map(" ".join),
)
SENTENCES = st.lists(
    st.one_of(st.sampled_from(["(", ")", "(S", ")S", "XX", "(S)", "-LRB-", "#", "\u2028", "a\u00a0b"]), st.text())
).map(" ".join)


def trees_of(text: str) -> list[Tree]:
    return list(read_trees(text.split("\n"), "wsj_1.mrg"))


def stripped(text: str) -> str:
    (tree,) = trees_of(text)
    found = strip(tree)
    assert found is not None
    return write(found)


def leaves(line: str) -> list[str]:
    """The words of a tree in brackets, by another way than the reader's."""
    return [word for _, word in re.findall(r"\(([^\s()]+) ([^\s()]+)\)", line, re.ASCII)]


def is_balanced(line: str) -> bool:
    """Whether a line is one bracket and no more."""
    depth, ends = 0, []
    for place, sign in enumerate(line):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            ends.append(place)
    return depth == 0 and ends == [len(line) - 1]


def test_trees_are_read_over_lines_and_several_from_one_with_comments_between_them() -> None:
    comments = "# made by hand\n*x*x*x* header *x*\n%% more (\n; and more\n"
    text = f"{comments}(S (NP (NN a))\n  (# #) ) (X (CD 1)) ((S (NN b)) (. .))\n"
    assert [write(tree) for tree in trees_of(text)] == [
        "(TOP (S (NP (NN a)) (# #)))",
        "(TOP (X (CD 1)))",
        "(TOP ( (S (NN b)) (. .)))",
    ]


def test_a_line_that_begins_with_a_sign_of_comments_inside_a_tree_is_no_comment() -> None:
    assert [words(tree) for tree in trees_of("(NP (DT the)\n(NN\n# ) )")] == [["the", "#"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("( (S (NN a) )", "line 1: the last tree is not closed; correct"),
        ("(S\n\n", "line 3: the last tree is not closed"),
        ("( (NN a) ) )\n", "line 1: ')' outside of a tree"),
        ("(NN a)\nb\n", "line 2: 'b' outside of a tree"),
        ("(S (NN a)\nb)", "line 2: 'b' is a word without a tag"),
        ("(S (NN a b))", "line 1: 'b' is a word without a tag"),
        ("(S (NN a (X b)))", "line 1: 'a' and a bracket are in one pair"),
    ],
)
def test_brackets_that_are_no_tree_are_an_error_with_their_line(text: str, expected: str) -> None:
    assert f"wsj_1.mrg, {expected}" in message_of(lambda: trees_of(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("( (S (NP-SBJ-1 (NN a)) (VP (VB b) (NP=2 (-NONE- *-1)))))", "(S (NP (NN a)) (VP (VB b)))"),
        ("(TOP (S (SBAR (-NONE- 0) (S (-NONE- *T*))) (NP (NN a))))", "(S (NP (NN a)))"),
        ("(ROOT (S1 (NP-TMP-CLR (NN a))))", "(NP (NN a))"),
        ("( (S (-LRB- -LRB-) (NN-X a)))", "(S (-LRB- -LRB-) (NN-X a))"),
        ("( (ADVP|PRT (RB up)))", "(ADVP|PRT (RB up))"),
        ("( (NN a) )", "(TOP (NN a))"),
        ("( (S (NN a)) (S (NN b)))", "(TOP (S (NN a)) (S (NN b)))"),
        ("(S ( (NN a)) (NP))", "(S (NN a))"),
    ],
)
def test_what_parsers_do_not_predict_is_stripped(text: str, expected: str) -> None:
    assert stripped(text) == expected
    assert stripped(expected) == expected


def test_of_a_tree_of_traces_nothing_is_left() -> None:
    assert [strip(tree) for tree in trees_of("( (S (NP (-NONE- *)) (VP (-NONE- *?*))) )")] == [None]


def test_a_sequence_has_labels_at_both_ends_and_no_word_or_tag() -> None:
    (tree,) = trees_of("(S (NP (NNP Ann)) (VP (VBD ran) (PP (IN to) (NP (NN sea)))) (. .))")
    assert linearise(tree.children[0]) == "(S (NP XX )NP (VP XX (PP XX (NP XX )NP )PP )VP XX )S"  # type: ignore[arg-type]


@given(tree=TREES)
def test_a_tree_comes_back_from_its_sequence(tree: Tree) -> None:
    assert tree_over(words(tree), linearise(tree)) == tree
    line, is_mended = parsed(" ".join(words(tree)), linearise(tree))
    assert (line, is_mended) == (write(tree), False)


def test_a_tagged_sequence_has_parts_of_speech_instead() -> None:
    (tree,) = trees_of("(S (NP (NNP Ann)) (VP (VBD ran)) (. .))")
    assert linearise(tree.children[0], tagged=True) == "(S (NP NNP )NP (VP VBD )VP . )S"  # type: ignore[arg-type]


@given(tree=TREES, tags=st.lists(st.sampled_from(["NN", "VBD", "-LRB-", "$"]), min_size=60, max_size=60))
def test_a_tagged_tree_comes_back_from_its_tagged_sequence(tree: Tree, tags: list[str]) -> None:
    said = linearise(tree)
    for tag in tags:
        said = said.replace(" XX ", f" {tag} ", 1)
    found = tree_over(words(tree), said)
    assert linearise(found, tagged=True) == said
    assert parsed(" ".join(words(tree)), said) == (write(found), False)


def test_what_is_said_of_a_tag_makes_no_punctuation_and_unmakes_none() -> None:
    assert parsed("a , b .", "(S , NN : . )S") == ("(S (XX a) (, ,) (XX b) (. .))", False)


def test_no_word_has_a_tag_that_evalb_deletes() -> None:
    assert parsed("a b c", "(S -NONE- TOP NN )S") == ("(S (XX a) (XX b) (NN c))", False)


@given(tree=TREES)
def test_a_tree_comes_back_from_its_brackets(tree: Tree) -> None:
    (holder,) = trees_of(write(tree).replace(" (", "\n("))
    assert holder.children == (tree,)


@settings(max_examples=300)
@given(line=SENTENCES, said=SAID)
def test_whatever_is_said_becomes_a_tree_over_exactly_the_words(line: str, said: str) -> None:
    tree, _ = parsed(line.replace("\n", " "), said)
    expected = [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in re.split(r"[ \t\n\r\f\v]+", line) if word]
    if not expected:
        assert tree == ""
        return
    assert is_balanced(tree)
    assert leaves(tree) == expected
    (holder,) = read_trees([tree], "a tree")
    assert words(holder) == expected
    assert all(item.label and item.children for item in walk(holder) if isinstance(item, Tree))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("(S (NP XX )NP (VP XX )VP XX )S", "(S (NP (XX a)) (VP (XX b)) (. .))"),
        ("", "(S (XX a) (XX b) (. .))"),
        ("(S (NP XX )NP (VP XX", "(S (NP (XX a)) (VP (XX b)) (. .))"),
        ("(S (NP XX )NP )S", "(S (NP (XX a)) (XX b) (. .))"),
        ("(S (NP XX )NP )S (VP XX )VP XX", "(S (NP (XX a)) (VP (XX b)) (. .))"),
        ("(S (NP XX (VP XX )NP XX )S", "(S (NP (XX a) (VP (XX b))) (. .))"),
        ("(S (NP XX )VP (VP XX )VP XX )S", "(S (NP (XX a)) (VP (XX b)) (. .))"),
        ("(S (NP XX XX XX XX XX )NP (VP XX )VP )S", "(S (NP (XX a) (XX b) (. .)))"),
        ("XX (VP XX )VP", "(S (XX a) (VP (XX b) (. .)))"),
        (")S )S ( () (PP )PP XX XX XX", "(PP (XX a) (XX b) (. .))"),
        ("(NP )NP )S XX XX XX (X", "(NP (XX a) (XX b) (. .))"),
    ],
)
def test_what_is_no_tree_is_mended_as_documented(said: str, expected: str) -> None:
    assert parsed("a b .", said)[0] == expected


def test_only_what_was_no_tree_over_the_words_counts_as_mended() -> None:
    assert [parsed("a b", said)[1] for said in ("(S XX XX )S", "(S XX )S", "(S XX XX", "(S XX XX XX )S")] == [
        False, True, True, True,
    ]  # fmt: skip


def test_words_that_are_brackets_are_written_as_the_treebank_does() -> None:
    assert parsed("( a(b ) -LRB-", "(S XX XX XX XX )S")[0] == "(S (XX -LRB-) (XX a-LRB-b) (XX -RRB-) (XX -LRB-))"
    assert split_words(" (a)\t b\u00a0c ") == ["-LRB-a-RRB-", "b\u00a0c"]


def test_a_thousand_brackets_in_a_row_are_no_trouble() -> None:
    tree = right_branching([Word("XX", "a")] * 2000)
    assert len(words(tree)) == 2000
    assert parsed(" ".join(["a"] * 2000), linearise(tree)) == (write(tree), False)
    (holder,) = read_trees([write(tree)], "a tree")
    found = strip(holder)
    assert found is not None
    assert write(found) == write(tree)


def test_punctuation_has_its_tag_and_other_words_none() -> None:
    line, _ = parsed("`` a , ' -- ? ''", " ".join(["(S", *["XX"] * 7, ")S"]))
    assert line == "(S (`` ``) (XX a) (, ,) (XX ') (: --) (. ?) ('' ''))"
    line, _ = parsed("men ' s ` a ' b '", "")
    assert line == "(S (XX men) (XX ') (XX s) (`` `) (XX a) ('' ') (XX b) (XX '))"


def test_a_right_branching_tree_has_a_phrase_from_each_word_to_the_end() -> None:
    one, two, three = Word("DT", "a"), Word("NN", "b"), Word(".", ".")
    assert write(right_branching([one, two, three])) == "(S (DT a) (VP (NN b) (VP (. .))))"
    assert write(right_branching([one])) == "(S (DT a))"
