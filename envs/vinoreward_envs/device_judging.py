"""Drawing, judging and rewarding a batch of hover environments without leaving a device.

Importing this imports torch.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from vinoreward.arrays import Arrays
from vinoreward.backends.cuda_graph import equal_pieces
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.decision import Decision, RewardOptions, Scores
from vinoreward_envs.arrays import CPU
from vinoreward_envs.batched_hover import BatchedHover
from vinoreward_envs.batched_judging import Judging
from vinoreward_envs.camera.fast import CHUNK
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.device_camera import DeviceCamera
from vinoreward_envs.device_looks import VaryingLooks

PIECE: Final = 1024
"""Scenes that a GPU draws and judges at once; a processor takes fewer, which its cache holds."""


class DeviceJudging:
    """:class:`~vinoreward_envs.batched_judging.Judging` on one device, with torch tensors.

    N scenes are drawn and judged in equal pieces, with one camera and one classifier, made when
    they are first needed.

    Args:
        spec: what pictures look like.
        classifier: of the torch backend; None where the truth is claimed.
        options: of the rewards, see :class:`DeviceReward`.
        thresholds: probability from which frames count as success, and from which they go on to.
        device: ``"cpu"`` or ``"cuda:N"``.
        count: N.
    """

    on_device: ClassVar[bool] = True

    def __init__(
        self,
        spec: CameraSpec,
        classifier: Classifier | None,
        options: RewardOptions,
        thresholds: tuple[float, float],
        *,
        device: str,
        count: int,
    ) -> None:
        self._spec, self._device, self._count = spec, device, count
        arrays = Arrays(torch, torch.device(device))
        self._rewards = Decision(options, thresholds[0], count, thresholds[1], arrays)
        self._unended = arrays.full(count, False, "bool")
        self._made = _Made(spec, classifier, device, piece_of(count, device))
        self._looks: VaryingLooks | None = None

    def vary_looks(self) -> VaryingLooks:
        """See ``Judging``."""
        self._looks = VaryingLooks(self._spec, self._count, self._device)
        return self._looks

    def share(self, other: Judging) -> None:
        """See ``Judging``."""
        if isinstance(other, DeviceJudging):
            self._made = other._made

    def check(self) -> None:
        """See ``Judging``; waits for the device."""
        if self._made.judges:
            self._made.classifier.check()

    def begin(self, mask: Tensor) -> None:
        """See ``Judging``."""
        self._rewards.reset(mask)

    def pictures_of(self, hover: BatchedHover) -> Tensor:
        """See ``Judging``."""
        pictures = self._room()
        for piece in equal_pieces(self._count, self._made.size):
            pictures[piece] = self._draw(hover, piece)
        return pictures

    def redraw(self, hover: BatchedHover, pictures: Tensor, mask: Tensor) -> None:
        """See ``Judging``."""
        for piece in equal_pieces(self._count, self._made.size):
            some = mask[piece]
            drawn = self._draw(hover, piece, some)
            pictures[piece] = torch.where(some[:, None, None, None], drawn, pictures[piece])

    def score(
        self, hover: BatchedHover, valid: Tensor, own: Tensor, truth: Tensor, *, pictures: bool
    ) -> tuple[Scores, Tensor | None]:
        """See ``Judging``."""
        odd = None
        if self._made.judges:
            probability, odd, drawn = self._judge(hover, pictures=pictures)
        else:
            drawn = self.pictures_of(hover) if pictures else None
            probability = truth.float()
        scores = self._rewards.decide(
            valid, probability, probability, own, self._unended, ood_score=odd
        )
        return scores, drawn

    def close(self) -> None:
        """Free camera and recorded work; may be called more than once."""
        self._made.close()

    def _judge(
        self, hover: BatchedHover, *, pictures: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return probabilities ``(N,)``, how odd the pictures are, and these if they are wanted."""
        kept = self._room() if pictures else None
        probability = torch.empty(self._count, device=self._device)
        odd: Tensor | None = None
        for piece in equal_pieces(self._count, self._made.size):
            drawn = self._draw(hover, piece)
            judged = self._made.classifier.judge(drawn)
            probability[piece] = judged.probability
            if judged.odd is not None:
                odd = torch.zeros_like(probability) if odd is None else odd
                odd[piece] = judged.odd
            if kept is not None:
                kept[piece] = drawn
        return probability, odd, kept

    def _draw(self, hover: BatchedHover, piece: slice, wanted: Tensor | None = None) -> Tensor:
        places = hover.gripper[piece], hover.objects[piece]
        return self._made.camera.draw(*places, wanted, self._looks, piece.start)

    def _room(self) -> Tensor:
        shape = (self._count, self._spec.height, self._spec.width, 3)
        return torch.empty(shape, dtype=torch.uint8, device=self._device)


class _Made:
    """A camera and a classifier for pieces of ``size`` scenes, made when they are first needed."""

    def __init__(
        self, spec: CameraSpec, classifier: Classifier | None, device: str, size: int
    ) -> None:
        self._spec, self._classifier, self._device = spec, classifier, device
        self.size = size
        self.judges = classifier is not None

    @cached_property
    def camera(self) -> DeviceCamera:
        return DeviceCamera(self._spec, self._device, self.size)

    @cached_property
    def classifier(self) -> Classifier:
        classifier: Any = self._classifier
        return classifier  # type: ignore[no-any-return]

    def close(self) -> None:
        for name in ("camera", "classifier"):
            self.__dict__.pop(name, None)


def piece_of(count: int, device: str) -> int:
    """Return how many of N scenes are drawn and judged at once by a batch on a device."""
    return int(equal_pieces(count, CHUNK if device == CPU else PIECE)[0].stop)
