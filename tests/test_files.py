"""Files and folders: never half-written, and every fault names the path."""

import errno
import gzip
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nmtkit import files
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import (
    TEMPORARY_MARK,
    as_text,
    check_space,
    content_of,
    is_stream,
    open_plain,
    optional_write,
    remove_folder,
    remove_leftovers,
    sha256_of,
    sha256_of_files,
    write_atomically,
    write_bytes_atomically,
    write_folder_atomically,
)
from nmtkit.lines import read_lines, write_lines
from tests.conftest import keep_used_files


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(program: str, *arguments: Path) -> None:
    """Runs a program that kills itself."""
    begin = "import os, signal, sys\nfrom pathlib import Path\nfrom nmtkit import files\nfrom nmtkit.files import *\n"
    ended = subprocess.run([sys.executable, "-c", begin + program, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL


class TestAtomicWrites:
    def folder_with(self, path: Path, text: str) -> Path:
        with write_folder_atomically(path) as temporary:
            (temporary / "file").write_text(text)
        return path

    @pytest.mark.parametrize("name", ["text", "text.gz"])
    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
    @pytest.mark.parametrize("existed", [True, False])
    def test_an_interrupted_write_leaves_what_was_there_and_nothing_else(
        self, tmp_path: Path, name: str, error: type[BaseException], existed: bool
    ) -> None:
        path = tmp_path / name
        if existed:
            write_lines(path, ["old"])
        before = {entry: (tmp_path / entry).read_bytes() for entry in names_in(tmp_path)}
        with pytest.raises(error), write_atomically(path) as file:
            file.write("new\n" * 100_000)
            raise error
        assert {entry: (tmp_path / entry).read_bytes() for entry in names_in(tmp_path)} == before
        assert len(before) == existed

    def test_a_file_appears_only_when_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "text"
        with write_atomically(path) as file:
            file.write("all\n")
            file.flush()
            assert not path.exists()
        assert (path.read_text(), names_in(path.parent)) == ("all\n", ["text"])

    @pytest.mark.parametrize("mode", [0o600, 0o444, 0o755])
    def test_a_replaced_file_keeps_its_permissions(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "text"
        path.touch(mode)
        path.chmod(mode)
        write_lines(path, ["new"])
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new\n", mode)

    def test_a_file_is_synced_before_it_gets_its_name_and_its_folder_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "text"
        synced: list[tuple[bool, int | None]] = []

        def record(descriptor: int) -> None:
            state = os.fstat(descriptor)
            synced.append((path.exists(), None if stat.S_ISDIR(state.st_mode) else state.st_size))

        monkeypatch.setattr(files.os, "fsync", record)
        write_lines(path, ["all"])
        assert synced == [(False, len("all\n")), (True, None)]

    @pytest.mark.parametrize("name", ["n" * 240, "n" * 255])
    def test_a_name_may_be_as_long_as_a_file_system_takes(self, tmp_path: Path, name: str) -> None:
        for text in ("old", "new"):
            write_lines(tmp_path / name, [text])
            with write_folder_atomically(tmp_path / "folder" / name) as temporary:
                (temporary / text).write_text(text)
        assert (tmp_path / name).read_text() == "new\n"
        assert names_in(tmp_path / "folder") == [name]
        assert names_in(tmp_path / "folder" / name) == ["new"]

    def test_leftovers_of_a_long_name_are_found_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / ("n" * 240)
        left = files._temporary(path)
        left.write_text("half")
        monkeypatch.setattr(files, "_is_in_use", lambda entry: False)
        write_lines(path, ["whole"])
        assert names_in(tmp_path) == [path.name]

    def test_errors_name_the_file_and_not_a_temporary_one(self, tmp_path: Path) -> None:
        with pytest.raises(OSError) as caught, write_atomically(tmp_path / ("n" * 256)) as file:
            file.write("text")
        assert caught.value.filename == str(tmp_path / ("n" * 256))
        with pytest.raises(FileNotFoundError) as missing, write_folder_atomically(tmp_path / "folder") as temporary:
            (temporary / "inner" / "file").write_text("text")
        assert missing.value.filename == str(tmp_path / "folder" / "inner" / "file")
        with (
            pytest.raises(NmtkitError, match=rf"^{tmp_path}/folder/file: damaged$"),
            write_folder_atomically(tmp_path / "folder") as temporary,
        ):
            raise NmtkitError(f"{temporary / 'file'}: damaged")
        with pytest.raises(FileNotFoundError) as other, write_folder_atomically(tmp_path / "folder"):
            (tmp_path / "elsewhere").read_text()
        assert other.value.filename == str(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="full") as unnamed, write_folder_atomically(tmp_path / "folder"):
            raise OSError(errno.ENOSPC, "full")
        assert unnamed.value.filename == str(tmp_path / "folder")

    def test_an_open_file_is_written_on_and_a_pipe_is_written_to(self, tmp_path: Path) -> None:
        with (tmp_path / "log").open("wb", buffering=0) as file:
            file.write(b"before\n")
            write_lines(Path(f"/dev/fd/{file.fileno()}"), ["text"])
            file.write(b"after\n")
        assert (tmp_path / "log").read_text() == "before\ntext\nafter\n"
        reader, writer = os.pipe()
        write_lines(Path(f"/proc/self/fd/{writer}"), ["text"])
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert pipe.read() == b"text\n"
        assert not is_stream(Path("/dev/fd/99999999999999999999"))
        assert names_in(tmp_path) == ["log"]

    def test_equal_text_gives_equal_compressed_bytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_lines(tmp_path / "a.gz", ["text"])
        monkeypatch.setattr("time.time", lambda: 2e9)
        write_lines(tmp_path / "b.gz", ["text"])
        assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()

    def test_bytes_are_written_as_they_are(self, tmp_path: Path) -> None:
        with write_bytes_atomically(tmp_path / "bytes.gz") as file:
            file.write(b"\x00\r\n\xff")
        assert (tmp_path / "bytes.gz").read_bytes() == b"\x00\r\n\xff"

    def test_a_folder_replaces_the_old_one_as_a_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "folder"
        for generation in ("old", "new"):
            with write_folder_atomically(path) as temporary:
                (temporary / "inner").mkdir()
                (temporary / "inner" / generation).write_text(generation)
                assert not (path / "inner" / generation).exists()
        assert names_in(tmp_path) == ["folder"]
        assert names_in(path / "inner") == ["new"]

    @pytest.mark.parametrize("error", [ValueError, SystemExit])
    def test_an_interrupted_folder_leaves_the_old_one(self, tmp_path: Path, error: type[BaseException]) -> None:
        path = self.folder_with(tmp_path / "folder", "old")
        with pytest.raises(error), write_folder_atomically(path) as temporary:
            (temporary / "file").write_text("new")
            raise error
        assert names_in(tmp_path) == ["folder"]
        assert (path / "file").read_text() == "old"

    def test_every_file_of_a_folder_is_synced_before_it_gets_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "folder"
        early: set[int] = set()

        def record(descriptor: int) -> None:
            if not path.exists():
                early.add(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(files.os, "fsync", record)
        with write_folder_atomically(path) as temporary:
            (temporary / "inner").mkdir()
            (temporary / "inner" / "one").write_text("1")
            (temporary / "two").write_text("2")
        assert early == {entry.stat().st_ino for entry in (path, *path.rglob("*"))}
        assert len(early) == 4

    @pytest.mark.parametrize("make", ["os.symlink('nowhere', path)", "os.mkfifo(path)"])
    def test_a_dangling_link_or_a_pipe_in_a_folder_is_no_hindrance(self, tmp_path: Path, make: str) -> None:
        program = (
            "import os, sys\nfrom pathlib import Path\nfrom nmtkit.files import write_folder_atomically\n"
            f"with write_folder_atomically(Path(sys.argv[1])) as temporary:\n    path = temporary / 'it'\n    {make}\n"
        )
        subprocess.run([sys.executable, "-c", program, tmp_path / "folder"], check=True, timeout=60)
        assert names_in(tmp_path / "folder") == ["it"]

    @pytest.mark.parametrize("target", [".", ".."])
    def test_the_current_folder_is_not_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
    ) -> None:
        folder = tmp_path / "around" / "current"
        folder.mkdir(parents=True)
        (folder / "mine").write_text("old")
        monkeypatch.chdir(folder)
        told = "the current folder would be replaced"
        with pytest.raises(DataError, match=told), write_folder_atomically(Path(target)) as temporary:
            (temporary / "file").write_text("new")
        assert (folder / "mine").read_text() == "old"
        assert names_in(tmp_path / "around") == ["current"]

    def test_a_folder_is_replaced_also_when_the_current_one_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with write_folder_atomically(tmp_path / "folder") as temporary:
            (temporary / "file").write_text("new")
        assert names_in(tmp_path / "folder") == ["file"]

    def test_what_a_killed_process_left_is_found_and_removed(self, tmp_path: Path) -> None:
        write_lines(tmp_path / "text", ["old"])
        killed(
            "with write_folder_atomically(Path(sys.argv[1], 'folder')) as folder:\n"
            "    (folder / 'half').write_text('half')\n"
            "    with write_atomically(Path(sys.argv[1], 'text')) as file:\n"
            "        file.write('half')\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n",
            tmp_path,
        )
        assert len(names_in(tmp_path)) == 3
        removed = remove_leftovers(tmp_path)
        assert len(removed) == 2
        assert all(TEMPORARY_MARK in path.name for path in removed)
        assert names_in(tmp_path) == ["text"]
        assert read_lines(tmp_path / "text") == ["old"]

    def test_an_old_folder_is_there_until_the_new_one_takes_its_place_in_one_step(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = self.folder_with(tmp_path / "folder", "old")
        (tmp_path / "probe").mkdir()
        if not files.exchange(path, tmp_path / "probe"):
            pytest.skip("this file system cannot swap two names")
        files.exchange(path, tmp_path / "probe")
        (tmp_path / "probe").rmdir()
        monkeypatch.setattr(Path, "rename", lambda *names: pytest.fail("the folder is gone for a moment"))
        self.folder_with(path, "new")
        assert names_in(tmp_path) == ["folder"]
        assert (path / "file").read_text() == "new"

    @pytest.mark.parametrize("way_back", ["the next start", "the next write"])
    def test_where_names_cannot_be_swapped_a_kill_between_two_renames_loses_nothing(
        self, tmp_path: Path, way_back: str
    ) -> None:
        path = self.folder_with(tmp_path / "folder", "old")
        killed(
            "files.exchange = lambda one, other: False\n"
            "rename, names = Path.rename, []\n"
            "def killed(old, new):\n"
            "    names.append(new)\n"
            "    if len(names) == 2:\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return rename(old, new)\n"
            "Path.rename = killed\n"
            "with files.write_folder_atomically(Path(sys.argv[1])) as folder:\n"
            "    (folder / 'file').write_text('new')\n",
            path,
        )
        assert not path.exists()
        if way_back == "the next start":
            assert len(remove_leftovers(tmp_path)) == 1
        else:
            with pytest.raises(ValueError, match="stop"), write_folder_atomically(path):
                raise ValueError("stop")
        assert names_in(tmp_path) == ["folder"]
        assert (path / "file").read_text() == "old"

    def test_a_folder_that_cannot_be_renamed_is_replaced_and_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the image of a container, overlayfs refuses to rename folders."""
        path, rename = tmp_path / "model", Path.rename

        def refusing(source: Path, target: Path) -> Path:
            if source == path:
                raise OSError(errno.EXDEV, "Invalid cross-device link", str(source))
            return rename(source, target)

        monkeypatch.setattr(Path, "rename", refusing)
        monkeypatch.setattr(files, "exchange", lambda one, other: False)
        path.mkdir()
        (path / "old").touch()
        with write_folder_atomically(path) as folder:
            (folder / "new").touch()
        assert [entry.name for entry in path.iterdir()] == ["new"]
        remove_folder(path)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_synced_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced, fsync = [], os.fsync

        def refusing(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                synced.append(descriptor)
                raise OSError(errno.EINVAL, "Invalid argument")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", refusing)
        with write_folder_atomically(tmp_path / "model") as folder:
            (folder / "weights").write_text("1")
        assert (tmp_path / "model" / "weights").read_text() == "1"
        assert synced

    def test_a_mount_point_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def busy(source: Path, target: Path) -> Path:
            raise OSError(errno.EBUSY, "Device or resource busy", str(source))

        monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "out")
        monkeypatch.setattr(Path, "replace", busy)
        for write, remedy in ((write_folder_atomically, "a folder inside of it"), (write_atomically, "another file")):
            told = f"out: is a mount point, which cannot be replaced; name {remedy}"
            with pytest.raises(DataError, match=told), write(tmp_path / "out"):  # type: ignore[operator]
                assert write is write_atomically, "found before the work"
        assert list(tmp_path.iterdir()) == []

    def test_what_may_not_be_written_is_a_warning_and_other_errors_are_errors(
        self, tmp_path: Path, logged: pytest.LogCaptureFixture
    ) -> None:
        with optional_write(tmp_path / "scores.json"):
            raise OSError(errno.EROFS, "Read-only file system")
        assert logged.messages == [f"{tmp_path / 'scores.json'} is not written: Read-only file system"]
        with pytest.raises(OSError, match="No space"), optional_write(tmp_path / "scores.json"):
            raise OSError(errno.ENOSPC, "No space left on device")

    def test_a_folder_that_was_being_removed_does_not_come_back(self, tmp_path: Path) -> None:
        gone = tmp_path / f".folder{TEMPORARY_MARK}{platform.node()}-999999999-gone"
        gone.mkdir()
        assert remove_leftovers(tmp_path) == [gone]
        assert names_in(tmp_path) == []

    def test_of_a_link_to_a_folder_only_the_link_is_removed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "link").symlink_to("elsewhere")
        remove_folder(tmp_path / "link")
        assert names_in(tmp_path) == ["elsewhere"]

    def test_what_a_running_process_writes_stays_unless_the_folder_is_ours(self, tmp_path: Path) -> None:
        running = tmp_path / f".folder{TEMPORARY_MARK}{platform.node()}-{os.getppid()}"
        elsewhere = tmp_path / f".folder{TEMPORARY_MARK}no-host-12"
        long_gone = tmp_path / f".folder{TEMPORARY_MARK}no-host-13"
        for folder in (running, elsewhere, long_gone):
            folder.mkdir()
        os.utime(long_gone, (0, 0))
        assert remove_leftovers(tmp_path) == []
        self.folder_with(tmp_path / "folder", "new")
        assert not long_gone.exists()
        assert remove_leftovers(tmp_path, is_ours=True) == sorted([running, elsewhere])

    @pytest.mark.parametrize("way", ["removed", "swapped", "replaced in two steps", "left by a killed process"])
    def test_a_folder_whose_files_are_in_use_on_nfs_goes_and_its_remains_at_the_next_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        path = self.folder_with(tmp_path / "folder", "old")
        used = [(path / "file").stat().st_ino]
        keep_used_files(monkeypatch, used.__contains__)
        if way == "replaced in two steps":
            monkeypatch.setattr(files, "exchange", lambda one, other: False)
        if way == "removed":
            remove_folder(path)
        elif way == "left by a killed process":
            path.rename(tmp_path / f".folder{TEMPORARY_MARK}{platform.node()}-999999999")
            assert remove_leftovers(tmp_path) == []
        else:
            self.folder_with(path, "new")
            assert names_in(path) == ["file"]
            assert (path / "file").read_text() == "new"
            path.rename(tmp_path / "moved")  # then a folder to be restored would come back
        [left] = tmp_path.glob(f".folder{TEMPORARY_MARK}*")
        assert names_in(left) == [f".nfs{used.pop()}"]
        assert remove_leftovers(tmp_path, is_ours=True) == [left]
        assert not path.exists()

    def test_a_folder_that_may_not_be_removed_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*names: object, **options: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        path = self.folder_with(tmp_path / "folder", "old")
        monkeypatch.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            remove_folder(path)

    def test_too_little_space_is_told_with_what_is_needed_and_what_is_free(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free = shutil.disk_usage(tmp_path).free
        assert abs(files.free_bytes(tmp_path) - free) < 0.5 * free
        check_space(tmp_path, 1000, "saving")
        monkeypatch.setattr(files, "free_bytes", lambda folder: 2_500_000)
        with pytest.raises(NmtkitError, match=r"saving needs 30.0 MB, but only 2.5 MB are free there; make room"):
            check_space(tmp_path, 30_000_000, "saving")

    def test_there_are_no_leftovers_in_a_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        assert remove_leftovers(tmp_path / "missing") == []


class TestChecksums:
    def test_sums_are_those_of_the_bytes_on_disk(self, tmp_path: Path) -> None:
        (tmp_path / "inner").mkdir()
        contents = {"a.gz": gzip.compress(b"a"), "inner/b": b"b" * 100_000, "inner/empty": b""}
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        expected = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        assert sha256_of_files(tmp_path) == expected
        assert sha256_of(tmp_path / "a.gz") == expected["a.gz"]

    def test_the_sum_of_a_missing_file_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="missing: no such file"):
            sha256_of(tmp_path / "missing")
        with pytest.raises(DataError, match="is a folder"):
            open_plain(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2", ".zst"])
def test_a_file_is_written_in_the_form_that_its_name_says(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text.de{suffix}"
    for _ in range(2):
        with write_atomically(path) as file:
            file.writelines(f"Häuser {number}\n" for number in range(1000))
    assert read_lines(path) == [f"Häuser {number}" for number in range(1000)]
    assert (path.read_bytes()[:6] == "Häuse".encode()) is (suffix == "")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_that_never_ends_is_refused_and_an_empty_one_is_read(device: str) -> None:
    with pytest.raises(DataError, match=f"{device}: a device"):
        read_lines(Path(device))
    assert read_lines(Path("/dev/null")) == []


def test_an_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text.en"
    path.symlink_to("/proc/self/mem")  # of which the first page cannot be read
    for read in (read_lines, content_of, sha256_of):
        with pytest.raises(OSError) as caught:
            read(path)
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(DataError, match=r"cannot be read \(embedded null byte"):
        open_plain(Path("a\0b"))


def test_a_name_that_is_no_text_becomes_one() -> None:
    assert as_text(Path("grün")) == "grün"
    assert as_text("q\udcff").encode("utf-8") == b"q\\udcff"
