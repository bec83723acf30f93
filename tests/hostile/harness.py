"""Runs hostile cases: each in a process forked from one that has imported everything, in a copy of a small project.

As a program it is that process: `python harness.py BASE CASES RESULTS JOBS` reads cases from a JSON file and writes a
line of JSON for each. It computes nothing itself before it forks, for threads do not survive that.
"""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))
from damage import apply, remove

SECONDS, WAITING_SECONDS = 20, 100
"""No case may take longer: of the processor, and by the clock, which runs on while other work has the processor."""
EXIT_CODES = (0, 1, 2, 129, 130, 143)
MEMORY_BYTES = 16 * 2**30
"""Address space of a case, so that what asks for too much gets an error and not the machine."""
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
TEMPORARY = ".nmtkit-tmp-"


@dataclass
class Case:
    """A command in a project of which something is hostile.

    Attributes:
        arguments: of nmtkit, relative to the project.
        damage: what is done to files first; see `damage.apply`.
        streams: a path for stdin, stdout or stderr by its name, or "closed".
        environment: variables that are set, or removed (None).
        in_place: whether it works in the project itself, before all other cases, to make what they need.
        traced: whether the files that it opens are found out.
    """

    name: str
    arguments: list[str]
    damage: list[list[Any]] = field(default_factory=list)
    streams: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)
    in_place: bool = False
    traced: bool = False


def command(case: Case) -> int:
    """Runs the command of a case in this process, from its arguments to its exit code."""
    from nmtkit.cli.main import main

    sys.argv = ["nmtkit", *case.arguments]
    if case.traced:
        trace(Path.cwd())
    try:
        main()
        code: Any = 0
    except SystemExit as stop:
        code = stop.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    return int(code or 0)


def trace(folder: Path) -> None:
    """Has this process note the files of the project that it opens, in a file beside the project."""
    descriptor = os.open(folder.parent / "opened", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, Path)) and not isinstance(arguments[2], str):
            path = os.path.normpath(folder / arguments[0])
            is_read = not arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if is_read and path.startswith(f"{folder}/"):
                os.write(descriptor, f"{path[len(str(folder)) + 1 :]}\n".encode())

    sys.addaudithook(note)


def forked(case: Case, folder: Path, out: Path, err: Path, run: Callable[[Case], int] = command) -> int:
    """Starts a process for a case and returns its number."""
    process = os.fork()
    if process:
        return process
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        for number, (name, path) in enumerate((("stdin", "/dev/null"), ("stdout", str(out)), ("stderr", str(err)))):
            redirect(number, case.streams.get(name, path))
        for name, value in case.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        sys.stdin = sys.__stdin__ = stream(0, "r", "strict")
        sys.stdout = sys.__stdout__ = stream(1, "w", "strict")
        sys.stderr = sys.__stderr__ = stream(2, "w", "backslashreplace")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        leave(run(case))
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        os._exit(99)


def redirect(number: int, path: str) -> None:
    if path == "closed":
        os.close(number)
        return
    flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    descriptor = os.open(path, flags, 0o644)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)


def stream(number: int, mode: str, errors: str) -> Any:
    """The stream as the interpreter would have made it at its start: None where it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return open(number, mode, encoding="utf-8", errors=errors, closefd=False)


def leave(code: int) -> NoReturn:
    """Ends the process as the interpreter does: with 120 where what stdout still holds cannot be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        code = code or 120
    os._exit(code)


def wait(process: int) -> int | None:
    """The exit code of a process, negative for a signal; None where it took too long and was killed."""
    end = time.monotonic() + WAITING_SECONDS
    is_late = False
    while not is_late:
        is_late = time.monotonic() >= end  # before the last look, for this process may have had to wait itself
        done, status, used = os.wait4(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) if used.ru_utime + used.ru_stime <= SECONDS else None
        time.sleep(0.005)
    with suppress(ProcessLookupError):  # it leads no group yet
        os.killpg(process, signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def contents(folder: Path) -> dict[str, str]:
    """What every entry of a project is: the sum of a file, the target of a link, the kind of anything else."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(root) / name
            place = str(path.relative_to(folder))
            if path.is_symlink():
                found[place] = f"link to {path.readlink()}"
            elif path.is_file():
                found[place] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[place] = "folder" if path.is_dir() else "special"
    return found


State = dict[str, tuple[str, int, int]]


def state(folder: Path) -> State:
    """What `contents` tells of every entry of a project, and its mode and the time of its last change."""
    facts = {name: (content, (folder / name).lstat()) for name, content in contents(folder).items()}
    return {name: (content, stat.st_mode, stat.st_mtime_ns) for name, (content, stat) in facts.items()}


def renew(copy: Path, base: Path, wanted: State) -> None:
    """Makes a folder the same as the project, whose state is given.

    Only entries of it in which anything differs are copied: to copy all takes several times as long as most cases.
    """
    copy.mkdir(exist_ok=True)
    found = state(copy)
    for entry in {Path(name).parts[0] for name, _ in found.items() ^ wanted.items()}:
        remove(copy / entry)
        if (base / entry).is_dir() and not (base / entry).is_symlink():
            shutil.copytree(base / entry, copy / entry, symlinks=True)
        elif entry in wanted:
            shutil.copy2(base / entry, copy / entry, follow_symlinks=False)


def faults(
    case: Case, code: int | None, out: str, err: str, before: dict[str, str], after: dict[str, str]
) -> list[str]:
    """What a case broke of what is promised."""
    found = []
    if code is None:
        return [f"took longer than {SECONDS} s of the processor, or {WAITING_SECONDS} s"]
    if code not in EXIT_CODES:
        found.append(f"exit code {code}")
    if "Traceback (most recent call last)" in err + out:
        found.append("traceback: " + err.strip().rpartition("\n")[2][:200])
    if raw := CONTROL.findall(err):
        found.append(f"control characters {sorted(set(raw))} on stderr")
    errors = [line for line in err.split("\n") if line.startswith("error:")]
    if code == 1 and len(errors) != 1 and "stderr" not in case.streams:
        found.append(f"{len(errors)} lines of error")
    if code == 2 and not err.strip() and "stderr" not in case.streams:
        found.append("wrong usage without a message")
    if left := [name for name in after if TEMPORARY in name and name not in before]:
        found.append(f"left behind {left[0]}")
    if code in (1, 2) and not {"stdout", "stderr"} & {*case.streams}:  # else what failed is only the report of it
        ours = {name for name in {*before, *after} if before.get(name) != after.get(name) and TEMPORARY not in name}
        if changed := sorted(name for name in ours if not may_change(case, name, before, after)):
            found.append(f"failed, but changed {', '.join(changed[:3])}")
    return found


def may_change(case: Case, name: str, before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether a command that fails may have changed a file: stages of its work that are finished are kept, and a
    folder that it was to write into may be there."""
    if name.startswith(("home/", "tmp/")):
        return True
    if after.get(name) == "folder" and name not in before:
        return True
    kept = {
        "prepare": ("run/prepare", "new/prepare", "new/data/report", "run/report"),
        "train": ("run/resume", "run/checkpoints", "run/metrics.jsonl", "run/prediction.json", "run/nonfinite.jsonl"),
        "run": ("run/", "new/"),
        "ablate": ("sweep/",),
        "average": ("run/averaging.json",),
        "score": ("run/cost.json", "run/scores.json"),
    }
    return name.startswith(kept.get(case.arguments[0], ()))


def run_case(case: Case, base: Path, work: Path, wanted: State) -> dict[str, Any]:
    """What came of a case: its faults, and what it wrote.

    Args:
        work: where the copy of the project is that this case works in, and others before it.
        wanted: the state of the project, without a case that works in it.
    """
    folder = base if case.in_place else work / "project"
    work.mkdir(exist_ok=True)
    for entry in work.iterdir():
        if entry != folder:
            remove(entry)
    if not case.in_place:
        renew(folder, base, wanted)
    out, err = work / "stdout", work / "stderr"
    for step in case.damage:
        apply(folder, step)
    before = contents(folder)
    begun = time.monotonic()
    code = wait(forked(case, folder, out, err))
    seconds = time.monotonic() - begun
    written = [path.read_bytes().decode("utf-8", "replace") if path.is_file() else "" for path in (out, err)]
    found = faults(case, code, *written, before, contents(folder))
    opened = sorted({*(work / "opened").read_text().splitlines()}) if case.traced else []
    return {
        "name": case.name, "arguments": case.arguments, "code": code, "seconds": round(seconds, 2), "faults": found,
        "err": written[1][-600:], "opened": [name for name in opened if before.get(name, "folder") != "folder"],
    }  # fmt: skip


def serve(base: Path, cases_path: Path, results_path: Path, jobs: int) -> None:
    """Runs cases, several at a time, each by a process that waits for it."""
    import tests.preloaded  # noqa: F401

    cases = [Case(**entry) for entry in json.loads(cases_path.read_text(encoding="utf-8"))]
    workers = []
    with results_path.with_suffix(".first").open("w", encoding="utf-8") as results:
        for case in (case for case in cases if case.in_place):
            results.write(json.dumps(run_case(case, base, results_path.parent / "work", {})) + "\n")
    cases, wanted = [case for case in cases if not case.in_place], state(base)
    for number in range(jobs):
        process = os.fork()
        if process:
            workers.append(process)
            continue
        try:
            work = results_path.parent / f"work-{number}"
            with results_path.with_suffix(f".{number}").open("w", encoding="utf-8") as results:
                for case in cases[number::jobs]:
                    result = run_case(case, base, work, wanted)
                    results.write(json.dumps(result) + "\n")
                    results.flush()
            shutil.rmtree(work, ignore_errors=True)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if any(os.waitpid(worker, 0)[1] for worker in workers):
        sys.exit("a worker of the hostile suite failed")


def run_cases(cases: list[Case], base: Path, folder: Path, jobs: int = 2) -> Iterator[dict[str, Any]]:
    """Runs cases in processes forked from a new one, and yields what came of each."""
    (folder / "home").mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps([asdict(case) for case in cases]), encoding="utf-8")
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder / "home"), "TERM": "dumb", "COLUMNS": "80",
        "XDG_CACHE_HOME": str(folder / "home"), "NMTKIT_CACHE": str(folder / "home"), "https_proxy": "http://[::1]:9",
        "http_proxy": "http://[::1]:9", "PYTHONWARNINGS": "default",
    }  # fmt: skip
    for name in ("NMTKIT_MIRROR", "RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    arguments = [sys.executable, __file__, str(base), str(folder / "cases.json"), str(folder / "results"), str(jobs)]
    subprocess.run(arguments, env=environment, check=True)
    for part in ("first", *range(jobs)):
        for line in (folder / f"results.{part}").read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
