"""`corpora`, `inspect` and `prepare --download-only`: what they print, and that they name what is wrong."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.download import mirror_path
from nmtkit.data.inspection import inspect_pair
from nmtkit.data.prepare import prepare
from nmtkit.run import Run
from tests.cli.outcomes import printed, refusal
from tests.conftest import run_command


class TestCorpora:
    def test_all_are_listed_with_languages_size_and_licence(self) -> None:
        out = printed("corpora")
        (europarl,) = [line for line in out.split("\n") if "wmt14/europarl-v7 " in line]
        assert "en-de en-fr" in europarl
        assert "657.6" in europarl
        assert "builtin/train" in out
        assert "non-commercial research and education only: multi30k/train, " in out

    def test_a_pair_of_languages_chooses_in_either_direction_and_counts_its_own_files(self) -> None:
        forth, back = (
            json.loads(run_command("corpora", "--languages", pair, "--json").out) for pair in ("en-vi", "VI-en")
        )
        assert (
            [entry["name"] for entry in forth]
            == [entry["name"] for entry in back]
            == ["iwslt15/train", "iwslt15/tst2012", "iwslt15/tst2013"]
        )
        assert sum(file["bytes"] for file in forth[0]["files"]) == 13603614 + 18074646
        assert "31.7" in run_command("corpora", "--languages", "en-vi").out

    def test_codes_with_capitals_are_found_in_either_case(self) -> None:
        name = "opus/Tatoeba-v2023-04-12:en-pt_BR"
        for pair in ("en-pt_BR", "pt_br-EN"):
            assert "en-pt_BR" in printed("corpora", name, "--languages", pair)

    def test_one_corpus_is_shown_with_its_files(self) -> None:
        out = run_command("corpora", "wmt14/giga-fren").out
        assert "training-giga-fren.tar" in out
        assert "2,595.1" in out
        assert "commoncrawl" not in out
        described = json.loads(run_command("corpora", "wmt14/giga-fren", "--json").out)[0]
        assert described["texts"]["en-fr"][0]["member"] == "giga-fren.release2.fixed.en.gz"
        assert described["files"][0]["checksum"].startswith("sha256 3ff8319f")

    def test_sacrebleus_sets_are_listed_by_the_names_that_recipes_take(self) -> None:
        names = [entry["name"] for entry in json.loads(run_command("corpora", "--sacrebleu", "--json").out)]
        assert {"sacrebleu:wmt14/full", "sacrebleu:iwslt17"} <= set(names)
        assert run_command("corpora", "sacrebleu:wmt14/full").code == 0

    def test_a_wrong_name_or_pair_is_one_line(self) -> None:
        assert 'the nearest name is "wmt14/europarl-v7"' in refusal("corpora", "wmt14/europarl")
        assert "made up by nmtkit: there are no files" in refusal("corpora", "builtin/train")
        assert "leave out NAME" in refusal("corpora", "multi30k/train", "--sacrebleu", code=2)
        told = refusal("corpora", "--languages", "en-xx")
        assert "no corpus has that pair; there are de-cs, de-en, de-fr, en-cs" in told


def test_download_only_fetches_verifies_and_prepares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    url = "http://www.manythings.org/anki/deu-eng.zip"
    path = tmp_path / "mirror" / mirror_path(url)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no matter what")
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = ["tatoeba/anki"]\n')
    run = tmp_path / "run"
    arguments = ("prepare", recipe, "--download-only", "--mirror", tmp_path / "mirror", "--run-dir", run)
    assert run_command(*arguments, "--check").code == 2
    assert "anki/deu-eng.zip" in printed(*arguments)
    assert not run.exists()
    path.write_bytes(b"changed")
    outcome = run_command(*arguments)
    assert outcome.code == 1 and "deu-eng.zip: has sha256" in outcome.err


@pytest.fixture
def run_of_two_corpora(tmp_path: Path) -> Path:
    """Two training corpora of 30 and 20 lines; line 3 of the second has no target."""
    for name, count in (("one", 30), ("two", 20)):
        source = [f"{name} a{n}  b" for n in range(1, count + 1)]
        target = [f"{line.upper()}" if name == "one" or n != 3 else "" for n, line in enumerate(source, start=1)]
        (tmp_path / f"{name}.en").write_text("".join(f"{line}\n" for line in source), encoding="utf-8")
        (tmp_path / f"{name}.de").write_text("".join(f"{line}\n" for line in target), encoding="utf-8")
    (tmp_path / "mine.toml").write_text(
        '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 50\n'
        'train = [{ source = "one.en", target = "one.de" },\n'
        ' { source = "two.en", target = "two.de", name = "second" }]\n'
        'valid = [{ source = "two.en", target = "two.de" }]\n',
        encoding="utf-8",
    )
    prepare(load_recipe(str(tmp_path / "mine.toml")), tmp_path / "run", workers=1)
    return tmp_path / "run"


class TestInspect:
    def test_a_pair_is_shown_with_its_corpus_line_pieces_and_ids(self, run_of_two_corpora: Path) -> None:
        found = json.loads(run_command("inspect", run_of_two_corpora, "--line", 32, "--json").out)
        assert (found["corpus"], found["line"], found["line_of_all"]) == ("second", 2, 32)
        assert found["source"]["text"] == "two a2  b"
        assert found["source"]["decoded"] == "two a2 b"
        assert found["target"]["decoded"] == "TWO A2 B"
        assert "".join(found["source"]["pieces"]).replace("\u2581", " ").strip() == "two a2 b"
        assert len(found["source"]["pieces"]) == len(found["source"]["ids"])
        assert all(isinstance(index, int) for index in found["target"]["ids"])
        assert found["pair"] == 31  # an index
        assert "pair 32 of the prepared data\n" in run_command("inspect", run_of_two_corpora, "--line", 32).out

    @pytest.mark.parametrize(("is_terminal", "encoding"), [(True, "utf-8"), (False, "iso8859-1")])
    def test_terminals_and_other_encodings_get_escapes(
        self, run_of_two_corpora: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, encoding: str
    ) -> None:
        command = ("inspect", run_of_two_corpora, "--line", 32, "--json")
        whole = run_command(*command).out
        stdout = SimpleNamespace(isatty=lambda: is_terminal, encoding=encoding)
        monkeypatch.setattr("nmtkit.cli.inspect.sys", SimpleNamespace(stdout=stdout))
        shown = run_command(*command).out
        assert shown.isascii() and not whole.isascii() and json.loads(shown) == json.loads(whole)

    def test_the_line_may_be_that_of_one_corpus_or_of_the_validation_data(self, run_of_two_corpora: Path) -> None:
        by_corpus = run_command("inspect", run_of_two_corpora, "--line", 2, "--corpus", "second", "--json").out
        assert by_corpus == run_command("inspect", run_of_two_corpora, "--line", 32, "--json").out
        out = run_command("inspect", run_of_two_corpora, "--line", 4, "--valid").out
        assert "two.en, line 4 (line 4 of all)" in out
        assert "text    two a4  b\n" in out
        assert "  decoded two a4 b\n" in out

    def test_validation_data_that_a_run_lacks_are_named(self, run_of_two_corpora: Path) -> None:
        run = run_of_two_corpora.with_name("no-validation")
        prepare(load_recipe(str(run.parent / "mine.toml"), ["data.valid=[]"]), run, workers=1)
        outcome = run_command("inspect", run, "--valid", "--line", 1)
        assert outcome == (1, "", f"error: {run}: the run has no validation data (data.valid)\n")

    def test_a_pair_that_was_left_out_is_shown_as_text(self, run_of_two_corpora: Path) -> None:
        out = run_command("inspect", run_of_two_corpora, "--line", 33).out
        assert "second, line 3" in out
        assert "left out of the prepared data (one_sided_blank: one side is blank)" in out
        assert "two a3  b" in out
        assert "ids" not in out

    def test_long_lines_are_cut_and_what_other_pairs_decide_is_said(
        self, run_of_two_corpora: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nmtkit.cli.inspect._SHOWN", 5)
        out = run_command("inspect", run_of_two_corpora, "--line", 32).out
        assert "  text    two a... (9 characters; --json shows all)\n" in out
        run = run_of_two_corpora.with_name("held-out")
        limits = ["data.valid=3", "cleaning.max_tokens=30"]
        (run.parent / "one.en").write_text((run.parent / "one.en").read_text().replace("a1 ", "a" + " b" * 31))
        prepare(load_recipe(str(run.parent / "mine.toml"), limits), run, workers=1)
        reasons = {line: inspect_pair(run, line) for line in range(1, 51)}
        held_out = [line for line, pair in reasons.items() if pair.pair is None and pair.rule == ""]
        assert len(held_out) == 3
        assert {pair.rule for pair in reasons.values()} == {None, "", "one_sided_blank", "too_long"}
        out = run_command("inspect", run, "--line", held_out[0]).out
        others = "a copy, held out, or in a validation or test set"
        assert f"left out of the prepared data (because of other pairs: {others})" in out

    def test_bytes_that_a_rule_is_about_are_read_as_prepare_read_them(self, run_of_two_corpora: Path) -> None:
        folder, run = run_of_two_corpora.parent, run_of_two_corpora.with_name("odd")
        path = folder / "one.en"
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"one a5 ", b"one \xfc "))
        rules = ["cleaning.invalid_utf8=drop", "cleaning.bom=drop"]
        prepare(load_recipe(str(folder / "mine.toml"), rules), run, workers=1)
        found = [inspect_pair(run, line) for line in (1, 5, 6)]
        assert [(pair.rule, pair.pair is None) for pair in found] == [
            ("bom", True),
            ("invalid_utf8", True),
            (None, False),
        ]
        assert found[1].source.text == "one \ufffd  b"

    def test_held_out_validation_pairs_have_their_text(self, run_of_two_corpora: Path) -> None:
        run = run_of_two_corpora.with_name("held-out")
        prepare(load_recipe(str(run.parent / "mine.toml"), ["data.valid=4"]), run, workers=1)
        pairs = [inspect_pair(run, line, part="valid") for line in (1, 4)]
        sources, references = Run(run).valid_text.read()
        assert [(pair.source.text, pair.target.text) for pair in pairs] == [
            (sources[line], references[line]) for line in (0, 3)
        ]
        assert [pair.source.decoded for pair in pairs] == [" ".join(sources[line].split()) for line in (0, 3)]

    def test_a_corpus_that_is_gone_or_changed_leaves_what_was_prepared(self, run_of_two_corpora: Path) -> None:
        (run_of_two_corpora.parent / "one.en").write_text("changed\n")
        found = json.loads(run_command("inspect", run_of_two_corpora, "--line", 1, "--json").out)
        assert found["source"]["text"] is None
        assert found["source"]["decoded"] == "one a1 b"

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("--line", 51), "there is no line 51; the data has lines 1 to 50"),
            (("--line", 21, "--corpus", "second"), "there is no line 21; second has lines 1 to 20"),
            (("--line", 1, "--corpus", "third"), "there is no corpus 'third' in this run; it has one.en, second"),
        ],
    )
    def test_a_line_or_corpus_that_is_not_there_is_one_line(
        self, run_of_two_corpora: Path, arguments: tuple[object, ...], expected: str
    ) -> None:
        assert expected in refusal("inspect", run_of_two_corpora, *arguments)
