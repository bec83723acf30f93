"""Scores of labels and numbers: equal to scikit-learn and SciPy, with intervals, tests, files and runs."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from nmtkit.config.data_schema import TASK_NAMES
from nmtkit.config.recipe import load_recipe
from nmtkit.errors import DataError
from nmtkit.evaluation import significance
from nmtkit.evaluation.checks import text_faults
from nmtkit.evaluation.compare import compare_runs
from nmtkit.evaluation.labels import LabelMetric, NumberMetric
from nmtkit.evaluation.metric_names import default_metrics
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.significance import mcnemar, paired_test
from nmtkit.pipeline import run as run_pipeline
from nmtkit.pipeline import score_run
from nmtkit.reports.run_facts import read_run, translated
from nmtkit.reports.run_page import report_page
from nmtkit.run import Run
from nmtkit.tasks.known import TASKS
from nmtkit.tasks.task import Task
from tests.conftest import run_command

CLASSES = {2: "01", 3: ["neg", "neu", "pos"], 6: ["ABBR", "DESC", "ENTY", "HUM", "LOC", "a b|c"]}


def labelled(num_classes: int, lines: int, seed: int, *, predicted: int | None = None) -> tuple[list[str], list[str]]:
    """Return a reference and hypotheses that are often right, of the first `predicted` classes alone."""
    names, chance = CLASSES[num_classes], random.Random(seed)
    gold = [*names, *(chance.choice(names) for _ in range(lines - len(names)))]
    others = [chance.choice(names[:predicted]) for _ in gold]
    usable = set(names[:predicted])
    return gold, [g if g in usable and chance.random() < 0.6 else o for g, o in zip(gold, others, strict=True)]


def values(scores: dict[str, tuple[float, str, str]]) -> dict[str, float]:
    return {name: score for name, (score, _, _) in scores.items()}


@pytest.mark.parametrize(("num_classes", "predicted"), [(2, 2), (2, 1), (3, 3), (6, 6), (6, 4)])
@pytest.mark.parametrize("lines", [7, 40, 1000])
def test_scores_of_labels_equal_those_of_scikit_learn(num_classes: int, predicted: int, lines: int) -> None:
    for seed in range(5):
        gold, found = labelled(num_classes, lines, seed, predicted=predicted)
        expected = {
            "accuracy": accuracy_score(gold, found),
            "macro-f1": f1_score(gold, found, average="macro", zero_division=0),
            "matthews": matthews_corrcoef(gold, found),
        }
        if num_classes == 2:
            expected["f1"] = f1_score(gold, found, pos_label="1", zero_division=0)
        scores = values(LabelMetric().scores(gold, found))
        assert scores == {name: pytest.approx(100 * value, abs=1e-12, rel=1e-12) for name, value in expected.items()}


def test_labels_that_the_reference_lacks_are_wrong() -> None:
    gold, found = labelled(3, 50, seed=3)
    odd = [*found[:40], "POS", "neg.", "", *found[43:47], " neg ", "neu\t", gold[-1]]
    one_other = ["other" if label.strip() not in CLASSES[3] else label.strip() for label in odd]
    scores = values(LabelMetric().scores(gold, odd))
    assert scores["accuracy"] == pytest.approx(100 * accuracy_score(gold, one_other))
    assert scores["matthews"] == pytest.approx(100 * matthews_corrcoef(gold, one_other))
    macro = f1_score(gold, one_other, labels=CLASSES[3], average="macro")
    assert scores["macro-f1"] == pytest.approx(100 * macro)
    (fault,) = text_faults(odd, [gold], sources=None, target_language=None, text="plain", metrics=["labels"])
    assert str(fault).startswith(
        "labels that the reference lacks, such as 'POS', in 3 lines: 41, 42, 43; they count as"
    )
    # labels are no text: neither punctuation nor copies are faults
    texts = ["Well .", "Oh ."] * 20
    assert text_faults(texts, [texts], sources=texts, target_language="de", text="plain", metrics=["labels"]) == []


def test_blanks_within_labels_count_as_one() -> None:
    gold, found = ["new york", " new \u00a0york", "rome"], ["new  york", "new\tyork ", "new york"]
    assert LabelMetric().signature(gold).startswith("labels|classes:2|")
    assert values(LabelMetric().scores(gold, found))["accuracy"] == pytest.approx(200 / 3)
    assert [line["accuracy"] for line in LabelMetric().line_scores(gold, found)] == [100, 100, 0]
    assert LabelMetric().unscored(gold, found, "x")[1] == ()


def test_scores_without_a_value_are_zero() -> None:
    gold = ["no", "yes", "no"]
    assert values(LabelMetric().scores(gold, ["no"] * 3))["matthews"] == matthews_corrcoef(gold, ["no"] * 3) == 0
    assert values(LabelMetric().scores(gold, ["?"] * 3)) == dict.fromkeys(LabelMetric.tested, 0.0)
    of_one_class = values(LabelMetric().scores(["no"] * 3, ["no", "no", "?"]))
    assert of_one_class == {"accuracy": pytest.approx(200 / 3), "macro-f1": pytest.approx(80), "matthews": 0}
    constant = ["0.1"] * 3
    assert values(NumberMetric().scores(["1", "2", "3"], constant)) == {"pearson": 0, "spearman": 0}
    assert values(NumberMetric().scores(constant, ["1", "2", "3"])) == {"pearson": 0, "spearman": 0}
    assert values(NumberMetric().scores(["1"], ["2"])) == {"pearson": 0, "spearman": 0}


def test_the_signature_states_classes_and_the_positive_one() -> None:
    scores = LabelMetric().scores(["no", "yes", "no"], ["no"] * 3)
    assert scores["f1"][1].startswith("labels|classes:2|positive:yes|lines:3|version:nmtkit-")
    assert LabelMetric().signature(["a", "b", "c"]) == "labels|classes:3|lines:3"


@pytest.mark.parametrize(
    "change",
    [lambda x: x, lambda x: np.round(x), lambda x: 1e6 + x, lambda x: 1e-200 * x, lambda x: -1e200 * np.exp(x)],
)
@pytest.mark.parametrize("lines", [3, 50, 2000])
def test_correlations_equal_those_of_scipy(lines: int, change: Callable[[Any], Any]) -> None:
    chance = np.random.default_rng(lines)
    gold = np.round(chance.uniform(0, 5, lines), 1)  # with ties
    found = change(gold + chance.normal(0, 1.5, lines))
    scores = values(NumberMetric().scores([str(x) for x in gold], [f" {x!r} " for x in found.tolist()]))
    largest = np.abs(found).max()
    expected = {"pearson": pearsonr(gold, found / largest).statistic, "spearman": spearmanr(gold, found).statistic}
    # an offset leaves SciPy itself fewer digits
    precision = 1e-8 if found.min() > 1e5 else 1e-12
    assert scores == {name: pytest.approx(100 * value, abs=precision) for name, value in expected.items()}


def test_intervals_and_paired_tests_of_correlations() -> None:
    chance = np.random.default_rng(1)
    gold = chance.normal(0, 1, 400)
    systems = {
        "poor": [f"{x:.6f}" for x in gold + chance.normal(0, 2, 400)],
        "good": [f"{x:.6f}" for x in 1000 + 7 * (gold + chance.normal(0, 0.5, 400))],  # of another scale
    }
    scorer = Scorer([[f"{x:.6f}" for x in gold]], target_language=None, text="plain")
    scores = scorer.score(systems["good"], ["numbers"], resamples=500)
    for name, error in (("pearson", 1.0), ("spearman", 1.3)):
        score, interval = scores[name].score, scores[name].interval
        assert interval is not None and interval.mean == pytest.approx(score, abs=0.5)
        # four standard errors of a correlation r: (1 - r^2) / sqrt(n), times 1.96
        expected = 196 * (1 - (score / 100) ** 2) / 20
        assert expected / 1.3 < interval.half_width < expected * 1.3 * error
        for method in ("bootstrap", "randomization"):
            poor, good = paired_test(scorer, systems, name, method, trials=200).values()
            assert good.score == pytest.approx(score) and good.difference == good.score - poor.score > 20
            assert good.is_significant and good.signature.startswith("numbers|ties:mean-rank|constant:0|lines:400|")
        same, again = paired_test(scorer, {"a": systems["good"], "b": systems["good"]}, name, "bootstrap").values()
        assert (same.p_value, again.p_value) == (None, 1.0)


def test_intervals_of_labels_where_resamples_lack_classes() -> None:
    gold = ["a"] * 30 + ["b"] * 9 + ["c"]
    found = ["a"] * 28 + ["b"] * 10 + ["a", "c"]
    scores = Scorer([gold], target_language=None, text="plain").score(found, ["labels"], resamples=300)
    of_the_task = Scorer([gold], target_language=None, text="label")
    assert of_the_task.score(found, resamples=300) == scores
    assert list(scores) == ["accuracy", "macro-f1", "matthews"]
    for score in scores.values():
        assert score.interval is not None and 0 < score.interval.half_width < 30
        assert score.interval.mean == pytest.approx(score.score, abs=5)


@pytest.mark.parametrize(
    ("losses", "wins"), [(0, 0), (0, 1), (5, 5), (3, 11), (11, 3), (24, 40), (800, 900), (0, 2000)]
)
def test_mcnemars_test_is_the_exact_binomial_test(losses: int, wins: int) -> None:
    gold = ["1"] * (losses + wins) + ["0", "1"] * 20
    baseline = ["1"] * losses + ["0"] * wins + ["0", "0"] * 20
    system = ["0"] * losses + ["1 "] * wins + ["0", "x"] * 20
    found = mcnemar(gold, baseline, system)
    expected = binomtest(wins, losses + wins).pvalue if losses + wins else 1.0
    assert found[:2] == (losses, wins)
    assert found[2] == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(("losses", "wins"), [(0, 1), (0, 3), (0, 5), (1, 5), (10, 20)])
def test_randomization_of_labels_is_close_to_mcnemars_test(losses: int, wins: int) -> None:
    gold = ["1"] * 90 + ["0"] * 10
    systems = {"baseline": ["0"] * wins + gold[wins:], "other": [*gold[:wins], *["0"] * losses, *gold[wins + losses :]]}
    scorer = Scorer([gold], target_language=None, text="plain")
    p_value = paired_test(scorer, systems, "accuracy", "randomization", trials=2000)["other"].p_value
    assert p_value == pytest.approx(mcnemar(gold, *systems.values())[2], abs=0.025)


def test_mcnemars_test_reads_labels_as_accuracy_does() -> None:
    gold, blanks = ["very good", "bad"] * 10, ["very  good", " bad"] * 10
    assert mcnemar(gold, blanks, gold) == (0, 0, 1.0)


def test_mcnemars_test_takes_as_many_lines_of_each_side() -> None:
    with pytest.raises(ValueError, match="zip"):
        mcnemar(["1", "0"], ["1", "1"], ["1"])


def test_mcnemars_test_is_for_accuracy_alone() -> None:
    gold, found = labelled(3, 100, seed=1)
    scorer, systems = Scorer([gold], target_language=None, text="plain"), {"same": found, "gold": gold}
    same, right = paired_test(scorer, systems, "accuracy", "mcnemar").values()
    assert (same.p_value, right.p_value) == (None, mcnemar(gold, found, gold)[2])
    assert right.difference == right.score - same.score == 100 - same.score
    assert right.signature.endswith("|test:mcnemar-exact") and right.interval is not None
    default = {name: paired_test(scorer, systems, name, None, trials=9)["gold"] for name in ("accuracy", "macro-f1")}
    assert default["accuracy"] == right and "|bs:9|" in default["macro-f1"].signature
    for metric in ("macro-f1", "chrf2"):
        with pytest.raises(DataError, match=rf"McNemar's test compares the accuracy of labels, not {metric}; use"):
            significance.testable("mcnemar", [metric])  # which pytest would take for a test if imported


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_score_scores_files_of_labels_and_of_numbers(tmp_path: Path) -> None:
    gold, found = labelled(2, 200, seed=5)
    files = {name: write(tmp_path / name, lines) for name, lines in (("ref", gold), ("one", found), ("two", gold))}
    arguments = ["score", "--hypothesis", files["one"], "--hypothesis", files["two"], "--reference", files["ref"]]
    arguments += ["--metric", "labels", "--confidence", "50"]
    written = ["--json", str(tmp_path / "scores.json"), "--sentences", str(tmp_path / "lines.jsonl")]
    options = ["--paired", "mcnemar", "--paired", "bootstrap", "--trials", "20"]
    result = run_command(*arguments, *options, *written)
    assert result.code == 0, result.err
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert list(scores[files["one"]]) == ["accuracy", "f1", "macro-f1", "matthews"]
    assert scores[files["one"]]["accuracy"]["score"] == pytest.approx(100 * accuracy_score(gold, found))
    assert scores[files["one"]]["f1"]["interval"]["resamples"] == 50
    paired = scores[files["two"]]
    assert paired["accuracy"]["paired"]["mcnemar"]["p_value"] == mcnemar(gold, found, gold)[2]
    assert [list(paired[name]["paired"]) for name in ("accuracy", "f1")] == [["mcnemar", "bootstrap"], ["bootstrap"]]
    lines = [json.loads(line)["scores"] for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert lines[:200] == [{"accuracy": 100.0 * (g == f)} for g, f in zip(gold, found, strict=True)]

    numbers = [f"{index % 7}.5" for index in range(40)]
    files = {"ref": write(tmp_path / "ref.num", numbers), "one": write(tmp_path / "one.num", numbers[1:] + ["-1e3"])}
    arguments = ["score", "--hypothesis", files["one"], "--reference", files["ref"], "--metric", "numbers"]
    result = run_command(*arguments, *written)
    assert result.code == 0, result.err
    assert list(json.loads((tmp_path / "scores.json").read_text())[files["one"]]) == ["pearson", "spearman"]
    assert json.loads((tmp_path / "lines.jsonl").read_text().splitlines()[0])["scores"] == {"neg-absolute-error": -1.0}


@pytest.mark.parametrize(
    ("gold", "found", "options", "message"),
    [
        (["1", "2"], ["1", "3,5"], ["numbers"], "found, line 2: '3,5' is no number; write one finite number per line"),
        (["1", "2"], ["1_000", "1"], ["numbers"], "found, line 1: '1_000' is no number"),
        (["1", "2"], ["nan", "1"], ["numbers"], "found, line 1: 'nan' is no number"),
        (["1", ""], ["2", "1"], ["numbers"], "the reference, line 2: '' is no number"),
        (["1", " "], ["2", "1"], ["labels"], "the reference, line 2: no label; write one label per line"),
        ([str(n) for n in range(1001)], ["1"] * 1001, ["labels"], "the reference has 1,001 labels, over 1,000; see"),
        (["1"], ["1"], ["labels", "--metric", "chrf2"], "labels cannot be combined with other metrics"),
        (["1"], ["1"], ["accuracy"], "accuracy is one of the scores of labels: give --metric labels"),
        (["1"], ["1"], ["numbers", "--paired", "mcnemar"], "McNemar's test compares the accuracy of labels, not p"),
    ],
)
def test_what_is_no_label_or_no_number_is_one_line(
    tmp_path: Path, gold: list[str], found: list[str], options: list[str], message: str
) -> None:
    arguments = ["score", "--reference", write(tmp_path / "gold", gold)]
    arguments += ["--hypothesis", write(tmp_path / "found", found)]
    if "mcnemar" in options:
        arguments += ["--hypothesis", write(tmp_path / "other", found)]
    result = run_command(*arguments, "--metric", *options, "--json", tmp_path / "scores.json")
    assert (result.code, result.out) == (1, "")
    (line,) = result.err.splitlines()
    assert message in line
    assert not (tmp_path / "scores.json").exists()


class Parity(Task):
    """The parity of the number of words, as a label."""

    own_metric = "labels"

    def __init__(self, text: str) -> None:
        pass


RECIPE = (
    '[data]\ntask = "parity"\nsource_language = "en"\ntarget_language = "zxx"\nvocab_size = 60\n'
    'train = [{ source = "train.en", target = "train.zxx" }]\nvalid = [{ source = "test.en", target = "test.zxx" }]\n'
    'test = [{ source = "test.en", target = "test.zxx" }]\n'
    '[cleaning]\nduplicate_pair = "keep"\noverlap_test = "keep"\n'
    "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\nnum_heads = 2\n"
    "[training]\ntokens_per_update = 600\nwarmup_steps = 2\nmax_steps = 2\ncheckpoint_every_steps = 2\n"
    'precision = "float32"\n[decoding]\nbeam = 1\naverage_last = 1\nmax_length = 4\n'
)


def test_the_runs_of_a_task_with_labels_are_scored_compared_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "parity", Parity)
    monkeypatch.setattr("nmtkit.config.data_schema.TASK_NAMES", (*TASK_NAMES, "parity"))
    words = ("ant", "bee", "cow", "dog", "eel", "fox", "gnu", "hen")
    sentences = [" ".join(words[(n + m) % 8] for m in range(3 + n % 5)) for n in range(300)]
    gold = [("odd", "even")[len(sentence.split()) % 2 == 0] for sentence in sentences]
    for name, part in (("train", slice(260)), ("test", slice(260, None))):
        write(tmp_path / f"{name}.en", sentences[part])
        write(tmp_path / f"{name}.zxx", gold[part])
    (tmp_path / "mine.toml").write_text(RECIPE, encoding="utf-8")
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert default_metrics(recipe.data) == ["labels"]
    run_pipeline(recipe, tmp_path / "one", mirror=None, device="cpu", threads=1)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    gold = gold[260:]
    outputs = {"one": ["odd"] * 40, "two": [*gold[:37], "odd", "ODD", "even"]}
    for name, labels in outputs.items():
        write(Run(tmp_path / name).translation("test"), labels)
    scores = score_run(tmp_path / "two")["test"]
    assert list(scores) == ["accuracy", "f1", "macro-f1", "matthews"]
    assert scores["accuracy"].score == pytest.approx(100 * accuracy_score(gold, outputs["two"]))
    assert scores["f1"].signature.startswith("labels|classes:2|positive:odd|lines:40|")

    comparison = compare_runs([tmp_path / "one", tmp_path / "two"], trials=20)
    assert list(comparison.scores["test"]) == ["accuracy", "f1", "macro-f1", "matthews"]
    tested = comparison.scores["test"]["accuracy"]["two"]
    assert tested.p_value == mcnemar(gold, *outputs.values())[2] and "mcnemar" in tested.signature
    assert "|bs:20|" in comparison.scores["test"]["f1"]["two"].signature
    change = comparison.changes["test"]["two"][0]
    assert (change.metric, change.before, change.after) == ("accuracy", 0, 100)
    explicit = compare_runs([tmp_path / "one", tmp_path / "two"], method="mcnemar")
    assert explicit.scores["test"] == {"accuracy": comparison.scores["test"]["accuracy"]}
    result = run_command(*["compare", *(str(tmp_path / name) for name in outputs), "--paired", "mcnemar"])
    assert result.code == 0 and "test:mcnemar-exact" in result.out

    facts = [read_run(tmp_path / "two")]
    worst = translated(facts[0], "test")
    assert not isinstance(worst, str) and (worst[0].metric, worst[0].quality, worst[-1].quality) == ("accuracy", 0, 100)
    page = report_page(facts, with_attention=False)
    assert "accuracy, test" in page and "chrF2" not in page
    wrong = sum(one.quality == 0 for one in worst)
    shown = page.partition("<summary>Worst")[2].partition("</details>")[0]
    assert 0 < wrong <= 3 and shown.count("accuracy 0<") == shown.count("<dt>line") == wrong
    # a translation of the same kind of text is scored by other metrics
    text = (tmp_path / "two" / "recipe.toml").read_text(encoding="utf-8")
    (tmp_path / "two" / "recipe.toml").write_text(text.replace('"parity"', '"translation"'), encoding="utf-8")
    with pytest.raises(DataError, match=r"one and two cannot be compared: data\.task, data\.text or"):
        compare_runs([tmp_path / "one", tmp_path / "two"])
