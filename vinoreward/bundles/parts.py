"""The parts of ``bundle.json``: picture, decision, encoding, quantization."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vinoreward.bundles.checks import finite, one_of, printable, wrong
from vinoreward.bundles.reader import Fields, plain

MAX_SIDE = 4096

Scalar = str | int | float | bool


@dataclass(frozen=True)
class Picture:
    """The picture that the network was trained on, and how it becomes the network's input.

    Callers always give RGB. Order of steps: crop, resize (both in :func:`~vinoreward.bundles.
    picture.prepare`), then in the network ``(pixel / scale - mean) / std`` per channel.
    """

    height: int
    """Pixels, 1 to 4096."""
    width: int
    """Pixels, 1 to 4096."""
    color_order: Literal["RGB", "BGR"] = "RGB"
    """Order that the bare network wants. The graph (or the backend) reverses it, the caller never
    does."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Per channel of the bare network, in units of ``pixel / scale``."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """As ``mean``; positive."""
    crop: tuple[int, int, int, int] | None = None
    """``(top, left, height, width)`` in pixels of the picture given."""
    resize: Literal["none", "pil_bilinear"] = "none"
    """``none``: any other size is an error. ``pil_bilinear``: antialiased, as Pillow does it."""
    scene: dict[str, Scalar] = field(default_factory=dict)
    """What drew the training pictures (a camera's ``as_dict``); empty when unknown."""
    in_graph: bool = True
    """Whether the graph takes RGB uint8 (N, H, W, 3) itself. False: a float network, the backend
    puts the conversion in front."""
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    """Layout of the graph's input; always NHWC where ``in_graph``."""
    scale: float = 255.0
    """What a pixel is divided by."""

    def __post_init__(self) -> None:
        for name, side in (("height", self.height), ("width", self.width)):
            if type(side) is not int or not 1 <= side <= MAX_SIDE:
                wrong(f"picture.{name}", side, f"1 to {MAX_SIDE} pixels")
        one_of("picture.color_order", self.color_order, ("RGB", "BGR"))
        one_of("picture.resize", self.resize, ("none", "pil_bilinear"))
        one_of("picture.layout", self.layout, ("NHWC", "NCHW"))
        for name in ("mean", "std"):
            values = tuple(finite(f"picture.{name}", item) for item in getattr(self, name))
            if len(values) != 3:
                wrong(f"picture.{name}", values, "three numbers, one per channel")
            object.__setattr__(self, name, values)
        object.__setattr__(self, "scale", finite("picture.scale", self.scale))
        if min(self.std) <= 0 or self.scale <= 0:
            wrong("picture.std, scale", (self.std, self.scale), "positive numbers")
        if self.in_graph and self.layout != "NHWC":
            wrong("picture.layout", self.layout, "NHWC where the graph takes uint8 (in_graph)")
        if self.crop is not None:
            self._check_crop(tuple(self.crop))
        scene = plain(self.scene, "picture.scene")
        for key, item in scene.items():
            if isinstance(item, (dict, list)) or item is None:
                wrong(f"picture.scene.{key}", item, "a string, number, true or false")
        object.__setattr__(self, "scene", scene)

    def _check_crop(self, crop: tuple[int, ...]) -> None:
        if (
            len(crop) != 4
            or any(type(item) is not int for item in crop)
            or min(crop[:2]) < 0
            or min(crop[2:]) < 1
            or max(crop) > MAX_SIDE
        ):
            wrong("picture.crop", crop, f"(top, left, height, width) within {MAX_SIDE} pixels")
        if self.resize == "none" and crop[2:] != (self.height, self.width):
            wrong(
                "picture.crop", crop, f"a crop of {self.height} x {self.width} pixels, or a resize"
            )
        object.__setattr__(self, "crop", crop)


@dataclass(frozen=True)
class Decision:
    """How a probability becomes success or not."""

    threshold: float = 0.5
    """Success when the calibrated probability is at least this."""
    temperature: float = 1.0
    """Logits are divided by this before the softmax."""
    chosen_for: dict[str, Any] = field(default_factory=dict)
    """How the threshold was chosen: target rate, bound, counts."""
    int8_band: float | None = None
    """Half-width, in calibrated log-odds around the threshold, within which the FP32 network looks
    at a picture again and its answer counts; ``None``: the INT8 network decides alone."""

    def __post_init__(self) -> None:
        for name in ("threshold", "temperature", "int8_band"):
            value = getattr(self, name)
            if value is not None or name != "int8_band":
                object.__setattr__(self, name, finite(f"decision.{name}", value))
        if not 0.0 <= self.threshold <= 1.0:
            wrong("decision.threshold", self.threshold, "a probability from 0 to 1")
        if self.int8_band is not None and self.int8_band < 0:
            wrong("decision.int8_band", self.int8_band, "a half-width of at least 0, or null")
        if self.temperature <= 0:
            wrong("decision.temperature", self.temperature, "a positive number")
        object.__setattr__(self, "chosen_for", plain(self.chosen_for, "decision.chosen_for"))


@dataclass(frozen=True)
class Encoding:
    """What an encoder's numbers mean. D is the bundle's ``latent_size``."""

    low: tuple[float, ...]
    """(D,) Stated bounds of the latent vectors, to which they are clipped at run time."""
    high: tuple[float, ...]
    """As ``low``; larger in every dimension."""
    posterior: bool = True
    """True: the network gives D means, then D natural logarithms of variances. False: D numbers, a
    plain autoencoder's."""
    std: tuple[float, ...] | None = None
    """(D,) Mean posterior standard deviation on held-out frames, in units of the latent: what a
    difference is measured in. ``None`` where it is not known."""
    log_variance_output: int | None = None
    """Which output of the graph has the log variances, where they are not beside the means."""

    def __post_init__(self) -> None:
        for name in ("low", "high", "std"):
            values = getattr(self, name)
            if values is not None or name != "std":
                if not isinstance(values, (list, tuple)):
                    wrong(f"encoding.{name}", values, "a list of numbers")
                found = tuple(finite(f"encoding.{name}", item) for item in values)
                object.__setattr__(self, name, found)
        if not len(self.low) == len(self.high) >= 1:
            wrong(
                "encoding.low, high",
                (len(self.low), len(self.high)),
                "one number each for every dimension of the latent",
            )
        if any(low >= high for low, high in zip(self.low, self.high, strict=True)):
            wrong("encoding.low, high", (self.low[:8], self.high[:8]), "low below high everywhere")
        if type(self.posterior) is not bool:
            wrong("encoding.posterior", self.posterior, "true or false")
        if self.std is not None and (len(self.std) != len(self.low) or min(self.std) <= 0):
            wrong("encoding.std", self.std[:8], "a positive number for every dimension, or null")
        output = self.log_variance_output
        if output is not None and (
            type(output) is not int or not 0 <= output < 100 or not self.posterior
        ):
            wrong("encoding.log_variance_output", output, "0 to 99 with a posterior, or null")


@dataclass(frozen=True)
class Quantization:
    """What the gate found when the INT8 network was compared with the FP32 one."""

    passed: bool
    """Whether INT8 may be chosen by ``precision="auto"``."""
    flips: int
    """Frames whose decision differs; of an encoder, those whose latent vector moves too far."""
    frames: int
    """Frames compared."""
    method: str
    """How it was quantized, e.g. ``nncf-ptq``."""
    max_flip_rate: float = 0.005
    """The share of flips that the gate allowed."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Whatever else is worth keeping: versions, counts, settings."""

    def __post_init__(self) -> None:
        if type(self.passed) is not bool:
            wrong("quantization.passed", self.passed, "true or false")
        if type(self.frames) is not int or self.frames < 1:
            wrong("quantization.frames", self.frames, "a whole number of at least 1")
        if type(self.flips) is not int or not 0 <= self.flips <= self.frames:
            wrong("quantization.flips", self.flips, f"0 to {self.frames}")
        printable("quantization.method", self.method)
        rate = finite("quantization.max_flip_rate", self.max_flip_rate)
        if not 0.0 <= rate <= 1.0:
            wrong("quantization.max_flip_rate", rate, "a share from 0 to 1")
        object.__setattr__(self, "max_flip_rate", rate)
        object.__setattr__(self, "detail", plain(self.detail, "quantization.detail"))

    @property
    def flip_rate(self) -> float:
        """Share of frames whose decision differs."""
        return self.flips / self.frames


def read_picture(fields: Fields) -> Picture:
    """Return the Picture that an object of ``bundle.json`` describes."""
    picture = Picture(
        height=fields.integer("height"),
        width=fields.integer("width"),
        color_order=fields.text("color_order", "RGB"),
        mean=fields.numbers("mean"),
        std=fields.numbers("std"),
        crop=fields.integers("crop", None),
        resize=fields.text("resize", "none"),
        scene=fields.mapping("scene", {}),
        in_graph=fields.flag("in_graph", True),
        layout=fields.text("layout", "NHWC"),
        scale=fields.number("scale", 255.0),
    )
    fields.done()
    return picture


def read_decision(fields: Fields) -> Decision:
    """Return the Decision that an object of ``bundle.json`` describes."""
    # Written as null before INT8 had a second look; one threshold serves every precision.
    if (old := fields.take("int8_threshold", None)) is not None:
        fields.wrong("int8_threshold", old, "null: INT8 has no threshold of its own any more")
    decision = Decision(
        threshold=fields.number("threshold", 0.5),
        temperature=fields.number("temperature", 1.0),
        chosen_for=fields.mapping("chosen_for", {}),
        int8_band=fields.take("int8_band", None),
    )
    fields.done()
    return decision


def read_encoding(fields: Fields) -> Encoding:
    """Return the Encoding that an object of ``bundle.json`` describes."""
    std = fields.take("std", None)
    encoding = Encoding(
        low=fields.numbers("low"),
        high=fields.numbers("high"),
        posterior=fields.flag("posterior", True),
        std=std,
        log_variance_output=fields.integer("log_variance_output", None),
    )
    fields.done()
    return encoding


def read_quantization(fields: Fields) -> Quantization:
    """Return the Quantization that an object of ``bundle.json`` describes."""
    quantization = Quantization(
        passed=fields.flag("passed"),
        flips=fields.integer("flips"),
        frames=fields.integer("frames"),
        method=fields.text("method"),
        max_flip_rate=fields.number("max_flip_rate", 0.005),
        detail=fields.mapping("detail", {}),
    )
    fields.done()
    return quantization
