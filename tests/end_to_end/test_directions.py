"""One model of two directions, from the text to scores per direction and on average."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError
from nmtkit.evaluation.compare import compare_runs
from nmtkit.evaluation.metrics import score
from nmtkit.json_toml import read_json, read_json_lines
from nmtkit.lines import read_lines, write_lines
from nmtkit.pipeline import RunResult
from nmtkit.reports.run_facts import example_pair, read_run
from nmtkit.run import Run
from tests.conftest import TINY_MODEL, finished_run, run_command

WORDS = ["ba", "do", "gi", "ku", "le", "mo"]
RECIPE = f"""
[data]
source_language = "en"
vocab_size = 80
train = [
  {{ source = "a.en", target = "a.de", target_language = "de" }},
  {{ source = "b.en", target = "b.fr", target_language = "fr" }},
]
valid = 21
test = [
  {{ source = "t.en", target = "t.de", target_language = "de" }},
  {{ source = "t.en", target = "t.fr", target_language = "fr" }},
]
{TINY_MODEL}[training]
precision = "float32"
tokens_per_update = 600
max_steps = 12
warmup_steps = 4
validate_every_steps = 6
checkpoint_every_steps = 4
[decoding]
beam = 2
average_last = 2
max_length_offset = 3
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    for name, numbers in (("a", range(200)), ("b", range(300, 400)), ("t", range(500, 510))):
        lines = [" ".join(WORDS[number // 6**place % 6] for place in range(4)) for number in numbers]
        texts = {"en": lines, "de": [line.upper() for line in lines], "fr": [line[::-1] for line in lines]}
        for code, text in texts.items():
            (folder / f"{name}.{code}").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    (folder / "many.toml").write_text(RECIPE, encoding="utf-8")
    return finished_run(folder / "many.toml", folder / "run")


def test_scores_are_per_direction_and_on_average(run: Path) -> None:
    scores = read_json(run / "scores.json")
    assert set(scores) == {"t.en-de", "t.en-fr", "average"}
    assert "bleu-compound-split" in scores["t.en-de"]
    assert "bleu-compound-split" not in {**scores["t.en-fr"], **scores["average"]}
    assert "text:moses-fr" in scores["t.en-fr"]["bleu-tokenized"]["signature"]
    for metric, entry in scores["average"].items():
        values = [scores[name][metric]["score"] for name in ("t.en-de", "t.en-fr")]
        assert entry["score"] == pytest.approx(sum(values) / 2)
        assert entry["signature"].startswith("mean:2|")
    references = read_lines(run / "data" / "test" / "t.en-fr.reference.txt")
    hypotheses = read_lines(run / "translations" / "t.en-fr.txt")
    alone = score(hypotheses, references, target_language="fr", text="plain")
    assert scores["t.en-fr"]["chrf2"]["score"] == pytest.approx(alone["chrf2"].score)


def test_test_sets_are_translated_with_their_own_tag(run: Path) -> None:
    translator = Translator.load(run)
    sources = read_lines(run / "data" / "test" / "t.en-de.source.txt")
    found = {code: translator.translate(sources, target_language=code) for code in ("de", "fr")}
    assert found["de"] != found["fr"]
    for code, lines in found.items():
        assert read_lines(run / "translations" / f"t.en-{code}.txt") == lines


def test_validations_are_per_direction_and_their_mean_is_the_score(run: Path) -> None:
    lines = [line for line in read_json_lines(run / "metrics.jsonl") if line.get("valid_nll") is not None]
    assert len(lines) == 2
    for line in lines:
        directions = line["valid_directions"]
        assert set(directions) == {"en-de", "en-fr"}
        assert line["valid_bleu"] == pytest.approx(sum(own["bleu"] for own in directions.values()) / 2)
        assert min(own["nll"] for own in directions.values()) < line["valid_nll"]
        assert line["valid_nll"] < max(own["nll"] for own in directions.values())
        assert [sample["target_language"] for sample in line["samples"]] == ["de", "fr", "de"]


def test_forced_scores_agree_with_the_search_in_each_direction(run: Path) -> None:
    [line], translator = ["ba do gi"], Translator.load(run)
    log_probs = set()
    for code in ("de", "fr"):
        [[best]] = translator.translations([line], TranslationRequest(target_language=code))
        [forced] = ForcedDecoder.load([run], target_language=code).score([(line, best.text)])
        assert forced.log_prob == pytest.approx(best.log_prob, abs=1e-3)
        log_probs.add(round(forced.log_prob, 3))
    assert len(log_probs) == 2
    with pytest.raises(DataError, match="choose one of de, fr with --to"):
        ForcedDecoder.load([run])


def test_commands_take_a_known_code_and_refuse_others_in_one_line(run: Path, tmp_path: Path) -> None:
    text, hypotheses = run / "data" / "test" / "t.en-de.source.txt", run / "translations" / "t.en-de.txt"
    lists = tmp_path / "lists.jsonl"
    lists.write_text(json.dumps({"source": "ba do", "hypotheses": [{"text": "BA DO"}]}) + "\n", encoding="utf-8")
    commands: list[tuple[object, ...]] = [
        ("translate", run, "--input", text, "--output", tmp_path / "out.txt"),
        ("score", "--model", run, "--source", text, "--hypothesis", hypotheses),
        ("rerank", "--model", run, "--input", lists),
        ("attention", run, "--source", "ba do"),
    ]
    for command in commands:
        assert run_command(*command, "--quiet", "--to", "de").code == 0
        for wrong, message in (
            ((), "the model has several target languages; choose one of de, fr with --to"),
            (("--to", "es"), 'the model does not know the target language "es"; choose one of de, fr'),
        ):
            refused = run_command(*command, "--quiet", *wrong)
            assert refused.code == 1
            assert message in refused.err
            assert refused.err.count("\n") == 1
    assert read_lines(tmp_path / "out.txt") == read_lines(hypotheses)


def test_a_missing_translation_names_a_command_with_its_language(run: Path) -> None:
    output = run / "translations" / "t.en-fr.txt"
    kept = output.rename(output.with_suffix(".kept"))
    try:
        with pytest.raises(DataError, match=r"nmtkit translate .*run --to fr --input"):
            Run(run).read_translated("t.en-fr")
    finally:
        kept.rename(output)


def test_a_model_that_was_fine_tuned_in_one_direction_is_used_in_this_direction(run: Path, tmp_path: Path) -> None:
    others = [line for line in RECIPE.splitlines() if 'target_language = "de"' not in line and "max_steps" not in line]
    recipe = "\n".join(others).replace("vocab_size = 80", f'target_language = "fr"\ntokenizer = "{run}"')
    recipe = recipe.replace("[training]", f'[training]\ninit = "{run}"\nmax_steps = 6')
    (run.parent / "one.toml").write_text(recipe, encoding="utf-8")
    tuned = Run(tmp_path / "tuned")
    code, out, _ = run_command("run", run.parent / "one.toml", "--run-dir", tuned.folder, "--device", "cpu")
    assert code == 0 and f"| nmtkit translate {tuned.folder} --to fr\n" in out
    tuned.translation("t").unlink()
    with pytest.raises(DataError, match="--to fr --input"):
        tuned.read_translated("t")
    assert run_command("report", tuned.folder, "--output", tmp_path / "report.html").code == 0
    assert " --to fr --output attention" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in (tuned.test_text("t").source, tuned.test_text("t").reference):
        text.write_text("ba do gi ku le\n", encoding="utf-8")
    facts = read_run(tuned.folder)
    facts.metrics.clear()
    assert example_pair(facts) == ("ba do gi ku le", "ba do gi ku le", "fr", None)


def test_the_command_to_try_next_is_in_the_direction_of_the_sentence_in_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.pipeline.run", lambda *_, **__: RunResult(0, {"t.en-fr": {}}))
    code, out, _ = run_command("run", run / "recipe.toml", "--run-dir", run)
    assert code == 0
    assert "of the test set t.en-fr" in out
    assert f"| nmtkit translate {run} --to fr\n" in out


def test_report_card_cost_and_comparison_know_the_languages(run: Path, tmp_path: Path) -> None:
    assert run_command("report", run, "--output", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "t.en-fr" in page
    assert "average" in page
    assert "--to " in page
    assert "A translation model from `en` to `de`, `fr`" in (run / "card.md").read_text(encoding="utf-8")
    assert read_json(run / "cost.json")["target_language"] == "mul"
    (tmp_path / "other").symlink_to(run)
    with pytest.raises(DataError, match="the same run is given twice"):
        compare_runs([run, tmp_path / "other"])
    copied = shutil.copytree(run, tmp_path / "copied")
    compared = compare_runs([run, copied], trials=10)
    assert set(compared.scores) == {"t.en-de", "t.en-fr"}
    assert "text:moses-fr" in compared.scores["t.en-fr"]["bleu-tokenized"]["copied"].signature


def test_only_sentences_of_the_first_direction_are_shown_with_it(run: Path, tmp_path: Path) -> None:
    short, long = "ba do", "ba do gi ku le mo"
    copied = Run(Path(shutil.copytree(run, tmp_path / "run")))
    shutil.rmtree(copied.data / "test")
    [[first, count], [_, others]] = read_json(copied.data / "manifest.json")["valid_directions"]
    for at, expected in ((count, None), (count - 1, (long, long, first[1], None))):
        lines = [short] * at + [long] + [short] * (count + others - at - 1)
        for path in (copied.valid_text.source, copied.valid_text.reference):
            write_lines(path, lines)
        assert example_pair(replace(read_run(copied.folder), metrics=[])) == expected


def test_averages_are_searched_by_the_mean_of_the_directions(run: Path) -> None:
    assert run_command("average", run, "--search", "--device", "cpu").code == 0
    tried: list[dict[str, Any]] = read_json(run / "averaging.json")["tried"]
    assert all(math.isfinite(row["score"]) and math.isfinite(row["nll"]) for row in tried)


def test_an_export_translates_to_the_same_languages(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    export = tmp_path / "ct2"
    exported = run_command("export", run, "--format", "ctranslate2", "--output", export)
    assert exported.code == 0, exported.err
    readme = (export / "README.md").read_text(encoding="utf-8")
    assert "# en to de, fr, exported by nmtkit" in readme
    assert "First token of the source for a translation to fr" in readme
    text = run / "data" / "test" / "t.en-de.source.txt"
    lines = {}
    for code in ("de", "fr"):
        for model, engine in ((export, "ctranslate2"), (run, "torch")):
            out = tmp_path / f"{code}-{engine}.txt"
            options = ("--to", code, "--beam", 1, "--engine", engine, "--device", "cpu")
            assert run_command("translate", model, "--input", text, "--output", out, *options).code == 0
            lines[code, engine] = read_lines(out)
        assert lines[code, "ctranslate2"] == lines[code, "torch"]
    assert lines["de", "torch"] != lines["fr", "torch"]
    refused = run_command("translate", export, "--input", text, "--output", tmp_path / "x", "--engine", "ctranslate2")
    assert "choose one of de, fr with --to" in refused.err
    refused = run_command("export", run, "--format", "huggingface", "--output", tmp_path / "hf")
    assert "several target languages (de, fr); choose --format ctranslate2" in refused.err
