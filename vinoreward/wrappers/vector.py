"""LearnedReward and EncodedObservation for Gymnasium's vector environments.

``vinoreward`` has them as ``VectorLearnedReward`` and ``VectorEncodedObservation``. In a vector
environment's infos ``infos[key]`` holds one value per sub-environment and the mask
``infos["_" + key]`` says which are set.
"""

# pyright: reportPrivateUsage=false
# Gymnasium's own way to write a vector environment's infos.

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from numpy.typing import NDArray

from vinoreward.arrays import Arrays, is_tensor, to_numpy
from vinoreward.errors import ConfigError, InputError
from vinoreward.rewards.decision import Scores
from vinoreward.wrappers.encoded import EncodedObservationBase, shown
from vinoreward.wrappers.learned_reward import (
    LearnedRewardBase,
    append_hold,
    has_recorder,
    reports_episodes,
)
from vinoreward.wrappers.render_once import LastPictures, layers, own_last, vector_render_once
from vinoreward.wrappers.sources import Form, ImageSource, Inside, PictureSource, takes_render
from vinoreward.wrappers.views import ViewSource

if TYPE_CHECKING:
    from vinoreward.wrappers.encoded_on_device import DeviceEncoding

__all__ = ["EncodedObservation", "LearnedReward"]

Mask = NDArray[np.bool_]
Envs = VectorEnv[Any, Any, Any]
Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class VectorForm(Form[Envs], VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
    """:class:`Form` for Gymnasium's vector environments."""

    _over: Mask
    """``(num_envs,)`` Whether an episode ended with the last step, for the caller."""

    def _inside(self, env: Envs) -> Inside:
        own = getattr(env.unwrapped, "picture_scene", None)
        scene = own if own is not None else next(iter(_asked(env, "picture_scene")), None)
        return Inside(env.single_observation_space, env.render_mode, scene, env.num_envs)

    def _enclose(self, env: Envs, source: ImageSource, arguments: dict[str, Any]) -> None:
        self._mode = _checked_mode(env, source, arguments.get("terminate_on_success", False))
        VectorWrapper.__init__(self, vector_render_once(env) if takes_render(source) else env)
        self._last: LastPictures | None = None
        base = env.unwrapped
        if self._mode is AutoresetMode.SAME_STEP and isinstance(base, SyncVectorEnv):
            own_last(base.envs)
        elif self._mode is AutoresetMode.SAME_STEP:
            self._last = LastPictures("make it with autoreset_mode=AutoresetMode.NEXT_STEP")
        self._over = np.zeros(env.num_envs, np.bool_)

    def _show(self, space: gym.Space[Any]) -> None:
        self.single_observation_space = space
        self.observation_space = batch_space(space, self.num_envs)

    def _reset(
        self, seed: int | list[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[Mask, Any, dict[str, Any]]:
        """Reset; return the mask of what was reset, ``(num_envs,)``, observations and infos."""
        mask: Any = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = options["reset_mask"] & True  # a copy
        # Copied, because Gymnasium takes the mask out of the dictionary it is given.
        given = None if options is None else dict(options)
        observations, infos = self.env.reset(seed=seed, options=given)  # type: ignore[arg-type]
        mask = Arrays.like(self._over).cast(mask, "bool")
        self._over = self._over & ~mask
        return mask, observations, infos

    def _put(self, infos: dict[str, Any], info: dict[str, Any], i: int) -> None:
        """Add one sub-environment's info, in place, in Gymnasium's own form."""
        infos.update(self._add_info(infos, info, i))

    def _step(self, actions: Any) -> Step:
        """Step, unless an episode that ended has to be reset first."""
        if self._mode is AutoresetMode.DISABLED and self._over.any():
            raise ConfigError(
                f"the sub-environments {np.flatnonzero(self._over).tolist()} ended their episodes "
                "and were stepped. Expected a reset first, because autoreset is DISABLED: "
                "env.reset(options={'reset_mask': terminations | truncations})."
            )
        return self.env.step(actions)

    def _split(
        self,
        source: PictureSource | ViewSource,
        ended: Mask,
        observations: Any,
        infos: dict[str, Any],
    ) -> tuple[Mask, Mask, Mapping[int, Any]]:
        """Return masks of steps that ended with a picture and of episodes that start.

        And, in SAME_STEP mode, the last observations of the episodes that ended.
        """
        if self._mode is AutoresetMode.NEXT_STEP:
            return ~self._over, self._over, {}
        if self._mode is AutoresetMode.DISABLED:
            return np.ones_like(ended), np.zeros_like(ended), {}
        chosen = np.flatnonzero(ended).tolist()
        final: Any = infos.get("final_obs")
        if isinstance(final, (dict, tuple)):  # batched, as a native vector environment may give it
            final = list(iterate(self.env.observation_space, final))
        missing = chosen if final is None else [i for i in chosen if final[i] is None]
        if missing:
            raise InputError(
                f"{type(self.unwrapped).__name__} ended the episodes of the sub-environments "
                f"{missing} in SAME_STEP mode without infos['final_obs'], only "
                f"{', '.join(infos) or 'nothing'}. Expected their last observations there, as "
                "Gymnasium's vector environments give them; without them the picture that an "
                "episode ended with is lost."
            )
        last = {i: final[i] for i in chosen} if final is not None else {}
        if self._last is not None:
            self._last.check(source, last, observations)
        return np.ones_like(ended), ended, last


class EncodedObservation(EncodedObservationBase[Envs], VectorForm):
    """:class:`~vinoreward.EncodedObservation` for all sub-environments, one batched call per step.

    The wrapped environment's autoreset mode stays what it is. In SAME_STEP mode ``final_obs`` is
    encoded too, with the latents of the episode that ended; the rendered frame already belongs to
    the next episode there, so ``image_source="render"`` is refused. In DISABLED mode the caller
    resets with ``options={"reset_mask": mask}``. With ``picture_in_info`` the last picture of an
    episode is in ``final_info``.

    Observations that are torch tensors are encoded where they are, and what the learner sees are
    tensors there too, ``final_obs`` as well: with the backend ``"torch"`` on their device, in
    SAME_STEP mode, for pictures ``(N, H, W, 3)`` of the encoder's size without ``keep``, ``sample``
    and ``picture_in_info``. Else they are copied to the host.

    Args:
        env: the vector environment.
        bundle: as :class:`~vinoreward.EncodedObservation`, like all other arguments but:
        image_source: a callable is given ``None`` for the environment, one observation at a time.
    """

    passes_masked_resets = True
    _on_device: DeviceEncoding | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says.

        Raises:
            OutputError: on a device, where a step does not check it: the network gave NaN since.
        """
        mask, observations, infos = self._reset(seed, options)
        if self._on_device is None and self._stays(observations):
            from vinoreward.wrappers.encoded_on_device import DeviceEncoding

            frames = self._core.options.frame_stack
            self._on_device = DeviceEncoding(self.encoder, self.num_envs, frames)
        if self._on_device is not None:
            return self._on_device.begin(observations, mask), infos
        fresh = np.flatnonzero(mask).tolist()
        if seed is not None:
            for i in fresh:
                self._core.seed(i, seed[i] if isinstance(seed, Sequence) else seed + i)
        _, infos = self._encode(observations, [], fresh, {}, infos)
        return self._core.observed(observations), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and encode their pictures.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and last pictures are overwritten by resets.
            InputError: a picture has a wrong shape, or SAME_STEP and no ``final_obs``.
        """
        observations, rewards, terminations, truncations, infos = self._step(actions)
        if self._on_device is not None:
            over: Any = terminations | truncations
            seen, final_seen = self._on_device.step(observations, infos.get("final_obs"), over)
            if final_seen is not None:
                infos = {**infos, "final_obs": final_seen}
            return seen, rewards, terminations, truncations, infos
        ended = np.asarray(terminations, np.bool_) | np.asarray(truncations, np.bool_)
        going, starting, last = self._split(self._core.source, ended, observations, infos)
        self._over = ended  # before pictures are encoded, which may raise
        ends, begins = np.flatnonzero(going).tolist(), np.flatnonzero(starting).tolist()
        final, infos = self._encode(observations, ends, begins, last, infos)
        if final:
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i, observation in final.items():
                infos["final_obs"][i] = observation
        return self._core.observed(observations), rewards, terminations, truncations, infos

    def _stays(self, observations: Any) -> bool:
        """Return whether pictures are tensors that can be encoded where they are."""
        core, options = self._core, self._core.options
        if self._mode is not AutoresetMode.SAME_STEP or not hasattr(observations, "detach"):
            return False
        if options.keep or options.sample or options.picture_in_info:
            return False
        from vinoreward.wrappers.encoded_on_device import encodes_on

        return core.source.observed and encodes_on(core.encoder, observations)

    def _encode(
        self,
        observations: Any,
        ends: list[int],
        begins: list[int],
        last: Mapping[int, Any],
        infos: dict[str, Any],
    ) -> tuple[dict[int, NDArray[np.float32]], dict[str, Any]]:
        """Encode all at once; return what the learner sees at ends, and infos with pictures."""
        final, newest = self._core.advance(self.env, observations, ends, begins, last)
        if final or self._core.options.picture_in_info:
            infos = dict(infos)
        if self._core.options.picture_in_info:
            pictures = dict(zip([*ends, *begins], newest, strict=True))
            for i, picture in pictures.items():
                self._put(infos, {"picture": shown(picture)}, i)
            if isinstance(infos.get("final_info"), dict):
                for i in final:  # all environments are in ends then
                    self._put(infos["final_info"], {"picture": shown(newest[i])}, i)
        return final, infos


class LearnedReward(LearnedRewardBase[Envs], VectorForm):
    """:class:`~vinoreward.LearnedReward` for all sub-environments, with one batched call per step.

    The wrapped environment's autoreset mode stays what it is, and what is scored is always the
    picture that the rewarded transition ended with:

    - NEXT_STEP: the step that resets a sub-environment earns 0, is not scored, and has no
      ``is_success`` (its mask ``_is_success`` is False).
    - SAME_STEP: ``final_obs`` is scored. ``image_source="render"`` is refused, because the rendered
      frame already belongs to the next episode. ``info`` and ``final_info`` both have this
      wrapper's keys and ``true_success`` of the transition. An environment that returns the same
      array every time overwrites its last picture there: a ``SyncVectorEnv``'s is copied in time,
      elsewhere such an environment is refused once that is seen.
    - DISABLED: the caller resets with ``options={"reset_mask": mask}``; or
      :class:`~vinoreward.wrappers.autoreset.VectorAutoreset` does.

    Observations that are torch tensors are scored where they are, and rewards, ends and infos are
    tensors there, too: with the backend ``"torch"`` on their device, for images ``(N, H, W, 3)`` of
    the bundle's size, and options that need no number on the host (no guard, ``on_ood`` neither
    ``"warn"`` nor ``"raise"``, no ``hold_in_observation``). No step waits for the device. The
    frozen-camera check is for cameras, not for simulators on a device, and does not look there.
    Else images are copied to the host.

    An environment whose ``infos["invalid_action"]`` is True made no transition and earns 0.

    With a ``RecordEpisodeStatistics`` or ``Monitor`` inside, ``episode`` is of the learned reward
    and ``original_episode`` of the recorder, as in :class:`~vinoreward.LearnedReward`: in
    ``final_info`` if the sub-environments of a SAME_STEP environment have the recorder, else in
    ``info``.

    ``terminate_on_success``: a claimed success sets ``terminated``, and a masked reset starts the
    sub-environment's next episode. In NEXT_STEP and SAME_STEP mode this needs a ``SyncVectorEnv``
    or ``AsyncVectorEnv``; put other vector wrappers outside this one. In NEXT_STEP mode the
    sub-environment is stepped once more before its reset, and the result dropped, because all are
    stepped together; if it draws random numbers in ``step``, its next episode starts from a later
    state of its generator.

    Args:
        env: the vector environment.
        bundle: as :class:`~vinoreward.LearnedReward`, like all other arguments but:
        image_source: a callable is given ``None`` for the environment, one observation at a time.
    """

    def _enclose(self, env: Envs, source: ImageSource, arguments: dict[str, Any]) -> None:
        super()._enclose(env, source, arguments)
        self._recorded = any(
            isinstance(layer, RecordEpisodeStatistics) and reports_episodes(layer)
            for layer in layers(env)
        )
        base = env.unwrapped
        if isinstance(base, SyncVectorEnv):
            self._recorded_in_parts = any(has_recorder(part) for part in base.envs)
        else:  # of SB3's Monitor, or of Gymnasium's recorder
            self._recorded_in_parts = bool(
                _asked(env, "allow_early_resets") or "episode" in _asked(env, "_stats_key")
            )
        self._needs_reset = np.zeros(env.num_envs, np.bool_)
        """Whether a claimed success ended an episode that its sub-environment would continue."""
        self._started = False
        self._outside = Arrays()
        """Library and device of what the environment gives, and the caller gets."""
        self._kept: tuple[Any, Any] | None = None
        """On a device: images of claims, and which there are."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says.

        Raises:
            OutputError: on a device, where a step does not check it: the network gave NaN since.
                Not with a mask that is a tensor, which must not wait.
        """
        if options is None or not is_tensor(options.get("reset_mask")):
            self._model.check()
        mask, observations, infos = self._reset(seed, options)
        if not self._started:
            self._start(observations)
            mask = self._model.arrays.cast(mask, "bool")
        self._needs_reset = self._needs_reset & ~mask
        if not self._model.arrays.on_host:
            images = None
            if self._model.needs_first_images:
                images = self._source.tensors(observations, self.env)
            self._model.reset(mask, images)
            return observations, infos
        with self._forget_on_error(mask):
            self._begin(self.env, observations, mask)
        return self._observed(observations), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and score the images their transitions ended with.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and last pictures are overwritten by resets.
            InputError: an image has a wrong shape, or SAME_STEP and no ``final_obs``.
            OutputError: the network returned NaN or infinity; on a device :meth:`reset` tells.
        """
        if not self._model.arrays.on_host:
            return self._step_on_device(actions)
        observations, env_rewards, terminations, truncations, infos = self._step(actions)
        terminations, truncations = to_numpy(terminations) & True, to_numpy(truncations) & True
        env_rewards = np.array(to_numpy(env_rewards), np.float64)
        if not self._outside.on_host:
            infos = _converted(infos, to_numpy)
        if self._mode is AutoresetMode.NEXT_STEP and self._needs_reset.any():
            observations = self._reset_where(self._needs_reset, observations, infos)
            for values in (env_rewards, terminations, truncations):
                values[self._needs_reset] = 0
        ended = terminations | truncations
        stepped, starting, final = self._split(self._source, ended, observations, infos)
        scored = stepped & ~_invalid(infos, stepped)
        # Before scoring, which may raise: the caller may step on after the error.
        self._over, self._needs_reset = ended, np.zeros_like(ended)
        counter = None
        with self._forget_on_error(starting, stepped):
            scores = self._score(self.env, observations, scored, env_rewards, terminations, final)
            if self._model.options.hold_in_observation:
                counter = self._model.hold_counter
            self._begin(self.env, observations, starting)
        self._needs_reset = scores.terminated & ~ended
        self._over = scores.terminated | (truncations & stepped)
        same_step = self._mode is AutoresetMode.SAME_STEP
        if same_step and self._needs_reset.any():
            observations = self._restart_now(observations, infos)
        infos = self._report(infos, scores, scored, env_rewards)
        if same_step and counter is not None:
            self._extend_final(infos, counter)
        seen, rewards, terminated = self._observed(observations), scores.rewards, scores.terminated
        if self._outside.on_host:
            return seen, rewards, terminated, truncations, infos
        give = self._outside.cast
        infos = _converted(infos, lambda values: give(values, str(values.dtype)))
        ends = give(terminated, "bool"), give(truncations, "bool")
        return seen, give(rewards, "float32"), *ends, infos

    def _start(self, observations: Any) -> None:
        """Score on a device from now on, if the images of a first reset can be."""
        self._started = True
        leaf = observations
        while isinstance(leaf, (dict, tuple)) and leaf:
            leaf = next(iter(leaf.values() if isinstance(leaf, dict) else leaf))
        self._outside = Arrays.like(leaf)
        if self._model.options.hold_in_observation:
            return
        images = self._source.tensors(observations, self.env)
        if images is None or not self._model.stays_on(images):
            return
        self._model.use(Arrays.like(images))
        self._model.frozen = None
        self._over = self._needs_reset = self._model.arrays.full(self.num_envs, False, "bool")

    def _step_on_device(self, actions: Any) -> Step:
        """Step where images are tensors on the network's device; nothing waits for it."""
        observations, env_rewards, terminations, truncations, infos = self.env.step(actions)
        images = self._source.tensors(observations, self.env)
        ended = terminations | truncations
        stepped, starting = ended | True, ended & False
        shown = images
        if self._mode is AutoresetMode.NEXT_STEP:
            stepped, starting = ~self._over, self._over
        elif self._mode is AutoresetMode.SAME_STEP:
            starting = ended
            final = self._source.tensors(infos["final_obs"], self.env)
            shown = self._model.arrays.xp.where(ended[:, None, None, None], final, images)
        scored = stepped & ~_invalid(infos, stepped)
        scores = self._model.score(shown, env_rewards, terminations, scored)
        self._keep_claimed(scores.claimed, shown)
        self._model.reset(starting, images)
        self._over = scores.terminated | (truncations & stepped)
        infos = self._report(infos, scores, scored, env_rewards)
        rewards = self._model.arrays.cast(scores.rewards, "float32")
        return observations, rewards, scores.terminated, truncations, infos

    def _keep_claimed(self, claimed: Any, images: Any) -> None:
        if self._kept is None:
            self._kept = images * 0, claimed
        kept, ever = self._kept
        where = self._model.arrays.xp.where
        self._kept = where(claimed[:, None, None, None], images, kept), ever | claimed

    def claimed_picture(self, index: int = 0) -> NDArray[np.uint8] | None:
        """Return the image of an environment's last claim, ``(H, W, 3)`` RGB; None before it."""
        if self._kept is None:
            return super().claimed_picture(index)
        images, ever = self._kept
        return to_numpy(images[index]) if bool(ever[index]) else None

    def _reset_where(self, mask: Mask, observations: Any, infos: dict[str, Any]) -> Any:
        """Reset some sub-environments; write their first observations and infos into the batch."""
        fresh, fresh_infos = self.env.reset(options={"reset_mask": mask.copy()})
        rows, new = self._source.rows(observations), self._source.rows(fresh)
        for i in np.flatnonzero(mask).tolist():
            _withdraw(infos, i)
            self._put(infos, _row(fresh_infos, i), i)
            rows[i] = new[i]
        space = self.env.single_observation_space
        empty: Any = create_empty_array(space, n=len(rows))
        return concatenate(space, rows, empty)

    def _restart_now(self, observations: Any, infos: dict[str, Any]) -> Any:
        """SAME_STEP: put observations and infos into ``final_obs`` and ``final_info``; reset."""
        mask, last = self._needs_reset, self._source.rows(observations)
        # Copied before the reset, which may write to the same memory.
        finals = {
            i: {"final_obs": copy.deepcopy(last[i]), "final_info": _row(infos, i)}
            for i in np.flatnonzero(mask).tolist()
        }
        result = self._reset_where(mask, observations, infos)
        for i, final in finals.items():
            self._put(infos, final, i)
        with self._forget_on_error(mask):
            self._begin(self.env, result, mask)
        self._needs_reset = np.zeros_like(mask)
        return result

    def _report(
        self, infos: dict[str, Any], scores: Scores, scored: Any, env_rewards: Any
    ) -> dict[str, Any]:
        where, infos = self._model.arrays.xp.where, dict(infos)
        final = infos.get("final_info")
        places = [infos] if not isinstance(final, dict) else [infos, final]
        for place in places:
            if "reward_prob" not in place:  # else it is an inner learned reward's claim
                _keep_original(place, "is_success", scored | True)
        ours = {
            "is_success": scores.claimed,
            "reward_prob": scores.probability,
            "original_env_rew": where(scored, env_rewards, 0.0),
        }
        if scores.odd is not None:
            ours["reward_ood"] = scores.odd
        for key, values in ours.items():
            infos[key], infos[f"_{key}"] = values, scored & True
            if isinstance(final, dict):
                mask = self._over & True
                nothing = self._model.arrays.xp.zeros_like(values)
                final[key], final[f"_{key}"] = where(mask, values, nothing), mask
        if not self._model.arrays.on_host:
            return infos
        if isinstance(final, dict) and "true_success" in final:
            if "true_success" in infos:  # not written to: it may be the environment's own memory
                infos["true_success"] = np.array(infos["true_success"])
            for i in np.flatnonzero(_mask_of(final, "true_success", self._over)).tolist():
                self._put(infos, {"true_success": bool(final["true_success"][i])}, i)
        self._report_episodes(infos, scores)
        return infos

    def _report_episodes(self, infos: dict[str, Any], scores: Scores) -> None:
        """Write ``episode`` where a recorder inside writes it, and keep what it wrote."""
        final = infos.get("final_info")
        inner = final if isinstance(final, dict) else infos
        everywhere = np.ones(self.num_envs, np.bool_)
        self._recorded |= _keep_original(infos, "episode", everywhere)
        if inner is not infos:
            self._recorded_in_parts |= _keep_original(inner, "episode", everywhere)
        places = [infos] if self._recorded else []
        if self._recorded_in_parts and (inner is not infos or not places):
            places.append(inner)
        for i in np.flatnonzero(self._over).tolist():
            for place in places:
                self._put(place, {"episode": scores.episode(i)}, i)

    def _extend_final(self, infos: dict[str, Any], counter: NDArray[np.int64]) -> None:
        if self._over.any():
            # New memory: a native vector environment may keep its own.
            last = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(self._over).tolist():
                last[i] = append_hold(np.asarray(infos["final_obs"][i]), counter[i])
            infos["final_obs"] = last


def _checked_mode(env: Envs, source: ImageSource, terminate: bool) -> AutoresetMode:
    """Return the autoreset mode, or raise where some picture would belong to another episode."""
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"the vector environment's metadata['autoreset_mode'] is {mode!r}. Expected one of "
            "gymnasium.vector.AutoresetMode: without it, it is not known which episode a picture "
            "belongs to; set it in the environment's metadata."
        )
    if mode is AutoresetMode.SAME_STEP and takes_render(source):
        raise ConfigError(
            "image_source is 'render' and the autoreset mode is SAME_STEP, where the frame "
            "rendered after an episode's last step already shows the next episode. Expected a mode "
            "that keeps the last frame; make the environment with "
            "autoreset_mode=AutoresetMode.NEXT_STEP, or use picture observations with "
            "image_source='obs'."
        )
    if not terminate or mode is AutoresetMode.DISABLED:
        return mode
    while getattr(type(env), "passes_masked_resets", False) and isinstance(env, VectorWrapper):
        env = env.env
    if not isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        raise ConfigError(
            f"terminate_on_success is set and the vector environment is a {type(env).__name__} in "
            f"{mode.name} mode, whose sub-environments cannot be told that their episode is over. "
            "Expected a SyncVectorEnv or AsyncVectorEnv (put other vector wrappers outside this "
            "one), or an environment in DISABLED mode; or set terminate_on_success=False."
        )
    shared = getattr(env, "shared_memory", True)
    if mode is AutoresetMode.NEXT_STEP and not shared:
        raise ConfigError(
            "terminate_on_success is set and the AsyncVectorEnv has shared_memory=False in "
            "NEXT_STEP mode, where Gymnasium's workers may reset twice after a masked reset. "
            "Expected shared_memory=True or another autoreset mode."
        )
    return mode


def _invalid(infos: Mapping[str, Any], scored: Any) -> Any:
    """Return where an action was invalid, so that no image shows what it led to."""
    final = infos.get("final_info", {})
    return infos.get("invalid_action", scored & False) | final.get("invalid_action", False)


def _converted(infos: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return infos whose arrays of numbers are converted, those of observations as they are."""
    result = {}
    for key, values in infos.items():
        if isinstance(values, Mapping):
            result[key] = values if key == "final_obs" else _converted(values, convert)
        else:
            kind = getattr(getattr(values, "dtype", None), "kind", "f")  # torch's have none
            numbers = key != "final_obs" and hasattr(values, "dtype") and kind != "O"
            result[key] = convert(values) if numbers else values
    return result


def _asked(env: Envs, name: str) -> tuple[Any, ...]:
    """Return an attribute of each sub-environment; none where it is not there for all of them."""
    base = env.unwrapped
    # Asked first, because a missing attribute ends an AsyncVectorEnv's workers.
    if isinstance(base, (SyncVectorEnv, AsyncVectorEnv)) and all(
        base.call("has_wrapper_attr", name)
    ):
        return base.call("get_wrapper_attr", name)
    return ()


def _set_for(infos: dict[str, Any], index: int) -> Iterator[tuple[str, Any, Mask]]:
    """Yield key, values and mask of what is set for one sub-environment."""
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[index]:
            yield key, values, mask


def _row(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the info of one sub-environment as plain values; arrays are copied."""
    info: dict[str, Any] = {}
    for key, values, _ in _set_for(infos, index):
        value = _row(values, index) if isinstance(values, dict) else values[index]
        if isinstance(value, np.ndarray):
            value = value.copy()
        elif isinstance(value, np.generic):
            value = value.item()
        info[key] = value
    return info


def _withdraw(infos: dict[str, Any], index: int) -> None:
    """Take one sub-environment's values out of ``infos``; the others keep theirs."""
    for _, values, mask in _set_for(infos, index):
        mask[index] = False
        if isinstance(values, dict):
            _withdraw(values, index)
        else:
            values[index] = None if values.dtype == object else np.zeros((), values.dtype)


def _mask_of(infos: dict[str, Any], key: str, default: Any) -> Any:
    """Return the mask of a key's values; ``default`` if, as in native ones, there is none."""
    return infos.get(f"_{key}", default) & True  # a copy


def _keep_original(infos: dict[str, Any], key: str, default: Any) -> bool:
    """Move a key and its mask to ``original_<key>``, in place; return whether it was there."""
    if key not in infos:
        return False
    mask = _mask_of(infos, key, default)
    infos[f"original_{key}"], infos[f"_original_{key}"] = infos.pop(key), mask
    infos.pop(f"_{key}", None)
    return True


# As vinoreward names them.
VectorEncodedObservation, VectorLearnedReward = EncodedObservation, LearnedReward
