"""A camera of many hover scenes whose pictures are torch tensors where they are drawn.

Places of grippers and objects are tensors on the device, and so are the pictures: the arms are
posed, the scenes drawn and the pictures handed over without a copy to the host. Importing this
imports torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vinoreward_envs import constants as c
from vinoreward_envs.arm import (
    AFTER_ARM,
    CONSTANTS,
    COSINES,
    GRIPPER_ROTATION,
    SINES,
    hover_home_joints,
)
from vinoreward_envs.camera.baked import MESH_LINKS, scene_mesh
from vinoreward_envs.camera.fast import Frame, boxes, recorded, warp_module
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.device_looks import DeviceLooks, stream_of


class DeviceCamera:
    """Draws up to ``capacity`` scenes at a time of arms that hover, on one device.

    Args:
        spec: what pictures look like.
        device: ``"cpu"`` or ``"cuda:N"``.
        capacity: scenes.
    """

    def __init__(self, spec: CameraSpec, device: str, capacity: int) -> None:
        warp = self._warp = warp_module()
        from vinoreward_envs.camera import posing

        self._as_always = DeviceLooks(spec, capacity, device)
        self._frame = Frame(warp, spec, device, capacity, device == "cpu", self._as_always.pool)

        def tensor(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self._places = [tensor(capacity, 2, dtype=torch.float64) for _ in range(2)]
        self._wanted = tensor(capacity, dtype=torch.uint8)
        grippers, objects, wanted = map(warp.from_torch, (*self._places, self._wanted))

        def constant(values: NDArray[np.float64], dtype: Any) -> Any:
            return warp.array(values, dtype=dtype, device=device)

        joints = [posing.Joints(*values[: c.ARM_JOINTS]) for values in (
            hover_home_joints(), c.JOINT_LOW, c.JOINT_HIGH,
        )]  # fmt: skip
        arm = [constant(each, warp.mat44d) for each in (COSINES, SINES, CONSTANTS, AFTER_ARM)]
        parts = self._as_always.part(slice(0, capacity))
        bodies = warp.zeros((capacity, MESH_LINKS), dtype=warp.mat44d, device=device)
        reach = [
            grippers, objects, wanted, *joints, *arm, warp.mat33d(*GRIPPER_ROTATION.ravel()),
            parts["resting"], bodies,
        ]  # fmt: skip
        frame, corners = self._frame, boxes(scene_mesh(spec.mesh)).transpose(0, 2, 1)
        look = [
            bodies, wanted, parts["screens"], parts["standing"], parts["sizes"],
            constant(np.ascontiguousarray(corners), warp.vec4d),
            spec.width - 1.0, spec.height - 1.0,
            frame.matrices, frame.rotations, frame.eyes, frame.seen,
        ]  # fmt: skip
        self._launches = [
            (recorded(warp, kernel, (capacity, *dim), inputs, device), dim)
            for kernel, dim, inputs in (
                (posing.reach, (), reach),
                (posing.look, (MESH_LINKS,), look),
            )
        ]
        self._shown: tuple[DeviceLooks, slice] | None = None
        self.pictures: Tensor = warp.to_torch(frame.picture).view(
            capacity, spec.height, spec.width, 3
        )
        """``(capacity, H, W, 3)`` uint8, which :meth:`draw` overwrites."""

    def draw(
        self,
        grippers: Tensor,
        objects: Tensor,
        wanted: Tensor | None = None,
        looks: DeviceLooks | None = None,
        start: int = 0,
    ) -> Tensor:
        """Draw scenes of grippers and objects at ``(B, 2)`` metres, B at most ``capacity``.

        Args:
            grippers: float64, inside the workspace.
            objects: float64, the bases of objects at rest.
            wanted: ``(B,)`` bool, which to draw; the others show an empty table. None: all.
            looks: of scenes, of which those from ``start`` on are drawn; None: all look as always.
            start: the first one.

        Returns:
            ``(B, H, W, 3)`` uint8, part of :attr:`pictures`.
        """
        count = len(grippers)
        for own, given in zip(self._places, (grippers, objects), strict=True):
            own[:count] = given
        if wanted is None:
            self._wanted.fill_(1)
        else:
            self._wanted[:count] = wanted
        stream = stream_of(self._warp, self.pictures)
        shown, piece = looks, slice(start, start + count)
        if shown is None:
            shown, piece = self._as_always, slice(0, count)
        self._show(shown, piece)
        for launch, dim in self._launches:
            launch.set_dim((count, *dim))
            launch.launch(stream)
        self._frame.launch(count, stream)
        shown.add_noise(self._frame.picture, piece)
        return self.pictures[:count]

    def _show(self, looks: DeviceLooks, piece: slice) -> None:
        """Let the launches read how some scenes look."""
        if (looks, piece) == self._shown:
            return
        self._shown = looks, piece
        parts = looks.part(piece)
        self._frame.show(parts["looks"], *looks.pool)
        (reach, _), (look, _) = self._launches
        reach.set_param_by_name("resting", parts["resting"])
        for name in ("screens", "standing", "sizes"):
            look.set_param_by_name(name, parts[name])
