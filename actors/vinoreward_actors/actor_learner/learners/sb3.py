"""Stable-Baselines3's SAC, TD3, DDPG and DQN as learners, with their own replay and training.

Actors act; the user's model learns with its own hyper-parameters. ``model.save`` writes a
checkpoint that plain Stable-Baselines3 loads.
"""

# pyright: reportPrivateUsage=false
# Stable-Baselines3 has no public way to learn from somebody else's steps.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import configure_logger

from vinoreward.errors import ConfigError, ModelCorruptError, OutputError
from vinoreward.files import check_counts, check_names
from vinoreward_actors.actor_learner.learners import base, sb3_network
from vinoreward_actors.actor_learner.learners.base import Consumption, State
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.policies.distributions import Exploration
from vinoreward_actors.policies.policy import Floats, Policy
from vinoreward_actors.policies.torch_policy import from_policy, load_policy

# A checkpoint has the model's parts as plain tensors and numbers, replay included: SB3's own
# save_replay_buffer and save write pickles.
_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_COUNTERS = (
    "num_timesteps", "_n_updates", "_n_calls", "_current_progress_remaining", "exploration_rate",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SB3Config:
    """Settings that a model does not have itself.

    Attributes:
        total_steps: transitions of the whole run, for the model's schedules.
        sigma: standard deviation of Gaussian noise on the actions of TD3 and DDPG, in units of
            [-1, 1] and after the tanh; replaces the model's ``action_noise``. ``None`` keeps the
            model's; without any it explores only in its first ``learning_starts`` steps.
        log_interval: updates between writes to the model's logger; 0 never writes.
        seed: of batches and samples, if the model has none.
    """

    total_steps: int
    sigma: float | None = None
    log_interval: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.total_steps < 1 or self.log_interval < 0:
            raise ConfigError(
                f"total_steps is {self.total_steps} and log_interval is {self.log_interval}. "
                "Expected at least one step, and an interval of at least 0."
            )


class SB3Learner(base.Learner):
    """Inserts transitions into a model's replay and calls its ``train``.

    Makes as many gradient steps as the model would for the same transitions, by its
    ``train_freq``, ``gradient_steps`` and ``learning_starts``.

    Args:
        model: the user's. Observations follow ``model.observation_space``: images have channels
            first.
        config: settings.

    Raises:
        ConfigError: a model whose network or action noise actors cannot compute, or whose replay
            cannot take other actors' transitions.
    """

    def __init__(self, model: OffPolicyAlgorithm, config: SB3Config) -> None:
        sb3_network.check_model(model)
        self._buffer = _check_buffer(model)
        policy = sb3_network.policy_of(model)
        super().__init__(policy.spec)
        self.model = model
        self._config = config
        self._noise = sb3_network.noise_of(model, config.sigma)
        self._mirror = from_policy(policy)
        sb3_network.check_same(model, self._mirror)
        self._owed = 0.0
        self._calls = 0
        self._random: dict[str, Any] = {}
        with self._own_randomness(config.seed if model.seed is None else model.seed):
            pass
        if not hasattr(model, "_logger"):
            # As in learn(); without a folder, nothing is written.
            logger = Logger(folder=None, output_formats=[])
            if model.tensorboard_log is not None:
                logger = configure_logger(0, model.tensorboard_log, type(model).__name__)
            model.set_logger(logger)

    @property
    def consumption(self) -> Consumption:
        """One trajectory at a time: the model's own settings decide how often it trains."""
        return Consumption(1, minimum=self.model.learning_starts, any_age=True)

    @property
    def ready(self) -> bool:
        """Whether gradient steps are due."""
        return self._owed >= 1.0

    @property
    def exploration(self) -> Exploration:
        """The model's exploration: uniform for ``learning_starts`` steps, then its own.

        DQN follows its schedule, TD3 and DDPG their ``action_noise``, SAC its standard deviations.
        Actors get the change with the first update.
        """
        model = self.model
        starting = model.num_timesteps < model.learning_starts
        if isinstance(model, DQN):
            epsilon = float(model.exploration_schedule(model._current_progress_remaining))
            return Exploration(epsilon=1.0 if starting else epsilon)
        return Exploration(uniform=starting, noise=self._noise)

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Insert trajectories into the model's replay and make the gradient steps that are due."""
        for trajectory in trajectories:
            self._add(trajectory)
        steps = int(self._owed)
        if steps < 1:
            return {}
        self._owed -= steps
        try:
            with self._own_randomness():
                self.model.train(gradient_steps=steps, batch_size=self.model.batch_size)
        except ValueError:
            # torch's distributions raise their own error for NaN.
            self._check_weights()
            raise
        self.updates += steps
        self._calls += 1
        return self._metrics(steps)

    def _metrics(self, steps: int) -> dict[str, float]:
        logged = {
            name.removeprefix("train/"): float(value)
            for name, value in self.model.logger.name_to_value.items()
            if isinstance(value, int | float | np.number)
        }
        wrong = [name for name, value in logged.items() if not math.isfinite(value)]
        if wrong:
            raise OutputError(
                f"after {self.updates} updates the model's {', '.join(wrong)} are not finite. "
                "Expected finite numbers: training has diverged. Lower the learning rate and "
                "resume from the last checkpoint."
            )
        if self._config.log_interval and self._calls % self._config.log_interval == 0:
            self.model.logger.dump(self.model.num_timesteps)
        return {**logged, "gradient_steps": float(steps)}

    def _add(self, trajectory: Trajectory) -> None:
        base.check_trajectory(self.spec, trajectory)
        width, batch = self.model.n_envs, trajectory.rewards.shape[1]
        if batch % width:
            raise ConfigError(
                f"trajectories have {batch} environments, but the model was made for {width}. "
                f"Expected a multiple of {width}: make the model with one environment; its replay "
                "then takes any number."
            )
        for first in range(0, batch, width):
            self._add_columns(trajectory, slice(first, first + width))

    def _add_columns(self, trajectory: Trajectory, columns: slice) -> None:
        terminated = trajectory.terminated[:, columns]
        # For the replay, the end of a trajectory is a truncation: the next row is another's.
        cut = trajectory.truncated[:, columns] | False
        cut[-1] = True
        cut &= ~terminated
        handles = self._buffer.handle_timeout_termination
        for step in range(len(terminated)):
            ends = terminated[step] | cut[step] if handles else terminated[step]
            infos = [{"TimeLimit.truncated": bool(each)} if handles else {} for each in cut[step]]
            seen = trajectory.observations[step, columns]
            following = trajectory.next_observations[step, columns]
            actions, rewards = trajectory.actions[step, columns], trajectory.rewards[step, columns]
            self._buffer.add(seen, following, actions, rewards, ends, infos)
            over = terminated[step] | trajectory.truncated[step, columns]
            self._count(int(over.sum()))

    def _count(self, episodes: int) -> None:
        """Update the model as after a step of its environments, and add to the steps due."""
        model = self.model
        model.num_timesteps += model.n_envs
        model._update_current_progress_remaining(model.num_timesteps, self._config.total_steps)
        model._on_step()
        if model.num_timesteps <= model.learning_starts:
            return
        frequency = cast(TrainFreq, model.train_freq)
        if model.gradient_steps < 0:
            self._owed += model.n_envs
        elif frequency.unit == TrainFrequencyUnit.EPISODE:
            self._owed += episodes * model.gradient_steps / frequency.frequency
        else:
            self._owed += model.gradient_steps / frequency.frequency

    @contextmanager
    def _own_randomness(self, seed: int | None = None) -> Iterator[None]:
        """Give the model its own random state, or a new one of a seed; SB3 uses the process's."""
        device = torch.device(self.model.device)
        outside = np.random.get_state()
        devices = [] if device.type == "cpu" else [device.index or 0]
        with torch.random.fork_rng(devices=devices):
            if seed is None:
                _load_random_state(self._random, device)
            else:
                np.random.seed(seed % 2**32)
                torch.manual_seed(seed)
            try:
                yield
            finally:
                self._random = _random_state(device)
                np.random.set_state(outside)

    def policy(self, version: int) -> Policy:
        """Return a copy of the model's acting network."""
        self._check_weights()
        return sb3_network.policy_of(self.model, version=version)

    def _check_weights(self) -> None:
        for name, value in self.model.policy.named_parameters():
            if not bool(torch.isfinite(value).all()):
                raise OutputError(
                    f"the model's {name} has NaN or infinity. Expected finite weights: training "
                    "has diverged. Lower the learning rate, and resume from the last checkpoint."
                )

    def evaluate_outputs(self, observations: npt.NDArray[np.generic]) -> Floats:
        """See :meth:`Learner.evaluate_outputs`."""
        load_policy(self._mirror, sb3_network.policy_of(self.model))
        return base.outputs_of(self._mirror, observations)

    def state(self) -> State:
        """Return the model's state with its replay; see :meth:`Learner.state`."""
        return {
            "kind": type(self.model).__name__,
            "spec": self.spec.digest(),
            "updates": self.updates,
            "owed": self._owed,
            "calls": self._calls,
            "random": self._random,
            "model": _model_state(self.model, self._buffer),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; see :meth:`Learner.load_state`."""
        kind = type(self.model).__name__
        if (state.get("kind"), state.get("spec")) != (kind, self.spec.digest()):
            raise ConfigError(
                f"the state is of {state.get('kind')}. Expected {kind} of the same network: make "
                "the model as at the start of the run."
            )
        _load_model_state(self.model, self._buffer, state["model"])
        self.updates, self._calls = int(state["updates"]), int(state["calls"])
        self._owed = float(state["owed"])
        self._random = dict(state["random"])


def _random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of NumPy's and torch's global generators."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numbers": [int(position), int(has_gauss), float(gauss)],
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state["cuda"] = torch.cuda.get_rng_state(device.index or 0)
    return state


def _load_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set NumPy's and torch's global generators to a state."""
    keys = state["keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, *state["numbers"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def _model_state(model: OffPolicyAlgorithm, buffer: ReplayBuffer) -> dict[str, Any]:
    """Return weights, optimisers, counters and replay; tensors may share memory."""
    filled = buffer.buffer_size if buffer.full else buffer.pos
    names = model._get_torch_save_params()[1]
    return {
        "parameters": model.get_parameters(),
        "variables": {name: recursive_getattr(model, name).detach() for name in names},
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "replay": {
            "capacity": buffer.buffer_size,
            "position": buffer.pos,
            "full": buffer.full,
            "arrays": {name: torch.from_numpy(getattr(buffer, name)[:filled]) for name in _ARRAYS},
        },
    }


def _load_model_state(
    model: OffPolicyAlgorithm, buffer: ReplayBuffer, state: Mapping[str, Any]
) -> None:
    parameters, variables = model._get_torch_save_params()
    check_names(state, parameters=parameters, variables=variables, counters=_COUNTERS)
    check_counts(state["counters"])
    replay = state["replay"]
    shapes = {name: tuple(array.shape[1:]) for name, array in replay["arrays"].items()}
    wanted = {name: getattr(buffer, name).shape[1:] for name in _ARRAYS}
    if replay["capacity"] != buffer.buffer_size or shapes != wanted:
        raise ConfigError(
            f"the saved replay has {replay['capacity']} rows of {shapes}. Expected "
            f"{buffer.buffer_size} of {wanted}: make the model as at the start of the run."
        )
    position, full = int(replay["position"]), bool(replay["full"])
    filled = buffer.buffer_size if full else position
    arrays = replay["arrays"].items()
    rows = {name: array.shape[0] if array.ndim else 0 for name, array in arrays}
    if not 0 <= position < buffer.buffer_size or set(rows.values()) != {filled}:
        raise ModelCorruptError(
            f"the saved replay has {rows} rows and continues at row {position} of "
            f"{buffer.buffer_size}. Expected {filled} of each: it is damaged."
        )
    try:
        model.set_parameters(state["parameters"], exact_match=True, device=model.device)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the saved weights do not fit the model ({error}). Expected a model made as at the "
            "start of the run."
        ) from error
    with torch.no_grad():
        for name, value in state["variables"].items():
            recursive_getattr(model, name).copy_(value)
    for name, value in state["counters"].items():
        setattr(model, name, value)
    for name in _ARRAYS:
        array = replay["arrays"][name].numpy()
        getattr(buffer, name)[: len(array)] = array
    buffer.pos, buffer.full = position, full


def _check_buffer(model: OffPolicyAlgorithm) -> ReplayBuffer:
    """Return a model's replay; raise ConfigError if it cannot take other actors' transitions."""
    buffer = model.replay_buffer
    if buffer is None or type(buffer) not in (ReplayBuffer, NStepReplayBuffer):
        raise ConfigError(
            f"the model's replay is {type(buffer).__name__}. Expected ReplayBuffer or "
            "NStepReplayBuffer; leave replay_buffer_class out."
        )
    if buffer.optimize_memory_usage:
        raise ConfigError(
            "the model's replay takes each observation's successor from the next step, which here "
            "may be another actor's. Expected optimize_memory_usage=False."
        )
    if isinstance(buffer, NStepReplayBuffer) and not buffer.handle_timeout_termination:
        raise ConfigError(
            "the model's replay sums several steps but does not handle time limits. Expected "
            "handle_timeout_termination=True."
        )
    return buffer
