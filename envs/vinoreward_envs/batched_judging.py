"""Drawing, judging and rewarding a batch of hover environments in the host's memory.

:mod:`vinoreward_envs.device_judging` does the same on a device.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.decision import Decision
from vinoreward.rewards.prediction import Judged
from vinoreward_envs.arrays import Array
from vinoreward_envs.batched_hover import BatchedHover
from vinoreward_envs.batched_pictures import BatchedPictures
from vinoreward_envs.batched_variation import SceneLooks
from vinoreward_envs.camera.looks import Looks
from vinoreward_envs.camera.spec import CameraSpec, Pixels


class StepScores(Protocol):
    """What a step earned; arrays ``(N,)``, zero or False where nothing was scored."""

    @property
    def rewards(self) -> Array:
        """float64."""

    @property
    def claimed(self) -> Array:
        """bool."""

    @property
    def probability(self) -> Array:
        """float32."""

    @property
    def odd(self) -> Array | None:
        """float32, above 1 where the picture is odd; None without a guard."""


class Judging(Protocol):
    """Draws scenes, judges them, and says what steps earn; arrays are of one kind throughout."""

    on_device: ClassVar[bool]
    """Whether arrays are on a device, where a look at their numbers makes the host wait."""

    def vary_looks(self) -> SceneLooks:
        """Return looks of the N environments, as which they are drawn from now on."""

    def share(self, other: Judging) -> None:
        """Use camera and networks of another one of the same arguments, but for N."""

    def check(self) -> None:
        """Raise OutputError if a network has given NaN or infinity, and no step could say so."""

    def begin(self, mask: Array) -> None:
        """Start an episode where ``mask``, ``(N,)`` bool, is True."""

    def pictures_of(self, hover: BatchedHover) -> Array:
        """Return the ``(N, H, W, 3)`` uint8 pictures of the present states."""

    def redraw(self, hover: BatchedHover, pictures: Array, mask: Array) -> None:
        """Draw the present states over ``(N, H, W, 3)`` uint8 pictures where ``mask``, ``(N,)``
        bool, is True."""

    def score(
        self, hover: BatchedHover, valid: Array, own: Array, truth: Array, *, pictures: bool
    ) -> tuple[StepScores, Array | None]:
        """Return what steps earn, and with ``pictures`` those of the present states.

        Args:
            hover: where grippers and objects are.
            valid: ``(N,)`` bool, where there was a step.
            own: ``(N,)`` float, what the scene pays for the move.
            truth: ``(N,)`` bool, what is claimed where no classifier judges.
            pictures: whether they are wanted.

        Raises:
            OutputError: the network gave NaN or infinity; on a device see :meth:`check`.
        """

    def close(self) -> None:
        """Free what was made; may be called more than once."""


class HostJudging:
    """:class:`Judging` with NumPy: cameras and networks on threads.

    Args:
        pictures: draws, and judges if there is a classifier; closed by its owner.
        classifier: the one that it has.
        core: says what steps earn.
        count: N.
    """

    on_device: ClassVar[bool] = False

    def __init__(
        self, pictures: BatchedPictures, classifier: Classifier | None, core: Decision, count: int
    ) -> None:
        self._pictures, self._judged, self._core = pictures, classifier is not None, core
        self._count = count
        self._looks: Looks | None = None

    def vary_looks(self) -> Looks:
        """See :class:`Judging`."""
        self._looks = Looks(self._pictures.spec, self._count)
        return self._looks

    def share(self, other: Judging) -> None:
        """See :class:`Judging`."""
        if isinstance(other, HostJudging):
            self._pictures = other._pictures

    def check(self) -> None:
        """Every step checks it."""

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """See :class:`Judging`."""
        self._core.reset(mask)

    def pictures_of(self, hover: BatchedHover) -> Pixels:
        """See :class:`Judging`."""
        return self._pictures.draw(hover.joints, hover.objects, looks=self._looks)

    def redraw(self, hover: BatchedHover, pictures: Pixels, mask: NDArray[np.bool_]) -> None:
        """See :class:`Judging`."""
        rows = np.flatnonzero(mask)
        pictures[mask] = self._pictures.draw(
            hover.joints[rows], hover.objects[rows], looks=self._looks, rows=rows
        )

    def score(
        self,
        hover: BatchedHover,
        valid: NDArray[np.bool_],
        own: NDArray[np.float64],
        truth: NDArray[np.bool_],
        *,
        pictures: bool,
    ) -> tuple[StepScores, Pixels | None]:
        """See :class:`Judging`."""
        drawn: Any = None
        if self._judged:
            spec = self._pictures.spec
            if pictures:
                drawn = np.empty((self._count, spec.height, spec.width, 3), np.uint8)
            judged = self._pictures.judge(hover.joints, hover.objects, drawn, looks=self._looks)
        else:
            drawn = self.pictures_of(hover) if pictures else None
            claim = truth.astype(np.float32)
            judged = Judged(claim, claim, None)
        no_end = np.zeros(self._count, np.bool_)
        scores = self._core.decide(
            valid, judged.probability, judged.log_odds, own, no_end, ood_score=judged.odd
        )
        return scores, drawn

    def close(self) -> None:
        """See :class:`Judging`."""


def taken_as_they_are(classifier: Classifier | None, spec: CameraSpec) -> bool:
    """Return whether a classifier takes a camera's pictures as they are, and gives logits."""
    if classifier is None:
        return True
    picture = classifier.picture
    size = (picture.height, picture.width) == (spec.height, spec.width)
    return size and picture.crop is None and classifier.bundle.spec.output == "logits"
