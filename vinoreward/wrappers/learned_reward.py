"""LearnedReward for one Gymnasium environment."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.rewards.core import Scores
from vinoreward.wrappers.layers import (
    ImageSource,
    SingleForm,
    has_recorder,
    refuse_autoreset,
    refuse_strict_monitor,
)
from vinoreward.wrappers.rewarding import LearnedRewardBase

_ALL = np.ones(1, np.bool_)


class LearnedReward(LearnedRewardBase[gym.Env[Any, Any]], SingleForm):
    """Replace the environment's reward by what a classifier sees.

    Every step scores the picture that the transition ended with. ``info`` gains ``is_success``
    (claimed by the classifier), ``reward_prob`` (the probability behind it) and
    ``original_env_rew``; the environment's ``true_success`` stays, and an ``is_success`` of its own
    moves to ``original_is_success``.

    Around a recorder of episodes, SB3's ``Monitor`` (as ``make_vec_env(wrapper_class=...)`` and RL
    Zoo build it) or Gymnasium's ``RecordEpisodeStatistics``, ``info["episode"]`` at an episode's
    end has the return of the learned reward ``r``, the length ``l`` and the seconds ``t``, also
    where a claimed success ended it. What the recorder wrote about the environment's own reward is
    kept as ``original_episode``; it knows nothing of the episodes that a claim ended, and a file it
    writes lacks them. Without a recorder inside no ``episode`` is written: one outside sees the
    learned reward, and Gymnasium's refuses an ``episode`` that is there already. With one inside,
    give it a ``stats_key`` of its own.

    ``reward_mode``:

    - ``"sparse"``: ``success_reward`` on a step with a claimed success, else ``step_reward``.
    - ``"probability"``, ``"log_odds"``: that number. With ``terminate_on_success`` a success ends
      the stream of rewards, which teaches an agent to stay just below it where they are positive:
      switch it off, or prefer ``"potential"``.
    - ``"potential"``: sparse plus ``gamma * p(s') - p(s)``, which leaves the optimal policy as it
      was (Ng, Harada & Russell 1999). ``p`` is 0 after a termination, and kept after a truncation.

    In all modes but ``"sparse"`` the number itself is paid, so ``precision="auto"`` means FP32
    there. INT8 is checked for its decisions at the threshold; away from it, it may be off by
    several log-odds. FP32 takes about twice as long (SqueezeNet 1.1, 96x128: 1.4 for 0.7 ms);
    ``precision="int8"`` asks for INT8's numbers all the same. In ``"sparse"`` mode ``reward_prob``
    is the number of the network that decided.

    All arguments but ``guard``, a callable ``image_source`` and a loaded ``bundle`` are YAML
    scalars, so that RL Zoo's ``env_wrapper`` can carry them. ``env.spec`` makes the same
    environment again; its JSON carries a loaded bundle too, but no functions.

    Args:
        env: the environment.
        bundle: a loaded classifier bundle, the folder of one, an installed one's name, or what
            ``env.spec`` recorded of one.
        backend: ``"openvino"``, ``"torch"``, ``"onnxruntime"`` or another registered one.
        device: device of the backend.
        precision: ``"auto"`` (INT8 where the bundle's gate passed it and the reward is sparse),
            ``"fp32"``, ``"int8"``, …
        threads: threads of one inference.
        image_source: ``"render"`` (None means it), ``"obs"`` (the observation is the picture,
            channels last or first), ``"obs:<key>"`` or ``callable(env, observation)`` returning
            ``(H, W, 3)`` uint8 RGB.
        success_reward: for a claimed success.
        step_reward: for any other step.
        env_reward_weight: this times the environment's own reward is added, in every mode.
        reward_mode: see above.
        success_threshold: probability from which a frame counts; None is the bundle's.
        success_hold_steps: counting frames in a row that make a success. Above 1 the task is no
            longer Markov unless ``hold_in_observation`` is set.
        guard: ``guard(observation, probability) -> bool``; a frame it refuses does not count.
        terminate_on_success: whether a claimed success terminates the episode.
        gamma: discount of the potential; the learner's.
        hold_in_observation: append the number of counting frames in a row to the observation, a
            one-dimensional Box.

    Raises:
        ConfigError: arguments that cannot work, on their own or with this environment.
        PictureMismatchError: the environment's picture is not the bundle's.
        ModelNotFoundError: no such bundle.
    """

    def _enclose(
        self, env: gym.Env[Any, Any], source: ImageSource, arguments: dict[str, Any]
    ) -> None:
        refuse_autoreset(env, "it would be scored and paid as if an action had led there")
        if self._core.options.terminate_on_success:
            refuse_strict_monitor(env)
        super()._enclose(env, source, arguments)
        self._recorded = has_recorder(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the reset frame earns nothing."""
        observation, info = self.env.reset(seed=seed, options=options)
        first = np.zeros(1, np.float32)
        if self._core.needs_first_pictures:
            first, _ = self._classifier.score(self._picture(observation))
        self._core.begin(_ALL, first)
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and score the picture it ended with.

        Raises:
            InputError: the picture has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        probability, odds = self._classifier.score(self._picture(observation))
        scores = self._core.transition(
            _ALL,
            probability,
            odds,
            np.array([reward], np.float64),
            np.array([terminated], np.bool_),
            [observation],
        )
        info = dict(info)
        if "is_success" in info:
            info["original_is_success"] = info["is_success"]
        info["is_success"] = bool(scores.claimed[0])
        info["reward_prob"] = float(scores.probability[0])
        info["original_env_rew"] = float(reward)
        if scores.terminated[0] or truncated:
            self._end(info, scores)
        return (
            self._observed(observation),
            float(scores.rewards[0]),
            bool(scores.terminated[0]),
            bool(truncated),
            info,
        )

    def close(self) -> None:
        """Close the environment and free the network."""
        self._classifier.close()
        super().close()

    def _end(self, info: dict[str, Any], scores: Scores) -> None:
        if "episode" in info:
            info["original_episode"] = info["episode"]
            self._recorded = True
        if self._recorded:
            info["episode"] = scores.episode(0)

    def _picture(self, observation: Any) -> NDArray[np.uint8]:
        """Return the picture of this step, ``(1, H, W, 3)``."""
        frame = self.env.render() if self._source.renders else None
        return self._source.single(self.env, observation, frame)[:, -1]
