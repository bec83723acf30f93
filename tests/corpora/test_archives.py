"""Archives: members are read where they lie, in every kind of archive, and none can lead anywhere else."""

import bz2
import gzip
import io
import lzma
import random
import re
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from nmtkit import compression
from nmtkit.corpora.archives import is_archive, text_streams
from nmtkit.corpora.corpus import StoredText, local_file, local_text
from nmtkit.corpora.download import CorpusFile
from nmtkit.errors import DataError
from tests.conftest import message_of

TEXT = b"one\nzwei\xc2\x85 \xe2\x80\xa8\n\nlast\n"
LINES = ["one", "zwei\u0085 \u2028", "", "last"]
COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
COMPRESSED = [suffix for suffix in COMPRESS if suffix]


def tar_of(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content) if isinstance(content, bytes) else 0
            archive.addfile(info, io.BytesIO(content if isinstance(content, bytes) else b""))
    return out.getvalue()


def zip_of(members: dict[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return out.getvalue()


def lines_of(place: Path) -> list[str]:
    return list(local_text(place).open())


def fault(place: Path) -> str:
    return message_of(lambda: lines_of(place))


def store(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_zstandard_with_a_long_window_is_read(tmp_path: Path) -> None:
    settings = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=0)
    writer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    assert lines_of(store(tmp_path / "a.en.zst", writer.compress(TEXT) + writer.flush())) == LINES


@pytest.mark.parametrize("inner", COMPRESS)
@pytest.mark.parametrize("outer", [".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst"])
def test_a_member_of_every_kind_of_archive_reads_like_a_file(tmp_path: Path, outer: str, inner: str) -> None:
    members = {"x/other.en": b"wrong\n", f"x/a.en{inner}": COMPRESS[inner](TEXT), "x/a.de": b"eins\n"}
    content = zip_of(members) if outer == ".zip" else tar_of(members)
    compress = COMPRESS[{".zip": "", ".tgz": ".gz"}.get(outer, outer.removeprefix(".tar"))]
    path = store(tmp_path / f"corpus{outer}", compress(content))
    assert is_archive(path.name)
    before = sorted(tmp_path.iterdir())
    assert lines_of(Path(f"{path}:x/a.en{inner}")) == LINES
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_text_of_two_parts_is_read_to_its_end(tmp_path: Path, suffix: str) -> None:
    assert lines_of(store(tmp_path / f"a{suffix}", COMPRESS[suffix](TEXT) + COMPRESS[suffix](TEXT))) == LINES * 2


@pytest.mark.parametrize(("suffix", "padding"), [(".gz", 1), (".gz", 511), (".xz", 4), (".xz", 2048)])
def test_padding_between_and_after_streams_is_no_end(tmp_path: Path, suffix: str, padding: int) -> None:
    part = COMPRESS[suffix](TEXT)
    content = (part + bytes(padding)) * 3
    assert lines_of(store(tmp_path / f"a{suffix}", content)) == LINES * 3


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("garbage", [b"\1", b"garbage", b"garbage" * 1000, b"\0\0\0\0garbage" * 100])
@pytest.mark.parametrize("is_last", [True, False])
def test_garbage_after_a_stream_is_an_error(tmp_path: Path, suffix: str, garbage: bytes, is_last: bool) -> None:
    part = COMPRESS[suffix](TEXT)
    path = store(tmp_path / f"a{suffix}", part + garbage + (b"" if is_last else part))
    assert re.search("damaged or not a|cut short", fault(path))


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("place", range(6))
def test_a_damaged_header_of_a_later_stream_is_an_error(tmp_path: Path, suffix: str, place: int) -> None:
    first, second = (bytearray(COMPRESS[suffix](TEXT)) for _ in range(2))
    if suffix == ".gz" and place in (4, 5):
        place = 2  # 4 to 7 are a time, which may be any
    second[place] ^= 0xFF
    assert re.search("damaged or not a|cut short", fault(store(tmp_path / f"a{suffix}", bytes(first + second))))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_padding_of_xz_has_to_be_a_multiple_of_four(tmp_path: Path, count: int) -> None:
    part = lzma.compress(TEXT)
    for content in (part + bytes(count), part + bytes(count) + part):
        assert f"{count} zero bytes between streams" in fault(store(tmp_path / "a.xz", content))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_of_no_bytes_is_cut_short(tmp_path: Path, suffix: str) -> None:
    assert "cut short after line 0" in fault(store(tmp_path / f"a{suffix}", b""))
    assert lines_of(store(tmp_path / f"a{suffix}", COMPRESS[suffix](b""))) == []


def numbers(count: int = 20_000) -> bytes:
    return b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(count))


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("damage", ["cut", "wrong bytes", "no such file at all"])
def test_a_damaged_compressed_text_is_one_line(tmp_path: Path, suffix: str, damage: str) -> None:
    whole = COMPRESS[suffix](numbers())
    half = len(whole) // 2
    content = {
        "cut": whole[:half],
        "wrong bytes": whole[:half] + bytes(200) + whole[half + 200 :],
        "no such file at all": b"plain text\n" * 100,
    }[damage]
    message = fault(store(tmp_path / f"a.en{suffix}", content))
    assert f"a.en{suffix}: " in message
    assert "cut short" in message if damage == "cut" else "damaged or not a" in message


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tgz", "a.tar.zst", "a.tar.xz"])
@pytest.mark.parametrize("content", [b"", b"<html>no archive</html>" * 100, gzip.compress(b"not a tar" * 100, mtime=0)])
def test_what_is_no_archive_is_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    assert str(tmp_path / name) in fault(Path(f"{store(tmp_path / name, content)}:a.en"))


@pytest.mark.parametrize("evil", ["../evil.en", "/tmp/evil.en", "x/../../evil.en"])
@pytest.mark.parametrize("kind", [".zip", ".tar"])
def test_names_that_lead_out_of_the_folder_lead_nowhere(tmp_path: Path, evil: str, kind: str) -> None:
    members = {evil: b"evil\n", "a.en": TEXT}
    inside = tmp_path / "inside"
    inside.mkdir()
    path = store(inside / f"a{kind}", zip_of(members) if kind == ".zip" else tar_of(members))
    assert lines_of(Path(f"{path}:a.en")) == LINES
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert not Path("/tmp/evil.en").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_link_or_device_in_a_tar_is_no_member(tmp_path: Path, kind: bytes) -> None:
    link = tarfile.TarInfo("a.en")
    link.type = kind
    link.linkname = "/etc/passwd"
    path = store(tmp_path / "a.tar", tar_of({"a.en": link}))
    assert "its member a.en is a link" in fault(Path(f"{path}:a.en"))


def test_a_link_in_a_zip_is_no_member(tmp_path: Path) -> None:
    path = store(tmp_path / "a.zip", zip_of({"a.en": b"/etc/passwd"}, stat.S_IFLNK | 0o777))
    assert "its member a.en is a link" in fault(Path(f"{path}:a.en"))


@pytest.mark.parametrize("name", ["a.gz", "a.xz", "a.bz2", "a.zst", "a.zip:a", "a.tgz:a"])
def test_a_text_that_unfolds_without_end_is_stopped(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "EXPANSION_FREE_BYTES", 1 << 16)
    bomb = b"\n" * (1 << 20)
    file, _, _member = name.partition(":")
    content = {"a.zip": lambda: zip_of({"a": bomb}), "a.tgz": lambda: gzip.compress(tar_of({"a": bomb}))}.get(
        file, lambda: COMPRESS[Path(file).suffix](bomb)
    )()
    store(tmp_path / file, content)
    assert "expands to more than 500 times its size" in fault(tmp_path / name)


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_the_limit_is_that_of_both_layers_of_a_compressed_member(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "EXPANSION_FREE_BYTES", 1 << 16)
    member = {"a.gz": gzip.compress(b"\n" * (1 << 20), 1)}  # expands 228 times
    path = store(tmp_path / name, zip_of(member) if name == "a.zip" else gzip.compress(tar_of({**member})))
    assert "expands to more than 500 times its size" in fault(Path(f"{path}:a.gz"))


def test_a_star_and_a_range_of_digits_read_several_members_in_turn_and_nothing_else_is_special(tmp_path: Path) -> None:
    path = store(
        tmp_path / "a.zip", zip_of({"x/1.mrg": b"a\n", "x/2.mrg": b"b\n", "x/3.txt": b"no\n", "x/[1]?": b"c\n"})
    )
    assert [stream.read() for stream in text_streams(path, "x/*.mrg")] == [b"a\n", b"b\n"]
    assert [stream.read() for stream in text_streams(path, "x/[1]?")] == [b"c\n"]
    assert [stream.read() for stream in text_streams(path, "x/[0-1]*.mrg")] == [b"a\n"]


def test_a_name_given_by_a_user_is_no_pattern_and_may_begin_with_the_folder_itself(tmp_path: Path) -> None:
    members: dict[str, bytes] = {"./a[0-1].en": b"brackets\n", "./a0.en": b"no\n", "./a*.en": b"star\n"}
    for path in (store(tmp_path / "a.zip", zip_of(members)), store(tmp_path / "a.tar", tar_of({**members}))):
        for name, text in (("a[0-1].en", "brackets"), ("./a*.en", "star"), ("a0.en", "no")):
            assert list(local_text(Path(f"{path}:{name}")).open()) == [text]
        assert "the archive has no member *.en" in fault(Path(f"{path}:*.en"))


def test_an_archive_without_the_member_says_what_it_has(tmp_path: Path) -> None:
    members: dict[str, bytes] = {f"{n}": b"" for n in range(7)}
    for path in (store(tmp_path / "a.zip", zip_of(members)), store(tmp_path / "a.tar", tar_of({**members}))):
        message = fault(Path(f"{path}:a.en"))
        assert message.startswith(f"{path}: the archive has no member a.en (it has 0, 1, 2, 3, 4 and 2 more)")
        assert message.endswith("; name one of these")
        download = StoredText(CorpusFile(path, "https://x.y/a", 0, ""), "a.en", "plain", "")
        with pytest.raises(DataError, match=r"damaged or another edition: delete it and fetch it again$"):
            list(download)
        record = path.with_name(f"{path.name}.sha256")
        record.touch()  # that of a download without a published checksum
        with pytest.raises(DataError, match=f"delete it and {record.name} and fetch it again$"):
            list(download)


def test_the_place_of_a_local_text_may_be_in_an_archive(tmp_path: Path) -> None:
    assert local_file(Path("/x/a.zip:y/b.en")) == (Path("/x/a.zip"), "y/b.en")
    assert local_file(Path("/x:y/a.tar.gz:b:c")) == (Path("/x:y/a.tar.gz"), "b:c")
    assert local_file(Path("/x/a:b.en")) == (Path("/x/a:b.en"), None)
    odd = store(tmp_path / "a.zip:b", b"a file of that name\n")
    assert local_file(odd) == (odd, None)


def test_a_name_that_is_no_utf8_and_a_wrong_list_of_holes_are_one_line(tmp_path: Path) -> None:
    content = zip_of({"a.en": TEXT, "\u00fc.en": TEXT}).replace("\u00fc".encode(), b"\xff\xff")
    assert "damaged or cut short" in fault(Path(f"{store(tmp_path / 'a.zip', content)}:a.en"))
    out, info = io.BytesIO(), tarfile.TarInfo("a.en")
    info.pax_headers = {"GNU.sparse.map": "x,y", "GNU.sparse.size": "10"}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    assert "damaged or cut short" in fault(Path(f"{store(tmp_path / 'a.tar', out.getvalue())}:a.en"))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_whatever_is_damaged_in_a_zip_it_is_one_line_or_the_text(tmp_path: Path, method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a.en", numbers(100))
    whole, rng = out.getvalue(), random.Random(method)
    faults = 0
    for _ in range(300):
        damaged = bytearray(whole[rng.randrange(len(whole)) if rng.random() < 0.3 else 0 :])
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        place = Path(f"{store(tmp_path / 'a.zip', bytes(damaged))}:a.en")
        try:
            assert "".join(f"{line}\n" for line in lines_of(place)).encode() == numbers(100)
        except DataError as error:
            faults += 1
            assert str(error).startswith(str(tmp_path / "a.zip"))
            assert "\n" not in str(error)
    assert faults > 100
