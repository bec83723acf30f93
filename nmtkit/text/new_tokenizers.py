"""New tokenizers: learned for a recipe, made of another one for labels, or made of the vocabulary of an import."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.config.corpus_entries import one_language
from nmtkit.config.data_schema import LANGUAGE_MODEL, DataConfig
from nmtkit.errors import ModelError
from nmtkit.files import content_of
from nmtkit.text.gpt_bpe import GptBpe
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.sentencepieces import MAX_LEARNED_BYTES, ImportedPieces, SentencePiece
from nmtkit.text.tokenizer import Tokenizer, tags_of
from nmtkit.text.vocabulary import (
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
    Vocabulary,
)
from nmtkit.text.wordpieces import WordPieces


def learn_tokenizer(data: DataConfig, pairs: Callable[[], Iterable[tuple[str, str]]]) -> Tokenizer:
    """Learn the subwords of a recipe.

    Args:
        pairs: function that returns a new iterator over the normalised source and target lines.

    Raises:
        RecipeError: the text is too small for a vocabulary of the requested size.
    """

    def learn(lines: Iterable[str], tags: Sequence[str]) -> Vocabulary:
        if data.subwords == "none":
            return SegmentedPieces.learn(lines, data, tags)
        if data.has_fields:  # a document is longer than any line to learn from, but a paragraph is not
            lines = (field for line in lines for field in re.split(f"(?<={FIELD_MARK}) ", line))
        short = (part for line in lines for part in short_parts(line))
        return (WordPieces if data.subwords == "wordpiece" else SentencePiece).learn(short, data, tags)

    special: dict[str, Any] = {}
    if data.source_prefixes:
        special["source_prefixes"] = list(data.source_prefixes)
    if data.target_tags:
        special["target_tags"] = {code: TAG_SIGN + tag for code, tag in data.target_tags.items()}
    if len(data.source_languages) > 1:
        special["source_languages"] = list(data.source_languages)
    if data.context:
        special |= {"context": data.context, "context_sides": data.context_sides}
    vocabularies: dict[str, Vocabulary]
    if data.has_labels:
        fields = (field.strip(" ") for source, _ in pairs() for field in source.split(FIELD_MARK))
        vocabularies = {"joint": learn(fields, ())}  # `label_tokenizer` adds the vocabulary of the target
    elif data.share_vocab:
        vocabularies = {"joint": learn((line for pair in pairs() for line in pair), tags_of(special, "source"))}
    else:
        vocabularies = {
            "source": learn((source for source, _ in pairs()), tags_of(special, "source")),
            "target": learn((target for _, target in pairs()), tags_of(special, "target")),
        }
    settings: dict[str, Any] = {
        "subwords": data.subwords,
        "normalize": list(data.normalize),
        "text": data.text,
        "source_language": one_language(data.source_languages),
        "target_language": one_language(data.target_languages),
        "segment_mark": data.segment_mark,
        **_ids_and_sizes(vocabularies),
    }
    if data.task is not None:
        settings["task"] = data.task
    # Keys of special entries are stored only if there are such entries, as every key changes the fingerprint.
    return Tokenizer({**settings, **special}, vocabularies)


def label_tokenizer(
    tokenizer: Tokenizer, data: DataConfig, labels: Sequence[str], scale: tuple[float, float] | None = None
) -> Tokenizer:
    """Return a tokenizer of the same subwords for a task whose output is one of the labels.

    The vocabulary of the source is that of ``tokenizer``, followed by the entries ADDED; that of the target is the
    labels. ``scale``: see `Tokenizer.number_scale`.
    """
    base = tokenizer.vocabulary("target" if tokenizer.task_name == LANGUAGE_MODEL else "source")
    # If this is the tokenizer of another task of labels, without the entries that were added for it.
    base = base.base if isinstance(base, Extended) else base
    vocabularies: dict[str, Vocabulary] = {
        "source": Extended(base), "target": Labels([*SPECIAL_PIECES, *labels])
    }  # fmt: skip
    settings = {
        **{key: tokenizer.settings[key] for key in ("subwords", "normalize", "text", "segment_mark", "special_ids")},
        "source_language": data.source_language,
        "target_language": data.target_language,
        "task": data.task_name,
        "label_type": data.label_type,
        "sequence_length": data.sequence_length,
        "base_sha256": tokenizer.base_fingerprint,
        "vocab_sizes": {side: len(vocabulary) for side, vocabulary in vocabularies.items()},
    }
    if scale is not None:
        settings["number_scale"] = {"middle": scale[0], "unit": scale[1]}
    return Tokenizer(settings, vocabularies)


def gpt_tokenizer(pieces: Sequence[str], merges: Sequence[Sequence[str]], language: str) -> Tokenizer:
    """Return the tokenizer of an imported language model.

    Args:
        pieces: entries in the order of their ids, without the unknown piece; in nmtkit they follow SPECIAL_PIECES.
        merges: pairs of pieces that are joined.
    """
    vocabularies: dict[str, Vocabulary] = {"joint": GptBpe([*SPECIAL_PIECES, *pieces], merges)}
    settings: dict[str, Any] = {
        "subwords": "gpt-bpe",
        "normalize": [],
        "text": "plain",
        "source_language": "und",
        "target_language": language,
        "segment_mark": "@@",
        **_ids_and_sizes(vocabularies),
        "task": LANGUAGE_MODEL,
    }
    return Tokenizer(settings, vocabularies)


def symbol_tokenizer(
    data: DataConfig, source: Sequence[str], target: Sequence[str], facts: dict[str, Any]
) -> Tokenizer:
    """Return the tokenizer of a task whose input and output are no text.

    Args:
        source, target: names of the entries of each vocabulary, after SPECIAL_PIECES.
        facts: what else a model of the task needs to know, as JSON.
    """
    names = {"source": source, "target": target}
    vocabularies: dict[str, Vocabulary] = {side: SegmentedPieces([*SPECIAL_PIECES, *names[side]], "") for side in SIDES}
    settings: dict[str, Any] = {
        **{key: getattr(data, key) for key in ("subwords", "text", "source_language", "target_language")},
        "normalize": [],
        "segment_mark": "",
        **_ids_and_sizes(vocabularies),
        "task": data.task_name,
        "facts": facts,
    }
    return Tokenizer(settings, vocabularies)


def imported_tokenizer(
    entries: Sequence[str], reserved: Collection[int], models: Mapping[str, Path], special: dict[str, Any]
) -> Tokenizer:
    """Return the tokenizer of an imported translation model.

    Args:
        entries: in the order of their ids, from SPECIAL_PIECES on.
        reserved: ids of entries that no text is split into, such as codes of languages.
        models: files by sentencepiece: "joint", or "source" and "target".
        special: settings of the tokenizer about languages; both languages are among them.

    Raises:
        ModelError: a file cannot be read or is no model of sentencepiece.
    """
    marked = [TAG_SIGN + entry if index in reserved else entry for index, entry in enumerate(entries)]
    vocabularies: dict[str, Vocabulary] = {}
    for side, path in models.items():
        try:
            vocabularies[side] = ImportedPieces(marked, content_of(path))
        except ValueError as error:
            raise ModelError(f"{path}: {error}") from None
    settings: dict[str, Any] = {
        "subwords": "imported",
        "normalize": ["blanks"],  # all other normalisation is in the model of sentencepiece
        "text": "plain",
        "segment_mark": "@@",
        **_ids_and_sizes(vocabularies),
        **special,
    }
    for key in ("source_tags", "target_tags", "target_starts"):
        if key in special:
            settings[key] = {code: TAG_SIGN + entry for code, entry in special[key].items()}
    return Tokenizer(settings, vocabularies)


def short_parts(line: str) -> Iterator[str]:
    """Yield a line, or parts of at most MAX_LEARNED_BYTES of a longer one, cut at blanks where there are any."""
    start, most = 0, len(line) if len(line.encode()) <= MAX_LEARNED_BYTES else MAX_LEARNED_BYTES // 4
    while len(line) - start > most:
        blank = line.rfind(" ", start + 1, start + most)
        end = blank if blank > 0 else start + most
        yield line[start:end].strip(" ")
        start = end
    yield line[start:].strip(" ") if start else line


def _ids_and_sizes(vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
    """Return the settings of every tokenizer that its vocabularies decide."""
    return {
        "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "vocab_sizes": {side: len(vocabulary) for side, vocabulary in vocabularies.items()},
    }
