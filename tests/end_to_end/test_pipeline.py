"""From text to a score through the real commands, and through `run`, which does again nothing that is done."""

import json
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nmtkit.config.recipe import load_recipe, stored_recipe
from nmtkit.corpora.synthetic import generate
from nmtkit.decoding.ctranslate2_engine import exports_of
from nmtkit.decoding.translator import Translator
from nmtkit.evaluation.comet import Comet
from nmtkit.evaluation.scores import Score
from nmtkit.files import TEMPORARY_MARK, sha256_of_files
from nmtkit.json_toml import read_json, read_json_lines
from nmtkit.lines import read_lines
from nmtkit.model_folder import read_description
from nmtkit.run import Run
from tests.conftest import run_command, run_with_streams
from tests.export.foreign_folders import changed_json
from tests.forked import run_forked

STEPS = 24
METRICS = {"sacrebleu", "chrf2", "chrf2++", "ter", "bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split"}


@dataclass
class Pipeline:
    """The recipe, the run, and what each command printed; ``state`` is of the files before the last command."""

    recipe: Path
    run: Path
    done: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    state: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    translated: bytes = b""

    def command(self, name: str, *arguments: object, label: str | None = None) -> None:
        ended = run_forked(name, *arguments)
        assert ended.returncode == 0, ended.stderr
        self.done[label or name] = ended

    def files(self) -> dict[str, tuple[int, bytes]]:
        """When each file was written, and what is in it."""
        paths = sorted(path for path in self.run.rglob("*") if path.is_file())
        return {str(path.relative_to(self.run)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def write_pairs(folder: Path, name: str, pairs: Sequence[Any]) -> None:
    (folder / f"{name}.en").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    (folder / f"{name}.de").write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = tmp_path_factory.mktemp("pipeline")
    pairs = generate("synthetic")  # the smallest of the built-in corpora
    for name, part in (("train", pairs[40:]), ("valid", pairs[:20]), ("small", pairs[20:40])):
        write_pairs(folder, name, part)
    recipe = folder / "mine.toml"
    recipe.write_text(
        'base = "quickstart"\n[data]\nvocab_size = 300\n'
        'train = [{ source = "train.en", target = "train.de" }]\n'
        'valid = [{ source = "valid.en", target = "valid.de" }]\n'
        'test = [{ source = "small.en", target = "small.de" }]\n'
        "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\nnum_heads = 2\n"
        "[training]\nprecision = 'float32'\n"
        f"tokens_per_update = 1000\nmax_steps = {STEPS}\nvalidate_every_steps = {STEPS // 2}\n"
        "checkpoint_every_steps = 8\nreport_every_steps = 4\nwarmup_steps = 8\n"
        "[decoding]\naverage_last = 2\nmax_length_offset = 5\n",
        encoding="utf-8",
    )
    pipeline = Pipeline(recipe, folder / "run")
    run, place = pipeline.run, ("--run-dir", pipeline.run)
    pipeline.command("prepare", recipe, *place)
    pipeline.command("train", recipe, *place, "--device", "cpu", "--threads", 1)
    pipeline.command("average", run)
    output = run / "translations" / "small.txt"
    pipeline.command(
        "translate", run, "--input", run / "data/test/small.source.txt", "--output", output, "--threads", 1
    )
    pipeline.command("score", run)
    pipeline.translated = output.read_bytes()
    pipeline.command("run", recipe, *place, "--device", "cpu", "--threads", 1, label="first run")
    pipeline.state = pipeline.files()
    pipeline.command("run", recipe, *place, "--device", "cpu", "--threads", 1, label="second run")
    return pipeline


class TestFiles:
    @pytest.mark.parametrize(
        "name",
        [
            "recipe.toml",
            "data/manifest.json",
            "data/tokenizer/tokenizer.json",
            "data/tokenizer/joint.model",
            "data/train/source.ids.bin",
            "data/train/target.offsets.bin",
            "data/valid/target.ids.bin",
            "data/valid.source.txt",
            "data/valid.reference.txt",
            "data/test/small.source.txt",
            "data/test/small.reference.txt",
            *(
                f"{folder}/{name}"
                for folder in ("checkpoints/step-00000024", "averaged")
                for name in ("model.safetensors", "model.json", "tokenizer/joint.model", "provenance.json")
            ),
            "resume/step-00000016/state.json",
            "resume/step-00000024/optimizer.safetensors",
            "metrics.jsonl",
            "translations/small.txt",
            "scores.json",
            "cost.json",
            "prediction.json",
        ],
    )
    def test_a_finished_run_has_the_files_of_the_design(self, pipeline: Pipeline, name: str) -> None:
        assert (pipeline.run / name).stat().st_size > 0

    def test_nothing_half_written_or_pickled_is_there(self, pipeline: Pipeline) -> None:
        names = list(pipeline.files())
        assert [name for name in names if TEMPORARY_MARK in name] == []
        endings = {Path(name).suffix for name in names}
        assert endings == {".toml", ".json", ".jsonl", ".html", ".txt", ".bin", ".safetensors", ".model"}

    def test_the_resolved_recipe_is_the_one_that_was_trained(self, pipeline: Pipeline) -> None:
        recipe = load_recipe(str(pipeline.recipe))
        assert stored_recipe(pipeline.run / "recipe.toml", "mine") == recipe
        provenance = read_json(pipeline.run / "checkpoints" / "step-00000024" / "provenance.json")
        assert provenance["recipe"] == recipe.model_dump(mode="json")

    @pytest.mark.parametrize("folder", ["checkpoints/step-00000008", "checkpoints/step-00000024", "averaged"])
    def test_a_model_folder_has_the_sums_of_its_files(self, pipeline: Pipeline, folder: str) -> None:
        sums = sha256_of_files(pipeline.run / folder)
        del sums["provenance.json"]
        provenance = read_json(pipeline.run / folder / "provenance.json")
        assert provenance["files"] == sums
        assert provenance["versions"]["nmtkit"]

    def test_a_checkpoint_names_the_one_before(self, pipeline: Pipeline) -> None:
        folders = Run(pipeline.run).checkpoints()
        previous = [read_json(folder / "provenance.json")["previous"] for folder in folders]
        assert previous[1:] == [int(folder.name.removeprefix("step-")) for folder in folders[:-1]]
        assert previous[0] < int(folders[0].name.removeprefix("step-"))

    def test_a_model_folder_alone_is_enough_to_translate(self, pipeline: Pipeline, tmp_path: Path) -> None:
        shutil.copytree(pipeline.run / "averaged", tmp_path / "elsewhere")
        sources = read_lines(pipeline.run / "data" / "test" / "small.source.txt")
        lines = Translator.load([tmp_path / "elsewhere"]).translate(sources)
        assert "".join(f"{line}\n" for line in lines).encode() == pipeline.translated


class TestOutput:
    def test_stdout_carries_only_results(self, pipeline: Pipeline) -> None:
        done = pipeline.done
        assert "Prepared pairs" in done["prepare"].stdout
        assert "960" in done["prepare"].stdout
        assert done["train"].stdout == ""
        assert done["average"].stdout == f"{pipeline.run / 'averaged'}\n"
        assert done["translate"].stdout == ""
        assert "sacrebleu" in done["score"].stdout
        assert "learning subwords" in done["prepare"].stderr
        assert "learning subwords" not in done["prepare"].stdout
        assert "update 12" in done["train"].stderr
        ended = done["train"].stderr.split("training ended at update 24: max_steps = 24\n")[1].splitlines()
        assert ended[0].startswith("24 updates, ")
        assert ended[1].startswith("best validation: nll ")
        assert ended[2] == f"3 checkpoints in {pipeline.run / 'checkpoints'}; the last is step-00000024"
        assert ended[3:] == [f"next: nmtkit average {pipeline.run}"]

    def test_score_shows_every_metric_with_its_signature_and_no_cost(self, pipeline: Pipeline) -> None:
        text = pipeline.done["score"].stdout
        for metric, entry in read_json(pipeline.run / "scores.json")["small"].items():
            assert metric in text
            assert f"{entry['score']:.2f}" in text
            assert entry["signature"] in text
        assert "Training cost" not in text
        assert "Table 2" not in text

    @pytest.mark.parametrize("label", ["first run", "second run"])
    def test_run_ends_with_scores_the_model_and_what_to_do_next(self, pipeline: Pipeline, label: str) -> None:
        text = pipeline.done[label].stdout
        sources = read_lines(pipeline.run / "data" / "test" / "small.source.txt")
        assert sources[0] in text
        assert "(empty)" in text or "" not in read_lines(pipeline.run / "translations" / "small.txt")[::5]
        end = text[text.index("Test scores\n") :]
        scores = read_json(pipeline.run / "scores.json")["small"]
        for metric in ("sacrebleu", "chrf2", "ter"):
            assert f"{scores[metric]['score']:.2f} ± {scores[metric]['interval']['half_width']:.2f}" in end
        assert scores["sacrebleu"]["signature"] in end
        assert f"The model is in {pipeline.run / 'averaged'}." in end
        for command in ("translate", "report", "cost"):
            assert f"nmtkit {command} {pipeline.run}" in end
        assert len(end.splitlines()) < 20
        for left_out in ("ByteNet", "predicted", "mine.toml"):
            assert left_out not in text

    def test_the_suggested_translate_command_works_as_it_is(self, pipeline: Pipeline) -> None:
        text = pipeline.done["first run"].stdout
        echo, command = next(line for line in text.splitlines() if line.startswith("  echo ")).split(" | ")
        (_, sentence), (program, *arguments) = shlex.split(echo), shlex.split(command)
        done = run_with_streams(*arguments, stdin=f"{sentence}\n".encode())
        assert (program, done.code, len(done.lines)) == ("nmtkit", 0, 1), done.err

    def test_each_step_of_run_begins_with_what_it_does(self, pipeline: Pipeline) -> None:
        text = pipeline.done["first run"].stderr
        assert re.findall(r"^(\d/5 \w+): \w+", text, re.MULTILINE) == [
            "1/5 prepare", "2/5 train", "3/5 average", "4/5 translate", "5/5 score",
        ]  # fmt: skip

    def test_the_average_is_compared_with_the_best_checkpoint(self, pipeline: Pipeline, tmp_path: Path) -> None:
        run = shutil.copytree(pipeline.run, tmp_path / "run")
        command = ("run", pipeline.recipe, "--run-dir", run, "--device", "cpu", "--threads", 1)
        worse = []
        for share in (1.01, 0.9, 1.0):
            shutil.rmtree(run / "averaged")
            outcome = run_command(*command)
            pattern = r"validation nll of the average: (\S+); of step-00000024: (\S+)\n"
            found = re.search(pattern, outcome.err)
            assert found, outcome.err
            worse.append("the average is worse than step-00000024 alone" in outcome.err)
            changed_json(run / "checkpoints" / "step-00000024" / "provenance.json", valid_nll=share * float(found[1]))
        assert worse[1:] == [False, True]
        best = shlex.split(outcome.err.partition("long; `nmtkit ")[2].partition("`")[0])
        assert run_command(*best).code == 0
        # `run` keeps what was chosen, also with another search, until the recipe's average is asked for.
        outcome = run_command(*command, "--set", "decoding.beam=3")
        assert "3/5 average: keep that of `nmtkit average --best 1`; without an option" in outcome.err
        assert Run(run).averaged_checkpoints() == ["step-00000024"]
        assert read_description(run / "averaged")["decoding"]["beam"] == 3
        outcome = run_command("average", run, "--threads", "1")
        assert outcome.code == 0 and re.search(pattern, outcome.err)
        assert "validation nll" not in run_command("average", run, "--output", tmp_path / "apart").err
        assert "3/5 average: make the model from the last" in run_command(*command).err
        assert len(Run(run).averaged_checkpoints()) > 1
        (run / "data" / "valid" / "shards.json").unlink()
        outcome = run_command("average", run, "--last", "1")
        assert (outcome.code, len(Run(run).averaged_checkpoints())) == (0, 1)
        assert "warning: the average was not validated: " in outcome.err


class TestNumbers:
    def test_scores_have_the_promised_form(self, pipeline: Pipeline) -> None:
        scores = read_json(pipeline.run / "scores.json")
        assert list(scores) == ["small"]
        assert set(scores["small"]) == METRICS
        for entry in scores["small"].values():
            assert isinstance(entry["score"], float)
            assert math.isfinite(entry["score"])
            assert entry["signature"]
            assert set(entry) <= {"score", "signature", "details", "interval"}
            assert entry["interval"]["resamples"] == 1000

    def test_scoring_has_no_doubt_of_what_run_or_translate_made_with_the_recipe(self, pipeline: Pipeline) -> None:
        for command in ("score", "first run"):
            told = pipeline.done[command].stderr
            assert not [
                doubt for doubt in ("made by", "there is no record", "the recipe has", "changed") if doubt in told
            ]

    def test_with_another_search_a_finished_run_is_translated_again_and_its_recipe_says_so(
        self, pipeline: Pipeline, tmp_path: Path
    ) -> None:
        run = Path(shutil.copytree(pipeline.run, tmp_path / "run"))
        assert stored_recipe(run / "recipe.toml", "mine").decoding.beam != 1
        options = ("--run-dir", run, "--device", "cpu", "--threads", 1)
        outcome = run_command("run", pipeline.recipe, *options, "--set", "decoding.beam=1")
        assert outcome.code == 0, outcome.err
        assert "the recipe has" not in outcome.err
        assert stored_recipe(run / "recipe.toml", "mine").decoding.beam == 1
        assert Run(run).recorded_translations()["small"]["decoding"]["beam"] == 1
        [exported] = exports_of(run)  # as CTranslate2 has the same greedy search
        assert f"exported to {exported.folder}" in outcome.err
        assert exports_of(pipeline.run) == []
        for length, is_new in ((3, True), (3, False)):  # the export has the search of the recipe, too
            outcome = run_command(
                "run", pipeline.recipe, *options, "--set", "decoding.beam=1", "--set", f"decoding.max_length={length}"
            )
            assert (outcome.code, "exported to" in outcome.err) == (0, is_new), outcome.err
            [exported] = exports_of(run)
            assert exported.manifest["decoding"]["max_length"] == length
        shutil.rmtree(run / "export")
        (run / "export").write_text("in the way", encoding="utf-8")
        outcome = run_command("run", pipeline.recipe, *options, "--set", "decoding.beam=1")
        assert outcome.code == 0, outcome.err
        assert "no export for CTranslate2, so `translate` takes torch" in outcome.err
        outcome = run_command("score", run)
        assert outcome.code == 0, outcome.err
        assert "the recipe has" not in outcome.err

    def test_a_run_without_checkpoints_is_scored_and_keeps_its_cost(self, pipeline: Pipeline, tmp_path: Path) -> None:
        run = shutil.copytree(pipeline.run, tmp_path / "run")
        cost = (run / "cost.json").read_bytes()
        shutil.rmtree(run / "checkpoints")
        shutil.rmtree(run / "resume")
        (run / "scores.json").unlink()
        outcome = run_command("score", run)
        assert outcome.code == 0, outcome.err
        assert "sacrebleu" in outcome.out
        assert (run / "scores.json").read_bytes() == (pipeline.run / "scores.json").read_bytes()
        assert (run / "cost.json").read_bytes() == cost
        refused = run_command("score", run, "--device", "cpu")
        assert refused.code == 2 and "is not needed to score its translations" in " ".join(refused.err.split())

    def test_a_run_that_is_stopped_while_it_translates_keeps_what_is_translated(
        self, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = shutil.copytree(pipeline.run, tmp_path / "run")
        shutil.rmtree(run / "translations")
        sizes: list[int] = []
        translations = Translator.translations

        def stopped(translator: Translator, lines: Sequence[str], *others: Any, **options: Any) -> Any:
            sizes.append(len(lines))
            if len(sizes) == 3:
                raise SystemExit(143)
            return translations(translator, lines, *others, **options)

        monkeypatch.setattr("nmtkit.pipeline._WINDOW_LINES", 6)
        monkeypatch.setattr(Translator, "translations", stopped)
        again = ("run", pipeline.recipe, "--run-dir", run, "--device", "cpu", "--threads", 1)
        outcome = run_command(*again)
        assert outcome.code == 143
        assert "stopped; to resume, run: nmtkit" in outcome.err
        assert not (run / "translations" / "small.txt").exists()
        assert run_command(*again).code == 0
        assert sizes == [6, 6, 6, 6, 2]
        assert (run / "translations" / "small.txt").read_bytes() == pipeline.state["translations/small.txt"][1]
        assert list((run / "translations").glob("*.parts")) == []

    def test_scoring_warns_of_another_model_and_search_and_takes_comet_too(
        self, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = Path(shutil.copytree(pipeline.run, tmp_path / "run"))
        source, output = run / "data/test/small.source.txt", run / "translations" / "small.txt"
        checkpoint = Run(run).checkpoints()[-1]
        made = ["--input", source, "--output", output, "--beam", 1, "--threads", 1, "--quiet"]
        assert run_command("translate", checkpoint, *made).code == 0
        asked: list[tuple[list[str], ...]] = []

        class OfComet(Comet):
            def __init__(self, model: str, device: Any) -> None:
                pass

            def score(self, *texts: list[str]) -> tuple[Score, list[float]]:
                asked.append(texts)
                return Score(0.5, "model:x"), []

        monkeypatch.setattr("nmtkit.evaluation.comet.Comet", OfComet)
        outcome = run_command("score", run, "--confidence", 0, "--comet", "x", "--device", "cpu")
        assert outcome.code == 0, outcome.err
        recipe = stored_recipe(run / "recipe.toml", "mine").decoding
        for doubt in (
            f"{output}: made by {checkpoint.name} alone, but the recipe averages the last 2",
            f"{output}: translated with beam = 1, but the recipe has {recipe.beam}",
        ):
            assert f"warning: {doubt}" in outcome.err
        found = read_json(run / "scores.json")["small"]
        assert found.pop("comet") == {"score": 0.5, "signature": "model:x"}
        assert set(found) == METRICS
        assert not [entry for entry in found.values() if "interval" in entry]
        assert asked == [(read_lines(source), read_lines(output), read_lines(run / "data/test/small.reference.txt"))]

    def test_metrics_have_a_line_for_each_report_with_all_keys(self, pipeline: Pipeline) -> None:
        lines = read_json_lines(pipeline.run / "metrics.jsonl")
        assert [line["step"] for line in lines] == [4, 8, 12, 16, 20, 24]
        always = {"step", "loss", "nll", "learning_rate", "target_tokens_per_second", "gradient_norm", "epoch"}
        always |= {"seconds", "padding", "flops", "memory_bytes", "target_tokens"}
        always |= {"flops_attention", "flops_padding", "flops_per_second", "mfu"}
        assert [line["step"] for line in lines if not always <= set(line)] == []
        validated = {"valid_nll", "valid_perplexity", "valid_bleu", "samples"}
        assert [line["step"] for line in lines if validated <= set(line)] == [12, 24]
        assert [line["step"] for line in lines if validated & set(line)] == [12, 24]
        for line in lines[2::3]:
            assert line["valid_perplexity"] == pytest.approx(math.exp(line["valid_nll"]))
            assert set(line["samples"][0]) == {"source", "reference", "hypothesis"}

    def test_training_lowers_the_loss(self, pipeline: Pipeline) -> None:
        lines = read_json_lines(pipeline.run / "metrics.jsonl")
        assert lines[-1]["nll"] < lines[0]["nll"] - 0.5
        assert lines[-1]["valid_nll"] < lines[2]["valid_nll"]

    def test_the_cost_is_that_of_the_whole_training(self, pipeline: Pipeline) -> None:
        cost = read_json(pipeline.run / "cost.json")
        last = read_json_lines(pipeline.run / "metrics.jsonl")[-1]
        assert (cost["updates"], cost["flops"], cost["target_tokens"]) == (STEPS, last["flops"], last["target_tokens"])
        parts = (cost["flops_attention"], cost["flops_padding"])
        assert parts == (last["flops_attention"], last["flops_padding"])
        assert 0 < max(parts) < cost["flops"]
        assert cost["flops"] == cost["flops_encoder"] + cost["flops_decoder"] + cost["flops_output"]
        assert cost["flops"] == cost["flops_forward"] + cost["flops_backward"]
        assert cost["prediction"]["flops"] == cost["flops"]
        assert (cost["processes"], cost["device"], cost["precision"]) == (1, "cpu", "float32")
        assert cost["seconds"] >= last["seconds"] > 0
        assert cost["flops_per_second"] == pytest.approx(cost["flops"] / cost["seconds"])
        assert cost["flops_paper_estimate"] == pytest.approx(cost["seconds"] * cost["sustained_flops_per_second"])

    def test_the_manifest_counts_the_pairs(self, pipeline: Pipeline) -> None:
        manifest = json.loads((pipeline.run / "data" / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["pairs"] == {"train": 960, "valid": 20, "test/small": 20}


class TestRunAgain:
    def test_run_takes_over_what_single_commands_have_done(self, pipeline: Pipeline) -> None:
        messages = pipeline.done["first run"].stderr
        for finished in ("data is up to date", "training already ended at update 24", "averaged is up to date"):
            assert finished in messages

    def test_run_translates_as_translate_does(self, pipeline: Pipeline) -> None:
        assert (pipeline.run / "translations" / "small.txt").read_bytes() == pipeline.translated
        assert pipeline.translated.count(b"\n") == 20

    def test_a_second_run_does_nothing_again(self, pipeline: Pipeline) -> None:
        after = pipeline.files()
        assert {name: content for name, (_, content) in after.items()} == {
            name: content for name, (_, content) in pipeline.state.items()
        }
        rewritten = [name for name, (moment, _) in after.items() if moment != pipeline.state[name][0]]
        assert set(rewritten) <= {"scores.json", "cost.json"}
        assert "small.txt is up to date" in pipeline.done["second run"].stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "training.init=nowhere"], "nowhere: no such folder; give a model folder"),
        (["--set", 'training.freeze=["enocder"]'], "training.freeze: the model has no part 'enocder'; it has"),
        (["--device", "mps"], "--device mps: torch finds no such device on this machine"),
    ],
)
def test_a_fault_of_training_ends_run_before_the_data_are_prepared(
    pipeline: Pipeline, tmp_path: Path, options: list[str], message: str
) -> None:
    outcome = run_command("run", pipeline.recipe, "--run-dir", tmp_path / "run", *options)
    assert (outcome.code, message in outcome.err) == (1, True), outcome.err
    assert not Run(tmp_path / "run").data.exists()


def test_models_that_a_preparation_or_the_training_will_lack_are_told(pipeline: Pipeline, tmp_path: Path) -> None:
    command = ["prepare", pipeline.recipe, "--run-dir", tmp_path / "run", "--check", "--set"]
    (file := tmp_path / "spm.model").write_bytes(b"x")
    for path, fault in ((tmp_path / "nix", "no such folder; give"), (file, "a file; those of other tools cannot")):
        outcome = run_command(*command, f"data.tokenizer={path}")
        assert outcome.code == 1 and f"{path}: {fault}" in outcome.err
    outcome = run_command(*command, f"training.init={tmp_path / 'nix'}")
    assert outcome.code == 0 and "nix: no model is there yet; `train` will need it\n" in outcome.err


def test_a_test_set_held_out_of_the_training_text_is_translated_scored_and_shown(pipeline: Pipeline) -> None:
    run = pipeline.run.parent / "held-out"
    settings = ["data.valid=20", "data.test=25", "training.max_steps=4", "training.validate_every_steps=4"]
    settings += ["cleaning.max_tokens=12"]
    arguments = [pipeline.recipe, "--run-dir", run, "--device", "cpu", "--threads", 1]
    arguments += [part for setting in settings for part in ("--set", setting)]
    pipeline.command("run", *arguments, label="held out")
    printed = pipeline.done["held out"].stdout
    assert "4 of the 25 sentences of the test set test" in printed
    assert "left out of training: too_long " in pipeline.done["held out"].stderr
    assert re.search(r"^ *test .*\d", printed, flags=re.MULTILINE)
    scores = read_json(run / "scores.json")
    assert list(scores) == ["test"]
    assert set(scores["test"]) >= METRICS
    assert len(read_lines(run / "translations" / "test.txt")) == 25
    assert json.loads((run / "data" / "manifest.json").read_text())["pairs"]["test/test"] == 25
    pipeline.command("run", *arguments, label="held out again")
    for finished in ("data is up to date", "averaged is up to date", "test.txt is up to date"):
        assert finished in pipeline.done["held out again"].stderr
    pipeline.command("report", run)
    for page in ("report.html", "card.md"):
        assert "test/test" in (run / page).read_text(encoding="utf-8")
