"""Models with context: what they read for each line, the same for every way to translate a text, and its scores."""

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.decoding.file_translation import TranslationJob, as_they_come, translate_file, windows
from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.parts import Parts, Written
from nmtkit.decoding.request import Batching, Sampling, Segment, TranslationRequest
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, ModelError
from nmtkit.export.export import export
from nmtkit.model_folder import load_model, save_model
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.training.averaging import average, choose_checkpoints
from tests.conftest import run_command, run_with_streams, train_run
from tests.decoding.models import TEXT, data_config, model_for

RECIPE = (
    '[data]\nsource_language = "en"\ntarget_language = "de"\nsubwords = "none"\nvocab_size = 30\n'
    'train = [{ source = "train.en", target = "train.de" }]\ncontext = 2\ncontext_sides = "both"\n'
    '[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 32\nd_ff = 64\nnum_heads = 2\nnorm = "pre"\n'
    'dropout = 0.0\n[training]\ntokens_per_update = 1200\nwarmup_steps = 40\nschedule = "inverse-sqrt"\n'
    'peak_learning_rate = 0.01\nmax_steps = 250\ncheckpoint_every_steps = 250\nprecision = "float32"\n'
    "[decoding]\nbeam = 2\naverage_last = 1\n"
)
SENTENCES = [source for source, _ in TEXT]
LINES = [*SENTENCES, "", SENTENCES[2], SENTENCES[0], " ", "", *SENTENCES[1:], SENTENCES[1]]
LENGTHS = TrainingLengths(longest_source=30, target_ratio=1.0, multi_sentence_share=0.0, longest_sequence=90)


def tokenizer_of(sides: str, size: int = 2, **changes: object) -> Tokenizer:
    return learn_tokenizer(data_config(context=size, context_sides=sides, **changes), lambda: TEXT)


def translator_of(sides: str, lengths: TrainingLengths | None = LENGTHS, **changes: object) -> Translator:
    tokenizer = tokenizer_of(sides)
    decoding = DecodingConfig(beam=3, max_length=40)
    return Translator([model_for(tokenizer, **changes)], tokenizer, decoding, lengths=lengths)


def best(translator: Translator, lines: Sequence[str], size: int = 100, **request: object) -> list[tuple[str, float]]:
    found = translator.translations(lines, TranslationRequest(**request), batching=Batching(size))  # type: ignore[arg-type]
    return [(first.text, round(first.log_prob, 9)) for first, *_ in found]


@pytest.fixture(scope="module")
def trained_on_both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of a few seconds: the words of TEXT become capitals."""
    folder = tmp_path_factory.mktemp("both")
    rng, words = random.Random(1), " ".join(SENTENCES).split()
    lines = [" ".join(rng.choices(words, k=rng.randint(2, 6))) * (rng.random() > 0.2) for _ in range(3000)]
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    (folder / "both.toml").write_text(RECIPE)
    train_run(folder / "both.toml", folder / "run")
    average(choose_checkpoints(folder / "run", last=1), folder / "run" / "averaged")
    return folder / "run" / "averaged"


@pytest.fixture
def both(trained_on_both: Path) -> Translator:
    loaded = load_model(trained_on_both)
    return Translator([loaded.model.double()], loaded.tokenizer, loaded.decoding, lengths=loaded.lengths)


@pytest.fixture(params=["source", "both", "decoder"])
def translator(request: pytest.FixtureRequest) -> Translator:
    if request.param == "both":
        return request.getfixturevalue("both")
    joined = {"architecture": "decoder", "source_attention": "full"} if request.param == "decoder" else {}
    return translator_of("source", **joined)


@pytest.fixture(params=["source", "both"])
def model_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "both":
        return request.getfixturevalue("trained_on_both")
    tokenizer = tokenizer_of("source")
    model = model_for(tokenizer, torch.float32)
    decoding = DecodingConfig(beam=2, max_length=40)
    save_model(tmp_path / "model", model.state_dict(), model.config, tokenizer, decoding, {"step": 1}, LENGTHS)
    return tmp_path / "model"


def test_a_line_depends_on_the_lines_before_it_in_its_document_only(translator: Translator) -> None:
    whole = best(translator, LINES)
    assert [text for text, _ in whole if not text] == [""] * 3
    assert whole[0] == best(translator, LINES[:1])[0]
    assert whole[9:] == best(translator, LINES[9:])  # another document
    assert whole[3] == best(translator, LINES[1:4])[2]  # two sentences before it
    assert whole[3] != best(translator, LINES[2:4])[1]  # one
    assert whole[6] != whole[0]


def test_batches_and_windows_do_not_matter(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = best(translator, LINES)
    assert whole == best(translator, LINES, size=1) == best(translator, LINES, size=3)
    for size in (1, 2, 5):
        for cut in (windows, as_they_come):
            found = []
            for window in cut(LINES, size, translator.tokenizer.context):
                found += best(translator, window.lines, before=window.before)
            assert found == whole
    assert best(translator, LINES[4:], before=LINES[:4]) == whole[4:]


def test_files_by_windows_and_shares_are_translated_the_same(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.txt"
    source.write_text("".join(f"{line}\n" for line in LINES))
    expected = Translator.load(model_folder).translate(LINES)
    for lines in (1, 4, None):
        job = TranslationJob(Translator.load(model_folder))
        translate_file(job, source, tmp_path / f"{lines}.txt", window_lines=lines)
        assert (tmp_path / f"{lines}.txt").read_text().split("\n")[:-1] == expected
    assert run_with_streams("translate", model_folder, stdin=source.read_bytes()).lines == expected
    outcome = run_command("translate", model_folder, "--input", source, "--output", tmp_path / "out", "--json")
    assert outcome.code == 0
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["hypotheses"][0]["text"] for line in found] == expected
    assert not any("<sep>" in line["hypotheses"][0]["tokens"] for line in found)


def test_an_interrupted_file_is_resumed_with_its_context(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "source.txt", tmp_path / "output.txt"
    source.write_text("".join(f"{line}\n" for line in LINES))
    job, write = TranslationJob(Translator.load(model_folder)), Parts.write

    def stops_at_the_third(parts: Parts, number: int, written: Written) -> None:
        if number == 2:
            raise KeyboardInterrupt
        write(parts, number, written)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Parts, "write", stops_at_the_third)
        translate_file(job, source, output, window_lines=2)
    translate_file(job, source, output, window_lines=2)
    assert output.read_text().split("\n")[:-1] == Translator.load(model_folder).translate(LINES)


def test_a_model_of_both_sides_translates_each_line_alone(both: Translator) -> None:
    found = both.translate(LINES)
    pairs = [(text.split()[:2], line.upper().split()[:2]) for text, line in zip(found, LINES, strict=True)]
    assert sum(begins == expected for begins, expected in pairs) >= 11, found
    assert not any("SEP" in text.upper() for text in found)


def test_scores_are_those_of_the_lines_own_translation(
    both: Translator, trained_on_both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, model = both, load_model(trained_on_both).model.double()
    separators = [translator.tokenizer.separator_id(side) for side in ("source", "target")]
    seen: dict[int, tuple[Segment, Hypothesis]] = {}
    finish = Translator._finish

    def recording(self: Translator, segment: Segment, hypothesis: Hypothesis) -> object:
        seen.setdefault(segment.line, (segment, hypothesis))
        return finish(self, segment, hypothesis)

    monkeypatch.setattr(Translator, "_finish", recording)
    translations = translator.translations(LINES, TranslationRequest(attention=True))
    decoder = ForcedDecoder([model], translator.tokenizer, translator.decoding)
    for line, (segment, hypothesis) in seen.items():
        [found] = translations[line]
        count = segment.ids.count(separators[0])
        assert count == [0, 1, 2, 2, 0, 0, 1, 0, 0, 0, 1, 2, 2][line]
        assert hypothesis.ids.count(separators[1]) == count
        begin = len(hypothesis.ids) - len(found.pieces)
        assert begin == 0 or hypothesis.ids[begin - 1] == separators[1]
        [score] = decoder.score_ids([segment.ids], [list(hypothesis.ids)], unscored=[begin])
        assert score.log_prob == pytest.approx(found.log_prob, abs=1e-9)
        assert len(score.ids) == len(found.token_log_probs) == len(found.pieces) + 1
        assert found.alignment is not None
        assert len(found.alignment) == len(found.pieces)


def test_a_search_that_ends_within_the_context_gives_nothing() -> None:
    translator = translator_of("both")
    translator.decoding = translator.decoding.model_copy(update={"max_length_ratio": 0.0, "max_length_offset": 1})
    first, second = (found for [found] in translator.translations(SENTENCES[:2], TranslationRequest()))
    assert (len(first.pieces), second.text, second.hit_limit) == (1, "", True)


def test_max_length_is_that_of_each_translation_with_its_context() -> None:
    translator = translator_of("both")
    translator.decoding = translator.decoding.model_copy(update={"max_length": 2})
    segments = translator._segments(SENTENCES[:3], TranslationRequest())
    assert [translator._max_length(segment) for segment in segments] == [2, 5, 8]  # separators count


def test_forced_scores_read_the_pairs_before() -> None:
    for sides in ("source", "both"):
        tokenizer = tokenizer_of(sides)
        decoder = ForcedDecoder([model_for(tokenizer)], tokenizer, DecodingConfig(), LENGTHS)
        plain, before = decoder.score(TEXT[2:3])[0], TEXT[:2]
        [score] = decoder.score(TEXT[2:3], [before])
        separators = [tokenizer.separator_id(side) for side in tokenizer.context_sides]
        ids = [tokenizer.encode([pair[side] for pair in TEXT[:3]], name)
               for side, name in enumerate(("source", "target"))]  # fmt: skip
        rows = [
            [*one, separators[side], *two, separators[side], *three] if side < len(separators) else three
            for side, (one, two, three) in enumerate(ids)
        ]
        begin = len(rows[1]) - len(ids[1][2])
        [whole] = decoder.score_ids([rows[0]], [rows[1]])
        assert score.ids == plain.ids == whole.ids[begin:]
        assert score.log_probs == whole.log_probs[begin:] != plain.log_probs
        assert decoder.score(TEXT[2:3], [TEXT[3:] + before]) == [score]  # only the last two count
        [empty] = decoder.score([("", "")], [before])
        assert empty.remarks == ("empty_source", "empty_hypothesis")


def test_scores_of_files_read_documents(model_folder: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("source", "hypothesis")):
        lines = [*(pair[number] for pair in TEXT), "", TEXT[0][number]]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    outcome = run_command(
        "score", "--model", model_folder, "--source", tmp_path / "source", "--hypothesis", tmp_path / "hypothesis"
    )
    rows = [line.split("\t") for line in outcome.out.splitlines()]
    assert rows[4] == [
        "0.000000",
        "0",
        "1",
        "empty_source,empty_hypothesis",
    ]  # the translation of a blank line is blank
    scores = [float(row[0]) for row in rows]
    decoder = ForcedDecoder.load(model_folder)
    expected = [decoder.score([pair], [TEXT[max(0, line - 2) : line]])[0] for line, pair in enumerate(TEXT)]
    assert scores[:4] == pytest.approx([score.log_prob for score in expected], abs=1e-5)
    assert scores[5] == pytest.approx(scores[0], abs=1e-5)


def test_reranking_reads_the_sources_before(model_folder: Path, tmp_path: Path) -> None:
    decoder = ForcedDecoder.load(model_folder)
    lists = [{"source": source, "hypotheses": [{"text": target}]} for source, target in TEXT]
    (tmp_path / "lists").write_text("".join(json.dumps(entry) + "\n" for entry in lists))
    outcome = run_command("rerank", "--model", model_folder, "--input", tmp_path / "lists", "--list")
    if "target" in decoder.tokenizer.context_sides:
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        assert 'data.context_sides = "both"' in outcome.err
        return
    found = [json.loads(line)["hypotheses"][0]["model_scores"][0] for line in outcome.out.splitlines()]
    [score] = decoder.score(TEXT[2:3], [TEXT[:2]])
    penalty = ((5 + len(score.ids)) / 6) ** 0.6
    assert found[2] == pytest.approx(score.log_prob / penalty, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_best": 2}, "several translations per line"),
        ({"prefixes": ["Der"]}, "prefixes"),
        ({"required": [["Der"]]}, "required phrases"),
        ({"keep": ("urls",)}, "a glossary or kept spans"),
        ({"no_repeat_ngram": 3}, "no_repeat_ngram"),
        ({"min_length": 3}, "min_length"),
        ({"coverage_penalty": 0.2}, "coverage_penalty"),
        ({"finished": "beside"}, 'finished = "beside"'),
    ],
)
def test_what_has_no_meaning_with_generated_context_is_refused(changes: dict[str, object], named: str) -> None:
    translator, source_only = translator_of("both"), translator_of("source")
    request = TranslationRequest(**{key: value for key, value in changes.items() if key in vars(TranslationRequest())})  # type: ignore[arg-type]
    settings = {key: value for key, value in changes.items() if key not in vars(request)}
    for either in (translator, source_only):
        either.decoding = either.decoding.model_copy(update=settings)
    with pytest.raises(DataError, match=rf'{named}: not for models with data\.context_sides = "both"'):
        translator.translations(LINES[:1], request)
    assert source_only.translations(LINES[:1], request)
    sampled = translator_of("both").translations(LINES[:2], TranslationRequest(n_best=2, sampling=Sampling()))
    assert [len(samples) for samples in sampled] == [2, 2]


def test_export_refuses_context(model_folder: Path) -> None:
    with pytest.raises(ModelError, match="no other library reads the sentences before a line"):
        export(model_folder, "ctranslate2")
    assert not (model_folder / "export").exists()


def test_context_gives_way_where_a_sequence_would_be_too_long() -> None:
    translator = translator_of("source", LENGTHS.model_copy(update={"longest_source": 12, "longest_sequence": None}))
    [segment] = translator._segments(SENTENCES[1:2], TranslationRequest(before=SENTENCES[:1]))
    assert segment.context == 0
    long_line = " ".join(SENTENCES)
    segments = translator_of("source")._segments([SENTENCES[0], long_line, SENTENCES[1]], TranslationRequest())
    own = [segment.ids[segment.context :] for segment in segments]
    assert len(segments) > 3, "a line longer than any in training is cut"
    assert all(len(ids) <= LENGTHS.longest_source for ids in own)
    assert all(len(segment.ids) <= 90 for segment in segments)
    assert segments[-1].ids[: segments[-1].context].count(translator.tokenizer.separator_id("source")) == 2


def test_context_makes_no_sequence_longer_than_any_in_training_though_a_source_may_be() -> None:
    usual, longer = translator_of("source"), translator_of("source")
    usual.lengths = LENGTHS.model_copy(update={"longest_sequence": 20})
    # As a run has them that began with the weights of a model of longer sources.
    longer.lengths = usual.lengths.model_copy(update={"longest_source": 200})
    expected = usual._segments(SENTENCES, TranslationRequest())
    assert {bool(segment.context) for segment in expected} == {False, True}
    for translator, request in ((longer, TranslationRequest()), (usual, TranslationRequest(max_source_tokens=100))):
        assert translator._segments(SENTENCES, request) == expected


def test_the_sentences_of_a_line_are_context_of_each_other_as_lines_are() -> None:
    translator, request = translator_of("source"), TranslationRequest(attention=True)
    by_line = translator._segments(SENTENCES, request)
    lines = [" ".join(SENTENCES[:2]), " ".join(SENTENCES[2:])]
    assert [segment.ids for segment in translator._segments(lines, request)] == [segment.ids for segment in by_line]
    [second] = translator.translations(lines[1:], dataclasses.replace(request, before=lines[:1]))
    together = translator.translations(lines, request)[1]
    for one, other in zip(second, together, strict=True):  # float32 in batches of two sentences and of four
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)
        assert (one.log_prob, one.score) == pytest.approx((other.log_prob, other.score), abs=1e-5)
        assert (one.text, one.pieces, one.alignment, one.parts) == (
            other.text, other.pieces, other.alignment, other.parts
        )  # fmt: skip
    assert second[0].parts == 2
    assert second[0].text == " ".join(text for text, _ in best(translator, SENTENCES)[2:])
    whole = translator._segments(lines, dataclasses.replace(request, prefixes=["", "Der"]))
    assert len(whole) == 2
    assert len(translator._segments(lines, dataclasses.replace(request, split="never"))) == 2


def test_a_document_longer_than_the_model_is_translated() -> None:
    for joined in ({}, {"architecture": "decoder", "source_attention": "full"}):
        translator = translator_of("source", positions="learned", max_positions=60, **joined)
        most = 29 if joined else 59
        segments = translator._segments(SENTENCES * 5, TranslationRequest())
        assert len(segments) == 20
        assert max(len(segment.ids) for segment in segments) <= most
        assert any(segment.context for segment in segments)
        assert all(text for text, _ in best(translator, SENTENCES * 5))
