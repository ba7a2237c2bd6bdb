"""Images of a failing camera: no success in any task, and absent from every capture.

``vinoreward finetune`` mixes them into every batch as failures. Only images of failures are
damaged, so that the label is true however much of the image is left. Of several cameras all fail,
or some. A dead camera beside one that shows a success has no sure label, and is in no batch.
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
Values = npt.NDArray[np.float64]
Random = np.random.Generator
Maker = Callable[[Random, Images], Values]

SHARE = 0.125
"""Dead-camera frames added to a batch, as a share of its frames."""
HELD_OUT = 40
"""Frames of each family in validation, and as many in test."""
_SALT = 0xDEAD


def _colour(random: Random) -> Values:
    """Draw a colour; one in three has only full and missing channels, one in three is grey."""
    kind = random.integers(3)
    if kind == 0:
        return random.choice([0.0, 255.0], 3)
    return random.uniform(0, 255, 1 if kind == 1 else 3) * np.ones(3)


def _noise(random: Random, shape: tuple[int, ...]) -> Values:
    """Draw Gaussian noise (H, W, 3) of standard deviation 1, in colour or the same in all."""
    if random.random() < 0.5:
        return random.standard_normal(shape)
    return np.repeat(random.standard_normal((*shape[:2], 1)), 3, axis=2)


def _constant(random: Random, source: Images) -> Values:
    return np.broadcast_to(_colour(random), source.shape).copy()


def _dark(random: Random, source: Images) -> Values:
    """Sensor noise behind a lens cap: dark but not black, with rows or columns that differ."""
    level = random.uniform(0, 40) * random.uniform(0.5, 1, 3)
    values = level + _noise(random, source.shape) * random.uniform(1, 15)
    if random.random() < 0.5:
        height, width = source.shape[:2]
        shape = (height, 1, 1) if random.integers(2) == 0 else (1, width, 1)
        values = values + random.standard_normal(shape) * random.uniform(1, 10)
    return values


def _uniform(random: Random, source: Images) -> Values:
    low, high = np.sort(random.uniform(0, 256, 2)) if random.random() < 0.5 else (0.0, 256.0)
    grey = random.random() < 0.5
    shape = (*source.shape[:2], 1) if grey else source.shape
    return np.broadcast_to(random.uniform(low, high, shape), source.shape).copy()


def _salt_and_pepper(random: Random, source: Images) -> Values:
    values = _constant(random, source)
    hit = random.random(source.shape[:2]) < random.uniform(0.005, 1)
    white = random.random(source.shape[:2]) < random.uniform(0, 1)
    values[hit] = np.where(white[hit], 255.0, 0.0)[:, None]
    return values


def _blocks(random: Random, source: Images) -> Values:
    """Coarse blocks, as of a stream that lost its packets."""
    height, width = source.shape[:2]
    rows, columns = (int(random.integers(2, max(3, edge // 2))) for edge in (height, width))
    if random.random() < 0.5:
        columns = rows
    shape = (-(-height // rows), -(-width // columns), 1 if random.random() < 0.3 else 3)
    coarse = random.uniform(0, 255, shape)
    if random.random() < 0.3:
        coarse = _colour(random) + random.standard_normal(shape) * random.uniform(3, 60)
    return np.repeat(np.repeat(coarse, rows, 0), columns, 1)[:height, :width] * np.ones(3)


def _gradient(random: Random, source: Images) -> Values:
    height, width = source.shape[:2]
    angle = random.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    along = ((x * np.cos(angle) + y * np.sin(angle)) / np.sqrt(2) + 1) / 2
    values: Values = _colour(random) * along[..., None] + _colour(random) * (1 - along[..., None])
    return values + _noise(random, source.shape) * random.uniform(0, 20)


def _stripes(random: Random, source: Images) -> Values:
    """Rows or columns that have lost their synchronisation."""
    axis = int(random.integers(2))
    lines = -(-source.shape[axis] // (thick := int(random.integers(1, 17))))
    colours = random.uniform(0, 255, (lines, 1 if random.random() < 0.4 else 3)) * np.ones(3)
    colours = np.repeat(colours, thick, axis=0)[: source.shape[axis]]
    values = np.broadcast_to(np.expand_dims(colours, 1 - axis), source.shape)
    return values + _noise(random, source.shape) * random.uniform(0, 20)


def _lost_rows(random: Random, source: Images) -> Values:
    """Rows lost from somewhere on, or here and there; black, of one colour, noisy or repeated."""
    values = source.astype(np.float64)
    height = len(values)
    rows = np.arange(height)
    lost = rows >= random.integers(0, height) if random.random() < 0.5 else None
    if lost is None:
        lost = random.random(height) < random.uniform(0.1, 1)
    elif random.random() < 0.5:
        lost = lost[::-1]
    kind = random.integers(4)
    if kind == 3:
        last = np.maximum.accumulate(np.where(lost, 0, rows))
        return values[last]
    fill = np.zeros(3) if kind == 0 else _colour(random)
    noise = _noise(random, source.shape) * (random.uniform(5, 80) if kind == 2 else 0.0)
    values[lost] = (fill + noise)[lost]
    return values


def _dead_channel(random: Random, source: Images) -> Values:
    values = source.astype(np.float64)
    dead = random.permutation(3)[: random.integers(1, 3)]
    values[..., dead] = random.choice([0.0, 255.0, random.uniform(0, 255)])
    return values


def _exposure(random: Random, source: Images) -> Values:
    """Nearly no light, or far too much."""
    if random.random() < 0.5:
        gain, noise = random.uniform(0, 0.2), random.uniform(0, 8)
    else:
        gain, noise = random.uniform(3, 30), 0.0
    return source * gain + _noise(random, source.shape) * noise


FAMILIES: dict[str, Maker] = {
    "black": lambda random, source: np.full(
        source.shape, float(random.integers(0, 4)) * (random.random() < 0.5)
    ),
    "grey": lambda random, source: np.full(source.shape, random.uniform(0, 255)),
    "constant colour": _constant,
    "dark with sensor noise": _dark,
    "Gaussian noise": lambda random, source: (
        _colour(random) + _noise(random, source.shape) * random.uniform(3, 100)
    ),
    "uniform noise": _uniform,
    "salt and pepper": _salt_and_pepper,
    "coarse blocks": _blocks,
    "gradient": _gradient,
    "stripes": _stripes,
    "lost rows": _lost_rows,
    "dead channel": _dead_channel,
    "exposure": _exposure,
}
"""In training, by name."""


def _checkerboard(random: Random, source: Images) -> Values:
    size = int(random.integers(1, 33))
    y, x = np.indices(source.shape[:2])
    odd = (x // size + y // size) % 2 == 1
    return np.where(odd[..., None], _colour(random), _colour(random))


def _bars(random: Random, source: Images) -> Values:
    """A test pattern: seven vertical bars, a grey wedge below."""
    height, width = source.shape[:2]
    level = random.uniform(120, 255)
    bars = np.array([[c >> 1 & 1, c >> 2 & 1, c & 1] for c in range(7, 0, -1)]) * level
    values = np.broadcast_to(bars[np.arange(width) * 7 // width], source.shape).copy()
    below = int(height * random.uniform(0.6, 1))
    values[below:] = np.linspace(0, 255, width)[None, :, None]
    return values


def _waves(random: Random, source: Images) -> Values:
    y, x = np.indices(source.shape[:2])
    phase = random.uniform(0, 7) + x * random.uniform(-2, 2) + y * random.uniform(-2, 2)
    strength: Values = random.uniform(20, 127) * random.uniform(0.2, 1, 3)
    values: Values = 127 + np.sin(phase)[..., None] * strength
    return values


def _clouds(random: Random, source: Images) -> Values:
    """Noise whose strength falls with frequency, in colour or grey: blurred, like nature."""
    height, width = source.shape[:2]
    across = np.fft.fftfreq(height)[:, None] ** 2 + np.fft.rfftfreq(width) ** 2
    slope = np.maximum(across, 1.0 / max(height, width) ** 2) ** random.uniform(0.2, 1.2)
    drawn = np.fft.rfft2(_noise(random, source.shape), axes=(0, 1)) / slope[..., None]
    values: Values = np.fft.irfft2(drawn, s=(height, width), axes=(0, 1))
    values *= random.uniform(15, 80) / values.std()
    return values + random.uniform(60, 200)


def _spot(random: Random, source: Images) -> Values:
    """A lamp in an otherwise dark or coloured image."""
    height, width = source.shape[:2]
    y, x = np.indices((height, width))
    square = (x - random.uniform(0, width)) ** 2 + (y - random.uniform(0, height)) ** 2
    share = np.exp(-square / (2 * (height * random.uniform(0.05, 0.6)) ** 2))[..., None]
    values: Values = _colour(random) * share + _colour(random) * (1 - share)
    return values


def _halves(random: Random, source: Images) -> Values:
    """Two dead halves of different kinds."""
    first, second = (FAMILIES[str(random.choice(_WHOLE))](random, source) for _ in range(2))
    first[:, source.shape[1] // 2 :] = second[:, source.shape[1] // 2 :]
    return first


def _hot_pixels(random: Random, source: Images) -> Values:
    values = _dark(random, source) * 0.3
    hit = random.random(source.shape) < random.uniform(0.0005, 0.02)
    values[hit] = random.uniform(100, 255)
    return values


def _message(random: Random, source: Images) -> Values:
    """``No signal``: a box with lines of writing on one colour."""
    values = _constant(random, source)
    height, width = source.shape[:2]
    tall, wide = int(height * random.uniform(0.1, 0.4)), int(width * random.uniform(0.2, 0.7))
    top, left = int(random.integers(height - tall)), int(random.integers(width - wide))
    values[top : top + tall, left : left + wide] = _colour(random)
    ink = random.random((tall, wide)) < 0.4
    ink[:: max(2, tall // 4)] = False
    values[top : top + tall, left : left + wide][ink] = _colour(random)
    return values


def _rolled(random: Random, source: Images) -> Values:
    """An image that starts at the wrong row, each row moved on a little."""
    values = np.roll(source, int(random.integers(10, max(11, len(source) - 10))), axis=0)
    skew = random.uniform(-1.5, 1.5) * (random.random() < 0.5)
    rows = [np.roll(row, int(index * skew), axis=0) for index, row in enumerate(values)]
    return np.stack(rows).astype(np.float64)


_WHOLE = ("black", "constant colour", "Gaussian noise", "coarse blocks", "gradient", "stripes")
UNSEEN_FAMILIES: dict[str, Maker] = {
    "checkerboard": _checkerboard,
    "colour bars": _bars,
    "waves": _waves,
    "clouds": _clouds,
    "spot": _spot,
    "two halves": _halves,
    "hot pixels": _hot_pixels,
    "message": _message,
    "rolled": _rolled,
}
"""Never in training: they show whether a classifier generalises to other failures."""
PARTIAL = frozenset({"lost rows", "dead channel", "exposure", "rolled"})
"""What leaves some of the image. It befalls all cameras or none: a single one that shows half of
the scene is as one that something hides, and the others may see a success then."""


def _some_views(random: Random, source: Images, views: Sequence[View], family: str) -> Values:
    """Damage all views of an image, or those of some cameras since some of their steps."""
    ages = {view.name: [one.age for one in views if one.name == view.name] for view in views}
    since = {name: max(each) for name, each in ages.items()}
    if family not in PARTIAL and random.random() < 0.5:
        names = random.permutation(list(ages))[: random.integers(1, max(2, len(ages)))]
        since = {str(name): int(random.choice(ages[name])) for name in names}
    maker = (FAMILIES | UNSEEN_FAMILIES)[family]
    values, top = source.astype(np.float64), 0
    for view in views:
        if view.age <= since.get(view.name, -1):
            part = slice(top, top + view.height)
            values[part] = maker(random, source[part])
        top += view.height
    return values


def dead_frames(
    families: Sequence[str],
    images: Images,
    failures: npt.NDArray[np.int64],
    random: Random,
    views: Sequence[View] = (),
) -> Images:
    """Draw one frame of each named family: (len(families), H, W, 3).

    ``images`` (N, H, W, 3) give the size; those with the indices ``failures`` may be damaged. Of
    several ``views``, all are dead in about half of the frames.
    """
    makers = FAMILIES | UNSEEN_FAMILIES
    frames = np.empty((len(families), *images.shape[1:]), dtype=np.uint8)
    for frame, family in zip(frames, families, strict=True):
        source = images[failures[random.integers(len(failures))]]
        if views:
            values = _some_views(random, source, views, family)
        else:
            values = makers[family](random, source)
        frame[...] = np.clip(np.rint(values), 0, 255)
    return frames


def of_step(
    step: int,
    count: int,
    images: Images,
    failures: npt.NDArray[np.int64],
    *,
    seed: int,
    views: Sequence[View] = (),
) -> Images:
    """Draw the ``count`` frames of a training step, from its number and the seed alone.

    The families take turns.
    """
    names = list(FAMILIES)
    chosen = [names[(step * count + index) % len(names)] for index in range(count)]
    random = np.random.default_rng([_SALT, seed, 0, step])
    return dead_frames(chosen, images, failures, random, views)


def held_out(
    part: int,
    images: Images,
    failures: npt.NDArray[np.int64],
    *,
    seed: int,
    count: int = HELD_OUT,
    families: Sequence[str] = tuple(FAMILIES),
    views: Sequence[View] = (),
) -> Iterator[tuple[str, Images]]:
    """Draw frames that no training step draws; yield each family and ``count`` frames of it.

    ``part`` is 1 for validation, 2 for test, another number for another use.
    """
    for number, family in enumerate(families):
        random = np.random.default_rng([_SALT, seed, part, number])
        yield family, dead_frames([family] * count, images, failures, random, views)


def judged(
    score: Callable[[Images], npt.NDArray[np.floating[Any]]],
    dataset: Dataset,
    part: npt.NDArray[np.int64],
    number: int,
    seed: int,
) -> dict[str, npt.NDArray[np.float64]]:
    """Return logits (M, K) of a held-out part's dead-camera frames, by family.

    ``score`` returns the logits of images (M, H, W, 3); ``part`` are indices; ``number`` is that
    of :func:`held_out`.
    """
    failures = part[dataset.labels[part] == 0]
    return {
        family: score(images).astype(np.float64)
        for family, images in held_out(
            number, dataset.images, failures, seed=seed, views=dataset.views
        )
    }
