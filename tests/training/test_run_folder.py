"""Run folders: one writer, recorded settings, stages that go on, and a report in one file."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from full_disk import nearly_full_disk
from PIL import Image

from vinoreward.errors import ConfigError, ModelNotFoundError, RunFolderError
from vinoreward_training.runs.report import (
    Section,
    markdown,
    shown,
    write_report,
)
from vinoreward_training.runs.run_folder import RunFolder, plain
from vinoreward_training.runs.stages import Stages


@dataclass(frozen=True)
class Example:
    out: Path
    sizes: tuple[int, ...] = (1, 2)
    trust_run: bool = True


def recorded(folder: Path) -> str:
    return (folder / "config.yaml").read_text(encoding="utf-8")


def test_the_configuration_is_recorded_as_plain_yaml(tmp_path: Path) -> None:
    """But for what decides how far files are trusted."""
    with RunFolder(tmp_path / "run", Example(Path("a/b"))):
        pass
    assert yaml.safe_load(recorded(tmp_path / "run")) == {"out": "a/b", "sizes": [1, 2]}
    assert plain({1: (Path("a"), [Example(Path("b"))])}) == {
        "1": ["a", [{"out": "b", "sizes": [1, 2], "trust_run": True}]]
    }


def test_a_folder_that_holds_a_run_is_refused_unless_resumed(tmp_path: Path) -> None:
    with RunFolder(tmp_path, {"a": 1}):
        pass
    for _ in range(2):  # a refused folder is free afterwards
        with pytest.raises(ConfigError, match="--resume"), RunFolder(tmp_path, {"a": 2}):
            pass
    assert recorded(tmp_path) == "a: 1\n"
    with RunFolder(tmp_path, {"a": 3}, resume=True):
        pass
    assert recorded(tmp_path) == "a: 3\n"


def test_a_second_writer_is_refused_and_a_death_frees_the_folder(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "mine", {}),
        pytest.raises(RunFolderError, match="in use"),
        RunFolder(tmp_path / "mine", {}, resume=True),
    ):
        pass
    script = (
        "import sys; from vinoreward_training.runs.run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1], {}):\n    print('held', flush=True); sys.stdin.read()"
    )
    words, pipe = [sys.executable, "-c", script, str(tmp_path)], subprocess.PIPE
    other = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert other.stdout is not None and other.stdout.readline().strip() == "held"
    again = RunFolder(tmp_path, {}, resume=True)
    with pytest.raises(RunFolderError, match=f"process {other.pid}"), again:
        pass
    other.kill()
    other.communicate()
    with again:
        pass


def test_a_file_in_place_of_the_folder_is_a_run_folder_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError, match="--out"), RunFolder(tmp_path / "file", {}):
        pass


def test_a_full_disk_is_told_and_the_folder_left_free(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {"a": "b" * 4000})
    with nearly_full_disk(16), pytest.raises(RunFolderError, match="Expected"), folder:
        pass
    with RunFolder(tmp_path, {"a": 1}):
        pass


def test_a_run_that_failed_before_it_wrote_anything_leaves_all_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), RunFolder(tmp_path / "new", {"a": 1}) as folder:
        (folder / "empty").mkdir()
        raise ConfigError("the data cannot be used")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError), RunFolder(tmp_path, {"a": 1}):
        raise ConfigError("mistyped")
    with pytest.raises(ConfigError), RunFolder(tmp_path, {"a": 1}) as folder:
        (folder / "checkpoint").touch()
        raise ConfigError("half way")
    with pytest.raises(ConfigError), RunFolder(tmp_path, {"a": 2}, resume=True):
        raise ConfigError("of something else")
    assert recorded(tmp_path) == "a: 1\n"


# --- the stages of a command that goes on where it was stopped -----------------------------------


NAMES = ["one", "two"]


def test_a_finished_stage_is_skipped_and_its_facts_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def work(name: str) -> dict[str, object]:
        done.append(name)
        if len(done) == 1:
            raise KeyboardInterrupt
        return {"images": 3}

    with pytest.raises(KeyboardInterrupt):  # a stopped stage runs again
        Stages(tmp_path, NAMES).stage("one", lambda: work("one"))
    for _ in range(2):
        stages = Stages(tmp_path, NAMES)
        stages.stage("one", lambda: work("one"))
        stages.stage("two", lambda: work("two"), keep=False)
        assert stages.facts == {"images": 3}
    assert done == ["one", "one", "two", "two"]
    assert "[1/2] one: done before" in capsys.readouterr().out


def test_what_a_stage_says_of_the_next_command_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def speaks() -> dict[str, object]:
        print("3 images\nnext: vinoreward finetune\nthe end", end="")
        return {}

    Stages(tmp_path, NAMES).stage("one", speaks)
    said = capsys.readouterr().out
    assert "3 images\nthe end\n" in said and "next:" not in said


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "one.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"one\.json"):
        Stages(tmp_path, NAMES).stage("one", dict)


# --- the report ----------------------------------------------------------------------------------


def test_report_is_one_file_without_outside_references(tmp_path: Path) -> None:
    image = tmp_path / "curve.png"
    Image.new("RGB", (4, 3)).save(image)
    film = tmp_path / "film.gif"
    Image.new("RGB", (4, 3)).save(film)
    section = Section("S", images=[image, film], captions={"film.gif": "What it <shows>"})
    path = write_report(tmp_path / "report.html", "A run", [section])
    text = path.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', text)
    assert [s.split(";")[0] for s in sources] == ["data:image/png", "data:image/gif"]
    assert "<figcaption>curve.png" in text and "<figcaption>What it &lt;shows&gt;" in text


def test_a_table_has_all_columns(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 0.123456}, {"a": True, "c": None}]
    path = write_report(tmp_path / "r.html", "T", [Section("S", "text", rows)])
    cells = re.findall(r"<t[dh](?: [^>]*)?>(.*?)</t[dh]>", path.read_text(encoding="utf-8"))
    assert cells == ["a", "b", "c", "1", "0.1235", "", "yes", "", "-"]


def test_text_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    path = write_report(tmp_path / "r.html", evil, [Section(evil, evil, [{evil: evil}])])
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (12345.6, "12346"),
        ({"noise": 0.25, "blue": False}, "noise 0.25, blue no"),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_names_from_data_stay_text_in_a_model_card() -> None:
    """A category of a stranger's table may look like a border, or like HTML."""
    name = "<img src='http://there/x.png'> | 0 |"
    card = markdown("mine", "Words.", [Section("Counts", facts={name: 1}, rows=[{"kind": name}])])
    assert "<img" not in card
    assert card.count("&lt;img src='http://there/x.png'> \\| 0 \\|") == 2
    assert "<0.5 %" in markdown("mine", "", [Section("Bound", facts={"rate": "<0.5 %"})])


def test_a_missing_image_and_one_no_browser_shows_are_refused(tmp_path: Path) -> None:
    for name, error in (("gone.png", ModelNotFoundError), ("a.tiff", ConfigError)):
        with pytest.raises(error, match=name):
            write_report(tmp_path / "r.html", "T", [Section("S", images=[tmp_path / name])])
    assert not (tmp_path / "r.html").exists()
