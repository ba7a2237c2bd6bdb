"""LearnedReward for one Gymnasium environment, and what its three forms share."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays
from vinoreward.bundles.bundle import AnyBundle, Bundle, bundle_spec, resolve_bundle
from vinoreward.errors import ConfigError, InputError
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.decision import OodAction, RewardMode, RewardOptions, Scores, SuccessFilter
from vinoreward.rewards.frozen import FrozenCheck
from vinoreward.rewards.judge import Judge, JudgeFunction
from vinoreward.rewards.reward_model import RewardModel, check_origin, warn_uncalibrated
from vinoreward.wrappers.env_adapter import (
    NOTHING,
    ONE,
    AnyEnv,
    Env,
    EnvAdapter,
    SingleAdapter,
    layers,
    refuse_autoreset,
)
from vinoreward.wrappers.sources import (
    ImageReader,
    ImageSource,
    ViewReader,
    has_state,
    sources_of,
    state_of,
)

RELABELS = "compute_reward"
"""What hindsight experience replay calls in a goal environment."""


class LearnedRewardBase(EnvAdapter[AnyEnv]):
    """Base of the forms of :class:`~vinoreward.LearnedReward`, which explains the arguments."""

    _default_source: ClassVar[str] = "render"
    _recorded = False
    """Whether ``episode`` is written into an episode's last ``info``."""

    def __init__(
        self,
        env: AnyEnv,
        bundle: AnyBundle | None = None,
        *,
        judge: Judge | JudgeFunction | None = None,
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
        success_filter: SuccessFilter | None = None,
        terminate_on_success: bool = True,
        gamma: float = 0.99,
        hold_in_observation: bool = False,
        on_ood: OodAction = "withhold",
        frozen_check: bool = True,
        accept_foreign_images: bool = False,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"], arguments["env"]
        fields = dataclasses.fields(RewardOptions)
        options = RewardOptions(**{field.name: arguments[field.name] for field in fields})
        info = self._env_info(env)
        scorer = _scorer(bundle, judge, success_threshold)
        self._model = RewardModel(
            scorer,
            options,
            info.num_envs,
            backend=backend,
            device=device,
            precision=precision,
            threads=threads,
        )
        loaded = scorer if isinstance(scorer, Bundle) else None
        source = sources_of(image_source, loaded, self._default_source)
        arguments |= {**vars(options), "image_source": source}
        if loaded is not None and bundle is not None:
            arguments["bundle"] = bundle_spec(bundle, loaded)
            if success_threshold is None:
                warn_uncalibrated(loaded)
            if isinstance(info.scene, Mapping) and not (callable(source) or accept_foreign_images):
                check_origin(loaded)
        else:
            arguments["judge"] = scorer
        self._init_wrapper(env, source, arguments)
        self._info = info
        self._source: ImageReader | ViewReader = (
            ViewReader(source, info, loaded)  # type: ignore[arg-type]  # a bundle has the views
            if isinstance(source, Mapping)
            else ImageReader(source, info, loaded)
        )
        if frozen_check and on_ood != "ignore" and has_state(info.space):
            self._model.frozen = FrozenCheck(info.num_envs)
        self._claimed_images: dict[int, NDArray[np.uint8]] = {}
        if hold_in_observation:
            self._set_space(_with_hold(info.space, success_hold_steps))

    def compute_reward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ConfigError: a relabelled goal of hindsight experience replay has no image."""
        raise ConfigError(
            f"{RELABELS} was asked of a learned reward, which pays for images: a goal that is "
            "relabelled has no image, and the environment's own reward must not stand in for it. "
            "Expected a learner without relabelled goals; leave HerReplayBuffer out (a goal "
            "environment takes DictReplayBuffer)."
        )

    @property
    def classifier(self) -> Classifier | Judge:
        """What scores the images. A classifier loads at the first one."""
        return self._model.classifier

    def close(self, **kwargs: Any) -> None:
        """Close the environment and free the network."""
        self._model.close()
        super().close(**kwargs)  # type: ignore[misc]

    def pause(self, paused: bool = True) -> None:
        """Abstain from the next image on, or no longer: every image is withheld, as by ``on_ood``.

        No success is claimed then, and an image is paid as a sure failure at most.
        """
        self._model.paused = paused

    def claimed_image(self, index: int = 0) -> NDArray[np.uint8] | None:
        """Return the image of an environment's last claim, ``(H, W, 3)`` RGB; None before it."""
        return self._claimed_images.get(index)

    def _score(
        self,
        env: Any,
        observations: Any,
        mask: NDArray[np.bool_],
        env_rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        final: Mapping[int, Any] = NOTHING,
    ) -> Scores:
        """Score the images that the transitions of ``mask`` ended with; arrays are ``(num_envs,)``.

        ``final`` has final observations where ``observations`` has the next episode's first.
        """
        rows = np.flatnonzero(mask).tolist()
        images = self._source.batch(observations, rows, env, final)
        ended_with: Sequence[Any] = ()
        if self._model.options.success_filter is not None or self._model.frozen is not None:
            ended_with = [final.get(i, o) for i, o in enumerate(self._info.rows(observations))]
        return self._score_images(images, mask, env_rewards, terminated, ended_with)

    def _score_images(
        self,
        images: NDArray[np.uint8],
        mask: NDArray[np.bool_],
        env_rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        observations: Sequence[Any],
    ) -> Scores:
        """Score ``(n, H, W, 3)`` images of ``mask``; keep those of claims."""
        states = None
        if self._model.frozen is not None:
            numbers = [state_of(one) for one in observations]
            if len(set(map(len, numbers))) == 1:  # sequences may have any length
                states = np.array(numbers)
        scores = self._model.score(
            images, env_rewards, terminated, mask, observations=observations, states=states
        )
        for i in np.flatnonzero(scores.claimed).tolist() if scores.claimed.any() else ():
            # A copy: the environment may write its next image into the same array.
            self._claimed_images[i] = np.array(images[np.count_nonzero(mask[:i])])
        return scores

    def _begin(self, env: Any, observations: Any, mask: NDArray[np.bool_]) -> None:
        """Start episodes where ``mask`` is True; ``observations`` has their first ones."""
        images = None
        if self._model.needs_first_images or self._source.remembers:
            rows = np.flatnonzero(mask).tolist()
            images = self._source.batch(observations, rows, env, first=True)
        self._model.reset(mask, images)

    @contextlib.contextmanager
    def _forget_on_error(
        self, begun: NDArray[np.bool_], ended: NDArray[np.bool_] | None = None
    ) -> Iterator[None]:
        """If this block fails, still start episodes, and end the holds of what was stepped.

        The environments have gone on by then, and the caller may go on after the error.
        """
        try:
            yield
        except BaseException:
            self._model.detector.reset(begun if ended is None else ended)
            self._model.reset(begun)
            raise

    def _record(
        self, info: dict[str, Any], scores: Scores, i: int, env_reward: Any, *, ended: bool
    ) -> None:
        """Write the claim into an environment's info; keep its own ``is_success``."""
        # With reward_prob it is an inner learned reward's claim, not the truth.
        if "is_success" in info and "reward_prob" not in info:
            info["original_is_success"] = info["is_success"]
        info["is_success"] = bool(scores.claimed[i])
        info["reward_prob"] = float(scores.probability[i])
        info["original_env_rew"] = float(env_reward)
        if scores.ood_score is not None:
            info["reward_ood"] = float(scores.ood_score[i])
        if scores.progress is not None:
            info["reward_progress"] = float(scores.progress[i])
        if ended and "episode" in info:
            info["original_episode"] = info["episode"]
            self._recorded = True
        if ended and self._recorded:
            info["episode"] = scores.episode(i)

    def _observed(self, observations: Any) -> Any:
        """Return one or a batch of observations as the learner sees them."""
        if not self._model.options.hold_in_observation:
            return observations
        counter = self._model.detector.counter
        return append_hold(observations, counter if observations.ndim == 2 else counter[0])


def _scorer(
    bundle: AnyBundle | None, judge: Judge | JudgeFunction | None, threshold: float | None
) -> Bundle | Judge:
    """Return the one of bundle and judge that is given; ConfigError unless that can work."""
    if (bundle is None) == (judge is None):
        raise ConfigError(
            f"the learned reward was given {'neither' if judge is None else 'both'} of bundle and "
            "judge. Expected one of the two; give or leave out one."
        )
    if bundle is not None:
        return resolve_bundle(bundle)
    if isinstance(judge, Judge):
        return judge
    if threshold is None:
        expected = "the score from which a judge claims, as vinoreward calibrate chooses it"
        raise ConfigError(field="success_threshold", value=None, expected=expected)
    return Judge(judge, threshold)  # type: ignore[arg-type]  # it refuses None


def _number(reward: Any) -> float:
    """Return a reward as a float; accepts an array of one number, and None as NaN."""
    why: Exception | None = None
    try:
        value = np.asarray(math.nan if reward is None else reward)
        if value.dtype.kind in "biuf":
            return float(value.item())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = error
    raise InputError(
        f"the environment gave the reward {reward!r:.200}. Expected a number; fix the environment."
    ) from why


def _with_hold(space: gym.Space[Any], hold: int) -> gym.spaces.Box:
    """Return a one-dimensional Box with one more number at its end, the hold counter."""
    dtype = np.dtype(space.dtype)
    if not (
        isinstance(space, gym.spaces.Box)
        and len(space.shape) == 1
        and np.array(hold).astype(dtype) == hold
    ):
        raise ConfigError(
            f"hold_in_observation was asked for with success_hold_steps={hold} and the observation "
            f"space {space}. Expected a Box of one dimension whose dtype holds that number, as the "
            "counter is appended; set hold_in_observation to False, flatten the observation first "
            "(gymnasium.wrappers.FlattenObservation), or give it a wider dtype."
        )
    low, high = np.append(space.low, 0).astype(dtype), np.append(space.high, hold).astype(dtype)
    return gym.spaces.Box(low, high, dtype=dtype.type)


def append_hold(observation: Array, counter: NDArray[np.int64]) -> Array:
    """Return the ``(..., D)`` observation with the ``(...)`` counter as its last number."""
    arrays = Arrays.like(observation)
    last = arrays.cast(counter, str(observation.dtype).removeprefix("torch."))[..., None]
    return arrays.xp.concatenate([observation, last], axis=-1)


def check_early_resets(allowed: Iterable[bool]) -> None:
    """Raise ConfigError if a ``Monitor`` refuses a reset before its episode ends."""
    if not all(allowed):
        raise ConfigError(
            "terminate_on_success is set and a Monitor refuses early resets. Expected "
            "Monitor(env, allow_early_resets=True), or terminate_on_success=False."
        )


def has_recorder(env: Any) -> bool:
    """Return whether SB3's or Gymnasium's recorder of episodes inside writes ``episode``."""
    return any(
        hasattr(layer, "get_episode_rewards") or getattr(layer, "_stats_key", "") == "episode"
        for layer in layers(env)
    )


class LearnedReward(LearnedRewardBase[Env], SingleAdapter):
    """Replace the environment's reward by what a classifier sees.

    Every step scores the image that the transition ended with. ``info`` gains ``is_success``
    (claimed by the classifier), ``reward_prob`` (the probability behind it), ``original_env_rew``
    and, if the bundle has a guard, ``reward_ood``: how unlike the training images the image is,
    above 1 out of distribution. An ``is_success`` of the environment's own moves to
    ``original_is_success``.

    With SB3's ``Monitor`` or Gymnasium's ``RecordEpisodeStatistics`` inside, ``info["episode"]`` at
    an episode's end has the learned reward's return ``r``, the length ``l`` and the seconds ``t``.
    The recorder's own entry moves to ``original_episode``; it and its file miss episodes that a
    claim ended. Two ``RecordEpisodeStatistics``, one in the other, need different ``stats_key``.

    ``reward_mode``:

    - ``"sparse"``: ``success_reward`` on a step with a claimed success, else ``step_reward``.
    - ``"probability"``, ``"log_odds"``: that number. With ``terminate_on_success`` a success ends
      the rewards; if they are positive an agent learns to stay just below the threshold. Switch
      that off, or prefer ``"potential"``.
    - ``"potential"``: sparse plus ``gamma * p(s') - p(s)``, which leaves the optimal policy as it
      was (Ng, Harada & Russell 1999). ``p`` is 0 after a termination, and kept after a truncation.
    - ``"progress"``: the same with ``success_reward`` times the progress that a bundle of
      ``finetune --progress`` sees, in place of ``p``. The claim stays the only success.

    All arguments but functions and a loaded ``bundle`` are YAML scalars, so that RL Zoo's
    ``env_wrapper`` can carry them. ``env.spec`` makes the same environment again; its JSON carries
    a loaded bundle too, but no functions.

    Args:
        env: the environment.
        bundle: a loaded classifier bundle, the folder of one, an installed one's name, or what
            ``env.spec`` recorded of one.
        judge: in place of a bundle, a function that scores images (:class:`~vinoreward.Judge`, or
            any function with ``success_threshold``); backend to threads mean nothing then.
        backend: ``"openvino"``, ``"torch"``, ``"onnxruntime"`` or another registered one.
        device: device of the backend.
        precision: ``"auto"``, ``"fp32"``, ``"int8"``, … ``"auto"`` is INT8 where the bundle's gate
            passed it and the reward is sparse: INT8 is checked for its decisions at the threshold,
            and may be off by several log-odds elsewhere. FP32 takes about twice as long.
        threads: threads of one inference.
        image_source: ``"render"`` (None means it), ``"obs"`` (the observation is the image,
            channels last or first, or grey), ``"obs:<key>"`` or ``callable(env, observation)``
            returning ``(H, W, 3)`` uint8 RGB or a grey image. For a bundle of several cameras one
            of these for each, as a sequence in the bundle's order or a mapping from its names; None
            means the sources that the bundle names. A bundle that looks at the last images of one
            camera takes one source: the wrapper keeps the images, of the same episode only.
        success_reward: for a claimed success.
        step_reward: for any other step.
        env_reward_weight: this times the environment's own reward is added, in every mode.
        success_replaces_env_reward: a claimed success is paid without the environment's own reward.
        reward_mode: see above.
        success_threshold: probability from which an image counts; None is the bundle's.
        success_exit_threshold: probability that is enough for an image after one that counted
            (hysteresis); None is ``success_threshold``. A lower one needs memory, as a hold does.
        success_hold_steps: counting images in a row that make a success. Above 1 the task is no
            longer Markov unless ``hold_in_observation`` is set.
        success_filter: ``f(observation, probability) -> bool``; an image it refuses does not count.
        terminate_on_success: whether a claimed success terminates the episode.
        gamma: discount of the potential; the learner's.
        hold_in_observation: append the number of counting images in a row to the observation, a
            one-dimensional Box.
        on_ood: what to do with an image that the bundle's guard finds out of distribution.
            ``"withhold"``: it does not count; a probability is paid as 0, log-odds as at most -20;
            ``"warn"``: warn, once; ``"raise"``: OutOfDistributionError; ``"ignore"``: no guard.
        frozen_check: treat as out of distribution an image that stood still, in whole or in part,
            while the observation changed: of a camera that froze (``docs/guard.md``). It needs
            numbers in the observation.
        accept_foreign_images: accept a bundle that does not say what drew its images, although
            the environment does (by ``image_scene``, as PandaHover).

    Raises:
        ConfigError: arguments that cannot work, on their own or with this environment.
        ImageMismatchError: an image of another size or scene, or a bundle that names no scene.
        ModelNotFoundError: no such bundle.
    """

    def _init_wrapper(self, env: Env, source: ImageSource, arguments: dict[str, Any]) -> None:
        refuse_autoreset(env, "it would be scored and paid as if an action had led there")
        if self._model.options.terminate_on_success:
            check_early_resets(getattr(layer, "allow_early_resets", True) for layer in layers(env))
        super()._init_wrapper(env, source, arguments)
        self._recorded = has_recorder(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the reset frame earns nothing."""
        observation, info = self.env.reset(seed=seed, options=options)
        with self._forget_on_error(ONE):
            images = None
            if self._model.needs_first_images or self._source.remembers:
                images = self._source.single(self.env, observation, first=True)
            self._model.reset(ONE, images)
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and score the image it ended with.

        Raises:
            InputError: the image has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
            OutOfDistributionError: the image is out of distribution, with ``on_ood="raise"``.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        with self._forget_on_error(~ONE, ONE):
            own = _number(reward)
            images = self._source.single(self.env, observation)
            ended = np.array([terminated], np.bool_)
            scores = self._score_images(images, ONE, np.array([own]), ended, [observation])
        info, over = dict(info), bool(scores.terminated[0])
        self._record(info, scores, 0, own, ended=over or bool(truncated))
        return self._observed(observation), float(scores.rewards[0]), over, bool(truncated), info
