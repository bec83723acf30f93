"""sacreBLEU's test sets: every one is described, and reads exactly as sacreBLEU itself reads the same files."""

import gzip
import posixpath
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.dataset import DATASETS

from nmtkit.config.corpus_entries import corpus_name
from nmtkit.corpora import sacrebleu_sets
from nmtkit.corpora.archives import is_archive
from nmtkit.corpora.catalogue import CatalogueText
from nmtkit.corpora.corpus import check_corpus, open_corpus
from nmtkit.corpora.download import Downloader, mirror_path
from nmtkit.corpora.http_transfer import RemoteFile
from nmtkit.corpora.sacrebleu_sets import sacrebleu_set, set_names
from nmtkit.errors import DataError
from tests.corpora.test_archives import zip_of
from tests.corpora.test_corpus import write_tar

SGM = (
    '<refset>\n<doc docid="1">\n<p>\n<seg id="1">A &amp; B  \u00a0c\u0085d</seg>\n'
    '<seg id="2"> two\tblanks </seg>\n<seg id="3"></seg>\n</p>\n</doc></refset>\n'
)
XML = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="x">
<doc id="1" origlang="en"><src lang="en"><p><seg id="2">second  one</seg><seg id="1">first &amp; one</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">eins</seg><seg id="2">zwei</seg></p></ref>
<ref lang="de" translator="B"><p><seg id="1">EINS</seg><seg id="2">ZWEI</seg></p></ref></doc>
<doc id="2" origlang="en"><src lang="en"><p><seg id="1">nobody's</seg><seg id="2">B's</seg></p></src>
<ref lang="de" translator="A"><p></p></ref><ref lang="de" translator="B"><p><seg id="2">von B</seg></p></ref></doc>
<doc id="3" origlang="en" testsuite="x"><src lang="en"><p><seg id="1">no</seg></p></src></doc>
</dataset>
"""
CONTENTS = {
    "sacrebleu-sgm": SGM,
    "sacrebleu-plain": "one \u00a0\n two\u2028\n\nlast\u0085\n",
    "tsv": "1\ta\teins \tx\n2\tb\tzwei\ty\n",
    "sacrebleu-xml": XML,
}


def one_reference() -> list[tuple[str, str, str]]:
    return [
        (name, source, target)
        for name in set_names()
        if (entry := sacrebleu_set(name)) is not None
        for source, target in entry.texts
    ]


def test_every_set_of_sacrebleu_is_known_but_for_those_with_several_references() -> None:
    assert set_names() == [f"sacrebleu:{name}" for name in DATASETS]
    several = [name for name in set_names() if not getattr(sacrebleu_set(name), "texts", None)]
    assert several == [
        "sacrebleu:wmt21/AB",
        "sacrebleu:wmt21/AC",
        "sacrebleu:wmt21/dev",
        "sacrebleu:wmt20/tworefs",
        "sacrebleu:wmt17/tworefs",
        "sacrebleu:wmt17/ms",
        "sacrebleu:wmt16/tworefs",
    ]


def test_every_text_of_every_set_lies_in_one_of_its_files() -> None:
    for name, source, target in one_reference():
        entry = sacrebleu_set(name)
        assert entry is not None
        for text in entry.texts[source, target]:
            assert text.file.md5 is not None
            assert (text.member is not None) == is_archive(text.file.url)


def pack(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        path.write_bytes(zip_of(members))
    else:
        write_tar(path, members)


def as_sacrebleu_reads(name: str, pair: str, texts: tuple[CatalogueText, ...], folder: Path) -> list[list[str]]:
    """Source and reference by sacreBLEU's own code, from the same contents unpacked where it expects them."""
    kind = type(DATASETS[name])
    dataset: Any = kind(**{key: getattr(DATASETS[name], key) for key in ("name", "data", "md5", "langpairs")})
    dataset.kwargs = DATASETS[name].kwargs
    dataset._outdir, dataset._rawdir = str(folder), str(folder / "raw")
    dataset.maybe_download = lambda: None
    for text in texts:
        raw = text.member or f"{name.replace('/', '_')}.{posixpath.basename(text.file.url)}"
        path = folder / "raw" / raw
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of(text))
    files = [dataset.get_source_file(pair), *dataset.get_reference_files(pair)]
    return [Path(file).read_text(encoding="utf-8").split("\n")[:-1] for file in files]


def content_of(text: CatalogueText) -> bytes:
    content = CONTENTS[text.text_format].encode()
    return gzip.compress(content, mtime=0) if (text.member or text.file.url).endswith(".gz") else content


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("wmt14/full", "en-de"),
        ("wmt13", "de-en"),
        ("iwslt17", "en-fr"),
        ("mtedx/test", "el-en"),
        ("wmt20/robust/set1", "en-ja"),
        ("multi30k/2018", "en-de"),
        ("mtnt2019", "en-fr"),
        ("mtnt1.1/valid", "en-fr"),
        ("wmt19/google/ar", "en-de"),
        ("wmt21", "en-de"),
        ("wmt21/B", "cs-en"),
    ],
)
def test_a_set_reads_as_sacrebleu_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, pair: str
) -> None:
    source, target = pair.split("-")
    entry = sacrebleu_set(f"sacrebleu:{name}")
    assert entry is not None
    texts = entry.texts[source, target]
    for file in entry.files(source, target):
        contents = {text.member: content_of(text) for text in texts if text.file == file}
        path = tmp_path / "mirror" / mirror_path(file.url)
        if is_archive(file.url):
            pack(path, {str(member): content for member, content in contents.items()})
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(next(iter(contents.values())))
    without_checksums(monkeypatch)
    corpus = open_corpus(f"sacrebleu:{name}", source, target, Downloader(tmp_path / "mirror", tmp_path / "cache"))
    ours = [list(side.open()) for side in (corpus.source, corpus.target)]
    assert ours == as_sacrebleu_reads(name, pair, texts, tmp_path / "sacrebleu")
    assert len(ours[0]) >= 2


def without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a test are not those that sacreBLEU has checksums of."""
    monkeypatch.setattr(sacrebleu_sets, "RemoteFile", lambda url, md5=None: RemoteFile(url))
    sacrebleu_set.cache_clear()


@pytest.fixture(autouse=True)
def fresh_sets() -> Any:
    yield
    sacrebleu_set.cache_clear()


def test_an_unknown_set_or_direction_is_answered_with_those_there_are() -> None:
    with pytest.raises(DataError, match=r'unknown sacreBLEU test set "sacrebleu:wmt14/ful".* "sacrebleu:wmt14/full"'):
        check_corpus("sacrebleu:wmt14/ful", "en", "de")
    with pytest.raises(DataError, match="has no de-fr; it has cs-en, en-cs, de-en, en-de"):
        check_corpus("sacrebleu:wmt14/full", "de", "fr")
    with pytest.raises(DataError, match="no direction with one reference"):
        check_corpus("sacrebleu:wmt20/tworefs", "de", "en")


def test_a_set_in_a_recipe_is_named_by_what_follows_the_last_slash() -> None:
    assert corpus_name("sacrebleu:wmt14/full") == "full"
    assert corpus_name("sacrebleu:wmt14") == "wmt14"
