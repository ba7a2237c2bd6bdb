"""The content of ``bundle.json``: frozen dataclasses, checked when made, and their JSON."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from vinoreward.errors import BundleError
from vinoreward.images import ImageSpec
from vinoreward.strict_model import (
    STRICT,
    Flag,
    Name,
    Number,
    StrictModel,
    Table,
    Text,
    Whole,
    wrong,
)

SCHEMA_VERSION = 1
MAX_LABELS = 1000
MAX_FILES = 200

Output = Literal["logits", "probabilities", "logit", "probability"]
"""What a classifier's graph returns: a column per label, before or after the softmax; or one column
for the second of two labels, before or after the sigmoid."""
ONE_COLUMN = ("logit", "probability")

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")

Share = Annotated[Number, Field(ge=0, le=1)]
Band = Annotated[Number, Field(ge=0)]
OutputIndex = Annotated[Whole, Field(ge=0, lt=100)]
Sha256 = Annotated[Text, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, config=STRICT)
class Decision(StrictModel):
    """How a probability becomes success or not."""

    threshold: Share = 0.5
    """Success when the calibrated probability is at least this."""
    temperature: Annotated[Number, Field(gt=0)] = 1.0
    """Logits are divided by this before the softmax."""
    chosen_for: Table = field(default_factory=dict)
    """How the threshold was chosen: target rate, bound, counts."""
    int8_band: Band | None = None
    """Half-width, in calibrated log-odds around the threshold, within which the FP32 network
    decides instead; ``None``: the INT8 network decides alone."""
    translation_band: Band | None = None
    """Half-width, in calibrated log-odds around the threshold, within which the scores are means
    over the image and its copies moved by a pixel to the left and right; ``None``: nowhere."""


@dataclass(frozen=True, config=STRICT)
class Progress(StrictModel):
    """The meaning of a classifier's last column, if that is progress towards success.

    It is ``clip(scale * column + offset, 0, 1)``: 1 at success, and 1 less for each ``horizon``
    steps that are missing.
    """

    horizon: Annotated[Number, Field(gt=0)]
    """Steps of the recorded episodes from progress 0 to success."""
    scale: Annotated[Number, Field(gt=0)] = 1.0
    """Chosen, with ``offset``, on held-out frames."""
    offset: Number = 0.0


@dataclass(frozen=True, config=STRICT)
class Encoding(StrictModel):
    """The meaning of an encoder's outputs. D is the bundle's ``latent_size``."""

    low: tuple[Number, ...]
    """(D,) Lower bounds of the latent vectors, to which they are clipped."""
    high: tuple[Number, ...]
    """As ``low``; larger in every dimension."""
    posterior: Flag = True
    """True: the network returns D means, then D natural logarithms of variances. False: a plain
    autoencoder's D numbers."""
    std: tuple[Annotated[Number, Field(gt=0)], ...] | None = None
    """(D,) Mean posterior standard deviation on held-out frames, the unit of differences; ``None``
    if unknown."""
    log_variance_output: OutputIndex | None = None
    """The graph's output with the log variances, if they are not in the same one as the means."""

    def __post_init__(self) -> None:
        sizes = (len(self.low), len(self.high), len(self.low if self.std is None else self.std))
        if len(set(sizes)) > 1 or sizes[0] < 1:
            wrong("encoding.low, high, std", sizes, "one number each for every dimension")
        if any(low >= high for low, high in zip(self.low, self.high, strict=True)):
            wrong("encoding.low, high", (self.low[:8], self.high[:8]), "low below high everywhere")
        if self.log_variance_output is not None and not self.posterior:
            index = self.log_variance_output
            wrong("encoding.log_variance_output", index, "null without posterior")


@dataclass(frozen=True, config=STRICT)
class Quantization(StrictModel):
    """The gate's comparison of the INT8 network with the FP32 one."""

    passed: Flag
    """Whether INT8 may be chosen by ``precision="auto"``."""
    flips: Annotated[Whole, Field(ge=0)]
    """Frames whose decision differs; for an encoder, those whose latent vector moves too far."""
    frames: Annotated[Whole, Field(ge=1)]
    """Frames compared."""
    method: Name
    """How it was quantized, e.g. ``nncf-ptq``."""
    max_flip_rate: Share = 0.005
    """The fraction of flips that the gate allowed."""
    detail: Table = field(default_factory=dict)
    """Free JSON: versions, counts, settings."""

    def __post_init__(self) -> None:
        if self.flips > self.frames:
            wrong("quantization.flips", self.flips, f"0 to {self.frames}")


@dataclass(frozen=True, config=STRICT)
class BundleSpec(StrictModel):
    """The content of ``bundle.json``; BundleError for a value that cannot be right."""

    name: Name
    image: ImageSpec
    labels: Annotated[tuple[Name, ...], Field(max_length=MAX_LABELS)] = ("failure", "success")
    """One per output of a classifier, in order; of a network with one output two, the second of
    which it is for; empty for an encoder."""
    success_label: Text = "success"
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
    progress: Progress | None = None
    """Of a classifier with one column more than ``output`` says, the last; None for others."""
    output_index: OutputIndex = 0
    """Which output of the graph is used."""
    latent_size: Annotated[Whole, Field(ge=1, le=65536)] | None = None
    """Length of an encoder's vectors."""
    architecture: Name | None = None
    """Name of the torch network whose weights are ``model.safetensors``."""
    metrics: Table = field(default_factory=dict)
    """Free JSON: measured rates with counts and intervals."""
    dataset: Table = field(default_factory=dict)
    """Free JSON: ``sha256``, ``counts``, ``seed``."""
    versions: dict[str, Text] = field(default_factory=dict)
    files: Annotated[dict[str, Sha256], Field(max_length=MAX_FILES)] = field(default_factory=dict)
    """File name within the folder to SHA-256; written by ``save_bundle``."""
    schema_version: Annotated[Whole, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = SCHEMA_VERSION

    def __post_init__(self) -> None:
        self._check_outputs()
        in_graph = self.image.color_order == "RGB" and self.image.in_graph
        if self.architecture is not None and not in_graph:
            wrong("architecture", self.architecture, "an RGB network with in_graph, or none")
        for name in self.files:
            check_file_name(name)

    def _check_outputs(self) -> None:
        if self.kind == "encoder":
            classifies = self.labels or self.output in ONE_COLUMN or self.progress is not None
            if classifies or self.latent_size is None:
                values = (self.labels, self.latent_size, self.output, self.progress)
                expected = "no labels, a latent_size, logits and no progress for an encoder"
                wrong("labels, latent_size, output, progress", values, expected)
            size = None if self.encoding is None else len(self.encoding.low)
            if size != self.latent_size:
                expected = f"an encoding of {self.latent_size} dimensions, the latent_size"
                wrong("encoding", f"of {size} dimensions" if size else None, expected)
            return
        if self.latent_size is not None or self.encoding is not None:
            sizes = (self.latent_size, self.encoding)
            wrong("latent_size, encoding", sizes, "none for a classifier")
        if len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            wrong("labels", self.labels[:10], f"2 to {MAX_LABELS} different names")
        if self.output in ONE_COLUMN and len(self.labels) != 2:
            expected = f"two for the output {self.output!r}, a single column for the second of them"
            wrong("labels", self.labels[:10], expected)
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
            columns = 1 if self.output in ONE_COLUMN else len(self.labels)
            return columns + (self.progress is not None)
        return 2 * self.latent_size if self.encoding.posterior else self.latent_size

    def to_dict(self) -> dict[str, Any]:
        """Return the value that is written as ``bundle.json``."""
        value: dict[str, Any] = {"schema_version": self.schema_version, **to_jsonable_python(self)}
        if not self.image.views:  # unknown to readers of before
            del value["image"]["views"]
        return value

    @classmethod
    def from_dict(cls, value: object, where: str = "bundle.json") -> BundleSpec:
        """Return the spec of a parsed ``bundle.json``; BundleError if it is not valid."""
        if not isinstance(value, dict):
            wrong(where, value, "an object with named keys", "save the bundle again")
        version = value.get("schema_version")
        if type(version) is int and version > SCHEMA_VERSION:
            raise BundleError(
                f"{where} has schema version {version}. Expected at most {SCHEMA_VERSION}, "
                "the newest known here; upgrade vinoreward: pip install --upgrade vinoreward"
            )
        try:
            return cls(**value)
        except BundleError as error:
            raise BundleError(f"{where}: {error}") from error


def check_file_name(name: str) -> None:
    """Raise BundleError unless ``name`` is a plain relative name that stays within the folder."""
    if len(name) > 200 or not _FILE_NAME.fullmatch(name) or ".." in name.split("/"):
        expected = "a plain relative name of letters, digits, '.', '_' and '-'"
        remedy = "do not use this bundle unless you trust where it comes from"
        wrong("a file name in the bundle", name, expected, remedy)
