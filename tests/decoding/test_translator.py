import dataclasses
import functools
import inspect
import itertools
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import nmtkit
from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.decoding import translator as translator_module
from nmtkit.decoding.formats import format_output, line_status
from nmtkit.decoding.lengths import cut_source
from nmtkit.decoding.request import Batching, Sampling, Segment, Translation
from nmtkit.decoding.request import TranslationRequest as Request
from nmtkit.decoding.translator import Translator
from nmtkit.decoding.wanted import Wanted, mended
from nmtkit.distributed.workers import choose_device
from nmtkit.errors import DataError, ModelError, NmtkitError, RecipeError
from nmtkit.model.attention_weights import attention_weights
from nmtkit.model.transformer import Transformer
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.scripts import join_sentences
from nmtkit.text.terms import Glossary, Kind, kept_spans
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, UNK
from tests.conftest import message_of
from tests.decoding.models import TEXT, data_config, model_for, save

LINES = ["The dog sees a cat.", "A cat", "the small house runs home!", "dog", "", "Who sees the dog, a cat?", "a a a a"]


def model_that_says(index: int, tokenizer: Tokenizer, **changes: object) -> Transformer:
    """A model to which one token is always by far the most likely."""
    model = model_for(tokenizer, share_embeddings="none", **changes)
    last = model.decoder[-1].residuals[-1].norm
    last.weight.zero_()
    last.bias.fill_(1.0)
    model.embeddings["output"].zero_()
    model.embeddings["output"][index] = 1.0
    return model


def translator_of(tokenizer: Tokenizer, *models: Transformer, **decoding: object) -> Translator:
    settings = DecodingConfig.model_validate({"max_length_offset": 5, **decoding})
    return Translator(list(models) or [model_for(tokenizer)], tokenizer, settings)


# ---- precision


def test_bf16_scores_a_little_otherwise_and_fp16_is_refused_on_a_cpu(tokenizer: Tokenizer) -> None:
    model, settings = model_for(tokenizer, torch.float32), DecodingConfig(beam=1, max_length=6)
    exact, rounded = (
        [one[0] for one in Translator([model], tokenizer, settings, precision).translations(LINES[:4], Request())]
        for precision in ("float32", "bf16")
    )
    differences = [abs(a.token_log_probs[0] - b.token_log_probs[0]) for a, b in zip(exact, rounded, strict=True)]
    assert all(difference < 0.2 for difference in differences)
    assert max(differences) > 1e-4
    assert Translator([model], tokenizer, settings, "bf16").precision == "bf16"
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    with pytest.raises(NmtkitError, match=r"fp16 is for GPUs; choose bf16 or float32"):
        Translator([model], tokenizer, settings, "fp16")


# ---- batches


@pytest.mark.parametrize("room", [4, 1])
def test_a_batch_that_does_not_fit_into_memory_is_searched_in_halves(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    translator, search, sizes = translator_of(tokenizer), translator_module.beam_search, []

    def limited(stepper: Any, max_lengths: Any, **settings: Any) -> Any:
        sizes.append(len(max_lengths))
        if len(max_lengths) > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return search(stepper, max_lengths, **settings)

    expected = translator.translate(LINES)
    monkeypatch.setattr(translator_module, "beam_search", limited)
    assert translator.translate(LINES) == expected
    assert sizes[0] == 6 and max(sizes[1:]) == 3 and sizes.count(6) == 1
    sizes.clear()
    assert translator.translate(LINES) == expected
    assert max(sizes) <= room  # what did not fit is not tried again
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        translator.translate(LINES)


def test_the_default_batch_is_larger_on_a_gpu(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = translator_of(tokenizer)
    assert translator.batch_tokens == 2048
    monkeypatch.setattr(translator, "device", "cuda")
    assert translator.batch_tokens == 16_384


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and columns of each batch that is searched."""
    found: list[tuple[int, int]] = []
    stepper = translator_module.ModelStepper

    def recording(models: Any, source: torch.Tensor, lengths: torch.Tensor, **options: Any) -> Any:
        found.append((source.size(0), source.size(1)))
        return stepper(models, source, lengths, **options)

    monkeypatch.setattr(translator_module, "ModelStepper", recording)
    return found


def test_batches_are_as_large_as_asked(tokenizer: Tokenizer, shapes: list[tuple[int, int]]) -> None:
    translator = translator_of(tokenizer, beam=1, max_length_offset=0)
    translator.translate(LINES, batching=Batching(sentences=4))
    assert [rows for rows, _ in shapes] == [4, 2]  # the empty line takes no part
    shapes.clear()
    longest = max(len(ids) for ids in tokenizer.encode(LINES, "source")) + 1
    translator.translate(LINES * 4, batching=Batching(tokens=3 * longest))
    assert sum(rows for rows, _ in shapes) == 24
    assert max(rows * width for rows, width in shapes) <= 3 * longest
    assert shapes[0] == (3, longest)
    assert max(rows for rows, _ in shapes) > 3


def test_default_batches_are_smaller_for_many_hypotheses(
    tokenizer: Tokenizer, shapes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator_module.Translator, "batch_tokens", 80)
    sizes = []
    for beam, request in ((4, Request()), (32, Request()), (4, Request(sampling=Sampling(), n_best=80))):
        shapes.clear()
        translator_of(tokenizer, beam=beam, max_length_offset=0).translations(["the cat"] * 40, request)
        sizes.append(max(rows for rows, _ in shapes))
    assert sizes[0] // 4 == sizes[1] > sizes[2] == 1


def test_the_search_is_that_of_the_decoding_settings(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    search = translator_module.beam_search

    def recording(stepper: Any, max_lengths: list[int], **settings: Any) -> Any:
        calls.append({"max_lengths": max_lengths, **settings})
        return search(stepper, max_lengths, **settings)

    monkeypatch.setattr(translator_module, "beam_search", recording)
    line = "The dog"
    length = len(tokenizer.encode([line], "source")[0])
    for kind, expected in [("wu", (12 / 6) ** 0.7), ("length", 7**0.7), ("none", 1.0)]:
        translator_of(tokenizer, beam=3, alpha=0.7, length_penalty=kind, max_length_offset=4).translate([line])
        call = calls.pop()
        assert call["max_lengths"] == [length + 4]
        assert call["beam"] == 3
        assert call["penalty"](7) == pytest.approx(expected)
        assert set(call["suppressed"]) == {PAD, BOS, UNK}


def test_no_translation_holds_a_tag() -> None:
    corpus = {"source": "a.en", "target": "a.de", "source_prefix": "<bt>"}
    tagged = learn_tokenizer(data_config(train=[corpus]), lambda: TEXT)
    [tag] = tagged.tag_ids
    [said] = translator_of(tagged, model_that_says(tag, tagged)).translations(["The dog"], Request())
    assert "<bt>" not in said[0].pieces
    assert said[0].pieces


# ---- lines


def test_there_is_one_line_for_each_line_and_an_empty_one_for_no_text(tokenizer: Tokenizer) -> None:
    lines = ["", "The dog", "   ", "\t", "A cat", "\r", "\u3000", "The dog", ""]
    found = translator_of(tokenizer).translate(lines, batching=Batching(tokens=1))
    assert len(found) == len(lines)
    assert [bool(text) for text in found] == [False, True, False, False, True, False, False, True, False]
    assert found[1] == found[7] != found[4]
    assert translator_of(tokenizer).translate([]) == []
    assert translator_of(tokenizer).translate(["", " "]) == ["", ""]


def test_a_line_separator_stays_inside_its_line() -> None:
    separator = "\u2028"
    text = [*TEXT, (f"A{separator}B", f"A{separator}B")]
    tokenizer = learn_tokenizer(data_config(vocab_size=80), lambda: text)
    lines = ["The dog", f"A cat{separator}sees the dog\x0b\x0c\x85\x1c", "A cat"]
    translator = translator_of(tokenizer)
    found = translator.translate(lines)
    assert len(found) == 3
    assert found[0] == translator.translate(lines[:1])[0]
    assert found[2] == translator.translate(lines[2:])[0]
    assert found[1] not in (found[2], translator.translate(["sees the dog"])[0])
    # And in a translation.
    index = next(i for i in range(tokenizer.vocab_size("target")) if tokenizer.pieces([i], "target") == [separator])
    translator = translator_of(tokenizer, model_that_says(index, tokenizer), max_length_offset=0)
    length = len(tokenizer.encode(["The dog"], "source")[0])
    assert translator.translate(["The dog"]) == [separator * length]


def test_a_translation_is_one_line_even_where_its_bytes_are_a_line_end() -> None:
    tokenizer = learn_tokenizer(data_config(byte_fallback=True, vocab_size=320), lambda: TEXT)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size("target")), "target")
    model = model_that_says(pieces.index("<0x0A>"), tokenizer)
    found = translator_of(tokenizer, model).translate(["The dog", "A cat"])
    assert len(found) == 2
    assert not any("\n" in text for text in found)


def test_lines_are_normalised_as_the_tokenizer_was_trained() -> None:
    tokenizer = learn_tokenizer(data_config(normalize=["blanks", "lowercase"], vocab_size=60), lambda: TEXT)
    translator = translator_of(tokenizer, model_for(tokenizer, seed=2))
    expected = translator.translate(["the dog sees a cat."])
    assert translator.translate(["  THE \t dog  SEES a cat. "]) == expected
    assert expected not in ([""], translator.translate(["the dog"]))


# ---- sources that are too long


def joined(translator: Translator, parts: list[str]) -> str:
    """The parts' own translations, each translated whole, joined with a blank."""
    return " ".join(text for text in translator.translate(parts, split="never") if text)


def num_tokens(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode([text], "source")[0])


def test_a_source_that_is_too_long_is_cut_at_sentence_ends(tokenizer: Tokenizer) -> None:
    sentences = ["The dog sees a cat.", "Who sees the small house?", "A cat!", "The dog runs home", "home. A"]
    translator = translator_of(tokenizer, beam=2)
    line = " ".join(sentences)
    translate = functools.partial(translator.translate, split="never")
    whole = translate([line])[0]
    # As many whole sentences as there is room for.
    limit = sum(num_tokens(tokenizer, sentence) for sentence in sentences[1:3])
    assert num_tokens(tokenizer, " ".join(sentences[3:])) <= limit
    assert num_tokens(tokenizer, " ".join(sentences[:2])) > limit
    parts = [sentences[0], " ".join(sentences[1:3]), " ".join(sentences[3:])]
    expected = joined(translator, parts)
    assert translate([line], max_source_tokens=limit) == [expected]
    assert expected not in (whole, joined(translator, sentences))
    # A limit that holds the line makes no difference, and the other lines stay what they are.
    length = num_tokens(tokenizer, line)
    assert translate([line], max_source_tokens=length) == [whole]
    assert translate([line], max_source_tokens=length - 1) != [whole]
    others = translate(["The dog", "A cat"])
    assert translate(["The dog", line, "A cat"], max_source_tokens=limit) == [others[0], expected, others[1]]


@pytest.mark.parametrize(("share", "parts"), [(0.0, [0, 1, 2, 3, 4, 5]), (0.05, [0, 1, 2, 3, 4, 5]), (0.5, [0, 3, 5])])
def test_a_part_is_one_sentence_unless_training_had_lines_of_several(
    tokenizer: Tokenizer, share: float, parts: list[int]
) -> None:
    sentences = ["The dog sees a cat.", "Who sees the dog?", "A cat!", "The dog runs...", "\u201cA cat!\u201d dog"]
    limit = num_tokens(tokenizer, " ".join(sentences[2:]))
    assert num_tokens(tokenizer, " ".join(sentences[:3])) <= limit < num_tokens(tokenizer, " ".join(sentences[:4]))
    lengths = TrainingLengths(longest_source=limit, target_ratio=1.0, multi_sentence_share=share)
    translator = translator_of(tokenizer, beam=2)
    expected = joined(translator, [" ".join(sentences[a:b]) for a, b in itertools.pairwise(parts)])
    translate = functools.partial(translator.translate, split="never")
    whole = translate([" ".join(sentences)])
    translator.lengths = lengths
    assert translate([" ".join(sentences), " ".join(sentences[2:])])[0] == expected
    assert translate([" ".join(sentences)], max_source_tokens=1000) == whole
    # A line below the limit is not cut, whatever it holds.
    [[short]] = translator.translations([" ".join(sentences[2:])], Request(split="never"))
    assert short.parts == 1


SENTENCES = ["The dog sees a cat.", "Who sees the dog?", "A cat!"]
"""Sentences of one line."""


@pytest.mark.parametrize(
    ("split", "share", "is_split"),
    [
        ("auto", None, True),
        ("auto", 0.0, True),
        ("auto", 0.09, True),
        ("auto", 0.1, False),
        ("always", 0.5, True),
        ("never", 0.0, False),
        ("never", None, False),
    ],
)
def test_the_sentences_of_a_line_are_translated_one_by_one_if_training_hardly_had_such_lines(
    tokenizer: Tokenizer, split: Any, share: float | None, is_split: bool
) -> None:
    translator, line = translator_of(tokenizer, beam=2), " ".join(SENTENCES)
    one_by_one, whole = joined(translator, SENTENCES), joined(translator, [line])
    assert one_by_one != whole
    if share is not None:
        translator.lengths = TrainingLengths(longest_source=99, target_ratio=1.0, multi_sentence_share=share)
    found = translator.translations(["The dog", line, "", "A cat"], Request(split=split, attention=True))
    assert found[1][0].text == (one_by_one if is_split else whole)
    assert found[1][0].parts == (3 if is_split else 1)
    assert found[1][0].source_pieces == tuple(tokenizer.pieces(tokenizer.encode([line], "source")[0], "source"))
    others = [joined(translator, [text]) for text in ("The dog", "A cat")]
    assert [found[0][0].text, found[2][0].text, found[3][0].text] == [others[0], "", others[1]]
    assert translator.translate([line], split=split) == [found[1][0].text]


def test_lines_with_a_prefix_or_required_phrases_stay_whole(tokenizer: Tokenizer) -> None:
    translator, line = translator_of(tokenizer), " ".join(SENTENCES)
    for request in (Request(prefixes=["Der Hund", ""]), Request(required=[["Haus"], []])):
        constrained, free = translator.translations([line, line], request)
        assert (constrained[0].parts, free[0].parts) == (1, 3)
        with pytest.raises(DataError, match=r'^split = "always": prefixes and required phrases are for whole lines'):
            translator.translations([line, line], dataclasses.replace(request, split="always"))


def test_n_best_lists_and_samples_of_a_split_line_join_those_of_its_sentences(tokenizer: Tokenizer) -> None:
    translator, line = translator_of(tokenizer, beam=3), " ".join(SENTENCES)
    for request in (Request(n_best=3), Request(n_best=3, sampling=Sampling(seed=5))):
        [found] = translator.translations([line], request)
        assert len(found) == 3
        assert all(one.parts == 3 and one.pieces.count("</s>") == 2 for one in found)
    alone = translator.translations(SENTENCES, Request(n_best=3))
    best = translator.translations([line], Request(n_best=3))[0]
    for rank in range(3):
        assert best[rank].text == " ".join(of_line[rank].text for of_line in alone if of_line[rank].text)
        assert best[rank].log_prob == pytest.approx(sum(of_line[rank].log_prob for of_line in alone))


def test_a_tag_before_a_line_is_before_each_of_its_sentences(tokenizer: Tokenizer) -> None:
    data = data_config(train=[{"corpus": "mine/train", "source_prefix": "<bt>"}], vocab_size=70)
    tagged = learn_tokenizer(data, lambda: TEXT)
    translator = translator_of(tagged, model_for(tagged))
    found = translator.translate([f"<bt> {' '.join(SENTENCES)}"])
    assert found == [joined(translator, [f"<bt> {sentence}" for sentence in SENTENCES])]
    assert found != [joined(translator, SENTENCES)]
    [best] = translator.translations([f"<bt> {SENTENCES[0]}"], Request(keep=("tags",)))[0]
    assert best.missing == ()  # the tag is no markup of the text


@pytest.mark.parametrize("end", ["", " "])
def test_blanks_between_sentences_are_of_none_and_those_at_the_end_of_a_line_stay(end: str) -> None:
    tokenizer = learn_tokenizer(data_config(normalize=[]), lambda: TEXT)
    translator = translator_of(tokenizer)
    [[found]] = translator.translations(["  ".join(SENTENCES) + end], Request(attention=True))
    rows = tokenizer.encode([*SENTENCES[:-1], SENTENCES[-1] + end], "source")
    assert found.parts == len(SENTENCES)
    assert found.source_pieces == tuple(tokenizer.pieces(list(itertools.chain.from_iterable(rows)), "source"))


def test_sentences_in_chinese_and_japanese_are_joined_without_blanks() -> None:
    assert join_sentences(["Yes.", "", "No."]) == "Yes. No."
    assert (
        join_sentences(["\u6211\u6765\u3002", "\u4ed6\u53bb\uff01", "OK."]) == "\u6211\u6765\u3002\u4ed6\u53bb\uff01OK."
    )
    assert join_sentences(["\u306f\u3044\u3002", "\u306f\u3044"]) == "\u306f\u3044\u3002\u306f\u3044"
    wide = ["\u6211\u6765\u4e86\u3002", "OK\u3002", "123\uff01", "\u4ed6\u8d70\u3002"]
    assert join_sentences(wide) == "".join(wide)
    assert join_sentences(["\uc548\ub155.", "\uc548\ub155."]) == "\uc548\ub155. \uc548\ub155."


# ---- terms and spans


def test_a_term_that_occurs_is_in_the_translation_of_its_sentence(tokenizer: Tokenizer) -> None:
    translator = translator_of(tokenizer, beam=4)
    glossary = Glossary([("cat", "Hund"), ("small house", "Haus"), ("home", "heim"), ("home", "Haus")])
    lines = ["The dog sees a cat.", "Who? The CAT runs home.", "the small house", "Who sees the dog?", "cats"]
    free = translator.translations(lines, Request())
    found = translator.translations(lines, Request(glossary=glossary))
    assert all("Hund" in one[0].text for one in found[:2])
    assert any(term in found[1][0].text for term in ("heim", "Haus"))
    assert "Haus" in found[2][0].text
    assert not any(one[0].is_unsatisfied or one[0].missing for one in found)
    assert found[3:] == free[3:]  # no term occurs in them
    assert found[:3] != free[:3]
    assert found[1][0].parts == 2
    # Together with the phrases of each line.
    required = [["Katze"], ["rennt"], [], [], []]
    both = translator.translations(lines, Request(glossary=glossary, required=required))
    assert all(phrase in both[number][0].text for number in (0, 1) for phrase in (*required[number], "Hund"))


def test_a_translation_that_holds_its_terms_anyway_stays_as_it_is(tokenizer: Tokenizer) -> None:
    translator = translator_of(tokenizer, beam=4)
    [[free]] = translator.translations(["The dog sees a cat."], Request())
    word = free.text.split()[0]
    told: list[float] = []
    request = Request(glossary=Glossary([("dog", "Haus"), ("dog", word)]))
    [[found]] = translator.translations(["The dog sees a cat."], request, advance=told.append)
    assert found == free
    assert told == [0.5, 1.0]
    free_told: list[float] = []
    translator.translations(["A dog sees it."], Request(), advance=free_told.append)
    assert free_told == [1.0]


def test_the_best_translation_with_a_term_does_not_depend_on_the_number_of_translations(tokenizer: Tokenizer) -> None:
    changed = 0
    for seed in range(1, 4):
        translator = translator_of(tokenizer, model_for(tokenizer, seed=seed), beam=4)
        for line, _ in TEXT:
            [[free]] = translator.translations([line], Request())
            request = Request(glossary=Glossary([(line.split()[1], free.text.split()[-1])]))
            [[one]], [four] = (
                translator.translations([line], dataclasses.replace(request, n_best=count)) for count in (1, 4)
            )
            assert (four[0].text, four[0].score) == (one.text, pytest.approx(one.score))
            changed += any(found.missing for found in four)
    assert changed  # else the test could not fail


def test_spans_are_kept_and_what_the_vocabulary_cannot_write_is_missing() -> None:
    pairs = [("The dog sees 12 cats (34).", "Der Hund sieht 12 Katzen (34)."), ("See a@b.de, 56.", "Siehe a@b.de, 56.")]
    tokenizer = learn_tokenizer(data_config(vocab_size=60), lambda: pairs)
    translator = translator_of(tokenizer, model_for(tokenizer), beam=4, max_length_offset=20)
    lines = ["The dog sees 65 (43).", "a@e.de", "the dog", "The dog sees 789."]
    request = Request(keep=("emails", "numbers"))
    found = [best for best, *_ in translator.translations(lines, request)]
    assert all(span in found[0].text for span in ("65", "43"))
    assert "a@e.de" in found[1].text
    for line, one in zip(lines, found, strict=True):
        kept = {one.text[start:stop] for start, stop, _ in kept_spans(one.text, request.keep)}
        spans = [line[start:stop] for start, stop, _ in kept_spans(line, request.keep)]
        assert one.missing == tuple(span for span in spans if span not in kept)
        assert one.is_unsatisfied == bool(one.missing)
    others = translator.translations(lines, Request(keep=("urls", "tags")))
    free = translator.translate(lines)
    assert [best.text for best, *_ in others] == free
    assert free[2] == found[2].text
    assert "65" not in free[0]
    unknown = found[3]  # no 7, 8 or 9 is in the vocabulary
    assert unknown.missing == ("789",)
    assert "unmet" in line_status(lines[3], unknown, invalid_utf8=False)
    [line] = format_output("json", 1, lines[3], [unknown])
    assert json.loads(line)["hypotheses"][0]["missing"] == ["789"]
    [[without]] = translator.translations(lines[:1], dataclasses.replace(request, forbidden=["65"]))
    assert "65" in without.missing


MARKUP = '<a title="Who? The dog.">'


@pytest.mark.parametrize(
    ("constraints", "line", "parts"),
    [
        (Request(keep=("tags",)), f"The dog sees {MARKUP} A cat! The dog.", 3),
        (Request(keep=("tags",), split="never", max_source_tokens=9), f"The dog sees {MARKUP} A cat!", 2),
        (Request(glossary=Glossary([("Yahoo! Inc", MARKUP)])), "Who? The dog sees Yahoo! Inc. A cat!", 3),
        (Request(glossary=Glossary([("dog! A", MARKUP), ("cat? The house", MARKUP)])), "The dog! A cat? The house.", 1),
    ],
)
def test_no_sentence_ends_in_a_span_or_term_and_the_first_part_contains_one_that_is_cut(
    constraints: Request, line: str, parts: int
) -> None:
    tokenizer = learn_tokenizer(data_config(vocab_size=90), lambda: [*TEXT, (line, MARKUP)])
    translator = translator_of(tokenizer, model_for(tokenizer), beam=4, max_length=50)
    [[best]] = translator.translations([line], constraints)
    assert best.parts == parts
    assert (MARKUP in best.text, best.missing) == (True, ())


def test_a_part_of_a_term_that_is_cut_is_not_wanted() -> None:
    tokenizer = learn_tokenizer(data_config(vocab_size=90), lambda: TEXT)
    glossary = Glossary([("The dog sees a cat", "Hund"), ("a cat", "Katze"), ("The dog", "Der Hund")])
    longest = len(tokenizer.encode(["The dog sees"], "source")[0])
    request = Request(glossary=glossary, split="never", max_source_tokens=longest)
    segments = translator_of(tokenizer)._segments(["The dog sees a cat"], request)
    assert [[entry.texts for entry in segment.wanted] for segment in segments] == [[("Hund",)], []]


@pytest.mark.parametrize("longest", [100, 12, 4])
def test_terms_and_spans_of_a_cut_line_are_those_of_its_text(longest: int) -> None:
    tokenizer = learn_tokenizer(data_config(vocab_size=90), lambda: TEXT)
    glossary = Glossary([("\u0141\u00f3d\u017a", "Hund"), ("house", "Haus")])
    request = Request(glossary=glossary, keep=("urls",), split="never", max_source_tokens=longest)
    segments = translator_of(tokenizer)._segments(["The \u0141\u00f3d\u017a http://a.b/~x and the house"], request)
    # The characters of both have no entries in the vocabulary.
    texts = [entry.texts for segment in segments for entry in segment.wanted]
    assert sorted(texts) == [("Haus",), ("Hund",), ("http://a.b/~x",)]


@pytest.mark.parametrize(
    ("text", "spans", "expected", "left"),
    [
        ("Siehe (http://a.b/xx). Ja 13.", ["http://a.c/xy", "12"], "Siehe (http://a.c/xy). Ja 12.", []),
        ("Es sind 3,5 und 20 da", ["3.5", "20"], "Es sind 3.5", []),
        ("Zwei 5 und 77", ["12"], "", ["12"]),  # too different to be a wrong copy
        ("Mail a.d@x.yz: 1999 oder 1998.", ["a.b@x.yz", "1998", "1988"], "Mail a.b@x.yz: 1988", []),
        ("Ohne", ["12"], "", ["12"]),
    ],
)
def test_wrong_copies_of_spans_are_replaced(text: str, spans: list[str], expected: str, left: list[str]) -> None:
    kinds: tuple[Kind, ...] = ("urls", "emails", "numbers")
    wanted = [Wanted((span,), ((5,),), kept_spans(span, kinds)[0][2]) for span in spans]
    missing = [entry for entry in wanted if entry.texts[0] not in text]
    found, rest = mended(text, wanted, missing, kinds)
    assert (found, [entry.texts[0] for entry in rest]) == (expected, left)


def test_a_wrong_copy_changes_nothing_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("The dog sees 1234 cats.", "Der Hund sieht 1234 Katzen."), ("5678 cats", "5678 Katzen")]
    tokenizer = learn_tokenizer(data_config(vocab_size=50), lambda: pairs)
    translator = translator_of(tokenizer, beam=2)
    searched: list[Segment] = []
    search = translator.search_segments

    def recording(segments: Any, *others: Any) -> Any:
        searched.extend(segments)
        for batch in search(segments, *others):
            if len(searched) == 1:  # the first search gives a wrong copy
                batch = {0: [dataclasses.replace(batch[0][0], text="Der Hund sieht 1243 Katzen.")]}
            yield batch

    monkeypatch.setattr(translator, "search_segments", recording)
    [[found]] = translator.translations(["The dog sees 1234 cats."], Request(keep=("numbers",)))
    prefix = tuple(tokenizer.encode(["Der Hund sieht 1234"], "target")[0])
    assert (searched[1].prefix, searched[1].enforced, searched[1].ends_word) == (prefix, (), True)
    assert found.text.startswith("Der Hund sieht 1234")
    assert found.missing == ()
    searched.clear()
    [[unknown]] = translator.translations(["The dog sees 99."], Request(keep=("numbers",)))
    assert unknown.missing == ("99",)
    assert len(searched) == 1  # another search could not change anything


def test_a_sentence_that_is_too_long_is_cut_between_words_and_no_part_goes_beyond_it(tokenizer: Tokenizer) -> None:
    lengths = TrainingLengths(longest_source=1, target_ratio=1.0, multi_sentence_share=0.0)
    sentences = ["A cat.", "The small dog sees the small house and the cat runs home.", "Who?"]
    [ids] = tokenizer.encode([" ".join(sentences)], "source")
    parts = cut_source(tokenizer, ids, num_tokens(tokenizer, sentences[1]) - 1, lengths)
    texts = [tokenizer.decode(part, "source").strip() for part in parts]
    assert texts[0] == sentences[0]
    assert " ".join(texts[1:-1]) == sentences[1]
    assert len(texts) == 4
    assert texts[-1] == sentences[2]


def test_a_translation_of_less_than_a_third_of_the_expected_tokens_is_short(tokenizer: Tokenizer) -> None:
    translator = translator_of(tokenizer, beam=1, max_length=2, max_length_offset=0)
    line = "The small dog sees the small house."
    tokens = num_tokens(tokenizer, line)
    found = {}
    for ratio in (5.9 / tokens, 6.1 / tokens):
        translator.lengths = TrainingLengths(longest_source=99, target_ratio=ratio, multi_sentence_share=0.0)
        [[best], [empty]] = translator.translations([line, ""], Request())
        assert len(best.pieces) == 2
        assert not empty.is_short
        found[ratio] = best.is_short
    assert list(found.values()) == [False, True]


def test_a_long_source_without_blanks_is_cut_at_its_sentence_ends() -> None:
    sentences = ["我看见一只狗。", "谁看见房子？", "猫！", "狗跑回家。"]
    text = "".join(sentences)
    tokenizer = learn_tokenizer(data_config(source_language="zh", vocab_size=60), lambda: [(text, "ein Hund")] * 3)
    [ids] = tokenizer.encode([text], "source")
    assert len(ids) == 8  # of each sentence its words and its mark
    for limit, places in ((5, [0, 2, 4]), (3, [0, 1, 2, 3, 4])):
        parts = cut_source(tokenizer, ids, limit)
        expected = ["".join(sentences[start:stop]) for start, stop in itertools.pairwise(places)]
        assert [tokenizer.decode(part, "source") for part in parts] == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("▁我 来 。", "他 去 了 。"),
        ("▁我 来 。 ”", "他 去 了 。"),
        ("▁我 来 。” ）", "「 他 去 了 」"),
        ("▁我 来 ！", "“他 去 了"),
        ("▁来 。", "（ 「 他 去"),
    ],
)
def test_closing_marks_stay_with_their_sentence_and_opening_ones_go_with_the_next(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    pieces, length = [*first.split(), *second.split()], len(first.split())
    monkeypatch.setattr(tokenizer, "pieces", lambda ids, side: pieces)
    ids = list(range(len(pieces)))
    assert cut_source(tokenizer, ids, len(ids) - 1) == [ids[:length], ids[length:]]


def test_one_string_is_not_taken_for_a_list_of_lines(tokenizer: Tokenizer) -> None:
    with pytest.raises(TypeError, match="a list of strings"):
        translator_of(tokenizer).translate("The dog sees a cat.")
    for odd in (None, float("nan"), ("a", "b")):
        with pytest.raises(TypeError, match=r"^line 2 is .*, not a string$"):
            translator_of(tokenizer).translate(["The dog", odd])  # type: ignore[list-item]


def test_lines_are_any_iterable_and_the_line_end_after_a_line_is_no_part_of_it(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    translator, file = translator_of(tokenizer), tmp_path / "lines"
    expected = translator.translate(LINES)
    file.write_bytes("".join(f"{line}\r\n" for line in LINES).encode())
    with file.open(newline="") as lines:
        assert translator.translate(lines) == expected
    assert translator.translate(f"{line}\n" for line in LINES) == expected
    assert translator.translate([f"{line}\n\n" for line in LINES]) != expected
    [[found]] = translator.translations(iter(["A cat\n"]), Request(prefixes=["Der Hund\n"], forbidden=["Katze\n"]))
    assert found.text.startswith("Der Hund")


@pytest.mark.parametrize(
    ("names", "value", "error", "message"),
    [
        (["prefixes", "forbidden", "required"], "der", TypeError, "each character of which would be a phrase"),
        (["required"], ["der"], TypeError, "each character of which would be a phrase"),
        (["prefixes", "required", "forbidden", "keep", "before"], iter(()), TypeError, "none is an iterator"),
        (["n_best", "max_source_tokens", "first_line"], 0, ValueError, "are at least 1"),
        (["split"], "maybe", ValueError, "split is one of auto, always, never, and keep holds some of tags, urls"),
        (["keep"], ("names",), ValueError, "split is one of auto, always, never, and keep holds some of tags, urls"),
    ],
)
def test_requests_of_wrong_values_are_refused(
    names: list[str], value: Any, error: type[Exception], message: str
) -> None:
    unchecked = inspect.unwrap(Request.__init__)  # tests check types, which would be refused first
    for name in names:
        with pytest.raises(error, match=message):
            unchecked(Request.__new__(Request), **{name: value})


@pytest.mark.parametrize(
    "numbers",
    [
        {"temperature": 0.0},
        {"temperature": 1e-7},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 1.5},
        {"seed": -1},
    ],
)
def test_samples_that_cannot_be_drawn_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(numbers))} "):
        Sampling(**numbers)


def test_settings_of_the_search_can_be_given_to_load_and_are_checked(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(folder, tokenizer, beam=3, alpha=0.5)
    assert Translator.load(folder, decoding={"beam": 1}).decoding == DecodingConfig(beam=1, alpha=0.5)
    for wrong, message in (
        ({"beam": 0}, "given settings: decoding.beam = 0: must be at least 1"),
        ({"beem": 1}, "given settings: unknown key decoding.beem; did you mean beam?"),
    ):
        with pytest.raises(RecipeError, match=f"^{re.escape(message)}$"):
            Translator.load(folder, decoding=wrong)


def test_models_devices_and_precisions_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^no model is given$"):
        Translator.load([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert choose_device("auto").type == "cpu"
        assert choose_device("mps").type == "mps"
    with pytest.raises(NmtkitError, match="--device nowhere: choose auto, cpu, cuda or mps"):
        Translator.load(tmp_path, device="nowhere")
    if not torch.cuda.is_available():
        for name in ("cuda", "cuda:1"):
            with pytest.raises(NmtkitError, match="torch finds no such device on this machine"):
                Translator.load(tmp_path, device=name)


def test_a_precision_that_is_none_is_told(tokenizer: Tokenizer) -> None:
    translator = Translator.__new__(Translator)
    unchecked = inspect.unwrap(Translator.__init__)  # tests check types, which would be told first
    with pytest.raises(NmtkitError, match=r"^precision int8: choose float32, bf16, fp16$"):
        unchecked(translator, [model_for(tokenizer)], tokenizer, DecodingConfig(), "int8")  # type: ignore[arg-type]


def test_a_long_source_without_sentence_ends_is_cut_between_words(tokenizer: Tokenizer) -> None:
    words = ["the", "small", "dog", "sees", "house", "cat", "runs", "home"]
    limit = 2 + max(num_tokens(tokenizer, word) for word in words)
    parts: list[list[str]] = [[]]
    for word in words:
        if num_tokens(tokenizer, " ".join([*parts[-1], word])) > limit:
            parts.append([])
        parts[-1].append(word)
    assert len(parts) > 2
    translator = translator_of(tokenizer)
    expected = joined(translator, [" ".join(part) for part in parts])
    assert translator.translate([" ".join(words)], max_source_tokens=limit) == [expected]
    assert expected != joined(translator, words)


def test_a_long_word_is_cut_anywhere_and_no_part_is_longer_than_the_limit(tokenizer: Tokenizer) -> None:
    line = "doghousecatsmallrunsThedoghome" * 3
    ids = tokenizer.encode([line], "source")[0]
    translator = translator_of(tokenizer, beam=1)
    segments = [Segment(0, ids[start : start + 5], words=0) for start in range(0, len(ids), 5)]
    found = translator._segments([line], Request(max_source_tokens=5))
    assert [segment.ids for segment in found] == [segment.ids for segment in segments]
    texts = [tokenizer.decode(translator._search([segment], [], Request())[0][0].ids) for segment in segments]
    assert translator.translate([line], max_source_tokens=5) == [" ".join(text for text in texts if text)]


def test_learned_positions_limit_source_and_translation(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer, positions="learned", max_positions=10)
    translator = translator_of(tokenizer, model, beam=2, max_length_offset=50)
    line = "The dog sees a cat. Who sees the small house?"
    assert num_tokens(tokenizer, line) > 9
    assert translator.translate([line]) == translator.translate([line], max_source_tokens=9)
    assert translator.translate([line]) != translator.translate([line], max_source_tokens=4)
    index = tokenizer.encode(["house"], "target")[0][-1]
    endless = model_that_says(index, tokenizer, positions="learned", max_positions=10)
    found = translator_of(tokenizer, endless, beam=1, max_length_offset=50).translate(["A cat"])
    assert found == [tokenizer.decode([index] * 9)]  # and the begin symbol is the tenth


# ---- model folders


def test_several_model_folders_are_an_ensemble(tokenizer: Tokenizer, tmp_path: Path) -> None:
    models = [save(tmp_path / str(seed), tokenizer, seed, beam=2, max_length_offset=3) for seed in (1, 2)]
    found = Translator.load([tmp_path / "1", tmp_path / "2"]).translate(LINES)
    assert found == translator_of(tokenizer, *models, beam=2, max_length_offset=3).translate(LINES)
    assert found != Translator.load([tmp_path / "1"]).translate(LINES)
    assert Translator.load([tmp_path / "1"] * 2).translate(LINES) == Translator.load([tmp_path / "1"]).translate(LINES)


@pytest.mark.parametrize("other", [{"vocab_size": 60}, {"normalize": ["nfc"]}], ids=["pieces", "normalisation"])
def test_an_ensemble_of_different_vocabularies_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, other: dict[str, object]
) -> None:
    save(tmp_path / "first", tokenizer)
    save(tmp_path / "second", tokenizer)
    save(tmp_path / "third", learn_tokenizer(data_config(**other), lambda: TEXT))
    folders = [tmp_path / name for name in ("first", "second", "third")]
    message = message_of(lambda: Translator.load(folders), ModelError)
    assert message.startswith(f"{folders[2]}: ")
    assert "vocabulary" in message and str(folders[0]) in message


# ---- what can be asked for


def requested(
    tokenizer: Tokenizer, request: Request, lines: list[str] | None = None, **decoding: object
) -> list[list[Translation]]:
    return translator_of(tokenizer, **decoding).translations(LINES if lines is None else lines, request)


def test_translations_tell_what_the_search_found(tokenizer: Tokenizer) -> None:
    plain = translator_of(tokenizer, beam=4).translate(LINES)
    for line, (text, found) in enumerate(zip(plain, requested(tokenizer, Request(n_best=3), beam=4), strict=True)):
        assert found[0].text == text
        if not LINES[line]:
            assert found == [Translation("", 0.0, 0.0, (), ())]
            continue
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({one.pieces for one in found}) == 3
        for one in found:
            tokens = len(one.pieces) + 1
            assert sum(one.token_log_probs) == pytest.approx(one.log_prob)
            assert len(one.token_log_probs) == tokens
            assert one.score == pytest.approx(one.log_prob / ((5 + tokens) / 6) ** 0.6)
            assert one.alignment is None
            assert one.parts == 1
            limit = len(tokenizer.encode([LINES[line]], "source")[0]) + 5
            assert one.hit_limit == (len(one.pieces) == limit)


def test_an_alignment_is_where_the_last_layer_looks_most_in_a_pass_over_the_pair(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer)
    lines = [line for line in LINES if line]
    entries = tokenizer.entries("target")
    seen = set()
    for found in translator_of(tokenizer, model, beam=4).translations(lines, Request(attention=True, n_best=2)):
        for one in found:
            assert one.source_pieces is not None
            assert one.alignment is not None
            source = torch.tensor([[tokenizer.entries("source").index(piece) for piece in one.source_pieces] + [EOS]])
            target = torch.tensor([[BOS, *(entries.index(piece) for piece in one.pieces)]])
            weights = attention_weights(model, source, target).cross[-1].mean(0)[:-1, :-1]  # [pieces, source pieces]
            chosen = weights.gather(1, torch.tensor(one.alignment, dtype=torch.long)[:, None]).squeeze(1)
            assert torch.allclose(chosen, weights.amax(1), atol=1e-6)
            assert weights.size(1) == 1 or (chosen > weights.amin(1) + 1e-6).all()
            seen |= set(one.alignment)
            assert len(one.alignment) == len(one.pieces)
    assert len(seen) > 3
    [[empty]] = requested(tokenizer, Request(attention=True), [""])
    assert (empty.alignment, empty.source_pieces) == ((), ())


@pytest.mark.parametrize(("request_", "beta"), [(Request(attention=True), 0.0), (Request(), 0.2)])
def test_attention_to_the_source_is_refused_where_no_layer_sees_it_whole(
    tokenizer: Tokenizer, request_: Request, beta: float
) -> None:
    for kinds, is_refused in ((["local"], True), (["compressed", "local"], False)):
        model = model_for(tokenizer, architecture="decoder", decoder_layers=2, self_attention=kinds)
        with pytest.raises(DataError, match="sees the whole source") if is_refused else nullcontext():
            found = translator_of(tokenizer, model, coverage_penalty=beta).translations(LINES, request_)
            assert len(list(found)) == len(LINES)


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder"])
def test_a_coverage_penalty_is_a_sum_over_the_tokens_that_the_model_reads(
    tokenizer: Tokenizer, architecture: str
) -> None:
    model = model_for(tokenizer, architecture=architecture)
    translator = translator_of(tokenizer, model, beam=2, coverage_penalty=0.2, length_penalty="none")
    entries = tokenizer.entries("target")
    for [best] in translator.translations([line for line, _ in TEXT], Request(attention=True)):
        source = [tokenizer.entries("source").index(piece) for piece in best.source_pieces or ()]
        target = [BOS, *(entries.index(piece) for piece in best.pieces)]
        weights = attention_weights(model, torch.tensor([[*source, EOS]]), torch.tensor([target])).cross[-1].mean(0)
        covered = (weights / weights.sum(1, keepdim=True)).sum(0).clamp(max=1.0)
        assert best.score == pytest.approx(best.log_prob + 0.2 * float(covered.log().sum()), abs=1e-6)


def test_the_numbers_of_a_cut_line_are_sums_over_its_parts(tokenizer: Tokenizer) -> None:
    line = "The dog sees a cat. Who sees the small house?"
    [first] = tokenizer.encode(["The dog sees a cat."], "source")
    whole = tokenizer.encode([line], "source")[0]
    limit = max(len(first), len(whole) - len(first))
    [[joined]] = requested(tokenizer, Request(max_source_tokens=limit, attention=True), [line])
    parts = cut_source(tokenizer, whole, limit)
    assert joined.parts == len(parts) == 2
    texts = [tokenizer.decode(part, "source") for part in parts]
    [[one], [two]] = requested(tokenizer, Request(attention=True), texts)
    assert joined.text == f"{one.text} {two.text}"
    assert joined.log_prob == pytest.approx(one.log_prob + two.log_prob)
    assert joined.pieces == (*one.pieces, "</s>", *two.pieces)
    assert joined.token_log_probs == pytest.approx((*one.token_log_probs, *two.token_log_probs))
    assert one.alignment is not None
    assert two.alignment is not None
    length = len(parts[0])
    assert joined.alignment == (*one.alignment, length - 1, *(length + place for place in two.alignment))
    assert joined.source_pieces == tuple(tokenizer.pieces(whole, "source"))


def test_samples_depend_on_seed_and_line_and_not_on_the_batch(tokenizer: Tokenizer) -> None:
    request = Request(n_best=4, sampling=Sampling(seed=7))
    translator = translator_of(tokenizer)

    def sampled(lines: list[str], request: Request, **options: Any) -> list[list[tuple[str, ...]]]:
        return [[one.pieces for one in found] for found in translator.translations(lines, request, **options)]

    found = sampled(LINES, request)
    assert found == sampled(LINES, request, batching=Batching(sentences=2))
    assert found[2:] == sampled(LINES[2:], dataclasses.replace(request, first_line=3))
    assert found != sampled(LINES, Request(n_best=4, sampling=Sampling(seed=8)))
    assert len(set(found[0])) > 1
    cold = Request(sampling=Sampling(temperature=1e-6))
    greedy = translator_of(tokenizer, beam=1).translate(LINES)
    assert [one[0].text for one in translator.translations(LINES, cold)] == greedy


def test_translations_begin_with_their_prefix(tokenizer: Tokenizer) -> None:
    prefixes = ["Der Hund", "", "Eine Katze sieht", "", "", "Wer", ""]
    found = requested(tokenizer, Request(prefixes=prefixes))
    free = requested(tokenizer, Request())
    for line, prefix, one, other in zip(LINES, prefixes, found, free, strict=True):
        if prefix and line:
            assert one[0].text.startswith(prefix)
        else:
            assert one == other


def test_translations_hold_required_phrases_and_no_forbidden_ones(tokenizer: Tokenizer) -> None:
    required = [["Katze", "Haus"], [], ["Hund"], [], [], [], []]
    found = requested(tokenizer, Request(required=required))
    free = requested(tokenizer, Request())
    for line, phrases, one, other in zip(LINES, required, found, free, strict=True):
        assert all(phrase in one[0].text for phrase in phrases)
        if not phrases or not line:
            assert one == other
    said = max(
        (piece for one in free for piece in one[0].pieces),
        key=lambda piece: sum(piece in one[0].pieces for one in free),
    )
    without = requested(
        tokenizer, Request(forbidden=[tokenizer.decode(tokenizer.encode([said.replace("\u2581", "")], "target")[0])])
    )
    assert [one[0].text for one in without] != [one[0].text for one in free]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Request(prefixes=["a"]), "1 prefixes for 7 lines"),
        (Request(required=[["a"]]), "1 lists of required phrases for 7 lines"),
        (
            Request(prefixes=["", "", "\u2603", "", "", "", ""], first_line=11),
            "line 13: the prefix '\u2603' has characters",
        ),
        (Request(forbidden=["\u2603"]), "the forbidden phrase '\u2603' has characters"),
        (Request(forbidden=[" "]), "a forbidden phrase is empty"),
        (Request(required=[["a"]] * 6 + [["\u2603"]], first_line=11), "line 17: the required phrase '\u2603' has"),
        (Request(required=[["a"]] * 6 + [[" "]]), "line 7: a required phrase is empty"),
        (Request(forbidden=["a\nb"]), r"the forbidden phrase 'a\nb' has a line end in it"),
        (Request(forbidden=["\udcff"]), "the forbidden phrase '\\udcff' is not valid UTF-8"),
        (
            Request(prefixes=["", "Der Hund sieht", *[""] * 5], forbidden=["Katze", "Hund"]),
            "line 2: the prefix 'Der Hund sieht' contains a forbidden phrase",
        ),
        (
            Request(required=[[], ["Haus", "Hund"], *[[]] * 5], forbidden=["Hund"]),
            "line 2: the required phrase 'Hund' contains a forbidden phrase",
        ),
        (Request(required=[["a"]] * 7, sampling=Sampling()), "sampling does not support required phrases"),
        (Request(keep=("urls",), sampling=Sampling()), "sampling does not support required phrases, terms and spans"),
        (Request(n_best=5), "5 translations per line need a beam that large, not 4"),
    ],
)
def test_what_is_not_possible_is_refused(tokenizer: Tokenizer, wanted: Request, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        requested(tokenizer, wanted)


def test_wishes_longer_than_the_models_positions_are_refused(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer, positions="learned", max_positions=6)
    tokens = len(tokenizer.encode(["Eine Katze sieht den Hund"], "target")[0])
    assert tokens > 5
    with pytest.raises(DataError, match=f"^line 1: prefix and required phrases have {tokens} tokens, and .* for 5$"):
        translator_of(tokenizer, model).translations(["dog"], Request(prefixes=["Eine Katze sieht den Hund"]))


def test_a_prefix_may_repeat_itself_and_a_phrase_that_other_wishes_forbid_is_told(tokenizer: Tokenizer) -> None:
    translator = translator_of(tokenizer, no_repeat_ngram=1)
    [[begun]] = translator.translations(LINES[:1], Request(prefixes=["Hund Hund Hund"]))
    assert begun.text.startswith("Hund Hund Hund")
    assert not begun.is_unsatisfied
    [[without]] = translator.translations(LINES[:1], Request(required=[["Hund Hund"]]))
    assert "Hund Hund" not in without.text
    assert without.is_unsatisfied


@pytest.mark.parametrize(
    ("decoding", "holds"),
    [
        ({"max_length": 3}, lambda source, pieces: pieces <= 3),
        ({"max_length_ratio": 0.5, "max_length_offset": 1}, lambda source, pieces: pieces <= int(source * 0.5) + 1),
        ({"min_length": 12, "max_length_offset": 20}, lambda source, pieces: pieces >= 12),
    ],
)
def test_lengths_are_bounded_as_the_settings_say(tokenizer: Tokenizer, decoding: dict[str, Any], holds: Any) -> None:
    sources = [len(ids) for ids in tokenizer.encode(LINES, "source")]
    found = [len(one[0].pieces) for one in requested(tokenizer, Request(), **decoding)]
    free = [len(one[0].pieces) for one in requested(tokenizer, Request())]
    assert all(holds(source, pieces) for source, pieces in zip(sources, found, strict=True) if source)
    assert not all(holds(source, pieces) for source, pieces in zip(sources, free, strict=True) if source)


def test_no_ngram_is_said_twice_where_the_settings_say_so(tokenizer: Tokenizer) -> None:
    model = model_that_says(tokenizer.encode(["Hund"], "target")[0][0], tokenizer)
    free = translator_of(tokenizer, model).translations(LINES[:1], Request())[0][0].pieces
    assert len(set(free)) == 1 < len(free)
    bound = translator_of(tokenizer, model, no_repeat_ngram=2).translations(LINES[:1], Request())[0][0].pieces
    assert len(set(itertools.pairwise(bound))) == len(bound) - 1


def test_required_phrases_of_a_line_change_no_other_line_beside_the_beam(tokenizer: Tokenizer) -> None:
    settings: dict[str, Any] = {"finished": "beside", "length_penalty": "length", "alpha": 1.0}
    free = requested(tokenizer, Request(), **settings)
    bound = requested(tokenizer, Request(required=[["Hund"], *[[]] * (len(LINES) - 1)]), **settings)
    assert free[0] != bound[0]
    assert [[one.text for one in line] for line in free[1:]] == [[one.text for one in line] for line in bound[1:]]


# ---- from Python


def test_a_translator_is_loaded_by_name_and_used_by_several_threads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    settings = {"max_length_offset": 5, "max_length": 20}
    translator = translator_of(tokenizer, save(tmp_path / "model", tokenizer, **settings), **settings)
    loaded = nmtkit.Translator.load(str(tmp_path / "model"), device="cpu")
    expected = loaded.translate(LINES)
    assert expected == translator.translate(LINES)
    long = " ".join(["the dog sees a cat and"] * 120)  # beyond the positions that are kept
    kinds = [
        ([*LINES, long], Request(attention=True)),
        (LINES, Request(n_best=3, sampling=Sampling(seed=3))),
        (LINES, Request(required=[["Hund"] if line else [] for line in LINES])),
    ]
    alone = [translator.translations(*kind) for kind in kinds]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: loaded.translate(LINES), range(12))) == [expected] * 12
        together = list(pool.map(lambda kind: loaded.translations(*kind), kinds * 3))
    texts = [[[one.text for one in of_line] for of_line in found] for found in [*alone * 3, *together]]
    assert texts[:9] == texts[9:]
    assert nmtkit.Translator is Translator
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = nmtkit.Nothing


def test_the_python_of_the_documentation_runs(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "decoding.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    save(tmp_path / "model", tokenizer)
    assert '"runs/quickstart"' in code
    exec(compile(code.replace("runs/quickstart", str(tmp_path / "model")), "decoding.md", "exec"), {})
    told = capsys.readouterr().out.splitlines()
    three = Translator.load(str(tmp_path / "model")).translations(
        ["The dog sleeps."], Request(n_best=3, attention=True)
    )[0]
    assert told == [" ".join(map(str, (one.text, one.score, one.pieces, one.alignment))) for one in three]


def test_what_is_no_text_and_batches_of_nothing_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"line 12 is not valid UTF-8: '\\udcff' in it"):
        requested(tokenizer, Request(first_line=11), ["the dog", "a \udcff b"])
    for batching in ({"sentences": 0}, {"tokens": 0}):
        with pytest.raises(ValueError, match="a batch has at least one"):
            Batching(**batching)
    assert Batching(sentences=1, tokens=0).sentences == 1


def test_progress_is_told_after_each_batch(tokenizer: Tokenizer) -> None:
    told: list[float] = []
    translator_of(tokenizer).translations(LINES, Request(), batching=Batching(sentences=2), advance=told.append)
    assert len(told) == math.ceil(sum(map(bool, LINES)) / 2)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert 0 < told[0] < 1
