"""The subwords of GPT: BERT's splitting of lower-cased text into words, then byte-pair encoding of each word.

    "Naïve  cats!" --clean, lower-case, strip accents, split--> naive cats ! --merges--> na ive</w> cats</w> !</w>

The vocabulary and its merges are read from files, not learned. The ids are those of transformers' OpenAIGPTTokenizer,
that is, without ftfy and spaCy. Source: Radford et al. 2018, "Improving Language Understanding by Generative
Pre-Training", section 4.1.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from nmtkit.text.normalization import FIELD_MARK, NEWLINE, TAB
from nmtkit.text.vocabulary import UNK, ListedPieces, keep_results

_WORD_END = "</w>"
_MARKS = str.maketrans({NEWLINE: "\n", TAB: " ", FIELD_MARK: " "})
"""Line ends have an entry, with which GPT was trained."""
_NOT_TEXT = ("Cc", "Cf", "Co", "Cs")
"""Unicode categories of characters that are left out. Characters without a category become the unknown id."""
_CJK = re.compile(
    "([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f])"
)
"""Chinese characters as BERT has them: U+2B820 to U+2B91F are missing there."""
_CACHED_WORDS = 100_000


def split_words(text: str) -> list[str]:
    """Return the lower-cased words, punctuation marks, Chinese characters and line ends of a text.

    Source: `BasicTokenizer` of BERT (Devlin et al. 2019), which drops line ends.
    """
    words: list[str] = []
    for number, line in enumerate(text.translate(_MARKS).split("\n")):
        if number:
            words.append("\n")
        # As in BERT: tab and carriage return are blanks, though they are control characters, and U+FFFD is left out.
        kept = "".join(
            character
            for character in line
            if character != "\ufffd" and (character in "\t\r" or unicodedata.category(character) not in _NOT_TEXT)
        )
        decomposed = unicodedata.normalize("NFD", _CJK.sub(r" \1 ", kept))
        bare = (character for character in decomposed if unicodedata.category(character) != "Mn")
        # Lower-cased one by one: a capital sigma at the end of a word becomes the same letter as elsewhere.
        lowered = "".join(character.lower() for character in bare)
        words += "".join(f" {character} " if _is_punctuation(character) else character for character in lowered).split()
    return words


def _is_punctuation(character: str) -> bool:
    """Return whether BERT takes a character for punctuation: also the symbols of ASCII, such as "$" and "~"."""
    if character.isascii():
        return "!" <= character <= "~" and not character.isalnum()
    return unicodedata.category(character).startswith("P")


class GptBpe(ListedPieces):
    """A vocabulary of byte-pair encoding whose pieces mark the end of a word.

    Attributes:
        pieces: special pieces, then the others in the order of the published ids.
        merges: pairs of pieces, joined in this order of preference.
    """

    def __init__(self, pieces: Sequence[str], merges: Sequence[Sequence[str]]) -> None:
        super().__init__(pieces)
        self.merges = [(left, right) for left, right in merges]
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._ids_of_word = keep_results(self._split_word, _CACHED_WORDS)

    @classmethod
    def from_bytes(cls, content: bytes) -> "GptBpe":
        """Read what `to_bytes` has written."""
        stored = json.loads(content)
        return cls(stored["pieces"], stored["merges"])

    def to_bytes(self) -> bytes:
        return json.dumps({"pieces": self.pieces, "merges": self.merges}, ensure_ascii=False).encode("utf-8")

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return [[index for word in split_words(line) for index in self._ids_of_word(word)] for line in lines]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, with blanks between words and line ends where the entry of a line end stands."""
        parts: list[str] = []
        for index in ids:
            piece = self.pieces[index]
            if index == UNK:
                parts.append("\u2047 ")
            elif index >= self.num_special:
                parts.append(f"{piece.removesuffix(_WORD_END)} " if piece.endswith(_WORD_END) else piece)
        # A line end is a word of its own, so the words before and after it leave blanks around it.
        return re.sub(" ?\n ?", "\n", "".join(parts)).removesuffix(" ")

    def _split_word(self, word: str) -> list[int]:
        """Return the ids of a word: of the pairs in it, the first one of lowest rank is joined until there is none.

        A heap of the pairs keeps the time nearly proportional to the length of the word.
        """
        symbols = [*word[:-1], word[-1] + _WORD_END]
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        ranks, end = self._ranks, len(word)
        # Rank, then position: of equal pairs that overlap, such as in "aaa", the first is joined.
        pairs = [(ranks[pair], position) for position, pair in enumerate(pairwise(symbols)) if pair in ranks]
        heapify(pairs)
        while pairs:
            rank, left = heappop(pairs)
            right = after[left]
            if right == end or ranks.get((symbols[left], symbols[right])) != rank:
                continue  # one of the two has been joined to another
            symbols[left] += symbols[right]
            symbols[right], after[left] = "", after[right]
            if after[right] < end:
                before[after[right]] = left
            for first, second in ((before[left], left), (left, after[left])):
                if first >= 0 and second < end and (pair := (symbols[first], symbols[second])) in ranks:
                    heappush(pairs, (ranks[pair], first))
        return [self.index.get(symbol, UNK) for symbol in symbols if symbol]
