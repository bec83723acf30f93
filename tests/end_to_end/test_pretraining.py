"""Pre-training, fine-tuning on labels, episodes: the same bits after a stop, the same updates by two processes."""

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from nmtkit.config.recipe import load_recipe
from nmtkit.data.prepare import prepare
from nmtkit.distributed.workers import Workers
from nmtkit.run import find_model
from nmtkit.training import loop
from nmtkit.training.resume import verify_resume
from nmtkit.training.session import train
from tests.conftest import determined, metrics_without_time
from tests.training.updates import largest_difference, run_two_processes

STEPS, STOPPED_AT = 16, 7
SHARED = (
    'normalize = []\nsubwords = "characters"\nsequence_length = 16\n'
    '[model]\narchitecture = "decoder"\ndecoder_layers = 1\nd_model = 16\nd_ff = 32\nnum_heads = 2\ndropout = 0.1\n'
    'positions = "learned"\nmax_positions = 16\n[training]\nsequences_per_update = 12\ntokens_per_pass = 40\n'
    "peak_learning_rate = 0.01\nwarmup_steps = 3\nlabel_smoothing = 0.0\nmax_steps = 16\nvalidate_bleu = false\n"
    'validate_every_steps = 5\nreport_every_steps = 1\ncheckpoint_every_steps = 100\nprecision = "float32"\n'
    "keep_last = 1\n[decoding]\naverage_last = 1\n"
)
TEXT = '[data]\ntask = "language-model"\ntarget_language = "en"\ntrain = [{ text = "text.txt" }]\n' + SHARED
TEXT = TEXT.replace("[decoding]", 'schedule = "cosine"\nweight_decay = 0.01\n[decoding]')
LABELS = '[data]\ntask = "label"\nsource_language = "en"\nvalid = 8\ntokenizer = "pre-trained"\n' + SHARED
LABELS = LABELS.replace("normalize", 'train = [{ source = "labelled.txt", target = "labels.txt" }]\nnormalize')
LABELS = LABELS.replace("[decoding]", 'schedule = "linear"\nsource_loss = 0.5\ninit = "pre-trained"\n[decoding]')
EPISODES = '[data]\ntask = "trajectories"\nenvironment = "graph"\nepisodes = 80\nvalid = 8\n' + SHARED
EPISODES = EPISODES.replace('subwords = "characters"\n', "").replace("[decoding]", 'schedule = "constant"\n[decoding]')
PHASES = {"text": TEXT, "labels": LABELS, "episodes": EPISODES}
VARIANTS = {"whole": [], "stopped": [], "plain": ["model.dropout=0.0", "training.adam_epsilon=1e-3"]}
"""Overrides. With a small epsilon, Adam would enlarge the rounding of gradients that are 0, as of key biases."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both recipes, their prepared data, and a pre-trained model."""
    folder = tmp_path_factory.mktemp("project")
    words = [f"{chr(97 + number % 8)}{'bcdefgh'[: number % 7]}" for number in range(200)]
    (folder / "text.txt").write_text("\n".join(" ".join(words[n : n + 6]) for n in range(0, 200, 6)), "utf-8")
    (folder / "labelled.txt").write_text(
        "".join(f"{word} {number % 8}\n" for number, word in enumerate(words)), "utf-8"
    )
    (folder / "labels.txt").write_text("".join(("no\n", "yes\n")["a" in word] for word in words), "utf-8")
    for phase, text in PHASES.items():
        (folder / f"{phase}.toml").write_text(text, encoding="utf-8")
        recipe = load_recipe(str(folder / f"{phase}.toml"))
        prepare(recipe, folder / f"{phase}-prepared", workers=1)
        if phase == "text":
            shutil.copytree(folder / "text-prepared", folder / "pre-trained")
            train(recipe, folder / "pre-trained", Workers.start("cpu", "float32", 1))
    return folder


def train_all(project: Path, output: Path, workers: Workers, variants: Sequence[str] = tuple(VARIANTS)) -> None:
    """Train variants of each phase in their folders; one of them is stopped by a signal and resumed."""
    rate: Callable[..., float] = loop.learning_rate

    def stop(step: int, *others: Any) -> float:
        if step == STOPPED_AT and workers.is_main:
            os.kill(os.getpid(), signal.SIGTERM)
        return rate(step, *others)

    with pytest.MonkeyPatch.context() as patch:
        for phase in PHASES:
            for name in variants:
                recipe = load_recipe(str(project / f"{phase}.toml"), VARIANTS[name])
                if name == "stopped":
                    patch.setattr(loop, "learning_rate", stop)
                    result = train(recipe, output / f"{phase}-{name}", workers)
                    assert (result.signal, result.step) == (signal.SIGTERM, STOPPED_AT)
                    patch.setattr(loop, "learning_rate", rate)
                assert train(recipe, output / f"{phase}-{name}", workers).step == STEPS


def copies(project: Path, output: Path) -> Path:
    for phase in PHASES:
        for name in VARIANTS:
            shutil.copytree(project / f"{phase}-prepared", output / f"{phase}-{name}")
    return output


@pytest.fixture(scope="module")
def one(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one process, with dropout."""
    output = copies(project, tmp_path_factory.mktemp("one"))
    train_all(project, output, Workers.start("cpu", "float32", 1), ["whole", "stopped"])
    return output


@pytest.fixture(scope="module")
def two(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of two processes."""
    output = copies(project, tmp_path_factory.mktemp("two"))
    script = (
        "import sys\nfrom pathlib import Path\nfrom nmtkit.distributed.workers import Workers\n"
        "from tests.end_to_end.test_pretraining import train_all\n"
        "with Workers.start('cpu', 'float32', 1) as workers:\n    train_all(*map(Path, sys.argv[1:]), workers)\n"
    )
    run_two_processes(script, output, str(project), str(output))
    return output


def at_the_end(run: Path) -> dict[str, Any]:
    """The reports, and the weights, optimizer and counters after the last update."""
    return {name: found for name, found in determined(run).items() if name == "metrics" or f"{STEPS:08d}" in name}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("processes", ["one", pytest.param("two", marks=pytest.mark.slow)])
def test_stop_and_resume_give_the_same_bits(request: pytest.FixtureRequest, processes: str, phase: str) -> None:
    folder: Path = request.getfixturevalue(processes)
    whole, stopped = at_the_end(folder / f"{phase}-whole"), at_the_end(folder / f"{phase}-stopped")
    assert [line["step"] for line in whole["metrics"]] == list(range(1, STEPS + 1))
    assert sum(name.endswith(".safetensors") for name in whole) >= 2  # the checkpoint and the resume state
    assert whole == stopped


@pytest.mark.parametrize("phase", PHASES)
def test_the_updates_after_the_stop_are_verified(project: Path, one: Path, phase: str) -> None:
    recipe, workers = load_recipe(str(project / f"{phase}.toml")), Workers.start("cpu", "float32", 1)
    assert verify_resume(recipe, one / f"{phase}-stopped", workers) == (STOPPED_AT + 1, STEPS)


@pytest.mark.slow
def test_two_processes_make_the_updates_of_one(project: Path, one: Path, two: Path) -> None:
    """Without dropout, which is random for each process; up to rounding of float32."""
    train_all(project, one, Workers.start("cpu", "float32", 1), ["plain"])
    for phase in PHASES:
        dropped, alone, together = (
            load_file(find_model(run) / "model.safetensors")
            for run in (one / f"{phase}-whole", one / f"{phase}-plain", two / f"{phase}-plain")
        )
        assert largest_difference(together, alone) < 1e-4 < 1e-2 < largest_difference(dropped, alone)
        reports = [metrics_without_time(folder / f"{phase}-plain") for folder in (one, two)]
        for line, other in zip(*reports, strict=True):
            assert line["target_tokens"] == other["target_tokens"]
            assert line["loss"] == pytest.approx(other["loss"], rel=1e-4)
            assert line.get("valid_nll", 0.0) == pytest.approx(other.get("valid_nll", 0.0), rel=1e-4)
