"""Bounds of latent vectors, and a linear probe of the places in them.

A policy that sees the latent has to find gripper and object in it. The plainest measure of how hard
that is: a linear map from the latent to each place, fitted on training frames, tested on held-out
ones. Pure functions of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.errors import DatasetError

Floats = npt.NDArray[np.floating]
Floats32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Probe:
    """A fitted linear map."""

    weights: npt.NDArray[np.float64]
    """(D, P)."""
    offset: npt.NDArray[np.float64]
    """(P,)."""
    fitted_on: int
    """Frames that show the thing."""

    def predict(self, latents: Floats) -> npt.NDArray[np.float64]:
        """Return places (N, P) for latents (N, D)."""
        return np.asarray(latents.astype(np.float64) @ self.weights + self.offset)


@dataclass(frozen=True)
class ProbeError:
    """A probe's error on the held-out frames that show a thing."""

    name: str
    """Of the thing, e.g. ``"object"``."""
    r2: float
    """Explained share of the places' variance, summed over coordinates."""
    mean_mm: float
    """Mean distance between the place read and the true one."""
    p95_mm: float
    """95 % of the distances are below this."""
    chance_mm: float
    """Mean error of always answering the mean place."""
    frames: int
    fitted_on: int
    """Training frames that show it."""


def bounds(means: Floats32, std: Floats32) -> tuple[Floats32, Floats32]:
    """Return bounds (D,) of means (N, D), with room for other frames and for sampled vectors.

    ``std`` (D,) is the posterior's: of thousands of samples one is outside.
    """
    low, high = means.min(0), means.max(0)
    room = 0.25 * (high - low) + 4.0 * std
    return (low - room).astype(np.float32), (high + room).astype(np.float32)


def mean_std(log_variance: Floats32) -> Floats32:
    """Return the mean standard deviation (D,) of posteriors with log variances (N, D)."""
    return np.asarray(np.exp(0.5 * log_variance.astype(np.float64)).mean(0), dtype=np.float32)


def fit_probe(latents: Floats, places: Floats) -> Probe:
    """Fit the least-squares linear map, with an offset, from latents (N, D) to places (N, P).

    Places are in metres; frames where the thing is absent (NaN) are left out.
    """
    shown = np.isfinite(places).all(1)
    values, targets = latents[shown].astype(np.float64), places[shown].astype(np.float64)
    count, size = values.shape
    if count <= size:
        raise DatasetError(
            f"a linear probe of {size} latent numbers was given {count} frames whose state is "
            f"known. Expected more than {size}; capture more frames."
        )
    middle, target_middle = values.mean(0), targets.mean(0)
    # Columns of one size: a latent number that hardly moves must not count as rounding.
    spread = values.std(0)
    spread[spread == 0.0] = 1.0
    solution = np.linalg.lstsq((values - middle) / spread, targets - target_middle, rcond=1e-10)[0]
    weights = solution / spread[:, None]
    return Probe(weights, target_middle - middle @ weights, count)


def probe_error(probe: Probe, name: str, latents: Floats, places: Floats) -> ProbeError:
    """Compare what the probe reads from latents (N, D) with the true places (N, P) in metres."""
    shown = np.isfinite(places).all(1)
    truth = places[shown].astype(np.float64)
    if len(truth) == 0:
        raise DatasetError(
            f"no held-out frame shows the {name}. Expected some; capture more frames."
        )
    off = probe.predict(latents[shown]) - truth
    spread = truth - truth.mean(0)
    distances = np.linalg.norm(off, axis=1) * 1000.0
    variance = float((spread**2).sum())
    return ProbeError(
        name=name,
        r2=1.0 - float((off**2).sum()) / variance if variance > 0 else 0.0,
        mean_mm=float(distances.mean()),
        p95_mm=float(np.quantile(distances, 0.95)),
        chance_mm=float(np.linalg.norm(spread, axis=1).mean()) * 1000.0,
        frames=len(truth),
        fitted_on=probe.fitted_on,
    )


def probe_places(
    latents: Floats, places: Mapping[str, Floats], train: Indices, test: Indices
) -> list[ProbeError]:
    """Fit on the frames ``train`` and test on ``test``, of other episodes, each thing by itself.

    ``latents`` (N, D) are means; ``places`` are (N, P) metres by name, NaN where a thing is absent.
    """
    return [
        probe_error(fit_probe(latents[train], truth[train]), name, latents[test], truth[test])
        for name, truth in places.items()
    ]
