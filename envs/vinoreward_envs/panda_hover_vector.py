"""PandaHover as one vector environment: thousands of arms in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from vinoreward.arrays import Array, to_numpy
from vinoreward.machine import usable_cores
from vinoreward_envs import constants as c
from vinoreward_envs.arrays import CPU, Kind, checked_device, make_arrays, plain
from vinoreward_envs.camera.spec import CameraSpec, Mesh, check_choice, checked_size
from vinoreward_envs.inputs import (
    checked_actions,
    checked_count,
    checked_mask,
    checked_object_position,
    checked_objects,
    checked_options,
    checked_seeds,
)
from vinoreward_envs.panda_hover import Ranges, observation_space
from vinoreward_envs.random_numbers import BatchedPCG64
from vinoreward_envs.randomization import (
    DomainRandomization,
    by_name,
    checked_randomization,
    nominal,
)
from vinoreward_envs.scene import check_renderer
from vinoreward_envs.scenes import HoverScenes, HoverTask, ObjectPosition
from vinoreward_envs.warp_device import WarpDevice

STAYS_ON_CPU = False
"""Tests set this: a batch of tensors is then drawn on a processor as on a GPU."""

Infos = dict[str, Any]


class PandaHoverVectorEnv(VectorEnv[Array, Array, Array]):
    """Many hover environments in one: :class:`~vinoreward_envs.panda_hover.PandaHoverEnv`, batched.

    ``gym.make_vec("PandaHoverRandom-v0", num_envs=4096, vectorization_mode="vector_entry_point")``
    puts a learned reward around it, and resets, see :func:`~vinoreward_envs.making.make_vec_env`;
    this is the scene, with a reward of its own.

    Actions, observations, rewards and infos are those of the scalar environment, one row each:
    environment ``i`` after ``reset(seed=s)`` is the scalar one after ``reset(seed=s + i)``,
    whatever ``num_envs`` is. Only ``motion="kinematic"`` and ``camera="fast"`` are batched. Images
    drawn on a GPU may differ from a processor's in pixels at edges.

    The caller resets (``AutoresetMode.DISABLED``) with ``reset(options={"reset_mask": mask})``,
    where the ``(num_envs,)`` bool mask is True; until then observations and :meth:`render` show
    what episodes ended with. ``"object_position"`` places the objects, ``(x, y)`` or one each.

    An environment whose action is NaN or infinite does not move and earns 0; its episode is
    truncated, and ``infos["invalid_action"]`` says where that happened. The others go on.

    Args:
        num_envs: how many.
        array: ``"numpy"`` or ``"torch"`` (float32, bool and uint8 tensors on ``device``).
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``: where scene and tensors are. On CUDA a step
            of tensors copies nothing to the host, nor does a reset whose mask is a tensor.
        threads: threads that draw on a processor; None is as many as there are cores.
        oracle: and all others, see :class:`~vinoreward_envs.panda_hover.PandaHoverEnv`.

    Raises:
        ConfigError: an argument that cannot work, or too little memory, as any later call.
        UnknownDeviceError: there is no such device.
        MissingExtraError: PyTorch or the camera's library is needed and not installed.
    """

    metadata = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 5,
        "autoreset_mode": AutoresetMode.DISABLED,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        array: Kind = "numpy",
        device: str = CPU,
        threads: int | None = None,
        oracle: bool = True,
        object_position: ObjectPosition = "fixed",
        mesh: Mesh | None = None,
        image_size: tuple[int, int] | None = None,
        observation: Literal["state", "pixels"] = "state",
        render_mode: Literal["rgb_array"] | None = None,
        success_hold_steps: int = 1,
        randomization: Ranges = None,
    ) -> None:
        self.num_envs = checked_count("num_envs", num_envs)
        check_choice("observation", observation, ("state", "pixels"))
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self.render_mode = render_mode
        position = checked_object_position(object_position)
        device = checked_device(device)
        # On a GPU all is tensors; NumPy arrays are copies of them.
        self._arrays = make_arrays(array)
        if device != CPU:
            self._arrays = make_arrays("torch", device)
        self._tensors = array == "torch"
        self._spec = CameraSpec(*checked_size(image_size), mesh=mesh or "20")
        self._pixels = observation == "pixels"
        if self._pixels or render_mode is not None:
            check_renderer("fast")
            if device != CPU:
                WarpDevice(device)
        self.randomization = randomization
        self._begun = False
        self._images: Array | None = None
        self.single_observation_space = observation_space(self._spec, position, pixels=self._pixels)
        self.single_action_space = gym.spaces.Box(-c.MAX_MOVE, c.MAX_MOVE, (2,), np.float32)
        with plain(self._arrays):
            self.scenes = HoverScenes(
                self.num_envs,
                arrays=self._arrays,
                camera=self._spec,
                threads=usable_cores() if threads is None else checked_count("threads", threads),
                on_device=not self._arrays.on_host and (device != CPU or STAYS_ON_CPU),
            )
            """Where grippers and objects are, and how they look."""
            hold = checked_count("success_hold_steps", success_hold_steps)
            self._task = HoverTask(self.scenes, position, oracle=oracle, hold_steps=hold)
            self._random = BatchedPCG64(self._arrays, self.num_envs)
            self.observation_space = batch_space(self.single_observation_space, self.num_envs)
            self.action_space = batch_space(self.single_action_space, self.num_envs)

    @property
    def image_scene(self) -> dict[str, str | int]:
        """What the image depends on; a wrapper compares it with its bundle's."""
        return self._spec.as_dict()

    @property
    def busy_cores(self) -> int:
        """Cores in use by other work: drawing uses that many threads fewer, but at least one."""
        return self.scenes.busy_cores

    @busy_cores.setter
    def busy_cores(self, count: int) -> None:
        self.scenes.busy_cores = count

    @property
    def randomization(self) -> DomainRandomization:
        """Ranges from which the episodes draw that begin from now on.

        Setting them takes what the argument takes, and raises the same errors.
        """
        return self._randomization

    @randomization.setter
    def randomization(self, value: Ranges) -> None:
        self._randomization = checked_randomization(value)

    @property
    def episode_params(self) -> NDArray[np.void]:
        """What each environment's episode drew, ``(num_envs,)`` with a field of float64 for each of
        the ranges': ``envs.episode_params["light"]``. A copy."""
        params = self.scenes.params
        drawn = nominal(self.num_envs) if params is None else np.array(to_numpy(params))
        return by_name(drawn)

    @property
    def generators(self) -> list[np.random.Generator]:
        """Of each environment, that with which it places the next object; a copy."""
        return self._random.generators()

    def set_generator(self, index: int, generator: np.random.Generator) -> None:
        """Let an environment place its next objects as this generator says, a PCG64."""
        self._random.set([index], [generator.bit_generator])

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, Infos]:
        """Start new episodes, in all environments or where ``options["reset_mask"]`` says.

        An integer ``seed`` seeds environment i with ``seed + i``. A list has a seed for each
        environment; None keeps its generator. Environments that are not reset ignore theirs.

        Raises:
            ConfigError: an unknown option.
            InputError: a wrong shape, no place for an object, or an invalid seed.
            ResetNeeded: a mask in the first reset, which starts all environments.
        """
        given = checked_options(options, {"reset_mask", "object_position"})
        with plain(self._arrays):
            mask = checked_mask(given.get("reset_mask"), self.num_envs, self._arrays)
            objects = None
            if given.get("object_position") is not None:
                objects = checked_objects(given["object_position"], self.num_envs)
            if not self._begun and not mask.all():
                raise ResetNeeded("Found a reset mask in the first reset; call reset() first.")
            self._seed(checked_seeds(seed, self.num_envs), mask)
            infos = self._task.begin(mask, objects, self._randomization, self._random.uniforms)
            if self._pixels:
                self._images = self.scenes.images(mask, self._images)
            self._begun = True
            infos = {key: values * mask for key, values in infos.items()}
            return self._observe(), self._given(infos, mask)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Infos]:
        """Move the grippers by ``(num_envs, 2)`` metres.

        Raises:
            InputError: actions of another shape, or no numbers.
            ResetNeeded: a step before the first reset.
        """
        if not self._begun:
            raise ResetNeeded("Found a step before the first reset; call reset() first.")
        with plain(self._arrays):
            moves, valid = checked_actions(actions, self.num_envs, self._arrays)
            rewards, success, truncated, infos = self._task.step(moves, valid)
            if self._pixels:
                self._images = self.scenes.images()
            given = self._given(infos, success | True)
            if not self._arrays.on_host or not valid.all():
                given["invalid_action"] = given["_invalid_action"] = self._out(~valid)
            rewards = self._out(rewards)
            if self._tensors:  # as learners in PyTorch have them
                rewards = rewards.float()
            return self._observe(), rewards, self._out(success), self._out(truncated), given

    def render(self) -> Array | None:
        """Return the ``(num_envs, H, W, 3)`` uint8 images; None without a render mode."""
        if self.render_mode is None:
            return None
        if not self._begun:
            raise ResetNeeded("Found an image asked for before the first reset; call reset().")
        with plain(self._arrays):
            return self._out(self.scenes.images())

    def close_extras(self, **kwargs: Any) -> None:
        """Free the cameras."""
        self.scenes.close()

    def _seed(self, seeds: list[int | None], mask: Array) -> None:
        """Seed generators where ``mask`` is True and a seed is given."""
        if any(seed is not None for seed in seeds):
            rows = [i for i in np.flatnonzero(to_numpy(mask)).tolist() if seeds[i] is not None]
            self._random.set(rows, (np.random.PCG64(seeds[i]) for i in rows))

    def _observe(self) -> Array:
        return self._out(self._task.observe() if self._images is None else self._images)

    def _out(self, values: Array) -> Array:
        """Return an array as the caller wants it."""
        return values if self._tensors else to_numpy(values)

    def _given(self, infos: Infos, mask: Array) -> Infos:
        """Return infos that are set where ``mask``, the masks each in memory of their own."""
        given: Infos = {}
        for key, values in infos.items():
            given[key] = self._out(values)
            given[f"_{key}"] = self._out(mask | False)
        return given
