"""The public corpora by name: the entries of ``corpora.toml``, parsed and checked."""

import functools
import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.corpora.archives import is_archive
from nmtkit.corpora.download import RemoteFile, mirror_path
from nmtkit.corpora.readers import READERS

_FORMATS_WITH_PARTS = ("tsv", "labelled", "rte", "treebank", "sacrebleu-xml", "characters")


@dataclass(frozen=True)
class CatalogueText:
    """A text to download: a file or a member of an archive, or a part of it (see ``readers.py``)."""

    file: RemoteFile
    member: str | None
    text_format: str
    part: str = ""


@dataclass(frozen=True)
class CatalogueEntry:
    """A public corpus such as ``wmt14/europarl-v7``.

    Attributes:
        description, licence: one line each.
        text_format: format of all its texts, a key of ``readers.READERS``.
        texts: source and target text per direction, ``("en", "de")`` and ``("de", "en")``.
    """

    name: str
    description: str
    licence: str
    text_format: str
    texts: Mapping[tuple[str, str], tuple[CatalogueText, CatalogueText]]

    @property
    def language_pairs(self) -> tuple[str, ...]:
        """Such as ``("en-de", "en-fr")``; each of them works in both directions."""
        pairs: list[str] = []
        for source, target in self.texts:
            if f"{target}-{source}" not in pairs:
                pairs.append(f"{source}-{target}")
        return tuple(pairs)

    def files(self, source: str, target: str) -> tuple[RemoteFile, ...]:
        """Return the files of a direction, each once."""
        return tuple(dict.fromkeys(text.file for text in self.texts[source, target]))


@functools.cache
def catalogue() -> dict[str, CatalogueEntry]:
    """Return the public corpora by name, in the order of ``corpora.toml``."""
    return parse_catalogue(Path(__file__).with_name("corpora.toml").read_text(encoding="utf-8"))


def parse_catalogue(text: str) -> dict[str, CatalogueEntry]:
    """Return the entries of a catalogue in the form that the head of ``corpora.toml`` describes.

    Raises:
        ValueError: it is not of that form, or refers to a missing file or licence.
    """
    content = tomllib.loads(text)
    _check_keys("the catalogue", content, {"licences", "files", "corpora"})
    files = {}
    for key, table in content["files"].items():
        _check_keys(key, table, {"url"}, {"alternatives", "bytes", "sha256", "md5"})
        alternatives, num_bytes = tuple(table.get("alternatives", ())), table.get("bytes")
        files[key] = RemoteFile(table["url"], alternatives, num_bytes, table.get("sha256"), table.get("md5"))
        for url in files[key].urls:
            mirror_path(url)  # checks it
        for checksum, num_digits in ((table.get("sha256"), 64), (table.get("md5"), 32)):
            if checksum is not None and not re.fullmatch(f"[0-9a-f]{{{num_digits}}}", checksum):
                raise ValueError(f"{key}: not a checksum: {checksum}")
    return {name: _parse_entry(name, table, files, content["licences"]) for name, table in content["corpora"].items()}


def _parse_entry(
    name: str, table: Mapping[str, Any], files: Mapping[str, RemoteFile], licences: Mapping[str, str]
) -> CatalogueEntry:
    _check_keys(name, table, {"description", "licence", "format"}, {"texts", "pairs"})
    text_format = table["format"]
    if table["licence"] not in licences or text_format not in READERS:
        raise ValueError(f"{name}: unknown licence {table['licence']!r} or format {text_format!r}")
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

    def parse_text(reference: str) -> CatalogueText:
        location, _, part = reference.partition("#")
        key, _, member = location.partition(":")
        if key not in files:
            raise ValueError(f"{name}: refers to the unknown file {key!r}")
        if bool(member) != is_archive(files[key].url):
            raise ValueError(f"{name}: an archive needs a member, another file has none: {reference!r}")
        if bool(part) != (text_format in _FORMATS_WITH_PARTS):
            formats = ", ".join(_FORMATS_WITH_PARTS)
            raise ValueError(f"{name}: {formats} need a #PART, other formats have none: {reference!r}")
        return CatalogueText(files[key], member or None, text_format, part)

    texts_of = {pair: (parse_text(texts[pair[0]]), parse_text(texts[pair[1]])) for pair, texts in sides.items()}
    return CatalogueEntry(name, table["description"], licences[table["licence"]], text_format, texts_of)


def _check_keys(
    name: str, table: Mapping[str, Any], required: set[str], optional: frozenset[str] | set[str] = frozenset()
) -> None:
    # Unknown keys are errors, too: with a misspelt checksum, a file would not be verified.
    wrong = (required - set(table)) | (set(table) - required - optional)
    if wrong:
        raise ValueError(f"{name}: missing or unknown: {', '.join(sorted(wrong))}")
