"""A replay of transitions in NumPy arrays, and the base of learners with one.

Every observation is stored once. Steps of one environment are adjacent, so the next slot has a
step's successor. At the end of a trajectory or episode, the last successor takes a slot of its own,
which is never sampled.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.actor_learner.learners.base import (
    Consumption,
    LearnerConfig,
    ModuleLearner,
    check_trajectory,
)
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.correction import Correction, Corrector, NoCorrection, OffPolicyBatch
from vinoreward_actors.policies.policy import Floats
from vinoreward_actors.policies.spec import PolicySpec

StateValues = Callable[[Tensor], Tensor]
Executed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Mask = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class SumTree:
    """A tree of sums over ``capacity`` numbers of at least 0, to sample in proportion to them."""

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(capacity - 1, 1).bit_length()
        self._capacity = capacity
        # Node 1 is the root, the children of node i are 2 i and 2 i + 1, the leaves come last.
        self._sums = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._sums[1])

    @property
    def values(self) -> Doubles:
        """(capacity,), the numbers; a view."""
        return self._sums[self._leaves : self._leaves + self._capacity]

    def set(self, places: Places, values: npt.ArrayLike) -> None:
        """Set numbers; if a place occurs several times, the last one counts."""
        nodes = places + self._leaves
        self._sums[nodes] = values
        nodes = np.unique(nodes >> 1)
        # Always sum both children instead of adding differences: rounding does not accumulate, and
        # a tree rebuilt from the same numbers is the same.
        while nodes.size and nodes[0] >= 1:
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]
            nodes = np.unique(nodes >> 1)

    def find(self, masses: Doubles) -> Places:
        """Return the places where the running sum passes ``masses`` (N,), below the total.

        Rounding may lead to a value of 0; callers then sample again.
        """
        nodes = np.ones(masses.shape, dtype=np.int64)
        rest = masses.astype(np.float64)
        while nodes.size and nodes[0] < self._leaves:
            nodes = 2 * nodes
            left_sums = self._sums[nodes]
            right = rest >= left_sums
            rest = np.where(right, rest - left_sums, rest)
            nodes = nodes + right
        return np.minimum(nodes - self._leaves, self._capacity - 1)


@dataclass(frozen=True)
class PrioritizedReplay:
    """Proportional prioritised replay (Schaul et al. 2016, section 3.3).

    Attributes:
        alpha: exponent of the error; 0 samples uniformly.
        beta: initial exponent of the importance weights.
        beta_updates: samples until it has grown to 1.
        least: added to errors, so that every transition can be sampled.
    """

    alpha: float = 0.6
    beta: float = 0.4
    beta_updates: int = 100_000
    least: float = 1e-3

    def __post_init__(self) -> None:
        if not (0 <= self.alpha <= 1 and 0 <= self.beta <= 1 and self.least > 0) or (
            self.beta_updates < 1
        ):
            raise ConfigError(
                f"prioritised replay has {self}. Expected alpha and beta from 0 to 1, a positive "
                "least and at least one update."
            )


@dataclass(frozen=True, eq=False)
class Windows:
    """B windows of up to n consecutive steps each; all arrays but ``weights`` are (n, B, ...).

    A window ends early where its episode or trajectory ends: rows below repeat the last step, and
    ``ends`` marks it.
    """

    slots: Places  # indices in the replay
    actions: npt.NDArray[Any]  # int64, or (n, B, A) float32
    rewards: Floats
    terminated: Mask
    ends: Mask  # this step is the window's last; ignore rows below
    log_mu: Floats
    weights: Floats  # (B,), importance weights; 1 for uniform sampling


class Replay:
    """Ring buffer of transitions.

    Args:
        spec: the network that acts.
        capacity: slots; a trajectory of T steps and e ends takes T + e of them.
        seed: of the sampling.
        priorities: sample by error instead of uniformly.
    """

    def __init__(
        self,
        spec: PolicySpec,
        capacity: int,
        *,
        seed: int = 0,
        priorities: PrioritizedReplay | None = None,
    ) -> None:
        if capacity < 2:
            raise ConfigError(f"the replay has {capacity} slots. Expected at least 2.")
        action = ((), np.int64) if spec.discrete else ((spec.actions,), np.float32)
        self._spec = spec
        self.capacity = capacity
        self.size = 0  # transitions that can be sampled
        self.inserted = 0  # transitions inserted so far
        self._position = self._filled = 0
        self._arrays: dict[str, npt.NDArray[Any]] = {
            "observations": np.zeros((capacity, *spec.observation_shape), spec.observation_dtype),
            "actions": np.zeros((capacity, *action[0]), action[1]),
            "rewards": np.zeros(capacity, np.float32),
            "terminated": np.zeros(capacity, np.bool_),
            "truncated": np.zeros(capacity, np.bool_),
            "log_mu": np.zeros(capacity, np.float32),
            # Whether a slot has a step, rather than nothing or a last successor.
            "steps": np.zeros(capacity, np.bool_),
        }
        self._random = np.random.default_rng(seed)
        self._priorities = priorities
        self._tree = SumTree(capacity) if priorities else None
        self._highest = 1.0
        self._draws = 0

    def add(self, trajectory: Trajectory) -> int:
        """Insert a trajectory over the oldest steps; return its number of transitions."""
        check_trajectory(self._spec, trajectory)
        stops = trajectory.terminated | trajectory.truncated
        stops[-1] = True
        steps, batch = stops.shape
        places_each = steps + stops.sum(0)
        needed = int(places_each.sum())
        if needed > self.capacity:
            raise InputError(
                f"a trajectory of {steps} steps of {batch} environments takes {needed} slots, but "
                f"the replay has {self.capacity}. Expected a larger replay or shorter trajectories."
            )
        starts = np.cumsum(places_each) - places_each
        before: Places = np.cumsum(stops, axis=0) - stops
        taken = (self._position + np.arange(needed)) % self.capacity
        slots = (self._position + starts + np.arange(steps)[:, None] + before) % self.capacity
        behind = (slots[stops] + 1) % self.capacity
        arrays = self._arrays
        self.size += steps * batch - int(arrays["steps"][taken].sum())
        arrays["steps"][taken] = False
        arrays["steps"][slots] = True
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "log_mu"):
            arrays[name][slots] = getattr(trajectory, name)
        arrays["observations"][behind] = trajectory.next_observations[stops]
        if self._tree is not None:
            self._tree.set(taken, 0.0)
            self._tree.set(slots.reshape(-1), self._highest)
        self._position = (self._position + needed) % self.capacity
        self._filled = min(self._filled + needed, self.capacity)
        transitions = int(steps * batch)
        self.inserted += transitions
        return transitions

    def sample(self, count: int, steps: int = 1) -> Windows:
        """Sample B=``count`` windows of up to n=``steps`` steps, with replacement."""
        if self.size == 0:
            raise InputError("cannot sample from an empty replay. Insert trajectories first.")
        first = self._first_slots(count)
        weights = self._weights(first)
        arrays = self._arrays
        rows, ends = [first], []
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
            log_mu=arrays["log_mu"][slots],
            weights=weights,
        )

    def observations(self, slots: Places) -> npt.NDArray[Any]:
        """Return the observations (..., *observation) of steps."""
        observations: npt.NDArray[Any] = self._arrays["observations"][slots]
        return observations

    def successors(self, slots: Places) -> npt.NDArray[Any]:
        """Return the successors (..., *observation) of steps."""
        return self.observations((slots + 1) % self.capacity)

    def update_priorities(self, windows: Windows, errors: npt.NDArray[np.floating[Any]]) -> None:
        """Set the priorities of the windows' first steps from errors (B,), if prioritised."""
        if self._tree is None or self._priorities is None:
            return
        settings = self._priorities
        priorities = (np.abs(errors.astype(np.float64)) + settings.least) ** settings.alpha
        self._tree.set(windows.slots[0], priorities)
        self._highest = max(self._highest, float(priorities.max()))

    def _first_slots(self, count: int) -> Places:
        """Sample slots that have a step, by priority if there are priorities."""
        tree = self._tree
        if tree is None:
            steps = self._arrays["steps"]
            slots = self._random.integers(self._filled, size=count)
            while not (fits := steps[slots]).all():
                slots[~fits] = self._random.integers(self._filled, size=int((~fits).sum()))
            return slots
        # Stratified: one sample from each of equal shares of the total, for less variance.
        slots = tree.find((np.arange(count) + self._random.random(count)) / count * tree.total)
        while not (fits := tree.values[slots] > 0).all():
            slots[~fits] = tree.find(self._random.random(int((~fits).sum())) * tree.total)
        return slots

    def _weights(self, slots: Places) -> Floats:
        if self._tree is None or self._priorities is None:
            return np.ones(len(slots), dtype=np.float32)
        grown = min(1.0, self._draws / self._priorities.beta_updates)
        beta = self._priorities.beta + (1.0 - self._priorities.beta) * grown
        self._draws += 1
        share = self._tree.values[slots] / self._tree.total
        weights = (self.size * share) ** -beta
        scaled: Floats = (weights / weights.max()).astype(np.float32)
        return scaled

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers; tensors share the replay's memory."""
        state: dict[str, Any] = {
            "capacity": self.capacity,
            "position": self._position,
            "filled": self._filled,
            "inserted": self.inserted,
            "highest": self._highest,
            "draws": self._draws,
            "random": json.dumps(self._random.bit_generator.state),
            "arrays": {
                name: torch.from_numpy(array[: self._filled])
                for name, array in self._arrays.items()
            },
        }
        if self._tree is not None:
            state["priorities"] = torch.from_numpy(self._tree.values[: self._filled])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        filled, position = int(state["filled"]), int(state["position"])
        shapes = {name: tuple(array.shape[1:]) for name, array in state["arrays"].items()}
        wanted = {name: array.shape[1:] for name, array in self._arrays.items()}
        if (
            state["capacity"] != self.capacity
            or shapes != wanted
            or ("priorities" in state) != (self._tree is not None)
        ):
            raise InputError(
                f"the saved replay has {state['capacity']} slots for {shapes}. Expected "
                f"{self.capacity} for {wanted}, {'with' if self._tree else 'without'} priorities."
            )
        columns = dict(state["arrays"])
        if self._tree is not None:
            columns["priorities"] = state["priorities"]
        rows = {name: array.shape[0] if array.ndim else 0 for name, array in columns.items()}
        fits = 0 <= filled <= self.capacity and 0 <= position < self.capacity
        if not fits or set(rows.values()) != {filled}:
            raise InputError(
                f"the saved replay has {rows} rows, {filled} filled slots and continues at slot "
                f"{position}. Expected one row for each filled slot, and at most {self.capacity} "
                "slots: it is damaged."
            )
        for name, array in self._arrays.items():
            array[:filled] = state["arrays"][name].numpy()
        self._arrays["steps"][filled:] = False
        self.size = int(self._arrays["steps"].sum())
        self._position, self._filled = position, filled
        self.inserted = int(state["inserted"])
        self._highest, self._draws = float(state["highest"]), int(state["draws"])
        self._random.bit_generator.state = json.loads(state["random"])
        if self._tree is not None:
            self._tree.set(np.arange(self.capacity), 0.0)
            self._tree.set(np.arange(filled), state["priorities"].numpy())


# Learners with a replay


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(LearnerConfig):
    """Settings common to learners with a replay.

    Attributes:
        batch_size: windows per update.
        buffer_size: slots of the replay, a few percent more than transitions.
        learning_starts: transitions in the replay before the first update.
        n_step: steps of a target. One step needs no corrector: any behaviour policy will do.
        correctors: correction of n-step targets; see each learner. Uncorrected targets must be
            explicit: ``(NoCorrection(),)``.
        prioritized: sample by error; ``None`` samples uniformly.
    """

    batch_size: int = 256
    buffer_size: int = 100_000
    learning_starts: int = 1_000
    n_step: int = 1
    correctors: tuple[Corrector, ...] = ()
    prioritized: PrioritizedReplay | None = None

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
        if self.n_step > 1 and not self.correctors:
            raise ConfigError(
                f"targets of {self.n_step} steps have no corrector, but their later actions are "
                "those of another policy. Expected correctors=(Retrace(),), (TreeBackup(),), or "
                "(NoCorrection(),) if you accept the bias; or n_step=1."
            )
        if any(each.role == "policy_gradient" for each in self.correctors):
            raise ConfigError(
                f"the correctors {self.correctors} do not fit a learner with a replay, whose "
                "policy gradient has no importance weight. Expected correctors of role target."
            )


class ReplayLearner(ModuleLearner):
    """Learns from windows of a replay, with one gradient step per update."""

    def __init__(self, spec: PolicySpec, config: ReplayConfig) -> None:
        super().__init__(spec, config)
        self._config = config
        self.replay = Replay(
            spec, config.buffer_size, seed=config.seed, priorities=config.prioritized
        )
        self.save_parts("replay")
        chain = config.correctors or (NoCorrection(),)
        self.correction = Correction(chain, critic="q")
        self._plain = all(isinstance(each, NoCorrection) and each.lam == 1.0 for each in chain)

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
            return {}
        windows = self.replay.sample(self._config.batch_size, self._config.n_step)
        metrics, errors = self._learn(windows)
        self.replay.update_priorities(windows, errors)
        self.updates += 1
        return {**metrics, "replay_size": float(self.replay.size)}

    @abc.abstractmethod
    def _learn(self, windows: Windows) -> tuple[dict[str, float], Floats]:
        """Make one step; return metrics and the error (B,) of each window."""

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

    def targets(self, windows: Windows, state_values: StateValues, executed: Executed) -> Tensor:
        """Return targets (B,) for the windows' first actions, corrected if there is a corrector.

        For N observations, ``state_values`` returns the learned policy's values (N,); ``executed``
        returns its log probabilities (N,) of executed actions, and their action values (N,).
        """
        if self._plain:
            returns, discounts, following = self.summed(windows)
            return returns + discounts * state_values(following)
        slots = windows.slots.reshape(-1)
        actions = windows.actions.reshape(len(slots), *windows.actions.shape[2:])
        log_pi, q_values = executed(
            self.tensor(self.replay.observations(slots)), self.tensor(actions)
        )
        next_values = state_values(self.tensor(self.replay.successors(slots)))
        for name, values in (("action values", q_values), ("values", next_values)):
            self.check_finite(name, values)
        shape = windows.slots.shape
        batch = OffPolicyBatch(
            log_pi=self.array(log_pi, shape),
            log_mu=windows.log_mu,
            rewards=self._config.rewards(windows.rewards),
            terminated=windows.terminated,
            truncated=windows.ends & ~windows.terminated,
            values=self.array(q_values, shape),
            next_values=self.array(next_values, shape),
            gamma=self._config.gamma,
            q_values=self.array(q_values, shape),
        )
        return self.tensor(self.correction(batch).targets[0])


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
