"""What latent vectors are like: their bounds, and a linear probe of how well they say where things
are.

A policy that sees the latent has to find gripper and object in it. The plainest measure of how hard
that is: a linear map from the latent to each place, fitted on training frames, judged on held-out
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
        places: npt.NDArray[np.float64] = latents.astype(np.float64) @ self.weights + self.offset
        return places


@dataclass(frozen=True)
class ProbeError:
    """How far a probe is off on held-out frames."""

    name: str
    """Of the thing, e.g. ``"object"``."""
    r2: float
    """Share of the places' variance that is explained, 1 for all; summed over coordinates."""
    mean_mm: float
    """Mean distance between the place read and the true one."""
    p95_mm: float
    """The distance that 95 % of the frames stay below."""
    chance_mm: float
    """Mean error of always answering the mean place: what no information gives."""
    frames: int
    """Held-out frames that show the thing."""
    fitted_on: int
    """Training frames that show it."""


def bounds(means: Floats32, std: Floats32) -> tuple[Floats32, Floats32]:
    """Return bounds (D,) that hold every vector seen, with room for what was not.

    Args:
        means: (N, D) of training and held-out frames.
        std: (D,) of the posterior; a sampled vector stays inside too, but for one in thousands.
    """
    low, high = means.min(0), means.max(0)
    room = 0.25 * (high - low) + 4.0 * std
    return (low - room).astype(np.float32), (high + room).astype(np.float32)


def mean_std(log_variance: Floats32) -> Floats32:
    """Return the mean standard deviation (D,) of posteriors with log variances (N, D)."""
    return np.asarray(np.exp(0.5 * log_variance.astype(np.float64)).mean(0), dtype=np.float32)


def fit_probe(latents: Floats, places: Floats) -> Probe:
    """Fit the least-squares linear map with an offset.

    Args:
        latents: (N, D).
        places: (N, P) metres; NaN where the thing is absent, which is left out.

    Raises:
        DatasetError: fewer than D + 1 frames, which no linear map could be fitted to.
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
    # Columns of one size: a latent number that hardly moves must not be taken for rounding.
    spread = values.std(0)
    spread[spread == 0.0] = 1.0
    solution = np.linalg.lstsq((values - middle) / spread, targets - target_middle, rcond=1e-10)[0]
    weights = solution / spread[:, None]
    return Probe(weights, target_middle - middle @ weights, count)


def judge_probe(probe: Probe, name: str, latents: Floats, places: Floats) -> ProbeError:
    """Compare what the probe reads from latents (N, D) with the true places (N, P) in metres.

    Raises:
        DatasetError: no frame shows the thing; its places are NaN where one does not.
    """
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
    latents: Floats, places: Mapping[str, Floats], train: Indices, held: Indices
) -> list[ProbeError]:
    """Fit on training frames and judge on held-out ones, for each thing by itself.

    Args:
        latents: (N, D), means without sampling.
        places: name to (N, P) metres; NaN where the thing is absent, which is left out.
        train: indices to fit on.
        held: indices to judge on; of other episodes.

    Raises:
        DatasetError: too few frames show a thing.
    """
    return [
        judge_probe(fit_probe(latents[train], truth[train]), name, latents[held], truth[held])
        for name, truth in places.items()
    ]
