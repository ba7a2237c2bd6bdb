"""Environments whose every observation is known beforehand, and faults that happen where told.

Actors and compressors import this module, so it is light. A fault happens in child processes only,
never in the test's own, and with a ``marker`` only once: the file says that it has happened.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward_actors.compression.chain import CompressionContext, Stage, State
from vinoreward_actors.policies.policy import Policy, random_policy
from vinoreward_actors.policies.spec import PolicySpec

ENDS = (("truncated", 3), ("terminated", 2), ("both", 4))
"""How the first episodes end and after how many steps; then the same again."""


FAR = 3e5
"""How many times as far as usual a far observation of :class:`Far` is."""


def due(marker: str | None) -> bool:
    """Whether a fault is to happen in this process; notes that it has."""
    if multiprocessing.parent_process() is None:
        return False
    if marker is None:
        return True
    if Path(marker).exists():
        return False
    Path(marker).write_text(str(os.getpid()))
    return True


class Numbered(gym.Env[Any, Any]):
    """Observations are (episode, step), whatever the actions; the reward is that of their sum.

    Args:
        fault: what happens at a step: raise, nan, nan_reward, kill, hang (SIGSTOP), exit, sleep.
        at: which step, counted over all episodes.
        marker: a file, for a fault that happens once.
        dtype: of the observations.
        truth: key of info under which it says whether an episode ended well.
        wrapped: whether a learned reward was put around it, which claims the contrary.
    """

    def __init__(
        self,
        fault: str = "",
        at: int = 0,
        marker: str | None = None,
        dtype: str = "float32",
        truth: str = "true_success",
        wrapped: bool = False,
    ) -> None:
        self.observation_space = gym.spaces.Box(-1, 1e6, (2,), np.dtype(dtype).type)
        self.action_space = gym.spaces.Discrete(2)
        self._fault, self._at, self._marker = fault, at, marker
        self._truth, self._wrapped = truth, wrapped
        self._episode, self._step, self._steps = -1, 0, 0
        self.closed = False

    def _observe(self) -> Any:
        return np.array([self._episode, self._step], self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        self._steps += 1
        observation, reward = self._observe(), float(self._episode + self._step)
        if self._fault and self._steps == self._at and due(self._marker):
            observation, reward = self._happen(observation, reward)
        how, after = ENDS[self._episode % len(ENDS)]
        over = self._step == after
        info = {"episode": {"r": float("torch" in sys.modules)}, self._truth: how == "terminated"}
        if self._wrapped:
            info |= {"is_success": how != "terminated", "reward_prob": 0.5}
        return (
            observation,
            reward,
            over and how != "truncated",
            over and how != "terminated",
            info if over else {},
        )

    def _happen(self, observation: Any, reward: float) -> Any:
        if self._fault == "raise":
            raise RuntimeError("the simulator fell over")
        if self._fault == "exit":
            sys.exit(7)
        if self._fault in ("kill", "hang"):
            # To this thread: while another one takes the signal, this one could go on.
            signal.raise_signal(signal.SIGKILL if self._fault == "kill" else signal.SIGSTOP)
        if self._fault == "sleep":
            time.sleep(600)
        if self._fault == "nan":
            observation = observation * np.nan
        if self._fault == "nan_reward":
            reward = float("nan")
        return observation, reward

    def close(self) -> None:
        self.closed = True


gym.register(
    "NumberedTelling-v0", entry_point="faulty_environments:Numbered", kwargs={"truth": "at_goal"}
)


class Far(gym.Env[Any, Any]):
    """Observations (2,) between 0.1 and 1, whatever the actions; some in actors are far away.

    Args:
        owner: number of the process that is no actor's: the test's own.
        every: steps, over all episodes, from one of the far ones to the next.
    """

    def __init__(self, owner: int, every: int = 500) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1e6, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._every, self._all, self._steps = every, 0, 0
        self._acting = os.getpid() != owner

    def _observe(self) -> Any:
        self._all += 1
        seen = self.np_random.uniform(0.1, 1.0, 2).astype(np.float32)
        return seen * np.float32(FAR) if self._acting and self._all % self._every == 0 else seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._observe(), float(action), False, self._steps == 15, {}


class Blinking(gym.Env[Any, Any]):
    """Images (1, 8, 8) uint8: a bright half is left or right; the action should say which."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (1, 8, 8), np.uint8)
        self.action_space = gym.spaces.Discrete(2)

    def _observe(self) -> Any:
        self._side = int(self.np_random.integers(2))
        image = self.np_random.integers(0, 60, (1, 8, 8)).astype(np.uint8)
        image[:, :, 4 * self._side : 4 * self._side + 4] += 190
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = float(int(action) == self._side)
        return self._observe(), reward, False, self._steps == 10, {}


def not_an_environment() -> Mapping[str, int]:
    return {"steps": 1}


class Waits(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose every episode waits for a file before it begins, and says so in another.

    Args:
        folder: of the files ``go`` and ``begun``.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._folder = Path(folder)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        (self._folder / "begun").touch()
        deadline = time.monotonic() + 60
        while not (self._folder / "go").exists():
            if time.monotonic() > deadline:
                raise RuntimeError("nobody said go")
            time.sleep(0.01)
        return super().reset(seed=seed, options=options)


class Slow(Stage):
    """Takes its time, in which the learner pushes many times; what it makes is a little off.

    Args:
        seconds: of each push.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        time.sleep(self._seconds)
        weights = dict(policy.float_parameters())
        weights["head.bias"] = weights["head.bias"] + np.float32([0.1, 0.0])
        return policy.replace(parameters=weights)


class Remembers(Stage):
    """Counts its pushes, and says so in the first bias, which changes no decision much.

    Args:
        fault: kill or raise, after a push was counted.
        at: which push.
        marker: a file, for a fault that happens once.
    """

    phase = None

    def __init__(self, fault: str = "", at: int = 0, marker: str | None = None) -> None:
        self.count = 0
        self._fault, self._at, self._marker = fault, at, marker

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        self.count += 1
        if self._fault and self.count == self._at and due(self._marker):
            if self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the compressor fell over")
        name = next(iter(policy.spec.parameter_shapes()))
        weights = dict(policy.float_parameters())
        bias = name.replace("weight", "bias")
        weights[bias] = weights[bias].copy()
        weights[bias][0] = np.float32(1e-3 * self.count)
        return policy.replace(parameters=weights)

    def state(self) -> Any:
        return {"count": self.count}

    def load_state(self, state: State) -> None:
        self.count = int(state["count"])


class Harms(Stage):
    """Turns the network's preferences around, as a compression that went wrong."""

    phase = None

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        weights = dict(policy.float_parameters())
        bias = np.zeros_like(weights["head.bias"])
        bias[0] = 3.0
        weights["head.bias"] = weights["head.bias"] + bias
        return policy.replace(parameters=weights)


class Widens(Stage):
    """Makes another network of the policy, with random weights.

    Args:
        spec: of it.
        tells: whether it says so before training.
    """

    phase = None

    def __init__(self, spec: PolicySpec, tells: bool) -> None:
        self._spec = spec
        self._tells = tells

    def largest(self, spec: PolicySpec) -> PolicySpec:
        return self._spec if self._tells else spec

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        weights = random_policy(self._spec, context.seed).parameters
        return policy.replace(spec=self._spec, parameters=weights)


class Rescales(Stage):
    """Moves a factor from the second layer's weights to the first's, past the relu between them.

    The network says the same, but for observations so far away that the first layer overflows.
    """

    phase = None

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        first, second = policy.spec.weighted[:2]
        factor = np.float32(1e34)
        weights = dict(policy.float_parameters())
        for name in (f"{first.name}.weight", f"{first.name}.bias"):
            weights[name] = weights[name] * factor
        weights[f"{second.name}.weight"] = weights[f"{second.name}.weight"] / factor
        return policy.replace(parameters=weights)


def pushes_counted(policy: Policy) -> int:
    """What :class:`Remembers` had counted when it made a policy."""
    name = next(iter(policy.spec.parameter_shapes())).replace("weight", "bias")
    return round(float(policy.float_parameters()[name][0]) / 1e-3)
