"""Where the settings of a training come from, and what is refused."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from toy_environments import save_toy_bundle
from train_runs import Corridor, config

from vinoreward.errors import (
    ConfigError,
    MissingExtraError,
    ModelNotFoundError,
    UnknownDeviceError,
)
from vinoreward_actors.command.settings import SETTINGS as ACTORS
from vinoreward_training.capture import command as capture
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig, TrainConfig
from vinoreward_training.policy.train import SETTINGS, check_device, train
from vinoreward_training.tasks.environments import has_own_reward, make_env
from vinoreward_training.tasks.many import make_envs


def test_command_line_wins_over_file_and_file_over_preset(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "timesteps: 500\neval_every: 70\nalgorithm_kwargs: {batch_size: 64, tau: 0.1}\n",
        encoding="utf-8",
    )
    found = SETTINGS.of(config=file, timesteps=8000, algorithm_kwargs={"batch_size": 32})
    assert (found.timesteps, found.eval_every) == (8000, 70)
    arguments = found.algorithm_kwargs
    assert (arguments["batch_size"], arguments["tau"], arguments["gamma"]) == (32, 0.1, 0.9)


def test_what_is_named_on_the_command_line_wins_even_where_it_is_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("backend: oracle\nprogress: false\n", encoding="utf-8")
    words = ["--config", str(file), "--eval-every", "500", "--backend=openvino", "--progress"]
    found = SETTINGS.parse(words, prog="train")
    assert (found.eval_every, found.backend, found.progress) == (500, "openvino", True)
    # The preset's, as it was not named.
    assert found.eval_episodes == 2
    silent = SETTINGS.parse(words[:2], prog="train")
    assert (silent.eval_every, silent.backend, silent.progress) == (250, "oracle", False)


def test_tables_of_the_command_line_are_merged_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("algorithm_kwargs: {batch_size: 64, tau: 0.1}\n", encoding="utf-8")
    words = ["--config", str(file), "--algorithm-kwargs", "batch_size", "32", "train_freq", "2"]
    found = SETTINGS.parse(words, prog="train").algorithm_kwargs
    assert found | {"batch_size": 32, "train_freq": 2, "tau": 0.1, "gamma": 0.9} == found


class Buttons(Corridor):
    """Its actions are neither continuous nor one number."""

    action_space = gym.spaces.MultiDiscrete([2, 2])


gym.register("Buttons-v0", entry_point=Buttons)


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [("Pendulum-v1", "SAC"), ("CartPole-v1", "DQN"), ("Buttons-v0", "PPO")],
)
def test_the_algorithm_suits_the_actions(env: str, algorithm: str) -> None:
    found = SETTINGS.parse(["--env", env, "--algorithm-kwargs", "gamma", "0.9"], prog="train")
    assert (found.algorithm, found.algorithm_kwargs["gamma"]) == (algorithm, 0.9)
    explicit = SETTINGS.of(env=env, algorithm=algorithm)
    assert found.algorithm_kwargs == {**explicit.algorithm_kwargs, "gamma": 0.9}
    # It learns in the 8,000 steps of a training.
    assert found.algorithm_kwargs.get("target_update_interval", 0) < 1000
    assert (len(found.algorithm_kwargs) > 1) == (algorithm != "SAC")


@pytest.mark.parametrize(
    ("env", "algorithm", "message"),
    [
        ("CartPole-v1", "SAC", r"SAC, but CartPole-v1 .*Discrete\(2\).*Expected DQN.*for DQN"),
        ("Pendulum-v1", "DQN", r"DQN, but Pendulum-v1 .*Box.*Expected SAC.*for SAC"),
        ("PandaHover-v0", "DQN", "Expected SAC"),
        ("Buttons-v0", "DQN", "Expected PPO or A2C"),
    ],
)
def test_an_algorithm_that_does_not_suit_the_actions_is_refused_before_anything_starts(
    tmp_path: Path, env: str, algorithm: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env", env, "--algorithm", algorithm, "--out", str(tmp_path / "run")]
    assert main(["train", *words]) == 1
    assert re.search(message, capsys.readouterr().err) and not (tmp_path / "run").exists()


class Raising(Corridor):
    """Raises an error of any class."""

    def __init__(self, kind: str) -> None:
        raise {"key": KeyError, "zero": ZeroDivisionError, "os": OSError}[kind](kind)


gym.register("Raising-v0", entry_point=Raising)
gym.register("Lost-v0", entry_point="no_such_module:Lost")


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("CartPole-v1", {"render_mode": [[[]]]}, "CartPole-v1 cannot be made: AttributeError"),
        ("CartPole-v1", {"max_episode_steps": -3}, "cannot be made: ValueError"),
        ("Lost-v0", {}, "Lost-v0 cannot be made: ModuleNotFoundError.*no_such_module"),
        ("Raising-v0", {"kind": "key"}, "Raising-v0 cannot be made: KeyError"),
        ("Raising-v0", {"kind": "zero"}, "ZeroDivisionError.*--env-kwargs"),
        ("Raising-v0", {"kind": "os"}, "OSError"),
    ],
)
def test_whatever_an_environment_raises_is_a_sentence(
    env: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(env, options)


class Table(Corridor):
    """Looks its actions up, as FrozenLake does."""

    def step(self, action: Any) -> Any:
        return super().step({0: 0, 1: 1}[action])


gym.register("Table-v0", entry_point=Table)


def test_a_discrete_action_can_be_looked_up_in_a_table(tmp_path: Path) -> None:
    assert train(config(tmp_path / "run", env="Table-v0", algorithm="DQN")).final.mean_length == 4


@pytest.mark.parametrize("text", ["-1e400", "-1.0e+400", ".nan", ".inf"])
def test_a_reward_is_a_finite_number(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"step_reward: {text}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"step_reward=.*Expected a finite number"):
        SETTINGS.of(config=file)
    with pytest.raises(ConfigError, match="Expected a finite number"):
        SETTINGS.parse(["--step-reward", "-1e400"], prog="train")


@pytest.mark.parametrize(
    "network",
    [{"n_critics": 1_000_000}, {"net_arch": [64, 10**9]}, {"net_arch": {"pi": [8] * 99, "qf": []}}],
)
def test_a_network_of_any_size_is_refused(tmp_path: Path, network: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Expected at most"):
        train(config(tmp_path / "run", algorithm_kwargs={"policy_kwargs": network}))
    assert not (tmp_path / "run").exists()


def test_help_shows_the_defaults_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        SETTINGS.parse(["--env", "PandaHoverRandom-v0", "--help"], prog="train")
    assert "(default: 20000)" in " ".join(capsys.readouterr().out.split())


def test_the_preset_is_that_of_the_environment_and_of_sac() -> None:
    assert SETTINGS.of(env="PandaHoverRandom-v0").timesteps == 20_000
    assert SETTINGS.of(env="vinoreward:PandaHover-v0").algorithm_kwargs["gamma"] == 0.9
    assert SETTINGS.of(algorithm="TD3").algorithm_kwargs == {}
    assert SETTINGS.of(env="CartPole-v1").timesteps == 8000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestep: 5", "timesteps in place of timestep;"),
        ("- 1", "list.*`timesteps: 8000`"),
        ("a: [", "cannot be read"),
        ("timesteps: x", "'x'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        SETTINGS.of(config=file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timesteps": 0}, "timesteps"),
        ({"eval_every": -1}, "eval-every"),
        ({"stop_when_solved": 1.5}, "stop_when_solved"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SETTINGS.of(**changes)


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"gone\.yaml"):
        SETTINGS.of(config=tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="SARSA"):
        train(config(tmp_path / "a", algorithm="SARSA"))
    with pytest.raises(ConfigError, match="NoSuchEnv"):
        train(config(tmp_path / "b", env="NoSuchEnv-v0"))
    with pytest.raises(ConfigError, match="batchsize"):
        train(config(tmp_path / "c", algorithm_kwargs={"batchsize": 3}))
    with pytest.raises(ConfigError, match="colour"):
        train(config(tmp_path / "d", env_kwargs={"colour": 3}))
    with pytest.raises(ConfigError, match="--bundle"):
        train(config(tmp_path / "e", env="CartPole-v1", wrap_bundle=True, backend="openvino"))


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
    make_env("package_of_fresh:Fresh-v0").close()
    for name in ("no_such_package:Fresh-v0", "package_of_fresh:NoSuchEnv-v0", "a.b:c:Fresh-v0"):
        with pytest.raises(ConfigError, match=name):
            has_own_reward(name)


@pytest.mark.parametrize("words", ["capture --out {}", "train --out {}", "audit --data {}"])
def test_an_id_that_no_imported_package_registers_is_told_to_name_its_package(
    tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gymnasium alone asks whether PandaHover was meant."""
    asked = words.format(tmp_path / "out").split()
    bundle = ["--bundle", "panda-hover-classifier"] * (asked[0] == "audit")
    for name, told in (
        ("PandaPush-v3", "If a package registers it, name that too: --env package_name:PandaPush"),
        ("gymnasium:Nope-v0", "The package gymnasium registers no such id"),
    ):
        assert main([*asked, *bundle, "--env", name]) == 1
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda:77", "quantum", "meta", ""])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(UnknownDeviceError, match=f"'{device}'.*cpu.*--device"):
        train(config(tmp_path / "run", device=device))
    assert not (tmp_path / "run").exists()


def test_devices_that_are_there_are_taken() -> None:
    kind = torch.accelerator.current_accelerator()
    for name in ("cpu", "auto", *([kind.type] if torch.accelerator.is_available() else [])):
        check_device(name)


def test_a_bundle_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    bundle = str(save_toy_bundle(tmp_path / "toy").path)
    with pytest.raises(ConfigError, match=r"ToyCorridor-v0.*--wrap-bundle"):
        train(config(tmp_path / "run", env="ToyCorridor-v0", bundle=bundle))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [{"hold": 2}, {"reward_mode": "potential"}])
def test_options_of_the_judge_are_refused_where_the_truth_pays(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    name = next(iter(option)).replace("_", "-")
    oracle = {"env": "ToyCorridor-v0", "wrap_bundle": True, "backend": "oracle"}
    with pytest.raises(ConfigError, match=f"--{name}.*--backend oracle"):
        train(config(tmp_path / "run", **oracle, **option))
    assert not (tmp_path / "run").exists()


class Lacking(Corridor):
    """Needs a package that is not installed, to be made or to be drawn."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, when: str = "made", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        if when == "made":
            self.render()

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[drawing_board]"`')


gym.register("Lacking-v0", entry_point=Lacking)


@pytest.mark.parametrize("when", ["made", "drawn"])
def test_what_an_environment_lacks_is_named(tmp_path: Path, when: str) -> None:
    changes: dict[str, Any] = {"env": "Lacking-v0", "algorithm": "A2C", "algorithm_kwargs": {}}
    if when == "drawn":
        bundle = str(save_toy_bundle(tmp_path / "toy").path)
        changes |= {"backend": "openvino", "bundle": bundle, "wrap_bundle": True}
    with pytest.raises(MissingExtraError, match=r"Lacking-v0.*gymnasium\[drawing-board\]"):
        train(config(tmp_path / "run", env_kwargs={"when": when}, **changes))


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


for kind in (Undrawn, Modeless):
    gym.register(f"{kind.__name__}-v0", entry_point=kind)


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Undrawn-v0", r"shows no images: render\(\) raises NotImplementedError.*obs:KEY"),
        ("Modeless-v0", r"takes no render_mode, so it shows no images.*obs:KEY"),
    ],
)
@pytest.mark.parametrize("envs", [0, 1, 2])
def test_an_environment_without_images_is_refused_in_a_sentence(
    tmp_path: Path, env: str, message: str, envs: int
) -> None:
    bundle = str(save_toy_bundle(tmp_path / "toy").path)
    with pytest.raises(ConfigError, match=message):
        if envs == 0:
            capture.run(CaptureConfig(out=tmp_path / "data", env=env))
        else:
            train(
                config(
                    tmp_path / "run",
                    env=env,
                    backend="openvino",
                    bundle=bundle,
                    wrap_bundle=True,
                    algorithm="A2C",
                    algorithm_kwargs={"policy": "MlpPolicy"},
                    num_envs=envs,
                    vec_env="dummy",
                )
            )


@pytest.mark.parametrize("envs", [1, 2])
def test_images_in_the_observation_need_no_render_mode(tmp_path: Path, envs: int) -> None:
    out, name = tmp_path / "data", "Modeless-v0"
    capture.run(CaptureConfig(out=out, env=name, frames=8, image_source=("obs",)))
    given = {"bundle": str(save_toy_bundle(tmp_path / "toy").path), "wrap_bundle": True}
    made = make_envs(2, name, processes=False, image_source="obs", **given)
    with contextlib.closing(
        made if envs == 2 else make_env(name, image_source="obs", **given)
    ) as env:
        env.reset()
        assert "reward_prob" in str(env.step([0, 0] if envs == 2 else 0))


def test_the_help_names_environments_that_work_with_what_the_extras_install() -> None:
    examples = [line.split() for line in (TrainConfig.__doc__ or "").splitlines()]
    named_there = [words for words in examples if "--env" in words]
    assert len(named_there) >= 3
    for words in named_there:
        env_id = words[words.index("--env") + 1]
        if env_id.startswith("my_package:"):
            continue
        own = {"backend": "oracle"} if has_own_reward(env_id) else {}
        drawn = "--wrap-bundle" in words
        with contextlib.closing(
            make_env(env_id, render_mode="rgb_array" if drawn else None, **own)
        ) as env:
            env.reset(seed=0)
            if drawn:
                env.render()


def test_the_rl_zoo_example_names_real_arguments() -> None:
    import inspect

    from vinoreward.wrappers.learned_reward import LearnedReward

    path = Path(__file__).parents[2] / "examples" / "rl_zoo" / "sac.yml"
    example = yaml.safe_load(path.read_text(encoding="utf-8"))
    ((name, arguments),) = example["PandaHoverRandom-v0"]["env_wrapper"][0].items()
    assert name == f"{LearnedReward.__module__}.{LearnedReward.__name__}"
    assert set(arguments) <= set(inspect.signature(LearnedReward.__init__).parameters)
    assert all(isinstance(value, bool | int | float | str) for value in arguments.values())


@pytest.mark.parametrize("env", ["PandaHover-v0", "PandaHoverRandom-v0"])
def test_the_rl_zoo_example_says_what_the_preset_says(env: str) -> None:
    path = Path(__file__).parents[2] / "examples" / "rl_zoo" / "sac.yml"
    example = yaml.safe_load(path.read_text(encoding="utf-8"))[env]
    settled = SETTINGS.of(env=env)
    assert example["n_timesteps"] == settled.timesteps
    assert {name: example[name] for name in settled.algorithm_kwargs} == settled.algorithm_kwargs


def test_none_on_the_command_line_takes_back_what_a_file_names(tmp_path: Path) -> None:
    file = tmp_path / "actors.yaml"
    file.write_text("preset: actorq/cartpole-int8\n", encoding="utf-8")
    found = ACTORS.parse(["--config", str(file), "--preset", "None"], prog="actors")
    assert (found.preset, found.network) == (None, None)
    assert SETTINGS.parse(["--config", "None"], prog="train").config is None


def test_steps_are_not_left_open_in_python(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="timesteps is None"):
        train(TrainConfig(out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
