"""VectorLearnedReward around simulators whose observations are torch tensors on a device."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from torch.utils._python_dispatch import TorchDispatchMode

from vinoreward import Bundle, VectorLearnedReward
from vinoreward.errors import OutputError
from vinoreward.wrappers.autoreset import VectorAutoreset

BUNDLE = "panda-hover-classifier"
COUNT = 4
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


class Gallery(VectorEnv[Any, Any, Any]):
    """Walks along a row of images, failures and successes; an episode ends at its right end."""

    def __init__(self, device: str, mode: AutoresetMode, *, nested: bool = False) -> None:
        bundle = Bundle.load(BUNDLE)
        order = np.argsort(bundle.golden.logits[:, 1])
        self.images = torch.tensor(bundle.golden.images[order], device=device)
        self.num_envs, self.nested = COUNT, nested
        self.metadata = {"autoreset_mode": mode}
        self._same_step = mode is AutoresetMode.SAME_STEP
        space: gym.Space[Any] = gym.spaces.Box(0, 255, tuple(self.images.shape[1:]), np.uint8)
        if nested:
            space = gym.spaces.Dict({"sensor": gym.spaces.Dict({"front": space})})
        self.single_observation_space = space
        self.observation_space = batch_space(space, COUNT)
        self.single_action_space = gym.spaces.Discrete(2)
        self.action_space = batch_space(self.single_action_space, COUNT)
        self._place = torch.zeros(COUNT, dtype=torch.int64, device=device)
        self._steps = torch.zeros_like(self._place)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        every = torch.ones_like(self._place, dtype=torch.bool)
        mask = every if options is None else torch.as_tensor(options["reset_mask"])
        self._restart(mask)
        return self._observe(), {"place": self._place.clone()}

    def step(self, actions: Any) -> Any:
        self._place = (self._place + 2 * actions - 1).clamp(0, len(self.images) - 1)
        self._steps = self._steps + 1
        terminated, truncated = self._place == len(self.images) - 1, self._steps >= 9
        infos: dict[str, Any] = {"place": self._place.clone()}
        if self._same_step:
            over = terminated | truncated
            infos |= {"final_obs": self._observe(), "_final_obs": over}
            self._restart(over)
        return self._observe(), -self._steps.float(), terminated, truncated, infos

    def _restart(self, mask: Any) -> None:
        starts = torch.arange(COUNT, device=self._place.device) % (len(self.images) - 1)
        self._place = torch.where(mask, starts, self._place)
        self._steps = torch.where(mask, 0, self._steps)

    def _observe(self) -> Any:
        shown = self.images[self._place]
        return {"sensor": {"front": shown}} if self.nested else shown


def _array(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _array(part) for key, part in values.items()}
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values


class OnHost(VectorWrapper[Any, Any, Any, Any, Any]):
    """The same environment with NumPy arrays."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return tuple(map(_array, self.env.reset(seed=seed, options=options)))

    def step(self, actions: Any) -> Any:
        return tuple(map(_array, self.env.step(torch.as_tensor(actions))))


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a device, or copy from it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        given = [one for part in args for one in (part if isinstance(part, (list, tuple)) else [])]
        by_mask = any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in given)
        if "_local_scalar_dense" in name or "nonzero" in name or (".index" in name and by_mask):
            self.calls.append(name)
        return func(*args, **(kwargs or {}))


def actions_of(steps: int, device: str) -> Any:
    draw = np.random.default_rng(0)
    return torch.tensor(draw.random((steps, COUNT)) < 0.7, device=device).long()


OPTIONS: dict[str, dict[str, Any]] = {
    "potential": {"reward_mode": "potential", "success_hold_steps": 2, "env_reward_weight": 0.5},
    "probability": {"reward_mode": "probability", "terminate_on_success": False},
    "log_odds": {"reward_mode": "log_odds", "success_exit_threshold": 0.1, "on_ood": "ignore"},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (AutoresetMode.DISABLED, "potential"),
        (AutoresetMode.SAME_STEP, "probability"),
        (AutoresetMode.DISABLED, "log_odds"),
    ],
)
def test_tensors_earn_what_arrays_earn(device: str, mode: AutoresetMode, name: str) -> None:
    options = OPTIONS[name]
    if mode is AutoresetMode.SAME_STEP:  # a simulator that resets itself is told of no claim
        options = {**options, "terminate_on_success": False}
    given = {"image_source": "obs", "backend": "torch", **options}
    on: dict[str, Any] = {} if device == "cpu" else {"device": "CUDA"}
    tensors: Any = VectorLearnedReward(Gallery(device, mode), BUNDLE, **given, **on)
    arrays: Any = VectorLearnedReward(OnHost(Gallery("cpu", mode)), BUNDLE, **given)
    if mode is AutoresetMode.DISABLED:
        tensors, arrays = VectorAutoreset(tensors), VectorAutoreset(arrays)
    with torch.no_grad():
        tensors.reset()
        arrays.reset()
        claims = 0
        for action in actions_of(11, device):
            found, expected = tensors.step(action), arrays.step(action.cpu().numpy())
            assert [part.device.type for part in found[:4]] == [device] * 4
            assert [part.dtype for part in found[1:4]] == [torch.float32, torch.bool, torch.bool]
            for one, other in zip(found[:4], expected[:4], strict=True):
                np.testing.assert_allclose(one.cpu(), other, rtol=1e-3, atol=1e-3)
            for key in ("is_success", "_is_success", "reward_prob", "place"):
                one, other = found[4][key], expected[4][key]
                np.testing.assert_allclose(one.cpu(), other, rtol=1e-3, atol=1e-3)
            claims += int(expected[4]["is_success"].sum())
            over = (found[2] | found[3]).cpu().numpy()
            assert over.any() == (expected[2] | expected[3]).any()
            for i in np.flatnonzero(over):
                last = expected[4]["final_obs"][i]
                np.testing.assert_array_equal(found[4]["final_obs"][i].cpu(), last)
        assert claims or "terminate_on_success" not in options
    tensors.close()
    arrays.close()


@pytest.mark.parametrize("device", DEVICES)
def test_no_step_waits_for_the_device(device: str) -> None:
    on: dict[str, Any] = {} if device == "cpu" else {"device": "CUDA"}
    env: Any = VectorAutoreset(
        VectorLearnedReward(
            Gallery(device, AutoresetMode.DISABLED, nested=True),
            BUNDLE,
            image_source="obs:sensor.front",
            backend="torch",
            reward_mode="potential",
            **on,
        )
    )
    env.reset()
    steps = 12 if device == "cpu" else 1000
    actions = actions_of(steps, device)
    env.step(actions[0])
    with Waits() as waits:
        for action in actions:
            env.step(action)
    assert waits.calls == []
    env.close()


def test_a_network_that_gives_no_number_earns_nothing_and_is_reported_at_the_reset() -> None:
    env: Any = VectorLearnedReward(
        Gallery("cpu", AutoresetMode.DISABLED),
        BUNDLE,
        image_source="obs",
        backend="torch",
        success_threshold=0.0,
    )
    env.reset()
    with torch.no_grad():
        for weights in env.classifier.backend.module.parameters():
            weights.fill_(float("nan"))
    _, rewards, terminated, _, infos = env.step(torch.ones(COUNT, dtype=torch.int64))
    assert not terminated.any() and not infos["is_success"].any() and (rewards == 0).all()
    with pytest.raises(OutputError, match="returned NaN or infinity"):
        env.reset()
    env.close()


class Places(Gallery):
    """Observes places as numbers, draws its images, and says a word in its infos."""

    render_mode = "rgb_array"

    def __init__(self) -> None:
        super().__init__("cpu", AutoresetMode.DISABLED)
        self.single_observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, COUNT)

    def render(self) -> Any:
        return self.images[self._place]

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        return *rest, {**infos, "word": np.array(["near"] * COUNT)}

    def _observe(self) -> Any:
        return self._place[:, None].float()


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_tensors_have_the_hold_counter_as_their_last_number(backend: str) -> None:
    """Whatever scores their images: another backend does so on the host."""
    env: Any = VectorLearnedReward(
        Places(),
        BUNDLE,
        backend=backend,
        success_threshold=0.0,  # every image counts
        success_hold_steps=3,
        hold_in_observation=True,
        terminate_on_success=False,
        on_ood="ignore",
    )
    seen, _ = env.reset()
    for held in (0, 1, 2, 3, 3):
        assert isinstance(seen, torch.Tensor) and seen.dtype == torch.float32
        assert seen[:, 0].tolist() == env.unwrapped._place.tolist()
        assert seen[:, 1].tolist() == [held] * COUNT
        assert env.observation_space.contains(seen.numpy())
        seen, *_ = env.step(torch.zeros(COUNT, dtype=torch.int64))
    env.close()
