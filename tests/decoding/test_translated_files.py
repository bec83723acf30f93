import errno
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.decoding import file_translation as streams
from nmtkit.decoding import sampling
from nmtkit.decoding.file_translation import (
    TranslationJob,
    Window,
    as_they_come,
    equal_windows,
    translate_file,
    translate_windows,
    windows,
)
from nmtkit.decoding.parts import _KIND, Begun, Parts, Written
from nmtkit.decoding.request import Batching, Sampling, Translation, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import TEMPORARY_MARK, remove_folder
from nmtkit.json_toml import read_json, write_json
from nmtkit.text.terms import Glossary
from nmtkit.text.tokenizer import Tokenizer
from tests.decoding.models import model_for


def test_windows_hold_all_lines_in_order_and_know_their_numbers() -> None:
    found = list(windows((str(number) for number in range(7)), 3))
    assert found == [Window(0, 1, ["0", "1", "2"]), Window(1, 4, ["3", "4", "5"]), Window(2, 7, ["6"])]
    assert list(windows([], 3)) == []
    assert [len(window.lines) for window in windows("abcdef", 3)] == [3, 3]


def test_lines_are_given_on_before_the_next_ones_come() -> None:
    goes_on = threading.Semaphore(0)

    def slowly() -> Iterator[str]:
        for line in "abc":
            yield line
            goes_on.acquire()

    found = as_they_come(slowly(), 100)
    for number, line in enumerate("abc"):
        assert next(found) == Window(number, number + 1, [line])  # would wait for ever for a second line
        goes_on.release()
    assert list(found) == []


def test_lines_that_are_there_are_taken_together_and_none_is_lost() -> None:
    lines = [str(number) for number in range(1000)]
    found = list(as_they_come(iter(lines), 64))
    assert [line for window in found for line in window.lines] == lines
    assert all(0 < len(window.lines) <= 64 for window in found)
    assert [window.first_line for window in found] == [lines.index(window.lines[0]) + 1 for window in found]


def test_lines_that_keep_coming_are_given_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "GATHERING_SECONDS", 0.2)

    def steadily() -> Iterator[str]:
        while True:
            yield "a"
            time.sleep(0.02)

    assert len(next(as_they_come(steadily(), 1000)).lines) < 1000


def test_no_more_lines_are_read_than_can_soon_be_taken() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "a"

    found = as_they_come(endless(), 10)
    lines = sum(len(next(found).lines) for _ in range(5))
    before = -1
    while taken != before:  # the reader goes on as far as it can
        before = taken
        time.sleep(0.2)
    assert lines < taken <= lines + 2 * 10 + 1


def test_an_error_of_the_reader_comes_after_the_lines_before_it() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise DataError("cut short")

    found = as_they_come(broken(), 10)
    seen = []
    with pytest.raises(DataError, match="cut short"):
        seen.extend(window.lines for window in found)
    assert seen == [] or seen == [["a"]]


# ---- from file to file

LINES = [f"line {number}" for number in range(10)]
SHOUTED = "".join(f"{line.upper()}\n" for line in LINES)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WINDOW_LINES", 3)


def parts_of(folder: Path, made_of: dict[str, Any] | None = None, window_lines: int = 3) -> Parts:
    return Parts(folder / "out", made_of or {}, window_lines)


def shouted(window: Window, advance: Callable[[float], None], begun: Begun) -> Written:
    status = [str(window.first_line + place) for place in range(len(window.lines))]
    return Written([line.upper() for line in window.lines], status)


class Recorded:
    """As `shouted`, with the numbers of the windows in order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, window: Window, advance: Callable[[float], None], begun: Begun) -> Written:
        self.numbers.append(window.number)
        return shouted(window, advance, begun)


def test_processes_share_the_windows_and_the_result_is_the_same(tmp_path: Path) -> None:
    for num_processes in (1, 2, 5):
        parts = parts_of(tmp_path)
        assert parts.begin() == 0
        taken: list[list[int]] = []
        for rank in range(num_processes):
            work, done = Recorded(), list[int]()
            options = {"rank": rank, "num_processes": num_processes, "advance": done.append}
            assert translate_windows(LINES, work, parts, **options) == 4  # type: ignore[arg-type]
            assert done == [3, 6, 9, 10]
            taken.append(work.numbers)
        assert taken == [list(range(rank, 4, num_processes)) for rank in range(num_processes)]
        parts.join(4, [("output", tmp_path / "out"), ("status", tmp_path / "status")])
        assert (tmp_path / "out").read_text() == SHOUTED
        assert (tmp_path / "status").read_text() == "".join(f"{number}\n" for number in range(1, 11))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "status"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_full_disk_at_the_beginning_leaves_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    parts = parts_of(tmp_path)
    if has_begun:
        parts.begin()
        translate_windows(LINES, shouted, parts)
    before = sorted(tmp_path.rglob("*"))

    def fail(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "full", str(path))

    monkeypatch.setattr("nmtkit.decoding.parts.write_json", fail)
    with pytest.raises(OSError, match="full"):
        parts_of(tmp_path).begin()
    assert sorted(tmp_path.rglob("*")) == before and bool(before) == has_begun


def test_progress_is_told_within_a_window(tmp_path: Path) -> None:
    def in_halves(window: Window, advance: Callable[[float], None], begun: Begun) -> Written:
        advance(0.5)
        return shouted(window, advance, begun)

    parts = parts_of(tmp_path, window_lines=4)
    parts.begin()
    done: list[int] = []
    translate_windows(LINES, in_halves, parts, advance=done.append)
    assert done == [2, 4, 6, 8, 9, 10]


def test_translated_sentences_of_an_unfinished_window_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture, tokenizer: Tokenizer
) -> None:
    logged.set_level("INFO")
    monkeypatch.setattr(streams, "SAVE_SECONDS", 0.0)
    (tmp_path / "in").write_text("The small dog\n\nA cat\nThe dog sees the small dog\nThe dog. A cat sees.\n")
    request = TranslationRequest(glossary=Glossary([("small", "Katze")]), n_best=2, attention=True)
    translator = Translator([model_for(tokenizer)], tokenizer, DecodingConfig(beam=2))
    search, left = Translator._search, [100]

    def counted_search(*arguments: Any) -> Any:
        left[0] -= 1
        return search(*arguments) if left[0] >= 0 else sys.exit(143)

    def translate(name: str, window_lines: int = 5) -> str:
        job = TranslationJob(translator, request, Batching(sentences=1), "json")
        translate_file(job, tmp_path / "in", tmp_path / name, status=tmp_path / "status", window_lines=window_lines)
        return (tmp_path / name).read_text() + (tmp_path / "status").read_text()

    monkeypatch.setattr(Translator, "_search", counted_search)
    expected = translate("whole")
    assert left == [100 - 5 - 2]  # both sentences with the term are searched again
    for _ in range(2):
        left[0] = 3
        with pytest.raises(SystemExit):
            translate("out")
        [begun] = (tmp_path / "out.parts").glob("*.begun")
        begun.write_text(begun.read_text() + '[1, 4, [{"text": "cut by a kill')
    left[0] = 100
    assert translate("out", window_lines=2) == expected  # the size of the windows stays
    assert left == [100 - 1]
    assert "resuming after 6 sentences" in logged.messages
    assert not (tmp_path / "out.parts").exists()
    # A signal while a window is written.
    monkeypatch.setattr(streams, "SAVE_SECONDS", 1e9)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Parts, "write", lambda *arguments: sys.exit(143))
        translate("late")
    left[0] = 2  # those with the term
    assert translate("late") == expected


def test_samples_are_kept_when_their_comparison_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    (tmp_path / "in").write_text("The small dog\nA cat\n")
    request = TranslationRequest(n_best=3, sampling=Sampling())
    translator = Translator([model_for(tokenizer)], tokenizer, DecodingConfig())
    search, sizes = Translator.search_segments, []

    def noted(self: Translator, segments: Any, *arguments: Any) -> Any:
        sizes.append(len(segments))
        return search(self, segments, *arguments)

    def translate() -> None:
        job = TranslationJob(translator, request, minimum_risk="chrf2")
        translate_file(job, tmp_path / "in", tmp_path / "out")

    monkeypatch.setattr(Translator, "search_segments", noted)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sampling, "by_expected_utility", lambda *arguments: sys.exit(143))
        translate()
    translate()
    assert sizes == [2, 0]
    assert (tmp_path / "out").read_text().count("\n") == 2


def test_lines_that_were_cut_or_lack_something_are_named_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture, tokenizer: Tokenizer
) -> None:
    (tmp_path / "in").write_text("The dog 7\n\nA cat\nThe small dog sees the dog 8\n")
    lengths = TrainingLengths(longest_source=6, target_ratio=1.0, multi_sentence_share=0.5, max_source_tokens=6)
    decoding = DecodingConfig(beam=1, max_length_offset=3)
    translator = Translator([model_for(tokenizer)], tokenizer, decoding, lengths=lengths)

    def translate() -> None:
        job = TranslationJob(translator, TranslationRequest(keep=("numbers",)))
        translate_file(job, tmp_path / "in", tmp_path / "out", status=tmp_path / "status", window_lines=1)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Parts, "wait_for", lambda *arguments: sys.exit(143))
        translate()
    assert logged.messages == []
    translate()
    assert logged.messages[-4:] == [
        "a required prefix, phrase, term or span is missing in 2 lines: 1, 4; the first: '7'",
        "no translation can have these characters, as the vocabulary lacks them and data.byte_fallback is off: 7 8",
        "cut to the tokens that the model reads: line 4",
        "the translation was ended by the maximum length (--max-length, --max-length-ratio, --max-length-offset): "
        "3 lines: 1, 3, 4",
    ]
    assert json.loads((tmp_path / "status").read_text().split("\n")[3])["missing"] == ["8"]


def test_a_prefix_of_no_text_is_not_named_as_missing() -> None:
    request = TranslationRequest(prefixes=("", " "), required=(["ab"], []))
    within_a_word = Translation("the cabin", is_unsatisfied=True)
    assert [streams._missing(within_a_word, request, index) for index in (0, 1)] == [["ab"], []]


def test_what_is_missing_may_contain_line_separators(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "in").write_text('The dog <a title="x\u2028y\x85">\n', encoding="utf-8")
    request = TranslationRequest(keep=("tags",))
    job = TranslationJob(Translator([model_for(tokenizer)], tokenizer, DecodingConfig(beam=1)), request)
    translate_file(job, tmp_path / "in", tmp_path / "out", status=tmp_path / "status")
    [status] = (tmp_path / "status").read_bytes().removesuffix(b"\n").split(b"\n")
    assert json.loads(status)["missing"] == ['<a title="x\u2028y\x85">']


def test_lines_that_the_model_cannot_read_are_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture, tokenizer: Tokenizer
) -> None:
    lines = [
        "The dog",
        "\u72d7\u770b\u89c1\u732b\u3002",
        "The \u732b sees a dog",
        "\u0421\u043f\u0438\u0442 \u043e\u043d.",
    ]
    (tmp_path / "in").write_text("\n".join(lines), encoding="utf-8")
    job = TranslationJob(Translator([model_for(tokenizer)], tokenizer, DecodingConfig(beam=1)))
    translate_file(job, tmp_path / "in", tmp_path / "out", status=tmp_path / "status")
    statuses = [json.loads(line)["status"] for line in (tmp_path / "status").read_text().splitlines()]
    assert ["unknown" in status for status in statuses] == [False, True, False, True]
    assert "at least half of the tokens are unknown to the model: 2 lines: 2, 4" in logged.messages


def test_a_minimum_length_above_the_maximum_is_refused(tokenizer: Tokenizer) -> None:
    decoding = DecodingConfig(min_length=30, max_length=20)
    job = TranslationJob(Translator([model_for(tokenizer)], tokenizer, decoding))
    with pytest.raises(DataError, match=r"^min_length = 30 is more than max_length = 20; change one of them$"):
        job.check()
    job.engine.decoding = DecodingConfig(min_length=20, max_length=20)
    job.check()


def test_every_process_has_as_many_windows_of_about_as_many_lines() -> None:
    expected = {(1000, 1): 1000, (1000, 2): 500, (3003, 8): 376, (5000, 1): 1667, (5000, 2): 1250, (0, 2): 1, (3, 8): 1}
    assert {asked: equal_windows(*asked, 2000) for asked in expected} == expected
    for num_lines, num_processes in [(1, 1), (7, 3), (4001, 2), (100_003, 4), (36_000_000, 8)]:
        size = equal_windows(num_lines, num_processes, 2000)
        most_of_a_process = math.ceil(math.ceil(num_lines / size) / num_processes)
        assert size <= 2000 and most_of_a_process == math.ceil(num_lines / (2000 * num_processes))


@pytest.mark.parametrize(("n_best", "expected"), [(1, 2000), (8, 2000), (100, 160), (10_000, 1)])
def test_windows_of_many_translations_per_line_have_fewer_lines(
    monkeypatch: pytest.MonkeyPatch, n_best: int, expected: int
) -> None:
    monkeypatch.setattr(streams, "WINDOW_LINES", 2000)
    assert streams.most_lines(TranslationRequest(n_best=n_best, sampling=Sampling())) == expected


def test_a_translation_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, {"model": 1}, equal_windows(len(LINES), 2, 3))
    parts.begin()
    translate_windows(LINES, shouted, parts, rank=0, num_processes=2)  # the other one was killed
    mine, other = (parts_of(tmp_path, {"model": 1}, equal_windows(len(LINES), 3, 3)) for _ in range(2))
    assert mine.begin() == 2
    other.check()
    assert parts.window_lines == mine.window_lines == other.window_lines == 3
    work = Recorded()
    for rank, of_rank in enumerate((mine, other, other)):
        count = translate_windows(LINES, work, of_rank, rank=rank, num_processes=3)
    mine.join(count, [("output", tmp_path / "out")])
    assert sorted(work.numbers) == [1, 3]
    assert (tmp_path / "out").read_text() == SHOUTED


def test_where_no_window_is_done_yet_the_shares_are_those_of_now(tmp_path: Path) -> None:
    assert parts_of(tmp_path, {"model": 1}, 10).begin() == 0
    again, other = (parts_of(tmp_path, {"model": 1}, 2) for _ in range(2))
    assert again.begin() == 0
    other.check()
    assert again.window_lines == other.window_lines == 2
    again.join(translate_windows(LINES, shouted, again), [("output", tmp_path / "out")])
    assert (tmp_path / "out").read_text() == SHOUTED


@pytest.mark.parametrize("damage", ["another", "no manifest", "no size", "impossible size"])
def test_what_was_made_of_something_else_is_made_anew(tmp_path: Path, damage: str) -> None:
    parts = parts_of(tmp_path, {"model": 1})
    parts.begin()
    translate_windows(LINES, shouted, parts)
    if damage == "no manifest":
        (tmp_path / "out.parts" / "manifest.json").unlink()
    if damage.endswith("size"):
        manifest = read_json(tmp_path / "out.parts" / "manifest.json")
        del manifest["window_lines"]
        write_json(tmp_path / "out.parts" / "manifest.json", manifest | ({"window_lines": 0} if "im" in damage else {}))
    again = parts_of(tmp_path, {"model": 2 if damage == "another" else 1})
    assert again.begin() == 0
    assert not again.has(0)


def test_no_lines_make_an_empty_file(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    parts.begin()
    parts.join(translate_windows([], shouted, parts), [("output", tmp_path / "out")])
    assert (tmp_path / "out").read_bytes() == b""


def test_one_translation_at_a_time_has_an_output(tmp_path: Path) -> None:
    parts, others = (parts_of(tmp_path / "new", {"model": number}) for number in (1, 2))
    with parts.locked("translate"):
        message = f"{tmp_path}/new/out: in use by nmtkit translate, process {os.getpid()} on .*; .* another --output$"
        with pytest.raises(NmtkitError, match=message), others.locked("translate"):
            pytest.fail("both have it")
        assert [path.name for path in (tmp_path / "new").iterdir()] == [".out.lock"]
    assert list((tmp_path / "new").iterdir()) == []
    with others.locked("translate"):
        pass


def test_windows_of_another_translation_are_never_taken_for_ones_own(tmp_path: Path) -> None:
    """As two translations would write them that share a folder in spite of the lock."""
    parts, others = (parts_of(tmp_path, {"model": number}) for number in (1, 2))
    parts.begin()
    others.write(0, shouted(Window(0, 1, ["of another"]), lambda share: None, others.begun(0)))
    assert not parts.has(0)
    parts.join(translate_windows(LINES, shouted, parts), [("output", tmp_path / "out")])
    assert (tmp_path / "out").read_text() == SHOUTED


@pytest.mark.parametrize("name", ["mine", "manifest.json", "00000000.output", None])
def test_a_folder_or_file_that_is_not_ours_is_refused_and_left(tmp_path: Path, name: str | None) -> None:
    place = tmp_path / "out.parts"
    if name is None:
        place.write_text("precious")
    else:
        place.mkdir()
        (place / name).write_text(json.dumps("precious"))
    with pytest.raises(DataError, match=rf"^{place}: .* something else \({name or 'it is not a folder'}.*--output$"):
        parts_of(tmp_path).begin()
    assert "precious" in (place if name is None else place / name).read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out.parts"]


def test_something_put_beside_our_own_windows_is_not_removed(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    parts.begin()
    (tmp_path / "out.parts" / ".DS_Store").touch()  # by macOS
    parts_of(tmp_path).begin()
    (tmp_path / "out.parts" / "notes").write_text("precious")
    with pytest.raises(DataError, match="notes in it"):
        parts_of(tmp_path, {"another": 1}).begin()
    assert (tmp_path / "out.parts" / "notes").read_text() == "precious"


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_empty_folder_of_that_name_is_taken(
    tmp_path: Path, logged: pytest.LogCaptureFixture, is_empty: bool
) -> None:
    (tmp_path / "out.parts").mkdir()
    if not is_empty:
        write_json(tmp_path / "out.parts" / "manifest.json", {"kind": _KIND, "made_of": {"model": 1}})
    with logged.at_level("INFO"):
        assert parts_of(tmp_path).begin() == 0
    assert ("belongs to another text, model or option" in logged.text) == (not is_empty)


def test_what_a_kill_left_of_a_removed_folder_is_removed_with_the_next(tmp_path: Path) -> None:
    left = tmp_path / f".out.parts{TEMPORARY_MARK}999999999-gone"
    left.mkdir()
    (left / "00000000.output").touch()
    (tmp_path / "out.parts").mkdir()
    remove_folder(tmp_path / "out.parts")
    assert list(tmp_path.iterdir()) == []


def test_windows_of_slower_processes_are_waited_for_without_an_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.decoding.parts.POLL_SECONDS", 0.01)
    parts = parts_of(tmp_path)
    parts.begin()
    count = translate_windows(LINES, shouted, parts, rank=0, num_processes=2)
    goes_on = threading.Event()

    def slowly(window: Window, advance: Callable[[float], None], begun: Begun) -> Written:
        goes_on.wait()
        return shouted(window, advance, begun)

    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(translate_windows, LINES, slowly, parts, rank=1, num_processes=2)
        waiting = pool.submit(parts.wait_for, count)
        unfinished = wait([waiting], timeout=0.1).not_done
        goes_on.set()
    assert unfinished == {waiting}
    assert (other.result(), waiting.result()) == (count, None)
    parts.join(count, [("output", tmp_path / "out")])
    assert (tmp_path / "out").read_text() == SHOUTED


def test_processes_that_found_different_models_do_not_work_together(tmp_path: Path) -> None:
    parts_of(tmp_path, {"models": ["a"]}).begin()
    parts_of(tmp_path, {"models": ["a"]}).check()
    with pytest.raises(DataError, match="found different models, text or devices"):
        parts_of(tmp_path, {"models": ["b"]}).check()
