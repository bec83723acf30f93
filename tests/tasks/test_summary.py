"""Summaries from text files to scores: tabs as tokens, sources cut to their first tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import TrainingLengths
from nmtkit.config.recipe import load_recipe
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, RecipeError
from nmtkit.evaluation.metric_names import default_metrics
from nmtkit.json_toml import read_json
from nmtkit.model_folder import read_description
from nmtkit.run import Run
from nmtkit.tasks.summary import SummaryTask
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.training.prediction import AssumedPairs
from tests.conftest import finished_run, prepared, run_command, train_run

LENGTH = 12
RECIPE = (
    '[data]\ntask = "summary"\ntarget_language = "en"\n'
    f'train = [{{ source = "train.source", target = "train.target" }}]\n'
    f'valid = [{{ source = "valid.source", target = "valid.target" }}]\n'
    f'test = [{{ source = "valid.source", target = "valid.target", name = "test" }}]\nsubwords = "none"\n'
    f'vocab_size = 40\nmax_source_tokens = {LENGTH}\n[model]\narchitecture = "decoder"\n'
    'self_attention = ["local", "compressed"]\nlocal_block = 4\ndecoder_layers = 2\nd_model = 16\nd_ff = 32\n'
    'num_heads = 2\ndropout = 0.0\n[training]\nsource_loss = 0.0\nsequences_per_update = 8\nschedule = "constant"\n'
    'peak_learning_rate = 0.01\nwarmup_steps = 5\nmax_steps = 20\nvalidate_bleu = false\nprecision = "float32"\n'
    "validate_every_steps = 10\ncheckpoint_every_steps = 10\nkeep_last = 1\n"
    "[decoding]\naverage_last = 1\nmax_length_ratio = 0.0\nmax_length_offset = 10\n"
)
SOURCE = "tea\ttea is hot .\tcups are red . they break ."
"""14 words and tabs."""
PAIRS = [(SOURCE, "tea hot .\tcups red ."), ("cup\tcups break .", "cups break ."), ("\ttea is red .", "tea red .")]


def write_project(folder: Path, recipe: str = RECIPE, **texts: list[str]) -> str:
    sides = dict(zip(("source", "target"), map(list, zip(*PAIRS, strict=True)), strict=True))
    contents = {f"{name}.{side}": sides[side] * 8 for name in ("train", "valid") for side in sides}
    for name, lines in {**contents, **{key.replace("_", "."): lines for key, lines in texts.items()}}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "mine.toml").write_text(recipe, encoding="utf-8")
    return str(folder / "mine.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("summaries")
    return finished_run(write_project(folder), folder / "run")


def test_tabs_become_words_and_come_back() -> None:
    task = SummaryTask("plain")
    line = "a title\tone  two \t three\t\tfour"
    marked = f"a title {FIELD_MARK} one  two {FIELD_MARK} three {FIELD_MARK} {FIELD_MARK} four"
    assert task.model_source(line) == task.model_target(line, "x") == marked
    assert task.model_source("\ttext") == f"{FIELD_MARK} text"
    assert task.model_source(" \t \t") == ""
    assert task.words(f"a {FIELD_MARK} b {FIELD_MARK}") == ["a", "b"]
    assert task.output("", f"one . {FIELD_MARK} two {FIELD_MARK}").text == "one .\ttwo"


@pytest.mark.parametrize("subwords", ["bpe", "unigram", "wordpiece", "none", "characters"])
def test_a_tab_is_one_token_and_subwords_are_learned_from_long_documents(subwords: str) -> None:
    size = {"unigram": 22, "wordpiece": 42}.get(subwords, 45)
    data = DataConfig.model_validate(
        {"task": "summary", "target_language": "en", "train": ["x"], "subwords": subwords, "vocab_size": size}
    )
    assert data.source_language == "en"
    document = SummaryTask("plain").model_source("title\t" + "\t".join(["brick house"] * 600))
    assert len(document.encode()) > 4192
    tokenizer = learn_tokenizer(data, lambda: [(document, "short text")] * 3)
    ids = tokenizer.encode([f"title {FIELD_MARK} brick house {FIELD_MARK} brick"], "source")[0]
    assert sum(FIELD_MARK in piece for piece in tokenizer.pieces(ids, "source")) == 2
    blank = "" if subwords == "none" else "\u2581"
    assert f"{blank}{FIELD_MARK}" in tokenizer.pieces(ids, "source")
    assert tokenizer.translation(ids) == f"title {FIELD_MARK} brick house {FIELD_MARK} brick"
    assert 1 not in ids


def test_sources_are_cut_to_their_first_tokens_and_targets_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nmtkit")
    path, task = write_project(tmp_path), SummaryTask("plain")
    for length, num_cut in ((LENGTH, 8), (3, 24), (1000, 0)):
        _, run = prepared(path, tmp_path / f"{length}", f"data.max_source_tokens={length}")
        data, tokenizer = PairData(run.data / "train"), run.tokenizer()
        for pair, (source, target) in enumerate(PAIRS):
            words = task.model_source(source).split()[:length]
            assert [tokenizer.decode([index], "source") for index in data.ids(0, pair).tolist()] == words
            assert tokenizer.decode(data.ids(1, pair).tolist()) == task.model_target(target, "")
        assert read_json(run.manifest)["training_lengths"]["max_source_tokens"] == length
        part = read_json(run.data_report)["subwords"]["train"]["source"]
        assert (part.get("cut", 0), part["tokens_per_word"]) == (num_cut, 1)
        assert ("sources cut</div>" in run.data_page.read_text("utf-8")) == bool(num_cut)
    assert f"train: 8 of 24 sources cut to the first {LENGTH} tokens" in caplog.text


def test_a_long_document_is_dropped_only_by_a_stated_limit(tmp_path: Path) -> None:
    long = "title\t" + "word " * 3000 + ".\tend"
    path = write_project(tmp_path, train_source=[long, SOURCE, long], train_target=["tea .", "tea .", "tea " * 30])
    unlimited = load_recipe(path, ["data.max_source_tokens=2000"])
    assert (unlimited.cleaning.max_tokens, unlimited.cleaning.max_characters) == (0, 0)
    assert prepare(unlimited, tmp_path / "all").manifest["training_lengths"]["longest_source"] == 2000
    cut = load_recipe(path, ["data.max_source_tokens=20", "cleaning.max_tokens=20", "cleaning.max_characters=100"])
    assert prepare(cut, tmp_path / "cut").manifest["pairs"]["train"] == 2
    report = read_json(Run(tmp_path / "cut").data_report)
    assert report["subwords"]["train"]["source"]["cut"] == 1  # and a pair that is left out
    text = RECIPE.replace(f"max_source_tokens = {LENGTH}", "")
    dropped = load_recipe(write_project(tmp_path, text, train_source=[long, SOURCE], train_target=["tea ."] * 2))
    assert prepare(dropped, tmp_path / "none").manifest["training_lengths"]["longest_source"] == 3005
    limited = load_recipe(str(tmp_path / "mine.toml"), ["cleaning.max_tokens=20"])
    assert prepare(limited, tmp_path / "limited").manifest["pairs"]["train"] == 1


def test_a_run_scores_rouge_and_its_model_knows_the_length(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert list(read_json(Run(trained).scores)["test"]) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    lengths = read_description(trained / "averaged")["training_lengths"]
    assert lengths["max_source_tokens"] == lengths["longest_source"] == LENGTH
    outcome = run_command("report", trained)
    assert (outcome.code, "rouge1, test" in (trained / "report.html").read_text(encoding="utf-8")) == (0, True)
    assert run_command("score", trained).code == 0
    assert "the source instead" not in caplog.text and "not en" not in caplog.text


def test_translation_reads_what_training_has_read(trained: Path) -> None:
    translator = Translator.load([trained])
    other = "\t".join([*SOURCE.split("\t"), "tea breaks . cups break ."])
    first, changed, short = translator.translations([SOURCE, other, PAIRS[1][0]], TranslationRequest())
    assert first[0].log_prob == changed[0].log_prob and first[0].text == changed[0].text
    assert [best[0].is_cut for best in (first, changed, short)] == [True, True, False]
    assert [best[0].parts for best in (first, changed, short)] == [1, 1, 1]
    all_read = translator.translations([SOURCE], TranslationRequest(max_source_tokens=100))[0][0]
    assert not all_read.is_cut and all_read.log_prob != first[0].log_prob
    empty = translator.translations(["", "\t\t"], TranslationRequest())
    assert [best[0].text for best in empty] == ["", ""]
    for request in (TranslationRequest(split="always"), TranslationRequest(keep=("urls",))):
        with pytest.raises(
            DataError, match='are for translation; leave them out, as the task of this model is "summary"'
        ):
            translator.translations([SOURCE], request)


def test_tabs_of_prefixes_and_phrases_are_those_of_the_output(trained: Path) -> None:
    translator, prefix = Translator.load([trained]), "tea hot .\tcups"
    for request in (TranslationRequest(prefixes=[prefix]), TranslationRequest(required=[[prefix]])):
        [[best]] = translator.translations([SOURCE], request)
        assert (prefix in best.text, best.is_unsatisfied) == (True, False)
        assert best.pieces.count(FIELD_MARK) == best.text.count("\t") > 0
    forbidden = TranslationRequest(prefixes=["tea\t"], forbidden=["\t"])
    with pytest.raises(DataError, match=r"the prefix 'tea\\t' contains a forbidden phrase"):
        translator.translations([SOURCE], forbidden)
    [[without]] = translator.translations([SOURCE], TranslationRequest(forbidden=["\t"]))
    assert "\t" not in without.text


def test_validation_reads_what_translation_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["training.validate_bleu=true", "training.max_steps=2"]
    run, read, segments = Run(tmp_path / "run"), list[Any](), Translator._segments

    def recorded(*arguments: Any) -> Any:
        found = segments(*arguments)
        read.append([(segment.ids, segment.is_cut) for segment in found])
        return found

    monkeypatch.setattr(Translator, "_segments", recorded)
    train_run(write_project(tmp_path), run.folder, *settings)
    Translator.load([run.folder]).translate(run.valid_text.read()[0], split="never")
    assert read[0] == read[-1] and len(read) > 1
    assert {len(ids) for ids, is_cut in read[0] if is_cut} == {LENGTH}


def test_a_source_without_a_tab_is_warned_of(trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [SOURCE, "tea is hot .", "", "cups break ."]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    told = "without a tab, all of a line is read as the title; a source is a title, then paragraphs with a tab before"
    for command in (
        ("translate", trained, "--input", tmp_path / "in", "--output", tmp_path / "out"),
        ("translate", trained, "--input", tmp_path / "in"),
        ("score", "--model", trained, "--source", tmp_path / "in", "--hypothesis", tmp_path / "in"),
    ):
        [warning] = [line for line in run_command(*command).err.splitlines() if told in line]
        assert warning.endswith("(without a title, begin the line with a tab): 2 lines: 2, 4")
    caplog.clear()
    Translator.load([trained]).translate(lines)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [told.partition(";")[0]]


def test_scores_with_a_model_read_the_same_source(trained: Path) -> None:
    decoder = ForcedDecoder.load([trained])
    pairs = [(SOURCE, "tea hot .\tcups red ."), (f"{SOURCE}\tmore cups", "tea hot .\tcups red .")]
    one, other = decoder.score(pairs)
    assert one.log_prob == pytest.approx(other.log_prob)
    assert one.remarks == other.remarks == ("cut_source",)
    assert len(one.ids) == 8
    searched = Translator.load([trained]).translations([SOURCE], TranslationRequest())[0][0]
    again = decoder.score([(SOURCE, searched.text)])[0]
    if not searched.hit_limit:
        assert searched.log_prob == pytest.approx(again.log_prob, abs=1e-4)


def test_without_a_stated_length_a_document_is_read_as_far_as_the_longest_in_training(trained: Path) -> None:
    translator = Translator.load([trained])
    translator.lengths = TrainingLengths(longest_source=5, target_ratio=1.0, multi_sentence_share=0.0)
    best = translator.translations([SOURCE], TranslationRequest())[0][0]
    translator.lengths = None
    read_to_5 = translator.translations([SOURCE], TranslationRequest(max_source_tokens=5))[0][0]
    assert (best.is_cut, best.parts, best.text) == (True, 1, read_to_5.text)


def test_the_status_of_a_cut_source_is_cut(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(f"{SOURCE}\n{PAIRS[1][0]}\n", encoding="utf-8")
    files = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--status", tmp_path / "status")
    outcome = run_command("translate", trained, *files)
    statuses = [json.loads(line)["status"] for line in (tmp_path / "status").read_text("utf-8").splitlines()]
    assert (outcome.code, "cut" in statuses[0], "cut" in statuses[1]) == (0, True, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.max_source_tokens=0"], "data.max_source_tokens = 0: must be at least 1"),
        (["data.max_source_tokens=-3"], "data.max_source_tokens = -3: must be at least 1"),
        (
            ["data.task=language-model", "data.subwords=bpe"],
            'max_source_tokens cannot be used with task = "language-model"',
        ),
        (["data.text=trees"], 'task = "summary" cannot be used with text = "trees"'),
        (
            ["data.task=parsing", "data.source_language=de"],
            'task = "parsing" cannot be used with text = "plain"',
        ),
        (
            ["data.task=translation", "data.text=trees", "data.source_language=de"],
            'task = "translation" cannot be used with text = "trees"',
        ),
        (
            ["data.text=trees", "data.task=parsing", "data.source_language=de"],
            'max_source_tokens cannot be used with task = "parsing"',
        ),
        (["data.valid=3"], "a summary needs validation corpora, not a number of pairs"),
        (["cleaning.max_tokens=11"], r"max_source_tokens = 12 is more than \[cleaning\] max_tokens = 11"),
    ],
)
def test_settings_that_contradict_each_other_are_one_error(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(write_project(tmp_path), settings)


@pytest.mark.parametrize("role", ["train", "valid"])
def test_different_numbers_of_lines_are_not_judged_by_lengths(tmp_path: Path, role: str) -> None:
    recipe = load_recipe(write_project(tmp_path, **{f"{role}_target": ["a"]}))
    with pytest.raises(DataError, match=rf"24 lines but .*{role}.target has 1; each line needs a summary on the same"):
        prepare(recipe, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("".join(f"{source}\n" for source, _ in PAIRS).encode("utf-16"), "train.source: looks like UTF-16; convert it"),
        (b"title only\rmore\rlines\r", "train.source: only carriage returns end its lines"),
    ],
)
def test_a_source_that_is_no_text_is_named_before_a_tab_is_missed(tmp_path: Path, content: bytes, message: str) -> None:
    recipe = load_recipe(write_project(tmp_path))
    (tmp_path / "train.source").write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(recipe, tmp_path / "run")


def test_a_byte_order_mark_before_a_blank_first_line_is_no_fault(tmp_path: Path) -> None:
    texts = {"train_source": ["\ufeff", *[SOURCE] * 8], "train_target": ["", *["tea ."] * 8]}
    _, run = prepared(write_project(tmp_path, **texts), tmp_path / "run")
    assert len(PairData(run.data / "train")) == 8


def test_odd_lines_of_sets_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = load_recipe(write_project(tmp_path, valid_source=[SOURCE, "", "cup\t."], valid_target=["tea", "", " "]))
    prepare(recipe, tmp_path / "run")
    warnings = [record.getMessage() for record in caplog.records if "valid.target" in record.getMessage()]
    own = ["both sides are blank (line 2)", "one side is blank (line 3)"]
    shared = "2 pairs are also in the validation set, which chooses the checkpoint"
    assert [warning.partition(": ")[2] for warning in warnings] == [*own, *own, shared]


@pytest.mark.parametrize("role", ["train", "valid", "test"])
def test_a_source_without_a_tab_is_found_before_anything_is_prepared(tmp_path: Path, role: str) -> None:
    texts = {f"{role}_source": [SOURCE, "", "title only"], f"{role}_target": ["a"] * 3}
    own = RECIPE
    if role == "test":
        own = RECIPE.replace(
            'test = [{ source = "valid.source", target = "valid', 'test = [{ source = "test.source", target = "test'
        )
    recipe = load_recipe(write_project(tmp_path, own, **texts))
    with pytest.raises(DataError, match=rf"{role}.source, line 3: has no tab; a source is a title, then paragraphs"):
        prepare(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()


def test_empty_sides_are_left_out_and_unequal_files_refused(tmp_path: Path) -> None:
    sources, targets = [SOURCE, "", "\t\t", SOURCE], ["tea .", "tea .", "tea .", " "]
    recipe = load_recipe(write_project(tmp_path, train_source=sources, train_target=targets))
    manifest = prepare(recipe, tmp_path / "run").manifest
    assert (manifest["pairs"]["train"], manifest["cleaning"]["one_sided_blank"]) == (1, 3)
    recipe = load_recipe(write_project(tmp_path, train_source=sources, train_target=targets[:3]))
    with pytest.raises(DataError, match=r"train.source has 4 lines but .*train.target has 3"):
        prepare(recipe, tmp_path / "other")


def test_a_translation_model_cuts_its_sources_in_the_same_way(tmp_path: Path) -> None:
    settings = ("data.task=translation", "data.source_language=de", "data.max_source_tokens=3")
    _, run = prepared(write_project(tmp_path), tmp_path / "run", *settings)
    assert read_json(run.manifest)["training_lengths"]["longest_source"] == 3
    assert FIELD_MARK not in run.tokenizer().entries("source")


@pytest.mark.parametrize("language", ["ja", "ru"])
def test_rouge_is_not_computed_where_it_reads_nothing(language: str) -> None:
    data = {"task": "summary", "train": ["x"], "target_language": language}
    assert default_metrics(DataConfig.model_validate(data)) is None
    assert default_metrics(DataConfig.model_validate({**data, "target_language": "en"})) is not None


def test_extract_writes_the_files_of_the_recipe(tmp_path: Path) -> None:
    examples = [
        {"title": "Tea ", "paragraphs": ["One.", "Tea\tis hot."], "target": "Tea is\nhot.\tRed."},
        {"query": "", "paragraphs": ["Cups."], "target": "Cups."},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in examples), encoding="utf-8")
    files = [tmp_path / "out.source", tmp_path / "out.target"]
    arguments = ["extract", "--input", tmp_path / "in.jsonl", "--method", "identity", "--with-title"]
    outcome = run_command(*arguments, "--output", files[0], "--targets", files[1])
    assert (outcome.code, files[0].read_text("utf-8")) == (0, "Tea\tOne.\tTea is hot.\n\tCups.\n")
    assert files[1].read_text("utf-8") == "Tea is\thot.\tRed.\nCups.\n"
    assert run_command(*arguments, "--format", "jsonl").code != 0
    (tmp_path / "in.jsonl").write_text(json.dumps({"title": "a", "paragraphs": ["b"]}) + "\n", encoding="utf-8")
    outcome = run_command(*arguments, "--output", files[0], "--targets", files[1])
    assert outcome.code == 1 and 'line 1: has no "target", or an empty one, which --targets needs' in outcome.err


@pytest.mark.parametrize(
    ("name", "length", "layers"), [("wikisum-t-ed", 500, 6), ("wikisum-t-d", 4000, 6), ("wikisum-t-dmca", 11000, 5)]
)
def test_recipes_of_the_paper_have_its_sizes(name: str, length: int, layers: int) -> None:
    recipe = load_recipe(name)
    model = recipe.model
    assert (recipe.data.max_source_tokens, model.decoder_layers, recipe.data.vocab_size) == (length, layers, 32000)
    assert (model.d_model, model.d_ff, model.num_heads, model.dropout) == (512, 2048, 8, 0.1)
    assert recipe.cleaning.max_tokens == recipe.cleaning.max_characters == 0
    kinds = [model.attention_kind(layer) for layer in range(layers)]
    expected = ["local", "compressed", "local", "compressed", "local"] if name.endswith("dmca") else ["full"] * layers
    assert kinds == expected
    assumed = AssumedPairs.of_text(0, length)
    assert set(assumed.source_lengths.tolist()) == {length + 1} and "run `prepare`" in assumed.origin
