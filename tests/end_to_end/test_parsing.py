"""Constituency parsing from files of trees to EVALB's scores, through `run` and the commands."""

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.corpora.trees import read_trees, split_words, words
from nmtkit.data.changes import changed_text
from nmtkit.data.inspection import inspect_pair
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.decoding.file_translation import TranslationJob, Window
from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.request import Batching, Sampling, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, RecipeError
from nmtkit.evaluation.compare import compare_runs
from nmtkit.evaluation.evalb import evaluate
from nmtkit.json_toml import read_json
from nmtkit.lines import read_lines
from nmtkit.model_folder import load_model
from nmtkit.reports.attention_maps import attention_maps
from nmtkit.reports.run_facts import read_run, translated
from nmtkit.reports.run_page import report_page
from nmtkit.run import Run, find_model
from nmtkit.text.terms import Glossary
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.averaging import search
from tests.conftest import TINY_MODEL, finished_run, run_command

NOUNS, VERBS = ["dog", "cat", "man", "house"], ["sees", "likes", "has"]


def noun_phrase(generator: random.Random) -> str:
    adjective = generator.choice(["", "(JJ old) "])
    return f"(NP-X (DT the) {adjective}(NN {generator.choice(NOUNS)}))"


def made_up_tree(generator: random.Random) -> str:
    trace = generator.choice(["", " (NP (-NONE- *))"])
    verb_phrase = f"(VP (VBZ {generator.choice(VERBS)}){trace}\n   {noun_phrase(generator)})"
    return f"( (S {noun_phrase(generator)} {verb_phrase} (. .)) )\n"


@dataclass
class Project:
    """The recipe, and the run after `run`."""

    recipe: Recipe
    run: Path

    def sentences(self) -> list[str]:
        return read_lines(self.run / "data" / "test" / "test.source.txt")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("parsing")
    generator = random.Random(1)
    for name, count in (("train", 150), ("valid", 10), ("test", 12)):
        text = "# made up\n" + "".join(made_up_tree(generator) for _ in range(count))
        (folder / f"{name}.mrg").write_text(text)
    names = ("train", "valid", "test")
    entries = "".join(f'{name} = [{{ source = "{name}.mrg", target = "{name}.mrg" }}]\n' for name in names)
    (folder / "mine.toml").write_text(
        f'[data]\nsource_language = "en"\ntarget_language = "ptb"\ntext = "trees"\nvocab_size = 70\n{entries}'
        f"{TINY_MODEL}[training]\nprecision = 'float32'\n"
        "tokens_per_update = 500\nwarmup_steps = 4\nmax_steps = 8\nvalidate_bleu = false\n"
        "validate_every_steps = 8\ncheckpoint_every_steps = 4\n"
        "[decoding]\nbeam = 2\nalpha = 0.3\nmax_length_offset = 30\naverage_last = 2\n"
    )
    return Project(load_recipe(str(folder / "mine.toml")), finished_run(folder / "mine.toml", folder / "run"))


def test_a_model_is_trained_on_sequences_and_tested_on_stripped_trees(project: Project) -> None:
    tokenizer = Tokenizer.load(project.run / "data" / "tokenizer")
    for part in ("train", "valid"):
        data = PairData(project.run / "data" / part)
        said = [tokenizer.decode(data.ids(1, pair).tolist()) for pair in range(3)]
        assert all(line.startswith("(S (NP XX XX ") and line.endswith(")NP )VP XX )S") for line in said)
        assert len(said[0].split()) == data.target_lengths[0] - 1, "each bracket is a piece"
    gold = read_lines(project.run / "data" / "test" / "test.reference.txt")
    assert all(line.startswith("(S (NP (DT the) ") and "NONE" not in line and "-X" not in line for line in gold)
    trees = [next(read_trees([line], "gold")) for line in gold]
    assert [" ".join(words(tree)) for tree in trees] == project.sentences()
    inspected = inspect_pair(project.run, 1)
    assert inspected.source.text is not None
    assert inspected.target.text is not None
    assert inspected.target.text.startswith("(S (NP (DT the) ")


def test_cleaning_leaves_each_tree_its_words(project: Project, tmp_path: Path) -> None:
    words = ["\ufeff", "a\ufeffb", "&#32;", "<b>", "a<br>b", "\u200b", "\x01", "a\u2028b"]
    trees = "".join(f"(S (NP (DT the) (NN {word})) (VP (V runs)))\n" for word in words)
    (tmp_path / "odd.mrg").write_text(trees * 10, encoding="utf-8")
    entry = f'[{{source="{tmp_path / "odd.mrg"}",target="{tmp_path / "odd.mrg"}"}}]'
    overrides = [f"data.train={entry}", f"data.valid={entry}", "data.subwords=characters", "data.vocab_size=90"]
    recipe = load_recipe(str(project.run.parent / "mine.toml"), overrides)
    prepare(recipe, tmp_path / "run")
    train = PairData(tmp_path / "run" / "data" / "train")
    sources = [Run(tmp_path / "run").tokenizer().decode(train.ids(0, pair).tolist(), "source") for pair in range(8)]
    assert sources == [f"the {word} runs" for word in words]
    with pytest.raises(RecipeError, match='markup = "fix" would change the words of trees; set it to "drop"'):
        load_recipe(str(project.run.parent / "mine.toml"), ["cleaning.markup=fix"])


def test_every_parse_is_a_tree_over_its_words_and_the_run_has_evalbs_scores(project: Project) -> None:
    parses = read_lines(project.run / "translations" / "test.txt")
    trees = [next(read_trees([line], "parse")) for line in parses]
    assert [" ".join(words(tree)) for tree in trees] == project.sentences()
    scores = read_json(project.run / "scores.json")["test"]
    assert {"evalb-precision", "evalb-recall", "evalb-f1", "evalb-f1-right-branching"} <= set(scores)
    assert "0 error and 0 skipped sentences" in scores["evalb-f1"]["details"]
    assert 0 <= scores["evalb-f1"]["score"] <= 100
    assert 0 < scores["evalb-f1-right-branching"]["score"] < 100


def test_the_words_of_a_given_tree_are_read_as_those_of_a_sentence_to_parse(project: Project) -> None:
    decoder = ForcedDecoder.load([project.run], torch.device("cpu"))
    tree = "(TOP (NP (XX -LRB-) (XX dog)))"
    escaped, plain = decoder.score([("-LRB- dog", tree), ("( dog", tree)])
    assert plain.log_prob == pytest.approx(escaped.log_prob, rel=1e-5)


def test_files_of_trees_are_scored_by_the_command(project: Project, tmp_path: Path) -> None:
    gold, parses = project.run / "data" / "test" / "test.reference.txt", project.run / "translations" / "test.txt"
    for hypothesis in (gold, parses):
        files = ("--hypothesis", hypothesis, "--reference", gold, "--json", tmp_path / "scores.json")
        assert run_command("score", "--metric", "evalb", *files).code == 0
        found = json.loads((tmp_path / "scores.json").read_text())[str(hypothesis)]
        if hypothesis == gold:
            assert [found[f"evalb-{name}"]["score"] for name in ("precision", "recall", "f1")] == [100, 100, 100]
        else:
            assert found == read_json(project.run / "scores.json")["test"]


def test_hostile_words_n_best_lists_and_status_have_trees_too(project: Project) -> None:
    translator = Translator.load(project.run)
    lines = ["( the ) dog(s", "", "  ", "the \u2028 dog\u00a0x", "the dog " * 20, ")NP (S"]
    found = translator.translations(lines, TranslationRequest(n_best=2, max_source_tokens=12), batching=Batching(2))
    for line, of_line in zip(lines, found, strict=True):
        assert len(of_line) == (2 if line.strip() else 1)
        for one in of_line:
            trees = list(read_trees([one.text], "parse"))
            assert [word for tree in trees for word in words(tree)] == split_words(line)
            assert one.is_mended is not None
    work = TranslationJob(translator, TranslationRequest(), Batching(), "text")
    status = [json.loads(line)["status"] for line in work.translate(Window(0, 1, lines), (), lambda share: None).status]
    assert "mended" in status[4]
    assert status[1] == ["empty"]
    [[whole]] = translator.translations(["The dog sees. The cat sees"], TranslationRequest(max_source_tokens=50))
    assert whole.parts == 1
    with pytest.raises(DataError, match="are for translation; leave them out"):
        translator.translations(lines, TranslationRequest(glossary=Glossary([("dog", "cat")])))


def test_asked_for_whole_trees_a_search_says_nothing_that_has_to_be_mended(project: Project) -> None:
    translator = Translator.load(project.run, "cpu")
    lines = [*project.sentences()[:3], "( x )", "the dog\u00a0sees  the cat", "the old cat " * 12]
    asked = TranslationRequest(n_best=2, max_source_tokens=20)
    before = translator.translations(lines, asked)
    assert all(one.is_mended for of_line in before for one in of_line), "after eight updates it says no tree by itself"
    translator.decoding = translator.decoding.model_copy(update={"whole_trees": True})
    found = translator.translations(lines, asked)
    for line, of_line in zip(lines[:5], found, strict=False):
        for one in of_line:
            assert one.hit_limit or not one.is_mended
            assert [word for tree in read_trees([one.text], "parse") for word in words(tree)] == split_words(line)
    assert found[5][0].parts > 1
    assert not found[0][0].is_mended
    drawn = translator.translations(lines[:3], TranslationRequest(n_best=4, sampling=Sampling()))
    assert all(one.hit_limit or not one.is_mended for of_line in drawn for one in of_line)


def test_the_likelihood_of_a_tree_is_that_of_its_sequence(project: Project) -> None:
    decoder = ForcedDecoder.load(project.run)
    sentence = "the dog sees the cat ."
    tree = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT the) (NN cat))) (. .))"
    said = "(S (NP XX XX )NP (VP XX (NP XX XX )NP )VP XX )S"
    ids = [decoder.tokenizer.encode([text], side)[0] for text, side in ((sentence, "source"), (said, "target"))]  # type: ignore[arg-type]
    assert decoder.score([(sentence, tree)])[0].log_prob == decoder.score_ids([ids[0]], [ids[1]])[0].log_prob
    with pytest.raises(DataError, match="'no tree', line 1: 'no' outside of a tree"):
        decoder.score([(sentence, "no tree")])
    with pytest.raises(DataError, match=r"^the hypotheses, line 2002: 'no' outside of a tree"):
        decoder.score([(sentence, tree), (sentence, "no tree")], first_line=2001)


def test_attention_is_between_the_words_and_the_sequence_that_the_model_knows(project: Project) -> None:
    loaded = load_model(find_model(project.run))
    *_, cross = attention_maps(loaded, "the dog .", "(TOP (S (NP (DT the) (NN dog)) (. .)))")
    assert cross.rows.words[:-1] == ("(S", "(NP", "XX", "XX", ")NP", "XX", ")S")
    assert cross.columns.words[:-1] == ("the", "dog", ".")
    plain, escaped = (attention_maps(loaded, line, "(NP (XX a) (XX b))")[-1] for line in ("( a", "-LRB- a"))
    assert (plain.weights == escaped.weights).all()
    with pytest.raises(DataError, match=r"^the target, line 1: 'the' outside of a tree"):
        attention_maps(loaded, "the dog", "the dog")


def test_the_report_of_a_parser_has_evalbs_f1_first_and_sorts_sentences_by_it(project: Project) -> None:
    content = report_page([read_run(project.run)])
    assert "evalb-f1, test" in content.partition("<h2>Scores</h2>")[0]
    assert "on section 23 of the WSJ, the paper&#x27;s Table 4" in content
    assert "Sentences are ranked by EVALB's F1" in content
    assert '")S"' in content.partition("<h2>Attention</h2>")[2], "a word of the sequence, which the tree has not"
    found = translated(read_run(project.run), "test")
    assert not isinstance(found, str)
    for sentence in found:
        assert sentence.metric == "evalb-f1"
        assert sentence.quality == evaluate([sentence.reference], [sentence.hypothesis]).all.f1
    assert [sentence.quality for sentence in found] == sorted(sentence.quality for sentence in found)


@pytest.fixture
def perfect(project: Project, tmp_path: Path) -> Path:
    """A copy of the run, with tagged trees, which says what gold has."""
    copy = Path(shutil.copytree(project.run, tmp_path / "perfect"))
    shutil.copy(copy / "data" / "test" / "test.reference.txt", copy / "translations" / "test.txt")
    recipe = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(recipe.replace('text = "trees"', 'text = "tagged-trees"'))
    return copy


def test_parsers_are_compared_by_their_brackets(project: Project, perfect: Path) -> None:
    found = compare_runs([project.run, perfect], trials=100)
    of_run = read_json(project.run / "scores.json")["test"]
    assert list(found.scores["test"]) == ["evalb-f1", "evalb-precision", "evalb-recall"]
    for metric, results in found.scores["test"].items():
        assert [result.score for result in results.values()] == [of_run[metric]["score"], 100]
        assert results["perfect"].is_significant == (of_run[metric]["score"] < 100)
    change = found.changes["test"]["perfect"][0]
    assert (change.metric, change.after) == ("evalb-f1", 100)
    shown = run_command("compare", project.run, perfect, "--metric", "evalb", "--trials", 20)
    assert shown.code == 0
    assert "evalb-f1" in shown.out


def test_averages_of_a_parser_are_searched_by_nll(perfect: Path) -> None:
    workers = Workers.start("cpu", "float32", 1)
    with pytest.raises(DataError, match='BLEU does not fit task = "parsing"; search with --metric nll'):
        list(search(perfect, "bleu", workers))
    *_, found = search(perfect, None, workers)
    assert {one.metric for one in found.tried} == {"nll"}


def test_with_tagged_trees_a_model_is_trained_on_parts_of_speech(project: Project, tmp_path: Path) -> None:
    prepare(recipe_with(project, text="tagged-trees"), tmp_path / "run")
    tokenizer = Tokenizer.load(tmp_path / "run" / "data" / "tokenizer")
    assert tokenizer.settings["text"] == "tagged-trees"
    for part in ("train", "valid"):
        said = tokenizer.decode(PairData(tmp_path / "run" / "data" / part).ids(1, 0).tolist())
        assert said.startswith("(S (NP DT ")
        assert said.endswith(" NN )NP )VP . )S")


def recipe_with(project: Project, **data: Any) -> Recipe:
    values = project.recipe.model_dump(mode="json")
    return Recipe.model_validate({**values, "data": {**values["data"], **data}})


def test_words_and_trees_of_different_files_are_refused(project: Project, tmp_path: Path) -> None:
    trees = Path(str(project.recipe.data.train[0].source))  # type: ignore[union-attr]
    (tmp_path / "words.txt").write_text("the dog\n")
    wrong = recipe_with(project, train=[{"source": str(tmp_path / "words.txt"), "target": str(trees)}])
    with pytest.raises(DataError, match=r"words\.txt, .*words and trees are read from one file"):
        prepare(wrong, tmp_path / "run")
    columns = {"source": str(trees), "target": str(trees), "source_column": 2, "target_column": 3}
    with pytest.raises(DataError, match="a file of trees has no columns; remove source_column and target_column"):
        prepare(recipe_with(project, train=[columns]), tmp_path / "run")


def test_a_recipe_of_trees_says_what_it_does_not_have(project: Project, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    text = (project.run.parent / "mine.toml").read_text()
    recipe.write_text(text.replace("validate_bleu = false\n", ""))
    with pytest.raises(RecipeError, match=r"validate_bleu: .* trees; set it to false"):
        load_recipe(str(recipe))
    recipe.write_text(text)
    with pytest.raises(RecipeError, match="needs validation corpora"):
        load_recipe(str(recipe), ["data.valid=5"])
    with pytest.raises(RecipeError, match="whole_trees needs"):
        load_recipe("quickstart", ["decoding.whole_trees=true"])
    with pytest.raises(RecipeError, match=r'whole_trees needs subwords .* not "characters"'):
        load_recipe(str(recipe), ["decoding.whole_trees=true", "data.subwords=characters"])
    with pytest.raises(RecipeError, match="would change the labels of trees"):
        load_recipe(str(recipe), ['data.normalize=["lowercase"]'])


def test_sections_of_a_treebank_are_trained_on_wherever_it_lies_and_a_change_in_them_is_seen(
    project: Project, tmp_path: Path
) -> None:
    for section, part in (("02", "train"), ("22", "valid"), ("23", "test")):
        for copy in ("a", "b"):
            (tmp_path / copy / "wsj" / section).mkdir(parents=True)
            text = (project.run.parent / f"{part}.mrg").read_text()
            (tmp_path / copy / "wsj" / section / f"wsj_{section}00.mrg").write_text(text)
    (tmp_path / "silver").write_text(text)
    keys: dict[str, Any] = {"train": ["wsj/02", "wsj/silver"], "valid": ["wsj/22"], "test": ["wsj/23"]}
    keys["silver_trees"] = [str(tmp_path / "silver")]
    first = prepare(recipe_with(project, **keys, treebank=str(tmp_path / "a")), tmp_path / "run")
    assert first.manifest["pairs"] == {"train": 162, "valid": 10, "test/23": 12}
    recipe = recipe_with(project, **keys, treebank=str(tmp_path / "b"))
    assert not prepare(recipe, tmp_path / "run").is_new
    assert changed_text(recipe.data, first.manifest) == []
    (tmp_path / "b" / "wsj" / "02" / "wsj_0200.mrg").write_text("(S (NN a))")
    [change] = changed_text(recipe.data, first.manifest)
    assert "data.train: wsj/02 holds another text" in change
