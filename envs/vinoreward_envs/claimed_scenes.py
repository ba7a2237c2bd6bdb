"""The scenes that a batch of hover environments claimed last, to be drawn again."""

from __future__ import annotations

import numpy as np

from vinoreward_envs.arrays import Array, Arrays
from vinoreward_envs.batched_hover import BatchedHover, hovering_joints
from vinoreward_envs.batched_pictures import BatchedPictures
from vinoreward_envs.batched_variation import Variation, looks_of
from vinoreward_envs.camera.spec import Pixels


class ClaimedScenes:
    """Keeps the scene of each environment's last claim; its picture would take 36,864 bytes.

    Args:
        arrays: the kind of arrays, and their device.
        hover: the scenes.
        steps: ``(N,)`` int64 steps that were made in each episode; read, never written.
        on_device: whether a look at the arrays makes the host wait; then arms are kept by their
            grippers' places, else by their joints.
    """

    def __init__(
        self, arrays: Arrays, hover: BatchedHover, steps: Array, *, on_device: bool
    ) -> None:
        self._arrays, self._hover, self._steps = arrays, hover, steps
        self._on_device = on_device
        self._variation: Variation | None = None
        self._claimed: Array = arrays.of(np.zeros(len(steps), np.bool_))
        self._kept = self._now()

    def vary(self, variation: Variation) -> None:
        """Remember from now on what episodes drew; in those so far nothing differed."""
        self._variation = variation
        self._kept += self._now()[len(self._kept) :]

    def keep(self, claimed: Array) -> None:
        """Remember the scenes where ``claimed``, ``(N,)`` bool, is True."""
        if not (self._on_device or claimed.any()):
            return
        self._claimed = self._claimed | claimed
        where, rows = self._arrays.xp.where, claimed[:, None]
        self._kept = [
            where(rows, now, before) for now, before in zip(self._now(), self._kept, strict=True)
        ]

    def picture(self, index: int, pictures: BatchedPictures) -> Pixels | None:
        """Return the ``(H, W, 3)`` picture of an environment's last claim; None before it."""
        if not self._claimed[index]:
            return None
        arm, place, *drew = (self._arrays.host(each[index])[None] for each in self._kept)
        looks = looks_of(pictures.spec, drew[0], drew[1][0]) if drew else None
        joints = hovering_joints(arm) if self._on_device else arm
        picture: Pixels = pictures.draw(joints, place, looks=looks)[0]
        return picture

    def _now(self) -> list[Array]:
        """Return ``(N, ...)`` arms, objects, and what the episodes drew with their steps."""
        hover = self._hover
        now = [hover.gripper if self._on_device else hover.joints, hover.objects]
        if self._variation is not None:
            now += [self._variation.values, self._steps[:, None]]
        return now
