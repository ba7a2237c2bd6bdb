"""ImageReader: a batch is one array, and the same images as one observation at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from toy_environments import HEIGHT, WIDTH, Camera, save_toy_encoder

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, InputError
from vinoreward.wrappers.sources import EnvInfo, ImageReader, default_source

ENVS = 3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_encoder(tmp_path_factory.mktemp("encoder") / "toy")


def source_of(bundle: Bundle, source: Any, space: gym.Space[Any]) -> ImageReader:
    return ImageReader(source, EnvInfo(space, "rgb_array", None, ENVS), bundle)


def test_images_of_different_sizes_are_an_error(bundle: Bundle) -> None:
    images = source_of(bundle, "obs", gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8))
    observations = np.zeros((ENVS, HEIGHT, WIDTH, 3), np.uint8)
    with pytest.raises(InputError, match="also of final"):
        images.batch(observations, [0, 1, 2], last={0: np.zeros((6, 9, 3), np.uint8)})
    source = source_of(bundle, "render", gym.spaces.Box(0, 1, (2,)))
    frames = [np.zeros((6, width, 3), np.uint8) for width in (8, 8, 9)]
    drawn = SimpleNamespace(render=lambda: frames)
    assert source.batch(None, [0, 1], env=drawn).shape == (2, 6, 8, 3)
    with pytest.raises(InputError, match="one shape"):
        source.batch(None, [0, 1, 2], env=drawn)
    with pytest.raises(InputError, match=r"render\(\) gave NoneType"):
        source.batch(None, [0], env=SimpleNamespace(render=lambda: [None]))


class Nested(gym.ObservationWrapper[Any, Any, Any]):
    """Images as LeRobot's environments give them, and optionally as tensors."""

    def __init__(self, tensors: bool = False) -> None:
        super().__init__(Camera("image"))
        image, state = Camera("image").observation_space, gym.spaces.Box(0, 1, (2,))
        pixels = gym.spaces.Dict({"front": image, "top": image})
        self.observation_space = gym.spaces.Dict({"agent_pos": state, "pixels": pixels})
        self.tensors = tensors

    def observation(self, observation: Any) -> Any:
        front = torch.from_numpy(observation.copy()) if self.tensors else observation
        return {"agent_pos": np.zeros(2, np.float32), "pixels": {"front": front, "top": 0 * front}}


def test_a_key_with_a_dot_names_an_image_in_a_dict_in_the_dict(bundle: Bundle) -> None:
    envs = SyncVectorEnv([Nested] * ENVS)
    observations, _ = envs.reset(seed=3)
    source = source_of(bundle, "obs:pixels.front", envs.single_observation_space)
    images = source.batch(observations, [0, 1, 2])
    np.testing.assert_array_equal(images, observations["pixels"]["front"])
    assert np.ptp(images) > 0
    with pytest.raises(ConfigError, match=r"agent_pos, pixels\.front, pixels\.top"):
        source_of(bundle, "obs:pixels.back", envs.single_observation_space)
    with pytest.raises(ConfigError, match=r"images pixels\.front, pixels\.top"):
        default_source(envs.single_observation_space, "rgb_array")


def test_an_image_may_be_a_torch_tensor(bundle: Bundle) -> None:
    plain, tensors = Nested(), Nested(tensors=True)
    source = source_of(bundle, "obs:pixels.front", plain.observation_space)
    expected = source.single(plain, plain.reset(seed=3)[0])
    np.testing.assert_array_equal(source.single(tensors, tensors.reset(seed=3)[0]), expected)
    called = ImageReader(
        lambda _, observation: observation["pixels"]["front"],
        EnvInfo(plain.observation_space, None, None),
        bundle,
    )
    np.testing.assert_array_equal(called.single(tensors, tensors.reset(seed=3)[0]), expected)
