"""What ``vinoreward actors`` refuses, each in a sentence, and what it leaves as it was."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from actor_learner_parts import training
from task_runs import evaluator

from vinoreward.errors import ConfigError, RunFolderError, install_command
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.checkpoint import CHECKPOINT
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.command.build import build
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.run import METRICS, finished, read_rows, read_summary
from vinoreward_actors.command.settings import SETTINGS, recorded
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_training.cli import main
from vinoreward_training.runs.run_folder import plain

# Settings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"preset": "actorq/nothing"}, "actorq/cartpole-int8"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"target": math.nan}, "target"),
        ({"actors": 10**6}, "actors"),
        ({"heartbeat": 0.0}, "heartbeat"),
        ({"steps": 0}, "steps"),
        ({"evaluation_episodes": 1}, "evaluation_episodes"),
        ({"profile_only": 0}, "profile_only"),
        ({"env_kwargs": {"seed": 1}}, "env_kwargs"),
        ({"env_kwargs": {"name": 1}}, "env_kwargs"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, said):
    with pytest.raises(ConfigError, match="Expected") as error:
        SETTINGS.of(**options)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"steps: {\n", "lines such as `steps: 8000`"),
        (b"- 1\n", "lines such as `steps: 8000`"),
        (b"[" * 5000, ""),
        (bytes(range(256)), ""),
        (b"out: 2026-13-45\n", ""),
        (b"1: 2\n", ""),
        (b"env_kwargs: {1: 2}\n", "env_kwargs"),
        (b"learner: [1]\n", "learner"),
        (b"steps: 1.5\n", "steps"),
        (b"profile_only: true\n", "profile_only"),
        (b"evaluate-every: 5\n", "the unknown key evaluate-every. Expected some of out, "),
        (b"compres: a\nwww: 1\n", "the unknown keys compres, www. Expected some of out, "),
    ],
)
def test_a_file_of_anything_else_is_refused(tmp_path, text, said):
    file = tmp_path / "mine.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match="Expected") as error:
        SETTINGS.of(config=file)
    assert said in str(error.value) and "timesteps" not in str(error.value)


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
        ({"learner": {"gamma": 2.0}}, "gamma"),
        ({"learner": {"device": "nowhere"}}, "nowhere"),
        ({"learner": {"correctors": "retrace"}}, "vtrace, importance, uncorrected"),
        ({"learner": {"samples_per_insert": 2.0}}, "samples_per_insert"),
        ({"algorithm": "dqn", "learner": {"samples_per_insert": 0.0}}, "samples_per_insert"),
        ({"algorithm": "dqn", "learner": {"batch_size": True}}, "batch_size"),
        ({"task": "Pendulum-v1", "algorithm": "d4pg", "learner": {"hidden": 0}}, "hidden"),
        ({"algorithm": "dqn", "learner": {"buffer_size": 10**30}}, "PyTorch"),
        ({"algorithm": "dqn", "learner": {"batch_size": 2.5}}, "batch_size"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, said):
    config = ActorsConfig(**{"task": "CartPole-v0", "network": "1x8", **options})
    with pytest.raises(ConfigError) as error:
        build(config)
    assert said in str(error.value) and "\n" not in str(error.value)


# A run's files


def run_folder(path, **changes):
    """A folder with the configuration that a run of one thousand steps recorded."""
    path.mkdir()
    config = ActorsConfig(out=path, network="1x8", steps=1000, **changes)
    (path / "config.yaml").write_text(yaml.safe_dump(plain(recorded(config))))
    return path


@pytest.mark.parametrize("kept", [0, 8])
def test_a_configuration_that_was_cut_off_is_not_completed_by_defaults(tmp_path, kept):
    out = run_folder(tmp_path / "run")
    lines = (out / "config.yaml").read_text().splitlines(keepends=True)
    (out / "config.yaml").write_text("".join(lines[:kept]))
    with pytest.raises(ConfigError, match=r"lacks the run's .*Expected"):
        SETTINGS.of(out=out, resume=True)


@pytest.mark.parametrize(
    ("recorded_as", "given", "said"),
    [
        ({}, {"profile_only": 100}, "profile_only"),
        ({}, {"preset": "actorq/cartpole-int8"}, "preset"),
        ({}, {"config": Path("other.yaml")}, "config"),
    ],
)
def test_a_run_does_not_go_on_as_something_else(tmp_path, recorded_as, given, said):
    out = run_folder(tmp_path / "run", **recorded_as)
    with pytest.raises(ConfigError, match="Expected") as error:
        SETTINGS.of(out=out, resume=True, **given)
    assert said in str(error.value)
    assert SETTINGS.of(out=out, resume=True).steps == 1000


@pytest.mark.parametrize("summary", [b'{"steps": 1', b"[]", b'{"a": 1}', bytes(range(256))])
def test_a_damaged_summary_is_told(tmp_path, summary):
    (tmp_path / "summary.json").write_bytes(summary)
    with pytest.raises(RunFolderError, match="Expected"):
        finished(tmp_path, ActorsConfig())
    with pytest.raises(RunFolderError, match=r"summary\.json"):
        read_summary(tmp_path)


@pytest.mark.parametrize("line", ["nonsense", "null", '{"step": 4}', '{"kind": "train"}'])
def test_a_line_that_is_no_row_is_told_unless_it_is_half_the_last(tmp_path, line):
    rows = [json.dumps({"kind": "train", "step": step}) for step in (1, 5)]
    (tmp_path / METRICS).write_text("\n".join([*rows, '{"ste']))
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 5]
    assert [row["step"] for row in read_rows(tmp_path, until=4)] == [1]
    (tmp_path / METRICS).write_text("\n".join([rows[0], line, rows[1], ""]))
    with pytest.raises(RunFolderError, match=r"line 2 .*Expected"):
        read_rows(tmp_path)


# Environments


class Failing(gym.Env[Any, Any]):
    """Fails where it is told to: at reset, at step, or by the shape of what a step gives."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault, render_mode=None):
        self._fault = fault

    def reset(self, *, seed=None, options=None):
        if self._fault == "reset":
            raise RuntimeError("no scene today")
        return np.zeros(3, np.float32), {}

    def step(self, action):
        if self._fault == "step":
            raise ZeroDivisionError("no gravity today")
        return np.zeros(5 if self._fault == "shape" else 3, np.float32), 1.0, True, False, {}


@pytest.fixture
def failing():
    gym.register("Failing-v0", f"{__name__}:Failing")
    yield "Failing-v0"
    del gym.registry["Failing-v0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fault": "reset"}, "RuntimeError: no scene today"),
        ({"fault": "step"}, "ZeroDivisionError: no gravity today"),
        ({"fault": "shape"}, "an observation of (5,)"),
        ({"fault": "", "wind": 1}, "unexpected keyword argument 'wind'"),
    ],
)
def test_an_environment_that_fails_is_named(failing, options, said):
    """In an evaluation and before training."""
    spec = mlp(3, 2, head="logits", hidden=(4,), value=True)
    if "wind" not in options:
        with evaluator(failing, options) as found:
            with pytest.raises(ConfigError, match="Expected") as error:
                found.play(random_policy(spec, 0), range(2), "numpy")
            assert said in str(error.value) and failing in str(error.value)
    if options["fault"] != "shape":
        environment = EnvironmentSpec(failing, options)
        with pytest.raises(ConfigError, match="Expected one that can be made") as error:
            training(Impala(spec, ImpalaConfig()), environment=environment)
        assert said in str(error.value) and failing in str(error.value)
        assert error.value.__cause__ is not None


def test_an_environment_that_needs_options_is_built_with_them(failing):
    config = ActorsConfig(task=failing, network="1x4", env_kwargs={"fault": "step"})
    assert build(config).task.observation_shape == (3,)


# The command


@pytest.mark.parametrize("options", [("--backend", "tensorrt"), ("--actors", "2")])
def test_a_resume_that_fails_leaves_the_configuration_as_it_was(tmp_path, capsys, options):
    out = run_folder(tmp_path / "run")
    (out / CHECKPOINT).write_bytes(b"damaged")
    before = (out / "config.yaml").read_bytes()
    assert main(["actors", "--resume", "--out", str(out), *options]) == 1
    assert "Expected" in capsys.readouterr().err
    assert (out / "config.yaml").read_bytes() == before


def test_a_finished_run_says_how_to_go_on(tmp_path, capsys):
    out = run_folder(tmp_path / "run")
    summary = {"steps": 1000, "target": None, "reached_at": None, "breakdown": {}}
    (out / "summary.json").write_text(json.dumps(summary))
    assert main(["actors", "--resume", "--out", str(out), "--steps", "10"]) == 0
    assert "--steps 2000" in capsys.readouterr().out
    assert SETTINGS.of(out=out, resume=True).steps == 1000


@pytest.mark.parametrize("name", ["matplotlib", "safetensors", "tensorboard", "torch"])
def test_what_is_missing_is_told_before_training(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # importing it fails, as if it were not there
    assert main(["actors", "--network", "1x8", "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert name in said and install_command("train") in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--compress", "prune: 0.5"), "Distill"),
        (("--truth", "at_goal"), "without 'at_goal'"),
        # One hidden layer: INT8 leaves the first and the last layer as they are.
        (
            ("--compress", "quantize: int8", "--profile-only", "300"),
            "no actor acted with 'quantize: int8'",
        ),
    ],
)
def test_an_error_is_one_sentence_and_leaves_no_results(tmp_path, capsys, options, said):
    out = tmp_path / "run"
    task = ("--task", "CartPole-v0", "--network", "1x8")
    assert main(["actors", *task, *options, "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("vinoreward actors: ") and said in error
    assert not list(out.glob("*.json"))
