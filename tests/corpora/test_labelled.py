"""Sentences and pairs of sentences with labels: their formats, and the public corpora that are read by them."""

import io
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.catalogue import catalogue
from nmtkit.corpora.corpus import TextSource, local_corpus
from nmtkit.corpora.readers import READERS
from nmtkit.data.prepare import prepare
from nmtkit.errors import DataError
from nmtkit.json_toml import read_json
from tests.corpora.test_corpus import MIRROR, open_real, real_corpora
from tests.corpora.test_readers import fault, read


class TestLabelledLines:
    def test_the_label_is_the_first_word_and_the_text_the_rest(self) -> None:
        lines = "0 a  b \n1 \tc d\r\n4 x\u2028y"
        assert read("labelled", lines, "text") == ["a  b", "c d", "x\u2028y"]
        assert read("labelled", lines, "label") == ["0", "1", "4"]

    def test_a_line_that_is_no_utf8_is_windows_1252(self) -> None:
        lines = "1 café é\n".encode() + b"1 caf\xe9 \x85\n0 \x93so\x94 \x81\n"
        assert read("labelled", lines, "text") == ["café é", "café …", "“so” \ufffd"]

    def test_labels_get_names(self) -> None:
        assert read("labelled", "1 a\n0 b\n", "label=no,yes") == ["yes", "no"]
        assert read("labelled", "1 a\n0 b\n", "text=no,yes") == ["a", "b"]
        message = fault("labelled", "1 a\n2 b\n", "label=no,yes")
        assert message.startswith('FILE, line 2: is no line "LABEL TEXT" with a label from 0 to 1')

    def test_lines_are_selected_by_their_numbers(self) -> None:
        lines = "".join(f"{number % 2} {number}\n" for number in range(1, 25))
        assert read("labelled", lines, "text:0/10") == ["10", "20"]
        assert read("labelled", lines, "text:5/10") == ["5", "15"]
        assert read("labelled", lines, "label=even,odd:1,4/10") == ["odd", "even", "odd", "even", "odd", "even"]

    @pytest.mark.parametrize("line", ["", "1", "1 ", " 1", "text"])
    def test_a_line_without_a_label_or_a_text_is_named(self, line: str) -> None:
        for part in ("text", "label"):
            assert fault("labelled", f"0 a\n{line}\n", part).startswith("FILE, line 2: is no line")


RTE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE entailment-corpus SYSTEM "rte.dtd">
<entailment-corpus>
<pair id="8" value="FALSE" task="IR">\r
  <t>
  A  dog\truns &amp;
  barks.\u00a0</t><h>A cat.</h></pair>
<pair id="9" value="TRUE"><t>Zwei Männer.</t><h>Männer</h></pair>
<pair id="10" entailment="YES" task="IE" length="short" ><t>a</t><h>b</h></pair>
<pair id="11" entailment="NO"><h>d</h><t>c</t></pair>
</entailment-corpus>
"""


class TestEntailment:
    def test_pairs_have_single_blanks_and_a_tab_between_them(self) -> None:
        assert read("rte", RTE, "pair") == ["A dog runs & barks.\tA cat.", "Zwei Männer.\tMänner", "a\tb", "c\td"]

    def test_both_names_of_the_label_are_read(self) -> None:
        labels = ["not_entailment", "entailment", "entailment", "not_entailment"]
        assert read("rte", RTE, "label") == labels

    @pytest.mark.parametrize(
        "pair",
        [
            "<pair><t>a</t><h>b</h></pair>",
            '<pair value="MAYBE"><t>a</t><h>b</h></pair>',
            '<pair value="TRUE"><t>a</t></pair>',
            '<pair value="TRUE"><t>a</t><h> </h></pair>',
            '<pair value="TRUE"><t>a</t><t>a</t><h>b</h></pair>',
        ],
    )
    def test_an_incomplete_pair_is_named(self, pair: str) -> None:
        content = f'<x><pair value="TRUE"><t>a</t><h>b</h></pair>{pair}</x>'
        assert fault("rte", content, "pair").startswith("FILE, pair 2: needs a text <t>, a hypothesis <h> and a label")

    def test_a_file_that_is_cut_short_is_one_line(self) -> None:
        assert fault("rte", RTE[:-30], "label").startswith("FILE: not valid XML")


class TestColumns:
    def test_several_columns_are_joined_by_tabs(self) -> None:
        table = "1\tone\tuno\n\n0\ttwo\tdue\r\n"
        assert read("tsv", table, "2,3") == ["one\tuno", "", "two\tdue\r"]
        assert read("tsv", table, "3,1,1")[0] == "uno\t1\t1"

    def test_line_ends_and_byte_order_mark_stand_at_the_ends_of_any_order(self) -> None:
        table = "\ufeffL\tone\ttwo\r\nM\tthree\tfour\r\n"
        assert read("tsv", table, "3,2") == ["two\tone", "four\tthree"]
        assert read("tsv", table, "2,1") == ["one\tL", "three\tM"]
        assert read("tsv", table, "3,1,3") == ["two\tL\ttwo\r", "four\tM\tfour\r"]
        assert read("tsv", table, "1,3") == ["\ufeffL\ttwo\r", "M\tfour\r"]  # LineReader removes and counts them
        assert read("tsv", table, "1") == ["\ufeffL", "M"]

    def test_a_line_without_one_of_them_is_named(self) -> None:
        assert fault("tsv", "1\ta\tb\n1\ta\n", "2,3").startswith("FILE, line 2: has 2 columns, not 3; correct the line")
        assert fault("tsv", "1\ta\n", "3,1").startswith("FILE, line 1: has 2 columns, not 3; correct the line")

    def test_a_recipe_reads_pairs_of_sentences_from_a_table(self, tmp_path: Path) -> None:
        table = tmp_path / "pairs.txt"
        table.write_text("yes\tone\tuno\nno\ttwo\ttre\n")
        corpus = local_corpus(table, table, columns=((2, 3), 1))
        assert list(corpus.source.open()) == ["one\tuno", "two\ttre"]
        assert list(corpus.target.open()) == ["yes", "no"]
        assert corpus.fingerprint != local_corpus(table, table, columns=((3, 2), 1)).fingerprint
        one = local_corpus(table, table, columns=(2, 1))
        assert one.fingerprint == local_corpus(table, table, columns=((2,), 1)).fingerprint

    def test_a_column_on_both_sides_is_an_error(self, tmp_path: Path) -> None:
        table, other = tmp_path / "a.tsv", tmp_path / "b.tsv"
        for file in (table, other):
            file.write_text("yes\tone\tuno\n")
        for target in (None, 2):
            with pytest.raises(DataError) as caught:
                local_corpus(table, table, columns=((2, 3), target))
            assert str(caught.value).startswith(f"{table}: column 2 is in source and target")
        assert list(local_corpus(table, other, columns=((2, 3), 2)).target.open()) == ["one"]


@real_corpora
@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("trec/train", {"DESC": 1162, "ENTY": 1250, "ABBR": 86, "HUM": 1223, "LOC": 835, "NUM": 896}),
        ("trec/test", {"DESC": 138, "ENTY": 94, "ABBR": 9, "HUM": 65, "LOC": 81, "NUM": 113}),
        ("sst2/train", {"0": 3310, "1": 3610}),
        ("sst2/valid", {"0": 428, "1": 444}),
        ("sst2/test", {"0": 912, "1": 909}),
        ("mr/train", {"0": 4265, "1": 4265}),
        ("mr/valid", {"0": 533, "1": 533}),
        ("mr/test", {"0": 533, "1": 533}),
        ("cola/train", {"0": 2528, "1": 6023}),
        ("cola/valid", {"0": 324, "1": 719}),
        ("rte/train", {"entailment": 283 + 210 + 412, "not_entailment": 284 + 190 + 388}),
        ("rte/test", {"entailment": 400 + 400 + 410, "not_entailment": 400 + 400 + 390}),
    ],
)
def test_the_real_corpora_have_their_examples_and_classes(tmp_path: Path, name: str, classes: dict[str, int]) -> None:
    corpus = open_real(tmp_path, name, "en-zxx")
    texts = list(corpus.source.open())
    assert Counter(corpus.target.open()) == classes
    assert len(texts) == sum(classes.values())
    assert all(text == text.strip() for text in texts)
    assert {len(list(filter(None, text.split("\t")))) for text in texts} == {2 if name.startswith("rte") else 1}
    text = open_real(tmp_path, name, "und-en")
    assert texts == list(text.source.open()) == list(text.target.open())


@real_corpora
def test_kinds_of_questions_have_the_right_names(tmp_path: Path) -> None:
    corpus = open_real(tmp_path, "trec/test", "en-zxx")
    firsts = {"How far": "NUM", "Who was": "HUM", "Where is": "LOC", "Why is": "DESC"}
    for question, label in zip(corpus.source.open(), corpus.target.open(), strict=True):
        assert label == firsts.get(" ".join(question.split()[:2]), label), question


@real_corpora
def test_the_parts_of_mr_are_all_of_its_lines_and_no_line_twice(tmp_path: Path) -> None:
    parts = {name: open_real(tmp_path, f"mr/{name}", "und-en") for name in ("train", "valid", "test")}
    texts = {name: list(corpus.source.open()) for name, corpus in parts.items()}
    together = [text for part in texts.values() for text in part]
    assert len(together) == len(set(together)) == 10_662
    assert [len(part) for part in texts.values()] == [8530, 1066, 1066]
    assert not any("\x85" in text for text in together)
    whole = READERS["labelled"](io.BytesIO(parts["test"].files[0].path.read_bytes()), "text", "MR")
    assert list(TextSource("MR", partial(iter, whole)).open())[9::10] == texts["test"]


@real_corpora
def test_a_language_model_reads_the_sentences(tmp_path: Path) -> None:
    recipe = tmp_path / "lm.toml"
    recipe.write_text(
        '[data]\ntask = "language-model"\ntarget_language = "en"\ntrain = ["trec/test", "rte/train"]\n'
        'valid = ["sst2/valid"]\nvocab_size = 300\nsequence_length = 64\n'
        '[model]\narchitecture = "decoder"\n[training]\nvalidate_bleu = false\n'
    )
    prepare(load_recipe(str(recipe)), tmp_path / "run", mirror=Path(MIRROR))
    assert read_json(tmp_path / "run/data/manifest.json")["pairs"]["train"] == 500 + 1767
    reference = (tmp_path / "run/data/valid.reference.txt").read_text(encoding="utf-8")
    assert reference.split("\n")[:-1] == list(open_real(tmp_path, "sst2/valid", "en-zxx").source.open())


def test_every_corpus_with_labels_serves_language_models_too() -> None:
    entries = [entry for entry in catalogue().values() if ("en", "zxx") in entry.texts]
    assert len(entries) == 12
    for entry in entries:
        text, labels = entry.texts["en", "zxx"]
        assert entry.texts["und", "en"] == (text, text)
        assert (text.file, text.member) == (labels.file, labels.member)
