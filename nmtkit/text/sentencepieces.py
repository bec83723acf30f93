"""Subword models of sentencepiece: learned ones, and those of imported models. The only module that uses it."""

import base64
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmtkit.config.data_schema import LANGUAGE_MODEL, DataConfig
from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.files import content_of
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.subword_sampling import SubwordSampler
from nmtkit.text.vocabulary import BLANK_SIGN, BOS, EOS, PAD, STAND_IN, TAG_SIGN, UNK, UNKNOWN_TEXT, ListedPieces

MAX_LEARNED_BYTES = 4192
"""Maximum length of a line to learn from, the default of sentencepiece, which leaves out longer ones."""


class SentencePiece:
    """BPE, unigram or characters by sentencepiece, without any normalisation of its own."""

    def __init__(self, model: bytes) -> None:
        self._bytes, self._processor = model, _loaded_spm(model)

    @classmethod
    def learn(cls, lines: Iterable[str], data: DataConfig, tags: Sequence[str]) -> "SentencePiece":
        import sentencepiece

        model = io.BytesIO()
        stopped: list[BaseException] = []

        def sentences() -> Iterator[str]:
            try:
                for line in lines:
                    # sentencepiece reserves the tab and U+2585 and would skip the whole line.
                    yield line.replace("\t", " ").replace("\u2585", " ").replace(BLANK_SIGN, STAND_IN)
            except BaseException as error:  # sentencepiece would replace it by an error of its own
                stopped.append(error)
                raise

        changed: dict[str, Any] = {}  # models of other kinds do not state these defaults
        if data.subwords == "characters":
            changed["hard_vocab_limit"] = False  # a text may have fewer characters than vocab_size
        if data.subwords == "characters" or data.task_name == LANGUAGE_MODEL:
            changed["add_dummy_prefix"] = False  # the blank before each line would become part of running text
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences(),
                model_writer=model,
                model_type="char" if data.subwords == "characters" else data.subwords,
                vocab_size=data.vocab_size,
                **changed,
                byte_fallback=data.byte_fallback,
                character_coverage=1.0,
                # The default (nmt_nfkc) silently changes the text, as does the trimming of blanks below.
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                split_by_unicode_script=data.splits_scripts,
                max_sentence_length=MAX_LEARNED_BYTES,
                # Fixed, as the unigram trainer sums counts by thread, so the number decides the result.
                num_threads=8,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                unk_surface=UNKNOWN_TEXT,
                control_symbols=[TAG_SIGN + tag for tag in tags],
                user_defined_symbols=[BLANK_SIGN + FIELD_MARK] if data.has_fields else [],
                minloglevel=2,
            )
        except RuntimeError as error:
            # GeneratorExit means that sentencepiece has stopped reading because of an error of its own.
            if stopped and not isinstance(stopped[0], GeneratorExit):
                raise stopped[0] from None
            raise RecipeError(f"data.vocab_size = {data.vocab_size}: {_reason(str(error))}") from None
        return cls(model.getvalue())

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return _spm_encode(self._processor, [line.replace(BLANK_SIGN, STAND_IN) for line in lines], threads, int)

    def sampler(self, kind: str, strength: float) -> SubwordSampler:
        processor, pieces = self._processor, []
        for index in range(len(self)):
            is_fixed = processor.is_control(index) or processor.is_unknown(index) or processor.is_byte(index)
            # The mark is no character of the vocabulary, so BPE could not join it; unigram never splits it.
            is_mark = kind == "bpe" and self.piece(index) == BLANK_SIGN + FIELD_MARK
            pieces.append(None if is_fixed or is_mark else self.piece(index))
        return SubwordSampler(kind, pieces, [processor.get_score(index) for index in range(len(self))], strength)

    def decode(self, ids: list[int]) -> str:
        # Without an entry for the blank, it is the bytes of its sign.
        return str(self._processor.decode(ids)).replace(BLANK_SIGN, " ").replace(STAND_IN, BLANK_SIGN)

    def piece(self, index: int) -> str:
        return str(self._processor.id_to_piece(index))

    def id_of(self, piece: str) -> int:
        return int(self._processor.piece_to_id(piece))

    def to_bytes(self) -> bytes:
        return self._bytes


class ImportedPieces(ListedPieces):
    """Pieces by a model of sentencepiece, ids by a list of entries, as in models of Marian and fairseq.

    The pieces of both sides, which may have a model each, are entries of one list; pieces that are not in it are
    unknown. The text is not changed before, so that the ids are those of the original.

    Attributes:
        model: the model of sentencepiece.
        reserved: ids of the entries that no text is split into.
    """

    def __init__(self, entries: list[str], model: bytes) -> None:
        super().__init__(entries)
        self.model, self._processor = model, _loaded_spm(model)
        self._ids = {entry: index for index, entry in enumerate(entries)}
        self.reserved = tuple(index for index, entry in enumerate(entries) if entry.startswith(TAG_SIGN))
        for index in self.reserved:  # text that looks like a tag is unknown, so that it cannot act as one
            self.index.pop(entries[index], None)

    @classmethod
    def from_bytes(cls, content: bytes) -> "ImportedPieces":
        stored = json.loads(content)
        return cls([str(entry) for entry in stored["entries"]], base64.b64decode(stored["model"]))

    def to_bytes(self) -> bytes:
        stored = {"entries": self.pieces, "model": base64.b64encode(self.model).decode("ascii")}
        return json.dumps(stored, ensure_ascii=False).encode("utf-8")

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        rows: list[list[str]] = _spm_encode(self._processor, lines, threads, str)
        return [[self.index.get(piece, UNK) for piece in row] for row in rows]

    def decode(self, ids: list[int]) -> str:
        # sentencepiece does not know the other entries, such as tags, and would write their names as text.
        known = [self.pieces[index] for index in ids if index == UNK or self.pieces[index] in self.index]
        text = str(self._processor.decode(known))
        return text.replace(BLANK_SIGN, " ").strip(" ")  # a piece of the other side only is left as it is

    def id_of(self, piece: str) -> int:
        return self._ids[piece]  # hundreds of languages are looked up, so not by a search of the list


def sentencepiece_entries(path: Path) -> list[str]:
    """Return the entries of a model of sentencepiece in the order of their ids; raise ModelError if it is none."""
    try:
        model = _loaded_spm(content_of(path))
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None
    return [str(model.id_to_piece(index)) for index in range(len(model))]


def _loaded_spm(model: bytes) -> Any:
    """Return a model of sentencepiece; raise ValueError if the bytes are none."""
    import sentencepiece

    with suppress(RuntimeError):
        if model:  # no bytes would be an empty model
            return sentencepiece.SentencePieceProcessor(model_proto=model)
    raise ValueError("not a model of sentencepiece")


def _spm_encode(processor: Any, lines: list[str], threads: int | None, kind: type) -> list[Any]:
    """Return the ids (``kind`` int) or pieces (str) of each line."""
    try:
        return processor.encode(lines, out_type=kind, num_threads=threads or -1)  # -1: all cores
    except TypeError:  # the error of sentencepiece for half of a surrogate pair
        bad = next(line for line in lines if line.encode(errors="replace") != line.encode(errors="surrogatepass"))
        raise DataError(f"{bad[:40]!r} is not valid UTF-8") from None


def _reason(message: str) -> str:
    """Return an error message of sentencepiece about the vocabulary size in terms of recipe keys."""
    if match := re.search(r"set it to a value <= (\d+)", message):
        return f"the training text has too few different pieces; at most {match[1]} are possible"
    if match := re.search(r"smaller than required_chars\. *(\d+) vs (\d+)", message):
        return (
            f"too few to hold the {match[2]} special entries and different characters of the text; take more, "
            "or clean the text"
        )
    return f"sentencepiece could not learn subwords ({' '.join(message.split())})"
