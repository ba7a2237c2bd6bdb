"""A classifier and its OOD detector for images that are torch tensors, where they are.

Importing this imports torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vinoreward.backends.base import Backend
from vinoreward.backends.cuda_graph import FiniteCheck, Replayed, equal_pieces
from vinoreward.backends.torch import TorchBackend
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import ConfigError
from vinoreward.rewards.ood import OodDetector
from vinoreward.rewards.prediction import Prediction, logit

PIECES = {"cpu": 64, "cuda": 1024}
"""Images that a device scores at once; a processor takes what its cache holds."""


class DeviceClassifier:
    """Scores images on the device where they are; the network is the given classifier's.

    An image whose score is close to the threshold gets the mean over it and its one-pixel
    translations, as :class:`~vinoreward.Classifier` does. Each call scores the translations of
    equally many images, the closest ones (:func:`scored_again`): to count those that need it, the
    host would have to wait for the device. If more need it, the others keep their own score.

    On CUDA the work on the pieces of the first batch is recorded once (a CUDA graph) and then
    replayed for pieces of their size.

    Args:
        backend: the torch backend, on CUDA or the CPU. It stays open.
        spec: the bundle's.
        thresholds: probabilities from which, and down to which, success is claimed.
        guard: the OOD detector, if one sees the images.

    Raises:
        ConfigError: another backend, or outputs that are no logits.
    """

    def __init__(
        self,
        backend: Backend,
        spec: BundleSpec,
        thresholds: tuple[float, float],
        guard: OodDetector | None,
    ) -> None:
        if not isinstance(backend, TorchBackend) or spec.output != "logits":
            raise ConfigError(
                f"found a classifier of the {backend.name} backend whose outputs are "
                f"{spec.output}. Expected the torch backend and logits to score tensors; give "
                "NumPy arrays."
            )
        self._module = backend.module
        self._success, self._temperature = spec.success_index, spec.decision.temperature
        self._band = spec.decision.translation_band
        entered, left = map(logit, thresholds)
        self._edges = [entered] if left == entered else [entered, left]
        self._most = PIECES[backend.device.lower()]
        device = torch.device(backend.device.lower())
        self._guard = None if guard is None else _DeviceGuard(guard, device)
        self._finite = FiniteCheck(device)
        self._piece: Replayed[tuple[Tensor, Tensor | None]] | None = None

    @torch.inference_mode(mode=False)  # a caller's mode can come and go
    @torch.no_grad()
    def predict(self, images: Tensor) -> Prediction:
        """Return what network and OOD detector say of ``(N, H, W, 3)`` uint8, in new memory.

        Nothing is checked, as the host would have to wait: where a network gives NaN or infinity
        the probability is NaN, and :meth:`check` tells.
        """
        pieces = equal_pieces(len(images), self._most)
        if self._piece is None:
            self._piece = Replayed((pieces[0].stop, *images.shape[1:]))
        odds = torch.empty(len(images), dtype=torch.float64, device=images.device)
        ood_score = None if self._guard is None else torch.empty_like(odds, dtype=torch.float32)
        for piece in pieces:
            odds[piece], strange = self._piece(self._predict, images[piece])
            if ood_score is not None and strange is not None:
                ood_score[piece] = strange
        # Infinity would be a sure success, and half precision overflows to it.
        finite = self._finite.of(odds)
        probability = torch.sigmoid(odds).float().masked_fill(~finite, torch.nan)
        return Prediction(probability, odds.float(), ood_score)

    def check(self) -> None:
        """Raise OutputError, once, if the network gave NaN or infinity; waits for the device."""
        self._finite.check("network", "they earned no success")

    @torch.no_grad()
    def _predict(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        ood_score = None if self._guard is None else self._guard.ood_score(images)
        own = self._module(images).double()
        odds = self._odds(own)
        if self._band:
            away = torch.stack([(odds - edge).abs() for edge in self._edges]).amin(0)
            rows = torch.topk(away, scored_again(len(odds)), largest=False).indices
            some = images[rows]
            left = torch.cat([some[:, :, 1:], some[:, :, -1:]], 2)
            right = torch.cat([some[:, :, :1], some[:, :, :-1]], 2)
            moved = self._module(torch.cat([left, right])).double().chunk(2)
            mean = self._odds((own[rows] + moved[0] + moved[1]) / 3)
            odds[rows] = torch.where(away[rows] < self._band, mean, odds[rows])
        return odds, ood_score

    def _odds(self, logits: Tensor) -> Tensor:
        scaled = logits / self._temperature
        others = [column for i, column in enumerate(scaled.unbind(1)) if i != self._success]
        return scaled[:, self._success] - torch.logsumexp(torch.stack(others), 0)


def scored_again(count: int) -> int:
    """Return how many of N images are scored again; of hovering arms about 5 % need it."""
    return min(count, max(64, count // 4))


class _DeviceGuard:
    """:class:`~vinoreward.rewards.ood.OodDetector` on a device."""

    def __init__(self, guard: OodDetector, device: torch.device) -> None:
        places = guard.places
        self._rows, self._step, self._count = places.rows, places.step, places.count

        def tensor(values: Any) -> Tensor:
            return torch.tensor(np.asarray(values), device=device)

        self._offset = tensor(places.offset.astype(np.int32))
        self._novel = tensor(guard.novel.astype(np.float32))
        self._down, self._across = tensor(places.down), tensor(places.across)
        self._rough = places.rough_count
        self._rough_down, self._rough_across = map(tensor, (places.rough_down, places.rough_across))
        self._usual, self._left = tensor(guard.usual), tensor(guard.left)
        self._limits = tensor(guard.limits[:2])

    def ood_score(self, images: Tensor) -> Tensor:
        looked = images[:, :: self._rows, :: self._step].to(torch.int32) >> 5
        number = (looked[..., 0] << 6) | (looked[..., 1] << 3) | looked[..., 2]
        novel = self._down @ self._novel[number + self._offset] @ self._across
        novel = novel.flatten(1)
        ood_score = (
            torch.stack([novel.sum(1) / self._count, novel.amax(1)], 1) / self._limits
        ).amax(1)
        if self._rough:
            green = images[:, :: self._rows, :, 1].to(torch.int16)
            bend = (2 * green[:, :, 1:-1] - green[:, :, 2:] - green[:, :, :-2]).abs()
            means = self._rough_down @ bend.to(torch.float32) @ self._rough_across
            off = torch.log1p(means.flatten(1)) @ self._left - self._usual
            ood_score = torch.maximum(ood_score, (off * off).sum(1).sqrt())
        return ood_score
