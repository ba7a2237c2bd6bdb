"""The plugin inside LeRobot: its registries, its loader, its pipelines (``make test-lerobot``)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lerobot", reason="LeRobot's own Python: make test-lerobot")

import draccus
import torch
from lerobot import rewards
from lerobot.configs.rewards import RewardModelConfig
from lerobot.processor import (
    DataProcessorPipeline,
    ProcessorStepRegistry,
    VanillaObservationProcessorStep,
    create_transition,
    identity_transition,
)
from lerobot.processor import TransitionKey as Key
from lerobot.rl.gym_manipulator import GymManipulatorConfig
from lerobot.utils.import_utils import register_third_party_plugins

from lerobot_env_vinoreward.gym_manipulator import make_processors
from lerobot_env_vinoreward.processor_vinoreward import images_of
from vinoreward import Bundle, Classifier
from vinoreward.errors import ConfigError, InputError
from vinoreward.images import ImageSpec, View

BUNDLE = "panda-hover-classifier"
GOLDEN = Bundle.load(BUNDLE).golden.images
SUCCESS, FAILURE = GOLDEN[:2]
BRIGHT = np.clip(SUCCESS.astype(int) + 40, 0, 255).astype(np.uint8)
"""The classifier takes it for a success; its OOD detector knows no such light."""
IDENTITY: Any = {"to_transition": identity_transition, "to_output": identity_transition}


def pipeline(folder: Path, **options: Any) -> DataProcessorPipeline[Any, Any]:
    """Return LeRobot's observation step and ours, saved and loaded by LeRobot."""
    step = ProcessorStepRegistry.get("vinoreward")(BUNDLE, **options)
    made = DataProcessorPipeline([VanillaObservationProcessorStep(), step], "reward", **IDENTITY)
    made.save_pretrained(folder)
    return DataProcessorPipeline.from_pretrained(folder, "reward.json", **IDENTITY)


def step_to(image: np.ndarray, state: float = 0.0, **changes: Any) -> Any:
    """Return the transition that ends with an image, as an environment gives it."""
    observation = {"pixels": {"top": image}, "agent_pos": np.array([state], np.float32)}
    return create_transition(observation, **{"action": torch.zeros(2), **changes})


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_lerobot_finds_the_plugin_and_it_scores_as_the_backend(
    tmp_path: Path, precision: str
) -> None:
    register_third_party_plugins()
    config = rewards.make_reward_model_config("vinoreward", bundle=BUNDLE, precision=precision)
    rewards.make_reward_model(config).save_pretrained(tmp_path)
    config = RewardModelConfig.from_pretrained(tmp_path)
    config.pretrained_path = str(tmp_path)
    model = rewards.make_reward_model(config)
    before, after = rewards.make_reward_pre_post_processors(config)
    images = np.concatenate([GOLDEN, BRIGHT[None]])
    batch = before({"observation.image": torch.from_numpy(images).permute(0, 3, 1, 2) / 255})
    with Classifier(BUNDLE, precision=precision) as ours:
        expected = ours.predict(images)
    assert np.abs(model.predict(batch).log_odds - expected.log_odds).max() < 1e-4
    claimed = expected.probability >= ours.threshold
    assert claimed[-1] and 0 < claimed[:-1].sum() < len(GOLDEN)
    paid = [*claimed[:-1].tolist(), False]
    assert after(model.compute_reward(batch)).tolist() == paid

    reward = pipeline(tmp_path, precision=precision, terminate_on_success=False)
    reward(step_to(FAILURE, action=None))
    found = [reward(step_to(image, state)) for state, image in enumerate(images)]
    probability = [one[Key.INFO]["reward_prob"] for one in found]
    assert np.abs(np.array(probability) - expected.probability).max() < 1e-6
    assert [one[Key.REWARD] for one in found] == paid


def test_an_episode_ends_with_a_claim_that_held(tmp_path: Path) -> None:
    reward = pipeline(tmp_path, success_reward=5.0, success_hold_steps=2)
    for begin in (lambda: None, reward.reset, lambda: reward(step_to(SUCCESS, action=None))):
        begin()
        for expected in ((0.5, False), (5.0, True)):
            found = reward(step_to(SUCCESS, reward=0.5, info={"is_success": False}))
            assert (found[Key.REWARD], found[Key.DONE]) == expected
        assert found[Key.INFO]["is_success"] and not found[Key.INFO]["original_is_success"]
    found = reward(step_to(FAILURE, reward=0.5, done=True))
    assert (found[Key.REWARD], found[Key.DONE]) == (0.5, True)


def test_a_camera_that_stands_still_while_the_state_moves_earns_nothing(tmp_path: Path) -> None:
    reward = pipeline(tmp_path, terminate_on_success=False)
    rng = np.random.default_rng(0)
    for state in rng.normal(size=300):
        reward(step_to(FAILURE + rng.integers(0, 2, FAILURE.shape, dtype=np.uint8), state))
    found = [reward(step_to(SUCCESS, state)) for state in (0.0, 3.0)]
    assert [one[Key.REWARD] for one in found] == [1.0, 0.0]
    assert found[1][Key.INFO]["reward_ood"] > 1.0


def test_images_are_refused_that_are_normalised_or_not_known(tmp_path: Path) -> None:
    image, tensor = ImageSpec(96, 128), torch.rand(2, 3, 96, 128)
    key, other = "observation.images.top", "observation.images.wrist"
    with pytest.raises(InputError, match="before any normalizer_processor"):
        images_of({key: tensor - 0.5}, image)
    with pytest.raises(ConfigError, match=f"found the images {key}, {other}.*give image_keys"):
        images_of({key: tensor, other: tensor}, image)
    with pytest.raises(InputError, match="found 2 images"):
        pipeline(tmp_path)(step_to(GOLDEN[:2]))
    assert images_of({key: torch.full((3, 96, 128), 0.999)}, image).min() == 255
    views = tuple(View(name, 96, f"obs:{each}") for name, each in {"b": other, "a": key}.items())
    both = images_of({key: tensor * 0, other: tensor}, ImageSpec(192, 128, views=views))
    assert np.array_equal(both[:, :96], images_of({other: tensor}, image))
    assert not both[:, 96:].any()


def test_the_documented_configuration_of_a_robot_is_paid_by_a_bundle(
    tmp_path: Path, project_root: Path
) -> None:
    page = (project_root / "docs" / "lerobot.md").read_text(encoding="utf-8")
    path = tmp_path / "env.json"
    path.write_text(page.split("```json\n")[1].split("```")[0])
    told = [f"--env.processor.reward_classifier.pretrained_path={BUNDLE}"]
    told.append("--env.processor.image_preprocessing.crop_params_dict=null")
    config = draccus.parse(GymManipulatorConfig, path, args=told)
    robot = SimpleNamespace(robot=SimpleNamespace(bus=SimpleNamespace(motors={"elbow": None})))
    teleop: Any = SimpleNamespace(get_teleop_events=dict)
    reward, _ = make_processors(robot, teleop, config.env)
    assert reward(step_to(SUCCESS, action=None))[Key.REWARD] == 0.0
    for image, paid in ((FAILURE, 0.0), (SUCCESS, 10.0)):
        found = reward(step_to(image))
        assert (found[Key.REWARD], found[Key.DONE]) == (paid, image is SUCCESS)
