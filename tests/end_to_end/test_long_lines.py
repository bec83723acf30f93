"""A line of several sentences, for a model that was trained on single ones: every sentence is translated."""

import random
import shutil
from pathlib import Path

import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.decoding.formats import line_status
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.files import sha256_of
from nmtkit.json_toml import read_json
from nmtkit.training.averaging import average, choose_checkpoints
from nmtkit.training.resume import lengths_seen
from tests.conftest import prepared, train_run
from tests.export.foreign_folders import changed_json

WORDS = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"]
RECIPE = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 20\nsubwords = "none"\n'
    'train = [{ source = "train.en", target = "train.de" }]\n'
    '[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\nnum_heads = 2\nnorm = "pre"\n'
    'dropout = 0.0\n[training]\ntokens_per_update = 1500\nwarmup_steps = 60\nschedule = "inverse-sqrt"\n'
    "peak_learning_rate = 0.01\nmax_steps = 300\ncheckpoint_every_steps = 300\n"
    "[decoding]\nbeam = 1\naverage_last = 1\n"
)


def sentences(count: int, shortest: int, longest: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(shortest, longest))) + " ." for _ in range(count)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of a few seconds: words become capitals; no line has two sentences."""
    folder = tmp_path_factory.mktemp("single")
    lines = sentences(2000, 2, 11, seed=1)
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    (folder / "single.toml").write_text(RECIPE)
    train_run(folder / "single.toml", folder / "run")
    average(choose_checkpoints(folder / "run", last=1), folder / "run" / "averaged")
    return folder / "run"


def test_every_sentence_of_a_long_line_is_translated(run: Path) -> None:
    ten = sentences(10, 8, 9, seed=4)
    line = " ".join(ten)
    assert len(line.split()) == 95
    translator = Translator.load(run)
    [[found]] = translator.translations([line], TranslationRequest())
    assert found.parts == 10
    assert found.text == " ".join(translator.translate(ten))
    said, wanted = found.text.split(), line.upper().split()
    assert len(said) == len(wanted)
    assert sum(one == other for one, other in zip(said, wanted, strict=True)) >= 0.9 * len(wanted)
    assert line_status(line, found, invalid_utf8=False) == ["split"]


def test_a_line_of_two_short_sentences_is_translated_as_a_whole_only_on_request(run: Path) -> None:
    line = "ab cd. ef gh."
    translator = Translator.load(run)
    [[found]] = translator.translations([line], TranslationRequest())
    assert found.parts == 2
    assert "split" in line_status(line, found, invalid_utf8=False)
    [[whole]] = translator.translations([line], TranslationRequest(split="never"))
    assert whole.parts == 1


def test_a_line_that_lost_most_of_its_text_is_short(run: Path) -> None:
    line = " ".join(sentences(10, 8, 9, seed=4))
    request = TranslationRequest(max_source_tokens=1024, split="never")
    [[whole]] = Translator.load(run).translations([line], request)
    assert whole.parts == 1
    assert len(whole.text.split()) < 30
    assert line_status(line, whole, invalid_utf8=False) == ["short"]


def test_prepare_checkpoint_and_average_record_the_lengths(run: Path) -> None:
    stated = read_json(run / "data" / "manifest.json")["training_lengths"]
    assert stated == {"longest_source": 12, "target_ratio": 1.0, "multi_sentence_share": 0.0}
    for folder in (run / "averaged", run / "checkpoints" / "step-00000300"):
        assert read_json(folder / "model.json")["training_lengths"] == stated


def test_prepare_counts_lines_of_several_sentences_by_the_rules_of_the_language(tmp_path: Path) -> None:
    lines = ["Am 3. Mai kam Dr. Weiss.", "Ja. Nein.", "Ja bzw. Nein", "Wer? Er!"]
    (tmp_path / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "train.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    recipe = RECIPE.replace("vocab_size = 20", "vocab_size = 30")
    recipe = recipe.replace('target_language = "de"', 'target_language = "en"')
    recipe = recipe.replace('source_language = "en"', 'source_language = "de"')
    (tmp_path / "mine.toml").write_text(recipe)
    _, of_run = prepared(tmp_path / "mine.toml", tmp_path / "run")
    assert read_json(of_run.manifest)["training_lengths"]["multi_sentence_share"] == 0.5


def test_a_model_folder_without_lengths_translates_single_sentences(run: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(run / "averaged", tmp_path / "old"))
    changed_json(old / "model.json", training_lengths=None)
    files = read_json(old / "provenance.json")["files"]
    changed_json(old / "provenance.json", files={**files, "model.json": sha256_of(old / "model.json")})
    translator = Translator.load(old)
    assert translator.lengths is None
    line = " ".join(sentences(10, 8, 9, seed=4))
    [[found]] = translator.translations([line], TranslationRequest())
    assert found.parts == 10
    [[whole]] = translator.translations([line], TranslationRequest(split="never"))
    assert whole.parts == 1  # the limit is 1024 tokens
    assert line_status(line, whole, invalid_utf8=False) == ["ok"]  # no ratio is known
    within = sentences(20, 2, 11, seed=3)
    assert translator.translate(within) == Translator.load(run).translate(within)


def test_fine_tuning_on_shorter_lines_keeps_the_longest_source_of_the_model(run: Path) -> None:
    manifest = {"training_lengths": {"longest_source": 5, "target_ratio": 2.0, "multi_sentence_share": 0.5}}
    recipe = load_recipe(str(run.parent / "single.toml"), [f"training.init={run}"])
    seen = lengths_seen(recipe, manifest)
    assert seen is not None
    assert seen.model_dump() == {**manifest["training_lengths"], "longest_source": 12}
    assert lengths_seen(recipe, {}) is None
