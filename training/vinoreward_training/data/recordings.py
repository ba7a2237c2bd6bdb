"""Images of recorded episodes: which of a LeRobot dataset's become part of an image folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.errors import DatasetError
from vinoreward_envs.camera.spec import resized
from vinoreward_training.configs import CaptureConfig, ScoreConfig
from vinoreward_training.data.dataset_files import NEAR_STEPS, Indices, Row, Table, make_row
from vinoreward_training.data.lerobot import REWARD, SUCCESS, LeRobotFolder, Rows

WITHOUT = "none"
"""As ``--label-column``: images without labels, for a state encoder."""
UNLABELLED = "unlabelled"
Outcomes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Labels:
    """Which column of a LeRobot dataset says what a success is, and how."""

    column: str
    above: float
    """A number above this is a success."""
    frame: str
    """Which image shows the outcome of a row: its own (``same``) or the one after (``next``)."""

    def __str__(self) -> str:
        return f"{self.column} > {self.above:g} of the {self.frame} row"


def labels_of(
    config: CaptureConfig | ScoreConfig, source: LeRobotFolder, *, needed: bool = True
) -> Labels | None:
    """Return where the labels are, None for ``--label-column none``.

    If they are not ``needed``, None also where no column was named and none has a usual name.
    """
    if config.label_column == WITHOUT:
        return None
    if not needed and config.label_column is None and not {SUCCESS, REWARD} & {*source.columns}:
        return None
    column = source.label_column(config.label_column)
    # LeRobot's evaluation writes next.success beside the image before the action; its recorder
    # for reward classifiers writes next.reward beside the image after it.
    frame = config.label_frame or ("next" if column == SUCCESS else "same")
    return Labels(column, 0.5 if config.label_above is None else config.label_above, frame)


def shown_by(
    config: CaptureConfig | ScoreConfig, source: LeRobotFolder, labels: Labels | None
) -> tuple[list[Rows], list[Outcomes]]:
    """Return the rows of each episode, and of each image whether it shows a success.

    That is 1 or 0, and -1 where it is not known. DatasetError if numbers have no limit.
    """
    every = list(source.rows(labels.column if labels else None))
    if labels is not None and config.label_above is None:
        values = np.unique(np.concatenate([r.values for r in every if r.values is not None]))
        if not np.isin(values, (0.0, 1.0)).all():
            raise DatasetError(
                f"{labels.column} of {source.folder} has {len(values)} values from {values[0]:g} "
                f"to {values[-1]:g}. Expected 0 and 1 only; say with --label-above which numbers "
                "are a success."
            )
    return every, [_outcomes(labels, rows) for rows in every]


def _outcomes(labels: Labels | None, rows: Rows) -> Outcomes:
    """Return of each image of an episode whether it shows a success; -1 where not known."""
    shown = np.full(rows.episode.length, -1, dtype=np.int8)
    if labels is not None and rows.values is not None:
        success = rows.values > labels.above
        if labels.frame == "same":
            shown[:] = success
        else:
            shown[1:] = success[:-1]
    return shown


def choose_frames(
    config: CaptureConfig, source: LeRobotFolder, labels: Labels | None
) -> list[tuple[Rows, dict[int, str]]]:
    """Return the rows of each episode, with the frames to take and their categories.

    Of a label that has more images than wanted, each episode gives as many as the others where it
    can, evenly spread over its time. More ``frames`` only add images.
    """
    every, shown = shown_by(config, source, labels)
    if labels is not None:
        _check_labels(config, labels, shown)
    return list(
        zip(every, plan_images(config.frames, shown, config.failures_per_success), strict=True)
    )


def fill(
    config: CaptureConfig,
    source: LeRobotFolder,
    plan: Sequence[tuple[Rows, dict[int, str]]],
    table: Table,
) -> Iterator[int]:
    """Add the chosen images that are not in the table; yield how many were added."""
    wanted: list[tuple[Rows, list[int]]] = []
    left: dict[tuple[int, int], Row] = {}
    for rows, chosen in plan:
        number, frames = rows.episode.number, []
        for frame, category in sorted(chosen.items()):
            file = f"{number:06d}-{frame:06d}.png"
            row = make_row(file, category == "success", category, number, config.seed)
            row |= {"step": str(frame), "steps": str(rows.episode.length)}
            if category == UNLABELLED:
                row |= {"file": f"{UNLABELLED}/{file}", "label": UNLABELLED}
            if row["file"] not in table.rows:
                left[number, frame] = row
                frames.append(frame)
        wanted.append((rows, frames))
    for episode, frame, image in source.images(wanted):
        image = image if config.image_size is None else resized(image, *config.image_size)
        table.add([(image, left.pop((episode.number, frame)))])
        yield 1


def _check_labels(
    config: CaptureConfig,
    labels: Labels,
    shown: Sequence[Outcomes],
) -> None:
    successes = sum(int((each == 1).sum()) for each in shown)
    failures = sum(int((each == 0).sum()) for each in shown)
    if not successes or not failures:
        other = "next" if labels.frame == "same" else "same"
        raise DatasetError(
            f"{config.from_lerobot} shows {successes} successes and {failures} failures by {labels}"
            ". Expected both: a classifier is trained on successes and failures; try --label-frame "
            f"{other}, another --label-column or --label-above, or give --label-column none for "
            "images without labels."
        )


def plan_images(frames: int, shown: Sequence[Outcomes], ratio: int) -> list[dict[int, str]]:
    """Return of each episode which images to take, with their category.

    At most ``frames`` in all, half of them successes where there are as many, and ``ratio`` times
    as many failures at most. Without a single success, images are taken without labels.
    """
    plan: list[dict[int, str]] = [{} for _ in shown]
    wins = [_spread(np.flatnonzero(each == 1)) for each in shown]
    if not any(map(len, wins)):
        return [
            dict.fromkeys(order[:count].tolist(), UNLABELLED)
            for order, count in _shared([_spread(np.arange(len(e))) for e in shown], frames)
        ]
    successes = min(frames // 2, sum(map(len, wins)))
    for chosen, (order, count) in zip(plan, _shared(wins, successes), strict=True):
        chosen |= dict.fromkeys(order[:count].tolist(), "success")
    losses, categories = [], []
    for each in shown:
        won, lost = np.flatnonzero(each == 1), np.flatnonzero(each == 0)
        following = np.searchsorted(won, lost)
        gap = np.append(won, np.iinfo(np.int64).max)[following] - lost
        near, far = _spread(lost[gap <= NEAR_STEPS]), _spread(lost[gap > NEAR_STEPS])
        # By turns, as long as there are both.
        turns = np.concatenate([np.arange(len(near)) * 2, np.arange(len(far)) * 2 + 1])
        losses.append(np.concatenate([near, far])[np.argsort(turns, kind="stable")])
        other = "same_episode" if len(won) else "failed_episode"
        categories.append({int(f): "near_miss" for f in near} | {int(f): other for f in far})
    failures = min(frames - successes, ratio * successes)
    for chosen, names, (order, count) in zip(
        plan, categories, _shared(losses, failures), strict=True
    ):
        chosen |= {frame: names[frame] for frame in order[:count].tolist()}
    return plan


def _spread(frames: Indices) -> Indices:
    """Return frames in an order of which every beginning is evenly spread."""
    bits = max(1, (len(frames) - 1).bit_length())
    keys = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(len(frames))]
    return frames[np.argsort(np.array(keys, dtype=np.int64), kind="stable")]


def _shared(orders: Sequence[Indices], wanted: int) -> list[tuple[Indices, int]]:
    """Return each order with how many it gives: ``wanted`` in all, as equal as can be."""
    sizes = np.array([len(order) for order in orders], dtype=np.int64)
    low, high = 0, int(sizes.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if np.minimum(sizes, middle).sum() <= wanted:
            low = middle
        else:
            high = middle - 1
    counts = np.minimum(sizes, low)
    more = np.flatnonzero(sizes > low)[: max(0, wanted - int(counts.sum()))]
    counts[more] += 1
    return list(zip(orders, counts.tolist(), strict=True))
