"""sacreBLEU's own test sets by name, ``sacrebleu:wmt14/full``: its list of them, read as it reads them.

sacreBLEU says where a set lies, its checksum and which files are source and reference; fetching (``download.py``) and
reading (``readers.py``, the formats ``sacrebleu-*``) are ours, so mirror, cache and verification are those of every
other corpus. Tests compare the text with what sacreBLEU itself makes of the same files.
"""

import functools
import posixpath
from typing import TYPE_CHECKING, Any

from nmtkit.corpora.archives import ARCHIVE_NAME, is_archive
from nmtkit.corpora.catalogue import CatalogueEntry, CatalogueText
from nmtkit.corpora.download import RemoteFile
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
"""The format of each of sacreBLEU's kinds of sets."""
LICENCE = "as its publishers say: see the set's citation in sacreBLEU; do not redistribute"


def set_names() -> list[str]:
    """All of them, with the prefix."""
    return [f"{PREFIX}{name}" for name in _datasets()]


@functools.cache
def sacrebleu_set(name: str) -> CatalogueEntry | None:
    """The set of that name (with the prefix), each direction as sacreBLEU has it; None if there is none.

    A direction with several references is left out of its texts: a test set has one here.
    """
    dataset = _datasets().get(name.removeprefix(PREFIX))
    if dataset is None or not name.startswith(PREFIX):
        return None
    urls: list[str] = dataset.data or []
    md5s: list[str | None] = [*dataset.md5] if dataset.md5 else [None] * len(urls)
    files = [RemoteFile(url, md5=md5) for url, md5 in zip(urls, md5s, strict=True)]
    texts = {}
    for pair, metadata in dataset.langpairs.items():
        source, _, target = pair.partition("-")
        if sides := _sides(dataset, metadata, files):
            texts[source, target] = sides
    return CatalogueEntry(name, dataset.description or name, LICENCE, _FORMATS[_kind(dataset)], texts)


def _datasets() -> "dict[str, Dataset]":
    from sacrebleu.dataset import DATASETS

    return DATASETS


def _kind(dataset: Any) -> str:
    return type(dataset).__name__


def _sides(dataset: "Dataset", metadata: Any, files: list[RemoteFile]) -> tuple[CatalogueText, CatalogueText] | None:
    if _kind(dataset) == "WMTXMLDataset":
        path = metadata["path"] if isinstance(metadata, dict) else metadata[0]
        default = dataset.kwargs.get("refs", [])
        translators = metadata.get("refs", default) if isinstance(metadata, dict) else default
        if len(translators) != 1:
            return None
        reference = f"ref:{translators[0]}" if translators[0] else "ref"
        return _text(dataset, path, files, "src"), _text(dataset, path, files, reference)
    if len(metadata) != 2:
        return None
    if _kind(dataset) == "TSVDataset":
        places = [place.rpartition(":") for place in metadata]
        columns = [str(int(index or default) + 1) for default, (index, _, _) in enumerate(places)]
        source, target = (
            _text(dataset, path, files, column) for (_, _, path), column in zip(places, columns, strict=True)
        )
        return source, target
    source, target = (_text(dataset, path, files, "") for path in metadata)
    return source, target


def _text(dataset: "Dataset", path: str, files: list[RemoteFile], part: str) -> CatalogueText:
    """Where a path in the folder that sacreBLEU unpacks everything into comes from.

    sacreBLEU does not say which archive holds it: it is the only one, or bears the name of the path's first folder.
    """
    is_plain = _kind(dataset) == "WMTAdditionDataset" and not path.endswith(".sgm")
    text_format = "sacrebleu-plain" if is_plain else _FORMATS[_kind(dataset)]
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
