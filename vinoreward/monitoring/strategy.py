"""Strategies: from indicator readings and the current setting to the next setting.

To write your own, implement ``decide(readings, setting) -> setting``.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vinoreward.errors import ConfigError
from vinoreward.monitoring.setting import CompressionSetting

Readings = Mapping[str, float]


class Remembering:
    """Base of objects with a state that survives a resume, as plain data.

    Attributes:
        remembered: names of the attributes that form the state. They are numbers, strings, None,
            lists and dictionaries of those, or Remembering themselves.
    """

    remembered: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return the state as plain data (JSON)."""
        found = {}
        for name in self.remembered:
            value = getattr(self, name)
            found[name] = value.state() if isinstance(value, Remembering) else copy.deepcopy(value)
        return found

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ConfigError: the state is of another class.
        """
        if set(state) != set(self.remembered):
            raise ConfigError(
                f"the saved state of {type(self).__name__} has {sorted(state)}. Expected "
                f"{sorted(self.remembered)}: resume with the strategy that the training started "
                "with."
            )
        for name in self.remembered:
            value = getattr(self, name)
            if isinstance(value, Remembering):
                value.load_state(state[name])
            else:
                setattr(self, name, copy.deepcopy(state[name]))


class Strategy(Remembering, abc.ABC):
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


class Composite(Strategy):
    """Several strategies: in each round, the first one that wants a change gets it.

    Args:
        strategies: in order of priority; put those that guard first.

    Raises:
        ConfigError: no strategies.
    """

    remembered = ("parts",)

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        if not strategies:
            raise ConfigError("Composite got no strategies. Expected at least one.")
        self._strategies = tuple(strategies)

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        for strategy in self._strategies:
            found = strategy.decide(readings, setting)
            if found != setting:
                self.reason = strategy.reason
                return found
        return setting

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return tuple(name for strategy in self._strategies for name in strategy.reads())

    def state(self) -> dict[str, Any]:
        """See :meth:`Remembering.state`."""
        return {"parts": [strategy.state() for strategy in self._strategies]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Remembering.load_state`."""
        parts = state.get("parts")
        if not isinstance(parts, list) or len(parts) != len(self._strategies):
            raise ConfigError(
                f"{len(self._strategies)} strategies got the saved state {parts!r}. Expected one "
                "state for each: resume with the strategy that the training started with."
            )
        for strategy, part in zip(self._strategies, parts, strict=True):
            strategy.load_state(part)
