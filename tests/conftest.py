"""A prepared run so small that a whole training takes a fraction of a second."""

import errno
import gc
import io
import logging
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

from nmtkit import pipeline
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.data.prepare import prepare
from nmtkit.distributed.interpreter import STOP_SIGNALS
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError
from nmtkit.json_toml import read_json, read_json_lines
from nmtkit.run import Run
from nmtkit.training.resume import verify_resume
from nmtkit.training.session import TrainingResult, train
from nmtkit.training.state import MEASURED
from tests import everything  # noqa: F401

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, here and in every process started here
os.fsync = lambda descriptor: None  # 3 ms each; no test takes the power away
os.environ.pop("COLUMNS", None)  # pytest-xdist sets the width of its own terminal, which is not that of the tests
settings.register_profile("nmtkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work may run
settings.load_profile("nmtkit")

WORDS = ["ab", "cde", "fg", "hij", "kl", "mno", "pq", "rst", "uv", "wxyz"]
TIMED = (
    "seconds", "target_tokens_per_second", "flops_per_second", "mfu", "memory_bytes", "gpu_joules", "host_joules",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest files, so that at the end no process waits long for another."""
    items.sort(key=lambda item: item.path.parent.name not in ("hostile", "end_to_end", "training"))


class FirstCalls(type(jaxtyping.config)):  # type: ignore[misc]
    """The settings of jaxtyping, with shapes of tensors checked in the first three calls of each function in a test.

    The others, of long trainings and searches, repeat these: with all of them, test_decoder_only.py took twice as long.
    """

    @property
    def jaxtyping_disable(self) -> bool:
        function = sys._getframe(1).f_locals["fn"]  # jaxtyping's wrapper of it asks
        self.calls[function] += 1
        return bool(self.calls[function] > 3)


jaxtyping.config.__class__ = FirstCalls
jaxtyping.config.calls = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    jaxtyping.config.calls.clear()


@dataclass
class TinyProject:
    """A recipe and its prepared data, of which every test takes a copy.

    Validations are due every 5 updates, checkpoints every 4, reports every 3; an epoch has 7 updates.
    """

    recipe: Path
    prepared: Path

    def copy(self, run: Path) -> Path:
        shutil.copytree(self.prepared, run)
        return run

    def train(self, run: Path, *overrides: str) -> TrainingResult:
        """Trains in this process."""
        return train(load_recipe(str(self.recipe), overrides), run, self.workers())

    def verify(self, run: Path, *overrides: str) -> tuple[int, int]:
        """Repeats the last updates in this process."""
        return verify_resume(load_recipe(str(self.recipe), overrides), run, self.workers())

    def command(self, run: Path, *options: str) -> list[str]:
        """The arguments of a training on one thread."""
        return ["train", str(self.recipe), "--run-dir", str(run), "--device", "cpu", "--threads", "1", *options]

    def workers(self, threads: int = 1) -> Workers:
        return Workers.start("cpu", "float32", threads)


@pytest.fixture(autouse=True, scope="module")
def same_threads() -> Iterator[None]:
    """Trainings of one module leave those of the next as many threads as they found."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def prepared(recipe: Recipe | Path | str, run: Path, *overrides: str) -> tuple[Recipe, Run]:
    """Prepares a run in this process."""
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe), overrides)
    prepare(loaded, run, workers=1)
    return loaded, Run(run)


def train_run(recipe: Recipe | Path | str, run: Path, *overrides: str) -> TrainingResult:
    """Prepares a run and trains it in this process, on one thread."""
    loaded, _ = prepared(recipe, run, *overrides)
    return train(loaded, run, Workers.start("cpu", "float32", 1))


def finished_run(recipe: Path | str, run: Path, *overrides: str) -> Path:
    """Takes all steps of `nmtkit run` in this process, on one thread, and returns the folder of the run."""
    assert pipeline.run(load_recipe(str(recipe), overrides), run, mirror=None, device="cpu", threads=1).exit_code == 0
    return run


def write_corpus(folder: Path, **counts: int) -> None:
    """Writes random words and the same in capitals, so many lines as <name>.en and <name>.de."""
    rng = random.Random(1)
    for name, count in counts.items():
        lines = [rng.choices(WORDS, k=rng.randint(3, 12)) for _ in range(count)]
        (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
        (folder / f"{name}.de").write_text("".join(" ".join(line).upper() + "\n" for line in lines))


TINY_MODEL = "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 16\nd_ff = 32\nnum_heads = 2\n"


def write_project(folder: Path, settings: str, name: str = "mine.toml", **counts: int) -> Path:
    """Writes such corpora, and a recipe with them as its train, valid, test; settings: what follows in it."""
    write_corpus(folder, **counts)
    corpora = "".join(f'{part} = [{{ source = "{part}.en", target = "{part}.de" }}]\n' for part in counts)
    head = f'[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 90\n{corpora}'
    (folder / name).write_text(head + settings, encoding="utf-8")
    return folder / name


def prepared_project(folder: Path, settings: str, **counts: int) -> TinyProject:
    recipe = write_project(folder, settings, **counts)
    prepared(recipe, folder / "run")
    return TinyProject(recipe, folder / "run")


def metrics_without_time(run: Path) -> list[dict[str, Any]]:
    """All of metrics.jsonl but what depends on time and machine."""
    lines = read_json_lines(run / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key not in TIMED} for line in lines]


def num_reports(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def determined(run: Path) -> dict[str, Any]:
    """All of a run that must be the same however often it was interrupted: weights, optimiser, counters, reports."""
    found: dict[str, Any] = {"metrics": metrics_without_time(run)}
    for path in sorted(run.glob("*/step-*/*.safetensors")):
        found[str(path.relative_to(run))] = path.read_bytes()
    for path in sorted(run.glob("resume/step-*/state.json")):
        state = read_json(path)
        counters = {key: value for key, value in state["progress"].items() if not key.endswith(MEASURED)}
        meter = {key: value for key, value in state["meter"].items() if key != "seconds"}
        found[str(path.relative_to(run))] = (counters, meter, state["unfinished"])
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def message_of(action: Callable[[], object], kind: type[Exception] = DataError, match: str | None = None) -> str:
    """The message, of one line, of the error that an action ends with."""
    with pytest.raises(kind, match=match) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def keep_used_files(monkeypatch: pytest.MonkeyPatch, is_used: Callable[[int], bool]) -> None:
    """Removes files as NFS does: one in use, by the number of its inode, only gets a hidden name."""
    unlink = os.unlink

    def unlink_unused(path: str | Path, *, dir_fd: int | None = None) -> None:
        number = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_ino
        hidden = Path(path).with_name(f".nfs{number}")
        if not is_used(number):
            unlink(path, dir_fd=dir_fd)
        elif Path(path) == hidden:
            raise OSError(errno.EBUSY, "Device or resource busy")
        else:
            os.rename(path, hidden, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_unused)


def is_mapped(number: int) -> bool:
    """Whether this process has mapped a file with this number of its inode."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    return str(number) in {fields[4] for fields in lines}


@contextmanager
def process_restored() -> Iterator[None]:
    """For commands run in this process: put signal handlers, log handlers, threads and garbage collection back."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    logger = logging.getLogger("nmtkit")
    state = (logger.handlers, logger.propagate, logger.level)
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logger.handlers, logger.propagate = state[0], state[1]
        logger.setLevel(state[2])
        torch.set_num_threads(threads)


@pytest.fixture
def restored_process() -> Iterator[None]:
    with process_restored():
        yield


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What nmtkit logs, also after a command has sent it to the terminal alone."""
    monkeypatch.setattr(logging.getLogger("nmtkit"), "propagate", True)
    return caplog


@dataclass
class Streamed:
    """How a command ended, with the bytes of its stdout."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        assert not self.out or self.out.endswith(b"\n"), self.err
        return self.out.decode("utf-8").split("\n")[:-1]


def run_with_streams(*arguments: object, stdin: bytes = b"", restores: bool = True) -> Streamed:
    """Run an nmtkit command in this process with standard streams of its own, and restore what it changed of it."""
    from nmtkit.cli.main import main

    code: Any = 0
    streams = [io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="\n") for content in (stdin, b"", b"")]
    with process_restored() if restores else nullcontext(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nmtkit", *map(str, arguments)])
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        for stream in streams[1:]:
            stream.flush()
        out, err = (stream.buffer.getvalue() for stream in streams[1:])  # type: ignore[attr-defined]
    return Streamed(code, out, err.decode("utf-8"))


class Outcome(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def run_command(*arguments: object, restores: bool = True) -> Outcome:
    """Runs an nmtkit command in this process, from its arguments to its exit code."""
    done = run_with_streams(*arguments, restores=restores)
    return Outcome(done.code, done.out.decode("utf-8"), done.err)


@pytest.fixture(scope="session")
def tiny_project(tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    return prepared_project(
        tmp_path_factory.mktemp("tiny"),
        f"{TINY_MODEL}dropout = 0.2\nattention_dropout = 0.1\nffn_dropout = 0.1\n"
        "[training]\ntokens_per_update = 450\ntokens_per_pass = 150\nwarmup_steps = 10\ngradient_clip_norm = 1.0\n"
        'precision = "float32"\n'
        "max_steps = 14\nreport_every_steps = 3\nvalidate_every_steps = 5\nvalidate_bleu = false\n"
        "checkpoint_every_steps = 4\nkeep_last = 2\nkeep_best = 1\n[decoding]\naverage_last = 2\nbeam = 2\n",
        train=200,
        valid=20,
    )


@pytest.fixture
def tiny(tiny_project: TinyProject) -> Any:
    """The tiny project, its trainings on one thread."""
    threads = torch.get_num_threads()
    yield tiny_project
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def uninterrupted(tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run, trained to its end: 14 updates; tests only read it, or copy it."""
    threads = torch.get_num_threads()
    run = tiny_project.copy(tmp_path_factory.mktemp("uninterrupted") / "run")
    assert tiny_project.train(run).step == 14
    torch.set_num_threads(threads)
    return run


@pytest.fixture
def run(tiny_project: TinyProject, tmp_path: Path) -> Path:
    """A copy of the prepared run of the tiny project, for a training."""
    return tiny_project.copy(tmp_path / "run")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium without a window, driven by selenium."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("needs chromium and its driver (Debian: apt install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    yield driver
    driver.quit()
