"""The wheel: what it holds, and that it works from an unrelated folder without the extras."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

PACKAGES = {f"vinoreward{world}" for world in ("", "_envs", "_actors", "_training", "_assets")}


def run_python(python: Path, script: str, folder: Path, *arguments: str) -> str:
    """Run a script with ``folder`` as the current one; return what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [python, "-W", "error::UserWarning", "-c", script, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=project_root,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path, project_root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == PACKAGES and all(f"{package}/py.typed" in names for package in PACKAGES)
    found = {name for name in names if name.endswith((".py", ".pyi"))}
    homes = ("", "envs", "actors", "training", "assets")
    here = {
        str(path.relative_to(project_root / home))
        for home in homes
        for package in PACKAGES
        for path in (project_root / home / package).rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert found == here


def test_the_wheel_holds_the_assets_with_their_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.startswith("vinoreward_assets/licences/") for name in names)
    for name in ("panda-hover-classifier", "panda-hover-encoder"):
        assert f"vinoreward_assets/{name}/bundle.json" in names
    assert any(name.startswith("vinoreward_assets/scene") for name in names)
    for name in ("index.html", "page.js", "page.css"):
        assert f"vinoreward_training/labelling/page/{name}" in names


CORE_SCRIPT = """
import json, sys
import gymnasium as gym
import numpy as np
import vinoreward
from vinoreward import Bundle, LearnedReward
from vinoreward.errors import MissingExtraError

bundle = Bundle.load("panda-hover-classifier")
image = bundle.spec.image
shape = (image.height, image.width, 3)


class Mine(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        return bundle.golden.images[0]


env = LearnedReward(Mine(), bundle, backend="openvino")
env.reset(seed=0)
_, reward, terminated, _, info = env.step(0)
missing = {}
for backend in ("torch", "onnxruntime"):
    try:
        bundle.backend(backend)
    except MissingExtraError as error:
        missing[backend] = str(error)
try:
    gym.make("PandaHover-v0").reset(seed=0)
except MissingExtraError as error:
    missing["camera"] = str(error)
print(json.dumps({
    "probability": float(info["reward_prob"]),
    "claimed": bool(info["is_success"]),
    "missing": missing,
    "loaded": [name for name in ("torch", "pybullet", "warp", "nncf") if name in sys.modules],
    "from": vinoreward.__file__,
}))
"""


@pytest.mark.slow
def test_the_core_works_without_torch_and_pybullet(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    # Neither a pip of its own nor bytecode of all libraries: both take longer than what is tested.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-compile", str(wheel)],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=600,
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = json.loads(run_python(python, CORE_SCRIPT, elsewhere).strip().splitlines()[-1])
    assert 0.0 <= found["probability"] <= 1.0
    assert str(tmp_path / "venv") in found["from"]
    assert found["loaded"] == []
    for name, extra in (("torch", "train"), ("onnxruntime", "onnxruntime"), ("camera", "panda")):
        # No registry has it: what adds an extra is the wheel that is installed.
        assert f"pip install {shlex.quote(f'{wheel}[{extra}]')}" in found["missing"][name]
    # Help needs no extra.
    command = "import sys; from vinoreward_training.cli import main; sys.exit(main(['--help']))"
    assert "finetune" in run_python(python, command, elsewhere)
