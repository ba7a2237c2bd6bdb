"""The pictures of a capture and the table that lists them, written so that a kill harms neither."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.errors import RunFolderError
from vinoreward.files import open_plain, write_text
from vinoreward_training.data.dataset_files import METADATA, inside, read_table

COLUMNS = (
    "file",
    "label",
    "category",
    "episode",
    "seed",
    "gripper_x",
    "gripper_y",
    "object_x",
    "object_y",
    "distance",
)
Row = dict[str, str]


def save_picture(path: Path, image: npt.NDArray[np.uint8]) -> None:
    """Write a PNG under another name, then rename: a killed capture leaves whole files only."""
    from PIL import Image

    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_plain(part, "wb") as stream:
            Image.fromarray(image).save(stream, format="PNG", compress_level=1)
        os.replace(part, path)
    except RunFolderError:
        raise
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}. Expected a writable folder with free "
            "space; free some and continue with --resume, what was captured is kept."
        ) from error


class Table:
    """The rows of ``metadata.csv``; a picture counts once its row is saved.

    Args:
        folder: of the capture.
        whole_episodes: where a picture of an episode is gone, forget that episode and all after
            it, so that they are captured again.

    Raises:
        DatasetError: the table there cannot be read, or names files out of the folder.
    """

    def __init__(self, folder: Path, *, whole_episodes: bool = False) -> None:
        self.folder = folder
        self.rows: dict[str, Row] = {}
        if not (folder / METADATA).is_file():
            return
        lost = math.inf
        for _, row in read_table(folder):
            if inside(folder, row["file"]).is_file():
                self.rows[row["file"]] = {name: row.get(name, "") for name in COLUMNS}
            elif whole_episodes:
                lost = min(lost, int(row["episode"]))
        self.rows = {file: row for file, row in self.rows.items() if int(row["episode"]) < lost}

    def count(self, label: str) -> int:
        """Return how many pictures have this label."""
        return sum(row["label"] == label for row in self.rows.values())

    def episodes(self, label: str) -> int:
        """Return from how many episodes the pictures of this label come."""
        return len({row["episode"] for row in self.rows.values() if row["label"] == label})

    def add(self, pictures: Sequence[tuple[npt.NDArray[np.uint8], Row]]) -> None:
        """Write pictures and note their rows, all or none of them."""
        for image, row in pictures:
            save_picture(self.folder / row["file"], image)
        self.rows.update({row["file"]: row for _, row in pictures})

    def clear(self) -> None:
        """Delete all listed pictures and their rows."""
        for file in self.rows:
            inside(self.folder, file).unlink(missing_ok=True)
        self.rows = {}
        self.save()

    def save(self) -> None:
        """Write the table, ordered by episode; atomically."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            sorted(self.rows.values(), key=lambda row: (int(row["episode"]), row["file"]))
        )
        write_text(self.folder / METADATA, text.getvalue())


def make_row(file: str, success: bool, category: str, episode: int, seed: int) -> Row:
    """Return a row for ``file`` in the folder of its label; poses are left empty."""
    label = "success" if success else "failure"
    row = dict.fromkeys(COLUMNS, "")
    return row | {
        "file": f"{label}/{file}",
        "label": label,
        "category": category,
        "episode": str(episode),
        "seed": str(seed),
    }
