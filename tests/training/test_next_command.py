"""What a command prints as the next one runs as it stands, and means the same environment."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from image_folders import write_folder
from tiny_network import rewrite
from toy_environments import save_toy_bundle

from vinoreward.bundles.schema import BundleSpec, Progress
from vinoreward.images import ImageSpec
from vinoreward_training.classifier import finetune
from vinoreward_training.classifier.evaluation import Level, Verdict
from vinoreward_training.cli import commands, main
from vinoreward_training.configs import CaptureConfig, FinetuneConfig, MendConfig, TrainConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.policy.train import SETTINGS
from vinoreward_training.runs.next_command import (
    after_bundle,
    after_capture,
    after_import,
    after_labelling,
    after_mending,
    resume_capture,
    resume_command,
    resume_mend,
    sibling_path,
    to_compare,
    to_mend,
    to_more_images,
    to_play,
    to_train,
    unique_path,
)
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.recorded import recorded_task, task_of_bundle

SIZES = {
    "finetune": ("--epochs", "3"),
    "train": (
        "--timesteps", "1500", "--eval-every", "250", "--final-episodes", "5",
    ),
    "play": ("--episodes", "20", "--film", "0"),
}  # fmt: skip
"""What keeps each command short; all that matters is in what was printed."""


@pytest.fixture
def tutorial(project_root: Path) -> str:
    """What docs/your-own-robot.md says."""
    return (project_root / "docs" / "your-own-robot.md").read_text(encoding="utf-8")


@pytest.fixture
def package(tutorial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The tutorial's package with an environment, beside an empty folder to work in."""
    (source,) = re.findall(r"```python\n(.*?gym\.register.*?)```", tutorial, flags=re.DOTALL)
    (tmp_path / "my_robot.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield "my_robot"
    sys.modules.pop("my_robot", None)
    gym.registry.pop("Lift-v0", None)


def told(text: str) -> list[list[str]]:
    """Return the words of the commands of a document's text."""
    lines = re.findall(r"^\$ vinoreward (.*)$", text.replace("\\\n", " "), flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


def parsed(line: str) -> Any:
    """Return what the real command makes of a printed line, whose further lines are notes."""
    program, name, *words = shlex.split(line.splitlines()[0])
    place, kind = commands()[name]
    assert program == "vinoreward"
    settings = getattr(importlib.import_module(place), "SETTINGS", None) or Settings(kind)
    return settings.parse(words, prog=name)


def record(folder: Path, config: Any) -> None:
    with RunFolder(folder, config):
        pass


@pytest.mark.slow
def test_from_images_to_a_policy_by_what_is_printed(
    package: str, tutorial: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = f"{package}:Lift-v0"
    told_there = told(tutorial)
    words, ran = told_there[0], []
    chain = ["capture", "finetune", "audit", "train", "play"]
    for name in chain:
        ran.append(words)
        assert main([*words, *SIZES.get(words[0], ())]) == 0, words
        said = capsys.readouterr().out
        if name != "play":
            (line,) = re.findall(r"^next: +vinoreward (.*)$", said, flags=re.MULTILINE)
            words = shlex.split(line)
    assert "next:" not in said and "No clear sign that the policy cheats" in said
    assert [each[0] for each in ran] == chain
    assert ran == told_there[:5]  # the tutorial's are those that are printed
    bundle = Path(ran[2][ran[2].index("--bundle") + 1], "bundle")
    assert json.loads((bundle / "bundle.json").read_text("utf-8"))["dataset"]["env"] == env
    run = Path(ran[4][ran[4].index("--run") + 1])
    found = json.loads((run / "play.json").read_text("utf-8"))["evaluation"]
    assert found["truth_key"] == "success"
    # The policy does truly what is claimed: it learned in the environment of the images.
    assert found["true"]["successes"] >= 19 and found["claimed"]["successes"] >= 19
    # The tutorial's own program, beside what its commands made.
    (code,) = re.findall(r"```python\n([^`]*LearnedReward\(env.*?)```", tutorial, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "your-own-robot.md", "exec"), names)
    assert names["reward"] in (0.0, 1.0) and 0 <= names["info"]["reward_prob"] <= 1
    names["env"].close()


def spec(scene: dict[str, object] | None = None, **dataset: Any) -> BundleSpec:
    return BundleSpec(name="b", image=ImageSpec(8, 8, scene=scene or {}), dataset=dataset)


def test_the_readme_uses_the_folders_that_are_printed(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = (project_root / "README.md").read_text("utf-8").split("## A learned reward")[1]
    lines = [["vinoreward", *words] for words in told(section.split("\n## ")[0])]
    of = {words[1]: words for words in lines}
    env, data = "your_package:YourRobot-v0", Path("data/yourrobot")
    assert shlex.split(after_capture(data)) == of["finetune"]
    bundle = Path.cwd() / "runs/yourrobot/bundle"  # absolute, as bundles know it
    trained = spec(env=env)
    assert shlex.split(after_bundle(bundle, trained, data, 30)) == of["audit"]
    assert shlex.split(to_train(bundle, trained)) == of["train"]
    assert shlex.split(to_play(Path("runs/yourrobot-policy"), {"env": env})) == of["play"]


def test_a_bundle_is_trained_on_where_its_images_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the bundle records is not repeated, but for what imports code."""
    monkeypatch.chdir(tmp_path)
    bundle = Path("runs/my lift-classifier/bundle")
    kwargs = {"goal": "far end", "noise": 0.5, "lamp": False}
    recorded = {"env": "a:B-v0", "truth": "up.py:ok", "image_source": "obs:x", "env_kwargs": kwargs}
    assert shlex.split(to_train(bundle, spec(**recorded))) == [
        "vinoreward", "train", "--bundle", "runs/my lift-classifier", "--env", "a:B-v0",
        "--truth", "up.py:ok", "--out", "runs/my lift-policy",
    ]  # fmt: skip
    (tmp_path / "runs" / "my lift-policy").mkdir(parents=True)
    hover = to_train(bundle, spec(env="PandaHoverRandom-v0"))
    assert shlex.split(hover) == [
        "vinoreward", "train", "--bundle", "runs/my lift-classifier", "--out",
        "runs/my lift-policy-2",
    ]  # fmt: skip
    shaped = dataclasses.replace(spec(env="a:B-v0"), progress=Progress(horizon=9))
    assert "--reward-mode progress" in to_train(tmp_path / "lift" / "bundle", shaped)
    installed = shlex.split(to_train(tmp_path.parent / "installed", spec(env="a:B-v0")))
    assert installed[-2:] == ["--out", "runs/installed-policy"]


def test_a_training_takes_what_its_bundle_records(tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy")
    about = {"env": "ToyCorridor-v0", "truth": "true_success", "image_source": "obs:image"}
    about["env_kwargs"] = {"observation": "dict", "first_cells": [1, 2]}  # type: ignore[assignment]

    def change(spec: dict[str, Any]) -> None:
        spec.update(dataset=about, metrics={"failing_episodes": {"hold": 2}})

    rewrite(bundle, change)
    found = SETTINGS.of(bundle=str(bundle.path), algorithm="DQN")
    assert {**about, "image_source": ("obs:image",)} == {
        name: getattr(found, name) for name in about
    }
    assert found.hold == 2
    with make_env(found) as env:
        assert env.unwrapped.first_cells == (1, 2)  # type: ignore[attr-defined]
    named = SETTINGS.of(bundle=str(bundle.path), truth="is_success", hold=1, algorithm="DQN")
    assert (named.truth, named.hold, named.env) == ("is_success", 1, "ToyCorridor-v0")
    # Another environment has other arguments and another truth.
    other = SETTINGS.of(bundle=str(bundle.path), env="CartPole-v1")
    assert (other.truth, other.env_kwargs) == (None, {})
    assert task_of_bundle({}) is None


def test_what_a_stranger_recorded_is_quoted_and_cannot_move_the_cursor() -> None:
    about = {"env": "a\x1b[2J", "truth": "x" * 999, "image_source": [3], "env_kwargs": {"a": "\n"}}
    assert recorded_task({**about, "seed": 1}) == {}
    line = to_train(Path("b"), spec(env="$(touch x):B-v0"))
    assert "'$(touch x):B-v0'" in line and "$(touch x):B-v0" in shlex.split(line)


def test_folders_that_are_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``vinoreward play --run .``."""
    monkeypatch.chdir(tmp_path)
    for name in ("in", "x", "x-2"):
        (tmp_path / name).mkdir()
    expected = tmp_path.parent / f"{tmp_path.name}-profile"
    assert sibling_path(Path("."), "profile") == sibling_path(Path("in/.."), "profile") == expected
    assert sibling_path(Path("runs/lift"), "int8") == Path("runs/lift-int8")
    assert unique_path(tmp_path / "x") == tmp_path / "x-3"


class Walled(gym.Env[Any, Any]):
    """Takes the arguments of a run."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, walls: Any, size: int) -> None:
        pass


gym.register("Walled-v0", entry_point=Walled)
BUNDLE = "runs/pole-classifier/bundle"
LEARNED = TrainConfig(
    env="Walled-v0", algorithm="PPO", bundle=BUNDLE,
    timesteps=700, env_kwargs={"walls": [[1, "c"]], "size": 240}, truth="pole.py:up",
    algorithm_kwargs={"n_steps": 100, "use_sde": True},
)  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A classifier's run and that of a policy that learned from it, as their commands record."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "pole").mkdir(parents=True)
    (tmp_path / "runs" / "pole-classifier").mkdir(parents=True)
    bundle = save_toy_bundle(tmp_path / "runs" / "pole-classifier" / "bundle")
    (bundle.path / "model.safetensors").touch()  # so that it could be mended
    known = {"env": "Walled-v0", "env_kwargs": LEARNED.env_kwargs}
    rewrite(bundle, lambda spec: spec.update(dataset=known))
    record(Path("runs/pole-classifier"), FinetuneConfig(data=Path("data/pole")))
    record(Path("runs/pole-policy"), LEARNED)
    return Path("runs")


def test_labelled_claims_lead_to_a_mending_and_that_to_the_same_training_again(runs: Path) -> None:
    policy = runs / "pole-policy"
    sitting = {"--run": policy, "--limit": 100}
    assert after_labelling(sitting, 3, 90) == f"vinoreward label --run {policy} --limit 100"
    mend = f"vinoreward mend --bundle {BUNDLE} --data data/pole --labels {policy}"
    assert after_labelling(sitting, 0, 55) == f"{mend} --out runs/pole-mended"
    # Stopped at the blind duplicates: there is nothing left to label.
    assert after_labelling(sitting, 2, 0) == f"{mend} --out runs/pole-mended"
    # The truth that claims carry needs no labels, if there are enough.
    assert to_mend(policy, 10) == f"{mend} --out runs/pole-mended"
    assert to_mend(policy, 9) == (f"vinoreward label --run {policy} --bundle {BUNDLE} --limit 100")
    Path(BUNDLE).rename("runs/pole-mended")
    config = MendConfig(bundle=BUNDLE, data=Path("data/pole"), labels=(policy,))
    line = after_mending(Path("runs/pole-mended"), config)
    again = parsed(line)
    assert vars(again) == vars(LEARNED) | {
        "learner": "sb3",
        "bundle": "runs/pole-mended", "out": Path("runs/pole-policy-2"),
        "config": policy / "config.yaml",
        "algorithm_kwargs": again.algorithm_kwargs | LEARNED.algorithm_kwargs,
    }  # fmt: skip


def test_a_second_mending_gets_the_labels_of_the_first_too(runs: Path) -> None:
    first, second, mended = runs / "pole-policy", runs / "pole-policy-2", runs / "pole-mended"
    record(mended, MendConfig(bundle="old", data=Path("data/pole"), labels=(first,)))
    record(second, dataclasses.replace(LEARNED, bundle=str(mended / "bundle")))
    assert after_labelling({"--run": second}, 0) == (
        f"vinoreward mend --bundle {mended}/bundle --data data/pole --labels {first} {second} "
        "--out runs/pole-mended-2"
    )


def test_what_a_run_does_not_say_is_left_to_the_user(runs: Path) -> None:
    policy = runs / "pole-policy"
    (runs.parent / "data" / "pole").rmdir()
    line, note = after_labelling({"--run": policy}, 0).splitlines()
    assert "--data data/its-training " in line and "stands for" in note
    installed = after_labelling({"--run": policy, "--bundle": "panda-hover-classifier"}, 0)
    assert "--bundle panda-hover-classifier" in installed and "runs/panda-hover-mended" in installed
    for text in ("bundle: [3]", "bundle: {", "of: another version"):
        (policy / "config.yaml").write_text(text)
        assert after_labelling({"--run": policy}, 0) == (
            f"vinoreward label --run {policy} --labeller SOMEBODY-ELSE"
        )
    config = MendConfig(bundle="b", data=Path("d"), labels=(policy,))
    assert after_mending(Path("new"), config) == "vinoreward audit --bundle new --data d --seed 1"


@pytest.mark.parametrize(
    ("count", "level", "said"),
    [
        (560, "usable", "vinoreward audit "),
        (120, "usable", "in Python, vinoreward.Classifier("),
        (900, "weak", "add images to {data}, about 1800 in all, "),
    ],
)
def test_a_training_prints_what_its_images_suffice_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, level: Level, said: str
) -> None:
    data = write_folder(tmp_path / "data", count)
    verdict = Verdict(level, frames=1800 if level == "weak" else None)
    config = FinetuneConfig(data=data, target_fpr=0.2, int8="off")
    bundle = save_toy_bundle(tmp_path / "bundle")
    assert finetune.conclude(config, load_dataset(data), bundle.path, verdict) == 0
    assert f"next: {said.format(data=data)}" in capsys.readouterr().out


def test_every_printed_line_is_what_its_command_takes(runs: Path) -> None:
    bundle, data, policy = Path(BUNDLE), Path("data/pole"), runs / "pole-policy"
    mended = MendConfig(bundle="b", data=data, labels=(policy,), env="CartPole-v1")
    written = {"env": "Walled-v0", "truth": "pole.py:up"}
    known = spec(env="Walled-v0")
    record(data, CaptureConfig(out=data, env="CartPole-v1", truth="up.py:up", frames=900))
    lines = [
        after_capture(data),
        after_bundle(bundle, known, data, 0), after_bundle(bundle, known, data, 30),
        to_mend(policy, 99), to_mend(policy, 0), to_play(policy, written),
        to_compare(policy, written), after_mending(bundle, mended), resume_mend(mended),
        after_import(bundle), to_more_images(data, 2000), after_labelling({"--run": policy}, 3, 9),
        after_labelling({"--run": policy}, 0), resume_capture(CaptureConfig(env="CartPole-v1")),
        *(resume_command(name, Path("new")) for name in ("capture", "finetune", "train")),
    ]  # fmt: skip
    for line in lines:
        assert parsed(line) is not None, line
