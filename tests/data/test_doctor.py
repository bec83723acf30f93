"""What `prepare` finds in the training text, what each action does about it, and how it is told."""

import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.recipe import load_recipe, stored_recipe
from nmtkit.data.cleaning import RULES
from nmtkit.data.prepare import Check, check, prepare
from nmtkit.data.quality_page import binned, rule_rows
from nmtkit.data.quality_report import Findings
from nmtkit.data.shards import PairData
from nmtkit.errors import DataError, RecipeError
from nmtkit.json_toml import read_json
from nmtkit.run import Run
from nmtkit.text.normalization import normalize
from nmtkit.text.vocabulary import SPECIAL_PIECES
from tests.conftest import message_of, run_command

CLEAN = [(f"the {word} number {n}", f"das {word} Nummer {n}") for n, word in enumerate(["tree", "house"] * 20)]
"""40 pairs that no rule concerns."""

FAULTS: dict[str, tuple[bytes, bytes]] = {
    "invalid_utf8": ("Müller is here".encode("latin-1"), b"das ist er"),
    "line_separator": ("one\u2028two lines".encode(), b"das eine"),
    "bom": (b"one more", "\ufeffnoch eins".encode()),
    "control_character": (b"one\x07 bell", b"eine Glocke"),
    "invisible_character": ("one zero\u200bwidth".encode(), b"ein Leerzeichen"),
    "not_nfc": (b"one cafe", "ein Cafe\u0301".encode()),
    "one_sided_blank": (b"nothing there", b" "),
    "both_blank": (b"", b"\t"),
    "html_entity": (b"AT&amp;T is big", b"AT und T"),
    "markup": (b"<b>bold</b> text", b"fetter Text"),
    "too_long": (b"long " * 1001, b"lang " * 1001),
    "length_ratio": (b"so", b"das ist aber ein sehr langer Satz"),
    "source_equals_target": (b"Berlin, 1990", b"Berlin, 1990"),
    "duplicate_source": (CLEAN[4][0].encode(), b"etwas anderes"),
    "duplicate_pair": (CLEAN[3][0].encode(), CLEAN[3][1].encode()),
    "wrong_script": ("Привет, мир".encode(), b"hallo ihr da"),
    "overlap_valid": (b"only in valid", b"nur in valid"),
    "overlap_test": (b"only in the test", b"nur im Test"),
}
"""A pair for each rule, which concerns no other one (but that copies of a pair are copies of its source)."""
ONE_AND_ONLY = [rule for rule in FAULTS if rule != "duplicate_pair"]


class Corpus:
    """A folder with training text, validation and test sets of one pair, and a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        folder.mkdir(parents=True, exist_ok=True)
        self.write("valid", [FAULTS["overlap_valid"]])
        self.write("news", [FAULTS["overlap_test"]])

    def write(self, name: str, pairs: list[tuple[bytes, bytes]]) -> None:
        for side, suffix in enumerate(("en", "de")):
            (self.folder / f"{name}.{suffix}").write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))

    def recipe(
        self, *overrides: str, train: tuple[str, ...] = ("train",), languages: tuple[str, str] = ("en", "de")
    ) -> Any:
        entries = ", ".join(f'{{ source = "{name}.en", target = "{name}.de" }}' for name in train)
        path = self.folder / "mine.toml"
        path.write_text(
            f'[data]\nsource_language = "{languages[0]}"\ntarget_language = "{languages[1]}"\nvocab_size = 64\n'
            f"byte_fallback = false\ntrain = [{entries}]\n"
            'valid = [{ source = "valid.en", target = "valid.de" }]\n'
            'test = [{ source = "news.en", target = "news.de" }]\nsubwords = "none"\n',
            encoding="utf-8",
        )
        return load_recipe(str(path), overrides)

    def check(self, *overrides: str, **recipe: Any) -> Check:
        return check(self.recipe(*overrides, **recipe), self.run)

    def prepare(self, *overrides: str, **recipe: Any) -> dict[str, Any]:
        """Prepares, and gives the report."""
        prepare(self.recipe(*overrides, **recipe), self.run, workers=1)
        return self.report()

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.run / "data" / "report.json").read_text(encoding="utf-8"))
        return report

    def lines(self) -> list[int]:
        lines: list[int] = PairData(self.run / "data" / "train").lines.tolist()
        return lines

    def text_of(self, line: int, side: str = "source") -> str:
        """The text that is trained on of a line."""
        index = self.lines().index(line)
        ids = PairData(self.run / "data" / "train").ids(0 if side == "source" else 1, index)
        return Run(self.run).tokenizer().decode(ids.tolist(), "source" if side == "source" else "target")


def encoded(pairs: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(source.encode(), target.encode()) for source, target in pairs]


def counts(report: dict[str, Any]) -> dict[str, int]:
    """The rules that concern a pair."""
    return {rule: found["count"] for rule, found in report["rules"].items() if found["count"]}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path / "corpus")


def with_faults(corpus: Corpus, *rules: str) -> dict[str, int]:
    """Writes the training text with a fault for each rule in the middle, and gives their lines."""
    pairs = encoded(CLEAN)
    pairs[30:30] = [FAULTS[rule] for rule in rules]
    corpus.write("train", pairs)
    return {rule: line for line, rule in enumerate(rules, 31)}


class TestRules:
    @pytest.mark.parametrize("only_check", [True, False])
    def test_each_is_counted_and_shown_with_its_line_by_check_and_prepare_alike(
        self, corpus: Corpus, only_check: bool
    ) -> None:
        line_of = with_faults(corpus, *FAULTS)
        settings = ['cleaning.invalid_utf8="fix"', "cleaning.max_characters=9999"]  # too long by its words
        report = corpus.check(*settings).report if only_check else corpus.prepare(*settings)
        assert counts(report) == dict.fromkeys(FAULTS, 1) | {"duplicate_source": 2}
        assert all((row[3] == "") == only_check for row in rule_rows(report))  # only `prepare` knows what is left out
        assert corpus.report() == report
        assert set(report["rules"]) == set(RULES)
        for rule, fault in FAULTS.items():
            copied = [line_of["duplicate_pair"]] if rule == "duplicate_source" else []
            lines = [line_of[rule], *copied]
            assert report["rules"][rule]["lines"] == lines
            assert report["places"][rule] == [["train.en", line] for line in lines]
            assert set(report["rules"][rule]) == {"count", "lines", "action"}
            shown = [
                "".join(char if char.isprintable() else repr(char)[1:-1] for char in side[:60])
                + ("..." if len(side) > 60 else "")
                for side in (side.decode("utf-8", "backslashreplace") for side in fault)
            ]
            assert report["examples"][rule] == shown
            assert all(char.isprintable() for side in shown for char in side)

    def test_drop_leaves_the_pair_out_and_counts_it(self, corpus: Corpus) -> None:
        line_of = with_faults(corpus, *ONE_AND_ONLY)
        report = corpus.prepare(*(f"cleaning.{rule}=drop" for rule in ONE_AND_ONLY), "cleaning.max_ratio=4")
        assert corpus.lines() == [number for number in range(1, 58) if number not in line_of.values()]
        assert report["left_out"] == dict.fromkeys(ONE_AND_ONLY, 1)
        manifest = json.loads((corpus.run / "data" / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["cleaning"] == dict.fromkeys([*RULES, "held_out_copy"], 0) | report["left_out"]
        assert manifest["rules"] == dict.fromkeys(RULES, 0) | report["left_out"]
        assert report["pairs"] == {"read": 57, "kept": 40}

    def test_keep_trains_on_the_pair_as_it_is(self, corpus: Corpus) -> None:
        rules = [
            "line_separator", "control_character", "invisible_character", "not_nfc", "html_entity", "markup",
            "length_ratio", "source_equals_target", "duplicate_pair", "duplicate_source", "wrong_script",
            "overlap_valid", "overlap_test", "bom",
        ]  # fmt: skip
        line_of = with_faults(corpus, *rules)
        settings = (*(f"cleaning.{rule}=keep" for rule in rules), "cleaning.max_ratio=4")
        report = corpus.prepare(*settings, "data.vocab_size=400")
        assert corpus.lines() == list(range(1, 55))
        assert counts(report) == dict.fromkeys(rules, 1) | {"duplicate_source": 2}
        for rule, line in line_of.items():
            assert corpus.text_of(line) == FAULTS[rule][0].decode()
            assert corpus.text_of(line, "target") == FAULTS[rule][1].decode()
            assert report["rules"][rule]["action"] == "keep"
        assert report["left_out"] == {}

    @pytest.mark.parametrize("rule", [rule for rule in FAULTS if rule != "length_ratio"])
    def test_error_stops_with_the_corpus_and_its_line(self, corpus: Corpus, rule: str) -> None:
        line = with_faults(corpus, rule)[rule]
        message_of(lambda: corpus.prepare(f"cleaning.{rule}=error"), DataError, rf"train\.en, line {line}: ")
        assert not (corpus.run / "data").exists()

    def test_fix_corrects_the_text(self, corpus: Corpus) -> None:
        corrected = {
            "invalid_utf8": ("Müller is here", "das ist er"),
            "line_separator": ("one two lines", "das eine"),
            "bom": ("one more", "noch eins"),
            "control_character": ("one bell", "eine Glocke"),
            "invisible_character": ("one zerowidth", "ein Leerzeichen"),
            "not_nfc": ("one cafe", "ein Café"),
            "html_entity": ("AT&T is big", "AT und T"),
            "markup": ("bold text", "fetter Text"),
        }
        line_of = with_faults(corpus, *corrected)
        report = corpus.prepare(*(f"cleaning.{rule}=fix" for rule in corrected), "data.vocab_size=400")
        assert counts(report) == dict.fromkeys(corrected, 1)
        for rule, text in corrected.items():
            assert (corpus.text_of(line_of[rule]), corpus.text_of(line_of[rule], "target")) == text
            assert report["rules"][rule]["action"] == "fix"

    def test_what_another_fix_brings_together_is_composed(self, corpus: Corpus) -> None:
        corpus.write("train", [*encoded(CLEAN), ("one cafe\u200b\u0301".encode(), b"ein Cafe&#769;")])
        fixes = (f"cleaning.{rule}=fix" for rule in ("invisible_character", "html_entity", "not_nfc"))
        report = corpus.prepare(*fixes, "data.vocab_size=400")
        assert counts(report) == {"invisible_character": 1, "html_entity": 1}
        assert (corpus.text_of(41), corpus.text_of(41, "target")) == ("one café", "ein Café")

    def test_invisible_characters_and_entities_that_a_fix_brings_about_are_corrected(self, corpus: Corpus) -> None:
        pairs = [
            (b"one rail&shy;way", "die Eisen&#x200b;\u00adbahn".encode()), ("AT&\u00adamp;T".encode(), b"was"),
        ]  # fmt: skip
        corpus.write("train", [*encoded(CLEAN), *pairs])
        fixes = ("cleaning.html_entity=fix", "cleaning.invisible_character=fix")
        corpus.prepare(*fixes, "data.vocab_size=400")
        assert (corpus.text_of(41), corpus.text_of(41, "target")) == ("one railway", "die Eisenbahn")
        assert corpus.text_of(42) == "AT&T"

    def test_swapped_sides_are_exchanged(self, corpus: Corpus) -> None:
        pairs = [(f"the number {n}", f"номер {n}") for n in range(40)]
        pairs[20] = ("номер двадцать", "the number twenty")
        corpus.write("train", encoded(pairs))
        report = corpus.prepare("cleaning.swapped_sides=fix", "data.vocab_size=400", languages=("en", "ru"))
        assert counts(report) == {"swapped_sides": 1}
        assert (corpus.text_of(21), corpus.text_of(21, "target")) == ("the number twenty", "номер двадцать")

    def test_a_pair_that_is_blank_once_corrected_is_left_out(self, corpus: Corpus) -> None:
        corpus.write("train", [*encoded(CLEAN), ("\ufeff".encode(), b"etwas")])
        report = corpus.prepare()
        assert counts(report) == {"bom": 1}
        assert report["left_out"] == {"one_sided_blank": 1}
        assert corpus.lines() == list(range(1, 41))

    def test_a_byte_order_mark_at_the_beginning_is_counted_and_removed(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        plain = corpus.prepare("data.vocab_size=400")
        (corpus.folder / "train.de").write_bytes(b"\xef\xbb\xbf" + (corpus.folder / "train.de").read_bytes())
        report = corpus.prepare("data.vocab_size=400")
        assert report["rules"]["bom"] == {"count": 1, "lines": [1], "action": "fix"}
        assert counts(plain) == {}
        assert corpus.text_of(1, "target") == CLEAN[0][1]

    def test_of_copies_the_first_that_is_not_left_out_stays(self, corpus: Corpus) -> None:
        pairs = [
            *CLEAN,
            ("<b>new</b>", "neu"),
            ("<b>new</b>", "anders"),
            *CLEAN[:3],
            ("new one", "neu"),
            ("new one", "Neu"),
        ]
        corpus.write("train", encoded(pairs))
        both = ["cleaning.duplicate_pair=drop", "cleaning.duplicate_source=drop"]
        report = corpus.prepare("cleaning.duplicate_pair=drop")
        assert report["rules"]["duplicate_pair"]["lines"] == [43, 44, 45]
        assert report["rules"]["duplicate_source"]["lines"] == [42, 43, 44, 45, 47]
        assert corpus.lines() == [*range(1, 43), 46, 47]
        assert corpus.prepare(*both)["left_out"] == {"duplicate_pair": 3, "duplicate_source": 2}
        assert corpus.lines() == [*range(1, 42), 46]
        corpus.write("train", encoded([("x", ""), *CLEAN, ("x", "ja")]))
        corpus.prepare(*both)
        assert corpus.lines() == list(range(2, 43))
        corpus.write("train", encoded([*CLEAN, ("x", "lang " * 9), ("x", "ja"), ("y", "so&#10;" * 9), ("y", "nein")]))
        corpus.prepare(*both, "cleaning.max_tokens=8", "cleaning.html_entity=fix")
        assert corpus.lines() == [*range(1, 41), 42, 44]
        corpus.write("train", encoded([*CLEAN, *[("x", "lang " * 9)] * 5]))
        report = corpus.prepare("cleaning.duplicate_pair=drop", "cleaning.max_tokens=8")
        assert report["left_out"] == {"duplicate_pair": 4, "too_long": 1}

    def test_tokens_too_many_are_counted_once_whether_words_are_or_not(self, corpus: Corpus) -> None:
        pairs = [*CLEAN, ("one two three four five six", "eins zwei"), ("a a", "abcdefghijklmnopqrstuvw" * 3)]
        corpus.write("train", encoded(pairs))
        report = corpus.prepare("cleaning.max_tokens=5", "data.subwords=bpe", "data.vocab_size=70")
        assert {41, 42} <= set(report["rules"]["too_long"]["lines"])
        left_out = set(range(1, 43)) - set(corpus.lines())
        assert report["rules"]["too_long"]["count"] == report["left_out"]["too_long"] == len(left_out)
        only_words = corpus.check("cleaning.max_tokens=5", "data.subwords=bpe", "data.vocab_size=70").report
        assert only_words["rules"]["too_long"]["lines"] == [41]

    def test_what_is_too_long_once_it_is_corrected_is_counted_and_what_was_so_before_is_once(
        self, corpus: Corpus
    ) -> None:
        entities, words = "a" + "&#10;b" * 9, "<i> " * 9 + "a"  # many words afterwards; many words before
        corpus.write("train", encoded([*CLEAN, (entities, "x y"), (words, "z")]))
        fixes = ("cleaning.html_entity=fix", "cleaning.markup=fix", "cleaning.max_tokens=5", "data.subwords=none")
        report = corpus.prepare(*fixes)
        assert report["rules"]["too_long"]["lines"] == [41, 42]
        assert report["left_out"] == {"too_long": 1}
        assert corpus.lines() == [*range(1, 41), 42]

    def test_the_first_lines_are_named_in_whatever_order_they_are_found(self) -> None:
        findings = Findings(CleaningConfig(), may_stop=False)
        findings.num_pairs = 200
        findings.corpora.append(("one", 200))
        for line in (*range(100, 150), *range(1, 11)):
            findings.add("too_long", 1, (line,))
        found = findings.report([], {})["rules"]["too_long"]
        assert (found["count"], found["lines"]) == (60, [*range(1, 11), *range(100, 110)])

    def test_only_the_first_twenty_lines_are_named(self, corpus: Corpus) -> None:
        corpus.write("train", encoded([*CLEAN, *[(f"<b>{n}</b>", f"Nummer {n}") for n in range(50)], *CLEAN]))
        report = corpus.check().report
        assert report["rules"]["markup"] == {"count": 50, "lines": list(range(41, 61)), "action": "keep"}
        assert report["rules"]["duplicate_pair"]["count"] == 40
        assert report["rules"]["duplicate_pair"]["lines"] == list(range(91, 111))

    def test_lines_of_several_corpora_are_told_with_their_corpus(self, corpus: Corpus) -> None:
        corpus.write("one", encoded(CLEAN))
        corpus.write("two", [(b"", b""), FAULTS["markup"], *encoded(CLEAN[:2])])
        report = corpus.prepare(train=("one", "two"))
        assert report["rules"]["markup"]["lines"] == [42]
        assert report["places"]["markup"] == [["two.en", 2]]
        assert report["places"]["duplicate_pair"] == [["two.en", 3], ["two.en", 4]]

    def test_corpora_of_equal_names_are_told_apart(self, corpus: Corpus) -> None:
        for name, pairs in (("x/t", []), ("y/t", [FAULTS["markup"]])):
            (corpus.folder / name).parent.mkdir()
            corpus.write(name, [*pairs, *encoded(CLEAN)])
        report = corpus.check(train=("x/t", "y/t")).report
        assert report["places"]["markup"] == [["t.en (corpus 2)", 1]]
        assert [row[5] for row in rule_rows(report) if row[0] == "markup"] == ["t.en (corpus 2): 1"]

    def test_a_blank_pair_is_concerned_by_nothing_but_its_blanks(self, corpus: Corpus) -> None:
        corpus.write("train", [*encoded(CLEAN), (b"", b""), (b"", b""), (b"", "Привет".encode()), (b"", b"x" * 50)])
        assert counts(corpus.check().report) == {"both_blank": 2, "one_sided_blank": 2}

    def test_a_warning_tells_of_training_pairs_that_are_in_a_test_set(
        self, corpus: Corpus, caplog: pytest.LogCaptureFixture
    ) -> None:
        with_faults(corpus, "overlap_test")
        corpus.prepare()
        assert 'cleaning] overlap_test = "drop"' in caplog.text
        caplog.clear()
        corpus.prepare("cleaning.overlap_test=drop")
        assert "overlap" not in caplog.text

    @pytest.mark.parametrize(("action", "overlap"), [("fix", 1), ("keep", 0)])
    def test_a_pair_that_a_fix_makes_one_of_the_test_set_is_left_out(
        self, corpus: Corpus, action: str, overlap: int
    ) -> None:
        corpus.write("news", [(b"Tom & Jerry", b"Tom und Jerry & Co")])
        corpus.write("train", [*encoded(CLEAN), (b"Tom &amp; Jerry", b"Tom und Jerry &amp; Co")])
        report = corpus.prepare("cleaning.overlap_test=drop", f"cleaning.html_entity={action}")
        assert counts(report).get("overlap_test", 0) == overlap
        assert report["pairs"]["kept"] == len(CLEAN) + 1 - overlap


class TestLineCounts:
    def test_a_lost_line_is_named(self, corpus: Corpus) -> None:
        words = ["ja", "nein danke", "das ist ein langer Satz ueber ein Haus", "wer", "vielleicht morgen frueh"]
        starts = [f"{words[n * n % 7 % 5]} {'very ' * (n * 37 % 11)}" for n in range(400)]
        pairs = [(f"{start}{n}", f"{start}{n}.".replace("very", "sehr")) for n, start in enumerate(starts)]
        corpus.write("train", encoded(pairs))
        lines = (corpus.folder / "train.de").read_bytes().split(b"\n")
        del lines[200]
        (corpus.folder / "train.de").write_bytes(b"\n".join(lines))
        message = message_of(corpus.prepare, match=r"train\.en has 400 lines but .*train\.de has 399; ")
        named = re.search(r"from about line (\d+) on", message)
        assert named
        assert abs(int(named[1]) - 201) <= 5
        found = corpus.check()
        assert found.report["rules"]["line_count"] == {"count": 1, "lines": [int(named[1])], "action": "error"}
        assert found.refused == {"line_count": 1}

    def test_the_surplus_is_left_out_where_that_is_asked(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        corpus.write("more", encoded([(f"{source}!", f"{target}!") for source, target in CLEAN]))
        with (corpus.folder / "train.de").open("ab") as file:
            file.write(b"noch\nzwei\n")
        report = corpus.prepare("cleaning.line_count=drop", train=("train", "more"))
        assert report["rules"]["line_count"] == {"count": 2, "lines": [40], "action": "drop"}
        assert report["places"]["line_count"] == [["train.en", 41]]
        assert report["examples"]["line_count"] == ["", "noch"]
        assert corpus.lines() == list(range(1, 81))
        (corpus.folder / "train.de").write_bytes(b"")
        report = corpus.prepare("cleaning.line_count=drop", train=("train", "more"))
        assert report["rules"]["line_count"] == {"count": 40, "lines": [], "action": "drop"}
        assert rule_rows(report)[0][5:] == ["train.en: 1, ...", *CLEAN[0][:1], ""]

    @pytest.mark.parametrize("role", ["valid", "news"])
    def test_unequal_sides_of_other_sets_are_refused_whatever_the_rule_says(self, corpus: Corpus, role: str) -> None:
        corpus.write("train", encoded(CLEAN))
        with (corpus.folder / f"{role}.de").open("ab") as file:
            file.write(b"noch eine\n")
        with pytest.raises(DataError, match=rf"{role}\.de has 2; "):
            corpus.prepare("cleaning.line_count=drop")


class TestEqualSides:
    """A corpus of which most pairs are a line with itself, as a wrongly named file makes one."""

    STATED = tuple(f"cleaning.source_equals_target={action}" for action in ("keep", "drop"))

    def mixed(self, corpus: Corpus, num_copies: int, num_others: int, name: str = "train") -> None:
        others = [(f"the number {n}", f"die Nummer {n}") for n in range(num_others)]
        corpus.write(name, encoded([*others, *((f"line {n}", f"line {n}") for n in range(num_copies))]))

    def test_it_is_an_error_that_names_the_files_and_the_way_out(self, corpus: Corpus) -> None:
        self.mixed(corpus, 60, 40)
        for command in (corpus.prepare, corpus.check):
            message = self.refusal(corpus, command)
            assert message.startswith(f"{corpus.folder / 'train.en'}, {corpus.folder / 'train.de'}: both sides are the")
            assert "60 of 100 pairs" in message
            assert '[cleaning] source_equals_target = "keep"' in message
        assert not (corpus.run / "data" / "manifest.json").exists()

    @staticmethod
    def refusal(corpus: Corpus, command: Any) -> str:
        """The reason that `check` notes, or with which `prepare` stops."""
        if command == corpus.check:
            (reason,) = corpus.check().reasons
            return reason
        return message_of(command)

    @pytest.mark.parametrize(("num_copies", "num_others"), [(50, 50), (99, 0)])
    def test_half_of_a_corpus_or_a_small_one_is_no_error(
        self, corpus: Corpus, num_copies: int, num_others: int
    ) -> None:
        self.mixed(corpus, num_copies, num_others)
        assert corpus.prepare()["rules"]["source_equals_target"]["count"] == num_copies

    @pytest.mark.parametrize("stated", STATED)
    def test_it_is_accepted_where_the_recipe_states_the_rule_and_ever_after(self, corpus: Corpus, stated: str) -> None:
        self.mixed(corpus, 60, 45)
        corpus.prepare(stated)
        stored = stored_recipe(corpus.run / "recipe.toml", "mine")
        assert "source_equals_target" in stored.cleaning.model_fields_set
        assert not prepare(stored, corpus.run, workers=1).is_new
        again = prepare(stored, corpus.folder / "again", workers=1)
        assert again.manifest["pairs"]["train"] == (105 if stated.endswith("keep") else 45)
        assert check(stored, corpus.folder / "third").reasons == []

    def test_a_stored_recipe_states_only_what_was_stated(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        corpus.prepare()
        self.mixed(corpus, 60, 40)
        with pytest.raises(DataError, match="both sides are the same text in 60 of 100 pairs"):
            prepare(stored_recipe(corpus.run / "recipe.toml", "mine"), corpus.run, workers=1)

    def test_each_corpus_is_judged_by_itself(self, corpus: Corpus) -> None:
        self.mixed(corpus, 0, 1000)
        self.mixed(corpus, 100, 0, "copied")
        with pytest.raises(DataError, match=r"copied\.en, .*copied\.de: both sides are the same text in 100 of 100"):
            corpus.prepare(train=("train", "copied"))

    @pytest.mark.parametrize("name", ["valid", "news"])
    def test_so_are_validation_and_test_sets(self, corpus: Corpus, name: str) -> None:
        corpus.write("train", encoded(CLEAN))
        self.mixed(corpus, 100, 0, name)
        for command in (corpus.prepare, corpus.check):
            assert f"{name}.en" in self.refusal(corpus, command)
        corpus.prepare("cleaning.source_equals_target=keep")


class TestCheck:
    def test_it_goes_on_past_every_error_and_leaves_only_the_report(self, corpus: Corpus) -> None:
        pairs = encoded(CLEAN)
        pairs[5:5] = [FAULTS["invalid_utf8"], FAULTS["markup"], FAULTS["invalid_utf8"]]
        corpus.write("train", pairs)
        found = corpus.check("cleaning.markup=error")
        assert found.refused == {"invalid_utf8": 2, "markup": 1}
        assert found.report["rules"]["invalid_utf8"]["lines"] == [6, 8]
        assert sorted(path.name for path in (corpus.run / "data").iterdir()) == ["report.html", "report.json"]
        assert sorted(path.name for path in corpus.run.iterdir()) == ["data"]
        assert found.report["pairs"] == {"read": 43, "kept": None}

    def test_it_tells_of_too_few_pairs_to_hold_out(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        corpus.write("back", encoded(CLEAN))
        assert corpus.check("data.valid=39").reasons == corpus.check().reasons == []
        too_few = ["data.valid = 40: at most 39 different pairs can be held out from the training corpora; take fewer"]
        assert corpus.check("data.valid=40").reasons == too_few
        with pytest.raises(DataError, match=f"^{re.escape(too_few[0])}$"):
            corpus.prepare("data.valid=40")
        [reason] = corpus.check("data.valid=30", "data.test=10").reasons
        assert reason.startswith("data.valid = 30 and data.test = 10: at most 39 different")
        assert corpus.check("data.valid=30", "data.test=9").reasons == []
        tagged = 'data.train=[{source="%s/train.en",target="%s/train.de"},{source="%s/back.en",target="%s/back.de",%s}]'
        entries = tagged % (*[corpus.folder] * 4, 'source_prefix="<bt>"')
        [reason] = corpus.check(entries, "data.valid=41").reasons
        assert "at most 40 different pairs can be held out" in reason
        assert "(tagged and generated ones left out)" in reason

    def test_it_tells_that_held_out_copies_leave_nothing_to_train_on(self, corpus: Corpus) -> None:
        corpus.write("train", encoded([("the tree", target) for _, target in CLEAN]))
        with pytest.raises(DataError, match=r"^no training pair is left after cleaning \(held_out_copy: \d+\)"):
            corpus.prepare("data.valid=5")

    @pytest.mark.parametrize("pairs", [[], [(b"", b"x"), (b" ", b"")]])
    def test_a_corpus_without_text_is_refused_as_prepare_refuses_it(
        self, corpus: Corpus, pairs: list[tuple[bytes, bytes]]
    ) -> None:
        corpus.write("train", pairs)
        assert corpus.check().reasons == [message_of(corpus.prepare, match="no training pair is left")]

    @pytest.mark.parametrize(
        ("pairs", "override"),
        [([(f"<b>{source}</b>", target) for source, target in CLEAN], "cleaning.markup=drop"),
         ([(source, "lang " * 1100) for source, _ in CLEAN], "cleaning.too_long=drop"),
         (CLEAN[:1] * 20, "data.valid=5")],
    )  # fmt: skip
    def test_too_few_pairs_after_cleaning_are_noted_as_prepare_refuses_them(
        self, corpus: Corpus, pairs: list[tuple[str, str]], override: str
    ) -> None:
        corpus.write("train", encoded(pairs))
        found = corpus.check(override)
        refused = message_of(lambda: corpus.prepare(override))
        assert [reason.partition(": ")[0] for reason in found.reasons] == [refused.partition(": ")[0]]
        assert found.report["left_out"] == {}

    @pytest.mark.parametrize("pairs", [[], [(b"", b"x"), (b" ", b"")]])
    def test_a_validation_set_without_text_is_refused_by_both(
        self, corpus: Corpus, pairs: list[tuple[bytes, bytes]]
    ) -> None:
        corpus.write("train", encoded(CLEAN))
        corpus.write("valid", pairs)
        for command in (corpus.check, corpus.prepare):
            with pytest.raises(DataError, match="no validation pair has text on both sides"):
                command()

    def test_the_command_ends_with_1_and_the_reason(self, corpus: Corpus) -> None:
        corpus.write("train", [])
        corpus.recipe()
        ended = run_command("prepare", corpus.folder / "mine.toml", "--check", "--run-dir", corpus.run)
        assert ended.code == 1
        assert ended.err.endswith(
            "no training pair is left after cleaning (the corpora are empty); look at "
            f"{corpus.folder / 'train.en'}, {corpus.folder / 'train.de'}\n"
        )

    def test_an_empty_corpus_is_named_where_pairs_are_to_be_held_out_too(self, corpus: Corpus) -> None:
        corpus.write("train", [])
        with pytest.raises(DataError, match=r"no training pair is left after cleaning \(the corpora are empty\); look"):
            corpus.prepare("data.valid=5")

    def test_prepare_takes_its_place(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        corpus.check()
        assert corpus.prepare()["pairs"] == {"read": 40, "kept": 40}

    def test_prepared_data_stay_as_they_are(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        corpus.prepare()
        before = {path: path.read_bytes() for path in corpus.run.rglob("*") if path.is_file()}
        with_faults(corpus, "markup")
        found = corpus.check()
        assert (found.folder, counts(found.report)) == (None, {"markup": 1})
        assert {path: path.read_bytes() for path in corpus.run.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize(
        ("rule", "action"),
        [("line_count", "keep"), ("invalid_utf8", "keep"), ("both_blank", "keep"), ("one_sided_blank", "fix"),
         ("too_long", "keep"), ("duplicate_pair", "fix"), ("overlap_test", "fix"), ("wrong_script", "fix"),
         ("length_ratio", "error"), ("markup", "remove")],
    )  # fmt: skip
    def test_an_action_that_makes_no_sense_is_refused_in_one_line(self, corpus: Corpus, rule: str, action: str) -> None:
        message_of(lambda: corpus.recipe(f"cleaning.{rule}={action}"), RecipeError, rule)

    def test_a_rule_at_its_default_leaves_the_fingerprint_as_it_was(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        first = prepare(corpus.recipe(), corpus.run, workers=1)
        assert not prepare(corpus.recipe("cleaning.markup=keep"), corpus.run, workers=1).is_new
        assert prepare(corpus.recipe("cleaning.markup=drop"), corpus.run, workers=1).is_new
        assert first.is_new


class TestReport:
    def test_it_tells_words_tokens_and_vocabulary(self, corpus: Corpus) -> None:
        corpus.write("train", encoded([*CLEAN, ("", "x")]))
        report = corpus.prepare("data.vocab_size=20")
        assert report["words"]["source"] == {"0": 1, "4": 40}
        part = report["subwords"]["train"]["source"]
        data = PairData(corpus.run / "data" / "train")
        tokens = int((data.source_lengths - 1).sum())
        assert (part["tokens"], part["words"], part["tokens_per_word"], part["vocabulary"]) == (tokens, 160, 1.0, 20)
        unknown = sum(int((data.ids(0, index) == 1).sum()) for index in range(len(data)))
        assert part["unknown"] == unknown > 0
        used = {int(i) for index in range(len(data)) for i in data.ids(0, index)} - {1}
        assert part["entries_used"] == len(used)
        assert part["lengths"] == {"4": 40}
        assert report["subwords"]["valid"]["source"]["words"] == 3

    def test_half_of_the_tokens_are_those_that_the_vocabulary_covers(self, corpus: Corpus) -> None:
        corpus.write("train", encoded([("a a a b " + " ".join(f"{c}{n}" for c in "uvwxyz"), "c") for n in range(40)]))
        part = corpus.prepare("data.vocab_size=12")["subwords"]["train"]["source"]
        assert part["unknown"] > part["tokens"] / 2
        assert part["most_frequent_half"] == 1

    def test_the_page_is_whole_and_needs_no_network(self, corpus: Corpus) -> None:
        line = with_faults(corpus, "markup")["markup"]
        corpus.prepare()
        page = (corpus.run / "data" / "report.html").read_text(encoding="utf-8")
        assert re.findall(r"(?:src|href)\s*=|url\(|@import|<script", page) == []
        assert "prefers-color-scheme: dark" in page
        assert 'name="viewport"' in page
        assert [rule for rule in RULES if f"<td>{rule}</td>" in page] == ["markup"]
        assert "<p>19 other rules: nothing found.</p>" in page
        assert f"<td>{line}</td><td><bdi>&lt;b&gt;bold&lt;/b&gt; text</bdi><br><bdi>fetter Text</bdi></td>" in page
        pictures = re.findall(r"<svg.*?</svg>", page)
        assert len(pictures) == 2
        widths = [
            float(bar.get("width", "-1"))
            for picture in pictures
            for bar in ElementTree.fromstring(picture).iter("rect")
        ]
        assert widths
        assert all(0 <= width <= 420 for width in widths)

    def test_pairs_of_too_many_tokens_are_shown_too(self, corpus: Corpus) -> None:
        corpus.write("train", encoded([*CLEAN, ("one two three four five", "eins zwei drei vier fünf")]))
        report = corpus.prepare("cleaning.max_tokens=4", "data.subwords=bpe", "data.vocab_size=60")
        assert report["rules"]["too_long"]["count"] > 1
        first = report["rules"]["too_long"]["lines"][0]
        pairs = [*CLEAN, ("one two three four five", "eins zwei drei vier fünf")]
        assert report["examples"]["too_long"] == list(pairs[first - 1])

    def test_the_terminal_shows_examples_without_control_characters(self, corpus: Corpus) -> None:
        corpus.write("train", encoded([*CLEAN, ("a \x1b[31mred\u202e", "ein\x07 rot")]))
        corpus.recipe()
        ended = run_command("prepare", corpus.folder / "mine.toml", "--check", "--run-dir", corpus.run)
        assert ended.code == 0
        assert "control_character, lines 41\n    a \\x1b[31mred\\u202e\n    ein\\x07 rot\n" in ended.out
        assert "18 other rules: nothing found." in ended.out
        assert not set("\x1b\x07\u202e") & set(ended.out)

    def test_a_language_code_that_nobody_has_is_warned_of_with_near_ones(
        self, corpus: Corpus, caplog: pytest.LogCaptureFixture
    ) -> None:
        corpus.write("train", encoded(CLEAN))
        corpus.check(languages=("en", "deh"))
        (warning,) = [record.getMessage() for record in caplog.records if "language" in record.getMessage()]
        assert warning.startswith('data.target_language = "deh" is not a language code that is known here (near ones: ')
        assert "deu" in warning
        caplog.clear()
        corpus.check(languages=("en", "jp"))
        assert "(near ones: ja, " in caplog.text
        caplog.clear()
        for code in ("de_AT", "zh_Hans", "hsb", "eo", "yue", "ptb", "zxx"):
            corpus.check(languages=("en", code))
        assert not [record for record in caplog.records if "language code" in record.getMessage()]

    def test_what_is_odd_about_validation_and_test_sets_is_warned_of(
        self, corpus: Corpus, caplog: pytest.LogCaptureFixture
    ) -> None:
        def told() -> str:
            caplog.clear()
            corpus.check()
            return caplog.text

        corpus.write("train", encoded(CLEAN))
        pairs = [("so " * (1 + 7 * n % 30), "ja " * (1 + 7 * n % 30)) for n in range(150)]
        corpus.write("news", encoded(pairs))
        corpus.write("valid", encoded([(f"a {source}", target) for source, target in pairs]))
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
        assert "unrelated" not in told()
        moved = [target for _, target in pairs[1:]]
        corpus.write("valid", encoded(list(zip([f"a {source}" for source, _ in pairs], [*moved, "ja"], strict=True))))
        assert "valid.de: the lengths of the two sides are unrelated" in told()
        corpus.write("valid", encoded(pairs[:20]))
        assert "news.de: 100 pairs are also in the validation set" in told()
        corpus.write("news", encoded([*pairs[:1] * 50, *((f"b {source}", target) for source, target in pairs[:51])]))
        assert "news.de: 50 pairs are also in the validation set" in told()
        numbered = [(f"{n} {source}", f"{n} {target}") for n, (source, target) in enumerate(pairs)]
        corpus.write("train", encoded(numbered))
        corpus.write("news", encoded(numbered[:75]))
        caplog.clear()
        corpus.prepare("data.valid=100", "cleaning.overlap_test=keep", "data.vocab_size=60")
        assert re.search(r"test set news: \d\d pairs are also in the validation set", caplog.text)
        corpus.write("news", encoded([(source, f"{target}&amp; .") for source, target in [*pairs[:5], ("x", " ")]]))
        assert "news.de: HTML entities, such as &amp; (6 lines: 1, 2, 3, 4, 5, 6)" in told()
        assert "news.de: punctuation is split off as a tokeniser does" in told()
        corpus.write("news", encoded([*pairs[:5], ("x", " ")]))
        assert "news.de: one side is blank (line 6)" in told()

    def test_training_text_of_which_one_side_is_shifted_is_warned_of(
        self, corpus: Corpus, caplog: pytest.LogCaptureFixture
    ) -> None:
        pairs = [(f"{n} " + "so " * (1 + 7 * n % 30), f"{n} " + "ja " * (1 + 7 * n % 30)) for n in range(3000)]
        targets = [target for _, target in pairs]
        shifted = [*targets[:1000], "neu", *targets[1000:-1]]
        corpus.write("train", encoded(pairs))
        corpus.check()
        assert "unrelated" not in caplog.text
        corpus.write("train", encoded([(source, target) for (source, _), target in zip(pairs, shifted, strict=True)]))
        corpus.check()
        assert (
            "train.en: the lengths of the two sides are unrelated from about line 1001 on, in 2 stretches"
            in caplog.text
        )

    def test_a_corpus_in_the_wrong_order_or_language_is_warned_of(
        self, corpus: Corpus, caplog: pytest.LogCaptureFixture
    ) -> None:
        pairs = [
            (f"Das Haus {n} ist alt", f"\u0414\u043e\u043c {n} \u0441\u0442\u0430\u0440\u044b\u0439")
            for n in range(120)
        ]
        corpus.write("train", encoded(pairs))
        corpus.write("valid", encoded(pairs[:1]))
        corpus.write("news", encoded(pairs[:1]))
        for languages, told in (
            (("de", "ru"), None), (("ru", "de"), "source and target are exchanged in 120 of 120 pairs; correct files"),
            (("de", "he"), "not in the writing system of its language in 120 of 120 pairs; correct files"),
        ):  # fmt: skip
            caplog.clear()
            corpus.check(languages=languages)
            assert ("pairs; correct files" in caplog.text) == (told is not None)
            assert told is None or f"train.de: {told}, columns or languages in the recipe (" in caplog.text
        caplog.clear()
        corpus.check("cleaning.swapped_sides=fix", languages=("ru", "de"))
        assert "pairs; correct files" not in caplog.text

    def test_pieces_of_sentencepiece_are_joined_or_warned_of(
        self, corpus: Corpus, caplog: pytest.LogCaptureFixture
    ) -> None:
        pairs = [(f"\u2581The \u2581house \u25811 {n} .", f"\u2581Das \u2581Ha us \u25811 {n} .") for n in range(30)]
        for name in ("train", "valid", "news"):
            corpus.write(name, encoded(pairs))
        corpus.check("data.segment_mark=\u2581")
        assert "pieces of sentencepiece" not in caplog.text and "punctuation" not in caplog.text
        corpus.prepare("data.segment_mark=\u2581", "cleaning.overlap_test=keep", "cleaning.overlap_valid=keep")
        assert corpus.text_of(13) == "The house 112." and corpus.text_of(13, "target") == "Das Haus 112."
        (test,) = Run(corpus.run).test_sets()
        assert Run(corpus.run).test_text(test).reference.read_text(encoding="utf-8").startswith("Das Haus 10.\n")
        pieces = Run(corpus.run).tokenizer().encode(["\u2581The \u2581house \u25811 2 ."], "source")[0]
        assert Run(corpus.run).tokenizer().word_starts(pieces, "source")[:5] == [True, True, True, False, False]
        signs = "\u2581 \u2581\u2582\u2583"
        corpus.write("train", encoded([(f"the sign {signs}", f"das Zeichen {signs}")] * 9))
        corpus.check()
        assert "train.en, line 1" not in caplog.text
        corpus.write("train", encoded(pairs))
        corpus.check()
        assert (
            "train.en, line 1: a word begins with \u2581, as pieces of sentencepiece do; give plain text" in caplog.text
        )

    def test_text_of_the_user_is_escaped_in_the_page(self, corpus: Corpus) -> None:
        corpus.write("train", encoded(CLEAN))
        shutil.copy(corpus.folder / "train.en", corpus.folder / "a&b<i>.en")
        shutil.copy(corpus.folder / "train.de", corpus.folder / "a&b<i>.de")
        corpus.check(train=("a&b<i>",))
        page = (corpus.run / "data" / "report.html").read_text(encoding="utf-8")
        assert "a&amp;b&lt;i&gt;.en" in page
        assert "<i>" not in page

    def test_histograms_lose_no_length(self) -> None:
        sides = {"source": {str(n): n for n in range(1, 151)}, "target": {"3": 7, "150": 1}}
        found = binned(sides, 150)
        assert list(found["source"]) == list(found["target"])
        assert {side: sum(counts.values()) for side, counts in found.items()} == {"source": 150 * 151 // 2, "target": 8}
        assert len(found["source"]) <= 17
        assert binned({"source": {}, "target": {}}, 150) == {}

    @pytest.mark.parametrize(("last", "label"), [(150, "150 or more"), (256, "240 or more")])
    def test_the_last_bar_is_open_if_it_has_all_longer_lines(self, last: int, label: str) -> None:
        found = binned({"source": {"10": 50, str(last): 50}}, last)["source"]
        assert list(found.items())[-1] == (label, 50)
        assert sum(found.values()) == 100


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(pairs=[("0", "<s>"), ("<unk> a <pad>", "</s>")])
@given(
    pairs=st.lists(
        st.tuples(*[st.text(st.one_of(st.sampled_from("\u2028\u0085\v\f\ufeff\x07&;<b>\u00a0 a"),
                                      st.characters(codec="utf-8", exclude_characters="\n\r")), max_size=8)] * 2),
        max_size=12,
    )
)  # fmt: skip
def test_hostile_lines_keep_their_numbers_and_text(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    corpus = Corpus(tmp_path / "hostile")
    shutil.rmtree(corpus.run, ignore_errors=True)
    corpus.write("train", encoded([*CLEAN, *pairs]))
    # Unsegmented pieces: what is trained on comes back exactly but for runs of blanks, and words that are named like a
    # special symbol, which are unknown ones.
    settings_used = ["cleaning.bom=keep", "cleaning.max_tokens=0", "data.vocab_size=5000", 'data.segment_mark=""']
    report = corpus.prepare(*settings_used)
    kept = [number for number, pair in enumerate(pairs, start=41) if all(side.strip() for side in pair)]
    assert corpus.lines() == [*range(1, 41), *kept]
    separated = [
        number
        for number, pair in enumerate(pairs, start=41)
        if any(set(side) & set("\u2028\u2029\u0085\v\f") for side in pair)
    ]
    assert report["rules"]["line_separator"]["lines"] == separated
    for number in kept:
        words = [normalize(side, ("blanks",)).split(" ") for side in pairs[number - 41]]
        expected = tuple(" ".join("<unk>" if word in SPECIAL_PIECES else word for word in side) for side in words)
        assert (corpus.text_of(number), corpus.text_of(number, "target")) == expected


def test_findings_know_the_corpus_of_a_line() -> None:
    findings = Findings(CleaningConfig(), may_stop=False)
    for name, num_lines in (("empty", 0), ("one", 3), ("none", 0), ("two", 2)):
        findings.begin_corpus(name)
        findings.num_pairs += num_lines
    assert [findings.place(line) for line in range(1, 6)] == [
        ("one", 1),
        ("one", 2),
        ("one", 3),
        ("two", 1),
        ("two", 2),
    ]


@pytest.mark.skipif(not os.environ.get("NMTKIT_MIRROR"), reason="real corpora: set NMTKIT_MIRROR to a mirror folder")
class TestRealCorpora:
    @staticmethod
    def checked(tmp_path: Path, source: Path, target: Path) -> dict[str, Any]:
        corpus = Corpus(tmp_path / "real")
        for path, suffix in ((source, "en"), (target, "de")):
            shutil.copy(path, corpus.folder / f"train.{suffix}")
        return corpus.check().report

    @staticmethod
    def mirror(path: str) -> Path:
        return Path(os.environ["NMTKIT_MIRROR"]) / "raw.githubusercontent.com" / path

    def test_a_line_lost_from_newstest2013_is_found(self, tmp_path: Path) -> None:
        folder = self.mirror("Helsinki-NLP/OPUS-MT-testsets/master/testsets/eng-deu")
        lines = (folder / "newstest2013.deu").read_bytes().split(b"\n")
        for place in (50, 1500, 2700):
            (tmp_path / "shorter").write_bytes(b"\n".join([*lines[:place], *lines[place + 1 :]]))
            report = self.checked(tmp_path, folder / "newstest2013.eng", tmp_path / "shorter")
            assert report["rules"]["line_count"]["count"] == 1
            assert abs(report["rules"]["line_count"]["lines"][0] - (place + 1)) <= 10

    def test_multi30k_has_copies_but_nothing_broken(self, tmp_path: Path) -> None:
        folder = self.mirror("multi30k/dataset/master/data/task1/tok")
        report = self.checked(tmp_path, folder / "train.lc.norm.tok.en", folder / "train.lc.norm.tok.de")
        harmless = {"html_entity", "duplicate_pair", "duplicate_source", "source_equals_target", "length_ratio"}
        assert set(counts(report)) <= harmless
        assert report["pairs"]["read"] == 29_000

    def test_the_no_break_spaces_of_tatoeba_are_no_fault(self, tmp_path: Path) -> None:
        archive = Path(os.environ["NMTKIT_MIRROR"]) / "www.manythings.org" / "anki" / "deu-eng.zip"
        with zipfile.ZipFile(archive) as files:
            text = files.read("deu.txt").decode("utf-8")
        pairs = [(line.split("\t")[0], line.split("\t")[1]) for line in text.split("\n") if line]
        assert sum(any("\u00a0" in side or "\u202f" in side for side in pair) for pair in pairs) > 100
        corpus = Corpus(tmp_path / "real")
        corpus.write("train", encoded(pairs))
        found = corpus.check()
        assert found.refused == {}
        assert set(counts(found.report)) & {"line_separator", "control_character", "one_sided_blank"} == set()
        assert found.report["rules"]["duplicate_source"]["count"] == len(pairs) - len({source for source, _ in pairs})


THREE_LANGUAGES = encoded([
    ("The children are playing in the garden.", "Die Kinder spielen im Garten des Hauses."),
    ("A man sits on a bench.", "Ein Mann sitzt auf einer Bank."),
    ("Paris", "Paris"),
    ("The children are playing in the garden.", "Die Kinder spielen im Garten des Hauses."),
    ("A man sits on a bench.", "Un homme est assis sur un banc dans le parc."),
    ("Paris", "Paris"),
])  # fmt: skip


@pytest.mark.parametrize(("action", "count", "dropped"), [("drop", 1, 1), ("keep", 1, 0), ("off", 0, 0)])
def test_pairs_in_another_language_are_counted_and_left_out_only_if_the_recipe_says_so(
    corpus: Corpus, action: str, count: int, dropped: int
) -> None:
    corpus.write("train", THREE_LANGUAGES)
    report = corpus.prepare(f"cleaning.wrong_language={action}")
    assert report["rules"]["wrong_language"] == {"count": count, "lines": [5] * count, "action": action}
    assert report["left_out"] == dict.fromkeys(["wrong_language"] * dropped, 1)
    assert report["pairs"]["kept"] == 6 - dropped


def test_cleaned_text_depends_on_the_version_of_the_identifier_where_it_is_used(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.write("train", THREE_LANGUAGES)
    found = dict[tuple[str, str], str]()
    for action in ("off", "drop"):
        for version in ("1.0", "2.0"):
            monkeypatch.setattr("nmtkit.data.preparer.package_version", lambda name, version=version: version)
            corpus.run = corpus.folder / f"{action}-{version}"
            corpus.prepare(f"cleaning.wrong_language={action}")
            found[action, version] = read_json(corpus.run / "prepare" / "text" / "stage.json")["fingerprint"]
    assert found["off", "1.0"] == found["off", "2.0"] and found["drop", "1.0"] != found["drop", "2.0"]


def test_the_identifier_is_needed_only_where_it_is_used_and_has_to_know_the_languages(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.write("train", THREE_LANGUAGES)
    drop = "cleaning.wrong_language=drop"
    unknown = r'py3langid does not know the language "nds"; it knows ace, af'
    message_of(lambda: corpus.prepare(drop, languages=("en", "nds")), match=unknown)
    monkeypatch.setattr("nmtkit.text.scripts.find_spec", lambda name: None)
    missing = r"wrong_language needs py3langid, .*; pip install 'nmtkit\[langid\]'"
    message_of(lambda: corpus.prepare(drop), match=missing)
    assert not (corpus.run / "data").exists()
    corpus.prepare("cleaning.wrong_language=off")
