"""Sentences before a sentence go before it in its sequence: which ones, in prepared data, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.data_schema import DataConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.data import training_text
from nmtkit.data.context import context_of, contexts, preceding
from nmtkit.data.inspection import inspect_pair
from nmtkit.data.prepare import check, prepare
from nmtkit.data.set_checks import warn_of_odd_set
from nmtkit.data.shards import PairData, read_report
from nmtkit.errors import NmtkitError, RecipeError
from nmtkit.run import Run
from nmtkit.text.tokenizer import Tokenizer
from tests.conftest import contents

SEP = 99
DOCUMENTS = "a b\nc\nd e\n\nf\ng h\n\ni\n"
RECIPE = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\nsubwords = "none"\nvocab_size = 100\n'
    'train = [{ source = "train.en", target = "train.de" }]\nvalid = [{ source = "valid.en", target = "valid.de" }]\n'
    'context = 1\n[cleaning]\nsource_equals_target = "keep"\n'
    "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 16\nd_ff = 32\nnum_heads = 2\n"
)


def write_project(folder: Path, source: str = DOCUMENTS, target: str | None = None, recipe: str = RECIPE) -> str:
    target = source.upper() if target is None else target
    for name, text in {"train.en": source, "train.de": target, "valid.en": "a\nb c\n\nd\n", "valid.de": "A\nB C\n\nD\n",
                       "mine.toml": recipe}.items():  # fmt: skip
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return str(folder / "mine.toml")


def rows(folder: Path, part: str = "train") -> list[tuple[str, str]]:
    """The pieces of each prepared pair, between blanks."""
    data, tokenizer = PairData(Run(folder / "run").data / part), Run(folder / "run").tokenizer()
    return [
        (
            " ".join(tokenizer.pieces(data.ids(0, pair).tolist(), "source")),
            " ".join(tokenizer.pieces(data.ids(1, pair).tolist(), "target")),
        )
        for pair in range(len(data))
    ]


def prepared(folder: Path, source: str = DOCUMENTS, target: str | None = None, *changes: str) -> list[tuple[str, str]]:
    prepare(load_recipe(write_project(folder, source, target), changes), folder / "run", workers=1)
    return rows(folder)


def test_items_before_reach_to_the_last_blank_one() -> None:
    found = [before for _, before in preceding("ab cde", 2, str.isspace)]
    assert found == [(), ("a",), (), (), ("c",), ("c", "d")]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12),
    size=st.integers(1, 4),
    longest=st.one_of(st.none(), st.integers(1, 14)),
)
def test_a_context_is_the_last_sentences_that_fit_on_both_sides(
    lengths: list[tuple[int, int]], size: int, longest: int | None
) -> None:
    pairs = [([2 * row] * source, [2 * row + 1] * target) for row, (source, target) in enumerate(lengths)]
    for row, found in enumerate(contexts(pairs, size, [SEP, SEP], [longest, longest])):
        first = max([0, *(other + 1 for other in range(row + 1) if not all(pairs[other]))])
        used = pairs[row - found[0].count(SEP) : row]
        assert [[token for ids in side for token in (*ids, SEP)] for side in zip(*used, strict=True)] == [
            side for side in found if side
        ]
        assert found[0].count(SEP) == found[1].count(SEP) <= max(0, min(size, row - first))
        fits = [longest is None or not side or len(side) + len(own) <= longest
                for side, own in zip(found, pairs[row], strict=True)]  # fmt: skip
        assert all(fits)
        if all(pairs[row]) and len(used) < min(size, row - first):  # one more would not fit
            more = pairs[row - len(used) - 1]
            assert any(
                longest is not None and len(side) + len(own) + len(other) + 1 > longest
                for side, own, other in zip(found, pairs[row], more, strict=True)
            )


def test_a_sentence_that_is_too_long_itself_has_no_context() -> None:
    assert context_of([[[1]], [[2, 3]]], [[4] * 9], [SEP], [5]) == [[]]
    assert context_of([[[1]], [[2, 3]]], [[4]], [SEP], [5]) == [[2, 3, SEP]]


def test_source_context_is_of_the_same_document(tmp_path: Path) -> None:
    assert prepared(tmp_path) == [
        ("a b", "A B"), ("a b <sep> c", "C"), ("c <sep> d e", "D E"), ("f", "F"), ("f <sep> g h", "G H"), ("i", "I"),
    ]  # fmt: skip
    assert rows(tmp_path, "valid") == [("a", "A"), ("a <sep> b c", "B C"), ("d", "D")]
    pair = inspect_pair(tmp_path / "run", 3)
    assert (pair.source.text, pair.source.pieces) == ("d e", ["c", "<sep>", "d", "e"])
    lengths = Run(tmp_path / "run").data / "manifest.json"
    assert '"longest_sequence": 4' in lengths.read_text()
    assert '"longest_source": 2' in lengths.read_text()


def test_two_sentences_before_on_both_sides(tmp_path: Path) -> None:
    found = prepared(
        tmp_path,
        DOCUMENTS,
        None,
        "data.context=2",
        "data.context_sides=both",
        "data.share_vocab=false",
        "model.share_embeddings=none",
    )
    expected = ["a b", "a b <sep> c", "a b <sep> c <sep> d e", "f", "f <sep> g h", "i"]
    assert found == [(text, "".join(text.upper().replace("<SEP>", "<sep>"))) for text in expected]
    tokenizer = Run(tmp_path / "run").tokenizer()
    assert tokenizer.separator_id("target") not in tokenizer.suppressed_ids
    statistics = read_report(Run(tmp_path / "run").data)["subwords"]["train"]
    assert statistics["target"]["tokens_per_word"] == 1.0


def test_a_separator_of_the_source_is_never_generated(tmp_path: Path) -> None:
    prepared(tmp_path)
    tokenizer = Run(tmp_path / "run").tokenizer()
    assert tokenizer.separator_id("source") in tokenizer.suppressed_ids
    assert tokenizer.separator_id("source") not in tokenizer.encode(["a <sep> b"], "source")[0]


def test_the_oldest_sentences_give_way_to_max_tokens(tmp_path: Path) -> None:
    found = prepared(tmp_path, "a b\nc\nd e\n\n", None, "data.context=2", "cleaning.max_tokens=4")
    assert [source for source, _ in found] == ["a b", "a b <sep> c", "c <sep> d e"]
    prepared(tmp_path, DOCUMENTS, None, "cleaning.max_tokens=3")
    assert [source for source, _ in rows(tmp_path, "valid")] == ["a", "b c", "d"]


def test_copies_and_long_pairs_stay_context_but_a_dropped_text_ends_it(tmp_path: Path) -> None:
    source = "a\nb\na\nc\nd d d\ne\nA\nf\n"
    target = "A\nB\nA\nC\nD\nE\nA\nF\n"
    changes = ("cleaning.duplicate_pair=drop", "cleaning.max_ratio=2.5", "cleaning.source_equals_target=drop")
    found = prepared(tmp_path, source, target, *changes)
    assert [source for source, _ in found] == ["a", "a <sep> b", "a <sep> c", "d d d <sep> e", "f"]


def test_a_line_that_is_blank_on_one_side_ends_the_context(tmp_path: Path) -> None:
    found = prepared(tmp_path, "a\n\nb\nc\nd\n", "A\nX\nB\n\nD\n")
    assert found == [("a", "A"), ("b", "B"), ("d", "D")]


def test_blocks_and_processes_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"w{number % 7} x\n" + "\n" * (number % 5 == 0) for number in range(40))
    recipe = load_recipe(write_project(tmp_path, text), ["data.context=3", "cleaning.duplicate_pair=drop"])
    prepare(recipe, tmp_path / "whole", workers=1)
    monkeypatch.setattr(training_text, "BLOCK_PAIRS", 2)
    prepare(recipe, tmp_path / "blocks", workers=1)
    whole, blocks = (contents(tmp_path / name / "data" / "train") for name in ("whole", "blocks"))
    assert whole == blocks


def test_each_corpus_begins_a_document(tmp_path: Path) -> None:
    path = Path(write_project(tmp_path, "a\nb\n"))
    entry = '{ source = "train.en", target = "train.de" }'
    path.write_text(path.read_text().replace(f"train = [{entry}]", f"train = [{entry}, {entry}]"))
    prepare(load_recipe(str(path)), tmp_path / "run", workers=1)
    assert [source for source, _ in rows(tmp_path)] == ["a", "a <sep> b"] * 2


def test_a_tag_begins_every_sentence(tmp_path: Path) -> None:
    path = Path(write_project(tmp_path, "a\nb\n"))
    path.write_text(path.read_text().replace('"train.de" }', '"train.de", source_prefix = "<bt>" }'))
    prepare(load_recipe(str(path)), tmp_path / "run", workers=1)
    assert [source for source, _ in rows(tmp_path)] == ["<bt> a", "<bt> a <sep> <bt> b"]


def test_text_without_blank_lines_is_one_document(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = prepared(tmp_path, "a\nb\nc\n")
    assert [source for source, _ in found] == ["a", "a <sep> b", "b <sep> c"]
    assert "no blank line in the training text" in caplog.text
    caplog.clear()
    check(load_recipe(str(tmp_path / "mine.toml")), tmp_path / "checked", workers=1)
    assert "no blank line in the training text" in caplog.text


def test_without_context_nothing_changes(tmp_path: Path) -> None:
    found = prepared(tmp_path, DOCUMENTS, None, "data.context=0", "data.context_sides=both")
    assert [source for source, _ in found] == ["a b", "c", "d e", "f", "g h", "i"]
    tokenizer = Run(tmp_path / "run").tokenizer()
    assert "<sep>" not in tokenizer.pieces(range(tokenizer.vocab_size("source")), "source")
    assert "context" not in (Run(tmp_path / "run").data / "tokenizer" / "tokenizer.json").read_text()
    assert "longest_sequence" not in Run(tmp_path / "run").manifest.read_text()


@pytest.mark.parametrize("subwords", ["bpe", "unigram", "characters", "wordpiece", "none"])
def test_a_separator_survives_saving_in_every_kind_of_vocabulary(tmp_path: Path, subwords: str) -> None:
    lines = "the cat sat here\nthe dogs sat there\n\nthe cat ran with them when they came here\n"
    changes = (
        f"data.subwords={subwords}",
        "data.vocab_size=25",
        "data.context_sides=both",
        "data.share_vocab=false",
        "model.share_embeddings=none",
    )
    prepare(load_recipe(write_project(tmp_path, lines), changes), tmp_path / "run", workers=1)
    tokenizer = Tokenizer.load(Run(tmp_path / "run").data / "tokenizer")
    assert (tokenizer.context, tokenizer.context_sides) == (1, ("source", "target"))
    for side in tokenizer.context_sides:
        assert tokenizer.pieces([tokenizer.separator_id(side)], side) == ["<sep>"]
    data = PairData(Run(tmp_path / "run").data / "train")
    assert np.count_nonzero(data.ids(1, 1) == tokenizer.separator_id("target")) == 1
    assert tokenizer.decode([tokenizer.separator_id("target")]) == ""


LANGUAGE_MODEL = ("data.task=language-model", "data.subwords=characters", "model.architecture=decoder")
TAGGED = '[{ source = "train.en", target = "train.de", source_prefix = "<sep>" }]'


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["data.context=-1"], "context"),
        (["data.context=1.5"], "context"),
        (["data.context_sides=target"], "context_sides"),
        (["data.text=trees", "training.validate_bleu=false"], 'context is for task = "translation", not "parsing"'),
        (["data.valid=2"], "context needs validation text in documents"),
        (LANGUAGE_MODEL, 'context is for task = "translation", not "language-model"'),
        ([f"data.train={TAGGED}"], "is a special entry of the vocabulary"),
    ],
)
def test_bad_values_are_refused(tmp_path: Path, changes: list[str], reason: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(write_project(tmp_path), changes)
    assert reason in str(error.value)


def test_a_tokenizer_without_context_is_refused(tmp_path: Path) -> None:
    recipe = write_project(tmp_path)
    prepare(load_recipe(recipe, ["data.context=0"]), tmp_path / "run", workers=1)
    with pytest.raises(NmtkitError, match=r"data\.context = 1, but the tokenizer of .* has 0"):
        prepare(load_recipe(recipe, [f"data.tokenizer={tmp_path / 'run'}"]), tmp_path / "other", workers=1)


def test_ends_of_documents_are_not_shared_by_validation_and_test_sets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = load_recipe(
        write_project(tmp_path), [f'data.test=[{{source="{tmp_path}/x.en",target="{tmp_path}/x.de"}}]']
    )
    for last, told in (("x", False), ("d", True)):
        (tmp_path / "x.en").write_text(f"k\n\n{last}\n")
        (tmp_path / "x.de").write_text(f"K\n\n{last.upper()}\n")
        caplog.clear()
        check(recipe, tmp_path / "run")
        assert ("x.de: 1 pair is also in the validation set" in caplog.text) == told


def test_blank_lines_between_documents_are_no_fault_of_a_set(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [("the dog", "der hund"), ("", ""), ("a cat", ""), ("the cat", "die katze")]
    for context, told in ((2, ["one side"]), (0, ["one side", "both sides"])):
        caplog.clear()
        data = DataConfig(source_language="en", target_language="de", train=["x"], context=context)
        warn_of_odd_set("valid", pairs, data, CleaningConfig())
        assert [text for text in ("one side", "both sides") if text in caplog.text] == told
