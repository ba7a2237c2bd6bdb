"""The pictures of a capture and the table that lists them, written so that a kill harms neither."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.errors import RunFolderError
from vinoreward.files import open_plain, write_text
from vinoreward_training.dataset import METADATA

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
    """The rows of ``metadata.csv``; a picture counts once its row is saved."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METADATA
        self._folder = folder
        self.rows: dict[str, Row] = {}
        if self._path.is_file():
            with self._path.open(newline="", encoding="utf-8") as stream:
                for row in csv.DictReader(stream):
                    if row.get("file") and (folder / row["file"]).is_file():
                        self.rows[row["file"]] = {name: row.get(name) or "" for name in COLUMNS}

    def count(self, label: str) -> int:
        """Return how many pictures have this label."""
        return sum(row["label"] == label for row in self.rows.values())

    def add(self, image: npt.NDArray[np.uint8], row: Row) -> None:
        """Write a picture and note its row."""
        save_picture(self._folder / row["file"], image)
        self.rows[row["file"]] = row

    def save(self) -> None:
        """Write the table, ordered by episode; atomically."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            sorted(self.rows.values(), key=lambda row: (int(row["episode"]), row["file"]))
        )
        write_text(self._path, text.getvalue())


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
