"""The label log, ``labels.jsonl``: one JSON object a line, only ever appended to.

A label is ``{"image", "sha256", "label", "by", "time", "seconds", "again"}``; ``{"undo": true,
"by", "time"}`` takes back the last label of that labeller that still stands. A line is on the disk
before :meth:`LabelLog.add` returns. What a crash cut off is the last line, which is then dropped
with a warning; any other damaged line is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, get_args

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


@dataclass(frozen=True)
class Label:
    """What somebody said of an image."""

    image: str
    """Its name in the source folder, with ``/``; of a video's frame ``video.mp4@12.400s``."""
    sha256: str
    """Of its decoded pixels, see :func:`vinoreward_training.labelling.sources.digest_of`."""
    label: Answer
    """``"skip"`` says that no label can be given."""
    by: str
    """Who."""
    time: str
    """When: ISO 8601, UTC."""
    seconds: float
    """From the image's appearance to the key."""
    again: bool = False
    """Whether it was shown a second time, to measure the labeller."""


@dataclass(frozen=True)
class Undo:
    """Takes back the last label of a labeller that still stands."""

    by: str
    time: str


Entry = Label | Undo
"""A line of the log."""
Key = tuple[str, str]
"""An image's name and hash: under one name a file may have been replaced."""


def now() -> str:
    """Return the time as the log has it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def line_of(entry: Entry) -> bytes:
    """Return an entry's line."""
    value = asdict(entry) if isinstance(entry, Label) else {"undo": True, **asdict(entry)}
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def entry_of(line: bytes) -> Entry:
    """Return a line's entry; ValueError if it is none."""
    if len(line) > MAX_LINE:
        raise ValueError(f"it has {len(line)} bytes")
    value = parse_json(line)
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    by, time = _text(value, "by", MAX_LABELLER), _text(value, "time", 40)
    if "undo" in value:
        if value["undo"] is not True:
            raise ValueError(f"undo is {shown(value['undo'])}")
        return Undo(by, time)
    image = _text(value, "image", MAX_IMAGE)
    if not is_name(image):
        raise ValueError(f"image is {shown(image)}, no name within a folder")
    digest, answer, again = _text(value, "sha256", 64), value.get("label"), value.get("again")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"sha256 is {shown(digest)}")
    if answer not in ANSWERS:
        raise ValueError(f"label is {shown(answer)}")
    seconds = value.get("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise ValueError(f"seconds is {shown(seconds)}")
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"seconds is {shown(seconds)}")
    if type(again) is not bool:
        raise ValueError(f"again is {shown(again)}")
    return Label(image, digest, answer, by, time, float(seconds), again)


def is_name(image: str) -> bool:
    """Return whether a text can be an image's name: printable, and within its folder."""
    parts = PurePosixPath(image).parts
    relative = bool(parts) and not image.startswith("/") and ".." not in parts
    return relative and image.isprintable() and len(image) <= MAX_IMAGE


def is_labeller(name: str) -> bool:
    """Return whether a text can be a labeller's name."""
    return bool(name.strip()) and name.isprintable() and len(name) <= MAX_LABELLER


def _text(value: Mapping[str, Any], name: str, longest: int) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= longest or not text.isprintable():
        raise ValueError(f"{name} is {shown(text)}")
    return text


@dataclass(frozen=True)
class _Read:
    """What a log's bytes say."""

    entries: list[Entry]
    end: int
    """Bytes that are whole."""
    ended: bool
    """Whether the last whole line ends with a line break."""
    dropped: str | None
    """Why the last line does not count; None if it does."""


def _read(data: bytes, path: Path) -> _Read:
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    lines = lines if lines[-1] else lines[:-1]
    entries: list[Entry] = []
    end = 0
    for number, line in enumerate(lines, 1):
        try:
            entries.append(entry_of(line.rstrip(b"\n")))
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return _Read(entries, end, True, f"line {number}: {shown(error)}")
            raise DatasetError(
                f"{path}, line {number}: {shown(error)}. Expected one label a line as vinoreward "
                "label writes them, and only the last may be cut off by a crash; correct or "
                "remove that line."
            ) from error
        end += len(line)
    return _Read(entries, end, not lines or lines[-1].endswith(b"\n"), None)


def _warn(path: Path, why: str) -> None:
    warnings.warn(
        f"{path}, {why}. The line was cut off, by a crash or a full disk, and does not count: "
        "label that image again.",
        UserWarning,
        stacklevel=3,
    )


def standing(entries: Iterable[Entry]) -> list[Label]:
    """Return the labels that were not taken back, in the order in which they were given."""
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
    """Return the labels of a log that were not taken back.

    Warns of a last line that is damaged, and leaves it out.

    Raises:
        DatasetError: no log, or an earlier line that is damaged.
    """
    try:
        read = _read(read_plain(path, MAX_LOG_BYTES), path)
    except FileNotFoundError as error:
        raise DatasetError(
            f"there is no {path}. Expected labels; give some with vinoreward label."
        ) from error
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read: {error}. Expected the labels that vinoreward label wrote."
        ) from error
    if read.dropped is not None:
        _warn(path, read.dropped)
    return standing(read.entries)


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
        self._torn: int | None = None
        self._ended = True

    def __enter__(self) -> LabelLog:
        """Take the lock, read what is there, and cut off what a crash left of a line."""
        new = not self.path.exists()
        try:
            self._file = open_plain(self.path, "a+b")
        except RunFolderError:
            raise
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.__exit__()
            raise RunFolderError(
                f"{self.path} is in use: somebody else is labelling there. Expected one labeller "
                "at a time; wait until that vinoreward label has ended, stop it with Ctrl-C, or "
                "write elsewhere with --out."
            ) from error
        try:
            if new:
                _sync_folder(self.path.parent)
            read = _read(read_plain(self.path, MAX_LOG_BYTES), self.path)
            self.entries, self._ended = read.entries, read.ended
            if read.dropped is not None:
                os.ftruncate(self._file.fileno(), read.end)
                os.fsync(self._file.fileno())
        except OSError as error:
            self.__exit__()
            raise self._unwritable(error) from error
        except BaseException:
            self.__exit__()
            raise
        if read.dropped is not None:
            _warn(self.path, read.dropped)
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
        if self._file is None:
            raise RunFolderError(f"{self.path} is not open. Expected a with block around add().")
        line = line_of(entry)
        if entry_of(line.rstrip(b"\n")) != entry:
            raise DatasetError(f"{shown(entry)} could not be read again. Expected plain values.")
        try:
            self._check_place()
            self._mend()
            descriptor = self._file.fileno()
            self._torn = os.fstat(descriptor).st_size
            data = line if self._ended else b"\n" + line
            # Past Python's buffer, which would try again what could not be written.
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError as error:
            # What was written of it must not count later, as nobody was told that it does.
            with contextlib.suppress(OSError):
                self._mend()
            raise self._unwritable(error) from error
        self._torn, self._ended = None, True
        self.entries.append(entry)

    def _mend(self) -> None:
        """Cut off what a failed write left."""
        if self._torn is not None and self._file is not None:
            os.ftruncate(self._file.fileno(), self._torn)
            os.fsync(self._file.fileno())
            self._torn = None

    def _check_place(self) -> None:
        """Raise OSError if the file is no longer the one at the path: its labels would be lost."""
        if self._file is None or not os.path.samestat(
            os.fstat(self._file.fileno()), os.stat(self.path)
        ):
            raise OSError("the file was replaced meanwhile")

    def _unwritable(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"cannot write {self.path}: {error.strerror or error}. Expected a writable file with "
            "free space; all labels before are safe, this one does not count: free some space and "
            "give it again."
        )


def _sync_folder(folder: Path) -> None:
    """Put a new file's name on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# What labels say together


def _opinions(labels: Iterable[Label]) -> dict[Key, dict[tuple[str, bool], Label]]:
    """Return of each image what each labeller said at first sight and of its blind duplicate.

    A later label replaces an earlier one of the same kind.
    """
    by_image: dict[Key, dict[tuple[str, bool], Label]] = defaultdict(dict)
    for label in labels:
        opinions = by_image[label.image, label.sha256]
        opinions.pop((label.by, label.again), None)  # the order is that of the last labels
        opinions[label.by, label.again] = label
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


def settled(labels: Iterable[Label]) -> list[Label]:
    """Return one label, a success or a failure, of each image about which nobody disagrees."""
    found: list[Label] = []
    for opinions in _opinions(labels).values():
        said = [label for label in opinions.values() if label.label != "skip"]
        if len({label.label for label in said}) == 1:
            found.append(said[-1])
    return found


@dataclass(frozen=True)
class Agreement:
    """How often a labeller said the same of an image that was shown twice."""

    agreed: int
    pairs: int
    """Images with two labels that are no skips."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate (Clopper & Pearson 1934)."""
        return clopper_pearson(self.agreed, self.pairs)

    def __str__(self) -> str:
        if not self.pairs:
            return "no image was labelled twice"
        try:
            low, high = self.interval
        except MissingExtraError:  # SciPy, which labelling itself does not need
            interval = ""
        else:
            interval = f"; 95 % interval {100 * low:.0f} to {100 * high:.0f} %"
        return (
            f"{self.agreed} of {self.pairs} images that were shown twice got the same label "
            f"({100 * self.agreed / self.pairs:.0f} %{interval})"
        )


def agreement(labels: Iterable[Label]) -> Agreement:
    """Return how often blind duplicates agreed, over all labellers."""
    pairs: list[bool] = []
    for opinions in _opinions(labels).values():
        for (by, again), label in opinions.items():
            first = opinions.get((by, False))
            if again and first is not None and "skip" not in (label.label, first.label):
                pairs.append(label.label == first.label)
    return Agreement(sum(pairs), len(pairs))


def counts(labels: Sequence[Label]) -> dict[str, int]:
    """Return how many images each answer was given to, blind duplicates not counted."""
    first = [label for label in labels if not label.again]
    return {answer: sum(label.label == answer for label in first) for answer in ANSWERS}
