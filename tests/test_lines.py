"""Lines: split at line feeds only, and every fault names file and line."""

import gzip
import io
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.lines import LineReader, read_lines, without_line_end, write_lines
from tests.conftest import message_of

TEXT = "Ein Haus.\nZwei Häuser.\n"

line_text = st.text().map(lambda text: text.replace("\n", "")).filter(lambda text: not text.endswith("\r"))


Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes bytes to a file, and returns its path."""

    def write(content: bytes, name: str = "text") -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


class TestLines:
    @pytest.mark.parametrize(
        "character", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\u00a0", "\ufeff", "\0"]
    )
    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_only_a_line_feed_ends_a_line(self, written: Written, character: str, suffix: str) -> None:
        content = f"a{character}b\n{character}c\n".encode()
        path = written(gzip.compress(content) if suffix else content, f"text{suffix}")
        assert read_lines(path) == [f"a{character}b", f"{character}c"]

    def test_the_carriage_return_of_a_crlf_is_removed_and_counted(self, written: Written) -> None:
        reader = LineReader(written(b"a\r\nb\nc\rd\r\ne\r\r\n\r\n"))
        assert list(reader) == ["a", "b", "c\rd", "e\r", ""]
        assert (reader.num_lines, reader.carriage_returns) == (5, 4)

    @pytest.mark.parametrize("errors", ["strict", "replace", "surrogateescape"])
    def test_lines_that_only_carriage_returns_end_are_refused(self, written: Written, errors: Any) -> None:
        for content in (b"a\rb\r", b"a\rb\rc", b"\r\r"):
            with pytest.raises(DataError, match=r"text: only carriage returns end its lines; convert it with `tr "):
                list(LineReader(written(content), errors=errors))
        for content in (b"a\rb\rc\n", b"a\rb", b"a\r", b"x\na\rb\rc"):
            assert list(LineReader(written(content), errors=errors))[-1].startswith("a")

    @pytest.mark.parametrize(("compress", "kind"), [(gzip.compress, "gzip"), (lzma.compress, "xz")])
    def test_compressed_data_without_the_ending_is_recognised(
        self, written: Written, compress: Callable[[bytes], bytes], kind: str
    ) -> None:
        with pytest.raises(DataError, match=rf"text: holds {kind} data and no text; decompress it, or give it the end"):
            read_lines(written(compress(b"Ein Haus.\n")))

    @pytest.mark.parametrize("beginning", [b"[Content_Types].xml", b"mimetypeapplication/vnd.oasis.opendocument.text"])
    def test_an_office_document_is_told_from_a_zip_file(self, written: Written, beginning: bytes) -> None:
        with pytest.raises(DataError, match="text: is an office document; save it as plain text, a table as tab-"):
            read_lines(written(b"PK\x03\x04\x14\0\6\0" + beginning))

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16be", "utf-16le"])
    @pytest.mark.parametrize("errors", ["strict", "replace", "surrogateescape"])
    @pytest.mark.parametrize("text", ["Ein Haus.\n", "Ŋe Haus’ t\n"])
    def test_utf16_is_recognised(self, written: Written, encoding: str, errors: Any, text: str) -> None:
        remedy = rf"text: looks like UTF-16; convert it with `iconv -f {encoding} -t utf-8 FILE > FILE.utf8`$"
        with pytest.raises(DataError, match=remedy):
            list(LineReader(written(text.encode(encoding)), errors=errors))
        assert list(LineReader([b"\0\0\0\0\0\0\0\0\n"])) == ["\0" * 8]

    @pytest.mark.parametrize(
        ("content", "lines"),
        [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""]), (b"\n\na", ["", "", "a"])],
    )
    def test_a_missing_final_line_end_makes_no_difference(
        self, written: Written, content: bytes, lines: list[str]
    ) -> None:
        assert read_lines(written(content)) == lines

    def test_a_gzip_file_of_two_parts_is_read_to_its_end(self, written: Written) -> None:
        two = written(gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n"), "two.gz")
        assert read_lines(two) == ["a", "bc", "d"]

    def test_a_truncated_gzip_file_is_named_with_its_last_whole_line(self, written: Written) -> None:
        whole = gzip.compress("".join(f"line {number} {number**5}\n" for number in range(20_000)).encode())
        reader = LineReader(path := written(whole[: len(whole) // 2], "cut.en.gz"))
        message = message_of(lambda: list(reader), match="cut short")
        assert str(path) in message
        assert f"after line {reader.num_lines};" in message
        assert reader.num_lines > 1000

    def test_a_gz_file_that_is_no_gzip_or_has_a_wrong_byte_is_named(self, written: Written) -> None:
        wrong = bytearray(gzip.compress(TEXT.encode() * 1000))
        wrong[len(wrong) // 2] ^= 0xFF
        for content, told in ((TEXT.encode(), "not a gzip file"), (wrong, "damaged|cut short")):
            path = written(content, "text.gz")
            assert str(path) in message_of(lambda: read_lines(path), match=told)  # noqa: B023

    def test_invalid_utf8_is_told_with_file_line_byte_and_position(self, written: Written) -> None:
        path = written(b"gut\nH\xe4user\n")
        assert f"{path}, line 2: invalid UTF-8 (byte 0xe4 at position 2)" in message_of(lambda: read_lines(path))

    def test_replaced_invalid_utf8_keeps_the_lines_and_their_numbers(self, written: Written) -> None:
        reader = LineReader(written(b"gut\nH\xe4user\ngut\n\xff\n"), errors="replace")
        assert list(reader) == ["gut", "H\ufffduser", "gut", "\ufffd"]
        assert reader.invalid_lines == [2, 4]

    def test_invalid_bytes_can_be_left_in_their_line(self, written: Written) -> None:
        path = written(b"gut\nH\xe4us\xc3\xa9r\n\xff\n")
        assert list(LineReader(path, errors="surrogateescape")) == ["gut", "H\udce4us\xe9r", "\udcff"]

    def test_surrogates_and_overlong_forms_are_invalid(self, written: Written) -> None:
        for content in (b"\xed\xa0\x80\n", b"\xc0\xaf\n", b"\xf4\x90\x80\x80\n"):
            with pytest.raises(DataError, match="line 1: invalid UTF-8"):
                read_lines(written(content))

    def test_a_stream_is_called_by_the_given_name(self) -> None:
        reader = LineReader(io.BytesIO(b"\xff\n"), name="stdin")
        with pytest.raises(DataError, match=r"^stdin, line 1: "):
            list(reader)

    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_a_missing_file_and_a_folder_are_named(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"text{suffix}"
        assert str(path) in message_of(lambda: read_lines(path), match="no such file")
        path.mkdir()
        assert str(path) in message_of(lambda: read_lines(path), match="is a folder")

    @settings(deadline=None, max_examples=50)
    @given(lines=st.lists(line_text))
    @example(lines=["\u2028", "", "\r a", "\x0b\x0c\x1c", "\u0085", "🙂", "\ufeff"])
    def test_written_lines_are_read_back_unchanged(self, lines: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("text", "text.gz"):
                write_lines(Path(folder) / name, lines)
                assert read_lines(Path(folder) / name) == lines


@pytest.mark.parametrize(
    ("given", "line"), [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), ("a\r", "a\r"), ("a\r\r\n\n", "a\r\r\n"), ("\n", "")]
)
def test_one_line_end_after_a_line_is_removed(given: str, line: str) -> None:
    assert without_line_end(given) == line
