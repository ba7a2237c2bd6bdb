"""PandaHoverVectorEnv in tensors that stay on a device: here a processor, with a GPU's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hover_batches import IDS, STATES, VARIED, assert_same_rollout, make, make_scalars, moves

from vinoreward_envs import constants as c


@pytest.fixture(autouse=True)
def stays_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches of tensors stay on their device where that is a processor."""
    monkeypatch.setattr("vinoreward_envs.panda_hover_vector.STAYS_ON_CPU", True)


def test_a_batch_that_stays_on_its_device_does_the_same() -> None:
    """On a processor here: the kernels and tensors are those of a GPU.

    Arms are within a micrometre a step of the scalar ones, so a pixel at an edge may differ.
    """
    options: dict[str, Any] = {"backend": "torch", "randomization": VARIED}
    assert_same_rollout(6, 12, 1e-5, STATES, "torch", 0.02, **options)


@pytest.mark.parametrize("randomization", [None, VARIED])
def test_images_that_stay_on_their_device_are_the_same(randomization: Any) -> None:
    varied = {"randomization": randomization}
    never = c.MAX_EPISODE_STEPS + 1  # in a row
    env = make(7, IDS[2], backend="torch", array="torch", success_hold_steps=never, **varied)
    scalars = make_scalars(7, IDS[2], backend="none", **varied)
    assert env.scenes.on_device
    first, expected = np.asarray(env.reset(seed=1)[0]), scalars.reset(seed=1)[0]
    assert (first != expected).mean() < (1e-3 if randomization else 1e-9)
    for actions in moves(7, c.MAX_EPISODE_STEPS):
        found, expected = env.step(actions), scalars.step(actions)
        pairs = [(found[0], expected[0])]
        for i in np.flatnonzero(expected[4].get("_final_obs", [])).tolist():
            pairs.append((found[4]["final_obs"][i], expected[4]["final_obs"][i]))
        for one, other in pairs:
            different = np.abs(np.asarray(one).astype(int) - other)
            # A few pixels at edges of one image.
            assert different.mean() < (0.05 if randomization and one.ndim == 3 else 0.01)
    env.close()
    scalars.close()


def test_a_batch_that_stays_on_its_device_does_not_depend_on_how_many_there_are() -> None:
    """67 are drawn and judged in two pieces that share a scene, 20 in one."""
    many, few = (make(count, backend="torch", array="torch") for count in (67, 20))
    many.reset(seed=5)
    few.reset(seed=52)
    for actions in moves(67, 2):
        every, some = many.step(actions), few.step(actions[47:])
        for one, other in zip(every[:4], some[:4], strict=True):
            np.testing.assert_array_equal(one[47:], other)
        for key in ("reward_prob", "reward_ood", "distance"):
            np.testing.assert_allclose(every[4][key][47:], some[4][key], atol=1e-5)
    many.close()
    few.close()


@pytest.mark.parametrize(("id_", "stays"), [(STATES, True), (IDS[2], False)])
def test_a_caller_s_inference_mode_can_come_and_go(
    id_: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vinoreward_envs.panda_hover_vector.STAYS_ON_CPU", stays)
    with torch.inference_mode():
        env = make(2, id_, backend="torch", array="torch")
        env.reset(seed=0)
        env.step(torch.zeros(2, 2))
    weights = torch.zeros(2, 2, requires_grad=True)
    assert not env.step(weights * 1.0)[1].requires_grad
    env.reset(options={"reset_mask": np.array([True, False])})
    with torch.inference_mode():
        env.step(torch.zeros(2, 2))
    env.reset(seed=1)
    env.close()
