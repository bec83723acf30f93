"""Generated corpora: what a model makes of a text, when it is made anew, and what is refused."""

import logging
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.config.corpus_entries import Noise
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.data.changes import changed_text
from nmtkit.data.generated import FILLER, Generation, with_noise
from nmtkit.data.inspection import inspect_pair
from nmtkit.data.prepare import Preparation, check, prepare
from nmtkit.data.shards import PairData, Part, read_report
from nmtkit.decoding.file_translation import TranslationJob, Window
from nmtkit.decoding.generation import generate_corpora
from nmtkit.decoding.parts import Written
from nmtkit.decoding.request import Sampling, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.experiments.sweep import prepare_sweep
from nmtkit.json_toml import read_json
from nmtkit.lines import read_lines, write_lines
from nmtkit.model_folder import save_model
from nmtkit.run import Run
from nmtkit.text.new_tokenizers import label_tokenizer, learn_tokenizer
from tests.conftest import contents, message_of, run_command
from tests.decoding.models import TEXT, TINY, data_config, model_for
from tests.export.tiny_models import let_end
from tests.forked import Forked, run_forked
from tests.killing import kill_at_window

GERMAN = [german for _, german in TEXT] + [f"{german} {other}" for _, german in TEXT for _, other in TEXT[:2]]
BEST = TranslationRequest()
BACK = 'generate = "mono.de", model = "de-en", as = "source"'


def save_random_model(
    folder: Path, seed: int = 1, *, is_reversed: bool = True, end_logit: float = 6, **settings: Any
) -> None:
    """A model from German to English, or the reverse: some of its translations are empty, some never end."""
    languages = {"source_language": "de", "target_language": "en"} if is_reversed else {}
    pairs = [(target, source) for source, target in TEXT] if is_reversed else TEXT
    tokenizer = learn_tokenizer(data_config(**languages, **settings), lambda: pairs)
    model = model_for(tokenizer, torch.float32, seed)
    let_end(model, end_logit)
    decoding = DecodingConfig(beam=2, max_length_offset=2)
    save_model(folder, model.state_dict(), model.config, tokenizer, decoding, {"step": 1})


def usable(translator: Translator, lines: list[str], request: TranslationRequest = BEST) -> list[tuple[str, str]]:
    """The lines with each of their translations that have text and were not ended by the maximum length."""
    of_lines = zip(lines, translator.translations(lines, request), strict=True)
    return [(line, one.text) for line, ranked in of_lines for one in ranked if one.text and not one.hit_limit]


class Project:
    """A folder with parallel text, German text and models, whose recipe can have generated corpora."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        folder.mkdir(parents=True, exist_ok=True)
        self.write("train.en", [source for source, _ in TEXT] * 3)
        self.write("train.de", [target for _, target in TEXT] * 3)
        self.write("mono.de", GERMAN)
        save_random_model(folder / "de-en")

    def write(self, name: str, lines: list[str]) -> None:
        write_lines(self.folder / name, lines)

    def recipe(self, *entries: str, parallel: bool = True, settings: tuple[str, ...] = ()) -> Recipe:
        """A recipe with generated corpora, given as the content of their tables."""
        given = ['{ source = "train.en", target = "train.de" }'] if parallel else []
        train = ", ".join([*given, *(f"{{ {entry} }}" for entry in entries)])
        model = "\n".join(f"{key} = {value}" for key, value in TINY.items())
        text = f'[data]\nsource_language = "en"\ntarget_language = "de"\nvocab_size = 80\ntrain = [{train}]\n'
        path = self.folder / "mine.toml"
        path.write_text(f"{text}[model]\n{model}\n", encoding="utf-8")
        return load_recipe(str(path), settings)

    def prepare(self, *entries: str, parallel: bool = True, settings: tuple[str, ...] = ()) -> Preparation:
        recipe = self.recipe(*entries, parallel=parallel, settings=settings)
        return prepare(
            recipe,
            self.run,
            workers=1,
            generate=lambda pending: generate_corpora(pending, recipe, device="cpu", threads=1),
        )

    def pairs(self, corpus: int = 1) -> list[tuple[str, str]]:
        """The pairs of a corpus in the training data, as their ids decode."""
        data, tokenizer = PairData(self.run / "data" / "train"), Run(self.run).tokenizer()
        begin = sum(part.pairs for part in data.parts[:corpus])
        return [
            (tokenizer.decode(data.ids(0, index).tolist(), "source"), tokenizer.decode(data.ids(1, index).tolist()))
            for index in range(begin, begin + data.parts[corpus].pairs)
        ]

    def expected(self, request: TranslationRequest = BEST, **decoding: object) -> list[tuple[str, str]]:
        """The pairs of all usable translations of mono.de."""
        translator = Translator.load(self.folder / "de-en", decoding=decoding)
        found = usable(translator, read_lines(self.folder / "mono.de"), request)
        return [(" ".join(text.split()), line) for line, text in found]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first lines of the windows that are translated."""
    windows: list[int] = []
    translate = TranslationJob.translate

    def noted(job: TranslationJob, window: Window, *arguments: Any) -> Written:
        windows.append(window.first_line)
        return translate(job, window, *arguments)

    monkeypatch.setattr(TranslationJob, "translate", noted)
    return windows


class TestBackTranslation:
    def test_the_given_text_is_the_target_and_its_translation_the_source(self, project: Project) -> None:
        project.prepare(BACK)
        assert project.pairs() == project.expected()
        assert len({source for source, _ in project.pairs()}) > 3
        assert PairData(project.run / "data" / "train").parts[0].pairs == 12

    def test_tag_and_weight_are_those_of_other_corpora(self, project: Project) -> None:
        project.prepare(f'{BACK}, prefix = "<bt>", weight = 0.5')
        data, tokenizer = PairData(project.run / "data" / "train"), Run(project.run).tokenizer()
        expected = project.expected()
        assert data.parts == [Part(12, 1.0), Part(len(expected), 0.5)]
        [[tag, *_]] = tokenizer.encode(["<bt> a"], "source")
        first = [int(data.ids(0, index)[0]) for index in range(len(data))]
        assert [token == tag for token in first] == [False] * 12 + [True] * len(expected)

    def test_the_beam_of_the_entry_replaces_that_of_the_model(self, project: Project) -> None:
        project.prepare(f"{BACK}, beam = 1")
        greedy = project.pairs()
        assert greedy == project.expected(beam=1)
        project.prepare(BACK)
        assert project.pairs() != greedy

    def test_n_best_gives_several_pairs_for_a_line(self, project: Project) -> None:
        project.prepare(f"{BACK}, n_best = 2")
        assert project.pairs() == project.expected(TranslationRequest(n_best=2))
        assert len(project.pairs()) > len({target for _, target in project.pairs()})

    def test_samples_depend_on_their_settings_and_seed(self, project: Project) -> None:
        found, likely = [], "temperature = 0.5, top_k = 5"
        for options in (likely, f"{likely}, seed = 2", "top_p = 0.4", "seed = 1"):
            project.prepare(f"{BACK}, sample = true, n_best = 2, {options}")
            values = dict(re.findall(r"(\w+) = ([\d.]+)", options))
            sampling = Sampling(**{key: float(value) if "." in value else int(value) for key, value in values.items()})
            assert project.pairs() == project.expected(TranslationRequest(n_best=2, sampling=sampling))
            found.append(project.pairs())
        assert all(one != other for index, one in enumerate(found) for other in found[:index])

    def test_a_compressed_text_can_be_given(self, project: Project) -> None:
        subprocess.run(["gzip", "-k", project.folder / "mono.de"], check=True)
        project.prepare(BACK.replace("mono.de", "mono.de.gz"))
        assert project.pairs() == project.expected()

    @pytest.mark.parametrize("between", ["\n", " "], ids=["a line each", "one line"])
    def test_segments_of_markup_are_paired_with_their_own_translations(self, project: Project, between: str) -> None:
        expected = [pair for pair in project.expected() if pair[1]]
        segments = [f'<seg id="{number}">{line}</seg>' for number, line in enumerate(GERMAN)]
        text = between.join(['<srcset setid="x" srclang="any">', '<doc docid="d">', *segments, "</doc>", "</srcset>"])
        (project.folder / "mono.sgm").write_text(f"{text}\n", encoding="utf-8")
        project.prepare(BACK.replace("mono.de", "mono.sgm"))
        assert project.pairs() == expected

    def test_no_generated_pair_is_held_out(self, project: Project) -> None:
        project.write("train.en", [f"{source} {number}" for number in range(5) for source, _ in TEXT])
        project.write("train.de", [f"{target} {number}" for number in range(5) for _, target in TEXT])
        project.prepare(BACK, settings=("data.valid=9", "data.test=9"))
        held_out = [*Run(project.run).valid_text.read()[1], *Run(project.run).test_text("test").read()[1]]
        assert set(held_out).isdisjoint(GERMAN)
        assert project.pairs() == project.expected()
        with pytest.raises(NmtkitError, match="hold only 20 different pairs outside of tagged and generated corpora"):
            project.prepare(BACK, settings=("data.valid=21",))


class TestDistillation:
    def test_the_given_text_is_the_source_and_the_output_of_an_ensemble_the_target(self, project: Project) -> None:
        for seed in (1, 2):
            save_random_model(project.folder / f"teacher-{seed}", seed, is_reversed=False)
        lines = read_lines(project.folder / "train.en")[:4]
        project.write("some.en", lines)
        entry = 'generate = "some.en", model = ["teacher-1", "teacher-2"], as = "target", beam = 3'
        manifest = project.prepare(entry).manifest
        translator = Translator.load([project.folder / f"teacher-{seed}" for seed in (1, 2)], decoding={"beam": 3})
        assert project.pairs() == usable(translator, lines)
        generated = manifest["corpora"][1]["generated"]
        assert generated["model_sha256"] == list(translator.model_sha256)
        assert (generated["as"], generated["decoding"]["beam"]) == ("target", 3)

    def test_a_model_of_several_languages_translates_to_that_of_the_corpus(self, project: Project) -> None:
        train = [{"corpus": "a/b", "target_language": code} for code in ("de", "fr")]
        save_random_model(project.folder / "many", is_reversed=False, end_logit=3, train=train, target_language="mul")
        lines = [source for source, _ in TEXT]
        project.write("some.en", lines)
        entry = 'generate = "some.en", model = "many", as = "target", target_language'
        french = '{ source = "train.en", target = "train.de", target_language = "fr" }'
        translator, found = Translator.load(project.folder / "many"), {}
        for code in ("de", "fr"):
            project.prepare(f'{entry} = "{code}" }}, {french[:-2]}')
            found[code] = usable(translator, lines, TranslationRequest(target_language=code))
            assert project.pairs() == found[code]
        assert found["de"] != found["fr"]
        project.prepare(f'{entry} = "de", to = "fr" }}, {french[:-2]}')
        assert [text for _, text in project.pairs()] == [text for _, text in found["fr"]]
        with pytest.raises(
            NmtkitError, match='translates en-de/fr, but as = "source" for en-de needs a model for de-en'
        ):
            project.prepare(BACK.replace("de-en", "many"))

    def test_a_recipe_can_have_generated_corpora_only(self, project: Project) -> None:
        save_random_model(project.folder / "teacher", is_reversed=False)
        entries = [f'generate = "train.en", model = "teacher", as = "target", name = "{name}"' for name in ("a", "b")]
        manifest = project.prepare(*entries, parallel=False, settings=("data.vocab_size=60",)).manifest
        assert [corpus["name"] for corpus in manifest["corpora"]] == ["a", "b"]
        assert project.pairs(0) == project.pairs(1)


class TestLeftOut:
    def test_what_makes_no_pair_is_counted(self, project: Project) -> None:
        project.write("mono.de", ["", GERMAN[0], " \t", *GERMAN[1:]])
        manifest = project.prepare(BACK).manifest
        translator = Translator.load([project.folder / "de-en"])
        found = [best for [best] in translator.translations(GERMAN, TranslationRequest())]
        counts = {
            "empty_lines": 2,
            "cut_translations": sum(one.hit_limit for one in found),
            "empty_translations": sum(not one.text for one in found),
            "pairs": len(project.expected()),
        }
        assert 0 not in counts.values()
        corpus = manifest["corpora"][1]
        assert corpus["generated"]["counts"] == counts
        assert (corpus["name"], corpus["pairs"]) == ("mono", counts["pairs"])
        assert read_report(project.run / "data")["corpora"][1]["generated"] == counts
        assert manifest["rules"]["one_sided_blank"] == manifest["rules"]["both_blank"] == 0
        page = (project.run / "data" / "report.html").read_text(encoding="utf-8")
        assert all(f"{count} {outcome.replace('_', ' ')}" in page for outcome, count in counts.items())
        assert project.pairs() == project.expected()

    def test_lines_are_those_of_the_text(self, project: Project) -> None:
        project.write("mono.de", ["", *GERMAN[:5], "", GERMAN[5] + "\a"])
        project.prepare(BACK, settings=("cleaning.control_character=fix",))
        translations = [row.split("\t") for row in read_lines(project.run / "generated" / "mono.tsv")]
        pairs = [int(number) for number, is_cut, text in translations if is_cut == "0" and text]
        assert 2 in pairs and pairs[-1] == 8 and len(pairs) < 6
        assert read_report(project.run / "data")["places"]["control_character"] == [["mono", 8]]
        pair = inspect_pair(project.run, 8, corpus="mono")
        assert (pair.line, pair.line_of_all) == (8, 12 + len(pairs))
        assert inspect_pair(project.run, pair.line_of_all) == pair
        with pytest.raises(NmtkitError, match=r"mono\.de: line 7 has made no pair; see .*mono\.tsv"):
            inspect_pair(project.run, 7, corpus="mono")

    @pytest.mark.parametrize(("end_logit", "level"), [(6, logging.INFO), (1, logging.WARNING)])
    def test_more_than_a_half_is_a_warning(
        self, project: Project, end_logit: float, level: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        save_random_model(project.folder / "de-en", end_logit=end_logit)
        with caplog.at_level(logging.INFO, "nmtkit"):
            counts = project.prepare(BACK).manifest["corpora"][1]["generated"]["counts"]
        assert (2 * counts["pairs"] < sum(counts.values())) == (level == logging.WARNING), counts
        assert [record.levelno for record in caplog.records if "generated mono" in record.message] == [level]

    def test_a_model_without_a_usable_translation_is_an_error(self, project: Project) -> None:
        save_random_model(project.folder / "de-en", 5, end_logit=9)
        message = complaint(project, BACK, is_left=True)
        assert message == "mono: no translation can be used (empty_translations: 12); look at the model"


class TestMadeOnce:
    def test_finished_translations_are_used_again_whatever_else_changes(
        self, project: Project, translated: list[int]
    ) -> None:
        project.prepare(BACK)
        assert translated == [1]
        assert not project.prepare(BACK).is_new
        for entry in (f'{BACK}, prefix = "<bt>"', f"{BACK}, weight = 3", f"{BACK}, noise = {{ drop = 0.5 }}"):
            assert project.prepare(entry).is_new
        project.prepare(BACK, settings=("cleaning.max_characters=30",))
        assert translated == [1]

    @pytest.mark.parametrize("change", ["beam", "n_best", "sample", "model", "text", "damage"])
    def test_they_are_made_anew_when_anything_that_decides_them_changes(
        self, project: Project, translated: list[int], change: str
    ) -> None:
        project.prepare(BACK)
        entry = {"beam": f"{BACK}, beam = 3", "n_best": f"{BACK}, n_best = 2", "sample": f"{BACK}, sample = true"}
        if change == "model":
            save_random_model(project.folder / "de-en", 3, end_logit=9)
        if change == "text":
            project.write("mono.de", GERMAN[:6])
        if change == "damage":
            (project.run / "generated" / "mono.tsv").write_text("1\t0\tchanged\n", encoding="utf-8")
            project.prepare(BACK, settings=("data.vocab_size=75",))
        else:
            assert project.prepare(entry.get(change, BACK)).is_new
        assert translated == [1, 1]
        if change in ("model", "text", "damage"):
            assert project.pairs() == project.expected()

    def test_a_model_that_changes_before_it_is_loaded_is_refused(self, project: Project) -> None:
        recipe = project.recipe(BACK)

        def replace_and_generate(pending: list[Generation]) -> None:
            save_random_model(project.folder / "de-en", 3, end_logit=9)
            generate_corpora(pending, recipe, device="cpu", threads=1)

        with pytest.raises(ModelError, match=r"^mono: its model has changed since this command began; run it again$"):
            prepare(recipe, project.run, workers=1, generate=replace_and_generate)
        project.prepare(BACK)
        assert project.pairs() == project.expected()

    def test_a_kill_while_they_are_counted_repeats_no_translation(
        self, project: Project, translated: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(generation: Generation) -> Iterator[tuple[str, str, str]]:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Generation, "outcomes", stop)
            project.prepare(BACK)
        project.prepare(BACK)
        assert translated == [1]
        assert project.pairs() == project.expected()
        assert sorted(path.name for path in (project.run / "generated").iterdir()) == ["mono.json", "mono.tsv"]

    def test_the_record_says_what_they_were_made_from(self, project: Project) -> None:
        project.prepare(f"{BACK}, beam = 3")
        record = read_json(project.run / "generated" / "mono.json")
        weights = read_json(project.folder / "de-en" / "provenance.json")["files"]["model.safetensors"]
        assert record["made_from"]["model_sha256"] == [weights]
        assert record["made_from"]["decoding"]["beam"] == 3
        assert record["made_with"]["device"] == "cpu"

    def test_prepared_data_need_the_translations_no_more(self, project: Project, translated: list[int]) -> None:
        project.prepare(BACK)
        for path in (project.run / "generated").iterdir():
            path.unlink()
        assert not project.prepare(BACK).is_new
        assert translated == [1]

    def test_equal_inputs_elsewhere_give_equal_bytes(self, project: Project, tmp_path: Path) -> None:
        other = Project(tmp_path / "deep" / "er")
        for one in (project, other):
            one.prepare(f"{BACK}, noise = {{ shuffle = 2 }}")
        files = [contents(one.run / "data") for one in (project, other)]
        for found in files:
            del found["manifest.json"]
        assert files[0] == files[1]
        assert not [name for name, content in files[1].items() if b"deep" in content]

    def test_a_changed_text_model_or_setting_is_refused_after_training(self, project: Project) -> None:
        recipe, manifest = project.recipe(BACK), project.prepare(BACK).manifest
        assert changed_text(recipe.data, manifest) == []
        assert changed_text(project.recipe(BACK.replace("de-en", "gone")).data, manifest) == []
        save_random_model(project.folder / "new", 3)
        changed = changed_text(project.recipe(BACK.replace("de-en", "new")).data, manifest)
        assert changed == [f"data.train: mono was generated by another model than {project.folder / 'new'}"]
        shutil.rmtree(project.folder / "de-en")
        save_random_model(project.folder / "de-en", 3)  # as a training that goes on
        assert changed_text(recipe.data, manifest) == []
        (project.run / "checkpoints").mkdir()
        assert not project.prepare(BACK).is_new
        shutil.rmtree(project.folder / "de-en")
        assert not project.prepare(BACK).is_new
        save_random_model(project.folder / "de-en", 3)
        with pytest.raises(NmtkitError, match=r"trained with other data .*'beam': 3"):
            project.prepare(f"{BACK}, beam = 3")
        project.write("mono.de", GERMAN[:6])
        assert "data.train: " in changed_text(recipe.data, manifest)[0]
        with pytest.raises(
            NmtkitError, match=r"trained with other data \(changed: data\.train: .*mono\.de holds another"
        ):
            project.prepare(BACK)

    def test_without_a_function_that_generates_the_command_is_named(self, project: Project) -> None:
        with pytest.raises(NmtkitError, match="mono: not generated yet; run `nmtkit prepare`"):
            prepare(project.recipe(BACK), project.run)

    def test_check_reads_only_what_there_is(self, project: Project, logged: pytest.LogCaptureFixture) -> None:
        found = check(project.recipe(BACK), project.run)
        told = [record.getMessage() for record in logged.records if record.levelname == "WARNING"]
        assert [message for message in told if "mono" in message] == [
            "mono: not generated yet, so the check leaves it out"
        ]
        assert [corpus["pairs"] for corpus in found.report["corpora"]] == [12, 0]
        assert (found.reasons, found.refused) == ([], {})
        assert check(project.recipe(BACK, parallel=False), project.run).reasons == []
        project.prepare(BACK)
        found = check(project.recipe(BACK), project.run)
        assert found.report["corpora"][1]["pairs"] == len(project.expected())

    def test_inspect_shows_a_generated_pair(self, project: Project) -> None:
        project.prepare(BACK)
        pair = inspect_pair(project.run, 1, corpus="mono")
        assert (pair.source.text, pair.target.text) == project.expected()[0]
        (project.run / "generated" / "mono.tsv").unlink()
        assert inspect_pair(project.run, pair.line_of_all).source.text is None
        with pytest.raises(DataError, match="mono: its translations, or the model that made them, are not there"):
            inspect_pair(project.run, 1, corpus="mono")


class TestNoise:
    LINE = " ".join(f"w{number}" for number in range(40))

    def noisy(self, count: int = 400, **settings: float) -> Iterator[list[str]]:
        for number in range(count):
            yield with_noise(self.LINE, Noise.model_validate(settings), f"1 {number}").split()

    def test_words_are_left_out_and_masked_as_often_as_stated(self) -> None:
        assert sum(len(words) for words in self.noisy(drop=0.1)) / 16_000 == pytest.approx(0.9, abs=0.01)
        masked = sum(word == FILLER for words in self.noisy(mask=0.2) for word in words)
        assert masked / 16_000 == pytest.approx(0.2, abs=0.01)
        assert {len(words) for words in self.noisy(mask=0.2)} == {40}

    def test_no_word_moves_farther_than_stated_and_some_move_as_far(self) -> None:
        distances = [abs(int(word[1:]) - place) for words in self.noisy(shuffle=3) for place, word in enumerate(words)]
        assert set(distances) == {0, 1, 2, 3}
        assert all(sorted(words) == sorted(self.LINE.split()) for words in self.noisy(5, shuffle=3))

    def test_it_depends_on_the_seed_only(self) -> None:
        noise = Noise(drop=0.3, mask=0.3, shuffle=3)
        assert with_noise(self.LINE, noise, "1 1") == with_noise(self.LINE, noise, "1 1")
        assert len({with_noise(self.LINE, noise, f"{seed} 1") for seed in range(5)}) == 5
        assert with_noise("eins zwei drei vier", noise, "1 1") == "□ □ drei"  # on every system

    def test_one_word_is_always_kept(self) -> None:
        kept = {with_noise("a b c", Noise(drop=0.99), f"1 {number}") for number in range(100)}
        assert kept >= {"a", "b", "c"}
        assert "" not in kept

    def test_it_is_on_the_source_whichever_side_is_generated(self, project: Project) -> None:
        save_random_model(project.folder / "teacher", is_reversed=False)
        project.write("some.en", [source for source, _ in TEXT])
        entries = [BACK, 'generate = "some.en", model = "teacher", as = "target"']
        project.prepare(*entries, settings=("data.vocab_size=90",))
        plain = [project.pairs(number) for number in (1, 2)]
        noise = "noise = { drop = 0.2, shuffle = 3 }, seed = 7"
        project.prepare(*(f"{entry}, {noise}" for entry in entries), settings=("data.vocab_size=90",))
        for number, before in zip((1, 2), plain, strict=True):
            after = project.pairs(number)
            assert [target for _, target in after] == [target for _, target in before]
            expected = [
                with_noise(source, Noise(drop=0.2, shuffle=3), f"7 {at}") for at, (source, _) in enumerate(before, 1)
            ]
            assert [source for source, _ in after] == expected
            assert expected != [source for source, _ in before]


def complaint(project: Project, entry: str, settings: tuple[str, ...] = (), *, is_left: bool = False) -> str:
    """The message about what cannot be generated; nothing of it may be left, but for an empty folder."""
    message = message_of(lambda: project.prepare(entry, settings=settings), NmtkitError)
    assert contents(project.run) == {} if project.run.exists() else not is_left
    return message


class TestBadInput:
    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            (BACK.replace("mono.de", "empty.de"), "empty.de: there is no text to translate in this file"),
            (BACK.replace("mono.de", "missing.de"), "missing.de: no such file"),
            (BACK.replace("de-en", "nothing"), "nothing: no such folder"),
            (BACK.replace("de-en", "folder"), "folder: neither a model folder nor a run"),
            (BACK.replace("de-en", "run"), "mono is generated by .*run, which is the run itself; name another run"),
            (BACK.replace("de-en", "run/averaged"), "run/averaged, which is the run itself"),
            (BACK.replace("de-en", "en-de"), 'en-de: translates en-de, but as = "source" .* needs a model for de-en'),
            (BACK.replace('"source"', '"target"'), 'translates de-en, but as = "target" .* needs a model for en-de'),
            (BACK.replace("de-en", "tokenized"), 'translates tokenized text, but the recipe has text = "plain"'),
            (BACK.replace('"de-en"', '["de-en", "tokenized"]'), "its vocabulary differs from that of .*de-en; an"),
            (f"{BACK}, n_best = 3", "mono has n_best = 3, which needs a beam of as many"),
            (BACK.replace("mono.de", "broken.de"), "broken.de, line 2: invalid UTF-8"),
        ],
    )  # fmt: skip
    def test_it_is_one_clear_line_before_anything_is_written(self, project: Project, entry: str, message: str) -> None:
        save_random_model(project.folder / "en-de", is_reversed=False)
        save_random_model(project.folder / "tokenized", text="tokenized")
        project.write("empty.de", ["", " "])
        (project.folder / "broken.de").write_bytes(b"gut\n\xff\xfe\n")
        (project.folder / "folder").mkdir()
        assert re.search(message, complaint(project, entry))

    def test_invalid_text_is_translated_where_a_rule_repairs_it(self, project: Project) -> None:
        (project.folder / "mono.de").write_bytes("".join(f"{line}\n" for line in GERMAN).encode("cp1252"))
        project.prepare(BACK, settings=("cleaning.invalid_utf8=fix",))
        assert {target for _, target in project.pairs()} <= set(GERMAN)

    def test_odd_text_simply_works(self, project: Project) -> None:
        lines = ["Der\u2028Hund", "Haus \t Katze", "kleine " * 500, "\ufeffHund", "Hund\u0085"]
        (project.folder / "mono.de").write_bytes("\r\n".join(lines).encode())
        project.prepare(BACK)
        assert len(read_lines(project.run / "generated" / "mono.tsv")) == 5

    def test_a_label_model_is_refused(self, project: Project) -> None:
        pairs = [("Hund", "yes"), ("Katze", "no")]
        changes = {"task": "label", "source_language": "de", "target_language": "zxx", "share_vocab": False}
        data = data_config(**changes, vocab_size=20)
        tokenizer = label_tokenizer(learn_tokenizer(data, lambda: pairs), data, ["no", "yes"])
        model = model_for(learn_tokenizer(data_config(), lambda: TEXT), torch.float32)
        save_model(project.folder / "labels", model.state_dict(), model.config, tokenizer, DecodingConfig(), {})
        message = complaint(project, BACK.replace("de-en", "labels"))
        assert 'labels: a model of the task "label", which does not translate' in message


def command(project: Project, run: str, *options: object) -> list[object]:
    place = ["--run-dir", project.folder / run, "--device", "cpu", "--threads", 1]
    return ["prepare", project.folder / "mine.toml", *place, *options]


def test_after_a_kill_only_the_last_window_is_translated_again(project: Project, translated: list[int]) -> None:
    project.recipe(BACK)
    with Forked(*command(project, "run"), before=partial(kill_at_window, 2, 4)) as process:
        assert process.wait() == -signal.SIGKILL
    generated = project.run / "generated"
    assert len(list((generated / "mono.tsv.parts").glob("*.output"))) == 2
    assert not (project.run / "data").exists() and not (generated / "mono.tsv").exists()
    project.prepare(BACK)
    assert translated == [9]
    assert project.pairs() == project.expected()
    assert [path.name for path in project.run.iterdir() if path.name.startswith(".")] == []
    assert sorted(path.name for path in generated.iterdir()) == ["mono.json", "mono.tsv"]


def test_several_processes_generate_the_same(project: Project) -> None:
    project.prepare(f"{BACK}, beam = 1")
    ended = run_forked(*command(project, "shared", "--processes", 2))
    assert ended.returncode == 0, ended.stderr
    for name in ("generated/mono.tsv", "data/train/source.ids.bin", "data/report.json"):
        assert (project.folder / "shared" / name).read_bytes() == (project.run / name).read_bytes()


@pytest.mark.slow
def test_processes_under_torchrun_generate_the_same_and_end_where_nothing_is_left_to_do(project: Project) -> None:
    project.prepare(BACK)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29641", "-m", "nmtkit"]
    for message in ("generated mono: ", "up to date; nothing was done"):
        started = [sys.executable, *torchrun, *map(str, command(project, "shared"))]
        ended = subprocess.run(started, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert message in ended.stderr
    for name in ("generated/mono.tsv", "data/train/source.ids.bin"):
        assert (project.folder / "shared" / name).read_bytes() == (project.run / name).read_bytes()


def test_a_sweep_generates_once_for_all_its_runs(project: Project, translated: list[int]) -> None:
    recipe = project.recipe(BACK)
    first, second = (prepare_sweep(recipe, project.folder / "sweep", None, "cpu", 1) for _ in range(2))
    assert first == second == project.prepare(BACK).manifest["fingerprint"]
    assert translated == [1, 1]


def test_a_signal_names_the_command_that_goes_on(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise SystemExit(130)

    project.recipe(BACK)
    monkeypatch.setattr(TranslationJob, "translate", stop)
    outcome = run_command("prepare", project.folder / "mine.toml", "--run-dir", project.run, "--device", "cpu")
    assert outcome.code == 130
    assert f"stopped; to resume, run: nmtkit prepare {project.folder}" in outcome.err


def test_several_processes_need_a_generated_corpus(project: Project) -> None:
    project.recipe()
    outcome = run_command("prepare", project.folder / "mine.toml", "--run-dir", project.run, "--processes", 2)
    assert outcome.code == 2
    assert "several processes are only for recipes with generated corpora" in " ".join(outcome.err.split())


def test_run_generates_trains_and_scores(project: Project) -> None:
    project.recipe(f'{BACK}, prefix = "<bt>"')
    settings = ["data.test=2", "training.max_steps=2", "training.precision=float32", "decoding.average_last=1"]
    arguments = ["run", project.folder / "mine.toml", "--run-dir", project.run, "--device", "cpu", "--threads", 1]
    arguments += [part for setting in settings for part in ("--set", setting)]
    for is_first in (True, False):
        outcome = run_command(*arguments)
        assert outcome.code == 0, outcome.err
        assert ("generated mono: " in outcome.err) == is_first
    assert "test" in read_json(project.run / "scores.json")
    assert run_command("report", project.run).code == 0
    assert "source generated by the model with sha256" in (project.run / "card.md").read_text(encoding="utf-8")
