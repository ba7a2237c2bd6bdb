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

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, VinorewardError
from vinoreward.files import shown
from vinoreward.processes import THREADS, starting_processes, thread_limits
from vinoreward.wrappers.sources import default_source
from vinoreward_envs.making import DEFAULT_BUNDLE, ORACLE, REWARDS
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.tasks.environments import (
    OF_JUDGE,
    dependencies_named,
    encoder_arguments,
    find_bundle,
    find_spec,
    has_own_reward,
    image_sources,
    make_env,
    own_arguments,
    reward_arguments,
)
from vinoreward_training.tasks.trust import names_function

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

STOP_SECONDS = 30
"""After a SIGTERM an environment's process waits so long for its training to end."""


def make_envs(
    count: int, task: RewardedTask, *, processes: bool = True, gamma: float = 0.99
) -> VecEnv:
    """Make many environments whose images are classified, and encoded, in one call per step.

    Args:
        count: of environments.
        task: as :func:`make_env`.
        processes: step each environment in a process of its own, which computes on one thread.
        gamma: as :func:`make_env`.

    Raises:
        ConfigError: the environment cannot be made several times, or would have to be rendered for
            the encoder.
    """
    from vinoreward.wrappers.sb3 import VecEncodedObservation, VecLearnedReward

    loaded = None if task.encoder is None else Bundle.load(task.encoder)
    env = _together(count, task, processes)
    try:
        if task.backend == ORACLE:
            pass
        elif has_own_reward(task.env):
            own = own_arguments(task)
            reward = {name: own[name] for name in OF_JUDGE if name in own}
            bundle = reward.pop("bundle", DEFAULT_BUNDLE)
            reward["image_source"] = default_source(env.observation_space, "rgb_array")
            env = VecLearnedReward(env, find_bundle(bundle), **reward, **REWARDS)
        elif task.bundle is not None:
            arguments = reward_arguments(task, env.observation_space, gamma)
            arguments["image_source"] = image_sources(task)
            env = VecLearnedReward(env, find_bundle(task.bundle), **arguments)
        if loaded is not None:
            if default_source(env.observation_space, "rgb_array") == "render":
                raise ConfigError(
                    field="num_envs",
                    value=count,
                    expected=f"1 with an encoder, as the images of {task.env} are rendered and "
                    "not in the observation",
                )
            env = VecEncodedObservation(env, loaded, **encoder_arguments(task))
    except VinorewardError:
        env.close()
        raise
    return env


def make_batch(count: int, task: RewardedTask) -> VecEnv:
    """Make many environments as one object, which steps, draws and judges them in one batch.

    Args:
        count: of environments.
        task: of an environment of ours with a vector entry point; its truth is no function.

    Raises:
        ConfigError: an environment that cannot be a batch, or arguments that it does not take.
    """
    cure = "leave `vec_env=batched` out"
    if not has_own_reward(task.env) or find_spec(task.env).vector_entry_point is None:
        raise ConfigError(
            f"found `vec_env=batched`, but {task.env} is no batch that pays a learned reward. "
            f"Expected one of ours, such as PandaHover-v0; {cure}."
        )
    if task.truth is not None and names_function(task.truth):
        raise ConfigError(
            field="truth",
            value=task.truth,
            expected="a key of info for `vec_env=batched`, whose environments are one object",
            remedy=f"leave it out, or {cure}",
        )
    own = own_arguments(task)
    loaded = None if task.encoder is None else Bundle.load(task.encoder)
    try:
        with dependencies_named(task.env):
            made = gym.make_vec(task.env, count, vectorization_mode="vector_entry_point", **own)
    except TypeError as error:
        raise ConfigError(
            f"{task.env} in a batch does not take these arguments: {error}. Expected what "
            "vinoreward_envs.making.make_vec_env documents; change `env_kwargs`, or " + cure + "."
        ) from error
    from vinoreward_training.sb3 import BatchedVecEnv

    arguments = encoder_arguments(task)
    if arguments["backend"] == "torch" and own.get("device", "cpu") != "cpu":
        arguments["device"] = "CUDA"
    try:
        return BatchedVecEnv(_encoded(made, loaded, arguments))
    except VinorewardError:
        made.close()
        raise


def sibling_env(env: VecEnv, count: int, task: RewardedTask) -> VecEnv:
    """Return ``count`` more environments that score with the network of a :func:`make_batch`.

    With the same ``task`` they see the same through an encoder, which is loaded again.
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
    arguments = {**encoder_arguments(task), "device": batch.encoder.device}
    return BatchedVecEnv(_encoded(more, batch.encoder.bundle, arguments))


def _encoded(made: Any, encoder: Bundle | None, arguments: Mapping[str, Any]) -> Any:
    """Return a batch, seen through an encoder if there is one."""
    from vinoreward.wrappers.vector import VectorEncodedObservation

    return made if encoder is None else VectorEncodedObservation(made, encoder, **arguments)


def _together(count: int, task: RewardedTask, processes: bool) -> VecEnv:
    """Make many environments, in this process or each in one of its own."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    limits = thread_limits() if processes else None
    make = functools.partial(_one_of_many, task, limits)
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
            f"{count} environments {task.env} cannot be made"
            f"{' in processes of their own' if processes else ''}: "
            f"{shown(raised) or type(raised).__name__}. Expected one that can be made several times"
            f"{', by what its package registers' if processes else ''}; {cure}."
        ) from error


def _one_of_many(task: RewardedTask, limits: Mapping[str, str] | None) -> gym.Env[Any, Any]:
    """Make one, in a process of its own that computes within these limits, or in the training's."""
    from stable_baselines3.common.monitor import Monitor

    if limits is not None:
        # A stop often reaches all processes. The training's own needs this one for its checkpoint.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(STOP_SECONDS))
        _limit_threads(limits)
    return Monitor(make_env(task, scored=False))


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
