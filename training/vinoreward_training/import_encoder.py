"""``vinoreward import-encoder``: an encoder trained elsewhere becomes a bundle."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward_training.vae_bundle import bounds

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle

MAX_PICTURES = 500
"""On which the bounds of the latent are measured."""
GOLDEN_PICTURES = 8


@dataclass(frozen=True)
class ImportEncoderConfig:
    """Make a bundle of an encoder that was trained elsewhere.

    Takes an ONNX file, an OpenVINO .xml, or a state dict together with the function that builds
    its module. Give one picture with the latent that the original made of it: colour order, value
    range and size are then checked and not believed.

    Examples:
        vinoreward import-encoder --model encoder.onnx --pictures frames --out bundles/mine \\
            --golden frame.png --expected latent.npy
        vinoreward import-encoder --model weights.pt --module mypackage.nets:make_encoder \\
            --size 64 64 --posterior --pictures frames --out bundles/mine
    """

    model: Path
    """An .onnx, an .xml (with its .bin), or a state dict (.pt, .pth, .safetensors)."""
    pictures: Path
    """A folder of typical pictures: they give the bounds of the latent and the golden frames."""
    out: Path
    """The new bundle's folder."""
    name: str | None = None
    """Name of the bundle; default: the model file's name."""
    module: str | None = None
    """For a state dict: PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, which builds the module."""
    size: tuple[int, int] | None = None
    """HEIGHT WIDTH of the encoder's input, where the file does not say."""
    posterior: bool | None = None
    """Whether it gives means and log variances; default: as the file's outputs say."""
    latent: int | None = None
    """Length of the latent vector, where the outputs do not say."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs: the vector, or means then log variances; default: the file's."""
    color_order: Literal["RGB", "BGR"] = "RGB"
    """What the encoder was trained on."""
    layout: Literal["NCHW", "NHWC"] | None = None
    """Of the encoder's input, where the file does not say."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Per channel, in units of pixel / scale."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Per channel, in units of pixel / scale."""
    scale: float = 255.0
    """What pixels are divided by: 255 for an encoder trained on 0 to 1, 1 for one on 0 to 255."""
    resize: bool = True
    """Bring pictures of another size to the encoder's; otherwise they are an error."""
    golden: Path | None = None
    """One picture whose latent is known."""
    expected: Path | None = None
    """Its latent, a .npy file of D numbers (the means)."""
    overwrite: bool = False
    """Replace a bundle that is there already."""


def read_factory(text: str) -> Callable[[], Any]:
    """Return the function that ``PACKAGE.MODULE:FUNCTION`` or ``FILE.py:FUNCTION`` names.

    Raises:
        ConfigError: there is no such function.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"--module is {text!r}. Expected PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, a "
            "function without arguments that builds the encoder."
        )
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location("imported_encoder", where)
            if spec is None or spec.loader is None:
                raise ImportError(f"{where} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        factory = getattr(module, name)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            f"--module {text} cannot be imported ({error}). Expected a function that builds the "
            "encoder; check the name, or give the path of the file."
        ) from error
    if not callable(factory):
        raise ConfigError(
            f"--module {text} is a {type(factory).__name__}. Expected a function without arguments "
            "that builds the encoder."
        )
    return factory  # type: ignore[no-any-return]


def _golden(config: ImportEncoderConfig) -> tuple[Path, Path] | None:
    if (config.golden is None) != (config.expected is None):
        raise ConfigError(
            f"--golden is {config.golden} and --expected is {config.expected}. Expected both: a "
            "picture and the latent that the original encoder makes of it; or neither."
        )
    if config.golden is None or config.expected is None:
        return None
    return config.golden, config.expected


def with_measured_bounds(bundle: Bundle, pictures: npt.NDArray[np.uint8]) -> Bundle:
    """Return the bundle with bounds, and the posterior's deviation, as typical pictures have them.

    Args:
        bundle: of an encoder, not saved yet.
        pictures: (N, h, w, 3) uint8 RGB.

    Raises:
        ConfigError: the bundle is not of an encoder.
    """
    from vinoreward.bundles.bundle import Bundle

    encoding, size = bundle.spec.encoding, bundle.spec.latent_size
    if encoding is None or size is None:
        raise ConfigError(f"{bundle.path} is of kind {bundle.spec.kind}. Expected an encoder.")
    with bundle.backend("openvino", precision="fp32", verify=False) as backend:
        outputs = backend.infer(bundle.prepare(pictures))
    means = outputs[:, :size]
    std = np.zeros(size, dtype=np.float32)
    if encoding.posterior:
        std = np.exp(0.5 * outputs[:, size:].astype(np.float64)).mean(0).astype(np.float32)
    low, high = bounds(means, std)
    # A number that no picture moves still needs an interval.
    room = np.maximum(0.0, 1e-3 - (high - low))
    measured = dataclasses.replace(
        encoding,
        low=tuple(float(value) for value in low - room),
        high=tuple(float(value) for value in high + room),
        std=tuple(float(value) for value in std) if encoding.posterior else None,
    )
    return Bundle(path=bundle.path, spec=dataclasses.replace(bundle.spec, encoding=measured))


def _typical(config: ImportEncoderConfig) -> npt.NDArray[np.uint8]:
    from vinoreward_training.frames import load_frames

    return load_frames(
        config.pictures, size=config.size if config.resize else None, limit=MAX_PICTURES
    ).images


def _described(config: ImportEncoderConfig, onnx_path: Path) -> Bundle:
    """Return the bundle in memory; a module is exported to ``onnx_path``."""
    from vinoreward.bundles.bundle import Bundle

    facts: dict[str, Any] = {
        "posterior": config.posterior,
        "latent_size": config.latent,
        "mean": config.mean,
        "std": config.std,
        "scale": config.scale,
        "color_order": config.color_order,
        "resize": "pil_bilinear" if config.resize else "none",
        "golden": _golden(config),
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
            "builds the module that it belongs to, and HEIGHT WIDTH of its pictures."
        )
    return Bundle.from_encoder_module(
        read_factory(config.module)(), config.model, onnx_path, height=height, width=width, **facts
    )


def run(config: ImportEncoderConfig) -> int:
    """Describe, check, measure bounds and save; return 0."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = _described(config, Path(folder) / "model.onnx")
        pictures = _typical(config)
        saved = with_measured_bounds(bundle, pictures).save(
            config.out, pictures[:GOLDEN_PICTURES], overwrite=config.overwrite
        )
    encoding = saved.spec.encoding
    kind = "means and variances" if encoding is not None and encoding.posterior else "one vector"
    print(
        f"bundle {saved.path}: {saved.spec.picture.height} x {saved.spec.picture.width} pixels to "
        f"{saved.spec.latent_size} numbers ({kind}); "
        + (
            "the golden picture's latent is right."
            if config.golden
            else "not compared with the original: give --golden and --expected for that."
        )
    )
    print(f"next: vinoreward quantize --bundle {saved.path} --data {config.pictures}")
    return 0
