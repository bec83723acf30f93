"""What the operating system refuses ends a command in one line, wherever it happens."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.outcomes import refusal
from tests.conftest import run_command


def ended(program: str, *arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
    """How a Python program ends: its exit code, what it prints, and its stderr."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (OSError(errno.ELOOP, "Too many levels of symbolic links", "a\x1b[2Jb"), "a␛[2Jb: Too many levels"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files; raise the limit (`ulimit -n`)"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable; end other"),
        (PermissionError(errno.EACCES, "Permission denied", "a/.b.nmtkit-tmp-host-7"), "a/b: Permission denied; chan"),
        (PermissionError(errno.EACCES, "Permission denied", "a/.b.nmtkit-tmp-x-7/c"), "a/b/c: Permission denied; ch"),
        (OSError("an odd file"), "an odd file"),
        (RuntimeError("can't start new thread"), "no more threads can be started; end other processes"),
        (RuntimeError("Resource temporarily unavailable"), "no more threads can be started; end other processes"),
        (ImportError("libx.so: failed to map segment from shared object"), "out of memory; use smaller batches"),
        (MemoryError(), "out of memory; use smaller batches"),
        (ValueError("embedded null byte"), "the name of a file holds a NUL character"),
    ],
)
def test_a_refusal_of_the_system_is_one_line(monkeypatch: pytest.MonkeyPatch, fault: Exception, message: str) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise fault

    monkeypatch.setattr("nmtkit.cli.prepare.load_recipe", refuse)
    assert refusal("prepare", "quickstart").startswith(message)


def test_a_file_in_place_of_the_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = f"{tmp_path / 'file'}: a file is in the way; give another folder with --run-dir"
    assert refusal("prepare", "quickstart", "--run-dir", tmp_path / "file") == told


def test_a_file_without_permission_is_an_error_and_no_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("text")
    opened = Path.open

    def refusing(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "file":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr("os.access", lambda path, mode, **options: False)  # root may read every file
    monkeypatch.setattr(Path, "open", refusing)
    told = f"{tmp_path / 'file'}: may not be read (permission denied)"
    assert refusal("extract", "--input", tmp_path / "file") == told


def test_a_user_without_a_name_gets_one_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setenv("USER", "")
    assert run_command("recipes").code == 0
    assert os.environ["USER"] == str(os.getuid())


@pytest.mark.parametrize(("within", "after"), [("pass", "time.sleep(60)"), ("time.sleep(60)", "pass")])
def test_a_stop_during_an_import_is_not_lost(tmp_path: Path, within: str, after: str) -> None:
    # As extensions written in C do, which clear what their own imports raise.
    (tmp_path / "clearing.py").write_text(
        "import os, signal, time\n"
        f"try:\n    os.kill(os.getpid(), signal.SIGTERM)\n    {within}\nexcept SystemExit:\n    pass\n"
    )
    program = (
        "import time\nfrom nmtkit.cli import main\nmain._SECONDS_OF_AN_IMPORT = 0.2\n"
        f"def work():\n    import clearing\n    {after}\n    print('went on')\n"
        "main.app = work\nmain.main()"
    )
    assert ended(program, folder=tmp_path) == (143, "", "")


def test_a_stop_that_other_code_swallows_is_repeated() -> None:
    # As pydantic's serializer does with what the functions raise that choose a type of a union.
    program = (
        "import os, signal, time\nfrom nmtkit.cli import main\n"
        "def work():\n"
        "    try:\n        try:\n            os.kill(os.getpid(), signal.SIGTERM)\n"
        "        except SystemExit:\n            print('goes on', flush=True)\n        time.sleep(60)\n"
        "    finally:\n        time.sleep(0.2)\n        print('cleaned up', flush=True)\n"
        "main.app = work\nmain.main()"
    )
    assert ended(program) == (143, "goes on\ncleaned up\n", "")


def test_a_stop_that_becomes_an_error_of_a_library_is_no_damage(tmp_path: Path) -> None:
    # As safetensors does with what torch raises when a stop interrupts it.
    (tmp_path / "model.safetensors").touch()
    program = (
        "import os, signal\nfrom pathlib import Path\nimport safetensors.torch\nfrom nmtkit.cli import main\n"
        "from nmtkit.model_folder import load_tensors\n"
        "def load_file(path):\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n        signal.pause()\n"
        "    except SystemExit:\n        raise ValueError('no shape') from None\n"
        "safetensors.torch.load_file = load_file\n"
        "main.app = lambda: load_tensors(Path('model.safetensors'))\nmain.main()"
    )
    assert ended(program, folder=tmp_path) == (143, "", "")


def test_a_postponed_stop_is_handled_as_the_command_handles_stops_by_then(tmp_path: Path) -> None:
    # As a training does, which saves first, and a launcher of processes, which passes the signal on.
    (tmp_path / "last.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    program = (
        "import signal, time\nfrom nmtkit.cli import main\n"
        "def work():\n    import last\n    received = []\n"
        "    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))\n"
        "    time.sleep(0.3)\n    print(*received)\n"
        "main.app = work\nmain.main()"
    )
    assert ended(program, folder=tmp_path) == (0, f"{signal.SIGTERM.value}\n", "")


def test_a_stop_of_a_finished_command_ends_it_silently() -> None:
    program = (
        "import atexit, os, signal\nfrom nmtkit.cli import main\n"
        "def work():\n    atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n    print('done')\n"
        "main.app = work\nmain.main()"
    )
    assert ended(program) == (-signal.SIGTERM, "done\n", "")


def test_streams_block_again() -> None:
    program = (
        "import os, sys\nfrom nmtkit.cli.main import main\n"
        "os.set_blocking(1, False)\nsys.argv = ['nmtkit', '--version']\n"
        "try:\n    main()\nfinally:\n    print(os.get_blocking(1))"
    )
    code, out, _ = ended(program)
    assert (code, out.splitlines()[1:]) == (0, ["True"])


def test_only_a_new_request_to_stop_interrupts_the_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    done, monotonic = [], time.monotonic

    def stop(*arguments: object, **options: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            done.append("cleaned up")
            monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("nmtkit.cli.prepare.load_recipe", stop)
    assert run_command("prepare", "quickstart").code == 130
    assert done == ["cleaned up"]


def test_another_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr("nmtkit.cli.prepare.load_recipe", fail)
    with pytest.raises(ValueError, match="a mistake of ours"):
        run_command("prepare", "quickstart")


def test_a_loop_of_links_and_a_name_with_escapes_are_named_visibly(tmp_path: Path) -> None:
    loop = tmp_path / "loop\x1b[2J.toml"
    loop.symlink_to(loop)
    (tmp_path / "h").write_text("a\n")
    told = refusal("score", "--hypothesis", tmp_path / "h", "--reference", loop)
    assert re.search("^Symlink loop from |Too many levels of symbolic links", told)  # before Python 3.13
    assert "\x1b" not in told


def test_a_system_without_its_locks_is_told_what_nmtkit_runs_on() -> None:
    code = "import sys; sys.modules['fcntl'] = None; from nmtkit.cli.main import main; main()"
    returned, _, err = ended(code, "recipes")
    assert (returned, err.count("\n")) == (1, 1)
    assert err.startswith("error: nmtkit needs the file locks of Linux or macOS; on Windows, run it in the ")


@pytest.mark.parametrize(
    ("streams", "code", "err"),
    [
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("2>&-", 0, ""),
        ("> /dev/full", 1, "error: No space left on device; make room and run the same command again\n"),
        ("2> /dev/full", 0, ""),
    ],
)
def test_streams_that_are_closed_or_full_end_in_no_traceback(streams: str, code: int, err: str) -> None:
    command = f"exec {sys.executable} -m nmtkit corpora {streams}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (code, err)


@pytest.mark.parametrize("name", [".", "/", ""])
def test_a_folder_is_no_text(tmp_path: Path, name: str) -> None:
    (tmp_path / "reference").write_text("a\n")
    told = refusal("score", "--hypothesis", name, "--reference", tmp_path / "reference")
    assert told == f"{name or '.'}: is a folder, not a file"
