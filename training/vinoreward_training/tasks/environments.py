"""Environments by id, with a learned reward and an encoded image where they are asked for."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

import vinoreward  # noqa: F401  (registers PandaHover-v0 and its siblings)
from vinoreward.bundles.bundle import Bundle, resolve_bundle
from vinoreward.errors import ConfigError, MissingExtraError, VinorewardError, needed_for
from vinoreward.rewards.decision import OodAction, RewardMode
from vinoreward.wrappers.encoded import EncodedObservation
from vinoreward.wrappers.env_adapter import ImageInInfo
from vinoreward.wrappers.learned_reward import LearnedReward
from vinoreward.wrappers.sources import ImageSource, default_source, sources_of, takes_render
from vinoreward.wrappers.true_success import TrueSuccess, Truth
from vinoreward_envs.making import ORACLE, UNJUDGED
from vinoreward_envs.panda_hover import PandaHoverEnv

OURS = ("vinoreward", "vinoreward_envs", "vinoreward_training")
OF_JUDGE = (
    "backend", "bundle", "precision", "device", "threads", "success_threshold",
    "success_exit_threshold", "success_hold_steps", "on_ood", "accept_foreign_images",
)  # fmt: skip
"""Arguments of our environments that ``LearnedReward`` takes by the same name."""
_ID = re.compile(r"[\w:./-]+")


def agree_to_import(
    env_id: object, named_by: Path, *, trust_run: bool = False, option: str = "--env"
) -> None:
    """Raise ConfigError unless the user agrees to import what a file names: that runs its code.

    For ``package:Id-v0`` Gymnasium imports the package; for ``--truth`` it is a function's module
    or file. Asked on a terminal only; elsewhere the answer is no. A package that is imported
    already, or one of ours, needs no agreement. ``option`` is the one with which the user can name
    the same instead.
    """
    kind = "truth" if option == "--truth" else "environment"
    if not isinstance(env_id, str) or not _ID.fullmatch(env_id):
        expected = "package.module:function" if kind == "truth" else "a Gymnasium id such as"
        raise ConfigError(
            f"{named_by} names the {kind} {env_id!r}. Expected {expected}"
            f"{'' if kind == 'truth' else ' PandaHover-v0'}; restore the file, or leave it out."
        )
    module = env_id.rpartition(":")[0]
    ours = module.partition(".")[0] in OURS and re.fullmatch(r"[\w.]+(?<!\.py)", module)
    if trust_run or not module or module in sys.modules or ours:
        return
    asked = (
        f"{named_by} names the {kind} {env_id}, for which Python would import {module} and "
        "run its code."
    )
    _agree(asked, "Import it?", f"name the {kind} yourself, {option} {env_id}")


def _agree(asked: str, question: str, instead: str) -> None:
    """Ask on a terminal; raise ConfigError if there is none, or the answer is no."""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{asked} {question} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise ConfigError(
        f"{asked} Expected your agreement, as the file may come from somebody else; if you trust "
        f"it, {instead}, or add --trust-run."
    )


def names_function(text: str) -> bool:
    """Return whether a text is ``FILE.py:FUNCTION`` or ``PACKAGE.MODULE:FUNCTION``, and no path."""
    where, _, name = text.rpartition(":")
    return bool(where) and name.isidentifier() and not Path(text).exists()


def agree_to_run(function: object, named_by: Path, *, trust_run: bool, option: str) -> None:
    """Raise ConfigError unless the user agrees to run the code of a function that a file names."""
    if not isinstance(function, str) or not names_function(function) or trust_run:
        return
    asked = f"{named_by} names the function {function}, whose module Python would run."
    _agree(asked, "Run it?", f"name it yourself, {option} {function}")


def naming(name: str | None, option: str = "--env") -> list[str]:
    """Return the option by which the user agrees to an import, if what is named needs one.

    That is an environment's package, or a truth's module or file with ``option="--truth"``.
    """
    return [option, name] if name is not None and ":" in name else []


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
    """Return what ``gym.make`` makes, after :func:`find_spec`.

    dm_control's observations become one row of numbers: SB3's networks do not take their tables,
    which have single numbers in them.
    """
    find_spec(env_id)
    env = gym.make(env_id, **arguments)
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


def truth_reader(truth_key: str | None, truth: str | None) -> Truth:
    """Return what reads the truth from ``info`` for the options of those names."""
    if truth_key is not None and truth is not None:
        raise ConfigError(
            f"found --truth-key {truth_key} and --truth {truth}. Expected one of them; leave the "
            "other out."
        )
    return Truth(truth_key if truth is None else "true_success")


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


def check_bundle_used(env_id: str, bundle: str | None, *, wrap_bundle: bool) -> None:
    """Refuse a bundle that would be ignored."""
    if bundle is not None and not wrap_bundle and not has_own_reward(env_id):
        raise ConfigError(
            f"found the bundle {bundle}, but {env_id} has no learned reward of its own and would "
            "ignore it. Expected --wrap-bundle, which puts the bundle's reward around the "
            "environment; add it, or leave --bundle out to train on the environment's own reward."
        )


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


def make_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str = "openvino",
    bundle: str | None = None,
    precision: str = "auto",
    wrap_bundle: bool = False,
    render_mode: str | None = None,
    encoder: str | None = None,
    encoder_sha256: str | None = None,
    frame_stack: int = 1,
    accept_foreign_images: bool = False,
    success_reward: float = 1.0,
    step_reward: float = 0.0,
    truth: str | None = None,
    truth_key: str | None = None,
    image_source: ImageSource | None = None,
    reward_mode: RewardMode = "sparse",
    hold: int = 1,
    exit_threshold: float | None = None,
    on_ood: OodAction = "withhold",
    gamma: float = 0.99,
    judged: bool = True,
) -> gym.Env[Any, Any]:
    """Make one environment.

    Args:
        env_id: a Gymnasium id.
        env_kwargs: further arguments of the environment; YAML lists become tuples.
        backend: runs the bundle's network. ``"oracle"`` pays the truth instead: ours do so
            themselves, others with ``wrap_bundle``.
        bundle: name or folder; None is the environment's default.
        precision: as the backend takes it.
        wrap_bundle: put ``LearnedReward`` around an environment that has no learned reward.
        render_mode: None leaves the choice to the environment (``rgb_array`` if wrapped).
        encoder: name or folder of an encoder's bundle, for latent observations. It runs on
            ``backend`` (OpenVINO if that is the oracle) with ``precision``.
        encoder_sha256: hash that the encoder's network must have; see :func:`network_sha256`.
        frame_stack: latents of so many steps; with an encoder only.
        accept_foreign_images: as ``LearnedReward``'s.
        success_reward: as ``LearnedReward``'s.
        step_reward: as ``LearnedReward``'s.
        truth: a function of the environment, see :class:`~vinoreward.TrueSuccess`.
        truth_key: key of the truth in ``info``, for the oracle; None: found automatically.
        image_source: as ``LearnedReward``'s; a sequence of one means that one, an empty one None.
        reward_mode: as ``LearnedReward``'s. ``"probability"`` and ``"log_odds"`` end no episode.
        hold: ``success_hold_steps``. Above 1 an observation of one row gets the count appended,
            if the environment is wrapped.
        exit_threshold: ``success_exit_threshold``.
        on_ood: as ``LearnedReward``'s.
        gamma: the learner's discount, for ``reward_mode="potential"``.
        judged: False leaves learned reward and encoder to :func:`make_envs`.
    """
    read = truth_reader(truth_key, truth)
    if frame_stack != 1 and encoder is None:
        raise ConfigError(
            f"found frame_stack={frame_stack} without an encoder. Expected 1, as the environment's "
            "own observation is used; add --encoder, or leave --frame-stack out."
        )
    arguments = {key: tupled(value) for key, value in (env_kwargs or {}).items()}
    options: dict[str, Any] = {
        "backend": backend,
        "precision": precision,
        "encoder": encoder,
        "accept_foreign_images": accept_foreign_images,
        "success_reward": success_reward,
        "step_reward": step_reward,
        "image_source": unpacked(image_source),
        "reward_mode": reward_mode,
        "hold": hold,
        "exit_threshold": exit_threshold,
        "on_ood": on_ood,
        "gamma": gamma,
    }

    def with_truth(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return env if truth is None else TrueSuccess(env, truth)

    def made(mode: str | None) -> gym.Env[Any, Any]:
        given = arguments if mode is None else {**arguments, "render_mode": mode}
        if has_own_reward(env_id):
            own = own_arguments(given, bundle=bundle, **options)
            whole = judged or own["backend"] == ORACLE
            return with_truth(_made(env_id, own) if whole else unjudged(own))
        if not wrap_bundle:
            return with_truth(_made(env_id, given))
        if backend == "oracle":
            env = with_truth(_made(env_id, given))
            return _TrueReward(env, read, success_reward, step_reward)
        if bundle is None:
            raise ConfigError(
                f"{env_id} has no learned reward of its own and no bundle was named. Expected the "
                "name or folder of a bundle to wrap it with; add --bundle."
            )
        taken = sources_of(unpacked(image_source), resolve_bundle(found_bundle(bundle)), "render")
        renders = takes_render(taken)
        env = with_truth(_made(env_id, {"render_mode": "rgb_array", **given} if renders else given))
        if not judged:
            return ImageInInfo(env) if renders else env
        try:
            arguments_of_reward = reward_arguments(env.observation_space, **options)
            return LearnedReward(env, found_bundle(bundle), **arguments_of_reward)
        except VinorewardError:
            env.close()
            raise

    def unjudged(own: Mapping[str, Any]) -> gym.Env[Any, Any]:
        scene = {name: value for name, value in own.items() if name not in OF_JUDGE}
        scene["bundle"] = own.get("bundle")  # says how the images are drawn
        env = _made(env_id, {**scene, "backend": UNJUDGED, "render_mode": "rgb_array"})
        rendered = default_source(env.observation_space, "rgb_array") == "render"
        return ImageInInfo(env) if rendered else env

    if encoder is None or not judged:
        return made(render_mode)
    loaded = load_encoder(encoder, encoder_sha256)
    env = made(render_mode)
    try:
        if env.render_mode is None and default_source(env.observation_space, "rgb_array") == (
            "render"
        ):
            # Its observation is no image, so it has to render one.
            env.close()
            env = made("rgb_array")
        encoding = encoder_arguments(backend=backend, precision=precision, frame_stack=frame_stack)
        return EncodedObservation(env, loaded, **encoding)
    except VinorewardError:
        env.close()
        raise


def own_arguments(
    env_kwargs: Mapping[str, Any],
    *,
    backend: str = "openvino",
    precision: str = "auto",
    bundle: str | None = None,
    accept_foreign_images: bool = False,
    hold: int = 1,
    exit_threshold: float | None = None,
    on_ood: OodAction = "withhold",
    **_: Any,
) -> dict[str, Any]:
    """Return the arguments of an environment that has a learned reward itself."""
    own: dict[str, Any] = {} if bundle is None else {"bundle": bundle}
    if accept_foreign_images:
        own["accept_foreign_images"] = True
    if hold != 1:
        own["success_hold_steps"] = hold
    if exit_threshold is not None:
        own["success_exit_threshold"] = exit_threshold
    if on_ood != "withhold":
        own["on_ood"] = on_ood
    given = {key: tupled(value) for key, value in env_kwargs.items()}
    return {**own, "backend": backend, "precision": precision, **given}


def reward_arguments(
    space: gym.Space[Any],
    *,
    backend: str = "openvino",
    precision: str = "auto",
    encoder: str | None = None,
    accept_foreign_images: bool = False,
    success_reward: float = 1.0,
    step_reward: float = 0.0,
    image_source: ImageSource | None = None,
    reward_mode: RewardMode = "sparse",
    hold: int = 1,
    exit_threshold: float | None = None,
    on_ood: OodAction = "withhold",
    gamma: float = 0.99,
    **_: Any,
) -> dict[str, Any]:
    """Return the arguments of ``LearnedReward``, or of its form for many environments."""
    row = isinstance(space, gym.spaces.Box) and len(space.shape) == 1
    return {
        "backend": backend,
        "precision": precision,
        "accept_foreign_images": accept_foreign_images,
        "success_reward": success_reward,
        "step_reward": step_reward,
        "image_source": image_source,
        "reward_mode": reward_mode,
        "success_hold_steps": hold,
        "success_exit_threshold": exit_threshold,
        "on_ood": on_ood,
        "hold_in_observation": hold > 1 and row and encoder is None,
        # Else an agent that is paid for looking like success would stay just short of it.
        "terminate_on_success": reward_mode in ("sparse", "potential"),
        "gamma": gamma,
    }


def encoder_arguments(
    *,
    backend: str = "openvino",
    precision: str = "auto",
    frame_stack: int = 1,
    **_: Any,
) -> dict[str, Any]:
    """Return the arguments of ``EncodedObservation``, or of its form for many environments."""
    return {
        "backend": "openvino" if backend == ORACLE else backend,
        "precision": precision,
        "frame_stack": frame_stack,
    }


def unpacked(image_source: ImageSource | None) -> ImageSource | None:
    """Return None for no source and the only one of a sequence of one, as a command gives them."""
    if isinstance(image_source, list | tuple):
        return tuple(image_source) if len(image_source) > 1 else next(iter(image_source), None)
    return image_source


def found_bundle(bundle: str) -> Path | str:
    """Return the path of a bundle that is a file or folder, else its name."""
    return Path(bundle) if Path(bundle).exists() else bundle


def network_sha256(bundle: Bundle) -> str | None:
    """Return the hash of a bundle's FP32 network, or of its only one.

    An INT8 network that is added later has passed its gate: it is the same encoder.
    """
    files = bundle.spec.files
    names = ("model.onnx", "model.safetensors", *sorted(files))
    return next((files[name] for name in names if name in files), None)


def load_encoder(path_or_name: str, sha256: str | None = None) -> Bundle:
    """Load an encoder's bundle; check the hash of its network where one is given."""
    bundle = Bundle.load(path_or_name)
    actual = network_sha256(bundle)
    if sha256 is not None and actual != sha256:
        raise ConfigError(
            f"the encoder {path_or_name} has the network {(actual or 'unknown')[:12]}, and the "
            f"policy was trained with {sha256[:12]}. Expected the same, as another encoder's "
            "latent means nothing to it; name that one with --encoder, or train anew."
        )
    return bundle


def _made(env_id: str, arguments: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        with dependencies_named(env_id):
            return make_plain(env_id, **arguments)
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


def tupled(value: Any) -> Any:
    """Return an argument of an environment with its lists, as YAML has them, as tuples."""
    return tuple(tupled(item) for item in value) if isinstance(value, list) else value
