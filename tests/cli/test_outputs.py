"""Where commands write to: files, pipes and devices, readers that go away, and the mode of what is left."""

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from nmtkit.json_toml import read_json_lines
from tests.cli.outcomes import refusal
from tests.conftest import TinyProject, run_command
from tests.forked import CONTEXT, Forked, piped, run_forked

LINES = [f"ab cde fg {word}" for word in ("hij", "kl", "mno", "pq") * 10]


@pytest.fixture(scope="module")
def trained(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = shutil.copytree(uninterrupted, tmp_path_factory.mktemp("outputs") / "run")
    (run.parent / "text").write_text("".join(f"{line}\n" for line in LINES))
    return run


def forked(run: Path, *options: object) -> "subprocess.CompletedProcess[str]":
    """Translates the text beside a run in a process whose stdout and stderr are pipes."""
    return run_forked("translate", run, "--threads", 1, "--quiet", "--input", run.parent / "text", *options)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Runs a command line of bash in which `nmtkit` is this one."""
    nmtkit = f'nmtkit() {{ {shlex.quote(sys.executable)} -m nmtkit "$@"; }}; set -o pipefail; '
    return subprocess.run(["bash", "-c", nmtkit + command], cwd=folder, input=b"", capture_output=True, check=False)


TRANSLATE = "nmtkit translate run --threads 1 --quiet --input text"


@pytest.fixture(scope="module")
def expected(trained: Path) -> bytes:
    done = forked(trained)
    assert done.returncode == 0, done.stderr
    return done.stdout.encode()


OWN = [
    "recipe.toml", "metrics.jsonl", "data/manifest.json", "scores.json", "averaging.json", "cost.json",
    "generated/a.tsv", "resume/step-00000009/state.json", "translations/manifest.json",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_a_file_that_a_run_needs_is_not_written_over(uninterrupted: Path, name: str, tmp_path: Path) -> None:
    trained = shutil.copytree(uninterrupted, tmp_path / "run")
    if not (trained / name).exists():
        (trained / name).parent.mkdir(parents=True, exist_ok=True)
        (trained / name).write_text("{}")
    before = (trained / name).read_bytes()
    told = refusal("cost", trained, "--json", trained / name, code=2)
    assert "belongs to a model or run; give another file" in told
    assert (trained / name).read_bytes() == before


def test_the_file_that_stdin_reads_is_not_written_over(trained: Path, tmp_path: Path) -> None:
    text, errors = tmp_path / "text", tmp_path / "errors"
    text.write_text("ab cde\n")
    with Forked("translate", trained, "--output", text, stdin=text, err=errors) as process:
        assert process.wait() == 2
    assert "is also the file that stdin reads" in errors.read_text()
    assert text.read_text() == "ab cde\n"


WARNED = (
    "warning: the translation was ended by the maximum length "
    "(--max-length, --max-length-ratio, --max-length-offset): "
    "40 lines: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...\n"
    "warning: the translation is so short that text is probably missing: "
    "40 lines: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...\n"
)
"""What the model, which has hardly been trained, causes on stderr."""


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_pipe_that_is_open_is_written_to_as_it_is(trained: Path, expected: bytes, name: str) -> None:
    done = forked(trained, "--output", name)
    assert (done.returncode, done.stdout.encode(), done.stderr) == (0, expected, WARNED)


@pytest.mark.parametrize(
    "command",
    [
        f"{TRANSLATE} --output >(cat >out) --status >(cat >status); "
        "while ! [ -s out ]; do sleep 0.1; done; sleep 0.2; cat out",
        f"mkfifo fifo; cat fifo & {TRANSLATE} --output fifo; wait; rm fifo",
    ],
)
def test_a_pipe_or_a_device_is_written_to_as_it_is(
    trained: Path, expected: bytes, command: str, tmp_path: Path
) -> None:
    for name in ("run", "text"):
        (tmp_path / name).symlink_to(trained.parent / name)
    done = shell(command, tmp_path)
    assert (done.returncode, done.stderr) == (0, WARNED.encode())
    assert done.stdout == expected
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "text", "out", "status"}


def test_what_the_shell_writes_before_and_after_stays(trained: Path, expected: bytes, tmp_path: Path) -> None:
    done = shell(f"{{ echo a; {TRANSLATE} --output /dev/stdout; echo b; }} >{tmp_path}/all", trained.parent)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "all").read_bytes() == b"a\n" + expected + b"b\n"


def test_status_and_json_go_into_pipes_too(trained: Path) -> None:
    done = forked(trained, "--output", "/dev/null", "--status", "/dev/stdout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith('{"line": 40, "status"')
    text = trained.parent / "text"
    files = ("--hypothesis", text, "--reference", same_text(text), "--json", "/dev/fd/2")
    done = run_forked("score", *files, "--target-language", "de", "--confidence", 0)
    assert '"sacrebleu"' in done.stderr, done.stdout


def translated_for_a_reader_of(lines: int, run: Path, *options: object) -> tuple[int, str]:
    """Translates endless text for a reader of stdout who ends after some lines, and gives the exit code and stderr."""
    with piped("translate", run, "--threads", 1, "--quiet", *options) as (process, stdin, stdout, stderr):
        stdin.write(b"ab cde\n" * 100)
        for _ in range(lines):
            assert stdout.readline().endswith(b"\n")
        stdout.close()
        with suppress(BrokenPipeError):
            while True:
                stdin.write(b"ab cde\n" * 100)
        return process.wait(), stderr.read().decode()


def test_a_reader_that_has_seen_enough_is_no_mistake(trained: Path, tmp_path: Path) -> None:
    assert [translated_for_a_reader_of(lines, trained) for lines in (1, 0)] == [(0, "")] * 2
    done = shell("nmtkit recipes quickstart | true; echo ${PIPESTATUS[0]}", trained.parent)
    assert (done.stdout, done.stderr) == (b"0\n", b"")
    for early in ("--version", "--help", "translate --help"):
        assert shell(f"nmtkit {early} | true; echo ${{PIPESTATUS[0]}}", trained.parent).stdout == b"0\n"
    # Files are written before the tables that the reader does not wait for.
    text, found = trained.parent / "text", tmp_path / "found.json"
    for arguments in (("cost", trained), ("score", "--hypothesis", text, "--reference", same_text(text))):
        assert forked_without_a_reader(tmp_path, *arguments, "--json", found) == ""
        assert json.loads(found.read_bytes())
        found.unlink()


def same_text(path: Path) -> Path:
    """A copy of a file, as the reference for it."""
    return Path(shutil.copy(path, path.with_name("reference")))


def forked_without_a_reader(folder: Path, *arguments: object) -> str:
    """What a command, whose stdout is a pipe that nobody reads, writes to stderr."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    reader.close()
    with writer, Forked(*arguments, out=writer, err=folder / "errors") as process:
        process.wait()
    return (folder / "errors").read_text()


def test_a_file_that_a_broken_pipe_leaves_unwritten_is_an_error(trained: Path, tmp_path: Path) -> None:
    lost, found, text = tmp_path / "lost", tmp_path / "found", trained.parent / "text"
    for options, reader in (
        (("--status", lost), "a reader of the output"),
        (("--output", lost, "--status", "/dev/fd/1"), "the reader of /dev/fd/1"),
    ):
        code, errors = translated_for_a_reader_of(0, trained, *options)
        assert code == 1
        assert errors.startswith(f"error: {lost}: not written, because {reader}")
        assert errors.count("\n") == 1
        assert not lost.exists()
    files = ("--hypothesis", text, "--reference", same_text(text), "--json", found, "--sentences", "/dev/fd/1")
    forked_without_a_reader(tmp_path, "score", *files, "--confidence", 0)
    assert json.loads(found.read_bytes())


def test_a_file_where_a_folder_should_be_is_named(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = f"{tmp_path}/file: is no folder, so x.json cannot be in it; choose another one"
    assert refusal("cost", trained, "--json", tmp_path / "file" / "x.json") == told


def test_an_output_may_have_a_name_of_240_bytes(trained: Path, expected: bytes, tmp_path: Path) -> None:
    name = "ö" * 118 + ".txt"
    files = ("--input", trained.parent / "text", "--output", tmp_path / name)
    assert run_command("translate", trained, "--threads", 1, "--quiet", *files) == (0, "", WARNED)
    assert (tmp_path / name).read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_written_follows_the_umask(tiny: TinyProject, tmp_path: Path) -> None:
    before = os.umask(0o027)  # neither the usual one nor that of private files
    try:
        run = tmp_path / "run"
        for arguments in (
            ("run", tiny.recipe, "--run-dir", run, "--device", "cpu", "--threads", 1),
            ("report", run),
            ("export", run, "--format", "ctranslate2", "--threads", 1),
            ("export", run, "--format", "huggingface", "--threads", 1),
        ):
            outcome = run_command(*arguments)
            assert outcome.code == 0, outcome.err
        shutil.copy(run / "data" / "valid.source.txt", tmp_path / "text")
        files = ("--input", tmp_path / "text", "--output", tmp_path / "out.gz", "--status", tmp_path / "status")
        assert run_command("translate", run, *files).code == 0
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    odd = [
        (str(path.relative_to(tmp_path)), oct(mode))
        for path, mode in modes.items()
        if mode != (0o750 if path.is_dir() else 0o640) and path.name not in ("text", ".lock")
    ]
    assert odd == []
    assert len([path for path in modes if path.name == "model.safetensors"]) >= 3
    assert len(read_json_lines(tmp_path / "status")) == 20
