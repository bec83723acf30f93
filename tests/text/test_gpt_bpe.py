"""The subwords of GPT: the ids of transformers' OpenAIGPTTokenizer, and text from ids."""

import gzip
import json
import os
import random
from itertools import islice
from pathlib import Path

import pytest
from transformers import OpenAIGPTTokenizer

from nmtkit.errors import ModelError, RecipeError
from nmtkit.tasks.language_model import NEWLINE, LanguageModelTask
from nmtkit.text.gpt_bpe import split_words
from nmtkit.text.new_tokenizers import gpt_tokenizer
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import UNK

MERGES = [
    ("a", "b"), ("a", "b</w>"), ("a", "a"), ("aa", "aa"), ("ab", "ab"), ("c", "ab</w>"), ("b", "c"), ("b", "a"),
]  # fmt: skip
PIECES = [*"abc", "a</w>", "b</w>", "c</w>", "!</w>", ".</w>", "\n</w>", *(left + right for left, right in MERGES)]
ODD_LINES = (
    "",
    "   \t ",
    "x\u2028y\u2029z\u0085w\x0b\x0c\x1c\x00\x07\x1b[0m",
    "\ttabs\tbetween\t\twords\t",
    "a\u00a0b\u3000c\u2009d \u200bzero\u200dwidth\ufeff \u202eright\u202c",
    "東京は大きい。北京很大！㐀 서울 ｶﾀｶﾅ Ａ",
    "😀👩‍👩‍👧 ❤️ 🇩🇪 🤣",
    "ΟΔΟΣ İstanbul STRASSE Straße ĳ ﬁ Ǆ naïve cafe\u0301 Ñandú",
    "....!!!???,,,'''\"\"\"``'' $5 50% ^~|`<>=+ 1,000.50 € – — … §",
    "don't </w> <s> <pad> &amp; [x] {y} @-@ @@ \\n",
    "\ufffd \ue000 \uf065 \ufdd0 \U0010ffff \u0378",
    "a" * 3000,
    "the" * 500 + "zqxj" * 300,
    "مرحبا שלום हिन्दी ไทย ქართული",
)


def small() -> Tokenizer:
    return gpt_tokenizer(PIECES, MERGES, "en")


def reference(pieces: list[str], merges: list[tuple[str, str]]) -> OpenAIGPTTokenizer:
    vocabulary = {piece: index for index, piece in enumerate(["<unk>", *pieces])}
    return OpenAIGPTTokenizer(vocab=vocabulary, merges=merges)


def different(tokenizer: Tokenizer, theirs: OpenAIGPTTokenizer, lines: list[str]) -> list[str]:
    """Return the lines with other ids than those of transformers, which are 3 lower and 0 for an unknown piece."""
    ours = [[0 if index == UNK else index - 3 for index in ids] for ids in tokenizer.encode(lines, "target")]
    return [line for line, ids, other in zip(lines, ours, theirs(lines).input_ids, strict=True) if ids != other]


def made_up_lines(count: int) -> list[str]:
    """Lines of characters of many writing systems, and of marks, symbols and control characters."""
    blocks = [
        (0x00, 0x0A), (0x0B, 0x80), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x5D0, 0x5EB), (0x620, 0x700),
        (0x900, 0x980), (0xE01, 0xE5C), (0x1E00, 0x2070), (0x3041, 0x3100), (0x4E00, 0x9FA6), (0xAC00, 0xD7A4),
        (0xE000, 0xE100), (0xFF01, 0xFFEF), (0x1F300, 0x1F650), (0x20000, 0x2A6D7),
    ]  # fmt: skip
    rng = random.Random(1)
    lines = []
    for _ in range(count):
        first, last = rng.choice(blocks)
        words = ("".join(chr(rng.randrange(first, last)) for _ in range(rng.randint(1, 8))) for _ in range(6))
        lines.append(" ".join(words))
    return lines


def test_ids_are_those_of_transformers() -> None:
    rng = random.Random(2)
    lines = ["".join(rng.choices("aabbcABC! .x", k=rng.randint(1, 40))) for _ in range(500)]
    assert different(small(), reference(PIECES, MERGES), [*lines, *ODD_LINES, *made_up_lines(300)]) == []


MODEL = "raw.githubusercontent.com/openai/finetune-transformer-lm/a69b5c43b0452462890bca8ff92fb75dee9290cf/model"
CORPORA = [
    "allenai/scitldr/5ccad9c00a60ad75c9e04abf7f27d0f53f983b20/SciTLDR-Data/SciTLDR-A/dev.jsonl",
    "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
    "harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data/rt-polarity.all",
    "Helsinki-NLP/OPUS-MT-testsets/master/testsets/eng-deu/newstest2014.deu",
    "Helsinki-NLP/OPUS-MT-testsets/master/testsets/eng-fra/newstest2014.fra",
    "Helsinki-NLP/OPUS-MT-testsets/master/testsets/eng-fra/newstest2014.eng",
    "multi30k/dataset/master/data/task1/raw/val.fr.gz",
    "OpenNMT/OpenNMT-py/master/data/tgt-val.txt",
]


def lines_of(path: Path, count: int) -> list[str]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return [line.decode("utf-8", errors="replace").rstrip("\n") for line in islice(file, count)]


@pytest.mark.skipif(
    not (Path(os.environ.get("NMTKIT_MIRROR", "/nowhere")) / MODEL).is_dir(),
    reason="set NMTKIT_MIRROR to a mirror folder",
)
def test_ten_thousand_lines_get_the_ids_of_transformers_with_the_published_vocabulary() -> None:
    mirror = Path(os.environ["NMTKIT_MIRROR"])
    vocabulary = json.loads((mirror / MODEL / "encoder_bpe_40000.json").read_text(encoding="utf-8"))
    text = (mirror / MODEL / "vocab_40000.bpe").read_bytes().decode("utf-8")
    merges = [(left, right) for left, right in (line.split(" ") for line in text.split("\n")[1:-1])]
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    assert pieces[0] == "<unk>" and len(pieces) == 40478 and len(merges) == 40000
    lines = [*ODD_LINES, *made_up_lines(1500)]
    for name in CORPORA:
        lines += lines_of(mirror / "raw.githubusercontent.com" / name, 200 if name.endswith("jsonl") else 1500)
    assert len(lines) >= 10_000
    tokenizer = gpt_tokenizer(pieces[1:], merges, "en")
    assert different(tokenizer, reference(pieces[1:], merges), lines) == []
    line = "the old man looked at the sea, and waited ."
    assert tokenizer.decode(tokenizer.encode([line], "target")[0]) == "the old man looked at the sea , and waited ."


def test_words() -> None:
    assert split_words("Naïve  CATS!\t(a_b)") == ["naive", "cats", "!", "(", "a", "_", "b", ")"]
    assert split_words("x京都y") == ["x", "京", "都", "y"]
    assert split_words(f"a{FIELD_MARK}b{NEWLINE}c") == ["a", "b", "\n", "c"]


def test_text_from_ids_has_blanks_between_words_and_line_ends() -> None:
    tokenizer, task = small(), LanguageModelTask("text")
    lines = ["Abab\tcab!", "", "x b"]
    rows = tokenizer.encode([task.model_target(line, "text") for line in lines], "target")
    text = tokenizer.decode([index for row in rows for index in row])
    assert text == "abab cab !\n\n\u2047 b\n"
    assert tokenizer.decode([1, 0, 2, 3]) == "\u2047"
    pieces = tokenizer.pieces(rows[0], "target")
    assert pieces == ["ab", "ab</w>", "cab</w>", "!</w>", "\n</w>"]
    assert tokenizer.word_starts(rows[0], "target") == [True, False, True, True, True]


def test_a_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    tokenizer = small()
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode(["abab cab"], "source") == tokenizer.encode(["abab cab"], "target")
    assert loaded.entries("target") == ["<pad>", "<unk>", "<s>", "</s>", *PIECES]
    assert loaded.vocab_size("source") == len(PIECES) + 4
    with pytest.raises(RecipeError, match='subwords = "gpt-bpe" cannot be sampled'):
        loaded.sampler("target", 0.1)
    (tmp_path / "joint.model").write_bytes(b"{}")
    with pytest.raises(ModelError, match=r"joint\.model: damaged"):
        Tokenizer.load(tmp_path)


def test_half_of_a_surrogate_pair_is_left_out() -> None:
    assert small().encode(["a\ud800b"], "target") == small().encode(["ab"], "target")
