"""`nmtkit cost` and `nmtkit compare` from their arguments to what they print and write."""

import shutil
from pathlib import Path

import pytest
import torch

from nmtkit.evaluation.cost import training_cost
from nmtkit.evaluation.devices import processor_name
from nmtkit.json_toml import read_json, write_json
from nmtkit.lines import write_lines
from nmtkit.run import Run
from tests.cli.outcomes import printed, refusal
from tests.conftest import TinyProject, run_command

REFERENCES = [f"the {word} dog number {number} runs" for number, word in enumerate(["big", "old", "red", "new"] * 10)]

MANIFEST = '{"fingerprint": "FINGERPRINT", "pairs": {}, "cleaning": {}, "files": {}, "corpora": []}'


@pytest.fixture(scope="module")
def trained(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 14 updates."""
    return Path(shutil.copytree(uninterrupted, tmp_path_factory.mktemp("cost") / "mine"))


def cells(tables: str, first: str) -> list[str]:
    """The cells of the first row of the printed tables that begins with that cell."""
    line = next(line for line in tables.splitlines() if line.strip().startswith(f"{first}  "))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


# ---- cost


def test_a_recipe_without_data_is_predicted_for_devices_of_the_table(tmp_path: Path) -> None:
    small = ("--set", "training.max_steps=1000", "--run-dir", tmp_path / "none")
    code, out, err = run_command("cost", "wmt14-en-de-base", "--devices", 8, "--device-type", "h200", *small)
    assert (code, err) == (0, "")
    assert "on 8 x h200 (bf16)" in cells(out, "time")[1]
    assert cells(out, "updates")[1] == "1,000 (max_steps = 1000)"
    assert cells(out, "parameters")[1] == "63,082,496"
    assert "Lengths of the pairs: assumed" in out
    assert "30 % (assumed share of a GPU's rate" in out
    assert "wmt14-en-de-base, the paper's estimate" in out


def test_options_reach_the_prediction_and_figures_are_written(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    options = ("--devices", 2, "--rate", 50, "--mfu", 0.4, "--set", "training.max_steps=10", "--json", file)
    out = printed("cost", "wmt14-en-de-base", "--device-type", "abacus", "--run-dir", tmp_path, *options)
    figures = read_json(file)
    assert (figures["devices"], figures["device"], figures["rate"], figures["mfu"]) == (2, "abacus", 50e12, 0.4)
    assert figures["seconds"] == pytest.approx(figures["flops"] / (2 * 50e12 * 0.4))
    assert "stated with --rate" in out
    assert "stated with --mfu" in out


@pytest.mark.usefixtures("restored_process")
@pytest.mark.parametrize(("stated", "precision"), [("auto", "bf16"), ("bf16", "bf16"), ("float32", "float32")])
def test_on_this_processor_short_passes_of_the_model_decide_precision_and_time(
    tiny_project: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: str, precision: str
) -> None:
    found = {"float32": 1e9, "bf16": 4e9}
    monkeypatch.setattr("nmtkit.training.precision.has_bf16_instructions", lambda: True)
    monkeypatch.setattr("nmtkit.training.precision.trial_rates", lambda *_: found)
    monkeypatch.setattr("nmtkit.training.prediction.matmul_flops_per_second", lambda device, precision: 1e10)
    file = tmp_path / "cost.json"
    options = ("--set", f"training.precision={stated}", "--run-dir", tmp_path / "none", "--json", file, "--threads", 1)
    code, out, _ = run_command("cost", tiny_project.recipe, "--device-type", "cpu", *options, restores=False)
    figures = read_json(file)
    assert (code, figures["precision"], figures["rate"]) == (0, precision, 1e10)
    assert torch.get_num_threads() == 1
    assert figures["mfu"] * figures["rate"] == pytest.approx(found[precision])
    assert processor_name() is None or f"1 x cpu ({precision}), {processor_name()}" in out


def test_prepared_data_make_the_prediction_exact(tiny_project: TinyProject, tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    run = tiny_project.copy(tmp_path / "run")
    options = ("--device-type", "cpu", "--rate", 1, "--json", file)
    out = printed("cost", tiny_project.recipe, "--run-dir", run, *options)
    assert "Lengths of the pairs: the prepared data" in out
    by_recipe = read_json(file)
    assert run_command("cost", run, *options)[0] == 0  # a run that is not trained yet
    assert read_json(file) == by_recipe
    sampling = ("--set", "training.subword_sampling=0.1")
    out = run_command("cost", tiny_project.recipe, "--run-dir", run, *options, *sampling).out
    assert "Lengths of the pairs: the prepared data; sampled subwords are more numerous" in out
    other = ("--set", "data.vocab_size=80")
    code, out, err = run_command("cost", tiny_project.recipe, "--run-dir", run, *options, *other)
    assert code == 0
    assert "prepared with another [data] or [cleaning]" in err
    assert "Lengths of the pairs: assumed" in out


def test_lengths_of_labelled_texts_are_used_only_if_they_were_cut_to_the_same_length(tmp_path: Path) -> None:
    write_lines(tmp_path / "t.tsv", [f"{line}\t{line.split()[1]}" for line in REFERENCES])
    (tmp_path / "labels.toml").write_text(
        '[data]\ntask = "label"\nsource_language = "en"\ntrain = [{ source = "t.tsv", target = "t.tsv" }]\n'
        'vocab_size = 40\n[model]\narchitecture = "decoder"\nd_model = 16\n[training]\nvalidate_bleu = false\n'
        "max_steps = 2\n"
    )
    recipe, options = tmp_path / "labels.toml", ("--run-dir", tmp_path / "run", "--device-type", "cpu", "--rate", 1)
    printed("prepare", recipe, "--run-dir", tmp_path / "run")
    assert "Lengths of the pairs: the prepared data" in printed("cost", recipe, *options)
    _, out, err = run_command("cost", recipe, *options, "--set", "data.sequence_length=8")
    assert "prepared with another [data] or [cleaning]" in err
    assert "Lengths of the pairs: assumed" in out


def test_of_a_trained_run_outcome_table_2_and_prediction_are_told_and_written(trained: Path) -> None:
    out = printed("cost", trained)
    for title in ("Training cost", "The paper's Table 2, and this run", "Prediction and outcome"):
        assert title in out
    assert cells(out, "updates")[1] == "14"
    assert cells(out, "FLOPs")[-1] == "1.000"  # of the prediction
    assert "mine, counted" in out
    assert "Memory: peak resident size including validation" in out
    cost = read_json(trained / "cost.json")
    assert (cost["updates"], cost["run"]) == (14, "mine")


def test_a_prediction_for_an_earlier_limit_is_named(trained: Path) -> None:
    prediction = read_json(trained / "prediction.json")
    assert "Training went on" not in run_command("cost", trained).out
    write_json(trained / "prediction.json", {**prediction, "updates": 9, "limit": "max_steps = 9"})
    told = "Training went on after max_steps = 9, the limit then: compare the figures per update."
    try:
        assert told in run_command("cost", trained).out
        write_json(trained / "prediction.json", {**prediction, "updates": 9, "limit": "max_epochs = 1"})
        assert "Training went on" not in run_command("cost", trained).out
    finally:
        write_json(trained / "prediction.json", prediction)


def test_of_a_trained_run_it_is_predicted_what_it_would_take_elsewhere(trained: Path) -> None:
    out = printed("cost", trained, "--device-type", "a100", "--devices", 4)
    assert "on 4 x a100 (float32)" in out  # the precision that the run has
    assert "Training cost" not in out


def test_the_table_of_devices_has_rates_and_sources() -> None:
    out = printed("cost", "--list-devices")
    assert cells(out, "h200")[:5] == ["h200", "67", "494.5", "989.5", "989.5"]
    assert "NVIDIA H200 product page" in out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["wmt14-en-de-base", "--device-type", "h20"], 1, "--device-type h20: not in the table; did you mean h200?"),
        (["no-such-recipe"], 1, "no recipe 'no-such-recipe'"),
        (["{run}/recipe.toml", "--json", "{run}/recipe.toml"], 2, "is also the file of the recipe"),
        (["{run}/data"], 1, "data: this is a folder, not a recipe; it is not a run either (no recipe.toml)"),
        (["{run}", "--set", "training.seed=2"], 2, "a RUN has its own recipe"),
    ],
)
def test_a_mistake_is_told(trained: Path, arguments: list[str], code: int, told: str) -> None:
    given = (argument.replace("{run}", str(trained)) for argument in arguments)
    assert told in refusal("cost", *given, code=code)


# ---- compare


def write_run(
    folder: Path, translations: list[str], recipe: str = "", references: list[str] = REFERENCES, test: str = "news"
) -> Path:
    """A run as `compare` reads it, with one test set."""
    (folder / "data" / "test").mkdir(parents=True)
    (folder / "recipe.toml").write_text(
        '[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = ["multi30k/train"]\n' + recipe
    )
    (folder / "data" / "manifest.json").write_text(MANIFEST.replace("FINGERPRINT", "0123456789abcdef"))
    write_lines(folder / "data" / "test" / f"{test}.source.txt", [f"Satz {n}" for n in range(len(references))])
    write_lines(folder / "data" / "test" / f"{test}.reference.txt", references)
    write_lines(folder / "translations" / f"{test}.txt", translations)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_run(tmp_path / "base", [line.replace("dog", "cat") for line in REFERENCES])


@pytest.fixture
def better(tmp_path: Path) -> Path:
    lines = ["something else", *REFERENCES[1:]]
    return write_run(tmp_path / "better", lines, "[model]\nd_model = 256\n[training]\nseed = 2\n")


def test_settings_scores_cost_and_sentences_stand_side_by_side(base: Path, better: Path, tmp_path: Path) -> None:
    file = tmp_path / "compare.json"
    options = ("--metric", "chrf2", "--trials", 50, "--sentences", 2, "--json", file)
    out = printed("compare", base, better, *options)
    assert cells(out, "model.d_model") == ["model.d_model", "512", "256"]
    assert cells(out, "training.seed") == ["training.seed", "1", "2"]
    assert "model.d_ff" not in out
    assert cells(out, "updates") == ["updates", "not known", "not known"]
    found = read_json(file)
    assert found["settings"] == {"model.d_model": [512, 256], "training.seed": [1, 2]}
    result = found["scores"]["news"]["chrf2"]["better"]
    assert result["difference"] > 0
    assert result["p_value"] < 0.05
    assert "bs:50" in result["signature"]
    assert f"{result['p_value']:.4f}*" in out
    first, second = found["changes"]["news"]["better"]
    assert (first["line"], first["after"] < first["before"]) == (1, True)
    assert (first["baseline"], first["translation"]) == (REFERENCES[0].replace("dog", "cat"), "something else")
    assert second["after"] == 100.0
    assert abs(first["after"] - first["before"]) >= second["after"] - second["before"] > 0
    assert "line 1" in out
    assert "Satz 0" in out


def test_the_test_and_the_number_of_sentences_are_as_asked(base: Path, better: Path) -> None:
    options = ("--metric", "sacrebleu", "--paired", "randomization", "--trials", 20, "--sentences", 0)
    out = printed("compare", base, better, *options)
    assert "ar:20" in out
    assert "changed most" not in out


def test_a_run_and_its_copy_differ_in_nothing(base: Path, tmp_path: Path) -> None:
    copy = write_run(tmp_path / "copy", [line.replace("dog", "cat") for line in REFERENCES])
    out = printed("compare", base, copy, "--metric", "chrf2", "--trials", 20)
    assert "None: same recipe, same training text." in out
    assert "None: all sentences score the same." in out
    scores = out.split("Scores")[1].split("Differences")[0]
    assert "+0.00" in scores
    assert "1.0000" in scores
    assert "*" not in scores


def test_the_cost_is_that_of_the_runs(base: Path, trained: Path, tmp_path: Path) -> None:
    own = write_run(tmp_path / "own", REFERENCES)
    (own / "resume").symlink_to(trained / "resume")
    out = printed("compare", base, own, "--metric", "chrf2", "--trials", 20)
    assert cells(out, "updates") == ["updates", "not known", "14"]
    assert cells(out, "energy, GPUs")[-1] == "not measured"


def test_energy_of_gpus_and_of_processors_stands_apart_with_how_much_of_it_was_measured(
    base: Path, better: Path, trained: Path
) -> None:
    measured = {**training_cost(trained), "gpu_joules": 3.6e6, "gpu_seconds": 50.0, "device_seconds": 100.0}
    write_json(base / "cost.json", measured)
    write_json(better / "cost.json", {**measured, "host_joules": 3.6e6, "host_seconds": 100.0})
    out = printed("compare", base, better, "--metric", "chrf2", "--trials", 20)
    assert cells(out, "energy, GPUs")[1] == "1 kWh (measured over 50s, 50.0 % of the time)"
    assert cells(out, "energy, processors and memory")[1:] == ["not measured", "1 kWh (measured over 1m40s)"]


@pytest.mark.parametrize(("file", "content"), [("data/manifest.json", "{}"), ("cost.json", "[]")])
def test_a_damaged_file_of_a_run_is_one_line(base: Path, better: Path, file: str, content: str) -> None:
    (better / file).write_text(content)
    assert f"{better / file}: " in refused(base, better)


def test_other_text_under_the_same_name_counts_as_a_difference(base: Path, better: Path) -> None:
    (better / "data" / "manifest.json").write_text(MANIFEST.replace("FINGERPRINT", "fedcba9876543210"))
    out = printed("compare", base, better, "--metric", "chrf2", "--trials", 20)
    assert "0123456789ab" in out
    assert "fedcba987654" in out


def refused(*runs: Path, options: tuple[str, ...] = ()) -> str:
    """The one line with which a comparison is refused."""
    return refusal("compare", *runs, *options)


def test_runs_without_test_sets_are_compared_by_settings_and_cost(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, REFERENCES) for name in ("one", "two")]
    for run in runs:
        shutil.rmtree(run / "data" / "test")
        shutil.rmtree(run / "translations")
    compared = run_command("compare", *runs, "--quiet")
    assert (compared.code, compared.err) == (0, "")


def test_runs_that_cannot_be_compared_are_refused_in_one_line(base: Path, tmp_path: Path) -> None:
    changed = [*REFERENCES[:7], "another", *REFERENCES[8:]]
    other = write_run(tmp_path / "other", REFERENCES, references=changed)
    assert "base and other cannot be compared: the reference of news differs (line 8)" in refused(base, other)
    short = write_run(tmp_path / "short", REFERENCES[:3], references=REFERENCES[:3])
    assert "the source of news differs (their number of lines)" in refused(base, short)
    foreign = write_run(tmp_path / "foreign", REFERENCES, test="olds")
    assert "no test set in common: base has news; foreign has olds" in refused(base, foreign)
    french = write_run(tmp_path / "french", REFERENCES, references=changed)
    recipe = (french / "recipe.toml").read_text()
    (french / "recipe.toml").write_text(recipe.replace('target_language = "de"', 'target_language = "fr"'))
    assert "data.text or data.target_language differ" in refused(base, french)
    cut = write_run(tmp_path / "cut", REFERENCES[:3])
    assert "news.txt has 3 lines, but the test set news has 40" in refused(base, cut)
    empty = write_run(tmp_path / "empty", REFERENCES)
    (empty / "translations" / "news.txt").unlink()
    assert "news.txt: missing; make it with `nmtkit translate " in refused(base, empty)
    words = write_run(tmp_path / "words", REFERENCES)
    recipe = (words / "recipe.toml").read_text()
    (words / "recipe.toml").write_text(recipe.replace("[data]\n", '[data]\ntext = "tokenized"\n'))
    assert "data.text or data.target_language differ" in refused(base, words)
    assert "not a run" in refused(base, tmp_path)
    assert "the same run is given twice" in refused(base, base)
    plain = write_run(tmp_path / "plain", REFERENCES)
    assert "labels is no metric of these runs; leave out --metric" in refused(
        base, plain, options=("--metric", "labels")
    )


def test_test_sets_that_only_some_have_translated_are_named(base: Path, better: Path) -> None:
    for side in ("source", "reference"):
        write_lines(base / "data" / "test" / f"more.{side}.txt", ["a line"])
    write_lines(base / "translations" / "more.txt", ["a line"])
    out = printed("compare", base, better, "--metric", "chrf2", "--trials", 20)
    assert "Not in all runs, and left out: more." in out


def test_each_test_set_and_run_has_its_own_signatures(tmp_path: Path) -> None:
    of_more = '{ source = "a", target = "c", name = "more", target_language = "zh" }'
    of_news = '{ source = "a", target = "b", name = "news" }'
    corpora = f'train = ["multi30k/train", {of_more}]\ntest = [{of_news}, {of_more}]'
    runs = [write_run(tmp_path / name, REFERENCES) for name in ("one", "two")]
    for run, normalize in zip(runs, ('["blanks"]', '["blanks", "lowercase"]'), strict=True):
        recipe = (run / "recipe.toml").read_text().replace('train = ["multi30k/train"]', corpora)
        (run / "recipe.toml").write_text(f"{recipe}normalize = {normalize}\n")
        for file in ("data/test/more.source", "data/test/more.reference", "translations/more"):
            write_lines(run / f"{file}.txt", REFERENCES)
    out = printed("compare", *runs, "--metric", "sacrebleu", "--trials", 20, "--sentences", 0)
    signatures = [line.strip() for line in out.splitlines() if "|tok:" in line]
    assert ["|tok:zh|" in signature for signature in signatures] == [True, True, False, False]
    assert [signature.endswith("|model-text:lowercase") for signature in signatures] == [False, True] * 2


def test_a_run_has_its_name_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "mine", REFERENCES)
    (tmp_path / "mine" / "averaged").mkdir(exist_ok=True)
    for inside, path in (("mine", "."), ("mine/averaged", "..")):
        monkeypatch.chdir(tmp_path / inside)
        assert Run(Path(path)).recipe().name == "mine"


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b"):
        write_run(tmp_path / folder / "mine", REFERENCES)
    monkeypatch.chdir(tmp_path)
    out = printed("compare", "a/mine", "b/mine", "--metric", "chrf2", "--trials", 20)
    assert cells(out, "what") == ["what", "a/mine", "b/mine"]


def test_a_translation_that_does_not_come_from_the_recipe_is_named(base: Path, better: Path) -> None:
    code, _, err = run_command("compare", base, better)
    assert code == 0
    for run in (base, better):
        assert f"warning: {run}/translations/news.txt: there is no record of its model" in err


@pytest.mark.parametrize("name", ["scores.json", "cost.json", "recipe.toml", "translations/news.txt"])
def test_what_is_compared_is_not_written_over(base: Path, better: Path, name: str) -> None:
    (better / name).touch()
    before = (better / name).read_bytes()
    assert "also the file of a run" in refusal("compare", base, better, "--json", better / name, code=2)
    assert (better / name).read_bytes() == before
