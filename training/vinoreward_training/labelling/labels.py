"""The label log, ``labels.jsonl``: one JSON object a line, only ever appended to.

A label is ``{"image", "sha256", "label", "by", "time", "seconds", "duplicate"}``; ``{"undo": true,
"by", "time"}`` takes back the last label of that labeller that still stands. A line is on the disk
before :meth:`LabelLog.add` returns. What a crash cut off is the last line, which is then dropped
with a warning; any other damaged line is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from vinoreward.errors import DatasetError, MissingExtraError, RunFolderError
from vinoreward.files import open_plain, parse_json, read_plain, shown
from vinoreward.rewards.calibration import clopper_pearson

LABELS = "labels.jsonl"
MAX_LOG_BYTES = 512 * 2**20
"""A million labels need less."""
MAX_LINE = 16 * 2**10
MAX_IMAGE = 1000
"""Characters of an image's name."""
MAX_LABELLER = 100
"""Characters of a labeller's name."""
MAX_SECONDS = 3600.0

Answer = Literal["success", "failure", "skip"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)


def is_name(image: str) -> bool:
    """Return whether a text can be an image's name: printable, and within its folder."""
    parts = PurePosixPath(image).parts
    relative = bool(parts) and not image.startswith("/") and ".." not in parts
    return relative and image.isprintable() and len(image) <= MAX_IMAGE


def is_labeller(name: str) -> bool:
    """Return whether a text can be a labeller's name."""
    return bool(name.strip()) and name.isprintable() and len(name) <= MAX_LABELLER


def _name(image: str) -> str:
    if not is_name(image):
        raise ValueError("no name within a folder")
    return image


def _labeller(name: str) -> str:
    if not is_labeller(name):
        raise ValueError(f"no printable name of at most {MAX_LABELLER} characters")
    return name


_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_Labeller = Annotated[str, AfterValidator(_labeller)]
_Time = Annotated[str, Field(min_length=1, max_length=40)]


@dataclass(frozen=True, config=_STRICT)
class Label:
    """What somebody said of an image."""

    image: Annotated[str, AfterValidator(_name)]
    """Its name in the source folder, with ``/``."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of its decoded pixels, see :func:`vinoreward_training.labelling.sources.digest_of`."""
    label: Answer
    """``"skip"`` says that no label can be given."""
    by: _Labeller
    """Who."""
    time: _Time
    """When: ISO 8601, UTC."""
    seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)]
    """From the image's appearance to the key."""
    duplicate: bool = False
    """Whether it was shown a second time, to measure the labeller."""


@dataclass(frozen=True, config=_STRICT, kw_only=True)
class Undo:
    """Takes back the last label of a labeller that still stands."""

    undo: Literal[True] = True
    by: _Labeller
    time: _Time


Entry = Label | Undo
"""A line of the log."""
Key = tuple[str, str]
"""An image's name and hash: under one name a file may have been replaced."""


def now() -> str:
    """Return the time as the log has it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def line_of(entry: Entry) -> bytes:
    """Return an entry's line."""
    text = json.dumps(dataclasses.asdict(entry), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def entry_of(line: bytes) -> Entry:
    """Return a line's entry; ValueError if it is none."""
    if len(line) > MAX_LINE:
        raise ValueError(f"it has {len(line)} bytes")
    value = parse_json(line)
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    try:
        return Undo(**value) if "undo" in value else Label(**value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{place} is {shown(first['input'])}: " for place in first["loc"][:1])
        raise ValueError(f"{where}{first['msg']}") from error


def _read(data: bytes, path: Path) -> tuple[list[Entry], int]:
    """Return the entries in a log and the bytes that they have; warn of a damaged last line."""
    lines = data.splitlines(keepends=True)
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(entry_of(line.rstrip(b"\r\n")))
        except ValueError as error:
            why = f"{path}, line {number}: {shown(error)}."
            if number < len(lines):
                raise DatasetError(
                    f"{why} Expected one label a line as vinoreward label writes them, and only "
                    "the last may be cut off by a crash; correct or remove that line."
                ) from error
            warnings.warn(
                f"{why} The line was cut off, by a crash or a full disk, and does not count: "
                "label that image again.",
                UserWarning,
                stacklevel=3,
            )
    return entries, sum(map(len, lines[: len(entries)]))


def standing(entries: Iterable[Entry]) -> list[Label]:
    """Return the labels that were not undone, in the order in which they were given."""
    labels: list[Label | None] = []
    places: dict[str, list[int]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry, Label):
            places[entry.by].append(len(labels))
            labels.append(entry)
        elif places[entry.by]:
            labels[places[entry.by].pop()] = None
    return [label for label in labels if label is not None]


def read_labels(path: Path) -> list[Label]:
    """Return the labels of a log that were not undone.

    Warns of a last line that is damaged, and leaves it out.

    Raises:
        DatasetError: no log, or an earlier line that is damaged.
    """
    try:
        return standing(_read(read_plain(path, MAX_LOG_BYTES), path)[0])
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read: {error}. Expected labels; give some with vinoreward label."
        ) from error


class LabelLog:
    """The log, open for one labeller at a time; use it in a ``with`` block.

    Raises:
        RunFolderError: another process has it open, it cannot be written, or it is a link.
        DatasetError: a damaged line before the last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._file: IO[bytes] | None = None
        self._size = 0
        """Bytes of the entries; what a failed write left lies behind them."""

    def __enter__(self) -> LabelLog:
        """Take the lock, read what is there, and cut off what a crash left of a line."""
        with contextlib.ExitStack() as stack, self._writing():
            self._file = stack.enter_context(open_plain(self.path, "a+b"))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunFolderError(
                    f"{self.path} is in use: somebody else is labelling there. Expected one "
                    "labeller at a time; wait until that vinoreward label has ended, stop it with "
                    "Ctrl-C, or write elsewhere with --out."
                ) from error
            data = read_plain(self.path, MAX_LOG_BYTES)
            self.entries, self._size = _read(data, self.path)
            if self._size and data[self._size - 1 : self._size] != b"\n":
                os.write(self._file.fileno(), b"\n")
                self._size += 1
            self._cut()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Give the lock back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, entry: Entry) -> None:
        """Append an entry; it is on the disk when this returns.

        Raises:
            RunFolderError: it could not be written; the log is as it was before.
        """
        data = line_of(entry)
        with self._writing():
            file = self._descriptor()
            if not os.path.samestat(os.fstat(file), os.stat(self.path)):
                raise OSError("the file was replaced meanwhile")
            self._cut()
            try:
                # Past Python's buffer, which would try again what could not be written.
                left = data
                while left:
                    left = left[os.write(file, left) :]
                os.fsync(file)
            except OSError:
                # It must not count later: the page shows an error for it.
                with contextlib.suppress(OSError):
                    self._cut()
                raise
        self._size += len(data)
        self.entries.append(entry)

    def _descriptor(self) -> int:
        if self._file is None:
            raise OSError("it is not open")
        return self._file.fileno()

    def _cut(self) -> None:
        """Cut off what a crash or a failed write left."""
        if os.fstat(self._descriptor()).st_size > self._size:
            os.ftruncate(self._descriptor(), self._size)
            os.fsync(self._descriptor())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except RunFolderError:
            raise
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path}: {error.strerror or error}. Expected a writable file "
                "with free space; all labels before are safe, this one does not count: free some "
                "space and give it again."
            ) from error


def _opinions(labels: Iterable[Label]) -> dict[Key, dict[tuple[str, bool], Label]]:
    """Return of each image what each labeller said at first sight and of its blind duplicate.

    A later label replaces an earlier one of the same kind.
    """
    by_image: dict[Key, dict[tuple[str, bool], Label]] = defaultdict(dict)
    for label in labels:
        opinions = by_image[label.image, label.sha256]
        opinions.pop((label.by, label.duplicate), None)  # the order is that of the last labels
        opinions[label.by, label.duplicate] = label
    return by_image


def contradictions(labels: Iterable[Label]) -> dict[Key, list[Label]]:
    """Return the images that were called a success and a failure, with what was said of them.

    By two labellers, or by one who was shown it twice. Who changed their mind with undo, or
    labelled an image anew, does not contradict themselves; nor does a skip contradict anything.
    """
    by_image = {
        key: [label for label in opinions.values() if label.label != "skip"]
        for key, opinions in _opinions(labels).items()
    }
    return {key: said for key, said in by_image.items() if len({one.label for one in said}) > 1}


def agreed_labels(labels: Iterable[Label]) -> list[Label]:
    """Return one label, a success or a failure, of each image about which nobody disagrees."""
    found: list[Label] = []
    for opinions in _opinions(labels).values():
        said = [label for label in opinions.values() if label.label != "skip"]
        if len({label.label for label in said}) == 1:
            found.append(said[-1])
    return found


def agreement(labels: Iterable[Label]) -> str:
    """Return in a sentence how often blind duplicates agreed, over all labellers.

    With the 95 % interval of the rate (Clopper & Pearson 1934), if SciPy is there.
    """
    pairs: list[bool] = []
    for opinions in _opinions(labels).values():
        for (by, duplicate), label in opinions.items():
            first = opinions.get((by, False))
            if duplicate and first is not None and "skip" not in (label.label, first.label):
                pairs.append(label.label == first.label)
    if not pairs:
        return "no image was labelled twice"
    interval = ""
    with contextlib.suppress(MissingExtraError):  # labelling itself does not need SciPy
        low, high = clopper_pearson(sum(pairs), len(pairs))
        interval = f"; 95 % interval {100 * low:.0f} to {100 * high:.0f} %"
    return (
        f"{sum(pairs)} of {len(pairs)} images that were shown twice got the same label "
        f"({100 * sum(pairs) / len(pairs):.0f} %{interval})"
    )


def counts(labels: Sequence[Label]) -> dict[str, int]:
    """Return how many images each answer was given to, blind duplicates not counted."""
    first = [label for label in labels if not label.duplicate]
    return {answer: sum(label.label == answer for label in first) for answer in ANSWERS}
