"""Weights decide how often an epoch sees a corpus, and a tag is one token: in training, and where a user types it."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.config.corpus_entries import LocalPair, NamedCorpus
from nmtkit.config.data_schema import DataConfig
from nmtkit.config.recipe import differences, load_recipe
from nmtkit.config.schema import TrainingConfig
from nmtkit.data.batching import pairs_of_epoch, plan_of
from nmtkit.data.inspection import inspect_pair
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData, Part
from nmtkit.decoding.lengths import cut_source
from nmtkit.errors import DataError, RecipeError
from nmtkit.run import Run
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.normalization import Normalization
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, PAD, UNK
from tests.conftest import message_of
from tests.data.test_batching import Pairs, plan

parts_of_some_weight = st.lists(
    st.builds(Part, pairs=st.integers(0, 40), weight=st.floats(0.01, 5)), min_size=1, max_size=4
)


def uses(parts: list[Part], epochs: range, seed: int = 1) -> Counter[int]:
    """How often each pair is seen."""
    counts: Counter[int] = Counter()
    for epoch in epochs:
        counts.update(pairs_of_epoch(parts, seed, epoch).tolist())
    return counts


class TestWeights:
    @settings(deadline=None, max_examples=100)
    @given(parts=parts_of_some_weight, first=st.integers(0, 100), num_epochs=st.integers(1, 6), seed=st.integers(0, 9))
    def test_over_any_epochs_a_pair_is_seen_as_often_as_its_weight_says(
        self, parts: list[Part], first: int, num_epochs: int, seed: int
    ) -> None:
        counts = uses(parts, range(first, first + num_epochs), seed)
        begin = 0
        for part in parts:
            seen = [counts[pair] for pair in range(begin, begin + part.pairs)]
            assert abs(sum(seen) - num_epochs * part.weight * part.pairs) < 1.01
            if seen:
                assert max(seen) - min(seen) <= 1
            begin += part.pairs
        assert set(counts) <= set(range(begin))

    @settings(deadline=None, max_examples=50)
    @given(pairs=st.integers(1, 60), weight=st.integers(2, 5), epoch=st.integers(0, 50))
    def test_a_whole_weight_is_that_many_times_in_every_epoch(self, pairs: int, weight: int, epoch: int) -> None:
        parts = [Part(pairs, float(weight)), Part(3, 1.0)]
        expected = {**dict.fromkeys(range(pairs), weight), **dict.fromkeys(range(pairs, pairs + 3), 1)}
        assert uses(parts, range(epoch, epoch + 1)) == expected

    def test_halves_alternate_and_are_drawn_by_the_seed(self) -> None:
        parts = [Part(100, 0.5)]
        halves = [set(uses(parts, range(epoch, epoch + 1))) for epoch in range(4)]
        assert [len(half) for half in halves] == [50] * 4
        assert halves[0] | halves[1] == set(range(100))
        assert halves[0] == halves[2]
        assert 10 < len(halves[0] & set(range(50))) < 40
        assert halves[0] != set(uses(parts, range(1), seed=2))

    def test_halves_alternate_though_epochs_of_a_text_differ_by_a_sequence(self) -> None:
        halves = [set(uses([Part(pairs, 0.5, 100)], range(epoch, epoch + 1))) for epoch, pairs in ((0, 100), (1, 99))]
        assert not halves[0] & halves[1]
        assert halves[0] | halves[1] | {99} == set(range(100))

    def test_an_epoch_to_which_weights_leave_no_pair_has_all(self) -> None:
        lengths = np.full(1, 4)
        data = Pairs(lengths, lengths, [Part(1, 0.5, 2)])
        chosen = [len(pairs_of_epoch(data.parts, 1, epoch)) for epoch in range(20)]
        assert sorted(set(chosen)) == [0, 1]
        first = chosen.index(1)
        assert all(
            len(plan_of(data, TrainingConfig(tokens_per_update=4), epoch).updates) == 1 for epoch in range(first, 20)
        )

    def test_without_weights_an_epoch_has_the_pairs_in_their_order(self) -> None:
        assert pairs_of_epoch([Part(5, 1.0), Part(7, 1.0)], 1, 3).tolist() == list(range(12))

    @pytest.mark.parametrize(
        ("weight", "told"),
        [
            (0.1, "the weights of data.train leave less than one training pair"),
            (1.0, "tokens_per_update = 3; raise it"),
        ],
    )
    def test_why_an_epoch_has_no_update_is_told(self, weight: float, told: str) -> None:
        lengths = np.full(5, 4)
        with pytest.raises(DataError, match=told):
            plan(Pairs(lengths, lengths, [Part(5, weight)]), 3).check(3)
        plan(Pairs(lengths, lengths), 4).check(4)

    @settings(deadline=None, max_examples=50)
    @given(parts=parts_of_some_weight, epoch=st.integers(0, 9), budget=st.integers(1, 60))
    def test_a_plan_holds_each_pair_as_often_as_the_epoch_sees_it(
        self, parts: list[Part], epoch: int, budget: int
    ) -> None:
        count = sum(part.pairs for part in parts)
        target = np.random.default_rng(1).integers(1, 30, count)
        found = plan(Pairs(target, target, parts), budget, epoch=epoch)
        planned = Counter(int(pair) for update in found.updates for pair in update)
        seen = uses(parts, range(epoch, epoch + 1))
        fitting = {pair: number for pair, number in seen.items() if target[pair] <= budget}
        if not fitting and (epoch or seen):  # then all that fit
            fitting = {int(pair): 1 for pair in np.flatnonzero(target <= budget)}
        assert planned == fitting
        assert set(found.too_long.tolist()) == {pair for pair in seen if target[pair] > budget}
        assert all(target[update].sum() <= budget for update in found.updates)


RECIPE = """
[data]
source_language = "en"
target_language = "de"
vocab_size = 60
train = [
  { source = "real.en", target = "real.de" },
  { source = "back.en", target = "back.de", weight = 0.5, source_prefix = "<bt>" },
  { corpus = "opennmt/train", weight = 3 },
]
"""
LOCAL = RECIPE.replace('  { corpus = "opennmt/train", weight = 3 },\n', "")


def write_recipe(folder: Path, text: str = RECIPE) -> str:
    words = ["tree", "house", "old", "new", "green", "and"]
    for name, first in (("real", 0), ("back", 60)):
        lines = [" ".join(words[number // 6**place % 6] for place in range(4)) for number in range(first, first + 60)]
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{name}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    (folder / "mixed.toml").write_text(text)
    return str(folder / "mixed.toml")


class TestRecipe:
    def test_weight_and_tag_stand_beside_each_corpus(self, tmp_path: Path) -> None:
        recipe = load_recipe(write_recipe(tmp_path))
        real, back, public = recipe.data.train
        assert isinstance(real, LocalPair)
        assert (real.weight, real.source_prefix) == (1, "")
        assert isinstance(back, LocalPair)
        assert (back.weight, back.source_prefix) == (0.5, "<bt>")
        assert public == NamedCorpus(corpus="opennmt/train", weight=3)
        assert recipe.data.source_prefixes == ("<bt>",)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("weight = 0.5", "weight = 0", "weight: must be more than 0"),
            ("weight = 3", "wieght = 3", "wieght: unknown key; did you mean weight?"),
            ("weight = 3", "weight = true", "must be a number"),
            ('"<bt>"', '"<b t>"', "source_prefix: must be one word without blanks"),
            ('"<bt>"', '"</s>"', "is a special entry of the vocabulary"),
            ('"<bt>"', '"<BT>"', "normalize = lowercase would change"),
            ("vocab_size = 60", 'text = "trees"', 'with text = "trees"'),
        ],
    )
    def test_what_makes_no_sense_is_refused_with_its_line(
        self, tmp_path: Path, old: str, new: str, message: str
    ) -> None:
        normalize = 'vocab_size = 60\nnormalize = ["lowercase"]' if "BT" in new else "vocab_size = 60"
        text = RECIPE.replace(old, new).replace("vocab_size = 60", normalize)
        assert message in message_of(lambda: load_recipe(write_recipe(tmp_path, text)), RecipeError)

    def test_weights_that_differ_a_little_are_told_apart(self, tmp_path: Path) -> None:
        one, other = (
            load_recipe(write_recipe(tmp_path, RECIPE.replace("0.5", weight))).data
            for weight in ("0.3333331", "0.3333334")
        )
        [change] = differences(one, other)
        assert "'back, weight 0.3333334, tag <bt>'" in change
        assert "(was" in change

    def test_validation_text_takes_no_weight(self, tmp_path: Path) -> None:
        valid = 'valid = [{ source = "real.en", target = "real.de", weight = 2 }]'
        with pytest.raises(RecipeError, match=r"real: weight and source_prefix are for corpora of data\.train only"):
            load_recipe(write_recipe(tmp_path, RECIPE + valid))


@pytest.fixture(scope="module", params=["bpe", "unigram", "none"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared mixture of genuine and back-translated text."""
    folder = tmp_path_factory.mktemp("mixture")
    size = 34 if request.param == "unigram" else 60
    recipe = load_recipe(write_recipe(folder, LOCAL), [f"data.subwords={request.param}", f"data.vocab_size={size}"])
    prepare(recipe, folder / "run", workers=1)
    return folder / "run"


class TestPreparedMixture:
    def test_a_tag_is_one_token_before_the_source_of_its_corpus_only(self, run: Path) -> None:
        data, tokenizer = PairData(run / "data" / "train"), Run(run).tokenizer()
        sources = [tokenizer.pieces(data.ids(0, index).tolist(), "source") for index in range(len(data))]
        assert len(data) == 120
        assert [pieces[0] == "<bt>" for pieces in sources] == [False] * 60 + [True] * 60
        assert all("<bt>" not in pieces[1:] for pieces in sources)
        targets = [tokenizer.pieces(data.ids(1, index).tolist(), "target") for index in range(len(data))]
        assert not any("<bt>" in pieces for pieces in targets)
        assert data.source_lengths.tolist() == [len(pieces) + 1 for pieces in sources]

    def test_a_tag_that_a_user_types_is_that_of_training(self, run: Path) -> None:
        data, tokenizer = PairData(run / "data" / "train"), Run(run).tokenizer()
        plain = (run.parent / "back.en").read_text().split("\n")[0]
        [typed] = tokenizer.encode([tokenizer.normalize(f"  <bt>  {plain} ")], "source")
        assert typed == data.ids(0, 60).tolist()
        [untagged] = tokenizer.encode([plain], "source")
        assert typed[1:] == untagged

    def test_a_tag_before_a_text_that_becomes_blank_is_an_empty_line(self, run: Path) -> None:
        tokenizer = Run(run).tokenizer()
        tokenizer.normalizations["source"] = Normalization(("invisible", "blanks"), "en")
        assert tokenizer.normalize("<bt> \u200b") == ""
        assert tokenizer.normalize("<bt> a\u200b") == "<bt> a"

    def test_a_tag_anywhere_else_is_text(self, run: Path) -> None:
        tokenizer = Run(run).tokenizer()
        lines = ["tree <bt> house", "<bt>tree", "<bt> <bt> tree"]
        pieces = [tokenizer.pieces(ids, "source") for ids in tokenizer.encode(lines, "source")]
        assert [row.count("<bt>") for row in pieces] == [0, 0, 1]
        assert "<bt>" not in tokenizer.pieces(tokenizer.encode(["<bt> tree"], "target")[0], "target")

    def test_a_tag_needs_a_blank_and_text_behind_it(self, run: Path) -> None:
        tokenizer = Run(run).tokenizer()
        tab, *others = (
            tokenizer.encode([tokenizer.normalize(line)], "source")[0]
            for line in ("<bt>\ttree", "<bt>", "<bt> ", "<bt> \t")
        )
        assert tab == tokenizer.encode(["<bt> tree"], "source")[0]
        assert others[0] and others == others[:1] * 3 and "<bt>" not in tokenizer.pieces(others[0], "source")

    @pytest.mark.parametrize("subwords", ["bpe", "unigram", "wordpiece"])
    def test_a_tag_changes_nothing_of_what_is_learned(self, subwords: str) -> None:
        pairs = [("the news of the old town then", "die neuen Dinge der alten Stadt dann")] * 9

        def learn(size: int, **entry: str) -> Tokenizer:
            values = {"source_language": "en", "target_language": "de", "subwords": subwords, "vocab_size": size}
            corpus = {"source": "a.en", "target": "a.de", **entry}
            return learn_tokenizer(DataConfig.model_validate({**values, "train": [corpus]}), lambda: pairs)

        plain, tagged = learn(26), learn(27, source_prefix="the")
        assert tagged.entries("source")[5:] == plain.entries("source")[4:]
        assert len(set(tagged.entries("source"))) == 27
        [ids], [with_tag] = (one.encode(["the old town"], "source") for one in (plain, tagged))
        assert with_tag[0] == 4
        assert tagged.pieces(with_tag, "source")[0] == "the"
        assert tagged.decode(with_tag) == "old town"
        assert plain.decode(ids) == "the old town"

    @pytest.mark.parametrize("shared", [True, False])
    def test_a_tag_is_forbidden_in_translations_where_they_could_hold_it(self, shared: bool) -> None:
        values = {"source_language": "en", "target_language": "de", "subwords": "none", "share_vocab": shared}
        corpus = {"source": "a.en", "target": "a.de", "source_prefix": "<bt>"}
        data = DataConfig.model_validate({**values, "train": [corpus]})
        tokenizer = learn_tokenizer(data, lambda: [("the house", "das Haus")])
        assert [tokenizer.pieces([index], "source") for index in tokenizer.tag_ids] == [["<bt>"]]
        assert set(tokenizer.suppressed_ids) == {PAD, BOS, UNK, *(tokenizer.tag_ids if shared else ())}

    def test_tags_have_to_leave_room_for_segments(self) -> None:
        values = {"source_language": "en", "target_language": "de", "subwords": "none", "vocab_size": 6}
        corpora = [{"source": "a.en", "target": "a.de", "source_prefix": tag} for tag in ("<a>", "<b>")]
        data = DataConfig.model_validate({**values, "train": corpora})
        with pytest.raises(RecipeError, match="vocab_size = 6: special symbols and tags need 6 entries"):
            learn_tokenizer(data, lambda: [("the house", "das Haus")])

    def test_each_part_of_a_long_source_has_its_tag(self, run: Path) -> None:
        tokenizer = Run(run).tokenizer()
        [ids] = tokenizer.encode(["<bt> " + "tree house " * 9], "source")
        parts = cut_source(tokenizer, ids, 7)
        assert len(parts) > 2
        assert all(part[0] == ids[0] and len(part) <= 7 for part in parts)
        assert [index for part in parts for index in part[1:]] == ids[1:]

    def test_no_tagged_pair_is_held_out_for_validation(self, run: Path) -> None:
        recipe = load_recipe(
            write_recipe(run.parent, LOCAL), ["data.valid=20", "data.subwords=none", "data.vocab_size=60"]
        )
        prepare(recipe, run.parent / "held-out", workers=1)
        back = set((run.parent / "back.en").read_text().split("\n"))
        held_out = (run.parent / "held-out" / "data" / "valid.source.txt").read_text().split("\n")[:-1]
        assert len(held_out) == 20
        assert not back & set(held_out)
        with pytest.raises(DataError, match="only 60 different pairs outside of tagged and generated corpora"):
            prepare(
                recipe.model_copy(update={"data": recipe.data.model_copy(update={"valid": 61})}), run.parent / "few"
            )

    def test_the_shards_know_the_weights_and_the_plan_keeps_to_them(self, run: Path) -> None:
        data = PairData(run / "data" / "train")
        assert data.parts == [Part(60, 1.0), Part(60, 0.5)]
        assert data.pairs_per_epoch == 90
        plans = [plan_of(data, TrainingConfig(tokens_per_update=100), epoch) for epoch in range(2)]
        seen = [Counter(int(pair) for update in plan.updates for pair in update) for plan in plans]
        assert [sum(counts.values()) for counts in seen] == [90, 90]
        assert seen[0] + seen[1] == Counter({**dict.fromkeys(range(60), 2), **dict.fromkeys(range(60, 120), 1)})

    def test_a_pair_is_inspected_with_its_tag(self, run: Path) -> None:
        pieces = inspect_pair(run, 61).source.pieces
        assert pieces is not None
        assert pieces[0] == "<bt>"

    def test_another_recipe_takes_the_tokenizer_only_with_tags_that_it_has(self, run: Path, tmp_path: Path) -> None:
        kind = Run(run).tokenizer().settings["subwords"]
        overrides = [f"data.tokenizer={run}", f"data.subwords={kind}"]
        prepare(load_recipe(write_recipe(tmp_path, LOCAL), overrides), tmp_path / "run", workers=1)
        assert (
            PairData(tmp_path / "run" / "data" / "train").ids(0, 60)[0]
            == Run(run).tokenizer().encode(["<bt> a"], "source")[0][0]
        )
        recipe = load_recipe(write_recipe(tmp_path, LOCAL.replace("<bt>", "<other>")), overrides)
        with pytest.raises(RecipeError, match=r"source_prefix = '<other>': .* has no such tag; it has <bt>"):
            prepare(recipe, tmp_path / "other", workers=1)
