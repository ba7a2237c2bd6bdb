"""Judges that users name as ``FILE.py:FUNCTION``: slow and costly ones, whose scores are kept."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.bundles.schema import Decision
from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError, ModelNotFoundError, RunFolderError
from vinoreward.files import open_plain, read_json, read_plain, reason_of
from vinoreward.rewards.judge import ABSTAINED, Judge, scores_of_judge
from vinoreward.rewards.ood import read_guard
from vinoreward_training.runs.run_folder import ensure_dir

JUDGE_FILE = "judge.json"
"""A judge's calibration, in its folder."""
SCORES = "scores.sqlite"
"""A judge's scores so far, in its folder."""
BATCH = 32
"""Images of one call of the function."""
TWICE = 20
"""Images that are scored a second time, to see whether the scores stay."""
UNCALIBRATED = 0.5
"""Threshold of a judge that was not calibrated."""

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

_TABLE = """CREATE TABLE IF NOT EXISTS scores (judge TEXT, image TEXT, round INTEGER, score REAL,
PRIMARY KEY (judge, image, round)) WITHOUT ROWID"""


@dataclass(frozen=True)
class Spread:
    """How the scores of images differ that were scored twice."""

    images: int
    differ: int
    most: float
    """Largest difference of two scores; 1 where one of the two is an abstention."""

    def __str__(self) -> str:
        """One sentence."""
        if not self.differ:
            return f"{self.images} images were scored twice, and got the same scores"
        return (
            f"of {self.images} images that were scored twice, {self.differ} got another score, by "
            f"up to {self.most:.2g}: the first one counts"
        )


class CachedJudge:
    """A judge's function that scores no image twice, in this run or a later one.

    Scores are kept beside the judge's file, in ``FILE.FUNCTION/scores.sqlite``, by the hashes of
    judge (file and function's name) and image. After Ctrl-C, an error or a spent budget the next
    run goes on.

    Args:
        name: ``FILE.py:FUNCTION``, whose code is run.
        max_calls: images that the function may score in this run; None: any number.

    Raises:
        ConfigError: no such function.
    """

    def __init__(self, name: str, max_calls: int | None = None) -> None:
        self.name, self.max_calls = name, max_calls
        self.sha256 = judge_hash(name)
        self.calls = 0
        """Images scored in this run."""
        self.again = "the same command again"
        """What goes on once they are ``max_calls``."""
        self._function = named_function(name, "judge", "a function of images")
        self._path = ensure_dir(judge_folder(name)) / SCORES
        open_plain(self._path, "ab").close()  # through no link
        with self._said():
            self._database = sqlite3.connect(self._path, timeout=30)
            # With a write-ahead log no image waits for the disk.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(_TABLE)

    def __call__(self, images: Images) -> Floats:
        """Return the scores of ``(N, H, W, 3)`` uint8 images, ``(N,)`` from 0 to 1 or NaN.

        Raises:
            ConfigError: the budget is spent.
            OutputError: the function fails; scores of earlier batches are kept.
            RunFolderError: scores cannot be read or kept.
        """
        return self._scored(images, 0)

    def close(self) -> None:
        """Close the file of scores."""
        self._database.close()

    def score_again(self, images: Images) -> Spread:
        """Score at most ``TWICE`` of the images a second time and compare."""
        some = images[:: -(-len(images) // TWICE)] if len(images) else images
        first, second = (self._scored(some, number) for number in (0, 1))
        abstained = np.isnan(first) != np.isnan(second)
        apart = np.where(abstained, 1.0, np.nan_to_num(np.abs(first - second)))
        return Spread(len(some), int((apart > 0).sum()), float(apart.max(initial=0.0)))

    def _scored(self, images: Images, number: int) -> Floats:
        from tqdm import tqdm

        keys = [_hash_of(image) for image in images]
        known = self._known(keys, number)
        new = sorted({key: row for row, key in enumerate(keys) if key not in known}.values())
        allowed = len(new) if self.max_calls is None else max(0, self.max_calls - self.calls)
        starts = range(0, min(len(new), allowed), BATCH)
        quiet = None if len(starts) > 1 else True
        for start in tqdm(starts, "judge", unit="batch", leave=None, disable=quiet):
            part = new[start : min(start + BATCH, allowed)]
            self.calls += len(part)
            scores = scores_of_judge(self._function, images[part], self.name)
            rows = [
                (self.sha256, keys[row], number, x)
                for row, x in zip(part, scores.tolist(), strict=True)
            ]
            with self._said():
                insert = "INSERT OR IGNORE INTO scores VALUES (?, ?, ?, ?)"
                self._database.executemany(insert, rows)
        if allowed < len(new):
            raise self._spent(len(new) - allowed)
        known |= self._known([keys[row] for row in new], number)
        return np.array([known[key] for key in keys], dtype=np.float64)

    def _known(self, keys: Sequence[str], number: int) -> dict[str, float]:
        """Return the kept scores of images, by their hash."""
        found: dict[str, float] = {}
        with self._said():
            for key in keys:
                where = "SELECT score FROM scores WHERE judge = ? AND image = ? AND round = ?"
                row = self._database.execute(where, (self.sha256, key, number)).fetchone()
                if row is not None:  # SQLite keeps NaN as NULL
                    found[key] = np.nan if row[0] is None else float(row[0])
        return found

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        """Commit after the block; RunFolderError where the database fails."""
        try:
            yield
            self._database.commit()
        except sqlite3.Error as error:
            raise RunFolderError(
                f"{self._path} cannot be used: {error}. Expected the scores that the judge gave so "
                "far, in a writable folder with free space; delete the file to score again."
            ) from error

    def _spent(self, left: int) -> ConfigError:
        return ConfigError(
            f"the judge {self.name} has scored {self.calls} images, as many as "
            f"`max_calls={self.max_calls}` allows, and {left} or more are left. Expected all to be "
            f"scored; run {self.again}, which goes on from there: scores are kept in "
            f"{self._path}.",
            field="max_calls",
        )


def _hash_of(image: Images) -> str:
    return hashlib.sha256(str(image.shape).encode() + image.tobytes()).hexdigest()


def open_judge(name: str, max_calls: int | None, closing: contextlib.ExitStack) -> Judge:
    """Return a judge with kept scores and, where it was calibrated, its threshold and OOD detector.

    Prints which threshold that is. ``closing`` closes the file of scores.
    """
    function = CachedJudge(name, max_calls)
    closing.callback(function.close)
    try:
        judge = load_judge(name)
    except ModelNotFoundError:
        print(f"{name} was not calibrated: its threshold is {UNCALIBRATED:g}")
        return Judge(function, UNCALIBRATED, name=name)
    print(f"threshold {judge.threshold:.4f}, of {judge_folder(name)}")
    judge.function = function
    return judge


class Labeller:
    """A judge whose claims are taken for the truth; arguments and errors of :func:`open_judge`."""

    def __init__(self, name: str, max_calls: int | None, closing: contextlib.ExitStack) -> None:
        # An OOD score would hide an abstention.
        self._judge = replace(open_judge(name, max_calls, closing), guard=None)
        self.function: CachedJudge = self._judge.function  # type: ignore[assignment]
        self.facts: dict[str, Any] = {
            "judge": name,
            "judge_sha256": self.function.sha256,
            "threshold": self._judge.threshold,
        }
        """What is recorded with its labels."""
        self.labelled = self.abstained = 0

    def __call__(self, images: Images) -> npt.NDArray[np.int64]:
        """Return the labels (N,) of ``(N, H, W, 3)`` uint8 images: 1, 0, or -1 if it abstains."""
        said = self._judge.predict(images)
        claims = said.probability >= np.float32(self._judge.threshold)
        labels = np.where(said.ood_score == ABSTAINED, -1, claims.astype(np.int64))
        self.labelled += int((labels >= 0).sum())
        self.abstained += int((labels < 0).sum())
        return labels

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.function.name} labels {self.labelled} images, abstains from {self.abstained}"


def load_judge(name: str) -> Judge:
    """Return a judge ``FILE.py:FUNCTION`` as ``vinoreward calibrate`` has calibrated it.

    This runs the file.

    Raises:
        ConfigError: no such function, or it was calibrated as another version of the file.
        ModelNotFoundError: it was not calibrated.
    """
    folder, remedy = judge_folder(name), f"run vinoreward calibrate --judge {name}"
    try:
        record = read_json(folder / JUDGE_FILE, 1 << 20)
        decision = Decision(**record["decision"])
        guard, sha256 = record["guard"], record["sha256"]
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"the judge {name} has no {folder / JUDGE_FILE}. Expected a calibrated one; "
            f"{remedy}, or give Judge(function, threshold)."
        ) from error
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ConfigError(
            f"{folder / JUDGE_FILE} cannot be read: {reason_of(error)}. Expected what "
            f"vinoreward calibrate wrote; {remedy}."
        ) from error
    if sha256 != judge_hash(name):
        raise ConfigError(
            f"the judge {name} was calibrated as another version of its file. Expected the "
            f"version that its threshold is for; {remedy}, or restore the file."
        )
    return Judge(
        named_function(name, "judge", "a function of images"),
        decision.threshold,
        temperature=decision.temperature,
        guard=None if guard is None else read_guard(folder / GUARD_FILE, guard),
        name=name,
    )


def judge_hash(name: str) -> str:
    """Return the SHA-256 of a judge ``FILE.py:FUNCTION``: of the file's bytes and the name."""
    file, _, function = name.rpartition(":")
    try:
        data = read_plain(_judge_file(file, name), 16 << 20)
    except OSError as error:
        raise ConfigError(
            field="judge", value=name, expected=f"a file that can be read ({reason_of(error)})"
        ) from error
    return hashlib.sha256(data + b"\0" + function.encode()).hexdigest()


def judge_folder(name: str) -> Path:
    """Return the folder of a judge's scores and calibration, FILE.FUNCTION, beside its file."""
    file, _, function = name.rpartition(":")
    path = _judge_file(file, name)
    return path.with_name(f"{path.stem}.{function}")


def _judge_file(file: str, name: str) -> Path:
    if not file.endswith(".py"):
        raise ConfigError(
            field="judge",
            value=name,
            expected="FILE.py:FUNCTION, a function of images",
            remedy="write a file that imports what is in a package",
        )
    return Path(file).resolve()
