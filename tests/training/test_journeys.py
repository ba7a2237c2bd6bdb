"""From nothing to a policy: the demo, ``vinoreward reward`` and the walks of the docs."""

from __future__ import annotations

import ctypes.util
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reach_dot
import tiny_network
from image_folders import write_dots, write_folder

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.cli import main
from vinoreward_training.configs import DemoConfig
from vinoreward_training.demo.command import CAPTURE_SEED, Demo, Sizes
from vinoreward_training.demo.command import run as run_demo
from vinoreward_training.demo.report import STAGES as DEMO_STAGES
from vinoreward_training.demo.report import verdict
from vinoreward_training.runs.run_folder import RunFolder

# --- the demo ----------------------------------------------------------------------------------


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
    assert run_demo(config, TINY) == 0
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
    assert run_demo(config, TINY) == 0
    assert capsys.readouterr().out.count("done before") == len(DEMO_STAGES) - 1


def test_a_demo_of_other_options_is_not_gone_on_with(tmp_path: Path) -> None:
    with RunFolder(tmp_path, DemoConfig(out=tmp_path)):
        pass
    with pytest.raises(ConfigError) as error:
        run_demo(DemoConfig(out=tmp_path, seed=5))
    assert error.value.field == "out"


def test_its_images_are_not_those_of_the_shipped_bundle() -> None:
    assert Bundle.load("panda-hover-classifier").spec.dataset["seed"] < CAPTURE_SEED


def test_more_and_fewer_mistakes_and_no_difference() -> None:
    right, wrong = np.zeros(40, dtype=np.bool_), np.ones(40, dtype=np.bool_)
    assert "more mistakes" in verdict(right, wrong)
    assert "fewer mistakes" in verdict(wrong, right)
    assert "no difference" in verdict(right, right)


# --- ``vinoreward reward`` ---------------------------------------------------------------------


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


# --- the walks of the docs ---------------------------------------------------------------------


ROOT = Path(__file__).parents[2]
SUPPORT = Path(tiny_network.__file__).parent
ROLLOUT = {"n_steps": "100", "batch_size": "50"}
"""Of PPO, which takes whole ones however short a training is."""
MADE = {"capture": {"--frames": "24"}, "finetune": {"--target-fpr": "0.9"}}
"""Of a classifier that is made by hand, which few images suffice for."""
# A page of docs/, the packages without which it is skipped, and what it shortens in another way.
WALKS: dict[str, tuple[tuple[str, ...], dict[str, dict[str, str]]]] = {
    "pendulum": (("pygame",), {}),
    "dm-control": (("shimmy",), {**MADE, "train": ROLLOUT}),
    "point-maze": (("gymnasium_robotics",), {**MADE, "train": ROLLOUT}),
    "pusht": (("gym_pusht",), MADE),
}
TRAINED = "pendulum"
WALK = ["capture", "finetune", "train", "play", "train"]
SHORT = {
    "capture": {"--frames": "120"},
    "finetune": {"--epochs": "1", "--target-fpr": "0.3"},
    "train": {"--timesteps": "105", "--final-episodes": "1"},
    "play": {"--episodes": "1", "--film": "1"},
}
FLAGS = {"train": ["--force"], "play": []}
# In a process of its own: a library of OpenGL is chosen once, and a crash there is this test's.
RUN = """
import json, sys
sys.path.append(sys.argv[2])
from vinoreward_training.cli import main
from vinoreward_training.classifier import finetune
if sys.argv[3] == "made":
    import numpy as np
    from tiny_network import save_for
    finetune._train = save_for
    finetune.split_by_episode = lambda dataset: [np.arange(len(dataset.labels))] * 3
for words in json.loads(sys.argv[1]):
    code = main(words)
    # So few images make a classifier that finetune calls useless: 3.
    if code not in ((0, 3) if words[0] == "finetune" else (0,)):
        sys.exit(f"{words} ended with {code}")
"""


def commands_of(page: Path) -> tuple[list[list[str]], dict[str, str]]:
    """The commands in a page's console blocks without the program's name, and what it exports."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    text = "\n".join(re.sub(r"\\\n\s*", "", block) for block in blocks)
    lines = [shlex.split(line) for line in re.findall(r"^\$ (.*)", text, re.MULTILINE)]
    exports = [word.partition("=") for name, *words in lines if name == "export" for word in words]
    return (
        [words for name, *words in lines if name == "vinoreward"],
        {name: value for name, _, value in exports},
    )


def shortened(words: list[str], page: dict[str, dict[str, str]]) -> list[str]:
    name, *options = words
    for option, value in (SHORT[name] | page.get(name, {})).items():
        if option in options:
            options[options.index(option) + 1] = value
        else:
            options += [option, value]
    return [name, *options, *FLAGS.get(name, [])]


# The others go the same way, in environments of other packages.
@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [TRAINED, *(pytest.param(one, marks=pytest.mark.full) for one in WALKS if one != TRAINED)],
)
def test_a_walk(tmp_path: Path, page: str) -> None:
    packages, short = WALKS[page]
    walk, exports = commands_of(ROOT / "docs" / f"{page}.md")
    if exports.get("MUJOCO_GL") == "osmesa" and ctypes.util.find_library("OSMesa") is None:
        pytest.skip("needs the Debian package libosmesa6")
    # What comes after a person's labels is for a person to try.
    walk = list(itertools.takewhile(lambda words: words[0] != "label", walk))
    assert [words[0] for words in walk] == WALK
    for name in ("examples", "assets"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = [shortened(words, short) for words in walk]
    # One page's images train a classifier; those of the others are read for it, and the bundle
    # that takes them is made by hand.
    classifier = "trained" if page == TRAINED else "made"
    result = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands), str(SUPPORT), classifier],
        cwd=tmp_path,
        env=os.environ | exports,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    for name in packages if result.returncode else ():
        # Not installed, or without the system's libraries that it needs?
        tried = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False
        )
        if re.search("^(ModuleNotFound|Import)Error", tried.stderr, re.MULTILINE):
            pytest.skip(f"needs {name}: {tried.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("true success:") == 3
    assert "not known (see" not in result.stdout
    (play,) = (words for words in walk if words[0] == "play")
    assert (tmp_path / play[play.index("--run") + 1] / "play.gif").is_file()
