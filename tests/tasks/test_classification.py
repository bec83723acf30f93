"""Tasks whose output is a label, from text files to labels and scores."""

import gzip
import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.data.batch import LabelBatch, batch_of_sequences, make_batch
from nmtkit.data.batching import plan_of, shares_of
from nmtkit.data.label_data import LabelData
from nmtkit.data.prepare import check, prepare
from nmtkit.decoding.classifier import Classifier
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers
from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.evaluation.compare import compare_runs
from nmtkit.evaluation.cost import training_cost
from nmtkit.evaluation.significance import mcnemar
from nmtkit.export import ctranslate2, huggingface
from nmtkit.json_toml import read_json
from nmtkit.lines import write_lines
from nmtkit.model.decoder_only import DecoderOnly, build_model, count_parameters
from nmtkit.model.flops import TRAINING_FACTOR, forward_flops
from nmtkit.model_folder import load_model
from nmtkit.pipeline import score_run
from nmtkit.reports.card import card
from nmtkit.reports.run_facts import example_pair, read_run, translated
from nmtkit.reports.run_page import report_page
from nmtkit.run import Run, find_model
from nmtkit.tasks.known import task_of
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.loop import micro_batch_size, padded_tokens, real_tokens
from nmtkit.training.loss import label_loss
from nmtkit.training.resume import verify_resume
from tests.conftest import finished_run, message_of, prepared, run_command, run_with_streams, train_run
from tests.decoding.models import TEXT, WithoutFloat64, data_config, model_for

RECIPE = (
    '[data]\ntask = "{task}"\nsource_language = "en"\ntrain = [{{ source = "train.txt", target = "train.label" }}]\n'
    'valid = [{{ source = "valid.txt", target = "valid.label" }}]\n'
    'test = [{{ source = "test.txt", target = "test.label" }}]\nsubwords = "characters"\nvocab_size = 100\n'
    'sequence_length = 24\n[model]\narchitecture = "decoder"\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\n'
    'num_heads = 2\ndropout = 0.0\npositions = "learned"\nmax_positions = 24\n'
    '[training]\nsequences_per_update = 32\nschedule = "constant"\npeak_learning_rate = 0.01\nwarmup_steps = 5\n'
    "max_steps = {steps}\nsource_loss = 0.5\nlabel_smoothing = 0.0\nvalidate_bleu = false\nvalidate_every_steps = 20\n"
    'checkpoint_every_steps = 20\nprecision = "float32"\nkeep_last = 1\n'
    "[decoding]\naverage_last = 1\n"
)
LETTERS = "abcdefgh"


def word(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 4)))


def of_text(rng: random.Random) -> tuple[str, str]:
    text = word(rng)
    return text, "yes" if "a" in text else "no"


def of_pair(rng: random.Random) -> tuple[str, str]:
    first, second = word(rng), word(rng)
    return f"{first}\t{second}", "yes" if ("a" in first) and ("b" not in second) else "no"


def of_similar(rng: random.Random) -> tuple[str, str]:
    first, second = word(rng), word(rng)
    return f"{first}\t{second}", "same" if "a" in first and "a" in second else "other"


def of_choice(rng: random.Random) -> tuple[str, str]:
    count = rng.randint(2, 4)
    right = rng.randint(1, count)
    answers = [("z" if number == right else "") + word(rng) for number in range(1, count + 1)]
    return "\t".join([word(rng), *answers]), str(right)


EXAMPLE_OF = {"label": of_text, "pair-label": of_pair, "similarity": of_similar, "choice": of_choice}


def of_number(rng: random.Random) -> tuple[str, str]:
    text = word(rng)
    return text, f"{text.count('a') + text.count('b'):.1f}"


def write_project(
    folder: Path,
    task: str = "label",
    example: Callable[[random.Random], tuple[str, str]] | None = None,
    steps: int = 80,
    **texts: tuple[str, str],
) -> str:
    rng = random.Random(7)
    for name, count in (("train", 400), ("valid", 40), ("test", 60)):
        pairs = [(example or EXAMPLE_OF[task])(rng) for _ in range(count)]
        source, target = ("".join(f"{line}\n" for line in side) for side in zip(*pairs, strict=True))
        source, target = texts.get(name, (source, target))
        (folder / f"{name}.txt").write_text(source, encoding="utf-8")
        (folder / f"{name}.label").write_text(target, encoding="utf-8")
    (folder / "mine.toml").write_text(RECIPE.format(task=task, steps=steps), encoding="utf-8")
    return str(folder / "mine.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    return finished_run(write_project(folder), folder / "run")


def data_of(run: Run, part: str = "train") -> LabelData:
    return LabelData(run.data / part, run.tokenizer())


def right_share(run: Path) -> float:
    _, labels, found = Run(run).read_translated("test")
    return sum(one == two for one, two in zip(labels, found, strict=True)) / len(labels)


def test_labels_of_texts_are_learned(trained: Path) -> None:
    assert right_share(trained) > 0.9
    assert Run(trained).tokenizer().labels == ("no", "yes")
    scores = read_json(Run(trained).scores)["test"]
    assert scores["accuracy"]["score"] == pytest.approx(100 * right_share(trained))


@pytest.mark.parametrize(("task", "steps"), [("pair-label", 150), ("similarity", 200), ("choice", 120)])
def test_labels_of_several_texts_are_learned(tmp_path: Path, task: str, steps: int) -> None:
    run = finished_run(write_project(tmp_path, task, steps=steps), tmp_path / "run", "training.schedule=cosine")
    assert right_share(run) > 0.9
    classifier = Classifier.load([run], "cpu")
    sources, _, found = Run(run).read_translated("test")
    results = [best for best, *_ in classifier.translations(sources, TranslationRequest())]
    assert [best.text for best in results] == found
    # In float64, as rounding depends on the order of the texts.
    exact = Classifier([load_model(find_model(run)).model.double()], classifier.tokenizer, classifier.decoding)
    for source, best in zip(sources, results, strict=True):
        assert best.probabilities is not None
        assert sum(best.probabilities.values()) == pytest.approx(1)
        if task == "choice":
            assert list(best.probabilities) == [str(number) for number in range(1, source.count("\t") + 1)]
        if task == "similarity":
            one, two = exact.classify([source]), exact.classify(["\t".join(reversed(source.split("\t")))])
            assert two[0].probabilities == pytest.approx(one[0].probabilities, rel=1e-12)
            assert one[0].probabilities == pytest.approx(best.probabilities, rel=1e-4)


@pytest.mark.parametrize(("middle", "unit"), [(0, 1), (500, 1000), (0, 0.001), (-1e7, 1)])
def test_numbers_are_learned_by_regression(tmp_path: Path, middle: float, unit: float) -> None:
    def scaled(rng: random.Random) -> tuple[str, str]:
        text, number = of_number(rng)
        return text, f"{middle + unit * float(number):.12g}"

    # At a constant rate of 0.01, the last weights may be off: by 0.06 to 0.46 units, depending on seed and processor.
    overrides = ("data.label_type=number", "training.schedule=cosine", "training.peak_learning_rate=0.005")
    run = Run(finished_run(write_project(tmp_path, "label", scaled, 300), tmp_path / "run", *overrides))
    _, labels, found = run.read_translated("test")
    expected, given = np.array(labels, float), np.array(found, float)
    assert np.corrcoef(expected, given)[0, 1] > 0.9
    assert np.abs(expected - given).mean() < 0.4 * unit
    scores = read_json(run.scores)["test"]
    assert scores["pearson"]["score"] == pytest.approx(100 * np.corrcoef(expected, given)[0, 1])


def test_sequences_have_the_added_entries_and_an_equal_share_for_each_field(tmp_path: Path) -> None:
    tokenizers = {}
    for task in EXAMPLE_OF:
        (tmp_path / task).mkdir()
        _, run = prepared(write_project(tmp_path / task, task), tmp_path / task / "run")
        tokenizers[task] = run.tokenizer()
        report = read_json(run.data_report)
        words = (tmp_path / task / "train.txt").read_text(encoding="utf-8").split()
        part = report["subwords"]["train"]["source"]  # whose characters are subwords
        assert (part["words"], part["tokens_per_word"]) == (len(words), round(len("".join(words)) / len(words), 4))

    def pieces(task: str, line: str) -> tuple[list[str], bool]:
        tokenizer = tokenizers[task]
        ((ids, is_cut, _),) = tokenizer.sequences([tokenizer.normalize(task_of(tokenizer).model_source(line))])
        return tokenizer.pieces(ids, "source"), is_cut

    assert pieces("label", " abc") == (["<start>", "a", "b", "c", "<extract>"], False)
    assert pieces("pair-label", " a \tb") == (["<start>", "a", "<delimiter>", "b", "<extract>"], False)
    assert pieces("similarity", "a\tb")[0] == [
        "<start>", "a", "<delimiter>", "b", "<extract>", "<start>", "b", "<delimiter>", "a", "<extract>"
    ]  # fmt: skip
    assert pieces("choice", "a\tb\tc")[0] == [
        "<start>", "a", "<delimiter>", "b", "<extract>", "<start>", "a", "<delimiter>", "c", "<extract>"
    ]  # fmt: skip
    long, is_cut = pieces("label", "a" * 100)
    assert (len(long), long[-1], is_cut) == (24, "<extract>", True)
    long, is_cut = pieces("pair-label", f"{'a' * 100}\tb")
    assert (long.count("a"), long.count("b"), is_cut) == (24 // 2 - 2, 1, True)  # as in the authors' code
    assert pieces("label", "a" * 22) == (["<start>", *"a" * 22, "<extract>"], False)
    assert tokenizers["label"].sequences([""]) == [([], False, 0)]


def model_of(head: str, vocab: int = 20, labels: int = 3) -> DecoderOnly:
    torch.manual_seed(3)
    config = ModelConfig.model_validate(
        {"architecture": "decoder", "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2, "head": head}
    )
    model = build_model(config, vocab, labels + 4)
    assert isinstance(model, DecoderOnly)
    assert count_parameters(config, vocab, labels + 4) == sum(parameter.numel() for parameter in model.parameters())
    return model.eval()


EXAMPLES = [[17, 5, 6, 19], [17, 7, 18, 8, 9, 19, 17, 8, 9, 18, 7, 19], [17, 5, 19, 17, 5, 6, 7, 19, 17, 6, 19]]


def expected_loss(model: DecoderOnly, labels: Sequence[int], source_loss: float) -> torch.Tensor:
    """Compute the loss example by example and sequence by sequence."""
    total = torch.zeros(())
    for ids, label in zip(EXAMPLES, labels, strict=True):
        ends = [index + 1 for index, token in enumerate(ids) if token == 19]
        rows = [ids[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
        states = [model.decode(torch.tensor([row]), torch.tensor([[3]]), torch.tensor([0]))[0] for row in rows]
        if model.config.head == "choice":
            output = torch.stack([model.head(state[-1])[0] for state in states])
        else:
            output = model.head(torch.stack([state[-1] for state in states]).sum(0))
        if model.config.head == "number":
            total = total + (output[0] - label) ** 2
        else:
            total = total + F.cross_entropy(output[None], torch.tensor([label]))
        of_rows = [
            F.cross_entropy(model.logits(state[:-1]), torch.tensor(row[1:]))
            for state, row in zip(states, rows, strict=True)
        ]
        total = total + source_loss * torch.stack(of_rows).mean()
    return total


@pytest.mark.parametrize(("head", "labels"), [("classes", [0, 2, 1]), ("choice", [0, 1, 2]), ("number", [0, 2, 5])])
def test_the_loss_and_its_gradient_are_those_of_each_sequence_by_itself(head: str, labels: list[int]) -> None:
    model = model_of(head).double()
    batch = batch_of_sequences(EXAMPLES, 19)
    batch = replace(batch, labels=torch.tensor(labels))
    assert isinstance(batch, LabelBatch)
    loss, nll = label_loss(model, batch, 0.0, 0.5)
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected = expected_loss(model, labels, 0.5)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    assert nll.item() == pytest.approx(expected_loss(model, labels, 0.0).item(), rel=1e-9)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-9), name


def test_operations_of_labels_are_those_that_torch_counts() -> None:
    model = model_of("classes")
    batch = batch_of_sequences([[17, 5, 6, 7, 19]] * 3, 19)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        states = model.decode(batch.target_in, *model.encode(batch.source, batch.source_lengths))
        model.logits(states[:, :-1])
        model.label_output(states, batch.last, batch.example, 3)
    lengths, ones = np.full(3, 5), np.ones(3, np.int64)
    counted = forward_flops(model.config, 20, lengths, ones, source_outputs=True, head_size=3)
    assert counted.flops == counter.get_total_flops()
    trained = forward_flops(model.config, 20, lengths, ones, TRAINING_FACTOR, source_outputs=True, head_size=3)
    assert trained.flops == TRAINING_FACTOR * counted.flops


def test_a_label_needs_no_float64_on_the_device(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, output = Classifier.load(trained), DecoderOnly.label_output
    [[expected]] = classifier.translations(["ab cd"], TranslationRequest())
    on_device = lambda *inputs: output(*inputs).as_subclass(WithoutFloat64)  # noqa: E731
    monkeypatch.setattr(DecoderOnly, "label_output", on_device)
    [[found]] = classifier.translations(["ab cd"], TranslationRequest())
    assert (found.text, found.score, found.probabilities) == (expected.text, expected.score, expected.probabilities)


def test_a_label_does_not_depend_on_the_other_lines(trained: Path) -> None:
    classifier = Classifier.load([trained], "cpu")
    sources, _, found = Run(trained).read_translated("test")
    assert [classifier.translate([source])[0] for source in sources[:10]] == found[:10]
    assert classifier.translate(["", *sources[:3], " \t "]) == ["", *found[:3], ""]


def test_training_data_are_examples_with_their_labels(trained: Path) -> None:
    run = Run(trained)
    tokenizer, data = run.tokenizer(), data_of(run, "valid")
    sources, labels = run.valid_text.read()
    batch = make_batch(data, range(len(data)))
    assert isinstance(batch, LabelBatch)
    assert [tokenizer.labels[int(label)] for label in batch.labels] == labels
    texts = [
        tokenizer.decode(row[:length].tolist(), "source")
        for row, length in zip(batch.target_in, batch.target_lengths, strict=True)
    ]
    assert texts == sources
    assert data.source_lengths.tolist() == batch.target_lengths.tolist()


def test_a_model_of_labels_does_not_translate_and_the_other_way_round(trained: Path) -> None:
    with pytest.raises(ModelError, match="use `nmtkit classify`"):
        Translator.load([trained], "cpu")
    for library in (ctranslate2, huggingface):
        with pytest.raises(ModelError, match='head = "classes"; use `nmtkit classify`'):
            library.check(load_model(find_model(trained)))
    tokenizer = learn_tokenizer(data_config(), lambda: TEXT)
    with pytest.raises(ModelError, match="use `nmtkit translate`"):
        Classifier([model_for(tokenizer)], tokenizer, DecodingConfig())


@pytest.mark.parametrize(
    ("task", "texts", "message"),
    [
        ("label", {"valid": ("a\nb\n", "yes\nmaybe\n")}, r"valid.label, line 2: the label 'maybe' does not occur in"),
        ("label", {"train": ("a\nb\tc\n", "x\ny\n")}, "line 2: has 2 fields with tabs between them, not one"),
        ("label", {"train": ("a\nb\n", "x\n")}, r"2 lines but .*train.label has 1; each line needs a label"),
        ("label", {"test": ("a\n", "x\ny\n")}, r"1 line but .*test.label has 2; each line needs a label"),
        ("label", {"train": ("", "")}, "empty"),
        ("pair-label", {"train": ("a\tb\nc\n", "x\ny\n")}, "train.txt, line 2: has 1 field; two texts need one tab"),
        ("similarity", {"test": ("a\tb\tc\n", "x\n")}, "test.txt, line 1: has 3 fields; two texts need one tab"),
        ("choice", {"train": ("a\tb\tc\nd\te\n", "1\n1\n")}, "line 2: has 2 fields; a context and two answers"),
        ("choice", {"train": ("a\tb\tc\n", "3\n")}, "line 1: the label '3' is not the number of an answer"),
        ("label", {"test": ("a\nb\n", "yes\n\n")}, "test.label, line 2: no label, so the line cannot be scored"),
        ("label", {"test": ("\nb\n", "yes\nno\n")}, "test.txt, line 1: no text, so the line cannot be scored"),
        ("choice", {"train": ("a\tb\tc\n", "b\n")}, "line 1: the label 'b' is not the number of an answer"),
        ("choice", {"train": ("a\tb\tc\n", "²\n")}, "line 1: the label '²' is not the number of an answer"),
        ("choice", {"train": ("a\tb\tc\n", f"{'1' * 5000}\n")}, "1' is not the number of an answer"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(
    tmp_path: Path, task: str, texts: dict[str, tuple[str, str]], message: str
) -> None:
    recipe = load_recipe(write_project(tmp_path, task, **texts))
    message_of(lambda: prepare(recipe, tmp_path / "run"), DataError, message)
    assert not (tmp_path / "run" / "data").exists()


def test_validation_and_test_examples_can_be_held_out(tmp_path: Path) -> None:
    _, run = prepared(write_project(tmp_path, "pair-label"), tmp_path / "run", "data.valid=50", "data.test=40")
    held_out = set[str]()
    train_texts = (tmp_path / "train.txt").read_text(encoding="utf-8").splitlines()
    for count, text in ((50, run.valid_text), (40, run.test_text("test"))):
        sources, labels = text.read()
        assert len(sources) == len(set(sources)) == count
        assert set(labels) == {"yes", "no"}
        assert set(sources) <= set(train_texts) - held_out  # with tabs between their fields
        held_out |= set(sources)
    assert len(data_of(run)) == sum(text not in held_out for text in train_texts)


def test_the_order_of_similar_texts_makes_no_other_example(tmp_path: Path) -> None:
    rng = random.Random(5)
    lines = [tuple(word(rng) for _ in range(2)) for _ in range(40)]
    both = [*lines, *((second, first) for first, second in lines)]
    train = "".join(f"{first}\t{second}\n" for first, second in both), "yes\nno\n" * 40
    test = "".join(f"{second}\t{first}\n" for first, second in lines[:4]), "yes\nno\n" * 2
    path = write_project(tmp_path, "similarity", train=train, test=test)
    _, run = prepared(path, tmp_path / "run", "data.valid=8", 'cleaning.overlap_test="drop"')
    held_out = {frozenset(line.split("\t")) for line in run.valid_text.read()[0]}
    tested = {frozenset(line) for line in lines[:4]}
    kept = {frozenset(both[line - 1]) for line in data_of(run).lines.tolist()}
    assert len(held_out) == 8 and not kept & (held_out | tested)
    assert kept == {frozenset(line) for line in lines} - held_out - tested


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('model.architecture="encoder-decoder"', 'needs [model] architecture = "decoder"'),
        ('model.source_attention="full"', 'source_attention = "causal"'),
        ("training.validate_bleu=true", "validate_bleu: not for"),
        ("training.r_drop=1.0", "r_drop: not for"),
        ('model.head="none"', "contradicts [data] task; leave head out"),
        ("data.share_vocab=true", "labels are no text; leave share_vocab out"),
        ('data.subwords="none"', "needs subwords = bpe, unigram, characters or gpt-bpe"),
        ("data.max_source_tokens=5", "max_source_tokens cannot be used"),
        ("data.sequence_length=2", "needs at least 3"),
        ("cleaning.max_ratio=3", 'max_ratio: no effect with [data] task = "label"'),
        ('cleaning.wrong_language="drop"', 'wrong_language: no effect with [data] task = "label"'),
        ("model.max_positions=20", "max_positions = 20 is less than [data] sequence_length = 24"),
    ],
)
def test_settings_that_contradict_a_label_are_refused(tmp_path: Path, override: str, message: str) -> None:
    path = write_project(tmp_path)
    with pytest.raises(RecipeError, match=re.escape(message)):
        load_recipe(path, [override])


def test_blanks_in_labels_do_not_count(tmp_path: Path) -> None:
    labels = "new  york\nrome\n new york \n\u00a0new\tyork\n" * 30
    texts = "".join(f"{text}\n" for text in ("ab", "cd", "ae", "af") * 30)
    path = write_project(
        tmp_path, steps=30, train=(texts, labels), valid=("a\n", "new \tyork\n"), test=("cd\n", "rome\n")
    )
    run = finished_run(path, tmp_path / "run")
    assert Run(run).tokenizer().labels == ("new york", "rome")
    assert right_share(run) == 1
    assert Classifier.load([run], "cpu").translate(["ab", "cd"]) == ["new york", "rome"]


@pytest.mark.parametrize(
    ("rule", "label", "text"),
    [
        ("html_entity", "R&amp;D", "ab &amp; c"), ("markup", "<b>x</b>", "<b>c</b>"),
        ("invisible_character", "x\u200by", "a\u200bb"), ("not_nfc", "e\u0301", "e\u0301"),
        ("control_character", "x\x01y", "a\x01b"),
    ],
)  # fmt: skip
def test_a_fix_corrects_texts_and_not_their_labels(tmp_path: Path, rule: str, label: str, text: str) -> None:
    pairs = (f"{text}\ncd\n" * 20, f"{label}\nother\n" * 20)
    _, run = prepared(write_project(tmp_path, train=pairs, valid=pairs), tmp_path / "run", f"cleaning.{rule}=fix")
    assert set(run.tokenizer().labels) == {label, "other"}
    assert text not in run.tokenizer().decode(data_of(run).ids(0, 0).tolist(), "source")
    valid = make_batch(data_of(run, "valid"), [0, 1])
    assert isinstance(valid, LabelBatch)
    assert [run.tokenizer().labels[int(number)] for number in valid.labels] == [label, "other"]


def test_invalid_bytes_are_read_in_labels_as_in_texts(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    for suffix in ("txt", "label"):
        (tmp_path / f"train.{suffix}").write_bytes(b"caf\xe9\nother\n" * 20)
    (tmp_path / "valid.label").write_text("café\n" * 40, encoding="utf-8")
    _, run = prepared(path, tmp_path / "run", "cleaning.invalid_utf8=fix")
    assert set(run.tokenizer().labels) == {"café", "other"}


def test_a_byte_order_mark_is_no_part_of_a_label(tmp_path: Path) -> None:
    pairs = ("a\nb\nc\n" * 20, "\ufeffno\ny\ufeffes\nyes\n" * 20)
    _, run = prepared(write_project(tmp_path, train=pairs, valid=("a\n", "yes\ufeff\n")), tmp_path / "run")
    assert run.tokenizer().labels == ("no", "yes")


def test_a_byte_order_mark_is_no_part_of_a_number(tmp_path: Path) -> None:
    path = write_project(tmp_path, train=("\ufeffa\nb\n", "\ufeff1\n2\n"), valid=("a\n", "1.5\n"), test=("a\n", "1\n"))
    _, run = prepared(path, tmp_path / "run", "data.label_type=number")
    assert run.tokenizer().labels == ("1.5", "1", "2")
    assert run.tokenizer().decode(data_of(run).ids(0, 0).tolist(), "source") == "a"


@pytest.mark.parametrize("number", ["high", "1e300", "1_000"])
def test_a_number_that_float32_or_the_field_does_not_write_is_refused(tmp_path: Path, number: str) -> None:
    path = write_project(tmp_path, train=("a\nb\n", f"1\n{number}\n"), valid=("a\n", "1\n"), test=("a\n", "1\n"))
    with pytest.raises(DataError, match=f"train.label, line 2: the label '{number}' is no number"):
        prepare(load_recipe(path, ["data.label_type=number"]), tmp_path / "run")


def test_equal_numbers_are_refused_by_neither_check_nor_prepare_where_a_validation_number_differs(
    tmp_path: Path,
) -> None:
    path = write_project(tmp_path, train=("a\nb\n", "1\n1\n"), valid=("a\n", "2\n"), test=("a\n", "1\n"))
    recipe = load_recipe(path, ["data.label_type=number"])
    assert check(recipe, tmp_path / "run").reasons == []
    prepare(recipe, tmp_path / "run", workers=1)


@pytest.mark.parametrize("name", ["train.txt", "train.label"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"a\nb\n"), "holds gzip data and no text; decompress it"),
        (b"a\rb\rc\r", "only carriage returns end its lines"),
    ],
    ids=["gzip", "carriage returns"],
)
def test_what_is_no_text_is_named_before_a_field_is_missed(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    recipe = load_recipe(write_project(tmp_path, "pair-label"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: {message}"):
        prepare(recipe, tmp_path / "run", workers=1)


def test_answers_need_not_be_as_many_as_in_training(tmp_path: Path) -> None:
    train_pairs = ("a\tzb\tc\nd\tze\tf\n" * 20, "1\n" * 40)
    longest = "ab\t" + "\t".join(["c" * 10, "d" * 10, "z" + "e" * 9])  # its sequences fit, and together they would not
    path = write_project(tmp_path, "choice", steps=20, train=train_pairs, valid=(f"{longest}\n", "3\n"))
    run = Run(tmp_path / "run")
    train_run(path, run.folder)
    assert data_of(run, "valid").source_lengths.tolist() == [3 * 15]
    assert '"valid_nll": ' in run.metrics.read_text(encoding="utf-8")


def test_micro_batches_count_the_padding_of_the_sequences_of_an_example(tmp_path: Path) -> None:
    lines = "a\t" + "b" * 9 + "\tc\td\n"
    path = write_project(tmp_path, "choice", train=(lines * 4, "1\n" * 4))
    data = data_of(prepared(path, tmp_path / "run")[1])
    batch = make_batch(data, [0, 1])
    assert batch.target_in.numel() == data.source_lengths[:2].sum() == 2 * 3 * 13
    lengths, _ = data.sequence_lengths(np.array([0]))
    assert lengths.tolist() == batch.target_lengths[:3].tolist() == [13, 5, 5]


@pytest.mark.parametrize("task", ["similarity", "choice"])
def test_figures_of_examples_count_their_sequences(tmp_path: Path, task: str) -> None:
    limits = ["training.max_steps=99", "training.max_epochs=1", "training.tokens_per_pass=100"]
    recipe, run = prepared(write_project(tmp_path, task), tmp_path / "run", *limits)
    data, added = data_of(run), 0
    for pairs in plan_of(data, recipe.training, 0).updates:
        for passed in shares_of(data, pairs, 100, 1, "cpu")[0]:
            batch = make_batch(data, passed)
            positions, ones = batch.target_in.numel(), np.ones(len(batch.target_in), np.int64)
            assert padded_tokens(data, passed) == micro_batch_size(data, passed) == positions <= 100
            assert real_tokens(data, passed) == batch.target_lengths.sum()
            padded, real = ones * batch.target_in.size(1), batch.target_lengths.numpy()
            added += forward_flops(recipe.model, 0, padded, ones, TRAINING_FACTOR).flops
            added -= forward_flops(recipe.model, 0, real, ones, TRAINING_FACTOR).flops
    train_run(recipe, run.folder)
    predicted, cost = read_json(run.prediction), training_cost(run.folder)
    assert cost["flops_padding"] == added > 0
    keys = ("updates", "target_tokens", "flops", "flops_attention", "flops_output", "flops_padding")
    assert {key: predicted[key] for key in keys} == {key: cost[key] for key in keys}


@pytest.mark.parametrize("unused", ["model.share_embeddings=none", "model.output_bias=true"])
def test_a_run_resumes_whose_loss_does_not_need_all_weights(tmp_path: Path, unused: str) -> None:
    for steps in (2, 4):
        recipe = load_recipe(write_project(tmp_path), ["training.source_loss=0", unused, f"training.max_steps={steps}"])
        assert train_run(recipe, tmp_path / "run").step == steps
    assert verify_resume(recipe, tmp_path / "run", Workers.start("cpu", "float32", 1)) == (3, 4)


def test_a_run_can_start_from_a_run_with_other_labels(tmp_path: Path, trained: Path) -> None:
    path = write_project(tmp_path, example=lambda rng: (word(rng), rng.choice(["p", "q", "r"])))
    overrides = [f"data.tokenizer={trained}", f"training.init={trained}", "training.max_steps=1"]
    train_run(path, tmp_path / "run", *overrides)
    model, start = (load_model(find_model(folder)).model.state_dict() for folder in (tmp_path / "run", trained))
    assert model["head.weight"].shape[0] == 3
    name = "decoder.0.feed_forward.inner.weight"
    assert torch.allclose(model[name], start[name], atol=0.02)


@pytest.mark.parametrize("key", ["task", "sequence_length"])
def test_a_damaged_tokenizer_of_labels_is_named(trained: Path, tmp_path: Path, key: str) -> None:
    shutil.copytree(Run(trained).averaged / "tokenizer", tmp_path / "tokenizer")
    settings = json.loads((tmp_path / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    del settings[key]
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer.json: damaged \(it lacks settings of a model of labels\)"):
        Tokenizer.load(tmp_path / "tokenizer")


def test_copies_of_test_examples_are_found_and_labels_that_training_lacks_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    texts = {"train": ("ab\ncd\nef\n", "x\ny\nx\n"), "valid": ("a\n", "x\n"), "test": ("ab\nz\n", "x\nz\n")}
    _, run = prepared(write_project(tmp_path, **texts), tmp_path / "run", 'cleaning.overlap_test="drop"')
    assert len(data_of(run)) == 2
    rules = read_json(run.data_report)["rules"]
    assert rules["overlap_test"]["count"] == 1
    assert rules["length_ratio"]["count"] == 0
    assert any("labels that no training example has, such as 'z', in line 2" in text for text in logged.messages)


def test_a_page_and_a_card_of_labels_show_no_translation_model(trained: Path) -> None:
    run = read_run(trained)
    assert "A model that labels texts in `en`" in card(run)
    assert example_pair(run) is None
    assert "nmtkit attention" not in report_page([run])


def test_all_commands_name_labels_and_not_translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path, steps=20)
    monkeypatch.chdir(tmp_path)
    shown = {}
    for arguments in (
        ("prepare", "mine.toml", "--run-dir", "run"), ("cost", "mine.toml", "--device-type", "h200", "--mfu", 0.3),
        ("run", "mine.toml", "--run-dir", "run", "--device", "cpu", "--threads", 1),
        ("score", "run"), ("cost", "run"), ("average", "run"), ("report", "run"),
    ):  # fmt: skip
        outcome = run_command(*arguments)
        assert outcome.code == 0, outcome.err
        shown[" ".join(map(str, arguments[:2]))] = outcome.out + outcome.err
    page = re.sub(r"(?s)<(script|style).*?</\1>", "", Path("run/report.html").read_text(encoding="utf-8"))
    shown["page"] = page.replace("<code>translations/</code>", "").replace("validate_bleu", "")
    shown["data"] = Path("run/data/report.html").read_text(encoding="utf-8")
    for name, text in shown.items():
        assert not re.findall("[Tt]ranslat\\w*|[Tt]arget tokens?|tokens/s|[Pp]erplexity|BLEU|\\d pairs?\\b", text), name
    told = shown["run mine.toml"]
    for words in ("validation nll of the label", "examples, in", "4/5 classify: 1 test set", "| nmtkit classify run"):
        assert words in told, words
    assert "labels seen" in shown["cost run"]
    assert "nats per label" in page
    Path("run/translations/test.txt").unlink()
    assert "test.txt: missing; make it with `nmtkit classify run --input" in run_command("score", "run").err
    shutil.copytree("run", "run2")
    told = run_command("compare", "run", "run2").err
    assert "run/translations/test.txt: missing; make it with `nmtkit classify run --input" in told


def test_a_wrong_line_of_input_is_named_and_leaves_nothing(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("ab\n" * 2500 + "c\td\n", encoding="utf-8")
    to_file = ("--output", tmp_path / "out.txt")
    for options in (to_file, ()):
        outcome = run_command("classify", trained, "--input", tmp_path / "in.txt", *options)
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.startswith(f"error: {tmp_path}/in.txt, line 2501: has 2 fields with tabs between them")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    streamed = run_with_streams("classify", trained, "--output", tmp_path / "out.txt", stdin=b"ab\nc\td\n")
    assert (streamed.code, streamed.err[:31]) == (1, "error: stdin, line 2: has 2 fie")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


@pytest.mark.parametrize("to_file", [True, False])
def test_lines_that_are_cut_are_named_once(trained: Path, tmp_path: Path, to_file: bool) -> None:
    lines = ["a" * (30 if number % 1500 == 7 else 5) for number in range(4000)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    output = ("--output", tmp_path / "out.txt") if to_file else ()
    outcome = run_command("classify", trained, "--input", tmp_path / "in.txt", "--quiet", *output)
    assert outcome.err == "warning: cut to the tokens that the model reads: 3 lines: 8, 1508, 3008\n"


def test_json_of_an_empty_line_has_the_keys_of_other_lines(trained: Path, tmp_path: Path) -> None:
    path = write_project(tmp_path, "label", of_number, 5)
    numbers = finished_run(path, tmp_path / "run", "data.label_type=number", "data.test=[]")
    (tmp_path / "in.txt").write_text("ab\n\n", encoding="utf-8")
    for model, key, nothing in ((trained, "label", ""), (numbers, "value", None)):
        outcome = run_command("classify", model, "--input", tmp_path / "in.txt", "--json")
        full, empty = map(json.loads, outcome.out.splitlines())
        assert full.keys() == empty.keys() == {"line", "source", key, "probabilities"}
        assert (empty[key], type(full[key])) == (nothing, type(full[key]))
        assert full[key]


def test_a_check_notes_a_validation_label_that_training_lacks(tmp_path: Path) -> None:
    path = write_project(tmp_path, valid=("a\nb\nc\n", "yes\nmaybe\nnever\n"))
    [reason] = check(load_recipe(path), tmp_path / "run").reasons
    assert re.search(r"valid.label, line 2: the label 'maybe' does not occur in .* whose labels are no, yes;", reason)
    assert check(load_recipe(write_project(tmp_path)), tmp_path / "run").reasons == []


@pytest.mark.parametrize("kind", ["class", "number"])
def test_a_check_notes_that_all_examples_have_one_label(tmp_path: Path, kind: str) -> None:
    path = write_project(tmp_path, train=("a\nb\n", "1\n1\n"), valid=("c\n", "1\n"), test=("d\n", "1\n"))
    recipe = load_recipe(path, [f"data.label_type={kind}"])
    told = "all training examples have the label '1', so there is nothing to learn"
    assert check(recipe, tmp_path / "run").reasons == [told]
    with pytest.raises(DataError, match=told):
        prepare(recipe, tmp_path / "run")


def test_a_held_out_label_that_training_lacks_is_named_by_its_line(tmp_path: Path) -> None:
    texts = "".join(f"{letter}{number}\n" for number in range(50) for letter in "ab")
    labels = ["x", "y"] * 50
    labels[56] = "rare"
    path = write_project(tmp_path, train=(texts, "".join(f"{label}\n" for label in labels)))
    told = r"^train.txt, line 57: the label 'rare' does not occur in the training data.*; data\.valid = 90 held it out"
    with pytest.raises(DataError, match=told):
        prepare(load_recipe(path, ["data.valid=90"]), tmp_path / "run")


def test_lines_of_a_table_may_have_more_cells_than_stated_and_not_fewer(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    table = tmp_path / "train.tsv"
    entry = f'{{ source = "{table}", target = "{table}", source_column = 2, target_column = 1 }}'
    recipe = load_recipe(path, [f"data.train=[{entry}]"])
    rows = ["yes\tab", "no\tcd\tan extra cell", "yes\tae\t\t"]
    table.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    assert len(data_of(prepared(recipe, tmp_path / "run")[1])) == 3
    table.write_text("".join(f"{row}\n" for row in [*rows, "yes"]), encoding="utf-8")
    with pytest.raises(DataError, match=r"train.tsv, line 4: has 1 column, not 2; correct the line .columns"):
        prepare(recipe, tmp_path / "other")


def test_runs_are_scored_compared_and_shown_by_their_labels(trained: Path, tmp_path: Path) -> None:
    one, two = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("one", "two"))
    _, gold, _ = Run(trained).read_translated("test")
    outputs = {one: ["no"] * 60, two: [*gold[:57], "no", "NO", "maybe"]}
    for run, labels in outputs.items():
        write_lines(Run(run).translation("test"), labels)
    metrics = ["accuracy", "f1", "macro-f1", "matthews"]
    scores = score_run(two)["test"]
    assert list(scores) == metrics
    assert scores["accuracy"].score == pytest.approx(100 * accuracy_score(gold, outputs[two]))
    assert scores["f1"].signature.startswith("labels|classes:2|positive:yes|lines:60|")
    comparison = compare_runs([one, two], trials=20)
    assert list(comparison.scores["test"]) == metrics
    tested = comparison.scores["test"]["accuracy"]["two"]
    assert tested.p_value == mcnemar(gold, *outputs.values())[2] and "mcnemar" in tested.signature
    assert "|bs:20|" in comparison.scores["test"]["f1"]["two"].signature
    change = comparison.changes["test"]["two"][0]
    assert (change.metric, change.before, change.after) == ("accuracy", 0, 100)
    explicit = compare_runs([one, two], method="mcnemar")
    assert explicit.scores["test"] == {"accuracy": comparison.scores["test"]["accuracy"]}
    outcome = run_command("compare", one, two, "--paired", "mcnemar")
    assert outcome.code == 0 and "test:mcnemar-exact" in outcome.out
    facts = read_run(two)
    worst = translated(facts, "test")
    assert not isinstance(worst, str) and (worst[0].metric, worst[0].quality, worst[-1].quality) == ("accuracy", 0, 100)
    page = report_page([facts], with_attention=False)
    assert "accuracy, test" in page and "chrF2" not in page
    wrong = sum(one.quality == 0 for one in worst)
    shown = page.partition("<summary>Worst")[2].partition("</details>")[0]
    assert 0 < wrong <= 3 and shown.count("accuracy 0<") == shown.count("<dt>line") == wrong
    # numbers are scored by other metrics
    recipe = Run(two).recipe_file
    text = recipe.read_text(encoding="utf-8").replace('"class"', '"number"').replace('"classes"', '"number"')
    recipe.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"one and two cannot be compared: data\.task, data\.text or"):
        compare_runs([one, two])
