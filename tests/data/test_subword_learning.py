"""Subwords are learned from a uniform sample within the memory there is, and it is said what they do not bring back."""

import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.data import encoding, subword_learning
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.errors import DataError
from nmtkit.json_toml import read_json
from nmtkit.lines import read_lines
from nmtkit.run import Run
from nmtkit.text.vocabulary import SPECIAL_PIECES, UNK
from tests.data.test_preparation import Pair, Project

LINES = [f"It's the {word} of no. {number}, (said “Mr. {word}”)." for number in range(30) for word in ("Cat", "house")]
PAIRS = [(line, line.replace("the", "das").replace("of", "von")) for line in LINES]


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Path]:
    """Prepares pairs with settings of [data] and gives the run."""

    project = Project(tmp_path)

    def prepare_pairs(pairs: list[Pair], *overrides: str) -> Path:
        project.write("train", pairs)
        project.prepare("data.vocab_size=60", *overrides)
        return project.run

    return prepare_pairs


def manifest(run: Path) -> Any:
    return read_json(run / "data" / "manifest.json")


def round_trip(run: Path) -> Any:
    return read_json(run / "data" / "report.json")["round_trip"]


def test_the_sample_has_exactly_the_asked_size_at_even_steps_and_is_stated(prepared: Callable[..., Path]) -> None:
    marked = [(f"{source} {chr(0x4E00 + number)}", target) for number, (source, target) in enumerate(PAIRS)]
    run = prepared(marked, "data.subword_sample_pairs=25", "data.vocab_size=90")
    tokenizer = Run(run).tokenizer()
    known = [line for line in range(60) if UNK not in tokenizer.encode([chr(0x4E00 + line)], "source")[0]]
    assert len(known) == 25
    assert {after - before for before, after in itertools.pairwise(known)} == {2, 3}
    sample = manifest(run)["subword_sample"]
    assert (sample["pairs"], sample["of"]) == (25, 60)
    whole = sum((run.parent / name).stat().st_size for name in ("train.en", "train.de"))
    assert sample["text_bytes"] == whole * 25 // 60
    assert sample["memory_bytes_estimated"] == sample["text_bytes"] * subword_learning.BYTES_OF_MEMORY["bpe"]


def test_a_sample_that_memory_is_too_small_for_is_refused_before_learning(
    prepared: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subword_learning, "available_bytes", lambda: 50_000)
    with pytest.raises(DataError, match=r"learning subwords from 60 pairs takes about 0.0 GB of memory, and") as caught:
        prepared(PAIRS)
    advice = int(str(caught.value).rsplit("=", 1)[1])
    assert not (tmp_path / "run" / "data").exists()
    prepared(PAIRS, f"data.subword_sample_pairs={advice}", "data.vocab_size=50")


@pytest.mark.parametrize(("subwords", "size"), [("bpe", 60), ("unigram", 40), ("wordpiece", 60)])
def test_every_line_of_a_plain_recipe_comes_back(prepared: Callable[..., Path], subwords: str, size: int) -> None:
    settings = (f"data.subwords={subwords}", f"data.vocab_size={size}", 'data.normalize=["blanks", "nfkc"]')
    run = prepared(PAIRS, *settings)
    assert round_trip(run) == {"lines": 60, "changed": 0, "unknown": 0}


def test_lines_that_moses_does_not_bring_back_are_counted_and_told(
    prepared: Callable[..., Path], logged: pytest.LogCaptureFixture
) -> None:
    pairs = [*PAIRS, *[("a", "dies ist ( so ) geschrieben")] * 20]
    with logged.at_level(logging.INFO, logger="nmtkit"):
        run = prepared(pairs, 'data.normalize=["blanks", "moses-tokenize"]')
    found = round_trip(run)
    tokenizer = Run(run).tokenizer()
    restored = [
        tokenizer.translation(tokenizer.encode([tokenizer.normalize(target, "target")], "target")[0])
        for _, target in pairs
    ]
    changed = sum(one != target for one, (_, target) in zip(restored, pairs, strict=True))
    assert found == {"lines": 80, "changed": changed, "unknown": 0}
    assert changed >= 20
    assert f"{100 * changed / 80:.2f} % of 80 sampled target lines change" in logged.text


@pytest.mark.parametrize(
    ("language", "changing", "count", "is_warned"),
    [("de", "so ( nicht )", 10, False), ("de", "so ( nicht )", 11, True), ("fa", "گربه می\u200cخرد.", 20, True)],
)
def test_a_warning_tells_that_moses_changes_most_lines(
    prepared: Callable[..., Path], logged: pytest.LogCaptureFixture, language: str, changing: str, count: int,
    is_warned: bool,
) -> None:  # fmt: skip
    pairs = [("a", changing)] * count + [("a", "ein Haus")] * (20 - count)
    steps = 'data.normalize=["blanks", "moses-tokenize"]'
    with logged.at_level(logging.INFO, logger="nmtkit"):
        run = prepared(pairs, steps, f"data.target_language={language}", "data.subwords=characters")
    assert round_trip(run) == {"lines": 20, "changed": count, "unknown": 0}
    told = [record for record in logged.records if "sampled target lines change" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING if is_warned else logging.INFO]
    assert f"{5 * count:.2f} % of 20 sampled" in told[0].getMessage()
    assert ("leave moses-tokenize out of data.normalize" in told[0].getMessage()) == is_warned


def test_lines_with_something_unknown_are_counted_as_such(prepared: Callable[..., Path]) -> None:
    pairs = [*PAIRS, ("a", "a日"), ("a", "日")]
    characters = len({character for pair in PAIRS for line in pair for character in line if character != " "})
    settings = ("data.subwords=wordpiece", f"data.wordpiece_characters={characters}", "data.vocab_size=70")
    run = prepared(pairs, *settings)
    assert round_trip(run) == {"lines": 62, "changed": 2, "unknown": 2}


def test_moses_tokens_are_what_subwords_are_cut_from(prepared: Callable[..., Path]) -> None:
    run = prepared(PAIRS, 'data.normalize=["moses-punctuation", "moses-tokenize", "lowercase"]')
    tokenizer, data = Run(run).tokenizer(), PairData(run / "data" / "train")
    source, target = (data.ids(side, 0).tolist() for side in range(2))
    assert tokenizer.decode(source, "source") == 'it \'s the cat of no . 0 , ( said " mr. cat " ) .'
    assert tokenizer.decode(target, "target") == 'it \' s das cat von no . 0 , ( said " mr. cat " ) .'
    assert tokenizer.translation(target) == 'it \'s das cat von no. 0, (said "mr. cat").'


def test_a_setting_of_word_pieces_is_no_matter_for_other_data(prepared: Callable[..., Path]) -> None:
    before = manifest(prepared(PAIRS))["fingerprint"]
    assert manifest(prepared(PAIRS, "data.wordpiece_characters=40"))["fingerprint"] == before
    pieces = ("data.subwords=wordpiece", "data.wordpiece_characters=40")
    assert manifest(prepared(PAIRS, *pieces))["fingerprint"] != before


def test_the_recipe_of_the_paper_for_english_french_can_be_prepared(tmp_path: Path) -> None:
    for side, name in enumerate(("train.en", "train.fr")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    corpus = f'data.train=[{{ source = "{tmp_path}/train.en", target = "{tmp_path}/train.fr" }}]'
    for name in ("wmt14-en-fr-base", "wmt14-en-fr-big"):
        recipe = load_recipe(name)
        assert (recipe.data.subwords, recipe.data.vocab_size) == ("wordpiece", 32_000)
        run = tmp_path / name
        prepare(load_recipe(name, (corpus, "data.valid=2", "data.test=[]", "data.vocab_size=70")), run, workers=1)
        assert Run(run).tokenizer().vocab_size("target") == 70
        assert manifest(run)["pairs"]["train"] > 0


GOLDEN = Path(os.environ.get("NMTKIT_MIRROR", "/nowhere")).parent / "golden" / "bpe10k-multi30k-en-de"
MIRROR = Path(os.environ.get("NMTKIT_MIRROR", "/nowhere"))
real_corpora = pytest.mark.skipif(not MIRROR.is_dir(), reason="real corpora: set NMTKIT_MIRROR to a mirror folder")


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="golden data beside NMTKIT_MIRROR")
def test_golden_segmented_text_is_taken_as_it_is_and_joined_to_the_words_it_was_cut_from(tmp_path: Path) -> None:
    corpus = f'{{ source = "{GOLDEN}/valid.en", target = "{GOLDEN}/valid.de" }}'
    test = f'{{ source = "{GOLDEN}/test.2016.en", target = "{GOLDEN}/test.2016.de", name = "test2016" }}'
    (tmp_path / "golden.toml").write_text(
        f'[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = [{corpus}]\ntest = [{test}]\n'
        'text = "tokenized"\nsubwords = "none"\nnormalize = []\n'
    )
    prepare(load_recipe(str(tmp_path / "golden.toml")), tmp_path / "run", workers=1)
    tokenizer, data = Run(tmp_path / "run").tokenizer(), PairData(tmp_path / "run" / "data" / "train")
    lines = {side: read_lines(GOLDEN / f"valid.{name}") for side, name in (("source", "en"), ("target", "de"))}
    types = {piece for of_side in lines.values() for line in of_side for piece in line.split(" ")}
    assert tokenizer.vocab_size("source") == len(SPECIAL_PIECES) + len(types)
    tok = MIRROR / "raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok"
    for number, (side, name) in enumerate((("source", "en"), ("target", "de"))):
        words = read_lines(tok / f"val.lc.norm.tok.{name}")
        for pair, line in enumerate(data.lines.tolist()):
            ids = data.ids(number, pair).tolist()
            assert " ".join(tokenizer.pieces(ids, side)) == lines[side][line - 1]
            assert tokenizer.decode(ids, side) == words[line - 1]
    assert round_trip(tmp_path / "run") == {"lines": 1014, "changed": 0, "unknown": 0}
    _, references = Run(tmp_path / "run").test_text("test2016").read()
    assert references == read_lines(tok / "test_2016_flickr.lc.norm.tok.de")


@real_corpora
def test_the_sizes_of_the_paper_are_exact_on_real_text_and_it_comes_back(tmp_path: Path) -> None:
    for subwords, size in (("bpe", 37_000), ("wordpiece", 32_000)):  # from the same cleaned text
        recipe = load_recipe(
            "wmt14-en-de-base",
            ('data.train=["tatoeba/anki"]', 'data.valid=["newstest/newstest2013"]', "data.test=[]",
             f"data.subwords={subwords}", f"data.vocab_size={size}", "data.subword_sample_pairs=60000"),
        )  # fmt: skip
        prepare(recipe, tmp_path / "run", mirror=MIRROR)
        tokenizer = Run(tmp_path / "run").tokenizer()
        assert tokenizer.vocab_size("source") == tokenizer.vocab_size("target") == size
        found = round_trip(tmp_path / "run")
        assert found["lines"] == encoding.ROUND_TRIP_LINES
        assert found["changed"] == found["unknown"]
