"""Paired tests draw the trials of sacreBLEU's command line, to the last digit, but are two-sided and count ties."""

import math
import random
import re
import subprocess
import sys

import pytest

from nmtkit.errors import DataError
from nmtkit.evaluation import metrics, significance
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.significance import TRIALS, Method, paired_test

NUM_LINES = 40
NAMES = {"sacrebleu": "BLEU", "chrf2": "chrF2", "ter": "TER"}


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with that share of their words replaced."""
    rng = random.Random(seed)
    return [" ".join(word if rng.random() > share else "nie" for word in line.split(" ")) for line in lines]


def texts() -> dict[str, list[str]]:
    rng = random.Random(3)
    words = ["Der", "Hund", "hell-blau", "sieht", "und", "Ü-Wagen", "läuft", "heim", "(jetzt)", "gut", "Rad", "3,5"]
    reference = [" ".join(rng.choices(words, k=rng.randint(4, 14))) + "." for _ in range(NUM_LINES)]
    systems = {"a": noisy(reference, 0.30, 1), "b": noisy(reference, 0.33, 2), "c": noisy(reference, 0.5, 3)}
    return {"reference": reference, **systems}


TEXTS = texts()
SYSTEMS = {name: TEXTS[name] for name in "abc"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    for name, lines in TEXTS.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: str(folder / name) for name in TEXTS}


CELL = re.compile(r"([\d.]+)(?: \(([\d.]+) ± ([\d.]+)\))?(?: \(p = ([\d.]+)\))?")


def table_of_the_command_line(*arguments: str) -> tuple[list[dict[str, list[float | None]]], list[str]]:
    """For each system of a paired test score, mean, half width and p-value by metric; and the signatures."""
    # as LaTeX, since its JSON fails on what chrF and TER give it (float32)
    command = [sys.executable, "-m", "sacrebleu", *arguments, "--quiet", "--width", "10", "--format", "latex"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    lines = done.stdout.split("\n")
    header, *rows = [line.rstrip("\\ ").split(" & ") for line in lines if " & " in line]
    names = [cell.split()[0] for cell in header[1:]]
    found = []
    for row in rows:
        cells = [CELL.search(cell).groups() for cell in row[1:]]  # type: ignore[union-attr]
        values = [[None if value is None else float(value) for value in cell] for cell in cells]
        found.append(dict(zip(names, values, strict=True)))
    return found, [line.split()[-1] for line in lines if line.startswith(" - ") and "|version:" in line]


def scorer(*references: str, language: str | None = None) -> Scorer:
    return Scorer([TEXTS[name] for name in references], target_language=language, text="plain")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("bootstrap", ["--paired-bs", "--paired-bs-n", "150"]),
        ("randomization", ["--paired-ar", "--paired-ar-n", "150"]),
    ],
)
def test_paired_tests_are_those_of_the_command_line(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, method: Method, arguments: list[str]
) -> None:
    systems = ["-i", files["a"], files["b"], files["c"], "-m", "bleu", "chrf", "ter"]
    rows, signatures = table_of_the_command_line(files["reference"], *systems, *arguments)
    assert len(rows) == len(signatures) == 3
    of_references = scorer("reference")
    of_references.score(TEXTS["a"], resamples=10)  # leaves no trace in what follows
    p_values = []
    for (metric, name), signature in zip(NAMES.items(), signatures, strict=True):
        if metric == "ter":  # whole edits tie, and sacreBLEU drops ties
            monkeypatch.setattr(significance, "_ROUNDING", 0.0)
        results = paired_test(of_references, SYSTEMS, metric, method, trials=150)
        assert list(results) == ["a", "b", "c"]
        for result, row in zip(results.values(), rows, strict=True):
            score, mean, half_width, p_value = row[name]
            interval = result.interval
            assert result.score == pytest.approx(score, abs=1e-9)
            assert (interval is None) == (mean is None) == (method == "randomization")
            if interval is not None:
                assert [interval.mean, interval.half_width] == pytest.approx([mean, half_width], abs=1e-9)
                assert (interval.resamples, interval.seed) == (150, "12345")
            assert (result.p_value is None) == (p_value is None)
            if method == "randomization":
                assert result.p_value == (None if p_value is None else pytest.approx(p_value, abs=5e-5))
            assert result.difference == pytest.approx(score - rows[0][name][0], abs=1e-9)
            assert result.signature == signature + ("|p:two-sided" if method == "bootstrap" else "")
            p_values.append(result.p_value)
    assert [value is None for value in p_values] == [True, False, False] * 3
    assert len(set(p_values)) > 3


def labels_of(gained: int, lost: int, num_lines: int) -> tuple[list[str], dict[str, list[str]]]:
    """References, and two systems: the second labels that many lines correctly that the first does not, and so on."""
    first = ["0"] * gained + ["1"] * (num_lines - gained)
    second = ["1"] * gained + ["0"] * lost + ["1"] * (num_lines - gained - lost)
    return ["1"] * (num_lines - 1) + ["0"], {"first": first, "second": second}


@pytest.mark.parametrize(("gained", "lost"), [(30, 18), (18, 30), (25, 24), (40, 15)])
def test_p_of_the_bootstrap_is_that_of_both_sides(gained: int, lost: int) -> None:
    references, systems = labels_of(gained, lost, 200)
    of_references = Scorer([references], target_language=None, text="plain")
    found = paired_test(of_references, systems, "accuracy", "bootstrap", trials=2000)["second"].p_value
    difference, variance = (gained - lost) / 200, (gained + lost) / 200 - ((gained - lost) / 200) ** 2
    of_normal = math.erfc(abs(difference) / math.sqrt(2 * variance / 200))
    # Half a line for the steps of the difference; sacreBLEU's p is about half of it, and 0.27 without any difference.
    nearer = math.erfc((abs(difference) - 0.5 / 200) / math.sqrt(2 * variance / 200))
    assert of_normal - 0.03 < found < nearer + 0.03


@pytest.mark.parametrize(("lines", "least"), [(1, 1.0), (2, 0.5), (3, 0.25), (20, 0.0)])
def test_few_lines_cannot_be_significant(lines: int, least: float) -> None:
    right = ["0", "1", *["1"] * 18][:lines]
    of_references = Scorer([right], target_language=None, text="plain")
    wrong = ["1", "0", *["0"] * 18][:lines]
    found = paired_test(of_references, {"a": right, "b": wrong}, "accuracy", "bootstrap", trials=99)["b"].p_value
    assert found == max(least, 0.01)


def test_no_difference_of_different_outputs_is_chance() -> None:
    of_references = Scorer([["0", "1", "1", "0"]], target_language=None, text="plain")
    systems = {"first": ["0", "1", "0", "0"], "second": ["0", "1", "1", "1"]}
    assert paired_test(of_references, systems, "accuracy", "bootstrap")["second"].p_value == 1


def test_long_texts_are_tested_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: paired_test(scorer("reference"), SYSTEMS, name, "bootstrap", trials=20) for name in NAMES}
    monkeypatch.setattr(metrics, "LINES_AT_ONCE", 7)
    assert {name: paired_test(scorer("reference"), SYSTEMS, name, "bootstrap", trials=20) for name in NAMES} == whole


@pytest.mark.parametrize(
    ("values", "scores"),
    [
        (["a"] * 11 + ["b"] * 9 + ["c"] * 3, ["macro-f1", "matthews"]),  # the last parts lack classes
        ([f"{index + index % 4}" for index in range(23)], ["pearson", "spearman"]),
    ],
    ids=["labels", "numbers"],
)
def test_labels_and_numbers_of_long_texts_are_tested_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, values: list[str], scores: list[str]
) -> None:
    of_reference = Scorer([values], target_language=None, text="plain")
    systems = {"first": [*values[3:], *values[:3]], "second": [values[5], *values[1:]]}

    def found() -> list[object]:
        return [paired_test(of_reference, systems, name, "bootstrap", trials=20) for name in scores]

    whole = found()
    monkeypatch.setattr(metrics, "LINES_AT_ONCE", 7)
    assert found() == whole


def test_a_large_difference_is_marked_and_a_small_one_is_not() -> None:
    results = paired_test(scorer("reference"), SYSTEMS, "sacrebleu", "bootstrap", trials=300)
    assert [result.is_significant for result in results.values()] == [False, False, True]


@pytest.mark.parametrize("method", TRIALS)
def test_a_system_does_not_differ_from_itself(method: Method) -> None:
    spaced = [line.replace(" ", "  ") for line in TEXTS["a"]]  # blanks are nothing to chrF2
    same = paired_test(scorer("reference"), {"a": TEXTS["a"], "b": spaced}, "chrf2", method, trials=50)["b"]
    assert same.difference == 0
    assert same.p_value == 1  # and not 1 / 51, as sacreBLEU has it
    assert not same.is_significant


@pytest.mark.parametrize("metric", NAMES)
def test_one_line_that_differs_is_chance_to_randomization(metric: str) -> None:
    systems = {"a": TEXTS["a"], "b": ["nie", *TEXTS["a"][1:]]}
    other = paired_test(scorer("reference"), systems, metric, "randomization", trials=100)["b"]
    assert other.difference != 0
    assert other.p_value == 1  # swapping that line gives the same difference again


def test_each_metric_is_tested_on_the_text_as_it_reads_it() -> None:
    of_references = scorer("reference", language="de")
    results = paired_test(of_references, SYSTEMS, "bleu-compound-split", "randomization", trials=20)
    scores = {name: of_references.score(lines, ["bleu-compound-split"]) for name, lines in SYSTEMS.items()}
    assert {name: result.score for name, result in results.items()} == pytest.approx(
        {name: score["bleu-compound-split"].score for name, score in scores.items()}
    )
    signature = results["b"].signature
    assert "|ar:20|seed:12345|" in signature
    assert "|text:unicode-punctuation+moses-de+compound-split" in signature


def test_the_numbers_of_trials_are_those_of_sacrebleu_where_nothing_is_said() -> None:
    for method, stated in (("bootstrap", "|bs:1000|"), ("randomization", "|ar:10000|")):
        systems = {name: TEXTS[name] for name in "ab"}
        assert stated in paired_test(scorer("reference"), systems, "sacrebleu", method)["b"].signature


def test_unequal_lines_are_told() -> None:
    with pytest.raises(DataError, match=f"{NUM_LINES - 1} lines and the references {NUM_LINES}"):
        paired_test(scorer("reference"), {"a": TEXTS["a"], "b": TEXTS["b"][1:]}, "sacrebleu", "bootstrap")


@pytest.mark.parametrize("seed", ["7", "0"])
def test_the_seed_of_sacrebleu_is_heeded_and_told(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    interval = scorer("reference").score(TEXTS["a"], ["sacrebleu"], resamples=50)["sacrebleu"].interval
    assert interval is not None
    assert interval.seed == seed
    for method, stated in (("bootstrap", "bs"), ("randomization", "ar")):
        results = paired_test(scorer("reference"), SYSTEMS, "sacrebleu", method, trials=50)
        assert f"|{stated}:50|seed:{seed}|" in results["b"].signature
        assert results == paired_test(scorer("reference"), SYSTEMS, "sacrebleu", method, trials=50)


@pytest.mark.parametrize("seed", ["abc", "-1", "1.5", "", "9" * 5000])
def test_a_seed_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(DataError, match=f"SACREBLEU_SEED is '{seed}': set a whole number from 0, or unset it"):
        scorer("reference").score(TEXTS["a"], ["sacrebleu"], resamples=50)
    with pytest.raises(DataError, match="SACREBLEU_SEED"):
        paired_test(scorer("reference"), SYSTEMS, "sacrebleu", "bootstrap", trials=50)
    assert scorer("reference").score(TEXTS["a"], ["sacrebleu"])["sacrebleu"].interval is None


def test_an_interval_is_found_where_some_resamples_have_not_one_match() -> None:
    lines = Scorer([["ab cd", "ef gh", "ij kl"]], target_language="de", text="plain")
    found = lines.score(["ab cd", "zz", "yy"], ["chrf2"], resamples=200)["chrf2"]
    assert found.interval is not None
    assert 0 < found.interval.mean < 100
    assert found.interval.half_width == pytest.approx(50.0)  # from no match at all to nothing else
