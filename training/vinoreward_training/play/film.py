"""Films of episodes: frames with a caption under them, written as GIF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vinoreward.errors import ConfigError
from vinoreward.files import atomic_path
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.scene import make_camera
from vinoreward_training.policy.evaluate import EvalStep

FILM_WIDTH = 480
STRIP_HEIGHT = 56
MOST_FRAMES = 300
"""Maximum frames of a film: a game has thousands of steps, and a frame takes half a megabyte."""
FRAME_SECONDS = 0.25
"""Maximum seconds per frame."""
LAST_SECONDS = 1.0
"""An episode's last frame is shown so long."""
SHORTEST = 0.04
"""Minimum seconds per frame; viewers do not show less well."""
_INK, _PAPER = (235, 237, 240), (24, 27, 32)
_GOOD, _BAD = (110, 200, 120), (240, 120, 100)


class Filmer:
    """Collects captioned frames of the first ``episodes`` of an environment that renders.

    Films of more than ``MOST_FRAMES`` keep only every second, fourth, ... step and the last ones.
    """

    def __init__(self, env: gym.Env[Any, Any], episodes: int) -> None:
        self.frames: list[NDArray[np.uint8]] = []
        self.lasts: list[bool] = []
        self._stride = 1
        self._steps: list[int] = []
        self._env = env
        self._episodes = episodes
        self._camera: Any = None

    def __call__(self, step: EvalStep) -> None:
        """Add this step's frame, if its episode is filmed."""
        if step.episode >= self._episodes or (step.step % self._stride and not step.last):
            return
        self.frames.append(captioned(self._image(), step))
        self.lasts.append(step.last)
        self._steps.append(step.step)
        if len(self.frames) > MOST_FRAMES:
            self._thin()

    @property
    def frame_seconds(self) -> float:
        """Seconds per frame: the environment's own speed, where it tells."""
        rate = self._env.metadata.get("render_fps")
        seconds = self._stride / float(rate) if rate else FRAME_SECONDS
        return min(max(seconds, SHORTEST), FRAME_SECONDS)

    def close(self) -> None:
        """Free the film camera."""
        if self._camera is not None:
            self._camera.close()

    def _thin(self) -> None:
        """Drop every other frame: the length of episodes is not known in advance."""
        self._stride *= 2
        rows = zip(self.frames, self.lasts, self._steps, strict=True)
        thinned = [row for row in rows if row[1] or row[2] % self._stride == 0]
        self.frames, self.lasts, self._steps = (list(part) for part in zip(*thinned, strict=True))

    def _image(self) -> NDArray[np.uint8]:
        scene = getattr(self._env.unwrapped, "scene", None)
        if scene is not None and hasattr(scene, "pose"):
            return self._large_image(scene)
        frame = np.asarray(self._env.render(), dtype=np.uint8)
        if frame.ndim != 3 or frame.shape[2] != 3:
            raise ConfigError(
                f"found an image of shape {frame.shape} to film. Expected (height, width, 3); "
                "leave the film out with `film=0`."
            )
        return frame

    def _large_image(self, scene: Any) -> NDArray[np.uint8]:
        """Render the same scene larger than the classifier's image."""
        if self._camera is None:
            height, width = scene.camera_spec.height, scene.camera_spec.width
            factor = max(1, round(FILM_WIDTH / width))
            renderer = scene.camera_spec.renderer
            size = {"height": height * factor, "width": width * factor}
            self._camera = make_camera(CameraSpec(**size, renderer=renderer, mesh="full"))
        frame: NDArray[np.uint8] = self._camera.render(*scene.pose())
        return frame


def captioned(frame: NDArray[np.uint8], step: EvalStep) -> NDArray[np.uint8]:
    """Return the ``(H, W, 3)`` uint8 frame at film width with a strip of text under it."""
    image = Image.fromarray(frame)
    height = max(2, round(image.height * FILM_WIDTH / image.width))
    height += height % 2  # video codecs need even sizes
    if image.width != FILM_WIDTH:
        image = image.resize((FILM_WIDTH, height), Image.Resampling.BICUBIC)
    sheet = Image.new("RGB", (FILM_WIDTH, height + STRIP_HEIGHT), _PAPER)
    sheet.paste(image, (0, 0))
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=16)
    probability = step.info.get("reward_prob")
    words = f"episode {step.episode + 1}   step {step.step}"
    if probability is not None:
        words += f"   P(success) {float(probability):.2f}"
    draw.text((10, height + 6), words, _INK, font=font)
    for left, name, yes in ((10, "claimed", step.claimed), (170, "true", step.true)):
        word = "?" if yes is None else "yes" if yes else "no"
        draw.text((left, height + 30), f"{name}: ", _INK, font=font)
        offset = draw.textlength(f"{name}: ", font=font)
        colour = _INK if yes is None else _GOOD if yes else _BAD
        draw.text((left + offset, height + 30), word, colour, font=font)
    return np.asarray(sheet, dtype=np.uint8)


def save_film(
    path: Path,
    frames: Sequence[NDArray[np.uint8]],
    lasts: Sequence[bool],
    *,
    frame_seconds: float = FRAME_SECONDS,
) -> Path:
    """Write frames ``(H, W, 3)`` uint8 of one size as a GIF, atomically.

    ``lasts`` says for each frame whether it ends an episode; such frames are shown longer.
    """
    images = [Image.fromarray(frame) for frame in frames]
    palette = _palette(images)
    first, *rest = [p.quantize(palette=palette, dither=Image.Dither.NONE) for p in images]
    times = [round(1000 * (LAST_SECONDS if last else frame_seconds)) for last in lasts]
    with atomic_path(path) as part:
        first.save(part, "GIF", save_all=True, append_images=rest, duration=times, loop=0)
    return path


def _palette(images: Sequence[Image.Image]) -> Image.Image:
    """Return one palette for all frames: separate palettes make still parts flicker."""
    width, height = images[0].size
    some = images[:: max(1, len(images) // 8)]
    sheet = Image.new("RGB", (width, height * len(some)))
    for place, image in enumerate(some):
        sheet.paste(image, (0, place * height))
    extra = [value for colour in (_INK, _PAPER, _GOOD, _BAD) for value in colour]
    reduced = sheet.quantize(256 - len(extra) // 3, method=Image.Quantize.MEDIANCUT)
    colours = (reduced.getpalette() or [])[: 768 - len(extra)]
    palette = Image.new("P", (1, 1))
    # The caption's colours have few pixels, so the quantizer would drop them.
    palette.putpalette([*colours, *extra])
    return palette
