"""The constraint under which a search generates trees over the words of its source, and nothing else."""

import math

import pytest
import torch
from hypothesis import given, settings

from nmtkit.corpora.trees import Tree, linearise, parsed, words
from nmtkit.decoding.constraints import required_phrases
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.search import SearchOptions, beam_search
from nmtkit.errors import ModelError
from nmtkit.tasks.parsing import ParsingTask
from nmtkit.tasks.tree_constraint import TreePieces, whole_trees
from tests.corpora.test_trees import TREES
from tests.decoding.test_search import BOS, EOS, FORBIDDEN, TableStepper, history_table

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
# S and VP are whole; (NP is, but not )NP; PP takes two pieces on both sides, the first of ADVP|PRT is a bracket alone.
BRACKETS = ["▁(S", "▁)S", "▁(VP", "▁)VP", "▁(NP", "▁)N", "▁(P", "▁)P", "▁(", "▁)", "▁(X", "▁)X"]
CONTINUATIONS = ["P", "ADVP", "|PRT"]
LEAVES = ["▁XX", "▁NN"]
NEVER = ["▁", "NP)", "a(", "(S", "<0x28>", "▁(S(", "▁a)", "a▁b"]
PIECES = [*SPECIAL, *BRACKETS, *CONTINUATIONS, *LEAVES, *NEVER]
WHOLE = [*SPECIAL, *BRACKETS[:4], *LEAVES]


def text_of(pieces: list[str], ids: tuple[int, ...]) -> str:
    return "".join(pieces[token] for token in ids).replace("▁", " ").lstrip(" ")


def spelled(sequence: str) -> list[int]:
    """The longest entries first."""
    ids = []
    for word in sequence.split(" "):
        rest = f"▁{word}"
        while rest:
            piece = max((entry for entry in PIECES if entry not in NEVER and rest.startswith(entry)), key=len)
            ids.append(PIECES.index(piece))
            rest = rest.removeprefix(piece)
    return ids


def test_a_vocabulary_of_single_characters_is_refused() -> None:
    characters = [*SPECIAL, "▁", "(", ")", "S", "a"]
    with pytest.raises(ModelError, match="no entry of its vocabulary begins with a bracket"):
        ParsingTask("trees").well_formed(characters, EOS, None)
    assert ParsingTask("trees").well_formed(PIECES, EOS, None) is not None


@settings(deadline=None, max_examples=60)
@given(tree=TREES)
def test_every_tree_over_the_words_may_be_said_and_does_not_end_before(tree: Tree) -> None:
    constraint = whole_trees(TreePieces(PIECES, EOS), [1, len(words(tree))])
    ids = [BOS, *spelled(linearise(tree)), EOS]
    for place in range(1, len(ids)):
        step = torch.zeros(1, 1, len(PIECES))
        constraint(step, torch.tensor([[ids[:place]]]), [1])
        allowed = [token for token, value in enumerate(step[0, 0].tolist()) if value == 0]
        assert ids[place] in allowed
        if EOS in allowed:
            assert place == len(ids) - 1 or PIECES[ids[place]] in CONTINUATIONS, "more of the last label only"
        assert not {PIECES[token] for token in allowed} & {*NEVER, *SPECIAL[:3]}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pieces", [WHOLE, PIECES], ids=["whole labels", "labels in pieces"])
def test_what_is_found_is_a_tree_over_as_many_words(pieces: list[str], seed: int) -> None:
    num_words, limit = [3, 1, 5], 30
    options = SearchOptions(n_best=4, constraints=(whole_trees(TreePieces(pieces, EOS), num_words),))
    random = history_table(seed, vocab=len(pieces))
    shy = torch.tensor([3.0 * piece.startswith("▁(") for piece in pieces])  # so that few begin phrases to the limit
    found = beam_search(
        TableStepper(lambda sentence, history: random(sentence, history) - shy, range(3)), [limit] * 3, beam=6,
        penalty=length_penalty("wu", 1.0), suppressed=FORBIDDEN, options=options,
    )  # fmt: skip
    whole = [(count, one.ids) for count, of_one in zip(num_words, found, strict=True) for one in of_one]
    whole = [(count, ids) for count, ids in whole if len(ids) < limit]
    assert len(whole) >= 4
    for count, ids in whole:
        said = text_of(pieces, ids)
        tokens = said.split(" ")
        assert sum(not token.startswith(("(", ")")) for token in tokens) == count
        assert sum(token.startswith("(") for token in tokens) == sum(token.startswith(")") for token in tokens)
        assert not {"(", ")"} & set(tokens), "each bracket has a label"
        if pieces is WHOLE:
            assert not parsed(" ".join(["a"] * count), said)[1]


@pytest.mark.parametrize("n_best", [1, 4])
def test_a_tree_that_can_only_end_does_not_hide_those_with_a_required_phrase(n_best: int) -> None:
    (verb,) = spelled("(VP")
    trees = {tree: spelled(tree) for tree in ("(S XX )S", "(S (VP XX )VP )S")}
    chances = {"(S XX )S": 0.9, "(S (VP XX )VP )S": 0.1}

    def table(_sentence: int, history: tuple[int, ...]) -> torch.Tensor:
        scores = torch.full((len(PIECES),), -9.0)
        for tree, ids in trees.items():
            if tuple(ids[: len(history)]) == history:
                scores[[*ids, EOS][len(history)]] = math.log(chances[tree])
        return scores.log_softmax(0)

    constraint = whole_trees(TreePieces(PIECES, EOS), [1])
    options = SearchOptions(n_best, constraints=(constraint,), select=required_phrases([[((verb,),)]], [12]))
    [[best, *_]] = beam_search(
        TableStepper(table, range(1)), [12], beam=4, penalty=length_penalty("wu", 1.0), suppressed=FORBIDDEN,
        options=options,
    )  # fmt: skip
    assert text_of(PIECES, best.ids) == "(S (VP XX )VP )S"
