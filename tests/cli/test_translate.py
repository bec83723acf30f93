"""`nmtkit translate`: one line out for each line in, whatever the text, and never half a file."""

import gzip
import json
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.cli.streams import write_stdout_as_text
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.decoding import translator as translator_module
from nmtkit.decoding.file_translation import TranslationJob, Written
from nmtkit.decoding.parts import Parts
from nmtkit.decoding.request import Sampling, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError
from nmtkit.evaluation.metrics import sentence_utility
from nmtkit.files import TEMPORARY_MARK
from nmtkit.json_toml import read_json, read_json_lines
from nmtkit.run import Run
from nmtkit.text.terms import Glossary
from tests.cli.outcomes import fault_of
from tests.conftest import Streamed, run_command, run_with_streams, train_run
from tests.export.tiny_models import WORDS, sentences
from tests.forked import Forked, piped, run_forked, set_window_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is trained a little: its model has learned some words and is sure of nothing."""
    folder = tmp_path_factory.mktemp("model")
    english = sentences(400, seed=1)
    german = [" ".join(WORDS[word] for word in line.split()) for line in english]
    for name, lines in (("train.en", english), ("train.de", german)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "mine.toml").write_text(
        '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 70\n'
        'train = [{ source = "train.en", target = "train.de" }]\n'
        "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\nnum_heads = 2\ndropout = 0.0\n"
        'norm = "pre"\n[training]\nprecision = "float32"\n'
        "tokens_per_update = 1000\nmax_steps = 80\ncheckpoint_every_steps = 80\n"
        'keep_last = 1\nschedule = "constant"\npeak_learning_rate = 0.006\nwarmup_steps = 10\n'
        "[decoding]\nalpha = 1.0\nmax_length_offset = 10\naverage_last = 1\n",
        encoding="utf-8",
    )
    train_run(folder / "mine.toml", folder / "run")
    shutil.copytree(Run(folder / "run").checkpoint(80), folder / "run" / "averaged")
    return folder / "run"


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    """What the library makes of `sentences(40, seed=2)`."""
    expected = Translator.load([model]).translate(sentences(40, seed=2))
    assert len(set(expected)) > 10
    return expected


Command = Callable[..., Streamed]


@pytest.fixture
def translate(model: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `nmtkit translate` in this process."""
    monkeypatch.setattr("nmtkit.decoding.file_translation.GATHERING_SECONDS", 300.0)  # the end of stdin ends it
    return partial(run_with_streams, "translate", "--threads", "1", model)


Asked = tuple[TranslationRequest, DecodingConfig]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What is asked of the library, and the settings of its search, each time."""
    noted: list[Asked] = []
    translations = Translator.translations

    def noting(self: Translator, lines: Any, request: TranslationRequest, **options: Any) -> Any:
        noted.append((request, self.decoding))
        return translations(self, lines, request, **options)

    monkeypatch.setattr(Translator, "translations", noting)
    return noted


def as_bytes(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def statuses(path: Path) -> list[list[str]]:
    """What a file of --status says of each line."""
    return [line["status"] for line in read_json_lines(path)]


class TestStreams:
    def test_segments_of_markup_and_texts_in_archives_are_read(
        self, translate: Command, expected: list[str], tmp_path: Path
    ) -> None:
        segments = "".join(f"<seg>{line}</seg>\n" for line in sentences(40, seed=2))
        (tmp_path / "in.sgm").write_text(f"<doc>\n{segments}</doc>\n")
        with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
            archive.write(tmp_path / "in.sgm", "a/b.sgm")
        for name in ("in.sgm", "in.zip:a/b.sgm"):
            for output in ([], ["--output", tmp_path / "out"]):
                done = translate("--input", tmp_path / name, *output)
                assert done.code == 0, done.err
                assert (done.lines or (tmp_path / "out").read_text().splitlines()) == expected
            (tmp_path / "out").unlink()
        assert "is an archive; name a text in it" in translate("--input", tmp_path / "in.zip").err

    def test_files_and_compressed_files_give_the_same_translations(
        self, translate: Command, tmp_path: Path, expected: list[str]
    ) -> None:
        text = as_bytes(sentences(40, seed=2))
        (tmp_path / "in.txt").write_bytes(text)
        (tmp_path / "in.txt.gz").write_bytes(gzip.compress(text))
        for name in ("in.txt", "in.txt.gz"):
            outcome = translate("--input", tmp_path / name, "--output", tmp_path / "out.txt")
            assert (outcome.code, outcome.out) == (0, b"")
            assert (tmp_path / "out.txt").read_bytes() == as_bytes(expected)
        translate("--input", tmp_path / "in.txt", "--output", tmp_path / "new" / "folder" / "out.gz")
        assert gzip.decompress((tmp_path / "new" / "folder" / "out.gz").read_bytes()) == as_bytes(expected)

    def test_a_closed_stdout_is_told_in_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", None)
        with pytest.raises(DataError, match=r"^stdout is closed; give a file with --output$"):
            write_stdout_as_text()

    def test_no_lines_in_give_no_lines_out(self, translate: Command, tmp_path: Path) -> None:
        assert translate(stdin=b"") == Streamed(0, b"", "")
        assert translate("--output", tmp_path / "out.txt").code == 0
        assert (tmp_path / "out.txt").read_bytes() == b""

    def test_more_lines_than_are_taken_at_once_come_out_in_order(
        self, translate: Command, expected: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nmtkit.decoding.file_translation.WINDOW_LINES", 7)
        assert translate(stdin=as_bytes(sentences(40, seed=2))).lines == expected

    def test_a_missing_input_is_told_and_no_output_is_made(self, translate: Command, tmp_path: Path) -> None:
        outcome = translate("--input", tmp_path / "none.txt", "--output", tmp_path / "out.txt")
        assert fault_of(outcome) == f"{tmp_path / 'none.txt'}: no such file"
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("to_file", [True, False])
    def test_a_text_that_is_changed_while_it_is_read_is_an_error_unless_it_grows(
        self, translate: Command, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_file: bool
    ) -> None:
        monkeypatch.setattr("nmtkit.decoding.file_translation.WINDOW_LINES", 1)
        text, output = as_bytes(sentences(40, seed=2)), tmp_path / "out.txt"
        source, once = tmp_path / "in.txt", TranslationJob.translate

        def outcome(change: Callable[[], object]) -> Streamed:
            source.write_bytes(text)

            def changing(self: TranslationJob, *arguments: Any) -> Written:
                change()
                return once(self, *arguments)

            monkeypatch.setattr(TranslationJob, "translate", changing)
            return translate("--input", source, *(["--output", output] if to_file else []), "--quiet")

        output.write_text("old\n")
        for changed in (text[:100], text[:-2] + b"!\n"):
            ended = outcome(partial(source.write_bytes, changed))
            assert (ended.code, output.read_text()) == (1, "old\n")
            assert ended.err == f"error: {source}: was changed while it was read; run the same command again\n"
        assert not (tmp_path / "out.txt.parts" / "manifest.json").exists()
        grown = outcome(partial(source.write_bytes, text + text[:40]))
        assert grown.code == 0, grown.err
        assert not to_file or "has grown meanwhile; only its first 40 lines are translated" in grown.err
        assert (output.read_text().splitlines() if to_file else grown.lines[:40]) == expected
        moved = outcome(partial(source.unlink, missing_ok=True))
        assert moved.code == (1 if to_file else 0)
        assert not to_file or len([*(tmp_path / "out.txt.parts").glob("*.output")]) == 40

    def test_a_truncated_input_leaves_the_old_output(self, translate: Command, tmp_path: Path) -> None:
        content = gzip.compress(as_bytes(sentences(40, seed=2)))
        (tmp_path / "in.gz").write_bytes(content[:-20])
        (tmp_path / "out.txt").write_text("old\n")
        outcome = translate("--input", tmp_path / "in.gz", "--output", tmp_path / "out.txt", "--quiet")
        assert str(tmp_path / "in.gz") in fault_of(outcome)
        assert (tmp_path / "out.txt").read_text() == "old\n"
        assert len(list(tmp_path.iterdir())) == 2

    def test_what_a_killed_translation_left_is_removed_by_the_next(self, translate: Command, tmp_path: Path) -> None:
        (tmp_path / f".out.txt{TEMPORARY_MARK}999999999").write_text("half")
        (tmp_path / f".other.txt{TEMPORARY_MARK}999999999").write_text("of another file")
        assert translate("--output", tmp_path / "out.txt", stdin=b"the cat\n").code == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == [f".other.txt{TEMPORARY_MARK}999999999", "out.txt"]


class TestHostileText:
    def test_an_empty_line_has_an_empty_translation(self, translate: Command) -> None:
        lines = translate(stdin="\nthe cat\n \t \n\u00a0\n\u2028\na dog\n\n".encode()).lines
        assert [bool(line) for line in lines] == [False, True, False, False, False, True, False]

    def test_what_looks_like_the_end_of_a_line_is_none(self, translate: Command) -> None:
        characters = "\u2028\u2029\u0085\v\f\r\x1c\x1e\0"
        text = "".join(f"the cat{character}sees a dog\n{character}the house\n" for character in characters)
        assert len(translate(stdin=text.encode()).lines) == 2 * len(characters)

    @pytest.mark.parametrize("from_file", [True, False])
    def test_invalid_utf8_is_replaced_and_told_with_its_line(
        self, translate: Command, tmp_path: Path, from_file: bool
    ) -> None:
        text = b"the cat\nthe d\xffg\na house\n\xc3\n"
        (tmp_path / "in.txt").write_bytes(text)
        outcome = translate("--input", tmp_path / "in.txt") if from_file else translate(stdin=text)
        assert outcome.code == 0
        assert len(outcome.lines) == 4
        (warning,) = [line for line in outcome.err.split("\n") if "UTF-8" in line]
        assert warning.startswith("warning: ")
        assert warning.endswith("2, 4")
        assert (str(tmp_path / "in.txt") if from_file else "stdin") in warning

    def test_characters_that_training_never_saw_stop_nothing(self, translate: Command) -> None:
        assert len(translate(stdin="日本語 🙂 \ufeff\ue000\n\U0010ffff\n".encode()).lines) == 2

    def test_very_long_lines_with_blanks_and_without_have_one_translation_each(self, translate: Command) -> None:
        rng = random.Random(3)
        long = " ".join(rng.choices(list(WORDS), k=30_000))[:100_000]
        text = ["the cat", long, "ä" * 20_000, "the cat"]
        options = ["--beam", 1, "--batch-size", 100, "--max-source-tokens", 100]
        lines = translate(*options, stdin=as_bytes(text)).lines
        assert len(lines) == 4
        assert lines[0] == lines[3]
        assert len(lines[1]) > 200


class TestOptions:
    @pytest.mark.parametrize(
        "settings",
        [
            {"beam": 1, "alpha": 4.0, "max_length": 4, "min_length": 3, "no_repeat_ngram": 1},
            {"alpha": 0.0, "length_penalty": "length", "coverage_penalty": 2.0, "max_length_ratio": 0.2,
             "max_length_offset": 0},
            {"finished": "beside", "length_penalty": "none"},
        ],
    )  # fmt: skip
    def test_an_option_of_the_search_is_the_setting_of_the_recipe(
        self, translate: Command, model: Path, asked: list[Asked], settings: dict[str, object]
    ) -> None:
        default = Translator.load([model]).decoding
        options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        assert translate(*options, stdin=b"the cat\n").code == 0
        [(_, decoding)] = asked
        assert decoding == default.model_copy(update=settings)
        assert not settings.items() & default.model_dump().items()

    @pytest.mark.parametrize(
        ("options", "largest"), [(["--batch-size", "1"], 1), (["--batch-size", "7"], 7), (["--batch-tokens", "60"], 11)]
    )
    def test_the_batch_size_changes_no_translation(
        self, translate: Command, expected: list[str], monkeypatch: pytest.MonkeyPatch, options: list[str], largest: int
    ) -> None:
        sizes = []
        search = translator_module.beam_search

        def record(stepper: Any, max_lengths: Any, **settings: Any) -> Any:
            sizes.append(len(max_lengths))
            return search(stepper, max_lengths, **settings)

        monkeypatch.setattr(translator_module, "beam_search", record)
        text = as_bytes(sentences(40, seed=2)[:12])
        assert translate(*options, stdin=text).lines == expected[:12]
        assert sum(sizes) == 12
        assert max(sizes) <= largest
        sizes.clear()
        translate(stdin=text)
        assert sizes == [12]

    @pytest.mark.parametrize(
        ("options", "small", "cores", "threads"),
        [([], 256, 3, 3), (["--batch-size", "1"], 256, 3, 2), (["--batch-size", "1"], 256, 1, 1),
         (["--batch-size", "2"], 256, 3, 3), (["--batch-size", "1"], 4, 3, 3),
         (["--batch-size", "1", "--threads", "3"], 256, 3, 3)],
    )  # fmt: skip
    def test_a_small_model_takes_at_most_two_threads_for_one_sentence_at_a_time(
        self, model: Path, options: list[str], small: int, cores: int, threads: int, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, restored_process: None,
    ) -> None:  # fmt: skip
        (tmp_path / "in").write_text("the cat\n", encoding="utf-8")
        monkeypatch.setattr("nmtkit.distributed.cpu.threads_each", lambda processes: cores)
        monkeypatch.setattr("nmtkit.decoding.translator._SMALL", small)
        files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
        assert run_command("translate", model, *files, *options, restores=False).code == 0
        assert torch.get_num_threads() == threads
        assert (tmp_path / "out").read_text(encoding="utf-8").count("\n") == 1


class TestOutput:
    def test_an_n_best_list_begins_with_the_best_of_each_line(self, translate: Command, expected: list[str]) -> None:
        lines = translate("--n-best", "3", stdin=as_bytes(sentences(40, seed=2))).lines
        rows = [line.split(" ||| ") for line in lines]
        assert [int(row[0]) for row in rows] == [number for number in range(1, 41) for _ in range(3)]
        assert [row[1] for row in rows[::3]] == expected
        scores = [float(row[3]) for row in rows]
        assert all(scores[place] >= scores[place + 1] for place in range(0, 120, 3))
        assert all(row[2].startswith("log_prob=-") for row in rows)

    def test_json_holds_text_scores_tokens_and_alignment(self, translate: Command, expected: list[str]) -> None:
        text = sentences(40, seed=2)
        outcome = translate("--json", "--n-best", "2", "--alignment", stdin=as_bytes([*text, ""]))
        objects = [json.loads(line) for line in outcome.lines]
        assert [one["source"] for one in objects] == [*text, ""]
        assert [one["hypotheses"][0]["text"] for one in objects] == [*expected, ""]
        assert objects[-1]["hypotheses"][0]["alignment"] == objects[-1]["source_tokens"] == []
        for one in objects[:-1]:
            assert "".join(one["source_tokens"]).replace("\u2581", " ").strip() == one["source"]
            assert len(one["hypotheses"]) == 2
            for hypothesis in one["hypotheses"]:
                assert sum(hypothesis["token_log_probs"]) == pytest.approx(hypothesis["log_prob"])
                assert len(hypothesis["token_log_probs"]) == len(hypothesis["tokens"]) + 1
                assert [pair[0] for pair in hypothesis["alignment"]] == list(range(len(hypothesis["tokens"])))
        assert "alignment" not in json.loads(translate("--json", stdin=b"the cat\n").lines[0])["hypotheses"][0]

    def test_another_precision_scores_otherwise(self, translate: Command) -> None:
        text = as_bytes(sentences(10, seed=2))
        exact, rounded = (
            [json.loads(line)["hypotheses"][0]["log_prob"] for line in translate("--json", *options, stdin=text).lines]
            for options in ([], ["--precision", "bf16"])
        )
        assert rounded != exact
        assert rounded == pytest.approx(exact, rel=0.1)

    def test_a_precision_that_cannot_be_is_refused_in_one_line(self, translate: Command) -> None:
        outcome = translate("--precision", "fp16", "--device", "cpu", stdin=b"the cat\n")
        assert fault_of(outcome) == "precision fp16 is for GPUs; choose bf16 or float32 on a CPU"

    @pytest.mark.parametrize("to_file", [True, False])
    def test_the_status_of_every_line_is_told(self, translate: Command, tmp_path: Path, to_file: bool) -> None:
        text = b"the cat\n\nthe d\xffg\n" + b"the cat sees a dog and " * 9 + b"\n"
        (tmp_path / "in.txt").write_bytes(text)
        options = ["--status", tmp_path / "status", "--max-source-tokens", "30", "--max-length-offset", "100"]
        where = ["--output", tmp_path / "out.txt"] if to_file else []
        assert translate("--input", tmp_path / "in.txt", *where, *options).code == 0
        assert [one["line"] for one in read_json_lines(tmp_path / "status")] == [1, 2, 3, 4]
        first, second, third, fourth = statuses(tmp_path / "status")
        assert not {"empty", "invalid_utf8", "split"} & set(first)
        assert second == ["empty"] and "invalid_utf8" in third and "split" in fourth

    def test_a_translation_that_the_maximum_length_ends_is_told(self, translate: Command, tmp_path: Path) -> None:
        translate("--max-length", "2", "--status", tmp_path / "status", stdin=b"the cat sees a dog and a house\n")
        assert "length_limit" in statuses(tmp_path / "status")[0]

    @pytest.mark.parametrize("from_file", [True, False])
    def test_strict_refuses_invalid_utf8(self, translate: Command, tmp_path: Path, from_file: bool) -> None:
        (tmp_path / "in.txt").write_bytes(b"the cat\nthe d\xffg\n")
        where = ["--input", tmp_path / "in.txt"] if from_file else []
        stdin = b"" if from_file else b"the cat\nthe d\xffg\n"
        outcome = translate("--strict", *where, "--output", tmp_path / "out.txt", stdin=stdin)
        assert "line 2: invalid UTF-8" in fault_of(outcome)
        assert not (tmp_path / "out.txt").exists()


class TestWishes:
    def test_forbidden_required_and_first_words(self, translate: Command, tmp_path: Path, expected: list[str]) -> None:
        text = sentences(40, seed=2)
        word = max(WORDS.values(), key=lambda word: sum(word in line.split() for line in expected))
        forbidden = translate("--forbid", word, stdin=as_bytes(text)).lines
        assert sum(word in line.split() for line in expected) > 5
        assert sum(word in line.split() for line in forbidden) < sum(word in line.split() for line in expected) / 2
        (tmp_path / "required").write_text("".join(["Häuser\trote\n", "\n"] * 20))
        held = translate("--require", tmp_path / "required", stdin=as_bytes(text)).lines
        assert all("Häuser" in line and "rote" in line for line in held[::2])
        assert held[1::2] == expected[1::2]
        with zipfile.ZipFile(tmp_path / "texts.zip", "w") as texts:
            texts.writestr("prefix", "neue Hündin\n" * 40)
        begun = translate("--prefix", tmp_path / "texts.zip:prefix", stdin=as_bytes(text)).lines
        assert all(line.startswith("neue Hündin") for line in begun)

    @pytest.mark.parametrize("option", ["--require", "--prefix"])
    @pytest.mark.parametrize("from_file", [True, False])
    def test_wishes_for_another_number_of_lines_are_refused(
        self, translate: Command, tmp_path: Path, option: str, from_file: bool
    ) -> None:
        (tmp_path / "wishes").write_text("neue\nalte\n")
        (tmp_path / "in.txt").write_text("the cat\n")
        where = ["--input", tmp_path / "in.txt"] if from_file else []
        outcome = translate(
            option, tmp_path / "wishes", "--output", tmp_path / "out", *where, stdin=b"" if from_file else b"the cat\n"
        )
        told = f"{tmp_path}/wishes ({option}) has 2 lines and the text 1; the numbers must be equal"
        assert fault_of(outcome) == told
        assert not (tmp_path / "out").exists()

    def test_impossible_wishes_are_told_with_file_and_line_before_anything_is_done(
        self, translate: Command, tmp_path: Path
    ) -> None:
        (tmp_path / "in.txt").write_text("the cat\na dog\n")
        (tmp_path / "wishes").write_text("neue\n\u2603\n")
        (tmp_path / "short").write_text("neue\n")
        where = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out"]
        for options, message in (
            (["--prefix", tmp_path / "wishes"], f"{tmp_path}/wishes, line 2: the prefix "),
            (["--require", tmp_path / "wishes"], f"{tmp_path}/wishes, line 2: the required phrase "),
            (["--require", tmp_path / "wishes", "--mbr", 4], "sampling does not support required phrases"),
            (["--prefix", tmp_path / "wishes", "--forbid", "neue"], f"{tmp_path}/wishes, line 1: the prefix 'neue'"),
            (["--prefix", tmp_path / "short", "--require", tmp_path / "wishes"], f"{tmp_path}/wishes (--require) has"),
            (["--n-best", 9], "9 translations per line need a beam that large"),
            (["--forbid", "\udcff"], "the forbidden phrase '\\udcff' is not valid UTF-8"),
        ):  # fmt: skip
            for arguments in (where, []):
                assert fault_of(translate(*arguments, *options, stdin=b"")).startswith(message)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "short", "wishes"]

    def test_lines_of_a_pipe_beyond_the_wishes_are_not_translated_without_them(
        self, translate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nmtkit.decoding.file_translation.WINDOW_LINES", 2)
        (tmp_path / "prefix").write_text("neue\n" * 3)
        outcome = translate("--prefix", tmp_path / "prefix", stdin=b"the cat\n" * 9)
        told = f"error: {tmp_path}/prefix (--prefix) has 3 lines and the text more; the numbers must be equal\n"
        assert (outcome.code, len(outcome.lines), outcome.err) == (1, 2, told)

    def test_a_translation_without_what_was_asked_for_is_told(self, translate: Command, tmp_path: Path) -> None:
        (tmp_path / "required").write_text("neue neue\n\n")
        options = ["--require", tmp_path / "required", "--no-repeat-ngram", 1, "--status", tmp_path / "status"]
        outcome = translate(*options, stdin=b"the cat\nthe dog\n")
        assert outcome.code == 0
        assert "a required prefix, phrase, term or span is missing in line 1; the first: 'neue neue'\n" in outcome.err
        assert ["unmet" in status for status in statuses(tmp_path / "status")] == [True, False]

    @pytest.mark.parametrize("option", ["--require", "--prefix"])
    def test_an_empty_line_lacks_what_is_asked_of_it(self, translate: Command, tmp_path: Path, option: str) -> None:
        (tmp_path / "wishes").write_text("neue\n\nneue\n")
        outcome = translate(option, tmp_path / "wishes", "--status", tmp_path / "status", stdin=b"\n\nthe cat\n")
        assert outcome.lines[:2] == ["", ""]
        assert outcome.err == ""  # no other wish forbids it
        assert statuses(tmp_path / "status")[:2] == [["empty", "unmet"], ["empty"]]

    def test_options_of_samples_are_asked_of_the_library(self, translate: Command, asked: list[Asked]) -> None:
        text = as_bytes(sentences(40, seed=2))
        first = translate("--sample", "--seed", "3", stdin=text).lines
        assert first == translate("--sample", "--seed", "3", "--batch-size", "3", stdin=text).lines
        assert first != translate("--sample", "--seed", "4", stdin=text).lines
        asked.clear()
        options = ("--temperature", "0.5", "--top-k", "3", "--top-p", "0.25", "--seed", "7", "--n-best", "6")
        several = translate("--sample", *options, stdin=b"the cat sees a dog\n").lines
        [(request, _)] = asked
        assert (request.sampling, request.n_best) == (Sampling(temperature=0.5, top_k=3, top_p=0.25, seed=7), 6)
        assert len(several) == 6

    def test_minimum_risk_takes_the_sample_most_like_the_others(self, translate: Command) -> None:
        text = as_bytes(sentences(5, seed=2))
        samples = [line.split(" ||| ")[1] for line in translate("--sample", "--n-best", "8", stdin=text).lines]
        for metric in ("chrf2", "sacrebleu"):
            utility = sentence_utility(metric)
            expected = []
            for start in range(0, 40, 8):
                mine = samples[start : start + 8]
                expected.append(max(mine, key=lambda one: sum(utility(one, other) for other in mine)))
            assert translate("--mbr", "8", "--mbr-metric", metric, stdin=text).lines == expected
        several = [line.split(" ||| ") for line in translate("--mbr", "8", "--n-best", "8", stdin=text).lines]
        for number in range(1, 6):
            drawn = [text for line, text, *_ in several if line == str(number)]
            assert sorted(drawn) == sorted(set(samples[8 * (number - 1) : 8 * number]))


class TestSentencesAndTerms:
    LINES = ("the cat. the old dog. a house", "the old dog", "", "1 red house")

    def test_each_sentence_of_a_line_is_translated_unless_the_line_is_to_stay_whole(
        self, translate: Command, model: Path, tmp_path: Path
    ) -> None:
        one_by_one = translate(stdin=as_bytes(["the cat.", "the old dog.", "a house"])).lines
        found = {
            split: translate(*options, stdin=as_bytes(list(self.LINES))).lines
            for split, options in (
                ("default", []),
                *((name, ["--split", name]) for name in ("auto", "always", "never")),
            )
        }
        assert found["default"] == found["auto"] == found["always"]
        assert found["auto"][0] == " ".join(one_by_one)
        assert found["never"][0] != found["auto"][0]
        assert found["never"][1:] == found["auto"][1:]
        (tmp_path / "in.txt").write_bytes(as_bytes(list(self.LINES)))
        status, output = tmp_path / "status", tmp_path / "out.txt"
        assert translate("--input", tmp_path / "in.txt", "--output", output, "--status", status).code == 0
        assert output.read_bytes() == as_bytes(found["auto"])
        assert "split" in statuses(status)[0]

    def test_the_test_set_of_a_run_is_translated_line_by_line(self, translate: Command, tmp_path: Path) -> None:
        text = as_bytes(list(self.LINES))
        for folder in ("data/test", "translations"):
            (tmp_path / "run" / folder).mkdir(parents=True)
        source, output = tmp_path / "run/data/test/mine.source.txt", tmp_path / "run/translations/mine.txt"
        source.write_bytes(text)
        for options, split in (([], "never"), (["--split", "auto"], "auto")):
            assert translate("--input", source, "--output", output, *options).code == 0
            assert output.read_bytes() == as_bytes(translate("--split", split, stdin=text).lines)
            record = read_json(tmp_path / "run/translations/manifest.json")["mine"]
            assert record["options"]["asked"]["split"] == split

    def test_terms_and_spans_are_in_the_translation_or_named(self, translate: Command, tmp_path: Path) -> None:
        terms = tmp_path / "terms.tsv"
        terms.write_text("# English\tGerman\nold dog\tH\u00e4user\ncat\trote\n", encoding="utf-8")
        text, status = as_bytes(list(self.LINES)), tmp_path / "status"
        options = ["--glossary", terms, "--keep", "numbers,urls", "--status", status]
        outcome = translate(*options, "--json", stdin=text)
        found = [json.loads(line)["hypotheses"][0] for line in outcome.lines]
        assert all(term in found[0]["text"] for term in ("rote", "H\u00e4user"))
        assert "H\u00e4user" in found[1]["text"]
        assert [one.get("missing") for one in found] == [None, None, None, ["1"]]  # no digit is in the vocabulary
        assert ["unmet" in line for line in statuses(status)] == [False, False, False, True]
        assert "a required prefix, phrase, term or span is missing in line 4; the first: '1'\n" in outcome.err
        (tmp_path / "required").write_text("\nneue\n\n\n")
        both = translate(*options, "--require", tmp_path / "required", stdin=text).lines
        assert all(word in both[1] for word in ("neue", "H\u00e4user"))
        assert all(term in both[0] for term in ("rote", "H\u00e4user"))

    def test_split_glossary_and_spans_decide_whether_finished_windows_are_kept(self, model: Path) -> None:
        translator = Translator.load([model])
        requests = [
            TranslationRequest(),
            TranslationRequest(split="never"),
            TranslationRequest(keep=("urls",)),
            TranslationRequest(glossary=Glossary([("cat", "rote")])),
            TranslationRequest(glossary=Glossary([("cat", "neue")])),
        ]
        described = [json.dumps(TranslationJob(translator, request).description()) for request in requests]
        assert len(set(described)) == len(requests)
        again = TranslationRequest(glossary=Glossary([("cat", "neue")]))
        assert json.dumps(TranslationJob(translator, again).description()) == described[-1]

    def test_wrong_glossaries_and_kinds_are_one_line(self, translate: Command, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_text("the cat\n")
        terms = tmp_path / "terms"
        for content, options, code, message in (
            (b"cat rote\n", [], 1, f"{terms}, line 1: has 0 tabs"),
            (b"cat\trote\n\tneue\n", [], 1, f"{terms}, line 2: the term is empty"),
            (b"cat\trote\ncat\trote\n", [], 1, f"{terms}, line 2, term 'cat': it has this translation in line 1"),
            (b"#\ncat\t\xe2\x98\x83\n", [], 1, f"{terms}, line 2, term 'cat': the translation '\u2603' has char"),
            (b"cat\tr\xffte\n", [], 1, f"{terms}, line 1: invalid UTF-8"),
            (b"cat\trote\n", ["--forbid", "rote"], 1, f"{terms}, line 1, term 'cat': the translation 'rote' cont"),
            (b"cat\trote\n", ["--sample"], 1, "sampling does not support required phrases, terms and spans"),
            (b"", ["--keep", "urls,names"], 2, "'names' is not one of tags, urls, emails, numbers"),
            (b"", ["--split", "always", "--require", tmp_path / "in.txt"], 1, 'split = "always": prefixes and'),
        ):  # fmt: skip
            terms.write_bytes(content)
            where = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out"]
            assert message in fault_of(translate("--glossary", terms, *options, *where), code)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "terms"]


def test_a_run_without_an_average_is_translated_with_by_a_checkpoint_that_is_named(
    translate: Command, model: Path, tmp_path: Path
) -> None:
    (model / "averaged").rename(tmp_path / "averaged")
    message = f"{model} has no averaged model: translating with its checkpoint of update 80\n"
    try:
        assert translate("--beam", "1", stdin=b"the cat\n").err == message
        assert translate("--quiet", stdin=b"the cat\n").err == ""
    finally:
        (tmp_path / "averaged").rename(model / "averaged")
    assert translate("--beam", "1", stdin=b"the cat\n").err == ""


class TestGoingOn:
    def test_a_stopped_translation_goes_on_where_it_was(
        self, translate: Command, tmp_path: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nmtkit.decoding.file_translation.WINDOW_LINES", 7)
        (tmp_path / "in.txt").write_bytes(as_bytes(sentences(40, seed=2)))
        where = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
        translations = Translator.translations
        first_lines: list[int] = []

        def stops(self: Translator, lines: Any, asked: Any, **options: Any) -> Any:
            if asked.first_line == 22:
                raise SystemExit(143)
            first_lines.append(asked.first_line)
            return translations(self, lines, asked, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Translator, "translations", stops)
            assert translate(*where).code == 143
        assert not (tmp_path / "out.txt").exists()
        assert first_lines == [1, 8, 15]

        def counts(self: Translator, lines: Any, asked: Any, **options: Any) -> Any:
            first_lines.append(asked.first_line)
            return translations(self, lines, asked, **options)

        monkeypatch.setattr(Translator, "translations", counts)
        outcome = translate(*where)
        assert "resuming after 21 lines" in outcome.err
        assert first_lines == [1, 8, 15, 22, 29, 36]
        assert (tmp_path / "out.txt").read_bytes() == as_bytes(expected)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]

    def test_one_that_was_killed_goes_on_to_the_same_bytes(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_bytes(as_bytes(sentences(40, seed=2) * 15))

        def started(name: str) -> Forked:
            where = [
                "--input",
                tmp_path / "in.txt",
                "--output",
                tmp_path / name,
                "--status",
                tmp_path / f"{name}.status",
            ]
            options = ["--threads", 1, "--json", "--sample", "--temperature", 0.5, "--n-best", 2]
            before = partial(set_window_lines, 20)
            return Forked("translate", model, *where, *options, err=tmp_path / "messages", before=before)

        with started("whole") as process:
            assert process.wait() == 0

        def finished() -> int:
            try:
                return sum(path.suffix == ".output" for path in (tmp_path / "killed.parts").iterdir())
            except FileNotFoundError:
                return 0

        there = 0
        while True:
            (tmp_path / "messages").unlink()
            with started("killed") as process:
                while process.poll() is None and finished() < there + 12:
                    time.sleep(0.005)
                with suppress(ProcessLookupError):  # it has ended
                    process.send_signal(signal.SIGKILL)
                code = process.wait()
            told = (tmp_path / "messages").read_text()
            assert (f"resuming after {20 * there:,} lines" in told) == (there > 0), told
            if code == 0:
                break
            assert code == -signal.SIGKILL, told
            there = finished()
        assert there >= 12
        for kind in ("", ".status"):
            assert (tmp_path / f"killed{kind}").read_bytes() == (tmp_path / f"whole{kind}").read_bytes()

    def test_progress_is_told_in_lines(
        self, translate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[tuple[float, str]] = []

        @contextmanager
        def progress(description: str, total: float | None, *, start: float = 0) -> Iterator[Any]:
            assert (description, total, start) == ("translating", 40, 0)
            yield lambda done, note="": told.append((done, note))

        monkeypatch.setattr("nmtkit.console.progress", progress)
        (tmp_path / "in.txt").write_bytes(as_bytes(sentences(40, seed=2)))
        for where in (["--output", tmp_path / "out.txt"], []):
            told.clear()
            assert translate("--input", tmp_path / "in.txt", *where, "--batch-size", "10").code == 0
            done = [lines for lines, _ in told]
            assert done == sorted(done)
            assert len(set(done)) == 4
            assert told[-1] == (40, "40 lines")
        told.clear()
        options = ["--mbr", "2", "--batch-size", "40"]
        assert translate("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", *options).code == 0
        done = [lines for lines, _ in told]
        assert done == sorted(done)
        assert set(done) == set(range(20, 41))

    @pytest.mark.parametrize("change", ["option", "precision", "input", "device"])
    def test_with_anything_else_it_begins_anew(
        self, translate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
    ) -> None:
        monkeypatch.setattr("nmtkit.decoding.file_translation.WINDOW_LINES", 7)
        text = sentences(40, seed=2)
        (tmp_path / "in.txt").write_bytes(as_bytes(text))
        where = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
        with monkeypatch.context() as patch:
            patch.setattr("nmtkit.decoding.parts.Parts.join", lambda *arguments: sys.exit(143))
            assert translate(*where).code == 143
        if change == "input":
            (tmp_path / "in.txt").write_bytes(as_bytes(text[::-1]))
        options = {"option": ["--beam", "1"], "precision": ["--precision", "bf16"]}.get(change, [])
        described = TranslationJob.description
        if change == "device":
            monkeypatch.setattr(TranslationJob, "description", lambda self: {**described(self), "device": "mps"})
        outcome = translate(*where, *options)
        assert outcome.code == 0
        differs = "decoding" if change == "option" else change
        assert f"belongs to another text, model or option ({differs}); starting over" in outcome.err
        fresh = translate("--input", tmp_path / "in.txt", *options)
        assert (tmp_path / "out.txt").read_bytes() == fresh.out

    def test_several_processes_share_a_file_and_change_nothing(
        self, model: Path, tmp_path: Path, expected: list[str]
    ) -> None:
        text = [*sentences(40, seed=2) * 60, "the cat 1"]
        (tmp_path / "in.txt").write_bytes(as_bytes(text))
        files = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", "--status", tmp_path / "status")
        options = ("--device", "cpu", "--processes", 2, "--threads", 1, "--beam", 1, "--keep", "numbers")
        done = run_forked("translate", model, *files, *options)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        greedy = Translator.load([model])
        greedy.decoding = greedy.decoding.model_copy(update={"beam": 1})
        translated = greedy.translate(text[:40]) * 60 + greedy.translate(text[-1:])
        assert (tmp_path / "out.txt").read_bytes() == as_bytes(translated)
        assert len((tmp_path / "status").read_bytes().splitlines()) == 2401
        assert "a required prefix, phrase, term or span is missing in line 2401; the first: '1'\n" in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt", "status"]

    def test_where_no_file_can_be_written_it_is_told_before_anything_is_translated(
        self, translate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "in.txt").write_text("the cat\n")
        monkeypatch.setattr(Translator, "translations", lambda *others, **options: pytest.fail("translated"))
        (tmp_path / "file").touch()
        for option, output, fault in (
            ("--output", tmp_path, f"{tmp_path}: is a folder; give a file with --output"),
            ("--status", tmp_path, f"{tmp_path}: is a folder; give a file with --status"),
            ("--output", tmp_path / "file" / "out", "Not a directory"),
        ):
            assert fault in fault_of(translate("--input", tmp_path / "in.txt", option, output))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "in.txt"]

    def test_a_second_translation_to_the_same_file_is_refused_in_one_line(
        self, translate: Command, tmp_path: Path
    ) -> None:
        (tmp_path / "in.txt").write_text("the cat\n")
        where = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
        with Parts(tmp_path / "out.txt", {}, 7).locked("translate"):
            told = f"{tmp_path / 'out.txt'}: in use by nmtkit translate, process "
            assert fault_of(translate(*where)).startswith(told)
            assert not (tmp_path / "out.txt.parts").exists()
        assert translate(*where).code == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]

    def test_what_is_going_on_is_known_by_the_weights_that_were_read(
        self, translate: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not by those that a training has put there since."""
        run = tmp_path / "run"
        shutil.copytree(model / "checkpoints" / "step-00000080", run / "averaged")
        expected = read_json(run / "averaged" / "provenance.json")["files"]["model.safetensors"]
        load, made_of = Translator.load, []

        def then_trained(*arguments: Any) -> Translator:
            loaded = load([run])
            (run / "averaged" / "model.safetensors").write_bytes(b"newer")
            return loaded

        def begins(self: Parts) -> int:
            made_of.append(self._made_of["models"])
            raise SystemExit(143)

        monkeypatch.setattr(Translator, "load", then_trained)
        monkeypatch.setattr(Parts, "begin", begins)
        (tmp_path / "in.txt").write_text("the cat\n")
        assert translate("--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt").code == 143
        assert made_of == [[expected]]

    def test_several_processes_need_files(self, translate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        for files, told in (
            ([], "several processes need --input and --output"),
            (["--input", "none", "--output", "out"], "no such file"),
            (["--input", "a.zip:in", "--output", "out"], "cannot read a member of an archive"),
        ):
            assert told in fault_of(translate("--processes", "2", *files, stdin=b"the cat\n"), 2)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert "WORLD_SIZE=2 in the environment" in fault_of(translate(stdin=b"the cat\n"), 2)

    @pytest.mark.parametrize("link", [False, True])
    def test_a_file_is_not_written_over_another_one_of_the_same_command(
        self, translate: Command, tmp_path: Path, link: bool
    ) -> None:
        (tmp_path / "in.txt").write_text("the cat\n")
        (tmp_path / "link").symlink_to(tmp_path)
        names = {name: tmp_path / ("link" if link else ".") / name for name in ("in.txt", "out.txt")}
        for options in (
            ["--output", tmp_path / "out.txt", "--status", names["out.txt"]],
            ["--output", names["in.txt"]],
            ["--output", tmp_path / "out.txt", "--status", names["in.txt"]],
            ["--output", names["in.txt"], "--prefix", tmp_path / "in.txt"],
        ):
            assert "give another file" in fault_of(translate("--input", tmp_path / "in.txt", *options), 2)
        archive = tmp_path / "texts.zip"
        with zipfile.ZipFile(archive, "w") as texts:
            texts.writestr("a.en", "the cat\n")
        outcome = translate("--input", f"{archive}:a.en", "--output", archive)
        assert "is also the file of --input" in fault_of(outcome, 2)
        for name in ("o.zip", "o.tar.gz", "o.tgz", "o.sgm.gz", "o.xml"):
            outcome = translate("--input", tmp_path / "in.txt", "--output", tmp_path / name)
            assert "is the name of an archive or of XML" in fault_of(outcome, 2)
        archive.unlink()  # which raises an error if a text has replaced it
        assert (tmp_path / "in.txt").read_text() == "the cat\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "link"]
        for nowhere in (["--output", "/dev/null", "--status", "/dev/null"], ["--prefix", "/dev/null"]):
            assert translate(*nowhere, stdin=b"").code == 0

    def test_a_file_of_a_model_is_not_written_over(self, translate: Command, model: Path) -> None:
        [checkpoint] = (model / "checkpoints").iterdir()
        files = [path for path in checkpoint.rglob("*") if path.is_file()]
        before = [path.read_bytes() for path in files]
        assert len(files) > 4
        for path in files:
            for option in ("--output", "--status"):
                assert "belongs to a model" in fault_of(translate(option, path, stdin=b"the cat\n"), 2)
        assert [path.read_bytes() for path in files] == before
        assert translate("--output", checkpoint / "mine.txt", stdin=b"").code == 0
        (checkpoint / "mine.txt").unlink()

    def test_a_file_of_an_export_is_not_written_over(self, translate: Command, tmp_path: Path) -> None:
        for name in ("model.bin", "manifest.json", "shared_vocabulary.json"):
            (tmp_path / name).write_text("mine")
        for name in ("model.bin", "manifest.json", "shared_vocabulary.json"):
            assert translate("--output", tmp_path / name, stdin=b"the cat\n").code == 2
            assert (tmp_path / name).read_text() == "mine"

    def test_lines_with_tabs_are_told(self, translate: Command, tmp_path: Path) -> None:
        (tmp_path / "table").write_text("the cat\tdie Katze\nthe cat\n\tthe dog\n")
        outcome = translate("--input", tmp_path / "table", "--output", tmp_path / "out")
        assert outcome.code == 0
        assert "tabs are read as blanks, so all columns of a table are one text; cut out the one" in outcome.err
        assert outcome.err.endswith(": line 1\n")
        assert "tabs" not in translate(stdin=b"the cat\n").err

    def test_of_two_outputs_the_full_one_is_named(self, translate: Command, tmp_path: Path) -> None:
        told = "error: /dev/full: No space left on device; make room and run the same command again\n"
        outcome = translate("--output", "/dev/full", "--status", tmp_path / "status", stdin=b"the cat\n" * 3000)
        assert outcome.code == 1 and outcome.err.endswith(told)  # on a slow machine, lines of progress come before
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "out").write_text("kept")
        outcome = translate("--output", tmp_path / "out", "--status", "/dev/full", stdin=b"the cat\n")
        assert (outcome.code, outcome.err) == (1, told)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]

    @pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("a bug")])
    def test_want_of_memory_is_one_line(
        self, translate: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(Translator, "translations", fail)
        if str(error) == "a bug":
            with pytest.raises(RuntimeError, match="a bug"):
                translate(stdin=b"the cat\n")
            return
        assert fault_of(translate(stdin=b"the cat\n")).startswith("out of memory; ")


class Terminal:
    """A command that runs at a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self._leader, self._follower = pty.openpty()
        self._before = termios.tcgetattr(self._follower)
        name = Path(os.ttyname(self._follower))
        self.process = Forked(*arguments, stdin=name, out=name, err=name)

    def write(self, typed: bytes) -> None:
        os.write(self._leader, typed)

    def read_to(self, end: str) -> str:
        """What is shown until it ends in that."""
        seen, deadline = b"", time.monotonic() + 300
        while not seen.endswith(end.encode()):
            assert time.monotonic() < deadline, seen
            assert self.process.poll() is None, seen
            if select.select([self._leader], [], [], 0.1)[0]:
                seen += os.read(self._leader, 4096)
        return seen.decode("utf-8", errors="replace")

    def is_as_before(self) -> bool:
        """Whether the terminal's settings are those from before the command."""
        return bool(termios.tcgetattr(self._follower) == self._before)

    def close(self) -> None:
        os.close(self._leader)
        os.close(self._follower)


@pytest.fixture
def terminal(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A translation at a terminal."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("INPUTRC", os.devnull)
    terminal = Terminal("translate", model, "--threads", 1)
    with terminal.process:
        yield terminal
    terminal.close()


class TestConversation:
    def test_a_line_from_a_pipe_is_answered_before_the_next_one_comes_and_a_signal_ends_the_wait_for_it(
        self, model: Path, expected: list[str]
    ) -> None:
        command = [sys.executable, "-m", "nmtkit", "translate", str(model), "--threads", "1"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
            for line, translation in zip(sentences(40, seed=2)[:3], expected, strict=False):
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()
                assert process.stdout.readline().decode() == f"{translation}\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130  # with stdin still open, for which Python has a lock when it ends
            assert (process.stdout.read(), process.stderr.read()) == (b"", b"")

    def test_on_a_terminal_there_is_a_prompt(self, terminal: Terminal, expected: list[str]) -> None:
        assert "Ctrl-D ends" in terminal.read_to("> ")
        for line, translation in zip(sentences(40, seed=2)[:2], expected, strict=False):
            terminal.write(f"{line}\n".encode())
            shown = terminal.read_to("> ")
            assert shown.split("\r\n")[1:] == [translation, "> "]  # answered before the next is asked for
        terminal.write(b"the c\xfft\n")
        terminal.read_to("> ")
        terminal.write(b"\x04")
        assert terminal.process.wait(300) == 0
        assert terminal.is_as_before()

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_a_prompt_that_is_stopped_leaves_the_terminal_as_it_was(
        self, terminal: Terminal, number: signal.Signals, code: int
    ) -> None:
        terminal.read_to("> ")
        terminal.write(b"half a li")
        terminal.read_to("half a li")
        assert not terminal.is_as_before()
        time.sleep(0.5)  # until it waits
        terminal.process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            terminal.process.wait(20)
        if terminal.process.poll() is None:  # Python hears a signal in the instant before it waits with the next key
            terminal.write(b"x")
        assert terminal.process.wait(300) == code
        assert terminal.is_as_before()


class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
    def test_a_stopped_translation_leaves_the_old_output_and_nothing_else(
        self, model: Path, tmp_path: Path, number: signal.Signals, code: int
    ) -> None:
        output = tmp_path / "out.txt"
        output.write_text("old\n")
        options = ("--threads", 1, "--output", output)
        with piped("translate", model, *options) as (process, stdin, stdout, stderr):
            stdin.write(b"\n" * 40_000)  # and it waits for more
            deadline = time.monotonic() + 300
            while not any(path.stat().st_size for path in tmp_path.glob(f".*{TEMPORARY_MARK}*")):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(60) == code  # with stdin still open
            assert (stdout.read(), stderr.read()) == (b"", b"")
        assert output.read_text() == "old\n"
        assert list(tmp_path.iterdir()) == [output]
