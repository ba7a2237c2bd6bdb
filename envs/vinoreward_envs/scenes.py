"""Many hover scenes, arms over tables with an object each, and the task on them.

The gripper is where it was sent, to the micrometre that inverse kinematics leaves, so a step of the
state is a sum and a comparison. Joints are solved for images alone.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays, to_numpy
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.arrays import CPU, placed
from vinoreward_envs.camera.spec import CameraSpec, Pixels
from vinoreward_envs.objects import object_rest_pose
from vinoreward_envs.randomization import (
    COLUMNS,
    DRAWS,
    MAX_DELAY,
    DomainRandomization,
    by_name,
    nominal,
    normals,
    spread,
)

if TYPE_CHECKING:
    from vinoreward_envs.camera.fast import Appearance, FastCamera

PIECE: Final = 1024
"""Scenes that a GPU draws at once; a processor takes ``CHUNK``, which its cache holds."""
CHUNK: Final = 64
_LEAST: Final = 16
"""Scenes that are worth a thread of their own."""

ObjectPosition = Literal["fixed", "random"] | tuple[float, float]
Uniforms = Callable[[int, Array], Array]
"""Gives ``(N, count)`` numbers in [0, 1) of each environment's own, drawn where a mask is True."""
_TABLE: Final = 1 << 16
"""Normal numbers from which the noise of moves is read."""


def piece_of(count: int, device: str) -> int:
    """Return how many of N scenes a device draws at once."""
    return -(-count // -(-count // (CHUNK if device == "cpu" else PIECE)))


class HoverScenes(Closing):
    """N scenes as arrays, NumPy or torch, and their images.

    Args:
        count: N.
        arrays: of which kind, and where.
        camera: what images look like.
        threads: that draw on a processor, each with a camera of its own.
        on_device: images are drawn as tensors, without a look of the host at any number.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        arrays: Arrays = Arrays(),  # noqa: B008  (a tuple, which nobody can change)
        camera: CameraSpec | None = None,
        threads: int = 1,
        on_device: bool = False,
    ) -> None:
        self.count, self.arrays = count, arrays
        self.spec = CameraSpec() if camera is None else camera
        self.on_device = on_device
        self._device = CPU if arrays.on_host else str(arrays.device)
        low, high = np.array(c.WORKSPACE_LOW), np.array(c.WORKSPACE_HIGH)
        self._limits = placed(low, arrays), placed(high, arrays)
        self._edges = (
            placed(low - c.EDGE_TOLERANCE, arrays), placed(high + c.EDGE_TOLERANCE, arrays),
        )  # fmt: skip
        self._home = placed(np.array(c.HOVER_START), arrays)
        self.gripper: Array = placed(np.tile(c.HOVER_START, (count, 1)), arrays)
        """``(N, 2)`` x, y in metres."""
        self.height = c.HOVER_HEIGHT
        """z of all grippers in metres."""
        self.objects: Array = placed(np.full((count, 2), np.nan), arrays)
        """``(N, 2)`` x, y of the objects' bases in metres; NaN: there is none."""
        self.steps: Array = arrays.full(count, 0, "int64")
        """``(N,)`` steps that were made in each episode: each image has noise of its own."""
        self.params: Array | None = None
        """``(N, DRAWS)`` what each episode drew; None: nothing varies."""
        self.busy_cores = 0
        """Cores that someone else computes on: so many fewer threads are used, but at least one."""
        self._threads = threads
        self._appearance: Appearance | None = None
        self._cameras: list[FastCamera] = []
        self._every = placed(np.arange(count, dtype=np.int32), arrays)
        self._closed = False

    def home(self, mask: Array) -> None:
        """Bring the arms home, and to hover height, where ``mask``, ``(N,)`` bool, is True."""
        self.send(mask, self._home)

    def place(self, mask: Array, objects: Array) -> None:
        """Put objects at rest at ``(N, 2)`` metres where ``mask`` is True; NaN: take them away."""
        self.objects = self.arrays.xp.where(mask[:, None], objects, self.objects)

    def send(self, mask: Array, targets: Array, height: float = c.HOVER_HEIGHT) -> None:
        """Move grippers to ``(N, 2)`` metres where ``mask`` is True."""
        self.height = height
        self.gripper = self.arrays.xp.where(mask[:, None], targets, self.gripper)

    def move(self, moves: Array, asked: Array, error: Array | None = None) -> Array:
        """Move the grippers by ``(N, 2)`` metres where ``asked``; return where that is refused.

        A move is refused that would leave the workspace; that gripper stays where it is. ``error``
        is by how much each misses its end, which stays in the workspace; None: by nothing.
        """
        xp = self.arrays.xp
        target = self.gripper + moves
        outside = ((target < self._edges[0]) | (target > self._edges[1])).any(1)
        if error is not None:
            target = target + error
        self.send(asked & ~outside, xp.clip(target, *self._limits))
        return asked & outside

    def distance(self) -> Array:
        """Return the ``(N,)`` horizontal distances gripper to object in metres; NaN without."""
        away = self.gripper - self.objects
        return self.arrays.xp.hypot(away[:, 0], away[:, 1])

    def vary(self) -> None:
        """Let scenes differ from now on, as :meth:`set_params` says; at first they do not."""
        if self.params is None:
            self.params = placed(nominal(self.count), self.arrays)
            self._cameras.clear()
            self._appearance = None

    def set_params(self, mask: Array, params: Array) -> None:
        """Let scenes have these ``(N, DRAWS)`` parameters where ``mask`` is True."""
        self.params = self.arrays.xp.where(mask[:, None], params, self.params)
        if self._appearance is not None:
            self._appearance.set(mask, self.params)

    def images(self, mask: Array | None = None, before: Array | None = None) -> Array:
        """Return the ``(N, H, W, 3)`` uint8 images of the present states.

        Args:
            mask: draw only where it, ``(N,)`` bool, is True; None: all.
            before: the images elsewhere.
        """
        self._check_open()
        shape = (self.count, self.spec.height, self.spec.width, 3)
        if self.on_device:
            xp, device = self.arrays.xp, self.arrays.device
            empty = xp.empty(shape, dtype=xp.uint8, device=device)
            out = empty if before is None else before.clone()
            self._draw_on_device(out, mask)
            return out
        images = np.empty(shape, np.uint8) if before is None else np.array(to_numpy(before))
        self._draw(images, None if mask is None else np.flatnonzero(to_numpy(mask)))
        return self.arrays.xp.asarray(images)

    def joints(self) -> NDArray[np.float64]:
        """Return the ``(9,)`` joints of the first arm."""
        return inverse_kinematics([*self.gripper[0], self.height])

    def object_pose(self) -> NDArray[np.float64] | None:
        """Return the ``(4, 4)`` pose of the first object's base; None: there is none."""
        x, y = self.objects[0].tolist()
        drawn = by_name(nominal(1) if self.params is None else self.params)[0]
        turned = float(drawn["object_yaw"]), float(drawn["object_size"])
        return None if np.isnan(x) else object_rest_pose((x, y), *turned)

    def close(self) -> None:
        """Free the cameras; may be called more than once."""
        self._closed = True
        self._cameras.clear()
        self._appearance = None

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("This scene is closed; expected an open one. Make a new scene.")

    def _draw(self, images: Pixels, rows: NDArray[np.int64] | None) -> None:
        """Draw in pieces on threads; ``rows`` are the scenes that are drawn, None: all.

        Warp's kernels run on one core and leave Python's lock alone.
        """
        self._open_appearance().show(to_numpy(self.steps))
        gripper, objects = to_numpy(self.gripper), to_numpy(self.objects)
        which = np.arange(self.count) if rows is None else rows
        threads = max(1, self._threads - self.busy_cores)
        size = max(1, min(CHUNK, _LEAST * -(-len(which) // (_LEAST * threads))))
        pieces = [which[at : at + size] for at in range(0, len(which), size)]
        threads = min(threads, len(pieces))
        cameras = [self._camera(thread) for thread in range(threads)]

        def draw(thread: int) -> None:
            for some in pieces[thread::threads]:
                images[some] = cameras[thread].draw(gripper[some], self.height, objects[some], some)

        if threads == 1:
            draw(0)
        elif threads:
            with ThreadPoolExecutor(threads) as pool:  # not kept: a fork would leave it behind
                list(pool.map(draw, range(threads)))

    def _draw_on_device(self, out: Array, mask: Array | None) -> None:
        xp, size = self.arrays.xp, piece_of(self.count, self._device)
        self._open_appearance().show(self.steps)
        camera = self._camera(0)
        for start in range(0, self.count, size):
            # Pieces have one size, so the last two share scenes if they must.
            part = slice(min(start, self.count - size), min(start, self.count - size) + size)
            rows, some = self._every[part], None if mask is None else mask[part]
            if some is not None:
                rows = xp.where(some, rows, -1)
            images = camera.draw(self.gripper[part], self.height, self.objects[part], rows)
            if some is not None:
                images = xp.where(some[:, None, None, None], images, out[part])
            out[part] = images

    def _open_appearance(self) -> Appearance:
        if self._appearance is None:
            from vinoreward_envs.camera.fast import Appearance

            count = 0 if self.params is None else self.count
            tensors = self.on_device
            self._appearance = Appearance(self.spec, count, self._device, tensors=tensors)
            if count:
                self._appearance.set(self._every >= 0, self.params)
        return self._appearance

    def _camera(self, thread: int) -> FastCamera:
        """Return a thread's camera; made when it is first needed."""
        from vinoreward_envs.camera.fast import FastCamera

        size = min(self.count, CHUNK)
        if self.on_device:
            size = piece_of(self.count, self._device)
        while len(self._cameras) <= thread:
            camera = FastCamera(self.spec, appearance=self._open_appearance(), capacity=size)
            self._cameras.append(camera)
        return self._cameras[thread]


class HoverTask:
    """The hover task on N scenes: starts episodes, moves grippers and computes rewards.

    Single environments and batches share it, and pass on their arguments. ``scenes.steps`` counts
    the steps of each episode.
    """

    def __init__(
        self,
        scenes: HoverScenes,
        object_position: ObjectPosition,
        *,
        oracle: bool = True,
        hold_steps: int = 1,
    ) -> None:
        self.oracle, self._hold_steps = oracle, hold_steps
        self._scenes, self._arrays = scenes, scenes.arrays
        low, high = np.array(c.WORKSPACE_LOW), np.array(c.WORKSPACE_HIGH)
        low, high = low + c.OBJECT_MARGIN, high - c.OBJECT_MARGIN
        self._least, self._span = placed(low, self._arrays), placed(high - low, self._arrays)
        fixed = c.FIXED_OBJECT if object_position in ("fixed", "random") else object_position
        self._fixed = placed(np.array([fixed], np.float64), self._arrays)
        self._random = object_position == "random"
        self._held = self._arrays.full(scenes.count, 0, "int64")
        """Successes in a row."""
        self._ranges: DomainRandomization | None = None
        self._disturbs = False  # to look at a device's numbers, the host would have to wait

    def begin(
        self,
        mask: Array,
        objects: NDArray[np.float64] | None,
        randomization: DomainRandomization,
        uniforms: Uniforms,
    ) -> dict[str, Array]:
        """Start episodes where ``mask``, ``(N,)`` bool, is True; return infos, ``(N,)`` each.

        Args:
            mask: where.
            objects: ``(N, 2)`` places of objects; None: as configured.
            randomization: what episodes draw from, after the object's place.
            uniforms: gives random numbers.
        """
        scenes = self._scenes
        if objects is not None:
            places = placed(objects, self._arrays)
        elif self._random:
            places = self._least + self._span * uniforms(2, mask)
        else:
            places = self._fixed
        if randomization.varies or scenes.params is not None:
            self._vary(mask, randomization, uniforms)
        scenes.place(mask, places)
        scenes.home(mask)
        scenes.steps *= ~mask
        self._held = self._held * ~mask
        return self._truth()

    def step(self, actions: Array, valid: Array) -> tuple[Array, Array, Array, dict[str, Array]]:
        """Move the grippers, and pay for it.

        Args:
            actions: ``(N, 2)`` metres that are asked for.
            valid: ``(N,)`` where there are actions; elsewhere the arm stays, nothing is earned and
                the episode is truncated.

        Returns:
            Rewards of the scene's own, float64; where an episode ended with a success that it pays;
            where otherwise; and infos, ``(N,)`` each.
        """
        scenes, error = self._scenes, None
        xp = self._arrays.xp
        if self._disturbs:
            actions, error = self._late(actions), self._error()
        refused = scenes.move(actions, valid, error)
        scenes.steps += 1
        infos = self._truth() | {"refused": refused}
        rewards = xp.where(refused, c.REWARD_REFUSED, c.REWARD_STEP)
        success = refused & False
        if self.oracle:
            self._held = (self._held + 1) * (valid & infos["true_success"])
            infos["is_success"] = success = self._held >= self._hold_steps
            rewards = xp.where(success, c.REWARD_SUCCESS, rewards)
        truncated = ~success & (scenes.steps >= c.MAX_EPISODE_STEPS) | ~valid
        return xp.where(valid, rewards, 0.0), success, truncated, infos

    def _truth(self) -> dict[str, Array]:
        distance = self._scenes.distance()
        return {"true_success": distance <= c.SUCCESS_DISTANCE, "distance": distance}

    def observe(self) -> Array:
        """Return states as observations, ``(N, 2)`` or ``(N, 4)`` float32: grippers, objects."""
        scenes, xp = self._scenes, self._arrays.xp
        parts = [scenes.gripper]
        if self._random:
            parts.append(scenes.objects)
        return xp.asarray(xp.concatenate(parts, 1), dtype=xp.float32)

    def _vary(self, mask: Array, ranges: DomainRandomization, uniforms: Uniforms) -> None:
        scenes = self._scenes
        scenes.vary()
        if ranges != self._ranges:  # a copy to the device makes the host wait
            self._ranges = ranges
            self._low, self._width = (placed(ends[None], self._arrays) for ends in ranges.spans())
            # Episodes under way may have drawn from earlier ranges.
            if not self._disturbs and (ranges.action_delay[1] > 0 or ranges.action_noise[1] > 0):
                self._disturbs = True
                self._every = placed(np.arange(scenes.count), self._arrays)
                # Of each arm its last moves, by number of the step; what an earlier episode asked
                # for is never read.
                self._asked = placed(np.zeros((MAX_DELAY + 1, scenes.count, 2)), self._arrays)
                self._pair = placed(np.arange(2), self._arrays)
                self._noise = placed(normals(_TABLE), self._arrays)
        numbers = self._low
        if ranges.varies:
            numbers = spread(uniforms(DRAWS, mask), self._low, self._width)
        scenes.set_params(mask, numbers)

    def _late(self, moves: Array) -> Array:
        """Return the ``(N, 2)`` moves to make now; zeros until the first one is due."""
        xp, slots, steps = self._arrays.xp, MAX_DELAY + 1, self._scenes.steps
        delays = xp.asarray(self._drawn("action_delay"), dtype=xp.int64)
        self._asked[steps % slots, self._every] = moves
        due = self._asked[(steps - delays) % slots, self._every]
        return xp.where((steps >= delays)[:, None], due, 0.0)

    def _error(self) -> Array:
        """Return by how many metres ``(N, 2)`` each move misses its end."""
        xp, steps = self._arrays.xp, self._scenes.steps
        at = xp.asarray(_TABLE * self._drawn("action_noise_at"), dtype=xp.int64) + 2 * steps
        noise = self._noise[(at[:, None] + self._pair) % _TABLE]
        return self._drawn("action_noise")[:, None] * noise

    def _drawn(self, name: str) -> Array:
        params: Array = self._scenes.params
        return params[:, COLUMNS[name]]
