"""sacreBLEU's own test sets by name, such as ``sacrebleu:wmt14/full``.

Addresses, checksums and the roles of files come from sacreBLEU. Fetching (``download.py``) and reading (``readers.py``)
are ours, so that mirror, cache and verification serve these sets too; tests compare the text with sacreBLEU's.
"""

import functools
import posixpath
from typing import TYPE_CHECKING, Any

from nmtkit.corpora.archives import ARCHIVE_NAME, is_archive
from nmtkit.corpora.catalogue import CatalogueEntry, CatalogueText
from nmtkit.corpora.http_transfer import RemoteFile
from nmtkit.errors import DataError

if TYPE_CHECKING:
    from sacrebleu.dataset.base import Dataset

PREFIX = "sacrebleu:"
_FORMATS = {
    "FakeSGMLDataset": "sacrebleu-sgm",
    "IWSLTXMLDataset": "sacrebleu-sgm",
    "WMTAdditionDataset": "sacrebleu-sgm",
    "PlainTextDataset": "sacrebleu-plain",
    "TSVDataset": "tsv",
    "WMTXMLDataset": "sacrebleu-xml",
}
"""Formats by sacreBLEU's classes."""
_LICENCE = "as its publishers say: see the set's citation in sacreBLEU; do not redistribute"


def set_names() -> list[str]:
    """Return all names, with the prefix."""
    return [f"{PREFIX}{name}" for name in _datasets()]


@functools.cache
def sacrebleu_set(name: str) -> CatalogueEntry | None:
    """Return the set of a name (with the prefix) with its directions that have one reference; None if it is missing."""
    dataset = _datasets().get(name.removeprefix(PREFIX))
    if dataset is None:
        return None
    urls: list[str] = dataset.data or []
    md5s: list[str | None] = [*dataset.md5] if dataset.md5 else [None] * len(urls)
    files = [RemoteFile(url, md5=md5) for url, md5 in zip(urls, md5s, strict=True)]
    texts = {}
    for pair, metadata in dataset.langpairs.items():
        source, _, target = pair.partition("-")
        if len(paths := _paths(dataset, metadata)) == 2:
            sides = [_text(dataset, path, files, part) for path, part in paths]
            texts[source, target] = (sides[0], sides[1])
    return CatalogueEntry(name, dataset.description or name, _LICENCE, _FORMATS[type(dataset).__name__], texts)


def _datasets() -> "dict[str, Dataset]":
    from sacrebleu.dataset import DATASETS

    return DATASETS


def _paths(dataset: "Dataset", metadata: Any) -> list[tuple[str, str]]:
    """Return path and part (see ``readers.py``) of source and references in sacreBLEU's description of a direction."""
    kind = type(dataset).__name__
    if kind == "WMTXMLDataset":
        path, translators = metadata, dataset.kwargs.get("refs", [])
        if isinstance(metadata, dict):
            path, translators = [metadata["path"]], metadata.get("refs", translators)
        return [(path[0], "src"), *((path[0], f"ref:{name}" if name else "ref") for name in translators)]
    if kind == "TSVDataset":  # "COLUMN:PATH", from 0
        columns = [path.rpartition(":") for path in metadata]
        return [(path, str(int(column or default) + 1)) for default, (column, _, path) in enumerate(columns)]
    return [(path, "") for path in metadata]


def _text(dataset: "Dataset", path: str, files: list[RemoteFile], part: str) -> CatalogueText:
    """Return the origin of a path in the folder that sacreBLEU unpacks everything into.

    sacreBLEU does not name its archive: it is the only one, or has the name of the path's first folder.
    """
    kind = type(dataset).__name__
    is_plain = kind == "WMTAdditionDataset" and not path.endswith(".sgm")
    text_format = "sacrebleu-plain" if is_plain else _FORMATS[kind]
    for file in files:
        name = posixpath.basename(file.url)
        if not is_archive(name) and path == f"{dataset.name.replace('/', '_')}.{name}":
            return CatalogueText(file, None, text_format, part)
    archives = [file for file in files if is_archive(file.url)]
    folder = path.split("/")[0]
    named = [file for file in archives if ARCHIVE_NAME.sub("", posixpath.basename(file.url)) == folder]
    if len(archives) != 1 and len(named) != 1:
        raise DataError(f"{PREFIX}{dataset.name}: which of its archives holds {path} is not known")
    return CatalogueText((named or archives)[0], path, text_format, part)
