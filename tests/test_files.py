"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from vinoreward.errors import RunFolderError
from vinoreward.files import (
    atomic_path,
    open_plain,
    read_plain,
    write_text,
)


def test_a_block_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_path(path) as part:
        part.write_text("half", encoding="utf-8")
        _ = 1 / 0
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_have_the_rights_the_umask_gives(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644


def test_a_folder_that_cannot_be_written_is_a_run_folder_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError, match="Expected a writable folder"):
        write_text(tmp_path / "file" / "below.txt", "x")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_run_folder_error_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with (
        pytest.raises(RunFolderError, match="previous version"),
        atomic_path(path),
        open("/dev/full", "w", encoding="utf-8") as full,
    ):
        full.write("x")
        full.flush()
    assert path.read_text(encoding="utf-8") == "old"


def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "precious"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("mode", ["wb", "ab", "a+b"])
def test_a_file_is_never_opened_through_a_link(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "mine").write_text("precious", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    for name in ("link", "dangling"):
        with pytest.raises(RunFolderError, match=r"symbolic link.*Expected a file of its own"):
            open_plain(tmp_path / name, mode)
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "precious"
    assert not (tmp_path / "elsewhere").exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunFolderError, match="no plain file"):
        open_plain(tmp_path / "pipe", mode)
    # The folder may be named by a link.
    (tmp_path / "folder").mkdir()
    (tmp_path / "also").symlink_to(tmp_path / "folder")
    for text in (b"longer", b"ab"):
        with open_plain(tmp_path / "also" / "file", mode) as stream:
            stream.write(text)
    found = (tmp_path / "folder" / "file").read_bytes()
    assert found == (b"ab" if mode == "wb" else b"longerab")


def test_only_plain_files_of_bounded_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_plain(tmp_path / "file", 3) == read_plain(str(tmp_path / "link"), 3) == b"abc"
    with pytest.raises(OSError, match="it has 3 bytes, more than 2"):
        read_plain(tmp_path / "file", 2)
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "none", 3)
    os.mkfifo(tmp_path / "pipe")  # nobody is at its other end, or ever will be
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", ".", "file/below", "a" * 5000, "zero\0", "\ud800"):
        with pytest.raises(OSError, match=r"\w"):
            read_plain(tmp_path / name, 3)
    with pytest.raises(OSError, match="no plain file"):
        read_plain("/dev/zero", 3)
