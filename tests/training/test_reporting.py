import importlib.util
import io
import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from nmtkit import console
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import TrainingConfig
from nmtkit.distributed import workers
from nmtkit.distributed.workers import Workers, open_tracker
from nmtkit.errors import NmtkitError
from nmtkit.json_toml import read_json_lines
from nmtkit.run import Run
from nmtkit.tasks.known import task_of
from nmtkit.training import reporting
from nmtkit.training.loop import Meter, Update
from nmtkit.training.panel import Moment, Scores, TrainingPanel
from nmtkit.training.reporting import Reporter, hyperparameters, log_line
from nmtkit.training.state import Progress
from nmtkit.training.validation import Validation
from tests.training.updates import ALONE

pytestmark = pytest.mark.usefixtures("restored_process")
UPDATE = Update(
    step=7, loss=300.0, nll=200.0, learning_rate=0.00123, gradient_norm=0.5, target_tokens=100, real_tokens=180,
    padded_tokens=200, flops=6000, flops_attention=1000, flops_padding=500, seconds=2.0, ends_epoch=False, flags=[],
    flops_encoder=1500, flops_decoder=2500, flops_output=2000,
)  # fmt: skip
SAMPLE = {"source": "ein \x1b[2JHund", "reference": "a dog", "hypothesis": "a " + "very " * 80 + "big dog"}
VALIDATION = Validation(2.0, 31.25, [SAMPLE] * 3)
RATE = 10_000.0


def reporter(run: Path, workers: Workers = ALONE, trackers: Sequence[str] = (), **training: object) -> Reporter:
    config = TrainingConfig.model_validate({"max_steps": 100, **training})
    recipe = load_recipe("quickstart").model_copy(update={"training": config})
    return Reporter(Run(run), recipe, workers, Meter(), RATE, 50, trackers)


def place(**changes: Any) -> Progress:
    progress = Progress(
        step=7, epoch=1, target_tokens=100, flops=6000, flops_attention=1000, flops_padding=500, flops_encoder=1500,
        flops_decoder=2500, flops_output=2000,
    )  # fmt: skip
    return replace(progress, **{"seconds": 4.0, **changes})


# ---- sums


def recent(*updates: Update) -> Meter:
    meter = Meter()
    for update in updates:
        meter.add(update, half_life_seconds=5.0)
    return meter


def test_recent_means_are_weighted_by_time_and_forget() -> None:
    meter = recent(UPDATE)
    assert (meter.mean_loss, meter.mean_nll, meter.padding) == pytest.approx((3.0, 2.0, 0.1))
    assert (meter.target_tokens_per_second, meter.flops_per_second) == (50.0, 3000.0)
    fast = replace(UPDATE, seconds=0.5, loss=100.0)
    meter = recent(UPDATE, fast)
    assert meter.target_tokens_per_second == pytest.approx(100 * (0.5**0.1 + 1) / (2 * 0.5**0.1 + 0.5))
    meter = recent(UPDATE, *[fast] * 1000)
    assert (meter.mean_loss, meter.target_tokens_per_second) == pytest.approx((1.0, 200.0))


def test_the_shares_done_are_of_all_limits_and_count_parts_of_epochs() -> None:
    training = TrainingConfig.model_validate({"max_steps": 70, "max_epochs": 4, "max_minutes": 0.5})
    shares = place(pairs_done=25).shares_done(training, 50)
    assert shares == pytest.approx({"max_steps = 70": 0.1, "max_epochs = 4": 0.375, "max_minutes = 0.5": 4 / 30})
    assert place().shares_done(TrainingConfig(max_steps=5), 50) == {"max_steps = 5": 1.0}
    assert list(place().shares_done(TrainingConfig(max_steps=1_234_567), 50)) == ["max_steps = 1234567"]


# ---- metrics.jsonl


def test_a_line_of_metrics_tells_of_the_updates_since_the_last_one(tmp_path: Path) -> None:
    reports = reporter(tmp_path)
    reports.add(UPDATE)
    reports.add(replace(UPDATE, loss=100.0, gradient_norm=1.5, flops=10_000, padded_tokens=300, seconds=6.0))
    reports.add(replace(UPDATE, loss=float("nan"), skipped="nonfinite"))  # has no numbers to sum
    reports.report(place(step=8, flops=16_000, skipped_updates=1), UPDATE.learning_rate, None)
    reports.add(UPDATE)
    reports.report(place(step=9), UPDATE.learning_rate, VALIDATION)
    first, second = read_json_lines(tmp_path / "metrics.jsonl")
    assert first.pop("memory_bytes") > 10**6
    assert first == pytest.approx(
        {
            "step": 8, "epoch": 1, "loss": 2.0, "nll": 2.0, "learning_rate": 0.00123, "gradient_norm": 1.0,
            "target_tokens": 100, "target_tokens_per_second": 25.0, "seconds": 4.0, "padding": 1 - 360 / 500,
            "flops": 16_000, "flops_attention": 1000, "flops_padding": 500, "flops_per_second": 2000.0, "mfu": 0.2,
            "flops_encoder": 1500, "flops_decoder": 2500, "flops_output": 2000, "skipped_updates": 1,
        }
    )  # fmt: skip
    assert (second["flops_per_second"], second["mfu"]) == (3000.0, 0.3)
    assert second["valid_perplexity"] == pytest.approx(math.exp(2))
    assert (second["valid_nll"], second["valid_bleu"], second["samples"]) == (2.0, 31.25, [SAMPLE] * 3)


def test_a_line_of_metrics_has_energy_where_it_was_measured(tmp_path: Path) -> None:
    reports = reporter(tmp_path)
    reports.add(UPDATE)
    reports.report(place(), UPDATE.learning_rate, None)
    reports.report(place(host_joules=250.5, host_seconds=4.0), UPDATE.learning_rate, None)
    reports.report(
        place(gpu_joules=1000.0, gpu_seconds=8.0, host_joules=0.0, host_seconds=4.0), UPDATE.learning_rate, None
    )
    told = [(line.get("gpu_joules"), line.get("host_joules")) for line in read_json_lines(tmp_path / "metrics.jsonl")]
    assert told == [(None, None), (None, 250.5), (1000.0, 0.0)]


def test_the_share_of_the_matmul_rate_is_of_all_devices(tmp_path: Path) -> None:
    reports = reporter(tmp_path, workers=Workers(0, 4, torch.device("cpu"), "float32"))
    reports.add(UPDATE)
    reports.report(place(), UPDATE.learning_rate, None)
    assert read_json_lines(tmp_path / "metrics.jsonl")[0]["mfu"] == pytest.approx(3000 / (4 * RATE))


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    reports = reporter(tmp_path, workers=Workers(1, 2, torch.device("cpu"), "float32"))
    reports.add(UPDATE)
    reports.report(place(), UPDATE.learning_rate, VALIDATION)
    assert list(tmp_path.iterdir()) == []


# ---- the panel


def moment(**changes: Any) -> Moment:
    now = Moment(
        progress=Progress(step=1234, epoch=2, seconds=600.0), update=replace(UPDATE, gradient_norm=0.75),
        recent=recent(UPDATE), share=0.25, limit="max_steps = 4936", seconds_left=1800.0, at=time.monotonic(),
        memory_bytes=2**30,
    )  # fmt: skip
    return replace(now, **changes)


def scores() -> Scores:
    first = {"step": 500, "valid_nll": 1.5, "valid_bleu": 33.5}
    return Scores().after(first).after({"step": 1000, "valid_nll": 2.0, "valid_bleu": 31.25, "samples": [SAMPLE] * 3})


def drawn(
    width: int, height: int = 50, now: Moment | None = None, found: Scores | None = None, task: str = "plain"
) -> list[str]:
    panel = TrainingPanel("my run", RATE, task_of(task))
    panel.moment, panel.scores = now or moment(), found or scores()
    panel.activity = "validating"
    paper = Console(file=io.StringIO(), record=True, width=width, height=height, force_terminal=True)
    paper.print(panel)
    return paper.export_text().rstrip("\n").split("\n")


def in_one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [40, 60, 100, 160])
def test_the_panel_tells_everything_at_any_width(width: int) -> None:
    lines = drawn(width)
    text = in_one_line(lines)
    assert {cell_len(line) for line in lines} == {width}
    for figures in (
        "my run", "25 %", "update 1,234, epoch 3", "validating", "10m00s, 30m00s left (max_steps = 4936)"[: width - 10],
        "loss 3.0000", "nll 2.0000", "perplexity 7.389", "learning rate 1.230e-03", "gradient norm 0.750",
        "tokens/s 50", "FLOP/s 3 k", "MFU 30.0 %", "padding 10.0 %", "memory", "GiB",
        "nll 2.0000 1.5000", "perplexity 7.389 4.482", "BLEU 31.25 33.50", "update 1,000 500",
        "source ein ␛[2JHund", "reference a dog", "translation a very",
    ):  # fmt: skip
        assert figures in text, figures
    assert text.count("translation") == 3
    assert "skipped" not in text
    assert all(line.rstrip(" │").endswith("…") for line in lines if "translation" in line)
    assert not any("\x1b" in line for line in lines)


def test_the_panel_of_labels_has_no_figures_of_text() -> None:
    text = in_one_line(drawn(45, task="label"))
    for figures in ("loss 3.0000", "nll of the label 2.0000", "labels/s 50", "nll of the label 2.0000 1.5000"):
        assert figures in text, figures
    assert not any(word in text for word in ("perplexity", "BLEU", "tokens/s"))


@pytest.mark.parametrize("width", [60, 100, 160])
@pytest.mark.parametrize("height", [8, 16, 24, 30])
def test_the_panel_is_never_higher_than_the_terminal(width: int, height: int) -> None:
    lines = drawn(width, height)
    assert len(lines) < height
    assert "update 1,234" in " ".join(lines)
    assert lines[-1].startswith("╰")


def test_updates_that_were_skipped_are_told() -> None:
    assert "skipped 3" in in_one_line(drawn(60, now=moment(progress=Progress(skipped_updates=2, overflows=1))))


def test_a_panel_before_the_first_update_and_validation_has_no_figures_yet() -> None:
    text = in_one_line(drawn(100, now=moment(recent=Meter(), seconds_left=None), found=Scores()))
    for figure in ("update 1,234", "loss -", "nll - -", "BLEU - -", "tokens/s -", "MFU -", "memory "):
        assert figure in text, figure
    assert "left" not in text
    assert "translation" not in text


def test_an_empty_translation_of_a_sample_is_said_to_be_empty() -> None:
    found = scores().after({"step": 1500, "valid_nll": 2.0, "samples": [{**SAMPLE, "hypothesis": ""}]})
    assert "translation (empty)" in in_one_line(drawn(100, found=found))


def test_scores_without_bleu_and_lines_without_validation() -> None:
    found = Scores().after({"step": 5, "loss": 1.0})
    assert found == Scores()
    found = found.after({"step": 6, "valid_nll": 1.0, "valid_bleu": None, "samples": []})
    assert (found.best_nll, found.best_bleu) == ((1.0, 6), None)
    assert found.after({"step": 7, "valid_nll": 2.0, "valid_bleu": None}).best_nll == (1.0, 6)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_panel_shows_where_training_is_and_is_gone_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")  # so that no message is wrapped
    console.set_up()
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, "valid_nll": 1.25, "valid_bleu": 44.5}) + "\n")
    reports = reporter(tmp_path)
    with reports.showing(place(step=0, seconds=1.0)):
        panel = reports._panel
        assert (panel.moment.seconds_left, panel.scores.best_bleu) == (None, (44.5, 3))
        with reports.doing("validating"):
            assert panel.activity == "validating"
        assert panel.activity == ""
        reports.add(UPDATE)
        reports.report(place(), UPDATE.learning_rate, VALIDATION)
        reports.show(UPDATE, place())
        assert (panel.moment.progress.step, panel.moment.share, panel.moment.limit) == (7, 0.07, "max_steps = 100")
        assert panel.moment.seconds_left == pytest.approx(3.0 / 7 * 93)
        assert (panel.scores.nll, panel.scores.best_nll) == (2.0, (1.25, 3))
    assert tmp_path.name[:20] in terminal.getvalue()
    assert "validation nll 2.0000, perplexity 7.389, BLEU 31.25" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")


# ---- lines


@pytest.mark.parametrize("quiet", [False, True])
def test_without_a_terminal_a_line_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    now = 100.0
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now)
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 10.0)
    console.set_up(quiet=quiet)
    reports = reporter(tmp_path)
    with reports.showing(place(step=0, seconds=0.0)):
        for step in range(1, 13):
            now += 2
            reports.add(replace(UPDATE, step=step))
            reports.show(replace(UPDATE, step=step), place(step=step, seconds=2.0 * step))
    lines = stderr.getvalue().splitlines()
    if quiet:
        assert lines == []
        return
    assert lines == [
        f"training: {step} %, {left} left, update {step}, loss 3.000, nll 2.000, 50 target tokens/s, MFU 30.0 %"
        for step, left in ((5, "3m10s"), (10, "3m00s"))
    ]


def test_a_validation_repeated_on_resume_adds_no_line_where_no_update_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    console.set_up()
    reports = reporter(tmp_path)
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    with reports.showing(place()):
        reports.show(UPDATE, place())
    assert stderr.getvalue() == ""


def test_a_loss_of_exactly_0_is_logged_as_such(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    reports = reporter(tmp_path)
    reports.add(replace(UPDATE, loss=0.0))
    with logged.at_level(logging.INFO):
        reports.report(place(), UPDATE.learning_rate, VALIDATION)
    assert "loss 0.000; validation" in logged.text


def test_the_summary_tells_what_training_came_to(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000007"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.json").write_text("{}")
    reports = reporter(tmp_path)
    reports.add(UPDATE)
    reports.report(place(), UPDATE.learning_rate, VALIDATION)
    with logged.at_level(logging.INFO):
        reports.summarize(place())
    figures, best, kept = logged.messages[-3:]
    assert figures.startswith(
        "7 updates, 1 whole epoch, 4s: 100 target tokens, 25 per second, 6e+03 FLOPs, 1.5 kFLOP/s, MFU 15.0 %"
    )
    assert best == "best validation: nll 2.0000, perplexity 7.389 (update 7); BLEU 31.25 (update 7)"
    assert kept == f"1 checkpoint in {tmp_path / 'checkpoints'}; the last is step-00000007"


# ---- trackers


class Fake:
    """Stands in for one of Accelerate's trackers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.logged: list[tuple[int | None, dict[str, Any]]] = []
        self.tables: list[tuple[str, list[str], list[list[str]], int]] = []
        self.finished = 0

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.logged.append((step, values))

    def log_table(self, table_name: str, columns: list[str], data: list[list[str]], step: int) -> None:
        self.tables.append((table_name, columns, data, step))

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_trackers_are_given_every_line_at_its_step_and_finished_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fake = Fake(name)
    monkeypatch.setattr(reporting, "open_tracker", lambda *_: fake)
    reports = reporter(tmp_path, trackers=[name])
    with pytest.raises(KeyboardInterrupt), reports.showing(place(step=0)):
        reports.add(UPDATE)
        reports.report(place(), UPDATE.learning_rate, None)
        reports.add(UPDATE)
        directions: dict[str, dict[str, float | None]] = {"en-de": {"nll": 1.5, "bleu": None}}
        reports.report(place(step=8), UPDATE.learning_rate, replace(VALIDATION, directions=directions))
        raise KeyboardInterrupt
    assert fake.finished == 1
    for (step, values), line in zip(fake.logged, read_json_lines(tmp_path / "metrics.jsonl"), strict=True):
        samples = line.pop("samples", [])
        texts = {key: values.pop(key) for key in list(values) if key.startswith("samples/")}
        if "valid_nll" in line:
            assert values.pop("valid_nll/en-de") == line.pop("valid_directions")["en-de"]["nll"]
        assert {"step": step, **values} == line
        assert len(texts) == (3 if samples and name == "tensorboard" else 0)
        assert all("reference  a dog" in text for text in texts.values())
    columns = ["source", "reference", "hypothesis"]
    rows = [[SAMPLE[column] for column in columns]] * 3
    assert fake.tables == ([("samples", columns, rows, 8)] if name == "wandb" else [])


def test_hyperparameters_are_the_recipe_in_plain_values() -> None:
    flat = hyperparameters(load_recipe("quickstart", ["training.seed=5"]))
    assert (flat["training/seed"], flat["name"]) == (5, "quickstart")
    assert flat["data/normalize"] == '["blanks"]'
    assert all(isinstance(value, bool | int | float | str) for value in flat.values())


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(workers, "find_spec", lambda module: None)
    message = rf"--tracker {name}: {name} is not installed; run `pip install 'nmtkit\[{name}\]'`"
    with pytest.raises(NmtkitError, match=message):
        open_tracker(name, tmp_path, {}, 1)
    assert list(tmp_path.iterdir()) == []


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.mark.skipif(not has("tensorboard"), reason="needs tensorboard")
@pytest.mark.filterwarnings("default")
def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = hyperparameters(load_recipe("quickstart"))
    for session, steps in enumerate([(10, 20, 30), (20, 30)]):  # stopped after 30, the last save being of 10
        tracker = open_tracker("tensorboard", tmp_path, settings, 1 if session == 0 else 11)
        for step in steps:
            line = {"step": step, "loss": float(step + session), "valid_bleu": None, "samples": [SAMPLE]}
            log_line(tracker, line)
        tracker.finish()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(10, 10.0), (20, 21.0), (30, 31.0)]
    assert "step" not in events.Tags()["scalars"]
    texts = events.Tensors("samples/1/text_summary")
    assert b"reference  a dog" in texts[0].tensor_proto.string_val[0]
    (stored,) = (tmp_path / "tensorboard").glob("*/hparams.yml")
    assert "training/seed: 1" in stored.read_text()


@pytest.mark.parametrize(("known", "first_step", "resumed"), [("7f3\n", 11, ["7f3"]), ("", 11, []), ("7f3\n", 1, [])])
def test_a_run_of_wandb_goes_on_by_the_id_that_was_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str, first_step: int, resumed: list[str]
) -> None:
    class OfWandb(Fake):
        run = SimpleNamespace(id="8a1")

        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__("wandb")
            assert [options[key] for key in ("id",) if key in options] == resumed

        def start(self) -> None:
            pass

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            pass

    modules = SimpleNamespace(Settings=dict, errors=SimpleNamespace(Error=OSError))
    monkeypatch.setattr(workers, "check_trackers", lambda names: None)
    monkeypatch.setattr("accelerate.tracking.WandBTracker", OfWandb)
    monkeypatch.setitem(sys.modules, "wandb", modules)
    path = tmp_path / "wandb" / "run-id"
    path.parent.mkdir()
    path.write_text(known)
    with path.open() as before:
        open_tracker("wandb", tmp_path, {}, first_step)
        assert before.read() == known  # the new file replaces the old one
    assert path.read_text() == "8a1\n"


@pytest.mark.skipif(not has("wandb"), reason="needs wandb")
@pytest.mark.filterwarnings("default")
def test_wandb_keeps_offline_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = open_tracker("wandb", tmp_path, hyperparameters(load_recipe("quickstart")), 1)
    log_line(tracker, {"step": 10, "loss": 1.5, "samples": [SAMPLE]})
    tracker.finish()
    identity = (tmp_path / "wandb" / "run-id").read_text().strip()
    (stored,) = (tmp_path / "wandb").glob(f"offline-run-*/run-{identity}.wandb")
    content = stored.read_bytes()
    assert b"loss" in content
    assert b"training/seed" in content
