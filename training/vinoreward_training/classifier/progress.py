"""Progress towards success: what recordings say of it, how it is learned, and how well.

Progress is 1 at a success and 1 / horizon less for each step to it; at ``horizon`` steps and more
it is 0. The horizon is the same for all episodes, so that one that begins near success begins with
progress. A failure's steps to success are not known, but they are more than are recorded after it
(a right-censored time): its progress is at most what that leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.bundles.schema import Progress
from vinoreward.errors import DatasetError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.dataset_files import METADATA, Indices, number, read_metadata
from vinoreward_training.runs.report import Section, new_figure, save_figure

HORIZON_SHARE = 0.9
"""Share of the episodes whose way to success is not longer than the horizon."""
WEIGHT = 0.3
"""Of the loss, beside a cross-entropy: with 2 a classifier began to learn later, or not at all."""
CENSORED = 0.1
"""Weight of failures beside frames whose steps to success are known."""
SOFT = 0.1
"""Error from which the loss grows linearly."""
LEAST_SCALE = 0.01
APART = 0.1
"""Of the horizon: images of an episode that are nearer to each other than this say little of it."""
LEAST_RISING = 0.8
"""Share of the episodes whose progress rises, with 95 % confidence, below which there is a warning:
progress was not learned, or the episodes are too few to tell."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Targets:
    """What recordings say of the progress of N frames."""

    known: Floats
    """(N,) From 0 to 1; NaN where no success follows."""
    most: Floats
    """(N,) The largest that it can be; 1 where that is not known."""
    steps: Floats
    """(N,) To success; NaN where none follows."""
    horizon: float


def read_steps(dataset: Dataset) -> npt.NDArray[np.float64]:
    """Return (3, N) steps: to success, since the episode began, of the episode; NaN if unknown."""
    rows = {}
    if (dataset.folder / METADATA).is_file():
        rows = {row["file"]: row for row in read_metadata(dataset.folder)}
    known = [rows.get(file, {}) for file in dataset.files]
    names = ("to_success", "step", "steps")
    columns = np.array([[number(row.get(name, "")) for row in known] for name in names])
    columns[0, dataset.labels == 1] = 0.0
    return columns


def read_targets(dataset: Dataset, train: Indices) -> Targets:
    """Return the targets of a capture's frames; those of ``train`` choose the horizon.

    DatasetError if nothing tells how far success was.
    """
    steps, step, length = read_steps(dataset)
    ways, episodes = (step + steps)[train], dataset.episodes[train]
    # To an episode's first success: where success lasts, its later images would count as longer.
    known = episodes[np.isfinite(ways)]
    ways = np.array([np.nanmin(ways[episodes == episode]) for episode in np.unique(known)])
    horizon = float(np.quantile(ways, HORIZON_SHARE)) if len(ways) else 0.0
    if not (steps[train] > 0).any() or horizon <= 0:
        raise DatasetError(
            f"{dataset.folder} does not say how many steps before a success its images were taken. "
            "Expected a capture of episodes that end in success, which writes the column "
            f"to_success of {METADATA}; capture again, or leave `progress` out.",
            field="progress",
        )
    left = length - step  # at least so many steps were not enough
    most = np.nan_to_num(1 - left / horizon, nan=1.0)
    return Targets(
        np.clip(1 - steps / horizon, 0, 1).astype(np.float32),
        np.clip(most, 0, 1).astype(np.float32),
        steps.astype(np.float32),
        horizon,
    )


def progress_loss(found: Tensor, known: Tensor, most: Tensor) -> Tensor:
    """Return the loss of a column (N,): its error, and where that is unknown what is above most."""
    is_known = ~torch.isnan(known)
    error = torch.where(is_known, found - torch.nan_to_num(known), (found - most).clamp(min=0))
    weights = torch.where(is_known, 1.0, CENSORED)
    zero = torch.zeros_like(error)
    losses = nn.functional.smooth_l1_loss(error, zero, beta=SOFT, reduction="none")
    return WEIGHT * (weights * losses).mean()


def mean_error(found: Floats, known: Floats) -> float:
    """Return the mean error of progress (N,) where it is known."""
    return float(np.nanmean(np.abs(np.clip(found, 0, 1) - known)))


def calibrated(found: Floats, targets: Targets, part: Indices) -> Progress:
    """Return the line through a column (M,) of held-out frames that fits their progress best.

    It rises, so that what a network ranks higher stays higher, and is 1 at the median of successes.
    Each tenth of the progress counts as much as another: most frames are near success, and what a
    network is unsure of it guesses to be there too.
    """
    known = targets.known[part]
    seen = ~np.isnan(known)
    column, missing = found[seen].astype(np.float64), 1.0 - known[seen].astype(np.float64)
    below = np.median(column[missing == 0]) - column
    tenths = np.minimum(10 * missing, 9).astype(np.int64)
    weights = 1 / np.bincount(tenths)[tenths]
    scale = (weights * below * missing).sum() / (weights * below**2).sum()
    offset = 1 - scale * np.median(column[missing == 0])
    if scale < LEAST_SCALE:
        scale, offset = LEAST_SCALE, 0.0
    return Progress(horizon=targets.horizon, scale=float(scale), offset=float(offset))


@dataclass(frozen=True)
class Rise:
    """How well progress follows held-out episodes."""

    rising: int
    """Episodes whose last image has more progress than their first, of those whose images are at
    least ``APART`` of the horizon apart."""
    episodes: int
    error: float
    """Mean error of frames whose progress is known."""

    @property
    def least(self) -> float:
        """Lower 95 % bound of the share of rising episodes."""
        return clopper_pearson(self.rising, self.episodes, 0.95, "lower")[0]

    def __str__(self) -> str:
        said = (
            f"progress rises in {self.rising} of {self.episodes} held-out episodes (at least "
            f"{self.least:.0%}), mean error {self.error:.2f}"
        )
        if self.least >= LEAST_RISING:
            return said
        few = f"warning: perhaps in fewer than {LEAST_RISING:.0%}"
        return f"{said}; {few}; capture more, with --progress"


def extremes(steps: npt.NDArray[np.floating], episodes: Indices, horizon: float) -> Indices:
    """Return the frames (E, 2) with the most and the fewest of ``steps`` (N,) to success, of each
    episode where these are ``APART``; beyond the horizon progress is 0, however far it is."""
    steps, found = np.minimum(steps, horizon), []
    for episode in np.unique(episodes[~np.isnan(steps)]):
        members = np.flatnonzero((episodes == episode) & ~np.isnan(steps))
        first, last = members[steps[members].argmax()], members[steps[members].argmin()]
        if steps[first] - steps[last] >= APART * horizon:
            found.append((first, last))
    return np.array(found, np.int64).reshape(-1, 2)


def rise(found: Floats, targets: Targets, dataset: Dataset, part: Indices) -> Rise:
    """Return how progress (M,) of the frames of a held-out part follows its episodes."""
    first, last = extremes(targets.steps[part], dataset.episodes[part], targets.horizon).T
    rising = int((found[last] > found[first]).sum())
    return Rise(rising, len(first), mean_error(found, targets.known[part]))


def section(found: Floats, targets: Targets, part: Indices, rises: Rise, path: Path) -> Section:
    """Return the part of a report on progress (M,); its figure is saved as ``path``."""
    figure = new_figure()
    axes = figure.add_subplot()
    axes.plot(targets.steps[part], found, ".", color="#0068b5", alpha=0.4)
    axes.plot([0, targets.horizon], [1, 0], color="#999999", linestyle="--", label="wanted")
    axes.set(xlabel="steps to success", ylabel="progress", ylim=(-0.02, 1.02))
    axes.set_title("Progress of held-out frames")
    axes.grid(alpha=0.3)
    axes.legend()
    facts = {"held-out episodes": str(rises), "progress 0": f"{targets.horizon:g} steps before"}
    return Section("Progress", facts=facts, images=[save_figure(figure, path)])
