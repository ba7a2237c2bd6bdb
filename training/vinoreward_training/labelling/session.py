"""One labeller's sitting: which image is shown now, what was said, what comes next."""

from __future__ import annotations

import functools
import io
import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PIL import Image as Pillow

from vinoreward.errors import DatasetError, VinorewardError
from vinoreward_training.labelling.labels import (
    MAX_SECONDS,
    Answer,
    Label,
    LabelLog,
    Undo,
    agreement,
    contradictions,
    counts,
    now,
    standing,
)
from vinoreward_training.labelling.order import Opinion
from vinoreward_training.labelling.sources import Source, digest_of

AHEAD = 2
"""Images that the page fetches before they are shown."""
LARGEST = 2048
"""Pixels of a side of an image as it is shown; the label is for the whole one."""
_KEPT = 2 * AHEAD + 4
"""Encoded images kept in memory."""


class OutdatedError(VinorewardError):
    """An answer to an image that is not the one to be labelled now."""


@dataclass(frozen=True)
class Showing:
    """An image in the queue; its duplicate is another one, so that nothing tells them apart."""

    number: int
    index: int
    duplicate: bool


class Session:
    """What the page asks for and says, one call at a time.

    Args:
        source: the images.
        opinion: what was known of them, for the summary at the end only.
        log: where the labels go, open.
        by: the labeller.
        plan: index of each image to show, and whether it is a blind duplicate.
    """

    def __init__(
        self,
        source: Source,
        opinion: Opinion,
        log: LabelLog,
        by: str,
        plan: Sequence[tuple[int, bool]],
    ) -> None:
        self.source, self.opinion, self.log, self.by = source, opinion, log, by
        self._queue = deque(Showing(n, index, twice) for n, (index, twice) in enumerate(plan))
        self._next_number = len(plan)
        self._answers: dict[int, Answer] = {}
        self._places = {name: index for index, name in enumerate(source.names)}
        self._mine = [
            label for label in standing(log.entries)
            if label.by == by and label.image in self._places
        ]  # fmt: skip
        self._load = functools.lru_cache(_KEPT)(self._encode)
        self._turn = threading.RLock()
        self.before = len(self._mine)
        """Labels from earlier sittings."""
        self.unreadable = 0
        """Images that were passed over, as they cannot be read."""

    @property
    def labels(self) -> list[Label]:
        """All labels of the log that stand, everybody's."""
        return standing(self.log.entries)

    @property
    def given(self) -> int:
        """Labels of this sitting that stand."""
        return max(0, len(self._mine) - self.before)

    @property
    def left(self) -> int:
        """Images that are still to be labelled."""
        return len(self._queue)

    @property
    def unlabelled(self) -> int:
        """Images of the source that this labeller has not labelled, in no sitting."""
        with self._turn:
            labelled = {label.image for label in self._mine}
            return len(self.source.names) - len(labelled) - self.unreadable

    def state(self) -> dict[str, Any]:
        """Return what the page shows, as plain values."""
        with self._turn:
            current = self._current()
            ahead = list(islice(self._queue, 1, 1 + AHEAD))
            return {
                "labeller": self.by,
                "done": len(self._mine),
                "total": len(self._mine) + len(self._queue),
                "image": None if current is None else current.number,
                "ahead": [showing.number for showing in ahead],
                "undo": self._undoable(),
                "unreadable": self.unreadable,
            }

    def png(self, number: int) -> bytes | None:
        """Return an image of the queue's beginning as a PNG; None if it is not there.

        DatasetError if it cannot be read.
        """
        with self._turn:
            near = list(islice(self._queue, 1 + AHEAD))
        showing = next((showing for showing in near if showing.number == number), None)
        return None if showing is None else self._load(showing.index)[0]

    def answer(self, number: int, answer: Answer, seconds: float) -> None:
        """Write the label of the image shown now; it is on the disk when this returns.

        Raises:
            OutdatedError: another image is shown now. The same answer once more is no error, as
                the page repeats it if the connection broke.
            RunFolderError: it cannot be written, and the image is still to be labelled.
        """
        with self._turn:
            if self._answers.get(number) == answer:
                return
            current = self._current()
            if current is None or current.number != number:
                raise OutdatedError("another image is to be labelled now")
            label = Label(
                self.source.names[current.index],
                self._load(current.index)[1],
                answer,
                self.by,
                now(),
                round(min(max(seconds, 0.0), MAX_SECONDS), 2),
                current.duplicate,
            )
            self.log.add(label)
            self._queue.popleft()
            self._answers[number] = answer
            self._mine.append(label)

    def undo(self, done: int) -> None:
        """Take back the last label, of ``done`` that the page knows of; its image comes again.

        Raises:
            OutdatedError: there is another number of labels, or the last cannot be undone.
            RunFolderError: it cannot be written.
        """
        with self._turn:
            if done != len(self._mine) or not self._undoable():
                raise OutdatedError("there is no such label to undo")
            self.log.add(Undo(by=self.by, time=now()))
            label = self._mine.pop()
            showing = Showing(self._next_number, self._places[label.image], label.duplicate)
            self._next_number += 1
            self._queue.appendleft(showing)

    def summary(self) -> dict[str, Any]:
        """Return what the last page shows: counts, agreement, and at the end the classifier's."""
        with self._turn:
            labels = self.labels
            mine = [label for label in labels if label.by == self.by]
            agreed = agreement(mine)
            return {
                "counts": counts(mine),
                "agreement": f"{agreed[:1].upper()}{agreed[1:]}.",
                "contradictions": len(contradictions(labels)),
                # Not while an image is left: it would be known what the classifier says.
                "classifier": None if self._queue else self._against_classifier(mine),
                "file": self.log.path.name,
                "unlabelled": self.unlabelled,
            }

    def _against_classifier(self, mine: Sequence[Label]) -> str | None:
        """Return in a sentence how the network's claims compare with the labels."""
        claims = self.opinion.claims
        pairs = [
            (label.label, bool(claims[self._places[label.image]]))
            for label in mine
            if not label.duplicate and label.label != "skip" and label.image in self._places
            and not math.isnan(claims[self._places[label.image]])
        ]  # fmt: skip
        if not pairs:
            return None
        parts = []
        for answer, name in (("success", "successes"), ("failure", "failures")):
            said = [claimed for label, claimed in pairs if label == answer]
            parts.append(f"{sum(said)} of your {len(said)} {name}")
        return f"The classifier claims {' and '.join(parts)}."

    def _undoable(self) -> bool:
        """Whether the labeller's last label is of an image that is here."""
        mine = [label for label in self.labels if label.by == self.by]
        return bool(self._mine) and mine[-1] == self._mine[-1]

    def _current(self) -> Showing | None:
        """Return the showing whose turn it is, after dropping those that cannot be shown."""
        while self._queue:
            showing = self._queue[0]
            if showing.duplicate and not self._has_first(showing.index):
                self._queue.popleft()
                continue
            try:
                self._load(showing.index)
            except DatasetError:
                self._queue.popleft()
                self.unreadable += not showing.duplicate
                continue
            return showing
        return None

    def _has_first(self, index: int) -> bool:
        """Whether an image got a success or a failure at first sight."""
        name = self.source.names[index]
        first = [label for label in self._mine if label.image == name and not label.duplicate]
        return bool(first) and first[-1].label != "skip"

    def _encode(self, index: int) -> tuple[bytes, str]:
        """Return an image as a PNG, and its digest."""
        image = self.source.read(index)
        drawing = Pillow.fromarray(image)
        drawing.thumbnail((LARGEST, LARGEST))
        stream = io.BytesIO()
        drawing.save(stream, format="PNG", compress_level=1)
        return stream.getvalue(), digest_of(image)
