"""`nmtkit score` of files: any number of systems and references, looked over first, then scored and compared."""

import gzip
import io
import json
import os
import re
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmtkit.cli.score_files import print_differences, print_scores
from nmtkit.corpora import sacrebleu_sets
from nmtkit.corpora.download import mirror_path
from nmtkit.corpora.http_transfer import RemoteFile
from nmtkit.corpora.sacrebleu_sets import sacrebleu_set
from nmtkit.evaluation.comet import Comet
from nmtkit.evaluation.metric_names import METRICS
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.scores import Score
from nmtkit.evaluation.significance import paired_test
from nmtkit.files import TEMPORARY_MARK
from nmtkit.lines import write_lines
from tests.cli.outcomes import printed, refusal
from tests.conftest import run_command

SOURCE = ["The dog sleeps in the house.", "A cat sees the old man.", "The man walks home.", "Who is that?"]
REFERENCE = ["Der Hund schläft im Haus.", "Eine Katze sieht den alten Mann.", "Der Mann geht heim.", "Wer ist das?"]
FURTHER = [
    "Im Haus schläft der Hund.",
    "Eine Katze sieht den Alten.",
    "Der Mann läuft nach Hause.",
    "Wer ist denn das?",
]
SYSTEMS = {
    "one.de": ["Der Hund schläft im Haus.", "Eine Katze sieht den Mann.", "Der Mann geht nach Haus.", "Wer ist es?"],
    "two.de": ["Ein Hund schlief im Haus.", "Die Katze sieht den Mann.", "Ein Mann geht.", "Wer war das?"],
}
GERMAN = ["--target-language", "de"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, lines in {**SYSTEMS, "test.de": REFERENCE, "further.de": FURTHER, "test.en": SOURCE}.items():
        write_lines(tmp_path / name, lines)
    return tmp_path


def arguments(folder: Path, *systems: str, references: tuple[str, ...] = ("test.de",)) -> list[Any]:
    named = [("--hypothesis", folder / name) for name in systems]
    named += [("--reference", folder / name) for name in references]
    return ["score", *(part for pair in named for part in pair)]


def scores_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    return content


def test_systems_and_references_are_scored_in_one_go(folder: Path) -> None:
    command = arguments(folder, *SYSTEMS, references=("test.de", "further.de"))
    outcome = run_command(*command, *GERMAN, "--json", folder / "scores.json")
    assert (outcome.code, outcome.err) == (0, "")
    scorer = Scorer([REFERENCE, FURTHER], target_language="de", text="plain")
    content = scores_of(folder)
    assert list(content) == [str(folder / name) for name in SYSTEMS]
    for name, lines in SYSTEMS.items():
        expected = scorer.score(lines, resamples=1000)
        assert list(content[str(folder / name)]) == list(METRICS) == list(expected)
        for metric, entry in content[str(folder / name)].items():
            assert set(entry) <= {"score", "signature", "details", "interval"}
            assert metric in outcome.out and f"{entry['score']:.2f}" in outcome.out
            assert entry["score"] == expected[metric].score
            assert entry["signature"] == expected[metric].signature
            interval = expected[metric].interval
            assert interval is not None
            assert entry["interval"]["mean"] == interval.mean
            assert f"{interval.mean:.2f} ± {interval.half_width:.2f}" in outcome.out
    assert "nrefs:2|" in outcome.out
    assert "the paper's 27.3" in outcome.out
    assert "95 %, of 1000 bootstrap resamples of the lines, seed 12345" in outcome.out


def test_rouge_is_scored_by_name_with_its_settings(folder: Path) -> None:
    for name, lines in SYSTEMS.items():
        write_lines(folder / name, [line.replace(" ", " ¶ ", 1) for line in lines])
    command = [*arguments(folder, *SYSTEMS, references=("test.de", "further.de")), "--json", folder / "scores.json"]
    rouge = ["--metric", "rouge1", "--metric", "rougeLsum", "--metric", "chrf2"]
    options = ["--stemmer", "--sentence-separator", "¶", "--paired", "bootstrap", "--trials", "50"]
    outcome = run_command(*command, *rouge, *options, "--sentences", folder / "lines.jsonl")
    assert (outcome.code, outcome.err) == (0, "")
    lines = [json.loads(line) for line in (folder / "lines.jsonl").read_text(encoding="utf-8").splitlines()]
    for system, of_system in scores_of(folder).items():
        assert list(of_system) == ["rouge1", "rougeLsum", "chrf2"]
        for metric, title in (("rouge1", "1"), ("rougeLsum", "L.sum")):
            entry = of_system[metric]
            assert entry["signature"].startswith(f"rouge:{title}|stem:yes|split:¶|nrefs:2|version:nmtkit-")
            assert entry["interval"]["resamples"] == 1000
            of_lines = [line["scores"][metric] for line in lines if line["system"] == system]
            assert sum(of_lines) / len(of_lines) == pytest.approx(entry["score"])
            assert ("paired" in entry) == (system.endswith("two.de"))
    assert "ROUGE-L (F1) of the same sentences" in outcome.out
    assert "sacrebleu" not in outcome.out
    unseen = run_command(*command, "--metric", "rougeLsum", "--sentence-separator", "|||")
    assert (
        "--sentence-separator '|||' is in no hypothesis and no reference, so for rougeLsum a line is one" in unseen.err
    )
    wrong = [["--stemmer"], ["--sentence-separator", "x"], ["--metric", "chrf2", "--stemmer"]]
    wrong += [["--metric", "rougeLsum", "--sentence-separator", text] for text in ("", "\n", "\x1b[2J")]
    wrong += [["--metric", "rougeL", "--sentence-separator", "x"]]
    assert [run_command(*command, *options).code for options in wrong] == [2] * len(wrong)


def test_no_word_of_a_score_table_breaks_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    scorer = Scorer([REFERENCE], target_language="de", text="plain")
    names = {str(folder / name): lines for name, lines in SYSTEMS.items()}
    scores = {name: scorer.score(lines, resamples=50) for name, lines in names.items()}
    print_scores(scores, {}, of="system")
    methods: Any = ("bootstrap", "randomization")
    tests = {(method, metric): paired_test(scorer, names, metric, method, trials=20)
             for method in methods for metric in METRICS}  # fmt: skip
    print_differences(tests)
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    rows = [line for line in out.split("\n") if line.startswith(("  one.de   ", "  two.de   "))]
    differences = [line for line in out.partition("Differences")[2].split("\n") if re.match(r" +two\.de ", line)]
    assert (len(rows), len(differences)) == (len(SYSTEMS) * len(METRICS), len(METRICS))
    assert max(map(len, rows + differences)) <= 80
    for name, of_system in scores.items():
        for metric, score in of_system.items():
            interval = score.interval
            assert interval is not None
            row = [Path(name).name, metric, f"{score.score:.2f}", f"{interval.mean:.2f}", "±"]
            assert [*row, f"{interval.half_width:.2f}"] in [line.split() for line in rows]
    assert str(scores[str(folder / "one.de")]["sacrebleu"].details) in " ".join(out.split())


def test_systems_of_one_file_name_are_shown_with_their_folders(folder: Path) -> None:
    (folder / "other").mkdir()
    write_lines(folder / "other" / "one.de", SYSTEMS["two.de"])
    outcome = run_command(*arguments(folder, "one.de", "other/one.de"), "--metric", "chrf2", "--confidence", 0)
    assert outcome.code == 0
    shown = "".join(outcome.out.split())
    assert str(folder / "one.de") in shown
    assert str(folder / "other" / "one.de") in shown


@pytest.mark.parametrize(
    ("most", "options", "resamples"),
    [(3, [], None), (3, ["--confidence", 77], 77), (4, [], 1000), (4, ["--confidence", 0], None)],
)
def test_the_number_of_resamples_is_heeded_and_of_a_long_text_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most: int, options: list[Any], resamples: int | None
) -> None:
    monkeypatch.setattr("nmtkit.evaluation.metrics.MOST_LINES_RESAMPLED", most)
    command = [*arguments(folder, "one.de"), "--metric", "chrf2", "--json", folder / "scores.json"]
    out = printed(*command, *options)
    assert f"95 %, of {resamples} " in out if resamples else "95 %, of" not in out
    interval = scores_of(folder)[str(folder / "one.de")]["chrf2"].get("interval")
    assert (interval and interval["resamples"]) == resamples


def test_systems_are_compared_with_the_first_one(folder: Path) -> None:
    tests = ["--paired", "bootstrap", "--paired", "randomization", "--trials", 90]
    command = [*arguments(folder, *SYSTEMS), "--metric", "chrf2", "--metric", "ter", *tests]
    outcome = run_command(*command, "--json", folder / "scores.json", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    first, second = (str(folder / name) for name in SYSTEMS)
    content = scores_of(folder)
    scorer = Scorer([REFERENCE], target_language=None, text="plain")
    assert "paired" not in content[first]["ter"]
    for metric in ("chrf2", "ter"):
        found = content[second][metric]["paired"]
        assert list(found) == ["bootstrap", "randomization"]
        for method, entry in found.items():
            expected = paired_test(scorer, {name: SYSTEMS[name] for name in SYSTEMS}, metric, method, trials=90)
            assert entry["p_value"] == expected["two.de"].p_value
            assert entry["difference"] == expected["two.de"].difference
            assert entry["baseline"] == first
            assert entry["signature"] in outcome.out
            assert f"{entry['p_value']:.4f}" in outcome.out
    assert "Differences from one.de\n" in outcome.out


def test_scores_of_each_line_are_lines_of_json(folder: Path) -> None:
    hostile = ["\u2028\u0085 Hund", "", '"\\', "Wer ist das?"]
    write_lines(folder / "two.de", hostile)
    command = [*arguments(folder, *SYSTEMS, references=("test.de", "further.de")), "--source", folder / "test.en"]
    assert run_command(*command, *GERMAN, "--sentences", folder / "lines.jsonl", "--confidence", 0).code == 0
    entries = [json.loads(line) for line in (folder / "lines.jsonl").read_bytes().decode().split("\n")[:-1]]
    assert [(Path(entry["system"]).name, entry["line"]) for entry in entries] == [
        (name, number) for name in SYSTEMS for number in (1, 2, 3, 4)
    ]
    scorer = Scorer([REFERENCE, FURTHER], target_language="de", text="plain")
    for name, lines in (("one.de", SYSTEMS["one.de"]), ("two.de", hostile)):
        of_system = [entry for entry in entries if Path(entry["system"]).name == name]
        assert [entry["hypothesis"] for entry in of_system] == lines
        assert [entry["source"] for entry in of_system] == SOURCE
        references = [list(pair) for pair in zip(REFERENCE, FURTHER, strict=True)]
        assert [entry["references"] for entry in of_system] == references
        assert [entry["scores"] for entry in of_system] == scorer.sentence_scores(lines)


def test_a_line_without_any_text_has_no_scores(folder: Path) -> None:
    for name in ("one.de", "test.de"):
        write_lines(folder / name, ["Hund", "", "Katze", "Tier"])
    command = [*arguments(folder, "one.de"), "--confidence", 0, "--sentences", folder / "lines.jsonl"]
    assert run_command(*command, "--metric", "chrf2", "--metric", "rouge1").code == 0
    scores = [json.loads(line)["scores"] for line in (folder / "lines.jsonl").read_text().splitlines()]
    assert scores[:2] == [{"chrf2": 100, "rouge1": 100}, {"chrf2": None, "rouge1": 0}]


def test_sgm_and_compressed_files_are_read(folder: Path) -> None:
    segments = "".join(f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(REFERENCE, start=1))
    (folder / "ref.sgm").write_text(f"<refset>\n<doc>\n{segments}</doc>\n</refset>\n", encoding="utf-8")
    (folder / "one.de.gz").write_bytes(gzip.compress((folder / "one.de").read_bytes()))
    command = ["--metric", "sacrebleu", "--json", folder / "scores.json", "--confidence", 0]
    assert run_command(*arguments(folder, "one.de.gz", references=("ref.sgm",)), *command).code == 0
    expected = Scorer([REFERENCE], target_language=None, text="plain").score(SYSTEMS["one.de"], ["sacrebleu"])
    assert scores_of(folder)[str(folder / "one.de.gz")]["sacrebleu"]["score"] == expected["sacrebleu"].score


def test_markup_in_a_plain_file_is_told_before_the_scores(folder: Path) -> None:
    write_lines(folder / "one.de", [f"<seg>{line}</seg>" for line in REFERENCE])
    outcome = run_command(*arguments(folder, "one.de"), "--metric", "ter")
    assert outcome.code == 0
    assert outcome.err.startswith(f"warning: {folder / 'one.de'}: markup such as <seg> in 4 lines: 1, 2, 3, 4; ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_mirror_of_the_environment_is_no_wrong_usage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, slash: str
) -> None:
    monkeypatch.setenv("NMTKIT_MIRROR", f"{folder}{slash}")
    assert run_command(*arguments(folder, "one.de"), "--metric", "ter", "--confidence", 0).code == 0


def test_a_file_whose_name_is_no_text_is_scored(folder: Path) -> None:
    write_lines(folder / "q\udcff", REFERENCE)
    outcome = run_command(*arguments(folder, "q\udcff"), "--metric", "ter", "--json", folder / "scores.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert list(scores_of(folder)) == [str(folder / "q") + "\\udcff"]
    assert "q\\udcff" in outcome.out.replace("\n", "")


def test_each_signature_of_a_metric_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_scores({name: {"evalb-f1": Score(1.0, f"evalb|sentences:{name}")} for name in ("1", "2")}, {})
    out = capsys.readouterr().out
    assert "evalb-f1  evalb|sentences:1" in out
    assert "evalb-f1  evalb|sentences:2" in out


def test_findings_are_told_of_each_system_and_change_no_score(folder: Path) -> None:
    write_lines(folder / "two.de", [SOURCE[0], "", "Der Mann &quot;geht&quot;.", "▁Wer ▁ist ▁das?"])
    command = [*arguments(folder, *SYSTEMS), *GERMAN, "--source", folder / "test.en", "--metric", "chrf2"]
    outcome = run_command(*command, "--json", folder / "scores.json", "--confidence", 0)
    told = [line.removeprefix(f"warning: {folder / 'two.de'}: ") for line in outcome.err.split("\n")[:-1]]
    assert [line.split(";")[0] for line in told] == [
        "no translation in line 2",
        "the source instead of a translation in line 1",
        "subword marks such as ▁ in line 4",
        "entities such as &quot",
    ]
    lines = (folder / "two.de").read_text(encoding="utf-8").split("\n")[:-1]
    expected = Scorer([REFERENCE], target_language="de", text="plain").score(lines, ["chrf2"])["chrf2"].score
    assert scores_of(folder)[str(folder / "two.de")]["chrf2"]["score"] == expected


def test_a_test_set_by_name_brings_source_reference_and_its_name_in_the_signature(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sacrebleu_sets, "RemoteFile", lambda url, md5=None: RemoteFile(url))
    monkeypatch.setenv("NMTKIT_CACHE", str(folder / "cache"))
    sacrebleu_set.cache_clear()
    entry = sacrebleu_set("sacrebleu:wmt14/full")
    assert entry is not None
    (file,) = entry.files("en", "de")
    place = folder / "mirror" / mirror_path(file.url)
    place.parent.mkdir(parents=True)
    with tarfile.open(place, "w:gz") as archive:
        for text, lines in zip(entry.texts["en", "de"], (SOURCE, REFERENCE), strict=True):
            content = "".join(f'<seg id="1">{line}</seg>\n' for line in lines).encode()
            info = tarfile.TarInfo(str(text.member))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    write_lines(folder / "two.de", SOURCE)
    languages = ["--source-language", "en", *GERMAN, "--mirror", folder / "mirror", "--confidence", 0]
    command = ["score", "--hypothesis", folder / "one.de", "--hypothesis", folder / "two.de", *languages]
    outcome = run_command(*command, "--test-set", "sacrebleu:wmt14/full", "--json", folder / "scores.json")
    sacrebleu_set.cache_clear()
    assert outcome.code == 0, outcome.err
    assert outcome.err.startswith(f"warning: {folder / 'two.de'}: the source instead of a translation in 4 lines")
    found = scores_of(folder)[str(folder / "one.de")]
    expected = Scorer([REFERENCE], target_language="de", text="plain").score(SYSTEMS["one.de"])
    assert {metric: entry["score"] for metric, entry in found.items()} == {
        metric: one.score for metric, one in expected.items()
    }
    assert all(entry["signature"].startswith("nrefs:1|test:wmt14/full|lang:en-de|") for entry in found.values())


def test_other_public_sets_are_test_sets_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [SimpleNamespace(source=source, target=target) for source, target in zip(SOURCE, REFERENCE, strict=True)]
    monkeypatch.setattr("nmtkit.corpora.synthetic.generate", lambda split: pairs)
    languages = ["--source-language", "en", *GERMAN, "--metric", "sacrebleu", "--confidence", 0]
    command = ["score", "--hypothesis", folder / "test.de", "--test-set", "builtin/synthetic", *languages]
    outcome = run_command(*command)
    assert outcome.code == 0, outcome.err
    assert " 100.00\n" in outcome.out
    assert "test:" not in outcome.out


class OfComet(Comet):
    """Takes the place of nmtkit's own Comet; that one is tested against the library's interface."""

    def __init__(self, model: str, device: torch.device) -> None:
        self.model = model

    def score(self, sources: list[str], hypotheses: list[str], references: list[str]) -> Any:
        assert (sources, references) == (SOURCE, REFERENCE)
        scores = [len(line) / 100 for line in hypotheses]
        return Score(sum(scores) / len(scores), f"model:{self.model}"), scores


def test_comet_stands_beside_the_other_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.evaluation.comet.Comet", OfComet)
    command = [*arguments(folder, "one.de", references=("test.de", "further.de")), "--source", folder / "test.en"]
    written = ["--json", folder / "scores.json", "--sentences", folder / "lines.jsonl", "--metric", "ter"]
    outcome = run_command(*command, *written, "--comet", "Unbabel/x", "--device", "cpu", "--threads", 1)
    assert outcome.code == 0, outcome.err
    assert outcome.err == "warning: COMET uses only the first of 2 references\n"
    found = scores_of(folder)[str(folder / "one.de")]
    assert list(found) == ["ter", "comet"]
    assert f"{found['comet']['score']:.4f}" in outcome.out
    assert "other COMET scores of the same model" in outcome.out
    entries = [json.loads(line) for line in (folder / "lines.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [entry["scores"]["comet"] for entry in entries] == [len(line) / 100 for line in SYSTEMS["one.de"]]


def test_without_the_library_comet_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
    command = [*arguments(folder, "one.de"), "--source", folder / "test.en", "--comet", "Unbabel/wmt22-comet-da"]
    assert refusal(*command).startswith("COMET is not installed; run `pip install 'nmtkit[comet]'`")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["--reference", "{short}"], "{one} has 4 lines, but {short} has 3; line n of one must"),
        (["--hypothesis", "{short}"], "{short} has 3 lines, but {test} has 4; line n of one must"),
        (["--source", "{short}"], "{one} has 4 lines, but {short} has 3; line n of one must"),
        (["--hypothesis", "{one}"], "the same file is given twice as --hypothesis"),
        (["--reference", "{test}"], "the same file is given twice as --reference"),
        (["--hypothesis", "{none}"], "{none}: no such file"),
        (["--metric", "comet"], "COMET needs a model"),
        (["--metric", "bleu-compound-split"], "it is defined for German only"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(folder: Path, changes: list[str], told: str) -> None:
    write_lines(folder / "short.de", REFERENCE[:3])
    names = {"short": "short.de", "one": "one.de", "test": "test.de", "none": "none.de"}
    places = {key: str(folder / name) for key, name in names.items()}
    more = [part.format(**places) for part in changes]
    written = ["--json", folder / "scores.json", "--sentences", folder / "lines.jsonl"]
    assert told.format(**places) in refusal(*arguments(folder, "one.de"), *more, *written)
    assert [path.name for path in folder.iterdir() if path.suffix in (".json", ".jsonl")] == []
    assert [path for path in folder.iterdir() if TEMPORARY_MARK in path.name] == []


def test_a_name_in_other_capitals_may_be_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "Text").write_text("a\n")
    os.link(tmp_path / "Text", tmp_path / "text")  # as on a file system for which capitals make no difference
    command = ("score", "--hypothesis", tmp_path / "Text", "--reference", "b", "--json", tmp_path / "text")
    assert "is also the file of --hypothesis" in refusal(*command, code=2)


def test_a_target_language_may_have_a_region_or_a_script(folder: Path) -> None:
    for language in ("es-419", "zh-Hans-CN", "pt_BR"):
        assert run_command(*arguments(folder, "one.de"), "--target-language", language).code == 0
