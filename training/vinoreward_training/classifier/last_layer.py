"""The last layer of a frozen network, fitted on features of few images in seconds.

Logistic regression with balanced classes on images, changed copies and images of a failing camera.
Its strength of regularisation, and the scores that choose the threshold, are cross-validated over
episodes: no image is scored by a layer that was fitted on its episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vinoreward.errors import DatasetError
from vinoreward.rewards.classifier import sigmoid
from vinoreward_training.classifier.camera_failure import FAMILIES, SHARE, draw_frames
from vinoreward_training.classifier.corruptions import randomly_corrupted
from vinoreward_training.classifier.embeddings import Change, Embeddings
from vinoreward_training.classifier.evaluation import (
    Labels,
    log_loss,
)
from vinoreward_training.classifier.training import JITTER, augment, image_keys

FOLDS = 10
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Of regularisation, to choose from."""
COMPONENTS, SAMPLE = 128, 1000
"""Features count by their largest principal components, those of about so many rows."""

Floats = npt.NDArray[np.float64]
Images = npt.NDArray[np.uint8]


def _seed(image: Images) -> int:
    return int(image_keys(image[None])[0])


def _jittered(image: Images) -> Images:
    random = torch.Generator().manual_seed(_seed(image) >> 1)
    return np.asarray(augment(torch.from_numpy(image[None]), JITTER, random)[0])


def _corrupted(image: Images) -> Images:
    return np.asarray(randomly_corrupted(image[None], 1.0, np.random.default_rng(_seed(image)))[0])


def _of_failing_camera(image: Images) -> Images:
    seed = _seed(image)
    family, random = FAMILIES[seed % len(FAMILIES)], np.random.default_rng(seed)
    return np.asarray(draw_frames([family], image[None], np.zeros(1, np.int64), random)[0])


COPIES = (Change("jittered 1", _jittered), Change("corrupted 1", _corrupted))
"""Copies of each image, with its label."""
FAILING = Change("failing camera 1", _of_failing_camera)
"""Of each failure."""


@dataclass(frozen=True)
class LastLayer:
    """A linear function of features."""

    weight: Floats
    """(D,)."""
    bias: float
    log_odds: Floats | None
    """(N,) of each image by a layer that was not fitted on its episode; not calibrated. None: its
    label is in one episode only."""

    def score(self, features: npt.NDArray[np.float32]) -> Floats:
        """Return the log-odds (N,) of features (N, D)."""
        return np.asarray(features @ self.weight + self.bias)

    @property
    def logits(self) -> Floats:
        """:attr:`log_odds` as logits (N, 2)."""
        if self.log_odds is None:
            raise DatasetError(
                "the successes or the failures are all of one episode. Expected either label in "
                "two or more, as images of one resemble each other; add images of more episodes."
            )
        return np.stack([-self.log_odds / 2, self.log_odds / 2], axis=1)


@dataclass(frozen=True)
class OutOfFold:
    """Frames that a layer was fitted on, and their scores by layers that were not."""

    learned: Labels
    """Indices of the frames that it was fitted on, which choose the threshold."""
    tested: Labels
    """Of those that measure its rates; the same where there are few."""
    logits: tuple[Floats, Floats | None]
    """(N, 2) of both; None: to be scored by the layer."""

    @property
    def facts(self) -> dict[str, object]:
        """How the layer was fitted, for the report."""
        by = "the threshold"
        if self.logits[1] is not None:
            by += " and the rates on held-out frames"
        return {"cross-validated by episode": by}


@dataclass(frozen=True)
class _Rows:
    """What a layer is fitted on."""

    features: Floats
    """(M, D), scaled."""
    signs: Floats
    """(M,), 1 for success and -1 for failure."""
    failing: npt.NDArray[np.bool_]
    """(M,), of a failing camera."""

    def fit(self, used: npt.NDArray[np.bool_], strength: float) -> tuple[Floats, float]:
        """Return weights (D,) and bias, fitted on the rows ``used``, (M,) bool."""
        from scipy.optimize import minimize

        features, signs = self.features[used], self.signs[used]
        shares = np.zeros(len(signs))
        failing = self.failing[used]
        groups = (signs > 0, (signs < 0) & ~failing, failing)
        for group, share in zip(groups, (0.5, 0.5, SHARE), strict=True):
            shares[group] = share / max(1, group.sum())

        given = np.column_stack([features, np.ones(len(signs))])
        penalty = np.append(np.full(features.shape[1], strength), 0.0)  # none of the bias

        def loss(values: Floats) -> tuple[float, Floats]:
            margins = signs * (given @ values)
            slopes = -shares * signs * sigmoid(-margins)
            value = shares @ np.logaddexp(0, -margins) + penalty @ values**2 / 2
            return float(value), given.T @ slopes + penalty * values

        def curvature(values: Floats) -> Floats:
            chances = sigmoid(given @ values)
            return np.asarray((given.T * (shares * chances * (1 - chances))) @ given) + np.diag(
                penalty
            )

        start = np.zeros(given.shape[1])
        found: Any = minimize(loss, start, jac=True, hess=curvature, method="trust-exact")
        return found.x[:-1], float(found.x[-1])


def fit_last_layer(
    embeddings: Embeddings, images: Images, labels: Labels, episodes: Labels
) -> LastLayer:
    """Fit a layer on images (N, H, W, 3) uint8 with labels (N,), 1 for success, and episodes (N,).

    Both labels are there.
    """
    failures = np.flatnonzero(labels == 0)
    every = np.arange(len(labels))
    parts = [embeddings(images), *(embeddings(images, change) for change in COPIES)]
    parts.append(embeddings(images[failures], FAILING))
    of_image = np.concatenate([*[every] * (1 + len(COPIES)), failures])
    given = np.concatenate(parts).astype(np.float64)
    centre, spread = given[: len(labels)].mean(0), given[: len(labels)].std(0)
    scale = 1 / (np.maximum(spread, 1e-3 * spread.max() + 1e-9) * np.sqrt(given.shape[1]))
    scaled = (given - centre) * scale
    some = scaled[:: -(-len(scaled) // SAMPLE)]
    components = np.linalg.svd(some, full_matrices=False)[2][:COMPONENTS]
    failing = np.arange(len(given)) >= len(given) - len(failures)
    rows = _Rows(scaled @ components.T, np.where(labels[of_image] == 1, 1.0, -1.0), failing)
    folds = _folds(labels, episodes)
    tried = {one: _out_of_fold(rows, folds, of_image, labels, one) for one in STRENGTHS}
    losses = {one: log_loss(odds, labels) for one, odds in tried.items() if odds is not None}
    best = min(losses, key=losses.__getitem__, default=STRENGTHS[-2])
    weight, bias = rows.fit(np.ones(len(scaled), np.bool_), best)
    weight = weight @ components * scale
    return LastLayer(weight, bias - float(centre @ weight), tried[best])


def _folds(labels: Labels, episodes: Labels) -> Labels:
    """Return the fold (N,) of each image: episodes of a label take turns."""
    _, inverse = np.unique(episodes, return_inverse=True)
    successes = np.bincount(inverse, labels) / np.bincount(inverse)
    folds = np.empty(len(successes), np.int64)
    folds[np.argsort(successes, kind="stable")] = np.arange(len(successes)) % FOLDS
    return np.asarray(folds[inverse])


def _out_of_fold(
    rows: _Rows, folds: Labels, of_image: Labels, labels: Labels, strength: float
) -> Floats | None:
    """Return the log-odds (N,) of images by layers that were fitted on other folds.

    None if those have no image of a label.
    """
    odds = np.empty(len(labels))
    for fold in np.unique(folds):
        held_out = folds == fold
        if len(np.unique(labels[~held_out])) < 2:
            return None
        weight, bias = rows.fit(~held_out[of_image], strength)
        odds[held_out] = rows.features[: len(labels)][held_out] @ weight + bias
    return odds
