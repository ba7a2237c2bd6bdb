"""Images of a failing camera: no success in any task, and absent from every capture.

``vinoreward finetune`` mixes them into every batch as failures. Only images of failures are
damaged, so that the label is true however much of the image is left. Of several cameras all fail,
or some. A dead camera next to one that shows a success has no certain label: it is in no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from vinoreward.images import View
    from vinoreward_training.data.dataset import Dataset

Images = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Random = np.random.Generator

SHARE = 0.125
"""Frames of a failing camera added to a batch, as a share of its frames."""
HELD_OUT = 40
"""Frames of each family in validation, and as many in test."""
FAMILIES = (
    "black", "grey", "constant colour", "dark with sensor noise", "Gaussian noise",
    "uniform noise", "salt and pepper", "coarse blocks", "gradient", "stripes", "lost rows",
    "dead channel", "exposure",
)  # fmt: skip
"""In training."""
UNSEEN_FAMILIES = (
    "checkerboard", "colour bars", "waves", "clouds", "spot", "two halves", "hot pixels",
    "message", "rolled",
)  # fmt: skip
"""Never in training: they show whether a classifier generalises to other failures."""
PARTIAL = frozenset({"lost rows", "dead channel", "exposure", "rolled"})
"""Families that leave some of the image. They hit all cameras or none: a single damaged view is
like one with an occlusion, and the other cameras may see a success then."""
_WHOLE = ("black", "constant colour", "Gaussian noise", "coarse blocks", "gradient", "stripes")
_SALT = 0xDEAD


class _Failure:
    """Draws what a failing camera gives in the place of an image: a method for each family.

    The methods return grey levels (H, W, 3), or what broadcasts to them.
    """

    def __init__(self, random: Random, image: Images) -> None:
        self.random, self.image = random, image
        self.height, self.width = image.shape[:2]

    def draw(self, family: str) -> Any:
        return getattr(self, family.lower().replace(" ", "_"))()

    def _colour(self) -> npt.NDArray[np.float64]:
        """Draw a colour; one in three has only full and missing channels, one in three is grey."""
        kind = self.random.integers(3)
        if kind == 0:
            return self.random.choice([0.0, 255.0], 3)
        return self.random.uniform(0, 255, 1 if kind == 1 else 3) * np.ones(3)

    def _noise(self) -> npt.NDArray[np.float64]:
        """Draw Gaussian noise (H, W, 3) of standard deviation 1, in colour or grey."""
        if self.random.random() < 0.5:
            return self.random.standard_normal(self.image.shape)
        return np.repeat(self.random.standard_normal((self.height, self.width, 1)), 3, axis=2)

    def black(self) -> Any:
        return float(self.random.integers(0, 4)) * (self.random.random() < 0.5)

    def grey(self) -> Any:
        return self.random.uniform(0, 255)

    def constant_colour(self) -> Any:
        return np.broadcast_to(self._colour(), self.image.shape).copy()

    def dark_with_sensor_noise(self) -> Any:
        """A lens cap: dark but not black, with rows or columns that differ."""
        level = self.random.uniform(0, 40) * self.random.uniform(0.5, 1, 3)
        pixels = level + self._noise() * self.random.uniform(1, 15)
        if self.random.random() < 0.5:
            shape = (self.height, 1, 1) if self.random.integers(2) == 0 else (1, self.width, 1)
            pixels += self.random.standard_normal(shape) * self.random.uniform(1, 10)
        return pixels

    def gaussian_noise(self) -> Any:
        return self._colour() + self._noise() * self.random.uniform(3, 100)

    def uniform_noise(self) -> Any:
        narrow = self.random.random() < 0.5
        low, high = np.sort(self.random.uniform(0, 256, 2)) if narrow else (0.0, 256.0)
        channels = 1 if self.random.random() < 0.5 else 3
        return self.random.uniform(low, high, (self.height, self.width, channels))

    def salt_and_pepper(self) -> Any:
        pixels, size = self.constant_colour(), self.image.shape[:2]
        hit = self.random.random(size) < self.random.uniform(0.005, 1)
        white = self.random.random(size) < self.random.uniform(0, 1)
        pixels[hit] = np.where(white[hit], 255.0, 0.0)[:, None]
        return pixels

    def coarse_blocks(self) -> Any:
        """A stream that lost its packets."""
        rows, columns = (
            int(self.random.integers(2, max(3, edge // 2))) for edge in (self.height, self.width)
        )
        if self.random.random() < 0.5:
            columns = rows
        channels = 1 if self.random.random() < 0.3 else 3
        shape = -(-self.height // rows), -(-self.width // columns), channels
        coarse = self.random.uniform(0, 255, shape)
        if self.random.random() < 0.3:
            noise = self.random.standard_normal
            coarse = self._colour() + noise(shape) * self.random.uniform(3, 60)
        return coarse.repeat(rows, 0).repeat(columns, 1)[: self.height, : self.width]

    def gradient(self) -> Any:
        angle = self.random.uniform(0, 2 * np.pi)
        y, x = np.mgrid[-1 : 1 : self.height * 1j, -1 : 1 : self.width * 1j]
        along = (((x * np.cos(angle) + y * np.sin(angle)) / np.sqrt(2) + 1) / 2)[..., None]
        pixels = self._colour() * along + self._colour() * (1 - along)
        return pixels + self._noise() * self.random.uniform(0, 20)

    def stripes(self) -> Any:
        """Rows or columns that have lost their synchronisation."""
        axis = int(self.random.integers(2))
        thick, edge = int(self.random.integers(1, 17)), self.image.shape[axis]
        channels = 1 if self.random.random() < 0.4 else 3
        colours = self.random.uniform(0, 255, (-(-edge // thick), channels)).repeat(thick, 0)
        lines = np.expand_dims(colours[:edge], 1 - axis)
        return lines + self._noise() * self.random.uniform(0, 20)

    def lost_rows(self) -> Any:
        """Rows lost from somewhere on, or some; black, of one colour, noisy or repeated."""
        pixels, rows = self.image.astype(np.float64), np.arange(self.height)
        if self.random.random() < 0.5:
            lost = np.greater_equal(rows, self.random.integers(0, self.height))
            if self.random.random() < 0.5:
                lost = lost[::-1]
        else:
            lost = np.less(self.random.random(self.height), self.random.uniform(0.1, 1))
        kind = self.random.integers(4)
        if kind == 3:
            return pixels[np.maximum.accumulate(np.where(lost, 0, rows))]
        fill = np.zeros(3) if kind == 0 else self._colour()
        noise = self._noise() * (self.random.uniform(5, 80) if kind == 2 else 0.0)
        pixels[lost] = (fill + noise)[lost]
        return pixels

    def dead_channel(self) -> Any:
        pixels = self.image.astype(np.float64)
        dead = self.random.permutation(3)[: self.random.integers(1, 3)]
        pixels[..., dead] = self.random.choice([0.0, 255.0, self.random.uniform(0, 255)])
        return pixels

    def exposure(self) -> Any:
        """Nearly no light, or far too much."""
        if self.random.random() < 0.5:
            gain, noise = self.random.uniform(0, 0.2), self.random.uniform(0, 8)
        else:
            gain, noise = self.random.uniform(3, 30), 0.0
        return self.image * gain + self._noise() * noise

    def checkerboard(self) -> Any:
        size = int(self.random.integers(1, 33))
        y, x = np.indices(self.image.shape[:2])
        white = (x // size + y // size) % 2 == 1
        return np.where(white[..., None], self._colour(), self._colour())

    def colour_bars(self) -> Any:
        """A test pattern: seven vertical bars, a grey wedge below."""
        level = self.random.uniform(120, 255)
        bars = np.array([[c >> 1 & 1, c >> 2 & 1, c & 1] for c in range(7, 0, -1)]) * level
        row = bars[np.arange(self.width) * 7 // self.width]
        pixels = np.broadcast_to(row, self.image.shape).copy()
        below = int(self.height * self.random.uniform(0.6, 1))
        pixels[below:] = np.linspace(0, 255, self.width)[None, :, None]
        return pixels

    def waves(self) -> Any:
        y, x = np.indices(self.image.shape[:2])
        start, across, down = (self.random.uniform(*ends) for ends in ((0, 7), (-2, 2), (-2, 2)))
        strength = self.random.uniform(20, 127) * self.random.uniform(0.2, 1, 3)
        return 127 + np.sin(start + x * across + y * down)[..., None] * strength

    def clouds(self) -> Any:
        """Noise whose strength falls with frequency, in colour or grey: blurred, like nature."""
        square = np.fft.fftfreq(self.height)[:, None] ** 2 + np.fft.rfftfreq(self.width) ** 2
        least = 1.0 / max(self.height, self.width) ** 2
        slope = np.maximum(square, least) ** self.random.uniform(0.2, 1.2)
        spectrum = np.fft.rfft2(self._noise(), axes=(0, 1)) / slope[..., None]
        pixels = np.fft.irfft2(spectrum, s=self.image.shape[:2], axes=(0, 1))
        return pixels * (self.random.uniform(15, 80) / pixels.std()) + self.random.uniform(60, 200)

    def spot(self) -> Any:
        """A lamp in an otherwise dark or coloured image."""
        y, x = np.indices(self.image.shape[:2])
        square = (x - self.random.uniform(0, self.width)) ** 2
        square = square + (y - self.random.uniform(0, self.height)) ** 2
        radius = self.height * self.random.uniform(0.05, 0.6)
        share = np.exp(-square / (2 * radius**2))[..., None]
        return self._colour() * share + self._colour() * (1 - share)

    def two_halves(self) -> Any:
        """Two dead halves of different kinds."""
        first, second = (self.draw(str(self.random.choice(_WHOLE))) for _ in range(2))
        return np.where(np.arange(self.width)[:, None] < self.width // 2, first, second)

    def hot_pixels(self) -> Any:
        pixels = self.dark_with_sensor_noise() * 0.3
        hit = self.random.random(self.image.shape) < self.random.uniform(0.0005, 0.02)
        pixels[hit] = self.random.uniform(100, 255)
        return pixels

    def message(self) -> Any:
        """``No signal``: a box with lines of writing on one colour."""
        pixels = self.constant_colour()
        tall = int(self.height * self.random.uniform(0.1, 0.4))
        wide = int(self.width * self.random.uniform(0.2, 0.7))
        top = int(self.random.integers(self.height - tall))
        left = int(self.random.integers(self.width - wide))
        box = pixels[top : top + tall, left : left + wide]
        box[...] = self._colour()
        ink = self.random.random((tall, wide)) < 0.4
        ink[:: max(2, tall // 4)] = False
        box[ink] = self._colour()
        return pixels

    def rolled(self) -> Any:
        """An image that starts at the wrong row, each row moved on a little."""
        start = int(self.random.integers(10, max(11, self.height - 10)))
        rows = np.roll(self.image, start, axis=0)
        skew = self.random.uniform(-1.5, 1.5) * (self.random.random() < 0.5)
        return np.stack([np.roll(row, int(index * skew), axis=0) for index, row in enumerate(rows)])


def _dead_since(random: Random, views: Sequence[View], family: str) -> dict[str, int]:
    """Draw which cameras fail, and since which of their steps (its age)."""
    ages = {view.name: [one.age for one in views if one.name == view.name] for view in views}
    if family in PARTIAL or random.random() >= 0.5:
        return {name: max(each) for name, each in ages.items()}
    names = random.permutation(list(ages))[: random.integers(1, max(2, len(ages)))]
    return {str(name): int(random.choice(ages[name])) for name in names}


def draw_frames(
    families: Sequence[str], images: Images, failures: Indices, random: Random,
    views: Sequence[View] = (),
) -> Images:  # fmt: skip
    """Draw one frame of each named family: (len(families), H, W, 3).

    ``images`` (N, H, W, 3) give the size; those with the indices ``failures`` may be damaged. Of
    several ``views``, all are dead in about half of the frames.
    """
    frames = np.empty((len(families), *images.shape[1:]), dtype=np.uint8)
    for frame, family in zip(frames, families, strict=True):
        frame[...] = images[failures[random.integers(len(failures))]]
        since = _dead_since(random, views, family) if views else {}
        dead = [view.age <= since.get(view.name, -1) for view in views] or [True]
        ends = np.cumsum([view.height for view in views])[:-1]
        for part, is_dead in zip(np.split(frame, ends), dead, strict=True):
            if is_dead:
                pixels = _Failure(random, part.copy()).draw(family)
                part[...] = np.clip(np.rint(pixels), 0, 255)
    return frames


def step_frames(
    step: int, count: int, images: Images, failures: Indices, *, seed: int,
    views: Sequence[View] = (),
) -> Images:  # fmt: skip
    """Draw the ``count`` frames of a training step, from its number and the seed alone.

    The families take turns.
    """
    chosen = [FAMILIES[(step * count + index) % len(FAMILIES)] for index in range(count)]
    return draw_frames(
        chosen, images, failures, np.random.default_rng([_SALT, seed, 0, step]), views
    )


def held_out(
    part: int, images: Images, failures: Indices, *, seed: int, count: int = HELD_OUT,
    families: Sequence[str] = FAMILIES, views: Sequence[View] = (),
) -> Iterator[tuple[str, Images]]:  # fmt: skip
    """Draw frames that no training step draws; yield each family and ``count`` frames of it.

    ``part`` is 1 for validation, 2 for test, another number for another use.
    """
    for number, family in enumerate(families):
        random = np.random.default_rng([_SALT, seed, part, number])
        yield family, draw_frames([family] * count, images, failures, random, views)


def logits_by_family(
    score: Callable[[Images], npt.NDArray[np.floating[Any]]], dataset: Dataset, part: Indices,
    number: int, seed: int,
) -> dict[str, npt.NDArray[np.float64]]:  # fmt: skip
    """Return logits (M, K) of a held-out part's frames of a failing camera, by family.

    ``score`` returns the logits of images (M, H, W, 3); ``part`` are indices; ``number`` is that
    of :func:`held_out`.
    """
    failures = part[dataset.labels[part] == 0]
    frames = held_out(number, dataset.images, failures, seed=seed, views=dataset.views)
    return {family: score(images).astype(np.float64) for family, images in frames}
