"""What a run takes from the model that training.init names, tensor by tensor, and what it refuses."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.decoding.request import Sampling
from nmtkit.decoding.running_text import ContinuationScorer, Generator, score_text
from nmtkit.distributed.workers import Workers
from nmtkit.errors import ModelError, NmtkitError, RecipeError
from nmtkit.files import sha256_of
from nmtkit.model.decoder_only import build_model
from nmtkit.model_folder import load_model, read_provenance, read_tensors, save_model
from nmtkit.run import Run, find_model
from nmtkit.tasks.language_model import text_of
from nmtkit.text.new_tokenizers import label_tokenizer
from nmtkit.text.normalization import NEWLINE, TAB
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS
from nmtkit.training import session
from nmtkit.training.resume import lengths_seen, verify_resume
from nmtkit.training.transfer import _is_transferred, check_initial_model, initial_weights, log_differences
from tests.conftest import TinyProject, determined, message_of, train_run, write_corpus
from tests.training.updates import Weights

SIZES = {"encoder_layers": 3, "decoder_layers": 3, "d_model": 8, "d_ff": 16, "num_heads": 2}
DECODER = {**SIZES, "architecture": "decoder"}


@pytest.fixture(scope="module")
def tokenizer(tiny_project: TinyProject) -> Tokenizer:
    return Run(tiny_project.prepared).tokenizer()


def with_labels(base: Tokenizer, *labels: str) -> Tokenizer:
    """The tokenizer of a task whose output is a label: three entries are added to the vocabulary of ``base``."""
    values = {"task": "label", "source_language": "en", "train": [{"source": "a", "target": "b"}]}
    return label_tokenizer(base, DataConfig.model_validate(values), labels)


def weights_of(seed: int, entries: int, **model: Any) -> Weights:
    """Initial weights of a model, all of them random."""
    torch.manual_seed(seed)
    weights = build_model(ModelConfig(**model), entries, entries).state_dict()
    return {name: torch.randn_like(weight) for name, weight in weights.items()}


def saved(folder: Path, tokenizer: Tokenizer, **model: Any) -> tuple[Path, Weights]:
    """A model folder and its weights."""
    weights = weights_of(1, tokenizer.vocab_size("target"), **model)
    save_model(folder, weights, ModelConfig(**model), tokenizer, DecodingConfig(), {})
    return folder, weights


def recipe_of(tiny_project: TinyProject, folder: Path, model: dict[str, Any], layers: int | None = None) -> Recipe:
    recipe = load_recipe(str(tiny_project.recipe))
    training = recipe.training.model_copy(update={"init": folder, "init_layers": layers})
    sections = {"model": ModelConfig(**model), "training": training, "decoding": DecodingConfig()}
    return recipe.model_copy(update=sections)


def check(found: Weights, initial: Weights, origin: dict[str, Tensor]) -> None:
    """Every weight is exactly that of the model, or else its initial value."""
    assert list(found) == list(initial)
    for name, values in found.items():
        assert torch.equal(values, origin.get(name, initial[name])), name


@pytest.mark.parametrize("model", [SIZES, {**DECODER, "norm": "pre", "positions": "learned", "max_positions": 20}])
def test_a_model_of_the_same_sizes_gives_all_its_weights(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path, model: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder, stored = saved(tmp_path / "model", tokenizer, **model)
    initial = weights_of(2, tokenizer.vocab_size("target"), **model)
    with caplog.at_level(logging.INFO, "nmtkit"):
        check(initial_weights(folder, recipe_of(tiny_project, folder, model), tokenizer, initial), initial, stored)
    assert not caplog.messages


def test_the_vectors_of_the_sides_begin_at_random_in_a_model_that_had_none(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, stored = saved(tmp_path / "model", tokenizer, **DECODER)
    model = {**DECODER, "target_positions": "restarted"}
    initial = weights_of(2, tokenizer.vocab_size("target"), **model)
    with caplog.at_level(logging.INFO, "nmtkit"):
        check(initial_weights(folder, recipe_of(tiny_project, folder, model), tokenizer, initial), initial, stored)
    assert initial.keys() - stored.keys() == {"sides"}
    assert "initial values: sides 16" in caplog.text


def test_the_run_may_be_on_another_device_than_the_stored_weights(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder, stored = saved(tmp_path / "model", tokenizer, **DECODER)
    entries = tokenizer.vocab_size("target")
    initial = {name: values.to("meta") for name, values in weights_of(2, entries + 3, **DECODER).items()}
    recipe = recipe_of(tiny_project, folder, DECODER)
    found = initial_weights(folder, recipe, with_labels(tokenizer, "no", "yes"), initial)
    assert {name: values.shape for name, values in found.items()} == {
        name: values.shape for name, values in initial.items()
    }
    assert len(found["embeddings.shared"]) == len(stored["embeddings.shared"]) + 3


@pytest.mark.parametrize("share", ["all", "none"])
def test_entries_added_to_the_vocabulary_and_a_new_head_keep_their_initial_values(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path, share: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = {**DECODER, "share_embeddings": share}
    folder, stored = saved(tmp_path / "model", tokenizer, **model)
    entries = tokenizer.vocab_size("target")
    initial = weights_of(2, entries + 3, **model)
    initial |= {"head.weight": torch.randn(2, 8), "head.bias": torch.randn(2)}
    recipe = recipe_of(tiny_project, folder, model)
    with caplog.at_level(logging.INFO, "nmtkit"):
        found = initial_weights(folder, recipe, with_labels(tokenizer, "no", "yes"), initial)
    tables = [name for name in initial if name.startswith("embeddings.")]
    assert len(tables) == (1 if share == "all" else 2)
    expected = {**stored, **{name: torch.cat([stored[name], initial[name][entries:]]) for name in tables}}
    check(found, initial, expected)
    total = sum(values.numel() for values in initial.values())
    new = 24 * len(tables)
    assert f"{total - new - 18:,} of {total:,} parameters" in caplog.text
    assert f"embeddings {new}, head 18" in caplog.text


def test_a_head_is_copied_only_for_the_same_labels_and_added_entries_are_dropped_without_them(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    own, folder = with_labels(tokenizer, "no", "yes"), tmp_path / "model"
    stored = {**weights_of(1, own.vocab_size("source"), **DECODER), "head.bias": torch.randn(2)}
    save_model(folder, stored, ModelConfig(**DECODER), own, DecodingConfig(), {})
    initial = {**weights_of(2, own.vocab_size("source"), **DECODER), "head.bias": torch.randn(2)}
    recipe = recipe_of(tiny_project, folder, DECODER)
    check(initial_weights(folder, recipe, own, initial), initial, stored)
    body = {name: values for name, values in stored.items() if not name.startswith("head.")}
    check(initial_weights(folder, recipe, with_labels(tokenizer, "neg", "pos"), initial), initial, body)
    # Heads of numbers and of choices have one output, whatever the labels are.
    for head in ("number", "choice"):
        save_model(tmp_path / head, stored, ModelConfig(**DECODER, head=head), own, DecodingConfig(), {})
        same = recipe.model_copy(update={"model": recipe.model.model_copy(update={"head": head})})
        check(initial_weights(tmp_path / head, same, with_labels(tokenizer, "1", "2"), initial), initial, stored)
    entries = tokenizer.vocab_size("source")
    initial = weights_of(2, entries, **DECODER)
    expected = {**body, "embeddings.shared": stored["embeddings.shared"][:entries]}
    check(initial_weights(folder, recipe, tokenizer, initial), initial, expected)


@pytest.mark.parametrize("model", [SIZES, {**DECODER, "positions": "learned", "max_positions": 20}])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_init_layers_copies_the_first_layers_of_each_stack(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path, model: dict[str, Any], layers: int
) -> None:
    model = {**model, "norm": "pre"}
    folder, stored = saved(tmp_path / "model", tokenizer, **model)
    smaller = {**model, "decoder_layers": 2}
    initial = weights_of(2, tokenizer.vocab_size("target"), **smaller)
    recipe = recipe_of(tiny_project, folder, smaller, layers)
    parts = ("embeddings.", "positions.", *(f"{stack}.{n}." for stack in ("encoder", "decoder") for n in range(layers)))
    expected = {name: stored[name] for name in initial if name.startswith(parts)}
    assert len({name.split(".")[1] for name in expected if name.startswith("decoder.")}) == layers
    check(initial_weights(folder, recipe, tokenizer, initial), initial, expected)


@pytest.mark.parametrize(
    ("share", "norm", "layers"), [("all", "post", None), ("decoder", "pre", None), ("none", "pre", 1)]
)
def test_a_decoder_only_model_is_the_start_of_a_decoder(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path, share: str, norm: str, layers: int | None
) -> None:
    common = {"norm": norm, "positions": "learned", "max_positions": 20}
    folder, stored = saved(tmp_path / "model", tokenizer, **DECODER, **common)
    model = {**SIZES, **common, "encoder_layers": 2, "share_embeddings": share}
    initial = weights_of(2, tokenizer.vocab_size("target"), **model)
    expected = {"positions.target": stored["positions.target"]}
    for name in ("embeddings.shared",) if share == "all" else ("embeddings.target", "embeddings.output"):
        if name in initial:
            expected[name] = stored["embeddings.shared"]
    for layer in range(3 if layers is None else layers):
        for name, values in stored.items():
            if name.startswith(f"decoder.{layer}."):
                expected[name.replace("residuals.1", "residuals.2")] = values
    if layers is None:
        expected |= {name: stored[name] for name in stored if name.startswith("decoder_norm.")}
    assert expected.keys() <= initial.keys()
    found = initial_weights(folder, recipe_of(tiny_project, folder, model, layers), tokenizer, initial)
    check(found, initial, expected)


def test_such_a_decoder_continues_text_as_the_model_does_where_it_ignores_the_source(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder, stored = saved(tmp_path / "model", tokenizer, **DECODER, norm="pre")
    model = {**SIZES, "norm": "pre"}
    entries = tokenizer.vocab_size("target")
    initial = weights_of(2, entries, **model)
    found = initial_weights(folder, recipe_of(tiny_project, folder, model), tokenizer, initial)
    found = {
        name: torch.zeros_like(values) if ".source_attention.output" in name else values
        for name, values in found.items()
    }
    assert sum(".source_attention.output" in name for name in found) == 6
    alone, whole = (
        build_model(ModelConfig(**DECODER, norm="pre"), entries, entries),
        build_model(ModelConfig(**model), entries, entries),
    )
    alone.load_state_dict(stored)
    whole.load_state_dict(found)
    target = torch.randint(4, entries, (2, 7))
    empty, source = torch.full((2, 1), EOS), torch.randint(4, entries, (2, 5))
    with torch.inference_mode():
        expected = alone.eval()(empty, torch.tensor([1, 1]), target)
        torch.testing.assert_close(whole.eval()(source, torch.tensor([5, 5]), target), expected)


@pytest.mark.parametrize(
    ("given", "change", "layers", "message"),
    [
        (DECODER, {"d_ff": 32}, None, r"different shape; state in \[model\]: d_ff = 16$"),
        (DECODER, {"norm": "pre", "num_heads": 4, "d_k": 4}, None, 'num_heads = 2, d_v = 4, norm = "post"$'),
        (DECODER, {"activation": "gelu", "d_model": 16}, None, 'd_model = 8, d_k = 4, d_v = 4, activation = "relu"$'),
        (DECODER, {"positions": "learned"}, None, r'positions = "sinusoidal"$'),
        (DECODER, {"attention_window": 4}, None, "has full self-attention, and the decoder of this recipe window"),
        (DECODER, {"decoder_layers": 2}, None, r"decoder_layers = 3$"),
        (DECODER, {"decoder_layers": 2}, 3, r"init_layers = 3, but the run has model\.decoder_layers = 2; choose at m"),
        ({**DECODER, "share_embeddings": "none"}, {}, None, r'share_embeddings = "none"$'),
        ({**DECODER, "self_attention": ["local", "compressed"]}, {}, None, "compressed and local self-attention"),
        ({**SIZES, "positions": "learned"}, {}, None, 'positions = "learned", max_positions = 1024$'),
        (SIZES, {"encoder_layers": 2, "decoder_layers": 9}, 3, r"but the run has model\.encoder_layers = 2; "),
        (SIZES, {"encoder_layers": 9, "decoder_layers": 9}, 4, r"/model has model\.encoder_layers = 3 and .*/model"),
        (SIZES, {"encoder_layers": 2, "decoder_layers": 9}, 4, r"decoder_layers = 3 and the run has .* = 2; .* 2$"),
        (SIZES, {"architecture": "decoder"}, None, r'architecture = "encoder-decoder"'),
        ({**DECODER, "target_positions": "restarted"}, DECODER, None, r'target_positions = "restarted"$'),
    ],
)  # fmt: skip
def test_other_sizes_and_too_many_layers_are_refused_in_one_line(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path, given: dict[str, Any], change: dict[str, Any],
    layers: int | None, message: str,
) -> None:  # fmt: skip
    folder, _ = saved(tmp_path / "model", tokenizer, **given)
    recipe = recipe_of(tiny_project, folder, {**SIZES, **change}, layers)
    message_of(lambda: initial_weights(folder, recipe, tokenizer, {}), NmtkitError, message)


def test_other_search_and_languages_than_those_of_the_model_are_logged(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = saved(tmp_path / "model", tokenizer, **SIZES)
    same = recipe_of(tiny_project, folder, SIZES).model_copy(update={"decoding": DecodingConfig(average_last=1)})
    caplog.set_level(logging.INFO, "nmtkit")
    assert check_initial_model(same, Run(tmp_path / "run")) == folder
    log_differences(folder, same)
    assert not caplog.messages
    languages = {"source_language": "de", "target_language": "en"}
    swapped = same.model_copy(update={
        "data": same.data.model_copy(update=languages), "decoding": DecodingConfig(beam=1, max_length=9)
    })  # fmt: skip
    log_differences(folder, swapped)
    assert f"{folder} translates en-de, and this recipe de-en;" in caplog.messages[0]
    assert (
        f"of {folder} has beam = 4, no max_length, that of this recipe beam = 1, max_length = 9" in caplog.messages[1]
    )
    with pytest.raises(NmtkitError, match=r"different tokenizers \(of en-de and de-en\)"):
        initial_weights(folder, swapped, Tokenizer({**tokenizer.settings, **languages}, tokenizer._vocabularies), {})


def test_a_model_that_is_not_there_yet_is_not_checked(tiny_project: TinyProject, tmp_path: Path) -> None:
    assert check_initial_model(recipe_of(tiny_project, tmp_path / "later", SIZES), Run(tmp_path / "run")) is None


def test_other_subwords_and_a_missing_weight_are_refused(
    tiny_project: TinyProject, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder, stored = saved(tmp_path / "model", tokenizer, **DECODER)
    recipe = recipe_of(tiny_project, folder, DECODER)
    # Equal subwords are not enough: other settings, such as normalisation, change what the ids stand for.
    changed = Tokenizer({**tokenizer.settings, "normalize": ["nfc"]}, tokenizer._vocabularies)
    save_model(tmp_path / "changed", stored, ModelConfig(**DECODER), changed, DecodingConfig(), {})
    assert changed.vocabulary_sha256 == tokenizer.vocabulary_sha256
    with pytest.raises(NmtkitError, match=r'different tokenizers; set data\.tokenizer = ".*/model" and prepare'):
        initial_weights(folder, recipe, with_labels(changed, "no", "yes"), stored)
    with pytest.raises(NmtkitError, match="different tokenizers"):
        initial_weights(tmp_path / "changed", recipe, tokenizer, stored)
    del stored["decoder.1.feed_forward.inner.bias"]
    save_model(folder, stored, ModelConfig(**DECODER), tokenizer, DecodingConfig(), {})
    with pytest.raises(ModelError, match=r"damaged \(it has no decoder\.1\.feed_forward\.inner\.bias\)"):
        initial_weights(folder, recipe, tokenizer, weights_of(2, tokenizer.vocab_size("target"), **DECODER))


def test_a_model_that_changes_while_the_training_starts_is_refused(
    tiny: TinyProject, tokenizer: Tokenizer, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = saved(tmp_path / "model", tokenizer, **DECODER)
    start_from_model = session.start_from_model

    def replace_and_start(*arguments: Any) -> None:
        other = weights_of(3, tokenizer.vocab_size("target"), **DECODER)
        save_model(folder, other, ModelConfig(**DECODER), tokenizer, DecodingConfig(), {})
        start_from_model(*arguments)

    monkeypatch.setattr(session, "start_from_model", replace_and_start)
    model = [f"model.{key}={value}" for key, value in DECODER.items()]
    told = message_of(lambda: tiny.train(run, f"training.init={folder}", *model), NmtkitError)
    assert told == f"{folder}: changed while the training started; start it again"


def test_init_layers_copies_all_that_is_added_to_embeddings_too() -> None:
    names = ("inputs.states.weight", "input_norm.bias", "sides", "decoder.0.inner.weight", "decoder.1.inner.weight")
    assert [_is_transferred(name, 1) for name in (*names, "head.bias")] == [True, True, True, True, False, False]


def test_init_layers_needs_init(tiny_project: TinyProject) -> None:
    with pytest.raises(RecipeError, match="init_layers needs init, the model whose layers are copied"):
        load_recipe(str(tiny_project.recipe), ["training.init_layers=1"])


# ---- from a language model to a translation, by files


COMMON = (
    '\nsubwords = "bpe"\nvocab_size = 70\n[training]\nschedule = "constant"\npeak_learning_rate = 0.003\n'
    'warmup_steps = 3\nmax_steps = 4\nprecision = "float32"\nvalidate_bleu = false\nvalidate_every_steps = 2\n'
    "checkpoint_every_steps = 2\nkeep_last = 2\n[decoding]\naverage_last = 1\n"
    "[model]\nencoder_layers = 1\ndecoder_layers = 2\nd_model = 8\nd_ff = 16\nnum_heads = 2\n"
)
TRANSLATION = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = [{ source = "train.en", target = "train.de" }]\n'
    f'valid = [{{ source = "valid.en", target = "valid.de" }}]{COMMON}'
)
LANGUAGE_MODEL = (
    '[data]\ntask = "language-model"\ntarget_language = "de"\ntrain = [{ text = "train.de" }]\n'
    f'valid = [{{ text = "valid.de" }}]\ntest = [{{ text = "valid.de", name = "test" }}]\n'
    f'normalize = ["blanks"]\nsequence_length = 32\ntokenizer = "translation"{COMMON}architecture = "decoder"\n'
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared translation, and a language model of its target language with its subwords."""
    folder = tmp_path_factory.mktemp("project")
    write_corpus(folder, train=120, valid=20)
    (folder / "translation.toml").write_text(TRANSLATION)
    (folder / "lm.toml").write_text(LANGUAGE_MODEL)
    prepare(load_recipe(str(folder / "translation.toml")), folder / "translation", workers=1)
    train_run(load_recipe(str(folder / "lm.toml")), folder / "lm")
    return folder


def translation(project: Path, *overrides: str, architecture: str = "decoder") -> Recipe:
    stated = [f"training.init={project / 'lm'}", f"model.architecture={architecture}", *overrides]
    return load_recipe(str(project / "translation.toml"), stated)


def test_lines_of_such_a_language_model_are_those_of_the_translation_with_its_end_symbol(project: Path) -> None:
    lines = (project / "train.de").read_text().splitlines()
    of_translation, own = Run(project / "translation").tokenizer(), Run(project / "lm").tokenizer()
    expected = [[*ids, EOS] for ids in of_translation.encode(lines, "target")]
    tokens = PairData(Run(project / "lm").data / "train").target_tokens.tolist()
    assert tokens == [index for row in expected for index in row]
    assert text_of(own.decode(tokens)) == "".join(f"{line}\n" for line in lines)
    assert own.task_name == "language-model" and own.vocabulary_sha256 == of_translation.vocabulary_sha256
    assert own.base_fingerprint == own.fingerprint() != of_translation.fingerprint()
    assert prepare(load_recipe(str(project / "lm.toml")), project / "lm", workers=1).is_new is False
    report = (project / "lm" / "data" / "report.json").read_text()
    assert '"changed": 0' in report


def test_blanks_tabs_and_blank_lines_of_such_a_text_are_normalised_as_translations_are(project: Path) -> None:
    own = Run(project / "lm").tokenizer()
    assert own.normalize(f" AB {TAB} CDE  {NEWLINE}", "target") == f"AB CDE{NEWLINE}"
    assert own.encode([f"AB{TAB}CDE{NEWLINE}", NEWLINE, "", "AB"], "target") == [
        [*own.encode(["AB CDE"], "target")[0], EOS], [EOS], [], own.encode(["AB"], "target")[0],
    ]  # fmt: skip
    tokens = own.encode(["AB CDE FG"], "target")[0]
    assert own.decode([*tokens, EOS, *tokens]) == f"AB CDE FG{NEWLINE}AB CDE FG"


def test_moses_sees_the_end_of_each_line(project: Path) -> None:
    settings = {**Run(project / "lm").tokenizer().settings, "normalize": ["moses-tokenize"]}
    own = Tokenizer(settings, Run(project / "lm").tokenizer()._vocabularies)
    assert own.normalize(f"Ein Hund.{NEWLINE}", "target") == f"Ein Hund .{NEWLINE}"
    assert own.normalizations["target"].restore(f"Ein Hund .{NEWLINE}") == f"Ein Hund.{NEWLINE}"


def test_such_a_language_model_scores_and_continues_text(project: Path) -> None:
    loaded = load_model(find_model(project / "lm"))
    lines = (project / "valid.de").read_text().splitlines()
    score = score_text([loaded], lines, 32)
    tokens = len(PairData(Run(project / "lm").data / "valid").target_tokens)
    assert (score.tokens, score.unknown, score.characters) == (tokens - 1, 0, sum(len(line) + 1 for line in lines))
    assert score.nll / score.tokens == pytest.approx(read_provenance(find_model(project / "lm"))["valid_nll"], rel=1e-4)
    generator = Generator([loaded], 32, loaded.decoding)
    found = list(generator.continuations("AB CDE", 12, Sampling(1.0, 0, 1.0, 3), 20))
    assert {text[:1] for text in found if text} > {" "}  # some begin a word, others continue the last one
    assert all("\n" not in text and "  " not in text for text in found)
    assert list(generator.continuations("AB CDE", 12, Sampling(1.0, 0, 1.0, 3), 20)) == found
    assert len(list(generator.continuations("", 5, None, 2))) == 2
    first, rest = loaded.tokenizer.encode(["AB CDE", "AB CDE FG HIJ"], "target")
    for source, hypothesis, expected in (
        ("AB CDE", "FG HIJ", rest[len(first) :]),
        ("", "AB CDE", first),
        ("AB", "", [EOS]),
    ):
        [scored] = ContinuationScorer([loaded]).score([(source, hypothesis)])
        assert list(scored.ids) == expected


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_a_translation_starts_from_it_and_resumes_exactly(project: Path, tmp_path: Path, architecture: str) -> None:
    recipe = translation(project, architecture=architecture)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train_run(recipe, whole).step == 4
    for steps in (1, 3, 4):
        train_run(translation(project, f"training.max_steps={steps}", architecture=architecture), parts)
    one, other = (run / "resume" / "step-00000004" / "weights.safetensors" for run in (whole, parts))
    assert one.read_bytes() == other.read_bytes()
    assert (
        determined(whole)["resume/step-00000004/state.json"][0]
        == determined(parts)["resume/step-00000004/state.json"][0]
    )
    assert verify_resume(recipe, whole, Workers.start("cpu", "float32", 1))[1] == 4
    init = sha256_of(find_model(project / "lm") / "model.safetensors")
    assert {read_provenance(folder)["init_sha256"] for folder in Run(whole).checkpoints()} == {init}
    assert not torch.equal(  # and it matters
        read_tensors(one)["decoder.0.feed_forward.inner.weight"],
        _without_init(project, tmp_path / "without", architecture)["decoder.0.feed_forward.inner.weight"],
    )
    with pytest.raises(NmtkitError, match=r"trained with other settings \(changed: training\.init_layers = 1"):
        train_run(translation(project, "training.init_layers=1", architecture=architecture), whole)


def _without_init(project: Path, run_dir: Path, architecture: str) -> Weights:
    recipe = load_recipe(str(project / "translation.toml"), [f"model.architecture={architecture}"])
    train_run(recipe, run_dir)
    return read_tensors(run_dir / "resume" / "step-00000004" / "weights.safetensors")


def test_the_sequences_of_a_language_model_are_no_sources_that_a_translation_has_seen(project: Path) -> None:
    manifest = {"training_lengths": {"longest_source": 9, "target_ratio": 1.0, "multi_sentence_share": 0.0}}
    lengths = lengths_seen(translation(project), manifest)
    assert lengths is not None and lengths.longest_source == 9  # not the 32 tokens of the language model's sequences


def test_a_language_model_with_subwords_of_its_own_is_refused(project: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(project / "lm.toml"), ["data.vocab_size=60"])
    own = recipe.model_copy(update={"data": recipe.data.model_copy(update={"tokenizer": None})})
    train_run(own, tmp_path / "own")
    run = tmp_path / "run"
    with pytest.raises(
        NmtkitError, match=r"own/.*different tokenizers; prepare the language model with the run of the"
    ):
        train_run(translation(project, f"training.init={tmp_path / 'own'}"), run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "data.normalize=[]",
            r"data\.normalize = \[\], but the tokenizer of .*/translation has \['blanks'\]; state the",
        ),
        ("data.target_language=fr", r"data\.target_language = 'fr', but .* has 'de'"),
        ("data.subwords=unigram", r"data\.subwords = 'unigram', but .* has 'bpe'"),
        ("data.text=tokenized", r"data\.text = 'tokenized', but .* has 'plain'"),
    ],
)
def test_what_a_language_model_with_the_subwords_of_a_translation_must_state(
    project: Path, tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        prepare(load_recipe(str(project / "lm.toml"), [change]), tmp_path / "run", workers=1)


LABELS = (
    '[data]\ntask = "label"\nsource_language = "de"\ntokenizer = "lm"\nsequence_length = 40\n'
    'train = [{ source = "train.de", target = "train.label" }]\n'
    f'valid = [{{ source = "train.de", target = "train.label" }}]{COMMON}architecture = "decoder"\n'
)


def test_a_task_with_labels_starts_from_it_with_a_new_head_and_new_entries(project: Path, tmp_path: Path) -> None:
    lines = (project / "train.de").read_text().splitlines()
    (project / "train.label").write_text("".join(f"{'yes' if 'AB' in line else 'no'}\n" for line in lines))
    (project / "labels.toml").write_text(LABELS)
    recipe = load_recipe(
        str(project / "labels.toml"),
        [f"training.init={project / 'lm'}", "training.peak_learning_rate=1e-12", "training.max_steps=1"],
    )
    train_run(recipe, tmp_path / "run")
    stored = read_tensors(find_model(project / "lm") / "model.safetensors")
    found = read_tensors(tmp_path / "run" / "resume" / "step-00000001" / "weights.safetensors")
    assert found.keys() - stored.keys() == {"head.weight", "head.bias"} and stored.keys() <= found.keys()
    entries = len(stored["embeddings.shared"])
    assert len(found["embeddings.shared"]) == entries + 3
    assert all(torch.allclose(found[name][: len(stored[name])], stored[name], rtol=0, atol=1e-10) for name in stored)
    assert found["embeddings.shared"][entries:].abs().min() > 0
    assert verify_resume(recipe, tmp_path / "run", Workers.start("cpu", "float32", 1)) == (1, 1)


def test_a_translation_cannot_take_the_tokenizer_of_a_language_model(project: Path, tmp_path: Path) -> None:
    recipe = translation(project, f"data.tokenizer={project / 'lm'}")
    with pytest.raises(RecipeError, match=r"data\.task = 'translation', but .* has 'language-model'"):
        prepare(recipe, tmp_path / "run", workers=1)
