"""A command of several stages goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from vinoreward.errors import RunFolderError
from vinoreward_training.runs.stages import Stages

NAMES = ["one", "two"]


def test_a_finished_stage_is_skipped_and_its_facts_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def work(name: str) -> dict[str, object]:
        done.append(name)
        return {"images": 3}

    for _ in range(2):
        stages = Stages(tmp_path, NAMES)
        stages.stage("one", lambda: work("one"))
        stages.stage("two", lambda: work("two"), keep=False)
        assert stages.facts == {"images": 3}
    assert done == ["one", "two", "two"]
    assert "[1/2] one: done before" in capsys.readouterr().out


def test_a_stopped_stage_runs_again(tmp_path: Path) -> None:
    def stopped() -> dict[str, object]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stages(tmp_path, NAMES).stage("one", stopped)
    assert Stages(tmp_path, NAMES).stage("one", lambda: {"images": 1}) == {"images": 1}


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
