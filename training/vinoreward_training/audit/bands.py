"""False claims by kind of failure and by distance, which a pooled rate hides."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from vinoreward.rewards.calibration import clopper_pearson

BANDS = 6
"""About so many bands, up to the distance that half of the failures do not exceed."""
LEAST_WIDTH = 1e-9
"""Distances that differ by less, in metres or as a share of them, are one."""


def nice_step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least ``span`` over ``BANDS``."""
    least = span / BANDS
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= least * (1 - 1e-9))


def bands(
    claims: npt.NDArray[np.bool_], failed: npt.NDArray[np.bool_],
    categories: npt.NDArray[np.str_], distances: npt.NDArray[np.float64],
) -> list[dict[str, object]]:  # fmt: skip
    """Return a row for all failures, each kind of them, and each band of distance.

    All are ``(N,)``; ``distances`` are metres from the centre of success, NaN where not recorded.
    A row has frames, false claims, and the one-sided 95 % Clopper-Pearson bound of their rate.
    """
    groups = {"all": failed}
    kinds = np.unique(categories[failed])
    if len(kinds) > 1:
        groups |= {str(kind): failed & (categories == kind) for kind in kinds}
    known = failed & np.isfinite(distances)
    edges = _edges(distances[known])
    for edge, end in itertools.pairwise([*edges, math.inf]):
        name = f"{edge:.4g} m and more" if end == math.inf else f"{edge:.4g} to {end:.4g} m"
        inside = known & (distances >= edge) & (distances < end)
        groups |= {name: inside} if inside.any() else {}
    rows: list[dict[str, object]] = []
    for name, group in groups.items():
        wrong, frames = int((group & claims).sum()), int(group.sum())
        high = clopper_pearson(wrong, frames, 0.95, "upper")[1]
        row = {"failures": name, "frames": frames, "claimed": wrong, "rate at most": f"{high:.2%}"}
        rows.append(row)
    return rows


def _edges(distances: npt.NDArray[np.float64]) -> list[float]:
    """Return where the bands begin; none if the distances hardly differ."""
    if not len(distances):
        return []
    first, half = float(distances.min()), float(np.median(distances))
    least = LEAST_WIDTH * max(1.0, abs(first), abs(half))
    if not least < half - first < math.inf:
        return []
    step = nice_step(half - first)
    numbers = range(math.floor(first / step), math.ceil(half / step) + 1)
    # As they are written: 0.3, not 6 * 0.05.
    return [round(k * step, -math.floor(math.log10(step))) for k in numbers]
