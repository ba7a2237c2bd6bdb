"""What ``gym.make`` and ``gym.make_vec`` of the hover ids return: the scene and its reward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import gymnasium as gym
import numpy as np

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.machine import usable_cores
from vinoreward.rewards.reward_model import check_origin
from vinoreward.wrappers.autoreset import VectorAutoreset
from vinoreward.wrappers.learned_reward import LearnedReward
from vinoreward.wrappers.vector import LearnedReward as VectorLearnedReward
from vinoreward_envs import constants as c
from vinoreward_envs.arrays import CPU, Kind, checked_device
from vinoreward_envs.camera.spec import CameraSpec, check_choice, resized
from vinoreward_envs.human import in_a_window
from vinoreward_envs.inputs import checked_count
from vinoreward_envs.panda_hover import PandaHoverEnv, Ranges
from vinoreward_envs.panda_hover_vector import PandaHoverVectorEnv
from vinoreward_envs.randomization import DomainRandomization

DEFAULT_BUNDLE: Final = "panda-hover-classifier"
ORACLE: Final = "oracle"
UNJUDGED: Final = "none"
REWARDS: Final[dict[str, Any]] = {
    "success_reward": c.REWARD_SUCCESS,
    "env_reward_weight": 1.0,
    "success_replaces_env_reward": True,
    "frozen_check": False,
}
"""Of a learned reward: the scene pays for the move, but for one that ends in a claimed success."""
_BATCHED: Final[dict[str, tuple[object, ...]]] = {
    "motion": ("kinematic",),
    "camera": ("fast",),
    "fidelity": (None,),
    "render_mode": (None, "rgb_array"),
}
_OF_REWARD: Final = (
    "precision", "device", "threads", "success_threshold", "success_exit_threshold",
    "success_hold_steps", "on_ood", "accept_foreign_images",
)  # fmt: skip
_OF_MAKE_VEC: Final = ("num_envs", "vectorization_mode", "vector_kwargs")
AnyBundle = Bundle | str | Path | Mapping[str, Any] | None


class HoverBatch(VectorAutoreset):
    """What ``gym.make_vec`` returns: a batch of hover scenes that resets itself.

    ``learned`` is the learned reward; None where the scene's own is paid.
    """

    _shares = False

    def __init__(self, env: PandaHoverVectorEnv | VectorLearnedReward) -> None:
        super().__init__(env)
        self.hover: Any = self.unwrapped
        self.learned = env if isinstance(env, VectorLearnedReward) else None

    @property
    def randomization(self) -> DomainRandomization:
        """See :class:`.PandaHoverVectorEnv`."""
        ranges: DomainRandomization = self.hover.randomization
        return ranges

    @randomization.setter
    def randomization(self, value: Ranges) -> None:
        self.hover.randomization = value

    def __getattr__(self, name: str) -> Any:
        """Return what the learned reward has, such as ``classifier``, or the scene."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.learned if hasattr(self.learned, name) else self.unwrapped, name)

    def step(self, actions: Any) -> Any:
        """See :class:`~vinoreward.wrappers.autoreset.VectorAutoreset`."""
        *step, infos = super().step(actions)
        final = infos.get("final_info")
        if final is not None and "invalid_action" in final:
            for key in ("invalid_action", "_invalid_action"):  # it ended that episode
                infos[key] = final[key] & True
                final[key] = infos[key] & True
        return *step, infos

    def sibling_env(self, num_envs: int) -> HoverBatch:
        """Return other environments of the same arguments, which score with this batch's network.

        Their episodes are their own. One thread steps both; closing this batch frees the network.
        """
        given = {k: v for k, v in self.hover.spec.kwargs.items() if k not in _OF_MAKE_VEC}
        other = make_vec_env(num_envs, **{**given, "randomization": self.randomization})
        if other.learned is not None and self.learned is not None:
            other.learned._model.classifier = self.learned.classifier
            other._shares = True
        return other

    def close(self, **kwargs: Any) -> None:
        """Close the environments and free the network."""
        (self.hover if self._shares else self.env).close(**kwargs)


def make_env(
    *,
    backend: str = "openvino",
    bundle: AnyBundle = None,
    fidelity: Literal["article"] | None = None,
    observation: Literal["state", "pixels"] = "state",
    render_mode: Literal["rgb_array", "human"] | None = None,
    **options: Any,
) -> gym.Env[Any, Any]:
    """Make one hover environment: a :class:`PandaHoverEnv` inside a learned reward.

    A claimed success pays 100 and ends the episode; any other step pays what the scene does.
    ``info`` gains what :class:`~vinoreward.LearnedReward` writes: ``is_success`` (claimed),
    ``reward_prob`` and ``reward_ood``.

    Args:
        backend: ``"openvino"``, ``"onnxruntime"``, ``"torch"`` or another registered one runs the
            classifier; ``"oracle"`` pays the truth and needs no image; ``"none"`` leaves the reward
            to a wrapper: no ``is_success``, no reward for success and no end by it.
        bundle: name or folder of the classifier's bundle, or a loaded one; None is the shipped
            one. With the oracle it only describes the image.
        fidelity: as :class:`PandaHoverEnv`'s; the article's image is resized with PIL, also for a
            bundle of other images (whose card then does not hold), and no OOD detector sees it.
        observation: as :class:`PandaHoverEnv`'s.
        render_mode: None, ``"rgb_array"`` or ``"human"`` (needs a display).
        options: ``precision``, ``device``, ``threads``, ``success_threshold``,
            ``success_exit_threshold``, ``success_hold_steps``, ``on_ood`` and
            ``accept_foreign_images`` as for :class:`~vinoreward.LearnedReward`; and further
            arguments of :class:`PandaHoverEnv`: size and mesh of the image are the bundle's by
            default.

    Raises:
        ConfigError: an argument that cannot work.
        ImageMismatchError: the bundle was trained on other images, or does not say on which.
        ModelNotFoundError: no such bundle.
        MissingExtraError: PyBullet or the camera's library is needed and not installed.
        MissingDisplayError: ``render_mode="human"`` without a display.
    """
    check_choice("render_mode", render_mode, (None, "rgb_array", "human"))
    loaded = _bundle(bundle, backend)
    learned, scene = _apart(options, backend, None if fidelity else loaded)
    pixels, renders = observation == "pixels", fidelity is not None or render_mode is not None
    env: gym.Env[Any, Any] = PandaHoverEnv(
        oracle=backend == ORACLE,
        fidelity=fidelity,
        observation=observation,
        render_mode="rgb_array" if renders or (learned and not pixels) else None,
        **scene,
    )
    try:
        if learned and loaded is not None:
            learned["image_source"] = "obs" if pixels else "render"
            if fidelity is not None:
                if not learned.get("accept_foreign_images"):
                    check_origin(loaded)
                size = _size_before_crop(loaded) or (c.ARTICLE_HEIGHT, c.ARTICLE_WIDTH)
                learned["on_ood"] = "ignore"
                learned["image_source"] = lambda env, _: resized(np.asarray(env.render()), *size)
            env = LearnedReward(env, loaded, **learned)
        return in_a_window(env) if render_mode == "human" else env
    except BaseException:
        env.close()
        raise


def make_vec_env(
    num_envs: int = 1,
    *,
    array: Kind = "numpy",
    device: str = CPU,
    threads: int | None = None,
    backend: str | None = None,
    bundle: AnyBundle = None,
    observation: Literal["state", "pixels"] = "state",
    render_mode: Literal["rgb_array"] | None = None,
    **options: Any,
) -> HoverBatch:
    """Make many hover environments in one: a :class:`PandaHoverVectorEnv` inside a learned reward.

    An episode that ends is reset in the same step, see
    :class:`~vinoreward.wrappers.autoreset.VectorAutoreset`: ``infos["final_obs"]`` and
    ``infos["final_info"]`` hold what it ended with.

    Args:
        num_envs: how many.
        array: as :class:`PandaHoverVectorEnv`'s. On CUDA a step of tensors copies nothing to the
            host with the backend ``"torch"``, ``"oracle"`` or ``"none"`` and an ``on_ood`` that
            neither warns nor raises.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``: where scene and tensors are.
        threads: threads that draw and score on a processor, each with networks of its own; None is
            as many as there are cores.
        backend: as for :func:`make_env`; None is ``"openvino"`` on a processor and ``"torch"`` on
            CUDA, where ``precision="auto"`` is half precision.
        bundle: and all others and errors, see :func:`make_env` and :class:`PandaHoverVectorEnv`.
    """
    for name, known in _BATCHED.items():
        value = render_mode if name == "render_mode" else options.pop(name, known[0])
        if value not in known:
            raise ConfigError(
                f"Found {name}={value!r}; environments in one batch have no such thing. Leave it "
                'out, or make single ones: vectorization_mode="sync" or "async".'
            )
    device = checked_device(device)
    if backend is None:
        backend = "openvino" if device == CPU else "torch"
    loaded = _bundle(bundle, backend)
    learned, scene = _apart(options, backend, loaded)
    pixels = observation == "pixels"
    cores = usable_cores() if threads is None else checked_count("threads", threads)
    env: Any = PandaHoverVectorEnv(
        num_envs,
        array=array,
        device=device,
        threads=cores,
        oracle=backend == ORACLE,
        observation=observation,
        render_mode="rgb_array" if learned and not pixels else render_mode,
        **scene,
    )
    try:
        if learned and loaded is not None:
            learned |= {"threads": cores, "image_source": "obs" if pixels else "render"}
            if backend == "torch" and device != CPU:
                if device != "cuda:0":
                    raise ConfigError(
                        f'Found device={device!r} with backend="torch", which uses the first CUDA '
                        'device. Expected "cuda:0"; choose it with CUDA_VISIBLE_DEVICES, or '
                        'backend="openvino".'
                    )
                learned |= {"device": "CUDA", "threads": 1}
                if learned.get("precision", "auto") == "auto":
                    learned["precision"] = "fp16"
            env = VectorLearnedReward(env, loaded, **learned)
        return HoverBatch(env)
    except BaseException:
        env.close()
        raise


def _apart(
    options: Mapping[str, Any], backend: str, bundle: Bundle | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the learned reward, empty where there is none, and of the scene.

    The scene draws the images that the bundle was trained on, where nothing else is asked for.
    """
    scene = {name: value for name, value in options.items() if name not in _OF_REWARD}
    if bundle is not None:
        given = {name: value for name, value in scene.items() if value is not None}
        scene = {**_image_of(bundle), **given}
    if backend in (ORACLE, UNJUDGED):
        return {}, {**scene, "success_hold_steps": options.get("success_hold_steps", 1)}
    learned = {name: value for name, value in options.items() if name in _OF_REWARD}
    return {**REWARDS, "backend": backend, **learned}, scene


def _bundle(bundle: AnyBundle, backend: str) -> Bundle | None:
    if bundle is None and backend == ORACLE:
        return None
    named: Any = DEFAULT_BUNDLE if bundle is None else bundle
    return named if isinstance(named, Bundle) else Bundle.load(named)


def spec_of(bundle: Bundle) -> CameraSpec:
    """Return the fast camera for images like those that a bundle was trained on."""
    image = _image_of(bundle)
    height, width = image["image_size"]
    return CameraSpec(height, width, mesh=image.get("mesh", "20"))


def _image_of(bundle: Bundle) -> dict[str, Any]:
    """Return the arguments of a scene that draws the images a bundle was trained on."""
    image = bundle.spec.image
    size = _size_before_crop(bundle) or (image.height, image.width)
    mesh = image.scene.get("mesh")
    return {"image_size": size, **({} if mesh is None else {"mesh": str(mesh)})}


def _size_before_crop(bundle: Bundle) -> tuple[int, int] | None:
    """Return the height and width of the images a bundle expects; None if it resizes them."""
    image = bundle.spec.image
    if "height" in image.scene and "width" in image.scene:
        return int(image.scene["height"]), int(image.scene["width"])
    if image.resize != "none" or image.crop is not None:
        return None
    return image.height, image.width
