"""BLEU in languages that do not write blanks between words."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nmtkit.corpora.catalogue import catalogue
from nmtkit.decoding.sampling import by_expected_utility
from nmtkit.errors import DataError
from nmtkit.evaluation.checks import text_faults
from nmtkit.evaluation.metric_names import METRICS, ON_REQUEST, left_out
from nmtkit.evaluation.metrics import Scorer, score, sentence_utility
from nmtkit.evaluation.rouge import ROUGE_METRICS
from nmtkit.json_toml import read_json, write_json
from nmtkit.text import scripts
from nmtkit.text.scripts import bleu_tokenizer, scripts_of
from tests.conftest import run_command

UNSPACED = {
    "zh": ["我们昨天在公园里看见了一只很大的狗。", "他说：“今天的天气非常好，我们去散步吧。”"],
    "ja": ["昨日、公園でとても大きな犬を見ました。", "彼は「今日は天気がいいから散歩しよう」と言った。"],
    "th": ["เมื่อวานนี้เราเห็นสุนัขตัวใหญ่มากในสวนสาธารณะ", "เขาพูดว่าวันนี้อากาศดีมาก"],
    "lo": ["ມື້ວານນີ້ພວກເຮົາເຫັນໝາໂຕໃຫຍ່ຢູ່ໃນສວນ", "ລາວເວົ້າວ່າມື້ນີ້ອາກາດດີຫຼາຍ"],
    "km": ["ម្សិលមិញយើងបានឃើញឆ្កែធំមួយនៅក្នុងសួន", "គាត់និយាយថាថ្ងៃនេះអាកាសធាតុល្អណាស់"],
    "my": ["မနေ့ကပန်းခြံထဲမှာခွေးအကြီးကြီးတစ်ကောင်တွေ့ခဲ့တယ်။", "ဒီနေ့ရာသီဥတုအရမ်းကောင်းတယ်"],
    "bo": ["ཁ་སང་ང་ཚོས་སྤྱི་གླིང་ནང་ཁྱི་ཆེན་པོ་ཞིག་མཐོང་།", "དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག"],
}
KOREAN = ["어제 우리는 공원에서 아주 큰 개를 보았습니다.", "그는 오늘 날씨가 매우 좋다고 말했다."]
TAGS = {"zh": "zho_Hans zh_Hant zh-CN ZH yue_Hant", "ja": "jpn ja_Jpan", "th": "tha_Thai", "lo": "lao_Laoo"} | {
    "km": "khm_Khmr", "my": "mya_Mymr shn_Mymr", "bo": "dz dzo_Tibt"
}  # fmt: skip
SPELLINGS = [(spelling, code) for code in UNSPACED for spelling in (code, *TAGS[code].split())]


@pytest.fixture(autouse=True)
def without_mecab(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MeCab is not installed, whatever the environment has."""
    monkeypatch.setattr(scripts, "find_spec", lambda name: None)
    bleu_tokenizer.cache_clear()
    yield
    bleu_tokenizer.cache_clear()


def break_mecab(monkeypatch: pytest.MonkeyPatch) -> None:
    """MeCab cannot be imported."""
    for module in ("MeCab", "ipadic"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)


def text_in(language: str) -> list[str]:
    """Sentences in a language, or made of the letters of its writing system."""
    names = scripts_of(language)
    for code, lines in UNSPACED.items():
        if names == scripts_of(code):
            return lines
    if "Hangul" in names:
        return KOREAN
    ranges = scripts._RANGES[names[0]] if names else "a-z"
    first = ord(ranges[0])
    return [" ".join(chr(first + word) + chr(first + word + 1) for word in range(6)) + "."]


def perfect_scores(language: str, metrics: list[str] | None = None) -> dict[str, float]:
    """The scores of a text by itself, with TER counted as what is right."""
    lines = text_in(language)
    found = score(lines, lines, target_language=language, text="plain", metrics=metrics)
    return {name: 100 - one.score if name == "ter" else one.score for name, one in found.items()}


@pytest.mark.parametrize(
    "languages", [pytest.param(codes.split(), id=names) for names, codes in scripts._LANGUAGES.items()]
)
def test_the_same_text_on_both_sides_has_the_best_bleu_in_every_language(languages: list[str]) -> None:
    for language in languages:
        assert perfect_scores(language, ["sacrebleu", "sacrebleu-lc"]) == {
            "sacrebleu": pytest.approx(100),
            "sacrebleu-lc": pytest.approx(100),
        }, language


@pytest.mark.parametrize(
    "language",
    sorted(
        {code for entry in catalogue().values() for pair in entry.texts for code in pair}
        | {codes.split()[0] for codes in scripts._LANGUAGES.values()}
        | {spelling for spelling, _ in SPELLINGS}
        | {"xx", "iu", "sah", "sr_Latn"}
    ),
)
def test_the_same_text_on_both_sides_has_the_best_score_by_every_metric(language: str) -> None:
    impossible = left_out(target_language=language, text="plain")
    metrics = [name for name in METRICS + ON_REQUEST if name not in impossible]
    assert {"sacrebleu", "chrf2", "chrf2++"} <= set(metrics)
    assert perfect_scores(language, metrics) == {name: pytest.approx(100) for name in metrics}


@pytest.mark.parametrize(("language", "module"), [("ja", "MeCab"), ("ko", "mecab_ko")])
def test_mecab_itself_has_the_best_score_too(language: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(module, reason=f"needs the extra {language}")
    monkeypatch.undo()
    bleu_tokenizer.cache_clear()
    lines = text_in(language)
    found = score(lines, lines, target_language=language, text="plain")["sacrebleu"]
    assert found.score == pytest.approx(100)
    assert f"|tok:{language}-mecab-" in found.signature


@pytest.mark.parametrize(("spelling", "code"), SPELLINGS)
def test_text_without_blanks_is_tokenised_by_sacrebleus_rule_for_it(spelling: str, code: str) -> None:
    lines = UNSPACED[code]
    nearly = [lines[0][:-4] + lines[0][-3:], lines[1]]
    found = score(nearly, lines, target_language=spelling, text="plain")
    assert f"|tok:{'zh' if code == 'zh' else 'char'}|" in found["sacrebleu"].signature
    assert 50 < found["sacrebleu"].score < 100


def test_ter_of_han_is_of_characters_and_is_left_out_where_there_are_no_words() -> None:
    lines = UNSPACED["zh"]
    found = score([lines[0].replace("狗", "猫"), lines[1]], lines, target_language="zh", text="plain")["ter"]
    assert 0 < found.score < 10
    assert "norm:yes" in found.signature
    assert "asian:yes" in found.signature
    assert "ter" not in score(UNSPACED["th"], UNSPACED["th"], target_language="th", text="plain")
    assert score(KOREAN, KOREAN, target_language="ko", text="plain")["ter"].score == 0


def test_scores_by_moses_are_left_out_where_it_finds_no_words() -> None:
    reasons = left_out(target_language="ja", text="plain")
    wordless = {"bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split", "sacrebleu-intl"}
    assert set(reasons) == {*wordless, *ROUGE_METRICS}
    assert "blanks between words" in reasons["bleu-tokenized"]
    assert "use sacrebleu" in reasons["bleu-compound-split"]
    with pytest.raises(DataError, match="bleu-tokenized cannot be computed"):
        Scorer([UNSPACED["ja"]], target_language="ja", text="plain").score(UNSPACED["ja"], ["bleu-tokenized"])
    words = ["我们 昨天 看见 了 狗 。"]
    found = score(words, words, target_language="zh", text="tokenized")
    assert "|tok:none|" in found["bleu-tokenized"].signature
    assert "|tok:zh|" in found["sacrebleu"].signature
    assert "bleu-tokenized" in score(KOREAN, KOREAN, target_language="ko", text="plain")


@pytest.mark.parametrize("language", [None, "de", "en", "fr", "cs", "ru", "hi", "ar", "ab"])
def test_other_languages_keep_their_signatures(language: str | None) -> None:
    lines = ["One two three four five.", "Six, seven; eight."]
    found = score(lines, lines, target_language=language, text="plain", metrics=["sacrebleu", "ter"])
    assert "|tok:13a|" in found["sacrebleu"].signature
    assert "norm:no|punct:yes|asian:no" in found["ter"].signature


@pytest.mark.parametrize(("language", "extra"), [("ja", "ja"), ("kor", "ko")])
def test_mecab_is_taken_where_it_is_installed(language: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bleu_tokenizer.cache_clear()
    monkeypatch.setattr(scripts, "find_spec", ModuleType)
    assert bleu_tokenizer(language) == f"{extra}-mecab"


def test_what_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert bleu_tokenizer("ja") == bleu_tokenizer("ja") == "char"
    assert [record.message for record in caplog.records] == [
        "BLEU is computed on characters (tok:char), because MeCab is not installed; for words (tok:ja-mecab): "
        "pip install 'nmtkit[ja]'"
    ]
    break_mecab(monkeypatch)
    with pytest.raises(DataError, match=r"tok:ja-mecab.*pip install 'nmtkit\[ja\]'"):
        Scorer([UNSPACED["ja"]], target_language="ja", text="plain", tokenizer="ja-mecab").score(UNSPACED["ja"])


def test_a_run_keeps_the_tokenizer_that_it_began_with(tiny: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    for name, count in (("train", 80), ("mine", 4)):
        for side, characters in (("en", "abcdefgh"), ("zh", UNSPACED["zh"][0])):
            lines = ["".join(rng.choices(characters, k=12)) + "\n" for _ in range(count)]
            (tmp_path / f"{name}.{side}").write_text("".join(lines), encoding="utf-8")
    train, mine = (f'{{ source = "{name}.en", target = "{name}.zh", name = "{name}" }}' for name in ("train", "mine"))
    (tmp_path / "zh.toml").write_text(
        f"base = {json.dumps(str(tiny.recipe))}\n[data]\ntarget_language = 'zh'\nshare_vocab = false\n"
        f"train = [{train}]\nvalid = [{mine}]\ntest = [{mine}]\nvocab_size = 30\n"
        "[training]\nmax_steps = 2\nvalidate_every_steps = 1\ncheckpoint_every_steps = 1\nvalidate_bleu = true\n"
        "[model]\nshare_embeddings = 'none'\n"
    )
    run = tmp_path / "run"
    prepared = run_command("prepare", tmp_path / "zh.toml", "--run-dir", run)
    assert prepared.code == 0, prepared.err
    manifest = read_json(run / "data" / "manifest.json")
    assert manifest["bleu_tokenizer"] == "zh"
    write_json(run / "data" / "manifest.json", {**manifest, "bleu_tokenizer": "char"})
    assert run_command("run", tmp_path / "zh.toml", "--run-dir", run).code == 0
    assert "|tok:char|" in read_json(run / "scores.json")["mine"]["sacrebleu"]["signature"]
    (run / "translations" / "mine.txt").write_text((tmp_path / "mine.zh").read_text(encoding="utf-8"), encoding="utf-8")
    assert run_command("score", run).code == 0
    assert read_json(run / "scores.json")["mine"]["sacrebleu"]["score"] == pytest.approx(100)
    for damage in (5, "xx", ["zh"]):
        write_json(run / "data" / "manifest.json", {**manifest, "bleu_tokenizer": damage})
        outcome = run_command("score", run)
        assert outcome.code == 1
        assert "manifest.json: bleu_tokenizer " in outcome.err


def test_validation_finds_a_missing_tokenizer_before_the_training(
    tiny: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_mecab(monkeypatch)
    manifest = read_json(run / "data" / "manifest.json")
    write_json(run / "data" / "manifest.json", {**manifest, "bleu_tokenizer": "ja-mecab"})
    with pytest.raises(DataError, match="needs MeCab"):
        tiny.train(run, "training.validate_bleu=true")
    assert not (run / "metrics.jsonl").exists()
    tiny.train(run, "training.validate_bleu=false", "training.max_steps=1")
    assert (run / "metrics.jsonl").exists()


def test_files_are_scored_by_their_language(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n".join(UNSPACED["zh"]) + "\n", encoding="utf-8")
    command = ["score", "--hypothesis", tmp_path / "a", "--reference", tmp_path / "b", "--json", tmp_path / "s.json"]
    outcome = run_command(*command, "--target-language", "zh_Hans")
    found = json.loads((tmp_path / "s.json").read_text())[str(tmp_path / "a")]
    assert found["sacrebleu"]["score"] == pytest.approx(100)
    assert outcome.err == ""
    assert "bleu-tokenized  left out: " in outcome.out
    outcome = run_command(*command)
    assert outcome.code == 0
    assert "without blanks between words" in outcome.err
    assert "--target-language" in outcome.err
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("b")
    told = run_command(*command, "--target-language", "zh_Hans").err
    assert f"{tmp_path / 'a'} is the hypothesis and a reference, so its scores say nothing\n" in told


@pytest.mark.parametrize(
    ("line", "is_read"), [("привет мир", False), ("日本語です", False), ("... 5 %", True), ("ça", True)]
)
def test_text_of_which_rouge_reads_nothing_is_found(line: str, is_read: bool) -> None:
    faults = text_faults([line], [[line]], sources=None, target_language=None, text="plain", metrics=["rouge1"])
    told = "a reference without ASCII letters and digits, all that ROUGE reads,"
    assert [fault.what for fault in faults] == ([] if is_read else [told])


def test_unspaced_text_without_its_language_is_found() -> None:
    def is_found(lines: list[str], language: str | None) -> bool:
        found = text_faults(lines, [lines], sources=None, target_language=language, text="plain")
        return any("without blanks between words" in one.what for one in found)

    for lines in UNSPACED.values():
        assert is_found(lines, None) and is_found(lines, "xx")
    assert not is_found(UNSPACED["zh"], "zh")
    assert not is_found(KOREAN, None)
    assert not is_found(["The sign 狗 means dog.", "Another line."], None)


def test_bleu_between_samples_is_of_the_language() -> None:
    samples = ["我们看见了狗。", "我们看见了猫。", "完全不同的句子"]
    assert by_expected_utility(samples, sentence_utility("sacrebleu", "zh"))[-1] == 2
    assert sentence_utility("sacrebleu", "zh")(samples[0], samples[1]) > 40
