"""Drawing, judging and rewarding a batch of hover environments without leaving a device.

Importing this imports torch.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from vinoreward.backends.cuda_graph import FiniteCheck, equal_pieces
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.on_device import DeviceClassifier
from vinoreward.rewards.success import RewardOptions
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
        self._rewards = DeviceReward(options, thresholds, count, device)
        self._made = _Made(spec, classifier, device, piece_of(count, device))
        self._check = FiniteCheck(device)
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
        self._check.check("network", "they earned no success")

    def begin(self, mask: Tensor) -> None:
        """See ``Judging``."""
        self._rewards.begin(mask)

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
    ) -> tuple[DeviceScores, Tensor | None]:
        """See ``Judging``."""
        odd = None
        if self._made.judges:
            log_odds, odd, drawn = self._judge(hover, pictures=pictures)
            finite = self._check.of(log_odds)
            # Infinity would be a sure success, and half precision overflows to it.
            probability = torch.sigmoid(log_odds).float().masked_fill(~finite, torch.nan)
        else:
            drawn = self.pictures_of(hover) if pictures else None
            probability = truth.float()
        return self._rewards.transition(valid, probability, own, odd), drawn

    def close(self) -> None:
        """Free camera and recorded work; may be called more than once."""
        self._made.close()

    def _judge(
        self, hover: BatchedHover, *, pictures: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return log-odds ``(N,)``, how odd the pictures are, and these if they are wanted."""
        kept = self._room() if pictures else None
        odds = torch.empty(self._count, dtype=torch.float64, device=self._device)
        odd: Tensor | None = None
        for piece in equal_pieces(self._count, self._made.size):
            drawn = self._draw(hover, piece)
            judged = self._made.classifier.judge(drawn)
            odds[piece] = judged.log_odds
            if judged.odd is not None:
                odd = torch.zeros_like(odds, dtype=torch.float32) if odd is None else odd
                odd[piece] = judged.odd
            if kept is not None:
                kept[piece] = drawn
        return odds, odd, kept

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
    def classifier(self) -> DeviceClassifier:
        classifier: Any = self._classifier
        return DeviceClassifier(classifier, self.size)

    def close(self) -> None:
        for name in ("camera", "classifier"):
            self.__dict__.pop(name, None)


def piece_of(count: int, device: str) -> int:
    """Return how many of N scenes are drawn and judged at once by a batch on a device."""
    return int(equal_pieces(count, CHUNK if device == CPU else PIECE)[0].stop)


class DeviceScores(NamedTuple):
    """What a step earned; tensors ``(N,)``, zero or False where nothing was scored."""

    rewards: Tensor
    """float64."""
    claimed: Tensor
    probability: Tensor
    """float32."""
    odd: Tensor | None


class DeviceReward:
    """:class:`~vinoreward.rewards.success.RewardCore` for rewards of claims, on a device.

    Args:
        options: ``reward_mode`` is ``"sparse"``, there is no guard of one's own, and ``on_ood`` is
            ``"withhold"`` or ``"ignore"``.
        thresholds: probability from which frames count, and from which they go on to count.
        num_envs: N.
        device: where the tensors are.
    """

    def __init__(
        self,
        options: RewardOptions,
        thresholds: tuple[float, float],
        num_envs: int,
        device: str,
    ) -> None:
        self._options = options

        def number(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((), value, dtype=dtype, device=device)

        self._enter, self._exit = (number(each, torch.float32) for each in thresholds)
        self._paid = number(options.success_reward, torch.float64)
        self._unpaid = number(options.step_reward, torch.float64)
        self._counter = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def begin(self, mask: Tensor) -> None:
        """Start an episode where ``mask`` is True."""
        self._counter = self._counter * ~mask

    def transition(
        self, mask: Tensor, probability: Tensor, env_rewards: Tensor, odd: Tensor | None
    ) -> DeviceScores:
        """Score the steps where ``mask``, bool, is True; all ``(N,)``.

        ``probability`` and ``odd`` are float32, ``env_rewards`` float; a NaN claims nothing.
        """
        options = self._options
        counts = mask & (probability >= torch.where(self._counter > 0, self._exit, self._enter))
        if odd is not None and options.on_ood == "withhold":
            counts &= ~(odd > 1.0)
        longer = (self._counter + 1).clamp(max=options.success_hold_steps)
        following = longer * counts
        self._counter = torch.where(mask, following, self._counter)
        claimed = mask & (self._counter >= options.success_hold_steps)
        own = options.env_reward_weight * env_rewards
        if options.success_replaces_env_reward:
            own = own.masked_fill(claimed, 0.0)
        rewards = torch.where(claimed, self._paid, self._unpaid) + own
        return DeviceScores(
            rewards.masked_fill(~mask, 0.0),
            claimed,
            probability.masked_fill(~mask, 0.0),
            None if odd is None else odd.masked_fill(~mask, 0.0),
        )
