"""Deferred rewards for Stable-Baselines3's off-policy algorithms.

This module imports SB3; ``vinoreward`` has :class:`RewardLater`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, needed_for
from vinoreward.wrappers.batched import Algorithm, extended
from vinoreward.wrappers.sb3 import LearnedReward
from vinoreward.wrappers.unscored import Unscored

with needed_for("vinoreward.wrappers.later", "train"):
    from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
    from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
    from stable_baselines3.common.vec_env import VecTransposeImage

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    _Buffer = ReplayBuffer
else:
    _Buffer = object

__all__ = ["LaterDictReplayBuffer", "LaterReplayBuffer", "RewardLater"]

_ROW = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class _Open(NamedTuple):
    """The row of a buffer whose reward is not known yet."""

    row: int
    step: Unscored
    replaced: dict[str, Any]
    """What was in the row before."""
    full: bool
    """Whether the buffer was full before."""
    scored: bool = False


class _Later(_Buffer):
    """A replay buffer with at most one transition whose reward is not known yet.

    It is drawn like any other, with the same random numbers. What is read of it, but for its reward
    and its end, is known; who reads these waits for them.
    """

    _open: _Open | None = None

    @property
    def ahead(self) -> bool:
        """Whether the newest transitions were added before their step was told."""
        return self._open is not None

    def add_unscored(self, obs: Any, next_obs: Any, action: NDArray[Any], step: Unscored) -> None:
        """Add a step's transitions before they are scored."""
        row = self.pos
        replaced, full = {name: _copied(self, name, row) for name in _ROW}, self.full
        nothing = np.full(self.n_envs, np.nan, np.float32)
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        self.add(obs, next_obs, action, nothing, np.zeros(self.n_envs), infos)
        self._open = _Open(row, step, replaced, full)

    def score(self) -> None:
        """Write the missing reward; wait for it if need be."""
        if self._open is None or self._open.scored:
            return
        answer, row = self._open.step.answer(), self._open.row
        self.rewards[row] = answer.rewards
        self.dones[row] = answer.dones
        if self.handle_timeout_termination:
            self.timeouts[row] = answer.timeouts
        self._open = self._open._replace(scored=True)

    def keep(self) -> None:
        """Let the newest transitions be like all others."""
        self.score()
        self._open = None

    def take_back(self) -> None:
        """Remove the newest transitions, if their step was not told."""
        if self._open is None:
            return
        row, replaced = self._open.row, self._open.replaced
        self.pos, self.full = row, self._open.full
        self._open = None
        for name, values in replaced.items():
            target = getattr(self, name)
            for key, value in values.items():
                (target if key is None else target[key])[row] = value

    def _get_samples(self, batch_inds: NDArray[Any], env: VecNormalize | None = None) -> Any:
        gather = super()._get_samples
        if self._open is None or self._open.scored or not (batch_inds == self._open.row).any():
            return gather(batch_inds, env)
        if self._open.step.ready:
            self.score()
            return gather(batch_inds, env)
        drawn = np.random.get_state()

        def again() -> Any:
            self.score()
            now = np.random.get_state()
            np.random.set_state(drawn)  # of several environments the same ones
            try:
                return gather(batch_inds, env)
            finally:
                np.random.set_state(now)

        return _LateSamples(gather(batch_inds, env), again)


class _LateSamples:
    """A batch from a replay buffer, as SB3's algorithms read it; the rewards come when read."""

    def __init__(self, known: Any, again: Any) -> None:
        self.observations = known.observations
        self.actions = known.actions
        self.next_observations = known.next_observations
        self.discounts = known.discounts
        self._again = again

    @functools.cached_property
    def _whole(self) -> Any:
        return self._again()

    @property
    def rewards(self) -> Any:
        """Rewards, ``(batch, 1)``."""
        return self._whole.rewards

    @property
    def dones(self) -> Any:
        """Terminations, ``(batch, 1)``."""
        return self._whole.dones


def _copied(buffer: Any, name: str, row: int) -> dict[str | None, Any]:
    arrays = getattr(buffer, name, None)
    if isinstance(arrays, dict):
        return {key: array[row].copy() for key, array in arrays.items()}
    return {} if arrays is None else {None: arrays[row].copy()}


class LaterReplayBuffer(_Later, ReplayBuffer):
    """SB3's replay buffer for :class:`RewardLater`."""


class LaterDictReplayBuffer(_Later, DictReplayBuffer):
    """SB3's replay buffer for observations that are dictionaries, for :class:`RewardLater`."""


_BUFFERS: dict[Any, type[ReplayBuffer]] = {
    ReplayBuffer: LaterReplayBuffer,
    DictReplayBuffer: LaterDictReplayBuffer,
    LaterReplayBuffer: LaterReplayBuffer,
    LaterDictReplayBuffer: LaterDictReplayBuffer,
}


class _Ahead(NamedTuple):
    """What a rollout collects from and into."""

    env: LearnedReward
    buffer: _Later
    train_freq: TrainFreq


class RewardLater(OffPolicyAlgorithm):
    """Lets the classifier score a step's picture while an SB3 algorithm takes its gradient steps.

    Put it before an off-policy algorithm whose environment is a :class:`~vinoreward
    .VecLearnedReward`::

        class LaterSAC(RewardLater, SAC): ...


        model = LaterSAC("MlpPolicy", VecLearnedReward(DummyVecEnv([make]), "my-bundle"))

    or let :meth:`of` do it. The training is the same to the last bit as without: the same actions,
    episodes, replay buffer and weights. Gradient steps that follow a step of the environment begin
    before that step has its reward; a transition without one is drawn as always, and who reads its
    reward waits. So the reward is there before the next action, and a claimed success ends its
    episode in time.

    Callbacks are told of a step after its gradient steps, not before, as they are told the reward.
    An evaluation by a callback therefore sees a policy with one step's updates more, and a callback
    that ends the training does so after them.

    Raises:
        ConfigError: another environment, replay buffer or algorithm than this works with.
    """

    _collected = 0
    _ahead: _Ahead | None = None
    _trained = False
    _counted = False
    _failure: BaseException | None = None

    @staticmethod
    @functools.cache
    def of(algorithm: type[Algorithm]) -> type[Algorithm]:
        """Return an algorithm's class with deferred rewards; its name stays.

        Args:
            algorithm: such as ``stable_baselines3.SAC``, ``TD3`` or ``DQN``.

        Raises:
            ConfigError: it is not off-policy.
        """
        return extended(RewardLater, algorithm)

    def _setup_model(self) -> None:
        if self.env is not None:
            _learned_reward(self.env)
        given = self.replay_buffer_class
        if given is None and self.n_steps == 1:
            known = DictReplayBuffer if hasattr(self.observation_space, "spaces") else ReplayBuffer
            given = known
        if given not in _BUFFERS or self.optimize_memory_usage:
            found = "n_steps above 1" if given is None else getattr(given, "__name__", given)
            if self.optimize_memory_usage:
                found = "optimize_memory_usage"
            raise ConfigError(
                f"RewardLater was given {found}. Expected a plain ReplayBuffer or DictReplayBuffer "
                "with n_steps=1; leave that out, or train without RewardLater."
            )
        self.replay_buffer_class = _BUFFERS[given]
        super()._setup_model()

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: Any,
        train_freq: TrainFreq,
        replay_buffer: ReplayBuffer,
        *arguments: Any,
        **options: Any,
    ) -> RolloutReturn:
        """Collect as SB3 does; train before the last step is told, while it is scored."""
        learned = _learned_reward(env)
        if not isinstance(replay_buffer, _Later):
            raise ConfigError(
                f"RewardLater was given a {type(replay_buffer).__name__}. Expected a replay buffer "
                "that it made; leave set_replay_buffer and files of other trainings out."
            )
        self._collected, self._trained, self._counted, self._failure = 0, False, False, None
        self._ahead = _Ahead(learned, replay_buffer, train_freq)
        try:
            rollout = super().collect_rollouts(
                env, callback, train_freq, replay_buffer, *arguments, **options
            )
        finally:
            learned.meanwhile, self._ahead = None, None
            # SB3 does not store a step that failed, or at which a callback ends the training.
            replay_buffer.take_back()
        if not rollout.continue_training:
            self._raise_failure()
        return rollout

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Take the gradient steps, unless they were taken while the step was scored."""
        self._raise_failure()
        if self._trained:
            self._trained = False
            return
        super().train(gradient_steps=gradient_steps, batch_size=batch_size)

    def _sample_action(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        action, buffer_action = super()._sample_action(*arguments, **options)
        self._collected += 1
        ahead = self._ahead
        if ahead is not None:
            gradient_steps = self._steps_now(ahead.train_freq)
            ahead.env.meanwhile = (
                functools.partial(self._train_ahead, ahead.buffer, buffer_action, gradient_steps)
                if gradient_steps
                else None
            )
        return action, buffer_action

    def _steps_now(self, train_freq: TrainFreq) -> int:
        """Return how many gradient steps follow the environments' step that comes now."""
        if train_freq.unit != TrainFrequencyUnit.STEP:
            return 0  # whether the rollout is over depends on the reward
        done = self.num_timesteps + self.n_envs
        if self._collected < train_freq.frequency or done <= self.learning_starts:
            return 0
        return self.gradient_steps if self.gradient_steps >= 0 else self._collected * self.n_envs

    def _train_ahead(
        self, buffer: _Later, action: NDArray[Any], gradient_steps: int, step: Unscored
    ) -> None:
        ended = step.next_observations
        if isinstance(self.env, VecTransposeImage):
            ended = self.env.transpose_observations(ended)
        buffer.add_unscored(self._last_obs, ended, action, step)
        try:
            # What SB3 does between a step and its gradient steps: the learning rate depends on the
            # first, DQN's target network on the second.
            self._update_current_progress_remaining(
                self.num_timesteps + self.n_envs, self._total_timesteps
            )
            super()._on_step()
            self._counted = True
            super().train(gradient_steps=gradient_steps, batch_size=self.batch_size)
            self.policy.set_training_mode(False)
            self._trained = True
        except BaseException as failure:  # noqa: BLE001 (raised again when SB3 would train)
            # The step itself goes on, so that nothing is left half done. Where the scores have
            # failed, it fails with the same error.
            self._failure = failure

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _on_step(self) -> None:
        if self._counted:
            self._counted = False
        else:
            super()._on_step()

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: NDArray[Any],
        new_obs: Any,
        reward: NDArray[Any],
        dones: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        if isinstance(replay_buffer, _Later) and replay_buffer.ahead:
            replay_buffer.keep()
            self._last_original_obs, self._last_obs = self._last_obs, new_obs
        else:
            super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)


def _learned_reward(env: VecEnv) -> LearnedReward:
    """Return the environment if its rewards can be deferred, else raise ConfigError."""
    if isinstance(env, VecTransposeImage):  # SB3 puts it around pictures by itself
        env = env.venv
    if not isinstance(env, LearnedReward):
        raise ConfigError(
            f"RewardLater was given a {type(env).__name__}. Expected a VecLearnedReward as the "
            "outermost environment, as a transition is stored before it is scored; put others "
            "below it, or train without RewardLater."
        )
    if env.appends_hold:
        raise ConfigError(
            "RewardLater was given a VecLearnedReward with hold_in_observation: then the next "
            "observation is known only with the score. Expected hold_in_observation=False; or "
            "train without RewardLater."
        )
    return env
