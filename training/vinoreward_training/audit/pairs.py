"""Images of a success, and of the same scene after somebody removed or moved its cause."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vinoreward.errors import DatasetError
from vinoreward.images import read_image
from vinoreward_training.audit.checks import Check, Subject, share_check
from vinoreward_training.audit.interventions import STAY
from vinoreward_training.audit.progress import AS_MUCH, ProgressReport, ProgressRow
from vinoreward_training.data.dataset_files import images_below, inside, is_visible

BEFORE = "success"
"""Folder of the images of success; the others have images of the same names."""
SHOWN_NAMES = 10


@dataclass(frozen=True)
class PairRow:
    """Claims that stay when their cause is gone."""

    change: str
    """The folder's name, such as ``removed``."""
    pairs: int
    claimed: int
    """Pairs whose image of success is claimed."""
    stay: int
    """Those of them that are claimed after the change too."""

    def check(self) -> Check:
        """Return the check of claims that stay."""
        sentence = f"of {self.claimed} claims {self.stay} stay when the cause is {self.change}"
        return share_check(sentence, self.stay, self.claimed, STAY)


def compare_pairs(subject: Subject, folder: Path, progress: ProgressReport | None) -> list[PairRow]:
    """Score the pairs of a folder.

    Raises:
        DatasetError: there is no folder ``success``, no other, or no two images of one name.
    """
    names = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
    changes = [name for name in names if name != BEFORE and is_visible(name)]
    if BEFORE not in names or not changes:
        found = f"the folders {', '.join(names[:SHOWN_NAMES])}" if names else "no folders"
        more = " ..." if len(names) > SHOWN_NAMES else ""
        raise DatasetError(
            f"{folder} has {found}{more}. Expected {BEFORE}, with images of successes, and others "
            "such as removed or moved, with an image of the same name of the same scene without "
            "its cause."
        )
    rows, before = [], _by_name(folder, BEFORE)
    for change in changes:
        after = _by_name(folder, change)
        both = sorted(before.keys() & after.keys())
        if not both:
            raise DatasetError(
                f"no image in {folder / change} has the name of one in {folder / BEFORE}. "
                f"Expected pairs such as {BEFORE}/01.png and {change}/01.png."
            )
        claimed = stay = 0
        row = ProgressRow(f"{AS_MUCH} when the cause is {change}")
        for stem in both:  # one pair in memory at a time
            images = [read_image(inside(folder, each[stem]))[None] for each in (before, after)]
            success, changed = (subject.score(one) for one in images)
            if changed.rewarded[0]:
                cause = f"{change}: {stem}"
                subject.false_positives.add(images[1], changed.probability, cause)
            claimed += int(success.rewarded[0])
            stay += int(success.rewarded[0] and changed.rewarded[0])
            if success.rewarded[0]:
                row.add(changed.progress >= success.progress)
        if progress is not None:
            progress.rows.append(row)
        rows.append(PairRow(change, len(both), claimed, stay))
    return rows


def _by_name(folder: Path, part: str) -> dict[str, str]:
    """Return the images in a part of a folder by their paths in it without suffixes."""
    names = images_below(folder, part)
    return {str(Path(name).relative_to(part).with_suffix("")): name for name in names}
