"""The subword model: nothing is rewritten, equal text gives equal bytes, and four ids never change."""

import hashlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmtkit.config.data_schema import DataConfig
from nmtkit.data.prepare import check_given_tokenizer
from nmtkit.errors import ModelError, RecipeError
from nmtkit.text.new_tokenizers import learn_tokenizer, short_parts
from nmtkit.text.normalization import normalize
from nmtkit.text.sentencepieces import MAX_LEARNED_BYTES
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK, join_segments

ALPHABET = "abcdefpäßﬁＡ１Ω<>/s@ıİ\u2028\u2029\u0085\u00a0\u3000\u200b\u0301\ufeff\x0b\x0c\r \ue000🙂"
"""Letters, a ligature, full-width forms, a combining accent, and everything that somebody takes for a line's end."""

Pair = tuple[str, str]


def data_config(**settings: object) -> DataConfig:
    values = {"source_language": "en", "target_language": "de", "train": ["mine/train"], "vocab_size": 120, **settings}
    return DataConfig.model_validate(values)


def pairs(alphabet: str = ALPHABET, seed: int = 1) -> list[Pair]:
    rng = random.Random(seed)
    lines = ["".join(rng.choices(alphabet, k=rng.randint(1, 20))) for _ in range(400)]
    return [*zip(lines[::2], lines[1::2], strict=True), (alphabet, alphabet)]


def learn(text: list[Pair] | None = None, **settings: object) -> Tokenizer:
    chosen = pairs() if text is None else text
    return learn_tokenizer(data_config(**settings), lambda: iter(chosen))


def back_and_forth(tokenizer: Tokenizer, line: str) -> str:
    return tokenizer.decode(tokenizer.encode([tokenizer.normalize(line)], "target")[0])


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def untouched(kind: str) -> Tokenizer:
    """Learned and used without any normalisation."""
    return learn(subwords=kind, normalize=[])


@pytest.fixture(scope="module")
def default(kind: str) -> Tokenizer:
    return learn(subwords=kind)


@pytest.fixture(scope="module")
def with_bytes(kind: str) -> Tokenizer:
    return learn(subwords=kind, normalize=[], byte_fallback=True, vocab_size=400)


class TestNothingIsRewritten:
    @settings(max_examples=200)
    @given(line=st.text(ALPHABET))
    @example(line="  a  b  ")
    @example(line="ﬁ Ａ１ e\u0301 \u00a0\u3000")
    @example(line="\u2028a\u2029b\u0085c\x0bd\x0ce\rf")
    @example(line="<s> <pad> </s>")
    def test_text_of_known_characters_comes_back_unchanged(self, untouched: Tokenizer, line: str) -> None:
        assert back_and_forth(untouched, line) == line

    @settings(max_examples=100)
    @given(line=st.text(ALPHABET + "\t"))
    def test_by_default_only_blanks_and_tabs_are_rewritten(self, default: Tokenizer, line: str) -> None:
        expected = " ".join(part for part in line.replace("\t", " ").split(" ") if part)
        assert back_and_forth(default, line) == expected

    @settings(max_examples=100)
    @given(line=st.text().filter(lambda line: not {"\u2581", "\ufdd0"} & set(line)))  # U+FDD0 stands for U+2581
    @example(line="日本語 \U0010ffff\0\t\n")
    def test_byte_fallback_brings_unseen_characters_back(self, with_bytes: Tokenizer, line: str) -> None:
        (ids,) = with_bytes.encode([line], "target")
        assert UNK not in ids
        assert with_bytes.decode(ids) == line

    @pytest.mark.parametrize("line", ["a\u2581b", "\u2581", " \u2581a"])
    def test_the_sign_that_sentencepiece_writes_for_a_blank_is_no_blank(self, kind: str, line: str) -> None:
        tokenizer = learn([*pairs(), ("\u2581 a", "b \u2581")], subwords=kind, normalize=[])
        assert back_and_forth(tokenizer, line) == line

    @pytest.mark.parametrize("line", ["我 国", " 我  国 ", "我\u2581国"])
    def test_a_blank_without_an_entry_comes_back_from_its_bytes(self, line: str) -> None:
        text = [(han, han) for han, _ in pairs("的一是在不了有和人这中大为上个我国")]
        tokenizer = learn(text, subwords="characters", byte_fallback=True, vocab_size=4 + 256 + 10, normalize=[])
        assert "\u2581" not in tokenizer.pieces(range(tokenizer.vocab_size("target")), "target")
        assert back_and_forth(tokenizer, line) == line

    def test_without_byte_fallback_an_unseen_character_is_unknown(self, untouched: Tokenizer) -> None:
        (ids,) = untouched.encode(["a日b"], "target")
        assert ids.count(UNK) == 1
        assert untouched.decode(ids) == "a \u2047 b"

    def test_an_empty_line_has_no_ids(self, untouched: Tokenizer) -> None:
        assert untouched.encode(["", "a", ""], "source")[::2] == [[], []]
        assert untouched.decode([]) == ""

    def test_special_ids_are_left_out_of_the_text(self, untouched: Tokenizer) -> None:
        (ids,) = untouched.encode(["ab"], "target")
        assert untouched.decode([BOS, *ids, EOS, PAD, PAD]) == "ab"

    def test_the_number_of_threads_changes_nothing(self, untouched: Tokenizer) -> None:
        lines = [source for source, _ in pairs()]
        assert untouched.encode(lines, "source", threads=1) == untouched.encode(lines, "source", threads=3)


class TestNormalization:
    @pytest.mark.parametrize(
        ("steps", "line", "expected"),
        [
            ((), " a \t\u00a0b ", " a \t\u00a0b "),
            (("blanks",), "\t a \t\u00a0b\u2028 ", "a \u00a0b\u2028"),
            (("nfc",), "e\u0301 ﬁ", "é ﬁ"),
            (("nfkc",), "ﬁ Ａ\u00a0e\u0301", "fi A é"),
            (("lowercase",), "Straße ÄÖ", "straße äö"),
            (("nfkc", "blanks"), "a\u00a0\u00a0b", "a b"),
            (("blanks", "nfkc"), "a\u00a0\u00a0b", "a  b"),
        ],
    )
    def test_only_the_named_steps_are_done_in_their_order(
        self, steps: tuple[str, ...], line: str, expected: str
    ) -> None:
        assert normalize(line, steps) == expected

    def test_a_tokenizer_normalises_as_its_recipe_says(self, tmp_path: Path) -> None:
        tokenizer = learn(normalize=["lowercase", "blanks"])
        assert tokenizer.normalize(" AB  c") == "ab c"
        tokenizer.save(tmp_path)
        assert Tokenizer.load(tmp_path).normalize(" AB  c") == "ab c"


class TestVocabulary:
    @pytest.mark.parametrize("subwords", ["bpe", "unigram", "wordpiece", "none"])
    def test_the_special_ids_are_0_to_3_in_every_vocabulary_and_stored(self, subwords: str) -> None:
        assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
        for share in (True, False):
            tokenizer = learn(subwords=subwords, share_vocab=share)
            assert tokenizer.settings["special_ids"] == {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
            for side in ("source", "target"):
                assert tokenizer.pieces(range(4), side) == list(SPECIAL_PIECES)

    @pytest.mark.parametrize("subwords", ["bpe", "unigram", "wordpiece", "none"])
    def test_special_words_in_the_text_are_text(self, subwords: str) -> None:
        text = [("a <pad> </s> <s> <unk>", "b </s> <pad> <s> <unk>")] * 3 + pairs("abcdpnkus<>/ ")
        tokenizer = learn(text, subwords=subwords, vocab_size=40)
        (ids,) = tokenizer.encode(["a <pad> </s> <s> b"], "source")
        assert {PAD, BOS, EOS}.isdisjoint(ids)

    def test_a_vocabulary_has_the_asked_size(self, kind: str) -> None:
        for size in (60, 100):
            assert learn(subwords=kind, vocab_size=size).vocab_size("source") == size

    def test_a_shared_vocabulary_is_the_same_on_both_sides(self, default: Tokenizer) -> None:
        assert default.encode(["ab Ω"], "source") == default.encode(["ab Ω"], "target")

    def test_separate_vocabularies_know_only_their_own_side(self, kind: str, tmp_path: Path) -> None:
        text = [(source, target.upper()) for source, target in pairs("abcd ")]
        tokenizer = learn(text, subwords=kind, share_vocab=False, vocab_size=30)
        assert UNK not in tokenizer.encode(["ab cd"], "source")[0]
        assert UNK in tokenizer.encode(["ab cd"], "target")[0]
        assert UNK not in tokenizer.encode(["AB CD"], "target")[0]
        tokenizer.save(tmp_path)
        again = Tokenizer.load(tmp_path)
        assert again.encode(["ab cd"], "target") == tokenizer.encode(["ab cd"], "target")
        suffix = "vocab" if kind == "wordpiece" else "model"
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == [f"source.{suffix}", f"target.{suffix}", "tokenizer.json"]

    def test_a_word_begins_where_a_blank_was(self, default: Tokenizer) -> None:
        (ids,) = default.encode(["ab cd eab"], "source")
        text = "".join(f"|{piece}" if start else piece for piece, start in _pieces_with_starts(default, ids))
        assert text.replace("\u2581", "") == "|ab|cd|eab"

    def test_a_vocabulary_that_the_text_cannot_fill_is_refused_with_the_largest_possible(self, kind: str) -> None:
        text = pairs("abcd ")
        with pytest.raises(RecipeError, match=r"data\.vocab_size = 50000: .* at most (\d+) are possible") as caught:
            learn(text, subwords=kind, vocab_size=50_000)
        possible = int(str(caught.value).split("at most ")[1].split()[0])
        assert learn(text, subwords=kind, vocab_size=possible).vocab_size("source") == possible

    @pytest.mark.parametrize("byte_fallback", [False, True])
    def test_a_vocabulary_that_cannot_hold_the_characters_is_refused_with_the_smallest_possible(
        self, kind: str, byte_fallback: bool
    ) -> None:
        text = pairs("abcdefghijklmnop")
        with pytest.raises(RecipeError, match=r"data\.vocab_size = 10: too few to hold the \d+ ") as caught:
            learn(text, subwords=kind, vocab_size=10, byte_fallback=byte_fallback)
        possible = int(str(caught.value).split("to hold the ")[1].split()[0])
        tokenizer = learn(text, subwords=kind, vocab_size=possible, byte_fallback=byte_fallback)
        assert tokenizer.vocab_size("source") == possible

    @pytest.mark.parametrize("sign", ["\t", "\u2585"])
    def test_very_long_lines_and_reserved_signs_do_not_stop_the_learning(self, kind: str, sign: str) -> None:
        text = [*pairs("abcd "), ("q" * 5000, f"a{sign}z")]
        tokenizer = learn(text, subwords=kind, vocab_size=30, normalize=[])
        (ids,) = tokenizer.encode(["qz"], "source")
        assert "<unk>" not in tokenizer.pieces(ids, "source")

    def test_lines_of_any_length_are_learned_from_in_short_parts(self, kind: str) -> None:
        text = [(source * 1000, f"{'cd ' * 1500}{'d' * 9000}") for source, _ in pairs("ab ")]
        tokenizer = learn(text, subwords=kind, vocab_size=16)
        (ids,) = tokenizer.encode(["abcd"], "source")
        assert "<unk>" not in tokenizer.pieces(ids, "source")

    @given(st.text("ab ", max_size=60).map(lambda text: text * 200))
    def test_parts_of_a_long_line_are_short_and_lose_only_blanks(self, line: str) -> None:
        parts = list(short_parts(line))
        assert all(len(part.encode()) <= MAX_LEARNED_BYTES for part in parts)
        assert "".join(parts).replace(" ", "") == line.replace(" ", "")


def _pieces_with_starts(tokenizer: Tokenizer, ids: list[int]) -> Iterator[tuple[str, bool]]:
    yield from zip(tokenizer.pieces(ids, "source"), tokenizer.word_starts(ids, "source"), strict=True)


class TestSegmentedText:
    TEXT = [("lo@@ w er", "ho@@ ch lo@@"), ("lo@@ w", "ho@@ ch er")] * 3 + [("rare", "ho@@ ch")]

    def test_pieces_are_taken_as_they_are_the_most_frequent_first(self) -> None:
        tokenizer = learn(self.TEXT, subwords="none", vocab_size=8)
        assert tokenizer.pieces(range(8), "source") == [*SPECIAL_PIECES, "lo@@", "ch", "ho@@", "er"]
        assert tokenizer.encode(["lo@@ er rare w", ""], "source") == [[4, 7, UNK, UNK], []]

    def test_pieces_are_joined_at_the_mark(self) -> None:
        tokenizer = learn(self.TEXT, subwords="none")
        assert back_and_forth(tokenizer, "lo@@ w er ho@@ ch") == "low er hoch"
        assert back_and_forth(tokenizer, "er lo@@") == "er lo"
        assert tokenizer.word_starts(tokenizer.encode(["lo@@ w er"], "source")[0], "source") == [True, False, True]

    def test_another_mark_may_join(self) -> None:
        tokenizer = learn([("lo￭ w er@@", "lo￭ w")], subwords="none", segment_mark="￭")
        assert back_and_forth(tokenizer, "lo￭ w er@@") == "low er@@"

    @pytest.mark.parametrize(
        ("line", "mark", "joined"),
        [
            ("a@@ b@@ c d", "@@", "abc d"),
            ("a @@ b", "@@", "a b"),
            ("a@@b c", "@@", "a@@b c"),
            ("a@@", "@@", "a"),
            ("a@@ b", "", "a@@ b"),
            ("▁a b ▁c▁ d", "▁", "ab c d"),
            ("", "@@", ""),
        ],
    )
    def test_joining_at_a_mark(self, line: str, mark: str, joined: str) -> None:
        assert join_segments(line, mark) == joined


class TestFiles:
    @pytest.mark.parametrize("subwords", ["bpe", "unigram", "wordpiece", "none"])
    @pytest.mark.parametrize("share_vocab", [True, False])
    def test_equal_text_gives_equal_bytes_that_hold_no_path(
        self, tmp_path: Path, subwords: str, share_vocab: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contents = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            learn(subwords=subwords, share_vocab=share_vocab).save(tmp_path / name / "tokenizer")
            files = sorted((tmp_path / name / "tokenizer").iterdir())
            contents.append({path.name: path.read_bytes() for path in files})
        assert contents[0] == contents[1]
        assert len(contents[0]) == (2 if share_vocab else 3)
        assert [name for name, content in contents[0].items() if tmp_path.name.encode() in content] == []

    @pytest.mark.parametrize("subwords", ["bpe", "unigram", "wordpiece", "none"])
    def test_a_saved_tokenizer_is_the_same_when_it_is_loaded(self, tmp_path: Path, subwords: str) -> None:
        tokenizer = learn(subwords=subwords)
        tokenizer.save(tmp_path / "deep" / "tokenizer")
        again = Tokenizer.load(tmp_path / "deep" / "tokenizer")
        lines = [source for source, _ in pairs()]
        assert again.encode(lines, "source") == tokenizer.encode(lines, "source")
        assert again.settings == tokenizer.settings
        assert again.fingerprint() == tokenizer.fingerprint()

    def test_the_fingerprint_tells_what_the_ids_mean(self, default: Tokenizer, kind: str) -> None:
        same = learn(subwords=kind)
        others = [
            learn(subwords=kind, vocab_size=121),
            learn(subwords=kind, normalize=["blanks", "nfc"]),
            learn(subwords=kind, share_vocab=False),
            learn(pairs(seed=2), subwords=kind),
        ]
        assert same.fingerprint() == default.fingerprint()
        assert len({default.fingerprint(), *(other.fingerprint() for other in others)}) == 5

    def test_a_folder_without_tokenizer_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="there is no tokenizer") as caught:
            Tokenizer.load(tmp_path)
        assert str(tmp_path) in str(caught.value)

    def test_a_model_file_is_known_to_be_cut_short_wherever_it_was_cut(
        self, default: Tokenizer, tmp_path: Path
    ) -> None:
        default.save(tmp_path)
        path = tmp_path / ("joint.vocab" if default.settings["subwords"] == "wordpiece" else "joint.model")
        whole = path.read_bytes()
        unnoticed = []
        for length in [*range(0, len(whole), 7), len(whole) - 1]:
            path.write_bytes(whole[:length])
            try:
                Tokenizer.load(tmp_path)
                unnoticed.append(length)
            except ModelError as error:
                assert str(path) in str(error)
        assert unnoticed == []

    @pytest.mark.parametrize("content", [b"", b"nonsense", b"[" * 100_000])
    @pytest.mark.parametrize("subwords", ["bpe", "imported", "gpt-bpe"])
    def test_a_model_file_with_a_checksum_may_still_be_none(
        self, tmp_path: Path, subwords: str, content: bytes
    ) -> None:
        learn(subwords="none").save(tmp_path)
        (tmp_path / "joint.model").write_bytes(content)
        stored = json.loads((tmp_path / "tokenizer.json").read_text())
        changes = {"subwords": subwords, "sha256": {"joint": hashlib.sha256(content).hexdigest()}}
        (tmp_path / "tokenizer.json").write_text(json.dumps({**stored, **changes}))
        with pytest.raises(ModelError, match=r"tokenizer\.json: damaged"):
            Tokenizer.load(tmp_path)

    def test_a_model_of_many_languages_takes_a_recipe_of_any(self) -> None:
        own = learn()
        many = Tokenizer({**own.settings, "source_language": "mul"}, {"joint": own._vocabularies["joint"]})
        check_given_tokenizer(many, data_config(source_language="ru"))
        with pytest.raises(RecipeError, match=r"data\.target_language = 'ru', but the tokenizer of .* has 'de'"):
            check_given_tokenizer(many, data_config(target_language="ru"))

    def test_a_tag_that_is_not_in_the_vocabulary_is_damage(self, tmp_path: Path) -> None:
        corpora = ["mine/train", {"source": "a.en", "target": "a.de", "source_prefix": "<bt>"}]
        learn(subwords="none", train=corpora).save(tmp_path)
        stored = (tmp_path / "tokenizer.json").read_text()
        (tmp_path / "tokenizer.json").write_text(stored.replace("<bt>", "<bx>"))
        with pytest.raises(ModelError, match=r"tokenizer\.json: damaged"):
            Tokenizer.load(tmp_path)

    def test_a_missing_model_file_is_named(self, default: Tokenizer, tmp_path: Path) -> None:
        default.save(tmp_path)
        name = "joint.vocab" if default.settings["subwords"] == "wordpiece" else "joint.model"
        (tmp_path / name).unlink()
        with pytest.raises(ModelError, match=rf"{re.escape(name)}: no such file"):
            Tokenizer.load(tmp_path)

    def test_a_damaged_description_is_named(self, default: Tokenizer, tmp_path: Path) -> None:
        default.save(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{")
        with pytest.raises(ModelError, match=r"tokenizer\.json: not valid JSON"):
            Tokenizer.load(tmp_path)


def test_unknown_words_are_shown_with_only_what_cannot_be_printed_escaped() -> None:
    data = data_config(subwords="none")
    tokenizer = learn_tokenizer(data, lambda: iter([("a b", "a b")] * 3))
    assert tokenizer.unknown_in("a \u0645\u06cc\u200c\u062e") == ["\u0645\u06cc\\u200c\u062e"]
