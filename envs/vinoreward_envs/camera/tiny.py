"""The reference camera: PyBullet's TinyRenderer, in a physics server of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c
from vinoreward_envs.camera.spec import (
    Camera,
    CameraSpec,
    checked_scene,
    clip_matrix,
    view_matrix,
)
from vinoreward_envs.pybullet_import import import_pybullet, pybullet_data_folder

# Under the floor, far from the camera: nothing of it can be seen.
_AWAY: Final = (0.0, 0.0, -50.0)


class TinyCamera(Camera):
    """Draws with TinyRenderer: slow (tens of milliseconds), the definition of the picture.

    It always draws the full meshes; ``spec.mesh`` only says which network the pictures are for.
    """

    def __init__(self, spec: CameraSpec) -> None:
        """Load the scene.

        Raises:
            MissingExtraError: pybullet is not installed.
        """
        super().__init__(spec)
        self._bullet: Any = import_pybullet('camera="tiny"')
        self._client: int | None = self._bullet.connect(self._bullet.DIRECT)
        self._load(pybullet_data_folder())
        # TinyRenderer takes the matrices in OpenGL's column-major order.
        view = view_matrix()
        self._view = view.T.ravel().tolist()
        projection = clip_matrix(spec.height, spec.width) @ np.linalg.inv(view)
        self._projection = projection.T.ravel().tolist()

    def _load(self, folder: Path) -> None:
        def load(urdf: str, position: tuple[float, float, float], fixed: bool) -> int:
            body: int = self._bullet.loadURDF(
                f"{folder}/{urdf}",
                basePosition=position,
                useFixedBase=fixed,
                physicsClientId=self._client,
            )
            return body

        load(c.PLANE_URDF, c.PLANE_POSITION, True)
        self._arm = load(c.ARM_URDF, c.ARM_POSITION, True)
        load(c.TABLE_URDF, c.TABLE_POSITION, True)
        self._object = load(c.OBJECT_URDF, _AWAY, False)

    def render_batch(
        self, joints: ArrayLike, object_poses: ArrayLike, present: ArrayLike
    ) -> NDArray[np.uint8]:
        """Draw ``B`` scenes one after the other; see :class:`Camera`."""
        q, poses, shown = checked_scene(joints, object_poses, present)
        if self._client is None:
            raise ConfigError(
                "Found a closed camera; expected an open one. Make a new one with make_camera()."
            )
        pictures = np.empty((len(q), self.spec.height, self.spec.width, 3), dtype=np.uint8)
        for i in range(len(q)):
            self._place(q[i], poses[i] if shown[i] else None)
            _, _, rgba, _, _ = self._bullet.getCameraImage(
                self.spec.width,
                self.spec.height,
                self._view,
                self._projection,
                renderer=self._bullet.ER_TINY_RENDERER,
                physicsClientId=self._client,
            )
            shape = (self.spec.height, self.spec.width, 4)
            pictures[i] = np.asarray(rgba, dtype=np.uint8).reshape(shape)[..., :3]
        return pictures

    def _place(self, joints: NDArray[np.float64], pose: NDArray[np.float64] | None) -> None:
        for index, value in zip(c.JOINT_INDICES, joints.tolist(), strict=True):
            self._bullet.resetJointState(self._arm, index, value, physicsClientId=self._client)
        position, orientation = _AWAY, (0.0, 0.0, 0.0, 1.0)
        if pose is not None:
            x, y, z = pose[:3, 3].tolist()
            position, orientation = (x, y, z), quaternion(pose[:3, :3])
        self._bullet.resetBasePositionAndOrientation(
            self._object, position, orientation, physicsClientId=self._client
        )

    def close(self) -> None:
        """Stop the physics server."""
        if self._client is not None:
            self._bullet.disconnect(physicsClientId=self._client)
            self._client = None


def quaternion(rotation: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Return the unit quaternion x, y, z, w of a ``(3, 3)`` rotation."""
    r = rotation
    # The largest of the four squares (times four) divides safely.
    squares = [
        1.0 + r[0, 0] - r[1, 1] - r[2, 2],
        1.0 - r[0, 0] + r[1, 1] - r[2, 2],
        1.0 - r[0, 0] - r[1, 1] + r[2, 2],
        1.0 + r[0, 0] + r[1, 1] + r[2, 2],
    ]
    xy, xz, yz = r[0, 1] + r[1, 0], r[0, 2] + r[2, 0], r[1, 2] + r[2, 1]
    wx, wy, wz = r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]
    rows = [
        (squares[0], xy, xz, wx),
        (xy, squares[1], yz, wy),
        (xz, yz, squares[2], wz),
        (wx, wy, wz, squares[3]),
    ]
    row = np.array(rows[int(np.argmax(squares))])
    x, y, z, w = (row / np.linalg.norm(row)).tolist()
    return x, y, z, w
