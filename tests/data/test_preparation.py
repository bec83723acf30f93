"""Preparation: equal input gives equal bytes, every dropped pair is counted, and wrong input leaves nothing behind."""

import gzip
import hashlib
import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nmtkit.config.recipe import load_recipe, stored_recipe
from nmtkit.data.changes import changed_text
from nmtkit.data.encoding import num_trained
from nmtkit.data.prepare import Preparation, prepare
from nmtkit.data.shards import PairData, read_manifest
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, NmtkitError, RecipeError
from nmtkit.files import TEMPORARY_MARK, sha256_of_files
from nmtkit.json_toml import read_json
from nmtkit.run import Run
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SIDES, UNK
from nmtkit.training.session import train
from tests.conftest import message_of

Pair = tuple[str, str]

ENGLISH = ["the", "a", "house", "tree", "dog", "cat", "big", "small", "sees", "likes",
           "old", "new", "red", "man", "woman", "child", "and", "never", "always"]  # fmt: skip
GERMAN = ["das", "ein", "Haus", "Baum", "Hund", "Katze", "groß", "klein", "sieht", "mag",
          "alt", "neu", "rot", "Mann", "Frau", "Kind", "und", "nie", "immer"]  # fmt: skip


def sentence_pairs(count: int, seed: int = 1) -> list[Pair]:
    """Different pairs of made-up sentences."""
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        words = rng.choices(range(len(ENGLISH)), k=rng.randint(4, 9))
        pairs.setdefault(" ".join(ENGLISH[word] for word in words), " ".join(GERMAN[word] for word in words))
    return list(pairs.items())


def joined(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


class Project:
    """A folder with a corpus, a recipe and a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, pairs: list[Pair]) -> None:
        for side, suffix in enumerate(("en", "de")):
            (self.folder / f"{name}.{suffix}").write_bytes(joined([pair[side] for pair in pairs]))

    def entries(self, key: str, *names: str) -> str:
        """The override by which a key of [data] names corpora."""
        pairs = (f'{{source="{self.folder}/{name}.en",target="{self.folder}/{name}.de"}}' for name in names)
        return f"data.{key}=[{','.join(pairs)}]"

    def recipe(self, *overrides: str, suffix: str = "") -> Any:
        path = self.folder / "mine.toml"
        path.write_text(
            '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 90\n'
            f'train = [{{ source = "train.en{suffix}", target = "train.de{suffix}" }}]\n'
            "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 8\nd_ff = 8\nnum_heads = 2\n"
            "[training]\nmax_steps = 1\nvalidate_bleu = false\n",
            encoding="utf-8",
        )
        return load_recipe(str(path), overrides)

    def prepare(self, *overrides: str, suffix: str = "", workers: int | None = 1) -> Preparation:
        return prepare(self.recipe(*overrides, suffix=suffix), self.run, workers=workers)

    def complaint(self, *overrides: str, suffix: str = "") -> str:
        """The message about what cannot be prepared; nothing of it may be left."""
        before = self.run_files()
        message = message_of(lambda: self.prepare(*overrides, suffix=suffix), NmtkitError)
        assert self.run_files() == before
        return message

    def run_files(self) -> dict[str, bytes]:
        """All files of the run but those of finished stages, from which a next preparation goes on."""
        files = sorted(
            path for path in self.run.rglob("*") if path.is_file() and self.run / "prepare" not in path.parents
        )
        return {str(path.relative_to(self.run)): path.read_bytes() for path in files}

    def data_files(self) -> dict[str, bytes]:
        """The files of RUN/data but the manifest."""
        files = {name: content for name, content in self.run_files().items() if name.startswith("data/")}
        assert files.pop("data/manifest.json")
        return files

    def training_pairs(self, pairs: list[Pair]) -> list[Pair]:
        """Which of a corpus' pairs are trained on, by their line numbers."""
        return [pairs[line - 1] for line in PairData(self.run / "data" / "train").lines.tolist()]

    def valid_pairs(self) -> list[Pair]:
        return list(zip(*Run(self.run).valid_text.read(), strict=True))

    def tested_pairs(self) -> list[Pair]:
        return list(zip(*Run(self.run).test_text("test").read(), strict=True))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    project.write("train", sentence_pairs(120))
    return project


def test_test_pairs_that_the_first_training_had_are_counted(project: Project, logged: pytest.LogCaptureFixture) -> None:
    pairs = sentence_pairs(120)
    project.write("seen", [*pairs[5:8], *sentence_pairs(4, seed=2), (pairs[9][0], "ein Hund")])
    project.prepare()
    base, project.run = project.run, project.folder / "tuned"
    project.write("train", sentence_pairs(60, seed=3))
    project.prepare(project.entries("test", "seen"), f'data.tokenizer="{base}"', f'training.init="{base}"')
    assert logged.messages == [
        f"3 pairs of the test set seen: also in the training data of {base}; scores of a model that starts from it are "
        "inflated"
    ]


def test_tags_and_sentences_before_do_not_hide_that_a_pair_was_trained_on(tmp_path: Path) -> None:
    pairs = sentence_pairs(120)
    tagged, context = Project(tmp_path / "tagged"), Project(tmp_path / "context")
    for project in (tagged, context):
        project.write("train", pairs)
    files = f'source="{tagged.folder}/train.en",target="{tagged.folder}/train.de"'
    tagged.prepare(f'data.train=[{{{files},source_prefix="<bt>"}}]')
    context.prepare("data.context=1")
    for project in (tagged, context):
        direction = project.recipe().data.directions[0]
        assert num_trained([*pairs[90:50:-1], *sentence_pairs(30, seed=2)], direction, Run(project.run)) == 40


def test_a_tokenizer_without_bytes_is_not_taken_for_one_that_has_them(project: Project) -> None:
    project.prepare()
    base, project.run = project.run, project.folder / "tuned"
    with pytest.raises(RecipeError, match=r"data\.byte_fallback = True, but the tokenizer of .* has False"):
        project.prepare(f'data.tokenizer="{base}"', "data.byte_fallback=true")


def test_a_size_that_a_given_tokenizer_does_not_have_is_named(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.prepare('data.subwords="bpe"', "data.vocab_size=60", "data.byte_fallback=false")
    base, project.run = project.run, project.folder / "tuned"
    given = (f'data.tokenizer="{base}"', 'data.subwords="bpe"', "data.byte_fallback=false")
    caplog.set_level("INFO")
    project.prepare(*given, "data.vocab_size=60")
    assert "has no effect" not in caplog.text
    project.prepare(*given, "data.vocab_size=70")
    assert f"data.vocab_size = 70 has no effect: the tokenizer of {base} has 60 entries" in caplog.text


def test_a_first_line_that_looks_like_a_header_or_no_text_is_told(
    project: Project, logged: pytest.LogCaptureFixture
) -> None:
    project.write("train", [("ID", "Deutsch"), *sentence_pairs(120)])
    project.write("seen", [("English", "German"), *sentence_pairs(4, seed=2)])
    project.write("numbers", [("1276", "ein Baum"), *sentence_pairs(4, seed=3)])
    project.write("fine", [("1 2", "3 4"), ("5", "fünf"), *sentence_pairs(4, seed=4)])
    project.write("blank", [("1", ""), *sentence_pairs(4, seed=5)])
    project.prepare(project.entries("test", "seen", "numbers", "fine", "blank"))
    told = [message for message in logged.messages if "looks like a header" in message or "has no letters" in message]
    assert [re.sub(r"^\S*/", "", message).partition(", but")[0] for message in told] == [
        "seen.en, line 1: 'English' and 'German' looks like a header",
        "numbers.en, line 1: '1276' has no letters",
        "train.en, line 1: 'ID' and 'Deutsch' looks like a header",
    ]


@pytest.mark.parametrize("context", [0, 1])  # unknown words of the sentence before do not count
def test_pairs_with_unknown_words_are_not_counted_as_trained(project: Project, context: int) -> None:
    pairs = sentence_pairs(120)[:50]
    project.write("seen", pairs)
    project.prepare('data.subwords="none"', "data.vocab_size=25", f"data.context={context}")
    data, tokenizer = Run(project.run).recipe().data, Run(project.run).tokenizer()
    known = sum(
        all(UNK not in tokenizer.encode([line], side)[0] for line, side in zip(pair, SIDES, strict=True))
        for pair in pairs
    )
    assert 0 < known < 50
    assert num_trained(pairs, data.directions[0], Run(project.run)) == known


class TestContent:
    def test_every_pair_comes_back_from_its_ids(self, project: Project) -> None:
        pairs = sentence_pairs(120)
        manifest = project.prepare().manifest
        data, tokenizer = PairData(project.run / "data" / "train"), Run(project.run).tokenizer()
        decoded = [
            (tokenizer.decode(data.ids(0, index).tolist(), "source"), tokenizer.decode(data.ids(1, index).tolist()))
            for index in range(len(data))
        ]
        assert decoded == pairs
        assert data.lines.tolist() == list(range(1, 121))
        assert manifest["pairs"] == {"train": 120}
        tokens = {"source": int(data.source_lengths.sum()) - 120, "target": int(data.target_lengths.sum()) - 120}
        assert manifest["train_tokens"] == tokens

    def test_the_manifest_has_the_sums_of_all_files_and_of_the_sources(self, project: Project) -> None:
        manifest = project.prepare().manifest
        files = sha256_of_files(project.run / "data")
        del files["manifest.json"]
        assert manifest["files"] == files
        assert manifest["tokenizer_sha256"] == Run(project.run).tokenizer().fingerprint()
        (corpus,) = manifest["corpora"]
        sums = [hashlib.sha256((project.folder / name).read_bytes()).hexdigest() for name in ("train.en", "train.de")]
        assert [file["sha256"] for file in corpus["files"]] == sums
        assert json.loads((project.run / "data" / "manifest.json").read_text(encoding="utf-8")) == manifest

    def test_the_recipe_is_stored_with_the_run(self, project: Project) -> None:
        project.prepare("training.seed=5")
        assert stored_recipe(project.run / "recipe.toml", "mine") == project.recipe("training.seed=5")

    def test_lines_are_numbered_through_all_corpora(self, project: Project) -> None:
        one, two = sentence_pairs(100), [("", ""), *sentence_pairs(30, seed=2)]
        project.write("one", one)
        project.write("two", two)
        project.prepare(project.entries("train", "one", "two"))
        assert PairData(project.run / "data" / "train").lines.tolist() == [*range(1, 101), *range(102, 132)]

    def test_test_sets_and_validation_text_are_kept_as_they_came(self, project: Project) -> None:
        text = [("A  tab\tand blanks ", " zwei  Blanks"), ("", ""), ("ﬁ\u2028x", "ß\u0085y")]
        for name in ("valid", "news"):
            project.write(name, text)
        manifest = project.prepare(project.entries("valid", "valid"), project.entries("test", "news")).manifest
        files = project.data_files()
        for name in ("valid", "test/news"):
            assert files[f"data/{name}.source.txt"] == joined([source for source, _ in text])
            assert files[f"data/{name}.reference.txt"] == joined([target for _, target in text])
        assert Run(project.run).test_sets() == ["news"]
        assert manifest["pairs"]["test/news"] == 3
        assert PairData(project.run / "data" / "valid").lines.tolist() == [1, 3]


class TestHostileText:
    def test_characters_that_others_take_for_line_ends_stay_in_their_line(self, project: Project) -> None:
        pairs = sentence_pairs(120)
        strange = "\u2028\u2029\u0085\v\f\x1c\x1d\x1e\r"
        pairs[5] = (f"a{strange}b", f"c{strange}d")
        project.write("train", pairs)
        manifest = project.prepare("data.vocab_size=110").manifest
        assert manifest["pairs"]["train"] == 120
        assert manifest["corpora"][0]["pairs"] == 120
        tokenizer, data = Run(project.run).tokenizer(), PairData(project.run / "data" / "train")
        assert tokenizer.decode(data.ids(0, 5).tolist(), "source") == pairs[5][0]

    def test_carriage_returns_of_crlf_text_are_removed_and_counted(
        self, project: Project, logged: pytest.LogCaptureFixture
    ) -> None:
        logged.set_level("INFO")
        pairs = sentence_pairs(120)
        plain = project.prepare().manifest
        files = project.data_files()
        shutil.rmtree(project.run)
        (project.folder / "train.de").write_bytes(joined([target for _, target in pairs], "\r\n"))
        manifest = project.prepare().manifest
        [message] = [message for message in logged.messages if "CRLF" in message]
        assert message.startswith(f"{project.folder}/train.de: a carriage return was removed at the end of 120 lines")
        assert manifest["corpora"][0]["carriage_returns_removed"] == {"source": 0, "target": 120}
        assert plain["corpora"][0]["carriage_returns_removed"] == {"source": 0, "target": 0}
        assert project.data_files() == files

    def test_a_line_of_100000_characters_is_left_out_and_counted_unless_there_is_no_limit(
        self, project: Project
    ) -> None:
        pairs = sentence_pairs(100)
        pairs.insert(50, ("house " * 16_667, "Haus"))
        project.write("train", pairs)
        for limit in ("cleaning.max_characters=5000", "cleaning.max_characters=0"):
            assert project.prepare(limit).manifest["cleaning"]["too_long"] == 1
            assert project.training_pairs(pairs) == [*pairs[:50], *pairs[51:]]
        project.prepare("cleaning.max_characters=0", "cleaning.max_tokens=0")
        assert PairData(project.run / "data" / "train").source_lengths[50] > 16_667

    def test_uneven_pairs_are_left_out_where_a_ratio_is_set(self, project: Project) -> None:
        project.write("train", [*sentence_pairs(100), ("the house " * 10, "Haus")])
        assert project.prepare().manifest["cleaning"]["length_ratio"] == 0
        assert project.prepare("cleaning.max_ratio=5").manifest["cleaning"]["length_ratio"] == 1

    def test_a_missing_last_line_end_makes_no_difference(self, project: Project) -> None:
        project.prepare()
        files = project.data_files()
        shutil.rmtree(project.run)
        path = project.folder / "train.de"
        path.write_bytes(path.read_bytes()[:-1])
        project.prepare()
        assert project.data_files() == files


class TestWrongInput:
    @pytest.mark.parametrize(("shorter", "longer"), [("train.en", "train.de"), ("train.de", "train.en")])
    def test_sides_of_unequal_length_are_told_with_both_files_and_counts(
        self, project: Project, shorter: str, longer: str
    ) -> None:
        lines = (project.folder / shorter).read_bytes().split(b"\n")
        (project.folder / shorter).write_bytes(b"\n".join(lines[:100]) + b"\n")
        message = project.complaint()
        counts = {shorter: 100, longer: 120}
        assert f"{project.folder / 'train.en'} has {counts['train.en']} lines" in message
        assert f"{project.folder / 'train.de'} has {counts['train.de']};" in message

    @pytest.mark.parametrize("role", ["train", "valid", "test"])
    def test_invalid_utf8_is_told_with_file_and_line(self, project: Project, role: str) -> None:
        project.write("other", sentence_pairs(50))
        path = project.folder / "other.de"
        lines = path.read_bytes().split(b"\n")
        lines[41] = "Müller".encode("latin-1")
        path.write_bytes(b"\n".join(lines))
        assert f"{path}, line 42: invalid UTF-8" in project.complaint(project.entries(role, "other"))
        assert not project.run.exists() or list(project.run.iterdir()) == []

    def test_a_missing_file_is_named(self, project: Project) -> None:
        (project.folder / "train.de").unlink()
        assert f"{project.folder / 'train.de'}: no such file" in project.complaint()

    def test_an_empty_test_set_is_named(self, project: Project) -> None:
        project.write("news", [])
        message = project.complaint(project.entries("test", "news"))
        assert f"{project.folder / 'news.en'}: the test set is empty" in message

    def test_a_corpus_of_which_cleaning_leaves_nothing_is_told_with_the_rules(self, project: Project) -> None:
        assert "too_long: 120" in project.complaint("cleaning.max_characters=3")
        assert "too_long: 120" in project.complaint("cleaning.max_tokens=1")

    def test_compressed_files_give_the_same_data(self, project: Project) -> None:
        project.prepare()
        files = project.data_files()
        shutil.rmtree(project.run)
        for name in ("train.en", "train.de"):
            (project.folder / f"{name}.gz").write_bytes(gzip.compress((project.folder / name).read_bytes()))
        project.prepare(suffix=".gz")
        assert project.data_files() == files

    def test_a_truncated_gzip_file_is_named(self, project: Project) -> None:
        project.write("train", sentence_pairs(2000))
        for name in ("train.en", "train.de"):
            content = gzip.compress((project.folder / name).read_bytes())
            (project.folder / f"{name}.gz").write_bytes(content if name == "train.en" else content[: len(content) // 2])
        message = project.complaint(suffix=".gz")
        assert f"{project.folder / 'train.de.gz'}: the gzip file is cut short" in message

    def test_too_large_a_vocabulary_is_told_before_anything_is_written(self, project: Project) -> None:
        assert "data.vocab_size = 5000" in project.complaint("data.vocab_size=5000")

    def test_old_data_stay_whole_when_the_new_cannot_be_prepared(self, project: Project) -> None:
        project.prepare()
        (project.folder / "train.de").write_bytes(b"\xff\n" * 120)
        assert "line 1: invalid UTF-8" in project.complaint()
        assert len(PairData(project.run / "data" / "train")) == 120


class TestHeldOutPairs:
    @staticmethod
    def with_copies() -> list[Pair]:
        """Each pair three times, and each side of it once more with another translation."""
        pairs = []
        for number, (source, target) in enumerate(sentence_pairs(60)):
            pairs += [(source, target)] * 3 + [(source, f"{target} {number}"), (f"{source} {number}", target)]
        random.Random(3).shuffle(pairs)
        return pairs

    def test_the_asked_numbers_are_held_out_and_no_copy_of_a_side_stays(self, project: Project) -> None:
        pairs = self.with_copies()
        project.write("train", pairs)
        alone = []
        for num_test in (0, 20):
            numbers = {"valid": 25, "test/test": 20} if num_test else {"valid": 25}
            manifest = project.prepare("data.valid=25", *["data.test=20"] * (num_test > 0)).manifest
            valid, kept = project.valid_pairs(), project.training_pairs(pairs)
            test = project.tested_pairs() if num_test else []
            held_out = [*valid, *test]
            assert manifest["pairs"] == {"train": len(kept), **numbers}
            assert Run(project.run).test_sets() == ["test"] * (num_test > 0)
            assert (len(valid), len(test), len(set(held_out))) == (25, num_test, 25 + num_test)
            assert set(held_out) <= set(pairs)
            for side in (0, 1):
                assert {pair[side] for pair in valid}.isdisjoint(pair[side] for pair in (*test, *kept))
                assert {pair[side] for pair in test}.isdisjoint(pair[side] for pair in kept)
            assert manifest["cleaning"]["held_out_copy"] == 300 - len(held_out) - len(kept)
            assert len(PairData(project.run / "data" / "valid")) == 25
            untouched = [
                pair for pair in pairs if not any(pair[side] == held[side] for held in held_out for side in (0, 1))
            ]
            assert Counter(kept) == Counter(untouched)
            alone = alone or valid
            assert valid == alone  # which does not depend on the test set

    def test_no_copy_stays_that_differs_only_in_what_is_normalised(self, project: Project) -> None:
        pairs = sentence_pairs(80)
        copies = [(source.replace(" ", "  "), f"{target} \t") for source, target in pairs]
        project.write("train", [*pairs, *copies])
        project.prepare("data.valid=15")
        seen = [" ".join(source.split()) for source, _ in project.training_pairs([*pairs, *copies])]
        assert {" ".join(source.split()) for source, _ in project.valid_pairs()}.isdisjoint(seen)

    def test_the_choice_depends_neither_on_order_nor_on_copies(self, project: Project) -> None:
        pairs = self.with_copies()
        chosen = []
        for text in (pairs, pairs[::-1], sorted(set(pairs))):
            project.write("train", text)
            project.prepare("data.valid=25")
            chosen.append(sorted(project.valid_pairs()))
        assert chosen[0] == chosen[1] == chosen[2]

    def test_all_different_pairs_but_one_can_be_held_out(self, project: Project) -> None:
        project.write("train", sentence_pairs(120) * 2)
        assert project.prepare("data.valid=60").manifest["pairs"] == {"train": 120, "valid": 60}
        assert "data.valid = 121: the training corpora hold only 120 different pairs" in project.complaint(
            "data.valid=121"
        )
        assert "data.valid = 120: at most 119 different pairs" in project.complaint("data.valid=120")

    def test_no_pair_of_too_many_words_is_held_out(self, project: Project) -> None:
        long = [(f"{source} {'and ' * 15}", target) for source, target in sentence_pairs(100, seed=5)]
        project.write("train", [*long, *sentence_pairs(60)])
        limits = ("cleaning.max_tokens=15", "data.subwords=none")
        manifest = project.prepare("data.valid=20", "data.test=20", *limits).manifest
        assert {*project.valid_pairs(), *project.tested_pairs()} <= set(sentence_pairs(60))
        assert manifest["pairs"] == {"train": 20, "valid": 20, "test/test": 20}
        assert "hold only 60 different pairs" in project.complaint("data.valid=61", *limits)

    def test_subwords_are_learned_without_the_held_out_pairs(self, project: Project) -> None:
        marks = [chr(0x4E00 + number) for number in range(120)]
        marked = [
            (f"{source} {mark}", target) for mark, (source, target) in zip(marks, sentence_pairs(120), strict=True)
        ]
        project.write("train", marked)
        project.prepare("data.valid=20", "data.vocab_size=170")
        tokenizer = Run(project.run).tokenizer()
        unknown = {mark for mark in marks if UNK in tokenizer.encode([mark], "source")[0]}
        assert unknown == {source[-1] for source, _ in project.valid_pairs()}


class TestHeldOutTestSet:
    def test_it_has_no_side_of_a_validation_corpus(self, project: Project) -> None:
        pairs = sentence_pairs(120)
        project.write("valid", [(f"{source} ", "other") for source, _ in pairs[:110]])
        valid = project.entries("valid", "valid")
        project.prepare(valid, "data.test=10")
        assert sorted(project.tested_pairs()) == sorted(pairs[110:])
        assert "only 10 different pairs after cleaning that share no side with a validation pair" in project.complaint(
            valid, "data.test=11"
        )

    def test_it_needs_no_validation_and_comes_from_all_corpora(self, project: Project) -> None:
        project.write("more", sentence_pairs(100, seed=5))
        project.prepare(project.entries("train", "train", "more"), "data.test=60")
        test = set(project.tested_pairs())
        assert len(test & set(sentence_pairs(120))) > 10
        assert len(test & set(sentence_pairs(100, seed=5))) > 10
        assert not (project.run / "data" / "valid").exists()

    def test_a_finished_preparation_is_kept_and_another_number_prepares_anew(self, project: Project) -> None:
        project.prepare("data.valid=15", "data.test=20")
        assert not project.prepare("data.valid=15", "data.test=20").is_new
        assert project.prepare("data.valid=15", "data.test=21").manifest["pairs"]["test/test"] == 21
        (project.run / "checkpoints").mkdir()
        assert "data.test = 22 (was 21)" in project.complaint("data.valid=15", "data.test=22")

    def test_a_preparation_goes_on_from_its_stages_with_the_same_pairs(self, project: Project) -> None:
        project.prepare("data.valid=15", "data.test=20")
        before = project.data_files()
        shutil.rmtree(project.run / "data")
        project.prepare("data.valid=15", "data.test=20")
        assert project.data_files() == before

    def test_too_many_pairs_are_named(self, project: Project) -> None:
        message = project.complaint("data.valid=60", "data.test=61")
        assert "data.test = 61: the training corpora hold only 60 different pairs after cleaning" in message


class TestAgain:
    def test_nothing_is_done_where_nothing_has_changed(self, project: Project) -> None:
        def state() -> dict[Path, tuple[int, bytes]]:
            files = (path for path in project.run.rglob("*") if path.is_file())
            return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

        first = project.prepare("data.valid=10")
        before = state()
        second = project.prepare("data.valid=10")
        assert (first.is_new, second.is_new) == (True, False)
        assert second.manifest == first.manifest
        assert state() == before

    @pytest.mark.parametrize("override", ["data.vocab_size=91", "cleaning.max_tokens=20", "data.normalize=[]"])
    def test_a_changed_setting_prepares_anew(self, project: Project, override: str) -> None:
        project.prepare()
        again = project.prepare(override)
        assert again.is_new
        assert stored_recipe(project.run / "recipe.toml", "mine") == project.recipe(override)
        assert sorted(path.name for path in project.run.iterdir()) == ["data", "prepare", "recipe.toml"]

    def test_changed_text_prepares_anew(self, project: Project) -> None:
        project.prepare()
        project.write("train", sentence_pairs(119))
        again = project.prepare()
        assert again.is_new
        assert again.manifest["pairs"]["train"] == 119

    def test_a_training_setting_prepares_nothing_anew(self, project: Project) -> None:
        project.prepare()
        assert not project.prepare("training.seed=2", "model.d_model=16", "decoding.beam=2").is_new

    @pytest.mark.parametrize("trained", ["checkpoints", "resume"])
    def test_after_training_a_change_is_refused_by_its_key(self, project: Project, trained: str) -> None:
        project.prepare()
        (project.run / trained).mkdir()
        (project.run / trained / "kept").write_text("kept")
        message = project.complaint("data.vocab_size=91", "cleaning.max_ratio=3")
        assert "data.vocab_size = 91 (was 90)" in message
        assert "cleaning.max_ratio = 3.0 (was 0.0)" in message
        assert not project.prepare().is_new

    def test_after_training_changed_text_is_refused(self, project: Project) -> None:
        project.prepare()
        (project.run / "checkpoints").mkdir()
        project.write("train", sentence_pairs(119))
        assert "train.en holds another text than when the run was prepared" in project.complaint()

    def test_what_a_killed_preparation_left_is_removed(self, project: Project) -> None:
        leftover = project.run / f".data{TEMPORARY_MARK}999999999"
        leftover.mkdir(parents=True)
        (leftover / "source.txt").write_text("half")
        project.prepare()
        assert sorted(path.name for path in project.run.iterdir()) == ["data", "prepare", "recipe.toml"]
        leftover = project.run / "prepare" / f".text{TEMPORARY_MARK}999999999"
        leftover.mkdir()
        project.prepare()
        assert not leftover.exists()

    def test_the_stored_recipe_is_written_where_a_kill_came_before_it_or_it_is_damaged(self, project: Project) -> None:
        stored = Run(project.run).recipe_file
        project.prepare()
        old = stored.read_bytes()
        project.prepare("data.vocab_size=91")
        whole = stored.read_bytes()
        for content in (None, old, whole + b"\xff\n"):
            stored.unlink()
            if content is not None:
                stored.write_bytes(content)
            project.prepare("data.vocab_size=91")
            assert stored.read_bytes() == whole
            assert stored_recipe(stored, "mine") == project.recipe("data.vocab_size=91")

    def test_a_run_goes_on_when_its_corpora_have_moved(self, project: Project, tmp_path: Path) -> None:
        project.prepare()
        moved = Project(tmp_path / "moved")
        project.folder.rename(moved.folder.with_name("old"))
        shutil.copytree(moved.folder.with_name("old"), moved.folder, dirs_exist_ok=True)
        assert not moved.prepare().is_new
        assert train(moved.recipe(), moved.run, Workers.start("cpu", "float32", 1)).step == 1


class TestReproducibility:
    def test_equal_input_under_other_paths_gives_equal_bytes_without_any_path(self, tmp_path: Path) -> None:
        projects = [Project(tmp_path / name) for name in ("one", "deep/er/two")]
        for number, project in enumerate(projects, start=1):
            for name in ("train", "news"):
                project.write(name, sentence_pairs(120))
            project.prepare("data.valid=10", project.entries("test", "news"), workers=number)
        files = [project.data_files() for project in projects]
        assert files[0] == files[1]
        assert len(files[0]) == 24
        names = [name for name, content in files[1].items() if b"deep" in content or tmp_path.name.encode() in content]
        assert names == []

    @pytest.mark.parametrize("override", ["data.subwords=unigram", "data.share_vocab=false", "data.subwords=none"])
    def test_the_number_of_workers_changes_no_byte(self, project: Project, override: str) -> None:
        settings = [override, "data.vocab_size=60", 'model.share_embeddings="none"']
        project.prepare(*settings, workers=1)
        files = project.data_files()
        shutil.rmtree(project.run)
        project.prepare(*settings, workers=3)
        assert project.data_files() == files

    def test_the_fingerprint_knows_settings_and_text_but_no_path(self, project: Project, tmp_path: Path) -> None:
        other = Project(tmp_path / "elsewhere")
        other.write("train", sentence_pairs(120))
        same = project.prepare().manifest["fingerprint"]
        assert other.prepare().manifest["fingerprint"] == same
        other.write("train", sentence_pairs(120)[::-1])
        assert other.prepare().manifest["fingerprint"] != same
        assert project.prepare("cleaning.max_tokens=100").manifest["fingerprint"] != same
        shutil.move(project.folder / "train.en", project.folder / "swap")
        shutil.move(project.folder / "train.de", project.folder / "train.en")
        shutil.move(project.folder / "swap", project.folder / "train.de")
        assert project.prepare().manifest["fingerprint"] != same


class TestMissingPreparation:
    def test_the_tokenizer_of_an_unprepared_run_is_refused_with_the_command(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="run `nmtkit prepare` first"):
            Run(tmp_path).tokenizer()

    def test_training_before_preparation_is_refused_with_the_command(self, project: Project) -> None:
        with pytest.raises(DataError, match="run `nmtkit prepare` with this recipe first"):
            train(project.recipe(), project.run, Workers.start("cpu", "float32", 1))

    def test_training_with_other_data_settings_is_refused_by_key(self, project: Project) -> None:
        project.prepare()
        with pytest.raises(NmtkitError, match=r"data\.vocab_size = 91 \(was 90\)"):
            train(project.recipe("data.vocab_size=91"), project.run, Workers.start("cpu", "float32", 1))


def test_the_built_in_corpora_have_no_files_that_could_change(tmp_path: Path) -> None:
    recipe = load_recipe("quickstart", ["data.train=['builtin/valid']", "data.vocab_size=300"])
    prepare(recipe, tmp_path / "run")
    manifest = read_json(tmp_path / "run" / "data" / "manifest.json")
    assert changed_text(recipe.data, manifest) == []
    manifest["corpora"].pop()
    with pytest.raises(DataError, match="prepare the run again"):
        changed_text(recipe.data, manifest)


@pytest.mark.parametrize("action", ["drop", "error"])
def test_a_line_of_which_the_subword_model_leaves_nothing_is_no_pair(
    project: Project, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    pairs = sentence_pairs(120)
    project.write("train", [*pairs[:5], ("\u200b", "x"), *pairs[5:]])
    encode = Tokenizer.encode

    def without_zero_width(self: Tokenizer, lines: list[str], *arguments: Any, **options: Any) -> list[list[int]]:
        return encode(self, [line.strip("\u200b") for line in lines], *arguments, **options)

    monkeypatch.setattr(Tokenizer, "encode", without_zero_width)
    project.prepare(f"cleaning.one_sided_blank={action}")
    assert PairData(project.run / "data" / "train").lines.tolist() == [*range(1, 6), *range(7, 122)]
    assert read_manifest(project.run / "data")["cleaning"]["one_sided_blank"] == 1
