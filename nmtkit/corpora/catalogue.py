"""The public corpora by name: the entries of ``corpora.toml``."""

import functools
import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.corpora.http_transfer import RemoteFile


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

    Tests, not this function, check that the file has this form.
    """
    content = tomllib.loads(text)
    files = {}
    for key, table in content["files"].items():
        facts = (table.get(name) for name in ("bytes", "sha256", "md5"))
        files[key] = RemoteFile(table["url"], tuple(table.get("alternatives", ())), *facts)
    return {
        name: CatalogueEntry(
            name, table["description"], content["licences"][table["licence"]], table["format"], _texts(table, files)
        )
        for name, table in content["corpora"].items()
    }


def _texts(
    table: Mapping[str, Any], files: Mapping[str, RemoteFile]
) -> dict[tuple[str, str], tuple[CatalogueText, CatalogueText]]:
    """Return the texts of a corpus by direction."""
    sides = dict.fromkeys(itertools.permutations(table.get("texts", {}), 2), table.get("texts", {}))
    for pair, texts in table.get("pairs", {}).items():
        source, _, target = pair.partition("-")
        sides[source, target] = texts
    for (source, target), texts in list(sides.items()):
        sides.setdefault((target, source), texts)

    def parsed(reference: str) -> CatalogueText:
        location, _, part = reference.partition("#")
        key, _, member = location.partition(":")
        return CatalogueText(files[key], member or None, table["format"], part)

    return {(one, other): (parsed(texts[one]), parsed(texts[other])) for (one, other), texts in sides.items()}
