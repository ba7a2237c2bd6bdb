"""``vinoreward import-encoder``: an encoder trained elsewhere becomes a bundle."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Encoding
from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError, ImageMismatchError
from vinoreward.images import ImageSpec
from vinoreward_training.configs import ImportEncoderConfig
from vinoreward_training.data.dataset import FRAME_SHARES, LOWEST_COUNT, load_frames
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.encoder.probe import bounds, mean_std
from vinoreward_training.runs.imports import in_options
from vinoreward_training.runs.next_command import after_bundle
from vinoreward_training.tasks.recorded import recorded_task

MAX_IMAGES = 500
"""To measure the bounds of the latent on."""
GOLDEN_IMAGES = 8
MAX_BYTES = 2**28
"""Of typical images in memory, if they cannot be resized as they are read."""
FACTORY = "a function without arguments that builds the encoder"


def _measured(bundle: Bundle, images: npt.NDArray[np.uint8]) -> Encoding:
    """Return the encoding with bounds and deviation measured on typical images (N, h, w, 3)."""
    encoding = cast(Encoding, bundle.spec.encoding)
    size = len(encoding.low)
    with bundle.backend("openvino", precision="fp32", verify=False) as backend:
        outputs = backend.infer(bundle.prepare(images))
    std = mean_std(outputs[:, size:]) if encoding.posterior else np.zeros(size, np.float32)
    low, high = bounds(outputs[:, :size], std)
    # A number that is the same for all images still needs an interval.
    room = np.maximum(0.0, 1e-3 - (high - low))
    return dataclasses.replace(
        encoding,
        low=tuple(map(float, low - room)),
        high=tuple(map(float, high + room)),
        std=tuple(map(float, std)) if encoding.posterior else None,
    )


def _typical(config: ImportEncoderConfig, image: ImageSpec) -> npt.NDArray[np.uint8]:
    """Return typical images (N, h, w, 3) uint8, before the bundle crops and resizes them."""
    # A few in their own size: many large ones would fill the memory.
    few = load_frames(config.images, limit=LOWEST_COUNT).images
    height, width = few.shape[1:3]
    wanted = (image.height, image.width)
    _check_aspect(config, config.crop[2:] if config.crop else (height, width), wanted)
    if config.crop is None:
        size = wanted if config.resize else None
        return load_frames(config.images, size=size, limit=MAX_IMAGES).images
    count = max(LOWEST_COUNT, min(MAX_IMAGES, MAX_BYTES // (height * width * 3)))
    return load_frames(config.images, limit=count).images


def _check_aspect(
    config: ImportEncoderConfig, size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """Refuse to squeeze images without ``--stretch``."""
    (height, width), (rows, columns) = size, wanted
    # Within a pixel: sides are whole numbers.
    same = abs(height * columns / width - rows) < 1 or abs(width * rows / height - columns) < 1
    if config.stretch or not config.resize or same:
        return
    factor = min(height / rows, width / columns)
    kept = (round(rows * factor), round(columns * factor))
    top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
    if config.crop is not None:
        top, left = top + config.crop[0], left + config.crop[1]
    raise ImageMismatchError(
        f"the {'crop' if config.crop else 'images'} of {height} x {width} pixels would be "
        f"squeezed to the encoder's {rows} x {columns} (height x width), which moves everything "
        "that it knows the place of. Expected the same aspect ratio; cut out the middle with "
        f"--crop {top} {left} {kept[0]} {kept[1]}, or what was cut out in training, or add "
        "--stretch if it was trained on squeezed images."
    )


def _described(config: ImportEncoderConfig, onnx_path: Path) -> Bundle:
    """Return the bundle in memory; a module is exported to ``onnx_path``."""
    if (config.golden is None) != (config.expected is None):
        raise ConfigError(
            f"--golden is {config.golden} and --expected is {config.expected}. Expected both: a "
            "image and the latent that the original encoder makes of it; or neither."
        )
    facts: dict[str, Any] = {
        "posterior": config.posterior,
        "latent_size": config.latent,
        "mean": config.mean,
        "std": config.std,
        "scale": config.scale,
        "color_order": config.color_order,
        "crop": config.crop,
        "resize": "pil_bilinear" if config.resize else "none",
        "golden": config.golden and (config.golden, config.expected),
        "name": config.name or config.model.stem,
    }
    height, width = config.size or (None, None)
    if config.model.suffix in (".onnx", ".xml"):
        return Bundle.from_encoder(
            config.model,
            layout=config.layout,
            outputs=config.outputs or None,
            height=height,
            width=width,
            **facts,
        )
    if config.module is None or height is None or width is None:
        raise ConfigError(
            f"{config.model} is a state dict; --module is {config.module} and --size is "
            f"{config.size}. Expected both: PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, which "
            "builds the module that it belongs to, and HEIGHT WIDTH of its images."
        )
    return Bundle.from_encoder_module(
        named_function(config.module, "module", FACTORY)(),
        config.model,
        onnx_path,
        height=height,
        width=width,
        **facts,
    )


def run(config: ImportEncoderConfig) -> int:
    """Describe, check, measure bounds and save; return 0."""
    with tempfile.TemporaryDirectory() as folder, in_options():
        bundle = _described(config, Path(folder) / "model.onnx")
        dataset = {**bundle.spec.dataset, **recorded_task(read_about(config.images))}
        images = _typical(config, bundle.spec.image)
        encoding = _measured(bundle, images)
        spec = dataclasses.replace(bundle.spec, dataset=dataset, encoding=encoding)
        saved = dataclasses.replace(bundle, spec=spec).save(
            config.out, images[:GOLDEN_IMAGES], overwrite=config.overwrite
        )
    compared = (
        "the golden image's latent is right."
        if config.golden
        else "not compared with the original: give --golden and --expected for that."
    )
    print(
        f"bundle {saved.path}: {spec.image.height} x {spec.image.width} pixels to "
        f"{spec.latent_size} numbers "
        f"({'means and variances' if encoding.posterior else 'one vector'}); {compared}"
    )
    held_out = int(sum(FRAME_SHARES) * len(images))
    print(f"next: {after_bundle(saved.path, saved.spec, config.images, held_out, 0)}")
    return 0
