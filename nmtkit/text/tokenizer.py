"""The subword model, which is also the vocabulary: from text to ids and back.

    vocabulary.py       the interface of all kinds of subwords; lists: "none", labels
    sentencepieces.py   "bpe", "unigram", "characters", "imported"
    wordpieces.py, gpt_bpe.py

A tokenizer folder holds one model for both sides, or one per side:

    tokenizer.json      kind, normalisation, special ids, sizes
    joint.model         or source.model and target.model, by sentencepiece; for "gpt-bpe" JSON with pieces and merges,
                        for "imported" JSON with the entries and a model of sentencepiece
    joint.vocab         for subwords = "wordpiece" (a blank where a word begins) and "none": one piece per line
    target.vocab        for tasks whose output is a label: the labels
"""

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from nmtkit.config.corpus_entries import MANY_LANGUAGES
from nmtkit.config.data_schema import LANGUAGE_MODEL, SEPARATOR, DataConfig, default_task
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.errors import DataError, ModelError, RecipeError
from nmtkit.files import content_of, write_bytes_atomically
from nmtkit.json_toml import read_json, write_json
from nmtkit.text.gpt_bpe import GptBpe
from nmtkit.text.normalization import FIELD_MARK, NEWLINE, TAB, Normalization
from nmtkit.text.sentencepieces import ImportedPieces, SentencePiece
from nmtkit.text.subword_sampling import SubwordSampler
from nmtkit.text.vocabulary import (
    ADDED,
    BLANK_SIGN,
    BOS,
    EOS,
    PAD,
    SIDES,
    SPECIAL_PIECES,
    TAG_SIGN,
    UNK,
    Extended,
    Labels,
    SegmentedPieces,
    Side,
    Vocabulary,
    join_segments,
)
from nmtkit.text.wordpieces import WordPieces

_SETTINGS = {
    "subwords": str, "normalize": [str], "text": str, "task?": str, "source_language": str, "target_language": str,
    "segment_mark": str, "source_prefixes?": [str], "source_languages?": [str], "target_tags?": {str: str},
    "source_tags?": {str: str}, "target_starts?": {str: str},
    "context?": int, "context_sides?": str, "sha256": {str: str}, "vocab_sizes": {str: int}, "label_type?": str,
    "sequence_length?": int, "base_sha256?": str, "special_ids?": dict, "line_end?": str, "facts?": dict,
    "number_scale?": {"middle": float, "unit": float},
}  # fmt: skip


class Tokenizer:
    """Conversion of text to ids and back, for both sides.

    Attributes:
        settings: the content of tokenizer.json.
        languages: of source and target, see `in_direction`; "mul" for a side with several languages.
        text, task_name, label_type: as in [data] of the recipes of models with this tokenizer.
        context: number of sentences before a sentence that its sequence begins with.
        normalizations: the normalisation of each side's lines.
        ends_lines: the end symbol ends each line of a text without a source, see `for_recipe`.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        vocabularies: dict[str, Vocabulary],
        languages: tuple[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.languages: tuple[str, str] = languages or (settings["source_language"], settings["target_language"])
        self._vocabularies = vocabularies
        self.text = str(settings["text"])
        self.task_name = str(settings.get("task") or default_task(self.text))
        self.label_type = str(settings.get("label_type") or "class")
        self.context = int(settings.get("context") or 0)
        self.ends_lines = settings.get("line_end") == SPECIAL_PIECES[EOS]
        self.normalizations = {
            side: Normalization(tuple(settings["normalize"]), language, self.ends_lines)
            for side, language in zip(SIDES, self.languages, strict=True)
        }
        if self.labels:
            # Labels are read as `label_of` reads them, with single blanks, whatever is done to text.
            self.normalizations["target"] = Normalization(("blanks",), settings["target_language"])
        source = self.vocabulary("source")
        self._tags = {tag: source.id_of(TAG_SIGN + tag) for tag in settings.get("source_prefixes", ())}
        self._source_tags, self._target_tags, self._target_starts = (
            {code: source.id_of(piece) for code, piece in settings.get(key, {}).items()}
            for key in ("source_tags", "target_tags", "target_starts")
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a task whose output is one; () for others."""
        if "label_type" not in self.settings:
            return ()
        return tuple(self.entries("target")[len(SPECIAL_PIECES) :])

    @property
    def number_scale(self) -> tuple[float, float]:
        """The number that a model of numbers predicts as 0, and the difference that it predicts as 1."""
        scale = self.settings.get("number_scale", {"middle": 0.0, "unit": 1.0})
        return scale["middle"], scale["unit"]

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

    def sentencepiece_model(self, side: Side) -> bytes:
        """Return the model of sentencepiece that splits the text of a side."""
        vocabulary = self.vocabulary(side)
        return vocabulary.model if isinstance(vocabulary, ImportedPieces) else vocabulary.to_bytes()

    @property
    def shares_vocabulary(self) -> bool:
        """True if an id means the same on both sides; an imported model may split their text differently."""
        return "joint" in self._vocabularies or self.settings["subwords"] == "imported"

    @property
    def gpt_bpe(self) -> GptBpe | None:
        """The vocabulary with its merges where subwords = "gpt-bpe", else None."""
        vocabulary = self.vocabulary("target")
        return vocabulary if isinstance(vocabulary, GptBpe) else None

    def vocabulary(self, side: Side) -> Vocabulary:
        """Return the vocabulary of a side; with a joint one, it is the same for both."""
        return self._vocabularies["joint" if "joint" in self._vocabularies else side]

    @property
    def source_languages(self) -> tuple[str, ...]:
        """The languages that a model with this tokenizer reads."""
        return tuple(self._source_tags or self.settings.get("source_languages", (self.settings["source_language"],)))

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages that a model with this tokenizer writes."""
        return tuple(self._target_tags or self._target_starts) or (self.settings["target_language"],)

    def in_direction(
        self, target: str | None = None, source: str | None = None, *, is_requested: bool = False
    ) -> "Tokenizer":
        """Return this tokenizer for one direction: with the rules of its languages, and the tag of the target.

        Args:
            target: code of the target language; None: the one chosen before, or the only one.
            source: code of the source language, for its tag and the rules of Moses; None: as before.
            is_requested: a user has given the codes, so that one without effect is an error, too.

        Raises:
            DataError: the model does not know a language, or needs one, knows several and none is given.
        """
        known = self.target_languages
        if target is None:
            target = known[0] if self.languages[1] == MANY_LANGUAGES and len(known) == 1 else self.languages[1]
        languages = (source or self.languages[0], target)
        # Without tags, the source is only checked for users; some imported models do not state theirs.
        is_stated = not {MANY_LANGUAGES, "und"} & {*self.source_languages}
        if self._source_tags or (source is not None and is_requested and is_stated):
            sources = self.source_languages
            if len(known) > 1 and not self._source_tags and self.settings["subwords"] != "imported":
                sources = tuple(dict.fromkeys((*sources, *known)))  # zero-shot: it has read the others as targets
            _check_language("source", languages[0], sources, "--from (source_language)")
        tag = next(iter(self._their_tags.values()), "")
        _check_language(
            "target", target, known, f"--to (target_language){f', not by {tag} in the text' if tag else ''}"
        )
        # The vocabularies are shared, so a tokenizer for another direction is cheap.
        return self if languages == self.languages else Tokenizer(self.settings, self._vocabularies, languages)

    @property
    def _their_tags(self) -> dict[str, str]:
        """The tag of each target language that users of an imported model may write before a source, as >>fra<<."""
        tags = self.settings.get("target_tags", {}) if self.settings["subwords"] == "imported" else {}
        return {code: entry.removeprefix(TAG_SIGN) for code, entry in tags.items()}

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
    def context_sides(self) -> tuple[Side, ...]:
        """Sides whose sequences begin with sentences before."""
        return () if not self.context else SIDES if self.settings.get("context_sides") == "both" else ("source",)

    def separator_id(self, side: Side) -> int:
        """Return the id of the separator between sentences, for models with context on this side."""
        return self.vocabulary(side).id_of(TAG_SIGN + SEPARATOR)

    @property
    def suppressed_ids(self) -> tuple[int, ...]:
        """Ids that are never generated: special ids except the end symbol, and tags of a shared vocabulary."""
        if not self.shares_vocabulary:
            return (PAD, BOS, UNK)
        if isinstance(vocabulary := self.vocabulary("target"), ImportedPieces):
            return (PAD, BOS, UNK, *vocabulary.reserved)
        # With context on both sides, the decoder generates the separator itself.
        is_source_only = self.context_sides == ("source",)
        return (PAD, BOS, UNK, *sorted(self.tag_ids), *([self.separator_id("source")] if is_source_only else []))

    def vocab_size(self, side: Side) -> int:
        """Return the number of entries of a side's vocabulary."""
        return len(self.vocabulary(side))

    def normalize(self, line: str, side: Side = "source") -> str:
        """Return the normalised text of a line; a tag at the beginning of a source is left unchanged."""
        tag, text = self.split_tag(line) if side == "source" else ("", line)
        text = self.normalizations[side](text)
        return f"{tag} {text}" if tag and text else text

    def encode(self, lines: list[str], side: Side, threads: int | None = None) -> list[list[int]]:
        """Return the ids of normalised lines, without begin and end symbols; [] for an empty line.

        A tag (`source_prefix`) and a blank before the text of a source are one id; anywhere else a tag is text. Tags
        of languages, of the source and of the target, are the first ids of each source where a model has them; that of
        the target may also be in the text for an imported model.

        Raises:
            DataError: a line contains half of a surrogate pair, or no target language is chosen (`in_direction`).
        """
        begin: list[int] = []
        if side == "source" and (self._source_tags or self._target_tags):
            by_language = zip((self._source_tags, self._target_tags), self.in_direction().languages, strict=True)
            begin = [codes[language] for codes, language in by_language if codes]
            if tag := self._their_tags.get(self.in_direction().languages[1]):
                # The text may begin with the tag, as users of the original model write it: it must not be there twice.
                lines = [line.removeprefix(tag).lstrip(" ") for line in lines]
        if side == "source" and self.labels:
            rows = [ids for ids, _, _ in self.sequences(lines, threads)]
        elif self.ends_lines:
            rows = self.vocabulary(side).encode(
                [line.removesuffix(NEWLINE).replace(TAB, " ") for line in lines], threads
            )
            rows = [[*ids, EOS] if line.endswith(NEWLINE) else ids for line, ids in zip(lines, rows, strict=True)]
        elif side == "source" and self._tags:
            split = [self.split_tag(line) for line in lines]
            rows = self.vocabulary(side).encode([text for _, text in split], threads)
            rows = [[self._tags[tag], *ids] if tag else ids for (tag, _), ids in zip(split, rows, strict=True)]
        else:
            rows = self.vocabulary(side).encode(lines, threads)
        # A line without text gets no tags either, so that it is recognised by having no ids.
        return [[*begin, *ids] if ids else [] for ids in rows] if begin else rows

    def sequences(self, lines: Sequence[str], threads: int | None = None) -> list[tuple[list[int], bool, int]]:
        """Return the ids of normalised lines for a task whose output is a label, whether a field was cut, and the
        number of subwords of all fields, each counted once and whole.

            label                    <start> text <extract>
            pair-label               <start> first <delimiter> second <extract>
            similarity               the same in both orders, one after the other
            choice                   <start> context <delimiter> answer <extract>, for each answer in turn

        FIELD_MARK stands between the fields of a line. The fields of a sequence are cut to an equal share of the tokens
        that `data.sequence_length` leaves for them. A line without text has no ids.

        Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", figure 1; their code
        cuts the fields of a pair to half of the positions minus 2.
        """
        start, delimiter, extract = (self.vocabulary("source").id_of(entry) for entry in ADDED)
        fields = [[field.strip(" ") for field in line.split(FIELD_MARK)] if line else [] for line in lines]
        encoded = iter(self.vocabulary("source").encode([field for row in fields for field in row], threads))
        found, kind = [], LABEL_KINDS[self.task_name]
        for row in fields:
            # All fields of all lines are encoded in one call, as sentencepiece distributes lines over threads.
            ids = [next(encoded) for _ in row]
            # <start>, and after each field <delimiter> or <extract>: 1 + num_texts entries are no text.
            longest = (int(self.settings["sequence_length"]) - 1 - kind.num_texts) // kind.num_texts
            is_cut, num_subwords = any(len(field) > longest for field in ids), sum(map(len, ids))
            ids = [field[:longest] for field in ids]
            sequences = [
                [start, *chain.from_iterable([*text, delimiter] for text in texts[:-1]), *texts[-1], extract]
                for texts in (kind.sequences(ids) if ids else [])
            ]
            found.append((list(chain.from_iterable(sequences)), is_cut, num_subwords))
        return found

    @property
    def extract_id(self) -> int:
        """Id of the entry that ends a sequence, for a task whose output is a label."""
        return self.vocabulary("source").id_of(ADDED[-1])

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the tag (`source_prefix`) of a line and the text behind it; "" and the line if either is missing."""
        first, *rest = re.split("[ \t]+", line.lstrip(" \t"), maxsplit=1)
        return (first, rest[0]) if first in self._tags and any(rest) else ("", line)

    def sampler(self, side: Side, strength: float) -> SubwordSampler:
        """Return a sampler of random segmentations of the text of a side.

        Args:
            strength: bpe: the probability that a merge is left out. unigram: the exponent of probabilities.

        Raises:
            RecipeError: subwords of this kind cannot be sampled.
        """
        model = self.vocabulary(side)
        if not isinstance(model, SentencePiece):
            raise RecipeError(f'subwords = "{self.settings["subwords"]}" cannot be sampled; use bpe or unigram')
        return model.sampler(self.settings["subwords"], strength)

    def decode(self, ids: Sequence[int], side: Side = "target") -> str:
        """Return the text of ids; special ids have no text, except <unk>, and </s> where it ends lines."""
        rest, decode = [int(index) for index in ids], self.vocabulary(side).decode
        text = ""
        while self.ends_lines and EOS in rest:
            end = rest.index(EOS)
            text, rest = text + decode(rest[:end]) + NEWLINE, rest[end + 1 :]
        return text + decode(rest)

    def translation(self, ids: Sequence[int]) -> str:
        """Return the restored text of a translation as one line, even if byte pieces encode line ends."""
        return self.normalizations["target"].restore(self.decode(ids).replace("\n", " "))

    def pieces(self, ids: Sequence[int], side: Side) -> list[str]:
        """Return the pieces of ids, for display."""
        return [self.vocabulary(side).piece(int(index)).removeprefix(TAG_SIGN) for index in ids]

    def unknown_in(self, text: str) -> list[str]:
        """Return the characters of a target text, or with subwords = "none" its words, that the vocabulary lacks.

        They are for display: those that cannot be printed are escaped.
        """
        text = self.normalize(text, "target")
        # Line ends have entries of their own where a task keeps them, and tabs if the training text had any.
        parts = sorted(set(text.split() if self.settings["subwords"] == "none" else text) - {" ", "\n"})
        tab = TAB if self.task_name == LANGUAGE_MODEL else "\t"
        encoded = self.encode([part.replace("\t", tab) for part in parts], "target")
        return [
            "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in part)
            for part, ids in zip(parts, encoded, strict=True)
            if UNK in ids
        ]

    def entries(self, side: Side) -> list[str]:
        """Return the distinct names of all entries of a vocabulary, in the order of ids."""
        vocabulary = self.vocabulary(side)
        return [vocabulary.piece(index) for index in range(len(vocabulary))]

    @property
    def segment_mark(self) -> str:
        """Mark by which decoding joins pieces of words that were divided beforehand, see `join_segments`; else ""."""
        return self.settings["segment_mark"] if self.settings["subwords"] == "none" else ""

    @property
    def has_end_marks(self) -> bool:
        """True for text that was segmented beforehand, unless sentencepiece's mark begins its words."""
        return self.settings["subwords"] == "none" and self.segment_mark != BLANK_SIGN

    def as_divided(self, text: str, pieces: Iterable[str]) -> str:
        """Return a translation as this tokenizer reads it: its pieces if its text joins them by `segment_mark`."""
        divided = " ".join(piece for piece in pieces if piece != SPECIAL_PIECES[EOS])  # which stands between segments
        return divided if self.segment_mark and join_segments(divided, self.segment_mark) == text else text

    def word_starts(self, ids: Sequence[int], side: Side) -> list[bool]:
        """Return for each id whether a word begins with it."""
        pieces = self.pieces(ids, side)
        # Pieces of these two kinds mark the ends of words, so the piece before decides.
        if self.has_end_marks:
            mark = self.segment_mark
            return [not (mark and before.endswith(mark)) for before in ["", *pieces][:-1]]
        if self.settings["subwords"] == "gpt-bpe":
            return [before.endswith("</w>") for before in ["</w>", *pieces][:-1]]
        return [piece.startswith(BLANK_SIGN) for piece in pieces]

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
        vocabularies: dict[str, Vocabulary] = {}
        try:
            settings = read_json(folder / "tokenizer.json", _SETTINGS)
            sums = settings.pop("sha256")
            if set(sums) not in ({"joint"}, {"source", "target"}):
                raise ModelError(f"{folder / 'tokenizer.json'}: damaged (sha256 has no sums of vocabularies)")
            if "label_type" in settings and ("joint" in sums or not {"task", "sequence_length"} <= set(settings)):
                raise ModelError(f"{folder / 'tokenizer.json'}: damaged (it lacks settings of a model of labels)")
            for side, expected in sums.items():
                path = folder / _file_name(settings, side)
                content = content_of(path)
                if hashlib.sha256(content).hexdigest() != expected:
                    raise ModelError(f"{path}: damaged; its checksum is not the one in tokenizer.json")
                vocabularies[side] = _vocabulary(settings, side, content)
            return cls(settings, vocabularies)
        except DataError as error:
            raise ModelError(str(error)) from None
        except (KeyError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            # RuntimeError: of sentencepiece, or RecursionError for JSON that is nested too deeply.
            # The other files have the right checksums, so the fault is in tokenizer.json.
            raise ModelError(f"{folder / 'tokenizer.json'}: damaged ({error!r})") from None

    @classmethod
    def of_model(cls, path: Path) -> "Tokenizer":
        """Load the tokenizer of a model folder, a run, or a checkpoint.

        Raises:
            ModelError: the tokenizer is missing or damaged.
        """
        for folder in (path / "tokenizer", path / "data" / "tokenizer", path / "averaged" / "tokenizer"):
            if (folder / "tokenizer.json").is_file():
                return cls.load(folder)
        if not path.is_dir():
            fault = "a file; those of other tools cannot be read, so cut the text with them" if path.exists() else ""
            raise ModelError(f"{path}: {fault or 'no such folder'}; give a model folder, a run folder or a checkpoint")
        raise ModelError(f"{path}: there is no tokenizer in it; give a model folder, a run folder or a checkpoint")

    def fingerprint(self) -> str:
        """Return the sha256 of everything that decides the meaning of ids."""
        return self._sha256(repr(sorted(self.settings.items())))

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
        # In a fixed order, whatever the order in which they were made or loaded.
        for side in sorted(self._vocabularies):
            digest.update(side.encode() + self._vocabularies[side].to_bytes())
        return digest.hexdigest()


def _vocabulary(settings: Mapping[str, Any], side: str, content: bytes) -> Vocabulary:
    """Return the vocabulary of a side, or "joint", from the content of its file."""
    if _is_listed(settings, side):
        pieces = content.decode("utf-8").split("\n")[:-1]
        if "label_type" in settings:
            return Labels(pieces)
        tags = tags_of(settings, side)
        if settings["subwords"] == "wordpiece":
            return WordPieces(pieces, tags)
        return SegmentedPieces(pieces, settings["segment_mark"], tags)
    models: dict[str, Callable[[bytes], Vocabulary]]
    models = {"imported": ImportedPieces.from_bytes, "gpt-bpe": GptBpe.from_bytes}
    vocabulary = models.get(settings["subwords"], SentencePiece)(content)
    return Extended(vocabulary) if "label_type" in settings else vocabulary


def _is_listed(settings: Mapping[str, Any], side: str) -> bool:
    """Return whether a vocabulary is stored as lines."""
    return side == "target" if "label_type" in settings else settings["subwords"] in ("wordpiece", "none")


def tags_of(settings: Mapping[str, Any], side: str) -> tuple[str, ...]:
    """Return the special entries of a vocabulary after SPECIAL_PIECES; a joint one has those of the source."""
    if side == "target":
        return (SEPARATOR,) if settings.get("context_sides") == "both" else ()
    targets = (piece.removeprefix(TAG_SIGN) for piece in settings.get("target_tags", {}).values())
    # This is the order of their ids, so prepared data and weights depend on it.
    return (*settings.get("source_prefixes", ()), *targets, *([SEPARATOR] if settings.get("context") else []))


def _check_language(side: Side, code: str, known: Sequence[str], option: str) -> None:
    """Raise DataError unless a model knows the language of a side; hundreds of codes are listed in part."""
    if code in known:
        return
    near = difflib.get_close_matches(code, known, n=5, cutoff=0.3)
    listed = known if len(known) <= 20 else [*near, f"... ({len(known)} codes, such as {known[0]} and {known[-1]})"]
    several = len(known) > 1
    only = f"it translates {'from' if side == 'source' else 'to'} {known[0]} only"
    remedy = f"choose one of {', '.join(listed)}" if several else only
    if code == MANY_LANGUAGES:
        raise DataError(f"the model has several {side} languages; {remedy} with {option}")
    raise DataError(f'the model does not know the {side} language "{code}"; {remedy}')


def _file_name(settings: Mapping[str, Any], side: str) -> str:
    return f"{side}.vocab" if _is_listed(settings, side) else f"{side}.model"
