import gzip
from functools import partial
from pathlib import Path

import pytest

from nmtkit.config.data_schema import DataConfig
from nmtkit.corpora.corpus import Corpus, TextSource
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.entries import open_entry, public_files, stored_trees, treebank_corpus
from nmtkit.errors import DataError
from nmtkit.tasks.parsing import ParsingTask
from tests.conftest import message_of
from tests.corpora.test_corpus import pairs_of


def make_treebank(folder: Path, *, compress: bool = False) -> Path:
    """Sections 00 to 03 of two files each, one tree of two words in each of these."""
    for section in range(4):
        place = folder / f"{section:02d}"
        place.mkdir(parents=True)
        for number in (2, 1):
            name, content = (
                f"wsj_{section:02d}0{number}.mrg",
                f"( (S (NP-SBJ (NN s{section}) (-NONE- *)) (VB f{number})) )",
            )
            if compress:
                (place / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
            else:
                (place / name).write_text(content)
        (place / "README").write_text("no tree")
    return folder


@pytest.mark.parametrize("place", [".", "wsj", "parsed/mrg/wsj", "treebank_3/parsed/mrg/wsj"])
def test_sections_are_found_in_the_folder_or_where_the_publishers_disk_has_them(tmp_path: Path, place: str) -> None:
    make_treebank(tmp_path / place)
    corpus = treebank_corpus("wsj/01-02", tmp_path, ())
    assert list(pairs_of(corpus)) == [
        (f"s{section} f{number}", f"(S (NP (NN s{section})) (VB f{number}))") for section in (1, 2) for number in (1, 2)
    ]
    assert (corpus.name, len(corpus.files)) == ("wsj/01-02", 4)


def test_one_section_and_compressed_files_will_do_and_count_as_the_text_they_hold(tmp_path: Path) -> None:
    make_treebank(tmp_path / "a", compress=True)
    assert [source for source, _ in pairs_of(treebank_corpus("wsj/03", tmp_path / "a", ()))] == ["s3 f1", "s3 f2"]


def test_the_sum_of_a_corpus_follows_its_text_and_not_its_place(tmp_path: Path) -> None:
    sums = [treebank_corpus("wsj/02", make_treebank(tmp_path / name), ()).fingerprint for name in ("a", "b")]
    assert sums[0] == sums[1] != treebank_corpus("wsj/01", tmp_path / "a", ()).fingerprint
    (tmp_path / "b" / "02" / "wsj_0201.mrg").write_text("(S (NN other))")
    assert treebank_corpus("wsj/02", tmp_path / "b", ()).fingerprint != sums[0]


def test_silver_trees_are_files_in_turn(tmp_path: Path) -> None:
    (tmp_path / "a.mrg").write_text("(S (NN a)) (S (NN b))")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"# made by a parser\n(S (NN c))"))
    corpus = treebank_corpus("wsj/silver", None, [tmp_path / "a.mrg", tmp_path / "b.gz"])
    assert [source for source, _ in pairs_of(corpus)] == ["a", "b", "c"]
    assert corpus.source.name.endswith("a.mrg and 1 more")


@pytest.mark.parametrize(
    ("name", "treebank", "expected"),
    [
        (
            "wsj/22",
            None,
            "licensed (LDC99T42) and cannot be downloaded: name your copy with --set data.treebank=FOLDER",
        ),
        ("wsj/22", "nowhere", "nowhere: no such folder; name that of the Penn Treebank"),
        ("wsj/02-21", "there", "there: no section 04 of the Wall Street Journal in it"),
        ("wsj/23", "empty", "empty: no section 23"),
        ("wsj/22", "there", "there: no section 22"),
        ("wsj/silver", "there", "data.silver_trees is not stated"),
        ("wsj/train", "there", "write sections of the treebank as wsj/22 or wsj/02-21"),
        ("wsj/03-02", "there", "write sections of the treebank as"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, treebank: str | None, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_treebank(tmp_path / "there")
    (tmp_path / "there" / "22").write_text("a file is no section")
    (tmp_path / "empty").mkdir()
    folder = None if treebank is None else Path(treebank)
    data = DataConfig.model_construct(source_language="en", target_language="en", treebank=folder, silver_trees=())
    assert expected in message_of(lambda: open_entry(data, name, Downloader(cache=tmp_path)))
    assert public_files(data, name) == ()


def test_training_text_has_sequences_and_says_where_a_tree_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.mrg").write_text("( (S (NP-SBJ (NN a)) (. .)) )\n(X (CD 1)")
    corpus = ParsingTask("trees").training_corpus(stored_trees("mine", [tmp_path / "a.mrg"]))
    lines = iter(corpus.target.open())
    assert next(lines) == "(S (NP XX )NP XX )S"
    with pytest.raises(DataError, match=r"a\.mrg, line \d: the last tree is not closed"):
        next(lines)


def test_text_that_is_no_tree_is_refused_with_its_line() -> None:
    texts = (
        TextSource("a.en", partial(iter, [b"a\n"])),
        TextSource("a.de", partial(iter, [b"(S (NN a))\n", b"no tree\n"])),
    )
    with pytest.raises(DataError, match=r"a\.de, line 2: 'no' outside of a tree"):
        list(ParsingTask("tagged-trees").training_corpus(Corpus("mine", *texts, (), "")).target.open())
