"""A bundle as a step of LeRobot's pipelines, and the reward model's own pipelines."""

from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import numpy as np
import torch
from lerobot.lerobot_types import TransitionKey
from lerobot.processor import PolicyProcessorPipeline, ProcessorStep, ProcessorStepRegistry
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward.images import ImageSpec, prepare, tiled
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.decision import OodAction, RewardOptions
from vinoreward.rewards.frozen import FrozenCheck
from vinoreward.rewards.reward_model import RewardModel, warn_uncalibrated
from vinoreward.wrappers.sources import state_of


@ProcessorStepRegistry.register("vinoreward")
@dataclass
class VinorewardProcessorStep(ProcessorStep):
    """Pays, and ends episodes, where a bundle claims success; in the pipeline of one environment.

    It belongs where LeRobot has its own classifier: after the images' crop, before any
    normalisation. A claim's reward takes the place of the environment's, as there. The first
    observation of an episode, without an action, earns nothing. An image out of distribution is no
    success, nor is one that stood still while the state moved. Options and what is added to
    ``info`` are those of :class:`vinoreward.LearnedReward`, and so are the errors.
    """

    bundle: str
    """Its folder, or the name of an installed one."""
    image_keys: list[str] | None = None
    """Of the observation, one for each of the bundle's cameras; None: the keys that the bundle
    recorded, or the only image."""
    success_reward: float = 1.0
    success_threshold: float | None = None
    success_hold_steps: int = 1
    terminate_on_success: bool = True
    on_ood: OodAction = "withhold"
    frozen_check: bool = True
    backend: str = "openvino"
    precision: str = "auto"

    def __post_init__(self) -> None:
        names = {field.name for field in fields(RewardOptions)}
        given = {name: value for name, value in asdict(self).items() if name in names}
        options = RewardOptions(env_reward_weight=1.0, success_replaces_env_reward=True, **given)
        self._model = RewardModel(
            self.bundle, options, backend=self.backend, precision=self.precision
        )
        if self.frozen_check and self.on_ood != "ignore":
            self._model.frozen = FrozenCheck(1)
        self._classifier = cast(Classifier, self._model.classifier)  # made from a bundle
        if self.success_threshold is None:
            warn_uncalibrated(self._classifier.bundle)

    def __call__(self, transition: dict[Any, Any]) -> dict[Any, Any]:
        """Score the image that a transition ended with; return it with reward, done and info."""
        observation = transition.get(TransitionKey.OBSERVATION) or {}
        images = images_of(observation, self._classifier.image, self.image_keys)
        if len(images) != 1:
            expected = "those of one environment; for batches take the reward model"
            raise InputError(f"found {len(images)} images. Expected {expected}.")
        if transition.get(TransitionKey.ACTION) is None:
            self._model.reset()
            return transition
        reward = float(transition[TransitionKey.REWARD])
        done = np.array([bool(transition[TransitionKey.DONE])])
        states = state_of(observation)[None]
        scores = self._model.score(images, np.array([reward]), done, states=states)
        info = dict(transition[TransitionKey.INFO])
        if "is_success" in info:  # the truth, which a simulator knows
            info["original_is_success"] = info["is_success"]
        info["is_success"] = bool(scores.claimed[0])
        info["reward_prob"], info["original_env_rew"] = float(scores.probability[0]), reward
        if scores.ood_score is not None:
            info["reward_ood"] = float(scores.ood_score[0])
        changed = {
            TransitionKey.REWARD: float(scores.rewards[0]),
            TransitionKey.DONE: bool(scores.terminated[0]),
            TransitionKey.INFO: info,
        }
        return {**transition, **changed}

    def reset(self) -> None:
        """Start an episode."""
        self._model.reset()

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, which LeRobot writes as JSON."""
        return asdict(self)

    def transform_features(self, features: dict[Any, Any]) -> dict[Any, Any]:
        """Return the features, which stay as they are."""
        return features


def images_of(
    observation: dict[str, Any], image: ImageSpec, given: list[str] | None = None
) -> NDArray[np.uint8]:
    """Return a bundle's images ``(N, H, W, 3)`` of LeRobot's: ``(N, 3, H, W)`` or one alone, float
    from 0 to 1, or uint8. ``given`` are ``image_keys``.

    Raises:
        ConfigError: it is not known which images, or a bundle takes those of earlier steps too.
        InputError: images of another shape, dtype or range.
    """
    cameras = list(image.cameras.values())
    recorded = [camera.source for camera in cameras] or [str(image.scene.get("camera"))]
    keys = [key.removeprefix("obs:") for key in given or recorded]
    found = [key for key in observation if key.startswith("observation.image")]
    if not (given or cameras or keys[0] in found):
        keys = found
    if len(keys) != max(1, len(cameras)) or not set(keys) <= set(found):
        raise ConfigError(
            f"found the images {', '.join(found) or 'none'} for the bundle's cameras: "
            f"{', '.join(image.cameras) or 'one'}. Expected each one's key; give `image_keys`."
        )
    parts = [_as_uint8(observation[key], key) for key in keys]
    if not cameras:
        return parts[0]
    sized = [prepare(part, image.of_view(one)) for part, one in zip(parts, cameras, strict=True)]
    return tiled(sized, list(image.cameras))


def _as_uint8(value: torch.Tensor, key: str) -> NDArray[np.uint8]:
    batch = value[None] if value.ndim == 3 else value
    low, high = batch.aminmax()
    most = 1 if batch.is_floating_point() else 255
    if batch.ndim != 4 or batch.shape[1] != 3 or not (low >= 0 and high <= most):  # NaN fails too
        raise InputError(
            f"{key} is {tuple(value.shape)}, from {low:.3g} to {high:.3g}. Expected (N, 3, height, "
            "width) from 0 to 1, as the network normalises images itself; put the step after "
            "LeRobot's observation_processor and before any normalizer_processor."
        )
    batch = (batch * 255).round() if batch.is_floating_point() else batch
    return batch.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def make_vinoreward_pre_post_processors(*_: object, **__: object) -> tuple[Any, Any]:
    """Return the pipelines around the reward model; they are empty, as the network normalises."""
    before = PolicyProcessorPipeline[Any, Any](name="vinoreward_preprocessor")
    after = PolicyProcessorPipeline[Any, Any](
        name="vinoreward_postprocessor",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    return before, after
