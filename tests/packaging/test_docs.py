"""The examples in docs are run as they stand."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vinoreward.bundles.bundle import Bundle

ROBOT = {"object_position": "random"}


def block(path: Path, word: str) -> str:
    """Return the one Python example of a document that holds a word."""
    found = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = [each for each in found if word in each]
    return str(code)


def run_example(code: str, folder: Path, *fewer: tuple[str, str]) -> str:
    """Run an example as a program of its own; return what it prints.

    Args:
        code: of the example.
        folder: to run it in.
        fewer: what is large in it, as its number of steps, and what to run instead.
    """
    for large, small in fewer:
        assert large in code
        code = code.replace(large, small)
    program = folder / "program.py"
    program.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
def test_the_documented_backend_gives_the_golden_outputs(project_root: Path) -> None:
    example = ran(block(project_root / "docs" / "writing-a-backend.md", "ReferenceBackend"))
    bundle = Bundle.load("panda-hover-classifier")
    golden = bundle.golden
    with example["ReferenceBackend"](bundle.network("fp32")) as made:
        found = made.infer(golden.images[:2])
    np.testing.assert_allclose(found, golden.logits[:2], atol=1e-2, rtol=1e-2)


def test_the_documented_plugs_of_compressed_actors_work_together(project_root: Path) -> None:
    from vinoreward_actors.compression import CompressionContext
    from vinoreward_actors.correction import Correction, VTrace
    from vinoreward_actors.monitoring import MonitorBatch
    from vinoreward_actors.policies.policy import forward, random_policy
    from vinoreward_actors.policies.spec import mlp

    names = ran(block(project_root / "docs" / "compressed-actors.md", "class Gentle"))
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
    assert Correction([VTrace(), names["Gentle"]()]) is not None


@pytest.fixture
def your_robot() -> Iterator[None]:
    """``YourRobot-v0`` of the examples: the hover scene without its learned reward."""
    gym.register("YourRobot-v0", "vinoreward_envs.panda_hover:PandaHoverEnv", kwargs=ROBOT)
    yield
    gym.registry.pop("YourRobot-v0", None)


def ran(code: str) -> dict[str, Any]:
    """Run an example here, with the shipped bundle as the user's; return its names."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(
        compile(code.replace("path/to/your-bundle", "panda-hover-classifier"), "docs", "exec"),
        names,
    )
    return names


def test_the_drop_in_example_runs(
    project_root: Path, your_robot: None, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ran(block(project_root / "README.md", "env = LearnedReward("))
    assert (
        names["reward"] in (0.0, 1.0)
        and str(names["info"]["reward_prob"]) in capsys.readouterr().out
    )
    names["env"].close()


@pytest.mark.parametrize("page", ["README.md", "docs/camera.md"])
def test_the_loop_beside_a_camera_runs(
    page: str, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = "Bundle.load('panda-hover-classifier').golden.images"
    camera = (
        f"from vinoreward import Bundle\ncamera = [one for one in {images} for _ in range(3)]\n"
    )
    ran(camera + block(project_root / page, "for image in camera"))
    rewards = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(rewards) >= 9 and set(rewards) == {0.0, 1.0}


def test_the_documented_vector_environments_pay_what_the_classifier_sees(
    project_root: Path, your_robot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.setitem(gym.registry["YourRobot-v0"].kwargs, "observation", "pixels")
    code = block(project_root / "docs" / "your-own-robot.md", "VecLearnedReward(")
    names = ran(f"import gymnasium as gym\n{code}".replace("=8", "=2"))
    envs, venv = names["envs"], names["venv"]
    envs.reset(seed=0)
    assert envs.step(envs.action_space.sample())[-1]["reward_prob"].shape == (2,)
    venv.reset()
    _, rewards, _, infos = venv.step(np.stack([venv.action_space.sample() for _ in range(2)]))
    assert rewards.shape == (2,) and all("reward_prob" in info for info in infos)
    envs.close()
    venv.close()


@pytest.mark.parametrize(
    ("page", "word", "many", "holds"),
    [
        ("hover-task.md", "PandaHover-v0", "", 'info.keys() >= {"is_success", "true_success"}'),
        ("batched.md", "num_envs=256", "256", 'infos["final_info"]["_is_success"].any()'),
        ("batched.md", "num_envs=64", "64", "envs.unwrapped.randomization == LAB.scaled(0.5)"),
        ("encoders.md", "EncodedObservation(", "", "observation.shape == (64,)"),
    ],
)
def test_the_documented_environments_run(
    project_root: Path, page: str, word: str, many: str, holds: str
) -> None:
    code = block(project_root / "docs" / page, word)
    fewer = code.replace(f"num_envs={many}", "num_envs=8") if many else code
    assert eval(holds, ran(fewer))


@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="needs Stable-Baselines3")
def test_the_example_of_a_batch_for_stable_baselines3_learns(project_root: Path) -> None:
    names = ran(block(project_root / "docs" / "batched.md", "BatchedVecEnv"))
    assert len(names["record"].episodes) >= 32
    names["batch"].close()


@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="needs Stable-Baselines3")
def test_the_callback_example_records_both_rates(
    project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block(project_root / "docs" / "your-own-robot.md", "ClaimedVsTrue(")
    ran(code.replace(', tensorboard_log="logs"', ""))
    said = capsys.readouterr().out
    assert "'claimed': " in said and "'true': " in said


@pytest.mark.slow
def test_the_documented_training_of_actors_runs(project_root: Path, tmp_path: Path) -> None:
    code = block(project_root / "docs" / "compressed-actors.md", "Prune(0.5)")
    assert len(re.findall("^(?:from|import) ", code, flags=re.MULTILINE)) <= 3
    fewer = ("60_000", "400"), ("(256, 256)", "(16, 16)"), ("actors=2", "actors=1")
    assert float(run_example(code, tmp_path, *fewer)) > 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="needs Stable-Baselines3")
def test_the_documented_training_of_stable_baselines3(project_root: Path, tmp_path: Path) -> None:
    from stable_baselines3 import PPO

    code = block(project_root / "docs" / "compressed-actors.md", "accelerate(model)")
    run_example(code, tmp_path, ("100_000", "100"), ("[2048] * 3", "[16]"))
    assert PPO.load(tmp_path / "cartpole").num_timesteps >= 100


@pytest.mark.slow
def test_the_documented_use_of_a_policy(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vinoreward_training.cli import main

    out = tmp_path / "runs" / "cartpole"
    few = ["--steps", "300", "--evaluation-episodes", "2", "--evaluate-every", "0"]
    arguments = ["--task", "CartPole-v1", "--network", "2x8", "--compress", "quantize: int8", *few]
    assert main(["actors", *arguments, "--out", str(out)]) == 0
    code = block(project_root / "docs" / "compressed-actors.md", "Player(")
    monkeypatch.chdir(tmp_path)
    assert ran(code)["total"] >= 1.0


def commands(project_root: Path) -> list[str]:
    """Return every command line of vinoreward in README and docs, without the program's name."""
    pages = [project_root / "README.md", *sorted((project_root / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", " ")
    return re.findall(r"^\$ vinoreward (.*)$", text, flags=re.MULTILINE)


def test_the_documented_commands_have_these_options(project_root: Path) -> None:
    import tyro

    from vinoreward_training import cli

    seen = set()
    for line in commands(project_root):
        name, *options = shlex.split(line, comments=True)
        if "--help" not in options:
            tyro.cli(cli.commands()[name][1], args=options)
        seen.add(name)
    assert {"reward", "capture", "finetune", "train", "play", "train-vae", "actors"} <= seen


def test_the_documented_commands_of_actors_are_settled(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each line as it stands, up to where training would begin."""
    from vinoreward_actors.command import command as actors
    from vinoreward_training.cli import main

    settled = []

    def settle(config: Any) -> int:
        settled.append(config)
        return 0

    monkeypatch.setattr(actors, "run", settle)
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands(project_root) if line.startswith("actors ")]
    assert len(lines) > 3
    for line in lines:
        assert main(shlex.split(line, comments=True)) == 0
    assert {one.engine for one in settled} == {"local", "ray"}


@pytest.mark.slow
def test_a_classifier_behind_ray_serve(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.serve", exc_type=ImportError)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    code = block(project_root / "docs" / "many-workers.md", "from ray import serve")
    checks = (
        "import json\n"
        "from pathlib import Path\n"
        "here, handle = Classifier('panda-hover-classifier'), serve.get_app_handle('reward')\n"
        "images = here.bundle.golden.images\n"
        "waiting = [handle.remote(image) for image in images]\n"
        "env.reset(seed=1)\n"
        "step = env.step(env.action_space.sample())\n"
        "claimed = here.compute_reward(env.render()[None]).tolist()\n"
        "found = [one.result() for one in waiting], [step[1]]\n"
        "expected = here.compute_reward(images).tolist(), claimed\n"
        "Path('answers.json').write_text(json.dumps([found, expected]))\n"
        "serve.shutdown()\n"
    )
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)  # else other tests would join this cluster
        run_example(code + checks, tmp_path)
    found, expected = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))
    assert found == expected and set(found[0]) == {0.0, 1.0}
