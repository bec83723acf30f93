"""JSON and TOML: read back unchanged, and every fault is one line that names the file."""

import json
import os
from pathlib import Path

import pytest

from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.json_toml import append_json_line, read_json, read_json_lines, read_toml, write_json
from tests.conftest import message_of


class TestJson:
    def test_json_is_read_back_unchanged(self, tmp_path: Path) -> None:
        value = {"ß": [1, 2.5, None, True, "\u2028"], "": {}}
        write_json(tmp_path / "value.json", value)
        assert read_json(tmp_path / "value.json") == value

    @pytest.mark.parametrize("content", [b"", b'{"a": 1', b'{"a": "\xff"}', b"nonsense"])
    def test_damaged_json_is_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "value.json").write_bytes(content)
        message = message_of(lambda: read_json(tmp_path / "value.json"), match="not valid JSON")
        assert str(tmp_path / "value.json") in message

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("[]", "its content is a list, which it cannot be; the file is damaged"),
            ('{"step": 1}', "rows is missing; the file is damaged or was written by another version"),
            ('{"step": true, "rows": []}', "step is true or false, which"),
            ('{"step": 1.5, "rows": []}', "step is the number 1.5, which"),
            ('{"step": -1, "rows": []}', "step is the number -1, which"),
            (f'{{"step": {2**70}, "rows": []}}', f"step is the number {2**70 // 100}"),
            ('{"step": 1, "rows": {}}', "rows is an object, which"),
            ('{"step": 1, "rows": [{"bleu": 1}, {"bleu": "high"}]}', "rows[1].bleu is text, which"),
            ('{"step": 1, "rows": [{"bleu": NaN}]}', "rows[0].bleu is the number nan, which"),
            ('{"step": 1, "rows": [{"bleu": 1e308}]}', "rows[0].bleu is the number 1e+308, which"),
            ('{"step": 1, "rows": [], "sums": {"a": null}}', "sums.a is null, which"),
            ('{"step": 1, "rows": [], "language": "xx"}', "language: no language"),
            ("[" * 100_000, "not valid JSON (nested too deeply)"),
            ("7" * 5000, "not valid JSON (Exceeds the limit (4300 digits) for integer string conversion"),
            ('"\\ud800"', "not valid JSON ('utf-8' codec can't encode character"),
            ("\udcff", "not valid JSON ('utf-8' codec can't decode byte 0xff"),
        ],
    )
    def test_what_is_of_another_shape_than_needed_is_named(self, tmp_path: Path, content: str, told: str) -> None:
        def language(value: str) -> None:
            if value == "xx":
                raise ValueError("no language")

        shape = {"step": int, "rows": [{"bleu": float | None}], "sums?": {str: str}, "language?": language}
        path = tmp_path / "value.json"
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        message = message_of(lambda: read_json(path, shape, ModelError), ModelError)
        assert message.startswith(f"{path}: {told}") and len(message) < 300
        value = {"step": 1, "rows": [{"bleu": None}, {"bleu": 2}], "sums": {"x?": "y"}, "more": 0, "language": "en"}
        write_json(path, value)
        assert read_json(path, shape) == value

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("a = " + "[" * 100_000, "not valid TOML: nested too deeply"),
            ("a = " + "7" * 5000, "not valid TOML: Exceeds the limit"),
            ("a = \udcff", "not UTF-8 text"),
            ("a = ", "not valid TOML: Invalid value"),
        ],
    )
    def test_toml_that_cannot_be_read_is_one_line(self, tmp_path: Path, content: str, told: str) -> None:
        path = tmp_path / "recipe.toml"
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        message = message_of(lambda: read_toml(path, RecipeError), RecipeError)
        assert message.startswith(f"{path}: {told}") and len(message) < 300

    def test_a_byte_order_mark_is_no_part_of_toml(self, tmp_path: Path) -> None:
        (tmp_path / "recipe.toml").write_text("a = 1\r\n", encoding="utf-8-sig", newline="")
        assert read_toml(tmp_path / "recipe.toml")[0] == {"a": 1}

    def test_a_fifo_or_a_loop_of_links_is_no_json(self, tmp_path: Path) -> None:
        fifo, loop = tmp_path / "fifo", tmp_path / "loop"
        os.mkfifo(fifo)
        loop.symlink_to(loop)
        with pytest.raises(DataError, match="not a regular file"):
            read_json(fifo)
        with pytest.raises(DataError, match=r"cannot be read \(Too many levels of symbolic links"):
            read_json(loop)

    def test_appended_json_lines_are_read_back_in_order(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "metrics.jsonl"
        values = [{"step": 1, "text": "a\nb\u2028ß"}, {"step": 2}]
        for value in values:
            append_json_line(path, value)
        assert read_json_lines(path) == values
        assert len(path.read_bytes().splitlines()) == 2

    def test_a_missing_file_has_no_json_lines(self, tmp_path: Path) -> None:
        assert read_json_lines(tmp_path / "missing") == []

    def test_a_half_last_line_is_ignored_wherever_it_was_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        first, last = (json.dumps({"text": f"ß{number}"}, ensure_ascii=False).encode() for number in (1, 2))
        for length in range(len(last)):
            path.write_bytes(first + b"\n" + last[:length])
            assert read_json_lines(path) == [{"text": "ß1"}]
        path.write_bytes(first + b"\n" + last)
        assert read_json_lines(path) == [{"text": "ß1"}, {"text": "ß2"}]

    def test_a_line_that_is_no_object_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.jsonl").write_bytes(b'{"a": 1}\n3\n')
        with pytest.raises(DataError, match="line 2: its content is the number 3"):
            read_json_lines(tmp_path / "metrics.jsonl")

    @pytest.mark.parametrize("content", [b'{"a": 1}\n{"b\n{"c": 3}\n', b'{"a": 1}\n{"b\n'])
    def test_another_half_line_is_an_error_that_names_it(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(content)
        assert str(path) in message_of(lambda: read_json_lines(path), match="line 2: not valid JSON")
