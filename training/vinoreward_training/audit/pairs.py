"""Images of a success, and of the same scene after somebody removed or moved its cause."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vinoreward.errors import DatasetError
from vinoreward.images import read_image
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.audit.battery import Battery, look
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
    stay_low: float
    """One-sided 95 % lower bound of their share."""


def pair_rows(classifier: Classifier, folder: Path, found: Battery) -> list[PairRow]:
    """Judge the pairs of a folder; add claims that stay to ``found``.

    Raises:
        DatasetError: there is no folder ``success``, no other, or no two images of one name.
    """
    names = sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
    changes = [name for name in names if name != BEFORE and is_visible(name)]
    if BEFORE not in names or not changes:
        raise DatasetError(
            f"{folder} has the folders {', '.join(names[:SHOWN_NAMES]) or 'none'}"
            f"{' ...' if len(names) > SHOWN_NAMES else ''}. Expected {BEFORE}, with "
            "images of successes, and others such as removed or moved, with an image of the "
            "same name of the same scene without its cause."
        )
    before = _by_name(folder, BEFORE)
    rows = []
    for change in changes:
        after = _by_name(folder, change)
        both = sorted(before.keys() & after.keys())
        if not both:
            raise DatasetError(
                f"no image in {folder / change} has the name of one in {folder / BEFORE}. "
                f"Expected pairs such as {BEFORE}/01.png and {change}/01.png."
            )
        first = kept = 0
        for stem in both:  # one pair in memory at a time
            images = [read_image(inside(folder, each[stem])) for each in (before, after)]
            claims, stays = (look(classifier, one[None]) for one in images)
            if stays.paid[0]:
                found.show(images[1][None], stays.probability, f"{change}: {stem}")
            first += int(claims.paid[0])
            kept += int(claims.paid[0] and stays.paid[0])
        low = clopper_pearson(kept, first, 0.95, "lower")[0]
        rows.append(PairRow(change, len(both), first, kept, low))
    return rows


def _by_name(folder: Path, part: str) -> dict[str, str]:
    """Return the images in a part of a folder by their paths in it without suffixes."""
    found: dict[str, str] = {}
    for one in images_below(folder, part):
        name = str(Path(one).relative_to(part).with_suffix(""))
        if name in found:
            raise DatasetError(
                f"{folder} has {found[name]} and {one}. Expected one image of that name; "
                "rename or remove the other."
            )
        found[name] = one
    return found
