"""LeRobot's loop on a robot with a bundle for its reward classifier."""

from dataclasses import replace
from typing import Any

from lerobot.envs import HILSerlRobotEnvConfig
from lerobot.envs.configs import RewardClassifierConfig
from lerobot.rl.gym_manipulator import make_processors as make_processors_of_lerobot

from lerobot_env_vinoreward.processor_vinoreward import VinorewardProcessorStep


def make_processors(
    env: Any, teleop_device: Any, cfg: HILSerlRobotEnvConfig, device: str = "cpu"
) -> tuple[Any, Any]:
    """Return LeRobot's pipelines of a robot, with a bundle's step where its classifier's would be.

    ``cfg.processor.reward_classifier.pretrained_path`` is the bundle. Its own threshold counts,
    unless ``success_threshold`` is another than LeRobot's default.
    """
    chosen, reset = cfg.processor.reward_classifier, cfg.processor.reset
    bare = replace(cfg, processor=replace(cfg.processor, reward_classifier=None))
    before, after = make_processors_of_lerobot(env, teleop_device, bare, device)
    if chosen is not None and chosen.pretrained_path is not None:
        default = chosen.success_threshold == RewardClassifierConfig.success_threshold
        step = VinorewardProcessorStep(
            chosen.pretrained_path,
            success_reward=chosen.success_reward,
            success_threshold=None if default else chosen.success_threshold,
            terminate_on_success=reset is None or reset.terminate_on_success,
        )
        before.steps = [*before.steps[:-2], step, *before.steps[-2:]]  # before batch and device
    return before, after
