"""Parallel corpora: public ones, the built-in ones and files of the user, all opened the same way.

A name or two files become two streams of lines, and nothing is unpacked to disk:

    catalogue.py (corpora.toml), opus.py, sacrebleu_sets.py   the public corpora
    download.py                                      their files, verified
    archives.py, compression.py                      the bytes of a text in a file
    readers.py                                       its lines
"""

import difflib
import errno
import hashlib
import itertools
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from nmtkit.compression import without_suffix
from nmtkit.corpora import facts, opus
from nmtkit.corpora.archives import is_archive, text_streams
from nmtkit.corpora.catalogue import CatalogueEntry, catalogue
from nmtkit.corpora.download import CorpusFile, Downloader
from nmtkit.corpora.readers import READERS, format_of
from nmtkit.corpora.sacrebleu_sets import PREFIX, sacrebleu_set, set_names
from nmtkit.errors import DataError
from nmtkit.files import sha256_of
from nmtkit.lines import LineReader

_BUILTIN = ("train", "valid", "synthetic", "pronouns-train", "pronouns-valid", "pronouns-test")
BUILTIN_SPLITS = {f"builtin/{split}": split for split in _BUILTIN}
BUILTIN_LANGUAGES = ("en", "de")
FACTS_SPLITS = {f"builtin/facts-{split}": split for split in facts.SPLITS}
"""Documents with summaries in English, see facts.py."""


@dataclass(frozen=True)
class TextSource:
    """One side of a parallel corpus, which several readers can read at once.

    Attributes:
        name: path or ``archive.tgz:member``, for messages.
        read: function that yields the lines as bytes with their line ends, from the first one at each call.
    """

    name: str
    read: Callable[[], Iterator[bytes]] = field(repr=False)

    def open(self, *, errors: Literal["strict", "replace", "surrogateescape"] = "strict") -> LineReader:
        """Return a new reader of the lines. Nothing is opened before the first iteration.

        Iterating raises DataError if the text cannot be read or is damaged, or under ``strict`` if it is not UTF-8.
        """
        return LineReader(self.read(), name=self.name, errors=errors)


@dataclass(frozen=True)
class Corpus:
    """Two texts, of which line n of one is the translation of line n of the other.

    Attributes:
        name: the catalogue name (``multi30k/train``), or for the user's files the given or the source file's name.
        source, target: the two sides, in the direction of translation.
        files: every file on disk that is read, verified; an archive of both sides occurs once.
        fingerprint: sha256 of the text and the direction, without paths: of the checksums of the files and the names of
            members, for a built-in corpus of the text.
    """

    name: str
    source: TextSource
    target: TextSource
    files: tuple[CorpusFile, ...]
    fingerprint: str


def find_entry(name: str) -> CatalogueEntry | None:
    """Return the public corpus, sacreBLEU test set or corpus of OPUS of a name; None if there is none."""
    if name.startswith(opus.PREFIX):
        return opus.opus_corpus(name)
    return sacrebleu_set(name) if name.startswith(PREFIX) else catalogue().get(name)


def check_corpus(name: str, source_language: str, target_language: str) -> None:
    """Raise DataError if there is no such public or built-in corpus, or if it lacks the language pair."""
    if name in BUILTIN_SPLITS:
        is_known = {source_language, target_language} == set(BUILTIN_LANGUAGES)
        pairs = f"{'-'.join(BUILTIN_LANGUAGES)}, in both directions"
    elif name in FACTS_SPLITS:
        is_known, pairs = (source_language, target_language) == ("en", "en"), 'en-en, for task = "summary"'
    elif (entry := find_entry(name)) is not None:
        is_known = (source_language, target_language) in entry.texts
        pairs = f"{', '.join(entry.language_pairs)}, in both directions"
        if name.startswith(PREFIX):
            pairs = ", ".join("-".join(pair) for pair in entry.texts) or "no direction with one reference"
    else:
        raise DataError(describe_missing(name))
    if not is_known:
        raise DataError(f'corpus "{name}" has no {source_language}-{target_language}; it has {pairs}')


def describe_missing(name: str) -> str:
    """Return the message about a name of no corpus."""
    if name.startswith(opus.PREFIX):
        return opus.describe_malformed(name)
    kind, names, option = "corpus", [*BUILTIN_SPLITS, *FACTS_SPLITS, *catalogue()], ""
    if name.startswith(PREFIX):
        kind, names, option = "sacreBLEU test set", set_names(), " --sacrebleu"
    # cutoff = 0: there always is a nearest name, even of something quite different.
    nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)[0]
    return (
        f'unknown {kind} "{name}"; the nearest name is "{nearest}" (`nmtkit corpora{option}` lists all); '
        'in a recipe, files of your own are given as { source = "FILE", target = "FILE" }, those of '
        'a language model as { text = "FILE" }'
    )


def open_corpus(name: str, source_language: str, target_language: str, downloader: Downloader) -> Corpus:
    """Return a public or built-in corpus after fetching its files; raise DataError as `check_corpus` and `fetch` do."""
    check_corpus(name, source_language, target_language)
    if name in FACTS_SPLITS:
        split = FACTS_SPLITS[name]
        source = TextSource(f"{name}.source", partial(facts.source_lines, split))
        target = TextSource(f"{name}.target", partial(facts.target_lines, split))
        return Corpus(name, source, target, (), facts.fingerprint(split))
    entry = find_entry(name)
    if entry is None:
        return _builtin_corpus(name, is_swapped=source_language != BUILTIN_LANGUAGES[0])
    texts = entry.texts[source_language, target_language]
    fetched = {file: downloader.fetch(file) for file in entry.files(source_language, target_language)}
    sides = ([StoredText(fetched[text.file], text.member, text.text_format, text.part)] for text in texts)
    return stored_corpus(name, *sides)


def _builtin_corpus(name: str, *, is_swapped: bool) -> Corpus:
    # Here, as both parse their tables of words when they are imported, which other corpora do not need.
    from nmtkit.corpora import pronouns, synthetic

    split = BUILTIN_SPLITS[name]
    if split in pronouns.SPLITS:
        pairs = pronouns.generate(split)
    else:
        pairs = [(pair.source, pair.target) for pair in synthetic.generate(split)]
    texts = {f"{name}.en": [source for source, _ in pairs], f"{name}.de": [target for _, target in pairs]}
    sides = [TextSource(key, partial(iter, [f"{line}\n".encode() for line in lines])) for key, lines in texts.items()]
    source, target = reversed(sides) if is_swapped else sides
    identities = [hashlib.sha256(b"".join(side.read())).hexdigest() for side in (source, target)]
    return Corpus(name, source, target, (), _fingerprint(identities))


def local_corpus(
    source: Path,
    target: Path,
    name: str | None = None,
    *,
    languages: tuple[str, str] = ("", ""),
    columns: tuple[int | tuple[int, ...] | None, int | None] = (None, None),
) -> Corpus:
    """Return a corpus of two files of the user, or of one that holds both sides. Names decide format and compression.

    Args:
        source, target: files, or ``ARCHIVE:MEMBER``.
        name: the name of the corpus; by default that of the source file.
        languages: of source and target, which select the sides of a translation memory (``.tmx``).
        columns: of source and target in a table, from 1; by default 1 and 2. Several columns of the source are joined
            by tabs. A file with a given column is a table whatever its name.

    Raises:
        DataError: a file cannot be read or is an archive without a member, or both sides are the same text or
            share a column.
    """
    sides = []
    is_one_table = source == target and any(columns)
    for number, (path, language, column) in enumerate(zip((source, target), languages, columns, strict=True)):
        text_format = "tsv" if column or is_one_table else local_format(path)[2]
        several = column if isinstance(column, tuple) else (column or number + 1,)
        part = {"tmx": language, "tsv": ",".join(map(str, several))}.get(text_format, "")
        sides.append(stored_text(path, text_format, part))
    if sides[0] == sides[1]:
        raise DataError(
            f"{source}: source and target are the same text of one file, so every line would be its own translation; "
            "name a file for each side, or the columns of a table with tabs (source_column, target_column); text that "
            'has no source is for data.task = "language-model"'
        )
    # In a shared column, the model would read a part of what it has to write.
    shared = {*sides[0].part.split(",")} & {*sides[1].part.split(",")}
    if shared and replace(sides[0], part="") == replace(sides[1], part=""):
        raise DataError(
            f"{source}: column {min(shared)} is in source and target; correct source_column or target_column"
        )
    return stored_corpus(name or source.name, *([side] for side in sides))


def local_text(path: Path, *, whole_lines: bool = False) -> TextSource:
    """Return one text of the user, in any format but ``.tsv`` and ``.tmx``.

    Args:
        path: a file or pipe, or ``ARCHIVE:MEMBER``.
        whole_lines: read a ``.tsv`` file as plain text.

    Raises:
        DataError: it is an archive without a member, or of a format with several texts.
    """
    file, member, text_format = local_format(path)
    if whole_lines and text_format == "tsv":
        text_format = "plain"
    if text_format in ("tsv", "tmx"):
        raise DataError(f"{path}: holds several texts; write the one that is meant to a file of its own")
    unread = CorpusFile(file, None, 0, "")  # without size and checksum, as a pipe can be read only once
    return TextSource(str(path), partial(iter, StoredText(unread, member, text_format, "")))


def local_lines(path: Path, errors: Literal["strict", "replace", "surrogateescape"]) -> LineReader:
    """Return a reader of the lines of one text of the user, in any format that `local_text` reads.

    Lines of a ``.tsv`` file stay whole. Raises DataError as `local_text` does.
    """
    _, member, text_format = local_format(path)
    if member is None and text_format in ("plain", "tsv"):
        return LineReader(path, errors=errors)
    return local_text(path, whole_lines=True).open(errors=errors)


def local_format(path: Path) -> tuple[Path, str | None, str]:
    """Return the file, the member in it and the format of a file or ``ARCHIVE:MEMBER``."""
    file, member = local_file(path)
    if member is None and is_archive(file.name):
        raise DataError(f"{file}: is an archive; name a text in it, such as {file}:train.en, or unpack it")
    return file, member, format_of(without_suffix(member or file.name))


def local_file(path: Path) -> tuple[Path, str | None]:
    """Split ``ARCHIVE:MEMBER``: ``a.zip:x/y.en`` gives a.zip and x/y.en, any other path itself and None."""
    if not path.exists():
        # The name of the archive may have a colon, too; a file whose whole name is the path has come first.
        for colon in re.finditer(":", str(path)):
            archive, member = str(path)[: colon.start()], str(path)[colon.end() :]
            if is_archive(archive) and member:
                return Path(archive), member
    return path, None


@dataclass(frozen=True)
class StoredText:
    """A text in a file or in the member of an archive; an iterable of its lines."""

    file: CorpusFile
    member: str | None
    text_format: str
    part: str

    @property
    def identity(self) -> str:
        """Everything that decides the text. Fingerprints depend on its form."""
        return f"{self.file.sha256} {self.member or ''} {self.text_format}" + (f" {self.part}" if self.part else "")

    @property
    def name(self) -> str:
        """The name in messages."""
        return str(self.file.path) + (f":{self.member}" if self.member else "")

    def __iter__(self) -> Iterator[bytes]:
        is_own, record = self.file.url is None, Path(f"{self.file.path}.sha256")
        # A checksum that was recorded at the download would be that of the damaged file.
        again = f"delete it{f' and {record.name}' if record.is_file() else ''} and fetch it again"
        remedy = "name one of these" if is_own else f"it is damaged or another edition: {again}"
        try:
            with closing(text_streams(self.file.path, self.member, remedy, is_pattern=not is_own)) as streams:
                for stream in streams:
                    yield from READERS[self.text_format](stream, self.part, self.name)
        except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            # NotImplementedError: zipfile does not know the compression method of the member.
            # ValueError: a name in a zip that is not UTF-8, or a damaged list of the holes of a file in a tar.
            # A damaged zip leads to offsets before its beginning (EINVAL); damaged bzip2 in it has no errno.
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise
            again = "get or make it again" if is_own else again
            raise DataError(f"{self.name}: damaged or cut short ({error}); {again}") from None


def stored_text(path: Path, text_format: str, part: str) -> StoredText:
    """Return a text in a file of the user, or in ``ARCHIVE:MEMBER``.

    Raises:
        DataError: it cannot be read, is not a regular file, or is an archive without a member.
    """
    file, member, _ = local_format(path)
    if file.exists() and not file.is_file() and not file.is_dir():
        raise DataError(
            f"{file}: is a pipe or a device, but a corpus is read more than once; write the text to a file first"
        )
    sha256 = sha256_of(file)  # first, as its errors are clearer than those of stat
    return StoredText(CorpusFile(file, None, file.stat().st_size, sha256), member, text_format, part)


def stored_corpus(name: str, source: Sequence[StoredText], target: Sequence[StoredText]) -> Corpus:
    """Return a corpus of stored texts: the texts of a side follow one another."""
    sides = []
    for texts in (source, target):
        more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
        sides.append(TextSource(f"{texts[0].name}{more}", partial(itertools.chain.from_iterable, texts)))
    files = tuple(dict.fromkeys(text.file for text in (*source, *target)))
    return Corpus(name, sides[0], sides[1], files, _fingerprint([text.identity for text in (*source, *target)]))


def _fingerprint(identities: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(identities).encode()).hexdigest()
