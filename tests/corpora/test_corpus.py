"""Corpora: the catalogue is sound, and plain, compressed, archived, SGM and built-in text reads line by line."""

import gzip
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nmtkit.corpora import corpus as corpora
from nmtkit.corpora.archives import is_archive, text_streams
from nmtkit.corpora.catalogue import CatalogueEntry, catalogue, parse_catalogue
from nmtkit.corpora.corpus import Corpus, TextSource, check_corpus, local_corpus, local_text, open_corpus
from nmtkit.corpora.download import Downloader, mirror_path
from nmtkit.corpora.readers import READERS
from nmtkit.corpora.trees import linearise, parsed, read_trees, words
from nmtkit.files import sha256_of
from tests.conftest import message_of
from tests.corpora.test_archives import tar_of, zip_of

ENGLISH = "A dog runs.\nTwo\u0085men \u2028 sit.\n\nThe last line.\n"
GERMAN = "Ein Hund rennt.\r\nZwei Männer sitzen.\n\nDie letzte Zeile.\n"
ENGLISH_LINES = ["A dog runs.", "Two\u0085men \u2028 sit.", "", "The last line."]
GERMAN_LINES = ["Ein Hund rennt.", "Zwei Männer sitzen.", "", "Die letzte Zeile."]

TESTS_OF_2014 = ("tst2010", "tst2011", "tst2012")

CATALOGUE = """
[licences]
free = "free"
[files."text.en"]
url = "https://example.org/text.en"
[files."text.de.gz"]
url = "https://example.org/text.de.gz"
[files."a.tgz"]
url = "https://example.org/a.tgz"
[files."a.tar"]
url = "https://example.org/a.tar"
[corpora."small/plain"]
description = "two files, one compressed"
licence = "free"
format = "plain"
texts.en = "text.en"
texts.de = "text.de.gz"
[corpora."small/archive"]
description = "two members of an archive"
licence = "free"
format = "plain"
pairs.en-de.en = "a.tgz:training/a.de-en.en"
pairs.en-de.de = "a.tgz:training/a.de-en.de"
[corpora."small/compressed-members"]
description = "two compressed members of a plain archive"
licence = "free"
format = "plain"
pairs.en-de.en = "a.tar:a.en.gz"
pairs.en-de.de = "a.tar:a.de.gz"
[corpora."small/test"]
description = "texts of their own for each direction"
licence = "free"
format = "sgm"
pairs.en-de.en = "a.tgz:test/deen-src.en.sgm"
pairs.en-de.de = "a.tgz:test/deen-ref.de.sgm"
pairs.de-en.de = "a.tgz:test/deen-src.de.sgm"
pairs.de-en.en = "a.tgz:test/deen-ref.en.sgm"
"""


def segments(*texts: str) -> str:
    return "<doc>\n" + "".join(f'<seg id="{n}">{text}</seg>\n' for n, text in enumerate(texts, start=1)) + "</doc>\n"


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar_of(members)
    path.write_bytes(content if path.suffix == ".tar" else gzip.compress(content))


ARCHIVE_MEMBERS = {
    "training/a.cs-en.en": b"wrong\n",
    "training/a.de-en.en": ENGLISH.encode(),
    "training/a.de-en.de": GERMAN.encode(),
    "./test/deen-src.en.sgm": segments("source en").encode(),
    "./test/deen-ref.de.sgm": segments("reference de").encode(),
    "./test/deen-src.de.sgm": segments("source de").encode(),
    "./test/deen-ref.en.sgm": segments("reference en").encode(),
}


@pytest.fixture
def downloader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Downloader:
    """A mirror with the files of the small catalogue, which takes the place of the real one."""
    entries = parse_catalogue(CATALOGUE)
    monkeypatch.setattr(corpora, "catalogue", lambda: entries)
    folder = tmp_path / "example.org"
    write_tar(folder / "a.tgz", ARCHIVE_MEMBERS)
    compressed = {"a.en.gz": gzip.compress(ENGLISH.encode()), "a.de.gz": gzip.compress(GERMAN.encode())}
    write_tar(folder / "a.tar", compressed)
    (folder / "text.en").write_bytes(ENGLISH.encode())
    (folder / "text.de.gz").write_bytes(gzip.compress(GERMAN.encode()))
    return Downloader(mirror=tmp_path, cache=tmp_path / "cache")


def lines_of(source: TextSource) -> list[str]:
    return list(source.open())


def local(tmp_path: Path, content: str | bytes, name: str = "text.sgm") -> TextSource:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return local_text(path)


@pytest.mark.parametrize("name", ["small/plain", "small/archive", "small/compressed-members"])
def test_both_sides_read_in_parallel_again_and_in_the_other_direction(
    downloader: Downloader, tmp_path: Path, name: str
) -> None:
    before = sorted((tmp_path / "example.org").rglob("*"))
    corpus = open_corpus(name, "en", "de", downloader)
    for _ in range(2):
        source, target = corpus.source.open(), corpus.target.open()
        assert list(zip(source, target, strict=True)) == list(zip(ENGLISH_LINES, GERMAN_LINES, strict=True))
        assert (target.num_lines, target.carriage_returns, target.invalid_lines) == (4, 1, [])
        assert target.name == corpus.target.name
    back = open_corpus(name, "de", "en", downloader)
    assert (lines_of(back.source), lines_of(back.target)) == (GERMAN_LINES, ENGLISH_LINES)
    assert back.fingerprint != corpus.fingerprint
    assert sorted((tmp_path / "example.org").rglob("*")) == before
    assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} == {".sha256"}


def test_each_direction_of_a_test_set_reads_its_own_texts(downloader: Downloader) -> None:
    forth = open_corpus("small/test", "en", "de", downloader)
    back = open_corpus("small/test", "de", "en", downloader)
    assert [lines_of(side) for side in (forth.source, forth.target)] == [["source en"], ["reference de"]]
    assert [lines_of(side) for side in (back.source, back.target)] == [["source de"], ["reference en"]]


def test_a_corpus_lists_every_file_it_reads_once_and_names_the_members(downloader: Downloader, tmp_path: Path) -> None:
    archive = tmp_path / "example.org" / "a.tgz"
    corpus = open_corpus("small/archive", "en", "de", downloader)
    assert (corpus.name, corpus.source.name) == ("small/archive", f"{archive}:training/a.de-en.en")
    (file,) = corpus.files
    assert (file.path, file.url) == (archive, "https://example.org/a.tgz")
    assert (file.num_bytes, file.sha256) == (archive.stat().st_size, sha256_of(archive))
    plain = open_corpus("small/plain", "de", "en", downloader)
    assert [file.path.name for file in plain.files] == ["text.de.gz", "text.en"]
    assert plain.target.name == str(tmp_path / "example.org" / "text.en")


def test_stopping_early_closes_what_is_open(downloader: Downloader) -> None:
    corpus = open_corpus("small/compressed-members", "en", "de", downloader)
    reader = corpus.source.open()
    for line in reader:
        assert line == ENGLISH_LINES[0]
        break
    assert reader.num_lines == 1


def test_the_fingerprint_depends_on_the_text_and_not_on_its_place(tmp_path: Path) -> None:
    def corpus_in(folder: str, english: str) -> Corpus:
        (tmp_path / folder).mkdir()
        source, target = tmp_path / folder / f"{folder}.en", tmp_path / folder / f"{folder}.de"
        source.write_text(english, encoding="utf-8")
        target.write_text("Ein Hund\n", encoding="utf-8")
        return local_corpus(source, target)

    assert corpus_in("one", "A dog\n").fingerprint == corpus_in("two", "A dog\n").fingerprint
    assert corpus_in("three", "A cat\n").fingerprint != corpus_in("four", "A dog\n").fingerprint


def test_different_members_of_one_archive_have_different_fingerprints(downloader: Downloader) -> None:
    names = ["small/archive", "small/test"]
    assert len({open_corpus(name, "en", "de", downloader).fingerprint for name in names}) == 2


def long_text() -> bytes:
    return b"".join(f"sentence number {n * 7919 % 10007}\n".encode() for n in range(20000))


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("suffix", [".tgz", ".tar"])
def test_a_truncated_archive_is_an_error_that_names_it(
    downloader: Downloader, tmp_path: Path, suffix: str, kept: float
) -> None:
    name = "small/archive" if suffix == ".tgz" else "small/compressed-members"
    members = ARCHIVE_MEMBERS | {"training/a.de-en.en": long_text(), "training/a.de-en.de": long_text()}
    if suffix == ".tar":
        members = {f"a.{language}.gz": gzip.compress(long_text()) for language in ("en", "de")}
    path = tmp_path / "example.org" / f"a{suffix}"
    write_tar(path, members)
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole[: int(len(whole) * kept)])
    corpus = open_corpus(name, "en", "de", downloader)
    message = message_of(lambda: [lines_of(corpus.source), lines_of(corpus.target)])
    assert str(path) in message
    assert "again" in message


NO_ENTITY = "AT&T &copy=1 &unknown; &#0; &#xD800; &#x110000;"
SGM_TRAPS = {
    "entities": (segments("A &amp; B &lt;b&gt; &quot;x&quot; &apos;"), ['A & B <b> "x" \'']),
    "entities are read once": (segments("&amp;lt; &amp;amp;"), ["&lt; &amp;"]),
    "numeric entities": (segments("&#233;&#xE9; &#x2028;&#133;"), ["éé \u2028\u0085"]),
    "a line end as an entity stays on the line": (segments("a&#10;b"), ["a b"]),
    "no entity": (segments(NO_ENTITY), [NO_ENTITY]),
    "blanks around": (segments("  \t text  "), ["text"]),
    "blanks inside": (segments("two  blanks"), ["two  blanks"]),
    "no-break spaces and U+0085 at the edges": (segments("\u00a0x\u0085"), ["\u00a0x\u0085"]),
    "U+0085 and U+2028 inside": (segments("a\u0085b\u2028c"), ["a\u0085b\u2028c"]),
    "a segment over two lines": ('<seg id="1">one \n   two</seg>', ["one two"]),
    "a segment on lines of its own": ('<seg id="1">\r\none\r\n</seg>\r\n<seg id="2">two</seg>', ["one", "two"]),
    "upper case": ('<SEG ID="1">Text</SEG>', ["Text"]),
    "no attributes": ("<seg>Text</seg>", ["Text"]),
    "two on a line": ('<seg id="1">a</seg><seg id="2">b</seg>', ["a", "b"]),
    "order, not numbers": ('<seg id="2">a</seg>\n<seg id="1">b</seg>', ["a", "b"]),
    "empty segments keep their place": (
        '<seg id="1">a</seg><seg id="2"></seg><seg/><seg id="4"> </seg>',
        ["a", "", "", ""],
    ),
    "text outside": ("<hl>\nheadline <seg id='1'>a</seg> more\n</hl>\n<segment>x</segment>", ["a"]),
    "a mark at the start": ("\ufeff" + segments("a"), ["a"]),
}


@pytest.mark.parametrize("trap", SGM_TRAPS)
def test_sgm_gives_one_line_a_segment(tmp_path: Path, trap: str) -> None:
    content, expected = SGM_TRAPS[trap]
    reader = local(tmp_path, content).open()
    assert list(reader) == expected
    assert reader.num_lines == len(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<doc>\nplain text\n</doc>\n", "no <seg>"),
        ("", "no <seg>"),
        ('<seg id="1">a</seg>\n<seg id="2">b\n<seg id="3">c</seg>', "do not match at segment 2"),
        ('<seg id="1">a</seg>\n</seg>', "do not match at segment 1"),
        ('<seg id="1">a</seg>\n<seg id="2">b', "segment 2, the last one, is not closed"),
    ],
)
def test_sgm_that_would_misalign_is_an_error(tmp_path: Path, content: str, expected: str) -> None:
    source = local(tmp_path, content)
    message = message_of(lambda: lines_of(source))
    assert message.startswith(source.name)
    assert expected in message


def test_invalid_utf8_in_sgm_is_found_by_segment(tmp_path: Path) -> None:
    content = b"<doc>\n<hl>\n<seg id='1'>a</seg>\n<seg id='2'>\xff</seg>\n"
    reader = local(tmp_path, content).open(errors="replace")
    assert list(reader) == ["a", "\ufffd"]
    assert reader.invalid_lines == [2]


def test_compressed_sgm_is_read(tmp_path: Path) -> None:
    assert lines_of(local(tmp_path, gzip.compress(segments("a", "b").encode()), "a.SGM.gz")) == ["a", "b"]


def test_local_files_make_a_corpus_named_as_given_or_as_the_source(tmp_path: Path) -> None:
    source, target = tmp_path / "mine.en.gz", tmp_path / "mine.de"
    source.write_bytes(gzip.compress(ENGLISH.encode()))
    target.write_bytes(GERMAN.encode())
    corpus = local_corpus(source, target)
    assert (corpus.name, local_corpus(source, target, "mine").name) == ("mine.en.gz", "mine")
    assert (lines_of(corpus.source), lines_of(corpus.target)) == (ENGLISH_LINES, GERMAN_LINES)
    assert [(file.path, file.url, file.sha256) for file in corpus.files] == [
        (path, None, sha256_of(path)) for path in (source, target)
    ]


def test_local_files_that_are_missing_or_archives_are_errors(tmp_path: Path) -> None:
    there = tmp_path / "a.en"
    there.touch()
    missing, archive = tmp_path / "missing.de", tmp_path / "a.tar.gz"
    assert message_of(lambda: local_corpus(there, missing)).startswith(f"{missing}: no such file")
    assert message_of(lambda: local_corpus(tmp_path, there)).startswith(f"{tmp_path}: is a folder")
    assert "unpack it" in message_of(lambda: local_corpus(archive, there))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("multi30k/tran", "multi30k/train"),
        ("Multi30K/Train", "multi30k/train"),
        ("multi30k_tok/test2016", "multi30k-tok/test2016"),
        ("wmt14/newstest-2014", "wmt14/newstest2014"),
        ("builtin/val", "builtin/valid"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path, name: str, nearest: str) -> None:
    downloader = Downloader(cache=tmp_path)
    message = message_of(lambda: open_corpus(name, "en", "de", downloader))
    assert message.startswith(f'unknown corpus "{name}"; the nearest name is "{nearest}" (`nmtkit corpora` lists all)')
    assert '{ source = "FILE", target = "FILE" }' in message
    assert message == message_of(lambda: check_corpus(name, "en", "de"))


@pytest.mark.parametrize(
    ("name", "source", "target", "has"),
    [
        ("multi30k/test2017", "en", "cs", "it has en-de, en-fr, de-fr, in both"),
        ("wmt14/giga-fren", "de", "en", "it has en-fr, in both"),
        ("wmt14/europarl-v7", "de", "fr", "it has en-de, en-fr, in both"),
        ("multi30k/train", "en", "en", "it has en-de, "),
        ("builtin/train", "en", "fr", "it has en-de, in both"),
    ],
)
def test_a_missing_language_pair_is_answered_with_those_there_are(
    tmp_path: Path, name: str, source: str, target: str, has: str
) -> None:
    message = message_of(lambda: open_corpus(name, source, target, Downloader(cache=tmp_path)))
    assert message.startswith(f'corpus "{name}" has no {source}-{target}')
    assert has in message


def test_the_built_in_corpus_reads_like_any_other_in_both_directions(tmp_path: Path) -> None:
    downloader = Downloader(cache=tmp_path / "cache")
    forth, again = (open_corpus("builtin/synthetic", "en", "de", downloader) for _ in range(2))
    back = open_corpus("builtin/synthetic", "de", "en", downloader)
    english, german = lines_of(forth.source), lines_of(forth.target)
    assert len(english) == len(german) == 1000
    assert all(english) and all(german)
    assert (lines_of(back.source), lines_of(back.target)) == (german, english)
    assert (forth.name, forth.files) == ("builtin/synthetic", ())
    assert forth.fingerprint == again.fingerprint
    other = open_corpus("builtin/valid", "en", "de", downloader)
    assert len({corpus.fingerprint for corpus in (forth, back, other)}) == 3
    assert not downloader.cache.exists()


@pytest.mark.parametrize("entry", catalogue().values(), ids=list(catalogue()))
def test_every_catalogue_entry_is_well_formed(entry: CatalogueEntry) -> None:
    assert entry.description and entry.licence
    assert "\n" not in entry.description + entry.licence
    assert entry.language_pairs
    has_parts = entry.text_format in ("tsv", "labelled", "rte", "treebank", "sacrebleu-xml", "characters")
    for (source, target), texts in entry.texts.items():
        assert source != target
        # A text without a source stands on both sides.
        assert (texts[0] == texts[1]) == ("und" in (source, target) and "zxx" not in (source, target))
        assert {text.text_format for text in texts} == {entry.text_format}
        assert (target, source) in entry.texts
        for language, text in zip((source, target), texts, strict=True):
            assert bool(text.member) == is_archive(text.file.url)
            assert bool(text.part) == has_parts
            place = text.member or text.file.url
            if entry.name.startswith("opennmt/"):
                assert f"/{'src' if language == 'en' else 'tgt'}-" in place
            elif not text.part and "und" not in (source, target):
                assert f".{language}" in place
            assert mirror_path(text.file.url).name
            if text.file.alternatives:
                assert text.file.sha256 or text.file.md5
            assert text.file.num_bytes is None or text.file.num_bytes > 0


def raw_catalogue() -> dict[str, Any]:
    return tomllib.loads(Path(corpora.__file__).with_name("corpora.toml").read_text(encoding="utf-8"))


def test_the_tables_of_the_catalogue_have_known_keys_and_valid_checksums() -> None:
    content = raw_catalogue()
    assert set(content) == {"licences", "files", "corpora"}
    for key, table in content["files"].items():
        # With a misspelt checksum, a file would not be verified.
        assert {"url"} <= set(table) <= {"url", "alternatives", "bytes", "sha256", "md5"}, key
        assert all(map(mirror_path, (table["url"], *table.get("alternatives", ())))), key
        assert re.fullmatch("[0-9a-f]{64}", table.get("sha256", 64 * "0")), key
        assert re.fullmatch("[0-9a-f]{32}", table.get("md5", 32 * "0")), key
    for name, table in content["corpora"].items():
        required = {"description", "licence", "format"}
        assert required < set(table) <= required | {"texts", "pairs"}, name
        assert table["licence"] in content["licences"] and table["format"] in READERS, name
        assert all(
            {*pair.split("-")} == set(texts) and len(texts) == 2 for pair, texts in table.get("pairs", {}).items()
        )


def test_every_file_of_the_catalogue_is_used_and_described_once() -> None:
    content = raw_catalogue()
    urls = [file["url"] for file in content["files"].values()]
    used = {text.file.url for entry in catalogue().values() for texts in entry.texts.values() for text in texts}
    assert len(urls) == len(set(urls))
    assert set(urls) == used
    assert set(content["licences"]) == {corpus["licence"] for corpus in content["corpora"].values()}


def test_the_catalogue_has_every_corpus_and_pair_the_recipes_may_name() -> None:
    captions = ("en-de", "en-fr", "en-cs", "de-fr", "de-cs", "fr-cs")
    no_czech = ("en-de", "en-fr", "de-fr")
    expected: dict[str, tuple[str, ...]] = {}
    for prefix in ("multi30k", "multi30k-tok"):
        expected |= {f"{prefix}/{split}": captions for split in ("train", "val", "test2016", "test2018")}
        expected |= {f"{prefix}/{split}": no_czech for split in ("test2017", "test2017-mscoco")}
    expected |= {f"wmt14/{name}": ("en-de", "en-fr") for name in ("europarl-v7", "commoncrawl", "news-commentary-v9")}
    expected |= {f"wmt14/{name}": ("en-fr",) for name in ("undoc-2000", "giga-fren")}
    expected |= {f"wmt14/{name}": ("en-de", "en-fr") for name in ("newstest2014", "newstest2014-filtered")}
    expected |= {f"wmt14/newstest{year}": no_czech for year in (2012, 2013)}
    expected |= {f"wmt{edition + 5}/news-commentary-v{edition}": ("en-de",) for edition in range(10, 14)}
    expected |= {f"newstest/newstest{year}": ("en-de", "en-fr") for year in (2012, 2013, 2014)}
    expected["newstest/newstest2009"] = ("en-de",)
    expected |= {f"iwslt14/{split}": ("de-en",) for split in ("train", "dev2010", "dev2012", *TESTS_OF_2014)}
    expected |= {f"iwslt15/{split}": ("en-vi",) for split in ("train", "tst2012", "tst2013")}
    many = ("en-de", "en-fr", "en-it", "en-nl", "en-ro", "it-nl", "it-ro", "nl-ro")
    expected |= {f"iwslt17/{split}": many for split in ("train", "dev2010", "tst2010")}
    expected |= {f"iwslt17/tst{year}": ("en-de", "en-fr") for year in range(2011, 2018)}
    expected["tatoeba/anki"] = ("en-de", "en-fr")
    expected |= {f"opennmt/{split}": ("en-de",) for split in ("train", "val")}
    expected |= {f"treebank/sample{part}": ("en-ptb",) for part in ("", "-train", "-valid", "-test")}
    expected |= {f"shakespeare/{split}": ("und-en",) for split in ("train", "valid")}
    books = {name: entry for name, entry in catalogue().items() if name.startswith("gutenberg/")}
    assert len(books) == 13
    expected |= dict.fromkeys(books, ("und-en",))
    labelled = ("trec/train", "trec/test", "cola/train", "cola/valid", "rte/train", "rte/test")
    labelled += tuple(f"{name}/{split}" for name in ("sst2", "mr") for split in ("train", "valid", "test"))
    expected |= dict.fromkeys(labelled, ("und-en", "und-zxx", "en-zxx"))
    assert {name: entry.language_pairs for name, entry in catalogue().items()} == expected


def test_the_parts_of_the_treebank_sample_are_all_of_its_files_and_no_file_twice(tmp_path: Path) -> None:
    names = [f"treebank/combined/wsj_{number:04d}.mrg" for number in range(1, 200)]
    (tmp_path / "a.zip").write_bytes(zip_of({name: name.encode() for name in names}))
    counts, found = {}, []
    for part in ("train", "valid", "test"):
        source, target = catalogue()[f"treebank/sample-{part}"].texts["en", "ptb"]
        assert (source.member, source.part, target.part) == (target.member, "words", "tree")
        members = [stream.read().decode() for stream in text_streams(tmp_path / "a.zip", source.member or "")]
        counts[part] = len(members)
        found += members
    assert counts == {"train": 159, "valid": 20, "test": 20}
    assert sorted(found) == names


@pytest.mark.parametrize("name", ["wmt14/newstest2014", "wmt14/newstest2014-filtered"])
@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en"), ("en", "fr"), ("fr", "en")])
def test_each_direction_of_newstest2014_has_its_source_and_reference(name: str, source: str, target: str) -> None:
    entry = catalogue()[name]
    members = [text.member or "" for text in entry.texts[source, target]]
    pair = "deen" if "de" in (source, target) else "fren"
    assert [member.partition("/")[2] for member in members] == [
        f"newstest2014-{pair}-src.{source}.sgm",
        f"newstest2014-{pair}-ref.{target}.sgm",
    ]
    assert entry.text_format == "sgm"


MIRROR = os.environ.get("NMTKIT_MIRROR", "")
real_corpora = pytest.mark.skipif(not MIRROR, reason="real corpora: set NMTKIT_MIRROR to a mirror folder")


def open_real(tmp_path: Path, name: str, languages: str) -> Corpus:
    source, target = languages.split("-")
    return open_corpus(name, source, target, Downloader(mirror=Path(MIRROR), cache=tmp_path))


@real_corpora
def test_the_texts_for_language_models_are_whole(tmp_path: Path) -> None:
    names = [name for name in catalogue() if name.startswith(("gutenberg/", "shakespeare/"))]
    lengths = {name: sum(len(line) + 1 for line in open_real(tmp_path, name, "und-en").target.open()) for name in names}
    # Carriage returns are removed. The first part of the plays ends within a line, which gets an end here.
    assert lengths.pop("shakespeare/train") + lengths.pop("shakespeare/valid") == 1_115_394 + 1
    assert sum(lengths.values()) == 6_047_109 - 22_924
    first = next(iter(open_real(tmp_path, "gutenberg/chesterton-thursday", "und-en").target.open()))
    assert first == "[The Man Who Was Thursday by G. K. Chesterton 1908]"


@real_corpora
@pytest.mark.parametrize(
    ("name", "languages", "num_lines"),
    [
        *(
            (f"{prefix}/{split}", languages, num_lines)
            for prefix, pairs in (("multi30k", ["en-de", "en-fr", "de-en"]), ("multi30k-tok", ["en-de", "de-en"]))
            for languages in pairs
            for split, num_lines in (("train", 29000), ("val", 1014), ("test2016", 1000))
        ),
        ("newstest/newstest2009", "en-de", 2525),
        ("newstest/newstest2013", "en-fr", 3000),
        ("newstest/newstest2014", "de-en", 3003),
        ("opennmt/train", "en-de", 10000),
        ("opennmt/val", "en-de", 50),
        ("tatoeba/anki", "en-de", 169197),
        ("treebank/sample", "en-ptb", 3914),
        ("treebank/sample-valid", "en-ptb", 425),
        ("treebank/sample-test", "en-ptb", 363),
    ],
)
def test_the_real_corpora_have_the_lines_they_should(tmp_path: Path, name: str, languages: str, num_lines: int) -> None:
    corpus = open_real(tmp_path, name, languages)
    readers = corpus.source.open(), corpus.target.open()
    blank = sum(not all(pair) for pair in zip(*readers, strict=True))
    assert [reader.num_lines for reader in readers] == [num_lines, num_lines]
    assert blank == (1 if name == "opennmt/train" else 0)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == (
        ["deu-eng.zip.sha256"] if name == "tatoeba/anki" else []
    )


@real_corpora
def test_the_traps_of_real_corpora_stay_in_their_lines(tmp_path: Path) -> None:
    german = open_real(tmp_path, "newstest/newstest2009", "en-de").target
    assert sum(line.count("\u0085") for line in german.open()) == 8
    assert next(n for n, x in enumerate(open_real(tmp_path, "opennmt/train", "en-de").source.open(), 1) if not x) == 5
    anki = open_real(tmp_path, "tatoeba/anki", "en-de")
    spaces = [any(space in side for side in pair for space in "\u00a0\u202f") for pair in pairs_of(anki)]
    assert sum(spaces) == 405


@real_corpora
def test_the_file_of_tatoeba_is_a_table_by_its_columns(tmp_path: Path) -> None:
    place = Path(os.environ["NMTKIT_MIRROR"]) / "www.manythings.org/anki/deu-eng.zip:deu.txt"
    table = local_corpus(place, place, columns=(1, 2))
    assert list(pairs_of(table)) == list(pairs_of(open_real(tmp_path, "tatoeba/anki", "en-de")))


@real_corpora
def test_real_trees_and_their_words_belong_together(tmp_path: Path) -> None:
    pairs = list(pairs_of(open_real(tmp_path, "treebank/sample-test", "en-ptb")))
    trees = [next(read_trees([tree], "the sample")) for _, tree in pairs]
    assert [" ".join(words(tree)) for tree in trees] == [line for line, _ in pairs]
    said = [linearise(tree.children[0]) for tree in trees]  # type: ignore[arg-type]
    assert not any(parsed(line, sequence)[1] for (line, _), sequence in zip(pairs, said, strict=True))


def pairs_of(corpus: Corpus) -> Iterator[tuple[str, str]]:
    return zip(corpus.source.open(), corpus.target.open(), strict=True)
