"""One writer, a recorded configuration, nothing overwritten."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from full_disk import nearly_full_disk

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward_training.runs.run_folder import RunFolder, plain, refuse_links


@dataclass(frozen=True)
class Example:
    out: Path
    sizes: tuple[int, ...] = (1, 2)


def test_the_configuration_is_recorded_as_plain_yaml(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", Example(Path("a/b"))) as folder:
        text = (folder / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == {"out": "a/b", "sizes": [1, 2]}


def test_a_folder_with_links_out_of_it_is_refused_however_deep(tmp_path: Path) -> None:
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "deep" / "up").symlink_to("../deep")
    (tmp_path / "named").symlink_to(tmp_path / "run")
    for folder in (tmp_path / "run", tmp_path / "named"):
        refuse_links(folder)
    (tmp_path / "run" / "loop").symlink_to("loop")
    with pytest.raises(RunFolderError, match=r"loop is a link to .*loop, out of the folder"):
        refuse_links(tmp_path / "run")
    (tmp_path / "run" / "loop").unlink()
    (tmp_path / "run" / "deep" / "out").symlink_to("../../mine")  # nothing is there yet
    for folder in (tmp_path / "run", tmp_path / "named"):
        with pytest.raises(RunFolderError, match=r"out is a link to .*mine.*remove the link"):
            refuse_links(folder)


def test_a_folder_that_holds_a_run_is_refused_unless_resumed(tmp_path: Path) -> None:
    with RunFolder(tmp_path, {"a": 1}):
        pass
    with pytest.raises(ConfigError, match="--resume"), RunFolder(tmp_path, {"a": 2}):
        pass
    assert "a: 1" in (tmp_path / "config.yaml").read_text(encoding="utf-8")
    with RunFolder(tmp_path, {"a": 3}, resume=True):
        pass
    assert "a: 3" in (tmp_path / "config.yaml").read_text(encoding="utf-8")


def test_a_refused_folder_is_free_afterwards(tmp_path: Path) -> None:
    with RunFolder(tmp_path, {}):
        pass
    with pytest.raises(ConfigError), RunFolder(tmp_path, {}):
        pass
    with RunFolder(tmp_path, {}, resume=True):
        pass


def test_two_writers_in_one_process_are_refused(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path, {}),
        pytest.raises(RunFolderError, match="in use"),
        RunFolder(tmp_path, {}, resume=True),
    ):
        pass


def test_a_writer_in_another_process_is_named_and_its_death_frees_the_folder(
    tmp_path: Path,
) -> None:
    script = (
        "import sys; from vinoreward_training.runs.run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1], {}):\n    print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "held"
    with (
        pytest.raises(RunFolderError, match=f"process {other.pid}"),
        RunFolder(tmp_path, {}, resume=True),
    ):
        pass
    other.kill()
    other.communicate()
    with RunFolder(tmp_path, {}, resume=True):
        pass


def test_a_file_in_place_of_the_folder_is_a_run_folder_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError, match="--out"), RunFolder(tmp_path / "file", {}):
        pass


@pytest.mark.parametrize("bytes_left", [0, 16])
def test_a_full_disk_is_told_and_the_folder_left_free(tmp_path: Path, bytes_left: int) -> None:
    folder = RunFolder(tmp_path, {"a": "b" * 4000})
    with nearly_full_disk(bytes_left), pytest.raises(RunFolderError, match="Expected"), folder:
        pass
    with RunFolder(tmp_path, {"a": 1}):
        pass


def test_plain() -> None:
    assert plain({1: (Path("a"), Example(Path("b")))}) == {
        "1": ["a", {"out": "b", "sizes": [1, 2]}]
    }


def test_a_run_that_failed_before_it_wrote_anything_leaves_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunFolder(tmp_path / "new", {"a": 1}) as folder:
        (folder / "empty").mkdir()
        raise ConfigError("the data cannot be used")
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_that_failed_at_once_keeps_its_settings(tmp_path: Path) -> None:
    with RunFolder(tmp_path, {"a": 1}) as folder:
        (folder / "checkpoint").touch()
    with pytest.raises(ConfigError), RunFolder(tmp_path, {"a": 2}, resume=True):
        raise ConfigError("of something else")
    assert "a: 1" in (tmp_path / "config.yaml").read_text(encoding="utf-8")
    with pytest.raises(ConfigError), RunFolder(tmp_path, {"a": 3}, resume=True):
        (folder / "result").touch()
        raise ConfigError("half way")
    assert "a: 3" in (tmp_path / "config.yaml").read_text(encoding="utf-8")


def test_what_decides_over_files_is_not_recorded(tmp_path: Path) -> None:
    with RunFolder(tmp_path, {"a": 1, "trust_run": True}):
        pass
    assert (tmp_path / "config.yaml").read_text(encoding="utf-8") == "a: 1\n"


def test_a_run_that_failed_before_it_wrote_anything_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunFolder(tmp_path, {"a": 1}):
        raise ConfigError("mistyped")
    with pytest.raises(ConfigError), RunFolder(tmp_path, {"a": 2}) as folder:
        (folder / "result").touch()
        raise ConfigError("half way")
    with pytest.raises(ConfigError, match="--resume"), RunFolder(tmp_path, {"a": 3}):
        pass


@pytest.mark.parametrize("name", [".lock", "logs", "config.yaml"])
def test_a_link_out_of_the_folder_is_refused_and_its_target_kept(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious", encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(mine)
    with (
        pytest.raises(RunFolderError, match=f"{name} is a link to {mine}"),
        RunFolder(tmp_path / "run", {}, resume=True),
    ):
        pass
    assert mine.read_text(encoding="utf-8") == "precious"


def test_the_lock_is_not_taken_through_a_link_within_the_folder(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("precious", encoding="utf-8")
    (tmp_path / ".lock").symlink_to("summary.json")
    with pytest.raises(RunFolderError, match="symbolic link"), RunFolder(tmp_path, {}):
        pass
    assert (tmp_path / "summary.json").read_text(encoding="utf-8") == "precious"
