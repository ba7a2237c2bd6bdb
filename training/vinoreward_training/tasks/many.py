"""Many environments for one training: in processes, in this one, or as one batch."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward.bundles.bundle import Bundle, resolve_bundle
from vinoreward.errors import ConfigError, VinorewardError
from vinoreward.files import shown
from vinoreward.processes import THREADS, starting_processes, thread_limits
from vinoreward.wrappers.sources import default_source, sources_of
from vinoreward_envs.making import DEFAULT_BUNDLE, ORACLE, REWARDS
from vinoreward_training.tasks.environments import (
    OF_JUDGE,
    dependencies_named,
    encoder_arguments,
    find_spec,
    found_bundle,
    has_own_reward,
    load_encoder,
    make_env,
    own_arguments,
    reward_arguments,
    unpacked,
)

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

STOP_SECONDS = 30
"""After a SIGTERM an environment's process waits so long for its training to end."""


def make_envs(
    count: int,
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    processes: bool = True,
    **options: Any,
) -> VecEnv:
    """Make many environments whose images are classified, and encoded, in one call per step.

    Args:
        count: of environments.
        env_id: as :func:`make_env`, like all others but:
        env_kwargs: see there.
        processes: step each environment in a process of its own, which computes on one thread.
        options: see there.

    Raises:
        ConfigError: the environment cannot be made several times, or would have to be rendered for
            the encoder.
    """
    from vinoreward.wrappers.sb3 import VecEncodedObservation, VecLearnedReward

    options["judged"] = False
    encoder = options.get("encoder")
    loaded = None if encoder is None else load_encoder(encoder, options.get("encoder_sha256"))
    wrapped = options.get("wrap_bundle") and not has_own_reward(env_id)
    if wrapped and options.get("backend") != ORACLE and options.get("bundle") is not None:
        judge_bundle = resolve_bundle(found_bundle(options["bundle"]))
        given = unpacked(options.get("image_source"))
        options["image_source"] = sources_of(given, judge_bundle, "render")
    env = _together(count, env_id, env_kwargs or {}, processes, options)
    try:
        if options.get("backend") == ORACLE:
            pass
        elif has_own_reward(env_id):
            own = own_arguments(env_kwargs or {}, **options)
            judge = {name: own[name] for name in OF_JUDGE if name in own}
            bundle = judge.pop("bundle", DEFAULT_BUNDLE)
            judge["image_source"] = default_source(env.observation_space, "rgb_array")
            judge |= REWARDS
            env = VecLearnedReward(env, found_bundle(bundle), **judge)
        elif wrapped:
            arguments = reward_arguments(env.observation_space, **options)
            env = VecLearnedReward(env, judge_bundle, **arguments)
        if loaded is not None:
            if default_source(env.observation_space, "rgb_array") == "render":
                raise ConfigError(
                    f"found {count} environments {env_id}, whose images are rendered, and the "
                    f"encoder {encoder}. Expected images in the observation to encode them "
                    "together; use --num-envs 1."
                )
            env = VecEncodedObservation(env, loaded, **encoder_arguments(**options))
    except VinorewardError:
        env.close()
        raise
    return env


def make_batch(
    count: int, env_id: str, env_kwargs: Mapping[str, Any] | None = None, **options: Any
) -> VecEnv:
    """Make many environments as one object, which steps, draws and judges them in one batch.

    Args:
        count: of environments.
        env_id: of one that pays a learned reward itself and has a vector entry point.
        env_kwargs: as :func:`make_env`, like all others; ``truth`` must be None.
        options: see there.

    Raises:
        ConfigError: an environment that cannot be a batch, or arguments that it does not take.
    """
    cure = "leave --vec-env batched out"
    if not has_own_reward(env_id) or find_spec(env_id).vector_entry_point is None:
        raise ConfigError(
            f"found --vec-env batched, but {env_id} is no batch that pays a learned reward. "
            f"Expected one of ours, such as PandaHover-v0; {cure}."
        )
    if options.get("truth") is not None:
        raise ConfigError(
            f"found --truth {options['truth']} with --vec-env batched, whose environments are "
            f"one object in this process. Expected none; leave it out, or {cure}."
        )
    own = own_arguments(env_kwargs or {}, **options)
    encoder = options.get("encoder")
    loaded = None if encoder is None else load_encoder(encoder, options.get("encoder_sha256"))
    try:
        with dependencies_named(env_id):
            made = gym.make_vec(env_id, count, vectorization_mode="vector_entry_point", **own)
    except TypeError as error:
        raise ConfigError(
            f"{env_id} in a batch does not take these arguments: {error}. Expected what "
            f"vinoreward_envs.making.make_vec_env documents; change --env-kwargs, or {cure}."
        ) from error
    from vinoreward_training.sb3 import BatchedVecEnv

    arguments = encoder_arguments(**options)
    if arguments["backend"] == "torch" and own.get("device", "cpu") != "cpu":
        arguments["device"] = "CUDA"
    try:
        return BatchedVecEnv(_encoded(made, loaded, arguments))
    except VinorewardError:
        made.close()
        raise


def sibling_env(env: VecEnv, count: int, **options: Any) -> VecEnv:
    """Return ``count`` more environments that score with the network of a :func:`make_batch`.

    With the same ``options`` they see the same through an encoder, which is loaded again.
    """
    from vinoreward.wrappers.vector import VectorEncodedObservation
    from vinoreward_training.sb3 import BatchedVecEnv

    if not isinstance(env, BatchedVecEnv):
        raise ConfigError(f"found {type(env).__name__}. Expected a batch.")
    batch: Any = env.batch
    inner: Any = batch.env if isinstance(batch, VectorEncodedObservation) else batch
    more = inner.sibling_env(count)
    if not isinstance(batch, VectorEncodedObservation):
        return BatchedVecEnv(more)
    arguments = {**encoder_arguments(**options), "device": batch.encoder.device}
    return BatchedVecEnv(_encoded(more, batch.encoder.bundle, arguments))


def _encoded(made: Any, encoder: Bundle | None, arguments: Mapping[str, Any]) -> Any:
    """Return a batch, seen through an encoder if there is one."""
    from vinoreward.wrappers.vector import VectorEncodedObservation

    return made if encoder is None else VectorEncodedObservation(made, encoder, **arguments)


def _together(
    count: int,
    env_id: str,
    env_kwargs: Mapping[str, Any],
    processes: bool,
    options: dict[str, Any],
) -> VecEnv:
    """Make many environments, in this process or each in one of its own."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    limits = thread_limits() if processes else None
    make = functools.partial(_one_of_many, env_id, dict(env_kwargs), limits, options)
    before = set(multiprocessing.active_children())
    cure = "use --num-envs 1"
    if processes:
        cure = f"try --vec-env dummy, which needs no other process, or {cure}"
    try:
        if limits is None:
            return DummyVecEnv([make] * count)
        with starting_processes(limits):
            return SubprocVecEnv([make] * count, start_method="forkserver")
    except Exception as error:  # anything that the environment raises
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        raised = error.__cause__ if isinstance(error, ConfigError) else error
        if isinstance(error, VinorewardError) and not isinstance(raised, OSError | RuntimeError):
            raise
        raise ConfigError(
            f"{count} environments {env_id} cannot be made"
            f"{' in processes of their own' if processes else ''}: "
            f"{shown(raised) or type(raised).__name__}. Expected one that can be made several times"
            f"{', by what its package registers' if processes else ''}; {cure}."
        ) from error


def _one_of_many(
    env_id: str,
    env_kwargs: dict[str, Any],
    limits: Mapping[str, str] | None,
    options: dict[str, Any],
) -> gym.Env[Any, Any]:
    """Make one, in a process of its own that computes within these limits, or in the training's."""
    from stable_baselines3.common.monitor import Monitor

    if limits is not None:
        # A stop often reaches all processes. The training's own needs this one for its checkpoint.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(STOP_SECONDS))
        _limit_threads(limits)
    return Monitor(make_env(env_id, env_kwargs, **options))


def _limit_threads(limits: Mapping[str, str]) -> None:
    """Let this process compute on its parent's :func:`thread_limits`, also if it was forked.

    Libraries that are loaded already do not look at the variables again: PyTorch and, where
    ``threadpoolctl`` is installed, NumPy's library are told.
    """
    os.environ.update(limits)
    try:
        count = max(1, int(limits[THREADS[0]]))
    except ValueError:  # such as "4,2" for nested loops: the user's own business
        return
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
    with contextlib.suppress(ImportError):
        import threadpoolctl

        threadpoolctl.threadpool_limits(count)
