"""What ``vinoreward actors`` refuses, each in a sentence, and what it leaves as it was."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from task_runs import evaluator

from vinoreward.errors import ConfigError, ModelCorruptError, RunFolderError, install_command
from vinoreward.files import save_state
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.checkpoint import CHECKPOINT, load_checkpoint
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner
from vinoreward_actors.actor_learner.transport.trajectory import ARRAYS
from vinoreward_actors.command.build import build
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.run import METRICS, finished, read_rows, read_summary
from vinoreward_actors.command.settings import SETTINGS, recorded
from vinoreward_actors.command.stages import chain_of, correctors_of, monitor_of
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.tasks.networks import network
from vinoreward_training.cli import main
from vinoreward_training.runs.run_folder import plain


def student(name: str) -> Any:
    return network("CartPole-v0", name)


# Lists of stages


@pytest.mark.parametrize(
    "text", ["uncorrected: {steps: 1.5}", "vtrace: {c: x}", "vtrace: {rho: true}"]
)
def test_a_corrector_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Expected a "):
        correctors_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[default, false]", "False"),
        ("['off', 'off']", "'off'"),
        ("default: {x: 1}", "x=1"),
        ("watch: 1", "value=1"),
        ("kl: {threshold: 14, good: 20}", "bad above good"),
        ("kl: -1", "bad above good"),
        ("kl: {patience: 1.5}", "a whole number"),
        ("kl: {limits: 3}", "limits=3"),
        ("sparsity: {bad: 0.1, good: 0.2}", "bad above good"),
        ("alpha: {low: 0.1}", "no high"),
        ("alpha: 0.1", "value=0.1"),
        ("staged: {exploration: x}", "exploration='x'"),
        ("staged: {exploration: 3}", "exploration=3"),
    ],
)
def test_a_monitor_that_cannot_be_is_refused(text: str, said: str) -> None:
    chain = chain_of("[{prune: 0.5}, distill, {quantize: int8}]", "openvino", student)
    with pytest.raises(ConfigError, match="Expected") as error:
        monitor_of(text, "logits", chain, 10)
    assert said in str(error.value)


# Numbers


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": 2**32},
        {"bits": 0},
        {"bits": 1},
        {"bits": 9},
        {"bits": 64},
        {"target": math.nan},
        {"target": math.inf},
        {"lag": -1},
        {"lag": 10**30},
        {"actors": 10**6},
        {"threads": 10**9},
        {"pull_period": 10**30},
        {"steps": 10**30},
        {"profile_only": 10**30},
        {"pull_study": (10**30,)},
        {"samples_per_insert": math.inf},
        {"samples_per_insert": math.nan},
    ],
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Expected") as error:
        SETTINGS.of(**options)
    assert next(iter(options)) in str(error.value)


@pytest.mark.parametrize(
    ("algorithm", "learner", "said"),
    [
        ("dqn", {"buffer_size": 10**30}, "PyTorch refused"),
        ("dqn", {"device": "nowhere"}, "nowhere"),
        ("impala", {"device": ""}, "device"),
        ("sac", {"hidden": 0}, "hidden"),
        ("sac", {"hidden": -1}, "hidden"),
        ("sac", {"hidden": True}, "hidden"),
        ("sac", {"hidden": 10**30}, "PyTorch refused"),
        ("d4pg", {"num_atoms": 10**30}, "PyTorch refused"),
        ("sb3-dqn", {"buffer_size": 10**15}, "Stable-Baselines3 refused"),
    ],
)
def test_a_learner_that_cannot_be_made_is_refused(
    algorithm: str, learner: dict[str, Any], said: str
) -> None:
    task = "CartPole-v0" if algorithm in ("dqn", "sb3-dqn", "impala") else "Pendulum-v1"
    config = ActorsConfig(task=task, algorithm=algorithm, network="1x8", learner=learner)
    with pytest.raises(ConfigError, match="Expected") as error:
        build(config)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# A run's files


def run_folder(path: Path, **changes: Any) -> Path:
    """A folder with the configuration that a run of one thousand steps recorded."""
    path.mkdir()
    config = ActorsConfig(out=path, network="1x8", steps=1000, **changes)
    (path / "config.yaml").write_text(yaml.safe_dump(plain(recorded(config))))
    return path


@pytest.mark.parametrize("kept", [0, 8])
def test_a_configuration_that_was_cut_off_is_not_completed_by_defaults(
    tmp_path: Path, kept: int
) -> None:
    out = run_folder(tmp_path / "run")
    lines = (out / "config.yaml").read_text().splitlines(keepends=True)
    (out / "config.yaml").write_text("".join(lines[:kept]))
    with pytest.raises(ConfigError, match=r"lacks the run's .*Expected"):
        SETTINGS.of(out=out, resume=True)


@pytest.mark.parametrize(
    ("recorded_as", "given", "said"),
    [
        ({}, {"pull_study": (10, 20)}, "--pull-study"),
        ({}, {"profile_only": 100}, "--profile-only"),
        ({"pull_study": (10, 20)}, {"pull_study": ()}, "--pull-study"),
        ({}, {"preset": "actorq/cartpole-int8"}, "preset="),
        ({}, {"config": Path("other.yaml")}, "config="),
    ],
)
def test_a_run_does_not_go_on_as_something_else(
    tmp_path: Path, recorded_as: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    out = run_folder(tmp_path / "run", **recorded_as)
    with pytest.raises(ConfigError, match="Expected") as error:
        SETTINGS.of(out=out, resume=True, **given)
    assert said in str(error.value)
    assert SETTINGS.of(out=out, resume=True).steps == 1000


@pytest.mark.parametrize(
    "summary", [b"", b'{"steps": 1', b"[]", b"3", b'{"a": 1}', bytes(range(256))]
)
def test_a_damaged_summary_is_told(tmp_path: Path, summary: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(summary)
    with pytest.raises(RunFolderError, match="Expected"):
        finished(tmp_path, ActorsConfig())
    with pytest.raises(RunFolderError, match=r"summary\.json"):
        read_summary(tmp_path)


@pytest.mark.parametrize("line", ["3", "null", "[1]", '{"step": 4}', '{"kind": "train"}'])
def test_a_line_that_is_no_row_is_told(tmp_path: Path, line: str) -> None:
    row = json.dumps({"kind": "train", "step": 1})
    (tmp_path / METRICS).write_text(f"{row}\n{line}\n{row}\n")
    with pytest.raises(RunFolderError, match=r"line 2 .*Expected"):
        read_rows(tmp_path)


STATE: dict[str, Any] = {
    "learner": {"weights": torch.zeros(3)},
    "monitor": None,
    "steps": 10,
    "version": 2,
    "returns": [1.0, 2],
    "episodes": 2,
    "observations": torch.zeros(4, 3),
}


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    save_state(tmp_path / CHECKPOINT, STATE)
    found = load_checkpoint(tmp_path)
    assert found is not None and found["steps"] == 10
    assert torch.equal(found["observations"], STATE["observations"])


@pytest.mark.parametrize(
    "changed",
    [
        {"learner": None},
        {"monitor": 3},
        {"steps": "x"},
        {"steps": -5},
        {"version": None},
        {"returns": 3},
        {"returns": ["x"]},
        {"episodes": 1.5},
        {"observations": [1]},
        {"observations": torch.zeros(0, 4)},
        {"observations": torch.zeros(4)},
        {"held": 3},
        {"held": [3]},
        {"held": [{"rewards": torch.zeros(2, 1)}]},
        {"held": [dict.fromkeys(ARRAYS, 3)]},
    ],
)
def test_a_checkpoint_with_something_else_in_it_is_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    save_state(tmp_path / CHECKPOINT, {**STATE, **changed})
    with pytest.raises(ModelCorruptError, match="Expected") as error:
        load_checkpoint(tmp_path)
    assert next(iter(changed)) in str(error.value)


def test_a_folder_in_a_checkpoints_place_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).mkdir()
    with pytest.raises(ModelCorruptError, match="Expected"):
        load_checkpoint(tmp_path)


# Environments


class Failing(gym.Env[Any, Any]):
    """Fails where it is told to.

    Args:
        fault: reset, step, or shape: of what a step gives.
    """

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault: str = "", render_mode: str | None = None) -> None:
        self._fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self._fault == "reset":
            raise RuntimeError("no scene today")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        if self._fault == "step":
            raise ZeroDivisionError("no gravity today")
        return np.zeros(5 if self._fault == "shape" else 3, np.float32), 1.0, True, False, {}


@pytest.fixture
def failing() -> Iterator[str]:
    gym.register("Failing-v0", f"{__name__}:Failing")
    yield "Failing-v0"
    del gym.registry["Failing-v0"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("reset", "RuntimeError: no scene today"),
        ("step", "ZeroDivisionError: no gravity today"),
        ("shape", "an observation of (5,)"),
    ],
)
def test_an_environment_that_fails_in_an_evaluation_is_named(
    failing: str, fault: str, said: str
) -> None:
    policy = random_policy(mlp(3, 2, head="logits", hidden=(4,)), 0)
    with evaluator(failing, {"fault": fault}) as found:
        with pytest.raises(ConfigError, match="Expected") as error:
            found.play(policy, range(2), "numpy")
        assert said in str(error.value) and failing in str(error.value)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("reset", "RuntimeError: no scene today"),
        ("step", "ZeroDivisionError: no gravity today"),
        ("wind", "unexpected keyword argument 'wind'"),
    ],
)
def test_an_environment_that_fails_before_training_is_named(
    failing: str, fault: str, said: str
) -> None:
    options = {"wind": 1} if fault == "wind" else {"fault": fault}
    learner = Impala(mlp(3, 2, head="logits", hidden=(4,), value=True), ImpalaConfig())
    with pytest.raises(ConfigError, match="Expected one that can be made") as error:
        ActorLearner(EnvironmentSpec(failing, options), learner)
    assert said in str(error.value) and failing in str(error.value)
    assert error.value.__cause__ is not None


@pytest.mark.parametrize("name", ["seed", "name"])
def test_what_the_environment_is_given_already_is_no_option_of_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"env_kwargs with {name},.*Expected"):
        SETTINGS.of(env_kwargs={name: 1})


def test_an_environment_that_needs_options_is_built_with_them() -> None:
    gym.register("Needy-v0", lambda *, fault, **more: Failing(fault, **more))
    try:
        config = ActorsConfig(task="Needy-v0", network="1x4", env_kwargs={"fault": "step"})
        assert build(config).task.observation_shape == (3,)
    finally:
        del gym.registry["Needy-v0"]


def test_observations_of_another_network_are_refused(tmp_path: Path) -> None:
    learner = Impala(mlp(4, 2, head="logits", hidden=(4,), value=True), ImpalaConfig())
    save_state(tmp_path / CHECKPOINT, {**STATE, "learner": learner.state()})
    with pytest.raises(ModelCorruptError, match=r"observations of \(3,\)\. Expected \(4,\)"):
        ActorLearner("CartPole-v1", learner, folder=tmp_path, resume=True)


# The command


@pytest.mark.parametrize("options", [("--backend", "tensorrt"), ("--actors", "2")])
def test_a_resume_that_fails_leaves_the_configuration_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, str]
) -> None:
    out = run_folder(tmp_path / "run")
    (out / CHECKPOINT).write_bytes(b"damaged")
    before = (out / "config.yaml").read_bytes()
    assert main(["actors", "--resume", "--out", str(out), "--no-progress", *options]) == 1
    assert "Expected" in capsys.readouterr().err
    assert (out / "config.yaml").read_bytes() == before


def test_a_finished_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run_folder(tmp_path / "run")
    summary: dict[str, Any] = {"steps": 1000, "target": None, "reached_at": None, "breakdown": {}}
    (out / "summary.json").write_text(json.dumps(summary))
    assert main(["actors", "--resume", "--out", str(out), "--steps", "10"]) == 0
    assert "--steps 2000" in capsys.readouterr().out
    assert SETTINGS.of(out=out, resume=True).steps == 1000


@pytest.mark.parametrize(
    "learner",
    [
        {"gamma": "x"},
        {"gamma": math.nan},
        {"tau": -1.0},
        {"batch_size": 0},
        {"batch_size": -3},
        {"batch_size": 2.5},
        {"buffer_size": 0},
        {"train_freq": 0},
        {"gradient_steps": 0},
        {"gradient_steps": -2},
        {"learning_starts": -1},
        {"use_sde": 1},
        {"policy_kwargs": "x"},
        {"tensorboard_log": "/x"},
        {"device": "cuda"},
        {"seed": 1},
    ],
)
def test_settings_that_stable_baselines3_would_not_look_at_are_refused(
    learner: dict[str, Any],
) -> None:
    config = ActorsConfig(task="Pendulum-v1", algorithm="sb3-sac", network="1x8", learner=learner)
    with pytest.raises(ConfigError, match="Expected") as error:
        build(config)
    assert next(iter(learner)) in str(error.value)


def test_settings_of_stable_baselines3_reach_the_model() -> None:
    learner: dict[str, Any] = {
        "gamma": 0.9, "batch_size": 8, "ent_coef": 0.1, "target_entropy": "auto", "tau": 1,
        "gradient_steps": -1, "train_freq": 2, "learning_rate": 1,
    }  # fmt: skip
    config = ActorsConfig(task="Pendulum-v1", algorithm="sb3-sac", network="1x8", learner=learner)
    parts = build(config)
    model: Any = parts.learner.model  # type: ignore[attr-defined]
    assert (model.gamma, model.batch_size, model.ent_coef) == (0.9, 8, 0.1)
    parts.close()


@pytest.mark.parametrize(
    "text",
    [
        b"out: 2026-13-45\n",
        b"[" * 5000,
        b"steps: {\n",
        b"- 1\n",
        bytes(range(256)),
        b"env_kwargs: {1: 2}\n",
        b"learner: [1]\n",
        b"steps: 1.5\n",
        b"out: 3\n",
        b"task: [a]\n",
        b"1: 2\n",
        b"profile_only: true\n",
        b"pull_study: 10\n",
    ],
)
def test_a_file_of_anything_else_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match="Expected"):
        SETTINGS.of(config=file)


@pytest.mark.parametrize("name", ["matplotlib", "safetensors", "tensorboard", "torch"])
def test_what_is_missing_is_told_before_training(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # importing it fails, as if it were not there
    assert main(["actors", "--network", "1x8", "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert name in said and install_command("train") in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_profile_of_nothing_compressed_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One hidden layer: INT8 leaves the first and the last layer as they are, so nothing is left.
    arguments = [
        "actors",
        "--network",
        "1x8",
        "--compress",
        "quantize: int8",
        "--profile-only",
        "300",
    ]
    assert main([*arguments, "--no-progress", "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert (
        "no actor acted with 'quantize: int8'" in said and "Expected a layer between them" in said
    )
    assert not (tmp_path / "run" / "profile.json").exists()


@pytest.mark.slow
def test_a_short_profile_says_that_it_is_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["actors", "--network", "1x8", "--profile-only", "1", "--no-progress"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    assert "1000 or more are reliable" in capsys.readouterr().out
