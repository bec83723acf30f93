import shutil
import subprocess
import warnings

import pytest

from nmtkit.text import moses


def test_tokenize_splits_punctuation_and_keeps_abbreviations_and_hyphens() -> None:
    lines = ['Das ist "gut", z.B. ein Links-rechts-Fall (siehe Dr. Meier).', "Hallo Welt!"]
    assert moses.tokenize(lines, "de") == [
        'Das ist " gut " , z.B. ein Links-rechts-Fall ( siehe Dr. Meier ) .',
        "Hallo Welt !",
    ]


def test_tokenize_does_not_escape() -> None:
    assert moses.tokenize(["Müller & Söhne | <b> [1] 'x'"], "de") == ["Müller & Söhne | < b > [ 1 ] ' x '"]


def test_rules_follow_the_language() -> None:
    line = "Don't l'eau"
    assert moses.tokenize([line], "en") == ["Don 't l 'eau"]
    assert moses.tokenize([line], "fr") == ["Don' t l' eau"]
    assert moses.tokenize([line], "de") == ["Don ' t l ' eau"]
    assert moses.detokenize(["vraiment ?"], "fr") == ["vraiment ?"]
    assert moses.detokenize(["vraiment ?"], "en") == ["vraiment?"]


def test_region_and_case_of_a_language_make_no_difference() -> None:
    assert [moses.language_code(language) for language in ["de", "DE", "de-AT", "de_CH", "tdt"]] == ["de"] * 4 + ["tdt"]
    assert moses.tokenize(["Don't l'eau"], "fr-CA") == moses.tokenize(["Don't l'eau"], "fr")
    assert moses.detokenize(["vraiment ?"], "FR_BE") == moses.detokenize(["vraiment ?"], "fr")


@pytest.mark.parametrize(
    ("code", "longer", "plain"),
    [
        ("fr", "fra", "L'eau de l'hôtel."),
        ("ko", "kor", "나는 학교에 갔다."),
        ("en", "eng_Latn", "Don't."),
        ("ja", "jpn", "東京です。"),
    ],
)
def test_codes_of_three_letters_have_the_rules_of_the_language(code: str, longer: str, plain: str) -> None:
    tokens = moses.tokenize([plain], code)
    assert moses.tokenize([plain], longer) == tokens
    assert moses.detokenize(tokens, longer) == moses.detokenize(tokens, code) == [plain]
    assert moses.normalize_punctuation(f"« {plain} »", longer) == moses.normalize_punctuation(f"« {plain} »", code)


def test_an_unknown_language_has_english_abbreviations_and_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert moses.tokenize(["Dr. Who is No. 5."], "xx") == ["Dr. Who is No. 5 ."]
        assert moses.detokenize(["Dr. Who is No. 5 ."], "xx") == ["Dr. Who is No. 5."]
    assert caught == []


def test_every_line_gives_one_line() -> None:
    lines = ["", "   ", "a\u2028b\u0085c\u00a0d\x1ce\rf", "...", "\t"]
    for result in (moses.tokenize(lines, "de"), moses.detokenize(lines, "de")):
        assert len(result) == len(lines)
        assert result[0] == result[1] == result[4] == ""
        assert result[2] == "a b c d e f"


def test_detokenize_joins_a_line_in_the_style_of_multi30k() -> None:
    lines = [
        "ein mann mit &quot; hut &quot; ( und schal ) sieht dir zu .",
        "rock &amp; roll : ein hell @-@ blaues auto , oder ?",
    ]
    assert moses.detokenize(lines, "de") == [
        'ein mann mit "hut" (und schal) sieht dir zu.',
        "rock & roll: ein hell-blaues auto, oder?",
    ]


def test_detokenize_undoes_tokenize() -> None:
    lines = ['Ein Mann ruft "Halt!", dann (nach 3,5 Sekunden) geht er.', "Rock & Roll: das Links-rechts-Spiel?"]
    assert moses.detokenize(moses.tokenize(lines, "de"), "de") == lines


def test_unicode_punctuation_becomes_ascii_but_the_low_quote_stays() -> None:
    assert moses.replace_unicode_punctuation("„Sag’s“ … ５％（ja）") == "„Sag's\" ... 5%(ja)"


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("a - b", "a - b"),
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("a-ü-c", "a ##AT##-##AT## ü ##AT##-##AT## c"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("-x- y-z", "-x- y ##AT##-##AT## z"),
        ("a-\u00a0b", "a ##AT##-##AT## \u00a0b"),
        ("", ""),
    ],
)
def test_compounds_are_split_as_by_the_perl_line(line: str, split: str) -> None:
    assert moses.split_compounds(line) == split
    perl = shutil.which("perl")
    if perl is not None:
        command = [perl, "-ple", "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g"]
        output = subprocess.run(command, input=f"{line}\n".encode(), capture_output=True, check=True, env={}).stdout
        assert output.decode() == f"{split}\n"


@pytest.mark.parametrize("line", ["rich @-@ text", "rich ##AT##-##AT## text"])
def test_hyphens_that_are_marked_already_are_split_once(line: str) -> None:
    assert moses.split_compounds(line) == moses.split_compounds("rich-text")
