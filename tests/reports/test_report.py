"""The report: its numbers are those of the files of the run, text stays text, and what is missing is named."""

import json
import math
import os
import re
import shutil
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.cli.run import _print_outputs
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError
from nmtkit.evaluation.cost_tables import scientific, training_table
from nmtkit.files import sha256_of
from nmtkit.json_toml import read_json, read_json_lines, write_json
from nmtkit.lines import read_lines, write_lines
from nmtkit.page import json_script, live_page, page, switches, table, text
from nmtkit.reports import run_page
from nmtkit.reports.card import card
from nmtkit.reports.curves import MOST_REPORTS, OVER, figures, predicted_returns, reports_shown
from nmtkit.reports.played import PLAYED, lengths_of
from nmtkit.reports.run_facts import FORMS, read_run, translated
from nmtkit.reports.run_page import report_page
from nmtkit.training.averaging import read_averaging
from tests.conftest import TinyProject, prepared, run_command


class Page(HTMLParser):
    """What a browser makes of a page: its tags, scripts, text and tables."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.data: dict[str, Any] = {}
        self.rows: list[list[str]] = []
        self._open: list[tuple[str, dict[str, Any]]] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        attributes = dict(attrs)
        assert not any(name.startswith("on") for name in attributes)
        assert not {"src", "srcset"} & set(attributes)
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
        if tag not in ("meta", "link", "input", "br"):
            self._open.append((tag, attributes))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.data[attributes["id"]] = json.loads(data)
        elif tag == "script":
            self.scripts.append(data)
        elif tag != "style":
            self.text += data
            if any(outer == "td" for outer, _ in self._open):
                self.rows[-1][-1] += data


def visible(content: str) -> str:
    """As `text` shows it: pictures of control characters."""
    return "".join(chr(0x2400 + ord(one)) if ord(one) < 0x20 else one for one in content)


def or_empty(content: str) -> str:
    """As the report shows a text that may be blank."""
    return visible(content) if content.strip() else "(empty)"


@pytest.fixture(scope="module")
def both(finished: Path, finished_otherwise: Path) -> tuple[list[Path], Page, str]:
    folders = [finished, finished_otherwise]
    content = report_page([read_run(folder, folders) for folder in folders])
    return folders, Page(content), content


def section(content: str, title: str) -> Page:
    """The part of a page below a heading."""
    return Page(re.split("<h2>|<script", content.partition(f"<h2>{title}</h2>")[2])[0])


def as_set(value: Any) -> str:
    """A setting as the report shows it."""
    return or_empty(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def test_scores_settings_and_metrics_are_those_of_the_files(both: tuple[list[Path], Page, str]) -> None:
    folders, _, content = both
    scores = [read_json(folder / "scores.json") for folder in folders]
    rows = section(content, "Scores").rows
    for metric in scores[0]["hostile"]:
        shown = []
        for entry in (of_run["hostile"][metric] for of_run in scores):
            interval = entry.get("interval")
            shown.append(f"{entry['score']:.2f}" + (f" ± {interval['half_width']:.2f}" if interval else ""))
        assert [metric, *shown] in rows
    recipes = [tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8")) for folder in folders]
    rows = section(content, "Settings").rows
    for name, values in recipes[0].items():
        for key in values:
            assert [f"{name}.{key}", *(as_set(recipe[name][key]) for recipe in recipes)] in rows
    numbers = [row for row in section(content, "Curves").rows if row]
    lines = [line for folder in folders for line in read_json_lines(folder / "metrics.jsonl")]
    assert [row[0] for row in numbers] == [f"{line['step']:,}" for line in lines]
    assert [row[4] for row in numbers] == [f"{line['loss']:.4f}" for line in lines]
    found = [line.get("valid_bleu") for line in lines]
    assert [row[7] for row in numbers] == ["–" if value is None else f"{value:.2f}" for value in found]


def test_numbers_of_the_data_and_checksums_are_those_of_the_files(both: tuple[list[Path], Page, str]) -> None:
    folders, _, content = both
    manifests = [read_json(folder / "data" / "manifest.json") for folder in folders]
    reports = [read_json(folder / "data" / "report.json") for folder in folders]
    rows = section(content, "Data").rows
    assert ["training pairs read", *(f"{report['pairs']['read']:,}" for report in reports)] in rows
    for name in manifests[0]["pairs"]:
        assert [f"pairs kept: {name}", *(f"{manifest['pairs'][name]:,}" for manifest in manifests)] in rows
    for side in ("source", "target"):
        shown = [f"{manifest['train_tokens'][side]:,}" for manifest in manifests]
        assert [f"training tokens, {side}", *shown] in rows
    for corpus in manifests[0]["corpora"]:
        assert [corpus["name"], corpus["role"], f"{corpus['pairs']:,}", corpus["sha256"][:12]] in [
            row[:4] for row in rows
        ]
    rows = section(content, "Reproduction").rows
    assert ["fingerprint of settings and corpora", *(manifest["fingerprint"][:12] for manifest in manifests)] in rows


def test_samples_and_best_and_worst_sentences_are_lines_of_the_files(both: tuple[list[Path], Page, str]) -> None:
    folders, _, content = both
    files = ("data/test/hostile.source.txt", "data/test/hostile.reference.txt", "translations/hostile.txt")
    names = ("source", "reference", "translation")
    number_of_sentences = 0
    for folder, part in zip(folders, re.split("<h3>", content.partition("Best and worst")[2])[1:3], strict=True):
        lines = [read_lines(folder / file) for file in files]
        sentences = re.findall(r"<dl><dt>line ([\d,]+)</dt>.*?</dl>", part)
        texts = [Page(one).text for one in re.findall(r"<dl><dt>line .*?</dl>", part)]
        for number, shown in zip(sentences, texts, strict=True):
            sides = (or_empty(side[int(number) - 1]) for side in lines)
            assert shown.endswith("".join(f"{name}{side}" for name, side in zip(names, sides, strict=True)))
        number_of_sentences += len(sentences)
    assert number_of_sentences == 2 * 2 * 5  # runs, best and worst, sentences
    samples = section(content, "Samples").text
    for line in read_json_lines(folders[0] / "metrics.jsonl"):
        for sample in line.get("samples") or []:
            sides = (or_empty(sample[key]) for key in ("source", "reference", "hypothesis"))
            assert "".join(f"{name}{side}" for name, side in zip(names, sides, strict=True)) in samples


def test_curves_are_the_numbers_of_metrics_jsonl(both: tuple[list[Path], Page, str]) -> None:
    folders, found, _ = both
    data = found.data["curves"]
    for folder, numbers in zip(folders, data["runs"], strict=True):
        lines = read_json_lines(folder / "metrics.jsonl")
        for name, (_, key, scale) in OVER.items():
            assert numbers["x"][name] == pytest.approx([line[key] * scale for line in lines], rel=1e-7)
        for key, values in numbers["y"].items():
            scale = 1e-9 if key == "memory_bytes" else 1
            assert [value is None for value in values] == [line.get(key) is None for line in lines]
            known = [line[key] * scale for line in lines if line.get(key) is not None]
            assert [value for value in values if value is not None] == pytest.approx(known, rel=1e-7)
    keys = {line["key"] for figure in data["figures"].values() for line in figure["lines"]}
    wanted = {"loss", "nll", "valid_nll", "learning_rate", "valid_bleu", "target_tokens_per_second", "gradient_norm"}
    assert keys == wanted | {"memory_bytes"}
    assert set(data["over"]) == set(OVER)


def test_the_sections_stand_in_a_readers_order_and_name_their_files(both: tuple[list[Path], Page, str]) -> None:
    _, _, content = both
    titles = re.findall("<h2>(.*?)</h2>", content)
    assert titles == [
        "Scores", "Samples", "Best and worst translations of the test sets", "Curves", "Attention", "Data", "Cost",
        "Settings", "Reproduction",
    ]  # fmt: skip
    named = dict(re.findall("<h2>([^<]*)</h2><small>From (.*?)</small>", content))
    files = {title: re.findall("<code>(.*?)</code>", shown) for title, shown in named.items()}
    assert list(files) == [title for title in titles if title != "Attention"]
    assert files["Scores"] == ["scores.json"]
    assert files["Samples"] == files["Curves"] == ["metrics.jsonl"]
    assert files["Data"] == ["data/manifest.json", "data/report.json"]
    assert files["Cost"] == ["cost.json"]
    assert files["Settings"] == ["recipe.toml"]
    assert files["Reproduction"][:2] == ["recipe.toml", "data/manifest.json"]


def test_the_page_of_a_long_run_stays_small(finished: Path) -> None:
    run = read_run(finished)
    length = 20_000
    metrics = [{**run.metrics[0], "step": step} for step in range(1, length + 1)]
    for number in (999, 7777):
        metrics[number - 1] = {**metrics[number - 1], "valid_nll": 2.5}
    long = replace(run, metrics=metrics)
    assert {1, 999, 7777, length} <= {line["step"] for line in reports_shown(long)}
    assert len(reports_shown(long)) <= MOST_REPORTS + 3
    content = report_page([long])
    assert len(content.encode()) < 1_000_000
    assert "one report in 40 and all validations" in Page(content).text
    assert len(report_page([run]).encode()) < 300_000


def test_the_cost_is_short_with_units_and_raw_keys_are_folded_away(both: tuple[list[Path], Page, str]) -> None:
    folders, _, content = both
    section = content.partition("<h2>Cost</h2>")[2].partition("<h2>")[0]
    summary, *folded = section.split("<details>")
    rows = Page(summary).rows[1:]
    costs = [read_json(folder / "cost.json") for folder in folders]
    assert len(rows) <= 12
    for label in ("time", "FLOPs, counted", "peak memory"):
        values = [dict(training_table(cost).rows)[label] for cost in costs]
        assert [label, *values] in rows
    assert any("padding" in row[0] for row in rows)
    assert not re.search(r"flops_|_seconds|not measured", summary)
    assert (
        f'"flops_attention": {costs[0]["flops_attention"]}' in Page("".join(f"<details>{part}" for part in folded)).text
    )


def test_text_of_corpora_and_names_stays_text(both: tuple[list[Path], Page, str]) -> None:
    _, found, content = both
    assert "<b>other" in found.text
    assert "</script><script>document.title = 'taken'</script> ab" in found.text
    assert "img" not in found.tags
    assert found.tags.count("script") == 3 + 3  # data: curves and attention of two runs; colours, curves, attention
    assert "\u2028" not in "".join(found.scripts[1:])
    assert re.search(r"<bdi>[^<]*\u202e[^<]*</bdi>", content)
    assert not re.search(r"(?<!<bdi>)\u202e", re.sub(r"<bdi>[^<]*</bdi>", "", content))


@given(st.text(), st.text())
@settings(deadline=None)
def test_any_text_is_shown_as_it_is(content: str, other: str) -> None:
    whole = page(
        content,
        [text(content), table([other], [[text(content)]]), switches("radio", other, content, [(other, content)], [])],
    )
    found = Page(whole)
    ours = "html head meta title style body bdi div table thead tr th tbody td fieldset legend label input span"
    assert set(found.tags) <= set(ours.split(" "))
    cleaned = "".join(
        one for one in visible(content) if not 0x7F <= ord(one) < 0xA0 and not 0xD800 <= ord(one) < 0xE000
    )
    assert cleaned in found.text.replace("\ufffd", "") or "\ufffd" in content


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
@settings(deadline=None, max_examples=50)
def test_any_data_comes_through_a_script(value: Any) -> None:
    script = json_script("data", value)
    assert Page(script).data == {"data": value}
    assert script.isascii()
    assert not re.search("</script|<!--", script[len("<script") : -len("</script>")])


def test_a_script_that_would_end_early_is_refused() -> None:
    with pytest.raises(AssertionError):
        live_page("a", [], style="", scripts=["'</SCRIPT>'"])


def test_settings_that_differ_are_told_and_no_others(both: tuple[list[Path], Page, str]) -> None:
    folders, _, content = both
    told = content.partition("<h3>Settings that differ</h3>")[2].partition("<details>")[0]
    assert set(re.findall(r"<code><bdi>([\w.]+)</bdi></code>", told)) == {"training.seed", "model.d_ff"}
    recipe = tomllib.loads((folders[0] / "recipe.toml").read_text(encoding="utf-8"))
    keys = [f"{section}.{key}" for section, values in recipe.items() for key in values]
    shown = [row[0] for row in section(content, "Settings").rows if row]
    assert shown[-len(keys) :] == keys
    assert f"All {len(keys)} settings" in content


def test_the_worst_and_best_sentences_are_those_by_chrf(finished: Path) -> None:
    from sacrebleu import sentence_chrf

    found = translated(read_run(finished), "hostile")
    assert not isinstance(found, str)
    lines = [read_lines(finished / path) for path in ("translations/hostile.txt", "data/test/hostile.reference.txt")]
    expected = [sentence_chrf(hypothesis, [reference]).score for hypothesis, reference in zip(*lines, strict=True)]
    assert [sentence.quality for sentence in found] == sorted(expected)
    assert {sentence.line: sentence.quality for sentence in found} == dict(enumerate(expected, start=1))


def test_lines_between_documents_are_no_translations(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("translations/hostile.txt", "data/test/hostile.reference.txt", "data/test/hostile.source.txt"):
        lines = read_lines(copy / path)
        write_lines(copy / path, [line for each in lines for line in ("", each)])
    found = translated(read_run(copy), "hostile")
    assert not isinstance(found, str)
    assert sorted(sentence.line for sentence in found) == [2, 4, 6, 8, 10]
    _print_outputs(copy, "hostile", "translation")
    printed = capsys.readouterr().out
    assert "4 of the 5 sentences of the test set hostile" in printed
    assert not re.search(r"(source|reference) +\(empty\)", printed)


@pytest.mark.parametrize(
    ("names", "commands"),
    [
        (["scores.json"], ["nmtkit score "]),
        (["cost.json"], ["nmtkit cost "]),
        (["translations"], ["nmtkit translate "]),
        (["averaged", "translations", "scores.json", "cost.json"], ["nmtkit score ", "nmtkit translate "]),
        (["averaged", "checkpoints", "resume", "metrics.jsonl"], ["nmtkit train ", "there is no model yet"]),
        (["data", "averaged", "checkpoints", "resume", "metrics.jsonl"], ["nmtkit prepare "]),
    ],
)  # fmt: skip
def test_what_a_run_does_not_have_yet_is_named(copy: Path, names: list[str], commands: list[str]) -> None:
    for name in names:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = read_run(copy)
    found = Page(report_page([run]))
    for command in commands:
        assert command in found.text
    assert str(copy) in found.text
    assert card(run)


@pytest.mark.parametrize(
    ("key", "settings"), [("test set", {"test": ()}), ("environment", {"test": (), "task": "trajectories"})]
)
def test_a_run_without_what_score_needs_names_no_command_that_fails(
    finished: Path, key: str, settings: dict[str, Any]
) -> None:
    run = read_run(finished)
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update=settings)})
    files = {name: content for name, content in run.files.items() if name not in ("scores.json", "cost.json")}
    unscored = replace(run, recipe=recipe, files=files)
    for content in (Page(report_page([unscored], with_attention=False)).text, card(unscored)):
        assert f"The recipe names no {key}." in content
        assert "nmtkit score" not in content
        assert "nmtkit cost " in content


def test_each_run_stands_in_the_table_two_of_the_paper_and_beside_its_prediction(
    both: tuple[list[Path], Page, str],
) -> None:
    folders, found, _ = both
    assert sum(row[:1] == ["Transformer (big)"] for row in found.rows) == len(folders)
    for folder in folders:
        cost = read_json(folder / "cost.json")
        assert any(row[:1] == [f"{folder.name}, counted"] and scientific(cost["flops"]) in row for row in found.rows)
        numbers = [cost["prediction"]["target_tokens"], cost["target_tokens"]]
        predicted = [f"{number:,.0f}" if number >= 1000 else f"{number:.4g}" for number in numbers]
        assert ["target tokens", *predicted] in [row[:3] for row in found.rows]


def test_an_interval_and_an_average_that_were_computed_are_shown(copy: Path) -> None:
    scores = read_json(copy / "scores.json")
    scores["hostile"]["chrf2"]["interval"] = {"mean": 41.25, "half_width": 1.75, "resamples": 1000, "seed": "12345"}
    write_json(copy / "scores.json", scores)
    write_json(copy / "cost.json", {**read_json(copy / "cost.json"), "new_key": "<i>"})
    tried = [
        {"n": n, "metric": "sacrebleu", "score": 40.0 + n, "nll": 2.5, "first_step": 8 - n, "last_step": 8}
        for n in (1, 2, 3)
    ]  # fmt: skip
    write_json(copy / "averaging.json", {"best": tried[2], "tried": tried, "made_from": {}})
    found = Page(report_page([read_run(copy)], with_attention=False))
    averages = found.data["curves"]["averages"]
    assert list(averages) == ["sacrebleu"]
    assert [(line["x"], line["y"]) for line in averages["sacrebleu"]] == [([1, 2, 3], [41.0, 42.0, 43.0])]
    rows = [row for row in found.rows if "sacrebleu" in row[1:2]]
    assert [row[0] for row in rows if row[-1] == "best"] == ["3"]
    assert [float(row[2]) for row in rows] == [one["score"] for one in tried]
    assert "± 1.75" in found.text
    assert found.text.count("± is half of the 95 % interval, by 1,000 bootstrap resamples") == 1
    assert "± 1.75" in card(read_run(copy))
    for part in ("new_key", "<i>"):
        assert part in found.text


def test_a_training_that_went_on_has_its_own_cost_and_older_scores_are_named(
    copy: Path, logged: pytest.LogCaptureFixture
) -> None:
    cost = read_json(copy / "cost.json")
    write_json(copy / "cost.json", {**cost, "updates": cost["updates"] - 1, "flops": 1.0})
    later = (copy / "scores.json").stat().st_mtime + 9
    os.utime(copy / "cost.json", (later, later))
    assert read_run(copy).files["cost.json"]["flops"] == cost["flops"]
    assert not logged.messages
    translation = copy / "translations" / "hostile.txt"
    os.utime(translation, (later, later))
    read_run(copy)
    told = f"{copy}/scores.json is older than {translation}; `nmtkit score {copy}` makes it again"
    assert [message.partition(" (")[0] for message in logged.messages] == [told]


def test_the_card_holds_what_repeating_the_run_takes(finished: Path) -> None:
    content = card(read_run(finished))
    recipe = content.partition("```toml\n")[2].partition("\n```\n")[0]
    assert tomllib.loads(recipe) == tomllib.loads((finished / "recipe.toml").read_text(encoding="utf-8"))
    assert sha256_of(finished / "averaged" / "model.safetensors") in content
    manifest = read_json(finished / "data" / "manifest.json")
    for corpus in manifest["corpora"]:
        assert corpus["sha256"] in content
        for file in corpus["files"]:
            assert sha256_of(Path(file["path"])) == file["sha256"]
            assert file["sha256"] in content
    provenance = read_json(finished / "averaged" / "provenance.json")
    for average in provenance["average_of"]:
        assert average["sha256"] in content
    for name, version in provenance["versions"].items():
        assert f"{name} `{version}`" in content
    cost = read_json(finished / "cost.json")
    for told in (
        "| seed | `1` |",
        f"| updates | `{cost['updates']:,}` |",
        f"`{cost['target_tokens']:,}`",
        "on 1 x cpu (float32)",
    ):
        assert told in content
    assert FORMS["flops"](cost["flops"]) in content
    for metric, entry in read_json(finished / "scores.json")["hostile"].items():
        shown_score = f"{entry['score']:.2f} ± {entry['interval']['half_width']:.2f}"
        assert f"| `{metric}` | {shown_score} | `{entry['signature']}` |".replace("|", "") in re.sub(
            r"\\?\|", "", content
        )


@given(st.text(min_size=1), st.text())
@settings(deadline=None, max_examples=25)
def test_any_name_stays_on_its_line_of_the_card(finished: Path, name: str, corpus: str) -> None:
    run = read_run(finished)
    files = {**run.files, "data/manifest.json": {**run.files["data/manifest.json"], "pairs": {corpus: 1}}}
    content = card(replace(run, name=name, files=files))
    plain = card(run)
    assert len(content.split("\n")) == len(plain.split("\n"))
    assert not re.search(r"(?<!\\)<", content.split("\n")[0])


@pytest.mark.parametrize(
    ("target", "form"),
    [("FG HIJ", "words"), ("犬は花を持っている。", "pieces"), ("ฉันกินข้าว แล้วก็นอน", "pieces"), ("나는 간다", "words")],
)
def test_attention_is_shown_between_words_only_where_blanks_divide_them(
    finished: Path, monkeypatch: pytest.MonkeyPatch, target: str, form: str
) -> None:
    for pair in (("ab cde", target), (target, "FG HIJ")):
        monkeypatch.setattr("nmtkit.reports.run_page.example_pair", lambda run, pair=pair: (*pair, None, None))
        found = Page(report_page([read_run(finished)]))
        assert found.data["attention-0"]["first"]["form"] == form


def test_attention_is_that_of_the_pieces_that_were_joined_to_words(
    tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = prepared(tiny.recipe, tmp_path / "run", 'data.subwords="none"', "data.vocab_size=60000")[1]
    tiny.train(pieces.folder, 'data.subwords="none"', "data.vocab_size=60000", "training.max_steps=4")
    monkeypatch.setattr("nmtkit.reports.run_page.example_pair", lambda run: ("ab cde", "ABCDE", None, None))
    data = Page(report_page([read_run(pieces.folder)])).data["attention-0"]
    assert "<unk>" not in str(data["pieces"])
    [own] = Translator.load(pieces.folder).translate(["ab cde"])
    assert run_page._attention(read_run(pieces.folder), 0)["target"] == (own if own.strip() else "ABCDE")


def test_a_folder_that_begins_like_an_option_stays_a_folder_in_commands(finished: Path) -> None:
    run = replace(read_run(finished), folder=Path("-run"))
    assert run.command("score") == "nmtkit score ./-run"
    assert run.command("train") == "nmtkit train ./-run/recipe.toml --run-dir ./-run"


class TestCommand:
    """`nmtkit report`, run in this process."""

    def test_writes_the_page_and_the_cards(
        self, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs = [shutil.copytree(finished, tmp_path / name) for name in ("one", "two")]
        monkeypatch.chdir(tmp_path)
        assert run_command("report", runs[0], "--quiet")[:2] == (0, f"{runs[0] / 'report.html'}\n")
        given = (*runs, runs[0] / ".." / "one", "--no-attention")
        twice = run_command("report", *given, "--quiet")
        assert twice[:2] == (0, "report.html\n")
        assert "the same run is given twice; it is shown once" in twice.err
        assert [(run / "card.md").read_text(encoding="utf-8") for run in runs] == [card(read_run(run)) for run in runs]
        alone, compared = (path.read_text(encoding="utf-8") for path in (runs[0] / "report.html", Path("report.html")))
        assert alone == report_page([read_run(runs[0])])
        assert "data-attention=" in alone
        assert "data-attention=" not in compared

    def test_scores_of_other_lines_under_the_same_name_are_marked(self, finished: Path, tmp_path: Path) -> None:
        runs = [shutil.copytree(finished, tmp_path / name) for name in ("one", "two")]
        told = "The lines of this test set differ between the runs"
        assert told not in report_page([read_run(run) for run in runs], with_attention=False)
        with (runs[1] / "data/test/hostile.reference.txt").open("a") as file:
            file.write("x")
        assert told in report_page([read_run(run, runs) for run in runs], with_attention=False)

    def test_what_is_no_run_is_one_line(self, tmp_path: Path) -> None:
        wanted = "give the folder that `nmtkit run` or `nmtkit prepare` wrote"
        told = f"error: {tmp_path}: not a run (no recipe.toml in it); {wanted}\n"
        assert run_command("report", tmp_path, "--quiet") == (1, "", told)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("scores.json", "{", "not valid JSON"),
        ("scores.json", "[]", "its content is a list"),
        ("scores.json", '{"hostile": {"chrf2": 3}}', "hostile.chrf2 is the number 3"),
        ("cost.json", "{}", "target_tokens is missing"),
        ("data/manifest.json", "{}", "fingerprint is missing"),
        ("metrics.jsonl", "3\n", "line 1: its content is the number 3"),
    ],
)
def test_a_file_of_another_form_is_named(copy: Path, file: str, content: str, told: str) -> None:
    (copy / file).write_text(content)
    with pytest.raises(DataError) as caught:
        read_run(copy)
    assert str(caught.value).startswith(f"{copy / file}")
    assert told in str(caught.value)


def test_of_a_training_that_diverged_the_finite_numbers_are_shown(finished: Path) -> None:
    run = read_run(finished)
    best = {**run.metrics[-1], "valid_nll": 2.5}
    last = {**run.metrics[-1], "valid_nll": math.nan, "loss": math.nan, "gradient_norm": math.inf, "nll": None}
    tried = [{"n": n, "metric": metric, "score": score, "nll": score}
             for n, metric, score in ((1, "nll", math.nan), (2, "nll", 1.5), (1, "sacrebleu", 40.0))]  # fmt: skip
    files = {**run.files, "averaging.json": {"best": tried[1], "tried": tried}}
    found = Page(report_page([replace(run, files=files, metrics=[last, best, last])], with_attention=False))
    assert "2.5000best validation nll" in found.text
    for key in ("valid_nll", "loss", "gradient_norm", "nll"):
        assert found.data["curves"]["runs"][0]["y"][key][-1] is None
    averages = found.data["curves"]["averages"]
    assert {metric: [line["y"] for line in lines] for metric, lines in averages.items()} == {
        "nll": [[1.5]],
        "sacrebleu": [[40.0]],
    }


@pytest.mark.parametrize(
    ("metric", "score", "shown"), [("perplexity", 8.2184e307, "8.22e+307"), ("comet", 0.84321, "0.8432")]
)
def test_scores_far_from_those_in_percent_have_digits_of_their_own(
    finished: Path, metric: str, score: float, shown: str
) -> None:
    run = read_run(finished)
    run = replace(run, files={**run.files, "scores.json": {"a": {metric: {"score": score, "signature": "m"}}}})
    for content in (card(run), Page(report_page([run], with_attention=False)).text):
        assert shown in content
        assert f"{8.2184e307:.0f}" not in content.replace(",", "")
    run.files["scores.json"] = {"a": {metric: {"score": 10**400}}}
    with pytest.raises(DataError, match="has no value of its kind"):
        card(run)


def test_a_run_that_was_saved_before_its_first_report_shows_what_its_save_knows(copy: Path) -> None:
    for name in ("averaged", "checkpoints"):
        shutil.rmtree(copy / name)
    for name in ("metrics.jsonl", "scores.json", "cost.json"):
        (copy / name).unlink()
    run = read_run(copy)
    found = Page(report_page([run]))
    assert "8updates" in found.text
    assert f"{run.state}" in section(report_page([run]), "Reproduction").text
    assert "no update is reported yet (one report every 3 updates)" in found.text
    assert "This run has had no validation" in found.text
    assert card(run)


def test_a_name_that_is_no_text_is_shown(copy: Path) -> None:
    run = read_run(copy.rename(copy.with_name("\udcff\u202e")))
    assert report_page([run], with_attention=False).encode("utf-8")
    assert card(run).encode("utf-8")


def test_a_picture_without_numbers_is_left_out(finished: Path) -> None:
    run = read_run(finished)
    lines = [{key: value for key, value in line.items() if key != "valid_bleu"} for line in run.metrics]
    without_bleu = replace(run, metrics=lines)
    assert set(figures([run])["figures"]) - set(figures([without_bleu])["figures"]) == {"bleu"}
    assert figures([replace(run, metrics=[])])["figures"] == {}


TRIED = {"n": 2, "metric": "nll", "score": 2.5, "nll": 2.5, "first_step": 4, "last_step": 8}


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], 'the rows of "tried" must have exactly the keys'),
        ({}, "tried is an object"),
        ([TRIED, 3], "tried[1] is the number 3"),
        ([{**TRIED, "more": 1}], 'the rows of "tried" must have exactly the keys'),
        ([{key: value for key, value in TRIED.items() if key != "score"}], "tried[0].score is missing"),
        ([{**TRIED, "score": "2.5"}], "tried[0].score: not a number"),
        ([{**TRIED, "n": True}], "tried[0].n is true or false"),
        ([{**TRIED, "first_step": 4.5}], "tried[0].first_step is the number 4.5"),
    ],
)
def test_a_damaged_row_of_tried_averages_is_told(rows: object, what: str, tmp_path: Path) -> None:
    path = tmp_path / "averaging.json"
    write_json(path, {"best": TRIED, "tried": rows, "made_from": {}})
    with pytest.raises(DataError, match=re.escape(f"{path}: ") + ".*" + re.escape(what)):
        read_averaging(path)


def test_an_average_of_no_number_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "averaging.json", {"best": TRIED, "tried": [{**TRIED, "score": math.nan}], "made_from": {}})
    assert math.isnan(read_averaging(tmp_path / "averaging.json")["tried"][0]["score"])


def test_figures_of_played_episodes_need_counts_and_lengths(finished: Path, tmp_path: Path) -> None:
    good = {"episodes": 2, "success_rate": 0.5, "lengths": {"3": 1}, "best_return_probabilities": {"success": []}}
    assert re.findall(r">([^<]+)</text>", lengths_of(good)) == ["3", "50.0 %", "never", "50.0 %"]
    assert predicted_returns([replace(read_run(finished), files={"play.json": good})]) == {}
    for fault in ({"episodes": 0}, {"lengths": {"x": 1}}, {"lengths": {"3": -1}}, {"shortest_lengths": {"3": 0.5}}):
        write_json(tmp_path / "play.json", {**good, **fault})
        with pytest.raises(DataError, match=rf"play\.json: {next(iter(fault))}: "):
            read_json(tmp_path / "play.json", PLAYED)
