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
class ProbeError:
    """A probe's error on the held-out frames that show a thing."""

    r2: float
    """Explained share of the places' variance, summed over coordinates."""
    mean_mm: float
    """Mean distance between the place read and the true one."""
    p95_mm: float
    """95 % of the distances are below this."""
    frames: int
    """How many show it."""


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


def probe_places(
    latents: Floats, places: Mapping[str, Floats], train: Indices, test: Indices
) -> dict[str, ProbeError]:
    """Fit on the frames ``train`` and test on ``test``, of other episodes, each thing by itself.

    ``latents`` (N, D) are means; ``places`` are (N, P) metres by name, NaN where a thing is absent.
    DatasetError if too few frames show a thing.
    """
    return {
        name: _probe(latents[train], truth[train], latents[test], truth[test])
        for name, truth in places.items()
    }


def _probe(latents: Floats, places: Floats, held_out: Floats, truth: Floats) -> ProbeError:
    shown, tested = np.isfinite(places).all(1), np.isfinite(truth).all(1)
    if shown.sum() <= latents.shape[1] or not tested.any():
        raise DatasetError(
            f"{shown.sum()} training frames and {tested.sum()} test frames show a thing whose "
            f"place is to be read from {latents.shape[1]} numbers. Expected more training frames "
            "than that, and some test frames; capture more."
        )
    weights = _fitted(latents[shown], places[shown])
    off = _with_ones(held_out[tested]) @ weights - truth[tested]
    variance = float(((truth[tested] - truth[tested].mean(0)) ** 2).sum())
    distances = np.linalg.norm(off, axis=1) * 1000.0
    return ProbeError(
        r2=1.0 - float((off**2).sum()) / variance if variance > 0 else 0.0,
        mean_mm=float(distances.mean()),
        p95_mm=float(np.quantile(distances, 0.95)),
        frames=len(distances),
    )


def _with_ones(latents: Floats) -> npt.NDArray[np.float64]:
    return np.concatenate([latents, np.ones((len(latents), 1))], axis=1, dtype=np.float64)


def _fitted(latents: Floats, places: Floats) -> npt.NDArray[np.float64]:
    """Return the least-squares map (D + 1, P) from latents (N, D) and a one to places (N, P)."""
    values = _with_ones(latents)
    # Columns of one size: a latent number that hardly moves must not count as rounding.
    sizes = np.linalg.norm(values, axis=0)
    sizes[sizes == 0.0] = 1.0
    solution = np.linalg.lstsq(values / sizes, places.astype(np.float64), rcond=1e-10)[0]
    return np.asarray(solution / sizes[:, None])
