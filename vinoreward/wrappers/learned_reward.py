"""LearnedReward for one Gymnasium environment, and what its three forms share."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward.rewards.classifier import Classifier, Judged, check_origin, warn_uncalibrated
from vinoreward.rewards.frozen import FrozenCheck
from vinoreward.rewards.success import (
    Guard,
    OnOdd,
    RewardCore,
    RewardMode,
    RewardOptions,
    Scores,
)
from vinoreward.wrappers.render_once import layers
from vinoreward.wrappers.sources import (
    AnyBundle,
    AnyEnv,
    Env,
    Form,
    ImageSource,
    SingleForm,
    has_state,
    located,
    recorded,
    refuse_autoreset,
    state_of,
)
from vinoreward.wrappers.views import picture_source, sources_of

_ALL = np.ones(1, np.bool_)
# Attributes by which Gymnasium's RecordEpisodeStatistics and SB3's Monitor are known: also in
# another process, and without importing SB3.
GYMNASIUM_RECORDER, SB3_RECORDER = "return_queue", "get_episode_rewards"
RELABELS = "compute_reward"
"""What hindsight experience replay calls in a goal environment."""
_NONE: Mapping[int, Any] = MappingProxyType({})


class Looked(NamedTuple):
    """What classifier and guard say of the pictures of a step; arrays are ``(num_envs,)``.

    Zero where no picture was looked at.
    """

    probability: NDArray[np.float32]
    log_odds: NDArray[np.float32]
    odd: NDArray[np.float32] | None
    """How strange the picture is; None without a guard."""
    first: NDArray[np.float32]
    """Probability of an episode's first picture, for the potential; zero if that is odd."""
    pictures: NDArray[np.uint8] | None
    """Those that were looked at, ``(n, H, W, 3)``, as the network got them."""
    states: NDArray[np.float64] | None
    """``(num_envs, D)`` The numbers of the observations; None where nobody compares them."""


class LearnedRewardBase(Form[AnyEnv]):
    """Base of the forms of :class:`~vinoreward.LearnedReward`, which explains the arguments."""

    _default_source: ClassVar[str] = "render"

    def __init__(
        self,
        env: AnyEnv,
        bundle: AnyBundle,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        image_source: ImageSource | None = None,
        success_reward: float = 1.0,
        step_reward: float = 0.0,
        env_reward_weight: float = 0.0,
        success_replaces_env_reward: bool = False,
        reward_mode: RewardMode = "sparse",
        success_threshold: float | None = None,
        success_exit_threshold: float | None = None,
        success_hold_steps: int = 1,
        guard: Guard | None = None,
        terminate_on_success: bool = True,
        gamma: float = 0.99,
        hold_in_observation: bool = False,
        on_ood: OnOdd = "withhold",
        frozen_check: bool = True,
        accept_foreign_pictures: bool = False,
    ) -> None:
        options = RewardOptions(
            success_reward=success_reward,
            step_reward=step_reward,
            env_reward_weight=env_reward_weight,
            success_replaces_env_reward=success_replaces_env_reward,
            reward_mode=reward_mode,
            success_hold_steps=success_hold_steps,
            guard=guard,
            terminate_on_success=terminate_on_success,
            gamma=gamma,
            hold_in_observation=hold_in_observation,
            on_ood=on_ood,
            frozen_check=frozen_check,
        )
        self._classifier = Classifier(
            located(bundle),
            backend=backend,
            device=device,
            # INT8 is checked for its decisions at the threshold and nowhere else.
            precision="fp32" if precision == "auto" and reward_mode != "sparse" else precision,
            threads=threads,
            threshold=success_threshold,
            exit_threshold=success_exit_threshold,
            guarded=on_ood != "ignore",
        )
        source = sources_of(image_source, self._classifier.bundle, self._default_source)
        if success_threshold is None:
            warn_uncalibrated(self._classifier.bundle)
        arguments = {
            "bundle": recorded(bundle, self._classifier.bundle),
            "backend": backend,
            "device": device,
            "precision": precision,
            "threads": threads,
            "image_source": source,
            "success_threshold": None if success_threshold is None else self._classifier.threshold,
            "success_exit_threshold": (
                None if success_exit_threshold is None else self._classifier.exit_threshold
            ),
            "accept_foreign_pictures": accept_foreign_pictures,
            **vars(options),
        }
        self._claims: dict[int, NDArray[np.uint8]] = {}
        inside = self._inside(env)
        if isinstance(inside.scene, Mapping) and not (callable(source) or accept_foreign_pictures):
            check_origin(self._classifier.bundle)
        self._core = RewardCore(
            options, self._classifier.threshold, inside.num_envs, self._classifier.exit_threshold
        )
        self._enclose(env, source, arguments)
        self._source = picture_source(source, inside, self._classifier.bundle)
        if frozen_check and on_ood != "ignore" and has_state(inside.space):
            self._core.frozen = FrozenCheck(inside.num_envs)
        if hold_in_observation:
            self._show(_with_hold(inside.space, success_hold_steps))

    def compute_reward(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to pay for relabelled goals, as hindsight experience replay asks it.

        The environment's own is still there for whoever names it: ``env.unwrapped``.
        """
        raise ConfigError(
            f"{RELABELS} was asked of a learned reward, which pays for images: a goal that is "
            "relabelled has no image, and the environment would pay its own reward instead, which "
            "the learner shall not see. Expected a learner without relabelled goals; leave "
            "HerReplayBuffer out (a goal environment takes DictReplayBuffer)."
        )

    @property
    def classifier(self) -> Classifier:
        """What scores the pictures. It loads at the first one."""
        return self._classifier

    def close(self, **kwargs: Any) -> None:
        """Close the environment and free the network."""
        self._classifier.close()
        super().close(**kwargs)  # type: ignore[misc]

    def _score(
        self,
        env: Any,
        observations: Any,
        ends: NDArray[np.bool_],
        begins: NDArray[np.bool_],
        last: Mapping[int, Any] = _NONE,
    ) -> Looked:
        """Score last pictures of steps and, in potential mode, first ones of episodes in one call.

        ``ends`` and ``begins`` are ``(num_envs,)`` bool; see :meth:`PictureSource.batch`.
        """
        old = np.flatnonzero(ends).tolist()
        scored = self._core.needs_first_pictures
        new = np.flatnonzero(begins).tolist() if scored or self._source.remembers else []
        pictures = self._source.batch(observations, old, new, last, env)[:, -1]
        judged = self._judge(pictures if scored else pictures[: len(old)])
        self._seen = pictures[: len(old)]
        probability, log_odds, odd, first = np.zeros((4, len(ends)), np.float32)
        probability[old], log_odds[old] = (
            judged.probability[: len(old)],
            judged.log_odds[: len(old)],
        )
        if judged.odd is not None:
            odd[old] = judged.odd[: len(old)]
        if scored:
            first[new] = self._potential(judged)[len(old) :]
        return Looked(
            probability,
            log_odds,
            None if judged.odd is None else odd,
            first,
            None if self._classifier.prepared is None else self._classifier.prepared[: len(old)],
            self._states(observations, last),
        )

    def _states(
        self, observations: Any, last: Mapping[int, Any] = _NONE
    ) -> NDArray[np.float64] | None:
        """Return ``(num_envs, D)`` numbers of observations for the frozen-camera check, if any."""
        if self._core.frozen is None:
            return None
        states = [state_of(last.get(i, o)) for i, o in enumerate(self._source.rows(observations))]
        if len(set(map(len, states))) > 1:  # of a space whose sequences have any length
            return None
        return np.stack(states)

    @contextlib.contextmanager
    def _begin_even_on_error(
        self, begins: NDArray[np.bool_], ends: NDArray[np.bool_] | None = None
    ) -> Iterator[None]:
        """If this block fails, still begin episodes, and end the holds of what was stepped.

        The environments have gone on by then, and the caller may go on after the error. ``begins``
        and ``ends`` are ``(num_envs,)``; None: nothing was stepped.
        """
        try:
            yield
        except BaseException:
            if ends is not None:
                self._core.detector.reset(ends)
            self._core.begin(begins, np.zeros(len(begins), np.float32))
            raise

    def _judge(self, pictures: NDArray[np.uint8]) -> Judged:
        return self._classifier.judge(pictures)

    def claimed_picture(self, index: int = 0) -> NDArray[np.uint8] | None:
        """Return the picture of an environment's last claim, ``(H, W, 3)`` RGB; None before it."""
        return self._claims.get(index)

    def _keep(self, claimed: NDArray[np.bool_], scored: NDArray[np.bool_] | None = None) -> None:
        """Keep the pictures of a step's claims; ``scored`` says which were, None all."""
        rows = np.arange(len(claimed)) if scored is None else np.cumsum(scored) - 1
        for i in np.flatnonzero(claimed).tolist():
            # A copy: the environment may write its next picture into the same array.
            self._claims[i] = np.array(self._seen[rows[i]])

    def _potential(self, judged: Judged) -> NDArray[np.float32]:
        """Return the probability of first pictures, zero where one is withheld."""
        everyone = np.ones(len(judged.probability), np.bool_)
        withheld = self._core.withheld(everyone, judged.odd)
        if withheld is None:
            return judged.probability
        return np.where(withheld, np.float32(0), judged.probability)

    def _guarded(self, observations: Any, last: Mapping[int, Any]) -> list[Any] | None:
        """Return each environment's last observation of the step, for the guard; None without."""
        if self._core.options.guard is None:
            return None
        return [last.get(i, item) for i, item in enumerate(self._source.rows(observations))]

    @staticmethod
    def _record(info: dict[str, Any], scores: Scores, i: int, env_reward: Any) -> None:
        """Write the claim into an environment's info; keep its own ``is_success``."""
        # With reward_prob it is an inner learned reward's claim, not the truth.
        if "is_success" in info and "reward_prob" not in info:
            info["original_is_success"] = info["is_success"]
        info["is_success"] = bool(scores.claimed[i])
        info["reward_prob"] = float(scores.probability[i])
        info["original_env_rew"] = float(env_reward)
        if scores.odd is not None:
            info["reward_ood"] = float(scores.odd[i])

    def _observed(self, observations: Any) -> Any:
        """Return one or a batch of observations as the learner sees them."""
        if not self._core.options.hold_in_observation:
            return observations
        counter = self._core.detector.counter
        return append_hold(observations, counter if observations.ndim == 2 else counter[0])


def _number(reward: Any) -> float:
    """Return a reward as a float; accepts an array of one number, and None as NaN."""
    if reward is None:
        return math.nan
    try:
        value = np.asarray(reward)
        if value.dtype.kind in "biuf":
            return float(value.item())
        why: Exception | None = None
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = error
    raise InputError(
        f"the environment gave the reward {reward!r:.200}. Expected a number; fix the environment."
    ) from why


def _with_hold(space: gym.Space[Any], hold: int) -> gym.spaces.Box:
    """Return a one-dimensional Box with one more number at its end, the hold counter."""
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"hold_in_observation was asked for with the observation space {space}. Expected a Box "
            "of one dimension, to which the counter can be appended; set hold_in_observation to "
            "False, or flatten the observation first (gymnasium.wrappers.FlattenObservation)."
        )
    dtype = np.dtype(space.dtype)
    if np.array(hold).astype(dtype) != hold:
        raise ConfigError(
            f"hold_in_observation was asked for with success_hold_steps={hold} and {dtype} "
            "observations, which cannot hold that number. Expected fewer steps, or observations of "
            "a wider dtype."
        )
    return gym.spaces.Box(
        np.append(space.low, 0).astype(dtype),
        np.append(space.high, hold).astype(dtype),
        dtype=dtype.type,
    )


def append_hold(observation: NDArray[Any], counter: NDArray[np.int64]) -> NDArray[Any]:
    """Return the ``(..., D)`` observation with the ``(...)`` counter as its last number."""
    last = np.asarray(counter).astype(observation.dtype)[..., None]
    return np.concatenate([observation, last], axis=-1)


def strict_monitor() -> ConfigError:
    """Return the error for a ``Monitor`` that refuses a reset before its episode ends."""
    return ConfigError(
        "terminate_on_success is set and a Monitor refuses early resets. Expected "
        "Monitor(env, allow_early_resets=True), or terminate_on_success=False."
    )


def has_recorder(env: Env) -> bool:
    """Return whether a ``RecordEpisodeStatistics`` or ``Monitor`` inside writes ``episode``."""
    return any(
        hasattr(layer, SB3_RECORDER)
        or (hasattr(layer, GYMNASIUM_RECORDER) and reports_episodes(layer))
        for layer in layers(env)
    )


def reports_episodes(recorder: Any) -> bool:
    """Return whether a recorder writes to its default key ``episode``."""
    return bool(getattr(recorder, "_stats_key", "episode") == "episode")


class LearnedReward(LearnedRewardBase[Env], SingleForm):
    """Replace the environment's reward by what a classifier sees.

    Every step scores the picture that the transition ended with. ``info`` gains ``is_success``
    (claimed by the classifier), ``reward_prob`` (the probability behind it) and
    ``original_env_rew``; the environment's ``true_success`` stays, and an ``is_success`` of its own
    moves to ``original_is_success``. If the bundle has a guard, ``reward_ood`` is how strange the
    picture is to it: above 1 it is unlike all that the classifier was trained on, and by default no
    success is claimed of it.

    With SB3's ``Monitor`` (as ``make_vec_env(wrapper_class=...)`` and RL Zoo build it) or
    Gymnasium's ``RecordEpisodeStatistics`` inside, ``info["episode"]`` at an episode's end has the
    learned reward's return ``r``, the length ``l`` and the seconds ``t``. The recorder's own entry
    moves to ``original_episode``; it and its file miss episodes that a claim ended. Without a
    recorder inside no ``episode`` is written: put one outside, where it sees the learned reward. A
    ``RecordEpisodeStatistics`` outside of another one needs a ``stats_key`` of its own.

    ``reward_mode``:

    - ``"sparse"``: ``success_reward`` on a step with a claimed success, else ``step_reward``.
    - ``"probability"``, ``"log_odds"``: that number. With ``terminate_on_success`` a success ends
      the rewards, so that an agent learns to stay just below it if they are positive: switch it
      off, or prefer ``"potential"``.
    - ``"potential"``: sparse plus ``gamma * p(s') - p(s)``, which leaves the optimal policy as it
      was (Ng, Harada & Russell 1999). ``p`` is 0 after a termination, and kept after a truncation.

    In all modes but ``"sparse"`` ``precision="auto"`` means FP32: INT8 is checked for its decisions
    at the threshold, and may be off by several log-odds elsewhere. FP32 takes about twice as long
    (SqueezeNet 1.1, 96x128: 1.4 for 0.7 ms). In ``"sparse"`` mode ``reward_prob`` is of the network
    that decided.

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
            channels last or first, or grey), ``"obs:<key>"`` or ``callable(env, observation)``
            returning ``(H, W, 3)`` uint8 RGB or a grey picture. For a bundle of several cameras one
            of these for each, as a sequence in the bundle's order or a mapping from its names; None
            means the sources that the bundle names. A bundle that looks at the last pictures of a
            camera is given one source: the wrapper keeps them, of the same episode only.
        success_reward: for a claimed success.
        step_reward: for any other step.
        env_reward_weight: this times the environment's own reward is added, in every mode.
        success_replaces_env_reward: a claimed success is paid without the environment's own reward.
        reward_mode: see above.
        success_threshold: probability from which a frame counts; None is the bundle's.
        success_exit_threshold: probability that is enough for a frame after one that counted
            (hysteresis); None is ``success_threshold``. Like a hold it makes the task remember.
        success_hold_steps: counting frames in a row that make a success. Above 1 the task is no
            longer Markov unless ``hold_in_observation`` is set.
        guard: ``guard(observation, probability) -> bool``; a frame it refuses does not count.
        terminate_on_success: whether a claimed success terminates the episode.
        gamma: discount of the potential; the learner's.
        hold_in_observation: append the number of counting frames in a row to the observation, a
            one-dimensional Box.
        on_ood: what becomes of a picture that the bundle's guard finds odd. ``"withhold"``: it does
            not count, and pays as a sure failure in the other modes; ``"warn"``: a warning, once;
            ``"raise"``: OddPictureError; ``"ignore"``: nothing looks for it.
        frozen_check: whether a picture is odd too that stood still while the observation changed
            or, where it claims success, changed less than that lets expect: a camera that froze,
            in whole or in part (``docs/guard.md``). It needs numbers in the observation; where
            that is a picture and nothing else, nothing looks for it.
        accept_foreign_pictures: around an environment that says what draws its pictures (a
            ``picture_scene``, as PandaHover has), take a bundle that does not say it.

    Raises:
        ConfigError: arguments that cannot work, on their own or with this environment.
        PictureMismatchError: the environment's picture is not the bundle's, or the bundle does not
            say what drew its own.
        ModelNotFoundError: no such bundle.
    """

    def _enclose(self, env: Env, source: ImageSource, arguments: dict[str, Any]) -> None:
        refuse_autoreset(env, "it would be scored and paid as if an action had led there")
        if self._core.options.terminate_on_success:
            for layer in layers(env):
                if hasattr(layer, SB3_RECORDER) and not getattr(layer, "allow_early_resets", True):
                    raise strict_monitor()
        super()._enclose(env, source, arguments)
        self._recorded = has_recorder(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the reset frame earns nothing."""
        observation, info = self.env.reset(seed=seed, options=options)
        first = np.zeros(1, np.float32)
        with self._begin_even_on_error(_ALL):
            if self._core.needs_first_pictures or self._source.remembers:
                picture = self._picture(observation, first=True)
                if self._core.needs_first_pictures:
                    first = self._potential(self._judge(picture))
            self._core.begin(_ALL, first)
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and score the picture it ended with.

        Raises:
            InputError: the picture has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
            OddPictureError: the picture is odd, with ``on_ood="raise"``.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        with self._begin_even_on_error(~_ALL, _ALL):
            own = _number(reward)
            self._seen = self._picture(observation)
            judged = self._judge(self._seen)
            scores = self._core.transition(
                _ALL,
                judged.probability,
                judged.log_odds,
                np.array([own]),
                np.array([terminated], np.bool_),
                [observation],
                judged.odd,
                self._classifier.prepared,
                None if self._core.frozen is None else state_of(observation)[None],
            )
        self._keep(scores.claimed)
        info = dict(info)
        self._record(info, scores, 0, own)
        if scores.terminated[0] or truncated:
            if "episode" in info:
                info["original_episode"] = info["episode"]
                self._recorded = True
            if self._recorded:
                info["episode"] = scores.episode(0)
        return (
            self._observed(observation),
            float(scores.rewards[0]),
            bool(scores.terminated[0]),
            bool(truncated),
            info,
        )

    def _picture(self, observation: Any, *, first: bool = False) -> NDArray[np.uint8]:
        """Return the picture of this step, ``(1, H, W, 3)``; ``first``: of an episode's reset."""
        return self._source.single(self.env, observation, first=first)[:, -1]
