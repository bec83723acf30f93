"""Word-pieces: each step raises the likelihood most, cutting takes the longest piece, joining gives the line back."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmtkit.config.data_schema import DataConfig
from nmtkit.errors import RecipeError
from nmtkit.text.gpt_bpe import GptBpe
from nmtkit.text.subword_sampling import BpeDropout, UnigramSampling
from nmtkit.text.vocabulary import SPECIAL_PIECES, UNK, keep_results
from nmtkit.text.wordpieces import WordPieces, WordPieceTrainer, count_units, likelihood_gain, units_of
from tests.forked import outputs_by_hash_seed

LINES = ["the cat sat", "the cats sat on the mats", "that cat, the fat one, ate 1,200 mats", "cats!"] * 3


def learn(lines: list[str], size: int, num_characters: int = 500, fallback: bool = False) -> WordPieces:
    return WordPieces.learn(lines, recipe(size, wordpiece_characters=num_characters, byte_fallback=fallback))


def recipe(size: int, **data: int) -> DataConfig:
    stated = {"source_language": "en", "target_language": "de", "train": [{"source": "a", "target": "b"}]}
    return DataConfig.model_validate({**stated, "subwords": "wordpiece", "vocab_size": size, **data})


def of_pieces(*pieces: str) -> WordPieces:
    return WordPieces([*SPECIAL_PIECES, *pieces])


def cut(model: WordPieces, line: str) -> list[str]:
    return [model.pieces[index] for index in model.encode([line])[0]]


def test_results_of_very_long_words_are_not_kept() -> None:
    computed: list[int] = []
    length_of = keep_results(lambda word: computed.append(len(word)) or len(word), 100)
    sizes = list(range(30, 50))
    for _ in range(2):
        assert [length_of("a" * size) for size in sizes] == sizes
    assert computed == [*sizes, *range(41, 50)]


INDEX = {"\u2581": 0, "a": 1}


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda: of_pieces("a"), "_cut_word"),
        (lambda: GptBpe([*SPECIAL_PIECES, "a"], []), "_split_word"),
        (lambda: BpeDropout(INDEX, [0.0, 0.0], 0.5), "_make_plain_merges"),
        (lambda: UnigramSampling(INDEX, [-1.0, -1.0], 0.5), "_make_lattice"),
    ],
)
def test_each_kind_keeps_the_results_of_short_words_only(
    make: Callable[[], Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, computed = type(make()), list[str]()
    own = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda self, word: computed.append(word) or own(self, word))
    model = make()
    for word in ("aa", "a" * 99) * 2:
        model.encode([word], None) if hasattr(model, "encode") else model.sample(word, random.random)
    assert [len(word) > 50 for word in computed] == [False, True, True]


class TestUnits:
    @pytest.mark.parametrize(
        ("word", "units"),
        [
            ("house", [" house"]),
            ("it's", [" it", "'", "s"]),
            ("1,200km", [" 1", ",", "200", "km"]),
            ('"so"', [' "', "so", '"']),
            ("", [" "]),
            ("e\u0301té", [" e\u0301té"]),
            ("हिन्दी", [" हिन्दी"]),
            ("...?!", [" ...?!"]),
        ],
    )
    def test_no_piece_reaches_from_letters_to_digits_or_signs(self, word: str, units: list[str]) -> None:
        assert units_of(word) == units

    @given(word=st.text())
    def test_units_are_the_word_with_its_blank(self, word: str) -> None:
        assert "".join(units_of(word)) == f" {word}"


def log_likelihood(sequences: list[list[str]]) -> float:
    """Of a unigram model with the relative frequencies of the pieces, by its definition."""
    counts = Counter(piece for sequence in sequences for piece in sequence)
    total = sum(counts.values())
    return sum(count * math.log(count / total) for count in counts.values())


def joined(sequence: list[str], left: str, right: str) -> list[str]:
    found: list[str] = []
    for piece in sequence:
        if found and found[-1] == left and piece == right:
            found[-1] = left + right
        else:
            found.append(piece)
    return found


class TestLearning:
    def test_the_gain_is_the_difference_of_the_likelihoods(self) -> None:
        rng = random.Random(1)
        sequences = [rng.choices("abc", k=rng.randint(1, 9)) for _ in range(40)]
        counts = Counter(piece for sequence in sequences for piece in sequence)
        for left in "abc":
            for right in "abc":
                after = [joined(sequence, left, right) for sequence in sequences]
                number = sum(sequence.count(left + right) for sequence in after)
                arguments = [np.array([float(n)]) for n in (number, counts[left], counts[right])]
                gain = likelihood_gain(*arguments, np.array([left == right]), float(counts.total()))[0]
                assert gain == pytest.approx(log_likelihood(after) - log_likelihood(sequences), rel=1e-9)

    def test_each_new_piece_is_the_pair_that_raises_the_likelihood_most(self) -> None:
        counts = count_units(LINES)
        sequences = [list(unit) for unit, count in counts.items() for _ in range(count)]
        trainer = WordPieceTrainer(counts, 500)
        for _ in range(12):
            pairs = {pair for sequence in sequences for pair in itertools.pairwise(sequence)}
            before = log_likelihood(sequences)
            gains = {
                pair: log_likelihood([joined(sequence, *pair) for sequence in sequences]) - before for pair in pairs
            }
            trainer.grow(len(trainer.pieces) + 1)
            new = trainer.pieces[-1]
            best = max(gains.values())
            assert [pair for pair in pairs if "".join(pair) == new and gains[pair] == pytest.approx(best, abs=1e-5)]
            left, right = next(pair for pair in pairs if "".join(pair) == new and gains[pair] > best - 1e-5)
            sequences = [joined(sequence, left, right) for sequence in sequences]

    def test_in_a_row_of_one_letter_pairs_do_not_overlap(self) -> None:
        trainer = WordPieceTrainer(Counter({"aaaaa": 10, "b": 1}), 500)
        trainer.grow(trainer.num_basic + 1)
        assert trainer.pieces[-1] == "aa"
        assert [trainer.pieces[k] for k in trainer._symbols[:3].tolist()] == ["aa", "aa", "a"]

    def test_a_word_boundary_belongs_to_the_piece_that_begins_a_word(self) -> None:
        lines = ["Jet makers feud over seat width with big orders at stake"] * 2  # the example of Wu et al.
        possible = len(WordPieceTrainer(count_units(lines), 500).pieces)
        model = learn(lines, len(SPECIAL_PIECES) + possible + 30)
        pieces = cut(model, lines[0])
        assert len(pieces) < len(lines[0])
        assert sum(piece.startswith(" ") for piece in pieces) == len(lines[0].split())
        assert "".join(pieces) == f" {lines[0]}"

    def test_rare_characters_have_no_entry_and_are_unknown(self) -> None:
        lines = ["aaa bbb aab"] * 5 + ["c日"]
        model = learn(lines, 12, num_characters=2)
        assert {"a", "b", " "} <= set(model.pieces)
        assert not {"c", "日"} & set(model.pieces)
        rows = model.encode(["c日", "a日b"])
        assert rows[0][1:] == [UNK, UNK]
        assert model.decode(rows[1]) == "a \u2047 b"

    def test_of_two_equally_frequent_characters_the_first_in_unicode_stays(self) -> None:
        assert WordPieceTrainer(Counter({" ba": 1}), 1).pieces == [" ", "a"]

    def test_the_order_of_the_lines_decides_nothing(self) -> None:
        assert learn(LINES, 44).pieces == learn(LINES[::-1], 44).pieces

    def test_two_processes_learn_the_same_bytes(self, tmp_path: Path) -> None:
        code = (
            "import sys; from nmtkit.config.schema import DataConfig; from nmtkit.text.wordpieces import WordPieces\n"
            f"data = DataConfig.model_validate_json({recipe(44).model_dump_json()!r})\n"
            f"model = WordPieces.learn({LINES!r}, data)\n"
            "sys.stdout.buffer.write('\\n'.join(model.pieces).encode())"
        )
        found = outputs_by_hash_seed(code)
        assert found[0] == found[1] == "\n".join(learn(LINES, 44).pieces).encode()

    @pytest.mark.parametrize("size", [30, 31, 40, 44])
    def test_a_vocabulary_has_exactly_the_asked_size_each_piece_once(self, size: int) -> None:
        pieces = learn(LINES, size).pieces
        assert len(pieces) == len(set(pieces)) == size

    def test_a_smaller_vocabulary_is_the_beginning_of_a_larger_one(self) -> None:
        assert learn(LINES, 44).pieces[:40] == learn(LINES, 40).pieces

    def test_a_text_without_characters_is_refused(self) -> None:
        with pytest.raises(RecipeError, match="at most 5 are possible"):
            learn(["", ""], 10)


class TestCutting:
    def test_the_longest_piece_is_taken_from_left_to_right(self) -> None:
        model = of_pieces(" ", *"unafble", " un", "aff", "able", "ff", " unaf")
        assert cut(model, "unaffable") == [" unaf", "f", "able"]
        assert cut(model, "fun") == [" ", "f", "u", "n"]

    @settings(max_examples=300)
    @given(line=st.text())
    @example(line="  two  blanks\t ")
    @example(line="\u2581 \ufdd0 \u2028\u2029\u0085\x0b\x0c\r\0\x1b \U0010ffff")
    @example(line="<0x41> <s> e\u0301 \u202eabc\u202c \u200d\ufe0f 👩‍👩‍👧")
    @example(line="x" * 1000)
    def test_any_text_comes_back_exactly_with_bytes_for_what_is_unseen(self, line: str) -> None:
        [ids] = WITH_BYTES.encode([line])
        assert UNK not in ids
        assert WITH_BYTES.decode(ids) == line

    def test_ids_that_no_text_gives_have_a_text_too(self) -> None:
        assert WITH_BYTES.decode([4 + 0xE6, 4 + 0x97]) == "\ufffd"
        assert of_pieces(" ", "a").decode([5, 4, 5]) == "a a"


WITH_BYTES = learn(LINES, 300, fallback=True)
