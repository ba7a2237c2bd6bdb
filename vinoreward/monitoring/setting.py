"""How strongly policies are compressed now: what a strategy reads and writes."""

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
    """What strategies turn while training runs; plain data.

    Attributes:
        bits: of a weight: 2 to 8 whole-number codes, 16 half precision, None full precision
            (32 means the same and is turned into None).
        sparsity: part of the neurons and channels that is removed, from 0 to below 1.
        alpha: probability that an actor uses the compressed network for its next block of steps;
            AcceRL's linear mix.
        pull_period: steps of one environment between two looks for newer weights.
        enabled: False stops compression altogether, whatever the rest says.

    Raises:
        ConfigError: a value that cannot be.
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
                f"a compression to {self.bits} bits was asked for. Expected 2 to 8, 16, or None."
            )
        if not (
            0.0 <= self.sparsity <= MOST_SPARSE
            and 0.0 <= self.alpha <= 1.0
            and self.pull_period >= 1
        ):
            raise ConfigError(
                f"a compression has sparsity {self.sparsity}, alpha {self.alpha} and pull period "
                f"{self.pull_period}. Expected 0 to {MOST_SPARSE}, 0 to 1, and at least 1 step."
            )

    @property
    def compresses(self) -> bool:
        """Whether any actor may use a network that is not the learner's."""
        return self.enabled and self.alpha > 0.0 and (self.bits is not None or self.sparsity > 0.0)

    def same_network(self, other: CompressionSetting) -> bool:
        """Return whether both make the same network out of a policy (alpha and pulls aside)."""
        return (self.enabled, self.bits, self.sparsity) == (
            other.enabled,
            other.bits,
            other.sparsity,
        )

    def changed(self, changes: Mapping[str, Any]) -> CompressionSetting:
        """Return a copy with other values.

        Raises:
            ConfigError: a name that a setting does not have.
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
        """Return plain data that :meth:`from_dict` takes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> CompressionSetting:
        """Build a setting from plain data.

        Raises:
            ConfigError: anything that :meth:`to_dict` would not have written.
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
                f"a compression setting cannot be read ({error!r}). Expected what "
                "CompressionSetting.to_dict gives."
            ) from error


def difference(before: CompressionSetting, after: CompressionSetting) -> str:
    """Return in words what changed, such as ``bits 8 -> 16``."""
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
        raise ConfigError(
            f"the precision {precision!r} was asked for. Expected fp32, fp16 or int2 to int8."
        )
    return int(found.group(1))
