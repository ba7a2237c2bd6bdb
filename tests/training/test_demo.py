"""The demo from its first image to its report, stopped on the way and continued."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.cli import commands, main
from vinoreward_training.configs import DemoConfig
from vinoreward_training.data.provenance import LEAST_HELD_OUT
from vinoreward_training.demo.command import CAPTURE_SEED, Demo, run, settled
from vinoreward_training.demo.report import STAGES, verdict
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings

TINY = {
    "frames": 360, "epochs": 1, "target_fpr": 0.2, "scenes": 12, "timesteps": 60, "episodes": 2,
}  # fmt: skip
FEWER = """
import sys
from vinoreward_training.cli import commands, main
from vinoreward_training.demo import command
command.QUANTIZE_NEEDS = 20
sys.exit(main(sys.argv[1:]))
"""
"""The program, which takes fewer frames than INT8 is compared on."""


def command(out: Path, **settings: object) -> list[str]:
    words = ["demo", "--out", str(out)]
    for name, value in (TINY | settings).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def stop_when(words: list[str], seen: str, number: int) -> tuple[int, str]:
    """Run a command, send it a signal once its output holds ``seen``; return status and output."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", FEWER, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    ) as process:
        assert process.stdout is not None
        output = b""
        sent = False
        while piece := os.read(process.stdout.fileno(), 65536):
            output += piece
            if not sent and re.search(seen.encode(), output):
                time.sleep(0.2)
                process.send_signal(number)
                sent = True
        status = process.wait()
    return status, output.decode(errors="replace")


@pytest.fixture
def fewer_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too little for a real classifier shows all the same that a stage follows another."""
    monkeypatch.setattr("vinoreward_training.demo.command.QUANTIZE_NEEDS", 20)
    monkeypatch.setitem(LEAST_HELD_OUT, "classifier", 20)


@pytest.mark.slow
def test_the_demo_stopped_in_three_stages_goes_on_and_ends_with_all_it_promises(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fewer_frames: None,
) -> None:
    """The stop of a training of a policy is that of its own tests."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # which the demo would set
    out = tmp_path / "a demo"
    status, text = stop_when(command(out), r"capture: +[1-9]\d*%", signal.SIGKILL)
    assert status == -signal.SIGKILL, text
    before = len(list((out / "data").glob("*/*.png")))
    assert 0 < before < TINY["frames"]

    status, text = stop_when(command(out), r"finetune: +[1-9]\d*%", signal.SIGINT)
    assert status == 130, text
    assert "Continue with: vinoreward demo --out" in text
    assert (out / "stages" / "capture.json").is_file()
    assert not (out / "stages" / "finetune.json").exists()
    assert (out / "classifier" / "checkpoint.pt").is_file()

    with monkeypatch.context() as patch:
        patch.setattr("vinoreward_training.demo.command.train_policy", interrupted)
        assert main(command(out)) == 130
    said = capsys.readouterr().out
    assert "[1/7] capture: done before" in said and "[4/7] check: done before" not in said

    assert main(command(out)) == 0
    said = capsys.readouterr().out
    assert all(f"] {name}: done before" in said for name in list(STAGES)[:4])
    assert "next: " not in said
    demo, page = Demo(tiny(out), out), out / "report.html"
    assert demo.data.joinpath("dataset.json").is_file()
    for path in (demo.policy / "play.gif", demo.policy / "learning_curve.png", page):
        assert path.stat().st_size > 1000
        assert str(path) in said
    report = page.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:)', report)
    for words in ("shipped", "average precision", "panda-hover-classifier"):
        assert words in report
    assert Bundle.load(demo.bundle).spec.name == "demo-classifier"

    # Once more: nothing is repeated but the report.
    assert main(command(out)) == 0
    assert capsys.readouterr().out.count("done before") == len(STAGES) - 1

    recorded = (out / "config.yaml").read_bytes()
    assert main(command(out, seed=5)) == 1
    assert "--seed 5" in capsys.readouterr().err
    assert (out / "config.yaml").read_bytes() == recorded


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def tiny(out: Path, **settings: object) -> DemoConfig:
    return dataclasses.replace(DemoConfig(out=out), **{**TINY, **settings})  # type: ignore[arg-type]


def test_it_starts_from_the_shipped_weights_and_other_images_or_from_scratch() -> None:
    usual, scratch = settled(DemoConfig()), settled(DemoConfig(from_scratch=True))
    shipped = Bundle.load("panda-hover-classifier")
    assert "shipped" in Demo(usual, usual.out).start
    assert shipped.spec.dataset["seed"] < CAPTURE_SEED
    assert (usual.frames, usual.epochs, scratch.frames, scratch.epochs) == (5000, 2, 24_000, 8)
    assert "random weights" in Demo(scratch, scratch.out).start


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("--frames 300", "frames"),
        ("--frames 1000 --target-fpr 0.01", "frames"),
        ("--episodes 0", "episodes"),
        ("--scenes 3", "scenes"),
        ("--seed -1", "seed"),
    ],
)
def test_what_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: str, field: str
) -> None:
    words = [*arguments.split(), "--out", str(tmp_path / "out")]
    with pytest.raises(ConfigError) as error:
        run(Settings(DemoConfig).parse(words, prog="vinoreward demo"))
    assert error.value.field == field
    assert not (tmp_path / "out").exists()


def test_a_demo_of_other_options_is_not_gone_on_with(tmp_path: Path, fewer_frames: None) -> None:
    with RunFolder(tmp_path, tiny(tmp_path)):
        pass
    with pytest.raises(ConfigError) as error:
        run(tiny(tmp_path, episodes=4))
    assert error.value.field == "episodes"


def test_more_and_fewer_mistakes_and_no_difference() -> None:
    right, wrong = np.zeros(40, dtype=np.bool_), np.ones(40, dtype=np.bool_)
    assert "more mistakes" in verdict(right, wrong)
    assert "fewer mistakes" in verdict(wrong, right)
    assert "no difference" in verdict(right, right)


def test_next_commands_name_real_commands_and_survive_a_folder_with_a_space(
    tmp_path: Path,
) -> None:
    demo = Demo(DemoConfig(), tmp_path / "a demo")
    for words, what in demo.next_commands():
        parts = shlex.split(words)
        assert parts[1] in commands()
        assert what
    assert str(demo.bundle) in shlex.split(demo.next_commands()[0][0])
