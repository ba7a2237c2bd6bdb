"""Images of recorded episodes: which of a LeRobot dataset's become part of an image folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.errors import DatasetError
from vinoreward_envs.camera.spec import resized
from vinoreward_training.configs import CaptureConfig, ScoreConfig
from vinoreward_training.data.dataset_files import (
    NEAR_STEPS,
    Indices,
    Table,
    make_row,
    to_success,
)
from vinoreward_training.data.lerobot import REWARD, SUCCESS, LeRobotFolder, Rows
from vinoreward_training.data.tables import Row

FAILURES_PER_SUCCESS = 4
WITHOUT = "none"
"""As ``--label-column``: images without labels, for a state encoder."""
UNLABELLED = "unlabelled"
Outcomes = npt.NDArray[np.int8]
"""Of each image of an episode: 1 if it shows a success, 0 if not, -1 if that is not known."""


@dataclass(frozen=True)
class Labels:
    """Which column of a LeRobot dataset says what a success is, and how."""

    column: str
    frame: str
    """Which image shows the outcome of a row: its own (``same``) or the one after (``next``)."""

    def __str__(self) -> str:
        return f"{self.column} of the {self.frame} row"


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
    return Labels(column, "next" if column == SUCCESS else "same")


def read_outcomes(
    source: LeRobotFolder, labels: Labels | None
) -> tuple[list[Rows], list[Outcomes]]:
    """Return the rows and outcomes of each episode; DatasetError for labels that are not 0 or 1."""
    every = list(source.rows(labels.column if labels else None))
    if labels is not None:
        values = np.unique(np.concatenate([r.values for r in every if r.values is not None]))
        if not np.isin(values, (0.0, 1.0)).all():
            raise DatasetError(
                f"{labels.column} of {source.folder} has {len(values)} values from {values[0]:g} "
                f"to {values[-1]:g}. Expected 0 and 1 only; name another with "
                "--label-column, or take the images without labels: --label-column none."
            )
    return every, [_outcomes(labels, rows) for rows in every]


def _outcomes(labels: Labels | None, rows: Rows) -> Outcomes:
    outcomes = np.full(rows.episode.length, -1, dtype=np.int8)
    if labels is not None and rows.values is not None:
        success = rows.values > 0.5
        if labels.frame == "same":
            outcomes[:] = success
        else:
            outcomes[1:] = success[:-1]
    return outcomes


def choose_frames(
    frames: int, source: LeRobotFolder, labels: Labels | None
) -> list[tuple[Rows, Outcomes, dict[int, str]]]:
    """Return the rows of each episode, its outcomes, and the frames to take with their categories.

    At most ``frames`` in all; more of them only add images. DatasetError if all labels are of one
    kind.
    """
    every, outcomes = read_outcomes(source, labels)
    if labels is not None:
        counts = [sum(int((each == kind).sum()) for each in outcomes) for kind in (1, 0)]
        if 0 in counts:
            raise DatasetError(
                f"{source.folder} shows {counts[0]} successes and {counts[1]} failures by "
                f"{labels}. Expected both: a classifier is trained on successes and failures; try "
                "another --label-column, or give --label-column none for images without labels."
            )
    plan = plan_images(frames, outcomes)
    return list(zip(every, outcomes, plan, strict=True))


def fill(
    config: CaptureConfig,
    source: LeRobotFolder,
    plan: Sequence[tuple[Rows, Outcomes, dict[int, str]]],
    table: Table,
) -> Iterator[int]:
    """Add the chosen images that are not in the table; yield how many were added."""
    wanted: list[tuple[Rows, list[int]]] = []
    left: dict[tuple[int, int], Row] = {}
    for rows, outcomes, chosen in plan:
        number, frames = rows.episode.number, []
        for frame, category in sorted(chosen.items()):
            file = f"{number:06d}-{frame:06d}.png"
            row = make_row(file, category == "success", category, number, config.seed)
            row |= {"step": str(frame), "steps": str(rows.episode.length)}
            row["to_success"] = to_success(outcomes == 1, frame)
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


def plan_images(frames: int, outcomes: Sequence[Outcomes]) -> list[dict[int, str]]:
    """Return of each episode which images to take, with their category.

    At most ``frames`` in all, half of them successes where there are as many, and
    ``FAILURES_PER_SUCCESS`` times as many failures at most. Without a single success, images are
    taken without labels. Of a label that has more images than wanted, each episode gives as many as
    the others where it can, evenly spread over its time.
    """
    plan: list[dict[int, str]] = [{} for _ in outcomes]
    wins = [_spread_order(np.flatnonzero(each == 1)) for each in outcomes]
    if not any(map(len, wins)):
        _take(plan, [_spread_order(np.arange(len(each))) for each in outcomes], frames)
        return [dict.fromkeys(chosen, UNLABELLED) for chosen in plan]
    successes = _take(plan, wins, frames // 2)
    losses, categories = [], []
    for each in outcomes:
        won, lost = np.flatnonzero(each == 1), np.flatnonzero(each == 0)
        following = np.searchsorted(won, lost)
        gap = np.append(won, np.iinfo(np.int64).max)[following] - lost
        near, far = _spread_order(lost[gap <= NEAR_STEPS]), _spread_order(lost[gap > NEAR_STEPS])
        # By turns, as long as there are both.
        turns = np.concatenate([np.arange(len(near)) * 2, np.arange(len(far)) * 2 + 1])
        losses.append(np.concatenate([near, far])[np.argsort(turns, kind="stable")])
        other = "same_episode" if len(won) else "failed_episode"
        categories.append(
            dict.fromkeys(far.tolist(), other) | dict.fromkeys(near.tolist(), "near_miss")
        )
    failures: list[dict[int, str]] = [{} for _ in outcomes]
    _take(failures, losses, min(frames - successes, FAILURES_PER_SUCCESS * successes))
    return [
        chosen | {frame: names[frame] for frame in lost}
        for chosen, lost, names in zip(plan, failures, categories, strict=True)
    ]


def _spread_order(frames: Indices) -> Indices:
    """Return frames in an order of which every beginning is evenly spread."""
    bits = max(1, (len(frames) - 1).bit_length())
    keys = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(len(frames))]
    return frames[np.argsort(np.array(keys, dtype=np.int64), kind="stable")]


def _take(plan: Sequence[dict[int, str]], orders: Sequence[Indices], wanted: int) -> int:
    """Add the first frames of each order as successes, as equally many as can be.

    Returns how many there are in all, ``wanted`` at most.
    """
    sizes = np.array([len(order) for order in orders], dtype=np.int64)
    # By rounds: the first frame of each episode, then the second of each ...
    rounds = np.concatenate([np.arange(size) for size in sizes]) if len(sizes) else sizes
    owners = np.repeat(np.arange(len(sizes)), sizes)
    chosen = np.argsort(rounds, kind="stable")[:wanted]
    for owner, place in zip(owners[chosen].tolist(), rounds[chosen].tolist(), strict=True):
        plan[owner][int(orders[owner][place])] = "success"
    return len(chosen)
