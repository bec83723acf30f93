"""Parallel corpora: the catalogue of public ones, the built-in ones and files of the user, all opened the same way.

The start of ``nmtkit prepare``: a name or two files become two streams of lines, with nothing unpacked to disk.

    catalogue.py (corpora.toml), sacrebleu_sets.py   what there is
    download.py                                      its files, verified
    archives.py, compression.py                      the bytes of a text in them
    readers.py                                       its lines
"""

import difflib
import errno
import hashlib
import itertools
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nmtkit.compression import without_suffix
from nmtkit.corpora.archives import is_archive, member_streams
from nmtkit.corpora.catalogue import CatalogueEntry, catalogue
from nmtkit.corpora.download import CorpusFile, Downloader, RemoteFile
from nmtkit.corpora.readers import READERS, format_of
from nmtkit.corpora.sacrebleu_sets import PREFIX, sacrebleu_set, set_names
from nmtkit.errors import DataError
from nmtkit.files import LineReader, open_binary, sha256_of

BUILTIN_SPLITS = {"builtin/train": "train", "builtin/valid": "valid", "builtin/synthetic": "synthetic"}
BUILTIN_LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class TextSource:
    """One side of a parallel corpus: can be opened again and again, and by several readers at once.

    Attributes:
        name: how messages call it: its path, or ``archive.tgz:member``.
        raw_lines: the lines as bytes with their line ends, from the first one at each iteration.
    """

    name: str
    raw_lines: Iterable[bytes] = field(repr=False)

    def open(self, *, errors: Literal["strict", "replace"] = "strict") -> LineReader:
        """A new reader of the lines (of other formats: the texts), which opens nothing before it is iterated over.

        Iterating over the reader raises DataError where the text or its archive cannot be read, lacks the member or is
        damaged, or where the text is not valid UTF-8 (under ``strict``; ``replace`` records the line instead).
        """
        return LineReader(self.raw_lines, name=self.name, errors=errors)


@dataclass(frozen=True)
class Corpus:
    """Two texts of which line n of one is the translation of line n of the other.

    Attributes:
        name: the catalogue name (``multi30k/train``); for the user's files the given or the source file's name.
        source, target: the two sides, in the direction of translation.
        files: every file on disk it reads, verified; an archive that holds both sides stands there once.
        fingerprint: sha256 over what decides the text and the direction, but no path: the checksums of the files and
            the names of members; of a built-in corpus, over the text.
    """

    name: str
    source: TextSource
    target: TextSource
    files: tuple[CorpusFile, ...]
    fingerprint: str


def find_entry(name: str) -> CatalogueEntry | None:
    """The public corpus or sacreBLEU test set of that name, None if there is none."""
    return sacrebleu_set(name) if name.startswith(PREFIX) else catalogue().get(name)


def check_corpus(name: str, source_language: str, target_language: str) -> None:
    """Checks a name and direction without fetching anything.

    Raises:
        DataError: there is no such corpus, or it lacks the language pair.
    """
    if name in BUILTIN_SPLITS:
        known = {source_language, target_language} == set(BUILTIN_LANGUAGES)
        pairs = f"{'-'.join(BUILTIN_LANGUAGES)}, in both directions"
    elif (entry := find_entry(name)) is not None:
        known = (source_language, target_language) in entry.texts
        pairs = f"{', '.join(entry.language_pairs)}, in both directions"
        if name.startswith(PREFIX):
            pairs = ", ".join("-".join(pair) for pair in entry.texts) or "no direction with one reference"
    else:
        raise DataError(describe_missing(name))
    if not known:
        raise DataError(f'corpus "{name}" has no {source_language}-{target_language}; it has {pairs}')


def describe_missing(name: str) -> str:
    """What to say of a name that no corpus has."""
    names = set_names() if name.startswith(PREFIX) else [*BUILTIN_SPLITS, *catalogue()]
    nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)[0]
    kind = "sacreBLEU test set" if name.startswith(PREFIX) else "corpus"
    return (
        f'unknown {kind} "{name}"; the nearest name is "{nearest}" (`nmtkit corpora` lists all); '
        'files of your own are given as { source = "FILE", target = "FILE" }'
    )


def remote_files(name: str, source_language: str, target_language: str) -> tuple[RemoteFile, ...]:
    """What has to be fetched for a corpus, each file once; none for a built-in one.

    Raises:
        DataError: there is no such corpus, or it lacks the language pair.
    """
    check_corpus(name, source_language, target_language)
    entry = find_entry(name)
    return entry.files(source_language, target_language) if entry is not None else ()


def open_corpus(name: str, source_language: str, target_language: str, downloader: Downloader) -> Corpus:
    """A public or built-in corpus, its files fetched and verified; the text itself is read later.

    Raises:
        DataError: there is no such corpus, it lacks the language pair, or a file cannot be fetched.
    """
    check_corpus(name, source_language, target_language)
    entry = find_entry(name)
    if entry is None:
        return _builtin_corpus(name, swapped=source_language != BUILTIN_LANGUAGES[0])
    texts = entry.texts[source_language, target_language]
    fetched = {file: downloader.fetch(file) for file in entry.files(source_language, target_language)}
    sides = ([StoredSide(fetched[text.file], text.member, text.text_format, text.part)] for text in texts)
    return stored_corpus(name, *sides)


def local_corpus(
    source: Path,
    target: Path,
    name: str | None = None,
    *,
    languages: tuple[str, str] = ("", ""),
    columns: tuple[int | None, int | None] = (None, None),
) -> Corpus:
    """Two files of the user, or one that holds both sides; the names say format and compression.

    Args:
        source, target: files, or ``ARCHIVE:MEMBER``.
        name: what to call the corpus; by default as the file of the source.
        languages: of source and target, which select the sides of a translation memory (``.tmx``).
        columns: of source and target in a table, from 1. A stated one makes its file a table whatever its name, and
            the only file of both sides too; by default 1 and 2, if a table has no stated one.

    Raises:
        DataError: one cannot be read or is an archive without a member, or both sides are the same text of one file.
    """
    sides = []
    is_one_table = source == target and any(columns)
    for number, (place, language, column) in enumerate(zip((source, target), languages, columns, strict=True)):
        text_format = "tsv" if column or is_one_table else _local_format(place)[2]
        part = {"tmx": language, "tsv": str(column or number + 1)}.get(text_format, "")
        sides.append(stored_side(place, text_format, part))
    if sides[0] == sides[1]:
        raise DataError(
            f"{source}: source and target are the same text of one file, so every line would be its own translation; "
            "name a file for each side, or the columns of a table (source_column, target_column)"
        )
    return stored_corpus(name or source.name, *([side] for side in sides))


def stored_side(place: Path, text_format: str, part: str) -> "StoredSide":
    """One side of a corpus in a file of the user, or in ``ARCHIVE:MEMBER``.

    Raises:
        DataError: it cannot be read, is no regular file, or is an archive without a member.
    """
    path, member, _ = _local_format(place)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(
            f"{path}: is a pipe or a device, but a corpus is read more than once; write the text to a file first"
        )
    sha256 = sha256_of(path)  # which says what is wrong with a path
    return StoredSide(CorpusFile(path, None, path.stat().st_size, sha256), member, text_format, part)


def local_text(place: Path) -> TextSource:
    """One text of the user, in any format whose lines need no further word (all but ``.tsv`` and ``.tmx``).

    Args:
        place: a file or pipe, or ``ARCHIVE:MEMBER``.

    Raises:
        DataError: it is an archive without a member, or of a format with several texts.
    """
    path, member, text_format = _local_format(place)
    if text_format in ("tsv", "tmx"):
        raise DataError(f"{place}: holds several texts; write the one that is meant to a file of its own")
    file = CorpusFile(path, None, 0, "")  # nobody asks for size and sum, and a pipe can be read only once
    return TextSource(str(place), StoredSide(file, member, text_format, ""))


def _local_format(place: Path) -> tuple[Path, str | None, str]:
    """The file, the member in it and the format that a place names."""
    path, member = local_file(place)
    if member is None and is_archive(path.name):
        raise DataError(f"{path}: is an archive; say which text in it, such as {path}:train.en, or unpack it")
    return path, member, format_of(without_suffix(member or path.name))


def local_file(place: Path) -> tuple[Path, str | None]:
    """The file that a side of a local corpus names, and the member in it: of ``a.zip:x/y.en`` a.zip and x/y.en."""
    if place.exists():
        return place, None
    for end in re.finditer(":", str(place)):
        archive, member = str(place)[: end.start()], str(place)[end.end() :]
        if is_archive(archive) and member:
            return Path(archive), member
    return place, None


@dataclass(frozen=True)
class StoredSide:
    """Where one side of a corpus, or a part of it, lies."""

    file: CorpusFile
    member: str | None
    text_format: str
    part: str

    @property
    def identity(self) -> str:
        """What decides the text; the parts of an earlier form of it stay as they are, for the sake of fingerprints."""
        return f"{self.file.sha256} {self.member or ''} {self.text_format}" + (f" {self.part}" if self.part else "")

    @property
    def name(self) -> str:
        """How messages call it."""
        return str(self.file.path) + (f":{self.member}" if self.member else "")

    def __iter__(self) -> Iterator[bytes]:
        """The lines; file or archive are open while they are iterated over."""
        reader = READERS[self.text_format]
        try:
            if self.member is None:
                with open_binary(self.file.path) as stream:
                    yield from reader(stream, self.part, self.name)
            else:
                with closing(member_streams(self.file.path, self.member)) as streams:
                    for stream in streams:
                        yield from reader(stream, self.part, self.name)
        except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, OSError) as error:
            # A damaged zip leads to places before its beginning; bzip2 in it tells of damage without a number.
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise
            raise DataError(f"{self.name}: damaged or cut short ({error}); delete it and fetch it again") from None


@dataclass(frozen=True)
class _Chained:
    """The lines of several texts in turn."""

    texts: Sequence[Iterable[bytes]]

    def __iter__(self) -> Iterator[bytes]:
        return itertools.chain.from_iterable(self.texts)


def _chained(sides: Sequence[StoredSide]) -> TextSource:
    more = f" and {len(sides) - 1} more" if len(sides) > 1 else ""
    return TextSource(f"{sides[0].name}{more}", _Chained(sides))


def stored_corpus(name: str, source: Sequence[StoredSide], target: Sequence[StoredSide]) -> Corpus:
    """A corpus of stored texts; of several on a side, as many on both, one goes on where the one before ends."""
    sides = [*source, *target]
    files = tuple(dict.fromkeys(side.file for side in sides))
    return Corpus(name, _chained(source), _chained(target), files, _sha256("\n".join(side.identity for side in sides)))


def _builtin_corpus(name: str, *, swapped: bool) -> Corpus:
    from nmtkit.corpora.synthetic import generate

    pairs = generate(BUILTIN_SPLITS[name])
    texts = {f"{name}.en": [pair.source for pair in pairs], f"{name}.de": [pair.target for pair in pairs]}
    sides = [TextSource(key, [f"{line}\n".encode() for line in lines]) for key, lines in texts.items()]
    source, target = reversed(sides) if swapped else sides
    identity = [hashlib.sha256(b"".join(side.raw_lines)).hexdigest() for side in (source, target)]
    return Corpus(name, source, target, (), _sha256("\n".join(identity)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
