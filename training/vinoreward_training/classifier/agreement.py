"""How often a classifier claims what the judge does that labelled its images."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.rewards.calibration import clopper_pearson
from vinoreward_training.data.dataset import Dataset, Entry
from vinoreward_training.data.dataset_files import Indices, save_image
from vinoreward_training.data.tables import write_table
from vinoreward_training.runs.report import Section
from vinoreward_training.runs.run_folder import ensure_dir

DIFFERENCES = "differences"
"""Folder of the held-out images on which classifier and judge differ."""
SHOWN = 20
"""Of these in the report."""


@dataclass(frozen=True)
class JudgedLabels:
    """The labels that a judge gave to the images of a folder."""

    judge: str
    entries: tuple[Entry, ...]
    """As :func:`.load_dataset` takes them, without those that the judge abstained from."""
    facts: dict[str, Any]
    """For the report and the bundle."""


@dataclass(frozen=True)
class Agreement:
    """How often a classifier claims what its judge does, on frames that are new to it."""

    frames: int
    same: int
    episodes: int
    same_episodes: int
    """Those in which no frame differs."""

    @property
    def as_dict(self) -> dict[str, Any]:
        """Plain values, for ``metrics.agreement`` of a bundle."""
        low = clopper_pearson(self.same_episodes, self.episodes, side="lower")[0]
        return {**vars(self), "episodes_low": low}

    def __str__(self) -> str:
        """One sentence."""
        low = self.as_dict["episodes_low"]
        return (
            f"classifier and judge agree on {self.same} of {self.frames} held-out images "
            f"({self.same / max(1, self.frames):.1%}), and on all images in {self.same_episodes} "
            f"of {self.episodes} episodes (at least {low:.1%} of episodes, with 95 % confidence)"
        )


def compare_with_judge(
    dataset: Dataset, test: Indices, claims: npt.NDArray[np.bool_], folder: Path
) -> tuple[Agreement, Section]:
    """Return the agreement on the ``test`` frames, and its section of the report.

    The images that differ are written to ``folder``/differences, for vinoreward label. ``claims``
    (N,) are the classifier's of these frames.
    """
    shutil.rmtree(folder / DIFFERENCES, ignore_errors=True)  # of a run before
    differ = claims != (dataset.labels[test] == 1)
    episodes = dataset.episodes[test]
    every, wrong = len(np.unique(episodes)), len(np.unique(episodes[differ]))
    found = Agreement(len(test), int((~differ).sum()), every, every - wrong)
    rows = [
        {
            "image": f"{number:04d}.png",
            "file": dataset.files[frame],
            "episode": int(dataset.episodes[frame]),
            "judge": "success" if dataset.labels[frame] == 1 else "failure",
        }
        for number, frame in enumerate(test[differ].tolist())
    ]
    if rows:
        out = ensure_dir(folder / DIFFERENCES)
        for row, frame in zip(rows, test[differ], strict=True):
            save_image(out / str(row["image"]), dataset.images[frame])
        write_table(out / "differences.csv", list(rows[0]), rows)
    images = [folder / DIFFERENCES / str(row["image"]) for row in rows[:SHOWN]]
    text = f"{str(found).capitalize()}. Images on which they differ, as the judge labels them:"
    return found, Section("Agreement with the judge", text, rows[:SHOWN], images)
