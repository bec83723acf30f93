"""Corpora of OPUS by name: a zip of two texts for both directions, its checksum recorded at the first download."""

import zipfile
from pathlib import Path

import pytest

from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.corpus import describe_missing, find_entry, open_corpus
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.opus import KNOWN
from nmtkit.data.prepare import prepare
from nmtkit.data.shards import PairData
from nmtkit.errors import DataError
from tests.conftest import message_of, run_command

NAME = "opus/News-Commentary-v16:en-de"
PLACE = Path("object.pouta.csc.fi/OPUS-News-Commentary/v16/moses/de-en.txt.zip")


def write_zip(folder: Path, num_lines: int = 40) -> Path:
    path = folder / PLACE
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README", "about")
        for code in ("de", "en"):
            lines = "".join(f"{code}{number} {code}{number % 7}\n" for number in range(num_lines))
            archive.writestr(f"News-Commentary.de-en.{code}", lines)
    return path


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    write_zip(tmp_path / "mirror")
    return tmp_path / "mirror"


def test_both_directions_and_both_orders_of_the_name_are_the_same_zip(mirror: Path) -> None:
    for name in (NAME, "opus/News-Commentary-v16:de-en"):
        for source, target in (("en", "de"), ("de", "en")):
            corpus = open_corpus(name, source, target, Downloader(mirror, cache=mirror))
            assert list(corpus.source.open())[1] == f"{source}1 {source}1"
            assert list(corpus.target.open())[1] == f"{target}1 {target}1"
            assert [file.path for file in corpus.files] == [mirror / PLACE]
    with pytest.raises(DataError, match="has no en-fr; it has en-de, in both directions"):
        open_corpus(NAME, "en", "fr", Downloader(mirror))


def test_a_recipe_is_prepared_from_it_and_another_file_later_is_an_error_with_a_remedy(
    mirror: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    languages = '[data]\nsource_language = "en"\ntarget_language = "de"\nsubwords = "none"\nvocab_size = 100\n'
    recipe.write_text(f'{languages}train = ["{NAME}"]\n', encoding="utf-8")
    prepare(load_recipe(str(recipe)), tmp_path / "run", mirror=mirror, workers=1)
    assert len(PairData(tmp_path / "run" / "data" / "train")) == 40
    record = tmp_path / "cache" / f"{PLACE}.sha256"
    assert record.is_file()
    write_zip(mirror, 41)
    message = message_of(lambda: prepare(load_recipe(str(recipe)), tmp_path / "again", mirror=mirror, workers=1))
    assert f"if that copy was damaged, or the publisher has renewed it, delete {record} to take this one" in message
    assert not (tmp_path / "again" / "data").exists()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("opus/Tatoeba-v2023-04-12:fi-en", "OPUS-Tatoeba/v2023-04-12/moses/en-fi.txt.zip"),
        ("opus/JRC-Acquis-v3.0:de-bg", "OPUS-JRC-Acquis/v3.0/moses/bg-de.txt.zip"),
        ("opus/Some_Corpus.2-v1:zh_CN-en", "OPUS-Some_Corpus.2/v1/moses/en-zh_CN.txt.zip"),
    ],
)
def test_any_corpus_version_and_pair_has_its_address(name: str, url: str) -> None:
    entry = find_entry(name)
    assert entry is not None
    [file] = entry.files(*next(iter(entry.texts)))
    assert file.url == f"https://object.pouta.csc.fi/{url}"
    assert "OPUS" in entry.licence


@pytest.mark.parametrize("name", ["opus/Boks-v1", "opus/Books:en-fr", "opus/Books-v1:en-en", "opus/Books-v1:english-f"])
def test_a_name_of_another_form_is_refused_with_near_names(name: str) -> None:
    assert find_entry(name) is None
    message = describe_missing(name)
    assert message.startswith(f'"{name}": corpora of OPUS are written opus/CORPUS-VERSION:xx-yy')
    assert "opus/Books-v1:xx-yy" in message


def test_a_misspelled_corpus_is_warned_of_and_an_unknown_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    find_entry("opus/News-Comentary-v16:cs-en")
    assert "did you mean News-Commentary?" in caplog.text
    caplog.clear()
    find_entry("opus/EuroPat-v3:de-en")
    find_entry("opus/Tatoeba-v2022-03-03:cs-en")
    assert not caplog.text


def test_the_list_of_corpora_shows_the_form_of_the_name() -> None:
    listed = run_command("corpora", "--languages", "en-de")
    assert all(f"opus/{known}:en-de" in listed.out for known in KNOWN)
    assert "any opus/CORPUS-VERSION:xx-yy" in " ".join(listed.out.split())
    one = run_command("corpora", "opus/Books-v1:fr-en")
    assert "https://object.pouta.csc.fi/OPUS-Books/v1/moses/en-fr.txt.zip" in one.out
