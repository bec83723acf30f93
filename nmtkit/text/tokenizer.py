"""The subword model, which is also the vocabulary: from text to ids and back.

The only module that uses sentencepiece. A tokenizer folder holds one model for both sides, or one per side:

    tokenizer.json      kind, normalisation, special ids, sizes
    joint.model         or source.model and target.model, by sentencepiece; for "gpt-bpe" JSON with pieces and merges,
                        for "imported" JSON with the entries and a model of sentencepiece
    joint.vocab         for subwords = "wordpiece" (a blank where a word begins) and "none": one piece per line
    target.vocab        for tasks whose output is a label: the labels

The four special ids are the same in every vocabulary.
"""

import base64
import difflib
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from nmtkit.config.schema import LANGUAGE_MODEL, MANY_LANGUAGES, SEPARATOR, DataConfig, default_task, one_language
from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.files import content_of, read_json, write_bytes_atomically, write_json
from nmtkit.text.gpt_bpe import GptBpe
from nmtkit.text.normalization import NEWLINE, TAB, Normalization
from nmtkit.text.subword_sampling import SubwordSampler
from nmtkit.text.wordpieces import WordPieces

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
Identity = tuple[str, str]
"""Role and text of an entry, the same in every tokenizer; see `Tokenizer.identities`."""
ROLES_OF_TEXT = ("begins", "inside", "ends", "open")

_BLANK_SIGN, _STAND_IN = "\u2581", "\ufdd0"
"""sentencepiece writes a blank as U+2581, so a U+2581 in the text would be decoded as a blank; in its models it is
replaced by a character that Unicode never assigns."""

_TAG_SIGN = "\ufdd1"
"""Another such character, with which the entry of a tag begins: sentencepiece removes control symbols from its training
text, even inside words, and the text may contain the name of the tag."""
FIELD_MARK = "\ufdd4"
"""Another one, a word of its own, which stands for the tab between two fields of a line (`DataConfig.has_fields`)."""
ADDED = ("<start>", "<delimiter>", "<extract>")
"""Entries at the end of a vocabulary for tasks whose output is a label; no text is split into them."""
_UNKNOWN_TEXT = " \u2047 "
"""Text that <unk> is decoded to."""
_BEFORE = "\ufdd5"
"""Another one, in no vocabulary: text after it is split as in the middle of a word."""
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
_MAX_LEARNED_BYTES = 4192
"""Maximum length of a line to learn from, the default of sentencepiece: longer lines cost memory for little gain."""


@runtime_checkable
class _Vocabulary(Protocol):
    """A subword model."""

    def __len__(self) -> int: ...
    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]: ...
    def decode(self, ids: list[int]) -> str: ...
    def piece(self, index: int) -> str: ...
    def id_of(self, piece: str) -> int: ...
    def to_bytes(self) -> bytes: ...


class _SentencePiece:
    """BPE, unigram or characters by sentencepiece, without any normalisation of its own."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._bytes = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def learn(cls, lines: Iterable[str], data: DataConfig, tags: Sequence[str]) -> "_SentencePiece":
        import sentencepiece

        model = io.BytesIO()
        stopped: list[BaseException] = []

        def sentences() -> Iterator[str]:
            try:
                for line in lines:
                    # sentencepiece reserves the tab and would skip the whole line.
                    yield line.replace("\t", " ").replace(_BLANK_SIGN, _STAND_IN)
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
                max_sentence_length=_MAX_LEARNED_BYTES,
                # Fixed, as the unigram trainer sums counts by thread, so the number decides the result.
                num_threads=8,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                unk_surface=_UNKNOWN_TEXT,
                control_symbols=[_TAG_SIGN + tag for tag in tags],
                user_defined_symbols=[_BLANK_SIGN + FIELD_MARK] if data.has_fields else [],
                minloglevel=2,
            )
        except RuntimeError as error:
            if stopped and not isinstance(stopped[0], GeneratorExit):
                raise stopped[0] from None
            raise RecipeError(f"data.vocab_size = {data.vocab_size}: {_reason(str(error))}") from None
        return cls(model.getvalue())

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return _spm_encode(self._processor, [line.replace(_BLANK_SIGN, _STAND_IN) for line in lines], threads, int)

    def sampler(self, kind: str, strength: float) -> SubwordSampler:
        processor, pieces = self._processor, []
        for index in range(len(self)):
            is_fixed = processor.is_control(index) or processor.is_unknown(index) or processor.is_byte(index)
            pieces.append(None if is_fixed else self.piece(index))
        return SubwordSampler(kind, pieces, [processor.get_score(index) for index in range(len(self))], strength)

    def decode(self, ids: list[int]) -> str:
        return str(self._processor.decode(ids)).replace(_STAND_IN, _BLANK_SIGN)

    def piece(self, index: int) -> str:
        return str(self._processor.id_to_piece(index))

    def id_of(self, piece: str) -> int:
        return int(self._processor.piece_to_id(piece))

    def to_bytes(self) -> bytes:
        return self._bytes


class _ImportedPieces:
    """Pieces by a model of sentencepiece, ids by a list of entries, as in models of Marian and fairseq.

    The pieces of both sides, which may have a model each, are entries of one list; pieces that are not in it are
    unknown. The text is not changed before, so that the ids are those of the original.

    Attributes:
        model: the model of sentencepiece.
        reserved: ids of the entries that no text is split into.
    """

    def __init__(self, entries: list[str], model: bytes) -> None:
        self._entries, self.model, self._processor = entries, model, _loaded_spm(model)
        self._ids = {entry: index for index, entry in enumerate(entries)}
        self.reserved = tuple(index for index, entry in enumerate(entries) if entry.startswith(_TAG_SIGN))
        excluded = {*range(len(SPECIAL_PIECES)), *self.reserved}
        self._of_text = {piece: index for piece, index in self._ids.items() if index not in excluded}

    @classmethod
    def from_bytes(cls, content: bytes) -> "_ImportedPieces":
        stored = json.loads(content)
        return cls([str(entry) for entry in stored["entries"]], base64.b64decode(stored["model"]))

    def to_bytes(self) -> bytes:
        stored = {"entries": self._entries, "model": base64.b64encode(self.model).decode("ascii")}
        return json.dumps(stored, ensure_ascii=False).encode("utf-8")

    def __len__(self) -> int:
        return len(self._entries)

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        rows: list[list[str]] = _spm_encode(self._processor, lines, threads, str)
        return [[self._of_text.get(piece, UNK) for piece in row] for row in rows]

    def decode(self, ids: list[int]) -> str:
        pieces = [self._entries[index] for index in ids]
        text = self._processor.decode(
            [piece for piece in pieces if piece in self._of_text or piece == SPECIAL_PIECES[UNK]]
        )
        return str(text).replace(_BLANK_SIGN, " ").strip(" ")  # a piece of the other side only is left as it is

    def piece(self, index: int) -> str:
        return self._entries[index]

    def id_of(self, piece: str) -> int:
        return self._ids[piece]


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

    try:
        if model:  # no bytes would be an empty model
            return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        model = b""
    raise ValueError("not a model of sentencepiece")


def _spm_encode(processor: Any, lines: list[str], threads: int | None, kind: type) -> list[Any]:
    """Return the ids (``kind`` int) or pieces (str) of each line."""
    try:
        rows: list[Any] = processor.encode(lines, out_type=kind, num_threads=threads or -1)
    except TypeError:  # the error of sentencepiece for half of a surrogate pair
        bad = next(line for line in lines if line.encode(errors="replace") != line.encode(errors="surrogatepass"))
        raise DataError(f"{bad[:40]!r} is not valid UTF-8") from None
    return rows


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


class _ListedPieces:
    """A vocabulary stored as lines: special pieces, tags, then the pieces of text."""

    def __init__(self, pieces: list[str], tags: Sequence[str]) -> None:
        self._pieces = pieces
        self._num_special = len(SPECIAL_PIECES) + len(tags)

    def __len__(self) -> int:
        return len(self._pieces)

    def piece(self, index: int) -> str:
        return self._pieces[index]

    def id_of(self, piece: str) -> int:
        return self._pieces.index(piece)

    def to_bytes(self) -> bytes:
        return "".join(f"{piece}\n" for piece in self._pieces).encode("utf-8")


class _WordPieces(_ListedPieces):
    """Word-pieces of wordpieces.py."""

    def __init__(self, pieces: list[str], tags: Sequence[str]) -> None:
        super().__init__(pieces, tags)
        self._model = WordPieces(pieces, self._num_special, UNK)

    @classmethod
    def learn(cls, lines: Iterable[str], data: DataConfig, tags: Sequence[str]) -> "_WordPieces":
        special = (*SPECIAL_PIECES, *(_TAG_SIGN + tag for tag in tags))
        model = WordPieces.learn(lines, data.vocab_size, special, UNK, data.wordpiece_characters, data.byte_fallback)
        return cls(model.pieces, tags)

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return [self._model.encode(line) for line in lines]

    def decode(self, ids: list[int]) -> str:
        return self._model.decode(ids, _UNKNOWN_TEXT)

    def piece(self, index: int) -> str:
        """Return a piece with U+2581 for a blank, as sentencepiece does."""
        return self._pieces[index].replace(_BLANK_SIGN, _STAND_IN).replace(" ", _BLANK_SIGN)


class _SegmentedPieces(_ListedPieces):
    """Vocabulary of text that is already segmented: the pieces between blanks, most frequent first."""

    def __init__(self, pieces: list[str], mark: str, tags: Sequence[str]) -> None:
        super().__init__(pieces, tags)
        self._mark = mark
        # A word of the text that equals a special piece is unknown.
        self._index = {piece: index for index, piece in enumerate(pieces) if index >= self._num_special}

    @classmethod
    def learn(cls, lines: Iterable[str], data: DataConfig, tags: Sequence[str]) -> "_SegmentedPieces":
        counts = Counter(piece for line in lines for piece in line.split(" ") if piece)
        entries = [*SPECIAL_PIECES, *(_TAG_SIGN + tag for tag in tags)]
        if data.vocab_size <= len(entries):
            raise RecipeError(
                f"data.vocab_size = {data.vocab_size}: special symbols and tags need {len(entries)} entries; "
                "choose a larger size"
            )
        for special in entries:
            counts.pop(special, None)
        ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
        return cls([*entries, *ranked[: data.vocab_size - len(entries)]], data.segment_mark, tags)

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return [[self._index.get(piece, UNK) for piece in line.split(" ") if piece] for line in lines]

    def decode(self, ids: list[int]) -> str:
        pieces = (self._pieces[index] for index in ids if index == UNK or index >= self._num_special)
        return join_segments(" ".join(pieces), self._mark)


class _Extended:
    """A vocabulary with the entries ADDED at its end."""

    def __init__(self, base: _Vocabulary) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base) + len(ADDED)

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        return self.base.encode(lines, threads)

    def decode(self, ids: list[int]) -> str:
        return self.base.decode([index for index in ids if index < len(self.base)])

    def piece(self, index: int) -> str:
        return self.base.piece(index) if index < len(self.base) else ADDED[index - len(self.base)]

    def id_of(self, piece: str) -> int:
        return len(self.base) + ADDED.index(piece) if piece in ADDED else self.base.id_of(piece)

    def to_bytes(self) -> bytes:
        return self.base.to_bytes()


def label_of(line: str) -> str:
    """Return the label in a line: its text with single blanks."""
    return " ".join(line.split())


class _Labels(_ListedPieces):
    """The labels of a task, each of them one entry."""

    def encode(self, lines: list[str], threads: int | None) -> list[list[int]]:
        index = {label: number for number, label in enumerate(self._pieces) if number >= self._num_special}
        return [[index.get(label, UNK)] if (label := label_of(line)) else [] for line in lines]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self._pieces[index] for index in ids if index >= self._num_special)


def join_segments(line: str, mark: str) -> str:
    """Join pieces that end in ``mark`` with the next ones: "lo@@ w" becomes "low"."""
    return f"{line} ".replace(f"{mark} ", "").rstrip(" ") if mark else line


class Tokenizer:
    """Conversion of text to ids and back, for both sides.

    Attributes:
        settings: the content of tokenizer.json.
        languages: of source and target, see `in_direction`; "mul" for a side with several languages.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        vocabularies: dict[str, _Vocabulary],
        languages: tuple[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.languages: tuple[str, str] = languages or (settings["source_language"], settings["target_language"])
        self._vocabularies = vocabularies
        self._ends_lines = settings.get("line_end") == SPECIAL_PIECES[EOS]
        self._normalizations = {
            side: Normalization(tuple(settings["normalize"]), language, self._ends_lines)
            for side, language in zip(SIDES, self.languages, strict=True)
        }
        if self.labels:
            self._normalizations["target"] = Normalization(("blanks",), settings["target_language"])
        source = self._side("source")
        self._tags = {tag: source.id_of(_TAG_SIGN + tag) for tag in settings.get("source_prefixes", ())}
        self._source_tags, self._target_tags, self._target_starts = (
            {code: source.id_of(piece) for code, piece in settings.get(key, {}).items()}
            for key in ("source_tags", "target_tags", "target_starts")
        )

    @classmethod
    def learn(cls, data: DataConfig, pairs: Callable[[], Iterable[tuple[str, str]]]) -> "Tokenizer":
        """Learn the subwords of a recipe.

        Args:
            pairs: function that returns a new iterator over the normalised source and target lines.

        Raises:
            RecipeError: the text is too small for a vocabulary of the requested size.
        """

        def learn(lines: Iterable[str], tags: Sequence[str]) -> _Vocabulary:
            if data.subwords == "none":
                return _SegmentedPieces.learn(lines, data, tags)
            if data.has_fields:  # a document is longer than any line to learn from, but a paragraph is not
                lines = (field for line in lines for field in re.split(f"(?<={FIELD_MARK}) ", line))
            short = (line for line in lines if len(line.encode()) <= _MAX_LEARNED_BYTES)
            return (_WordPieces if data.subwords == "wordpiece" else _SentencePiece).learn(short, data, tags)

        special: dict[str, Any] = {}
        if data.source_prefixes:
            special["source_prefixes"] = list(data.source_prefixes)
        if data.target_tags:
            special["target_tags"] = {code: _TAG_SIGN + tag for code, tag in data.target_tags.items()}
        if len(data.source_languages) > 1:
            special["source_languages"] = list(data.source_languages)
        if data.context:
            special |= {"context": data.context, "context_sides": data.context_sides}
        vocabularies: dict[str, _Vocabulary]
        if data.has_labels:
            fields = (field.strip(" ") for source, _ in pairs() for field in source.split(FIELD_MARK))
            vocabularies = {"joint": learn(fields, ())}
        elif data.share_vocab:
            vocabularies = {"joint": learn((line for pair in pairs() for line in pair), _tags(special, "source"))}
        else:
            vocabularies = {
                "source": learn((source for source, _ in pairs()), _tags(special, "source")),
                "target": learn((target for _, target in pairs()), _tags(special, "target")),
            }
        settings: dict[str, Any] = {
            "subwords": data.subwords,
            "normalize": list(data.normalize),
            "text": data.text,
            "source_language": one_language(data.source_languages),
            "target_language": one_language(data.target_languages),
            "segment_mark": data.segment_mark,
            "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
            "vocab_sizes": {side: len(vocabulary) for side, vocabulary in vocabularies.items()},
        }
        if data.task is not None:
            settings["task"] = data.task
        return cls({**settings, **special}, vocabularies)

    def with_labels(self, data: DataConfig, labels: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer of the same subwords for a task whose output is one of the labels.

        The vocabulary of the source is this one's with the entries ADDED at its end, that of the target the labels.
        """
        base = self._side("target" if self.task_name == LANGUAGE_MODEL else "source")
        base = base.base if isinstance(base, _Extended) else base
        vocabularies: dict[str, _Vocabulary] = {
            "source": _Extended(base), "target": _Labels([*SPECIAL_PIECES, *labels], ())
        }  # fmt: skip
        settings = {
            **{key: self.settings[key] for key in ("subwords", "normalize", "text", "segment_mark", "special_ids")},
            "source_language": data.source_language,
            "target_language": data.target_language,
            "task": data.task_name,
            "label_type": data.label_type,
            "sequence_length": data.sequence_length,
            "base_sha256": self.base_fingerprint,
            "vocab_sizes": {side: len(vocabulary) for side, vocabulary in vocabularies.items()},
        }
        return Tokenizer(settings, vocabularies)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a task whose output is one; () for others."""
        if "label_type" not in self.settings:
            return ()
        target = self._vocabularies["target"]
        return tuple(target.piece(index) for index in range(len(SPECIAL_PIECES), len(target)))

    def for_recipe(self, data: DataConfig) -> "Tokenizer":
        """Return the tokenizer of a recipe whose `data.tokenizer` this is.

        A language model with the subwords of a translation model has no entries for line ends and tabs. A line ends in
        the end symbol, as a translation does, and a tab is read as a blank. An imported model with several languages,
        or none stated, gets those of a recipe with one direction, so that they need not be given later.
        """
        if self.settings["subwords"] == "imported" and data.task_name == "translation" and len(data.directions) == 1:
            stated = dict(zip(("source_language", "target_language"), data.directions[0], strict=True))
            if not stated.items() <= self.settings.items():
                settings = {**self.settings, **stated, "base_sha256": self.base_fingerprint}
                return Tokenizer(settings, self._vocabularies)
        if data.task_name != LANGUAGE_MODEL or self.task_name == LANGUAGE_MODEL:
            return self
        own = {"task": LANGUAGE_MODEL, "source_language": data.source_language, "line_end": SPECIAL_PIECES[EOS]}
        return Tokenizer({**self.settings, **own}, self._vocabularies)

    @classmethod
    def of_gpt(cls, pieces: Sequence[str], merges: Sequence[Sequence[str]], language: str) -> "Tokenizer":
        """Return the tokenizer of an imported language model.

        Args:
            pieces: entries in the order of their ids, without the unknown piece; in nmtkit they follow SPECIAL_PIECES.
            merges: pairs of pieces that are joined.
        """
        vocabulary = GptBpe([*SPECIAL_PIECES, *pieces], merges, len(SPECIAL_PIECES), UNK)
        settings: dict[str, Any] = {
            "subwords": "gpt-bpe",
            "normalize": [],
            "text": "plain",
            "source_language": "und",
            "target_language": language,
            "segment_mark": "@@",
            "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
            "vocab_sizes": {"joint": len(vocabulary)},
            "task": LANGUAGE_MODEL,
        }
        return cls(settings, {"joint": vocabulary})

    @classmethod
    def of_symbols(
        cls, data: DataConfig, source: Sequence[str], target: Sequence[str], facts: dict[str, Any]
    ) -> "Tokenizer":
        """Return the tokenizer of a task whose input and output are no text.

        Args:
            source, target: names of the entries of each vocabulary, after SPECIAL_PIECES.
            facts: what else a model of the task needs to know, as JSON.
        """
        names = {"source": source, "target": target}
        vocabularies: dict[str, _Vocabulary] = {
            side: _SegmentedPieces([*SPECIAL_PIECES, *names[side]], "", ()) for side in SIDES
        }
        settings: dict[str, Any] = {
            **{key: getattr(data, key) for key in ("subwords", "text", "source_language", "target_language")},
            "normalize": [],
            "segment_mark": "",
            "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
            "vocab_sizes": {side: len(vocabulary) for side, vocabulary in vocabularies.items()},
            "task": data.task_name,
            "facts": facts,
        }
        return cls(settings, vocabularies)

    @classmethod
    def of_imported(
        cls, entries: Sequence[str], reserved: Collection[int], models: Mapping[str, Path], special: dict[str, Any]
    ) -> "Tokenizer":
        """Return the tokenizer of an imported translation model.

        Args:
            entries: in the order of their ids, from SPECIAL_PIECES on.
            reserved: ids of entries that no text is split into, such as codes of languages.
            models: files by sentencepiece: "joint", or "source" and "target".
            special: settings of the tokenizer about languages; both languages are among them.

        Raises:
            ModelError: a file cannot be read or is no model of sentencepiece.
        """
        marked = [_TAG_SIGN + entry if index in reserved else entry for index, entry in enumerate(entries)]
        vocabularies: dict[str, _Vocabulary] = {}
        for side, path in models.items():
            try:
                vocabularies[side] = _ImportedPieces(marked, content_of(path))
            except ValueError as error:
                raise ModelError(f"{path}: {error}") from None
        settings: dict[str, Any] = {
            "subwords": "imported",
            "normalize": ["blanks"],
            "text": "plain",
            "segment_mark": "@@",
            "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
            "vocab_sizes": dict.fromkeys(models, len(marked)),
            **special,
        }
        for key in ("source_tags", "target_tags", "target_starts"):
            if key in special:
                settings[key] = {code: _TAG_SIGN + entry for code, entry in special[key].items()}
        return cls(settings, vocabularies)

    def sentencepiece_model(self, side: Side) -> bytes:
        """Return the model of sentencepiece that splits the text of a side."""
        vocabulary = self._side(side)
        return vocabulary.model if isinstance(vocabulary, _ImportedPieces) else vocabulary.to_bytes()

    @property
    def shares_vocabulary(self) -> bool:
        """True if an id means the same on both sides; an imported model may split their text differently."""
        return "joint" in self._vocabularies or self.settings["subwords"] == "imported"

    @property
    def gpt_bpe(self) -> GptBpe | None:
        """The vocabulary with its merges where subwords = "gpt-bpe", else None."""
        vocabulary = self._side("target")
        return vocabulary if isinstance(vocabulary, GptBpe) else None

    def _side(self, side: Side) -> _Vocabulary:
        return self._vocabularies["joint" if "joint" in self._vocabularies else side]

    @property
    def text(self) -> str:
        """Kind of text, as in `data.text`."""
        return str(self.settings["text"])

    @property
    def task_name(self) -> str:
        """Task of the models with this tokenizer."""
        return str(self.settings.get("task") or default_task(self.text))

    @property
    def label_type(self) -> str:
        """Kind of labels, as in `data.label_type`."""
        return str(self.settings.get("label_type", "class"))

    @property
    def ends_lines(self) -> bool:
        """True if the end symbol ends each line of a text without a source, see `for_recipe`."""
        return self._ends_lines

    @property
    def source_languages(self) -> tuple[str, ...]:
        """The languages that a model with this tokenizer reads."""
        return tuple(self._source_tags or self.settings.get("source_languages", (self.settings["source_language"],)))

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages that a model with this tokenizer writes."""
        return tuple(self._target_tags or self._target_starts) or (self.settings["target_language"],)

    def in_direction(self, target: str | None = None, source: str | None = None) -> "Tokenizer":
        """Return this tokenizer for one direction: with the rules of its languages, and the tag of the target.

        Args:
            target: code of the target language; None: the one chosen before, or the only one.
            source: code of the source language, for its tag and the rules of Moses; None: as before.

        Raises:
            DataError: the model does not know a language, or needs one, knows several and none is given.
        """
        known = self.target_languages
        if target is None:
            target = known[0] if self.languages[1] == MANY_LANGUAGES and len(known) == 1 else self.languages[1]
        languages = (source or self.languages[0], target)
        if self._source_tags:
            _check_language("source", languages[0], self.source_languages, "--from")
        _check_language("target", target, known, "--to")
        return self if languages == self.languages else Tokenizer(self.settings, self._vocabularies, languages)

    @property
    def tag_ids(self) -> frozenset[int]:
        """Ids of tags (`source_prefix`, languages), which occur only at the beginning of a source."""
        return frozenset((*self._tags.values(), *self._source_tags.values(), *self._target_tags.values()))

    @property
    def target_start(self) -> tuple[int, ...]:
        """Ids with which the decoder has to begin a translation, and which are no part of it; mostly none.

        Raises:
            DataError: the target language decides it, and none is chosen.
        """
        return (self._target_starts[self.in_direction().languages[1]],) if self._target_starts else ()

    @property
    def context(self) -> int:
        """Number of sentences before a sentence that its sequence begins with, as in `data.context`."""
        return int(self.settings.get("context", 0))

    @property
    def context_sides(self) -> tuple[Side, ...]:
        """Sides whose sequences begin with sentences before."""
        return () if not self.context else SIDES if self.settings.get("context_sides") == "both" else ("source",)

    def separator_id(self, side: Side) -> int:
        """Return the id of the separator between sentences, for models with context on this side."""
        return self._side(side).id_of(_TAG_SIGN + SEPARATOR)

    @property
    def suppressed_ids(self) -> tuple[int, ...]:
        """Ids that are never generated: special ids except the end symbol, and tags of a shared vocabulary."""
        if not self.shares_vocabulary:
            return (PAD, BOS, UNK)
        if isinstance(vocabulary := self._side("target"), _ImportedPieces):
            return (PAD, BOS, UNK, *vocabulary.reserved)
        is_source_only = self.context_sides == ("source",)
        return (PAD, BOS, UNK, *sorted(self.tag_ids), *([self.separator_id("source")] if is_source_only else []))

    def vocab_size(self, side: Side) -> int:
        """Return the number of entries of a side's vocabulary."""
        return len(self._side(side))

    def normalization(self, side: Side) -> Normalization:
        """Return the normalisation of a side's lines."""
        return self._normalizations[side]

    def normalize(self, line: str, side: Side = "source") -> str:
        """Return the normalised text of a line; a tag at the beginning of a source is left unchanged."""
        if side == "source" and self._tags:
            tag, text = self.split_tag(line)
            if tag:
                return f"{tag} {self._normalizations[side](text)}"
        return self._normalizations[side](line)

    def encode(self, lines: list[str], side: Side, threads: int | None = None) -> list[list[int]]:
        """Return the ids of normalised lines, without begin and end symbols; [] for an empty line.

        A tag (`source_prefix`) at the beginning of a source is one id; anywhere else it is text. Tags of languages, of
        the source and of the target, are the first ids of each source where a model has them.

        Raises:
            DataError: a line contains half of a surrogate pair, or no target language is chosen (`in_direction`).
        """
        if side == "source" and (self._source_tags or self._target_tags):
            by_language = zip((self._source_tags, self._target_tags), self.in_direction().languages, strict=True)
            begin = [tags[code] for tags, code in by_language if tags]
            return [[*begin, *ids] if ids else [] for ids in self._encode(lines, side, threads)]
        return self._encode(lines, side, threads)

    def _encode(self, lines: list[str], side: Side, threads: int | None) -> list[list[int]]:
        """Return the ids of normalised lines without the tag of a target language."""
        if side == "source" and self.labels:
            return [ids for ids, _ in self.sequences(lines, threads)]
        if self._ends_lines:
            rows = self._side(side).encode([line.removesuffix(NEWLINE).replace(TAB, " ") for line in lines], threads)
            return [[*ids, EOS] if line.endswith(NEWLINE) else ids for line, ids in zip(lines, rows, strict=True)]
        if side == "target" or not self._tags:
            return self._side(side).encode(lines, threads)
        tags, texts = zip(*(self.split_tag(line) for line in lines), strict=True) if lines else ((), ())
        encoded = self._side(side).encode(list(texts), threads)
        return [[self._tags[tag], *ids] if tag else ids for tag, ids in zip(tags, encoded, strict=True)]

    def sequences(self, lines: Sequence[str], threads: int | None = None) -> list[tuple[list[int], bool]]:
        """Return the ids of normalised lines for a task whose output is a label, and whether a field was cut.

            label                    <start> text <extract>
            pair-label               <start> first <delimiter> second <extract>
            similarity               the same in both orders, one after the other
            choice                   <start> context <delimiter> answer <extract>, for each answer in turn

        FIELD_MARK stands between the fields of a line. The fields of a sequence are cut to an equal share of the tokens
        that `data.sequence_length` leaves for them. A line without text has no ids.

        Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", figure 1; their code
        cuts the fields of a pair to half of the positions minus 2.
        """
        start, delimiter, extract = (self._side("source").id_of(entry) for entry in ADDED)
        fields = [[field.strip(" ") for field in line.split(FIELD_MARK)] if line else [] for line in lines]
        encoded = iter(self._side("source").encode([field for row in fields for field in row], threads))
        found = []
        for row in fields:
            ids = [next(encoded) for _ in row]
            size = 1 if self.task_name == "label" else 2  # fields in a sequence
            longest = (int(self.settings["sequence_length"]) - 1 - size) // size
            is_cut = any(len(field) > longest for field in ids)
            ids = [field[:longest] for field in ids]
            chosen = [ids]
            if self.task_name == "similarity":
                chosen = [ids, ids[::-1]]
            elif self.task_name == "choice":
                chosen = [[ids[0], answer] for answer in ids[1:]]
            sequences = [
                [start, *chain.from_iterable([*field, delimiter] for field in parts[:-1]), *parts[-1], extract]
                for parts in chosen
                if parts
            ]
            found.append((list(chain.from_iterable(sequences)), is_cut))
        return found

    @property
    def extract_id(self) -> int:
        """Id of the entry that ends a sequence, for a task whose output is a label."""
        return self._side("source").id_of(ADDED[-1])

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the tag (`source_prefix`) at the beginning of a line, "" if there is none, and the rest."""
        first, _, rest = line.lstrip(" \t").partition(" ")
        return (first, rest) if first in self._tags else ("", line)

    def sampler(self, side: Side, strength: float) -> SubwordSampler:
        """Return a sampler of random segmentations of the text of a side.

        Args:
            strength: bpe: the probability that a merge is left out. unigram: the exponent of probabilities.

        Raises:
            RecipeError: subwords of this kind cannot be sampled.
        """
        model = self._side(side)
        if not isinstance(model, _SentencePiece):
            raise RecipeError(f'subwords = "{self.settings["subwords"]}" cannot be sampled; use bpe or unigram')
        return model.sampler(self.settings["subwords"], strength)

    def decode(self, ids: Sequence[int], side: Side = "target") -> str:
        """Return the text of ids; special ids have no text, except <unk>, and </s> where it ends lines."""
        rest, decode = [int(index) for index in ids], self._side(side).decode
        text = ""
        while self._ends_lines and EOS in rest:
            end = rest.index(EOS)
            text, rest = text + decode(rest[:end]) + NEWLINE, rest[end + 1 :]
        return text + decode(rest)

    def translation(self, ids: Sequence[int]) -> str:
        """Return the restored text of a translation as one line, even if byte pieces encode line ends."""
        return self._normalizations["target"].restore(self.decode(ids).replace("\n", " "))

    def pieces(self, ids: Sequence[int], side: Side) -> list[str]:
        """Return the pieces of ids, for display."""
        return [self._side(side).piece(int(index)).removeprefix(_TAG_SIGN) for index in ids]

    def entries(self, side: Side) -> list[str]:
        """Return the distinct names of all entries of a vocabulary, in the order of ids."""
        vocabulary = self._side(side)
        return [vocabulary.piece(index) for index in range(len(vocabulary))]

    def identities(self, side: Side) -> list[Identity]:
        """Return the role of each entry of a vocabulary, and its text without marks of word boundaries.

        special         <pad>, <unk>, <s>, </s>
        language        code of a language, whatever the name of its tag
        tag             other entries that no text is split into
        byte            <0x41>
        begins, inside  text that begins a word or does not, where pieces mark the beginning of a word
        ends, open      text that ends a word or does not, where pieces mark its end
        """
        settings, vocabulary = self.settings, self._side(side)
        codes = {
            entry: code
            for key in ("source_tags", "target_tags", "target_starts")
            for code, entry in settings.get(key, {}).items()
        }
        added = range(len(vocabulary.base), len(vocabulary)) if isinstance(vocabulary, _Extended) else ()
        mark = settings["segment_mark"] if settings["subwords"] == "none" else "</w>"
        at_end = {"none": ("open", "ends"), "gpt-bpe": ("ends", "open")}.get(settings["subwords"])
        found: list[Identity] = []
        for index, entry in enumerate(self.entries(side)):
            text = entry.replace(_BLANK_SIGN, " ").replace(_STAND_IN, _BLANK_SIGN)
            if index < len(SPECIAL_PIECES):
                found.append(("special", entry))
            elif entry in codes:
                found.append(("language", codes[entry]))
            elif entry.startswith(_TAG_SIGN) or index in added:
                found.append(("tag", entry))
            elif _BYTE_PIECE.fullmatch(entry):
                found.append(("byte", entry))
            elif at_end is None:
                found.append(("begins" if text.startswith(" ") else "inside", text.removeprefix(" ")))
            elif mark and entry.endswith(mark):
                found.append((at_end[0], entry.removesuffix(mark)))
            else:
                found.append((at_end[1], entry))
        return found

    def split(self, pieces: Sequence[Identity], side: Side) -> list[list[int]]:
        """Return the ids into which this tokenizer splits the text of pieces, which may be those of another one.

        Text that is known not to begin a word is split as in the middle of a word, other text as at its beginning.
        """
        lines = [f"{_BEFORE}{'' if role == 'inside' else ' '}{text}" for role, text in pieces]
        before, *rows = self._side(side).encode([_BEFORE, *lines], None)
        return [row[len(before) :] for row in rows]

    def word_starts(self, ids: Sequence[int], side: Side) -> list[bool]:
        """Return for each id whether a word begins with it."""
        pieces = self.pieces(ids, side)
        if self.settings["subwords"] == "none":
            mark = self.settings["segment_mark"]
            return [not (mark and before.endswith(mark)) for before in ["", *pieces][:-1]]
        if self.settings["subwords"] == "gpt-bpe":
            return [before.endswith("</w>") for before in ["</w>", *pieces][:-1]]
        return [piece.startswith(_BLANK_SIGN) for piece in pieces]

    def save(self, folder: Path) -> None:
        """Write the tokenizer into a folder; equal tokenizers give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = {side: vocabulary.to_bytes() for side, vocabulary in self._vocabularies.items()}
        sums = {side: hashlib.sha256(content).hexdigest() for side, content in contents.items()}
        write_json(folder / "tokenizer.json", {**self.settings, "sha256": sums})
        for side, content in contents.items():
            with write_bytes_atomically(folder / _file_name(self.settings, side)) as file:
                file.write(content)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Load the tokenizer of a folder; raise ModelError if it is missing or damaged."""
        if not (folder / "tokenizer.json").is_file():
            raise ModelError(f"{folder}: there is no tokenizer (tokenizer.json is missing)")
        vocabularies: dict[str, _Vocabulary] = {}
        try:
            settings = read_json(folder / "tokenizer.json", _SETTINGS)
            sums = settings.pop("sha256")
            if set(sums) not in ({"joint"}, {"source", "target"}):
                raise ModelError(f"{folder / 'tokenizer.json'}: damaged (sha256 has no sums of vocabularies)")
            if "label_type" in settings and (
                set(sums) == {"joint"} or not {"task", "sequence_length"} <= set(settings)
            ):
                raise ModelError(f"{folder / 'tokenizer.json'}: damaged (it lacks settings of a model of labels)")
            for side, expected in sums.items():
                path = folder / _file_name(settings, side)
                content = content_of(path)
                if hashlib.sha256(content).hexdigest() != expected:
                    raise ModelError(f"{path}: damaged; its checksum is not the one in tokenizer.json")
                tags = _tags(settings, "target" if side == "target" else "source")
                if "label_type" in settings and side == "target":
                    vocabularies[side] = _Labels(content.decode("utf-8").split("\n")[:-1], ())
                elif "label_type" in settings:
                    vocabularies[side] = _Extended(_subword_model(settings["subwords"], content))
                elif settings["subwords"] not in _LISTED_KINDS:
                    vocabularies[side] = _subword_model(settings["subwords"], content)
                elif settings["subwords"] == "wordpiece":
                    vocabularies[side] = _WordPieces(content.decode("utf-8").split("\n")[:-1], tags)
                else:
                    pieces = content.decode("utf-8").split("\n")[:-1]
                    vocabularies[side] = _SegmentedPieces(pieces, settings["segment_mark"], tags)
        except DataError as error:
            raise ModelError(str(error)) from None
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / 'tokenizer.json'}: damaged ({error!r})") from None
        return cls(settings, vocabularies)

    @classmethod
    def of_model(cls, path: Path) -> "Tokenizer":
        """Load the tokenizer of a model folder, a run, or a checkpoint.

        Raises:
            ModelError: the tokenizer is missing or damaged.
        """
        for folder in (path / "tokenizer", path / "data" / "tokenizer", path / "averaged" / "tokenizer"):
            if (folder / "tokenizer.json").is_file():
                return cls.load(folder)
        raise ModelError(f"{path}: there is no tokenizer in it; give a model folder, a run folder or a checkpoint")

    def check_recipe(self, data: DataConfig) -> None:
        """Raise RecipeError if a recipe that uses this tokenizer contradicts its settings."""
        own = {**self.settings, "task": self.task_name, "share_vocab": self.shares_vocabulary}
        own["context"] = self.context
        known = {
            "source_language": (data.source_languages, self.source_languages),
            "target_language": (data.target_languages, self.target_languages),
        }
        own |= {key: ", ".join(codes) for key, (_, codes) in known.items()}
        keys = ["task", "text", "source_language", "target_language", "normalize", "subwords", "share_vocab", "context"]
        if data.has_labels:  # the subwords of any model of the language
            keys = ["text", "normalize", "subwords"]
            if data.source_language not in (own["source_language"], own["target_language"]):
                keys.append("source_language")
        if data.task_name == LANGUAGE_MODEL and self.task_name == "translation":
            keys = [key for key in keys if key not in ("task", "source_language")]  # see for_recipe
        if data.context:
            keys.append("context_sides")
        if data.subwords == "none":
            keys.append("segment_mark")
        for key in keys:
            if own[key] == "und":
                continue
            value = data.task_name if key == "task" else getattr(data, key)
            value = list(value) if key == "normalize" else value
            if key in known:
                value = next((code for code in known[key][0] if code not in known[key][1]), own[key])
            if own[key] != value:
                raise RecipeError(
                    f"data.{key} = {value!r}, but the tokenizer of {data.tokenizer} has {own[key]!r}; state the same, "
                    "or take the recipe of its run as base"
                )
        for tag in data.source_prefixes:
            if tag not in self._tags:
                raise RecipeError(
                    f"source_prefix = {tag!r}: the tokenizer of {data.tokenizer} has no such tag; it has "
                    f"{', '.join(self._tags) or 'none'}"
                )

    def fingerprint(self) -> str:
        """Return the sha256 of everything that decides the meaning of ids."""
        return self._sha256(repr(sorted(self.settings.items(), key=lambda item: item[0])))

    @property
    def base_fingerprint(self) -> str:
        """The fingerprint of the tokenizer to whose vocabulary this one added entries; its own if it added none."""
        return str(self.settings.get("base_sha256") or self.fingerprint())

    @property
    def vocabulary_sha256(self) -> str:
        """The sha256 of the vocabularies alone, whatever the task and the languages."""
        return self._sha256("")

    def _sha256(self, settings: str) -> str:
        digest = hashlib.sha256(settings.encode())
        for side in sorted(self._vocabularies):
            digest.update(side.encode() + self._vocabularies[side].to_bytes())
        return digest.hexdigest()


_SETTINGS = {
    "subwords": str, "normalize": [str], "text": str, "task?": str, "source_language": str, "target_language": str,
    "segment_mark": str, "source_prefixes?": [str], "source_languages?": [str], "target_tags?": {str: str},
    "source_tags?": {str: str}, "target_starts?": {str: str},
    "context?": int, "context_sides?": str, "sha256": {str: str}, "vocab_sizes": {str: int}, "label_type?": str,
    "sequence_length?": int, "base_sha256?": str, "special_ids?": dict, "line_end?": str, "facts?": dict,
}  # fmt: skip
_LISTED_KINDS = ("wordpiece", "none")
"""Kinds of subwords whose vocabulary is a text file."""


def _subword_model(subwords: str, content: bytes) -> _Vocabulary:
    """Return a vocabulary of a kind whose file is a model."""
    if subwords == "imported":
        return _ImportedPieces.from_bytes(content)
    if subwords == "gpt-bpe":
        return GptBpe.from_bytes(content, len(SPECIAL_PIECES), UNK)
    return _SentencePiece(content)


def _tags(settings: Mapping[str, Any], side: Side) -> tuple[str, ...]:
    """Return the special entries of a vocabulary after SPECIAL_PIECES; a joint one has those of the source."""
    if side == "target":
        return (SEPARATOR,) if settings.get("context_sides") == "both" else ()
    targets = (piece.removeprefix(_TAG_SIGN) for piece in settings.get("target_tags", {}).values())
    return (*settings.get("source_prefixes", ()), *targets, *([SEPARATOR] if settings.get("context") else []))


def _check_language(side: Side, code: str, known: Sequence[str], option: str) -> None:
    """Raise DataError unless a model knows the language of a side; hundreds of codes are listed in part."""
    if code in known:
        return
    near = difflib.get_close_matches(code, known, n=5, cutoff=0.3)
    listed = known if len(known) <= 20 else [*near, f"... ({len(known)} codes, such as {known[0]} and {known[-1]})"]
    several = len(known) > 1
    remedy = f"choose one of {', '.join(listed)}" if several else f"it translates to {known[0]} only"
    if code == MANY_LANGUAGES:
        raise DataError(f"the model has several {side} languages; {remedy} with {option} ({side}_language)")
    raise DataError(f'the model does not know the {side} language "{code}"; {remedy}')


def _file_name(settings: Mapping[str, Any], side: str) -> str:
    is_listed = settings["subwords"] in _LISTED_KINDS or ("label_type" in settings and side == "target")
    return f"{side}.vocab" if is_listed else f"{side}.model"
