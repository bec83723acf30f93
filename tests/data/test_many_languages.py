"""A mixture of several directions is prepared with the languages, and the tag, of each corpus."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.recipe import load_recipe, stored_recipe
from nmtkit.config.schema import Recipe, TrainingConfig
from nmtkit.data.batching import plan_of
from nmtkit.data.prepare import prepare, stored_bleu_tokenizer
from nmtkit.data.shards import PairData, read_manifest, tempered
from nmtkit.errors import DataError, RecipeError
from nmtkit.lines import read_lines
from nmtkit.run import Run
from tests.conftest import message_of

WORDS = {
    "en": ["tree", "house", "old", "new", "green", "and"],
    "de": ["Baum", "Haus", "alt", "neu", "grün", "und"],
    "fr": ["arbre", "maison", "vieux", "neuf", "vert", "et"],
    "ru": ["дерево", "дом", "старый", "новый", "зелёный", "и"],
}
RECIPE = """
[data]
source_language = "en"
vocab_size = 80
subwords = "none"
train = [
  { source = "a.en", target = "a.de", target_language = "de" },
  { source = "b.en", target = "b.ru", target_language = "ru" },
]
"""


def write_texts(folder: Path, **texts: range) -> None:
    """Write the sentences of these numbers in all languages."""
    for name, numbers in texts.items():
        for code, words in WORDS.items():
            lines = [" ".join(words[number // 6**place % 6] for place in range(4)) for number in numbers]
            (folder / f"{name}.{code}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def recipe_of(folder: Path, text: str = RECIPE, *overrides: str) -> Recipe:
    (folder / "many.toml").write_text(text, encoding="utf-8")
    return load_recipe(str(folder / "many.toml"), overrides)


def prepared(folder: Path, text: str = RECIPE, *overrides: str) -> Path:
    write_texts(folder, a=range(60), b=range(90, 120), t=range(200, 210))
    prepare(recipe_of(folder, text, *overrides), folder / "run", workers=1)
    return folder / "run"


def pieces(run: Path, part: str, side: int) -> list[list[str]]:
    data, tokenizer = PairData(run / "data" / part), Run(run).tokenizer()
    return [tokenizer.pieces(data.ids(side, index).tolist(), ("source", "target")[side]) for index in range(len(data))]


class TestRecipe:
    def test_corpora_take_their_languages_from_the_entry_else_from_the_section(self) -> None:
        data = DataConfig.model_validate({
            "source_language": "en",
            "target_language": "de",
            "train": ["multi30k/train", {"corpus": "multi30k/train", "target_language": "fr"}],
            "valid": ["multi30k/val", {"corpus": "multi30k/val", "target_language": "fr"}],
            "test": ["multi30k/test2016", {"corpus": "multi30k/test2016", "target_language": "fr"}],
        })  # fmt: skip
        assert data.directions == (("en", "de"), ("en", "fr"))
        assert data.tests == {"test2016.en-de": ("en", "de"), "test2016.en-fr": ("en", "fr")}
        assert data.target_tags == {"de": "<2de>", "fr": "<2fr>"}
        assert data.of_test("test2016.en-fr").target_language == "fr"

    def test_one_direction_has_no_tag_and_plain_names(self) -> None:
        entry = {"source_language": "en", "target_language": "de"}
        values = {"train": [{"corpus": "multi30k/train", **entry}], "test": [{"corpus": "multi30k/test2016", **entry}]}
        data = DataConfig.model_validate(values)
        assert (data.source_language, data.target_language) == ("en", "de")
        assert data.target_tags == {}
        assert list(data.tests) == ["test2016"]

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (', target_language = "ru"', "", "b: its target_language is not stated; state it there, as other corpora"),
            ('source_language = "en"\n', "", "data.source_language is missing"),
            ('"ru"', '"Russian"', 'target_language: must be a language code, such as "en"'),
            ('"ru"', '["ru"]', "target_language: must be text, in quotes"),
            ('"ru"', '"en"', "b: source_language and target_language are both 'en'"),
            ('"ru" }', '"ru", source_prefix = "<2de>" }', "'<2de>' is a special entry of the vocabulary"),
            ('"none"', '"none"\nvalid = 1', "valid = 1: take at least one pair for each of the 2 directions"),
            ('"none"', '"none"\ntask = "parsing"\ntext = "trees"', 'several languages are for task = "translation"'),
            ('"none"', '"none"\nsampling_temperature = 0.5', "must be at least 1"),
            ('"none"', '"none"\ntest = [{ corpus = "x/y", target_language = "es" }]', "y: no corpus of train has"),
            (
                '"none"',
                '"none"\ntest = [{ corpus = "x/y", target_language = "de", name = "average" }]',
                'a test set cannot be called "average"',
            ),
        ],
    )
    def test_what_makes_no_sense_is_refused_in_one_line(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        assert message in message_of(lambda: recipe_of(tmp_path, RECIPE.replace(old, new)), RecipeError)

    def test_rules_of_moses_need_one_source_language(self, tmp_path: Path) -> None:
        text = RECIPE.replace('"b.en"', '"b.fr", source_language = "fr"').replace('"none"', '"bpe"')
        recipe_of(tmp_path, text)
        with pytest.raises(RecipeError, match=r"which of the source languages \(en, fr\) a text is in"):
            recipe_of(tmp_path, text, 'data.normalize=["moses-tokenize"]')

    def test_a_stored_recipe_is_read_again_with_all_languages(self, tmp_path: Path) -> None:
        run = prepared(tmp_path, RECIPE, "data.sampling_temperature=2")
        data = stored_recipe(run / "recipe.toml", "run").data
        assert data.directions == (("en", "de"), ("en", "ru"))
        assert data.sampling_temperature == 2


class TestPrepared:
    def test_each_corpus_and_validation_set_has_the_tag_of_its_target(self, tmp_path: Path) -> None:
        valid = 'valid = [{ source = "t.en", target = "t.ru", target_language = "ru" },\n'
        valid += '  { source = "t.en", target = "t.de", target_language = "de" }]\n'
        run = prepared(tmp_path, RECIPE + valid)
        sources = pieces(run, "train", 0)
        assert [row[0] for row in sources] == ["<2de>"] * 60 + ["<2ru>"] * 30
        assert not any("<2" in piece for row in sources for piece in row[1:])
        assert not any("<2" in piece for row in pieces(run, "train", 1) for piece in row)
        assert [row[0] for row in pieces(run, "valid", 0)] == ["<2ru>"] * 10 + ["<2de>"] * 10
        manifest = read_manifest(run / "data")
        assert manifest["valid_directions"] == [[["en", "ru"], 10], [["en", "de"], 10]]
        names = [corpus["name"] for corpus in manifest["corpora"]]
        assert names == ["a.en (en-de)", "b.en (en-ru)", "t.en (en-ru)", "t.en (en-de)"]

    def test_a_held_out_set_has_an_equal_share_of_every_direction(self, tmp_path: Path) -> None:
        run = prepared(tmp_path, RECIPE + "valid = 11\n")
        assert read_manifest(run / "data")["valid_directions"] == [[["en", "de"], 6], [["en", "ru"], 5]]
        sources, references = (read_lines(run / "data" / f"valid.{side}.txt") for side in ("source", "reference"))
        de, ru = (set(read_lines(tmp_path / name)) for name in ("a.de", "b.ru"))
        assert [line in de for line in references] == [True] * 6 + [False] * 5
        assert all(line in ru for line in references[6:])
        trained = {" ".join(row[1:]) for row in pieces(run, "train", 0)}
        assert not trained & set(sources)
        assert len(trained) == 79
        with pytest.raises(DataError, match=r"only 30 different pairs after cleaning for en-ru, whose share is 31"):
            prepared(tmp_path, RECIPE + "valid = 62\n")

    def test_a_held_out_test_set_is_one_of_every_direction_and_changes_no_validation_pair(self, tmp_path: Path) -> None:
        run = prepared(tmp_path, RECIPE + "valid = 11\n")
        before = (run / "data" / "valid.source.txt").read_bytes()
        run = prepared(tmp_path, RECIPE + "valid = 11\ntest = 15\n")
        assert (run / "data" / "valid.source.txt").read_bytes() == before
        names = ["test.en-de", "test.en-ru"]
        assert Run(run).test_sets() == sorted(Run(run).recipe().data.tests) == names
        texts = {name: Run(run).test_text(name).read() for name in names}
        assert [len(sources) for sources, _ in texts.values()] == [8, 7]
        assert set(texts["test.en-de"][1]) <= set(read_lines(tmp_path / "a.de"))
        assert set(texts["test.en-ru"][1]) <= set(read_lines(tmp_path / "b.ru"))
        sources = [line for found, _ in texts.values() for line in found]
        others = {*read_lines(run / "data" / "valid.source.txt"), *(" ".join(x[1:]) for x in pieces(run, "train", 0))}
        assert not others & set(sources)
        with pytest.raises(RecipeError, match="test = 1: take at least one pair for each of the 2 directions"):
            prepared(tmp_path, RECIPE + "test = 1\n")

    def test_a_held_out_pair_is_not_trained_on_in_the_opposite_direction(self, tmp_path: Path) -> None:
        corpora = '{ source = "a.en", target = "a.de", target_language = "de" },\n'
        corpora += '  { source = "a.de", target = "a.en", source_language = "de", target_language = "en" },\n'
        text = RECIPE.replace('{ source = "b.en", target = "b.ru", target_language = "ru" },', "").replace(
            '{ source = "a.en", target = "a.de", target_language = "de" },', corpora
        )
        run = prepared(tmp_path, text + "valid = 10\n")
        held_out = [line for side in ("source", "reference") for line in read_lines(run / "data" / f"valid.{side}.txt")]
        assert len(held_out) == 20
        trained = [" ".join(row[1:]) for row in pieces(run, "train", 0)]
        assert not {*held_out} & {*trained, *(" ".join(row) for row in pieces(run, "train", 1))}
        test = 'test = [{ source = "a.de", target = "a.en", source_language = "de", target_language = "en" }]\n'
        dropping = '[cleaning]\noverlap_test = "drop"\n'
        with pytest.raises(DataError, match=r"no training pair is left after cleaning \(overlap_test: 120\)"):
            prepared(tmp_path, text + test + dropping)

    def test_equal_sources_of_two_directions_are_no_copies(self, tmp_path: Path) -> None:
        text = RECIPE.replace('"b.en", target = "b.ru"', '"a.en", target = "a.ru"')
        run = prepared(tmp_path, text + '[cleaning]\nduplicate_source = "drop"\nduplicate_pair = "drop"\n')
        assert read_manifest(run / "data")["pairs"]["train"] == 120

    def test_writing_systems_are_those_of_each_corpus(self, tmp_path: Path) -> None:
        run = prepared(tmp_path, RECIPE.replace("b.ru", "b.fr") + '[cleaning]\nwrong_script = "drop"\n')
        assert read_manifest(run / "data")["cleaning"]["wrong_script"] == 30
        assert read_manifest(run / "data")["pairs"]["train"] == 60

    def test_the_rules_of_moses_are_those_of_each_corpus(self, tmp_path: Path) -> None:
        text = RECIPE.replace("a.de", "x.de").replace("b.ru", "x.fr").replace('"ru"', '"fr"').replace("b.en", "a.en")
        text = text.replace('subwords = "none"', 'subwords = "bpe"\nnormalize = ["moses-tokenize"]')
        for code in ("de", "fr"):
            (tmp_path / f"x.{code}").write_text("l'eau d'un arbre\n" * 60, encoding="utf-8")
        targets = pieces(prepared(tmp_path, text, "data.vocab_size=45"), "train", 1)
        assert "".join(targets[-1]) == "▁l'▁eau▁d'▁un▁arbre"
        assert "".join(targets[0]) != "".join(targets[-1])

    def test_bleu_tokenizers_are_those_of_each_target(self, tmp_path: Path) -> None:
        run = prepared(tmp_path, RECIPE.replace('"ru"', '"zh"'))
        data = Run(run).recipe().data
        chosen = {code: stored_bleu_tokenizer(run, data.in_direction(("en", code))) for code in ("de", "zh")}
        assert chosen == {"de": "13a", "zh": "zh"}

    def test_a_tokenizer_for_fine_tuning_has_to_know_the_languages_and_brings_its_tag(self, tmp_path: Path) -> None:
        run = prepared(tmp_path)
        text = RECIPE.replace('  { source = "a.en", target = "a.de", target_language = "de" },\n', "")
        one = tmp_path / "one"
        one.mkdir()
        alone = prepared(one, text, f"data.tokenizer={run}")
        assert {row[0] for row in pieces(alone, "train", 0)} == {"<2ru>"}
        with pytest.raises(RecipeError, match=r"data.target_language = 'fr', but the tokenizer of .* has 'de, ru'"):
            prepared(one, text.replace("ru", "fr"), f"data.tokenizer={run}")


class TestTemperature:
    @given(
        sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=5),
        weight=st.floats(0.1, 10),
        temperature=st.floats(1, 1000),
    )
    def test_shares_are_proportional_to_the_root_and_the_epoch_keeps_its_size(
        self, sizes: list[int], weight: float, temperature: float
    ) -> None:
        weights = [weight, *[1.0] * (len(sizes) - 1)]
        found = np.array(tempered(weights, sizes, temperature)) * sizes
        before = np.array(weights) * sizes
        assert found.sum() == pytest.approx(before.sum())
        if before.sum():
            roots = np.where(before > 0, before, 0) ** (1 / temperature) * (before > 0)
            assert found / found.sum() == pytest.approx(roots / roots.sum())
        assert tempered(weights, sizes, 1.0) == weights

    def test_an_epoch_samples_the_corpora_with_their_weights(self, tmp_path: Path) -> None:
        text = RECIPE.replace('"ru" }', '"ru", weight = 0.5 }')
        run = prepared(tmp_path, text, "data.sampling_temperature=2")
        data = PairData(run / "data" / "train")
        # Sizes 60 and 15: roots 2 to 1 of 75 pairs.
        assert [part.pairs * part.weight for part in data.parts] == pytest.approx([50, 25])
        training = TrainingConfig(tokens_per_update=200)
        plan = plan_of(data, training, 0)
        counts = Counter(int(pair) >= 60 for update in plan.updates for pair in update)
        assert counts == {False: 50, True: 25}
