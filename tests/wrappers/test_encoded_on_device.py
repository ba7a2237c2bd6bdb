"""EncodedObservation of images that are tensors: encoded where they are, as NumPy's are."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

pytest.importorskip("torch")

import torch
from graphs_on_cpu import recorded_on_cpu

from vinoreward import VectorEncodedObservation, encoders
from vinoreward.errors import InputError, OutputError
from vinoreward_training.sb3 import BatchedVecEnv

COUNT = 10


def make(array: str, *, stays: bool = False, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vinoreward_envs.panda_hover_vector.STAYS_ON_CPU", stays)
        env = gym.make_vec(
            "PandaHoverPixels-v0",
            COUNT,
            vectorization_mode="vector_entry_point",
            array=array,
            backend="oracle",
        )
    return VectorEncodedObservation(env, "panda-hover-encoder", backend="torch", **options)


@pytest.mark.parametrize(("stays", "frames"), [(True, 3), (False, 1)])
def test_it_encodes_as_on_the_host(
    stays: bool, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, of which the last two share images; final observations and masks included."""
    monkeypatch.setattr(encoders, "PIECE", 4)
    there, here = make("torch", stays=stays, frame_stack=frames), make("numpy", frame_stack=frames)
    found, expected = there.reset(seed=3)[0], here.reset(seed=3)[0]
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float32
    assert found.shape == there.observation_space.shape
    # Images that stay may differ in pixels at edges.
    near = 0.05 if stays else 1e-4
    draw, ended = np.random.default_rng(0), 0
    for step in range(14):
        np.testing.assert_allclose(found.numpy(), expected, atol=near)
        actions = draw.uniform(-0.1, 0.1, (COUNT, 2)).astype(np.float32)
        found, *others, infos = there.step(actions)
        expected, *_, told = here.step(actions)
        assert all(isinstance(each, torch.Tensor) for each in others)
        over = told.get("_final_obs", np.zeros(COUNT, np.bool_))
        for i in np.flatnonzero(over).tolist():
            np.testing.assert_allclose(infos["final_obs"][i], told["final_obs"][i], atol=near)
        ended += int(over.sum())
        if step == 11:
            mask = np.arange(COUNT) < 4
            found, expected = (env.reset(options={"reset_mask": mask})[0] for env in (there, here))
    assert ended >= COUNT
    there.close()
    here.close()


def test_on_cuda_the_recorded_work_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make("torch", stays=True, frame_stack=2)
    expected = [plain.reset(seed=1)[0], plain.step(torch.full((COUNT, 2), 0.1))[0]]
    replayed = make("torch", stays=True, frame_stack=2)
    graphs = recorded_on_cpu(monkeypatch)
    monkeypatch.setattr(encoders, "PIECE", 4)
    with torch.inference_mode():
        first, _ = replayed.reset(seed=1)
    found = [first, replayed.step(torch.full((COUNT, 2), 0.1))[0]]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert [(len(graph.batch), graph.replays) for graph in graphs] == [(4, 9)]
    for env in (plain, replayed):
        env.close()


class Objects(VectorEnv[Any, Any, Any]):
    """Images as tensors, and last ones as Gymnasium has them: objects, where there are some."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 3
    single_observation_space = gym.spaces.Box(0, 255, (96, 128, 3), np.uint8)
    single_action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    observation_space = batch_space(single_observation_space, 3)
    action_space = batch_space(single_action_space, 3)
    image_scene = {"scene": "panda-hover", "height": 96, "width": 128, "mesh": "20"}  # noqa: RUF012
    tells = True

    def reset(self, **_: Any) -> Any:
        self.at = 0
        return self._images(0), {}

    def step(self, actions: Any) -> Any:
        self.at += 1
        over = np.array([False, self.at == 2, False])
        infos: dict[str, Any] = {}
        if over.any() and self.tells:
            last = np.full(3, None, object)
            last[1] = self._images(9)[1]
            infos = {"final_obs": last, "_final_obs": over}
        return self._images(self.at), np.zeros(3), over, np.zeros(3, np.bool_), infos

    def _images(self, number: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(number)
        return torch.randint(256, (3, 96, 128, 3), generator=draw, dtype=torch.uint8)


def on_host(_: Any, image: torch.Tensor) -> Any:
    return image.numpy()


def test_final_images_may_be_objects() -> None:
    encoder = {"bundle": "panda-hover-encoder", "backend": "torch"}
    there = VectorEncodedObservation(Objects(), **encoder)
    here = VectorEncodedObservation(Objects(), image_source=on_host, **encoder)
    np.testing.assert_allclose(there.reset()[0], here.reset()[0], atol=1e-4)
    for _ in range(3):
        found, expected = there.step(None), here.step(None)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-4)
        if "final_obs" in expected[4]:
            pair = [step[4]["final_obs"][1] for step in (found, expected)]
            np.testing.assert_allclose(*pair, atol=1e-4)
    env = Objects()
    env.tells = False
    there = VectorEncodedObservation(env, **encoder)
    there.reset()
    there.step(None)
    with pytest.raises(InputError, match=r"without infos\['final_obs'\]"):
        there.step(None)


def test_a_vector_environment_of_sb3_has_the_tensors() -> None:
    env = BatchedVecEnv(make("torch", stays=True))
    env.seed(1)  # no object is below its gripper at first, which would end that episode
    assert env.reset().shape == (COUNT, *env.observation_space.shape)
    for _ in range(10):
        step = env.step_batch(torch.zeros(COUNT, 2))
    assert isinstance(step.observations, torch.Tensor) and isinstance(step.last(), torch.Tensor)
    assert step.dones.all() and (step.last() != step.observations).any()
    last = step.infos[0]["terminal_observation"]
    np.testing.assert_array_equal(last, step.last()[0].numpy())
    env.close()


def test_vectors_stay_within_bounds_and_numbers_that_are_none_are_told_at_the_reset() -> None:
    env = make("torch", stays=True)
    env.reset(seed=1)
    weights = list(env.encoder.backend.module.parameters())
    low, high = (torch.tensor(end) for end in (env.encoder.low, env.encoder.high))
    with torch.no_grad():
        for each in weights:
            each.mul_(10.0)
    seen, *_ = env.step(torch.zeros(COUNT, 2))
    assert (seen >= low).all() and (seen <= high).all()
    assert (seen == low).any() or (seen == high).any()
    with torch.no_grad():
        weights[0].fill_(float("nan"))
    seen, *_ = env.step(torch.zeros(COUNT, 2))
    assert torch.equal(seen, torch.zeros_like(seen).clip(low, high))
    with pytest.raises(OutputError, match="NaN or infinity for images of steps before"):
        env.reset()
    env.reset()  # it is told once
    env.close()


def test_images_of_another_layout_get_the_host_s_arrays() -> None:
    env, plain = Objects(), Objects()
    images = plain._images(0).movedim(-1, 1)
    env.single_observation_space = gym.spaces.Box(0, 255, images.shape[1:], np.uint8)
    env.observation_space = batch_space(env.single_observation_space, 3)
    env.reset = lambda **_: (images, {})  # type: ignore[method-assign]
    found, expected = (
        VectorEncodedObservation(one, "panda-hover-encoder", backend="torch").reset()[0]
        for one in (env, plain)
    )
    assert isinstance(found, np.ndarray) and isinstance(expected, torch.Tensor)
    np.testing.assert_allclose(found, expected, atol=1e-4)
