"""What made a run's translations is compared with the recipe before they are scored."""

import contextlib
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.schema import Recipe
from nmtkit.decoding.file_translation import LineConstraints, TranslationJob
from nmtkit.decoding.request import Batching, Sampling, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.provenance import doubts
from nmtkit.files import sha256_of
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import save_model
from nmtkit.pipeline import translate_test_sets
from nmtkit.run import Run, set_translated_as
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.terms import Glossary
from nmtkit.training.averaging import average, choose_checkpoints

DATA = DataConfig(source_language="en", target_language="de", train=("mine/train",), subwords="none")
MODEL = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, num_heads=2)
TOKENIZER = learn_tokenizer(DATA, lambda: [("a b c", "a b c")])
RECIPE = Recipe(name="mine", data=DATA, model=MODEL, decoding=DecodingConfig(average_last=2))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints, the average of the last two, and a test set that is translated."""
    for step in (1, 2, 3):
        torch.manual_seed(step)
        weights = Transformer(MODEL, 7, 7).state_dict()
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        save_model(folder, weights, MODEL, TOKENIZER, RECIPE.decoding, {"kind": "checkpoint", "step": step})
    average(choose_checkpoints(tmp_path), tmp_path / "averaged")
    for path, text in (("data/test/news.source.txt", "a b\n"), ("translations/news.txt", "b a\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def note(run: Path, model: str = "averaged", **changes: Any) -> None:
    """Records how the translation was made."""
    made_from = {
        "model_sha256": sha256_of(run / model / "model.safetensors"),
        "source_sha256": sha256_of(run / "data/test/news.source.txt"),
        "decoding": RECIPE.decoding.model_dump(mode="json"),
    }
    Run(run).record_translation("news", {**made_from, **changes})


def found(run: Path, recipe: Recipe = RECIPE) -> list[str]:
    told = doubts(run, "news", recipe)
    assert all(one.startswith(f"{run / 'translations' / 'news.txt'}: ") and "\n" not in one for one in told)
    return [one.removeprefix(f"{run / 'translations' / 'news.txt'}: ") for one in told]


def test_a_translation_made_as_the_recipe_says_raises_no_doubt(run: Path) -> None:
    note(run)
    assert found(run) == []
    note(run, options={"precision": "float32"})
    assert found(run) == []


def test_a_model_that_is_no_average_is_named(run: Path) -> None:
    note(run, "checkpoints/step-00000003")
    (told,) = found(run)
    assert told.startswith("made by step-00000003 alone, but the recipe averages the last 2")
    alone = RECIPE.model_copy(update={"decoding": DecodingConfig(average_last=1)})
    assert found(run, alone) == []
    note(run, "checkpoints/step-00000002")
    assert found(run, alone) == ["made by step-00000002, but the last checkpoint is step-00000003"]


def test_an_average_of_another_number_is_told(run: Path) -> None:
    shutil.rmtree(run / "averaged")
    average(choose_checkpoints(run, last=3), run / "averaged")
    note(run)
    assert found(run) == ["made by an average of 3 checkpoints, but the recipe averages the last 2"]
    assert found(run, RECIPE.model_copy(update={"decoding": DecodingConfig(average_last=4)})) == []  # there are no more


@pytest.mark.parametrize(
    ("averaged", "left_out"), [([1, 2], "step-00000003"), ([1, 3], "step-00000002"), ([2, 3], None)]
)
def test_an_average_of_other_checkpoints_is_told(run: Path, averaged: list[int], left_out: str | None) -> None:
    shutil.rmtree(run / "averaged")
    average([run / "checkpoints" / f"step-{step:08d}" for step in averaged], run / "averaged")
    note(run)
    told = f"made by an average without {left_out}, but the recipe averages the last 2"
    assert found(run) == ([told] if left_out else [])
    shutil.rmtree(run / "checkpoints")
    assert found(run) == []


def test_another_search_than_the_recipes_is_told_value_by_value(run: Path) -> None:
    decoding = RECIPE.decoding.model_dump(mode="json")
    note(run, decoding={**decoding, "length_penalty": "none", "beam": 1, "average_last": 9})
    assert found(run) == [
        "translated with beam = 1, but the recipe has 4",
        "translated with length_penalty = none, but the recipe has wu",
    ]
    note(run, decoding={**decoding, "alpha": 1.0})
    assert found(run) == ["translated with alpha = 1.0, but the recipe has 0.6"]
    note(run, decoding={**decoding, "max_length": 10})
    assert found(run) == ["translated with max_length = 10, but the recipe has none"]


def options(asked: TranslationRequest | None = None, **changes: Any) -> dict[str, Any]:
    """What `translate` notes besides the search."""
    torch.manual_seed(1)
    translator = Translator([Transformer(MODEL, 7, 7)], TOKENIZER, RECIPE.decoding)
    request = asked or TranslationRequest(split="never")
    described = TranslationJob(translator, request, Batching(), "text", **changes).description()
    del described["decoding"]
    return json.loads(json.dumps(described))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"source_language": "fr"}, "translated from fr, but the source of the test set is in en"),
        ({"target_language": "fr"}, "translated to fr, but the target of the test set is in de"),
        ({"source_language": "en", "target_language": "de"}, None),
    ],
)
def test_another_direction_is_told(run: Path, asked: dict[str, str], told: str | None) -> None:
    for record in (asked, {"options": {"asked": asked}}):
        note(run, **record)
        assert found(run) == ([told] if told else [])


def test_without_a_source_language_it_is_the_default_of_an_imported_model(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataConfig, "has_source_tags", property(lambda self: True))
    monkeypatch.setattr(Run, "tokenizer", lambda self: SimpleNamespace(languages=("fr", "de")))
    note(run, options={"asked": {"target_language": "de"}})
    assert found(run) == ["translated from fr, but the source of the test set is in en"]


def test_a_translation_by_translate_with_no_wishes_raises_no_doubt(run: Path) -> None:
    note(run, options=options())
    assert found(run) == []
    by_engine = {"engine": "ctranslate2", "precision": "float32", "max_source_tokens": None}
    note(run, options=by_engine, decoding={**RECIPE.decoding.model_dump(mode="json"), "beam": 1})
    greedy = RECIPE.model_copy(update={"decoding": DecodingConfig(average_last=2, beam=1)})
    assert found(run, greedy) == []
    beside = DecodingConfig(average_last=2, finished="beside", length_penalty="length")
    note(run, options=by_engine, decoding=beside.model_dump(mode="json"))
    assert found(run, RECIPE.model_copy(update={"decoding": beside})) == []
    note(run, options={**by_engine, "precision": "int8"})
    assert found(run) == [
        "translated with precision = int8, but `run` has float32",
        "translated by CTranslate2, whose beam search is not nmtkit's",
    ]
    note(run, options=by_engine, decoding={**beside.model_dump(mode="json"), "key_of_another_version": 1})
    assert "translated by CTranslate2, whose beam search is not nmtkit's" in found(run)


@pytest.mark.parametrize(
    ("asked", "changes", "told"),
    [
        (TranslationRequest(split="never", sampling=Sampling()), {}, "sampled instead of searched for"),
        (TranslationRequest(split="never", forbidden=("a",)), {}, "made with phrases forbidden"),
        (TranslationRequest(split="never", keep=("urls",)), {}, "made with spans kept"),
        (TranslationRequest(split="never", glossary=Glossary([("a", "b")])), {}, "made with a glossary"),
        (TranslationRequest(), {}, "translated with split = auto, but `run` has never"),
        (
            TranslationRequest(split="never", max_source_tokens=20),
            {},
            "translated with max_source_tokens = 20, but `run` has the limit of the model",
        ),
        (None, {"minimum_risk": "chrf2"}, "chosen from samples by minimum Bayes risk"),
        (None, {"prefixes": LineConstraints("", Path(), ["b"])}, "made with the beginning of each line given"),
        (None, {"required": LineConstraints("", Path(), ["b"])}, "made with phrases that its lines had to hold"),
    ],
)
def test_what_was_wished_of_translate_is_told(
    run: Path, asked: TranslationRequest | None, changes: dict[str, Any], told: str
) -> None:
    note(run, options=options(asked, **changes))
    assert found(run) == [told]


def test_another_precision_or_form_of_output_is_told(run: Path) -> None:
    note(run, options={**options(), "precision": "bf16", "output": "json"})
    assert found(run) == [
        "translated with precision = bf16, but `run` has float32",
        "translated with output = json, but `run` has text",
    ]


@pytest.mark.parametrize("content", ["[]", '{"news": 3}', '{"news": {"sha256": "0"}}'])
def test_a_damaged_record_is_one_line(run: Path, content: str) -> None:
    (run / "translations" / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json: .*damaged"):
        doubts(run, "news", RECIPE)


def test_what_nobody_recorded_or_somebody_changed_is_told(run: Path) -> None:
    assert found(run) == ["there is no record of its model; `nmtkit run` and `nmtkit translate` write one"]
    note(run)
    (run / "translations" / "news.txt").write_text("by hand\n")
    assert found(run) == ["changed since it was translated, so its record does not apply"]


def test_another_source_another_model_and_an_ensemble_are_told(run: Path) -> None:
    note(run, source_sha256="0" * 64)
    assert found(run) == [f"translated from another text than {run / 'data/test/news.source.txt'}"]
    note(run, model_sha256="0" * 64)
    assert found(run) == ["made by a model that is not in the run (any more)"]
    note(run, model_sha256=["0" * 64, "1" * 64])
    assert found(run) == ["made by an ensemble of 2 models"]
    (run / "checkpoints" / "step-00000001" / "provenance.json").write_text("{")
    note(run)
    assert found(run) == []


def test_the_record_knows_its_translation(run: Path) -> None:
    made_from = {"model_sha256": "0", "source_sha256": "1", "decoding": {}}
    assert Run(run).recorded_translations() == {}
    assert not Run(run).is_translated("news", made_from)
    Run(run).record_translation("news", made_from)
    assert Run(run).is_translated("news", made_from)
    assert not Run(run).is_translated("news", {**made_from, "options": {}})
    assert Run(run).translation("news") == run / "translations" / "news.txt"
    (run / "translations" / "news.txt").write_text("")
    assert not Run(run).is_translated("news", made_from)
    assert not Run(run).is_translated("other", made_from)


def test_records_that_are_made_at_the_same_time_are_all_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "translations" / "olds.txt").write_text("a\n")
    have_read, recorded = threading.Barrier(2), Run.recorded_translations

    def read_together(self: Run) -> dict[str, Any]:
        found = recorded(self)
        with contextlib.suppress(threading.BrokenBarrierError):
            have_read.wait(0.3)
        return found

    made_from = {"model_sha256": "0", "source_sha256": "1", "decoding": {}}
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(Run, "recorded_translations", read_together)
        list(pool.map(lambda name: Run(run).record_translation(name, made_from), ("news", "olds")))
    assert sorted(Run(run).recorded_translations()) == ["news", "olds"]
    assert sorted(path.name for path in (run / "translations").iterdir()) == ["manifest.json", "news.txt", "olds.txt"]


def test_the_translation_of_a_test_set_is_told_from_other_files(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(path: Path) -> tuple[Path, str] | None:
        of_set = set_translated_as(path)
        return of_set and (of_set[0].folder, of_set[1])

    assert found(run / "translations" / "news.txt") == (run, "news")
    for other in ("translations/olds.txt", "translations/news.json", "news.txt", "data/test/news.source.txt"):
        assert found(run / other) is None
    monkeypatch.chdir(run)
    assert found(Path("translations/news.txt")) == (run, "news")


def test_a_model_that_changes_before_it_is_loaded_translates_no_test_set(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Translator.load

    def replace_and_load(models: list[Path], *arguments: Any) -> Translator:
        average(choose_checkpoints(run, last=3), models[0])
        return load(models, *arguments)

    monkeypatch.setattr(Translator, "load", replace_and_load)
    with pytest.raises(ModelError, match=r"averaged: has changed since this command began; run it again$"):
        translate_test_sets(RECIPE, run, torch.device("cpu"))
    assert (run / "translations" / "news.txt").read_text() == "b a\n"


def test_warnings_about_translations_name_the_test_set(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "translations" / "news.txt").unlink()
    recipe = RECIPE.model_copy(update={"decoding": DecodingConfig(max_length_offset=1, max_length_ratio=0.0)})
    translate_test_sets(recipe, run, torch.device("cpu"))
    assert (run / "translations" / "news.txt").is_file()
    assert [message for message in caplog.messages if message.startswith("news: the translation is so short")]
