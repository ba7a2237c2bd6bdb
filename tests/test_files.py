"""Files are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from vinoreward.errors import RunFolderError
from vinoreward.files import atomic_path, sha256, write_bytes, write_json, write_text


def test_a_block_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_path(path) as part:
        part.write_text("half", encoding="utf-8")
        _ = 1 / 0
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_file_keeps_the_suffix_and_lies_beside(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a.png") as part:
        assert part.suffix == ".png"
        assert part.parent == tmp_path
        part.write_bytes(b"x")
    assert (tmp_path / "a.png").read_bytes() == b"x"


def test_folders_are_made(tmp_path: Path) -> None:
    write_bytes(tmp_path / "deep" / "er" / "a.bin", b"1")
    assert (tmp_path / "deep" / "er" / "a.bin").read_bytes() == b"1"


def test_files_have_the_rights_the_umask_gives(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644


def test_json_refuses_nan_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"ü": [1]})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    assert json.loads(path.read_text(encoding="utf-8")) == {"ü": [1]}


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


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 1000)
    assert sha256(tmp_path / "a") == hashlib.sha256(b"abc" * 1000).hexdigest()
