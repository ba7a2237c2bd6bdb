"""What LeRobot's factory knows of the reward model."""

from dataclasses import dataclass

from lerobot.configs.rewards import RewardModelConfig


@RewardModelConfig.register_subclass("vinoreward")
@dataclass
class VinorewardConfig(RewardModelConfig):
    """A bundle as a reward model; fields are those of the step, and ``device`` has the rewards."""

    device: str | None = "cpu"
    bundle: str = ""
    image_keys: list[str] | None = None
    success_threshold: float | None = None
    backend: str = "openvino"
    precision: str = "auto"
