"""What everything that has to be closed has in common."""

from __future__ import annotations

import abc
from typing import TypeVar

_Closing = TypeVar("_Closing", bound="Closing")


class Closing(abc.ABC):
    """Something with a ``close``, which the end of a ``with`` block calls."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free all resources."""

    def __enter__(self: _Closing) -> _Closing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
