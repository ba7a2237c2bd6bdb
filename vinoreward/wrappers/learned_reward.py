"""LearnedReward for one Gymnasium environment."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.detector import Guard
from vinoreward.wrappers.core import (
    RewardCore,
    RewardMode,
    RewardOptions,
    Scores,
    append_hold,
    make_classifier,
    with_hold,
)
from vinoreward.wrappers.layers import has_recorder, refuse_autoreset, refuse_strict_monitor
from vinoreward.wrappers.render_once import render_once
from vinoreward.wrappers.sources import (
    AnyBundle,
    ImageSource,
    PictureSource,
    check_scene,
    located,
    recorded,
)

_ALL = np.ones(1, np.bool_)


class LearnedReward(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
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
        image_source: ``"render"``, ``"obs"`` (the observation is the picture, channels last or
            first), ``"obs:<key>"`` or ``callable(env, observation)`` returning ``(H, W, 3)`` uint8
            RGB.
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

    def __init__(
        self,
        env: gym.Env[Any, Any],
        bundle: AnyBundle,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        image_source: ImageSource = "render",
        success_reward: float = 1.0,
        step_reward: float = 0.0,
        env_reward_weight: float = 0.0,
        reward_mode: RewardMode = "sparse",
        success_threshold: float | None = None,
        success_hold_steps: int = 1,
        guard: Guard | None = None,
        terminate_on_success: bool = True,
        gamma: float = 0.99,
        hold_in_observation: bool = False,
    ) -> None:
        options = RewardOptions(
            success_reward=success_reward,
            step_reward=step_reward,
            env_reward_weight=env_reward_weight,
            reward_mode=reward_mode,
            success_hold_steps=success_hold_steps,
            guard=guard,
            terminate_on_success=terminate_on_success,
            gamma=gamma,
            hold_in_observation=hold_in_observation,
        )
        refuse_autoreset(env, "it would be scored and paid as if an action had led there")
        if terminate_on_success:
            refuse_strict_monitor(env)
        classifier = make_classifier(
            located(bundle), backend, device, precision, threads, success_threshold, reward_mode
        )
        # Recorded so that env.spec can make this environment again, also from JSON.
        gym.utils.RecordConstructorArgs.__init__(
            self,
            bundle=recorded(bundle, classifier.bundle),
            backend=backend,
            device=device,
            precision=precision,
            threads=threads,
            image_source=image_source,
            success_threshold=None if success_threshold is None else classifier.threshold,
            **{name: getattr(options, name) for name in options.__dataclass_fields__},
        )
        gym.Wrapper.__init__(self, render_once(env) if image_source == "render" else env)
        self._core = RewardCore(classifier, options, 1)
        self._source = PictureSource(
            image_source, env.observation_space, env.render_mode, classifier.bundle
        )
        if not self._source.calls:
            check_scene(getattr(env.unwrapped, "picture_scene", None), classifier.bundle)
        if hold_in_observation:
            self.observation_space = with_hold(env.observation_space, success_hold_steps)
        self._recorded = has_recorder(env)

    @property
    def classifier(self) -> Classifier:
        """What scores the pictures. It loads at the first one."""
        return self._core.classifier

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the reset frame earns nothing."""
        observation, info = self.env.reset(seed=seed, options=options)
        first = np.zeros(1, np.float32)
        if self._core.needs_first_pictures:
            first, _ = self._core.look([self._picture(observation)])
        self._core.begin(_ALL, first)
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and score the picture it ended with.

        Raises:
            InputError: the picture has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        probability, odds = self._core.look([self._picture(observation)])
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
        self._core.classifier.close()
        super().close()

    def _end(self, info: dict[str, Any], scores: Scores) -> None:
        if "episode" in info:
            info["original_episode"] = info["episode"]
            self._recorded = True
        if self._recorded:
            info["episode"] = scores.episode(0)

    def _picture(self, observation: Any) -> NDArray[np.uint8]:
        frame = self.env.render() if self._source.renders else None
        return self._source.picture(self.env, observation, frame)

    def _observed(self, observation: Any) -> Any:
        if not self._core.options.hold_in_observation:
            return observation
        return append_hold(observation, self._core.detector.counter[0])
