"""Environments by id, with a learned reward and an encoded image where they are asked for."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

import vinoreward  # noqa: F401  (registers PandaHover-v0 and its siblings)
from vinoreward.bundles.bundle import Bundle, resolve_bundle
from vinoreward.bundles.locate import SPEC_FILE
from vinoreward.errors import ConfigError, MissingExtraError, VinorewardError, needed_for
from vinoreward.rewards.decision import SHAPED
from vinoreward.wrappers.encoded import EncodedObservation
from vinoreward.wrappers.env_adapter import ImageInInfo
from vinoreward.wrappers.learned_reward import LearnedReward
from vinoreward.wrappers.sources import ImageSource, default_source, sources_of, takes_render
from vinoreward.wrappers.true_success import TrueSuccess, Truth
from vinoreward_envs.making import ORACLE, UNJUDGED
from vinoreward_envs.panda_hover import PandaHoverEnv
from vinoreward_training.configs.task import RewardedTask, Task
from vinoreward_training.tasks.trust import names_function

OURS = ("vinoreward", "vinoreward_envs", "vinoreward_training")
OF_JUDGE = (
    "backend", "bundle", "precision", "device", "threads", "success_threshold",
    "success_exit_threshold", "success_hold_steps", "on_ood", "accept_foreign_images",
)  # fmt: skip
"""Arguments of our environments that ``LearnedReward`` takes by the same name."""


def not_importable(env_id: str, error: Exception) -> str:
    """Return what to do if no package that was named registers the id, else ""."""
    package = env_id.rpartition(":")[0].partition(".")[0]
    namespace = env_id.partition("/")[0]
    if isinstance(error, gym.error.NamespaceNotFound) and not package and namespace.isidentifier():
        return f" If the package {namespace} registers it: --env {namespace}:{env_id}."
    if isinstance(error, gym.error.NameNotFound):
        if package:
            return f" The package {package} registers no such id."
        return f" If a package registers it, name that too: --env package_name:{env_id}."
    if not package or not isinstance(error, ModuleNotFoundError) or error.name != package:
        return ""
    return (
        f" Python does not find {package}: install it (pip install -e ITS_FOLDER), or put "
        "PYTHONPATH=. before the command if it lies in this folder."
    )


def takes_no_mode(error: Exception) -> str:
    """Return what to do if an environment does not take ``render_mode``, else ""."""
    if not isinstance(error, TypeError) or "argument 'render_mode'" not in str(error):
        return ""
    return (
        " It takes no render_mode, so it shows no images: write def __init__(self, "
        "render_mode=None) and a render() that draws, or name an image in its observation with "
        "--image-source obs or obs:KEY."
    )


def find_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """Return an environment's registration; import the package of ``package:Id-v0`` first.

    ``dm_control/DOMAIN-TASK-v0`` needs no package. Raises Gymnasium's errors, ImportError, and
    MissingExtraError where Shimmy, which registers these, is missing.
    """
    package, _, name = env_id.rpartition(":")
    _load_triton_before_osmesa()
    if package:
        importlib.import_module(package)
    elif name.startswith("dm_control/"):
        _register_dm_control()
    return gym.spec(name)


def make_plain(env_id: str, **arguments: Any) -> gym.Env[Any, Any]:
    """Return what ``gym.make`` makes, after :func:`find_spec`; ConfigError if it cannot be made.

    dm_control's observations become one row of numbers: SB3's networks do not take their tables,
    which have single numbers in them.
    """
    try:
        with dependencies_named(env_id):
            find_spec(env_id)
            env = gym.make(env_id, **arguments)
    except VinorewardError:
        raise
    except Exception as error:  # an environment may raise anything
        spec = gym.registry.get(env_id.rpartition(":")[2])
        ours = spec is not None and str(spec.entry_point).startswith(OURS)
        if ours and isinstance(error, ModuleNotFoundError):
            raise  # the command names the extra that installs it
        raise ConfigError(
            f"{env_id} cannot be made: {type(error).__name__}: {error}. Expected one that "
            "gymnasium.make makes with these arguments; install what it lacks, change "
            f"--env-kwargs, or name another with --env.{takes_no_mode(error)}"
        ) from error
    rows = env_id.rpartition(":")[2].startswith("dm_control/")
    return gym.wrappers.FlattenObservation(env) if rows else env


def _register_dm_control() -> None:
    with warnings.catch_warnings(), needed_for("dm_control's tasks", "dm-control"):
        warnings.simplefilter("ignore")  # where there is no display, GLFW warns
        for name in ("dm_control.suite", "shimmy"):  # Shimmy itself is silent without dm_control
            importlib.import_module(name)


def _load_triton_before_osmesa() -> None:
    """Load torch's compiler before MuJoCo loads OSMesa: the other way round, the process crashes.

    Both bring an LLVM, and torch imports its compiler with the first optimiser.
    """
    names = {os.environ.get(name, "").lower() for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    if "osmesa" in names:
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")


class _TrueReward(gym.Wrapper[Any, Any, Any, Any]):
    """Pays for true success alone and ends there: what a learned reward is compared with."""

    def __init__(
        self, env: gym.Env[Any, Any], truth: Truth, success_reward: float, step_reward: float
    ) -> None:
        super().__init__(env)
        self._truth, self._rewards = truth, (step_reward, success_reward)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        observation, _, terminated, truncated, info = self.env.step(action)
        success = self._truth(info)
        if success is None:
            raise ConfigError(f"found --backend oracle, but {self._truth.missing(info)}")
        return observation, self._rewards[success], terminated or success, truncated, info


def truth_reader(truth: str | None) -> Truth:
    """Return what reads the truth from ``info``, as ``Task.truth`` says."""
    return Truth("true_success" if truth is not None and names_function(truth) else truth)


def with_truth(env: gym.Env[Any, Any], truth: str | None) -> gym.Env[Any, Any]:
    """Return the environment; one that tells the truth where a function of it does."""
    return TrueSuccess(env, truth) if truth is not None and names_function(truth) else env


def has_own_reward(env_id: str) -> bool:
    """Return whether ``gym.make`` puts a learned reward around the environment: one of ours."""
    try:
        spec = find_spec(env_id)
    except MissingExtraError:
        raise
    except Exception as error:  # a package may raise anything when it is imported
        raise ConfigError(
            f"no environment {env_id!r} ({error}). Expected a registered id such as PandaHover-v0, "
            "or package:Id-v0." + not_importable(env_id, error)
        ) from error
    return _is_ours(spec)


def _is_ours(spec: gym.envs.registration.EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("vinoreward_envs.")


def is_hover(spec: gym.envs.registration.EnvSpec) -> bool:
    """Return whether an environment is PandaHover or derived from it."""
    creator: Any = spec.entry_point
    if _is_ours(spec):
        return True
    if isinstance(creator, str):
        try:
            creator = gym.envs.registration.load_env_creator(creator)
        except Exception:  # noqa: BLE001  # a module may raise anything
            return False  # gym.make raises with the reason
    return isinstance(creator, type) and issubclass(creator, PandaHoverEnv)


@contextlib.contextmanager
def dependencies_named(env_id: str) -> Iterator[None]:
    """Raise MissingExtraError with Gymnasium's advice if an environment lacks a package."""
    try:
        yield
    except gym.error.DependencyNotInstalled as error:
        # Gymnasium's advice names some extras with "_", which pip before 23.3 does not find.
        advice = re.sub(r"\[[a-z_,]+\]", lambda extras: extras[0].replace("_", "-"), str(error))
        raise MissingExtraError(
            f"{env_id} lacks a package of its own, as Gymnasium says: {advice}. Expected all that "
            "the environment needs, which vinoreward's extras do not bring; install it."
        ) from error


def is_rewarded(task: RewardedTask) -> bool:
    """Return whether a learned reward, or the truth, pays: in ours, or with a bundle."""
    return task.bundle is not None or task.backend == ORACLE or has_own_reward(task.env)


def make_env(
    task: RewardedTask,
    *,
    render_mode: str | None = None,
    gamma: float = 0.99,
    scored: bool = True,
) -> gym.Env[Any, Any]:
    """Make one environment, with its learned reward and its encoder.

    Args:
        task: ours have a learned reward; others get one if a bundle is named, and pay the truth
            instead if the backend is the oracle.
        render_mode: None leaves the choice to the environment (``rgb_array`` if its images are
            scored).
        gamma: the learner's discount, for a reward that is shaped by a potential.
        scored: False leaves learned reward and encoder to :func:`make_envs`.
    """
    if task.encoder is None or not scored:
        return _rewarded(task, render_mode, gamma, scored)
    loaded = Bundle.load(task.encoder)
    env = _rewarded(task, render_mode, gamma, scored)
    try:
        if env.render_mode is None and default_source(env.observation_space, "rgb_array") == (
            "render"
        ):
            # Its observation is no image, so it has to render one.
            env.close()
            env = _rewarded(task, "rgb_array", gamma, scored)
        return EncodedObservation(env, loaded, **encoder_arguments(task))
    except VinorewardError:
        env.close()
        raise


def _rewarded(
    task: RewardedTask, render_mode: str | None, gamma: float, scored: bool
) -> gym.Env[Any, Any]:
    given = environment_arguments(task)
    if render_mode is not None:
        given["render_mode"] = render_mode
    if has_own_reward(task.env):
        own = {**own_arguments(task), **given}
        if scored or own["backend"] == ORACLE:
            return with_truth(make_plain(task.env, **own), task.truth)
        return _unscored(task, own)
    if task.backend == ORACLE:
        env = with_truth(make_plain(task.env, **given), task.truth)
        rewards = task.success_reward, task.step_reward
        return _TrueReward(env, truth_reader(task.truth), *rewards)
    if task.bundle is None:
        return with_truth(make_plain(task.env, **given), task.truth)
    renders = takes_render(image_sources(task))
    if renders:
        given = {"render_mode": "rgb_array", **given}
    env = with_truth(make_plain(task.env, **given), task.truth)
    if not scored:
        return ImageInInfo(env) if renders else env
    try:
        arguments = reward_arguments(task, env.observation_space, gamma)
        return LearnedReward(env, find_bundle(task.bundle), **arguments)
    except VinorewardError:
        env.close()
        raise


def _unscored(task: RewardedTask, own: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Return the scene of one of ours, whose images others score."""
    scene = {name: value for name, value in own.items() if name not in OF_JUDGE}
    scene["bundle"] = own.get("bundle")  # says how the images are drawn
    env = make_plain(task.env, **{**scene, "backend": UNJUDGED, "render_mode": "rgb_array"})
    rendered = default_source(env.observation_space, "rgb_array") == "render"
    return ImageInInfo(env) if rendered else env


def environment_arguments(task: Task) -> dict[str, Any]:
    """Return the environment's own arguments, with YAML's lists as tuples."""
    return {name: tupled(value) for name, value in task.env_kwargs.items()}


def own_arguments(task: RewardedTask) -> dict[str, Any]:
    """Return the arguments of an environment that has a learned reward itself."""
    own: dict[str, Any] = {"backend": task.backend, "precision": task.precision}
    if task.bundle is not None:
        own["bundle"] = str(find_bundle(task.bundle))
    usual = RewardedTask()
    for name, argument in _OF_OURS.items():
        if (value := getattr(task, name)) != getattr(usual, name):
            own[argument] = value
    return {**own, **environment_arguments(task)}


_OF_OURS = {
    "accept_foreign_images": "accept_foreign_images",
    "hold": "success_hold_steps",
    "on_ood": "on_ood",
}
"""Options of the learned reward that environments of ours take too, and their names there."""


def image_sources(task: RewardedTask) -> ImageSource:
    """Return where the images of a task with a bundle are."""
    bundle = resolve_bundle(find_bundle(task.bundle or ""))
    return sources_of(_unpacked(task.image_source), bundle, "render")


def reward_arguments(
    task: RewardedTask, space: gym.Space[Any], gamma: float = 0.99
) -> dict[str, Any]:
    """Return the arguments of ``LearnedReward``, or of its form for many environments."""
    row = isinstance(space, gym.spaces.Box) and len(space.shape) == 1
    return {
        "backend": task.backend,
        "precision": task.precision,
        "accept_foreign_images": task.accept_foreign_images,
        "success_reward": task.success_reward,
        "step_reward": task.step_reward,
        "image_source": _unpacked(task.image_source),
        "reward_mode": task.reward_mode,
        "success_hold_steps": task.hold,
        "on_ood": task.on_ood,
        "hold_in_observation": task.hold > 1 and row and task.encoder is None,
        # Else an agent that is paid for looking like success would stay just short of it.
        "terminate_on_success": task.reward_mode in ("sparse", *SHAPED),
        "gamma": gamma,
    }


def encoder_arguments(task: RewardedTask) -> dict[str, Any]:
    """Return the arguments of ``EncodedObservation``, or of its form for many environments."""
    return {
        "backend": "openvino" if task.backend == ORACLE else task.backend,
        "precision": task.precision,
    }


def _unpacked(sources: tuple[str, ...]) -> ImageSource | None:
    """Return None for no source and the only one of a sequence of one."""
    return sources if len(sources) > 1 else next(iter(sources), None)


def find_bundle(bundle: str) -> Path | str:
    """Return the path of a bundle that is a file or folder, else its name.

    The run of a training stands for the bundle in it.
    """
    path = Path(bundle)
    if (path / "bundle" / SPEC_FILE).is_file():
        return path / "bundle"
    return path if path.exists() else bundle


def tupled(value: Any) -> Any:
    """Return an argument of an environment with its lists, as YAML has them, as tuples."""
    return tuple(tupled(item) for item in value) if isinstance(value, list) else value
