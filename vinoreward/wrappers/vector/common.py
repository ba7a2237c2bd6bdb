"""What the wrappers for Gymnasium's vector environments share.

Which environments they can be right for, and one sub-environment's part of what a vector
environment returns: ``infos[key]`` holds one value per sub-environment and ``infos["_" + key]``
says whose are set.
"""

# pyright: reportPrivateUsage=false
# Gymnasium's own way to write a vector environment's infos.

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward.wrappers.last_pictures import keep_last
from vinoreward.wrappers.layers import Form, ImageSource, Inside
from vinoreward.wrappers.render_once import vector_render_once
from vinoreward.wrappers.sources import PictureSource

Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class VectorForm(Form[VectorEnv[Any, Any, Any]], VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
    """:class:`Form` for Gymnasium's vector environments."""

    _over: NDArray[np.bool_]
    """``(num_envs,)`` Episodes that ended with the last step, to the caller."""

    def _inside(self, env: VectorEnv[Any, Any, Any]) -> Inside:
        return Inside(env.single_observation_space, env.render_mode, _scene_of(env), env.num_envs)

    def _enclose(
        self, env: VectorEnv[Any, Any, Any], source: ImageSource, arguments: dict[str, Any]
    ) -> None:
        self._mode = _checked_mode(env, source, arguments.get("terminate_on_success", False))
        VectorWrapper.__init__(self, vector_render_once(env) if source == "render" else env)
        self._last = keep_last(env)
        self._over = np.zeros(env.num_envs, np.bool_)

    def _show(self, space: gym.Space[Any]) -> None:
        self.single_observation_space = space
        self.observation_space = batch_space(space, self.num_envs)

    def _reset(
        self, seed: int | list[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[NDArray[np.bool_], Any, dict[str, Any]]:
        """Reset; return who is reset, ``(num_envs,)`` bool, with the observations and infos."""
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = np.asarray(options["reset_mask"], np.bool_).copy()
        # Copied, because Gymnasium takes the mask out of the dictionary it is given.
        given = None if options is None else dict(options)
        observations, infos = self.env.reset(seed=seed, options=given)  # type: ignore[arg-type]
        self._over = self._over & ~mask
        return mask, observations, infos

    def _step(self, actions: Any) -> Step:
        """Step, unless an episode that ended has to be reset first."""
        if self._mode is AutoresetMode.DISABLED and self._over.any():
            raise ConfigError(
                f"the sub-environments {np.flatnonzero(self._over).tolist()} ended their episodes "
                "and were stepped. Expected a reset first, because autoreset is DISABLED: "
                "env.reset(options={'reset_mask': terminations | truncations})."
            )
        return self.env.step(actions)

    def _finals(
        self,
        source: PictureSource,
        ended: NDArray[np.bool_],
        observations: Any,
        infos: dict[str, Any],
    ) -> dict[int, Any]:
        """Return the last observation of each episode that ended with this SAME_STEP step.

        Raises:
            InputError: it is not there.
            ConfigError: it is overwritten by the reset.
        """
        chosen = np.flatnonzero(ended).tolist()
        found: Any = infos.get("final_obs")
        if isinstance(found, (dict, tuple)):  # batched, as a native vector environment may give it
            found = list(iterate(self.env.observation_space, found))
        missing = chosen if found is None else [i for i in chosen if found[i] is None]
        if missing:
            raise InputError(
                f"{type(self.unwrapped).__name__} ended the episodes of the sub-environments "
                f"{missing} in SAME_STEP mode without infos['final_obs'], only "
                f"{', '.join(infos) or 'nothing'}. Expected their last observations there, as "
                "Gymnasium's vector environments give them; without them the picture that an "
                "episode ended with is lost."
            )
        last = {i: found[i] for i in chosen} if found is not None else {}
        if self._last is not None:
            self._last.check(source, last, observations)
        return last


def _checked_mode(
    env: VectorEnv[Any, Any, Any], source: ImageSource, terminate: bool
) -> AutoresetMode:
    """Return the autoreset mode, or raise where some picture would belong to another episode.

    Args:
        env: the vector environment.
        source: where pictures come from.
        terminate: whether sub-environments are to be reset before they end their episodes.
    """
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"the vector environment's metadata['autoreset_mode'] is {mode!r}. Expected one of "
            "gymnasium.vector.AutoresetMode: without it, it is not known which episode a picture "
            "belongs to; set it in the environment's metadata."
        )
    if mode is AutoresetMode.SAME_STEP and source == "render":
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


def row(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the info of one sub-environment as plain values; arrays are copied."""
    found: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[index]:
            continue
        if isinstance(values, dict):
            found[key] = row(values, index)
            continue
        value = values[index]
        if isinstance(value, np.ndarray):
            value = value.copy()
        elif isinstance(value, np.generic):
            value = value.item()
        found[key] = value
    return found


def withdraw(infos: dict[str, Any], index: int) -> None:
    """Take one sub-environment's values out of ``infos``; the others keep theirs."""
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[index]:
            continue
        mask[index] = False
        if isinstance(values, dict):
            withdraw(values, index)
        else:
            values[index] = None if values.dtype == object else np.zeros((), values.dtype)


def put(env: VectorEnv[Any, Any, Any], infos: dict[str, Any], info: dict[str, Any], i: int) -> None:
    """Add one sub-environment's info, in place, in Gymnasium's own form."""
    infos.update(env._add_info(infos, info, i))


def joined(space: gym.Space[Any], rows: list[Any]) -> Any:
    """Return the batch of single observations, in new memory."""
    empty: Any = create_empty_array(space, n=len(rows))
    return concatenate(space, rows, empty)


def copied(space: gym.Space[Any], observation: Any) -> Any:
    """Return a copy of one observation that no later step writes to."""
    return next(iter(iterate(batch_space(space, 1), joined(space, [observation]))))


def mask_of(infos: dict[str, Any], key: str, default: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whose values of a key are set; ``default`` where, as natively, there is no mask."""
    mask = infos.get(f"_{key}")
    return default.copy() if mask is None else np.array(mask, np.bool_)


def keep_original(infos: dict[str, Any], key: str, num_envs: int) -> bool:
    """Move a key and its mask to ``original_<key>``, in place; return whether it was there."""
    if key not in infos:
        return False
    mask = mask_of(infos, key, np.ones(num_envs, np.bool_))
    infos[f"original_{key}"], infos[f"_original_{key}"] = infos.pop(key), mask
    infos.pop(f"_{key}", None)
    return True


def _scene_of(env: VectorEnv[Any, Any, Any]) -> object:
    base: Any = env.unwrapped
    if hasattr(base, "picture_scene"):
        return base.picture_scene
    if not isinstance(base, (SyncVectorEnv, AsyncVectorEnv)):
        return None
    # Asked first, because a missing attribute ends an AsyncVectorEnv's workers.
    if not all(base.call("has_wrapper_attr", "picture_scene")):
        return None
    return base.call("get_wrapper_attr", "picture_scene")[0]
