"""Corruptions: changes of a camera's images in use that keep the label.

An audit's strengths go from what a working day brings to what somebody should notice; a training's
are the former.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.images import View

Images = npt.NDArray[np.uint8]
Random = np.random.Generator
_SALT = 0xA0D17


@dataclass(frozen=True)
class Corruption:
    """One kind of corruption, at several strengths."""

    name: str
    strengths: tuple[float, ...]
    """From weak to strong."""
    unit: str
    """What a strength means, for the report."""
    apply: Callable[[Images, float, Random], Images]
    """Of one image (H, W, 3) uint8 and a strength."""
    trained: tuple[float, float] | None = None
    """Least and largest strength in training; None where it is not trained."""


def _rounded(values: npt.NDArray[np.float32]) -> Images:
    rounded: Images = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return rounded


def _light(image: Images, gain: float, random: Random) -> Images:
    return _rounded(image * np.float32(gain))


def _cast(image: Images, share: float, random: Random) -> Images:
    """Red up and blue down, as under another lamp; a negative share does the opposite."""
    gains = np.array([1 + share, 1, 1 - share], np.float32)
    return _rounded(np.asarray(image * gains, np.float32))


def _swapped(image: Images, strength: float, random: Random) -> Images:
    return np.ascontiguousarray(image[..., ::-1])


def _blur(image: Images, share: float, random: Random) -> Images:
    from PIL import Image, ImageFilter

    radius = share * len(image)
    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)))


def _jpeg(image: Images, quality: float, random: Random) -> Images:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=int(quality))
    return np.asarray(Image.open(stream, formats=("JPEG",)))


def _noise(image: Images, deviation: float, random: Random) -> Images:
    drawn = random.standard_normal(image.shape, dtype=np.float32)
    return _rounded(image + np.float32(deviation) * drawn)


def _occlusion(image: Images, share: float, random: Random) -> Images:
    """Something of one colour before the camera, anywhere; it covers that share of the image."""
    height, width = image.shape[:2]
    stretch = float(np.exp(random.uniform(-0.5, 0.5)))
    tall = min(height, max(1, round(height * np.sqrt(share) * stretch)))
    wide = min(width, max(1, round(width * np.sqrt(share) / stretch)))
    top, left = random.integers(height - tall + 1), random.integers(width - wide + 1)
    covered = image.copy()
    covered[top : top + tall, left : left + wide] = random.integers(0, 256, 3)
    return covered


def _moved(image: Images, share: float, random: Random) -> Images:
    """The camera looks elsewhere by a share of the width; the edge is repeated."""
    height, width = image.shape[:2]
    angle, length = random.uniform(0, 2 * np.pi), max(1.0, share * width)
    down, right = round(length * np.sin(angle)), round(length * np.cos(angle))
    rows = np.clip(np.arange(height) + down, 0, height - 1)
    columns = np.clip(np.arange(width) + right, 0, width - 1)
    return np.asarray(image[rows[:, None], columns])


def _turned(image: Images, degrees: float, random: Random) -> Images:
    """The camera is turned about its axis; the edge is repeated."""
    from PIL import Image

    height, width = image.shape[:2]
    edge = int(np.ceil(np.hypot(height, width) / 2 * np.sin(np.radians(abs(degrees))))) + 2
    padded = Image.fromarray(np.pad(image, ((edge, edge), (edge, edge), (0, 0)), mode="edge"))
    turned = padded.rotate(degrees * random.choice([-1, 1]), Image.Resampling.BILINEAR)
    return np.asarray(turned)[edge : edge + height, edge : edge + width]


CORRUPTIONS: tuple[Corruption, ...] = (
    Corruption("less light", (0.85, 0.7, 0.5), "times the light", _light, (0.7, 1.0)),
    Corruption("more light", (1.15, 1.3, 1.6), "times the light", _light, (1.0, 1.3)),
    Corruption("warmer light", (0.1, 0.2, 0.4), "more red, less blue", _cast, (0.0, 0.2)),
    Corruption("colder light", (-0.1, -0.2, -0.4), "more red, less blue", _cast, (-0.2, 0.0)),
    Corruption("blur", (0.005, 0.01, 0.02), "of the height", _blur, (0.0, 0.01)),
    Corruption("JPEG", (50, 20, 8), "quality", _jpeg, (20, 90)),
    Corruption("noise", (5, 12, 25), "grey levels", _noise, (0.0, 12.0)),
    Corruption("occlusion", (0.02, 0.05, 0.12), "of the image", _occlusion, (0.002, 0.02)),
    Corruption("camera moved", (0.01, 0.03, 0.08), "of the width", _moved, (0.0, 0.01)),
    Corruption("camera turned", (1, 3, 8), "degrees", _turned, (0.0, 1.0)),
    Corruption("red and blue swapped", (1,), "", _swapped),
)
TRAINED = tuple(one for one in CORRUPTIONS if one.trained is not None)
SECOND = 0.4
"""Share of the corrupted images in training that are corrupted twice."""


def _applied(
    corruption: Corruption, strength: float, image: Images, seed: int, views: Sequence[View]
) -> Images:
    """Return one image after a corruption, the same in each of its views."""
    ends = np.cumsum([view.height for view in views])[:-1].tolist()
    parts = np.split(image, ends) if ends else [image]
    return np.concatenate(
        [corruption.apply(part, strength, np.random.default_rng(seed)) for part in parts]
    )


def corrupted(
    corruption: Corruption,
    strength: float,
    images: Images,
    *,
    seed: int,
    views: Sequence[View] = (),
) -> Images:
    """Return images (N, H, W, 3) after a corruption, drawn from the seed; the same in each view."""
    place = corruption.strengths.index(strength)
    random = np.random.default_rng([_SALT, seed, zlib.crc32(corruption.name.encode()), place])
    seeds = [int(random.integers(2**32)) for _ in images]
    changed = [
        _applied(corruption, strength, image, drawn, views)
        for image, drawn in zip(images, seeds, strict=True)
    ]
    return np.stack(changed) if changed else images.copy()


def randomly_corrupted(
    images: Images,
    share: float,
    random: Random,
    views: Sequence[View] = (),
    corruptions: Sequence[Corruption] = TRAINED,
) -> Images:
    """Return images (N, H, W, 3), a ``share`` of them after one or two corruptions as in training.

    They are the same in each view.
    """
    changed = images.copy()
    for index in np.flatnonzero(random.random(len(images)) < share):
        count = min(1 + int(random.random() < SECOND), len(corruptions))
        for number in random.choice(len(corruptions), count, replace=False):
            one = corruptions[number]
            strength, drawn = random.uniform(*one.trained or (0, 0)), int(random.integers(2**32))
            changed[index] = _applied(one, strength, changed[index], drawn, views)
    return changed
