"""The compression setting, which strategies read and change."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vinoreward.errors import ConfigError

FULL_BITS = 32
HALF_BITS = 16
MOST_SPARSE = 0.99


@dataclass(frozen=True)
class CompressionSetting:
    """The compression parameters that strategies change during training; plain data.

    Attributes:
        bits: per weight: 2 to 8 for integer codes, 16 for half precision, None for full precision
            (32 is converted to None).
        sparsity: fraction of neurons and channels to remove, from 0 to below 1.
        alpha: probability that an actor uses the compressed network for its next block of steps;
            AcceRL's linear mix.
        pull_period: steps of one environment between two checks for newer weights.
        enabled: False stops all compression.

    Raises:
        ConfigError: an invalid value.
    """

    bits: int | None = 8
    sparsity: float = 0.0
    alpha: float = 1.0
    pull_period: int = 100
    enabled: bool = True

    def __post_init__(self) -> None:
        if self.bits == FULL_BITS:
            object.__setattr__(self, "bits", None)
        if self.bits is not None and self.bits != HALF_BITS and not 2 <= self.bits <= 8:
            raise ConfigError(
                f"the compression setting has bits={self.bits}. Expected 2 to 8, 16, or None."
            )
        if not (
            0.0 <= self.sparsity <= MOST_SPARSE
            and 0.0 <= self.alpha <= 1.0
            and self.pull_period >= 1
        ):
            raise ConfigError(
                f"the compression setting has sparsity {self.sparsity}, alpha {self.alpha} and "
                f"pull period {self.pull_period}. Expected 0 to {MOST_SPARSE}, 0 to 1, and at "
                "least 1 step."
            )

    @property
    def compresses(self) -> bool:
        """Whether any actor may use a network that is not the learner's."""
        return self.enabled and self.alpha > 0.0 and (self.bits is not None or self.sparsity > 0.0)

    def same_network(self, other: CompressionSetting) -> bool:
        """Return whether both give the same network (alpha and pull period do not matter)."""
        return (self.enabled, self.bits, self.sparsity) == (
            other.enabled,
            other.bits,
            other.sparsity,
        )

    def changed(self, changes: Mapping[str, Any]) -> CompressionSetting:
        """Return a copy with other values.

        Raises:
            ConfigError: an unknown name.
        """
        names = {field.name for field in dataclasses.fields(self)}
        unknown = sorted(set(changes) - names)
        if unknown:
            raise ConfigError(
                f"a compression setting has no {', '.join(unknown)}. Expected one of "
                f"{', '.join(sorted(names))}."
            )
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for :meth:`from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> CompressionSetting:
        """Return a setting from plain data.

        Raises:
            ConfigError: data that :meth:`to_dict` does not write.
        """
        try:
            bits = value["bits"]
            return cls().changed(
                {
                    **value,
                    "bits": None if bits is None else int(bits),
                    "sparsity": float(value["sparsity"]),
                    "alpha": float(value["alpha"]),
                    "pull_period": int(value["pull_period"]),
                    "enabled": bool(value["enabled"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"cannot read the compression setting ({error!r}). Expected what "
                "CompressionSetting.to_dict returns."
            ) from error


def difference(before: CompressionSetting, after: CompressionSetting) -> str:
    """Describe what changed, such as ``bits 8 -> 16``."""
    words = []
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            words.append(f"{field.name} {_word(old)} -> {_word(new)}")
    return ", ".join(words) if words else "nothing"


def _word(value: float | None) -> str:
    if value is None:
        return "32"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.3g}"
    return str(value)


def bits_of(precision: str) -> int | None:
    """Return the bits of a precision: ``fp32`` (None), ``fp16``, ``int2`` to ``int8``.

    Raises:
        ConfigError: another name.
    """
    if precision == "fp32":
        return None
    if precision == "fp16":
        return HALF_BITS
    found = re.fullmatch(r"int([2-8])", precision)
    if found is None:
        raise ConfigError(f"got precision {precision!r}. Expected fp32, fp16 or int2 to int8.")
    return int(found.group(1))
