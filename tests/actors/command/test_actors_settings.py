"""Settings of vinoreward actors: where they come from, and what is made of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from vinoreward.errors import ConfigError
from vinoreward_actors.command.build import SB3, build, evaluation_options, settings_of
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.settings import SETTINGS, command, presets
from vinoreward_actors.command.stages import chain_of, monitor_of
from vinoreward_actors.tasks.networks import network


def test_every_preset_is_settled_and_fits_its_task() -> None:
    found = presets()
    assert {"actorq/cartpole-int8", "actorq/humanoid-walk-int8", "accerl/pong-alpha",
            "accerl/seaquest-int8", "hover/fixed-int8"} <= set(found)  # fmt: skip
    for name in found:
        config = SETTINGS.of(preset=name)
        spec = network(config.task, config.network, config.algorithm)
        learner, _ = settings_of(config)
        assert learner.__name__.lower() == config.algorithm
        chain = chain_of(
            config.compress,
            config.backend,
            lambda name, config=config: network(config.task, name, config.algorithm),
        )
        monitor_of(config.monitor, spec.head, chain, config.pull_period)
        assert (chain is None) == ("int8" not in name and config.compress == "none")


def test_what_is_given_wins_over_file_and_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 777\nactors: 3\nlearner: {gamma: 0.9}\n")
    found = SETTINGS.of(preset="actorq/cartpole-int8", config=file, actors=1)
    assert (found.steps, found.actors, found.compress) == (
        777, 1, "[{quantize: int8}, {compile: openvino}]",
    )  # fmt: skip
    assert found.learner["gamma"] == 0.9
    assert found.learner["learning_rate"] == 0.00015


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"preset": "actorq/nothing"}, "no preset"),
        ({"steps": 0}, "steps=0"),
        ({"final_episodes": 1}, "final_episodes"),
        ({"pull_study": (10, 10)}, "different periods"),
        ({"pull_study": (10,), "profile_only": 5}, "one of them"),
        ({"profile_only": 0}, "profile_only"),
        ({"pull_study": (10,), "lag": 1}, "whatever the period"),
        ({"algorithm": "sb3-sac", "samples_per_insert": 2.0}, "gradient_steps"),
        ({"samples_per_insert": 0.0}, "samples_per_insert"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="Expected") as error:
        SETTINGS.of(**options)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "text", ["steps: many\n", "unknown: 1\n", "learner: 3\n", "actors: true\n"]
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="Expected"):
        SETTINGS.of(config=file)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "ppo"}, "algorithm"),
        ({"algorithm": "dqn", "task": "Pendulum-v1"}, "dqn"),
        ({"network": "resnet"}, "resnet"),
        ({"engine": "spark"}, "engine"),
        ({"backend": "tensorrt"}, "backend"),
        ({"task": "NoSuch-v0"}, "NoSuch-v0"),
        ({"learner": {"gama": 0.9}}, "gama"),
        ({"learner": {"gamma": "high"}}, "gamma"),
        ({"learner": {"correctors": "vtrace"}}, "--correctors"),
        ({"learner": {"gamma": 2.0}}, "gamma"),
        ({"correctors": "retrace"}, "Retrace"),
        ({"algorithm": "sb3-dqn", "correctors": "vtrace"}, "Stable-Baselines3"),
        ({"algorithm": "sb3-sac"}, "sb3-sac"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    config = ActorsConfig(**{"task": "CartPole-v0", "network": "1x8", **options})
    with pytest.raises(ConfigError) as error:
        build(config)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: [", "lines such as `steps: 8000`"),
        ("- 1\n", "lines such as `steps: 8000`"),
        ("evaluate-every: 5\n", "key evaluate-every. Expected evaluate_every in place of eval"),
        ("compres: int8\n", "Expected compress in place of compres; correct"),
        ("compres: a\nwww: 1\n", "Expected compress in place of compres; some of out, "),
    ],
)
def test_a_files_error_names_what_this_command_takes(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        SETTINGS.of(config=file)
    assert said in str(error.value) and "timesteps" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "algorithm"),
    [("CartPole-v0", "impala"), ("CartPole-v0", "dqn"), ("Pendulum-v1", "d4pg"),
     ("Pendulum-v1", "sac"), ("Pendulum-v1", "sb3-td3"), ("CartPole-v0", "sb3-dqn")],
)  # fmt: skip
def test_every_algorithm_is_made_by_its_name(task: str, algorithm: str) -> None:
    parts = build(
        ActorsConfig(task=task, algorithm=algorithm, network="2x16", compress="quantize: int8")
    )
    assert parts.learner.spec.actions == (2 if task == "CartPole-v0" else 1)
    assert parts.chain is not None and parts.monitor is not None
    parts.close()
    assert algorithm in SB3 or settings_of(ActorsConfig(algorithm=algorithm))[1].seed == 0


def test_a_command_says_what_differs_from_its_preset() -> None:
    config = SETTINGS.of(preset="actorq/cartpole-int8", actors=2)
    words = command(config)
    assert words == "vinoreward actors --preset actorq/cartpole-int8 --actors 2"
    assert "--compress none" in command(config, compress="none")


def test_evaluations_play_the_game_itself() -> None:
    given = {"clip_reward": True, "terminal_on_life_loss": True, "frame_skip": 3}
    assert evaluation_options(ActorsConfig(env_kwargs=given)) == {"frame_skip": 3}


def test_settings_are_all_recorded() -> None:
    assert {field.name for field in dataclasses.fields(ActorsConfig)} >= {
        "task", "algorithm", "network", "compress", "correctors", "monitor", "engine", "target",
    }  # fmt: skip
