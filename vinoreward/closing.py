"""What everything that has to be closed has in common."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TypeVar

_Closing = TypeVar("_Closing", bound="Closing")


class Closing(abc.ABC):
    """Something with a ``close`` that a ``with`` block calls."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what is held."""

    def __enter__(self: _Closing) -> _Closing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
