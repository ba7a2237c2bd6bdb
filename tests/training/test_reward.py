"""``vinoreward reward``: from an environment, or photographs, to a reward that was tested."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import reach_dot
from image_folders import write_dots, write_folder

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.cli import main
from vinoreward_training.reward.command import SETTINGS

USELESS = 3
STAGES = ("pilot", "capture", "finetune", "audit", "train", "mend")


def _program(printed: str) -> str:
    """The lines of Python at the end of what the command printed."""
    lines = printed.split("report: ")[-1].split("\n", 1)[1].split("\nnext: ")[0]
    assert "import" in lines
    return lines


@pytest.mark.full
def test_an_environment_of_somebody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reward", "--env", "reach_dot:ReachDot-v0", "--minutes", "1", "--out", "dot"]
    support = str(Path(reach_dot.__file__).parent)
    started = "from vinoreward_training.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", started, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([support, *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[3/7] finetune"):
                process.send_signal(signal.SIGINT)
                break
        process.stdout.read()
    assert process.returncode == 130

    assert main(["reward", "--resume", "--out", "dot", "--trust-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("done before") == 2  # the pilot and the capture
    report = Path("dot/report.html").read_text(encoding="utf-8")
    for fact in ("verdict on held-out images", "audit", "training: claimed", "training: true"):
        assert fact in report
    assert Bundle.load("dot/bundle").spec.metrics["verdict"]["level"] != "useless"
    exec(_program(printed), {})
    assert float(capsys.readouterr().out) in (0.0, 1.0)

    assert main(["reward", "--resume", "--out", "dot", "--trust-run"]) == 0
    assert capsys.readouterr().out.count("done before") == len(STAGES)


@pytest.mark.full
def test_photographs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("photos"), 240)
    assert main(["reward", "--data", "photos", "--minutes", "1", "--out", "red"]) == 0
    exec(_program(capsys.readouterr().out), {})
    assert len(capsys.readouterr().out.splitlines()) == 240


@pytest.mark.full
def test_photographs_that_show_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chance"
    data = write_dots(tmp_path / "photos", 200, told=False)
    assert main(["reward", "--data", str(data), "--minutes", "1", "--out", str(out)]) == USELESS
    printed = capsys.readouterr().out
    assert "no reward:" in printed and "try:" in printed
    assert not (out / "bundle").exists()
    assert (out / "report.html").is_file()


def test_photographs_are_not_played(tmp_path: Path) -> None:
    words = ["--data", str(tmp_path), "--policy", "play.py:act"]
    with pytest.raises(ConfigError) as caught:
        SETTINGS.parse(words, prog="vinoreward reward")
    assert caught.value.field == "policy"
