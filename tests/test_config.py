"""Recipes: the paper's defaults, bases and overrides, and a clear line for everything that is wrong."""

import os
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic.fields import FieldInfo

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.corpus_entries import GeneratedCorpus, LocalPair, Noise, corpus_name
from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.foreign_keys import FOREIGN_KEYS
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import (
    builtin_recipes,
    changes_that_matter,
    data_changes,
    differences,
    find_recipe,
    load_recipe,
    stored_recipe,
    to_toml,
)
from nmtkit.config.schema import EXCLUSIVE_KEYS, SECTIONS, Recipe, TrainingConfig
from nmtkit.errors import RecipeError
from nmtkit.run import Run
from tests.conftest import message_of

DATA = '[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = ["builtin/train"]\n'


class Folder:
    """Writes recipes into a folder and loads them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str, name: str = "mine.toml") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def load(self, text: str, *overrides: str) -> Recipe:
        return load_recipe(str(self.write(text)), overrides)

    def complaint(self, text: str, *overrides: str) -> str:
        """The message about a recipe that cannot be used."""
        path = self.write(text)
        return message_of(lambda: load_recipe(str(path), overrides), RecipeError)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


class TestBuiltInRecipes:
    @pytest.mark.parametrize("name", builtin_recipes())
    def test_every_one_is_valid_can_be_a_base_and_is_read_back_as_it_was(self, folder: Folder, name: str) -> None:
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.data.train
        assert recipe.data.test or recipe.data.environment  # what plays in an environment has no test set
        if recipe.training.max_steps is not None:  # its end is a validation and a checkpoint
            assert recipe.training.max_steps % (recipe.training.checkpoint_every_steps or 1) == 0
            assert recipe.training.max_steps % (recipe.training.validate_every_steps or 1) == 0
        derived = folder.load(f'base = "{name}"\n[training]\nseed = 7\n')
        expected = load_recipe(name, ["training.seed=7"])
        assert derived.model_dump(exclude={"name"}) == expected.model_dump(exclude={"name"})
        assert derived.training.seed == 7
        assert stored_recipe(folder.write(to_toml(recipe)), name) == recipe

    def test_the_papers_base_recipe_is_the_default_model_and_training(self, folder: Folder) -> None:
        paper, default = load_recipe("wmt14-en-de-base"), folder.load(DATA)
        assert differences(default.model, paper.model) == ["d_k = 64 (was None)", "d_v = 64 (was None)"]
        assert (default.model.key_width, default.model.value_width) == (64, 64)
        assert differences(default.training, paper.training) == ["lengths_per_update = 8 (was 1)"]
        assert paper.decoding == default.decoding
        assert paper.cleaning == default.cleaning
        assert paper.data.vocab_size == default.data.vocab_size == 37000


class TestDefaults:
    def test_the_default_model_is_the_papers_base(self) -> None:
        assert ModelConfig().model_dump() == {
            "architecture": "encoder-decoder",
            "source_attention": "causal",
            "target_positions": "continued",
            "encoder_layers": 6,
            "decoder_layers": 6,
            "d_model": 512,
            "d_ff": 2048,
            "num_heads": 8,
            "d_k": None,
            "d_v": None,
            "self_attention": (),
            "local_block": 256,
            "local_previous_block": False,
            "compression": 3,
            "attention_window": None,
            "norm": "post",
            "positions": "sinusoidal",
            "max_positions": 1024,
            "activation": "relu",
            "embedding_scale": True,
            "output_bias": False,
            "decoder_start": "bos",
            "initialization": "xavier",
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "ffn_dropout": 0.0,
            "share_embeddings": "all",
            "head": "none",
            "vector_states": False,
            "returns": True,
            "return_values": 0,
        }

    def test_the_default_training_is_the_papers_base(self) -> None:
        training = TrainingConfig()
        assert training.tokens_per_update == 25000
        assert (training.adam_betas, training.adam_epsilon) == ((0.9, 0.98), 1e-9)
        assert (training.schedule, training.warmup_steps, training.peak_learning_rate) == ("noam", 4000, 0.0)
        assert (training.label_smoothing, training.gradient_clip_norm) == (0.1, 0.0)
        assert (training.max_steps, training.max_epochs, training.max_minutes) == (100_000, None, None)
        assert (training.checkpoint_every_steps, training.validate_every_steps) == (1250, 1250)
        assert training.keep_last == 5

    def test_the_default_search_is_the_papers(self) -> None:
        assert DecodingConfig().model_dump() == {
            "beam": 4,
            "length_penalty": "wu",
            "alpha": 0.6,
            "finished": "within",
            "max_length_offset": 50,
            "max_length_ratio": 1.0,
            "max_length": None,
            "min_length": 0,
            "no_repeat_ngram": 0,
            "coverage_penalty": 0.0,
            "whole_trees": False,
            "average_last": 5,
        }

    def test_a_stated_limit_replaces_the_default_one(self, folder: Folder) -> None:
        training = folder.load(DATA + "[training]\nmax_epochs = 3\nmax_minutes = 1.5\n").training
        assert (training.max_steps, training.max_epochs, training.max_minutes) == (None, 3, 1.5)

    def test_all_limits_may_stand_together(self, folder: Folder) -> None:
        training = folder.load(DATA + "[training]\nmax_steps = 2\nmax_epochs = 3\nmax_minutes = 4\n").training
        assert (training.max_steps, training.max_epochs, training.max_minutes) == (2, 3, 4)

    def test_every_key_says_what_it_means(self) -> None:
        silent = [
            f"{section}.{key}"
            for section, model in SECTIONS.items()
            for key, field in model.model_fields.items()
            if not field.description
        ]
        assert silent == []

    def test_a_recipe_cannot_be_changed_once_read(self, folder: Folder) -> None:
        recipe = folder.load(DATA)
        with pytest.raises(ValueError, match="frozen"):
            recipe.training.seed = 2  # type: ignore[misc]


class TestWrongKeys:
    def test_what_is_named_instead_of_keys_of_other_toolkits_exists(self) -> None:
        keys = [found for ours in FOREIGN_KEYS.values() for found in re.findall(r"\b([a-z]+)\.(\w+)", ours)]
        assert len(keys) > 40 and all(key in SECTIONS[section].model_fields for section, key in keys)
        # but where a key is in the wrong section, and also one of another toolkit
        assert {"max_tokens"} == {key for each in SECTIONS.values() for key in each.model_fields} & FOREIGN_KEYS.keys()

    @pytest.mark.parametrize(
        ("section", "key", "nearest"),
        [
            ("training", "sead", "seed"),
            ("training", "warmup", "warmup_steps"),
            ("model", "num_head", "num_heads"),
            ("decoding", "lenght_penalty", "length_penalty"),
            ("cleaning", "max_token", "max_tokens"),
        ],
    )
    def test_an_unknown_key_is_told_with_file_line_and_nearest_key(
        self, folder: Folder, section: str, key: str, nearest: str
    ) -> None:
        message = folder.complaint(f"{DATA}\n# a comment\n[{section}]\n{key} = 1\n")
        assert message.startswith(f"{folder.path / 'mine.toml'}, line 8: unknown key {section}.{key}")
        assert f"did you mean {nearest}?" in message

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (f"{DATA}[model]\nd_model = 8\nseed = 1\n", ", line 7: unknown key model.seed; it belongs in [training]"),
            (f"{DATA}[trainig]\nseed = 1\n", ", line 5: unknown section [trainig]; did you mean training?"),
            (
                f"seed = 1\n{DATA}",
                ": seed is outside of the sections [data], [cleaning], [model], [training], [decoding]",
            ),
            ("training = 5\n[data]\n", ": training must be a section, whose keys stand below a line [training]"),
            (f"{DATA}[training]\nseed = \n", ": not valid TOML: Invalid value (at line 6, column 8)"),
            (f"{DATA}[training]\nseed = 1\nseed = 2\n", "(at line 7, column 9)"),
            (f"base = 3\n{DATA}", "base must be the name of a recipe or a file, in quotes"),
            ("[training]\nseed = 1\n", "no [data] section; state the languages and the train corpora there"),
            (DATA.replace('train = ["builtin/train"]', ""), "data.train is missing; a recipe must state it"),
            (DATA.replace('"en"', '"de"'), "both 'de'"),
            (f'{DATA}segment_mark = "@@ "\n', "must be one word without blanks"),
            (
                DATA.replace('["builtin/train"]', '[{ corpus = "builtin/train", source_prefix = "a b" }]'),
                "source_prefix: must be one word without blanks",
            ),
            (
                DATA.replace('"builtin/train"', '{ src = "a.en", target = "a.de" }'),
                "src: unknown key; did you mean source?",
            ),
            (
                f"{DATA}test = 0\n",
                "test is the number of pairs to hold out, at least 1; for no test set, leave test out",
            ),
            (f"{DATA}test = -3\n", "at least 1; for no test set, leave test out"),
            (f"{DATA}test = 1.5\n", "must be a whole number, or a list in [ ]"),
            (f"{DATA}test = true\n", "must be a whole number, or a list in [ ]"),
            (f'{DATA}test = "many"\n', "must be a whole number, or a list in [ ]"),
            (f"{DATA}test = 2000000000\n", "must be at most 1000000000"),
            (
                f'{DATA}test = ["a", {{ corpus = "b/c", weight = "x" }}]\n',
                "data.test, entry 2 (b/c): weight: must be a number",
            ),
            (f'{DATA}valid = ["a", {{ source = "t/a.en" }}]\n', "data.valid, entry 2 (a.en): target: must be stated"),
            (f'{DATA}valid = ["a", {{}}]\n', "data.valid, entry 2 (without a file): source: must be stated"),
            (f'{DATA}valid = ["a", 3]\n', "data.valid, entry 2 (3): must be text, in quotes"),
            (
                f'{DATA}valid = [{{ corpus = "a", source = "b" }}]\n',
                "data.valid, entry 1 (a): source: cannot be used with corpus",
            ),
        ],
    )
    def test_a_fault_is_told_with_its_file(self, folder: Folder, text: str, told: str) -> None:
        message = folder.complaint(text)
        assert message.startswith(str(folder.path / "mine.toml"))
        assert message.endswith(told)

    def test_a_mistake_in_a_base_names_the_file_of_the_base(self, folder: Folder) -> None:
        folder.write(f"{DATA}[training]\nsead = 1\n", "parent.toml")
        message = folder.complaint('base = "parent.toml"\n[training]\nseed = 1\n')
        assert message.startswith(f"{folder.path / 'parent.toml'}, line 6: ")

    @pytest.mark.parametrize(
        ("line", "key", "reason"),
        [
            ('seed = "one"', "seed", "must be a whole number"),
            ("seed = 1.5", "seed", "must be a whole number"),
            ("max_steps = 0", "max_steps", "must be at least 1"),
            ('schedule = "quadratic"', "schedule", "must be 'noam', 'inverse-sqrt', 'cosine', 'linear' or 'constant'"),
            ("label_smoothing = 1.0", "label_smoothing", "must be less than 1"),
            ("adam_epsilon = 1e-50", "adam_epsilon", "must be at least 1e-30"),
            ("max_minutes = inf", "max_minutes", "must be a finite number"),
            ("adam_betas = [0.9]", "adam_betas", "must have more entries"),
            ('freeze = "encoder"', "freeze", "must be a list, in [ ]"),
            ("validate_bleu = 3", "validate_bleu", "must be true or false"),
            ("init = 3", "init", "must be the name of a file or folder, in quotes"),
        ],
    )
    def test_a_wrong_value_is_told_with_file_line_key_and_reason(
        self, folder: Folder, line: str, key: str, reason: str
    ) -> None:
        message = folder.complaint(f"{DATA}[training]\nwarmup_steps = 10\n{line}\n")
        assert message.startswith(f"{folder.path / 'mine.toml'}, line 7: training.{key} = ")
        assert message.endswith(f": {reason}")

    def test_a_key_without_effect_is_refused(self, folder: Folder) -> None:
        with pytest.raises(RecipeError, match="byte_fallback cannot be used with subwords"):
            folder.load(DATA, "data.byte_fallback=true", "data.subwords=none")

    @pytest.mark.parametrize("task", ["3", "[]", '["label"]', "{}"])
    def test_a_task_that_is_no_text_is_told(self, folder: Folder, task: str) -> None:
        message = folder.complaint(f"{DATA}task = {task}\n")
        assert message.startswith(f"{folder.path / 'mine.toml'}, line 5: data.task = ")
        assert message.endswith(": must be text, in quotes")

    @pytest.mark.parametrize(("column", "reason"), [(0, "must be at least 1"), ('"de"', "must be a whole number")])
    def test_a_wrong_column_of_a_local_corpus_is_told(self, folder: Folder, column: object, reason: str) -> None:
        message = folder.complaint(DATA, f'data.train=[{{source="a", target="b", target_column={column}}}]')
        assert message.endswith(f": target_column: {reason}")

    @pytest.mark.parametrize("column", ["0", "[]", "[2, 0]", "[2, 10001]", "true", "[1, true]", '"2"', "1.0", "[[1]]"])
    def test_a_wrong_source_column_is_told_with_both_forms(self, folder: Folder, column: str) -> None:
        message = folder.complaint(DATA, f'data.train=[{{source="a", target="b", source_column={column}}}]')
        expected = "must be a column from 1 to 10000, or a list of columns such as [2, 3]"
        assert message.endswith(f": source_column: {expected}")

    def test_a_folder_is_no_recipe(self, folder: Folder) -> None:
        with pytest.raises(RecipeError, match=r"a folder, not a recipe; it is not a run either"):
            find_recipe(str(folder.path))
        stored = folder.write(DATA, "recipe.toml")
        told = "a folder, not a recipe; the recipe of this run is "
        message = message_of(lambda: find_recipe(str(folder.path)), RecipeError, told)
        assert message.endswith(f"{stored}; to continue the run, give that file and --run-dir {folder.path}")

    @pytest.mark.parametrize("key", ["source_language", "target_language"])
    def test_a_language_that_is_no_code_is_told_in_words(self, folder: Folder, key: str) -> None:
        message = folder.complaint(re.sub(f'{key} = "..(?=")', f'{key} = "english', DATA))
        assert message.endswith(f"""data.{key} = 'english': must be a language code, such as "en" or "zh_Hans\"""")

    @pytest.mark.parametrize("pair", ['{ source = "a.en" }', '{ source = "a.en", traget = "a.de" }'])
    def test_a_local_corpus_without_its_target_is_told(self, folder: Folder, pair: str) -> None:
        message = folder.complaint(f'[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = [{pair}]\n')
        assert message.startswith(f"{folder.path / 'mine.toml'}, line 4: ")
        assert "should be a valid string" not in message
        assert "target" in message.replace("traget", "").replace("target_language", "")


class TestNumbers:
    @pytest.mark.parametrize(
        "setting",
        ["training.max_steps=true", "model.d_k=false", "model.dropout=false", "training.adam_betas=[true, 0.98]"],
    )
    def test_true_and_false_are_no_numbers(self, folder: Folder, setting: str) -> None:
        key = setting.split("=")[0]
        assert key in (message := folder.complaint(DATA, setting))
        assert "must be a number, not true or false" in message

    def test_a_minimum_length_above_the_maximum_is_told(self, folder: Folder) -> None:
        message = folder.complaint(DATA, "decoding.min_length=3", "decoding.max_length=2")
        assert "min_length = 3 is more than max_length = 2; change one of them" in message
        assert folder.load(DATA, "decoding.min_length=2", "decoding.max_length=2").decoding.min_length == 2


class TestFiles:
    def test_a_file_goes_before_a_built_in_recipe_of_its_name(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder.path)
        assert find_recipe("quickstart") == builtin_recipes()["quickstart"]
        folder.write(DATA, "quickstart")
        assert find_recipe("quickstart").resolve() == (folder.path / "quickstart").resolve()


class TestBases:
    def test_a_derived_recipe_states_only_what_differs(self, folder: Folder) -> None:
        folder.write(f"{DATA}[model]\nd_model = 64\nd_ff = 128\n[training]\nseed = 3\n", "parent.toml")
        folder.write('base = "parent.toml"\n[model]\nd_ff = 256\n', "middle.toml")
        recipe = folder.load('base = "middle.toml"\n[training]\nseed = 4\n')
        assert (recipe.model.d_model, recipe.model.d_ff, recipe.training.seed) == (64, 256, 4)
        assert recipe.name == "mine"

    def test_a_base_is_looked_for_beside_the_recipe(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.write(f"{DATA}[training]\nseed = 3\n", "inner/parent.toml")
        path = folder.write('base = "parent.toml"\n', "inner/child.toml")
        monkeypatch.chdir("/")
        assert load_recipe(str(path)).training.seed == 3

    def test_files_and_base_of_a_linked_recipe_are_beside_the_link(self, folder: Folder) -> None:
        folder.write(f"{DATA}[training]\nseed = 3\n", "parent.toml")
        child = 'base = "parent.toml"\n[data]\ntrain = [{ source = "a.en", target = "a.de" }]\n'
        (folder.path / "mine.toml").symlink_to(folder.write(child, "..data/mine.toml"))
        recipe = load_recipe(str(folder.path / "mine.toml"))
        assert recipe.training.seed == 3
        assert str(folder.path / "a.en") in to_toml(recipe) and "..data" not in to_toml(recipe)

    def test_a_base_that_leads_back_to_itself_is_an_error(self, folder: Folder) -> None:
        folder.write('base = "mine.toml"\n', "other.toml")
        assert "refers back to itself" in folder.complaint('base = "other.toml"\n')
        assert "refers back to itself" in folder.complaint('base = "mine.toml"\n')

    @pytest.mark.parametrize("base", ["missing.toml", "no-such-recipe"])
    def test_a_missing_base_is_told_with_the_recipe_that_names_it(self, folder: Folder, base: str) -> None:
        message = folder.complaint(f'base = "{base}"\n{DATA}')
        assert base in message
        assert str(folder.path / "mine.toml") in message

    def test_a_recipe_that_states_train_inherits_no_valid_or_test(
        self, folder: Folder, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.write(f'{DATA}valid = ["builtin/valid"]\ntest = ["builtin/synthetic"]\n', "parent.toml")
        same = folder.load('base = "parent.toml"\n')
        assert (same.data.valid, same.data.test) == (("builtin/valid",), ("builtin/synthetic",))
        other = folder.load('base = "parent.toml"\n[data]\ntrain = ["wmt14/europarl-v7"]\n')
        assert (other.data.valid, other.data.test) == ((), ())
        overridden = folder.load('base = "parent.toml"\n', 'data.train=["wmt14/europarl-v7"]')
        assert (overridden.data.valid, overridden.data.test) == ((), ())
        told = "--set data.train leaves out the recipe's valid and test; set these, too"
        assert caplog.messages == [told]
        folder.load('base = "parent.toml"\n', 'data.train=["wmt14/europarl-v7"]', "data.valid=20", "data.test=20")
        assert caplog.messages == [told]
        kept = folder.load('base = "parent.toml"\n[data]\ntrain = ["wmt14/europarl-v7"]\nvalid = 20\n')
        assert (kept.data.valid, kept.data.test) == (20, ())

    def test_a_summary_in_another_language_than_that_of_its_base_has_a_source_in_it_too(self, folder: Folder) -> None:
        summary = '[data]\ntask = "summary"\ntarget_language = "de"\n'
        assert folder.load(f'base = "multi30k-en-de"\n{summary}').data.source_language == "de"
        folder.write(to_toml(folder.load(f'base = "multi30k-en-de"\n{summary}')), "stored.toml")
        base = 'base = "stored.toml"\n[data]\ntarget_language = '
        assert folder.load(f'{base}"fr"\n').data.source_language == "fr"
        assert folder.load(f'{base}"fr"\nsource_language = "en"\n').data.source_language == "en"
        folder.write(to_toml(folder.load(f'{base}"fr"\nsource_language = "en"\n')), "two.toml")
        of_two = folder.load('base = "two.toml"\n[data]\ntarget_language = "es"\n').data
        assert (of_two.source_language, of_two.target_language) == ("en", "es")

    def test_a_stored_recipe_can_be_the_base_of_another_task(self, folder: Folder) -> None:
        folder.write(to_toml(load_recipe("gpt-gutenberg")), "lm.toml")
        of_label = 'task = "label"\nsource_language = "en"\ntrain = ["trec/train"]\n'
        stated = 'task = "label"\ntrain = [{ source = "a", target = "b", source_language = "is" }]\n'
        causal = '[model]\narchitecture = "decoder"\nsource_attention = "causal"\n[training]\nvalidate_bleu = false\n'
        data = folder.load(f"[data]\n{stated}{causal}").data
        assert (data.source_language, data.target_language) == ("is", "zxx")
        of_label = f'base = "lm.toml"\n[data]\n{of_label}[training]\nschedule = "linear"\n'
        labels = folder.load(of_label)
        assert (labels.model.head, labels.data.share_vocab, labels.model.d_model) == ("classes", False, 256)
        assert labels.data.target_language == "zxx"
        folder.write(to_toml(labels), "labels.toml")
        assert folder.load('base = "labels.toml"\n[data]\nlabel_type = "number"\n').model.head == "number"
        restarted = '[model]\ntarget_positions = "restarted"\n'
        for recipe, task in ((f'base = "lm.toml"\n{restarted}', "language-model"), (of_label + restarted, "label")):
            complaint = folder.complaint(recipe)
            assert f'is for texts with a source, not for [data] task = "{task}"; state "continued"' in complaint
        assert "leave head out" in folder.complaint(f'{of_label}[model]\nhead = "none"\n')
        assert "leave share_vocab out" in folder.complaint(of_label.replace("[data]", "[data]\nshare_vocab = true"))

    @pytest.mark.parametrize("old", ["translation", "summary", "language-model", "label"])
    @pytest.mark.parametrize("new", ["translation", "summary", "language-model", "label"])
    def test_another_task_than_that_of_a_stored_base_has_its_own_defaults(
        self, folder: Folder, old: str, new: str
    ) -> None:
        def loaded(task: str, base: str = "") -> Recipe:
            model = '[model]\narchitecture = "decoder"\n[training]\nvalidate_bleu = false\n'
            return folder.load(f'{base}{DATA}task = "{task}"\n{"" if task == "summary" else model}')

        folder.write(to_toml(loaded(old)), "stored.toml")
        found, own = loaded(new, 'base = "stored.toml"\n'), loaded(new)
        assert (found.data, found.cleaning) == (own.data, own.cleaning)
        assert found.cleaning.model_fields_set >= {"source_equals_target"} or new != "language-model"
        stated = loaded(old).model_copy(update={"cleaning": CleaningConfig(max_tokens=99)})
        folder.write(to_toml(stated), "stored.toml")
        assert loaded(new, 'base = "stored.toml"\n').cleaning.max_tokens == 99

    def test_a_language_model_takes_no_source_language_from_a_stored_base(self, folder: Folder) -> None:
        folder.write(to_toml(folder.load(f'{DATA}task = "summary"\n')), "stored.toml")
        model = '[model]\narchitecture = "decoder"\n[training]\nvalidate_bleu = false\n'
        texts = 'task = "language-model"\ntrain = [{ text = "a" }]\n'
        assert folder.load(f'base = "stored.toml"\n[data]\n{texts}{model}').data.source_language == "und"

    def test_another_name_of_a_public_corpus_is_a_change(self, folder: Folder) -> None:
        named = [f'{DATA}test = [{{ corpus = "multi30k/test2016", name = "{name}" }}]\n' for name in "ab"]
        one, other = map(folder.load, named)
        [change] = data_changes(one, other)
        assert change.startswith("data.test = ['multi30k/test2016 as b']")
        assert data_changes(one, folder.load(named[0])) == []

    def test_a_number_of_test_pairs_is_inherited_replaced_and_stored(self, folder: Folder) -> None:
        folder.write(f"{DATA}valid = 30\ntest = 20\n", "parent.toml")
        recipe = folder.load('base = "parent.toml"\n')
        assert (recipe.data.held_out, recipe.data.corpora("test")) == ({"valid": 30, "test": 20}, ())
        stored = folder.path / "stored.toml"
        stored.write_text(to_toml(recipe), encoding="utf-8")
        assert stored_recipe(stored, "mine") == recipe
        named = folder.load('base = "parent.toml"\n[data]\ntest = ["builtin/synthetic"]\n')
        assert (named.data.held_out, named.data.corpora("test")) == ({"valid": 30}, ("builtin/synthetic",))
        other = folder.load('base = "parent.toml"\n[data]\ntrain = ["wmt14/europarl-v7"]\n')
        assert other.data.held_out == {}
        assert folder.load(DATA, "data.test=5").data.test == 5

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            (["data.context=1"], "context needs test text in documents"),
            (['data.text="trees"', "training.validate_bleu=false"], "needs test corpora with tagged trees"),
            (['data.task="summary"'], "a summary needs test corpora, not a number of pairs"),
            (['data.task="language-model"'], "a language model needs test texts, not a number of lines"),
        ],
    )
    def test_tasks_without_a_number_of_test_pairs_say_so(
        self, folder: Folder, settings: list[str], reason: str
    ) -> None:
        assert reason in folder.complaint(DATA, *settings, "data.test=5")


class TestGeneratedCorpora:
    BACK = 'generate = "mono.de", model = "runs/de-en", as = "source"'

    def recipe(self, folder: Folder, entry: str, *overrides: str) -> Recipe:
        return folder.load(f"{DATA[:-2]}, {{ {entry} }}]\n", *overrides)

    def test_paths_are_relative_and_short_forms_are_taken(self, folder: Folder) -> None:
        entry = self.recipe(folder, f'{self.BACK}, prefix = "<bt>", beam = 5, noise = {{ drop = 0.1 }}').data.train[1]
        assert isinstance(entry, GeneratedCorpus)
        assert (entry.generate, entry.model) == (folder.path / "mono.de", (folder.path / "runs/de-en",))
        assert (entry.side, entry.source_prefix, entry.beam, entry.noise) == ("source", "<bt>", 5, Noise(drop=0.1))
        several = self.recipe(folder, self.BACK.replace('"runs/de-en"', '["a", "/b"]')).data.train[1]
        assert isinstance(several, GeneratedCorpus)
        assert several.model == (folder.path / "a", Path("/b"))

    def test_it_is_stored_as_it_was_written(self, folder: Folder) -> None:
        recipe = self.recipe(folder, f"{self.BACK}, sample = true, top_k = 10, noise = {{ shuffle = 3 }}")
        stored = folder.write(to_toml(recipe), "stored.toml")
        assert 'as = "source"' in stored.read_text(encoding="utf-8")
        assert stored_recipe(stored, "mine") == recipe
        other = self.recipe(folder, f"{self.BACK}, sample = true, top_k = 11, noise = {{ shuffle = 3 }}")
        assert "'top_k': 11" in differences(recipe.data, other.data)[0]

    @pytest.mark.parametrize(
        ("entry", "reason"),
        [
            ('generate = "a", model = "m"', '(a): as: must be stated, "source" or "target"'),
            ('generate = "a", as = "source"', "model: must be stated"),
            ('generate = "a", model = [], as = "source"', "model: must have 1 or more entries"),
            ('generate = "a", model = 3, as = "source"', "model: must be a list, in [ ]"),
            ('generate = "a", model = "m", as = "both"', "as: must be 'source' or 'target'"),
            (f"{BACK}, baem = 5", "baem: unknown key; did you mean beam?"),
            (f"{BACK}, from_ = 'de'", "from_: unknown key; did you mean from?"),
            (f"{BACK}, noise = {{ dorp = 0.1 }}", "dorp: unknown key; did you mean drop?"),
            (f"{BACK}, noise = {{ drop = 1.0 }}", "drop: must be less than 1"),
            (f"{BACK}, noise = {{ mask = 1.5 }}", "mask: must be at most 1"),
            (f"{BACK}, noise = {{ shuffle = -1 }}", "shuffle: must be at least 0"),
            (f"{BACK}, noise = 3", "noise: must be a table, in { }"),
            (f"{BACK}, n_best = 0", "n_best: must be at least 1"),
            (f"{BACK}, beam = true", "beam: must be a number, not true or false"),
            (f"{BACK}, beam = 5, sample = true", "sampling uses no beam"),
            (f"{BACK}, top_k = 5", "temperature, top_k and top_p need sample = true"),
            (f"{BACK}, temperature = 0.0, sample = true", "temperature: must be at least"),
            (f"{BACK}, top_p = 1.1, sample = true", "top_p: must be at most 1"),
            (f'{BACK}, prefix = "a", source_prefix = "b"', "prefix and source_prefix are the same key; state one"),
            (f'{BACK}, prefix = "a b"', ", entry 2 (mono.de): prefix: must be one word without blanks"),
            (f'{BACK}, source_prefix = "a b"', "source_prefix: must be one word without blanks"),
            (f'{BACK}, name = "a/b"', "must be a name without slashes"),
            (f"{BACK} }}, {{ {BACK}", "two generated corpora have the same name (mono, mono); give each a name"),
        ],
    )
    def test_a_wrong_entry_is_one_clear_line(self, folder: Folder, entry: str, reason: str) -> None:
        message = folder.complaint(f"{DATA[:-2]}, {{ {entry} }}]\n")
        assert reason in message
        assert "builtin/train" not in message, "the other entries of the list"
        assert "GeneratedCorpus: " not in message
        assert str(folder.path / "mine.toml") in message

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            (['data.valid=[{generate="a", model="m", as="source"}]'], "a: generated corpora are for data.train"),
            (['data.test=[{generate="a", model="m", as="source"}]'], "a: generated corpora are for data.train"),
            (['data.test=[{generate="a", model="m", as="source", noise=3}]'], "(a): noise: must be a table, in { }"),
            (["data.context=2"], "context cannot be used with generated corpora"),
            (["data.subwords=none"], 'subwords = "none" cannot be used with generated corpora'),
            (["data.text=trees", "training.validate_bleu=false"], 'generate is for task = "translation", not "pars'),
        ],
    )  # fmt: skip
    def test_where_there_can_be_none_it_is_said(self, folder: Folder, settings: list[str], reason: str) -> None:
        assert reason in folder.complaint(f"{DATA[:-2]}, {{ {self.BACK} }}]\n", *settings)


class TestLocalFiles:
    def test_paths_are_relative_to_the_file_of_the_recipe(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = '{ source = "text/a.en", target = "/abs/a.de" }'
        text = f'[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = [{pair}]\nvalid = [{pair}]\n'
        folder.write(text, "inner/parent.toml")
        path = folder.write('base = "inner/parent.toml"\n[data]\ntest = [{ source = "t.en", target = "../t.de" }]\n')
        monkeypatch.chdir("/")
        data = load_recipe(str(path)).data
        inner = LocalPair(source=folder.path / "inner/text/a.en", target=Path("/abs/a.de"))
        assert (data.train, data.valid) == ((inner,), (inner,))
        (test,) = data.test
        assert isinstance(test, LocalPair)
        assert (test.source, test.target) == (folder.path / "t.en", folder.path / "../t.de")

    def test_paths_of_an_override_are_relative_to_the_working_folder(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = folder.write(DATA, "inner/mine.toml")
        monkeypatch.chdir(folder.path)
        (pair,) = load_recipe(str(path), ['data.train=[{source = "a.en", target = "a.de"}]']).data.train
        assert pair == LocalPair(source=folder.path / "a.en", target=folder.path / "a.de")

    def test_a_tilde_is_the_home_folder(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        recipe = folder.load(DATA, 'data.test=[{source = "~/a.en", target = "~/a.de"}]')
        (pair,) = recipe.data.test
        assert isinstance(pair, LocalPair)
        assert pair.source == Path("/home/someone/a.en")

    def test_a_tilde_before_no_user_is_part_of_a_name(self, folder: Folder) -> None:
        with pytest.raises(RecipeError, match=r"~nobody-here/mine\.toml: no such recipe file"):
            load_recipe("~nobody-here/mine.toml")
        test = 'data.test=[{source = "~nobody-here/a.en", target = "b.de"}]'
        recipe = folder.load(DATA, test, "training.init=~nobody-here/a", "data.silver_trees=['~nobody-here/b']")
        (pair,) = recipe.data.test
        assert isinstance(pair, LocalPair)
        paths = [pair.source, recipe.training.init, *recipe.data.silver_trees]
        assert paths == [Path.cwd() / "~nobody-here" / name for name in ("a.en", "a", "b")]

    @pytest.mark.parametrize(
        ("entry", "name"),
        [
            ("multi30k/test2016", "test2016"),
            (LocalPair(source=Path("in/news.en"), target=Path("news.de")), "news"),
            (LocalPair(source=Path("news.test.en.gz"), target=Path("news.de")), "news.test"),
            (LocalPair(source=Path("a.en"), target=Path("b.de"), name="mine"), "mine"),
        ],
    )
    def test_a_corpus_is_named_by_its_last_part_its_name_or_its_file(self, entry: str | LocalPair, name: str) -> None:
        assert corpus_name(entry) == name

    def test_two_test_sets_of_one_name_are_an_error(self, folder: Folder) -> None:
        assert "same name" in folder.complaint(f'{DATA}test = ["multi30k/test2016", "multi30k-tok/test2016"]\n')
        named = '{ corpus = "multi30k-tok/test2016", name = "tokenized" }'
        tests = folder.load(f'{DATA}test = ["multi30k/test2016", {named}]\n').data.test
        assert [corpus_name(entry) for entry in tests] == ["test2016", "tokenized"]

    @pytest.mark.parametrize("name", ["news/2014", "../news"])
    def test_the_name_of_a_test_set_may_not_lead_to_another_folder(self, folder: Folder, name: str) -> None:
        message = folder.complaint(f'{DATA}test = [{{ source = "a.en", target = "a.de", name = "{name}" }}]\n')
        assert name in message
        assert (
            "name: must be a name without slashes and control characters that does not begin with a full stop"
            in message
        )


class TestExclusiveKeys:
    @pytest.mark.parametrize("group", EXCLUSIVE_KEYS)
    def test_several_in_one_file_are_an_error(self, folder: Folder, group: tuple[str, ...]) -> None:
        message = folder.complaint(f"{DATA}valid = 9\n[training]\n{group[0]} = 3\n{group[1]} = 3\n")
        assert str(folder.path / "mine.toml") in message
        assert f"{group[0]} and {group[1]} exclude each other" in message

    @pytest.mark.parametrize("group", EXCLUSIVE_KEYS)
    def test_the_one_stated_by_a_derived_recipe_replaces_the_others(
        self, folder: Folder, group: tuple[str, ...]
    ) -> None:
        for old in group:
            for new in group:
                folder.write(f"{DATA}valid = 9\n[training]\n{old} = 3\n", "parent.toml")
                training = folder.load(f'base = "parent.toml"\n[training]\n{new} = 4\n').training
                assert {key: getattr(training, key) for key in group} == {
                    key: 4 if key == new else None for key in group
                }

    @pytest.mark.parametrize("group", EXCLUSIVE_KEYS)
    def test_the_one_set_last_replaces_the_others(self, folder: Folder, group: tuple[str, ...]) -> None:
        text = f"{DATA}valid = 9\n[training]\n{group[0]} = 3\n"
        for keys in (group, tuple(reversed(group))):
            training = folder.load(text, *(f"training.{key}=5" for key in keys)).training
            assert {key: getattr(training, key) for key in group} == {
                key: 5 if key == keys[-1] else None for key in group
            }

    def test_a_limit_in_tokens_replaces_the_number_of_sequences_of_a_base(self, folder: Folder) -> None:
        folder.write(f"{DATA}valid = 9\n[training]\nsequences_per_update = 8\n", "parent.toml")
        derived = 'base = "parent.toml"\n[training]\n'
        for changes, expected in (
            ("tokens_per_update = 500", (500, 0)),
            ("seed = 3", (25000, 8)),
            ("tokens_per_update = 500\nsequences_per_update = 8", (500, 8)),  # as a stored recipe states both
        ):
            training = folder.load(derived + changes).training
            assert (training.tokens_per_update, training.sequences_per_update) == expected
        training = folder.load(derived, "training.tokens_per_update=600").training
        assert (training.tokens_per_update, training.sequences_per_update) == (600, 0)
        both = ("training.sequences_per_update=4", "training.tokens_per_update=600")
        for overrides, expected in ((both, (600, 0)), (both[::-1], (600, 4))):
            training = folder.load(derived, *overrides).training
            assert (training.tokens_per_update, training.sequences_per_update) == expected

    def test_an_empty_value_leaves_out_what_a_base_states_for_a_key_without_a_default(self, folder: Folder) -> None:
        folder.write(f'{DATA}valid = 9\ntokenizer = "t"\n[training]\ninit = "m"\nmax_minutes = 5\n', "parent.toml")
        recipe = folder.load(
            'base = "parent.toml"\n[data]\ntokenizer = ""\n', "training.init=", "training.max_minutes=''"
        )
        assert (recipe.data.tokenizer, recipe.training.init, recipe.training.max_minutes) == (None, None, None)
        folder.write(f"{DATA}valid = 9\n[training]\nvalidate_every_steps = 77\npatience_epochs = 3\n", "parent.toml")
        for empty in ("validate_every_minutes", "patience_validations"):
            training = folder.load('base = "parent.toml"\n', f"training.{empty}=").training
            assert (training.validate_every_steps, training.patience_epochs) == (77, 3)
        overrides = ("training.validate_every_steps=5", "training.validate_every_minutes=")
        assert folder.load('base = "parent.toml"\n', *overrides).training.validate_every_steps == 5
        with pytest.raises(RecipeError, match=r"training\.precision"):
            folder.load(DATA, "training.precision=")

    def test_where_none_is_stated_it_is_1250_updates_and_no_patience(self, folder: Folder) -> None:
        training = folder.load(DATA).training
        stated = {key: getattr(training, key) for group in EXCLUSIVE_KEYS for key in group}
        assert {key: value for key, value in stated.items() if value is not None} == {
            "validate_every_steps": 1250,
            "checkpoint_every_steps": 1250,
        }


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "section", "key", "value"),
        [
            ("training.seed=2", "training", "seed", 2),
            ("training.adam_epsilon=1e-8", "training", "adam_epsilon", 1e-8),
            ("training.adam_betas=[0.8, 0.9]", "training", "adam_betas", (0.8, 0.9)),
            ("training.validate_bleu=false", "training", "validate_bleu", False),
            ("data.byte_fallback=true", "data", "byte_fallback", True),
            ("data.subwords=unigram", "data", "subwords", "unigram"),
            ('data.subwords="unigram"', "data", "subwords", "unigram"),
            ("data.test=[]", "data", "test", ()),
            ("data.valid=20", "data", "valid", 20),
            ("data.segment_mark=##", "data", "segment_mark", "##"),
        ],
    )
    def test_an_override_is_a_toml_value_or_a_bare_word(
        self, folder: Folder, override: str, section: str, key: str, value: Any
    ) -> None:
        assert getattr(getattr(folder.load(DATA, override), section), key) == value

    def test_the_last_override_of_a_key_wins_over_the_file(self, folder: Folder) -> None:
        text = f"{DATA}[training]\nseed = 1\n"
        assert folder.load(text, "training.seed=2", "training.seed=3").training.seed == 3

    @pytest.mark.parametrize("override", ["training.seed", "seed=2", "training.seed:2", "=2", "training.=2"])
    def test_an_override_of_another_form_is_an_error_that_shows_the_form(self, folder: Folder, override: str) -> None:
        message = folder.complaint(DATA, override)
        assert override in message
        assert "section.key=value" in message

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            ("training.sead=2", "--set: unknown key training.sead; did you mean seed?"),
            (
                "training.max_tokens=9",
                "--set: unknown key training.max_tokens; it belongs in [cleaning]; what other t",
            ),
            ("model.hidden_size=9", "--set: unknown key model.hidden_size; what other toolkits name so is model.d_m"),
            ("trainin.seed=2", "--set: unknown section [trainin]; did you mean training?"),
            ("training.seed=two", "--set: training.seed = 'two': "),
            ("training.seed=2\nmax_steps=3", "--set training.seed: has several settings; give a --set for each"),
            ("cleaning.max_ratio=0.5", "--set: [cleaning] max_ratio is that of the longer to the shorter side"),
            ("data.source_language=''", "--set: data.source_language = '': must be a language code, such as"),
            ("data.normalize=nfc", "--set: data.normalize = 'nfc': must be a list, in [ ]"),
            ("model.seed=2", "--set: unknown key model.seed; it belongs in [training]"),
        ],
    )
    def test_a_wrong_override_is_told_as_such(self, folder: Folder, override: str, expected: str) -> None:
        assert folder.complaint(DATA, override).startswith(expected)

    @pytest.mark.parametrize(
        ("text", "override", "is_of_file"),
        [
            (f"{DATA}[training]\nkeep_last = 2\n", "training.seed=2", True),
            (f"{DATA}[training]\nkeep_last = 9\n", "decoding.average_last=10", False),
            (DATA.replace('train = ["builtin/train"]', ""), "training.seed=2", True),
            ("[training]\nseed = 1\n", "training.seed=2", True),
        ],
    )
    def test_what_does_not_go_together_is_blamed_on_the_layer_that_made_it_so(
        self, folder: Folder, text: str, override: str, is_of_file: bool
    ) -> None:
        blamed = str(folder.path / "mine.toml") if is_of_file else "--set"
        assert folder.complaint(text, override).startswith(f"{blamed}: ")

    def test_a_conflict_inside_a_base_is_blamed_on_the_base(self, folder: Folder) -> None:
        base = folder.write(f"{DATA}[training]\nkeep_last = 2\n", "base.toml")
        assert folder.complaint(f'base = "{base}"\n[training]\nseed = 2\n').startswith(f"{base}: [training] keep_last")


class TestRulesAcrossKeys:
    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ("[training]\nkeep_last = 2\n[decoding]\naverage_last = 3\n", ("keep_last = 2", "average_last = 3")),
            ("share_vocab = false\n", ("share_embeddings", "share_vocab")),
            ("[training]\npeak_learning_rate = 0.1\n", ("noam", "peak_learning_rate")),
            ("[training]\nwarmup_steps = 0\n", ("noam", "warmup_steps")),
            ('[training]\nschedule = "inverse-sqrt"\n', ("inverse-sqrt", "peak_learning_rate")),
            ('[training]\nschedule = "cosine"\npeak_learning_rate = 0.1\nmax_epochs = 2\n', ("cosine", "max_steps")),
            ('[model]\npositions = "learned"\nmax_positions = 256\n', ("max_positions = 256", "at most 255")),
            ('[cleaning]\nmax_tokens = 0\n[model]\npositions = "learned"\n', ("max_positions", "max_tokens")),
            ("[model]\nnum_heads = 7\n", ("d_model = 512", "num_heads = 7")),
            (
                "[training]\nsequences_per_update = 9\nlengths_per_update = 2\n",
                ("sequences_per_update = 9 is not a multiple of lengths_per_update = 2", "change one of them"),
            ),
            (
                '[model]\nencoder_layers = 1\nself_attention = ["local", "full"]\n',
                ("2 entries, more than encoder_layers = 1; shorten it",),
            ),
            ("[model]\nd_model = 9\nnum_heads = 3\n", ("even d_model", "9")),
            ("[training]\npatience_epochs = 2\n", ("patience", "valid")),
            ('[model]\narchitecture = "decoder"\nsource_attention = "full"\n', ('"full"', "source_loss = 0")),
            (
                '[model]\narchitecture = "decoder"\nsource_attention = "full"\nself_attention = ["compressed"]\n',
                ('"compressed"', '"causal"'),
            ),
            ('share_vocab = false\n[model]\narchitecture = "decoder"\nshare_embeddings = "none"\n', ("share_vocab",)),
            ('[model]\ntarget_positions = "restarted"\n', ('"restarted"', 'architecture = "decoder"')),
            ('[model]\nsource_attention = "full"\n', ('"full"', 'architecture = "decoder"')),
            ("[model]\nlocal_block = 8\n", ("local_block", 'self_attention = "local"', "or set it to 256")),
            ("[model]\nlocal_previous_block = true\n", ("local_previous_block", '= "local"', "or set it to false")),
            (
                '[model]\ncompression = 2\nself_attention = ["local"]\n',
                ("compression", '= "compressed"', "set it to 3"),
            ),
            (
                '[model]\narchitecture = "decoder"\nself_attention = ["full"]\nattention_window = 5\n',
                ('attention_window needs a layer with self_attention = "window"; leave it out, or set it to ""',),
            ),
            (
                "[training]\nsource_loss = 0.5\n",
                ('source_loss needs [model] architecture = "decoder"', "or set it to 1"),
            ),
            (
                '[model]\narchitecture = "decoder"\nself_attention = ["local"]\n[decoding]\ncoverage_penalty = 0.2\n',
                ("coverage_penalty needs a decoder layer with full or compressed self_attention", "set it to 0"),
            ),
            ('[model]\nself_attention = ["window"]\n', ("attention_window",)),
            (
                '[model]\narchitecture = "decoder"\npositions = "learned"\nmax_positions = 512\n',
                ("max_positions = 512", "at most 255"),
            ),
            ("[training]\nfinal_learning_rate = 0.1\n", ("final_learning_rate", "cosine")),
            ("valid = 0\n", ("valid", "at least 1")),
            *(
                (f'context = 1\ncontext_sides = "both"\n[decoding]\n{key}\n', (key.split(" =")[0], "context_sides"))
                for key in ("min_length = 2", "no_repeat_ngram = 3", "coverage_penalty = 0.2", 'finished = "beside"')
            ),
        ],
    )
    def test_what_does_not_go_together_is_told_with_both_keys(
        self, folder: Folder, text: str, parts: tuple[str, ...]
    ) -> None:
        message = folder.complaint(DATA + text)
        assert message.startswith(str(folder.path / "mine.toml"))
        assert [part for part in parts if part not in message] == []

    def test_a_run_that_was_trained_with_keys_without_effect_stays_usable(self, folder: Folder) -> None:
        text = f"{DATA}[model]\nlocal_block = 8\n[training]\nsource_loss = 0.5\n"
        assert "local_block needs a layer" in folder.complaint(text)
        assert stored_recipe(folder.write(text), "mine").training.source_loss == 0.5

    @pytest.mark.parametrize(("architecture", "holds", "needed"), [("decoder", 39, 129), ("encoder-decoder", 79, 101)])
    def test_advice_on_positions_heeds_max_source_tokens(
        self, folder: Folder, architecture: str, holds: int, needed: int
    ) -> None:
        source = 64 if architecture == "decoder" else 100
        text = f"{DATA}max_source_tokens = {source}\n[cleaning]\nmax_tokens = {source}\n"
        text += f'[model]\narchitecture = "{architecture}"\npositions = "learned"\nmax_positions = 80\n'
        assert folder.complaint(text).endswith(
            f"set [cleaning] max_tokens and [data] max_source_tokens, now {source}, to at most {holds}, or max_tokens "
            f"to {source} and max_positions to at least {needed}"
        )
        for advice in (
            [f"cleaning.max_tokens={holds}", f"data.max_source_tokens={holds}"],
            [f"cleaning.max_tokens={source}", f"model.max_positions={needed}"],
        ):
            load_recipe(str(folder.write(text)), advice)

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            (["data.task=0"], "data.task = 0: none of choice, label, language-model, "),
            (["data.task=[]"], "data.task = []: none of choice, label, language-model, "),
            (
                ["data.task="],
                "data.source_language is missing; a recipe must state it, or data.task, which may set it: ",
            ),
            (["data.target_language="], "data.target_language = '': must be a language code"),
        ],
    )
    def test_what_other_keys_follow_from_is_blamed(self, folder: Folder, changes: list[str], told: str) -> None:
        summary = '[data]\ntask = "summary"\ntarget_language = "en"\ntrain = ["builtin/facts-train"]\n'
        assert folder.complaint(summary, *changes).startswith(f"--set: {told}")

    @pytest.mark.parametrize(
        "text",
        [
            "[training]\nkeep_last = 3\n[decoding]\naverage_last = 3\n",
            'share_vocab = false\n[model]\nshare_embeddings = "decoder"\n',
            'share_vocab = false\n[model]\nshare_embeddings = "none"\n',
            '[model]\npositions = "learned"\nmax_positions = 257\n',
            "[model]\nnum_heads = 7\nd_k = 64\nd_v = 64\n",
            '[model]\nself_attention = ["full"]\nattention_window = 5\n',
            '[model]\narchitecture = "decoder"\nself_attention = ["full"]\nattention_window = ""\n',
            '[model]\nd_model = 9\nnum_heads = 3\npositions = "learned"\n',
            "valid = 1\n[training]\npatience_epochs = 2\n",
        ],
    )
    def test_what_just_goes_together_is_accepted(self, folder: Folder, text: str) -> None:
        assert folder.load(DATA + text).data.train == ("builtin/train",)


class TestStoredRecipes:
    def test_local_files_numbers_and_limits_are_read_back_as_they_were(self, folder: Folder) -> None:
        text = (
            '[data]\nsource_language = "en"\ntarget_language = "de"\nvalid = 12\nnormalize = ["nfc", "lowercase"]\n'
            'train = ["builtin/train", { source = "ü \\" x.en", target = "a.de", name = "mine", '
            "source_column = [2, 3] }]\n"
            'segment_mark = "\\\\"\n'
            "[model]\nd_model = 12\nnum_heads = 5\nd_k = 3\nd_v = 4\n"
            "[training]\nmax_epochs = 2\ncheckpoint_every_minutes = 0.5\npatience_validations = 3\n"
            "adam_epsilon = 1e-30\n"
        )
        recipe = folder.load(text)
        again = stored_recipe(folder.write(to_toml(recipe), "elsewhere/recipe.toml"), "mine")
        assert again == recipe
        assert again.data.train[1] == LocalPair(
            source=folder.path / 'ü " x.en', target=folder.path / "a.de", name="mine", source_column=(2, 3)
        )
        assert again.training.max_steps is None

    def test_differences_name_the_keys_with_both_values(self) -> None:
        assert differences(CleaningConfig(max_tokens=3), CleaningConfig(max_tokens=4)) == ["max_tokens = 4 (was 3)"]
        assert differences(CleaningConfig(), CleaningConfig()) == []

    def test_limits_patience_keeping_and_intervals_may_change_after_training(self) -> None:
        old = TrainingConfig(max_steps=10, keep_last=5, validate_every_steps=2, checkpoint_every_steps=2)
        new = TrainingConfig(
            max_epochs=3,
            max_minutes=2,
            patience_epochs=1,
            keep_last=7,
            keep_best=3,
            validate_every_epochs=1,
            checkpoint_every_minutes=1,
        )
        assert len(differences(old, new)) >= 10
        assert changes_that_matter(old, new) == []

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("seed", 2),
            ("tokens_per_update", 1),
            ("tokens_per_pass", 7),
            ("adam_betas", (0.9, 0.99)),
            ("adam_epsilon", 1e-8),
            ("gradient_clip_norm", 1.0),
            ("warmup_steps", 1),
            ("label_smoothing", 0.0),
            ("precision", "bf16"),
        ],
    )
    def test_what_decides_the_updates_may_not_change_after_training(self, key: str, value: Any) -> None:
        (change,) = changes_that_matter(TrainingConfig(), TrainingConfig(**{key: value}))
        assert change.startswith(f"{key} = ")

    def test_max_steps_may_not_change_under_the_cosine_schedule_that_it_shapes(self) -> None:
        old, new = (
            TrainingConfig(schedule="cosine", peak_learning_rate=0.1, max_steps=steps, keep_last=steps)
            for steps in (10, 20)
        )
        assert changes_that_matter(old, new) == ["max_steps = 20 (was 10)"]
        longer = new.model_copy(update={"max_minutes": 9.0, "max_epochs": 3})
        assert changes_that_matter(new, longer) == []

    def test_data_and_cleaning_have_no_harmless_keys(self) -> None:
        data = DataConfig(source_language="en", target_language="de", train=("builtin/train",))
        assert differences(data, data.model_copy(update={"vocab_size": 9})) == ["vocab_size = 9 (was 37000)"]


NUMBERS = [
    (section, key, field)
    for section, model in SECTIONS.items()
    for key, field in model.model_fields.items()
    if not {int, float}.isdisjoint((field.annotation, *get_args(field.annotation))) and key != "valid"
]


@pytest.mark.parametrize(("section", "key", "field"), NUMBERS, ids=lambda value: value if type(value) is str else "")
def test_every_number_has_an_upper_bound_and_is_finite(
    folder: Folder, section: str, key: str, field: FieldInfo
) -> None:
    text = DATA if section == "data" else f"{DATA}[{section}]\n"
    for value in (2**63, 2**70, "1e300", "inf", "nan"):
        assert f"{section}.{key} = " in folder.complaint(f"{text}{key} = {value}\n")


@pytest.mark.parametrize("betas", ["[1.0, 0.9]", "[0.9, 1.0]", "[-0.1, 0.9]", "[0.9, 1e300]"])
def test_decays_of_adam_outside_its_bounds_are_refused(folder: Folder, betas: str) -> None:
    assert "adam_betas" in folder.complaint(f"{DATA}[training]\nadam_betas = {betas}\n")


@pytest.mark.parametrize(
    "text", ['name = "a\\u0000b"', 'train = ["a\\u0000b"]', 'tokenizer = "a\\u0000b"', "vocab_size = " + "7" * 5000]
)
def test_a_nul_and_thousands_of_digits_are_refused(folder: Folder, text: str) -> None:
    key, value = text.split(" = ")
    head = DATA.replace('train = ["builtin/train"]\n', "") if key == "train" else DATA
    if key == "name":
        text, head = f'train = [{{ source = "a", target = "b", name = {value} }}]', DATA.split("train")[0]
    complaint = folder.complaint(f"{head}{text}\n")
    assert "NUL character" in complaint or "Exceeds the limit (4300 digits)" in complaint
    assert "NUL" in folder.complaint(DATA, "data.treebank='a\\u0000b'".replace("'", '"'))
    folder.complaint(DATA, "data.vocab_size=" + "7" * 5000)
    folder.complaint(DATA, "data.vocab_size=" + "[" * 100_000)


def test_a_pipe_in_place_of_the_recipe_of_a_run_is_replaced(tmp_path: Path) -> None:
    run, recipe = Run(tmp_path), load_recipe("quickstart")
    os.mkfifo(run.recipe_file)
    run.store_recipe(recipe)  # to write into the pipe would wait for a reader
    assert run.has_recipe(recipe)
