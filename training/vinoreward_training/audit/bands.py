"""False claims by kind of failure and by distance, beside the pooled rate that hides them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from vinoreward.rewards.calibration import clopper_pearson

BANDS = 6
"""About so many bands, up to the distance that half of the failures do not exceed."""


LEAST_SPAN = 1e-9
"""Metres; distances that differ by less are one."""


def nice_step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least ``span`` over ``BANDS``."""
    least = span / BANDS
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= least * (1 - 1e-9))


def bands(
    claims: npt.NDArray[np.bool_],
    failed: npt.NDArray[np.bool_],
    categories: npt.NDArray[np.str_],
    distances: npt.NDArray[np.float64],
) -> list[dict[str, object]]:
    """Return a row for all failures, each kind of them, and each band of distance.

    All are ``(N,)``; ``distances`` are metres from the centre of success, NaN where not recorded.
    A row has frames, false claims, and the one-sided 95 % Clopper-Pearson bound of their rate.
    """

    def row(name: str, mask: npt.NDArray[np.bool_]) -> dict[str, object]:
        count, wrong = int(mask.sum()), int((mask & claims).sum())
        return {
            "failures": name,
            "frames": count,
            "claimed": wrong,
            "rate at most": clopper_pearson(wrong, count, 0.95, "upper")[1],
        }

    rows = [row("all", failed)]
    kinds = np.unique(categories[failed])
    if len(kinds) > 1:
        rows += [row(str(kind), failed & (categories == kind)) for kind in kinds]
    known = failed & np.isfinite(distances)
    if known.any():
        first, half = float(distances[known].min()), float(np.median(distances[known]))
        # Not of a span below float precision, or an infinite one.
        if max(LEAST_SPAN, 1e-9 * abs(first), 1e-9 * abs(half)) < half - first < math.inf:
            step = nice_step(half - first)
            numbers = range(math.floor(first / step), math.ceil(half / step) + 1)
            # As they are written: 0.3, not 6 * 0.05.
            edges = [round(k * step, -math.floor(math.log10(step))) for k in numbers]
            for edge, end in itertools.pairwise(edges):
                inside = known & (distances >= edge) & (distances < end)
                if inside.any():
                    rows.append(row(f"{edge:.4g} to {end:.4g} m", inside))
            if (beyond := known & (distances >= edges[-1])).any():
                rows.append(row(f"{edges[-1]:.4g} m and more", beyond))
    return rows
