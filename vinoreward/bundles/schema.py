"""What ``bundle.json`` says: frozen dataclasses, checked when they are made, and their JSON."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from vinoreward.bundles.checks import check_file_name, one_of, printable, texts, wrong
from vinoreward.bundles.parts import (
    Decision,
    Encoding,
    Picture,
    Quantization,
    read_decision,
    read_encoding,
    read_picture,
    read_quantization,
)
from vinoreward.bundles.reader import Fields, plain
from vinoreward.errors import BundleError

__all__ = ["BundleSpec", "Decision", "Encoding", "Picture", "Quantization", "check_file_name"]

SCHEMA_VERSION = 1
MAX_LABELS = 1000
MAX_FILES = 200

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BundleSpec:
    """Everything that ``bundle.json`` says. Made by hand or with :meth:`from_dict`.

    Raises:
        BundleError: a value that cannot be right.
    """

    name: str
    picture: Picture
    labels: tuple[str, ...] = ("failure", "success")
    """One per output of a classifier, in order; empty for an encoder."""
    success_label: str = "success"
    kind: Literal["classifier", "encoder"] = "classifier"
    decision: Decision = field(default_factory=Decision)
    """Not used by an encoder."""
    encoding: Encoding | None = None
    """Of an encoder; none for a classifier."""
    quantization: Quantization | None = None
    output: Literal["logits", "probabilities"] = "logits"
    """What the graph returns; ``logits`` for an encoder's latent vectors too."""
    output_index: int = 0
    """Which output of the graph is meant."""
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

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            wrong("schema_version", self.schema_version, f"{SCHEMA_VERSION}")
        printable("name", self.name)
        one_of("kind", self.kind, ("classifier", "encoder"))
        one_of("output", self.output, ("logits", "probabilities"))
        if type(self.output_index) is not int or not 0 <= self.output_index < 100:
            wrong("output_index", self.output_index, "0 to 99")
        object.__setattr__(self, "labels", tuple(self.labels))
        self._check_outputs()
        if self.architecture is not None:
            printable("architecture", self.architecture)
            if self.picture.color_order != "RGB" or not self.picture.in_graph:
                wrong("architecture", self.architecture, "an RGB network with in_graph, or none")
        object.__setattr__(self, "metrics", plain(self.metrics, "metrics"))
        object.__setattr__(self, "dataset", plain(self.dataset, "dataset"))
        object.__setattr__(self, "versions", texts("versions", self.versions))
        object.__setattr__(self, "files", texts("files", self.files))
        if len(self.files) > MAX_FILES:
            wrong("files", len(self.files), f"at most {MAX_FILES} entries")
        for name, digest in self.files.items():
            check_file_name(name)
            if not _SHA256.fullmatch(digest):
                wrong(f"files.{name}", digest, "a SHA-256 of 64 lower-case hexadecimal digits")

    def _check_outputs(self) -> None:
        if self.kind == "encoder":
            if self.labels or self.latent_size is None or not 1 <= self.latent_size <= 65536:
                wrong(
                    "labels, latent_size",
                    (self.labels, self.latent_size),
                    "no labels and a latent_size of 1 to 65536 for an encoder",
                )
            if self.encoding is None or len(self.encoding.low) != self.latent_size:
                wrong(
                    "encoding",
                    None if self.encoding is None else f"of {len(self.encoding.low)} dimensions",
                    f"an encoding of {self.latent_size} dimensions, the latent_size",
                )
            return
        if self.latent_size is not None or self.encoding is not None:
            wrong(
                "latent_size, encoding",
                (self.latent_size, self.encoding),
                "none for a classifier",
            )
        if not 2 <= len(self.labels) <= MAX_LABELS or len(set(self.labels)) != len(self.labels):
            wrong("labels", self.labels[:10], f"2 to {MAX_LABELS} different names")
        for label in self.labels:
            printable("labels", label)
        if self.success_label not in self.labels:
            wrong("success_label", self.success_label, f"one of {', '.join(self.labels[:10])}")

    @property
    def success_index(self) -> int:
        """Column of the network's output that stands for success."""
        return self.labels.index(self.success_label)

    @property
    def width(self) -> int:
        """Number of columns of the network's output: of an encoder D, or 2 D with log variances."""
        if self.latent_size is None or self.encoding is None:
            return len(self.labels)
        return 2 * self.latent_size if self.encoding.posterior else self.latent_size

    def to_dict(self) -> dict[str, Any]:
        """Return the value that is written as ``bundle.json``."""
        return cast(
            "dict[str, Any]",
            plain({"schema_version": self.schema_version, **dataclasses.asdict(self)}, "spec"),
        )

    @classmethod
    def from_dict(cls, value: object, where: str = "bundle.json") -> BundleSpec:
        """Check a parsed ``bundle.json`` and return it as a spec.

        Raises:
            BundleError: an unknown or missing key, a wrong type or value, or a newer schema.
        """
        fields = Fields(value, where)
        version = fields.integer("schema_version")
        if version > SCHEMA_VERSION:
            raise BundleError(
                f"{where} has schema version {version}. Expected at most {SCHEMA_VERSION}, "
                "the newest known here; upgrade vinoreward: pip install --upgrade vinoreward"
            )
        quantization = fields.mapping("quantization", None)
        encoding = fields.mapping("encoding", None)
        spec = {
            "schema_version": version,
            "name": fields.text("name"),
            "kind": fields.text("kind", "classifier"),
            "labels": fields.texts("labels"),
            "success_label": fields.text("success_label", "success"),
            "picture": read_picture(Fields(fields.take("picture"), f"{where}: picture")),
            "decision": read_decision(Fields(fields.take("decision", {}), f"{where}: decision")),
            "encoding": None
            if encoding is None
            else read_encoding(Fields(encoding, f"{where}: encoding")),
            "quantization": None
            if quantization is None
            else read_quantization(Fields(quantization, f"{where}: quantization")),
            "output": fields.text("output", "logits"),
            "output_index": fields.integer("output_index", 0),
            "latent_size": fields.integer("latent_size", None),
            "architecture": fields.text("architecture", None),
            "metrics": fields.mapping("metrics", {}),
            "dataset": fields.mapping("dataset", {}),
            "versions": fields.mapping("versions", {}),
            "files": fields.mapping("files", {}),
        }
        fields.done()
        return cls(**spec)
