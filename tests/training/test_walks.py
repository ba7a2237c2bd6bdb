"""The walks of the docs: a page's commands run as they stand there, with less to do."""

from __future__ import annotations

import ctypes.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_network

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
STEPS = ["capture", "finetune", "train", "play", "train"]
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
    assert [words[0] for words in walk] == STEPS
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
