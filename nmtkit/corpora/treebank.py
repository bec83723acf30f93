"""Treebanks of the user: files of bracketed trees, and the licensed Wall Street Journal by its sections.

A corpus of trees is like any other: the words of each tree are the source, the tree is the target.

    data.treebank = "treebank_3"      "wsj/02-21", "wsj/22"     sections of the WSJ part of the Penn Treebank
    data.silver_trees = ["a.gz"]      "wsj/silver"              trees that other parsers made, if there are any
    { source = "a.mrg", target = "a.mrg" }                      a file of trees, or a member of an archive
"""

import re
from collections.abc import Sequence
from pathlib import Path

from nmtkit.corpora.corpus import Corpus, stored_corpus, stored_side
from nmtkit.errors import DataError

SILVER = "wsj/silver"
_TREE_FILE = re.compile(r"wsj_\d+\.mrg(\.gz)?", re.IGNORECASE)
_SECTIONS = re.compile(r"wsj/(\d\d)(?:-(\d\d))?")
_PLACES = (".", "wsj", "mrg/wsj", "parsed/mrg/wsj", "treebank_3/parsed/mrg/wsj")
"""Where in a folder the sections may be: in the one that holds them, or above it as on LDC's disk."""


def is_own_treebank(name: str) -> bool:
    """Whether a corpus of that name is read from the user's own treebank."""
    return name.startswith("wsj/")


def treebank_corpus(name: str, treebank: Path | None, silver_trees: Sequence[Path]) -> Corpus:
    """Sections of the user's WSJ treebank, such as "wsj/02-21", or the files of silver trees, "wsj/silver".

    Raises:
        DataError: it is not stated where they are, they are not there, or the name is none of these.
    """
    if name == SILVER:
        if not silver_trees:
            raise DataError(
                f'"{name}": data.silver_trees is not stated; name the files of trees made by other parsers with '
                "--set 'data.silver_trees=[\"FILE\"]', bracketed, plain or compressed"
            )
        return stored_trees(name, silver_trees)
    sections = _SECTIONS.fullmatch(name)
    if sections is None or int(sections[1]) > int(sections[2] or sections[1]):
        raise DataError(f'"{name}": write sections of the treebank as wsj/22 or wsj/02-21, silver trees as {SILVER}')
    if treebank is None:
        raise DataError(
            f'"{name}": data.treebank is not stated. The Wall Street Journal of the Penn Treebank is licensed '
            "(LDC99T42) and cannot be downloaded: name your copy with --set data.treebank=FOLDER"
        )
    folders = _section_folders(treebank)
    wanted = [f"{number:02d}" for number in range(int(sections[1]), int(sections[2] or sections[1]) + 1)]
    missing = [section for section in wanted if not folders.get(section)]
    if missing:
        raise DataError(
            f"{treebank}: no section {missing[0]} of the Wall Street Journal in it (folders 00 to 24, with files "
            "wsj_*.mrg); name the folder that holds them, parsed/mrg/wsj of LDC99T42"
        )
    return stored_trees(name, [file for section in wanted for file in folders[section]])


def _section_folders(treebank: Path) -> dict[str, list[Path]]:
    """The files of trees in each section, in order."""
    if not treebank.is_dir():
        raise DataError(
            f"{treebank}: no such folder; name that of the Penn Treebank's WSJ with --set data.treebank=FOLDER"
        )
    for place in _PLACES:
        folders = (folder for folder in (treebank / place).glob("[0-9][0-9]") if folder.is_dir())
        found = {
            folder.name: sorted(path for path in folder.iterdir() if _TREE_FILE.fullmatch(path.name))
            for folder in folders
        }
        if any(found.values()):
            return found
    return {}


def stored_trees(name: str, places: Sequence[Path]) -> Corpus:
    """A corpus of files of bracketed trees, each plain, compressed, or ``ARCHIVE:MEMBER``.

    Raises:
        DataError: one cannot be read, or is an archive without a member.
    """
    return stored_corpus(
        name, *([stored_side(place, "treebank", part) for place in places] for part in ("words", "tree"))
    )
