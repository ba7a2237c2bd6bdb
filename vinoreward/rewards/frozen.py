"""The frozen-camera check: an image must change as far as the environment's state does.

A classifier answers an old image as it answered it before. The check looks for images that are, bit
for bit, that of the step before. An image that claims success may not be like it in part either,
nor like the last one that claimed it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]

MOVES = 128
"""Steps from which it is learned what is usual: of states, then as many of images."""
LEAST_MOVE = 0.2
"""A smaller change of the state, as a multiple of a usual step's, may be invisible."""
SHARE, CLAIMED = 0.01, 0.9
"""A claim is stale if its image changed less than ``CLAIMED`` times what all but that share did."""
FROZEN = 100.0
"""OOD score of an old image that is shown again, bit for bit."""
ROWS = 24
"""About as many rows of an image are compared."""
_REMEMBERED = 1024


def visible_change(far: Floats, before: Floats, apart: Floats) -> Floats:
    """Return how much images changed, from 0 to 1: they are ``apart``, and ``far`` and were as far
    as ``before`` from what is usual."""
    return np.asarray(apart / np.maximum(1.0, far + before))


def distance(images: Images, others: Images) -> Floats:
    """Return the sum of absolute differences over the last axis."""
    far = np.maximum(images, others) - np.minimum(images, others)  # a difference would wrap around
    return np.asarray(far.sum(axis=-1, dtype=np.uint32).astype(np.float64))


class FrozenCheck:
    """Finds images that are older than their environment's state: claims, also in part.

    How far two images are apart is measured relative to how far both are from what is usually
    there, so that the background does not count. How far two states are apart is the median over
    their numbers, each relative to its deviation from step to step. Clocks are ignored, and
    so are numbers that are constant within an episode, except where an image is identical.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._shape: tuple[int, ...] = ()
        self._changes = np.zeros(_REMEMBERED)
        self._calls = self._steps = self._added = 0
        self._limit, self._least = 0.0, LEAST_MOVE

    def begin(self, mask: Mask) -> None:
        """Start an episode where ``mask`` is True."""
        if self._shape:
            self._running &= ~mask
            self._has_claimed &= self._claims | ~mask  # a camera that froze still shows it

    def ood_score(
        self, mask: Mask, images: Images, states: Floats, claims: Mask
    ) -> NDArray[np.float32]:
        """Return how stale images are: ``(num_envs,)``, above 1 where one is not of this step.

        ``images`` (n, H, W, 3) are of the environments in ``mask`` (num_envs,), ``states``
        (num_envs, D) the numbers of all observations; ``claims`` (num_envs,) says which claim.
        """
        ood_score = np.zeros(self._num_envs, np.float32)
        rows = mask.nonzero()[0]
        if not len(rows) or not states.shape[1]:
            return ood_score
        some = images[:, :: max(1, images.shape[1] // ROWS)].reshape(len(rows), -1)
        if self._shape != (*images.shape[1:], states.shape[1]):
            self._start((*images.shape[1:], states.shape[1]), some.shape[1])
        new = ~self._seen[rows]
        if new.any():
            self._usual[rows[new]] = some[new]
        far = distance(some, self._usual[rows])
        change = visible_change(far, self._far[rows], distance(some, self._before[rows]))
        moved = self._moved(states[rows] - self._shown[rows])
        claimed = claims[rows]
        found = np.where(claimed & ~new, self._stale(moved, change), 0.0)
        same = np.zeros(len(rows), np.bool_)
        for k in ((change == 0) & ~new).nonzero()[0].tolist():
            same[k] = np.array_equal(images[k], self._images[rows[k]])
            if same[k]:
                found[k] = self._again(states[rows[k]] - self._shown[rows[k]], bool(claimed[k]))
        last = claimed & self._has_claimed[rows]
        apart = distance(some[last], self._claimed[rows[last]])
        apart = visible_change(far[last], self._claimed_far[rows[last]], apart)
        like = self._stale(
            self._moved(states[rows[last]] - self._claimed_states[rows[last]]), apart
        )
        found[last] = np.maximum(found[last], like)
        fresh = claimed & (found <= 1.0)
        self._claimed[rows[fresh]], self._claimed_far[rows[fresh]] = some[fresh], far[fresh]
        self._claimed_states[rows[fresh]] = states[rows[fresh]]
        self._has_claimed[rows[fresh]], self._claims[rows] = True, claimed
        self._calls += 1
        seldom = self._calls % 8 == 0
        if self._added < _REMEMBERED or seldom:
            self._learn(rows, states, moved, change, found <= 1.0)
        if self._added <= MOVES or seldom:  # sigma-delta: about the median
            speed = max(1, 128 // (1 + self._steps))
            off = some.astype(np.int16) - self._usual[rows]
            self._usual[rows] += np.clip(off, -speed, speed).astype(np.uint8)
        self._before[rows], self._images[rows], self._far[rows] = some, images, far
        self._shown[rows[~same]] = states[rows[~same]]
        self._states[rows], self._seen[rows], self._running[rows] = states[rows], True, True
        ood_score[rows] = found
        return ood_score

    def _start(self, shape: tuple[int, ...], compared: int) -> None:
        """Forget what was seen; images and states have these shapes from now on."""
        count, numbers = self._num_envs, shape[-1]
        self._shape = shape
        self._seen, self._running, self._claims, self._has_claimed = np.zeros((4, count), np.bool_)
        self._images = np.zeros((count, *shape[:-1]), np.uint8)
        self._before, self._usual, self._claimed = np.zeros((3, count, compared), np.uint8)
        self._far, self._claimed_far = np.zeros((2, count))
        # Of the last step, of when the image last changed, and of the last claim.
        self._states, self._shown, self._claimed_states = np.zeros((3, count, numbers))
        self._within: list[Floats] = []
        self._between = np.zeros(numbers)
        self._scale = np.zeros((2, numbers))

    def _moved(self, changes: Floats, kind: int = 0) -> Floats:
        """Return how far states moved, ``(n,)``; ``kind`` 1: by what differs between episodes."""
        counted = self._scale[kind] > 0
        if not counted.any():
            return np.zeros(len(changes))
        far = np.sort(np.abs(changes[:, counted]) / self._scale[kind, counted])
        numbers = far.shape[1]
        return np.asarray((far[:, (numbers - 1) // 2] + far[:, numbers // 2]) / 2)

    def _stale(self, moved: Floats, change: Floats) -> Floats:
        """Return how stale claims are whose images changed so while states moved so, ``(n,)``."""
        times = CLAIMED * self._limit * moved / (1 + moved) / np.maximum(change, 1e-6)
        return np.where(moved >= self._least, np.minimum(times, FROZEN), 0.0)

    def _again(self, change: Floats, claims: bool) -> float:
        """Return how stale an image is that is shown again while the state changed so."""
        least = self._least if claims else max(1.0, self._least)  # things turn back
        moved = max(self._moved(change[None])[0], self._moved(change[None], 1)[0])
        return FROZEN if self._added >= MOVES and moved >= least else 0.0

    def _learn(self, rows: Rows, states: Floats, moved: Floats, change: Floats, good: Mask) -> None:
        """Update the usual change of states, and that of images in rows where ``good``."""
        running, off = self._running[rows], states[rows] - self._states[rows]
        if not running.all():
            other = np.abs(off[~running & self._seen[rows]])
            self._between = np.maximum(self._between, other.max(axis=0, initial=0.0))
        self._within.append(off[running])
        before, self._steps = self._steps, self._steps + len(self._within[-1])
        if before // MOVES < self._steps // MOVES:
            within = np.concatenate(self._within)[-_REMEMBERED:]
            self._within, usual = [within], np.sqrt(np.square(within).mean(axis=0))
            deviation = within.std(axis=0)
            self._scale[0] = np.where(deviation > 1e-3 * usual, deviation, 0.0)
            self._scale[1] = np.where(usual == 0, self._between, 0.0)
        learned = running & good & (moved >= LEAST_MOVE)
        changes = change[learned] * (1 + 1 / moved[learned])
        if not len(changes):
            return
        before, self._added = self._added, self._added + len(changes)
        self._changes[np.arange(before, self._added) % _REMEMBERED] = changes
        if before < MOVES:  # what is smaller than a pixel
            self._least = max(self._least, 2 * moved[learned & (change == 0)].max(initial=0.0))
        if before // MOVES < self._added // MOVES:
            known = self._changes[: self._added]
            self._limit = float(np.quantile(known, SHARE))
