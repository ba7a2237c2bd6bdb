"""The gates of INT8: does it decide, or encode, as FP32 does?

Pure functions of outputs. FP32 scores images in a band around the threshold again, see
:mod:`vinoreward.rewards.classifier`, so a decision flips only if INT8 is at least the band's width
on the wrong side. One half of the held-out frames chooses the band, the other half tests it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.golden import means, unit
from vinoreward.errors import QuantizationRefusedError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import threshold_distance

if TYPE_CHECKING:
    from vinoreward.bundles.schema import Encoding

MAX_SECOND_LOOKS = 0.25
"""Largest share of held-out frames that FP32 scores again; INT8 gains little above it."""
BOUNDARY = 1000
"""Frames closest to the threshold in the comparison; as many random ones are added."""
BAND_MARGIN = 1.25
"""Width of the band over the farthest flip: a few frames do not show the very farthest."""
NEARLY_ALL = 0.95
"""Quantile of the errors next to the threshold that the band covers at least."""
MAX_MOVED = 0.05
"""Largest share of held-out frames whose latent may move by more than one unit."""
MAX_FLIPS = 0.005
"""Largest share of decisions next to the threshold that may differ from FP32's."""

Floats = npt.NDArray[np.float64]
Outputs = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Flips:
    """Decisions that differ between two networks."""

    count: int
    frames: int
    """Frames compared."""
    high: float
    """One-sided 95 % Clopper-Pearson upper bound of the share."""

    @property
    def share(self) -> float:
        """Share of differing decisions."""
        return self.count / self.frames

    def __str__(self) -> str:
        return f"{self.count} of {self.frames} ({self.share:.2%}, at most {self.high:.2%})"


@dataclass(frozen=True)
class GateResult:
    """What the gate measured on the second half, on the worst backend."""

    band: float | None
    """Half-width of the second look in log-odds; None if INT8 needs none."""
    flips: Flips
    """With second looks, on the boundary-rich set."""
    alone: Flips
    """Without them, on the same frames."""
    looks_boundary: float
    """Share of second looks on the boundary-rich set."""
    looks_all: float
    """Share of second looks on all frames of the half."""
    by_backend: dict[str, Flips]
    """Each backend's flips with second looks."""

    @property
    def count(self) -> int:
        """Flips with second looks."""
        return self.flips.count

    @property
    def frames(self) -> int:
        """Frames compared."""
        return self.flips.frames

    @property
    def detail(self) -> dict[str, Any]:
        """What a bundle records besides the flips."""
        return {
            "flip_rate_upper": self.flips.high,
            "flips_without_second_look": self.alone.count,
            "flip_rate_without_second_look": self.alone.share,
            "second_looks_boundary_rich": self.looks_boundary,
            "second_looks_held_out": self.looks_all,
            "by_backend": {name: one.count for name, one in self.by_backend.items()},
        }

    def __str__(self) -> str:
        if self.band is None:
            return f"INT8 alone flips {self.flips} of the decisions and needs no second look"
        return (
            f"INT8 alone flips {self.alone} of the decisions next to the threshold; with FP32 "
            f"within {self.band:.3g} log-odds of it {self.flips}, for {self.looks_all:.1%} of all "
            "held-out frames"
        )


def count_flips(before: Bools, after: Bools) -> Flips:
    """Compare decisions (N,) with decisions (N,)."""
    count = int((before != after).sum())
    return Flips(count, len(before), clopper_pearson(count, len(before), 0.95, "upper")[1])


def boundary_rich(log_odds: Floats, threshold: float, *, boundary: int) -> npt.NDArray[np.int64]:
    """Choose the ``boundary`` frames closest to the threshold and as many random others.

    At most half of the frames count as close. ``log_odds`` are (N,) of the FP32 network.
    """
    order = np.argsort(np.abs(log_odds - threshold), kind="stable")
    close = min(boundary, len(order) // 2)
    others = np.random.default_rng([0, 0x1E8]).permutation(order[close:])
    return np.sort(np.concatenate([order[:close], others[:close]]))


def halves(episodes: npt.NDArray[np.int64]) -> Bools:
    """Return (N,) bool, True for the frames of a random half of the episodes (N,)."""
    numbers = np.random.default_rng([0, 0xBA2D]).permutation(np.unique(episodes))
    return np.isin(episodes, numbers[: len(numbers) // 2])


def choose_band(
    before: Floats, after: Mapping[str, Floats], threshold: float, *, boundary: int
) -> float:
    """Return the half-width that holds every flip of these frames, with room to spare.

    It also covers nearly every error (``NEARLY_ALL``) of the ``boundary`` frames closest to the
    threshold (at most half of all), as small sets may have no flip. Farther away INT8 saturates,
    which changes no decision. ``before`` and, per backend, ``after`` are (N,) log-odds.
    """
    close = np.argsort(np.abs(before - threshold), kind="stable")
    close = close[: max(1, min(boundary, len(before) // 2))]
    widest = 0.0
    for values in after.values():
        flipped = (before >= threshold) != (values >= threshold)
        farthest = float(np.abs(values[flipped] - threshold).max(initial=0.0))
        usual = float(np.quantile(np.abs(values - before)[close], NEARLY_ALL, method="higher"))
        widest = max(widest, farthest, usual)
    return BAND_MARGIN * widest


def gate(
    before: Floats,
    after: Mapping[str, Floats],
    first: Bools,
    threshold: float,
    *,
    max_second_looks: float = MAX_SECOND_LOOKS,
    boundary: int = BOUNDARY,
) -> GateResult:
    """Choose the band on the frames ``first`` (N,) bool and test it on the others, or refuse.

    INT8 decides alone, without a band, if its own flips are below the limit with confidence.

    Args:
        before: (N,) log-odds of FP32.
        after: those of INT8, per backend.
        first: which frames choose the band.
        threshold: in log-odds.
        max_second_looks: limit of the share of tested frames that FP32 scores again.
        boundary: frames closest to the threshold in the comparison.
    """
    rest = np.flatnonzero(~first)
    tested = rest[boundary_rich(before[rest], threshold, boundary=boundary)]
    decided = before >= threshold
    claims, frames = int(decided[tested].sum()), len(tested)
    if min(claims, frames - claims) <= MAX_FLIPS * frames:
        raise QuantizationRefusedError(
            f"FP32 claims success on {claims} of the {frames} frames to compare. Expected more "
            "frames of both decisions, or an INT8 network that decides all images alike would "
            "pass; the bundle stays FP32. Calibrate on images like those of the training."
        )

    def flips_of(decisions: Mapping[str, Bools]) -> tuple[dict[str, Flips], Flips]:
        flips = {
            name: count_flips(decided[tested], each[tested]) for name, each in decisions.items()
        }
        return flips, max(flips.values(), key=lambda each: each.share)

    claimed = {name: values >= threshold for name, values in after.items()}
    by_backend, alone = flips_of(claimed)
    if alone.high <= MAX_FLIPS:
        return GateResult(None, alone, alone, 0.0, 0.0, by_backend)
    chosen_on = {name: values[first] for name, values in after.items()}
    band = choose_band(before[first], chosen_on, threshold, boundary=boundary)
    looks = {name: threshold_distance(values, threshold) < band for name, values in after.items()}
    by_backend, flips = flips_of(
        {name: np.where(looks[name], decided, each) for name, each in claimed.items()}
    )
    looks_all = max(float(mask[rest].mean()) for mask in looks.values())
    if flips.share > MAX_FLIPS:
        counts = ", ".join(f"{name} {each.count}" for name, each in by_backend.items())
        raise QuantizationRefusedError(
            f"INT8 flips {flips} of the decisions although FP32 looks again within {band:.3g} "
            f"log-odds of the threshold ({counts}; alone {alone}). Expected at most "
            f"{MAX_FLIPS:.2%}; the bundle stays FP32. Train longer or on more frames."
        )
    if looks_all > max_second_looks:
        raise QuantizationRefusedError(
            f"INT8 is unsure (within {band:.3g} log-odds of the threshold) about {looks_all:.1%} "
            f"of the held-out frames. Expected at most {max_second_looks:.1%}, as FP32 has to look "
            "at them again; the bundle stays FP32. Train longer or on more frames, or add INT8 all "
            "the same with `int8=on`.",
            field="int8",
        )
    looks_boundary = max(float(mask[tested].mean()) for mask in looks.values())
    return GateResult(band, flips, alone, looks_boundary, looks_all, by_backend)


@dataclass(frozen=True)
class Moved:
    """How far INT8 latents are from the FP32 ones, on the worst backend."""

    count: int
    """Frames that moved by more than one unit in any dimension."""
    frames: int
    """Frames compared."""
    mean_units: float
    """Mean absolute difference over frames and dimensions."""
    unit: str
    by_backend: dict[str, int]
    """Each backend's ``count``."""
    band: None = None
    """FP32 never looks again."""

    @property
    def detail(self) -> dict[str, Any]:
        """What a bundle records besides the counts."""
        return {"unit": self.unit, "mean_units": self.mean_units, "by_backend": self.by_backend}

    def __str__(self) -> str:
        return (
            f"the latent of {self.count} of {self.frames} held-out frames moves by more than one "
            f"{self.unit} (at most {MAX_MOVED:.0%} may), by {self.mean_units:.3f} on average"
        )


def gate_latents(before: Outputs, after: Mapping[str, Outputs], encoding: Encoding) -> Moved:
    """Compare latents of FP32 with those of INT8, per backend; refuse if too many frames moved.

    All are a network's outputs, ``(N, D)`` or ``(N, 2 D)``.
    """
    latents = means(before, encoding)
    units = unit(encoding, latents)
    moved = {name: np.abs(means(one, encoding) - latents) / units for name, one in after.items()}
    counts = {name: int((each.max(axis=1) > 1.0).sum()) for name, each in moved.items()}
    worst = max(counts, key=lambda name: counts[name])
    found = Moved(
        count=counts[worst],
        frames=len(before),
        mean_units=float(moved[worst].mean()),
        unit="posterior standard deviation" if encoding.std else "twentieth of its range",
        by_backend=counts,
    )
    if found.count > MAX_MOVED * found.frames:
        raise QuantizationRefusedError(
            f"with INT8 on {worst} {found}. The bundle is unchanged and stays FP32. Train with a "
            "higher `beta`, which makes the posterior broader."
        )
    return found
