"""What a command prints as the next one runs as it stands, and means the same environment."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from image_folders import write_folder
from PIL import Image
from tiny_network import rewrite
from toy_environments import save_toy_bundle, save_toy_encoder

from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import ImageMismatchError
from vinoreward.images import ImageSpec
from vinoreward_training.classifier import finetune
from vinoreward_training.cli import commands, main
from vinoreward_training.configs import CaptureConfig, FinetuneConfig, MendConfig, TrainConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.policy.train import SETTINGS
from vinoreward_training.runs.next_command import (
    IMAGES,
    WRAPPED,
    after_bundle,
    after_capture,
    after_import,
    after_labelling,
    after_mending,
    again,
    beside,
    bundle_name,
    capture_again,
    free,
    mend_again,
    origin,
    to_compare,
    to_mend,
    to_more_images,
    to_play,
    to_train,
)
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import command_line
from vinoreward_training.tasks.environments import make_env

SIZES = {
    "finetune": ("--epochs", "3"),
    "train": (
        "--timesteps", "1500", "--eval-every", "250", "--final-episodes", "5", "--no-progress",
    ),
    "play": ("--episodes", "20", "--film", "0", "--no-progress"),
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
    settings = getattr(importlib.import_module(place), "SETTINGS", None)
    assert program == "vinoreward"
    if settings is not None:
        return settings.parse(words, prog=name)
    return command_line(kind, words, prog=name)


def following(said: str) -> list[str]:
    """Return the words of the one command that was printed as the next."""
    (line,) = re.findall(r"^next: +vinoreward (.*)$", said, flags=re.MULTILINE)
    return shlex.split(line)


@pytest.mark.slow
def test_from_images_to_a_policy_by_what_is_printed(
    package: str, tutorial: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = f"{package}:Lift-v0"
    commands = told(tutorial)
    words = commands[0]
    ran = []
    chain = ["capture", "finetune", "audit", "train", "play"]
    for name in chain:
        ran.append(words)
        assert main([*words, *SIZES.get(words[0], ())]) == 0, words
        said = capsys.readouterr().out
        words = following(said) if name != "play" else []
    assert "next:" not in said and "No sure sign that the policy cheats" in said
    assert [each[0] for each in ran] == chain
    assert ran == commands[:5]  # the tutorial's are those that are printed
    for name in ("train", "play"):
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
    section = (project_root / "README.md").read_text("utf-8").split("### A bundle for it")[1]
    lines = [["vinoreward", *words] for words in told(section.split("```")[1])]
    of = {words[1]: words for words in lines}
    options = {name: dict(itertools.pairwise(words)) for name, words in of.items()}
    data = Path(options["capture"]["--out"])
    assert options["finetune"]["--data"] == str(data)
    trained = dict(itertools.pairwise(shlex.split(after_capture(data))))
    assert trained["--out"] == options["finetune"]["--out"]
    bundle = Path.cwd() / trained["--out"] / "bundle"  # absolute, as bundles know it
    made = spec(env=options["capture"]["--env"])
    assert shlex.split(after_bundle(bundle, made, data, 30)) == of["audit"]
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
        (Path("data/mine/../my images (2)"), "my-images-2-classifier"),
        (Path("/"), "classifier"),
        ("my_package:CartPole-v1", "cartpole-classifier"),
        ("ALE/Pong-v5", "pong-classifier"),
    ],
)
def test_a_bundle_is_called_after_what_it_is_trained_on(source: Path | str, name: str) -> None:
    assert bundle_name(source, "classifier") == name


def test_a_bundle_is_trained_on_where_its_images_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = Path("runs/my lift-classifier/bundle")
    recorded: dict[str, Any] = {"env": "a:B-v0", "truth_key": "ok"}
    recorded["image_source"] = "obs:front"
    recorded["env_kwargs"] = {"goal": "far end", "noise": 0.5, "lamp": False}
    assert shlex.split(to_train(bundle, spec(**recorded))) == [
        "vinoreward", "train", "--env", "a:B-v0", *WRAPPED, "--bundle", str(bundle),
        "--image-source", "obs:front", "--truth-key", "ok",
        "--env-kwargs", "goal", "far end", "noise", "0.5", "lamp", "False",
        "--out", "runs/my lift-policy",
    ]  # fmt: skip
    (tmp_path / "runs" / "my lift-policy").mkdir(parents=True)
    hover = to_train(bundle, spec({"drawn": "960x720"}, env="PandaHoverRandom-v0"))
    assert shlex.split(hover) == [
        "vinoreward", "train", "--env", "PandaHoverRandom-v0", "--bundle", str(bundle),
        "--env-kwargs", "fidelity", "article", "--out", "runs/my lift-policy-2",
    ]  # fmt: skip


def test_other_commands_name_what_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert after_capture(Path("data/mine")).endswith("mine-classifier")
    assert "--success-label good" in after_bundle(Path("b"), spec(), Path("d"), 30, "good")
    (tmp_path / "x").mkdir()
    (tmp_path / "x-2").mkdir()
    assert free(tmp_path / "x") == tmp_path / "x-3"


@pytest.mark.parametrize(
    ("tested", "name"),
    [(30, "audit"), (29, "train")],
)
def test_a_bundle_leads_to_the_first_command_that_its_data_suffice_for(
    tested: int, name: str
) -> None:
    line = after_bundle(Path("b"), spec(env="CartPole-v1"), Path("d"), tested)
    assert shlex.split(line)[1] == name


@pytest.mark.parametrize(("kind", "said"), [("classifier", "Prediction("), ("encoder", "[[")])
def test_photographs_lead_to_a_program_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    save = save_toy_bundle if kind == "classifier" else save_toy_encoder
    bundle = save(tmp_path / "bundle")
    image = bundle.spec.image
    Path(IMAGES).mkdir(parents=True)
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (image.width, image.height)).save(Path(IMAGES, name))
    about, *program = to_train(bundle.path, bundle.spec).splitlines()
    assert "vinoreward " not in about and 4 <= len(program) <= 6
    exec(textwrap.dedent("\n".join(program)), {})
    assert [said in line for line in capsys.readouterr().out.splitlines() if IMAGES in line] == [
        True, True,
    ]  # fmt: skip


def test_what_a_stranger_recorded_is_quoted_and_cannot_move_the_cursor() -> None:
    assert origin({"env": "a\x1b[2J", "truth_key": 3, "truth": "x" * 999, "seed": 1}) == {}
    line = to_train(Path("b"), spec(env="$(touch x); B-v0"))
    assert shlex.split(line)[3] == "$(touch x); B-v0" and "'$(touch x); B-v0'" in line


def test_the_hover_scene_refuses_images_of_unknown_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = save_toy_bundle(tmp_path / "bundle")
    for options in ({}, {"fidelity": "article"}):
        with pytest.raises(ImageMismatchError, match=r"does not say what drew.*accept_foreign"):
            gym.make("PandaHover-v0", bundle=bundle.path, **options)
    gym.make("PandaHover-v0", bundle=bundle.path, accept_foreign_images=True).close()
    words = ["train", "--bundle", str(bundle.path), "--out", str(tmp_path / "run")]
    assert main(words) == 1
    assert "--accept-foreign-images" in capsys.readouterr().err
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

    with pytest.raises(ImageMismatchError, match=r"does not say what drew.*accept-foreign"):
        made()
    made(accept_foreign_images=True).close()


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


def test_a_stopped_mending_goes_on_with_all_its_options() -> None:
    config = MendConfig(bundle="old", data=Path("d"), labels=(Path("a b"), Path("c")), seed=2,
                        env="Pendulum-v1", env_kwargs={"g": 9.0}, truth="up.py:up")  # fmt: skip
    line = mend_again(config)
    assert line == (
        "vinoreward mend --bundle old --data d --labels 'a b' c --env Pendulum-v1 "
        "--env-kwargs g 9.0 --truth up.py:up --seed 2 --resume"
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


class Walled(gym.Env[Any, Any]):
    """Takes the arguments of a run."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, walls: Any, size: int) -> None:
        pass


gym.register("Walled-v0", entry_point=Walled)
LEARNED = TrainConfig(
    env="Walled-v0", algorithm="PPO", wrap_bundle=True, bundle="runs/pole-classifier/bundle",
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
        "algorithm_kwargs": again.algorithm_kwargs | LEARNED.algorithm_kwargs,
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
            f"vinoreward label --run {policy} --labeller SOMEBODY-ELSE"
        )
    config = MendConfig(bundle="b", data=Path("d"), labels=(policy,))
    assert after_mending(Path("new"), config) == "vinoreward audit --bundle new --data d --seed 1"


def test_false_claims_lead_to_a_mending_by_the_truth_that_they_carry(runs: Path) -> None:
    policy, bundle = runs / "pole-policy", "runs/pole-classifier/bundle"
    assert to_mend(policy, 10) == (
        f"vinoreward mend --bundle {bundle} --data data/pole --labels {policy} --out "
        "runs/pole-mended"
    )
    assert to_mend(policy, 9) == f"vinoreward label --run {policy} --limit 100"
    Path(bundle).mkdir()  # an imported one has no weights that mend could train
    assert to_mend(policy, 10) == (
        "vinoreward finetune --data data/pole --out runs/pole-classifier-2"
    )


def test_a_weak_classifier_leads_to_more_images(tmp_path: Path) -> None:
    captured = CaptureConfig(out=tmp_path / "data", env="a:B-v0", truth="up.py:up", frames=900)
    with RunFolder(captured.out, captured):
        pass
    line = to_more_images(captured.out, 2000)
    assert line == (
        f"vinoreward capture --resume --out {captured.out} --env a:B-v0 --truth up.py:up "
        "--frames 2000"
    )
    assert (parsed(line).frames, parsed(line).resume) == (2000, True)
    videos = dataclasses.replace(captured, out=tmp_path / "videos", from_video=Path("recordings"))
    with RunFolder(videos.out, videos):
        pass
    for folder in (videos.out, tmp_path / "photographs"):
        assert to_more_images(folder, 2000).startswith(f"add images to {folder}, about 2000 in all")


@pytest.mark.parametrize(
    ("count", "level", "said"),
    [
        (560, "usable", "vinoreward audit "),
        (120, "usable", "in Python, for each image "),
        (900, "weak", "add images to {data}, about 1800 in all, "),
    ],
)
def test_a_training_prints_what_its_images_suffice_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, level: str, said: str
) -> None:
    data = write_folder(tmp_path / "data", count)
    verdict = {"level": level, "frames": 1800 if level == "weak" else None}
    config = FinetuneConfig(data=data, target_fpr=0.2, int8="off")
    bundle = save_toy_bundle(tmp_path / "bundle")
    rewrite(bundle, lambda spec: spec.update(metrics={"verdict": verdict}))
    assert finetune.conclude(config, load_dataset(data), bundle.path, useless=False) == 0
    assert f"next: {said.format(data=data)}" in capsys.readouterr().out


def test_a_run_on_the_truth_leaves_out_what_it_refuses(tmp_path: Path) -> None:
    options = {"hold": 3, "exit_threshold": 0.4, "reward_mode": "potential"}
    learned = dataclasses.replace(LEARNED, truth=None, on_ood="warn", **options)
    run = tmp_path / "policy"
    with RunFolder(run, learned):
        pass
    compared = parsed(to_compare(run, vars(learned)))
    changed = {name: getattr(TrainConfig(), name) for name in (*options, "on_ood")}
    assert vars(compared) == vars(learned) | changed | {
        "learner": "sb3", "backend": "oracle", "out": tmp_path / "policy-oracle",
        "config": run / "config.yaml",
        "algorithm_kwargs": compared.algorithm_kwargs | learned.algorithm_kwargs,
    }  # fmt: skip


def test_every_printed_line_is_what_its_command_takes(runs: Path) -> None:
    bundle, data, policy = Path("runs/b"), Path("data/pole"), runs / "pole-policy"
    known = spec(env="CartPole-v1", truth_key="up", env_kwargs={"max_episode_steps": 9})
    mended = MendConfig(bundle="b", data=data, labels=(policy,), env="CartPole-v1")
    written = {"env": "Walled-v0", "truth": "pole.py:up"}
    lines = [
        after_capture(data),
        after_bundle(bundle, known, data, 0), after_bundle(bundle, known, data, 30, "ok"),
        to_train(bundle, known), to_train(bundle, spec(env="PandaHover-v0")),
        to_mend(policy, 99), to_mend(policy, 0), to_play(policy, written),
        to_compare(policy, written), after_mending(bundle, mended), mend_again(mended),
        after_import(bundle), after_labelling({"--run": policy}, 3, 9),
        after_labelling({"--run": policy}, 0), capture_again(CaptureConfig(env="CartPole-v1")),
        *(again(name, Path("new")) for name in ("capture", "finetune", "train", "train-vae")),
    ]  # fmt: skip
    for line in lines:
        assert parsed(line) is not None, line
