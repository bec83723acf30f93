"""Parallel corpora: the catalogue of public ones, the built-in ones and files of the user, all opened the same way.

The start of ``nmtkit prepare``: a name or two files become two streams of lines, with nothing unpacked to disk. The
catalogue is ``corpora.toml``; its files come from ``download.py``.
"""

import difflib
import functools
import gzip
import hashlib
import io
import itertools
import posixpath
import re
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from nmtkit.errors import DataError
from nmtkit.files import LineReader, open_binary, sha256_of
from nmtkit.text.download import CorpusFile, Downloader, RemoteFile, mirror_path

BUILTIN_SPLITS = {"builtin/train": "train", "builtin/valid": "valid", "builtin/synthetic": "synthetic"}
BUILTIN_LANGUAGES = ("en", "de")

TextFormat = Literal["plain", "sgm"]

ARCHIVE_SUFFIXES = (".tar", ".tgz", ".tar.gz")
SGM_SUFFIXES = (".sgm", ".sgml", ".sgm.gz", ".sgml.gz")


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
        """A new reader of the lines (for SGM: the segments), which opens nothing before it is iterated over.

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


@dataclass(frozen=True)
class CatalogueText:
    """A text to download: a file, or a member of an archive."""

    file: RemoteFile
    member: str | None


@dataclass(frozen=True)
class CatalogueEntry:
    """A public corpus, as ``corpora.toml`` describes it.

    Attributes:
        name: such as ``wmt14/europarl-v7``.
        description, licence: one line each.
        text_format: of all its texts.
        texts: source and target text for each direction, ``("en", "de")`` and ``("de", "en")``.
    """

    name: str
    description: str
    licence: str
    text_format: TextFormat
    texts: Mapping[tuple[str, str], tuple[CatalogueText, CatalogueText]]

    @property
    def language_pairs(self) -> tuple[str, ...]:
        """Such as ``("en-de", "en-fr")``; each of them works in both directions."""
        pairs: list[str] = []
        for source, target in self.texts:
            if f"{target}-{source}" not in pairs:
                pairs.append(f"{source}-{target}")
        return tuple(pairs)


@functools.cache
def catalogue() -> dict[str, CatalogueEntry]:
    """The public corpora by name, in the order of ``corpora.toml``."""
    return parse_catalogue(Path(__file__).with_name("corpora.toml").read_text(encoding="utf-8"))


def parse_catalogue(text: str) -> dict[str, CatalogueEntry]:
    """The entries of a catalogue in the form that the head of ``corpora.toml`` describes.

    Raises:
        ValueError: it is not of that form, or refers to a file or licence that it does not have.
    """
    content = tomllib.loads(text)
    _check_keys("the catalogue", content, required={"licences", "files", "corpora"})
    files = {key: _parse_file(key, table) for key, table in content["files"].items()}
    return {name: _parse_entry(name, table, files, content["licences"]) for name, table in content["corpora"].items()}


def _parse_file(key: str, table: Mapping[str, Any]) -> RemoteFile:
    _check_keys(key, table, required={"url"}, optional={"alternatives", "bytes", "sha256", "md5"})
    file = RemoteFile(
        url=table["url"],
        alternatives=tuple(table.get("alternatives", ())),
        num_bytes=table.get("bytes"),
        sha256=table.get("sha256"),
        md5=table.get("md5"),
    )
    for url in file.urls:
        mirror_path(url)
    for checksum, num_digits in ((file.sha256, 64), (file.md5, 32)):
        if checksum is not None and not re.fullmatch(f"[0-9a-f]{{{num_digits}}}", checksum):
            raise ValueError(f"{key}: not a checksum: {checksum}")
    return file


def _parse_entry(
    name: str, table: Mapping[str, Any], files: Mapping[str, RemoteFile], licences: Mapping[str, str]
) -> CatalogueEntry:
    _check_keys(name, table, required={"description", "licence", "format"}, optional={"texts", "pairs"})
    if table["licence"] not in licences or table["format"] not in ("plain", "sgm"):
        raise ValueError(f"{name}: unknown licence {table['licence']!r} or format {table['format']!r}")
    sides: dict[tuple[str, str], Mapping[str, str]] = {}
    for source, target in itertools.permutations(table.get("texts", {}), 2):
        sides[source, target] = table["texts"]
    for pair, texts in table.get("pairs", {}).items():
        source, _, target = pair.partition("-")
        if set(texts) != {source, target} or source == target:
            raise ValueError(f"{name}: the pair {pair} has texts for {', '.join(texts)}")
        sides[source, target] = texts
    for (source, target), texts in list(sides.items()):
        sides.setdefault((target, source), texts)
    if not sides:
        raise ValueError(f"{name}: has fewer than two languages")
    texts_of = {
        (source, target): (_parse_text(name, texts[source], files), _parse_text(name, texts[target], files))
        for (source, target), texts in sides.items()
    }
    return CatalogueEntry(name, table["description"], licences[table["licence"]], table["format"], texts_of)


def _parse_text(name: str, reference: str, files: Mapping[str, RemoteFile]) -> CatalogueText:
    key, _, member = reference.partition(":")
    if key not in files:
        raise ValueError(f"{name}: refers to the unknown file {key!r}")
    if bool(member) != _is_archive(files[key].url):
        raise ValueError(f"{name}: an archive needs a member, another file has none: {reference!r}")
    return CatalogueText(files[key], member or None)


def _check_keys(where: str, table: Mapping[str, Any], *, required: set[str], optional: set[str] | None = None) -> None:
    wrong = (required - set(table)) | (set(table) - required - (optional or set()))
    if wrong:
        raise ValueError(f"{where}: missing or unknown: {', '.join(sorted(wrong))}")


def check_corpus(name: str, source_language: str, target_language: str) -> None:
    """Checks a name and direction without fetching anything.

    Raises:
        DataError: there is no such corpus, or it lacks the language pair.
    """
    pairs: tuple[str, ...]
    if name in BUILTIN_SPLITS:
        known = {source_language, target_language} == set(BUILTIN_LANGUAGES)
        pairs = ("-".join(BUILTIN_LANGUAGES),)
    elif name in catalogue():
        known = (source_language, target_language) in catalogue()[name].texts
        pairs = catalogue()[name].language_pairs
    else:
        names = [*BUILTIN_SPLITS, *catalogue()]
        nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)[0]
        raise DataError(
            f'unknown corpus "{name}"; the nearest name is "{nearest}" (there are: {", ".join(names)}); '
            'files of your own are given as { source = "FILE", target = "FILE" }'
        )
    if not known:
        raise DataError(
            f'corpus "{name}" has no {source_language}-{target_language}; it has {", ".join(pairs)}, in both directions'
        )


def open_corpus(name: str, source_language: str, target_language: str, downloader: Downloader) -> Corpus:
    """A public or built-in corpus, its files fetched and verified; the text itself is read later.

    Raises:
        DataError: there is no such corpus, it lacks the language pair, or a file cannot be fetched.
    """
    check_corpus(name, source_language, target_language)
    if name in BUILTIN_SPLITS:
        return _builtin_corpus(name, swapped=source_language != BUILTIN_LANGUAGES[0])
    entry = catalogue()[name]
    texts = entry.texts[source_language, target_language]
    fetched = {file: downloader.fetch(file) for file in dict.fromkeys(text.file for text in texts)}
    return _corpus_of(name, [(fetched[text.file], text.member, entry.text_format) for text in texts])


def local_corpus(source: Path, target: Path, name: str | None = None) -> Corpus:
    """Two files of the user: plain text or SGM (``.sgm``), each possibly compressed (``.gz``).

    Args:
        name: what to call the corpus; by default as the file of the source.

    Raises:
        DataError: one cannot be read, or is an archive.
    """
    sides: list[tuple[CorpusFile, str | None, TextFormat]] = []
    for path in (source, target):
        if _is_archive(path.name):
            raise DataError(f"{path}: is an archive; unpack it and give the two text files in it")
        sha256 = sha256_of(path)
        text_format: TextFormat = "sgm" if path.name.lower().endswith(SGM_SUFFIXES) else "plain"
        sides.append((CorpusFile(path, None, path.stat().st_size, sha256), None, text_format))
    return _corpus_of(name or source.name, sides)


def _corpus_of(name: str, sides: list[tuple[CorpusFile, str | None, TextFormat]]) -> Corpus:
    source, target = (_text_source(file.path, member, text_format) for file, member, text_format in sides)
    files = tuple(dict.fromkeys(file for file, _, _ in sides))
    identity = [f"{file.sha256} {member or ''} {text_format}" for file, member, text_format in sides]
    return Corpus(name, source, target, files, _sha256("\n".join(identity)))


def _builtin_corpus(name: str, *, swapped: bool) -> Corpus:
    from nmtkit.text.synthetic import generate

    pairs = generate(BUILTIN_SPLITS[name])
    texts = {f"{name}.en": [pair.source for pair in pairs], f"{name}.de": [pair.target for pair in pairs]}
    sides = [TextSource(key, [f"{line}\n".encode() for line in lines]) for key, lines in texts.items()]
    source, target = reversed(sides) if swapped else sides
    identity = [hashlib.sha256(b"".join(side.raw_lines)).hexdigest() for side in (source, target)]
    return Corpus(name, source, target, (), _sha256("\n".join(identity)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def _text_source(path: Path, member: str | None, text_format: TextFormat) -> TextSource:
    name = str(path) if member is None else f"{path}:{member}"
    return TextSource(name, _StoredText(path, member, text_format, name))


@dataclass(frozen=True)
class _StoredText:
    """The lines of a file or of a member of an archive, which is open while it is iterated over."""

    path: Path
    member: str | None
    text_format: TextFormat
    name: str

    def __iter__(self) -> Iterator[bytes]:
        try:
            with open_binary(self.path) if self.member is None else _open_member(self.path, self.member) as stream:
                if self.text_format == "sgm":  # read at once, as only test sets come in this form
                    yield from _segments(stream.read(), self.name)
                else:
                    yield from stream
        except tarfile.TarError as error:
            raise DataError(f"{self.name}: damaged or cut short ({error}); delete it and fetch it again") from None


@contextmanager
def _open_member(path: Path, member: str) -> Iterator[io.BufferedIOBase]:
    """A member of a tar archive as a stream: the archive is read and decompressed up to the member, never unpacked."""
    names = []
    with ExitStack() as stack:
        file = stack.enter_context(open_binary(path))
        if path.suffix == ".tgz":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        archive = stack.enter_context(tarfile.open(fileobj=file, mode="r:"))
        for entry in archive:
            if entry.isfile() and posixpath.normpath(entry.name) == member:
                stream = cast(io.BufferedReader, archive.extractfile(entry))
                yield io.BufferedReader(gzip.GzipFile(fileobj=stream)) if member.endswith(".gz") else stream
                return
            names.append(entry.name)
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    raise DataError(
        f"{path}: the archive has no member {member} (it has {listed}); it is damaged or another edition: "
        "delete it and fetch it again"
    )


SEGMENT_TAG = re.compile(rb"<(/?)seg(?=[\s/>])[^>]*>", re.IGNORECASE)
LINE_END = re.compile(rb"[ \t\r]*\n[ \t\r]*")
ENTITY = re.compile(rb"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
NAMED_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}


def _segments(content: bytes, name: str) -> Iterator[bytes]:
    """The text of each ``<seg>`` as one line, in order of appearance; an empty segment keeps its place."""
    number = 0
    start = None
    for tag in SEGMENT_TAG.finditer(content):
        is_end = tag[1] == b"/"
        if is_end and start is not None:
            # Bytes, as str.strip would also take U+0085 and no-break spaces.
            text = ENTITY.sub(_unescape, content[start : tag.start()])
            yield LINE_END.sub(b" ", text.strip(b" \t\r\n")) + b"\n"
            start = None
        elif is_end or start is not None:
            raise DataError(f"{name}: <seg> and </seg> do not match at segment {number}; correct the file")
        else:
            number += 1
            if tag[0].endswith(b"/>"):
                yield b"\n"
            else:
                start = tag.end()
    if start is not None:
        raise DataError(f"{name}: segment {number}, the last one, is not closed; the file is cut short: fetch it again")
    if number == 0:
        raise DataError(f"{name}: no <seg> in it; give plain text files another ending than .sgm")


def _unescape(entity: re.Match[bytes]) -> bytes:
    if entity[1]:
        return NAMED_ENTITIES[entity[1]]
    code = int(entity[2]) if entity[2] else int(entity[3], 16)
    is_character = 0 < code < 0xD800 or 0xE000 <= code <= 0x10FFFF
    return chr(code).encode("utf-8") if is_character else entity[0]
