"""`nmtkit extract`: JSON lines in; one line per example, or JSON lines, out."""

import json
from pathlib import Path

import pytest

from tests.cli.outcomes import printed, refusal
from tests.conftest import run_command, run_with_streams

EXAMPLES = [
    {
        "title": "Old bridges",
        "documents": ["A road is long.\n\nBridges are old.", "The old bridge\tfell. 🏴 The mayor spoke."],
        "target": "The old bridge fell.",
        "id": 7,
    },
    {"query": "tea", "paragraphs": ["no", "Tea with milk and tea?", "---"], "target": "tea with milk"},
]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in EXAMPLES), encoding="utf-8")
    return path


def test_the_best_paragraphs_are_written_one_example_per_line(examples: Path) -> None:
    for options, expected in (
        (
            (),
            "Bridges are old.\tThe old bridge fell. 🏴 The mayor spoke.\tA road is long.\n"
            "Tea with milk and tea?\tno\t---\n",
        ),
        (("--length", 5), "Bridges are old.\tThe old\nTea with milk and tea?\n"),
        (("--method", "identity", "--paragraphs", 1), "A road is long.\nno\n"),
        (
            ("--method", "identity", "--min-words", 4),
            "A road is long.\tThe old bridge fell. 🏴 The mayor spoke.\nTea with milk and tea?\n",
        ),
        (("--method", "cheating", "--target-length"), "The old bridge fell.\nTea with milk\n"),
    ):
        assert printed("extract", "--input", examples, *options) == expected
    assert printed("extract", "--input", examples, "--method", "sumbasic", "--paragraphs", 1).count("\n") == 2
    assert printed("extract", "--input", examples, "--method", "textrank").count("\t") == 4


def test_json_lines_are_examples_again(examples: Path, tmp_path: Path) -> None:
    short, again = tmp_path / "short.jsonl", tmp_path / "again.jsonl"
    assert run_command("extract", "--input", examples, "--length", 4, "--format", "jsonl", "--output", short).code == 0
    lines = [json.loads(line) for line in short.read_text(encoding="utf-8").splitlines()]
    assert lines == [
        {"title": "Old bridges", "target": "The old bridge fell.", "id": 7, "paragraphs": ["Bridges are old.", "The"]},
        {"query": "tea", "target": "tea with milk", "paragraphs": ["Tea with milk and"]},
    ]
    assert run_command("extract", "--input", short, "--format", "jsonl", "--output", again).code == 0
    assert again.read_bytes() == short.read_bytes()


def test_examples_come_through_a_pipe(examples: Path) -> None:
    assert run_with_streams("extract", "--length", 1, stdin=examples.read_bytes()).lines == ["Bridges", "Tea"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", [], "bad.jsonl: is empty"),
        (b'{"title": "a", "paragraphs": ["b"]}\n{"title": "\xff"}\n', [], "bad.jsonl, line 2: invalid UTF-8"),
        (b'{"title": "a", "paragraphs": ["b"]}\n{"title": "a"}\n', [], "bad.jsonl, line 2: has no list of strings"),
        (b'{"paragraphs": ["b"]}\n', [], 'bad.jsonl, line 1: has no "title" or "query"'),
        (b'{"title": "a", "paragraphs": ["b"]}\n', ["--target-length"], 'bad.jsonl, line 1: has no "target"'),
        (
            b'{"title": "a", "paragraphs": ["b"], "target": ""}\n',
            ["--target-length"],
            'bad.jsonl, line 1: has no "target", or an empty one, which --target-length needs',
        ),
        (
            b'{"title": "a", "paragraphs": ["b"], "x": [1e999]}\n',
            ["--format", "jsonl"],
            "bad.jsonl, line 1: has NaN or a number above",
        ),
        (b'{"paragraphs": ["b"]}\n', ["--method", "cheating"], 'bad.jsonl, line 1: has no "target"'),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path, content: bytes, options: list[str], message: str
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content)
    files = ("--input", tmp_path / "bad.jsonl", "--output", tmp_path / "out.txt")
    assert message in refusal("extract", *files, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_examples_are_not_written_over(examples: Path) -> None:
    assert run_command("extract", "--input", examples, "--output", examples).code == 2
    assert json.loads(examples.read_text(encoding="utf-8").splitlines()[0]) == EXAMPLES[0]
