"""EncodedObservation of pictures that are tensors: encoded where they are, as NumPy's are."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from vinoreward import BatchedVecEnv, VectorEncodedObservation
from vinoreward.errors import InputError, OutputError
from vinoreward.wrappers import encoded_on_device

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


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("stays", [True, False])
def test_it_encodes_as_on_the_host(
    stays: bool, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, of which the last two share pictures; final observations and masks included."""
    monkeypatch.setattr(encoded_on_device, "PIECE", 4)
    there, here = make("torch", stays=stays, frame_stack=frames), make("numpy", frame_stack=frames)
    found, expected = there.reset(seed=3)[0], here.reset(seed=3)[0]
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float32
    assert found.shape == there.observation_space.shape
    # Pictures that stay may differ in pixels at edges.
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


def test_what_was_returned_stays_as_it_was() -> None:
    env = make("torch", stays=True, frame_stack=2)
    first, _ = env.reset(seed=1)
    kept = first.clone()
    env.step(torch.full((COUNT, 2), 0.1))
    assert torch.equal(first, kept)
    env.close()


@pytest.mark.parametrize("option", [{"picture_in_info": True}, {"sample": True, "seed": 1}])
def test_what_needs_the_host_gets_its_arrays(option: dict[str, Any]) -> None:
    env = make("torch", **option)
    assert isinstance(env.reset(seed=1)[0], np.ndarray)
    env.close()


def test_a_vector_environment_of_sb3_has_the_tensors() -> None:
    env = BatchedVecEnv(make("torch", stays=True))
    assert env.reset().shape == (COUNT, *env.observation_space.shape)
    for _ in range(10):
        step = env.step_batch(torch.zeros(COUNT, 2))
    assert isinstance(step.observations, torch.Tensor) and isinstance(step.last(), torch.Tensor)
    assert step.dones.all() and (step.last() != step.observations).any()
    last = step.infos[0]["terminal_observation"]
    np.testing.assert_array_equal(last, step.last()[0].numpy())
    env.close()


def test_numbers_that_are_none_become_zeros_and_are_told_at_the_next_reset() -> None:
    env = make("torch", stays=True)
    env.reset(seed=1)
    with torch.no_grad():
        next(env.encoder.backend.module.parameters()).fill_(float("nan"))
    seen, *_ = env.step(torch.zeros(COUNT, 2))
    zeros = np.clip(
        np.zeros(env.encoder.latent_size, np.float32), env.encoder.low, env.encoder.high
    )
    np.testing.assert_array_equal(seen.numpy(), np.tile(zeros, (COUNT, 1)))
    with pytest.raises(OutputError, match="NaN or infinity for pictures of steps before"):
        env.reset()
    env.close()


def test_pictures_of_another_shape_are_refused() -> None:
    env = make("torch", stays=True)
    env.reset(seed=1)
    with pytest.raises(InputError, match=r"Expected torch.uint8 of shape \(10, 96, 128, 3\)"):
        env._on_device.step(torch.zeros(COUNT, 96, 64, 3, dtype=torch.uint8), None, None)
    env.close()
