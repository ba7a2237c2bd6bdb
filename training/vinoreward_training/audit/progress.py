"""Whether progress falls when success goes away, and does not rise while nothing happens.

A frozen camera needs no test of it: the same image has the same progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from vinoreward_training.audit.checks import Check, Claims, Subject, share_check
from vinoreward_training.classifier.corruptions import CORRUPTIONS, randomly_corrupted
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.dataset_files import Indices

WRONG = 0.05
"""Largest share of claims, episodes or still images whose progress may be wrong."""
LEAST_RISE = 0.1
"""A smaller one says nothing: it pays less than a tenth of a success, and a training takes an error
of so much for small."""
SHOWN = 8
"""Times that a still image is shown again."""
AS_MUCH = "claims have as much progress"
_MILD = {"less light": (0.85, 1), "more light": (1, 1.15), "JPEG": (50, 100), "noise": (0, 5)}
AT_REST = tuple(replace(one, trained=_MILD[one.name]) for one in CORRUPTIONS if one.name in _MILD)
"""What changes in images of a still scene: up to an audit's mildest strengths."""


@dataclass
class ProgressRow:
    """How often progress was wrong in one test."""

    test: str
    """What is counted, such as ``claims have as much progress after this: cube removed``."""
    of: int = 0
    wrong: int = 0

    def add(self, wrong: Claims) -> None:
        """Count more (N,)."""
        self.of += len(wrong)
        self.wrong += int(wrong.sum())


@dataclass
class ProgressReport:
    """How often progress was wrong."""

    episodes: int
    """Compared: new to the network, with images farther from success and closer to it."""
    rows: list[ProgressRow]

    def checks(self) -> Iterator[Check]:
        """Yield a check of each test."""
        for row in self.rows:
            sentence = f"{row.wrong} of {row.of} {row.test}; at most {WRONG:.0%} may"
            yield share_check(sentence, row.wrong, row.of, WRONG, measure=row.test)

    @property
    def note(self) -> str:
        """How much this says."""
        return f"Progress was compared in {self.episodes} episodes that come closer to success."


def compare_progress(
    subject: Subject, dataset: Dataset, allowed: Claims, sample: Indices, horizon: float
) -> ProgressReport:
    """Compare progress in episodes of allowed frames (N,), and of a sample's failures at rest."""
    # PyTorch takes seconds to import.
    from vinoreward_training.classifier.progress import extremes, read_steps

    random = np.random.default_rng([subject.seed, 0x9206])
    steps = np.where(allowed, read_steps(dataset)[0], np.nan)
    ends = extremes(steps, dataset.episodes, horizon)
    far, near = random.permutation(ends)[: len(sample)].T
    farther, closer = (subject.score(dataset.images[one]).progress for one in (far, near))
    backwards = ProgressRow("episodes have as much progress where they are farther from success")
    backwards.add(farther >= closer)

    failures = dataset.images[sample[dataset.labels[sample] == 0]]
    first, rises = subject.score(failures).progress, np.zeros(len(failures), np.bool_)
    for _ in range(SHOWN):
        shown = randomly_corrupted(failures, 1.0, random, dataset.views, AT_REST)
        rises |= subject.score(shown).progress > first + LEAST_RISE
    still = ProgressRow(f"still images gain more than {LEAST_RISE:g} progress when shown again")
    still.add(rises)
    return ProgressReport(len(far), [backwards, still])
