"""What a command prints as the next one runs as it stands, and means the same environment."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from toy_environments import save_toy_bundle

from vinoreward.bundles.schema import BundleSpec, Picture
from vinoreward.errors import PictureMismatchError
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig, FinetuneConfig, MendConfig, TrainConfig
from vinoreward_training.policy.train import SETTINGS
from vinoreward_training.runs.next_command import (
    WRAPPED,
    YOURS,
    after_bundle,
    after_capture,
    after_labelling,
    after_mending,
    after_play,
    after_profile,
    after_training,
    beside,
    bundle_name,
    capture_again,
    free,
    mend_again,
    origin,
    to_train,
)
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import command_line
from vinoreward_training.tasks.environments import make_env

SIZES = {
    "finetune": ("--epochs", "3", "--batch-size", "16", "--threads", "1"),
    "quantize": ("--calibration", "32"),
    "train": (
        "--timesteps", "1500", "--eval-every", "250", "--final-episodes", "5", "--no-progress",
    ),
    "play": ("--episodes", "20", "--film", "0", "--no-progress"),
    "profile": ("--steps", "3"),
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


def following(said: str) -> list[str]:
    """Return the words of the one command that was printed as the next."""
    (line,) = re.findall(r"^next: +vinoreward (.*)$", said, flags=re.MULTILINE)
    return shlex.split(line)


@pytest.mark.slow
def test_from_pictures_to_a_policy_by_what_is_printed(
    package: str, tutorial: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = f"{package}:Lift-v0"
    commands = told(tutorial)
    words = commands[0]
    ran = []
    for _ in range(6):
        ran.append(words)
        assert main([*words, *SIZES.get(words[0], ())]) == 0, words
        words = following(capsys.readouterr().out)
    assert ran[:5] == commands[:5]  # the tutorial's are those that are printed
    assert [each[0] for each in ran] == [
        "capture", "finetune", "quantize", "train", "play", "profile",
    ]  # fmt: skip
    assert words[0] == "train"
    options = dict(itertools.pairwise(words))
    assert (options["--env"], options["--truth-key"]) == (env, "success")
    for name in ("train", "play", "profile"):
        words = next(each for each in ran if each[0] == name)
        assert words[words.index("--env") + 1] == env
    bundle = Path(ran[2][ran[2].index("--bundle") + 1])
    assert json.loads((bundle / "bundle.json").read_text("utf-8"))["dataset"]["env"] == env
    run = Path(ran[4][ran[4].index("--run") + 1])
    policy = json.loads((run / "policy.json").read_text("utf-8"))
    assert (policy["env"], policy["truth_key"]) == (env, "success")
    assert policy["wrap_bundle"] is True and Path(policy["bundle"]) == bundle
    found = json.loads((run / "play.json").read_text("utf-8"))["evaluation"]
    assert found["truth_key"] == "success"
    # The policy does truly what is claimed: it learned in the environment of the pictures.
    assert found["true"]["successes"] >= 19 and found["claimed"]["successes"] >= 19
    # The tutorial's own program, beside what its commands made.
    (code,) = re.findall(r"```python\n([^`]*LearnedReward\(env.*?)```", tutorial, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "your-own-robot.md", "exec"), names)
    assert names["reward"] in (0.0, 1.0) and 0 <= names["info"]["reward_prob"] <= 1
    names["env"].close()


def spec(scene: dict[str, object] | None = None, **dataset: Any) -> BundleSpec:
    return BundleSpec(name="b", picture=Picture(8, 8, scene=scene or {}), dataset=dataset)


def test_the_readme_uses_the_folders_that_are_printed(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = (project_root / "README.md").read_text("utf-8").split("### A bundle for it")[1]
    lines = [["vinoreward", *words] for words in told(section.split("```")[1])]
    of = {words[1]: words for words in lines}
    options = {name: dict(itertools.pairwise(words)) for name, words in of.items()}
    data = Path(options["capture"]["--out"])
    assert options["finetune"]["--data"] == str(data)
    trained = dict(itertools.pairwise(shlex.split(after_capture(data, 3000))))
    assert trained["--out"] == options["finetune"]["--out"]
    bundle = Path.cwd() / trained["--out"] / "bundle"  # absolute, as bundles know it
    assert shlex.split(after_bundle(bundle, data)) == of["quantize"]
    env = options["capture"]["--env"]
    policy = dict(itertools.pairwise(shlex.split(to_train(bundle, spec(env=env)))))
    for option in ("--env", "--bundle", "--out", "--success-reward", "--step-reward"):
        assert options["train"][option] == policy[option]
    assert options["play"]["--run"] == policy["--out"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Path("data/hover"), "hover-classifier"),
        (Path("data/mine/"), "mine-classifier"),
        (Path("data/mine/../my pictures (2)"), "my-pictures-2-classifier"),
        (Path("/"), "classifier"),
        ("my_package:CartPole-v1", "cartpole-classifier"),
        ("ALE/Pong-v5", "pong-classifier"),
    ],
)
def test_a_bundle_is_called_after_what_it_is_trained_on(source: Path | str, name: str) -> None:
    assert bundle_name(source, "classifier") == name


def test_a_bundle_is_trained_on_where_its_pictures_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = Path("runs/my lift-classifier/bundle")
    recorded: dict[str, Any] = {"env": "a:B-v0", "truth_key": "ok", "actions": "discrete"}
    recorded["image_source"] = "obs:front"
    recorded["env_kwargs"] = {"goal": "far end", "noise": 0.5, "lamp": False}
    assert shlex.split(to_train(bundle, spec(**recorded))) == [
        "vinoreward", "train", "--env", "a:B-v0", *WRAPPED, "--bundle", str(bundle),
        "--image-source", "obs:front", "--truth-key", "ok", "--algorithm", "DQN",
        "--env-kwargs", "goal", "far end", "noise", "0.5", "lamp", "False",
        "--out", "runs/my lift-policy",
    ]  # fmt: skip
    (tmp_path / "runs" / "my lift-policy").mkdir(parents=True)
    hover = to_train(bundle, spec({"drawn": "960x720"}, env="PandaHoverRandom-v0"))
    assert shlex.split(hover) == [
        "vinoreward", "train", "--env", "PandaHoverRandom-v0", "--bundle", str(bundle),
        "--env-kwargs", "fidelity", "article", "--out", "runs/my lift-policy-2",
    ]  # fmt: skip
    unknown = to_train(bundle, spec())
    assert f"--env {YOURS} --wrap-bundle " in unknown and "stands for your env" in unknown


def test_other_commands_name_what_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--target-fpr" not in after_capture(Path("data/mine"), 4000)
    assert after_capture(Path("data/mine"), 400).endswith("mine-classifier --target-fpr 0.1")
    assert "--success-label good" in after_bundle(Path("b"), Path("d"), "good")
    run = Path("runs/lift policy")
    found = {"env": "a:B-v0", "bundle": "runs/b", "env_kwargs": {}}
    assert shlex.split(after_play(run, found))[1:] == [
        "profile", "--env", "a:B-v0", "--bundle", "runs/b", "--out", "runs/lift policy-profile",
    ]  # fmt: skip
    sized = after_play(run, {**found, "env_kwargs": {"width": 96}})
    assert sized.endswith("--bundle runs/b --env-kwargs width 96 --out 'runs/lift policy-profile'")
    unprintable = {**found, "env_kwargs": {"width": "\x1b[2J"}}
    for other in ({**found, "bundle": None}, {"task": "a:B-v0"}, unprintable):
        assert "play --run 'runs/lift policy' --env a:B-v0" in after_play(run, other)
    (tmp_path / "x").mkdir()
    (tmp_path / "x-2").mkdir()
    assert free(tmp_path / "x") == tmp_path / "x-3"


def test_a_profile_leads_to_the_training_that_its_bundle_is_for(tmp_path: Path) -> None:
    about = {"env": "a:B-v0", "truth_key": "goal", "actions": "discrete"}
    found = shlex.split(after_profile("a:B-v0", "b", own=False, dataset=about))
    options = dict(itertools.pairwise(found))
    assert (options["--truth-key"], options["--algorithm"]) == ("goal", "DQN")
    sized = after_profile("a:B-v0", "b", own=False, dataset=about, env_kwargs={"width": 96})
    assert "--env-kwargs width 96 " in sized
    seen = {**about, "image_source": "obs:pixels"}
    assert "--image-source obs:pixels" in after_profile("a:B-v0", "b", own=False, dataset=seen)
    assert "--image-source" not in after_profile("a:B-v0", "b", own=True, dataset=seen)
    # In another environment what the pictures' one needs means nothing.
    assert "--truth-key" not in after_profile("a:C-v0", "b", own=False, dataset=about)


def test_what_a_stranger_recorded_is_quoted_and_cannot_move_the_cursor() -> None:
    assert origin({"env": "a\x1b[2J", "truth_key": 3, "actions": "x" * 999, "seed": 1}) == {}
    line = to_train(Path("b"), spec(env="$(touch x); B-v0"))
    assert shlex.split(line)[3] == "$(touch x); B-v0" and "'$(touch x); B-v0'" in line


def test_the_hover_scene_refuses_pictures_of_unknown_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = save_toy_bundle(tmp_path / "bundle")
    for options in ({}, {"fidelity": "article"}):
        with pytest.raises(PictureMismatchError, match=r"does not say what drew.*accept_foreign"):
            gym.make("PandaHover-v0", bundle=bundle.path, **options)
    gym.make("PandaHover-v0", bundle=bundle.path, accept_foreign_pictures=True).close()
    words = ["train", "--bundle", str(bundle.path), "--out", str(tmp_path / "run")]
    assert main(words) == 1
    assert "--accept-foreign-pictures" in capsys.readouterr().err
    # A profile measures times alone.
    words = ["profile", "--bundle", str(bundle.path), "--out", str(tmp_path / "profile")]
    assert main([*words, "--steps", "2", "--no-learner"]) == 0


def test_a_wrapped_scene_refuses_them_too(tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "bundle")

    def made(**options: Any) -> gym.Env[Any, Any]:
        scene = {"scene": {"mesh": "20"}}
        return make_env(
            "ToyCorridor-v0", scene, bundle=str(bundle.path), wrap_bundle=True, **options
        )

    with pytest.raises(PictureMismatchError, match=r"does not say what drew.*accept-foreign"):
        made()
    made(accept_foreign_pictures=True).close()


@pytest.mark.parametrize("name", ["capture", "train", "profile"])
def test_a_package_that_python_does_not_find_is_said_to_be_that(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [name, "--env", "my_missing_arm:Arm-v0", "--out", str(tmp_path / "run")]
    assert main([*words, *(["--bundle", "panda-hover-classifier"] * (name != "capture"))]) == 1
    said = capsys.readouterr().err
    assert "Python does not find my_missing_arm" in said and "PYTHONPATH=." in said


def test_a_folder_beside_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``vinoreward play --run .``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    expected = tmp_path.parent / f"{tmp_path.name}-profile"
    assert beside(Path("."), "profile") == beside(Path("in/.."), "profile") == expected
    assert beside(Path("runs/lift"), "int8") == Path("runs/lift-int8")
    assert str(expected) in after_play(Path("."), {"env": "PandaHover-v0"})


def test_a_stopped_mending_goes_on_with_all_its_options() -> None:
    config = MendConfig(bundle="old", data=Path("d"), labels=(Path("a b"), Path("c")), share=0.2,
                        env="Pendulum-v1", env_kwargs={"g": 9.0}, truth="up.py:up",
                        examples=False)  # fmt: skip
    line = mend_again(config)
    assert line == (
        "vinoreward mend --bundle old --data d --labels 'a b' c --share 0.2 --env Pendulum-v1 "
        "--env-kwargs g 9.0 --truth up.py:up --no-examples --resume"
    )
    parsed = command_line(MendConfig, shlex.split(line)[2:], prog="vinoreward mend")
    assert parsed == dataclasses.replace(config, resume=True)


def test_a_stopped_capture_goes_on_with_all_that_it_imports() -> None:
    config = CaptureConfig(out=Path("d"), env="my:Arm-v0", truth="up.py:up", policy="up.py:act")
    assert capture_again(config, "--patience", "9") == (
        "vinoreward capture --resume --out d --env my:Arm-v0 --policy up.py:act --truth up.py:up "
        "--patience 9"
    )
    known = CaptureConfig(out=Path("d"), env="CartPole-v1", policy="runs/pole-policy")
    assert capture_again(known) == "vinoreward capture --resume --out d"


def test_a_mended_bundle_is_audited_as_it_was() -> None:
    config = MendConfig(bundle="old", data=Path("d"), labels=(Path("run"),), env="Pendulum-v1",
                        env_kwargs={"g": 9.0}, truth="up.py:up", success_label="good",
                        policy="up.py:act", image_source="obs")  # fmt: skip
    assert after_mending(Path("new"), config) == (
        "vinoreward audit --bundle new --data d --seed 1 --success-label good --env Pendulum-v1 "
        "--env-kwargs g 9.0 --policy up.py:act --truth up.py:up --image-source obs"
    )
    bare = MendConfig(bundle="old", data=Path("d"), labels=(Path("run"),))
    assert after_mending(Path("new"), bare) == "vinoreward audit --bundle new --data d --seed 1"


LEARNED = TrainConfig(
    env="CartPole-v1", algorithm="PPO", wrap_bundle=True, bundle="runs/pole-classifier/bundle",
    timesteps=700, env_kwargs={"walls": [[1, "c"]], "size": 240}, truth="pole.py:up",
    algorithm_kwargs={"n_steps": 100, "use_sde": True},
)  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A classifier's run and that of a policy that learned from it, as their commands record."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "pole").mkdir(parents=True)
    finetuned = FinetuneConfig(data=Path("data/pole"))
    for name, config in (("pole-classifier", finetuned), ("pole-policy", LEARNED)):
        with RunFolder(Path("runs", name), config):
            pass
    return Path("runs")


def test_labelled_claims_lead_to_a_mending_and_that_to_the_same_training_again(runs: Path) -> None:
    policy, bundle = runs / "pole-policy", "runs/pole-classifier/bundle"
    sitting = {"--run": policy, "--limit": 100}
    assert after_labelling(sitting, 3, 90) == f"vinoreward label --run {policy} --limit 100"
    mend = f"vinoreward mend --bundle {bundle} --data data/pole --labels {policy}"
    assert after_labelling(sitting, 0, 55) == f"{mend} --out runs/pole-mended"
    # Stopped at the blind duplicates: there is nothing left to label.
class Walled(gym.Env[Any, Any]):
    """Takes the arguments of a run."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, walls: Any, size: int) -> None:
        pass


gym.register("Walled-v0", entry_point=Walled)
    assert after_labelling(sitting, 2, 0) == f"{mend} --out runs/pole-mended"
    config = MendConfig(bundle=bundle, data=Path("data/pole"), labels=(policy,))
    # The environment's package and the truth's file are named: a file may be a stranger's.
    line = shlex.split(after_mending(Path("runs/pole-mended/bundle"), config))
    assert line[:2] == ["vinoreward", "train"] and line[-1] == "runs/pole-policy-2"
    again = SETTINGS.parse(line[2:], prog="vinoreward train")
    assert vars(again) == vars(LEARNED) | {
        "learner": "sb3",
        "bundle": "runs/pole-mended/bundle", "out": Path("runs/pole-policy-2"),
        "config": policy / "config.yaml",
    }  # fmt: skip


def test_a_second_mending_gets_the_labels_of_the_first_too(runs: Path) -> None:
    first, second, mended = runs / "pole-policy", runs / "pole-policy-2", runs / "pole-mended"
    config = MendConfig(bundle="old", data=Path("data/pole"), labels=(first,), success_label="good")
    learned = dataclasses.replace(LEARNED, bundle=str(mended / "bundle"))
    for folder, settings in ((mended, config), (second, learned)):
        with RunFolder(folder, settings):
            pass
    assert after_labelling({"--run": second}, 0) == (
        f"vinoreward mend --bundle {mended}/bundle --data data/pole --success-label good "
        f"--labels {first} {second} --out runs/pole-mended-2"
    )


def test_what_a_run_does_not_tell_is_not_made_up(runs: Path) -> None:
    policy = runs / "pole-policy"
    (runs.parent / "data" / "pole").rmdir()
    line, note = after_labelling({"--run": policy}, 0).splitlines()
    assert "--data data/its-training " in line and "stands for" in note
    installed = after_labelling({"--run": policy, "--bundle": "panda-hover-classifier"}, 0)
    assert "--bundle panda-hover-classifier" in installed and "runs/panda-hover-mended" in installed
    for text in ("bundle: [3]", 'bundle: "\\e[2J"', "bundle: {", "of: another version"):
        (policy / "config.yaml").write_text(text)
        assert after_labelling({"--run": policy}, 0) == (
        "algorithm_kwargs": again.algorithm_kwargs | LEARNED.algorithm_kwargs,
            f"vinoreward label --run {policy} --labeller SOMEBODY-ELSE"
        )
    config = MendConfig(bundle="b", data=Path("d"), labels=(policy,))
    assert after_mending(Path("new"), config) == "vinoreward audit --bundle new --data d --seed 1"


def test_a_training_leads_to_its_claims_after_an_alarm_and_else_to_its_policy() -> None:
    policy = {"env": "a:B-v0", "truth": "up.py:up"}
    assert after_training(Path("r"), policy, alarmed=True) == (
        "vinoreward label --run r --limit 100"
    )
    assert after_training(Path("r"), policy, alarmed=False) == (
        "vinoreward play --run r --env a:B-v0 --truth up.py:up"
    )
