"""Where the settings of a training come from, what is refused, and that presets learn."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from toy_environments import save_toy_bundle
from train_runs import Corridor, config, toy_task

from vinoreward.errors import (
    ConfigError,
    MissingExtraError,
    ModelNotFoundError,
    UnknownDeviceError,
)
from vinoreward_training.capture import command as capture
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig, TrainConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.policy.train import SETTINGS, check_device, train
from vinoreward_training.tasks.environments import has_own_reward, make_env
from vinoreward_training.tasks.many import make_envs


def parse(*words: str) -> TrainConfig:
    return SETTINGS.parse(words, prog="vinoreward train")


def test_command_line_over_file_over_preset_and_tables_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "timesteps: 500\neval_every: 70\nbackend: oracle\n"
        "algorithm_kwargs: {batch_size: 64, tau: 0.1}\n",
        encoding="utf-8",
    )
    silent = parse("--config", str(file))
    assert (silent.timesteps, silent.eval_every, silent.backend) == (500, 70, "oracle")
    assert silent.eval_episodes == 2  # the preset's
    # What is named wins also where it is the default.
    words = ["--eval-every", "500", "--backend=openvino", "--algorithm-kwargs"]
    found = parse("--config", str(file), *words, "batch_size", "32", "train_freq", "2")
    assert (found.eval_every, found.backend) == (500, "openvino")
    expected = {"batch_size": 32, "train_freq": 2, "tau": 0.1, "gamma": 0.9}
    assert found.algorithm_kwargs | expected == found.algorithm_kwargs
    named = SETTINGS.of(config=file, timesteps=8000, algorithm_kwargs={"batch_size": 32})
    assert (named.timesteps, named.algorithm_kwargs["batch_size"]) == (8000, 32)


def test_the_preset_is_that_of_the_environment_and_of_sac() -> None:
    assert SETTINGS.of(env="PandaHoverRandom-v0").timesteps == 20_000
    assert SETTINGS.of(env="vinoreward:PandaHover-v0").algorithm_kwargs["gamma"] == 0.9
    assert SETTINGS.of(algorithm="TD3").algorithm_kwargs == {}
    assert SETTINGS.of(env="CartPole-v1").timesteps == 8000


class Buttons(Corridor):
    """Its actions are neither continuous nor one number."""

    action_space = gym.spaces.MultiDiscrete([2, 2])


class Lacking(Corridor):
    """Needs a package that is not installed, to be made or to be drawn."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, when: str = "made", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        if when == "made":
            self.render()

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[drawing_board]"`')


class Undrawn(gym.Env[Any, Any]):
    """Has the usual arguments, and no render() of its own."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 255, (6, 8, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros((6, 8, 3), np.uint8), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        seen, info = np.full((6, 8, 3), 200 * action, np.uint8), {"success": action == 1}
        return seen, 0.0, False, self.steps >= 4, info


class Modeless(Undrawn):
    """Its images are in the observation alone."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()


for kind in (Buttons, Lacking, Undrawn, Modeless):
    gym.register(f"{kind.__name__}-v0", entry_point=kind)
gym.register("Lost-v0", entry_point="no_such_module:Lost")


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [("Pendulum-v1", "SAC"), ("CartPole-v1", "DQN"), ("Buttons-v0", "PPO")],
)
def test_the_algorithm_suits_the_actions(env: str, algorithm: str) -> None:
    found = parse("--env", env, "--algorithm-kwargs", "gamma", "0.9")
    assert (found.algorithm, found.algorithm_kwargs["gamma"]) == (algorithm, 0.9)
    explicit = SETTINGS.of(env=env, algorithm=algorithm)
    assert found.algorithm_kwargs == {**explicit.algorithm_kwargs, "gamma": 0.9}
    # It learns in the 8,000 steps of a training.
    assert found.algorithm_kwargs.get("target_update_interval", 0) < 1000
    assert (len(found.algorithm_kwargs) > 1) == (algorithm != "SAC")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("--timesteps 0", "timesteps"),
        ("--step-reward -1e400", "step_reward"),
        ("--env CartPole-v1 --algorithm SAC", "algorithm"),
        ("--env Pendulum-v1 --algorithm DQN", "algorithm"),
        ("--env Buttons-v0 --algorithm DQN", "algorithm"),
        ("--device quantum", "device"),
        ("--image-source obs", "image_source"),
        ("--env CartPole-v1 --hold 2", "hold"),
        ("--reward-mode potential", "reward_mode"),
        ("--success-reward 50", "success_reward"),
        ("--env ToyCorridor-v0 --backend oracle --hold 2", "hold"),
        ("--learner fused --algorithm TD3", "algorithm"),
        ("--learner skrl --algorithm SAC", "algorithm"),
    ],
)
def test_what_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: str, field: str
) -> None:
    with pytest.raises(ConfigError) as error:
        train(parse(*arguments.split(), "--out", str(tmp_path / "run")))
    assert error.value.field == field
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm_kwargs": {"batchsize": 3}}, "batchsize"),
        ({"env_kwargs": {"colour": 3}}, "colour"),
        ({"bundle": "none-such", "backend": "openvino"}, "none-such"),
        ({"env": "Lost-v0"}, "cannot be made: ModuleNotFoundError.*no_such_module"),
    ],
    ids=lambda value: "",
)
def test_errors_name_what_is_wrong(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ModelNotFoundError), match=words):
        train(config(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestep: 5", "the unknown key timestep. Expected some of"),
        ("- 1", "list.*`timesteps: 8000`"),
        ("step_reward: .nan", "finite numbers"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    with pytest.raises(ModelNotFoundError, match=r"c\.yaml"):
        SETTINGS.of(config=file)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        SETTINGS.of(config=file)


def test_a_package_is_imported_for_its_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import gymnasium\ngymnasium.register('{}-v0', entry_point='{}')\n"
    for name, point in (("Fresh", "toy_environments:Corridor"), ("Ours", "vinoreward_envs.x:Y")):
        file = tmp_path / f"package_of_{name.lower()}.py"
        file.write_text(text.format(name, point), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert not has_own_reward("package_of_fresh:Fresh-v0")
    assert has_own_reward("package_of_ours:Ours-v0")
    assert has_own_reward("vinoreward:PandaHover-v0")
    make_env(RewardedTask(env="package_of_fresh:Fresh-v0")).close()
    for name in ("no_such_package:Fresh-v0", "package_of_fresh:NoSuchEnv-v0", "a.b:c:Fresh-v0"):
        with pytest.raises(ConfigError, match=name):
            has_own_reward(name)


def test_an_id_that_no_imported_package_registers_is_told_to_name_its_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gymnasium alone asks whether PandaHover was meant."""
    for name, told in (
        ("PandaPush-v3", "If a package registers it, name that too: --env package_name:PandaPush"),
        ("gymnasium:Nope-v0", "The package gymnasium registers no such id"),
        ("my_missing_arm:Arm-v0", "Python does not find my_missing_arm"),
    ):
        assert main(["capture", "--out", str(tmp_path / "out"), "--env", name]) == 1
        assert told in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused_and_those_that_are_are_taken() -> None:
    kind = torch.accelerator.current_accelerator()
    for name in ("cpu", "auto", *([kind.type] if torch.accelerator.is_available() else [])):
        check_device(name)
    for name in ("meta", ""):
        with pytest.raises(UnknownDeviceError, match="cpu"):
            check_device(name)


@pytest.mark.parametrize("when", ["made", "drawn"])
def test_what_an_environment_lacks_is_named(tmp_path: Path, when: str) -> None:
    changes: dict[str, Any] = {"env": "Lacking-v0", "algorithm": "A2C", "algorithm_kwargs": {}}
    if when == "drawn":
        bundle = str(save_toy_bundle(tmp_path / "toy").path)
        changes |= {"backend": "openvino", "bundle": bundle}
    with pytest.raises(MissingExtraError, match=r"Lacking-v0.*gymnasium\[drawing-board\]"):
        train(config(tmp_path / "run", env_kwargs={"when": when}, **changes))


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Undrawn-v0", r"shows no images: render\(\) raises NotImplementedError.*obs:KEY"),
        ("Modeless-v0", r"takes no render_mode, so it shows no images.*obs:KEY"),
    ],
)
@pytest.mark.parametrize("envs", [0, 2])
def test_an_environment_without_images_is_refused_in_a_sentence(
    tmp_path: Path, env: str, message: str, envs: int
) -> None:
    given: dict[str, Any] = {"env": env, "backend": "openvino", "vec_env": "dummy"}
    given |= {"algorithm": "A2C", "algorithm_kwargs": {"policy": "MlpPolicy"}}
    with pytest.raises(ConfigError, match=message):
        if envs == 0:
            capture.run(CaptureConfig(out=tmp_path / "data", env=env))
        else:
            bundle = str(save_toy_bundle(tmp_path / "toy").path)
            train(config(tmp_path / "run", bundle=bundle, num_envs=envs, **given))


def test_images_in_the_observation_need_no_render_mode(tmp_path: Path) -> None:
    out, name = tmp_path / "data", "Modeless-v0"
    capture.run(CaptureConfig(out=out, env=name, frames=8, image_source=("obs",)))
    task = toy_task(save_toy_bundle(tmp_path / "toy"), env=name, image_source=("obs",))
    with contextlib.closing(make_envs(2, task, processes=False)) as env:
        env.reset()
        assert "reward_prob" in str(env.step([0, 0]))


def test_the_rl_zoo_example_has_the_preset(project_root: Path) -> None:
    path = project_root / "examples" / "rl_zoo" / "sac.yml"
    example = yaml.safe_load(path.read_text(encoding="utf-8"))
    for env in ("PandaHover-v0", "PandaHoverRandom-v0"):
        settled = SETTINGS.of(env=env)
        assert example[env]["n_timesteps"] == settled.timesteps
        kwargs = settled.algorithm_kwargs
        assert {name: example[env][name] for name in kwargs} == kwargs


# --- presets, where nothing can be fooled ------------------------------------------------------


GRID = 7


class Grid(gym.Env[np.ndarray, Any]):
    """Walk from a random cell to another within 40 steps, one way at a time or two at once."""

    observation_space = gym.spaces.Box(0.0, 1.0, (4,), np.float32)

    def __init__(self, both: bool = False) -> None:
        self.both = both
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(4)
        if both:
            self.action_space = gym.spaces.MultiDiscrete([3, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        start, goal = self.np_random.choice(GRID * GRID, 2, replace=False)
        self.at, self.goal = (np.array(divmod(int(cell), GRID)) for cell in (start, goal))
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return (np.concatenate([self.at, self.goal]) / (GRID - 1)).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ways = ((1, 0), (-1, 0), (0, 1), (0, -1))
        way = np.asarray(action) - 1 if self.both else np.array(ways[action])
        self.at = np.clip(self.at + way, 0, GRID - 1)
        self.steps += 1
        info = {"success": bool((self.at == self.goal).all())}
        return self.observe(), 0.0, False, self.steps >= 40, info


gym.register("Grid-v0", entry_point=Grid)


@pytest.mark.full
@pytest.mark.parametrize(("both", "algorithm"), [(False, "DQN"), (True, "PPO")])
def test_a_grid_is_learned(tmp_path: Path, both: bool, algorithm: str) -> None:
    settings = SETTINGS.of(
        out=tmp_path / "run", env="Grid-v0", env_kwargs={"both": both},
        backend="oracle", eval_every=2000,
    )  # fmt: skip
    assert (settings.algorithm, settings.timesteps) == (algorithm, 8000)
    found = train(settings).final.true
    assert found is not None and found.successes >= 90, "with SB3's defaults 8 and 59 of 100"
