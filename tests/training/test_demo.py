"""The demo from its first image to its report, stopped on the way and continued."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.configs import DemoConfig
from vinoreward_training.demo.command import CAPTURE_SEED, Demo, Sizes, run
from vinoreward_training.demo.report import STAGES, verdict
from vinoreward_training.runs.run_folder import RunFolder

TINY = Sizes(frames=360, epochs=1, target_fpr=0.2, scenes=12, timesteps=60, episodes=2)
PROGRAM = """
import sys
from pathlib import Path
from vinoreward_training.configs import DemoConfig
from vinoreward_training.demo.command import Sizes, run
run(DemoConfig(out=Path(sys.argv[1])), Sizes(frames=360, epochs=1, target_fpr=0.2))
"""


def killed_in_finetune(out: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-uc", PROGRAM, str(out)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "finetune …" in line:
                process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_demo_that_was_killed_goes_on_and_ends_with_all_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # which the demo would set
    config = DemoConfig(out=tmp_path / "a demo")
    killed_in_finetune(config.out)
    assert run(config, TINY) == 0
    said = capsys.readouterr().out
    assert "[1/6] capture: done before" in said and "finetune: done before" not in said
    assert "next: " not in said
    demo, page = Demo(config, TINY), config.out / "report.html"
    for path in (demo.policy / "play.gif", demo.policy / "learning_curve.png", page):
        assert path.stat().st_size > 1000
        assert str(path) in said
    report = page.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:)', report)
    assert "average precision" in report and "panda-hover-classifier" in report
    assert Bundle.load(demo.bundle).spec.name == "demo-classifier"

    # Once more: nothing is repeated but the report.
    assert run(config, TINY) == 0
    assert capsys.readouterr().out.count("done before") == len(STAGES) - 1


def test_a_demo_of_other_options_is_not_gone_on_with(tmp_path: Path) -> None:
    with RunFolder(tmp_path, DemoConfig(out=tmp_path)):
        pass
    with pytest.raises(ConfigError) as error:
        run(DemoConfig(out=tmp_path, seed=5))
    assert error.value.field == "out"


def test_its_images_are_not_those_of_the_shipped_bundle() -> None:
    assert Bundle.load("panda-hover-classifier").spec.dataset["seed"] < CAPTURE_SEED


def test_more_and_fewer_mistakes_and_no_difference() -> None:
    right, wrong = np.zeros(40, dtype=np.bool_), np.ones(40, dtype=np.bool_)
    assert "more mistakes" in verdict(right, wrong)
    assert "fewer mistakes" in verdict(wrong, right)
    assert "no difference" in verdict(right, right)
