"""The examples in docs are run as they stand."""

from __future__ import annotations

import pickle
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vinoreward.backends.base import Backend
from vinoreward.bundles.bundle import Bundle


def block(path: Path, word: str) -> str:
    """Return the one Python example of a document that holds a word."""
    found = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = [each for each in found if word in each]
    return str(code)


def run_example(code: str, folder: Path, fewer: tuple[str, str] | None = None) -> str:
    """Run an example as a program of its own; return what it prints.

    Args:
        code: of the example.
        folder: to run it in.
        fewer: its number of steps, and the one to run instead.
    """
    if fewer is not None:
        assert fewer[0] in code
        code = code.replace(*fewer)
    program = folder / "program.py"
    program.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def example(project_root: Path) -> type[Backend]:
    text = (project_root / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "writing-a-backend.md", "exec"), names)
    found = names["ReferenceBackend"]
    assert issubclass(found, Backend)
    # So that pickle finds the class where it says it is.
    globals()["ReferenceBackend"] = found
    return found


@pytest.mark.slow
@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
def test_the_documented_backend_gives_the_golden_outputs(example: type[Backend]) -> None:
    bundle = Bundle.load("panda-hover-classifier")
    golden = bundle.golden
    made = example(bundle.network("fp32"))
    restored = pickle.loads(pickle.dumps(made))
    with made, restored:
        first = made.infer(golden.images[:2])
        np.testing.assert_allclose(first, golden.logits[:2], atol=1e-2, rtol=1e-2)
        np.testing.assert_array_equal(restored.infer(golden.images[:2]), first)


def test_the_documented_backend_is_not_loaded_when_made(example: type[Backend]) -> None:
    from vinoreward.backends.base import TensorSpec
    from vinoreward.backends.spec import NetworkSpec
    from vinoreward.errors import ModelNotFoundError

    spec = NetworkSpec(
        Path("nowhere.onnx"), TensorSpec((None, 4, 4, 3), "uint8"), TensorSpec((None, 2), "float32")
    )
    made = example(spec)
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.onnx"):
        made.infer(np.zeros((1, 4, 4, 3), np.uint8))
    made.close()


def test_the_documented_plugs_of_compressed_actors_work_together(project_root: Path) -> None:
    from vinoreward.compression import CompressionContext
    from vinoreward.correction import Correction, VTrace
    from vinoreward.monitoring import MonitorBatch
    from vinoreward.policies.policy import random_policy
    from vinoreward.policies.reference import forward
    from vinoreward.policies.spec import mlp

    code = block(project_root / "docs" / "compressed-actors.md", "class Gentle")
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "compressed-actors.md", "exec"), names)
    policy = random_policy(mlp(4, 2, head="logits", hidden=(32, 32)), 0)
    seen = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    made = names["chain"].compress(policy, CompressionContext(policy, seen))
    assert made.in_int8("dense1") and not made.in_int8("dense0")
    count = np.ones(len(seen), dtype=np.int64)
    setting = names["monitor"].observe(
        MonitorBatch(
            spec=policy.spec,
            pi=forward(policy, seen),
            mu=forward(made, seen) + 2.0,
            versions=count,
            learner_version=1,
            network=count,
        )
    )
    assert setting.bits == 16
    assert Correction([VTrace(), names["Gentle"]()], critic="v") is not None


@pytest.mark.slow
def test_the_readmes_training_runs(project_root: Path, tmp_path: Path) -> None:
    code = block(project_root / "README.md", "ActorLearner(")
    assert float(run_example(code, tmp_path, ("60_000", "1_000"))) > 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="needs Stable-Baselines3")
def test_the_documented_learner_of_stable_baselines3(project_root: Path, tmp_path: Path) -> None:
    from stable_baselines3 import SAC

    code = block(project_root / "docs" / "compressed-actors.md", "SB3Learner")
    run_example(code, tmp_path, ("5_000", "700"))
    assert SAC.load(tmp_path / "sac_pendulum").num_timesteps >= 700


@pytest.mark.slow
def test_the_documented_use_of_a_policy(project_root: Path, tmp_path: Path) -> None:
    from vinoreward_training.cli import main

    out = tmp_path / "runs" / "cartpole"
    few = ["--steps", "300", "--final-episodes", "2", "--evaluate-every", "0", "--no-progress"]
    arguments = ["--task", "CartPole-v1", "--network", "2x8", "--compress", "int8", *few]
    assert main(["actors", *arguments, "--out", str(out)]) == 0
    code = block(project_root / "docs" / "compressed-actors.md", "Player(")
    assert float(run_example(code, tmp_path)) >= 1.0


def test_the_readmes_commands_of_actors_are_settled(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each line as it stands, up to where training would begin."""
    from vinoreward_training.actors import command as actors
    from vinoreward_training.actors.resolve import resolve
    from vinoreward_training.cli import main

    settled = []
    run = actors.run

    def settle(config: Any) -> int:
        if config.list_presets:
            return run(config)
        settled.append(resolve(config))
        return 0

    monkeypatch.setattr(actors, "run", settle)
    monkeypatch.chdir(tmp_path)
    text = (project_root / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ vinoreward (actors .*)$", text, flags=re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        assert main(shlex.split(line, comments=True)) == 0
    assert {one.engine for one in settled} == {"local", "ray"}
