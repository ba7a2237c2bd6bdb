"""The compression setting, and the base of strategies that change it.

To write your own strategy, implement ``decide(readings, setting) -> setting``.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vinoreward.errors import ConfigError

FULL_BITS = 32
PRECISIONS = {"fp32": None, "fp16": 16, **{f"int{bits}": bits for bits in range(2, 9)}}
"""Bits per weight of each precision; None: full precision."""
MOST_SPARSE = 0.99

Readings = Mapping[str, float]
Verdict = Literal["bad", "good", "between", "absent", "resting"]


@dataclass(frozen=True)
class CompressionSetting:
    """The compression parameters that strategies change during training; plain data.

    Raises:
        ConfigError: an invalid value.
    """

    bits: int | None = 8
    """Per weight: 2 to 8 for integer codes, 16 for half precision, None for full precision (32 is
    converted to None)."""
    sparsity: float = 0.0
    """Fraction of neurons and channels to remove, from 0 to below 1."""
    alpha: float = 1.0
    """Probability that an actor uses the compressed network for its next block of steps; AcceRL's
    linear mix."""
    enabled: bool = True
    """False stops all compression."""

    def __post_init__(self) -> None:
        if self.bits == FULL_BITS:
            object.__setattr__(self, "bits", None)
        if self.bits not in PRECISIONS.values():
            raise ConfigError(
                f"the compression setting has bits={self.bits}. Expected 2 to 8, 16, or None."
            )
        if not (0.0 <= self.sparsity <= MOST_SPARSE and 0.0 <= self.alpha <= 1.0):
            raise ConfigError(
                f"the compression setting has sparsity {self.sparsity} and alpha {self.alpha}. "
                f"Expected 0 to {MOST_SPARSE}, and 0 to 1."
            )

    @property
    def compresses(self) -> bool:
        """Whether any actor may use a network that is not the learner's."""
        return self.enabled and self.alpha > 0.0 and (self.bits is not None or self.sparsity > 0.0)

    def same_network(self, other: CompressionSetting) -> bool:
        """Return whether both give the same network (alpha does not matter)."""
        return self == dataclasses.replace(other, alpha=self.alpha)

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
        if set(value) != {field.name for field in dataclasses.fields(cls)}:
            raise ConfigError(
                f"cannot read the compression setting ({dict(value)}). Expected what "
                "CompressionSetting.to_dict returns."
            )
        return cls(**value)


def difference(before: CompressionSetting, after: CompressionSetting) -> str:
    """Describe what changed, such as ``bits 8 -> 16``."""

    def word(value: float | None) -> str:
        if value is None:
            return "32"
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    old, new = before.to_dict(), after.to_dict()
    words = [
        f"{name} {word(old[name])} -> {word(new[name])}" for name in old if old[name] != new[name]
    ]
    return ", ".join(words) or "nothing"


class Stateful:
    """Base of objects with a state that survives a resume, as plain data."""

    persistent: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that form the state. They are numbers, strings, None, lists and
    dictionaries of those, or Stateful themselves."""

    def state(self) -> dict[str, Any]:
        """Return the state as plain data (JSON)."""
        values = {name: getattr(self, name) for name in self.persistent}
        return {
            name: value.state() if isinstance(value, Stateful) else copy.deepcopy(value)
            for name, value in values.items()
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ConfigError: the state is of another class.
        """
        if set(state) != set(self.persistent):
            raise ConfigError(
                f"the saved state of {type(self).__name__} has {sorted(state)}. Expected "
                f"{sorted(self.persistent)}: resume with the strategy that the training started "
                "with."
            )
        for name in self.persistent:
            value = getattr(self, name)
            if isinstance(value, Stateful):
                value.load_state(state[name])
            else:
                setattr(self, name, copy.deepcopy(state[name]))


class Strategy(Stateful, abc.ABC):
    """Decides how to compress.

    Attributes:
        reason: why :meth:`decide` changed the setting, as a clause; optional, logged if set.
    """

    reason: str = ""

    @abc.abstractmethod
    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """Return the next setting; the current one if nothing is to change.

        Args:
            readings: indicator name to value; indicators without a reading are absent.
            setting: the current one.
        """

    def reads(self) -> tuple[str, ...]:
        """Return the readings it decides by; it needs at least one. Empty if it does not say."""
        return ()


@dataclass(frozen=True)
class Limit:
    """Limits of a reading, with hysteresis.

    Raises:
        ConfigError: ``bad`` and ``good`` are equal or not finite.
    """

    reading: str
    bad: float
    """Beyond it the strategy acts at once."""
    good: float
    """On the safe side of it the strategy may step back; between the two it does nothing. Below
    ``bad`` if large readings are bad, above ``bad`` if small ones are."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bad) and math.isfinite(self.good)) or self.bad == self.good:
            raise ConfigError(
                f"the limits of {self.reading} are {self.bad} and {self.good}. Expected two "
                "different numbers: without room between them a strategy flaps."
            )

    def too_far(self, value: float) -> bool:
        """Return whether a value is beyond ``bad``."""
        return value > self.bad if self.bad > self.good else value < self.bad

    def fine(self, value: float) -> bool:
        """Return whether a value is on the safe side of ``good``."""
        return value < self.good if self.bad > self.good else value > self.good

    def words(self, value: float) -> str:
        """Return a clause about a value that is beyond ``bad``."""
        side = "above" if self.bad > self.good else "below"
        return f"{self.reading} is {value:.4g}, {side} its limit {self.bad:.4g}"


class Judge(Stateful):
    """Hysteresis, patience and cooldown: whether readings are bad, or good for long enough.

    One bad reading is enough for ``"bad"``. ``"good"`` needs all present readings good, for
    ``patience`` rounds in a row. Each relapse doubles that, up to ``longest``, so a compression
    that keeps failing is retried less and less often. After a change there is no verdict for
    ``cooldown`` rounds, at least as many as a compressor takes for one policy.
    """

    persistent = ("rounds", "rest", "relapses")

    def __init__(
        self, limits: Sequence[Limit], *, patience: int, cooldown: int, longest: int = 100_000
    ) -> None:
        if not limits or patience < 1 or cooldown < 0 or longest < patience:
            raise ConfigError(
                f"a strategy has {len(limits)} limits, patience {patience} (at most {longest}) and "
                f"cooldown {cooldown}. Expected at least one limit, patience from 1, cooldown from "
                "0."
            )
        self.limits = tuple(limits)
        self.patience, self.cooldown, self.longest = patience, cooldown, longest
        self.rounds = self.rest = self.relapses = 0
        self.reason = ""

    def lengthened(self, rounds: int) -> int:
        """Return a waiting time, doubled for each relapse."""
        return min(rounds << min(self.relapses, 32), max(self.longest, rounds))

    def verdict(self, readings: Readings) -> Verdict:
        """Return the verdict on a round's readings; sets ``reason``."""
        if self.rest > 0:
            self.rest -= 1
            return "resting"
        seen = [
            (limit, readings[limit.reading]) for limit in self.limits if limit.reading in readings
        ]
        for limit, value in seen:
            if limit.too_far(value):
                self.rounds = 0
                self.reason = limit.words(value)
                return "bad"
        if not seen:
            return "absent"
        if not all(limit.fine(value) for limit, value in seen):
            self.rounds = 0
            return "between"
        self.rounds += 1
        if self.rounds < self.lengthened(self.patience):
            return "between"
        worst = ", ".join(f"{limit.reading} {value:.4g}" for limit, value in seen)
        self.reason = f"{self.rounds} good rounds in a row ({worst})"
        self.rounds = 0
        return "good"

    def changed(self, *, relapsed: bool = False) -> None:
        """Start the cooldown after a change of the setting.

        It is a relapse if it takes back a step that was made because all was good.
        """
        self.relapses += relapsed
        self.rest = self.cooldown
        self.rounds = 0
