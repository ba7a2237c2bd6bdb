"""The content of ``bundle.json``: frozen dataclasses, checked when made, and their JSON."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from vinoreward.bundles.reader import Described, plain, wrong
from vinoreward.errors import BundleError

SCHEMA_VERSION = 1
MAX_LABELS = 1000
MAX_FILES = 200
MAX_SIDE = 4096
MAX_VIEWS = 32
MAX_AGE = 100

Scalar = str | int | float | bool
Output = Literal["logits", "probabilities", "logit", "probability"]
"""What a classifier's graph returns: a column per label, before or after the softmax; or one column
for the second of two labels, before or after the sigmoid."""
ONE_COLUMN = ("logit", "probability")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True)
class View(Described):
    """One of several pictures that the network looks at together; a row of ``picture.views``.

    Views of one camera have its name, source and height, and different ages.
    """

    name: str
    """Of the camera."""
    height: int
    """Pixels; the width is the picture's."""
    source: str = "render"
    """Where it comes from: ``render``, ``obs`` or ``obs:<key>``, as ``image_source`` names it."""
    age: int = 0
    """How many steps old: 0 is the newest. In an episode's first steps its first picture."""

    _place: ClassVar[str] = "picture.views"

    def _check(self) -> None:
        _printable("picture.views.name", self.name)
        if not 1 <= self.height <= MAX_SIDE:
            wrong("picture.views.height", self.height, f"1 to {MAX_SIDE} pixels")
        if not 0 <= self.age <= MAX_AGE:
            wrong("picture.views.age", self.age, f"0 to {MAX_AGE} steps")
        key = self.source.removeprefix("obs:")
        if self.source not in ("render", "obs") and key in ("", self.source):
            wrong("picture.views.source", self.source, "render, obs or obs:<key>")

    def __str__(self) -> str:
        age = f", {self.age} steps ago" if self.age else ""
        return f"{self.name}{age} ({self.source}, {self.height} pixels high)"


@dataclass(frozen=True)
class Picture(Described):
    """The picture that the network was trained on, and how it becomes the network's input.

    Callers always give RGB. Order of steps: crop, resize (both in :func:`~vinoreward.bundles.
    picture.prepare`), then in the network ``(pixel / scale - mean) / std`` per channel.

    Several cameras, or the last pictures of one, are *views* below each other in one picture; see
    :func:`~vinoreward.bundles.picture.tiled`. The network takes them apart again.
    """

    height: int
    """Pixels, 1 to 4096."""
    width: int
    """Pixels, 1 to 4096."""
    color_order: Literal["RGB", "BGR"] = "RGB"
    """Order that the bare network takes. The graph or the backend reverses it, never the caller."""
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
    views: tuple[View, ...] = ()
    """From top to bottom; empty for a picture of one view. ``resize`` is of each one."""

    _place: ClassVar[str] = "picture"
    _required: ClassVar[tuple[str, ...]] = ("mean", "std")

    def _check(self) -> None:
        for name, side in (("height", self.height), ("width", self.width)):
            if not 1 <= side <= MAX_SIDE:
                wrong(f"picture.{name}", side, f"1 to {MAX_SIDE} pixels")
        if min(self.std) <= 0 or self.scale <= 0:
            wrong("picture.std, scale", (self.std, self.scale), "positive numbers")
        if self.in_graph and self.layout != "NHWC":
            wrong("picture.layout", self.layout, "NHWC where the graph takes uint8 (in_graph)")
        if self.crop is not None:
            self._check_crop(self.crop)
        for key, item in self.scene.items():
            if isinstance(item, (dict, list)) or item is None:
                wrong(f"picture.scene.{key}", item, "a string, number, true or false")
        if self.views:
            self._check_views()

    def _check_views(self) -> None:
        if len(self.views) > MAX_VIEWS:
            wrong("picture.views", len(self.views), f"at most {MAX_VIEWS} views")
        heights = [view.height for view in self.views]
        if sum(heights) != self.height:
            wrong("picture.views", heights, f"heights that add up to {self.height}, the picture's")
        if self.crop is not None:
            wrong("picture.crop", self.crop, "null in a picture of several views")
        known: dict[str, View] = {}
        for view in self.views:
            first = known.setdefault(view.name, view)
            if (view.source, view.height) != (first.source, first.height):
                expected = "one source and height for all views of a camera"
                wrong("picture.views", (view.name, view.source, view.height), expected)
        pairs = [(view.name, view.age) for view in self.views]
        if len(set(pairs)) < len(pairs):
            wrong("picture.views", pairs, "different names, or different ages of one name")

    @property
    def cameras(self) -> dict[str, View]:
        """The first view of each camera, by name, in order; empty for a picture of one view."""
        cameras: dict[str, View] = {}
        for view in self.views:
            cameras.setdefault(view.name, view)
        return cameras

    def of_view(self, view: View) -> Picture:
        """Return what a single picture for a view is like."""
        return dataclasses.replace(self, height=view.height, views=())

    def _check_crop(self, crop: tuple[int, ...]) -> None:
        if min(crop[:2]) < 0 or min(crop[2:]) < 1 or max(crop) > MAX_SIDE:
            wrong("picture.crop", crop, f"(top, left, height, width) within {MAX_SIDE} pixels")
        if self.resize == "none" and crop[2:] != (self.height, self.width):
            expected = f"a crop of {self.height} x {self.width} pixels, or a resize"
            wrong("picture.crop", crop, expected)


@dataclass(frozen=True)
class Decision(Described):
    """How a probability becomes success or not."""

    threshold: float = 0.5
    """Success when the calibrated probability is at least this."""
    temperature: float = 1.0
    """Logits are divided by this before the softmax."""
    chosen_for: dict[str, Any] = field(default_factory=dict)
    """How the threshold was chosen: target rate, bound, counts."""
    int8_band: float | None = None
    """Half-width, in calibrated log-odds around the threshold, within which the FP32 network
    decides instead; ``None``: the INT8 network decides alone."""
    shift_band: float | None = None
    """Half-width, in calibrated log-odds around the threshold, within which the scores are means
    over the picture and its copies moved by a pixel to the left and right; ``None``: nowhere."""

    _place: ClassVar[str] = "decision"

    def _check(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            wrong("decision.threshold", self.threshold, "a probability from 0 to 1")
        for name in ("int8_band", "shift_band"):
            if (band := getattr(self, name)) is not None and band < 0:
                wrong(f"decision.{name}", band, "a half-width of at least 0, or null")
        if self.temperature <= 0:
            wrong("decision.temperature", self.temperature, "a positive number")

    @classmethod
    def arguments(cls, value: object, where: str) -> dict[str, Any]:
        """Return the arguments; an older bundle may have an INT8 threshold of null."""
        if isinstance(value, dict) and "int8_threshold" in value:
            # Now one threshold serves every precision.
            if (old := value["int8_threshold"]) is not None:
                expected = "null: INT8 has no threshold of its own any more"
                wrong("decision.int8_threshold", old, expected)
            value = {key: item for key, item in value.items() if key != "int8_threshold"}
        return super().arguments(value, where)


@dataclass(frozen=True)
class Encoding(Described):
    """The meaning of an encoder's outputs. D is the bundle's ``latent_size``."""

    low: tuple[float, ...]
    """(D,) Lower bounds of the latent vectors, to which they are clipped."""
    high: tuple[float, ...]
    """As ``low``; larger in every dimension."""
    posterior: bool = True
    """True: the network returns D means, then D natural logarithms of variances. False: a plain
    autoencoder's D numbers."""
    std: tuple[float, ...] | None = None
    """(D,) Mean posterior standard deviation on held-out frames, the unit of differences; ``None``
    if unknown."""
    log_variance_output: int | None = None
    """The graph's output with the log variances, if they are not in the same one as the means."""

    _place: ClassVar[str] = "encoding"

    def _check(self) -> None:
        if not len(self.low) == len(self.high) >= 1:
            sizes, expected = (len(self.low), len(self.high)), "one number each for every dimension"
            wrong("encoding.low, high", sizes, expected)
        if any(low >= high for low, high in zip(self.low, self.high, strict=True)):
            wrong("encoding.low, high", (self.low[:8], self.high[:8]), "low below high everywhere")
        if self.std is not None and (len(self.std) != len(self.low) or min(self.std) <= 0):
            wrong("encoding.std", self.std[:8], "a positive number for every dimension, or null")
        output = self.log_variance_output
        if output is not None and (not 0 <= output < 100 or not self.posterior):
            wrong("encoding.log_variance_output", output, "0 to 99 with a posterior, or null")


@dataclass(frozen=True)
class Quantization(Described):
    """The gate's comparison of the INT8 network with the FP32 one."""

    passed: bool
    """Whether INT8 may be chosen by ``precision="auto"``."""
    flips: int
    """Frames whose decision differs; for an encoder, those whose latent vector moves too far."""
    frames: int
    """Frames compared."""
    method: str
    """How it was quantized, e.g. ``nncf-ptq``."""
    max_flip_rate: float = 0.005
    """The fraction of flips that the gate allowed."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Free JSON: versions, counts, settings."""

    _place: ClassVar[str] = "quantization"

    def _check(self) -> None:
        if self.frames < 1:
            wrong("quantization.frames", self.frames, "a whole number of at least 1")
        if not 0 <= self.flips <= self.frames:
            wrong("quantization.flips", self.flips, f"0 to {self.frames}")
        _printable("quantization.method", self.method)
        if not 0.0 <= self.max_flip_rate <= 1.0:
            wrong("quantization.max_flip_rate", self.max_flip_rate, "a share from 0 to 1")

    @property
    def flip_rate(self) -> float:
        """Fraction of frames whose decision differs."""
        return self.flips / self.frames


@dataclass(frozen=True)
class BundleSpec(Described):
    """The content of ``bundle.json``; BundleError for a value that cannot be right."""

    name: str
    picture: Picture
    labels: tuple[str, ...] = ("failure", "success")
    """One per output of a classifier, in order; of a network with one output two, the second of
    which it is for; empty for an encoder."""
    success_label: str = "success"
    kind: Literal["classifier", "encoder"] = "classifier"
    decision: Decision = field(default_factory=Decision)
    """Not used by an encoder."""
    encoding: Encoding | None = None
    """Of an encoder; none for a classifier."""
    quantization: Quantization | None = None
    output: Output = "logits"
    """What the graph returns: ``logits`` or ``probabilities``, one column per label; ``logit`` or
    ``probability``, one column for the second of two labels (a sigmoid head). ``logits`` also for
    an encoder's latent vectors."""
    output_index: int = 0
    """Which output of the graph is used."""
    latent_size: int | None = None
    """Length of an encoder's vectors."""
    architecture: str | None = None
    """Name of the torch network whose weights are ``model.safetensors``."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Free JSON: measured rates with counts and intervals."""
    dataset: dict[str, Any] = field(default_factory=dict)
    """Free JSON: ``sha256``, ``counts``, ``seed``."""
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """File name within the folder to SHA-256; written by ``save_bundle``."""
    schema_version: int = SCHEMA_VERSION

    _required: ClassVar[tuple[str, ...]] = ("schema_version", "labels")

    def _check(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            wrong("schema_version", self.schema_version, f"{SCHEMA_VERSION}")
        _printable("name", self.name)
        if not 0 <= self.output_index < 100:
            wrong("output_index", self.output_index, "0 to 99")
        self._check_outputs()
        if self.architecture is not None:
            _printable("architecture", self.architecture)
            if self.picture.color_order != "RGB" or not self.picture.in_graph:
                wrong("architecture", self.architecture, "an RGB network with in_graph, or none")
        if len(self.files) > MAX_FILES:
            wrong("files", len(self.files), f"at most {MAX_FILES} entries")
        for name, digest in self.files.items():
            check_file_name(name)
            if not _SHA256.fullmatch(digest):
                wrong(f"files.{name}", digest, "a SHA-256 of 64 lower-case hexadecimal digits")

    def _check_outputs(self) -> None:
        if self.kind == "encoder":
            if self.labels or self.latent_size is None or not 1 <= self.latent_size <= 65536:
                expected = "no labels and a latent_size of 1 to 65536 for an encoder"
                wrong("labels, latent_size", (self.labels, self.latent_size), expected)
            size = None if self.encoding is None else len(self.encoding.low)
            if size != self.latent_size:
                expected = f"an encoding of {self.latent_size} dimensions, the latent_size"
                wrong("encoding", f"of {size} dimensions" if size else None, expected)
            if self.output in ONE_COLUMN:
                wrong("output", self.output, "logits for an encoder")
            return
        if self.latent_size is not None or self.encoding is not None:
            values = (self.latent_size, self.encoding)
            wrong("latent_size, encoding", values, "none for a classifier")
        if not 2 <= len(self.labels) <= MAX_LABELS or len(set(self.labels)) != len(self.labels):
            wrong("labels", self.labels[:10], f"2 to {MAX_LABELS} different names")
        if self.output in ONE_COLUMN and len(self.labels) != 2:
            expected = f"two for the output {self.output!r}, a single column for the second of them"
            wrong("labels", self.labels[:10], expected)
        for label in self.labels:
            _printable("labels", label)
        if self.success_label not in self.labels:
            wrong("success_label", self.success_label, f"one of {', '.join(self.labels[:10])}")

    @property
    def success_index(self) -> int:
        """Place of the success label, and its column in outputs of one column per label."""
        return self.labels.index(self.success_label)

    @property
    def width(self) -> int:
        """Columns of the network's output; for an encoder D, or 2 D with log variances."""
        if self.latent_size is None or self.encoding is None:
            return 1 if self.output in ONE_COLUMN else len(self.labels)
        return 2 * self.latent_size if self.encoding.posterior else self.latent_size

    def to_dict(self) -> dict[str, Any]:
        """Return the value that is written as ``bundle.json``."""
        value: dict[str, Any] = {
            "schema_version": self.schema_version,
            **dataclasses.asdict(self),
        }
        if not self.picture.views:  # unknown to readers of before
            del value["picture"]["views"]
        return cast("dict[str, Any]", plain(value, "spec"))

    @classmethod
    def from_dict(cls, value: object, where: str = "bundle.json") -> BundleSpec:
        """Return the spec of a parsed ``bundle.json``; BundleError if it is not valid."""
        version = value.get("schema_version") if isinstance(value, dict) else None
        if type(version) is int and version > SCHEMA_VERSION:
            raise BundleError(
                f"{where} has schema version {version}. Expected at most {SCHEMA_VERSION}, "
                "the newest known here; upgrade vinoreward: pip install --upgrade vinoreward"
            )
        try:
            if version is not None and type(version) is not int:  # checked before its keys
                wrong("schema_version", version, "a whole number")
            return cls(**cls.arguments(value, "the description"))
        except BundleError as error:
            raise BundleError(f"{where}: {error}") from error


def check_file_name(name: str) -> None:
    """Raise BundleError unless ``name`` is a plain relative name that stays within the folder."""
    if len(name) > 200 or not _FILE_NAME.fullmatch(name) or ".." in name.split("/"):
        wrong(
            "a file name in the bundle",
            name,
            "a plain relative name like pictures/roc.png, of letters, digits, '.', '_' and '-'",
            "do not use this bundle unless you trust where it comes from",
        )


def _printable(name: str, text: str) -> None:
    if not 1 <= len(text.strip()) <= 200 or not text.isprintable():
        wrong(name, text, "a printable name of 1 to 200 characters")
