"""Strategies: from indicator readings and the current setting to the next setting.

A user's own is a class with ``decide(readings, setting) -> setting``, nothing else.
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
    """Base of what keeps a state over a resumed training, as plain data.

    Attributes:
        remembered: names of the attributes that are the state. They hold numbers, texts, None,
            lists and dictionaries of those, or something remembering.
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
        """Take a state that :meth:`state` gave.

        Raises:
            ConfigError: a state of something else.
        """
        if set(state) != set(self.remembered):
            raise ConfigError(
                f"a state of {type(self).__name__} holds {sorted(state)}. Expected "
                f"{sorted(self.remembered)}: resume with the strategy that the training began with."
            )
        for name in self.remembered:
            value = getattr(self, name)
            if isinstance(value, Remembering):
                value.load_state(state[name])
            else:
                setattr(self, name, copy.deepcopy(state[name]))


class Strategy(Remembering, abc.ABC):
    """Decides how to compress from now on.

    Attributes:
        reason: in words, why :meth:`decide` changed the setting; optional, logged if it is there.
    """

    reason: str = ""

    @abc.abstractmethod
    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """Return the setting to go on with; the given one if nothing is to change.

        Args:
            readings: indicator name to value; indicators that have nothing to say are absent.
            setting: the current one.
        """

    def reads(self) -> tuple[str, ...]:
        """Return names of readings of which it needs at least one; none if it does not say."""
        return ()


class Composite(Strategy):
    """Several strategies: in each round the first one that wants a change gets it.

    Args:
        strategies: the guarding ones first.

    Raises:
        ConfigError: none given.
    """

    remembered = ("parts",)

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        if not strategies:
            raise ConfigError("a strategy of no strategies was asked for. Expected at least one.")
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
                f"a state of {parts!r} was given to {len(self._strategies)} strategies. Expected "
                "one for each: resume with the strategy that the training began with."
            )
        for strategy, part in zip(self._strategies, parts, strict=True):
            strategy.load_state(part)
