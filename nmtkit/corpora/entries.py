"""The corpora that a recipe names: public ones, the user's own files, and treebanks."""

from typing import Any

from nmtkit.config.schema import DataConfig, LocalPair, NamedCorpus, corpus_name
from nmtkit.corpora.corpus import Corpus, local_corpus, open_corpus, remote_files
from nmtkit.corpora.download import Downloader, RemoteFile
from nmtkit.corpora.treebank import SILVER, is_own_treebank, stored_trees, treebank_corpus
from nmtkit.errors import DataError


def open_entry(data: DataConfig, entry: str | NamedCorpus | LocalPair, downloader: Downloader) -> Corpus:
    """Open a corpus that a recipe names, in the recipe's direction.

    Raises:
        DataError: it cannot be had or opened.
    """
    languages = (data.source_language, data.target_language)
    if isinstance(entry, LocalPair) and data.has_trees:
        if entry.source != entry.target:
            raise DataError(
                f"{entry.source}, {entry.target}: words and trees are read from one file; give it for both sides"
            )
        if entry.source_column or entry.target_column:
            raise DataError(f"{entry.source}: a file of trees has no columns; remove source_column and target_column")
        return stored_trees(corpus_name(entry), [entry.source])
    if isinstance(entry, LocalPair):
        columns = (entry.source_column, entry.target_column)
        return local_corpus(entry.source, entry.target, entry.name, languages=languages, columns=columns)
    name = public_name(entry)
    if is_own_treebank(name):
        return treebank_corpus(name, data.treebank, data.silver_trees)
    return open_corpus(name, *languages, downloader)


def public_name(entry: str | NamedCorpus) -> str:
    """Return the name of a corpus that is not given by files."""
    return entry if isinstance(entry, str) else entry.corpus


def public_files(data: DataConfig, name: str) -> tuple[RemoteFile, ...]:
    """Return the files that a named corpus is downloaded from; none: it is read from the user's own treebank."""
    return () if is_own_treebank(name) else remote_files(name, data.source_language, data.target_language)


def files_to_fetch(data: DataConfig) -> list[RemoteFile]:
    """Return the files that the corpora of a recipe are read from, each once.

    Raises:
        DataError: there is no such corpus, or not in this direction.
    """
    valid = () if isinstance(data.valid, int) else data.valid
    entries = (*data.train, *valid, *data.test)
    names = [public_name(entry) for entry in entries if not isinstance(entry, LocalPair)]
    return list(dict.fromkeys(file for name in names for file in public_files(data, name)))


def is_changed(data: DataConfig, name: str, files: list[dict[str, Any]]) -> bool:
    """Return whether a corpus is read from the user's treebank, and this, if present, has other files than these."""
    if not is_own_treebank(name):
        return False
    places = data.silver_trees if name == SILVER else (data.treebank,)
    if not all(place is not None and place.exists() for place in places):
        return False
    found = treebank_corpus(name, data.treebank, data.silver_trees).files
    return [file.sha256 for file in found] != [file["sha256"] for file in files]
