"""Labels by keys: a dataset that is whole after each, and grows when its folder is named again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.files import write_json
from vinoreward_training.data.dataset_files import (
    ABOUT,
    Table,
    images_below,
    inside,
    make_row,
    read_about,
)
from vinoreward_training.runs.run_folder import ensure_dir, lock_folder
from vinoreward_training.watch.cameras import Image


class Clicks:
    """Labelled images of a camera.

    Args:
        folder: made with the first label, or one that holds the labels of an earlier session.
        camera: what gives the images; recorded as their scene.

    Raises:
        ConfigError: the folder holds something else.
        RunFolderError: another process labels in it.
    """

    def __init__(self, folder: Path, camera: str) -> None:
        self.folder = folder
        known = read_about(folder)
        if "clicks" not in known and folder.is_dir() and (known or images_below(folder)):
            raise ConfigError(
                field="out",
                value=str(folder),
                expected="a new folder, or one with labels of vinoreward watch",
            )
        self._about = {"scene": known.get("scene") or {"camera": camera}, "clicks": True}
        self._lock: IO[bytes] | None = lock_folder(folder) if folder.is_dir() else None
        self._table = Table(folder)
        rows = self._table.rows.values()
        self.first_episode = max((int(row["episode"]) + 1 for row in rows), default=0)
        """Number of this session's first episode."""
        self._order: list[str] = []

    @property
    def counts(self) -> tuple[int, int]:
        """Successes and failures in the folder."""
        return self._table.count("success"), self._table.count("failure")

    def add(self, image: Image, success: bool, episode: int, number: int) -> str:
        """Label image ``number`` of an episode, ``(H, W, 3)`` uint8 RGB; return what was done.

        A second label of an image takes the place of the first. RunFolderError if the disk is full,
        or another process labels in the folder.
        """
        if self._lock is None:
            self._lock = lock_folder(ensure_dir(self.folder))
            if read_about(self.folder):
                raise RunFolderError(
                    f"another process has labelled in {self.folder} since this one began. Expected "
                    "one at a time; start again, or choose another folder with --out."
                )
        if not self._order:
            write_json(self.folder / ABOUT, self._about)
        file = f"{episode:06d}-{number:06d}.png"
        label, other = ("success", "failure") if success else ("failure", "success")
        row = make_row(file, success, label, episode, 0) | {"step": str(number)}
        self._table.add([(image, row)])
        before = f"{other}/{file}"
        self._save_without(before)
        self._order = [one for one in self._order if one not in (before, row["file"])]
        self._order.append(row["file"])
        return f"labelled {label}"

    def undo(self) -> str:
        """Take back this session's last label that stands; return what was done."""
        if not self._order:
            return "no label of this session is left to undo"
        file = self._order.pop()
        self._save_without(file)
        return f"took back {file}"

    def close(self) -> None:
        """Let other processes label in the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _save_without(self, file: str) -> None:
        """Write the table without an image, then delete that if it is there."""
        self._table.rows.pop(file, None)
        self._table.save()
        with contextlib.suppress(OSError):  # what is not listed is not part of the dataset
            inside(self.folder, file).unlink()
