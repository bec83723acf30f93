"""Corpora that a recipe names: public or built-in ones, files of the user, or the user's own treebank.

    "wmt14/newstest"                                            see corpus.py
    { source = "a.en", target = "a.de" }                        files of the user
    { source = "a.mrg", target = "a.mrg" }                      a file of bracketed trees, where targets are trees
    data.treebank = "treebank_3"      "wsj/02-21", "wsj/22"     sections of the WSJ part of the Penn Treebank
    data.silver_trees = ["a.gz"]      "wsj/silver"              trees that other parsers made

The source of a tree is its words.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nmtkit.config.corpus_entries import CorpusEntry, GeneratedCorpus, LocalPair, NamedCorpus, corpus_name, public_name
from nmtkit.config.data_schema import LANGUAGE_MODEL, DataConfig
from nmtkit.corpora.corpus import (
    Corpus,
    check_corpus,
    find_entry,
    local_corpus,
    local_format,
    open_corpus,
    stored_corpus,
    stored_text,
)
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.http_transfer import RemoteFile
from nmtkit.errors import DataError

_TREEBANK_PREFIX = "wsj/"
_SILVER = "wsj/silver"
_SECTIONS = re.compile(r"wsj/(\d\d)(?:-(\d\d))?")
_SECTION_PARENTS = (".", "wsj", "mrg/wsj", "parsed/mrg/wsj", "treebank_3/parsed/mrg/wsj")
"""Folders in data.treebank that may hold the sections, up to the layout of LDC's disk."""


def open_entry(data: DataConfig, entry: CorpusEntry, downloader: Downloader) -> Corpus:
    """Open a corpus that a recipe names, in its direction, which its name ends in where the recipe has several.

    data/generated.py opens generated corpora. Raises DataError for a corpus that cannot be fetched or opened.
    """
    corpus = _open(data, entry, downloader)
    if not data.has_directions:
        return corpus
    return replace(corpus, name=f"{corpus.name.removesuffix('.gz')} ({'-'.join(data.direction(entry))})")


def _open(data: DataConfig, entry: CorpusEntry, downloader: Downloader) -> Corpus:
    languages = data.direction(entry)
    if isinstance(entry, LocalPair) and data.has_trees:
        if entry.source != entry.target:
            raise DataError(
                f"{entry.source}, {entry.target}: words and trees are read from one file; give it for both sides"
            )
        if any(entry.columns):
            raise DataError(f"{entry.source}: a file of trees has no columns; remove source_column and target_column")
        return stored_trees(corpus_name(entry), [entry.source])
    if isinstance(entry, LocalPair) and data.task_name == LANGUAGE_MODEL and entry.source == entry.target:
        if local_format(entry.source)[2] not in ("plain", "tsv"):
            raise DataError(f"{entry.source}: a language model reads plain text; write it to a file without tags")
        text = [stored_text(entry.source, "plain", "")]
        return stored_corpus(corpus_name(entry), text, text)
    if isinstance(entry, LocalPair):
        return local_corpus(entry.source, entry.target, entry.name, languages=languages, columns=entry.columns)
    assert not isinstance(entry, GeneratedCorpus)
    name = public_name(entry)
    if name.startswith(_TREEBANK_PREFIX):
        return treebank_corpus(name, data.treebank, data.silver_trees)
    return open_corpus(name, *languages, downloader)


def public_files(data: DataConfig, corpus: str | NamedCorpus) -> tuple[RemoteFile, ...]:
    """Return the files that a named corpus is downloaded from, none for a built-in corpus or the user's treebank.

    Raises:
        DataError: there is no such corpus, or not in this direction.
    """
    name, languages = public_name(corpus), data.direction(corpus)
    if name.startswith(_TREEBANK_PREFIX):
        return ()
    check_corpus(name, *languages)
    entry = find_entry(name)
    return entry.files(*languages) if entry is not None else ()


def files_to_fetch(data: DataConfig) -> list[RemoteFile]:
    """Return the files that the corpora of a recipe are downloaded from, each once; see `public_files`."""
    entries = (*data.train, *data.corpora("valid"), *data.corpora("test"))
    public = [entry for entry in entries if isinstance(entry, str | NamedCorpus)]
    return list(dict.fromkeys(file for entry in public for file in public_files(data, entry)))


def is_changed(data: DataConfig, name: str, files: list[dict[str, Any]]) -> bool:
    """Return True if a corpus is read from the user's treebank, which is present and has other files than these."""
    if not name.startswith(_TREEBANK_PREFIX):
        return False
    paths = data.silver_trees if name == _SILVER else (data.treebank,)
    if not all(path is not None and path.exists() for path in paths):
        return False
    present = treebank_corpus(name, data.treebank, data.silver_trees).files
    return [file.sha256 for file in present] != [file["sha256"] for file in files]


def treebank_corpus(name: str, treebank: Path | None, silver_trees: Sequence[Path]) -> Corpus:
    """Return sections of the user's WSJ treebank ("wsj/02-21") or the silver trees ("wsj/silver").

    Raises:
        DataError: their path is not given, they are not there, or the name is none of these.
    """
    if name == _SILVER:
        if not silver_trees:
            raise DataError(
                f'"{name}": data.silver_trees is not stated; name the files of trees made by other parsers with '
                "--set 'data.silver_trees=[\"FILE\"]', bracketed, plain or compressed"
            )
        return stored_trees(name, silver_trees)
    sections = _SECTIONS.fullmatch(name)
    if sections is None or int(sections[1]) > int(sections[2] or sections[1]):
        raise DataError(f'"{name}": write sections of the treebank as wsj/22 or wsj/02-21, silver trees as {_SILVER}')
    if treebank is None:
        raise DataError(
            f'"{name}": data.treebank is not stated. The Wall Street Journal of the Penn Treebank is licensed '
            "(LDC99T42) and cannot be downloaded: name your copy with --set data.treebank=FOLDER"
        )
    if not treebank.is_dir():
        raise DataError(
            f"{treebank}: no such folder; name that of the Penn Treebank's WSJ with --set data.treebank=FOLDER"
        )
    files: dict[str, list[Path]] = {}
    for parent in _SECTION_PARENTS:
        for file in sorted((treebank / parent).glob("[0-9][0-9]/*")):
            if re.fullmatch(r"wsj_\d+\.mrg(\.gz)?", file.name, re.IGNORECASE):
                files.setdefault(file.parent.name, []).append(file)
        if files:
            break
    wanted = [f"{number:02d}" for number in range(int(sections[1]), int(sections[2] or sections[1]) + 1)]
    missing = [section for section in wanted if section not in files]
    if missing:
        raise DataError(
            f"{treebank}: no section {missing[0]} of the Wall Street Journal in it (folders 00 to 24, with files "
            "wsj_*.mrg); name the folder that holds them, parsed/mrg/wsj of LDC99T42"
        )
    return stored_trees(name, [file for section in wanted for file in files[section]])


def stored_trees(name: str, paths: Sequence[Path]) -> Corpus:
    """Return a corpus of files of bracketed trees, see `stored_text`."""
    return stored_corpus(name, *([stored_text(path, "treebank", part) for path in paths] for part in ("words", "tree")))
