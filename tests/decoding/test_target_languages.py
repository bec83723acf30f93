"""A model of several languages begins each source with the tag of the language that was asked for with `--to`."""

from pathlib import Path

import pytest

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.config.model_schema import ModelConfig
from nmtkit.decoding.file_translation import TranslationJob
from nmtkit.decoding.lengths import cut_source
from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError
from nmtkit.model.decoder_only import build_model
from nmtkit.model_folder import save_model
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.terms import Glossary
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, PAD, UNK
from tests.conftest import run_command
from tests.decoding.models import TEXT, TINY, model_for

KINDS = {"bpe": 60, "unigram": 46, "wordpiece": 60, "none": 40}


def tokenizer_of(subwords: str = "bpe", **changes: object) -> Tokenizer:
    corpora = [
        {"source": "a.en", "target": "a.de", "target_language": "de"},
        {"source": "a.en", "target": "a.fr", "target_language": "fr", "source_prefix": "<bt>"},
    ]
    values = {"source_language": "en", "train": corpora, "subwords": subwords, "vocab_size": KINDS[subwords]}
    return learn_tokenizer(DataConfig.model_validate({**values, **changes}), lambda: [*TEXT * 3, ("l'", "' l'")])


def translator_of(tokenizer: Tokenizer, **decoding: object) -> Translator:
    settings = DecodingConfig.model_validate({"max_length_offset": 5, "beam": 2, **decoding})
    return Translator([model_for(tokenizer)], tokenizer, settings)


@pytest.mark.parametrize("subwords", KINDS)
@pytest.mark.parametrize("shared", [True, False])
def test_the_tag_of_the_target_is_the_first_token_and_an_entry_of_its_own(
    subwords: str, shared: bool, tmp_path: Path
) -> None:
    size = KINDS[subwords] if shared or subwords != "unigram" else 33
    tokenizer = tokenizer_of(subwords, share_vocab=shared, vocab_size=size)
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint() == tokenizer.fingerprint() == loaded.in_direction("fr").fingerprint()
    assert loaded.target_languages == ("de", "fr")
    assert loaded.source_languages == ("en",)
    rows = {code: loaded.in_direction(code).encode(["The dog", "<bt> The dog", ""], "source") for code in ("de", "fr")}
    pieces = {code: [loaded.pieces(ids, "source") for ids in rows[code]] for code in rows}
    assert pieces["de"][0][0] == "<2de>"
    assert pieces["fr"][1][:2] == ["<2fr>", "<bt>"]
    assert rows["de"][0][1:] == rows["fr"][0][1:] == rows["fr"][1][2:]
    assert rows["fr"][2] == []
    assert len({rows["de"][0][0], rows["fr"][0][0], *loaded.tag_ids}) == 3
    assert set(loaded.suppressed_ids) == {PAD, BOS, UNK, *(loaded.tag_ids if shared else ())}
    assert loaded.in_direction("de").decode(rows["de"][0], "source") == loaded.decode(rows["de"][0][1:], "source")


def test_the_name_of_a_tag_in_the_text_is_text() -> None:
    tokenizer = tokenizer_of().in_direction("de")
    [ids] = tokenizer.encode([tokenizer.normalize("<2fr> The dog")], "source")
    assert tokenizer.pieces(ids, "source").count("<2de>") == 1
    assert "<2fr>" not in tokenizer.pieces(ids, "source")


def test_each_segment_of_a_long_source_has_all_tags() -> None:
    tokenizer = tokenizer_of().in_direction("fr")
    [ids] = tokenizer.encode(["<bt> " + "The dog sees. " * 9], "source")
    parts = cut_source(tokenizer, ids, 12)
    assert len(parts) > 2
    assert all(part[:2] == ids[:2] and len(part) <= 12 for part in parts)
    assert all(part[:2] == ids[:2] and len(part) == 3 for part in cut_source(tokenizer, ids, 1))


def test_without_a_choice_nothing_is_encoded_and_the_known_codes_are_listed() -> None:
    for use in (lambda t: t.encode(["The dog"], "source"), lambda t: t.in_direction()):
        with pytest.raises(DataError, match=r"several target languages; choose one of de, fr with --to"):
            use(tokenizer_of())
    with pytest.raises(DataError, match=r'does not know the target language "es"; choose one of de, fr'):
        tokenizer_of().in_direction("es")


def test_a_model_of_one_direction_takes_its_own_language_only(tokenizer: Tokenizer) -> None:
    assert tokenizer.in_direction("de") is tokenizer is tokenizer.in_direction()
    with pytest.raises(DataError, match=r'does not know the target language "fr"; it translates to de only'):
        translator_of(tokenizer).translate(["The dog"], target_language="fr")
    assert tokenizer.in_direction(source="en", is_requested=True) is tokenizer
    assert tokenizer.in_direction(source="fr").languages == ("fr", "de")  # of validation text without training text
    with pytest.raises(DataError, match=r'does not know the source language "fr"; it translates from en only'):
        translator_of(tokenizer).translate(["The dog"], source_language="fr")


def test_zero_shot_sources_are_languages_that_the_model_has_read_as_targets() -> None:
    bound = tokenizer_of().in_direction("fr", "de", is_requested=True)
    assert bound.languages == ("de", "fr")
    assert bound.encode(["x"], "source") == tokenizer_of().in_direction("fr").encode(["x"], "source")
    with pytest.raises(DataError, match=r'does not know the source language "es"; choose one of en, de, fr'):
        tokenizer_of().in_direction("fr", "es", is_requested=True)


def test_the_request_chooses_the_language_of_a_translation() -> None:
    translator = translator_of(tokenizer_of())
    lines = [source for source, _ in TEXT]
    found = {code: translator.translate(lines, target_language=code) for code in ("de", "fr")}
    assert found["de"] != found["fr"]
    bound = Translator([model_for(tokenizer_of())], tokenizer_of().in_direction("fr"), translator.decoding)
    assert bound.translate(lines) == found["fr"]
    with pytest.raises(DataError, match=r"choose one of de, fr with --to"):
        translator.translate(lines)
    with pytest.raises(DataError, match=r"choose one of de, fr with --to"):
        TranslationJob(translator).check()
    TranslationJob(translator, TranslationRequest(target_language="de")).check()


def test_translations_are_detokenised_and_prefixes_tokenised_by_the_rules_of_their_language() -> None:
    changes = {"normalize": ["blanks", "moses-tokenize"], "vocab_size": 60}
    tokenizer = tokenizer_of("bpe", **changes)
    text = "l' a d' eau"
    ids = tokenizer.encode([text], "target")[0]
    restored = {code: tokenizer.in_direction(code).translation(ids) for code in ("de", "fr")}
    assert restored["fr"] != restored["de"]
    assert tokenizer.in_direction("fr").normalize("l'eau", "target") == "l' eau"
    assert tokenizer.in_direction("de").normalize("l'eau", "target") != "l' eau"


def test_every_sentence_of_a_line_has_the_tag_of_the_target() -> None:
    translator = translator_of(tokenizer_of())
    request = TranslationRequest(target_language="fr", glossary=Glossary([("cat", "Hund")]), keep=("tags",))
    sentences = ["The dog runs home.", "Who sees the cat?"]
    [[both]] = translator.translations(["<bt> " + " ".join(sentences)], request)
    alone = [best for best, *_ in translator.translations([f"<bt> {sentence}" for sentence in sentences], request)]
    assert both.parts == 2
    assert both.text == " ".join(best.text for best in alone if best.text)
    assert "Hund" in alone[1].text and both.missing == ()


def test_a_language_model_of_such_subwords_scores_lines_without_a_target_language(tmp_path: Path) -> None:
    data = {"task": "language-model", "target_language": "de", "train": [{"text": "a.de"}], "tokenizer": "x"}
    tokenizer = tokenizer_of().for_recipe(DataConfig.model_validate(data))
    size = tokenizer.vocab_size("target")
    config = ModelConfig.model_validate({**TINY, "architecture": "decoder"})
    lengths = TrainingLengths(longest_source=30, target_ratio=1.0, multi_sentence_share=0.0)
    weights = build_model(config, size, size).state_dict()
    save_model(tmp_path / "lm", weights, config, tokenizer, DecodingConfig(), {}, lengths)
    for side, text in zip(("source", "hypothesis"), ("Der Hund", "sieht eine Katze."), strict=True):
        (tmp_path / side).write_text(f"{text}\n", encoding="utf-8")
    command = ["score", "--model", tmp_path / "lm", "--source", tmp_path / "source"]
    command += ["--hypothesis", tmp_path / "hypothesis", "--quiet"]
    done = run_command(*command)
    assert done.code == 0 and done.out.endswith("ok\n")
    assert run_command(*command, "--to", "de").out == done.out
    refused = run_command(*command, "--to", "es")
    assert refused.code == 1 and 'does not know the target language "es"' in refused.err
