"""LearnedReward and EncodedObservation for Gymnasium's vector environments.

``vinoreward`` has them as ``VectorLearnedReward`` and ``VectorEncodedObservation``.
"""

# pyright: reportPrivateUsage=false
# Gymnasium's own way to write a vector environment's infos.

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays, is_tensor, to_numpy
from vinoreward.errors import ConfigError
from vinoreward.rewards.decision import Scores
from vinoreward.wrappers.autoreset import (
    Infos,
    converted,
    invalid_actions,
    keep_original,
    mask_of,
    merged,
    put,
    reset_ended,
)
from vinoreward.wrappers.encoded import EncodedObservationBase
from vinoreward.wrappers.env_adapter import NOTHING, EnvAdapter, FinalObs, render_once
from vinoreward.wrappers.learned_reward import (
    LearnedRewardBase,
    append_hold,
    check_early_resets,
    has_recorder,
)
from vinoreward.wrappers.sources import EnvInfo, ImageSource, takes_render

__all__ = ["EncodedObservation", "LearnedReward"]

Envs = VectorEnv[Any, Any, Any]
Step = tuple[Any, Array, Array, Array, Infos]


class VectorAdapter(EnvAdapter[Envs], VectorWrapper[Any, Any, Any, Any, Array]):
    """:class:`EnvAdapter` for Gymnasium's vector environments."""

    _model: Any
    """A RewardModel or EncodingCore; ``_source`` reads its images."""
    _source: Any
    _arrays: Arrays | None = None
    """Library and device of masks and images; None before the first reset."""
    _over: Array
    """``(num_envs,)`` Whether an episode ended with the last step, for the caller."""

    def _env_info(self, env: Envs) -> EnvInfo:
        own = getattr(env.unwrapped, "image_scene", None)
        scene = own if own is not None else next(iter(_env_attributes(env, "image_scene")), None)
        return EnvInfo(env.single_observation_space, env.render_mode, scene, env.num_envs)

    def _init_wrapper(self, env: Envs, source: ImageSource, arguments: dict[str, Any]) -> None:
        self._mode = _checked_mode(env, source, arguments.get("terminate_on_success", False))
        VectorWrapper.__init__(self, render_once(env) if takes_render(source) else env)
        if self._mode is AutoresetMode.SAME_STEP:
            base = env.unwrapped
            self._final_obs = FinalObs(
                base.envs if isinstance(base, SyncVectorEnv) else None,
                "make it with autoreset_mode=AutoresetMode.NEXT_STEP",
            )
        self._over = np.zeros(env.num_envs, np.bool_)

    def _set_space(self, space: gym.Space[Any]) -> None:
        self.single_observation_space = space
        self.observation_space = batch_space(space, self.num_envs)

    def _reset(
        self, seed: int | list[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[Array, Any, Infos]:
        """Reset; return the mask of what was reset, ``(num_envs,)``, observations and infos."""
        mask: Any = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = options["reset_mask"] & True  # a copy
        if not is_tensor(mask):  # who gives a tensor must not wait
            self._model.check()
        # Copied, because Gymnasium takes the mask out of the dictionary it is given.
        given = None if options is None else dict(options)
        observations, infos = self.env.reset(seed=seed, options=given)  # type: ignore[arg-type]
        if self._arrays is None:
            images = self._source.tensors(observations, self.env)
            self._arrays = Arrays.like(images) if self._model.stays_on(images) else Arrays()
            self._model.use(self._arrays)
            self._over = self._arrays.cast(self._over, "bool")
        mask = self._arrays.cast(mask, "bool")
        self._over = self._over & ~mask
        return mask, observations, infos

    def _put(self, infos: Infos, info: dict[str, Any], i: int) -> None:
        """Add one sub-environment's info, in place, in Gymnasium's own form."""
        infos.update(self._add_info(infos, info, i))

    def _step(self, actions: Any) -> Step:
        """Step. In DISABLED mode refuse ended episodes that were not reset, but not on a device."""
        disabled = self._mode is AutoresetMode.DISABLED
        if disabled and isinstance(self._over, np.ndarray) and self._over.any():
            raise ConfigError(
                f"the sub-environments {np.flatnonzero(self._over).tolist()} ended their episodes "
                "and were stepped. Expected a reset first, because autoreset is DISABLED: "
                "env.reset(options={'reset_mask': terminations | truncations})."
            )
        return self.env.step(actions)

    def _split(self, ended: Array, observations: Any, infos: Infos) -> tuple[Array, Array, Any]:
        """Return masks of steps that ended with an image and of episodes that start.

        And, in SAME_STEP mode, the final observations of the episodes that ended; on a device the
        images that all steps ended with.
        """
        if self._mode is AutoresetMode.NEXT_STEP:
            return ~self._over, self._over, NOTHING
        if self._mode is AutoresetMode.DISABLED:
            return ended | True, ended & False, NOTHING
        final: Any = infos.get("final_obs")
        images: Any = self._source.tensors(observations, self.env) if is_tensor(ended) else None
        if images is not None and final is not None:
            last = self._source.tensors(final, self.env)
            if last is not None:
                shaped = ended[:, None, None, None]
                return ended | True, ended, Arrays.like(ended).xp.where(shaped, last, images)
        if isinstance(final, (dict, tuple)):  # batched, as a native vector environment may give it
            final = list(iterate(self.env.observation_space, final))
        chosen = np.flatnonzero(to_numpy(ended)).tolist()
        by_env = {i: None if final is None else final[i] for i in chosen}
        how = "ended their episodes in SAME_STEP mode without infos['final_obs']"
        by_env = self._final_obs.checked(self._source, by_env, observations, how, infos)
        if images is None or not by_env:
            return ended | True, ended, by_env or NOTHING
        images = images.clone()
        for i, one in by_env.items():
            images[i] = Arrays.like(images).cast(self._source.single(None, one)[0], "uint8")
        return ended | True, ended, images


class EncodedObservation(EncodedObservationBase[Envs], VectorAdapter):
    """:class:`~vinoreward.EncodedObservation` for all sub-environments, in batched calls.

    Autoreset modes are as for :class:`LearnedReward`. In SAME_STEP mode ``final_obs`` is encoded
    too, with the latents of the episode that ended.

    Torch tensors are encoded on their device, and observations and ``final_obs`` are tensors there
    too, if the backend is ``"torch"`` on that device, images are ``(N, H, W, 3)`` of the encoder's
    size, and ``keep`` is empty; otherwise they are copied to the host. No step waits for the
    device: if the network gave NaN, the next :meth:`reset` raises OutputError, unless its mask is a
    tensor.

    Arguments are those of :class:`~vinoreward.EncodedObservation`; a function as
    ``image_source`` is given ``None`` for the environment.
    """

    passes_masked_resets = True

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says."""
        mask, observations, infos = self._reset(seed, options)
        self._model.advance(self.env, observations, mask & False, mask)
        return self._model.observed(observations), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and encode their images.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and final observations are overwritten by resets.
            InputError: an image has a wrong shape, or SAME_STEP and no ``final_obs``.
        """
        observations, rewards, terminations, truncations, infos = self._step(actions)
        ended = Arrays.like(self._over).cast(terminations | truncations, "bool")
        stepped, starting, last = self._split(ended, observations, infos)
        self._over = ended  # before images are encoded, which may raise
        final = self._model.advance(self.env, observations, stepped, starting, last)
        infos = dict(infos)
        if is_tensor(final):
            infos["final_obs"] = final
        elif final:
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i, observation in final.items():
                infos["final_obs"][i] = observation
        return self._model.observed(observations), rewards, terminations, truncations, infos


class LearnedReward(LearnedRewardBase[Envs], VectorAdapter):
    """:class:`~vinoreward.LearnedReward` for all sub-environments, with one batched call per step.

    The wrapped environment's autoreset mode stays what it is, and what is scored is always the
    image that the rewarded transition ended with:

    - NEXT_STEP: the step that resets a sub-environment earns 0, is not scored, and has no
      ``is_success`` (its mask ``_is_success`` is False).
    - SAME_STEP: ``final_obs`` is scored. ``image_source="render"`` is refused, because the rendered
      frame already belongs to the next episode. ``info`` and ``final_info`` both have this
      wrapper's keys and ``true_success`` of the transition. An environment whose resets overwrite
      its last image is refused once that is seen, but in a ``SyncVectorEnv``, where it is copied.
    - DISABLED: the caller resets with ``options={"reset_mask": mask}``; or
      :class:`~vinoreward.wrappers.autoreset.VectorAutoreset` does.

    Observations that are torch tensors are scored where they are, and rewards, ends and infos are
    tensors there, too: with the backend ``"torch"`` on their device, for images ``(N, H, W, 3)`` of
    the bundle's size, and options that need no number on the host (no success filter, ``on_ood``
    neither ``"warn"`` nor ``"raise"``, no ``hold_in_observation``). There is no frozen-camera check
    there, and no step waits for the device: :meth:`reset` raises OutputError if the network gave
    NaN since, but not with a mask that is a tensor. Else images are copied to the host.

    With a recorder of episodes inside, ``episode`` is of the learned reward and
    ``original_episode`` of the recorder, as in :class:`~vinoreward.LearnedReward`: in
    ``final_info`` if the sub-environments of a SAME_STEP environment have the recorder, else in
    ``info``. Where ``infos["invalid_action"]`` is True an action made no transition and earns 0.

    ``terminate_on_success``: a masked reset starts the next episode of a sub-environment. In
    NEXT_STEP and SAME_STEP mode this needs a ``SyncVectorEnv`` or ``AsyncVectorEnv``; put other
    vector wrappers outside this one. In NEXT_STEP mode the sub-environment is stepped once more
    before its reset, as all are stepped together, and the result dropped.

    Arguments are those of :class:`~vinoreward.LearnedReward`; a function as
    ``image_source`` is given ``None`` for the environment.
    """

    def _init_wrapper(self, env: Envs, source: ImageSource, arguments: dict[str, Any]) -> None:
        super()._init_wrapper(env, source, arguments)
        self._recorded = has_recorder(env)
        monitors = _env_attributes(env, "allow_early_resets")  # of SB3; or Gymnasium's recorder
        self._recorded_in_parts = bool(monitors or "episode" in _env_attributes(env, "_stats_key"))
        self._restarts = (
            self._model.options.terminate_on_success and self._mode is not AutoresetMode.DISABLED
        )
        if self._restarts:
            check_early_resets(monitors)
        self._needs_reset = np.zeros(env.num_envs, np.bool_)
        """Whether a claimed success ended an episode that its sub-environment would continue."""
        self._kept: tuple[Any, Any] | None = None
        """On a device: images of claims, and which there are."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says."""
        mask, observations, infos = self._reset(seed, options)
        if self._restarts:
            self._needs_reset = self._needs_reset & ~mask
        with self._forget_on_error(mask):
            self._begin(self.env, observations, mask)
        return self._observed(observations), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and score the images their transitions ended with.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and final observations are overwritten by resets.
            InputError: an image has a wrong shape, or SAME_STEP and no ``final_obs``.
            OutputError: the network returned NaN or infinity.
        """
        arrays, same_step = self._model.arrays, self._mode is AutoresetMode.SAME_STEP
        observations, env_rewards, terminations, truncations, infos = self._step(actions)
        # In memory of their own.
        terminations = arrays.cast(terminations, "bool") & True
        truncations = arrays.cast(truncations, "bool") & True
        outside = Arrays.like(env_rewards) if arrays.on_host else arrays  # the caller's
        if arrays.on_host:
            env_rewards = np.array(to_numpy(env_rewards), np.float64)
            infos = infos if outside.on_host else converted(infos, to_numpy)
        if self._restarts and self._needs_reset.any():  # NEXT_STEP
            observations, fresh = self.env.reset(options={"reset_mask": self._needs_reset & True})
            infos = merged(infos, fresh, self._needs_reset)
            for values in (env_rewards, terminations, truncations):
                values[self._needs_reset] = 0
        ended = terminations | truncations
        stepped, starting, final = self._split(ended, observations, infos)
        scored = stepped & ~invalid_actions(infos, stepped & False)
        # Before scoring, which may raise: the caller may step on after the error.
        self._over, self._needs_reset = ended, np.zeros(self.num_envs, np.bool_)
        counter = None
        with self._forget_on_error(starting, stepped):
            scores = self._score(self.env, observations, scored, env_rewards, terminations, final)
            if self._model.options.hold_in_observation:
                counter = self._model.detector.counter
            self._begin(self.env, observations, starting)
        # Also of episodes that ended at an action without an image.
        terminated = scores.terminated | (terminations & stepped)
        self._over = terminated | (truncations & stepped)
        if self._restarts:
            self._needs_reset = scores.terminated & ~ended
            if same_step and self._needs_reset.any():
                mask, self._needs_reset = self._needs_reset, self._needs_reset & False
                observations, infos = reset_ended(self.env, mask, observations, infos)
                with self._forget_on_error(mask):
                    self._begin(self.env, observations, mask)
        infos = self._report(infos, scores, stepped, env_rewards)
        if same_step and counter is not None and self._over.any():
            # New memory: a native vector environment may keep its own.
            last, infos["final_obs"] = infos["final_obs"], np.full(self.num_envs, None, object)
            for i in np.flatnonzero(self._over).tolist():
                infos["final_obs"][i] = append_hold(np.asarray(last[i]), counter[i])
        seen, give = self._observed(observations), outside.cast
        if outside.on_host:
            return seen, scores.rewards, terminated, truncations, infos
        if arrays.on_host:
            infos = converted(infos, lambda values: give(values, str(values.dtype)))
        ends = give(terminated, "bool"), give(truncations, "bool")
        return seen, give(scores.rewards, "float32"), *ends, infos

    def _score(
        self,
        env: Any,
        observations: Any,
        mask: Array,
        env_rewards: Array,
        terminated: Array,
        final: Any = NOTHING,
    ) -> Scores:
        if self._model.arrays.on_host:
            return super()._score(env, observations, mask, env_rewards, terminated, final)
        images: Any = self._source.tensors(observations, env) if final is NOTHING else final
        scores = self._model.score(images, env_rewards, terminated, mask)
        kept, ever = self._kept or (images * 0, scores.claimed)
        claimed = scores.claimed[:, None, None, None]
        self._kept = self._model.arrays.xp.where(claimed, images, kept), ever | scores.claimed
        return scores

    def _begin(self, env: Any, observations: Any, mask: Array) -> None:
        if self._model.arrays.on_host:
            super()._begin(env, observations, mask)
            return
        needed = self._model.needs_first_images
        self._model.reset(mask, self._source.tensors(observations, env) if needed else None)

    def claimed_image(self, index: int = 0) -> NDArray[np.uint8] | None:
        """Return the image of an environment's last claim, ``(H, W, 3)`` RGB; None before it."""
        if self._kept is None:
            return super().claimed_image(index)
        images, ever = self._kept
        return to_numpy(images[index]) if bool(ever[index]) else None

    def _report(self, infos: Infos, scores: Scores, scored: Array, env_rewards: Array) -> Infos:
        """Return infos with the claims, also in ``final_info``; keep ``original_is_success``."""
        where, infos = self._model.arrays.xp.where, dict(infos)
        final = infos.get("final_info")
        inner = final if isinstance(final, dict) else infos
        for place in (infos,) if inner is infos else (infos, inner):
            if "reward_prob" not in place:  # else it is an inner learned reward's claim
                keep_original(place, "is_success", scored | True)
        ours = {
            "is_success": scores.claimed,
            "reward_prob": scores.probability,
            "original_env_rew": where(scored, env_rewards, 0.0),
        }
        if scores.ood_score is not None:
            ours["reward_ood"] = scores.ood_score
        if scores.progress is not None:
            ours["reward_progress"] = scores.progress
        for key, values in ours.items():
            infos[key], infos[f"_{key}"] = values, scored & True
            if inner is not infos:
                inner.pop(key, None)
                put(inner, key, values, self._over)
        if self._model.arrays.on_host:
            if inner is not infos and "true_success" in inner:
                mask = mask_of(inner, "true_success", self._over)
                put(infos, "true_success", inner["true_success"], mask)
            self._report_episodes(infos, inner, scores)
        return infos

    def _report_episodes(self, infos: Infos, inner: Infos, scores: Scores) -> None:
        """Write ``episode`` where a recorder inside writes it, and keep what it wrote."""
        everywhere = np.ones(self.num_envs, np.bool_)
        self._recorded |= keep_original(infos, "episode", everywhere)
        if inner is not infos:
            self._recorded_in_parts |= keep_original(inner, "episode", everywhere)
        for i in np.flatnonzero(self._over).tolist():
            episode = {"episode": scores.episode(i)}
            if self._recorded:
                self._put(infos, episode, i)
            if self._recorded_in_parts and not (self._recorded and inner is infos):
                self._put(inner, episode, i)


def _checked_mode(env: Envs, source: ImageSource, terminate: bool) -> AutoresetMode:
    """Return the autoreset mode, or raise where some image would belong to another episode."""
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"the vector environment's metadata['autoreset_mode'] is {mode!r}. Expected one of "
            "gymnasium.vector.AutoresetMode, which says to which episode an image belongs; set it."
        )
    if mode is AutoresetMode.SAME_STEP and takes_render(source):
        raise ConfigError(
            "image_source is 'render' and the autoreset mode is SAME_STEP, where the frame already "
            "shows the next episode. Expected autoreset_mode=AutoresetMode.NEXT_STEP, or image "
            "observations with image_source='obs'."
        )
    if not terminate or mode is AutoresetMode.DISABLED:
        return mode
    while getattr(type(env), "passes_masked_resets", False) and isinstance(env, VectorWrapper):
        env = env.env
    if not isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        raise ConfigError(
            f"terminate_on_success is set and the vector environment is a {type(env).__name__} in "
            f"{mode.name} mode, whose sub-environments do not learn that their episode is over. "
            "Expected a SyncVectorEnv or AsyncVectorEnv (put other vector wrappers outside this "
            "one), or an environment in DISABLED mode; or set terminate_on_success=False."
        )
    if mode is AutoresetMode.NEXT_STEP and not getattr(env, "shared_memory", True):
        raise ConfigError(
            "terminate_on_success is set and the AsyncVectorEnv has shared_memory=False in "
            "NEXT_STEP mode, where Gymnasium's workers may reset twice after a masked reset. "
            "Expected shared_memory=True or another autoreset mode."
        )
    return mode


def _env_attributes(env: Envs, name: str) -> tuple[Any, ...]:
    """Return an attribute of each sub-environment; none where it is not there for all of them."""
    base = env.unwrapped
    # Asked first, because a missing attribute ends an AsyncVectorEnv's workers.
    if isinstance(base, (SyncVectorEnv, AsyncVectorEnv)) and all(
        base.call("has_wrapper_attr", name)
    ):
        return base.call("get_wrapper_attr", name)
    return ()


# As vinoreward names them.
VectorEncodedObservation, VectorLearnedReward = EncodedObservation, LearnedReward
