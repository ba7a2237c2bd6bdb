"""The files of a dataset: anybody's are read safely, and a kill while writing damages none.

Nothing outside a dataset's folder is read, and nothing of unbounded size. Every refusal is a
:class:`~vinoreward.errors.DatasetError` that names the file.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationError

from vinoreward.arrays import to_numpy
from vinoreward.errors import ConfigError, DatasetError, InputError, RunFolderError
from vinoreward.files import is_inside, open_plain, read_json
from vinoreward.images import (
    as_image,
    in_color,
    layout_of,
    read_image,
    shown_name,
)
from vinoreward.wrappers.sources import part_at, parts_below, render
from vinoreward_envs.camera.spec import resized
from vinoreward_training.data.tables import Row, read_table, write_table

Indices = npt.NDArray[np.int64]
Crop = tuple[int, int, int, int]
"""(top, left, height, width) in pixels."""
COLUMNS = (
    "file", "label", "category", "episode", "seed",
    "gripper_x", "gripper_y", "object_x", "object_y", "distance",
)  # fmt: skip
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".webp"})
TEXTS = frozenset({".csv", ".html", ".json", ".jsonl", ".md", ".txt"})
SYSTEM = frozenset({"__MACOSX", "__pycache__", "@eaDir", "$RECYCLE.BIN", "lost+found"})
METADATA = "metadata.csv"
"""The table of a capture; an image that it does not list is not yet part of the dataset."""
ABOUT = "dataset.json"
NEAR_STEPS = 5
"""Failures at most so many steps before a success are near misses."""
MAX_ABOUT_BYTES = 2**20
MAX_NAME = 100
"""Characters of a label and of a category."""
MEMORY_SHARE = 0.9
"""Largest share of the free memory for images."""
LONG_SIDE = 160
"""Pixels of an image's longer side, at most, where no size is asked for."""


def inside(folder: Path, file: str) -> Path:
    """Return ``folder/file``, a printable name that stays within the folder, links followed."""
    parts = Path(file).parts
    if not parts or not file.isprintable() or Path(file).is_absolute() or ".." in parts:
        raise DatasetError(
            f"{shown_name(folder)} names the file {shown_name(file)!r}. Expected printable names "
            "relative to the folder, such as success/0.png; rename it or correct the table."
        )
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink() and not is_inside(folder, path):
            raise DatasetError(
                f"{shown_name(path)} is a link out of the folder. Expected all files of a dataset "
                "within its folder, as nothing else is read; copy the files there."
            )
    return path


def read_metadata(folder: Path, *, places: bool = False) -> Iterator[Row]:
    """Yield the checked rows of ``metadata.csv``.

    Distances, and with ``places`` the columns ``NAME_x`` and ``NAME_y``, are numbers or empty.
    """
    files = set[str]()

    def checked(row: Row) -> Row:
        if max(len(row["label"]), len(row.get("category", ""))) > MAX_NAME:
            raise ValueError("a label or category is too long")
        if abs(int(row["episode"])) >= 2**63:
            raise ValueError("the episode's number is too large")
        if row["file"] in files:
            raise ValueError(f"{row['file']} stands in it twice")
        files.add(row["file"])
        for name in row:
            if name == "distance" or (places and name.endswith(("_x", "_y"))):
                number(row[name])
        return row

    yield from read_table(
        inside(folder, METADATA),
        ("file", "label", "episode"),
        checked,
        "the columns file (each once), label and episode (a whole number) in UTF-8, and numbers "
        "for distance and places",
    )


def number(cell: str) -> float:
    """Return a cell as a number, NaN if it is empty."""
    return float(cell or "nan")


class _About(BaseModel, strict=True):
    """What is read of ``dataset.json``; other keys are not checked."""

    scene: dict[str, str | int | float | bool] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    episode_steps: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    env: str = ""
    truth: str = ""


def read_about(folder: Path) -> dict[str, Any]:
    """Return what ``dataset.json`` says, with a ``scene`` that is a mapping; empty if not there."""
    path = inside(folder, ABOUT)
    if not path.is_file():
        return {}
    try:
        about = read_json(path, MAX_ABOUT_BYTES)
        scene = _About.model_validate(about).scene
    except (OSError, ValueError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            why = f"{'.'.join(map(str, first['loc'][:2]))}: {first['msg']}"
        raise DatasetError(
            f"{path}: {why.rstrip('.')}. Expected the file that capture wrote; run capture "
            "--resume or delete it."
        ) from error
    return {**about, "scene": scene or {}}


def is_visible(name: str) -> bool:
    """Return whether a file or folder of this name is data: not hidden, not the system's."""
    return not name.startswith(".") and name not in SYSTEM


def images_below(folder: Path, *names: str, suffixes: frozenset[str] = SUFFIXES) -> list[str]:
    """Return the images at any depth of a folder, or of these parts of it, sorted.

    They are relative to ``folder``. Prints how many files have other ``suffixes``.
    """
    found, others = [], Counter[str]()
    for top in [inside(folder, name) for name in names] or [folder]:
        for parent, folders, files in os.walk(top):
            where = Path(parent).relative_to(folder)
            folders[:] = filter(is_visible, folders)
            for other in folders:
                if (Path(parent) / other).is_symlink():
                    inside(folder, (where / other).as_posix())
            for file in filter(is_visible, files):
                suffix = Path(file).suffix.lower()
                if suffix in suffixes:
                    found.append((where / file).as_posix())
                elif suffix not in TEXTS:
                    others[suffix or "without suffix"] += 1
    if others:
        counts = ", ".join(f"{count} {shown_name(name)}" for name, count in sorted(others.items()))
        print(
            f"passed over in {shown_name(folder)}: {counts}. Only {', '.join(sorted(suffixes))} "
            "files are read; convert what is missing."
        )
    return sorted(found)


def check_labels(where: Path, labels: Iterable[str], success_label: str) -> None:
    """Raise DatasetError for a blank label, or two that differ in case or spaces alone."""
    names: dict[str, str] = {}
    for label in sorted({success_label, *labels}):
        other = names.setdefault("".join(label.split()).casefold(), label)
        if not label.strip() or other != label:
            found = f"{other!r} and {label!r}" if label.strip() else "an empty label"
            raise DatasetError(
                f"{where} has {found} (a success is {success_label!r}). Expected a label for each "
                "image, always spelt alike; correct it, or name a success with --success-label."
            )


def chosen_size(sizes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the most common (height, width), made smaller to ``LONG_SIDE``; print who differs."""
    counts = Counter(sizes)
    own, _ = min(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    height, width = (max(1, round(side * min(1, LONG_SIDE / max(own)))) for side in own)
    if set(counts) != {(height, width)}:
        print(
            f"images of {own[0]}x{own[1]}{' and other sizes' if len(counts) > 1 else ''} are "
            f"resized to {height}x{width} (height x width); --image-size chooses another size"
        )
    return height, width


def _paths(folder: Path, files: Sequence[str]) -> list[Path]:
    """Return the paths of images after checking that all are there, within the folder."""
    paths = [inside(folder, file) for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if not path.is_file()]
    if missing:
        raise DatasetError(
            f"{folder} lists {len(missing)} images that are not there, the first {missing[0]}. "
            "Expected every one in metadata.csv to be a plain file; run capture --resume to make "
            "them again."
        )
    return paths


def stack_images(
    folder: Path,
    files: Sequence[str],
    size: tuple[int, int] | None,
    crop: Crop | None = None,
    *,
    choose_size: bool = False,
    skip_broken: bool = False,
) -> tuple[npt.NDArray[np.uint8], bool, list[int]]:
    """Read images, at least one.

    ``crop`` is the (top, left, height, width) to cut out first, ``size`` the (height, width) to
    resize to; with ``choose_size`` that of :func:`chosen_size` where it is None, else all must have
    one. Returns ``(N, H, W, 3)`` uint8 RGB, whether any was resized, and the indices of the files
    that they are of: what cannot be read is a DatasetError, or left out with ``skip_broken``.
    """
    paths = _paths(folder, files)
    if choose_size and size is None:  # by some 16, evenly spread
        some = (_read(path, None, crop) for path in paths[:: math.ceil(len(paths) / 16)])
        sizes = [read[0].shape[:2] for read in some if not isinstance(read, InputError)]
        size = chosen_size(sizes) if sizes else None
    if size is not None:
        check_memory(folder, len(files), size)
    images, any_resized = np.empty((0, 0, 0, 3), dtype=np.uint8), False
    kept, broken = list[int](), list[str]()
    # Decoding PNG releases the interpreter lock, so a few threads help.
    with ThreadPoolExecutor(max_workers=4) as pool:
        for index, read in enumerate(pool.map(lambda path: _read(path, size, crop), paths)):
            if isinstance(read, InputError):
                broken.append(str(read).partition(". Expected")[0])
                continue
            image, changed = read
            if not kept:
                check_memory(folder, len(files), image.shape[:2])
                images = np.empty((len(files), *image.shape), dtype=np.uint8)
            elif image.shape != images.shape[1:]:
                pool.shutdown(wait=False, cancel_futures=True)
                height, width = images.shape[1:3]
                raise DatasetError(
                    f"{paths[index]} has {image.shape[0]}x{image.shape[1]} "
                    f"pixels (height x width), the images before it {height}x{width}. Expected "
                    f"one size; give --image-size {height} {width} to resize them all."
                )
            images[len(kept)] = image
            kept.append(index)
            any_resized |= changed
    if broken:
        named = "\n".join(broken) + f" ({len(broken)} of {len(files)} images)"
        if not (skip_broken and kept):
            raise DatasetError(
                f"{named}. Expected whole PNG, JPEG, BMP or WebP files of at most 4096x4096 pixels "
                "and 128 MiB; delete or replace them (capture --resume makes its own again)."
            )
        print(f"left out: {named}")
    return images[: len(kept)], any_resized, kept


def _read(
    path: Path, size: tuple[int, int] | None, crop: Crop | None
) -> tuple[npt.NDArray[np.uint8], bool] | InputError:
    try:
        image = read_image(path)
    except InputError as error:
        return error
    if crop is not None:
        image = cut(image, crop, path)
    changed = image if size is None else resized(image, *size)
    return changed, changed is not image


def cut(image: npt.NDArray[np.uint8], crop: Crop, path: Path) -> npt.NDArray[np.uint8]:
    """Return the part (top, left, height, width) of the image (H, W, 3) that is at ``path``.

    DatasetError if it is too small.
    """
    top, left, height, width = crop
    if image.shape[0] < top + height or image.shape[1] < left + width:
        raise DatasetError(
            f"{path} has {image.shape[0]}x{image.shape[1]} pixels (height x width). Expected at "
            f"least {top + height}x{left + width} for --image-crop {top} {left} {height} {width} "
            "(TOP LEFT HEIGHT WIDTH)."
        )
    return image[top : top + height, left : left + width]


def check_memory(folder: Path, count: int, size: tuple[int, ...]) -> None:
    """Raise DatasetError if so many images of a (height, width) do not fit into the memory."""
    needed, free = count * size[0] * size[1] * 3, free_memory()
    if free is not None and needed > MEMORY_SHARE * free:
        raise DatasetError(
            f"the {count} images of {folder} need {needed / 1e9:.1f} GB at {size[0]}x{size[1]} "
            f"pixels (height x width), and {free / 1e9:.1f} GB are free. Expected them to fit into "
            "memory; give a smaller --image-size (train-vae: --size), or take fewer."
        )


def say_parts(images: npt.NDArray[np.uint8], parts: Iterable[Indices], more: str = "") -> None:
    """Print how many frames there are and how they are split."""
    named = zip(("train", "validation", "test"), parts, strict=True)
    counts = ", ".join(f"{len(part)} {name}" for name, part in named)
    print(f"{len(images)} frames of {images.shape[1]}x{images.shape[2]}: {counts}{more}")


def rendered(env: Any, name: str) -> npt.NDArray[np.uint8]:
    """Return a copy of the image (H, W, 3) uint8 that an environment of that name renders."""
    if env.render_mode != "rgb_array":
        raise ConfigError(
            f"the render_mode of {name} is {env.render_mode!r}. Expected 'rgb_array', as images "
            "are rendered; leave render_mode out of `env_kwargs`, or take them from the "
            "observation with --image-source obs or obs:KEY."
        )
    image = np.array(as_image(render(env), name))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
        raise ConfigError(
            f"{name} renders {image.dtype} {image.shape}. Expected uint8 (height, width, 3) "
            "images from render_mode='rgb_array'; give another environment, or a folder of "
            "images with `data`."
        )
    return image


def image_reader(
    env: Any, name: str, source: str, size: tuple[int, int] | None
) -> Callable[[Any], npt.NDArray[np.uint8]]:
    """Return a function of the last observation that copies the environment's image of a source.

    The source is ``"render"``, ``"obs"`` or ``"obs:KEY"``, ConfigError if the environment has no
    such image. Images are ``(H, W, 3)`` uint8 RGB, resized by PIL to ``size`` (height, width) if
    that is given. ``name`` is the environment's id.
    """
    kind, _, key = source.partition(":")
    if kind not in ("render", "obs") or (key and kind == "render"):
        raise ConfigError(field="image_source", value=source, expected="render, obs or obs:KEY")
    observed = None if kind == "render" else _observed(env.observation_space, name, source, key)

    def take(observation: Any) -> npt.NDArray[np.uint8]:
        image = rendered(env, name) if observed is None else observed(observation)
        return image if size is None else resized(image, *size)

    return take


def _observed(
    space: Any, name: str, source: str, key: str
) -> Callable[[Any], npt.NDArray[np.uint8]]:
    """Return what copies the image in an observation, or in its entry ``key`` if that is set."""
    image = part_at(space, key) if key else space
    if image is None or hasattr(image, "spaces") or image.dtype != np.uint8:
        parts = ", ".join(parts_below(space))
        found = f"has {parts}" if parts else f"is {space}"
        raise ConfigError(
            field="image_source",
            value=source,
            expected=f"a uint8 image in the observation of {name}, which {found}",
            remedy="name another, or leave `image_source` out to render",
        )
    layout = layout_of(image.shape, f"the observation {source} of {name}")

    def take(observation: Any) -> npt.NDArray[np.uint8]:
        part = to_numpy(part_at(observation, key) if key else observation)
        image = in_color(part[0] if part.ndim == 4 else part, layout)
        return np.array(image, order="C")  # the environment may write to its own again

    return take


def save_image(path: Path, image: npt.NDArray[np.uint8]) -> None:
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
    """The rows of ``metadata.csv``; an image counts once its row is saved.

    Rows without their image are dropped. With ``whole_episodes`` the episode of such a row and
    all later ones are dropped too, so that they are captured again.
    """

    def __init__(self, folder: Path, *, whole_episodes: bool = False) -> None:
        self.folder = folder
        self.rows: dict[str, Row] = {}
        if not (folder / METADATA).is_file():
            return
        lost = math.inf
        for row in read_metadata(folder):
            if inside(folder, row["file"]).is_file():
                self.rows[row["file"]] = {**dict.fromkeys(COLUMNS, ""), **row}
            elif whole_episodes:
                lost = min(lost, int(row["episode"]))
        self.rows = {file: row for file, row in self.rows.items() if int(row["episode"]) < lost}

    def count(self, label: str) -> int:
        """Return how many images have this label."""
        return sum(row["label"] == label for row in self.rows.values())

    def episodes(self, label: str) -> int:
        """Return from how many episodes the images of this label come."""
        return len({row["episode"] for row in self.rows.values() if row["label"] == label})

    def lengths(self) -> dict[str, Any]:
        """Return the median length of failing episodes, and whether any goes on after a success.

        Of all episodes if none is known to fail; empty where nothing is recorded.
        """
        known = [row for row in self.rows.values() if row.get("steps")]
        failed = [row for row in known if row["category"] == "failed_episode"]
        steps = {row["episode"]: int(row["steps"]) for row in failed or known}
        if not steps:
            return {}
        lasts = any(r["label"] == "success" and int(r["step"]) + 1 < int(r["steps"]) for r in known)
        return {"episode_steps": math.ceil(median(steps.values())), "success_lasts": lasts}

    def add(self, images: Sequence[tuple[npt.NDArray[np.uint8], Row]]) -> None:
        """Write images, then add their rows: all or none."""
        for image, row in images:
            save_image(self.folder / row["file"], image)
        self.rows.update({row["file"]: row for _, row in images})

    def clear(self) -> None:
        """Delete all listed images and their rows."""
        for file in self.rows:
            inside(self.folder, file).unlink(missing_ok=True)
        self.rows = {}
        self.save()

    def save(self) -> None:
        """Write the table, ordered by episode; atomically."""
        columns = dict.fromkeys((*COLUMNS, *(name for row in self.rows.values() for name in row)))
        rows = sorted(self.rows.values(), key=lambda row: (int(row["episode"]), row["file"]))
        write_table(self.folder / METADATA, list(columns), rows)


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


def to_success(successes: npt.NDArray[np.bool_], step: int) -> str:
    """Return a cell of ``to_success``: steps to an episode's next success, empty without one."""
    following = np.flatnonzero(successes[step:])
    return str(following[0]) if len(following) else ""


def free_memory() -> int | None:
    """Return the bytes of memory that this process can still have; None if not known.

    The least of what the machine has and what its control group (a container's limit) allows.
    """
    available = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                available.append(int(line.split()[1]) * 1024)
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            most, now = ((group / name).read_text(encoding="ascii") for name in (limit, used))
            # The files' cache counts as used and is given back where it is needed.
            stat = ((group / limit).parent / "memory.stat").read_text(encoding="ascii")
            facts = dict(line.split()[:2] for line in stat.splitlines())
            available.append(int(most) - int(now) + int(facts.get("inactive_file", 0)))
    return max(0, min(available)) if available else None
