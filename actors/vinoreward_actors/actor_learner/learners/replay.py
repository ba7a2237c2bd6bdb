"""A replay of transitions in NumPy arrays, and the base of learners with one.

Every observation is stored once, and every frame of stacked images. Steps of one environment are
adjacent, so the next slot has a step's successor. At the end of a trajectory or episode, the last
successor takes a slot of its own, which is never sampled.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.actor_learner.learners.base import (
    Consumption,
    Learner,
    LearnerConfig,
)
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.policies.policy import Floats
from vinoreward_actors.policies.spec import PolicySpec

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Windows:
    """B windows of up to n consecutive steps each; all arrays are (n, B, ...).

    A window ends early where its episode or trajectory ends: rows below repeat the last step, and
    ``ends`` marks it.
    """

    slots: Places  # indices in the replay
    actions: npt.NDArray[Any]  # int64, or (n, B, A) float32
    rewards: Floats
    terminated: Mask
    ends: Mask  # this step is the window's last; ignore rows below


class Replay:
    """Ring buffer of transitions, sampled uniformly.

    The frames of stacked images are stored once: where each successor repeats all but the first
    frame of its observation, a slot has the newest frame only, and the first observation of a
    trajectory or episode takes a slot for each of its frames.

    Args:
        spec: the network that acts.
        capacity: slots; a trajectory of T steps and e ends takes T + e of them, or T + e x C with
            stacks of C frames.
        seed: of the sampling.
    """

    def __init__(self, spec: PolicySpec, capacity: int, *, seed: int = 0) -> None:
        if capacity < 2:
            raise ConfigError(f"the replay has {capacity} slots. Expected at least 2.")
        action = ((), np.int64) if spec.discrete else ((spec.actions,), np.float32)
        self._spec = spec
        self.capacity = capacity
        self.size = 0  # transitions that can be sampled
        self.inserted = 0  # transitions inserted so far
        self._position = self._filled = 0
        self._stack = 1  # slots that make an observation
        self._arrays: dict[str, npt.NDArray[Any]] = {
            # Made at the first trajectory, which shows whether its images are stacks.
            "observations": np.zeros((0, *spec.observation_shape), spec.observation_dtype),
            "actions": np.zeros((capacity, *action[0]), action[1]),
            "rewards": np.zeros(capacity, np.float32),
            "terminated": np.zeros(capacity, np.bool_),
            "truncated": np.zeros(capacity, np.bool_),
            # Whether a slot has a step, rather than nothing or another frame.
            "steps": np.zeros(capacity, np.bool_),
        }
        self._random = np.random.default_rng(seed)

    @property
    def full(self) -> bool:
        """Whether new steps overwrite old ones."""
        return self._filled == self.capacity

    def add(self, trajectory: Trajectory) -> int:
        """Insert a trajectory over the oldest steps; return its number of transitions."""
        self._prepare(trajectory)
        stops = trajectory.terminated | trajectory.truncated
        stops[-1] = True
        steps, batch = stops.shape
        places_each = steps + stops.sum(0) * self._stack
        needed = int(places_each.sum())
        if needed > self.capacity:
            raise InputError(
                f"a trajectory of {steps} steps of {batch} environments takes {needed} slots, but "
                f"the replay has {self.capacity}. Expected a larger replay or shorter trajectories."
            )
        starts = np.cumsum(places_each) - places_each + self._stack - 1
        before: Places = np.multiply(np.cumsum(stops, axis=0) - stops, self._stack)
        # Steps right behind would lose the frames before theirs.
        lost = min(needed + self._stack - 1, self.capacity)
        taken = (self._position + np.arange(lost)) % self.capacity
        slots = (self._position + starts + np.arange(steps)[:, None] + before) % self.capacity
        arrays = self._arrays
        self.size += steps * batch - int(arrays["steps"][taken].sum())
        arrays["steps"][taken] = False
        arrays["steps"][slots] = True
        for name in ("actions", "rewards", "terminated", "truncated"):
            arrays[name][slots] = getattr(trajectory, name)
        self._store(trajectory, slots, stops)
        self._position = (self._position + needed) % self.capacity
        self._filled = min(self._filled + needed, self.capacity)
        transitions = int(steps * batch)
        self.inserted += transitions
        return transitions

    def _prepare(self, trajectory: Trajectory) -> None:
        """Make the array of observations, for frames if the trajectory has stacks of them."""
        shape = self._spec.observation_shape
        seen, following = trajectory.observations, trajectory.next_observations
        stacked = len(shape) == 3 and shape[0] > 1
        stacked = stacked and np.array_equal(seen[:, :, 1:], following[:, :, :-1])
        if len(self._arrays["observations"]) == 0:
            self._stack = shape[0] if stacked else 1
            kept = shape[1:] if stacked else shape
            dtype = self._spec.observation_dtype
            self._arrays["observations"] = np.zeros((self.capacity, *kept), dtype)
        elif self._stack > 1 and not stacked:
            # They only looked like stacks so far: store whole observations from now on.
            self._arrays["observations"] = self.observations(np.arange(self.capacity))
            self._stack = 1

    def _store(self, trajectory: Trajectory, slots: Places, stops: Mask) -> None:
        """Store the observations of steps, and the successors of the last ones behind them."""
        kept = self._arrays["observations"]
        behind = (slots[stops] + 1) % self.capacity
        if self._stack == 1:
            kept[slots] = trajectory.observations
            kept[behind] = trajectory.next_observations[stops]
            return
        kept[slots] = trajectory.observations[:, :, -1]
        kept[behind] = trajectory.next_observations[stops][:, -1]
        begins = np.concatenate([np.ones_like(stops[:1]), stops[:-1]])
        for back in range(1, self._stack):
            earlier = trajectory.observations[begins][:, -1 - back]
            kept[(slots[begins] - back) % self.capacity] = earlier

    def sample(self, count: int, steps: int = 1) -> Windows:
        """Sample B=``count`` windows of up to n=``steps`` steps, with replacement."""
        if self.size == 0:
            raise InputError("cannot sample from an empty replay. Insert trajectories first.")
        arrays = self._arrays
        rows, ends = [self._first_slots(count)], []
        for _ in range(steps):
            behind = (rows[-1] + 1) % self.capacity
            goes_on = arrays["steps"][behind]
            ends.append(~goes_on)
            rows.append(np.where(goes_on, behind, rows[-1]))
        slots = np.stack(rows[:-1])
        return Windows(
            slots=slots,
            actions=arrays["actions"][slots],
            rewards=arrays["rewards"][slots],
            terminated=arrays["terminated"][slots],
            ends=np.stack(ends),
        )

    def observations(self, slots: Places) -> npt.NDArray[Any]:
        """Return the observations (..., *observation) of steps."""
        kept = self._arrays["observations"]
        if self._stack == 1:
            observations: npt.NDArray[Any] = kept[slots]
        else:
            observations = kept[(slots[..., None] + np.arange(1 - self._stack, 1)) % self.capacity]
        return observations

    def successors(self, slots: Places) -> npt.NDArray[Any]:
        """Return the successors (..., *observation) of steps."""
        return self.observations((slots + 1) % self.capacity)

    def _first_slots(self, count: int) -> Places:
        """Sample slots that have a step."""
        steps = self._arrays["steps"]
        slots = self._random.integers(self._filled, size=count)
        while not (fits := steps[slots]).all():
            slots[~fits] = self._random.integers(self._filled, size=int((~fits).sum()))
        return slots

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers; tensors share the replay's memory."""
        return {
            "capacity": self.capacity,
            "position": self._position,
            "filled": self._filled,
            "inserted": self.inserted,
            "stack": self._stack,
            "random": json.dumps(self._random.bit_generator.state),
            "arrays": {
                name: torch.from_numpy(array[: self._filled])
                for name, array in self._arrays.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        filled, position, stack = (int(state[name]) for name in ("filled", "position", "stack"))
        shape = self._spec.observation_shape
        shapes = {name: tuple(array.shape[1:]) for name, array in state["arrays"].items()}
        wanted = {name: array.shape[1:] for name, array in self._arrays.items()}
        wanted["observations"] = shape[1:] if stack > 1 else shape
        if state["capacity"] != self.capacity or shapes != wanted or stack not in (1, shape[0]):
            raise InputError(
                f"the saved replay has {state['capacity']} slots for {shapes}. Expected "
                f"{self.capacity} for {wanted}."
            )
        kept = (self.capacity if filled else 0, *wanted["observations"])
        self._arrays["observations"] = np.zeros(kept, self._spec.observation_dtype)
        for name, array in self._arrays.items():
            array[:filled] = state["arrays"][name].numpy()
        self._arrays["steps"][filled:] = False
        self.size = int(self._arrays["steps"].sum())
        self._position, self._filled, self._stack = position, filled, stack
        self.inserted = int(state["inserted"])
        self._random.bit_generator.state = json.loads(state["random"])


# Learners with a replay


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(LearnerConfig):
    """Settings common to learners with a replay.

    Attributes:
        batch_size: windows per update.
        buffer_size: slots of the replay, a few percent more than transitions.
        learning_starts: transitions in the replay before the first update.
        n_step: steps of a target, uncorrected. With one step any behaviour policy will do. With
            several, targets contain later actions of the actors' policies: a bias, small while
            actors lag by few updates.
    """

    batch_size: int = 256
    buffer_size: int = 100_000
    learning_starts: int = 1_000
    n_step: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.batch_size, self.learning_starts, self.n_step) < 1 or (
            2 * self.learning_starts > self.buffer_size
        ):
            # Ends of trajectories take slots, too: transitions may fill little over half of them.
            raise ConfigError(
                f"the replay has batch_size={self.batch_size}, "
                f"learning_starts={self.learning_starts}, n_step={self.n_step} and "
                f"buffer_size={self.buffer_size}. Expected at least 1 each, and room for twice "
                "learning_starts."
            )


class ReplayLearner(Learner):
    """Learns from windows of a replay, with one gradient step per update."""

    def __init__(self, spec: PolicySpec, config: ReplayConfig) -> None:
        super().__init__(spec, config)
        self._config = config
        self.replay = Replay(spec, config.buffer_size, seed=config.seed)
        self.save_parts("replay")

    @property
    def consumption(self) -> Consumption:
        """Batches from the replay."""
        return Consumption(0, sampled=self._config.batch_size, minimum=self._config.learning_starts)

    @property
    def ready(self) -> bool:
        """Whether the replay has enough transitions."""
        return self.replay.size >= self._config.learning_starts

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Insert trajectories into the replay and make one step; see :meth:`Learner.update`."""
        for trajectory in trajectories:
            self.replay.add(trajectory)
        if not self.ready:
            if self.replay.full:
                raise ConfigError(
                    field="buffer_size",
                    value=self._config.buffer_size,
                    expected=f"room for learning_starts={self._config.learning_starts} transitions "
                    f"(it holds {self.replay.size})",
                    remedy="make the replay larger, or trajectories longer",
                )
            return {}
        metrics = self._learn(self.replay.sample(self._config.batch_size, self._config.n_step))
        self.updates += 1
        return {**metrics, "replay_size": float(self.replay.size)}

    @abc.abstractmethod
    def _learn(self, windows: Windows) -> dict[str, float]:
        """Make one step; return metrics."""

    def first(self, windows: Windows) -> tuple[Tensor, Tensor]:
        """Return observations (B, *observation) and actions of the windows' first steps."""
        observations = self.replay.observations(windows.slots[0])
        return self.tensor(observations), self.tensor(windows.actions[0])

    def summed(self, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Return :func:`n_step_sums` of the windows, and the bootstrap's observations (B, ...)."""
        returns, discounts = n_step_sums(
            self._config.rewards(windows.rewards), windows, self._config.gamma
        )
        # Rows below an end repeat the last step, so the last row is always the window's end.
        following = self.tensor(self.replay.successors(windows.slots[-1]))
        return self.tensor(returns), self.tensor(discounts), following


def n_step_sums(rewards: Floats, windows: Windows, gamma: float) -> tuple[Floats, Floats]:
    """Return each window's discounted sum of rewards (B,) and its bootstrap's discount (B,).

    ``rewards`` (n, B) are the windows', possibly clipped. The discount is 0 after a termination.
    """
    # Whether a row belongs to its window: no end above it.
    inside: npt.NDArray[np.bool_] = np.cumsum(windows.ends, axis=0) - windows.ends == 0
    powers = gamma ** np.arange(len(rewards), dtype=np.float64)[:, None]
    returns = (powers * rewards * inside).sum(0)
    follows = ~(windows.terminated & inside).any(0)
    discounts = gamma ** inside.sum(0) * follows
    return returns.astype(np.float32), discounts.astype(np.float32)
