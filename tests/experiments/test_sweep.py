"""A sweep from its rows to its tables: data shared, runs resumed, failures isolated."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmtkit.cli.ablate import _summary
from nmtkit.config.recipe import load_recipe
from nmtkit.decoding.translator import Translator
from nmtkit.errors import NmtkitError
from nmtkit.evaluation.metrics import score
from nmtkit.experiments import sweep as sweep_module
from nmtkit.experiments.results import make_report, result_tables, write_report
from nmtkit.experiments.rows import PlannedRun, Sweep, plan, read_sweep
from nmtkit.experiments.sweep import finished_result, prepare_sweep, refuse_another_sweep, run_here
from nmtkit.files import sha256_of, sha256_of_files
from nmtkit.json_toml import read_json, read_json_lines, write_json
from nmtkit.model_folder import read_tensors
from nmtkit.run import Run
from nmtkit.training.validation import Validation
from tests.conftest import TinyProject, run_command
from tests.forked import Forked, run_forked

ROWS = """
title = "Two ways"
[base]
model = { d_model = 16, num_heads = 2, d_ff = 32 }
[[rows]]
name = "base"
paper = { perplexity = 4.92, bleu = 25.8, parameters = 65 }
[[rows]]
name = "narrow"
group = "C"
model = { d_ff = 8 }
[[rows]]
name = "broken"
training = { freeze = ["no-such-part"] }
[[findings]]
text = "narrower is worse"
metric = "perplexity"
better = "base"
other = "narrow"
[[findings]]
text = "a failed run is worse"
metric = "perplexity"
better = "base"
other = "broken"
"""


@dataclass
class Swept:
    recipe: Path
    rows: Path
    folder: Path
    done: subprocess.CompletedProcess[str]

    @property
    def report(self) -> dict[str, Any]:
        return dict(read_json(self.folder / "ablations.json"))


def ablate(recipe: Path, rows: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    place = ("--rows-file", rows, "--sweep-dir", folder)
    return run_forked("ablate", recipe, *place, "--device", "cpu", "--threads", 1, *more)


@pytest.fixture(scope="module")
def swept(tiny_project: Any, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Three rows, of which one fails; "base" was finished before."""
    folder = tmp_path_factory.mktemp("sweep")
    rows = folder / "rows.toml"
    rows.write_text(ROWS, encoding="utf-8")
    planned, fingerprint = make_plan(tiny_project.recipe, rows, folder / "all")
    run_here(planned[0], folder / "all", fingerprint, "cpu", 1)
    done = ablate(tiny_project.recipe, rows, folder / "all", "--jobs", "2")
    return Swept(tiny_project.recipe, rows, folder / "all", done)


@pytest.fixture
def copy(swept: Swept, tmp_path: Path) -> Path:
    """A copy of the folder of the sweep, to change."""
    return Path(shutil.copytree(swept.folder, tmp_path / "all"))


def make_plan(recipe: Path, rows: Path, folder: Path, *overrides: str, seeds: int = 1) -> tuple[list[PlannedRun], str]:
    loaded, sweep = load_recipe(str(recipe), overrides), read_sweep(rows)
    return plan(loaded, sweep, sweep.rows, seeds=seeds, scale=False), prepare_sweep(loaded, folder, None, "cpu", 1)


def test_a_failed_run_is_told_and_the_others_go_on(swept: Swept) -> None:
    assert swept.done.returncode == 1
    rows = {row["name"]: row for row in swept.report["rows"]}
    assert [run["state"] for row in rows.values() for run in row["runs"]] == ["finished", "finished", "failed"]
    error = rows["broken"]["runs"][0]["error"]
    assert "no-such-part" in error and "\n" not in error
    assert f"failed: broken-seed1: {error}" in swept.done.stdout
    assert re.search(rf"^error: \d/3 broken-seed1: {re.escape(error)}$", swept.done.stderr, flags=re.MULTILINE)
    assert "Traceback" not in swept.done.stdout + swept.done.stderr
    verdicts = {finding["other"]: finding["verdict"] for finding in swept.report["findings"]}
    assert verdicts["broken"] == "not comparable: a run failed"


def test_results_are_those_of_the_last_checkpoint_on_the_validation_set(swept: Swept) -> None:
    for name in ("base", "narrow"):
        row = next(row for row in swept.report["rows"] if row["name"] == name)
        run = swept.folder / f"{name}-seed1"
        result = row["runs"][0]["result"]
        last = Run(run).checkpoints()[-1]
        assert result["checkpoint"] == 14 and last.name == "step-00000014"
        assert (result["updates"], result["checkpoint_is"]) == (14, "last")
        sources, references = Run(run).valid_text.read()
        translations = Translator.load([last], "cpu").translate(sources)
        scores = score(references=references, hypotheses=translations, target_language="de", text="plain")
        assert result["bleu"] == pytest.approx(scores["sacrebleu"].score)
        weights = read_tensors(last / "model.safetensors").values()
        assert result["parameters"] == sum(tensor.numel() for tensor in weights)
        assert result["flops"] == read_json(run / "resume" / "step-00000014" / "state.json")["progress"]["flops"]
        assert row["bleu"] == {"mean": result["bleu"], "lowest": result["bleu"], "highest": result["bleu"]}


def result_of_row(recipe: Path, folder: Path, training: str) -> dict[str, Any]:
    """The result of a sweep of one row, "one", in folder / "all"."""
    rows = folder / "rows.toml"
    rows.write_text(f'title = "t"\n[[rows]]\nname = "one"\ntraining = {{ {training} }}\n')
    planned, fingerprint = make_plan(recipe, rows, folder / "all")
    result = run_here(planned[0], folder / "all", fingerprint, "cpu", 1)
    assert isinstance(result, dict)
    return result


def test_a_perplexity_is_that_of_a_validation_at_the_same_update(tiny: Any, tmp_path: Path) -> None:
    result = result_of_row(tiny.recipe, tmp_path, "max_steps = 10, checkpoint_every_steps = 5")
    validated = [line for line in read_json_lines(tmp_path / "all/one-seed1/metrics.jsonl") if line["step"] == 10]
    assert result["perplexity"] == pytest.approx(validated[-1]["valid_perplexity"], rel=1e-6)


def test_under_patience_the_best_checkpoint_is_measured(tiny: Any, tmp_path: Path) -> None:
    result = result_of_row(
        tiny.recipe,
        tmp_path,
        "patience_validations = 50, validate_every_steps = 1, checkpoint_every_steps = 1, max_steps = 3, "
        "keep_last = 3, schedule = 'constant', peak_learning_rate = 1.0, warmup_steps = 0",
    )
    lines = read_json_lines(tmp_path / "all/one-seed1/metrics.jsonl")
    found = {line["step"]: line["valid_nll"] for line in lines if "valid_nll" in line}
    best = min(found, key=lambda step: found[step])
    assert best != 3, "else this shows nothing"
    assert (result["checkpoint"], result["checkpoint_is"]) == (best, "best")
    assert result["nll"] == pytest.approx(found[best], rel=1e-6)


@pytest.mark.parametrize("kind", ["best", "last"])
def test_without_a_validated_checkpoint_the_last_one_is_measured(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "last":  # as if the only validation, that of the end, were not finite
        monkeypatch.setattr("nmtkit.training.session.add_end_score", lambda *_: None)
    training = "patience_validations = 5, validate_every_steps = 99, checkpoint_every_steps = 1, max_steps = 2"
    result = result_of_row(tiny.recipe, tmp_path, training)
    assert (result["checkpoint"], result["checkpoint_is"]) == (2, kind)


def test_data_are_prepared_once_and_shared(swept: Swept) -> None:
    prepared = swept.folder / "prepared" / "data"
    for name in ("base-seed1", "narrow-seed1", "broken-seed1"):
        data = swept.folder / name / "data"
        assert sha256_of_files(data) == sha256_of_files(prepared)
        for file in ("train/source.ids.bin", "tokenizer/joint.model"):
            assert (data / file).stat().st_ino == (prepared / file).stat().st_ino
    assert "up to date" not in swept.done.stdout


def test_the_same_command_again_does_only_what_failed(swept: Swept) -> None:
    def stamps() -> dict[str, int]:
        files = [path for name in ("base", "narrow") for path in (swept.folder / f"{name}-seed1").rglob("*")]
        return {str(path): path.stat().st_mtime_ns for path in files if path.is_file()}

    before, report = stamps(), swept.report
    again = ablate(swept.recipe, swept.rows, swept.folder)
    assert again.returncode == 1
    assert "3 runs, 2 of them finished already" in again.stderr
    assert stamps() == before
    assert swept.report == report


def test_a_run_is_finished_with_the_settings_and_data_it_had_and_no_others(swept: Swept) -> None:
    planned, fingerprint = make_plan(swept.recipe, swept.rows, swept.folder)
    assert finished_result(planned[0], swept.folder, fingerprint) is not None
    assert finished_result(planned[0], swept.folder, "another") is None
    assert finished_result(planned[2], swept.folder, fingerprint) is None
    loaded, sweep = load_recipe(str(swept.recipe), ["training.max_steps=15"]), read_sweep(swept.rows)
    longer = plan(loaded, sweep, sweep.rows, seeds=1, scale=False)
    assert finished_result(longer[0], swept.folder, fingerprint) is None


def test_a_run_is_unfinished_when_the_model_it_began_with_has_other_weights(swept: Swept, tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "all"
    shutil.copytree(Run(swept.folder / "base-seed1").checkpoints()[-1], model)
    settings = (f"training.init={model}", "training.max_steps=1")
    (planned, *_), fingerprint = make_plan(swept.recipe, swept.rows, folder, *settings)
    result = run_here(planned, folder, fingerprint, "cpu", 1)
    assert finished_result(planned, folder, fingerprint) == result
    place = folder / "base-seed1" / "ablation.json"
    written = read_json(place)
    assert written["result"].pop("init_sha256") == sha256_of(model / "model.safetensors")
    place.write_text(json.dumps(written))  # as before the sum was stored
    assert finished_result(planned, folder, fingerprint) is None
    assert run_here(planned, folder, fingerprint, "cpu", 1) == result
    (model / "model.safetensors").write_bytes(b"others")
    assert finished_result(planned, folder, fingerprint) is None
    with pytest.raises(NmtkitError, match="base-seed1 began with other weights than"):
        run_here(planned, folder, fingerprint, "cpu", 1)
    shutil.rmtree(model)
    assert finished_result(planned, folder, fingerprint) == result


def test_a_stopped_run_goes_on_where_it_was(swept: Swept, tiny: Any, tmp_path: Path) -> None:
    planned, fingerprint = make_plan(tiny.recipe, swept.rows, tmp_path)
    shutil.copytree(swept.folder / "base-seed1", tmp_path / "base-seed1")
    expected = read_json(tmp_path / "base-seed1" / "ablation.json")
    (tmp_path / "base-seed1" / "ablation.json").unlink()
    shutil.rmtree(tmp_path / "base-seed1" / "resume" / "step-00000014", ignore_errors=True)
    result = run_here(planned[0], tmp_path, fingerprint, "cpu", 1)
    assert isinstance(result, dict)
    assert {**result, "seconds": None} == {**expected["result"], "seconds": None}


def test_all_runs_of_a_sweep_compute_in_the_precision_of_the_first(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, folder = tmp_path / "rows.toml", tmp_path / "all"
    stated = '[[rows]]\nname = "two"\ntraining = { precision = "float32" }\n'
    rows.write_text('title = "t"\n[[rows]]\nname = "one"\n' + stated, encoding="utf-8")
    planned, fingerprint = make_plan(
        tiny.recipe, rows, folder, "training.precision=auto", "training.max_steps=1", seeds=3
    )
    rates = iter([{"float32": 1e9, "bf16": 2e9}, {"float32": 2e9, "bf16": 1e9}])  # no further trial
    for module in ("nmtkit.training.precision", "nmtkit.experiments.sweep"):
        monkeypatch.setattr(f"{module}.has_bf16_instructions", lambda: True)
    monkeypatch.setattr("nmtkit.training.precision.trial_rates", lambda *_: next(rates))

    def precision_of(run: PlannedRun) -> str:
        result = run_here(run, folder, fingerprint, "cpu", 1)
        assert isinstance(result, dict) and finished_result(run, folder, fingerprint) == result
        return str(result["precision"])

    assert [precision_of(run) for run in planned[:3]] == ["bf16", "float32", "bf16"]
    stored = read_json(folder / "precision.json")
    assert stored == {"cpu": "bf16"}
    write_json(folder / "precision.json", {**stored, "cuda": "float32"})
    assert precision_of(planned[4]) == "bf16", "that of this kind of device"
    write_json(folder / "precision.json", {"cpu": "float32"})
    assert precision_of(planned[0]) == "bf16", "a run that goes on keeps its own"
    assert next(rates)["float32"] == 2e9


def test_the_data_of_a_run_that_another_process_trains_stay(swept: Swept, tmp_path: Path) -> None:
    planned, fingerprint = make_plan(swept.recipe, swept.rows, tmp_path / "all")
    run = Run(tmp_path / "all" / planned[0].name)
    with run.locked("train"), pytest.raises(NmtkitError, match="in use by nmtkit train"):
        run_here(planned[0], tmp_path / "all", fingerprint, "cpu", 1)
    assert not run.data.exists() and not run.recipe_file.exists()


def test_a_run_trained_with_other_data_is_refused(swept: Swept, tmp_path: Path) -> None:
    planned, fingerprint = make_plan(swept.recipe, swept.rows, tmp_path, "data.vocab_size=80")
    shutil.copytree(swept.folder / "base-seed1", tmp_path / "base-seed1")
    with pytest.raises(NmtkitError, match=r"base-seed1 was trained with other data; use another --sweep-dir"):
        run_here(planned[0], tmp_path, fingerprint, "cpu", 1)


@pytest.mark.parametrize(
    ("setting", "changed"), [("data.vocab_size=120", "data.vocab_size"), ("training.warmup_steps=9", "warmup_steps")]
)
def test_another_sweep_in_the_folder_is_refused_before_anything_is_written(
    swept: Swept, setting: str, changed: str
) -> None:
    before = sha256_of_files(swept.folder)
    done = ablate(swept.recipe, swept.rows, swept.folder, "--set", setting)
    assert done.returncode == 1
    assert changed in done.stderr
    assert "Take another --sweep-dir" in done.stderr
    assert sha256_of_files(swept.folder) == before


def test_a_finished_run_may_be_measured_anew_or_go_on_and_may_be_of_a_version_with_fewer_settings(
    swept: Swept, copy: Path
) -> None:
    def check(*overrides: str) -> None:
        loaded, sweep = load_recipe(str(swept.recipe), overrides), read_sweep(swept.rows)
        refuse_another_sweep(loaded, plan(loaded, sweep, sweep.rows[:1], seeds=1, scale=False), copy)

    check("decoding.beam=3", "training.keep_last=4", "training.report_every_steps=2", "training.max_steps=15")
    with pytest.raises(NmtkitError, match=r"changed: training\.max_steps = 13 \(was 14\)"):
        check("training.max_steps=13")
    place = copy / "base-seed1" / "ablation.json"
    written = read_json(place)
    del written["settings"]["model"]["dropout"], written["settings"]["training"]["label_smoothing"]
    place.write_text(json.dumps(written))
    with pytest.raises(NmtkitError, match=r"changed: model\.dropout = 0\.2 \(was 0\.1\)"):  # the default was another
        check()
    check("model.dropout=0.1")
    place.write_text("[]")
    check("model.dropout=0.3")
    planned, fingerprint = make_plan(swept.recipe, swept.rows, copy)
    assert finished_result(planned[0], copy, fingerprint) is None


def test_a_run_that_diverged_is_finished_too(swept: Swept, two_rows: Callable[..., dict[str, Any]], copy: Path) -> None:
    place = copy / "base-seed1" / "ablation.json"
    written = read_json(place)
    written["result"]["perplexity"] = 5.4e149
    place.write_text(json.dumps(written))
    planned, fingerprint = make_plan(swept.recipe, swept.rows, copy)
    assert finished_result(planned[0], copy, fingerprint) == written["result"]
    written["result"]["perplexity"] = None  # not a number, which JSON does not have
    place.write_text(json.dumps(written))
    assert finished_result(planned[0], copy, fingerprint) == written["result"]
    cells = [row[10] for row in result_tables(two_rows([5.4e149, math.nan], [3, 4]))[0].rows]
    assert cells == ["diverged", "3.50 (3.00 to 4.00)"]
    findings = result_tables(two_rows([3], [5.4e149], metric="perplexity"))[1]
    assert findings.rows[0][2:] == ["\u22125.4e+149", "holds (one seed)"]


def test_a_diverged_row_is_named_and_its_files_are_json(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "Validator", lambda *about: lambda model: Validation(math.nan, 12.0, []))
    result = result_of_row(tiny.recipe, tmp_path, "max_steps = 1")
    assert _summary(result).startswith("diverged, BLEU 12.0, trained in ")
    done = ablate(tiny.recipe, tmp_path / "rows.toml", tmp_path / "all")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +one .* diverged ", done.stdout, flags=re.MULTILINE)
    for file in (tmp_path / "all" / "ablations.json", tmp_path / "all" / "one-seed1" / "ablation.json"):
        text = file.read_text()
        assert json.loads(text, parse_constant=pytest.fail)
        assert '"perplexity": null' in text


def test_seeds_that_were_not_chosen_stay_in_the_tables(swept: Swept, copy: Path) -> None:
    planned, fingerprint = make_plan(swept.recipe, swept.rows, copy, seeds=2)
    run_here(next(run for run in planned if run.name == "narrow-seed2"), copy, fingerprint, "cpu", 1)
    assert ablate(swept.recipe, swept.rows, copy, "--rows", "base").returncode == 0
    rows = {row["name"]: row for row in read_json(copy / "ablations.json")["rows"]}
    seeds = {name: [(run["seed"], run["state"]) for run in row["runs"]] for name, row in rows.items()}
    assert seeds["base"] == [(1, "finished")]
    assert seeds["narrow"] == [(1, "finished"), (2, "finished")]


def test_rows_that_were_not_chosen_need_not_go_with_the_recipe(swept: Swept, copy: Path, tmp_path: Path) -> None:
    (copy / "base-seed1" / "ablation.json").unlink()  # so that a process has to do it again
    rows = tmp_path / "rows.toml"
    rows.write_text(ROWS + '[[rows]]\nname = "odd"\nmodel = { num_heads = 7 }\n', encoding="utf-8")
    done = ablate(swept.recipe, rows, copy, "--rows", "base")
    assert done.returncode == 0, done.stderr
    assert "1/1 base-seed1: perplexity" in done.stderr
    # The tables keep the other rows that were trained here.
    shown = read_json(copy / "ablations.json")["rows"]
    assert [row["name"] for row in shown] == [row["name"] for row in swept.report["rows"]]
    (copy / "base-seed1" / "ablation.json").unlink()
    with Run(copy).locked("ablate"):
        second = ablate(swept.recipe, rows, copy, "--rows", "base")
    assert second.returncode == 1 and "in use by nmtkit ablate" in second.stderr
    assert second.stderr.endswith("or use another --sweep-dir\n")
    assert "--rows: there is no row or group ''" in ablate(swept.recipe, rows, copy, "--rows", "").stderr


def test_a_stop_during_the_preparation_names_the_command_that_goes_on(
    swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(sweep_module, "prepare_sweep", stop)
    outcome = run_command("ablate", swept.recipe, "--rows-file", swept.rows, "--sweep-dir", tmp_path / "sweep")
    assert outcome.code == 143
    assert f"stopped; to resume, run: nmtkit ablate {swept.recipe}" in outcome.err


def test_a_stop_reaches_the_runs_and_the_same_command_goes_on(swept: Swept, tmp_path: Path) -> None:
    metrics, messages, deadline = tmp_path / "base-seed1" / "metrics.jsonl", tmp_path / "err", time.monotonic() + 300
    steps = ("--set", "training.max_steps=100000", "--set", "training.validate_every_steps=100000")
    arguments = ("--rows-file", swept.rows, "--sweep-dir", tmp_path, "--rows", "base", "--device", "cpu", *steps)
    with Forked("ablate", swept.recipe, *arguments, "--threads", 1, err=messages) as process:
        while not metrics.is_file() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait()
    err = messages.read_text(encoding="utf-8")
    assert process.returncode == 143
    assert "to resume, run: nmtkit" in err
    saves = list((tmp_path / "base-seed1" / "resume").glob("step-*"))
    assert saves, "the run was asked to save"
    assert not (tmp_path / "base-seed1" / ".lock").exists(), "and has ended"


def test_the_tables_say_the_same_in_all_forms(swept: Swept) -> None:
    report = swept.report
    assert report["title"] == "Two ways"
    markdown = (swept.folder / "ablations.md").read_text(encoding="utf-8")
    page = (swept.folder / "ablations.html").read_text(encoding="utf-8")
    (rows,) = result_tables({**report, "findings": []})
    for cells in rows.rows:
        assert f"| {' | '.join(cells)} |" in markdown
        assert "".join(f"<td><bdi>{cell}</bdi></td>" for cell in cells) in page
        assert cells[0] in swept.done.stdout
    assert rows.notes[0] in markdown
    base = rows.rows[0]
    assert base[:9] == ["base", "1", "16", "32", "2", "8", "8", "0.2", "0.1"]
    assert base[-3:] == ["4.92", "25.8", "65"]
    assert rows.rows[2][10] == "failed"


def result_of(perplexity: float, bleu: float) -> dict[str, Any]:
    return {"updates": 9, "perplexity": perplexity, "bleu": bleu, "flops": 5e9, "seconds": 2.0, "parameters": 1_234_567}


@pytest.fixture
def two_rows(tiny_project: Any) -> Callable[..., dict[str, Any]]:
    """A report of two rows, from their BLEU of each seed and a finding that compares them."""
    loaded = load_recipe(str(tiny_project.recipe))

    def report(one: list[float], two: list[float], within: float | None = None, metric: str = "bleu") -> dict[str, Any]:
        finding = {"text": "f", "metric": metric, "better": "one", "other": "two", "within": within}
        sweep = Sweep.model_validate({"title": "t", "rows": [{"name": "one"}, {"name": "two"}], "findings": [finding]})
        runs = plan(loaded, sweep, sweep.rows, seeds=len(one), scale=False)
        by_seed = [bleu for seed in zip(one, two, strict=True) for bleu in seed]
        found = {run.name: result_of(bleu, bleu) for run, bleu in zip(runs, by_seed, strict=True)}
        return make_report(loaded, sweep, runs, found, {})

    return report


@pytest.mark.parametrize(
    ("one", "two", "options", "verdict"),
    [
        ([30, 31], [28, 29], {}, "holds"),
        ([28, 29], [30, 31], {}, "does not hold"),
        ([28, 30], [29, 31], {}, "undecided: the seeds overlap"),
        ([5, 6], [7, 8], {"metric": "perplexity"}, "holds"),
        ([7, 8], [5, 6], {"metric": "perplexity"}, "does not hold"),
        ([30, 30.1], [30.3, 30.4], {"within": 0.5}, "holds"),
        ([30, 32], [31, 36], {"within": 0.5}, "holds"),
        ([30, 30.1], [31, 31.2], {"within": 0.5}, "does not hold"),
        ([30, math.nan], [31, 31.2], {}, "not comparable: a run diverged"),
        ([30], [None], {}, "not comparable: a run diverged"),
        ([math.inf], [5], {"metric": "perplexity"}, "not comparable: a run diverged"),
        ([30], [29.74], {}, "holds (one seed)"),
        ([30], [30], {}, "undecided: the scores are equal (one seed)"),
        ([30], [30.26], {}, "does not hold (one seed)"),
        ([30], [30.26], {"within": 0.5}, "holds (one seed)"),
    ],
)
def test_a_finding_holds_only_beyond_the_spread_of_the_seeds(
    two_rows: Callable[..., dict[str, Any]], one: list[float], two: list[float], options: dict[str, Any], verdict: str
) -> None:
    assert two_rows(one, two, **options)["findings"][0]["verdict"] == verdict


def test_rows_of_unlike_numbers_of_seeds_that_overlap_are_not_called_equal(tiny_project: TinyProject) -> None:
    loaded = load_recipe(str(tiny_project.recipe))
    finding = {"text": "f", "metric": "bleu", "better": "one", "other": "two"}
    sweep = Sweep.model_validate({"title": "t", "rows": [{"name": "one"}, {"name": "two"}], "findings": [finding]})
    runs = plan(loaded, sweep, sweep.rows, seeds=2, scale=False)
    found = {"one-seed1": result_of(30, 30), "two-seed1": result_of(29, 29), "two-seed2": result_of(32, 32)}
    verdict = make_report(loaded, sweep, runs, found, {})["findings"][0]["verdict"]
    assert verdict == "undecided: the seeds overlap (one seed)"


def test_a_line_end_in_a_finding_breaks_no_table(two_rows: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    report = two_rows([30], [28])
    report["findings"][0]["text"] = "one is\nbetter\r\nthan two"
    write_report(tmp_path, report)
    assert "| one is better than two | " in (tmp_path / "ablations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("written", "error"), [("", "ended with exit code 1"), ("error: new", "new"), ("lost", "lost")]
)
def test_the_log_of_a_row_is_kept_and_the_error_is_that_of_this_attempt(
    tiny_project: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, error: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho '{written}'\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    sweep = Sweep.model_validate({"title": "t", "rows": [{"name": "one"}]})
    runs = plan(load_recipe(str(tiny_project.recipe)), sweep, sweep.rows, seeds=1, scale=False)
    log = Run(tmp_path / "one-seed1").row_log
    log.parent.mkdir()
    log.write_text("error: old\n")
    assert list(sweep_module.run_in_processes(runs, tmp_path, [], jobs=1, device="cpu", threads=1)) == [
        (runs[0], error)
    ]
    assert log.read_text() == f"error: old\n{written}\n"


def test_of_several_seeds_mean_and_spread_are_shown(two_rows: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    report = two_rows([30, 31], [28.06, 28.06])
    assert [cells[11] for cells in result_tables(report)[0].rows] == ["30.5 (30.0 to 31.0)", "28.1 (28.1 to 28.1)"]
    paths = write_report(tmp_path, report)
    assert [path.name for path in paths] == ["ablations.json", "ablations.md", "ablations.html"]
    assert json.loads(paths[0].read_text()) == report
    assert re.search(r"\+2\.44", paths[1].read_text())


def test_columns_that_no_row_fills_are_left_out_and_small_models_have_three_digits(
    two_rows: Callable[..., dict[str, Any]],
) -> None:
    report = two_rows([30], [28])
    for row, parameters in zip(report["rows"], (73_600, 12_345_678), strict=True):
        row |= {"bleu": None, "parameters": parameters}  # as of language models
    (rows, _) = result_tables(report)
    assert rows.columns[-4:] == ["updates", "PPL", "params (M)", "FLOPs"]
    assert [cells[-2] for cells in rows.rows] == ["0.0736", "12.35"]


def test_the_note_states_the_precision_and_by_run_where_it_differs(two_rows: Callable[..., dict[str, Any]]) -> None:
    report = two_rows([30, 31], [28, 29])
    runs = [run for row in report["rows"] for run in row["runs"]]
    for run in runs:
        run["result"] = {**run["result"], "precision": "bf16"}
    assert "brackets. Trained in bf16." in result_tables(report)[0].notes[0]
    runs[1]["result"]["precision"] = "float32"
    by_run = "Trained in bf16: one-seed1, two-seed1, two-seed2; in float32: one-seed2."
    assert by_run in result_tables(report)[0].notes[0]


def test_a_run_that_is_not_of_the_sweep_is_refused(swept: Swept, tmp_path: Path) -> None:
    arguments = ["ablate", swept.recipe, "--rows-file", swept.rows, "--sweep-dir", tmp_path, "--only", "other-seed1"]
    expected = "error: --only: there is no run 'other-seed1'; the runs are base-seed1, narrow-seed1, broken-seed1\n"
    assert run_command(*arguments, "--quiet") == (1, "", expected)
    assert list(tmp_path.iterdir()) == [], "nothing was prepared"


def test_columns_of_published_numbers_are_there_where_a_row_has_any(
    two_rows: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    report = two_rows([30], [28])
    rows, findings = result_tables(report)
    assert "paper: PPL" not in rows.columns
    assert "in the paper" not in findings.columns
    assert "paper" not in rows.notes[0]
    assert {len(cells) for cells in rows.rows} == {len(rows.columns)}
    assert {len(cells) for cells in findings.rows} == {len(findings.columns)}
    report["rows"][1]["paper"]["bleu"] = 25.8
    rows, findings = result_tables(report)
    assert rows.columns[-2:] == ["FLOPs", "paper: BLEU"]
    assert [cells[-1] for cells in rows.rows] == ["", "25.8"]
    assert findings.columns[-2] == "in the paper"
    assert [cells[-2] for cells in findings.rows] == [""]
    write_report(tmp_path, report)
    assert "| 25.8 |" in (tmp_path / "ablations.md").read_text(encoding="utf-8")


def test_generated_corpora_of_a_sweep_are_made_on_its_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[dict[str, Any]] = []

    def prepared(*_: Any, generate: Any, **__: Any) -> SimpleNamespace:
        given.append(generate.keywords)
        return SimpleNamespace(manifest={"fingerprint": "of the data"})

    monkeypatch.setattr(sweep_module, "prepare", prepared)
    recipe = load_recipe("quickstart")
    assert prepare_sweep(recipe, tmp_path, None, "cpu", 3) == "of the data"
    assert given == [{"recipe": recipe, "device": "cpu", "threads": 3}]
    with pytest.raises(NmtkitError, match="--device tpu: choose auto, cpu, cuda or mps"):
        prepare_sweep(recipe, tmp_path, None, "tpu", None)
    assert len(given) == 1  # nothing was prepared before
