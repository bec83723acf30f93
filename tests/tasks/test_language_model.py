"""A language model from text files to scores and continuations."""

import copy
import json
import math
import re
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.entries import open_entry
from nmtkit.data.batch import make_batch
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.data.windows import WindowData, WindowEpochs, training_data, validation_data
from nmtkit.decoding.forced import token_log_probs
from nmtkit.decoding.request import Sampling
from nmtkit.decoding.running_text import ContinuationScorer, Generator, TextScore, score_text, token_ids, trained_length
from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.json_toml import read_json
from nmtkit.model.decoder_only import build_model
from nmtkit.model_folder import LoadedModel, load_model
from nmtkit.pipeline import _score_running_texts
from nmtkit.reports.card import card
from nmtkit.reports.run_facts import read_run
from nmtkit.reports.run_page import report_page
from nmtkit.run import Run, find_model
from nmtkit.tasks.language_model import text_of
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.normalization import NEWLINE
from tests.conftest import finished_run, prepared, run_command, train_run
from tests.decoding.models import TEXT as PAIRS
from tests.decoding.models import WithoutFloat64, data_config, model_for
from tests.export import tiny_models

TEXT = "abcde fghij\n\n  klmno pqrst\tuvwxyz\n"
RECIPE = (
    '[data]\ntask = "language-model"\ntarget_language = "en"\ntrain = [{ text = "train.txt" }, { text = "more.txt" }]\n'
    'valid = [{ text = "valid.txt" }]\ntest = [{ text = "valid.txt", name = "test" }]\nsubwords = "characters"\n'
    'sequence_length = 16\n[model]\narchitecture = "decoder"\ndecoder_layers = 2\nd_model = 16\nd_ff = 32\n'
    'num_heads = 2\ndropout = 0.0\n[training]\nsequences_per_update = 8\nschedule = "constant"\n'
    "peak_learning_rate = 0.01\nwarmup_steps = 5\nlabel_smoothing = 0.0\nmax_steps = 40\nvalidate_bleu = false\n"
    'precision = "float32"\nvalidate_every_steps = 20\ncheckpoint_every_steps = 20\nkeep_last = 1\n'
    "[decoding]\naverage_last = 1\n"
)


def write_project(folder: Path, **texts: str) -> str:
    contents = {"train": TEXT * 20, "more": "xyz abc\n" * 30, "valid": TEXT * 3, **texts}
    for name, text in contents.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
    (folder / "mine.toml").write_text(RECIPE, encoding="utf-8")
    return str(folder / "mine.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    return finished_run(write_project(folder), folder / "run")


@pytest.fixture(scope="module")
def model(trained: Path) -> LoadedModel:
    """The model of that run, which tests only use, or copy."""
    return load_model(find_model(trained))


def target_ids(run: Run, part: str) -> list[int]:
    """All tokens of a part of the data."""
    return [int(index) for index in PairData(run.data / part).target_tokens]


def log_probs_of(model: LoadedModel, ids: list[int]) -> torch.Tensor:
    """The log-probabilities of the token after each of a text's [length, vocab]."""
    states = model.model.decode(torch.tensor([ids]), torch.tensor([[3]]), torch.tensor([0]))
    return torch.log_softmax(model.model.logits(states), 2)[0]


def texts_of(folder: Path, *lines: list[list[int]]) -> PairData:
    """Shards with a corpus of the given lines each."""
    with ShardWriter(folder, (50, 50), [1.0] * len(lines)) as writer:
        for corpus, rows in enumerate(lines):
            writer.add([([0], row) for row in rows], list(range(1, len(rows) + 1)), corpus)
    return PairData(folder, is_joined=True)


def test_every_character_of_the_texts_is_stored_in_order(trained: Path) -> None:
    run = Run(trained)
    for part, text in (("train", TEXT * 20 + "xyz abc\n" * 30), ("valid", TEXT * 3)):
        assert text_of(run.tokenizer().decode(target_ids(run, part), "target")) == text


def test_carriage_returns_of_crlf_texts_are_removed_and_counted(tmp_path: Path, trained: Path) -> None:
    crlf = {name: text.replace("\n", "\r\n") for name, text in (("train", TEXT * 20), ("valid", TEXT * 3))}
    made = prepare(load_recipe(write_project(tmp_path, **crlf)), tmp_path / "run")
    counts = {corpus["name"]: corpus["carriage_returns_removed"]["target"] for corpus in made.manifest["corpora"]}
    assert list(counts.values()) == [60, 0, 9, 9] and len(counts) == 4
    for part in ("train", "valid"):
        assert target_ids(Run(tmp_path / "run"), part) == target_ids(Run(trained), part)


@pytest.mark.parametrize("subwords", ["bpe", "unigram"])
def test_subwords_of_running_text_give_the_text_back(tmp_path: Path, subwords: str) -> None:
    settings = (f"data.subwords={subwords}", "data.vocab_size=35")
    _, run = prepared(write_project(tmp_path), tmp_path / "run", *settings)
    assert text_of(run.tokenizer().decode(target_ids(run, "train"), "target")) == TEXT * 20 + "xyz abc\n" * 30
    stored = TEXT.replace("\n", "\ufdd2").replace("\t", "\ufdd3")
    for cut in (3, 5, 6, 12, 13, 15, 20):  # in a word, after it, after a blank, after line ends
        parts = [run.tokenizer().encode([text], "target")[0] for text in (stored[:cut], stored[cut:])]
        assert "".join(text_of(run.tokenizer().decode(part, "target")) for part in parts) == TEXT


@pytest.mark.parametrize("step", ["blanks", "lowercase", "moses-punctuation", "moses-tokenize"])
def test_a_line_has_the_same_tokens_in_training_and_in_use(tmp_path: Path, step: str) -> None:
    lines = [" Ab, cd.  ", "", "x  (y) "]
    path = write_project(tmp_path, train=TEXT * 20 + "Ab ,.()\n", valid="".join(f"{line}\n" for line in lines * 3))
    _, run = prepared(path, tmp_path / "run", f'data.normalize=["{step}"]')
    data, tokenizer = PairData(run.data / "valid"), run.tokenizer()
    stored = [data.ids(1, index).tolist() for index in range(3)]
    assert tokenizer.encode([NEWLINE], "target") == [stored[1]] == [ids[-1:] for ids in stored[:1]]
    used = token_ids(cast(Any, SimpleNamespace(tokenizer=tokenizer)), lines)
    assert used.tolist() == list(chain.from_iterable(stored))


def test_no_source_is_reported(trained: Path) -> None:
    run = read_run(trained)
    manifest, report = run.files["data/manifest.json"], run.files["data/report.json"]
    assert list(manifest["train_tokens"]) == list(report["words"]) == list(report["subwords"]["train"]) == ["target"]
    for page in (card(run), report_page([run]), (trained / "data" / "report.html").read_text(encoding="utf-8")):
        assert " source\n" not in page and ", source" not in page and 'class="source"' not in page
        assert not re.search(r"\bpairs?\b", page.partition("<h2>Reproduction")[0]), page
    manifest["train_tokens"] = {"source": 1, "target": 2}  # as data of before
    assert "1 source, 2 target" in card(run) and "training tokens, source" in report_page([run])


def test_commands_count_lines_and_sequences_and_compare_runs(trained: Path, tmp_path: Path) -> None:
    project, run = write_project(tmp_path), tmp_path / "run"
    prepared = run_command("prepare", project, "--run-dir", run)
    for words in ("Prepared lines", "Found in 90 training lines", "of 90 lines"):
        assert words in prepared.out + prepared.err
    options = ("--device", "cpu", "--threads", 1, "--set", "training.seed=2")
    told = run_command("run", project, "--run-dir", run, *options)
    assert "sequences, 1 x cpu" in told.err and re.search(r"tokens and \d+ sequences, in", told.err)
    assert not re.search(r"\bpairs?\b", prepared.out + prepared.err + told.out + told.err)
    scores = json.loads((run / "scores.json").read_text())["test"]
    assert f" {scores['nll']['score']:.4f} " in told.out and f" {scores['perplexity']['score']:.2f} " in told.out
    compared = run_command("compare", trained, run, "--json", tmp_path / "all.json")
    assert "training.seed" in compared.out and "no test, as the scores are those of scores.json" in compared.out
    of_nll = list(json.loads((tmp_path / "all.json").read_text())["scores"]["test"]["nll"].values())
    assert of_nll[1]["score"] == scores["nll"]["score"] and of_nll[1]["p_value"] is None
    assert f"{of_nll[1]['score'] - of_nll[0]['score']:+.4f}" in compared.out
    assert "leave out --metric, --paired" in run_command("compare", trained, run, "--metric", "nll").err
    other = tmp_path / "other"
    options = ("--device", "cpu", "--threads", 1, "--set", "data.vocab_size=12")
    assert "are <unk>" in run_command("run", project, "--run-dir", other, *options).err
    apart = run_command("compare", trained, other)
    assert "the scores of test cannot be compared: other has <unk> for characters of it, and the voc" in apart.err
    assert apart.code == 0 and "word-perplexity" not in apart.out and "data.vocab_size" in apart.out
    stored = (run / "recipe.toml").read_text(encoding="utf-8")
    changed = re.sub(r"^normalize = .*$", 'normalize = ["lowercase"]', stored, flags=re.MULTILINE)
    (run / "recipe.toml").write_text(changed, encoding="utf-8")
    assert "so their scores are of different texts" in run_command("compare", trained, run).err
    assert "different texts" not in compared.err and changed != stored
    (run / "data" / "test" / "test.reference.txt").write_text("other\n")
    assert "the reference of test differs (their number of lines)" in run_command("compare", trained, run).err


def tokens_of(data: WindowData, index: int) -> list[int]:
    """The tokens of a sequence, and the one after it."""
    batch = data.own_batch(np.array([index]))
    return [*batch.target_in[0].tolist(), int(batch.target_out[0, -1])]


def test_sequences_are_contiguous_and_begin_elsewhere_in_each_epoch(tmp_path: Path) -> None:
    first, second = list(range(4, 37)), list(range(37, 45))
    texts = texts_of(tmp_path / "texts", [first[:10], first[10:11], first[11:]], [second])
    epochs = WindowEpochs(texts, 5, seed=3)
    offsets = set()
    for epoch in range(12):
        data = epochs.of_epoch(epoch)
        rows = [tokens_of(data, index) for index in range(len(data))]
        assert all(len(row) == 6 for row in rows)
        of_first = [row for row in rows if row[0] in first]
        assert [row[0] for row in of_first[1:]] == [row[-1] for row in of_first[:-1]]
        assert all(row == list(range(row[0], row[0] + 6)) for row in rows)  # none goes from one text to the next
        offsets.add(of_first[0][0] - 4)
        assert tokens_of(WindowEpochs(texts, 5, seed=3).of_epoch(epoch), 0) == rows[0]
        lines = {1: first[:10], 2: first[10:11], 3: first[11:]}
        assert all(row[0] in lines[int(line)] for row, line in zip(of_first, data.lines, strict=False))
        assert [part.cycle for part in data.parts] == [6, 1]
        assert all(part.cycle - 1 <= part.pairs <= part.cycle for part in data.parts)
    assert len(offsets) > 2 and offsets <= set(range(5))


def test_the_whole_text_is_predicted_once_in_validation(tmp_path: Path) -> None:
    texts = texts_of(tmp_path / "texts", [[4, 5, 6, 7], [8, 9, 10]], [[11, 12]])
    data = WindowData(texts, 4)
    batch = make_batch(data, range(len(data)))
    predicted = batch.target_out.flatten()
    if batch.target_rows is not None:
        predicted = predicted[batch.target_rows]
    assert predicted.tolist() == [5, 6, 7, 8, 9, 10, 12]
    assert batch.target_in.tolist()[0] == [4, 5, 6, 7]
    assert batch.source_lengths.tolist() == [1] * 3
    assert data.target_lengths.tolist() == [4, 2, 1]


def test_a_text_no_longer_than_a_sequence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no training text has more than data\.sequence_length = 9 tokens"):
        WindowEpochs(texts_of(tmp_path / "texts", [[4] * 9], [[4] * 2]), 9, seed=1)


def test_lines_of_test_texts_are_dropped_where_the_recipe_asks_for_it(tmp_path: Path) -> None:
    texts = {"train": "a\n\nheld out\nb\nheld out\n\n" + TEXT, "valid": "other\n\nheld out\n"}
    recipe = write_project(tmp_path, **texts)
    for action, count in (("keep", 0), ("drop", 2)):
        settings = [f"cleaning.overlap_test={action}"] if action == "drop" else []
        manifest = prepare(load_recipe(recipe, settings), tmp_path / action).manifest
        assert manifest["cleaning"].get("overlap_test", 0) == count
        assert manifest["pairs"]["train"] == 6 + 3 + 30 - count  # blank lines stay, although the test text has one


def test_a_line_that_a_fix_makes_blank_is_none_of_a_test_text(tmp_path: Path) -> None:
    path = write_project(tmp_path, train="abcde fghij\n<b>\nklmno\n" * 20, valid="vwxyz abc\n\nde\n" * 9)
    for overlap in ("drop", "error"):
        recipe = load_recipe(path, ["cleaning.markup=fix", f"cleaning.overlap_test={overlap}"])
        prepare(recipe, tmp_path / overlap)
        rules = read_json(tmp_path / overlap / "data" / "report.json")["rules"]
        assert (rules["markup"]["count"], rules["overlap_test"]["count"]) == (20, 0)


def test_texts_are_mixed_by_their_tokens(tmp_path: Path) -> None:
    path = write_project(tmp_path, train="abcdefg\n" * 100, more=("a" * 599 + "\n") * 4)
    recipe, run = prepared(path, tmp_path / "run", "data.sampling_temperature=1000")
    first, second = training_data(run.data / "train", recipe, run.tokenizer()).of_epoch(0).parts
    assert (first.weight, second.weight) == pytest.approx((2, 2 / 3), rel=0.01)
    assert first.pairs * first.weight == pytest.approx(second.pairs * second.weight, rel=0.03)


def test_no_validation_sequence_goes_from_one_text_to_the_next(tmp_path: Path) -> None:
    path = Path(write_project(tmp_path, valid="abc\n" * 5, more="xyz\n" * 5))
    path.write_text(path.read_text().replace("valid = [{", 'valid = [{ text = "more.txt" }, {'))
    recipe, run = prepared(path, tmp_path / "run")
    data = validation_data(run.data / "valid", recipe, run.tokenizer())
    found = [text_of(run.tokenizer().decode(tokens_of(data, index))) for index in range(len(data))]
    assert found == ["xyz\n" * 4 + "x", "xyz\n", "abc\n" * 4 + "a", "abc\n"]


def test_scores_are_those_of_each_token_and_agree_with_validation(trained: Path, model: LoadedModel) -> None:
    text = TEXT * 3
    score = score_text([model], text.split("\n")[:-1], 16)
    assert (score.tokens, score.characters, score.words) == (len(text) - 1, len(text), len(text.split()))
    tokens = target_ids(Run(trained), "valid")
    expected = 0.0
    for start in range(0, len(tokens) - 1, 16):
        row = tokens[start : start + 17]
        expected -= float(log_probs_of(model, row[:-1]).gather(1, torch.tensor(row[1:])[:, None]).sum())
    assert score.nll == pytest.approx(expected, rel=1e-5)
    scores = Run(trained).scores.read_text(encoding="utf-8")
    assert '"bits-per-character"' in scores
    assert score.bits_per_character == pytest.approx(score.nll / math.log(2) / len(text))
    assert score.perplexity < 10  # of 30 characters, so it has learned something


@pytest.mark.parametrize(("language", "has_words"), [("en", True), ("zh", False)])
def test_a_language_without_blanks_has_no_perplexity_per_word(
    trained: Path, monkeypatch: pytest.MonkeyPatch, language: str, has_words: bool
) -> None:
    recipe, stored = Run(trained).recipe(), []
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"target_language": language})})
    monkeypatch.setattr("nmtkit.pipeline._store", lambda run, scores: stored.append(scores))
    _score_running_texts(Run(trained), recipe, ["test"], "cpu")
    assert ("word-perplexity" in stored[0]["test"]) == has_words
    assert stored[0]["test"].keys() >= {"nll", "perplexity", "bits-per-character"}


def test_unknown_tokens_are_in_the_signature_and_warned_of(
    trained: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored: list[dict[str, Any]] = []
    monkeypatch.setattr("nmtkit.pipeline._store", lambda run, scores: stored.append(scores))
    for unknown in (0, 3):
        monkeypatch.setattr("nmtkit.pipeline.score_text", lambda *_, n=unknown: TextScore(9.0, 9, 2, 10, n))
        _score_running_texts(Run(trained), Run(trained).recipe(), ["test"], "cpu")
    without, with_unknown = (scores["test"]["nll"].signature for scores in stored)
    assert (with_unknown, "unknown" in without) == (f"{without}|unknown:3", False)
    assert [message.partition(",")[0] for message in caplog.messages] == ["test: 3 of 10 tokens are <unk>"]


def test_given_continuations_have_the_probabilities_of_their_tokens(model: LoadedModel) -> None:
    scorer, tokenizer = ContinuationScorer([model]), model.tokenizer
    pairs = [("abcde", "fghij"), ("", "abc"), ("klmno", ""), ("a" * 50, "bcd"), ("ab", "c" * 50)]
    scores = scorer.score(pairs)
    newline = tokenizer.encode(["\ufdd2"], "target")[0]
    for (source, hypothesis), score in zip(pairs[:2], scores, strict=False):
        given = [*newline, *tokenizer.encode([source], "target")[0]] if source else newline
        wanted = tokenizer.encode([f" {hypothesis}" if source else hypothesis], "target")[0]
        steps = log_probs_of(model, [*given, *wanted][:-1])[-len(wanted) :]
        expected = steps.gather(1, torch.tensor(wanted)[:, None])[:, 0]
        assert score.ids == tuple(wanted)
        assert score.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
        assert score.remarks == ()
    assert [score.remarks for score in scores[2:]] == [
        ("empty_hypothesis",),
        ("cut_source",),
        ("cut_source", "cut_hypothesis"),
    ]
    assert [len(score.ids) for score in scores] == [6, 3, 1, 4, 16]
    assert scorer.score(pairs[:1])[0].log_probs == pytest.approx(scores[0].log_probs, abs=1e-6)


def test_given_continuations_hold_tabs_and_have_the_precision_and_languages_of_scores(
    trained: Path, model: LoadedModel, tmp_path: Path
) -> None:
    pairs = [("  klmno pqrst", "uvw\txyz"), ("a\tb", "fghij"), ("", "klmno pqrst\tuvwxyz"), ("ab", "c")]
    rounded = ContinuationScorer([model], "float32").score(pairs)
    scorer = ContinuationScorer([model])
    together = scorer.score(pairs)
    assert model.tokenizer.decode(together[0].ids, "target") == " uvw\ufdd3xyz"
    for pair, score, of_float32 in zip(pairs, together, rounded, strict=True):
        assert score.log_probs == pytest.approx(scorer.score([pair])[0].log_probs, abs=1e-13)
        assert score.log_probs != of_float32.log_probs
        assert score.log_probs == pytest.approx(of_float32.log_probs, abs=1e-4)
    (tmp_path / "text").write_text("abc\n")
    files = ("--source", tmp_path / "text", "--hypothesis", tmp_path / "text")
    outcome = run_command("score", "--model", trained, *files, "--from", "en")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"error: {trained}: a language model has no source language; leave out --from\n"


@pytest.mark.parametrize("normalize", [["blanks"], ["moses-tokenize"], ["lowercase", "nfkc"]])
def test_a_text_is_scored_as_the_tokens_that_it_is_in_training(tmp_path: Path, normalize: list[str]) -> None:
    recipe, run = prepared(write_project(tmp_path), tmp_path / "run", f"data.normalize={normalize}")
    model = build_model(recipe.model, *[run.tokenizer().vocab_size("target")] * 2)
    loaded = LoadedModel(model, run.tokenizer(), DecodingConfig(), {}, None)
    stored = target_ids(run, "valid")
    assert token_ids(loaded, (TEXT * 3).split("\n")[:-1]).tolist() == stored
    prompt = token_ids(loaded, TEXT.removesuffix("yz\n").split("\n"), ends=False).tolist()
    assert prompt == stored[: len(prompt)]


def test_a_score_needs_no_float64_on_the_device(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = score_text([model], ["abcde fghij"], 16)
    on_device = lambda *inputs: token_log_probs(*inputs).as_subclass(WithoutFloat64)  # noqa: E731
    monkeypatch.setattr("nmtkit.decoding.running_text.token_log_probs", on_device)
    assert score_text([model], ["abcde fghij"], 16) == expected


def test_continuations_are_those_of_the_model(model: LoadedModel) -> None:
    assert trained_length([model]) == 16
    generator = Generator([model], 16, DecodingConfig(beam=1))
    prompt = "abcde f"
    [greedy] = generator.continuations(prompt, 8, None)
    ids = model.tokenizer.encode([prompt], "target")[0]
    for _ in range(8):
        ids.append(4 + int(log_probs_of(model, ids)[-1, 4:].argmax()))
    assert prompt + greedy == text_of(model.tokenizer.decode(ids, "target"))
    sampled = list(generator.continuations(prompt, 50, Sampling(seed=3), count=2))  # longer than a sequence
    assert [len(text) for text in sampled] == [50, 50]
    assert sampled == list(generator.continuations(prompt, 50, Sampling(seed=3), count=2))
    assert sampled[0] != sampled[1]
    assert len(next(iter(generator.continuations("", 5, Sampling())))) == 5
    assert len(next(iter(generator.continuations("a" * 100, 5, Sampling())))) == 5
    wide = Generator([model], 16, DecodingConfig(beam=3, no_repeat_ngram=1))
    found = list(wide.continuations("abc", 6, None, count=3))
    assert len(set(found)) == 3
    assert all(len(set(text)) == 6 for text in found)
    with pytest.raises(DataError, match="prompt and continuation have 20 tokens, and the model was trained with 16"):
        list(generator.continuations("abcde", 15, None))


def test_an_ensemble_averages_the_probabilities_of_its_models(model: LoadedModel) -> None:
    loaded = [model, copy.deepcopy(model)]
    for parameter in loaded[1].model.parameters():
        parameter.data *= 1.5

    def log_probs(ids: list[int]) -> torch.Tensor:
        return (sum(log_probs_of(one, ids).exp() for one in loaded) / 2).log()

    def expected(ids: list[int]) -> list[float]:
        return log_probs(ids[:-1]).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    text = token_ids(loaded[0], ["abcde f"]).tolist()
    assert score_text(loaded, ["abcde f"], 16).nll == pytest.approx(-sum(expected(text)), rel=1e-6)
    [scored] = ContinuationScorer([copy.deepcopy(one) for one in loaded]).score([("", "abcde f")])
    newline = loaded[0].tokenizer.encode([NEWLINE], "target")[0]
    assert scored.log_probs == pytest.approx(expected([*newline, *text[:-1]]), abs=1e-5)
    ids = text[:-1]
    for _ in range(8):
        ids.append(4 + int(log_probs(ids)[-1, 4:].argmax()))
    [greedy] = Generator(loaded, 16, DecodingConfig(beam=1)).continuations("abcde f", 8, None)
    assert "abcde f" + greedy == text_of(loaded[0].tokenizer.decode(ids, "target"))


def test_commands_take_an_ensemble(trained: Path, tmp_path: Path) -> None:
    other = finished_run(write_project(tmp_path), tmp_path / "run", "training.seed=2")
    (tmp_path / "text").write_text("abcde fghij\nklm\n")
    found: list[list[float]] = []
    for models in ([trained], [other], [trained, other]):
        named = [part for model in models for part in ("--model", model)]
        whole = run_command("score", *named, "--hypothesis", tmp_path / "text")
        lines = run_command("score", *named, "--source", tmp_path / "text", "--hypothesis", tmp_path / "text")
        text = run_command("generate", *models, "--prompt", "abcde", "--beam", 1, "--max-tokens", 5)
        assert [whole.code, lines.code, text.code] == [0, 0, 0]
        found.append([float(line.split("\t")[0]) for line in [whole.out, *lines.out.splitlines()]])
    for one, two, both in zip(*found, strict=True):
        assert (one + two) / 2 < both  # the logarithm of a mean is not less than the mean of logarithms


def test_models_of_an_ensemble_share_a_vocabulary(trained: Path, tmp_path: Path) -> None:
    path = write_project(tmp_path, train=TEXT * 20 + "#\n")
    other = finished_run(path, tmp_path / "run", "training.max_steps=1")
    outcome = run_command("generate", trained, other, "--prompt", "abc")
    assert outcome.code == 1
    assert "its vocabulary differs from that of" in outcome.err


def test_a_prompt_that_is_not_utf_8_is_refused(model: LoadedModel) -> None:
    generator = Generator([model], 16, DecodingConfig())
    with pytest.raises(DataError, match=r"the prompt is not valid UTF-8: '\\udcff' in it"):
        next(generator.continuations("a \udcff", 3, None))


def test_a_prompt_is_read_as_the_target_that_it_is_in_training(model: LoadedModel) -> None:
    loaded, found = copy.deepcopy(model), []
    for parameter in loaded.model.parameters():
        parameter.data *= 2
    for source_attention in ("causal", "full"):
        loaded.model.config = loaded.model.config.model_copy(update={"source_attention": source_attention})
        generator = Generator([loaded], 16, DecodingConfig(beam=4))
        found.append([*generator.continuations("abcde f", 8, None), *generator.continuations("ab", 50, Sampling())])
    assert found[0] == found[1]


def test_the_most_probable_continuations_of_a_search_come_first(model: LoadedModel) -> None:
    for prompt in ("abc", "klm", "x", "fghij\n"):
        log_probs = []
        for text in Generator([model], 16, DecodingConfig(beam=4)).continuations(prompt, 4, None, count=4):
            stored = (prompt + text).replace("\n", "\ufdd2").replace("\t", "\ufdd3")
            ids = model.tokenizer.encode([stored], "target")[0]
            steps = log_probs_of(model, ids)[-5:-1]
            log_probs.append(float(steps.gather(1, torch.tensor(ids[-4:])[:, None]).sum()))
        assert len(log_probs) == 4
        assert log_probs == sorted(log_probs, reverse=True), prompt


def test_a_single_learned_position_is_refused(tmp_path: Path) -> None:
    overrides = ["data.sequence_length=1", "model.max_positions=1"]
    path = write_project(tmp_path)
    assert load_recipe(path, overrides).model.max_positions == 1  # nothing with sinusoids
    with pytest.raises(RecipeError, match="max_positions = 1: generating a token takes 2 positions"):
        load_recipe(path, [*overrides, 'model.positions="learned"'])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['model.architecture="encoder-decoder"'], 'needs [model] architecture = "decoder"'),
        (["training.validate_bleu=true"], "BLEU cannot be computed"),
        (["data.valid=5"], "a language model needs validation texts"),
        (['cleaning.duplicate_pair="drop"'], 'duplicate_pair: no effect with [data] task = "language-model"'),
        (['data.subwords="none"'], "a language model needs share_vocab"),
        (["model.positions=learned", "model.max_positions=15"], "max_positions = 15 is less than"),
        (['data.train=[{ source = "a.txt", target = "b.txt" }]'], "a language model has no source"),
        (['data.train=[{ text = "a.txt", source_prefix = "x" }]'], "a language model has no source"),
        (['data.train=[{ text = "a.tsv", source_column = 2 }]'], "reads whole lines; write the column"),
        (['data.train=[{ text = "a.tsv", target_column = 1 }]'], "reads whole lines; write the column"),
    ],
)
def test_settings_that_contradict_a_language_model_are_refused(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        load_recipe(write_project(tmp_path), overrides)


@pytest.mark.parametrize(
    ("texts", "message"), [({"train": "", "more": ""}, "empty"), ({"valid": ""}, "valid"), ({"train": "ab\xff"}, None)]
)
def test_odd_texts(tmp_path: Path, texts: dict[str, Any], message: str | None) -> None:
    recipe = load_recipe(write_project(tmp_path, **texts))
    if message is None:
        prepare(recipe, tmp_path / "run")
    else:
        with pytest.raises(DataError, match=message):
            prepare(recipe, tmp_path / "run")


def test_a_translation_model_does_not_continue_text(tmp_path: Path) -> None:
    tokenizer = learn_tokenizer(data_config(), lambda: PAIRS)
    loaded = LoadedModel(model_for(tokenizer), tokenizer, DecodingConfig(), {}, None)
    with pytest.raises(ModelError, match="use `nmtkit translate`"):
        Generator([loaded], 16, DecodingConfig())
    with pytest.raises(ModelError, match="use `nmtkit translate`"):
        score_text([loaded], ["a"], 16)


def test_no_ngram_repeats_over_the_parts_of_a_long_continuation(
    model: LoadedModel, logged: pytest.LogCaptureFixture
) -> None:
    generator = Generator([model], trained_length([model]), DecodingConfig(no_repeat_ngram=2))
    [text] = generator.continuations("abc", 40, Sampling(seed=1))
    assert len(text) == 40
    assert len({text[index : index + 2] for index in range(39)}) == 39
    assert logged.messages == []
    generator = Generator([model], trained_length([model]), DecodingConfig(no_repeat_ngram=1))
    [text] = generator.continuations("abc", 500, Sampling(seed=1))
    assert len(set(text)) == len(text) < 500
    told = f"the text ends after {len(text)} tokens: --no-repeat-ngram or --forbid rules out every further token"
    assert logged.messages == [told]


@pytest.mark.parametrize("beam", [None, 3])
def test_no_text_contains_a_forbidden_phrase(model: LoadedModel, beam: int | None) -> None:
    sampling = Sampling(seed=1) if beam is None else None
    length = 200 if beam is None else 8  # many parts, over whose ends a phrase may not go either
    [free] = Generator([model], 16, DecodingConfig(beam=beam or 1)).continuations("abc", length, sampling)
    forbidden = [f"c{free[0]}", free[2:4], free[5]]  # the first would begin with the end of the prompt
    held = Generator([model], 16, DecodingConfig(beam=beam or 1), forbidden)
    [after] = held.continuations("abc", length, sampling)
    assert len(after) == length
    assert not any(phrase in "abc"[4 - len(phrase) :] + after for phrase in forbidden)


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ("", "the forbidden phrase '' is empty; leave it out"),
        ("a€", r"the forbidden phrase 'a€' has characters that are not in the model's vocabulary \(€\)"),
        ("\udcff", "the forbidden phrase is not valid UTF-8"),
    ],
)
def test_phrases_that_cannot_be_forbidden_are_refused(model: LoadedModel, phrase: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Generator([model], 16, DecodingConfig(), ["ab", phrase])


def test_unknown_characters_of_a_prompt_are_reported(model: LoadedModel, logged: pytest.LogCaptureFixture) -> None:
    generator = Generator([model], 16, DecodingConfig())
    [text] = generator.continuations("a€", 5, Sampling())
    assert len(text) == 5
    told = "the model reads <unk> for characters of the prompt that its vocabulary lacks: €"
    assert logged.messages == [told]


def test_texts_too_short_for_a_sequence_are_named(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    train_run(write_project(tmp_path, more="abc\n"), tmp_path / "run", "training.max_steps=1")
    assert (
        "1 of 2 training texts left out, as they have at most data.sequence_length = 16 tokens: text 2; join short "
        "texts in one file"
    ) in logged.messages


@pytest.mark.parametrize("name", ["more.sgm", "more.xml.gz", "more.tmx", "train.tags.en-de.en"])
def test_a_text_with_markup_is_refused(tmp_path: Path, name: str) -> None:
    path = Path(write_project(tmp_path))
    (tmp_path / name).write_text("<seg>abc</seg>\n")
    path.write_text(path.read_text().replace("more.txt", name), encoding="utf-8")
    with pytest.raises(DataError, match=rf"{name}: a language model reads plain text; write it to a file without tags"):
        prepared(path, tmp_path / "run")


def test_a_table_without_columns_is_plain_text(tmp_path: Path) -> None:
    path = Path(write_project(tmp_path))
    (tmp_path / "more.txt").rename(tmp_path / "more.tsv")
    path.write_text(path.read_text().replace("more.txt", "more.tsv"), encoding="utf-8")
    data = load_recipe(str(path)).data
    assert list(open_entry(data, data.train[1], Downloader()).target.open()) == ["xyz abc"] * 30


def test_a_test_text_without_characters_is_refused_before_the_training(tmp_path: Path) -> None:
    path = Path(write_project(tmp_path, blank="\n"))
    path.write_text(path.read_text().replace('[{ text = "valid.txt", name', '[{ text = "blank.txt", name'))
    with pytest.raises(DataError, match=r"blank\.txt: the test text has no characters to predict"):
        prepared(path, tmp_path / "run")


@pytest.mark.parametrize(("subwords", "size"), [("bpe", 100), ("unigram", 48)])
@pytest.mark.parametrize("normalize", [(), ("blanks",)])
def test_a_forbidden_word_is_also_the_subword_with_its_blank(
    subwords: str, size: int, normalize: tuple[str, ...]
) -> None:
    task = {"task": "language-model", "target_language": "en", "sequence_length": 32, "train": [{"text": "x"}]}
    data = DataConfig.model_validate({**task, "vocab_size": size, "subwords": subwords, "normalize": normalize})
    tokenizer = learn_tokenizer(
        data, lambda: [(f"{line}\ufdd2",) * 2 for line, _ in [*tiny_models.PAIRS, ("a\ufdd3b", "")]]
    )
    with_blank = tokenizer.entries("target").index("\u2581cat")
    assert tokenizer.encode(["cat"], "target") != [[with_blank]]
    model = model_for(tokenizer, torch.float32, architecture="decoder", positions="learned", max_positions=32)
    tiny_models.let_end(model, 0)
    model.output_embedding.zero_()[with_blank] = 1.0  # after any tokens, the most probable one
    loaded = [LoadedModel(model, tokenizer, DecodingConfig(), {})]
    for forbidden, is_there in ((), True), (("cat",), False), (("  cat",), not normalize), (("cat\t",), True):
        [text] = Generator(loaded, 32, DecodingConfig(beam=1), forbidden).continuations("the", 4, None)
        assert (" cat" in text) == is_there
